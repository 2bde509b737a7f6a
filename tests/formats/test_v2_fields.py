"""Fields of version 2 that hold arrays: numpy is the oracle, tensorstore the peer."""

from __future__ import annotations

import base64
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import DataTypeValidationError, MetadataError
from xzarr3.dtypes import Float32, Int16, Struct, parse_dtype
from xzarr3.dtypes.registry import registry
from xzarr3.dtypes.structs import FieldArray

AnyArray = np.ndarray[Any, Any]

DTYPES: list[Any] = [
    [("block", "<u2", (2, 3)), ("z", "<c8")],
    [("block", ">f4", (2, 2)), ("n", ">i8")],
    [("a", "<i4"), ("p", [("u", "<f8", (3,)), ("v", "S3", (1, 2))], (2,))],
    [("mixed", ">f8", (2,)), ("n", "<i4")],
    [("t", "<M8[ns]", (2,)), ("r", "V3", (2,))],
    [("flags", "?", (3,)), ("text", "<U2", (2,))],
]


def noise(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> AnyArray:
    """Values of random bits, where numpy permits any."""
    rng = np.random.default_rng(seed)
    values = np.zeros(shape, dtype)
    if dtype.names is not None:
        for at, name in enumerate(dtype.names):
            field = values[name]
            field[...] = noise(field.dtype, field.shape, seed + at)
        return values
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        return rng.choice(np.array(["", "a", "é日"], dtype), shape)
    return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressors", [None, "zstd", {"id": "blosc"}], ids=str)
def test_arrays(dtype: Any, order: str, compressors: Any) -> None:
    dtype = np.dtype(dtype)
    values = noise(dtype, (5, 7))
    fill = values[1, 1]
    values[2:4, 3:6] = fill
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(
        store, shape=(5, 7), chunks=(2, 3), dtype=dtype, zarr_format=2, order=order, compressors=compressors,
        fill_value=fill,
    )  # fmt: skip
    array[...] = values
    found = xzarr3.open_array(store)
    assert found[...].astype(dtype).tobytes() == values.tobytes()
    assert found[1:4, ::2].astype(dtype).tobytes() == values[1:4, ::2].tobytes()
    assert np.asarray(found.fill_value).astype(dtype).tobytes() == fill.tobytes()
    assert store.get("1.1") is None  # Nothing but the fill value
    document = json.loads(bytes(store.get(".zarray") or b""))
    assert base64.b64decode(document["fill_value"]) == fill.tobytes()
    assert np.dtype(listed(document["dtype"])) == dtype
    if compressors is None:
        chunk = np.asarray(values[:2, :3], order=order)  # type: ignore[call-overload]
        assert bytes(store.get("0.0") or b"") == chunk.tobytes("A")


def listed(spec: Any) -> Any:
    """The dtype of a document as numpy wants it."""
    if isinstance(spec, str):
        return spec
    return [(field[0], listed(field[1]), *map(tuple, field[2:])) for field in spec]


@st.composite
def dtypes(draw: st.DrawFn, depth: int = 2) -> np.dtype[Any]:
    """Structured dtypes, at least one of whose fields holds an array."""
    simple = st.sampled_from(["?", "i1", "<i2", ">i2", "<u4", ">f4", "<f8", "<c8", "S3", "<U2", ">U1", "V2"])
    item = st.one_of(simple, dtypes(depth - 1)) if depth else simple
    shape = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    fields = draw(st.lists(st.tuples(item, shape), min_size=1, max_size=3))
    return np.dtype([("first", "<i2", (2,)), *((f"f{at}", *field) for at, field in enumerate(fields))])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(dtypes(), st.integers(0, 2**32 - 1))
def test_any_fields(dtype: np.dtype[Any], seed: int) -> None:
    data_type = parse_dtype(dtype)
    assert data_type.to_native_dtype() == dtype
    spec = json.loads(json.dumps(data_type.to_json(2)))
    assert registry.match_json(spec, zarr_format=2) == data_type
    assert np.dtype(listed(spec["name"])) == dtype
    assert pickle.loads(pickle.dumps(data_type)) == data_type
    assert hash(registry.match_json(spec, zarr_format=2)) == hash(data_type)
    values = noise(dtype, (3, 2), seed)
    assert data_type.cast_array(values).tobytes() == values.tobytes()
    # A scalar by its bits, its JSON and its fields.
    scalar = data_type.cast_scalar(values[0, 0])
    assert data_type.bits(scalar) == values[0, 0].tobytes()
    text = data_type.to_json_scalar(scalar, zarr_format=2)
    assert base64.b64decode(text) == values[0, 0].tobytes()
    assert data_type.bits(data_type.from_json_scalar(text, zarr_format=2)) == values[0, 0].tobytes()
    by_name = {name: values[0, 0][name] for name in dtype.names or ()}
    assert data_type.bits(data_type.cast_scalar(by_name)) == values[0, 0].tobytes()
    assert data_type.bits(data_type.cast_scalar(tuple(by_name.values()))) == values[0, 0].tobytes()
    # Arrays of nothing else.
    filled = data_type.filled((2, 3), scalar)
    assert filled.dtype == dtype
    assert filled.tobytes() == 6 * values[0, 0].tobytes()
    assert data_type.holds_only(filled, scalar)
    filled.view("u1").reshape(-1)[-1] ^= 1
    assert not data_type.holds_only(filled, scalar)
    # Other byte orders.
    for order in ("little", "big"):
        other = data_type.in_byte_order(order)
        if other.byte_order is not None:
            assert other.byte_order == order
        turned = other.cast_array(values)
        assert turned.dtype == other.to_native_dtype()
        assert turned.astype(dtype).tobytes() == values.tobytes()
        assert other.bits(other.cast_scalar(scalar)) == turned[0, 0].tobytes()
    for zarr_format in (3, "3-draft"):
        with pytest.raises(
            DataTypeValidationError, match=r"only fields of Zarr format 2 hold arrays|has no data type"
        ) as caught:
            data_type.to_json(zarr_format)  # type: ignore[arg-type]
        assert caught.value.accepted


def test_values_of_users() -> None:
    data_type = parse_dtype([("block", "<i2", (2, 2)), ("p", [("x", "<f4")], (2,)), ("n", "i1")])
    one = (((1, 2), [3, 4]), [(0.5,), (1.5,)], 7)
    expected = np.array([([[1, 2], [3, 4]], [(0.5,), (1.5,)], 7)], data_type.to_native_dtype())
    assert data_type.bits(data_type.cast_scalar(one)) == expected.tobytes()
    assert data_type.cast_array([one]).tobytes() == expected.tobytes()
    assert data_type.cast_array([[one, expected[0]]]).tobytes() == 2 * expected.tobytes()
    wider = expected.astype([("block", "<i8", (2, 2)), ("p", [("x", "<f8")], (2,)), ("n", "<i4")])
    assert data_type.cast_array(wider).tobytes() == expected.tobytes()
    wider["block"][0, 1, 1] = 40000
    for wrong in (
        wider, [([1, 2], one[1], 7)], [(3, one[1], 7)], [(((1, 2.5), (3, 4)), one[1], 7)],
        [(one[0], [(0.5,)], 7)],
        [(((1, 2), (3,)), one[1], 7)], [(None, one[1], 7)], [("abcd", one[1], 7)],
        np.zeros(2, [("block", "<i2"), ("p", [("x", "<f4")], (2,)), ("n", "i1")]),
        np.zeros((2, 2), [("block", "<i2", (2,)), ("p", [("x", "<f4")], (2,)), ("n", "i1")]),
        np.zeros(2, [("block", "<i2", (2, 2)), ("p", [("x", "<f4")]), ("n", "i1")]),
        np.zeros((2, 2), [("block", "<i2", (2, 2)), ("p", [("x", "<f4")], (2,)), ("n", "i1", (2,))]),
    ):  # fmt: skip
        with pytest.raises(DataTypeValidationError):
            data_type.cast_array(wrong)
    deep = parse_dtype([("a", "<i2", (1,) * 16)])
    assert deep.cast_array(np.zeros((1,) * 60, deep.to_native_dtype())).shape == (1,) * 60
    with pytest.raises(DataTypeValidationError, match="dimensions"):
        deep.cast_array(np.zeros((1,) * 60, [("a", "<i4", (1,) * 16)]))
    plain = parse_dtype([("block", "<i2"), ("n", "i1")])
    with pytest.raises(DataTypeValidationError):
        plain.cast_array(np.zeros(2, [("block", "<i2", (2,)), ("n", "i1")]))


@pytest.mark.parametrize("shape", [(), (0,), (2, -1), (True,), (2.0,), ("2",), (1,) * 17, (2**40,)], ids=str)
def test_shapes_that_no_field_has(shape: Any) -> None:
    with pytest.raises(DataTypeValidationError) as caught:
        FieldArray(Int16(), shape)
    assert caught.value.accepted


def test_fields_of_arrays_are_fields() -> None:
    field = FieldArray(Float32(), (2,))
    assert field.to_native_dtype() == np.dtype(("<f4", (2,)))
    assert Struct((("a", field),)) == parse_dtype([("a", "<f4", (2,))])
    assert field.default_scalar().tolist() == [0.0, 0.0]
    assert (field.has_byte_order, field.item_size, field.numpy_swaps) == (True, 8, True)
    assert field.bits(np.array([-0.0, 0.0], "f4")) != field.bits(np.array([0.0, 0.0], "f4"))
    for spec in (("<f4", (2,)), np.dtype(("<f4", (2,)))):
        with pytest.raises(DataTypeValidationError, match="each element is an array"):
            parse_dtype(spec)
    with pytest.raises(DataTypeValidationError, match="no fixed size"):
        FieldArray(parse_dtype("string"), (2,))
    with pytest.raises(MetadataError, match="base64"):
        field.from_json_scalar([0, 0], zarr_format=2)


@pytest.mark.parametrize("zarr_format", [3, "3-draft"])
def test_other_versions_have_no_such_fields(zarr_format: Any) -> None:
    store = xzarr3.MemoryStore()
    with pytest.raises(MetadataError) as caught:
        xzarr3.create_array(store, shape=(2,), dtype=[("a", "<i2", (2,))], zarr_format=zarr_format)
    assert caught.value.accepted
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), shape=(2,), dtype=[("a", "<i2", (2,))], zarr_format=2, compressors=None
    )
    with pytest.raises(MetadataError):
        xzarr3.copy(array, store, zarr_format=zarr_format)
    assert list(store.list()) == []
    for field in (["a", "int16", [2]], {"name": "a", "data_type": "int16", "shape": [2]}):
        with pytest.raises(DataTypeValidationError, match="not a field"):
            parse_dtype({"name": "struct", "configuration": {"fields": [field]}})


