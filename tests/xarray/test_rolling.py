"""Archives that roll: steps are dropped from their begin, or put before it: ``drop``, ``prepend_dim``."""

import contextlib
import itertools
import os
import pickle
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _archives import TIMES, archive, disturb, first, months, read, roll, store_of, values
from _conformance import contents
from _killed import MortalStore, forget_process, holding, killed_everywhere, left, opened
from _processes import killed_at_call, processes
from _slow import slow
from _strategies import attempt
from _things import refused
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ArgumentError, ChangedError, ConflictError, IncompleteWriteError, to_zarr
from xzarr3.commit import directory, keys
from xzarr3.copying import rolling
from xzarr3.dtypes import Optional, parse_dtype
from xzarr3.io import native
from xzarr3.nodes import freshness
from xzarr3.xarray import prepend, write

WAYS = pytest.mark.parametrize("way", ["drop", "prepend"])
FORMATS = pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
KINDS = pytest.mark.parametrize("kind", ["memory", "directory"])


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Any:
    return store_of(kind, tmp_path)


def rest(way: str, number: int) -> xr.Dataset:
    """What an archive holds when it has been rolled by so many months."""
    return months().isel(time=slice(number if way == "drop" else 0, None))


def later(number: int, begin: str = "2023-01-01") -> xr.Dataset:
    """So many months from another one on, such as the one after the last."""
    return first(number).assign_coords(time=xr.date_range(begin, periods=number, freq="MS"))


@KINDS
@FORMATS
@pytest.mark.parametrize(("chunk", "number"), [(12, 24), (12, 17), slow(7, 1), slow(48, 47)])
@pytest.mark.parametrize(("way", "block"), [("drop", None), ("prepend", None), ("prepend", 5)])
def test_as_written_at_once(
    way: str, block: Any, store: Any, zarr_format: Any, chunk: int, number: int
) -> None:
    archive(way, store, number, chunk, zarr_format=zarr_format)
    group, after = roll(way, store, number, block), read(store)
    xr.testing.assert_identical(after, rest(way, number))
    assert group["t2m"].shape == after.t2m.shape
    assert after.t2m.encoding["chunks"] == (chunk, 2)
    begin = TIMES[0 if way == "drop" else number]
    assert after.time.encoding["units"] == f"days since {begin:%Y-%m-%d}"
    assert xzarr3.check(store).ok
    assert left(store) == []
    if zarr_format != "3-draft" and isinstance(store, xzarr3.LocalStore):
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
    is_sharded, has_lengths = data.draw(st.booleans()), data.draw(st.booleans())
    along: Any = inner * data.draw(st.integers(1, 4))
    if has_lengths:
        along = [inner * each for each in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))]
        along += [inner * (size // inner + 1)] if sum(along) < size else []
    if is_sharded:
        return {"chunks": (inner, 2), "shards": (along, 4)}
    return {"chunks": (along if has_lengths else inner, 2)}


@WAYS
@given(data=st.data())
@settings(max_examples=100)
def test_arrays_of_any_chunks_are_those_of_numpy(way: str, data: Any) -> None:
    size, number = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 25))
    rng, store = np.random.default_rng(size), xzarr3.MemoryStore()
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
    if way == "drop":
        group = xzarr3.drop(store, t=slice(None, number))
    else:
        group = to_zarr(xr.Dataset(new), store, prepend_dim="t")
    for name, found in expected.items():
        np.testing.assert_array_equal(group[name][...], found)
        array = xzarr3.open_array(store, name, mode="r+")
        array.resize(tuple(2 * n for n in found.shape))  # What lies beyond the end is the fill value.
        np.testing.assert_array_equal(array[tuple(map(slice, found.shape))], found)
        assert array[...].sum() == found.sum()
    np.testing.assert_array_equal(group["other"][...], np.arange(5))
    assert xzarr3.check(store, decode="all").ok


@WAYS
def test_killed_at_every_change_it_is_old_or_new_and_the_same_call_goes_on(way: str) -> None:
    begun, new = MortalStore(), xzarr3.MemoryStore()
    for store in (begun, new):
        archive(way, store, 17, 8)
    roll(way, new, 17)
    sizes = set()
    for store, killed in killed_everywhere(begun, lambda store: roll(way, store, 17)):
        if killed:
            forget_process()
            found, error = attempt(partial(read, store), xzarr3.Xzarr3Error)
            if error is None:
                sizes.add(found.sizes["time"])
                xr.testing.assert_identical(found, months().isel(time=slice(48 - found.sizes["time"], None)))
            with contextlib.suppress(ArgumentError) if way == "prepend" else contextlib.nullcontext():
                roll(way, store, 17)  # What is put before may be there already.
            if way == "prepend":
                refused(ArgumentError, "would be there twice", partial(roll, way, store, 17))
                xzarr3.drop(store, time=slice(None, "2000"))  # Nothing; takes the leases of lengths.
        assert values(store) == values(new)
        assert left(store) == []
    assert sizes == {48, 31}


