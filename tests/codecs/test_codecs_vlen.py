"""Codecs of elements of no fixed size: text, bytes, objects; and what is stored of any other data type."""

import json
import pickle
import struct
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from _chains import check_array, spec_of
from _strategies import attempt, chunk_document, same_bits, stored
from _things import refused, refuses
from hypothesis import given
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkDecodeError, ChunkEncodeError, MetadataError
from xzarr3.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, Json2Codec, ShardingCodec
from xzarr3.codecs import vlen as vlen_module
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.codecs.vlen import VLenBytesCodec, VLenUTF8Codec
from xzarr3.codecs.zstd import ZstdCodec
from xzarr3.dtypes import parse_dtype

ARRAY_TYPE = np.dtypes.StringDType()
STRING, BYTES, INT = "string", "bytes", "int16"
TEXT = [["", "a", "bc"], ["é\0", "\0", "𝄞 clef " * 50]]
CODECS: dict[str, Any] = {"string": VLenUTF8Codec(), "bytes": VLenBytesCodec()}
PEERS = {"string": numcodecs.VLenUTF8(), "bytes": numcodecs.VLenBytes()}
ITEMS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.one_of(st.text(max_size=8), st.text(alphabet="a\0é𝄞", max_size=300)),
    "bytes": st.binary(max_size=30),
}
LAYOUTS: list[dict[str, Any]] = [
    {"chunks": (2, 3)}, {"chunks": (2, 3), "shards": (4, 6)}, {"chunks": (5, 7), "compressors": None},
    {"chunks": (1, 2), "shards": (5, 6), "compressors": None},
    {"chunks": (3, 3), "filters": TransposeCodec((1, 0)), "compressors": [BloscCodec("lz4"), Crc32cCodec()]},
]  # fmt: skip


def vlen(items: list[bytes], number: int | None = None) -> bytes:
    head = struct.pack("<I", len(items) if number is None else number)
    return head + b"".join(struct.pack("<I", len(item)) + item for item in items)


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_any_elements(name: str, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), max_size=3).map(tuple))
    size = int(np.prod(shape))
    items = data.draw(st.lists(ITEMS[name], min_size=size, max_size=size))
    spec = spec_of(name, shape)
    values = np.fromiter(items, object, size).reshape(shape).astype(spec.dtype)
    swap = TransposeCodec(tuple(data.draw(st.permutations(range(len(shape))))))
    after = st.lists(st.sampled_from([ZstdCodec(), GzipCodec(1), BloscCodec(), Crc32cCodec()]), max_size=2)
    codecs: tuple[Any, ...] = (swap, CODECS[name], *data.draw(after))
    if data.draw(st.booleans()):
        codecs = (ShardingCodec((1,) * len(shape), codecs),)
    chain = CodecChain(codecs, spec)
    assert chain.encoded_size is None
    assert not chain.is_plain
    found = chain.decode(chain.encode(values))
    assert (found.shape, found.dtype, found.reshape(-1).tolist()) == (shape, values.dtype, items)
    # Elements that are not next to each other in memory.
    doubled = np.repeat(values.reshape(-1), 2)[::2].reshape(shape)
    assert bytes(chain.encode(doubled)) == bytes(chain.encode(values))
    flat = CodecChain((CODECS[name],), spec_of(name, (size,)))
    ours, theirs = flat.encode(values.reshape(-1)), PEERS[name].encode(np.fromiter(items, object, size))
    assert bytes(ours) == bytes(theirs)
    assert PEERS[name].decode(ours).tolist() == flat.decode(theirs).tolist() == items


