"""``xzarr3.to_zarr`` in every mode does to a dataset that is there what xarray's own engine does."""

import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _engines import QUIET, NotingStore, contents
from _killed import KilledError, forget_process, left, opened
from _processes import processes, run_processes
from _slow import slow, slow_but
from _things import refused
from _waiting import WaitingStore

import xzarr3
from xzarr3 import to_zarr
from xzarr3.commit import lease
from xzarr3.errors import ConflictError, StoreError
from xzarr3.xarray import open_dataset
from xzarr3.xarray.commit import Commit, commits
from xzarr3.xarray.compare import compare
from xzarr3.xarray.plan import WriteOptions, nodes_of

zarr = pytest.importorskip("zarr")

pytestmark = [pytest.mark.filterwarnings(each) for each in (*QUIET, "ignore:what was written to")]

Made = Callable[[], xr.Dataset]


def base(n: int = 3, start: int = 0) -> xr.Dataset:
    values = np.arange(n * 4.0).reshape(n, 4) + start
    data = {"a": (("time", "x"), values, {"u": "K"}), "s": ("x", np.arange(4) + start)}
    return xr.Dataset(data, {"time": np.arange(start, start + n), "x": [10, 20, 30, 40]}, {"old": 1})


def dates(n: int = 3, start: int = 0) -> xr.Dataset:
    found = base(n, start).assign_coords(time=pd.date_range("2000-01-01", periods=n + start)[start:])
    found["packed"] = "time", np.linspace(0, 5, n)
    found["packed"].encoding = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -9}
    found["name"] = "time", np.array([f"day {k}" for k in range(start, start + n)], dtype=object)
    found["flag"] = "time", np.arange(n) % 2 == 0
    found["wait"] = "time", np.arange(n).astype("m8[h]").astype("m8[ns]")
    return found


def new_one() -> xr.Dataset:
    return xr.Dataset({"n": ("x", [1, 2, 3, 4])})


def test_what_xarrays_own_tests_of_modes_do_not_write() -> None:
    store = to_zarr(dates()).store
    for start, mode in ((0, "a"), (5, "a-")):
        to_zarr(dates().assign(a=base(3, start)["a"].variable.astype("f4")).transpose(), store, mode=mode)
        np.testing.assert_array_equal(open_dataset(store)["a"], base(3, start)["a"])
    for n in (0, 11):
        to_zarr(dates(n, 3).drop_vars("s").transpose(), store, append_dim="time")
    found = open_dataset(store)
    xr.testing.assert_equal(found.isel(time=slice(3, None)), dates(11, 3).assign(s=found["s"]))
    assert found["a"].dims == ("time", "x")
    to_zarr(dates(1, 2)[["a", "packed", "flag"]].drop_vars("x") * 0, store, region={"time": "auto"})
    assert not open_dataset(store)["a"][2].any()


class KillingStore(NotingStore):
    """At the n-th change the main thread is as if killed, and others fail."""

    killed: type[BaseException] = KilledError

    def error(self, text: str) -> BaseException:
        in_main = threading.current_thread() is threading.main_thread()
        return (self.killed if in_main else StoreError)(text)


def timed(n: int, start: int) -> xr.Dataset:
    """A part of one dataset, the whole of which can be put together by appending."""
    whole = dates(12).drop_vars(["name", "s"])
    whole["t2"] = whole["a"] * 2
    whole["packed"] = "time", np.arange(12) / 2
    whole["packed"].encoding = dates()["packed"].encoding
    return whole.isel(time=slice(start, start + n))


HOURS = {"units": "hours since 2000-01-01", "dtype": "int64", "chunks": (4,)}
UNITS: dict[str, dict[str, Any]] = {"time": HOURS, "a": {"chunks": (2, 4)}}
CHANGES: dict[str, tuple[Made, dict[str, Any], bool]] = {
    "append": (lambda: timed(2, 3), {"append_dim": "time"}, True),
    "append lazily": (lambda: timed(2, 3).chunk(time=1), {"append_dim": "time"}, True),
    "append and add": (lambda: timed(2, 3).assign(n=("x", [1, 2, 3, 4])),
        {"append_dim": "time", "mode": "a-"}, True),
    "widen": (lambda: timed(2, 3).assign_coords(time=timed(2, 3)["time"] + np.timedelta64(30, "m")),
        {"append_dim": "time", "widen_units": True}, True),
    "add": (lambda: new_one().assign(m=("x", [2, 3, 4, 5])), {"mode": "a"}, True),
    "region": (lambda: timed(2, 7)[["a", "t2"]].drop_vars(["time", "x"]), {"region": {"time": slice(1, 3)}},
        False),
}  # fmt: skip
"""What is written to timed(3, 0), and whether it takes effect all at once."""


