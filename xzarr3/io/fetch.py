"""Fetches: resolves a stored unit into rows, each of them a byte range to request, decode and place.

A row is one chunk, or a part of a chunk whose stored bytes are its elements. A chunk that is in no shard has
one row; a shard has a row for each of its wanted inner chunks, as its index tells. Reading is a loop over the
rows, and an explanation sums them. This module knows no stores and opens no values.

One more request takes as long as reading some number of bytes: latency times bandwidth. The store gives this
number. Rows are requested together if the gap between them is not larger, and a chunk is read whole if that
takes no longer than its parts. Over a store with latency, concurrent requests wait only once, and bytes may
cost money. There the bytes moved are also bounded by a multiple of the wanted bytes: see :class:`Price`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.sharding import Shard
from xzarr3.io.projection import ChunkProjection, Inner, Pointwise, Slices
from xzarr3.stores.values import BytesValue, Value

if TYPE_CHECKING:
    from xzarr3.io.plan import ReadPlan
    from xzarr3.stores import Store

Result = TypeVar("Result")

AHEAD = 2**18
"""Bytes within which inner chunks in a local file begin that are read together; as in `_native.c`."""
WINDOW = 2**24
"""Bytes of a shard that are held in memory at a time."""
WHOLE_SHARD = 2**26
"""Bytes of a decoded shard. Larger shards are not read in one piece, to limit memory."""

_FREE = 2**20  # Bytes; reads that move no more are not bounded.
_LARGEST = np.iinfo(np.intp).max


class Price(msgspec.Struct, frozen=True):
    """The cost of requests and bytes at a store.

    Parameters
    ----------
    request : int
        Number of bytes that can be read in the time of one more request.
    over_read : float
        Largest ratio of moved to wanted bytes. Moving up to 1 MiB is always allowed.
    at_once : int
        Number of concurrent requests.
    block : int, optional
        For a local file, whose rows are shared among threads: rows that are read together begin in one block
        of so many bytes, each row is read alone if it is 0, and a shard is never read whole. None for other
        stores.
    """

    request: int
    over_read: float
    at_once: int
    block: int | None = None

    @classmethod
    def of(cls, store: Store, chain: CodecChain) -> Price:
        """The cost at ``store``. If the store allows no unwanted bytes, requests count as free."""
        nothing = store.traits.over_read <= 1
        request = 0 if nothing else store.traits.request_bytes
        price = cls(request, store.traits.over_read, max(store.concurrency, 1))
        if store.folder is None:
            return price
        is_plain = (chain if chain.shard is None else chain.shard.inner).is_plain
        return msgspec.structs.replace(price, block=0 if is_plain else AHEAD)

    def allows(self, moved: int, wanted: int) -> bool:
        """Whether ``moved`` bytes may be moved for ``wanted`` bytes."""
        return moved <= _FREE or moved <= self.over_read * wanted

    def joins(self, start: int, offset: int, length: int) -> bool:
        """Whether a request from ``start`` on may have a row at ``offset`` as well, and this length."""
        if self.block is None:
            return length <= WINDOW // 4
        return self.block > 0 and offset // self.block == start // self.block

    def splits(self, moved: int, wanted: int, requests: int) -> bool:
        """Whether to request parts: the whole moves too many bytes, and the requests can be concurrent."""
        return requests <= self.at_once and not self.allows(moved, wanted)


class Layout(NamedTuple):
    """Where elements lie in a range of bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    places: AnyArray | None
    """The index of each element, if shape and strides cannot tell it."""

    def elements(self, data: Buffer, dtype: np.dtype[np.generic]) -> AnyArray:
        """The elements in ``data``."""
        if self.places is not None:
            return np.frombuffer(data, dtype)[self.places]
        return np.ndarray(self.shape, dtype, data, strides=self.strides)


class Row(NamedTuple):
    """One byte range of a stored value, and what becomes of it."""

    offset: int
    length: int
    coords: tuple[int, ...]
    """Coordinates of the inner chunk; empty for a chunk that is in no shard."""
    inner: Inner
    """The wanted elements of the chunk."""
    outer: Any
    """Their place in the part of the result that belongs to the stored unit."""
    layout: Layout | None
    """Where the elements lie in the range; None if the range is the whole chunk, which is decoded."""


Request: TypeAlias = tuple[int, int, list[Row]]
"""Offset and length of a byte range that is requested at once, and the rows within."""

# Calling the class would run Python code for each row; this call runs none.
_row = cast("Callable[[tuple[Any, ...]], Row]", partial(tuple.__new__, Row))


class InnerChunks(NamedTuple):
    """The wanted inner chunks of a shard."""

    chosen: Any
    """Index that selects the entries of the wanted inner chunks from the shard index."""
    units: list[ChunkProjection]
    """The wanted inner chunks."""
    whole: bool
    """Whether one request reads the whole shard with its index, as at least half of it is wanted."""