def test_tensorstore(tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    dtype = np.dtype([("n", "<i4"), ("block", ">f4", (2, 3)), ("raw", "S3")])
    values = noise(dtype, (5, 7))

    def opened(path: Path, field: str, **options: Any) -> Any:
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(path)}, "field": field, **options}
        return tensorstore.open(spec, context=tensorstore.Context({"file_io_sync": False})).result()

    metadata = {
        "shape": [5, 7], "chunks": [2, 3], "order": "C", "compressor": None, "fill_value": None,
        "dtype": [["n", "<i4"], ["block", ">f4", [2, 3]], ["raw", "|S3"]],
    }  # fmt: skip
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    values["block"] = np.arange(values["block"].size).reshape(values["block"].shape)
    for name, create in (("n", True), ("block", False)):
        array = opened(theirs, name, create=create, open=not create, metadata=metadata)
        array[...] = values[name].astype(values[name].dtype.newbyteorder("="))
    array = xzarr3.create_array(
        ours, shape=(5, 7), chunks=(2, 3), dtype=dtype, zarr_format=2, compressors=None
    )
    array[...] = values
    for path in (theirs, ours):
        found = xzarr3.open_array(path)[...]
        for name in ("n", "block"):
            assert found[name].tolist() == values[name].tolist()
            assert np.asarray(opened(path, name, open=True).read().result()).tolist() == values[name].tolist()
