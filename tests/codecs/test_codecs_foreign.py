"""Codecs that other packages registered with numcodecs and zarr-python."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from _strategies import same_bits
from numcodecs.abc import Codec
from numcodecs.registry import codec_registry

import xzarr3
import xzarr3.versions
from xzarr3 import extensions
from xzarr3.errors import ChunkDecodeError, MetadataError

zarr = pytest.importorskip("zarr", minversion="3")


class Reversed(Codec):  # type: ignore[misc]
    codec_id = "reversed_of_tests"

    def __init__(self, mark: int = 7) -> None:
        if not 0 <= mark < 256:
            raise ValueError(f"{mark} is no byte")
        self.mark = mark

    def encode(self, buf: Any) -> bytes:
        return bytes([self.mark]) + numcodecs.compat.ensure_bytes(buf)[::-1]

    def decode(self, buf: Any, out: Any = None) -> bytes:
        data = numcodecs.compat.ensure_bytes(buf)
        if data[0] != self.mark:
            raise ValueError(f"no mark in {bytes(data)!r}")
        return data[:0:-1]


class Shaped(Reversed):
    """Stores the shape of the chunk that it gets, as codecs of images do."""

    codec_id = "shaped_of_tests"

    def encode(self, buf: Any) -> bytes:
        return bytes(buf.shape) + buf.tobytes()

    def decode(self, buf: Any, out: Any = None) -> Any:
        data = numcodecs.compat.ensure_bytes(buf)
        return np.frombuffer(data, np.uint8)[2:].reshape(*data[:2], -1)


class Turned(Shaped):
    """Returns numbers that do not lie in C order, as codecs of images do that decode column by column."""

    codec_id = "turned_of_tests"

    def decode(self, buf: Any, out: Any = None) -> Any:
        return np.asfortranarray(super().decode(buf).view("i2"))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(numcodecs.registry, "codec_registry", codec_registry | {
        each.codec_id: each for each in (Reversed, Shaped, Turned)
    })  # fmt: skip
    extensions.forget()
    yield
    extensions.forget()


VALUES = np.arange(63, dtype="i2").reshape(7, 9)


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<f8", "|u1"])
@pytest.mark.parametrize(
    ("codec", "delta"),  # zarr-python passes on what a filter returns without its shape.
    [(Reversed(3), False), (Reversed(3), True), (Shaped(), False)],
    ids=["bytes", "delta", "shaped"],
)
def test_codecs_of_numcodecs_in_version_2(dtype: str, codec: Any, delta: bool, tmp_path: Path) -> None:
    filters = [numcodecs.Delta(dtype)] if delta else None
    values = VALUES.astype(dtype)
    options: Any = {"shape": values.shape, "chunks": (4, 5), "dtype": dtype, "zarr_format": 2}
    theirs = zarr.create_array(tmp_path / "a", compressors=codec, filters=filters, **options)
    theirs[...] = values
    ours = xzarr3.open_array(tmp_path / "a", mode="r+")
    assert same_bits(ours[...], values.astype(values.dtype.newbyteorder("=")))
    ours[2:6, 3:] = 5
    ours.attrs["title"] = "changed"
    values[2:6, 3:] = 5
    assert same_bits(zarr.open_array(tmp_path / "a", mode="r")[...].astype(dtype), values)
    assert same_bits(pickle.loads(pickle.dumps(ours))[...], ours[...])


def test_codecs_of_numcodecs_in_version_3() -> None:
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(store, data=VALUES, chunks=(4, 5), compressors=[Reversed(9), "zstd"])
    document = json.loads(bytes(store.get("zarr.json") or b""))
    assert document["codecs"][1] == {"name": "numcodecs.reversed_of_tests", "configuration": {"mark": 9}}
    assert same_bits(xzarr3.open_array(store)[...], VALUES)
    del document["codecs"][0]
    store.set("zarr.json", json.dumps(document).encode())
    assert same_bits(xzarr3.open_array(store)[1:3, 2], VALUES[1:3, 2])
    assert array.compressors[0].configuration() == {"mark": 9}
    for serializer in (Shaped(), Turned()):
        options: Any = {"chunks": (4, 5), "serializer": serializer, "compressors": None}
        assert same_bits(xzarr3.create_array(xzarr3.MemoryStore(), data=VALUES, **options)[...], VALUES)


@pytest.mark.parametrize("damage", [b"", b"\7", b"\0" * 41, b"\7" * 42], ids=repr)
def test_damaged_chunks_of_codecs_of_numcodecs(damage: bytes) -> None:
    store = xzarr3.MemoryStore()
    options: Any = {"chunks": (4, 5), "serializer": Reversed(), "compressors": None}
    array = xzarr3.create_array(store, data=VALUES, **options)
    store.set("c/0/0", damage)
    with pytest.raises(ChunkDecodeError, match=r"c/0/0.*numcodecs\.reversed_of_tests"):
        array[...]


def test_an_error_that_holds_the_whole_chunk_is_cut() -> None:
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(store, data=np.zeros(5000, "u1"), serializer=Reversed(), compressors=None)
    store.set("c/0", bytes(5001))
    with pytest.raises(ChunkDecodeError, match=r"ValueError: no mark in b'\\x00.*\.\.\.$") as raised:
        array[...]
    assert len(str(raised.value)) < 400
    document: Any = {"name": "numcodecs.reversed_of_tests", "configuration": {"mark": 10**4000}}
    with pytest.raises(MetadataError, match=r"ValueError: 1000.*\.\.\.") as refused:
        xzarr3.codecs.codec_from_json(document)
    assert len(str(refused.value)) < 700


def test_codec_of_numcodecs_with_a_wrong_configuration() -> None:
    for configuration in ({"mark": 300}, {"unknown": 1}, {"mark": "x"}):
        document: Any = {"name": "numcodecs.reversed_of_tests", "configuration": configuration}
        with pytest.raises(MetadataError, match=r"reversed_of_tests.*not a valid configuration"):
            xzarr3.codecs.codec_from_json(document)


def test_nothing_is_imported_that_a_document_names() -> None:
    code = (
        "import sys, xzarr3\n"
        "for name in ('os:system', 'antigravity', 'numcodecs.antigravity', 'this', 'numcodecs.this'):\n"
        "    try: xzarr3.codecs.codec_from_json({'name': name})\n"
        "    except xzarr3.errors.UnknownExtensionError: pass\n"
        "print({'antigravity', 'this', 'zarr'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.stdout.strip() == "set()", found


def test_codecs_of_other_packages_in_the_versions() -> None:
    assert "numcodecs.reversed_of_tests" in xzarr3.versions.versions()["codecs of other packages"]


@pytest.fixture(scope="module")
def images() -> Any:
    of_zarr = pytest.importorskip("imagecodecs.zarr")
    of_zarr.register_codecs(verbose=False)
    return of_zarr


PICTURE = (np.add.outer(np.arange(40), np.arange(56)) % 251).astype("u1")


SERIALIZERS = ("Png", "Jpeg2k", "Jpegxl", "Lerc", "Qoi", "Webp", "Zfp", "Bitshuffle")
COMPRESSORS = ("Brotli", "Snappy", "Lzf", "Deflate", "Zlibng", "Lz4f", "Blosc2")
LOSSLESS: dict[str, dict[str, Any]] = {
    "Jpeg2k": {"level": 0}, "Webp": {"lossless": True, "level": -1}, "Jpegxl": {"lossless": True},
    "Delta": {"axis": 0},
}  # fmt: skip


@pytest.mark.parametrize("name", [*SERIALIZERS, *COMPRESSORS, "Delta"])
def test_codecs_of_imagecodecs(name: str, images: Any, tmp_path: Path) -> None:
    codec = getattr(images, name)(**LOSSLESS.get(name, {}))
    values = PICTURE if name in SERIALIZERS else PICTURE.astype("i4")
    values = np.stack([values] * 3, -1) if name in ("Qoi", "Webp") else values
    values = values.astype("f4") if name == "Zfp" else values
    options: dict[str, Any] = {"chunks": (20, 30), "filters": [codec]}
    if name in SERIALIZERS:
        options = {"chunks": (20, 56, *values.shape[2:]), "serializer": codec, "compressors": None}
    elif name in COMPRESSORS:
        options = {"chunks": (20, 30), "shards": (40, 60), "compressors": codec}
    theirs = zarr.create_array(
        tmp_path / "a", shape=values.shape, dtype=values.dtype, fill_value=0, **options
    )
    theirs[...] = values
    ours = xzarr3.open_array(tmp_path / "a", mode="r+")
    assert same_bits(ours[...], values)
    assert same_bits(ours[3:30, 7:40], values[3:30, 7:40])

    async def within_a_loop() -> Any:
        return ours[5:9]

    assert same_bits(asyncio.run(within_a_loop()), values[5:9])
    ours[:25] = values[24::-1]
    changed = np.concatenate([values[24::-1], values[25:]])
    assert same_bits(zarr.open_array(tmp_path / "a", mode="r")[...], changed)
