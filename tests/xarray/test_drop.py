"""``drop``: what remains of an archive, against xarray and numpy; killed, disturbed and misused."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _archives import TIMES, disturb, months, store_of, values
from _conformance import contents
from _killed import MortalStore, forget_process, killed_everywhere, left, opened
from _processes import killed_at_call
from _slow import slow
from _waiting import WaitingStore
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChangedError, ConflictError


def archive(store: Any, chunk: int = 12, **options: Any) -> xr.Dataset:
    """Write four years of months; gives them as they are read."""
    xzarr3.to_zarr(months(), store, encoding={"t2m": {"chunks": (chunk, 2)}}, **options)
    return opened(store, chunks=None).load()


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
@pytest.mark.parametrize(("chunk", "number"), [(12, 24), (12, 17), slow(7, 1), slow(48, 47)])
def test_drop_leaves_what_xarray_selects(
    kind: str, zarr_format: Any, chunk: int, number: int, tmp_path: Path
) -> None:
    store = store_of(kind, tmp_path)
    before = archive(store, chunk, zarr_format=zarr_format)
    xzarr3.drop(store, time=slice(None, TIMES[number - 1]))
    after = opened(store, chunks=None).load()
    xr.testing.assert_identical(after, before.isel(time=slice(number, None)))
    assert after.t2m.encoding["chunks"] == (chunk, 2)
    assert xzarr3.check(store).ok
    assert left(store) == []
    if zarr_format != "3-draft":
        xr.testing.assert_identical(xr.open_dataset(store_for_zarr(store), engine="zarr").load(), after)


def store_for_zarr(store: Any) -> Any:
    """The same values for zarr-python."""
    if isinstance(store, xzarr3.LocalStore):
        return store.root
    import zarr
    from zarr.core.buffer import default_buffer_prototype

    make = default_buffer_prototype().buffer.from_bytes
    return zarr.storage.MemoryStore({key: make(bytes(value)) for key, value in contents(store).items()})


def test_drop_at_a_border_decodes_nothing_and_copies_no_file(tmp_path: Path) -> None:
    archive(tmp_path / "a")
    chunks = tmp_path / "a/t2m/c"
    inodes = [(chunks / f"{at}/0").stat().st_ino for at in (2, 3)]
    with xzarr3.trace() as trace:
        group = xzarr3.drop(tmp_path / "a", time=slice(None, "2020"))
    assert group["t2m"].shape == (24, 5)
    assert not trace.arrays.get("/t2m", {}).get("chunks_decoded")
    assert [(chunks / f"{at}/0").stat().st_ino for at in (0, 1)] == inodes
    assert sorted(path.name for path in chunks.iterdir()) == ["0", "1"]
    assert {path.stat().st_nlink for path in chunks.glob("*/*")} == {1}


@given(data=st.data())
@settings(max_examples=60)
def test_drop_of_any_grid_is_a_slice_of_numpy(data: Any) -> None:
    size, width = data.draw(st.integers(2, 30)), data.draw(st.integers(1, 4))
    number = data.draw(st.integers(1, size - 1))
    kind = data.draw(st.sampled_from(["regular", "shards", "lengths"]))
    options: dict[str, Any] = {"chunks": (data.draw(st.integers(1, 9)), 2)}
    if kind == "shards":
        options["shards"] = (options["chunks"][0] * data.draw(st.integers(1, 4)), 4)
    elif kind == "lengths":
        lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
        options["chunks"] = ([*lengths, size] if sum(lengths) < size else lengths, 2)
    axis = data.draw(st.integers(0, 1))
    if axis:
        options = {key: each[::-1] for key, each in options.items()}
    values = np.random.default_rng(size).integers(0, 2, (size, width)) * np.arange(1, width + 1)
    array = values.T if axis else values
    dims = ("x", "t") if axis else ("t", "x")
    store = xzarr3.MemoryStore()
    xzarr3.create_group(store)
    xzarr3.create_array(store, "a", data=array, dimension_names=dims, fill_value=0, **options)
    xzarr3.create_array(store, "other", data=np.arange(5), dimension_names=("y",))
    group = xzarr3.drop(store, t=slice(None, number))
    expected = array[:, number:] if axis else array[number:]
    np.testing.assert_array_equal(group["a"][...], expected)
    np.testing.assert_array_equal(group["other"][...], np.arange(5))
    group["a"].resize(tuple(2 * n for n in expected.shape))  # What lies beyond the end is the fill value.
    np.testing.assert_array_equal(group["a"][tuple(map(slice, expected.shape))], expected)
    assert group["a"][...].sum() == expected.sum()


def test_killed_at_every_change_it_is_old_or_new_and_the_same_call_goes_on() -> None:
    first, new = MortalStore(), xzarr3.MemoryStore()
    old = archive(first, 8)
    archive(new, 8)
    act: Callable[[Any], object] = lambda store: xzarr3.drop(store, time=slice(None, TIMES[17]))  # noqa: E731
    act(new)
    states = set()
    for store, killed in killed_everywhere(first, act):
        if killed:
            forget_process()
            try:
                found = opened(store, chunks=None).load()
            except xzarr3.Xzarr3Error as error:
                states.add(type(error).__name__)
            else:
                states.add(found.sizes["time"])
                xr.testing.assert_identical(found, old.isel(time=slice(48 - found.sizes["time"], None)))
            act(store)
        assert values(store) == values(new)
        assert left(store) == []
    assert {48, 30} <= states


def test_a_number_that_was_dropped_before_a_kill_is_not_dropped_again() -> None:
    first = MortalStore()
    xzarr3.create_group(first)
    xzarr3.create_array(first, "a", data=np.arange(48), chunks=10, dimension_names=("x",))
    lengths = []
    for store, killed in killed_everywhere(first, lambda store: xzarr3.drop(store, x=slice(None, 10))):
        if killed:
            forget_process()
            with contextlib.suppress(ConflictError):
                xzarr3.drop(store, x=slice(None, 10))
            assert left(store) == []
            lengths.append(xzarr3.open_array(store, "a").shape[0])
    assert 38 in lengths
    assert lengths.index(28) == len(lengths) - 1  # Nothing was left to do.


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_at_random_points_in_a_directory(tmp_path: Path) -> None:
    def act(target: Path) -> None:
        xzarr3.drop(target, time=slice(None, TIMES[17]), threads=1)

    old = archive(tmp_path / "whole", 8)
    calls = killed_at_call(-1, lambda: act(tmp_path / "whole"))
    whole, chosen = values(xzarr3.LocalStore(tmp_path / "whole")), random.Random(3)
    for number in range(12):
        target = tmp_path / str(number)
        archive(target, 8)
        killed_at_call(chosen.randrange(calls // 3, calls), lambda target=target: act(target))
        found = opened(target, chunks=None).load()
        assert found.sizes["time"] in (48, 30)
        xr.testing.assert_identical(found, old.isel(time=slice(48 - found.sizes["time"], None)))
        act(target)
        assert values(xzarr3.LocalStore(target)) == whole
        assert left(xzarr3.LocalStore(target)) == []


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_values_set_meanwhile_are_not_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(kind, tmp_path)
    archive(store)

    def change() -> None:
        xzarr3.open_array(store, "t2m", mode="r+")[40, 0] = 99.0

    disturb(monkeypatch, change)
    with pytest.raises(xzarr3.ConflictError, match="another writer has changed"):
        xzarr3.drop(store, time=slice(None, "2020"))
    monkeypatch.undo()
    assert opened(store).t2m[40, 0] == 99.0
    assert opened(store).sizes["time"] == 48
    xzarr3.drop(store, time=slice(None, "2020"))
    assert opened(store).t2m[16, 0] == 99.0
    assert left(store) == []


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_an_append_meanwhile_raises_and_loses_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(kind, tmp_path).with_traits(conflict_deadline=0.2)
    before = archive(store)
    more = (
        before.drop_vars("area")
        .isel(time=slice(2))
        .assign_coords(time=xr.date_range("2023-01-01", periods=2, freq="MS"))
    )
    raised = []

    def append() -> None:
        try:
            xzarr3.to_zarr(more, store, append_dim="time")
        except xzarr3.Xzarr3Error as error:
            raised.append(error)

    disturb(monkeypatch, append)
    xzarr3.drop(store, time=slice(None, "2020"))
    monkeypatch.undo()
    assert len(raised) == 1
    xzarr3.to_zarr(more, store, append_dim="time")
    assert opened(store).sizes["time"] == 26


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


@pytest.mark.slow
def test_drop_in_s3(s3_server: Any) -> None:
    store = xzarr3.ObjectStore(f"s3://{s3_server.bucket()}/x", storage_options=s3_server.storage_options)
    before = archive(store)
    xzarr3.drop(store, time=slice(None, "2020"))
    xr.testing.assert_identical(opened(store).load(), before.isel(time=slice(24, None)))
    assert left(store) == []


def test_what_is_absent_or_nothing() -> None:
    store = xzarr3.MemoryStore()
    archive(store)
    keys = contents(store)
    assert xzarr3.drop(store, time=slice(None, "2000"))["t2m"].shape == (48, 5)
    assert contents(store) == keys


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, xzarr3.ArgumentError, "found 0 dimensions"),
        ({"time": slice(None, "2019"), "lat": slice(None, 2)}, xzarr3.ArgumentError, "found 2 dimensions"),
        ({"tme": slice(None, "2019")}, xzarr3.ArgumentError, "no dimension 'tme'.*did you mean 'time'"),
        ({"time": "2019"}, xzarr3.ArgumentTypeError, "a slice with an end"),
        ({"time": slice("2019", "2020")}, xzarr3.ArgumentTypeError, "a slice with an end"),
        ({"time": slice(None, None, 2)}, xzarr3.ArgumentTypeError, "a slice with an end"),
        ({"time": slice(None, "soon")}, xzarr3.ArgumentError, "does not select along the coordinate 'time'"),
        ({"time": slice(None, "2030")}, xzarr3.ArgumentError, "cannot drop 48 of the 48"),
        ({"nv": slice(None, "2")}, xzarr3.ArgumentTypeError, "no coordinate"),
    ],
)
def test_misuse_names_what_is_accepted(given: Any, error: type[Exception], text: str) -> None:
    store = xzarr3.MemoryStore()
    archive(store)
    xzarr3.create_array(store, "flags", data=np.zeros(3), dimension_names=("nv",))
    keys = contents(store)
    with pytest.raises(error, match=text):
        xzarr3.drop(store, given)
    assert contents(store) == keys


def test_arrays_of_different_lengths_are_refused() -> None:
    store = xzarr3.MemoryStore()
    archive(store)
    xzarr3.open_array(store, "t2m", mode="r+").resize((50, 5))
    with pytest.raises((xzarr3.ConflictError, ValueError), match="length"):
        xzarr3.drop(store, time=slice(None, "2019"))


@pytest.mark.parametrize("kind", ["memory", "directory", "waiting"])
@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
def test_what_was_opened_before_does_not_take_old_indices_for_new_ones(
    kind: str, zarr_format: Any, tmp_path: Path
) -> None:
    """An append has given the arrays their old length again, as in an archive that rolls."""
    store = WaitingStore() if kind == "waiting" else store_of(kind, tmp_path)
    before = archive(store, zarr_format=zarr_format)
    lazy, tasks = opened(store, chunks=None), opened(store, chunks={})
    array = xzarr3.open_array(store, "t2m", mode="r+")
    unpickled = pickle.loads(pickle.dumps(array))
    xzarr3.drop(store, time=slice(None, "2019"))
    more = before.isel(time=slice(12)).assign_coords(time=xr.date_range("2023-01-01", periods=12, freq="MS"))
    xzarr3.to_zarr(more[["t2m"]], store, append_dim="time", consolidated=zarr_format != "3-draft")
    now = opened(store, chunks=None).load()
    assert now.sizes == before.sizes
    for use in (
        lambda: lazy.t2m[0].load(),
        lambda: tasks.t2m.compute(scheduler="sync"),
        lambda: array[:],
        lambda: array[0, 0],
        lambda: unpickled[0, 0],
        lambda: array.__setitem__(0, 1),
    ):
        with pytest.raises(ChangedError, match=r"'/t2m'.*since it was opened.*dropped.*open it again"):
            use()
    xr.testing.assert_identical(opened(store, chunks=None).load(), now)
    xr.testing.assert_equal(lazy.area.load(), before.area)
    array.append(np.zeros((1, 5)))
    assert xzarr3.open_array(store, "t2m").shape == (49, 5)
