"""What is opened lazily: dask arrays of variables, values unpacked as they are read, and what is kept."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _engines import QUIET, Stores, ours, theirs
from _recording import recording
from _slow import slow
from _waiting import WaitingStore
from _xarray_datasets import CORPUS, TEXTS
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

EVERYTHING = {**CORPUS, **TEXTS}


def is_ours(array: xr.DataArray | xr.Variable) -> bool:
    """Whether the dask array of a variable is one made here."""
    assert isinstance(array.data, da.Array)
    layers = array.data.dask.layers
    layer = layers[array.data.name]
    if isinstance(layer, SelectLayer):
        layer = layers[layer.source]
    read = getattr(layer.indices[0][0], "read", None) if hasattr(layer, "indices") else None
    return read is not None and read.__module__ in ("xzarr3.xarray.chunked", "xzarr3.dask.array")


def is_made(array: xr.DataArray) -> bool:
    held = array.variable._data
    assert isinstance(held, ZarrArray)
    return "dask" in held.__dict__


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def written(stores: Stores) -> dict[str, str]:
    """Paths of stores that xarray's own engine wrote, by name."""
    return {name: stores(name) for name in EVERYTHING}


@pytest.fixture
def packed(written: dict[str, str]) -> str:
    return written["packed"]


# Dask arrays of variables


@pytest.mark.parametrize("chunks", [{}, slow("auto"), slow(-1), slow({"time": 4, "x": 5})], ids=repr)
@pytest.mark.parametrize("name", EVERYTHING)
def test_same_as_xarray_makes_of_them(written: dict[str, str], name: str, chunks: Any) -> None:
    try:
        expected = theirs(written[name], chunks=chunks)
    except NotImplementedError:  # Nobody knows the size of objects.
        with pytest.raises(NotImplementedError):
            ours(written[name], chunks=chunks)
        return
    found = ours(written[name], chunks=chunks)
    for key, variable in found.variables.items():
        xarrays = expected[key].variable
        assert isinstance(variable, type(xarrays))
        assert variable.dtype == xarrays.dtype
        if not variable.encoding.get("shards"):  # What is opened in whole shards can be saved again.
            assert variable.chunks == xarrays.chunks
        if variable.chunks is not None:
            assert is_ours(variable)
            assert type(variable.data._meta) is type(xarrays.data._meta)
            assert variable.data._meta.dtype == xarrays.data._meta.dtype
            assert variable.data._meta.shape == xarrays.data._meta.shape
    if name == "records":  # xarray cannot compare these in dask arrays.
        found, expected = found.load(), expected.load()
    xr.testing.assert_identical(found, expected)


def test_opening_makes_no_graph(packed: str) -> None:
    dataset = ours(packed, chunks={})
    tas = dataset["tas"]
    assert tas.shape == (30, 12, 10)
    assert tas.ndim == 3
    assert tas.size == 3600
    assert tas.dtype == np.float64
    copied = dataset.copy().assign(b=1).rename(tas="t")["t"]
    assert not is_made(tas)
    assert not is_made(copied)
    part = tas[3:7, 2].isel(lon=slice(None, None, 2))
    assert not is_made(part)
    part.compute(scheduler="sync")
    assert is_made(part)
    assert copied.data.name == tas.data.name


def test_all_that_is_opened_makes_arrays_of_its_own(packed: str) -> None:
    assert is_ours(ours(packed, chunks={})["tas"])
    assert is_ours(ours(packed)["tas"].chunk({"time": 5}))
    assert is_ours(xr.open_datatree(packed, engine=Xzarr3BackendEntrypoint, chunks={})["tas"])
    assert is_ours(pickle.loads(pickle.dumps(ours(packed))).chunk()["tas"])


