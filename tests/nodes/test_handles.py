"""Several handles on one node: none undoes what another did, none reads what is not its own any more."""

import json
import pickle
import re
import shutil
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from _conformance import contents, refused, run_threads
from _slow import covering, slow, slow_but
from _strategies import array_document
from _things import measured
from _waiting import WaitingStore

import xzarr3
from xzarr3 import Array, ChangedError, LocalStore, MemoryStore, Store, StoreError
from xzarr3.commit.directory import Directory
from xzarr3.dask import from_zarr
from xzarr3.nodes import seen
from xzarr3.xarray import to_zarr
from xzarr3.xarray.variables import Xzarr3DataStore


def two_handles(store: xzarr3.Store, data: Any) -> tuple[Array, Array]:
    xzarr3.create_array(store, "a", data=data, chunks=2)
    return xzarr3.open_array(store, "a", mode="r+"), xzarr3.open_array(store, "a", mode="r+")


@pytest.fixture(params=["memory", "directory", "dict", "waiting", "fsspec"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return {
        "memory": MemoryStore, "directory": lambda: LocalStore(tmp_path / "s"), "waiting": WaitingStore,
        "dict": lambda: MemoryStore({}), "fsspec": lambda: xzarr3.FsspecStore(f"memory://{tmp_path.name}"),
    }[request.param]()  # fmt: skip


def test_what_two_handles_do_follows_each_other(store: xzarr3.Store) -> None:
    first, second = two_handles(store, np.arange(4))
    first.append([10, 11])
    second.append([20, 21])
    assert second[...].tolist() == [0, 1, 2, 3, 10, 11, 20, 21]
    assert first[...].tolist() == [0, 1, 2, 3, 10, 11]
    first.attrs["u"] = 1
    second.attrs["v"] = 2
    found = xzarr3.open_array(store, "a")
    assert found.shape == (8,)
    assert dict(found.attrs) == {"u": 1, "v": 2} == dict(second.attrs)
    del second.attrs["u"]
    assert dict(xzarr3.open_array(store, "a").attrs) == {"v": 2}
    second.attrs["w"] = 3
    assert first.attrs.setdefault("w", 4) == 3
    assert first.attrs.setdefault("x") is None
    assert dict(xzarr3.open_array(store, "a").attrs) == {"v": 2, "w": 3, "x": None}
    del first.attrs["v"]
    second.attrs.clear()
    assert not xzarr3.open_array(store, "a").attrs
    groups = [xzarr3.create_group(store, "g"), xzarr3.open_group(store, "g", mode="r+")]
    for at, group in enumerate(groups):
        group.attrs[f"of {at}"] = 1
    groups[0].consolidate()
    assert dict(xzarr3.open_group(store, "g").attrs) == {"of 0": 1, "of 1": 1}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "kind",
    [
        {"chunks": (4, 3)}, {"chunks": (4, 3), "compressors": None}, {"chunks": (2, 3), "shards": (4, 6)},
        slow({"chunks": (4, 3), "fill_value": 9}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("value", [5, 0])
def test_a_write_up_to_the_end_keeps_what_was_appended(value: int, kind: Any, axis: int, place: Any) -> None:
    """A handle that does not know of the new elements; no unit at the end is replaced as a whole."""
    old = np.arange(1, 6 * 31 + 1).reshape(6, 31)
    xzarr3.create_array(place, "a", data=old, **kind)
    array = xzarr3.open_array(place, "a", mode="r+")
    rows = np.full((1, 31) if axis == 0 else (6, 1), 77)
    xzarr3.open_array(place, "a", mode="r+").append(rows, axis=axis)
    for selection in (slice(4, 6), ..., (slice(None), slice(30, None)), (5, 30)):
        array[selection] = old[selection] = value
        found = xzarr3.open_array(place, "a")[...]
        np.testing.assert_array_equal(found, np.concatenate([old, rows], axis))


def test_a_resize_cuts_off_nothing_that_was_appended_since(store: xzarr3.Store) -> None:
    """Also not where another axis is to grow, or none; what the handle knows is cut off as it asks."""
    old = np.arange(12).reshape(4, 3)
    xzarr3.create_array(store, "a", data=old, chunks=2)
    array = xzarr3.open_array(store, "a", mode="r+")
    xzarr3.open_array(store, "a", mode="r+").append(np.full((4, 2), 77), axis=1)
    whole = np.concatenate([old, np.full((4, 2), 77)], axis=1)
    for shape in [(6, 3), (4, 3), (4, 4), (2, 3)]:
        refused(ChangedError, lambda shape=shape: array.resize(shape), match=r"shape \(4, 5\).*open it again")
        np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], whole)
    array.resize((3, 2))
    np.testing.assert_array_equal(array[...], whole[:3, :2])


USES: dict[str, Callable[[Array], object]] = {
    "read": lambda array: array[...], "write": lambda array: array.__setitem__(0, 1),
    "append": lambda array: array.append([1]), "resize": lambda array: array.resize(2),
    "attributes": lambda array: array.attrs.update(v=1),
    "dask": lambda array: from_zarr(array).compute(scheduler="sync"),
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "data type": {"data": np.arange(4) + 0.5}, "fill value": {"data": np.arange(4), "fill_value": 7},
    "codecs": {"data": np.arange(4), "compressors": None}, "chunks": {"data": np.arange(4), "chunks": 3},
    "shape": {"data": np.arange(2)}, "values": {"data": np.arange(4) + 1},
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("other", slow_but([*OTHERS][:-2], "data type", "chunks"))
def test_a_replaced_array_is_found_out(store: xzarr3.Store, use: str, other: str) -> None:
    array, _ = two_handles(store, np.arange(4))
    xzarr3.create_array(store, "a", **{"chunks": 2, **OTHERS[other]}, overwrite=True)
    before = contents(store)
    refused(StoreError, lambda: USES[use](array), match=r"'/a'.*open it again")
    assert contents(store) == before


@pytest.mark.parametrize("use", USES)
def test_nothing_is_stored_in_an_erased_array(use: str, place: Any) -> None:
    """Neither by a handle that was never used, nor by one of a task: a new array there would have it."""
    fresh, used = two_handles(place, np.arange(4))
    task = pickle.loads(pickle.dumps(fresh))
    task.store = place
    used[0] = 5
    place.erase_prefix("a/")
    for array in (fresh, used, task):
        refused(StoreError, lambda array=array: USES[use](array), match=r"(it|the array) again")
    assert not list(place.list_prefix("a/"))


def far_handles(data: Any, zarr_format: Any = 3) -> tuple[WaitingStore, WaitingStore, Array]:
    """An array in a store whose answers have to be waited for, there in another process, and a handle."""
    there, here = WaitingStore(), WaitingStore()
    here._values = there._values
    xzarr3.create_array(there, "a", data=data, chunks=2, zarr_format=zarr_format)
    return there, here, xzarr3.open_array(here, "a", mode="r+")


def two_seconds_later(monkeypatch: pytest.MonkeyPatch) -> None:
    late = time.monotonic() + 2.1
    monkeypatch.setattr(time, "monotonic", lambda: late)


@pytest.mark.parametrize("other", ["data type", "codecs", "shape"])
@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_a_replaced_array_far_away_is_found_out(zarr_format: Any, other: str, monkeypatch: Any) -> None:
    there, here, array = far_handles(np.arange(4), zarr_format)

    def found_out(call: Callable[[], object]) -> None:
        refused(StoreError, call, match=r"'/a'.*open it again")

    def twin() -> Array:
        copy: Array = pickle.loads(pickle.dumps(array))
        copy.store = here
        return copy

    early = twin()
    array[0] = 0
    options = {"chunks": 2, "zarr_format": zarr_format, **OTHERS[other]}
    xzarr3.create_array(there, "a", **options, overwrite=True)
    before = dict(there._values)
    for _ in range(2):
        found_out(lambda: array.set(1, 7))
        assert there._values == before
    found_out(lambda: early[...])
    seen._seen.clear()
    found_out(lambda: twin()[...])  # It may have been on its way for long.
    seen._seen.clear()
    two_seconds_later(monkeypatch)
    for _ in range(2):
        found_out(lambda: array[...])


@pytest.mark.slow
def test_what_looking_at_a_document_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, here, array = far_handles(np.arange(40))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with here.counted() as count:
        for at in range(0, 40, 2):
            assert array[at] == at
    assert "a/zarr.json" not in count.of("get")
    now += 2.1
    with here.counted() as count:
        assert array[...].tolist() == [*range(40)]
    assert count.of("get").count("a/zarr.json") == 1, "beside the chunks"
    assert count.rounds == 1
    with here.counted() as count:
        for _ in range(5):
            assert array[3] == xzarr3.Array(here, "a", array.metadata)[3] == 3
    assert "a/zarr.json" not in count.of("get")
    with here.counted() as count:
        array[4:12] = 1
    assert (len(count.requests), count.rounds) == (1 + 4, 2), "each write looks before"


def test_what_was_seen_before_an_append_is_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here, array = far_handles(np.arange(4))
    array[0] = 7
    array.append(np.array([4, 5]))
    assert array[...].tolist() == xzarr3.open_array(here, "a")[...].tolist() == [7, 1, 2, 3, 4, 5]
    array[5] = 8
    array.resize(3)
    array[2] = 9
    array.resize(5)
    assert array[...].tolist() == [7, 1, 9, 0, 0]
    two_seconds_later(monkeypatch)
    MemoryStore.erase(there, "a/zarr.json")
    reads = (partial(array.get, selection) for selection in (..., 0))
    refused(ChangedError, *reads, match=r"'/a' .*vanished.*open it again")


def test_what_was_looked_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_MOST_SEEN", 3)
    monkeypatch.setattr(seen, "_seen", {})
    monkeypatch.setattr(seen, "_MOST_NOTED", 3)
    monkeypatch.setattr(seen, "_tags", {})
    for _ in range(5):
        far_handles(np.arange(4))[2][0] = 1
        assert len(seen._seen) <= 3
        assert len(seen._tags) <= 3


def test_a_complete_description_asks_for_all_units_at_once() -> None:
    store = WaitingStore()
    array = xzarr3.create_array(store, data=np.arange(100), chunks=1, compressors=None)
    store.erase("c/7")
    with store.counted() as count:
        found = array.info_complete()
    assert found.splitlines()[-1] == "stored      784 B in 98 of 100 chunks (98 %), ratio 1.02, when counted"
    assert len(count.requests) <= 200
    assert count.rounds <= 2
    assert array.info == found
    array[3] = 5  # What is stored may be more now.
    assert not array.info.splitlines()[-1].startswith("stored")


def test_a_shrunk_array_and_a_group_in_its_place_are_found_out(store: xzarr3.Store) -> None:
    first, second = two_handles(store, np.arange(4))
    assert second[3] == 3
    for _ in range(2):  # Once more changes nothing.
        first.resize(2)
    refused(StoreError, lambda: second[...], match="shape")
    xzarr3.create_group(store, "a", overwrite=True)
    refused(StoreError, lambda: first[...], lambda: first.attrs.update(u=1), match="replaced")
    assert isinstance(xzarr3.open(store, "a"), xzarr3.Group)


def test_threads_that_make_arrays_and_attributes_lose_none(store: xzarr3.Store) -> None:
    root = xzarr3.create_group(store).consolidate()

    def work(number: int) -> None:
        for at in range(10):
            root.create_array(f"a{number}_{at}", shape=2, dtype="i4")
            root.attrs[f"a{number}_{at}"] = at

    run_threads(*(partial(work, number) for number in range(4)))
    found = xzarr3.open_group(store)
    assert found.consolidated
    assert len(found) == len(found.attrs) == 40


def test_what_is_read_and_set_of_attributes_is_a_copy(store: xzarr3.Store) -> None:
    values = {"x": {"y": [1, 2]}}
    for make in (xzarr3.create_group, partial(xzarr3.create_array, shape=3, dtype="i4")):
        node, given = make(store, overwrite=True), json.loads(json.dumps(values))
        node.attrs.update(given)
        given["x"]["y"].append(4)
        for value in (*node.attrs.values(), node.attrs["x"], node.attrs.asdict()["x"]):
            value["y"].append(7)
        assert dict(node.attrs) == values == dict(xzarr3.open(store).attrs)
        node.attrs["x"] = {**node.attrs["x"], "z": 1}
        assert dict(node.attrs) == {"x": {"y": [1, 2], "z": 1}} == dict(xzarr3.open(store).attrs)
        node.attrs["m"] = MappingProxyType({"y": np.int8(1)})
        assert xzarr3.open(store).attrs["m"] == {"y": 1}


def test_stores_with_equal_documents_share_no_attributes() -> None:
    stores = [xzarr3.MemoryStore() for _ in range(3)]
    given = {"range": [1, 2], "said": {"by": ["me"]}}
    for store in stores:
        to_zarr(xr.Dataset({"v": ("x", [1.5, 2.5], given)}, attrs=given), store)
    one, *others = [xr.open_dataset(store, engine="xzarr3") for store in stores[:2]]
    for attributes in (one.attrs, one["v"].attrs):
        attributes["range"].append(3)
        attributes["said"]["by"].clear()
    xzarr3.open_group(stores[0], mode="r+")["v"].attrs["range"] = [7]
    others += [xr.open_dataset(stores[2], engine="xzarr3"), xzarr3.open_group(stores[2])]
    for each in others:
        assert each.attrs == given == {key: each["v"].attrs[key] for key in given}
    assert xzarr3.open_group(stores[0])["v"].attrs["range"] == [7]


NOT_FINITE = '{"w": 1, "x": NaN, "y": [1, {"z": -Infinity}]}'


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_literals_of_older_writers_are_kept(zarr_format: Any) -> None:
    store = MemoryStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format, attributes={"w": "here"})
    root.create_array("a", data=np.arange(4.0), chunks=2, attributes={"w": "here"})
    for key in list(store.list()):
        if key.endswith((".json", ".zattrs")):
            store.set(key, re.sub(rb'{\s*"w":\s*"here"\s*}', NOT_FINITE.encode(), bytes(store.get(key))))
    array, root = xzarr3.open_array(store, "a", mode="r+"), xzarr3.open_group(store, mode="r+")
    assert repr(dict(array.attrs)) == repr(dict(root.attrs)) == repr(json.loads(NOT_FINITE))
    before = contents(store)
    for node, name in ((array, "'/a'"), (root, "'/'")):  # What is set now must be JSON.
        with pytest.raises(xzarr3.MetadataError, match=rf"node {name}, field 'attributes.u.*nan"):
            node.attrs["u"] = {"z": np.float32("nan")}
    assert contents(store) == before
    array.resize(5)
    array.append([1.0])
    array.attrs["v"] = 2
    del array.attrs["v"]
    array.attrs.update(v=2)
    kept = {key: value for key, value in array.attrs.items() if key != "v"}
    assert repr(kept) == repr(json.loads(NOT_FINITE))
    root.attrs["v"] = 2
    if zarr_format != "3-draft":
        root = root.consolidate()
        assert xzarr3.open_group(store).consolidated
    for target in (3, 2, "3-draft"):
        place = MemoryStore()
        told = r"of '/a' 'x' is stored as 'NaN'; 'y' is stored as \[1, {'z': '-Infinity'}\]"
        with pytest.warns(UserWarning, match=told):
            copied = xzarr3.copy(store, place, zarr_format=target, compressors=None)  # type: ignore[arg-type]
        for node in (copied, copied["a"], xzarr3.open_group(place), xzarr3.open_group(place)["a"]):  # type: ignore[index]
            assert dict(node.attrs) == {"w": 1, "x": "NaN", "y": [1, {"z": "-Infinity"}], "v": 2}
        for key in place.list():
            if key.endswith((".json", ".zattrs", ".zmetadata")):
                json.loads(bytes(place.get(key)), parse_constant=pytest.fail)
    again = pickle.loads(pickle.dumps(xzarr3.open_array(store, "a")))
    assert repr(again.attrs) == repr(array.attrs)
    assert from_zarr(again).name == from_zarr(xzarr3.open_array(store, "a")).name
    assert from_zarr(again).compute(scheduler="sync").tolist() == [0, 1, 2, 3, 0, 1]


def test_a_description_of_very_many_chunks_is_short() -> None:
    number = 30_000_000
    grid = {"kind": "inline", "chunk_shapes": [[[1, number - 1], 2], 3]}
    held = array_document(shape=[number + 1, 4], chunk_grid={"name": "rectilinear", "configuration": grid})
    array = xzarr3.open_array(MemoryStore({"zarr.json": json.dumps(held).encode()}))
    with measured() as peak:
        text = array.info
    assert f"chunks      [[[1, {number - 1}], 2], 3]\n" in text
    assert peak[0] < 2**20
    few = xzarr3.create_array(MemoryStore(), shape=(4, 6), chunks=(3, [1, 5]), dtype="i4")
    assert "chunks      ((3, 1), (1, 5))\n" in few.info


def test_an_array_that_is_read_as_a_fallback_warns_once() -> None:
    named = {"extension": "https://example.org/wide", "type": "int128", "fallback": "int64"}
    store = MemoryStore()
    array = xzarr3.create_array(store, "a", data=np.arange(4), chunks=2, dtype="i8", zarr_format="3-draft")
    document = json.loads(bytes(store.get("meta/a.array.json")))
    store.set("meta/a.array.json", json.dumps({**document, "data_type": named}).encode())
    with pytest.warns(xzarr3.errors.FallbackWarning) as caught:
        array = xzarr3.open_array(store, "a", mode="r+")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert array[...].tolist() == [0, 1, 2, 3]
        again = pickle.loads(pickle.dumps(array))
        assert again[1:].tolist() == [1, 2, 3]
        assert from_zarr(again).compute(scheduler="sync").tolist() == [0, 1, 2, 3]
        array.attrs["a"] = 1
        array.append([4])
    assert json.loads(bytes(store.get("meta/a.array.json")))["data_type"] == named


@pytest.mark.parametrize("how", ["url", slow("store"), slow("ours"), slow("tree")])
@pytest.mark.parametrize("kind", ["object", "fsspec"])
def test_names_of_tasks_stay_until_something_is_written_where_stores_cannot_tell(
    kind: str, how: str, request: pytest.FixtureRequest
) -> None:
    options: Any = None
    url = f"memory://{how}-names.zarr"
    if kind == "object":
        pytest.importorskip("obstore")
        url, options = "s3://b/x.zarr", request.getfixturevalue("fault_server").storage_options
    remote: Any = {"engine": "xzarr3", "storage_options": options}
    opened: Callable[[], xr.Dataset] = {
        "url": lambda: xr.open_dataset(url, chunks={}, **remote),
        "store": lambda: xr.open_dataset(xzarr3.open_store(url, options), engine="xzarr3", chunks={}),
        "ours": lambda: xzarr3.open_dataset(url, storage_options=options, chunks={}),
        "tree": lambda: xr.open_datatree(url, chunks={}, **remote).to_dataset(),
    }[how]
    data = xr.Dataset({"t": ("x", np.arange(4.0)), "n": 1}, {"s": ("x", np.arange(4))})
    xzarr3.to_zarr(data, url, storage_options=options, mode="w", encoding={"t": {"chunks": (2,)}})
    old = opened()
    names = [set(found["t"].variable.data.dask) for found in (old, opened())]
    assert (names[0] == names[1]) is (how != "store"), "xarray names stores after what these say"
    xzarr3.open_array(url, "t", storage_options=options, mode="r+")[...] = 100.0
    new = opened()
    assert not names[0] & set(new["t"].variable.data.dask)
    assert new["t"].values.tolist() == [100.0] * 4
    assert old["t"].data.name.startswith("open_dataset-t-")
    for name in ("t", "s"):  # To users it is a variable as any other, and so is what comes of it.
        variable = new[name].variable
        assert repr(variable).startswith("<xarray.Variable ")
        results = [variable.compute(), variable + 1, variable.mean(), variable.chunk(), variable.copy()]
        assert {type(each) for each in results[:3]} == {xr.Variable}
        assert all(isinstance(each, xr.Variable) for each in (*results, new.isel(x=[0, 2])[name].variable))
    xr.testing.assert_identical(new.drop_vars("t").load(), data.drop_vars("t"))
    # Without chunks, too, it is a variable as any other.
    lazy, fresh = (xr.open_dataset(url, **remote) for _ in range(2))
    xr.testing.assert_identical(lazy.isel(x=[0, 2]).load(), new.isel(x=[0, 2]).load())
    assert pickle.loads(pickle.dumps(lazy)).identical(lazy)
    assert xr.concat([lazy, lazy], "x", data_vars="minimal")["t"].shape == (8,)
    assert fresh.chunk({"x": 2})["t"].data.name == fresh.chunk({"x": 2})["t"].data.name


@pytest.mark.parametrize("kind", ["s3", "http", "fsspec-http", "fsspec-memory", "directory"])
def test_two_opens_give_the_same_names(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    data = xr.Dataset({"t": ("x", np.arange(1.0, 9.0))}, {"x": np.arange(8)})
    encoding: Any = {"t": {"chunks": (2,), "compressors": None, "dtype": "int64", "_FillValue": -9}}
    given: Any = {}
    written = url = str(tmp_path) if kind == "directory" else f"memory://{tmp_path.name}.zarr"
    if "http" in kind or kind == "s3":
        pytest.importorskip("obstore")
        server = request.getfixturevalue("fault_server")
        written, given = "s3://b/x.zarr", {"storage_options": server.storage_options}
        url = written if kind == "s3" else f"{server.url}/b/x.zarr"
    to_zarr(data, written, encoding=encoding, **given)
    as_others_do = xzarr3.open_store(written, *given.values(), mode="a")
    given = given if url == written else {}

    def place() -> Any:
        return fsspec.filesystem("http").get_mapper(url) if kind == "fsspec-http" else url

    def names() -> list[str]:
        found = [from_zarr(place(), "t", **given)]
        opened = [xzarr3.open_dataset(place(), **given)]
        if kind != "fsspec-http":
            opened.append(xr.open_dataset(place(), engine="xzarr3", chunks={}, **given))
        found += [each["t"].variable.data for each in opened]
        found += [each["t"].isel(x=slice(3, 5)).variable.data for each in opened]
        found += [found[0][3:5], pickle.loads(pickle.dumps(found[0]))[3:5]]
        return [each.name for each in found]

    def put(key: str, change: Callable[[bytes], bytes]) -> None:
        value = change(bytes(as_others_do.get(key) or b""))
        if kind == "directory":
            (tmp_path / key).write_bytes(value)
        elif kind == "fsspec-memory":
            fsspec.filesystem("memory").pipe(f"/{tmp_path.name}.zarr/{key}", value)
        else:
            server.put(f"/b/x.zarr/{key}", value)

    first = names()
    assert names() == first
    assert len(set(first)) == len(first) - 1  # What was pickled is the same.
    put("t/c/0", lambda value: value[8:] + value[:8])
    assert names() == first, "as the documentation says"
    assert from_zarr(place(), "t", **given).compute()[:2].tolist() == [2, 1]
    for key in ("zarr.json", "t/zarr.json"):  # Which say the same, but are others to a service.
        put(key, lambda value: value + b" ")
    again = names()
    assert not set(again) & set(first)
    for key in ("zarr.json", "t/zarr.json", "x/zarr.json"):
        put(key, lambda value: re.sub(rb'("fill_value":\s*)-?\d+', rb"\g<1>-8", value))
    other = names()
    assert not set(other) & set(again)
    if "http" not in kind:
        xzarr3.open_array(url, "t", mode="r+", **given)[...] = 5
        assert not set(names()) & set(other)


@pytest.mark.parametrize(
    "url",
    ["file://relative", "file://", "file://host/a", "file:///a#b", "file:///a?b", "", "nosuch://bucket/a"],
)
def test_urls_that_name_no_directory(url: str) -> None:
    refused(StoreError, lambda: xzarr3.open_store(url), match=r"accepted|correct the URL")
    for right in ("file:///a/b%20c%23d", "FILE://localhost/a/b c%23d"):
        assert xzarr3.open_store(right) == LocalStore("/a/b c#d")


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True), ({"attributes": {"a": "b"}}, True), ({"data_type": "int64", "fill_value": 0}, False),
        ({"fill_value": -0.0}, False), ({"shape": [3]}, False),
    ],
)  # fmt: skip
def test_consolidated_arrays_are_compared_with_the_stored(tmp_path: Path, changes: Any, same: bool) -> None:
    root = xzarr3.create_group(tmp_path)
    root.create_array("a", data=np.arange(4.0), chunks=2, fill_value=0.0)
    root.consolidate()
    document = tmp_path / "a" / "zarr.json"
    stored = json.loads(document.read_text())
    array = xzarr3.open_group(tmp_path, mode="r")["a"]
    assert isinstance(array, Array)
    document.write_text(json.dumps({**stored, **changes}))
    if same:
        assert array[:].tolist() == [0.0, 1.0, 2.0, 3.0]
        document.write_text(json.dumps({**stored, "shape": [1]}))  # It is looked at again where it changes.
    refused(StoreError, lambda: array[:], match="open it again")


