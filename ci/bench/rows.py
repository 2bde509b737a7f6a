"""The rows of the bench, in the order they are measured in: each yields the figures of all its cases.

The rows of sections are measured only when one is asked for by its name: they take long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cores import CORES
from cost_rows import function_calls, peak_memory
from dask_rows import DASK_ROWS
from latency_rows import latency
from lock import LOCK
from read_rows import full_read, growth, one_chunk, point_through_time, random_points
from run import Bench
from sections import Section
from timing import Figure
from write_rows import full_write, small_regions
from xarray_rows import XARRAY_ROWS

ROWS: tuple[Callable[[Bench], Iterator[Figure]], ...] = (
    full_read,
    one_chunk,
    point_through_time,
    random_points,
    full_write,
    small_regions,
    peak_memory,
    function_calls,
    *XARRAY_ROWS,
    *DASK_ROWS,
    latency,
    growth,
)

SECTIONS: dict[str, Section] = {section.name: section for section in (CORES, LOCK)}