@pytest.mark.parametrize(
    "chunks", [{"time": (10, 20), "lat": -1}, {"time": "auto"}, 5, {}, (10, 6, 5), {"time": None}], ids=repr
)
def test_chunks_of_what_was_opened_without(packed: str, chunks: Any) -> None:
    found, expected = ours(packed)["tas"], theirs(packed)["tas"]
    if isinstance(chunks, tuple):
        found, expected = found.variable, expected.variable
    found, expected = found.chunk(chunks), expected.chunk(chunks)
    assert found.chunks == expected.chunks
    np.testing.assert_array_equal(found, expected)
    found = ours(packed)["tas"][3:25:2, ::-1].isel(lon=[4, 1, 1]).chunk({"time": 4})
    expected = theirs(packed)["tas"][3:25:2, ::-1].isel(lon=[4, 1, 1]).chunk({"time": 4})
    assert is_ours(found)
    assert found.chunks == expected.chunks
    xr.testing.assert_identical(found, expected)


def test_empty() -> None:
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, "a", shape=(0, 4), dtype="f4", chunks=(2, 2), dimension_names=["x", "y"])
    found = ours(store, chunks={})["a"]
    assert found.chunks == ((0,), (2, 2))
    assert found.compute().shape == (0, 4)
    assert found.isel(y=slice(1, 3)).compute().shape == (0, 2)


class OwnManager(DaskManager):
    """Another manager of chunked arrays, which is not asked about dask's."""

    made: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.made = []

    def from_array(self, data: Any, chunks: Any, **options: Any) -> Any:
        self.made.append(chunks)
        return super().from_array(data, chunks, **options)


def test_other_managers_make_their_own(packed: str) -> None:
    manager: Any = OwnManager()
    found = ours(packed)["tas"].variable.chunk({"time": 6}, chunked_array_type=manager)
    assert manager.made
    assert not is_ours(found)
    np.testing.assert_array_equal(found, theirs(packed)["tas"])


def test_arguments_for_from_array_are_heeded(packed: str) -> None:
    found = ours(packed, chunks={}, from_array_kwargs={"asarray": False})["tas"]
    assert not is_ours(found)
    locked = ours(packed)["tas"].variable.chunk({"time": 6}, lock=True)
    assert not is_ours(locked)
    inlined = ours(packed, chunks={}, inline_array=True)["tas"]
    xr.testing.assert_identical(inlined, theirs(packed)["tas"])
    named = ours(packed)["tas"].variable.chunk({"time": 6}, name="mine")
    assert named.data.name.startswith("mine-")


def chunks_read(requests: Sequence[Any]) -> Counter[str]:
    """How often each chunk was asked for."""
    return Counter(request.key for request in requests if "/c/" in request.key)


def hourly(hours: int, **encoding: Any) -> tuple[Any, xr.Dataset]:
    """A store that keeps count, and 4800 hours of values that are in it, in chunks of so many hours."""
    store = recording()
    rng = np.random.default_rng(1)
    hour = np.datetime64("2001-01-01", "ns") + np.arange(4800) * np.timedelta64(1, "h")
    data = xr.Dataset({"t": (("time", "x"), rng.normal(size=(4800, 6)))}, {"time": hour})
    # What is not in one chunk is read by requests of its own, which are not counted here.
    options = {"t": {"chunks": (hours, 6), **encoding}, "time": {"chunks": (4800,)}}
    xzarr3.to_zarr(data, store, encoding=options)
    return store, data


@pytest.mark.parametrize("hours", [240, slow(960), slow(2400)])
@pytest.mark.parametrize("chunks", [{}, "grouped"], ids=["units", "grouped"])
def test_means_of_each_day_read_each_chunk_once(hours: int, chunks: Any) -> None:
    store, data = hourly(hours)
    dataset = xzarr3.xarray.open_dataset(store, chunks=chunks)
    means = dataset["t"].resample(time="1D").mean()
    with store.recorded() as made:
        found = means.compute(scheduler="sync")
    xr.testing.assert_allclose(found, data["t"].resample(time="1D").mean())
    read = chunks_read(made)
    assert len(read) == 4800 // hours
    assert read.total() <= 1.25 * len(read)


IN_ONE_COMPUTATION: dict[str, Callable[[xr.DataArray], list[xr.DataArray]]] = {
    "shift": lambda t: [t - t.shift(time=1)],
    "60 times": lambda t: [t.isel(time=at) for at in range(100, 160)],
    "60 times far apart": lambda t: [t.isel(time=at) for at in range(0, 4800, 80)],
    "windows": lambda t: [t.isel(time=slice(at, at + 200)).mean("time") for at in range(0, 4600, 50)],
    "all and a part": lambda t: [t.sum(), t.isel(time=slice(7, 4000, 5)).sum(), t.isel(x=3).max()],
    "sorted": lambda t: [t.isel(time=slice(None, None, -1)) + t.isel(x=slice(None, None, -1))],
}


