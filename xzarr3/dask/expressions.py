"""Arrays of the package ``dask-array``, which keep expressions instead of graphs.

They are written as dask arrays with the graph that the package makes of their expression, after it has
optimized that. :func:`xzarr3.from_zarr` gives such an array where they are the default: after
``dask_array.xarray.register()``. This package is not imported unless it is in use.
"""

from __future__ import annotations

import sys
from typing import Any

import dask.array as da
from dask.highlevelgraph import HighLevelGraph

from xzarr3.dask.blocks import Blocks
from xzarr3.readable import ReadableArray

_PACKAGE = "dask_array"


def is_expression(data: object) -> bool:
    """Whether this is an array of the package ``dask-array``."""
    return isinstance(data, getattr(sys.modules.get(_PACKAGE), "Array", ()))


def with_graph(data: Any) -> Any:
    """The dask array with the graph of an array of expressions; all other values as they are.

    Examples
    --------
    >>> import dask.array as da
    >>> ones = da.ones(3)
    >>> with_graph(ones) is ones
    True
    """
    if not is_expression(data):
        return data
    graph = HighLevelGraph.from_collections(data.name, dict(data.__dask_graph__()), [])
    return da.Array(graph, data.name, data.chunks, meta=data._meta)


def are_default() -> bool:
    """Whether xarray makes arrays of expressions where it made dask arrays."""
    managers = sys.modules.get("xarray.namedarray.parallelcompat")
    if managers is None or _PACKAGE not in sys.modules:
        return False
    manager = managers.list_chunkmanagers().get("dask")
    return type(manager).__module__.partition(".")[0] == _PACKAGE


def read_as_expression(array: ReadableArray, blocks: Blocks, name: str | None) -> Any:
    """An array of expressions that reads from a stored array; a selection of it reads only its elements."""
    lengths = tuple([each.lengths(size) for each, size in zip(blocks, array.shape, strict=True)])
    return sys.modules[_PACKAGE].from_array(array, chunks=lengths, name=name)
