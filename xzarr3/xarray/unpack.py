"""Unpacks values as they are read: masks, scales and offsets of the CF conventions, piece by piece.

xarray reads the whole selection and then passes over it once for each decoding step. This module calls
xarray's own functions, so every bit of the result is the same. But several threads call them, with pieces
that fit a processor's cache.
"""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from xarray.coding import common, variables
from xarray.core import indexing

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.io.selection import DimChoice, Points
from xzarr3.parallel import available_threads, cores, parallel_map

_ELEMENTS = 2**16  # Elements of a piece that is unpacked at once.

Function: TypeAlias = Callable[[AnyArray], AnyArray]

# The elementwise functions that xarray wraps in functools.partial.
_ELEMENTWISE = tuple(
    found
    for found in (
        getattr(variables, "_apply_mask", None),
        getattr(variables, "_scale_offset_decoding", None),
        np.asarray,
    )
    if found is not None
)
_Decoded: Any = getattr(common, "_ElementwiseFunctionArray", None)


class Unpacking:
    """Elementwise functions that turn stored values into the values of a variable.

    Parameters
    ----------
    functions : sequence of callable
        Called one after the other.
    dtype : dtype
        Data type that the last function returns.
    """

    def __init__(self, functions: Sequence[Function], dtype: np.dtype[Any]) -> None:
        self.functions = tuple(functions)
        self.dtype = dtype

    def __reduce__(self) -> tuple[object, ...]:
        return Unpacking, (self.functions, self.dtype)

    def __dask_tokenize__(self) -> object:
        from dask.base import normalize_token

        return "xzarr3.Unpacking", normalize_token(self.functions), str(self.dtype)

    def __call__(self, values: AnyArray) -> AnyArray:
        """Unpack all values at once."""
        for function in self.functions:
            values = function(values)
        return values

    def is_exact(self, dtype: np.dtype[Any]) -> bool:
        """Whether stored values of ``dtype`` unpack to the data type that xarray announced."""
        return self(np.empty(0, dtype)).dtype == self.dtype

    def into(self, out: AnyArray, values: AnyArray) -> None:
        """Unpack the values into ``out``, piece by piece."""
        if values.size <= _ELEMENTS:
            out[...] = self(values)
            return
        length = len(values)
        at_once = max(_ELEMENTS * length // values.size, 1)
        if at_once == 1 and values.ndim > 1:
            for at in range(length):
                self.into(out[at], values[at])
            return
        for at in range(0, length, at_once):
            out[at : at + at_once] = self(values[at : at + at_once])


def folded(data: Any) -> tuple[Any, Unpacking] | None:
    """The array inside xarray's lazy decoding, and the functions; None if reading cannot unpack them."""
    functions: list[Function] = []
    inner = data
    while type(inner) is _Decoded and _is_elementwise(inner.func):
        functions.append(inner.func)
        inner = inner.array
    if not functions or type(inner) is not indexing.LazilyIndexedArray:
        return None
    if inner.dtype.kind not in "iuf" or data.dtype.kind not in "iuf":
        return None
    return inner, Unpacking(functions[::-1], data.dtype)


def _is_elementwise(function: object) -> bool:
    return isinstance(function, partial) and any(function.func is known for known in _ELEMENTWISE)


def read_unpacked(
    array: Array,
    selection: tuple[DimChoice, ...] | Points,
    unpack: Unpacking,
    *,
    threads: int | None = None,
) -> AnyArray:
    """Read and unpack a selection; ``threads`` as in :meth:`Array.read_selected`."""
    values = array.read_selected(selection, threads=threads)
    if values.size <= _ELEMENTS or not unpack.is_exact(values.dtype):
        return unpack(values)
    out = np.empty(values.shape, unpack.dtype)
    source, target = values.squeeze(), out.squeeze()
    threads = min(threads or available_threads(), len(source), source.size // _ELEMENTS)
    edges = [len(source) * at // threads for at in range(threads + 1)]
    context = contextvars.copy_context()  # It contains numpy's error state.

    def part(bounds: tuple[int, int]) -> None:
        here = slice(*bounds)
        context.copy().run(unpack.into, target[here], source[here])

    parallel_map(part, itertools.pairwise(edges), threads, pool=cores)
    return out