@pytest.mark.parametrize("name", IN_ONE_COMPUTATION)
@pytest.mark.parametrize("hours", [240, slow(2400)])
def test_what_several_results_use_is_read_once(hours: int, name: str) -> None:
    store, data = hourly(hours)
    work = IN_ONE_COMPUTATION[name]
    results = work(ours(store, chunks={})["t"])
    with store.recorded() as made:
        found = dask.compute(*results, scheduler="sync")
    for result, expected in zip(found, work(data["t"]), strict=True):
        np.testing.assert_allclose(result, expected)
    read = chunks_read(made)
    assert read.total() <= 1.3 * len(read)


def test_a_row_of_a_large_block_moves_little() -> None:
    """A block that nobody else needs is not read whole, nor one of which several need little."""
    store = recording(request_bytes=2**16)
    shape = (64, 2**17)  # 64 MiB.
    array = xzarr3.create_array(
        store, "t", shape=shape, chunks=shape, dtype="f8", compressors=None, dimension_names=["y", "x"]
    )
    array[5:7] = np.arange(2**18).reshape(2, -1)
    lazy = ours(store, chunks={})["t"]
    for rows in ([lazy[5]], [lazy[5].sum(), lazy[60].max()], [lazy.isel(y=slice(5, 7)).mean("x")]):
        with store.recorded() as made:
            found = dask.compute(*rows, scheduler="sync")
        assert sum(request.length for request in made) < 4 * 2**20
    np.testing.assert_array_equal(found[0], np.arange(2**18).reshape(2, -1).mean(1))


@pytest.mark.parametrize("scheduler", ["sync", slow("processes")])
def test_every_scheduler(written: dict[str, str], scheduler: str, request: pytest.FixtureRequest) -> None:
    """That of a cluster is in ``tests/cluster``."""
    pool = request.getfixturevalue("processes") if scheduler == "processes" else None
    for name in ("packed", "calendars", "texts"):
        with dask.config.set(scheduler=scheduler, pool=pool):
            found = ours(written[name], chunks={}).compute()
        xr.testing.assert_identical(found, theirs(written[name]))


# Names


def test_names_are_readable_and_tell_what_is_read(packed: str) -> None:
    def name(array: xr.DataArray) -> str:
        return str(array.data.name)

    dataset = ours(packed, chunks={})
    tas = dataset["tas"]
    assert key_split(name(tas)) == key_split(name(tas.isel(time=3))) == "open_dataset-tas"
    options: list[dict[str, Any]] = [
        {"chunks": {"time": 4}}, {"mask_and_scale": False}, {"mask_and_scale": {"tas": False}},
    ]  # fmt: skip
    others = [ours(packed, **{"chunks": {}, **each})["tas"] for each in options]
    assert len({name(each) for each in (tas, tas[1:], tas[3], dataset["lat_bnds"], *others)}) == 7
    for same in (tas[...], ours(packed, chunks={})["tas"], pickle.loads(pickle.dumps(dataset))["tas"]):
        assert name(same) == name(tas)


# Variables that are not loaded yet


def test_variables_are_plain_once_they_are_loaded(packed: str) -> None:
    dataset = ours(packed)
    lazy = dataset["tas"].variable
    assert type(lazy) is not xr.Variable
    assert type(lazy).__name__ == "Variable"
    assert isinstance(lazy, xr.Variable)
    assert repr(lazy) == repr(theirs(packed)["tas"].variable)
    assert type((lazy * 2).copy()) is xr.Variable
    assert type(lazy.mean()) is xr.Variable
    assert type(lazy.copy(data=np.zeros(lazy.shape))) is xr.Variable
    assert type(lazy.compute().copy()) is type(lazy.isel(time=slice(3)).load()[1:]) is xr.Variable
    assert type(pickle.loads(pickle.dumps(lazy.compute()))) is xr.Variable
    assert type(lazy.chunk({"time": 2})) is xr.Variable
    assert type(xr.concat([dataset, dataset], "n")["tas"].variable) is xr.Variable
    copied = dataset.copy(deep=True)
    xr.testing.assert_identical(copied, theirs(packed))
    loaded = pickle.loads(pickle.dumps(dataset.load()))
    assert {type(v) for v in loaded.variables.values()} == {xr.Variable, xr.IndexVariable}
    again = asyncio.run(ours(packed).load_async())
    assert type(again["tas"].variable.copy()) is xr.Variable
    assert type(ours(packed).drop_vars("lat")["height"].variable) is xr.Variable


