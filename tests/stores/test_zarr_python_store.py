"""Objects with the asynchronous store interface of zarr-python, called through it."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from _conformance import VALUE, contents, plain, run_numbered
from _interface import Interface
from _kinds import conformance
from _unprivileged import run_child
from zarr.storage import LocalStore, LoggingStore

import xzarr3
from xzarr3 import ReadOnlyError, StoreCapabilityError, StoreError, StorePermissionError, open_store
from xzarr3.stores.zarr_python import loop
from xzarr3.stores.zarr_python import store as module
from xzarr3.stores.zarr_python.store import ZarrPythonStore

ADAPTED: dict[str, Any] = {"holds_versions": False, "stamps": False, "forks": False, "ranges": 20}
FOLDERS_STAY = dict.fromkeys(("test_erase", "test_erase_values", "test_erase_prefix", "test_lists"))
"""Tests that a store fails that keeps empty directories, which look like prefixes."""
SHORT = ["a.b/.c", "with space/ leading and trailing ", "*?[a]{b}", "\u6c23/\u6e29", "quote\"'"]


class OnDisk(LocalStore):
    """A class of a user, which may do anything."""


def quiet(store: Any) -> LoggingStore[Any]:
    return LoggingStore(store, log_level="ERROR")


TestWrappedMemory = conformance(lambda base: open_store(quiet(zarr.storage.MemoryStore())), **ADAPTED)
if hasattr(zarr.storage, "ManagedMemoryStore"):  # zarr-python 3.1 has none.
    TestPartOfMemory = conformance(
        lambda base: open_store(zarr.storage.ManagedMemoryStore(path="a")), **ADAPTED
    )
TestWithoutZarrPython = conformance(lambda base: open_store(Interface()), **ADAPTED)
TestDirectory = conformance(
    lambda base: open_store(OnDisk(base / "store")),
    **{**ADAPTED, **FOLDERS_STAY, "nests": False, "bounds_keys": True, "odd_keys": SHORT},
)


def test_erasing_a_key_never_removes_a_directory(tmp_path: Path) -> None:
    store = open_store(OnDisk(tmp_path))
    store.set("a/b/c", VALUE)
    for key in ("a", "a/b"):
        store.erase(key)
    store.erase_values(["a", "none"])
    assert contents(store) == {"a/b/c": VALUE}


# What a store answers


class Answers(Interface):
    """Answers reads with ``answer(value, byte_range)``."""

    answer: Any = None

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await super().get(key, prototype)
        return found if found is None or key != "a" else type(self).answer(found, byte_range)


def cut_short(value: Any, byte_range: Any) -> Any:
    return value if byte_range is None else value[:1]


def whole_in_any_case(value: Any, byte_range: Any) -> Any:
    return value


def refused(value: Any, byte_range: Any) -> Any:
    if byte_range is not None:
        raise ValueError("no such range")
    return value


@pytest.mark.parametrize("answer", [cut_short, whole_in_any_case, refused])
@pytest.mark.parametrize("byte_range", [(2, 3), (-4, None), (-4, 2), (8, 5), (12, 3), (0, 30), (5, 0)])
def test_odd_answers_to_ranges_are_not_believed(answer: Any, byte_range: tuple[int, int | None]) -> None:
    foreign = type("Odd", (Answers,), {"answer": staticmethod(answer)})()
    foreign.values["a"] = VALUE
    start, length = byte_range
    expected = VALUE[start:] if length is None else VALUE[start:][:length]
    assert plain([open_store(foreign).get("a", byte_range)]) == [expected]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("the wire\nis cut"), StoreError),
        (PermissionError("not yours"), StorePermissionError),
        (NotImplementedError("later"), StoreCapabilityError),
        (RuntimeError(), StoreError),
    ],
)
def test_errors_are_of_this_package(error: Exception, kind: type[StoreError]) -> None:
    class Broken(Interface):
        async def get(self, *args: Any) -> Any:
            raise error

        set = get

        async def list_dir(self, prefix: str) -> Any:
            raise error
            yield

    store = open_store(Broken())
    for call in (
        lambda: store.get("a/b"),
        lambda: store.get("a/b", (0, 2)),
        lambda: store.set("a/b", b""),
        lambda: store.list_dir("a/b/"),
    ):
        with pytest.raises(kind, match=rf"a/b.*Broken.*{type(error).__name__}") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is error
    with pytest.raises(kind):
        xzarr3.open_group(Broken())


def test_what_is_no_buffer_is_an_error() -> None:
    foreign = Interface()
    foreign.values["a"] = "text"  # type: ignore[assignment]
    with pytest.raises(StoreError, match="'a'"):
        open_store(foreign).get("a")


@pytest.mark.parametrize(
    ("lacks", "error"),
    [("supports_writes", ReadOnlyError), ("supports_deletes", StoreError), ("supports_listing", StoreError)],
)
def test_what_a_store_lacks(lacks: str, error: type[Exception]) -> None:
    foreign = type("Lacking", (Interface,), {lacks: False})()
    foreign.values["a"] = VALUE
    store = open_store(foreign)
    assert store.writeable is (lacks != "supports_writes")
    assert store.erasable is (lacks == "supports_listing")
    assert store.listable is (lacks != "supports_listing")
    with pytest.raises(error):
        list(store.list()) if lacks == "supports_listing" else store.erase("a")
    assert foreign.values == {"a": VALUE}
    if store.writeable:
        array = xzarr3.create_array(store, "x", data=np.arange(6), chunks=2)
        array[2:5] = 9
        np.testing.assert_array_equal(xzarr3.open_array(store, "x")[:], [0, 1, 9, 9, 9, 5])


# At the same time


class Together(Interface):
    """Answers reads of chunks only when so many are under way at the same time."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.barrier = number, None

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if "/c/" in key:
            self.barrier = self.barrier or asyncio.Barrier(self.number)
            await asyncio.wait_for(self.barrier.wait(), 60)
        return await super().get(key, prototype, byte_range)


