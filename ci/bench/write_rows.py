"""The rows that write: whole arrays, and small regions of arrays that are there."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

from bare import Selection
from layouts import Float32Array, Layout
from peers import Library, Updater
from run import EVERYTHING, Bench, directory_name, require_equal, rng_of_round
from timing import Figure, Run, Task, alternate

FULL_WRITE = "full write"
REGIONS = "100 small regions written"

N_REGIONS = 100
REGION = (4, 8, 8)


def full_write(bench: Bench) -> Iterator[Figure]:
    """Write the whole array into a new one; creating it and deleting it are not timed."""
    for layout in bench.layouts:
        if bench.wants(FULL_WRITE, layout.name):
            tasks = [_write_task(bench, library, layout) for library in bench.complete]
            yield from alternate(FULL_WRITE, layout.name, tasks, bench.repeat)


def _write_task(bench: Bench, library: Library, layout: Layout) -> Task:
    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        path = bench.written / directory_name(f"written {layout.name} {library.label} {round_number + 1}")
        write = library.writer(path, bench.source.shape, layout)
        try:
            with library.configured():
                yield lambda: write(bench.source)
            if round_number < 0:
                _require_written(bench, library, path, bench.source)
        finally:
            bench.discard(path, layout.n_files(bench.source.shape))

    return Task(library.label, prepared)


def small_regions(bench: Bench) -> Iterator[Figure]:
    """Write small regions at random places of an array that is full, one after the other."""
    for layout in bench.layouts:
        if layout.small and bench.wants(REGIONS, layout.name):
            paths = {
                library.label: bench.written / directory_name(f"regions {layout.name} {library.label}")
                for library in bench.complete
            }
            for path in paths.values():
                shutil.copytree(bench.store(layout), path)
            tasks = [_region_task(bench, library, paths[library.label]) for library in bench.complete]
            yield from alternate(REGIONS, layout.name, tasks, bench.repeat)
            for path in paths.values():
                bench.discard(path, layout.n_files(bench.source.shape))


def _region_task(bench: Bench, library: Library, path: Path) -> Task:
    @functools.cache
    def updater() -> Updater:
        return library.updater(path)

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        writes = [(region, _changed(bench.source[region])) for region in _regions(bench, round_number)]
        with library.configured():
            update = updater()
            yield lambda: _write_in_turn(update, writes)
        expected = bench.source.copy()
        for earlier in range(-1, round_number + 1):
            for region in _regions(bench, earlier):
                expected[region] = _changed(bench.source[region])
        _require_written(bench, library, path, expected)

    return Task(library.label, prepared)


def _regions(bench: Bench, round_number: int) -> list[Selection]:
    """Return the regions of a round; half of them, more or less, are in several chunks."""
    most = [n - size + 1 for n, size in zip(bench.source.shape, REGION, strict=True)]
    starts = rng_of_round(round_number).integers(0, most, size=(N_REGIONS, len(REGION))).tolist()
    return [tuple(slice(a, a + size) for a, size in zip(start, REGION, strict=True)) for start in starts]


def _changed(values: Float32Array) -> Float32Array:
    """Return `values` of the source as they are written: one kelvin more, however often a place is met."""
    return values + 1


def _write_in_turn(update: Updater, writes: list[tuple[Selection, Float32Array]]) -> None:
    for region, values in writes:
        update(region, values)


def _require_written(bench: Bench, library: Library, path: Path, expected: Float32Array) -> None:
    reader = bench.other_than(library)
    with reader.configured():
        found = reader.reader(path)(EVERYTHING)
    require_equal(found, expected, f"{library.label}, read with {reader.label}")