@pytest.mark.parametrize("bad", [
    b"", b"\2", b"\2\0\0", b"\2\0\0\0", vlen([b"a"], 2), vlen([b"a"]), vlen([b"a", b"b", b"c"]),
    vlen([b"a", b"b", b"c"], 2), vlen([b"a", b"b"], 3), vlen([b"a", b"b"])[:-1], vlen([b"a", b"b"]) + b"\0",
    vlen([b"a", b"b"]) + bytes(4), vlen([b"a", b""])[:-1], vlen([b"a"], 2) + struct.pack("<I", 2**32 - 1),
    vlen([b"a"], 2) + struct.pack("<I", 36), vlen([b"a"], 2) + struct.pack("<I", 32),
    vlen([b"a"], 2) + struct.pack("<I", 5) + b"four", vlen([b"x" * 32, b"y" * 32], 2**32 - 1),
    struct.pack(">I", 2) + vlen([b"a", b"b"])[4:],
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("name", CODECS)
def test_chunks_that_are_not_valid(name: str, bad: bytes) -> None:
    chain = CodecChain((CODECS[name],), spec_of(parse_dtype(name), (2,)))
    for codecs in (chain, CodecChain((CODECS[name], GzipCodec()), chain.spec)):
        value = bad if codecs is chain else zlib.compress(bad, wbits=31)
        (error,) = refuses(codecs.decode, [value], ChunkDecodeError)
        assert error.codec == CODECS[name].name
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_text_that_is_not_utf_8() -> None:
    chain, octets = (CodecChain((CODECS[name],), spec_of(name, (2,))) for name in CODECS)
    for bad in (b"\xff", b"\xc3", b"a\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80\x80"):
        refuses(chain.decode, (vlen([bad, b"a"]), vlen([b"a", bad])), ChunkDecodeError, "utf-8")
        assert octets.decode(vlen([bad, b"a"])).tolist() == [bad, b"a"]  # As bytes they are as good as any.


@pytest.mark.parametrize(("name", "values"), [
    ("string", [1, "a"]), ("string", [b"a", "b"]), ("string", [None, "a"]), ("string", ["a", "\ud800"]),
    ("bytes", ["a", b"b"]), ("bytes", [None, b"b"]), ("bytes", [0, b"b"]), ("bytes", [[1], b"b"]),
], ids=repr)  # fmt: skip
def test_elements_of_another_type(name: str, values: Any) -> None:
    with pytest.raises(ChunkEncodeError) as caught:
        CODECS[name].encode(np.array(values, object), spec_of(name, (2,)))
    assert caught.value.codec == CODECS[name].name


def test_more_than_a_chunk_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlen_module, "MAX_VARIABLE", 30)
    for name, item in (("string", "é"), ("bytes", b"xx")):
        spec = spec_of(name, (3,))
        for times, size in ((2, 24), (5, 30), (6, 32)):
            values = np.fromiter([item * times, item, item], object, 3).astype(spec.dtype)
            error = attempt(lambda v=values, s=spec, n=name: CODECS[n].encode(v, s), ChunkEncodeError)[1]
            assert (error is None) == (size <= 30)


def test_chains_that_do_not_fit() -> None:
    recode, delta = xzarr3.codecs.AsTypeCodec("U5", "<i8"), xzarr3.codecs.DeltaCodec("<i8")
    for error in refuses(lambda given: CodecChain(given[0], spec_of(given[1], (2,))), [
        ((BytesCodec(),), STRING), ((BytesCodec(),), BYTES), ((BytesCodec(None),), STRING),
        ((VLenUTF8Codec(),), INT), ((VLenUTF8Codec(),), BYTES), ((VLenBytesCodec(),), STRING),
        ((Json2Codec(),), BYTES), ((Json2Codec(),), INT), ((delta, VLenBytesCodec()), BYTES),
        ((recode, VLenUTF8Codec()), STRING), ((ShardingCodec((1,), (BytesCodec(),)),), STRING),
    ], MetadataError):  # fmt: skip
        assert error.accepted
        assert str(error.field).startswith("codecs[0]")
    refused(MetadataError, "vlen-utf8", lambda: CodecChain((BytesCodec(),), spec_of(STRING, (2,))))
    refused(MetadataError, "too many", lambda: CodecChain((VLenUTF8Codec(),), spec_of(STRING, (2**31, 2))))


def test_the_codec_of_a_data_type() -> None:
    expected = {**CODECS, **dict.fromkeys(("int16", "U3", "S3", "r24"), BytesCodec())}
    for name, codec in expected.items():
        assert xzarr3.codecs.default_serializer(parse_dtype(name)) == codec
        CodecChain((codec,), spec_of(name, (2,)))
    shuffle = xzarr3.codecs.ShuffleCodec
    for name, codec in CODECS.items():  # Elements of no fixed size are not regrouped.
        chain = CodecChain((codec, BloscCodec(), shuffle()), spec_of(name, (2,)))
        assert chain.codecs[1:] == (BloscCodec(shuffle="bitshuffle", typesize=1), shuffle(1))


def words(name: str) -> tuple[Any, Any]:
    letter: Any = "é" if name == "string" else b"\xff"
    values = np.fromiter((letter * (at % 7) for at in range(70)), object, 70).reshape(10, 7)
    return values.astype(parse_dtype(name).to_native_dtype()), letter


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", CODECS)
def test_arrays(name: str, layout: Any) -> None:
    values, letter = words(name)
    check_array(np.hstack([values, values[::-1]]), letter * 3, dtype=name, serializer=CODECS[name], **layout)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", CODECS)
def test_with_zarr_python(name: str, layout: Any, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.1")
    if "filters" in layout and tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 4):
        pytest.skip("zarr-python 3.1 encodes transposed text in another order than it decodes it")
    values, letter = words(name)
    options = {"shape": values.shape, "dtype": name, "serializer": CODECS[name], **layout}
    xzarr3.create_array(tmp_path / "ours", fill_value=letter, **options)[:4] = values[:4]
    expected = values.copy()
    expected[4:] = letter
    assert zarr.open_array(tmp_path / "ours", mode="r")[...].tolist() == expected.tolist()
    # And the reverse: the document says how, the chunks are its own.
    document = json.loads((tmp_path / "ours" / "zarr.json").read_text())
    if name == "bytes":
        document["data_type"] = "variable_length_bytes"
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "zarr.json").write_text(json.dumps(document))
    zarr.open_array(tmp_path / "theirs", mode="r+")[:4] = values[:4]
    assert xzarr3.open_array(tmp_path / "theirs")[...].tolist() == expected.tolist()


