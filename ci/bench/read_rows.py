"""The rows that read: the whole array, chunks, points, and the time a chunk takes as chunks get more."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from bare import Selection
from layouts import Float32Array, Layout
from peers import Library, Reader
from run import EVERYTHING, Bench, directory_name, require_equal, rng_of_round
from timing import Figure, Run, Task, alternate

FULL_READ = "full read"
ONE_CHUNK = "one chunk"
POINT = "one point through time"
RANDOM_POINTS = "1000 random points"
GROWTH = "full read, time per chunk"

CHUNKS_PER_SAMPLE = 16
POINTS_PER_SAMPLE = 4
N_RANDOM_POINTS = 1000

GROWTH_CHUNKS = (8, 8)
GROWTH_COLUMNS = 100
"""Chunks beside each other in the arrays of `growth`, which get longer with the number of chunks."""
GROWTH_STEPS = {"10^3": 10**3, "10^4": 10**4, "10^5": 10**5}
GROWTH_KINDS = {"files": None, "chunks in shards": 10**4}
"""Number of chunks in a shard (in an array of fewer, its own), None without shards."""
GROWTH_ROUNDS = 5
CHUNKS_PER_GROWTH_SAMPLE = 5000
"""Arrays of fewer chunks are read several times in a sample, which else were too short to be told apart."""
PATIENCE_S = 2.5
"""Seconds which a full read may take by the figure of the step before; a slower library is left out."""

Places: TypeAlias = Callable[[Layout, int], list[Selection]]


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

    yield from _reads(bench, POINT, bench.libraries, places)


def random_points(bench: Bench) -> Iterator[Figure]:
    """Read single values at random places with one `vindex` of three lists of indices."""

    def places(layout: Layout, round_number: int) -> list[Selection]:
        coords = rng_of_round(round_number).integers(0, bench.source.shape, size=(N_RANDOM_POINTS, 3))
        return [tuple(np.ascontiguousarray(coords.T))]

    yield from _reads(bench, RANDOM_POINTS, bench.complete, places, points=True)


def _reads(
    bench: Bench, row: str, libraries: list[Library], places: Places, *, points: bool = False
) -> Iterator[Figure]:
    for layout in bench.layouts:
        if bench.wants(row, layout.name):
            path = bench.store(layout)
            tasks = [
                _read_task(
                    library,
                    functools.partial(library.point_reader if points else library.reader, path),
                    bench.source,
                    functools.partial(places, layout),
                )
                for library in libraries
            ]
            yield from alternate(row, layout.name, tasks, bench.repeat)


def _read_task(
    library: Library,
    open_reader: Callable[[], Reader],
    source: Float32Array,
    places: Callable[[int], list[Selection]],
) -> Task:
    opened = functools.cache(open_reader)

    @contextlib.contextmanager
    def prepared(round_number: int) -> Iterator[Run]:
        selections = places(round_number)
        with library.configured():
            read = opened()
            if round_number < 0:
                yield lambda: _compare_in_turn(read, selections, source, library.label)
            else:
                yield lambda: read_in_turn(read, selections)

    return Task(library.label, prepared, calls=len(places(0)))


def read_in_turn(read: Reader, selections: list[Selection]) -> object:
    """Read `selections` as a user goes through chunks: one result at a time is held, the last is returned."""
    result = None
    for selection in selections:
        result = read(selection)
    return result


def _compare_in_turn(read: Reader, selections: list[Selection], source: Float32Array, what: str) -> None:
    for selection in selections:
        require_equal(read(selection), source[selection], what)


def growth(bench: Bench) -> Iterator[Figure]:
    """Read whole arrays of ever more small chunks; what a chunk takes is to stay the same.

    The step between comes first: it tells which libraries are too slow for the last one. The first and the
    last alternate, because they are what is compared.
    """
    few, between, many = GROWTH_STEPS
    for kind in GROWTH_KINDS:
        figures = _alternate_steps(bench, kind, [between], set())
        slow = {
            figure.library
            for figure in figures
            if figure.median is None or figure.median * GROWTH_STEPS[many] / 10**6 > PATIENCE_S
        }
        figures += _alternate_steps(bench, kind, [few, many], slow)
        for step in GROWTH_STEPS:
            yield from (figure for figure in figures if figure.case == f"{step} {kind}")


def _alternate_steps(bench: Bench, kind: str, steps: list[str], slow: set[str]) -> list[Figure]:
    """Time the wanted ones of `steps` by turns; the `slow` take no part in the one of most chunks."""
    paths: dict[str, Path] = {}
    tasks: list[Task] = []
    for step in steps:
        case = f"{step} {kind}"
        if not bench.wants(GROWTH, case):
            continue
        n_chunks = GROWTH_STEPS[step]
        source, layout = _grown(n_chunks, GROWTH_KINDS[kind])
        path = paths[step] = bench.root / directory_name(case)
        bench.complete[0].writer(path, source.shape, layout)(source)
        selections = [EVERYTHING[: source.ndim]] * max(1, CHUNKS_PER_GROWTH_SAMPLE // n_chunks)
        for library in bench.libraries:
            if library.label not in slow or n_chunks < max(GROWTH_STEPS.values()):
                open_reader = functools.partial(library.reader, path)
                places = functools.partial(_same_in_each_round, selections)
                task = _read_task(library, open_reader, source, places)
                tasks.append(dataclasses.replace(task, calls=n_chunks * len(selections), case=case))
    measured = alternate(GROWTH, "", tasks, min(bench.repeat, GROWTH_ROUNDS)) if tasks else []
    for step, path in paths.items():
        bench.discard(path, GROWTH_STEPS[step])
    return [
        dataclasses.replace(figure, samples=tuple(1000 * sample for sample in figure.samples), unit="µs")
        for figure in measured
    ]


def _same_in_each_round(selections: list[Selection], round_number: int) -> list[Selection]:
    return selections


def _grown(n_chunks: int, chunks_of_shard: int | None) -> tuple[Float32Array, Layout]:
    """Return the values and the layout of an array of `n_chunks`, all of them full."""
    height, width = GROWTH_CHUNKS[0], GROWTH_CHUNKS[1] * GROWTH_COLUMNS
    shape = (n_chunks // GROWTH_COLUMNS * height, width)
    shards = None
    if chunks_of_shard is not None:
        shards = (min(n_chunks, chunks_of_shard) // GROWTH_COLUMNS * height, width)
    values = np.arange(math.prod(shape), dtype="f4").reshape(shape)
    return values, Layout(f"{n_chunks} chunks", GROWTH_CHUNKS, shards=shards)
