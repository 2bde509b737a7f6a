"""The commands one by one: what they find is tested beside the library."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _things import refused

import xzarr3
from xzarr3.advice import PATTERNS

TREE = """\
/
├── deep/
│   └── salt (time: 8, lat: 6) float32
├── lat (lat: 6) float64
├── sst (time: 8, lat: 6, lon: 12) float32
└── time (time: 8) int64""".splitlines()


@pytest.mark.parametrize(("line", "lines"), [
    ("tree ocean.zarr", TREE), ("tree --depth 1 ocean.zarr /", TREE[:2] + TREE[3:]),
    ("tree ocean.zarr deep", ["/deep", "└── salt (time: 8, lat: 6) float32"]),
    ("tree ocean.zarr lat", ["/lat (lat: 6) float64"]), ("read ocean.zarr time --raw", ["[0 1 2 3 4 5 6 7]"]),
    ("read ocean.zarr time :2", ["['2000-01-01' '2000-01-02']"]),
    ("read ocean.zarr time -- -1", ["2000-01-08"]), ("read ocean.zarr time --raw -- -1", ["7"]),
    ("read ocean.zarr time ::3 --json", ['["2000-01-01", "2000-01-04", "2000-01-07"]']),
    ("read ocean.zarr time ::3 --json --raw", ["[0, 3, 6]"]), ("read ocean.zarr/time / :2 --raw", ["[0 1]"]),
])  # fmt: skip
def test_lines(line: str, lines: list[str], folder: Path, call: Any) -> None:
    status, out, err = call(*line.split())
    assert (status, out.splitlines(), err) == (0, lines, "")


@pytest.mark.parametrize(("line", "parts"), [
    ("info ocean.zarr", ["title", "An ocean", "├── deep/", "(time: 8, lat: 6, lon: 12) float32"]),
    ("info ocean.zarr sst", ["float32", "(8, 6, 12)", "(2, 3, 12)", "'lon'", "units  K", "zstd"]),
    ("stats ocean.zarr", ["/deep/salt", "0 of 12 chunks (0 %)", "8 of 8 chunks (100 %)", "documents"]),
    ("info both.json", ["2 groups along 'time'", "sst", "joined", "the same in all"]),
    ("info both.json sst", ["(16, 6, 12)", "0 to 8", "8 to 16", "units  K"]),
    ("info both.json --json", ['"node_type": "group"', '"path": "sst"']),
    ("tree both.json", ["├── sst (time: 16, lat: 6, lon: 12) float32"]),
    ("tree both.json sst --json", ['"node_type": "array"']), ("read both.json time 8:10 --raw", ["[0 1]"]),
    ("explain both.json sst 7:9", ["requests", "/sst of"]),
])  # fmt: skip
def test_parts(line: str, parts: list[str], folder: Path, call: Any) -> None:
    xzarr3.concat(["ocean.zarr"] * 2, "time", check_labels=False).to_json("both.json")
    given = line.split()
    status, out, err = call(*given)
    assert (status, err) == (0, "")
    assert [part for part in parts if part not in out] == []
    if given[1] == "ocean.zarr":
        assert max(map(len, out.splitlines())) <= 80 or "store" in out
    else:
        status, _, err = call(*given[:2], "salt", *given[3:])
        assert (status, "no array 'salt'" in err) == (1, True)


def test_json_of_nodes(folder: Path, call: Any) -> None:
    sst = json.loads(call("info", "ocean.zarr", "sst", "--json")[1])
    expected = {"shape": [8, 6, 12], "chunks": [2, 3, 12], "shards": None, "attributes": {"units": "K"}}
    assert sst.items() >= expected.items()
    assert [each["name"] for each in sst["codecs"]] == ["bytes", "zstd"]
    tree = json.loads(call("tree", "ocean.zarr", "--json")[1])
    assert [each["path"] for each in tree["nodes"]] == ["", "deep", "deep/salt", "lat", "sst", "time"]
    assert tree["nodes"][2]["shape"] == [8, 6]
    found = json.loads(call("stats", "ocean.zarr", "--json")[1])
    assert found == xzarr3.stats("ocean.zarr").to_json()


def test_a_node_that_cannot_be_read_is_told(folder: Path, call: Any) -> None:
    Path("ocean.zarr/bad").mkdir()
    Path("ocean.zarr/bad/zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    for given in (("tree",), ("info",), ("stats",)):
        status, out, _ = call(*given, "ocean.zarr")
        assert (status, "cannot be read" in out) == (0, True)
        json.loads(call(*given, "ocean.zarr", "--json")[1])


VALUES: dict[str, tuple[Any, str | dict[str, Any], Any]] = {
    "floats": ([1.5, np.nan, np.inf, -np.inf], "f8", [1.5, "NaN", "Infinity", "-Infinity"]),
    "complex": ([1 + 2j], "c16", [[1.0, 2.0]]),
    "complex of NaN": ([complex(np.nan, 1)], "c8", [["NaN", 1.0]]),
    "truth": ([True, False], "bool", [True, False]), "text": (["a", "é\x7f"], "string", ["a", "é\x7f"]),
    "fixed text": (["a", "bc"], "U2", ["a", "bc"]), "bytes": ([b"\xff"], "S1", ["/w=="]),
    "times": (np.array(["2020-01-01", "NaT"], "M8[D]"), "M8[D]", ["2020-01-01", "NaT"]),
    "struct": (np.array([(1, 2.5)], [("a", "i2"), ("b", "f4")]), "", [{"a": 1, "b": 2.5}]),
    "large": ([2**63 - 1], "i8", [2**63 - 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_read_as_json(case: str, folder: Path, call: Any) -> None:
    data, dtype, expected = VALUES[case]
    array = np.asarray(data, dtype) if dtype and dtype != "string" else np.asarray(data)
    xzarr3.create_array("v.zarr", data=array, **({"dtype": dtype} if dtype == "string" else {}))
    status, out, _ = call("read", "v.zarr", "--json")
    assert (status, json.loads(out)) == (0, expected)
    assert not set(out) & set("\x07\x1b\x7f")
    status, out, _ = call("read", "v.zarr", "/", "0", "--json")
    assert json.loads(out) == expected[0]
    assert call("read", "v.zarr")[0] == 0


CODED: dict[str, tuple[list[Any], dict[str, Any], str, str]] = {
    "packed": (
        [15, -99], {"dtype": "int16", "scale_factor": 0.5, "add_offset": 273.0, "_FillValue": -99},
        "[280.5, \"NaN\"]", "[280.5   nan]",
    ),
    "missing integers": ([1, 7], {"dtype": "int8", "_FillValue": 7}, "[1.0, \"NaN\"]", "[ 1. nan]"),
    "times of the day": (
        [1, 2], {"dtype": "int64", "units": "hours since 2000-01-01"},
        '["2000-01-01T01:00", "2000-01-01T02:00"]', "['2000-01-01T01:00' '2000-01-01T02:00']",
    ),
    "another calendar": (
        [29, 30], {"dtype": "int64", "units": "days since 2000-02-01", "calendar": "360_day"},
        '["2000-02-30", "2000-03-01"]', "['2000-02-30' '2000-03-01']",
    ),
    "no times": ([1, 2], {"dtype": "int64", "units": "days"}, "[1, 2]", "[1 2]"),
}  # fmt: skip


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("case", CODED)
def test_read_decodes_as_xarray(case: str, zarr_format: Any, folder: Path, call: Any) -> None:
    data, coding, as_json, text = CODED[case]
    attributes = {name: value for name, value in coding.items() if name not in ("dtype", "_FillValue")}
    fill = {"fill_value": coding["_FillValue"]} if zarr_format == 2 and "_FillValue" in coding else {}
    if zarr_format == 3 and "_FillValue" in coding:
        attributes["_FillValue"] = coding["_FillValue"]
    xzarr3.create_group("v.zarr", zarr_format=zarr_format).create_array(
        "v", data=np.array(data, coding["dtype"]), dimension_names=["x"], attributes=attributes, **fill
    )
    assert call("read", "v.zarr", "v", "--json") == (0, f"{as_json}\n", "")
    assert call("read", "v.zarr", "v") == (0, f"{text}\n", "")
    assert json.loads(call("read", "v.zarr", "v", "--json", "--raw")[1]) == data


def test_read_names_attributes_that_xarray_cannot_apply(folder: Path, call: Any) -> None:
    units = {"units": "days since the flood"}
    xzarr3.create_array("v.zarr", data=[1, 2], dimension_names=["x"], attributes=units)
    status, out, err = call("read", "v.zarr")
    assert (status, out) == (1, "")
    assert re.search("'units'.*with --raw", err, re.DOTALL)
    assert call("read", "v.zarr", "--raw") == (0, "[1 2]\n", "")


def test_many_values_are_summarised_unless_all_are_asked_for(folder: Path, call: Any) -> None:
    xzarr3.create_array("t.zarr", data=np.array(["a", "bc"]))
    assert call("read", "t.zarr")[1] == "['a' 'bc']\n"
    xzarr3.create_array("v.zarr", data=np.arange(5000))
    out = call("read", "v.zarr")[1]
    assert "..." in out
    assert len(out) < 200
    full = call("read", "v.zarr", "--full")[1]
    assert full.replace("[", " ").split()[2345] == "2345"


@pytest.mark.parametrize(("options", "text", "expected"), [
    ((), "0, 1:5", lambda a: a.explain((0, slice(1, 5)))), ((), "...", lambda a: a.explain()),
    ((), "[0, 5], [1, 2]", lambda a: a.explain(([0, 5], [1, 2]))),
    (("--threads", "1"), "-1:, 3", lambda a: a.explain((slice(-1, None), 3), threads=1)),
])  # fmt: skip
def test_explain(folder: Path, options: tuple[str, ...], text: str, expected: Any, call: Any) -> None:
    found = expected(xzarr3.open_array("ocean.zarr", "sst"))
    for given in (("explain", *options, "--", "ocean.zarr", "sst", text),
                  ("explain", "ocean.zarr", *options, "sst", "--", text)):  # fmt: skip
        assert call(*given) == (0, f"{found}\n", "")
    document = json.loads(call("explain", *options, "--json", "--", "ocean.zarr", "sst", text)[1])
    assert document == found.to_json()
    assert document["name"] == "/sst"


def test_tree_of_consolidated_metadata_takes_as_many_requests_for_any_nodes(folder: Path, call: Any) -> None:
    numbers = []
    for number in (3, 60):
        root = xzarr3.create_group(f"n{number}.zarr")
        for at in range(number):
            root.create_array(f"g{at}/a", shape=4, dtype="i1")
        xzarr3.consolidate_metadata(f"n{number}.zarr")
        with xzarr3.trace() as traced:
            assert call("tree", f"n{number}.zarr")[1].count("\n") == 2 * number + 1
        numbers.append(traced.total["requests"])
    assert numbers[0] == numbers[1] <= 2


@pytest.mark.parametrize(("options", "layouts"), [
    ("--chunks time=4,lat=6", {"sst": ((4, 6, 12), None), "lat": ((6,), None)}),
    ("--chunks 4,3,12 --source-path sst", {"": ((4, 3, 12), None)}), ("--chunks 1kB", {"lat": ((6,), None)}),
    ("--chunks auto", {"sst": ((8, 6, 12), None)}),
    ("--chunks time=2,lat=2 --shards time=8,lat=6", {"deep/salt": ((2, 2), (8, 6))}),
])  # fmt: skip
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
    refused(xzarr3.NodeNotFoundError, r"nothing is stored in .*no\.zarr", lambda: xzarr3.recover(place))
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


@pytest.mark.parametrize(
    ("options", "status"),
    [("", 1), ("--no-encoding", 1), ("--no-attributes", 1), ("--no-values", 1), ("sst 0", 1), ("sst 1:", 1),
     ("--no-attributes --no-values", 0), ("lat", 0), ("sst 1: --no-attributes", 0), ("time --b-path lat", 1)],
)  # fmt: skip
def test_status_of_diff(options: str, status: int, folder: Path, call: Any) -> None:
    array = xzarr3.open_array("copy.zarr", "sst", mode="r+")
    array[0, 0, 0] = 5
    array.update_attributes({"units": "degC"})
    line = ["diff", "ocean.zarr", "copy.zarr", *options.split()]
    found, out, err = call(*line)
    assert (found, err) == (status, "")
    assert ("no difference" in out) is (status == 0)
    assert json.loads(call(*line, "--json")[1])["ok"] is (status == 0)


def test_diff_names_the_first_differences(folder: Path, call: Any) -> None:
    array = xzarr3.open_array("copy.zarr", "time", mode="r+")
    array[2:] = -1
    _, out, _ = call("diff", "ocean.zarr", "copy.zarr", "--first", "2")
    lines = ["/time", "  values  6 of 8 differ; largest difference 8", "  [2]     2 | -1", "  [3]     3 | -1"]
    assert out.splitlines()[-4:] == lines
    assert "[4]" not in out


def test_diff_that_cannot_read_exits_with_2(folder: Path, call: Any) -> None:
    Path("copy.zarr/sst/c/0/0/0").write_bytes(b"damaged")
    status, out, err = call("diff", "ocean.zarr", "copy.zarr")
    assert (status, err) == (2, "")
    assert "  cannot be read  in b: " in out
    assert "c/0/0/0" in out


def test_status_of_check(folder: Path, call: Any) -> None:
    assert call("check", "ocean.zarr") == (0, f"{xzarr3.check('ocean.zarr')}\n", "")
    xzarr3.LocalStore("ocean.zarr").set("sst/c/7/7/7", b"1")
    status, out, _ = call("check", "ocean.zarr")
    assert (status, "chunk-outside" in out) == (0, True), "a warning only"
    Path("ocean.zarr/sst/c/0/0/0").write_bytes(b"")
    status, out, _ = call("check", "ocean.zarr", "sst", "--decode", "none")
    assert (status, "chunk-empty" in out) == (1, True)
    status, out, _ = call("check", "ocean.zarr", "--json", "--decode=all", "--threads", 2)
    found = json.loads(out)
    assert (status, found["ok"], found["decode"]) == (1, False, "all")
    assert "chunk-empty" in {each["code"] for each in found["findings"]}
    assert call("check", "ocean.zarr", "deep")[0] == 0


def test_advise(folder: Path, call: Any) -> None:
    given = ("advise", "ocean.zarr", "sst", "--access", "map=3", "--access", "series", "--target", "disk")
    status, out, _ = call(*given)
    assert (status, "present" in out, "series" in out) == (0, True, True)
    status, out, _ = call("advise", "ocean.zarr", "--json")
    assert json.loads(out)["target"]["name"] == "disk"
    xzarr3.create_group("empty.zarr")
    shown = " ".join(call("advise", "--help")[1].split())
    assert [name for name, meaning in PATTERNS.items() if f"{name} {meaning}" not in shown] == []
    assert "no array to advise on" in call("advise", "empty.zarr")[2]
