"""Codecs of other packages: registered with numcodecs and zarr-python, or installed unbeknown to this one."""

import asyncio
import importlib.metadata
import json
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from _processes import printed_by
from _slow import slow
from _strategies import same_bits
from _things import refuses
from numcodecs.abc import Codec
from numcodecs.registry import codec_registry

import xzarr3
import xzarr3.versions
from xzarr3 import extensions
from xzarr3.codecs import codec_from_json, codec_names
from xzarr3.errors import ChunkDecodeError, MetadataError, UnknownExtensionError

VALUES = np.arange(63, dtype="i2").reshape(7, 9)


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


@pytest.fixture
def zarr() -> Any:
    return pytest.importorskip("zarr", minversion="3")


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<f8", "|u1"])
@pytest.mark.parametrize(("codec", "delta"), [  # zarr-python drops the shape of what a filter returns.
    (Reversed(3), False), (Reversed(3), True), (Shaped(), False),
], ids=["bytes", "delta", "shaped"])  # fmt: skip
def test_numcodecs_in_version_2(dtype: str, codec: Any, delta: bool, zarr: Any, tmp_path: Path) -> None:
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
    refuses(array.get, [...], ChunkDecodeError, r"c/0/0.*numcodecs\.reversed_of_tests")


def test_an_error_that_holds_the_whole_chunk_is_cut() -> None:
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(store, data=np.zeros(5000, "u1"), serializer=Reversed(), compressors=None)
    store.set("c/0", bytes(5001))
    (error,) = refuses(array.get, [...], ChunkDecodeError, r"ValueError: no mark in b'\\x00.*\.\.\.$")
    assert len(str(error)) < 400
    wrong = [{"mark": 300}, {"unknown": 1}, {"mark": "x"}, {"mark": 10**4000}]
    documents: Any = [{"name": "numcodecs.reversed_of_tests", "configuration": each} for each in wrong]
    refuses(codec_from_json, documents, MetadataError, r"reversed_of_tests.*not a valid configuration")
    (error,) = refuses(codec_from_json, documents[3:], MetadataError, r"ValueError: 1000.*\.\.\.")
    assert len(str(error)) < 700


def test_nothing_is_imported_that_a_document_names() -> None:
    code = (
        "import sys, xzarr3\n"
        "for name in ('os:system', 'antigravity', 'numcodecs.antigravity', 'this', 'numcodecs.this'):\n"
        "    try: xzarr3.codecs.codec_from_json({'name': name})\n"
        "    except xzarr3.errors.UnknownExtensionError: pass\n"
        "print({'antigravity', 'this', 'zarr'} & {*sys.modules})"
    )
    assert printed_by(code) == ["set()"]


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
def test_codecs_of_imagecodecs(name: str, images: Any, zarr: Any, tmp_path: Path) -> None:
    codec = getattr(images, name)(**LOSSLESS.get(name, {}))
    values = PICTURE if name in SERIALIZERS else PICTURE.astype("i4")
    values = np.stack([values] * 3, -1) if name in ("Qoi", "Webp") else values
    values = values.astype("f4") if name == "Zfp" else values
    options: dict[str, Any] = {"chunks": (20, 30), "filters": [codec]}
    if name in SERIALIZERS:
        options = {"chunks": (20, 56, *values.shape[2:]), "serializer": codec, "compressors": None}
    elif name in COMPRESSORS:
        options = {"chunks": (20, 30), "shards": (40, 60), "compressors": codec}
    options |= {"shape": values.shape, "dtype": values.dtype, "fill_value": 0}
    theirs = zarr.create_array(tmp_path / "a", **options)
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


CODEC = """
from dataclasses import dataclass
from xzarr3.codecs import BytesBytesCodec

print("imported")

@dataclass(frozen=True)
class Flip(BytesBytesCodec):
    name = "example.flip"
    mask: int = 255

    def encoded_size(self, size):
        return size

    def max_encoded_size(self, size):
        return size

    def encode(self, data):
        return bytes(octet ^ self.mask for octet in bytes(data))

    def decode(self, data, limit):
        if len(data) > limit:
            raise self.too_large(limit, len(data))
        return self.encode(data)

class Unfinished(BytesBytesCodec):
    name = "example.unfinished"

class NoCodec:
    name = "example.no-codec"
"""
ENTRY_POINTS = {
    "example.flip": "example_codecs:Flip", "example.alias": "example_codecs:Flip",
    "example.unfinished": "example_codecs:Unfinished", "example.no-codec": "example_codecs:NoCodec",
    "example.missing": "example_codecs:Missing", "example.fails": "example_failing:Codec",
    "gzip": "example_failing:Codec",
}  # fmt: skip


def install(site: Path, name: str, modules: dict[str, str], entry_points: dict[str, str]) -> None:
    """What an installer leaves of a package: its modules and a directory that tells of it."""
    info = site / f"{name.replace('-', '_')}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n", encoding="utf-8")
    lines = [f"{codec} = {value}\n" for codec, value in entry_points.items()]
    (info / "entry_points.txt").write_text("[xzarr3.codecs]\n" + "".join(lines), encoding="utf-8")
    (info / "INSTALLER").write_text("by hand\n", encoding="utf-8")
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source, encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    modules = {"example_codecs": CODEC, "example_failing": "raise RuntimeError('no luck today')\n"}
    install(path, "example-codecs", modules, ENTRY_POINTS)
    return path


