"""A store in any file system of fsspec.

Specification: Zarr v3, "Stores". A key is a path below a root, a value is a file.

fsspec has no contract for failures. Some file systems report "not found" for any failure, some return other
bytes than requested, and most keep listings that other writers have changed since. This module counts as
absence only a ``FileNotFoundError`` that no other failure caused, or a path that is no file. It checks the
length of every part, and never answers from an old listing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from xzarr3 import errors
from xzarr3._types import Buffer, ByteRange, Found, Part
from xzarr3.errors import ChangedError, StoreError
from xzarr3.parallel import parallel_map, undisturbed
from xzarr3.quantities import integer
from xzarr3.stores.base import Key, Names, Store, Traits, called_as
from xzarr3.stores.in_flight import Estimate, reserved
from xzarr3.stores.interned import reduced
from xzarr3.stores.local.names import LOCK, is_lock
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import NO_LIMIT, BytesValue, Into, Value, WholeValue, check_size, joined, part_of
from xzarr3.tracing.events import sent

FileSystem: TypeAlias = Any  # fsspec is imported when needed, and has no types.

_MANY = 64  # Requests at a time for a file system that waits with an event loop.
_ATTEMPTS = 100
_LOCAL = frozenset(("file", "local"))
_NEAR = _LOCAL | {"memory"}  # Answers come without latency.
_WEB = frozenset(("http", "https"))
_CACHES = frozenset(("simplecache", "filecache", "blockcache", "cached"))
_ARCHIVES = frozenset(("zip", "tar", "libarchive"))  # They know sizes at once, and may inflate a value much.
_FIXED = _ARCHIVES | {"reference"}
_SERVICES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss"))
_MOVES = _LOCAL | {"sftp", "ssh"}
_FOLDERS = _MOVES | {"ftp"}
_FLAT = _SERVICES | {"memory"}  # Have no directories; all keys are listed with one call.
_UNTAGGED = _FOLDERS | _FIXED | {"memory"}
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_IN_TABLES = re.compile(r"(.+/)?([0-9]+(\.[0-9]+)*|\.z(array|group|attrs))", re.ASCII)
_ODD = {"", ".", ".."}
_STARTED = uuid.uuid4().hex


class FsspecStore(Store):
    """Values are files of an fsspec file system.

    A missing file is an absent key. Every other failure is an error, also where fsspec itself treats it as
    absence. The file system itself decides how often a request is repeated and when it is given up. Parts of
    values have the requested length, or end where the value ends.

    Parts of a value that are read together are of one version, identified by its e-tag or generation. Where
    there is none, as in archives, the value is read whole, once. fsspec's caches are refused;
    :class:`CacheStore` keeps values in another store, and notices changes.

    fsspec reads references of kerchunk. A reference to a file that is missing, too short or cannot be reached
    is an error. References that do not come from the local file system or from memory may point to local
    files only if the options include ``remote_protocol="file"`` or a local ``fs``.

    A value is replaced in one step where the file system can do so: in object storage and in memory. On a
    local file system and over SFTP it is written to the file ``KEY.__lock``, which is then renamed. A killed
    writer may leave this file, which is no key, and which the next writer of the key overwrites. So no two
    processes should store one key at the same moment. Elsewhere a concurrent reader may see part of a value.
    For local files :class:`LocalStore` is faster and safer. Archives, references and web servers are read
    only, and web servers cannot be listed.

    Changes by :func:`~xzarr3.stores.update` are safe from other threads, not from other processes.

    The pickled form contains what the file system puts into it, including credentials. A memory file system
    is not available in other processes: a store in it raises errors there.

    Parameters
    ----------
    filesystem : str, AbstractFileSystem or FSMap
        A URL, also a chain such as ``tar://::ftp://host/x.tar``, a file system, or a mapper.
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
    >>> bytes(store.get("c/0", (1, 3))), store.get("c/1")
    (b'alu', None)
    """

    reports = False  # The requests to the file system are reported instead.
    _not_pickled = Store._not_pickled | {"_slots", "_usual", "_lives"}
    _lives = ""
    """The process whose file system this store has; empty once it is unpickled."""

    def __init__(
        self,
        filesystem: Any,
        path: str = "",
        *,
        storage_options: Mapping[str, Any] | None = None,
        read_only: bool = False,
        concurrency: int | None = None,
    ) -> None:
        fs, root = _ready(filesystem, dict(storage_options or {}))
        self._root = str(fs._strip_protocol(_joined(root, path.rstrip("/"))))
        places = fs.unstrip_protocol(self._root), fs.storage_options.get("fo")
        self._label = _without_secrets("::".join(place for place in places if isinstance(place, str)))
        text = json.dumps(_told_apart(fs), sort_keys=True, default=_told_apart)
        self._token = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()
        self._asked = None if concurrency is None else integer("concurrency", concurrency)
        self._home = _process() if "memory" in _innermost(fs) else None
        self._use(fs)
        super().__init__(
            read_only=read_only or bool(self._names & (_FIXED | _WEB)),
            operations=("get",) if self._names & _WEB else Traits().operations,
            concurrency=self._most,
            conditional="threads" if self._home is None else "processes",
            durable=bool(_innermost(fs) & _SERVICES),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{errors.printable(self._label)}'>"

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, FsspecStore, Traits, type(self._fs))

    @property
    def identity(self) -> object:
        return FsspecStore.__name__, self._label, self._token

    # The file system, in this process

    @property
    def _names(self) -> frozenset[str]:
        return _protocols(self._fs)  # not part of the state: equal sets may be pickled in different orders

    def _use(self, fs: FileSystem) -> None:
        self._fs, self._lives, self._usual = fs, _process(), Estimate()
        waits = all(each.async_impl and not hasattr(each, "sync_fs") for each in _targets(fs))
        self._most = self._asked or (_MANY if waits else 1)
        # One lock for all stores on this file system: few file systems say that threads may share them.
        single = contextlib.nullcontext() if self._names & _NEAR else key_lock("fsspec", str(id(fs)))
        self._slots: Any = threading.BoundedSemaphore(self._most) if self._most > 1 else single

    @contextlib.contextmanager
    def _doing(self, what: str, key: str) -> Iterator[str]:
        """The path of a key; translates errors. Another process makes its own file system."""
        handled = sys.exception()
        try:
            if self._home not in (None, _process()):
                raise StoreError(f"{self} is in the memory of another process; use a MemoryStore")
            if self._lives != _process():
                self._use(pickle.loads(pickle.dumps(self._fs, 5)))
            if what != "list" and self._is_unfinished(key):
                raise errors.InvalidKeyError(f"key '{key}': names that end with '{LOCK}' are taken")
            yield _joined(self._root, key.rstrip("/"))
        except errors.Xzarr3Error:
            raise
        except Exception as error:
            text = _without_secrets(f"cannot {what} key '{key}' of {self}: {type(error).__name__}: {error}")
            is_refused = any(map(_is_refusal, _causes(error, handled)))
            raise (errors.StorePermissionError if is_refused else StoreError)(text) from error

    def _ask(self, kind: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The answer to a request; None if what it asks for does not exist."""
        for fs in _layers(self._fs):
            fs.invalidate_cache()  # Other writers may have changed what it keeps.
        handled = sys.exception()
        with sent(kind) as request, self._slots:
            try:
                found = function(*args, **options)
            except Exception as error:
                is_absence = isinstance(error, _NO_FILE) and all(map(_says_absent, _causes(error, handled)))
                if kind == "put" or not is_absence:
                    raise
                request.outcome = "absent"
                return None
            if found is None and kind in ("get", "get_range", "head", "list"):
                raise TypeError("found no answer")  # As of a request that was cancelled.
            request.size = sum(len(each) for each in (found, *args) if isinstance(each, bytes))
        return found

    def _change(self, kind: str, function: Callable[..., Any], *args: Any) -> None:
        """Ask for a change. Ctrl-C is deferred until it is done."""
        undisturbed(partial(self._ask, kind, function, *args))

    # Readable

    def get(self, key: str, byte_range: Part = None, *, into: Into = None, limit: int = NO_LIMIT) -> Found:
        if byte_range not in (None, (0, None)):
            return part_of(self, key, byte_range)
        with self._doing("read", key) as path:
            look = self._look(path) if limit < NO_LIMIT and self._names & _ARCHIVES else None
            found = self._whole(path) if look is None or look.size <= limit else None
        check_size(len(found or b"") if look is None else look.size, limit)
        return found

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        if isinstance(version, tuple):
            return _FileValue(self, key, _Look(*version))
        with self._doing("read", key) as path:
            if first is None or (first != (0, None) and not self._names & _UNTAGGED):
                look = self._look(path)
                if look is None or look.tag is not None:
                    return None if look is None else _FileValue(self, key, look)
                if first is None:
                    return WholeValue(partial(self.get, key), f"key '{key}' of {self}", look.size)
            value = self._whole(path)  # As nothing tells whether parts are of one version.
        return None if value is None else BytesValue(value)

    def _whole(self, path: str) -> Buffer | None:
        size = self._referenced(path) if "reference" in self._names else -1
        found = None if size is None else self._bytes(path, self._usual.size)
        if found is not None:
            self._usual.note(len(found))
            if size not in (-1, len(found)):
                raise ValueError(f"its reference is to {size} bytes, found {len(found)}")
        return found

    def _part(self, path: str, part: ByteRange, size: int) -> Buffer:
        """A part of a value of a known size."""
        start, stop, _ = slice(part[0], None).indices(size)
        wanted = max(0, stop - start if part[1] is None else min(part[1], stop - start))
        found = self._bytes(path, wanted, start=start, end=start + wanted) if wanted else b""
        if found is None or len(found) != wanted:
            raise ValueError(f"asked for {wanted} bytes from {start} on, found {len(found or b'')}")
        return found

    def _bytes(self, path: str, size: int, **limits: int) -> Buffer | None:
        """The bytes within limits, of which ``size`` count as in flight."""
        with contextlib.nullcontext() if self._names & _NEAR else reserved(size):
            found = self._ask("get_range" if limits else "get", self._fs.cat_file, path, **limits)
        if not (found is None or isinstance(found, (bytes, bytearray, memoryview))):
            raise TypeError(f"found {type(found).__name__}; accepted: bytes")
        return found

    def _look(self, path: str) -> _Look | None:
        """The size and version of a value; None if it does not exist."""
        info = {} if "reference" in self._names else self._ask("head", self._fs.info, path)
        if info is None or info.get("type") == "directory":
            return None
        if isinstance(info.get("size"), int):
            return _Look(info["size"], _tag(info))
        value = self._whole(path)
        return None if value is None else _Look(len(value), None)

    def _referenced(self, path: str) -> int | None:
        """The size of what a reference names, -1 if it does not tell; None if there is no reference."""
        in_tables = hasattr(self._fs.references, "zmetadata")
        if in_tables and not _IN_TABLES.fullmatch(path):
            return None  # fsspec takes other names for chunks, and has a .zmetadata of another format.
        found = self._ask("", self._fs._cat_common, path)
        if found is None or (in_tables and not isinstance(found[0], (str, bytes))):  # An empty row.
            return None
        url, start, end = found
        if isinstance(url, str) and _is_from_elsewhere(self._fs):
            target = self._fs.fss.get(url.partition("://")[0] if "://" in url else None)
            if target is not None and _innermost(target) & _LOCAL:
                raise ValueError(f"it refers to local '{url}'; pass remote_protocol='file' if it may")
        return -1 if end is None else end - start

    # Writeable

    @called_as(Store.put)
    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        value = joined(pieces)
        with self._doing("write", key) as path:
            if not self._names & _MOVES:
                self._store(path, value)
                return
            unfinished = path + LOCK
            try:
                self._store(unfinished, value)
                if self._ask("head", self._fs.isdir, path):  # Moving would put the file into the directory.
                    raise IsADirectoryError(f"'{path}' is a directory")
                self._change("put", self._fs.mv, unfinished, path)
            except BaseException:
                with contextlib.suppress(Exception):  # The error of the write is the one to report.
                    self._change("delete", self._fs.rm_file, unfinished)
                raise

    def _store(self, path: str, value: bytes) -> None:
        """Store a value, and create missing directories, which other writers may remove again."""
        for attempt in range(_ATTEMPTS):
            try:
                self._change("put", self._fs.pipe_file, path, value)
                return
            except Exception as error:
                again = attempt == 0 or (attempt < _ATTEMPTS - 1 and isinstance(error, FileNotFoundError))
                if not again or self._names & _FLAT or _is_refusal(error):
                    raise
            with contextlib.suppress(FileExistsError):
                self._change("", partial(self._fs.makedirs, exist_ok=True), path.rpartition("/")[0])

    def erase(self, *keys: str) -> None:
        parallel_map(self._erase, keys, self._most)

    def _erase(self, key: str) -> None:
        with self._doing("erase", key) as path:
            own = getattr(type(self._fs), "_rm_file", None)
            if own is not None and own.__module__ == "fsspec.asyn" and set("*?[") & set(key):
                raise ValueError("this file system would read that key as a pattern")
            self._change("delete", self._fs.rm_file, path)
            root = f"{self._root}/" if self._names & _FOLDERS else "\0"
            with contextlib.suppress(Exception):  # Not empty, in use, or not ours: it stays.
                while (path := path.rpartition("/")[0]).startswith(root):
                    self._change("", self._fs.rmdir, path)

    # Listable

    def list(self, prefix: str = "") -> Iterator[str]:
        return (key for key in self._below(prefix) if not self._is_unfinished(key))

    def list_dir(self, prefix: str) -> tuple[Names, Names]:
        if "reference" in self._names:
            return Store.list_dir(self, prefix)
        with self._doing("list", prefix):
            found = {str(key) for key in self._entries(prefix) if not self._is_unfinished(key)}
        folders = {key for key in found if key.endswith("/")}
        return found - folders, folders

    def leftovers(self, prefix: str = "") -> Iterator[str]:
        """Files of writers that are at work, or were killed; the next writer of the key replaces them."""
        return (key for key in self._below(prefix) if self._is_unfinished(key))

    def _is_unfinished(self, key: str) -> bool:
        return bool(self._names & _MOVES) and is_lock(key)

    def _below(self, prefix: str) -> Sequence[Key]:
        """The files below a prefix, in any order."""
        with self._doing("list", prefix) as path:
            if not self._names & (_FLAT | {"reference"}):
                return self._walk(prefix)
            if "reference" in self._names:
                found = dict.fromkeys(self._references())
            else:
                infos = self._ask("list", self._fs.find, path, detail=True) or {}
                found = {name.lstrip("/"): info.get("size") for name, info in infos.items()}
        beginning = f"{path.strip('/')}/".lstrip("/")
        keys = [(name[len(beginning) :], size) for name, size in found.items() if name.startswith(beginning)]
        return [Key(prefix + name, size) for name, size in keys if not _ODD & {*name.split("/")}]

    def _references(self) -> Iterable[str]:
        """The names that have references. fsspec cannot tell those in tables if there are groups."""
        names = self._fs.references
        if not hasattr(names, "zmetadata"):
            return names  # type: ignore[no-any-return]
        arrays = [name.removesuffix("/.zarray") for name in names.zmetadata if name.endswith("/.zarray")]
        chunks = [key for array in arrays for key in names._keys_in_field(array)]
        return [*names.zmetadata, *(key for key in chunks if self._referenced(key) is not None)]

    def _walk(self, prefix: str) -> Sequence[Key]:
        files: Sequence[Key] = []
        folders: Sequence[str] = [prefix]
        while folders:
            found = [key for keys in parallel_map(self._entries, folders, self._most) for key in keys]
            files = [*files, *(key for key in found if not key.endswith("/"))]
            folders = [key for key in found if key.endswith("/")]
        return files

    def _entries(self, prefix: str) -> Sequence[Key]:
        """What is directly below a prefix; directories end with ``/``."""
        path, names = _joined(self._root, prefix.rstrip("/")), []
        for info in self._ask("list", self._fs.ls, path, detail=True) or ():
            below, kind, size = info["name"].strip("/"), info["type"], info.get("size")
            name = below.rpartition("/")[2]
            if below == path.strip("/") or name in _ODD:  # That path itself, or a marker of it.
                continue
            if kind == "directory" or info["name"].endswith("/"):
                names.append(Key(f"{prefix}{name}/", None))
            elif kind == "file" or self._ask("head", self._fs.isfile, info["name"]):  # Or a link.
                names.append(Key(prefix + name, size if kind == "file" and isinstance(size, int) else None))
        return names


