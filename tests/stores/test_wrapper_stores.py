"""Stores around stores: they do what the bare ones do, tell what was asked, and let write who may."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from _conformance import VALUE, contents, read_back, run_threads
from _kinds import ARRAYS, conformance, fork_beside, reading
from _recording import recording
from _unprivileged import run_child

import xzarr3
from xzarr3 import LocalStore, MemoryStore, ReadOnlyError, Store
from xzarr3.stores import CacheStore, LoggingStore, ReadOnlyStore, WrapperStore, cut
from xzarr3.stores.base import UNCHANGED, Scratch, ValueReader, check_key
from xzarr3.stores.logging import Request
from xzarr3.stores.zip.store import ZipStore


class Plain(WrapperStore):
    """Overrides nothing."""


class Overridden(WrapperStore):
    """Overrides as little as a store has; all else is made from that."""

    def get(self, key: str, byte_range: Any = None) -> Any:
        value = self.inner.get(check_key(key))
        return value if value is None or byte_range is None else cut(value, byte_range)

    def set(self, key: str, value: Any) -> None:
        self._check_writable()
        super().set(key, value)

    def erase(self, key: str) -> None:
        super().erase(key)

    def list(self) -> Iterator[str]:
        return super().list()


class OverriddenParts(WrapperStore):
    """The other half of the operations."""

    def get_partial_values(self, key_ranges: Iterable[Any]) -> Any:
        return super().get_partial_values(key_ranges)

    def set_partial_values(self, key_start_values: Iterable[Any]) -> None:
        super().set_partial_values(key_start_values)

    def erase_values(self, keys: Iterable[str]) -> None:
        super().erase_values(keys)

    def list_dir(self, prefix: str) -> Any:
        return super().list_dir(prefix)


def nested(base: Path) -> Store:
    return LoggingStore(Plain(CacheStore(LoggingStore(LocalStore(base / "store")), max_age=0)))


REMADE = {"holds_versions": False, "stamps": False, "travels": "copy"}
TestWrappedMemoryStore = conformance(lambda base: Plain(MemoryStore()), travels="copy")
TestOverriddenMemoryStore = conformance(lambda base: Overridden(MemoryStore()), **REMADE)
TestOverriddenPartsMemoryStore = conformance(
    lambda base: OverriddenParts(MemoryStore()), replaces=False, **REMADE
)
TestLoggedLocalStore = conformance(lambda base: LoggingStore(LocalStore(base / "store")), nests=False)
TestNestedWrappers = conformance(nested, nests=False)
TestReadingNested = reading(
    lambda values, base: LoggingStore(CacheStore(ReadOnlyStore(Plain(MemoryStore(values)))))
)


# What is handed on


class Noting(Store):
    """Notes the names of all operations that are asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.held = MemoryStore({"a": b"12345"})
        self.asked: list[str] = []

    @property
    def listable(self) -> bool:
        return True

    def __getattribute__(self, name: str) -> Any:
        if name in PUBLIC:
            self.asked.append(name)
            return getattr(self.held, name)
        return super().__getattribute__(name)


PUBLIC = {name for name, held in vars(Store).items() if callable(held) and not name.startswith("_")}
PUBLIC -= {"close"}


OPERATIONS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("a"),
    "get_partial_values": lambda store: store.get_partial_values([("a", (1, 2))]),
    "get_values": lambda store: store.get_values(["a", "b"]),
    "exists": lambda store: store.exists("a"),
    "getsize": lambda store: store.getsize("a"),
    "open": lambda store: _read(store.reader().open("a")),
    "open part": lambda store: _read(store.reader().open("a", (0, 2))),
    "reader": lambda store: store.reader().get("a"),
    "scratch": lambda store: store.reader(Scratch(), 99).get("a"),
    "get_ranges": lambda store: store.reader().get_ranges("a", [1], [2]),
    "get_into": lambda store: store.reader().get_into("a", 1, memoryview(bytearray(2))),
    "stamp": lambda store: store.stamp(["a"]),
    "version": lambda store: store.version("a"),
    "tag": lambda store: store.tag("a"),
    "get_versioned": lambda store: store.get_versioned("a")[0],
    "compare_and_set": lambda store: store.compare_and_set("a", 0, b""),
    "update": lambda store: store.update("a", lambda stored: UNCHANGED),
    "updates": lambda store: _through(store, lambda writer: writer.update("a", lambda stored: [b"new"])),
    "set": lambda store: store.set("b", b""),
    "set_partial_values": lambda store: store.set_partial_values([("a", 0, b"x")]),
    "set_values": lambda store: store.set_values([("b", b"x"), ("c", b"y")]),
    "copy_values": lambda store: store.copy_values([("a", "b")]),
    "writer": lambda store: _through(store, lambda writer: writer.set("a", [b"n", b"ew"])),
    "erase": lambda store: store.erase("a"),
    "erase_values": lambda store: store.erase_values(["a"]),
    "erase_prefix": lambda store: store.erase_prefix("a/"),
    "list": lambda store: sorted(store.list()),
    "list_prefix": lambda store: sorted(store.list_prefix("")),
    "list_dir": lambda store: store.list_dir(""),
    "list_sizes": lambda store: sorted(store.list_sizes("")),
    "leftovers": lambda store: list(store.leftovers()),
    "sweep": lambda store: store.sweep(),
}