def read(store: Any, **options: Any) -> xr.Dataset:
    return opened(store, **options).load()


@pytest.mark.usefixtures("one_task_at_a_time")
@pytest.mark.parametrize("zarr_format", [3, slow(2)])
@pytest.mark.parametrize("name", slow_but(CHANGES, "append lazily", "region"))
@pytest.mark.parametrize("error", [KilledError, slow(StoreError)])
@pytest.mark.filterwarnings("ignore:others may have to wait")
def test_killed_anywhere(name: str, zarr_format: Any, error: Any) -> None:
    make, options, at_once = CHANGES[name]
    dataset, origin = make(), xzarr3.MemoryStore()
    to_zarr(timed(3, 0), origin, zarr_format=zarr_format, encoding=UNITS)
    whole = KillingStore(contents(origin))
    to_zarr(dataset, whole, **options)
    old, new = read(origin, consolidated=True), read(whole, consolidated=True)
    xr.testing.assert_identical(new, read(whole, consolidated=False))
    assert not new.identical(old)
    torn = 0
    for n in range(len(whole.changes)):
        store = KillingStore(contents(origin))
        store.fail_at, store.killed = n, error
        with suppress(error):
            to_zarr(dataset, store, **options)
        store.fail_at = None
        forget_process()
        found = read(store, consolidated=True)
        if not at_once:
            for variable in found.variables:
                values, before, after = (each[variable].values for each in (found, old, new))
                assert ((values == before) | (values == after)).all()
            continue
        if name == "widen" and "time" not in found.coords:
            # The one array that is replaced, with all of its values: its copies go first.
            assert any("time/" in key for key in store.list())
            continue
        assert found.identical(old) or found.identical(new), n
        try:
            alone = read(store, consolidated=False)
            assert alone.identical(old) or alone.identical(new) or "add" in name, n
            for variable in {"n", "m"} & set(alone.variables):  # They are whole as soon as they are there.
                assert alone[variable].identical(new[variable])
        except ValueError as mismatch:
            torn += "conflicting sizes" in str(mismatch)
            with pytest.raises(xzarr3.ConflictError, match=r"different lengths along 'time'.*\.resize"):
                to_zarr(dataset, store, **options)
            continue
        if alone.identical(old) and n % 2:
            try:
                to_zarr(dataset, store, **options)
            except xzarr3.IncompleteWriteError:  # It was just about to put the widened array in its place.
                xzarr3.recover(store)
                to_zarr(dataset, store, **options)
            for consolidated in (True, False):
                xr.testing.assert_identical(read(store, consolidated=consolidated), new)
    # Only where one document of several tells of the new length; errors are undone.
    assert torn <= len(old.variables)


@pytest.mark.usefixtures("one_task_at_a_time")
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_consolidated_once_and_last(zarr_format: Any) -> None:
    store, last = NotingStore(), "zarr.json" if zarr_format == 3 else ".zmetadata"
    to_zarr(timed(3, 0), store, zarr_format=zarr_format)
    for make, options, _ in (CHANGES["append"], CHANGES["add"]):
        store.changes.clear()
        to_zarr(make(), store, **options)
        assert [key for key in store.changes if not key.endswith("lease")][-1] == last
        assert store.changes.count(last) <= 2 - (zarr_format == 2)
    store.changes.clear()
    to_zarr(timed(2, 7)[["a"]].drop_vars(["time", "x"]), store, region={"time": slice(1, 3)})
    assert not [key for key in store.changes if "json" in key or ".z" in key]


def test_two_who_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_zarr(timed(3, 0), tmp_path, encoding=UNITS)
    begin = Commit.begin

    def late(self: Commit) -> Any:
        monkeypatch.undo()
        to_zarr(timed(2, 3).chunk(time=1), tmp_path, append_dim="time")
        return begin(self)

    monkeypatch.setattr(Commit, "begin", late)
    with pytest.raises(xzarr3.ConflictError, match="another writer appended"):
        to_zarr(timed(2, 3), tmp_path, append_dim="time")
    xr.testing.assert_identical(read(tmp_path, consolidated=True), timed(5, 0).load())


