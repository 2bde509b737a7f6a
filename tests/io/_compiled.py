"""What the tests of compiled reads and of compiled writes share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from xzarr3.io import compiled

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


class Seen:
    """What compiled code did: the units that it was given, and those that it left."""

    units = 0
    left = 0


@contextlib.contextmanager
def python_executor() -> Iterator[None]:
    """The Python executor does all work."""
    before, compiled.FEW = compiled.FEW, 2**63
    try:
        yield
    finally:
        compiled.FEW = before


@st.composite
def grids(
    draw: st.DrawFn, dtypes: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any], np.random.Generator]:
    """The shape of an array and of its chunks, a data type, and a source of values."""
    ndim = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, (40, 12, 8, 5)[ndim - 1])) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, n + 2)) for n in shape)
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    return shape, chunks, dtype, np.random.default_rng(draw(st.integers(0, 100)))
