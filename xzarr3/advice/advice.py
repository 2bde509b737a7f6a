"""``advise``: compares layouts of an array for the ways in which it is read and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.advice.compression import SAMPLE_BYTES, Compression, assumed, compressions, measured
from xzarr3.advice.imagined import TARGETS, Target, encoded_size, imagined, shard_size
from xzarr3.advice.layouts import Layout, layouts
from xzarr3.advice.patterns import Access, Roles, accesses, roles
from xzarr3.api import create_array
from xzarr3.arrays import Array
from xzarr3.display import html
from xzarr3.display.chart import bars
from xzarr3.display.shown import Description, Shown
from xzarr3.display.units import size
from xzarr3.errors import one_of, printable
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.parallel import available_threads
from xzarr3.stores import MemoryStore, Store

_SHOWN = 6  # Layouts in the printed table.
_NEARLY = 1.25


@dataclass(frozen=True)
class Prediction:
    """What one access costs.

    Parameters
    ----------
    access : str
    weight : float
        Share of all accesses.
    requests : int
        Requests of the read; for an append, the units that are written and those that are read before.
    bytes_moved, bytes_used : int
    decoded : int
        Bytes of elements that are decoded or encoded.
    seconds : float
        An estimate from the costs of the target.
    """

    access: str
    weight: float
    requests: int
    bytes_moved: int
    bytes_used: int
    decoded: int
    seconds: float


@dataclass(frozen=True)
class Candidate:
    """One layout and what the accesses cost with it.

    Parameters
    ----------
    name : str
    chunks : tuple of int
    shards : tuple of int or None
    compression : Compression
    files : int
        Number of stored units.
    stored : int
        Bytes of all units.
    task_bytes : int
        Memory of a dask task that reads one unit: its elements and its stored bytes.
    predictions : tuple of Prediction
    score : float
        How many times longer accesses take than with the layouts that suit each of them best, on average. A
        score of 1 means that no other layout is faster for anything.
    """

    name: str
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    compression: Compression
    files: int
    stored: int
    task_bytes: int
    predictions: tuple[Prediction, ...]
    score: float = math.inf

    def to_json(self) -> dict[str, JSON]:
        """All of it as JSON."""
        return {
            "name": self.name,
            "chunks": list(self.chunks),
            "shards": None if self.shards is None else list(self.shards),
            "compressor": self.compression.name,
            "files": self.files,
            "stored": self.stored,
            "task_bytes": self.task_bytes,
            "score": round(self.score, 3),
            "accesses": [{**vars(each)} for each in self.predictions],
        }


@dataclass(frozen=True)
class Advice(Shown):
    """Layouts of an array, the best first; made by :func:`xzarr3.advise`.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    target : Target
    candidates : tuple of Candidate
        The layouts by score, without the present one.
    present : Candidate or None
        The layout that the array has now.
    compressions : tuple of Compression
        What compressors do to a sample of the data.
    variables : tuple of str
        The variables of the dataset that the advice is for.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    target: Target
    candidates: tuple[Candidate, ...]
    present: Candidate | None
    compressions: tuple[Compression, ...]
    variables: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate:
        """The layout with the lowest score."""
        return self.candidates[0]

    def options(self) -> dict[str, Any]:
        """``chunks``, ``shards`` and ``compressors`` of the best layout, for :func:`xzarr3.create_array`."""
        best = self.best
        return {
            "chunks": best.chunks,
            "shards": best.shards,
            "compressors": None if best.compression.compressor is None else [best.compression.compressor],
        }

    def encoding(self) -> dict[str, dict[str, Any]]:
        """The options of the best layout for each variable, for :func:`xzarr3.to_zarr`."""
        options = {name: value for name, value in self.options().items() if name != "shards" or value}
        return {name: dict(options) for name in self.variables}

    def to_json(self) -> dict[str, JSON]:
        """All of it as JSON."""
        return {
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "target": self.target.name,
            "present": None if self.present is None else self.present.to_json(),
            "candidates": [each.to_json() for each in self.candidates],
            "compressors": [
                {
                    "name": each.name,
                    "ratio": round(each.ratio, 3),
                    "encode": round(each.encode),
                    "decode": round(each.decode),
                    "measured": each.is_measured,
                }
                for each in self.compressions
            ],
        }

    def _describe(self) -> Description:
        return Description(str(self), self._html)

    def _html(self) -> str:
        shown = [*filter(None, [self.present]), *self.candidates[:_SHOWN]]
        lengths = [
            (f"{each.name} {_lengths(each.chunks)}", [one.weight * one.seconds for one in each.predictions])
            for each in shown
        ]
        measured = [(each.name, _compressed(each)) for each in self.compressions]
        return html.box(
            html.title("xzarr3.Advice", ", ".join(self.variables), f"{_lengths(self.shape)} {self.dtype}"),
            html.note(f"seconds of an average access on {self.target.name}"),
            bars(lengths, [each.access for each in self.best.predictions]),
            html.note("time and requests of each access"),
            html.table([[cell.removesuffix(" requests") for cell in row] for row in self.rows()], left=4),
            html.folded(html.dim("compression of a sample"), html.facts(measured)),
        )

    def rows(self) -> list[tuple[str, ...]]:
        """The printed table: a heading, the present layout if there is one, then the best ones."""
        first = self.candidates[0].predictions
        heading = ("layout", "chunks", "shards", "codec", "files", "score", *(each.access for each in first))
        shown = [*filter(None, [self.present]), *self.candidates[:_SHOWN]]
        return [heading, *(self._row(each) for each in shown)]

    def _row(self, one: Candidate) -> tuple[str, ...]:
        return (
            one.name,
            _lengths(one.chunks),
            "-" if one.shards is None else _lengths(one.shards),
            one.compression.name,
            f"{one.files:,}",
            f"{one.score:.3g}",
            *(f"{duration(each.seconds)}, {each.requests:,} requests" for each in one.predictions),
        )

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = "\n".join(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
        codecs = ", ".join(
            f"{each.name} {each.ratio:.3g}" + ("" if each.is_measured else " (assumed)")
            for each in self.compressions
        )
        where = f" of {', '.join(map(printable, self.variables))}" if self.variables else ""
        return (
            f"layouts{where} for {_lengths(self.shape)} {self.dtype} on {self.target.name}; a score of 2 "
            f"takes twice as long as the layouts that suit each access best\n{table}\ncompression: {codecs}"
        )


def advise(
    data: Any = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    access: Mapping[str, Any] | None = None,
    target: str | Store | Target = "s3",
    dims: Sequence[str | None] | None = None,
) -> Advice:
    """Compare layouts of an array for the ways in which it is read and written.

    Parameters
    ----------
    data : Array, xarray.Dataset, xarray.DataArray, dask or numpy array, optional
        What is to be stored. Of a dataset, the largest variable decides, and the advice is for all variables
        with its dimensions. A sample of the data, 8 MiB, is compressed.
    shape, dtype : optional
        Given in place of data.
    access : mapping of str to float, optional
        How often each pattern happens: ``"map"``, ``"series"``, ``"region"``, ``"scan"``, ``"sample"``,
        ``"append"``. A pattern of one's own is a weight and a selection: ``{"east": (0.5, (..., slice(0,
        90)))}``. By default maps and series happen equally often.
    target : {"s3", "disk"}, Store or Target
        Where the data are kept.
    dims : sequence of str, optional
        Names of the dimensions; time is found by its name.

    Returns
    -------
    Advice
        Its requests and bytes are those that :meth:`xzarr3.Array.explain` gives for such an array. Its times
        are estimates from the costs of the target.

    Raises
    ------
    SelectionError
        If a pattern is not known.
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
    given = _given(data, shape, dtype, dims)
    if not math.prod(given.shape) or not given.shape:
        raise ValueError(
            f"shape {given.shape} has no values to divide among chunks; give an array with values and "
            "dimensions"
        )
    place = _target(target)
    found = roles(given.shape, given.names)
    wanted = accesses(access, given.shape, found)
    tried = compressions(given.sample)
    chosen = _chosen(tried, place)
    made = [
        _candidate(layout, given, chosen, wanted, found, place)
        for layout in layouts(given.shape, given.dtype.itemsize, found, wanted, place)
    ]
    present = None if given.array is None else _present(given, wanted, found, place)
    made, present = _scored(made, present)
    return Advice(given.shape, given.dtype, place, tuple(made), present, tuple(tried), given.variables)


@dataclass(frozen=True)
class _Given:
    """What the advice is about."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    names: tuple[str | None, ...]
    sample: AnyArray | None = None
    array: Array | None = None
    variables: tuple[str, ...] = ()


def _given(data: Any, shape: Sequence[int] | None, dtype: Any, dims: Sequence[str | None] | None) -> _Given:
    if data is None:
        if shape is None or dtype is None:
            raise TypeError("nothing to advise on; give an array or a dataset, or shape= and dtype=")
        return _Given(tuple(shape), np.dtype(dtype), tuple(dims or ()))
    variables: tuple[str, ...] = ()
    if hasattr(data, "data_vars"):
        sizes = {name: variable.nbytes for name, variable in data.data_vars.items() if variable.ndim}
        if not sizes:
            raise TypeError(
                "the dataset has no data variable with a dimension; give an array or shape= and dtype="
            )
        largest = data[max(sizes, key=sizes.__getitem__)]
        variables = tuple(name for name in sizes if data[name].dims == largest.dims)
        data = largest
    elif isinstance(data, Array):
        variables = (data.path.rpartition("/")[2],) if data.path else ()
    elif hasattr(data, "name") and hasattr(data, "dims"):
        variables = (data.name,) if data.name else ()
    if not (hasattr(data, "shape") and hasattr(data, "dtype")):
        raise TypeError(
            f"cannot advise on {type(data).__name__}; accepted: an array, a dataset, or shape= and dtype="
        )
    array = data if isinstance(data, Array) else None
    names = dims or getattr(data, "dims", None) or (array.dimension_names if array is not None else None)
    return _Given(
        tuple(data.shape), np.dtype(data.dtype), tuple(names or ()), _sample(data), array, variables
    )


def _sample(data: Any) -> AnyArray | None:
    """At most 8 MiB from the middle of the data, as whole as the dimensions allow."""
    lengths = list(data.shape)
    itemsize = np.dtype(data.dtype).itemsize
    if not math.prod(lengths) or np.dtype(data.dtype).hasobject:
        return None
    for axis in range(len(lengths)):
        over = math.prod(lengths) * itemsize / SAMPLE_BYTES
        if over <= 1:
            break
        lengths[axis] = max(1, int(lengths[axis] / over))
    index = tuple(
        slice((size - length) // 2, (size - length) // 2 + length)
        for size, length in zip(data.shape, lengths, strict=True)
    )
    return np.ascontiguousarray(data[index])


def _target(target: str | Store | Target) -> Target:
    if isinstance(target, Target):
        return target
    if isinstance(target, Store):
        return Target.of(target)
    if target not in TARGETS:
        raise ValueError(f"target={target!r}; {one_of(target, TARGETS)}, or a store")
    return TARGETS[target]


def _chosen(tried: Sequence[Compression], target: Target) -> Compression:
    """The compressor that stores least, of those whose elements arrive nearly as soon as the fastest ones."""
    threads = available_threads()
    times = [1 / each.ratio / target.bandwidth + 1 / each.decode / threads for each in tried]
    good = [each for each, seconds in zip(tried, times, strict=True) if seconds <= _NEARLY * min(times)]
    return max(good, key=lambda each: each.ratio)


def _candidate(
    layout: Layout,
    given: _Given,
    compression: Compression,
    wanted: Sequence[Access],
    found: Roles,
    target: Target,
) -> Candidate:
    made = create_array(
        MemoryStore(),
        shape=given.shape,
        dtype=given.dtype,
        chunks=layout.chunks,
        shards=layout.shards,
        compressors=None if compression.compressor is None else [compression.compressor],
    )
    return _judged(layout.name, made.metadata, compression, wanted, found, target)


def _present(given: _Given, wanted: Sequence[Access], found: Roles, target: Target) -> Candidate | None:
    """The layout that an array has, with its compressor measured on a sample."""
    array = given.array
    if array is None or (array._shard is not None and array._shard.inner.shard is not None):
        return None
    compressors = list(array.compressors) or None
    name = "+".join(codec.name for codec in array.compressors) or "none"
    if given.sample is None:
        compression = assumed(name, compressors)
    else:
        compression = measured(given.sample, name, compressors)
    return _judged("present", array.metadata, compression, wanted, found, target)


def _scored(made: Sequence[Candidate], present: Candidate | None) -> tuple[list[Candidate], Candidate | None]:
    """The candidates with their scores, the best first; and the present layout with its score."""
    least = [min(each.predictions[at].seconds for each in made) for at in range(len(made[0].predictions))]

    def scored(one: Candidate) -> Candidate:
        terms = (
            each.weight * each.seconds / max(best, 1e-9)
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
        _append(array, each, lengths, unit, size, found, compression, target)
        if each.selection is None
        else _read(array, each, files, size, compression, target)
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


def _read(
    array: Array, access: Access, files: int, size: int, compression: Compression, target: Target
) -> Prediction:
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
    seconds = _seconds(requests, moved, chunks * each, compression.decode, target)
    return Prediction(access.name, access.weight, requests, moved, used, chunks * each, seconds)


def _append(
    array: Array,
    access: Access,
    lengths: Sequence[int],
    unit: int,
    size: int,
    found: Roles,
    compression: Compression,
    target: Target,
) -> Prediction:
    """One more time: each unit at the end is written, and first read unless the time begins a new one."""
    counts = array.metadata.chunk_grid.counts(array.shape)
    units = math.prod(count for axis, count in enumerate(counts) if axis != found.time)
    again = (lengths[found.time] - 1) / lengths[found.time]  # Share of times that begin no unit.
    requests = round(units * (1 + again))
    moved = round(units * size * (1 + again))
    used = array.nbytes // max(1, array.shape[found.time])
    work = round(units * unit * (1 + again))
    seconds = _seconds(requests, moved, work, compression.encode, target)
    return Prediction(access.name, access.weight, requests, moved, used, work, seconds)


def _seconds(requests: int, moved: int, coded: int, rate: float, target: Target) -> float:
    """How long an access takes: requests wait for answers together, bytes share the bandwidth."""
    waits = math.ceil(requests / target.at_once) * target.latency
    return waits + moved / target.bandwidth + coded / rate / available_threads()


def _compressed(one: Compression) -> str:
    """What a compressor does, for people to read."""
    if not one.is_measured:
        return f"{one.ratio:.3g} times smaller (assumed)"
    speeds = f"decodes {size(round(one.decode))}/s, encodes {size(round(one.encode))}/s"
    return f"{one.ratio:.3g} times smaller, {speeds}"


def duration(seconds: float) -> str:
    """A time for people to read.

    Examples
    --------
    >>> duration(0.0123), duration(75)
    ('12 ms', '75 s')
    """
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"


def _lengths(lengths: Sequence[int]) -> str:
    return " x ".join(map(str, lengths)) or "scalar"
