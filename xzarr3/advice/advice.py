"""``advise``: compares layouts of an array for the ways in which it is read and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from xzarr3.advice.compression import RATE, Compression, compressions, present_compression
from xzarr3.advice.imagined import TARGETS, Target, encoded_size, imagined, shard_size
from xzarr3.advice.layouts import Layout, layouts
from xzarr3.advice.patterns import Access, Roles, accesses
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
        Where the data are kept. By default where they are now: in the store or file that they are read from,
        or on S3 where nothing tells.
    dims : sequence of str, optional
        Names of the dimensions. Time is found by its name, or is the first of three or more dimensions, or of
        dimensions without names.

    Returns
    -------
    Advice
        Its requests and bytes are those that :meth:`xzarr3.Array.explain` gives for such an array. Its times
        are estimates from the costs of the target and one usual speed for all compressors. The layouts are
        compared with the compressor that stores least. The present layout of data, which is that in a store
        or what :func:`xzarr3.to_zarr` makes of a dataset, is the best if none is more than 10 % better.

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
    shape = given.array.shape
    if not shape or not math.prod(shape):
        raise ArgumentError(
            f"shape {shape} has no values to divide among chunks; give an array with values and dimensions"
        )
    place = _target(given.place if target is None else target)
    found = given.roles
    wanted = accesses(access, shape, found)
    tried = compressions(given.sample, given.array)
    chosen = _chosen(tried)

    def laid_out(layout: Layout) -> ArrayMetadata:
        settings = Settings(layout.chunks, layout.shards, chosen.compressors)
        return settings.metadata(given.array, given.array.format)

    made = [
        _judged(layout.name, laid_out(layout), chosen, wanted, found, place)
        for layout in layouts(shape, given.array.zdtype.item_size, found, wanted, place)
    ]
    made, present = _scored(made, _present(given, wanted, found, place))
    reads = {each.name: each.meaning(given.names) for each in wanted}
    return Advice(shape, given.array.dtype, place, tuple(made), present, tuple(tried), given.encodings, reads)


def _target(target: str | Store | Target) -> Target:
    if isinstance(target, Target):
        return target
    if isinstance(target, Store):
        return Target.of(target)
    if target not in TARGETS:
        raise ArgumentError(f"target={target!r}; {one_of(target, TARGETS)}, or a store")
    return TARGETS[target]


def _chosen(tried: Sequence[Compression]) -> Compression:
    """The compressor that stores least; none if no other stores much less."""
    best = max(tried, key=lambda each: each.ratio)
    return best if best.ratio > _WORTH else tried[0]


def _present(given: Subject, wanted: Sequence[Access], found: Roles, target: Target) -> Candidate | None:
    """The layout that an array has, or that :func:`xzarr3.to_zarr` gives it."""
    array = given.array
    shard = array.metadata.chain.shard
    if not given.is_present or (shard is not None and shard.inner.shard is not None):
        return None
    compression = present_compression(given.sample, array)
    judged = _judged("present", array.metadata, compression, wanted, found, target)
    return replace(judged, chunks=array.chunks, shards=array.shards)


def _scored(made: Sequence[Candidate], present: Candidate | None) -> tuple[list[Candidate], Candidate | None]:
    """The candidates with their scores, the best first; and the present layout with its score."""
    least = [min(each.predictions[at].seconds for each in made) for at in range(len(made[0].predictions))]

    def scored(one: Candidate) -> Candidate:
        terms = (
            each.weight * (each.seconds + _CALL) / (best + _CALL)
            for each, best in zip(one.predictions, least, strict=True)
        )
        return replace(one, score=sum(terms))

    ordered = sorted(map(scored, made), key=lambda each: (each.score, each.files))
    return ordered, None if present is None else scored(present)


def _judged(
    name: str,
    metadata: ArrayMetadata,
    compression: Compression,
    wanted: Sequence[Access],
    found: Roles,
    target: Target,
) -> Candidate:
    array = imagined(metadata, target, compression.ratio)
    chain = array.engine.meta.chain
    unit = chain.spec.nbytes
    size = (
        encoded_size(chain, compression.ratio)
        if chain.shard is None
        else shard_size(chain.shard, compression.ratio)
    )
    files = math.prod(metadata.chunk_grid.counts(metadata.shape))
    lengths = metadata.chunk_grid.largest
    predictions = tuple(
        _append(array, each, lengths, unit, size, found, target)
        if each.selection is None
        else _read(array, each, files, size, target)
        for each in wanted
    )
    shard = chain.shard
    chunks = lengths if shard is None else shard.grid.chunk_shape
    return Candidate(
        name,
        chunks,
        None if shard is None else lengths,
        compression,
        files,
        files * size,
        unit + size,
        predictions,
    )


def _read(array: Array, access: Access, files: int, size: int, target: Target) -> Prediction:
    chain, selection = array.engine.meta.chain, cast("tuple[Any, ...]", access.selection)
    plan = array.plan(selection)
    if chain.shard is None and not chain.is_plain:
        # Each chunk is read whole, with one request. To explain it would take a while to say the same.
        requests, moved, chunks = plan.number, plan.number * size, plan.number
        used = math.prod(plan.shape) * array.dtype.itemsize
    elif math.prod(plan.shape) == array.size:  # So is each shard.
        requests, moved, chunks = files, files * size, files * (chain.shard.number if chain.shard else 1)
        used = array.nbytes
    else:
        found = array.explain(selection, threads=1)
        requests, moved, chunks, used = found.requests, found.bytes_moved, found.chunks, found.bytes_used
    each = chain.spec.nbytes if chain.shard is None else chain.shard.inner.spec.nbytes
    seconds = _seconds(requests, moved, chunks, each, target)
    return Prediction(access.name, access.weight, requests, moved, used, chunks * each, seconds)


def _append(
    array: Array, access: Access, lengths: Sequence[int], unit: int, size: int, found: Roles, target: Target
) -> Prediction:
    """One more time: each unit at the end is written, and first read unless the time begins a new one."""
    counts = array.metadata.chunk_grid.counts(array.shape)
    units = math.prod(count for axis, count in enumerate(counts) if axis != found.time)
    time = cast("int", found.time)  # Without time there is no append.
    again = 1 - 1 / lengths[time]  # Share of appends that begin within a unit.
    requests, moved = round(units * (1 + again)), round(units * size * (1 + again))
    used = array.nbytes // max(1, array.shape[time])
    seconds = _seconds(requests, moved, requests, unit, target)
    return Prediction(access.name, access.weight, requests, moved, used, requests * unit, seconds)


def _seconds(requests: int, moved: int, chunks: int, each: int, target: Target) -> float:
    """How long an access takes: requests wait for answers together, bytes share the bandwidth.

    A chunk is encoded or decoded by one core.
    """
    waits = math.ceil(requests / target.at_once) * target.latency
    rounds = math.ceil(chunks / available_threads())
    return waits + moved / target.bandwidth + rounds * each / RATE
