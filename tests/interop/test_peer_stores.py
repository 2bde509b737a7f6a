"""Hierarchies that other writers made, kept in ``tests/data``, are read bit for bit without their writers."""

import json
import pickle
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from _conformance import refused
from _peers import DATA
from _things import module_at

import xzarr3

AnyArray = npt.NDArray[Any]
Record = dict[str, Any]

STORES = sorted(path.relative_to(DATA).as_posix().removesuffix(".json") for path in DATA.glob("*/*.json"))
WRITERS = {"gdal", "netcdf-c", "tensorstore", "xarray", "zarr-python"}
# Names of dimensions are stored as attributes where a format has no place for them.
DIMENSIONS = "_ARRAY_DIMENSIONS"
# What is refused so far, and the field that is to blame.
NOT_READ = {
    ("gdal-3.12.2/v3_complex64", "band"): "fill_value",
    ("gdal-3.12.2/v3_int16", "band"): "fill_value",
    ("tensorstore-0.1.86/v2", "record"): "dtype",  # A field that holds arrays.
    ("zarr-python-2.18.7/types", "subarray"): "dtype",
    # Fields, or filters, of another byte order than the others.
    **{("zarr-python-2.18.7/types", name): "dtype" for name in ("nested", "record", "record_null")},
    ("zarr-python-2.18.7/types", "record_zero"): "dtype",
    ("zarr-python-2.18.7/layouts", "F_record"): "dtype",
    ("zarr-python-2.18.7/codecs", "filter/astype_int"): "filters[0].encode_dtype",
    ("zarr-python-2.18.7/codecs", "filter/categorize"): "filters[0].id",
    ("zarr-python-2.18.7/codecs", "compressor/base64"): "compressor.id",
    ("zarr-python-2.18.7/codecs", "compressor/lzma_delta"): "compressor.format",
    ("zarr-python-2.18.7/codecs", "compressor/lzma_raw"): "compressor.format",
}
# Objects by JSON are read as text; what is no text is refused.
NO_TEXT = {
    ("zarr-python-2.18.7/variable", name) for name in ("json", "json_2d", "json_compressed", "json_missing")
}
# A byte has bits that values of these types do not use.
NARROW = ("int2", "int4", "float4_e2m1fn")

_expected = module_at(DATA / "_expected.py")


@cache
def records(store: str) -> dict[str, dict[str, Record]]:
    """What the writer of a store says is in it."""
    found: dict[str, dict[str, Record]] = json.loads((DATA / f"{store}.json").read_text())
    return found


def nodes(section: str) -> list[tuple[str, str]]:
    return [(store, path) for store in STORES for path in records(store)[section]]


def names(of: list[tuple[str, str]]) -> list[str]:
    return [":".join(pair) for pair in of]


ARRAYS, GROUPS, REFUSED = nodes("arrays"), nodes("groups"), nodes("refused")
CONSOLIDATED = [store for store in STORES if (DATA / store / ".zmetadata").exists()]
CONSOLIDATED += [
    store
    for store in STORES
    if (DATA / store / "zarr.json").exists()
    and json.loads((DATA / store / "zarr.json").read_text()).get("consolidated_metadata")
]


def opened(store: str, path: str = "", **options: Any) -> Any:
    """A node of a kept store, which nothing may change."""
    return xzarr3.open(xzarr3.LocalStore(DATA / store, read_only=True), path, **options)


def assert_same(found: Any, record: Record) -> None:
    """The values are those of the record: the same bits, whatever their byte order, or equal objects."""
    expected: AnyArray = _expected.to_values(record)
    # Without dimensions there are scalars, and a scalar does not know the length of its dtype.
    found = np.asarray(found, expected.dtype if np.isscalar(found) else None)
    assert found.shape == expected.shape
    if expected.dtype.kind == "O":
        items = [str(item) if record["dtype"] == "str" else item for item in found.ravel()]
        assert items == list(expected.ravel())
        assert [*map(type, items)] == [*map(type, expected.ravel())]
        return
    assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    if expected.dtype.name in NARROW:
        found, expected = found.astype("f4"), expected.astype("f4")
    assert found.astype(expected.dtype).tobytes() == expected.tobytes()


def test_every_writer_is_here() -> None:
    assert {next(name for name in WRITERS if store.startswith(name)) for store in STORES} == WRITERS
    assert {store.partition("/")[0].rpartition("-")[2] for store in STORES} >= {"2.18.7", "3.4.2"}
    assert len(ARRAYS) > 600
    assert len(CONSOLIDATED) >= 12


