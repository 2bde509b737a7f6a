"""Every exception and warning of xzarr3, and what their messages and tracebacks have in common.

Each message says where the error happened (path, key or field), what was found, what was expected and what
to do. "accepted:" precedes values or kinds of values only; what to do is an imperative.
Each class also derives from the builtin exception that a caller would expect (``ValueError``,
``FileNotFoundError``, ...), so that code written for other libraries keeps working.

A traceback ends near the line of the user: :func:`short_traceback` leaves out the frames of this package.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from xzarr3.names import argument_hint
from xzarr3.names import did_you_mean as did_you_mean
from xzarr3.names import listed as listed
from xzarr3.names import one_of as one_of
from xzarr3.names import some as some

P = ParamSpec("P")
R = TypeVar("R")

FULL_TRACEBACK = "XZARR3_FULL_TRACEBACK"
"""The environment variable that keeps all frames in tracebacks, if it is set to anything but 0."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_GENERATOR = 0x20  # inspect.CO_GENERATOR; importing inspect takes milliseconds.


def printable(text: str) -> str:
    """``text`` with escapes for characters that a terminal would execute or that alter how text is shown.

    Names and attributes come from stores that other people may have written. Escaped are control characters,
    marks that reverse the writing direction, line ends, and characters that cannot be encoded.

    Examples
    --------
    >>> print(printable("tas\\x1b[2J\\u202e"))
    tas\\x1b[2J\\u202e
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class Xzarr3Error(Exception):
    """Base class of every error that xzarr3 raises on purpose. Its message is safe to print.

    Examples
    --------
    >>> import xzarr3
    >>> try:
    ...     xzarr3.open("nowhere.zarr")
    ... except xzarr3.Xzarr3Error as error:
    ...     print(type(error).__name__)
    NodeNotFoundError
    """

    def __str__(self) -> str:
        return printable(super().__str__())

    def add_note(self, note: str, /) -> None:
        """Add a note, which is printed after the error."""
        super().add_note(printable(note))


def shorten_traceback(error: Xzarr3Error) -> None:
    """Remove the frames that an error passed so far, unless :data:`FULL_TRACEBACK` is set; then ``raise``.

    A user looks for the own line, which then is near the end of the traceback. Causes and notes stay.
    """
    if os.environ.get(FULL_TRACEBACK, "0") in ("", "0"):
        error.__traceback__ = None


def short_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: its deliberate errors leave it without the frames within this package.

    A call with an argument that the function does not have raises the error of :func:`unknown_arguments`. An
    error of any other class is a defect, here or elsewhere, and keeps its frames. Functions that are called
    for each chunk are not decorated, since that would add a call.
    """
    if function.__code__.co_flags & _GENERATOR:
        return _short_iteration(function)  # type: ignore[arg-type, return-value]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (Xzarr3Error, TypeError) as error:
            _tidy(error, function, kwargs)
            raise

    return call


