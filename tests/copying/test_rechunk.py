"""Copies in other chunks and shards: what may be asked for, the same values, few reads, bounded memory."""

import json
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from _killed import MortalStore
from _processes import printed_by
from _recording import heard, recording
from _slow import slow
from _strategies import arrays_of, data_types, edges, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import LocalStore, MemoryStore, MetadataError
from xzarr3.commit import recover, staged
from xzarr3.copying.tiles import Tiles, tiles_for
from xzarr3.copying.values import ArrayCopy
from xzarr3.grid import grid_for

VALUES = np.random.default_rng(0).normal(size=(20, 8, 12)).astype("f4")


def source() -> MemoryStore:
    """Maps, the same in shards, a coordinate, and text in a group below."""
    store = MemoryStore()
    root = xzarr3.create_group(store)
    names = ("time", "lat", "lon")
    root.create_array("maps", data=VALUES, chunks=(1, 8, 12), dimension_names=names)
    root.create_array("sharded", data=VALUES, chunks=(2, 2, 2), shards=(4, 4, 4), dimension_names=names)
    root.create_array("time", data=np.arange(20), chunks=5, dimension_names=names[:1])
    root.create_array("deep/text", data=np.array(["a", "bb"] * 10, "T"), dimension_names=names[:1])
    root.create_array("scalar", data=np.float32(3))
    return store


KEPT = {
    "maps": ((1, 8, 12), None), "sharded": ((2, 2, 2), (4, 4, 4)), "time": ((5,), None),
    "deep/text": ((20,), None), "scalar": ((), None),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "changed"), [
    ({"chunks": {"time": -1, "lat": 4}, "shards": None},
     {"maps": ((20, 4, 12), None), "sharded": ((20, 4, 2), None), "time": ((20,), None)}),
    ({"chunks": {"lon": 4}}, {"maps": ((1, 8, 4), None), "sharded": ((2, 2, 4), (4, 4, 4))}),
    ({"shards": {"lat": 8}}, {"maps": ((1, 8, 12), (1, 8, 12)), "sharded": ((2, 2, 2), (4, 8, 4))}),
    ({"chunks": 3, "shards": None}, dict.fromkeys(("maps", "sharded"), ((3, 3, 3), None))
     | dict.fromkeys(("time", "deep/text"), ((3,), None))),
    ({"encoding": {"maps": {"chunks": (20, 2, 2), "shards": (20, 4, 4)}}},
     {"maps": ((20, 2, 2), (20, 4, 4))}),
    ({"encoding": {"maps": {"chunks": [-1, [3, 5], 4]}}}, {"maps": (((20,), (3, 5), (4, 4, 4)), None)}),
    ({}, {}), ({"encoding": {"/sharded": {"chunks": 4}}}, {"sharded": ((4, 4, 4), None)}),
    ({"encoding": {"text": {"chunks": {"time": 7}}}}, {"deep/text": ((7,), None)}),
    ({"shards": None, "encoding": {"maps": {"shards": (2, 8, 12)}}},
     {"maps": ((1, 8, 12), (2, 8, 12)), "sharded": ((2, 2, 2), None)}),
    ({"chunks": {"time": 4}, "encoding": {"time": {"chunks": "keep"}}},
     {"maps": ((4, 8, 12), None), "sharded": ((4, 2, 2), (4, 4, 4)), "deep/text": ((4,), None)}),
])  # fmt: skip
def test_layouts(asked: dict[str, Any], changed: dict[str, Any]) -> None:
    store = source()
    copied = xzarr3.copy(store, MemoryStore(), **asked)
    found = {path: node for path, node in copied.members(max_depth=None) if isinstance(node, xzarr3.Array)}
    assert {path: (node.chunks, node.shards) for path, node in found.items()} == KEPT | changed
    for path, node in found.items():
        np.testing.assert_array_equal(node[...], xzarr3.open_array(store, path)[...])


LAYOUT = ("chunks", "shards", "compressors", "filters", "serializer")


