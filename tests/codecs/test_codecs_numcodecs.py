"""The codecs of numcodecs, with numcodecs and zarr-python as the peers that write and read the same bytes."""

import bz2
import json
import lzma
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numcodecs
import numcodecs.registry
import numpy as np
import pytest
from _chains import spec_of
from _documents import zarray
from _slow import slow
from _strategies import same_bits
from _things import case, refuses

import xzarr3
from xzarr3 import ChunkDecodeError, ChunkEncodeError, MetadataError, UnknownExtensionError
from xzarr3.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec, codec_from_json, parse_codec
from xzarr3.codecs.numcodecs import from_numcodecs, to_numcodecs
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.formats import V2

INTEGERS = ["|i1", "|u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8"]
FLOATS = ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]
NOISE = np.random.default_rng(4).bytes(400)


def of(codec_id: str, **fields: Any) -> dict[str, Any]:
    """The configuration of a codec, as documents of version 2 have it."""
    return {"id": codec_id, **fields}


def peer(config: Mapping[str, Any]) -> Any:
    return numcodecs.get_codec(dict(config))


def chain_of(shape: tuple[int, ...], dtype: Any, filters: Any, compressor: Any, order: str) -> CodecChain:
    """What a document of version 2 with this dtype, these filters and this order asks for."""
    fields = {"shape": list(shape), "chunks": list(shape), "dtype": np.dtype(dtype).str, "fill_value": None}
    document = zarray(**fields, filters=[*filters], compressor=compressor, order=order)
    meta: Any = V2.parse({".zarray": document}, "")
    return meta.chain  # type: ignore[no-any-return]


def peer_encode(values: Any, filters: Sequence[Mapping[str, Any]], compressor: Any, order: str) -> bytes:
    """What zarr-python 2 does with a chunk: each codec gets what the one before it returned."""
    chunk: Any = np.asarray(values, order=order)  # type: ignore[call-overload]
    for config in [*filters, *([compressor] if compressor else [])]:
        chunk = peer(config).encode(chunk)
    return bytes(numcodecs.compat.ensure_bytes(chunk))


def peer_decode(data: bytes, like: np.ndarray[Any, Any], filters: Any, compressor: Any, order: str) -> Any:
    chunk: Any = data
    for config in reversed([*filters, *([compressor] if compressor else [])]):
        chunk = peer(config).decode(chunk)
    chunk = numcodecs.compat.ensure_ndarray(chunk).view(like.dtype)
    return np.asarray(chunk.reshape(-1, order="A").reshape(like.shape, order=order))


def both_ways(values: np.ndarray[Any, Any], filters: Any, compressor: Any = None, order: str = "C") -> None:
    shape, dtype = values.shape, values.dtype
    chain = chain_of(shape, dtype, filters, compressor, order)
    native = values.astype(dtype.newbyteorder("="))
    theirs = peer_encode(values, filters, compressor, order)
    ours = bytes(chain.encode(native))
    if compressor is None:
        assert ours == theirs
    expected = peer_decode(theirs, values, filters, compressor, order)
    assert same_bits(chain.decode(theirs), expected.astype(native.dtype))
    assert same_bits(peer_decode(ours, values, filters, compressor, order), expected)
    assert same_bits(chain.decode(ours), expected.astype(native.dtype))


def numbers(dtype: str, shape: tuple[int, ...] = (4, 6)) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype).kind
    if kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return (rng.normal(size=shape) * 10).astype(dtype)


