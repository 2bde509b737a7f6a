"""What is counted while there is a trace: requests to stores, the bytes they moved, and the work of codecs.

While somebody counts, operations of the classes that matter are replaced by ones that count and then do the
same, for the whole process; otherwise nothing of this is in the way of reading and writing. Of stores these
are the operations that a class implements itself, of object stores the requests that are really made, of file
systems of fsspec what these are asked. Of a store within a store one of the two counts.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, TypeAlias, cast

from xzarr3._types import Buffer
from xzarr3.counting import Numbers, add, here, process, put
from xzarr3.stores.base import UNCHANGED, Change, Store, Updater, ValueReader, flat
from xzarr3.stores.logged import LoggingStore, _LoggedReader, _Note, _timed
from xzarr3.stores.wrappers import WrapperStore

Maker: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes an operation that counts of one that does not."""

_PASSING: Final = object()

# Requests

_KINDS = {
    **dict.fromkeys(("get", "get_values", "loader", "scratch_loader", "get_versioned"), "get"),
    **dict.fromkeys(("get_partial_values", "range_loader", "into_loader"), "get_range"),
    **dict.fromkeys(("read", "read_ranges", "iter_ranges", "read_into"), "get_range"),
    **dict.fromkeys(("exists", "open_value", "open_part"), "head"),
    **dict.fromkeys(("list", "list_prefix", "list_dir", "sweep"), "list"),
    **dict.fromkeys(("set", "set_partial_values", "set_values", "copy_values"), "put"),
    **dict.fromkeys(("writer", "compare_and_set", "update", "updater"), "put"),
    **dict.fromkeys(("erase", "erase_values", "erase_prefix"), "delete"),
}
_OF_VALUES = ("get_values", "set_values", "copy_values", "erase_values")
"""Operations on several values, each of which is a request."""
_OPERATIONS = tuple(name for name in _KINDS if hasattr(Store, name))
_NO_FAILURES = ("ok", "absent", "changed")


def _request(kind: str, size: int, seconds: float, outcome: str = "ok", number: int = 1) -> Numbers:
    found: Numbers = {"requests": number, kind: number, "request_seconds": seconds}
    if size:
        found["bytes_written" if kind == "put" else "bytes_read"] = size
    if outcome == "absent":
        found["absent"] = number
    elif outcome not in _NO_FAILURES:
        found["failed"] = number
    return found


class _CountedNote(_Note):
    """A request while it is made; others that are made for it do not count."""

    __slots__ = ("_before", "replaced")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replaced = False
        """Whether requests of an object store were made for it, which count instead."""

    def __enter__(self) -> _Note:
        self._before, here.inside = here.inside, self
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here.inside = self._before
        super().__exit__(kind, error, trace)


class _CountedStore(LoggingStore):
    """Counts one operation of a store, and what its loaders and readers do later."""

    _kind_of_note = _CountedNote

    def __init__(self, store: Store, name: str, operation: Callable[..., Any]) -> None:
        self.inner = cast("Store", _Operation(store, name, operation))
        self.read_only = store.read_only

    def _heard(self) -> bool:
        return True

    def _note(self, note: _Note, seconds: float) -> None:
        if isinstance(note, _CountedNote) and note.replaced:
            return
        operation = note.operation
        kind = _KINDS[operation]
        if operation == "get" and note.start is not None:
            kind = "get_range"
        elif kind == "head" and note.size:  # Opened with all of its bytes.
            kind = "get"
        number = note.number if operation in _OF_VALUES else 1
        add(_request(kind, note.size, seconds, note.outcome, number))

    def _opened(self, note: _Note, reader: ValueReader | None) -> ValueReader | None:
        found = super()._opened(note, reader)
        if isinstance(found, _LoggedReader) and reader is not None:
            return _CountedReader(self, note.key, reader)
        return found

    def _listed(self, operation: str, prefix: str, keys: Iterator[str]) -> Iterator[str]:
        # Nothing that it reads or writes is a part of listing.
        return super()._listed(operation, prefix, _alone(keys))

    def _noted_update(self, update: Updater, operation: str, key: str, change: Change) -> None:
        """A value is read, mostly once, and then written or erased, if at all."""
        note = _CountedNote(self, operation, key)
        began = time.perf_counter()
        kind, size, outcome = "put", 0, "ok"

        def counted(stored: Any) -> Any:
            nonlocal began, kind, size
            _add_unless(note, "get", 0 if stored is None else len(stored), began, stored is None)
            before, here.inside = here.inside, None
            try:
                pieces = change(stored)
            finally:
                here.inside = before
                began = time.perf_counter()
            kind, size = "put", 0
            if pieces is UNCHANGED or (pieces is None and stored is None):
                kind = ""
            elif pieces is None:
                kind = "delete"
            else:
                size = sum(flat(piece, key).nbytes for piece in pieces)
            return pieces

        before, here.inside = here.inside, note
        try:
            update(key, counted)
        except BaseException as error:
            outcome, size = type(error).__name__, 0
            raise
        finally:
            here.inside = before
            if kind and not note.replaced:
                add(_request(kind, size, time.perf_counter() - began, outcome))


