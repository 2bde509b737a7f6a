"""What a trace counts, beside stores and servers that count themselves: in threads, processes and workers."""

import json
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from _clusters import cluster
from _fault_server import FaultServer
from _kinds import Four
from _things import refused
from _unprivileged import run_child
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import LocalStore, MemoryStore, Store, from_zarr
from xzarr3._types import Buffer, ByteRange
from xzarr3.io import native
from xzarr3.stores import update
from xzarr3.stores.local import files
from xzarr3.stores.wrappers import WrapperStore
from xzarr3.tracing import counters, events


class Counting(Four):
    """Counts its requests and their bytes itself; everything else is made from four operations."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Counter[str] = Counter()
        self._counting = threading.Lock()
        self.identity = "Counting", id(self)

    identity: object = None

    def _count(self, **numbers: int) -> None:
        with self._counting:
            self.done.update({"requests": 1, **numbers})

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        found = super().get(key, byte_range)
        kind = "get" if byte_range in (None, (0, None)) else "get_range"
        self._count(**{kind: 1, "bytes_read": len(found or b""), "absent": int(found is None)})
        return found

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        super().put(key, pieces)
        self._count(put=1, bytes_written=len(self.values[key]))

    def erase(self, *keys: str) -> None:
        super().erase(*keys)
        for _ in keys:
            self._count(delete=1)

    def list(self, prefix: str = "") -> Iterable[str]:
        self._count(list=1)
        return super().list(prefix)


FIELDS = (*counters.KINDS, "requests", "absent", "bytes_read", "bytes_written")


def _is_as_before() -> bool:
    return not events.everywhere.listeners and not counters.process.collectors


@pytest.fixture(autouse=True)
def _quick_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("xzarr3.stores.object.client._FIRST_PAUSE", 0.004)
    monkeypatch.setattr("xzarr3.stores.object.client._LONGEST_PAUSE", 0.02)
    yield
    assert _is_as_before()


PLAIN, SHARDS = {"compressors": None}, {"shards": (10, 8)}
LAYOUTS = ({}, PLAIN, SHARDS, {**SHARDS, **PLAIN}, {"zarr_format": 2})

slices = st.tuples(st.integers(0, 19), st.integers(1, 12)).map(lambda at: slice(at[0], at[0] + at[1]))


def counted_by(t: Any, done: Counter[str]) -> None:
    """The trace and stores that count themselves say the same."""
    assert {field: t.total[field] for field in FIELDS} == {field: done[field] for field in FIELDS}


def counts(t: Any, *fields: str, path: str = "") -> tuple[float, ...]:
    numbers = t.arrays[path] if path else t.total
    return tuple(numbers[field] for field in fields)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    layout=st.sampled_from(LAYOUTS),
    steps=st.lists(st.tuples(st.sampled_from(["read", "write", "erase"]), slices, slices), max_size=6),
)
def test_requests_are_those_the_store_counts(layout: Any, steps: list[tuple[str, slice, slice]]) -> None:
    store = Counting()
    expected = np.zeros((20, 20), "i4")
    with xzarr3.trace() as t:
        array = xzarr3.create_array(store, "a/b", shape=(20, 20), chunks=(5, 4), dtype="i4", **layout)
        for what, *region in steps:
            if what == "read":
                np.testing.assert_array_equal(array[tuple(region)], expected[tuple(region)])
            else:
                array[tuple(region)] = expected[tuple(region)] = 0 if what == "erase" else 7
        xzarr3.open_group(store).members()
    counted_by(t, store.done)
    with_values = xzarr3.open_array(store, "a/b")[:]
    np.testing.assert_array_equal(with_values, expected)


def test_local_store(local_store: LocalStore) -> None:
    native._fault.cache_clear()
    native.writing._made.clear()  # As in a process whose native code has written nothing yet.
    values = np.random.default_rng(0).random((8, 16))
    with xzarr3.trace() as t:
        array = xzarr3.create_array(local_store, "air", data=values, chunks=(2, 4))
    stored = sum(len(local_store.get(f"air/c/{i}/{j}") or b"") for i in range(4) for j in range(4))
    expected = (16, stored, 16, values.nbytes)
    assert counts(t, "put", "bytes_written", "chunks_encoded", "bytes_encoded", path="/air") == expected
    with xzarr3.trace() as t:
        np.testing.assert_array_equal(array[:], values)
    assert counts(t, "get", "bytes_read", "chunks_decoded", "bytes_decoded", path="/air") == expected
    assert 0 < t.total["request_seconds"] < t.seconds
    assert 0 < t.total["decode_seconds"] < t.seconds


@pytest.mark.usefixtures("python_executor")  # Native code reads the index each time.
def test_shards_and_their_indexes(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(64.0).reshape(8, 8)
    array = xzarr3.create_array(local_store, "a", data=values, chunks=(2, 2), shards=(4, 4))
    monkeypatch.setattr(files, "_SETTLED", 0)  # Or what was written just now has no version.
    for kept in (0, 1):
        with xzarr3.trace() as t:
            np.testing.assert_array_equal(array[0:2, 0:2], values[0:2, 0:2])
        fields = ("indexes_read", "indexes_kept", "chunks_decoded", "bytes_decoded")
        assert counts(t, *fields, path="/a") == (1 - kept, kept, 1, 32)
    with xzarr3.trace() as t:
        array[1, 1] = 5
    written = len(local_store.get("a/c/0/0") or b"")
    assert counts(t, "get", "put", "bytes_written", path="/a") == (1, 1, written)


def test_the_index_of_a_shard_that_is_changed_is_decoded_once(store: Store) -> None:
    array = xzarr3.create_array(store, "a", data=np.arange(16.0), chunks=2, shards=8)
    with xzarr3.trace() as t:
        array[1] = 5
    assert counts(t, "indexes_read", path="/a") == (1,)


def test_each_array_has_its_numbers(store: Store) -> None:
    group = xzarr3.create_group(store)
    one = group.create_array("one", data=np.ones(6), chunks=2)
    other = group.create_array("in/other", shape=6, dtype="f8", chunks=1)
    with xzarr3.trace() as t:
        _ = one[:], other[:2], other[0]
        group["one"]
    assert counts(t, "get", "absent", "chunks_absent", path="/one") == (3, 0, 0)
    assert counts(t, "get", "absent", "chunks_absent", path="/in/other") == (3, 3, 3)
    assert list(t.arrays)[-1] == "", "documents come last"
    assert t.arrays[""]["get"] > 0
    assert t.total["requests"] == sum(numbers["requests"] for numbers in t.arrays.values())


def test_threads_belong_to_it(local_store: LocalStore) -> None:
    array = xzarr3.create_array(local_store, "a", data=np.random.default_rng(1).random(2**18), chunks=2**13)
    with xzarr3.trace() as t, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: array[: 2**16], range(4)))
        array.get(..., threads=3)
    assert counts(t, "get", "bytes_decoded", path="/a") == (4 * 8 + 32, 4 * 2**19 + 2**21)
    assert t.processes == 1


def test_several_at_once(store: Store) -> None:
    array = xzarr3.create_array(store, "a", data=np.arange(10), chunks=5)
    with xzarr3.trace() as outer:
        _ = array[:5]
        with xzarr3.trace() as inner:
            _ = array[:]
        _ = array[5:]
        with pytest.raises(RuntimeError, match="used once"), inner:
            pass
    assert (outer.total["requests"], inner.total["requests"]) == (4, 2)
    begun, done = threading.Event(), threading.Event()

    def follow() -> float:
        with xzarr3.trace() as t:
            begun.set()
            done.wait(120)
        return t.total["requests"]

    with ThreadPoolExecutor(1) as pool, xzarr3.trace() as t:
        found = pool.submit(follow)
        begun.wait(120)
        _ = array[:5]
        done.set()
        assert found.result() == t.total["requests"] == 1


def test_a_trace_misses_nothing_while_others_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def note(place: Any, name: str, value: Any) -> None:
        seen.append(value)
        object.__setattr__(place, name, value)

    with xzarr3.trace():
        monkeypatch.setattr(type(events.everywhere), "__setattr__", note)
        with xzarr3.trace(log=True), xzarr3.trace():
            pass
        assert len(seen) == 4
        assert all(counters._heard in listeners for listeners in seen)


def test_nothing_is_counted_when_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    array = xzarr3.create_array(store, "a", data=np.arange(10), chunks=5)
    with pytest.raises(ZeroDivisionError), xzarr3.trace():
        _ = array[:] // (1 // int(_is_as_before()))
    calls: list[object] = []
    for counted in (counters.Collector, events.Request):
        monkeypatch.setattr(counted, "__init__", lambda *args: calls.append(args))
    monkeypatch.setattr(counters, "add", lambda *args: calls.append(args))
    array[:] = array[:] + 1
    assert calls == []


def test_stores_around_others_count_once(tmp_path: Path) -> None:
    class Own(WrapperStore):
        def get(self, key: str, byte_range: ByteRange | None = None, **how: Any) -> Buffer | None:
            return super().get(key, byte_range, **how)

    class Other(Store):
        """No wrapper, but it asks another store."""

        def __init__(self, inner: Store) -> None:
            super().__init__()
            self.get = inner.get

    inner = Counting()
    xzarr3.create_array(inner, data=np.arange(10), chunks=5)
    for wrap in (xzarr3.ReadOnlyStore, WrapperStore, Own, lambda store: Own(WrapperStore(store)), Other):
        store = wrap(inner)
        inner.done.clear()
        with xzarr3.trace() as t:
            _ = xzarr3.open_array(store)[:]
        counted_by(t, inner.done)
    with xzarr3.CacheStore(inner) as cached:
        inner.done.clear()
        with xzarr3.trace() as t:
            _ = xzarr3.open_array(cached)[:], xzarr3.open_array(cached)[:]
        assert t.total["requests"] == inner.done["requests"]
    with xzarr3.ZipStore(tmp_path / "a.zip", mode="w") as zipped:
        array = xzarr3.create_array(zipped, data=np.arange(10), chunks=5)
        with xzarr3.trace() as t:
            _ = array[:]
    assert (t.total["requests"], t.total["get"]) == (2, 2)


class Broken(MemoryStore):
    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        raise xzarr3.StoreError("broken")


def test_changes_and_failures(store: Store) -> None:
    store.set("a", b"12345")
    with xzarr3.trace() as t:
        refused(xzarr3.StoreError, None, lambda: Broken({"a": b"1"}).get("a"))
        update(store, "a", lambda stored: [stored or b"", b"67"])
        update(store, "a", lambda stored: None)
        update(store, "b", lambda stored: None)
    assert counts(t, "failed", "put", "delete", "bytes_written") == (1, 1, 1, 7)
    if isinstance(store, LocalStore):
        assert counts(t, "get", "absent", "bytes_read") == (4, 1, 12)


OPERATIONS: dict[str, tuple[Callable[[Store], object], dict[str, int]]] = {
    "get": (lambda store: store.get("a"), {"get": 1, "bytes_read": 10}),
    "get of a part": (lambda store: store.get("a", (2, 3)), {"get_range": 1, "bytes_read": 3}),
    "get of nothing": (lambda store: store.get("x"), {"get": 1, "absent": 1}),
    "put": (lambda store: store.put("b", [b"12", b"3"]), {"put": 1, "bytes_written": 3}),
    "put of another": (lambda store: store.put("a", [b""], if_version="v"), {"get": 1, "bytes_read": 10}),
    "erase": (lambda store: store.erase("a", "x"), {"delete": 2}),
    "list": (lambda store: list(store.list()), {"list": 1}),
    "list that is not read to its end": (lambda store: next(iter(store.list())), {"list": 1}),
    "list_dir": (lambda store: store.list_dir(""), {"list": 1}),
    "get_partial_values": (
        lambda store: store.get_partial_values([("a", (0, 1)), ("a", (3, 4)), ("x", (0, 1))]),
        {"get_range": 3, "bytes_read": 5, "absent": 1},
    ),
}


@pytest.mark.parametrize("make", [Counting, MemoryStore, LocalStore])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_counts_as_what_it_is(name: str, make: Any, tmp_path: Path) -> None:
    store: Store = make(tmp_path) if make is LocalStore else make()
    store.set("a", b"0123456789")
    work, expected = OPERATIONS[name]
    with xzarr3.trace() as t:
        work(store)
    expected = {**expected, "requests": sum(expected.get(kind, 0) for kind in counters.KINDS)}
    assert {field: t.total[field] for field in FIELDS} == {field: expected.get(field, 0) for field in FIELDS}


def test_open_values_count_by_their_reads(local_store: LocalStore) -> None:
    """Finding a value is a request of its own only if no part is asked for."""
    store = local_store
    store.set("a", b"0123456789")
    with xzarr3.trace() as t:
        assert (store.exists("a"), store.open("x")) == (True, None)
    assert counts(t, "head", "absent", "requests") == (2, 1, 2)
    with xzarr3.trace() as t:
        assert store.open("x", (0, 3)) is None
    assert counts(t, "get_range", "absent", "requests") == (1, 1, 1)
    with xzarr3.trace() as t, store.open("a", (0, 3)) as value:  # type: ignore[union-attr]
        assert bytes(value.read(0, 3)) == b"012"
        assert list(map(bytes, value.read_ranges([0, 4], [1, 2]))) == [b"0", b"45"]
        assert list(map(bytes, value.read_ranges([9, 2], [1, 2]))) == [b"9", b"23"]
        assert value.read_into(8, memoryview(bytearray(4))) == 2
        assert bytes(value.read(0)) == b"0123456789"
    assert counts(t, "get_range", "get", "head", "bytes_read") == (6, 1, 0, 3 + 3 + 3 + 2 + 10)


def test_values_in_memory_count_as_read_whole_or_by_their_parts() -> None:
    """Whether the store has them in memory, or reads them whole to open them."""
    for store, parts in ((MemoryStore(), 3), (Counting(), 10)):
        store.set("a", b"0123456789")
        for first, size in ((None, 10), ((0, None), 10), ((2, 3), parts)):
            with xzarr3.trace() as t, store.open("a", first) as value:  # type: ignore[union-attr]
                assert bytes(value.read(2, 3)) == b"234"
            assert counts(t, "requests", "bytes_read", "get") == (1, size, size == 10)


def test_seconds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of whoever reads a list is not that of requests; a trace may begin at 0."""
    now = 0.0
    store.set_values((f"{at}", b"") for at in range(3))
    monkeypatch.setattr("time.perf_counter", lambda: now)
    t = xzarr3.trace()
    assert t.seconds == 0
    with t:
        for at, _ in enumerate(store.list()):
            assert t.seconds == 5 * at
            now += 5
    now += 5
    assert (t.total["request_seconds"], t.seconds) == (0, 15)


