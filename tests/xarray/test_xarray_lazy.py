"""What is opened lazily: dask arrays of variables, values unpacked as they are read, and what is kept."""

import asyncio
import pickle
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import cftime
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import run_threads
from _documents import edit
from _engines import QUIET, Stores, ours, theirs
from _recording import recording
from _slow import slow
from _strategies import same_bits
from _things import refused
from _waiting import WaitingStore
from _xarray_datasets import DATASETS
from dask.utils import key_split
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from xarray.namedarray.daskmanager import DaskManager

import xzarr3
from xzarr3.dask.array import ZarrArray
from xzarr3.dask.layers import SelectLayer
from xzarr3.xarray import unpack
from xzarr3.xarray.backend import Xzarr3BackendEntrypoint
from xzarr3.xarray.variables import Xzarr3DataStore, as_variable

zarr = pytest.importorskip("zarr")

pytestmark = [pytest.mark.filterwarnings(each) for each in QUIET]


def is_ours(array: xr.DataArray | xr.Variable) -> bool:
    """Whether the dask array of a variable is one made here."""
    assert isinstance(array.data, da.Array)
    layers = array.data.dask.layers
    layer = layers[array.data.name]
    layer = layers[layer.source] if isinstance(layer, SelectLayer) else layer
    read = getattr(layer.indices[0][0], "read", None) if hasattr(layer, "indices") else None
    return read is not None and read.__module__ in ("xzarr3.xarray.chunked", "xzarr3.dask.array")


def is_made(array: xr.DataArray) -> bool:
    held = array.variable._data
    assert isinstance(held, ZarrArray)
    return "dask" in held.__dict__


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a store that xarray's own engine wrote."""
    return Stores(tmp_path_factory.mktemp("corpus"))("packed")


def test_opening_makes_no_graph(packed: str) -> None:
    dataset = ours(packed, chunks={})
    tas = dataset["tas"]
    assert (tas.shape, tas.ndim, tas.size, tas.dtype) == ((30, 12, 10), 3, 3600, np.float64)
    copied = dataset.copy().assign(b=1).rename(tas="t")["t"]
    assert not any(map(is_made, (tas, copied)))
    part = tas[3:7, 2].isel(lon=slice(None, None, 2))
    assert not is_made(part)
    part.compute(scheduler="sync")
    assert is_made(part)
    assert copied.data.name == tas.data.name


def test_all_that_is_opened_makes_arrays_of_its_own(packed: str) -> None:
    assert all(map(is_ours, ours(packed, chunks={}).data_vars.values()))
    assert is_ours(ours(packed)["tas"].chunk({"time": 5}))
    assert is_ours(xr.open_datatree(packed, engine=Xzarr3BackendEntrypoint, chunks={})["tas"])
    assert is_ours(pickle.loads(pickle.dumps(ours(packed))).chunk()["tas"])


def test_what_is_asked_for_in_other_words_is_made_by_others(packed: str) -> None:
    lazy = ours(packed)["tas"].variable
    for found in (
        lazy.chunk({"time": 6}, chunked_array_type=OwnManager()), lazy.chunk({"time": 6}, lock=True),
        ours(packed, chunks={}, from_array_kwargs={"asarray": False})["tas"].variable,
    ):  # fmt: skip
        assert not is_ours(found)
        np.testing.assert_array_equal(found, theirs(packed)["tas"])
    xr.testing.assert_identical(ours(packed, chunks={}, inline_array=True)["tas"], theirs(packed)["tas"])
    assert lazy.chunk({"time": 6}, name="mine").data.name.startswith("mine-")


@pytest.mark.parametrize(
    "chunks", [{"time": (10, 20), "lat": -1}, {"time": "auto"}, 5, {}, (10, 6, 5), {"time": None}], ids=repr
)
def test_chunks_of_what_was_opened_without(packed: str, chunks: Any) -> None:
    def chunked(opened: xr.Dataset) -> xr.DataArray | xr.Variable:
        return (opened["tas"].variable if isinstance(chunks, tuple) else opened["tas"]).chunk(chunks)

    def part(opened: xr.Dataset) -> xr.DataArray:
        return opened["tas"][3:25:2, ::-1].isel(lon=[4, 1, 1]).chunk({"time": 4})

    for select in (chunked, part):
        found, expected = select(ours(packed)), select(theirs(packed))
        assert found.chunks == expected.chunks
        assert found.identical(expected)
    assert is_ours(found)


