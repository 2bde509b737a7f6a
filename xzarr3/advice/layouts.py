"""Layouts worth a comparison: chunks, and shards around them, for a shape and the patterns of its readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from xzarr3.advice.patterns import Access, Roles

_CHUNK_BYTES = (2**18, 2**20, 2**22, 2**24)  # Decoded sizes of chunks that are tried.
_SHARD_BYTES = 2**28
_MANY = 1000  # Files; for fewer, shards save nothing.

Lengths: TypeAlias = tuple[int, ...]


def layouts(
    shape: Lengths, itemsize: int, found: Roles, wanted: Sequence[Access]
) -> dict[tuple[Lengths, Lengths | None], str]:
    """The layouts to compare: chunks, and shards around them or None, with a name of each."""
    made: dict[tuple[Lengths, Lengths | None], str] = {}
    weights = {each.name: each.weight for each in wanted}
    appends = any(each.grows is not None for each in wanted)
    for elements in (max(1, nbytes // itemsize) for nbytes in _CHUNK_BYTES):
        for name, times in _times(shape, elements, found, weights).items():
            chunks = _chunks(shape, elements, found, times)
            shards = _shards(chunks, shape, itemsize, found.time, appends=appends)
            made.setdefault((chunks, None), name)
            made.setdefault((chunks, shards), f"{name}, sharded")
    return made


def _times(shape: Lengths, elements: int, found: Roles, weights: dict[str, float]) -> dict[str, int]:
    """How many times a chunk may hold."""
    if found.time is None:
        return {"for regions": 1}
    n_times = shape[found.time]
    n_places = math.prod(shape) // n_times
    # A map touches places / (elements / times) chunks, a series n_times / times. Here both cost the same.
    maps, series = weights.get("map", 0.0), weights.get("series", 0.0)
    ratio = series / maps if maps and series else 1.0
    balanced = round(math.sqrt(elements * n_times / n_places * ratio))
    times = {"for maps": elements // n_places, "for series": elements, "balanced": balanced}
    return {name: max(1, min(n_times, elements, number)) for name, number in times.items()}


def _chunks(shape: Lengths, elements: int, found: Roles, times: int) -> Lengths:
    """Chunks of so many times: the longest of the other dimensions is halved, space last, until they fit."""
    chunks, time = list(shape), () if found.time is None else (found.time,)
    for axis in time:
        chunks[axis] = times
    others = [axis for axis in range(len(shape)) if axis not in (*time, *found.space)]
    for axes in (others, found.space, time):
        while math.prod(chunks) > elements and any(chunks[axis] > 1 for axis in axes):
            longest = max(axes, key=chunks.__getitem__)
            chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def _shards(
    chunks: Lengths, shape: Lengths, itemsize: int, time: int | None, *, appends: bool
) -> Lengths | None:
    """Shards around chunks; None where they save nothing."""
    counts = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
    most = max(1, _SHARD_BYTES // (math.prod(chunks) * itemsize))
    grown, axes = [1] * len(shape), sorted(range(len(shape)), key=lambda axis: axis == time)
    # A shard is written as a whole: where times are appended, it holds no more of them than a chunk does.
    for axis in axes[-2::-1] if appends else axes:
        grown[axis] = max(1, min(counts[axis], most // math.prod(grown)))
    if math.prod(counts) <= _MANY or math.prod(grown) == 1:
        return None
    return tuple(chunk * number for chunk, number in zip(chunks, grown, strict=True))