def _bucket(server: FaultServer, **options: Any) -> xzarr3.ObjectStore:
    wanted = {"key": "test-key", "secret": "s3cr3t-v4lue", "endpoint_url": server.url}
    return xzarr3.ObjectStore("s3://b/x", storage_options=wanted, **options)


def _logged(server: FaultServer) -> dict[str, int]:
    log = server.log()
    kinds = {
        "get": sum(e["method"] == "GET" and not e["range"] and "list-type" not in e["query"] for e in log),
        "get_range": sum(e["method"] == "GET" and bool(e["range"]) for e in log),
        "head": sum(e["method"] == "HEAD" for e in log),
        "list": sum("list-type" in e["query"] for e in log),
        "put": sum(e["method"] == "PUT" for e in log),
        "delete": sum(e["method"] in ("DELETE", "POST") for e in log),
    }
    assert sum(kinds.values()) == len(log)
    return {**kinds, "requests": len(log)}


def test_requests_that_are_really_made(fault_server: FaultServer) -> None:
    store = _bucket(fault_server)
    values = np.random.default_rng(2).random((16, 16))
    fault_server.clear_log()
    with xzarr3.trace() as t:
        array = xzarr3.create_array(store, "air", data=values, chunks=(4, 4), shards=(8, 8))
        np.testing.assert_array_equal(array[:], values)
        np.testing.assert_array_equal(array[1:3, 2:14:5], values[1:3, 2:14:5])
        array[3, 3] = 5
    assert {field: t.total[field] for field in _logged(fault_server)} == _logged(fault_server)
    assert counts(t, "retries", "failed") == (0, 0)
    said = str(t) + repr(t) + t._repr_html_() + json.dumps(t.to_dict())
    assert ("s3cr3t" in said, "test-key" in said, "/air" in said) == (False, False, True)
    puts = [entry for entry in fault_server.log("PUT") if "/air/c/" in entry["path"]]
    assert t.arrays["/air"]["put"] == len(puts)
    # One is refused, which shows that the service keeps to conditions.
    assert t.arrays["/air"]["bytes_written"] == sum(put["size"] for put in puts if put["status"] == 200)


