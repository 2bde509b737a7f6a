"""Many stores as one dataset: against xarray's own concatenation, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _waiting import Count, WaitingStore

import xzarr3
from xzarr3 import ArgumentError, MemoryStore, MetadataError
from xzarr3.xarray import alike, exact
from xzarr3.xarray.alike import Retimed


def day(at: int, **changes: Any) -> xr.Dataset:
    """One day of a small record."""
    rng = np.random.default_rng(at)
    ds = xr.Dataset(
        {
            "t2m": (("time", "y", "x"), rng.normal(280, 5, (4, 3, 5)).astype("f4"), {"units": "K"}),
            "area": (("y", "x"), np.arange(15.0).reshape(3, 5)),
            "crs": ((), 7),
        },
        {
            "time": np.datetime64("2000-01-01", "ns")
            + np.arange(4 * at, 4 * at + 4) * np.timedelta64(6, "h"),
            "y": [10.0, 20.0, 30.0],
            "x": np.arange(5),
            "height": ("y", [1.0, 2.0, 3.0]),
        },
        {"title": "record"},
    )
    return ds.assign(**changes)


def stores_of(datasets: Sequence[xr.Dataset], encoding: Any = None, **options: Any) -> list[MemoryStore]:
    """Each dataset in a store of its own; ``encoding`` may be a list, one for each."""
    stores = [MemoryStore() for _ in datasets]
    for at, (ds, store) in enumerate(zip(datasets, stores, strict=True)):
        xzarr3.to_zarr(
            ds, store, encoding=encoding[at] if isinstance(encoding, list) else encoding, **options
        )
    return stores


def waiting_stores(datasets: Sequence[xr.Dataset]) -> list[WaitingStore]:
    """Each dataset in a store whose requests take time and are counted."""
    stores = [WaitingStore(0.001) for _ in datasets]
    for ds, store in zip(datasets, stores, strict=True):
        xzarr3.to_zarr(ds, store, encoding={"t2m": {"chunks": ds["t2m"].shape}})
    return stores


@contextmanager
def asked(stores: Sequence[WaitingStore]) -> Iterator[list[Count]]:
    """What each store is asked."""
    with ExitStack() as counting:
        yield [counting.enter_context(store.counted()) for store in stores]


def by_xarray(stores: Sequence[Any], dim: str = "time") -> xr.Dataset:
    """What xarray makes of the same stores, in memory."""
    parts = [xzarr3.open_dataset(store).load() for store in stores]
    found = xr.concat(
        parts, dim, data_vars="minimal", coords="minimal", compat="override", combine_attrs="override",
        join="override",
    )  # fmt: skip
    assert isinstance(found, xr.Dataset)
    return found


ENCODINGS: list[dict[str, Any]] = [
    {"t2m": {"chunks": (2, 3, 5)}},
    {"t2m": {"chunks": (1, 3, 2), "compressors": None}},
    {"t2m": {"chunks": (1, 3, 5), "shards": (2, 3, 5)}},
]


@pytest.mark.parametrize("chunks", [None, {}, "grouped", {"time": 6}], ids=str)
def test_open_mfdataset_gives_what_xarray_gives(chunks: Any) -> None:
    stores = stores_of([day(at) for at in range(3)], ENCODINGS)
    found = xzarr3.open_mfdataset(stores, concat_dim="time", chunks=chunks)
    expected = by_xarray(stores)
    xr.testing.assert_identical(found.load(), expected)
    xr.testing.assert_identical(xzarr3.open_mfdataset(stores[::-1], chunks=chunks).load(), expected)


def test_blocks_end_where_stores_end() -> None:
    stores = stores_of([day(at) for at in range(3)], {"t2m": {"chunks": (3, 3, 5)}})
    found = xzarr3.open_mfdataset(stores, concat_dim="time", chunks={})
    assert found["t2m"].chunks is not None
    assert found["t2m"].chunks[0] == (3, 1) * 3


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
    "another begin, and bounds": (with_bounds, [times(f"2000-01-0{at + 1}") for at in range(3)]),
}


@pytest.mark.parametrize("case", ENCODED)
def test_values_are_decoded_by_the_encoding_of_each_store(case: str) -> None:
    make, encodings = ENCODED[case]
    stores = []
    for at, encoding in enumerate(encodings):
        options = encoding if "zarr_format" in encoding else {"encoding": encoding}
        stores += stores_of([make(at)], **options)
    found, expected = xzarr3.open_mfdataset(stores[::-1]), by_xarray(stores)
    assert found["t2m"].dtype == expected["t2m"].dtype
    for name in expected.variables:
        np.testing.assert_array_equal(found[name].values, expected[name].values)
    np.testing.assert_array_equal(found["t2m"][3:6, 1].values, expected["t2m"][3:6, 1].values)


@pytest.mark.parametrize(
    ("dtypes", "attributes"),
    [
        (["int8", "int16"], {"_Unsigned": "true"}),
        (["uint8", "uint16"], {"_Unsigned": "false"}),
        (["uint16", "int16"], {"_Unsigned": "true", "missing_value": 5}),
    ],
    ids=str,
)
def test_bits_that_are_read_as_another_sign_keep_their_meaning_in_a_wider_type(
    dtypes: list[str], attributes: Any
) -> None:
    data = [np.array([1, 5, 200], "uint8").astype(dtype) for dtype in dtypes]
    stores = [MemoryStore() for _ in data]
    for store, each in zip(stores, data, strict=True):
        xzarr3.create_array(store, "v", data=each, dimension_names=["t"], attributes=attributes)
    found = xzarr3.open_mfdataset(stores, concat_dim="t", chunks=None)["v"].values
    np.testing.assert_array_equal(found, by_xarray(stores, "t")["v"].values)


@pytest.mark.parametrize("dtype", ["S2", "U2", np.dtypes.StringDType()], ids=str)
def test_missing_text_of_version_2_is_missing(dtype: Any) -> None:
    stores = [MemoryStore(), MemoryStore()]
    data = np.array(["", "a", "bc"]).astype(dtype)
    for store in stores:
        xzarr3.create_array(store, "v", data=data, dimension_names=["t"], zarr_format=2)
    found = xzarr3.open_mfdataset(stores, concat_dim="t", chunks=None)["v"].values
    assert [value == value for value in found] == [False, True, True] * 2
    stores[1] = MemoryStore()
    xzarr3.create_array(stores[1], "v", data=data, dimension_names=["t"])
    with pytest.raises(ArgumentError, match=r"'v' cannot be joined: .* has _FillValue .* has no _FillValue"):
        xzarr3.concat(stores, "t")


@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_times_that_are_all_missing_in_one_store(dtype: str) -> None:
    stores = [MemoryStore(), MemoryStore()]
    for store, unit, values in zip(stores, ("days", "hours"), ([1, 2], [-1, -1]), strict=True):
        attributes = {"units": f"{unit} since 2000-01-01", "missing_value": -1}
        data = np.array(values, dtype)
        xzarr3.create_array(store, "v", data=data, dimension_names=["t"], attributes=attributes)
    found = xzarr3.open_mfdataset(stores, concat_dim="t", chunks=None)["v"]
    assert [str(value)[:10] for value in found.values[:2]] == ["2000-01-02", "2000-01-03"]
    assert found.isnull().values.tolist() == [False, False, True, True]


@pytest.mark.parametrize("dtype", ["int64", "int16", "uint32"])
@pytest.mark.parametrize(
    "units", ["hours since 1850-01-01", "day since 2001-1-1 12:00", "milliseconds since 2020-02-28"]
)
@pytest.mark.parametrize("calendar", ["standard", "proleptic_gregorian", "noleap"])
def test_whole_times_get_other_units_as_xarray_decodes_and_encodes_them(
    monkeypatch: pytest.MonkeyPatch, units: str, calendar: str, dtype: str
) -> None:
    values = np.array([[0, 1, 1000], [7, 30_000, 2]], dtype)
    target = {
        "units": f"microseconds since {'1850' if 'hours' in units else '2000'}-01-01",
        "calendar": calendar,
    }
    change = Retimed("time", "a store", {"units": units, "calendar": calendar}, target, "int64")
    found = change(values)
    monkeypatch.setattr(Retimed, "_counted", lambda *_: None)
    np.testing.assert_array_equal(found, change(values))
    assert found.dtype == "int64"


def test_the_dates_of_many_stores_are_decoded_once_for_each_of_their_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores, decoded = stores_of([day(at) for at in range(9)]), list[Any]()
    monkeypatch.setattr(
        alike, "decoded_by", lambda *args, **_: decoded.append(args) or exact.decoded_by(*args)
    )
    alike._clock.cache_clear()
    xzarr3.open_mfdataset(stores)
    assert len(decoded) == len({str(args[0]["units"]) for args in decoded}) == 9


def cftime_day(at: int, calendar: str) -> xr.Dataset:
    times = xr.date_range("2000-02-27", periods=8, freq="D", calendar=calendar, use_cftime=True)
    return xr.Dataset({"t": ("time", np.arange(4) + at)}, {"time": times[4 * at : 4 * at + 4]})


def test_times_of_other_calendars() -> None:
    same = stores_of([cftime_day(0, "noleap"), cftime_day(1, "noleap")])
    found = xzarr3.open_mfdataset(same)
    assert [str(each)[:10] for each in found["time"].values[:3]] == ["2000-02-27", "2000-02-28", "2000-03-01"]
    mixed = stores_of([cftime_day(0, "noleap"), cftime_day(1, "360_day")])
    with pytest.raises(
        ArgumentError, match=r"'time' cannot be joined.*calendar 'noleap'.*calendar '360_day'"
    ):
        xzarr3.open_mfdataset(mixed, concat_dim="time")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.assign(area=ds["area"] + 1), r"'area' has other values .*at \[0, 0\] 1.0 and 0.0"),
        (lambda ds: ds.assign_coords(y=[10.0, 20.0, 31.0]), r"'y' has other .* at \[2\] 31.0 and 30.0"),
        (lambda ds: ds.assign(crs=8), r"'crs' has other values .*8 and 7"),
        (lambda ds: ds.isel(x=slice(4)), r"/t2m of .* has shape \(4, 3, 4\), .* has \(4, 3, 5\)"),
        (lambda ds: ds.drop_vars("area"), r"has 'area', .* has not; pass drop_variables=\['area'\]"),
        (lambda ds: ds.assign(more=1), r"has 'more', .* has not"),
        (lambda ds: ds.transpose("time", "x", "y"), r"'t2m' has the dimensions \('time', 'x', 'y'\)"),
        (lambda ds: ds.assign(t2m=ds["t2m"].assign_attrs(units="degC")), r"'t2m' cannot .*'K'.*'degC'"),
        (lambda ds: ds.assign(t2m=ds["t2m"].astype("i8")), r"dtype float32.*int64; no dtype holds"),
    ],
    ids=["static", "labels", "scalar", "shape", "lacks", "more", "order", "units", "type"],
)
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


@pytest.mark.parametrize("order", [[0, 0], [1, 0], [0, 2, 1]], ids=str)
def test_labels_out_of_order_or_twice_are_refused(order: list[int]) -> None:
    stores = stores_of([day(at) for at in order])
    with pytest.raises(ArgumentError, match=r"label .* of 'time', the first of .*check_labels=False"):
        xzarr3.open_mfdataset(stores, concat_dim="time")
    found = xzarr3.open_mfdataset(stores, concat_dim="time", check_labels=False)
    assert found.sizes["time"] == 4 * len(order)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[2.0, np.nan], [0.0, 1.0]], "a label that is missing"),
        ([[np.nan, 1.0], [2.0, 3.0]], "a label that is missing"),
        ([[1, 3, 2], [5, 6, 7]], "neither increase nor decrease"),
        ([[1, 2], []], "no labels"),
    ],
    ids=str,
)
def test_labels_without_order_give_no_order_of_stores(labels: list[list[float]], message: str) -> None:
    stores = stores_of([xr.Dataset({"v": ("t", each)}, {"t": each}) for each in labels])
    with pytest.raises(ArgumentError, match=message):
        xzarr3.open_mfdataset(stores)


@pytest.mark.parametrize("scale", [1.0, -1.0])
@pytest.mark.parametrize("labels", [[[60.0], [50.0, 40.0], [30.0]], [[30.0], [40.0, 50.0], [60.0]]])
def test_a_store_with_one_label_lies_as_the_others_do(labels: list[list[float]], scale: float) -> None:
    packed = {"y": {"dtype": "int16", "scale_factor": scale}}
    stores = stores_of([xr.Dataset({"v": ("y", each)}, {"y": each}) for each in labels], packed)
    found = xzarr3.open_mfdataset([stores[1], stores[2], stores[0]])
    np.testing.assert_array_equal(found["v"], np.concatenate(labels))
    np.testing.assert_array_equal(found["y"], np.concatenate(labels))


def test_a_block_of_stores_is_joined_along_all_its_dimensions() -> None:
    whole = xr.concat([day(0), day(1), day(2)], "time", data_vars="minimal")
    tiles = [
        whole.isel(time=slice(4 * at, 4 * at + 4), x=part)
        for at in (2, 0, 1)
        for part in (slice(3, 5), slice(0, 3))
    ]
    stores = stores_of(tiles)
    xr.testing.assert_identical(xzarr3.open_mfdataset(stores).load(), whole)
    nested = [[stores[3], stores[2]], [stores[5], stores[4]], [stores[1], stores[0]]]
    xr.testing.assert_identical(xzarr3.open_mfdataset(nested, concat_dim=["time", "x"]).load(), whole)
    with pytest.raises(ArgumentError, match="form no block along"):
        xzarr3.open_mfdataset(stores[1:])


def test_groups_below_do_not_hinder_joining() -> None:
    stores = stores_of([day(0), day(1)])
    for store in stores:
        xzarr3.to_zarr(day(0), store, group="below")
    found = xzarr3.open_mfdataset(stores, concat_dim="time", combine="nested")
    assert found.sizes["time"] == 2 * day(0).sizes["time"]


def test_a_new_dimension_stacks_data_and_keeps_coordinates() -> None:
    members = [day(0).assign(t2m=day(at)["t2m"].variable) for at in range(3)]
    stores = stores_of(members)
    found = xzarr3.open_mfdataset(stores, concat_dim="member")
    assert found["t2m"].dims == ("member", "time", "y", "x")
    assert found["area"].dims == ("member", "y", "x")
    assert found["time"].dims == ("time",)
    for at, member in enumerate(members):
        np.testing.assert_array_equal(found["t2m"][at].values, member["t2m"].values)


def test_scalar_labels_become_the_coordinate_of_a_new_dimension() -> None:
    datasets = [xr.Dataset({"t": ("x", [at, at + 0.5])}, {"time": at}) for at in range(3)]
    found = xzarr3.open_mfdataset(stores_of(datasets), concat_dim="time", chunks=None)
    assert found["t"].dims == ("time", "x")
    np.testing.assert_array_equal(found.sel(time=1)["t"].values, [1, 1.5])


@pytest.mark.parametrize("chunks", [None, {}], ids=str)
def test_each_selection_reads_only_its_stores(chunks: Any) -> None:
    stores = waiting_stores([day(at) for at in range(4)])
    found = xzarr3.open_mfdataset(stores, concat_dim="time", chunks=chunks)
    part = found["t2m"].isel(time=slice(5, 7))
    explained = part.xzarr3.explain()
    assert [explained["t2m"][name] for name in ("reads", "requests")] == [1, 1]
    with asked(stores) as counts:
        part.load()
    assert [sum(key.startswith("t2m/c") for key in count.of("get")) for count in counts] == [0, 1, 0, 0]


def test_a_store_is_asked_for_its_document_and_each_coordinate_once() -> None:
    stores = waiting_stores([day(at).drop_vars(["area", "crs", "height", "y", "x"]) for at in range(5)])
    with asked(stores) as counts:
        xzarr3.open_mfdataset(stores, concat_dim="time")
    for count in counts:
        assert count.of("get") == ["zarr.json", "time/c/0"]


def test_tasks_hold_only_the_arrays_that_they_read() -> None:
    stores = stores_of([day(at) for at in range(50)])
    found = xzarr3.open_mfdataset(stores, concat_dim="time", chunks={})
    graph = dict(found["t2m"].data.dask.cull(found["t2m"].data.__dask_keys__()[:1]))
    sizes = [len(pickle.dumps(task)) for task in graph.values()]
    assert max(sizes) < len(pickle.dumps(stores[0])) + 10_000


def test_dask_computes_the_same_in_processes(tmp_path: Path) -> None:
    for at in range(3):
        xzarr3.to_zarr(day(at), tmp_path / f"{at}.zarr")
    found = xzarr3.open_mfdataset(f"{tmp_path}/*.zarr", chunks={})
    expected = by_xarray(sorted(tmp_path.glob("*.zarr")))
    with dask.config.set(scheduler="processes"):
        result = found["t2m"].sum("time").compute()
    np.testing.assert_allclose(result, expected["t2m"].sum("time"), rtol=1e-5)


def test_joined_arrays_become_dask_arrays() -> None:
    arrays = [xzarr3.create_array(MemoryStore(), data=np.arange(5.0) + at, chunks=2) for at in range(3)]
    array = xzarr3.concat(arrays, 0)
    lazy = xzarr3.from_zarr(array, chunks="units")
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == ((2, 2, 1) * 3,)
    np.testing.assert_array_equal(lazy[3:12:2].compute(), array[3:12:2])
    again = pickle.loads(pickle.dumps(array))
    assert again.shape == array.shape
    assert again.chunks == (2,)


def test_a_document_joins_the_same_stores_again(tmp_path: Path) -> None:
    for at in range(2):
        xzarr3.to_zarr(day(at), tmp_path / "data" / f"{at}.zarr")
    joined = xzarr3.concat(
        [tmp_path / "data" / f"{at}.zarr" for at in range(2)], "time", drop_variables="crs"
    )
    joined.to_json(tmp_path / "all.json")
    document = json.loads((tmp_path / "all.json").read_text())
    assert document["sources"] == [{"store": "data/0.zarr"}, {"store": "data/1.zarr"}]
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    expected = by_xarray([moved / "data" / f"{at}.zarr" for at in range(2)]).drop_vars("crs")
    assert isinstance(xzarr3.open(moved / "all.json"), xzarr3.JoinedGroup)
    xr.testing.assert_identical(xzarr3.open_dataset(moved / "all.json").load(), expected)
    xr.testing.assert_identical(xr.open_dataset(str(moved / "all.json"), engine="xzarr3").load(), expected)
    both = xzarr3.concat([xzarr3.open(moved / "data" / f"{at}.zarr", "t2m") for at in range(2)], "time")
    both.to_json(moved / "t2m.json")
    again: Any = xzarr3.open(moved / "t2m.json")
    assert isinstance(again, xzarr3.JoinedArray)
    np.testing.assert_array_equal(again[...], expected["t2m"].values)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a document of joined stores"),
        ('{"version": 1, "refs": {}}', "not a document of joined stores"),
        ('{"xzarr3_joined": 2}', "'xzarr3_joined': not a document of joined stores; found 2; accepted: 1"),
        ({"join": "merge"}, "'join'"),
        ({"dim": 1.5}, "'dim'"),
        ({"sources": []}, "'sources'"),
        ({"sources": [3]}, r"sources\[0\]"),
        ({"sources": [{"store": 3}]}, r"sources\[0\]"),
        ({"sources": [{"store": "a", "more": "b"}]}, r"sources\[0\]"),
        ({"more": 1}, "'more'"),
        ({"axis": "0"}, "'axis'"),
        ({"drop_variables": [1]}, "'drop_variables'"),
    ],
)
def test_documents_that_are_not_valid_are_refused(tmp_path: Path, document: Any, message: str) -> None:
    if isinstance(document, dict):
        whole = {"xzarr3_joined": 1, "join": "concat", "dim": "x", "sources": [{"store": "a"}]}
        document = json.dumps({**whole, **document})
    (tmp_path / "all.json").write_text(document)
    with pytest.raises(MetadataError, match=message):
        xzarr3.open(tmp_path / "all.json")


def test_a_document_nested_without_end_is_refused(tmp_path: Path) -> None:
    text = '{"store": "a"}'
    for _ in range(2000):
        text = f'{{"join": "concat", "dim": 0, "sources": [{text}]}}'
    (tmp_path / "all.json").write_text('{"xzarr3_joined": 1, ' + text[1:])
    with pytest.raises(MetadataError):
        xzarr3.open(tmp_path / "all.json")


def test_documents_that_name_one_another_are_refused(tmp_path: Path) -> None:
    for one, other in ("ab", "ba"):
        document = {"xzarr3_joined": 1, "join": "concat", "dim": 0, "sources": [{"store": f"{other}.json"}]}
        (tmp_path / f"{one}.json").write_text(json.dumps(document))
    with pytest.raises(MetadataError, match="name one another without end"):
        xzarr3.open(tmp_path / "a.json")


def test_a_document_may_name_an_array_below_another_document(tmp_path: Path) -> None:
    for at in range(2):
        xzarr3.to_zarr(day(at), tmp_path / f"{at}.zarr")
    xzarr3.concat([tmp_path / "0.zarr", tmp_path / "1.zarr"], "time").to_json(tmp_path / "all.json")
    sources = [{"store": "all.json", "path": "t2m"}, {"store": "1.zarr", "path": "t2m"}]
    document = {"xzarr3_joined": 1, "join": "concat", "dim": "time", "sources": sources}
    (tmp_path / "t2m.json").write_text(json.dumps(document))
    found = xzarr3.open(tmp_path / "t2m.json")
    np.testing.assert_array_equal(found[...], np.concatenate([day(at)["t2m"].values for at in (0, 1, 1)]))


def test_what_has_no_place_is_not_saved(tmp_path: Path) -> None:
    joined = xzarr3.concat(stores_of([day(0), day(1)]), "time")
    with pytest.raises(ArgumentError, match="source 0 has no path or URL"):
        joined.to_json(tmp_path / "all.json")
    with pytest.raises(ArgumentError, match=r"ends with '\.json'"):
        joined.to_json(tmp_path / "all.zarr")


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_copy_makes_it_real(zarr_format: Any) -> None:
    stores = stores_of([with_gaps(0), with_gaps(1)], [packed(0.01, -999), packed(0.02, -999)])
    joined = xzarr3.concat(stores, "time")
    target = MemoryStore()
    xzarr3.copy(joined, target, zarr_format=zarr_format, chunks={"time": 8})
    found = xzarr3.open_dataset(target).load()
    expected = by_xarray(stores)
    assert found["t2m"].encoding["chunks"][0] == 8
    for name in expected.variables:
        np.testing.assert_array_equal(found[name].values, expected[name].values)
    one = xzarr3.copy(joined["t2m"], MemoryStore())
    assert isinstance(one, xzarr3.Array)
    np.testing.assert_array_equal(one[...], expected["t2m"].values)
    with pytest.raises(ArgumentError, match="cannot be resumed"):
        xzarr3.copy(joined, MemoryStore(), resume=True)


def test_a_joined_dataset_is_written_like_any_other() -> None:
    stores = stores_of([day(0), day(1)], zarr_format=2)
    target = MemoryStore()
    xzarr3.to_zarr(xzarr3.open_mfdataset(stores), target, zarr_format=3)
    xr.testing.assert_equal(xzarr3.open_dataset(target).load(), by_xarray(stores))


def group() -> xzarr3.Group:
    return xzarr3.create_group(MemoryStore())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: xzarr3.concat([], "time"), "no sources"),
        (lambda: xzarr3.concat("a.zarr", "time"), "not a sequence of stores: str"),  # type: ignore[arg-type]
        (lambda: xzarr3.concat(stores_of([day(0)]), 0), "dim=0: groups are joined"),
        (lambda: xzarr3.concat(stores_of([day(0)]), "tiem"), "'tiem' is no dimension .*'time'"),
        (lambda: xzarr3.stack(stores_of([day(0)]), "time"), "'time' is a dimension of"),
        (
            lambda: xzarr3.concat([xzarr3.zeros(3), xzarr3.create_group(MemoryStore())], 0),
            "is an array, .* a group",
        ),
        (lambda: xzarr3.concat([xzarr3.zeros(3)], 1), "dim=1 is no dimension"),
        (lambda: xzarr3.stack([xzarr3.zeros(3)], axis=2), "axis=2"),
        (lambda: xzarr3.concat([xzarr3.zeros((2, 3)), xzarr3.zeros((2, 4))], 0), r"shape \(2, 4\).*\(2, 3\)"),
        (lambda: xzarr3.open_mfdataset("/nowhere/*.zarr"), "found no store that matches"),
        (lambda: xzarr3.open_mfdataset(stores_of([day(0)] * 2)), "the same labels along"),
        (lambda: xzarr3.open_mfdataset([], concat_dim="x", combine="by_coords"), "combine='by_coords' with"),
        (lambda: xzarr3.open_mfdataset([]), "no stores to open"),
        (lambda: xzarr3.open_mfdataset(["a"], concat_dim=[]), r"concat_dim=\[\]; accepted: names"),
        (lambda: xzarr3.open_mfdataset(["a.zarr"], concat_dim=["y", "x"]), "not a list of stores: 'a.zarr'"),
        (lambda: xzarr3.open_mfdataset([group()], concat_dim=["y", "x"]), "not a list of stores"),
        (lambda: xzarr3.open_mfdataset([[], []], concat_dim=["y", "x"]), r"not a list of stores: \[\]"),
        (lambda: xzarr3.stack([xzarr3.zeros(3)], axis=None), "axis=None"),  # type: ignore[arg-type]
        (
            lambda: xzarr3.concat([xzarr3.concat([xzarr3.zeros(3)], 0)], 0, path="v"),
            "path='v' in .* which is an array",
        ),
    ],
)
def test_mistakes_are_told(call: Any, message: str) -> None:
    with pytest.raises((ArgumentError, TypeError), match=message):
        call()


def test_a_store_that_vanishes_is_an_error_and_no_fill_value(tmp_path: Path) -> None:
    for at in range(2):
        xzarr3.to_zarr(day(at), tmp_path / f"{at}.zarr")
    found = xzarr3.open_mfdataset(f"{tmp_path}/*.zarr", chunks=None)
    (tmp_path / "1.zarr").rename(tmp_path / "gone")
    np.testing.assert_array_equal(found["t2m"][:4].values, day(0)["t2m"].values)
    with pytest.raises(xzarr3.Xzarr3Error):
        found["t2m"][3:6].load()


def test_a_variable_that_was_encoded_anew_is_an_error(tmp_path: Path) -> None:
    for at in range(2):
        xzarr3.to_zarr(with_gaps(at), tmp_path / f"{at}.zarr", encoding=packed(0.01, -999))
    found = xzarr3.open_mfdataset(f"{tmp_path}/*.zarr", chunks=None)
    xzarr3.open(tmp_path / "1.zarr", "t2m", mode="r+").attrs["scale_factor"] = 0.5
    with pytest.raises(xzarr3.ChangedError):
        found["t2m"].load()


def test_an_array_that_is_converted_is_no_longer_read_once_its_scale_changed() -> None:
    arrays = [
        xzarr3.create_array(MemoryStore(), data=[1, 2], attributes={"scale_factor": scale}, dtype="i2")
        for scale in (0.5, 2.0)
    ]
    joined = xzarr3.concat(arrays, 0)
    np.testing.assert_array_equal(joined[...], [0.5, 1, 2, 4])
    xzarr3.open_array(arrays[1].store, mode="r+").attrs["scale_factor"] = 7.0
    with pytest.raises(xzarr3.ChangedError, match="scale_factor"):
        joined[...]
    np.testing.assert_array_equal(arrays[1][...], [1, 2])


@pytest.mark.parametrize(
    ("zarr_format", "dtype"), [(2, "int16"), (2, ">i2"), (2, "U3"), ("3-draft", "int16"), ("3-draft", ">i2")]
)
def test_arrays_of_older_formats_can_be_copied_once_they_are_joined(zarr_format: Any, dtype: str) -> None:
    arrays = [
        xzarr3.create_array(MemoryStore(), data=np.arange(3).astype(dtype), zarr_format=zarr_format)
        for _ in range(2)
    ]
    copied = xzarr3.copy(xzarr3.concat(arrays, 0), MemoryStore())
    assert copied.format.zarr_format == 3
    np.testing.assert_array_equal(copied[...], np.tile(np.arange(3), 2).astype(dtype))


@pytest.mark.parametrize("option", [{"use_zarr_fill_value_as_mask": True}, {"zarr_format": 3}], ids=str)
def test_how_stores_are_read_cannot_be_chosen_once_they_are_joined(option: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(option))}=.* comes too late"):
        xzarr3.open_mfdataset(stores_of([day(0), day(1)]), **option)


@pytest.mark.parametrize(
    "call",
    [
        lambda joined: xzarr3.to_zarr(day(2), joined, mode="w"),
        lambda joined: xzarr3.to_zarr(day(2), joined, append_dim="time"),
        lambda joined: xzarr3.copy(xzarr3.array([1]), joined, overwrite=True),
        lambda joined: xzarr3.create_array(joined["t2m"], data=[1], overwrite=True),
        lambda joined: xzarr3.drop(joined, time=slice(None, "2000-01-01T06")),
        lambda joined: xzarr3.load(joined["t2m"]),
        xzarr3.open,
        xzarr3.check,
        xzarr3.stats,
    ],
)
def test_what_is_joined_is_not_taken_for_its_first_store(call: Any) -> None:
    stores = stores_of([day(0), day(1)])
    before = [contents(store) for store in stores]
    with pytest.raises(xzarr3.ArgumentTypeError, match=r"not a store: <xzarr3\.Joined"):
        call(xzarr3.concat(stores, "time"))
    assert [contents(store) for store in stores] == before


def test_a_joined_dataset_is_a_tree_of_one_node() -> None:
    joined = xzarr3.concat(stores_of([day(0), day(1)]), "time")
    tree = xzarr3.open_datatree(joined)
    xr.testing.assert_identical(tree.to_dataset().load(), xzarr3.open_dataset(joined).load())
    with pytest.raises(xzarr3.ArgumentTypeError, match=r"open_dataset\(\) has no argument 'engine'"):
        xzarr3.open_mfdataset([joined], concat_dim="time", engine="zarr")


def test_stores_may_be_opened_without_consolidated_metadata() -> None:
    stores = stores_of([day(0), day(1)], consolidated=False)
    assert xzarr3.open_mfdataset(stores, consolidated=False).sizes["time"] == 8
    with pytest.raises(MetadataError, match="holds no consolidated metadata"):
        xzarr3.open_mfdataset(stores, concat_dim=["time"], consolidated=True)


def test_a_document_that_came_by_a_url_names_nothing_on_this_machine(http_server: Any) -> None:
    name, folder = http_server.directory()
    for at in range(2):
        xzarr3.to_zarr(day(at), folder / f"{at}.zarr")
    paths = [f"{folder}/{at}.zarr" for at in range(2)]
    xzarr3.concat(paths, "time").to_json(folder / "all.json")
    url = f"{http_server.url}/{name}"
    expected = by_xarray(paths)
    xr.testing.assert_identical(xzarr3.open_dataset(f"{url}/all.json").load(), expected)
    for store in (f"{folder}/0.zarr", "../0.zarr", f"file://{folder}/0.zarr", "a/../../b.zarr"):
        document = {"xzarr3_joined": 1, "join": "concat", "dim": "time", "sources": [{"store": store}]}
        (folder / "bad.json").write_text(json.dumps(document))
        with pytest.raises(MetadataError, match="only stores below it, or URLs of the same kind"):
            xzarr3.open(f"{url}/bad.json")
