"""The data types of ml_dtypes: their fill values, casts and unused bits."""

import itertools
import json
import math
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from _strategies import SMALL_NAMES, attempt, same_bits
from _things import refused, refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from xzarr3 import DataTypeValidationError, UnknownExtensionError
from xzarr3.dtypes import BFloat16, Int8, Int16, Struct, ZDType, parse_dtype, registry

ml_dtypes = pytest.importorskip("ml_dtypes")
Row = tuple[str, int, int | None, bool, float]
"""Name, bits, bits of "NaN", whether there are infinities, the greatest number."""
FLOATS: list[Row] = [
    ("bfloat16", 16, 0x7FC0, True, 3.3895313892515355e38), ("float4_e2m1fn", 4, None, False, 6.0),
    ("float6_e2m3fn", 6, None, False, 7.5), ("float6_e3m2fn", 6, None, False, 28.0),
    ("float8_e3m4", 8, 0x78, True, 15.5), ("float8_e4m3", 8, 0x7C, True, 240.0),
    ("float8_e4m3b11fnuz", 8, 0x80, False, 30.0), ("float8_e4m3fn", 8, 0x7F, False, 448.0),
    ("float8_e4m3fnuz", 8, 0x80, False, 240.0), ("float8_e5m2", 8, 0x7E, True, 57344.0),
    ("float8_e5m2fnuz", 8, 0x80, False, 57344.0), ("float8_e8m0fnu", 8, 0xFF, False, 2.0**127),
]  # fmt: skip
every_float = pytest.mark.parametrize("row", FLOATS, ids=[row[0] for row in FLOATS])
INTEGERS = [("int2", -2, 1), ("int4", -8, 7), ("uint2", 0, 3), ("uint4", 0, 15)]


def bits(data_type: ZDType, scalar: Any) -> int:
    return int.from_bytes(data_type.bits(scalar), sys.byteorder)


def all_of(name: str, width: int) -> np.ndarray[Any, Any]:
    unsigned = np.arange(1 << width, dtype="u2" if width > 8 else "u1")
    return unsigned.view(parse_dtype(name).to_native_dtype())


def finite_numbers(name: str, width: int) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        numbers = all_of(name, width).astype("f8")
    return np.unique(numbers[np.isfinite(numbers)])


def test_all_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name for name, *_ in FLOATS + INTEGERS} == set(SMALL_NAMES)  # type: ignore[operator]
    for name in SMALL_NAMES:
        data_type, is_wide = parse_dtype(name), name == "bfloat16"
        assert (data_type.to_json(3), data_type.to_json(2)["name"]) == (name, name)
        assert (data_type.has_byte_order, data_type.item_size) == (is_wide, 1 + is_wide)
        assert data_type.has_unused_bits is name.startswith(("int", "uint", "float4", "float6"))
        for spec in (getattr(ml_dtypes, name), np.dtype(name), {"name": name}):
            for zarr_format in (2, 3, "3-draft"):
                assert parse_dtype(spec, zarr_format=zarr_format) == data_type  # type: ignore[arg-type]
    monkeypatch.delattr(ml_dtypes, "int2")  # As an old one lacks some.
    refused(UnknownExtensionError, r"int2.*xzarr3\[ml-dtypes\]", registry.contents["int2"])
    assert parse_dtype(np.dtype("float16")).name == "float16"


@pytest.mark.parametrize(("name", "low", "high"), INTEGERS)
def test_integers(name: str, low: int, high: int) -> None:
    data_type = parse_dtype(name)
    for number, zarr_format in itertools.product(range(low, high + 1), (2, 3)):
        scalar = data_type.from_json_scalar(number, zarr_format=zarr_format)
        assert int(scalar) == data_type.to_json_scalar(scalar, zarr_format=zarr_format) == number
        assert bits(data_type, scalar) == number & ((1 << int(name[-1])) - 1)
        assert {int(data_type.cast_scalar(each)) for each in (float(number), np.int64(number))} == {number}
    whole = np.arange(low, high + 1)
    for values in (whole, whole.tolist(), whole.astype("f4"), whole.astype(">i8"), whole.astype("c8")):
        found = data_type.cast_array(values)
        assert (found.dtype, found.astype(int).tolist()) == (np.dtype(name), whole.tolist())
    forms = (low - 1, high + 1, 0.0, "0", None, True, [0], 2**70)
    read = partial(data_type.from_json_scalar, zarr_format=3)
    refuses(read, forms, DataTypeValidationError, f"{name}.*from {low} to {high}")
    wrong = [low - 1, high + 1, 0.5, math.nan, math.inf, 2**40, 2**70, "0", 1j, None, [0]]
    refuses(data_type.cast_scalar, wrong, DataTypeValidationError, name)
    arrays = [*([each, low] for each in wrong), np.array([high + 1], "u8")]
    refuses(data_type.cast_array, arrays, DataTypeValidationError, name)


