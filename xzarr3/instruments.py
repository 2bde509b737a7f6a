"""What is counted while there is a trace: requests to stores, the bytes they moved, and the work of codecs.

While somebody counts, operations of the classes that matter are replaced by ones that count and then do the
same, for the whole process; otherwise nothing of this is in the way of reading and writing. Of stores these
are the operations that a class implements itself, of object stores the requests that are really made, of file
systems of fsspec what these are asked. Of a store within a store one of the two counts.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from xzarr3.counting import Numbers, add, here, process, put
from xzarr3.stores.telling import Request, everywhere, listen, listen_no_more
from xzarr3.stores.telling import here as here_told

Maker: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes an operation that counts of one that does not."""

# Requests

_KINDS = {
    **dict.fromkeys(("get", "get_versioned"), "get"),
    **dict.fromkeys(("get_partial_values", "get_ranges", "get_into"), "get_range"),
    **dict.fromkeys(("read", "read_ranges", "iter_ranges", "read_into"), "get_range"),
    **dict.fromkeys(("exists", "getsize", "open"), "head"),
    **dict.fromkeys(("list", "list_dir", "sweep"), "list"),
    **dict.fromkeys(("set", "set_partial_values", "copy_values", "compare_and_set", "update"), "put"),
    **dict.fromkeys(("erase", "erase_values", "erase_prefix"), "delete"),
}
_OF_VALUES = ("copy_values", "erase_values")
"""Operations on several values, each of which is a request."""
_NO_FAILURES = ("ok", "absent", "changed", "erased", "kept")


def _request(kind: str, size: int, seconds: float, outcome: str = "ok", number: int = 1) -> Numbers:
    found: Numbers = {"requests": number, kind: number, "request_seconds": seconds}
    if size:
        found["bytes_written" if kind == "put" else "bytes_read"] = size
    if outcome == "absent":
        found["absent"] = number
    elif outcome not in _NO_FAILURES:
        found["failed"] = number
    return found


def _told(request: Request) -> None:
    """Count a request that a store tells of."""
    if request.is_told_elsewhere:
        return
    operation, outcome = request.operation, request.outcome
    kind = _KINDS[operation]
    if operation == "get" and request.start is not None:
        kind = "get_range"
    elif operation == "open" and request.size:  # Opened with all of its bytes.
        kind = "get"
    elif operation == "compare_and_set" and outcome == "erased":
        kind = "delete"
    elif operation == "update":
        if request.number:
            add(
                {
                    **_request("get", request.read, 0.0, number=request.number),
                    **({"absent": request.missed} if request.missed else {}),
                }
            )
        kind = {"kept": "", "erased": "delete"}.get(outcome, kind)
    if kind:
        number = request.number if operation in _OF_VALUES else 1
        add(_request(kind, request.size, request.seconds, outcome, number))


def _replaces_outer() -> None:
    """What is asked of a service counts in place of the request that it is made for."""
    outer = here_told.request
    while outer is not None:
        outer.is_told_elsewhere = True
        outer = outer.outer


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
    _replaces_outer()
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
        _replaces_outer()

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
        self._traced = here.array, here_told.request

    return begun


def _taken_up(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, worker: Callable[[], Any]) -> Any:
        before = here.array, here_told.request
        here.array, here_told.request = getattr(self, "_traced", before)
        try:
            return original(self, worker)
        finally:
            here.array, here_told.request = before

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
)
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
        if _told not in everywhere.listeners:
            listen(_told)
        for module, owner, name, make in _MAKERS:
            if module in sys.modules:
                _replace(getattr(sys.modules[module], owner), name, make)


def uninstall() -> None:
    """Leave everything as it was."""
    with _installing:
        listen_no_more(_told)
        for (owner, name), (original, counted) in _installed.items():
            if owner.__dict__.get(name) is counted:
                setattr(owner, name, original)
        _installed.clear()