class _Look(NamedTuple):
    """What is known of a value without its bytes: its size, and a tag that each version has another of."""

    size: int
    tag: object | None


class _FileValue(Value):
    """Parts of the version of a value that was looked at."""

    def __init__(self, store: FsspecStore, key: str, look: _Look) -> None:
        self._store, self._key, self._look = store, key, look
        self.size: int = look.size
        self.version = tuple(look)  # A plain one, which a cache can keep.

    def read(self, start: int, length: int | None = None) -> Buffer:
        return self._read([(start, length)])[0]

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return self._read([*zip(starts, lengths, strict=True)])

    def _read(self, ranges: Sequence[ByteRange]) -> list[Buffer]:
        store, size = self._store, self._look.size
        with store._doing("read", self._key) as path:
            try:
                found = parallel_map(lambda part: store._part(path, part, size), ranges, store._most)
            except Exception:
                if store._look(path) == self._look:
                    raise
            else:
                if store._look(path) == self._look:
                    return found
        raise ChangedError(f"key '{self._key}' of {store} was replaced or removed while it was read")


def store_for(filesystem: Any, path: str = "", *, read_only: bool = False) -> Store:
    """The store for an fsspec file system or mapper, at a path in it.

    A local file system becomes a :class:`LocalStore`, which replaces values in one step. One for HTTP without
    options becomes an :class:`ObjectStore`, which detects pages that are no values.

    Examples
    --------
    >>> import fsspec
    >>> store_for(fsspec.get_mapper("file:///data/era5.zarr"))
    <LocalStore '/data/era5.zarr'>
    >>> store_for(fsspec.get_mapper("memory://era5.zarr"))
    <FsspecStore 'memory:///era5.zarr'>
    """
    fs, root = _ready(filesystem, {})
    if type(fs).__name__ == "HTTPFileSystem" and not fs.storage_options:
        from xzarr3.stores.object.store import ObjectStore

        return ObjectStore(_joined(root, path), read_only=read_only)
    if type(fs).__name__ == "LocalFileSystem":
        from xzarr3.stores.local.store import LocalStore

        return LocalStore(fs._strip_protocol(_joined(root, path)), read_only=read_only)
    return FsspecStore(filesystem, path, read_only=read_only)


