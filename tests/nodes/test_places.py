"""Handles on arrays in whose place other ones were put: their labels may not be those of the new values."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import refused

import xzarr3
from xzarr3 import ChangedError, LocalStore, MemoryStore, Store, to_zarr
from xzarr3.commit.directory import Directory
from xzarr3.nodes import seen
from xzarr3.xarray.variables import Xzarr3DataStore


def dataset(first: int) -> xr.Dataset:
    times = np.arange(first, first + 4)
    return xr.Dataset({"v": ("time", times * 10.0)}, {"time": times}, {"first": first})


def delete(store: Store) -> None:
    del xzarr3.open_group(store, mode="r+")["a"]


def remove(store: Store) -> None:
    if isinstance(store, LocalStore):
        shutil.rmtree(Path(store.root))
    else:
        store.erase(*store.list())


@pytest.fixture(params=["local", "memory", "dict", "fsspec"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "fsspec":
        return xzarr3.open_store(f"memory://{tmp_path}")
    made = {
        "local": lambda: LocalStore(tmp_path / "s.zarr"),
        "memory": MemoryStore,
        "dict": lambda: MemoryStore({}),
    }
    return made[request.param]()


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
@pytest.mark.parametrize("goes", [delete, remove])
@pytest.mark.parametrize("was_read", [False, True])
def test_a_node_is_deleted_and_another_one_stored(
    place: Store, goes: Callable[[Store], None], zarr_format: Any, was_read: bool
) -> None:
    to_zarr(dataset(0), place, group="a", zarr_format=zarr_format)
    with xr.open_dataset(place, engine="xzarr3", group="a", chunks=None) as older:
        array = xzarr3.open_array(place, "a/v", mode="r+")
        if was_read:
            older.isel(time=0).load()
            array[0]
        goes(place)
        to_zarr(dataset(100), place, group="a", zarr_format=zarr_format)
        for use in (older.load, lambda: array[:], lambda: array.resize(2), lambda: array.set(0, 7)):
            with pytest.raises(ChangedError, match=r"'/a/v' of .* was replaced since it was opened"):
                use()
    with xr.open_dataset(place, engine="xzarr3", group="a") as newer:
        assert newer.identical(dataset(100))


def test_a_node_is_moved_and_an_older_one_to_its_place(tmp_path: Path) -> None:
    root = xzarr3.create_group(tmp_path / "s.zarr")
    for first in (0, 100):
        to_zarr(dataset(first), root.store, group=f"n{first}")
    with xr.open_dataset(root.store, engine="xzarr3", group="n100", chunks=None) as older:
        root.move("n100", "aside")
        root.move("n0", "n100")
        refused(ChangedError, lambda: older.load(), match=r"'/n100/v' of .* was replaced since it was opened")
    for path, first in (("n100", 0), ("aside", 100)):
        with xr.open_dataset(root.store, engine="xzarr3", group=path) as found:
            assert found.identical(dataset(first))
    assert not xzarr3.check(root.store).errors


def test_a_group_is_replaced_between_its_attributes_and_its_arrays(place: Store) -> None:
    """Its attributes would be those of one dataset, its variables those of another."""
    to_zarr(dataset(0), place, group="a")
    group = xzarr3.open_group(place, "a", use_consolidated=False)
    to_zarr(dataset(100), place, group="a", mode="w")
    for use in (Xzarr3DataStore(group).get_variables, lambda: xzarr3.copy(group, MemoryStore())):
        with pytest.raises(
            ChangedError, match=r"group '/a' of .* was replaced since it was opened; open it again"
        ):
            use()


def test_a_writer_that_waits_for_another_puts_the_later_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handles on the other's node compare the dates of both."""
    reserve, found = Directory._reserve, []

    def reserve_later(self: Directory) -> None:
        monkeypatch.setattr(Directory, "_reserve", reserve)
        to_zarr(dataset(100), tmp_path, group="a", mode="w", consolidated=False)
        found.append(xr.open_dataset(tmp_path, engine="xzarr3", group="a", chunks=None, consolidated=False))
        found.append(xzarr3.open_array(tmp_path, "a/v"))
        for known in ("_newest", "_dates"):  # The other is a process of its own.
            monkeypatch.setattr(seen, known, {})
        reserve(self)

    to_zarr(dataset(0), tmp_path, group="a", consolidated=False)
    monkeypatch.setattr(Directory, "_reserve", reserve_later)
    to_zarr(dataset(200), tmp_path, group="a", mode="w", consolidated=False)
    refused(ChangedError, found[0].load, lambda: found[1][:])


@pytest.mark.parametrize("times", [1, 99])
def test_a_group_below_is_replaced_while_a_tree_is_read(tmp_path: Path, times: int) -> None:
    """What was listed of the old group may not be there any more: the tree would lack it."""
    left = times

    class Meanwhile(LocalStore):
        def list_dir(self, prefix: str) -> Any:
            nonlocal left
            found = super().list_dir(prefix)
            if prefix == "g/a/" and left:
                left -= 1
                to_zarr(
                    dataset(100 + left).rename(v="w"),
                    LocalStore(tmp_path),
                    group="g/a",
                    mode="w",
                    consolidated=False,
                )
            return found

    to_zarr(dataset(0), LocalStore(tmp_path), group="g/a", consolidated=False)
    root = xzarr3.open_group(Meanwhile(tmp_path), use_consolidated=False)
    if times > 1:
        with pytest.raises(ChangedError, match=r"groups below '/' of .* were replaced"):
            dict(root.members(None))
    else:
        found = dict(root.members(None))
        assert {*found} == {"g", "g/a", "g/a/time", "g/a/w"}
        assert found["g/a"].attrs["first"] == 100


def test_copies_that_are_returned_are_read_and_listed(place: Store) -> None:
    """Their metadata were read from documents of another store, which tell when that was written."""
    source = to_zarr(dataset(0), MemoryStore())
    for overwrite in (False, True):
        copied = xzarr3.copy(source, place, path="b", overwrite=overwrite)
        assert xr.open_dataset(copied, engine="xzarr3").identical(dataset(0))
        array = xzarr3.copy(source["v"], place, path="c", overwrite=overwrite)
        array[0] = 5
        assert array[:2].tolist() == [5, 10]