@every_float
def test_every_number_is_written_and_read(row: Row) -> None:
    name, width, nan, _, most = row
    data_type = parse_dtype(name)
    numbers = all_of(name, width)
    for number in numbers[:: 17 if width > 8 else 1]:
        form = json.loads(json.dumps(data_type.to_json_scalar(number, zarr_format=3), allow_nan=False))
        back = data_type.from_json_scalar(form, zarr_format=3)
        assert bits(data_type, back) == bits(data_type, number)
        if math.isfinite(float(number)):
            assert form == float(number)
        if math.isnan(float(number)):
            assert data_type.to_json_scalar(number, zarr_format=2) == "NaN"
            assert (form == "NaN") is (bits(data_type, number) == nan)
        # Its bits, too.
        digits = f"0x{bits(data_type, number):0{-(-width // 4)}X}"
        assert bits(data_type, data_type.from_json_scalar(digits, zarr_format=3)) == bits(data_type, number)
    assert finite_numbers(name, width)[-1] == most


@every_float
def test_words_for_what_there_is(row: Row) -> None:
    name, width, nan, infinite, most = row
    data_type = parse_dtype(name)
    wrong: list[Any] = [None, True, "", "nan", "inf", "+Infinity", "0x", "1", [1], {}, "0xfffff", "0xg0"]
    if nan is not None:
        found = data_type.from_json_scalar("NaN", zarr_format=3)
        assert bits(data_type, found) == nan
        assert math.isnan(float(found))
        assert data_type.to_json_scalar(found, zarr_format=3) == "NaN"
        assert bits(data_type, data_type.cast_scalar("NaN")) == nan
        assert math.isnan(float(data_type.cast_scalar(math.nan)))
    else:
        wrong.append("NaN")
    if infinite:
        for word, value in (("Infinity", math.inf), ("-Infinity", -math.inf)):
            found = data_type.from_json_scalar(word, zarr_format=3)
            assert float(found) == value
            assert data_type.to_json_scalar(found, zarr_format=3) == word
    else:
        wrong += ["Infinity", "-Infinity"]
    if width < 8:
        wrong += [f"0x{1 << width:02x}", "0xff"]
        assert bits(data_type, data_type.from_json_scalar("0x01", zarr_format=3)) == 1
    wrong += [most * 2, 10**400, 1e39, math.inf, math.nan]
    read = partial(data_type.from_json_scalar, zarr_format=3)
    for error in refuses(read, wrong, DataTypeValidationError, name):
        assert f"{-(-width // 4)} hexadecimal digits" in str(error)
        assert ("'NaN'" in str(error.accepted)) is (nan is not None)
        assert ("'Infinity'" in str(error.accepted)) is infinite


@pytest.mark.slow
@every_float
@settings(max_examples=200)
@given(value=st.one_of(
    st.floats(), st.floats(-500, 500), st.floats(width=16), st.sampled_from([0.0, -0.0, 2.0**-130])
))  # fmt: skip
def test_casts_round_and_never_cut_off(row: Row, value: float) -> None:
    name, width, nan, infinite, _ = row
    data_type = parse_dtype(name)
    finite = finite_numbers(name, width)
    found, error = attempt(lambda: data_type.cast_array([value]), DataTypeValidationError)
    if error is not None:
        assert name in str(error)
        if math.isnan(value):
            assert nan is None
        elif math.isinf(value):
            assert not infinite
        else:  # Beyond the numbers by half a step or more.
            low = finite[0] - (finite[1] - finite[0]) / 2
            assert value <= low or value >= finite[-1] + (finite[-1] - finite[-2]) / 2
        return
    assert found.dtype == data_type.to_native_dtype()
    number = float(found[0])
    if math.isnan(value):
        assert math.isnan(number)
    elif math.isinf(value):
        assert number == value
    else:
        assert math.isfinite(number)
        assert abs(number - value) <= np.min(np.abs(finite - value)) * (1 + 1e-6) + 1e-45
    assert bits(data_type, data_type.cast_scalar(value)) == bits(data_type, found[0])


@every_float
def test_numbers_are_kept_or_refused(row: Row) -> None:
    name, width, *_ = row
    data_type = parse_dtype(name)
    exact = set(finite_numbers(name, width).tolist())
    for number in (*range(-300, 300), 2**20, 2**53 + 1, -(2**63), 2**63 - 1, 57344, 2**64 - 1, 2**63):
        array = np.array([number], "u8" if number >= 2**63 else "i8")
        found, _ = attempt(lambda array=array: data_type.cast_array(array), DataTypeValidationError)  # type: ignore[misc]
        assert (found is not None) is (float(number) in exact and int(float(number)) == number)
        assert found is None or int(float(found[0])) == number
    wrong = (["1"], [b"1"], [None], [1j], [object()], np.array(["2000"], "M8[s]"), np.zeros(2, "V1"))
    refuses(data_type.cast_array, wrong, DataTypeValidationError, name)
    refuses(data_type.cast_scalar, ("1", None, [1], b"1", {}), DataTypeValidationError, name)
    assert float(data_type.cast_array([2 + 0j])[0]) == 2


