"""Names of nodes that a file system takes for each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

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
def folds(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, str]]:
    """A directory, and a name that its file system takes for another one beside the other case."""
    if request.param == "vfat":
        yield request.getfixturevalue("vfat"), "T"
        return
    monkeypatch.setattr(case_folding, "_folds", lambda root: True)
    yield tmp_path / "store", "T"


def test_names_that_a_file_system_cannot_tell_apart_are_refused(folds: tuple[Path, str]) -> None:
    root, name = folds
    alike = unicodedata.normalize("NFC", name).lower()
    both = xr.Dataset({name: ("x", np.arange(4.0)), alike: ("y", np.arange(3.0))})
    source = xzarr3.create_group(MemoryStore())
    source.create_array(name, data=np.arange(4.0))
    source.create_array(alike, data=np.arange(3.0))
    for write in (
        lambda place: to_zarr(both, place),
        lambda place: xzarr3.copy(source, place),
        lambda place: xzarr3.copy(source, xzarr3.WrapperStore(LocalStore(place)), zarr_format=2),
    ):
        with pytest.raises(NodeExistsError, match=f"does not distinguish '{alike}' from '{name}'"):
            write(root / "whole")
        assert not (root / "whole").exists() or os.listdir(root / "whole") == []
    group = xzarr3.create_group(root / "group")
    group.create_array(name, data=np.arange(4.0))
    before = sorted(path for path in root.rglob("*"))
    for change in (
        lambda: group.create_array(alike, data=np.arange(3.0)),
        lambda: group.create_array(alike, data=np.arange(3.0), overwrite=True),
        lambda: group.create_array(f"{alike}/below", data=np.arange(3.0)),
        lambda: group.create_group(alike),
        lambda: to_zarr(both[[alike]], root / "group", mode="a"),
        lambda: xzarr3.copy(source[alike], root / "group", path=alike),
    ):
        with pytest.raises(NodeExistsError, match=f"does not distinguish '{alike}' from '{name}'"):
            change()
        assert sorted(path for path in root.rglob("*")) == before
    np.testing.assert_array_equal(group[name][...], np.arange(4.0))
    group.create_array(name, data=np.arange(5.0), overwrite=True)
    group.create_array("other", data=np.arange(5.0))
    to_zarr(both[[alike]], root / "group", mode="w")  # All that was there is replaced.
    assert sorted(xzarr3.open_group(root / "group")) == [alike]


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
