"""The lease of a place: one writer at a time, none of them robbed, and nobody waits long for a dead one."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import msgspec
import numpy as np
import pytest
import xarray as xr
from _conformance import contents, refused
from _killed import KilledError, left, opened
from _processes import Process, processes, run_processes

import xzarr3
from xzarr3 import ConflictError, LocalStore, MemoryStore, NodeExistsError, StoreError, to_zarr
from xzarr3.commit import directory, lease, machines
from xzarr3.commit.lease import Holder, Lease, LeaseLostError, Whereabouts, holder_at, lease_key
from xzarr3.commit.length import GuardedStore, Length
from xzarr3.formats.documents import mark_of

SKEWS = {"one": 0.0, "two": 600.0, "three": -600.0}


class World:
    """Hosts of one store, and the time that passes: each has a clock, which says something else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._here = threading.local()
        self.renews: set[Lease] = set()
        for clock in ("_clock", "_awake"):
            monkeypatch.setattr(lease, clock, lambda: self.now + SKEWS[self.name])
        monkeypatch.setattr(lease, "_wait", self._wait)
        monkeypatch.setattr(lease, "_keep", lambda _: None)
        monkeypatch.setattr(lease, "here", lambda: Whereabouts(self.name, "boot", "processes"))

    @property
    def name(self) -> str:
        return getattr(self._here, "name", "one")

    @contextlib.contextmanager
    def on(self, name: str) -> Iterator[None]:
        before, self._here.name = self.name, name
        seen = dict(lease._seen)  # Each process has seen other things.
        lease._seen.clear()
        try:
            yield
        finally:
            self._here.name = before
            lease._seen.clear()
            lease._seen.update(seen)

    def _wait(self, seconds: float) -> None:
        """Time passes while somebody waits, and those who live renew what they have."""
        before, self.now = self.now, self.now + max(seconds, 0.1)
        if int(before / (lease.PATIENCE / 4)) != int(self.now / (lease.PATIENCE / 4)):
            for each in list(self.renews):
                each.renew()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    lease._seen.clear()
    yield World(monkeypatch)
    lease._seen.clear()


def leased(store: Any, prefix: str = "a/", **options: Any) -> Lease:
    return Lease(store, lease_key(prefix), "replace", **options)


def taken(store: Any, **options: Any) -> Lease:
    found = leased(store, **options)
    assert found.take()
    return found


def no_lease_is_left(store: Any) -> bool:
    return not [key for key in contents(store) if "lease" in key]


def test_a_lease_says_who_has_it_and_is_gone_at_the_end(world: World) -> None:
    store = MemoryStore()
    mine = taken(store, plan="p")
    said = json.loads(bytes(store.get("a/.xzarr3-lease") or b""))
    assert said["owner"] == mine.owner
    assert (said["host"], said["boot"], said["processes"]) == ("one", "boot", "processes")
    assert (said["pid"], said["purpose"], said["plan"], said["counter"]) == (os.getpid(), "replace", "p", 0)
    mine.renew()
    mine.renew()
    assert holder_at(mine._store, mine.key).counter == 2
    other = leased(store)
    refused(NodeExistsError, lambda: other.reserve("a"), match="another writer is writing '/a'")
    other.release()
    assert (mine.holds(), other.holds()) == (True, False)
    mine.release()
    other.reserve("a")
    mine.release()
    assert (mine.holds(), other.holds()) == (False, True)
    other.release()
    assert list(store.list()) == []


def test_a_dead_writer_of_another_host_blocks_nobody_for_longer_than_a_minute(world: World) -> None:
    store = MemoryStore()
    taken(store)
    for name in ("two", "three"):  # One of the clocks is ten minutes ahead, the other one behind.
        with world.on(name):
            began = world.now
            assert taken(store).displaced is not None
            assert lease.PATIENCE <= world.now - began <= 60