READER = ("open", "open part", "reader", "scratch", "get_ranges", "get_into")


ASKED = {
    **{key: ["reader"] for key in READER},
    **{key: ["writer"] for key in ("update", "updates", "writer")},
    "get_values": ["get", "get"],
    "set_values": ["set", "set"],
    "list": ["list_prefix"],
    "sweep": [],
}
"""What is asked of the inner store, where that is not the same."""


def _read(reader: ValueReader | None) -> bytes:
    assert reader is not None
    return bytes(reader.read(0, 2))


def _through(store: Store, write: Callable[[Any], object]) -> None:
    with store.writer() as writer:
        write(writer)


def test_every_operation_is_in_the_table() -> None:
    assert set(OPERATIONS) >= PUBLIC


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "kind", [Plain, LoggingStore, ReadOnlyStore, lambda store: LoggingStore(store, keep=0)]
)
def test_each_operation_is_handed_on_as_it_is(kind: Callable[[Store], Store], operation: str) -> None:
    bare, noting = MemoryStore({"a": b"12345"}), Noting()
    wrapped = kind(noting)
    try:
        found = OPERATIONS[operation](wrapped)
    except ReadOnlyError:
        assert isinstance(wrapped, ReadOnlyStore)
        assert noting.asked == []
        assert contents(noting.held) == {"a": b"12345"}
        return
    assert noting.asked == ASKED.get(operation, [operation])
    expected = OPERATIONS[operation](bare)
    if operation != "stamp":
        assert found == expected
    assert contents(noting.held) == contents(bare)


def test_read_only_refuses_every_operation_that_writes() -> None:
    inner = MemoryStore({"a": b"12345"})
    writes = list(OPERATIONS)[list(OPERATIONS).index("compare_and_set") : list(OPERATIONS).index("list")]
    store = ReadOnlyStore(inner)
    for flag in (True, False):
        store.read_only = flag
        for operation in writes:
            with pytest.raises(ReadOnlyError, match=r"<ReadOnlyStore <MemoryStore, 1 keys>> is read-only"):
                OPERATIONS[operation](store)
        assert (store.writeable, store.erasable, store.readable, store.listable) == (False, False, True, True)
    assert contents(inner) == {"a": b"12345"}
    assert inner.read_only is False


def test_read_only_store_of_a_copy_says_why() -> None:
    data = pickle.dumps(Plain(MemoryStore()))

    def work() -> str:
        with pytest.raises(ReadOnlyError) as caught:
            pickle.loads(data).set("a", b"")
        return str(caught.value)

    assert "is a copy in another process" in run_child(work).checked()


def test_attributes_are_those_of_the_wrapped_store() -> None:
    class Remote(MemoryStore):
        request_bytes = 7
        over_read = 1.5
        concurrency = 9
        conflict_deadline = 0.5
        erases_conditionally = False

    inner = Remote()
    store = LoggingStore(ReadOnlyStore(inner))
    names = ("request_bytes", "over_read", "concurrency", "conflict_deadline", "erases_conditionally")
    assert [getattr(store, name) for name in names] == [7, 1.5, 9, 0.5, False]
    inner.concurrency = 3
    assert store.concurrency == 3
    store.concurrency = 5
    assert (store.concurrency, inner.concurrency) == (5, 3)

    class Eager(WrapperStore):
        concurrency = 2

    assert (Eager(inner).concurrency, Eager(inner).request_bytes) == (2, 7)
    assert pickle.loads(pickle.dumps(store)).concurrency == 5


