"""Arrays, counts and waits that the tests of dask graphs share."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np

import xzarr3
from xzarr3 import Array, MemoryStore


def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Values that differ from one another and from zero."""
    return np.random.default_rng(sum(shape)).random(shape) + 1


def sample(where: Any = None, path: str = "", **options: Any) -> Array:
    """An array with values: 30 x 40 of them in chunks of 10 x 10 unless the options say otherwise."""
    place = MemoryStore() if where is None else where
    return xzarr3.create_array(place, path, **{"data": numbers(30, 40), "chunks": (10, 10), **options})


def blank(shape: Any, chunks: Any, where: Any = None, **options: Any) -> Array:
    """An array without values."""
    place = MemoryStore() if where is None else where
    return xzarr3.create_array(place, shape=shape, chunks=chunks, **{"dtype": "f8", **options})


def tasks(*collections: Any) -> dict[Any, Any]:
    """What is left of the tasks after optimization."""
    return dict(dask.optimize(*collections)[0].__dask_graph__())


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of Python a call makes: its work, whatever the machine does besides."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    work()  # What is made once is not counted.
    gc.disable()  # What collects garbage may call functions as well.
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def tick(folder: Path) -> None:
    """Wait until the clock of a file system has moved on."""
    probe = folder / "tick"
    probe.touch()
    before = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == before:
        os.utime(probe)
    probe.unlink()
