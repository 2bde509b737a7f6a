"""``advise``: compares layouts of an array for the ways in which it is read and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xzarr3.advice.imagined import TARGETS, ImaginedStore, Target, stored_size
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

_RATIO = 2.0  # Bytes of the elements for each stored byte, where there is no sample to tell.
_RATE = 1e9
"""Bytes of elements that one core usually decodes or encodes in a second, taken for every compressor. None is
measured, so that the same data get the same advice on a busy machine."""
_MANY = 10_000  # Units of a read that are taken for whole ones: so bad a layout need not be told better.
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
    data : path, URL, Store, Group, Array, xarray.Dataset or xarray.DataArray, optional
        What is to be stored. Of a group or a dataset the largest variable decides that is no coordinate of
        its only dimension. The advice is for all variables beside it with its dimensions. It is about the
        values that are stored, packed if the variable's encoding packs them. A sample of them, of 8 MiB
        before they are packed, is encoded by the filters and compressors that they have, which the advice
        keeps.
    shape, dtype : optional
        Given in place of data.
    access : mapping of str to float, optional
        How often each pattern happens: ``"map"``, ``"series"``, ``"region"``, ``"scan"``, ``"sample"``,
        ``"append"``. A pattern of one's own is a weight and a selection: ``{"east": (0.5, (..., slice(0,
        90)))}``. By default maps, series and scans happen equally often, or maps and regions where there is
        no time. The printed advice says what each of them reads.
    target : {"s3", "disk"}, Store or Target, optional
        Where the data are kept. A store that answers one request at a time costs what a disk does, any other
        what S3 does. By default where they are now: in the store of an array, on the disk or the object store
        that xarray has read them from, or on S3 where nothing tells.
    dims : sequence of str, optional
        Names of the dimensions. Time is found by its name, or is the first of three or more dimensions, or of
        dimensions without names.

    Returns
    -------
    Advice
        Its requests and bytes are those that :meth:`xzarr3.Array.explain` gives for such an array. Its times
        are estimates from the costs of the target and one usual speed for all compressors. The present layout
        of data that are in a Zarr store, or that were read from one, is the best if none is more than 10 %
        better.

    Raises
    ------
    SelectionError
        If a pattern is not known, or needs time, which no dimension is.
    TypeError
        If there is neither data nor shape and dtype, or both.
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
    array, shape = given.array, given.array.shape
    if not shape or not math.prod(shape):
        raise ArgumentError(
            f"shape {shape} has no values to divide among chunks; give an array with values and dimensions"
        )
    place = _target(given.place if target is None else target)
    wanted = accesses(access, shape, given.roles)
    found = layouts(shape, array.zdtype.item_size, given.roles, wanted)
    made = [
        _judged(name, Settings(*lengths).metadata(array, array.format), given, wanted, place)
        for lengths, name in found.items()
    ]
    columns = zip(*(each.predictions for each in made), strict=True)
    least = [min(each.seconds for each in column) for column in columns]
    candidates = sorted((_scored(each, least) for each in made), key=lambda each: (each.score, each.files))
    present = _judged("present", array.metadata, given, wanted, place) if given.is_present else None
    return Advice(
        shape, array.dtype, place, tuple(candidates), None if present is None else _scored(present, least),
        given.ratio, given.encodings, {each.name: each.meaning for each in wanted},
    )  # fmt: skip


def _target(target: str | Store | Target) -> Target:
    if isinstance(target, Target):
        return target
    if isinstance(target, Store):
        return TARGETS["s3" if target.concurrency > 1 else "disk"]
    if not isinstance(target, str) or target not in TARGETS:
        raise ArgumentError(f"target={target!r}; {one_of(target, TARGETS)}, or a store")
    return TARGETS[target]


def _scored(one: Candidate, least: Sequence[float]) -> Candidate:
    """A layout with its score, by the fewest seconds of each access with any layout."""
    pairs = zip(one.predictions, least, strict=True)
    return replace(one, score=sum(a.weight * (a.seconds + _CALL) / (b + _CALL) for a, b in pairs))


def _judged(
    name: str, metadata: ArrayMetadata, given: Subject, wanted: Sequence[Access], target: Target
) -> Candidate:
    """A layout with what each access costs; without a score."""
    ratio = _RATIO if given.ratio is None else given.ratio
    array = ImaginedStore(metadata, target, ratio).array
    files, size = array.nshards, stored_size(metadata.chain, ratio)
    predictions = tuple(_predicted(array, each, size, target) for each in wanted)
    return Candidate(name, array.chunks, array.shards, files, files * size, predictions)


def _predicted(array: Array, access: Access, size: int, target: Target) -> Prediction:
    """What an access costs, where each stored unit has so many bytes."""
    chain, plan = array.metadata.chain, array.plan(access.selection)
    shard = chain.shard
    each = (chain if shard is None else shard.inner).spec.nbytes
    used = math.prod(plan.shape) * array.dtype.itemsize
    is_whole = (shard is None and not chain.is_plain) or used == array.nbytes or plan.number > _MANY
    if access.grows is not None or is_whole:  # Explained, it would take a while to say the same.
        # An append also reads the units that it goes on with: all, unless its time begins new ones.
        times = 1 if access.grows is None else 2 - 1 / array.metadata.chunk_grid.largest[access.grows]
        requests, moved = round(plan.number * times), round(plan.number * times * size)
        chunks = requests * (1 if shard is None else shard.number)
    else:
        found = array.explain(access.selection, threads=1)
        requests, moved, chunks, used = found.requests, found.bytes_moved, found.chunks, found.bytes_used
    # Requests wait for answers together, bytes share the bandwidth, and one core works on a chunk.
    seconds = math.ceil(requests / target.at_once) * target.latency + moved / target.bandwidth
    seconds += math.ceil(chunks / available_threads()) * each / _RATE
    return Prediction(access.name, access.weight, requests, moved, used, chunks * each, seconds)
