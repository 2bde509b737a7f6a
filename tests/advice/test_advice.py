"""``advise``: its requests are those of a server, and it prefers what suits the accesses."""

import io
import json
import re
import sys
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _recording import RecordingStore
from _slow import covering, slow
from _things import refused, refuses

import xzarr3
from xzarr3.advice import TARGETS, Advice
from xzarr3.advice.imagined import ImaginedStore
from xzarr3.advice.patterns import PATTERNS, accesses, roles

SMALL = (24, 40, 60)


def advise(**options: Any) -> Advice:
    return xzarr3.advise(**{"shape": (8760, 721, 1440), "dtype": "float32", **options})


def made(**options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), **options)


@pytest.mark.slow
def test_what_is_read_decides_the_chunks() -> None:
    maps, both, series = (
        advise(shape=(2920, 361, 720), access=access).best.chunks
        for access in ({"map": 1}, {"map": 1, "series": 1}, {"series": 1})
    )
    assert maps[0] < both[0] < series[0]
    assert maps[1] * maps[2] > both[1] * both[2] > series[1] * series[2]


@pytest.mark.slow
def test_where_times_are_appended_no_shard_holds_more_of_them_than_a_chunk() -> None:
    found = advise(access={"map": 1, "append": 5}).candidates
    sharded = [each for each in found if each.shards]
    assert sharded
    assert all(each.shards is not None and each.shards[0] == each.chunks[0] for each in sharded)
    appends = ((each, one) for each in found for one in each.predictions if one.access == "append")
    moved = {each.chunks[0]: one.bytes_moved for each, one in appends}
    assert moved[min(moved)] < moved[max(moved)]


@pytest.mark.parametrize("data_of", [lambda values: made(data=values, chunks=(8, 64, 64)), xr.DataArray])
def test_ratio_is_measured_with_the_codecs_of_the_data(data_of: Any) -> None:
    zeros, noise = np.zeros((64, 64, 64), "f4"), np.random.default_rng(0).random((64, 64, 64), np.float32)
    ratios = [xzarr3.advise(data_of(values)).ratio or 0 for values in (zeros, noise)]
    assert ratios[0] > 100
    assert 1 < ratios[1] < 2
    assert xzarr3.advise(made(data=zeros, compressors=None)).ratio == 1
    assert advise(shape=(64, 64)).ratio is None


def test_a_scan_counts_by_default() -> None:
    """Tiny chunks make a scan slow, so they are not advised."""
    usual, points = (advise(shape=(365, 90, 180), access=a) for a in (None, {"map": 1, "series": 1}))
    assert [each.access for each in usual.best.predictions] == ["map", "series", "scan"]
    assert usual.best.files < points.best.files


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1,), "int8"), ((10**9,), "complex128"), ((5, 1, 3), "S7"), ((2, 3, 4, 5, 6), "complex128")],
)
def test_any_shape(shape: tuple[int, ...], dtype: str) -> None:
    found = advise(shape=shape, dtype=dtype, access=dict.fromkeys(PATTERNS, 1))
    assert len(found.best.chunks) == len(shape)
    assert all(0 < chunk <= max(size, 1) for chunk, size in zip(found.best.chunks, shape, strict=True))