@pytest.mark.parametrize("number", [2, 24])
def test_many_requests_are_in_flight(number: int) -> None:
    foreign = Together(number)
    xzarr3.create_array(foreign, "a", data=np.arange(number), chunks=1)
    np.testing.assert_array_equal(xzarr3.open_array(foreign, "a")[:], np.arange(number))
    parts = open_store(foreign).get_partial_values((f"a/c/{at}", (0, 1)) for at in range(number))
    assert len(parts) == number


def test_many_threads_share_one_loop() -> None:
    names = set()

    class Seen(Interface):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            names.add(threading.current_thread().name)
            return await super().get(key, prototype, byte_range)

    store = open_store(Seen())
    store.set("a", VALUE)
    run_numbered(lambda at: [store.get("a") for _ in range(20)], 8)
    assert len(names) == 1
    assert threading.current_thread().name not in names


def test_a_call_from_the_loop_itself_is_refused() -> None:
    store = open_store(Interface())

    async def call() -> None:
        store.get("a")

    with pytest.raises(StoreError, match="event loop that serves it"):
        loop.run(call())


def test_it_works_where_an_event_loop_runs_already() -> None:
    """As in Jupyter."""

    async def main() -> object:
        store = open_store(Interface())
        store.set("a", VALUE)
        return store.get("a")

    assert plain([asyncio.run(main())]) == [VALUE]


ALONE = """
import sys
import numpy as np
from _interface import Interface
import xzarr3

foreign = Interface()
array = xzarr3.create_array(foreign, "a", data=np.arange(12), chunks=2, shards=6)
array[3:7] = 1
np.testing.assert_array_equal(xzarr3.open_array(foreign, "a")[2:8], [2, 1, 1, 1, 1, 7])
assert xzarr3.open_store(foreign).get("a/c/0", (1, 2)) is not None
assert sorted(foreign.values) == ["a/c/0", "a/c/1", "a/zarr.json", "zarr.json"]
assert "zarr" not in sys.modules
"""


def test_zarr_python_is_not_imported() -> None:
    path = [str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:] = {path!r}\n{ALONE}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# One store for one object, and other processes


def test_one_object_has_one_store() -> None:
    foreign = Interface()
    store = open_store(foreign)
    assert open_store(foreign) is store
    other = open_store(Interface())
    assert other is not store
    assert other.identity != store.identity


def elsewhere(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What another process would get."""
    monkeypatch.setattr(module, "_live", type(module._live)())
    return pickle.loads(data)


def test_memory_is_not_written_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(quiet(quiet(zarr.storage.MemoryStore())))
    store.set("a", VALUE)
    twin = elsewhere(pickle.dumps(store), monkeypatch)
    assert (contents(twin), twin.identity) == ({"a": VALUE}, store.identity)
    with pytest.raises(ReadOnlyError, match="copy in another process"):
        twin.set("a", b"")


def test_directory_is_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(OnDisk(tmp_path))
    twin = elsewhere(pickle.dumps(store), monkeypatch)
    twin.set("a", VALUE)
    assert contents(store) == {"a": VALUE}


def test_what_cannot_be_pickled_says_so() -> None:
    foreign = Interface()
    foreign.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match=r"cannot be sent to other processes: .*TypeError; use threads"):
        pickle.dumps(xzarr3.create_array(foreign, shape=3, dtype="i4"))


def test_a_forked_process_is_refused() -> None:
    store = open_store(Interface())
    store.set("a", VALUE)

    def work() -> str:
        with pytest.raises(StoreError) as caught:
            store.get("a")
        return str(caught.value)

    assert "forked process; start processes with 'spawn'" in run_child(work).checked()


def test_it_is_used_only_where_it_must_be(tmp_path: Path) -> None:
    assert type(open_store(LocalStore(tmp_path))) is xzarr3.LocalStore
    assert type(open_store(OnDisk(tmp_path))) is ZarrPythonStore