def labelled(start: float, names: str = "vw") -> xr.Dataset:
    values = np.arange(4.0) + start
    return xr.Dataset(dict.fromkeys(names, ("x", values)), {"x": values}, {"start": start})


def of_mode_w(store: Any, zarr_format: Any) -> None:
    to_zarr(labelled(10), store, group="g", mode="w", zarr_format=zarr_format)


def of_delete(store: Any, zarr_format: Any) -> None:
    del xzarr3.open_group(store, mode="r+")["g"]
    of_mode_w(store, zarr_format)


def of_others(store: Any, zarr_format: Any) -> None:
    """It was removed by somebody who does not know of Zarr."""
    if isinstance(store, LocalStore):
        shutil.rmtree(store.root)
    else:
        store.erase(*store.list())
    of_mode_w(store, zarr_format)


def of_overwrite(store: Any, zarr_format: Any) -> None:
    for name, values in labelled(10).variables.items():
        there = xzarr3.open_array(store, f"g/{name}")
        options: dict[str, Any] = {"attributes": dict(there.attrs), "dimension_names": there.dimension_names}
        made = xzarr3.create_array(
            store, f"g/{name}", data=values.values, fill_value=there.fill_value, zarr_format=zarr_format,
            overwrite=True, **options,
        )  # fmt: skip
        assert made[:].tolist() == values.values.tolist(), "the handle of the writer goes on"
        made[0] = values.values[0]