def filters_of(dtype: str, memory_order: str) -> Iterator[dict[str, Any]]:
    """Filters of numbers of a dtype, with every dtype of the output that they can have."""
    kind, order = np.dtype(dtype).kind, dtype[0].replace("|", "<")
    yield {"id": "delta", "dtype": dtype}
    for code in ("i2", "i1", "f4", "f8") if kind == "i" else ("f8",):
        yield {"id": "delta", "dtype": dtype, "astype": np.dtype(code).newbyteorder(order).str}
    if kind != "f":
        return
    for offset, scale in ((-100, 1), (-99.5, 2.5)):
        scaled = {"id": "fixedscaleoffset", "offset": offset, "scale": scale, "dtype": dtype}
        yield scaled
        for code in ("u1", "i2", "i4", "f4", "f8"):
            yield {**scaled, "astype": np.dtype(code).newbyteorder(order).str}
    for digits in (0, 1, 2):
        yield {"id": "quantize", "digits": digits, "dtype": dtype}
    yield {"id": "quantize", "digits": 1, "dtype": dtype, "astype": f"{order}f4"}
    if order == "<":  # numcodecs knows no other, and makes C order of F where bitround changes something.
        most = {2: 10, 4: 23, 8: 52}[np.dtype(dtype).itemsize]
        for keepbits in (0, 3, most) if memory_order == "C" else (most,):
            yield {"id": "bitround", "keepbits": keepbits}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_filters_of_numbers(dtype: str, order: str) -> None:
    for config in filters_of(dtype, order):
        values = numbers(dtype)
        if config["id"] == "fixedscaleoffset":  # The output is to hold them.
            values = (np.abs(values) % 1).astype(dtype)
        with case(config):
            both_ways(values, [config], order=order)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")  # The values have no imaginary part.
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("decoded", ["|b1", "|i1", "<i4", ">i4", "<f8", ">f8", "<c8", "|S4", "<U4", ">U4"])
def test_astype(decoded: str, order: str) -> None:
    values = numbers("<i4").astype(decoded)
    for encoded in ("|i1", "<i4", ">i4", "<f4", ">f4", ">f8", ">c16", "|S8", "<U8", ">U8"):
        if {decoded[0], encoded[0]} != {"<", ">"}:
            codec = {"id": "astype", "encode_dtype": encoded, "decode_dtype": decoded}
            with case(encoded):
                both_ways(values, [codec], order=order)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (3, 5), (4, 6), (2, 2, 2)])
def test_packbits(shape: tuple[int, ...], order: str) -> None:
    values = np.random.default_rng(1).integers(0, 2, shape).astype(bool)
    both_ways(values, [{"id": "packbits"}], order=order)
    chain = chain_of(shape, "|b1", [{"id": "packbits"}], None, order)
    assert chain.encoded_size == 1 + -(-values.size // 8)
    data = bytearray(chain.encode(values))
    data[0] ^= 1
    refuses(chain.decode, [bytes(data)], ChunkDecodeError)


CHAINS: list[tuple[str, list[dict[str, Any]], dict[str, Any] | None]] = [
    (">i4", [of("fixedscaleoffset", offset=0, scale=2, dtype=">i4", astype=">i8")], None),
    ("<u2", [of("fixedscaleoffset", offset=0, scale=2, dtype="<u2", astype="<i8")], None),
    (">i4", [of("delta", dtype=">i4", astype=">i2")], of("zlib", level=1)),
    (">f8", [of("fixedscaleoffset", offset=0, scale=10, dtype=">f8", astype=">i4"),
             of("delta", dtype=">i4", astype=">i8")], of("blosc")),
    ("<f4", [of("astype", encode_dtype="<f8", decode_dtype="<f4"), of("quantize", digits=2, dtype="<f8"),
             of("delta", dtype="<f8")], of("lz4", acceleration=1)),
    ("<i8", [of("delta", dtype="<i8"), of("delta", dtype="<i8")], of("zstd", level=2)),
    ("<M8[ns]", [of("delta", dtype="<i8")], None), (">M8[s]", [of("delta", dtype=">i8", astype=">i4")], None),
    ("<f4", [of("delta", dtype="<i4")], None),
]  # fmt: skip


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("dtype", "filters", "compressor"), CHAINS, ids=repr)
def test_chains_of_filters(dtype: str, filters: Any, compressor: Any, order: str) -> None:
    native = np.dtype(dtype).newbyteorder("=")
    values = numbers("i8" if native.kind == "M" else native.str, (5, 6, 7)).view(native).astype(dtype)
    both_ways(values, filters, compressor, order)


@pytest.mark.parametrize(("config", "dtype"), [
    (of("delta", dtype="<i4"), "i2"), (of("delta", dtype="<i4"), "c8"), (of("delta", dtype="<f8"), "c8"),
    (of("bitround", keepbits=3), "i4"), (of("bitround", keepbits=24), "f4"), (of("packbits"), "u1"),
    (of("quantize", digits=1, dtype="<f8"), "f4"),
], ids=str)  # fmt: skip
def test_chunks_that_a_filter_does_not_fit(config: Any, dtype: str) -> None:
    codecs = (from_numcodecs(config), xzarr3.codecs.BytesCodec())
    (error,) = refuses(lambda spec: CodecChain(codecs, spec), [spec_of(np.dtype(dtype), (4,))], MetadataError)
    assert error.accepted
    assert str(error.field).startswith("codecs[0]")


