"""Replacing and appending that fail, are cut off or meet others: there is the old or the new, no mixture."""

import itertools
import os
import pkgutil
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import dask.array as da
import msgspec
import numpy as np
import pytest
import xarray as xr
from _archives import archive, disturb, months, read, roll
from _conformance import contents, refused
from _killed import KilledError, UnreadableStore, forget_process, killed_everywhere, left, opened
from _waiting import WaitingStore
from dask import delayed

import xzarr3
from xzarr3 import (
    ConflictError,
    IncompleteWriteError,
    LocalStore,
    MemoryStore,
    NodeExistsError,
    StoreError,
    to_zarr,
)
from xzarr3.commit import keys, lease, recover, writers
from xzarr3.commit.keys import Keys
from xzarr3.commit.lease import Holder
from xzarr3.commit.staged import SWAP
from xzarr3.errors import StoreCapabilityError
from xzarr3.stores import ANY
from xzarr3.stores.local.files import lock_of
from xzarr3.xarray.commit import Commit


class CutOff(MemoryStore):
    """A store in which copies to their places fail as long as ``fails`` says so."""

    fails = False

    def copy(self, source: str, target: str) -> None:
        if self.fails:
            raise StoreError("cut off")
        super().copy(source, target)

    def put(self, key: str, pieces: Any) -> None:
        if self.fails and "/c/" in key and not key.startswith("."):
            raise StoreError("cut off")
        super().put(key, pieces)


class Unconditional(CutOff):
    traits = msgspec.structs.replace(CutOff.traits, conditional="service")

    def put(self, key: str, pieces: Any | None, *, if_version: object = ANY) -> bool:
        if if_version is not ANY:
            raise StoreCapabilityError(f"cannot replace key '{key}' on condition")
        super().put(key, pieces or ())
        return True


def failed(store: CutOff, start: float = 1) -> None:
    """Replace what is there by a dataset whose copies fail."""
    store.fails = True
    refused(StoreError, lambda: to_zarr(dataset(start), store, mode="w"), match="cut off")
    store.fails = False


def dataset(start: float) -> xr.Dataset:
    values = np.arange(start, start + 4)
    return xr.Dataset({"a": ("x", values), "b": ("x", values)}, attrs={"start": start})


@pytest.mark.parametrize("who", ["recover", "another writer"])
def test_a_swap_that_ends_while_it_is_looked_at_is_not_ended_again(who: str) -> None:
    """Whoever sees it under way takes the place when it is free, and there is nothing left to do."""
    here = threading.current_thread()
    swapping, go_on = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        waits = False

        def copy(self, source: str, target: str) -> None:
            if self.waits:
                swapping.set()
                assert go_on.wait(120)
            super().copy(source, target)

        def open(self, key: str, first: Any = None, version: object | None = None) -> Any:
            found = super().open(key, first, version)
            text = b"" if found is None else bytes(found.read(0))
            if self.waits and threading.current_thread() is here and b'"swapping"' in text:
                self.waits = False  # This answer is slow: meanwhile the other writer comes to its end.
                go_on.set()
                other.join(120)
            return found

    store = Slow()
    for group in ("one", "two"):
        to_zarr(dataset(0), store, group=group)
    store.waits = True
    other = threading.Thread(target=lambda: to_zarr(dataset(1), store, group="one", mode="w"), daemon=True)
    other.start()
    assert swapping.wait(120)
    if who == "recover":
        xzarr3.recover(store)
    else:
        to_zarr(dataset(2), store, group="one", mode="w")
    assert not other.is_alive()
    assert opened(store, "one").identical(dataset(1 if who == "recover" else 2))
    assert opened(store, "two").identical(dataset(0))
    assert not left(store)


def test_a_node_whose_swap_ends_while_its_lease_is_looked_for_is_found() -> None:
    store, swapped = UnreadableStore(), set[str]()

    def hides(key: str) -> bool:
        if key.endswith(lease.NAME):
            swapped.clear()
        return key in swapped

    store.hides = hides
    rows = xr.Dataset({"a": ("t", np.arange(3))})
    to_zarr(rows, store, mode="w", consolidated=False)
    for opener in (
        lambda: xzarr3.open(store, "a"),
        lambda: xzarr3.open_array(store, "a", mode="r+"),
        lambda: xzarr3.open_group(store)["a"],
    ):
        swapped.add("a/zarr.json")
        assert opener()[:].tolist() == [0, 1, 2]
        assert not swapped
    swapped.add("zarr.json")
    assert [*xzarr3.open_group(store)] == ["a"]
    swapped.add("zarr.json")
    to_zarr(rows, store, append_dim="t")
    assert xzarr3.open_array(store, "a")[:].tolist() == [0, 1, 2, 0, 1, 2]


