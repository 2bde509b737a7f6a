"""Data types and fill values as zarr-python writes and reads them, for all that both know."""

import json
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from _strategies import NUMERIC, SMALL_NAMES, from_bits, native, special

from xzarr3.dtypes import Struct, ZDType, parse_dtype, registry

theirs = pytest.importorskip("zarr.dtype")
errors = pytest.importorskip("zarr.errors")

pytestmark = pytest.mark.filterwarnings("ignore")

NAT = -(2**63)
RECENT = tuple(map(int, pytest.importorskip("zarr").__version__.split(".")[:2])) >= (3, 4)
NUMPY = [
    *NUMERIC, *(f">{native(name).str[1:]}" for name in NUMERIC if native(name).itemsize > 1),
    "S1", "S9", "<U1", ">U7", "<M8[s]", ">M8[10us]", "<m8[ns]", ">m8[7D]", "<M8[Y]", "<M8",
    np.dtype([("a", "<i2"), ("b", "<f4")]), np.dtype([("a", [("x", "f8"), ("y", "S3")]), ("t", "<M8[s]")]),
    np.dtype([("v", "V3"), ("u", "<U2")]),
]  # fmt: skip


def quietly(call: Any) -> Any:
    """zarr-python warns of data types that it takes for unstable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def plain(data: Any) -> Any:
    return json.loads(json.dumps(data))


PLAIN: list[Any] = [("a", "<i2"), ("b", "<f4")]
NESTED: list[Any] = [("p", [("x", "f8")]), ("s", "S3")]


def peer(dtype: Any) -> Any:
    return theirs.parse_dtype(np.dtype(dtype), zarr_format=2)


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
def test_both_write_the_same_data_type(dtype: Any) -> None:
    mine, other = parse_dtype(np.dtype(dtype)), peer(dtype)
    assert mine.to_native_dtype() == other.to_native_dtype() == np.dtype(dtype)
    assert mine.to_json(2) == plain(quietly(lambda: other.to_json(zarr_format=2)))
    written = plain(quietly(lambda: other.to_json(zarr_format=3)))
    assert registry.match_json(written, zarr_format=3).in_native_order().to_native_dtype() == (
        mine.in_native_order().to_native_dtype()
    )
    if "V3" not in str(dtype) and "structured" not in str(written):
        assert mine.to_json(3) == written
    fields = mine.to_json(2)["name"]
    nested = isinstance(fields, list) and any(isinstance(inner, list) for _, inner in fields)
    if RECENT or not nested:
        back = quietly(lambda: type(other).from_json(mine.to_json(2), zarr_format=2))
        assert back == other
    assert type(mine).__name__ in (type(other).__name__, "Struct")


def record(dtype: list[Any], *fields: Any) -> Any:
    return np.array(fields, dtype)[()]


SCALARS: list[tuple[Any, Any]] = [
    *((name, special(name)) for name in NUMERIC), ("S4", [b"", b"ab", b"\xff\0a"]),
    ("<U3", ["", "é日", "😀"]), (">U3", ["abc"]), ("V3", [np.void(b"\1\2\3"), np.void(bytes(3))]),
    ("<M8[s]", [np.datetime64(5, "s"), np.datetime64("NaT", "s"), np.datetime64(-(2**62), "s")]),
    (">M8[10us]", [np.datetime64(7, ("us", 10))]),
    ("<m8[ns]", [np.timedelta64(-1, "ns"), np.timedelta64("NaT", "ns")]), (PLAIN, [record(PLAIN, 1, 2.5)]),
    (NESTED, [record(NESTED, (0.5,), b"ab")]),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "scalars"), SCALARS, ids=[str(dtype) for dtype, _ in SCALARS])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_both_write_the_same_scalars(dtype: Any, scalars: Any, zarr_format: Any) -> None:
    mine, other = parse_dtype(np.dtype(dtype)), peer(dtype)
    if dtype == "V3" and zarr_format == 3:
        mine = parse_dtype({"name": "raw_bytes", "configuration": {"length_bytes": 3}})
    if not RECENT and zarr_format == 3 and ">" in str(dtype[0]) + str(dtype[-1]):
        pytest.skip("older releases wrote base64 in whatever byte order")
    for scalar in scalars:
        form = mine.to_json_scalar(scalar, zarr_format=zarr_format)
        if "0x" in str(form):
            continue  # zarr-python writes "NaN" for every NaN.
        bits = mine.bits(mine.from_json_scalar(form, zarr_format=zarr_format))
        written = plain(quietly(partial(other.to_json_scalar, scalar, zarr_format=zarr_format)))
        # Older ones wrote base64 for structs; "NaT" is another word for the least integer.
        is_old = isinstance(mine, Struct) and isinstance(written, str) and zarr_format == 3
        assert is_old or written == (NAT if form == "NaT" else form)
        assert mine.bits(mine.from_json_scalar(written, zarr_format=zarr_format)) == bits
        if not is_old:
            back = other.from_json_scalar(form, zarr_format=zarr_format)
            assert mine.bits(mine.cast_scalar(back)) == bits


ANY_SIZE = [("string", "VariableLengthUTF8"), ("bytes", "VariableLengthBytes")]


@pytest.mark.parametrize(("mine", "other"), ANY_SIZE)
def test_both_know_elements_of_any_size(mine: str, other: str) -> None:
    data_type, cls = parse_dtype(mine), getattr(theirs, other)
    assert type(data_type).__name__ == other
    assert data_type.to_json(2) == cls().to_json(zarr_format=2)
    written = quietly(lambda: cls().to_json(zarr_format=3))
    assert registry.match_json(written, zarr_format=3) == data_type
    assert quietly(lambda: cls.from_json(data_type.to_json(3), zarr_format=3)) == cls()
    for scalar in ("", "é") if mine == "string" else (b"", b"\xff\0"):
        for zarr_format in (2, 3):
            form = data_type.to_json_scalar(scalar, zarr_format=zarr_format)  # type: ignore[arg-type]
            assert form == cls().to_json_scalar(scalar, zarr_format=zarr_format)
            assert cls().from_json_scalar(form, zarr_format=zarr_format) == scalar
    if mine == "string":
        assert data_type.from_json_scalar(0, zarr_format=2) == cls().from_json_scalar(0, zarr_format=2)


@pytest.mark.parametrize(
    "spec", ["int16", ">M8[10s]", "<U5", "|S3", "float64", str, "str", "string"], ids=str
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_both_take_the_same_from_users(spec: Any, zarr_format: Any) -> None:
    mine = parse_dtype(spec, zarr_format=zarr_format)
    other = theirs.parse_dtype(spec, zarr_format=zarr_format)
    assert mine.to_native_dtype() == other.to_native_dtype()
    assert mine.to_json(2) == plain(quietly(lambda: other.to_json(zarr_format=2)))


def test_defaults_are_the_same() -> None:
    for dtype in (*NUMERIC, "S3", "<U2", "V4"):
        assert parse_dtype(dtype).default_scalar() == peer(dtype).default_scalar(), dtype
    for dtype in ("M8[s]", "m8[s]"):
        assert np.isnat(parse_dtype(dtype).default_scalar())
        assert np.isnat(peer(dtype).default_scalar())


# Of float8_e8m0fnu, TensorStore 0.1.86 reads 254 of the 256 numbers as others.
STORED_BY_TENSORSTORE = [
    "int2", "int4", "bfloat16", "float4_e2m1fn", "float8_e3m4", "float8_e4m3fn", "float8_e4m3b11fnuz",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
]  # fmt: skip


@pytest.mark.parametrize("name", STORED_BY_TENSORSTORE)
def test_tensorstore_reads_these_fill_values(name: str) -> None:
    pytest.importorskip("ml_dtypes")
    tensorstore = pytest.importorskip("tensorstore")
    assert name in SMALL_NAMES
    data_type: ZDType = parse_dtype(name)
    dtype = data_type.to_native_dtype()
    width = 16 if name == "bfloat16" else 2 if name == "int2" else 4 if "4" in name[:6] else 8
    every = range(1 << width) if width <= 8 else range(0, 1 << 16, 997)
    for number in every:
        scalar = from_bits(number.to_bytes(dtype.itemsize, "little"), dtype)[0]
        form = data_type.to_json_scalar(scalar, zarr_format=3)
        document = {
            "zarr_format": 3, "node_type": "array", "shape": [1], "data_type": name, "fill_value": form,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
            "chunk_key_encoding": {"name": "default"}, "attributes": {},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }  # fmt: skip
        read = opened(tensorstore, document)
        assert data_type.bits(data_type.cast_scalar(read)) == data_type.bits(scalar), form


def opened(tensorstore: Any, document: dict[str, Any]) -> Any:
    """The only element of an array of which nothing is stored."""
    context = tensorstore.Context()
    store = tensorstore.KvStore.open({"driver": "memory"}, context=context).result()
    store["zarr.json"] = json.dumps(document).encode()
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}}
    array = tensorstore.open(spec, context=context).result()
    return np.asarray(array.read().result())[0]