@pytest.mark.parametrize("kind", ["status", "reset", "reset-body"])
def test_requests_that_are_made_again(fault_server: FaultServer, kind: str) -> None:
    store = _bucket(fault_server)
    values = np.random.default_rng(3).random(64)
    array = xzarr3.create_array(store, "air", data=values, chunks=8)
    rule = fault_server.fault(kind, "/b/x/air/c/*", times=5)
    fault_server.clear_log()
    with xzarr3.trace() as t:
        np.testing.assert_array_equal(array[:], values)
    assert fault_server.hits(rule) == 5
    stored = sum(len(fault_server.get(f"/b/x/air/c/{at}") or b"") for at in range(8))
    # obstore makes them again itself, and does not say so.
    fields = ("retries", "failed", "get", "requests", "bytes_read")
    assert counts(t, *fields, path="/air") == (0, 0, 8, 8, stored)
    assert t.arrays["/air"]["request_seconds"] > 0


def test_lists_that_are_asked_for_again(fault_server: FaultServer) -> None:
    fault_server.put("/b/x/air/a", b"1")
    store = _bucket(fault_server)
    fault_server.fault("short", "/b", times=3)
    fault_server.clear_log()
    with xzarr3.trace() as t:
        assert list(store.list()) == ["air/a"]
    assert counts(t, "retries", "failed", "list") == (3, 3, 5)
    assert len(fault_server.log()) == 4, "whether there is another page takes no request"


