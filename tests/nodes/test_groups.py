"""Groups: what they hold, under the names of zarr-python too, their attributes and consolidated metadata."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import contents, refused
from _slow import slow_but
from _strategies import array_document, attempt
from _things import Thing
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import xzarr3
from xzarr3 import InvalidKeyError, MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError
from xzarr3.errors import ReadOnlyError, StoreError


def document(store: xzarr3.Store, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(contents(store)[f"{path}/zarr.json".lstrip("/")])
    return found


def sample(store: xzarr3.Store) -> xzarr3.Group:
    """A hierarchy of three levels."""
    root = xzarr3.create_group(store, attributes={"title": "root"})
    root.create_array("a", data=np.arange(6), chunks=2)
    root.create_array("g/x", data=np.arange(4.0), chunks=3, dimension_names=["t"])
    root.create_group("g/h", attributes={"deep": True}).create_array("y", shape=(2, 2), dtype="int8")
    root.create_group("empty")
    return root


def test_groups_and_those_above_are_made(store: xzarr3.Store) -> None:
    root = xzarr3.create_group(store, attributes={"a": 1})
    assert document(store) == {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}
    assert (root.path, root.name, root.basename, list(root), len(root)) == ("", "/", "", [], 0)
    assert (root.read_only, root.consolidated) == (False, False)
    group = xzarr3.create_group(store, "/a/b/c/")
    assert (group.path, group.name, group.basename) == ("a/b/c", "/a/b/c", "c")
    assert contents(store).keys() == {"zarr.json", "a/zarr.json", "a/b/zarr.json", "a/b/c/zarr.json"}
    xzarr3.open_group(store, "a", mode="r+").attrs["kept"] = True
    xzarr3.create_array(store, "a/d/e", shape=1, dtype="int8")
    above = xzarr3.open_group(store, "a")
    assert (sorted(above), dict(above.attrs)) == (["b", "d"], {"kept": True})


def test_nesting(store: xzarr3.Store) -> None:
    sample(store)
    root = xzarr3.open(store)
    assert isinstance(root, xzarr3.Group)
    assert root.read_only is root["g"].read_only is root["a"].read_only is True
    assert (root["g/h/y"].shape, root["/g/h/y/"].path) == ((2, 2), "g/h/y")
    assert root["g"]["h"]["y"].name == "/g/h/y"
    writable = xzarr3.open_group(store, mode="r+")
    for group in (root, writable, writable.consolidate()):
        assert (sorted(group), len(group), sorted(group["g"])) == (["a", "empty", "g"], 3, ["h", "x"])
        assert [name for name, _ in group.arrays()] == [*group.array_keys()] == ["a"]
        assert sorted(name for name, _ in group.groups()) == sorted(group.group_keys()) == ["empty", "g"]
        assert [each.name for each in group.array_values()] == ["/a"]
        assert sorted(each.name for each in group.group_values()) == ["/empty", "/g"]
        for depth, below in ((0, []), (1, ["g/h", "g/x"]), (None, ["g/h", "g/h/y", "g/x"])):
            members = dict(group.members(max_depth=depth))
            assert sorted(members) == ["a", "empty", "g", *below]
            assert all(node.path == path for path, node in members.items())
        assert (group.nmembers(), group.nmembers(None)) == (3, 6)
        assert sorted(group.keys()) == sorted(name for name, _ in group.items())
        assert {node.path for node in group.values()} == {"a", "empty", "g"}
        assert group._ipython_key_completions_() == ["a", "empty", "g"]
        assert "1 array, 2 groups" in group.info
    assert xzarr3.open_group(store, "g", mode="r+")["x"].read_only is False
    assert root.get_array("g/x").shape == (4,)
    refused(TypeError, lambda: xzarr3.open_array(store, "g"), lambda: xzarr3.open_group(store, "a"))
    refused(NodeTypeError, lambda: root.get_array("g"), lambda: root.get_group("a"))
    place = root.store_path / "a" / "b"
    assert (place.store, place.path, str(place)) == (store, "a/b", f"{store}/a/b")


def test_modes(store: xzarr3.Store) -> None:
    refused(NodeNotFoundError, lambda: xzarr3.open_group(store, mode="r+"))
    made = xzarr3.open_group(store, mode="a", attributes={"n": 1})
    made.create_array("x", data=[1])
    again = xzarr3.open_group(store, mode="a", attributes={"n": 2})
    assert (again.attrs["n"], list(again)) == (1, ["x"])
    refused(NodeExistsError, lambda: xzarr3.open_group(store, mode="w-"), match="overwrite")
    assert list(xzarr3.open_group(store)) == ["x"]
    replaced = xzarr3.open_group(store, mode="w", attributes={"n": 3})
    assert (replaced.attrs["n"], list(replaced)) == (3, [])
    assert contents(store).keys() == {"zarr.json"}
    assert not isinstance(store, xzarr3.LocalStore) or os.listdir(store.root) == ["zarr.json"]
    xzarr3.open_group(store, "sub", mode="w-")
    assert "sub" in xzarr3.open_group(store)
    assert xzarr3.create_array(store, data=[[1, 2]], overwrite=True)[...].tolist() == [[1, 2]]
    assert contents(store).keys() == {"zarr.json", "c/0/0"}


def test_what_is_not_there(store: xzarr3.Store) -> None:
    root = sample(store)
    for path in ("b", "g/b", "a/x", "g/h/y/z", "zarr.json", "c", "a/c/0", "G"):
        assert path not in root
        assert root.get(path) is None
        assert root.get(path, 5) == 5
        (error,) = refused(NodeNotFoundError, partial(root.__getitem__, path))
        assert isinstance(error, KeyError)
        assert isinstance(error, FileNotFoundError)
        assert path in str(error)
        assert re.search("has: 'a|'/g' has: 'h', 'x'| array", str(error))
        refused(KeyError, lambda path=path: root.__delitem__(path))
        refused(FileNotFoundError, lambda path=path: xzarr3.open(store, path))
    assert 5 not in root


BAD_PATHS = ["..", "../x", "a/../b", "a/./b", ".", "a//b", "x/..", "a\0b", "./a", "a/b/../../..", "..."]
BAD_NAMES = ["__x", "a/__zarr", "zarr.json", "a/zarr.json/b", "....", "a/...", ".xzarr3-a", "a/.xzarr3-b"]


@pytest.mark.parametrize("path", [*BAD_PATHS, *BAD_NAMES])
def test_names_that_are_not_permitted(path: str, store: xzarr3.Store) -> None:
    root = sample(store)
    before = contents(store)
    refused(
        InvalidKeyError, lambda: root.create_array(path, shape=1, dtype="int8"),
        lambda: root.require_group(path), lambda: xzarr3.create_group(store, path, overwrite=True),
        lambda: xzarr3.create_array(store, path, shape=1, dtype="int8", overwrite=True),
        lambda: xzarr3.open_group(store, path, mode="w"), lambda: xzarr3.open_group(store, path, mode="a"),
        match=f"{re.escape(repr(path))}.*accepted|accepted.*{re.escape(repr(path))}",
    )  # fmt: skip
    if path in BAD_PATHS[:-1]:
        asks = [lambda: root[path], lambda: xzarr3.open(store, path), lambda: root.__delitem__(path)]
        refused((InvalidKeyError, NodeNotFoundError), *asks)
    assert contents(store) == before


NAMES = ["x.y", ".hidden", "_x", "a b", "é", "%2e%2e", "c", "0.0", "zarr.jso", "-", "a\\b", "~", "C:"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_permitted(name: str, store: xzarr3.Store) -> None:
    root = xzarr3.create_group(store)
    root.create_group(name).create_array(name, data=[1, 2])
    assert (list(root), root[f"{name}/{name}"][...].tolist()) == ([name], [1, 2])
    assert name in root
    assert list(xzarr3.consolidate_metadata(store)[name]) == [name]
    del root[name]
    assert list(root) == []


def test_what_may_not_be_made_changes_nothing(store: xzarr3.Store) -> None:
    """An array holds no nodes, what is there is not replaced unasked, an empty name is the group's own."""
    root = sample(store)
    before = contents(store)
    array: dict[str, Any] = {"shape": 1, "dtype": "int8"}
    refused(
        (NodeTypeError, NodeExistsError),
        *(partial(root.create_group, path, overwrite=True) for path in ("a/x/y", "a/c")),
        *(partial(root.create_array, path, overwrite=path == "a/c", **array) for path in ("a/x", "a/c")),
        *(partial(xzarr3.open_group, store, "a/b", mode=mode) for mode in "aw"),
        partial(root.require_group, "a/x"), partial(xzarr3.create_array, store, "g/x/z", **array),
    )  # fmt: skip
    for error in (NodeExistsError, FileExistsError):
        refused(
            error, *(partial(root.create_array, path, **array) for path in "ag"),
            *(partial(root.create_group, path) for path in ("a", "g/h")), partial(xzarr3.create_group, store),
            partial(xzarr3.create_array, store, **array), match="overwrite=True",
        )  # fmt: skip
    empty = (partial(root["g"].create_group, ""), partial(root.create_array, "", **array))  # type: ignore[union-attr]
    refused((NodeExistsError, InvalidKeyError), *empty)
    refused(NodeTypeError, partial(root.require_group, "a"), match="array, not a group")
    assert contents(store) == before
    assert (root.require_group("g").path, root.require_group("new/one").path) == ("g", "new/one")