@pytest.mark.parametrize(("store", "path"), ARRAYS, ids=names(ARRAYS))
def test_array(store: str, path: str) -> None:
    record = records(store)["arrays"][path]
    if (store, path) in NOT_READ:
        (error,) = refused(xzarr3.MetadataError, lambda: opened(store, path))
        assert error.field == NOT_READ[store, path]
        return
    array = opened(store, path)
    assert isinstance(array, xzarr3.Array)
    if (store, path) in NO_TEXT:
        refused(xzarr3.ChunkDecodeError, lambda: array[...], match="an element is no text")
        return
    assert_same(array[...], record)
    for selection in [(slice(None, None, -2),), (Ellipsis, slice(1, 3))][: 2 * array.ndim]:
        part = _expected.of_values(_expected.to_values(record)[selection], record["dtype"])
        assert_same(array[selection], part)
    if "fill" in record:
        fill = np.asarray(array.fill_value, array.dtype)
        assert_same(fill, {**record, "shape": [], "values": record["fill"]})
    if "names" in record:
        assert list(array.dimension_names or ()) == record["names"]
    attributes = dict(record.get("attributes", {}))
    if DIMENSIONS in attributes and array.metadata.zarr_format != 3:
        assert list(array.dimension_names or ()) == attributes.pop(DIMENSIONS)
    assert json.dumps(dict(array.attrs), sort_keys=True) == json.dumps(attributes, sort_keys=True)


@pytest.mark.parametrize(("store", "path"), GROUPS, ids=names(GROUPS))
def test_group(store: str, path: str) -> None:
    group = opened(store, path, use_consolidated=False)
    assert isinstance(group, xzarr3.Group)
    expected = records(store)["groups"][path]["attributes"]
    assert json.dumps(dict(group.attrs), sort_keys=True) == json.dumps(expected, sort_keys=True)
    prefix = f"{path}/" if path else ""
    below = [other for _, other in nodes_of(store) if other.startswith(prefix) and other != path]
    assert set(group) == {other.removeprefix(prefix).partition("/")[0] for other in below}


def nodes_of(store: str) -> list[tuple[str, str]]:
    return [(section, path) for section in records(store) for path in records(store)[section]]


@pytest.mark.parametrize("store", STORES)
def test_pickles_and_dask(store: str) -> None:
    for path in records(store)["groups"]:
        group = opened(store, path)
        assert list(pickle.loads(pickle.dumps(group))) == list(group)
    for path in records(store)["arrays"]:
        if (store, path) in NOT_READ or (store, path) in NO_TEXT:
            continue
        array = opened(store, path)
        data = pickle.dumps(array)
        again = pickle.loads(data)
        assert len(data) < 20_000
        assert again.metadata.stores_as(array.metadata)
        assert again.metadata.fill_is_null == array.metadata.fill_is_null
        for name in ("shape", "dtype", "dimension_names", "write_chunks", "format", "read_only", "store"):
            assert getattr(again, name) == getattr(array, name)
        assert repr(again.attrs) == repr(array.attrs)
        assert again.__dask_tokenize__() == array.__dask_tokenize__()
        expected = array[...]
        for lazy in (xzarr3.from_zarr(array), xzarr3.from_zarr(again)):
            assert lazy.name == xzarr3.from_zarr(opened(store, path)).name
            found = np.asarray(lazy.compute(scheduler="sync"), array.dtype)
            if array.dtype.kind == "O":
                assert [*found.ravel()] == [*np.asarray(expected, object).ravel()]
            else:
                assert found.tobytes() == np.asarray(expected, array.dtype).tobytes()


@pytest.mark.parametrize("store", CONSOLIDATED)
def test_consolidated(store: str) -> None:
    root = opened(store, use_consolidated=True)
    plain = opened(store, use_consolidated=False)
    assert root.consolidated
    assert not plain.consolidated
    for section, path in nodes_of(store):
        parent, _, name = path.rpartition("/")
        assert not name or name in set(root[parent] if parent else root)
        if (store, path) in NOT_READ or (store, path) in NO_TEXT:
            continue
        if section == "arrays":
            assert repr(root[path].metadata) == repr(plain[path].metadata)
            assert_same(root[path][...], records(store)["arrays"][path])
        elif path:
            assert dict(root[path].attrs) == dict(plain[path].attrs)


@pytest.mark.parametrize(("store", "path"), REFUSED, ids=names(REFUSED))
def test_refused(store: str, path: str) -> None:
    refused(xzarr3.UnknownExtensionError, lambda: opened(store, path))
