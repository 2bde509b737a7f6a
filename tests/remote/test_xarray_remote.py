"""Datasets in stores whose answers have to be waited for: how many requests, rounds, and which errors."""

import asyncio
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask
import msgspec
import numpy as np
import obstore.store as obstore
import pandas as pd
import pytest
import xarray as xr
import zarr.storage
from _conformance import run_threads
from _things import refused, without_addresses
from _waiting import Count, WaitingStore
from _xarray_datasets import CORPUS, in_format

import xzarr3
import xzarr3.xarray
from xzarr3 import MissingChunksError, StoreError
from xzarr3.xarray import Xzarr3BackendEntrypoint, lazy
from xzarr3.xarray import backend as backend_module

OURS = Xzarr3BackendEntrypoint


class FarStore(WaitingStore):
    """Values that have to be waited for; keys in :attr:`broken` have none."""

    def __init__(self, values: Any, *, concurrency: int = 64) -> None:
        super().__init__()
        self._values = dict(values)
        self.traits = msgspec.structs.replace(self.traits, concurrency=concurrency)
        self.broken: set[str] = set()
        self.before = self._check

    def _check(self, operation: str, key: str) -> None:
        if key in self.broken:
            raise StoreError(f"key '{key}' of {self}: status 503")

    def __reduce__(self) -> Any:
        return xzarr3.MemoryStore, (dict(self._values),)

    def take(self) -> list[str]:
        found, self.count = self.count.requests, Count()
        return [key for _, key in found]


def ours(store: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine=OURS, **options)


def near(values: Any, **options: Any) -> xr.Dataset:
    return ours(xzarr3.MemoryStore(values), **options)


def far(values: Any, **options: Any) -> xr.Dataset:
    return ours(FarStore(values), **options)


def variables(keys: list[str]) -> set[str]:
    return {key.partition("/")[0] for key in keys}


def chunks_of(keys: list[str]) -> list[str]:
    """The chunks among keys, which otherwise are the one document."""
    documents = [key for key in keys if "/c" not in key]
    assert documents == ["zarr.json"]
    return sorted(key for key in keys if key not in documents)


def forecast() -> xr.Dataset:
    times = pd.date_range("2001-01-01", periods=8, freq="6h")
    ds = xr.Dataset(
        coords={
            "time": ("time", times, {"bounds": "time_bnds"}), "lat": np.linspace(-60, 60, 5),
            "level": ("level", [1000.0, 850.0, 500.0], {"units": "hPa"}), "lon": np.arange(0, 360, 60),
            "member": ("member", np.array(["control", "one", "two"], object)),
            "band": ("band", np.array([*"xyz"])), "reference": ((), times[0]),
            "valid": (("time", "member"), np.tile(times.values[:, None], (1, 3))),
        }
    )  # fmt: skip
    ds["time_bnds"] = (("time", "bnds"), np.stack([times, times + pd.Timedelta("6h")], 1))
    values = np.arange(8 * 3 * 5 * 6, dtype="float32").reshape(8, 3, 5, 6)
    for number in range(30):
        ds[f"v{number}"] = (("time", "level", "lat", "lon"), values + number)
        ds[f"v{number}"].encoding = {"chunks": (4, 3, 5, 6)}
    ds["time"].encoding = {"units": "hours since 1970-01-01", "dtype": "int64", "chunks": (3,)}
    ds["lat"].encoding = {"chunks": (2,)}
    return ds


def values_of(ds: xr.Dataset | xr.DataTree, path: Path, zarr_format: Any = 3) -> Any:
    ds.to_zarr(path, consolidated=True, zarr_format=zarr_format, write_empty_chunks=True)
    store = xzarr3.LocalStore(path)
    return {key: bytes(store.get(key) or b"") for key in store.list_prefix("")}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    values: dict[str, bytes] = values_of(forecast(), tmp_path_factory.mktemp("forecast") / "a.zarr")
    # As in the conventions, bounds have the units of what they bound and none of their own.
    edited = {key: json.loads(values[key]) for key in ("zarr.json", "time_bnds/zarr.json")}
    copy = edited["zarr.json"]["consolidated_metadata"]["metadata"]["time_bnds"]
    for document in (edited["time_bnds/zarr.json"], copy):
        del document["attributes"]["units"], document["attributes"]["calendar"]
    return values | {key: json.dumps(document).encode() for key, document in edited.items()}


