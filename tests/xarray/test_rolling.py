"""Archives that roll: steps are dropped from their begin, or put before it; killed, disturbed and misused."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _archives import TIMES, archive, disturb, first, months, read, roll, store_of, values
from _conformance import contents
from _killed import MortalStore, forget_process, killed_everywhere, left, opened
from _processes import killed_at_call, processes
from _slow import slow
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ArgumentError, ChangedError, ConflictError, IncompleteWriteError, to_zarr
from xzarr3.commit import directory, keys
from xzarr3.io import native
from xzarr3.nodes import freshness
from xzarr3.xarray import write

WAYS = pytest.mark.parametrize("way", ["drop", "prepend"])


def rest(way: str, number: int) -> xr.Dataset:
    """What an archive holds when it has been rolled by so many months."""
    return months().isel(time=slice(number if way == "drop" else 0, None))


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
@pytest.mark.parametrize(("chunk", "number"), [(12, 24), (12, 17), slow(7, 1), slow(48, 47)])
@pytest.mark.parametrize(("way", "block"), [("drop", None), ("prepend", None), ("prepend", 5)])
def test_it_is_as_if_it_had_been_written_at_once(
    way: str, block: int | None, kind: str, zarr_format: Any, chunk: int, number: int, tmp_path: Path
) -> None:
    store = store_of(kind, tmp_path)
    archive(way, store, number, chunk, zarr_format=zarr_format)
    group = roll(way, store, number, block)
    after = read(store)
    xr.testing.assert_identical(after, rest(way, number))
    assert group["t2m"].shape == after.t2m.shape
    assert after.t2m.encoding["chunks"] == (chunk, 2)
    begin = TIMES[0 if way == "drop" else number]
    assert after.time.encoding["units"] == f"days since {begin:%Y-%m-%d}"
    assert xzarr3.check(store).ok
    assert left(store) == []
    if zarr_format != "3-draft" and kind == "directory":
        xr.testing.assert_identical(xr.open_zarr(store.root, chunks=None).load(), after)


@WAYS
def test_whole_chunks_are_neither_decoded_nor_copied(way: str, tmp_path: Path) -> None:
    archive(way, tmp_path / "a", 24)
    chunks = tmp_path / "a/t2m/c"
    before, after = ((2, 3), (0, 1)) if way == "drop" else ((0, 1), (2, 3))
    inodes = [(chunks / f"{at}/0").stat().st_ino for at in before]
    with xzarr3.trace() as trace:
        roll(way, tmp_path / "a", 24)
    assert not trace.arrays.get("/t2m", {}).get("chunks_decoded")
    assert [(chunks / f"{at}/0").stat().st_ino for at in after] == inodes
    assert sorted(path.name for path in chunks.iterdir()) == [*"0123"][: 2 if way == "drop" else 4]
    assert {path.stat().st_nlink for path in chunks.glob("*/*")} == {1}
    xr.testing.assert_identical(read(tmp_path / "a"), rest(way, 24))


def drawn_chunks(data: Any, size: int) -> dict[str, Any]:
    """Chunks of an array of this length and of width 4, of one length or of several; maybe shards."""
    inner = data.draw(st.integers(1, 5))
    options: dict[str, Any] = {"chunks": (inner, 2)}
    is_sharded, has_lengths = data.draw(st.booleans()), data.draw(st.booleans())
    along: Any = inner * data.draw(st.integers(1, 4))
    if has_lengths:
        along = [inner * each for each in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))]
        along += [inner * (size // inner + 1)] if sum(along) < size else []
    if is_sharded:
        options["shards"] = (along, 4)
    elif has_lengths:
        options["chunks"] = (along, 2)
    return options


@WAYS
@given(data=st.data())
@settings(max_examples=100)
def test_arrays_of_any_chunks_are_those_of_numpy(way: str, data: Any) -> None:
    size, number = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 25))
    rng = np.random.default_rng(size)
    store = xzarr3.MemoryStore()
    xzarr3.create_group(store)
    expected, new = {}, {}
    for name in ("a", "b")[: data.draw(st.integers(1, 2))]:
        whole = rng.integers(0, 2, (number + size, 4)) * np.arange(1, 5)
        stored, expected[name] = (whole, whole[number:]) if way == "drop" else (whole[number:], whole)
        options, dims = drawn_chunks(data, len(stored)), ("t", "x")
        if data.draw(st.booleans()):
            options, dims = {key: each[::-1] for key, each in options.items()}, ("x", "t")
            stored, expected[name] = stored.T, expected[name].T
        xzarr3.create_array(store, name, data=stored, dimension_names=dims, fill_value=0, **options)
        block = data.draw(st.integers(0, 6))
        new[name] = ("t", "x"), da.from_array(whole[:number], chunks=(block, 3)) if block else whole[:number]
    xzarr3.create_array(store, "other", data=np.arange(5), dimension_names=("y",))
    group = (
        xzarr3.drop(store, t=slice(None, number))
        if way == "drop"
        else to_zarr(xr.Dataset(new), store, prepend_dim="t")
    )
    for name, found in expected.items():
        np.testing.assert_array_equal(group[name][...], found)
        array = xzarr3.open_array(store, name, mode="r+")
        array.resize(tuple(2 * n for n in found.shape))  # What lies beyond the end is the fill value.
        np.testing.assert_array_equal(array[tuple(map(slice, found.shape))], found)
        assert array[...].sum() == found.sum()
    np.testing.assert_array_equal(group["other"][...], np.arange(5))
    assert xzarr3.check(store, decode="all").ok


# Killed


@WAYS
def test_killed_at_every_change_it_is_old_or_new_and_the_same_call_goes_on(way: str) -> None:
    begun, new = MortalStore(), xzarr3.MemoryStore()
    archive(way, begun, 17, 8)
    archive(way, new, 17, 8)
    roll(way, new, 17)
    states = set()
    for store, killed in killed_everywhere(begun, lambda store: roll(way, store, 17)):
        if killed:
            forget_process()
            try:
                found = read(store)
            except xzarr3.Xzarr3Error as error:
                states.add(type(error).__name__)
            else:
                states.add(found.sizes["time"])
                xr.testing.assert_identical(found, months().isel(time=slice(48 - found.sizes["time"], None)))
            if way == "drop":
                roll(way, store, 17)
            else:
                with contextlib.suppress(ArgumentError):  # It is there already.
                    roll(way, store, 17)
                with pytest.raises(ArgumentError, match="would be there twice"):
                    roll(way, store, 17)
                xzarr3.drop(
                    store, time=slice(None, "2000")
                )  # Drops nothing, and takes the leases of lengths.
        assert values(store) == values(new)
        assert left(store) == []
    assert {48, 31} <= states


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@WAYS
def test_killed_at_random_points_in_a_directory(way: str, tmp_path: Path) -> None:
    archive(way, tmp_path / "whole", 17, 8)
    calls = killed_at_call(-1, lambda: roll(way, tmp_path / "whole", 17))
    whole, chosen = values(xzarr3.LocalStore(tmp_path / "whole")), random.Random(3)
    for number in range(14):
        target = tmp_path / str(number)
        archive(way, target, 17, 8)
        killed_at_call(chosen.randrange(calls // 3, calls), lambda target=target: roll(way, target, 17))
        found = read(target)
        assert found.sizes["time"] in (48, 31)
        xr.testing.assert_identical(found, months().isel(time=slice(48 - found.sizes["time"], None)))
        with contextlib.suppress(ArgumentError) if way == "prepend" else contextlib.nullcontext():
            roll(way, target, 17)
        assert values(xzarr3.LocalStore(target)) == whole
        xzarr3.recover(target)  # What refuses labels that are there removes nothing.
        assert left(xzarr3.LocalStore(target)) == []


# Other writers and readers


@pytest.mark.parametrize("kind", ["memory", "directory"])
@WAYS
def test_values_set_meanwhile_are_not_lost(
    way: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(kind, tmp_path)
    archive(way, store, 24)
    before = read(store).sizes

    def change() -> None:
        xzarr3.open_array(store, "t2m", mode="r+")[-4, 0] = 99.0

    disturb(monkeypatch, change)
    with pytest.raises(ConflictError, match="another writer has changed"):
        roll(way, store, 24)
    monkeypatch.undo()
    assert opened(store).sizes == before
    assert opened(store).t2m[-4, 0] == 99.0
    roll(way, store, 24)
    assert opened(store).sizes == rest(way, 24).sizes
    assert opened(store).t2m[-4, 0] == 99.0
    assert left(store) == []


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize(
    ("way", "other"), [("drop", "append_dim"), ("prepend", "append_dim"), ("prepend", "prepend_dim")]
)
def test_another_append_meanwhile_raises_and_loses_nothing(
    way: str, other: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(kind, tmp_path).with_traits(conflict_deadline=0.2)
    archive(way, store, 24)
    times = xr.date_range("2023-01-01" if other == "append_dim" else "2018-11-01", periods=2, freq="MS")
    more, raised = first(2).assign_coords(time=times), []

    def append() -> None:
        try:
            to_zarr(more, store, **{other: "time"})
        except xzarr3.Xzarr3Error as error:
            raised.append(error)

    disturb(monkeypatch, append)
    roll(way, store, 24)
    monkeypatch.undo()
    assert len(raised) == 1
    to_zarr(more, store, **{other: "time"})
    expected = [rest(way, 24), more] if other == "append_dim" else [more, rest(way, 24)]
    xr.testing.assert_identical(read(store), xr.concat(expected, "time", data_vars="minimal"))


@pytest.mark.parametrize("kind", ["memory", "directory", "waiting", "dictionary", slow("fsspec")])
@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
@WAYS
def test_what_was_opened_before_does_not_take_old_indices_for_new_ones(
    way: str, kind: str, zarr_format: Any, tmp_path: Path
) -> None:
    """An append gives the arrays that were cut their old length again, as in an archive that rolls."""
    store = WaitingStore() if kind == "waiting" else store_of(kind, tmp_path)
    archive(way, store, 12, zarr_format=zarr_format)
    lazy, tasks = opened(store, chunks=None), opened(store, chunks={})
    array = xzarr3.open_array(store, "t2m", mode="r+")
    unpickled = pickle.loads(pickle.dumps(array))
    roll(way, store, 12)
    if way == "drop":
        more = first(12).assign_coords(time=xr.date_range("2023-01-01", periods=12, freq="MS"))
        to_zarr(more[["t2m"]], store, append_dim="time", consolidated=zarr_format != "3-draft")
    now = read(store)
    assert now.sizes["time"] == 48
    said = "since it was opened.*dropped" if way == "drop" else "others were put before"
    for use in (
        lambda: lazy.t2m[0].load(),
        lambda: tasks.t2m.compute(scheduler="sync"),
        lambda: array[:],
        lambda: array[0, 0],
        lambda: unpickled[0, 0],
        lambda: array.__setitem__(0, 1),
        lambda: array.__setitem__(..., 1),
        lambda: array.resize((47, 5)),
    ):
        with pytest.raises(ChangedError, match=f"'/t2m'.*{said}.*open it again"):
            use()
    xr.testing.assert_identical(read(store), now)
    xr.testing.assert_equal(lazy.area.load(), months().area)
    if way == "drop":
        array.append(np.zeros((1, 5)))
        assert xzarr3.open_array(store, "t2m").shape == (49, 5)


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("block", [None, 3])
@WAYS
def test_a_region_that_was_found_before_is_not_written_after(
    way: str, block: int | None, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(kind, tmp_path)
    archive(way, store, 12)
    part = months().isel(time=slice(30, 40))[["t2m"]].drop_vars("lat") * 2
    commits = write.commits

    def rolled(plans: Any) -> Any:
        roll(way, store, 12)
        return commits(plans)

    monkeypatch.setattr(write, "commits", rolled)
    with pytest.raises(ChangedError, match=r"'/t2m'.*since it was opened.*open it again"):
        to_zarr(part if block is None else part.chunk(time=block), store, region={"time": "auto"})
    xr.testing.assert_identical(read(store), rest(way, 12))


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_an_append_that_was_planned_before_is_not_stored_after(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer drops as much as it appends, the same labels, so that the shapes are what they were."""
    store = store_of(kind, tmp_path)
    archive("drop", store, 12)
    more = first(12).assign_coords(time=xr.date_range("2023-01-01", periods=12, freq="MS"))
    commits = write.commits

    def rolled(plans: Any) -> Any:
        monkeypatch.undo()
        roll("drop", store, 12)
        to_zarr(more, store, append_dim="time")
        return commits(plans)

    monkeypatch.setattr(write, "commits", rolled)
    with pytest.raises(ConflictError, match="repeat the call"):
        to_zarr(more, store, append_dim="time")
    xr.testing.assert_identical(read(store), xr.concat([rest("drop", 12), more], "time", data_vars="minimal"))