def test_what_was_in_a_group_that_is_deleted_is_not_taken_for_nothing(store: xzarr3.Store) -> None:
    root = xzarr3.create_group(store)
    root.create_array("g/x", shape=1, dtype="int8")
    group = xzarr3.open_group(store, "g")
    del root["g"]
    uses = (lambda: dict(group.load()), lambda: xzarr3.copy(group, xzarr3.MemoryStore()))
    refused(xzarr3.StoreError, *uses, match=r"'/g' of .* was removed or replaced.*open it again")


def test_a_lone_document_of_attributes_is_not_taken_up_by_a_new_group(store: xzarr3.Store) -> None:
    """What would become data of the new node belongs to the place of the old one."""
    empty = xzarr3.create_group(xzarr3.MemoryStore(), zarr_format=2)
    for make in (
        lambda: xzarr3.create_group(store, "g", zarr_format=2, overwrite=True),
        lambda: xzarr3.copy(empty, store, path="g", overwrite=True),
    ):
        xzarr3.create_group(store, zarr_format=2, overwrite=True)
        store.set("g/.zattrs", b'{"stale": 1}')
        store.set("g/.zmetadata", b'{"zarr_consolidated_format": 1, "metadata": {}}')
        store.set("g/notes.txt", b"mine")
        make()
        assert dict(xzarr3.open_group(store, "g").attrs) == {}
        assert not store.exists("g/.zmetadata")
        assert store.get("g/notes.txt") == b"mine"


