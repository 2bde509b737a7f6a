"""Checks the index of a shard: that it is intact, and that inner chunks lie within the shard and apart.

Works on one open value and knows no stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from xzarr3.codecs.sharding import EMPTY, Shard
from xzarr3.errors import ChunkError, UnknownExtensionError
from xzarr3.stores.values import BytesValue, Value

_MOST_READ = 2**26  # Bytes of inner chunks that are read at once.

Chosen: TypeAlias = npt.NDArray[np.intp]
"""Positions of inner chunks in the index."""


class Problem(NamedTuple):
    """The code and the meaning of a finding."""

    code: str
    meaning: str


def not_decoded(error: ChunkError, meaning: str) -> Problem:
    """The problem of a chunk that cannot be decoded: it is damaged, or of a kind that is not read."""
    known = not isinstance(error.__cause__, UnknownExtensionError)
    return Problem("chunk-damaged" if known else "extension-unknown", meaning)


def spread(total: int, most: int | None) -> Sequence[int]:
    """The places of so many things, or of at most ``most``, spread evenly from the first to the last.

    Examples
    --------
    >>> spread(3, None), spread(9, 3)
    (range(0, 3), [0, 4, 8])
    """
    if most is None or total <= most:
        return range(total)
    return [at * (total - 1) // max(most - 1, 1) for at in range(most)]


def check_shard(
    shard: Shard, reader: Value, size: int, most: int | None, at_once: int, above: tuple[int, ...] = ()
) -> Iterator[Problem]:
    """Check the index of a shard, then decode inner chunks; shards within shards are checked in the same way.

    Parameters
    ----------
    shard : Shard
    reader : Value
        The open shard.
    size : int
        Size of the shard in bytes.
    most : int, optional
        How many inner chunks to decode at most, spread evenly; None for all.
    at_once : int
        Bytes of inner chunks that are read at once, unless one of them has more.
    above : tuple of int
        Coordinates of the shard within the shards around it.
    """
    if size < shard.index_size:
        yield Problem("shard-small", f"has {size} bytes; the index of a shard alone has {shard.index_size}")
        return
    start = shard.index_start if shard.index_start >= 0 else size - shard.index_size
    try:
        index = shard.decode_index(reader.read(start, shard.index_size))
    except ChunkError as error:
        yield Problem("shard-index", _at(above) + error.reason)
        return
    opened = _Opened(shard, reader, size, above, index.reshape(-1, 2))
    good, problems = opened.within(start)
    yield from problems
    if not problems:
        yield from opened.apart(good)
    yield from opened.decoded(good, most, min(at_once, _MOST_READ))


@dataclass(frozen=True)
class _Opened:
    """A shard whose index is intact. The parameters are those of :func:`check_shard`.

    Parameters
    ----------
    entries : ndarray of int
        Offset and length of each inner chunk.
    """

    shard: Shard
    reader: Value
    size: int
    above: tuple[int, ...]
    entries: npt.NDArray[np.uint64]

    def within(self, index_at: int) -> tuple[Chosen, list[Problem]]:
        """The inner chunks whose places are possible, and what is wrong with the others."""
        shard, entries, whole = self.shard, self.entries, np.uint64(self.size)
        there = np.flatnonzero((entries != EMPTY).any(axis=1))
        offsets, lengths = entries[there, 0], entries[there, 1]
        beyond = (offsets > whole) | (lengths > whole - np.minimum(offsets, whole))
        ends = offsets + np.where(beyond, np.uint64(0), lengths)
        in_index = ~beyond & (ends > np.uint64(index_at)) & (offsets < np.uint64(index_at + shard.index_size))
        exact = shard.inner.encoded_size
        empty = ~beyond & (lengths == 0) & (exact != 0)
        odd = ~beyond & ~empty & (lengths > np.uint64(min(shard.max_inner_size, EMPTY - 1)))
        if exact is not None:
            odd |= ~beyond & ~empty & (lengths != np.uint64(exact))
        of = "" if exact is None else f"; each has {exact} bytes"
        kinds = (
            ("shard-bounds", beyond, "lies beyond the end of the shard"),
            ("shard-bounds", in_index & ~empty, "lies in the index of the shard"),
            ("chunk-empty", empty, "has no bytes"),
            ("chunk-size", odd, f"has a size that no inner chunk has{of}"),
        )
        problems = []
        bad = np.zeros(len(there), np.bool_)
        for code, wrong, what in kinds:
            wrong = wrong & ~bad
            if wrong.any():
                bad |= wrong
                first = int(np.argmax(wrong))
                offset, length = int(offsets[first]), int(lengths[first])
                number = int(wrong.sum())
                more = f", and {number - 1} others" if number > 1 else ""
                coords = self._coords(int(there[first]))
                meaning = f"inner chunk {coords} at offset {offset} with {length} bytes {what}{more}"
                problems.append(Problem(code, meaning))
        return there[~bad], problems

    def apart(self, good: Chosen) -> Iterator[Problem]:
        """Check that inner chunks do not overlap, and how many bytes of the shard belong to none."""
        entries = self.entries[good]
        order = np.lexsort((entries[:, 1], entries[:, 0]))
        offsets = entries[order, 0]
        ends = np.maximum.accumulate(offsets + entries[order, 1])
        overlaps = np.flatnonzero(offsets[1:] < ends[:-1])
        if len(overlaps):
            at = int(overlaps[0])
            one, other = (self._coords(int(good[order[each]])) for each in (at, at + 1))
            meaning = f"inner chunks {one} and {other} share bytes; {len(overlaps)} such pairs"
            yield Problem("shard-overlap", meaning)
            return
        unused = self.size - self.shard.index_size - int(entries[:, 1].sum())
        if unused:
            yield Problem("shard-gaps", f"{unused} bytes belong to no inner chunk")

    def decoded(self, good: Chosen, most: int | None, at_once: int) -> Iterator[Problem]:
        """Decode inner chunks; those that are close are read together."""
        entries, inner = self.entries, self.shard.inner
        chosen = good.take(spread(len(good), most))
        order = chosen[np.argsort(entries[chosen, 0], kind="stable")]
        for span in _spans(entries, order.tolist(), at_once):
            first, last = int(entries[span[0], 0]), int(entries[span[-1]].sum())
            value = memoryview(self.reader.read(first, last - first))
            for at in span:
                offset, length = (int(each) for each in entries[at])
                data = value[offset - first : offset - first + length]
                coords = self._coords(at)
                if inner.shard is not None:
                    yield from check_shard(inner.shard, BytesValue(data), length, most, at_once, coords)
                    continue
                try:
                    inner.decode(data)
                except ChunkError as error:
                    yield not_decoded(error, f"inner chunk {coords}: {error}")

    def _coords(self, at: int) -> tuple[int, ...]:
        """The coordinates of an inner chunk, after those of the shards around its shard."""
        counts = self.shard.counts
        return (*self.above, *(int(each) for each in np.unravel_index(at, counts))) if counts else self.above


def _spans(entries: npt.NDArray[np.uint64], order: list[int], at_once: int) -> Iterator[list[int]]:
    """Inner chunks that are read together: adjacent ones, up to a number of bytes."""
    span: list[int] = []
    for at in order:
        offset, length = (int(each) for each in entries[at])
        if span:
            begin, end = int(entries[span[0], 0]), int(entries[span[-1]].sum())
            if offset != end or offset + length - begin > at_once:
                yield span
                span = []
        span.append(at)
    if span:
        yield span


def _at(above: tuple[int, ...]) -> str:
    return f"inner shard {above}: " if above else ""