def same(found: Any, expected: Any) -> None:
    """Two datasets do not only hold the same, they also say the same of how it is stored."""
    xr.testing.assert_identical(found, expected)
    for name, var in expected.variables.items():
        variable = found.variables[name]
        assert (variable.dtype, variable._in_memory) == (var.dtype, var._in_memory), name
        assert (str(variable.encoding), type(variable)) == (str(var.encoding), type(var)), name
    assert list(found.variables) == list(expected.variables)
    assert found.encoding.keys() == expected.encoding.keys()
    assert {*found.xindexes} == {*expected.xindexes}


INDEXED = {"time", "level", "lat", "lon", "member", "band"}
COORDINATES = INDEXED | {"time_bnds", "reference", "valid"}


def test_coordinates_take_one_round(stored: dict[str, bytes]) -> None:
    store = FarStore(stored)
    with store.counted() as count:
        ds = ours(store)
    chunks = chunks_of(store.take())
    assert len(chunks) == len(set(chunks)), "none is read twice"
    assert variables(chunks) == COORDINATES
    in_parts = {key for key in chunks if key.startswith(("time/", "lat/"))}
    assert in_parts == {f"{name}/c/{at}" for name in ("time", "lat") for at in range(3)}
    assert count.rounds == 1 + 1, "the document, and the chunks"
    same(ds, near(stored))
    assert not set(store.take()) & set(chunks) - {"time_bnds/c/0/0", "valid/c/0/0", "reference/c"}