def test_text_as_json() -> None:
    values = np.array(TEXT, ARRAY_TYPE)
    chain = CodecChain((Json2Codec(),), spec_of(STRING, (2, 3)))
    data = bytes(numcodecs.JSON().encode(np.array(TEXT, object)))
    assert bytes(chain.encode(values)) == data
    found = chain.decode(data)
    assert (found.dtype, found.tolist()) == (ARRAY_TYPE, TEXT)
    decode = partial(Json2Codec().decode, spec=spec_of(STRING, (2,)))
    no_text = [b'["a",1,"|O",[2]]', b'["a",null,"|O",[2]]', b'[{"b":[2]},"a","|O",[2]]']
    refuses(decode, [*no_text, b'[["b"],"a","|O",[2]]'], ChunkDecodeError, "an element is no text")
    refuses(decode, [b'["a","\\ud800","|O",[2]]'], ChunkDecodeError)


@pytest.mark.parametrize("bad", [
    b"", b"5", b"{}", b"[]", b'["|O",[2,2]]', b'[[1,2],[3,4],"|O"]', b'[[1,2],[3,4],"|O",[2,2]', b"\xff",
    b'[[1,2],[3,4],"|O",[4]]', b'[[1,2],[3,4],"|O",[2,3]]', b'[[1,2],[3],"|O",[2,2]]',
    b'[[1,2],5,"|O",[2,2]]', b'[[1,2],"ab","|O",[2,2]]', b'[[1,2],[3,4],[5,6],"|O",[2,2]]',
    b'[[1,2],[3,4],"|O",2]', b'[[1,2],[3,4],"|O",[2,2]]x', b"[" * 100_000,
    b"[[" + b"1" * 5000 + b",1],[1,1]]", b'[[1,2],[3,4],"|O",[2,2.5]]', b'[[1,2],[3,4,5],"|O",[2,2]]',
    b"[" * 20_000 + b"]" * 20_000, '[[1,2],[3,4],"|O",[2,2]]'.encode("utf-16"),
], ids=lambda bad: repr(bad[:30]))  # fmt: skip
def test_json_that_is_not_valid(bad: bytes) -> None:
    (error,) = refuses(CodecChain((Json2Codec(),), spec_of(STRING, (2, 2))).decode, [bad], ChunkDecodeError)
    assert error.codec == "numcodecs.json2"


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("dtype", [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "U4", "S5", "V3",
    "M8[ns]", "m8[10s]", "m8", [("a", "i4"), ("b", "S3")], [("a", "u1"), ("b", "S3")],
    [("a", "f8"), ("b", [("c", "U2"), ("d", "M8[s]")]), ("e", "i2")],
], ids=str)  # fmt: skip
def test_bytes_of_any_dtype(dtype: Any, endian: str) -> None:
    native = np.dtype(dtype)
    data_type = parse_dtype(native)
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 2 if native.kind == "b" else 100, (3, 4, max(native.itemsize, 1)), "u1")
    if native.kind == "U":
        raw[..., 1::4] = raw[..., 2::4] = raw[..., 3::4] = 0
    values = np.ascontiguousarray(raw).view(native)[..., 0]
    if native.names and "b" in native.names and native["b"].names:
        values["b"]["c"] = "é𝄞"
    chain = CodecChain((BytesCodec(endian),), spec_of(data_type, (3, 4)))
    data = bytes(chain.encode(values))
    assert data == (values if endian == sys.byteorder else values.byteswap()).tobytes()
    assert chain.encoded_size == len(data)
    assert chain.is_plain or (dtype, endian) == ("m8", "big")  # numpy does not swap these.
    ordered = native.newbyteorder() != native
    assert chain.codecs == (BytesCodec(endian if ordered else None),)
    unsaid = attempt(lambda: CodecChain((BytesCodec(None),), chain.spec), MetadataError)[1]
    assert (unsaid is not None) == ordered
    options = {"serializer": BytesCodec(endian), "compressors": None}
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=values, **options)
    assert bytes(array.store.get("c/0/0") or b"") == data
    assert same_bits(array[...], values)


