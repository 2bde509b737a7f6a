"""Layouts worth a comparison: chunks, and shards around them, for a shape and the patterns of its readers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xzarr3.advice.imagined import Target
from xzarr3.advice.patterns import APPEND, Access, Roles

_CHUNK_BYTES = (2**18, 2**20, 2**22, 2**24)  # Decoded sizes of chunks that are tried.
_SHARD_BYTES = 2**28
_MANY = 1000  # Files; for fewer, shards save nothing.


class Layout(NamedTuple):
    """Chunks, and shards around them."""

    name: str
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None


def layouts(
    shape: tuple[int, ...], itemsize: int, found: Roles, wanted: Sequence[Access], target: Target
) -> Iterator[Layout]:
    """The layouts to compare, each once."""
    seen: set[tuple[object, ...]] = set()
    weights = {each.name: each.weight for each in wanted}
    for nbytes in _CHUNK_BYTES:
        elements = max(1, nbytes // itemsize)
        for name, times in _times(shape, elements, found, weights):
            chunks = _chunks(shape, elements, found, times)
            for layout in _with_shards(name, chunks, shape, itemsize, found, weights, target):
                if layout[1:] not in seen:
                    seen.add(layout[1:])
                    yield layout


def _times(
    shape: tuple[int, ...], elements: int, found: Roles, weights: dict[str, float]
) -> Iterator[tuple[str, int]]:
    """How many times a chunk may hold."""
    if found.time is None:
        yield "for regions", 1
        return
    n_times, n_places = shape[found.time], max(1, math.prod(shape) // max(1, shape[found.time]))
    yield "for maps", max(1, elements // n_places)
    yield "for series", min(n_times, elements)
    # A map touches places / (elements / times) chunks, a series n_times / times. Here both cost the same.
    maps, series = weights.get("map", 0.0), weights.get("series", 0.0)
    ratio = series / maps if maps and series else 1.0
    balanced = math.sqrt(elements * n_times / n_places * ratio)
    yield "balanced", min(n_times, elements, max(1, round(balanced)))


def _chunks(shape: tuple[int, ...], elements: int, found: Roles, times: int) -> tuple[int, ...]:
    """Chunks of so many times: the other dimensions are divided, the first ones first, until they fit."""
    chunks = [max(1, length) for length in shape]
    if found.time is not None:
        chunks[found.time] = min(times, chunks[found.time])
    others = [axis for axis in range(len(shape)) if axis not in (found.time, *found.space)]
    for axis in others:
        if math.prod(chunks) > elements:
            chunks[axis] = max(1, _evenly(shape[axis], math.prod(chunks) / elements))
    while math.prod(chunks) > elements and any(chunks[axis] > 1 for axis in found.space):
        longest = max(found.space, key=chunks.__getitem__)
        chunks[longest] = -(-chunks[longest] // 2)
    while found.time is not None and math.prod(chunks) > elements and chunks[found.time] > 1:
        chunks[found.time] = -(-chunks[found.time] // 2)
    return tuple(chunks)


def _evenly(length: int, parts: float) -> int:
    """The length of the parts, where they divide a dimension as evenly as they can."""
    return -(-length // min(length, math.ceil(parts)))


def _with_shards(
    name: str,
    chunks: tuple[int, ...],
    shape: tuple[int, ...],
    itemsize: int,
    found: Roles,
    weights: dict[str, float],
    target: Target,
) -> Iterator[Layout]:
    yield Layout(name, chunks, None)
    counts = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
    if math.prod(counts) <= _MANY:
        return
    most = max(1, _SHARD_BYTES // (math.prod(chunks) * itemsize))
    grown = [1] * len(shape)
    # A shard is written as a whole: where times are appended, it holds no more of them than a chunk does.
    axes = [axis for axis in range(len(shape)) if axis != found.time]
    axes += [] if APPEND in weights or found.time is None else [found.time]
    for axis in reversed(axes) if APPEND in weights else axes:
        room = most // math.prod(grown)
        grown[axis] = max(1, min(counts[axis], room))
    if math.prod(grown) > 1:
        shards = tuple(chunk * number for chunk, number in zip(chunks, grown, strict=True))
        yield Layout(f"{name}, sharded", chunks, shards)
