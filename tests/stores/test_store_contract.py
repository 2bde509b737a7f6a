"""What a store of one's own needs and gets; MemoryStore, WrapperStore and ReadOnlyStore."""

import html
import inspect
import pickle
import threading
from collections import UserDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from _conformance import VALUE, contents, writes
from _kinds import Files, Four, every_check, hostile_keys
from _recording import heard
from _things import Thing, refused
from _unprivileged import run_child

import xzarr3
from xzarr3 import InvalidKeyError, LocalStore, MemoryStore, ReadOnlyError, Store, stores
from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import StoreCapabilityError
from xzarr3.stores import ANY, BytesValue, ReadOnlyStore, Value, WrapperStore, cut, update, versioned
from xzarr3.stores.values import OversizedError
from xzarr3.testing import CHECKS, StoreCheckError, check_store

KINDS: dict[str, Callable[[Path], Store]] = {
    "memory": lambda base: MemoryStore(),
    "dict": lambda base: MemoryStore({}),
    "local": LocalStore,
    "local, fsync": lambda base: LocalStore(base, fsync=True),
    "local, no locks": lambda base: LocalStore(base, locks=False),
    "four methods": lambda base: Four(),
    "cache": lambda base: stores.CacheStore(MemoryStore()),
    "zip": lambda base: stores.ZipStore(f"{base}.zip", mode="w"),
    "fsspec": lambda base: stores.FsspecStore(f"memory://{base}"),
}

test_memory = every_check(KINDS["memory"])
test_dict = every_check(KINDS["dict"])
test_local = every_check(KINDS["local"])
test_local_fsync = every_check(KINDS["local, fsync"])
test_local_without_locks = every_check(KINDS["local, no locks"])
test_four_methods = every_check(KINDS["four methods"])
test_wrapper = every_check(lambda base: WrapperStore(MemoryStore()))

test_hostile_keys_of_files = hostile_keys(Files)
test_hostile_keys_of_local_files = hostile_keys(LocalStore)
test_hostile_keys_of_a_wrapper = hostile_keys(lambda base: WrapperStore(LocalStore(base)))


SPECIFICATION = {
    "get": "key", "get_partial_values": "key_ranges", "set": "key value", "erase": "keys",
    "set_partial_values": "key_start_values", "erase_values": "keys", "erase_prefix": "prefix",
    "list": "prefix", "list_prefix": "prefix", "list_dir": "prefix",
}  # fmt: skip
"""The operations of the abstract store interface and their arguments; what they do is in ``check_store``."""


@pytest.mark.parametrize("operation", SPECIFICATION)
def test_store_has_the_operations_of_the_specification_once(operation: str) -> None:
    """A class that overrides what is made of the contract would be passed by; it is refused."""
    _, *found = inspect.signature(getattr(Store, operation)).parameters
    assert " ".join(found).startswith(SPECIFICATION[operation])
    if operation in ("get_partial_values", "set", "set_partial_values", "erase_values", "list_prefix"):
        with pytest.raises(TypeError, match=rf"Own has \['{operation}'\].*implement 'get', 'put'"):
            type("Own", (Store,), {operation: lambda self, *given: None})


class Published(Store):
    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        return None if key != "a/b" else VALUE if byte_range is None else cut(VALUE, byte_range)


class Archive(Published):
    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        raise AssertionError("not asked for")


def test_what_a_class_lacks_it_says() -> None:
    store = Published()
    assert (store.readable, store.writeable, store.erasable, store.listable) == (True, False, False, False)
    assert (store.get("a/b"), store.getsize("a/b")) == (VALUE, 10)
    assert [store.exists(key) for key in ("a/b", "x")] == [True, False]
    writes = (lambda: store.set("a", b""), lambda: update(store, "a", lambda stored: [b""]))
    refused(ReadOnlyError, r"Published.*'put'", *writes)
    archive = Archive()
    refused(StoreCapabilityError, "erase", lambda: archive.erase("a"), lambda: archive.erase_values(["a"]))
    refused(StoreCapabilityError, "list", lambda: list(store.list()), lambda: store.list_dir("a/"))
    refused(StoreCapabilityError, "list", lambda: archive.erase_prefix("a/"))


BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "values": ("get", {"get": lambda self, key, byte_range=None: Four.get(self, key, byte_range) and b"#"}),
    "ranges": ("range", {"get": lambda self, key, byte_range=None: Four.get(self, key)}),
    "lists": ("list", {"list": lambda self, prefix="": ["a/b"] * 2}),
    "erasing": ("erasing", {"erase": lambda self, *keys: None}),
    "absent": ("get", {"get": lambda self, key, byte_range=None: Four.get(self, key, byte_range) or b""}),
    "updates": ("counter", {"put": lambda self, key, pieces: self.values.setdefault(key, b"".join(pieces))}),
    "open_values": ("size", {"open": lambda self, key, first=None, version=None: _wrong_value(self, key)}),
    "pickling": ("pickle", {"__reduce__": lambda self: (int, (5,))}),
}


