"""Core data types: every permitted form of every scalar, to the last bit, and the refusal of all others."""

import datetime
import itertools
import json
import pickle
import sys
import warnings
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from _peers import codec
from _strategies import NUMERIC, attempt, elements, from_bits, native, same_bits
from _things import Thing, case, refused, refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from xzarr3 import DataTypeValidationError, MemoryStore, MetadataError, UnknownExtensionError, create_array
from xzarr3.dtypes import RawBits, RawBytes, Struct, Structured, ZDType, parse_dtype, registry
from xzarr3.dtypes.core import Float32, Float64, Int8, Int16, Int32
from xzarr3.dtypes.fixed_length import FixedLengthUTF32, NullTerminatedBytes
from xzarr3.dtypes.times import DRAFT_URI, DateTime64, TimeDelta64
from xzarr3.dtypes.variable_length import VariableLengthBytes, VariableLengthUTF8

FLOATS = ("float16", "float32", "float64")
COMPLEX = {"complex64": "float32", "complex128": "float64"}
INTEGERS = [name for name in NUMERIC if native(name).kind in "iu"]
NO_NUMBER: list[Any] = [None, [0.5], {}, b"0", Thing(), np.datetime64("2000"), "0.5x"]
NO_INTEGER = [*NO_NUMBER, np.nan, np.inf, -np.inf, 0.5, 1e300, np.float32(np.nan), 1j, "1", [1], 2.0**64]
NAT = -(2**63)
UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]


def from_json(name: str, value: Any) -> np.generic:
    return parse_dtype(name).from_json_scalar(value, zarr_format=3)


def to_json(name: str, value: Any) -> Any:
    return parse_dtype(name).to_json_scalar(value, zarr_format=3)


def bits(scalar: np.generic) -> str:
    """The bytes of a scalar, the most significant first, as the text writes them."""
    return scalar.tobytes()[::-1].hex()


def test_specifications_that_are_refused() -> None:
    unnamed: list[Any] = [np.longdouble, "<c32", "V0"]
    errors = refuses(parse_dtype, unnamed, DataTypeValidationError)
    assert [error.found for error in errors] == [np.dtype(spec) for spec in unnamed]
    assert all(error.accepted for error in errors)
    refuses(parse_dtype, [
        "", "Int8", "int8 ", "float128x", "r", "r0", "r7", "r-8", "r08", "R8", "r8.0", "r٨", "r1e1",
        {"name": []}, {"name": None}, {}, {"name": "int8", "configuration": []}, {"name": "int8", "x": 1},
    ], UnknownExtensionError, r"unknown data type.*accepted: '\w+', .* and \d+ more")  # fmt: skip
    configured = [codec(name, x=1) for name in ("int8", "float64", "complex64", "r16", "complex_float32")]
    refuses(parse_dtype, configured, UnknownExtensionError, "no configuration")
    nothing: list[Any] = [5, 1.5, [], None, Thing(), b"\xff", ("x", "y", "z"), np.zeros(3), [("a", "i4"), 5]]
    refuses(parse_dtype, nothing, DataTypeValidationError)
    refuses(RawBits, (0, -8, 7), DataTypeValidationError, "multiple of 8")


@pytest.mark.parametrize("name", ["bool", "int16", "float32", "complex64", "r24"])
@pytest.mark.parametrize("zarr_format", [1, 4, "2", "3", None, "draft"])
def test_there_are_three_formats(name: str, zarr_format: Any) -> None:
    data_type = parse_dtype(name)
    refused(
        DataTypeValidationError, "3, 2, '3-draft'", lambda: data_type.to_json(zarr_format),
        lambda: type(data_type).from_json(name, zarr_format=zarr_format),
        lambda: data_type.to_json_scalar(data_type.default_scalar(), zarr_format=zarr_format),
        lambda: data_type.from_json_scalar(0, zarr_format=zarr_format),
        lambda: parse_dtype(name, zarr_format=zarr_format),
    )  # fmt: skip


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
    refused(DataTypeValidationError, "endianness", lambda: cls(endianness=">"))


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
    spec = {"name": spellings[0], "object_codec_id": None}
    assert (data_type.to_json(2), type(data_type).from_json(spec, zarr_format=2)) == (spec, data_type)
    for spelling in spellings:
        assert registry.match_json({"name": spelling, "object_codec_id": None}, zarr_format=2) == data_type
        assert parse_dtype(spelling, zarr_format=2) == data_type


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
    "int64": [(-(2**63), "8000000000000000"), (2**63 - 1, "7fffffffffffffff"),
              (2**53 + 1, "0020000000000001")],
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
        assert (bits(scalar), scalar.dtype) == (expected, native(name))
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
    errors = refuses(partial(from_json, name), NOT_PERMITTED[name], DataTypeValidationError, name)
    bounds = (np.iinfo(name).min, np.iinfo(name).max) if name in INTEGERS else ()
    for permitted in (*FORMS[native(name).kind], *map(str, bounds)):
        assert all(permitted in str(error) for error in errors)
    if name in FLOATS:
        digits = f"{2 * native(name).itemsize} hexadecimal digits"
        refuses(partial(from_json, name), ["0x1"], DataTypeValidationError, digits)
    read, forms = partial(parse_dtype(name).from_json_scalar, zarr_format=2), NOT_PERMITTED_IN_VERSION_2
    errors = refuses(read, forms.get(name, ()), DataTypeValidationError, name)
    assert all(error.accepted for error in errors)


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
        refuses(data_type.cast_scalar, wrong, DataTypeValidationError, words)
    if kind in "iu":
        info = np.iinfo(name)
        for inside in (info.min, info.max, np.dtype(name).type(info.max)):
            assert int(data_type.cast_scalar(inside)) == inside
        outside = (info.min - 1, info.max + 1, float(info.max) * 2)
        refuses(data_type.cast_scalar, outside, DataTypeValidationError, str(info.max))
    elif name != "float16":
        assert data_type.cast_scalar(10**30) == native(name).type(1e30)  # The nearest number.


