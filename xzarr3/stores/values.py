"""Values of a store: an open one, the memory they are read into, and their bytes."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ChangedError, InvalidRangeError, StoreError, shorten
from xzarr3.parallel import parallel_map

if TYPE_CHECKING:
    from xzarr3.stores.base import Store

Result = TypeVar("Result")
NO_LIMIT: Final = sys.maxsize
"""As the largest accepted size of a value: any."""


class Unchanged(Enum):
    """Says that a change leaves its value as it is."""

    UNCHANGED = "unchanged"


ANY: Final = "any version"
"""As the expected version of a value: whatever it is."""
UNCHANGED: Final = Unchanged.UNCHANGED
"""What a change of a value returns to leave it as it is."""
ABSENT: Final = "absent"
"""The version of a key that has no value."""
_ATTEMPTS = 4  # To read parts of one version of a value while it is being replaced.


class OversizedError(Exception):
    """A value is larger than its reader can use.

    Parameters
    ----------
    size, limit : int
        The size of the value and the largest accepted size, in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"found {size} bytes, at most {limit} bytes expected")
        self.size = size


def check_size(size: int, limit: int) -> None:
    """Raise :class:`OversizedError` if a value is too large."""
    if size > limit:
        raise OversizedError(size, limit)


class Scratch:
    """Reusable memory into which values are read one after the other; it grows as needed.

    Examples
    --------
    >>> import xzarr3
    >>> len(xzarr3.stores.Scratch().part(100))
    100
    """

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(0))

    def part(self, size: int) -> memoryview:
        """The first ``size`` bytes."""
        if len(self.memory) < size:
            self.memory = memoryview(bytearray(max(size, 2**17)))
        return self.memory[:size]


Into: TypeAlias = Scratch | None
"""Memory that may be used for a value."""


class Closing:
    """An object that is closed at the end of a ``with`` statement."""

    def close(self) -> None:
        """Release the resources of this object, if any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Value(Closing, ABC):
    """One stored value, opened to read parts of it, to be used in a ``with`` statement.

    All parts come from the same version of the value, as far as the store can guarantee that. A store that
    finds another version raises :class:`~xzarr3.errors.ChangedError`.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore({"a": b"values"})
    >>> with store.open("a") as value:
    ...     bytes(value.read(1, 3))
    b'alu'
    """

    size: int | None = None
    """Size of the whole value in bytes, if it is known without a request."""
    version: object | None = None
    """Differs between the versions of the value; None if the store cannot tell them apart."""
    concurrency: int = 1
    """How many parts are worth reading at once."""

    @abstractmethod
    def read(self, start: int, length: int | None = None) -> Buffer:
        """``length`` bytes from ``start`` on, or to the end; a negative ``start`` counts from the end.

        The result is shorter where the value ends early.
        """

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Several parts, each as by :meth:`read`."""
        if self.concurrency == 1:  # With fewer calls.
            return [*map(self.read, starts, lengths)]
        wanted = zip(starts, lengths, strict=True)
        return parallel_map(lambda part: self.read(*part), wanted, self.concurrency)

    def read_into(self, start: int, out: memoryview) -> int:
        """Read from ``start`` on into ``out``; returns the number of bytes, fewer where the value ends."""
        part = self.read(start, len(out))
        out[: len(part)] = part
        return len(part)


class BytesValue(Value):
    """A value that is in memory already.

    Examples
    --------
    >>> import xzarr3
    >>> bytes(xzarr3.stores.BytesValue(b"values").read(1, 3))
    b'alu'
    """

    def __init__(self, data: Buffer, version: object | None = None) -> None:
        self.data = memoryview(data)
        self.size: int = len(data)
        self.version = version

    def read(self, start: int, length: int | None = None) -> Buffer:
        return cut(self.data, (start, length))


