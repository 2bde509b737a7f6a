"""Paths, links and documents that try to lead out of a store, and directories that hold other things.

Every test runs in a child without the rights of root, with a canary beside the store that it could
damage. It passes only if the canary is untouched.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import socket
import stat
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import not_refused, reads
from _strategies import LITTLE, array_document, attempt, chunk_document
from _things import refused
from _unprivileged import NOBODY, run_unprivileged, snapshot, unprivileged

import xzarr3
from xzarr3 import Array, Group, InvalidKeyError, LocalStore, StoreError, StorePermissionError, Xzarr3Error
from xzarr3.commit.lease import Holder, place_key
from xzarr3.commit.staged import Swap
from xzarr3.dask import from_zarr
from xzarr3.stores.local import system
from xzarr3.stores.local.names import STAGED

CLIMBING = [
    "..", "../outside", "../outside/planted", "/../outside", "//..//outside", "a/..",
    "a/../../outside/planted", "a/../../../../../../../../../../tmp/xzarr3-planted", "/a/b/../../../outside",
    "a/./b", "./a", ".", "a//b", "a\0b", "\0", "..\0",
]  # fmt: skip


def _store(base: Path) -> str:
    return str(base / "store")


def _hierarchy(base: Path, path: str = "") -> None:
    root = xzarr3.create_group(_store(base), path)
    root.create_group("a/b", attributes={"x": 1})
    root.create_array("plain", data=np.arange(12.0), chunks=3)
    root.create_array("a/deep", data=np.arange(16).reshape(4, 4), chunks=(2, 2))
    root.create_array("a/b/sharded", data=np.arange(16.0), chunks=2, shards=8)


def _root(store: Any, path: str = "") -> Group:
    return xzarr3.open_group(store, path, mode="r+")


IN_GROUPS: dict[str, Callable[[Group, str], object]] = {
    "get": lambda group, path: group[path],
    "set": lambda group, path: group.__setitem__(path, np.arange(4)),
    "delete": lambda group, path: group.__delitem__(path),
    "create_array": lambda group, path: group.create_array(path, data=np.arange(4)),
    "create_group": lambda group, path: group.create_group(path, overwrite=True),
    "require_array": lambda group, path: group.require_array(path, shape=4),
    "require_group": lambda group, path: group.require_group(path),
    "zeros": lambda group, path: group.zeros(path, shape=4),
    "move": lambda group, path: group.move(path, "moved"),
    "move to": lambda group, path: group.move(max(group), path),
}
ON_PATHS: dict[str, Callable[[str, str], object]] = {
    **{f"{name} in {group!r}": lambda store, path, act=act, group=group: act(_root(store, group), path)
       for name, act in IN_GROUPS.items() for group in ("", "a/b")},
    "create_group": xzarr3.create_group,
    "create_group overwrite": partial(xzarr3.create_group, overwrite=True),
    "create_array": partial(xzarr3.create_array, data=np.arange(4)),
    "create_array overwrite": partial(xzarr3.create_array, data=np.arange(4), overwrite=True),
    **{f"open_group {mode}": partial(xzarr3.open_group, mode=mode) for mode in ("a", "w", "w-", "r")},
    "open_array r+": partial(xzarr3.open_array, mode="r+"),
    "open r": xzarr3.open,
    "consolidate_metadata": xzarr3.consolidate_metadata,
    "from_zarr": from_zarr,
    "load": xzarr3.load,
    "group": lambda store, path: xzarr3.group(store, path, overwrite=True),
    "zeros": lambda store, path: xzarr3.zeros(4, store=store, path=path, overwrite=True),
    "save": lambda store, path: xzarr3.save(store, [1], path=path, overwrite=True),
    "save_group": lambda store, path: xzarr3.save(store, [1], [2], path=path, overwrite=True),
    "name": lambda store, path: xzarr3.create_array(store, name=path, shape=4, dtype="i4", overwrite=True),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_PATHS)
@unprivileged(_hierarchy)
def test_node_paths_that_climb_are_refused_and_absolute_ones_are_of_the_store(base: Path, name: str) -> None:
    """A leading slash means the root of the hierarchy and never that of the file system."""
    before = snapshot(base / "store")
    assert not_refused({name: partial(ON_PATHS[name], _store(base))}, CLIMBING) == []
    assert snapshot(base / "store") == before, "refused, and yet the store changed"
    for path in (f"{base}/outside/planted", f"{base}/outside", f"{base}/canary.txt"):
        with contextlib.suppress(Xzarr3Error):
            ON_PATHS[name](_store(base), path)


@pytest.mark.parametrize("name", ["", "/", "//"])
@pytest.mark.parametrize("group", ["", "a"])
@unprivileged(_hierarchy)
def test_a_group_is_not_deleted_or_replaced_through_itself(base: Path, group: str, name: str) -> None:
    """An empty variable in ``del group[name]`` and the like must not take the whole hierarchy with it."""
    before = snapshot(base / "store")
    node = partial(xzarr3.open_group, _store(base), group, mode="r+")
    refused(
        Xzarr3Error, None, lambda: node().__delitem__(name), lambda: node().__setitem__(name, 1),
        *(lambda: node().move(name, "moved"), lambda: node().move("b" if group else "a", name)),
    )  # fmt: skip
    assert snapshot(base / "store") == before


@pytest.mark.parametrize("name", ["a/b", "/a", "a\\b", "..", ""])
@unprivileged()
def test_names_of_variables_that_are_paths_are_refused(base: Path, name: str) -> None:
    dataset = xr.Dataset({"v": ("x", [1])})
    xzarr3.to_zarr(dataset, base / "store" / "there")
    there, new = (base / "store" / place for place in ("there", "new"))
    write = partial(xzarr3.to_zarr, dataset.rename(v=name))
    writes = (partial(write, path, mode=mode) for path in (there, new) for mode in ("w", "a"))
    refused(ValueError, "invalid name", *writes)
    assert not new.exists()
    refused(InvalidKeyError, r"\.\./a", partial(xzarr3.to_zarr, dataset, there, group="../a"))
    xr.testing.assert_identical(xzarr3.open_dataset(there, chunks=None), dataset)


def _linked(base: Path) -> None:
    """A hierarchy with links to the outside: a directory, a document, a chunk, a directory of chunks."""
    _hierarchy(base)
    store = base / "store"
    outside = base / "outside"
    xzarr3.create_array(str(outside / "array"), data=np.arange(12.0), chunks=3)
    xzarr3.create_group(str(outside / "group"), "below")
    (store / "folder").symlink_to(outside)
    (store / "group").symlink_to("../outside/group")
    (store / "array").symlink_to("../outside/array")
    xzarr3.create_array(str(store), "parts", data=np.arange(12.0), chunks=3)
    (store / "parts" / "c" / "0").unlink()
    (store / "parts" / "c" / "0").symlink_to("../../../outside/deep/data.bin")
    xzarr3.create_array(str(store), "chunks", data=np.arange(12.0), chunks=3)
    os.rename(store / "chunks" / "c", outside / "c")
    (store / "chunks" / "c").symlink_to("../../outside/c")
    (store / "document").mkdir()
    (store / "document" / "zarr.json").symlink_to("../../outside/zarr.json")
    (store / "up").symlink_to("..")


THROUGH_LINKS: dict[str, Callable[[LocalStore], object]] = {
    "set new": lambda store: store.set("folder/planted", b"x"),
    "set over": lambda store: store.set("folder/deep/data.bin", b"x"),
    "set below": lambda store: store.set("folder/new/planted", b"x"),
    "set upwards": lambda store: store.set("up/canary.txt", b"x"),
    "set parts": lambda store: store.set_partial_values([("folder/deep/data.bin", 0, b"x")]),
    "erase": lambda store: store.erase("folder/deep/data.bin"),
    "erase upwards": lambda store: store.erase("up/canary.txt"),
    "erase_values": lambda store: store.erase_values(["folder/zarr.json", "folder/deep/data.bin"]),
    "erase_prefix": lambda store: store.erase_prefix("folder/"),
    "erase_prefix upwards": lambda store: store.erase_prefix("up/"),
    "erase_prefix above": lambda store: store.erase_prefix("chunks/"),
    "create_group": lambda store: xzarr3.create_group(store, "folder/planted"),
    "create_array": lambda store: xzarr3.create_array(store, "folder/planted", data=np.arange(3)),
    "create over array": lambda store: xzarr3.create_array(store, "array", data=np.arange(3), overwrite=True),
    "create over group": lambda store: xzarr3.create_group(store, "group", overwrite=True),
    "create over link": lambda store: xzarr3.create_group(store, "folder", overwrite=True),
    "create over root": lambda store: xzarr3.create_group(store, overwrite=True),
    "open w": lambda store: xzarr3.open_group(store, mode="w"),
    **{
        f"delete {name}": lambda store, name=name: _root(store).__delitem__(name)
        for name in ("array", "group", "chunks", "parts", "document")
    },
    "write array": lambda store: _array(store, "array").set(..., 7),
    "write part": lambda store: _array(store, "array").set(slice(1, 2), 7),
    "write empty": lambda store: _array(store, "array").set(..., 0),
    "write chunks": lambda store: _array(store, "chunks").set(..., 7),
    "empty chunks": lambda store: _array(store, "chunks").set(..., 0),
    "write parts": lambda store: _array(store, "parts").set(slice(3, None), 7),
    "replace a linked chunk": lambda store: _array(store, "parts").set(slice(0, 3), 7),
    "empty a linked chunk": lambda store: _array(store, "parts").set(slice(0, 3), 0),
    "resize": lambda store: _array(store, "array").resize(2),
    "resize chunks": lambda store: _array(store, "chunks").resize(2),
    "append": lambda store: _array(store, "array").append(np.arange(5.0)),
    "append chunks": lambda store: _array(store, "chunks").append(np.arange(5.0)),
    **{
        f"{name} attributes": lambda store, name=name: xzarr3.open(store, name, mode="r+").attrs.update(x=1)
        for name in ("array", "group", "document")
    },
    "consolidate": lambda store: xzarr3.consolidate_metadata(store, "group"),
    "consolidate document": lambda store: xzarr3.consolidate_metadata(store, "document"),
    **{
        f"move to {place}": lambda store, place=place: _root(store).move("plain", place)
        for place in ("folder/planted", "folder", "group/planted", "up/planted")
    },
    **{
        f"move {name}": lambda store, name=name: _root(store).move(name, "moved")
        for name in ("array", "group", "group/below", "chunks", "document")
    },
    "set an array": lambda store: _root(store).__setitem__("folder/planted", 1),
    "set an array over": lambda store: _root(store).__setitem__("array", 1),
    "save over": lambda store: xzarr3.save(store, [1], [2], path="group", overwrite=True),
}


def _array(store: LocalStore, path: str) -> Array:
    return xzarr3.open_array(store, path, mode="r+")


@pytest.mark.parametrize("name", THROUGH_LINKS)
@unprivileged(_linked)
def test_links_do_not_lead_writes_out_of_the_store(base: Path, name: str) -> None:
    with contextlib.suppress(Xzarr3Error):  # Refused, which is an answer; any other error is none.
        THROUGH_LINKS[name](LocalStore(base / "store"))


@unprivileged(_linked)
def test_links_can_be_read_through(base: Path) -> None:
    root = xzarr3.open_group(_store(base))
    assert root["array"][:].tolist() == list(range(12))
    assert root["chunks"][:].tolist() == list(range(12))
    assert "below" in root["group"]


def _kept(base: Path) -> list[str]:
    return sorted(name for name in snapshot(base / "store") if name != ".")


def _plant(base: Path) -> LocalStore:
    store = LocalStore(base / "store")
    for key in ("a/b", "a/c/d", "a/c/e/f", "b"):
        store.set(key, b"value")
    return store


LINKS: dict[str, str] = {
    "to a file outside": "../../canary.txt", "to a directory outside": "../../outside",
    "to a directory outside, absolute": "{base}/outside", "to the directory above the store": "../..",
    "to the root of the system": "/", "to a file inside": "../b", "to a directory inside": "../other",
    "to the root of the store": "..", "to its own directory": ".", "to itself": "link",
    "to nothing": "nowhere", "to nothing outside": "../../nowhere",
}  # fmt: skip


@pytest.mark.parametrize("target", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("depth", [0, 1], ids=["the prefix itself", "below the prefix"])
@unprivileged()
def test_erasing_a_prefix_removes_links_and_nothing_behind_them(base: Path, target: str, depth: int) -> None:
    store = _plant(base)
    store.set("other/x", b"value")
    (base / "store" / "a" / "link").symlink_to(target.format(base=base))
    store.erase_prefix("a/" if depth else "a/link/")
    others = ["b", "other", "other/x"]
    a = ["a", "a/b", "a/c", "a/c/d", "a/c/e", "a/c/e/f"]
    leads_on = any(word in target for word in ("outside", "other")) or target in ("../..", "/", "..", ".")
    expected = others if depth else sorted(a + others + ([] if leads_on else ["a/link"]))
    assert _kept(base) == expected


@pytest.mark.parametrize("target", LINKS.values(), ids=LINKS)
@unprivileged()
def test_erasing_a_link_removes_it_and_not_what_is_behind_it(base: Path, target: str) -> None:
    store = _plant(base)
    store.set("other/x", b"value")
    before = _kept(base)
    for erase in (store.erase, lambda key: store.erase_values([key, "no"])):
        (base / "store" / "a" / "link").symlink_to(target.format(base=base))
        erase("a/link")
        assert _kept(base) == before


@unprivileged()
def test_keys_behind_links_within_the_store_are_erased(base: Path) -> None:
    store, root = _plant(base), base / "store"
    for link, target in (("alias", "a"), ("absolute", root / "a"), ("a/up", "../a/c")):
        (root / link).symlink_to(target)
    store.erase("alias/b", "absolute/up/e/f")
    store.erase_prefix("alias/up/")
    assert _kept(base) == ["a", "a/c", "a/c/d", "absolute", "alias", "b"]
    below = LocalStore(root / "alias")  # A root that is a link.
    below.set("c/x/y", b"value")
    below.set("z", b"value")
    below.erase("z")
    assert _kept(base) == ["a", "a/c", "a/c/d", "a/c/x", "a/c/x/y", "absolute", "alias", "b"]
    below.erase_prefix("c/x/")
    assert _kept(base) == ["a", "a/c", "a/c/d", "absolute", "alias", "b"]


CHANGING: dict[str, Callable[[LocalStore], object]] = {
    "set": lambda store: store.set("a/deep/data.bin", b"new"),
    "set new": lambda store: store.set("a/deep/new", b"new"),
    "set parts": lambda store: store.set_partial_values([("a/deep/data.bin", 0, b"new")]),
    "erase": lambda store: store.erase("a/zarr.json", "a/deep/data.bin"),
    "erase_prefix": lambda store: store.erase_prefix("a/deep/"),
    "erase_prefix above": lambda store: store.erase_prefix("a/"),
}


@unprivileged()
def test_erase_while_the_root_is_removed(base: Path) -> None:
    root = base / "store" / "0"
    for name, change in CHANGING.items():
        for n in range(11):
            store = LocalStore(root)
            store.set("a/zarr.json", b"{}")
            store.set("a/deep/data.bin", b"value")
            calls, real = itertools.count(), os.open

            def first(*args: Any, n: int = n, calls: Any = calls, real: Any = real, **options: Any) -> int:
                if next(calls) == n:
                    shutil.rmtree(root, ignore_errors=True)
                return real(*args, **options)  # type: ignore[no-any-return]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "open", first)
                _, error = attempt(partial(change, store), Xzarr3Error)
                assert error is None or name.startswith("set"), name
            shutil.rmtree(root, ignore_errors=True)


@unprivileged()
def test_erasing_what_may_not_be_erased(base: Path) -> None:
    """It is told by its name; what cannot be seen stays."""
    store = _plant(base)
    folder = base / "store" / "a" / "c"
    before = _kept(base)
    unseen = [name for name in before if name != "a/b"]
    for mode, kept in ((0, unseen), (0o300, unseen), (0o500, ["a", "a/c", "a/c/d", "a/c/e", "b"])):
        os.chmod(folder, mode)
        refused(StorePermissionError, r"key 'a/' .* '[cde]'", partial(store.erase_prefix, "a/"))
        os.chmod(folder, 0o700)
        left = _kept(base)
        assert set(kept) <= set(left) <= set(before)
        store = _plant(base)
    os.chmod(folder, 0o500)
    erases = partial(store.erase, "a/c/d"), partial(store.erase_values, ["a/b", "a/c/d"])
    told = r"a/c/(d|' .* '[def]')"
    refused(StorePermissionError, told, *erases, partial(store.erase_prefix, "a/c/"))
    os.chmod(folder, 0o700)
    store.erase_prefix("a/")
    assert _kept(base) == ["b"]


@unprivileged()
def test_directories_that_can_only_be_searched(base: Path) -> None:
    """A user need not be able to list the directories above his own."""
    store = _plant(base)
    for folder in (base / "store", base / "store" / "a"):
        os.chmod(folder, 0o100)
    store.set("a/c/d", b"new")
    assert bytes(store.get("a/c/d") or b"") == b"new"
    store.erase("a/c/d")
    store.erase_prefix("a/c/e/")
    store.erase("a/no")
    for folder in (base / "store", base / "store" / "a"):
        os.chmod(folder, 0o700)
    assert _kept(base) == ["a", "a/b", "a/c", "b"]


def _special(base: Path) -> None:
    """A pipe, a socket and a second name of a file outside."""
    _plant(base)
    os.chdir(base / "store" / "a" / "c")  # The path of a socket may be short only.
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    os.link(base / "outside" / "deep" / "data.bin", "hard link")
    os.chdir(base)


@unprivileged(_special)
def test_special_files_are_erased_and_not_opened_or_written(base: Path) -> None:
    store = LocalStore(base / "store")
    assert {f"a/c/{name}" for name in ("pipe", "socket", "hard link")} <= set(store.list())
    refused(StoreError, None, *(partial(store.get, f"a/c/{name}") for name in ("pipe", "socket")))
    store.set("a/c/hard link", b"x")
    assert store.get("a/c/hard link") == b"x"
    store.erase_prefix("a/")
    assert _kept(base) == ["b"]


@unprivileged()
def test_names_that_stand_for_the_same_bytes(base: Path) -> None:
    """Bytes in no encoding have names of their own, but no second name for those that are in one."""
    store = LocalStore(base / "store")
    store.set("\u00e9", b"letter")
    for key in ("\udcc3\udca9", "a/\udcc3\udca9", "\ud800", "a/\udfff/b"):
        calls = {**reads(store), "set": lambda key: store.set(key, b"x"), "erase": store.erase}
        prefixes = (store.erase_prefix, lambda prefix: list(store.list_prefix(prefix)), store.list_dir)
        calls |= {f"prefix {at}": lambda key, call=call: call(f"{key}/") for at, call in enumerate(prefixes)}
        assert not_refused(calls, [key]) == []
    store.set("\udcff/\udc80", b"bytes")
    assert sorted(store.list()) == sorted(["\u00e9", "\udcff/\udc80"])
    assert os.listdir(os.fsencode(base / "store" / "\udcff")) == [b"\x80"]
    store.erase_prefix("\udcff/")
    assert list(store.list()) == ["\u00e9"]


@unprivileged()
def test_many_links_into_each_other_are_listed_in_time(base: Path) -> None:
    store = _plant(base)
    for n in range(30):
        (base / "store" / "a" / f"self-{n}").symlink_to(".")
        (base / "store" / "a" / f"up-{n}").symlink_to("../a")
        (base / "store" / "a" / "c" / f"root-{n}").symlink_to("../..")
    assert sorted(store.list()) == ["a/b", "a/c/d", "a/c/e/f", "b"]
    store.erase_prefix("a/")
    assert len(_kept(base)) == 1


@unprivileged()
def test_paths_longer_than_the_system_permits_leave_nothing(base: Path) -> None:
    store = _plant(base)
    before = _kept(base)
    makes = (xzarr3.create_group, xzarr3.open_group, xzarr3.open_array)
    for key in ("d/" * 3000 + "x", "y" * 300, "a/" + "y" * 5000, "\ud800"):
        refused(StoreError, None, partial(store.set, key, b"x"), partial(store.get, key))
        refused(Xzarr3Error, None, *(partial(make, _store(base), key) for make in makes))
    assert _kept(base) == before
    deep = "d/" * 500 + f"{200 * 'y'}/" * 8 + "x"
    store.set(deep, b"x")
    assert list(store.list_prefix("d/")) == [deep]
    store.erase_prefix("d/")
    assert sorted(set(_kept(base)) - set(before)) == []


@unprivileged()
def test_erase_prefix_removes_leftovers_and_not_what_is_in_use_or_waits_for_its_place(base: Path) -> None:
    """What a write has staged may be the only copy of something."""
    store, staged = _plant(base), "a/.xzarr3-staged-x"
    for name in ("a/c/1", "a/c/e/2"):
        (base / "store" / f"{name}.__lock").write_bytes(b"half")
    with open(base / "store" / "a" / "b.__lock", "xb") as held:
        assert system.lock(held.fileno())
        store.erase_prefix("a/")
        assert _kept(base) == ["a", "a/b.__lock", "b"]
    store.set(f"{staged}/old/zarr.json", b"{}")
    store.erase_prefix("a/")
    assert _kept(base) == ["a", staged, f"{staged}/old", f"{staged}/old/zarr.json", "b"]


@unprivileged()
def test_put_whose_directory_is_erased_meanwhile(base: Path) -> None:
    """Its lock file is in use, so the directory stays, and the value arrives."""
    store, real = _plant(base), os.replace

    def erase_first(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(os, "replace", real)
            LocalStore(store.root).erase_prefix("a/")
        real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", erase_first)
        store.set("a/c/new", b"value")
    assert sorted(store.list()) == ["a/c/new", "b"]


def _with_lock_files(base: Path) -> None:
    _plant(base)
    for folder in ("store/a", "outside", "store/.xzarr3-staged-x/new"):
        (base / folder).mkdir(parents=True, exist_ok=True)
        (base / folder / "x.__lock").write_bytes(b"half")


@unprivileged(_with_lock_files)
def test_leftovers_are_found_without_following_links(base: Path) -> None:
    store = LocalStore(base / "store")
    (base / "store" / "link").symlink_to("../outside")
    (base / "store" / "y.__lock").symlink_to("../canary.txt")
    assert list(store.leftovers()) == ["a/x.__lock"]
    store.set("a/x", b"new")
    assert list(store.leftovers()) == []


@pytest.mark.parametrize("root", ["a\0b", "\0", "a\ud800b", "\udcc3\udca9"], ids=ascii)
@unprivileged()
def test_roots_the_system_has_no_name_for(base: Path, root: str) -> None:
    refused(StoreError, "accepted", lambda: LocalStore(base / "store" / root))


@unprivileged()
def test_root_that_is_a_link_is_the_directory_it_points_to(base: Path) -> None:
    real = base / "store" / "real"
    real.mkdir()
    (base / "store" / "alias").symlink_to("real")
    root = xzarr3.create_group(base / "store" / "alias")
    root.create_array("x", data=np.arange(5), chunks=2)
    assert xzarr3.open_array(real, "x")[:].tolist() == [0, 1, 2, 3, 4]
    del root["x"]
    assert os.listdir(real) == ["zarr.json"]
    xzarr3.open_group(base / "store" / "alias", mode="w", attributes={"new": True})
    assert (base / "store" / "alias").is_symlink()
    assert xzarr3.open_group(real).attrs["new"] is True


def _unknown_document(node: Path) -> None:
    document = json.loads((node / "a" / "deep" / "zarr.json").read_bytes())
    document["chunk_key_encoding"] = {"name": "of the future"}
    (node / "a" / "deep" / "zarr.json").write_text(json.dumps(document))


def _files_named(*names: str) -> Callable[[Path], None]:
    """Plants files; those that are documents are broken."""

    def plant(node: Path) -> None:
        for name in names:
            (node / name).parent.mkdir(parents=True, exist_ok=True)
            (node / name).write_bytes(b"{" if name.endswith((".json", ".zarray")) else b"precious")

    return plant


FOREIGN: dict[str, Callable[[Path], object]] = {
    **{name: _files_named(name) for name in (
        *("report.docx", ".git/config", "a/b/c/d/e/thesis.tex", "plain/c/notes", "a/b/zarr.json.bak"),
        # As chunks are named: too deep, in another spelling, those of version 2.
        *("plain/c2/0/0", "plain/c/00", "plain/0.0", "old/.zarray.bak", "old/0.0"),
    )},
    "name in no encoding": lambda node: Path(os.fsdecode(os.fsencode(node) + b"/\xff\xfe")).write_bytes(b"x"),
    "link to a file": lambda node: (node / "link").symlink_to("../canary.txt"),
    "link to a directory": lambda node: (node / "plain" / "link").symlink_to("../../outside/deep"),
    "link to nothing": lambda node: (node / "link").symlink_to("nowhere"),
    "pipe": lambda node: os.mkfifo(node / "pipe"),
    "no document": lambda node: ((node / "zarr.json").unlink(), _files_named("report.docx")(node)),
    # Documents that cannot be read.
    "chunk of a broken array of version 2": _files_named("old/.zarray", "old/0.0"),
    "broken document": _files_named("a/deep/zarr.json"),
    "unknown document": _unknown_document,
}  # fmt: skip

REPLACING: dict[str, Callable[[str], object]] = {
    "mode w": lambda store: xzarr3.open_group(store, mode="w"),
    "create_group": lambda store: xzarr3.create_group(store, overwrite=True),
    "create_array": lambda store: xzarr3.create_array(store, data=np.arange(3), overwrite=True),
    "to_zarr": partial(xzarr3.to_zarr, xr.Dataset({"plain": ("x", np.arange(5.0))}), mode="w"),
}

DELETING: list[Callable[[Group], object]] = [
    lambda root: root.__delitem__("victim"),
    lambda root: root.create_group("victim", overwrite=True),
    lambda root: root.create_array("victim", data=np.arange(3), overwrite=True),
]


def _files(root: Path) -> dict[str, tuple[Any, ...]]:
    """What is no directory, by name."""
    return {name: what for name, what in snapshot(root).items() if not stat.S_ISDIR(what[1])}


def _planted(plant: str, node: Path) -> set[str]:
    before = _files(node)
    FOREIGN[plant](node)
    return _files(node).keys() - before


@pytest.mark.parametrize("how", REPLACING)
@pytest.mark.parametrize("plant", FOREIGN)
@unprivileged(_hierarchy)
def test_replacing_keeps_foreign_files_beside_nodes(base: Path, plant: str, how: str) -> None:
    """What lies within a node goes with it; links are removed, not followed. A refusal changes nothing."""
    nodes = ("zarr.json", "plain", "a", *(["old"] if "broken array" in plant else []))
    planted = _planted(plant, base / "store")
    before = _files(base / "store")
    beside = {name: before[name] for name in planted if name.split(os.sep)[0] not in nodes}
    try:
        REPLACING[how](_store(base))
    except Xzarr3Error:
        assert _files(base / "store") == before
        return
    after = _files(base / "store")
    assert {name: after.get(name) for name in beside} == beside


@pytest.mark.parametrize("plant", FOREIGN)
@unprivileged()
def test_deleting_removes_what_lies_within_a_node_and_nothing_else(base: Path, plant: str) -> None:
    for delete in DELETING[plant == "no document" :]:  # There is no node then.
        _hierarchy(base, "victim")
        _hierarchy(base, "other")
        _planted(plant, base / "store" / "victim")
        other = _files(base / "store" / "other")
        delete(_root(_store(base)))
        assert _files(base / "store" / "other") == other
        for node in ("victim", "other"):
            shutil.rmtree(base / "store" / node, ignore_errors=True)


@unprivileged(_hierarchy)
def test_replacing_erases_a_hierarchy_and_nothing_beside_it(base: Path) -> None:
    root = xzarr3.open_group(_store(base), mode="r+")
    root.create_array("a.b/x", data=np.arange(4))
    root.create_array("ab", data=np.arange(4))
    (base / "store" / "empty" / "folder").mkdir(parents=True)
    before = snapshot(base / "store").keys()
    del root["a"]
    assert {name.split("/")[0] for name in before - snapshot(base / "store").keys()} == {"a"}
    assert sorted(root) == ["a.b", "ab", "plain"]
    assert root["plain"][:].tolist() == list(range(12))
    assert list(xzarr3.open_group(_store(base), mode="w", attributes={"fresh": 1})) == []
    assert sorted(os.listdir(base / "store")) == ["empty", "zarr.json"]
    assert (base / "store" / "empty" / "folder").is_dir()


@pytest.mark.parametrize(("folder", "root"), [
    *(("store", root) for root in ("../outside", "../outside/", "./../outside/./", "../store/../outside")),
    *(("outside", root) for root in (".", "./")),
])  # fmt: skip
@pytest.mark.parametrize("name", [name for name in REPLACING if name != "to_zarr"])
def test_foreign_files_of_a_relative_root_stay(name: str, folder: str, root: str) -> None:
    def work(base: Path) -> None:
        os.chdir(base / folder)
        REPLACING[name](root)
        refused(Xzarr3Error, None, lambda: xzarr3.open_group("", mode="w"))

    outcome = run_unprivileged(work)
    assert outcome.error is None, outcome.trace
    assert set(outcome.changed) <= {"outside", "outside/zarr.json", "outside/c", "outside/c/0"}


@unprivileged()
def test_relative_root_stays_where_it_was_when_the_directory_changes(base: Path) -> None:
    array = xzarr3.create_array("store/x.zarr", data=np.arange(6), chunks=2)
    os.chdir(base / "outside")
    array[:] = 7
    array.attrs["there"] = True
    array.resize((4,))
    assert xzarr3.open_array(base / "store" / "x.zarr")[:].tolist() == [7] * 4


@pytest.mark.parametrize("names", [
    [".."], ["../outside/planted"], ["a", "a/../../outside/planted"], ["/tmp/xzarr3-planted"], [""], ["/"],
    ["."], ["a", "a/"], ["a", "a//b"], ["a", "a/."], ["a\0b"], ["a", "a/b", "a/b/c"], ["__x", "zarr.json"],
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("kind", ["array", "group"])
@unprivileged()
def test_names_in_consolidated_metadata_that_climb(base: Path, names: list[str], kind: str) -> None:
    """Whoever walks such a hierarchy and writes to all he finds must not leave the store, and must end."""
    array = chunk_document("int32", (2,), [LITTLE], shape=[4])
    document = array if kind == "array" else {"zarr_format": 3, "node_type": "group"}
    held = {"kind": "inline", "must_understand": False, "metadata": dict.fromkeys(names, document)}
    text = json.dumps({"zarr_format": 3, "node_type": "group", "consolidated_metadata": held})
    (base / "store" / "zarr.json").write_text(text)
    root, error = attempt(lambda: xzarr3.open_group(_store(base), mode="r+"), Xzarr3Error)
    if error is not None:
        return
    for name in names:
        _touch(lambda name=name: [root[name]])
    _touch(lambda: [root.tree()])
    _touch(lambda: list(root.values()))
    for depth in (0, 1, None):
        _touch(lambda depth=depth: dict(root.members(max_depth=depth)).values())
    for name in [*names, *root]:
        _touch(lambda name=name: [root.__delitem__(name)])
    _touch(lambda: [root.consolidate()])


def _touch(find: Callable[[], Any]) -> None:
    with contextlib.suppress(Xzarr3Error):
        for node in find():
            with contextlib.suppress(Xzarr3Error):
                if isinstance(node, Array):
                    node[:] = 7
                    node.attrs["touched"] = True
                    node.resize((1,))
                elif isinstance(node, Group):
                    node.attrs["touched"] = True
                    node.create_array("planted", data=np.arange(3))


@pytest.mark.parametrize("separator", ["..", "/../", "../", "//", "", "\\", "\0", "/./", 5, None, ["/"]])
@pytest.mark.parametrize("encoding", ["default", "v2"])
@unprivileged()
def test_separators_that_climb_are_refused(base: Path, encoding: str, separator: object) -> None:
    keys = {"name": encoding, "configuration": {"separator": separator}}
    (base / "store" / "zarr.json").write_text(json.dumps(array_document(chunk_key_encoding=keys)))
    refused(xzarr3.MetadataError, "chunk_key_encoding", lambda: xzarr3.open_array(_store(base), mode="r+"))


def test_the_canary_sings() -> None:
    """Were the store to be left, these tests would see it: the helper notices every kind of change."""
    damages: list[Callable[[Path], object]] = [
        lambda base: (base / "canary.txt").write_text("dead"),
        lambda base: (base / "outside" / "planted").write_text("x"),
        lambda base: (base / "planted").mkdir(),
        lambda base: (base / "outside" / "deep" / "data.bin").unlink(),
        lambda base: os.utime(base / "outside" / "zarr.json"),
        lambda base: os.replace(base / "canary.txt", base / "store" / "canary.txt"),
        lambda base: os.chmod(base / "canary.txt", 0o600),
    ]
    for damage in damages:
        outcome = run_unprivileged(lambda base, damage=damage: damage(base) and None)
        assert outcome.changed != []
        refused(AssertionError, None, outcome.checked)
    assert run_unprivileged(lambda base: (base / "store" / "x").write_text("fine")).checked() == 4


def test_the_child_has_no_rights() -> None:
    def work(base: Path) -> tuple[int, int, list[int]]:
        refused(PermissionError, None, lambda: Path("/etc/xzarr3-planted").write_text("x"))
        return os.getuid(), os.getgid(), os.getgroups()

    user, group, groups = run_unprivileged(work).checked()
    assert user != 0
    assert 0 not in (group, *groups)
    if os.geteuid() == 0:
        assert (user, group, groups) == (NOBODY, NOBODY, [])


_TOP = f"{STAGED}{'0' * 32}/"


def _plant_swap(base: Path, path: str = "", top: str = _TOP, **said: Any) -> None:
    """What somebody may leave who wants others to move something: a lease, and a list of moves."""
    store = LocalStore(base / "store")
    swap = Swap(path, 3, [["t"]], ["t", "zarr.json"], {"": {}, "t": {}})
    (base / "store" / _TOP / "new" / "t").mkdir(parents=True)
    (base / "store" / _TOP / "new" / "t" / "data.bin").write_bytes(b"theirs")
    store.set(f"{_TOP}swap", dataclasses.replace(swap, **said).text())
    store.set(place_key(store, "", ""), Holder(owner="x", state="swapping", top=top, left=True).text())


def _swap_all(base: Path) -> None:
    """Everything that finishes a swap."""
    replace = partial(xzarr3.to_zarr, xr.Dataset({"u": ("x", np.zeros(3))}), mode="w")
    acts = (xzarr3.open_group, partial(xzarr3.open_array, path="t"), xzarr3.recover, replace)
    for act in acts:
        with contextlib.suppress(Xzarr3Error), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            act(_store(base))


_OUTSIDE = ["../outside/deep", "/etc", "..", "t/../../outside/deep", "a//b", ".", "", "t\0", f"{_TOP}new/t"]
_NO_LIST, _NO_PREFIX = "does not list what is left to do", "is not a prefix of values that a write staged"
PLANTED: list[tuple[dict[str, Any], str]] = [
    *(({"away": [[name]]}, _NO_LIST) for name in _OUTSIDE),
    *(({"come": [name]}, _NO_LIST) for name in _OUTSIDE),
    *(({"come": [name], "away": [[name]]}, _NO_LIST) for name in _OUTSIDE),
    *(({"path": path}, "") for path in ("../outside", "/etc", "a/../../outside", "..", "t\0")),
    *(({"top": top}, _NO_PREFIX) for top in ("../outside/", "/", "", f"{_TOP}../../outside/")),
    *(({"top": top}, _NO_PREFIX) for top in (f"{STAGED}x/", _TOP[:-1])),
]


@pytest.mark.parametrize(
    ("said", "words"), PLANTED, ids=[repr(said).replace(_TOP, "TOP/") for said, _ in PLANTED]
)
def test_a_planted_swap_moves_nothing_from_or_to_outside(said: dict[str, Any], words: str) -> None:
    def recovered(base: Path) -> str:
        found, error = attempt(lambda: xzarr3.recover(_store(base)), StoreError)
        return str(error or found)

    def plant(base: Path) -> None:
        _plant_swap(base, **said)

    run_unprivileged(_swap_all, prepare=plant).checked()
    assert words in run_unprivileged(recovered, prepare=plant).checked()


@pytest.mark.parametrize(
    "where", [_TOP[:-1], f"{_TOP}new", f"{_TOP}new/t", f"{_TOP}old", f"{_TOP}swap", "t", "zarr.json"]
)
@pytest.mark.parametrize("target", ["outside", "outside/deep", "outside/zarr.json"])
@pytest.mark.parametrize("unit", ["t", "t/data.bin"])
def test_a_swap_follows_no_planted_link(where: str, target: str, unit: str) -> None:
    def plant(base: Path) -> None:
        _plant_swap(base, come=[unit, "zarr.json"], away=[[unit]])
        place = base / "store" / where
        if place.is_dir():
            shutil.rmtree(place)
        elif place.exists():
            place.unlink()
        place.symlink_to(base / target)

    run_unprivileged(_swap_all, prepare=plant).checked()