def test_the_forms_of_documents_can_be_cast() -> None:
    others: list[Any] = ["inf", "nan", "1", "", "0x1"]
    for name in FLOATS:
        for form in ("NaN", "Infinity", "-Infinity", "0x" + "f" * (2 * native(name).itemsize)):
            assert same_bits(parse_dtype(name).cast_scalar(form), from_json(name, form))
        refuses(parse_dtype(name).cast_scalar, others, DataTypeValidationError, "'Infinity'")
    for name in COMPLEX:
        parts = ["-Infinity", -0.0]
        assert same_bits(parse_dtype(name).cast_scalar(parts), from_json(name, parts))
        others = ["NaN", "Infinity", "1j", [1], ["nan", 0]]
        refuses(parse_dtype(name).cast_scalar, others, DataTypeValidationError, "two parts")


def time_json(name: str, unit: str, scale_factor: Any) -> dict[str, Any]:
    return codec(f"numpy.{name}64", unit=unit, scale_factor=scale_factor)


def sized(name: str, length: Any) -> dict[str, Any]:
    return codec(name, length_bytes=length)


def struct_json(*fields: tuple[str, Any]) -> dict[str, Any]:
    return codec("struct", fields=[{"name": name, "data_type": data_type} for name, data_type in fields])


POINT = Struct((("x", Float32(endianness="big")), ("flag", Int8())))
BY_HAND: list[tuple[ZDType, Any, Any, Any]] = [
    (FixedLengthUTF32(3, endianness="little"), "<U3", None, sized("fixed_length_utf32", 12)),
    (FixedLengthUTF32(1, endianness="big"), ">U1", None, sized("fixed_length_utf32", 4)),
    (NullTerminatedBytes(10), "|S10", None, sized("null_terminated_bytes", 10)),
    (RawBytes(3), "|V3", None, sized("raw_bytes", 3)), (RawBits(24), "|V3", None, "r24"),
    (DateTime64("s", 10, endianness="little"), "<M8[10s]", None, time_json("datetime", "s", 10)),
    (DateTime64("ns", endianness="big"), ">M8[ns]", None, time_json("datetime", "ns", 1)),
    (DateTime64(endianness="little"), "<M8", None, time_json("datetime", "generic", 1)),
    (TimeDelta64("D", 7, endianness="little"), "<m8[7D]", None, time_json("timedelta", "D", 7)),
    (TimeDelta64("us", 2**31 - 1, endianness="big"), ">m8[2147483647us]", None,
     time_json("timedelta", "us", 2147483647)),
    (VariableLengthUTF8(), "|O", "vlen-utf8", "string"), (VariableLengthBytes(), "|O", "vlen-bytes", "bytes"),
    (POINT, [["x", ">f4"], ["flag", "|i1"]], None, struct_json(("x", "float32"), ("flag", "int8"))),
    (Struct((("p", POINT), ("t", DateTime64("s", endianness="big")), ("s", NullTerminatedBytes(2)))),
     [["p", [["x", ">f4"], ["flag", "|i1"]]], ["t", ">M8[s]"], ["s", "|S2"]], None,
     struct_json(("p", struct_json(("x", "float32"), ("flag", "int8"))), ("t", time_json("datetime", "s", 1)),
                 ("s", sized("null_terminated_bytes", 2)))),
]  # fmt: skip


@pytest.mark.parametrize(("data_type", "name", "codec", "spec"), BY_HAND, ids=lambda value: str(value)[:40])
def test_json_of_both_versions(data_type: ZDType, name: Any, codec: Any, spec: Any) -> None:
    version_2 = {"name": name, "object_codec_id": codec}
    assert (data_type.to_json(2), data_type.to_json(3)) == (version_2, spec)
    assert type(data_type).from_json(version_2, zarr_format=2) == data_type
    assert type(data_type).from_json(spec, zarr_format=3) == data_type.in_native_order()
    assert registry.match_json(spec, zarr_format=3) == data_type.in_native_order()
    if not isinstance(data_type, RawBits):
        assert registry.match_json(version_2, zarr_format=2) == data_type
        if codec is None:
            assert parse_dtype(name, zarr_format=2) == data_type


