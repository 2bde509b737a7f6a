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
from xzarr3.codecs import foreign
from xzarr3.errors import ChunkDecodeError, MetadataError, UnknownExtensionError

zarr = pytest.importorskip("zarr", minversion="3")


class Reversed(Codec):  # type: ignore[misc]
    """Reverses bytes, and puts a number before them."""

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
            raise ValueError("no mark")
        return data[:0:-1]


class Shaped(Reversed):
    """Stores the shape of the chunk that it gets, as codecs of images do."""

    codec_id = "shaped_of_tests"

    def encode(self, buf: Any) -> bytes:
        return bytes(buf.shape) + buf.tobytes()

    def decode(self, buf: Any, out: Any = None) -> Any:
        data = numcodecs.compat.ensure_bytes(buf)
        return np.frombuffer(data, np.uint8)[2:].reshape(*data[:2], -1)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(numcodecs.registry, "codec_registry", codec_registry | {
        each.codec_id: each for each in (Reversed, Shaped)
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
    options: Any = {"chunks": (4, 5), "serializer": Shaped(), "compressors": None}
    assert same_bits(xzarr3.create_array(xzarr3.MemoryStore(), data=VALUES, **options)[...], VALUES)


@pytest.mark.parametrize("damage", [b"", b"\7", b"\0" * 41, b"\7" * 42], ids=repr)
def test_damaged_chunks_of_codecs_of_numcodecs(damage: bytes) -> None:
    store = xzarr3.MemoryStore()
    options: Any = {"chunks": (4, 5), "serializer": Reversed(), "compressors": None}
    array = xzarr3.create_array(store, data=VALUES, **options)
    store.set("c/0/0", damage)
    with pytest.raises(ChunkDecodeError, match=r"c/0/0.*numcodecs\.reversed_of_tests"):
        array[...]


def test_codec_of_numcodecs_with_a_wrong_configuration() -> None:
    for configuration in ({"mark": 300}, {"unknown": 1}, {"mark": "x"}):
        document: Any = {"name": "numcodecs.reversed_of_tests", "configuration": configuration}
        with pytest.raises(MetadataError, match=r"reversed_of_tests.*not a valid configuration"):
            xzarr3.codecs.codec_from_json(document)


@pytest.mark.parametrize(
    "name", ["pickle", "msgpack2", "vlen-array", "categorize", "base64", "never_heard_of"]
)
def test_codecs_of_numcodecs_itself_are_not_taken_from_its_registry(name: str) -> None:
    with pytest.raises(UnknownExtensionError):
        xzarr3.codecs.codec_from_json({"name": f"numcodecs.{name}"})
    assert f"numcodecs.{name}" not in foreign.registered()


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


# imagecodecs


@pytest.fixture(scope="module")
def images() -> Any:
    of_zarr = pytest.importorskip("imagecodecs.zarr")
    of_zarr.register_codecs(verbose=False)
    return of_zarr


PICTURE = (np.add.outer(np.arange(40), np.arange(56)) % 251).astype("u1")


@pytest.mark.parametrize("name", ["Png", "Jpeg2k", "Jpegxl", "Lerc", "Qoi", "Webp", "Zfp", "Bitshuffle"])
def test_serializers_of_imagecodecs(name: str, images: Any, tmp_path: Path) -> None:
    values = PICTURE if name not in ("Qoi", "Webp") else np.stack([PICTURE] * 3, -1)
    if name == "Zfp":
        values = values.astype("f4")
    lossless = {"Jpeg2k": {"level": 0}, "Webp": {"lossless": True, "level": -1}, "Jpegxl": {"lossless": True}}
    serializer = getattr(images, name)(**lossless.get(name, {}))
    theirs = zarr.create_array(
        tmp_path / "a", shape=values.shape, chunks=(20, 56, *values.shape[2:]), dtype=values.dtype,
        serializer=serializer, compressors=None, fill_value=0,
    )  # fmt: skip
    theirs[...] = values
    ours = xzarr3.open_array(tmp_path / "a", mode="r+")
    assert same_bits(ours[...], theirs[...])
    ours[:5] = 3
    changed = values.copy()
    changed[:5] = 3
    assert same_bits(zarr.open_array(tmp_path / "a", mode="r")[...], changed)


@pytest.mark.parametrize("name", ["Brotli", "Snappy", "Lzf", "Deflate", "Zlibng", "Lz4f", "Blosc2"])
def test_compressors_of_imagecodecs(name: str, images: Any, tmp_path: Path) -> None:
    values = PICTURE.astype("i4")
    options: Any = {"compressors": getattr(images, name)(), "chunks": (20, 30), "shards": (40, 60)}
    theirs = zarr.create_array(tmp_path / "a", shape=values.shape, dtype="i4", **options)
    theirs[...] = values
    ours = xzarr3.open_array(tmp_path / "a", mode="r+")
    assert same_bits(ours[3:30, 7:40], values[3:30, 7:40])
    ours[...] = values[::-1]
    assert same_bits(zarr.open_array(tmp_path / "a", mode="r")[...], values[::-1])


def test_filters_of_imagecodecs(images: Any, tmp_path: Path) -> None:
    values = PICTURE.astype("i4")
    theirs = zarr.create_array(
        tmp_path / "a", shape=values.shape, chunks=(20, 30), dtype="i4", filters=[images.Delta(axis=0)]
    )
    theirs[...] = values
    ours = xzarr3.open_array(tmp_path / "a")
    assert same_bits(ours[...], values)

    async def within_a_loop() -> Any:
        return ours[5:9]

    assert same_bits(asyncio.run(within_a_loop()), values[5:9])