def test_assigning_to_what_is_not_loaded(packed: str) -> None:
    found, expected = ours(packed), theirs(packed)
    for dataset in (found, expected):
        dataset["tas"][3, 4] = 7.0
        dataset["lat_bnds"][0] = -1.0
    xr.testing.assert_identical(found, expected)
    xr.testing.assert_identical(found.chunk({"time": 6}), expected.chunk({"time": 6}))


def test_loading_asynchronously_takes_few_rounds() -> None:
    """As many at a time as the event loop has threads."""
    data = xr.Dataset({f"v{i}": ("x", np.arange(4.0) + i) for i in range(30)})
    store = WaitingStore()
    xzarr3.to_zarr(data, store)
    dataset = ours(store)
    with store.counted() as count:
        found = asyncio.run(dataset.load_async())
    xr.testing.assert_identical(found, data)
    assert len([key for key in count.of("get") if "/c/" in key]) == 30
    assert count.rounds <= 12


# Values unpacked as they are read


def same_bits(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    bits = f"u{found.dtype.itemsize}" if found.dtype.kind in "iuf" else found.dtype
    np.testing.assert_array_equal(
        np.ascontiguousarray(found).view(bits), np.ascontiguousarray(expected).view(bits)
    )


SCALES = (None, 0.01, 2, 1e-30, np.float32(0.1), np.float64(0.1), np.int16(3))


def _packed_store(
    dtype: str, scale: Any, offset: Any, fills: dict[str, Any], chunks: Any, shards: Any, unsigned: Any
) -> xzarr3.MemoryStore:
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
    store = xzarr3.MemoryStore()
    attributes = {key: value for key, value in fills.items() if value is not None}
    for key, value in (("scale_factor", scale), ("add_offset", offset), ("_Unsigned", unsigned)):
        if value is not None:
            attributes[key] = value.item() if hasattr(value, "item") else value
    xzarr3.create_array(
        store, "a", data=values, chunks=chunks, shards=shards, dimension_names=["x", "y", "z"],
        attributes=attributes,
    )  # fmt: skip
    return store


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    dtype=st.sampled_from(["i1", "u1", "i2", "u2", "i4", "i8", "u8", "f2", "f4", "f8"]),
    scale=st.sampled_from(SCALES),
    offset=st.sampled_from([None, 273.15, -5, 1e10]),
    fill=st.sampled_from([None, 7, 0]),
    missing=st.sampled_from([None, 7]),
    unsigned=st.sampled_from([None, None, "true", "false"]),
    layout=st.sampled_from(
        [((8, 33, 40), None), ((70, 33, 40), None), ((7, 11, 40), (35, 33, 40)), ((9, 10, 11), None)]
    ),
    index=st.sampled_from(
        [
            (),
            (slice(3, 66), slice(1, 30)),
            (slice(None), 5),
            (slice(None, None, -2), slice(4, 30, 3)),
            (9, 7, 8),
            ([5, 1, 1, 60], slice(None), [3, 2]),
            (slice(4, 4),),
        ]
    ),
)
@example("i2", 0.01, 273.15, 7, None, None, ((8, 33, 40), None), ())
@example("u1", None, None, 7, None, "false", ((8, 33, 40), None), ())
@example("i1", 0.01, None, 0, None, "true", ((7, 11, 40), (35, 33, 40)), ())
def test_unpacked_as_xarray_does_it_bit_by_bit(
    dtype: str, scale: Any, offset: Any, fill: Any, missing: Any, unsigned: Any, layout: Any, index: Any
) -> None:
    fills = {"_FillValue": fill, "missing_value": missing}
    store = _packed_store(dtype, scale, offset, fills, *layout, unsigned)
    raw = ours(store, decode_cf=False)["a"].variable.load()
    try:
        expected = xr.conventions.decode_cf_variable("a", raw.copy())
        expected.load()
    except ValueError as error:  # What is missing is to be a number that is none, in integers.
        with pytest.raises(ValueError, match=re.escape(str(error))):
            ours(store)["a"].load()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpack, "_ELEMENTS", 2**10)
        found = ours(store)["a"]
        assert found.dtype == expected.dtype
        assert found.encoding.get("dtype") == expected.encoding.get("dtype")
        same_bits(found.isel(dict(zip("xyz", index, strict=False))).values, _outer(expected.values, index))
        chunked = ours(store, chunks={})["a"].compute()
        same_bits(chunked.values, expected.values)
    assert found.attrs == expected.attrs


