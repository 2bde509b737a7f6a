"""Arrays of the package dask-array: written, read, explained."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _graphs import blank
from _processes import printed_by

import xzarr3
from xzarr3.dask.expressions import are_default, with_graph

dask_array: Any = pytest.importorskip("dask_array")
VALUES = np.arange(100.0).reshape(10, 10)


def expression(chunks: Any = (3, 4)) -> Any:
    return dask_array.from_array(VALUES, chunks=chunks)


def test_it_is_stored_and_created_from_across_chunks() -> None:
    target = blank((10, 10), (4, 7), shards=(8, 7))
    xzarr3.store(expression() * 2 + 1, target)
    np.testing.assert_array_equal(target[...], VALUES * 2 + 1)
    ones = xzarr3.zeros((10, 10))
    xzarr3.store([expression(), da.ones((10, 10), chunks=5)], [target, ones])
    np.testing.assert_array_equal(target[...], VALUES)
    np.testing.assert_array_equal(ones[...], 1)
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=expression((3, 4))[::2])
    assert array.chunks == (2, 4)
    np.testing.assert_array_equal(array[...], VALUES[::2])
    with pytest.raises((xzarr3.ArgumentError, xzarr3.AlignmentError, ValueError)):
        xzarr3.store(dask_array.from_array(target, chunks=5)[::-1] + 0, target)  # It reads its target.
    np.testing.assert_array_equal(target[...], VALUES)
    for value in (VALUES, da.ones(3), None, [1]):
        assert with_graph(value) is value
    assert not are_default()


@pytest.mark.parametrize("as_tree", [False, True])
def test_to_zarr_writes_datasets_of_it(as_tree: bool) -> None:
    def dataset(t: Any, c: Any) -> xr.Dataset:
        data = {"t": (("x", "y"), t + 1, {"units": "K"}), "u": ("x", np.arange(10))}
        return xr.Dataset(data, {"c": (("x", "y"), c - 1)})

    ds, store = dataset(expression(), expression((10, 1))), xzarr3.MemoryStore()
    xzarr3.to_zarr(xr.DataTree(ds) if as_tree else ds, store, encoding=None)
    xr.testing.assert_identical(xzarr3.open_dataset(store, chunks=None).load(), dataset(VALUES, VALUES))
    assert dask_array.Array is type(ds["t"].data), "the dataset of the user stays as it is"
    named = xr.DataArray(VALUES, dims=("x", "w")).to_dataset(name="w")  # xarray itself assigns nothing to it.
    store = xzarr3.to_zarr(xr.DataTree(named) if as_tree else named).store
    np.testing.assert_array_equal(xzarr3.open_array(store, "w"), VALUES)


REGISTERED = """
import numpy as np, xarray as xr, dask_array, dask_array.xarray, xzarr3
values = np.arange(100.0).reshape(10, 10)
store = xzarr3.MemoryStore()
xzarr3.to_zarr(xr.Dataset({"t": (("x", "y"), values)}), store, encoding={"t": {"chunks": (5, 5)}})
dask_array.xarray.register()
array = xzarr3.from_zarr(store, "t", chunks="units")
assert type(array) is dask_array.Array and array.chunks == ((5, 5), (5, 5)), array
with xzarr3.trace() as trace:
    np.testing.assert_array_equal((array[1:3, 2:4] + 1).compute(), values[1:3, 2:4] + 1)
assert trace.arrays["/t"]["chunks_decoded"] == 1, trace
ds = xr.open_dataset(store, engine="xzarr3", chunks={})
assert type(ds.t.data) is dask_array.Array
np.testing.assert_array_equal(ds.t.mean("x").values, values.mean(0))
assert ds.t[1].xzarr3.explain()["t"]["reads"] == 2
xzarr3.to_zarr(ds * 2, store, group="twice")
np.testing.assert_array_equal(xzarr3.open(store, "twice/t")[...], values * 2)
"""


def test_it_is_what_from_zarr_gives_where_it_is_the_default() -> None:
    assert printed_by(REGISTERED) == []
