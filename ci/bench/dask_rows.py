"""The rows of dask: arrays of many chunks averaged, sliced and written, and memory where it is bounded."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.callbacks import Callback
from layouts import ZSTD, Layout
from peers import AUTO, UNITS, Builder
from run import Bench, require_equal
from timing import LIBRARY_ERRORS, Figure, Run, Task, alternate

import xzarr3

FROM_ZARR = "dask array of a million chunks"
MEAN = "dask: mean of 4096 chunks of 4 KiB"
NO_OP = "the same graph of no-op tasks"
SLICE = "dask: slice of an array of a million chunks"
SLICED = "x[5, 100:900, 200:210]"
BUILD_WRITE = "dask: graph of a write of a million units"
BUILT = "aligned blocks"
WRITE = "dask: write of blocks of (300, 300) into shards of (512, 512)"
MISALIGNED, RECHUNKED = "store", "rechunk, then store"
LIVE = "dask: data alive during that write"
STREAM = "dask: memory of each of two workers while 2 GiB are copied"
STREAMED = "the larger one"

MILLION = ((1000, 1000, 1000), (10, 10, 10))
"""Shape and chunk shape of an array of 10^6 chunks, none of which is stored."""
SMALL_CHUNKS = ((64 * 32, 64 * 32), (32, 32))
"""Shape and chunk shape of 4096 chunks of 4 KiB."""
BLOCKS, SHARDS, INNER = (300, 300), (512, 512), (128, 128)
SIDE = 12288
"""Side of the array that is written, of which a bench of full size writes all."""
STREAM_GIB = 2
FULL_SIZE_MIB = 64


def dask_array(bench: Bench) -> Iterator[Figure]:
    """Build a lazy dask array of an array of a million chunks."""
    path = bench.root / "million"
    bench.reference.writer(path, MILLION[0], Layout("a million chunks", MILLION[1]))
    builders = {library.label: library.builders(path) for library in bench.complete}
    cases = dict.fromkeys(case for by_case in builders.values() for case in by_case)
    for case in cases:
        if bench.wants(FROM_ZARR, case):
            tasks = [
                _build_task(label, by_case[case], case)
                for label, by_case in builders.items()
                if case in by_case
            ]
            yield from alternate(FROM_ZARR, case, tasks, bench.repeat)


def _build_task(label: str, build: Builder, case: str) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        if round_number < 0 and case != AUTO:
            n_blocks = build().npartitions
            if n_blocks != 10**6:
                raise RuntimeError(f"{label}: built {n_blocks} blocks for a million chunks")
        yield build

    return Task(label, prepared)


def many_chunks(bench: Bench) -> Iterator[Figure]:
    """Average an array of many small chunks with the threaded scheduler; building the graph is part of it."""
    cases = [case for case in (UNITS, AUTO, NO_OP) if bench.wants(MEAN, case)]
    if not cases:
        return
    path = bench.root / "small-chunks"
    shape, chunks = SMALL_CHUNKS
    values = np.resize(bench.source, shape)
    bench.reference.writer(path, shape, Layout("small", chunks))(values)
    tasks = []
    for library in bench.complete:
        builders = library.builders(path)
        by_case: dict[str, Builder] = {case: builders[case] for case in (UNITS, AUTO) if case in builders}
        if library is bench.libraries[0]:
            by_case[NO_OP] = lambda: _no_op(shape, chunks)
        tasks += [
            _mean_task(library.label, case, build, float(values.mean(dtype="f8")))
            for case, build in by_case.items()
            if case in cases
        ]
    yield from alternate(MEAN, "", tasks, bench.repeat)


def _no_op(shape: tuple[int, ...], chunks: tuple[int, ...]) -> da.Array:
    """A graph of as many tasks as there are chunks, each of which returns an array that is there already."""
    block = np.zeros(chunks, "f4")
    return da.map_blocks(
        lambda block_info=None: block,
        chunks=da.core.normalize_chunks(chunks, shape),
        dtype="f4",
        meta=block[:0, :0],
    )


def _mean_task(label: str, case: str, build: Builder, expected: float) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        def run() -> float:
            return float(build().mean(dtype="f8").compute(scheduler="threads"))

        if round_number < 0 and case != NO_OP and not np.isclose(run(), expected, rtol=1e-9, atol=0):
            raise RuntimeError(f"{label}: another mean than that of the source")
        yield run

    return Task(label, prepared, case=case)


def slice_of_many(bench: Bench) -> Iterator[Figure]:
    """Slice a lazy array of a million chunks."""
    if not bench.wants(SLICE, SLICED):
        return
    path = bench.root / "million-to-slice"
    bench.reference.writer(path, MILLION[0], Layout("a million chunks", MILLION[1]))
    tasks = []
    for library in bench.complete:
        build = library.builders(path).get(UNITS)
        if build is not None:
            tasks.append(_slice_task(library.label, build()))
    yield from alternate(SLICE, SLICED, tasks, bench.repeat)


def _slice_task(label: str, array: da.Array) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        yield lambda: array[5, 100:900, 200:210]

    return Task(label, prepared)


def million_units(bench: Bench) -> Iterator[Figure]:
    """Build the graph of a write of a million units whose blocks are these units."""
    if not bench.wants(BUILD_WRITE, BUILT):
        return

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        target = xzarr3.create_array(
            xzarr3.MemoryStore(), shape=(10_000, 10_000), chunks=(10, 10), dtype="f4"
        )
        source = da.zeros((10_000, 10_000), chunks=(10, 10), dtype="f4")
        yield lambda: xzarr3.store(source, target, compute=False)

    yield from alternate(BUILD_WRITE, BUILT, [Task("xzarr3", prepared)], bench.repeat)


class _Live(Callback):  # type: ignore[misc]
    """The largest number of bytes that a scheduler held at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def _posttask(
        self, key: object, value: object, dsk: object, state: Mapping[str, Any], worker: object
    ) -> None:
        found = state["cache"].values()
        self.most = max(self.most, sum(each.nbytes for each in found if isinstance(each, np.ndarray)))


