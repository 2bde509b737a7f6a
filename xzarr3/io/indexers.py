"""The ways to select from an array: numpy's, ``array.oindex``, ``array.vindex`` and ``array.blocks``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.display.shown import Description, Shown
from xzarr3.errors import Xzarr3Error, printable, shorten_traceback
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import DimChoice, Points, Selection

if TYPE_CHECKING:
    from xzarr3.arrays import Array
    from xzarr3.io.explain import Explanation

Parse: TypeAlias = Callable[[object, tuple[int, ...]], "tuple[DimChoice, ...] | Points"]


_MEANINGS = {
    "": "selections as in numpy",
    "oindex": "each index selects along its own dimension",
    "vindex": "arrays select points together, or a mask does",
    "blocks": "selects chunks, or shards, by their coordinates",
}


class Indexer(Shown):
    """Reads and writes an array with selections of one kind.

    Examples
    --------
    >>> import numpy as np
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(12).reshape(3, 4), chunks=2)
    >>> array.oindex[[0, 2], 1] = -1
    >>> array.oindex.get((slice(None), [1, 3]), threads=1)
    array([[-1,  3],
           [ 5,  7],
           [-1, 11]])

    Parameters
    ----------
    array : Array
    parse : callable
        Turns an index and the shape of the array into a selection.
    name : str
        The attribute of the array; empty for selections of the array itself.
    """

    def __init__(self, array: Any, parse: Parse, name: str) -> None:
        self._array: Array = array  # Not annotated above: a base class of Array passes itself.
        self._parse = parse
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name} of xzarr3.Array {printable(self._array.name)}: {_MEANINGS[self._name]}>"

    def _describe(self) -> Description:
        from xzarr3.display import html

        array, meaning = self._array, _MEANINGS[self._name]
        title = html.title("xzarr3 indexer", f"{array.name}.{self._name}", meaning)
        return Description(repr(self), lambda: html.box(title, html.facts([("Array", repr(array))])))

    def get(
        self, selection: Selection = ..., *, out: AnyArray | None = None, threads: int | None = None
    ) -> AnyArray:
        """Read a selection; see :meth:`xzarr3.Array.get`."""
        try:  # Not decorated with short_traceback, which would add a call to each small read.
            fields, elements = self._array.split(selection)
            return self._array.read_selected(self._parsed(elements), fields, out=out, threads=threads)
        except Xzarr3Error as error:
            shorten_traceback(error)
            raise

    def set(self, selection: Selection, values: npt.ArrayLike, *, threads: int | None = None) -> None:
        """Write to a selection; see :meth:`xzarr3.Array.set`."""
        try:
            fields, elements = self._array.split(selection)
            self._array.write_selected(self._parsed(elements), values, fields, threads=threads)
        except Xzarr3Error as error:
            shorten_traceback(error)
            raise

    def plan(self, selection: Selection = ...) -> ReadPlan:
        """The plan of a read of ``selection``."""
        return self._array.plan_selected(self._parsed(self._array.split(selection)[1]))

    def explain(self, selection: Selection = ..., *, threads: int | None = None) -> Explanation:
        """Tell what a read of ``selection`` fetches; see :meth:`xzarr3.Array.explain`."""
        fields, elements = self._array.split(selection)
        return self._array.explain_selected(self._parsed(elements), fields, threads)

    def __getitem__(self, selection: Selection) -> Any:
        result = self.get(selection)
        return result[()] if result.ndim == 0 else result

    def __setitem__(self, selection: Selection, values: npt.ArrayLike) -> None:
        self.set(selection, values)

    def _parsed(self, elements: Selection) -> tuple[DimChoice, ...] | Points:
        return self._parse(elements, self._array.shape)
