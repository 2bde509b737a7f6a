"""Codecs of zarr-extensions: bytes written by hand after the texts, exact numbers, other libraries."""

import gzip
import itertools
import json
import math
import pickle
import struct
import warnings
import zlib
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from _chains import MIB, check_array, refused_within, spec_of
from _peers import LITTLE, codec
from _slow import slow_but
from _strategies import attempt, chunk_document, stored
from _things import case, refuses
from hypothesis import example, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError, ChunkEncodeError, MetadataError, UnknownExtensionError
from xzarr3.codecs import BitRoundCodec, BytesCodec, CastValueCodec, ConditionalCodec, ShardingCodec
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, Codec
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.n5_default import N5DefaultCodec
from xzarr3.codecs.numcodecs import numcodecs_ids
from xzarr3.codecs.packbits import PackBitsCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.registry import codec_from_json
from xzarr3.codecs.reshape import ReshapeCodec
from xzarr3.codecs.scale_offset import ScaleOffsetCodec

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
ROUNDINGS = ("nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away")
NOT_VALID: list[Any] = [
    [[1], [0]], [[1, 0], 10, [3, 4]], [[3, 4], 10, [0, 1]],  # These three are those of the text.
    [[0, 0]], [[0], [0, 1]], [-1, -1], [0, 24], [-2], [True, 24], [2.0, 12], ["a"], [None], [{}], [[[0]]],
    [[-1]], 24, "24",
]  # fmt: skip
CASTS = [("f8", "i2"), ("f4", "u1"), ("i4", "i1"), ("f8", "f4"), ("u2", "f4"), ("f8", "f2")]
SMOOTH = np.arange(4096, dtype="<i4")
NOISE = np.random.default_rng(0).integers(0, 2**31, 4096, "<i4")
SHUFFLE = codec("numcodecs.shuffle", elementsize=4)
CODECS, BITS = r"configuration\.codecs", r"configuration\.header_bits"


def codec_of(name: str, **configuration: Any) -> Any:
    """A codec as a metadata document describes it, and again as it describes itself."""
    codec = codec_from_json(json.loads(json.dumps({"name": name, "configuration": configuration})))
    assert codec is not None
    assert codec_from_json(json.loads(json.dumps(codec.to_json()))) == codec
    assert hash(codec_from_json(codec.to_json())) == hash(codec)
    return codec


def encoded(codec: Codec, values: Any, data_type: str) -> Any:
    spec = spec_of(data_type, np.shape(values))
    array = spec.data_type.cast_array(np.asarray(values))
    assert isinstance(codec, (ArrayArrayCodec, ArrayBytesCodec))
    made = codec.encode(array, spec)
    return bytes(made) if isinstance(codec, ArrayBytesCodec) else made


def refused(name: str, configuration: Any, data_type: Any = "float32", shape: Any = (4, 6)) -> MetadataError:
    serializer = [] if name in ("packbits", "n5_default") else [LITTLE]
    codecs = [{"name": name, "configuration": configuration}, *serializer]
    (error,) = refuses(stored, [chunk_document(data_type, shape, codecs, fill_value=0)], MetadataError)
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(("shape", "chunk", "expected"), [
    ([[0, 1], [2], 3], (100, 50, 64, 3), (5000, 64, 3)),
    ([[0, 1], 10, [3, 4]], (2, 3, 10, 4, 5), (6, 10, 20)), ([-1], (4, 6), (24,)),
    ([3, -1, 2], (4, 6), (3, 4, 2)), ([24], (4, 6), (24,)), ([[0], [1]], (4, 6), (4, 6)),
    ([[0], [], [1]], (4, 6), (4, 1, 6)), ([1, 1], (), (1, 1)), ([], (1, 1), ()),
    ([[0], [2]], (4, 1, 6), (4, 6)), ([[0], 2, 3], (4, 6), (4, 2, 3)),
])  # fmt: skip
def test_reshape(shape: list[Any], chunk: tuple[int, ...], expected: tuple[int, ...]) -> None:
    codec = codec_of("reshape", shape=shape)
    assert codec == ReshapeCodec(shape)
    spec = spec_of("int32", chunk)
    assert codec.resolve(spec).shape == expected
    values = np.arange(math.prod(chunk), dtype="i4").reshape(chunk)
    made = codec.encode(values.copy("F"), spec)
    assert (made.shape, made.ravel().tolist()) == (expected, list(range(math.prod(chunk))))
    assert np.array_equal(codec.decode(made, spec), values)
    assert np.shares_memory(codec.decode(made, spec), made) or not made.size


@pytest.mark.parametrize(("shape", "chunk", "reason"), [
    *((shape, (4, 6), "not a valid value") for shape in NOT_VALID),
    *((shape, (4, 6), "no such shape") for shape in ([25], [5, -1], [2**70, -1], [[0], 5])),
    ([[0, 1], [2]], (4, 6), "the chunk has 2 dimensions"),
    ([2, [1], 2], (4, 6), "dimension 1 has another length"),
    # As many elements, but index i of the output is not index i of the dimension that is named.
    ([6, [0]], (4, 6), "dimension 1 has another length"),
    ([[1], 4], (4, 6), "dimension 0 has another length"),
    ([[0, 2], 3], (2, 3, 2), "dimension 0 has another length"),
    ([3, [0, 2]], (2, 3, 2), "dimension 1 has another length"),
])  # fmt: skip
def test_reshape_refused(shape: Any, chunk: tuple[int, ...], reason: str) -> None:
    assert reason in refused("reshape", {"shape": shape}, shape=chunk).reason


@pytest.mark.parametrize(
    ("name", "mantissa"), [("float16", 10), ("float32", 23), ("float64", 52), ("bfloat16", 7)]
)
@given(data=st.data())
def test_bitround_of_floats(name: str, mantissa: int, data: st.DataObject) -> None:
    """To the nearest multiple of a step, of two as near to the even one, and never to infinity."""
    dtype = spec_of(name).dtype
    width = 8 * dtype.itemsize
    bits = data.draw(st.integers(0, 2**width - 1))
    keep = data.draw(st.integers(1, mantissa + 2))
    value = np.array([bits], f"u{dtype.itemsize}").view(dtype)
    found = encoded(BitRoundCodec(keep), value, name)
    wide, made = float(value[0]), float(found[0])
    if not math.isfinite(wide):
        assert found.tobytes() == value.tobytes()
        return
    exponent = max(bits >> mantissa & (1 << width - 1 - mantissa) - 1, 1)
    bias = (1 << width - 2 - mantissa) - 1
    step = Fraction(2) ** (exponent - bias - min(keep, mantissa))
    wanted = round(Fraction(wide) / step) * step
    if abs(wanted) > Fraction(float(ml_dtypes.finfo(dtype).max)):
        wanted = math.trunc(Fraction(wide) / step) * step
    assert (Fraction(made), math.copysign(1, made)) == (wanted, math.copysign(1, wide))