def nodes(store: xzarr3.Store) -> Iterator[xzarr3.Array | xzarr3.Group]:
    root = sample(store)
    yield root
    yield root["g/h"]
    yield root["a"]


def test_attributes_are_stored_as_they_are_read_back() -> None:
    given = {"tuple": (1, (2,)), "scalar": np.int16(3), "array": np.arange(3), "flag": np.True_}
    group = xzarr3.create_group(xzarr3.MemoryStore(), attributes=list(given.items()))  # type: ignore[arg-type]
    group.create_array("x", data=[1], attributes=given)
    group.create_group("y").attrs.update(given)
    for node in (group, *group.values(), *xzarr3.open_group(group.store).values()):
        assert dict(node.attrs) == {"tuple": [1, [2]], "scalar": 3, "array": [0, 1, 2], "flag": True}
        assert type(node.attrs["scalar"]) is int


def test_attributes_are_written_at_once(store: xzarr3.Store) -> None:
    for node in nodes(store):
        attributes = node.attrs
        attributes.clear()
        attributes["a"] = 1
        assert dict(node.update_attributes({"e": 1}).attrs) == {"a": 1, "e": 1}
        attributes.update(b=[1, {"c": None}], a=2)
        attributes.update({"d": "é"})
        attributes.update([("e", 1.5)])
        attributes.setdefault("f", True)
        del attributes["e"]
        expected = {"a": 2, "b": [1, {"c": None}], "d": "é", "f": True}
        assert dict(attributes) == dict(node.attrs) == attributes.asdict() == expected
        assert document(store, node.path)["attributes"] == expected
        assert dict(xzarr3.open(store, node.path).attrs) == expected
        assert repr(attributes) == repr(expected)
        refused(MetadataError, partial(node.update_attributes, {"a": 5, "n": np.nan}))
        assert attributes.pop("f") is True
        attributes.put({"only": 1})
        assert dict(xzarr3.open(store, node.path).attrs) == {"only": 1}
        refused(KeyError, *(partial(ask, "lost") for ask in (attributes.__getitem__, attributes.__delitem__)))
        assert (len(attributes), list(attributes), "only" in attributes) == (1, ["only"], True)


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize(
    ("old", "new"), [(1, True), (0, -0.0), ([1], [1.0]), ({"x": 1, "y": 2}, {"y": 2, "x": 1})]
)
def test_attributes_that_python_takes_for_equal(old: Any, new: Any, zarr_format: Any) -> None:
    store = xzarr3.MemoryStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format, attributes={"a": old})
    array = root.create_array("x", data=[1], dimension_names=["x"], attributes={"a": old})
    root.consolidate()
    array.attrs["a"] = new
    xzarr3.to_zarr(xr.Dataset(attrs={"a": new}), store, mode="a")
    for group in (xzarr3.open_group(store), xzarr3.open_group(store, use_consolidated=False)):
        assert json.dumps([group.attrs["a"], group["x"].attrs["a"]]) == json.dumps([new, new])


ENDLESS: dict[str, Any] = {}
ENDLESS["self"] = ENDLESS
NO_JSON = [
    np.nan, -np.inf, Thing(), {1, 2}, b"x", [1, np.nan], {"a": {"b": Thing()}}, Ellipsis, np.float32("nan"),
    np.array([1.0, np.nan]), np.datetime64("2000"), ENDLESS, 10**5000,
    *({key: 1} for key in (1, None, 1.5, True, b"x", ("a",))),
]  # fmt: skip