@pytest.mark.parametrize(("asked", "words"), [
    ({"chunks": (1, 2)}, ["dimensions", "chunks={'time': 100}"]),
    ({"chunks": 0}, ["'chunks'", "found 0", "at least 1"]), ({"chunks": "kep"}, ["'chunks'", "'kep'"]),
    ({"encoding": {"maps": {"shards": (3, 9, 12)}}}, ["/maps", "not a multiple", "(1, 8, 12)"]),
    ({"chunks": {"time": 3}}, ["/sharded", "not a multiple", "shards=None"]),
    ({"chunks": {"tme": 3}}, ["did you mean 'time'?"]),
    ({"shards": {"level": 3}}, ["'shards'", "'level'", "'lat', 'lon', 'time'"]),
    ({"encoding": {"time": {"chunks": {"lat": 3}}}}, ["encoding['time'].chunks", "'lat'"]),
    ({"encoding": {"mapps": {"chunks": 3}}}, ["did you mean 'maps'?"]),
    ({"encoding": {"deep": {"chunks": 3}}}, ["group", "deep/text"]), ({"shards": (3, 3, 3)}, ["dimension"]),
    ({"encoding": {"maps": {"chunk": 3}}}, ["encoding['maps']", "did you mean 'chunks'?"]),
    ({"encoding": {"maps": 3}}, ["encoding['maps']", "found 3"]),
    *(({"encoding": {"maps": {key: value}}}, [f"found '{key}'"])  # It is not packed so.
      for key, value in {"scale_factor": 0.5, "dtype": "f8", "_FillValue": 7}.items()),
    ({"encoding": {"maps": {"fill_value": "x"}}}, ["/maps", "fill_value"]),
    ({"chunks": {"time": [3, 4]}, "shards": None}, ["add up to 7"]),
    ({"encoding": {"maps": {"chunks": [1, [3, 5], 12]}}, "zarr_format": 2, "shards": None}, ["/maps"]),
    ({"encoding": {"maps": {"shards": "auto"}}, "zarr_format": 2, "shards": None}, ["/maps", "no shar"]),
    *(({name: "kep"}, ["did you mean 'keep'?"]) for name in LAYOUT),
    *(({"encoding": {"maps": {name: "kep"}}}, ["did you mean 'keep'?"]) for name in LAYOUT),
    *(({"threads": number}, ["threads=", "at least 1"]) for number in (0, -1, 1.5, "2")),
    *(({"encoding": {one: {"compressors": None}, other: {"chunks": 1}}}, ["two keys for one", other])
      for one, other in (("text", "deep/text"), ("maps", "/maps"))),
])  # fmt: skip
def test_what_does_not_fit(asked: dict[str, Any], words: list[str]) -> None:
    target = MemoryStore()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words follow
        xzarr3.copy(source(), target, **asked)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert list(target.list()) == []


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_copy_by_names_of_dimensions_does_not_cut_coordinates(zarr_format: Any) -> None:
    store = MemoryStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)

    def make(path: str, *names: str, **options: Any) -> None:
        sizes = {"time": 24, "lat": 60, "lon": 90, "nv": 2}
        shape = tuple(sizes[name] for name in names)
        root.create_array(path, data=np.ones(shape, "f4"), dimension_names=names, **options)

    for group in ("", "deep/"):
        for name in ("time", "lat"):
            make(group + name, name, attributes={"bounds": f"{name}_bnds"})
        make(f"{group}lon", "lon", attributes={"climatology": "months"})
        make(f"{group}time_bnds", "time", "nv")
        make(f"{group}months", "time")
        make(f"{group}sst", "time", "lat", "lon")
    make("lat_bnds", "lat", "nv", chunks=(30, 1))
    make("deep/data", "lat")
    xzarr3.consolidate_metadata(store)
    asked = {"chunks": {"time": 6, "lat": 10, "lon": 10, "nv": 1}}
    copied = xzarr3.copy(store, MemoryStore(), encoding={"/lon": {"chunks": {"lon": 45}}}, **asked)
    members = copied.members(max_depth=None)
    found = {path: node.chunks for path, node in members if isinstance(node, xzarr3.Array)}
    whole = {
        "time": (24,), "lat": (60,), "lon": (90,), "time_bnds": (24, 2), "months": (24,), "sst": (6, 10, 10)
    }  # fmt: skip
    assert found == {
        **whole, "lon": (45,), "lat_bnds": (30, 1),
        **{f"deep/{name}": chunks for name, chunks in whole.items()}, "deep/data": (10,),
    }  # fmt: skip
    counts = []
    for place in (store, xzarr3.copy(store, MemoryStore(), **asked).store):
        with heard() as requests:
            xzarr3.open_dataset(place).close()
        counts.append(sorted(each.key for each in requests if "lease" not in each.key))
    assert counts[0] == counts[1]
    assert xzarr3.copy(store, MemoryStore(), source_path="lat", chunks={"lat": 10}).chunks == (10,)
    if zarr_format == 3:
        sharded = xzarr3.copy(store, MemoryStore(), chunks={"lat": 10}, shards={"lat": 20})
        assert [sharded[name].shards for name in ("lat", "sst")] == [None, (24, 20, 90)]