@pytest.mark.parametrize("name", ["two", "three"])
def test_a_live_writer_is_not_robbed(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    mine = taken(store)
    world.renews.add(mine)
    for _ in range(20):
        with world.on(name):
            began = world.now
            assert not leased(store).take()
            assert world.now - began <= lease.PATIENCE / 2, "that it lives shows soon"
    monkeypatch.setattr(time, "monotonic", lambda: world.now)
    with world.on(name):
        until = world.now + 300
        assert not leased(store).take(until), "it is waited for as long as asked"
    assert world.now >= until
    assert mine.holds()


def held_by(pid: int, started: str = "", **where: str) -> Holder:
    here = lease.here()
    at = {"host": here.host, "boot": here.boot, "processes": here.processes, **where}
    return Holder(owner="x", pid=pid, started=started, purpose="replace", **at)


def test_only_who_is_surely_dead_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another name space may live, and a living one may have the number of a dead one."""
    own = machines.process_start(os.getpid())
    for dead in (held_by(os.getppid(), "0"), held_by(2**22 + 1), held_by(10**30), held_by(os.getpid(), own)):
        assert dead.is_dead is True
    for pid in (2**22 + 1, os.getpid(), 1):
        assert held_by(pid, processes="pid:[1]").is_dead is None
    # The system may tell nothing: where too many files are open, or on systems without ``/proc``.
    with monkeypatch.context() as patch:
        patch.setattr(machines, "process_start", lambda pid: "")
        assert held_by(os.getppid(), "5").is_dead is None
    monkeypatch.setattr(lease, "here", lambda: Whereabouts("localhost", "", ""))
    assert held_by(2**22 + 1).is_dead is None


def test_a_dead_process_of_this_host_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take_and_stay() -> None:
        leased(LocalStore(tmp_path)).take()
        Process.say()
        signal.pause()

    mine = leased(LocalStore(tmp_path))
    with processes(take_and_stay) as (process,):
        assert process.hear()
        os.kill(process.pid, signal.SIGSTOP)
        assert not mine.take(), "one that was stopped lives"
        process.kill()
        monkeypatch.setattr(lease, "_wait", lambda _: pytest.fail("it is dead"))
        assert mine.take()
    monkeypatch.undo()

    def child() -> None:
        assert not leased(LocalStore(tmp_path)).take()
        mine.release()  # A forked child is not its parent.
        assert holder_at(mine._store, mine.key).owner == mine.owner

    run_processes(child)
    assert mine.holds()
    mine.release()


@pytest.mark.parametrize(
    "value", [b"", b"[1]", b"\xff", b"[" * 10**5, b"{}", b'{"pid": "x", "owner": 5, "counter": null}']
)
def test_what_is_no_lease_is_in_the_way_for_as_long_as_a_dead_writer(world: World, value: bytes) -> None:
    store = MemoryStore({".xzarr3-lease": value})
    to_zarr(xr.Dataset({"t": ("x", [1.0, 2.0])}), store)
    assert no_lease_is_left(store)
    assert world.now <= 60


@pytest.mark.parametrize("conditional", [True, False])
def test_a_release_takes_no_lease_of_a_successor_away(world: World, conditional: bool) -> None:
    store = MemoryStore()
    store.erases_conditionally = conditional  # type: ignore[misc]
    slow = taken(store)
    with world.on("two"):
        fast = taken(store)
    slow.release()
    assert fast.holds()
    refused(LeaseLostError, lambda: slow.verify("a"), match="another writer replaced it")
    fast.release()
    assert not contents(store)


class Standing(MemoryStore):
    """Its writer stands still once it has done something, and others go on."""

    does: tuple[str, str] | None = None
    others: Callable[[], object] = staticmethod(lambda: None)

    def _did(self, *what: str) -> None:
        if what == self.does:
            self.does = None
            self.others()

    def put(self, key: str, pieces: Any) -> None:
        super().put(key, pieces)
        self._did("put", key)

    def erase(self, *keys: str) -> None:
        super().erase(*keys)
        self._did("erase", keys[0])

    def copy(self, source: str, target: str) -> None:
        super().copy(source, target)
        self._did("copy", target)


def numbered(number: int) -> xr.Dataset:
    return xr.Dataset({"a": ("x", np.full(4, number))}, attrs={"number": number})


def replaced(store: Any, number: int = 1, group: str = "g") -> None:
    to_zarr(numbered(number), store, group=group, mode="w", encoding={"a": {"chunks": (1,)}})


def erased(store: Any) -> None:
    del xzarr3.open_group(store, mode="r+")["g"]


@pytest.mark.parametrize(
    ("act", "does"),
    [
        (replaced, ("erase", "g/zarr.json")),
        (replaced, ("copy", "g/a/c/1")),
        (replaced, ("put", "g/a/zarr.json")),
        (erased, ("erase", "g/a/c/0")),
    ],
)
def test_who_stood_still_for_longer_than_a_lease_lasts_changes_nothing_of_a_successor(
    act: Callable[[Any], None], does: tuple[str, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_ERASED_AT_ONCE", 1)
    store = Standing()
    replaced(store)

    def others() -> None:
        with world.on("two"):
            replaced(store, 2)

    store.does, store.others = does, others  # type: ignore[method-assign]
    refused(LeaseLostError, lambda: act(store), match="seemed to have been abandoned")
    assert store.does is None
    assert opened(store, "g").load().identical(numbered(2))
    assert left(store) == []
    assert xzarr3.check(store).ok


def test_who_made_a_node_and_stood_still_is_in_the_copies(world: World) -> None:
    """Somebody has looked for what is there, taken the lease away, and changed nothing."""
    store = Standing()
    replaced(store)

    def others() -> None:
        with world.on("two"):
            taken(store, prefix="g/new/").release()

    store.does, store.others = ("put", "g/new/zarr.json"), others  # type: ignore[method-assign]
    refused(LeaseLostError, lambda: replaced(store, group="g/new"), match="seemed to have been abandoned")
    assert opened(store, "g/new").load().identical(numbered(1))
    assert xzarr3.check(store).ok


def test_a_writer_whose_values_were_removed_as_it_stood_still_says_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing had left its place, so there was nothing to finish."""
    store, swap_units = LocalStore(tmp_path), directory.swap_units
    replaced(store)

    def others_first(*given: Any, **more: Any) -> bool:
        monkeypatch.setattr(directory, "swap_units", swap_units)
        with world.on("two"):
            assert xzarr3.recover(store) == []
        return swap_units(*given, **more)

    monkeypatch.setattr(directory, "swap_units", others_first)
    refused(LeaseLostError, lambda: replaced(store, 2), match="another process has taken over")
    assert opened(store, "g").load().identical(numbered(1))
    assert left(store) == []
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("asleep", [0.0, 3600.0])
def test_a_lease_runs_out_while_the_machine_sleeps(asleep: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who watch it have slept, too."""
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", lambda _: time.monotonic(), raising=False)
    mine = taken(MemoryStore())
    monkeypatch.setattr(time, "clock_gettime", lambda _: time.monotonic() + asleep)
    assert mine.is_sure is not bool(asleep)
    mine.make_sure("a")
    assert mine.is_sure
    mine.release()


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


class Stalled(MemoryStore):
    """A store that does not answer its thread of leases, or does not copy, until it is told to go on."""

    traits = msgspec.structs.replace(MemoryStore.traits, concurrency=4)

    def __init__(self, stalls: str) -> None:
        super().__init__()
        self.stalls, self.reached, self.goes_on = stalls, threading.Event(), threading.Event()

    def _wait(self, what: str) -> None:
        if what == self.stalls:
            self.reached.set()
            assert self.goes_on.wait(120)

    def open(self, key: str, first: Any = None, version: object | None = None) -> Any:
        self._wait(threading.current_thread().name)
        return super().open(key, first, version)

    def copy(self, source: str, target: str) -> None:
        self._wait("copies")
        super().copy(source, target)


def test_a_store_that_does_not_answer_keeps_no_lease_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 0.04)
    stalled, other = Stalled("xzarr3-lease"), leased(MemoryStore())
    held = [leased(stalled), other]
    assert all(each.take() for each in held)
    assert stalled.reached.wait(120)
    before = holder_at(other._store, other.key).counter
    wait_until(lambda: holder_at(other._store, other.key).counter >= before + 3)
    stalled.goes_on.set()
    for each in held:
        each.release()


def test_a_write_to_one_store_does_not_wait_for_that_to_another() -> None:
    dataset, slow, fast = xr.Dataset({"t": ("x", [1.0, 2.0])}), Stalled("copies"), MemoryStore()
    for store in (slow, fast):
        to_zarr(dataset, store)
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(to_zarr, dataset + 1, slow, mode="w")
        assert slow.reached.wait(120)
        pool.submit(to_zarr, dataset + 1, fast, mode="w").result(120)
        assert not late.done()
        slow.goes_on.set()
        late.result(120)


def leases(store: Any, names: str) -> list[Lease]:
    return [Lease(store, lease_key(f"{name}/"), "resize") for name in names]


class Erasing(MemoryStore):
    """Notes which keys it is to erase together; it may fail, once they are erased or before."""

    asked: tuple[str, ...] = ()
    fails = ""

    def erase(self, *keys: str) -> None:
        if self.fails == "always":
            raise StoreError("no answer")
        super().erase(*keys)
        if len(keys) > 1:
            self.asked = keys
            if self.fails:
                raise StoreError("no answer")


def test_leases_that_end_together_take_none_of_a_successor_away(world: World) -> None:
    store = Erasing()
    slow, *others = leases(store, "abcd")
    assert slow.take()
    with world.on("two"):
        fast = taken(store)
    assert all(other.take() for other in others)
    others[2].release()
    lease.release_together([slow, *others])
    assert store.asked == tuple(other.key for other in others[:2])
    assert fast.holds()
    assert (slow.is_held, any(other.is_held for other in others)) == (True, False)
    slow.release()
    assert fast.holds()
    fast.release()
    assert not contents(store)


def test_leases_that_could_not_be_taken_away_together_are_looked_at_one_by_one(world: World) -> None:
    store = Erasing()
    store.fails = "late"
    held = leases(store, "ab")
    assert all(each.take() for each in held)
    refused(StoreError, lambda: lease.release_together(held), match="no answer")
    with world.on("two"):
        other = taken(store)
    for each in held:
        each.release()
    assert other.holds()


def test_a_lease_that_could_not_be_taken_away_is_taken_away_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 0.04)
    store = Erasing()
    array = xzarr3.create_array(store, data=np.arange(3), chunks=2)
    store.fails = "always"
    for at in (3, 4):  # This process need not wait for itself.
        with pytest.warns(UserWarning, match=r"others may have to wait.*\.xzarr3-lease"):
            assert array.append([at]) == (at + 1,)
    store.fails = ""
    wait_until(lambda: no_lease_is_left(store))
    assert xzarr3.open_array(store)[:].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_writer_killed_on_another_host(world: World, there: bool, resume: bool, tmp_path: Path) -> None:
    def end(block: Any, block_info: Any = None) -> Any:
        if world.name == "one" and block_info[0]["chunk-location"][0] > 2:
            raise KilledError
        return block + 1

    store = MemoryStore()
    source = da.from_array(np.arange(10.0), chunks=2).map_blocks(end, dtype="f8", name="same")
    dataset = xr.Dataset({"t": ("x", source)})
    if there:
        to_zarr(xr.Dataset({"old": ("y", [1.0])}), store)
    with dask.config.set(scheduler="synchronous"):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("leave", "release"):
                patch.setattr(Lease, name, lambda self: None)  # It was killed.
            refused(KilledError, lambda: to_zarr(dataset, store, mode="w", resume=resume))
        with world.on("two"):
            to_zarr(dataset, store, mode="w", resume=resume)
    assert world.now <= 60
    assert not left(store)
    xzarr3.copy(store, tmp_path)
    np.testing.assert_array_equal(xr.open_zarr(tmp_path, consolidated=False)["t"], np.arange(10) + 1)


def test_a_live_append_is_not_robbed_however_long_it_takes(world: World, store: Any) -> None:
    array = xzarr3.create_array(store, data=np.arange(4), chunks=2)
    with Length(store, "", array._key) as length:
        world.renews.add(length.lease)
        with world.on("two"), pytest.raises(ConflictError, match="length of the array"):
            Length(store, "", array._key).__enter__()
        assert length.lease.holds()
    assert contents(store).keys() == {"zarr.json", "c/0", "c/1"}


def test_a_lease_that_was_stored_before_an_error_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(MemoryStore):
        breaks = True

        def put(self, key: str, *args: Any, **options: Any) -> Any:
            done: Any = super().put(key, *args, **options)
            if self.breaks:
                self.breaks = False
                raise StoreError("the disk is gone")
            return done

    monkeypatch.setattr(lease, "PATIENCE", 0.1)
    store = Broken()
    mine = leased(store)
    refused(StoreError, lambda: mine.take(), match="the disk is gone")
    assert mine.has_ended
    wait_until(lambda: not contents(store))
    assert leased(store).take()


def test_who_took_a_lease_away_cannot_be_overtaken_by_the_one_who_had_it(world: World) -> None:
    """The first one had looked at its lease, and stopped before it stored the document."""
    store = MemoryStore()
    array = xzarr3.create_array(store, data=np.arange(4), chunks=2)
    blanks = mark_of(store.get("zarr.json"))
    with Length(store, "", array._key) as slow:
        before = slow._version
        with world.on("two"), Length(store, "", array._key):
            said = json.loads(bytes(store.get("zarr.json") or b""))
            grown = json.dumps({**said, "shape": [6]}).encode()
            assert not store.put("zarr.json", [grown], if_version=before)
    xzarr3.open_array(store, mode="r+").append([4])
    assert mark_of(store.get("zarr.json")) == blanks


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_others_read_a_store_while_a_lease_is_there(tmp_path: Path, zarr_format: Any) -> None:
    dataset = xr.Dataset({"t": ("x", np.arange(4.0))})
    to_zarr(dataset, tmp_path, group="g", zarr_format=zarr_format)
    store = LocalStore(tmp_path)
    held = [Lease(store, lease_key(prefix), "resize") for prefix in ("g/t/", "g/")]
    assert all(each.take() for each in held)
    with pytest.warns(UserWarning, match="not recognized"):  # It lists what is beside the arrays.
        found = xr.open_zarr(tmp_path, group="g", consolidated=False).load()
    for each in (found, xr.open_zarr(tmp_path, group="g"), opened(store, "g")):
        xr.testing.assert_equal(each.compute(), dataset)
    assert "t" in xzarr3.open_group(store, "g")
    target = MemoryStore()
    xzarr3.copy(store, target)
    assert not left(target), "a lease is no part of what is copied"
    to_zarr(dataset + 1, store, group="g", mode="w", zarr_format=zarr_format)
    xr.testing.assert_equal(opened(store, "g"), dataset + 1)
    for each in held:
        each.release()
    assert no_lease_is_left(store)


def test_a_node_is_not_erased_while_a_writer_holds_its_place() -> None:
    store = MemoryStore()
    group = xzarr3.create_group(store)
    group.create_array("a", data=np.arange(3), chunks=2)
    held = taken(store)
    with pytest.raises(NodeExistsError, match="another writer is writing '/a'"):
        del group["a"]
    assert group["a"][:].tolist() == [0, 1, 2]
    held.release()
    del group["a"]
    assert contents(store).keys() == {"zarr.json"}


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_no_node_is_put_in_a_place_that_is_being_erased(kind: str, tmp_path: Path) -> None:
    """Its chunks could be erased with those of the old one, and would read as the fill value."""
    found, new = list[Any](), xr.Dataset({"a": ("x", np.arange(3) + 10)})

    class Meanwhile(MemoryStore if kind == "memory" else LocalStore):  # type: ignore[misc]
        def erase(self, *keys: str) -> None:
            super().erase(*keys)
            if "a/zarr.json" in keys and not found:
                found.extend(refused(NodeExistsError, lambda: to_zarr(new, self, mode="w", group="a")))

    store = Meanwhile() if kind == "memory" else Meanwhile(tmp_path).with_traits(conflict_deadline=0.1)
    group = xzarr3.create_group(store)
    to_zarr(xr.Dataset({"a": ("x", np.arange(3))}), store, group="a")
    del group["a"]
    assert len(found) == 1
    assert "a" not in group
    assert contents(store).keys() == {"zarr.json"}


def rows(number: int, length: int = 8) -> xr.Dataset:
    return xr.Dataset({name: ("t", np.full(length, number)) for name in "vw"})


@pytest.mark.parametrize("how", ["array", "dataset", "dataset, later"])
def test_rows_of_a_node_that_was_replaced_do_not_lengthen_the_new_one(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were erased with the old node: the new one would end in fill values. What it grows by stays.

    Later: one of two arrays had grown when the dataset was replaced, and grew again.
    """
    store, commit, added = MemoryStore(), Length.commit, [3] * 3 if how == "dataset, later" else []
    to_zarr(rows(1), store, encoding={"v": {"chunks": (4,)}})
    array = xzarr3.open_array(store, "v", mode="r+")

    def commit_later(self: Length, *given: Any) -> None:
        if self._key.startswith("w" if added else "v"):
            monkeypatch.setattr(Length, "commit", commit)
            assert xzarr3.open_array(store, "v").shape == (11 if added else 8,)
            to_zarr(rows(2), store, mode="w", encoding={"v": {"chunks": (4,)}})
            if added:
                to_zarr(rows(3, 3), store, append_dim="t")
        commit(self, *given)

    monkeypatch.setattr(Length, "commit", commit_later)
    if how == "array":  # It begins again.
        array.append(np.full(3, 7))
        assert xzarr3.open_array(store, "v")[8:].tolist() == [7, 7, 7]
        return
    (error,) = refused(ConflictError, lambda: to_zarr(rows(7, 3), store, append_dim="t"))
    assert not getattr(error, "__notes__", [])
    for name in "vw":
        assert xzarr3.open_array(store, name)[:].tolist() == [2] * 8 + added


@pytest.mark.parametrize("lacks", ["erasing", "conditions"])
def test_where_no_lease_can_be_kept_threads_take_turns(lacks: str) -> None:
    class Lacking(MemoryStore):
        traits = msgspec.structs.replace(
            MemoryStore.traits,
            operations=("get", "put", "list") if lacks == "erasing" else MemoryStore.traits.operations,
            conditional="threads" if lacks == "conditions" else "processes",
        )

    store = Lacking()
    array = xzarr3.create_array(store, data=np.arange(4), chunks=2)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: array.append([n, n]), range(4, 12)))
    found = xzarr3.open_array(store)[4:].reshape(-1, 2)
    assert sorted(found[:, 0].tolist()) == sorted(found[:, 1].tolist()) == [*range(4, 12)]
    assert no_lease_is_left(store)


