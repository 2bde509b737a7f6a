"""Hierarchies of the draft of May 2022 in stores: implicit groups, entry points, earlier tools."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _documents import ENTRY_POINT, OPTIONAL, document, draft_array, draft_codec, draft_grid
from _strategies import same_bits

import xzarr3
from xzarr3 import MemoryStore, NodeNotFoundError, Store, UnknownExtensionError
from xzarr3.errors import FallbackWarning

DRAFT = "3-draft"
VALUES = np.arange(24, dtype="<i4").reshape(4, 6)
DATA = Path(__file__).parents[1] / "data"


def keys(store: Store, part: str = "") -> set[str]:
    return {key for key in store.list() if part in key}


def written(entry_point: Any = ENTRY_POINT, chunks: Any = (), **changes: Any) -> MemoryStore:
    plain = draft_array(**{"data_type": "int32", "chunk_grid": draft_grid([2, 6]), **changes})
    documents = {"zarr.json": entry_point, "meta/a.array.json": plain}
    return MemoryStore({key: json.dumps(value).encode() for key, value in documents.items()} | dict(chunks))


def filled() -> MemoryStore:
    """Groups: /e explicit, /i implicit; arrays in both and one at the top."""
    store = MemoryStore()
    for path in ("e", "e/in"):
        xzarr3.create_group(store, path, zarr_format=DRAFT)
    for path in ("e/a", "e/in/a", "i/deep/a", "top", "topmost"):
        xzarr3.create_array(store, path, data=np.ones(2), compressors=None, zarr_format=DRAFT)
    return store


INNER = {"meta/e/in.group.json", "meta/e/in/a.array.json", "data/e/in/a/c0"}
EXPLICIT = {"meta/e.group.json", "meta/e/a.array.json", "data/e/a/c0"} | INNER
IMPLICIT = {"meta/i/deep/a.array.json", "data/i/deep/a/c0"}
TOP = {"meta/top.array.json", "data/top/c0"}
ALL = {"zarr.json", "meta/topmost.array.json", "data/topmost/c0"} | EXPLICIT | IMPLICIT | TOP


@pytest.mark.parametrize(
    ("path", "gone"),
    [("top", TOP), ("i", IMPLICIT), ("i/deep", IMPLICIT), ("e/in", INNER), ("e", EXPLICIT)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_erasing(path: str, gone: set[str]) -> None:
    store = filled()
    assert keys(store) == ALL
    root = xzarr3.open_group(store, mode="r+")
    del root[path]
    assert keys(store) == ALL - gone
    with pytest.raises(NodeNotFoundError):
        xzarr3.open(store, path)
    assert "top" in root or path == "top"


def test_an_implicit_group_goes_with_its_last_member() -> None:
    root = xzarr3.open_group(filled(), mode="r+")
    del root["i/deep/a"]
    assert "i" not in root
    del root["e/a"]
    assert "e" in root


def test_a_document_of_another_state_stays_as_it_is() -> None:
    layout = {"codecs": [draft_codec("transpose", order=[1, 0])], "chunk_memory_layout": ...}
    store = written(data_type="<i4", **layout)
    before = document(store, "meta/a.array.json")
    array = xzarr3.open_array(store, "a", mode="r+")
    array[...] = VALUES
    assert store.get("data/a/c0/0") == VALUES[:2].tobytes("F")
    array.attrs["a"] = 1
    array.append(VALUES)
    assert document(store, "meta/a.array.json") == {**before, "shape": [8, 6], "attributes": {"a": 1}}
    assert same_bits(xzarr3.open(store, "a")[...], np.concatenate([VALUES, VALUES]))


@pytest.mark.parametrize("suffix", [".txt", ""])
def test_another_suffix(suffix: str) -> None:
    entry_point = {**ENTRY_POINT, "metadata_encoding": {"type": "json", "metadata_key_suffix": suffix}}
    store = MemoryStore({"zarr.json": json.dumps(entry_point).encode()})
    xzarr3.create_array(store, "g/a", data=VALUES, compressors=None, chunks=(4, 6), zarr_format=DRAFT)
    assert keys(store) == {"zarr.json", f"meta/g/a.array{suffix}", "data/g/a/c0/0"}
    assert document(store, "zarr.json") == entry_point
    assert list(xzarr3.open_group(store)["g"]) == ["a"]


def test_extensions_of_a_hierarchy() -> None:
    store = written({**ENTRY_POINT, "extensions": [{**OPTIONAL, "must_understand": True}]})
    for path in ("", "a"):
        with pytest.raises(UnknownExtensionError, match=r"example\.org"):
            xzarr3.open(store, path)
    store = written({**ENTRY_POINT, "extensions": [OPTIONAL]})
    xzarr3.open_array(store, "a", mode="r+").attrs["a"] = 1
    xzarr3.create_group(store, "b", zarr_format=DRAFT)
    assert document(store, "zarr.json")["extensions"] == [OPTIONAL]


def test_there_is_no_hierarchy_without_its_entry_point() -> None:
    store = written()
    store.erase("zarr.json")
    with pytest.raises(NodeNotFoundError):
        xzarr3.open(store, "a")


def test_a_fallback_is_used_and_said() -> None:
    named = {"extension": "http://example.org/quaternion", "type": "q4", "fallback": ["quat", "int32"]}
    chunks = {"data/a/c0/0": VALUES[:2].tobytes(), "data/a/c1/0": VALUES[2:].tobytes()}
    source = written(chunks=chunks, data_type=named)
    before = document(source, "meta/a.array.json")
    with pytest.warns(FallbackWarning, match=r"'/a'.*'q4'.*'int32'") as caught:
        array = xzarr3.open_array(source, "a", mode="r+")
    assert caught[0].filename == __file__
    with pytest.warns(FallbackWarning, match="'q4'"):
        assert "a" in dict(xzarr3.open_group(source).members())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        assert same_bits(array[...], VALUES)
        array.attrs["a"] = 1
        array.append(VALUES)
    assert document(source, "meta/a.array.json") == {**before, "shape": [8, 6], "attributes": {"a": 1}}
