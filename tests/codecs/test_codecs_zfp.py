"""``zfp``: zfp's streams without a header. zfpy, which also reads and writes those with one, is the peer."""

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from _chains import check_array, spec_of
from _things import case, refuses

import xzarr3
from xzarr3 import ChunkEncodeError, MetadataError
from xzarr3.codecs import BytesCodec, ShardingCodec, ZfpCodec, ZfpyCodec, codec_from_json

zfpy = pytest.importorskip("zfpy")
SHAPES = [(), (1,), (7,), (5, 7), (4, 8), (3, 4, 5), (2, 3, 4, 5)]
NATIVE = ("int32", "int64", "float32", "float64")
PROMOTED = ("int8", "uint8", "int16", "uint16", "float16")
MODES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"mode": "reversible"}, {}),
    *(({"mode": "fixed_accuracy", "tolerance": each}, {"tolerance": each}) for each in (0.05, 1000, 0)),
    *(({"mode": "fixed_rate", "rate": each}, {"rate": each}) for each in (10.5, 3, 64)),
    *(({"mode": "fixed_precision", "precision": each}, {"precision": bits})
      for each, bits in ((1, 1), (19, 19), (64, 64), (0, 64), (1000, 64))),
]  # fmt: skip
"""Configurations and what zfpy is told to do the same."""
PAIRS = [
    (*mode, dtype) for mode in MODES for dtype in (*NATIVE, *PROMOTED)
    if mode[0]["mode"] != "fixed_accuracy" or dtype[0] == "f"
]  # fmt: skip
LOSSY: list[Any] = [
    ZfpCodec(mode="fixed_accuracy", tolerance=0.1), ZfpCodec(mode="fixed_precision", precision=16),
    ZfpCodec(mode="fixed_rate", rate=12), ZfpyCodec(tolerance=0.1), ZfpyCodec(mode=3, precision=16),
    ZfpyCodec(mode=2, rate=12),
]  # fmt: skip


def values_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(7)
    if dtype[0] == "f":
        return np.asarray(1000 * rng.normal(size=shape), dtype)
    limits = np.iinfo(dtype)
    most = {"int32": 2**30, "int64": 2**62}.get(dtype, limits.max)  # Of what all modes keep.
    least = max(limits.min, -most) if dtype[0] == "i" else 0
    return np.asarray(rng.integers(least, min(most, limits.max), shape, dtype, endpoint=True))


def zero_of(dtype: np.dtype[Any]) -> int:
    return 2 ** (8 * dtype.itemsize - 1) if dtype.kind == "u" else 0


def promoted(values: Any) -> Any:
    """As zfp's functions for promotion have it: the lowest number becomes the lowest one but for a bit."""
    if values.dtype == "f2":
        return values.astype("f4")
    if values.dtype.name in NATIVE:
        return values
    return ((values.astype("i8") - zero_of(values.dtype)) << (31 - 8 * values.itemsize)).astype("i4")


