"""Codecs of other packages: one is installed here, and used by a process that knows nothing of it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _slow import slow

import xzarr3
from xzarr3 import MetadataError, UnknownExtensionError
from xzarr3.codecs import codec_names

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
    root = str(Path(xzarr3.__file__).parent.parent)
    path = os.pathsep.join([str(site), root, *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return child.stdout


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
    assert np.array_equal(
        np.frombuffer(chunk.read_bytes(), "u1") ^ 255, np.arange(10, dtype="<i4").view("u1")
    )
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
    assert read == f"imported\n{total} 118 7\nFlip(mask=255)\nTrue\n"
    # Without the package, the error says which codec is missing.
    with pytest.raises(UnknownExtensionError, match=r"example\.flip"):
        xzarr3.open_array(str(tmp_path), "a")


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
    assert printed == "3\nGzipCodec(level=5) set()\n"


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
    with pytest.raises(MetadataError, match="no luck today") as caught:
        xzarr3.codecs.parse_codec("example.fails")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_no_codec_is_installed_by_this_project() -> None:
    points: Any = importlib.metadata.entry_points(group="xzarr3.codecs")
    assert not [point for point in points if point.dist is not None and point.dist.name == "xzarr3"]
