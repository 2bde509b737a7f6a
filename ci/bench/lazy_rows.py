"""The rows of xarray and dask: datasets opened, loaded and averaged, and lazy arrays of many chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xarray as xr
from layouts import MIB_1, Layout, dataset, temperature
from peers import AUTO, Builder, Library
from run import Bench, require_equal
from timing import Figure, Run, Task, alternate

OPEN = "xarray open"
COMPUTE = "xarray compute"
FROM_ZARR = "dask array of a million chunks"

N_VARIABLES = (50, 500)
N_FIELDS = 4
MILLION = ((1000, 1000, 1000), (10, 10, 10))
"""Shape and chunk shape of an array of 10^6 chunks, none of which is stored."""


def xarray_open(bench: Bench) -> Iterator[Figure]:
    """Open a consolidated dataset of many variables, lazily with numpy and with dask."""
    n_times, n_lat, n_lon = shape = (12, 16, 16)
    values = temperature(n_times)[:, :n_lat, :n_lon]
    for n_variables in N_VARIABLES:
        cases: list[tuple[str, dict[str, int] | None]] = [
            (f"{n_variables} variables, chunks=None", None),
            (f"{n_variables} variables, chunks={{}}", {}),
        ]
        if not any(bench.wants(OPEN, case) for case, _ in cases):
            continue
        data = dataset({f"t{i:03}": values for i in range(n_variables)}, (1, *shape[1:]))
        path = bench.root / f"{n_variables}-variables"
        bench.reference.save(data, path)
        for case, chunks in cases:
            if bench.wants(OPEN, case):
                tasks = [
                    _open_task(library, path, chunks, data) for library in bench.complete if library.engine
                ]
                yield from alternate(OPEN, case, tasks, bench.repeat)


def _open_task(library: Library, path: Path, chunks: dict[str, int] | None, expected: xr.Dataset) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        opened: list[xr.Dataset] = []

        def run() -> None:
            opened.append(xr.open_dataset(path, engine=library.engine, chunks=chunks))

        with library.configured():
            yield run
        with opened.pop() as found:
            if round_number < 0:
                name = list(expected)[-1]
                if set(found.variables) != set(expected.variables):
                    raise RuntimeError(f"{library.label}: the dataset has other variables than the source")
                require_equal(found[name], expected[name].values, f"{library.label}, {name}")

    return Task(library.label, prepared)


def xarray_compute(bench: Bench) -> Iterator[Figure]:
    """Load a dataset, and average it over time with dask; opening is part of both."""
    shape = (bench.source.shape[0] // N_FIELDS, *bench.source.shape[1:])
    n_times = shape[0]
    case_load, case_mean = "load, chunks=None", "mean over time, chunks={}"
    if not (bench.wants(COMPUTE, case_load) or bench.wants(COMPUTE, case_mean)):
        return
    fields = {f"t{i}": bench.source[i * n_times : (i + 1) * n_times] for i in range(N_FIELDS)}
    data = dataset(fields, MIB_1)
    path = bench.root / "fields"
    bench.reference.save(data, path)
    engines = [library for library in bench.complete if library.engine]
    if bench.wants(COMPUTE, case_load):
        tasks = [_compute_task(library, path, None, lambda found: found.load(), data) for library in engines]
        yield from alternate(COMPUTE, case_load, tasks, bench.repeat)
    if bench.wants(COMPUTE, case_mean):
        mean = data.mean("time")
        tasks = [
            _compute_task(library, path, {}, lambda found: found.mean("time").compute(), mean)
            for library in engines
        ]
        yield from alternate(COMPUTE, case_mean, tasks, bench.repeat)


def _compute_task(
    library: Library,
    path: Path,
    chunks: dict[str, int] | None,
    compute: Callable[[xr.Dataset], xr.Dataset],
    expected: xr.Dataset,
) -> Task:
    def run() -> xr.Dataset:
        with xr.open_dataset(path, engine=library.engine, chunks=chunks) as opened:
            return compute(opened)

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        with library.configured():
            if round_number < 0:
                found = run()
                for name, variable in expected.data_vars.items():
                    # Dask adds up block by block, so a mean may differ in its last bits.
                    if not np.allclose(found[name], variable, rtol=1e-5, atol=0):
                        raise RuntimeError(f"{library.label}: {name} differs from that of the source")
            yield run

    return Task(library.label, prepared)


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
