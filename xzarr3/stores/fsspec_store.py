"""A store in any file system of fsspec.

Specification: Zarr v3, "Stores"; a key is a path below a root, a value is a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from xzarr3._types import Buffer, ByteRange
from xzarr3.concurrency import is_child
from xzarr3.errors import (
    ChangedError,
    InvalidKeyError,
    ReadOnlyError,
    StoreError,
    StorePermissionError,
    Xzarr3Error,
    printable,
    shorten,
)
from xzarr3.stores import fsspec_files
from xzarr3.stores.base import KeySet, Store, check_key, cut, flat, negative_length
from xzarr3.stores.fsspec_files import (
    Files,
    FileSystem,
    Look,
    WrongBytesError,
    causes,
    files_of,
    in_memory,
    inner,
    is_refusal,
    is_secret,
    layers,
    protocols,
    rebuilt,
    secrets_in,
    without_secrets,
)
from xzarr3.stores.local import TEMPORARY, LocalStore
from xzarr3.stores.locks import key_lock
from xzarr3.stores.readers import BytesReader, OversizedError, Reader, Scratch, ValueReader
from xzarr3.stores.sharing import is_plain, share

Result = TypeVar("Result")

_ABANDONED = 3600.0  # Seconds
_ATTEMPTS = 4  # To get parts of one version of a value that is being replaced.
_ACCEPTED = "a URL, a file system of fsspec, or a mapper of one"

_held: WeakValueDictionary[str, FileSystem] = WeakValueDictionary()
"""File systems in the memory of this process."""
_names: WeakKeyDictionary[FileSystem, str] = WeakKeyDictionary()
"""What they are called there."""


class FsspecStore(Store):
    """Values are files of a file system that fsspec knows.

    A file that is not there is an absent key. Every other failure is an error, also where fsspec itself takes
    it for absence: a cache whose source does not answer, a reference to a file that is gone. Requests are
    repeated, and given up after some time, as the file system itself does that.

    Parts of a value that are put together are of one version. What the file system says of the value has to
    be the same before and after they are read: its e-tag or generation, or when it was modified, unless that
    was less than three seconds ago. Where nothing is said the value is read whole, once. Indexes of shards
    are kept where there are e-tags or generations. Archives, and the blocks that ``blockcache`` keeps, count
    as values that never change.

    From web servers, also below caches and references, an HTML page is never a value, nor is a body of
    another length than was promised or another range than was asked for. ``filecache`` and ``blockcache``
    make their own requests: there the length of ranges is all that is known of servers which ignore them.
    File systems that override how fsspec's own reads from the web have to see to all that themselves.

    Values that are on their way count among the bytes that :mod:`xzarr3.stores.in_flight` bounds, as many as
    are asked for; of whole values, unless a web server tells, as many as those before had.

    References from elsewhere than the local file system, or from memory, may name local files only if
    ``remote_protocol="file"`` or a local ``fs`` is among the options.

    A value is replaced in one step if the file system does that: object storage, and memory. On a local
    file system and over SFTP it is written to a temporary file, which is moved to its place; elsewhere who
    reads at the same time may see a part of it. For local files :class:`LocalStore` is faster and safer.
    Caches, archives, references and HTTP can only be read, and HTTP cannot be listed.

    Changes by :meth:`compare_and_set` and :meth:`update` are safe from other threads. Other processes are
    noticed only where :attr:`creates_conditionally` is true, and then only when the value did not exist.

    A pickle holds the URL and its options, credentials among them, or what the file system itself puts into
    it. Memory of one process is not to be had in another one: a store in it raises errors there.

    Parameters
    ----------
    filesystem : str, AbstractFileSystem or FSMap
        A URL, also a chain such as ``simplecache::s3://bucket/x.zarr``, a file system, or a mapper. One made
        with ``asynchronous=True`` is made again without it.
    path : str
        Where in there the root is.
    storage_options : mapping, optional
        What fsspec takes with the URL.
    read_only : bool
        Refuse every write.
    concurrency : int, optional
        How many requests there may be under way at once: 64 for file systems with an event loop, one for
        others, because few of those may be used by threads. A larger number says that this one may.

    Examples
    --------
    >>> store = FsspecStore("memory://example.zarr")
    >>> store
    <FsspecStore 'memory:///example.zarr'>
    >>> store.set("c/0", b"value")
    >>> store.get("c/0", (1, 3)), store.get("c/1")
    (b'alu', None)
    """

    _tells = False  # What is asked of the file system is told.

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
        self._url: str | None = None
        self._options = dict(storage_options or {})
        self._fs: FileSystem | None = None
        self._files: Files | None = None
        self._pid = os.getpid()
        self._lost = False
        root = ""
        if isinstance(filesystem, (str, os.PathLike)):
            self._url = os.fspath(filesystem)
            fs, root = self._open_url()
        else:
            if self._options:
                raise TypeError("storage_options have no meaning for a ready file system; accepted: none")
            fs, root = self._ready(filesystem)
            self._fs = fs
        path = path.rstrip("/")
        self._root = str(fs._strip_protocol(f"{root.rstrip('/')}/{path}" if root and path else root or path))
        self._use(fs)
        self._name = _named(fs, self._root, self._secrets())
        self._token = _token(fs)
        if in_memory(fs):
            self._token += f"-{fsspec_files.PROCESS}"

    @classmethod
    def from_url(
        cls,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        read_only: bool = False,
        concurrency: int | None = None,
    ) -> FsspecStore:
        """The store at a URL.

        Parameters
        ----------
        url : str
        storage_options : mapping, optional
            What fsspec takes with the URL; ``read_only`` and ``concurrency`` may be among it.

        Examples
        --------
        >>> FsspecStore.from_url("memory://example.zarr", {"read_only": True}).writeable
        False
        """
        options = dict(storage_options or {})
        if "read_only" in options:
            read_only = options.pop("read_only")
            if not isinstance(read_only, bool):
                raise StoreError(
                    f"read_only={shorten(read_only)} in storage_options; accepted: True or False"
                )
        if "concurrency" in options:
            concurrency = options.pop("concurrency")
            try:
                _checked_number(concurrency)
            except ValueError as error:
                raise StoreError(f"storage_options: {error}") from error
        return cls(url, storage_options=options, read_only=read_only, concurrency=concurrency)

    def __repr__(self) -> str:
        return f"<FsspecStore '{printable(self._name)}'>"

    def __reduce__(self) -> tuple[object, ...]:
        state = self.__dict__.copy()
        del state["_files"], state["_pid"], state["_identity"]
        home = None
        fs = None if self._files is None else self._files.fs  # One that was not made yet is in no memory.
        if self._lost:
            home = ("", "")
        elif fs is not None and in_memory(fs):
            home = (fsspec_files.PROCESS, _held_name(fs))
            state["_fs"] = None
        elif state["_fs"] is not None:
            state["_fs"] = _Unmade.of(state["_fs"])
        if home is None and type(self) is FsspecStore and is_plain(state, _Unmade):
            return _restore, (FsspecStore, None, pickle.dumps(sorted(state.items()), 5))
        return _restore, (type(self), home, state)

    @property
    def identity(self) -> object:
        return "FsspecStore", self._name, self._token

    @property
    def creates_conditionally(self) -> bool:
        """Whether other processes cannot store a value between the look for it and its creation."""
        return self._filesystem().creates

    # The file system, in this process

    def _secrets(self) -> list[str]:
        found = {
            *secrets_in([self._url, self._options]),
            *([] if self._fs is None else secrets_in([_given(self._fs)])),
        }
        return sorted(found, key=len, reverse=True)

    def _open_url(self) -> tuple[FileSystem, str]:
        from fsspec.core import url_to_fs

        try:
            return url_to_fs(self._url, **self._options)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - of whatever kind, and told without secrets
            accepted = "a URL that fsspec knows, of something that is there"
            if isinstance(error, ImportError):
                accepted = "an environment with the package that is named"
            name = without_secrets(self._url or "", self._secrets())
            failure, cause = self._told(f"cannot open {shorten(name)}", error, accepted)
        raise failure from cause

    def _ready(self, filesystem: object) -> tuple[FileSystem, str]:
        from fsspec import AbstractFileSystem

        root = ""
        if not isinstance(filesystem, AbstractFileSystem):
            fs = getattr(filesystem, "fs", None)
            place: Any = getattr(filesystem, "root", getattr(filesystem, "path", ""))
            root = place if isinstance(place, str) else ""
            if not isinstance(fs, AbstractFileSystem) or root is not place:
                raise TypeError(f"not a file system: {type(filesystem).__name__}; accepted: {_ACCEPTED}")
            filesystem = fs
        fs, above = _unwrapped(filesystem)
        root = f"{above.rstrip('/')}/{root}" if above and root else above or root
        if _is_asynchronous(fs):
            failure = None
            try:
                fs = rebuilt(fs)
            except Exception as error:  # noqa: BLE001 - of whatever kind
                failure = type(error).__name__
            if failure is not None or _is_asynchronous(fs):
                raise StoreError(
                    "a file system made with asynchronous=True cannot be made again without it"
                    f"{f': {failure}' if failure else ''}; accepted: one made with asynchronous=False"
                )
        return fs, root

    def _use(self, fs: FileSystem) -> Files:
        files = files_of(fs, self._asked)
        self.concurrency = files.concurrency
        self.read_only = self.read_only or not files.can_write
        self._files, self._pid = files, os.getpid()
        return files

    def _filesystem(self) -> Files:
        """The file system; a forked child makes its own, because event loops and connections do not fork."""
        files = self._files
        if files is not None and self._pid == os.getpid():
            return files
        if self._lost:
            raise StoreError(
                f"{self} is in the memory of another process; accepted: a MemoryStore, a copy of which "
                "travels, or a store that processes share, such as a directory"
            )
        with key_lock("fsspec", str(id(self))):
            if self._files is None or self._pid != os.getpid():
                return self._use(self._renewed())
            return self._files

    def _renewed(self) -> FileSystem:
        if self._url is not None and (self._files is None or not in_memory(self._files.fs)):
            return self._open_url()[0]
        if self._files is None:
            if isinstance(self._fs, _Unmade):
                self._fs = self._made(self._fs)
            return self._fs
        fs = self._files.fs
        if in_memory(fs) or type(fs).__name__ == "LocalFileSystem":
            return fs
        try:
            fs = rebuilt(fs)
        except Xzarr3Error:
            raise
        except Exception as error:  # noqa: BLE001 - of whatever kind, and told without secrets
            failure, cause = self._told(f"cannot make the file system of {self} again after a fork", error)
        else:
            self._fs = fs
            return fs
        raise failure from cause

    def _made(self, unmade: _Unmade) -> FileSystem:
        try:
            return pickle.loads(unmade.pickled)
        except Exception as error:  # noqa: BLE001 - of whatever kind, and told without secrets
            failure, cause = self._told(f"cannot make the file system of {self} in this process", error)
        raise failure from cause

    # Errors

    def _told(
        self, text: str, error: BaseException, accepted: str | None = None
    ) -> tuple[StoreError, BaseException | None]:
        """An error of ours for one of a file system, and that one itself if there are no secrets in it."""
        secrets = self._secrets()
        raw = str(error)
        told = without_secrets(raw, secrets)
        links = [f"{link!s} {link!r}" for link in causes(error)]
        cause = error if all(without_secrets(link, secrets) == link for link in links) else None
        if not isinstance(error, WrongBytesError):
            told = f"{type(error).__name__}: {told}" if told else type(error).__name__
        text = f"{text}: {told}"
        if is_refusal(error):
            return StorePermissionError(f"{text}; accepted: credentials that permit it"), cause
        return StoreError(text if accepted is None else f"{text}; accepted: {accepted}"), cause

    def _do(self, doing: str, key: str, call: Callable[[Files], Result]) -> Result:
        files = self._filesystem()
        try:
            return call(files)
        except Xzarr3Error:
            raise
        except Exception as error:  # noqa: BLE001 - file systems raise whatever they like
            failure, cause = self._told(f"cannot {doing} key '{key}' of {self}", error)
        raise failure from cause  # Here, so that what may hold secrets is not its context.

    def _path(self, files: Files, key: str) -> str:
        if TEMPORARY in key and any(name.startswith(TEMPORARY) for name in key.split("/")):
            raise InvalidKeyError(
                f"invalid key {shorten(key)}; names that begin with '{TEMPORARY}' are taken"
            )
        return files.path(self._root, key)

    def _folder(self, files: Files, prefix: str) -> str:
        return self._path(files, prefix[:-1]) if prefix else self._root

    # What it can do

    def _check_writable(self) -> None:
        super()._check_writable()
        is_ours = self._token.endswith(fsspec_files.PROCESS)
        if is_child() and not is_ours and in_memory(self._filesystem().fs):
            raise ReadOnlyError(
                f"{self} is a copy in another process, which cannot be written; accepted: threads, or a "
                "store that processes share, such as a directory"
            )

    @property
    def listable(self) -> bool:
        return self._lost or self._filesystem().lists

    def _check_listable(self) -> None:
        if not self._filesystem().lists:
            self._lacks("list", "listings, or consolidated metadata")

    # Readable

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        start, length = byte_range or (0, None)
        return self._do("read", key, lambda files: files.part(self._path(files, key), start, length))

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return _FileSystemReader(self, scratch, limit)

    def _open_whole(self, key: str) -> ValueReader | None:
        value = self._get(key, None)
        return None if value is None else BytesReader(value)

    # Writeable

    def _set(self, key: str, value: bytes) -> None:
        self._put(key, value)

    def _put(self, key: str, value: Buffer, *, create: bool = False) -> bool:
        content = flat(value, key)
        whole = value if isinstance(value, bytes) else bytes(content)
        return self._do("write", key, lambda files: files.put(self._path(files, key), whole, create=create))

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        if value is None or not self.creates_conditionally:
            return super()._compare_and_set(key, version, value)
        with key_lock(self.identity, key):
            stored, found = self.get_versioned(key)
            if found != version:
                return False
            return self._put(key, value, create=stored is None)

    def _erase(self, key: str) -> None:
        def work(files: Files) -> None:
            path = self._path(files, key)
            files.erase(path)
            files.prune(self._root, path.rpartition("/")[0])

        self._do("erase", key, work)

    def _sweep(self, prefix: str) -> None:
        """Remove temporary files that killed writers left below ``prefix``, once they are an hour old."""

        def work(files: Files) -> None:
            if not files.moves:
                return
            folder = self._folder(files, prefix)
            for name in list(files.below(folder)):
                path = f"{folder}/{name}"
                if (
                    name.rpartition("/")[2].startswith(TEMPORARY)
                    and files.age(path, time.time()) > _ABANDONED
                ):
                    files.erase(path)
                    files.prune(self._root, path.rpartition("/")[0])

        self._do("sweep", prefix, work)

    # Listable

    def _list(self, prefix: str) -> Iterator[str]:
        found = self._do("list", prefix, lambda files: list(files.below(self._folder(files, prefix))))
        return (prefix + name for name in found if _is_listed(name))

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        if self._filesystem().is_archive:
            return super()._list_dir(prefix)
        entries = self._do("list", prefix, lambda files: files.entries(self._folder(files, prefix)))
        names = [(name, is_folder) for name, is_folder in entries if _is_listed(name)]
        return (
            {prefix + name for name, is_folder in names if not is_folder},
            {f"{prefix}{name}/" for name, is_folder in names if is_folder},
        )


def store_for(filesystem: Any, *, read_only: bool = False) -> Store:
    """The store that a file system or a mapper of fsspec stands for.

    Local file systems become a :class:`LocalStore`, which replaces values in one step.

    Examples
    --------
    >>> import fsspec
    >>> store_for(fsspec.get_mapper("file:///data/era5.zarr"))
    <LocalStore '/data/era5.zarr'>
    >>> store_for(fsspec.get_mapper("memory://era5.zarr"))
    <FsspecStore 'memory:///era5.zarr'>
    """
    from fsspec.implementations.local import LocalFileSystem

    store = FsspecStore(filesystem, read_only=read_only)
    if type(store._fs) is LocalFileSystem:
        return LocalStore(store._root, read_only=read_only)
    return store


class _FileSystemReader(Reader):
    """Reads files of a file system."""

    _store: FsspecStore

    def get(self, key: str) -> Buffer | None:
        store = self._store
        if self._scratch is None and self._limit != sys.maxsize and store._filesystem().tells_size:
            size = store._do("read", key, lambda files: files.size(store._path(files, key)))
            if size is not None and size > self._limit:
                raise OversizedError(size, self._limit)
        return store._get(key, None)

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        if len(starts) == 1:
            part = self._store._get(key, (starts[0], lengths[0]))
            return None if part is None else (None, [part])
        for _ in range(_ATTEMPTS):
            reader = self.open(key, (starts[0], lengths[0]) if starts else None)
            if reader is None:
                return None
            with contextlib.suppress(ChangedError):
                return reader.size, reader.read_ranges(starts, lengths)
        whole = self._store._open_whole(key)  # It keeps changing.
        return None if whole is None else (whole.size, whole.read_ranges(starts, lengths))

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
        if store._filesystem().in_memory:
            return store._open_whole(key)
        if part is None:
            look = store._do("read", key, lambda files: files.look(store._path(files, key)))
            return None if look is None else _PartsReader(store, key, look)
        start, length = part
        if length < 0:
            raise negative_length(length)
        if isinstance(version, Look):
            return _PartsReader(store, key, version, is_known=True)
        found = store._do("read", key, lambda files: files.first(store._path(files, key), start, length))
        if found is None:
            return None
        look, first = found
        if look.mark is None:
            return store._open_whole(key)
        return _PartsReader(store, key, look, (start, length, first))


class _PartsReader(ValueReader):
    """Parts of one version of a value.

    Parameters
    ----------
    store : FsspecStore
    key : str
    look : Look
        What was said of the value before any part of it was read.
    first : (int, int, bytes), optional
        A part that is there already, by its start and the length asked for.
    is_known : bool
        Whether other parts of this version were read before.
    """

    def __init__(
        self,
        store: FsspecStore,
        key: str,
        look: Look,
        first: tuple[int, int, Buffer] | None = None,
        *,
        is_known: bool = False,
    ) -> None:
        self._store = store
        self._key = key
        self._look = look
        self._first = first
        self._checks = is_known or first is not None
        self._whole: Buffer | None = None
        self.size = look.size

    @property
    def version(self) -> object | None:
        return self._look if self._look.exact else None

    def read(self, start: int, length: int | None = None) -> Buffer:
        (part,) = self._read([(start, length)])
        return part

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return self._read(list(zip(starts, lengths, strict=True)))

    def _read(self, ranges: Sequence[tuple[int, int | None]]) -> list[Buffer]:
        for _, length in ranges:
            if length is not None and length < 0:
                raise negative_length(length)
        if self._look.mark is None:
            whole = self._get_whole()
            return [cut(whole, wanted) for wanted in ranges]
        held = [self._held(*wanted) for wanted in ranges]
        asked = [wanted for wanted, part in zip(ranges, held, strict=True) if part is None]
        if not asked:
            return [part for part in held if part is not None]
        store, checks = self._store, self._checks
        found = store._do(
            "read",
            self._key,
            lambda files: files.parts(store._path(files, self._key), asked, self._look, check=checks),
        )
        self._checks = True
        if found is None:
            raise self._changed()
        parts = iter(found)
        return [next(parts) if part is None else part for part in held]

    def _get_whole(self) -> Buffer:
        """All of it, where nothing tells whether parts are of one version."""
        if self._whole is None:
            whole = self._store._get(self._key, None)
            if whole is None or (self.size is not None and len(whole) != self.size):
                raise self._changed()
            self._whole = whole
        return self._whole

    def _changed(self) -> ChangedError:
        return ChangedError(f"key '{self._key}' of {self._store} was replaced or removed while it was read")

    def _held(self, start: int, length: int | None) -> Buffer | None:
        if self._first is None or length is None:
            return None
        first, count, data = self._first
        if 0 <= first <= start and start + length <= first + count:
            return cut(data, (start - first, length))
        if start < 0 and first + count >= 0 > first:  # The end of the value, or all of it.
            if len(data) < -first:
                return cut(data, (start, length))
            if start >= first:
                return cut(data, (start - first, length))
        return None


def _checked_number(concurrency: int | None) -> int | None:
    if concurrency is None:
        return None
    try:
        number = operator.index(concurrency)
    except TypeError as error:
        raise ValueError(f"concurrency={concurrency!r}: accepted: an integer of at least 1") from error
    if number < 1:
        raise ValueError(f"concurrency={concurrency!r}: accepted: an integer of at least 1")
    return number


def _is_listed(name: str) -> bool:
    """Whether what a file system lists can be a key."""
    try:
        check_key(name)
    except InvalidKeyError:
        return False
    return not (TEMPORARY in name and any(part.startswith(TEMPORARY) for part in name.split("/")))


def _unwrapped(fs: FileSystem) -> tuple[FileSystem, str]:
    """A file system without what only begins its paths or makes it asynchronous, and that beginning."""
    root = ""
    while type(fs).__name__ in ("DirFileSystem", "AsyncFileSystemWrapper"):
        if type(fs).__name__ == "DirFileSystem":
            root = f"{fs.path.rstrip('/')}/{root}" if root else fs.path
        fs = inner(fs)
    return fs, root


def _is_asynchronous(fs: FileSystem) -> bool:
    """Whether it is for use within somebody else's event loop."""
    reached = [*layers(fs), *getattr(fs, "fss", {}).values()]
    return any(layer.async_impl and getattr(layer, "asynchronous", False) for layer in reached)


