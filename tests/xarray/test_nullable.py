"""pandas' nullable arrays in datasets: stored as ``optional`` and read again, with pandas as the oracle."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _conformance import contents
from _killed import opened
from _things import refused
from hypothesis import example, given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ArgumentError, DataTypeValidationError, MemoryStore, to_zarr
from xzarr3.dtypes import Optional, parse_dtype

LARGE = 2**62 + 1
SIZES = (8, 16, 32, 64)
TYPES = ("boolean", "Float32", "Float64", *(f"{kind}{size}" for kind in ("Int", "UInt") for size in SIZES))


def _values(name: str) -> st.SearchStrategy[Any]:
    if name == "boolean":
        return st.booleans()
    dtype = pd.array([], dtype=name).dtype.numpy_dtype
    if dtype.kind == "f":
        return st.floats(width=8 * dtype.itemsize)
    info = np.iinfo(dtype)
    return st.integers(int(info.min), int(info.max)) | st.sampled_from([int(info.min), int(info.max)])


@st.composite
def arrays(draw: Callable[[Any], Any], name: str | None = None) -> Any:
    """One of pandas' nullable arrays; what lies below its mask is arbitrary, and NaN is a value."""
    name = draw(st.sampled_from(TYPES)) if name is None else name
    dtype, values = pd.array([], dtype=name).dtype, draw(st.lists(_values(name), max_size=12))
    mask = draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    return dtype.construct_array_type()(np.array(values, dtype.numpy_dtype), np.array(mask, bool))


def _same(found: Any, expected: Any) -> None:
    """That two of pandas' arrays have the same type, mask and bits."""
    assert (type(found), found.dtype) == (type(expected), expected.dtype)
    np.testing.assert_array_equal(found.isna(), expected.isna())
    dtype = expected.dtype.numpy_dtype
    one, other = (each.to_numpy(dtype=dtype, na_value=0) for each in (found, expected))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.signbit(one.astype(float)), np.signbit(other.astype(float)))


def _read(store: Any, chunks: Any = None) -> xr.Dataset:
    return xr.open_dataset(store, engine="xzarr3", nullable=True, chunks=chunks)


def days(values: Any, dtype: Any = "Int64", start: int = 0, **others: Any) -> xr.Dataset:
    data = pd.array(values, dtype=dtype) if isinstance(values, list) else values
    return xr.Dataset({"v": ("t", data), **others}, coords={"t": np.arange(start, start + len(data))})


@given(arrays(), st.integers(1, 7), st.sampled_from([None, {}, -1]))
@example(pd.arrays.FloatingArray(np.array([1.0, np.nan, 5.0]), np.array([False, False, True])), 3, None)
def test_they_come_back(values: Any, chunk: int, chunks: Any) -> None:
    group = to_zarr(days(values, other=("t", np.arange(len(values)))), encoding={"v": {"chunks": (chunk,)}})
    assert group["v"].zdtype == Optional(parse_dtype(values.dtype.numpy_dtype))
    assert np.ma.getmaskarray(group["v"][...]).tolist() == values.isna().tolist()
    assert xzarr3.check(group.store).ok
    for found in (_read(group.store, chunks=chunks), xzarr3.open_dataset(group.store, nullable=True)):
        again = to_zarr(found)
        for each in (found, found.compute(), _read(again.store)):
            _same(each.v.data, values)
        _same(found.copy(deep=True).isel(t=slice(1, None)).v.data, values[1:])
        assert found.v.encoding["chunks"] == again["v"].chunks == (chunk,)


@given(st.data(), st.sampled_from(TYPES), st.integers(1, 5))
def test_appends_prepends_and_regions_are_as_in_pandas(data: Any, name: str, chunk: int) -> None:
    first, second, before, part = (data.draw(arrays(name)) for _ in range(4))
    store = to_zarr(days(first), encoding={"v": {"chunks": (chunk,)}}).store
    expected = first
    if len(second):
        to_zarr(days(second, start=len(first)), store, append_dim="t")
        expected = type(first)._concat_same_type([first, second])
    if len(before) and len(expected):
        to_zarr(days(before, start=-len(before)), store, prepend_dim="t")
        expected = type(first)._concat_same_type([before, expected])
    _same(_read(store).v.data, expected)
    part = part[: len(expected)]
    if len(part):
        at = data.draw(st.integers(0, len(expected) - len(part)))
        to_zarr(days(part)[["v"]].drop_vars("t"), store, region={"t": slice(at, at + len(part))})
        expected = type(first)._concat_same_type([expected[:at], part, expected[at + len(part) :]])
        _same(_read(store).v.data, expected)
    to_zarr(_read(store).isel(t=slice(None, None, -1)).drop_vars("t"), store, mode="a")
    _same(_read(store).v.data, expected[::-1])


