"""Writers that run, may run or were killed: what a check says of them, and what recover does."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _killed import MortalStore

import xzarr3
from xzarr3 import LocalStore, MemoryStore, Store
from xzarr3.commit.lease import Holder, Lease, lease_key

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
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    (finding,) = xzarr3.check(store).findings
    assert (finding.code, finding.severity) == ("write-leftover", "note")
    assert finding.remedy == "nothing: the next writer of the node takes its lease over"
    xzarr3.open_array(store, "a", mode="r+").append([3])
    assert (codes(store), store.exists("a/.xzarr3-lease")) == ([], False)


@pytest.mark.slow
def test_replacement_in_a_directory_that_was_killed(tmp_path: Path) -> None:
    """It ends in the middle of the renames: the check says so and changes nothing; recover ends it."""
    write(tmp_path / "s", 0)
    program = (
        "import os, sys, numpy as np, xarray as xr, xzarr3\n"
        "from xzarr3.commit import directory\n"
        "real, left = directory._rename, [int(sys.argv[2])]\n"
        "def rename_at(*names):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os._exit(9)\n"
        "    return real(*names)\n"
        "directory._rename = rename_at\n"
        "data = xr.Dataset({'a': ('x', np.arange(8.0) + 100), 'b': ('x', np.arange(8) + 100)})\n"
        "xzarr3.to_zarr(data, sys.argv[1], mode='w', encoding={'a': {'chunks': (4,)}})\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "s"), "1"]
    assert subprocess.run(command, check=False, timeout=120).returncode == 9
    before = tree(tmp_path)
    report = xzarr3.check(tmp_path / "s")
    assert "write-unfinished" in [finding.code for finding in report.findings], report
    assert not report.ok
    assert tree(tmp_path) == before
    (remedy,) = {each.remedy for each in report.findings if each.code == "write-unfinished"}
    assert remedy == "run xzarr3 recover STORE"
    xzarr3.recover(tmp_path / "s")
    assert codes(tmp_path / "s") == []
    assert xr.open_dataset(tmp_path / "s", engine="xzarr3").a[0] in (0, 100)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