def test_scale_offset_example() -> None:
    codec = codec_of("scale_offset", offset=5, scale=0.1)
    found = encoded(codec, np.array([5, 15, -5], "f4"), "float32")
    assert (found.tolist(), found.dtype) == ([0, 1, -1], np.float32)
    assert codec.to_json() == {"name": "scale_offset", "configuration": {"offset": 5, "scale": 0.1}}
    assert codec_from_json("scale_offset") == ScaleOffsetCodec(0, 1)
    exact = codec_of("scale_offset", offset="0x3dcccccd", scale=1)
    assert encoded(exact, np.array([np.float32(0.1)]), "float32")[0] == 0


@st.composite
def integer_cases(draw: st.DrawFn) -> tuple[str, list[int], int, int]:
    name = draw(st.sampled_from(INTEGERS))
    info = np.iinfo(name)
    low, high = int(info.min), int(info.max)
    ends, little = st.sampled_from([low, high]), st.integers(max(low, -9), min(high, 9))
    near = st.one_of(st.integers(low, high), little, ends)
    scale = near.filter(lambda number: number != 0)
    return name, draw(st.lists(near, min_size=1, max_size=5)), draw(near), draw(scale)


@pytest.mark.slow
@settings(max_examples=300)
@given(integer_cases())
@example(("uint32", [2**32 - 1], 0, 2**32 - 1))
@example(("int8", [-128], 0, -1))
@example(("int8", [127], -1, -1))
@example(("int64", [2**62], -(2**62), 1))
def test_scale_offset_of_integers(case: tuple[str, list[int], int, int]) -> None:
    """Integers of Python, which know no range, tell what is right and what has to be an error."""
    name, numbers, offset, scale = case
    codec = codec_of("scale_offset", offset=offset, scale=scale)
    info = np.iinfo(name)
    low, high = int(info.min), int(info.max)
    spec = spec_of(name, (len(numbers),))
    values = np.array(numbers, name)
    wanted = [(number - offset) * scale for number in numbers]
    if all(low <= number <= high for number in wanted):
        found = codec.encode(values, spec)
        assert (found.dtype, [int(number) for number in found]) == (spec.dtype, wanted)
        assert [int(number) for number in codec.decode(found, spec)] == numbers
    else:
        refuses(partial(codec.encode, values), [spec], ChunkEncodeError, "out of the range")
    back = [Fraction(number, scale) + offset for number in numbers]
    if all(number.denominator == 1 and low <= number <= high for number in back):
        assert [int(number) for number in codec.decode(values, spec)] == back
    else:
        refuses(partial(codec.decode, values), [spec], ChunkDecodeError)


@pytest.mark.parametrize("name", FLOATS)
def test_scale_offset_of_floats(name: str) -> None:
    values = np.random.default_rng(2).standard_normal((7, 5)).astype(name)
    spec = spec_of(name, (7, 5))
    codec = codec_of("scale_offset", offset=-0.3, scale=7.1)
    offset, scale = np.dtype(name).type(-0.3), np.dtype(name).type(7.1)
    found = codec.encode(values.T.copy().T, spec)
    assert found.tobytes() == ((values - offset) * scale).tobytes()
    assert codec.decode(found, spec).tobytes() == (found / scale + offset).tobytes()
    special = np.array([np.nan, np.inf, -np.inf], name)
    assert np.array_equal(encoded(codec, special, name), special, equal_nan=True)
    most = np.array([np.finfo(name).max])
    refuses(lambda values: encoded(codec, values, name), [most], ChunkEncodeError, "infinite")


def numbers_of(name: str) -> Any:
    """Numbers of a type: random ones, those near its ends, and those near the ends of other types."""
    dtype, rng = np.dtype(name), np.random.default_rng(3)
    bits = rng.integers(0, 256, (60, dtype.itemsize), "u1").view(dtype)[:, 0]
    near = np.array([0, 1, 2, 3, 127, 128, 255, 256, 65519, 65520, 2**24 + 1, 2**31 - 1, 2**53 + 1])
    odd = np.array([0.49999999999999994, 4503599627370497.5, 2.5, -(2.0**63), 1e300, -1e-300])
    with np.errstate(all="ignore"):
        others = [each.astype(dtype) for each in (near, -near, near + 0.5, -near - 0.5, odd)]
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return np.concatenate([bits, *others, np.array([low, low + 1, high - 1, high], dtype)])
    finfo = np.finfo(dtype)
    ends = [finfo.min, finfo.max, finfo.smallest_subnormal, np.nan, np.inf, -np.inf]
    return np.concatenate([bits, *others, np.array(ends, dtype), rng.uniform(-300, 300, 60).astype(dtype)])


def cast_by_peer(number: Any, target: str, **modes: Any) -> Any:
    """What the library that zarr-python uses makes of a number; None if it refuses it."""
    if np.isinf(number) and "int" in target and modes["out_of_range_mode"] == "clamp":
        # The text has the ends of the range for infinity, which the library refuses.
        return np.iinfo(target).max if number > 0 else np.iinfo(target).min
    cast_array, one = pytest.importorskip("cast_value_rs").cast_array, np.array([number])
    return attempt(lambda: cast_array(one, target_dtype=target, **modes)[0], ValueError)[0]


def check_casts(numbers: Any, target: str, rounding: Any) -> None:
    source = numbers.dtype.name
    for answer in (None, "clamp", "wrap")[: 3 if "int" in target else 2]:
        codec, modes = CastValueCodec(target, rounding, answer), {"out_of_range_mode": answer}
        wanted = [cast_by_peer(number, target, rounding_mode=rounding, **modes) for number in numbers]
        lost = np.array([number is None for number in wanted])
        found = encoded(codec, numbers[~lost], source)
        assert found.dtype == target
        expected = np.array([number for number in wanted if number is not None], target)
        assert np.array_equal(found, expected, equal_nan="float" in target), answer
        for number in numbers[lost]:
            with pytest.raises(ChunkEncodeError):
                encoded(codec, np.array([number]), source)


