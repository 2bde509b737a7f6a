"""Core data types: every permitted form of every scalar, to the last bit, and the refusal of all others."""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from typing import Any

import msgspec
import numpy as np
import pytest
from _strategies import NUMERIC, attempt, elements, from_bits, native, same_bits
from _things import Thing
from hypothesis import given, settings
from hypothesis import strategies as st

from xzarr3 import DataTypeValidationError, MetadataError, UnknownExtensionError
from xzarr3.dtypes import RawBits, parse_dtype, registry

FLOATS = ("float16", "float32", "float64")
COMPLEX = {"complex64": "float32", "complex128": "float64"}
INTEGERS = [name for name in NUMERIC if native(name).kind in "iu"]


def from_json(name: str, value: Any) -> np.generic:
    return parse_dtype(name).from_json_scalar(value, zarr_format=3)


def to_json(name: str, value: Any) -> Any:
    return parse_dtype(name).to_json_scalar(value, zarr_format=3)


def bits(scalar: np.generic) -> str:
    """The bytes of a scalar, the most significant first, as the text writes them."""
    return scalar.tobytes()[::-1].hex()


def test_specifications_that_are_refused() -> None:
    unnamed: list[Any] = [np.longdouble, "<c32", "V0"]
    for spec in unnamed:
        with pytest.raises(DataTypeValidationError) as caught:
            parse_dtype(spec)
        assert caught.value.found == np.dtype(spec)
        assert caught.value.accepted
    unknown: list[Any] = [
        "", "Int8", "int8 ", "float128x", "r", "r0", "r7", "r-8", "r08", "R8", "r8.0", "r٨", "r1e1",
        {"name": []}, {"name": None}, {}, {"name": "int8", "configuration": []}, {"name": "int8", "x": 1},
    ]  # fmt: skip
    for spec in unknown:
        with pytest.raises(
            UnknownExtensionError, match=r"unknown data type.*accepted: '\w+', .* and \d+ more"
        ):
            parse_dtype(spec)
    for name in ("int8", "float64", "complex64", "r16", "complex_float32"):
        with pytest.raises(UnknownExtensionError, match="no configuration"):
            parse_dtype({"name": name, "configuration": {"x": 1}})
    nothing: list[Any] = [5, 1.5, [], None, Thing(), b"\xff", ("x", "y", "z"), np.zeros(3)]
    for spec in nothing:
        with pytest.raises(DataTypeValidationError):
            parse_dtype(spec)
    for size in (0, -8, 7):
        with pytest.raises(DataTypeValidationError, match="multiple of 8"):
            RawBits(size)


@pytest.mark.parametrize("name", ["bool", "int16", "float32", "complex64", "r24"])
@pytest.mark.parametrize("zarr_format", [1, 4, "2", "3", None, "draft"])
def test_there_are_three_formats(name: str, zarr_format: Any) -> None:
    data_type = parse_dtype(name)
    scalar = data_type.default_scalar()
    for call in (
        lambda: data_type.to_json(zarr_format),
        lambda: type(data_type).from_json(name, zarr_format=zarr_format),
        lambda: data_type.to_json_scalar(scalar, zarr_format=zarr_format),
        lambda: data_type.from_json_scalar(0, zarr_format=zarr_format),
        lambda: parse_dtype(name, zarr_format=zarr_format),
    ):
        with pytest.raises(DataTypeValidationError, match="3, 2, '3-draft'"):
            call()