def test_file_systems_of_the_web(fault_server: FaultServer) -> None:
    values = np.random.default_rng(5).random((16, 16))
    stored: dict[str, bytes] = {}
    xzarr3.create_array(stored, data=values, chunks=(2, 2), shards=(8, 8))
    fault_server.put_all({f"/b/x/{key}": value for key, value in stored.items()})
    references = {key: [f"{fault_server.url}/b/x/{key}"] for key in stored}
    store = xzarr3.FsspecStore("reference://", storage_options={"fo": references, "remote_protocol": "http"})
    fault_server.clear_log()
    with xzarr3.trace() as t:
        array = xzarr3.open_array(store)
        np.testing.assert_array_equal(array[:], values)
        np.testing.assert_array_equal(array[3, 3], values[3, 3])
    log = fault_server.log()
    assert {entry["method"] for entry in log} == {"GET"}
    whole = sum(entry["range"] is None for entry in log)
    assert counts(t, "requests", "get", "failed") == (len(log), whole, 0)
    assert t.arrays["/"]["bytes_read"] > sum(len(value) for key, value in stored.items() if "c/" in key)


def test_report(store: Store) -> None:
    with xzarr3.trace() as t:
        assert str(t).startswith("0.")
        assert "still counting" in str(t)
        zeros = np.zeros((512, 512))
        _ = xzarr3.create_array(store, "<air>", data=zeros, chunks=(256, 512), fill_value=1)[:]
    first, *lines = str(t).splitlines()
    assert ("1 process" in first, "still" in first) == (True, False)
    row = next(line for line in lines if line.startswith("/<air>"))
    assert (row.split()[:2], "2.00 MiB" in row) == (["/<air>", "4"], True)
    assert lines[-1].startswith("total ")
    assert repr(t) == str(t)
    shown = t._repr_html_()
    assert ('<td class="xz-text">/&lt;air&gt;</td>' in shown, "<air>" in shown) == (True, False)
    found = json.loads(json.dumps(t.to_dict()))
    assert set(found["total"]) == set(counters.FIELDS)
    assert found["arrays"]["/<air>"]["put"] == 2
    with xzarr3.trace() as t:
        pass
    assert (t.processes, t.total["requests"], t.arrays) == (0, 0, {})
    assert str(t).splitlines()[-1].startswith("total")


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "xzarr3.stores"]