def _kept(same: Callable[[Inner, Inner], bool], make: Callable[[Inner], Result]) -> Callable[[Inner], Result]:
    """``make``, but the last result is kept: most chunks want the same elements."""
    kept: list[tuple[Inner, Result]] = []

    def made(inner: Inner) -> Result:
        if not kept or not same(inner, kept[0][0]):
            kept[:] = [(inner, make(inner))]
        return kept[0][1]

    return made


class Table:
    """Makes the rows of the units of one shape.

    Parameters
    ----------
    plan : ReadPlan
    chain : CodecChain
        The codecs of the units.
    """

    def __init__(self, plan: ReadPlan, chain: CodecChain) -> None:
        self._addressing, self._price, self._shard = plan.addressing, plan.price, chain.shard
        self._chunk, same = chain, plan.addressing.same
        if chain.shard is None:
            self.requests = _kept(same, self._requests)
            """The requests for a part of a chunk that is in no shard; None to read it whole."""
        else:
            self._chunk, self._parts = chain.shard.inner, _kept(same, self._parts_of)
            self.wanted = _kept(same, self._divided)
            """The inner chunks of a shard that hold the wanted elements."""

    def _parts_of(self, inner: Inner) -> list[Row] | None:
        return parts_of(self._chunk, self._addressing, inner, self._price) if self._chunk.is_plain else None

    def _requests(self, inner: Inner) -> list[Request] | None:
        rows = self._parts_of(inner)
        return None if rows is None else requests(rows, self._price)

    def _divided(self, inner: Inner) -> InnerChunks:
        shard = cast("Shard", self._shard)
        chosen, units = self._addressing.divide(inner, shard.grid.chunk_shape, shard.spec.shape)
        most = WHOLE_SHARD if self._price.block is None else 0
        whole = 2 * len(units) >= shard.number and shard.spec.nbytes <= most
        return InnerChunks(chosen, units, whole)

    def of_shard(
        self, index: npt.NDArray[np.uint64], wanted: InnerChunks, *, in_memory: bool
    ) -> tuple[list[Row], list[ChunkProjection]]:
        """The rows of a shard with this index, and the wanted inner chunks that are absent.

        Raises
        ------
        ChunkDecodeError
            If the index is invalid.
        """
        shard, entries, units = cast("Shard", self._shard), index[wanted.chosen].reshape(-1, 2), wanted.units
        there = shard.present(entries, lambda at: wanted.units[at].coords)
        absent: list[ChunkProjection] = []
        if there is not None:
            absent = [*itertools.compress(units, ~there)]
            entries, units = entries[there], [*itertools.compress(units, there)]
        if not units:
            return [], absent
        coords, inners, outers, _ = zip(*units, strict=True)
        whole = zip(*entries.T.tolist(), coords, inners, outers, itertools.repeat(None), strict=False)
        rows, chain = [*map(_row, whole)], shard.inner
        if in_memory or not chain.is_plain:
            return rows, absent
        found: list[Row] = []
        for row in rows:
            # A chunk of another size is read whole, and decoding it tells what is wrong.
            parts = self._parts(row.inner) if row.length == chain.spec.nbytes else None
            if parts is None:
                found.append(row)
                continue
            for part in parts:
                outer = row.outer if part.outer is ... else _within(row.outer, part.outer)
                at = row.offset + part.offset
                found.append(_row((at, part.length, row.coords, row.inner, outer, part.layout)))
        return found, absent


def _within(outer: tuple[Any, ...], part: tuple[slice, ...]) -> tuple[Any, ...]:
    """The place of a part, given in the place of the whole."""
    moved = [
        slice(a.start + b.start, a.start + b.stop) if isinstance(a, slice) else a[b]
        for a, b in zip(outer, part, strict=False)
    ]
    return (*moved, *outer[len(part) :])


