"""The report as text and JSON, and the arguments of a check; ``cli`` tests the command."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _defects import Planter, healthy
from _kinds import Unlisted
from _recording import heard
from _things import refused

import xzarr3
from xzarr3 import MemoryStore, NodeNotFoundError, StoreError
from xzarr3.checks.report import CODES
from xzarr3.stores import WrapperStore

EMPTY = "the stored value has no bytes; its writer was probably cut off"


def test_text_of_a_healthy_store() -> None:
    assert str(xzarr3.check(healthy(3))).splitlines() == [
        "check of '/' in <MemoryStore, 18 keys>",
        "arrays   4",
        "decoded  12 of 12 stored units",
        "found    0 errors, 0 warnings, 0 notes",
        "read by  zarr-python 3.1.6: all, tensorstore 0.1.71: all, GDAL 3.13: all, zarrita.js (by its "
        "documentation): all, xarray 2026.9.0: 3 of 4 (not deep/x: dimensions without names)",
    ]


def test_check_names_a_few_arrays_that_a_library_does_not_read() -> None:
    root = xzarr3.create_group(MemoryStore())
    root.create_array("t2m", data=np.ones(2, "f4"), dimension_names=["x"])
    root.create_array("expver", data=np.array(["0001", "0005"]), dimension_names=["x"])
    text = str(xzarr3.check(root.store))
    assert "tensorstore 0.1.71: 1 of 2 (not expver: data type 'fixed_length_utf32')" in text
    assert "xarray 2026.9.0: all" in text
    for at in range(5):
        root.create_array(f"\x1b[2J{at}", data=np.array(["0001"]), dimension_names=["y"])
    text = str(xzarr3.check(root.store))
    assert re.search(r"tensorstore 0.1.71: 1 of 7 \(not .*: data type 'fixed_length_utf32'; and 3 more", text)
    assert "\x1b" not in text


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_count_of_a_finding_about_many_chunks_is_one(zarr_format: Any) -> None:
    root = xzarr3.create_group(MemoryStore(), zarr_format=zarr_format)
    root.create_array("number", shape=(), dtype="i8", fill_value=0)  # It may be absent.
    root.create_array("a", shape=1000, chunks=1, dtype="i4")
    for at in range(5):
        root.store.set(f"lost/c/{at}" if zarr_format == 3 else f"lost/{at}", b"1")
    report = xzarr3.check(root.store)
    counts = [(each.code, each.count) for each in report.findings]
    assert counts == [("chunks-orphan", 5), ("chunks-missing", 1000)]
    assert (report.count("warning"), report.count("note")) == (1, 1)
    assert "0 errors, 1 warning, 1 note" in str(report)


def test_text_groups_findings_by_node_and_ends_with_what_to_do() -> None:
    store = healthy(3)
    store.set("t2m/c/0/0", b"")
    store.set("t2m/c/7/7", b"1")
    store.set("deep/x/c/0", b"")
    lines = str(xzarr3.check(store)).splitlines()
    assert lines[5:] == [
        "/deep/x",
        f"  error    chunk-empty    deep/x/c/0: {EMPTY}",
        "/t2m",
        f"  error    chunk-empty    t2m/c/0/0: {EMPTY}",
        "  warning  chunk-outside  t2m/c/7/7: chunk (7, 7) is outside of the grid of (2, 2) chunks",
        "what           to do",
        f"chunk-empty    {CODES['chunk-empty'].remedy}",
        f"chunk-outside  {CODES['chunk-outside'].remedy}",
    ]


def test_text_fits_on_a_screen() -> None:
    store = xzarr3.create_array(MemoryStore(), data=np.arange(1, 301), chunks=1).store
    for at in range(300):
        store.set(f"c/{at}", b"")
    report = xzarr3.check(store, decode="none")
    lines = str(report).splitlines()
    assert (report.count("error"), len(lines) <= 40) == (300, True)
    assert any(line.strip().startswith("and ") for line in lines)
    assert lines[-2:] == ["what         to do", f"chunk-empty  {CODES['chunk-empty'].remedy}"]


def test_json_has_everything() -> None:
    store = healthy(3)
    store.set("t2m/c/0/0", b"")
    found = json.loads(json.dumps(xzarr3.check(store, "t2m").to_json()))
    assert (found["path"], found["ok"], found["decode"]) == ("t2m", False, "sample")
    assert found["findings"] == [{
        "path": "t2m", "key": "t2m/c/0/0", "code": "chunk-empty", "severity": "error", "count": 1,
        "meaning": EMPTY, "remedy": CODES["chunk-empty"].remedy,
    }]  # fmt: skip
    expected = {"shape": [8, 6], "units": 4, "stored": 4, "read": 3, "nbytes_stored": 72}
    assert found["arrays"]["t2m"].items() >= expected.items()


def test_arguments_are_checked() -> None:
    for name, value in {"decode": "some", "threads": 0, "progress": 5}.items():
        with pytest.raises((ValueError, TypeError), match=name):
            xzarr3.check(healthy(3), **{name: value})
    store = MemoryStore()
    xzarr3.create_group(store, "sub")
    store.erase("zarr.json")
    refused(NodeNotFoundError, "it has: 'sub'", lambda: xzarr3.check(store))
    refused(NodeNotFoundError, "'/no/such'", lambda: xzarr3.check(store, "no/such"))


@pytest.mark.parametrize(("decode", "number", "errors"), [("sample", 8, 2), ("all", 100, 3), ("none", 0, 0)])
def test_decode_decides_what_is_read(decode: Any, number: int, errors: int) -> None:
    """A sample has both ends."""
    store = xzarr3.create_array(MemoryStore(), data=np.arange(1, 101), chunks=1).store
    for at in (0, 50, 99):
        store.set(f"c/{at}", b"\xff damaged")
    seen: list[Any] = []
    with heard() as requests:
        report = xzarr3.check(store, decode=decode, progress=lambda *done: seen.append(done), threads=3)
    assert (report.arrays[""].read, len(report.errors)) == (number, errors)
    assert len({request.key for request in requests if request.key.startswith("c/")}) == number
    assert (seen[0], seen[-1]) == ((0, number), (number, number))


def test_part_of_a_hierarchy_is_checked_alone() -> None:
    store = healthy(3)
    store.set("t2m/c/0/0", b"")
    store.set("deep/x/c/1", b"")
    assert [each.path for each in xzarr3.check(store, "deep").findings] == ["deep/x"]
    report = xzarr3.check(store, "deep/x")
    assert (list(report.arrays), len(report.findings)) == (["deep/x"], 1)
    Planter(store, 3).edit("deep/x/zarr.json", lambda d: d["attributes"].update(a=1), copy=False)
    errors = [each.code for each in xzarr3.check(store, "deep").errors]
    assert errors == ["consolidated-differs", "chunk-empty"]


@pytest.mark.parametrize("tool", [xzarr3.check, xzarr3.stats, lambda group: xzarr3.diff(group, group)])
def test_the_store_of_a_group_stays_open(tool: Any, tmp_path: Path) -> None:
    with xzarr3.ZipStore(tmp_path / "a.zip", mode="w") as store:
        group = xzarr3.create_group(store)
        tool(group)
        group.create_array("a", data=[1])


class Unreadable(WrapperStore):
    """A chunk of it cannot be read."""

    def get(self, key: str, byte_range: Any = None, **how: Any) -> Any:
        if key == "t2m/c/0/1":
            raise StoreError("the disk has failed")
        return super().get(key, byte_range, **how)


def test_value_that_cannot_be_read_is_a_finding() -> None:
    report = xzarr3.check(Unreadable(healthy(3)), decode="all")
    (finding,) = report.findings
    assert (finding.code, finding.key) == ("chunk-unreadable", "t2m/c/0/1")
    assert "the disk has failed" in finding.meaning


def test_a_group_of_which_nothing_can_be_found_is_not_called_sound() -> None:
    store = MemoryStore()
    xzarr3.create_group(store).create_array("v", data=[1])
    (found,) = xzarr3.check(Unlisted(store)).findings
    assert (found.code, found.severity) == ("keys-unlisted", "warning")
    assert "no array was found" in found.meaning


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_store_that_cannot_list_is_checked_by_its_consolidated_metadata(zarr_format: Any) -> None:
    store = healthy(zarr_format)
    plant = Planter(store, zarr_format)
    report = xzarr3.check(Unlisted(store), decode="all")
    assert [each.code for each in report.findings] == ["keys-unlisted"]
    assert len(report.arrays) == 4
    assert report.arrays["t2m"].stored is None
    store.set(plant.chunk("t2m", 1, 1), b"")
    store.set(plant.chunk("packed", 1, 1), b"\xff no chunk")
    codes = {each.code for each in xzarr3.check(Unlisted(store), decode="all").errors}
    assert codes == {"chunk-empty", "chunk-damaged"}
