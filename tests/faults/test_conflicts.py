"""What many change at the same time, of which nothing gets lost; what is read meanwhile is old or new."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import dask
import dask.array as da
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from _conformance import run_threads
from _fault_server import FaultServer
from _processes import Process, processes, run_processes
from _strategies import attempt
from _things import refused
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import FsspecStore, IncompleteWriteError, LocalStore, MemoryStore, StoreError, from_zarr, to_zarr
from xzarr3._types import Buffer
from xzarr3.commit import append as lengths
from xzarr3.commit import directory, lease
from xzarr3.errors import ChangedError, ConflictError, OutcomeUnknownError, SelectionError, Xzarr3Error
from xzarr3.io.selection import basic_selection
from xzarr3.nodes import seen
from xzarr3.nodes.resize import resized
from xzarr3.stores import ANY

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
FORMATS = (3, 2, "3-draft")


class RacingStore(WaitingStore):
    """Where others are faster: every now and then somebody else changes a value just before it is replaced.

    Each instance stands for a process of its own: the values are shared, the locks are not.
    """

    traits = msgspec.structs.replace(WaitingStore.traits, concurrency=MemoryStore.traits.concurrency)

    def __init__(self, shared: WaitingStore | None = None) -> None:
        super().__init__()
        self.lose: Callable[[str], bool] = lambda key: False
        if shared is not None:
            self._values, self._lock = shared._values, shared._lock

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        is_lost = if_version is not ANY and self.lose(key)
        return not is_lost and super().put(key, pieces, if_version=if_version)


def wait_at_most(store: Any, seconds: float) -> None:
    store.traits = msgspec.structs.replace(store.traits, conflict_deadline=seconds)


def twins(store: RacingStore, number: int, pause: float = 0, dice: random.Random | None = None) -> list[Any]:
    """The same store in as many processes, in threads of this one, which pause at random before requests."""
    found = [RacingStore(store) for _ in range(number)]
    for own in found:
        if dice is not None:
            own.before = lambda operation, key: time.sleep(dice.random() * pause)
    return found


@pytest.fixture
def on_hosts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each thread is on a host of its own, and nobody renews a lease: whoever is slow loses it."""
    monkeypatch.setattr(lease, "PATIENCE", 0.2)
    monkeypatch.setattr(lease, "_keep", lambda held: None)
    monkeypatch.setattr(lease, "here", lambda: lease.Whereabouts(str(threading.get_ident()), "b", "p"))
    lease._seen.clear()
    yield
    lease._seen.clear()


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_attributes_set_by_many_are_all_there(zarr_format: Any) -> None:
    store = RacingStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("a/x", shape=4, dtype="int8", dimension_names=["t"])
    if zarr_format != "3-draft":
        root.consolidate()

    def work(n: int, own: RacingStore) -> None:
        for path in ("a", "a/x"):
            node = xzarr3.open(own, path, mode="r+")
            for at in range(10):
                node.attrs[f"{n}-{at}"] = at
                if at % 3 == 2:
                    del node.attrs[f"{n}-{at}"]

    run_threads(*(partial(work, n, own) for n, own in enumerate(twins(store, 4))))
    expected = {f"{n}-{at}": at for n in range(4) for at in range(10) if at % 3 != 2}
    for path in ("a", "a/x"):
        assert dict(xzarr3.open(store, path, mode="r+").attrs) == expected
        assert dict(xzarr3.open_group(store)[path].attrs) == expected  # In the consolidated copy, too.
    assert xzarr3.open_array(store, "a/x").dimension_names == ("t",)


def test_what_is_lost_is_tried_again_and_then_given_up() -> None:
    store = RacingStore()
    array = xzarr3.create_array(store, shape=4, chunks=2, dtype="int8", attributes={"a": 1})
    losses = iter([True] * 3)
    store.lose = lambda key: next(losses, False)
    array.attrs["b"] = 2
    assert dict(xzarr3.open_array(store).attrs) == {"a": 1, "b": 2}
    before = dict(store._values)
    wait_at_most(store, 0.05)
    store.lose = lambda key: True
    resizes = (partial(array.resize, shape) for shape in (8, 1))
    append, describe = partial(array.append, np.ones(4, "int8")), partial(array.attrs.update, b=3)
    for change in (describe, *resizes, append):
        refused(ConflictError, r"zarr\.json.*conflict_deadline", change)
        assert (store._values, array.shape, dict(array.attrs)) == (before, (4,), {"a": 1, "b": 2})


def test_a_node_is_made_by_one_only() -> None:
    store = RacingStore()

    def make(own: RacingStore, n: int) -> int | None:
        options: Any = {"shape": n + 1, "dtype": "int8", "attributes": {"n": n}}
        make = partial(xzarr3.create_array, own, "a/b/x", **options)
        return n if attempt(make, xzarr3.NodeExistsError)[1] is None else None

    for zarr_format in FORMATS:
        store._values.clear()
        xzarr3.create_group(store, zarr_format=zarr_format)
        made = run_threads(*(partial(make, own, n) for n, own in enumerate(twins(store, 6))))
        (winner,) = [n for n in made if n is not None]
        array = xzarr3.open_array(store, "a/b/x")
        assert array.shape == (winner + 1,)
        assert dict(array.attrs) == {"n": winner}
        assert [*xzarr3.open_group(store, "a/b")] == ["x"]


@pytest.mark.parametrize("first", [0, 1])
def test_a_node_has_the_attributes_of_who_made_it(first: int) -> None:
    """The second writer finds the attributes of the first, and no node yet; either may be faster then."""
    store = RacingStore()
    xzarr3.create_group(store, zarr_format=2)
    described = [threading.Event(), threading.Event()]
    defined = threading.Event()

    def make(n: int, own: RacingStore) -> bool:
        def before(operation: str, key: str) -> None:
            if (operation, key) == ("set", "x/.zarray"):
                described[n].set()
                described[1].wait(10)
                if n != first:
                    defined.wait(10)

        own.before = before
        if n:
            described[0].wait(10)
        options: Any = {"shape": n + 1, "dtype": "int8", "attributes": {"n": n}}
        error = attempt(partial(xzarr3.create_array, own, "x", **options), xzarr3.NodeExistsError)[1]
        defined.set()
        return error is None

    made = run_threads(*(partial(make, n, own) for n, own in enumerate(twins(store, 2))))
    assert made == [n == first for n in range(2)]
    array = xzarr3.open_array(store, "x")
    assert (array.shape, dict(array.attrs)) == ((first + 1,), {"n": first})