@pytest.mark.parametrize("chunks", [None, {}])
def test_what_is_opened_is_as_xarray_makes_it(chunks: Any, tmp_path: Path) -> None:
    ds = days([LARGE, None, 3], wide=(("t", "x"), np.ones((3, 2))))
    ds = ds.assign_coords(c=("t", pd.array([True, None, False], dtype="boolean")))
    to_zarr(ds, tmp_path)
    found = _read(tmp_path, chunks=chunks)
    assert found.wide.chunks == (None if chunks is None else ((3,), (2,)))
    assert found.v.variable._in_memory
    assert "4611686018427387905 <NA> 3" in repr(found)
    pd.testing.assert_frame_equal(found[["v", "c"]].to_dataframe(), ds[["v", "c"]].to_dataframe())
    _same(found.c.data, ds.c.data)
    _same(xr.concat([found, found], "t").v.data, pd.array([LARGE, None, 3] * 2, dtype="Int64"))
    _same(pickle.loads(pickle.dumps(found)).v.data, ds.v.data)
    found.v[1:2] = pd.array([5], dtype="Int64")
    _same(found.v.data, pd.array([LARGE, 5, 3], dtype="Int64"))
    _same(_read(tmp_path).v.data, ds.v.data)


@pytest.mark.parametrize("chunks", [None, {}])
def test_by_default_marks_stand_for_what_is_absent(chunks: Any) -> None:
    large = to_zarr(days([LARGE, None, 3])).store
    refused(DataTypeValidationError, "nullable=True", opened(large, chunks=chunks).v.load)
    store = to_zarr(days([1, None, 3])).store
    found = opened(store, chunks=chunks)
    np.testing.assert_array_equal(found.v, [1, np.nan, 3])
    to_zarr(found.assign_coords(t=[3, 4, 5]), store, append_dim="t")
    _same(_read(store).v.data, pd.array([1, None, 3] * 2, dtype="Int64"))


def test_other_arrays_stay_as_they_are_with_nullable(tmp_path: Path) -> None:
    group = xzarr3.open_group(tmp_path, mode="w")
    masked = np.ma.masked_equal(np.arange(6).reshape(2, 3), 4)
    dates = np.ma.MaskedArray(np.array(["2000-01-01", "NaT"], "M8[s]"), [False, True])
    packing: Any = {"attributes": {"scale_factor": 0.5, "add_offset": 1.0}}
    for name, dtype, data, dims, options in (
        ("two", "int64", masked, ["y", "x"], {}), ("date", "datetime64[s]", dates, ["y"], {}),
        ("text", "string", ["", None], ["y"], {}),
        ("packed", "int8", np.ma.masked_equal([1, 7], 7), ["y"], packing),
    ):  # fmt: skip
        optional = Optional(parse_dtype(dtype))
        group.create_array(name, data=data, dtype=optional, dimension_names=dims, **options)
    found = _read(tmp_path)
    np.testing.assert_array_equal(found.two, [[0, 1, 2], [3, np.nan, 5]])
    assert found.date.isnull().values.tolist() == [False, True]
    assert found.text.values.tolist()[0] == ""
    np.testing.assert_array_equal(found.packed, [1.5, np.nan])


@pytest.mark.parametrize("stored", ["int64", "int16", "float64", "uint8", "bool"])
def test_na_is_refused_where_each_element_has_a_value(stored: str) -> None:
    data = np.array([1, 0, 1]).astype(stored)
    store = to_zarr(days(data)).store
    before, more = contents(store), days([1, None], start=3)
    for new, options in ((more, {"append_dim": "t"}), (more.drop_vars("t"), {"region": {"t": slice(2)}})):
        with pytest.raises(DataTypeValidationError, match=r"'v' has no value at index \(1,\).*astype"):
            to_zarr(new, store, **options)
    assert contents(store) == before
    to_zarr(days([1, 0], start=3), store, append_dim="t")
    np.testing.assert_array_equal(xzarr3.open_array(store, "v")[...], [*data, 1, 0])