@pytest.mark.parametrize("value", NO_JSON, ids=range(len(NO_JSON)))
def test_attributes_that_json_cannot_hold(value: Any, store: xzarr3.Store) -> None:
    for node in nodes(store):
        node.attrs["old"] = 1
        before, attributes = contents(store), node.attrs
        kept = dict(attributes)
        changes = [
            partial(attributes.__setitem__, "x", value), partial(attributes.update, old=2, x=value),
            partial(attributes.put, {"x": value}), partial(attributes.update, {"old": 2, 5: 1}),
        ]  # fmt: skip
        for change in changes:
            refused(MetadataError, change, match=rf"node '/{node.path}', field 'attributes.*JSON")
            assert dict(attributes) == dict(node.attrs) == kept
        assert contents(store) == before
    refused(
        MetadataError, lambda: xzarr3.create_group(store, "new", attributes={"x": value}),
        lambda: xzarr3.create_group(store, "g", attributes={"x": value}, overwrite=True),
        lambda: xzarr3.create_array(store, "new", shape=3, dtype="i4", attributes={"x": value}),
        match="field 'attributes",
    )  # fmt: skip
    assert contents(store) == before


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4))
def test_any_attributes_are_kept(attributes: dict[str, Any]) -> None:
    store = xzarr3.MemoryStore()
    array = xzarr3.create_array(store, "x", shape=1, dtype="int8", attributes=attributes)
    array.resize(2)
    xzarr3.consolidate_metadata(store)
    for root in (xzarr3.open_group(store), xzarr3.open_group(store, use_consolidated=False)):
        found = dict(root["x"].attrs)
        assert (found, json.dumps(found)) == (attributes, json.dumps(attributes))


def test_consolidated_metadata_hold_all_documents(store: xzarr3.Store) -> None:
    root = sample(store)
    plain = {path: document(store, path) for path, _ in root.members(max_depth=None)}
    group = xzarr3.consolidate_metadata(store)
    assert (group.consolidated, root.consolidated) == (True, False)
    held = document(store)
    assert held["attributes"] == {"title": "root"}
    assert held["consolidated_metadata"] == {"kind": "inline", "must_understand": False, "metadata": plain}
    for found in (group, xzarr3.open_group(store), xzarr3.open_group(store, use_consolidated=True)):
        assert sorted(path for path, _ in found.members(max_depth=None)) == sorted(plain)
        assert (found["g/x"][...].tolist(), found["g"]["h"]["y"].shape) == ([0, 1, 2, 3], (2, 2))
        # A group that can be written looks into the store, where "g" has a document of its own.
        assert found["g"].consolidated is found.read_only


def test_consolidated_metadata_are_asked_instead_of_the_store() -> None:
    store = WaitingStore(0)
    sample(store)
    xzarr3.consolidate_metadata(store)
    store.count.requests.clear()
    root = xzarr3.open_group(store)
    assert len(dict(root.members(max_depth=None))) == 6
    assert "g/h/y" in root
    assert root.tree()
    assert [key for _, key in store.count.requests] == ["zarr.json"]


def test_demanding_or_refusing_consolidated_metadata(store: xzarr3.Store) -> None:
    sample(store)
    with pytest.raises(MetadataError, match="consolidated_metadata"):
        xzarr3.open_group(store, use_consolidated=True)
    xzarr3.consolidate_metadata(store)
    store.set("late/zarr.json", json.dumps(array_document()).encode())
    assert "late" not in xzarr3.open_group(store)
    assert "late" in xzarr3.open_group(store, use_consolidated=False)
    assert not xzarr3.open_group(store, use_consolidated=False)["g"].consolidated
    refused(NodeNotFoundError, lambda: xzarr3.open_group(store)["late"])
    refused(NodeTypeError, lambda: xzarr3.consolidate_metadata(store, "a"))
    xzarr3.consolidate_metadata(store)
    assert "late" in xzarr3.open_group(store)


def check_consolidated(store: xzarr3.Store, path: str = "") -> None:
    """The documents that a group holds are those that are in the store."""
    group = xzarr3.open_group(store, path, use_consolidated=False)
    expected = {below: document(store, node.path) for below, node in group.members(max_depth=None)}
    for each in expected.values():
        each.pop("consolidated_metadata", None)
    assert document(store, path)["consolidated_metadata"]["metadata"] == expected


def with_consolidated(consolidated: Any) -> xzarr3.MemoryStore:
    """A group that holds these as its consolidated metadata."""
    group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": consolidated}
    return xzarr3.MemoryStore({"zarr.json": json.dumps(group).encode()})


@pytest.mark.parametrize(
    "bad", [{"metadata": []}, {"metadata": None}, {"metadata": 5}, {}, {"metadata": {"x": 5}}, 5, []], ids=str
)
def test_malformed_consolidated_metadata_above_a_node(bad: Any) -> None:
    """Whatever a group above holds, a change of a node below ends well or with an error of ours."""
    store = with_consolidated(bad)
    store.set("x/zarr.json", json.dumps(array_document()).encode())
    array = xzarr3.open_array(store, "x", mode="r+")
    make = partial(xzarr3.create_array, store, data=[1])
    changes = (partial(array.resize, (2, 2)), partial(array.attrs.update, a=1))
    for change in (*changes, partial(make, "y"), partial(make, "x", overwrite=True)):
        _, error = attempt(change, xzarr3.Xzarr3Error)
        assert error is None or str(error)


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "/x", "a//b", "", "."])
def test_names_in_consolidated_metadata_cannot_climb(name: str) -> None:
    store = with_consolidated({"kind": "inline", "metadata": {name: array_document()}})
    refused(MetadataError, lambda: xzarr3.open_group(store), match="consolidated_metadata")


