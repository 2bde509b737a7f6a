"""How many requests, one after the other, documents cost in a store that answers late."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _things import refused
from _waiting import WaitingStore

import xzarr3
from xzarr3 import StoreCapabilityError
from xzarr3.commit import lease
from xzarr3.xarray import to_zarr

VARIABLES = 60
SPLIT = 12
"""Rounds that a busy machine may answer in two; values that came one by one would add :data:`VARIABLES`."""
DRAFT = "3-draft"
FORMATS = (3, 2, DRAFT)
opened = partial(xr.open_dataset, engine="xzarr3")
opened_tree = partial(xr.open_datatree, engine="xzarr3")


@pytest.fixture(autouse=True)
def _unrenewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine a write would renew its lease meanwhile, which takes requests."""
    monkeypatch.setattr(lease, "_keep", lambda held: None)


def dataset(variables: int = VARIABLES) -> xr.Dataset:
    return xr.Dataset({f"v{n:03}": ("x", np.arange(4.0) + n) for n in range(variables)})


def filled(zarr_format: Any, *, consolidated: bool | None = None, **options: Any) -> WaitingStore:
    store = WaitingStore(**options)
    to_zarr(dataset(), store, zarr_format=zarr_format, consolidated=consolidated)
    return store


def asked(store: WaitingStore, act: Callable[[], object]) -> tuple[int, int]:
    """How many requests something takes, and how many rounds of them."""
    with store.counted() as count:
        act()
    return len(count.requests), count.rounds


@pytest.mark.parametrize(("zarr_format", "given"), [(3, None), (3, 3), (2, None), (2, 2)])
def test_a_consolidated_hierarchy_is_opened_with_two_requests_at_most(zarr_format: Any, given: Any) -> None:
    store = filled(zarr_format)

    def look_around() -> None:
        group = xzarr3.open_group(store, zarr_format=given)
        assert group.consolidated
        assert len(group) == len(list(group.items())) == VARIABLES
        assert group["v007"].shape == (4,)

    expected = 2 if (zarr_format, given) == (2, None) else 1
    for act in (look_around, *(partial(read, store, zarr_format=given) for read in (xzarr3.open, opened))):
        assert asked(store, act) == (expected, expected)
    xr.testing.assert_identical(opened(store, zarr_format=given).load(), dataset())
    # One array costs its own documents.
    assert asked(store, lambda: xzarr3.open_array(store, "v042"))[1] == (1 if zarr_format == 3 else 2)


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_group_below_a_consolidated_root_is_opened_as_cheaply(zarr_format: Any) -> None:
    store = WaitingStore()
    to_zarr(dataset(3), store, group="a/b", zarr_format=zarr_format)
    xzarr3.consolidate_metadata(store)

    def look_around() -> None:
        group = xzarr3.open_group(store, "a/b")
        assert (group.consolidated, [*group]) == (True, ["v000", "v001", "v002"])

    for act in (look_around, partial(opened, store, group="a/b"), partial(opened_tree, store)):
        assert asked(store, act)[0] == (1 if zarr_format == 3 else 2)
    xr.testing.assert_identical(opened_tree(store)["a/b"].to_dataset().load(), dataset(3))
    with store.counted() as count:  # To be written, it is looked up where it is.
        assert not xzarr3.open_group(store, "a/b", mode="r+").consolidated
    assert "zarr.json" not in count.of("get")


def test_what_a_root_without_consolidated_metadata_says_is_no_matter() -> None:
    store = WaitingStore()
    to_zarr(dataset(2), store, group="a", consolidated=False)
    store.set("zarr.json", b"{")
    assert len(xzarr3.open_group(store, "a")) == 2
    refused(xzarr3.MetadataError, None, lambda: xzarr3.open_group(store))


@pytest.mark.parametrize(("zarr_format", "requests", "rounds"), [
    (3, 1 + 1 + VARIABLES, 3), (2, 6 + 1 + 3 * VARIABLES, 5), (DRAFT, 8 + 1 + VARIABLES, 4),
])  # fmt: skip
def test_an_unconsolidated_group_is_listed_once(zarr_format: Any, requests: int, rounds: int) -> None:
    store = filled(zarr_format, consolidated=False)

    def look(how: str) -> None:
        group = xzarr3.open_group(store)
        found = group.tree().count("\n") if how == "tree" else len(list(getattr(group, how)()))
        assert found == VARIABLES

    for how in ("items", "values", "arrays", "members", "load", "tree"):
        assert asked(store, partial(look, how)) == (requests, rounds), how
        assert len(store.count.of("list")) == 1, how
    # A dataset is of one time: the document of its group is looked at once more at the end.
    assert asked(store, lambda: opened(store)) == (requests + 1, rounds + 1)
    xr.testing.assert_identical(opened(store).load(), dataset())


