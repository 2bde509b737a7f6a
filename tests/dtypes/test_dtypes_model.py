"""The data type model: what every class can do, the registry, and classes of other packages."""

import datetime
import importlib.util
import json
import pickle
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Self

import _strategies
import msgspec
import numpy as np
import pytest
from _processes import printed_by
from _slow import slow
from _strategies import JSON_VALUES, SMALL_NAMES, arrays_of, attempt, data_types, same_bits, scalars, shapes
from _things import Thing, refused, refuses
from hypothesis import example, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import DataTypeValidationError, MetadataError, UnknownExtensionError
from xzarr3.dtypes import DataTypeRegistry, Int16, RawBits, Struct, ZarrFormat, ZDType, parse_dtype, registry
from xzarr3.formats.base import fill_value_from_json

SMALL = SMALL_NAMES if importlib.util.find_spec("ml_dtypes") else ()
ALL = [parse_dtype(spec) for spec in (*_strategies.DATA_TYPES, *_strategies.EXTENSION_TYPES, *SMALL)]
ALL += [Struct((("a", Int16()), ("b", Struct((("c", parse_dtype("bool")),)))))]
ANY = data_types(small=bool(SMALL))
FORMATS: tuple[ZarrFormat, ...] = (2, 3, "3-draft")


def names_nan(form: Any) -> Any:
    if isinstance(form, list):
        return [names_nan(part) for part in form]
    return "NaN" if isinstance(form, str) and form.startswith("0x") else form


@pytest.mark.slow
@settings(max_examples=400)
@given(ANY, st.sampled_from(FORMATS))
def test_data_type_and_json_belong_together(data_type: ZDType, zarr_format: ZarrFormat) -> None:
    spec, error = attempt(lambda: data_type.to_json(zarr_format), DataTypeValidationError)
    if error is not None:  # Version 2 has no sign for the byte order of what numpy does not spell.
        assert {"3-draft": "the draft of Zarr format 3 has no data type", 2: "big"}[zarr_format] in str(error)
        return
    text = json.dumps(spec, allow_nan=False)
    for decode in (json.loads, msgspec.json.decode):
        back = registry.match_json(decode(text), zarr_format=zarr_format)
        assert back.to_json(zarr_format) == spec
        if zarr_format != 3 and re.search(r"\br[0-9]+\b|raw_bytes", str(data_type.to_json(3))):
            continue  # Two names of the same in version 3 only.
        expected = data_type if zarr_format == 2 else data_type.in_native_order()
        assert (back, hash(back)) == (expected, hash(expected))
        assert type(data_type).from_json(decode(text), zarr_format=zarr_format) == expected


@settings(max_examples=400)
@given(st.data(), st.sampled_from(FORMATS))
def test_scalar_and_json_belong_together(data: st.DataObject, zarr_format: ZarrFormat) -> None:
    data_type = data.draw(ANY)
    scalar = data.draw(scalars(data_type))
    form = data_type.to_json_scalar(scalar, zarr_format=zarr_format)
    text = json.dumps(form, allow_nan=False)
    expected = data_type.bits(scalar)
    if zarr_format == 2 and not isinstance(data_type, Struct):
        exact = data_type.to_json_scalar(scalar, zarr_format=3)
        if names_nan(exact) != exact and data_type.name not in ("string", "fixed_length_utf32"):
            expected = data_type.bits(data_type.from_json_scalar(names_nan(exact), zarr_format=3))
    for decode in (json.loads, msgspec.json.decode):
        back = data_type.from_json_scalar(decode(text), zarr_format=zarr_format)
        assert data_type.bits(back) == expected
        assert type(back) is type(scalar)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_arrays_hold_the_fill_value_only(data: st.DataObject) -> None:
    data_type = data.draw(ANY)
    shape = data.draw(shapes(max_dims=3))
    one, other = data.draw(scalars(data_type)), data.draw(scalars(data_type))
    array = data_type.filled(shape, one)
    assert (array.shape, array.dtype) == (shape, data_type.to_native_dtype())
    assert data_type.holds_only(array, one)
    assert data_type.holds_only(array.T, one)
    assert data_type.holds_only(array[..., ::2] if shape else array, one)
    same = data_type.bits(one) == data_type.bits(other)
    assert data_type.holds_only(array, other) is (same or array.size == 0)
    if array.size and not same:
        array.reshape(-1)[data.draw(st.integers(0, array.size - 1))] = data_type.filled((), other)[()]
        assert not data_type.holds_only(array, one)
        assert data_type.holds_only(array, other) is (array.size == 1)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_what_is_of_the_type_is_cast_as_it_is(data: st.DataObject) -> None:
    data_type = data.draw(ANY)
    scalar = data.draw(scalars(data_type))
    assert data_type.bits(data_type.cast_scalar(scalar)) == data_type.bits(scalar)
    assert data_type._check_scalar(scalar)
    array = data.draw(arrays_of(data_type, data.draw(shapes(max_dims=3))))
    cast = data_type.cast_array(array)
    assert (cast.dtype, cast.shape) == (data_type.to_native_dtype(), array.shape)
    for mine, given_one in zip(cast.reshape(-1), array.reshape(-1), strict=True):
        assert data_type.bits(mine) == data_type.bits(given_one)
    for order in ("big", "little"):  # To another byte order, and back.
        other = data_type.in_byte_order(order)  # type: ignore[arg-type]
        assert data_type.bits(data_type.cast_scalar(other.cast_scalar(scalar))) == data_type.bits(scalar)
        if not data_type.is_variable:
            assert cast.tobytes() == array.tobytes()
            assert data_type.cast_array(other.cast_array(array)).tobytes() == array.tobytes()