@pytest.mark.parametrize(("name", "width"), [(name, 2 if name[-1] == "2" else 4) for name, *_ in INTEGERS] + [
    ("float4_e2m1fn", 4), ("float6_e2m3fn", 6), ("float6_e3m2fn", 6)])  # fmt: skip
def test_unused_bits_mean_nothing(name: str, width: int) -> None:
    data_type = parse_dtype(name)
    dtype = data_type.to_native_dtype()
    assert data_type.has_unused_bits
    stored = np.arange(256, dtype="u1")
    clean = (stored & ((1 << width) - 1)).view(dtype)
    for raw in (stored, stored.reshape(16, 16), np.repeat(stored, 2)[::2]):
        raw.flags.writeable = False
        found = data_type.decoded(raw.view(dtype))
        assert same_bits(found, clean.reshape(raw.shape))
        assert same_bits(data_type.cast_array(raw.view(dtype)), clean.reshape(raw.shape))
    if "int" in name:
        expected = [int(value) for value in clean]
        low = -(1 << (width - 1)) if name[0] == "i" else 0
        assert (min(expected), max(expected)) == (low, low + (1 << width) - 1)
    assert data_type.decoded(clean) is clean
    assert data_type.decoded(clean[:0]).size == 0
    garbage = stored.view(dtype)[255]
    assert data_type.bits(data_type.cast_scalar(garbage)) == bytes([(1 << width) - 1])
    # Within structs, too, and within these.
    inner = Struct((("a", data_type), ("b", Int8())))
    outer = Struct((("p", inner), ("c", Int16())))
    assert outer.has_unused_bits
    array = np.frombuffer(b"\xff\xff\xff\xff" * 3, outer.to_native_dtype())
    found = outer.decoded(array)
    assert found.tobytes() == bytes([(1 << width) - 1, 255, 255, 255]) * 3
    assert same_bits(outer.cast_array(array), found)


def test_byte_order_of_two_bytes() -> None:
    little, big = BFloat16(endianness="little"), BFloat16(endianness="big")
    assert big.in_byte_order("little") == little != big
    one = little.cast_scalar(1.5)
    assert np.asarray(little.filled((2,), one)).tobytes() == little.cast_array([1.5, 1.5]).tobytes()
    stored, expected = big.cast_array([1.5, -2]), little.cast_array([1.5, -2])
    assert stored.tobytes() == expected.view("<u2").astype(">u2").tobytes()
    assert stored.dtype == big.to_native_dtype()
    assert same_bits(little.cast_array(stored), expected)
    struct = Struct((("a", big), ("b", Int16(endianness="big"))))
    assert struct.cast_scalar((1.5, 1)).tobytes() == stored.tobytes()[:2] + b"\0\1"
    swapped = struct.in_byte_order("little").cast_array(struct.cast_array([(1.5, 1)]))
    assert swapped.tobytes() == expected.tobytes()[:2] + b"\1\0"
    # Version 2 has no word for it.
    assert registry.match_json(little.to_json(2), zarr_format=2) == little
    refuses(big.to_json, [2], DataTypeValidationError, "big")


def test_swapped_is_right_where_numpy_is_not() -> None:
    for name in ("bfloat16", "float32", "complex64"):
        data_type = parse_dtype(name)
        dtype = data_type.to_native_dtype()
        array = np.random.default_rng(0).integers(0, 256, 64 * dtype.itemsize, "u1").view(dtype)
        part = 2 if "16" in name else 4
        swapped = array.view(f"u{part}").byteswap().tobytes()
        assert (data_type.swapped(array).tobytes(), data_type.swapped(array).dtype) == (swapped, dtype)
        assert data_type.swapped(array.reshape(8, 8).T).T.tobytes() == swapped
        struct = Struct((("a", data_type), ("b", Int8()), ("p", Struct((("c", data_type),)))))
        records = np.zeros(64, struct.to_native_dtype())
        records["a"] = records["p"]["c"] = array
        records["b"] = 5
        found = struct.swapped(records)
        assert found.dtype == records.dtype
        assert np.ascontiguousarray(found["a"]).tobytes() == swapped
        assert np.ascontiguousarray(found["p"]["c"]).tobytes() == swapped
        assert found["b"].tolist() == [5] * 64
        assert struct.numpy_swaps is data_type.numpy_swaps
        if data_type.numpy_swaps:
            assert array.astype(dtype.newbyteorder("S")).tobytes() == swapped
            assert np.frombuffer(swapped, dtype.newbyteorder("S")).astype(dtype).tobytes() == array.tobytes()
