"""Many stores as one dataset: against xarray's own concatenation, and what is refused."""

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _graphs import calls_of
from _waiting import Count, WaitingStore

import xzarr3
from xzarr3 import ArgumentError, MemoryStore, MetadataError
from xzarr3.xarray import alike, coders
from xzarr3.xarray.alike import Retimed


def day(at: int) -> xr.Dataset:
    """One day of a small record."""
    t2m = np.random.default_rng(at).normal(280, 5, (4, 3, 5)).astype("f4")
    return xr.Dataset({
        "t2m": (("time", "y", "x"), t2m, {"units": "K"}), "crs": ((), 7),
        "area": (("y", "x"), np.arange(15.0).reshape(3, 5)),
    }, {
        "time": xr.date_range("2000-01-01", periods=4 * at + 4, freq="6h")[4 * at :],
        "y": [10.0, 20.0, 30.0], "x": np.arange(5), "height": ("y", [1.0, 2.0, 3.0]),
    }, {"title": "record"})  # fmt: skip


def stores_of(datasets: Any, encoding: Any = None, stores: Any = None, **options: Any) -> list[Any]:
    """Each dataset in a store of its own; ``encoding`` may be a list, one for each."""
    stores = [MemoryStore() for _ in datasets] if stores is None else stores
    encodings = encoding if isinstance(encoding, list) else [encoding] * len(stores)
    for ds, store, each in zip(datasets, stores, encodings, strict=True):
        xzarr3.to_zarr(ds, store, encoding=each, **options)
    return stores


def paths_of(datasets: Sequence[xr.Dataset], folder: Path, encoding: Any = None) -> list[Path]:
    """Each dataset in a directory of its own."""
    return stores_of(datasets, encoding, [folder / f"{at}.zarr" for at in range(len(datasets))])


def arrays_of(*given: dict[str, Any]) -> list[MemoryStore]:
    """Arrays 'v' along 't', each in a store of its own."""
    stores = [MemoryStore() for _ in given]
    for store, options in zip(stores, given, strict=True):
        xzarr3.create_array(store, "v", dimension_names=["t"], **options)
    return stores


@contextmanager
def asked(stores: Sequence[WaitingStore]) -> Iterator[list[Count]]:
    """What each store is asked."""
    with ExitStack() as counting:
        yield [counting.enter_context(store.counted()) for store in stores]


def by_xarray(stores: Sequence[Any], dim: str = "time") -> Any:
    """What xarray makes of the same stores, in memory."""
    parts = [xzarr3.open_dataset(store).load() for store in stores]
    options: dict[str, Any] = dict.fromkeys(("compat", "combine_attrs", "join"), "override")
    return xr.concat(parts, dim, data_vars="minimal", coords="minimal", **options)


ENCODINGS: list[dict[str, Any]] = [
    {"t2m": {"chunks": (2, 3, 5)}},
    {"t2m": {"chunks": (1, 3, 2), "compressors": None}},
    {"t2m": {"chunks": (1, 3, 5), "shards": (2, 3, 5)}},
]


@pytest.mark.parametrize("chunks", [None, {}, "grouped", {"time": 6}], ids=str)
def test_open_mfdataset_gives_what_xarray_gives(chunks: Any) -> None:
    stores = stores_of([day(at) for at in range(3)], ENCODINGS)
    for store in stores:
        xzarr3.to_zarr(day(0), store, group="below")
    found = xzarr3.open_mfdataset(stores, concat_dim="time", chunks=chunks)
    if chunks == {}:
        assert found["t2m"].chunks[0] == (2, 2, 1, 1, 1, 1, 2, 2)
    expected, target = by_xarray(stores), xzarr3.to_zarr(found, MemoryStore(), zarr_format=2).store
    for each in (found, xzarr3.open_mfdataset(stores[::-1], chunks=chunks), xzarr3.open_dataset(target)):
        xr.testing.assert_equal(each.load(), expected)
    xr.testing.assert_identical(found, expected)
    joined = xzarr3.concat(stores, "time")
    xr.testing.assert_identical(xzarr3.open_datatree(joined).to_dataset().load(), expected)