def _outer(values: np.ndarray[Any, Any], index: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """Each index by itself, as xarray has it."""
    for axis in reversed(range(len(index))):
        values = values[(slice(None),) * axis + (index[axis],)]
    return np.asarray(values)


def test_numpys_errors_are_raised_in_all_threads() -> None:
    store = _packed_store("f4", 1e38, 1e38, {}, (8, 33, 40), None, None)
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="raise"):
        patch.setattr(unpack, "_ELEMENTS", 2**10)
        patch.setattr(unpack, "available_threads", lambda: 2)
        array = ours(store)["a"]
        raw = ours(store, decode_cf=False)["a"].variable.load()
        try:
            expected = xr.conventions.decode_cf_variable("a", raw).values
        except FloatingPointError:
            with pytest.raises(FloatingPointError):
                array.load()
        else:
            same_bits(array.values, expected)


# What is kept


def test_variables_to_keep(packed: str, tmp_path: Path) -> None:
    for consolidated in (True, False):
        options: dict[str, Any] = {"consolidated": consolidated}
        whole = ours(packed, **options)
        for keep, names in (
            ("tas", {"tas", "time", "lat", "lon"}),
            (["tas", "height"], {"tas", "time", "lat", "lon", "height"}),
            (["lat_bnds"], {"lat_bnds", "lat"}),
            (["lat"], {"lat"}),
            ([], set()),
        ):
            found = ours(packed, keep_variables=keep, **options)
            assert set(found.variables) == names
            expected = ours(packed, drop_variables=set(whole.variables) - names, **options)
            xr.testing.assert_identical(found, expected)
    both = ours(packed, keep_variables=["tas", "height"], drop_variables=["lat", "height"])
    assert set(both.variables) == {"tas", "time", "lon"}
    xr.testing.assert_identical(
        xzarr3.open_dataset(packed, keep_variables="lat"), ours(packed, keep_variables="lat")
    )


def test_what_is_not_kept_is_not_looked_at() -> None:
    store = recording()
    xzarr3.to_zarr(CORPUS["packed"](), store, consolidated=False)
    document = json.loads(bytes(store.get("lat_bnds/zarr.json") or b""))
    store.set("lat_bnds/zarr.json", json.dumps({**document, "data_type": "decimal"}).encode())
    with pytest.raises(xzarr3.UnknownExtensionError):
        ours(store, on_unreadable="raise")
    with store.recorded() as made:
        assert set(ours(store, keep_variables="tas", decode_times=False)) == {"tas"}
    assert not {request.key for request in made if request.key.startswith(("lat_bnds", "height"))}


def test_variables_to_keep_in_a_tree(tmp_path: Path) -> None:
    path = str(tmp_path / "tree")
    tree = {"/": xr.Dataset({"a": 1}), "/b": CORPUS["packed"](), "/c": xr.Dataset({"tas": ("x", [1.0])})}
    xr.DataTree.from_dict(tree).to_zarr(path, zarr_format=3)
    found = xr.open_datatree(path, engine=Xzarr3BackendEntrypoint, keep_variables=["tas"])
    assert {name: set(node.variables) for name, node in found.to_dict().items()} == {
        "/": set(),
        "/b": {"tas", "time", "lat", "lon"},
        "/c": {"tas"},
    }


# The package's own open_dataset