@settings(max_examples=200)
@given(st.data())
def test_masked_elements_are_refused(data: st.DataObject) -> None:
    data_type = data.draw(data_types(variable=False, small=bool(SMALL)))
    array = data.draw(arrays_of(data_type, (2,)))
    # numpy does not make masked arrays of some dtypes.
    masked, error = attempt(lambda: np.ma.masked_array(array, [True, False]), TypeError, ValueError)
    if error is None:
        refused(DataTypeValidationError, "masked", lambda: data_type.cast_array(masked))
        assert data_type.cast_array(np.ma.masked_array(array)).tobytes() == array.tobytes()


@pytest.mark.parametrize("data_type", ALL, ids=lambda each: each.name)
def test_every_type_is_complete(data_type: ZDType) -> None:
    cls, dtype = type(data_type), data_type.to_native_dtype()
    assert isinstance(dtype, data_type.dtype_cls)
    assert (data_type.item_size, cls.from_native_dtype(dtype)) == (dtype.itemsize, data_type)
    assert cls._check_native_dtype(dtype)
    assert pickle.loads(pickle.dumps(data_type)) == data_type
    assert len({data_type, cls.from_native_dtype(dtype)}) == 1
    assert repr(data_type).startswith(cls.__name__)
    assert data_type.in_native_order() == data_type
    default = data_type.default_scalar()
    assert data_type.bits(data_type.cast_scalar(default)) == data_type.bits(default)
    assert data_type.holds_only(data_type.filled((2,), default), default)
    assert parse_dtype(data_type) is data_type
    assert (data_type.byte_order is None) is not data_type.has_byte_order
    assert data_type.is_variable is (data_type.name in ("string", "bytes"))
    if dtype.kind != "O" and not data_type._by_name_only:
        assert (parse_dtype(dtype), registry.match_dtype(dtype)) == (data_type, data_type)
    for check, zarr_format in ((cls._check_json_v2, 2), (cls._check_json_v3, 3)):
        assert check(data_type.to_json(zarr_format))
        assert not check(5)


CLASSES = list(dict.fromkeys(registry.contents.values()))
OBJECTS: list[Any] = [
    b"", b"abc", 1j, np.float16(1), np.datetime64("NaT", "s"), np.timedelta64(1, "s"), Thing(), (), (1, 2),
    np.zeros(3), np.zeros((2, 2), "U3"), np.array(["a", 1], object), range(3), {1, 2}, np.ma.masked,
    datetime.date(2000, 1, 1), np.zeros(2, "i1,i1"), np.void(b"abc"), type, [np.nan, "x"], "\ud800", 10**400,
    -(2**63), 2.0**64,
]  # fmt: skip
SPECS = st.one_of(
    st.fixed_dictionaries({"name": JSON_VALUES, "object_codec_id": st.sampled_from([None, "json2", 5])}),
    st.fixed_dictionaries({
        "name": st.sampled_from(registry.names), "configuration": st.dictionaries(
            st.sampled_from(["unit", "scale_factor", "length_bytes", "fields"]), JSON_VALUES)}),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=2000)