@pytest.mark.parametrize("target", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("source", slow_but([*INTEGERS, *FLOATS], "uint8", "float64"))
def test_cast_value_is_exact(source: str, target: str) -> None:
    for rounding in ROUNDINGS:
        check_casts(numbers_of(source), target, rounding)


def test_cast_value_scalar_map() -> None:
    """NaN, infinity and zero are found whatever their bits and sign, unless a pair names these."""
    to = [["NaN", -1], ["Infinity", -2], [0.0, 7], ["-Infinity", -3], ["0xfff8000000000001", -4]]
    back = [[-1, "NaN"], [-2, "Infinity"], [7, 0.0], [-3, "-Infinity"]]
    codec = codec_of("cast_value", data_type="int16", scalar_map={"encode": to, "decode": back})
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0xFFF8000000000001, 0x7FF0000000000000], "u8")
    values = np.concatenate([bits.view("f8"), [-np.inf, 0.0, -0.0, 5.4]])
    found = encoded(codec, values, "float64")
    assert found.tolist() == [-1, -1, -4, -2, -3, 7, 7, 5]
    expected = [np.nan, np.nan, -4, np.inf, -np.inf, 0, 0, 5]
    assert np.array_equal(codec.decode(found, spec_of("float64", (8,))), expected, equal_nan=True)
    sign = codec_of("cast_value", data_type="int8", scalar_map={"encode": [[-0.0, 1], [0.0, 2]]})
    assert encoded(sign, np.array([0.0, -0.0, 3]), "float64").tolist() == [2, 1, 3]
    one_way = CastValueCodec("uint8", scalar_map={"encode": {np.nan: 0}})
    assert encoded(one_way, np.array([[np.nan, 2]]), "float32").tolist() == [[0, 2]]
    whole = codec_of("cast_value", data_type="uint8", scalar_map={"encode": [[-9999, 255.0]], "decode": []})
    assert encoded(whole, np.array([-9999, 3], "i4"), "int32").tolist() == [255, 3]


def created(shape: Any, dtype: str, fill: Any, filters: list[Any] | None, **options: Any) -> xzarr3.Array:
    given = {"chunks": shape, "compressors": None, "filters": filters, **options}
    return xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, dtype=dtype, fill_value=fill, **given)