def test_each_request_is_a_line_of_the_log(local_store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    values = np.arange(64.0)
    with xzarr3.trace(log=True):
        local_store.get("a")
    caplog.set_level(logging.DEBUG, "xzarr3.stores")
    with xzarr3.trace():
        local_store.get("a")
    local_store.get("a")
    assert _lines(caplog) == []
    with xzarr3.trace(log=True), xzarr3.trace(log=True) as t:
        array = xzarr3.create_array(local_store, "a", data=values, chunks=4, compressors=None)
        np.testing.assert_array_equal(array[:], values)
        local_store.get("a/none", (-3, None))
        refused(xzarr3.StoreError, None, lambda: Broken().get("secret"))
    *lines, failed = _lines(caplog)
    assert len(lines) + 1 == t.total["requests"], "once for both traces, and native code leaves none out"
    assert sum(" put 'a/c/" in line and ": 32 bytes, ok, " in line for line in lines) == 16
    assert any(" get 'a/none' from -3: 0 bytes, absent, " in line for line in lines)
    assert failed.startswith("<Broken, 0 keys> get 'secret': 0 bytes, StoreError, ")
    assert all(line.startswith(repr(local_store)) and line.endswith(" ms") for line in lines)


def test_requests_to_services_are_logged_with_their_keys(fault_server: FaultServer, caplog: Any) -> None:
    store = _bucket(fault_server)
    store.set("a/b", b"12345")
    caplog.set_level(logging.DEBUG, "xzarr3.stores")
    with xzarr3.trace(log=True) as t:
        store.get("a/b", (1, 3))
        assert store.get("a/none") is None
    assert counts(t, "absent", "failed") == (1, 0)
    part, absent = _lines(caplog)
    assert " get_range 'a/b' from 1, 3 bytes: 3 bytes, ok, " in part
    assert " get 'a/none': 0 bytes, " in absent
    assert "s3cr3t" not in part + absent


@pytest.fixture
def array(local_store: LocalStore) -> xzarr3.Array:
    values = np.random.default_rng(4).random((8, 50))
    return xzarr3.create_array(local_store, "air", data=values, chunks=(1, 50))


def test_forked_children_are_not_counted(array: xzarr3.Array) -> None:
    def work() -> tuple[bool, float, float]:
        before = _is_as_before()
        with xzarr3.trace() as own:
            _ = array[:5]
        return before, own.arrays["/air"]["get"], t.arrays["/air"]["get"]

    with xzarr3.trace() as t:
        _ = array[:3]
        with counters._lock, t._own._lock:
            assert run_child(work).checked() == (True, 5, 3)
        _ = array[:2]
    assert (t.arrays["/air"]["get"], t.processes) == (5, 1)


def _log_into(path: str) -> None:
    logger = logging.getLogger("xzarr3.stores")
    logger.addHandler(logging.FileHandler(path))
    logger.setLevel(logging.DEBUG)


def _log_no_more() -> None:
    logger = logging.getLogger("xzarr3.stores")
    logger.removeHandler(logger.handlers[-1])
    logger.setLevel(logging.NOTSET)


@pytest.mark.slow
def test_workers(client: Any, array: xzarr3.Array, tmp_path: Path) -> None:
    client.run(_log_into, str(tmp_path / "log"))
    try:
        with xzarr3.trace(log=True) as outer:
            with xzarr3.trace() as t:
                total = from_zarr(array, chunks="units").sum().compute()
            _ = array[:3]
    finally:
        client.run(_log_no_more)
    assert float(total) == pytest.approx(array[:].sum())
    assert counts(t, "get", "bytes_decoded", path="/air") == (8, array.nbytes)
    assert counts(outer, "get", path="/air") == (11,)
    assert t.total["decode_seconds"] > 0
    assert t.processes in (1, 2), "the client may read a document"
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum(" get 'air/c/" in line for line in lines) == 8
    assert list(client.run(_is_as_before).values()) == [True]
    plugins = client.run(lambda dask_worker: [*dask_worker.plugins])
    assert not any("trace" in plugin for each in plugins.values() for plugin in each)
    with xzarr3.trace() as t:
        xzarr3.store(da.ones((8, 50), chunks=(2, 50)), array)
    stored = sum(len(array.store.get(f"air/c/{at}/0") or b"") for at in range(8))
    fields = ("put", "chunks_encoded", "bytes_encoded", "bytes_written")
    assert counts(t, *fields, path="/air") == (8, 8, array.nbytes, stored)
    with xzarr3.trace() as t:
        pass
    assert t.processes == 0


def test_workers_in_this_process(array: xzarr3.Array) -> None:
    with cluster(processes=False, host=None) as client, client.as_current(), xzarr3.trace() as t:
        from_zarr(array, chunks="units").sum().compute(scheduler=client)
    assert (t.arrays["/air"]["get"], t.processes) == (8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2], ids=["closed", "retired"])