def failing(dataset: xr.Dataset, chunk: int, may_pass: list[bool]) -> xr.Dataset:
    """A dataset that fails while it is made, until it may pass; one block is a chunk if ``chunk`` is 2."""

    def check(block: Any) -> Any:
        if not may_pass and block.shape[0] and block.flat[0] >= 1000:
            raise ZeroDivisionError("not yet")
        return block

    made = dataset.chunk(time=chunk)
    made["a"] = made["a"].copy(data=made["a"].data.map_blocks(np.add, 0).map_blocks(check, dtype=float))
    return made


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("scheduler", ["threads", slow("sync")])
@pytest.mark.parametrize(
    "options", [{"append_dim": "time"}, {"mode": "w"}, {"group": "below"}], ids=["append", "w", "new"]
)
def test_nothing_is_left_of_a_failed_write(tmp_path: Path, options: Any, scheduler: str, chunk: int) -> None:
    to_zarr(base(4), tmp_path, encoding={"a": {"chunks": (2, 4)}})
    before, may_pass = contents(tmp_path), list[bool]()
    new = base(4, 1000).assign_coords(x=base()["x"])[["a"]]
    with dask.config.set(scheduler=scheduler):
        with pytest.raises(ZeroDivisionError, match="not yet"):
            to_zarr(failing(new, chunk, may_pass), tmp_path, **options)
        assert contents(tmp_path) == before, "and no claim in a document, no reservation, no chunk"
        may_pass.append(True)
        to_zarr(failing(new, chunk, may_pass), tmp_path, **options)
    np.testing.assert_array_equal(open_dataset(tmp_path, group=options.get("group"))["a"][-4:], new["a"])
    assert left(xzarr3.LocalStore(tmp_path)) == []


def _refuse_to_wait(patch: pytest.MonkeyPatch) -> None:
    """The main thread must not wait for a lease; those that keep one may."""
    slept = time.sleep

    def sleep(seconds: float) -> None:
        assert threading.current_thread() is not threading.main_thread(), f"waits for {seconds} s"
        slept(seconds)

    patch.setattr(lease, "_wait", sleep)


def test_the_append_after_one_that_failed_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    store = to_zarr(base(4)).store
    with pytest.raises(ZeroDivisionError):
        to_zarr(failing(base(2, 1000)[["a"]], 1, []), store, append_dim="time")
    assert not [key for key in store.list() if lease.is_lease(key)]
    _refuse_to_wait(monkeypatch)
    to_zarr(base(2, 4).drop_vars(["s", "x"]), store, append_dim="time")
    assert open_dataset(store).sizes["time"] == 6


def test_what_an_append_stored_of_others_is_erased_before_the_error_comes(tmp_path: Path) -> None:
    """The failing block waits for another one to be stored behind the array."""
    to_zarr(integers(6), tmp_path, encoding={"i": {"chunks": (2, 4)}})
    before, stored = contents(tmp_path), tmp_path / "i" / "c" / "3" / "0"

    def wait(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0] == 1:
            end = time.monotonic() + 120
            while not stored.exists() and time.monotonic() < end:
                time.sleep(0.01)
            assert stored.exists()
            raise ZeroDivisionError("after it")
        return block

    with pytest.raises(ZeroDivisionError, match="after it"), dask.config.set(num_workers=3):
        to_zarr(integers(4, ONES.map_blocks(wait, dtype="i2", meta=NO_VALUES)), tmp_path, append_dim="time")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("at", slow_but(range(7), 2, 6))
def test_who_interrupts_while_documents_are_stored(at: int) -> None:
    class Interrupted(xzarr3.MemoryStore):
        left: float = float("inf")

        def put(self, key: str, pieces: Any) -> None:
            text = b"".join(b"".join(pieces).split())
            if key != "zarr.json" and b'"shape":[5' in text:
                self.left -= 1
                if self.left < 0:
                    self.left = float("inf")
                    raise KeyboardInterrupt
            super().put(key, pieces)

    store = Interrupted()
    to_zarr(timed(3, 0), store, encoding=UNITS)
    store.left = at
    with pytest.raises(KeyboardInterrupt) if at < 6 else nullcontext():  # Six variables grow.
        to_zarr(timed(2, 3), store, append_dim="time")
    n, store.left = 3 if at < 6 else 5, float("inf")
    for consolidated in (True, False):
        xr.testing.assert_identical(read(store, consolidated=consolidated), timed(n, 0).load())
    to_zarr(timed(2, n), store, append_dim="time")
    xr.testing.assert_identical(read(store, consolidated=True), timed(n + 2, 0).load())


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
@pytest.mark.parametrize("is_archive", [False, True])
def test_groups_in_stores(tmp_path: Path, is_archive: bool, zarr_format: Any) -> None:
    store: Any = tmp_path / "d.zip" if is_archive else xzarr3.MemoryStore()
    first, more = timed(3, 0).drop_vars("wait"), timed(2, 3).drop_vars("wait")
    to_zarr(first, store, zarr_format=zarr_format, mode="a", group="a/b")
    to_zarr(more, store, append_dim="time", group="a/b")
    to_zarr(more[["a"]].drop_vars("x") * 3, store, region={"time": slice(3, 5)}, group="a/b")
    to_zarr(new_one(), store, mode="a", group="a/b")
    with xr.open_dataset(store, engine="xzarr3", group="a/b") as found:
        found.load()
    assert found.attrs == {}
    assert found["n"].values.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(found["a"].values[3:], more["a"].values * 3)
    np.testing.assert_array_equal(found["time"].values, timed(5, 0)["time"].values)
    np.testing.assert_array_equal(found["packed"].values[:3], first["packed"].values)


