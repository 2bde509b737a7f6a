"""The codecs that only version 2 has, with numcodecs as the peer that writes and reads the same bytes."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numcodecs
import numpy as np
import pytest
from _chains import MIB, refused_within, spec_of
from _strategies import attempt, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from xzarr3 import ChunkDecodeError, ChunkEncodeError, MetadataError, UnknownExtensionError
from xzarr3.codecs import BytesCodec, ChunkSpec, TransposeCodec, codec_from_json, codec_names, parse_codec
from xzarr3.codecs.numcodecs import from_numcodecs, numcodecs_ids, stored_endian, to_numcodecs
from xzarr3.codecs.numcodecs.objects import Base64Codec, CategorizeCodec
from xzarr3.codecs.pipeline import CodecChain

CONFIGS: list[Any] = [
    {"id": "base64"},
    {"id": "categorize", "labels": ["a", "bc", "é"], "dtype": "|O", "astype": "|u1"},
    {"id": "categorize", "labels": [], "dtype": "<U3", "astype": "<i4"},
    {"id": "categorize", "labels": ["x", "x"], "dtype": ">U3", "astype": ">u2"},
]


def spec_for(config: dict[str, Any], shape: tuple[int, ...] = (4,)) -> ChunkSpec:
    dtype = config.get("dtype", "<i4")
    return spec_of("string" if dtype == "|O" else dtype, shape)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_configurations_both_ways(config: dict[str, Any]) -> None:
    peer = numcodecs.get_codec(dict(config))
    endian = {"<": "little", ">": "big"}.get(config.get("dtype", "")[:1])
    codec = from_numcodecs(config, endian)
    written = json.loads(json.dumps(to_numcodecs(codec, spec_for(config), endian)))
    assert numcodecs.get_codec(dict(written)).get_config() == peer.get_config() == config
    assert from_numcodecs(written, endian) == codec
    assert parse_codec(peer) == from_numcodecs(config)
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert hash(from_numcodecs(written, endian)) == hash(codec)
    assert stored_endian(codec) == ("big" if config.get("astype") == ">u2" else "little" if "<i4" in
                                    config.values() else None)  # fmt: skip
    with pytest.raises(UnknownExtensionError, match="only Zarr format 2") as caught:
        codec.to_json()
    assert caught.value.accepted


@pytest.mark.parametrize("name", ["base64", "categorize"])
def test_version_3_has_no_names_for_them(name: str) -> None:
    assert name in numcodecs_ids()
    assert f"numcodecs.{name}" not in codec_names()
    from_numcodecs(next(config for config in CONFIGS if config["id"] == name))
    for spelled in (name, f"numcodecs.{name}"):
        with pytest.raises(UnknownExtensionError):
            codec_from_json({"name": spelled, "configuration": {"labels": [], "dtype": "|O"}})
        with pytest.raises(UnknownExtensionError):
            parse_codec(spelled)


LABELS: dict[str, Any] = {"id": "categorize", "labels": [], "dtype": "|O"}
BAD: list[Any] = [
    {"id": "base64", "x": 1},
    {"id": "categorize"}, {"id": "categorize", "labels": ["a"]}, {"id": "categorize", "dtype": "|O"},
    *(LABELS | {"labels": labels} for labels in ("ab", [1], [None], {})),
    *(LABELS | {"dtype": dtype} for dtype in ("|S3", "<i4", 5, ["|O"], "nonsense")),
    *(LABELS | {"astype": astype} for astype in ("|O", "<U3", "<f4", 1)),
    LABELS | {"x": 1},
]  # fmt: skip


@pytest.mark.parametrize("config", BAD, ids=str)
def test_configurations_that_are_not_valid(config: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        from_numcodecs(config)
    assert caught.value.accepted
    assert str(caught.value.field).startswith("configuration.")


# base64


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_base64_both_ways(value: bytes) -> None:
    codec, peer = Base64Codec(), numcodecs.Base64()
    encoded = bytes(codec.encode(value))
    assert encoded == bytes(peer.encode(value))
    assert len(encoded) == codec.encoded_size(len(value)) == codec.max_encoded_size(len(value))
    assert bytes(codec.decode(memoryview(encoded), len(value))) == value
    added = [encoded + more for more in (b"A", b"\n", b"====")]
    for wrong in [*added, b"-" + encoded[1:], b"\xe9" * 4, *([encoded[:-1]] if encoded else [])]:
        with pytest.raises(ChunkDecodeError):
            codec.decode(wrong, len(value))
    if value:
        with pytest.raises(ChunkDecodeError, match="at most"):
            codec.decode(encoded, len(value) - 1)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=50), st.integers(0, 40))
def test_any_bytes_as_base64(value: bytes, limit: int) -> None:
    found, error = attempt(lambda: Base64Codec().decode(value, limit), ChunkDecodeError)
    if error is None:
        assert len(found) <= limit
        assert bytes(found) == bytes(numcodecs.Base64().decode(value) if value else b"")


def test_base64_that_is_too_long_takes_no_memory() -> None:
    value = bytes(Base64Codec().encode(bytes(30_000_000)))
    refused_within(MIB, lambda: Base64Codec().decode(value, 1000))


# categorize

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_categories_both_ways(data: st.DataObject) -> None:
    labels = data.draw(st.lists(WORDS.filter(bool), max_size=8))
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    order = data.draw(st.sampled_from("CF"))
    dtype = data.draw(st.sampled_from(["|O", "<U5", ">U5"]))
    astype = data.draw(st.sampled_from(["|u1", "|i1", "<u2", ">u2", "<i4", ">i8"]))
    config = {"id": "categorize", "labels": labels, "dtype": dtype, "astype": astype}
    number = int(np.prod(shape))
    items = data.draw(st.lists(st.sampled_from(["", *labels]), min_size=number, max_size=number))
    values = np.fromiter(items, object, number).reshape(shape).astype(dtype)
    codec = from_numcodecs(config, {"<": "little", ">": "big"}.get(dtype[0]))
    spec = spec_for(config, shape)
    turn = [TransposeCodec(tuple(reversed(range(len(shape)))))] if order == "F" else []
    chain = CodecChain((*turn, codec, BytesCodec(stored_endian(codec) or "little")), spec)
    native = values.astype(spec.dtype)
    encoded = bytes(chain.encode(native))
    peer = numcodecs.get_codec(dict(config))
    assert encoded == bytes(numcodecs.compat.ensure_bytes(peer.encode(np.asarray(values, order=order))))  # type: ignore[call-overload]
    found = chain.decode(encoded)
    assert found.shape == shape
    assert found.dtype == spec.dtype
    assert found.tolist() == values.tolist()
    if number:
        expected = peer.decode(encoded).reshape(shape, order=order)
        assert expected.tolist() == values.tolist()


def chain_of(labels: list[str], dtype: str = "|O", astype: str = "|u1") -> CodecChain:
    config = {"id": "categorize", "labels": labels, "dtype": dtype, "astype": astype}
    return CodecChain((from_numcodecs(config), BytesCodec()), spec_for(config))


def test_integers_that_stand_for_no_label() -> None:
    for astype, chunk in (("|u1", b"\0\1\2\3"), ("|i1", b"\0\1\2\xff"), ("|u1", b"\xff\0\0\0")):
        with pytest.raises(ChunkDecodeError, match="expected at most 2"):
            chain_of(["a", "b"], astype=astype).decode(chunk)
    assert chain_of(["a", "b"]).decode(b"\0\1\2\1").tolist() == ["", "a", "b", "a"]
    for size in (0, 3, 5):
        with pytest.raises(ChunkDecodeError, match="expected 4"):
            chain_of(["a"]).decode(bytes(size))


def test_labels_that_the_array_cannot_hold() -> None:
    chain = chain_of(["a", "long"], "<U2")
    assert chain.decode(b"\1\1\0\0").tolist() == ["a", "a", "", ""]
    with pytest.raises(ChunkDecodeError, match="label of 4 characters"):
        chain.decode(b"\1\2\0\0")
    with pytest.raises(ChunkDecodeError, match="label is not valid text"):
        chain_of(["\ud800"]).decode(b"\1\0\0\0")
    with pytest.raises(ChunkEncodeError, match="none of the 1 labels"):
        chain_of(["\ud800"]).encode(np.array(["a", "", "", ""], np.dtypes.StringDType()))


def test_more_labels_than_integers() -> None:
    labels = [f"l{at}" for at in range(300)]
    chain = chain_of(labels)
    values = np.array(["l0", "l254", "", "l7"], np.dtypes.StringDType())
    assert chain.decode(chain.encode(values)).tolist() == values.tolist()
    values[1] = "l255"
    with pytest.raises(ChunkEncodeError, match="cannot hold the number"):
        chain.encode(values)


def test_a_long_label_many_times_takes_little_memory() -> None:
    codec = CategorizeCodec("|O", "|u1", ("x" * 1000,))
    chain = CodecChain((codec, BytesCodec()), spec_of("string", (3_000_000,)))
    error = refused_within(200_000_000, lambda: chain.decode(b"\1" * 3_000_000))
    assert "characters; at most" in str(error)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [("|O", "<U3"), ("<U3", "<U4"), ("<U3", "string"), ("<U3", "S3"), ("|O", "i4"), ("|O", "bytes")],
)
def test_chunks_that_it_does_not_fit(config: str, dtype: str) -> None:
    with pytest.raises(MetadataError) as caught:
        CodecChain((CategorizeCodec(config), BytesCodec()), spec_of(dtype, (2,)))
    assert caught.value.accepted
    assert str(caught.value.field).startswith("codecs[0]")
    swapped = from_numcodecs({"id": "categorize", "labels": [], "dtype": ">U3"}, "little")
    with pytest.raises(MetadataError, match="byte order of the array"):
        CodecChain((swapped, BytesCodec()), spec_of("<U3"))


def test_the_same_text_in_an_array_of_fixed_length() -> None:
    chain = chain_of(["a", "bc"], "<U2")
    values = np.array(["bc", "", "a", "bc"], "<U2")
    assert same_bits(chain.decode(chain.encode(values)), values)
    assert bytes(chain.encode(values)) == b"\2\0\1\2"
