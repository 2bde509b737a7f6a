"""What a check says: its text, JSON and arguments; large stores; writers that run or were killed."""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _damage import files
from _defects import Planter, healthy
from _fault_server import FaultServer
from _killed import MortalStore, killed_in_fork
from _kinds import Unlisted
from _processes import printed_by
from _recording import heard
from _things import measured, refused

import xzarr3
from xzarr3 import LocalStore, MemoryStore, NodeNotFoundError, Store, StoreError
from xzarr3.checks.report import CODES
from xzarr3.commit import directory
from xzarr3.commit.lease import Holder, Lease, lease_key
from xzarr3.stores import Key, WrapperStore

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
        refused((ValueError, TypeError), name, partial(xzarr3.check, healthy(3), **{name: value}))
    store = MemoryStore()
    xzarr3.create_group(store, "sub")
    store.erase("zarr.json")
    refused(NodeNotFoundError, "it has: 'sub'", lambda: xzarr3.check(store))
    refused(NodeNotFoundError, "'/no/such'", lambda: xzarr3.check(store, "no/such"))


@pytest.mark.parametrize(("decode", "number", "errors"), [("sample", 8, 2), ("all", 100, 3), ("none", 0, 0)])
def test_decode_decides_what_is_read(decode: Any, number: int, errors: int) -> None:
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
    assert ([each.code for each in report.findings], len(report.arrays)) == (["keys-unlisted"], 4)
    assert report.arrays["t2m"].stored is None
    store.set(plant.chunk("t2m", 1, 1), b"")
    store.set(plant.chunk("packed", 1, 1), b"\xff no chunk")
    codes = {each.code for each in xzarr3.check(Unlisted(store), decode="all").errors}
    assert codes == {"chunk-empty", "chunk-damaged"}


NUMBER = 20_000
KEYS = {
    "whole": "a/c/{}/0", "holes": "a/c/{}/0", "outside": "a/c/{}/7", "foreign": "a/notes-{}.txt",
    "temporary": "a/c/{}.partial", "orphans": "lost-{}/c/0",
}  # fmt: skip