def test_advice_is_applied_and_an_ambiguous_name_refused() -> None:
    store = source()
    xzarr3.create_array(store, "other/text", shape=2, dtype="i4")
    with pytest.raises(MetadataError, match="2 arrays have this name"):
        xzarr3.copy(store, MemoryStore(), encoding={"text": {"chunks": 1}})
    for path in ("", "maps"):
        array = xzarr3.open_array(store, "maps")
        copied = xzarr3.copy(store, MemoryStore(), source_path=path, encoding=xzarr3.advise(array).encoding())
        found = copied if path else copied["maps"]
        assert found.chunks == xzarr3.advise(array).best.chunks


def test_values_stay_under_another_fill_value() -> None:
    store = MemoryStore()
    array = xzarr3.create_array(store, shape=(6, 4), chunks=(2, 4), dtype="i2", fill_value=-1)
    array[2:4] = 5
    copied = xzarr3.copy(store, MemoryStore(), encoding={"": {"fill_value": 9, "chunks": (3, 2)}})
    assert copied.fill_value == 9
    np.testing.assert_array_equal(copied[...], array[...])


@st.composite
def copies(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], dict[str, Any], dict[str, Any], int]:
    """Values, the layouts of source and target, and the bytes of memory."""
    shape = draw(shapes(max_dims=3))
    data_type = draw(data_types())
    values = draw(arrays_of(data_type, shape))

    def layout() -> dict[str, Any]:
        chunks = tuple(draw(st.integers(1, max(1, size + 1))) for size in shape)
        shards = None
        if draw(st.booleans()):
            shards = tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks)
        elif draw(st.booleans()) and all(shape):
            return {"chunks": [draw(edges(size)) for size in shape], "shards": None}
        return {"chunks": chunks, "shards": shards}

    return values, {**layout(), "dtype": data_type}, layout(), draw(st.sampled_from([1, 300, 2**20]))