@pytest.mark.parametrize(("data_type", "spec"), [
    *((parse_dtype(name), name) for name in ("bool", "uint8", "int64", "float16", "complex64", "r24")),
    (RawBytes(3), "r24"),
    (DateTime64("ns"), {"extension": DRAFT_URI, "type": "<M8[ns]", "fallback": "int64"}),
    (TimeDelta64("D", endianness="big"), {"extension": DRAFT_URI, "type": "<m8[D]", "fallback": "int64"}),
], ids=str)  # fmt: skip
def test_to_json_of_the_draft(data_type: ZDType, spec: Any) -> None:
    assert data_type.to_json("3-draft") == spec
    assert registry.match_json(spec, zarr_format="3-draft").to_json("3-draft") == spec
    store = MemoryStore()
    create_array(store, "a", shape=1, dtype=data_type, zarr_format="3-draft")
    assert json.loads(bytes(store.get("meta/a.array.json")))["data_type"] == spec


@pytest.mark.parametrize("spec", [
    "fixed_length_utf32", sized("fixed_length_utf32", 3), sized("fixed_length_utf32", 0),
    sized("fixed_length_utf32", 2**31), sized("fixed_length_utf32", -4), sized("raw_bytes", 0),
    sized("raw_bytes", 10**9), sized("null_terminated_bytes", "5"), sized("null_terminated_bytes", 5.0),
    sized("null_terminated_bytes", True), {"name": "raw_bytes", "configuration": {}},
    {"name": "raw_bytes", "configuration": {"length_bytes": 3, "x": 1}},
    "numpy.datetime64", time_json("datetime", "x", 1), time_json("datetime", "s", 0),
    time_json("datetime", "s", 2**31), time_json("datetime", "s", 1.0), time_json("timedelta", "s", True),
    time_json("timedelta", "", 1), codec("numpy.datetime64", unit="s"),
    codec("numpy.datetime64", unit="s", scale_factor=1, x=1),
    codec("numpy.datetime64", unit=["s"], scale_factor=1),
    "struct", struct_json(), struct_json(("", "int8")), struct_json(("a", "int8"), ("a", "int8")),
    struct_json(("a", "string")), struct_json(("a", "bytes")), struct_json(("a", "nothing")),
    struct_json(("a", 5)), struct_json((5, "int8")), struct_json(("\ud800", "int8")),  # type: ignore[arg-type]
    struct_json(("a", struct_json(("b", "string")))),
    struct_json(("a", "r999999992"), ("b", "r999999992")),
    codec("struct", fields={"a": "int8"}), codec("struct", fields=[["a", "int8", [2]]]),
    codec("struct", fields=[{"name": "a"}]),
    codec("struct", fields=[{"name": "a", "data_type": "int8", "x": 1}]),
    {"name": "string", "configuration": {"x": 1}}, {"name": "bytes", "configuration": {"x": 1}}, "int1",
    "float8", "complex_float16",
], ids=str)  # fmt: skip
def test_what_version_3_does_not_say(spec: Any) -> None:
    (error,) = refused(MetadataError, None, lambda: registry.match_json(spec, zarr_format=3))
    assert type(error) in (DataTypeValidationError, UnknownExtensionError)


@pytest.mark.parametrize(("name", "words"), [
    ([["a", "<i2", 2]], "not a field"), ([["a", "<i2", [2], 1]], "not a field"),
    *(([["a", "<i2", shape]], "holds arrays")
      for shape in ([0], [-1], [2.0], [True], ["2"], [None], [[2]], [1] * 17)),
    ([["a", "<i2", [2**40]]], "holds arrays"), ([["a"]], "fields.0"), ([5], "fields.0"),
    ([], "at least one field"), ([["", "<i2"]], "name of a field"),
    ([["a", "<i2"], ["a", "<i2"]], "name of a field"), ([["a", "|O"]], "fields.a.*codec"),
    ([["a", "x"]], "fields.a.*unknown"), ([["a", [["b", "x"]]]], "fields.a.fields.b.*unknown"),
    ([[["title", "a"], "<i2"]], "fields.0"), ([["a", 5]], "fields.a"), ("|S0", "length"),
    ([["a", "<i2"], 5], "fields.1"), *((name, None) for name in (
        "", "<", "i3", "<f16", "<c32", "<i2 ", " <i2", "<<i2", "i2,i2", "3i4", "i8[s]", "<M8[x]", "<M8[s",
        "M4", "<U", "|S", "V", "g", "l", "<l", "<q", "d", "datetime64[s]", "float32x", "str", "S٣", "O2",
        "object", "|S99999999999", "<M8[s/2]", "<M8[99999999999s]", "int", "longdouble", "|b2", "e", "P", "p",
    )),
], ids=str)  # fmt: skip
def test_what_version_2_does_not_say(name: Any, words: str | None) -> None:
    with pytest.raises(MetadataError, match=words) as caught:
        registry.match_json({"name": name, "object_codec_id": None}, zarr_format=2)
    assert type(caught.value) in (DataTypeValidationError, UnknownExtensionError)
    assert caught.value.accepted