@pytest.mark.slow
def test_many_units_are_not_explained_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that are not compressed are, as only parts of them are read."""
    opened, call = [], ImaginedStore.open
    monkeypatch.setattr(ImaginedStore, "open", lambda self, key: opened.append(key) or call(self, key))
    found = xzarr3.advise(made(shape=(8760, 361, 720), dtype="f4", compressors=None, dimension_names="tyx"))
    assert found.best.chunks[0] < 8760
    assert 1000 < len(opened) < 100_000


def test_a_pattern_of_ones_own() -> None:
    found = advise(access={"week": (1.0, (slice(0, 168), slice(0, 90)))})
    (only,) = found.best.predictions
    assert (only.access, only.bytes_used) == ("week", 168 * 90 * 1440 * 4)


def test_a_field_without_time() -> None:
    """A region of a map is a quarter along both dimensions, whatever comes first."""
    field = xr.DataArray(np.zeros((1820, 2400), "int16"), dims=("latitude", "longitude"), name="height")
    found = xzarr3.advise(field, access={"region": 1, "map": 1, "sample": 1})
    used = {each.access: each.bytes_used // 2 for each in found.best.predictions}
    assert used == {"region": 455 * 600, "map": 1820 * 2400, "sample": 64 * 64}
    assert found.reads == {name: PATTERNS[name] for name in used}
    assert "region       a quarter along each horizontal dimension" in str(found)
    small = [each for each in found.candidates if np.prod(each.chunks) < 1e6]
    assert small
    assert all(max(each.chunks) <= 2 * min(each.chunks) for each in small)
    assert [each.access for each in xzarr3.advise(field).best.predictions] == ["map", "region"]
    kind, said = xzarr3.SelectionError, r"(?s)no dimension is time; give dims=.*map, region, scan, sample"
    refuses(lambda name: xzarr3.advise(field, access={name: 1}), ("series", "append"), kind, said)


@pytest.mark.parametrize(("shape", "names", "time", "space"), [
    ((9, 8, 7), None, 0, (1, 2)), ((9, 8), None, 0, (1,)), ((9,), None, 0, ()),
    ((9, 8), ["latitude", "longitude"], None, (0, 1)), ((9, 8), ["station", "level"], None, (0, 1)),
    ((9, 8), ["station", "forecast_time"], 1, (0,)), ((9,), ["latitude"], None, (0,)),
    ((9, 8, 7), ["lat", "lon", "time_counter"], 2, (0, 1)), ((9, 8, 7), ["member", "y", "x"], 0, (1, 2)),
    ((9, 8, 7), ["lat", "lon", "level"], None, (0, 1)),
    ((9, 8, 7, 6), ["member", "Time", "lat", "lon"], 1, (2, 3)),
])  # fmt: skip
def test_roles(shape: tuple[int, ...], names: list[str] | None, time: int | None, space: Any) -> None:
    assert roles(shape, names) == (time, space)


@pytest.mark.parametrize("name", ["", "..", "../x", "/", "a/b", "."])
def test_dimensions_of_any_name(name: str) -> None:
    assert xzarr3.advise(made(path="g/a", shape=(8, 4), dtype="f4", dimension_names=[name, "x"])).best.chunks


def far(path: Path) -> RecordingStore:
    """A store that many requests are made to at a time, as to one with latency."""
    return RecordingStore(xzarr3.LocalStore(path), concurrency=64, request_bytes=2**20, over_read=2.0)


@pytest.mark.parametrize("shards", [None, (12, 40, 60), (24, 40, 60)])
@pytest.mark.parametrize("compressors", [None, "zstd"])
@pytest.mark.parametrize("target", TARGETS)
def test_an_imagined_array_is_explained_as_a_real_one(
    tmp_path: Path, target: str, compressors: Any, shards: Any
) -> None:
    values = np.random.default_rng(0).random(SMALL)
    store: Any = far(tmp_path) if target == "s3" else xzarr3.LocalStore(tmp_path)
    real = xzarr3.create_array(store, data=values, chunks=(3, 10, 15), shards=shards, compressors=compressors)
    stored = sum(store.getsize(key) or 0 for key in store.list() if key.startswith("c/"))
    made = ImaginedStore(real.metadata, TARGETS[target], values.nbytes / stored).array
    wanted = accesses(dict.fromkeys(PATTERNS, 1), SMALL, roles(SMALL, None))
    for selection in (*(each.selection for each in wanted), (3,), (slice(None), 7, 9)):
        found, expected = (each.explain(selection, threads=1) for each in (made, real))
        for what in ("requests", "chunks", "units"):
            assert getattr(found, what) == getattr(expected, what), what
        assert found.bytes_moved == pytest.approx(expected.bytes_moved, rel=0.05 if compressors else 0)
        if target == "s3":
            with store.recorded() as requests:
                assert np.array_equal(real.get(selection, threads=1), values[selection])
            assert len(requests) == found.requests


@pytest.mark.parametrize("length", [1, 3, 24, 30, 100])
def test_appends_are_counted(length: int) -> None:
    """The requests on average are those of many appends one after another."""
    array = made(shape=(2400, 16, 16), dtype="f4", chunks=(length, 16, 4), compressors=None)
    present = xzarr3.advise(array, access={"append": 1}).present
    assert present is not None
    asked = sum(4 * (1 + (start % length > 0)) for start in range(length))
    assert present.predictions[0].requests == round(asked / length)


def test_the_advice_is_what_to_zarr_takes(tmp_path: Any) -> None:
    dims, values = ("time", "lat", "lon"), np.random.default_rng(0).random((40, 30, 50), np.float32)
    height = ("level", np.arange(4.0))
    dataset = xr.Dataset({"tas": (dims, values), "pr": (dims, 0 * values), "height": height})
    found = xzarr3.advise(dataset, access={"series": 1})
    assert found.variables == ("tas", "pr")
    group: Any = xzarr3.to_zarr(dataset, tmp_path / "a", encoding=found.encoding())
    assert [group[name].chunks for name in found.variables] == [found.best.chunks] * 2
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "a", engine="xzarr3").compute(), dataset)
    one = xzarr3.advise(dataset["pr"], access={"series": 1})
    assert one.variables == ("pr",)
    made(data=dataset["pr"].values, **one.options())


TRANSPOSED = [{"name": "transpose", "configuration": {"order": [2, 1, 0]}}]
PACKING = {"dtype": np.dtype("int16"), "scale_factor": 0.002, "add_offset": 270.0, "_FillValue": -32767}
PACKED = {**PACKING, "filters": TRANSPOSED}


def era5(number: int, *, packed: bool = True) -> xr.Dataset:
    """Values every six hours, with missing ones; packed into 16 bits, or of 32 bits."""
    rng = np.random.default_rng(0)
    values = 270 + 10 * np.sin(np.arange(36) / 6) + rng.normal(0, 0.2, (number, 18, 36))
    values[:, 3, 4] = np.nan
    ds = xr.Dataset(
        {"t2m": (("valid_time", "latitude", "longitude"), values), "sst": ("valid_time", values[:, 0, 0])},
        {"valid_time": np.datetime64("2020-01-01", "ns") + np.arange(number) * np.timedelta64(6, "h")},
    )
    ds["d2m"] = ds.t2m - 5
    for name in ("t2m", "d2m"):
        ds[name] = ds[name].astype("f8" if packed else "f4")
        ds[name].encoding = dict(PACKED) if packed else {"_FillValue": np.float32(1e20)}
    ds["d2m"].encoding["compressors"] = [{"name": "gzip", "configuration": {"level": 1}}]
    return ds


SOURCES = [
    ("dask", "series"), ("dask", "map"), slow("memory", "series"), slow("engine", "map"),
    slow("path", "series"), slow("store", "map"), slow("group", "series"), slow("array", "map"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "access"), SOURCES)
def test_encoding_keeps_packing_and_filters(source: str, access: str, tmp_path: Path) -> None:
    dataset = era5(400)
    here = str(tmp_path / "a")
    xzarr3.to_zarr(dataset, here, encoding={"t2m": {**PACKED, "chunks": (400, 18, 36)}})
    stored = xzarr3.open_dataset(here)
    data = {
        "memory": dataset, "dask": dataset.chunk(valid_time=100), "engine": stored, "path": here,
        "store": xzarr3.LocalStore(here), "group": xzarr3.open(here), "array": xzarr3.open(here, "t2m"),
    }[source]  # fmt: skip
    found = xzarr3.advise(data, access={access: 1}, target="s3")
    assert found.dtype == np.int16
    assert found.best.predictions[0].bytes_used == (400 if access == "series" else 18 * 36) * 2
    assert set(found.variables) == ({"t2m"} if source == "array" else {"t2m", "d2m"})
    written = xzarr3.to_zarr(stored, tmp_path / "b", encoding=found.encoding())
    copied = xzarr3.copy(here, tmp_path / "c", encoding=found.encoding())
    for group in (written, copied):
        for name in ("t2m", "d2m"):
            array = group[name]
            assert (array.dtype, array.attrs) == (np.int16, xzarr3.open(here, name).attrs)
            assert [codec.to_json() for codec in array.filters] == TRANSPOSED
            assert [codec.name for codec in array.compressors] == ["gzip" if name == "d2m" else "zstd"]
            np.testing.assert_array_equal(array[...], xzarr3.open(here, name)[...])
    assert written["t2m"].chunks == copied["t2m"].chunks == found.best.chunks


def test_netcdf_files_are_advised_on_as_they_would_be_stored(tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    dataset = era5(200).drop_encoding()
    for at in range(2):
        dataset.isel(valid_time=slice(100 * at, 100 * at + 100)).to_netcdf(
            tmp_path / f"{at}.nc", engine="netcdf4", encoding=dict.fromkeys(("t2m", "d2m"), PACKING)
        )
    opened = xr.open_mfdataset(str(tmp_path / "*.nc"), engine="netcdf4", chunks={"valid_time": 50})
    found = xzarr3.advise(opened)
    assert (found.dtype, found.target.name) == (np.dtype("int16"), "disk")
    assert found.present is None  # They are in no Zarr store.
    written = xzarr3.to_zarr(opened, tmp_path / "a", encoding=found.encoding())
    assert [written[name].dtype for name in ("t2m", "d2m")] == [np.int16] * 2
    xr.testing.assert_equal(xzarr3.open_dataset(tmp_path / "a").load(), opened.load())


def test_the_target_is_where_the_data_are(tmp_path: Path) -> None:
    xzarr3.to_zarr(era5(20), tmp_path / "a")
    stored = xzarr3.open_dataset(tmp_path / "a")
    assert xzarr3.advise(tmp_path / "a").target == TARGETS["disk"]
    for data in (stored, stored[["t2m"]] + 1, xr.open_dataset(tmp_path / "a", engine="xzarr3")):
        assert xzarr3.advise(data).target.name == ("disk" if data.encoding else "s3")
        assert xzarr3.advise(data, target="s3").target == TARGETS["s3"]
    memory = era5(20)
    for source, name in {None: "s3", "/data/era5.nc": "disk", "https://there/era5.nc": "s3"}.items():
        memory.encoding = {} if source is None else {"source": source}
        assert xzarr3.advise(memory).target.name == name
    for store, name in ((xzarr3.MemoryStore(), "disk"), (far(tmp_path / "a"), "s3")):
        assert xzarr3.advise(shape=SMALL, dtype="float32", target=store).target == TARGETS[name]


def test_a_layout_that_is_as_good_stays(tmp_path: Path) -> None:
    dataset = era5(400)
    first = xzarr3.advise(dataset, access={"map": 1, "series": 3})
    xzarr3.to_zarr(dataset, tmp_path / "a", encoding=first.encoding())
    for data in (tmp_path / "a", xzarr3.open_dataset(tmp_path / "a")):
        again = xzarr3.advise(data, access={"map": 1, "series": 3}, target="s3")
        assert again.best is again.present
        assert "the present layout is as good as the best one" in str(again)
        xzarr3.to_zarr(dataset, tmp_path / "b", mode="w", encoding=again.encoding())
        assert xzarr3.diff(tmp_path / "a", tmp_path / "b").ok


BEFORE = [(1, 18, 36), (1000, 18, 36), (20, 18, 36)]
QUICK = [("packed", before, False) for before in BEFORE]


@pytest.mark.parametrize(
    ("kind", "before", "is_far"), covering(["packed", "float32"], BEFORE, [False, True], quick=QUICK)
)
def test_the_advised_layout_answers_sooner_than_the_present_one(
    kind: str, before: tuple[int, ...], is_far: bool, tmp_path: Path
) -> None:
    """What it predicts is what is read, and costs less, unless it says that the present layout is as good."""
    dataset = era5(1000, packed=kind == "packed")[["t2m"]]
    own = dataset["t2m"].encoding
    xzarr3.to_zarr(dataset, tmp_path / "now", encoding={"t2m": {**own, "chunks": before}})
    there = far if is_far else xzarr3.LocalStore
    found = xzarr3.advise(there(tmp_path / "now"))
    assert found.present is not None
    xzarr3.to_zarr(dataset, tmp_path / "advised", encoding=found.encoding())
    spent: dict[str, list[float]] = {"now": [], "advised": []}
    for name, layout in {"now": found.present, "advised": found.best}.items():
        for one, selection in zip(layout.predictions, (np.s_[500], np.s_[:, 9, 18], np.s_[...]), strict=True):
            array = xzarr3.open_array(there(tmp_path / name), "t2m")
            with xzarr3.trace() as trace:
                array[selection]
            counts = trace.arrays["/t2m"]
            requests, moved = counts["get"] + counts["get_range"], counts["bytes_read"]
            assert requests == one.requests
            waits = -(-requests // found.target.at_once) * found.target.latency
            seconds = waits + (moved + one.decoded) / found.target.bandwidth
            spent[name].append(seconds + 0.002)
    least = [min(pair) for pair in zip(*spent.values(), strict=True)]
    now, advised = (sum(map(truediv, each, least)) for each in spent.values())
    assert advised < now or found.best is found.present


def test_the_largest_variable_decides() -> None:
    """Coordinates of their only dimension do not, nor do arrays without elements or dimensions."""
    dims, group = ("y", "x"), xzarr3.create_group(xzarr3.MemoryStore())
    values = {"t2m": (dims, np.zeros((30, 40))), "small": ("z", np.zeros(5)), "crs": ((), 0)}
    dataset = xr.Dataset({**values, "none": ("n", np.zeros(0))}, {"x": ("x", np.arange(40))})
    xzarr3.to_zarr(dataset, group.store, group="below")
    group.create_array("long", shape=(10**6,), dtype="f8", dimension_names=["long"])
    for data in (dataset, group):
        found = xzarr3.advise(data)
        assert (found.shape, found.variables) == ((30, 40), ("t2m",))
    refused(TypeError, "no array to advise on", lambda: xzarr3.advise(xzarr3.group()))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_encoding_of_times(zarr_format: Any, tmp_path: Path) -> None:
    """Dates and durations are read lazily, of which xarray takes data type and units or neither."""
    days = np.arange(60).reshape(3, 4, 5) * np.timedelta64(1, "D").astype("m8[ns]")
    for name, values in {"date": np.datetime64("2000-01-01", "ns") + days, "duration": days}.items():
        dataset = xr.Dataset({name: (("time", "y", "x"), values)})
        xzarr3.to_zarr(dataset, tmp_path / name, zarr_format=zarr_format)
        found = xzarr3.open_dataset(tmp_path / name)
        xzarr3.to_zarr(found, tmp_path / f"{name}-2", encoding=xzarr3.advise(found).encoding())
        xr.testing.assert_equal(xzarr3.open_dataset(tmp_path / f"{name}-2").compute(), dataset)


def test_it_shows_what_it_found() -> None:
    found = advise(shape=(730, 180, 360), access={"map": 0.6, "series": 0.4}, target="disk")
    text = str(found)
    assert (text.count("\n") < 12, max(map(len, text.splitlines())) < 200) == (True, True)
    for part in ("730 x 180 x 360", "map", "series", "requests", "assumed"):
        assert part in text
    said = json.loads(json.dumps(found.to_json()))["candidates"]
    assert said[0]["score"] <= said[-1]["score"]
    assert said[0]["chunks"] == list(found.best.chunks)


@pytest.mark.parametrize(("options", "error", "said"), [
    ({"access": {"maps": 1}}, xzarr3.SelectionError, "did you mean 'map'?"),
    ({"access": {"map": -1}}, xzarr3.SelectionError, "positive number"),
    ({"access": {}}, xzarr3.SelectionError, "names no pattern"),
    ({"target": "disc"}, ValueError, "did you mean 'disk'?"),
    ({"shape": ()}, ValueError, "has no values to divide"),
    ({"shape": (5, 0, 3)}, ValueError, "has no values to divide"),
    ({"shape": None}, TypeError, "give an array or a dataset"),
    ({"data": 5}, TypeError, "cannot advise on int"),
])  # fmt: skip
def test_what_cannot_be_advised_on(options: dict[str, Any], error: type[Exception], said: str) -> None:
    refused(error, re.escape(said), lambda: advise(**options))


@pytest.mark.slow
def test_plot_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    data = made(data=np.zeros((40, 30, 50), "f4"), chunks=(1, 30, 50))
    found = xzarr3.advise(data, access={"map": 1, "series": 1, "append": 1})
    figure = found.plot()
    for panel in figure.axes:
        assert (len(panel.patches), panel.get_xscale()) == (len(found.shown) * 3, "log")
    requests = [each.predictions[at].requests for at in range(3) for each in found.shown]
    assert [bar.get_width() for bar in figure.axes[0].patches] == requests
    label = figure.axes[0].get_yticklabels()[0].get_text()
    assert re.match("(?s)present, score.*1x30x50", label)
    figure.savefig(io.BytesIO())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused(ImportError, "pip install matplotlib", found.plot)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "access", [{"a$b_$^{": (1, (slice(0, 2),)), "_x": (1, (0,))}, {"nothing": (1, (slice(0, 0),))}]
)
def test_plot_of_patterns_of_any_name(access: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    figure = xzarr3.advise(shape=(10, 10), dtype="f4", access=access).plot()
    figure.savefig(io.BytesIO())
    names = [label.get_text().replace("\\$", "$") for label in figure.legends[0].get_texts()]
    assert names == list(access)
