"""The rows of the bench: each function measures one row in all its cases and yields the figures."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import xarray as xr
from bare import Selection
from layouts import KIB_64, LAYOUTS, MIB_1, SEED, STEPS_PER_MIB, Float32Array, Layout, dataset, temperature
from memory import can_measure, measured
from peers import AUTO, Builder, Library, Reader
from timing import LIBRARY_ERRORS, Figure, Run, Task, alternate, can_count_calls, count_calls

FULL_READ = "full read"
ONE_CHUNK = "one chunk"
POINT = "one point through time"
FULL_WRITE = "full write"
MEMORY = "peak memory of a full read"
CALLS = "function calls per further chunk"
OPEN = "xarray open"
COMPUTE = "xarray compute"
FROM_ZARR = "dask array of a million chunks"

EVERYTHING: Selection = (slice(None), slice(None), slice(None))
CHUNKS_PER_SAMPLE = 16
POINTS_PER_SAMPLE = 4
N_VARIABLES = (50, 500)
N_FIELDS = 4
MILLION = ((1000, 1000, 1000), (10, 10, 10))
"""Shape and chunk shape of an array of 10^6 chunks, none of which is stored."""

Places: TypeAlias = Callable[[Layout, int], list[Selection]]


@dataclass
class Bench:
    """One run: where it works, on what, with which libraries, and how often.

    Attributes
    ----------
    root : Path
        Directory for the stores.
    libraries : list of Library
        The libraries compared.
    size_mib : int
        Size of the field in MiB.
    repeat : int
        Number of timed rounds of a case.
    only : str
        Part of "row: case" that a case must have to be measured; empty for all.
    compression : dict
        By layout, how many times smaller than the field its store is.
    """

    root: Path
    libraries: list[Library]
    size_mib: int
    repeat: int
    only: str = ""
    compression: dict[str, float] = field(default_factory=dict)

    def wants(self, row: str, case: str) -> bool:
        """Whether the case is to be measured."""
        return self.only.casefold() in f"{row}: {case}".casefold()

    @functools.cached_property
    def source(self) -> Float32Array:
        """The source array."""
        return temperature(self.size_mib * STEPS_PER_MIB)

    @functools.cached_property
    def layouts(self) -> list[Layout]:
        """The layouts, with chunks no longer than the array."""
        return [layout.fitted(self.source.shape) for layout in LAYOUTS]

    @property
    def complete(self) -> list[Library]:
        """The libraries that do more than reading whole chunks."""
        return [library for library in self.libraries if not library.whole_chunks_only]

    @property
    def reference(self) -> Library:
        """The library that writes what all read: zarr-python if it is there."""
        return next((library for library in self.libraries if library.engine == "zarr"), self.libraries[0])

    def store(self, layout: Layout) -> Path:
        """Return the path of the field in `layout`, which is written at the first call."""
        path = self.root / layout.name.replace(",", "").replace(" ", "-")
        if layout.name not in self.compression:
            with self.reference.configured():
                self.reference.writer(path, self.source.shape, layout)(self.source)
            stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            self.compression[layout.name] = self.source.nbytes / stored
        return path


def require_equal(found: object, expected: Float32Array, what: str) -> None:
    """Raise RuntimeError unless `found` has the shape and the values of `expected`."""
    if not np.array_equal(np.asarray(found), expected):
        raise RuntimeError(f"{what}: the values differ from those of the source")


def rng_of_round(round_number: int) -> np.random.Generator:
    """Return the random numbers of a round: every library is asked for the same selections."""
    return np.random.default_rng([SEED, round_number + 1])


def full_read(bench: Bench) -> Iterator[Figure]:
    """Read the whole array."""
    yield from _reads(bench, FULL_READ, bench.libraries, lambda layout, round_number: [EVERYTHING])


def one_chunk(bench: Bench) -> Iterator[Figure]:
    """Read selections that are exactly one chunk (in a shard: one inner chunk), at random places."""

    def places(layout: Layout, round_number: int) -> list[Selection]:
        grid = [n // c for n, c in zip(bench.source.shape, layout.chunks, strict=True)]
        n_places = min(CHUNKS_PER_SAMPLE, int(np.prod(grid)))
        coords = rng_of_round(round_number).integers(0, grid, size=(n_places, 3)).tolist()
        return [
            tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, layout.chunks, strict=True))
            for place in coords
        ]

    yield from _reads(bench, ONE_CHUNK, bench.libraries, places)


def point_through_time(bench: Bench) -> Iterator[Figure]:
    """Read all times at one random latitude and longitude."""

    def places(layout: Layout, round_number: int) -> list[Selection]:
        n_points = (POINTS_PER_SAMPLE, 2)
        coords = rng_of_round(round_number).integers(0, bench.source.shape[1:], size=n_points).tolist()
        return [(slice(None), lat, lon) for lat, lon in coords]

    yield from _reads(bench, POINT, bench.complete, places)


def _reads(bench: Bench, row: str, libraries: list[Library], places: Places) -> Iterator[Figure]:
    for layout in bench.layouts:
        if bench.wants(row, layout.name):
            path = bench.store(layout)
            tasks = [_read_task(bench, library, path, layout, places) for library in libraries]
            yield from alternate(row, layout.name, tasks, bench.repeat)


def _read_task(bench: Bench, library: Library, path: Path, layout: Layout, places: Places) -> Task:
    @functools.cache
    def reader() -> Reader:
        return library.reader(path)

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        read, selections = reader(), places(layout, round_number)
        with library.configured():
            if round_number < 0:
                for selection in selections:
                    require_equal(read(selection), bench.source[selection], library.label)
            yield lambda: _read_in_turn(read, selections)

    return Task(library.label, prepared, calls=len(places(layout, 0)))


def _read_in_turn(read: Reader, selections: list[Selection]) -> object:
    """Read `selections` as a user goes through chunks: one result at a time is held, the last is returned."""
    result = None
    for selection in selections:
        result = read(selection)
    return result


def full_write(bench: Bench) -> Iterator[Figure]:
    """Write the whole array into a new one; creating it and deleting it are not timed."""
    for layout in bench.layouts:
        if bench.wants(FULL_WRITE, layout.name):
            tasks = [_write_task(bench, library, layout) for library in bench.complete]
            yield from alternate(FULL_WRITE, layout.name, tasks, bench.repeat)


def _write_task(bench: Bench, library: Library, layout: Layout) -> Task:
    others = [other for other in bench.complete if other is not library]
    reference = others[-1] if others else library

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        path = bench.root / "written"
        write = library.writer(path, bench.source.shape, layout)
        try:
            with library.configured():
                yield lambda: write(bench.source)
            if round_number < 0:
                with reference.configured():
                    found = reference.reader(path)(EVERYTHING)
                require_equal(found, bench.source, f"{library.label}, read with {reference.label}")
        finally:
            shutil.rmtree(path)

    return Task(library.label, prepared)


def peak_memory(bench: Bench) -> Iterator[Figure]:
    """Measure the memory that opening took no part in: a full read in a process of its own."""
    if not can_measure():
        return
    for layout in bench.layouts:
        if not bench.wants(MEMORY, layout.name):
            continue
        path = bench.store(layout)
        for library in bench.complete:
            try:
                figure = Figure(MEMORY, layout.name, library.label, (measured(library.label, path),), "MiB")
            except LIBRARY_ERRORS as error:
                figure = Figure(MEMORY, layout.name, library.label, note=str(error), unit="MiB")
            yield figure


def function_calls(bench: Bench) -> Iterator[Figure]:
    """Count Python function calls while half the array is read, then all of it: the growth per chunk."""
    if not can_count_calls():
        return
    half = bench.source.shape[1] // 2
    for layout in bench.layouts:
        if layout.chunks != tuple(map(min, KIB_64, bench.source.shape)) or not bench.wants(
            CALLS, layout.name
        ):
            continue
        path = bench.store(layout)
        chunks_of_half = layout.n_chunks(bench.source.shape) // 2
        for library in bench.complete:
            try:
                with library.configured():
                    growth = [
                        _growth(read, (slice(None), slice(half), slice(None))) / chunks_of_half
                        for read in library.counted_readers(path)
                    ]
            except LIBRARY_ERRORS as error:
                note = f"{type(error).__name__}: {error}"
                yield Figure(CALLS, layout.name, library.label, note=note, unit="calls")
            else:
                yield Figure(CALLS, layout.name, library.label, (max(growth),), "calls")


def _growth(read: Reader, half: Selection) -> int:
    read(EVERYTHING)
    return count_calls(lambda: read(EVERYTHING)) - count_calls(lambda: read(half))


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


ROWS: tuple[Callable[[Bench], Iterator[Figure]], ...] = (
    full_read,
    one_chunk,
    point_through_time,
    full_write,
    peak_memory,
    function_calls,
    xarray_open,
    xarray_compute,
    dask_array,
)
