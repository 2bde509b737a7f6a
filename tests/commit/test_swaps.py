"""Replacing in stores that cannot rename: what others do while a swap is under way, ends, or was cut off."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import msgspec
import numpy as np
import pytest
import xarray as xr
from _killed import forget_process, killed_everywhere, left, opened
from dask import delayed

import xzarr3
from xzarr3 import ConflictError, IncompleteWriteError, MemoryStore, NodeExistsError, StoreError, to_zarr
from xzarr3.commit import keys, lease, recover
from xzarr3.commit.keys import Keys
from xzarr3.errors import StoreCapabilityError
from xzarr3.stores import ANY


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
    with pytest.raises(StoreError, match="cut off"):
        to_zarr(dataset(start), store, mode="w")
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


class SwapEnding(MemoryStore):
    """A store in which a swap of a node ends between two looks: at its document, and at its lease."""

    document = ""

    def get(self, key: str, byte_range: Any = None) -> Any:
        if key.endswith(lease.NAME):
            self.document = ""
        return None if key == self.document else super().get(key, byte_range)

    def open(self, key: str, first: Any = None, version: object | None = None) -> Any:
        if key.endswith(lease.NAME):
            self.document = ""
        return None if key == self.document else super().open(key, first, version)


OPENERS: list[Callable[[Any], Any]] = [
    lambda store: xzarr3.open(store, "a"),
    lambda store: xzarr3.open_array(store, "a", mode="r+"),
    lambda store: xzarr3.open_group(store)["a"],
]


@pytest.mark.parametrize("opener", OPENERS, ids=["open", "array", "group"])
def test_a_node_whose_swap_ends_while_its_lease_is_looked_for_is_found(opener: Callable[[Any], Any]) -> None:
    store = SwapEnding()
    xzarr3.create_array(store, "a", data=np.arange(5))
    store.document = "a/zarr.json"
    assert opener(store)[:].tolist() == [0, 1, 2, 3, 4]
    assert not store.document
    store.document = "zarr.json"
    assert [*xzarr3.open_group(store)] == ["a"]


def test_rows_are_appended_to_what_was_swapped_meanwhile() -> None:
    store = SwapEnding()
    rows = xr.Dataset({"a": ("t", np.arange(3))})
    to_zarr(rows, store, mode="w")
    store.document = "zarr.json"
    to_zarr(rows, store, append_dim="t")
    assert xzarr3.open_array(store, "a")[:].tolist() == [0, 1, 2, 0, 1, 2]


def test_what_begins_to_be_swapped_meanwhile_is_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CutOff()
    to_zarr(dataset(0), store)
    failed(store)
    with monkeypatch.context() as patch:
        patch.setattr(  # As a moment before.
            recover, "holder_at", lambda *at: replace(lease.holder_at(*at), state="")
        )
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
    with pytest.raises(IncompleteWriteError, match=r"process \d+ .* and has failed, .*recover"):
        opened(store)
    if how == "recover":
        assert xzarr3.recover(store) == ["/"]
    elif how == "w-":
        with pytest.raises(NodeExistsError, match="is not empty"):
            to_zarr(dataset(2), store, mode="w-")
    else:
        to_zarr(dataset(2), store, mode="w")
    assert opened(store).identical(dataset(2 if how == "w" else 1))
    assert not left(store)


@pytest.mark.parametrize("is_within", [True, False])
def test_of_two_swaps_one_within_the_other_one_is_refused(
    is_within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copy = MemoryStore(), keys._copy
    to_zarr(dataset(0), store, group="g")
    before = opened(store, group="g").load()
    name = next(iter(before.data_vars))
    two = [
        lambda: to_zarr(dataset(1), store, group="g", mode="w"),
        lambda: xzarr3.create_array(store, f"g/{name}", data=np.full(3, 7.0), chunks=1, overwrite=True),
    ]

    def other_first(*given: Any) -> None:
        monkeypatch.undo()
        with pytest.raises((ConflictError, IncompleteWriteError)):
            two[not is_within]()
        copy(*given)

    monkeypatch.setattr(keys, "_copy", other_first)
    two[is_within]()
    if is_within:
        assert xzarr3.open_array(store, f"g/{name}")[:].tolist() == [7, 7, 7]
    else:
        xr.testing.assert_equal(opened(store, group="g").load(), dataset(1))
    assert left(store) == []


def test_nothing_is_made_where_a_writer_was_killed_within_a_swap() -> None:
    """Until it is put in place: a node made there would hide what is to come, or be hidden by it."""
    makes: list[Callable[[Any], object]] = [
        xzarr3.create_group,
        lambda store: xzarr3.create_array(store, "q", shape=3, dtype="f8"),
        lambda store: xzarr3.open_group(store, mode="a"),
        lambda store: to_zarr(dataset(2), store, group="below"),
    ]
    states: list[Any] = []
    first = to_zarr(dataset(0), MemoryStore()).store
    for store, _ in killed_everywhere(first, lambda store: to_zarr(dataset(1), store, mode="w")):
        forget_process()
        try:
            states.append(opened(store).attrs["start"])
        except IncompleteWriteError:
            states.append("incomplete")
            for make in makes:
                with pytest.raises(IncompleteWriteError, match="recover"):
                    make(store)
        xzarr3.recover(store)
        found = opened(store)
        assert found.identical(opened(store, consolidated=False))
        assert found.identical(dataset(0)) or found.identical(dataset(1))
        assert [key for key in left(store) if "staged" in key] == []
    assert [state for state, _ in itertools.groupby(states)] == [0, "incomplete", 1]


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
    """No lease tells there that the other one is still going on."""
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