def _wrong_value(store: Four, key: str) -> Any:
    value = BytesValue(store.values[key]) if key in store.values else None
    if value is not None:
        value.size = 3
    return value


@pytest.mark.parametrize("check", BROKEN)
def test_check_store_says_what_a_store_does_wrong(check: str) -> None:
    word, methods = BROKEN[check]
    kind = type("Broken", (Four,), methods)
    said = rf"(?s){check}: .*found: .*{word}"
    refused(StoreCheckError, said, lambda: check_store(kind, leave_out=CHECKS.keys() - {check}))
    refused(ValueError, "speed", lambda: check_store(MemoryStore, leave_out=["speed"]))


@pytest.mark.parametrize("make", [partial(Four, read_only=True), lambda values: ReadOnlyStore(Four(values))])
def test_read_only_store_refuses_every_write(make: Any) -> None:
    values = {"a/b": VALUE, "c": VALUE}
    store = make(dict(values))
    refused(ReadOnlyError, "read-only", *writes(store).values(), lambda: store.erase_prefix("a/"))
    assert (contents(store), store.writeable, store.erasable) == (values, False, False)


REQUESTS: dict[str, tuple[Callable[[Store], object], list[str]]] = {
    "get": (lambda store: store.get("a/b"), ["get"]),
    "a part": (lambda store: store.get("a/b", (0, 1)), ["get"]),
    "set": (lambda store: store.set("a/b", b"x"), ["put"]),
    "update": (lambda store: update(store, "a/b", lambda stored: [b"x"]), ["get", "put"]),
    "erase_values": (lambda store: store.erase_values(["a/b", "c"]), ["erase"]),
    "list": (lambda store: [*store.list()], ["list"]),
    "list_dir": (lambda store: store.list_dir("a/"), ["list"]),
    "copy": (lambda store: store.copy("a/b", "d"), ["get", "put"]),
    "erase_prefix": (lambda store: store.erase_prefix("a/"), ["list", "erase"]),
}