def packed(scale: float, fill: int | None, dtype: str = "int16") -> dict[str, Any]:
    return {"t2m": {"dtype": dtype, "scale_factor": scale, "add_offset": 280.0, "_FillValue": fill}}


def with_gaps(at: int) -> xr.Dataset:
    ds = day(at)
    return ds.assign(t2m=ds["t2m"].astype("f8").round().where(ds["t2m"] > 275))


def with_bounds(at: int) -> xr.Dataset:
    ds = day(at)
    edges = np.stack([ds["time"].values, ds["time"].values + np.timedelta64(6, "h")], 1)
    ds["time_bnds"] = (("time", "nv"), edges)
    ds["time"].attrs["bounds"] = "time_bnds"
    return ds


def times(since: str, unit: str = "hours", dtype: str = "int32") -> dict[str, Any]:
    return {"time": {"units": f"{unit} since {since}", "dtype": dtype}}


def in_calendar(at: int, calendar: str = "noleap") -> xr.Dataset:
    times = xr.date_range("2000-02-28", periods=8, freq="6h", calendar=calendar, use_cftime=True)
    return day(at).assign_coords(time=times[4 * at : 4 * at + 4])


def text(dtype: Any, **options: Any) -> dict[str, Any]:
    return {"data": np.array(["", "a", "bc"]).astype(dtype), "zarr_format": 2, **options}


def bits(dtype: str, **attributes: Any) -> dict[str, Any]:
    return {"data": np.array([1, 5, 200], "uint8").astype(dtype), "attributes": attributes}


def counted(dtype: str, unit: str, *values: int) -> dict[str, Any]:
    attributes = {"units": f"{unit} since 2000-01-01", "missing_value": -1}
    return {"data": np.array(values, dtype), "attributes": attributes}


ARRAYS: dict[str, list[dict[str, Any]]] = {
    "bits as unsigned": [bits("int8", _Unsigned="true"), bits("int16", _Unsigned="true")],
    "bits as signed": [bits("uint8", _Unsigned="false"), bits("uint16", _Unsigned="false")],
    "bits with a mark": [bits(each, _Unsigned="true", missing_value=5) for each in ("uint16", "int16")],
    **{f"missing text as {each}": [text(each)] * 2 for each in ("S2", "U2", np.dtypes.StringDType())},
    "missing times": [counted("i4", "days", 1, 2), counted("i4", "hours", -1, -1)],
    "missing times as floats": [counted("f8", "days", 1, 2), counted("f8", "hours", -1, -1)],
}


@pytest.mark.parametrize("case", ARRAYS)
def test_elements_are_decoded_by_the_attributes_of_each_array(case: str) -> None:
    stores = arrays_of(*ARRAYS[case])
    found = xzarr3.open_mfdataset(stores, concat_dim="t", chunks=None)["v"]
    expected = by_xarray(stores, "t")["v"]
    np.testing.assert_array_equal(found.isnull(), expected.isnull())
    np.testing.assert_array_equal(found.dropna("t"), expected.dropna("t"))


ENCODED: dict[str, tuple[Any, list[Any]]] = {
    "alike": (with_gaps, [packed(0.01, -999)] * 2),
    "other scale": (with_gaps, [packed(0.01, -999), packed(0.02, -999)]),
    "other mark": (with_gaps, [packed(0.01, -999), packed(0.01, -32768)]),
    "other type": (with_gaps, [packed(0.5, -99, "int8"), packed(0.01, -999, "int32")]),
    "not packed": (with_gaps, [packed(0.01, -999), {"t2m": {"dtype": "f8"}}]),
    "other format": (day, [{}, {"zarr_format": 2}, {"zarr_format": "3-draft"}]),
    "longer floats": (day, [{"t2m": {"dtype": "f8"}}, {}]),
    "other units": (day, [times("2000-01-01"), times("1999-12-31", "seconds", "int64")]),
    "finer units": (day, [times("2000-01-02 06:30:00", "minutes", "int64"), times("2000-01-01")]),
    "no leap days": (in_calendar, [{}, {}]),
    "another begin, and bounds": (with_bounds, [times(f"2000-01-0{at + 1}") for at in range(3)]),
}