def _named(fs: FileSystem, root: str, secrets: list[str]) -> str:
    """What a store is called, without secrets."""
    names = [protocols(layer)[0] for layer in layers(fs)]
    options = getattr(fs, "storage_options", {})
    place = root if "://" in root else f"{names[-1]}://{options.get('host', '')}{root}"
    text = "::".join([*names[:-1], place])
    if isinstance(options.get("fo"), str):
        text += f"::{options['fo']}"
    return without_secrets(text, secrets)


def _token(fs: FileSystem) -> str:
    """Tells file systems apart that have the same name, without their secrets."""
    digest = hashlib.blake2b(digest_size=12)
    for layer in layers(fs):
        for text in _described([protocols(layer)[0], layer.storage_args, layer.storage_options], ""):
            digest.update(f"{text}\0".encode(errors="surrogatepass"))
        if not getattr(layer, "global_store", True):
            digest.update(_held_name(layer).encode())
    return digest.hexdigest()


def _held_name(fs: FileSystem) -> str:
    """What a file system in the memory of this process is called as long as it is there."""
    name = _names.setdefault(fs, uuid.uuid4().hex)
    _held[name] = fs
    return name


def _described(value: object, name: str) -> Iterator[str]:
    """What is said of an option."""
    if is_secret(name):
        return
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield str(key)
            yield from _described(value[key], "" if name == "fo" else str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _described(item, "")
    elif isinstance(value, str):
        yield without_secrets(value)
    elif isinstance(value, (bytes, bool, int, float, type(None))):
        yield repr(value)
    elif hasattr(value, "storage_options"):
        yield from _described([protocols(value)[0], value.storage_options], "")
    else:
        yield type(value).__name__


class _Unmade:
    """A file system that was pickled, and is not made before it is used.

    Making one may import large packages and start threads.
    """

    def __init__(self, pickled: bytes, given: dict[str, Any]) -> None:
        self.pickled = pickled
        self.given = given

    @classmethod
    def of(cls, fs: FileSystem) -> FileSystem:
        """``fs``, unmade if it says itself all that it takes to make it."""
        if isinstance(fs, cls):
            return fs
        from fsspec import AbstractFileSystem

        kind, given = type(fs), {"args": list(fs.storage_args), "options": dict(fs.storage_options)}
        is_usual = kind.__reduce__ is AbstractFileSystem.__reduce__ and kind.__module__ != "__main__"
        return cls(pickle.dumps(fs, 5), given) if is_usual and is_plain(given) else fs


def _given(fs: FileSystem) -> object:
    return fs.given if isinstance(fs, _Unmade) else fs


def _restore(
    kind: type[FsspecStore], home: tuple[str, str] | None, state: dict[str, Any] | bytes
) -> FsspecStore:
    if isinstance(state, bytes):

        def make() -> FsspecStore:
            return _with_state(kind, None, dict(pickle.loads(state)))

        return share((kind, state), make)
    return _with_state(kind, home, state)


def _with_state(kind: type[FsspecStore], home: tuple[str, str] | None, state: dict[str, Any]) -> FsspecStore:
    store = kind.__new__(kind)
    store._identity = uuid.uuid4().hex
    store.__dict__.update(state)
    store._files = None
    store._pid = os.getpid()
    if home is not None:
        fs = _held.get(home[1]) if home[0] == fsspec_files.PROCESS else None
        store._fs = fs
        store._lost = fs is None
        if fs is not None:
            store._use(fs)
    return store