@given(
    st.one_of(st.sampled_from(ALL), ANY), st.one_of(JSON_VALUES, SPECS, st.sampled_from(OBJECTS)),
    st.sampled_from(FORMATS),
)  # fmt: skip
@example(parse_dtype("float64"), 10**400, 3)
@example(parse_dtype("float16"), 2**70, 3)
@example(parse_dtype("complex64"), [10**400, 0], 3)
@example(parse_dtype("r24"), [1, 2, 3], 3)
def test_anything_is_what_it_says_or_refused(data_type: ZDType, value: Any, zarr_format: ZarrFormat) -> None:
    calls = [lambda: parse_dtype(value, zarr_format=zarr_format)]
    is_json = not any(value is each for each in OBJECTS)
    if is_json:
        calls.append(lambda: type(data_type).from_json(value, zarr_format=zarr_format))
        calls.append(lambda: registry.match_json(value, zarr_format=zarr_format))
    for call in calls:
        found, error = attempt(call, DataTypeValidationError, UnknownExtensionError)
        assert isinstance(found, ZDType) if error is None else str(error)
    read = partial(data_type.from_json_scalar, zarr_format=zarr_format)
    scalar, error = attempt(lambda: read(value if is_json else 0), DataTypeValidationError)
    if error is None:
        again = read(data_type.to_json_scalar(scalar, zarr_format=zarr_format))
        assert data_type.bits(again) == data_type.bits(scalar)
    scalar, error = attempt(lambda: data_type.cast_scalar(value), DataTypeValidationError)
    assert data_type.bits(scalar) is not None if error is None else str(error)
    array, error = attempt(lambda: data_type.cast_array(value), DataTypeValidationError)
    assert array.dtype == data_type.to_native_dtype() if error is None else str(error)


@pytest.mark.parametrize("levels", [40, slow(1000), slow(100_000)])
@pytest.mark.parametrize("zarr_format", FORMATS)
def test_deep_nesting(levels: int, zarr_format: ZarrFormat) -> None:
    spec: Any = "<i2" if zarr_format == 2 else "int16"
    for _ in range(levels):
        if zarr_format == 2:
            spec = [["a", spec]]
        else:
            spec = {"name": "struct", "configuration": {"fields": [{"name": "a", "data_type": spec}]}}
    whole = {"name": spec, "object_codec_id": None} if zarr_format == 2 else spec
    refused(UnknownExtensionError, "deep", partial(registry.match_json, whole, zarr_format=zarr_format))
    if levels == 40:
        refused(MetadataError, None, partial(Struct.from_json, whole, zarr_format=zarr_format))


@pytest.fixture
def own() -> DataTypeRegistry:
    made = DataTypeRegistry()
    for cls in CLASSES:
        made.register(cls)
    return made


class Fraction(ZDType[np.dtypes.Int16DType, np.int16]):
    """A data type of another package: only what must be there."""

    _zarr_v3_name = "fraction"
    dtype_cls = np.dtypes.Int16DType
    matches: ClassVar[bool] = False

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        if not cls.matches:
            raise TypeError("not this one")
        return cls()

    def to_native_dtype(self) -> Any:
        return np.dtype("<i2")

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        if data["name"] != "fraction":
            raise ValueError("no fraction")
        return cls()

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        return {"name": "fraction", "configuration": {"x": 1}}

    def default_scalar(self) -> np.int16:
        return np.int16(1)

    def cast_scalar(self, data: object) -> np.int16:
        return np.int16(data)  # type: ignore[call-overload, no-any-return]

    def from_json_scalar(self, data: Any, *, zarr_format: ZarrFormat) -> np.int16:
        return np.int16(data)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        return int(data)  # type: ignore[call-overload]


