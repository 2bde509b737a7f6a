"""Chunk key encodings of users: arrays with them are like all others, and not read where they are unknown."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import xzarr3
from xzarr3 import ChunkKeyEncoding, MemoryStore, Store, extensions
from xzarr3.model import chunk_keys

NAME = "example.suffixed"


@dataclass(frozen=True)
class Suffixed(ChunkKeyEncoding):
    """Keys in the opposite order of the coordinates, with a suffix."""

    name: str = NAME
    suffix: str = ".bin"

    @classmethod
    def from_configuration(cls, configuration: Any) -> Suffixed:
        return cls(suffix=str(configuration.get("suffix", ".bin")))

    def configuration(self) -> dict[str, Any]:
        return {"suffix": self.suffix}

    def key(self, coords: tuple[int, ...]) -> str:
        return "-".join(["k", *map(str, reversed(coords))]) + self.suffix

    def coords(self, key: str, ndim: int) -> tuple[int, ...] | None:
        _, *parts = key.removesuffix(self.suffix).split("-")
        found = tuple(int(part) for part in reversed(parts) if part.isdecimal() and len(part) < 10)
        return found if len(found) == ndim and self.key(found) == key else None


def forget() -> None:
    chunk_keys._known.pop(NAME, None)
    extensions.forget()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    assert xzarr3.register_chunk_key_encoding(Suffixed) is Suffixed
    yield
    forget()


GIVEN = [NAME, {"name": NAME}, {"name": NAME, "configuration": {"suffix": ".dat"}}, Suffixed(suffix=".x")]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_arrays_are_written_and_read(given: Any, store: Store) -> None:
    data = np.arange(1, 601).reshape(30, 20)
    array = xzarr3.create_array(store, "a", data=data, chunks=(1, 2), chunk_key_encoding=given)
    encoding = array.metadata.chunk_key_encoding
    assert isinstance(encoding, Suffixed)
    keys = {f"a/{encoding.key((at, other))}" for at in range(30) for other in range(10)}
    assert {str(key) for key in store.list("a/")} == {*keys, "a/zarr.json"}
    again = xzarr3.open_array(store, "a", mode="r+")
    assert again.metadata.chunk_key_encoding == encoding
    np.testing.assert_array_equal(again[...], data)
    again[3:9, ::3] = -1
    data[3:9, ::3] = -1
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again))[...], data)
    np.testing.assert_array_equal(again[5, [3, 1]], data[5, [3, 1]])
    again.resize((10, 20))
    assert len([*store.list("a/")]) == 101
    assert xzarr3.stats(store).arrays["a"].stored == 100
    assert not xzarr3.check(store, "a", decode="all").errors
    copied = xzarr3.copy(store, MemoryStore(), source_path="a")
    np.testing.assert_array_equal(copied[...], data[:10])
    assert copied.metadata.chunk_key_encoding == encoding
    xzarr3.create_array(store, "a", data=[1], overwrite=True)
    assert len([*store.list("a/")]) == 2


def test_an_unknown_encoding_is_an_error_that_says_what_to_do(store: Store) -> None:
    xzarr3.create_array(store, data=[1, 2], chunk_key_encoding=NAME)
    forget()
    with pytest.raises(xzarr3.UnknownExtensionError, match="register_chunk_key_encoding") as caught:
        xzarr3.open_array(store)
    assert NAME in str(caught.value)
    with pytest.raises(xzarr3.UnknownExtensionError):
        xzarr3.create_array(MemoryStore(), data=[1], chunk_key_encoding=NAME)


def test_errors_of_the_class_name_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    xzarr3.create_array(store, data=[1, 2], chunk_key_encoding=NAME)

    def fail(cls: Any, configuration: Any) -> Any:
        raise ValueError("no such suffix")

    monkeypatch.setattr(Suffixed, "from_configuration", classmethod(fail))
    extensions.forget()
    with pytest.raises(xzarr3.MetadataError, match=f"'{NAME}': ValueError: no such suffix"):
        xzarr3.open_array(store)


@pytest.mark.parametrize("zarr_format", [2, "3-draft"])
def test_other_formats_refuse_it(zarr_format: Any) -> None:
    with pytest.raises(xzarr3.MetadataError, match="chunk"):
        xzarr3.create_array(MemoryStore(), data=[1], chunk_key_encoding=NAME, zarr_format=zarr_format)


def test_a_class_without_a_configuration_has_a_separator(store: Store) -> None:
    @xzarr3.register_chunk_key_encoding
    @dataclass(frozen=True)
    class Doubled(ChunkKeyEncoding):
        name: str = NAME

        def prefix(self, ndim: int) -> str:
            return f"cc{self.separator}"

    array = xzarr3.create_array(
        store, data=np.arange(1, 301), chunks=1, chunk_key_encoding={"name": NAME, "separator": "."}
    )
    assert store.exists("cc.299")
    document = json.loads(bytes(store.get("zarr.json") or b""))
    assert document["chunk_key_encoding"] == {"name": NAME, "configuration": {"separator": "."}}
    np.testing.assert_array_equal(array[...], np.arange(1, 301))
    with pytest.raises(xzarr3.MetadataError, match="separator"):
        xzarr3.create_array(MemoryStore(), data=[1], chunk_key_encoding={"name": NAME, "separator": "-"})