@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("selection", [np.s_[12:24], np.s_[14:17, 1:2], np.s_[:]], ids=str)
@pytest.mark.parametrize("value", [1.5, np.nan])
@WAYS
def test_a_write_under_way_changes_nothing_in_what_comes(
    way: str,
    value: float,
    selection: Any,
    is_native: bool,
    zarr_format: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right after a look at the document, when the unit is not stored yet, the archive is replaced."""
    monkeypatch.setattr(native.switch, "is_on", is_native)
    archive(way, tmp_path, 12, zarr_format=zarr_format)
    array = xzarr3.open_array(tmp_path, "t2m", mode="r+")
    confirm, is_first = freshness.confirm, True

    def confirmed(asked: Any) -> None:
        nonlocal is_first
        confirm(asked)
        if is_first:
            is_first = False
            roll(way, tmp_path, 12)

    monkeypatch.setattr(freshness, "confirm", confirmed)
    with pytest.raises(ChangedError, match=r"since it was opened.*open it again"):
        array[selection] = value
    assert not is_first
    xr.testing.assert_identical(read(tmp_path), rest(way, 12))
    # The file of a writer at work stays, where the old archive was.
    assert all(name.endswith(".__lock") for name in left(xzarr3.LocalStore(tmp_path)))


@pytest.mark.parametrize("kind", ["memory", "directory", "dictionary"])
@pytest.mark.parametrize("group", ["", slow("g/h")])
@WAYS
def test_values_set_at_the_last_moment_are_not_lost(
    way: str, group: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(kind, tmp_path)
    archive(way, store, 12, group=group)
    at = f"{group}/t2m".lstrip("/")
    module, name = (directory, "swap_units") if kind == "directory" else (keys, "put_in_place")
    swap = getattr(module, name)

    def set_before(*given: Any, **more: Any) -> Any:
        xzarr3.open_array(store, at, mode="r+")[-4, 0] = 99.0
        return swap(*given, **more)

    monkeypatch.setattr(module, name, set_before)
    before = opened(store, group=group).load()
    before.t2m[-4, 0] = 99.0
    call: Any = (
        (lambda: xzarr3.drop(store, path=group, time=slice(None, TIMES[11])))
        if way == "drop"
        else (lambda: to_zarr(first(12), store, group=group, prepend_dim="time"))
    )
    with pytest.raises(ConflictError, match=r"another writer has changed.*changed nothing; repeat"):
        call()
    xr.testing.assert_identical(opened(store, group=group).load(), before)
    assert left(store) == []
    monkeypatch.undo()
    call()
    assert opened(store, group=group).t2m[-4, 0] == 99.0
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("kind", ["memory", "directory", "dictionary", "waiting"])
@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
@WAYS
def test_what_is_listed_while_an_archive_is_replaced_is_no_part_of_it(
    way: str, zarr_format: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WaitingStore() if kind == "waiting" else store_of(kind, tmp_path)
    archive(way, store, 12, zarr_format=zarr_format)
    group, uses = xzarr3.open_group(store, use_consolidated=False), 0
    module, name = (directory, "_clear") if kind == "directory" else (keys, "_copy")
    go_on = getattr(module, name)

    def use_first(*given: Any) -> None:
        nonlocal uses
        for use in (lambda: xzarr3.copy(group, xzarr3.MemoryStore()), lambda: dict(group.load())):
            if uses < 2:
                uses += 1
                with pytest.raises(IncompleteWriteError, match="being put in place"):
                    use()
        go_on(*given)

    monkeypatch.setattr(module, name, use_first)
    roll(way, store, 12)
    assert uses
    assert sorted(dict(group.load())) == sorted(months().variables)


@pytest.mark.parametrize("call", ["append_dim", "prepend_dim", "region", "drop"])
def test_who_writes_through_a_cache_goes_by_what_is_stored(call: str) -> None:
    """Another writer does not write through that cache, which would give values of up to five minutes ago."""
    inner = xzarr3.MemoryStore()
    archive("drop", inner, 0)
    cache = xzarr3.CacheStore(inner)
    for name in months().variables:
        xzarr3.open_array(cache, str(name), mode="r+")[...]
    more = first(2).assign_coords(time=xr.date_range("2023-01-01", periods=2, freq="MS"))
    before = first(2).assign_coords(time=xr.date_range("2018-11-01", periods=2, freq="MS"))
    if call == "drop":
        xzarr3.open_array(inner, "t2m", mode="r+")[-1] = 9.0
        group = xzarr3.drop(cache, time=slice(None, TIMES[11]))
        assert opened(inner).t2m[-1, 0] == 9.0
    elif call == "region":
        roll("drop", inner, 12)
        part = months().isel(time=slice(30, 40))[["t2m"]].drop_vars("lat") * 2
        group = to_zarr(part, cache, region={"time": "auto"})
        np.testing.assert_array_equal(read(inner).t2m[18:28], part.t2m)
    else:
        data = more if call == "append_dim" else before
        to_zarr(data, inner, **{call: "time"})
        with pytest.raises(ArgumentError, match="would be there twice"):
            to_zarr(data, cache, **{call: "time"})
        again = data.assign_coords(time=data.time + np.timedelta64(61 if call == "append_dim" else -61, "D"))
        group = to_zarr(again, cache, **{call: "time"})
        assert read(inner).sizes["time"] == 52
    assert group.store is cache


@pytest.mark.parametrize("made", ["t2m/c/0", "t2m/c/0/0"])
@WAYS
def test_what_a_late_writer_makes_in_the_empty_place_goes_or_is_kept(
    way: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(way, tmp_path, 12)
    clear = directory._clear

    def late(store: Any, unit: str, path: str) -> None:
        if unit == "t2m":
            (tmp_path / made).parent.mkdir(parents=True)
            (tmp_path / made).touch() if made.endswith("0/0") else (tmp_path / made).mkdir()
        clear(store, unit, path)

    monkeypatch.setattr(directory, "_clear", late)
    is_kept = made.endswith("0/0")
    with pytest.warns(UserWarning, match="'t2m' is kept") if is_kept else contextlib.nullcontext():
        roll(way, tmp_path, 12)
    xr.testing.assert_identical(read(tmp_path), rest(way, 12))
    assert bool(left(xzarr3.LocalStore(tmp_path))) == is_kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.* is kept in:UserWarning")
@WAYS
def test_chunks_of_a_late_writer_do_not_end_a_swap_that_was_killed(way: str, tmp_path: Path) -> None:
    archive(way, tmp_path, 12)

    def killed(*given: Any) -> None:
        (tmp_path / "t2m/c/0").mkdir(parents=True)
        (tmp_path / "t2m/c/0/0").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        directory._clear = killed
        roll(way, tmp_path, 12)

    with processes(work) as (process,):
        assert process.wait(60) == signal.SIGKILL
    xr.testing.assert_identical(read(tmp_path), rest(way, 12))


@pytest.mark.parametrize("kind", ["memory", "directory", "waiting"])
@pytest.mark.parametrize("chunks", [None, slow({"time": 5})])
@WAYS
def test_a_copy_of_what_is_replaced_meanwhile_is_refused(
    way: str, chunks: Any, kind: str, tmp_path: Path
) -> None:
    store = WaitingStore() if kind == "waiting" else store_of(kind, tmp_path)
    archive(way, store, 12)
    target, is_first = xzarr3.MemoryStore(), True

    def progress(done: int, total: int) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            roll(way, store, 12)

    with pytest.raises(ChangedError, match=r"since it was opened.*open it again"):
        xzarr3.copy(store, target, chunks=chunks, progress=progress)
    assert contents(target) == {}
    xr.testing.assert_identical(read(store), rest(way, 12))


@pytest.mark.slow
@WAYS
def test_in_s3(way: str, s3_server: Any) -> None:
    store = xzarr3.ObjectStore(f"s3://{s3_server.bucket()}/x", storage_options=s3_server.storage_options)
    archive(way, store, 17)
    roll(way, store, 17, 5)
    xr.testing.assert_identical(read(store), rest(way, 17))
    assert left(store) == []


# Only what is dropped


def test_a_number_that_was_dropped_before_a_kill_is_not_dropped_again() -> None:
    begun = MortalStore()
    xzarr3.create_group(begun)
    xzarr3.create_array(begun, "a", data=np.arange(48), chunks=10, dimension_names=("x",))
    lengths = []
    for store, killed in killed_everywhere(begun, lambda store: xzarr3.drop(store, x=slice(None, 10))):
        if killed:
            forget_process()
            with contextlib.suppress(ConflictError):
                xzarr3.drop(store, x=slice(None, 10))
            assert left(store) == []
            lengths.append(xzarr3.open_array(store, "a").shape[0])
    assert 38 in lengths
    assert lengths.index(28) == len(lengths) - 1  # Nothing was left to do.


def test_trees_bounds_and_consolidated_metadata(tmp_path: Path) -> None:
    times = xr.date_range("2019-01-01", periods=6, freq="MS")
    bounds = (("time", "nv"), np.array([times, times + np.timedelta64(1, "D")]).T)
    top = xr.Dataset({"a": ("time", np.arange(6))}, {"time": ("time", times, {"bounds": "time_bnds"})})
    tree = xr.DataTree.from_dict(
        {"/": top.assign(time_bnds=bounds), "/low": xr.Dataset({"b": ("time", np.arange(6) * 2)})}
    )
    store = xzarr3.MemoryStore()
    xzarr3.to_zarr(tree, store, consolidated=True)
    xzarr3.drop(store, time=slice(None, "2019-04"))
    found = xzarr3.open_datatree(store)
    xr.testing.assert_identical(found.load(), tree.isel(time=slice(4, None)).load())
    assert xzarr3.open_group(store).consolidated


def test_what_is_absent_or_nothing() -> None:
    store = xzarr3.MemoryStore()
    archive("drop", store, 0)
    keys = contents(store)
    assert xzarr3.drop(store, time=slice(None, "2000"))["t2m"].shape == (48, 5)
    assert contents(store) == keys


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, ArgumentError, "found 0 dimensions"),
        ({"time": slice(None, "2019"), "lat": slice(None, 2)}, ArgumentError, "found 2 dimensions"),
        ({"tme": slice(None, "2019")}, ArgumentError, "no dimension 'tme'.*did you mean 'time'"),
        ({"time": "2019"}, xzarr3.ArgumentTypeError, "a slice with an end"),
        ({"time": slice("2019", "2020")}, xzarr3.ArgumentTypeError, "a slice with an end"),
        ({"time": slice(None, None, 2)}, xzarr3.ArgumentTypeError, "a slice with an end"),
        ({"time": slice(None, "soon")}, ArgumentError, "does not select along the coordinate 'time'"),
        ({"time": slice(None, "2030")}, ArgumentError, "cannot drop 48 of the 48"),
        ({"nv": slice(None, "2")}, xzarr3.ArgumentTypeError, "no coordinate"),
    ],
)
def test_misuse_names_what_is_accepted(given: Any, error: type[Exception], text: str) -> None:
    store = xzarr3.MemoryStore()
    archive("drop", store, 0)
    xzarr3.create_array(store, "flags", data=np.zeros(3), dimension_names=("nv",))
    keys = contents(store)
    with pytest.raises(error, match=text):
        xzarr3.drop(store, given)
    assert contents(store) == keys


def test_arrays_of_different_lengths_are_refused() -> None:
    store = xzarr3.MemoryStore()
    archive("drop", store, 0)
    xzarr3.open_array(store, "t2m", mode="r+").resize((50, 5))
    with pytest.raises((ConflictError, ValueError), match="length"):
        xzarr3.drop(store, time=slice(None, "2019"))