class OwnManager(DaskManager):
    """Another manager of chunked arrays, which is not asked about dask's."""


def hourly(hours: int) -> tuple[Any, xr.Dataset]:
    """A store that keeps count, and 4800 hours of values that are in it, in chunks of so many hours."""
    store, values = recording(), np.random.default_rng(1).normal(size=(4800, 6))
    hour = np.datetime64("2001-01-01", "ns") + np.arange(4800) * np.timedelta64(1, "h")
    data = xr.Dataset({"t": (("time", "x"), values)}, {"time": hour})
    # What is not in one chunk is read by requests of its own, which are not counted here.
    xzarr3.to_zarr(data, store, encoding={"t": {"chunks": (hours, 6)}, "time": {"chunks": (4800,)}})
    return store, data


IN_ONE_COMPUTATION: dict[str, Callable[[xr.DataArray], list[xr.DataArray]]] = {
    "means": lambda t: [t.resample(time="1D").mean()],
    "shift": lambda t: [t - t.shift(time=1)],
    "60 times": lambda t: [t.isel(time=at) for at in range(100, 160)],
    "60 times far apart": lambda t: [t.isel(time=at) for at in range(0, 4800, 80)],
    "windows": lambda t: [t.isel(time=slice(at, at + 200)).mean("time") for at in range(0, 4600, 50)],
    "all and a part": lambda t: [t.sum(), t.isel(time=slice(7, 4000, 5)).sum(), t.isel(x=3).max()],
    "sorted": lambda t: [t.isel(time=slice(None, None, -1)) + t.isel(x=slice(None, None, -1))],
}


@pytest.mark.parametrize(
    ("name", "chunks"), [("means", "grouped"), *((name, {}) for name in IN_ONE_COMPUTATION)]
)
@pytest.mark.parametrize("hours", [240, slow(2400)])
def test_what_several_results_use_is_read_once(hours: int, name: str, chunks: Any) -> None:
    store, data = hourly(hours)
    work = IN_ONE_COMPUTATION[name]
    results = work(xzarr3.open_dataset(store, chunks=chunks)["t"])
    with store.recorded() as made:
        found = dask.compute(*results, scheduler="sync")
    for result, expected in zip(found, work(data["t"]), strict=True):
        np.testing.assert_allclose(result, expected)
    read = Counter(request.key for request in made if "/c/" in request.key)
    assert read.total() <= (1.25 if name == "means" else 1.3) * len(read)
    assert name != "means" or len(read) == 4800 // hours


def test_names_are_readable_and_tell_what_is_read(packed: str) -> None:
    def name(array: xr.DataArray) -> str:
        return str(array.data.name)

    dataset = ours(packed, chunks={})
    tas = dataset["tas"]
    assert key_split(name(tas)) == key_split(name(tas.isel(time=3))) == "open_dataset-tas"
    options = ({"chunks": {"time": 4}}, {"mask_and_scale": False}, {"mask_and_scale": {"tas": False}})
    others = [ours(packed, **{"chunks": {}, **each})["tas"] for each in options]
    assert len({name(each) for each in (tas, tas[1:], tas[3], dataset["lat_bnds"], *others)}) == 7
    for same in (tas[...], ours(packed, chunks={})["tas"], pickle.loads(pickle.dumps(dataset))["tas"]):
        assert name(same) == name(tas)
    assert name(ours(packed)["tas"].chunk()) == name(ours(packed)["tas"].chunk())
    lazy, tokenize = ours(packed), dask.base.tokenize
    assert tokenize(lazy) == tokenize(lazy.copy(deep=True)) == tokenize(ours(packed).load())
    assert tokenize(lazy) != tokenize(lazy + 1)


def test_variables_are_plain_once_they_are_loaded(packed: str) -> None:
    dataset = ours(packed)
    lazy = dataset["tas"].variable
    assert (type(lazy) is xr.Variable, type(lazy).__name__) == (False, "Variable")
    assert isinstance(lazy, xr.Variable)
    assert repr(lazy) == repr(theirs(packed)["tas"].variable)
    plain: list[Any] = [
        (lazy * 2).copy(), lazy.mean(), lazy.copy(data=np.zeros(lazy.shape)), lazy.compute().copy(),
        lazy.isel(time=slice(3)).load()[1:], pickle.loads(pickle.dumps(lazy.compute())),
        lazy.chunk({"time": 2}), xr.concat([dataset, dataset], "n")["tas"].variable,
        ours(packed).drop_vars("lat")["height"].variable,
        asyncio.run(ours(packed).load_async())["tas"].variable.copy(),
    ]  # fmt: skip
    assert {type(each) for each in plain} == {xr.Variable}
    copied, expected = dataset.copy(deep=True), theirs(packed)
    for each in (copied, expected):
        each["tas"][3, 4] = 7.0
    xr.testing.assert_identical(copied.chunk({"time": 6}), expected.chunk({"time": 6}))
    loaded = pickle.loads(pickle.dumps(dataset.load()))
    assert {type(v) for v in loaded.variables.values()} == {xr.Variable, xr.IndexVariable}