@WAYS
def test_what_is_appended_after_a_kill_is_there_or_refused(way: str) -> None:
    """By who had the array open before, and takes the lease of the killed writer away."""
    begun, outcomes = MortalStore(), []
    archive(way, begun, 17)
    for number in itertools.count():
        store = holding(MortalStore, contents(begun))
        array = xzarr3.open_array(store, "t2m", mode="r+")
        if not store.killed_at(number, partial(roll, way, store, 17), gone=True):
            break
        _, error = attempt(partial(array.append, np.full((1, 5), 7.0)), xzarr3.Xzarr3Error)
        outcomes.append(type(error))
        xzarr3.recover(store)
        assert all(key.endswith(".xzarr3-lease") for key in left(store))
        if error is None:
            assert xzarr3.open_array(store, "t2m")[-1].tolist() == [7.0] * 5, number
    assert {type(None), IncompleteWriteError, ChangedError} >= {*outcomes} > {type(None)}


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


@pytest.mark.parametrize("kind", ["memory", "directory", "dictionary"])
@pytest.mark.parametrize("group", ["", slow("g/h")])
@pytest.mark.parametrize("is_late", [False, True])
@WAYS
def test_values_set_meanwhile_are_not_lost(
    way: str, is_late: bool, group: str, kind: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all values have been taken over, or at the last moment, before they are put in place."""
    archive(way, store, 12, group=group)
    module, name = (directory, "swap_units") if kind == "directory" else (keys, "put_in_place")
    swap = getattr(module, name)

    def change(*given: Any, **more: Any) -> Any:
        xzarr3.open_array(store, f"{group}/t2m".lstrip("/"), mode="r+")[-4, 0] = 99.0
        return swap(*given, **more) if is_late else None

    if is_late:
        monkeypatch.setattr(module, name, change)
    else:
        disturb(monkeypatch, change)
    before = read(store, group=group)
    before.t2m[-4, 0] = 99.0
    with pytest.raises(ConflictError, match=r"another writer has changed.*changed nothing; repeat"):
        roll(way, store, 12, group=group)
    monkeypatch.undo()
    xr.testing.assert_identical(read(store, group=group), before)
    assert left(store) == []
    roll(way, store, 12, group=group)
    assert opened(store, group=group).t2m[-4, 0] == 99.0
    assert opened(store, group=group).sizes == rest(way, 12).sizes
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("kind", ["memory", "directory", "dictionary", "waiting"])
@pytest.mark.parametrize(("way", "node"), [("drop", "g"), ("drop", "g/t2m"), ("prepend", "g/t2m")])
@pytest.mark.parametrize("is_late", [False, True])
def test_attributes_set_meanwhile_are_not_lost(
    way: str, is_late: bool, node: str, kind: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the last look at the documents, or after it, before they leave."""
    archive(way, store, 12, group="g")
    swap = (directory, "swap_units") if kind == "directory" else (keys, "put_in_place")
    go_on = getattr(*swap)

    def change(*given: Any, **more: Any) -> Any:
        xzarr3.open(store, node, mode="r+").attrs["set"] = 1
        return go_on(*given, **more) if is_late else None

    if is_late:
        monkeypatch.setattr(*swap, change)
    else:
        disturb(monkeypatch, change)
    refused(ConflictError, "another writer has changed", lambda: roll(way, store, 12, group="g"))
    monkeypatch.undo()
    assert opened(store, group="g").sizes["time"] == (48 if way == "drop" else 36)
    assert left(store) == []
    roll(way, store, 12, group="g")
    assert xzarr3.open(store, node).attrs["set"] == 1
    xr.testing.assert_equal(read(store, group="g"), rest(way, 12))
    assert xzarr3.check(store).ok


@pytest.mark.parametrize("kind", ["memory", "directory", "waiting"])
@WAYS
def test_an_array_added_meanwhile_is_not_lost(way: str, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(way, store, 12, group="g")
    new = np.arange(5.0)
    disturb(monkeypatch, lambda: xzarr3.create_array(store, "g/new", data=new, dimension_names=("lat",)))
    refused(ConflictError, "another writer has changed", lambda: roll(way, store, 12, group="g"))
    monkeypatch.undo()
    roll(way, store, 12, group="g")
    assert xzarr3.open_array(store, "g/new")[:].tolist() == new.tolist()
    assert left(store) == []


@pytest.mark.parametrize("kind", ["memory", "dictionary", "directory", "waiting", slow("fsspec")])
@pytest.mark.parametrize(("way", "step"), [
    ("prepend", (prepend, "shift")), ("drop", (rolling._Shifting, "_plan")),
    ("prepend", (rolling._Shifting, "_plan")),
])  # fmt: skip
def test_what_was_replaced_stays(way: str, step: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the labels are shifted, the other dataset of the same shape holds those that come, too."""
    archive(way, store, 12)
    other, go_on = read(store) * -1, getattr(*step)
    units = {"units": f"days since {other.time.values[0]:.10}", "dtype": "int32"}
    other = other if step[1] == "_plan" else other.assign_coords(time=TIMES[:36])

    def replaced(*given: Any, **more: Any) -> Any:
        monkeypatch.undo()
        to_zarr(other, store, mode="w", encoding={"t2m": {"chunks": (12, 2)}, "time": units})
        return go_on(*given, **more)

    monkeypatch.setattr(*step, replaced)
    said = "changed" if step[1] == "_plan" else ".*nothing was written"
    refused(ConflictError, f"another writer has {said}", lambda: roll(way, store, 12))
    xr.testing.assert_equal(read(store), other)


@WAYS
def test_who_looks_meanwhile_is_told(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are absent for a moment are no fill values; what is stored then is not lost in silence."""
    archive(way, tmp_path, 12)
    array, moves = xzarr3.open_array(tmp_path, "t2m", mode="r+"), xzarr3.open_array(tmp_path, "t2m")
    freshness.check_read(moves)
    opened_before, confirm = opened(tmp_path), freshness.confirming(array)[0]
    rename, gone = directory._rename, []

    def renamed(store: Any, name: str, to: str) -> None:
        if name.endswith("/old/t2m"):
            gone.append(moves.store.get("t2m/c/0/0/0"))
        rename(store, name, to)
        if to.endswith("/old/t2m"):
            (tmp_path / to / "zarr.json").touch()  # As if its attributes had been set.

    monkeypatch.setattr(directory, "_rename", renamed)
    before = read(tmp_path)
    refused(ConflictError, "another writer has changed", lambda: roll(way, tmp_path, 12))
    monkeypatch.undo()
    assert gone == [None]
    for told in (partial(freshness.check_read, moves), confirm, lambda: array[:], opened_before.t2m.load):
        refused(ChangedError, "was replaced since it was opened", told)
    xr.testing.assert_identical(read(tmp_path), before)


@KINDS
@pytest.mark.parametrize("change", ["drop append_dim", "prepend append_dim", "prepend prepend_dim"])
def test_another_append_meanwhile_raises(change: str, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (way, other), store = change.split(), store.with_traits(conflict_deadline=0.2)
    archive(way, store, 24)
    more, raised = later(2, "2023-01-01" if other == "append_dim" else "2018-11-01"), []

    append = partial(to_zarr, more, store, **{other: "time"})
    disturb(monkeypatch, lambda: raised.append(attempt(append, xzarr3.Xzarr3Error)[1]))
    roll(way, store, 24)
    monkeypatch.undo()
    assert [each is not None for each in raised] == [True]
    append()
    expected = [rest(way, 24), more] if other == "append_dim" else [more, rest(way, 24)]
    xr.testing.assert_identical(read(store), xr.concat(expected, "time", data_vars="minimal"))


@pytest.mark.parametrize("kind", ["memory", "directory", "waiting", "dictionary", slow("fsspec")])
@FORMATS
@WAYS
def test_what_was_opened_before_is_refused(way: str, store: Any, zarr_format: Any) -> None:
    """An append gives the arrays that were cut their old length again, as in an archive that rolls."""
    archive(way, store, 12, zarr_format=zarr_format)
    lazy, tasks = opened(store, chunks=None), opened(store, chunks={})
    array = xzarr3.open_array(store, "t2m", mode="r+")
    unpickled = pickle.loads(pickle.dumps(array))
    roll(way, store, 12)
    if way == "drop":
        to_zarr(later(12)[["t2m"]], store, append_dim="time", consolidated=zarr_format != "3-draft")
    now = read(store)
    assert now.sizes["time"] == 48
    said = "since it was opened.*dropped" if way == "drop" else "others were put before"
    for use in (
        lazy.t2m[0].load, partial(tasks.t2m.compute, scheduler="sync"), lambda: array[:], lambda: array[0, 0],
        lambda: unpickled[0, 0], partial(array.set, 0, 1), partial(array.set, ..., 1),
        partial(array.resize, (47, 5)),
    ):  # fmt: skip
        refused(ChangedError, f"'/t2m'.*{said}.*open it again", use)
    xr.testing.assert_identical(read(store), now)
    xr.testing.assert_equal(lazy.area.load(), months().area)
    if way == "drop":
        array.append(np.zeros((1, 5)))
        assert xzarr3.open_array(store, "t2m").shape == (49, 5)


def before_commits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another writer act when a write was planned, and nothing was stored."""
    commits = write.commits

    def disturbed(plans: Any) -> Any:
        monkeypatch.undo()
        act()
        return commits(plans)

    monkeypatch.setattr(write, "commits", disturbed)


@KINDS
@pytest.mark.parametrize("block", [None, 3])
@WAYS
def test_a_region_found_before(way: str, block: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(way, store, 12)
    part = months().isel(time=slice(30, 40))[["t2m"]].drop_vars("lat") * 2
    before_commits(monkeypatch, lambda: roll(way, store, 12))
    with pytest.raises(ChangedError, match=r"'/t2m'.*since it was opened.*open it again"):
        to_zarr(part if block is None else part.chunk(time=block), store, region={"time": "auto"})
    xr.testing.assert_identical(read(store), rest(way, 12))


@KINDS
def test_an_append_planned_before(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer drops as much as it appends, the same labels, so that the shapes are what they were."""
    archive("drop", store, 12)
    more = later(12)
    before_commits(monkeypatch, lambda: (roll("drop", store, 12), to_zarr(more, store, append_dim="time")))
    refused(ConflictError, "repeat the call", lambda: to_zarr(more, store, append_dim="time"))
    xr.testing.assert_identical(read(store), xr.concat([rest("drop", 12), more], "time", data_vars="minimal"))


@pytest.mark.parametrize("kind", ["memory", "directory", "waiting"])
@pytest.mark.parametrize(("change", "zarr_format"), [
    ("drop", 3), ("drop", 2), ("drop", "3-draft"), ("prepend", 3), ("removed", 3), ("removed", 2),
])  # fmt: skip
def test_a_variable_planned_before(
    change: str, zarr_format: Any, kind: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive("drop" if change == "removed" else change, store, 12, group="g", zarr_format=zarr_format)
    new = xr.Dataset({"new": ("time", np.arange(float(opened(store, group="g").sizes["time"])))})

    def act() -> None:
        if change == "removed":
            del xzarr3.open_group(store, mode="r+")["g"]
        else:
            roll(change, store, 12, group="g")

    before_commits(monkeypatch, act)
    refused(ConflictError, "replaced or removed '/g'", lambda: to_zarr(new, store, group="g", mode="a"))
    if change == "removed":
        assert not xzarr3.open_group(store).nmembers()
    else:
        xr.testing.assert_equal(read(store, group="g"), rest(change, 12))
    assert xzarr3.check(store).ok


@FORMATS
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("selection", [np.s_[12:24], np.s_[14:17, 1:2], np.s_[:]], ids=str)
@pytest.mark.parametrize("value", [1.5, np.nan])
@WAYS
def test_a_write_under_way_changes_nothing_in_what_comes(
    way: str, value: float, selection: Any, is_native: bool, zarr_format: Any, tmp_path: Path
) -> None:
    """Right after a look at the document, when the unit is not stored yet, the archive is replaced."""
    archive(way, tmp_path, 12, zarr_format=zarr_format)
    array, confirm = xzarr3.open_array(tmp_path, "t2m", mode="r+"), freshness.confirm

    def confirmed(asked: Any) -> None:
        confirm(asked)
        if looked.call_count == 1:
            roll(way, tmp_path, 12)

    with (
        mock.patch.object(native.switch, "is_on", is_native),
        mock.patch.object(freshness, "confirm", side_effect=confirmed) as looked,
        pytest.raises(ChangedError, match=r"since it was opened.*open it again"),
    ):
        array[selection] = value
    assert looked.called
    xr.testing.assert_identical(read(tmp_path), rest(way, 12))
    # The file of a writer at work stays, where the old archive was.
    assert all(name.endswith(".__lock") for name in left(xzarr3.LocalStore(tmp_path)))


@pytest.mark.parametrize("kind", ["memory", "directory", "dictionary", "waiting"])
@FORMATS
@WAYS
def test_what_is_listed_while_an_archive_is_replaced_is_no_part_of_it(
    way: str, zarr_format: Any, kind: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(way, store, 12, zarr_format=zarr_format)
    group = xzarr3.open_group(store, use_consolidated=False)
    module, name = (directory, "_clear") if kind == "directory" else (keys, "_copy")
    go_on, uses = getattr(module, name), list[Callable[[], object]]()
    uses += [lambda: xzarr3.copy(group, {}), lambda: dict(group.load()), lambda: list(group)]

    def use_first(*given: Any) -> None:
        while uses:
            refused(IncompleteWriteError, "being put in place", lambda: uses.pop()())
        go_on(*given)

    monkeypatch.setattr(module, name, use_first)
    roll(way, store, 12)
    assert not uses
    assert sorted(dict(group.load())) == sorted(months().variables)


@pytest.mark.parametrize("call", ["append_dim", "prepend_dim", "region", "drop"])
def test_who_writes_through_a_cache_goes_by_what_is_stored(call: str) -> None:
    """Another writer does not write through that cache, which would give values of up to five minutes ago."""
    inner = xzarr3.MemoryStore()
    archive("drop", inner, 0)
    cache = xzarr3.CacheStore(inner)
    for name in months().variables:
        xzarr3.open_array(cache, str(name), mode="r+")[...]
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
        one, next_one = ("2023-01-01", "2023-03-01") if call == "append_dim" else ("2018-11-01", "2018-09-01")
        to_zarr(later(2, one), inner, **{call: "time"})
        with pytest.raises(ArgumentError, match="would be there twice"):
            to_zarr(later(2, one), cache, **{call: "time"})
        group = to_zarr(later(2, next_one), cache, **{call: "time"})
        assert read(inner).sizes["time"] == 52
    assert group.store is cache


@pytest.mark.parametrize("made", ["t2m/c/0", "t2m/c/0/0"])
@WAYS
def test_a_late_writer(way: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(way, tmp_path, 12)
    clear = directory._clear

    def late(store: Any, unit: str, *more: Any) -> None:
        if unit == "t2m":
            (tmp_path / made).parent.mkdir(parents=True)
            (tmp_path / made).touch() if made.endswith("0/0") else (tmp_path / made).mkdir()
        clear(store, unit, *more)

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
def test_a_copy_of_what_is_replaced(way: str, chunks: Any, store: Any) -> None:
    archive(way, store, 12)
    once, target = [lambda: roll(way, store, 12)], xzarr3.MemoryStore()
    with pytest.raises(ChangedError, match=r"since it was opened.*open it again"):
        xzarr3.copy(store, target, chunks=chunks, progress=lambda *_: once and once.pop()())
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


@pytest.mark.parametrize("zarr_format", [3, slow(2)])
@WAYS
def test_trees_bounds_and_consolidated_metadata(way: str, zarr_format: Any) -> None:
    """Groups below are cut with the one above them, whose coordinates they have; others stay."""
    times = xr.date_range("2019-01-01", periods=6, freq="MS")
    bounds = (("time", "nv"), np.array([times, times + np.timedelta64(1, "D")]).T)
    whole = xr.Dataset({"a": ("time", np.arange(6)), "time_bnds": bounds}, {"time": times})
    whole.time.attrs["bounds"] = "time_bnds"
    below, other = (xr.Dataset({"b": ("time", np.arange(n))}) for n in (6, 3))
    there = whole if way == "drop" else whole.isel(time=slice(2, None))
    tree = xr.DataTree.from_dict({"/x": there, "/y": other, **({"/x/low": below} if way == "drop" else {})})
    store = to_zarr(tree, zarr_format=zarr_format, consolidated=True).store
    if way == "drop":
        xzarr3.drop(store, path="x", time=slice(None, "2019-04"))
        whole, below = whole.isel(time=slice(4, None)), below.isel(time=slice(4, None))
        xr.testing.assert_identical(xzarr3.open_datatree(store)["x/low/b"].load(), whole.assign(below).b)
    else:
        to_zarr(other, store, group="x/low", mode="w-")
        to_zarr(whole.isel(time=slice(2)), store, group="x", prepend_dim="time")
        xr.testing.assert_identical(read(store, group="x/low"), other)
    for consolidated in (True, False):
        xr.testing.assert_identical(read(store, group="x", consolidated=consolidated), whole)
    xr.testing.assert_identical(read(store, group="y"), other)
    assert xzarr3.open_group(store).consolidated


@pytest.mark.parametrize(("given", "error", "text"), [
    ({}, ArgumentError, "found 0 dimensions"),
    ({"time": slice(None, "2019"), "lat": slice(None, 2)}, ArgumentError, "found 2 dimensions"),
    ({"tme": slice(None, "2019")}, ArgumentError, "no dimension 'tme'.*did you mean 'time'"),
    *(({"time": each}, xzarr3.ArgumentTypeError, "a slice with an end")
      for each in ("2019", slice("2019", "2020"), slice(None, None, 2))),
    ({"time": slice(None, "soon")}, ArgumentError, "does not select along the coordinate 'time'"),
    ({"time": slice(None, "2030")}, ArgumentError, "cannot drop 48 of the 48"),
    ({"nv": slice(None, "2")}, xzarr3.ArgumentTypeError, "no coordinate"),
])  # fmt: skip
def test_misuse_of_drop_names_what_is_accepted(given: Any, error: type[Exception], text: str) -> None:
    store = xzarr3.MemoryStore()
    archive("drop", store, 0)
    xzarr3.create_array(store, "flags", data=np.zeros(3), dimension_names=("nv",))
    keys = contents(store)
    refused(error, text, lambda: xzarr3.drop(store, given))
    assert xzarr3.drop(store, time=slice(None, "2000"))["t2m"].shape == (48, 5)
    assert contents(store) == keys
    xzarr3.open_array(store, "t2m", mode="r+").resize((50, 5))
    refused((ConflictError, ValueError), "length", lambda: xzarr3.drop(store, time=slice(None, "2019")))


def test_a_grid_of_several_lengths_gets_a_first_chunk(tmp_path: Path) -> None:
    archive("prepend", tmp_path / "a", 17, (12, 7, 12))
    with xzarr3.trace() as trace:
        to_zarr(first(17), tmp_path / "a", prepend_dim="time")
    assert not trace.arrays.get("/t2m", {}).get("chunks_decoded")
    assert xzarr3.open_array(tmp_path / "a", "t2m").metadata.chunk_grid.axes[0].lengths(48) == (17, 12, 7, 12)
    xr.testing.assert_identical(read(tmp_path / "a"), months())


@WAYS
def test_killed_without_labels_it_is_not_repeated_by_mistake(way: str) -> None:
    begun, lengths = MortalStore(), []
    xzarr3.create_group(begun)
    xzarr3.create_array(begun, "a", data=np.arange(10, 58), chunks=10, dimension_names=("x",))

    def act(store: Any) -> None:
        if way == "drop":
            xzarr3.drop(store, x=slice(None, 10))
        else:
            to_zarr(xr.Dataset({"a": ("x", np.arange(10))}), store, prepend_dim="x")

    for store, killed in killed_everywhere(begun, act):
        if killed:
            forget_process()
            with contextlib.suppress(ConflictError):
                act(store)
            found = xzarr3.open_array(store, "a")[:]
            lengths.append(len(found))
            np.testing.assert_array_equal(found[-58:], np.arange(58)[-len(found) :])
            assert way == "prepend" or left(store) == []
    done, after = lengths.index(28 if way == "drop" else 68), 38 if way == "drop" else 58
    assert after in lengths
    assert {48, after} >= set(lengths[:done])  # Of 48, the error has told that nothing was changed.
    assert set(lengths[done:]) == {lengths[done]}, "all was done, and only leases of lengths were left"
    assert len(lengths) - done <= (1 if way == "drop" else 2)


@WAYS
@pytest.mark.filterwarnings("ignore:.*(could not be removed|may have to wait):UserWarning")
def test_an_error_without_labels_tells_what_is_done(way: str) -> None:
    """Else who repeats the call drops, or puts there, as much again."""
    failed = set()
    for n in itertools.count():
        store, asked = WaitingStore(), itertools.count()
        root = xzarr3.create_group(store)
        root.create_array("a", data=np.arange(10, 58), chunks=10, dimension_names=("x",))
        root.consolidate()

        def before(*request: str, n: int = n, asked: Any = asked) -> None:
            if next(asked) == n:
                raise xzarr3.StoreError("cannot be reached")

        store.before = before
        try:
            if way == "drop":
                xzarr3.drop(store, x=slice(None, 10))
            else:
                to_zarr(xr.Dataset({"a": ("x", np.arange(10))}), store, prepend_dim="x")
        except xzarr3.StoreError as error:
            notes = " ".join(getattr(error, "__notes__", ()))
        else:
            if next(asked) <= n:
                break
            continue  # Only what is left could not be removed.
        store.before = None
        xzarr3.recover(store)
        is_told = "repeat no append and no drop()" in notes or "only in part" in notes
        failed.add((len(xzarr3.open_array(store, "a")), is_told))
    assert {length for length, is_told in failed if not is_told} == {48}
    assert (38 if way == "drop" else 58, True) in failed


@KINDS
def test_a_task_that_fails_leaves_what_was_there(kind: str, store: Any) -> None:
    archive("prepend", store, 17)
    before, new = values(store), first(17).chunk(time=4)

    def fail(block: Any, block_info: Any = None) -> Any:
        return 1 // 0 if block_info[0]["chunk-location"][0] == 2 else block

    new["t2m"].data = new.t2m.data.map_blocks(fail, dtype=float)
    refused(ZeroDivisionError, None, lambda: to_zarr(new, store, prepend_dim="time"))
    assert values(store) == before
    assert left(store) == []
    options = {"scheduler": "processes"} if kind == "directory" else {}
    to_zarr(first(17).chunk(time=4), store, prepend_dim="time", chunkmanager_store_kwargs=options)
    xr.testing.assert_identical(read(store), months())


@pytest.mark.parametrize("what", ["longer", "gone", "made"])
def test_what_changes_after_the_plan_was_made_is_a_conflict(what: str) -> None:
    store, put_before = xzarr3.MemoryStore(), prepend.put_before
    archive("prepend", store, 24)

    def change(*given: Any, **options: Any) -> Any:
        if what == "longer":
            to_zarr(later(2), store, append_dim="time")
        elif what == "gone":
            del xzarr3.open_group(store, mode="r+")["area"]
        else:
            xzarr3.create_array(store, "new", data=np.arange(5.0), dimension_names=("lat",))
        return put_before(*given, **options)

    new = first(24).assign(new=("lat", np.ones(5)))
    if what == "gone":  # It is compared when the blocks are computed.
        new["area"] = new.area.chunk()
    changing = mock.patch.object(prepend, "put_before", change)
    with changing, pytest.raises(ConflictError, match="nothing was written"):
        to_zarr(new, store, prepend_dim="time")
    assert opened(store).sizes["time"] == (26 if what == "longer" else 24)
    assert left(store) == []


def test_lazy_values_of_the_archive_itself_are_put_before_it(tmp_path: Path) -> None:
    archive("prepend", tmp_path, 24)
    earlier = opened(tmp_path, chunks={}).isel(time=slice(24)).assign_coords(time=TIMES[:24])
    to_zarr(earlier, tmp_path, prepend_dim="time")
    t2m = months().t2m.values[24:]
    np.testing.assert_array_equal(read(tmp_path).t2m, np.concatenate([t2m, t2m]))


@FORMATS
def test_new_variables_and_attributes_come_with_the_same_change(zarr_format: Any) -> None:
    store = xzarr3.MemoryStore()
    archive("prepend", store, 24, zarr_format=zarr_format)
    new = first(24).assign(height=("lat", np.ones(5)), flag=("lat", da.zeros(5))).assign_attrs(title="more")
    new.xzarr3.to_zarr(store, prepend_dim="time")
    expected = months().assign(height=("lat", np.ones(5)), flag=("lat", np.zeros(5)))
    for options in ({}, {"consolidated": False}):
        xr.testing.assert_identical(read(store, **options), expected.assign_attrs(title="more"))


def test_where_nothing_is(tmp_path: Path) -> None:
    bare = xzarr3.create_group(xzarr3.MemoryStore()).store
    for place in (tmp_path / "a", xzarr3.MemoryStore(), bare, None):
        group = to_zarr(first(3), place, prepend_dim="time")
        xr.testing.assert_identical(read(group.store), first(3))
    store, array = group.store, group["t2m"]
    to_zarr(first(0), store, prepend_dim="time")
    assert array[:].shape == (3, 5)  # Nothing has moved.
    xr.testing.assert_identical(read(store), first(3))
    units = {"time": {"units": "days since 2000-01-01", "dtype": "int32"}}
    to_zarr(first(0), store, mode="w", encoding=units)
    to_zarr(first(5), store, prepend_dim="time")
    xr.testing.assert_identical(read(store), first(5))


def test_labels_that_decrease_and_forced_ones() -> None:
    falling = xr.Dataset({"a": ("x", np.arange(6))}, {"x": [6, 5, 4, 3, 2, 1]})
    store = to_zarr(falling.isel(x=slice(3, None))).store
    to_zarr(falling.isel(x=slice(3)), store, prepend_dim="x")
    xr.testing.assert_identical(read(store), falling)
    with pytest.raises(ArgumentError, match=r"label 0 .*element 1 .*would precede 6, though .*decrease"):
        to_zarr(falling.isel(x=slice(2)).assign_coords(x=[7, 0]), store, prepend_dim="x")
    to_zarr(falling, store, prepend_dim="x", check_labels=False)
    assert read(store).x.values.tolist() == [6, 5, 4, 3, 2, 1] * 2
    xzarr3.create_array(store, "twice", data=np.ones((12, 12)), dimension_names=("x", "x"))
    refused(ValueError, "twice", lambda: to_zarr(falling, store, prepend_dim="x", check_labels=False))


def test_masked_text_and_packed_values() -> None:
    ds = xr.Dataset({
        "packed": ("x", [1.5, np.nan, 3.0, 0.5, np.nan, 2.0]),
        "text": ("x", np.array(["a", "bcd", "", "é", "x" * 9, "q"], object)),
        "flag": ("x", np.array([True, False, True, True, False, False])),
    })  # fmt: skip
    packing = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -9}
    store = to_zarr(ds.isel(x=slice(4, None)), encoding={"packed": packing}).store
    to_zarr(ds.isel(x=slice(4)).drop_encoding(), store, prepend_dim="x")
    xr.testing.assert_identical(read(store), ds)
    with pytest.raises(ValueError, match="packed"):
        to_zarr(ds.isel(x=slice(4)).assign(packed=("x", np.full(4, 1e6))), store, prepend_dim="x")
    assert read(store).sizes["x"] == 6


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize(("inner", "number"), [("int32", 3), ("int32", 4), ("float32", 4)])
def test_elements_without_a_value(inner: str, number: int, chunks: Any) -> None:
    plain = np.arange(2, 14).reshape(4, 3)
    whole, stores = np.ma.masked_array(plain.astype(inner), plain % 3 == 0), []
    for part in (whole[:number], whole, np.ma.concatenate([whole[:number], whole])):
        group = xzarr3.create_group(xzarr3.MemoryStore())
        options: Any = {"dtype": Optional(parse_dtype(inner)), "dimension_names": ("t", "x")}
        group.create_array("v", data=part, chunks=(3, 2), **options)
        stores.append(group.store)
    earlier, store, expected = opened(stores[0], chunks=chunks), *stores[1:]
    to_zarr(earlier, store, prepend_dim="t")
    assert repr(read(store).v.values) == repr(read(expected).v.values)
    assert contents(store).keys() == contents(expected).keys()


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_times_before_the_reference_date(dtype: str) -> None:
    hours = xr.Dataset(
        {"a": ("time", [3, 4, 5])}, {"time": xr.date_range("2020-01-01T01", periods=3, freq="h")}
    )
    store = to_zarr(hours, encoding={"time": {"units": "hours since 2020-01-01", "dtype": dtype}}).store
    keys = contents(store)
    earlier = xr.Dataset({"a": ("time", [1, 2])}, {"time": xr.date_range("2019-12-31", periods=2, freq="D")})
    if dtype == "int32":
        to_zarr(earlier, store, prepend_dim="time")
        assert xzarr3.open_array(store, "time")[:].tolist() == [-24, 0, 1, 2, 3]
    else:
        refused(ValueError, "time", lambda: to_zarr(earlier, store, prepend_dim="time"))
        assert contents(store) == keys


def test_units_are_widened_in_the_same_change() -> None:
    times = np.array(["2020-01-01T06", "2020-01-01T12", "2020-01-02", "2020-01-03", "2020-01-04"], "M8[ns]")
    whole = xr.Dataset({"a": ("time", [1, 2, 3, 4, 5])}, {"time": times})
    encoding = {"time": {"units": "days since 2020-01-02", "dtype": "int32"}}
    store = to_zarr(whole.isel(time=slice(2, None)), encoding=encoding).store
    refused(ValueError, "widen_units", lambda: to_zarr(whole.isel(time=slice(2)), store, prepend_dim="time"))
    to_zarr(whole.isel(time=slice(2)), store, prepend_dim="time", widen_units=True)
    xr.testing.assert_identical(read(store), whole)
    assert xzarr3.open_array(store, "time")[:].tolist() == [-18, -12, 0, 24, 48]


TWO = first(2)
MISUSE: list[tuple[Any, dict[str, Any], str]] = [
    (TWO, {"mode": "a"}, r"mode='a' does not go with prepend_dim='time'.*leave mode out"),
    (TWO, {"append_dim": "time"}, r"append_dim='time' does not go"),
    (TWO, {"region": {"time": slice(2)}}, r"region=.* does not go"),
    (TWO.chunk(), {"compute": False}, r"compute=False does not go"),
    (TWO, {"prepend_dim": "tme"}, r"prepend_dim='tme' does not match.*did you mean 'time'"),
    (TWO, {"encoding": {"t2m": {"dtype": "f4"}}}, r"'t2m' already exists, but encoding"),
    (TWO.drop_vars("t2m"), {}, r"variables 't2m' have the dimension 'time' in the store"),
    (TWO[["area"]], {}, r"no variable of the dataset has the dim"),
    (TWO.isel(lat=slice(3)), {}, r"'lat' has 3 here and 5 in the store"),
    (TWO.assign(more=("time", [1, 2])), {}, r"'more' is not in the store and would be shorter"),
    (TWO.assign(t2m=TWO.t2m.astype(str)), {}, r"Mismatched dtypes for variable t2m"),
    (TWO.assign(area=("lat", np.ones(5))), {}, r"'area' have other values than in the store"),
    (TWO.assign(area=("lat", da.ones(5))), {}, r"'area' have other values than in the store"),
    (months().isel(time=slice(25)), {}, r"label 2021-01-01.*element 24.*there twice; the first label"),
    (months().isel(time=slice(23, None, -1)), {}, "would precede 2019-01-01, though the labels increase"),
    (TWO.isel(time=[0, 0]), {}, r"would be there twice"),
    (xr.DataTree(TWO), {}, r"prepend_dim is not for trees"),
    (TWO, {"zarr_format": 2}, r"has Zarr format 3"),
]


@pytest.mark.parametrize(("given", "options", "text"), MISUSE)
def test_misuse_changes_nothing_and_says_what_is_accepted(given: Any, options: Any, text: str) -> None:
    store = xzarr3.MemoryStore()
    archive("prepend", store, 24)
    keys = contents(store)
    with pytest.raises((ValueError, TypeError), match=text):
        to_zarr(given, store, **{"prepend_dim": "time", **options})
    assert contents(store) == keys


COMMITS = r"commits by itself.*mode='w'"


def test_stores_that_commit_by_themselves_are_refused(tmp_path: Path) -> None:
    archive("prepend", tmp_path / "a.zip", 24)
    with pytest.raises(xzarr3.StoreCapabilityError, match=COMMITS):
        to_zarr(first(24), tmp_path / "a.zip", prepend_dim="time")
    assert read(tmp_path / "a.zip").sizes["time"] == 24


@pytest.mark.slow
def test_icechunk_is_refused_and_nothing_is_committed(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    to_zarr(first(5), repo)
    commits = [each.id for each in repo.ancestry(branch="main")]
    session = repo.writable_session("main")
    for store in (repo, session.store, session):
        refused(xzarr3.StoreCapabilityError, COMMITS, partial(to_zarr, first(2), store, prepend_dim="time"))
    assert [each.id for each in repo.ancestry(branch="main")] == commits


@pytest.mark.parametrize("shards", [None, 4])
@pytest.mark.parametrize("size", [0, 1])
@WAYS
def test_stored_fill_values_stay_stored(way: str, size: int, shards: int | None) -> None:
    stored, new = np.r_[7, np.zeros(11)], np.arange(1.0, 4 * size + 2)
    options: dict[str, Any] = {"chunks": 2 if shards else 4, "shards": shards, "dimension_names": ("t",)}
    root = xzarr3.create_group(xzarr3.MemoryStore())
    array = root.create_array("a", shape=20, dtype="f8", write_empty_chunks=True, **options)
    array[:12] = stored
    if way == "drop":
        xzarr3.drop(root.store, t=slice(None, len(new)))
    else:
        to_zarr(xr.Dataset({"a": ("t", new)}), root.store, prepend_dim="t")
    expected = stored[len(new) :] if way == "drop" else np.r_[new, stored]
    found = xzarr3.open_array(root.store, "a", missing="error")
    np.testing.assert_array_equal(found[: len(expected)], expected)
    refused(xzarr3.MissingChunksError, None, lambda: found[-1])