def test_a_read_only_store() -> None:
    closed = xzarr3.MemoryStore(contents(to_zarr(base()).store), read_only=True)
    for options in ({"mode": "w"}, {"mode": "a"}, {"mode": "r+"}, {"append_dim": "time"}):
        refused(xzarr3.ReadOnlyError, None, partial(to_zarr, base(), closed, **options))


def test_copies_are_kept_true_and_made_only_where_wanted() -> None:
    store = to_zarr(base(), consolidated=False).store
    for start, options, is_held in ((3, {"consolidated": False}, False), (5, {}, True)):
        to_zarr(base(2, start).drop_vars("s"), store, append_dim="time", **options)
        assert xzarr3.open_group(store).consolidated == is_held
    to_zarr(base(2, 7).drop_vars("s"), store, append_dim="time", consolidated=False)
    assert read(store, consolidated=True).sizes["time"] == 9
    to_zarr(base(), store, group="g")
    to_zarr(base(2, 3).drop_vars("s"), store, append_dim="time", group="g", consolidated=False)
    assert read(store, group="g", consolidated=True).sizes["time"] == 5


@pytest.mark.parametrize(("place", "mode"), [("a.zarr", "w-"), ("a.zarr", "w"), ("a.zarr.zip", "w-")])
def test_regions_of_a_template(tmp_path: Path, place: str, mode: Any) -> None:
    whole, path = timed(6, 0), tmp_path / place

    def found() -> xr.Dataset:
        with opened(path, consolidated=True) as dataset:
            return dataset.load()

    if mode == "w":  # A group without anything has nothing to lose.
        xzarr3.create_group(path)
    later = to_zarr(whole.chunk(time=1), path, mode=mode, compute=False, encoding={"a": {"chunks": (4, 3)}})
    assert found().sizes == whole.sizes
    np.testing.assert_array_equal(found()["time"].values, whole["time"].values)
    assert np.isnan(found()["a"].values).all()
    for start, stop in ((0, 1), (1, 4), (4, 6)) if place == "a.zarr" else ():
        to_zarr(whole.isel(time=slice(start, stop)).chunk(time=2), path, region="auto")
        xr.testing.assert_identical(found().isel(time=slice(stop)), whole.isel(time=slice(stop)).load())
    later.compute(scheduler="threads")
    xr.testing.assert_identical(found(), whole.load())


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_to_zarr_makes_no_template_of_existing_data(zarr_format: Any, tmp_path: Path) -> None:
    store = xzarr3.LocalStore(tmp_path)
    to_zarr(base(), store, group="g", zarr_format=zarr_format)
    before, lazy = contents(store), timed(6, 0).chunk(time=1)
    for group, there in (("g", "is a group with 'a', "), ("g/a", "is an array"), (None, "a group with 'g'")):
        with pytest.raises(ValueError, match=f"{there}.*compute=True.*new place.*region"):
            to_zarr(lazy, store, group=group, mode="w", compute=False)
    with pytest.raises(ValueError, match=r"compute=False .* 'g/a'.*compute=True.*region"):
        to_zarr(base(2, 5)[["a"]].chunk(), store, group="g", append_dim="time", compute=False)
    assert contents(store) == before
    to_zarr(lazy, store, group="h", mode="w", compute=False).compute(scheduler="threads")
    later = to_zarr(base()[["a"]].rename(a="b").chunk(), store, group="g", mode="a", compute=False)
    assert np.isnan(open_dataset(store, group="g")["b"].values).all()
    later.compute(scheduler="threads")
    np.testing.assert_array_equal(open_dataset(store, group="g")["b"], base()["a"])
    to_zarr(base() + 1, store, group="g", mode="w", compute=False)  # Nothing is left for later.
    xr.testing.assert_identical(open_dataset(store, group="g").load(), base() + 1)