def test_values_that_cannot_be_cast_or_encoded() -> None:
    configs = of("shuffle", elementsize=3), of("lzma", format=2, check=4)
    refuses(lambda config: coder(config).encode(b"1234"), configs, ChunkEncodeError)
    cast = from_numcodecs({"id": "astype", "encode_dtype": "|S4", "decode_dtype": "<i4"})
    chain = CodecChain((cast, xzarr3.codecs.BytesCodec()), spec_of("i4", (2,)))
    (error,) = refuses(chain.decode, [b"12\0\0four"], ChunkDecodeError)
    assert error.codec == "numcodecs.astype"


COMPRESSORS: list[dict[str, Any]] = [
    of("zlib"), of("zlib", level=9), of("zlib", level=0), of("zlib", level=-1), of("gzip"),
    of("gzip", level=9), of("gzip", level=0), of("gzip", level=-1), of("bz2"), of("bz2", level=9), of("lzma"),
    of("lzma", preset=0), of("lzma", format=2), of("lzma", check=0),
    of("lzma", format=1, check=1, preset=None, filters=None), of("lz4"), of("lz4", acceleration=10),
    of("zstd"), of("zstd", level=9), of("zstd", level=-3), of("zstd", level=1, checksum=True), of("blosc"),
    of("blosc", cname="zstd", clevel=1, shuffle=2, blocksize=0), of("blosc", cname="zlib", shuffle=0),
    of("blosc", shuffle=-1, blocksize=512), of("shuffle"), of("shuffle", elementsize=2),
    of("shuffle", elementsize=1), of("shuffle", elementsize=0),
]  # fmt: skip
CHECKSUMS: list[dict[str, Any]] = [
    of("crc32"), of("crc32", location="end"), of("crc32c"), of("crc32c", location="start"), of("adler32"),
    of("adler32", location="end"), of("fletcher32"), of("jenkins_lookup3"),
    of("jenkins_lookup3", initval=1234, prefix=None),
]  # fmt: skip


def to_bytes(value: Any) -> bytes:
    return bytes(memoryview(value).cast("B")) if len(value) else b""


def coder(config: Mapping[str, Any]) -> xzarr3.codecs.BytesBytesCodec:
    codec = from_numcodecs(config)
    assert isinstance(codec, xzarr3.codecs.BytesBytesCodec)
    return codec.evolve(spec_of("i2", (10,)))


@pytest.mark.parametrize("config", COMPRESSORS + CHECKSUMS, ids=str)
@pytest.mark.parametrize("size", [4, slow(16), 1000, slow(200_000)])
def test_bytes_both_ways(config: Any, size: int) -> None:
    codec = coder(config)
    for data in (bytes(size), np.random.default_rng(3).bytes(size), (b"abcdefgh" * size)[:size]):
        theirs, ours = to_bytes(peer(config).encode(data)), to_bytes(codec.encode(data))
        assert to_bytes(codec.decode(theirs, size)) == data
        if not (config.get("filters") and config.get("format") != 3):  # numcodecs does not read these.
            assert to_bytes(peer(config).decode(ours)) == data
        assert to_bytes(codec.decode(memoryview(bytearray(ours)), size + 5)) == data
        assert len(ours) <= codec.max_encoded_size(size)
        assert len(theirs) <= codec.max_encoded_size(size)
        if config["id"] not in ("blosc", "zstd", "gzip"):
            assert ours == theirs
        exact = codec.encoded_size(size)
        assert exact is None or exact == len(ours)


def test_several_streams() -> None:
    parts = [b"one", b"", b"two" * 50_000, b"three"]
    for config, compress in (({"id": "bz2"}, bz2.compress), ({"id": "lzma"}, lzma.compress)):
        assert to_bytes(coder(config).decode(b"".join(map(compress, parts)), 200_000)) == b"".join(parts)


@pytest.mark.slow
def test_many_empty_streams_are_read_in_linear_time() -> None:
    value = bz2.compress(b"") * 300_000 + bz2.compress(b"end")
    assert to_bytes(coder({"id": "bz2"}).decode(value, 10)) == b"end"