@pytest.mark.parametrize("wrap", [lambda store: store, WrapperStore], ids=["itself", "wrapped"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_each_request_is_reported_once(request_: str, wrap: Callable[[Store], Store]) -> None:
    act, expected = REQUESTS[request_]
    store = wrap(Four({"a/b": VALUE, "c": VALUE}))
    with heard() as found:
        act(store)
    assert [request.operation for request in found] == expected


def test_key_knows_its_size_and_is_text() -> None:
    key = stores.Key("a/b", 10)
    assert (key, key.size, {key: 1}["a/b"]) == ("a/b", 10, 1)
    twin = pickle.loads(pickle.dumps(key))
    assert (twin, twin.size) == ("a/b", 10)


DURABLE: dict[str, tuple[Callable[[Path], Store], bool]] = {
    **{kind: (KINDS[kind], False) for kind in ("memory", "dict", "four methods", "local", "zip", "fsspec")},
    "local, fsync": (KINDS["local, fsync"], True),
    "zip, fsync": (lambda base: stores.ZipStore(f"{base}.zip", mode="w", fsync=True), True),
    "a service": (lambda base: xzarr3.open_store("s3://bucket/x.zarr"), True),
}
"""Stores of each kind, and whether their values are known to be there after a crash of the system."""


@pytest.mark.parametrize("kind", DURABLE)
@pytest.mark.parametrize("wrap", ["itself", "CacheStore", "ReadOnlyStore", "WrapperStore"])
def test_durable_is_what_the_wrapped_store_is(kind: str, wrap: str, tmp_path: Path) -> None:
    make, expected = DURABLE[kind]
    with make(tmp_path / "x") as store:
        if wrap == "CacheStore":
            store.close()  # A zip that is being written has no cache.
        found = store if wrap == "itself" else getattr(stores, wrap)(store)
        assert found.traits.durable is expected


def test_versioned_tells_absence_and_content() -> None:
    """Without versions of a service, equal bytes are one version."""
    store, found = Four(), []
    for value in (None, b"1", b"2", b"1"):
        store.erase("a") if value is None else store.set("a", value)
        found.append(versioned(store, "a"))
    assert (found[0], found[1] == found[3], found[1] == found[2]) == ((None, "absent"), True, False)


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_memory_store_keeps_the_mapping_that_it_is_given(kind: type[Any]) -> None:
    values = kind({"a/b": b"x"})
    store = MemoryStore(values)
    store.set("c", bytearray(b"yy"))
    values["d"] = b"by hand"
    del values["a/b"]
    assert contents(store) == {"c": b"yy", "d": b"by hand"}
    assert type(values["c"]) is bytes
    store.erase("c")
    assert dict(values) == {"d": b"by hand"}


@pytest.mark.parametrize(("values", "error", "words"), [
    ({1: b""}, TypeError, "dict with 1: bytes"),
    ({"a": "text"}, TypeError, "'a': str"),
    ({"a": Thing()}, TypeError, "'a': Thing"),
    ({"../a": b""}, InvalidKeyError, r"\.\./a"),
])  # fmt: skip
def test_memory_store_refuses_other_dictionaries(values: Any, error: type[Exception], words: str) -> None:
    refused(error, words, lambda: MemoryStore(values))


def test_memory_stores_of_a_users_dictionary_are_one_place_whose_versions_are_not_known() -> None:
    """The user may change a value without the store; of its own dictionary a store knows every change."""
    values: dict[str, bytes] = {}
    one, other = MemoryStore(values), xzarr3.open_store(values)
    assert one.identity == other.identity
    assert len({MemoryStore({"a": bytes([at])}).identity for at in range(64)}) == 64, "of none that is gone"
    array = xzarr3.create_array(one, data=[1, 2, 3], chunks=3, compressors=None)
    assert other.get("c/0") is values["c/0"], "it is not copied"
    assert one.versions(["c/0", ""]) == [None, None]
    name = xzarr3.from_zarr(array).name
    array[0] = 5
    assert xzarr3.from_zarr(array).name != name
    own = MemoryStore()
    own.set("a", b"old")
    before = own.versions(["a", "b", ""])
    own.set("b", b"")
    after = own.versions(["a", "b", ""])
    assert (before[0], before[1]) == (after[0], None)
    assert before[2] != after[2]


def test_with_traits_is_kept_by_a_pickle_without_the_first_store() -> None:
    store = MemoryStore().with_traits(conflict_deadline=1.0)
    twins = [pickle.dumps(each) for each in (store.with_traits(read_only=True), store)]
    store.set("a", VALUE)
    found = [(twin.writeable, twin.get("a")) for twin in map(pickle.loads, twins)]
    assert found == [(False, VALUE), (True, VALUE)]


def test_memory_store_in_another_process_is_that_of_the_newest_pickle() -> None:
    """A worker that still holds an old copy must not answer with it."""
    store = MemoryStore()
    store.set("a", b"old")
    first = pickle.dumps(store)
    store.set("a", b"new")
    second = pickle.dumps(store)
    assert pickle.loads(first) is pickle.loads(second) is store

    def work() -> list[bytes]:
        return [bytes(pickle.loads(data).get("a")) for data in (first, second, first)]

    assert run_child(work).checked() == [b"old", b"new", b"old"]


@pytest.mark.parametrize(("name", "given", "left"), [
    ("erase", "a", None), ("set_partial_values", [("a", 0, b"O")], b"Old+"),
    ("set_values", [("a", b"")], b""),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["memory", "zip"])
def test_changes_wait_for_an_update_under_way(
    kind: str, name: str, given: Any, left: Any, tmp_path: Path
) -> None:
    """Between the reading of the old value and the writing of the new one there is no room for others."""
    store = KINDS[kind](tmp_path / "a")
    store.set("a", b"old")
    thread = threading.Thread(target=getattr(store, name), args=[given])

    def change(stored: Any) -> list[Any]:
        thread.start()
        thread.join(0.05)  # It waits for the lock of the key.
        return [stored, b"+"]

    update(store, "a", change)
    thread.join(60)
    assert store.get("a") == left
    store.close()


ANSWERS: dict[str, Any] = {
    "get": b"got", "open": BytesValue(b"opened"), "list": ["a/b"], "list_dir": ({"a/b"}, set()), "put": False,
    "erase": None, "erase_prefix": None, "copy": None, "versions": [5, 5], "exclusive": nullcontext(),
    "close": None,
}  # fmt: skip


TRAITS = stores.Traits(
    concurrency=7, request_bytes=123, over_read=1.5, conditional="service", erases_conditionally=False,
    conflict_deadline=9.0, visible="at commit", durable=True, tells_changes=True, browsable=True,
)  # fmt: skip


def answering() -> Any:
    inner = mock.Mock(MemoryStore(), traits=TRAITS)
    for name, answer in ANSWERS.items():
        getattr(inner, name).return_value = answer
    return inner


CALLS: dict[str, tuple[Callable[[Store], Any], Any]] = {
    "get": (lambda s: s.get("a", (1, 2), limit=50), mock.call("a", (1, 2), into=None, limit=50)),
    "put": (lambda s: s.put("a", [b"x"], if_version="v"), mock.call("a", [b"x"], if_version="v")),
    "erase": (lambda s: s.erase("a", "b"), mock.call("a", "b")),
    "list": (lambda s: [*s.list("a/")], mock.call("a/")),
    "open": (lambda s: s.open("a", (3, 4), "v").read(0), mock.call("a", (3, 4), "v")),
    "erase_prefix": (lambda s: s.erase_prefix("a/"), mock.call("a/")),
    "list_dir": (lambda s: s.list_dir("a/"), mock.call("a/")),
    "copy": (lambda s: s.copy("a", "b"), mock.call("a", "b")),
    "versions": (lambda s: s.versions(["a", ""]), mock.call(["a", ""])),
    "exclusive": (lambda s: s.exclusive("a").__enter__(), mock.call("a")),
    "close": (lambda s: s.close(), mock.call()),
}


@pytest.mark.parametrize("call", CALLS)
def test_wrapper_store_hands_on_each_method_as_it_is(call: str) -> None:
    act, given = CALLS[call]
    inner = answering()
    answers = ANSWERS | {"open": b"opened", "exclusive": None}
    assert act(WrapperStore(inner)) == answers[call]
    getattr(inner, call).assert_called_once_with(*given.args, **given.kwargs)


def test_wrapper_store_has_the_traits_of_its_store_but_not_its_files(tmp_path: Path) -> None:
    """What works on files directly would pass the wrapper by."""
    for inner, able in ((MemoryStore(), (True,) * 4), (Published(), (True, False, False, False))):
        store = WrapperStore(inner)
        assert (store.readable, store.writeable, store.erasable, store.listable) == able
    assert WrapperStore(type("Told", (Four,), {"traits": TRAITS})()).traits == TRAITS
    local = LocalStore(tmp_path)
    wrapper = WrapperStore(local)
    assert (wrapper.folder, wrapper.traits.plain_files) == (None, False)
    assert (wrapper.identity, repr(wrapper)) == (local.identity, f"<WrapperStore {local}>")
    assert repr(local) in html.unescape(wrapper._repr_html_())


class Upper(WrapperStore):
    @property
    def identity(self) -> object:
        return "upper", self.inner.identity

    def get(self, key: str, byte_range: Any = None, **how: Any) -> Buffer | None:
        value = super().get(key, byte_range)
        return None if value is None else bytes(value).upper()

    def open(self, key: str, first: Any = None, version: object | None = None) -> Value | None:
        value = self.get(key)
        return None if value is None else BytesValue(value)

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        given = None if pieces is None else [bytes(piece).lower() for piece in pieces]
        return super().put(key, given, if_version=if_version)


def test_every_operation_uses_what_a_class_changes() -> None:
    inner = MemoryStore({"a": b"abc"})
    store = Upper(inner)
    assert [*store.get_partial_values([("a", (1, 2))])] == [b"BC"]
    update(store, "a", lambda stored: [stored, b"D"])
    store.set("b", b"XY")
    assert contents(inner) == {"a": b"abcd", "b": b"xy"}
    assert contents(store) == {"a": b"ABCD", "b": b"XY"}
    assert store.getsize("a") == 4


def test_wrapper_store_hands_on_the_limit_that_a_class_takes_with_the_rest() -> None:
    class Passing(WrapperStore):
        def get(self, key: str, byte_range: Any = None, **how: Any) -> Buffer | None:
            given.append(how)
            return super().get(key, byte_range, **how)

    given: list[dict[str, Any]] = []
    with pytest.raises(OversizedError):
        Passing(MemoryStore({"a": b"abc"})).get("a", into=stores.Scratch(), limit=2)
    # The wrapped store would read the whole value otherwise; memory that is used again would surprise.
    assert given == [{"limit": 2}]


def test_wrapper_store_closes_as_its_class_does() -> None:
    class Ending(WrapperStore):
        def close(self) -> None:
            calls.append("class")
            super().close()

    calls: list[str] = []
    inner = type("Noting", (Four,), {"close": lambda self: calls.append("store")})()
    with ReadOnlyStore(inner):
        pass
    assert calls == [], "one that is only read does not close its store"
    with Ending(inner):
        pass
    assert calls == ["class", "store"]


def test_wrapper_store_travels_with_what_it_holds() -> None:
    inner = MemoryStore()
    twin = pickle.loads(pickle.dumps(Upper(inner)))
    assert (type(twin), twin.inner) == (Upper, inner)
    one, other = (pickle.loads(pickle.dumps(ReadOnlyStore(inner))) for _ in range(2))
    assert one is other, "equal pickled stores are one object"
    assert twin.__dask_tokenize__() != WrapperStore(inner).__dask_tokenize__()