def test_the_older_struct_is_read_and_not_written() -> None:
    older = {"name": "structured", "configuration": {"fields": [
        ["x", "float32"], ["p", {"name": "structured", "configuration": {"fields": [["y", "int16"]]}}],
        ["t", time_json("datetime", "s", 10)],
    ]}}  # fmt: skip
    data_type = registry.match_json(older, zarr_format=3)
    time = DateTime64("s", 10)
    assert data_type == Struct((("x", Float32()), ("p", Struct((("y", Int16()),))), ("t", time)))
    assert Structured is Struct
    fields = ("x", "float32"), ("p", struct_json(("y", "int16"))), ("t", time_json("datetime", "s", 10))
    assert data_type.to_json(3) == struct_json(*fields)
    # Its fill values were base64 of the elements, little endian.
    scalar = data_type.from_json_scalar("AACAPwIBBQAAAAAAAAA=", zarr_format=3)
    assert data_type.to_json_scalar(scalar, zarr_format=3) == {"x": 1.0, "p": {"y": 258}, "t": 5}


SCALARS: list[tuple[ZDType, list[Any], list[Any], Any]] = [
    (FixedLengthUTF32(3), ["aé日"], ["aé日"], np.str_("aé日")),
    (FixedLengthUTF32(3), [""], ["", 0], np.str_("")),
    (FixedLengthUTF32(2), ["😀"], ["😀", "😀\0"], np.str_("😀")),
    (NullTerminatedBytes(10), ["SGk="], ["SGk=", "SGkA"], np.bytes_(b"Hi")),
    (NullTerminatedBytes(10), [""], ["", 0], np.bytes_(b"")),
    (RawBytes(3), ["AQL/"], ["AQL/"], np.void(b"\1\2\xff")),
    (VariableLengthUTF8(), ["aé\0"], ["aé\0"], "aé\0"), (VariableLengthUTF8(), [], ["0", 0], "0"),
    (VariableLengthBytes(), ["/wBh", [255, 0, 97]], ["/wBh"], b"\xff\0a"),
    (VariableLengthBytes(), ["", []], ["", 0], b""),
    (DateTime64("s"), ["NaT", NAT], [NAT, "NaT"], np.datetime64("NaT", "s")),
    (DateTime64("s", 10), [5], [5, "1970-01-01T00:00:50"], np.datetime64(5, (  "s", 10))),
    (DateTime64("D"), [-1], [-1, "1969-12-31"], np.datetime64("1969-12-31")),
    (TimeDelta64("ns"), [2**63 - 1], [2**63 - 1], np.timedelta64(2**63 - 1, "ns")),
    (TimeDelta64("ns"), ["NaT", NAT], [NAT, "NaT"], np.timedelta64("NaT", "ns")),
]  # fmt: skip


@pytest.mark.parametrize(("data_type", "version_3", "version_2", "value"), SCALARS, ids=lambda v: str(v)[:30])
def test_forms_of_scalars(data_type: ZDType, version_3: list[Any], version_2: list[Any], value: Any) -> None:
    for zarr_format, forms in ((3, version_3), (2, version_2)):
        for form in forms:
            found = data_type.from_json_scalar(form, zarr_format=zarr_format)
            assert type(found) is type(value)
            assert data_type.bits(found) == data_type.bits(value)
        if forms and not (zarr_format == 2 and isinstance(forms[0], str) and forms[0] == "NaT"):
            assert data_type.to_json_scalar(value, zarr_format=zarr_format) == forms[0]


def test_structs_are_written_by_name_in_version_3() -> None:
    form = {"x": 0.5, "flag": -1}
    scalar = POINT.from_json_scalar(form, zarr_format=3)
    assert scalar.tobytes() == b"\x3f\0\0\0\xff"
    assert POINT.to_json_scalar(scalar, zarr_format=3) == form
    nan = POINT.from_json_scalar({"x": "0x7f800001", "flag": 0}, zarr_format=3)
    assert nan.tobytes() == b"\x7f\x80\0\1\0"
    assert POINT.to_json_scalar(nan, zarr_format=3) == {"x": "0x7f800001", "flag": 0}
    # In version 2 the bytes are in the order of the fields.
    assert POINT.to_json_scalar(scalar, zarr_format=2) == "PwAAAP8="
    for zero in (0, "", 0.0, "AAAAAAA="):
        assert POINT.from_json_scalar(zero, zarr_format=2).tobytes() == bytes(5)
    assert POINT.from_json_scalar("PwAAAP8=", zarr_format=2).tobytes() == b"\x3f\0\0\0\xff"
    assert POINT.from_json_scalar({"x": 0.5, "flag": -1}, zarr_format=2).tobytes() == b"\x3f\0\0\0\xff"
    # In version 3 they are little endian.
    assert POINT.from_json_scalar("AAAAP/8=", zarr_format=3).tobytes() == b"\x3f\0\0\0\xff"
    little = POINT.in_byte_order("little")
    assert little.cast_scalar(scalar).tobytes() == b"\0\0\0\x3f\xff"
    assert little.from_json_scalar("AAAAP/8=", zarr_format=2).tobytes() == b"\0\0\0\x3f\xff"
    refuses(partial(POINT.from_json_scalar, zarr_format=3), [
        {"x": 0.5}, {"x": 0.5, "flag": 1, "y": 0}, {"x": "x", "flag": 1}, [0.5, -1], "PwAAAP8", "", "AAAA",
        None, 0, 5, True,
    ], DataTypeValidationError)  # fmt: skip