@pytest.mark.parametrize("how", ["append", "to_zarr", "dask"])
def test_who_was_only_slow_stores_nothing(world: World, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """It stops for minutes when it is about to store a chunk, where the other one has only fill values."""
    store = MemoryStore()
    array = xzarr3.create_array(store, "a", data=np.ones(2, "i4"), chunks=2, dimension_names=["x"])
    put, zeros = GuardedStore.put, np.zeros(6, "i4")

    def slow(self: GuardedStore, key: str, pieces: Any, **options: Any) -> bool:
        if key == "a/c/3":
            monkeypatch.setattr(GuardedStore, "put", put)
            with world.on("two"), dask.config.set(scheduler="sync"):
                if how == "append":
                    xzarr3.open_array(store, "a", mode="r+").append(zeros)
                else:
                    rows: Any = zeros if how == "to_zarr" else da.from_array(zeros, chunks=2)
                    to_zarr(xr.Dataset({"a": ("x", rows)}), store, mode="a", append_dim="x")
        return put(self, key, pieces, **options)

    # On another host, threads of this one are not waited for.
    monkeypatch.setattr("xzarr3.commit.append.turn", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(GuardedStore, "put", slow)
    array.append(np.full(8, 7, "i4"))
    assert xzarr3.open_array(store, "a")[:].tolist() == [1] * 2 + [0] * 6 + [7] * 8
    assert no_lease_is_left(store)


def test_who_has_not_heard_of_its_lease_for_long_asks_before_it_stores_a_value(world: World) -> None:
    held = MemoryStore()
    xzarr3.create_array(held, data=np.arange(4), chunks=2)
    for concurrency in (1, 4):
        store = held.with_traits(concurrency=concurrency)
        array = xzarr3.open_array(store, mode="r+")
        with Length(store, "", array._key) as slow:
            slow.store.set("c/2", b"1")
            with world.on("two"), Length(store, "", array._key):
                pass
            with pytest.raises(LeaseLostError):
                slow.store.set("c/3", b"1")
        assert contents(store).keys() == {"zarr.json", "c/0", "c/1", "c/2"}
        store.erase("c/2")


@pytest.mark.parametrize("conditional", [True, False])
def test_a_lease_that_is_being_taken_away_is_nobody_elses_yet(conditional: bool) -> None:
    others: list[bool] = []

    class Watched(MemoryStore):
        traits = msgspec.structs.replace(MemoryStore.traits, erases_conditionally=conditional)

        def erase(self, *keys: str) -> None:
            others.append(leased(self).take())
            super().erase(*keys)

    store = Watched()
    mine = taken(store)
    mine.release()
    assert not any(others)
    assert not contents(store)