class Synthetic(Store):
    """Holds the documents of an array, and lists as many keys as it is asked for, of a kind in ``KEYS``."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(read_only=True)
        self.kind, self.number = kind, number
        held = MemoryStore()
        root = xzarr3.create_group(held)
        length = 2 * number if kind == "holes" else number
        root.create_array("a", shape=(length, 4), chunks=(1, 4), dtype="int16", compressors=None)
        self.documents = {key: bytes(held.get(key) or b"") for key in held.list()}
        self.value = np.ones(4, "int16").tobytes()

    def get(self, key: str, byte_range: Any = None) -> Any:
        if key in self.documents:
            return self.documents[key]
        return self.value if key.startswith("a/c/") else None

    def list_dir(self, prefix: str) -> tuple[set[str], set[str]]:
        return ({"zarr.json"}, {"a/"}) if not prefix else ({"a/zarr.json"}, {"a/c/"})

    def list(self, prefix: str = "") -> Iterator[str]:
        yield from (Key(key, len(value)) for key, value in self.documents.items())
        for at in range(0, 2 * self.number, 2) if self.kind == "holes" else range(self.number):
            yield Key(KEYS[self.kind].format(at), 8)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "codes"), [
    ("whole", []), ("holes", ["chunks-missing"]), ("outside", ["chunk-outside", "chunks-missing"]),
    ("foreign", ["chunks-missing", "key-foreign"]), ("temporary", ["chunks-missing", "key-temporary"]),
    ("orphans", ["chunks-missing", "chunks-orphan"]),
])  # fmt: skip
def test_keys_take_400_bytes_each_at_most(kind: str, codes: list[str]) -> None:
    with measured() as peak:
        report = xzarr3.check(Synthetic(kind, NUMBER))
    counts: Counter[str] = Counter()
    for finding in report.findings:
        counts[finding.code] += finding.count
    assert counts == dict.fromkeys(codes, NUMBER)
    assert report.arrays["a"].read == (8 if kind in ("whole", "holes") else 0)
    assert (len(report.findings) <= 110, len(str(report).splitlines()) <= 40) == (True, True)
    assert peak[0] < 400 * NUMBER


@pytest.mark.parametrize(("shards", "threads"), [(None, 8), ((32, 512, 256), 16)])
def test_memory_of_a_check_is_bounded_by_the_option(shards: Any, threads: int, tmp_path: Path) -> None:
    layout = {"shape": (64, 512, 256), "chunks": (1, 512, 256), "shards": shards, "dtype": "f8"}
    array = xzarr3.create_array(tmp_path / "a", **layout, compressors=None, fill_value=-1)
    for row in range(0, 64, 32):
        array[row : row + 32] = 1
    with xzarr3.set_options(memory_limit="8 MiB"), measured() as peak:
        assert xzarr3.check(array.store, decode="all", threads=threads).findings == ()
    assert peak[0] < 10 * 2**20


def served(server: FaultServer, number: int) -> tuple[str, dict[str, bytes]]:
    """The place on a server of a group with an array of so many chunks, and its keys and values."""
    held = MemoryStore()
    xzarr3.create_group(held).create_array("a", data=np.arange(1, number + 1), chunks=1)
    xzarr3.consolidate_metadata(held)
    place, values = "bucket/a.zarr", contents(held)
    server.put_all({f"/{place}/{key}": value for key, value in values.items()})
    return place, values


@pytest.mark.parametrize("number", [5, 2500])
def test_requests_to_s3(fault_server: FaultServer, number: int) -> None:
    """One list of a thousand keys each, the documents once, and the sampled chunks."""
    place, values = served(fault_server, number)
    fault_server.clear_log()
    report = xzarr3.check(f"s3://{place}", storage_options=fault_server.storage_options)
    assert report.findings == ()
    size = sum(len(value) for key, value in values.items() if "/c/" in key)
    assert (report.arrays["a"].stored, report.arrays["a"].nbytes_stored) == (number, size)
    assert len(fault_server.log()) <= 25 + number // 1000


def test_sample_of_a_large_shard_moves_its_index_and_few_inner_chunks(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path)
    data = np.random.default_rng(0).integers(0, 255, 2**22, dtype="uint8")
    xzarr3.create_array(inner, data=data, chunks=2**12, shards=2**22, compressors=None)
    for decode, least, most in (("sample", 8 * 2**12, 9 * 2**12), ("all", 2**22, 2**22)):
        with heard() as requests:
            assert xzarr3.check(inner, decode=decode).findings == ()
        moved = sum(request.size for request in requests if request.key == "c/0")
        assert least <= moved <= most + 1024 * 16 + 4  # the index


def test_dataset_on_a_web_server_is_checked_by_its_consolidated_metadata(fault_server: FaultServer) -> None:
    place, _ = served(fault_server, 40)
    url = f"{fault_server.url}/{place}"
    report = xzarr3.check(url)
    assert [finding.code for finding in report.findings] == ["keys-unlisted"]
    assert (report.arrays["a"].read, report.arrays["a"].stored) == (8, None)
    fault_server.put(f"/{place}/a/c/7", b"\xff damaged")
    found = xzarr3.check(url, decode="all").findings
    codes = [(finding.code, finding.key) for finding in found]
    assert codes == [("chunk-damaged", "a/c/7"), ("keys-unlisted", "")]


DEAD = Holder(owner="dead", host="far", boot="b", processes="p", pid=7, left=True, since="2026-01-01T00:00")


def dataset(number: int) -> xr.Dataset:
    return xr.Dataset({"a": ("x", np.arange(8.0) + number), "b": ("x", np.arange(8) + number)})


def write(store: Any, number: int) -> None:
    xzarr3.to_zarr(dataset(number), store, mode="w", encoding={"a": {"chunks": (4,)}})


def codes(store: Any, path: str = "", **options: Any) -> list[str]:
    return [finding.code for finding in xzarr3.check(store, path, **options).findings]


def test_every_killed_replacement_is_found_and_recovered() -> None:
    """Whatever it left, recover leaves the old or the new dataset; only a dead lease may stay."""
    seen: set[str] = set()
    for number in range(200):
        mortal = MortalStore()
        write(mortal, 0)
        was_killed = mortal.killed_at(number, lambda store=mortal: write(store, 100), gone=True)
        store = MemoryStore(contents(mortal))
        report = xzarr3.check(store)
        found = {finding.code: finding.remedy for finding in report.findings}
        assert all(code.startswith(("write-", "node-", "chunks-")) for code in found), found
        seen.update(found)
        left = [key for key in contents(store) if "xzarr3-" in key]
        assert bool(left) == any(code.startswith("write-") for code in found)
        xzarr3.recover(store)
        after = xzarr3.check(store).findings
        assert all((each.severity, each.remedy[:7]) == ("note", "nothing") for each in after), (number, after)
        values = xr.open_dataset(store, engine="xzarr3").load()
        assert any(values.identical(dataset(each)) for each in (0, 100))
        write(store, 200)
        assert codes(store) == []
        if not was_killed:
            break
    assert {"write-unfinished", "write-leftover"} <= seen


@pytest.mark.parametrize(
    ("said", "code"),
    [({}, "write-leftover"), ({"plan": "x"}, "write-resumable"), ({"left": False}, "write-unknown")],
)
def test_lease_tells_whose_write_it_is(store: Store, said: dict[str, Any], code: str) -> None:
    xzarr3.create_array(store, "a", data=[1, 2])
    store.set(lease_key("a/"), replace(DEAD, **said).text())
    report = xzarr3.check(store)
    (finding,) = report.findings
    assert (finding.code, finding.path, finding.key) == (code, "a", "a/.xzarr3-lease")
    assert all(part in finding.meaning for part in ("process 7", "'far'", "2026-01-01"))
    assert report.ok


def test_living_writer_is_a_note(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    xzarr3.create_array(store, "a", data=[1, 2])
    lease = Lease(store, lease_key("a/"), "resize")
    assert lease.take()
    report = xzarr3.check(store)
    assert [(each.code, each.severity) for each in report.findings] == [("write-running", "note")]
    assert str(os.getpid()) in report.findings[0].meaning
    assert store.exists(lease.key)
    lease.release()
    assert codes(store) == []


def test_lease_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    xzarr3.create_array(store, "a", data=[1, 2])
    program = """import os, sys, xzarr3; from xzarr3.commit.lease import Lease, lease_key