# Failures


def _causes(error: BaseException, handled: BaseException | None = None) -> Iterator[BaseException]:
    """An error and its causes, up to the error that a caller was already handling, which is no cause."""
    current: BaseException | None = error
    while current is not None and current is not handled:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _says_absent(error: BaseException) -> bool:
    # Also a lookup in a listing.
    return isinstance(error, (*_NO_FILE, KeyError, StopIteration)) or _status(error) in (404, 410, 550)


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, PermissionError) or _status(error) in (401, 403, 530)


def _status(error: BaseException) -> Any:
    """The status of HTTP or FTP in an error of a client library."""
    if type(error).__module__ == "ftplib":
        is_refusal = re.search("denied|permission|^530", str(error), re.IGNORECASE)
        return 530 if is_refusal else 550 if str(error).startswith("550") else 0
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(error, "status", getattr(error, "code", getattr(response, "status_code", None)))


def _without_secrets(text: str) -> str:
    """``text`` without the users, passwords and queries of URLs."""
    links = re.split(r"::(?=[\w+.-]+:)", text)  # Of a chain, as in "zip://::https://".
    return "::".join(
        re.sub(r"(\w://)(?:[^/\s'\"]+@)?([^\s'\"<>?]*)(?:\?[^\s'\"<>)\]]*)?", r"\1\2", link) for link in links
    )