def test_what_begins_to_be_swapped_meanwhile_is_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CutOff()
    to_zarr(dataset(0), store)
    failed(store)
    holder_at = lease.holder_at
    # A moment before it was said.
    monkeypatch.setattr(recover, "holder_at", lambda *at: replace(holder_at(*at), state=""))
    assert xzarr3.recover(store) == ["/"]
    assert opened(store).identical(dataset(1))
    assert not left(store)


@pytest.mark.parametrize("how", ["recover", "w", "w-"])
def test_a_failed_swap_is_finished_where_nothing_is_written_on_condition(how: Any) -> None:
    store = Unconditional()
    for start in (3, 0):
        to_zarr(dataset(start), store, mode="w")
        assert opened(store).identical(dataset(start))
    assert not left(store)
    failed(store)
    refused(IncompleteWriteError, lambda: opened(store), match=r"process \d+ .* and has failed, .*recover")
    if how == "recover":
        assert xzarr3.recover(store) == ["/"]
    elif how == "w-":
        refused(NodeExistsError, lambda: to_zarr(dataset(2), store, mode="w-"), match="is not empty")
    else:
        to_zarr(dataset(2), store, mode="w")
    assert opened(store).identical(dataset(2 if how == "w" else 1))
    assert not left(store)


WITHIN: dict[str, tuple[str, Callable[[Any], object]]] = {
    "made": ("commit.keys.Keys._check", lambda store: to_zarr(dataset(7), store, group="g/new")),
    "replaced": (
        "commit.keys.put_in_place",
        lambda store: xzarr3.create_array(store, "g/a", data=np.full(3, 7.0), chunks=1, overwrite=True),
    ),
    "erased": (
        "commit.recover.erase_node",
        lambda store: xzarr3.open_group(store, "g", mode="r+").__delitem__("a"),
    ),
}
"""Changes of a node within another: what happens while their lease is held, and the change."""


ABOVE: dict[str, tuple[str, Callable[[Any], object]]] = {
    "replaced": (
        "commit.keys.put_in_place", lambda store: to_zarr(dataset(1), store, group="g", mode="w")
    ),
    "erased": (
        "commit.recover.wait_for_writers",
        lambda store: xzarr3.open_group(store, mode="r+").__delitem__("g"),
    ),
}  # fmt: skip
"""Changes of the group above, in the same way."""