def test_loading_asynchronously_takes_few_rounds() -> None:
    data = xr.Dataset({f"v{i}": ("x", np.arange(4.0) + i) for i in range(30)})
    store = WaitingStore()
    xzarr3.to_zarr(data, store)
    dataset = ours(store)
    with store.counted() as count:
        found = asyncio.run(dataset.load_async())
    xr.testing.assert_identical(found, data)
    assert len([key for key in count.of("get") if "/c/" in key]) == 30
    assert count.rounds <= 12


def _packed_store(dtype: str, chunks: Any, shards: Any, **attributes: Any) -> xzarr3.Store:
    rng = np.random.default_rng(1)
    kind, shape = np.dtype(dtype), (70, 33, 40)
    if kind.kind == "f":
        values = rng.standard_normal(shape).astype(kind)
        values[3, 4:9] = np.nan
        values[0, 0, 0] = np.inf
    else:
        info = np.iinfo(kind)
        values = rng.integers(info.min, info.max, shape, kind, endpoint=True)
    values[5:9, ::3] = kind.type(7)
    options: Any = {"chunks": chunks, "shards": shards, "dimension_names": ["x", "y", "z"]}
    options["attributes"] = {key: np.asarray(value).item() for key, value in attributes.items()}
    return xzarr3.create_array(xzarr3.MemoryStore(), "a", data=values, **options).store