REFUSED_SCALARS: list[tuple[ZDType, list[Any]]] = [
    (FixedLengthUTF32(3), ["abcd", 0, None, ["a"], "\ud800", True]),
    (NullTerminatedBytes(2), ["SGkh", "SGk", "é", "S G k =", 0, None, [72]]),
    (RawBytes(3), ["AQI=", "AQL/AA==", [1, 2, 255], 0, "", None]),
    (VariableLengthUTF8(), [0, None, ["a"], "a\ud800", True, {}]),
    (VariableLengthBytes(), [0, None, "é", "AQI", [256], [1.0], [True], [[1]], {}, "A Q I ="]),
    (DateTime64("s"), [0.0, "nat", "2000-01-01", None, True, 2**63, -(2**63) - 1, [0], {}]),
    (TimeDelta64("s"), [1.5, "1 s", None, False, 2**63, [0]]),
]  # fmt: skip


@pytest.mark.parametrize(("data_type", "forms"), REFUSED_SCALARS, ids=lambda value: str(value)[:30])
def test_forms_of_scalars_that_are_not_permitted(data_type: ZDType, forms: list[Any]) -> None:
    read = partial(data_type.from_json_scalar, zarr_format=3)
    assert all(error.accepted for error in refuses(read, forms, DataTypeValidationError, data_type.name))
    if isinstance(data_type, DateTime64):
        dates = ["today", "now", "2000-13-01", "2000-01-01T00:00:00Z", "2000-1-1", "", "٢٠٠٠"]
        refuses(partial(data_type.from_json_scalar, zarr_format=2), dates, DataTypeValidationError)


NULLABLE = np.dtypes.StringDType(na_object=None)
WORDS = np.array(["abc", "é", ""], "U3")
STRINGS = np.array(["abc", "é\0", ""], np.dtypes.StringDType())
CODES = np.array([b"abc", b"\xff", b""], "S3")
BLOBS = np.array([b"a\0", b""], object)
RAW = np.array([b"ab\0", b"\0\0\0"], "V3")
HELD: dict[str, tuple[ZDType, Any, list[Any], list[Any]]] = {
    # Data type, an array of it, what else becomes that array, and what is refused.
    "U3": (
        FixedLengthUTF32(3), WORDS,
        [WORDS.tolist(), ["abc\0\0", "é", "\0"], WORDS.astype("U9"), WORDS.astype(">U3"),
         WORDS.astype(object), WORDS.astype("T"), np.array(["abc", "é", ""], NULLABLE)],
        [["abcd"], np.array(["abcd"]), np.array(["abcd"], "T"), [1], ["a", 1], [None], [b"a"], [1.5],
         np.array([b"a"]), ["\ud800"], [["a"], "b"], np.array(["a", None], object),
         np.array(["a", None], NULLABLE)],
    ),
    "string": (
        VariableLengthUTF8(), STRINGS,
        [STRINGS.tolist(), STRINGS.astype(object), np.array(["abc", "é\0", ""], object),
         STRINGS.astype(np.dtypes.StringDType(coerce=False)), STRINGS.astype(NULLABLE)],
        [[1], ["a", 1], [None], [np.nan], [b"a"], np.array([b"a"]), ["\ud800"], np.arange(3), ["a", ["b"]],
         np.array(["a", None], NULLABLE), np.array([True]), np.array(["\ud800"])],
    ),
    "S3": (
        NullTerminatedBytes(3), CODES, [[b"abc", b"\xff\0", b"\0"], CODES.astype("S9"), CODES.astype(object)],
        [[b"abcd"], np.array([b"abcd"]), ["abcd"], ["é"], [1], [None], np.array([1]), np.array(["é"]),
         [b"a", 1]],
    ),
    "bytes": (
        VariableLengthBytes(), BLOBS, [[b"a\0", b""], [bytearray(b"a\0"), np.bytes_(b"")]],
        [["a"], [1], [None], np.array(["a"]), np.arange(3), [b"a", "b"], np.array([b"a", None], object)],
    ),
    **{
        name: (
            data_type, RAW, [[b"ab\0", bytes(3)], np.array([b"ab\0", bytes(3)], object), list(RAW)],
            [[b"ab"], [b"abcd"], ["abc"], [1], np.array([b"abc"]), np.zeros(3, "u1"), np.zeros(2, "V4"),
             None],
        )
        for name, data_type in (("r24", RawBits(24)), ("raw_bytes", RawBytes(3)))
    },
}  # fmt: skip


@pytest.mark.parametrize("missing", [None, np.nan])
def test_text_items_names_the_place(missing: Any) -> None:
    array = create_array(MemoryStore(), shape=(1, 2), dtype="string")
    nullable = np.array([["a", missing]], np.dtypes.StringDType(na_object=missing))
    given = np.array([["a", missing]], object), nullable, [["a", missing]]
    refuses(partial(array.__setitem__, ...), given, DataTypeValidationError, r"at index \(0, 1\); found")
    with pytest.raises(DataTypeValidationError, match=r"at index \(1,\); found"):
        create_array(MemoryStore(), data=np.array(["a", missing], object), dtype=str)