def test_dropped_variables_are_not_fetched() -> None:
    store = filled(3, consolidated=False)
    store.set("v001/zarr.json", b"no document")
    with store.counted() as count:
        found = opened(store, drop_variables=[f"v{n:03}" for n in range(1, VARIABLES)])
    assert [*found.variables] == ["v000"]
    assert count.of("get") == ["zarr.json", "v000/zarr.json", "zarr.json"]  # Is it still the same group?
    refused(xzarr3.MetadataError, "v001", lambda: opened(store, on_unreadable="raise"))


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_prefixes_that_are_no_nodes_are_left_out(zarr_format: Any) -> None:
    store = WaitingStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("a", shape=4, dtype="int8")
    store.set("b/c", b"something else")
    with store.counted() as count:
        assert [name for name, _ in root.items()] == ["a"]
    assert count.rounds == 2


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 7), (2, 9), (DRAFT, 8)])
def test_a_deep_tree_is_read_level_by_level(zarr_format: Any, rounds: int) -> None:
    store, leaves = WaitingStore(), [f"a{a}/b{b}" for a in range(4) for b in range(5)]
    for path in leaves:
        to_zarr(dataset(2), store, group=path, consolidated=False, zarr_format=zarr_format)
    with store.counted() as count:
        tree = opened_tree(store)
    assert sum(1 for node in tree.subtree if node.data_vars) == 20
    assert count.rounds <= rounds
    assert len(count.of("list")) == 1 + 4 + 20 + (zarr_format == DRAFT)
    with store.counted() as count:
        assert len(dict(xzarr3.open_group(store).members(max_depth=None))) == 4 + 20 + 40
    assert count.rounds <= rounds
    with store.counted() as count:
        found = {name for name, _ in xzarr3.open_group(store).members(max_depth=1)}
    assert found == {*leaves, "a0", "a1", "a2", "a3"}
    assert len(count.of("list")) == 1 + 4 + (zarr_format == DRAFT)


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_without_listing_and_consolidated_metadata_nothing_is_empty(zarr_format: Any) -> None:
    store = filled(zarr_format, consolidated=False, listable=False)
    group = xzarr3.open_group(store)
    looks = (list, len, xzarr3.Group.tree, lambda group: dict(group.items()), xzarr3.Group.loaded)
    said = r"consolidate_metadata\(\).* open_array\(store, path"
    refused(StoreCapabilityError, said, *(partial(look, group) for look in looks))
    for array in (group["v003"], xzarr3.open_array(store, "v003")):
        np.testing.assert_array_equal(array[:], np.arange(4.0) + 3)
    assert "v003" in group
    refused(xzarr3.NodeNotFoundError, "no array or group 'other'", lambda: group["other"])
    refused(StoreCapabilityError, "consolidate", *(partial(read, store) for read in (opened, opened_tree)))
    if zarr_format != DRAFT:  # Consolidated metadata are enough.
        store = filled(zarr_format, listable=False)
        xr.testing.assert_identical(opened(store).load(), dataset())
        assert len(xzarr3.open_group(store)) == VARIABLES


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 10), (2, 12), (DRAFT, 11)])
def test_documents_of_a_dataset_are_written_together(zarr_format: Any, rounds: int) -> None:
    store = WaitingStore()
    with store.counted() as count:
        to_zarr(dataset(), store, zarr_format=zarr_format)
    assert count.rounds <= rounds + SPLIT
    written = count.of("set")
    assert len(written) == len(set(written))
    kept = [operation for operation, key in count.requests if key.startswith(".xzarr3-")]
    assert kept == ["set", "get", "erase"]  # The lease.
    assert len(count.requests) - len(kept) - (len(written) - 1) == (4 if zarr_format == 3 else 5)
    assert written[-1] == (".zmetadata" if zarr_format == 2 else "zarr.json")
    xr.testing.assert_identical(opened(store).load(), dataset())


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_a_dataset_is_replaced_erased_and_copied_in_few_rounds(zarr_format: Any) -> None:
    store, target = filled(zarr_format), WaitingStore()
    new = dataset().assign_attrs(title="new")
    # New values are stored beside the old ones, then copied to their places.
    assert asked(store, lambda: to_zarr(new, store, mode="w"))[1] <= 50 + SPLIT
    xr.testing.assert_identical(opened(store).load(), new)
    # One asks whether the group above is just being replaced.
    assert asked(store, lambda: to_zarr(dataset(), store, group="below/it"))[1] <= 35 + SPLIT
    assert asked(store, lambda: xzarr3.open_group(store, mode="r+").__delitem__("below"))[1] <= 16 + SPLIT
    xr.testing.assert_identical(opened(store).load(), new)
    assert asked(target, lambda: xzarr3.copy(store, target))[1] <= 26 + SPLIT
    xr.testing.assert_identical(opened(target).load(), new)


@pytest.mark.parametrize(("zarr_format", "first", "below"), [(3, 4, 6), (2, 5, 7), (DRAFT, 7, 10)])
def test_a_node_is_made_in_few_rounds(zarr_format: Any, first: int, below: int) -> None:
    store = WaitingStore()
    xzarr3.create_group(store, zarr_format=zarr_format)
    make = partial(xzarr3.create_array, store, dtype="int8")
    assert asked(store, lambda: make("a", shape=4))[1] <= first
    assert asked(store, lambda: xzarr3.create_group(store, "b/c/d"))[1] <= below + 1
    for path, error in (("a", xzarr3.NodeExistsError), ("a/b/c", xzarr3.NodeTypeError)):
        with store.counted() as count:
            refused(error, None, partial(make, path, shape=4))
        assert not count.of("set")
    # It is staged, and swapped under a lease, once nobody sets its values: a failure leaves the old array.
    assert asked(store, lambda: make("a", shape=5, overwrite=True))[1] <= 31


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 7), (2, 9)])
def test_a_hierarchy_is_consolidated_in_few_rounds(zarr_format: Any, rounds: int) -> None:
    store = filled(zarr_format, consolidated=False)
    assert asked(store, lambda: xzarr3.consolidate_metadata(store))[1] <= rounds
    assert len(store.count.of("set")) == 1
    assert asked(store, lambda: xzarr3.consolidate_metadata(store))[1] <= rounds - 2


@pytest.mark.parametrize(("consolidated", "rounds"), [(False, 3), (True, 6)])
def test_an_attribute_costs_a_read_and_a_write(consolidated: bool, rounds: int) -> None:
    store = filled(3, consolidated=consolidated)
    array = xzarr3.open_array(store, "v001", mode="r+")
    assert asked(store, lambda: array.attrs.update(units="K"))[1] <= rounds
    assert xzarr3.open_group(store)["v001"].attrs["units"] == "K"
