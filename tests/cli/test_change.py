"""The commands ``copy``, ``consolidate`` and ``recover``."""

import json
from pathlib import Path
from typing import Any

import pytest

import xzarr3


@pytest.mark.parametrize(
    ("options", "layouts"),
    [
        ("--chunks time=4,lat=6", {"sst": ((4, 6, 12), None), "lat": ((6,), None)}),
        ("--chunks 4,3,12 --source-path sst", {"": ((4, 3, 12), None)}),
        ("--chunks 1kB", {"lat": ((6,), None)}),
        ("--chunks auto", {"sst": ((8, 6, 12), None)}),
        ("--chunks time=2,lat=2 --shards time=8,lat=6", {"deep/salt": ((2, 2), (8, 6))}),
    ],
)
def test_chunks_and_shards(options: str, layouts: dict[str, Any], folder: Path, call: Any) -> None:
    status, _, err = call("copy", "ocean.zarr", "r.zarr", *options.split())
    assert (status, err) == (0, "")
    for path, (chunks, shards) in layouts.items():
        array = xzarr3.open_array("r.zarr", path)
        assert (array.chunks, array.shards) == (chunks, shards)
    source = "sst" if "--source-path" in options else ""
    found = xzarr3.diff("ocean.zarr", "r.zarr", source, b_path="", encoding=False)
    assert found.ok, str(found)


def test_resume_goes_on_and_keeps_what_is_finished(folder: Path, call: Any) -> None:
    given = ("copy", "ocean.zarr", "r.zarr", "--chunks", "time=4")
    path = Path("ocean.zarr/sst/c/3/1/0")
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    assert call(*given, "--resume")[0] == 1
    assert not Path("r.zarr/zarr.json").exists()
    path.write_bytes(whole)
    assert call(*given, "--resume", "-q") == (0, "", "")
    assert call(*given, "--resume", "-q") == (0, "", "")
    status, _, err = call(*given)
    assert (status, "--resume" in err) == (1, True)
    assert xzarr3.diff("ocean.zarr", "r.zarr", encoding=False).ok


def test_advice_gives_each_array_its_layout(folder: Path, call: Any) -> None:
    status, _, err = call("copy", "ocean.zarr", "r.zarr", "--advice", "--access", "series")
    assert (status, err) == (0, "")
    for path in ("sst", "deep/salt"):
        advice = xzarr3.advise(xzarr3.open_array("ocean.zarr", path), access={"series": 1})
        assert xzarr3.open_array("r.zarr", path).chunks == advice.best.chunks
    assert xzarr3.diff("ocean.zarr", "r.zarr", encoding=False).ok
    assert call("copy", "ocean.zarr/sst", "one.zarr", "--advice", "-q") == (0, "", "")
    assert xzarr3.open_array("one.zarr").chunks == (8, 6, 12)
    xzarr3.create_group("empty.zarr")
    status, _, err = call("copy", "empty.zarr", "none.zarr", "--advice")
    assert (status, "no array to advise on" in err, Path("none.zarr").exists()) == (1, True, False)


def test_codecs(folder: Path, call: Any) -> None:
    gzip = json.dumps({"name": "gzip", "configuration": {"level": 1}})
    delta = json.dumps({"id": "delta", "dtype": "<i8"})
    quiet = ("copy", "ocean.zarr", "r.zarr", "-q", "--overwrite")
    assert call(*quiet, "--compressor", "crc32c", "--compressor", gzip)[0] == 0
    assert [each.name for each in xzarr3.open_array("r.zarr", "sst").compressors] == ["crc32c", "gzip"]
    assert xzarr3.diff("ocean.zarr", "r.zarr", encoding=False).ok
    assert call(*quiet, "--compressor", "none")[0] == 0
    assert xzarr3.open_array("r.zarr", "sst").compressors == ()
    given = ("--source-path", "time", "--path", "deep/t", "--filter", delta, "--serializer", "bytes")
    assert call("copy", "ocean.zarr", "s.zarr", "-q", "--format", "2", *given) == (0, "", "")
    assert json.loads(Path("s.zarr/deep/t/.zarray").read_text())["filters"] == [json.loads(delta)]
    given = ("copy", "s.zarr", "n.zarr", "--filter", "none", "--compressor", "gzip", "--format", "3-draft")
    assert call(*given)[0] == 0
    copied = xzarr3.open_array("n.zarr", "deep/t")
    assert (copied.filters, copied[...].tolist()) == ((), list(range(8)))


def test_json_has_the_nodes(folder: Path, call: Any) -> None:
    status, out, err = call("copy", "ocean.zarr", "r.zarr", "--json", "--format", "2")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["target"] == "r.zarr"
    assert {each["path"] for each in found["nodes"]} == {"", "deep", "deep/salt", "lat", "sst", "time"}
    assert {each["zarr_format"] for each in found["nodes"]} == {2}


def test_consolidate(folder: Path, call: Any) -> None:
    assert call("consolidate", "ocean.zarr") == (0, "consolidated metadata of 5 nodes written to /\n", "")
    assert xzarr3.open_group("ocean.zarr").consolidated
    assert json.loads(call("consolidate", "ocean.zarr", "deep", "--json")[1]) == {"path": "deep", "nodes": 1}


@pytest.mark.parametrize("where", ["directory", "memory"])
def test_recover_of_what_is_not_there_says_so(where: str, tmp_path: Path, call: Any) -> None:
    place = str(tmp_path / "no.zarr") if where == "directory" else f"memory://{tmp_path.name}/no.zarr"
    with pytest.raises(xzarr3.NodeNotFoundError, match=r"nothing is stored in .*no\.zarr"):
        xzarr3.recover(place)
    status, out, err = call("recover", place)
    assert (status, out) == (1, "")
    assert err.startswith("xzarr3: nothing is stored in ")
    xzarr3.create_group(place)
    assert call("recover", place) == (0, "nothing was left to finish\n", "")
    assert json.loads(call("recover", place, "--json")[1]) == {"recovered": []}


def test_a_copy_goes_on_with_the_same_advice(folder: Path, call: Any, monkeypatch: Any) -> None:
    given = ("copy", "ocean.zarr", "r.zarr", "--advice", "--resume", "-q")
    path = Path("ocean.zarr/sst/c/3/1/0")
    whole, advice = path.read_bytes(), {"chunks": [4, 3, 6], "shards": None, "compressors": ["gzip"]}
    monkeypatch.setattr("xzarr3.cli.change._advised", lambda *given: {"sst": dict(advice)})
    path.write_bytes(b"damaged")
    assert call(*given)[0] == 1
    path.write_bytes(whole)
    advice["compressors"] = ["zstd"]
    status, _, err = call(*given)
    assert (status, "the settings differ" in err) == (1, True)
    advice["compressors"] = ["gzip"]
    assert call(*given) == (0, "", "")
    assert [codec.name for codec in xzarr3.open_array("r.zarr", "sst").compressors] == ["gzip"]
    assert xzarr3.diff("ocean.zarr", "r.zarr", encoding=False).ok