@pytest.mark.slow
@settings(max_examples=120)
@given(copies(), st.sampled_from([1, 3]), st.data())
def test_any_grid_to_any_grid(case: Any, threads: int, data: st.DataObject) -> None:
    values, old, new, memory = case
    store, target = MemoryStore(), MemoryStore()
    array = xzarr3.create_array(store, "a", shape=values.shape, **old)
    stored = [coords for coords in np.ndindex(*array.shard_grid_shape) if data.draw(st.booleans())]
    for coords in stored:
        region = array.metadata.chunk_grid.region(coords, array.shape)
        array[region] = values[region]
    expected = array.get(...)
    with xzarr3.set_options(memory_limit=memory):
        copied = xzarr3.copy(store, target, source_path="a", path="b", threads=threads, **new)
    assert copied.shards is None or copied.shards == new["shards"]
    found = copied.get(...)
    assert found.dtype == expected.dtype
    as_told = np.ndarray.tolist if expected.dtype.hasobject else np.ndarray.tobytes
    assert as_told(found) == as_told(expected)
    if not stored and array.ndim:  # A scalar is always stored.
        assert [key for key in target.list() if not key.endswith("json")] == []


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "memory", "most"), [
    ((1, 20, 30), (60, 2, 2), 2**20, 1),  # all of it fits
    ((1, 20, 30), (60, 2, 2), 100_000, 2), ((60, 2, 2), (1, 20, 30), 100_000, 2),
    ((1, 20, 30), (60, 2, 2), 20_000, 1), ((60, 2, 2), (1, 20, 30), 20_000, 1),
    ((1, 20, 30), (60, 2, 2), 10_000, 1), ((7, 20, 30), (60, 3, 4), 60_000, 2),
    ((10, 20, 30), (20, 20, 30), 200_000, 1), ((10, 20, 30), (15, 20, 30), 400_000, 1),
])  # fmt: skip
def test_chunks_are_read_few_times(old: Any, new: Any, memory: int, most: int) -> None:
    store = recording()
    array = xzarr3.create_array(store, data=np.ones((60, 20, 30), "f4"), chunks=old, compressors="gzip")
    with xzarr3.set_options(memory_limit=memory), store.recorded() as requests:
        xzarr3.copy(store, MemoryStore(), chunks=new)
    reads = Counter(request.key for request in requests)
    assert len(reads) == array.nchunks
    assert max(reads.values()) <= most


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("place", [slow("memory"), "directory"])
def test_a_temporary_array_is_removed(place: str, fails: bool, tmp_path: Path, monkeypatch: Any) -> None:
    target: Any = MemoryStore() if place == "memory" else LocalStore(tmp_path)
    array = xzarr3.create_array(MemoryStore(), data=np.ones((60, 20, 30), "f4"), chunks=(1, 20, 30))
    call, there, told = ArrayCopy._recode, list[int](), list[tuple[int, int]]()

    def watched(self: ArrayCopy, *arguments: Any) -> int:
        if self.target.has_document:
            keys = [*target.list(), *map(str, tmp_path.rglob("*"))]
            there.append(sum("/between-" in key for key in keys))
            if fails and len(there) == 5:
                raise InterruptedError
        return call(self, *arguments)

    monkeypatch.setattr(ArrayCopy, "_recode", watched)
    ends = pytest.raises(InterruptedError) if fails else nullcontext()
    with xzarr3.set_options(memory_limit=20_000), ends:
        how: dict[str, Any] = {"threads": 1, "progress": lambda *done: told.append(done)}
        assert (xzarr3.copy(array, target, chunks=(60, 2, 2), **how)[...] == 1).all()
        assert told[-1] == (array.nbytes, array.nbytes)
    assert min(there) > 10
    assert not [key for key in target.list() if key.startswith(".xzarr3")]
    assert not list(tmp_path.glob(".xzarr3*"))
    assert fails == (not list(target.list()))


@given(st.data())
def test_tiles(data: st.DataObject) -> None:
    """Tiles cover each unit once; the predicted reads are those that happen; memory is kept."""
    shape = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple))
    grids = [grid_for(tuple(data.draw(st.integers(1, size + 2)) for size in shape), shape) for _ in range(2)]
    most = data.draw(st.integers(1, 400))
    tiles = tiles_for(*grids, shape, most)
    units = [unit for coords in np.ndindex(*tiles.counts) for unit in tiles.units(coords)]
    assert sorted(units) == sorted(np.ndindex(*grids[0].counts(shape)))
    regions = [grids[1].region(coords, shape) for coords in np.ndindex(*grids[1].counts(shape))]
    assert tiles.reads(grids[1]) == sum(len(list(tiles.over(region))) for region in regions)
    assert tiles.elements <= max(most, Tiles(grids[0], shape, (1,) * len(shape)).elements)
    covered = np.zeros(shape, int)
    for coords in np.ndindex(*tiles.counts):
        covered[tiles.region(coords)] += 1
    assert (covered == 1).all()


