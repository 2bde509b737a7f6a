"""``conditional``: codecs that are applied to a chunk or not. No other library has it: bytes are by hand."""

from __future__ import annotations

import json
import pickle
import zlib
from typing import Any

import numpy as np
import pytest
from _chains import check_array, spec_of
from hypothesis import given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError, MetadataError, UnknownExtensionError
from xzarr3.codecs import BytesCodec, ConditionalCodec, Crc32cCodec, ZstdCodec, codec_from_json, parse_codec

SMOOTH = np.arange(4096, dtype="<i4")
NOISE = np.random.default_rng(0).integers(0, 2**31, 4096, "<i4")


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
    for stored in (b"\0" + short, b"\1" + compressed, b"\3" + bytes(Crc32cCodec().encode(compressed))):
        assert bytes(codec.decode(stored, 4)) == short
    alone = ConditionalCodec(["zstd"])
    assert bytes(alone.encode(NOISE.tobytes())) == b"\0" + NOISE.tobytes()
    assert bytes(alone.encode(b"")) == b"\0"
    assert bytes(alone.decode(b"\0", 0)) == b""


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
        with pytest.raises(ChunkDecodeError, match="at most"):
            codec.decode(stored, len(data) - 1)
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
    with pytest.raises(ChunkDecodeError, match=reason) as caught:
        codec.decode(stored, 8)
    assert caught.value.codec in ("conditional", "gzip", "crc32c")


def test_document() -> None:
    zstd = {"name": "zstd", "configuration": {"level": 5, "checksum": False}}
    data = document([shuffle_of(4), zstd], header_bits=32)
    codec = codec_from_json(data)
    assert codec is not None
    assert codec == ConditionalCodec([xzarr3.codecs.ShuffleCodec(4), ZstdCodec(5)], 32)
    assert codec.to_json() == data
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert hash(codec) == hash(codec_from_json(json.loads(json.dumps(data))))
    assert ConditionalCodec(["gzip"]).to_json() == document([{"name": "gzip", "configuration": {"level": 5}}])


CODECS, BITS = r"configuration\.codecs", r"configuration\.header_bits"


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
    with pytest.raises(MetadataError, match=match):
        codec_from_json(data)


def test_objects_that_are_no_list_of_codecs() -> None:
    for codecs in ((), None, [BytesCodec()], "transpose", 5):
        with pytest.raises(MetadataError):
            ConditionalCodec(codecs)  # type: ignore[arg-type]
    with pytest.raises(MetadataError, match="has parameters without defaults"):
        parse_codec("conditional")


def test_no_codec_of_the_list_can_be_ignored() -> None:
    # The bits of those behind it would mean other ones.
    data = document([{"name": "unheard-of", "must_understand": False}, {"name": "crc32c"}])
    with pytest.raises(UnknownExtensionError, match="a bit of its own"):
        codec_from_json(data)
    assert codec_from_json({**data, "must_understand": False, "name": "unheard-of"}) is None


@pytest.mark.parametrize("values", [SMOOTH, NOISE], ids=["smooth", "noise"])
@pytest.mark.parametrize("shards", [None, (32, 64)], ids=["chunks", "shards"])
def test_arrays(values: np.ndarray[Any, Any], shards: Any) -> None:
    codec = ConditionalCodec(["numcodecs.shuffle", "zstd"])
    array = check_array(
        values.reshape(64, 64), 0, chunks=(8, 64), shards=shards, compressors=[codec, "crc32c"]
    )
    found = json.loads(array.store.get("a/zarr.json") or b"")["codecs"]
    chain = found[-1]["configuration"]["codecs"] if shards else found
    assert chain[1]["configuration"]["codecs"][0] == shuffle_of(4)
    if shards and values is NOISE:  # A byte of header and four of checksum each, for nothing gained.
        index = np.frombuffer(bytes(array.store.get("a/c/0/0") or b"")[-68:-4], "<u8").reshape(-1, 2)
        assert index[:, 1].tolist() == [8 * 64 * 4 + 5] * 4


def shuffle_of(size: int) -> dict[str, Any]:
    return {"name": "numcodecs.shuffle", "configuration": {"elementsize": size}}


INDEX = xzarr3.codecs.ShardingCodec((4,), (BytesCodec(),), (BytesCodec(), ConditionalCodec(["crc32c"])))


@pytest.mark.parametrize(("options", "match"), [
    ({"serializer": INDEX, "compressors": None}, "no fixed size"),
    ({"compressors": ConditionalCodec(["crc32c"]), "zarr_format": 2}, "conditional"),
    ({"compressors": ConditionalCodec(["crc32c"]), "zarr_format": "3-draft"}, "conditional"),
])  # fmt: skip
def test_where_it_cannot_be(options: Any, match: str) -> None:
    with pytest.raises(MetadataError, match=match):
        xzarr3.create_array(xzarr3.MemoryStore(), shape=8, chunks=8, dtype="i4", **options)