assert Lease(xzarr3.LocalStore(sys.argv[1]), lease_key('a/'), 'resize').take(); os._exit(0)"""
    printed_by(program, str(tmp_path))
    (finding,) = xzarr3.check(store).findings
    assert (finding.code, finding.severity) == ("write-leftover", "note")
    assert finding.remedy == "nothing: the next writer of the node takes its lease over"
    xzarr3.open_array(store, "a", mode="r+").append([3])
    assert (codes(store), store.exists("a/.xzarr3-lease")) == ([], False)


@pytest.mark.slow
def test_replacement_in_a_directory_that_was_killed(tmp_path: Path, monkeypatch: Any) -> None:
    """It ends in the middle of the renames: the check says so and changes nothing; recover ends it."""
    write(tmp_path / "s", 0)
    rename, done = directory._rename, itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(directory, "_rename", lambda *names: os._exit(9) if next(done) else rename(*names))
        assert killed_in_fork(10**6, lambda: write(tmp_path / "s", 100))
    before = files(tmp_path)
    report = xzarr3.check(tmp_path / "s")
    assert "write-unfinished" in [finding.code for finding in report.findings], report
    assert not report.ok
    assert files(tmp_path) == before
    (remedy,) = {each.remedy for each in report.findings if each.code == "write-unfinished"}
    assert remedy == "run xzarr3 recover STORE"
    xzarr3.recover(tmp_path / "s")
    assert codes(tmp_path / "s") == []
    assert xr.open_dataset(tmp_path / "s", engine="xzarr3").a[0] in (0, 100)