@pytest.mark.parametrize("options", [
    {}, {"decode_times": False}, {"decode_times": {"time": False}}, {"drop_variables": ["time", "lat"]},
    {"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True)}, {"inline_array": True, "chunks": "auto"},
    {"chunks": {}}, {"chunks": {"time": 2}}, {"mask_and_scale": False}, {"decode_coords": "all"},
    {"decode_cf": False}, {"cache": False}, {"create_default_indexes": False}, {"missing": "error"},
], ids=without_addresses)  # fmt: skip
def test_datasets_are_as_without_latency(options: dict[str, Any], stored: dict[str, bytes]) -> None:
    found, expected = far(stored, **options), near(stored, **options)
    for name, var in expected.variables.items():
        assert found.variables[name]._in_memory == var._in_memory, name
        assert (found.variables[name].chunks is None) == (var.chunks is None)
    if "chunks" in options:
        found, expected = found.compute(), expected.compute()
    same(found, expected)


@pytest.mark.parametrize("name", sorted(CORPUS))
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_all_kinds_of_datasets_are_as_without_latency(name: str, zarr_format: Any, tmp_path: Path) -> None:
    values = values_of(in_format(name, zarr_format), tmp_path / "a.zarr", zarr_format)
    same(far(values), near(values))


def test_coordinates_without_an_index_are_as_they_were_at_opening(stored: dict[str, bytes]) -> None:
    store = FarStore(stored)
    ds = ours(store, create_default_indexes=False, cache=False)
    assert variables(store.take()) == {"zarr.json"} | COORDINATES
    assert not ds.xindexes
    np.testing.assert_array_equal(ds["lon"], np.arange(0, 360, 60))
    assert not store.take()
    np.testing.assert_array_equal(ds["lon"], np.arange(0, 360, 60))
    assert "lon/c/0" in store.take(), "what was read ahead is used once"
    ours(store, create_default_indexes=False, decode_times=False)
    assert variables(store.take()) == {"zarr.json"} | INDEXED
    dropped = {"time", "time_bnds", "lat"}
    ours(store, drop_variables=dropped)
    assert variables(store.take()) == {"zarr.json"} | COORDINATES - dropped


def test_a_store_without_latency_is_asked_once_for_times(stored: dict[str, bytes], tmp_path: Path) -> None:
    days = xr.Dataset(coords={"time": xr.date_range("2001-01-01", periods=9), "x": [1.0, 2.0], "y": [3.0]})
    store = FarStore(values_of(days, tmp_path / "a.zarr"), concurrency=1)
    xr.testing.assert_identical(ours(store), days)
    assert [key for key in store.take() if key.startswith("time/c")] == ["time/c/0"]
    same(xr.open_dataset(FarStore(stored, concurrency=1), engine=OURS), near(stored))


def test_all_coordinates_of_a_tree_take_one_round(tmp_path: Path) -> None:
    nodes = {path: forecast()[["v0", "v1"]].isel(lat=slice(n)) for n, path in enumerate(["/one", "/two"], 1)}
    tree = xr.DataTree.from_dict({**nodes, "/two/four/five": xr.Dataset(coords={"depth": [1.0, 2.0]})})
    values = values_of(tree, tmp_path / "a.zarr")
    store = FarStore(values)
    with store.counted() as count:
        found = xr.open_datatree(store, engine=OURS)
    assert len({key.rpartition("/c")[0] for key in chunks_of(store.take())}) == 11
    assert count.rounds == 1 + 1
    expected = xr.open_datatree(xzarr3.MemoryStore(values), engine=OURS)
    xr.testing.assert_identical(found, expected)
    for node in expected.subtree:
        same(found[node.path].to_dataset(inherit=False), node.to_dataset(inherit=False))
    groups = xr.open_groups(store, engine=OURS)
    xr.testing.assert_identical(xr.DataTree.from_dict(groups), expected)


def test_large_coordinates_not_read_ahead(stored: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "_MOST_BYTES", 8 * 3 + 5 * 8)  # `level` and `lat` and nothing else.
    store, times = FarStore(stored), ["time", "time_bnds", "reference", "valid"]
    with store.counted() as count:
        ds = ours(store, drop_variables=times)
    assert count.rounds == 1 + 4
    same(ds, near(stored).drop_vars(times))


def test_times_in_many_chunks_are_read_at_their_ends_alone(tmp_path: Path) -> None:
    ds = forecast()
    ds["time_bnds"].encoding = {"chunks": (1, 2)}
    store = FarStore(values_of(ds, tmp_path / "a.zarr"))
    found = ours(store)
    chunks = [key for key in store.take() if key.startswith("time_bnds/c")]
    assert sorted(set(chunks)) == ["time_bnds/c/0/0", "time_bnds/c/7/0"]
    np.testing.assert_array_equal(found["time_bnds"], ds["time_bnds"])


@pytest.mark.parametrize("key", ["level/c/0", "time/c/1", "time/c/2", "time_bnds/c/0/0", "valid/c/0/0"])
@pytest.mark.parametrize("how", ["broken", "corrupt", "absent"])
def test_errors_are_those_of_reading_one_by_one(key: str, how: str, stored: dict[str, bytes]) -> None:
    values = {**stored, key: b"nonsense"} if how == "corrupt" else dict(stored)
    if how == "absent":
        del values[key]
    results = set()
    for concurrency in (1, 64):
        store = FarStore(values, concurrency=concurrency)
        store.broken = {key} if how == "broken" else set()
        open_it = partial(ours, store, missing="error" if how == "absent" else "fill")
        (error,) = refused((StoreError, xzarr3.ChunkDecodeError), None, lambda: open_it().load())  # noqa: B023
        results.add((type(error), str(error).replace(str(store), "<store>")))
    assert len(results) == 1


def test_an_error_does_not_stay_and_a_missing_chunk_is_told_of_once(stored: dict[str, bytes]) -> None:
    store = FarStore(stored)
    store.broken = {"lat/c/1"}
    ds = ours(store, create_default_indexes=False)
    refused(StoreError, "status 503", ds["lat"].load)
    np.testing.assert_array_equal(ds["lon"], forecast()["lon"])
    store.broken = set()
    np.testing.assert_array_equal(ds["lat"], forecast()["lat"])
    del store._values["lat/c/1"]
    refused(MissingChunksError, r"array '/lat'.*'lat/c/1'", lambda: ours(store, missing="error"))
    with pytest.warns(xzarr3.MissingChunksWarning, match=r"'lat/c/1'") as caught:
        ds = ours(store, missing="warn")
    assert len(caught) == 1
    assert np.isnan(ds["lat"][2:4]).all()


def test_variables_are_loaded_at_once_where_they_are_awaited(stored: dict[str, bytes]) -> None:
    store, expected = FarStore(stored), near(stored).load()
    ds = ours(store)
    with store.counted() as count:
        asyncio.run(ds.load_async())
    # 60 of the thirty variables, and three of coordinates without an index.
    assert len(count.requests) == 60 + 3
    assert count.rounds == 1
    same(ds, expected)
    ds = near(stored)
    asyncio.run(ds.load_async())
    xr.testing.assert_identical(ds, expected)
    ds = ours(store)
    store.broken = {"v7/c/0/0/0/0"}
    refused(StoreError, "status 503", lambda: asyncio.run(ds.load_async()))


def test_points_and_series_are_read_as_before(stored: dict[str, bytes]) -> None:
    ds, expected = (read(stored, create_default_indexes=False) for read in (far, near))
    points = xr.Variable(("a", "b"), [[1, 2], [0, 0]])
    for name, key in (
        ("time", slice(None, None, -1)), ("time", [4, 1, 1]), ("lat", 2), ("lat", points),
        ("v3", (slice(None, None, 3), slice(None), [0, 3])), ("time", slice(1, 7, 2)),
        ("time", ...),  # Now all coordinates are here.
        ("lon", slice(None, None, -1)), ("lat", slice(1, 3)), ("level", -1),
    ):  # fmt: skip
        xr.testing.assert_identical(ds[name][key].load(), expected[name][key].load())


def test_threads_that_read_coordinates_at_once_all_get_them(stored: dict[str, bytes]) -> None:
    store, expected = FarStore(stored), forecast()
    for _ in range(5):
        ds = ours(store, create_default_indexes=False, cache=False)

        def read(name: str, ds: xr.Dataset = ds) -> None:
            np.testing.assert_array_equal(ds[name].variable.values, expected[name].values)

        with store.counted():
            run_threads(*(partial(read, name) for name in [*INDEXED] * 3))


class Place(NamedTuple):
    ours: Any  # Path, URL or store.
    options: dict[str, Any] | None
    zarr: Callable[[], Any]  # A store of zarr-python there.
    written: bool = False  # Whether the dataset is there already, as nothing can be written from here.


def _service(scheme: str, kind: Any, server: Any, tmp_path: Path) -> Place:
    bucket = server.bucket()
    ready = zarr.storage.ObjectStore(kind(bucket, prefix="deep/a.zarr", **server.obstore_options))
    return Place(f"{scheme}://{bucket}/deep/a.zarr", server.storage_options, lambda: ready)


def _obstore(server: Any, tmp_path: Path) -> Place:
    ready = obstore.S3Store(server.bucket(), prefix="x/y", **server.obstore_options)
    return Place(ready, None, lambda: zarr.storage.ObjectStore(ready))


def _http(server: Any, tmp_path: Path) -> Place:
    url = served(server)
    ready = obstore.HTTPStore.from_url(url, client_options=HTTP)
    return Place(url, HTTP, lambda: zarr.storage.ObjectStore(ready, read_only=True), written=True)


PLACES: dict[str, tuple[Callable[[Any, Path], Place], str | None]] = {
    "azure": (partial(_service, "az", obstore.AzureStore), "azure_server"),
    "http": (_http, "http_server"),
    "obstore": (_obstore, "s3_server"),
    "path": (lambda _, path: Place(path / "a.zarr", None, lambda: path / "a.zarr"), None),
    "s3": (partial(_service, "s3", obstore.S3Store), "s3_server"),
    "zip": (lambda _, path: Place(path / "a.zip", None, lambda: zarr.storage.ZipStore(path / "a.zip")), None),
}
HTTP = {"allow_http": True}


def served(server: Any, **options: Any) -> str:
    name, path = server.directory()
    xzarr3.xarray.to_zarr(forecast(), Path(path) / "a.zarr", write_empty_chunks=True, **options)
    for each in [Path(path), *Path(path).rglob("*")]:
        each.chmod(0o755 if each.is_dir() else 0o644)
    return f"{server.url}/{name}/a.zarr"


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place of each kind, with the forecast in it."""
    make, server = PLACES[request.param]
    found = make(server and request.getfixturevalue(server), tmp_path)
    if not found.written:
        options: Any = {"storage_options": found.options, "consolidated": True, "write_empty_chunks": True}
        xzarr3.xarray.to_zarr(forecast(), found.ours, **options)
    return found


def opened(place: Place, **options: Any) -> xr.Dataset:
    return xr.open_dataset(place.ours, engine=OURS, storage_options=place.options, **options)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_a_dataset_is_the_same_whoever_reads_it_and_how(place: Place, processes: Any) -> None:
    expected = opened(place).load()
    xr.testing.assert_equal(expected, forecast())
    with xr.open_dataset(place.zarr(), engine="zarr", consolidated=True) as other:
        xr.testing.assert_identical(expected, other.load())
    lazy = opened(place, chunks={})
    assert lazy["v3"].chunks is not None
    with dask.config.set(scheduler="threads", num_workers=4):
        xr.testing.assert_identical(lazy.compute(), expected)
    awaited = opened(place)
    asyncio.run(awaited.load_async())
    xr.testing.assert_identical(awaited, expected)
    found = xzarr3.xarray.open_dataset(place.ours, storage_options=place.options, missing="error")
    tree = xr.open_datatree(place.ours, engine=OURS, storage_options=place.options)
    for each in (found, tree.to_dataset()):
        xr.testing.assert_identical(each, expected)
    pickled = pickle.dumps(opened(place)[["v1", "time_bnds"]])
    assert processes.submit(_sums, pickled).result(timeout=120) == _sums(pickled)


def _sums(pickled: bytes) -> tuple[float, str]:
    ds = pickle.loads(pickled)
    return float(ds["v1"].sum()), str(ds["time_bnds"].values[-1, -1])


@pytest.mark.parametrize("place", [name for name in PLACES if name not in ("http", "zip")], indirect=True)
def test_missing_chunks_are_named_anywhere(place: Place) -> None:
    """Wherever a chunk can be erased, which web servers and zip files do not do."""
    xzarr3.open_store(place.ours, place.options).erase("v3/c/1/0/0/0")
    strict, said = opened(place, missing="error"), r"1 of the .* is absent: .*v3/c/1/0/0/0'"
    refused(MissingChunksError, said, strict["v3"].load)
    assert np.isnan(opened(place)["v3"][4:]).all()


@pytest.mark.parametrize("consolidated", [True, False])
def test_requests_to_a_service(fault_server: Any, consolidated: bool) -> None:
    options: Any = {"storage_options": fault_server.storage_options, "consolidated": consolidated}
    xzarr3.xarray.to_zarr(forecast(), "s3://b/a.zarr", write_empty_chunks=True, **options)
    fault_server.clear_log()
    ds = xr.open_dataset("s3://b/a.zarr", engine=OURS, **options)
    log = fault_server.log()
    assert {each["method"] for each in log} == {"GET"}
    chunks = sum("/c/" in each["path"] or each["path"].endswith("/c") for each in log)
    listed = sum("list-type" in each["query"] for each in log)
    assert (chunks, listed) == (13, 0 if consolidated else 1)
    assert len(log) - chunks - listed == (1 if consolidated else 2 + len(ds.variables))
    xr.testing.assert_equal(ds, forecast())


@pytest.mark.parametrize(
    "url", ["s3://b/a.zarr", "https://h/a.zarr/", "gs://b/a.zarr.zip", "dir::s3://b/a.zarr"]
)
def test_engines_are_guessed_without_requests(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_store(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("nothing is to be opened")

    monkeypatch.setattr(backend_module, "locate_node", no_store)
    monkeypatch.setattr("os.path.isfile", no_store)
    assert not OURS().guess_can_open(url)  # zarr-python is installed.
    monkeypatch.setattr(backend_module, "find_spec", lambda name: None)
    assert OURS().guess_can_open(url)
    assert not OURS().guess_can_open(url.replace(".zarr", ".nc").removesuffix(".zip"))