def _makes(path: str, n: int, *, array: bool = False, overwrite: bool = False) -> Callable[[Any], object]:
    options: Any = {"attributes": {"n": n}, "overwrite": overwrite}
    if array:
        return lambda store: xzarr3.create_array(store, path, shape=1, dtype="int8", **options)
    return lambda store: xzarr3.create_group(store, path, **options)


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("k", _makes("k", 0, array=True), _makes("k", 1)),
        ("k", _makes("k", 0), _makes("k", 1, array=True)),
        ("k", _makes("k", 0, array=True), _makes("k/l", 1)),
        ("k", _makes("k", 0), _makes("k/l", 1)),
        ("g", _makes("g", 0, overwrite=True), lambda store: xzarr3.open(store, "g", mode="r+").attrs.put({})),
    ],
)
def test_of_two_writers_of_a_place_one_finds_the_other(
    zarr_format: Any, path: str, one: Callable[[Any], object], other: Callable[[Any], object]
) -> None:
    """The other one writes just before any of the requests of the first."""
    for n in itertools.count():
        store = RacingStore()
        root = xzarr3.create_group(store, zarr_format=zarr_format)
        root.create_group("g", attributes={"n": 2})
        if zarr_format != "3-draft":
            root.consolidate()
        own, another = twins(store, 2)
        asked = itertools.count()
        failed: list[Exception | None] = []
        calls = partial(other, another), partial(one, own)
        act = partial(lambda call, failed: failed.append(attempt(call, Xzarr3Error)[1]), calls[0], failed)
        acts: Any = {n: act}
        own.before = lambda *_, acts=acts, asked=asked: acts.pop(next(asked), int)()
        failed.append(attempt(calls[1], Xzarr3Error)[1])
        if next(asked) <= n:
            break
        documents = [f"{path}/zarr.json", f"{path}/.zarray", f"{path}/.zgroup"]
        documents += [f"meta/{path}.{kind}.json" for kind in ("array", "group")]
        assert len(store._values.keys() & documents) <= 1, n
        assert None in failed, n
        plain, found = (
            {name: dict(node.attrs) for name, node in group.members(max_depth=None)}
            for group in (xzarr3.open_group(store, use_consolidated=held) for held in (False, None))
        )
        assert found == plain, n
        assert plain.keys() - {"g"} in ({"k"}, {"k", "k/l"}, set()), n
        is_array = isinstance(xzarr3.open(store, path), xzarr3.Array)
        assert not (is_array and f"{path}/l" in xzarr3.open_group(store)), n


def test_copies_have_what_a_writer_puts_back_that_was_too_late() -> None:
    """It has found the attributes of another one, and no node yet."""
    store = RacingStore()
    xzarr3.create_group(store, zarr_format=2).consolidate()
    own, another = twins(store, 2)
    store._values["k/.zattrs"] = b'{"n": 0}'

    def be_faster(operation: str, key: str) -> None:
        if (operation, key) == ("set", "k/.zgroup"):
            store._values[key] = b'{"zarr_format": 2}'
            xzarr3.consolidate_metadata(another)

    own.before = be_faster
    refused(xzarr3.NodeExistsError, "'/k'", partial(xzarr3.create_group, own, "k", attributes={"n": 1}))
    assert [dict(xzarr3.open_group(store)[name].attrs) for name in xzarr3.open_group(store)] == [{"n": 0}]


def test_a_group_above_is_made_though_another_has_described_it() -> None:
    store = RacingStore()
    xzarr3.create_group(store, zarr_format=2)
    (own,) = twins(store, 1)
    acts = [partial(store._values.update, {"k/.zattrs": b"{}"})]
    own.before = lambda *request: request == ("set", "k/.zattrs") and acts and acts.pop()()
    xzarr3.create_group(own, "k/l")
    assert not acts
    assert [*xzarr3.open_group(store, "k")] == ["l"]


def test_no_attributes_stay_of_a_node_that_is_erased_at_once() -> None:
    store = RacingStore()
    xzarr3.create_group(store, zarr_format=2)
    own, another = twins(store, 2)
    acts = [lambda: xzarr3.open_group(another, mode="r+").__delitem__("k")]
    own.before = lambda *_: "k/.zgroup" in store._values and acts and acts.pop()()
    xzarr3.create_group(own, "k", attributes={"n": 1})
    assert store._values.keys() == {".zgroup", ".zattrs"}


def test_a_node_that_is_erased_while_its_documents_are_read_is_not_found() -> None:
    """Its attributes stand in a document that goes last."""
    store = RacingStore()
    xzarr3.create_group(store, zarr_format=2).create_array("x", shape=1, dtype="int8", attributes={"n": 1})
    own, another = twins(store, 2)
    acts = [lambda: xzarr3.open_group(another, mode="r+").__delitem__("x")]
    own.before = lambda operation, key: key == "x/.zattrs" and acts and acts.pop()()
    refused(xzarr3.NodeNotFoundError, "'/x'", partial(xzarr3.open_array, own, "x"))


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_consolidating_while_others_change_misses_nothing(zarr_format: Any) -> None:
    store = RacingStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    for name in "abc":
        root.create_array(name, shape=4, dtype="int8")

    def change(own: RacingStore, n: int) -> None:
        group = xzarr3.open_group(own, mode="r+")
        for at in range(8):
            group["abc"[n]].attrs[str(at)] = at
            group.create_array(f"new{n}-{at}", shape=1, dtype="int8")
        del group[f"new{n}-3"]

    others = twins(store, 4)
    works = [partial(change, others[n], n) for n in range(3)]
    run_threads(*works, lambda: [xzarr3.consolidate_metadata(others[3]) for _ in range(3)])
    plain = xzarr3.open_group(store, use_consolidated=False)
    found = xzarr3.open_group(store, use_consolidated=True)
    assert sorted(found) == sorted(plain)
    assert len(found) == 3 + 3 * 7
    for name in "abc":
        assert dict(found[name].attrs) == dict(plain[name].attrs) == {str(at): at for at in range(8)}


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_what_changes_just_before_a_hierarchy_is_consolidated_is_in_it(zarr_format: Any) -> None:
    store = RacingStore()
    xzarr3.create_group(store, zarr_format=zarr_format).create_array("x", shape=4, dtype="int8")
    (own,) = twins(store, 1)
    key = "zarr.json" if zarr_format == 3 else ".zmetadata"
    late = xzarr3.open_array(store, "x", mode="r+")

    def pause(operation: str, asked: str) -> None:
        if (operation, asked) == ("set", key) and "late" not in late.attrs:
            late.attrs["late"] = 1  # There are no consolidated metadata yet that it would have to change.

    own.before = pause
    for group in (xzarr3.consolidate_metadata(own), xzarr3.open_group(store)):
        assert group["x"].attrs["late"] == 1


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("group", ["", "g"])
def test_copies_are_true_whenever_others_change_nodes_that_grow(zarr_format: Any, group: str) -> None:
    data = xr.Dataset({"v": ("x", np.arange(4.0)), "x": ("x", np.arange(4.0))})
    others: list[Callable[[xzarr3.Store], object]] = [
        *(lambda store, path=path: xzarr3.open(store, path, mode="r+").attrs.update(late=1)
          for path in (f"{group}/v", "")),
        lambda store: xzarr3.open_array(store, f"{group}/w", mode="r+").append([2.0]),
        lambda store: xzarr3.open_group(store, group, mode="r+").create_array("u", shape=1, dtype="i1"),
        xzarr3.consolidate_metadata,
    ]  # fmt: skip
    for other in others:
        outcomes = set()
        for n in itertools.count():
            store = RacingStore()
            xzarr3.to_zarr(data, store, group=group, zarr_format=zarr_format, consolidated=True)
            xzarr3.create_array(store, f"{group}/w", data=np.ones(1), zarr_format=zarr_format)
            xzarr3.consolidate_metadata(store)
            own, another = twins(store, 2)
            asked = itertools.count()

            acts: Any = {n: partial(other, another)}
            own.before = lambda *_, acts=acts, asked=asked: acts.pop(next(asked), int)()
            append = partial(xzarr3.to_zarr, data, own, group=group, append_dim="x", check_labels=False)
            outcomes.add("refused" if attempt(append, ConflictError)[1] else "appended")
            root, plain = (xzarr3.open_group(store, use_consolidated=held) for held in (True, False))
            assert root.consolidated
            for name in (f"{group}/v", f"{group}/x", f"{group}/w"):
                assert root[name].shape == plain[name].shape, (n, name)
                assert root[name].attrs == plain[name].attrs, (n, name)
            assert sorted(root[group] if group else root) == sorted(plain[group] if group else plain), n
            if next(asked) <= n:
                break
        assert "appended" in outcomes


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_no_copy_of_an_erased_node_stays_whenever_others_copy_it(zarr_format: Any) -> None:
    def erase(store: xzarr3.Store) -> None:
        del xzarr3.open_group(store, "g", mode="r+")["v"]

    def change(store: xzarr3.Store) -> None:
        xzarr3.open(store, "g/v", mode="r+").attrs["late"] = 1

    def tried(act: Callable[[xzarr3.Store], object], own: xzarr3.Store) -> None:
        with suppress(Xzarr3Error):  # The node may be gone already.
            act(own)

    for one in (change, xzarr3.consolidate_metadata):
        for first, second in ((one, erase), (erase, one)):
            for n in itertools.count():
                store = RacingStore()
                group = xzarr3.create_group(store, "g", zarr_format=zarr_format)
                group.create_array("v", shape=1, dtype="i1")
                group.create_array("w", shape=1, dtype="i1")
                xzarr3.consolidate_metadata(store)
                own, another = twins(store, 2)
                asked = itertools.count()

                acts: Any = {n: partial(tried, second, another)}
                own.before = lambda *_, acts=acts, asked=asked: acts.pop(next(asked), int)()
                tried(first, own)
                if next(asked) <= n:
                    break
                found = xzarr3.open_group(store, use_consolidated=True)
                assert sorted(found["g"]) == ["w"], (one, first, n)


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_copy_that_could_not_follow_is_repaired(zarr_format: Any) -> None:
    store = RacingStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("x", shape=4, dtype="int8", attributes={"a": 0})
    root.create_array("y", shape=4, dtype="int8")
    root.consolidate()
    wait_at_most(store, 0.05)
    key = "zarr.json" if zarr_format == 3 else ".zmetadata"
    for repair in (
        lambda: xzarr3.open_array(store, "x", mode="r+").attrs.update(b=1),
        lambda: xzarr3.consolidate_metadata(store),
    ):
        xzarr3.open_array(store, "x", mode="r+").attrs["a"] = 0
        store.lose = lambda asked: asked == key
        array = xzarr3.open_array(store, "x", mode="r+")
        (error,) = refused(ConflictError, None, partial(array.attrs.update, a=1))
        assert "itself is changed" in error.__notes__[0]
        assert array.attrs["a"] == xzarr3.open_array(store, "x").attrs["a"] == 1
        assert xzarr3.open_group(store)["x"].attrs["a"] == 0
        store.lose = lambda asked: False
        repair()
        assert xzarr3.open_group(store)["x"].attrs["a"] == 1
    store.set(key, b"{")
    (error,) = refused(xzarr3.MetadataError, "not a JSON document", lambda: array.append(np.ones(1, "int8")))
    assert "'/x' itself is changed, so repeat no append and no drop()" in error.__notes__[0]
    assert xzarr3.open_array(store, "x")[...].tolist() == [0, 0, 0, 0, 1]


