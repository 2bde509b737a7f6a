"""``to_zarr(prepend_dim=...)`` against xarray and numpy; killed, disturbed and misused."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
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
import xzarr3.xarray
from xzarr3 import ChangedError, ConflictError, to_zarr
from xzarr3.dtypes import Optional, parse_dtype
from xzarr3.xarray import prepend

CHANGES = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def first(number: int) -> xr.Dataset:
    return months().isel(time=slice(number))


def archive(store: Any, number: int, chunk: Any = 12, **options: Any) -> None:
    """Store what follows the first months; times count from the first one that is stored."""
    encoding = {
        "t2m": {"chunks": (chunk, 2)},
        "time": {"units": f"days since {TIMES[number]:%Y-%m-%d}", "dtype": "int32"},
    }
    to_zarr(months().isel(time=slice(number, None)), store, encoding=encoding, **options)


def read(store: Any, **options: Any) -> xr.Dataset:
    return opened(store, chunks=None, **options).load()


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
@pytest.mark.parametrize(("chunk", "number"), [(12, 24), (12, 17), slow(7, 1), slow(48, 47)])
@pytest.mark.parametrize("block", [None, 5])
def test_the_archive_is_as_if_it_had_been_written_at_once(
    kind: str, zarr_format: Any, chunk: int, number: int, block: int | None, tmp_path: Path
) -> None:
    store = store_of(kind, tmp_path)
    archive(store, number, chunk, zarr_format=zarr_format)
    given = first(number) if block is None else first(number).chunk(time=block, lat=3)
    group = to_zarr(given, store, prepend_dim="time")
    assert group["t2m"].shape == (48, 5)
    after = read(store)
    xr.testing.assert_identical(after, months())
    assert after.t2m.encoding["chunks"] == (chunk, 2)
    assert after.time.encoding["units"] == f"days since {TIMES[number]:%Y-%m-%d}"
    assert xzarr3.check(store).ok
    assert left(store) == []
    if zarr_format != "3-draft" and kind == "directory":
        xr.testing.assert_identical(xr.open_zarr(store.root, chunks=None).load(), months())


def test_whole_chunks_are_neither_decoded_nor_copied(tmp_path: Path) -> None:
    archive(tmp_path / "a", 24)
    chunks = tmp_path / "a/t2m/c"
    inodes = [(chunks / f"{at}/0").stat().st_ino for at in (0, 1)]
    with xzarr3.trace() as trace:
        to_zarr(first(24), tmp_path / "a", prepend_dim="time")
    assert not trace.arrays.get("/t2m", {}).get("chunks_decoded")
    assert [(chunks / f"{at}/0").stat().st_ino for at in (2, 3)] == inodes
    assert {path.stat().st_nlink for path in chunks.glob("*/*")} == {1}
    xr.testing.assert_identical(read(tmp_path / "a"), months())


def test_a_grid_of_several_lengths_gets_a_first_chunk(tmp_path: Path) -> None:
    archive(tmp_path / "a", 17, (12, 7, 12))
    with xzarr3.trace() as trace:
        to_zarr(first(17), tmp_path / "a", prepend_dim="time")
    assert not trace.arrays.get("/t2m", {}).get("chunks_decoded")
    along = xzarr3.open_array(tmp_path / "a", "t2m").metadata.chunk_grid.axes[0]
    assert along.lengths(48) == (17, 12, 7, 12)
    xr.testing.assert_identical(read(tmp_path / "a"), months())


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


@given(data=st.data())
@settings(max_examples=120)
def test_arrays_of_any_chunks_are_joined_as_by_numpy(data: Any) -> None:
    size, number = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 25))
    rng = np.random.default_rng(size)
    store = xzarr3.MemoryStore()
    xzarr3.create_group(store)
    expected, new = {}, {}
    for name in ("a", "b")[: data.draw(st.integers(1, 2))]:
        whole = rng.integers(0, 2, (number + size, 4)) * np.arange(1, 5)
        options, dims = drawn_chunks(data, size), ("t", "x")
        if data.draw(st.booleans()):
            options, dims = {key: each[::-1] for key, each in options.items()}, ("x", "t")
        old = whole[number:] if dims[0] == "t" else whole[number:].T
        xzarr3.create_array(store, name, data=old, dimension_names=dims, fill_value=0, **options)
        expected[name] = whole if dims[0] == "t" else whole.T
        block = data.draw(st.integers(0, 6))
        given = da.from_array(whole[:number], chunks=(block, 3)) if block else whole[:number]
        new[name] = (("t", "x"), given)
    xzarr3.create_array(store, "other", data=np.arange(5), dimension_names=("y",))
    group = to_zarr(xr.Dataset(new), store, prepend_dim="t")
    for name, whole in expected.items():
        np.testing.assert_array_equal(group[name][...], whole)
        array = xzarr3.open_array(store, name, mode="r+")
        array.resize(tuple(2 * n for n in whole.shape))  # What lies beyond the end is the fill value.
        assert array[...].sum() == whole.sum()
    np.testing.assert_array_equal(group["other"][...], np.arange(5))
    assert xzarr3.check(store, decode="all").ok


@given(data=st.data())
@settings(max_examples=60)
def test_what_was_put_before_is_dropped_again(data: Any) -> None:
    size, number = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    store = xzarr3.MemoryStore()
    xzarr3.create_group(store)
    old = np.random.default_rng(size).integers(0, 9, (size, 4))
    xzarr3.create_array(store, "a", data=old, dimension_names=("t", "x"), **drawn_chunks(data, size))
    to_zarr(xr.Dataset({"a": (("t", "x"), np.ones((number, 4), int))}), store, prepend_dim="t")
    np.testing.assert_array_equal(xzarr3.drop(store, t=slice(None, number))["a"][...], old)
    np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], old)


# Killed


def prepended(store: Any) -> object:
    return to_zarr(first(17), store, prepend_dim="time")


def test_killed_at_every_change_it_is_old_or_new_and_repeated_it_is_there_once() -> None:
    begun, new = MortalStore(), xzarr3.MemoryStore()
    archive(begun, 17, 8)
    archive(new, 17, 8)
    prepended(new)
    states = set()
    for store, killed in killed_everywhere(begun, prepended):
        if killed:
            forget_process()
            try:
                found = read(store)
            except xzarr3.Xzarr3Error as error:
                states.add(type(error).__name__)
            else:
                states.add(found.sizes["time"])
                xr.testing.assert_identical(found, months().isel(time=slice(48 - found.sizes["time"], None)))
            with contextlib.suppress(xzarr3.ArgumentError):  # It is there already.
                prepended(store)
            with pytest.raises(xzarr3.ArgumentError, match="would be there twice"):
                prepended(store)
            xzarr3.drop(
                store, time=slice(None, "2000")
            )  # Takes the leases of the lengths, and drops nothing.
        assert values(store) == values(new)
        assert left(store) == []
    assert {48, 31} <= states


def test_killed_without_labels_it_is_not_repeated_by_mistake() -> None:
    begun = MortalStore()
    xzarr3.create_group(begun)
    xzarr3.create_array(begun, "a", data=np.arange(10, 58), chunks=10, dimension_names=("x",))
    act: Callable[[Any], object] = lambda store: to_zarr(  # noqa: E731
        xr.Dataset({"a": ("x", np.arange(10))}), store, prepend_dim="x"
    )
    lengths = []
    for store, killed in killed_everywhere(begun, act):
        if killed:
            forget_process()
            with contextlib.suppress(ConflictError):
                act(store)
            found = xzarr3.open_array(store, "a")[:]
            lengths.append(len(found))
            np.testing.assert_array_equal(found[-58:], np.arange(58)[-len(found) :])
    done = lengths.index(68)  # From there on all was done, and only leases of lengths were left.
    assert set(lengths[:done]) == {48, 58}  # Of 48, the error has told that nothing was put before them.
    assert lengths[done:] == [68] * len(lengths[done:])
    assert len(lengths) - done <= 2


@CHANGES
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_at_random_points_in_a_directory(tmp_path: Path) -> None:
    def act(target: Path) -> None:
        to_zarr(first(17), target, prepend_dim="time")

    archive(tmp_path / "whole", 17, 8)
    calls = killed_at_call(-1, lambda: act(tmp_path / "whole"))
    whole, chosen = values(xzarr3.LocalStore(tmp_path / "whole")), random.Random(3)
    for number in range(16):
        target = tmp_path / str(number)
        archive(target, 17, 8)
        killed_at_call(chosen.randrange(calls // 3, calls), lambda target=target: act(target))
        found = read(target)
        assert found.sizes["time"] in (48, 31)
        xr.testing.assert_identical(found, months().isel(time=slice(48 - found.sizes["time"], None)))
        with contextlib.suppress(xzarr3.ArgumentError):
            act(target)
        assert values(xzarr3.LocalStore(target)) == whole
        assert left(xzarr3.LocalStore(target)) == []


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_a_task_that_fails_leaves_what_was_there(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    archive(store, 17)
    before = values(store)

    def fail(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0] == 2:
            raise ZeroDivisionError
        return block

    new = first(17).chunk(time=4)
    new["t2m"].data = new.t2m.data.map_blocks(fail, dtype=float)
    with pytest.raises(ZeroDivisionError):
        to_zarr(new, store, prepend_dim="time")
    assert values(store) == before
    assert left(store) == []
    prepended(store)
    xr.testing.assert_identical(read(store), months())


@pytest.mark.slow
def test_blocks_are_computed_in_other_processes(tmp_path: Path) -> None:
    archive(tmp_path / "a", 17)
    new = first(17).chunk(time=4)
    to_zarr(new, tmp_path / "a", prepend_dim="time", chunkmanager_store_kwargs={"scheduler": "processes"})
    xr.testing.assert_identical(read(tmp_path / "a"), months())


# Other writers and readers


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_values_set_meanwhile_are_not_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(kind, tmp_path)
    archive(store, 24)

    def change() -> None:
        xzarr3.open_array(store, "t2m", mode="r+")[20, 0] = 99.0

    disturb(monkeypatch, change)
    with pytest.raises(ConflictError, match="another writer has changed"):
        to_zarr(first(24), store, prepend_dim="time")
    monkeypatch.undo()
    assert opened(store).sizes["time"] == 24
    to_zarr(first(24), store, prepend_dim="time")
    assert opened(store).t2m[44, 0] == 99.0
    assert left(store) == []


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("way", ["append_dim", "prepend_dim"])
def test_another_append_meanwhile_raises_and_loses_nothing(
    kind: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(kind, tmp_path).with_traits(conflict_deadline=0.2)
    archive(store, 24)
    later = xr.date_range("2023-01-01" if way == "append_dim" else "2018-11-01", periods=2, freq="MS")
    more = first(2).assign_coords(time=later)
    raised = []

    def append() -> None:
        try:
            to_zarr(more, store, **{way: "time"})
        except xzarr3.Xzarr3Error as error:
            raised.append(error)

    disturb(monkeypatch, append)
    to_zarr(first(24), store, prepend_dim="time")
    monkeypatch.undo()
    assert len(raised) == 1
    to_zarr(more, store, **{way: "time"})
    expected = [months(), more] if way == "append_dim" else [more, months()]
    xr.testing.assert_identical(read(store), xr.concat(expected, "time", data_vars="minimal"))


@pytest.mark.parametrize("what", ["longer", "gone", "made"])
def test_what_changes_after_the_plan_was_made_is_a_conflict(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = xzarr3.MemoryStore()
    archive(store, 24)
    put_before = prepend.put_before

    def change(*given: Any, **options: Any) -> Any:
        if what == "longer":
            later = xr.date_range("2023-01-01", periods=2, freq="MS")
            to_zarr(first(2).assign_coords(time=later), store, append_dim="time")
        elif what == "gone":
            del xzarr3.open_group(store, mode="r+")["area"]
        else:
            xzarr3.create_array(store, "new", data=np.arange(5.0), dimension_names=("lat",))
        return put_before(*given, **options)

    monkeypatch.setattr("xzarr3.xarray.write.put_before", change)
    new = first(24).assign(new=("lat", np.ones(5)))
    if what == "gone":  # It is compared when the blocks are computed.
        new["area"] = new.area.chunk()
    with pytest.raises(ConflictError, match="nothing was written"):
        to_zarr(new, store, prepend_dim="time")
    assert opened(store).sizes["time"] == (26 if what == "longer" else 24)
    assert left(store) == []


@pytest.mark.parametrize("kind", ["memory", "directory", "waiting"])
@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
def test_what_was_opened_before_does_not_take_old_indices_for_new_ones(
    kind: str, zarr_format: Any, tmp_path: Path
) -> None:
    store = WaitingStore() if kind == "waiting" else store_of(kind, tmp_path)
    archive(store, 24, zarr_format=zarr_format)
    lazy, tasks = opened(store, chunks=None), opened(store, chunks={})
    array = xzarr3.open_array(store, "t2m", mode="r+")
    to_zarr(first(24), store, prepend_dim="time")
    for use in (
        lambda: lazy.t2m[0].load(),
        lambda: tasks.t2m.compute(scheduler="sync"),
        lambda: array[:],
        lambda: array[0, 0],
        lambda: array.__setitem__(0, 1),
    ):
        with pytest.raises(ChangedError, match=r"'/t2m'.*others were put before.*open it again"):
            use()
    xr.testing.assert_equal(lazy.area.load(), months().area)
    xr.testing.assert_identical(read(store), months())


def test_lazy_values_of_the_archive_itself_are_put_before_it(tmp_path: Path) -> None:
    archive(tmp_path / "a", 24)
    earlier = opened(tmp_path / "a", chunks={}).isel(time=slice(24)).assign_coords(time=TIMES[:24])
    to_zarr(earlier, tmp_path / "a", prepend_dim="time")
    t2m = months().t2m.values[24:]
    np.testing.assert_array_equal(read(tmp_path / "a").t2m, np.concatenate([t2m, t2m]))


# What else is in a store


@pytest.mark.parametrize("zarr_format", [3, slow(2)])
def test_a_group_with_bounds_beside_other_groups(zarr_format: Any) -> None:
    times = xr.date_range("2019-01-01", periods=6, freq="MS")
    ds = xr.Dataset(
        {
            "a": ("time", np.arange(6)),
            "time_bnds": (("time", "nv"), np.array([times, times + np.timedelta64(1, "D")]).T),
        },
        {"time": ("time", times, {"bounds": "time_bnds"})},
    )
    store = xzarr3.MemoryStore()
    other, below = xr.Dataset({"c": ("time", np.arange(3))}), xr.Dataset({"b": ("time", np.arange(5))})
    tree = xr.DataTree.from_dict({"/x": ds.isel(time=slice(2, None)), "/y": other})
    to_zarr(tree, store, zarr_format=zarr_format, consolidated=True)
    to_zarr(below, store, group="x/low", mode="w-")
    to_zarr(ds.isel(time=slice(2)), store, group="x", prepend_dim="time")
    xr.testing.assert_identical(read(store, group="x"), ds)
    xr.testing.assert_identical(read(store, group="x/low"), below)
    xr.testing.assert_identical(read(store, group="y"), other)
    assert xzarr3.open_group(store).consolidated
    xr.testing.assert_identical(read(store, group="x", consolidated=True), ds)


@pytest.mark.parametrize("zarr_format", [3, slow(2), slow("3-draft")])
def test_new_variables_and_attributes_come_with_the_same_change(zarr_format: Any) -> None:
    store = xzarr3.MemoryStore()
    archive(store, 24, zarr_format=zarr_format)
    new = first(24).assign(height=("lat", np.ones(5)), flag=("lat", da.zeros(5))).assign_attrs(title="more")
    to_zarr(new, store, prepend_dim="time")
    expected = months().assign(height=("lat", np.ones(5)), flag=("lat", np.zeros(5)))
    xr.testing.assert_identical(read(store), expected.assign_attrs(title="more"))
    if zarr_format != "3-draft":
        xr.testing.assert_identical(read(store, consolidated=False), read(store, consolidated=True))


def test_where_nothing_is_it_is_the_first_write(tmp_path: Path) -> None:
    to_zarr(first(3), tmp_path / "a", prepend_dim="time")
    xr.testing.assert_identical(read(tmp_path / "a"), first(3))
    store = xzarr3.MemoryStore()
    to_zarr(first(3), store, prepend_dim="time")
    xr.testing.assert_identical(read(store), first(3))
    group = to_zarr(first(3), prepend_dim="time")
    xr.testing.assert_identical(read(group.store), first(3))
    bare = xzarr3.create_group(xzarr3.MemoryStore()).store
    to_zarr(first(3), bare, prepend_dim="time")
    xr.testing.assert_identical(read(bare), first(3))


def test_without_any_element_nothing_moves() -> None:
    store = xzarr3.MemoryStore()
    archive(store, 24)
    array = xzarr3.open_array(store, "t2m")
    to_zarr(first(0), store, prepend_dim="time")
    assert array[:].shape == (24, 5)
    xr.testing.assert_identical(read(store), months().isel(time=slice(24, None)))


def test_before_an_archive_without_elements() -> None:
    store = xzarr3.MemoryStore()
    to_zarr(first(0), store, encoding={"time": {"units": "days since 2000-01-01", "dtype": "int32"}})
    to_zarr(first(5), store, prepend_dim="time")
    xr.testing.assert_identical(read(store), first(5))


def test_labels_that_decrease_and_forced_ones() -> None:
    store = xzarr3.MemoryStore()
    falling = xr.Dataset({"a": ("x", np.arange(6))}, {"x": [6, 5, 4, 3, 2, 1]})
    to_zarr(falling.isel(x=slice(3, None)), store)
    to_zarr(falling.isel(x=slice(3)), store, prepend_dim="x")
    xr.testing.assert_identical(read(store), falling)
    with pytest.raises(
        xzarr3.ArgumentError, match=r"label 0 .*element 1 .*would precede 6, though .*decrease"
    ):
        to_zarr(falling.isel(x=slice(2)).assign_coords(x=[7, 0]), store, prepend_dim="x")
    to_zarr(falling, store, prepend_dim="x", check_labels=False)
    assert read(store).x.values.tolist() == [6, 5, 4, 3, 2, 1] * 2


def test_masked_text_and_packed_values() -> None:
    ds = xr.Dataset(
        {
            "packed": ("x", [1.5, np.nan, 3.0, 0.5, np.nan, 2.0]),
            "text": ("x", np.array(["a", "bcd", "", "é", "x" * 9, "q"], object)),
            "flag": ("x", np.array([True, False, True, True, False, False])),
        }
    )
    store = xzarr3.MemoryStore()
    packing = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -9}
    to_zarr(ds.isel(x=slice(4, None)), store, encoding={"packed": packing})
    to_zarr(ds.isel(x=slice(4)).drop_encoding(), store, prepend_dim="x")
    xr.testing.assert_identical(read(store), ds)
    with pytest.raises(ValueError, match="packed"):
        to_zarr(ds.isel(x=slice(4)).assign(packed=("x", np.full(4, 1e6))), store, prepend_dim="x")
    assert read(store).sizes["x"] == 6


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize(("inner", "number"), [("int32", 3), ("int32", 4), ("float32", 4)])
def test_elements_without_a_value(inner: str, number: int, chunks: Any) -> None:
    plain = np.arange(2, 14).reshape(4, 3)
    whole = np.ma.masked_array(plain.astype(inner), plain % 3 == 0)
    stores = [xzarr3.MemoryStore() for _ in range(3)]
    for store, part in zip(
        stores, (whole[:number], whole, np.ma.concatenate([whole[:number], whole])), strict=True
    ):
        group = xzarr3.create_group(store)
        dtype = Optional(parse_dtype(inner))
        group.create_array("v", data=part, dtype=dtype, chunks=(3, 2), dimension_names=("t", "x"))
    earlier, store, expected = opened(stores[0], chunks=chunks), *stores[1:]
    to_zarr(earlier, store, prepend_dim="t")
    assert repr(read(store).v.values) == repr(read(expected).v.values)
    assert contents(store).keys() == contents(expected).keys()


def test_times_before_the_reference_date() -> None:
    hours = xr.date_range("2020-01-01T01", periods=3, freq="h")
    earlier = xr.Dataset({"a": ("time", [1, 2])}, {"time": xr.date_range("2019-12-31", periods=2, freq="D")})
    for dtype in ("int32", "uint32"):
        store = xzarr3.MemoryStore()
        encoding = {"time": {"units": "hours since 2020-01-01", "dtype": dtype}}
        to_zarr(xr.Dataset({"a": ("time", [3, 4, 5])}, {"time": hours}), store, encoding=encoding)
        keys = contents(store)
        if dtype == "int32":
            to_zarr(earlier, store, prepend_dim="time")
            assert xzarr3.open_array(store, "time")[:].tolist() == [-24, 0, 1, 2, 3]
        else:
            with pytest.raises(ValueError, match="time"):
                to_zarr(earlier, store, prepend_dim="time")
            assert contents(store) == keys


def test_units_are_widened_in_the_same_change() -> None:
    days = xr.date_range("2020-01-02", periods=3, freq="D")
    store = xzarr3.MemoryStore()
    to_zarr(
        xr.Dataset({"a": ("time", [3, 4, 5])}, {"time": days}),
        store,
        encoding={"time": {"units": "days since 2020-01-02", "dtype": "int32"}},
    )
    earlier = xr.Dataset(
        {"a": ("time", [1, 2])}, {"time": np.array(["2020-01-01T06", "2020-01-01T12"], "M8[ns]")}
    )
    with pytest.raises(ValueError, match="widen_units"):
        to_zarr(earlier, store, prepend_dim="time")
    to_zarr(earlier, store, prepend_dim="time", widen_units=True)
    found = read(store)
    assert found.a.values.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(found.time, np.concatenate([earlier.time, days]))
    assert xzarr3.open_array(store, "time")[:].tolist() == [-18, -12, 0, 24, 48]


@pytest.mark.slow
def test_prepend_in_s3(s3_server: Any) -> None:
    store = xzarr3.ObjectStore(f"s3://{s3_server.bucket()}/x", storage_options=s3_server.storage_options)
    archive(store, 17)
    to_zarr(first(17).chunk(time=5), store, prepend_dim="time")
    xr.testing.assert_identical(read(store), months())
    assert left(store) == []


# Misuse


def _numbers(**other: Any) -> xr.Dataset:
    return first(2).assign(**other)


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        (first(2), {"mode": "a"}, r"mode='a' does not go with prepend_dim='time'.*leave mode out"),
        (first(2), {"append_dim": "time"}, r"append_dim='time' does not go"),
        (first(2), {"region": {"time": slice(2)}}, r"region=.* does not go"),
        (first(2).chunk(), {"compute": False}, r"compute=False does not go"),
        (first(2), {"prepend_dim": "tme"}, r"prepend_dim='tme' does not match.*did you mean 'time'"),
        (first(2), {"encoding": {"t2m": {"dtype": "f4"}}}, r"'t2m' already exists, but encoding"),
        (first(2).drop_vars("t2m"), {}, r"variables 't2m' have the dimension 'time' in the store"),
        (
            first(2)[["area"]].drop_vars("time", errors="ignore"),
            {},
            r"no variable of the dataset has the dim",
        ),
        (first(2).isel(lat=slice(3)), {}, r"'lat' has 3 here and 5 in the store"),
        (_numbers(more=("time", [1, 2])), {}, r"'more' is not in the store and would be shorter"),
        (_numbers(t2m=(("time", "lat"), np.full((2, 5), "x"))), {}, r"Mismatched dtypes for variable t2m"),
        (_numbers(area=("lat", np.ones(5))), {}, r"'area' have other values than in the store"),
        (_numbers(area=("lat", da.ones(5))), {}, r"'area' have other values than in the store"),
        (months().isel(time=slice(25)), {}, r"label 2021-01-01.*element 24.*there twice; the first label"),
        (
            months().isel(time=slice(23, None, -1)),
            {},
            r"would precede 2019-01-01, though the labels increase",
        ),
        (first(2).isel(time=[0, 0]), {}, r"would be there twice"),
        (xr.DataTree(first(2)), {}, r"prepend_dim is not for trees"),
        (first(2), {"zarr_format": 2}, r"has Zarr format 3"),
    ],
)
def test_misuse_changes_nothing_and_says_what_is_accepted(given: Any, options: Any, text: str) -> None:
    store = xzarr3.MemoryStore()
    archive(store, 24)
    keys = contents(store)
    with pytest.raises((ValueError, TypeError), match=text):
        to_zarr(given, store, **{"prepend_dim": "time", **options})
    assert contents(store) == keys


def test_a_dimension_that_an_array_has_twice_is_refused() -> None:
    store = xzarr3.MemoryStore()
    archive(store, 24)
    xzarr3.create_array(store, "twice", data=np.ones((24, 24)), dimension_names=("time", "time"))
    with pytest.raises(ValueError, match="twice"):
        to_zarr(first(2), store, prepend_dim="time")


def test_stores_that_commit_by_themselves_are_refused(tmp_path: Path) -> None:
    archive(tmp_path / "a.zip", 24)
    with pytest.raises(xzarr3.StoreCapabilityError, match=r"commits by itself.*mode='w'"):
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
        with pytest.raises(xzarr3.StoreCapabilityError, match=r"commits by itself.*mode='w'"):
            to_zarr(first(2), store, prepend_dim="time")
    assert [each.id for each in repo.ancestry(branch="main")] == commits


def test_the_accessor_passes_it_on() -> None:
    store = xzarr3.MemoryStore()
    archive(store, 24)
    first(24).xzarr3.to_zarr(store, prepend_dim="time")
    xr.testing.assert_identical(read(store), months())
    with pytest.raises(ValueError, match="prepend_dim is not for trees"):
        xr.DataTree(first(2)).xzarr3.to_zarr(store, prepend_dim="time")