@pytest.mark.parametrize(("stored", "given", "dtype"), [
    ("Int8", 300, "Int64"), ("UInt8", -1, "Int64"), ("UInt64", -1, "Int64"), ("Int64", 2**63, "UInt64"),
    ("Int64", 1.5, "Float64"), ("Float64", 2**53 + 1, "Int64"), ("Float32", 1e300, "Float64"),
    ("boolean", 2, "Int64"),
])  # fmt: skip
@pytest.mark.parametrize("others", [[], [None]])
def test_what_cannot_be_held_is_refused(stored: str, given: Any, dtype: str, others: list[None]) -> None:
    store = to_zarr(days([1, None], stored)).store
    with pytest.raises(DataTypeValidationError):
        to_zarr(days([*others, given], dtype, start=2), store, append_dim="t")
    _same(_read(store).v.data, pd.array([1, None], dtype=stored))


def test_numbers_of_numpy_are_appended_exactly() -> None:
    for dtype, new in (("Int64", [LARGE, -LARGE]), ("boolean", [True, False]), ("UInt64", [2**64 - 1, 0])):
        store = to_zarr(days([new[0], None], dtype)).store
        plain = np.array(new, pd.array([], dtype=dtype).dtype.numpy_dtype)
        to_zarr(days(plain, start=2), store, append_dim="t")
        to_zarr(days(plain, start=4).chunk(t=1), store, append_dim="t")
        _same(_read(store).v.data, pd.array([new[0], None, *new, *new], dtype=dtype))


def test_na_among_packed_values_is_refused() -> None:
    packing = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}
    store = to_zarr(days(np.array([1.5, 2.0])), encoding={"v": packing}).store
    with pytest.raises(DataTypeValidationError, match=r"no value at index.*astype\(float\)"):
        to_zarr(days([1, None], start=2), store, append_dim="t")
    to_zarr(days([1, None], start=2).astype(float), store, append_dim="t")
    assert xzarr3.open_array(store, "v")[...].tolist() == [3, 4, 2, -1]


def test_variables_that_do_not_grow_are_compared_exactly() -> None:
    def step(at: int, *static: Any) -> xr.Dataset:
        return days([at], start=at, s=("y", pd.array(static, dtype="Int64")))

    store = to_zarr(step(0, LARGE, None, 0)).store
    to_zarr(step(1, LARGE, None, 0), store, append_dim="t")
    for others in ((LARGE - 1, None, 0), (LARGE, 0, 0), (LARGE, None, None)):
        with pytest.raises(ValueError, match="'s' at"):
            to_zarr(step(2, *others), store, append_dim="t")
    _same(_read(store).v.data, pd.array([0, 1], dtype="Int64"))


def _labelled(*labels: Any) -> xr.Dataset:
    return days(np.arange(len(labels))).assign_coords(t=("t", pd.array(labels, dtype="Int64")))


def test_labels_are_plain_numbers_if_all_are_there() -> None:
    group = to_zarr(_labelled(1, 2, LARGE))
    store = group.store
    assert group["t"].zdtype.name == "int64"
    assert opened(store).indexes["t"].tolist() == [1, 2, LARGE]
    to_zarr(_labelled(LARGE + 1), store, append_dim="t")
    for labels, message in (((LARGE,), "twice"), ((LARGE + 2, None), "no value")):
        with pytest.raises(ValueError, match=message):
            to_zarr(_labelled(*labels), store, append_dim="t")


def test_labels_may_be_absent() -> None:
    store = to_zarr(_labelled(1, None, LARGE)).store
    found = _read(store)
    assert found.indexes["t"].dtype == pd.Int64Dtype()
    assert found.sel(t=LARGE).v.item() == 2
    refused(DataTypeValidationError, "nullable=True", lambda: opened(store))
    for repeated in (LARGE, None):
        with pytest.raises(ValueError, match="twice"):
            to_zarr(_labelled(LARGE + 1, repeated), store, append_dim="t")
    to_zarr(_labelled(LARGE + 1, LARGE + 2), store, append_dim="t")
    _same(_read(store).t.data, pd.array([1, None, LARGE, LARGE + 1, LARGE + 2], dtype="Int64"))


