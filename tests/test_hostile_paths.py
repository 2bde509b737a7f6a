"""Paths, links and documents that try to lead out of a store, and directories that hold other things.

Every test runs in a child without the rights of root, with a canary beside the store that it could
damage. It passes only if the canary is untouched.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _unprivileged import NOBODY, run_unprivileged, snapshot

import xzarr3
from xzarr3 import Array, Group, InvalidKeyError, LocalStore, NodeExistsError, Xzarr3Error
from xzarr3.dask import from_zarr

CLIMBING = [
    "..",
    "../outside",
    "../outside/planted",
    "/../outside",
    "//..//outside",
    "a/..",
    "a/../../outside/planted",
    "a/../../../../../../../../../../tmp/xzarr3-planted",
    "/a/b/../../../outside",
    "a/./b",
    "./a",
    ".",
    "a//b",
    "a\0b",
    "\0",
    "..\0",
]


def _tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything in a directory, as the canary is recorded."""
    return snapshot(root)


def _store(base: Path) -> str:
    return str(base / "store")


def _hierarchy(base: Path) -> None:
    """A group, a group in it and three arrays, one of them sharded."""
    root = xzarr3.create_group(_store(base))
    root.create_group("a/b", attributes={"x": 1})
    root.create_array("plain", data=np.arange(12.0), chunks=3)
    root.create_array("a/deep", data=np.arange(16).reshape(4, 4), chunks=(2, 2))
    root.create_array("a/b/sharded", data=np.arange(16.0), chunks=2, shards=8)


ON_PATHS: dict[str, Callable[[str, str], object]] = {
    "create_group": lambda store, path: xzarr3.create_group(store, path),
    "create_group overwrite": lambda store, path: xzarr3.create_group(store, path, overwrite=True),
    "create_array": lambda store, path: xzarr3.create_array(store, path, data=np.arange(4)),
    "create_array overwrite": lambda store, path: xzarr3.create_array(
        store, path, data=np.arange(4), overwrite=True
    ),
    "open_group a": lambda store, path: xzarr3.open_group(store, path, mode="a"),
    "open_group w": lambda store, path: xzarr3.open_group(store, path, mode="w"),
    "open_group w-": lambda store, path: xzarr3.open_group(store, path, mode="w-"),
    "open_group r": lambda store, path: xzarr3.open_group(store, path),
    "open_array r+": lambda store, path: xzarr3.open_array(store, path, mode="r+"),
    "open r": lambda store, path: xzarr3.open(store, path),
    "consolidate_metadata": lambda store, path: xzarr3.consolidate_metadata(store, path),
    "from_zarr": lambda store, path: from_zarr(store, path),
    "group get": lambda store, path: _writable(store)[path],
    "group create_array": lambda store, path: _writable(store).create_array(path, data=np.arange(4)),
    "group create_group": lambda store, path: _writable(store).create_group(path, overwrite=True),
    "group require_group": lambda store, path: _writable(store).require_group(path),
    "group delete": lambda store, path: _writable(store).__delitem__(path),
    "nested create_array": lambda store, path: _nested(store).create_array(path, data=np.arange(4)),
    "nested delete": lambda store, path: _nested(store).__delitem__(path),
    "nested get": lambda store, path: _nested(store)[path],
}


def _writable(store: str) -> Group:
    return xzarr3.open_group(store, mode="r+")


def _nested(store: str) -> Group:
    return xzarr3.open_group(store, "a/b", mode="r+")


@pytest.mark.parametrize("name", ON_PATHS)
def test_node_paths_that_climb_are_refused(name: str) -> None:
    def work(base: Path) -> list[str]:
        before = _tree(base / "store")
        accepted = []
        for path in CLIMBING:
            try:
                ON_PATHS[name](_store(base), path)
            except InvalidKeyError:
                continue
            accepted.append(path)
        assert _tree(base / "store") == before, "refused, and yet the store changed"
        return accepted

    assert run_unprivileged(work, prepare=_hierarchy).checked() == []


@pytest.mark.parametrize("name", ON_PATHS)
def test_absolute_node_paths_stay_within_the_store(name: str) -> None:
    """A leading slash means the root of the hierarchy and never that of the file system."""

    def work(base: Path) -> None:
        for path in (f"{base}/outside/planted", f"{base}/outside", f"{base}/canary.txt"):
            try:
                ON_PATHS[name](_store(base), path)
            except Xzarr3Error:
                continue

    assert run_unprivileged(work, prepare=_hierarchy).checked() is None