@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
@pytest.mark.parametrize("how", WITHIN)
@pytest.mark.parametrize("above", ABOVE)
@pytest.mark.parametrize("is_within", [True, False])
def test_of_two_writers_within_one_place_one_fails(
    is_within: bool, above: str, how: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kind()
    to_zarr(dataset(0), store)
    to_zarr(dataset(0), store, group="g")
    within, two = WITHIN[how][1], [ABOVE[above], WITHIN[how]]
    name = f"xzarr3.{two[is_within][0]}"
    real = pkgutil.resolve_name(name)

    def other_first(*given: Any, **more: Any) -> Any:
        monkeypatch.undo()
        refused((ConflictError, IncompleteWriteError), lambda: two[not is_within][1](store))
        return real(*given, **more)

    monkeypatch.setattr(name, other_first)
    two[is_within][1](store)
    if is_within:
        expected = kind()
        to_zarr(dataset(0), expected)
        to_zarr(dataset(0), expected, group="g")
        within(expected)
        assert _plain(store) == _plain(expected)
    elif above == "erased":
        assert sorted(xzarr3.open_group(store, use_consolidated=False)) == ["a", "b"]
    else:
        xr.testing.assert_equal(opened(store, group="g").load(), dataset(1))
    assert left(store) == []
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
@pytest.mark.parametrize("mode", ["w-", "w"])
@pytest.mark.parametrize("is_within", [True, False])
def test_of_two_that_make_nodes_within_each_other_one_fails(
    is_within: bool, mode: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their values have the same keys, and both store them in place."""
    store, places, check = kind(), ["g", "g/a"], Keys._check
    to_zarr(dataset(0), store)

    def other_first(self: Keys) -> None:
        monkeypatch.undo()
        errors = ConflictError, NodeExistsError, IncompleteWriteError
        refused(errors, lambda: to_zarr(dataset(7), store, group=places[not is_within], mode=mode))
        if not is_within:
            refused(errors, lambda: xzarr3.create_array(store, "g/a", data=[7.0], chunks=1))
        check(self)

    monkeypatch.setattr(Keys, "_check", other_first)
    to_zarr(dataset(1), store, group=places[is_within], mode=mode)
    assert opened(store, group=places[is_within]).load().identical(dataset(1))
    assert left(store) == []
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("how", WITHIN)
@pytest.mark.parametrize("above", ABOVE)
@pytest.mark.parametrize("is_within", [True, False])
def test_of_two_within_one_directory_one_waits(
    is_within: bool, above: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover, "_SWAP_SECONDS", 0.0)
    store, expected = LocalStore(tmp_path / "a").with_traits(conflict_deadline=0.05), MemoryStore()
    for each in (store, expected):
        for group in (None, "g"):
            to_zarr(dataset(0), each, group=group)
    first, second = (WITHIN[how], ABOVE[above]) if is_within else (ABOVE[above], WITHIN[how])
    is_erased = (how if is_within else above) == "erased"
    name = f"xzarr3.commit.{'recover.erase_node' if is_erased else 'directory.swap_units'}"
    real, met = pkgutil.resolve_name(name), []

    def other_meanwhile(*given: Any, **more: Any) -> Any:
        if not met:
            met.append(refused(ConflictError, lambda: second[1](store)))
        return real(*given, **more)

    monkeypatch.setattr(name, other_meanwhile)
    first[1](store)
    first[1](expected)
    assert met
    assert _plain(store) == _plain(expected)
    assert left(store) == []
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
@pytest.mark.parametrize("above", ABOVE)
def test_a_variable_stored_while_its_lease_is_looked_for_is_no_part_of_what_replaces_the_group(
    above: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are listed without its document, and its lease is gone when it is read."""
    store, added, holder_at = kind(), xr.Dataset({"c": ("x", np.full(4, 5.0))}), writers.holder_at
    for group in (None, "g"):
        to_zarr(dataset(0), store, group=group)
    stored, go_on = threading.Event(), threading.Event()
    adding = threading.Thread(target=lambda: to_zarr(added, store, group="g", mode="a"), daemon=True)
    check = Keys._check

    def checked(self: Keys) -> None:
        stored.set()
        assert go_on.wait(120)
        check(self)

    def ended_first(*given: Any) -> Holder:
        go_on.set()
        adding.join(120)
        return holder_at(*given)

    monkeypatch.setattr(Keys, "_check", checked)
    adding.start()
    assert stored.wait(120)
    monkeypatch.setattr(writers, "holder_at", ended_first)
    if above == "erased":
        ABOVE[above][1](store)
        assert sorted(xzarr3.open_group(store, use_consolidated=False)) == ["a", "b"]
    else:
        refused(ConflictError, lambda: ABOVE[above][1](store))
        xr.testing.assert_equal(opened(store, group="g").load(), dataset(0).merge(added))
    assert not adding.is_alive()
    assert left(store) == []
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
def test_an_append_sets_no_attributes_of_what_has_replaced_its_group(kind: Any) -> None:
    store, follow, more = kind(), Commit._follow, dataset(4).assign_attrs(start=4)
    to_zarr(dataset(0), store)

    def replaced(self: Commit, *given: Any) -> None:
        with mock.patch.object(Commit, "_follow", follow):
            to_zarr(dataset(9), store, mode="w")
        follow(self, *given)

    with mock.patch.object(Commit, "_follow", replaced):
        refused(xzarr3.ChangedError, lambda: to_zarr(more, store, append_dim="x"), match="has replaced '/'")
    assert opened(store).load().identical(dataset(9))
    assert left(store) == []


@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
@pytest.mark.parametrize("options", [{"append_dim": "x"}, {"mode": "a"}])
def test_a_group_added_meanwhile_is_no_other_root(options: Any, kind: Any) -> None:
    """The document of the root has copies, and with them the time of the new group."""
    store, finish, more = kind(), Commit.finish, dataset(4)
    to_zarr(dataset(0), store)

    def added(self: Commit) -> None:
        with mock.patch.object(Commit, "finish", finish):
            to_zarr(dataset(9), store, group="g")
        finish(self)

    with mock.patch.object(Commit, "finish", added):
        to_zarr(more if "append_dim" in options else more.rename(a="c", b="d"), store, **options)
    assert opened(store).attrs == more.attrs
    assert opened(store, group="g").load().identical(dataset(9))
    assert xzarr3.check(store).ok


def test_of_two_appends_the_last_one_sets_the_attributes() -> None:
    store, follow, late = MemoryStore().with_traits(conflict_deadline=0.1), Commit._follow, dataset(8)
    to_zarr(dataset(0), store)

    def other_first(self: Commit, *given: Any) -> None:
        with mock.patch.object(Commit, "_follow", follow):
            refused(ConflictError, lambda: to_zarr(late, store, append_dim="x"))
        follow(self, *given)

    with mock.patch.object(Commit, "_follow", other_first):
        to_zarr(dataset(4), store, append_dim="x")
    assert opened(store).attrs == dataset(4).attrs
    to_zarr(late, store, append_dim="x")
    assert opened(store).attrs == late.attrs
    assert opened(store).a.values.tolist() == [*range(12)]


def test_of_two_that_add_a_variable_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is planned while the first has stored values and no document, as if it was killed."""
    store = MemoryStore()
    to_zarr(dataset(0), store)
    one, other = (xr.Dataset({"c": ("x", np.full(4, value))}) for value in (1.0, 2.0))
    stored, go_on = threading.Event(), threading.Event()
    check, begin = Keys._check, Commit.begin
    first = threading.Thread(target=lambda: to_zarr(one, store, mode="a"), daemon=True)

    def checked(self: Keys) -> None:
        stored.set()
        assert go_on.wait(120)
        check(self)

    def begun(self: Commit) -> None:
        if threading.current_thread() is not first:
            go_on.set()
            first.join(120)
        begin(self)

    monkeypatch.setattr(Keys, "_check", checked)
    monkeypatch.setattr(Commit, "begin", begun)
    first.start()
    assert stored.wait(120)
    refused(NodeExistsError, lambda: to_zarr(other, store, mode="a"))
    xr.testing.assert_equal(opened(store).c, one.c)
    assert left(store) == []


def test_swaps_within_each_other_are_recovered_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner one needs the group that the outer one has not put in its place yet."""
    stores = []
    for numbers, act in (
        (itertools.count(10**6), lambda store: to_zarr(dataset(1), store, group="g", mode="w")),
        (itertools.count(), WITHIN["replaced"][1]),
    ):
        store = MemoryStore()
        to_zarr(dataset(0), store, group="g")
        with monkeypatch.context() as patch:
            patch.setattr(uuid, "uuid4", lambda numbers=numbers: uuid.UUID(int=next(numbers)))
            patch.setattr(keys, "_copy", mock.Mock(side_effect=KilledError))
            with pytest.raises(KilledError):
                act(store)
        forget_process()
        stores.append(store)
    outer, inner = stores
    for key in left(inner):
        outer.set(key, inner.get(key))
    assert xzarr3.recover(outer) == ["/g"]
    xr.testing.assert_equal(opened(outer, "g").load(), dataset(1))
    assert left(outer) == []


def test_a_swap_within_that_was_killed_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    store, say = MemoryStore(), Keys._say
    to_zarr(dataset(0), store, group="g")

    def killed_first(self: Keys, state: str) -> set[str]:
        monkeypatch.undo()
        with monkeypatch.context() as patch:
            patch.setattr(keys, "_copy", mock.Mock(side_effect=KilledError))
            with pytest.raises(KilledError):
                WITHIN["replaced"][1](store)
        return say(self, state)

    monkeypatch.setattr(Keys, "_say", killed_first)
    to_zarr(dataset(1), store, group="g", mode="w")
    assert opened(store, "g").load().identical(dataset(1))
    assert left(store) == []
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
def test_an_array_that_comes_once_its_group_was_listed_is_erased_with_it(kind: Any) -> None:
    class Erasing(kind):  # type: ignore[misc]
        is_listed = False

        def erase(self, *keys: str) -> None:
            if "g/zarr.json" in keys and not self.is_listed:
                self.is_listed = True
                xzarr3.create_array(self, "g/new", data=np.arange(4), chunks=2)
            super().erase(*keys)

    store = Erasing()
    to_zarr(dataset(0), store)
    to_zarr(dataset(0), store, group="g")
    del xzarr3.open_group(store, mode="r+")["g"]
    assert store.is_listed
    assert not [key for key in contents(store) if key.startswith("g/")]
    assert xzarr3.check(store).ok


def test_no_document_of_the_root_changes_while_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had read the old one would store it in place of the new one."""
    rename, are_locked = os.rename, list[bool]()

    def renamed(source: str, target: str) -> None:
        if str(tmp_path / "zarr.json") in (source, target):
            are_locked.append(os.path.exists(lock_of(str(tmp_path / "zarr.json"))))
        rename(source, target)

    to_zarr(dataset(0), tmp_path)
    monkeypatch.setattr(os, "rename", renamed)
    to_zarr(dataset(1), tmp_path, mode="w")
    assert are_locked == [True, True]
    assert left(LocalStore(tmp_path)) == []


@pytest.mark.parametrize("kind", [MemoryStore, WaitingStore])
def test_chunks_that_come_once_the_old_ones_were_listed_leave_too(kind: Any) -> None:
    """The old array had none there, and neither has the new one, which would read them."""

    class Meanwhile(kind):  # type: ignore[misc]
        def put(self, key: str, *value: Any, **how: Any) -> Any:
            if key.endswith(f"/{SWAP}"):
                xzarr3.open_array(self, "a", mode="r+")[2:] = 7
            return super().put(key, *value, **how)

    store = Meanwhile()
    for start in (1, 2):
        new = xr.Dataset({"a": ("x", np.array([start, start, 0, 0]))})
        to_zarr(new, store, mode="w", encoding={"a": {"chunks": (2,)}})
        xr.testing.assert_equal(opened(store).load(), new)
    assert left(store) == []


@pytest.mark.parametrize("second", ["all is there", "a task fails", "a chunk is empty"])
@pytest.mark.parametrize("first", ["all is there", "a task fails", "copies fail"])
def test_what_is_computed_twice_keeps_nothing_of_the_first_time(first: str, second: str) -> None:
    now = ""

    def block(n: int) -> Any:
        if now == "a task fails" and n == 3:
            raise RuntimeError("the task fails")
        return np.full(2, np.nan if now == "a chunk is empty" and n == 1 else n + 1.0)

    store = CutOff()
    to_zarr(dataset(0), store)
    blocks = [da.from_delayed(delayed(block, pure=False)(n), (2,), "f8") for n in range(4)]
    source = xr.Dataset({"a": ("x", da.concatenate(blocks))})
    options: Any = {"mode": "w", "encoding": {"a": {"chunks": (2,)}}}
    for now in (first, second):
        store.fails = now == "copies fail"
        with suppress(RuntimeError, StoreError, NodeExistsError), dask.config.set(scheduler="sync"):
            to_zarr(source, store, **options)
    store.fails = False
    with suppress(NodeExistsError):
        xzarr3.recover(store)
    whole, empty = (xr.Dataset({"a": ("x", np.repeat([1.0, n, 3.0, 4.0], 2))}) for n in (2.0, np.nan))
    found = opened(store)
    assert any(found.identical(each) for each in (dataset(0), whole, empty))
    if second == "all is there":
        assert found.identical(whole) or first == "copies fail"
    assert [key for key in left(store) if "staged" in key] == []


def test_two_writes_to_one_zip_keep_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Keys.begin
    others: list[Callable[[], object]] = []

    def begun(self: Keys) -> None:
        begin(self)
        while others:  # From its begin to its end between two steps of the first one.
            others.pop()()

    with xzarr3.ZipStore(tmp_path / "a.zip", mode="w") as store:
        for group in ("one", "two"):
            to_zarr(dataset(0), store, group=group)
        monkeypatch.setattr(Keys, "begin", begun)
        others.append(lambda: to_zarr(dataset(2), store, group="two", mode="w"))
        to_zarr(dataset(1), store, group="one", mode="w")
        assert not left(store)
    for at, group in enumerate(("one", "two"), 1):
        assert opened(tmp_path / "a.zip", group).identical(dataset(at))


WAYS: dict[str, Callable[[Any], object]] = {
    "array": lambda store: xzarr3.create_array(store, "g/a", data=np.ones(6), chunks=2, overwrite=True),
    "array without data": lambda store: xzarr3.create_array(
        store, "g/a", shape=6, chunks=2, dtype="f8", overwrite=True
    ),
    "group": lambda store: xzarr3.create_group(store, "g", overwrite=True),
    "open": lambda store: xzarr3.open_group(store, "g", mode="w"),
    "saved": lambda store: xzarr3.save_group(store, path="g", a=np.ones(3), overwrite=True),
    "set": lambda store: xzarr3.open_group(store, "g", mode="r+").__setitem__("a", np.ones(5)),
}


def two_arrays(store: Any) -> Any:
    group = xzarr3.create_group(store, "g", attributes={"old": True})
    for name in "ab":
        group.create_array(name, data=np.arange(1.0, 5), chunks=2)
    return store


@pytest.mark.parametrize("how", WAYS)
def test_failures_leave_the_old(how: str, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(two_arrays(store))
    with monkeypatch.context() as patch:
        for name in (
            "arrays.Array.__setitem__", "commit.directory.store_documents", "commit.keys.StagedKeys.written"
        ):  # fmt: skip
            patch.setattr(f"xzarr3.{name}", lambda *args, **options: 1 // 0)  # Before anything has left.
        refused(ZeroDivisionError, lambda: WAYS[how](store))
    assert contents(store) == before
    assert not left(store)
    WAYS[how](store)
    assert contents(store) != before
    assert not left(store)


@pytest.mark.parametrize("how", WAYS)
def test_a_kill_anywhere_leaves_the_old_node_the_new_one_or_none(how: str) -> None:
    first, whole = two_arrays(MemoryStore()), two_arrays(MemoryStore())
    WAYS[how](whole)
    for store, killed in killed_everywhere(first, WAYS[how]):
        forget_process()
        path = "g/a" if how.startswith("array") else "g"
        for find in (xzarr3.open, _listed, _read_below):
            with suppress(IncompleteWriteError):
                assert find(store, path) is not None
        xzarr3.recover(store)
        assert _plain(store) in ([_plain(first)] if killed else []) + [_plain(whole)]


def _listed(store: Any, path: str) -> object:
    above, _, name = path.rpartition("/")
    return name if name in list(xzarr3.open_group(store, above, mode="r")) else None


def _read_below(store: Any, path: str) -> object:
    return xzarr3.open_group(store, mode="r").loaded().get(path)


def _plain(store: Any) -> dict[str, bytes]:
    """Contents without leases, and without the spaces that tell new documents from equal old ones."""
    return {key: value.rstrip(b" \t\n") for key, value in contents(store).items() if ".xzarr3" not in key}


class Interrupting(MemoryStore):
    """Interrupts the process once a document is stored."""

    key = ""

    def put(self, key: str, pieces: Any) -> None:
        super().put(key, pieces)
        if key == self.key:
            self.key = ""
            raise KeyboardInterrupt


SEVENS = xr.Dataset({"v": ("x", np.full(3, 7.0))})
APPENDS: dict[str, Callable[[Any], Any]] = {
    "append": lambda store: xzarr3.open_array(store, "v", mode="r+").append(np.full(3, 7.0)),
    "to_zarr": lambda store: to_zarr(SEVENS, store, append_dim="x"),
    "dask": lambda store: to_zarr(SEVENS.chunk(x=1), store, append_dim="x"),
}


@pytest.mark.parametrize("how", APPENDS)
def test_an_append_that_is_interrupted_once_its_shape_is_stored_leaves_nothing(how: str) -> None:
    store = Interrupting()
    to_zarr(xr.Dataset({"v": ("x", np.arange(3.0))}), store, encoding={"v": {"chunks": (2,)}})
    before = contents(store).keys()
    store.key = "v/zarr.json"
    refused(KeyboardInterrupt, lambda: APPENDS[how](store))
    assert not store.key
    assert contents(store).keys() == before
    assert xzarr3.open_array(store, "v")[...].tolist() == [0.0, 1.0, 2.0]
    APPENDS[how](store)
    assert xzarr3.open_array(store, "v")[...].tolist() == [0.0, 1.0, 2.0, 7.0, 7.0, 7.0]


NEW = xr.Dataset({"t2m": (("time", "x"), months().t2m.values * 0 - 5)}, {"time": months().time})
PART = months().isel(time=slice(30, 40))[["t2m"]].drop_vars("lat") * 2

SWAPS: dict[str, Callable[[WaitingStore], object]] = {
    "drop": lambda store: roll("drop", store, 12),
    "prepend": lambda store: roll("prepend", store, 12),
    "w": lambda store: to_zarr(NEW, store, mode="w"),
}


def rolled(swap: str, before: xr.Dataset) -> xr.Dataset:
    """What there is after a swap."""
    if swap == "prepend":
        return xr.concat([months().isel(time=slice(12)), before], "time", data_vars="minimal")
    return NEW if swap == "w" else before.isel(time=slice(12, None))


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("swap", SWAPS)
def test_who_replaces_a_node_waits_for_who_writes_in_it(
    swap: str, lazily: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WaitingStore()
    archive("prepend" if swap == "prepend" else "drop", store, 12)
    part = PART * 3 if swap == "prepend" else PART
    begun, waits, wait = threading.Lock(), threading.Event(), keys.wait_for_writers
    swapping = threading.Thread(target=SWAPS[swap], args=(store,))

    def waited(*given: Any) -> bool:
        waits.set()
        return wait(*given)

    def late(operation: str, key: str) -> None:
        if operation == "set" and key.startswith("t2m/c") and begun.acquire(blocking=False):
            swapping.start()
            assert waits.wait(60)
            swapping.join(0.5)  # It would end, if it did not wait.
            assert swapping.is_alive()

    monkeypatch.setattr(keys, "wait_for_writers", waited)
    expected = read(store)
    store.before = late
    to_zarr(part.chunk(time=5) if lazily else part, store, region={"time": "auto"})
    store.before = None
    swapping.join(60)
    assert not swapping.is_alive()
    expected.t2m.loc[{"time": part.time}] = part.t2m
    xr.testing.assert_equal(read(store), rolled(swap, expected))
    assert left(store) == []


@pytest.mark.parametrize(
    ("swap", "is_swapping"),
    [("drop", False), ("prepend", False), ("drop", True), ("prepend", True), ("w", True)],
)
def test_nobody_begins_to_write_in_a_node_that_is_being_replaced(
    swap: str, is_swapping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, raised, put_in_place = WaitingStore().with_traits(conflict_deadline=0.2), [], keys.put_in_place
    archive("prepend" if swap == "prepend" else "drop", store, 12)

    def write() -> None:
        raised.extend(refused(IncompleteWriteError, lambda: to_zarr(PART, store, region={"time": "auto"})))

    def put(*given: Any, **more: Any) -> Any:
        write()
        return put_in_place(*given, **more)

    expected = rolled(swap, read(store))
    if is_swapping:
        monkeypatch.setattr(keys, "put_in_place", put)
    else:
        disturb(monkeypatch, write)
    SWAPS[swap](store)
    assert len(raised) == 1
    xr.testing.assert_equal(read(store), expected)
    assert left(store) == []


def test_a_writer_that_does_not_end_is_not_waited_for_for_ever() -> None:
    store, begun = WaitingStore().with_traits(conflict_deadline=0.1), threading.Lock()
    archive("drop", store, 12)

    def replace(operation: str, key: str) -> None:
        if operation == "set" and key.startswith("t2m/c") and begun.acquire(blocking=False):
            with pytest.raises(ConflictError, match="another writer kept writing values in '/'"):
                to_zarr(NEW, store, mode="w")

    expected = read(store)
    store.before = replace
    to_zarr(PART, store, region={"time": "auto"})
    store.before = None
    expected.t2m.loc[{"time": PART.time}] = PART.t2m
    xr.testing.assert_equal(read(store), expected)
    assert left(store) == []


@pytest.mark.parametrize("text", [Holder("x", left=True, top='["t2m"]').text(), b"no lease"])
def test_what_a_killed_writer_left_is_no_obstacle(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 0.0)
    store = WaitingStore()
    archive("drop", store, 12)
    store.set(".xzarr3-lease-x", text)
    roll("drop", store, 12)
    xr.testing.assert_equal(read(store), months().isel(time=slice(12, None)))
    assert xzarr3.check(store).ok