def test_a_region_can_be_written_later(tmp_path: Path) -> None:
    to_zarr(timed(6, 0), tmp_path, encoding=UNITS)
    before, part = contents(tmp_path), timed(2, 1).assign(a=timed(2, 1)["a"] + 5).chunk(time=1)
    later = to_zarr(part, tmp_path, region="auto", compute=False)
    assert contents(tmp_path) == before
    for _ in range(2):
        pickle.loads(pickle.dumps(later)).compute(scheduler="sync")
        np.testing.assert_array_equal(open_dataset(tmp_path)["a"][1:3], timed(2, 1)["a"] + 5)
    np.testing.assert_array_equal(open_dataset(tmp_path)["a"][3:], timed(3, 3)["a"])


@pytest.mark.parametrize("kind", [xzarr3.MemoryStore, xzarr3.LocalStore, WaitingStore])
@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("is_new", [False, True])
def test_values_are_not_stored_by_another_scale_than_they_are_encoded_with(
    is_new: bool, zarr_format: Any, kind: Any, tmp_path: Path
) -> None:
    store = kind(tmp_path) if kind is xzarr3.LocalStore else kind()
    data = xr.Dataset({"a": ("x", np.arange(4.0))}, coords={"x": np.arange(4)})
    packed = {"a": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1, "chunks": (2,)}}
    if is_new:
        later = to_zarr(data.chunk(x=2), store, encoding=packed, zarr_format=zarr_format, compute=False)
    else:
        to_zarr(data + 5, store, encoding=packed, zarr_format=zarr_format)
        later = to_zarr(data.chunk(x=2), store, mode="r+", compute=False)
    array = xzarr3.open_array(store, "a", mode="r+")
    stored = array[...].tolist()
    for scale in (0.25, 0.5):
        array.attrs.update(scale_factor=scale)
        for each in (later, pickle.loads(pickle.dumps(later))) if kind is xzarr3.LocalStore else (later,):
            if scale == 0.5:  # As it was.
                each.compute(scheduler="sync")
                stored = [0, 2, 4, 6]
            else:
                refused(xzarr3.ChangedError, r"0\.25 and was", partial(each.compute, scheduler="sync"))
            assert xzarr3.open_array(store, "a")[...].tolist() == stored


@pytest.mark.parametrize("engine", ["xzarr3", "zarr"])
def test_a_template_knows_what_it_replaces_by_place(tmp_path: Path, engine: str) -> None:
    to_zarr(base(), tmp_path, group="g")
    there = xr.open_dataset(tmp_path / "g", engine=engine, chunks={}, consolidated=False)
    refused(ValueError, "compute=True", lambda: to_zarr(there, tmp_path, group="g", mode="w", compute=False))
    xr.testing.assert_identical(open_dataset(tmp_path, group="g").load(), base())
    to_zarr(there + 1, tmp_path, group="h", mode="w", compute=False).compute(scheduler="threads")
    np.testing.assert_array_equal(open_dataset(tmp_path, group="h")["a"].values, base()["a"].values + 1)


@pytest.mark.slow
def test_many_variables_are_appended_together() -> None:
    def wide(n: int, start: int) -> xr.Dataset:
        values = {f"v{k}": ("time", np.arange(start, start + n)) for k in range(40)}
        return xr.Dataset(values, coords={"time": np.arange(start, start + n)})

    store = WaitingStore(0.03)
    to_zarr(wide(3, 0), store)
    with store.counted() as count:
        to_zarr(wide(2, 3), store, append_dim="time")
    assert count.rounds < 40, "less than one for each, as requests of all are under way together"
    xr.testing.assert_identical(read(store, consolidated=True), wide(5, 0))


NO_VALUES, ONES = np.empty((0, 0)), da.ones((4, 4), chunks=(2, 4), dtype="i2")


def integers(n: int, blocks: Any = None) -> xr.Dataset:
    values = np.arange(n * 4).reshape(n, 4).astype("i2") if blocks is None else blocks
    return xr.Dataset({"i": (("time", "x"), values)})


