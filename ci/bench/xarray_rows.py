"""The rows of xarray: datasets and trees opened, loaded, averaged and written with each library's engine."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from layouts import KIB_64, MIB_1, MIB_4, dataset, temperature
from peers import Library
from run import Bench, directory_name, require_equal
from timing import Figure, Run, Task, alternate

OPEN = "xarray open"
COMPUTE = "xarray compute"
WRITE = "xarray write"
TREE = "xarray tree of 80 groups"

N_VARIABLES = (50, 500)
N_FIELDS = 4
LOAD, MEAN = "load, chunks=None", "mean over time, chunks={}"
PACKED = {"load packed int16, 64 KiB": (32, 32, 32), "load packed int16, 4 MiB": (512, 64, 64)}
"""Chunk shapes of packed values, by case."""
PACKING = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
SERIES = "series of one point, 64 KiB chunks"
MEAN_SMALL = "mean of 4096 chunks of 4 KiB, chunks={}"
MEAN_OWN = "mean of 4096 chunks of 4 KiB, the library's own open_dataset"
WRITE_SMALL, WRITE_LARGE = "50 small variables", "{} MiB, chunks of 4 MiB"
N_GROUPS = 80
TREE_OPEN, TREE_WRITE = "open", "write"

Compute: TypeAlias = Callable[[xr.Dataset], xr.Dataset | xr.DataArray]


def unconsolidated(n_variables: int) -> str:
    """Return the case of a dataset without consolidated metadata."""
    return f"{n_variables} variables, unconsolidated"


def _engines(bench: Bench) -> list[Library]:
    return [library for library in bench.complete if library.engine]


def xarray_open(bench: Bench) -> Iterator[Figure]:
    """Open a dataset of many variables, lazily with numpy and with dask, and unconsolidated."""
    n_times, n_lat, n_lon = shape = (12, 16, 16)
    values = temperature(n_times)[:, :n_lat, :n_lon]
    for n_variables in N_VARIABLES:
        cases: list[tuple[str, dict[str, Any]]] = [
            (f"{n_variables} variables, chunks=None", {}),
            (f"{n_variables} variables, chunks={{}}", {"chunks": {}}),
            (unconsolidated(n_variables), {"consolidated": False}),
        ]
        if not any(bench.wants(OPEN, case) for case, _ in cases):
            continue
        data = dataset({f"t{i:03}": values for i in range(n_variables)}, (1, *shape[1:]))
        path = bench.root / f"{n_variables}-variables"
        bench.reference.save(data, path)
        for case, options in cases:
            if bench.wants(OPEN, case):
                tasks = [_open_task(library, path, options, data) for library in _engines(bench)]
                yield from alternate(OPEN, case, tasks, bench.repeat)


def _open_task(library: Library, path: Path, options: dict[str, Any], expected: xr.Dataset) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        opened: list[xr.Dataset] = []

        def run() -> None:
            opened.append(xr.open_dataset(path, engine=library.engine, **{"chunks": None, **options}))

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
    if not any(bench.wants(COMPUTE, case) for case in (LOAD, MEAN)):
        return
    n_times = bench.source.shape[0] // N_FIELDS
    fields = {f"t{i}": bench.source[i * n_times : (i + 1) * n_times] for i in range(N_FIELDS)}
    data = dataset(fields, MIB_1)
    path = bench.root / "fields"
    bench.reference.save(data, path)
    if bench.wants(COMPUTE, LOAD):
        yield from _computed(bench, LOAD, path, None, lambda found: found.load(), data)
    if bench.wants(COMPUTE, MEAN):
        mean = data.mean("time")
        yield from _computed(bench, MEAN, path, {}, lambda found: found.mean("time").compute(), mean)


def xarray_packed(bench: Bench) -> Iterator[Figure]:
    """Load values that are packed into int16 as climate data are."""
    for case, chunks in PACKED.items():
        if not bench.wants(COMPUTE, case):
            continue
        data = dataset({"t": bench.source}, chunks)
        data["t"].encoding |= {
            "dtype": "int16",
            "scale_factor": 0.01,
            "add_offset": 273.15,
            "_FillValue": -32768,
        }
        path = bench.root / directory_name(case)
        bench.reference.save(data, path)
        with xr.open_dataset(path, engine=bench.reference.engine, chunks=None) as opened:
            expected = opened.load()
        yield from _computed(bench, case, path, None, lambda found: found.load(), expected)


def xarray_series(bench: Bench) -> Iterator[Figure]:
    """Read one point through time."""
    if not bench.wants(COMPUTE, SERIES):
        return
    data = dataset({"t": bench.source}, KIB_64)
    path = bench.root / "series"
    bench.reference.save(data, path)
    place = {"lat": bench.source.shape[1] // 3, "lon": bench.source.shape[2] // 3}
    yield from _computed(bench, SERIES, path, None, lambda found: found.isel(place).load(), data.isel(place))


def xarray_small_chunks(bench: Bench) -> Iterator[Figure]:
    """Average many small chunks with dask."""
    wanted = [case for case in (MEAN_SMALL, MEAN_OWN) if bench.wants(COMPUTE, case)]
    if not wanted:
        return
    values = np.resize(bench.source, (4096, 32, 32))
    data = dataset({"t": values}, (1, 32, 32))
    path = bench.root / "small-chunks-of-a-dataset"
    bench.reference.save(data, path)
    mean = data[["t"]].mean()
    if MEAN_SMALL in wanted:
        yield from _computed(bench, MEAN_SMALL, path, {}, _mean, mean)
    if MEAN_OWN in wanted:
        tasks = [
            _compute_task(library, lambda library=library: library.open_dataset(path), _mean, mean)
            for library in _engines(bench)
        ]
        yield from alternate(COMPUTE, MEAN_OWN, tasks, bench.repeat)


def _mean(data: xr.Dataset) -> xr.Dataset:
    return data[["t"]].mean().compute(scheduler="threads")


def _computed(
    bench: Bench, case: str, path: Path, chunks: dict[str, int] | None, compute: Compute, expected: xr.Dataset
) -> list[Figure]:
    tasks = [
        _compute_task(
            library,
            lambda library=library: xr.open_dataset(path, engine=library.engine, chunks=chunks),
            compute,
            expected,
        )
        for library in _engines(bench)
    ]
    return alternate(COMPUTE, case, tasks, bench.repeat)


def _compute_task(
    library: Library, opened: Callable[[], xr.Dataset], compute: Compute, expected: xr.Dataset
) -> Task:
    def run() -> xr.Dataset | xr.DataArray:
        with opened() as found:
            return compute(found)

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        with library.configured():
            if round_number < 0:
                found = run()
                for name, variable in expected.data_vars.items():
                    # Dask adds up block by block, so a mean may differ in its last bits.
                    if not np.allclose(found[name], variable, rtol=1e-5, atol=0, equal_nan=True):
                        raise RuntimeError(f"{library.label}: {name} differs from that of the source")
            yield run

    return Task(library.label, prepared)


def xarray_write(bench: Bench) -> Iterator[Figure]:
    """Write datasets in numpy arrays: many small variables, and a large one."""
    large = WRITE_LARGE.format(16 * bench.size_mib)
    if bench.wants(WRITE, WRITE_SMALL):
        values = temperature(12)[:, :16, :16]
        data = dataset({f"t{i:02}": values for i in range(50)}, (12, 16, 16))
        tasks = [_write_task(bench, library, data) for library in _engines(bench)]
        yield from alternate(WRITE, WRITE_SMALL, tasks, bench.repeat)
    if bench.wants(WRITE, large):
        data = dataset({"t": np.concatenate([bench.source] * 16)}, MIB_4)
        tasks = [_write_task(bench, library, data) for library in _engines(bench)]
        yield from alternate(WRITE, large, tasks, bench.repeat)


def _write_task(bench: Bench, library: Library, data: xr.Dataset) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        path = bench.written / directory_name(f"dataset {library.label} {round_number + 1}")
        try:
            with library.configured():
                yield lambda: library.save(data, path)
            if round_number < 0:
                _require_same(library, xr.load_dataset(path, engine="zarr"), data)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return Task(library.label, prepared)


def _require_same(library: Library, found: xr.Dataset, expected: xr.Dataset) -> None:
    for name, variable in expected.data_vars.items():
        require_equal(found[name], variable.values, f"{library.label}, {name}")


def xarray_tree(bench: Bench) -> Iterator[Figure]:
    """Write and open a tree of groups with three small variables in each."""
    values = temperature(12)[:, :16, :16]
    data = dataset({f"t{i}": values for i in range(3)}, (12, 16, 16))
    tree = xr.DataTree.from_dict({f"model{i // 8}/run{i}": data for i in range(N_GROUPS)})
    if bench.wants(TREE, TREE_WRITE):
        tasks = [_write_tree_task(bench, library, tree) for library in _engines(bench)]
        yield from alternate(TREE, TREE_WRITE, tasks, bench.repeat)
    if bench.wants(TREE, TREE_OPEN):
        path = bench.root / "tree"
        bench.reference.save_tree(tree, path)
        tasks = [_open_tree_task(library, path) for library in _engines(bench)]
        yield from alternate(TREE, TREE_OPEN, tasks, bench.repeat)


def _write_tree_task(bench: Bench, library: Library, tree: xr.DataTree) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        path = bench.written / directory_name(f"tree {library.label} {round_number + 1}")
        try:
            with library.configured():
                yield lambda: library.save_tree(tree, path)
            if round_number < 0:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = xr.open_datatree(path, engine="zarr")
                for node in tree.leaves:
                    _require_same(library, found[node.path].to_dataset(), node.to_dataset())
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return Task(library.label, prepared)


def _open_tree_task(library: Library, path: Path) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        opened: list[xr.DataTree] = []
        with library.configured():
            yield lambda: opened.append(xr.open_datatree(path, engine=library.engine, chunks=None))
        found = opened.pop()
        if round_number < 0 and len(found.leaves) != N_GROUPS:
            raise RuntimeError(f"{library.label}: the tree has {len(found.leaves)} leaves")
        found.close()

    return Task(library.label, prepared)


XARRAY_ROWS: tuple[Callable[[Bench], Iterator[Figure]], ...] = (
    xarray_open,
    xarray_compute,
    xarray_packed,
    xarray_series,
    xarray_small_chunks,
    xarray_write,
    xarray_tree,
)
