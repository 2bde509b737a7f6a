"""How many requests, one after the other, documents cost in a store that answers late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
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


@pytest.mark.parametrize(("zarr_format", "asked"), [(3, None), (3, 3), (2, None), (2, 2)])
def test_a_consolidated_hierarchy_is_opened_with_two_requests_at_most(zarr_format: Any, asked: Any) -> None:
    store = filled(zarr_format)

    def look_around() -> None:
        group = xzarr3.open_group(store, zarr_format=asked)
        assert group.consolidated
        assert len(group) == len(list(group.items())) == VARIABLES
        assert group["v007"].shape == (4,)

    for ask in (
        look_around,
        lambda: xzarr3.open(store, zarr_format=asked),
        lambda: xr.open_dataset(store, engine="xzarr3", zarr_format=asked),
    ):
        with store.counted() as count:
            ask()
        assert len(count.requests) == count.rounds == (2 if (zarr_format, asked) == (2, None) else 1)
    found = xr.open_dataset(store, engine="xzarr3", zarr_format=asked)
    xr.testing.assert_identical(found.load(), dataset())


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_group_below_a_consolidated_root_is_opened_as_cheaply(zarr_format: Any) -> None:
    store = WaitingStore()
    to_zarr(dataset(3), store, group="a/b", zarr_format=zarr_format)
    xzarr3.consolidate_metadata(store)
    expected = 1 if zarr_format == 3 else 2
    with store.counted() as count:
        group = xzarr3.open_group(store, "a/b")
        assert group.consolidated
        assert [*group] == ["v000", "v001", "v002"]
    assert len(count.requests) == expected
    with store.counted() as count:
        xr.open_dataset(store, engine="xzarr3", group="a/b")
    assert len(count.requests) == expected
    with store.counted() as count:
        tree = xr.open_datatree(store, engine="xzarr3")
    assert len(count.requests) == expected
    xr.testing.assert_identical(tree["a/b"].to_dataset().load(), dataset(3))
    with store.counted() as count:  # To be written, it is looked up where it is.
        assert not xzarr3.open_group(store, "a/b", mode="r+").consolidated
    assert "zarr.json" not in count.of("get")


def test_what_a_root_without_consolidated_metadata_says_is_no_matter() -> None:
    store = WaitingStore()
    to_zarr(dataset(2), store, group="a", consolidated=False)
    store.set("zarr.json", b"{")
    assert len(xzarr3.open_group(store, "a")) == 2
    with pytest.raises(xzarr3.MetadataError):
        xzarr3.open_group(store)


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_one_array_costs_its_own_documents(zarr_format: Any) -> None:
    store = filled(zarr_format)
    with store.counted() as count:
        array = xzarr3.open_array(store, "v042")
    assert array.shape == (4,)
    assert count.rounds == (1 if zarr_format == 3 else 2)


@pytest.mark.parametrize(
    ("zarr_format", "requests", "rounds"),
    [(3, 1 + 1 + VARIABLES, 3), (2, 6 + 1 + 3 * VARIABLES, 5), (DRAFT, 8 + 1 + VARIABLES, 4)],
)
def test_an_unconsolidated_group_is_listed_once(zarr_format: Any, requests: int, rounds: int) -> None:
    store = filled(zarr_format, consolidated=False)

    def all_of(group: xzarr3.Group, how: str) -> int:
        if how == "tree":
            return group.tree().count("\n")
        found = getattr(group, how)()
        return len(list(found))

    for how in ("items", "values", "arrays", "members", "load", "tree"):
        with store.counted() as count:
            assert all_of(xzarr3.open_group(store), how) == VARIABLES
        assert (len(count.requests), count.rounds) == (requests, rounds), how
        assert len(count.of("list")) == 1, how
    with store.counted() as count:
        found = xr.open_dataset(store, engine="xzarr3")
    assert (len(count.requests), count.rounds) == (requests, rounds)
    xr.testing.assert_identical(found.load(), dataset())


def test_dropped_variables_are_not_fetched() -> None:
    store = filled(3, consolidated=False)
    store.set("v001/zarr.json", b"no document")
    dropped = [f"v{n:03}" for n in range(1, VARIABLES)]
    with store.counted() as count:
        found = xr.open_dataset(store, engine="xzarr3", drop_variables=dropped)
    assert [*found.variables] == ["v000"]
    assert count.of("get") == ["zarr.json", "v000/zarr.json"]
    with pytest.raises(xzarr3.MetadataError, match="v001"):
        xr.open_dataset(store, engine="xzarr3", on_unreadable="raise")


def test_prefixes_that_are_no_nodes_are_left_out() -> None:
    for zarr_format in (3, 2):
        store = WaitingStore()
        root = xzarr3.create_group(store, zarr_format=zarr_format)
        root.create_array("a", shape=4, dtype="int8")
        store.set("b/c", b"something else")
        with store.counted() as count:
            assert [name for name, _ in root.items()] == ["a"]
        assert count.rounds == 2


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 7), (2, 9), (DRAFT, 8)])
def test_a_deep_tree_is_read_level_by_level(zarr_format: Any, rounds: int) -> None:
    leaf = dataset(2)
    nodes = {f"/a{a}/b{b}": leaf for a in range(4) for b in range(5)}
    store = WaitingStore()
    for path, each in nodes.items():
        to_zarr(each, store, group=path, consolidated=False, zarr_format=zarr_format)
    with store.counted() as count:
        tree = xr.open_datatree(store, engine="xzarr3")
    assert sum(1 for node in tree.subtree if node.data_vars) == 20
    assert count.rounds <= rounds
    assert len(count.of("list")) == 1 + 4 + 20 + (zarr_format == DRAFT)
    with store.counted() as count:
        assert len(dict(xzarr3.open_group(store).members(max_depth=None))) == 4 + 20 + 40
    assert count.rounds <= rounds
    with store.counted() as count:
        assert {name for name, _ in xzarr3.open_group(store).members(max_depth=1)} == {
            *(f"a{a}" for a in range(4)), *(f"a{a}/b{b}" for a in range(4) for b in range(5))
        }  # fmt: skip
    assert len(count.of("list")) == 1 + 4 + (zarr_format == DRAFT)


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_without_listing_and_consolidated_metadata_nothing_is_empty(zarr_format: Any) -> None:
    store = filled(zarr_format, consolidated=False, listable=False)
    group = xzarr3.open_group(store)
    for look in (list, len, xzarr3.Group.tree, lambda group: dict(group.items()), xzarr3.Group.loaded):
        with pytest.raises(
            StoreCapabilityError, match=r"consolidate_metadata\(\).* open_array\(store, path\)"
        ):
            look(group)
    np.testing.assert_array_equal(group["v003"][:], np.arange(4.0) + 3)
    assert "v003" in group
    with pytest.raises(xzarr3.NodeNotFoundError, match="no array or group 'other'"):
        group["other"]
    np.testing.assert_array_equal(xzarr3.open_array(store, "v003")[:], np.arange(4.0) + 3)
    with pytest.raises(StoreCapabilityError, match="consolidate"):
        xr.open_dataset(store, engine="xzarr3")
    with pytest.raises(StoreCapabilityError, match="consolidate"):
        xr.open_datatree(store, engine="xzarr3")


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_without_listing_consolidated_metadata_are_enough(zarr_format: Any) -> None:
    store = filled(zarr_format, listable=False)
    xr.testing.assert_identical(xr.open_dataset(store, engine="xzarr3").load(), dataset())
    assert len(xzarr3.open_group(store)) == VARIABLES


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 10), (2, 12), (DRAFT, 11)])
def test_documents_of_a_dataset_are_written_together(zarr_format: Any, rounds: int) -> None:
    store = WaitingStore()
    with store.counted() as count:
        to_zarr(dataset(), store, zarr_format=zarr_format)
    assert count.rounds <= rounds + SPLIT
    written = [key for operation, key in count.requests if operation == "set"]
    assert len(written) == len(set(written))
    kept = [(operation, key) for operation, key in count.requests if key.startswith(".xzarr3-")]
    assert [operation for operation, _ in kept] == ["set", "get", "erase"]  # The lease.
    assert len(count.requests) - len(kept) - (len(written) - 1) == (4 if zarr_format == 3 else 5)
    last = {3: "zarr.json", 2: ".zmetadata", DRAFT: "zarr.json"}[zarr_format]
    assert written[-1] == last
    xr.testing.assert_identical(xr.open_dataset(store, engine="xzarr3").load(), dataset())


def rounds_of(store: WaitingStore, act: Callable[[], object]) -> int:
    with store.counted() as count:
        act()
    return count.rounds


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_a_dataset_is_replaced_erased_and_copied_in_few_rounds(zarr_format: Any) -> None:
    store, target = filled(zarr_format), WaitingStore()
    new = dataset().assign_attrs(title="new")
    # New values are stored beside the old ones, then copied to their places.
    assert rounds_of(store, lambda: to_zarr(new, store, mode="w")) <= 50 + SPLIT
    xr.testing.assert_identical(xr.open_dataset(store, engine="xzarr3").load(), new)
    # One asks whether the group above is just being replaced.
    assert rounds_of(store, lambda: to_zarr(dataset(), store, group="below/it")) <= 35 + SPLIT
    assert rounds_of(store, lambda: xzarr3.open_group(store, mode="r+").__delitem__("below")) <= 16 + SPLIT
    xr.testing.assert_identical(xr.open_dataset(store, engine="xzarr3").load(), new)
    assert rounds_of(target, lambda: xzarr3.copy(store, target)) <= 26 + SPLIT
    xr.testing.assert_identical(xr.open_dataset(target, engine="xzarr3").load(), new)


@pytest.mark.parametrize(("zarr_format", "first", "below"), [(3, 4, 6), (2, 5, 7), (DRAFT, 7, 10)])
def test_a_node_is_made_in_few_rounds(zarr_format: Any, first: int, below: int) -> None:
    store = WaitingStore()
    xzarr3.create_group(store, zarr_format=zarr_format)

    def make(path: str = "a", shape: int = 4, **options: Any) -> xzarr3.Array:
        return xzarr3.create_array(store, path, shape=shape, dtype="int8", **options)

    assert rounds_of(store, make) <= first
    assert rounds_of(store, lambda: xzarr3.create_group(store, "b/c/d")) <= below + 1
    for path, error in (("a", xzarr3.NodeExistsError), ("a/b/c", xzarr3.NodeTypeError)):
        with store.counted() as count, pytest.raises(error):
            make(path)
        assert not count.of("set")
    # It is staged, and swapped under a lease: a failure leaves the old array.
    assert rounds_of(store, lambda: make(shape=5, overwrite=True)) <= 30


@pytest.mark.parametrize(("zarr_format", "rounds"), [(3, 7), (2, 9)])
def test_a_hierarchy_is_consolidated_in_few_rounds(zarr_format: Any, rounds: int) -> None:
    store = filled(zarr_format, consolidated=False)
    assert rounds_of(store, lambda: xzarr3.consolidate_metadata(store)) <= rounds
    assert len(store.count.of("set")) == 1
    assert rounds_of(store, lambda: xzarr3.consolidate_metadata(store)) <= rounds - 2


@pytest.mark.parametrize(("consolidated", "rounds"), [(False, 3), (True, 6)])
def test_an_attribute_costs_a_read_and_a_write(consolidated: bool, rounds: int) -> None:
    store = filled(3, consolidated=consolidated)
    array = xzarr3.open_array(store, "v001", mode="r+")
    assert rounds_of(store, lambda: array.attrs.update(units="K")) <= rounds
    assert xzarr3.open_group(store)["v001"].attrs["units"] == "K"
