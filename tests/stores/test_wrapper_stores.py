"""WrapperStore and ReadOnlyStore: every method is handed on as it is, and what a class changes is used."""

from __future__ import annotations

import html
import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from _conformance import VALUE, contents, writes
from _things import refused

from xzarr3 import LocalStore, MemoryStore, ReadOnlyError, Store
from xzarr3._types import Buffer
from xzarr3.stores import ANY, BytesValue, ReadOnlyStore, Scratch, Traits, Value, WrapperStore, update
from xzarr3.stores.values import OversizedError

ANSWERS: dict[str, Any] = {
    "get": b"got", "open": BytesValue(b"opened"), "list": ["a/b"], "list_dir": ({"a/b"}, set()), "put": False,
    "erase": None, "erase_prefix": None, "copy": None, "versions": [5, 5], "exclusive": nullcontext(),
    "close": None,
}  # fmt: skip


def noting(name: str) -> Callable[..., Any]:
    def method(store: Any, *given: Any) -> Any:
        store.calls.append((name, *given))
        return ANSWERS[name]

    return method


TRAITS = Traits(
    concurrency=7, request_bytes=123, over_read=1.5, conditional="service", erases_conditionally=False,
    conflict_deadline=9.0, visible="at commit", durable=True, tells_changes=True, browsable=True,
)  # fmt: skip


class Noting(Store):
    traits = TRAITS
    erase, erase_prefix, copy, close = map(noting, ("erase", "erase_prefix", "copy", "close"))
    list, list_dir, open = map(noting, ("list", "list_dir", "open"))
    versions, exclusive = map(noting, ("versions", "exclusive"))

    def __init__(self) -> None:
        super().__init__()
        self.calls: Any = []

    def get(self, key: str, byte_range: Any = None, *, into: Any = None, limit: int = 0) -> Any:
        return noting("get")(self, key, byte_range, into, limit)

    def put(self, key: str, pieces: Any, *, if_version: object = ANY) -> bool:
        return noting("put")(self, key, pieces, if_version)


CALLS: dict[str, tuple[Callable[[Store], Any], tuple[Any, ...]]] = {
    "get": (lambda s: s.get("a", (1, 2), limit=50), ("a", (1, 2), None, 50)),
    "put": (lambda s: s.put("a", [b"x"], if_version="v"), ("a", [b"x"], "v")),
    "erase": (lambda s: s.erase("a", "b"), ("a", "b")),
    "list": (lambda s: [*s.list("a/")], ("a/",)),
    "open": (lambda s: s.open("a", (3, 4), "v").read(0), ("a", (3, 4), "v")),
    "erase_prefix": (lambda s: s.erase_prefix("a/"), ("a/",)),
    "list_dir": (lambda s: s.list_dir("a/"), ("a/",)),
    "copy": (lambda s: s.copy("a", "b"), ("a", "b")),
    "versions": (lambda s: s.versions(["a", ""]), (["a", ""],)),
    "exclusive": (lambda s: s.exclusive("a").__enter__(), ("a",)),
    "close": (lambda s: s.close(), ()),
}


@pytest.mark.parametrize("call", CALLS)
def test_wrapper_store_hands_on_each_method_as_it_is(call: str) -> None:
    act, given = CALLS[call]
    inner = Noting()
    answers = ANSWERS | {"open": b"opened", "exclusive": None}
    assert act(WrapperStore(inner)) == answers[call]
    assert inner.calls == [(call, *given)]


def test_wrapper_store_has_the_traits_of_its_store_but_not_its_files(tmp_path: Path) -> None:
    """What works on files directly would pass the wrapper by."""
    reading = type("Readable", (Store,), {"get": noting("get")})()
    for inner, able in ((Noting(), (True,) * 4), (reading, (True, False, False, False))):
        store = WrapperStore(inner)
        assert (store.readable, store.writeable, store.erasable, store.listable) == able
    assert WrapperStore(Noting()).traits == TRAITS
    local = LocalStore(tmp_path)
    wrapper = WrapperStore(local)
    assert (wrapper.folder, wrapper.traits.plain_files) == (None, False)
    assert (wrapper.identity, repr(wrapper)) == (local.identity, f"<WrapperStore {local}>")
    assert repr(local) in html.unescape(wrapper._repr_html_())


def test_read_only_store_refuses_every_write() -> None:
    inner = MemoryStore({"a/b": VALUE, "c": VALUE})
    store = ReadOnlyStore(inner)
    refused(ReadOnlyError, "read-only", *writes(store).values())
    assert contents(inner) == contents(store) == {"a/b": VALUE, "c": VALUE}
    assert (store.writeable, store.erasable) == (False, False)


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
        Passing(MemoryStore({"a": b"abc"})).get("a", into=Scratch(), limit=2)
    # The wrapped store would read the whole value otherwise; memory that is used again would surprise.
    assert given == [{"limit": 2}]


def test_wrapper_store_closes_as_its_class_does() -> None:
    class Ending(WrapperStore):
        def close(self) -> None:
            inner.calls.append("class")
            super().close()

    inner = Noting()
    with ReadOnlyStore(inner):
        pass
    assert inner.calls == [], "one that is only read does not close its store"
    with Ending(inner):
        pass
    assert inner.calls == ["class", ("close",)]


def test_wrapper_store_travels_with_what_it_holds() -> None:
    inner = MemoryStore()
    twin = pickle.loads(pickle.dumps(Upper(inner)))
    assert (type(twin), twin.inner) == (Upper, inner)
    one, other = (pickle.loads(pickle.dumps(ReadOnlyStore(inner))) for _ in range(2))
    assert one is other, "equal pickled stores are one object"


def test_dask_takes_no_wrapper_for_the_store_itself() -> None:
    inner = MemoryStore({"a": b"abc"})
    tokens = [store.__dask_tokenize__() for store in (Upper(inner), WrapperStore(inner))]
    assert tokens[0] != tokens[1]