def of_copy(store: Any, zarr_format: Any) -> None:
    copied = to_zarr(labelled(10), MemoryStore(), zarr_format=zarr_format)
    xzarr3.copy(copied, store, path="g", overwrite=True)


REPLACEMENTS = [of_mode_w, of_delete, of_others, of_overwrite, of_copy]
QUICK = [*((how, 3, True) for how in REPLACEMENTS), (of_delete, 2, False), (of_others, "3-draft", False)]


@pytest.mark.parametrize(
    ("replaced", "zarr_format", "consolidated"),
    covering(REPLACEMENTS, [3, 2, "3-draft"], [True, False], quick=QUICK),
)
def test_values_are_not_read_under_labels_of_those_that_they_replaced(
    place: Any, zarr_format: Any, consolidated: Any, replaced: Any
) -> None:
    """Though all documents stay equal, and again for what replaces that."""
    consolidated = None if zarr_format == "3-draft" else consolidated
    told = r"'/g/[vw]' of .*since it was opened.*open it again"
    to_zarr(labelled(0), place, group="g", zarr_format=zarr_format, consolidated=consolidated)
    options: dict[str, Any] = {"engine": "xzarr3", "group": "g"}
    options["consolidated"] = None if consolidated else False
    for _ in range(2):
        lazy, late = (xr.open_dataset(place, chunks=chunks, **options) for chunks in (None, {}))
        array = xzarr3.open_array(place, "g/v", mode="r+")
        sent = pickle.dumps(array)
        xzarr3.open_array(place, "g/w", mode="r+").attrs["seen"] = "by nobody"
        assert lazy["w"][:2].values.tolist() == late["w"][:2].values.tolist() == lazy["x"][:2].values.tolist()
        del xzarr3.open_array(place, "g/w", mode="r+").attrs["seen"]
        replaced(place, zarr_format)
        unpickled = pickle.loads(sent)
        refused(
            ChangedError, lazy["v"].load, lazy["w"][:2].load, partial(late["v"].compute, scheduler="sync"),
            partial(array.get, 0), partial(array.set, 0, 1), partial(array.resize, 2),
            partial(unpickled.get, ...), match=told,
        )  # fmt: skip
        for each in (None, False):
            found = xr.open_dataset(place, **{**options, "consolidated": each})
            xr.testing.assert_equal(found.load(), labelled(10))


