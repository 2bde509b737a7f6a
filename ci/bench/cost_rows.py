"""The rows that count what a read takes beside time: memory and Python function calls."""

from __future__ import annotations

from collections.abc import Iterator

from bare import Selection
from layouts import KIB_64
from memory import can_measure, measured
from peers import Reader
from run import EVERYTHING, Bench
from timing import LIBRARY_ERRORS, Figure, can_count_calls, count_calls

MEMORY = "peak memory of a full read"
CALLS = "function calls per further chunk"


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