@pytest.mark.parametrize("config", COMPRESSORS + CHECKSUMS, ids=str)
def test_bytes_that_are_not_theirs(config: Any) -> None:
    codec = coder(config)
    assert to_bytes(codec.decode(codec.encode(b""), 0)) == b""
    zeros, noise = to_bytes(codec.encode(bytes(1000))), to_bytes(codec.encode(NOISE))
    (error,) = refuses(lambda limit: codec.decode(zeros, limit), [999], ChunkDecodeError, "999")
    assert error.codec == codec.name
    bad = [noise[:size] for size in [*range(min(40, len(noise))), *range(40, len(noise), 17), len(noise) - 1]]
    if config in COMPRESSORS:
        bad += [zeros + garbage for garbage in (b"\0", b"garbage", bytes(100), zeros[:-1])]
    if config["id"] == "shuffle":
        bad = [bytes(1005)]
    limit = 1000 if config["id"] == "shuffle" else 10_000
    refuses(lambda value: codec.decode(value, limit), bad, ChunkDecodeError)
    text = to_bytes(codec.encode(b"some bytes of data")) if config in CHECKSUMS else b""
    changed = [text[:at] + bytes([text[at] ^ 16]) + text[at + 1 :] for at in range(len(text))]
    refuses(lambda value: codec.decode(value, 100), changed, ChunkDecodeError, r"checksum|CRC mismatch")


