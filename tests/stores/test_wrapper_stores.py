"""WrapperStore and ReadOnlyStore: every method is handed on as it is, and what a class changes is used."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from _conformance import VALUE, contents, writes

import xzarr3
from xzarr3 import LocalStore, MemoryStore, ReadOnlyError, Store
from xzarr3._types import Buffer
from xzarr3.stores import ANY, BytesValue, ReadOnlyStore, Traits, Value, WrapperStore, update


class Noting(Store):
    """Notes how its methods are called, and answers each in its own way."""

    traits = Traits(
        concurrency=7, request_bytes=123, over_read=1.5, conditional="service", erases_conditionally=False,
        conflict_deadline=9.0, visible="at commit", durable=True, tells_changes=True, browsable=True,
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def _note(self, answer: Any, *call: Any) -> Any:
        self.calls.append(call)
        return answer

    def get(self, key: str, byte_range: Any = None, *, into: Any = None, limit: int = 0) -> Buffer | None:
        return self._note(b"got", "get", key, byte_range, into, limit)  # type: ignore[no-any-return]

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        return self._note(False, "put", key, pieces, if_version)  # type: ignore[no-any-return]

    def erase(self, *keys: str) -> None:
        self._note(None, "erase", *keys)

    def list(self, prefix: str = "") -> Iterable[str]:
        return self._note(["a/b"], "list", prefix)  # type: ignore[no-any-return]

    def open(self, key: str, first: Any = None, version: object | None = None) -> Value | None:
        return self._note(BytesValue(b"opened"), "open", key, first, version)  # type: ignore[no-any-return]

    def erase_prefix(self, prefix: str) -> None:
        self._note(None, "erase_prefix", prefix)

    def list_dir(self, prefix: str) -> tuple[set[str], set[str]]:
        return self._note(({"a/b"}, set()), "list_dir", prefix)  # type: ignore[no-any-return]

    def copy(self, source: str, target: str) -> None:
        self._note(None, "copy", source, target)

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return self._note([5] * len(keys), "versions", *keys)  # type: ignore[no-any-return]

    def exclusive(self, key: str) -> AbstractContextManager[object]:
        return self._note(nullcontext(), "exclusive", key)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._note(None, "close")


def _enter(store: Store) -> None:
    with store.exclusive("a"):
        pass


CALLS: dict[str, tuple[Callable[[Store], Any], tuple[Any, ...], Any]] = {
    "get": (lambda s: s.get("a", (1, 2), limit=50), ("get", "a", (1, 2), None, 50), b"got"),
    "put": (lambda s: s.put("a", [b"x"], if_version="v"), ("put", "a", [b"x"], "v"), False),
    "erase": (lambda s: s.erase("a", "b"), ("erase", "a", "b"), None),
    "list": (lambda s: [*s.list("a/")], ("list", "a/"), ["a/b"]),
    "open": (lambda s: s.open("a", (3, 4), "v").read(0), ("open", "a", (3, 4), "v"), b"opened"),  # type: ignore[union-attr]
    "erase_prefix": (lambda s: s.erase_prefix("a/"), ("erase_prefix", "a/"), None),
    "list_dir": (lambda s: s.list_dir("a/"), ("list_dir", "a/"), ({"a/b"}, set())),
    "copy": (lambda s: s.copy("a", "b"), ("copy", "a", "b"), None),
    "versions": (lambda s: s.versions(["a", ""]), ("versions", "a", ""), [5, 5]),
    "exclusive": (_enter, ("exclusive", "a"), None),
    "close": (lambda s: s.close(), ("close",), None),
}


@pytest.mark.parametrize("call", CALLS)
def test_wrapper_store_hands_on_each_method_as_it_is(call: str) -> None:
    act, expected, answer = CALLS[call]
    inner = Noting()
    assert act(WrapperStore(inner)) == answer
    assert inner.calls == [expected]


def test_wrapper_store_has_the_traits_of_its_store() -> None:
    inner, wrapper = Noting(), WrapperStore(Noting())
    assert wrapper.traits == inner.traits
    able = (wrapper.readable, wrapper.writeable, wrapper.erasable, wrapper.listable)
    assert able == (True,) * 4


def test_wrapper_store_hides_the_files_of_its_store(tmp_path: Path) -> None:
    """What works on files directly would pass the wrapper by."""
    wrapper = WrapperStore(LocalStore(tmp_path))
    assert (wrapper.folder, wrapper.traits.plain_files) == (None, False)
    assert wrapper.identity == LocalStore(tmp_path).identity


class Readable(Store):
    def get(self, key: str, byte_range: Any = None) -> Buffer | None:
        return None


def test_wrapper_store_can_do_what_its_store_can() -> None:
    wrapper = WrapperStore(Readable())
    able = (wrapper.readable, wrapper.writeable, wrapper.erasable, wrapper.listable)
    assert able == (True, False, False, False)


@pytest.mark.parametrize("kind", [ReadOnlyStore, lambda inner: WrapperStore(inner, read_only=True)])
def test_read_only_store_refuses_every_write(kind: Callable[[Store], Store]) -> None:
    inner = MemoryStore({"a/b": VALUE, "c": VALUE})
    store = kind(inner)
    for name, write in writes(store).items():
        with pytest.raises(ReadOnlyError, match="read-only"):
            write()
        assert contents(inner) == {"a/b": VALUE, "c": VALUE}, name
    assert store.get("a/b") == VALUE
    assert (store.writeable, store.erasable) == (False, False)


def test_read_only_store_does_not_close_its_store() -> None:
    inner = Noting()
    with ReadOnlyStore(inner):
        pass
    assert inner.calls == []


class Upper(WrapperStore):
    """Changes values in both ways to read them."""

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
    assert [bytes(part or b"") for part in store.get_partial_values([("a", (1, 2))])] == [b"BC"]
    update(store, "a", lambda stored: [stored or b"", b"D"])
    store.set("b", b"XY")
    assert contents(inner) == {"a": b"abcd", "b": b"xy"}
    assert contents(store) == {"a": b"ABCD", "b": b"XY"}
    assert store.getsize("a") == 4


def test_wrapper_store_travels_with_what_it_holds() -> None:
    inner = MemoryStore()
    twin = pickle.loads(pickle.dumps(Upper(inner)))
    assert (type(twin), twin.inner) == (Upper, inner)
    one, other = (pickle.loads(pickle.dumps(ReadOnlyStore(inner))) for _ in range(2))
    assert one is other, "equal pickled stores are one object"


def test_wrapper_store_shows_what_it_wraps(tmp_path: Path) -> None:
    store = WrapperStore(LocalStore(tmp_path))
    assert repr(store) == f"<WrapperStore <LocalStore '{tmp_path}'>>"
    assert repr(LocalStore(tmp_path)) in store._repr_html_().replace("&#x27;", "'").replace(
        "&lt;", "<"
    ).replace("&gt;", ">")


@pytest.mark.parametrize("wrap", [WrapperStore, ReadOnlyStore])
def test_arrays_are_read_through_a_wrapper(wrap: Callable[[Store], Store]) -> None:
    inner = MemoryStore()
    xzarr3.create_array(inner, "s", data=range(64), chunks=(4,), shards=(16,))
    assert xzarr3.open_array(wrap(inner), "s")[3:60:7].tolist() == list(range(3, 60, 7))


def test_dask_takes_no_wrapper_for_the_store_itself() -> None:
    inner = MemoryStore({"a": b"abc"})
    tokens = [store.__dask_tokenize__() for store in (Upper(inner), WrapperStore(inner))]
    assert tokens[0] != tokens[1]
