"""Names of zarr-python mean here what they mean there: the same call has the same result in both."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from _conformance import refused

import xzarr3
from xzarr3.names import facts

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.skipif(
    not zarr.__version__.startswith("3.4."), reason="the meanings are those of zarr-python 3.4"
)

PLANE = np.arange(120, dtype="int32").reshape(10, 12)


@pytest.fixture(params=["xzarr3", "zarr"])
def lib(request: pytest.FixtureRequest) -> ModuleType:
    return xzarr3 if request.param == "xzarr3" else zarr


TOLD = (
    "shape", "dtype", "chunks", "shards", "nchunks", "cdata_shape", "read_chunk_sizes", "write_chunk_sizes",
    "size", "ndim", "nbytes", "path", "name", "basename", "read_only",
)  # fmt: skip


def told(node: Any) -> dict[str, Any]:
    return {
        **{name: getattr(node, name) for name in TOLD},
        "fill_value": None if node.fill_value is None else np.asarray(node.fill_value).item(),
        "attributes": dict(node.attrs),
        "values": np.asarray(node[...]).tolist(),
    }


def new(lib: ModuleType) -> Any:
    return {} if lib is zarr else xzarr3.MemoryStore()


def sharded(lib: ModuleType) -> Any:
    made = lib.create_array(
        new(lib), name="a/b", shape=(10, 12), dtype="f4", chunks=(2, 3), shards=(4, 6), fill_value=3,
        attributes={"units": "K"}, dimension_names=("y", "x"),
    )  # fmt: skip
    made[:5, :7] = 1
    return made


def made_of(lib: ModuleType, how: Callable[[ModuleType], Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return told(how(lib))


def laid_out(**layout: Any) -> Callable[[ModuleType], Any]:
    return lambda lib: lib.create_array(new(lib), shape=(9, 8), dtype="i2", **layout)


CREATED: dict[str, Callable[[ModuleType], Any]] = {
    "zeros": lambda lib: lib.zeros((5, 4), chunks=(2, 2)),
    "zeros of one dimension": lambda lib: lib.zeros(5, dtype="int16"),
    "ones": lambda lib: lib.ones((5, 4), dtype="f4", store=new(lib), path="x/y"),
    "full": lambda lib: lib.full((3,), 7), "full of integers": lambda lib: lib.full((3,), 7, dtype="int8"),
    "empty": lambda lib: lib.empty((3,), fill_value=2.0),
    "array": lambda lib: lib.array(PLANE, chunks=(5, 5)),
    "array of lists": lambda lib: lib.array([[1, 2], [3, 4]]),
    "array of another type": lambda lib: lib.array([[1, 2], [3, 4]], dtype="f4"),
    "zeros_like": lambda lib: lib.zeros_like(sharded(lib)),
    "ones_like": lambda lib: lib.ones_like(sharded(lib)),
    "full_like": lambda lib: lib.full_like(sharded(lib), fill_value=5),
    "full_like of its fill value": lambda lib: lib.full_like(sharded(lib)),
    "empty_like": lambda lib: lib.empty_like(sharded(lib)),
    "zeros_like of numpy's": lambda lib: lib.zeros_like(PLANE),
    "zeros_like of another type": lambda lib: lib.zeros_like(sharded(lib), dtype="int16"),
    "zeros_like in version 2": lambda lib: lib.zeros_like(PLANE, zarr_format=2),
    "from_array": lambda lib: lib.from_array(new(lib), data=sharded(lib), name="c"),
    "from_array of numpy's": lambda lib: lib.from_array(new(lib), data=PLANE),
    "from_array with other chunks":
        lambda lib: lib.from_array(new(lib), data=sharded(lib), chunks=(5, 5), shards=None),
    "from_array without values": lambda lib: lib.from_array(new(lib), data=sharded(lib), write_data=False),
    "from_array of numpy's, no values": lambda lib: lib.from_array(new(lib), data=PLANE, write_data=False),
    "one chunk": laid_out(chunks=-1), "no chunks": laid_out(chunks=False),
    "a whole dimension": laid_out(chunks=(2, -1)),
    "shards of a whole array": laid_out(chunks=(2, 3), shards=-1),
    "shards of a whole dimension": laid_out(chunks=(2, 3), shards=(-1, 6)),
    "chunks left open": lambda lib: (
        lib.create(store=new(lib), shape=(9, 8), dtype="i2", chunks=None)
        if lib is zarr else laid_out(chunks=None)(lib)
    ),
    "sharded": sharded, "group.zeros": lambda lib: lib.group().zeros(name="z", shape=(4, 4), chunks=(2, 2)),
    "group.ones": lambda lib: lib.group().ones(name="z", shape=(4, 4), dtype="i2"),
    "group.full": lambda lib: lib.group().full(name="z", shape=(4, 4), fill_value=9),
    "group.empty": lambda lib: lib.group().empty(name="z", shape=(4,)),
    "group.zeros_like": lambda lib: lib.group().zeros_like(name="z", data=sharded(lib)),
    "group.ones_like": lambda lib: lib.group().ones_like(name="z", data=PLANE),
    "group.full_like": lambda lib: lib.group().full_like(name="z", data=PLANE, fill_value=4),
    "group.empty_like": lambda lib: lib.group().empty_like(name="z", data=sharded(lib)),
    "group.require_array": lambda lib: lib.group().require_array("q/r", shape=(3,), dtype="i2"),
}  # fmt: skip


@pytest.mark.parametrize("how", CREATED)
def test_arrays_are_created_alike(how: str) -> None:
    ours, theirs = made_of(xzarr3, CREATED[how]), made_of(zarr, CREATED[how])
    if "_like" in how and theirs["shards"] is not None:
        assert ours.pop("shards") == (4, 6)  # zarr-python 3.4 makes a shard of each chunk.
        assert ours.pop("write_chunk_sizes") == ((4, 4, 2), (6, 6))
        assert (theirs.pop("shards"), len(theirs.pop("write_chunk_sizes"))) == ((2, 3), 2)
    assert ours == theirs


def plane(lib: ModuleType) -> Any:
    made = lib.create_array(new(lib), shape=PLANE.shape, chunks=(3, 5), dtype=PLANE.dtype)
    made[...] = PLANE
    return made


MASK = PLANE % 7 == 0
SELECTIONS: dict[str, list[Any]] = {
    "basic": [..., 3, -1, slice(2, 9), (1, 2), (slice(0, 10, 3), -2), (slice(None), slice(3, 3)), (..., 1)],
    "orthogonal": [([0, 5], [1, 3]), (slice(None), [3, 1, 1]), ([True] * 9 + [False], [0]), [0, 2], (4, [1])],
    "coordinate": [([0, 5], [1, 3]), ([0, -1], 1), (1, 2), (np.array([[0, 1]]), np.array([[3], [4]]))],
    "mask": [MASK, MASK.tolist(), np.zeros_like(MASK)],
    "block": [(0, 1), 1, (slice(None), 0), ..., (slice(1, 3), -1), (-1, 0)],
}
WRONG: dict[str, list[Any]] = {
    "basic": [([0, 2], 1), 99, (1, 2, 3), np.array([0, 1])],
    "orthogonal": [([0, 99], [1]), ([True], [0]), (1, 2, 3)],
    "coordinate": [([0, 2],), [0, 2], (slice(2), 1), ([0, 2], ...), ([0, 99], [0, 0])],
    "mask": [MASK[:5], [True] * 10, PLANE], "block": [([0], 0), (slice(0, 3, 2), 0), (9, 9)],
}  # fmt: skip


@pytest.mark.parametrize("kind", SELECTIONS)
def test_selections_are_read_and_written_alike(kind: str) -> None:
    ours, theirs = plane(xzarr3), plane(zarr)
    for selection in SELECTIONS[kind]:
        found, expected = (getattr(each, f"get_{kind}_selection")(selection) for each in (ours, theirs))
        assert np.shape(found) == np.shape(expected), selection
        np.testing.assert_array_equal(found, expected)
    for number, selection in enumerate(SELECTIONS[kind]):
        for array in (ours, theirs):
            getattr(array, f"set_{kind}_selection")(selection, -number)
        np.testing.assert_array_equal(ours[...], theirs[...])


@pytest.mark.parametrize("kind", WRONG)
def test_the_same_selections_are_refused(kind: str, lib: ModuleType) -> None:
    array = plane(lib)
    for selection in WRONG[kind]:
        read, write = (getattr(array, f"{verb}_{kind}_selection") for verb in ("get", "set"))
        refused(IndexError, partial(read, selection), partial(write, selection, 0))
    np.testing.assert_array_equal(array[...], PLANE)


def test_out_and_fields_of_selections() -> None:
    """Of structs with several chunks zarr-python 3.4 reads no single field, and sets all fields at once."""
    array, out = plane(xzarr3), np.empty((2, 12), "int32")
    assert array.get_basic_selection(slice(2, 4), out=out) is out
    np.testing.assert_array_equal(out, PLANE[2:4])
    whole = np.array([(at, at / 2) for at in range(6)], dtype=[("x", "i4"), ("y", "f4")])
    records = xzarr3.create_array(xzarr3.MemoryStore(), data=whole, chunks=4)
    assert records.get_basic_selection(slice(1, 3), fields="x").tolist() == [1, 2]
    records.set_basic_selection(slice(1, 3), 9, fields="x")
    assert records[:4].tolist() == [(0, 0.0), (9, 0.5), (9, 1.0), (3, 1.5)]
    assert records.get_mask_selection(np.arange(6) > 3, fields="y").tolist() == [2.0, 2.5]
    assert records.get_coordinate_selection([5], fields=["y"])["y"].tolist() == [2.5]
    assert records.get_orthogonal_selection([0, 5], fields="y").tolist() == [0.0, 2.5]
    assert records.get_block_selection(1, fields="x").tolist() == [4, 5]


@pytest.mark.parametrize(("zarr_format", "shards"), [(2, None), (3, None), (3, (4, 6))])
def test_what_is_stored_is_counted_alike(tmp_path: Path, zarr_format: Any, shards: Any) -> None:
    made = xzarr3.create_array(
        tmp_path / "s", "a", shape=(8, 12), chunks=(2, 3), shards=shards, dtype="i4", zarr_format=zarr_format
    )
    for region in ((), (slice(4), slice(6)), (5, 8), ...):
        if region != ():
            made[region] = 1
        theirs = zarr.open_array(tmp_path / "s", path="a", mode="r")
        assert made.nchunks_initialized == theirs.nchunks_initialized
        assert (made.nbytes_stored(), made.nchunks) == (theirs.nbytes_stored(), theirs.nchunks)


def test_chunks_beyond_the_end_do_not_count() -> None:
    """In zarr-python they do, so that there can be more initialized chunks than chunks."""
    counted = {}
    for lib in (xzarr3, zarr):
        array = lib.create_array(new(lib), shape=(10,), chunks=(2,), shards=(4,), dtype="i4")
        array[...] = 1
        counted[lib.__name__] = array.nchunks_initialized
    assert counted == {"xzarr3": 5, "zarr": 6}


def hierarchy(lib: ModuleType) -> Any:
    root = lib.group(attributes={"title": "t"})
    root.create_array("b", shape=(3,), dtype="i4")
    root.create_array("a", shape=(4,), dtype="f4")
    root.create_group("g").create_array("c", shape=(5,), dtype="i2")
    root["v"] = np.arange(3)
    root["b"] = np.arange(4.0)
    return root


ASKED: dict[str, Callable[[Any], Any]] = {
    "array_keys": lambda root: sorted(root.array_keys()),
    "group_keys": lambda root: sorted(root.group_keys()), "keys": lambda root: sorted(root.keys()),
    "array_values": lambda root: sorted(each.name for each in root.array_values()),
    "group_values": lambda root: sorted(each.name for each in root.group_values()),
    "arrays": lambda root: sorted((name, each.shape) for name, each in root.arrays()),
    "groups": lambda root: sorted((name, each.path) for name, each in root.groups()),
    "members": lambda root: sorted(name for name, _ in root.members()),
    "members of all levels": lambda root: sorted(name for name, _ in root.members(max_depth=None)),
    "nmembers": lambda root: (root.nmembers(), root.nmembers(max_depth=None), root["g"].nmembers()),
    "len": len, "in": lambda root: ("a" in root, "g/c" in root, "z" in root),
    "update_attributes": lambda root: dict(root.update_attributes({"x": 1}).attrs),
    "update_attributes of an array": lambda root: dict(root["a"].update_attributes({"x": 1}).attrs),
    "get": lambda root: (root.get("z", 7), root.get("a").shape),
    "get_array": lambda root: root.get_array("g/c").shape, "get_group": lambda root: root.get_group("g").path,
    "require_group": lambda root: root.require_group("g").path, "read_only": lambda root: root.read_only,
    "require_groups": lambda root: [each.path for each in root.require_groups("g", "h")],
    "require_array": lambda root: root.require_array("a", shape=4, dtype="f8").dtype,
    "set": lambda root: (root["b"][:].tolist(), root["b"].dtype, root["v"][:].tolist()),
    "store_path": lambda root: (root["g/c"].store_path.path, root["g/c"].store_path.store is root.store),
    "name": lambda root: (root.name, root.path, root["g"].name, root["g"].basename),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_groups_answer_alike(what: str) -> None:
    assert ASKED[what](hierarchy(xzarr3)) == ASKED[what](hierarchy(zarr))


REFUSED: dict[str, Callable[[Any], Any]] = {
    "shape": lambda root: root.require_array("a", shape=5, dtype="f4"),
    "type": lambda root: root.require_array("a", shape=4, dtype="i2"),
    "exact type": lambda root: root.require_array("a", shape=4, dtype="f8", exact=True),
    "group": lambda root: root.require_array("g", shape=4, dtype="f8"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_require_array_refuses_alike(what: str, lib: ModuleType) -> None:
    refused(TypeError, lambda: REFUSED[what](hierarchy(lib)))


def test_save_and_load(lib: ModuleType) -> None:
    store = new(lib)
    lib.save(store, PLANE)
    np.testing.assert_array_equal(lib.load(store), PLANE)
    store = new(lib)
    lib.save(store, PLANE, mask=MASK, path="p")
    root = lib.open_group(store, path="p", mode="r")
    assert sorted(root.array_keys()) == ["arr_0", "mask"]
    np.testing.assert_array_equal(lib.load(store, path="p/mask"), MASK)
    store = new(lib)
    lib.save_array(store, PLANE, path="x", fill_value=7)
    assert lib.open_array(store, path="x", mode="r").fill_value == 7
    store = new(lib)
    lib.save_group(store, a=PLANE)
    assert list(lib.open_group(store, mode="r")) == ["a"]
    refused(ValueError, lambda: lib.save(store), match="array")


def test_group_opens_creates_and_replaces(lib: ModuleType) -> None:
    store = new(lib)
    made = lib.group(store, path="a", attributes={"x": 1})
    made.create_array("b", shape=2, dtype="i4")
    assert (list(lib.group(store, path="a")), dict(lib.group(store, path="a").attrs)) == (["b"], {"x": 1})
    assert list(lib.group(store, path="a", overwrite=True)) == []
    consolidated: Mapping[str, Any] = lib.consolidate_metadata(store)
    assert list(consolidated) == list(lib.open_consolidated(store)) == ["a"]


UNLIKE = {("module", "tree"), ("Array", "resize"), ("Group", "members"), ("Group", "tree")}
"""Functions whose arguments differ, as the table of the reference says."""


def arguments(function: Callable[..., Any], *, passed_on: bool = False) -> set[str]:
    """Names of the arguments of a function, with those that it passes on to ``create_array``."""
    found = inspect.signature(function).parameters.values()
    names = {each.name for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}
    if passed_on and any(each.kind is each.VAR_KEYWORD and each.annotation != "Never" for each in found):
        names |= arguments(xzarr3.create_array)
    return names


@pytest.mark.parametrize("owner", ["module", "Array", "Group"])
def test_arguments_are_accepted_or_explained(owner: str) -> None:
    there, here = (getattr(lib, owner, lib) for lib in (zarr, xzarr3))
    compared = 0
    for name in zarr.__all__ if owner == "module" else dir(there):
        theirs, ours = getattr(there, name, None), getattr(here, name, None)
        if name.startswith("_") or not inspect.isfunction(theirs) or not callable(ours):
            continue
        if name in facts()["absent"][owner] or (owner, name) in UNLIKE:
            continue
        compared += 1
        explained = facts()["instead"].keys() | facts()["needless"].keys()
        assert arguments(theirs) - arguments(ours, passed_on=True) - explained == set(), name
    assert compared >= 12