@pytest.mark.parametrize(
    "path",
    ["...", "....", "a/...", "__hidden", "a/__x", "__", "zarr.json", "a/zarr.json", "zarr.json/b"],
)
def test_names_the_specification_does_not_permit(path: str) -> None:
    def work(base: Path) -> None:
        for make in (
            lambda: xzarr3.create_group(_store(base), path),
            lambda: xzarr3.create_array(_store(base), path, data=np.arange(3)),
            lambda: xzarr3.open_group(_store(base), path, mode="a"),
            lambda: xzarr3.open_group(_store(base), path, mode="w"),
            lambda: _writable(_store(base)).create_group(path),
            lambda: _writable(_store(base)).create_array(path, data=np.arange(3)),
            lambda: _writable(_store(base)).require_group(path),
        ):
            with pytest.raises(InvalidKeyError):
                make()

    run_unprivileged(work, prepare=_hierarchy).checked()


@pytest.mark.parametrize("path", [None, 5, b"a", ["a"], Path("a")], ids=repr)
def test_paths_that_are_no_strings(path: Any) -> None:
    def work(base: Path) -> None:
        for make in (xzarr3.create_group, xzarr3.open_group, xzarr3.open_array, xzarr3.open):
            with pytest.raises((TypeError, Xzarr3Error)):
                make(_store(base), path)  # type: ignore[operator]

    run_unprivileged(work, prepare=_hierarchy).checked()


def test_endless_paths_end_in_our_error() -> None:
    def work(base: Path) -> None:
        for path in ("n" * 300, "d/" * 3000 + "x", "\ud800"):
            for make in (xzarr3.create_group, xzarr3.open_group, xzarr3.open_array):
                with pytest.raises(Xzarr3Error):
                    make(_store(base), path)

    run_unprivileged(work, prepare=_hierarchy).checked()


@pytest.mark.parametrize("name", ["", "/", "//"])
@pytest.mark.parametrize("group", ["", "a"])
def test_a_group_is_not_deleted_through_itself(group: str, name: str) -> None:
    """An empty variable in ``del group[name]`` must not take the whole hierarchy with it."""

    def work(base: Path) -> None:
        before = _tree(base / "store")
        with pytest.raises(Xzarr3Error):
            del xzarr3.open_group(_store(base), group, mode="r+")[name]
        assert _tree(base / "store") == before

    run_unprivileged(work, prepare=_hierarchy).checked()


def test_root_with_a_nul() -> None:
    def work(base: Path) -> None:
        for make in (xzarr3.create_group, xzarr3.open_group):
            with pytest.raises((Xzarr3Error, ValueError)):
                make(f"{base}/store\0/x")

    run_unprivileged(work).checked()


# Links that lead out of the store


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
    "delete array": lambda store: xzarr3.open_group(store, mode="r+").__delitem__("array"),
    "delete group": lambda store: xzarr3.open_group(store, mode="r+").__delitem__("group"),
    "delete chunks": lambda store: xzarr3.open_group(store, mode="r+").__delitem__("chunks"),
    "delete parts": lambda store: xzarr3.open_group(store, mode="r+").__delitem__("parts"),
    "delete document": lambda store: xzarr3.open_group(store, mode="r+").__delitem__("document"),
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
    "array attributes": lambda store: _array(store, "array").attrs.update(x=1),
    "group attributes": lambda store: xzarr3.open_group(store, "group", mode="r+").attrs.update(x=1),
    "document attributes": lambda store: xzarr3.open_group(store, "document", mode="r+").attrs.update(x=1),
    "consolidate": lambda store: xzarr3.consolidate_metadata(store, "group"),
    "consolidate document": lambda store: xzarr3.consolidate_metadata(store, "document"),
}


def _array(store: LocalStore, path: str) -> Array:
    return xzarr3.open_array(store, path, mode="r+")


@pytest.mark.parametrize("name", THROUGH_LINKS)
def test_links_do_not_lead_writes_out_of_the_store(name: str) -> None:
    outcome = run_unprivileged(lambda base: _attempt(LocalStore(base / "store"), name), prepare=_linked)
    assert outcome.error is None, outcome.trace
    assert outcome.changed == []


def _attempt(store: LocalStore, name: str) -> None:
    try:
        THROUGH_LINKS[name](store)
    except Xzarr3Error:  # Refused, which is an answer; any other error is none.
        return