def test_a_group_consolidated_after_a_replacement_is_read(tmp_path: Path) -> None:
    """Also if another library has consolidated it, which keeps no time of a replacement."""
    zarr = pytest.importorskip("zarr")
    to_zarr(labelled(0), tmp_path, consolidated=False, mode="w")
    to_zarr(labelled(0), tmp_path, consolidated=False, mode="w")
    for consolidate in (zarr.consolidate_metadata, xzarr3.consolidate_metadata):
        xzarr3.create_array(tmp_path, "v", data=np.arange(4.0) + 10, dimension_names=["x"], overwrite=True)
        consolidate(tmp_path)
        with xr.open_dataset(tmp_path, engine="xzarr3", consolidated=True) as found:
            assert found["v"].values.tolist() == [10, 11, 12, 13]


def test_a_node_is_moved_and_an_older_one_to_its_place(tmp_path: Path) -> None:
    root = xzarr3.create_group(tmp_path / "s.zarr")
    for first in (0, 100):
        to_zarr(labelled(first), root.store, group=f"n{first}")
    with xr.open_dataset(root.store, engine="xzarr3", group="n100", chunks=None) as older:
        root.move("n100", "aside")
        root.move("n0", "n100")
        refused(ChangedError, older.load, match=r"'/n100/v' of .* was replaced since it was opened")
    for path, first in (("n100", 0), ("aside", 100)):
        with xr.open_dataset(root.store, engine="xzarr3", group=path) as found:
            assert found.identical(labelled(first))
    assert not xzarr3.check(root.store).errors