@pytest.mark.parametrize("name", HELD)
def test_values_that_arrays_hold(name: str) -> None:
    data_type, expected, others, refused = HELD[name]
    for values in (expected, *others):
        for shape in ((-1,), (-1, 1)):
            given = np.asarray(values).reshape(shape) if isinstance(values, np.ndarray) else values
            found = data_type.cast_array(given)
            assert (found.dtype, found.reshape(-1).tolist()) == (expected.dtype, expected.tolist())
            assert [type(item) for item in found.flat] == [type(item) for item in expected]
    whole: Any = expected[0]
    assert (data_type.cast_array([[whole]]).shape, data_type.cast_array([]).shape) == ((1, 1), (0,))
    refuses(data_type.cast_array, refused, DataTypeValidationError, data_type.name)


def test_scalars_of_text_and_bytes() -> None:
    wrong = (b"ab", b"abcd", "abc", 1, 1.0, None, [1, 2, 3], np.void(b"ab"), np.int8(1))
    refuses(RawBits(24).cast_scalar, wrong, DataTypeValidationError, "3 bytes")
    for octets, raw in ((b"abc",) * 2, (bytearray(b"abc"), b"abc"), (np.void(b"abc"), b"abc"), (0, bytes(3))):
        assert RawBits(24).cast_scalar(octets).tobytes() == raw
    assert RawBits(24).filled((2,), np.void(b"abc")).tobytes() == b"abcabc"
    for scalar in ("a", np.str_("a"), np.array("a"), np.array("a", "T")):
        assert VariableLengthUTF8().cast_scalar(scalar) == "a"
        assert type(VariableLengthUTF8().cast_scalar(scalar)) is str
    for value, expected in (
        (b"ab", b"ab"), ("ab", b"ab"), (bytearray(b"ab\0"), b"ab"), (0, b""), (np.bytes_(b"a"), b"a"),
    ):  # fmt: skip
        assert NullTerminatedBytes(3).cast_scalar(value) == expected
    refused: list[Any] = [b"a", 1, None, ["a"], np.array(["a"]), "\ud800"]
    refuses(VariableLengthUTF8().cast_scalar, refused, DataTypeValidationError)
    refused = [b"abcd", "é", 1, None, 1.0, False, [b"a"]]
    refuses(NullTerminatedBytes(3).cast_scalar, refused, DataTypeValidationError)


@pytest.mark.parametrize("fill", ["", "a", "a\0", "😀" * 40], ids=range(4))
def test_strings_that_are_all_the_same(fill: str) -> None:
    data_type = VariableLengthUTF8()
    for shape in ((), (3,), (0, 2), (2, 3)):
        array = data_type.filled(shape, fill)
        assert set(array.reshape(-1).tolist()) <= {fill}
        assert data_type.holds_only(array, fill)
        assert data_type.holds_only(array, fill + "\0") is (array.size == 0)
        if array.size > 2:
            array.reshape(-1)[1] = "x"
            assert not data_type.holds_only(array, fill)


@pytest.mark.parametrize("sign", "<>")
@pytest.mark.parametrize("cls", [DateTime64, TimeDelta64])
def test_every_unit_and_scale_factor(cls: Any, sign: str) -> None:
    for unit, scale_factor in itertools.product((*UNITS, "generic"), (1, 7, 2**31 - 1)):
        with case((unit, scale_factor)):
            check_unit(cls, unit, scale_factor, sign)
    for spelling in ("us", "μs", "\u00b5s"):  # Microseconds have several.
        found = registry.match_json(time_json("datetime", spelling, 10), zarr_format=3)
        assert found == DateTime64(spelling, 10) == DateTime64("us", 10)
        assert found.to_json(3) == time_json("datetime", "us", 10)


def check_unit(cls: Any, unit: str, scale_factor: int, sign: str) -> None:
    dtype = np.dtype(f"{sign}{'M' if cls is DateTime64 else 'm'}8[{scale_factor}{unit}]")
    data_type = cls(unit, scale_factor, endianness="little" if sign == "<" else "big")
    assert data_type.to_native_dtype() == dtype
    assert cls.from_native_dtype(dtype) == parse_dtype(dtype) == eval(repr(data_type)) == data_type
    assert registry.match_json(data_type.to_json(2), zarr_format=2) == data_type
    for count in (NAT, NAT + 1, -1, 5, 2**63 - 1):
        scalar = data_type.from_json_scalar(count, zarr_format=3)
        assert (int(scalar.view("i8")), scalar.dtype) == (count, dtype.newbyteorder("="))
        assert data_type.to_json_scalar(scalar, zarr_format=3) == ("NaT" if count == NAT else count)
        assert data_type.to_json_scalar(scalar, zarr_format=2) == count
        array = data_type.filled((2,), scalar)
        assert (array.dtype, array.view(f"{sign}i8").tolist()) == (dtype, [count, count])
        assert data_type.holds_only(array, scalar)
    assert np.isnat(data_type.default_scalar())


