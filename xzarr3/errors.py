"""Every exception of xzarr3.

Each one says where it happened (path, key or field), what was found and what would be accepted, and
each also derives from the builtin a caller would expect (``ValueError``, ``FileNotFoundError``, ...),
so that code written for other libraries keeps working.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text in which nothing is left that a terminal would carry out, or that changes how the rest looks.

    Names and attributes come from stores that others may have written. Control characters, marks that
    reverse the direction of writing, ends of lines and what cannot be encoded become escapes.

    Examples
    --------
    >>> print(printable("tas\\x1b[2J\\u202e"))
    tas\\x1b[2J\\u202e
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class Xzarr3Error(Exception):
    """Base class of every error that xzarr3 raises on purpose; its text can be printed anywhere."""

    def __str__(self) -> str:
        return printable(super().__str__())

    def add_note(self, note: str, /) -> None:
        """Add what is printed after the error."""
        super().add_note(printable(note))


def _named(path: str) -> str:
    return f"node '/{path.strip('/')}'"


class MetadataError(Xzarr3Error, ValueError):
    """A metadata document, or a request to make one, is not valid.

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
    accepted : str, optional
        What would be accepted.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: str | None = None,
        field: str | None = None,
        found: object = ...,
        accepted: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.field = field
        self.found = found
        self.accepted = accepted

    def at(self, path: str | None = None, field: str | None = None) -> None:
        """Fill in the place where this error happened, keeping what is known already.

        ``field`` is put in front of the field that the error already names.
        """
        if path is not None and self.path is None:
            self.path = path
        if field is not None:
            if self.field is None:
                self.field = field
            elif not self.field.startswith("["):
                self.field = f"{field}.{self.field}"
            else:
                self.field = field + self.field

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
        if self.accepted is not None:
            text += f"; accepted: {self.accepted}"
        return printable(text)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class UnknownExtensionError(MetadataError):
    """A document names a data type, codec, grid or other extension that is not known here."""


class DataTypeValidationError(MetadataError):
    """A data type or a scalar of it (a fill value, say) is not one the format permits."""


class NodeNotFoundError(Xzarr3Error, FileNotFoundError, KeyError):
    """There is no store, or no array or group at the path."""


class IncompleteWriteError(NodeNotFoundError):
    """There will be a node once somebody has put it in its place, who is at it or was killed at it."""


class NodeExistsError(Xzarr3Error, FileExistsError):
    """There is an array or group already where one was to be made."""


class NodeTypeError(Xzarr3Error, TypeError):
    """There is an array where a group was asked for, or the reverse."""


class StoreError(Xzarr3Error, OSError):
    """A store failed to read, write, list or erase."""


class StorePermissionError(StoreError, PermissionError):
    """The store refused access."""


class InvalidKeyError(StoreError, ValueError):
    """A key or prefix that is not valid, or that would leave the store's root."""


class InvalidRangeError(StoreError, ValueError):
    """A range of bytes that cannot be, or parts of values that overlap or begin beyond the end."""


class ReadOnlyError(StoreError):
    """A write to a store, array or group that was opened for reading."""


class StoreOptionError(StoreError, TypeError):
    """Options that have no meaning for a store."""


class ChangedError(StoreError):
    """A value, parts of which were read, or an array that is open, has been replaced in the meantime."""


class ConflictError(StoreError):
    """A change that could not be made because others kept changing the same value."""


class OutcomeUnknownError(ConflictError):
    """A change of which no answer came, and what others stored since does not tell whether it was made."""


class MissingChunksError(StoreError):
    """Chunks that are absent from the store, where all of them were expected to be there."""


class StoreCapabilityError(StoreError, NotImplementedError):
    """A store lacks an operation of the store interface, and what it could be made from."""


class ChunkError(Xzarr3Error, ValueError):
    """Base of the two errors about one chunk.

    Parameters
    ----------
    reason : str
        What is wrong.
    codec : str, optional
        Name of the codec that found it.
    key : str, optional
        Key of the stored value.
    chunk : tuple of int, optional
        Grid coordinates of the chunk, followed by those of the inner chunk if it lies in a shard.
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

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ChunkDecodeError(ChunkError):
    """Stored bytes that cannot be a chunk of this array: truncated, corrupt or of another size."""

    _doing = "decoded"


class ChunkEncodeError(ChunkError):
    """A chunk that its codecs cannot encode."""

    _doing = "encoded"


class SelectionError(Xzarr3Error, IndexError):
    """A selection that does not fit the array."""


class AlignmentError(Xzarr3Error, ValueError):
    """Sources and targets of one write that get in each other's way."""


class MissingChunksWarning(UserWarning):
    """Chunks that are absent from the store were read as the fill value."""


class LargeWriteWarning(UserWarning):
    """Blocks of a dask array that are written would need more memory than they may, and take a detour."""


class FallbackWarning(UserWarning):
    """An array is read as a data type that stands in for one that is not known here."""


def shorten(value: object, limit: int = 120) -> str:
    """``repr`` of ``value``, cut to ``limit`` characters for use in a message."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Nested too deeply, or a date that numpy cannot print.
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def listed(names: Iterable[object]) -> str:
    """Names as they are enumerated in a message: ``'a', 'b', 'c'``."""
    return ", ".join(repr(name) for name in names)


def _rebuild(cls: type[Exception], args: tuple[object, ...], state: dict[str, object]) -> Exception:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