def test_deadline_of_a_wrapper_is_its_own() -> None:
    class Contested(MemoryStore):
        def compare_and_set(self, key: str, version: object, value: Any) -> bool:
            return False

    store = Plain(Contested())
    store.conflict_deadline = 0.01
    for change in (OPERATIONS["updates"], lambda store: store.update("a", lambda stored: [b"x"])):
        with pytest.raises(xzarr3.errors.ConflictError, match=r"0\.01 s"):
            change(store)


def test_abilities_are_those_of_the_wrapped_store() -> None:
    class Published(Store):
        def get(self, key: str, byte_range: Any = None) -> Any:
            return b""

    store = Plain(LoggingStore(Published()))
    assert (store.readable, store.writeable, store.erasable, store.listable) == (True, False, False, False)
    with pytest.raises(xzarr3.StoreCapabilityError, match="Published"):
        store.list()
    with pytest.raises(ReadOnlyError):
        store.set("a", b"")

    class Overlay(WrapperStore):
        """Reads there and writes here."""

        def __init__(self, store: Store) -> None:
            super().__init__(store, read_only=False)
            self.mine: dict[str, bytes] = {}

        def set(self, key: str, value: Any) -> None:
            self._check_writable()
            self.mine[key] = bytes(value)

    overlay = Overlay(ReadOnlyStore(MemoryStore({"a": b"1"})))
    assert (overlay.writeable, overlay.erasable) == (True, False)
    overlay.set_values([("a", b"2"), ("b", b"3")])
    with overlay.writer() as writer:
        writer.set("c", [b"4", b"5"])
    overlay.set_partial_values([("a", 1, b"+")])
    assert overlay.mine == {"a": b"1+", "b": b"3", "c": b"45"}


# Classes of one's own

READING = [*list(OPERATIONS)[: list(OPERATIONS).index("stamp")], "get_versioned"]


class Got(Store):
    """A store that has ``get`` and nothing else."""

    def __init__(self, value: bytes) -> None:
        super().__init__()
        self.value = value

    def get(self, key: str, byte_range: Any = None) -> Any:
        return None if key != "a" else cut(self.value, byte_range or (0, None))


@pytest.mark.parametrize("kind", [WrapperStore, LoggingStore, CacheStore])
@pytest.mark.parametrize("operation", READING)
def test_every_way_to_read_is_made_from_what_is_overridden(kind: type[WrapperStore], operation: str) -> None:
    class Upper(kind):  # type: ignore[misc,valid-type]
        def get(self, key: str, byte_range: Any = None) -> Any:
            value = super().get(key, byte_range)
            return None if value is None else bytes(value).replace(b"2", b"T")

    class UpperParts(kind):  # type: ignore[misc,valid-type]
        def get_partial_values(self, key_ranges: Any) -> Any:
            found = super().get_partial_values(key_ranges)
            return [None if value is None else bytes(value).replace(b"2", b"T") for value in found]

    for derived in (Upper, UpperParts):
        store = derived(MemoryStore({"a": b"12345"}))
        expected = OPERATIONS[operation](Got(b"1T345"))
        assert OPERATIONS[operation](store) == expected
        assert read_back(store, "a") == [b"1T345"] * 4
        assert store.identity != store.inner.identity
        assert store.stamp(["a"]) != store.stamp(["a"]), "who knows what it depends on"
        assert store.version("a") is None
        with store.writer() as writer:
            writer.update("a", lambda stored: [bytes(stored or b"").lower()])
        assert contents(store.inner) == {"a": b"1t345"}


@pytest.mark.parametrize("kind", [WrapperStore, LoggingStore, CacheStore])
def test_every_way_to_write_is_made_from_what_is_overridden(kind: type[WrapperStore]) -> None:
    class Doubled(kind):  # type: ignore[misc,valid-type]
        def set(self, key: str, value: Any) -> None:
            super().set(key, bytes(value) * 2)

        def erase(self, key: str) -> None:
            super().set(key, b"erased")

    store = Doubled(MemoryStore())
    store.set("a", b"1")
    store.set_values([("b", b"2"), ("c", b"3")])
    OPERATIONS["writer"](store)
    store.set_partial_values([("d", 0, b"4")])
    store.compare_and_set("e", store.get_versioned("e")[1], b"5")
    store.update("f", lambda stored: [b"6"])
    assert contents(store) == {
        "a": b"newnew",
        "b": b"22",
        "c": b"33",
        "d": b"44",
        "e": b"55",
        "f": b"66",
    }
    store.erase_values(["a"])
    store.erase_prefix("nothing/")
    assert store.compare_and_set("b", store.get_versioned("b")[1], None)
    assert contents(store)["a"] == contents(store)["b"] == b"erased"
    assert store.identity == store.inner.identity