def test_arrays_below_arrays_and_nodes_without_parents_in_consolidated_metadata() -> None:
    documents = dict.fromkeys(("x", "x/y", "lost/z"), array_document())
    root = xzarr3.open_group(with_consolidated({"kind": "inline", "metadata": documents}))
    assert root["lost/z"].shape == (4, 6)
    assert root.tree()
    refused(NodeNotFoundError, lambda: root["lost"])


class Changes(RuleBasedStateMachine):
    """Groups and arrays made, replaced, changed and deleted, some of them consolidated, beside a dictionary.

    It has the length of each array, None for groups, and an attribute.
    """

    paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)

    @initialize(consolidated=st.booleans())
    def make(self, consolidated: bool) -> None:
        self.store = xzarr3.MemoryStore()
        self.root = xzarr3.create_group(self.store)
        self.model: dict[str, Any] = {}
        if consolidated:
            self.root = xzarr3.consolidate_metadata(self.store)

    def is_group(self, path: str) -> bool:
        return path in self.model and self.model[path][0] is None

    def way(self, path: str, is_near: bool) -> tuple[Any, str]:
        """The root or, if there is one, the group that a node is in; and the path from there."""
        above, _, name = path.rpartition("/")
        return (self.root[above], name) if is_near and self.is_group(above) else (self.root, path)

    @rule(
        path=paths, size=st.integers(0, 3), overwrite=st.booleans(), array=st.booleans(), near=st.booleans()
    )
    def create(self, path: str, size: int, overwrite: bool, array: bool, near: bool) -> None:
        options: dict[str, Any] = {"overwrite": overwrite, "attributes": {"n": size}}
        group, name = self.way(path, near)
        make = partial(group.create_array, data=np.arange(size)) if array else group.create_group
        made, error = attempt(lambda: make(name, **options), NodeExistsError, NodeTypeError)
        names = path.split("/")
        parents = ["/".join(names[:depth]) for depth in range(1, len(names))]
        is_below_array = any(above in self.model and not self.is_group(above) for above in parents)
        assert (error is None) == ((overwrite or path not in self.model) and not is_below_array)
        if error is None:
            assert made.path == path
            for above in parents:
                self.model.setdefault(above, (None, None))
            self.drop(path)
            self.model[path] = (size if array else None, size)

    def drop(self, path: str) -> None:
        self.model = {k: v for k, v in self.model.items() if k != path and not k.startswith(f"{path}/")}

    @rule(path=paths, near=st.booleans())
    def delete(self, path: str, near: bool) -> None:
        group, name = self.way(path, near)
        _, error = attempt(lambda: group.__delitem__(name), NodeNotFoundError)
        assert (error is None) == (path in self.model)
        self.drop(path)

    @rule(path=paths, size=st.integers(0, 5))
    def resize_or_append(self, path: str, size: int) -> None:
        if path in self.model and not self.is_group(path):
            array, before = self.root[path], self.model[path][0]
            if size > before:
                array.append(np.arange(size - before))  # type: ignore[union-attr]
            else:
                array.resize(size)  # type: ignore[union-attr]
            self.model[path] = (size, self.model[path][1])

    @rule(path=paths)
    def set_attribute(self, path: str) -> None:
        self.root.attrs["last"] = path
        if path in self.model:
            size, count = self.model[path]
            self.root[path].attrs["n"] = (count or 0) + 1
            self.model[path] = (size, (count or 0) + 1)

    @rule(path=paths)
    def consolidate_below(self, path: str) -> None:
        if self.is_group(path):
            assert self.root[path].consolidate().consolidated  # type: ignore[union-attr]

    @rule()
    def consolidate(self) -> None:
        self.root = xzarr3.consolidate_metadata(self.store)

    @rule(consolidated=st.sampled_from([None, False]))
    def reopen(self, consolidated: bool | None) -> None:
        self.root = xzarr3.open_group(self.store, mode="r+", use_consolidated=consolidated)

    @rule()
    def pickle(self) -> None:
        again = pickle.loads(pickle.dumps(self.root))
        assert (again.path, again.read_only, repr(again)) == ("", False, repr(self.root))
        assert again.consolidated is self.root.consolidated
        self.root = again

    @invariant()
    def shows_what_there_is(self) -> None:
        if not hasattr(self, "root"):
            return
        plain = xzarr3.open_group(self.store, use_consolidated=False)
        for root in (self.root, xzarr3.open_group(self.store), plain):
            found = {
                path: (getattr(node, "shape", (None,))[0], node.attrs.get("n"))
                for path, node in root.members(max_depth=None)
            }
            assert found == self.model
            assert all(path in root for path in self.model)
            assert root.attrs == plain.attrs
        left = {key.removesuffix("/zarr.json").removesuffix("/c/0") for key in self.store.list()}
        assert left <= {"zarr.json", *self.model}, "nothing is left of what was replaced or deleted"
        for path in ("", *filter(self.is_group, self.model)):
            if "consolidated_metadata" in document(self.store, path):
                check_consolidated(self.store, path)