def run(site: Path, *arguments: str, code: str) -> str:
    return "\n".join(printed_by(code, *arguments, PYTHONPATH=os.pathsep.join([str(site), *sys.path])))


@pytest.mark.slow
def test_end_to_end(site: Path, tmp_path: Path) -> None:
    written = run(site, str(tmp_path), code="""
        import sys, numpy as np, xzarr3
        print("before", "example_codecs" in sys.modules)
        xzarr3.create_array(
            sys.argv[1], "a", data=np.arange(100, dtype="i4"), chunks=10, shards=50,
            compressors=[{"name": "example.flip", "configuration": {"mask": 15}}, "crc32c"],
        )
        xzarr3.create_array(sys.argv[1], "b", data=np.arange(10, dtype="i4"), compressors="example.flip")
    """)  # fmt: skip
    assert written.split() == ["before", "False", "imported"]
    document = json.loads((tmp_path / "a" / "zarr.json").read_text(encoding="utf-8"))
    codecs = document["codecs"][0]["configuration"]["codecs"]
    assert codecs[1] == {"name": "example.flip", "configuration": {"mask": 15}}
    chunk = next(path for path in (tmp_path / "b" / "c").rglob("*") if path.is_file())
    assert same_bits(np.frombuffer(chunk.read_bytes(), "u1") ^ 255, np.arange(10, dtype="<i4").view("u1"))
    read = run(site, str(tmp_path), code="""
        import sys, xzarr3
        array = xzarr3.open_array(sys.argv[1], "a", mode="r+")
        array[5:60] = array[5:60] * 2
        again = xzarr3.open_array(sys.argv[1], "a")
        print(again.get().sum(), again[59], xzarr3.open_array(sys.argv[1], "b")[7])
        print(xzarr3.codecs.parse_codec("example.flip"))
        from xzarr3.codecs import codec_names
        print("example.flip" in codec_names())
    """)  # fmt: skip
    total = 4950 + sum(range(5, 60))
    assert read == f"imported\n{total} 118 7\nFlip(mask=255)\nTrue"
    # Without the package, the error says which codec is missing.
    refuses(xzarr3.open_array, [str(tmp_path / "a")], UnknownExtensionError, r"example\.flip")


@pytest.mark.slow
def test_nothing_is_imported_before_it_is_named(site: Path, tmp_path: Path) -> None:
    printed = run(site, str(tmp_path), code="""
        import sys, numpy as np, xzarr3
        xzarr3.create_array(sys.argv[1], "a", data=np.arange(10), compressors=["gzip", "crc32c"])
        print(xzarr3.open_array(sys.argv[1], "a")[3])
        for name in ("example_codecs", "example_codecs:Flip", "os", "os:system", "example.flip2", "", "a b"):
            try:
                xzarr3.codecs.parse_codec({"name": name})
            except xzarr3.UnknownExtensionError as error:
                assert "example." in str(error)
            else:
                print("found", name)
        # A name of this package is not replaced.
        print(xzarr3.codecs.parse_codec("gzip"), {"example_codecs", "example_failing"} & set(sys.modules))
    """)  # fmt: skip
    assert printed == "3\nGzipCodec(level=5) set()"


@pytest.mark.parametrize(("name", "reason"), [
    slow("example.alias", "is not the codec 'example.alias'"), slow("example.unfinished", "is not the codec"),
    slow("example.no-codec", "is not the codec"), ("example.missing", "cannot be imported"),
    slow("example.fails", "no luck today"),
])  # fmt: skip
def test_packages_that_are_wrong(site: Path, name: str, reason: str) -> None:
    printed = run(site, name, code="""
        import json, sys, xzarr3
        from xzarr3.codecs import codec_from_json, parse_codec
        for data in ({"name": sys.argv[1]}, {"name": sys.argv[1], "must_understand": False}):
            try:
                codec_from_json(data)
            except xzarr3.MetadataError as error:
                print(json.dumps([type(error).__name__, str(error)]))
    """)  # fmt: skip
    found = [json.loads(line) for line in printed.splitlines() if line != "imported"]
    assert len(found) == 2  # That it may be ignored does not hide that it is broken.
    for kind, message in found:
        assert kind == "MetadataError"
        assert reason in message


def test_in_this_process(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = codec_names()
    monkeypatch.syspath_prepend(site)
    assert set(codec_names()) - set(before) >= {"example.flip"}
    (error,) = refuses(xzarr3.codecs.parse_codec, ["example.fails"], MetadataError, "no luck today")
    assert isinstance(error.__cause__, RuntimeError)
    assert "numcodecs.reversed_of_tests" in xzarr3.versions.versions()["codecs of other packages"]
    # No codec is installed by this project.
    points: Any = importlib.metadata.entry_points(group="xzarr3.codecs")
    assert not [point for point in points if point.dist is not None and point.dist.name == "xzarr3"]