@pytest.mark.parametrize(
    "name", ["erase_prefix above", "create over root", "open w", "delete chunks", "erase_values"]
)
def test_what_is_refused_for_a_link_is_refused_whole(name: str) -> None:
    """The message says that nothing was erased; then nothing was, within the store either."""

    def work(base: Path) -> None:
        before = _tree(base / "store")
        with pytest.raises(Xzarr3Error):
            THROUGH_LINKS[name](LocalStore(base / "store"))
        assert _tree(base / "store") == before

    outcome = run_unprivileged(work, prepare=_linked)
    assert outcome.changed == []
    outcome.checked()


def test_links_can_be_read_through() -> None:
    """Data on another disk, linked into a store, are an ordinary thing."""

    def work(base: Path) -> None:
        root = xzarr3.open_group(_store(base))
        assert root["array"][:].tolist() == list(range(12))
        assert root["chunks"][:].tolist() == list(range(12))
        assert "below" in root["group"]

    run_unprivileged(work, prepare=_linked).checked()


def test_writing_over_a_hard_link_leaves_the_other_name_alone() -> None:
    def work(base: Path) -> None:
        store = LocalStore(base / "store")
        os.link(base / "outside" / "deep" / "data.bin", base / "store" / "hard")
        store.set("hard", b"x")
        assert bytes(store.get("hard") or b"") == b"x"
        store.erase("hard")

    run_unprivileged(work).checked()


def test_root_that_is_a_link_is_the_directory_it_points_to() -> None:
    def work(base: Path) -> None:
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

    run_unprivileged(work).checked()


# Directories that hold more than Zarr


def _foreign_file(name: str, content: bytes = b"precious") -> Callable[[Path], None]:
    def plant(node: Path) -> None:
        (node / name).parent.mkdir(parents=True, exist_ok=True)
        (node / name).write_bytes(content)

    return plant


def _without_document(node: Path) -> None:
    (node / "zarr.json").unlink()
    _foreign_file("report.docx")(node)


def _broken_document(node: Path) -> None:
    (node / "a" / "deep" / "zarr.json").write_bytes(b"{")


def _unknown_document(node: Path) -> None:
    document = json.loads((node / "a" / "deep" / "zarr.json").read_bytes())
    document["chunk_key_encoding"] = {"name": "of the future"}
    (node / "a" / "deep" / "zarr.json").write_text(json.dumps(document))


FOREIGN: dict[str, Callable[[Path], None]] = {
    "file": _foreign_file("report.docx"),
    "hidden file": _foreign_file(".git/config"),
    "deep file": _foreign_file("a/b/c/d/e/thesis.tex"),
    "file among chunks": _foreign_file("plain/c/notes"),
    "file named like too deep a chunk": _foreign_file("plain/c2/0/0"),
    "file named like a chunk in another spelling": _foreign_file("plain/c/00"),
    "file named like a chunk of v2": _foreign_file("plain/0.0"),
    "file beside a document": _foreign_file("a/b/zarr.json.bak"),
    "array of version 2": _foreign_file("old/.zarray", b"{}"),
    "group of version 2": _foreign_file(".zgroup", b"{}"),
    "name in no encoding": lambda node: (Path(os.fsdecode(os.fsencode(node) + b"/\xff\xfe"))).write_bytes(
        b"x"
    ),
    "link to a file": lambda node: (node / "link").symlink_to("../canary.txt"),
    "link to nothing": lambda node: (node / "link").symlink_to("nowhere"),
    "pipe": lambda node: os.mkfifo(node / "pipe"),
    "no document": _without_document,
    "broken document": _broken_document,
    "unknown document": _unknown_document,
}

REPLACING: dict[str, Callable[[str], object]] = {
    "mode w": lambda store: xzarr3.open_group(store, mode="w"),
    "create_group": lambda store: xzarr3.create_group(store, overwrite=True),
    "create_array": lambda store: xzarr3.create_array(store, data=np.arange(3), overwrite=True),
}


@pytest.mark.parametrize("plant", FOREIGN)
def test_replacing_refuses_directories_with_foreign_files(plant: str) -> None:
    def work(base: Path) -> None:
        FOREIGN[plant](base / "store")
        before = _tree(base / "store")
        for name, replace in REPLACING.items():
            with pytest.raises(NodeExistsError) as caught:
                replace(_store(base))
            assert "nothing was erased" in str(caught.value), name
            assert _tree(base / "store") == before, name

    run_unprivileged(work, prepare=_hierarchy).checked()