def test_classes_of_others_have_all_methods(own: DataTypeRegistry, monkeypatch: Any) -> None:
    assert own.register("fraction", Fraction) is Fraction
    data_type = own.match_json({"name": "fraction", "configuration": {"x": 1}}, zarr_format=3)
    assert len({data_type, Fraction()}) == 1
    assert (data_type.name, data_type.item_size, data_type.is_variable) == ("fraction", 2, False)
    assert not data_type.has_byte_order
    assert data_type.in_native_order() is data_type
    array = data_type.filled((2, 3), np.int16(5))
    assert data_type.decoded(array) is array
    assert [data_type.holds_only(array, np.int16(number)) for number in (5, 6)] == [True, False]
    assert same_bits(data_type.cast_array([1.0, 2.0]), np.array([1, 2], "i2"))
    refuses(data_type.cast_array, ([1.5], ["x"], [2**20], [None]), DataTypeValidationError, "fraction")
    assert data_type.bits(np.int16(258)) == b"\2\1"
    assert (data_type._check_scalar(5), data_type._check_scalar("x")) == (True, False)
    # What they raise for others' JSON, which they do not know, is no more than a refusal.
    assert own.match_dtype(np.dtype("<i2")) == Int16()
    assert own.match_json("r16", zarr_format=3) == RawBits(16)
    refuses(partial(own.match_json, zarr_format=2), ["fraction"], UnknownExtensionError)
    refuses(partial(Fraction.from_json, zarr_format=2), ["fraction"], DataTypeValidationError, "format 2")
    wrong = ("fraction", 5, None, [], {})
    refuses(partial(Fraction.from_json, zarr_format=3), wrong, DataTypeValidationError)
    # And no error of theirs comes through.
    monkeypatch.setattr(Fraction, "from_json_scalar", lambda self, data, zarr_format: data.no_such_attribute)
    read = partial(fill_value_from_json, Fraction(), zarr_format=3)
    refuses(read, [5], DataTypeValidationError, "fill value not permitted")


class Spelled(Fraction):
    """One that versions 2 and 3 name, written the way the user guide of zarr-python tells."""

    _zarr_v3_name = _zarr_v2_name = "spelled"

    @classmethod
    def _check_json_v2(cls, data: Any) -> bool:
        is_spec = xzarr3.dtypes.check_dtype_spec_no_object_codec_v2(data)
        return is_spec and bool(data["name"] == cls._zarr_v2_name)

    @classmethod
    def _check_json_v3(cls, data: Any) -> bool:
        return bool(data == cls._zarr_v3_name)

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        if not cls._check_json_v2(data):
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v2_name!r}")
        return cls()

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        if not cls._check_json_v3(data):
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name!r}")
        return cls()

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        return {"name": "spelled", "object_codec_id": None} if zarr_format == 2 else self._zarr_v3_name


@pytest.fixture
def restored() -> Iterator[None]:
    before = dict(registry.contents)
    yield
    registry.contents.clear()
    for name, cls in before.items():
        registry.register(name, cls)
    assert registry.contents == before


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("zarr_format", "key", "field"), [
    (2, ".zarray", "dtype"), (3, "zarr.json", "data_type")])  # fmt: skip
def test_arrays_of_a_class_made_for_zarr_python(zarr_format: ZarrFormat, key: str, field: str) -> None:
    registry.register(Spelled._zarr_v3_name, Spelled)
    for found in (parse_dtype("spelled"), parse_dtype("spelled", zarr_format=2)):
        assert type(found) is Spelled
    store = xzarr3.MemoryStore()
    written = xzarr3.create_array(store, shape=4, dtype="spelled", zarr_format=zarr_format, compressors=None)
    written[:] = [-1, -2, 0, 1]
    for array in (written, xzarr3.open_array(store)):
        assert type(array.zdtype) is Spelled
        assert same_bits(array[:], np.array([-1, -2, 0, 1], "i2"))
    assert json.loads(bytes(store.get(key) or b""))[field] == "spelled"
    refuses(partial(written.set, 0), [2**20], DataTypeValidationError)
    assert Struct((("a", Spelled()),)).to_native_dtype() == np.dtype([("a", "<i2")])