def test_clusters_and_workers_that_end_leave_their_counts(workers: int, array: xzarr3.Array) -> None:
    with cluster(workers) as client, client.as_current(), xzarr3.trace() as t:
        from_zarr(array, chunks="units").sum().compute(scheduler=client)
        if workers > 1:  # The worker tells them as it ends.
            client.retire_workers(list(client.scheduler_info()["workers"])[:1])
            _wait_until(lambda: len(client.scheduler_info()["workers"]) == 1)
        _wait_until(lambda: _gets(t) == 8)
        if workers == 1:
            client.close()
            client.cluster.close()
    assert t.arrays["/air"]["get"] == 8


def _slow(block: Any) -> Any:
    time.sleep(0.1)
    return block


def _gets(t: Any) -> Any:
    return t.arrays.get("/air", {}).get("get", 0)


def _wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_workers_that_join_and_workers_that_die(client: Any, local_store: LocalStore) -> None:
    array = xzarr3.create_array(local_store, "air", data=np.ones((30, 9)), chunks=(1, 9))
    expected, first = array[:].sum(), next(iter(client.run(os.getpid).values()))
    with xzarr3.trace() as t:
        client.cluster.scale(2)
        client.wait_for_workers(2)
        blocks = da.map_blocks(_slow, from_zarr(array, chunks="units"))
        running = client.compute(blocks.sum())
        _wait_until(lambda: t.processes >= 2 and _gets(t) >= 8)
        os.kill(first, signal.SIGKILL)
        assert float(running.result(timeout=120)) == pytest.approx(expected)
    # What the one that died had done when it was last asked counts, and what of that was done again.
    assert 20 <= _gets(t) <= 60
    assert t.processes >= 2
    client.cluster.scale(1)