def demoted(found: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.name in NATIVE or dtype == "f2":
        with np.errstate(over="ignore"):
            return found.astype(dtype)
    numbers = (found.astype("i8") >> (31 - 8 * dtype.itemsize)) + zero_of(dtype)
    return numbers.clip(np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


@pytest.mark.parametrize(("configuration", "arguments", "dtype"), PAIRS, ids=str)
def test_bytes_are_those_of_zfp(configuration: dict[str, Any], arguments: dict[str, Any], dtype: str) -> None:
    document = {"name": "zfp", "configuration": configuration}
    codec = codec_from_json(document)
    assert isinstance(codec, ZfpCodec)
    assert (codec.to_json(), pickle.loads(pickle.dumps(codec))) == (document, codec)
    for shape in SHAPES:
        with case(shape):
            check_bytes(codec, arguments, values_of(dtype, shape))


def check_bytes(codec: ZfpCodec, arguments: dict[str, Any], values: np.ndarray[Any, Any]) -> None:
    dtype, shape = values.dtype, values.shape
    spec, field = spec_of(dtype, shape), promoted(values).reshape(shape or (1,))
    codec.check(spec)
    stored = zfpy.compress_numpy(field, write_header=False, **arguments)
    assert codec.encode(values, spec) == stored
    assert len(stored) <= codec.max_encoded_size(spec)
    found = codec.decode(stored, spec)
    expected = demoted(zfpy.decompress_numpy(zfpy.compress_numpy(field, **arguments)), dtype)
    assert (found.dtype, found.shape, found.tobytes()) == (dtype, shape, expected.tobytes())
    if codec.mode == "reversible":
        assert found.tobytes() == values.tobytes()
    if codec.tolerance and dtype.name in NATIVE:
        assert np.abs(found.astype("f8") - values).max() <= codec.tolerance


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_numbers_without_a_sign(dtype: str) -> None:
    codec, spec = ZfpCodec(), spec_of(dtype, (3,))
    signed = dtype[1:]
    most = np.iinfo(signed).max
    values = np.array([0, 5, most], dtype)
    stored = codec.encode(values, spec)
    assert stored == zfpy.compress_numpy(values.astype(signed), write_header=False)
    assert codec.decode(stored, spec).tolist() == values.tolist()
    beyond, words = np.array([0, 5, most + 1], dtype), f"{most + 1} is more than '{signed}' can hold"
    refuses(lambda values: codec.encode(values, spec), [beyond], ChunkEncodeError, words)
    below = zfpy.compress_numpy(np.array([-3, 5, 6], signed), write_header=False)
    assert codec.decode(below, spec).tolist() == [0, 5, 6]


def test_configurations_that_are_not_valid() -> None:
    rate, precision, accuracy = ({"mode": f"fixed_{name}"} for name in ("rate", "precision", "accuracy"))
    refuses(lambda configuration: codec_from_json({"name": "zfp", "configuration": configuration}), [
        {}, {"mode": 4}, {"mode": "fast"}, rate, precision, accuracy, {"mode": "reversible", "rate": 1},
        *(rate | {"rate": value} for value in (0, 65, "8", float("nan"))), rate | {"rate": 8, "precision": 8},
        {"mode": "reversible", "write_header": True}, *(precision | {"precision": n} for n in (-1, 1.5)),
        *(accuracy | {"tolerance": value} for value in (-0.1, 10**400)),
        {"mode": "expert", "minbits": 1, "maxbits": 13, "maxprec": 19, "minexp": -1074},
    ], MetadataError, "zfp")  # fmt: skip


@pytest.mark.parametrize(("configuration", "options", "reason"), [
    ({}, {"shape": (1,) * 5}, "cannot encode chunks of this shape"),
    ({}, {"shape": (1, 1, 1, 5000)}, "cannot encode chunks of this shape"),
    *(({}, {"dtype": name}, f"cannot encode data type '{name}'")
      for name in ("complex64", "bool", "string")),
    ({}, {"zarr_format": 2}, "zfp"),  # Version 2 has zfpy instead.
    ({"mode": "fixed_accuracy", "tolerance": 1}, {"dtype": "int32"}, "not possible for integers"),
    # zfp itself would write beyond the end of its memory.
    ({"mode": "fixed_rate", "rate": 2}, {}, "8 bits are too few for a block"),
    ({"mode": "fixed_rate", "rate": 0.7}, {"dtype": "float64", "shape": (4, 4)},
     "at least 12 bits for a block of 'float64'"),
    ({"mode": "fixed_rate", "rate": 0.1}, {"dtype": "int32"}, "0 bits are too few for a block"),
])  # fmt: skip
def test_chunks_that_do_not_fit(configuration: dict[str, Any], options: dict[str, Any], reason: str) -> None:
    given = {"dtype": "float32", "shape": (4,), **options}
    refuses(lambda codec: array_of(codec, **given), [ZfpCodec(**configuration)], MetadataError, reason)


def array_of(serializer: Any, dtype: str, shape: tuple[int, ...], chunks: Any = None, **more: Any) -> Any:
    options = {"dtype": dtype, "chunks": chunks or shape, "compressors": None, **more}
    return xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, serializer=serializer, **options)


@pytest.mark.parametrize("serializer", [ZfpCodec(), ShardingCodec((5, 5), (ZfpCodec(),), (BytesCodec(),))])
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_arrays(dtype: str, serializer: Any) -> None:
    options = {"chunks": (10, 10), "serializer": serializer, "compressors": ["crc32c"]}
    check_array(values_of(dtype, (20, 30)), 0, **options)


@pytest.mark.parametrize("dtype", NATIVE)
@pytest.mark.parametrize("codec", [ZfpyCodec(tolerance=0), ZfpyCodec(mode=3, precision=64)], ids=str)
def test_zfpy_with_limits_that_its_header_calls_expert(codec: ZfpyCodec, dtype: str) -> None:
    spec, values = spec_of(dtype, (5, 7)), values_of(dtype, (5, 7)) // 2
    found = codec.decode(codec.encode(values, spec), spec)
    np.testing.assert_allclose(found, values, rtol=1e-5)


@pytest.mark.parametrize("codec", LOSSY, ids=repr)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_lossy_modes_refuse_what_is_not_finite(codec: Any, value: float) -> None:
    array = array_of(codec, "float32", (8, 8), fill_value=0)
    data = np.full((8, 8), 280, "float32")
    array[...] = data
    data[3, 5] = value
    refuses(partial(array.set, ...), [data], ChunkEncodeError, "only lossless zfp keeps NaN, infinity")
    assert np.isfinite(array[...]).all()
    beyond = array_of(codec, "float32", (9, 9), (6, 6), fill_value=value)
    refuses(partial(beyond.set, ...), [280], ChunkEncodeError, "finite fill value")


@pytest.mark.parametrize("fill", [1e20, 9.96921e36, -999])
@pytest.mark.parametrize("codec", [LOSSY[0], LOSSY[3]], ids=repr)
def test_a_tolerance_is_kept_or_the_write_is_refused(codec: Any, fill: float) -> None:
    data = (280 + 20 * np.random.default_rng(0).random((91, 180))).astype("float32")
    array = array_of(codec, "float32", data.shape, (30, 60), fill_value=fill)
    if fill == -999:
        array[...] = data
        assert np.abs(array[...] - data).max() <= 0.1
        return
    refuses(partial(array.set, ...), [data], ChunkEncodeError, r"tolerance of 0\.1.*error of")


@pytest.mark.parametrize("codec", [*LOSSY[1:3], *LOSSY[4:]], ids=repr)
@pytest.mark.parametrize(("dtype", "most"), [("int32", 2**30), ("int64", 2**62)])
def test_lossy_modes_refuse_integers_that_would_wrap(codec: Any, dtype: str, most: int) -> None:
    array = array_of(codec, dtype, (4,))
    array[...] = [most, -most, 0, 1]
    beyond = [most + 1, 0, 0, 0], [-most - 1, 0, 0, 0]
    refuses(partial(array.set, ...), beyond, ChunkEncodeError, "only lossless zfp keeps")


def test_the_mode_that_loses_nothing_takes_everything() -> None:
    data = np.array([np.nan, np.inf, -np.inf, 1e38, -0.0, 1e-38], "float32")
    for codec in (ZfpCodec(), ZfpyCodec()):
        array = array_of(codec, "float32", (6,), (4,))
        array[...] = data
        assert array[...].tobytes() == data.tobytes()
