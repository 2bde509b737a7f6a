"""Arrays of version 2 as other tools have written them: text, objects and categories in both orders.

The chunks are made as zarr-python 2 makes them: each codec of numcodecs gets what the one before it returned.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numcodecs
import numpy as np
import pytest
from _conformance import contents
from _documents import zarray

import xzarr3
from xzarr3 import ChunkDecodeError, MetadataError
from xzarr3.codecs import default_serializer
from xzarr3.formats.v2 import V2

AnyArray = np.ndarray[Any, Any]
SHAPE, CHUNKS = (5, 7), (2, 3)
WORDS = np.array(
    [[f"{i}{'é' if j % 2 else 'x'}{j}" * (1 + (i * j) % 3) if (i + j) % 4 else "" for j in range(7)]
     for i in range(5)], dtype=object
)  # fmt: skip
LABELS = sorted({*WORDS.ravel()} - {""})
OCTETS = np.fromiter((word.encode() for word in WORDS.ravel()), object, WORDS.size).reshape(SHAPE)
LONGEST = max(map(len, LABELS))

# Values, the dtype that the document names, the filter, and the data type to ask for here.
KINDS: dict[str, tuple[AnyArray, str, Any, str]] = {
    "vlen-utf8": (WORDS, "|O", numcodecs.VLenUTF8(), "string"),
    "vlen-bytes": (OCTETS, "|O", numcodecs.VLenBytes(), "bytes"),
    "json2": (WORDS, "|O", numcodecs.JSON(), "string"),
    "vlen-utf8 fixed": (
        WORDS.astype(f"<U{LONGEST}"), f"<U{LONGEST}", numcodecs.VLenUTF8(), f"<U{LONGEST}"
    ),
    "vlen-bytes fixed": (OCTETS.astype("S99"), "|S99", numcodecs.VLenBytes(), "|S99"),
}  # fmt: skip
COMPRESSORS: dict[str, Any] = {"none": None, "zlib": numcodecs.Zlib(1)}


def document_of(kind: str, compressor: str, order: str, chunks: tuple[int, ...] = CHUNKS) -> dict[str, Any]:
    values, dtype, filter_, _ = KINDS[kind]
    packed = COMPRESSORS[compressor] and COMPRESSORS[compressor].get_config()
    layout = {"shape": list(values.shape), "chunks": list(chunks), "dtype": dtype, "order": order}
    return zarray(**layout, fill_value=None, filters=[filter_.get_config()], compressor=packed)


def prepared(values: AnyArray, kind: str) -> AnyArray:
    """What zarr-python 3.0 gave the codecs of objects."""
    return values.astype(object) if kind in ("vlen-utf8 fixed", "vlen-bytes fixed") else values


def by_numcodecs(
    kind: str, compressor: str, order: str, chunks: tuple[int, ...] = CHUNKS
) -> dict[str, bytes]:
    """The keys and values of an array, as zarr-python 2 stores it."""
    values = KINDS[kind][0]
    stored = {".zarray": json.dumps(document_of(kind, compressor, order, chunks)).encode()}
    counts = [-(-length // chunk) for length, chunk in zip(SHAPE, chunks, strict=True)]
    for at in itertools.product(*map(range, counts)):
        whole = np.full(chunks, values[0, 1], values.dtype)
        part = values[tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, chunks, strict=True))]
        whole[tuple(map(slice, part.shape))] = part
        data: Any = np.asarray(prepared(whole, kind), order=order)  # type: ignore[call-overload]
        for codec in (KINDS[kind][2], COMPRESSORS[compressor]):
            data = data if codec is None else codec.encode(data)
        stored[".".join(map(str, at))] = bytes(numcodecs.compat.ensure_bytes(data))
    return stored


def read_by_numcodecs(stored: dict[str, bytes]) -> AnyArray:
    """An array as zarr-python 2 reads it."""
    document = json.loads(stored[".zarray"])
    shape, chunks = document["shape"], document["chunks"]
    codecs = [*(document["filters"] or []), *([document["compressor"]] if document["compressor"] else [])]
    result = np.empty(shape, document["dtype"])
    for at in itertools.product(*(range(-(-n // c)) for n, c in zip(shape, chunks, strict=True))):
        data: Any = stored[".".join(map(str, at))]
        for config in reversed(codecs):
            data = numcodecs.get_codec(config).decode(data)
        whole = numcodecs.compat.ensure_ndarray(data)
        whole = whole.astype(result.dtype) if whole.dtype.kind == "O" else whole.view(result.dtype)
        whole = whole.reshape(-1, order="A").reshape(chunks, order=document["order"])
        place = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, chunks, strict=True))
        result[place] = whole[tuple(slice(0, n) for n in result[place].shape)]
    return result


def store_of(stored: dict[str, bytes]) -> xzarr3.MemoryStore:
    return xzarr3.MemoryStore(stored)


def check(found: Any, values: AnyArray) -> None:
    assert np.asarray(found).shape == values.shape
    assert np.asarray(found).tolist() == values.tolist()


@pytest.mark.parametrize("chunks", [(2, 3), (2, 2), (5, 7), (1, 7)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_zarr_python_2(kind: str, compressor: str, order: str, chunks: tuple[int, ...]) -> None:
    stored = by_numcodecs(kind, compressor, order, chunks)
    store = store_of(stored)
    values = KINDS[kind][0]
    array = xzarr3.open_array(store, mode="r+")
    check(array[...], values)
    check(array[1:4, ::2], values[1:4, ::2])
    # What is stored again is the same, and so is the document.
    array[...] = array[...]
    again = contents(store)
    assert again.keys() == stored.keys()
    if chunks == SHAPE:  # No other elements are beyond the end of the array.
        assert again["0.0"] == stored["0.0"]
    check(xzarr3.open_array(store)[...], values)
    assert json.loads(stored[".zarray"]).items() <= V2.hold(array.metadata)[".zarray"].items()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith(" fixed")])
def test_what_is_written_is_read_by_zarr_python_2(kind: str, compressor: str, order: str) -> None:
    values, _, filter_, dtype = KINDS[kind]
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(
        store, shape=SHAPE, chunks=CHUNKS, dtype=dtype, zarr_format=2,
        order="C" if kind == "json2" else order,
        compressors=COMPRESSORS[compressor],
        serializer=filter_,
    )  # fmt: skip
    array.write_empty_chunks = True
    array[...] = values
    check(read_by_numcodecs(contents(store)), values)
    check(xzarr3.open_array(store)[...], values)
    document = json.loads(contents(store)[".zarray"])
    assert [*(document["filters"] or []), document["compressor"]][0]["id"] == filter_.codec_id
    # For chunks of json2 there is but one order, and zarr-python would take another one for theirs.
    assert document["order"] == ("C" if kind == "json2" else order)


def test_order_of_json2_by_hand() -> None:
    for order in ("C", "F"):
        document = {**document_of("json2", "none", order), "shape": [2, 3]}
        chunk = b'[["a","b","c"],["d","","f"],"|O",[2,3]]'
        array = xzarr3.open_array(store_of({".zarray": json.dumps(document).encode(), "0.0": chunk}))
        assert array[...].tolist() == [["a", "b", "c"], ["d", "", "f"]]
        assert array.metadata.codecs[0].name == "numcodecs.json2"
        assert V2.hold(array.metadata)[".zarray"]["order"] == order


def test_objects_that_are_no_text_are_refused_and_named() -> None:
    document = {**document_of("json2", "none", "C"), "shape": [2, 3]}
    chunk = b'[["a","b","c"],[1,null,{}],"|O",[2,3]]'
    array = xzarr3.open_array(store_of({".zarray": json.dumps(document).encode(), "0.0": chunk}))
    with pytest.raises(ChunkDecodeError, match="an element is no text, and other objects are not read: 1"):
        array[...]


def test_an_order_that_json2_cannot_have() -> None:
    with pytest.raises(MetadataError, match="order 'C' with the codec 'json2'") as caught:
        xzarr3.create_array(
            xzarr3.MemoryStore(), shape=SHAPE, chunks=CHUNKS, dtype="string", zarr_format=2, order="F",
            serializer=numcodecs.JSON(),
        )  # fmt: skip
    assert caught.value.field == "codecs[0]"


@pytest.mark.parametrize("codec", [numcodecs.Categorize(["sea"], "O"), numcodecs.Base64()], ids=str)
def test_codecs_that_are_not_read(codec: Any) -> None:
    document = zarray(shape=[2], chunks=[2], dtype="|O", fill_value=None, filters=[codec.get_config()])
    with pytest.raises(MetadataError) as caught:
        xzarr3.open_array(store_of({".zarray": json.dumps(document).encode()}))
    assert codec.codec_id in str(caught.value) or "no filter says" in str(caught.value)


@pytest.mark.parametrize("order", ["C", "F"])
def test_rounded_numbers_are_in_the_order_of_the_document(order: str) -> None:
    """Whatever numcodecs, of some versions, makes of order F."""
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    filters = [{"id": "bitround", "keepbits": 9}]
    document = zarray(shape=[2, 3], dtype="<f4", fill_value=0.0, order=order, filters=filters)
    store = store_of({".zarray": json.dumps(document).encode(), "0.0": values.tobytes(order)})  # type: ignore[arg-type]
    array = xzarr3.open_array(store, mode="r+")
    check(array[...], values)
    array[...] = values
    assert contents(store)["0.0"] == values.tobytes(order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "item"), [("vlen-utf8 fixed", "x" * (LONGEST + 1)), ("vlen-bytes fixed", b"x" * 100)]
)
def test_elements_longer_than_the_dtype(kind: str, item: Any) -> None:
    codec = KINDS[kind][2]
    document = {**document_of(kind, "none", "C"), "shape": [2], "chunks": [2]}
    for value, valid in ((item[1:], True), (item, False)):
        chunk = bytes(codec.encode(np.array([value, value[:1]], object)))
        array = xzarr3.open_array(store_of({".zarray": json.dumps(document).encode(), "0": chunk}))
        if valid:
            assert array[...].tolist() == [value, value[:1]]
        else:
            with pytest.raises(ChunkDecodeError, match="element of length"):
                array[...]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_copies_in_version_3_do_without_codecs_that_it_lacks(kind: str, compressor: str, order: str) -> None:
    values = KINDS[kind][0]
    array = xzarr3.open_array(store_of(by_numcodecs(kind, compressor, order)))
    copied = xzarr3.copy(array, xzarr3.MemoryStore(), zarr_format=3)
    assert isinstance(copied, xzarr3.Array)
    check(copied[...], values)
    assert copied.dtype == array.dtype
    names = ["transpose"] * (order == "F" and kind != "json2")
    names += [default_serializer(array.metadata.data_type).name]
    names += ["numcodecs.zlib"] * (compressor == "zlib")
    assert [codec.name for codec in copied.metadata.codecs] == names
    again = xzarr3.copy(array, xzarr3.MemoryStore(), zarr_format=2)
    assert isinstance(again, xzarr3.Array)
    assert again.metadata.codecs == array.metadata.codecs
    check(again[...], values)