def misaligned_write(bench: Bench) -> Iterator[Figure]:
    """Write blocks into shards that they do not line up with."""
    side = min(SIDE, SIDE * bench.size_mib // FULL_SIZE_MIB)
    wanted = [case for case in (MISALIGNED, RECHUNKED) if bench.wants(WRITE, case)]
    if wanted:
        tasks = [_write_task(bench, case, side) for case in wanted]
        yield from alternate(WRITE, "", tasks, bench.repeat)
    for case in (MISALIGNED, RECHUNKED):
        if bench.wants(LIVE, case):
            with _Live() as live:
                _write(bench, case, side)
            yield Figure(LIVE, case, "xzarr3", (100 * live.most / (4 * side**2),), "% of the array")


def _values(block_info: Any = None) -> Any:
    place = block_info[None]["array-location"]
    rows, columns = (np.arange(start, stop, dtype="f4") for start, stop in place)
    return rows[:, None] + columns / 4


def _written(bench: Bench, side: int) -> tuple[Path, xzarr3.Array]:
    path = bench.written / f"misaligned-{uuid.uuid4().hex}"
    return path, xzarr3.create_array(
        path, shape=(side, side), shards=SHARDS, chunks=INNER, dtype="f4", compressors=[ZSTD]
    )


def _source(case: str, side: int) -> da.Array:
    source = da.map_blocks(_values, chunks=da.core.normalize_chunks(BLOCKS, (side, side)), dtype="f4")
    return source.rechunk(SHARDS) if case == RECHUNKED else source


def _write(bench: Bench, case: str, side: int) -> None:
    path, target = _written(bench, side)
    xzarr3.store(_source(case, side), target, scheduler="threads")
    shutil.rmtree(path)


def _write_task(bench: Bench, case: str, side: int) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        path, target = _written(bench, side)
        yield lambda: xzarr3.store(_source(case, side), target, scheduler="threads")
        if round_number < 0:
            expected = np.arange(side, dtype="f4")[:, None] + np.arange(side, dtype="f4") / 4
            require_equal(target[...], expected, case)
        shutil.rmtree(path)

    return Task("xzarr3", prepared, case=case)


def streamed(bench: Bench) -> Iterator[Figure]:
    """Copy an array larger than the memory that is allowed through a cluster of two workers."""
    if not bench.wants(STREAM, STREAMED):
        return
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        yield Figure(STREAM, STREAMED, "xzarr3", note=str(error), unit="MiB")
        return
    rows = STREAM_GIB * 2**30 * bench.size_mib // FULL_SIZE_MIB // (4 * 8192)
    path = bench.written / "streamed"
    source = xzarr3.create_array(path / "source", shape=(rows, 8192), chunks=(512, 512), dtype="f4")
    for start in range(0, rows, 4096):
        stop = min(start + 4096, rows)
        source[start:stop] = np.arange(start, stop, dtype="f4")[:, None] + np.arange(8192, dtype="f4") / 4
    target = xzarr3.create_array(
        path / "target", shape=source.shape, shards=(1024, 1024), chunks=(256, 256), dtype="f4"
    )
    try:
        with (
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",
                memory_limit=0,
                silence_logs=50,
            ) as cluster,
            Client(cluster) as client,
        ):
            xzarr3.store(xzarr3.from_zarr(source) + np.float32(1), target)
            peaks = client.run(_peak_mib).values()
        for start in range(0, rows, 4096):
            require_equal(target[start : start + 4096], source[start : start + 4096] + 1, "the copy")
        yield Figure(STREAM, STREAMED, "xzarr3", (max(peaks),), "MiB")
    except LIBRARY_ERRORS as error:
        yield Figure(STREAM, STREAMED, "xzarr3", note=f"{type(error).__name__}: {error}", unit="MiB")
    finally:
        shutil.rmtree(path)


def _peak_mib() -> float:
    """The largest resident set this process ever had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the platform does not tell the largest resident set of a process")


DASK_ROWS: tuple[Callable[[Bench], Iterator[Figure]], ...] = (
    dask_array,
    many_chunks,
    slice_of_many,
    million_units,
    misaligned_write,
    streamed,
)