@pytest.mark.parametrize("case", ENCODED)
def test_values_are_decoded_by_the_encoding_of_each_store(case: str) -> None:
    make, encodings = ENCODED[case]
    stores = []
    for at, encoding in enumerate(encodings):
        stores += stores_of([make(at)], **(encoding if "zarr_format" in encoding else {"encoding": encoding}))
    found, expected = xzarr3.open_mfdataset(stores[::-1]), by_xarray(stores)
    assert found["t2m"].dtype == expected["t2m"].dtype
    for name in expected.variables:
        np.testing.assert_array_equal(found[name].values, expected[name].values)
    np.testing.assert_array_equal(found["t2m"][3:6, 1].values, expected["t2m"][3:6, 1].values)


@pytest.mark.parametrize("dtype", ["int64", "int16", "uint32"])
@pytest.mark.parametrize(
    "units", ["hours since 1850-01-01", "day since 2001-1-1 12:00", "milliseconds since 2020-02-28"]
)
@pytest.mark.parametrize("calendar", ["standard", "proleptic_gregorian", "noleap"])
def test_whole_times_get_other_units(units: str, calendar: str, dtype: str) -> None:
    values = np.array([[0, 1, 1000], [7, 30_000, 2]], dtype)
    finer = f"microseconds since {'1850' if 'hours' in units else '2000'}-01-01"
    one, other = ({"units": each, "calendar": calendar} for each in (units, finer))
    change = Retimed("time", "a store", one, other, "int64")
    found = change(values)
    with mock.patch.object(Retimed, "_counted", return_value=None):  # As xarray decodes and encodes them.
        np.testing.assert_array_equal(found, change(values))
    assert found.dtype == "int64"


def test_the_dates_of_many_stores_are_decoded_once_for_each_of_their_units() -> None:
    stores = stores_of([day(at) for at in range(9)])
    alike._clock.cache_clear()
    with mock.patch.object(alike, "decoded_by", side_effect=coders.decoded_by) as decoded:
        xzarr3.open_mfdataset(stores)
    units = [str(call.args[0]["units"]) for call in decoded.call_args_list]
    assert len(units) == len(set(units)) == 9


@pytest.mark.parametrize(("change", "message"), [
    (lambda ds: ds.assign(area=ds["area"] + 1), r"'area' has other values .*at \[0, 0\] 1.0 and 0.0"),
    (lambda ds: ds.assign_coords(y=[10.0, 20.0, 31.0]), r"'y' has other .* at \[2\] 31.0 and 30.0"),
    (lambda ds: ds.assign(crs=8), r"'crs' has other values .*8 and 7"),
    (lambda ds: ds.isel(x=slice(4)), r"/t2m of .* has shape \(4, 3, 4\), .* has \(4, 3, 5\)"),
    (lambda ds: ds.drop_vars("area"), r"has 'area', .* has not; pass drop_variables=\['area'\]"),
    (lambda ds: ds.assign(more=1), r"has 'more', .* has not"),
    (lambda ds: ds.transpose("time", "x", "y"), r"'t2m' has the dimensions \('time', 'x', 'y'\)"),
    (lambda ds: ds.assign(t2m=ds["t2m"].assign_attrs(units="degC")), r"'t2m' cannot .*'K'.*'degC'"),
    (lambda ds: ds.assign(t2m=ds["t2m"].astype("i8")), r"dtype float32.*int64; no dtype holds"),
    (lambda ds: in_calendar(1, "360_day"), r"'time' cannot be .*calendar 'standard'.*calendar '360_day'"),
], ids=["area", "y", "crs", "shape", "lacks", "more", "order", "units", "type", "calendar"])  # fmt: skip
def test_what_does_not_fit_is_refused_by_name_and_both_places(change: Any, message: str) -> None:
    stores = stores_of([day(0), change(day(1))])
    with pytest.raises(ArgumentError, match=message) as caught:
        xzarr3.open_mfdataset(stores, concat_dim="time")
    assert str(caught.value).count("MemoryStore") >= 2


