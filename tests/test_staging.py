"""How what was written takes its place, while others write to the same place or were killed there."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import xzarr3
import xzarr3.xarray.writer
from xzarr3 import MemoryStore, NodeExistsError, Store, StoreError, to_zarr
from xzarr3.node_documents import store_documents as store_documents_of_nodes
from xzarr3.reservations import Reservation
from xzarr3.staging import _StagedFolder

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
        monkeypatch.setattr(xzarr3.xarray.writer, "store_documents", real)
        act()
        real(*args, **options)

    monkeypatch.setattr(xzarr3.xarray.writer, "store_documents", store_documents)


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
        done.wait(30)
        raise UnluckyError

    def write() -> None:
        try:
            to_zarr(at_block(1, wait), store)
        except UnluckyError as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait(30)
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
    with pytest.raises(NodeExistsError, match="somebody else has written there since"):
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

    with pytest.raises(xzarr3.ConflictError, match="somebody else has taken it"):
        to_zarr(at_block(1, take), store)
    assert values(store, name="u") == [7, 7, 7, 7]
    assert not staged(store)


def test_what_somebody_makes_without_a_reservation_stays() -> None:
    store = MemoryStore()

    def create() -> None:
        xzarr3.create_array(store, "u", data=np.arange(3))

    with pytest.raises(NodeExistsError, match="somebody else has written there") as info:
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


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_what_came_between_the_renames_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """The last rename is that of the group's document, which is there by then."""
    real = os.rename
    calls: list[Any] = []

    def rename(source: Any, target: Any) -> None:
        real(source, target)
        if os.path.basename(target) == "t" and "staged" not in str(target) and not calls:
            calls.append(target)
            (tmp_path / "zarr.json").write_bytes(b'{"somebody": "else"}')

    if mode == "w":
        to_zarr(filled(0), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(StoreError, match="File exists"):
            to_zarr(filled(1), tmp_path, mode=mode)
    assert (tmp_path / "zarr.json").read_bytes() == b'{"somebody": "else"}'
    if mode == "w":
        (old,) = tmp_path.glob(".xzarr3-staged-*/old")
        assert (old / "zarr.json").exists()


@pytest.mark.parametrize("group", [None, "g"])
def test_a_file_of_the_user_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    notes = tmp_path / (group or "") / "NOTES.txt"
    to_zarr(filled(0), tmp_path, group=group)
    before_documents(monkeypatch, lambda: notes.write_text("mine"))
    with pytest.raises(NodeExistsError, match=r"NOTES\.txt"):
        to_zarr(filled(1), tmp_path, group=group, mode="w")
    assert notes.read_text() == "mine"
    assert values(tmp_path, group) == [0, 0, 0, 0]
    assert not list(tmp_path.glob(".xzarr3-staged-*"))


def test_a_key_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    to_zarr(filled(0), store)
    before_documents(monkeypatch, lambda: store.set("NOTES.txt", b"mine"))
    with pytest.raises(NodeExistsError, match=r"NOTES\.txt"):
        to_zarr(filled(1), store, mode="w")
    assert store.get("NOTES.txt") == b"mine"
    assert values(store) == [0, 0, 0, 0]
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
    ended = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert ended.count("done") == 1, ended
    won = [float(ended.index("done"))] * 4
    assert [values(path, name=name) for name in "abcd"] == [won] * 4


# Reservations


def test_reservations() -> None:
    store = MemoryStore()
    one, two = Reservation(store, "a"), Reservation(store, "a")
    one.make()
    assert one.holds()
    assert not two.holds()
    Reservation(store, "b").make()
    with pytest.raises(NodeExistsError, match="somebody else is writing '/a'"):
        two.make()
    two.release()
    assert one.holds()
    one.release()
    two.make()
    one.release()
    assert two.holds()
    assert not one.holds()


@pytest.mark.parametrize(
    ("said", "is_live"),
    [
        ({}, True),
        ({"host": "elsewhere"}, True),
        ({"host": "elsewhere", "time": -1.1 * DAY}, False),
        ({"host": "elsewhere", "time": -0.9 * DAY}, True),
        ({"pid": 2**22 + 1}, False),
        ({"pid": os.getpid(), "owner": "ended"}, False),
        ({"time": None}, False),
        ({"pid": 10**30}, False),
    ],
)
def test_reservations_of_killed_writers(said: dict[str, Any], is_live: bool) -> None:
    store = MemoryStore()
    other = Reservation(store, "")
    other.make()
    stored = json.loads(bytes(store.get(other.key) or b""))
    if said.get("time") is not None:
        said = {**said, "time": time.time() + said["time"]}
    store.set(other.key, json.dumps({**stored, **said}).encode())
    if is_live:
        with pytest.raises(NodeExistsError):
            to_zarr(filled(1), store)
    else:
        to_zarr(filled(1), store)
        assert not staged(store)


_NO_TIMES = [b"1" + b"0" * 400, b"NaN", b"1e999", b"-1e300", b"1e15", b'"now"']


@pytest.mark.parametrize(
    "value", [b"", b"[1]", b"\xff", b"[" * 10**5, *(b'{"time": %s}' % each for each in _NO_TIMES)]
)
def test_what_is_no_reservation_is_in_nobodys_way(value: bytes) -> None:
    store = MemoryStore()
    store.set(Reservation(store, "").key, value)
    to_zarr(filled(1), store)
    assert not staged(store)


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


@pytest.mark.parametrize("part", ["/old/", "/new/", ""])
@pytest.mark.parametrize("kind", [UnreadableStore, ForgetfulStore])
def test_nothing_is_erased_before_its_copy_is_there(kind: Any, part: str) -> None:
    store = kind()
    to_zarr(filled(0), store)
    keys = {key: bytes(store.get(key) or b"") for key in store.list()}

    def is_chunk(key: str) -> bool:
        return "/c/" in key and (part in key if part else ".xzarr3" not in key)

    if kind is UnreadableStore:
        if part == "/old/":
            pytest.skip("it is read only to put it back")
        store.hides = is_chunk
    else:
        if part == "/new/":
            pytest.skip("nothing is copied to there")
        copied: list[str] = []

        def forgets(key: str) -> bool:  # The new chunk, but not the old one when it is put back.
            copied.append(key)
            return is_chunk(key) and copied.count(key) == 1

        store.forgets = forgets
    with pytest.raises(StoreError, match=r"it has no value|were not copied"):
        to_zarr(filled(1), store, mode="w")
    store.hides = store.forgets = lambda key: False
    assert {key: bytes(store.get(key) or b"") for key in store.list()} == keys


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


@pytest.mark.parametrize("group", [None, "deep/below"])
@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_a_write_killed_anywhere_can_be_repeated(zarr_format: Any, group: str | None) -> None:
    first = MortalStore()
    to_zarr(filled(1, "t", "u"), first, zarr_format=zarr_format, group=group)
    seen = set()
    for n in range(200):
        store = MortalStore({key: bytes(first.get(key) or b"") for key in first.list()})
        store.left = n
        try:
            to_zarr(filled(2, "t", "v"), store, mode="w", group=group)
        except KilledError:
            killed = True
        else:
            killed = False
        store.left = float("inf")
        try:
            seen.add(values(store, group)[0])
        except (xzarr3.NodeNotFoundError, KeyError):  # The draft has groups without documents.
            seen.add(0)
        to_zarr(filled(3), store, mode="w", group=group)
        assert values(store, group) == [3, 3, 3, 3]
        if killed:
            assert xzarr3.open_group(store, group or "").zarr_format == zarr_format
        if not killed:
            break
    assert not killed
    assert seen == {0, 1, 2}


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
    with pytest.raises(NodeExistsError, match="t/c/0"):
        to_zarr(filled(1, "u"), store, mode="w")
    store.set("t/c/x", b"mine")
    with pytest.raises(NodeExistsError, match=r"holds 1 keys .*t/c/x"):
        to_zarr(filled(1), store, mode="w")
    store.erase("t/c/x")
    to_zarr(filled(1), store, mode="w")
    assert sorted(store.list()) == ["t/c/0", "t/zarr.json", "zarr.json"]


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
    other = leave("old", "old/g/zarr.json", "new/g/zarr.json", days=1.1)
    to_zarr(filled(1), store, group="h")
    to_zarr(filled(2), store, group="h", mode="w")

    def left() -> list[bool]:
        return [any(store.list_prefix(top)) for top in (fresh, gone, half, other)]

    assert left() == [True, False, False, True]
    to_zarr(filled(1), store, group="g", mode="w")
    to_zarr(filled(1), store, group="g", mode="w")
    assert left() == [True, False, False, False]


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


def test_an_abandoned_directory_with_a_file_of_the_user_stays(tmp_path: Path) -> None:
    to_zarr(filled(1), tmp_path)
    top = tmp_path / ".xzarr3-staged-x"
    (top / "old").mkdir(parents=True)
    (top / "old" / "NOTES.txt").write_text("mine")
    grow_old(tmp_path, 1.1)
    to_zarr(filled(2), tmp_path, mode="w")
    assert (top / "old" / "NOTES.txt").exists()
    (top / "old" / "NOTES.txt").unlink()
    grow_old(tmp_path, 1.1)
    to_zarr(filled(2), tmp_path, mode="w")
    assert not top.exists()


def test_a_copy_reserves_its_place() -> None:
    source, target = MemoryStore(), MemoryStore()
    to_zarr(filled(1), source)
    other = Reservation(target, "")
    other.make()
    for overwrite in (False, True):
        with pytest.raises(NodeExistsError, match="somebody else is writing"):
            xzarr3.copy(source, target, overwrite=overwrite)
    other.release()
    xzarr3.copy(source, target, overwrite=True)
    assert values(target) == [1, 1, 1, 1]