Changes.TestCase.settings = settings(max_examples=60, stateful_step_count=15)
TestChanges = Changes.TestCase


def test_read_only_groups(store: xzarr3.Store) -> None:
    sample(store)
    assert pickle.loads(pickle.dumps(xzarr3.consolidate_metadata(store))).consolidated
    before = contents(store)
    plain, held = (xzarr3.open_group(store, use_consolidated=use) for use in (False, True))
    for root in (plain, pickle.loads(pickle.dumps(held))):
        assert (sorted(root), root.consolidated) == (["a", "empty", "g"], root is not plain)
        refused(
            ReadOnlyError, partial(root.create_group, "n"), partial(root.create_array, "n", data=[1]),
            partial(root.require_group, "n"), partial(root.__delitem__, "a"), partial(root.attrs.update, a=1),
            partial(root["g"].attrs.put, {}), partial(root.update_attributes, {}),
            partial(root["g"].create_group, "n"), partial(root["a"].resize, 1), root.consolidate,
        )  # fmt: skip
        assert root.require_group("g").path == "g"
    if isinstance(store, xzarr3.LocalStore):
        closed = xzarr3.LocalStore(store.root, read_only=True)
        refused(
            ReadOnlyError, partial(xzarr3.create_group, closed, overwrite=True),
            partial(xzarr3.open_group, closed, mode="w"), partial(xzarr3.consolidate_metadata, closed),
            lambda: xzarr3.open_group(closed, mode="r+").create_group("n"),
        )  # fmt: skip
    assert contents(store) == before


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_consolidate_keeps_the_order(store: xzarr3.Store, zarr_format: Any) -> None:
    ds = xr.Dataset({name: ("time", [1.0, 2]) for name in "zbqa"}, {"time": [0, 1]})
    xzarr3.to_zarr(ds, store, zarr_format=zarr_format)
    root = xzarr3.open_group(store, mode="r+", use_consolidated=False)
    root.create_array("c/d", shape=2, dtype="int8")
    root["b"].attrs["units"] = "K"
    xzarr3.to_zarr(ds.assign_coords(time=[2, 3]), store, append_dim="time")
    expected = ["z", "b", "q", "a", "time", "c"]
    assert list(xzarr3.open_group(store, use_consolidated=True)) == expected
    root.consolidate()
    xzarr3.consolidate_metadata(store)
    assert list(xzarr3.open_group(store, use_consolidated=True)) == expected
    assert list(xzarr3.open_group(store, use_consolidated=False)) == sorted(expected)  # Nobody knows it.


NEW = np.arange(100.0, 200).reshape(10, 10)


def test_an_array_is_replaced_by_a_copy_of_itself(store: xzarr3.Store) -> None:
    array = xzarr3.create_array(store, "x", data=NEW, chunks=4)
    again = xzarr3.from_array(store, data=array, path="x", chunks=5, overwrite=True)
    np.testing.assert_array_equal(again[...], NEW)
    made = xzarr3.create_array(store, "x", data=again, chunks=(10, 3), overwrite=True)
    np.testing.assert_array_equal(made[...], NEW)
    assert made.chunks == xzarr3.open_array(store, "x").chunks == (10, 3)


def test_a_group_that_vanishes(tmp_path: Path) -> None:
    root = sample(xzarr3.LocalStore(tmp_path / "a"))
    shutil.rmtree(tmp_path / "a")
    refused(StoreError, lambda: list(root), lambda: list(root.members()))
    refused(NodeNotFoundError, lambda: root["a"])


def test_neither_a_file_nor_a_directory_for_a_document_is_a_group(tmp_path: Path) -> None:
    (tmp_path / "a" / "zarr.json").mkdir(parents=True)
    (tmp_path / "file.nc").write_bytes(b"CDF")
    for place in (tmp_path / "a", tmp_path / "file.nc"):
        refused(NodeNotFoundError, lambda place=place: xzarr3.open(place))
        refused(StoreError, lambda place=place: xzarr3.create_group(place))
    refused((StoreError, NodeExistsError), lambda: xzarr3.create_group(tmp_path / "file.nc", overwrite=True))
    assert (tmp_path / "file.nc").read_bytes() == b"CDF"