def _tag(info: Mapping[str, Any]) -> object | None:
    """What tells versions of a value apart. A time does not: two versions may have the same."""
    tags = ((name, info.get(name)) for name in ("ETag", "etag", "e_tag", "generation"))
    return next(((name, tag) for name, tag in tags if tag and not str(tag).startswith("W/")), None)


# File systems


def _process() -> str:
    """Identifies this process; the number alone may be given again."""
    return f"{os.getpid()}-{_STARTED}"


def _advice(url: str, error: Exception) -> str:
    """What to do about a URL that cannot be opened."""
    from fsspec.registry import known_implementations

    if isinstance(error, ImportError):
        return "install the package that is named, with pip install"
    protocol = url.partition("::")[0].partition("://")[0]
    if protocol not in known_implementations:
        return f"correct the URL; {errors.one_of(protocol, sorted(known_implementations), 'fsspec knows')}"
    return "correct the URL or the options"


def _ready(given: Any, options: dict[str, Any]) -> tuple[FileSystem, str]:
    """The file system that a URL, a file system or a mapper names, and the path of the root in it."""
    from fsspec import AbstractFileSystem
    from fsspec.core import url_to_fs

    is_url = isinstance(given, (str, os.PathLike))
    if options and not is_url:
        raise errors.ArgumentTypeError("storage_options are for a URL only; leave them out")
    try:
        fs, root = url_to_fs(os.fspath(given), **options) if is_url else (given, "")
    except Exception as error:
        text = _without_secrets(f"cannot open '{given}': {type(error).__name__}: {error}")
        raise StoreError(f"{text}; {_advice(str(given), error)}") from error
    if not isinstance(fs, AbstractFileSystem):
        fs, root = getattr(given, "fs", None), getattr(given, "root", getattr(given, "path", ""))
    if not isinstance(fs, AbstractFileSystem):
        raise errors.ArgumentTypeError(
            f"not a file system: {type(given).__name__}; accepted: a URL, a file system of fsspec, a mapper"
        )
    while type(fs).__name__ in ("DirFileSystem", "AsyncFileSystemWrapper"):
        root = _joined(fs.path, root) if type(fs).__name__ == "DirFileSystem" else root
        fs = _inner(fs)
    if fs.async_impl and fs.asynchronous:  # Made again, as threads call it.
        kept = {
            name: fs.storage_options[name] for name in fs.storage_options.keys() - {"asynchronous", "loop"}
        }
        fs = type(fs)(*fs.storage_args, **kept)
    if any(_protocols(layer) & _CACHES for each in (fs, *_targets(fs)) for layer in _layers(each)):
        raise StoreError(
            "found a cache of fsspec, which may keep wrong values; use CacheStore(open_store(...)) around "
            "the place itself"
        )
    return fs, root