@pytest.fixture
def slow_append() -> Iterator[tuple[Any, Any, Any]]:
    """A second handle, a writer stopped where it is about to store a chunk, and what lets it go on."""
    store = RacingStore()
    xzarr3.create_array(store, data=np.arange(4), chunks=3)
    slow, fast = (xzarr3.open_array(own, mode="r+") for own in twins(store, 2))
    reached, go_on = threading.Event(), threading.Event()

    def pause(operation: str, asked: str) -> None:
        if (operation, asked) == ("set", "c/1") and not reached.is_set():
            reached.set()
            assert go_on.wait(120)

    slow.store.before = pause
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(slow.append, np.array([10, 11, 12]))
        assert reached.wait(120)
        yield fast, late, go_on


@pytest.mark.usefixtures("on_hosts_of_their_own")
def test_who_waits_long_enough_takes_a_lease_away(slow_append: Any) -> None:
    fast, late, go_on = slow_append
    assert fast.append(np.array([20, 21, 22, 23, 24, 25])) == (10,)
    assert xzarr3.open_array(fast.store)[:].tolist() == [0, 1, 2, 3, 20, 21, 22, 23, 24, 25]
    go_on.set()
    assert late.result(timeout=120) == (13,)
    assert xzarr3.open_array(fast.store)[:].tolist() == [0, 1, 2, 3, 20, 21, 22, 23, 24, 25, 10, 11, 12]


def test_others_wait_while_an_owner_lives(slow_append: Any) -> None:
    fast, late, go_on = slow_append
    wait_at_most(fast.store, 0.2)
    refused(ConflictError, "length of the array", lambda: fast.append(np.array([20])))
    go_on.set()
    wait_at_most(fast.store, 60)
    assert fast.append(np.array([20])) == (8,)
    assert late.result(timeout=120) == (7,)
    assert xzarr3.open_array(fast.store)[:].tolist() == [0, 1, 2, 3, 10, 11, 12, 20]


def check_rows(found: Any, old: int, rows: dict[int, list[int]]) -> None:
    """``found`` begins with the old rows; each appended block is there once, whole and in order."""
    assert found[:old].tolist() == [[-1 - n] * found.shape[1] for n in range(old)]
    assert (found == found[:, :1]).all(), "a row is torn"
    left = found[old:, 0].tolist()
    assert sorted(left) == sorted(value for block in rows.values() for value in block)
    for block in rows.values():
        at = left.index(block[0])
        assert left[at : at + len(block)] == block


def old_rows(number: int) -> Any:
    return as_rows(-1 - np.arange(number))


def as_rows(values: Any) -> Any:
    return np.repeat(np.asarray(values)[:, None], 3, axis=1)


@settings(max_examples=12)
@given(
    old=st.integers(0, 7),
    chunk=st.integers(1, 5),
    sharded=st.booleans(),
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=2, max_size=4),
    zarr_format=st.sampled_from(FORMATS),
    seed=st.integers(0, 2**16),
)
def test_appended_rows_are_there_once(
    old: int, chunk: int, sharded: bool, lengths: list[list[int]], zarr_format: Any, seed: int
) -> None:
    store, dice = RacingStore(), random.Random(seed)
    options: dict[str, Any] = {"chunks": (chunk, 2)}
    if sharded and zarr_format == 3:
        options["shards"] = (3 * chunk, 4)
    xzarr3.create_array(store, data=old_rows(old), zarr_format=zarr_format, **options)
    rows: dict[int, list[int]] = {}
    for n, each in enumerate(lengths):
        for at, length in enumerate(each):
            start = 1000 * n + 100 * at + 1
            rows[start] = list(range(start, start + length))
    seen: list[Any] = []
    done = threading.Event()

    def append(n: int, own: RacingStore) -> None:
        array = xzarr3.open_array(own, mode="r+")
        for at in range(len(lengths[n])):
            array.append(as_rows(rows[1000 * n + 100 * at + 1]))

    def read() -> None:
        while not done.is_set():
            seen.append(xzarr3.open_array(store)[:])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        others = twins(store, len(lengths), 0.002, dice)
        run_threads(*(partial(append, n, own) for n, own in enumerate(others)))
    finally:
        done.set()
        reader.join()
    found = xzarr3.open_array(store)[:]
    check_rows(found, old, rows)
    for each in seen:  # A reader sees the first so many rows of the final array, whenever it looks.
        assert each.tolist() == found[: len(each)].tolist()