def test_labels_may_decrease_and_differ_by_rounding() -> None:
    days = [day(at).isel(time=slice(None, None, -1)) for at in (2, 1, 0)]
    days[1] = days[1].assign_coords(y=[10.0, 20.0 + 1e-9, 30.0])
    stores = stores_of(days)
    for found in (xzarr3.open_mfdataset(stores[::-1]), xzarr3.open_mfdataset(stores, concat_dim="time")):
        assert found.indexes["time"].is_monotonic_decreasing
        np.testing.assert_array_equal(found["y"], [10, 20, 30])
        assert found.sizes["time"] == 12
    for order in ([0, 0], [1, 0], [0, 2, 1]):
        stores = stores_of([day(at) for at in order])
        with pytest.raises(ArgumentError, match=r"label .* of 'time', the first of .*check_labels=False"):
            xzarr3.open_mfdataset(stores, concat_dim="time")
        found = xzarr3.open_mfdataset(stores, concat_dim="time", check_labels=False)
        assert found.sizes["time"] == 4 * len(order)


def test_labels_without_order_are_there_once() -> None:
    named = [
        xr.Dataset(coords={"station": [*names]}).assign(t=("station", [0.0] * 3))
        for names in ("bad", "fae", "gch")
    ]
    with pytest.raises(ArgumentError, match=r"label a of 'station', element 1 of .*, is there twice; give"):
        xzarr3.concat(stores_of(named[:2]), "station")
    assert xzarr3.concat(stores_of(named[::2]), "station")["t"].shape == (6,)


@pytest.mark.parametrize(("labels", "message"), [
    ([[2.0, np.nan], [0.0, 1.0]], "a label that is missing"),
    ([[np.nan, 1.0], [2.0, 3.0]], "a label that is missing"),
    ([[1, 3, 2], [5, 6, 7]], "neither increase nor decrease"), ([[1, 2], []], "no labels"),
], ids=str)  # fmt: skip
def test_labels_without_order_give_no_order_of_stores(labels: list[list[float]], message: str) -> None:
    stores = stores_of([xr.Dataset({"v": ("t", each)}, {"t": each}) for each in labels])
    with pytest.raises(ArgumentError, match=message):
        xzarr3.open_mfdataset(stores)


@pytest.mark.parametrize("scale", [1.0, -1.0])
@pytest.mark.parametrize("labels", [[[60.0], [50.0, 40.0], [30.0]], [[30.0], [40.0, 50.0], [60.0]]])
def test_a_store_with_one_label_lies_as_the_others_do(labels: list[list[float]], scale: float) -> None:
    packed = {"y": {"dtype": "int16", "scale_factor": scale, "_FillValue": -999}}
    stores = stores_of([xr.Dataset({"v": ("y", each)}, {"y": each}) for each in labels], packed)
    found = xzarr3.open_mfdataset([stores[1], stores[2], stores[0]])
    np.testing.assert_array_equal(found["v"], np.concatenate(labels))
    np.testing.assert_array_equal(found["y"], np.concatenate(labels))


def test_a_block_of_stores_is_joined_along_all_its_dimensions() -> None:
    whole = xr.concat([day(0), day(1), day(2)], "time", data_vars="minimal")
    parts = [slice(3, 5), slice(0, 3)]
    stores = stores_of(
        [whole.isel(time=slice(4 * at, 4 * at + 4), x=part) for at in (2, 0, 1) for part in parts]
    )
    xr.testing.assert_identical(xzarr3.open_mfdataset(stores).load(), whole)
    nested = [[stores[3], stores[2]], [stores[5], stores[4]], [stores[1], stores[0]]]
    xr.testing.assert_identical(xzarr3.open_mfdataset(nested, concat_dim=["time", "x"]).load(), whole)
    with pytest.raises(ArgumentError, match="form no block along"):
        xzarr3.open_mfdataset(stores[1:])