@pytest.mark.parametrize("name", [name for name in NUMERIC if native(name).itemsize > 1])
def test_byte_order_is_part_of_a_type(name: str) -> None:
    cls = type(parse_dtype(name))
    for order, sign in (("little", "<"), ("big", ">")):
        dtype = native(name).newbyteorder(sign)
        data_type = cls.from_native_dtype(dtype)
        assert data_type == cls(endianness=order) == parse_dtype(dtype) == parse_dtype(dtype.str)
        assert (data_type.endianness, data_type.byte_order, data_type.has_byte_order) == (order, order, True)
        assert data_type.to_native_dtype().str == dtype.str
        assert data_type.to_json(2) == {"name": dtype.str, "object_codec_id": None}
        assert data_type.to_json(3) == data_type.to_json("3-draft") == name
        assert data_type.in_native_order() == cls()
        assert data_type.in_byte_order(order) is data_type
        assert pickle.loads(pickle.dumps(data_type)) == data_type
        one = from_bits(bytes(range(1, 1 + dtype.itemsize)), native(name))[0]
        assert data_type.bits(one) == np.asarray(one, dtype).tobytes()
        assert data_type.filled((2,), one).tobytes() == 2 * np.asarray(one, dtype).tobytes()
        assert same_bits(data_type.cast_scalar(one), one)
    assert cls(endianness="little") != cls(endianness="big")
    assert cls.from_json(name, zarr_format=3).to_native_dtype().isnative
    with pytest.raises(DataTypeValidationError, match="endianness"):
        cls(endianness=">")