ATTRIBUTES: dict[str, st.SearchStrategy[Any]] = {
    "scale_factor": st.sampled_from([0.01, 2, 1e-30, np.float32(0.1), np.float64(0.1), np.int16(3)]),
    "add_offset": st.sampled_from([273.15, -5, 1e10]), "_FillValue": st.sampled_from([7, 0]),
    "missing_value": st.just(7), "_Unsigned": st.sampled_from(["true", "false"]),
}  # fmt: skip
LAYOUTS: list[tuple[Any, Any]] = [
    ((8, 33, 40), None), ((70, 33, 40), None), ((7, 11, 40), (35, 33, 40)), ((9, 10, 11), None)
]  # fmt: skip
INDICES: list[tuple[Any, ...]] = [
    (), (slice(3, 66), slice(1, 30)), (slice(None), 5), (slice(None, None, -2), slice(4, 30, 3)), (9, 7, 8),
    ([5, 1, 1, 60], slice(None), [3, 2]), (slice(4, 4),),
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(
    dtype=st.sampled_from(["i1", "u1", "i2", "u2", "i4", "i8", "u8", "f2", "f4", "f8"]),
    attributes=st.fixed_dictionaries({}, optional=ATTRIBUTES),
    layout=st.sampled_from(LAYOUTS),
    index=st.sampled_from(INDICES),
)
@example("i2", {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": 7}, LAYOUTS[0], ())
@example("u1", {"_FillValue": 7, "_Unsigned": "false"}, LAYOUTS[0], ())
@example("i1", {"scale_factor": 0.01, "_FillValue": 0, "_Unsigned": "true"}, LAYOUTS[2], ())
def test_unpacked_bit_by_bit(dtype: str, attributes: dict[str, Any], layout: Any, index: Any) -> None:
    store = _packed_store(dtype, *layout, **attributes)
    raw = ours(store, decode_cf=False)["a"].variable.load()
    try:
        expected = xr.conventions.decode_cf_variable("a", raw.copy())
        expected.load()
    except ValueError as error:  # What is missing is to be a number that is none, in integers.
        refused(ValueError, re.escape(str(error)), ours(store)["a"].load)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpack, "_ELEMENTS", 2**10)
        found = ours(store)["a"]
        assert found.dtype == expected.dtype
        assert found.encoding.get("dtype") == expected.encoding.get("dtype")
        part, wanted = found.isel(dict(zip("xyz", index, strict=False))).values, expected.values
        for axis in reversed(range(len(index))):  # Each index by itself, as xarray has it.
            wanted = wanted[(slice(None),) * axis + (index[axis],)]
        assert same_bits(part, np.asarray(wanted))
        assert same_bits(ours(store, chunks={})["a"].compute().values, expected.values)
    assert found.attrs == expected.attrs


def test_numpys_errors_are_raised_in_all_threads() -> None:
    store = _packed_store("f4", (8, 33, 40), None, scale_factor=1e38, add_offset=1e38)
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="raise"):
        patch.setattr(unpack, "_ELEMENTS", 2**10)
        patch.setattr(unpack, "available_threads", lambda: 2)
        array, raw = ours(store)["a"], ours(store, decode_cf=False)["a"].variable.load()
        try:
            expected = xr.conventions.decode_cf_variable("a", raw).values
        except FloatingPointError:
            refused(FloatingPointError, None, array.load)
        else:
            assert same_bits(array.values, expected)


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize(("keep", "names"), [
    ("tas", {"tas", "time", "lat", "lon"}), (["tas", "height"], {"tas", "time", "lat", "lon", "height"}),
    (["lat_bnds"], {"lat_bnds", "lat"}), (["lat"], {"lat"}), ([], set()),
])  # fmt: skip
def test_variables_to_keep(packed: str, keep: Any, names: set[str], consolidated: bool) -> None:
    options: dict[str, Any] = {"consolidated": consolidated}
    whole, found = ours(packed, **options), ours(packed, keep_variables=keep, **options)
    assert set(found.variables) == names
    xr.testing.assert_identical(found, ours(packed, drop_variables=set(whole.variables) - names, **options))
    xr.testing.assert_identical(found, xzarr3.open_dataset(packed, keep_variables=keep, **options))
    fewer = ours(packed, keep_variables=keep, drop_variables=["lat", "height"])
    assert set(fewer.variables) == names - {"lat", "height"}


def test_what_is_not_kept_is_not_looked_at() -> None:
    store = recording()
    tree = {"/": xr.Dataset({"a": 1}), "/b": DATASETS["packed"](), "/c": xr.Dataset({"tas": ("x", [1.0])})}
    xzarr3.to_zarr(xr.DataTree.from_dict(tree), store, consolidated=False)
    found = xr.open_datatree(store, engine=Xzarr3BackendEntrypoint, keep_variables=["tas"])
    names = {"/": set(), "/b": {"tas", "time", "lat", "lon"}, "/c": {"tas"}}
    assert {name: set(node.variables) for name, node in found.to_dict().items()} == names
    edit(store, "b/lat_bnds/zarr.json", data_type="decimal")
    refused(xzarr3.UnknownExtensionError, None, lambda: ours(store, group="b", on_unreadable="raise"))
    with store.recorded() as made:
        assert set(ours(store, group="b", keep_variables="tas", decode_times=False)) == {"tas"}
    assert not {request.key for request in made if request.key.startswith(("b/lat_bnds", "b/height"))}


@pytest.mark.slow
def test_small_chunks_are_grouped() -> None:
    store, values = xzarr3.MemoryStore(), np.arange(4096 * 64, dtype="i4").reshape(4096, 64)
    xzarr3.create_array(store, "a", data=values, chunks=(1, 64), dimension_names=["x", "y"])
    xzarr3.create_array(store, "b", data=values[:12], chunks=((2, 4, 6), 64), dimension_names=["z", "y"])
    found = xzarr3.open_dataset(store)
    assert 8 <= found["a"].data.npartitions <= 64
    assert found["a"].encoding["chunks"] == (1, 64)
    assert xzarr3.open_dataset(store, chunks={})["a"].data.npartitions == 4096
    assert xzarr3.open_dataset(store, chunks=None)["a"].chunks is None
    again = xzarr3.to_zarr(found, xzarr3.MemoryStore())
    for each in (found, ours(again.store)):
        xr.testing.assert_identical(each, ours(store))
    assert again["a"].chunks == (1, 64)


@pytest.mark.parametrize("layout", [{"chunks": (2, 50)}, {"chunks": (2, 5), "shards": (6, 50)}], ids=str)
@pytest.mark.parametrize("size", ["2 kiB", "20 kiB", "1 MiB"])
def test_auto_chunks_are_those_of_dask(layout: dict[str, Any], size: str) -> None:
    store, values = xzarr3.MemoryStore(), np.arange(12000, dtype="i4").reshape(60, 200)
    xzarr3.create_array(store, "a", data=values, dimension_names=["x", "y"], **layout)
    with dask.config.set({"array.chunk-size": size}):
        lazy = xzarr3.from_zarr(store, "a", chunks="auto")
        opened = [open(store, chunks="auto")["a"] for open in (ours, xzarr3.open_dataset, xzarr3.open_zarr)]
        expected = da.from_array(values, chunks="auto").chunks if size == "1 MiB" else opened[0].chunks
    assert [each.chunks for each in (lazy, *opened)] == [expected] * 4
    assert xzarr3.open_zarr(store)["a"].chunks == xzarr3.open_dataset(store)["a"].chunks
    np.testing.assert_array_equal(lazy.compute(), values)


def test_attributes_belong_to_who_opened_them() -> None:
    store = xzarr3.MemoryStore()
    root = xzarr3.create_group(store, attributes={"history": ["made"]})
    root.create_array("t", data=np.arange(3.0), dimension_names=["x"], attributes={"flags": {"a": [1]}})
    group, array = xzarr3.open_group(store).loaded(), xzarr3.open_array(store, "t")
    Xzarr3DataStore(group).get_attrs()["history"].append(print)
    as_variable(array, False).attrs["flags"]["a"].append(print)
    assert array.metadata.attributes == {"flags": {"a": [1]}}
    assert group.metadata.attributes == {"history": ["made"]}
    assert pickle.loads(pickle.dumps(array))[1] == 1.0


@pytest.mark.parametrize("chunks", [None, {}])
def test_threads_may_load_what_others_select_of(packed: str, chunks: Any) -> None:
    data = ours(packed, chunks=chunks)
    expected = theirs(packed)["tas"].isel(time=slice(0, 2)).values
    variables = [data["tas"].variable.copy(deep=False) for _ in range(40)]

    def select() -> None:
        for variable in [each for each in variables for _ in range(3)]:
            for each in (variable.copy(deep=False), variable.chunk({"time": 1})):
                assert each.isel(time=slice(0, 2)).shape == expected.shape

    run_threads(select, lambda: [variable.load() for variable in variables], select)
    assert all(isinstance(variable._data, np.ndarray) for variable in variables)
    np.testing.assert_array_equal(variables[0].isel(time=slice(0, 2)).values, expected)


@pytest.mark.filterwarnings("ignore::xarray.conventions.SerializationWarning")
def test_blocks_of_times_are_of_the_type_that_the_first_and_the_last_time_have() -> None:
    dates = np.array(["2000-01-01", "2001-01-01", "2400-01-01"], "M8[s]")
    asked = {"chunks": (1,), "units": "seconds since 2000-01-01", "dtype": "i8"}

    def stored(values: Any, **encoding: Any) -> Any:
        return xzarr3.to_zarr(xr.Dataset({"v": ("d", values)}), encoding={"v": {**asked, **encoding}}).store

    for calendar in ("standard", "proleptic_gregorian"):
        far = stored(dates, calendar=calendar)
        found, whole = (ours(far, chunks=chunks)["v"].values for chunks in ({}, None))
        assert [(type(date), date) for date in found] == [(type(date), date) for date in whole]
    lengths = np.array([1002, 5006, 6007], "m8[ms]")
    hours = stored(lengths, units="hours", dtype="f8")
    np.testing.assert_array_equal(ours(hours, chunks={})["v"], lengths)
    fractions = stored(np.array([1000, 2500, 3000], "M8[ms]"), dtype="f8")
    in_seconds = xr.coders.CFDatetimeCoder(time_unit="s")
    for store, options, finer in (
        (stored(dates[[0, 2, 1]]), {}, "us"),
        (fractions, {"decode_times": in_seconds}, "ms"),
    ):
        with pytest.raises(
            xzarr3.ArgumentError, match=rf"a block of /v .*CFDatetimeCoder\(time_unit='{finer}'"
        ):
            ours(store, chunks={}, **options)["v"].compute()
        coder = xr.coders.CFDatetimeCoder(time_unit=finer)
        whole = ours(store, chunks=None, decode_times=coder)
        xr.testing.assert_identical(ours(store, chunks={}, decode_times=coder), whole)


@pytest.mark.filterwarnings("ignore::xarray.conventions.SerializationWarning")
@pytest.mark.parametrize("chunks", [None, {}], ids=str)
@pytest.mark.parametrize(("missing", "dtype"), [(np.nan, "f8"), (-9, "i4")])
@pytest.mark.parametrize(("calendar", "last"), [("noleap", 7), ("standard", 146000)])
def test_dates_are_not_the_date_of_the_units(
    calendar: str, last: int, missing: float, dtype: str, chunks: Any
) -> None:
    attributes = {"units": "days since 2000-01-01", "calendar": calendar, "_FillValue": -9}
    stored = np.array([5, missing, last], dtype)
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), "v", data=stored, chunks=(1,), dimension_names=["d"], attributes=attributes
    )
    found = ours(array.store, chunks=chunks)
    assert found["v"].isnull().values.tolist() == [False, True, False]
    dates = cftime.num2date([5, last], attributes["units"], calendar)
    assert found["v"].values[[0, 2]].tolist() == dates.tolist()
    assert found["v"][1:1].values.shape == (0,)
    with pytest.raises(xzarr3.DataTypeValidationError, match=r"'v' has a missing date at index"):
        xzarr3.to_zarr(found)


