"""Where nodes are: places without one, names that a file system takes for each other, nodes that move."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import xarray as xr
from _conformance import contents, refused
from _kinds import Unlisted

import xzarr3
from xzarr3 import InvalidKeyError, LocalStore, MemoryStore, NodeExistsError, NodeNotFoundError, StoreError
from xzarr3.nodes import case_folding
from xzarr3.nodes.absent import what_is_there
from xzarr3.stores import ObjectStore
from xzarr3.xarray import to_zarr

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


class Slow(xzarr3.MemoryStore):
    """A store that many requests at once are sent to."""

    concurrency = 8


class Broken(xzarr3.MemoryStore):
    """A store that finds nothing and cannot be listed."""

    def list(self, prefix: str = "") -> Any:
        raise StoreError("listing failed")

    list_dir = list


def message(store: Any, path: str = "") -> str:
    (error,) = refused(xzarr3.NodeNotFoundError, lambda: xzarr3.open(store, path))
    return str(error)


def test_a_look_takes_few_requests_and_fails_silently() -> None:
    values = {f"f{n:03}/g{m}/h/x": b"1" for n in range(50) for m in range(50)}
    with xzarr3.trace() as t:
        assert "no store is there" in what_is_there(Slow(values), "")
    assert t.total["list"] <= 4
    assert t.total["requests"] <= 30
    assert "nothing" in what_is_there(Slow({}), "")
    with xzarr3.trace() as t:
        what_is_there(Slow({"zarr.json": GROUP}), "a/b")
    assert t.total["requests"] <= 24
    assert what_is_there(Broken({}), "") == ""
    assert "found no 'zarr.json'" in message(Broken({}))
    assert "found no 'a/zarr.json'" in message(Broken({"zarr.json": GROUP}), "a")


def test_a_missing_group_that_may_be_made_costs_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*args: object) -> str:
        pytest.fail("the place was looked at")

    monkeypatch.setattr("xzarr3.nodes.absent.what_is_there", look)
    dataset = xr.Dataset({"a": ("x", np.arange(3))})
    for options in ({"mode": "a"}, {"append_dim": "x"}):
        xzarr3.to_zarr(dataset, xzarr3.MemoryStore(), **options)
    xzarr3.open_group(xzarr3.MemoryStore(), mode="a")


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
def test_deep_paths_name_the_nearest_group(zarr_format: Any) -> None:
    store = xzarr3.MemoryStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("ocean/surface/sst", shape=1, dtype="i1")
    for found in (message(store, "ocean/surface/sss"), message(store, "/ocean/surface/sss/")):
        assert "did you mean 'sst'? the group '/ocean/surface' has: 'sst'" in found
    assert "did you mean 'surface'? the group '/ocean' has: 'surface'" in message(store, "ocean/surfase/sst")
    assert "surface/sst' is an array, which has no nodes below it" in message(store, "ocean/surface/sst/x")
    for group in (root, root.loaded(), xzarr3.open_group(store, "ocean")):
        path = "surface/sss" if group.path else "ocean/surface/sss"
        with pytest.raises(KeyError, match="did you mean 'sst'\\? the group '/ocean/surface' has"):
            group[path]


@pytest.mark.parametrize("consolidated", [True, False])
def test_stores_without_listing_name_what_they_know(consolidated: bool) -> None:
    listed = xzarr3.MemoryStore()
    root = xzarr3.create_group(listed)
    root.create_array("ocean/sst", shape=1, dtype="i1")
    if consolidated:
        root.consolidate()
    found = message(Unlisted(listed), "ocean/sts")
    assert ("did you mean 'sst'? the group '/ocean' has: 'sst'" in found) == consolidated
    assert ("the nearest group above is '/ocean'" in found) != consolidated


def test_other_stores_and_repositories_are_recognized(tmp_path: Path) -> None:
    service = obstore.store.MemoryStore()
    service.put("data/a.zarr/zarr.json", GROUP)
    assert "no store is there; it has: 'data'" in message(ObjectStore(service))
    icechunk = pytest.importorskip("icechunk")
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    assert "an Icechunk repository" in message(tmp_path / "repo")


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
        NodeExistsError, lambda: to_zarr(both, whole), lambda: xzarr3.copy(source, whole),
        lambda: xzarr3.copy(source, xzarr3.WrapperStore(LocalStore(whole)), zarr_format=2), match=told,
    )  # fmt: skip
    assert not whole.exists() or os.listdir(whole) == []
    group = xzarr3.create_group(root / "group")
    group["T"] = np.arange(4.0)
    before = sorted(root.rglob("*"))
    make = partial(group.create_array, data=np.arange(3.0))
    refused(
        NodeExistsError, partial(make, "t"), partial(make, "t", overwrite=True), partial(make, "t/below"),
        partial(group.create_group, "t"), partial(to_zarr, both[["t"]], root / "group", mode="a"),
        partial(xzarr3.copy, source["t"], root / "group", path="t"), match=told,
    )  # fmt: skip
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


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["directory", "synced"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> xzarr3.Store:
    return LocalStore(tmp_path / "s.zarr", fsync=request.param)


def sample(store: xzarr3.Store, zarr_format: Any = 3) -> xzarr3.Group:
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    options = {} if zarr_format != 3 else {"shards": (4, 4)}
    made = root.create_array("a/b/x", data=np.arange(64).reshape(8, 8), chunks=(2, 4), **options)
    made.attrs["units"] = "K"
    root.create_array("a/y", shape=3, dtype="int8")
    root["a"].attrs["title"] = "t"
    root.create_array("z", data=np.arange(3))
    return root


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_group_moves_with_all_that_is_below(place: xzarr3.Store, zarr_format: Any) -> None:
    root = sample(place, zarr_format)
    number = len(contents(place))
    root.move("a", "new/where")
    again = xzarr3.open_group(place)
    below = ["new", "new/where", "new/where/b", "new/where/b/x", "new/where/y", "z"]
    assert sorted(path for path, _ in again.members(None)) == below
    np.testing.assert_array_equal(again["new/where/b/x"][...], np.arange(64).reshape(8, 8))
    assert dict(again["new/where/b/x"].attrs) == {"units": "K"}
    assert dict(again["new/where"].attrs) == {"title": "t"}
    assert len(contents(place)) == number + {3: 1, 2: 2}[zarr_format]  # Those of `new`.
    assert not [key for key in contents(place) if re.match("a[/.]", key)]
    root.move("new/where/b/x", "x")
    np.testing.assert_array_equal(xzarr3.open_array(place, "x")[3], np.arange(24, 32))
    root.consolidate()
    root.move("new", "c/a")
    held, own = (dict(xzarr3.open_group(place, use_consolidated=use).members(None)) for use in (True, False))
    assert held.keys() == own.keys() == {"c", "c/a", "c/a/where", "c/a/where/b", "c/a/where/y", "x", "z"}
    assert held["c/a/where/y"].shape == (3,)


WRONG: dict[str, tuple[str, str, type[Exception]]] = {
    "into itself": ("a", "a/c", NodeExistsError), "to itself": ("a", "a", NodeExistsError),
    "to a group above": ("a/b", "a", NodeExistsError), "onto another": ("a", "z", NodeExistsError),
    "onto keys of others": ("a", "q", NodeExistsError), "below an array": ("a", "z/a", xzarr3.NodeTypeError),
    "what is not there": ("q", "r", NodeNotFoundError), "to a reserved name": ("a", "__r", InvalidKeyError),
    "to a name of ours": ("a", "g/.xzarr3-staged-r", InvalidKeyError),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_move_stays(what: str, place: xzarr3.Store) -> None:
    source, dest, error = WRONG[what]
    root = sample(place)
    place.set("q/notes.txt", b"mine")
    before = contents(place)
    refused(error, lambda: root.move(source, dest), match=r"q/notes\.txt" if dest == "q" else None)
    refused(xzarr3.ReadOnlyError, lambda: xzarr3.open_group(place).move("a", "b"))
    assert contents(place) == before


KEYS: dict[str, Callable[[Path], xzarr3.Store]] = {
    "memory": lambda base: MemoryStore(),
    "wrapped directory": lambda base: xzarr3.WrapperStore(LocalStore(base / "s.zarr")),
    "fsspec": lambda base: xzarr3.open_store(f"memory://{base}"),
}


@pytest.mark.parametrize("kind", [*KEYS, "draft"])
def test_what_is_no_directory_is_to_be_copied(kind: str, tmp_path: Path) -> None:
    """Nodes of the draft have two."""
    store = LocalStore(tmp_path / "s.zarr") if kind == "draft" else KEYS[kind](tmp_path)
    root = sample(store, "3-draft" if kind == "draft" else 3)
    before = contents(store)
    with pytest.raises(xzarr3.StoreCapabilityError, match=r"copy it with xzarr3\.copy\(\), then delete it"):
        root.move("a", "n")
    assert contents(store) == before


def test_a_failure_leaves_the_node_at_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = sample(LocalStore(tmp_path))

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(StoreError, match=r"cannot rename 'a' .* to 'n': the disk is gone"):
            root.move("a", "n")
    np.testing.assert_array_equal(root["a/b/x"][...], np.arange(64).reshape(8, 8))