class Tagged(WrapperStore):
    def __init__(self, store: Store, tag: str) -> None:
        super().__init__(store)
        self.tag = tag


def test_a_derived_class_travels_with_what_it_holds() -> None:
    store = Tagged(MemoryStore({"a": b"1"}), "tag")
    twin = pickle.loads(pickle.dumps(store))
    assert (type(twin), twin.tag, twin.identity, twin.get("a")) == (Tagged, "tag", store.identity, b"1")


def test_wrappers_show_what_they_wrap(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert repr(ReadOnlyStore(store)) == f"<ReadOnlyStore <LocalStore '{tmp_path}'>>"
    assert repr(LoggingStore(CacheStore(store))) == f"<LoggingStore <CacheStore <LocalStore '{tmp_path}'>>>"
    assert repr(ReadOnlyStore(str(tmp_path))) == repr(ReadOnlyStore(store)), "a path stands for a store"


def test_wrappers_are_closed_with_their_store() -> None:
    class Closing(MemoryStore):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    inner = Closing()
    with LoggingStore(Plain(inner)):
        assert inner.closed == 0
    assert inner.closed == 1
    LoggingStore(Plain(inner)).close()
    assert inner.closed == 2
    with ReadOnlyStore(inner) as lent:
        lent.close()
    assert inner.closed == 2, "who may only read ends nothing"


@pytest.mark.parametrize("kind", [Plain, LoggingStore, CacheStore, lambda store: Plain(LoggingStore(store))])
def test_wrapped_zip_is_not_replaced_after_an_error(kind: Callable[[Store], Store], tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    for value in (b"old", b"new"):
        with kind(ZipStore(path, mode="w")) as store:
            store.set("a", value)
            store.set("b", value)
        assert contents(ZipStore(path)) == {"a": value, "b": value}
    half = kind(ZipStore(path, mode="w"))
    half.set("a", b"half")
    with pytest.raises(xzarr3.InvalidKeyError), half:
        half.set("/", b"")
    assert contents(ZipStore(path)) == {"a": b"new", "b": b"new"}
    with ZipStore(path, mode="a") as writer:
        with ReadOnlyStore(writer) as lent:
            assert lent.get("a") == b"new"
        writer.set("c", b"still open")
    assert contents(ZipStore(path))["c"] == b"still open"


# Telling what is asked


def logged(**values: bytes) -> LoggingStore:
    return LoggingStore(MemoryStore(values))


TOLD = {
    "list_sizes": ["list"],
    "leftovers": ["list"],
    **{key: ["open", "read"] for key in ("open", "open part")},
    **{key: ["get"] for key in ("reader", "scratch")},
    "get_values": ["get", "get"],
    "updates": ["update"],
    "set_values": ["set", "set"],
    "writer": ["set"],
    "list_prefix": ["list"],
}


@pytest.mark.parametrize(
    "operation", [name for name in OPERATIONS if name not in ("stamp", "version", "tag")]
)
def test_every_operation_is_told_once(operation: str, tmp_path: Path) -> None:
    inner = LocalStore(tmp_path)
    inner.set("a", b"12345")
    store = LoggingStore(inner)
    OPERATIONS[operation](store)
    told = [record.operation for record in store.records]
    assert told == TOLD.get(operation, [operation])
    (record, *_) = store.records
    assert record.key in ("a", "b", "", "a/")
    assert record.seconds >= 0
    assert sum(total.requests for total in store.summary()) == len(told)


def test_records_tell_sizes_and_outcomes(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path)
    store = LoggingStore(inner)
    store.set("a", memoryview(np.arange(5.0)))
    store.get("a", (-8, None))
    store.get("none")
    with store.reader().open("a", (8, 16)) as reader:  # type: ignore[union-attr]
        assert reader.size == 40
        reader.read_ranges([0, 8], [8, 4])
        assert [len(part) for part in reader.iter_ranges([0, 1, 2], [1, 1, 1])] == [1, 1, 1]
        reader.read_into(32, memoryview(bytearray(20)))
    store.reader().get_into("a", 16, memoryview(bytearray(100)))
    store.reader().get_ranges("a", [8, 0], [4, 4])
    store.set_values([("b", b"123"), ("c", b"4")])
    store.get_values(["b", "c", "d"])
    store.compare_and_set("b", "no such version", b"x")
    store.update("b", lambda stored: [b"new", b"value"])
    sorted(store.list())
    with pytest.raises(xzarr3.InvalidKeyError):
        store.get("../a")  # Nothing was asked.
    found = [record[:6] + record[8:] for record in store.records]
    assert found == [
        ("set", "a", None, None, 1, 40, "ok"),
        ("get", "a", -8, None, 1, 8, "ok"),
        ("get", "none", None, None, 1, 0, "absent"),
        ("open", "a", 8, 16, 1, 0, "ok"),
        ("read_ranges", "a", 0, 8, 2, 12, "ok"),
        ("iter_ranges", "a", 0, 1, 3, 3, "ok"),
        ("read_into", "a", 32, 20, 1, 8, "ok"),
        ("get_into", "a", 16, 100, 1, 24, "ok"),
        ("get_ranges", "a", 8, 4, 2, 8, "ok"),
        ("set", "b", None, None, 1, 3, "ok"),
        ("set", "c", None, None, 1, 1, "ok"),
        ("get", "b", None, None, 1, 3, "ok"),
        ("get", "c", None, None, 1, 1, "ok"),
        ("get", "d", None, None, 1, 0, "absent"),
        ("compare_and_set", "b", None, None, 1, 0, "changed"),
        ("update", "b", None, None, 1, 8, "ok"),
        ("list", "", None, None, 3, 0, "ok"),
    ]
    totals = {total.operation: total[1:3] + total[4:] for total in store.summary()}
    assert totals["get"] == (5, 12, 2, 0)
    assert totals["compare_and_set"] == (1, 0, 0, 0)


def test_summary_is_a_table() -> None:
    store = logged(a=bytes(12_345_678))
    store.get("a")
    store.get("b")
    store.set("c", b"123")
    lines = str(store.summary()).splitlines()
    assert lines[0] == "operation  requests      bytes  seconds  absent  failed"
    assert [line.split()[:2] for line in lines[1:]] == [["get", "2"], ["set", "1"], ["total", "3"]]
    assert "11.77 MiB" in lines[1]
    assert " 3 B" in lines[2]
    assert len({len(line) for line in lines}) == 1
    assert repr(store.summary()) == str(store.summary())
    store.clear()
    assert (store.records, tuple(store.summary())) == ((), ())
    assert str(store.summary()).splitlines()[1].split() == ["total", "0", "0", "B", "0.000", "0", "0"]


def test_messages_name_keys_and_numbers_but_no_values(caplog: pytest.LogCaptureFixture) -> None:
    store = LoggingStore(MemoryStore(), level=logging.INFO)
    with caplog.at_level(logging.INFO, "xzarr3.stores"):
        store.set("a/line\nbreak", b"secret value")
        store.get("a/line\nbreak", (2, 4))
        store.get("x")
    messages = [record.getMessage() for record in caplog.records]
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 3
    assert messages[0].startswith(r"set 'a/line\nbreak': 12 B in ")
    assert messages[1].startswith(r"get 'a/line\nbreak' from 2, 4 B asked for: 4 B in ")
    assert messages[2].startswith("get 'x': 0 B in ")
    assert messages[2].endswith(" s, absent")
    text = f"{messages}{store.records}{store.summary()}{store}"
    assert "secret" not in text
    assert "alue" not in text


def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    inner = MemoryStore({"a": b"1"})
    store = LoggingStore(inner, keep=0)
    for operation in OPERATIONS.values():
        operation(store)
    assert (store.records, tuple(store.summary()), caplog.records) == ((), (), [])
    assert type(store.reader()) is type(inner.reader())
    with caplog.at_level(logging.DEBUG, "xzarr3.stores"):
        store.get("a")
    assert len(caplog.records) == 1
    assert store.records == ()


def test_another_logger_and_few_records(caplog: pytest.LogCaptureFixture) -> None:
    store = LoggingStore(MemoryStore(), logging.getLogger("mine"), keep=3)
    with caplog.at_level(logging.DEBUG, "mine"):
        for at in range(10):
            store.get(f"k{at}")
    assert [record.key for record in store.records] == ["k7", "k8", "k9"]
    assert store.summary()[0].requests == 10
    assert {record.name for record in caplog.records} == {"mine"}


def test_threads_are_counted() -> None:
    store = logged(a=b"12345")
    run_threads(*[lambda: [store.get("a") for _ in range(500)]] * 6)
    assert store.summary()[0][:3] == ("get", 3000, 15000)
    assert len(store.records) == 3000


def test_records_do_not_travel() -> None:
    store = logged(a=b"12345")
    store.get("a")
    twin = pickle.loads(pickle.dumps(store))
    assert twin.records == ()
    twin.get("a")
    assert (len(twin.records), len(store.records)) == (1, 1)
    assert twin.logger is store.logger


@pytest.mark.slow
def test_logging_survives_fork() -> None:
    store = logged(a=b"12345")
    assert fork_beside(lambda: store.get("a"), lambda: store.get("a"), 5) == [b"12345"] * 5


def test_request_is_what_is_documented() -> None:
    names = "operation key start length number size began seconds outcome"
    assert Request._fields == tuple(names.split())


# Arrays


def make_array(store: Store, kind: str) -> tuple[xzarr3.Array, np.ndarray[Any, Any]]:
    values = np.arange(64 * 64, dtype="int32").reshape(64, 64)
    return xzarr3.create_array(store, "x", data=values, **ARRAYS[kind]), values


SELECTIONS: list[Any] = [
    (slice(None), slice(None)),
    (slice(3, 40), slice(20, 25)),
    (5, slice(None)),
    (63, 0),
    (slice(0, 16), slice(0, 16)),
    (slice(None, None, 7), slice(1, None, 9)),
]


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("wrap", [Plain, ReadOnlyStore, LoggingStore, CacheStore])
def test_arrays_are_read_with_the_same_requests(wrap: Callable[[Store], Store], kind: str) -> None:
    """The fast paths are taken: as many requests, for the same bytes, as without the wrapper."""
    inner = MemoryStore()
    _, values = make_array(inner, kind)
    bare, below = recording(inner), recording(inner)
    expected_array = xzarr3.open_array(bare, "x")
    for selection in SELECTIONS:
        array = xzarr3.open_array(wrap(below), "x")
        with bare.recorded() as expected:
            expected_array[selection]
        with below.recorded() as found:
            np.testing.assert_array_equal(array[selection], values[selection])
        assert sorted(found) == sorted(expected), selection


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("local", [True, False], ids=["local", "memory"])
@pytest.mark.parametrize("wrap", [Plain, LoggingStore, CacheStore, Overridden, OverriddenParts])
def test_arrays_are_written_and_read_back(
    wrap: Callable[[Store], Store], local: bool, kind: str, tmp_path: Path
) -> None:
    inner: Store = LocalStore(tmp_path) if local else MemoryStore()
    store = wrap(inner)
    array, values = make_array(store, kind)
    rng = np.random.default_rng(3)
    for _ in range(12):
        rows, columns = np.sort(rng.integers(0, 65, (2, 2)), axis=1)
        place = slice(*rows.tolist()), slice(*columns.tolist())
        values[place] = array[place] = int(rng.integers(-9, 9))
        np.testing.assert_array_equal(array[:], values)
        np.testing.assert_array_equal(xzarr3.open_array(inner, "x")[:], values)
    with pytest.raises(ReadOnlyError):
        xzarr3.open_array(ReadOnlyStore(store), "x", mode="r+")[0, 0] = 1
    np.testing.assert_array_equal(xzarr3.open_array(ReadOnlyStore(store), "x")[:], values)


def test_value_of_a_memory_store_is_not_copied() -> None:
    inner = MemoryStore({"a": VALUE})
    for store in (Plain(inner), LoggingStore(inner), ReadOnlyStore(inner)):
        assert store.get("a") is inner.get("a")


class Shifted(WrapperStore):
    """Values that are larger than those that are stored."""

    def __init__(self, store: Store, by: int) -> None:
        super().__init__(store)
        self.by = by

    def get(self, key: str, byte_range: Any = None) -> Any:
        value = super().get(key, byte_range)
        return bytes(byte + self.by for byte in value) if value and key.startswith("c/") else value


def test_dask_takes_no_wrapper_for_another_one_of_its_class() -> None:
    inner = MemoryStore()
    xzarr3.create_array(inner, data=np.arange(4, dtype="u1"), compressors=None)
    lazy = [xzarr3.from_zarr(Shifted(inner, by)) for by in (1, 2)]
    assert lazy[0].name != lazy[1].name
    assert [found.tolist() for found in dask.compute(*lazy)] == [[1, 2, 3, 4], [2, 3, 4, 5]]
