"""``ds.xzarr3.explain()`` says beforehand what a trace counts when the same is loaded or computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _slow import covering, slow_but

import xzarr3
import xzarr3.xarray
from xzarr3.io import executor as io_executor
from xzarr3.io.shards import _indexes
from xzarr3.stores.local import files
from xzarr3.xarray.explain import LazyExplanation

pytestmark = pytest.mark.filterwarnings("ignore:The specified chunks separate:UserWarning")

KINDS = ["local", "memory", "object"]
DIMS, AT = ["time", "lat", "lon"], {"dims": "place"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"chunks": (30, 20, 15), "compressors": None},
    "zstd": {"chunks": (30, 20, 15)},
    "shards": {"chunks": (30, 20, 15), "shards": (60, 20, 45)},
    "plain shards": {"chunks": (30, 20, 15), "shards": (60, 20, 45), "compressors": None},
}
SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "all": lambda ds: ds,
    "slices": lambda ds: ds.isel(time=slice(5, 50), lon=slice(3, 40, 7)),
    "integer": lambda ds: ds.isel(lat=-1),
    "labels": lambda ds: ds.sel(time=slice("2001-01-10", "2001-02-09"), lat=4, method=None),
    "chained": lambda ds: ds.isel(time=slice(10, 110)).isel(time=slice(0, None, 30)).sel(lon=[3.0, 44.0]),
    "backwards": lambda ds: ds.isel(time=slice(None, None, -40)),
    "points": lambda ds: ds.sel(lat=xr.DataArray([1, 30, 12], **AT), lon=xr.DataArray([0, 44, 7], **AT)),
    "transposed": lambda ds: ds.isel(lat=slice(0, 12)).transpose("lon", ...),
    "nothing": lambda ds: ds.isel(time=slice(0, 0)),
}


@pytest.fixture(params=slow_but(KINDS, "local"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> xzarr3.Store:
    return empty(request.param, tmp_path)


def empty(kind: str, folder: Path) -> xzarr3.Store:
    """A store that holds nothing."""
    if kind == "object":
        return xzarr3.ObjectStore(pytest.importorskip("obstore").store.MemoryStore())
    return xzarr3.LocalStore(folder / "a.zarr") if kind == "local" else xzarr3.MemoryStore()


def written(store: xzarr3.Store, layout: str) -> xzarr3.Store:
    """A dataset with a plain variable, a packed one and one of times; of each, a part is absent."""
    values = np.random.default_rng(0).integers(1, 99, (120, 40, 45)).astype("i4")
    values[60:, :20] = 0
    days, packing = {"units": "days since 2001-01-01"}, {"scale_factor": 0.5, "add_offset": 3.0}
    large: dict[str, Any] = {"fill_value": 0, **LAYOUTS[layout]}
    root = xzarr3.create_group(store)
    for name, data, dims, options in (
        ("t2m", values, DIMS, large), ("packed", values, DIMS, {**large, "attributes": packing}),
        ("when", values, DIMS, {**large, "attributes": days}),
        ("time", np.arange(120), ["time"], {"attributes": {**days, "calendar": "standard"}}),
        ("lat", np.arange(40), ["lat"], {}), ("lon", np.arange(45.0), ["lon"], {}),
        ("area", np.ones((40, 45)), ["lat", "lon"], {"chunks": (20, 45)}),
    ):  # fmt: skip
        root.create_array(name, data=data, dimension_names=dims, **options)
    return store


def check(lazy: Any, load: Callable[[], Any]) -> LazyExplanation:
    """Compare what is explained with what a trace counts, array by array."""
    _indexes.__init__()  # type: ignore[misc]
    found: LazyExplanation = lazy.xzarr3.explain()
    with xzarr3.trace() as t, dask.config.set(scheduler="sync"):  # Threads may ask for an index together.
        load()
    asked = {path: numbers for path, numbers in t.arrays.items() if path and numbers["requests"]}
    touched = {each.array: each for each in found.arrays if each.units}
    assert touched.keys() == asked.keys()
    for path, numbers in asked.items():
        each, data = touched[path], numbers["get"] + numbers["get_range"]
        if not (numbers["head"] and each.absent):  # An absent value may be found by looking for it.
            assert each.requests == data - max(numbers["absent"] - numbers["head"], 0)
        assert each.requests <= data
        assert each.bytes_moved == numbers["bytes_read"]
        assert bool(each.absent) == bool(numbers["chunks_absent"])
        assert each.index_requests <= numbers["indexes_read"]
    assert found.bytes_moved == sum(numbers["bytes_read"] for numbers in asked.values())
    return found


GROUPED = {"time": 30, "lat": 40}
QUICK: list[Any] = [("plain shards", chunks, "local") for chunks in (None, GROUPED)]


@pytest.mark.parametrize(
    ("layout", "chunks", "kind"), covering(LAYOUTS, [None, {}, GROUPED], KINDS, quick=QUICK)
)
def test_what_is_explained_is_what_is_read(tmp_path: Path, layout: str, chunks: Any, kind: str) -> None:
    place = written(empty(kind, tmp_path), layout)
    for name, select in SELECTIONS.items():
        ds = select(xr.open_dataset(place, engine="xzarr3", chunks=chunks, decode_timedelta=False))
        found = check(ds, ds.compute)
        assert set(found.in_memory) >= set(ds.indexes), name
        used = sum(variable.size * 4 for variable in (ds.t2m, ds.packed, ds.when)) if chunks is None else 0
        assert not used or found.bytes_used == used + (ds.area.nbytes if ds.area.size else 0), name


@pytest.mark.parametrize("layout", ["zstd", "plain shards"])
def test_what_tasks_of_dask_read(place: xzarr3.Store, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SETTLED", 0)  # So that the indexes of new files are kept, too.
    written(place, layout)
    ds, grouped = xr.open_dataset(place, engine="xzarr3", chunks={}), xzarr3.open_dataset(place)
    for lazy in (
        ds[["t2m"]] * 2 + 1, grouped.isel(time=slice(7, 90)).mean("time"), ds[["packed"]].chunk(time=120),
        ds[["t2m", "packed"]].isel(lat=[1, 3, 39]).sum(),
        ds.assign(double=ds.t2m * 2, part=ds.t2m.isel(time=slice(0, 3)).max("time"))[["double", "part"]],
        xr.open_dataset(place, engine="xzarr3")[["packed", "when"]].chunk(time=50).isel(time=slice(3, 60)),
        ds[["t2m"]].coarsen(time=4).mean().sel(lat=slice(3, 9)),
    ):  # fmt: skip
        check(lazy, lazy.compute)


@pytest.mark.parametrize("steps", [1, 4])
def test_explain_a_slice_of_several_files(tmp_path: Path, steps: int) -> None:
    for at in range(3):
        values = {"t": (("time", "x"), np.ones((steps, 50))), "hours": ("time", np.ones(steps))}
        ds = xr.Dataset(values, coords={"time": at * steps + np.arange(steps), "lat": ("x", np.arange(50.0))})
        xzarr3.to_zarr(ds, tmp_path / f"{at}.zarr", encoding={"t": {"chunks": (steps, 25)}})
    ds = xr.open_mfdataset(str(tmp_path / "*.zarr"), engine="xzarr3")
    for select, reads in (
        (lambda ds: ds[["t"]].isel(time=slice(0, 2)).drop_vars("lat"), 4 if steps == 1 else 2),
        (lambda ds: ds.hours.isel(time=slice(0, 2)), 2 if steps == 1 else 1),
        (lambda ds: ds.isel(time=slice(0, 2)).mean(), None),
        (lambda ds: (ds - ds.isel(time=0)).isel(time=slice(0, 1)), None),
    ):
        lazy = select(ds)
        with xzarr3.trace() as trace:
            lazy.compute()
        asked = sum(numbers["requests"] for path, numbers in trace.arrays.items() if path)
        assert lazy.xzarr3.explain().requests == asked
        assert reads in (None, asked)


def test_a_variable_by_itself_and_several_that_share_an_array(place: xzarr3.Store) -> None:
    written(place, "zstd")
    ds = xr.open_dataset(place, engine="xzarr3")
    array = ds.t2m.isel(time=3)
    found = check(array, array.compute)
    assert [each.variables for each in found.arrays] == [("t2m",), ("area",)] or "area" not in array.coords
    shared = ds[["t2m"]].assign(again=ds.t2m.variable)
    found = check(shared, shared.load)
    (each,) = found.arrays
    assert each.variables == ("t2m", "again")
    assert found["again"] == found["t2m"] == found.total
    lazy = xr.open_dataset(place, engine="xzarr3", chunks={})
    both = xr.Dataset({"more": lazy.t2m + 1, "less": lazy.t2m - 1, "other": lazy.packed * 2})
    found = check(both, both.compute)
    assert [each.variables for each in found.arrays] == [("more", "less"), ("other",)]
    assert found["more"]["requests"] + found["other"]["requests"] == found.requests
    assert found["time"]["requests"] == 0
    with pytest.raises(KeyError, match="nothing"):
        found["nothing"]
    ds.packed.load()
    assert "packed" in ds.xzarr3.explain().in_memory
    xzarr3.to_zarr(xr.Dataset({"ice": ("x", np.ones(9))}), place, group="sea", mode="a", consolidated=False)
    for chunks in (None, {}):
        tree = xr.open_datatree(place, engine="xzarr3", chunks=chunks)
        assert check(tree, tree.load)["sea/ice"]["bytes_used"] == 72


def test_what_others_read_is_told_apart(tmp_path: Path) -> None:
    zeros = xr.Dataset({"made": ("x", da.zeros(6, chunks=3)), "loaded": ("x", np.ones(6))})
    zeros.to_netcdf(tmp_path / "other.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "other.nc", engine="scipy") as other:
        found = zeros.assign(other=other.loaded.variable).xzarr3.explain()
    assert (found.in_memory, found.elsewhere) == (("loaded",), ("made", "other"))
    assert str(found).splitlines()[-1] == "not read by xzarr3: made, other"
    assert found["made"]["requests"] == found.requests == 0


@pytest.mark.parametrize("chunks", [None, {}])
def test_explaining_decodes_nothing_and_computes_nothing(place: xzarr3.Store, chunks: Any) -> None:
    written(place, "zstd")
    ds = xr.open_dataset(place, engine="xzarr3", chunks=chunks, decode_timedelta=False)
    never = mock.Mock(side_effect=AssertionError("dask computes"))
    with xzarr3.trace() as t, dask.config.set(scheduler=never):
        assert ds.isel(time=slice(0, 70)).xzarr3.explain().requests > 0
    assert t.total["chunks_decoded"] == 0
    np.testing.assert_array_equal(ds.t2m.values, xzarr3.open_array(place, "t2m")[...])


def test_threads_that_share_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_executor, "_SMALL", 1)
    monkeypatch.setattr(io_executor, "_LOCKED", 1e-9)
    monkeypatch.setattr(files, "_SETTLED", 0)
    store = written(xzarr3.LocalStore(tmp_path / "a.zarr"), "shards")
    for chunks in (None, {}):
        ds = xr.open_dataset(store, engine="xzarr3", chunks=chunks)[["t2m"]].isel(lat=slice(0, 3))
        check(ds, ds.compute)


def test_text_and_html(tmp_path: Path) -> None:
    store = written(xzarr3.LocalStore(tmp_path / "a.zarr"), "zstd")
    found = xr.open_dataset(store, engine="xzarr3")[["t2m"]].isel(time=slice(0, 30)).xzarr3.explain()
    lines = str(found).splitlines()
    assert lines[0].split() == ["variable", "array", "reads", "chunks", "absent", "requests", "moved", "used"]
    assert lines[1].split()[:6] == ["t2m", "/t2m", "1", "6", "0", "6"]
    assert (lines[2].split()[0], lines[3][:11]) == ("total", "in memory: ")
    assert repr(found) == str(found)
    shown = found._repr_html_()
    assert "<svg" in shown
    assert 'class="xz-read"' in shown