@pytest.mark.parametrize("after", [
    (BytesCodec(None),), (BytesCodec(None), ZstdCodec()), (BytesCodec(None), BloscCodec()),
    (BytesCodec(None), GzipCodec(), Crc32cCodec()), (TransposeCodec((0,)), BytesCodec(None)),
    (xzarr3.codecs.AsTypeCodec("|b1", "|b1"), BytesCodec(None)),
], ids=["bytes", "zstd", "blosc", "gzip+crc32c", "transpose", "astype"])  # fmt: skip
def test_truth_values_are_0_or_1(after: tuple[Any, ...]) -> None:
    """Any other byte means true, as it does to those who store a mask of 0 and 255."""
    octets = np.array([0, 1, 2, 0, 255, 128], "u1")
    store = xzarr3.MemoryStore()
    for number, codecs in enumerate((after, (ShardingCodec((2,), after),))):
        chain = CodecChain(codecs, spec_of("bool", (6,)))
        # numpy takes the array for one of truth values, and hands its bytes on.
        stored_bytes = bytes(chain.encode(octets.view(bool)))
        assert same_bits(chain.decode(stored_bytes), octets != 0)
        filters = [codec for codec in codecs if isinstance(codec, xzarr3.codecs.ArrayArrayCodec)]
        serializer, *rest = codecs[len(filters) :]
        options = {"filters": filters, "serializer": serializer, "compressors": rest}
        array = xzarr3.create_array(store, f"{number}", shape=6, chunks=6, dtype=bool, **options)
        store.set(f"{number}/c/0", stored_bytes)
        for selection in (..., slice(1, 3), slice(None, None, -3), 4):
            assert same_bits(array[selection], (octets != 0)[selection])
        out = np.empty(6, bool)
        array.get(out=out)
        assert same_bits(out, octets != 0)


def test_bits_that_mean_nothing_are_cleared() -> None:
    spec = spec_of("int4")
    values = np.array([-8, -1, 0, 7]).astype(spec.dtype)
    octets = bytes([0x18, 0xAF, 0xF0, 0x07])
    plain = (BytesCodec(None),)
    for codecs in (plain, (*plain, ZstdCodec()), (ShardingCodec((2,), plain),)):
        chain = CodecChain(codecs, spec)
        assert chain.is_plain is (codecs == plain)
        assert chain.decode(chain.encode(values)).tolist() == values.tolist()
    assert CodecChain(plain, spec).decode(octets).tolist() == values.tolist()
    array = stored(chunk_document("int4", (4,), ["bytes"]), {"c/0": octets})
    assert array[1:3].tolist() == [-1, 0]
