"""The walk: every key of a store is told apart, with the format's own words as the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xzarr3
from xzarr3 import MemoryStore
from xzarr3.walk import Walk, nodes_of


def hierarchy(zarr_format: Any) -> MemoryStore:
    store = MemoryStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("a", data=np.arange(12).reshape(4, 3), chunks=(2, 2))
    root.create_array("deep/scalar", data=5)
    root.create_array("ab", data=np.ones(5), chunks=2)
    return store


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
@pytest.mark.parametrize("path", ["", "a", "deep", "deep/scalar"])
def test_each_key_is_told_once(zarr_format: Any, path: str) -> None:
    store = hierarchy(zarr_format)
    walk = Walk.of(xzarr3.open(store, path))
    found = {str(entry.key): entry for entry in walk.entries()}
    assert len(found) == len([*walk.entries()])
    units = {
        array.chunk_key(coords): (array.path, coords)
        for array in walk.arrays.values()
        for coords in array.stored_units()
    }
    assert {key: (each.owner, each.coords) for key, each in found.items() if each.kind == "unit"} == units
    for key, entry in found.items():
        if key not in units:
            assert entry.kind == "document", key
            assert entry.nbytes == len(store.get(key) or b"")
    if not path:
        assert {*found} == {*map(str, store.list())}


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_what_lies_outside_or_belongs_to_nobody_is_other(zarr_format: Any) -> None:
    store = hierarchy(zarr_format)
    array = xzarr3.open_array(store, "a")
    prefix = array.engine.prefix
    outside = prefix + array.metadata.chunk_key_encoding.key((7, 7))
    for key in (outside, f"{prefix}notes.txt", "x.txt"):
        store.set(key, b"1")
    found = {str(entry.key): entry for entry in Walk.of(xzarr3.open(store)).entries()}
    assert (found[outside].kind, found[outside].owner, found[outside].coords) == ("other", "a", (7, 7))
    assert (found[f"{prefix}notes.txt"].kind, found[f"{prefix}notes.txt"].coords) == ("other", None)
    assert (found["x.txt"].kind, found["x.txt"].owner) == ("other", None)


def test_what_lies_below_a_node_that_cannot_be_read_is_its_own() -> None:
    store = hierarchy(3)
    store.set("bad/zarr.json", b"{")
    store.set("bad/c/0", b"1")
    walk = Walk.of(xzarr3.open(store))
    assert walk.unreadable == {"bad"}
    assert [(entry.kind, entry.owner) for entry in walk.entries() if entry.key == "bad/c/0"] == [
        ("other", "bad")
    ]
    assert isinstance(nodes_of(xzarr3.open(store))["bad"], xzarr3.MetadataError)