class _Operation:
    """A store of which one operation is as a certain class of it has it: derived ones may call that."""

    def __init__(self, store: Store, name: str, operation: Callable[..., Any]) -> None:
        self._store = store
        setattr(self, name, functools.partial(operation, store))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _CountedReader(_LoggedReader):
    """Counts what is read of an open value."""

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        note = _CountedNote(self._store, "iter_ranges", self._key, number=len(starts))
        return _timed(note, _alone(_later(self._inner.iter_ranges, starts, lengths)), measure=True)


def _later(function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
    """What a function gives, which is not called before the first item is wanted."""
    yield from function(*args)


def _add_unless(note: _CountedNote, kind: str, size: int, began: float, absent: bool) -> None:
    if not note.replaced:
        add(_request(kind, size, time.perf_counter() - began, "absent" if absent else "ok"))


def _alone(items: Iterator[Any]) -> Iterator[Any]:
    """Items, where what is done to get each of them does not count."""
    while True:
        before, here.inside = here.inside, _PASSING
        try:
            item = next(items)
        except StopIteration:
            return
        finally:
            here.inside = before
        yield item


def _operation(name: str) -> Maker:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(self: Store, *args: Any, **kwargs: Any) -> Any:
            if here.inside is not None or not process.collectors:
                return original(self, *args, **kwargs)
            here.inside = _PASSING
            try:
                return getattr(_CountedStore(self, name, original), name)(*args, **kwargs)
            finally:
                here.inside = None

        return operation

    return make


class _Image:
    """The package obstore, which tells what was asked of it."""

    def __init__(self, image: Any) -> None:
        self._image = image
        self.kind = "list"  # Another page of a list is asked for without it.
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._image, name)

    def get(self, store: Any, path: str, *, options: Any = None) -> Any:
        wanted = options or {}
        self.kind = "head" if "head" in wanted else "get_range" if "range" in wanted else "get"
        return self._image.get(store, path, options=options)

    def put(self, store: Any, path: str, content: memoryview, **options: Any) -> Any:
        self.kind, self.sent = "put", content.nbytes
        return self._image.put(store, path, content, **options)

    def copy(self, *args: Any, **options: Any) -> Any:
        self.kind = "put"
        return self._image.copy(*args, **options)

    def delete(self, *args: Any, **options: Any) -> Any:
        self.kind = "delete"
        return self._image.delete(*args, **options)


_OF_FILES = {
    "cat_file": "",  # Counted where it is known whether it is a part.
    **dict.fromkeys(("info", "isdir", "isfile", "modified"), "head"),
    **dict.fromkeys(("ls", "find"), "list"),
    **dict.fromkeys(("pipe_file", "mv"), "put"),
    "rm_file": "delete",
}
"""What the functions of file systems ask for."""


def _outcome(error: BaseException) -> str:
    name = type(error).__name__
    return "absent" if name in _ABSENCES else "changed" if name in _CONDITIONS else name


def _answered(kind: str, sent: int, call: Callable[[], Any], body: Callable[[Any], Any]) -> Any:
    """Make a request to a file system, which counts in place of what it is made for."""
    if isinstance(here.inside, _CountedNote):
        here.inside.replaced = True
    outcome, size = "ok", 0
    began = time.perf_counter()
    try:
        found = call()
        outcome = "absent" if found is None and kind.startswith("get") else outcome
        size = sent or len(body(found))
        return found
    except BaseException as error:
        outcome = _outcome(error)
        raise
    finally:
        add(_request(kind, size, time.perf_counter() - began, outcome))