def test_a_new_dimension_stacks_data_and_keeps_coordinates() -> None:
    members = [day(0).assign(t2m=day(at)["t2m"].variable) for at in range(3)]
    found = xzarr3.open_mfdataset(stores_of(members), concat_dim="member")
    dims = [found[name].dims for name in ("t2m", "area", "time")]
    assert dims == [("member", "time", "y", "x"), ("member", "y", "x"), ("time",)]
    np.testing.assert_array_equal(found["t2m"], [member["t2m"].values for member in members])
    datasets = [xr.Dataset({"t": ("x", [at, at + 0.5])}, {"time": at}) for at in range(3)]
    found = xzarr3.open_mfdataset(stores_of(datasets), concat_dim="time", chunks=None)
    assert found["t"].dims == ("time", "x")
    np.testing.assert_array_equal(found.sel(time=1)["t"].values, [1, 1.5])


@pytest.mark.parametrize("chunks", [None, {}], ids=str)
def test_each_selection_reads_only_its_stores(chunks: Any) -> None:
    few = [day(at).drop_vars(["area", "crs", "height", "y", "x"]) for at in range(4)]
    stores = stores_of(few, {"t2m": {"chunks": (4, 3, 5)}}, [WaitingStore(0.001) for _ in few])
    with asked(stores) as counts:
        found = xzarr3.open_mfdataset(stores, concat_dim="time", chunks=chunks)
    assert [count.of("get") for count in counts] == [["zarr.json", "time/c/0"]] * 4
    part = found["t2m"].isel(time=slice(5, 7))
    explained = part.xzarr3.explain()
    assert [explained["t2m"][name] for name in ("reads", "requests")] == [1, 1]
    with asked(stores) as counts:
        part.load()
    assert [sum(key.startswith("t2m/c") for key in count.of("get")) for count in counts] == [0, 1, 0, 0]


def test_tasks_hold_only_the_arrays_that_they_read() -> None:
    stores = stores_of([day(at) for at in range(50)])
    found = xzarr3.open_mfdataset(stores, concat_dim="time", chunks={})
    graph = dict(found["t2m"].data.dask.cull(found["t2m"].data.__dask_keys__()[:1]))
    sizes = [len(pickle.dumps(task)) for task in graph.values()]
    assert max(sizes) < len(pickle.dumps(stores[0])) + 10_000


def test_dask_computes_the_same_in_processes(tmp_path: Path) -> None:
    paths = paths_of([day(at) for at in range(3)], tmp_path)
    found = xzarr3.open_mfdataset(f"{tmp_path}/*.zarr", chunks={})
    result = found["t2m"].sum("time").compute(scheduler="processes")
    np.testing.assert_allclose(result, by_xarray(paths)["t2m"].sum("time"), rtol=1e-5)
    paths[1].rename(tmp_path / "gone")
    np.testing.assert_array_equal(found["t2m"][:4].values, day(0)["t2m"].values)
    with pytest.raises(xzarr3.Xzarr3Error):  # And no fill value.
        found["t2m"][3:6].load()


def test_joined_arrays_become_dask_arrays() -> None:
    arrays = [xzarr3.create_array(MemoryStore(), data=np.arange(5.0) + at, chunks=2) for at in range(3)]
    array = xzarr3.concat(arrays, 0)
    lazy, again = xzarr3.from_zarr(array, chunks="units"), pickle.loads(pickle.dumps(array))
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == ((2, 2, 1) * 3,)
    np.testing.assert_array_equal(lazy[3:12:2].compute(), array[3:12:2])
    assert (again.shape, again.chunks) == (array.shape, (2,))


DOCUMENT: dict[str, Any] = {"xzarr3_joined": 1, "join": "concat", "dim": 0, "sources": [{"store": "a"}]}
NESTED = '{"join": "concat", "dim": 0, "sources": ['


