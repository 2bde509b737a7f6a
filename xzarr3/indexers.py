"""``array.oindex``, ``array.vindex`` and ``array.blocks``: other ways to select than numpy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from xzarr3.explanation import Explanation, explain
from xzarr3.indexing import DimChoice, Points, Selection, block_selection
from xzarr3.plan import ReadPlan

if TYPE_CHECKING:
    from xzarr3.array import Array

Parse: TypeAlias = Callable[[object, tuple[int, ...]], "tuple[DimChoice, ...] | Points"]


class Indexer:
    """Reads and writes an array with selections of one kind.

    Parameters
    ----------
    array : Array
    parse : callable
        Works out a selection, given the shape of the array.
    """

    def __init__(self, array: Array, parse: Parse) -> None:
        self._array = array
        self._parse = parse

    def __getitem__(self, selection: Selection) -> Any:
        fields, elements = self._array.split(selection)
        result = self._array.read(self._parse(elements, self._array.shape), fields)
        return result[()] if result.ndim == 0 else result

    def __setitem__(self, selection: Selection, values: npt.ArrayLike) -> None:
        fields, elements = self._array.split(selection)
        self._array.write(self._parse(elements, self._array.shape), values, fields)

    def plan(self, selection: Selection = ...) -> ReadPlan:
        """What reading ``selection`` would touch."""
        _, elements = self._array.split(selection)
        return self._array.engine.plan(self._parse(elements, self._array.shape))

    def explain(self, selection: Selection = ..., *, threads: int | None = None) -> Explanation:
        """What reading ``selection`` fetches; see :meth:`xzarr3.Array.explain`."""
        fields, elements = self._array.split(selection)
        plan = self._array.engine.plan(self._parse(elements, self._array.shape))
        return explain(self._array, plan, fields, threads)


def block_indexer(array: Array) -> Parse:
    """Works out selections of whole units of storage of ``array``."""
    return lambda selection, shape: block_selection(selection, shape, array.metadata.chunk_grid)
