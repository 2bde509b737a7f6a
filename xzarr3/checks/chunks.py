"""Checks chunks by decoding them: all of them, a sample or none, several at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, TypeAlias

from xzarr3.arrays import Array
from xzarr3.checks.keys import Listing, Units, size_problem
from xzarr3.checks.report import Findings
from xzarr3.checks.shard_indexes import Problem, check_shard, not_decoded
from xzarr3.copying.tiles import Coords
from xzarr3.errors import ChunkError, StoreError
from xzarr3.options import memory_for_values
from xzarr3.parallel import asked_threads, available_threads, parallel_map
from xzarr3.progress import Asked, Progress
from xzarr3.stores.values import BytesValue, OversizedError

Decode: TypeAlias = Literal["sample", "all", "none"]

_SAMPLE = 8
"""Stored units of an array that a sample reads, and inner chunks of a shard."""
_AT_ONCE = 1024  # Units whose findings are collected together.
_WHOLE, _SMALL = 2**26, 2**20
"""Bytes of a shard that is read with one request, for all of its inner chunks or for a sample of them."""
_LARGEST = 2**31  # Bytes of a chunk that is decoded.


def check_chunks(
    listing: Listing, decode: Decode, findings: Findings, threads: int | None, progress: Asked | None
) -> dict[str, int]:
    """Read and decode stored units; returns how many of each array, by path."""
    asked_threads(threads)
    memory = memory_for_values()
    number = {"all": None, "sample": _SAMPLE, "none": 0}[decode]
    wanted = {path: _chosen(units, number, findings) for path, units in listing.units.items()}
    read = {path: len(indices) for path, indices in wanted.items()}
    text = f"checking {len(wanted)} arrays"
    with Progress(progress or False, sum(read.values()), text, unit="chunks") as shown:
        for path, indices in wanted.items():
            units = listing.units[path]
            at_once = _threads(units.handle, threads, memory)
            most = None if decode == "all" else _SAMPLE
            check = partial(check_unit, units.handle, most=most, memory=memory)
            chosen = map(units.unit, indices)
            while batch := list(itertools.islice(chosen, _AT_ONCE)):
                for (coords, _), problems in zip(batch, parallel_map(check, batch, at_once), strict=True):
                    for problem in problems:
                        key = units.handle.engine.key(coords)
                        findings.add(problem.code, path, key, problem.meaning)
                shown.advance(len(batch))
    return read


def is_too_large(handle: Array) -> bool:
    """Whether one chunk, by its document, would take too much memory. Such a chunk is not decoded."""
    return handle.metadata.chain.chunk_nbytes > _LARGEST


def _chosen(units: Units, number: int | None, findings: Findings) -> Sequence[int]:
    """Which units are read, as :meth:`Units.unit` takes them."""
    if number != 0 and is_too_large(units.handle):
        findings.add("chunks-large", units.handle.path, "", f"chunks of more than {_LARGEST // 2**30} GiB")
        number = 0
    return units.chosen(number)


def _threads(handle: Array, threads: int | None, memory: int) -> int:
    """How many units are read at a time: as many as their decoded chunks leave memory for."""
    wanted = threads or max(available_threads(), handle.store.concurrency)
    chain = handle.metadata.chain
    held = 2 * chain.chunk_nbytes + (0 if chain.shard is None else min(_WHOLE, memory // 4))
    return max(1, min(wanted, memory // max(held, 1)))


def check_unit(handle: Array, unit: tuple[Coords, int], most: int | None, memory: int) -> list[Problem]:
    """Read and decode one stored unit; returns what is wrong with it.

    Parameters
    ----------
    handle : Array
    unit : tuple
        Its coordinates, and its size in bytes, which is negative if it is not known.
    most : int, optional
        How many inner chunks of a shard are decoded; None for all.
    memory : int
        Bytes that there are for values.
    """
    try:
        return list(_problems(handle, *unit, most, memory // 4))
    except StoreError as error:
        return [Problem("chunk-unreadable", str(error))]
    except ChunkError as error:
        return [not_decoded(error, _reason(error))]


def _problems(handle: Array, coords: Coords, size: int, most: int | None, at_once: int) -> Iterator[Problem]:
    engine, grid = handle.engine, handle.metadata.chunk_grid
    chain = engine.chain_of(grid.chunk_shape_at(coords))
    store, key, shard = engine.store, engine.key(coords), chain.shard
    # Of a large shard, a sample takes the index and single inner chunks only.
    if shard is not None and not 0 <= size <= min(_WHOLE if most is None else _SMALL, at_once):
        opened = store.open(key)
        if opened is None:
            return
        with opened:
            whole = opened.size if opened.size is not None else store.getsize(key) or 0
            yield from check_shard(shard, opened, whole, most, at_once)
        return
    try:
        value = store.get(key, limit=max(chain.largest_stored, _WHOLE))
    except OversizedError as error:
        yield Problem("chunk-size", f"has {error.size} bytes or more, which is more than a chunk can have")
        return
    if value is None:  # erased since it was listed, or absent where nothing is listed
        return
    problem = size_problem(handle, coords, len(value)) if size < 0 else None
    if problem is not None:
        yield problem
    elif shard is not None:
        yield from check_shard(shard, BytesValue(value), len(value), most, at_once)
    else:
        chain.decode(value)


def _reason(error: ChunkError) -> str:
    """The message of an error; the key and the chunk are named elsewhere."""
    inner = f"inner chunk {error.inner_chunk}: " if error.inner_chunk else ""
    codec = f"codec '{error.codec}': " if error.codec else ""
    return f"cannot be decoded: {inner}{codec}{error.reason}"