def test_a_document_joins_the_same_stores_again(tmp_path: Path) -> None:
    paths = paths_of([day(0), day(1)], tmp_path / "data")
    xzarr3.concat(paths, "time", drop_variables="crs").to_json(tmp_path / "all.json")
    document = json.loads((tmp_path / "all.json").read_text())
    assert document["sources"] == [{"store": "data/0.zarr"}, {"store": "data/1.zarr"}]
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    paths = [moved / path.relative_to(tmp_path) for path in paths]
    expected = by_xarray(paths).drop_vars("crs")
    assert isinstance(xzarr3.open(moved / "all.json"), xzarr3.JoinedGroup)
    xr.testing.assert_identical(xzarr3.open_dataset(moved / "all.json").load(), expected)
    xr.testing.assert_identical(xr.open_dataset(str(moved / "all.json"), engine="xzarr3").load(), expected)
    xzarr3.concat([xzarr3.open(path, "t2m") for path in paths], "time").to_json(moved / "t2m.json")
    again: Any = xzarr3.open(moved / "t2m.json")
    assert isinstance(again, xzarr3.JoinedArray)
    np.testing.assert_array_equal(again[...], expected["t2m"].values)
    sources = [{"store": "all.json", "path": "t2m"}, {"store": "data/1.zarr", "path": "t2m"}]
    (moved / "more.json").write_text(json.dumps({**DOCUMENT, "dim": "time", "sources": sources}))
    expected = [day(at)["t2m"].values for at in (0, 1, 1)]
    np.testing.assert_array_equal(xzarr3.open(moved / "more.json")[...], np.concatenate(expected))


