"""Storage transformers: registered ones stand between array and store, unknown ones are refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import pytest
from _documents import document
from _things import refused, refuses

import xzarr3
from xzarr3 import ChunkKeyEncoding, MemoryStore, StorageTransformer, Store, extensions
from xzarr3._types import JSON, Buffer, ByteRange
from xzarr3.fields import REQUIRED, Meta, read
from xzarr3.model import chunk_keys
from xzarr3.model.storage_transformers import storage_transformer_names, unregister_storage_transformer

NAME = "example.suffixed"


class _Flipped(Store):
    """Every bit of every value is stored inverted, under keys with another beginning."""

    def __init__(self, store: Store, prefix: str, mask: int) -> None:
        super().__init__(read_only=store.read_only)
        self._store, self._prefix, self._mask = store, prefix, mask

    def _inner(self, key: str) -> str:
        assert key.startswith(self._prefix)
        return f"{self._prefix}flipped/{key[len(self._prefix) :]}"

    def _turn(self, value: Buffer) -> bytes:
        return bytes(octet ^ self._mask for octet in bytes(value))

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = self._store.get(self._inner(key), byte_range)
        return None if value is None else self._turn(value)

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        self._store.set(self._inner(key), self._turn(b"".join(pieces)))

    def erase(self, *keys: str) -> None:
        self._store.erase(*map(self._inner, keys))

    def list(self, prefix: str = "") -> Iterator[str]:
        start = f"{self._prefix}flipped/"
        for key in self._store.list(start):
            yield self._prefix + key[len(start) :]


@dataclass(frozen=True)
class Flip(StorageTransformer):
    name = "example.flip"
    mask: Annotated[int, Meta(ge=0, le=255), REQUIRED] = 255

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Flip:
        return cls(**read(cls, configuration, "storage transformer 'example.flip'"))

    def configuration(self) -> dict[str, JSON]:
        return {"mask": self.mask}

    def wrap(self, store: Store, prefix: str, metadata: Any) -> Store:
        return _Flipped(store, prefix, self.mask)

    def owns(self, key: str) -> bool:
        return key.startswith("flipped/")


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    xzarr3.register_storage_transformer(Flip)
    yield
    if Flip.name in storage_transformer_names():
        unregister_storage_transformer(Flip.name)


def _make(store: Store, *transformers: Any, **options: Any) -> xzarr3.Array:
    data = np.arange(20, dtype="int16").reshape(4, 5)
    options = {"chunks": (2, 5), "compressors": None, "storage_transformers": transformers, **options}
    return xzarr3.create_array(store, "a", data=data, **options)


def _with_entry(entry: Any) -> MemoryStore:
    store = MemoryStore()
    _make(store)
    changed = {**document(store, "a/zarr.json"), "storage_transformers": [entry]}
    store.set("a/zarr.json", json.dumps(changed).encode())
    return store


def test_values_pass_through_it_both_ways(store: Store) -> None:
    array = _make(store, Flip(255))
    np.testing.assert_array_equal(array[...], np.arange(20).reshape(4, 5))
    stored = bytes(store.get("a/flipped/c/0/0"))
    assert stored == bytes(255 ^ octet for octet in np.arange(10, dtype="<i2").tobytes())
    assert store.get("a/c/0/0") is None
    array[1, 1:3] = -1
    assert xzarr3.open_array(store, "a")[1].tolist() == [5, -1, -1, 8, 9]
    # Of two, the first is next to the array.
    array = _make(store, Flip(1), Flip(2), overwrite=True)
    assert (bytes(store.get("a/flipped/flipped/c/0/0"))[0], array[0, 0]) == (3, 0)


def test_document_and_reopening(store: Store) -> None:
    _make(store, {"name": "example.flip", "configuration": {"mask": 15}})
    again = xzarr3.open_array(store, "a", mode="r+")
    assert again.metadata.storage_transformers == (Flip(15),)
    again.attrs["units"] = "K"
    flip = {"name": "example.flip", "configuration": {"mask": 15}}
    assert document(store, "a/zarr.json")["storage_transformers"] == [flip]
    unregister_storage_transformer(Flip.name)
    words = r"storage_transformers\[0\].*example\.flip"
    refuses(partial(xzarr3.open_array, store), ["a"], xzarr3.UnknownExtensionError, words)


def test_resize_append_and_delete(store: Store) -> None:
    array = _make(store, Flip())
    before = xzarr3.from_zarr(array).name
    array[0, 0] = 7  # Not under a key that the array knows, and yet dask names its tasks anew.
    assert xzarr3.from_zarr(array).name != before
    array.append(np.full((2, 5), 7, "int16"))
    array.resize((3, 5))
    assert array[2].tolist() == list(range(10, 15))
    assert store.get("a/flipped/c/2/0") is None
    root = xzarr3.open_group(store, mode="r+")
    del root["a"]
    assert list(store.list()) == ["zarr.json"]
    assert not StorageTransformer.owns(Flip(), "flipped/c/0/0")  # Other keys are no one's by default.


def test_sharded_partial_reads_and_pickling(tmp_path: Any) -> None:
    store = xzarr3.LocalStore(tmp_path)
    data = np.arange(64, dtype="float32").reshape(8, 8)
    options: dict[str, Any] = {"chunks": (2, 2), "shards": (4, 8), "storage_transformers": [Flip()]}
    array = xzarr3.create_array(store, "a", data=data, **options)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array))[3:7, 1], data[3:7, 1])
    np.testing.assert_array_equal(xzarr3.from_zarr(array).compute(scheduler="threads"), data)


@pytest.mark.parametrize(("entry", "field"), [
    ({"name": "example.flip", "configuration": {"mask": 256}}, "mask"),
    ({"name": "example.flip", "configuration": {}}, "mask"),
    ({"name": "example.flip", "configuration": {"mask": 1, "more": 2}}, "more"),
    ({"name": "example.flip", "other": 1}, "other"), ({"configuration": {}}, "storage_transformers[0]"),
    ({"name": 7}, "storage_transformers[0]"), ("nobody.knows", "storage_transformers[0]"),
], ids=range(7))  # fmt: skip
def test_bad_documents(entry: Any, field: str) -> None:
    open_ = partial(xzarr3.open_array, _with_entry(entry), "a")
    (error,) = refused(xzarr3.MetadataError, "node '/a'", open_)
    assert field in str(error)


def test_one_that_need_not_be_understood_is_passed_over_and_kept() -> None:
    hint = {"name": "cache.hint", "must_understand": False}
    store = _with_entry(hint)
    array = xzarr3.open_array(store, "a", mode="r+")
    assert array[1, 1] == 6
    array.attrs["a"] = 1
    assert document(store, "a/zarr.json")["storage_transformers"] == [hint]


def test_a_check_reads_through_it(store: Store) -> None:
    xzarr3.create_group(store)
    _make(store, Flip(255))
    report = xzarr3.check(store, decode="all")
    assert report.findings == ()
    assert (report.arrays["a"].stored, report.arrays["a"].read) == (None, 2)
    store.set("a/flipped/c/1/0", b"short")
    store.set("a/c/9/9", b"")
    found = {finding.code for finding in xzarr3.check(store, decode="all").findings}
    assert found == {"chunk-size", "chunk-outside"}


@dataclass(frozen=True)
class Suffixed(ChunkKeyEncoding):
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
    again[3:9, ::3] = data[3:9, ::3] = -1
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
    xzarr3.create_array(store, "a", data=[1, 2], chunk_key_encoding=NAME)
    xzarr3.consolidate_metadata(store)
    known = xzarr3.open_group(store)
    assert known["a"][1] == 2
    forget()
    unknown = xzarr3.UnknownExtensionError
    (error,) = refuses(partial(xzarr3.open_array, path="a"), [store], unknown, "register_chunk_key_encoding")
    assert NAME in str(error)
    for group in (known, xzarr3.open_group(store)):
        refused(unknown, NAME, partial(group.__getitem__, "a"))
    refused(unknown, None, lambda: xzarr3.create_array(MemoryStore(), data=[1], chunk_key_encoding=NAME))


def test_errors_of_the_class_name_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    xzarr3.create_array(store, data=[1, 2], chunk_key_encoding=NAME)

    def fail(cls: Any, configuration: Any) -> Any:
        raise ValueError("no such suffix")

    monkeypatch.setattr(Suffixed, "from_configuration", classmethod(fail))
    extensions.forget()
    refuses(xzarr3.open_array, [store], xzarr3.MetadataError, f"'{NAME}': ValueError: no such suffix")


def test_other_formats_refuse_them() -> None:
    store = MemoryStore()
    for zarr_format in (2, "3-draft"):
        make = partial(_make, store, Flip(), zarr_format=zarr_format)
        refused(xzarr3.MetadataError, "storage_transformers", make)
        options: Any = {"data": [1], "chunk_key_encoding": NAME, "zarr_format": zarr_format}
        refused(xzarr3.MetadataError, "chunk", partial(xzarr3.create_array, store, **options))
    assert list(store.list()) == []


def test_a_class_without_a_configuration_has_a_separator(store: Store) -> None:
    @xzarr3.register_chunk_key_encoding
    @dataclass(frozen=True)
    class Doubled(ChunkKeyEncoding):
        name: str = NAME

        def prefix(self, ndim: int) -> str:
            return f"cc{self.separator}"

    data, encoding = np.arange(1, 301), {"name": NAME, "separator": "."}
    array = xzarr3.create_array(store, data=data, chunks=1, chunk_key_encoding=encoding)
    assert store.exists("cc.299")
    expected = {"name": NAME, "configuration": {"separator": "."}}
    assert document(store)["chunk_key_encoding"] == expected
    np.testing.assert_array_equal(array[...], data)
    other = {"data": [1], "chunk_key_encoding": {"name": NAME, "separator": "-"}}
    refused(xzarr3.MetadataError, "separator", lambda: xzarr3.create_array(MemoryStore(), **other))