class WholeValue(Value):
    """A value that is read whole, once, when a part is wanted: where nothing tells versions of it apart.

    Parameters
    ----------
    get : callable
        Returns the value, or None if it is gone.
    name : str
        Names the value in errors.
    size : int, optional
    """

    def __init__(self, get: Callable[[], Buffer | None], name: str, size: int | None = None) -> None:
        self._get, self._name, self.size = get, name, size
        self._whole: Buffer | None = None

    def read(self, start: int, length: int | None = None) -> Buffer:
        self._whole = self._get() if self._whole is None else self._whole
        if self._whole is None:
            raise ChangedError(f"{self._name} was removed while it was read")
        return cut(self._whole, (start, length))


def steady(read: Callable[[], Result]) -> Result:
    """Read again if the value was replaced meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(ChangedError):
            return read()
    return read()


def part_of(store: Store, key: str, byte_range: ByteRange) -> Buffer | None:
    """A part of a value that a store opens; None if the key has none."""

    def read() -> Buffer | None:
        value = store.open(key, byte_range)
        if value is None:
            return None
        with value:
            return value.read(*byte_range)

    return steady(read)


def check_range(byte_range: ByteRange) -> None:
    """Raise :class:`~xzarr3.errors.InvalidRangeError` if it is no byte range, or a length is negative."""
    try:
        start, length = byte_range
        index(start)
        is_negative = length is not None and index(length) < 0
    except (TypeError, ValueError) as error:
        raise InvalidRangeError(
            f"not a byte range: {shorten(byte_range)}; accepted: a start and a length, as in (0, 10)"
        ) from error
    if is_negative:
        raise InvalidRangeError(f"length {length} of a byte range; accepted: None, 0 or more bytes")


def cut(value: Buffer, byte_range: ByteRange) -> Buffer:
    """The part of ``value`` that ``byte_range`` names; a part beyond its end is shorter or empty.

    Raises
    ------
    InvalidRangeError
        If the length is negative.

    Examples
    --------
    >>> from xzarr3.stores import cut
    >>> bytes(cut(b"0123456789", (2, 3)))
    b'234'
    """
    check_range(byte_range)
    first, length = clip(len(value), *byte_range)
    return memoryview(value)[first : first + length]


def clip(size: int, start: int, length: int | None) -> tuple[int, int]:
    """The first byte and the length of what a byte range names in a value of ``size`` bytes."""
    first = max(size + start, 0) if start < 0 else min(start, size)
    return first, size - first if length is None else min(length, size - first)


def flat(value: Buffer, key: str) -> Buffer:
    """The bytes of ``value`` in C order, to be stored under ``key``.

    Raises
    ------
    StoreError
        If ``value`` is neither bytes nor another buffer.
    """
    if type(value) is bytes:
        return value
    try:
        view = memoryview(value)
    except TypeError as error:
        raise StoreError(
            f"cannot store {shorten(value)} under key '{key}'; accepted: bytes, bytearray or memoryview"
        ) from error
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    return memoryview(view.tobytes())


def digest(data: Buffer) -> str:
    """Stands for the content of a value, where a store tells no versions."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


def joined(pieces: Sequence[Buffer]) -> bytes:
    """The joined pieces of a value, safe to keep: the memory of the pieces may be reused."""
    return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], bytes) else b"".join(pieces)


def merge(key: str, value: Buffer | None, parts: Sequence[tuple[int, Buffer]]) -> bytearray:
    """A copy of ``value`` with some parts overwritten, each given by its first byte and its bytes.

    A part may begin at the end of the value or of another part, which makes the value longer.

    Raises
    ------
    InvalidRangeError
        If parts overlap, or one begins before the value or beyond its end.
    """
    merged, end = bytearray(b"" if value is None else value), 0
    for start, part in sorted(parts, key=lambda each: (each[0], len(each[1]))):
        if not 0 <= start <= len(merged):
            raise InvalidRangeError(
                f"cannot store a part from byte {start} on under key '{key}', whose value has {len(merged)} "
                f"bytes; accepted: 0 to {len(merged)}"
            )
        if len(part) and start < end:
            raise InvalidRangeError(
                f"parts to store under key '{key}' overlap at byte {start}; give parts that do not overlap"
            )
        merged[start : start + len(part)] = part
        end = max(end, start + len(part))
    return merged