@pytest.mark.parametrize(("document", "message"), [
    ("{", "not JSON"), ("[1]", "not a document of joined stores"),
    ('{"version": 1, "refs": {}}', "not a document of joined stores; .*'reference://' with storage_options"),
    ('{"zarr_format": 3, "node_type": "group"}', "not a document of joined stores; .*open the folder"),
    ('{"xzarr3_joined": 2}', "'xzarr3_joined': not a document of joined stores; found 2; accepted: 1"),
    ({"join": "merge"}, "'join'"), ({"dim": 1.5}, "'dim'"), ({"sources": []}, "'sources'"),
    ({"sources": [3]}, r"sources\[0\]"), ({"sources": [{"store": 3}]}, r"sources\[0\]"),
    ({"sources": [{"store": "a", "more": "b"}]}, r"sources\[0\]"), ({"more": 1}, "'more'"),
    ({"axis": "0"}, "'axis'"), ({"drop_variables": [1]}, "'drop_variables'"),
    ({"sources": [{"store": "all.json"}]}, "name one another without end"),
    ('{"xzarr3_joined": 1, ' + NESTED[1:] + NESTED * 1999 + '{"store": "a"}' + "]}" * 2000, "all.json"),
])  # fmt: skip
def test_documents_that_are_not_valid_are_refused(tmp_path: Path, document: Any, message: str) -> None:
    if isinstance(document, dict):
        document = json.dumps({**DOCUMENT, **document})
    (tmp_path / "all.json").write_text(document)
    with pytest.raises(MetadataError, match=message):
        xzarr3.open(tmp_path / "all.json")


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_copy_makes_it_real(zarr_format: Any, tmp_path: Path) -> None:
    stores = stores_of([with_gaps(0), with_gaps(1)], [packed(0.01, -999), packed(0.02, -999)])
    joined, target, expected = xzarr3.concat(stores, "time"), MemoryStore(), by_xarray(stores)
    xzarr3.copy(joined, target, zarr_format=zarr_format, chunks={"time": 8})
    found = xzarr3.open_dataset(target).load()
    assert found["t2m"].encoding["chunks"][0] == 8
    for name in expected.variables:
        np.testing.assert_array_equal(found[name].values, expected[name].values)
    np.testing.assert_array_equal(xzarr3.copy(joined["t2m"], MemoryStore())[...], expected["t2m"].values)
    for call, message in (
        (lambda: xzarr3.copy(joined, MemoryStore(), resume=True), "cannot be resumed"),
        (lambda: joined.to_json(tmp_path / "all.json"), "source 0 has no path or URL"),
        (lambda: joined.to_json(tmp_path / "all.zarr"), r"ends with '\.json'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()


MISTAKES: list[tuple[Any, str]] = [
    (lambda: xzarr3.concat([], "time"), "no sources"),
    (lambda: xzarr3.concat("a.zarr", "time"), "not a sequence of stores: str"),  # type: ignore[arg-type]
    (lambda: xzarr3.concat(stores_of([day(0)]), 0), "dim=0: groups are joined"),
    (lambda: xzarr3.concat(stores_of([day(0)]), "tiem"), "'tiem' is no dimension .*'time'"),
    (lambda: xzarr3.stack(stores_of([day(0)]), "time"), "'time' is a dimension of"),
    (lambda: xzarr3.concat([xzarr3.zeros(3), xzarr3.create_group(MemoryStore())], 0), "an array, .* a group"),
    (lambda: xzarr3.concat([xzarr3.zeros(3)], 1), "dim=1 is no dimension"),
    (lambda: xzarr3.stack([xzarr3.zeros(3)], axis=2), "axis=2"),
    (lambda: xzarr3.concat([xzarr3.zeros((2, 3)), xzarr3.zeros((2, 4))], 0), r"shape \(2, 4\).*\(2, 3\)"),
    (lambda: xzarr3.concat(arrays_of(text("U2"), text("U2", zarr_format=3)), "t"),
        r"'v' cannot be joined: .* has _FillValue .* has no _FillValue"),
    (lambda: xzarr3.open_mfdataset("/nowhere/*.zarr"), "found no store that matches"),
    (lambda: xzarr3.open_mfdataset(stores_of([day(0)] * 2)), "the same labels along"),
    (lambda: xzarr3.open_mfdataset([], concat_dim="x", combine="by_coords"), "combine='by_coords' with"),
    (lambda: xzarr3.open_mfdataset([]), "no stores to open"),
    (lambda: xzarr3.open_mfdataset(["a"], concat_dim=[]), r"concat_dim=\[\]; accepted: names"),
    (lambda: xzarr3.open_mfdataset(["a.zarr"], concat_dim=["y", "x"]), "not a list of stores: 'a.zarr'"),
    (lambda: xzarr3.open_mfdataset([xzarr3.zeros(3)], concat_dim=["y", "x"]), "not a list of stores"),
    (lambda: xzarr3.open_mfdataset([[], []], concat_dim=["y", "x"]), r"not a list of stores: \[\]"),
    (lambda: xzarr3.stack([xzarr3.zeros(3)], axis=None), "axis=None"),  # type: ignore[arg-type]
    (lambda: xzarr3.concat([xzarr3.concat([xzarr3.zeros(3)], 0)], 0, path="v"), "path='v' .* is an array"),
    (lambda: xzarr3.open_mfdataset(stores_of([day(0), day(1)]), use_zarr_fill_value_as_mask=True),
        "use_zarr_fill_value_as_mask=.* comes too late"),
    (lambda: xzarr3.open_mfdataset(stores_of([day(0)]), zarr_format=3), "zarr_format=.* comes too late"),
    (lambda: xzarr3.open_mfdataset(stores_of([day(0)]), concat_dim="time", engine="zarr"),
        r"open_mfdataset\(\) has no argument 'engine'; leave 'engine' out"),
    (lambda: xzarr3.open_mfdataset(["a"], concat_dims="time"),
        r"open_mfdataset\(\) has no argument 'concat_dims'; did you mean 'concat_dim'\?"),
    (lambda: xzarr3.open_mfdataset(["a"], preprocess=len), r"for 'preprocess' use xr\.open_mfdataset"),
    (lambda: xzarr3.open_mfdataset(["a"], check_labels="no"), "check_labels='no'; accepted: True, False"),  # type: ignore[arg-type]
    (lambda: xzarr3.concat([xzarr3.zeros(3)], 0, check_labels=None), "check_labels=None"),  # type: ignore[arg-type]
    (lambda: xzarr3.open_mfdataset(stores_of([day(0)], consolidated=False), consolidated=True),
        "holds no consolidated metadata"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_mistakes_are_told(call: Any, message: str) -> None:
    with pytest.raises((ArgumentError, MetadataError, TypeError), match=message):
        call()


def test_stores_may_be_opened_without_consolidated_metadata() -> None:
    stores = stores_of([day(0), day(1)], consolidated=False)
    assert xzarr3.open_mfdataset(stores, consolidated=False).sizes["time"] == 8


def test_a_variable_that_was_encoded_anew_is_an_error(tmp_path: Path) -> None:
    paths = paths_of([with_gaps(0), with_gaps(1)], tmp_path, encoding=packed(0.01, -999))
    found = xzarr3.open_mfdataset(f"{tmp_path}/*.zarr", chunks=None)
    xzarr3.open(paths[1], "t2m", mode="r+").attrs["scale_factor"] = 0.5
    with pytest.raises(xzarr3.ChangedError):
        found["t2m"].load()


def test_an_array_that_is_converted_is_no_longer_read_once_its_scale_changed() -> None:
    scales = [{"data": [1, 2], "dtype": "i2", "attributes": {"scale_factor": each}} for each in (0.5, 2.0)]
    arrays = [xzarr3.open_array(store, "v", mode="r+") for store in arrays_of(*scales)]
    joined = xzarr3.concat(arrays, 0)
    np.testing.assert_array_equal(joined[...], [0.5, 1, 2, 4])
    arrays[1].attrs["scale_factor"] = 7.0
    with pytest.raises(xzarr3.ChangedError, match="scale_factor"):
        joined[...]
    np.testing.assert_array_equal(arrays[1][...], [1, 2])


@pytest.mark.parametrize(
    ("zarr_format", "dtype"), [(2, "int16"), (2, ">i2"), (2, "U3"), ("3-draft", "int16"), ("3-draft", ">i2")]
)
def test_arrays_of_older_formats_can_be_copied_once_they_are_joined(zarr_format: Any, dtype: str) -> None:
    data = np.arange(3).astype(dtype)
    arrays = [xzarr3.create_array(MemoryStore(), data=data, zarr_format=zarr_format) for _ in range(2)]
    copied = xzarr3.copy(xzarr3.concat(arrays, 0), MemoryStore())
    assert copied.format.zarr_format == 3
    np.testing.assert_array_equal(copied[...], [*data, *data])


@pytest.mark.parametrize("call", [
    lambda joined: xzarr3.to_zarr(day(2), joined, mode="w"),
    lambda joined: xzarr3.to_zarr(day(2), joined, append_dim="time"),
    lambda joined: xzarr3.copy(xzarr3.array([1]), joined, overwrite=True),
    lambda joined: xzarr3.create_array(joined["t2m"], data=[1], overwrite=True),
    lambda joined: xzarr3.drop(joined, time=slice(None, "2000-01-01T06")),
    lambda joined: xzarr3.load(joined["t2m"]), xzarr3.open, xzarr3.check, xzarr3.stats,
])  # fmt: skip
def test_what_is_joined_is_not_taken_for_its_first_store(call: Any) -> None:
    stores = stores_of([day(0), day(1)])
    before = [contents(store) for store in stores]
    with pytest.raises(xzarr3.ArgumentTypeError, match=r"not a store: <xzarr3\.Joined"):
        call(xzarr3.concat(stores, "time"))
    assert [contents(store) for store in stores] == before


def test_a_document_that_came_by_a_url_names_nothing_on_this_machine(http_server: Any) -> None:
    name, folder = http_server.directory()
    paths = paths_of([day(0), day(1)], folder)
    xzarr3.concat(paths, "time").to_json(folder / "all.json")
    url = f"{http_server.url}/{name}"
    xr.testing.assert_identical(xzarr3.open_dataset(f"{url}/all.json").load(), by_xarray(paths))
    for store in (f"{folder}/0.zarr", "../0.zarr", f"file://{folder}/0.zarr", "a/../../b.zarr"):
        document = {**DOCUMENT, "dim": "time", "sources": [{"store": store}]}
        (folder / "bad.json").write_text(json.dumps(document))
        with pytest.raises(MetadataError, match="only stores below it, or URLs of the same kind"):
            xzarr3.open(f"{url}/bad.json")


def test_what_opening_one_more_store_takes(tmp_path: Path) -> None:
    """Documents that are equal in all stores are parsed once, and labels are read by one plan."""
    days = [xr.Dataset({"v": ("t", [1.5])}, {"t": [at], "x": range(4)}) for at in range(30)]
    paths = paths_of(days, tmp_path)

    def calls(number: int) -> int:
        return calls_of(lambda: xzarr3.open_mfdataset(paths[:number], concat_dim="t", chunks=None))

    each = (calls(30) - calls(10)) / 20
    assert each < 940, each
