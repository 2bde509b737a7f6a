"""Names of nodes that a file system takes for each other."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import refused

import xzarr3
from xzarr3 import LocalStore, MemoryStore, NodeExistsError
from xzarr3.nodes import case_folding
from xzarr3.xarray import to_zarr


@pytest.fixture
def vfat(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that folds names, as those of macOS and Windows do."""
    image, place = tmp_path / "image", tmp_path / "mounted"
    if os.geteuid() != 0 or shutil.which("mkfs.vfat") is None or shutil.which("mount") is None:
        pytest.skip("mounting a vfat image needs root, mkfs.vfat and mount")
    with open(image, "wb") as file:
        file.truncate(2**25)
    place.mkdir()
    subprocess.run(["mkfs.vfat", str(image)], check=True, capture_output=True, timeout=120)
    mounted = subprocess.run(
        ["mount", "-o", "loop,shortname=mixed,utf8", str(image), str(place)], capture_output=True, timeout=120
    )
    if mounted.returncode:
        pytest.skip(f"a vfat image cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=120)


@pytest.fixture(params=["vfat", "pretended"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A directory of which the file system takes ``T`` for ``t``."""
    if request.param == "vfat":
        return request.getfixturevalue("vfat")
    monkeypatch.setattr(case_folding, "_folds", lambda root: True)
    return tmp_path / "store"


def test_names_that_a_file_system_cannot_tell_apart_are_refused(root: Path) -> None:
    both = xr.Dataset({"T": ("x", np.arange(4.0)), "t": ("y", np.arange(3.0))})
    source = xzarr3.create_group(MemoryStore())
    source["T"], source["t"] = np.arange(4.0), np.arange(3.0)
    whole, told = root / "whole", "does not distinguish 't' from 'T'"
    refused(
        NodeExistsError,
        lambda: to_zarr(both, whole),
        lambda: xzarr3.copy(source, whole),
        lambda: xzarr3.copy(source, xzarr3.WrapperStore(LocalStore(whole)), zarr_format=2),
        match=told,
    )
    assert not whole.exists() or os.listdir(whole) == []
    group = xzarr3.create_group(root / "group")
    group["T"] = np.arange(4.0)
    before = sorted(root.rglob("*"))
    refused(
        NodeExistsError,
        partial(group.create_array, "t", data=np.arange(3.0)),
        partial(group.create_array, "t", data=np.arange(3.0), overwrite=True),
        partial(group.create_array, "t/below", data=np.arange(3.0)),
        partial(group.create_group, "t"),
        partial(to_zarr, both[["t"]], root / "group", mode="a"),
        partial(xzarr3.copy, source["t"], root / "group", path="t"),
        match=told,
    )
    assert sorted(root.rglob("*")) == before
    np.testing.assert_array_equal(group["T"][...], np.arange(4.0))
    group["T"] = group["other"] = np.arange(5.0)
    to_zarr(both[["t"]], root / "group", mode="w")  # All that was there is replaced.
    assert sorted(xzarr3.open_group(root / "group")) == ["t"]


def test_names_that_differ_in_case_are_two_where_they_are(tmp_path: Path) -> None:
    """What is tried to find that out leaves nothing behind."""
    both = xr.Dataset({"T": ("x", np.arange(4.0)), "t": ("y", np.arange(3.0))})
    to_zarr(both, tmp_path / "a.zarr")
    if case_folding._folds(str(tmp_path / "a.zarr")):
        pytest.skip("the file system of temporary files folds names")
    xzarr3.create_array(tmp_path / "a.zarr", "other/T", data=np.arange(2))
    xzarr3.create_array(tmp_path / "a.zarr", "other/t", data=np.arange(3))
    assert xzarr3.open_array(tmp_path / "a.zarr", "other/T")[...].tolist() == [0, 1]
    assert sorted(os.listdir(tmp_path)) == ["a.zarr"]
    assert sorted(os.listdir(tmp_path / "a.zarr")) == ["T", "other", "t", "zarr.json"]