@pytest.mark.usefixtures("on_hosts_of_their_own")
def test_appending_with_lost_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 0.004)  # Nobody lives so fast: all take from each other.
    held: list[bool] = []
    holds = lease.Lease.holds
    monkeypatch.setattr(lease.Lease, "holds", lambda self: held.append(holds(self)) or held[-1])
    for seed in range(6):
        store, dice = RacingStore(), random.Random(seed)
        xzarr3.create_array(store, data=old_rows(5), chunks=(4, 2))
        rows = {100 * n + 1: list(range(100 * n + 1, 100 * n + 4 + n)) for n in range(4)}

        def append(own: RacingStore, block: list[int], dice: random.Random = dice) -> None:
            own.before = lambda operation, key: time.sleep(dice.choice([0, 0, 0, 0.003, 0.01]))
            wait_at_most(own, 100)
            xzarr3.open_array(own, mode="r+").append(as_rows(block))

        others = twins(store, 4)
        run_threads(*(partial(append, own, block) for own, block in zip(others, rows.values(), strict=True)))
        check_rows(xzarr3.open_array(store)[:], 5, rows)
    assert False in held, "nobody took a lease away from anybody"


def test_a_killed_appender_stops_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited for the patience one has with the dead of other hosts would be told of a conflict."""
    monkeypatch.setattr(lease, "PATIENCE", 10**6)
    xzarr3.create_array(tmp_path, data=old_rows(5), chunks=(4, 2))
    array = xzarr3.open_array(tmp_path, mode="r+")

    def work() -> None:
        for n in itertools.count():
            array.append(np.full((9, 3), 7))
            if n == 2:
                Process.say()

    for _ in range(4):
        with processes(work) as (child,):
            assert child.hear()
            child.kill()
        before = xzarr3.open_array(tmp_path)[:]
        xzarr3.open_array(tmp_path, mode="r+").append(np.full((9, 3), 7))
        found = xzarr3.open_array(tmp_path)[:]
        assert ((len(before) - 5) % 9, len(found)) == (0, len(before) + 9)
        for each in (before, found):
            assert (each[:5].tolist(), {*each[5:].flat}) == (old_rows(5).tolist(), {7})


def test_what_a_killed_appender_left_is_never_seen() -> None:
    store = MemoryStore()
    array = xzarr3.create_array(store, data=np.arange(5), chunks=4)
    grown = xzarr3.Array(store, "", resized(array.metadata, (12,)))
    # As one has written them who did not come to write its document.
    grown._write(basic_selection(slice(5, None), (12,)), 99)
    assert xzarr3.open_array(store)[:].tolist() == [0, 1, 2, 3, 4]
    array.resize(7)
    assert xzarr3.open_array(store)[:].tolist() == [0, 1, 2, 3, 4, 0, 0]
    assert store.get("c/2") is not None
    array.resize(12)
    assert xzarr3.open_array(store)[:].tolist() == [0, 1, 2, 3, 4] + [0] * 7
    assert store.get("c/2") is None


class Unheard(WaitingStore):
    """Stores a document of a new length, or not, and then something happens once before it says so."""

    then: Callable[[Unheard], object] | None = None
    stores = True

    @staticmethod
    def late() -> bool:
        """Carries out the request that was not, if it still can be."""
        return False

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        then, before = self.then, self._values.get("zarr.json")
        store = partial(super().put, key, pieces, if_version=if_version)
        if then is None or key != "zarr.json" or before is None or not _is_of_another_length(before, pieces):
            return store()
        self.then, self.late = None, store  # type: ignore[method-assign]
        assert not self.stores or store()
        found = then(self)
        if isinstance(found, Exception):
            raise found
        return False


def _is_of_another_length(one: bytes, pieces: Sequence[Buffer] | None) -> bool:
    other = b"".join(pieces or ())
    return bool(json.loads(one)["shape"] != json.loads(other)["shape"])


def appends_to_it(number: int) -> Callable[[WaitingStore], None]:
    """Somebody who does not know that the writer still lives."""

    def append(store: WaitingStore) -> None:
        said = json.loads(store._values[lease.NAME])
        store._values[lease.NAME] = json.dumps({**said, "left": True}).encode()
        array = xzarr3.open_array(RacingStore(store), mode="r+")
        for n in range(number):
            array.append(np.array([100 + n]))

    return append


ANSWERS = {
    "conflict": False, "failure": StoreError("no answer"),
    "unknown": OutcomeUnknownError("others were there"),
}  # fmt: skip
BESIDES: dict[str, Callable[[Any], object]] = {
    "nobody": lambda store: None,
    "described": lambda store: xzarr3.open_array(RacingStore(store), mode="r+").attrs.update(a=1),
    "rewritten": lambda store: store._values.update(
        {"zarr.json": json.dumps(json.loads(store._values["zarr.json"])).encode()}
    ),
    "appended": appends_to_it(2),
}


def unheard(answer: str, beside: Callable[[Any], object], stores: bool) -> tuple[Unheard, xzarr3.Array]:
    """An array whose next length is stored, or not, before somebody else is there and no answer comes."""

    def happens(store: Unheard) -> object:
        beside(store)
        return ANSWERS[answer]

    store = Unheard()
    array = xzarr3.create_array(store, data=np.arange(3), chunks=2)
    array.append(np.array([3, 4]))
    store.then, store.stores = happens, stores
    return store, array


@pytest.mark.parametrize(("answer", "beside", "stores"), [
    *((answer, beside, True) for answer in ANSWERS for beside in ("nobody", "described", "rewritten")),
    *((answer, beside, False) for answer in ("conflict", "unknown") for beside in ("nobody", "described")),
    ("conflict", "appended", False),
])  # fmt: skip
def test_an_append_without_an_answer_is_made_once(answer: str, beside: str, stores: bool) -> None:
    store, array = unheard(answer, BESIDES[beside], stores)
    array.append(np.array([5, 6]))
    assert store.then is None
    assert stores or not store.late()
    expected = [*range(5), *([100, 101] if beside == "appended" else []), 5, 6]
    assert array.shape == (len(expected),)
    assert xzarr3.open_array(store)[:].tolist() == expected
    xzarr3.open_array(store, mode="r+").append(np.array([9]))
    assert xzarr3.open_array(store)[:].tolist() == [*expected, 9]


@pytest.mark.parametrize("number", [0, 1, 16])
@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("answer", ["unknown", "failure"])
def test_an_append_that_may_have_been_made_is_an_error(number: int, stores: bool, answer: str) -> None:
    def beside(store: Unheard) -> None:
        appends_to_it(number)(store)
        if not number:
            del store._values[lease.NAME]

    store, array = unheard(answer, beside, stores)
    refused(OutcomeUnknownError, "may have been appended", lambda: array.append(np.array([5, 6])))
    wanted = [*range(7 if stores else 5), *range(100, 100 + number)]
    assert xzarr3.open_array(store)[:].tolist() == wanted
    assert not store.late()
    assert xzarr3.open_array(store)[:].tolist() == wanted


def test_an_append_that_failed_cannot_be_made_any_more() -> None:
    """The request may still be under way when the error is raised."""
    store, array = unheard("failure", BESIDES["nobody"], stores=False)
    refused(StoreError, "no answer", lambda: array.append(np.array([5, 6])))
    assert not store.late()
    assert xzarr3.open_array(store)[:].tolist() == [0, 1, 2, 3, 4]
    assert sorted(store.list()) == ["c/0", "c/1", "c/2", "zarr.json"]


@pytest.mark.parametrize("shape", [7, 1])
def test_a_resize_without_an_answer_is_not_made_again(shape: int) -> None:
    store, array = unheard("unknown", BESIDES["nobody"], stores=True)
    array.resize(shape)
    assert store.then is None
    assert array.shape == (shape,)
    assert xzarr3.open_array(store)[:].tolist() == [0, 1, 2, 3, 4, 0, 0][:shape]


@pytest.mark.parametrize("answer", ["conflict", "unknown"])
def test_a_lease_without_an_answer_is_known_again(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 10**6)

    answers: list[Any] = []

    class Deaf(WaitingStore):
        def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
            done = super().put(key, pieces, if_version=if_version)
            told = answers.pop() if key == lease.NAME and answers else done
            if isinstance(told, Exception):
                raise told
            return bool(told)

    array = xzarr3.create_array(Deaf(), data=np.arange(3), chunks=2)
    answers.append(ANSWERS[answer])
    array.append(np.array([3]))
    assert xzarr3.open_array(array.store)[:].tolist() == [0, 1, 2, 3]


@settings(max_examples=10)
@given(st.integers(1, 30), st.integers(1, 6), st.booleans(), st.integers(0, 2**16))
def test_resizing_while_others_write_keeps_the_rest(new: int, chunk: int, sharded: bool, seed: int) -> None:
    store, dice = RacingStore(), random.Random(seed)
    options: dict[str, Any] = {"shards": 3 * chunk} if sharded else {}
    xzarr3.create_array(store, data=np.zeros(30, int), chunks=chunk, **options)
    parts = [range(n, 30, 3) for n in range(3)]
    handles = [xzarr3.open_array(own, mode="r+") for own in twins(store, 4, 0.001, dice)]

    def write(array: xzarr3.Array, part: range) -> None:
        for at in part:
            try:
                array[at] = at + 1
            except (StoreError, SelectionError):  # It is shorter now.
                array = xzarr3.open_array(array.store, mode="r+")
                if at < new:
                    array[at] = at + 1

    works = [partial(write, array, part) for array, part in zip(handles, parts, strict=False)]
    run_threads(*works, lambda: handles[3].resize(new))
    array = xzarr3.open_array(store, mode="r+")
    expected = list(range(1, new + 1))
    assert array[:].tolist() == expected
    array.resize(40)
    assert array[:].tolist() == expected + [0] * (40 - new)


@pytest.fixture(params=["memory", "directory", "waiting"])
def replaced_store(request: pytest.FixtureRequest, tmp_path: Path) -> xzarr3.Store:
    local = partial(LocalStore, tmp_path / "store")
    return {"memory": MemoryStore, "waiting": WaitingStore, "directory": local}[request.param]()


@pytest.mark.parametrize("value", [7.0, np.nan])
def test_an_append_does_no_harm_to_a_replacement(replaced_store: Any, monkeypatch: Any, value: float) -> None:
    monkeypatch.setattr(seen, "RECENT", 0.0)
    encoding = {"v": {"chunks": (2,), "_FillValue": -1.0}}
    xzarr3.to_zarr(xr.Dataset({"v": ("x", np.arange(4.0))}), replaced_store, encoding=encoding)
    new = xr.Dataset({"v": ("x", np.full(12, 3.0))})
    new["v"][4:8] = value
    replaced: list[object] = []

    def block(values: Any) -> Any:
        if not replaced:
            replaced.append(xzarr3.to_zarr(new, replaced_store, mode="w", encoding=encoding))
        return values

    rows = da.from_array(np.full(4, 5.0), chunks=2).map_blocks(block, dtype="f8", meta=np.empty(0))
    with dask.config.set(scheduler="synchronous"), pytest.raises(ChangedError, match=r"got shape \(12,\)"):
        xzarr3.to_zarr(xr.Dataset({"v": ("x", rows)}), replaced_store, append_dim="x")
    assert xzarr3.open_array(replaced_store, "v")[:].tolist() == new["v"].fillna(-1.0).values.tolist()


def test_a_resize_does_no_harm_to_a_replacement(replaced_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = {"v": {"chunks": (2,)}}
    xzarr3.to_zarr(xr.Dataset({"v": ("x", np.arange(4.0))}), replaced_store, group="g", encoding=encoding)
    array, erase_beyond = xzarr3.open_array(replaced_store, "g/v", mode="r+"), lengths.erase_beyond
    new = xr.Dataset({"v": ("x", np.arange(1.0, 13.0))})

    def replaced(*given: Any, **options: Any) -> None:
        monkeypatch.undo()
        xzarr3.to_zarr(new, replaced_store, group="g", mode="w", encoding=encoding)
        erase_beyond(*given, **options)

    monkeypatch.setattr(lengths, "erase_beyond", replaced)
    refused(ChangedError, "replaced since it was opened", lambda: array.resize(9))
    assert xzarr3.open_array(replaced_store, "g/v")[:].tolist() == new["v"].values.tolist()


def test_an_append_that_fails_erases_nothing_of_an_array_of_another_kind() -> None:
    store, new, encoding = RacingStore(), np.arange(1, 11, dtype="int16"), {"v": {"chunks": (2,)}}
    xzarr3.to_zarr(xr.Dataset({"v": ("x", np.zeros(4))}), store, encoding=encoding)
    array = xzarr3.open_array(store, "v", mode="r+")

    def pause(operation: str, key: str) -> None:
        if (operation, key) == ("set", array._key):
            store.before = None
            xzarr3.to_zarr(xr.Dataset({"v": ("x", new)}), store, mode="w", encoding=encoding)

    store.before = pause
    refused(ChangedError, "was removed or replaced", lambda: array.append(np.ones(4)))
    assert xzarr3.open_array(store, "v")[:].tolist() == new.tolist()


def test_resizing_and_appending_come_one_after_the_other() -> None:
    for seed in range(8):
        store, dice = RacingStore(), random.Random(seed)
        xzarr3.create_array(store, data=np.arange(10), chunks=3)
        handles = [xzarr3.open_array(own, mode="r+") for own in twins(store, 2, 0.003, dice)]
        run_threads(partial(handles[0].append, np.full(7, 50)), partial(handles[1].resize, 4))
        found = xzarr3.open_array(store)[:].tolist()
        assert found in ([0, 1, 2, 3], [0, 1, 2, 3] + [50] * 7)
        chunks = sorted(key for key in store._values if key.startswith("c/"))
        assert chunks == [f"c/{n}" for n in range(-(-len(found) // 3))]


@pytest.fixture(scope="module")
def spawned() -> Iterator[Any]:
    """A pool of processes that share no library with this one, as obstore wants it."""
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        yield pool


def _append_rows(n: int, url: str, options: dict[str, Any], rows: dict[int, list[int]]) -> None:
    array = xzarr3.open_array(url, storage_options=options, mode="r+")
    for at in range(2):
        array.append(as_rows(rows[100 * (2 * n + at) + 1]))
        array.attrs[str(2 * n + at)] = at


@pytest.mark.parametrize("server", ["s3_server", "fault_server"])
def test_processes_append_to_a_service(server: str, spawned: Any, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("obstore")
    running = request.getfixturevalue(server)
    lossy = server == "fault_server"
    url = "s3://b/x" if lossy else f"s3://{running.bucket()}/x.zarr"
    options = running.storage_options
    xzarr3.create_array(url, storage_options=options, data=old_rows(5), chunks=(4, 2))
    rows = {100 * n + 1: list(range(100 * n + 1, 100 * n + 6)) for n in range(6)}
    if lossy:
        running.fault("lost-answer", "/b/x/*", share=0.2, times=10**6, methods=["PUT"])
    given = [(n, url, options, rows) for n in range(3)]
    spawned.starmap_async(_append_rows, given, chunksize=1).get(timeout=240)
    if lossy:
        running.clear_faults()
    array = xzarr3.open_array(url, storage_options=options)
    check_rows(array[:], 5, rows)
    assert dict(array.attrs) == {str(n): n % 2 for n in range(6)}


@pytest.mark.parametrize(("kind", "more"), [("lost-answer", {}), ("status", {"status": 503})])
def test_appending_where_answers_get_lost(fault_server: Any, kind: str, more: dict[str, Any]) -> None:
    pytest.importorskip("obstore")
    store = xzarr3.open_store("s3://b/x", fault_server.storage_options, mode="a")
    array = xzarr3.create_array(store, data=np.arange(3), chunks=2)
    fault_server.fault(kind, "/b/x/*", times=12, share=0.4, methods=["PUT"], **more)
    for n in range(6):
        array.append(np.array([10 * n, 10 * n + 1]))
    array.attrs["a"] = 1
    fault_server.clear_faults()
    found = xzarr3.open_array(store)
    assert found[:].tolist() == [0, 1, 2, *(10 * n + at for n in range(6) for at in range(2))]
    assert dict(found.attrs) == {"a": 1}


def labelled(times: Any) -> xr.Dataset:
    """Values that their labels tell."""
    times = np.asarray(times)
    return xr.Dataset(
        {"v": (("time", "x"), times[:, np.newaxis] * 10.0 + range(3)), "own": ("time", 0 * times)},
        {"time": times},
    )


def roll_append_or_set(what: str, place: Path, calls: int, dice: random.Random) -> dict[int, int]:
    """Do one thing again and again, with others in the way; returns what ``own`` was set to, by label."""
    stored: dict[int, int] = {}
    for call in range(calls):
        try:
            now = xzarr3.open_dataset(place, chunks=None)
            times = now.time.values.tolist()
            at = sorted(dice.sample(range(len(times) + 1), 2))
            part = times[slice(*at)]
            if what == "append":
                xzarr3.to_zarr(labelled(range(times[-1] + 1, times[-1] + 4)), place, append_dim="time")
            elif what == "drop" and len(times) > 24:
                xzarr3.drop(place, time=slice(None, times[dice.randrange(9)]))
            elif what == "read":
                found = now.load()
                np.testing.assert_array_equal(found.v, labelled(found.time).v)
            elif what == "copy":
                found = xzarr3.open_dataset(xzarr3.copy(place, MemoryStore()).store, chunks=None)
                np.testing.assert_array_equal(found.v, labelled(found.time).v)
            elif what == "set":
                values = xr.Dataset({"own": ("time", np.full(len(part), call + 1))}, {"time": part})
                for label in part:
                    stored.pop(label, None)  # If this fails, they may have the old value or the new one.
                xzarr3.to_zarr(values, place, region={"time": "auto"})
                stored.update(dict.fromkeys(part, call + 1))
        except xzarr3.Xzarr3Error:
            continue
        except ValueError as error:  # xarray refuses variables of two lengths.
            if "conflicting sizes" not in str(error):
                raise
    return stored


@pytest.mark.filterwarnings("ignore:.* is kept in:UserWarning")
def test_an_archive_rolls_while_others_append_to_it_set_read_and_copy_it(tmp_path: Path) -> None:
    place, told = tmp_path / "a", tmp_path / "told.json"
    encoding = {"v": {"chunks": (4, 3)}, "own": {"chunks": (4,)}, "time": {"chunks": (8,)}}
    xzarr3.to_zarr(labelled(range(100, 140)), place, encoding=encoding)

    def doing(what: str, calls: int) -> Callable[[], object]:
        def work() -> None:
            stored = roll_append_or_set(what, place, calls, random.Random(what))
            if what == "set":
                told.write_text(json.dumps(stored))

        return work

    whats = {"append": 20, "drop": 60, "set": 150, "read": 60, "copy": 40}
    run_processes(*itertools.starmap(doing, whats.items()))
    found = xzarr3.open_dataset(place, chunks=None).load()
    assert found.time.values.tolist() == [*range(found.time.values[0], found.time.values[-1] + 1)]
    np.testing.assert_array_equal(found.v, labelled(found.time).v)
    own = dict(zip(map(str, found.time.values), found.own.values, strict=True))
    stored = json.loads(told.read_text())
    assert {label: own[label] for label in stored if label in own} == {
        label: value for label, value in stored.items() if label in own
    }
    assert xzarr3.check(place).ok


Kind: TypeAlias = Literal["append", "replace", "region"]
KINDS: list[Kind] = ["append", "replace", "region", "append", "region", "replace", "append", "region"]
ROWS: dict[Kind, int] = {"append": 3, "replace": 8, "region": 4}
ENCODING: dict[str, Any] = {"v": {"chunks": (4, 3)}, "w": {"chunks": (4,)}}


@dataclass(frozen=True)
class Write:
    """A write of rows that are all equal to a number of their own, and when it began and ended."""

    kind: Kind
    number: int
    begin: float
    end: float
    error: type[Exception] | None = None


def rows(number: int, length: int) -> xr.Dataset:
    v, w = np.full((length, 6), number, "i4"), np.full(length, number, "i4")
    return xr.Dataset({"v": (("t", "x"), v), "w": ("t", w)})


def work(kind: Kind, at: int, url: str, options: dict[str, Any] | None) -> list[Write]:
    written = []
    for n in range(6):
        number, error, begin = 1000 * at + n, None, time.monotonic()
        data = rows(number, ROWS[kind])
        if n % 2:
            data = data.chunk(t=4)
        try:
            if kind == "append":
                to_zarr(data, url, append_dim="t", storage_options=options, safe_chunks=False)
            elif kind == "replace":
                to_zarr(data, url, mode="w", storage_options=options, encoding=ENCODING)
            else:
                to_zarr(data, url, region={"t": slice(0, 4)}, storage_options=options)
        except Xzarr3Error as raised:
            error = type(raised)
        written.append(Write(kind, number, begin, time.monotonic(), error))
    return written


def check(v: npt.NDArray[Any], w: npt.NDArray[Any], writes: list[Write]) -> None:
    """See that what is there is what some order of the writes leaves, and that no write is lost."""
    by = {write.number: write for write in writes}
    assert (v == v[:, :1]).all()
    (number,) = {*v[4:8, 0].tolist(), *w[4:8].tolist()}
    base = by[number]
    assert base.kind == "replace"
    later = [write for write in writes if write.begin > base.end and write.error is None]
    assert not [write for write in later if write.kind == "replace"], "a dataset is lost"

    assert v[8:, 0].tolist() == w[8:].tolist()
    batches = w[8:].reshape(-1, 3)
    assert (batches == batches[:, :1]).all()
    appended = batches[:, 0].tolist()
    assert len(set(appended)) == len(appended)
    for write in map(by.__getitem__, appended):
        assert write.kind == "append"
        assert write.error in (None, OutcomeUnknownError)
        assert write.end > base.begin
    assert {write.number for write in later if write.kind == "append"} <= {*appended}, "rows are lost"

    for head in (v[:4, 0], w[:4]):
        (number,) = {*head.tolist()}
        over = [write for write in later if write.kind == "region"]
        if number == base.number:
            assert not over, "a region is lost"
        assert by[number].kind == "region" or number == base.number
        assert not [write for write in over if write.begin > by[number].end], "a region is lost"


@pytest.mark.parametrize("kind", ["directory", pytest.param("object store", marks=pytest.mark.slow)])
def test_processes_at_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest, spawned: Any) -> None:
    url = str(tmp_path / "x.zarr")
    options: dict[str, Any] | None = None
    if kind == "object store":
        pytest.importorskip("obstore")
        url, options = "s3://b/x.zarr", request.getfixturevalue("fault_server").storage_options
    to_zarr(rows(-1, 8), url, mode="w", storage_options=options, encoding=ENCODING)
    given = [(kind, at, url, options) for at, kind in enumerate(KINDS)]
    done = spawned.starmap_async(work, given, chunksize=1).get(timeout=400)
    writes = [write for each in done for write in each]
    writes.append(Write("replace", -1, 0.0, 0.0))
    found = xzarr3.open_group(url, storage_options=options, use_consolidated=False)
    check(np.asarray(found["v"]), np.asarray(found["w"]), writes)
    kept = xzarr3.open_store(url, options).list()
    assert not [key for key in kept if "xzarr3" in key]
    for each in set(KINDS):
        assert [write for write in writes if write.kind == each and write.error is None]


@pytest.mark.parametrize(("numbers", "lost"), [
    ([1] * 8 + [2] * 3, None), ([3] * 4 + [1] * 4 + [2] * 3, None), ([1] * 8, "rows are lost"),
    ([0] * 8 + [2] * 3, "a dataset is lost"), ([4] * 4 + [1] * 4 + [2] * 3, "a region is lost"),
])  # fmt: skip
def test_what_is_lost_is_found(numbers: list[int], lost: str | None) -> None:
    writes = [
        Write("replace", 0, 0, 1), Write("replace", 1, 2, 3), Write("append", 2, 4, 5),
        Write("region", 3, 2, 4), Write("region", 4, 0, 1),
    ]  # fmt: skip
    w = np.array(numbers)
    if lost is None:
        check(w[:, None], w, writes)
    else:
        writes.append(Write("region", 5, 6, 7) if lost == "a region is lost" else writes[0])
        refused(AssertionError, lost, lambda: check(w[:, None], w, writes))


COMPUTED = [float(value) for value in range(1, 5)]
WRITES: dict[str, dict[str, Any]] = {
    "new": {"group": "below"}, "w where nothing is": {"group": "below", "mode": "w"},
    "added": {"mode": "a"}, "region": {"region": {"x": slice(0, 4)}},
}  # fmt: skip


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("place", [LocalStore, lambda path: FsspecStore(f"file://{path}")])
def test_tasks_run_twice_in_any_order(tmp_path: Path, place: Any, kind: str, order: tuple[int, ...]) -> None:
    """They run one by one, each as a copy, as on a cluster: so every order of them is certain."""
    store, options = place(tmp_path / "store"), WRITES[kind]
    name = "b" if kind == "added" else "a"
    old = xr.Dataset({"a": ("x", np.full(4, -1.0))})
    xzarr3.to_zarr(old, store, encoding={"a": {"chunks": (1,)}})
    made = da.from_array(np.array(COMPUTED), chunks=1)
    later = xzarr3.to_zarr(xr.Dataset({name: ("x", made)}), store, compute=False, **options)
    found = later.__dask_optimize__(later.__dask_graph__(), [later.key])
    tasks: dict[Any, Any] = dict(found) if isinstance(found, dict) else found.to_dict()
    results: dict[Any, Any] = {}

    def run(key: Any) -> None:
        for needed in tasks[key].dependencies:
            if needed not in results:
                run(needed)
        copy = cloudpickle.loads(cloudpickle.dumps(tasks[key]))
        results[key] = copy({each: results[each] for each in copy.dependencies})

    writing = sorted((key for key in tasks if "write-zarr" in str(key)), key=str)
    assert len(writing) >= 4
    for part in (writing[: 2 + order[0]], writing[order[1] :], [later.key], writing[order[2] : 3]):
        for key in part:
            run(key)
    with xr.open_dataset(store, engine="xzarr3", group=options.get("group")) as read:  # type: ignore[arg-type]
        assert read[name].values.tolist() == COMPUTED


CHUNKS = 4
State = Mapping[str, bytes]


def dataset(value: float) -> xr.Dataset:
    """Values that are stored, encoded, by equal documents."""
    values = np.repeat(np.arange(float(CHUNKS)) + value, 2)
    found = xr.Dataset({"a": ("x", values), "b": ("x", values)})
    for variable in found.variables.values():
        variable.encoding = {"chunks": (2,), "scale_factor": 0.5, "dtype": "int32", "_FillValue": -1}
    return found


class Stage:
    """Turns to what comes next once so many chunks were read."""

    def __init__(self) -> None:
        self.turn: Callable[[], object] = lambda: None
        self.left = -1
        self._guard = threading.Lock()

    def turns_after(self, chunks: int, turn: Callable[[], object]) -> None:
        self.left, self.turn = chunks, turn

    def told(self, get: Callable[..., Any]) -> Callable[..., Any]:
        """What reads, and tells which value it has read."""

        def read(key: str, *given: Any, **named: Any) -> Any:
            found = get(key, *given, **named)
            if key.rpartition("/")[2][:1].isdigit():
                with self._guard:
                    self.left -= 1
                    if self.left == 0:
                        self.turn()
            return found

        return read


class Staged(MemoryStore):
    def __init__(self, **traits: Any) -> None:
        super().__init__()
        self.stage, self.traits = Stage(), msgspec.structs.replace(self.traits, **traits)

    def get(self, key: str, byte_range: Any = None) -> Any:
        return self.stage.told(super().get)(key, byte_range)

    def open(self, key: str, first: Any = None, version: object | None = None) -> Any:
        return self.stage.told(super().open)(key, first, version)

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return [self._values.get(key) if self.traits.tells_changes else None for key in keys]

    def show(self, state: State) -> None:
        self._values = dict(state)


def staged(kind: str, server: FaultServer) -> Any:
    """A store of a kind that holds what its method ``show`` is told."""
    if kind != "s3":
        # Some cannot tell at once whether a value has changed.
        traits = {"tells_changes": kind == "tells", "concurrency": 3 if kind == "far" else 1}
        return Staged(**traits)
    place = f"bucket/{uuid.uuid4().hex}"
    store: Any = xzarr3.open_store(f"s3://{place}", server.storage_options)

    def show(state: State) -> None:
        there = {key.removeprefix(f"/{place}/") for key in server.keys(f"/{place}/")}
        for key in there - state.keys():
            server.delete(f"/{place}/{key}")
        server.put_all({f"/{place}/{key}": value for key, value in state.items()})

    store.show = show
    return store


READS: dict[str, Callable[[Any], Any]] = {
    "array": lambda store: xzarr3.open_array(store, "a"),
    "dask": lambda store: from_zarr(store, "a", chunks=-1),
    "xarray": lambda store: xr.open_dataset(store, engine="xzarr3"),
    "xarray, not consolidated": lambda store: xr.open_dataset(store, engine="xzarr3", consolidated=False),
    "xarray with dask": lambda store: xr.open_dataset(store, engine="xzarr3", chunks={"x": -1}),
}


def values(found: Any) -> list[list[float]]:
    if isinstance(found, xr.Dataset):
        return [np.asarray(found[name].values).tolist() for name in ("a", "b")]
    with np.errstate(all="ignore"):
        return [np.asarray(found).tolist()]


def kinds_of(found: list[list[float]], wholes: Mapping[str, list[float]]) -> list[str]:
    return [
        next((name for name, whole in wholes.items() if whole == each), f"mixed: {each}") for each in found
    ]


def _told(state: State) -> Any:
    """What a state says, but for the time and the counter of a lease."""
    held = state.get(".xzarr3-lease", b"")
    states = [word for word in (b'"swapping"', b'"closing"', b'"erasing"', b'"in place"') if word in held]
    return {key: value for key, value in state.items() if key != ".xzarr3-lease"}, states


def states_of_a_swap(zarr_format: Any) -> list[State]:
    """What there is before, and after each step of a swap."""
    store, states = RacingStore(), list[State]()
    to_zarr(dataset(10), store, zarr_format=zarr_format)
    store.before = lambda operation, key: states.append(dict(store._values))
    to_zarr(dataset(20), store, zarr_format=zarr_format, mode="w")
    states.append(dict(store._values))
    # Of what is put aside no reader knows, and neither does it see how a lease is renewed.
    seen = [{key: each for key, each in state.items() if "-staged-" not in key} for state in states]
    return [state for at, state in enumerate(seen) if at == 0 or _told(state) != _told(seen[at - 1])]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_what_is_read_during_a_swap(zarr_format: Any, read: str) -> None:
    states = states_of_a_swap(zarr_format)
    old, new = (values(READS[read](MemoryStore(dict(state))))[0] for state in (states[0], states[-1]))
    assert old != new
    seen = set()
    for first in (0, len(states) // 2):
        for last, after in itertools.product(range(first, len(states)), (1, CHUNKS + 1)):
            store = Staged()
            store.show(states[0])
            handle = READS[read](store)
            store.show(states[first])
            store.stage.turns_after(after, lambda last=last: store.show(states[last]))  # noqa: B023
            read_values, error = attempt(partial(values, handle), ChangedError, IncompleteWriteError)
            found = ["error"] if error else kinds_of(read_values, {"old": old, "new": new})
            seen.update(found)
            assert not any("mixed" in each for each in found), (first, last, after, found)
    assert {"old", "error"} <= seen


@pytest.mark.parametrize("read", [name for name in READS if "xarray" in name])
@pytest.mark.parametrize("kind", ["tells", "does not tell", "far", "s3"])
@pytest.mark.parametrize("changed", ["scale_factor", "_FillValue", "dtype"])
def test_new_values_are_not_decoded_by_old_documents(
    changed: str, kind: str, read: str, fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"scale_factor": 0.25, "_FillValue": -2, "dtype": "int16"}
    replacing = dataset(20)
    for variable in replacing.variables.values():
        variable.encoding[changed] = other[changed]
    old, new = dict[str, bytes](), dict[str, bytes]()
    to_zarr(dataset(10), old)
    to_zarr(replacing, new)
    store = staged(kind, fault_server)
    store.show(old)
    handle = READS[read](store)
    store.show(new)
    late = time.monotonic() + 1.1 * seen.RECENT
    monkeypatch.setattr(time, "monotonic", lambda: late)
    for _ in range(2):
        refused(ChangedError, "open it again", lambda: values(handle))


@pytest.mark.usefixtures("python_executor")  # Its reads can be stopped in between.
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_what_is_read_in_a_directory_between_two_renames(
    zarr_format: Any, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody replaces it, and is stopped after each step."""
    seen: set[str] = set()
    steps, goes_on = 0, True
    while goes_on:
        steps += 1
        place = tmp_path / f"{steps}.zarr"
        to_zarr(dataset(10), place, zarr_format=zarr_format)
        old = values(READS[read](place))[0]
        with monkeypatch.context() as patch:
            found, goes_on = between_renames(place, READS[read], zarr_format, steps, patch)
        wholes = {"old": old, "new": values(READS[read](place))[0]}
        assert wholes["old"] != wholes["new"]
        kinds = kinds_of(found, wholes) or ["error"]
        assert not any("mixed" in each for each in kinds), (steps, kinds)
        seen.update(kinds)
    assert "error" in seen


