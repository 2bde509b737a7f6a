"""Arrays that cannot be read beside others of a dataset."""

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _documents import document, edit

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
        {"time": np.arange(4), **{name: ("x", np.arange(5.0)) for name in ("x", "lat", "lon")}},
    )


def stored(*changes: tuple[str, Callable[[Any], object]], zarr_format: Any = 3) -> Any:
    """The data, and what is changed in the document of an array."""
    store = xzarr3.to_zarr(data(), zarr_format=zarr_format, consolidated=False).store
    for name, change in changes:
        key = DOCUMENTS[zarr_format].format(name)
        changed = document(store, key)
        change(changed)
        edit(store, key, **changed)
    return store


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
    found = opened(stored(("bad", of_unknown_codec), zarr_format=zarr_format), chunks=chunks)
    assert found.xzarr3.explain().requests == found.drop_vars("bad").xzarr3.explain().requests
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
    store = stored(("bad", of_unknown_codec), zarr_format=zarr_format)
    with pytest.raises(UnknownExtensionError, match=r"drop_variables=\['bad'\]"):
        xzarr3.open_dataset(store, on_unreadable="raise")
    with pytest.raises(ValueError, match="accepted: 'keep', 'raise'"):
        xzarr3.open_dataset(store, on_unreadable="ignore")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert xzarr3.open_dataset(store, drop_variables="bad").xzarr3.unreadable == {}
    found = opened(store, keep_variables=["bad"])
    assert ({*found.variables}, found["bad"].shape) == ({"bad"}, (4, 5))


def test_open_dataset_with_unreadable_coordinates() -> None:
    decimal = lambda document: document.update(data_type="decimal")  # noqa: E731
    found = opened(stored(("lat", of_unknown_codec), ("time", decimal)))
    assert {"lat", "lon"} <= set(found.coords)
    assert found["lat"].dtype == np.dtype("f8")
    assert "time" not in found.variables, "xarray would read the coordinate of a dimension for its index"
    assert {*found.xzarr3.unreadable} == {"lat", "time"}
    np.testing.assert_array_equal(found["good"], data()["good"])


ROT13 = {"codecs": [{"name": "rot13"}]}
LEFT_OUT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no dimension names": ({"dimension_names": None}, KeyError, "'/bad', field 'dimension_names'"),
    "names that are none": ({"dimension_names": ["time", 5]}, MetadataError, "'/bad'"),
    "another length": ({"shape": [4, 6], **ROT13}, UnknownExtensionError, "'/bad'.*rot13"),
    "nameless": ({"dimension_names": None, **ROT13}, UnknownExtensionError, "'/bad'.*rot13"),
    "a negative length": ({"shape": [4, -1]}, MetadataError, "'/bad'"),
    "a length of text": ({"shape": [3, "4"]}, MetadataError, r"'/bad', field 'shape\[1\]'"),
    "no shape": ({"shape": "many"}, MetadataError, "'/bad'"),
    "data type": ({"data_type": "decimal"}, UnknownExtensionError, "'/bad'.*data_type.*decimal"),
    "grid": ({"chunk_grid": {"name": "hexagonal"}}, UnknownExtensionError, "'/bad'.*chunk_grid"),
    "fill value": ({"attributes": {"_FillValue": "x"}}, MetadataError, r"attributes\._FillValue.*'x'"),
}


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("case", LEFT_OUT)
def test_open_dataset_names_what_is_no_variable_and_leaves_it_out(case: str, consolidated: bool) -> None:
    change, error, message = LEFT_OUT[case]
    store = stored(("bad", lambda document: document.update(change)))
    if consolidated:
        names = [key.partition("/")[0] for key in store.list() if key.endswith("/zarr.json")]
        held = {name: document(store, f"{name}/zarr.json") for name in names}
        copies = {"kind": "inline", "must_understand": False, "metadata": held}
        edit(store, "zarr.json", consolidated_metadata=copies)
    with pytest.raises(error, match=message) as caught:
        xzarr3.open_dataset(store, on_unreadable="raise")
    if error is not KeyError:  # An array without names of dimensions can be read, but is no variable.
        assert "pass drop_variables=['bad']" in str(caught.value)
        found = opened(store)
        is_kept = case in ("data type", "grid", "fill value")
        assert ({*found.xzarr3.unreadable}, "bad" in found) == ({"bad"}, is_kept)
        np.testing.assert_array_equal(found["good"], data()["good"])
    xr.testing.assert_identical(xzarr3.open_dataset(store, drop_variables="bad"), data().drop_vars("bad"))


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b""])
def test_open_dataset_beside_a_broken_document(text: bytes) -> None:
    store = stored()
    store.set("bad/zarr.json", text)
    assert {*opened(store).xzarr3.unreadable} == {"bad"}
    for open_it, options in ((xzarr3.open_dataset, {"on_unreadable": "raise"}), (xzarr3.open_datatree, {})):
        with pytest.raises(MetadataError, match=r"'/bad'.*pass drop_variables=\['bad'\]"):
            open_it(store, **options)  # it may be a group with data below it
        assert "good" in open_it(store, drop_variables=["bad"])


def test_open_datatree_with_unreadable_variables() -> None:
    store = xzarr3.to_zarr(data(), consolidated=False).store
    for key, value in contents(stored(("bad", of_unknown_codec))).items():
        store.set(f"below/{key}", value)
    with pytest.warns(UserWarning, match="'bad' cannot be read"):
        tree = xzarr3.open_datatree(store)
    assert {*tree.xzarr3.unreadable} == {"below/bad"}
    np.testing.assert_array_equal(tree["good"], data()["good"])
    assert tree["bad"].load().dtype.kind == "M"
