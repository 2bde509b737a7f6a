"""Arrays that cannot be read beside others of a dataset."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xzarr3
from xzarr3.errors import MetadataError, UnknownExtensionError

DOCUMENTS: dict[Any, str] = {3: "{}/zarr.json", 2: "{}/.zarray", "3-draft": "meta/{}.array.json"}
FORMATS = pytest.mark.parametrize("zarr_format", DOCUMENTS)
CHUNKS = pytest.mark.parametrize("chunks", [None, {}, "grouped"])


def data() -> xr.Dataset:
    values = np.arange(20.0).reshape(4, 5)
    attrs = {"long_name": "a rate", "units": "hours since 2000-01-01"}
    return xr.Dataset(
        {"good": (("time", "x"), values), "bad": (("time", "x"), values, attrs)},
        {
            "time": np.arange(4),
            "x": np.arange(5.0),
            "lat": ("x", np.arange(5.0)),
            "lon": ("x", np.arange(5.0)),
        },
    )


def stored(zarr_format: Any = 3, **options: Any) -> xzarr3.MemoryStore:
    store = xzarr3.MemoryStore()
    xzarr3.to_zarr(data(), store, zarr_format=zarr_format, consolidated=False, **options)
    return store


def edit(store: xzarr3.MemoryStore, name: str, change: Callable[[Any], object], zarr_format: Any = 3) -> None:
    key = DOCUMENTS[zarr_format].format(name)
    document = json.loads(bytes(store.get(key) or b""))
    change(document)
    store.set(key, json.dumps(document).encode())


def of_unknown_codec(document: dict[str, Any]) -> None:
    if "extensions" in document:
        document["codecs"].append({"type": "https://example.org/codecs/jpeg2k/1.0", "configuration": {}})
    elif "codecs" in document:
        document["codecs"].append({"name": "jpeg2k"})
    else:
        document["compressor"] = {"id": "jpeg2k"}


def opened(store: object, **options: Any) -> xr.Dataset:
    with pytest.warns(UserWarning, match="cannot be read|is left out"):
        return xzarr3.open_dataset(store, **options)  # type: ignore[arg-type]


@FORMATS
@CHUNKS
def test_open_dataset_beside_an_unknown_codec(zarr_format: Any, chunks: Any) -> None:
    store = stored(zarr_format)
    edit(store, "bad", of_unknown_codec, zarr_format)
    found = opened(store, chunks=chunks)
    bad = found["bad"]
    assert (bad.dims, bad.shape, bad.dtype, bad.attrs["long_name"]) == (("time", "x"), (4, 5), "f8", "a rate")
    assert "unreadable: unknown codec" in repr(found)
    assert "jpeg2k" in found.xzarr3.unreadable["bad"]
    assert found.xzarr3.unreadable == found.isel(x=slice(1, 3)).xzarr3.unreadable
    xr.testing.assert_identical(found.drop_vars("bad").load(), data().drop_vars("bad"))
    part = pickle.loads(pickle.dumps(found.isel(time=1, x=[0, 2])))["bad"]
    assert part.shape == (2,)
    uses: list[Callable[[xr.DataArray], object]] = [
        lambda each: each.values, lambda each: each.load(), lambda each: each.compute(),
        lambda each: each.mean(), lambda each: each.chunk().compute(), lambda each: each.to_dataset().load(),
        lambda each: each.to_dataset().xzarr3.to_zarr(xzarr3.MemoryStore()),
    ]  # fmt: skip
    for use in uses:
        for each in (bad, part):
            with pytest.raises(UnknownExtensionError, match="jpeg2k"):
                use(each)


@FORMATS
def test_open_dataset_on_unreadable_raise(zarr_format: Any) -> None:
    store = stored(zarr_format)
    edit(store, "bad", of_unknown_codec, zarr_format)
    with pytest.raises(UnknownExtensionError, match=r"drop_variables=\['bad'\]"):
        xzarr3.open_dataset(store, on_unreadable="raise")
    with pytest.raises(ValueError, match="accepted: 'keep', 'raise'"):
        xzarr3.open_dataset(store, on_unreadable="ignore")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert xzarr3.open_dataset(store, drop_variables="bad").xzarr3.unreadable == {}


def test_open_dataset_with_unreadable_coordinates() -> None:
    store = stored()
    edit(store, "lat", of_unknown_codec)
    edit(store, "time", lambda document: document.update(data_type="decimal"))
    found = opened(store)
    assert {"lat", "lon"} <= set(found.coords)
    assert found["lat"].dtype == np.dtype("f8")
    assert "time" not in found.variables, "xarray would read the coordinate of a dimension for its index"
    assert {*found.xzarr3.unreadable} == {"lat", "time"}
    np.testing.assert_array_equal(found["good"], data()["good"])


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no dimension names": lambda document: document.pop("dimension_names"),
    "another length": lambda document: document.update(shape=[4, 6]),
    "a negative length": lambda document: document.update(shape=[4, -1]),
    "no shape": lambda document: document.update(shape="many"),
    "names that are none": lambda document: document.update(dimension_names=["time", 5]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_open_dataset_leaves_out_what_is_no_variable(change: Callable[[dict[str, Any]], object]) -> None:
    store = stored()
    edit(store, "bad", lambda document: (of_unknown_codec(document), change(document)))
    found = opened(store)
    assert "bad" not in found
    assert {*found.xzarr3.unreadable} == {"bad"}
    np.testing.assert_array_equal(found["good"], data()["good"])


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b""])
def test_open_dataset_beside_a_broken_document(text: bytes) -> None:
    store = stored()
    store.set("bad/zarr.json", text)
    assert {*opened(store).xzarr3.unreadable} == {"bad"}
    with pytest.raises(MetadataError):
        xzarr3.open_datatree(store)  # it may be a group with data below it


def test_open_dataset_keep_variables_of_unreadable_ones() -> None:
    store = stored()
    edit(store, "bad", of_unknown_codec)
    found = opened(store, keep_variables=["bad"])
    assert ({*found.variables}, found["bad"].shape) == ({"bad"}, (4, 5))


def test_open_datatree_with_unreadable_variables() -> None:
    store = xzarr3.MemoryStore()
    xzarr3.to_zarr(xr.DataTree.from_dict({"/": data(), "/below": data()}), store, consolidated=False)
    edit(store, "below/bad", of_unknown_codec)
    with pytest.warns(UserWarning, match="'bad' cannot be read"):
        tree = xzarr3.open_datatree(store)
    assert {*tree.xzarr3.unreadable} == {"below/bad"}
    np.testing.assert_array_equal(tree["good"], data()["good"])
    assert tree["bad"].load().dtype.kind == "M"


def test_explain_of_unreadable_variables() -> None:
    store = stored()
    edit(store, "bad", of_unknown_codec)
    found = opened(store)
    assert found.xzarr3.explain().requests == found.drop_vars("bad").xzarr3.explain().requests