def _protocols(fs: FileSystem) -> frozenset[str]:
    names = type(fs).protocol  # Caching file systems return that of the inner one.
    return frozenset((names,) if isinstance(names, str) else names)


def _inner(fs: FileSystem) -> FileSystem:
    """The file system that another one forwards its paths to, or None."""
    own = object.__getattribute__(fs, "__dict__")  # Some forward attributes to the inner one.
    return own.get("sync_fs", own.get("fs"))


def _layers(fs: FileSystem) -> Iterator[FileSystem]:
    """A file system and those that it forwards its paths to."""
    while fs is not None:
        yield fs
        fs = _inner(fs)


def _innermost(fs: FileSystem) -> frozenset[str]:
    """The protocols of the file system that finally receives the paths."""
    return _protocols([*_layers(fs)][-1])


def _targets(fs: FileSystem) -> Iterable[FileSystem]:
    """The file systems that references lead to; else the file system itself."""
    return fs.fss.values() if "reference" in _protocols(fs) else (fs,)


def _is_from_elsewhere(fs: FileSystem) -> bool:
    """Whether others may write the references, and the user has not permitted that they name local files."""
    options = fs.storage_options
    place = (*fs.storage_args, options.get("fo"))[0]
    named = options.get("fs") or {options.get("remote_protocol")}
    named = {*named} if isinstance(named, (Mapping, set)) else _innermost(named)
    home = place.rpartition("::")[2].rpartition("://")[0] if isinstance(place, str) else "memory"
    return (options.get("target_protocol") or home or "file") not in _NEAR and not named & _LOCAL


def _joined(root: str, path: str) -> str:
    return f"{root.rstrip('/')}/{path}" if root and path else root or path


def _told_apart(value: Any) -> list[object]:
    """What a file system was made of; the class of anything else."""
    own = getattr(value, "storage_args", ()), getattr(value, "storage_options", {})
    return [type(value).__qualname__, *own]