@pytest.mark.filterwarnings("ignore::xarray.conventions.SerializationWarning")
@pytest.mark.parametrize("chunks", [None, {}], ids=str)
@pytest.mark.parametrize("dtype", ["f4", "i4", "i8"])
@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
@pytest.mark.parametrize("stored", [[-9, 5], [5, -9], [[-9, 5], [6, -9]], [-9, -9], -9, []], ids=str)
def test_the_first_and_the_last_date_may_be_missing(
    stored: Any, calendar: str, dtype: str, chunks: Any
) -> None:
    attributes = {"units": "days since 2000-01-01", "calendar": calendar, "_FillValue": -9}
    data = np.array(stored, dtype)
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), "v", data=data, dimension_names="xy"[: data.ndim], attributes=attributes
    )
    plain = xr.coders.CFDatetimeCoder(use_cftime=None)
    for options in ({}, {"decode_times": {"other": True}}, {"decode_times": plain}):
        found = ours(array.store, chunks=chunks, **options)["v"]
        assert found.dtype == found.values.dtype == ("M8[ns]" if calendar == "standard" else object)
        assert np.array_equal(found.isnull(), data == -9)
        dates = cftime.num2date(data[data != -9], attributes["units"], calendar)
        assert [str(date)[:10] for date in found.values[data != -9]] == [str(date)[:10] for date in dates]
    assert found.encoding["units"] == attributes["units"]


