"""A store in any fsspec file system.

Specification: Zarr v3, "Stores". A key is a path below a root, a value is a file.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChangedError,
    InvalidKeyError,
    StoreError,
    StorePermissionError,
    Xzarr3Error,
    one_of,
    printable,
    shorten,
)
from xzarr3.stores.base import KeySet, Store, check_key, negative_length
from xzarr3.stores.fsspec import files as fsspec_files
from xzarr3.stores.fsspec.files import (
    CACHES,
    HTTP,
    FileInfo,
    Files,
    FileSystem,
    WrongBytesError,
    causes,
    inner,
    innermost,
    is_refusal,
    layers,
    protocols,
)
from xzarr3.stores.fsspec.names import secrets_in, shown, token, without_secrets
from xzarr3.stores.fsspec.references import ReferenceFiles
from xzarr3.stores.fsspec.web import WebFiles, is_web, web_store
from xzarr3.stores.local.folders import TEMPORARY, is_taken
from xzarr3.stores.local.store import LocalStore
from xzarr3.stores.object.options import OBJECT_SCHEMES
from xzarr3.stores.readers import BytesReader, OversizedError, Reader, Scratch, ValueReader
from xzarr3.stores.sharing import reduced

Result = TypeVar("Result")

_ACCEPTED = "a URL, a file system of fsspec, or a mapper of one"
_OF_PROCESS = frozenset(("_fs", "_files", "_identity"))


_PACKAGE = re.compile(r"[Ii]nstall (?:the )?[\"'`]?([\w-]+)|requires [\"'`]?([\w-]+)")


class FsspecStore(Store):
    """Values are files of an fsspec file system.

    A missing file is an absent key. Every other failure is an error, also where fsspec itself treats it as
    absence, such as a reference to a missing file. The file system itself decides how often a request is
    repeated and when it is given up. Parts of values have the requested length, or end where the value ends.

    Parts of a value that are read together are of one version, identified by its e-tag or generation. Where
    there is none, as in archives, the value is read whole, once. fsspec's caches are refused;
    :class:`CacheStore` keeps values in a directory, and notices changes.

    Web servers are read by an :class:`ObjectStore`, which needs the extra ``object``. This includes
    references to web servers. An HTML page or a wrong range thus never passes as a value. Of the options of
    fsspec's HTTP file system only headers are supported; others are refused. URLs with a query are read by
    fsspec's own requests, whose lengths are checked.

    Values in flight count towards the limit of :mod:`xzarr3.stores.in_flight`, with their requested sizes. A
    whole value counts with an estimate from earlier values.

    References that do not come from the local file system or from memory may point to local files only if the
    options include ``remote_protocol="file"`` or a local ``fs``.

    A value is replaced in one step where the file system can do so: in object storage and in memory. On a
    local file system and over SFTP it is written to a temporary file, which is then renamed. If a killed
    writer leaves such a file, it is no key; :meth:`sweep` removes it once it is an hour old. Elsewhere a
    concurrent reader may see part of a value. For local files :class:`LocalStore` is faster and safer.
    Archives and references are read only.

    Changes by :meth:`compare_and_set` and :meth:`update` are safe from other threads. Changes by other
    processes are detected only where :attr:`creates_conditionally` is true, and only if the value did not
    exist before.

    The pickled form contains what the file system puts into it, including credentials. A memory file system
    is not available in other processes: a store in it raises errors there.

    Parameters
    ----------
    filesystem : str, AbstractFileSystem or FSMap
        A URL, also a chain such as ``tar://::ftp://host/x.tar``, a file system, or a mapper. A file system
        with ``asynchronous=True`` is made again without it.
    path : str
        Path of the root in the file system.
    storage_options : mapping, optional
        Arguments of fsspec for the URL.
    read_only : bool
        Refuse every write.
    concurrency : int, optional
        Most requests in flight at once. By default 64 for file systems with an event loop and 1 for others,
        few of which are safe for threads. A larger number says that this file system is safe for threads.

    Examples
    --------
    >>> store = FsspecStore("memory://example.zarr")
    >>> store
    <FsspecStore 'memory:///example.zarr'>
    >>> store.set("c/0", b"value")
    >>> store.get("c/0", (1, 3)), store.get("c/1")
    (b'alu', None)
    """

    _tells = False  # The requests to the file system are reported instead.

    def __init__(
        self,
        filesystem: Any,
        path: str = "",
        *,
        storage_options: Mapping[str, Any] | None = None,
        read_only: bool = False,
        concurrency: int | None = None,
    ) -> None:
        super().__init__(read_only=read_only)
        self._asked = _checked_number(concurrency)
        self._pickled: bytes | None = None  # The pickled file system.
        self._home: str | None = None  # For a memory file system: its process.
        options = dict(storage_options or {})
        if isinstance(filesystem, (str, os.PathLike)):
            fs, root = self._open_url(os.fspath(filesystem), options)
        elif options:
            raise ArgumentTypeError("storage_options have no meaning for a ready file system; leave them out")
        else:
            fs, root = _ready(filesystem)
            self._secrets = secrets_in([fs])
            fs = _synchronous(fs) if _is_asynchronous(fs) else fs
        if _is_asynchronous(fs):
            raise StoreError(
                "found a file system made with asynchronous=True, which belongs to one event loop; make it "
                "with asynchronous=False"
            )
        if innermost(fs) & HTTP:
            raise StoreError(
                "found a file system for HTTP; use open_store(...) of a URL that begins with 'http' (to keep "
                "what is read, CacheStore(...) of it), a mapper, or an ObjectStore"
            )
        path = path.rstrip("/")
        self._root = str(fs._strip_protocol(f"{root.rstrip('/')}/{path}" if root and path else root or path))
        self._name = shown(fs, self._root, self._secrets)
        self._token = token(fs)
        if "memory" in innermost(fs):
            if not all(getattr(layer, "global_store", True) for layer in layers(fs)):
                raise StoreError(
                    "found a memory file system made with global_store=False; make it without, or use a "
                    "MemoryStore"
                )
            self._home = fsspec_files.PROCESS
            self._token += f"-{self._home}"
        self._fs = fs
        self._files: Files | None = files_of(fs, self._asked)
        self.concurrency = self._files.concurrency
        self.read_only = read_only or not self._files.can_write

    @classmethod
    def from_url(
        cls,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        read_only: bool = False,
        concurrency: int | None = None,
    ) -> FsspecStore:
        """The store at a URL; see the class.

        Parameters
        ----------
        url : str
        storage_options : mapping, optional
            Arguments of fsspec for the URL; may include ``read_only`` and ``concurrency``.

        Examples
        --------
        >>> FsspecStore.from_url("memory://example.zarr", {"read_only": True}).writeable
        False
        """
        options = dict(storage_options or {})
        read_only = options.pop("read_only", read_only)
        if not isinstance(read_only, bool):
            raise StoreError(f"read_only={shorten(read_only)} in storage_options; accepted: True or False")
        try:
            number = _checked_number(options.pop("concurrency", None)) or concurrency
        except ValueError as error:
            raise StoreError(f"storage_options: {error}") from error
        return cls(url, storage_options=options, read_only=read_only, concurrency=number)

    def __repr__(self) -> str:
        return f"<FsspecStore '{printable(self._name)}'>"

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, FsspecStore)

    def __getstate__(self) -> dict[str, Any]:
        if self._pickled is None:
            self._pickled = pickle.dumps(self._fs, 5)
        return {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fs = None  # Made when needed.
        self._files = None
        self.__dict__.update(state)

    @property
    def identity(self) -> object:
        return "FsspecStore", self._name, self._token

    @property
    def creates_conditionally(self) -> bool:
        """Whether no other process can store a value between the check for it and its creation."""
        return self._filesystem().creates

    @property
    def writes_conditionally(self) -> bool:  # type: ignore[override]
        """True only for the memory of this process, which no other process can write to."""
        return self._home is not None

    @property
    def survives_crashes(self) -> bool:  # type: ignore[override]
        """Whether it is object storage; other file systems, SFTP too, do not tell what is on a disk."""
        return self._filesystem().keeps

    # The file system, in this process

    def _open_url(self, url: str, options: Mapping[str, Any]) -> tuple[FileSystem, str]:
        from fsspec.core import url_to_fs

        self._secrets = secrets_in([url, options])
        try:
            return _unwrapped(*url_to_fs(url, **options))
        except Exception as error:  # noqa: BLE001 - of any kind, and reported without secrets
            name = without_secrets(url, self._secrets)
            failure, cause = self._told(f"cannot open {shorten(name)}", error, advice=_advice(url, error))
        raise failure from cause

    def _filesystem(self) -> Files:
        """The file system. A forked child makes its own: event loops and connections do not fork."""
        files = self._files
        if files is None or files.process != fsspec_files.PROCESS:
            files = self._files = files_of(self._made(), self._asked)
        return files

    def _made(self) -> FileSystem:
        """Make the file system in this process."""
        if self._home not in (None, fsspec_files.PROCESS):
            raise StoreError(
                f"{self} is in the memory of another process; use a MemoryStore, which is copied when "
                "pickled, or a store that processes share, such as a directory"
            )
        try:
            self._fs = pickle.loads(self._pickled or pickle.dumps(self._fs, 5))
        except Exception as error:  # noqa: BLE001 - of any kind, and reported without secrets
            failure, cause = self._told(f"cannot make the file system of {self} again in this process", error)
        else:
            return self._fs
        raise failure from cause

    # Errors

    def _told(
        self,
        text: str,
        error: BaseException,
        handled: BaseException | None = None,
        *,
        advice: str | None = None,
    ) -> tuple[StoreError, BaseException | None]:
        """Translate an error of a file system; also returns that error, if it contains no secrets."""
        told = without_secrets(str(error), self._secrets)
        links = [f"{link!s} {link!r}" for link in causes(error)]
        cause = error if all(without_secrets(link, self._secrets) == link for link in links) else None
        if not isinstance(error, (WrongBytesError, Xzarr3Error)):
            told = f"{type(error).__name__}: {told}" if told else type(error).__name__
        text = f"{text}: {told}"
        if is_refusal(error, handled):
            if isinstance(error, StorePermissionError):
                return StorePermissionError(text), cause
            return StorePermissionError(f"{text}; pass credentials that permit it"), cause
        return StoreError(text if advice is None else f"{text}; {advice}"), cause

    def _do(self, doing: str, key: str, call: Callable[[Files, str], Result]) -> Result:
        """Call a function with the file system and the path of a key, and translate its errors."""
        files = self._filesystem()
        handled = sys.exception()
        try:
            return call(files, self._path(files, key, doing))
        except (InvalidKeyError, ChangedError, OversizedError):
            raise
        except Exception as error:  # noqa: BLE001 - file systems raise whatever they like
            failure, cause = self._told(f"cannot {doing} key '{key}' of {self}", error, handled)
        raise failure from cause  # Outside the handler: its error may hold secrets.

    def _path(self, files: Files, key: str, doing: str) -> str:
        if not key and doing == "list":  # The empty prefix, which is the root.
            return self._root
        check_key(key)
        if is_taken(key):
            raise InvalidKeyError(
                f"invalid key {shorten(key)}; names that begin with '{TEMPORARY}' are taken"
            )
        return files.path(self._root, key)

    # Capabilities

    # Readable

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        start, length = byte_range or (0, None)
        return self._do("read", key, lambda files, path: files.part(path, start, length))

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _FileSystemReader(self, scratch, limit)

    # Writeable

    def _set(self, key: str, value: bytes) -> None:
        self._do("write", key, lambda files, path: files.put(path, value))

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        if value is None or not self.creates_conditionally:
            return super()._compare_and_set(key, version, value)
        with self._locked(key):
            stored, found = self.get_versioned(key)
            if found != version:
                return False
            if stored is None:
                return self._do("write", key, lambda files, path: files.create(path, value))
            self._set(key, value)
            return True

    def _erase(self, key: str) -> None:
        self._do("erase", key, self._remove)

    def _remove(self, files: Files, path: str) -> None:
        files.erase(path)
        files.prune(self._root, path.rpartition("/")[0])

    def _sweep(self, prefix: str) -> None:
        def sweep(files: Files, folder: str) -> None:
            for name, is_old in files.leftovers(folder):
                if is_old:
                    self._remove(files, files.path(folder, name))

        self._do("list", prefix[:-1], sweep)

    # Listable

    def _leftovers(self, prefix: str) -> list[tuple[str, bool]]:
        found = self._do("list", prefix[:-1], lambda files, folder: list(files.leftovers(folder)))
        return [(prefix + name, is_old) for name, is_old in found]

    def _list(self, prefix: str) -> Iterator[str]:
        found = self._do("list", prefix[:-1], lambda files, folder: list(files.below(folder)))
        return (prefix + name for name in found if _is_listed(name))

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        entries = self._do("list", prefix[:-1], lambda files, folder: files.entries(folder))
        names = [(name, is_folder) for name, is_folder in entries if _is_listed(name)]
        return (
            {prefix + name for name, is_folder in names if not is_folder},
            {f"{prefix}{name}/" for name, is_folder in names if is_folder},
        )


def store_for(filesystem: Any, path: str = "", *, read_only: bool = False) -> Store:
    """The store for an fsspec file system or mapper, at a path in it.

    A local file system becomes a :class:`LocalStore`, which replaces values in one step. An HTTP file system
    becomes an :class:`ObjectStore`.

    Examples
    --------
    >>> import fsspec
    >>> store_for(fsspec.get_mapper("file:///data/era5.zarr"))
    <LocalStore '/data/era5.zarr'>
    >>> store_for(fsspec.get_mapper("memory://era5.zarr"))
    <FsspecStore 'memory:///era5.zarr'>
    """
    fs, root = _ready(filesystem)
    if is_web(fs):
        return web_store(
            fs, f"{root.rstrip('/')}/{path}" if root and path else root or path, read_only=read_only
        )
    store = FsspecStore(filesystem, path, read_only=read_only)
    is_local = type(fs).__name__ == "LocalFileSystem"
    return LocalStore(store._root, read_only=read_only) if is_local else store


def files_of(fs: FileSystem, concurrency: int | None = None) -> Files:
    """The :class:`Files` object for a file system."""
    if type(fs).__name__ == "AsyncFileSystemWrapper":
        fs = fs.sync_fs
    names = {*protocols(fs)}
    if "reference" in names:
        targets = {id(target): files_of(target, concurrency) for target in fs.fss.values()}
        return ReferenceFiles(fs, {name: targets[id(target)] for name, target in fs.fss.items()})
    if names & CACHES:
        raise StoreError(
            "found a cache of fsspec, which may mistake values that it could not fetch for fetched ones; use "
            "CacheStore(open_store(...), directory=...) of the file system below it"
        )
    return WebFiles(fs, concurrency) if is_web(fs) else Files(fs, concurrency)


class _FileSystemReader(Reader):
    """Reads files of a file system."""

    _store: FsspecStore

    def get(self, key: str) -> Buffer | None:
        store = self._store
        if self._scratch is None and self._limit != sys.maxsize:
            size = store._do("read", key, lambda files, path: files.known_size(path))
            if size is not None and size > self._limit:
                raise OversizedError(size, self._limit)
        return store._get(key, None)

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        if len(starts) == 1:
            part = self._store._get(key, (starts[0], lengths[0]))
            return None if part is None else (None, [part])
        with contextlib.suppress(ChangedError):
            return super().get_ranges(key, starts, lengths)
        value = self._store._get(key, None)  # The value was replaced meanwhile.
        return None if value is None else (len(value), BytesReader(value).read_ranges(starts, lengths))

    def get_into(self, key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
        data = self._store._get(key, (start, len(out) + 1))
        if data is None:
            return None
        out[: len(data)] = data[: len(out)]
        return None, len(data)

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        store = self._store
        if isinstance(version, FileInfo):
            return _PartsReader(store, key, version)
        if not store._filesystem().in_memory:
            look = store._do("read", key, lambda files, path: files.look(path))
            if look is None:
                return None
            if look.mark is not None:
                return _PartsReader(store, key, look)
        value = store._get(key, None)  # Whole, because nothing tells whether parts are of one version.
        return None if value is None else BytesReader(value)


class _PartsReader(ValueReader):
    """Parts of one version of a value.

    Parameters
    ----------
    store : FsspecStore
    key : str
    look : Look
        The properties of the value before any part of it was read.
    """

    def __init__(self, store: FsspecStore, key: str, look: FileInfo) -> None:
        self._store, self._key, self._look = store, key, look
        self.size: int = look.size

    @property
    def version(self) -> object | None:
        return self._look

    def read(self, start: int, length: int | None = None) -> Buffer:
        (part,) = self._read([(start, length)])
        return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return self._read(list(zip(starts, lengths, strict=True)))

    def _read(self, ranges: Sequence[tuple[int, int | None]]) -> list[Buffer]:
        for _, length in ranges:
            if length is not None and length < 0:
                raise negative_length(length)
        look = self._look
        found = self._store._do("read", self._key, lambda files, path: files.parts(path, ranges, look))
        if found is None:
            raise ChangedError(
                f"key '{self._key}' of {self._store} was replaced or removed while it was read"
            )
        return found


def _advice(url: str, error: Exception) -> str:
    """What to do about a URL that fsspec cannot open."""
    from fsspec import available_protocols

    if isinstance(error, ImportError):
        named = _PACKAGE.search(str(error))
        package = error.name or (next(filter(None, named.groups())) if named else "")
        return f"install the package that is named{package and f': pip install {package}'}"
    protocol = url.partition(":")[0]
    known = {*available_protocols(), *OBJECT_SCHEMES}
    if protocol not in known:
        names = one_of(protocol, sorted(known), "it knows")
        return f"correct the URL, its protocol must be one that fsspec knows; {names}"
    return "correct the URL or the options: what the URL names must exist"


def _checked_number(concurrency: int | None) -> int | None:
    if concurrency is not None and (not isinstance(concurrency, Integral) or concurrency < 1):
        raise ArgumentError(f"concurrency={concurrency!r}; accepted: an integer of at least 1")
    return concurrency


def _is_listed(name: str) -> bool:
    """Whether a listed name can be a key."""
    try:
        check_key(name)
    except InvalidKeyError:
        return False
    return not is_taken(name)


def _ready(filesystem: object) -> tuple[FileSystem, str]:
    """The file system in a file system or mapper, and the path of the root in it."""
    from fsspec import AbstractFileSystem

    fs, root = filesystem, ""
    if not isinstance(filesystem, AbstractFileSystem):
        fs = getattr(filesystem, "fs", None)
        root = getattr(filesystem, "root", getattr(filesystem, "path", ""))
    if not isinstance(fs, AbstractFileSystem) or not isinstance(root, str):
        raise ArgumentTypeError(f"not a file system: {type(filesystem).__name__}; accepted: {_ACCEPTED}")
    return _unwrapped(fs, root)


def _unwrapped(fs: FileSystem, root: str) -> tuple[FileSystem, str]:
    """A file system without layers that only prefix paths or make it asynchronous, and its root path."""
    while type(fs).__name__ in ("DirFileSystem", "AsyncFileSystemWrapper"):
        if type(fs).__name__ == "DirFileSystem":
            root = f"{fs.path.rstrip('/')}/{root}" if root else fs.path
        fs = inner(fs)
    return fs, root


def _is_asynchronous(fs: FileSystem) -> bool:
    """Whether a file system is for use within a given event loop."""
    reached = [*layers(fs), *getattr(fs, "fss", {}).values()]
    return any(layer.async_impl and getattr(layer, "asynchronous", False) for layer in reached)


def _synchronous(value: Any) -> Any:
    """A file system, or options of one, made again without ``asynchronous`` and ``loop``."""
    if type(value).__name__ == "AsyncFileSystemWrapper":
        return value.sync_fs
    if isinstance(value, Mapping):
        return {
            name: _synchronous(item) if name == "fs" or name.endswith("_options") else item
            for name, item in value.items()
            if name not in ("asynchronous", "loop")
        }
    if getattr(value, "async_impl", False):
        return type(value)(*value.storage_args, **_synchronous(value.storage_options))
    return value