def test_stores_are_joined_with_their_masks() -> None:
    def part(values: Any, static: list[Any], start: int = 0) -> xr.Dataset:
        return days(values, start=start, s=("y", pd.array(static, dtype="Int64")))

    parts = [part([1, None, LARGE], [LARGE, None]), part([None, LARGE, 5], [LARGE, None], 3)]
    stores = [to_zarr(each).store for each in parts]
    for options in ({}, {"concat_dim": "t"}, {"chunks": None}):
        found = xzarr3.open_mfdataset(stores, nullable=True, **options)
        _same(found.v.data, pd.array([1, None, LARGE, None, LARGE, 5], dtype="Int64"))
        _same(found.s.data, parts[0].s.data)
    for static in ([LARGE, 0], [0, None]):
        other = to_zarr(part([1], static, 6)).store
        for pair in ([stores[0], other], [other, stores[0]]):
            with pytest.raises(ValueError, match="'s' has other values"):
                xzarr3.open_mfdataset(pair, concat_dim="t", nullable=True)


def test_scalars_arrays_and_trees() -> None:
    ds = days([LARGE, None])
    assert to_zarr(ds.isel(t=0))["v"][...] == LARGE
    assert np.ma.is_masked(to_zarr(ds.isel(t=1))["v"][...])
    assert to_zarr(ds.v)["v"][...].tolist() == [LARGE, None]
    store = to_zarr(xr.DataTree.from_dict({"/a": ds})).store
    _same(xzarr3.open_datatree(store, nullable=True)["a/v"].data, ds.v.data)
    _same(xr.open_datatree(store, engine="xzarr3", nullable=True, chunks={})["a/v"].data, ds.v.data)


@pytest.mark.parametrize("zarr_format", [2, "3-draft"])
def test_only_format_3_has_the_data_type(zarr_format: Any) -> None:
    store = MemoryStore()
    for values in ([1, None], pd.array([True, None], dtype="boolean")):
        with pytest.raises(DataTypeValidationError, match=r"'?v'?.*zarr_format=3.*astype\(float\)"):
            to_zarr(days(values), store, zarr_format=zarr_format)
    assert not list(store.list(""))
    with pytest.raises(DataTypeValidationError, match="astype"):
        to_zarr(days([1, None]), to_zarr(days([1])[["t"]].drop_vars("t"), zarr_format=2).store, mode="a")
    for other in (pd.Categorical(["a", "b"]), pd.arrays.IntervalArray.from_breaks([0, 1, 2])):
        with pytest.raises((TypeError, ValueError), match=r"Int64|astype\(str\)"):
            to_zarr(xr.Dataset({"v": ("x", other)}), store)


@pytest.mark.parametrize("key", ["dtype", "scale_factor", "_FillValue", "missing_value", "units"])
def test_an_encoding_of_values_is_refused(key: str) -> None:
    value = {"dtype": "int16", "units": "days since 2000-01-01"}.get(key, -1)
    with pytest.raises(ArgumentError, match=rf"'{key}'.*Int64.*astype\(float\)"):
        to_zarr(days([1, None]), encoding={"v": {key: value}})
    if key not in ("dtype", "units"):
        ds = days([1, None])
        ds.v.attrs[key] = value
        refused(ArgumentError, rf"'{key}'", lambda: to_zarr(ds))


@pytest.mark.parametrize("chunks", [None, {"x": 1}])
def test_text_without_a_value_is_kept_or_refused(chunks: Any) -> None:
    given = xr.Dataset({"s": ("x", np.array(["b", None, "", np.nan], object))})
    refused(DataTypeValidationError, "missing text", lambda: to_zarr(given))
    group = xzarr3.open_group(MemoryStore(), mode="w")
    group.create_array("s", data=["a", None], dtype=Optional(parse_dtype("string")), dimension_names=["x"])
    for each in (given if chunks is None else given.chunk(chunks), xr.Dataset({"s": ("x", ["", "c"])})):
        to_zarr(each, group.store, append_dim="x")
    expected = ["a", None, "b", None, "", None, "", "c"]
    assert xzarr3.open_array(group.store, "s")[...].tolist() == expected
    to_zarr(opened(group.store, chunks=chunks and {}), group.store, append_dim="x")
    assert xzarr3.open_array(group.store, "s")[...].tolist() == expected * 2
    for wrong in (np.array(["d", 3], object), np.array([1, 2]), np.array(["2000-01-01"], "M8[ns]")):
        with pytest.raises(ValueError, match="'s'"):
            to_zarr(xr.Dataset({"s": ("x", wrong)}), group.store, append_dim="x")


def test_advice_knows_them() -> None:
    ds = days([LARGE, None] * 50)
    advice = xzarr3.advise(ds)
    assert "int64" in str(advice)
    group = to_zarr(ds, encoding=advice.encoding())
    _same(_read(group.store).v.data, ds.v.data)
    for each in (group["v"], group):
        assert xzarr3.advise(each).ratio == advice.ratio