def _asked(original: Callable[..., Any]) -> Callable[..., Any]:
    """What is asked of a file system of fsspec, besides values."""

    def ask(self: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        name = getattr(function, "__name__", "")
        kind = _OF_FILES.get(name)
        if not kind or not process.collectors:
            return original(self, function, *args, **options)
        sent = len(args[1]) if name == "pipe_file" else 0
        return _answered(kind, sent, lambda: original(self, function, *args, **options), lambda _: b"")

    return ask


def _fetched(original: Callable[..., Any]) -> Callable[..., Any]:
    """Values that are asked for of a file system, and parts of them."""

    def fetched(self: Any, path: str, start: int | None = None, end: int | None = None) -> Any:
        if not process.collectors:
            return original(self, path, start, end)
        kind = "get" if start is None and end is None else "get_range"
        return _answered(kind, 0, lambda: original(self, path, start, end), _bytes_of)

    return fetched


def _got(original: Callable[..., Any]) -> Callable[..., Any]:
    """Values that are asked for of a web server by way of fsspec, and parts of them."""

    def get(self: Any, path: str, start: int, length: int | None, *, body: bool = True) -> Any:
        if not process.collectors:
            return original(self, path, start, length, body=body)
        kind = "head" if not body else "get" if start == 0 and length is None else "get_range"

        def call() -> Any:
            return original(self, path, start, length, body=body)

        return _answered(kind, 0, call, lambda found: b"" if found is None else found.body)

    return get


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    """A way to a file system may be of a class whose module was imported just now."""

    def made(self: Any, *args: Any, **options: Any) -> None:
        install()
        original(self, *args, **options)

    return made


def _bytes_of(found: object) -> Any:
    return found if isinstance(found, (bytes, bytearray, memoryview)) else b""


_ABSENCES = ("NotFoundError", "FileNotFoundError")
_CONDITIONS = ("AlreadyExistsError", "PreconditionError", "NotModifiedError")


def _once(original: Callable[..., Any]) -> Callable[..., Any]:
    """Each request to an object store; what obstore makes again itself is one request."""

    def once(self: Any, call: Callable[[Any, Any], Any], **options: Any) -> Any:
        if not process.collectors:
            return original(self, call, **options)
        array = here.array
        if isinstance(here.inside, _CountedNote):
            here.inside.replaced = True

        def counted(image: Any, store: Any) -> Any:
            asked = _Image(image)
            outcome, size = "ok", 0
            began = time.perf_counter()
            try:
                found = call(asked, store)
                size = asked.sent if asked.kind == "put" else len(getattr(found, "body", b""))
                return found
            except BaseException as error:
                outcome = _outcome(error)
                raise
            finally:
                add(_request(asked.kind, size, time.perf_counter() - began, outcome), array)

        return original(self, counted, **options)

    return once


def _again(original: Callable[..., Any]) -> Callable[..., Any]:
    def again(self: Any, failure: Any) -> bool:
        repeated: bool = original(self, failure)
        if repeated:
            add({"retries": 1})
        return repeated

    return again


# Codecs


def _coded(what: str, done: str, size_of: Callable[[Any, tuple[Any, ...]], int | None]) -> Maker:
    """Counts what codecs do; ``size_of`` takes the result and the arguments, and gives None for nothing."""
    number, size, seconds = f"chunks_{done}", f"bytes_{done}", f"{what}_seconds"

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(self: Any, *args: Any, **kwargs: Any) -> Any:
            if here.coding or not process.collectors:
                return original(self, *args, **kwargs)
            here.coding = True
            began = time.perf_counter()
            try:
                result = original(self, *args, **kwargs)
            finally:
                here.coding = False
            found = size_of(result, args)
            if found is not None:
                add({number: 1, size: found, seconds: time.perf_counter() - began})
            return result

        return operation

    return make


def _index(original: Callable[..., Any]) -> Callable[..., Any]:
    def decode_index(self: Any, data: Any) -> Any:
        before, here.coding = here.coding, True
        try:
            index = original(self, data)
        finally:
            here.coding = before
        if not before:
            add({"indexes_read": 1})
        return index

    return decode_index


def _kept(original: Callable[..., Any]) -> Callable[..., Any]:
    def get(self: Any, key: object, version: object) -> Any:
        index = original(self, key, version)
        if index is not None:
            add({"indexes_kept": 1})
        return index

    return get


# Which array it is for


def _path(engine: Any) -> str:
    return f"/{engine.prefix.strip('/')}"


def _for_array(path: Callable[[Any], str], *, counts_absent: bool = False) -> Maker:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not process.collectors:
                return original(self, *args, **kwargs)
            before, here.array = here.array, path(self)
            try:
                result = original(self, *args, **kwargs)
                if counts_absent and result:
                    add({"chunks_absent": result})
            finally:
                here.array = before
            if not before:
                put()
            return result

        return operation

    return make


def _shared_out(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work that threads share belongs to the array, and the request, it is begun for."""

    def begun(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._traced = here.array, here.inside

    return begun


def _taken_up(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, worker: Callable[[], Any]) -> Any:
        before = here.array, here.inside
        here.array, here.inside = getattr(self, "_traced", before)
        try:
            return original(self, worker)
        finally:
            here.array, here.inside = before

    return run


_MAKERS: tuple[tuple[str, str, str, Maker], ...] = (
    (
        "xzarr3.reading",
        "UnitReader",
        "run",
        _for_array(lambda reader: _path(reader._engine), counts_absent=True),
    ),
    ("xzarr3.writing", "UnitWriter", "run", _for_array(lambda writer: _path(writer._engine))),
    ("xzarr3.writing", "UnitWriter", "update", _for_array(lambda writer: _path(writer._engine))),
    ("xzarr3.copying", "_Move", "__call__", _for_array(lambda move: _path(move.source.engine))),
    ("xzarr3.concurrency", "Work", "__init__", _shared_out),
    ("xzarr3.concurrency", "Work", "run", _taken_up),
    ("xzarr3.reading", "_Indexes", "get", _kept),
    ("xzarr3.codecs.chain", "Shard", "decode_index", _index),
    (
        "xzarr3.codecs.chain",
        "CodecChain",
        "decode",
        _coded("decode", "decoded", lambda found, _: found.nbytes),
    ),
    (
        "xzarr3.codecs.chain",
        "CodecChain",
        "decode_into",
        _coded("decode", "decoded", lambda done, given: given[1].nbytes if done else None),
    ),
    (
        "xzarr3.codecs.chain",
        "CodecChain",
        "encode",
        _coded("encode", "encoded", lambda _, given: given[0].nbytes),
    ),
    (
        "xzarr3.codecs.chain",
        "CodecChain",
        "encoded_pieces",
        _coded("encode", "encoded", lambda _, given: given[0].nbytes),
    ),
    ("xzarr3.stores.object_client", "Client", "once", _once),
    ("xzarr3.stores.object_client", "Pace", "again", _again),
    ("xzarr3.stores.fsspec_files", "Files", "__init__", _made),
    ("xzarr3.stores.fsspec_files", "Files", "_ask", _asked),
    ("xzarr3.stores.fsspec_files", "Files", "_fetched", _fetched),
    ("xzarr3.stores.fsspec_http", "WebFiles", "_get", _got),
)
ELSEWHERE: Final = (
    ("xzarr3.stores.object", "ObjectStore"),  # Its client counts.
    ("xzarr3.stores.fsspec_store", "FsspecStore"),  # What is asked of file systems counts.
    ("xzarr3.lookup", "Look"),  # These ask other stores, if at all.
    ("xzarr3.commit.length", "GuardedStore"),
    ("xzarr3.staging", "_StagedKeys"),
)
"""Classes of stores, and their modules, whose requests are counted elsewhere."""
_installed: dict[tuple[type, str], tuple[Any, Any]] = {}
"""What is replaced, and by what."""


def _replace(owner: type, name: str, make: Maker) -> None:
    original = owner.__dict__.get(name)
    if (owner, name) in _installed or not inspect.isfunction(original):
        return
    counted: Any = make(original)
    counted.__name__, counted.__qualname__ = original.__name__, original.__qualname__
    counted.__doc__, counted.__module__ = original.__doc__, original.__module__
    counted._counted = original
    setattr(owner, name, counted)
    _installed[owner, name] = original, counted


_installing = threading.RLock()


def _renew_lock() -> None:
    """A forked child must not wait for a thread of its parent to give the lock back."""
    global _installing
    _installing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def install() -> None:
    """Replace what counts, in all that is imported by now, if anybody counts."""
    with _installing:
        if not process.collectors:
            return
        for module, owner, name, make in _MAKERS:
            if module in sys.modules:
                _replace(getattr(sys.modules[module], owner), name, make)
        waiting = Store.__subclasses__()
        while waiting:
            kind = waiting.pop()
            if not _is_elsewhere(kind):
                waiting += kind.__subclasses__()
                for name in _OPERATIONS:
                    _replace(kind, name, _operation(name))
        if "__init_subclass__" not in Store.__dict__:
            setattr(Store, "__init_subclass__", classmethod(_defined))  # noqa: B010 - no method to mypy


def _is_elsewhere(kind: type[Store]) -> bool:
    """Whether the requests of such stores, and of those derived from them, are counted elsewhere."""
    return issubclass(kind, WrapperStore) or (kind.__module__, kind.__name__) in ELSEWHERE


def _defined(kind: type[Store], /, **kwargs: Any) -> None:
    """Another class of stores was defined, maybe as its module was imported just now."""
    super(Store, kind).__init_subclass__(**kwargs)
    install()


def uninstall() -> None:
    """Leave everything as it was."""
    with _installing:
        for (owner, name), (original, counted) in _installed.items():
            if owner.__dict__.get(name) is counted:
                setattr(owner, name, original)
        _installed.clear()
        if "__init_subclass__" in Store.__dict__:
            del Store.__init_subclass__