@pytest.mark.parametrize("plant", FOREIGN)
def test_deleting_refuses_groups_with_foreign_files(plant: str) -> None:
    def prepare(base: Path) -> None:
        root = xzarr3.create_group(_store(base), "victim")
        root.create_array("plain", data=np.arange(12.0), chunks=3)
        root.create_array("a/deep", data=np.arange(16).reshape(4, 4), chunks=(2, 2))
        root.create_group("a/b")
        FOREIGN[plant](base / "store" / "victim")

    def work(base: Path) -> None:
        before = _tree(base / "store")
        for delete in (
            lambda root: root.__delitem__("victim"),
            lambda root: root.create_group("victim", overwrite=True),
            lambda root: root.create_array("victim", data=np.arange(3), overwrite=True),
        ):
            with pytest.raises(Xzarr3Error):
                delete(_writable(_store(base)))
            assert _tree(base / "store") == before

    run_unprivileged(work, prepare=prepare).checked()


def test_replacing_erases_a_hierarchy_and_nothing_beside_it() -> None:
    """The counterpart: where all of it is Zarr, it goes, and the neighbours stay."""

    def work(base: Path) -> None:
        root = xzarr3.open_group(_store(base), mode="r+")
        root.create_array("a.b/x", data=np.arange(4))
        root.create_array("ab", data=np.arange(4))
        (base / "store" / "empty" / "folder").mkdir(parents=True)
        before = _tree(base / "store")
        del root["a"]
        after = _tree(base / "store")
        gone = {name.split("/")[0] for name in before.keys() - after.keys()}
        assert gone == {"a"}
        assert sorted(root) == ["a.b", "ab", "plain"]
        assert root["plain"][:].tolist() == list(range(12))
        fresh = xzarr3.open_group(_store(base), mode="w", attributes={"fresh": 1})
        assert list(fresh) == []
        assert sorted(os.listdir(base / "store")) == ["empty", "zarr.json"]
        assert (base / "store" / "empty" / "folder").is_dir()

    run_unprivileged(work, prepare=_hierarchy).checked()


def test_replacing_is_refused_where_not_all_can_be_seen() -> None:
    def work(base: Path) -> None:
        os.chmod(base / "store" / "a", 0)
        with pytest.raises(Xzarr3Error):
            xzarr3.open_group(_store(base), mode="w")
        os.chmod(base / "store" / "a", 0o755)
        root = xzarr3.open_group(_store(base))
        assert root["plain"][:].tolist() == list(range(12))
        assert root["a/b"].attrs["x"] == 1

    run_unprivileged(work, prepare=_hierarchy).checked()


def test_replacing_an_array_keeps_what_lies_below_it_if_that_is_foreign() -> None:
    """Chunks of another shape than the array's own could be somebody's, whatever they are called."""

    def work(base: Path) -> None:
        (base / "store" / "plain" / "c" / "0" / "..").resolve()
        planted = base / "store" / "a" / "deep" / "c" / "0" / "0.bak"
        planted.write_bytes(b"precious")
        with pytest.raises(NodeExistsError, match=r"0\.bak"):
            xzarr3.create_array(_store(base), "a/deep", data=np.arange(3), overwrite=True)
        assert planted.read_bytes() == b"precious"
        assert xzarr3.open_array(_store(base), "a/deep")[:].ravel().tolist() == list(range(16))

    run_unprivileged(work, prepare=_hierarchy).checked()


# Roots given as relative paths


@pytest.mark.parametrize("root", ["../outside", "../outside/", "./../outside/./", "../store/../outside"])
@pytest.mark.parametrize("name", REPLACING)
def test_relative_root_with_foreign_files_is_refused(name: str, root: str) -> None:
    def work(base: Path) -> None:
        os.chdir(base / "store")
        with pytest.raises(NodeExistsError, match=r"data\.bin"):
            REPLACING[name](root)

    run_unprivileged(work).checked()


@pytest.mark.parametrize("root", [".", "", "./"])
def test_working_directory_with_foreign_files_is_refused(root: str) -> None:
    def work(base: Path) -> None:
        os.chdir(base / "outside")
        for replace in REPLACING.values():
            with pytest.raises(Xzarr3Error):
                replace(root)

    run_unprivileged(work).checked()


