"""Packed values unpacked as they are read: masks, scales and offsets of the CF conventions, piece by piece.

xarray reads all that is asked for and then goes over it once for each step of the decoding. Its own functions
are called here as well, so that every bit is the same, but with pieces that fit a processor's cache, by each
thread with what it has just read.
"""

from __future__ import annotations

import contextvars
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from xarray.coding import common, variables
from xarray.core import indexing

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.concurrency import available_threads, cores, spread
from xzarr3.grids import Edges, Steps
from xzarr3.indexing import DimChoice, DimSelection, Points
from xzarr3.missing import Describe

_ELEMENTS = 2**16  # Of a piece that is unpacked at once.
_READ = 2**20  # Bytes that are read at once, or one unit of storage.

Function: TypeAlias = Callable[[AnyArray], AnyArray]

# What xarray makes partial functions of, each of which looks at one element at a time.
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
    """Functions that make the values of a variable of what is stored, element by element.

    Parameters
    ----------
    functions : sequence of callable
        Called one after the other.
    dtype : dtype
        Of what the last one returns.
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
        """The values, all at once."""
        for function in self.functions:
            values = function(values)
        return values

    def is_exact(self, dtype: np.dtype[Any]) -> bool:
        """Whether values of this data type become the one that xarray says they do."""
        return self(np.empty(0, dtype)).dtype == self.dtype

    def into(self, out: AnyArray, values: AnyArray) -> None:
        """Put the values into ``out``, piece by piece."""
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
    """What xarray decodes lazily, and how, if that can be done while reading; else None."""
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
    describe: Describe | None = None,
    *,
    threads: int | None = None,
) -> AnyArray:
    """Read what is selected and unpack it; ``describe`` and ``threads`` as :meth:`Array.read_selected`."""
    if not isinstance(selection, Points) and not array.engine.waiting and array.missing == "fill":
        pieces = _pieces(array, selection)
        busy = min(threads or available_threads(), len(pieces))
        if len(pieces) > 1 and unpack.is_exact(array.dtype):
            out = np.empty([chosen.count for chosen in selection if not _is_dropped(chosen)], unpack.dtype)

            def read() -> int:
                _share(partial(_read_piece, array, unpack, out), pieces, busy)
                return 0

            array.read_steadily(read, len(pieces))
            return out
    values = array.read_selected(selection, threads=threads, describe=describe)
    return unpacked(values, unpack, threads)


def unpacked(values: AnyArray, unpack: Unpacking, threads: int | None = None) -> AnyArray:
    """Unpack what was read."""
    if values.size <= _ELEMENTS or not unpack.is_exact(values.dtype):
        return unpack(values)
    out = np.empty(values.shape, unpack.dtype)
    threads = min(threads or available_threads(), len(values), values.size // _ELEMENTS)
    edges = [len(values) * at // threads for at in range(threads + 1)]

    def part(bounds: tuple[int, int]) -> None:
        unpack.into(out[slice(*bounds)], values[slice(*bounds)])

    _share(part, list(itertools.pairwise(edges)), threads)
    return out


# A part of a selection, and where it goes in the result.
_Piece: TypeAlias = tuple[tuple[DimSelection, ...], tuple[slice, ...]]


def _read_piece(array: Array, unpack: Unpacking, out: AnyArray, piece: _Piece) -> None:
    selection, place = piece
    index: Any = (*place, ...)
    unpack.into(out[index], array.read_selected(selection, threads=1))


def _is_dropped(chosen: DimChoice) -> bool:
    return isinstance(chosen, DimSelection) and chosen.drop


def _pieces(array: Array, selection: tuple[DimChoice, ...]) -> list[_Piece]:
    """Parts of a selection of whole units of storage, each of about a mebibyte; none if it is no box."""
    whole: list[DimSelection] = []
    for chosen in selection:
        if not isinstance(chosen, DimSelection) or chosen.step != 1 or chosen.reverse or not chosen.count:
            return []
        whole.append(chosen)
    axes = array.metadata.chunk_grid.axes
    size = array.dtype.itemsize * math.prod(map(min, (axis.longest for axis in axes), array.shape))
    along: list[list[tuple[DimSelection, slice]]] = []
    for chosen, axis in zip(reversed(whole), reversed(axes), strict=True):
        number = max(min(_READ // size, axis.index(chosen.stop - 1) - axis.index(chosen.start) + 1), 1)
        along.append(list(_parts(chosen, axis, number)))
        size *= number
    return [
        (
            tuple(part for part, _ in parts),
            tuple(place for part, place in parts if not part.drop),
        )
        for parts in itertools.product(*reversed(along))
    ]


def _parts(chosen: DimSelection, axis: Steps | Edges, number: int) -> Iterator[tuple[DimSelection, slice]]:
    """Parts along a dimension, each within so many units of storage."""
    start, end = chosen.start, axis.index(chosen.stop - 1)
    while start < chosen.stop:
        last = axis.index(start) + number - 1
        stop = chosen.stop if last >= end else axis.start(last) + axis.length_at(last)
        part = DimSelection(start, 1, stop - start, drop=chosen.drop)
        yield part, slice(start - chosen.start, stop - chosen.start)
        start = stop


def _share(function: Callable[[Any], None], items: Sequence[Any], threads: int) -> None:
    """Call a function with each item, in several threads that keep a core busy each."""
    context = contextvars.copy_context()  # Of numpy's warnings and errors.
    spread(lambda item: context.copy().run(function, item), items, threads, pool=cores)
