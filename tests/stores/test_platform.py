"""One place knows the platform, and what there is on any system is enough."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _unprivileged import own_directory, snapshot
from _without_posix import GONE, SCENARIOS

import xzarr3
from xzarr3.stores.local import platform

HERE = Path(__file__).parents[1]
WITHOUT = Path(__file__).with_name("_without_posix.py")
WORKFLOW = HERE.parent / ".github" / "workflows" / "test.yml"
ONLY_THERE = {*GONE, "supports_dir_fd", "supports_fd", "supports_follow_symlinks"} - {
    "register_at_fork",
    "link",
}
# What asks for one of these handles that there is none; `obstore_image` is for Linux.
EXCEPTIONS = {("parallel.py", "sched_getaffinity")}


def run(code: list[str], **options: Any) -> str:
    """What a process of its own prints."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run(
        [sys.executable, *code], env=environment, capture_output=True, text=True, timeout=240, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Systems that have less


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong in each scenario, in a process that has no more than any system."""
    base = tmp_path_factory.mktemp("without")
    wanted = [name for name in SCENARIOS if name != "links"]
    found: dict[str, str] = json.loads(run([str(WITHOUT), str(base), *wanted]))
    return found


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "links"])
def test_without_what_only_posix_has(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == ""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="making links needs a right there")
def test_links_without_what_only_posix_has() -> None:
    with own_directory() as base:
        before = snapshot(base)
        assert json.loads(run([str(WITHOUT), str(base), "links"], cwd=base)) == {"links": ""}
        assert snapshot(base) == before


_MACOS = """
import errno, fcntl, os, sys
import dask.array, distributed, numpy as np, psutil, xarray

sys.platform = "darwin"
fcntl.F_FULLFSYNC = 51
asked = []
control = fcntl.fcntl


def call(descriptor, command, *args):
    if command != 51:
        return control(descriptor, command, *args)
    asked.append(os.fstat(descriptor).st_mode)
    if len(asked) % 2:
        raise OSError(errno.ENOTSUP, "not on this file system")
    return 0


fcntl.fcntl = call
LIMIT = 1000


def limited(name, size):
    real = getattr(os, name)

    def call(*args):
        if size(*args) > LIMIT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(*args)

    setattr(os, name, call)


limited("pread", lambda descriptor, length, *place: length)
for name in ("preadv", "writev"):
    limited(name, lambda descriptor, buffers, *place: sum(map(len, buffers)))

import xzarr3
from xzarr3.stores.local import platform

assert platform.POSIX and not platform.HAS_OFD and platform._MOST == 2**30
platform._MOST = LIMIT
values = np.arange(10_000.0)
store = xzarr3.LocalStore(sys.argv[1], fsync=True)
array = xzarr3.create_array(store, "a", data=values, chunks=(5000,), compressors=None)
array[10:20] = -1
values[10:20] = -1
np.testing.assert_array_equal(array[...], values)
np.testing.assert_array_equal(array[100:3000], values[100:3000])
store.set("big", b"7" * 5000)
with store.reader().open("big") as reader:
    assert reader.read(0) == b"7" * 5000
    assert reader.read_ranges([1, 2], [4000, 10]) == [b"7" * 4000, b"7" * 10]
assert bytes(store.get("big")) == b"7" * 5000
with xzarr3.ZipStore(sys.argv[1] + "/x.zip", mode="w") as zip_store:
    xzarr3.create_array(zip_store, "a", data=values, chunks=(5000,), compressors=None)
    np.testing.assert_array_equal(xzarr3.open_array(zip_store, "a")[...], values)
cache = xzarr3.CacheStore(store, directory=sys.argv[1] + "/cache")
for _ in range(2):
    assert bytes(cache.get("big")) == b"7" * 5000
assert cache.hits == 1
assert len(asked) > 4
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(not platform.HAS_OFD, reason="what Linux has is made less of")
def test_as_on_macos(tmp_path: Path) -> None:
    """Large reads and writes are refused, locks are of whole files, and the disk is told more."""
    assert run(["-c", _MACOS, str(tmp_path / "store")]) == "done\n"


# One place


@pytest.mark.slow
def test_one_place_knows_the_platform() -> None:
    root = Path(xzarr3.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name == "stores/local/platform.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "os" and node.attr in ONLY_THERE:
                    found.add((name, node.attr))
                if node.value.id == "sys" and node.attr == "platform":
                    found.add((name, node.attr))
            if isinstance(node, ast.Call):
                found |= {(name, word.arg) for word in node.keywords if str(word.arg).endswith("dir_fd")}
            if isinstance(node, ast.Import):
                found |= {
                    (name, each.name) for each in node.names if each.name in ("fcntl", "msvcrt", "resource")
                }
    assert found - EXCEPTIONS == set()


REFUSED = ("a\\b", "..\\x", "C:", "a:b", "con", "a/NUL.txt", "com1", "lpt9.x/a", "a.", "a /b", "a?", "\x07")
TAKEN = ("c/0/1", "zarr.json", "a.b", "console", "nulls/x", ".zattrs", "é", "com10", "a/.zarray", "c/0.0.0")


def test_names_of_windows() -> None:
    assert all(platform._REFUSED.search(key) for key in REFUSED)
    assert not any(platform._REFUSED.search(key) for key in TAKEN)


def test_what_is_refused_for_a_moment_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "POSIX", False)
    pauses: list[float] = []
    monkeypatch.setattr(platform.time, "sleep", pauses.append)
    left = [3]

    def act(path: str) -> str:
        if left[0]:
            left[0] -= 1
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return path

    assert platform._patiently(act, "x") == "x"
    assert len(pauses) == 3
    left[0] = 10**6
    with pytest.raises(PermissionError):
        platform._patiently(act, "x")
    assert sum(pauses) < 1


def test_the_full_sync_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has none, it is synced as elsewhere."""
    synced: list[int] = []
    asked: list[tuple[int, int]] = []

    class Control:
        def fcntl(self, descriptor: int, command: int) -> None:
            asked.append((descriptor, command))
            if len(asked) == 1:
                raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(platform, "_fcntl", Control())
    monkeypatch.setattr(platform, "_FULL_SYNC", 51)
    platform.sync(5)
    assert (asked, synced) == ([(5, 51)], [5])
    platform.sync(5)
    assert (asked, synced) == ([(5, 51)] * 2, [5])


def test_the_workflow_runs_tests_that_are_there() -> None:
    named = re.findall(r"tests/[\w*/]+\.py", WORKFLOW.read_text("utf-8"))
    assert "tests/stores/test_platform.py" in named
    files = {path for pattern in named for path in HERE.parent.glob(pattern)}
    assert len(files) >= len(named)
    for path in files:
        if path.name.startswith("test_native_"):  # They run on macOS, not on Windows.
            continue
        text = path.read_text("utf-8")
        assert not re.search(r"^import (fcntl|resource)|os\.fork\(", text, re.MULTILINE), path.name
