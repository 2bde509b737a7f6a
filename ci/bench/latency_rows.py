"""The rows over a link with latency: what counts is how many requests wait for each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr
from layouts import Layout, dataset, temperature
from peers import Library
from run import EVERYTHING, Bench, require_equal
from slow_link import served
from timing import Figure, Run, Task, alternate

LATENCY = "20 ms latency"
DELAY_S = 0.02
OPEN_CONSOLIDATED = "xarray open, consolidated, 50 variables, 6 coordinates"
OPEN_AND_READ = "xarray open and load, 50 variables of 4 chunks"
FULL_READS = {
    "full read, zstd, 64 KiB": "zstd, 64 KiB",
    "full read, zstd, 64 KiB in 16 MiB shards": "zstd, 64 KiB in 16 MiB shards",
    "full read, zstd, 4 MiB": "zstd, 4 MiB",
}
"""The layouts that are read, by case."""
CASES = (OPEN_CONSOLIDATED, OPEN_AND_READ, *FULL_READS)


def latency(bench: Bench) -> Iterator[Figure]:
    """Open datasets and read arrays over HTTP from a server that answers after 20 ms."""
    wanted = [case for case in CASES if bench.wants(LATENCY, case)]
    if not wanted:
        return
    data = _dataset()
    bench.reference.save(data, bench.root / "remote")
    layouts = {case: _layout(bench, name) for case, name in FULL_READS.items() if case in wanted}
    paths = {case: bench.store(layout) for case, layout in layouts.items()}
    with served(bench.root, DELAY_S) as url:
        for case in wanted:
            if case in layouts:
                place = f"{url}/{paths[case].name}"
                tasks = [_read_task(each, place, bench) for each in bench.remote]
            else:
                engines = [each for each in bench.remote if each.engine]
                load = case == OPEN_AND_READ
                tasks = [_open_task(each, f"{url}/remote", data, load=load) for each in engines]
            yield from alternate(LATENCY, case, tasks, bench.repeat)


def _layout(bench: Bench, name: str) -> Layout:
    return next(layout for layout in bench.layouts if layout.name == name)


def _dataset() -> xr.Dataset:
    """50 variables, and coordinates along three dimensions and three more along time."""
    shape = (48, 16, 16)
    values = temperature(shape[0])[:, : shape[1], : shape[2]]
    data = dataset({f"t{i:02}": values for i in range(50)}, (12, *shape[1:]))
    steps = np.arange(shape[0])
    return data.assign_coords({f"c{i}": (f"c{i}", steps + i) for i in range(6 - len(data.indexes))})


def _open_task(library: Library, url: str, expected: xr.Dataset, *, load: bool) -> Task:
    def run() -> xr.Dataset:
        found = xr.open_dataset(library.remote(url), engine=library.engine, chunks=None)
        return found.load() if load else found

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        with library.configured():
            if round_number < 0:
                found = run()
                if set(found.variables) != set(expected.variables):
                    raise RuntimeError(f"{library.label}: the dataset has other variables than the source")
                for name in expected.data_vars:
                    require_equal(found[name], expected[name].values, f"{library.label}, {name}")
            yield run

    return Task(library.label, prepared)


def _read_task(library: Library, url: str, bench: Bench) -> Task:
    def run() -> Any:
        return library.reader(library.remote(url))(EVERYTHING)

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        with library.configured():
            if round_number < 0:
                require_equal(run(), bench.source, library.label)
            yield run

    return Task(library.label, prepared)