def test_a_group_is_replaced_between_its_attributes_and_its_arrays(place: Store) -> None:
    """Its attributes would be those of one dataset, its variables those of another."""
    to_zarr(labelled(0), place, group="a")
    group = xzarr3.open_group(place, "a", use_consolidated=False)
    to_zarr(labelled(100), place, group="a", mode="w")
    told = r"group '/a' of .* was replaced since it was opened; open it again"
    uses = (Xzarr3DataStore(group).get_variables, lambda: xzarr3.copy(group, MemoryStore()))
    refused(ChangedError, *uses, match=told)


def test_a_writer_that_waits_for_another_puts_the_later_node(tmp_path: Path, monkeypatch: Any) -> None:
    """Handles on the other's node compare the dates of both."""
    reserve, found = Directory._reserve, []

    def reserve_later(self: Directory) -> None:
        monkeypatch.setattr(Directory, "_reserve", reserve)
        to_zarr(labelled(100), tmp_path, group="a", mode="w", consolidated=False)
        found.append(xr.open_dataset(tmp_path, engine="xzarr3", group="a", chunks=None, consolidated=False))
        found.append(xzarr3.open_array(tmp_path, "a/v"))
        for known in ("_newest", "_dates"):  # The other is a process of its own.
            monkeypatch.setattr(seen, known, {})
        reserve(self)

    to_zarr(labelled(0), tmp_path, group="a", consolidated=False)
    monkeypatch.setattr(Directory, "_reserve", reserve_later)
    to_zarr(labelled(200), tmp_path, group="a", mode="w", consolidated=False)
    refused(ChangedError, found[0].load, lambda: found[1][:])


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("times", [1, 99])
def test_a_group_below_is_replaced_while_a_tree_is_read(tmp_path: Path, times: int, copies: bool) -> None:
    """What was listed of the old group may not be there any more: the tree, or its copies, would lack it."""
    left = times

    class Meanwhile(LocalStore):
        def list_dir(self, prefix: str) -> Any:
            nonlocal left
            if prefix != "g/a/" or not left:
                return super().list_dir(prefix)
            left -= 1
            (tmp_path / "g" / "a").rename(tmp_path / "away")
            found = super().list_dir(prefix)
            (tmp_path / "away").rename(tmp_path / "g" / "a")
            new = labelled(100 + left, "w")
            to_zarr(new, LocalStore(tmp_path), group="g/a", mode="w", consolidated=False)
            return found

    to_zarr(labelled(0), LocalStore(tmp_path), group="g/a", consolidated=copies)
    root = xzarr3.open_group(Meanwhile(tmp_path), mode="r+", use_consolidated=False)

    def read() -> dict[str, Any]:
        if copies:
            root.consolidate()
        return dict((xzarr3.open_group(tmp_path) if copies else root).members(None))

    if times > 1:
        refused(ChangedError, read, match=r"groups below '/' of .* were replaced")
    else:
        found = read()
        assert ({*found}, found["g/a"].attrs["start"]) == ({"g", "g/a", "g/a/x", "g/a/w"}, 100)


def test_copies_that_are_returned_are_read_and_listed(place: Store) -> None:
    """Their metadata were read from documents of another store, which tell when that was written."""
    source = to_zarr(labelled(0), MemoryStore())
    for overwrite in (False, True):
        copied = xzarr3.copy(source, place, path="b", overwrite=overwrite)
        assert xr.open_dataset(copied, engine="xzarr3").identical(labelled(0))
        array = xzarr3.copy(source["v"], place, path="c", overwrite=overwrite)
        array[0] = 5
        assert array[:2].tolist() == [5, 1]
