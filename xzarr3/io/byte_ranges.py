"""Byte ranges: chooses which bytes of a stored value to request for a part of a chunk or of a shard.

One more request takes as long as reading some number of bytes: latency times bandwidth. The store gives this
number. Ranges are coalesced if the gap between them is not larger than this number. The whole value is read
if that takes no longer than its parts. So the unwanted bytes cost less than the requests that they save.

Over a store with latency, concurrent requests wait only once, and bytes may cost money. There the bytes moved
are also bounded by a multiple of the wanted bytes: see :class:`Price`. This module makes no requests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.io.projection import Addressing, Inner, Pointwise

if TYPE_CHECKING:
    from xzarr3.stores import Store

_FEW = 16  # Elements of a chunk; for more of them numpy is faster than a loop.

WINDOW = 2**24
"""Bytes of a shard that are held in memory at a time."""

_FREE = 2**20  # Bytes; reads that move no more are not bounded.
_LARGEST = np.iinfo(np.intp).max


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of requests and bytes at a store.

    Parameters
    ----------
    request : int
        Number of bytes that can be read in the time of one more request.
    over_read : float
        Largest ratio of moved to wanted bytes. Moving up to 1 MiB is always allowed.
    at_once : int
        Number of concurrent requests.
    """

    request: int
    over_read: float
    at_once: int

    @classmethod
    def of(cls, store: Store) -> Price:
        """The cost at ``store``. If the store allows no unwanted bytes, requests count as free."""
        nothing = store.over_read <= 1
        return cls(0 if nothing else store.request_bytes, store.over_read, max(store.concurrency, 1))

    def allows(self, moved: int, wanted: int) -> bool:
        """Whether ``moved`` bytes may be moved for ``wanted`` bytes."""
        return moved <= _FREE or moved <= self.over_read * wanted

    def splits(self, moved: int, wanted: int, requests: int) -> bool:
        """Whether to request parts: the whole moves too many bytes, and the requests can be concurrent."""
        return requests <= self.at_once and not self.allows(moved, wanted)