CONFIGS: list[dict[str, Any]] = [
    *COMPRESSORS, *CHECKSUMS, of("delta", dtype=">i4", astype=">i2"),
    of("fixedscaleoffset", offset=1, scale=10.5, dtype="<f8", astype="|u1"),
    of("quantize", digits=3, dtype="<f4", astype="<f4"), of("astype", encode_dtype=">f4", decode_dtype=">f8"),
    of("bitround", keepbits=5), of("packbits"), of("json2"), of("vlen-utf8"), of("vlen-bytes"),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_configurations_both_ways(config: Any) -> None:
    dtype = config.get("decode_dtype", config.get("dtype", ""))
    endian = {"<": "little", ">": "big"}.get(dtype[:1])
    codec = from_numcodecs(config, endian)
    spec = spec_of(dtype or ("?" if config["id"] == "packbits" else "f4"), (4, 4))
    written = json.loads(json.dumps(to_numcodecs(codec, spec, endian)))
    if config["id"] != "json2":
        said = json.loads(json.dumps(peer(written).get_config()))
        expected = json.loads(json.dumps(peer(config).get_config()))
        expected |= {"shuffle": 1} if config.get("shuffle") == -1 else {}
        expected |= {"level": 6} if config == of("gzip", level=-1) else {}  # What -1 means to zlib.
        assert said == expected
    assert from_numcodecs(written, endian).evolve(spec) == codec.evolve(spec)
    # The same through an object of numcodecs, and through version 3 of the format.
    assert parse_codec(peer(config)).evolve(spec) == from_numcodecs(config).evolve(spec)
    again: Any = codec_from_json(json.loads(json.dumps(codec.to_json())))
    assert again.evolve(spec) == codec.evolve(spec)
    assert hash(again.evolve(spec)) == hash(codec.evolve(spec))
    restored = pickle.loads(pickle.dumps(codec))
    assert (restored, hash(restored)) == (codec, hash(codec))
    assert codec != xzarr3.codecs.TransposeCodec((0,))


CALLED: list[tuple[dict[str, Any], Any]] = [
    (of("gzip", level=4), GzipCodec(4)), (of("zstd", level=4), ZstdCodec(4)),
    (of("zstd", level=3, checksum=True), ZstdCodec(3, True)), (of("crc32c"), Crc32cCodec()),
    (of("blosc", cname="zlib", clevel=9, shuffle=1, blocksize=0), BloscCodec("zlib", 9, None)),
    (of("crc32"), parse_codec("numcodecs.crc32")),
]  # fmt: skip
"""What version 2 calls codecs of version 3."""
# Null means the default, as absence does.
DEFAULTS: list[tuple[dict[str, Any], Any]] = [
    (of("gzip"), GzipCodec(1)), (of("gzip", level=None), GzipCodec(1)),
    (of("shuffle", elementsize=None), from_numcodecs(of("shuffle"))),
    (of("delta", dtype="<i4", astype=None), from_numcodecs(of("delta", dtype="<i4"))),
    (of("zstd"), ZstdCodec(0)), (of("blosc"), BloscCodec("lz4", 5, "shuffle")),
    (of("blosc", shuffle=-1), BloscCodec("lz4", 5, None)),
    (of("blosc", shuffle=2, blocksize=64), BloscCodec("lz4", 5, "bitshuffle", None, 64)),
]  # fmt: skip


def test_codecs_that_both_versions_have() -> None:
    for config, codec in CALLED:
        assert to_numcodecs(codec, spec_of("i2")) == config
        assert from_numcodecs(config).evolve(spec_of("i2")) == codec.evolve(spec_of("i2"))
    for config, codec in DEFAULTS:
        assert from_numcodecs(config) == codec
    # The class of one place of a checksum must not become that of the other.
    for configuration, codec in (({}, Crc32cCodec()), ({"location": "start"}, None), ({}, Crc32cCodec())):
        found = codec_from_json({"name": "numcodecs.crc32c", "configuration": configuration})
        assert found == (codec or from_numcodecs({"id": "crc32c", "location": "start"}))


def test_an_array_and_its_filters_have_one_byte_order() -> None:
    mixed = {"id": "delta", "dtype": ">i4"}, {"id": "delta", "dtype": "<i4", "astype": ">i2"}
    refuses(lambda config: from_numcodecs(config, "little"), mixed, MetadataError, "one byte order")
    big = from_numcodecs({"id": "delta", "dtype": ">i4", "astype": ">i2"}, "big")
    assert big.configuration() == {"dtype": "<i4", "astype": "<i2"}
    for endian, sign in (("little", "<"), ("big", ">")):
        written = to_numcodecs(big, spec_of("i4"), endian)
        assert written == {"id": "delta", "dtype": f"{sign}i4", "astype": f"{sign}i2"}
    document: Any = {"name": "numcodecs.delta", "configuration": {"dtype": ">i4"}}
    refuses(codec_from_json, [document], MetadataError, "one byte order")


def test_codecs_that_are_refused() -> None:
    for name in ("pickle", "msgpack2", "n5_wrapper", "vlen-array", "categorize", "base64", "", "zLib", "os"):
        for parse in (from_numcodecs, parse_codec):
            (error,) = refuses(parse, [{"id": name}], UnknownExtensionError)
            assert error.accepted
            assert (error.found, "run code" in str(error)) == (name, name == "pickle")
        document: Any = {"name": f"numcodecs.{name}", "configuration": {}}
        refuses(codec_from_json, [document], UnknownExtensionError)
        assert f"numcodecs.{name}" not in xzarr3.codecs.foreign.registered()


BAD: list[Any] = [
    {}, {"id": 5}, {"id": None}, [], "zlib", None, of("zlib", level=10), of("zlib", level="1"),
    of("zlib", level=True), of("zlib", x=1), of("gzip", level=11), of("bz2", level=0), of("lzma", format=4),
    of("lzma", check=2), of("lzma", preset=10), of("lzma", preset=-1), of("lzma", filters={}),
    of("lzma", filters=[{"id": 33}]), of("lzma", format=3, filters=[{"id": 33, "dict_size": 2**30}]),
    of("lz4", acceleration=2**31), of("zstd", level=23), of("zstd", level=1, checksum=1),
    of("blosc", cname="lz5"), of("blosc", clevel=10), of("blosc", shuffle=3), of("blosc", shuffle="shuffle"),
    of("blosc", typesize=0), of("shuffle", elementsize=-1), of("crc32", location="middle"),
    of("fletcher32", location="end"), of("jenkins_lookup3", initval=-1), of("jenkins_lookup3", prefix="ab"),
    of("delta", dtype=5), of("delta", dtype="O"), of("delta", dtype="i4,i4"), of("delta", dtype="(2,)i4"),
    of("delta", dtype="?"), of("delta", dtype="nonsense"), of("delta", dtype="<i4", astype="V4"),
    of("fixedscaleoffset", offset=0, dtype="f8"), of("fixedscaleoffset", scale=1, dtype="f8"),
    *(of("fixedscaleoffset", offset=offset, scale=scale, dtype="f8") for offset, scale in (
        (0, 0), (0, "1"), (float("nan"), 1), (True, 1), (10**400, 1))),
    of("quantize", dtype="<f8"), of("quantize", digits=400, dtype="<f8"),
    of("quantize", digits=1, dtype="<i4"), of("astype", decode_dtype="<f4"),
    of("astype", encode_dtype="O", decode_dtype="<f4"), of("bitround"), of("bitround", keepbits=-1),
    of("bitround", keepbits=53), of("packbits", x=1), of("json2", encoding="zip"), of("vlen-utf8", x=1),
    of("pcodec", level=13), of("pcodec", mode_spec="x"), of("pcodec", delta_encoding_order=8),
    of("zfpy", mode=1), of("zfpy", mode=2, rate=0), of("zfpy", precision=65),
    of("zfpy", compression_kwargs={"x": 1}),
]  # fmt: skip


@pytest.mark.parametrize("config", BAD, ids=str)
def test_configurations_that_are_not_valid(config: Any) -> None:
    (error,) = refuses(from_numcodecs, [config], MetadataError)
    assert error.accepted
    if isinstance(config, dict) and isinstance(config.get("id"), str) and config["id"][:4] != "vlen":
        fields = {key: value for key, value in config.items() if key != "id"}
        if config["id"] != "blosc" or config.get("shuffle") != "shuffle":
            document: Any = {"name": f"numcodecs.{config['id']}", "configuration": fields}
            (error,) = refuses(codec_from_json, [document], MetadataError)
            assert str(error.field).startswith("configuration.")


PCODECS: list[dict[str, Any]] = [
    of("pcodec"), of("pcodec", level=3, mode_spec="classic", delta_spec="try_consecutive",
                     delta_encoding_order=2, equal_pages_up_to=100),
]  # fmt: skip
ZFPYS: list[dict[str, Any]] = [
    of("zfpy"), of("zfpy", mode=4, tolerance=0.01), of("zfpy", mode=2, rate=16),
    of("zfpy", mode=3, precision=20),
]  # fmt: skip


def library_both_ways(config: Any, dtype: str, shape: tuple[int, ...], bad: Any) -> tuple[Any, Any]:
    values = numbers(dtype, shape)
    codec = from_numcodecs(config)
    chain = CodecChain((codec,), spec_of(dtype, shape))
    ours, theirs = bytes(chain.encode(values)), bytes(peer(config).encode(values))
    expected = np.asarray(peer(config).decode(theirs)).reshape(shape)
    assert same_bits(np.asarray(peer(config).decode(ours)).reshape(shape), expected)
    assert same_bits(chain.decode(theirs), expected)
    assert same_bits(chain.decode(ours), expected)
    if config["id"] == "pcodec" or "mode" not in config:
        assert same_bits(expected, values)
    larger = CodecChain((codec,), spec_of(dtype, (*shape[:-1], shape[-1] + 1)))
    refuses(larger.decode, [ours], ChunkDecodeError)
    refuses(chain.decode, bad(ours), ChunkDecodeError)
    return ours, theirs


@pytest.mark.parametrize("shape", [(1,), (1000,), (30, 40), (5, 6, 7)])
@pytest.mark.parametrize("dtype", ["u2", "u4", "u8", "i2", "i4", "i8", "f2", "f4", "f8"])
def test_pcodec(dtype: str, shape: tuple[int, ...]) -> None:
    pytest.importorskip("pcodec")
    for config in PCODECS:
        library_both_ways(config, dtype, shape, lambda ours: (b"", ours[:-1], ours[:10], b"garbage"))
        chain = CodecChain((from_numcodecs(config), ZstdCodec()), spec_of(dtype, shape))
        assert same_bits(chain.decode(chain.encode(numbers(dtype, shape))), numbers(dtype, shape))


@pytest.mark.parametrize("shape", [(1,), (1001,), (30, 41), (5, 6, 7), (3, 4, 5, 2)])
@pytest.mark.parametrize("dtype", [slow("i4"), slow("i8"), slow("f4"), "f8"])
def test_zfpy(dtype: str, shape: tuple[int, ...]) -> None:
    pytest.importorskip("zfpy")

    def bad(ours: bytes) -> list[bytes]:
        half = [ours[: len(ours) // 2]] if len(ours) > 100 else []
        return [b"", ours[:5], b"garbage" * 3, ours + bytes(2**16), *half]

    for config in ZFPYS:
        if np.dtype(dtype).kind != "i" or config.get("mode") != 4:  # zfp has no fixed accuracy for integers.
            ours, theirs = library_both_ways(config, dtype, shape, bad)
            assert ours == theirs