@pytest.mark.parametrize(("name", "spellings"), [  # The first one is written.
    ("bool", ["|b1", "<b1", ">b1", "b1", "?", "|?", "bool"]),
    ("int8", ["|i1", "<i1", ">i1", "i1", "int8"]),
    ("uint8", ["|u1", ">u1", "u1", "uint8"]), ("int16", ["<i2", "i2", "=i2", "int16"]),
    ("uint64", ["<u8", "u8", "uint64"]), ("float16", ["<f2", "f2", "float16"]),
    ("float64", ["<f8", "f8", "=f8", "float64"]), ("complex64", ["<c8", "c8", "complex64"]),
    ("complex128", ["<c16", "c16"]), ("V3", ["|V3", "V3", "<V3", ">V3"]),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
@pytest.mark.skipif(sys.byteorder == "big", reason="what has no sign is in the order of the machine")
def test_version_2_spells_as_numpy_does(name: str, spellings: list[str]) -> None:
    data_type = parse_dtype(name)
    written = spellings[0]
    spec = {"name": written, "object_codec_id": None}
    assert data_type.to_json(2) == spec
    assert type(data_type).from_json(spec, zarr_format=2) == data_type
    for spelling in spellings:
        assert registry.match_json({"name": spelling, "object_codec_id": None}, zarr_format=2) == data_type
        assert parse_dtype(spelling, zarr_format=2) == data_type


def test_unknown_spellings_of_version_2() -> None:
    for name in (
        "", "<", "i3", "<f16", "<c32", "<i2 ", " <i2", "<<i2", "i2,i2", "3i4", "i8[s]", "<M8[x]", "<M8[s",
        "M4", "<U", "|S", "V", "g", "l", "<l", "<q", "d", "datetime64[s]", "float32x", "str", "S٣", "O2",
        "object", "|S99999999999", "<M8[s/2]", "<M8[99999999999s]", "int", "longdouble", "|b2", "e", "P", "p",
    ):  # fmt: skip
        with pytest.raises(MetadataError) as caught:
            registry.match_json({"name": name, "object_codec_id": None}, zarr_format=2)
        assert type(caught.value) in (DataTypeValidationError, UnknownExtensionError)
        assert caught.value.accepted


@pytest.mark.parametrize(("name", "forms", "value"), [
    ("bool", [True, 1], True), ("bool", [False, 0], False), ("int16", [7, 7.0, "7", "+7"], 7),
    ("int64", ["-9223372036854775808", -(2**63)], -(2**63)),
    ("uint64", [2**64 - 1, "18446744073709551615"], 2**64 - 1),
    ("float32", [1, 1.0, "1", "1.0", "1e0", ".1e1", "+1"], 1.0), ("float64", [-0.0, "-0.0"], -0.0),
    ("float16", ["Infinity"], np.inf), ("float64", ["-Infinity"], -np.inf),
    ("complex64", [[1, 2], [1.0, 2.0], ["1", "2e0"]], 1 + 2j), ("complex128", [3, 3.0, [3, 0]], 3),
    ("r24", [0, "", "AAAA", 0.0], b"\0\0\0"), ("r24", ["AQL/"], b"\1\2\xff"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_fill_values_of_version_2(name: str, forms: list[Any], value: Any) -> None:
    expected = np.array(np.void(value) if name[0] == "r" else value, native(name))
    for form in forms:
        assert parse_dtype(name).from_json_scalar(form, zarr_format=2).tobytes() == expected.tobytes()


GOLDEN: dict[str, list[tuple[Any, str]]] = {
    "bool": [(False, "00"), (True, "01")], "int8": [(-128, "80"), (127, "7f")], "uint8": [(255, "ff")],
    "int16": [(-2, "fffe")], "uint16": [(65535, "ffff")], "int32": [(-(2**31), "80000000")],
    "uint32": [(2**32 - 1, "ffffffff")],
    "int64": [
        (-(2**63), "8000000000000000"), (2**63 - 1, "7fffffffffffffff"), (2**53 + 1, "0020000000000001"),
    ],
    "uint64": [(2**64 - 1, "ffffffffffffffff"), (2**53 + 1, "0020000000000001")],
    "float16": [
        ("NaN", "7e00"), ("Infinity", "7c00"), ("-Infinity", "fc00"), ("0x7c01", "7c01"), ("0xFE0f", "fe0f"),
        (-0.0, "8000"), (6e-8, "0001"), (65504, "7bff"), (0.1, "2e66"),
    ],
    "float32": [
        ("NaN", "7fc00000"), ("Infinity", "7f800000"), ("-Infinity", "ff800000"), ("0x7f800001", "7f800001"),
        ("0xffc0dead", "ffc0dead"), ("0xFFC0DEAD", "ffc0dead"), ("0x00000001", "00000001"),
        ("0x3f800000", "3f800000"), ("0x80000000", "80000000"), (0, "00000000"), (-0.0, "80000000"),
        (1, "3f800000"), (1e-45, "00000001"), (0.1, "3dcccccd"), (16777217, "4b800000"), (1e10, "501502f9"),
    ],
    "float64": [
        ("NaN", "7ff8000000000000"), ("Infinity", "7ff0000000000000"), ("-Infinity", "fff0000000000000"),
        ("0x7ff0000000000001", "7ff0000000000001"), ("0xfff80000deadBEEF", "fff80000deadbeef"),
        (5e-324, "0000000000000001"), (-0.0, "8000000000000000"), (0.1, "3fb999999999999a"),
        (2**70, "4450000000000000"),
    ],
    "complex64": [
        ([1, 2], "400000003f800000"), ([-0.0, 0.5], "3f00000080000000"), ([0, -0.0], "8000000000000000"),
        (["-Infinity", "NaN"], "7fc00000ff800000"), ([1e-45, "Infinity"], "7f80000000000001"),
        (["0x7f800001", "0xffc0dead"], "ffc0dead7f800001"),
    ],
    "complex128": [
        ([1, "-Infinity"], "fff00000000000003ff0000000000000"),
        (["0x7ff0000000000001", -0.0], "80000000000000007ff0000000000001"),
    ],
    "r8": [([255], "ff")], "r24": [([1, 2, 255], "ff0201")],
}  # fmt: skip


def as_written(form: Any) -> Any:
    if isinstance(form, list):
        return [as_written(part) for part in form]
    return form.lower() if isinstance(form, str) and form[:2] == "0x" else form


@pytest.mark.parametrize("name", GOLDEN)
def test_permitted_form_has_these_bits(name: str) -> None:
    for form, expected in GOLDEN[name]:
        scalar = from_json(name, json.loads(json.dumps(form)))
        assert bits(scalar) == expected
        assert scalar.dtype == native(name)
        # What is written is read back the same, and is JSON that any parser takes.
        written = json.dumps(to_json(name, scalar), allow_nan=False)
        for decode in (json.loads, msgspec.json.decode):
            assert bits(from_json(name, decode(written))) == expected
        if native(name).kind in "fc" and np.isnan(scalar):
            assert to_json(name, scalar) == as_written(form)
    for word, number in (("Infinity", np.inf), ("-Infinity", -np.inf)) if name in FLOATS else ():
        assert to_json(name, native(name).type(number)) == word
        assert str(to_json(name, native(name).type(-0.0))) == "-0.0"


NOT_PERMITTED: dict[str, list[Any]] = {
    "bool": [None, 0, 1, 0.0, "true", "false", [], [True], {}],
    "float16": [None, True, "nan", "inf", "+Infinity", "0x7e0", "0x7e000", "7e00", "0x7g00", [1], {}, "1.0"],
    "float32": [
        None, False, "", "NAN", "infinity", "- Infinity", "0x7fc0000", "0x7fc000000", "0X7fc00000", "0x",
        "0x7fc0000g", "0x-7fc0000", "0x7_fc0000", "0x 7fc0000", "\u0660x7fc00000", "0x7fc0000\u0661",
        "0x7fc00000\n", "NaN\n", " NaN", "1", [1.0], {"x": 1},
    ],
    "float64": [None, True, "0x7fc00000", "0x7ff80000000000000", "nan", [], [0, 0]],
    "complex64": [None, 0, 1.5, "NaN", True, [], [1], [1, 2, 3], [None, 1], [1, True], ["nan", 1],
                  [[1, 2], 3], ["0x7ff8000000000000", 0], {"real": 1, "imag": 2}],
    "complex128": [["0x7fc00000", 0], [0, "0x7fc00000"], "0", [1, "i"]],
    "r8": [None, 0, "00", [], [256], [-1], [1.0], [True], [1, 2], ["1"], [None]],
    "r24": [[1, 2], [1, 2, 3, 4], "AQID", [1, 2, 2**70]],
}  # fmt: skip
for _name in INTEGERS:
    _info = np.iinfo(native(_name))
    NOT_PERMITTED[_name] = [
        None, True, False, 1.0, 0.0, -0.0, 1e3, 0.5, "0", "NaN", "0x00", [0], {},
        _info.max + 1, _info.min - 1, 10**400,
    ]  # fmt: skip

FORMS = {
    "b": ["true", "false"], "i": ["an integer", "without fraction"], "u": ["an integer", "without fraction"],
    "f": ["number", "'NaN'", "'Infinity'", "'-Infinity'", "'0x'"],
    "c": ["array of two", "number", "'NaN'", "'Infinity'", "'-Infinity'", "'0x'"],
    "V": ["array", "integers from 0 to 255"],
}  # fmt: skip
NOT_PERMITTED_IN_VERSION_2: dict[str, list[Any]] = {
    "bool": [2, -1, "0", "true", 1.0, None, []],
    "int16": [0.5, "0.5", "0x1", "", "1 ", "٣", 2**15, "32768", None, True, [1]],
    "uint8": [-1, "-1", "-1.0", 256.0],
    "float32": ["0x7fc00000", "nan", "inf", "", "1 ", "1_0", "e1", ".", None, True, "1e9999", [1]],
    "complex64": ["NaN", [1], [1, 2, 3], ["0x7fc00000", 0], True, None],
    "r24": [1, "AAA=", "AQL", "AQL/AA==", "A Q L /", "é", None, [1, 2, 3], {}],
}


@pytest.mark.parametrize("name", NOT_PERMITTED)
def test_forms_that_are_not_permitted(name: str) -> None:
    for form in NOT_PERMITTED[name]:
        with pytest.raises(DataTypeValidationError, match=name) as caught:
            from_json(name, form)
        for permitted in FORMS[native(name).kind]:
            assert permitted in str(caught.value), form
    for bound in (np.iinfo(name).min, np.iinfo(name).max) if name in INTEGERS else ():
        assert str(bound) in str(caught.value)
    if name in FLOATS:
        with pytest.raises(DataTypeValidationError, match=f"{2 * native(name).itemsize} hexadecimal digits"):
            from_json(name, "0x1")
    for form in NOT_PERMITTED_IN_VERSION_2.get(name, []):
        with pytest.raises(DataTypeValidationError, match=name) as caught:
            parse_dtype(name).from_json_scalar(form, zarr_format=2)
        assert caught.value.accepted


@settings(max_examples=400)
@given(st.sampled_from(NUMERIC), st.sampled_from(NUMERIC), st.data())
def test_cast_is_numpys_or_refused(source: str, target: str, data: st.DataObject) -> None:
    scalar = data.draw(elements(source))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        cast, error = attempt(lambda: parse_dtype(target).cast_scalar(scalar), DataTypeValidationError)
        warnings.simplefilter("ignore")
        expected = np.asarray(scalar).astype(target)[()]
        exact = bool(expected == scalar) and bool(np.asarray(expected).astype(source)[()] == scalar)
    if cast is not None:
        assert cast.dtype == native(target)
        if native(target).kind in "biu":
            # No silent change of an integer or a truth value: nothing out of range, no NaN, no fraction.
            assert int(cast) == scalar
        elif not np.isnan(scalar):
            with np.errstate(all="ignore"):
                assert cast == expected
            assert np.isinf(scalar) or not np.isinf(cast)
    elif native(source).kind != "c":
        assert not exact, "a value that the type holds was refused"
    assert error is None or target in str(error)


NO_NUMBER: list[Any] = [None, [0.5], {}, b"0", Thing(), np.datetime64("2000"), "0.5x"]
NO_INTEGER: list[Any] = [
    *NO_NUMBER, np.nan, np.inf, -np.inf, 0.5, 1e300, np.float32(np.nan), 1j, "1", [1], 2.0**64
]  # fmt: skip


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, *COMPLEX])
def test_what_a_number_cannot_hold(name: str) -> None:
    data_type = parse_dtype(name)
    kind = native(name).kind
    wrong: list[Any] = {"f": [*NO_NUMBER, 10**400, 1j], "c": [*NO_NUMBER, 10**400]}.get(kind, NO_INTEGER)
    if name in ("float16", "float32", "complex64"):  # A finite number never becomes infinite.
        wrong = [*wrong, 1e39, 10**39]
    words = f"{name}.*an integer from" if kind in "iu" else name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in wrong:
            with pytest.raises(DataTypeValidationError, match=words):
                data_type.cast_scalar(value)
    if kind in "iu":
        info = np.iinfo(name)
        for inside in (info.min, info.max, np.dtype(name).type(info.max)):
            assert int(data_type.cast_scalar(inside)) == inside
        for outside in (info.min - 1, info.max + 1, float(info.max) * 2):
            with pytest.raises(DataTypeValidationError, match=str(info.max)):
                data_type.cast_scalar(outside)
    elif name != "float16":
        assert data_type.cast_scalar(10**30) == native(name).type(1e30)  # The nearest number.


def test_the_forms_of_documents_can_be_cast() -> None:
    for name in FLOATS:
        for form in ("NaN", "Infinity", "-Infinity", "0x" + "f" * (2 * native(name).itemsize)):
            assert same_bits(parse_dtype(name).cast_scalar(form), from_json(name, form))
        for text in ("inf", "nan", "1", "", "0x1"):
            with pytest.raises(DataTypeValidationError, match="'Infinity'"):
                parse_dtype(name).cast_scalar(text)
    for name in COMPLEX:
        form = ["-Infinity", -0.0]  # type: ignore[assignment]
        assert same_bits(parse_dtype(name).cast_scalar(form), from_json(name, form))
        for other in ("NaN", "Infinity", "1j", [1], ["nan", 0]):
            with pytest.raises(DataTypeValidationError, match="two parts"):
                parse_dtype(name).cast_scalar(other)


def test_raw_bits() -> None:
    for value in (b"ab", b"abcd", "abc", 1, 1.0, None, [1, 2, 3], np.void(b"ab"), np.int8(1)):
        with pytest.raises(DataTypeValidationError, match="3 bytes"):
            RawBits(24).cast_scalar(value)
    for value in (b"abc", bytearray(b"abc"), np.void(b"abc")):
        assert RawBits(24).cast_scalar(value).tobytes() == b"abc"
    assert RawBits(24).cast_scalar(0).tobytes() == b"\0\0\0"
    assert RawBits(24).filled((2,), np.void(b"abc")).tobytes() == b"abcabc"