def test_relative_root_stays_where_it_was_when_the_directory_changes() -> None:
    def work(base: Path) -> None:
        array = xzarr3.create_array("store/x.zarr", data=np.arange(6), chunks=2)
        os.chdir(base / "outside")
        array[:] = 7
        array.attrs["there"] = True
        array.resize((4,))
        assert xzarr3.open_array(base / "store" / "x.zarr")[:].tolist() == [7] * 4

    run_unprivileged(work).checked()


# Documents that lie


def _array_document(**changes: object) -> dict[str, object]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        **changes,
    }


@pytest.mark.parametrize(
    "names",
    [
        [".."],
        ["../outside/planted"],
        ["a", "a/../../outside/planted"],
        ["/tmp/xzarr3-planted"],
        [""],
        ["/"],
        ["."],
        ["a", "a/"],
        ["a", "a//b"],
        ["a", "a/."],
        ["a\0b"],
        ["a", "a/b", "a/b/c"],
        ["__x", "zarr.json"],
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["array", "group"])
def test_names_in_consolidated_metadata_that_climb(names: list[str], kind: str) -> None:
    """Whoever walks such a hierarchy and writes to all he finds must not leave the store, and must end."""
    document = _array_document() if kind == "array" else {"zarr_format": 3, "node_type": "group"}
    held = {"kind": "inline", "must_understand": False, "metadata": dict.fromkeys(names, document)}
    text = json.dumps({"zarr_format": 3, "node_type": "group", "consolidated_metadata": held})

    def work(base: Path) -> None:
        (base / "store" / "zarr.json").write_text(text)
        root = _open_or_none(base)
        if root is None:
            return
        for name in names:
            _touch(lambda name=name: root[name])
        _touch(root.tree)
        _touch(lambda: list(root.values()))
        for depth in (0, 1, None):
            _touch(lambda depth=depth: list(root.members(max_depth=depth)))
        for name in [*names, *root]:
            _touch(lambda name=name: root.__delitem__(name))
        _touch(root.consolidate)

    run_unprivileged(work).checked()


def _open_or_none(base: Path) -> Group | None:
    try:
        return xzarr3.open_group(_store(base), mode="r+")
    except Xzarr3Error:
        return None


def _touch(find: Callable[[], Any]) -> None:
    """Find nodes and write to each; refusals are fine."""
    try:
        found = find()
    except Xzarr3Error:
        return
    nodes = found if isinstance(found, list) else [found]
    for node in nodes:
        node = node[1] if isinstance(node, tuple) else node
        try:
            if isinstance(node, Array):
                node[:] = 7
                node.attrs["touched"] = True
                node.resize((1,))
            elif isinstance(node, Group):
                node.attrs["touched"] = True
                node.create_array("planted", data=np.arange(3))
        except Xzarr3Error:
            continue


@pytest.mark.parametrize("separator", ["..", "/../", "../", "//", "", "\\", "\0", "/./", 5, None, ["/"]])
@pytest.mark.parametrize("encoding", ["default", "v2"])
def test_separators_that_climb_are_refused(encoding: str, separator: object) -> None:
    keys = {"name": encoding, "configuration": {"separator": separator}}
    text = json.dumps(_array_document(chunk_key_encoding=keys, shape=[4, 4], chunk_grid=_grid(2, 2)))

    def work(base: Path) -> None:
        (base / "store" / "zarr.json").write_text(text)
        with pytest.raises(xzarr3.MetadataError, match="chunk_key_encoding"):
            xzarr3.open_array(_store(base), mode="r+")

    run_unprivileged(work).checked()


def _grid(*lengths: int) -> dict[str, object]:
    return {"name": "regular", "configuration": {"chunk_shape": list(lengths)}}


# The helper itself


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
        with pytest.raises(AssertionError):
            outcome.checked()
    assert run_unprivileged(lambda base: (base / "store" / "x").write_text("fine")).checked() == 4


def test_the_child_has_no_rights() -> None:
    def work(base: Path) -> tuple[int, int, list[int]]:
        with pytest.raises(PermissionError):
            Path("/etc/xzarr3-planted").write_text("x")
        return os.getuid(), os.getgid(), os.getgroups()

    user, group, groups = run_unprivileged(work).checked()
    assert user != 0
    assert 0 not in (group, *groups)
    if os.geteuid() == 0:
        assert (user, group, groups) == (NOBODY, NOBODY, [])


def test_the_child_is_stopped_in_time() -> None:
    def work(base: Path) -> None:
        sys.stdin.close()
        while True:
            os.sched_yield()

    with pytest.raises(AssertionError, match="did not end"):
        run_unprivileged(work, timeout=0.3)