@pytest.mark.slow
@settings(max_examples=400)
@given(
    st.sampled_from("Mm"), st.sampled_from(UNITS), st.sampled_from([1, 2, 25]), st.sampled_from(UNITS),
    st.sampled_from([1, 3, 10]), st.one_of(st.integers(-2000, 2000), st.integers(NAT, 2**63 - 1)),
)  # fmt: skip
def test_times_convert_exactly_or_not_at_all(
    letter: str, unit: str, scale: int, target: str, other: int, count: int
) -> None:
    source = np.array([count, 0, NAT], "i8").view(f"{letter}8[{scale}{unit}]")
    data_type = parse_dtype(f"{letter}8[{other}{target}]")
    try:
        found = data_type.cast_array(source)
    except DataTypeValidationError:
        if letter == "M" and abs(count) < 2000:
            # What numpy converts there and back, without overflow, is not refused.
            with np.errstate(all="ignore"):
                try:
                    back = source.astype(data_type.to_native_dtype()).astype(source.dtype)
                except OverflowError:
                    return
            assert back.view("i8").tolist() != source.view("i8").tolist()
        return
    assert found.dtype == data_type.to_native_dtype()
    assert found.astype(source.dtype).view("i8").tolist() == source.view("i8").tolist()
    seconds = {"W": 604800, "D": 86400, "h": 3600, "m": 60, "s": 1}
    if unit in seconds and target in seconds:
        exact = count * seconds[unit] * scale // (seconds[target] * other)
        assert found.view("i8").tolist()[0] == (NAT if count == NAT else exact)
    calendar = {"Y", "M"}
    if letter == "m" and count != NAT:
        assert (unit in calendar) == (target in calendar)


def test_moments_of_python_and_pandas() -> None:
    data_type = DateTime64("ns")
    moment = datetime.datetime(2000, 1, 2, 3, 4, 5, 678901)
    expected = np.array(["2000-01-02T03:04:05.678901", "2000-01-02", "NaT"], "M8[ns]")
    values = [moment, datetime.date(2000, 1, 2), np.datetime64("NaT", "s")]
    assert same_bits(data_type.cast_array(np.array(values, object)), expected)
    assert same_bits(data_type.cast_array([moment]), expected[:1])
    exact = pd.Timestamp("2000-01-02T03:04:05.123456789")
    assert data_type.cast_array([exact])[0] == np.datetime64("2000-01-02T03:04:05.123456789")
    assert data_type.cast_scalar(exact) == np.datetime64("2000-01-02T03:04:05.123456789")
    assert np.isnat(data_type.cast_array([pd.NaT, exact])[0])
    assert data_type.cast_scalar(moment) == expected[0]
    assert data_type.cast_scalar("2000-01-02") == expected[1]
    assert data_type.cast_scalar(0) == np.datetime64(0, "ns")
    assert data_type.cast_array([]).dtype == np.dtype("M8[ns]")
    aware, local = moment.replace(tzinfo=datetime.UTC), exact.tz_localize("UTC")
    wrong = (aware, local, datetime.timedelta(1), np.timedelta64(1, "s"), "2000", 5, 1.5, None, True)
    refuses(data_type.cast_array, [[each] for each in wrong], DataTypeValidationError)
    for unit, value in (("us", exact), ("D", moment)):
        refuses(DateTime64(unit).cast_array, [[value]], DataTypeValidationError)


def test_durations_of_python_and_pandas_and_of_no_unit() -> None:
    data_type = TimeDelta64("us")
    assert data_type.cast_array([datetime.timedelta(seconds=1)]).view("i8").tolist() == [10**6]
    assert data_type.cast_array([pd.Timedelta("1us")]).view("i8").tolist() == [1]
    assert data_type.cast_scalar(np.timedelta64(3, "ms")).view("i8") == 3000
    assert data_type.cast_scalar(3).view("i8") == 3
    refuses(data_type.cast_array, [
        [datetime.datetime(2000, 1, 1)], [5], ["5"], [pd.Timedelta("1ns")], [np.timedelta64(1, "ns")],
        [np.timedelta64(1, "M")], [np.datetime64("2000")], [None],
    ], DataTypeValidationError)  # fmt: skip
    # Units of nothing convert to none.
    generic = np.array([5, NAT], "i8").view("M8")
    assert same_bits(DateTime64().cast_array(generic), generic)
    nothing = np.array([NAT], "i8")
    assert DateTime64("s").cast_array(nothing.view("M8")).view("i8").tolist() == [NAT]
    assert DateTime64().cast_array(nothing.view("M8[s]")).view("i8").tolist() == [NAT]
    refuses(DateTime64("s").cast_array, [generic], DataTypeValidationError)
    refuses(DateTime64().cast_array, [np.array(["2000"], "M8[s]")], DataTypeValidationError)