@pytest.mark.parametrize(("configuration", "data_type", "values", "expected"), [
    ({}, "bool", [1, 0, 1, 1, 0, 0, 0, 0, 1], "0d01"), ({}, "int2", [0, 1, -2, -1, -1], "e403"),
    ({"padding_encoding": "first_byte"}, "bool", [1, 0, 1, 1, 0, 0, 0, 0, 1], "070d01"),
    ({"padding_encoding": "last_byte"}, "bool", [1] * 8, "ff00"), ({}, "int4", [1, -1, -8], "f108"),
    ({"first_bit": None, "last_bit": None, "padding_encoding": "none"}, "bool", [1] * 8, "ff"),
    ({}, "float6_e2m3fn", [0.125, 7.5, -0.125, 0], "c11702"), ({}, "uint16", [0x0102, 0xFFFE], "0201feff"),
    ({"padding_encoding": "first_byte"}, "uint16", [0x0102], "000201"),
    ({"first_bit": 4, "last_bit": 11}, "uint16", [0x0FF0, 0x0120], "ff12"),
    ({"last_bit": 11}, "int16", [-1, 2047, -2048], "ffff7f0008"),
    ({"first_bit": 31}, "float32", [-0.0, 0.0], "01"),
])  # fmt: skip
def test_packbits(configuration: dict[str, Any], data_type: str, values: Any, expected: str) -> None:
    codec = codec_of("packbits", **configuration)
    spec = spec_of(data_type, (len(values),))
    array = spec.data_type.cast_array(np.array(values, bool if data_type == "bool" else None))
    assert bytes(codec.encode(array, spec)).hex() == expected
    codec.check(spec)
    assert codec.encoded_size(spec) in (len(expected) // 2, None)
    assert codec.max_encoded_size(spec) == len(expected) // 2
    found = codec.decode(bytes.fromhex(expected), spec)
    assert (found.dtype, found.tobytes()) == (spec.dtype, array.tobytes())


def test_packbits_refuses_what_would_be_lost() -> None:
    """What is above the last bit of an element; and in a chunk bits left over that are none."""
    for name, value, last in (
        ("uint8", 16, 3), ("int8", 8, 3), ("int8", -9, 3), ("float32", -1.0, 30), ("uint4", 4, 1),
    ):  # fmt: skip
        with pytest.raises(ChunkEncodeError):
            encoded(PackBitsCodec(last_bit=last), np.array([value]), name)
    codec = PackBitsCodec("first_byte")
    refuses(
        lambda wrong: codec.decode(wrong, spec_of("bool", (9,))), (b"\x06\x0d\x01", b"\xff\x0d\x01"),
        ChunkDecodeError, "left over",
    )  # fmt: skip
    # zarrs has no such byte for elements of whole bytes.
    assert codec.decode(b"\x01\x02", spec_of("uint16", (1,))).tolist() == [0x201]


def packed_by_numpy(array: Any, parts: int, first: int, last: int) -> bytes:
    octets = np.frombuffer(array.tobytes(), "u1").reshape(-1, array.dtype.itemsize // parts)
    bits = np.unpackbits(octets, axis=1, bitorder="little")[:, first : last + 1]
    return np.packbits(bits, bitorder="little").tobytes()


PACKED = {
    "bool": (1, 1), "int2": (2, 1), "uint2": (2, 1), "int4": (4, 1), "uint4": (4, 1), "float4_e2m1fn": (4, 1),
    "float6_e2m3fn": (6, 1), "float6_e3m2fn": (6, 1), "int8": (8, 1), "uint8": (8, 1),
    "int16": (16, 1), "uint16": (16, 1), "int32": (32, 1), "uint32": (32, 1), "int64": (64, 1),
    "uint64": (64, 1), "float16": (16, 1), "float32": (32, 1), "float64": (64, 1), "bfloat16": (16, 1),
    "complex_float32": (32, 2), "complex_float64": (64, 2), "complex64": (32, 2), "float8_e4m3": (8, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(PACKED, "bool", "uint4", "float6_e2m3fn", "int32", "complex64"))
@settings(max_examples=40)
@given(data=st.data())
def test_packbits_of_every_type(name: str, data: st.DataObject) -> None:
    width, parts = PACKED[name]
    first = data.draw(st.integers(0, width - 1))
    shape = tuple(data.draw(st.lists(st.integers(1, 7), max_size=2)))
    spec = spec_of(name, shape)
    number = math.prod(shape) * parts
    size = spec.dtype.itemsize // parts
    raw = np.array([data.draw(st.integers(0, 2**width - 1)) for _ in range(number)], f"u{size}")
    array = raw.view(spec.dtype).reshape(shape)
    kept = raw >> first << first  # What is below the first bit is lost, as the text has it.
    padding = data.draw(st.sampled_from(["none", "first_byte", "last_byte"]))
    codec = PackBitsCodec(padding, data.draw(st.sampled_from([first, None])) if first == 0 else first)
    codec.check(spec)
    found = bytes(codec.encode(np.asfortranarray(array), spec))
    left = bytes([-(number * (width - first)) % 8])
    body = packed_by_numpy(array, parts, first, width - 1)
    assert found == left * (padding == "first_byte") + body + left * (padding == "last_byte")
    assert codec.decode(found, spec).tobytes() == kept.tobytes()
    wrong = [found[:-1], found + b"\0"]
    if width % 8 == 0 and padding != "none" and first == 0:
        wrong = [each for each in wrong if len(each) != len(body)]  # What is left over need not be said.
    refuses(lambda data: codec.decode(data, spec), wrong, ChunkDecodeError)


def n5(order: list[int], *more: Any, endian: str | None = "big") -> list[Any]:
    last = codec("bytes", endian=endian) if endian else codec("bytes")
    return [codec("transpose", order=order), last, *more]


def test_n5_default() -> None:
    """A header of mode, number of dimensions and lengths, and elements in the order of Fortran."""
    codec = codec_of("n5_default", codecs=n5([1, 0]))
    values = np.array([[1, 2, 3], [4, 5, 6]], "i2")
    expected = bytes.fromhex("0000 0002 00000002 00000003 0001 0004 0002 0005 0003 0006")
    spec = spec_of("int16", (2, 3))
    codec = codec.evolve(spec)
    assert encoded(codec, values, "int16") == expected
    assert np.array_equal(codec.decode(expected, spec), values)
    assert codec.max_encoded_size(spec) == len(expected)
    octets = codec_of("n5_default", codecs=n5([0], endian=None)).evolve(spec_of("uint8", (3,)))
    assert encoded(octets, np.array([1, 2, 3], "u1"), "uint8") == bytes.fromhex("0000 0001 00000003 010203")
    # Blocks of another shape than the chunk: the rest is the fill value, or is not wanted.
    spec = spec_of("uint8", (2, 3), 9)
    for header, number, rows in (
        ("00000001 00000002", 2, [[1, 2, 9], [9, 9, 9]]), ("00000003 00000003", 9, [[1, 4, 7], [2, 5, 8]]),
        ("00000001 00000004", 4, [[1, 2, 3], [9, 9, 9]]),
    ):  # fmt: skip
        block = bytes.fromhex("0000 0002" + header) + bytes(range(1, number + 1))
        assert N5DefaultCodec().evolve(spec).decode(block, spec).tolist() == rows


@pytest.mark.parametrize(("data", "reason"), [
    ("", "found 0 bytes"), ("00000002000000020000", "found 10 bytes"),
    ("0001 0002 00000002 00000003 00000006 010203040506", "mode 1"),
    ("0007 0002 00000002 00000003 010203040506", "mode 7"),
    ("0000 0001 00000006 010203040506 0000", "1 dimensions"),
    ("0000 0002 00000000 00000003", r"shape \("), ("0000 0002 ffffffff ffffffff 00", r"shape \("),
    ("0000 0002 00000002 00000003 0102030405", "found 5 bytes"),
    ("0000 0002 00000002 00000003 01020304050607", "found 7 bytes"),
])  # fmt: skip
def test_n5_default_not_a_block(data: str, reason: str) -> None:
    spec = spec_of("uint8", (2, 3))
    decode = N5DefaultCodec().evolve(spec).decode
    refuses(lambda block: decode(block, spec), [bytes.fromhex(data)], ChunkDecodeError, reason)


def test_n5_default_is_bounded() -> None:
    spec = spec_of("uint8", (8, 8))
    codecs = n5([1, 0], codec("gzip", level=1), endian=None)
    made = codec_of("n5_default", codecs=codecs).evolve(spec)
    bomb = gzip.compress(bytes(2**27))
    for header in ((8, 8), (2**14 + 1, 2**14)):
        block = struct.pack(">HHII", 0, 2, *header) + bomb
        refused_within(4 * MIB, lambda block=block: made.decode(block, spec))


@settings(max_examples=50)
@given(data=st.data())
def test_n5_default_round_trips(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*INTEGERS, "float32", "float64"]))
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    more = data.draw(st.sampled_from([[], [codec("gzip", level=5)], [codec("zstd")], ["crc32c"]]))
    spec = spec_of(name, shape)
    made = codec_of("n5_default", codecs=n5(list(range(len(shape)))[::-1], *more))
    raw = data.draw(st.binary(min_size=spec.nbytes, max_size=spec.nbytes))
    array = np.frombuffer(raw, spec.dtype).reshape(shape)
    chain = CodecChain((made,), spec)
    assert chain.decode(chain.encode(array)).astype(spec.dtype).tobytes() == raw
    if not more:
        block = bytes(made.evolve(spec).encode(array, spec))
        assert block[4 + 4 * len(shape) :] == array.astype(spec.dtype.newbyteorder(">")).tobytes("F")


PLAIN = {"offset": 0, "scale": 1}
TO_INT8 = {"data_type": "int8"}
DATE = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
REFUSED: dict[str, list[tuple[Any, Any]]] = {
    # The configuration, and the data type of the array; its fill value is 0.
    "bitround": [
        *(({"keepbits": keepbits}, "float32") for keepbits in (0, -1, 3.0, "3", True, None, 2**32)),
        ({}, "float32"), ({"keepbits": 3, "x": 1}, "float32"),
        *(({"keepbits": 3}, name) for name in ("bool", "int4", "int32", "complex64", "float8_e4m3", "r8")),
    ],
    "scale_offset": [
        *((PLAIN | {"scale": scale}, "float32") for scale in (0, "0x00000000")),
        *((PLAIN | {"offset": offset}, "float32") for offset in ("NaN", "Infinity", "a", None, 1e300)),
        *((PLAIN | {"offset": offset}, "uint8") for offset in (300, -1, True)),
        (PLAIN | {"scale": 0.0}, "int32"), (PLAIN | {"offset": 0.5}, "int32"), (PLAIN, "bool"),
        (PLAIN, "bfloat16"), ({"offset": [0, 0], "scale": [1, 0]}, "complex64"),
        (PLAIN | {"astype": "u1"}, "float32"), (PLAIN | {"offset": 10**400}, "float64"),
        (PLAIN | {"offset": 1}, "uint8"),  # It would make -1 of the fill value.
    ],
    "cast_value": [
        ({}, "float32"), ({"data_type": "float16", "out_of_range": "wrap"}, "float32"),
        *(({"data_type": name}, "float32") for name in
          (8, "int9", "string", "complex64", "bool", "bfloat16")),
        *((TO_INT8 | change, "float32") for change in (
            {"rounding": "down"}, {"rounding": None}, {"out_of_range": "x"}, {"range": "clamp"})),
        *((TO_INT8 | {"scalar_map": scalars}, "float32") for scalars in (
            [], {"x": []}, {"encode": [[1]]}, {"encode": [[1, None]]}, {"encode": [["NaN", 128]]},
            {"encode": [["x", 1]]}, {"encode": [[1, 1], [1.0, 2]]}, {"decode": [[128, "NaN"]]},
            {"encode": "ab"}, {"encode": [[0, 1]]}, {"decode": [[0, 1]]})),  # Nor does 0 survive the last.
        *((TO_INT8, name) for name in ("bool", "complex64", "r16", "bfloat16")),
    ],
    "packbits": [
        ({"padding_encoding": "start_byte"}, "bool"), ({"padding_encoding": None}, "bool"),
        ({"first_bit": 1}, "bool"), ({"last_bit": 1}, "bool"), ({"last_bit": 4}, "int4"),
        *((bits, "uint8") for bits in (
            {"first_bit": -1}, {"first_bit": 3, "last_bit": 2}, {"last_bit": 8}, {"first_bit": True},
            {"first_bit": 1.0}, {"end_bit": 4})),
        ({"last_bit": 32}, "complex64"), ({"last_bit": 64}, "uint64"), ({}, "string"), ({}, "r8"), ({}, DATE),
    ],
    "n5_default": [
        ({}, "uint8"), ({"codecs": n5([1, 0]), "x": 1}, "uint8"),
        *(({"codecs": codecs}, "uint8") for codecs in (
            [], n5([0, 1]), n5([1, 0])[:1], n5([1, 0])[1:], n5([0]), n5([2, 1, 0]),
            n5([1, 0], "crc32c", "crc32c"), n5([1, 0], "bytes"), n5([1, 0])[::-1],
            n5([1, 0], {"name": "unknown"}), "x", None)),
        *(({"codecs": n5([1, 0], endian=endian)}, "int16") for endian in ("little", None)),
        *(({"codecs": n5([1, 0])}, name) for name in ("bool", "float16", "complex64")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_documents_that_are_refused(name: str) -> None:
    for configuration, data_type in REFUSED[name]:
        with case((configuration, data_type)):
            error = refused(name, configuration, data_type)
            if name == "bitround" and data_type == "float32" and "keepbits" in configuration:
                assert error.field.endswith("x" if "x" in configuration else "keepbits")


NAN_IS_255 = {"encode": [("NaN", 255)], "decode": [(255, "NaN")]}
FILTERS: list[tuple[str, list[Any], Any, Any]] = [
    ("f8", [ScaleOffsetCodec(5, 0.5)], 5.0, lambda n: n * 2.0),
    ("f8", [ScaleOffsetCodec(-10, 0.5), CastValueCodec("int16")], -10.0, lambda n: n * 2.0),
    ("f4", [CastValueCodec("uint8", scalar_map=NAN_IS_255)], np.nan, lambda n: n % 250),
    ("i4", [ScaleOffsetCodec(1000, 3)], 1000, lambda n: n),
    ("i4", [ScaleOffsetCodec(7, -3), CastValueCodec("float64")], 12, lambda n: n),
    ("u2", [ReshapeCodec([-1])], 3, lambda n: n), ("u2", [ReshapeCodec([[0, 1]])], 3, lambda n: n),
    ("f4", [BitRoundCodec(20)], 0.5, lambda n: n),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "filters", "fill", "make"), FILTERS)
@pytest.mark.parametrize("layout", ["plain", "inside", "outside", "both"])
def test_arrays(dtype: str, filters: list[Any], fill: Any, make: Callable[[Any], Any], layout: str) -> None:
    flat = isinstance(filters[0], ReshapeCodec)
    options: dict[str, Any] = {"chunks": (6, 4), "filters": filters, "compressors": None}
    if layout in ("inside", "both"):
        options |= {"chunks": (3, 2), "shards": (6, 4)}
    if layout == "outside":
        options["serializer"] = ShardingCodec((6,) if flat else (3, 2))
    elif layout == "both":
        options["serializer"] = ShardingCodec((3,) if flat else (3, 1))
    check_array(make(np.arange(90).reshape(9, 10)).astype(dtype), fill, **options)


@pytest.mark.parametrize("shards", [None, (6, 4)])
def test_arrays_of_bytes(shards: Any) -> None:
    for serializer, dtype in (
        (PackBitsCodec(), "bool"), (PackBitsCodec("last_byte", last_bit=9), "int32"),
        (N5DefaultCodec(), "int32"), (PackBitsCodec(), "int4"),
    ):  # fmt: skip
        values = (np.arange(90).reshape(9, 10) % 7).astype(spec_of(dtype).dtype)
        with case((serializer, dtype)):
            check_array(values, 1, dtype=dtype, chunks=(3, 2), shards=shards, serializer=serializer)


FIXED = {"offset": 2, "scale": 4, "dtype": "<f4"}
NINE = {"encode": [[0.5, 9]], "decode": [[9, 0.5]]}
LEFT_OUT: list[tuple[str, dict[str, Any], float, float]] = [
    ("numcodecs.bitround", {"keepbits": 3}, 0.3, 0.3125),
    ("numcodecs.quantize", {"digits": 1, "dtype": "<f4"}, 0.25, 0.25),
    ("numcodecs.quantize", {"digits": 0, "dtype": "<f4"}, 0.75, 1),
    ("numcodecs.fixedscaleoffset", FIXED, 0.5, 0.5),
    ("numcodecs.fixedscaleoffset", FIXED | {"astype": "|i1"}, 0.5, 0.5),
    ("numcodecs.astype", {"encode_dtype": "<f8", "decode_dtype": "<f4"}, 0.5, 0.5),
    ("transpose", {"order": [1, 0]}, 0.5, 0.5), ("scale_offset", {"offset": 2, "scale": 4}, 0.5, 0.5),
    ("cast_value", TO_INT8, 5, 5), ("cast_value", TO_INT8 | {"scalar_map": NINE}, 0.5, 0.5),
    ("bitround", {"keepbits": 3}, 0.3, 0.3125),
]  # fmt: skip


@pytest.mark.parametrize(("name", "configuration", "fill", "read"), LEFT_OUT)
def test_left_out_inner_chunks(name: str, configuration: Any, fill: float, read: float) -> None:
    """Behind a codec they are what it makes of the fill value, whoever leaves them out."""
    filters = [{"name": name, "configuration": configuration}]
    array = created((8, 8), "f4", fill, filters, serializer=ShardingCodec((4, 4)))
    assert array[...].tolist() == np.full((8, 8), fill, "f4").tolist()
    array[0, 0] = 2
    expected = np.full((8, 8), read, "f4")
    expected[0, 0] = 2
    assert np.array_equal(array[...], expected)
    index = np.frombuffer(bytes(array.store.get("c/0/0") or b"")[-68:-4], "<u8").reshape(-1, 2)
    assert (index == 2**64 - 1).all(1).tolist() == [False, True, True, True]

    # Differences are no fill value, so that what is left out is what the differences of it would be.
    array = created((8,), "i4", 3, [codec("numcodecs.delta", dtype="<i4")], serializer=ShardingCodec((2,)))
    array[0] = 5
    assert array[...].tolist() == [5, 3, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("fill", [0.0, 273.0, 273.15, 300.0, 1000.0, np.nan, np.inf, 273.001])
def test_scaled_and_cast(fill: float) -> None:
    """What arithmetic leaves behind does not make another fill value; a fill value beyond the range does."""
    filters = [ScaleOffsetCodec(273.15, 100), CastValueCodec("int16")]
    if fill not in (0.0, 273.0, 273.15, 300.0):
        refuses(lambda fill: created((4,), "f8", fill, filters), [fill], MetadataError, "fill value")
        return
    array = created((4,), "f8", fill, filters)
    array[1] = 280.25
    assert np.allclose(array[...], [fill, 280.25, fill, fill], rtol=1e-14, atol=1e-12)
    refuses(partial(array.set, 0), [1000], ChunkEncodeError, "range")


def of_zarr_python() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """Values, the part of them that is written and options, with the codecs of zarr-python."""
    zarr = pytest.importorskip("zarr")
    scale_offset = pytest.importorskip("zarr.codecs.scale_offset").ScaleOffset
    cast_value = pytest.importorskip("zarr.codecs.cast_value").CastValue
    pytest.importorskip("cast_value_rs")
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {}
    for dtype, shards in itertools.product(("f8", "f4", "f2", "i4", "u2", "i1"), (None, (12,))):
        scaled = scale_offset(offset=int(dtype[0] != "u"), scale=0.25 if dtype[0] == "f" else 2)
        options = {"chunks": 4, "shards": shards, "fill_value": 3, "filters": [scaled]}
        cases[f"scale_offset {dtype} {shards}"] = (np.arange(20).astype(dtype), slice(2, 15), options)
    for rounding, answer, (source, target) in itertools.product(ROUNDINGS, (None, "clamp", "wrap"), CASTS):
        if target[0] == "f" and answer == "wrap":  # Only integers wrap around.
            continue
        wide = np.random.default_rng(5).integers(-200_000, 200_000, 64) / (4 if source[0] == "f" else 1)
        values = (wide % 100 if answer is None else wide).astype(source)
        given: dict[str, Any] = {"rounding": rounding, "out_of_range": answer}
        if source[0] == "f" and target[0] != "f":
            values[5] = np.nan
            given["scalar_map"] = {"encode": [("NaN", 7)], "decode": [(7, "NaN")]}
        values[values == 7] = 8
        cast = cast_value(data_type=np.dtype(target).name, **given)
        options = {"chunks": 16, "fill_value": 1, "filters": [cast]}
        cases[f"cast_value {source} {target} {rounding} {answer}"] = (values, ..., options)
    # Inner chunks left out behind the codec: both take them for what it makes of the fill value.
    values = np.full(16, 3, "f4")
    values[4:6] = [9, 10]
    cases["left out"] = (values, slice(4, 6), {
        "chunks": 8, "fill_value": 3.0, "compressors": None, "filters": [scale_offset(offset=1, scale=0.25)],
        "serializer": zarr.codecs.ShardingCodec(chunk_shape=(2,)),
    })  # fmt: skip
    return cases


@pytest.mark.parametrize("kind", ["scale_offset", "cast_value", "left out"])
def test_with_zarr_python(kind: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    for name, (values, part, more) in of_zarr_python().items():
        if not name.startswith(kind):
            continue
        with case(name):
            ours, theirs = (tmp_path / name / who for who in ("ours", "theirs"))
            options = {"shape": values.shape, "dtype": values.dtype, **more}
            for library, path in ((zarr, theirs), (xzarr3, ours)):
                library.create_array(path, **options)[part] = values[part]
            expected = zarr.open_array(theirs, mode="r")[...]
            for found in (zarr.open_array(ours, mode="r+"), *map(xzarr3.open_array, (ours, theirs))):
                assert np.array_equal(found[...], expected, equal_nan=values.dtype.kind == "f")
                assert np.array_equal(found[::3], expected[::3], equal_nan=values.dtype.kind == "f")
            if kind == "left out":
                assert (ours / "c/0").read_bytes() == (theirs / "c/0").read_bytes()
                assert len((ours / "c/0").read_bytes()) == 8 + 4 * 16 + 4


def zarrs() -> Any:
    """zarr-python with the codecs of zarrs, which does the work of codecs that it need not know itself."""
    zarr = pytest.importorskip("zarr")
    pytest.importorskip("zarrs")
    from zarr.abc.codec import ArrayArrayCodec as TheirArrayArrayCodec
    from zarr.abc.codec import ArrayBytesCodec as TheirArrayBytesCodec
    from zarr.registry import register_codec

    def stand_in(name: str, base: Any) -> Any:
        class Named(base):  # type: ignore[misc]
            is_fixed_size = False

            def __init__(self, **configuration: Any) -> None:
                self.configuration = configuration

            @classmethod
            def from_dict(cls, data: Any) -> Any:
                return cls(**data.get("configuration", {}))

            def to_dict(self) -> Any:
                return {"name": name, "configuration": self.configuration}

            def evolve_from_array_spec(self, array_spec: Any) -> Any:
                return self

        Named.__abstractmethods__ = frozenset()  # Its methods are never called.
        return Named

    register_codec("packbits", stand_in("packbits", TheirArrayBytesCodec))
    register_codec("reshape", stand_in("reshape", TheirArrayArrayCodec))
    return zarr


ZARRS_CASES = [
    ("packbits", {}, "bool", []), ("packbits", {"padding_encoding": "first_byte"}, "bool", []),
    ("packbits", {"padding_encoding": "last_byte"}, "bool", []),
    ("packbits", {"padding_encoding": "last_byte", "last_bit": 4}, "uint8", []),
    ("packbits", {"padding_encoding": "first_byte", "first_bit": 1, "last_bit": 10}, "uint16", []),
    ("packbits", {"padding_encoding": "first_byte"}, "uint16", []),
    ("packbits", {"first_bit": 16}, "float32", []), ("packbits", {"first_bit": 8}, "complex64", []),
    ("packbits", {"last_bit": 4}, "int8", []), ("reshape", {"shape": [[0, 1]]}, "int16", [LITTLE]),
    ("reshape", {"shape": [2, -1]}, "int16", [LITTLE]),
    ("reshape", {"shape": [[0], 2, 2]}, "int16", [LITTLE]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "configuration", "dtype", "more"), ZARRS_CASES)
@pytest.mark.filterwarnings("ignore")
def test_with_zarrs(tmp_path: Path, name: str, configuration: Any, dtype: str, more: list[Any]) -> None:
    zarr = zarrs()
    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
    codecs = [{"name": name, "configuration": configuration}, *more]
    fill = {"bool": False, "complex64": [0, 0]}.get(dtype, 0)
    for who in ("ours", "theirs"):
        place = tmp_path / who / "zarr.json"
        place.parent.mkdir()
        document = chunk_document(dtype, (3, 4), codecs, shape=[6, 8], fill_value=fill)
        place.write_bytes(json.dumps(document).encode())
    numbers = np.arange(48).reshape(6, 8) % (2 if dtype == "bool" else 15)
    values = (numbers * (1 if dtype != "uint16" else 2)).astype(dtype)
    ours = xzarr3.open_array(xzarr3.LocalStore(tmp_path / "ours"), mode="r+")
    ours[...] = values
    with zarr.config.set(pipeline), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = zarr.open_array(str(tmp_path / "theirs"), mode="r+")
        theirs[...] = values
        assert np.array_equal(theirs[...], values)
        # zarrs has no byte about what is left over for elements of whole bytes.
        if dtype != "uint16" or "last_bit" in configuration or "padding_encoding" not in configuration:
            assert np.array_equal(zarr.open_array(str(tmp_path / "ours"), mode="r")[...], values)
            for key in ("c/0/0", "c/1/1"):
                assert (tmp_path / "ours" / key).read_bytes() == (tmp_path / "theirs" / key).read_bytes()
    found = xzarr3.open_array(xzarr3.LocalStore(tmp_path / "theirs"))
    assert np.array_equal(found[...], values)


def document(codecs: Any, **fields: Any) -> dict[str, Any]:
    return {"name": "conditional", "configuration": {"codecs": codecs, **fields}}


def test_golden_bytes() -> None:
    """A codec is applied if the chunk gets smaller; a checksum always."""
    codec = ConditionalCodec(["numcodecs.zlib", "crc32c"])
    short, long = b"zarr", bytes(1000)
    checked = bytes(Crc32cCodec().encode(short))
    assert bytes(codec.encode(short)) == b"\x02" + checked
    assert bytes(codec.encode(long)) == b"\x03" + bytes(Crc32cCodec().encode(zlib.compress(long, 1)))
    # Whatever another writer decided.
    compressed = zlib.compress(short, 9)
    for chunk in (b"\0" + short, b"\1" + compressed, b"\3" + bytes(Crc32cCodec().encode(compressed))):
        assert bytes(codec.decode(chunk, 4)) == short
    alone = ConditionalCodec(["zstd"])
    assert bytes(alone.encode(NOISE.tobytes())) == b"\0" + NOISE.tobytes()
    assert (bytes(alone.encode(b"")), bytes(alone.decode(b"\0", 0))) == (b"\0", b"")


@given(
    data=st.binary(max_size=300), mask=st.integers(0, 15), bits=st.sampled_from([None, 8, 16, 64]),
    order=st.permutations(["gzip", "numcodecs.shuffle", "crc32c", "numcodecs.bz2"]),
)  # fmt: skip
def test_any_mask(data: bytes, mask: int, bits: int | None, order: list[str]) -> None:
    codec = ConditionalCodec(order, bits).evolve(spec_of("uint8", (75,)))
    value: Any = data
    for bit, inner in enumerate(codec.codecs):
        if mask >> bit & 1:
            value = inner.encode(value)
    stored = mask.to_bytes(1 if bits is None else bits // 8, "little") + bytes(value)
    assert len(stored) <= codec.max_encoded_size(len(data))
    assert bytes(codec.decode(stored, len(data))) == data
    if data:
        refuses(lambda limit: codec.decode(stored, limit), [len(data) - 1], ChunkDecodeError, "at most")
    encoded = bytes(codec.encode(data))
    assert encoded == bytes(codec.encode(memoryview(bytearray(data))))
    assert bytes(codec.decode(encoded, len(data))) == data


@pytest.mark.parametrize(("stored", "reason"), [
    (b"", "found 0 bytes whose header of 2"), (b"\0", "found 1 bytes whose header of 2"),
    (b"\4\0", "does not fit 2 codecs"), (b"\0\1", "does not fit 2 codecs"),
    (b"\0\x80" + b"x" * 8, "does not fit 2 codecs"), (b"\0\0" + b"x" * 9, "decodes to 9 bytes; at most 8"),
    (b"\1\0" + b"x" * 8, "gzip"), (b"\1\0", "gzip"), (b"\1\0" + zlib.compress(bytes(9), 9, 31), "at most 8"),
    (b"\2\0" + bytes(12), "checksum mismatch"), (b"\2\0" + bytes(3), "crc32c"),
    (b"\3\0" + bytes(Crc32cCodec().encode(zlib.compress(bytes(2**20), 9, 31))), "at most"),
])  # fmt: skip
def test_corrupt(stored: bytes, reason: str) -> None:
    codec = ConditionalCodec(["gzip", "crc32c"], header_bits=16)
    (error,) = refuses(lambda limit: codec.decode(stored, limit), [8], ChunkDecodeError, reason)
    assert error.codec in ("conditional", "gzip", "crc32c")


def test_document() -> None:
    zstd = {"name": "zstd", "configuration": {"level": 5, "checksum": False}}
    data = document([SHUFFLE, zstd], header_bits=32)
    codec = codec_from_json(data)
    assert codec is not None
    assert codec == ConditionalCodec([xzarr3.codecs.ShuffleCodec(4), xzarr3.codecs.ZstdCodec(5)], 32)
    assert (codec.to_json(), pickle.loads(pickle.dumps(codec))) == (data, codec)
    assert hash(codec) == hash(codec_from_json(json.loads(json.dumps(data))))
    assert ConditionalCodec(["gzip"]).to_json() == document([{"name": "gzip", "configuration": {"level": 5}}])


@pytest.mark.parametrize(("data", "match"), [
    ({"name": "conditional"}, CODECS), (document([]), CODECS), (document("gzip"), CODECS),
    (document([{"name": "gzip"}]), CODECS + r"\[0\].configuration.level"),
    (document(["crc32c", "bytes"]), "'bytes'"), (document(["transpose"]), CODECS + r"\[0\]"),
    (document(["unheard-of"]), CODECS + r"\[0\].name"), (document(["crc32c"] * 9, header_bits=8), BITS),
    (document(["crc32c"], bits=8), r"configuration\.bits"),
    (document([document(["crc32c"])]), "none of them 'conditional'"),
    *((document(["crc32c"], header_bits=bits), BITS) for bits in (0, 7, 8.0, True, "8", -8, 2**40)),
])  # fmt: skip
def test_documents_that_are_not_valid(data: Any, match: str) -> None:
    refuses(codec_from_json, [data], MetadataError, match)


def test_lists_of_codecs_that_are_none() -> None:
    refuses(ConditionalCodec, ((), None, [BytesCodec()], "transpose", 5), MetadataError)
    refuses(xzarr3.codecs.parse_codec, ["conditional"], MetadataError, "has parameters without defaults")
    # No codec of the list can be ignored: the bits of those behind it would mean other ones.
    data = document([{"name": "unheard-of", "must_understand": False}, {"name": "crc32c"}])
    refuses(codec_from_json, [data], UnknownExtensionError, "a bit of its own")
    assert codec_from_json({**data, "must_understand": False, "name": "unheard-of"}) is None


@pytest.mark.parametrize("values", [SMOOTH, NOISE], ids=["smooth", "noise"])
@pytest.mark.parametrize("shards", [None, (32, 64)], ids=["chunks", "shards"])
def test_arrays_of_conditional(values: np.ndarray[Any, Any], shards: Any) -> None:
    codec = ConditionalCodec(["numcodecs.shuffle", "zstd"])
    options = {"chunks": (8, 64), "shards": shards, "compressors": [codec, "crc32c"]}
    array = check_array(values.reshape(64, 64), 0, **options)
    found = json.loads(array.store.get("a/zarr.json") or b"")["codecs"]
    chain = found[-1]["configuration"]["codecs"] if shards else found
    assert chain[1]["configuration"]["codecs"][0] == SHUFFLE
    if shards and values is NOISE:  # A byte of header and four of checksum each, for nothing gained.
        index = np.frombuffer(bytes(array.store.get("a/c/0/0") or b"")[-68:-4], "<u8").reshape(-1, 2)
        assert index[:, 1].tolist() == [8 * 64 * 4 + 5] * 4


def codecs_with(codec: Any) -> tuple[Codec, ...]:
    """The codecs of chunks that need no others than this one and ``bytes``."""
    if isinstance(codec, ArrayBytesCodec):
        return (codec,)
    return (codec, BytesCodec()) if isinstance(codec, ArrayArrayCodec) else (BytesCodec(), codec)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.integers(), st.floats(), st.text(max_size=2),
    st.sampled_from(["NaN", "Infinity", "none", "int8", "float32", "clamp", "wrap", "0x7fc00000", "bytes"]),
    st.sampled_from(["<i4", ">f8", "M8[ns]", "S5", "end", "start", "utf-8"]),
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)
NUMCODECS_FIELDS = (
    "level dtype astype encode_dtype decode_dtype offset scale digits keepbits filters format preset "
    "location shuffle elementsize encoding mode initval"
)
FIELDS = {
    "reshape": "shape", "bitround": "keepbits", "scale_offset": "offset scale", "n5_default": "codecs",
    "cast_value": "data_type rounding out_of_range scalar_map",
    "packbits": "padding_encoding first_bit last_bit",
    **{f"numcodecs.{name}": NUMCODECS_FIELDS for name in numcodecs_ids()},
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(FIELDS, "cast_value", "packbits"))
@settings(max_examples=settings().max_examples // 2)  # Of each of many codecs.
@given(data=st.data())
def test_no_configuration_breaks_anything(name: str, data: st.DataObject) -> None:
    known = data.draw(st.lists(st.sampled_from(FIELDS[name].split()), max_size=4))
    configuration = {field: data.draw(ANYTHING) for field in known}
    if name == "cast_value" and data.draw(st.booleans()):
        configuration["data_type"] = data.draw(st.sampled_from([*INTEGERS, *FLOATS]))
    data_type = data.draw(st.sampled_from(["int8", "uint64", "float32", "float64", "bool", "complex64"]))
    spec = spec_of(data_type, (2, 3))
    document: Any = {"name": name, "configuration": configuration}
    try:
        codec = codec_from_json(document)
        assert hash(codec) == hash(codec_from_json(document))
        chain = CodecChain(codecs_with(codec), spec)
    except MetadataError:
        return
    array = np.arange(6).reshape(2, 3).astype(spec.dtype)
    try:
        found = chain.decode(chain.encode(array))
    except xzarr3.ChunkError:
        return
    assert (found.shape, found.dtype.newbyteorder("=")) == ((2, 3), spec.dtype)