MEMORY = """
import sys, numpy, xzarr3
source = xzarr3.open_array(sys.argv[1])
xzarr3.set_options(memory_limit="24 MiB")
small = xzarr3.create_array(xzarr3.MemoryStore(), data=numpy.ones((8, 8)), chunks=(1, 8))
xzarr3.copy(small, xzarr3.MemoryStore(), chunks=(8, 1))
def peak():
    with open("/proc/self/status") as said:
        return int(next(line for line in said if line.startswith("VmHWM")).split()[1]) * 1024
before = peak()
xzarr3.copy(source, sys.argv[2], chunks={"time": -1, "lat": 10, "lon": 10})
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_bounded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = {"shape": (300, 400, 500), "chunks": (1, 400, 500), "dtype": "f4", "compressors": "zstd"}
    array = xzarr3.create_array(tmp_path / "maps", dimension_names=("time", "lat", "lon"), **layout)
    for time in range(300):
        array[time] = np.float32(time)
    (taken,) = printed_by(MEMORY, str(tmp_path / "maps"), str(tmp_path / "series"))
    assert int(taken) < 2 * 24 * 2**20  # Twice the limit, with what the libraries take once.
    copied = xzarr3.open_array(tmp_path / "series")
    assert copied.chunks == (300, 10, 10)
    np.testing.assert_array_equal(copied[:, 7, 400], np.arange(300, dtype="f4"))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_absent_values_stay_absent_by_way_of_a_temporary_array(zarr_format: Any) -> None:
    store, counts = MemoryStore(), []
    layout = {"shape": (60, 20, 30), "chunks": (1, 20, 30), "dtype": "f4", "fill_value": 0}
    array = xzarr3.create_array(store, "a", zarr_format=2, **layout)
    array[3:5] = 1
    document = json.loads(bytes(store.get("a/.zarray") or b""))
    store.set("a/.zarray", json.dumps({**document, "fill_value": None}).encode())
    for memory in (2**20, 20_000):
        with xzarr3.set_options(memory_limit=memory):
            copied = xzarr3.copy(store, MemoryStore(), chunks=(20, 2, 2), zarr_format=zarr_format)["a"]
        np.testing.assert_array_equal(copied[...], array[...])
        counts.append(sum(1 for _ in copied.stored_units()))
    assert counts == [150, 150]


@pytest.mark.parametrize(("limit", "most"), [(2**20, 4), (8000, 2), (10, 1)])
def test_moved_units_are_held_within_the_memory_limit(limit: int, most: int) -> None:
    held = [0]

    class Watched(MemoryStore):
        def get(self, key: str, byte_range: Any = None) -> Any:
            held.append(held[-1] + ("/c/" in key))
            sleep(0.002)
            return super().get(key, byte_range)

    class Target(MemoryStore):
        def put(self, key: str, pieces: Any) -> None:
            super().put(key, pieces)
            held.append(held[-1] - ("/c/" in key))

    store = Watched()
    xzarr3.create_array(store, "a", data=np.arange(20_000, dtype="u1") % 251, chunks=4000, compressors=None)
    xzarr3.create_array(store, "b", data=np.arange(9000, dtype="u1") % 251, chunks=4000, compressors=None)
    held[:] = [0]
    with xzarr3.set_options(memory_limit=limit):
        xzarr3.copy(store, Target(), threads=4)
    assert max(held) <= most


def test_recover_removes_a_temporary_array_that_was_left_a_day_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    array = xzarr3.create_array(MemoryStore(), data=np.ones((60, 20, 30), "f4"), chunks=(1, 20, 30))
    target = MortalStore()
    xzarr3.create_group(target)
    copy = partial(xzarr3.copy, array, target, path="a", chunks=(60, 2, 2), threads=1)
    with xzarr3.set_options(memory_limit=20_000):
        assert target.killed_at(40, copy, gone=True)
    assert [each.code for each in xzarr3.check(target).findings] == ["write-leftover"] * 2
    xzarr3.recover(target)
    assert any("/between-" in key for key in target.list()), "its writer may still live"
    monkeypatch.setattr(staged, "ABANDONED", -1.0)
    monkeypatch.setattr(recover, "ABANDONED", -1.0)
    xzarr3.recover(target)
    assert not [key for key in target.list() if "/between-" in key]
