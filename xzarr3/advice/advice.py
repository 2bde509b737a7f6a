"""``advise``: compares layouts of an array for the ways in which it is read and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xzarr3.advice.compression import RATE, Compression, compressed, compressions
from xzarr3.advice.imagined import TARGETS, Target, imagined, stored_size
from xzarr3.advice.layouts import layouts
from xzarr3.advice.patterns import Access, accesses
from xzarr3.advice.report import Advice, Candidate, Prediction
from xzarr3.advice.subject import Subject, subject_of
from xzarr3.arrays import Array
from xzarr3.copying.settings import Settings
from xzarr3.errors import ArgumentError, one_of, short_traceback
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.parallel import available_threads
from xzarr3.stores import Store

_WORTH = 1.05  # Times smaller that a compressor stores than none, if it is worth its time.
_CALL = 0.002  # Seconds that a call takes anyway: layouts that differ by less are alike.


@short_traceback
def advise(
    data: Any = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    access: Mapping[str, Any] | None = None,
    target: str | Store | Target | None = None,
    dims: Sequence[str | None] | None = None,
) -> Advice:
    """Compare layouts of an array for the ways in which it is read and written.

    Parameters
    ----------
    data : path, URL, Store, Group, Array, xarray.Dataset, xarray.DataArray, dask or numpy array, optional
        What is to be stored. Of a group or a dataset the largest variable decides that describes no other
        one, as bounds do. The advice is for all variables beside it with its dimensions. It is about the
        values that are stored, packed if the variable's encoding packs them. A sample of them, of 8 MiB
        before they are packed, is compressed.
    shape, dtype : optional
        Given in place of data.
    access : mapping of str to float, optional
        How often each pattern happens: ``"map"``, ``"series"``, ``"region"``, ``"scan"``, ``"sample"``,
        ``"append"``. A pattern of one's own is a weight and a selection: ``{"east": (0.5, (..., slice(0,
        90)))}``. By default maps, series and scans happen equally often, or maps and regions where there is
        no time. The printed advice says what each of them reads.
    target : {"s3", "disk"}, Store or Target, optional
        Where the data are kept. By default where they are now: in the store of an array, on the disk or the
        object store that xarray has read them from, or on S3 where nothing tells.
    dims : sequence of str, optional
        Names of the dimensions. Time is found by its name, or is the first of three or more dimensions, or of
        dimensions without names.

    Returns
    -------
    Advice
        Its requests and bytes are those that :meth:`xzarr3.Array.explain` gives for such an array. Its times
        are estimates from the costs of the target and one usual speed for all compressors. The layouts are
        compared with the compressor that stores least. The present layout of data that are in a Zarr store,
        or that were read from one, is the best if none is more than 10 % better.

    Raises
    ------
    SelectionError
        If a pattern is not known, or needs time, which no dimension is.
    TypeError
        If there is neither data nor shape and dtype.
    ValueError
        If the array has no dimensions or no values, or the target is not known.

    Examples
    --------
    >>> import xzarr3
    >>> found = xzarr3.advise(
    ...     shape=(8760, 721, 1440), dtype="float32", access={"series": 0.9, "map": 0.1}, target="s3"
    ... )
    >>> found.best.chunks[0] > 10
    True
    """
    given = subject_of(data, shape, dtype, dims)
    array, shape, time = given.array, given.array.shape, given.roles.time
    if not shape or not math.prod(shape):
        raise ArgumentError(
            f"shape {shape} has no values to divide among chunks; give an array with values and dimensions"
        )
    place = _target(given.place if target is None else target)
    wanted = accesses(access, shape, given.roles)
    tried = compressions(given.sample, array)
    chosen = _chosen(tried)
    made = []
    for layout in layouts(shape, array.zdtype.item_size, given.roles, wanted):
        settings = Settings(layout.chunks, layout.shards, chosen.compressors)
        metadata = settings.metadata(array, array.format)
        made.append(_judged(layout.name, metadata, chosen, wanted, time, place))
    candidates, present = _scored(made, _present(given, wanted, place))
    reads = {each.name: each.meaning for each in wanted}
    return Advice(shape, array.dtype, place, candidates, present, tuple(tried), given.encodings, reads)


def _target(target: str | Store | Target) -> Target:
    if isinstance(target, (Target, Store)):
        return target if isinstance(target, Target) else Target.of(target)
    if not isinstance(target, str) or target not in TARGETS:
        raise ArgumentError(f"target={target!r}; {one_of(target, TARGETS)}, or a store")
    return TARGETS[target]


def _chosen(tried: Sequence[Compression]) -> Compression:
    """The compressor that stores least; none if no other stores much less."""
    best = max(tried, key=lambda each: each.ratio)
    return best if best.ratio > _WORTH else tried[0]


def _present(given: Subject, wanted: Sequence[Access], target: Target) -> Candidate | None:
    """The layout that an array has."""
    array, shard = given.array, given.array.metadata.chain.shard
    if not given.is_present or (shard is not None and shard.inner.shard is not None):
        return None
    name = "+".join(each.name for each in array.compressors) or "none"
    compression = compressed(given.sample, array, name, array.compressors)
    judged = _judged("present", array.metadata, compression, wanted, given.roles.time, target)
    return replace(judged, chunks=array.chunks, shards=array.shards)


def _scored(
    made: Sequence[Candidate], present: Candidate | None
) -> tuple[tuple[Candidate, ...], Candidate | None]:
    """The candidates with their scores, the best first; and the present layout with its score."""
    columns = zip(*(one.predictions for one in made), strict=True)
    least = [min(each.seconds for each in column) for column in columns]

    def scored(one: Candidate) -> Candidate:
        pairs = zip(one.predictions, least, strict=True)
        return replace(one, score=sum(a.weight * (a.seconds + _CALL) / (b + _CALL) for a, b in pairs))

    ordered = sorted(map(scored, made), key=lambda each: (each.score, each.files))
    return tuple(ordered), None if present is None else scored(present)


def _judged(
    name: str, metadata: ArrayMetadata, compression: Compression, wanted: Sequence[Access], time: int | None,
    target: Target,
) -> Candidate:  # fmt: skip
    """A layout with what each access costs; without a score."""
    array = imagined(metadata, target, compression.ratio)
    grid, shard = metadata.chunk_grid, metadata.chain.shard
    files, size = math.prod(grid.counts(metadata.shape)), stored_size(metadata.chain, compression.ratio)
    chunks, shards = (grid.largest, None) if shard is None else (shard.grid.chunk_shape, grid.largest)
    predictions = tuple(_predicted(array, each, size, time, target) for each in wanted)
    return Candidate(name, chunks, shards, compression, files, files * size, predictions)


def _predicted(array: Array, access: Access, size: int, time: int | None, target: Target) -> Prediction:
    """What an access costs, where each stored unit has so many bytes."""
    chain, plan = array.engine.meta.chain, array.plan(access.selection)
    shard = chain.shard
    each = (chain if shard is None else shard.inner).spec.nbytes
    used = math.prod(plan.shape) * array.dtype.itemsize
    is_whole = (shard is None and not chain.is_plain) or used == array.nbytes
    if access.appends or is_whole:  # Explained, it would take a while to say the same.
        # An append also reads the units that it goes on with: all, unless its time begins new ones.
        times = 2 - 1 / array.metadata.chunk_grid.largest[time] if access.appends and time is not None else 1
        requests, moved = round(plan.number * times), round(plan.number * times * size)
        chunks = requests * (1 if shard is None else shard.number)
    else:
        found = array.explain(access.selection, threads=1)
        requests, moved, chunks, used = found.requests, found.bytes_moved, found.chunks, found.bytes_used
    # Requests wait for answers together, bytes share the bandwidth, and one core works on a chunk.
    seconds = math.ceil(requests / target.at_once) * target.latency + moved / target.bandwidth
    seconds += math.ceil(chunks / available_threads()) * each / RATE
    return Prediction(access.name, access.weight, requests, moved, used, chunks * each, seconds)