@pytest.mark.filterwarnings("ignore:saving variable", "ignore:invalid value")
@pytest.mark.parametrize("options", [{"append_dim": "time"}, {"group": "new"}], ids=str)
def test_what_a_straggling_task_of_a_failed_write_gives_is_not_stored(tmp_path: Path, options: Any) -> None:
    to_zarr(integers(6), tmp_path, encoding={"i": {"chunks": (2, 2)}})
    before, begun, failed, given = contents(tmp_path), *(threading.Event() for _ in range(3))

    def block(values: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0] == 0:
            assert begun.wait(120)
            raise ZeroDivisionError
        begun.set()
        assert failed.wait(120)
        given.set()
        return values

    ones = da.ones((4, 4), chunks=(2, 4)).map_blocks(block, dtype="f8", meta=NO_VALUES)
    with ThreadPoolExecutor(2) as pool:
        threads = {"scheduler": "threads", "pool": pool}
        with pytest.raises(ZeroDivisionError):
            to_zarr(integers(4, ones), tmp_path, chunkmanager_store_kwargs=threads, **options)
        assert contents(tmp_path) == before
        failed.set()
        assert given.wait(120)
    assert contents(tmp_path) == before, "all threads have ended"


def test_a_copy_of_a_failed_append_stores_nothing_more(tmp_path: Path) -> None:
    to_zarr(integers(6), tmp_path, encoding={"i": {"chunks": (2, 2)}})
    before, store = contents(tmp_path), xzarr3.LocalStore(tmp_path)
    options: Any = {"consolidated": None, "region": None, "write_empty_chunks": None, "zarr_format": None}
    options.update(write_inherited_coords=False, widen_units=False, resume=False)
    asked = WriteOptions(mode="a", encoding={}, append_dim="time", **options)
    (write,) = commits(compare(nodes_of(integers(4, ONES), "", asked), store, asked))
    write.begin()
    here, there = write.jobs[0].target, pickle.loads(pickle.dumps(write.jobs[0].target))
    there[6:8] = 7
    here[8:10] = 8
    assert len(contents(tmp_path)) == len(before) + 4 + 1, "with the lease"
    write.discard(ValueError("a task has failed"))
    for target in (there, here):
        with pytest.raises(ConflictError):
            target[6:8] = 7
    assert contents(tmp_path) == before
    to_zarr(integers(4, ONES), store, append_dim="time")
    assert (xzarr3.open_array(store, "i")[6:] == 1).all()


def test_what_lies_behind_an_array_is_not_shown_by_the_next_append(tmp_path: Path) -> None:
    for blocks in (np.zeros((4, 4), "i2"), ONES * 0):
        to_zarr(integers(6), tmp_path, mode="w", encoding={"i": {"chunks": (2, 2)}})
        (tmp_path / "i/c/4").mkdir()
        (tmp_path / "i/c/4/1").write_bytes((tmp_path / "i/c/0/1").read_bytes())
        to_zarr(integers(4, blocks), tmp_path, append_dim="time")
        assert not xzarr3.open_array(tmp_path, "i")[6:].any()


@pytest.mark.slow
def test_processes_that_write_regions_of_one_chunk(tmp_path: Path) -> None:
    whole = timed(8, 0)
    to_zarr(whole.chunk(), tmp_path, compute=False, encoding={"a": {"chunks": (8, 4)}})

    def write(first: int) -> None:
        for at in range(first, 8, 3):
            to_zarr(timed(1, at), tmp_path, region="auto")

    run_processes(*(partial(write, first) for first in range(3)), seconds=300)
    xr.testing.assert_identical(read(xzarr3.LocalStore(tmp_path), consolidated=True), whole.load())


@pytest.mark.slow
def test_nobody_waits_after_a_killed_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_zarr(timed(3, 0), tmp_path)
    more = timed(2, 3).chunk(time=1)

    def last(block: Any, block_info: Any = None) -> Any:
        return os._exit(3) if block_info[0]["chunk-location"][0] else block

    def append() -> None:
        killed = more.assign(a=more["a"].copy(data=more["a"].data.map_blocks(last, dtype="f8")))
        to_zarr(killed, tmp_path, append_dim="time", chunkmanager_store_kwargs={"scheduler": "synchronous"})

    with processes(append) as (process,):
        assert os.waitstatus_to_exitcode(process.wait(300)) == 3
    assert (tmp_path / "a" / ".xzarr3-lease").exists()
    _refuse_to_wait(monkeypatch)
    to_zarr(more, tmp_path, append_dim="time")
    xr.testing.assert_identical(read(xzarr3.LocalStore(tmp_path), consolidated=True), timed(5, 0).load())