def test_exactly_one_data_type_matches(own: DataTypeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    own.register("fraction", Fraction)
    assert own.match_dtype(np.dtype("<i2")) == Int16()
    monkeypatch.setattr(Fraction, "matches", True)
    own.register("fraction", Fraction)  # Forgets what was found before.
    words = "several data types match: 'int16', 'fraction'"
    refuses(own.match_dtype, [np.dtype("<i2")], DataTypeValidationError, words)
    own.unregister("int16")
    assert own.match_dtype(np.dtype("<i2")) == Fraction()
    assert "int16" not in own.names


def test_a_class_replaces_another_of_its_name(own: DataTypeRegistry) -> None:
    assert own.match_json("bytes", zarr_format=3) == own.match_json("variable_length_bytes", zarr_format=3)
    own.register("bytes", Fraction)
    assert own.contents["bytes"] is Fraction
    assert "variable_length_bytes" not in own.contents
    refuses(partial(own.match_json, zarr_format=3), ["variable_length_bytes"], UnknownExtensionError)
    assert own.register(Int16) is Int16
    refuses(own.register, ["x"], TypeError)
    # JSON that Python calls equal is not the same: what is remembered decides nothing.
    match = partial(own.match_json, zarr_format=3)
    assert match(TIME) is match(dict(TIME))
    wrong = [{**TIME, "configuration": {"unit": "s", "scale_factor": scale}} for scale in (True, 1.0)]
    refuses(match, wrong, DataTypeValidationError)


def test_names_and_contents() -> None:
    assert registry is xzarr3.dtypes.data_type_registry
    assert (len(set(ALL)), registry.names) == (len(ALL), list(registry.contents))
    some = {"int8", "r<N>", "string", "bytes", "variable_length_bytes", "struct"}
    assert some <= set(registry.names)
    assert registry.contents["complex_float32"] is registry.contents["complex64"]


TIME = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
SPELLINGS: dict[str, list[Any]] = {
    "bool": ["?", bool], "int16": ["<i2"], "int32": [np.intc], "int64": [int, np.longlong, np.dtype("l")],
    "uint32": ["=u4"], "uint64": [np.dtype(">u8"), np.ulonglong], "float16": [np.float16],
    "float64": [">f8", float, np.dtypes.Float64DType], "complex64": ["complex_float32", ">c8"],
    "complex128": [{"name": "complex_float64"}, complex], "r16": [{"name": "r16", "configuration": {}}],
    "r24": ["r24"], "raw_bytes": ["V3"], "r2048": ["r2048"],
    "string": [
        str, np.str_, "str", "string", "T", *(np.dtypes.StringDType(coerce=each) for each in (False, True)),
        np.dtypes.StringDType,
    ],
    "bytes": [bytes, np.bytes_, "bytes", "variable_length_bytes"],
    "null_terminated_bytes": ["S3", "|S3"], "fixed_length_utf32": ["U3", ">U3", np.dtype("<U3")],
    "numpy.datetime64": ["M8[s]", "datetime64[10us]", TIME],
    "numpy.timedelta64": [np.dtype("m8[D]"), np.timedelta64],
    "struct": [[("a", "i4")], [["a", "<i4"], ["b", [["c", "|b1"]]]], "i4,f8",
               {"names": ["a"], "formats": ["i4"]}],
}  # fmt: skip


def test_whatever_users_pass() -> None:
    for zarr_format in FORMATS:
        for name, spellings in SPELLINGS.items():
            assert {parse_dtype(spec, zarr_format=zarr_format).name for spec in spellings} == {name}
    spec = {"name": ">i2", "object_codec_id": None}  # These are forms of version 2 alone.
    assert parse_dtype(spec, zarr_format=2) == Int16(endianness="big")
    assert parse_dtype({"name": "|O", "object_codec_id": "vlen-utf8"}, zarr_format=2).name == "string"
    refuses(lambda other: parse_dtype(spec, zarr_format=other), FORMATS[1:], UnknownExtensionError)
    objects = [object, "O", "|O", "object", np.dtype(object), [("a", object)]]  # Which may be anything.
    for zarr_format in FORMATS:
        parse = partial(parse_dtype, zarr_format=zarr_format)
        refuses(parse, objects, DataTypeValidationError, r"'string'.*'bytes'")


@pytest.mark.parametrize(("spec", "words"), [
    ("S0", "length.*1 to"), ("U0", "length.*1 to"), ("S", "length.*1 to"), (np.dtype(str), "length"),
    ("V0", "V1, V2"), (("i4", (2,)), "each element is an array"),
    ([("a", "i4", (2,))], "fields.a.*each element is an array"),
    ([("a", "<i4"), ("b", ">i4")], "fields of several byte orders"),
    ([(("title", "a"), "i4")], "title"), ([("a", [(("title", "b"), "i4")])], "title"),
    ("M8[0s]", "time unit of scale 0"), ([("a", "M8[0s]")], "fields.a.*time unit of scale 0"),
    (np.dtypes.StringDType(na_object=None), "missing values"),
    ([("a", "<f16")], "fields.a.*no Zarr data type"),
], ids=repr)  # fmt: skip
def test_dtype_that_is_almost_a_data_type(spec: Any, words: str) -> None:
    refuses(parse_dtype, [spec], DataTypeValidationError, words)


@pytest.mark.parametrize("codec", [None, "pickle", "msgpack2", "vlen-array", "categorize", "json", "x"])
def test_other_codecs_of_objects_are_refused(codec: str | None) -> None:
    words = "no filter says" if codec is None else f"'{codec}' of objects"
    spec: Any = {"name": "|O", "object_codec_id": codec}
    (error,) = refuses(partial(registry.match_json, zarr_format=2), [spec], UnknownExtensionError, words)
    assert ("run code" in str(error), "'vlen-utf8'" in str(error)) == (codec == "pickle", True)


def test_checks_of_the_form_of_version_2() -> None:
    def of(name: Any, codec: Any = None) -> dict[str, Any]:
        return {"name": name, "object_codec_id": codec}

    for name in ("<i2", "int2", "", [["a", "<i2"]], [["a", [["b", "|b1"]]]], [], (("a", "<i2"),),
                 [["a", "<i2", [2, 3]]], [["a", [["b", "|b1", [1]]], [2]]]):  # fmt: skip
        for codec in (None, "vlen-utf8"):
            assert xzarr3.dtypes.check_dtype_spec_v2(of(name, codec))
            assert xzarr3.dtypes.check_dtype_spec_no_object_codec_v2(of(name, codec)) is (codec is None)
    for wrong in (
        "<i2", None, [], {}, {"name": "<i2"}, {**of("<i2"), "x": 1}, of(5), of([["a"]]), of("<i2", 5),
        of([["a", "<i2", 2]]), of([["a", "<i2", "2"]]), of([["a", "<i2", [2], 1]]), of([[1, "<i2"]]),
    ):  # fmt: skip
        assert not xzarr3.dtypes.check_dtype_spec_v2(wrong)
        assert not xzarr3.dtypes.check_dtype_spec_no_object_codec_v2(wrong)


WITHOUT = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np
import xzarr3
from xzarr3.dtypes import parse_dtype, registry
for name in sys.argv[1].split():
    field = {"name": "a", "data_type": name}
    for call in (
        lambda: parse_dtype(name), lambda: parse_dtype(name, zarr_format=2), registry.contents[name],
        lambda: registry.match_json({"name": name}, zarr_format="3-draft"),
        lambda: registry.match_json({"name": name, "object_codec_id": None}, zarr_format=2),
        lambda: registry.match_json({"name": "struct", "configuration": {"fields": [field]}}, zarr_format=3),
    ):
        try:
            call()
        except xzarr3.UnknownExtensionError as error:
            assert "pip install 'xzarr3[ml-dtypes]'" in str(error), error
        else:
            raise SystemExit(f"{name} is there")
for dtype in ("f4", "V1", "S3", "M8[s]", "i4,f8"):
    parse_dtype(np.dtype(dtype))
print(len(registry.names))
"""


@pytest.mark.slow
def test_without_ml_dtypes_its_types_name_the_extra() -> None:
    assert printed_by(WITHOUT, " ".join(SMALL_NAMES)) == [str(len(registry.names))]
    # Nor is it imported unasked.
    printed_by(
        "import sys, numpy as np, xzarr3, xzarr3.dtypes as d\n"
        "[d.parse_dtype(x) for x in ('i4', 'V1', 'S3', 'M8[s]', 'i4,f8', str, bytes, np.dtype('f2'))]\n"
        "[d.parse_dtype(x, zarr_format=2) for x in ('|V1', [['a', '<i2']], '<U3')]\n"
        "d.Float32().cast_array([1, 2])\n"
        "assert 'ml_dtypes' not in sys.modules\n"
    )


@pytest.mark.slow
def test_structs_of_very_many_fields() -> None:
    number, compared = 2**15, 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    data_type = Struct(tuple((Name(f"f{at}"), Int16()) for at in range(number)))
    assert compared < 16 * number
    assert data_type.item_size == 2 * number
