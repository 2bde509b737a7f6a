"""Arrays of version 2 as other tools have written them: text, objects and categories in both orders.

The chunk is made as zarr-python 2 makes it: each codec of numcodecs gets what the one before it returned.
Arrays of several chunks are among the stores in ``tests/data``.
"""

from __future__ import annotations

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
SHAPE = (5, 7)
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


def document_of(kind: str, compressor: str, order: str, **changes: Any) -> dict[str, Any]:
    _, dtype, filter_, _ = KINDS[kind]
    packed = COMPRESSORS[compressor] and COMPRESSORS[compressor].get_config()
    layout = {"shape": list(SHAPE), "chunks": list(SHAPE), "dtype": dtype, "order": order, **changes}
    return zarray(**layout, fill_value=None, filters=[filter_.get_config()], compressor=packed)


def by_numcodecs(kind: str, compressor: str, order: str) -> dict[str, bytes]:
    """The keys and values of an array, as zarr-python 2 stores it."""
    values = KINDS[kind][0]
    # What zarr-python 3.0 gave the codecs of objects.
    data: Any = np.asarray(values.astype(object), order=order)  # type: ignore[call-overload]
    for codec in (KINDS[kind][2], COMPRESSORS[compressor]):
        data = data if codec is None else codec.encode(data)
    document = document_of(kind, compressor, order)
    return {".zarray": json.dumps(document).encode(), "0.0": bytes(numcodecs.compat.ensure_bytes(data))}


def check(found: Any, values: AnyArray) -> None:
    assert np.asarray(found).shape == values.shape
    assert np.asarray(found).tolist() == values.tolist()


def array_of(document: dict[str, Any], chunk: bytes, key: str = "0.0") -> xzarr3.Array:
    store = xzarr3.MemoryStore({".zarray": json.dumps(document).encode(), key: chunk})
    return xzarr3.open_array(store, mode="r+")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_zarr_python_2(kind: str, compressor: str, order: Any) -> None:
    stored = by_numcodecs(kind, compressor, order)
    store = xzarr3.MemoryStore(stored)
    values = KINDS[kind][0]
    array = xzarr3.open_array(store, mode="r+")
    check(array[...], values)
    check(array[1:4, ::2], values[1:4, ::2])
    # What is stored again is the same, and so is the document.
    array[...] = array[...]
    again = contents(store)
    assert again.keys() == stored.keys()
    assert again["0.0"] == stored["0.0"]
    assert json.loads(stored[".zarray"]).items() <= V2.hold(array.metadata)[".zarray"].items()
    # A copy in version 3 does without codecs that it lacks.
    copied: Any = xzarr3.copy(array, xzarr3.MemoryStore(), zarr_format=3)
    check(copied[...], values)
    assert copied.dtype == array.dtype
    names = ["transpose"] * (order == "F" and kind != "json2")
    names += [default_serializer(array.metadata.data_type).name]
    names += ["numcodecs.zlib"] * (compressor == "zlib")
    assert [codec.name for codec in copied.metadata.codecs] == names
    if not kind.endswith(" fixed") and (kind, order) != ("json2", "F"):  # json2 knows one order.
        made = xzarr3.create_array(
            xzarr3.MemoryStore(), data=values, chunks=SHAPE, dtype=KINDS[kind][3], zarr_format=2, order=order,
            compressors=COMPRESSORS[compressor], serializer=KINDS[kind][2],
        )  # fmt: skip
        assert contents(made.store)["0.0"] == stored["0.0"]
        assert V2.hold(made.metadata)[".zarray"]["filters"][0]["id"] == KINDS[kind][2].codec_id
    same: Any = xzarr3.copy(array, xzarr3.MemoryStore(), zarr_format=2)
    assert same.metadata.codecs == array.metadata.codecs
    check(same[...], values)


def test_an_order_that_json2_cannot_have() -> None:
    with pytest.raises(MetadataError, match="order 'C' with the codec 'json2'") as caught:
        xzarr3.create_array(
            xzarr3.MemoryStore(), shape=SHAPE, chunks=SHAPE, dtype="string", zarr_format=2, order="F",
            serializer=numcodecs.JSON(),
        )  # fmt: skip
    assert caught.value.field == "codecs[0]"


@pytest.mark.parametrize("order", ["C", "F"])
def test_rounded_numbers_are_in_the_order_of_the_document(order: str) -> None:
    """Whatever numcodecs, of some versions, makes of order F."""
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    filters = [{"id": "bitround", "keepbits": 9}]
    document = zarray(shape=[2, 3], dtype="<f4", fill_value=0.0, order=order, filters=filters)
    chunk = values.tobytes(order)  # type: ignore[arg-type]
    array = array_of(document, chunk)
    check(array[...], values)
    array[...] = values
    assert array.store.get("0.0") == chunk


@pytest.mark.parametrize(
    ("kind", "item"), [("vlen-utf8 fixed", "x" * (LONGEST + 1)), ("vlen-bytes fixed", b"x" * 100)]
)
def test_elements_longer_than_the_dtype(kind: str, item: Any) -> None:
    codec = KINDS[kind][2]
    document = document_of(kind, "none", "C", shape=[2], chunks=[2])
    for value, valid in ((item[1:], True), (item, False)):
        array = array_of(document, bytes(codec.encode(np.array([value, value[:1]], object))), "0")
        if valid:
            assert array[...].tolist() == [value, value[:1]]
        else:
            with pytest.raises(ChunkDecodeError, match="element of length"):
                array[...]