def test_values_that_structs_hold() -> None:
    inner = Struct((("a", Int16()), ("t", DateTime64("s"))))
    data_type = Struct((("x", Float32()), ("p", inner), ("s", NullTerminatedBytes(2))))
    dtype = data_type.to_native_dtype()
    moment = np.datetime64(5, "s")
    one = (0.5, (7, moment), b"ab")
    expected = np.array([one, (1.5, (-7, moment), b"")], dtype)
    wider = np.dtype([("x", ">f8"), ("p", [("a", ">i8"), ("t", ">M8[ms]")]), ("s", "S9")], align=True)
    objects = np.empty(2, object)
    objects[:] = [one, {"x": 1.5, "p": (-7, moment), "s": b""}]
    for values in (
        expected, expected.astype(wider), expected.astype(dtype.newbyteorder("S")), list(expected), objects,
        [one, (1.5, (-7, moment), b"")],
        [{"x": 0.5, "p": {"a": 7, "t": moment}, "s": b"ab"}, (1.5, {"a": -7, "t": 5}, "")],
    ):  # fmt: skip
        assert same_bits(data_type.cast_array(values), expected)
    for rows, shape in (([[one]], (1, 1)), (one, ()), ([], (0,)), ([[]], (1, 0))):
        assert data_type.cast_array(rows).shape == shape
    refuses(data_type.cast_array, [
        [(0.5, (7.5, moment), b"ab")], [(0.5, (2**15, moment), b"ab")], [(0.5, (7, moment), b"abc")],
        [(0.5, (7, moment))], [(0.5, 7, b"ab")], [0.5], [None], "x", 5.0, np.zeros(2),
        np.zeros(2, "i4,i4,i4"), np.zeros(2, [("p", dtype["p"]), ("x", "f4"), ("s", "S2")]), [[one], []],
        np.zeros(2, [("x", "f4", (2,)), ("p", dtype["p"]), ("s", "S2")]),
        {"x": 1}, [{"x": 0.5, "p": (7, moment), "s": b"", "y": 1}], np.zeros(2, f"V{dtype.itemsize}"),
    ], DataTypeValidationError)  # fmt: skip


def test_the_field_that_does_not_fit_is_named() -> None:
    data_type = Struct((("p", Struct((("a", Int8()),))),))
    refused(
        DataTypeValidationError, r"p\.a.*int8", lambda: data_type.cast_array([((300,),)]),
        lambda: data_type.cast_array(np.array([((300,),)], [("p", [("a", "i4")])])),
        lambda: data_type.cast_scalar({"p": {"a": 300}}),
        lambda: data_type.from_json_scalar({"p": {"a": 300}}, zarr_format=3),
    )  # fmt: skip


def test_scalars_of_structs() -> None:
    for value in ((0.5, 1), [0.5, 1], {"flag": 1, "x": 0.5}, b"\x3f\0\0\0\1", POINT.cast_scalar((0.5, 1)),
                  np.array((0.5, 1), [("x", "f8"), ("flag", "i8")]),
                  np.array((0.5, 1), [("x", "<f4"), ("flag", "i1")])[()]):  # fmt: skip
        assert POINT.cast_scalar(value).tobytes() == b"\x3f\0\0\0\1"
    assert POINT.cast_scalar(0).tobytes() == POINT.default_scalar().tobytes() == bytes(5)
    wrong = [b"abc", (1,), (1, 2, 3), {"x": 1}, 1, None, "PwAAAAE=", (0.5, 1.5), False, np.void(b"abcde")]
    refuses(POINT.cast_scalar, wrong, DataTypeValidationError)


def test_padded_dtypes_are_packed() -> None:
    aligned = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    moved = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [20, 4], "itemsize": 40})
    expected = Struct((("a", Int8()), ("b", Float64())))
    for dtype in (aligned, moved, np.dtype([("a", "i1"), ("b", "f8")])):
        assert parse_dtype(dtype) == expected
    assert expected.to_native_dtype().itemsize == 9
    nested = np.dtype([("p", aligned), ("q", "i1")])
    assert parse_dtype(nested).item_size == 10
    # They are checked when they are made.
    one = ("a", Int8())
    wrong = [(), (("", Int8()),), (one, one), (("a", VariableLengthUTF8()),), ((5, Int8()),)]
    refuses(Struct, wrong, DataTypeValidationError, "struct")
    assert Struct([["a", Int8()]]) == Struct((("a", Int8()),))  # type: ignore[arg-type, list-item]
    json.dumps(Struct((("é", Int32()),)).to_json(3))


def test_numbers_hold_numbers_only() -> None:
    wrong = [["a"], [b"a"], np.array(["2000"], "M8[s]"), np.zeros(2, "i4,i4"), [None], [Thing()]]
    for name in ("bool", "int8", "float32", "complex64"):
        refuses(parse_dtype(name).cast_array, wrong, DataTypeValidationError, name)


@pytest.mark.parametrize(("name", "values"), [
    ("uint64", [[2**63 + 5, 3], [2**64 - 1, -0.0]]), ("int64", [2**53 + 1, 1.0]), (">u8", [2**63 + 5, 3]),
    ("int64", [np.array([-(2**53) - 1, 4]), [1.0, 2]]),
])  # fmt: skip
def test_integers_of_lists_keep_their_digits(name: str, values: list[Any]) -> None:
    """numpy alone makes floating point numbers of these."""
    assert np.asarray(values).dtype.kind == "f"
    found = parse_dtype(name).cast_array(values)
    assert (found.dtype, found.tolist()) == (name, np.asarray(values, object).tolist())
    for wrong in ([2**53 + 1, 1.5], [2**53 + 1, np.nan], [2.0**64, 1], [2**64 - 1, -1]):
        refuses(parse_dtype(name).cast_array, [wrong], DataTypeValidationError)