@pytest.mark.filterwarnings("ignore::xarray.conventions.SerializationWarning")
@pytest.mark.parametrize("chunks", [None, {}], ids=str)
@pytest.mark.parametrize(
    ("units", "calendar", "first"),
    [
        ("microseconds since 0001-01-01", "standard", 63082281600000001),
        ("microseconds since 2000-01-01", "noleap", 103186396800001003),
        ("microseconds since 2000-01-01", "standard", 102617539200001001),
        ("nanoseconds since 1970-01-01", "standard", 1234567890123456789),
    ],
)
def test_large_integers_are_the_dates_that_they_say(
    units: str, calendar: str, first: int, chunks: Any
) -> None:
    """xarray makes floats of those that pandas does not decode: microseconds get lost."""
    numbers = np.array([first, -1, first + 86400_000_000])
    attributes = {"units": units, "calendar": calendar, "_FillValue": -1}
    array = xzarr3.create_array(
        xzarr3.MemoryStore(), "v", data=numbers, dimension_names=["d"], attributes=attributes
    )
    found = ours(array.store, chunks=chunks)["v"].values
    assert np.array_equal(xr.DataArray(found).isnull(), [False, True, False])
    if units.startswith("nano"):
        assert found[[0, 2]].astype(int).tolist() == numbers[[0, 2]].tolist()
        return
    for date, number in zip(found[[0, 2]], numbers[[0, 2]], strict=True):
        told = np.datetime_as_string(date, unit="us") if found.dtype.kind == "M" else date.isoformat()
        assert told == cftime.num2date(int(number), units, calendar).isoformat()


@pytest.mark.parametrize("chunks", [None, {}], ids=str)
def test_widened_time_differences_are_read(chunks: Any) -> None:
    store = xzarr3.to_zarr(xr.Dataset({"v": ("d", np.array([1, 2], "m8[s]"))})).store
    added = xr.Dataset({"v": ("d", np.array([1500, 4000], "m8[ms]"))})
    xzarr3.to_zarr(added, store, append_dim="d", widen_units=True)
    found = ours(store, chunks=chunks)["v"]
    assert found.dtype == found.values.dtype == "m8[ms]"
    assert found.values.astype(int).tolist() == [1000, 2000, 1500, 4000]