def _short_iteration(function: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    @wraps(function)
    def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from function(*args, **kwargs)
        except (Xzarr3Error, TypeError) as error:
            _tidy(error, function, kwargs)
            raise

    return iterate


def _tidy(error: Exception, function: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Shorten the traceback, or raise a better error for arguments that the function does not have."""
    if isinstance(error, Xzarr3Error):
        shorten_traceback(error)
        return
    if error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return  # The call was right: the error happened within the function.
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    unknown = {name: value for name, value in given.items() if name not in known}
    if unknown:
        raise unknown_arguments(function.__name__, unknown, known) from None


def unknown_arguments(
    function: str, unknown: Mapping[str, object], known: Iterable[str]
) -> ArgumentTypeError:
    """The error for arguments that a function does not have.

    Examples
    --------
    >>> unknown_arguments("create", {"chunksizes": 4}, ["shape", "chunks"])
    ArgumentTypeError("create() has no argument 'chunksizes'; for 'chunksizes' use chunks=...")
    """
    names = [name for name in known if name != "self"]
    text = "; ".join(dict.fromkeys(argument_hint(name, names, unknown) for name in unknown))
    return ArgumentTypeError(f"{function}() has no argument {listed(unknown)}; {text}")


def levels_to_caller(packages: Container[str] = ("xzarr3",)) -> int:
    """The ``stacklevel`` of a warning, from the calling function, that names the first line outside.

    Parameters
    ----------
    packages : container of str
        The packages whose frames are passed over.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in packages:
            break
        frame, level = frame.f_back, level + 1
    return level


def _named(path: str) -> str:
    return f"node '/{path.strip('/')}'"


class MetadataError(Xzarr3Error, ValueError):
    """A metadata document, or a request to create one, is not valid.

    Parameters
    ----------
    reason : str
        What is wrong.
    path : str, optional
        Path of the node in its hierarchy.
    field : str, optional
        The field of the document, as in ``chunk_grid.configuration.chunk_shape[0]``.
    found : object, optional
        The offending value.
    accepted : str or iterable of str, optional
        What would be accepted; of an iterable of names, the one nearest to ``found`` is proposed.
    advice : str, optional
        What to do, as an imperative.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.zeros((3, 4), chunks=(2, 2, 2))
    Traceback (most recent call last):
        ...
    xzarr3.errors.MetadataError: node '/', field 'chunks': the array has 2 dimensions;...
    """

    def __init__(
        self,
        reason: str,
        *,
        path: str | None = None,
        field: str | None = None,
        found: object = ...,
        accepted: str | Iterable[str] | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.field = field
        self.found = found
        if accepted is not None and not isinstance(accepted, str):
            names = list(accepted)
            accepted, advice = some(names, found), advice or did_you_mean(found, names)
        self.accepted = accepted
        self.advice = advice

    def at(self, path: str | None = None, field: str | None = None) -> None:
        """Add the place where the error happened. A path that is already known is kept.

        ``field`` is prepended to the field that the error already names.
        """
        if path is not None and self.path is None:
            self.path = path
        if field is not None:
            joint = "." if self.field and not self.field.startswith("[") else ""
            self.field = f"{field}{joint}{self.field or ''}"

    def __str__(self) -> str:
        parts = []
        if self.path is not None:
            parts.append(_named(self.path))
        if self.field is not None:
            parts.append(f"field '{self.field}'")
        text = ", ".join(parts)
        text = f"{text}: {self.reason}" if text else self.reason
        if self.found is not ...:
            text += f"; found {shorten(self.found)}"
        accepted = "" if self.accepted is None else f"accepted: {self.accepted}"
        if self.advice and self.advice.endswith("?"):
            return printable(f"{text}; {self.advice} {accepted}")
        return printable("; ".join(filter(None, (text, accepted, self.advice))))


class located:  # noqa: N801
    """Adds the place to a :class:`MetadataError` that is raised within; see :meth:`MetadataError.at`.

    Examples
    --------
    >>> with located(path="sst", field="codecs[0]"):
    ...     raise MetadataError("not a codec", field="name")
    Traceback (most recent call last):
    xzarr3.errors.MetadataError: node '/sst', field 'codecs[0].name': not a codec
    """

    def __init__(self, path: str | None = None, field: str | None = None) -> None:
        self.path, self.field = path, field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, MetadataError):
            error.at(self.path, self.field)


FOREIGN_ERRORS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""Exceptions that a class of another package may raise for a value that it does not accept."""


class foreign:  # noqa: N801
    """Turns an exception that a class of another package raises within into a :class:`MetadataError`."""

    def __init__(self, what: str, kind: type[MetadataError] = MetadataError, **place: Any) -> None:
        self._what, self._kind, self._place = what, kind, place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, FOREIGN_ERRORS) and not isinstance(error, Xzarr3Error):
            raise self._kind(f"{self._what}: {told_by(error)}", **self._place) from error


class UnknownExtensionError(MetadataError):
    """A document names a data type, codec, chunk grid or other extension that xzarr3 does not know.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.zeros(3, compressors="zstandart")
    Traceback (most recent call last):
        ...
    xzarr3.errors.UnknownExtensionError: node '/', field 'compressors.name': unknown...
    """


class DataTypeValidationError(MetadataError):
    """A data type, or a scalar of it such as a fill value, is not permitted by the format.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.create_array(xzarr3.MemoryStore(), shape=3, dtype="int8", fill_value=1000)
    Traceback (most recent call last):
        ...
    xzarr3.errors.DataTypeValidationError: node '/', field 'fill_value': fill value not...
    """


class ArgumentError(Xzarr3Error, ValueError):
    """An argument does not fit the call, or a dataset does not fit the store that it is to be written to.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.advise(shape=(), dtype="float32")
    Traceback (most recent call last):
        ...
    xzarr3.errors.ArgumentError: shape () has no values to divide among chunks; give an...
    """


class ArgumentTypeError(Xzarr3Error, TypeError):
    """An argument is of a type that the call does not take.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.zeros(3, chunksizes=2)
    Traceback (most recent call last):
        ...
    xzarr3.errors.ArgumentTypeError: create_array() has no argument 'chunksizes'; for...
    """


class UnknownNameError(Xzarr3Error, KeyError):
    """An argument names a variable, dimension or label that does not exist.

    Examples
    --------
    >>> import xzarr3
    >>> import xarray as xr
    >>> xzarr3.to_zarr(xr.Dataset({"sst": ("x", [1.0])}), xzarr3.MemoryStore(), encoding={"tos": {}})
    Traceback (most recent call last):
        ...
    xzarr3.errors.UnknownNameError: encoding for 'tos', which is not a variable;...
    """

    def __str__(self) -> str:
        return printable(Exception.__str__(self))  # A KeyError shows the repr of its message.


class NodeNotFoundError(Xzarr3Error, FileNotFoundError, KeyError):
    """No store was found, or no array or group at the path.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.open(xzarr3.MemoryStore())
    Traceback (most recent call last):
        ...
    xzarr3.errors.NodeNotFoundError: no array or group at '/' in <MemoryStore, 0 keys>:...
    """


class IncompleteWriteError(NodeNotFoundError):
    """The node is not committed yet: its writer is still at work or was killed.

    Examples
    --------
    >>> import xzarr3
    >>> issubclass(xzarr3.IncompleteWriteError, xzarr3.NodeNotFoundError)
    True
    """


class NodeExistsError(Xzarr3Error, FileExistsError):
    """An array or group already exists at the path where one was to be created.

    Examples
    --------
    >>> import xzarr3
    >>> group = xzarr3.group()
    >>> xzarr3.create_group(group.store)
    Traceback (most recent call last):
        ...
    xzarr3.errors.NodeExistsError: an array or group already exists at '/' in...
    """


class NodeTypeError(Xzarr3Error, TypeError):
    """An array was found where a group was requested, or the reverse.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.zeros(3)
    >>> xzarr3.open_group(array.store)
    Traceback (most recent call last):
        ...
    xzarr3.errors.NodeTypeError: '/' of <MemoryStore, 1 keys> is an array, not a group;...
    """


class StoreError(Xzarr3Error, OSError):
    """A store failed to read, write, list or erase.

    Examples
    --------
    >>> import xzarr3
    >>> issubclass(xzarr3.StoreError, OSError)
    True
    """


class StorePermissionError(StoreError, PermissionError):
    """The store refused access.

    Examples
    --------
    >>> import xzarr3
    >>> issubclass(xzarr3.StorePermissionError, PermissionError)
    True
    """


class InvalidKeyError(StoreError, ValueError):
    """A key or prefix is not valid, or would leave the store's root.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.MemoryStore().get("../secret")
    Traceback (most recent call last):
        ...
    xzarr3.errors.InvalidKeyError: invalid key '../secret'; accepted: names separated by...
    """


class InvalidRangeError(StoreError, ValueError):
    """A byte range is not valid, or parts of a value overlap or begin beyond its end.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.MemoryStore({"a": b"values"}).get("a", (0, -1))
    Traceback (most recent call last):
        ...
    xzarr3.errors.InvalidRangeError: length -1 of a byte range; accepted: None, 0 or...
    """


class ReadOnlyError(StoreError):
    """A write to a store, array or group that is read-only.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.open_array(xzarr3.zeros(3).store)
    >>> array[0] = 1
    Traceback (most recent call last):
        ...
    xzarr3.errors.ReadOnlyError: '/' of <MemoryStore, 1 keys> is read-only; open it with...
    """


class StoreOptionError(StoreError, TypeError):
    """Options that have no meaning for a store.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.open_store("data.zarr", {"anon": True})
    Traceback (most recent call last):
        ...
    xzarr3.errors.StoreOptionError: storage_options 'anon' have no meaning for...
    """


class ChangedError(StoreError):
    """A value was replaced while parts of it were read, or an array was replaced while it was open.

    Examples
    --------
    >>> import xzarr3
    >>> issubclass(xzarr3.ChangedError, xzarr3.StoreError)
    True
    """


class ConflictError(StoreError):
    """A change was given up because other writers kept changing the same value.

    Examples
    --------
    >>> import xzarr3
    >>> issubclass(xzarr3.ConflictError, xzarr3.StoreError)
    True
    """


class OutcomeUnknownError(ConflictError):
    """A change got no answer, and what other writers stored since does not show whether it was made.

    Examples
    --------
    >>> import xzarr3
    >>> issubclass(xzarr3.OutcomeUnknownError, xzarr3.ConflictError)
    True
    """


class MissingChunksError(StoreError):
    """Chunks are missing from the store although all of them were expected to exist.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.empty(3).store
    >>> xzarr3.open_array(store, missing="error")[...]
    Traceback (most recent call last):
        ...
    xzarr3.errors.MissingChunksError: array '/' of <MemoryStore, 1 keys>: 1 of the 1...
    """


class StoreCapabilityError(StoreError, NotImplementedError):
    """A store lacks an operation of the store interface, and the operations it could be made from.

    Examples
    --------
    >>> import xzarr3
    >>> issubclass(xzarr3.StoreCapabilityError, xzarr3.StoreError)
    True
    """


class ChunkError(Xzarr3Error, ValueError):
    """Base class of errors about one chunk.

    Parameters
    ----------
    reason : str
        What is wrong.
    codec : str, optional
        Name of the codec that found the error.
    key : str, optional
        Key of the stored value.
    chunk : tuple of int, optional
        Grid coordinates of the chunk, followed by those of the inner chunk if it lies in a shard.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.array([1, 2, 3], compressors=None)
    >>> array.store.set("c/0", b"short")
    >>> try:
    ...     array[0]
    ... except xzarr3.ChunkError as error:
    ...     print(error.key, error.chunk)
    c/0 (0,)
    """

    _doing = "handled"

    def __init__(
        self,
        reason: str,
        *,
        codec: str | None = None,
        key: str | None = None,
        chunk: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.codec = codec
        self.key = key
        self.chunk = chunk
        self.inner_chunk: tuple[int, ...] | None = None

    def __str__(self) -> str:
        text = f"chunk cannot be {self._doing}: {self.reason}"
        if self.codec is not None:
            text = f"codec '{self.codec}': {text}"
        if self.inner_chunk is not None:
            text = f"inner chunk {self.inner_chunk}, {text}"
        if self.chunk is not None:
            text = f"chunk {self.chunk}, {text}"
        if self.key is not None:
            text = f"key '{self.key}', {text}"
        return printable(text)


class ChunkDecodeError(ChunkError):
    """Stored bytes cannot be a chunk of this array: they are truncated, corrupt or of the wrong size.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.array([1, 2, 3], compressors=None)
    >>> array.store.set("c/0", b"short")
    >>> array[0]
    Traceback (most recent call last):
        ...
    xzarr3.errors.ChunkDecodeError: key 'c/0', chunk (0,), codec 'bytes': chunk cannot...
    """

    _doing = "decoded"


class ChunkEncodeError(ChunkError):
    """The codecs of the array cannot encode a chunk.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1000], filters=xzarr3.codecs.CastValueCodec("int8"))
    Traceback (most recent call last):
        ...
    xzarr3.errors.ChunkEncodeError: key 'c/0', chunk (0,), codec 'cast_value': chunk...
    """

    _doing = "encoded"


class SelectionError(Xzarr3Error, IndexError):
    """A selection does not fit the array.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.zeros(3)[5]
    Traceback (most recent call last):
        ...
    xzarr3.errors.SelectionError: axis 0: index 5 is out of bounds for length 3;...
    """


class AlignmentError(Xzarr3Error, ValueError):
    """Sources and targets of one write conflict with each other.

    Examples
    --------
    >>> import xzarr3
    >>> import dask.array
    >>> ones, array = dask.array.ones(4, chunks=2), xzarr3.zeros(4, chunks=2)
    >>> xzarr3.store([ones, ones], [array, array])
    Traceback (most recent call last):
        ...
    xzarr3.errors.AlignmentError: two sources write the same elements of array '/'; give...
    """


class MissingChunksWarning(UserWarning):
    """Chunks missing from the store were read as the fill value.

    Examples
    --------
    >>> import xzarr3
    >>> import warnings
    >>> store = xzarr3.empty(3).store
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", xzarr3.MissingChunksWarning)
    ...     xzarr3.open_array(store, missing="warn")[...]
    Traceback (most recent call last):
        ...
    xzarr3.errors.MissingChunksWarning: array '/' of <MemoryStore, 1 keys>: 1 of the 1...
    """


class LargeWriteWarning(UserWarning):
    """Blocks of a dask array would need more memory than allowed while they wait for other blocks.

    Examples
    --------
    >>> import xzarr3
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", xzarr3.LargeWriteWarning)  # Refuse such writes.
    ...     array = xzarr3.zeros(3)
    """


class FallbackWarning(UserWarning):
    """An array is read as a substitute for a data type that xzarr3 does not know.

    Examples
    --------
    >>> import xzarr3
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", xzarr3.FallbackWarning)  # Refuse such arrays.
    ...     array = xzarr3.zeros(3)
    """


def shorten(value: object, limit: int = 120) -> str:
    """``repr`` of ``value``, cut to ``limit`` characters for a message."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Nested too deeply, or a date that NumPy cannot print.
        text = f"<{type(value).__name__}>"
    return _cut(text, limit)


def told_by(error: BaseException) -> str:
    """The class and the text of an error of another package, cut, as the text may hold a whole chunk."""
    return _cut(f"{type(error).__name__}: {error}", 200)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def contended(key: str, store: object, how: str) -> ConflictError:
    """The error for a value that other writers keep changing."""
    return ConflictError(
        f"cannot change key '{key}' of {store}: {how}; reduce the number of its writers, or raise "
        "conflict_deadline"
    )