@pytest.mark.slow
def test_small_chunks_are_grouped() -> None:
    store = xzarr3.MemoryStore()
    values = np.arange(4096 * 64, dtype="i4").reshape(4096, 64)
    xzarr3.create_array(store, "a", data=values, chunks=(1, 64), dimension_names=["x", "y"])
    xzarr3.create_array(store, "b", data=values[:12], chunks=((2, 4, 6), 64), dimension_names=["z", "y"])
    found = xzarr3.open_dataset(store)
    assert 8 <= found["a"].data.npartitions <= 64
    assert found["a"].encoding["chunks"] == (1, 64)
    xr.testing.assert_identical(found, ours(store))
    assert xzarr3.open_dataset(store, chunks={})["a"].data.npartitions == 4096
    assert xzarr3.open_dataset(store, chunks=None)["a"].chunks is None
    again = xzarr3.MemoryStore()
    xzarr3.to_zarr(found, again)
    xr.testing.assert_identical(ours(again), ours(store))
    assert xzarr3.open_array(again, "a").chunks == (1, 64)


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


# Errors are of the types that the zarr engine raises


@pytest.mark.parametrize(
    ("kind", "where", "options"),
    [
        (FileNotFoundError, "nowhere", {}),
        (FileNotFoundError, "nowhere", {"consolidated": False}),
        (FileNotFoundError, "nowhere", {"consolidated": True}),
        (KeyError, "packed", {"group": "none"}),
        (FileNotFoundError, "packed", {"group": "none", "consolidated": False}),
        (FileNotFoundError, "packed", {"zarr_format": 2, "consolidated": False}),
        (ValueError, "packed", {"chunks": "some"}),
        (TypeError, "packed", {"nonsense": 1}),
    ],
)
def test_errors_have_the_types_of_the_zarr_engine(
    written: dict[str, str], kind: type[Exception], where: str, options: dict[str, Any]
) -> None:
    path = written.get(where, f"{written['packed']}/{where}")
    for engine in (Xzarr3BackendEntrypoint, "zarr"):
        with pytest.raises(kind):
            xr.open_dataset(path, engine=engine, **options)


def test_tokens_are_those_of_the_values(packed: str) -> None:
    lazy = ours(packed)
    token = dask.base.tokenize(lazy)
    assert token == dask.base.tokenize(lazy.copy(deep=True)) == dask.base.tokenize(ours(packed).load())
    assert token != dask.base.tokenize(lazy + 1)


def test_attributes_belong_to_who_opened_them() -> None:
    store = xzarr3.MemoryStore()
    root = xzarr3.create_group(store, attributes={"history": ["made"]})
    root.create_array("t", data=np.arange(3.0), dimension_names=["x"], attributes={"flags": {"a": [1]}})
    group = xzarr3.open_group(store).loaded()
    data = Xzarr3DataStore(group)
    data.get_attrs()["history"].append(print)
    array = xzarr3.open_array(store, "t")
    variable = as_variable(array, False)
    variable.attrs["flags"]["a"].append(print)
    assert array.metadata.attributes == {"flags": {"a": [1]}}
    assert group.metadata.attributes == {"history": ["made"]}
    assert pickle.loads(pickle.dumps(array))[1] == 1.0


@pytest.mark.parametrize("chunks", [None, {}])
def test_threads_may_load_what_others_select_of(packed: str, chunks: Any) -> None:
    data = ours(packed, chunks=chunks)
    expected = theirs(packed)["tas"].isel(time=slice(0, 2)).values
    before = sys.getswitchinterval()
    variables = [data["tas"].variable.copy(deep=False) for _ in range(40)]

    def select() -> None:
        for variable in variables:
            for _ in range(3):
                assert variable.copy(deep=False).isel(time=slice(0, 2)).shape == expected.shape
                assert variable.chunk({"time": 1}).isel(time=slice(0, 2)).shape == expected.shape

    def load() -> None:
        for variable in variables:
            variable.load()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            for done in [threads.submit(work) for work in (select, load, select)]:
                done.result()
    finally:
        sys.setswitchinterval(before)
    assert all(isinstance(variable._data, np.ndarray) for variable in variables)
    assert np.array_equal(variables[0].isel(time=slice(0, 2)).values, expected, equal_nan=True)