@dataclass(slots=True)
class ElementRanges:
    """The byte ranges of a part of a chunk whose stored bytes are its elements.

    Parameters
    ----------
    starts, lengths : list of int
        The ranges, in bytes.
    shape : tuple of int
        Shape of the part.
    strides : tuple of int, optional
        Strides in bytes of the elements in the concatenated ranges; None if ``places`` is given.
    places : ndarray of int, optional
        The index of each element in the concatenated ranges.
    """

    starts: list[int]
    lengths: list[int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    places: AnyArray | None = None

    @property
    def size(self) -> int:
        """Number of bytes in all ranges."""
        return sum(self.lengths)

    def is_exactly(self, nbytes: int) -> bool:
        """Whether the elements are one range of ``nbytes`` bytes, in their order."""
        return self.places is None and self.lengths == [nbytes]

    def elements(self, data: Sequence[Buffer], dtype: np.dtype[np.generic]) -> AnyArray:
        """The part of the chunk, from the bytes of the ranges."""
        joined = data[0] if len(data) == 1 else b"".join(data)
        if self.places is not None:
            return np.frombuffer(joined, dtype)[self.places]
        return np.ndarray(self.shape, dtype, joined, strides=self.strides)


def element_ranges(
    chain: CodecChain, addressing: Addressing, inner: Inner, price: Price
) -> ElementRanges | None:
    """The ranges to request, or None if the whole chunk takes no longer.

    Parameters
    ----------
    chain : CodecChain
        The codecs of the chunk, whose stored bytes are its elements.
    addressing : Addressing
    inner : tuple
        The wanted elements of the chunk.
    price : Price
    """
    request = price.request
    spec, strides = chain.spec, chain.strides
    itemsize, nbytes = spec.dtype.itemsize, spec.nbytes
    found: ElementRanges | None
    # Fast path: a selection may want a few elements of each of very many chunks.
    if isinstance(addressing, Pointwise) and not addressing.others and len(inner[0]) <= _FEW:
        found = _few(addressing.each_offset(inner, strides), itemsize, request)
    elif all(isinstance(chosen, slice) for chosen in inner):
        if all(chosen == slice(0, n, 1) for chosen, n in zip(inner, spec.shape, strict=True)):
            return None
        found = _strided(inner, strides, itemsize, price)
    elif nbytes > _LARGEST:
        return None
    else:
        found = _scattered(addressing.offsets(inner, strides), itemsize, nbytes, request)
    if found is None:
        return None
    number, size = len(found.starts), found.size
    return None if size + request * number >= nbytes and not price.splits(nbytes, size, number) else found


def _strided(inner: Inner, strides: tuple[int, ...], itemsize: int, price: Price) -> ElementRanges:
    """The ranges of a part that slices select: one range, or one for each index of the first dimensions."""
    shape = tuple(len(range(chosen.start, chosen.stop, chosen.step)) for chosen in inner)
    steps = tuple(chosen.step * stride for chosen, stride in zip(inner, strides, strict=True))
    first = sum(chosen.start * stride for chosen, stride in zip(inner, strides, strict=True))
    length = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + itemsize
    starts, split = [first], 0
    for n, step in zip(shape, steps, strict=True):
        if n > 1:
            each = length - (n - 1) * step
            number = n * len(starts)
            too_much = price.splits(length * len(starts), each * number, number)
            if n * (each + price.request) >= length and not (too_much and step > each):
                break
            length = each
            starts = [start + at * step for start in starts for at in range(n)]
        split += 1
    packed = list(steps)
    distance = length
    for axis in reversed(range(split)):
        packed[axis] = distance
        distance *= shape[axis]
    return ElementRanges(starts, [length] * len(starts), shape, tuple(packed))


def _few(offsets: list[int], itemsize: int, request: int) -> ElementRanges:
    """The ranges of a few elements, given the offset of each; fast, as there may be very many such chunks."""
    if len(offsets) == 1:
        return ElementRanges(offsets, [itemsize], (1,), (itemsize,))
    starts: list[int] = []
    lengths: list[int] = []
    places: dict[int, int] = {}
    before = 0
    stop = -request - 1
    for offset in sorted(offsets):
        if offset > stop + request:
            before += lengths[-1] if lengths else 0
            starts.append(offset)
            lengths.append(0)
        stop = offset + itemsize
        lengths[-1] = stop - starts[-1]
        places[offset] = (before + offset - starts[-1]) // itemsize
    found = np.array([places[offset] for offset in offsets], np.intp)
    return ElementRanges(starts, lengths, found.shape, None, found)


def _scattered(offsets: AnyArray, itemsize: int, nbytes: int, request: int) -> ElementRanges | None:
    """The ranges of any elements, given the offset of each; None if the wanted bytes exceed a quarter."""
    if offsets.size * itemsize * 4 > nbytes:
        return None
    found, inverse = np.unique(offsets, return_inverse=True)
    begins = np.concatenate([[True], np.diff(found) > request + itemsize])
    starts = found[begins]
    ends = found[np.concatenate([begins[1:], [True]])] + itemsize
    lengths = ends - starts
    piece = np.cumsum(begins) - 1
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    places = ((found - starts[piece] + before[piece]) // itemsize)[inverse].reshape(offsets.shape)
    return ElementRanges(starts.tolist(), lengths.tolist(), offsets.shape, None, places)


def windows(entries: Sequence[Sequence[int]], price: Price) -> Iterator[list[tuple[int, int, list[int]]]]:
    """Coalesce the inner chunks of a shard into ranges, and group the ranges into windows.

    A window has about as many bytes as are held in memory at a time, see :data:`WINDOW`.

    Parameters
    ----------
    entries : sequence of pairs of int
        Offset and size in bytes of each inner chunk.
    price : Price

    Yields
    ------
    list of (int, int, list of int)
        The ranges of a window: start, length, and the numbers of the entries in the range.
    """
    if len(entries) == 1:
        yield [(entries[0][0], entries[0][1], [0])]
        return
    window: list[tuple[int, int, list[int]]] = []
    held = 0
    for start, length, inside in _merged(entries, price):
        if window and held + length > WINDOW:
            yield window
            window, held = [], 0
        window.append((start, length, inside))
        held += length
    if window:
        yield window


def _merged(entries: Sequence[Sequence[int]], price: Price) -> Iterator[tuple[int, int, list[int]]]:
    order = sorted(range(len(entries)), key=lambda at: entries[at][0])
    for first, group in itertools.groupby(order, _Nearby(entries, *_widest_gaps(entries, order, price))):
        inside = list(group)
        stop = max(entries[at][0] + entries[at][1] for at in inside)
        yield first, stop - first, inside


def _widest_gaps(
    entries: Sequence[Sequence[int]], order: Sequence[int], price: Price
) -> tuple[int, int | None]:
    """The width of the widest gap to read, and how many gaps of this width to read, None for all.

    The narrowest gaps are read first, as they move the fewest unwanted bytes for each request saved.
    """
    gaps: list[int] = []
    wanted, stop = 0, entries[order[0]][0] if order else 0
    for at in order:
        offset, size = entries[at]
        if stop < offset <= stop + price.request:
            gaps.append(offset - stop)
        if offset + size > stop:
            wanted += offset + size - (offset if offset > stop else stop)
            stop = offset + size
    if price.allows(wanted + sum(gaps), wanted):
        return price.request, None
    left = int((price.over_read - 1) * wanted)
    widest = number = 0
    for gap in sorted(gaps):
        left -= gap
        if left < 0:
            break
        number = number + 1 if gap == widest else 1
        widest = gap
    return widest, number


class _Nearby:
    """Maps each inner chunk, called in the order of their offsets, to the first offset of its range."""

    def __init__(self, entries: Sequence[Sequence[int]], widest: int, number: int | None) -> None:
        self._entries = entries
        self._widest = widest
        self._left = number
        self._start = self._stop = -1

    def __call__(self, at: int) -> int:
        offset, size = self._entries[at]
        stop = max(self._stop, offset + size)
        gap = offset - self._stop
        if self._start < 0 or gap > self._widest or stop - self._start > WINDOW // 4:
            self._start, self._stop = offset, offset + size
            return self._start
        if self._left is not None and gap == self._widest and gap > 0:
            if self._left == 0:
                self._start, self._stop = offset, offset + size
                return self._start
            self._left -= 1
        self._stop = stop
        return self._start