def test_values_are_set_as_arrays(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    root["x"] = np.arange(3)
    root["deep/y"] = [[1.5], [2.5]]
    root["s"] = 3.5
    root["lazy"] = da.ones((10,), chunks=4)
    root["named"] = xr.DataArray([1, 2], dims="time", attrs={"units": "K"})
    root["x"] = root["x"]
    root["lazy"] = xzarr3.from_zarr(root["lazy"]) + 1
    found = {path: node[...].tolist() for path, node in root.members(None) if path != "deep"}
    expected = {"x": [0, 1, 2], "deep/y": [[1.5], [2.5]], "s": 3.5, "lazy": [2.0] * 10, "named": [1, 2]}
    assert (found, root["lazy"].chunks) == (expected, (4,))
    assert (root["named"].dimension_names, dict(root["named"].attrs)) == (("time",), {"units": "K"})
    root["x"] = np.ones(5, "f4")
    assert (root["x"].shape, root["x"].dtype) == ((5,), "f4")


def test_what_cannot_be_set_changes_nothing(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    root["x"] = np.arange(3)
    root.create_group("g/h")
    before = contents(store)
    refused(NodeTypeError, *(partial(root.__setitem__, name, 1) for name in ("g", "x/y")))
    wrong = ({"a": 1}, None, [[1], [2, 3]])
    refused(MetadataError, *(partial(root.__setitem__, "x", values) for values in wrong))
    assert contents(store) == before
    refused(ReadOnlyError, partial(xzarr3.open_group(store).__setitem__, "x", 1))


def test_names_are_listed_whatever_codecs_the_arrays_have(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    root["x"] = 1
    text = bytes(store.get("x/zarr.json") or b"").replace(b'"zstd"', b'"unknown"')
    store.set("y/zarr.json", text)
    assert sorted(root.array_keys()) == ["x", "y"]
    refused(MetadataError, lambda: list(root.array_values()), match="unknown")
    store.set("z/zarr.json", b"{")
    refused(MetadataError, lambda: list(root.array_keys()), match="z")


def test_an_array_that_is_required_keeps_its_values(store: xzarr3.Store) -> None:
    root = xzarr3.group(store)
    made = root.require_array("x", shape=(4,), dtype="f4", chunks=2)
    made[:] = 5
    assert root.require_array("x", shape=4, dtype="f8")[:].tolist() == [5.0] * 4
    assert root.require_array("x", shape=4, dtype="f4", exact=True).chunks == (2,)
    wrong = ({"shape": 5}, {"shape": 4, "dtype": "i2"}, {"shape": 4, "dtype": "f8", "exact": True})
    calls = (partial(root.require_array, "x", **options) for options in wrong)
    refused(NodeTypeError, *calls, match="array '/x'")
    assert root.require_array("y", shape=2).dtype == "f8"
    assert root.create_dataset("d", (2, 2), "i2", chunks=1).chunks == (1, 1)
    assert root.create_dataset("e", data=[1, 2])[:].tolist() == [1, 2]
    assert xzarr3.create_array(store, name="a/b", shape=1, dtype="int8").path == "a/b"
    with pytest.raises(TypeError, match="give one of them"):
        xzarr3.create_array(store, "a", name="c", shape=1, dtype="int8")


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_saving_does_not_replace_by_mistake(store: xzarr3.Store, zarr_format: Any) -> None:
    xzarr3.save(store, a=[1, 2], zarr_format=zarr_format)
    before = contents(store)
    saves = (partial(xzarr3.save, store, *arrays) for arrays in ([[5]], [[5], [6]]))
    refused(NodeExistsError, *saves, partial(xzarr3.save, store, b=[5]), match="overwrite=True")
    again = partial(xzarr3.save_group, store, overwrite=True, zarr_format=zarr_format)
    wrong = ({"c": [1], "d": np.array([object()])}, {"x": [3], "x/y": [4]}, {"path": "g", "y": [[1], []]})
    refused((MetadataError, NodeTypeError), *(partial(again, **each) for each in wrong))  # Before it saves.
    assert contents(store) == before
    xzarr3.save_group(store, overwrite=True, **{"a/b": [3], "c": [4.5]})
    found = {path: node[...].tolist() for path, node in xzarr3.open_group(store).members(None) if path != "a"}
    assert found == {"a/b": [3], "c": [4.5]}


def test_loading_an_array_or_a_group(store: xzarr3.Store) -> None:
    xzarr3.save(store, [1, 2], [[3.5]], mask=[True], path="p")
    group = xzarr3.open_group(store, "p", mode="r+")
    group.create_group("below")
    found = {name: values.tolist() for name, values in xzarr3.load(store, "p").items()}
    assert found == {"arr_0": [1, 2], "arr_1": [[3.5]], "mask": [True]}
    assert isinstance(xzarr3.load(store, "p/arr_0"), np.ndarray)
    refused(xzarr3.NodeNotFoundError, lambda: xzarr3.load(store, "q"))
    assert xzarr3.tree(store, "p") == group.tree() == xzarr3.tree(xzarr3.open_group(store), "p")


SOURCES: dict[str, dict[str, Any]] = {
    "plain": {"chunks": (3, 4)},
    "sharded": {"chunks": (2, 4), "shards": (6, 8)},
    "rectilinear": {"chunks": ([2, 7, 1], 4)},
    "shards of several lengths": {"chunks": (1, 4), "shards": ([2, 7, 1], 8)},
    "version 2": {"chunks": (3, 4), "zarr_format": 2, "order": "F"},
    "version 2, packed": {
        "chunks": 4, "zarr_format": 2, "filters": [{"id": "shuffle", "elementsize": 4}],
        "compressors": "numcodecs.zlib",
    },
    "turned": {"chunks": 4, "order": "F", "compressors": "blosc"},
}  # fmt: skip
TAKEN: dict[str, dict[str, Any]] = {
    "all": {}, "chunks": {"chunks": 5, "shards": None}, "shards": {"chunks": (2, 4), "shards": (4, 12)},
    "type": {"dtype": "f8"}, "fill value": {"fill_value": 9},
    "codecs": {"compressors": None, "filters": None},
    "format": {"zarr_format": 3, "shards": None, "chunks": 6},
}  # fmt: skip


@pytest.mark.parametrize("taken", slow_but(TAKEN, "all", "chunks", "format"))
@pytest.mark.parametrize("source", SOURCES)
def test_arrays_from_arrays_hold_the_same(tmp_path: Path, source: str, taken: str) -> None:
    made = xzarr3.create_array(
        tmp_path / "a", shape=(10, 12), dtype="f4", fill_value=-1, dimension_names=("y", "x"),
        attributes={"units": "K"}, **SOURCES[source],
    )  # fmt: skip
    made[3:8, :7] = np.arange(35).reshape(5, 7)
    if taken == "shards" and "version 2" in source:
        with pytest.raises(MetadataError, match="accepted: no shards"):
            xzarr3.from_array(tmp_path / "b", data=made, **TAKEN[taken])
        assert not (tmp_path / "b").exists()
        return
    again = xzarr3.from_array(tmp_path / "b", data=made, **TAKEN[taken])
    np.testing.assert_array_equal(again[...], made[...])
    assert (dict(again.attrs), again.dimension_names) == ({"units": "K"}, ("y", "x"))
    if taken == "all":
        assert repr(again.metadata.codecs) == repr(made.metadata.codecs)
        assert (again.chunks, again.shards, again.zarr_format) == (made.chunks, made.shards, made.zarr_format)
        assert set(contents(again.store)) == set(contents(made.store))
    like = xzarr3.empty_like(made)
    assert (like.chunks, like.shards, like.order, like.dtype) == (made.chunks, made.shards, made.order, "f4")
    assert (like.fill_value, dict(like.attrs), like.dimension_names) == (-1, {}, None)


def test_counts_of_arrays_and_of_what_is_copied() -> None:
    array = xzarr3.zeros((10, 12), chunks=(2, 3), shards=(4, 6), dtype="i2")
    assert (array.cdata_shape, array.nchunks) == ((5, 4), 20)
    assert (array.shard_grid_shape, array.nshards, array.nchunks_initialized) == ((3, 2), 6, 0)
    array[9, 0] = 1
    assert array.nchunks_initialized == 2  # A shard of four chunks, two of which are beyond the end.
    array[...] = 1
    assert array.nchunks_initialized == array.nchunks
    assert (xzarr3.zeros((), dtype="i2").nchunks, xzarr3.zeros((0, 3), chunks=1).nchunks) == (1, 0)
    assert xzarr3.from_array(None, data=[1.0, 2.0], dtype="i1")[...].dtype == "i1"
    huge = xzarr3.zeros((10**6, 10**6), chunks=(1000, 1000), dtype="i1")
    huge[5, 5] = 1
    again = xzarr3.from_array(None, data=huge)
    assert (again.nchunks_initialized, again[5, 5], again[6, 6]) == (1, 1, 0)


def test_datasets_open_under_the_names_of_xarray(tmp_path: Path) -> None:
    dataset = xr.Dataset({"t": (("time", "x"), np.arange(12.0).reshape(4, 3))}, coords={"x": [1, 2, 3]})
    xzarr3.to_zarr(dataset, tmp_path)
    xzarr3.to_zarr(dataset + 1, tmp_path, group="a/b", mode="a")
    xr.testing.assert_identical(xzarr3.open_zarr(tmp_path).compute(), dataset)
    xr.testing.assert_equal(xzarr3.open_zarr(tmp_path, "a/b").compute(), dataset + 1)
    assert xzarr3.open_zarr(tmp_path, chunks=None).t.chunks is None
    assert xzarr3.open_zarr(tmp_path).t.chunks == ((4,), (3,))
    tree = xzarr3.open_datatree(tmp_path)
    assert tree.groups == ("/", "/a", "/a/b")
    xr.testing.assert_equal(tree["a/b"].to_dataset().compute(), dataset + 1)
    assert xzarr3.open_datatree(tmp_path, chunks=None, group="a")["b/t"].chunks is None