def between_renames(
    place: Path, read: Callable[[Any], Any], zarr_format: Any, steps: int, patch: pytest.MonkeyPatch
) -> tuple[list[list[float]], bool]:
    """What is read, of which the first chunk is there before so many renames; and whether more follow."""
    rename, make = directory._rename, {name: getattr(LocalStore, name) for name in ("get", "open")}
    go_on, stopped, left = threading.Event(), threading.Event(), [steps]
    stage = Stage()

    def stepped(*given: Any) -> None:
        rename(*given)
        left[0] -= 1
        if left[0] == 0:
            stopped.set()
            assert go_on.wait(120)

    def replaced() -> None:
        try:
            to_zarr(dataset(20), place, mode="w", zarr_format=zarr_format)
        finally:
            stopped.set()

    writer = threading.Thread(target=replaced, daemon=True)

    def turn() -> None:
        writer.start()
        assert stopped.wait(120)

    patch.setattr(directory, "_rename", stepped)
    handle = read(place)
    stage.turns_after(1, turn)
    for name, method in make.items():
        told = lambda self, *a, method=method, **b: stage.told(partial(method, self))(*a, **b)  # noqa: E731
        patch.setattr(LocalStore, name, told)
    found, _ = attempt(partial(values, handle), ChangedError, IncompleteWriteError)
    go_on.set()
    writer.join(120)
    assert not writer.is_alive()
    return found or [], left[0] < 0
