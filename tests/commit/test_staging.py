"""How what was written takes its place, while others write to the same place or were killed there."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _unprivileged import run_unprivileged

import xzarr3
import xzarr3.xarray.commit
from xzarr3 import MemoryStore, NodeExistsError, Store, StoreError, to_zarr
from xzarr3.commit import renames, swap
from xzarr3.commit.lease import Lease, lease_key
from xzarr3.commit.replace_directory import StagedFolder as _StagedFolder
from xzarr3.nodes.documents import store_documents as store_documents_of_nodes
from xzarr3.stores.local.folders import Folders

DAY = 86400


def filled(value: float, *names: str) -> xr.Dataset:
    return xr.Dataset({name: ("x", np.full(4, float(value))) for name in names or ("t",)})


def lazy(function: Callable[[Any], Any]) -> xr.Dataset:
    """A dataset of 4 blocks that are made one after the other."""
    source = da.zeros(4, chunks=1).map_blocks(function, dtype="f8", meta=np.zeros(0))
    return xr.Dataset({"t": ("x", source)})


def at_block(n: int, act: Callable[[], object]) -> xr.Dataset:
    """A dataset of fives; something happens when its ``n``-th block is made."""
    made: list[int] = []

    def make(block: Any) -> Any:
        made.append(1)
        if len(made) == n:
            act()
        return block + 5

    return lazy(make)


def values(store: Any, group: str | None = None, name: str = "t") -> list[float]:
    with xr.open_dataset(store, engine="xzarr3", group=group) as found:
        return found[name].values.tolist()  # type: ignore[no-any-return]


def staged(store: Store) -> list[str]:
    return sorted(key for key in store.list() if ".xzarr3" in key)


@pytest.fixture(autouse=True)
def _one_after_the_other() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


def before_documents(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once, when the next write has stored its chunks."""
    real = store_documents_of_nodes

    def store_documents(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(xzarr3.xarray.commit, "store_documents", real)
        act()
        real(*args, **options)

    monkeypatch.setattr(xzarr3.xarray.commit, "store_documents", store_documents)


# What was staged is removed while its writer lives


def grow_old(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    for top in path.glob(".xzarr3-staged-*"):
        for folder, _, _ in os.walk(top):
            os.utime(folder, (then, then))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_write_that_lost_its_directory_fails(tmp_path: Path, n: int) -> None:
    def go_away() -> None:
        grow_old(tmp_path, 1.1)
        to_zarr(filled(1), tmp_path, group="b", mode="w")

    to_zarr(filled(0), tmp_path, group="a")
    to_zarr(filled(0), tmp_path, group="b")
    with pytest.raises(StoreError, match="values that this write stored before are gone"):
        to_zarr(at_block(n, go_away), tmp_path, group="a", mode="w")
    assert values(tmp_path, "a") == [0, 0, 0, 0]
    assert values(tmp_path, "b") == [1, 1, 1, 1]
    assert not list(tmp_path.glob(".xzarr3-staged-*"))


def test_a_write_whose_directory_came_back_fails(tmp_path: Path) -> None:
    def replace() -> None:
        (top,) = tmp_path.glob(".xzarr3-staged-*")
        top.rename(tmp_path / "elsewhere")
        (top / "new").mkdir(parents=True)

    to_zarr(filled(0), tmp_path, group="a")
    with pytest.raises(StoreError, match="values that this write stored before are gone"):
        to_zarr(at_block(3, replace), tmp_path, group="a", mode="w")
    assert values(tmp_path, "a") == [0, 0, 0, 0]


def test_a_staged_directory_is_not_made_again(tmp_path: Path) -> None:
    store = _StagedFolder(str(tmp_path / "new"), "store")
    with pytest.raises(StoreError, match="are gone"):
        store.set("a", b"1")
    assert not (tmp_path / "new").exists()


def test_a_write_that_lost_its_keys_fails() -> None:
    store = MemoryStore()
    to_zarr(filled(0), store)

    def go_away() -> None:
        store.erase_values(staged(store))

    with pytest.raises(StoreError, match="values that this write stored before are gone"):
        to_zarr(at_block(3, go_away), store, mode="w")
    assert values(store) == [0, 0, 0, 0]
    assert not staged(store)


def test_a_long_write_tells_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    to_zarr(filled(0), store)
    clock = [0.0]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + clock[0])

    def hours_later(block: Any) -> Any:
        clock[0] += 20 * 3600.0
        return block + 5

    def other(block: Any) -> Any:
        to_zarr(filled(3), store, group="b", mode="w")
        return hours_later(block)

    to_zarr(filled(0), store, group="b")
    to_zarr(lazy(hours_later), store, mode="w", group="c")
    to_zarr(lazy(other), store, mode="w", group="c")
    assert values(store, "c") == [5, 5, 5, 5]
    assert values(store, "b") == [3, 3, 3, 3]


def test_a_write_computed_later_begins_when_it_is_computed(tmp_path: Path) -> None:
    later = to_zarr(filled(7).chunk(x=1), tmp_path / "a", compute="later")
    assert not (tmp_path / "a").exists()
    for scheduler in ("synchronous", "threads"):
        with dask.config.set(scheduler=scheduler):
            pickle.loads(pickle.dumps(later)).compute()
        assert values(tmp_path / "a") == [7, 7, 7, 7]
        later = to_zarr(filled(7).chunk(x=1), tmp_path / "a", compute="later", mode="w")


# Two writers


class UnluckyError(Exception):
    pass


def test_one_of_two_writers_gets_an_empty_place() -> None:
    store = MemoryStore()
    begun, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def wait() -> None:
        begun.set()
        done.wait(120)
        raise UnluckyError

    def write() -> None:
        try:
            to_zarr(at_block(1, wait), store)
        except UnluckyError as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait(120)
    with pytest.raises(NodeExistsError):
        to_zarr(filled(7), store)
    done.set()
    thread.join()
    assert failures
    assert not [*store.list()]
    to_zarr(filled(7), store)
    assert values(store) == [7, 7, 7, 7]
    assert not staged(store)


@pytest.mark.parametrize("fails", [False, True])
def test_what_another_has_finished_is_not_touched(fails: bool) -> None:
    store = MemoryStore()

    def make(block: Any) -> Any:
        if fails:
            raise UnluckyError
        return block

    first = to_zarr(lazy(make), store, compute="later")
    to_zarr(filled(7, "t", "u"), store)
    keys = sorted(store.list())
    with pytest.raises(NodeExistsError, match="another writer has written there since"):
        first.compute()
    assert values(store) == [7, 7, 7, 7]
    assert sorted(store.list()) == keys


@pytest.mark.parametrize("n", [1, 3])
def test_who_replaces_does_not_disturb_who_began_to_write(n: int) -> None:
    store = MemoryStore()

    def other() -> None:
        with pytest.raises(NodeExistsError):
            to_zarr(filled(7), store, mode="w")

    to_zarr(at_block(n, other), store)
    assert values(store) == [5, 5, 5, 5]
    assert not staged(store)


def test_who_lost_the_place_gives_up() -> None:
    store = MemoryStore()

    def take() -> None:
        store.erase_values(staged(store))
        to_zarr(filled(7, "u"), store)

    with pytest.raises(xzarr3.ConflictError, match="another writer replaced it"):
        to_zarr(at_block(1, take), store)
    assert values(store, name="u") == [7, 7, 7, 7]
    assert not staged(store)


def test_what_somebody_makes_without_a_reservation_stays() -> None:
    store = MemoryStore()

    def create() -> None:
        xzarr3.create_array(store, "u", data=np.arange(3))

    with pytest.raises(NodeExistsError, match="another writer has written there") as info:
        to_zarr(at_block(2, create), store)
    assert "not removed" in info.value.__notes__[0]
    assert xzarr3.open_array(store, "u")[:].tolist() == [0, 1, 2]
    assert not staged(store)


def test_what_another_has_finished_in_a_directory_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_documents(monkeypatch, lambda: to_zarr(filled(7, "t", "u"), tmp_path))
    with pytest.raises(NodeExistsError, match="not empty"):
        to_zarr(filled(1), tmp_path)
    assert values(tmp_path, name="u") == [7, 7, 7, 7]
    assert sorted(os.listdir(tmp_path)) == ["t", "u", "zarr.json"]


def when_renamed(monkeypatch: pytest.MonkeyPatch, end: str, act: Callable[[], object]) -> None:
    """Do something once, when something in a directory has got a name with this end."""
    real = Folders.rename
    calls: list[Any] = []

    def rename(folders: Folders, source: str, renamed: str) -> None:
        real(folders, source, renamed)
        if renamed.endswith(end) and not calls:
            calls.append(renamed)
            act()

    monkeypatch.setattr(Folders, "rename", rename)


def test_what_came_between_the_renames_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rename is that of the group's document, which is there by then."""
    document = tmp_path / "zarr.json"
    when_renamed(monkeypatch, "t", lambda: document.write_bytes(b'{"somebody": "else"}'))
    with pytest.raises(NodeExistsError, match="another writer has written there since"):
        to_zarr(filled(1), tmp_path)
    assert document.read_bytes() == b'{"somebody": "else"}'
    assert os.listdir(tmp_path) == ["zarr.json"]


def test_what_came_between_the_renames_is_replaced_but_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def come() -> None:
        (tmp_path / "zarr.json").write_bytes(b'{"somebody": "else"}')
        (tmp_path / "u").mkdir()
        (tmp_path / "u" / "NOTES.txt").write_text("mine")

    to_zarr(filled(0), tmp_path)
    when_renamed(monkeypatch, "/old/t", come)
    to_zarr(filled(1, "t", "u"), tmp_path, mode="w")
    assert values(tmp_path, name="u") == [1, 1, 1, 1]
    assert sorted(os.listdir(tmp_path)) == ["t", "u", "zarr.json"]
    assert (tmp_path / "u" / "NOTES.txt").read_text() == "mine"


@pytest.mark.parametrize("group", [None, "g"])
def test_a_file_of_the_user_that_comes_while_data_are_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    notes = tmp_path / (group or "") / "NOTES.txt"
    to_zarr(filled(0), tmp_path, group=group)
    deep = tmp_path / (group or "") / "t" / "c" / "NOTES.txt"

    def put() -> None:
        notes.write_text("mine")
        deep.write_text("too")

    before_documents(monkeypatch, put)
    to_zarr(filled(1), tmp_path, group=group, mode="w")
    assert (notes.read_text(), deep.read_text()) == ("mine", "too")
    assert values(tmp_path, group) == [1, 1, 1, 1]
    assert not list(tmp_path.glob(".xzarr3-staged-*"))


def test_a_key_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    to_zarr(filled(0), store)
    before_documents(monkeypatch, lambda: store.set("NOTES.txt", b"mine"))
    to_zarr(filled(1), store, mode="w")
    assert store.get("NOTES.txt") == b"mine"
    assert values(store) == [1, 1, 1, 1]
    assert not staged(store)


_WRITER = """
import sys, time, numpy as np, xarray as xr, xzarr3
print("ready", flush=True)
sys.stdin.readline()
try:
    value = float(sys.argv[2])
    data = xr.Dataset({name: ("x", np.full(4, value)) for name in "abcd"})
    xzarr3.to_zarr(data, sys.argv[1])
    print("done")
except xzarr3.StoreError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("round", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_processes_that_write_to_an_empty_directory(tmp_path: Path, round: int) -> None:
    path = tmp_path / "x.zarr"
    path.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), str(value)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for value in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert ended.count("done") == 1, ended
    won = [float(ended.index("done"))] * 4
    assert [values(path, name=name) for name in "abcd"] == [won] * 4


# Copies that do not arrive


class UnreadableStore(MemoryStore):
    """Lists chunks that it does not give."""

    hides: Callable[[str], bool] = staticmethod(lambda key: False)

    def get(self, key: str, byte_range: Any = None) -> Any:
        return None if self.hides(key) else super().get(key, byte_range)


class ForgetfulStore(MemoryStore):
    """Copies nothing, and says nothing of that."""

    forgets: Callable[[str], bool] = staticmethod(lambda key: False)

    def copy_values(self, pairs: Any) -> None:
        super().copy_values([pair for pair in pairs if not self.forgets(pair[1])])


def test_copies_that_do_not_arrive_are_made_in_another_way() -> None:
    store = ForgetfulStore()
    to_zarr(filled(0), store)
    store.forgets = lambda key: True
    to_zarr(filled(1), store, mode="w")
    assert values(store) == [1, 1, 1, 1]
    assert not staged(store)


def test_a_swap_in_which_a_value_cannot_be_read_is_ended_later() -> None:
    """Nothing is believed to have been copied that was not; and all is there to copy it once more."""
    store = UnreadableStore()
    to_zarr(filled(0, "t", "u"), store)
    store.hides = lambda key: "/new/t/c/" in key
    with pytest.raises(StoreError, match="it has no value") as caught:
        to_zarr(filled(1, "t", "u"), store, mode="w")
    assert "xzarr3.recover(store)" in caught.value.__notes__[0]
    assert "/new/" not in str(caught.value)
    for act in (lambda: values(store), lambda: xzarr3.open_array(store, "u"), lambda: xzarr3.open(store)):
        with pytest.raises(xzarr3.IncompleteWriteError, match=r"recover\(store\)"):
            act()
    with pytest.raises(StoreError, match="it has no value"):
        xzarr3.recover(store)
    store.hides = lambda key: False
    assert xzarr3.recover(store) == ["/"]
    assert values(store) == values(store, name="u") == [1, 1, 1, 1]
    assert not staged(store)
    assert xzarr3.recover(store) == []


# Writes that were killed in a store that cannot rename


class KilledError(BaseException):
    pass


class MortalStore(MemoryStore):
    """Does nothing any more after a number of changes."""

    left: float = float("inf")

    def _check_writable(self) -> None:
        super()._check_writable()
        self.left -= 1
        if self.left < 0:
            raise KilledError


def killed_at(store: MortalStore, n: int, act: Callable[[], object]) -> bool:
    """Whether something ended before the ``n``-th change of a store."""
    store.left = n
    try:
        act()
    except KilledError:
        return True
    else:
        return False
    finally:
        store.left = float("inf")


def as_it_is(store: Store, group: str | None) -> Any:
    """The variables of a group with their values, or the error of who opens it."""
    try:
        found = xr.open_dataset(store, engine="xzarr3", group=group).load()  # type: ignore[arg-type]
    except xzarr3.IncompleteWriteError as error:
        names_all = f"process {os.getpid()}" in str(error) and "has failed" in str(error)
        return "incomplete" if names_all and "recover(store)" in str(error) else str(error)
    except (xzarr3.NodeNotFoundError, KeyError):
        return "nothing"
    return {str(name): array.values.tolist() for name, array in found.items()}


OLD = {"t": [1.0] * 4, "u": [1.0] * 4}
NEW = {"t": [2.0] * 4, "v": [2.0] * 4}


@pytest.mark.slow
@pytest.mark.parametrize("group", [None, "deep/below"])
@pytest.mark.parametrize(
    ("zarr_format", "consolidated"), [(3, True), (3, False), (2, True), (2, False), ("3-draft", False)]
)
def test_a_write_killed_at_any_change_leaves_the_old_the_new_or_a_swap_that_can_be_ended(
    zarr_format: Any, group: str | None, consolidated: bool
) -> None:
    first = MortalStore()
    to_zarr(filled(1, "t", "u"), first, zarr_format=zarr_format, group=group)
    if not consolidated and zarr_format != "3-draft":
        first = MortalStore()
        to_zarr(filled(1, "t", "u"), first, zarr_format=zarr_format, group=group, consolidated=False)
    seen: list[str] = []
    for n in itertools.count():

        def fresh() -> MortalStore:
            return MortalStore({key: bytes(first.get(key) or b"") for key in first.list()})

        def write(store: Store) -> object:
            return to_zarr(filled(2, "t", "v"), store, mode="w", group=group)

        store = fresh()
        killed = killed_at(store, n, lambda store=store: write(store))  # type: ignore[misc]
        left = as_it_is(store, group)
        if zarr_format == "3-draft" and left not in (OLD, NEW, "incomplete"):
            left = "incomplete"  # The draft has groups without documents.
        assert left in (OLD, NEW, "incomplete"), (n, left)
        seen.append("old" if left == OLD else "new" if left == NEW else "incomplete")
        again = MortalStore({key: bytes(store.get(key) or b"") for key in store.list()})
        for m in itertools.count():  # Who recovers is killed anywhere, too.
            if not killed_at(again, m, lambda store=again: xzarr3.recover(store)):  # type: ignore[misc]
                break
        is_old = left == OLD and (not _was_said(store) or all(map(store.exists, first.list())))
        assert as_it_is(again, group) == (OLD if is_old else NEW), n
        assert not any("-staged-" in key for key in staged(again)), n
        to_zarr(filled(3), store, mode="w", group=group)
        assert as_it_is(store, group) == {"t": [3.0] * 4}
        assert not staged(store)
        assert xzarr3.open_group(store, group or "").zarr_format == zarr_format
        if not killed:
            break
    assert seen == sorted(seen, key=["old", "incomplete", "new"].index)
    assert set(seen) == {"old", "incomplete", "new"}


def _was_said(store: Store) -> bool:
    """Whether a lease says that new values are being put in their place."""
    leases = [key for key in store.list() if key.endswith(".xzarr3-lease")]
    return any(b'"swapping"' in bytes(store.get(key) or b"") for key in leases)


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_what_others_changed_after_a_killed_swap_is_not_changed_back(zarr_format: Any) -> None:
    """Once the last document is there others see the node, and may append to it."""
    first = MortalStore()
    to_zarr(filled(1), first, zarr_format=zarr_format)
    kept = 0
    for n in itertools.count():
        store = MortalStore({key: bytes(first.get(key) or b"") for key in first.list()})
        killed = killed_at(store, n, lambda store=store: to_zarr(filled(2), store, mode="w"))  # type: ignore[misc]
        if as_it_is(store, None) == {"t": [2.0] * 4}:
            to_zarr(filled(7), store, append_dim="x")
            xzarr3.open_group(store, mode="r+").attrs["note"] = "mine"
            xzarr3.recover(store)
            assert as_it_is(store, None) == {"t": [2.0] * 4 + [7.0] * 4}
            assert xzarr3.open_group(store).attrs["note"] == "mine"
            kept += killed
        if not killed:
            break
    assert kept > 1


@pytest.mark.parametrize("lazily", [False, True])
def test_a_write_in_place_killed_anywhere_is_no_node_and_can_be_repeated(lazily: bool) -> None:
    first = MortalStore()
    to_zarr(filled(1, "t", "u"), first)
    first.set("notes.txt", b"mine")
    seen = []
    for n in itertools.count():
        store = MortalStore({key: bytes(first.get(key) or b"") for key in first.list()})
        new = filled(2, "t", "v").chunk() if lazily else filled(2, "t", "v")
        killed = killed_at(
            store,
            n,
            lambda store=store, new=new: to_zarr(new, store, mode="w", replace="in place"),  # type: ignore[misc]
        )
        left = as_it_is(store, None)
        assert left in (OLD, NEW, "nothing") or "write all of it again" in left
        seen.append("old" if left == OLD else "new" if left == NEW else "away")
        to_zarr(filled(3, "t", "u", "v"), store, mode="w", replace="in place")
        assert set(as_it_is(store, None)) == {"t", "u", "v"}
        assert store.get("notes.txt") == b"mine"
        assert not staged(store)
        if not killed:
            break
    assert seen == sorted(seen, key=["old", "away", "new"].index)


def test_what_is_replaced_in_place_is_not_read_afterwards() -> None:
    store = MemoryStore()
    to_zarr(filled(1), store)
    ds = xr.open_dataset(store, engine="xzarr3", chunks={})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="would be erased before they are read"):
        to_zarr(ds + 1, store, mode="w", replace="in place")
    to_zarr(ds + 1, store, mode="w")
    assert values(store) == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="goes with mode='w'"):
        to_zarr(filled(1), store, replace="in place")
    with pytest.raises(ValueError, match="accepted: 'staged', 'in place'"):
        to_zarr(filled(1), store, mode="w", replace="twice")  # type: ignore[call-overload]


def test_who_opens_within_a_swap_is_told_who_is_at_it() -> None:
    seen: list[str] = []

    class WatchedStore(MemoryStore):
        def copy_values(self, pairs: Any) -> None:
            for group in ("", "t"):
                with pytest.raises(xzarr3.IncompleteWriteError) as caught:
                    xzarr3.open(self, group)
                seen.append(str(caught.value))
            with pytest.raises(NodeExistsError, match="another writer is writing"):
                xzarr3.recover(self)
            with pytest.raises(NodeExistsError, match="another writer is writing"):
                to_zarr(filled(7), self, mode="w")
            super().copy_values(pairs)

    store = WatchedStore()
    to_zarr(filled(1), store)
    to_zarr(filled(2), store, mode="w")
    assert values(store) == [2, 2, 2, 2]
    assert not staged(store)
    for text in seen:
        assert f"process {os.getpid()} of host" in text
        assert "is running" in text
        assert "wait until it has ended" in text
    assert len(seen) == 2


def test_what_a_living_writer_has_stored_is_not_removed() -> None:
    store = MemoryStore()
    to_zarr(filled(1), store)
    to_zarr(filled(1), store, group="other")

    def others() -> None:
        assert xzarr3.recover(store) == []
        to_zarr(filled(3), store, group="other", mode="w")
        assert values(store) == [1, 1, 1, 1]

    with dask.config.set(scheduler="synchronous"):
        to_zarr(at_block(3, others), store, mode="w", encoding={"t": {"chunks": (1,)}})
    assert values(store) == [5, 5, 5, 5]
    assert not staged(store)


class DottedStore(MemoryStore):
    """Refuses names that begin with a dot, as some web servers do."""

    def get(self, key: str, byte_range: Any = None) -> Any:
        if "/." in f"/{key}" and key.endswith("lease"):
            raise xzarr3.StorePermissionError(f"cannot read key '{key}'")
        return super().get(key, byte_range)


def test_a_lease_that_cannot_be_read_hides_no_absence() -> None:
    store = DottedStore()
    xzarr3.create_group(store)
    with pytest.raises(
        xzarr3.NodeNotFoundError, match="whether a writer is just replacing it cannot be read"
    ):
        xzarr3.open(store, "a")
    with pytest.raises(xzarr3.NodeNotFoundError, match="cannot be read: cannot read key"):
        xzarr3.open_group(store)["a"]


def test_a_list_of_what_is_left_to_do_that_is_none() -> None:
    store = UnreadableStore()
    to_zarr(filled(0), store)
    store.hides = lambda key: "/new/t/c/" in key
    with pytest.raises(StoreError):
        to_zarr(filled(1), store, mode="w")
    (swap,) = (key for key in store.list() if key.endswith("/swap"))
    for value in (b"", b"{}", b"[1]", b"\xff", b'{"path": 1}'):
        store.set(swap, value)
        with pytest.raises(StoreError, match="does not list what is left to do"):
            xzarr3.recover(store)


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_a_first_write_killed_anywhere_can_be_repeated(mode: Any) -> None:
    for n in range(100):
        store = MortalStore()
        store.left = n
        try:
            to_zarr(filled(1, "t", "u"), store, mode=mode)
        except KilledError:
            store.left = float("inf")
        else:
            break
        to_zarr(filled(2, "t", "u"), store, mode="w")
        assert values(store, name="u") == [2, 2, 2, 2]
    assert n > 5


def test_chunks_without_documents_are_only_taken_by_their_own_array() -> None:
    store = MemoryStore({"t/c/0": b"\0" * 32, "t/c/1": b"\0" * 32})
    with pytest.raises(NodeExistsError):
        to_zarr(filled(1), store)
    to_zarr(filled(1, "u"), store, mode="w")
    assert sorted(store.list()) == ["t/c/0", "t/c/1", "u/c/0", "u/zarr.json", "zarr.json"]
    store.set("t/c/x", b"mine")
    to_zarr(filled(1), store, mode="w")
    assert sorted(store.list()) == ["t/c/0", "t/c/x", "t/zarr.json", "zarr.json"]


def test_what_killed_writes_left_is_removed_a_day_later() -> None:
    store = MemoryStore()
    to_zarr(filled(1), store)

    def leave(name: str, *keys: str, days: float | None) -> str:
        top = f".xzarr3-staged-{name}/"
        for key in keys:
            store.set(top + key, b"x")
        if days is not None:
            store.set(f"{top}begun", json.dumps({"time": time.time() - days * DAY}).encode())
        return top

    fresh = leave("fresh", "new/a/c/0", days=0.9)
    gone = leave("gone", "new/a/c/0", days=1.1)
    half = leave("half", "new/a/c/0", days=None)
    to_zarr(filled(1), store, group="h")
    to_zarr(filled(2), store, group="h", mode="w")

    def left() -> list[bool]:
        return [any(store.list_prefix(top)) for top in (fresh, gone, half)]

    assert left() == [True, False, False]


def test_what_a_failed_write_stored_is_removed_from_a_file_system() -> None:
    """Erasing what is not there is no error while another one is handled."""
    pytest.importorskip("fsspec")
    store = xzarr3.open_store(f"memory://{time.time_ns()}/store", mode="a")
    try:
        raise ValueError("unlike an absence")
    except ValueError:
        store.erase("nothing")
        assert store.get("nothing") is None
        assert list(store.list()) == []

    def fail() -> None:
        raise RuntimeError("computed in vain")

    with pytest.raises(RuntimeError, match="in vain") as caught:
        to_zarr(at_block(4, fail), store, encoding={"t": {"chunks": (1,)}})
    assert not getattr(caught.value, "__notes__", [])
    assert list(store.list()) == []


def test_what_was_renamed_aside_is_not_removed_if_nothing_tells_what_it_was(tmp_path: Path) -> None:
    to_zarr(filled(1), tmp_path)
    top = tmp_path / ".xzarr3-staged-x"
    (top / "old").mkdir(parents=True)
    (top / "old" / "NOTES.txt").write_text("mine")
    grow_old(tmp_path, 1.1)
    to_zarr(filled(2), tmp_path, mode="w")
    assert xzarr3.recover(tmp_path) == []
    assert (top / "old" / "NOTES.txt").read_text() == "mine"


def test_a_copy_reserves_its_place() -> None:
    source, target = MemoryStore(), MemoryStore()
    to_zarr(filled(1), source)
    other = Lease(target, lease_key(""), "replace")
    other.reserve("")
    for overwrite in (False, True):
        with pytest.raises(NodeExistsError, match="another writer is writing"):
            xzarr3.copy(source, target, overwrite=overwrite)
    other.release()
    xzarr3.copy(source, target, overwrite=True)
    assert values(target) == [1, 1, 1, 1]


# Files that are no part of a hierarchy


FOREIGN = {
    ".DS_Store": b"a",
    "._x": b"b",
    "Thumbs.db": b"c",
    "README.md": b"d",
    "t/.DS_Store": b"e",
    "t/c/.nfs0001": b"f",
    "t/plot.png": b"g",
    "u/notes.txt": b"h",
    "figures/deep/plot.png": b"i",
}
OVERWRITING: dict[str, tuple[Callable[[Any], object], set[str]]] = {
    "to_zarr": (lambda store: to_zarr(filled(1), store, mode="w"), {"t/zarr.json", "t/c/0"}),
    "to_zarr later": (
        lambda store: to_zarr(filled(1).chunk(), store, mode="w", compute=False).compute(),
        {"t/zarr.json", "t/c/0"},
    ),
    "create_array": (
        lambda store: xzarr3.create_array(store, "t", data=np.ones(4), overwrite=True),
        {"t/zarr.json", "t/c/0", "u/zarr.json", "u/c/0"},
    ),
    "create_group": (lambda store: xzarr3.create_group(store, overwrite=True), set()),
    "open_group": (lambda store: xzarr3.open_group(store, mode="w"), set()),
    "copy": (
        lambda store: xzarr3.copy(to_zarr(filled(1), MemoryStore()), store, overwrite=True),
        {"t/zarr.json", "t/c/0"},
    ),
    "del": (lambda store: xzarr3.open_group(store, mode="r+").__delitem__("u"), {"t/zarr.json", "t/c/0"}),
}


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("how", OVERWRITING)
@pytest.mark.parametrize("kind", ["local", "memory", "fsspec"])
def test_foreign_files_block_no_overwriting_and_stay(
    kind: str, how: str, fsync: bool, tmp_path: Path
) -> None:
    if kind == "fsspec":
        pytest.importorskip("fsspec")
    store: Any = {
        "local": lambda: xzarr3.LocalStore(tmp_path, fsync=fsync),
        "memory": MemoryStore,
        "fsspec": lambda: xzarr3.open_store(f"memory://{time.time_ns()}/store", mode="a"),
    }[kind]()
    act, left = OVERWRITING[how]
    to_zarr(filled(0, "t", "u"), store)
    for key, value in FOREIGN.items():
        store.set(key, value)
    act(store)
    assert {key: bytes(store.get(key) or b"") for key in FOREIGN} == FOREIGN
    assert set(store.list()) == {*FOREIGN, "zarr.json", *left}


def test_foreign_files_are_copied_where_files_have_no_second_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*args: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    to_zarr(filled(0), tmp_path)
    notes = tmp_path / "t" / "c" / "notes.txt"
    notes.write_text("mine")
    notes.chmod(0o640)
    os.utime(notes, (5, 5))
    (tmp_path / "t" / "link").symlink_to("nowhere")
    monkeypatch.setattr(os, "link", link)
    to_zarr(filled(1), tmp_path, mode="w")
    assert notes.read_text() == "mine"
    assert (notes.stat().st_mode & 0o777, notes.stat().st_mtime) == (0o640, 5)
    assert os.readlink(tmp_path / "t" / "link") == "nowhere"
    assert values(tmp_path) == [1, 1, 1, 1]


_CHANGES = ("rename", "replace", "link", "symlink", "unlink", "rmdir", "mkdir", "open")


@pytest.mark.slow
@pytest.mark.parametrize("group", [None, "g"])
def test_a_write_killed_at_any_change_of_the_disk_loses_no_foreign_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """It is in its place all the time, or is there again after the next write."""
    away = 0
    for n in itertools.count():
        root = tmp_path / str(n)
        to_zarr(filled(1, "t", "u"), root, group=group)
        top = root / (group or "")
        names = [name for name in FOREIGN if not name.startswith("figures")]
        for name in names:
            (top / name).write_bytes(FOREIGN[name])
        left = [n]

        def mortal(real: Any, left: list[int] = left) -> Any:
            def act(*args: Any, **options: Any) -> Any:
                if real.__name__ != "open" or args[1] & (os.O_WRONLY | os.O_CREAT):
                    left[0] -= 1
                    if left[0] < 0:
                        raise KilledError
                return real(*args, **options)

            return act

        with monkeypatch.context() as patch:
            for change in _CHANGES:
                patch.setattr(os, change, mortal(getattr(os, change)))
            try:
                to_zarr(filled(2, "t"), root, mode="w", group=group)
            except KilledError:
                killed = True
            else:
                killed = False
        lost = [name for name in names if not (top / name).exists()]
        away += bool(lost)
        if lost:
            kept = {path.read_bytes() for path in root.rglob("*") if path.is_file()}
            assert kept >= {FOREIGN[name] for name in lost}
        to_zarr(filled(3, "t"), root, mode="w", group=group)
        assert {name: (top / name).read_bytes() for name in names} == {name: FOREIGN[name] for name in names}
        assert values(root, group) == [3, 3, 3, 3]
        if not killed:
            break
    assert n > 20
    assert away, "there were no moments to test"


def killed_in_fork(n: int, act: Callable[[], object]) -> bool:
    """Whether a process that does this was killed at its ``n``-th change of a directory."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _die_at_change(n)
            act()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


REPLACED: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], Callable[[Path], object]]] = {
    "root": (
        lambda root: to_zarr(filled(1, "t", "u"), root),
        lambda root: to_zarr(filled(2, "t", "v"), root, mode="w"),
        lambda root: as_it_is(xzarr3.LocalStore(root), None),
    ),
    "consolidated, version 2": (
        lambda root: to_zarr(filled(1, "t", "u"), root, zarr_format=2, consolidated=True),
        lambda root: to_zarr(filled(2, "t", "v"), root, mode="w", consolidated=True),
        lambda root: as_it_is(xzarr3.LocalStore(root), None),
    ),
    "another format": (
        lambda root: to_zarr(filled(1, "t", "u"), root, zarr_format=2),
        lambda root: to_zarr(filled(2, "t", "v"), root, mode="w", zarr_format=3),
        lambda root: as_it_is(xzarr3.LocalStore(root), None),
    ),
    "group": (
        lambda root: to_zarr(filled(1, "t", "u"), root, group="deep/below", consolidated=True),
        lambda root: to_zarr(filled(2, "t", "v"), root, mode="w", group="deep/below", consolidated=True),
        lambda root: as_it_is(xzarr3.LocalStore(root), "deep/below"),
    ),
    "resumed": (
        lambda root: to_zarr(filled(1, "t", "u"), root),
        lambda root: to_zarr(filled(2, "t", "v"), root, mode="w", resume=True),
        lambda root: as_it_is(xzarr3.LocalStore(root), None),
    ),
    "copy": (
        lambda root: to_zarr(filled(1, "t", "u"), root),
        lambda root: xzarr3.copy(to_zarr(filled(2, "t", "v"), MemoryStore()), root, overwrite=True),
        lambda root: as_it_is(xzarr3.LocalStore(root), None),
    ),
    "nothing there": (
        lambda root: root.mkdir(),
        lambda root: to_zarr(filled(2, "t", "v"), root),
        lambda root: OLD if as_it_is(xzarr3.LocalStore(root), None) == "nothing" else NEW,
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("how", "then"),
    [
        *((how, "open") for how in REPLACED),
        *itertools.product(("root", "resumed", "nothing there"), ("recover", "write")),
    ],
)
def test_a_write_to_a_directory_killed_at_any_change_leaves_the_old_or_the_new(
    tmp_path: Path, how: str, then: str
) -> None:
    """Whoever opens it next finds one of them, and every foreign file; nothing is left in the end."""
    prepare, write, found = REPLACED[how]
    foreign = {name: value for name, value in FOREIGN.items() if how != "nothing there"}
    seen = []
    for n in itertools.count():
        root = tmp_path / str(n)
        prepare(root)
        for name, value in foreign.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(value)
        killed = killed_in_fork(n, lambda root=root: write(root))  # type: ignore[misc]
        if then == "open":
            left = found(root)
            assert left in (OLD, NEW), (n, left)
            seen.append("old" if left == OLD else "new")
        if then == "write":
            to_zarr(filled(2, "t", "v"), root, mode="w", resume=how == "resumed")
            assert found(root) == NEW
        xzarr3.recover(root)
        assert found(root) in (OLD, NEW)
        assert {name: (root / name).read_bytes() for name in foreign} == foreign, n
        grow_old(root, 1.1)
        xzarr3.recover(root)
        assert not list(root.glob(".xzarr3-staged*"))
        if not killed:
            break
    assert n > 15
    if then == "open":
        assert seen == sorted(seen, key=["old", "new"].index)
        assert set(seen) == {"old", "new"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("how", ["root", "group"])
def test_who_finishes_a_swap_may_be_killed_anywhere(tmp_path: Path, how: str) -> None:
    prepare, write, found = REPLACED[how]
    root = tmp_path / "killed"
    for n in itertools.count():
        prepare(root)
        top = root if how == "root" else root / "deep" / "below"
        (top / "t" / "notes.txt").write_text("mine")
        assert killed_in_fork(n, lambda: write(root))
        if list(root.glob(".xzarr3-staged-*/old/**/zarr.json")):
            break
        shutil.rmtree(root)
    for n in itertools.count():
        again = tmp_path / str(n)
        shutil.copytree(root, again)
        killed = killed_in_fork(n, lambda again=again: found(again))  # type: ignore[misc]
        assert found(again) == NEW
        xzarr3.recover(again)
        assert found(again) == NEW
        assert (again / top.relative_to(root) / "t" / "notes.txt").read_text() == "mine"
        assert not list(again.glob(".xzarr3-staged*"))
        if not killed:
            break
    assert n > 10


def killed_before(renamed: str, act: Callable[[], object]) -> None:
    """Do something in another process, which dies before it renames something so in a swap, or at all."""
    child = os.fork()
    if child == 0:
        real = renames._rename

        def mortal(folders: Folders, name: str, then: str) -> None:
            if renamed in (then, ""):
                os._exit(9)
            real(folders, name, then)

        try:
            renames._rename = mortal
            act()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def half_swapped(root: Path, group: str) -> None:
    """A group with ones, which somebody was just replacing by twos when he was killed: neither is there."""
    to_zarr(filled(1), root, group=group)
    killed_before(group, lambda: to_zarr(filled(2), root, group=group, mode="w"))
    assert not (root / group).exists()


CHANGED: dict[str, Callable[[Path], object]] = {
    "appended": lambda root: to_zarr(filled(5), root, group="g", append_dim="x"),
    "region": lambda root: to_zarr(filled(5), root, group="g", region={"x": slice(0, 4)}),
    "values": lambda root: xzarr3.open_array(root, "g/t", mode="r+").set(..., 5),
    "attributes": lambda root: xzarr3.open_group(root, "g", mode="r+").attrs.update(said=5),
    "added": lambda root: to_zarr(filled(5, "more"), root, group="g", mode="a"),
    "made below": lambda root: xzarr3.create_array(root, "g/more", shape=3, dtype="f8"),
    "deleted": lambda root: xzarr3.open_group(root, mode="r+").__delitem__("g"),
    "made anew": lambda root: xzarr3.create_group(root, "g", overwrite=True),
}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("how", CHANGED)
def test_what_is_done_after_a_kill_before_the_old_node_has_left_stays(
    how: str, zarr_format: Any, tmp_path: Path
) -> None:
    def root(name: str) -> Path:
        made = tmp_path / name
        to_zarr(filled(1), made, group="g", zarr_format=zarr_format, consolidated=True)
        return made

    expected, found = root("expected"), root("found")
    CHANGED[how](expected)
    act = partial(to_zarr, filled(2), found, group="g", mode="w", zarr_format=zarr_format, consolidated=True)
    killed_before("", act)
    CHANGED[how](found)
    said = as_it_is(xzarr3.LocalStore(expected), None)
    assert as_it_is(xzarr3.LocalStore(found), None) == said
    with pytest.raises(xzarr3.NodeNotFoundError):
        xzarr3.open_group(found, "typo")
    assert xzarr3.recover(found) == []
    to_zarr(filled(7), found, group="other", mode="w")
    del xzarr3.open_group(found, mode="r+")["other"]
    assert as_it_is(xzarr3.LocalStore(found), None) == said


def test_what_is_done_after_a_kill_before_old_keys_have_left_stays() -> None:
    class Mortal(MemoryStore):
        dies = False

        def _erase_values(self, keys: Any) -> None:
            if self.dies:
                raise KilledError
            super()._erase_values(keys)

    store = Mortal()
    to_zarr(filled(1), store)
    store.dies = True
    with pytest.raises(KilledError):
        to_zarr(filled(2), store, mode="w")
    store.dies = False
    to_zarr(filled(5), store, append_dim="x")
    assert xzarr3.recover(store) == []
    assert values(store) == [1] * 4 + [5] * 4
    assert not staged(store)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_several_that_open_at_once_what_was_half_swapped_find_it(tmp_path: Path) -> None:
    half_swapped(tmp_path, "g")
    gate = threading.Barrier(8)

    def found(_: int) -> list[float] | None:
        gate.wait(120)
        try:
            return values(tmp_path, "g")
        except xzarr3.IncompleteWriteError:  # Another one is just finishing it.
            return None

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(found, range(8)))
    assert [2, 2, 2, 2] in seen
    assert all(each in (None, [2, 2, 2, 2]) for each in seen)
    assert values(tmp_path, "g") == [2, 2, 2, 2]
    assert not list(tmp_path.glob(".xzarr3*"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_others_wrote_where_something_was_half_swapped_stays(tmp_path: Path) -> None:
    root, theirs = tmp_path / "a", tmp_path / "b"
    half_swapped(root, "g")
    to_zarr(filled(9), theirs, group="g")
    shutil.copytree(theirs / "g", root / "g")
    with pytest.warns(UserWarning, match="another writer has written there since") as warned:
        xzarr3.recover(root)
    assert values(root, "g") == [9, 9, 9, 9]
    [kept] = root.glob(".xzarr3-staged-*")
    assert kept.name in str(warned[0].message)
    assert values(kept / "old", "g") == [2, 2, 2, 2]
    to_zarr(filled(3), root, group="g", mode="w")
    assert values(root, "g") == [3, 3, 3, 3]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_damaged_list_of_a_swap_blocks_no_other_group(tmp_path: Path) -> None:
    for group in ("a", "b"):
        half_swapped(tmp_path, group)
    for swap_list in tmp_path.glob(".xzarr3-staged-*/swap"):
        if json.loads(swap_list.read_text())["path"] == "a":
            swap_list.write_bytes(b"")
    to_zarr(filled(3), tmp_path, group="other", mode="w")
    for act in (
        lambda: to_zarr(filled(3), tmp_path, group="a", mode="w"),
        lambda: xzarr3.recover(tmp_path),
    ):
        with pytest.raises(StoreError, match=r"swap' does not list .* copy good values to their final keys"):
            act()
    assert (tmp_path / "b" / "zarr.json").exists(), "what is not damaged was finished"
    assert values(tmp_path, "b") == [2, 2, 2, 2]


def test_what_another_has_put_in_place_meanwhile_is_not_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody is too slow for his lease, and another one finishes his swap between two of his renames."""
    to_zarr(filled(1, "t", "u"), tmp_path)

    def finish() -> None:
        (top,) = tmp_path.glob(".xzarr3-staged-*/new")
        for unit in ("zarr.json", "t", "u"):
            if (tmp_path / unit).exists():
                (tmp_path / unit).rename(top.parent / "old" / unit)
            (top / unit).rename(tmp_path / unit)

    when_renamed(monkeypatch, "/old/zarr.json", finish)
    with pytest.raises(StoreError, match="another process has taken over"):
        to_zarr(filled(2, "t", "u"), tmp_path, mode="w")
    assert values(tmp_path) == values(tmp_path, name="u") == [2, 2, 2, 2]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_cannot_be_removed_after_a_swap_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(folder: str) -> None:
        raise StoreError(f"cannot remove '{folder}': busy")

    to_zarr(filled(1), tmp_path, group="g")
    half_swapped(tmp_path, "h")
    with monkeypatch.context() as patch:
        patch.setattr(swap, "remove", busy)
        with pytest.warns(UserWarning, match="could not be removed.*busy"):
            to_zarr(filled(2), tmp_path, group="g", mode="w")
        with pytest.warns(UserWarning, match="could not be removed.*busy"):
            assert values(tmp_path, "h") == [2, 2, 2, 2]
        assert not list(tmp_path.glob(".xzarr3-staged-*/.xzarr3-lease"))
        to_zarr(filled(3, "more"), tmp_path, group="g", mode="a")
        assert xzarr3.recover(tmp_path) == []
    assert values(tmp_path, "g") == [2, 2, 2, 2]
    assert sorted(xzarr3.open_group(tmp_path, "g")) == ["more", "t"]
    with pytest.raises(KeyError):
        xzarr3.open_group(tmp_path, "g")["zzz"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_who_may_not_write_is_told_who_finishes_a_swap(tmp_path: Path) -> None:
    def open_it(base: Path) -> str:
        try:
            xzarr3.open_group(base / "store")
        except xzarr3.IncompleteWriteError as error:
            return str(error)
        return "nothing was said"

    def prepare(base: Path) -> None:
        root = base / "store"
        to_zarr(filled(1, "t", "u"), root)
        for n in itertools.count():
            assert killed_in_fork(n, lambda: to_zarr(filled(2, "t", "u"), root, mode="w"))
            if list(root.glob(".xzarr3-staged-*/old/zarr.json")):
                break
        for folder in (root, *root.rglob("*")):
            folder.chmod(0o555 if folder.is_dir() else 0o444)

    said = run_unprivileged(open_it, prepare=prepare).checked()
    assert "has ended" in said
    assert "call xzarr3.recover(store)" in said


def test_who_opens_within_a_swap_of_a_directory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def look() -> None:
        for act in (
            lambda: xzarr3.open_group(tmp_path),
            lambda: xzarr3.create_group(tmp_path),
            lambda: xzarr3.create_array(tmp_path, "new/q", shape=3, dtype="f8"),
        ):
            with pytest.raises(xzarr3.IncompleteWriteError, match="is running") as caught:
                act()
            said.append(str(caught.value))
        with pytest.raises(NodeExistsError, match="another writer is writing"):
            xzarr3.recover(tmp_path)

    to_zarr(filled(1), tmp_path)
    when_renamed(monkeypatch, "/old/t", look)
    to_zarr(filled(2), tmp_path, mode="w")
    assert len(said) == 3
    assert values(tmp_path) == [2, 2, 2, 2]
    assert sorted(os.listdir(tmp_path)) == ["t", "zarr.json"]


def _die_at_change(n: int) -> None:
    """End this process at the n-th change of a directory from now on."""
    count = itertools.count()

    def mortal(real: Any) -> Any:
        def act(*args: Any, **options: Any) -> Any:
            if next(count) >= n:
                os._exit(9)
            return real(*args, **options)

        return act

    for change in _CHANGES[:-1]:
        setattr(os, change, mortal(getattr(os, change)))


def test_a_write_killed_anywhere_in_an_object_store_touches_no_foreign_key() -> None:
    for n in itertools.count():
        store = MortalStore()
        to_zarr(filled(1, "t", "u"), store)
        for key, value in FOREIGN.items():
            store.set(key, value)
        store.left = n
        try:
            to_zarr(filled(2), store, mode="w")
        except KilledError:
            killed = True
        else:
            killed = False
        store.left = float("inf")
        assert {key: bytes(store.get(key) or b"") for key in FOREIGN} == FOREIGN
        to_zarr(filled(3), store, mode="w")
        assert {key: bytes(store.get(key) or b"") for key in FOREIGN} == FOREIGN
        assert values(store) == [3, 3, 3, 3]
        if not killed:
            break
    assert n > 5


def test_a_swap_that_fails_erases_no_foreign_key() -> None:
    store = UnreadableStore()
    to_zarr(filled(0), store)
    store.set("t/notes.txt", b"mine")

    def hides(key: str) -> bool:
        if "/new/t/c/" in key:
            store.set("late.txt", b"mine, too")
            return True
        return False

    store.hides = hides
    with pytest.raises(StoreError, match="it has no value"):
        to_zarr(filled(1), store, mode="w")
    store.hides = lambda key: False
    xzarr3.recover(store)
    assert (store.get("t/notes.txt"), store.get("late.txt")) == (b"mine", b"mine, too")
    assert values(store) == [1, 1, 1, 1]


def test_a_file_that_is_busy_does_not_end_an_erase_midway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system refuses to remove what it keeps for a reader, and removes it later itself."""
    real = os.unlink

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        if os.path.basename(path).startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real(path, dir_fd=dir_fd)

    store = xzarr3.LocalStore(tmp_path)
    to_zarr(filled(0, "t", "u"), store)
    for key in ("t/c/.nfs1", "t/.nfs2"):
        store.set(key, b"busy")
    monkeypatch.setattr(os, "unlink", unlink)
    to_zarr(filled(1, "t", "u"), store, mode="w")
    assert values(store) == [1, 1, 1, 1]
    store.erase_prefix("t/")
    assert {key for key in store.list() if key.startswith("t/")} == {"t/c/.nfs1", "t/.nfs2"}
    (old,) = tmp_path.glob(".xzarr3-staged-*")
    assert {path.name for path in old.rglob("*") if path.is_file()} == {".nfs1", ".nfs2"}