def parts_of(chain: CodecChain, addressing: Slices, inner: Inner, price: Price) -> list[Row] | None:
    """The rows of a chunk whose stored bytes are its elements; None if reading it whole takes no longer.

    Parameters
    ----------
    chain : CodecChain
    addressing : Slices
    inner : tuple
        The wanted elements of the chunk.
    price : Price
    """
    spec, strides = chain.spec, chain.strides
    itemsize, nbytes = spec.dtype.itemsize, spec.nbytes
    # Fast path: a selection may want one element of each of very many chunks.
    if isinstance(addressing, Pointwise) and not addressing.others and len(inner[0]) == 1:
        first = sum(int(inner[at][0]) * strides[axis] for at, axis in enumerate(addressing.axes))
        found = [_row((first, itemsize, (), inner, ..., Layout((1,), (itemsize,), None)))]
    elif not [chosen for chosen in inner if not isinstance(chosen, slice)]:
        if inner == chain.everything:
            return None
        found = _boxes(inner, strides, itemsize, price)
    elif nbytes > _LARGEST:
        return None
    else:  # From the first element to the last one.
        offsets = addressing.offsets(inner, strides)
        first, last = offsets.item(offsets.argmin()), offsets.item(offsets.argmax())
        layout = Layout(offsets.shape, (), (offsets - first) // itemsize)
        found = [_row((first, last - first + itemsize, (), inner, ..., layout))]
    size = sum(part.length for part in found)
    is_whole = size + price.request * len(found) >= nbytes and not price.splits(nbytes, size, len(found))
    return None if is_whole else found


def divided(
    inner: tuple[slice, ...], strides: tuple[int, ...], itemsize: int, price: Price
) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    """How a part that slices select is divided: one range of bytes for each index of the first dimensions.

    Returns
    -------
    tuple
        The shape of the part, the bytes between its elements along each dimension, the bytes of a range, and
        the number of the first dimensions; 0 if there is one range.
    """
    shape = tuple(len(range(chosen.start, chosen.stop, chosen.step)) for chosen in inner)
    steps = tuple(chosen.step * stride for chosen, stride in zip(inner, strides, strict=True))
    length = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + itemsize
    split, number = 0, 1
    for n, step in zip(shape, steps, strict=True):
        each = length - (n - 1) * step
        too_much = step > each and price.splits(length * number, each * n * number, n * number)
        if n > 1 and n * (each + price.request) >= length and not too_much:
            break
        length, split, number = each, split + 1, n * number
    return shape, steps, length, split if number > 1 else 0


def _boxes(inner: Inner, strides: tuple[int, ...], itemsize: int, price: Price) -> list[Row]:
    """The rows of a part that slices select."""
    shape, steps, length, split = divided(cast("tuple[slice, ...]", inner), strides, itemsize, price)
    first = sum(chosen.start * stride for chosen, stride in zip(inner, strides, strict=True))
    if not split:
        return [_row((first, length, (), inner, ..., Layout(shape, steps, None)))]
    layout = Layout((1,) * split + shape[split:], steps, None)
    starts = [first]
    for n, step in zip(shape[:split], steps, strict=False):
        starts = [start + at * step for start in starts for at in range(n)]
    places = itertools.product(*([slice(at, at + 1) for at in range(n)] for n in shape[:split]))
    return [_row((start, length, (), inner, at, layout)) for start, at in zip(starts, places, strict=True)]


def windows(rows: Sequence[Row], price: Price) -> Iterator[list[Request]]:
    """The requests for rows of one value, in windows.

    A window has about as many bytes as are held in memory at a time, see :data:`WINDOW`.
    """
    window: list[Request] = []
    held = 0
    for request in requests(rows, price):
        if window and held + request[1] > WINDOW:
            yield window
            window, held = [], 0
        window.append(request)
        held += request[1]
    if window:
        yield window


def requests(rows: Sequence[Row], price: Price) -> list[Request]:
    """Request rows together while the gaps are small and no more bytes are moved than is allowed."""
    if len(rows) <= 1:
        return [(*row[:2], [row]) for row in rows]
    ordered = sorted(rows, key=itemgetter(0))
    gaps = [0, *(max(0, b[0] - a[0] - a[1]) for a, b in itertools.pairwise(ordered))]
    wanted, unwanted = sum(map(itemgetter(1), rows)), sum(gap for gap in gaps if gap <= price.request)
    left = math.inf if price.allows(wanted + unwanted, wanted) else (price.over_read - 1) * wanted
    found: list[list[Any]] = []
    base = start = stop = 0
    for row, gap in zip(ordered, gaps, strict=True):
        end, is_near = row.offset + row.length, found and gap <= min(price.request, left)
        base = base if is_near else row.offset
        if is_near and price.joins(start - base, row.offset - base, max(stop, end) - start):
            stop, left = max(stop, end), left - gap
            found[-1][1] = stop - start
            found[-1][2].append(row)
        else:
            start, stop = row.offset, end
            found.append([start, row.length, [row]])
    return [(offset, length, inside) for offset, length, inside in found]


def fetched(reader: Value, rows: Sequence[Row], price: Price) -> Iterable[tuple[Row, Buffer]]:
    """The bytes of rows of an open value, each with its row."""
    if isinstance(reader, BytesValue):
        view = reader.data
        return zip(rows, [view[row[0] : row[0] + row[1]] for row in rows], strict=True)
    return _asked(reader, rows, price)


def _asked(reader: Value, rows: Sequence[Row], price: Price) -> Iterator[tuple[Row, Buffer]]:
    for window in windows(rows, price):
        found = reader.read_ranges([start for start, _, _ in window], [length for _, length, _ in window])
        for (start, _, inside), data in zip(window, found, strict=True):
            view = memoryview(data)
            for row in inside:
                yield row, view[row.offset - start : row.offset - start + row.length]
