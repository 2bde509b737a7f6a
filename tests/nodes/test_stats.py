"""``stats``: stored bytes and units by array, against what the store holds."""

import json
from typing import Any

import numpy as np
import pytest
from _conformance import refused
from _kinds import Unlisted

import xzarr3
from xzarr3 import MemoryStore
from xzarr3.statistics import Stats
from xzarr3.stores import WrapperStore


def hierarchy(zarr_format: Any) -> MemoryStore:
    store = MemoryStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("a", data=np.arange(100).reshape(10, 10), chunks=(3, 5))
    half = root.create_array("deep/half", shape=(8,), chunks=2, dtype="f4", fill_value=0)
    half[:4] = 1
    root.create_array("ab", data=np.ones(5), chunks=2)
    return store


def sizes(store: MemoryStore) -> dict[str, int]:
    return {str(key): key.size for key in store.list()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
@pytest.mark.parametrize("path", ["", "a", "deep", "deep/half"])
def test_numbers_are_those_of_the_store(zarr_format: Any, path: str) -> None:
    store = hierarchy(zarr_format)
    found = xzarr3.stats(store, path)
    named = [name for name in ("a", "ab", "deep/half") if not path or f"{name}/".startswith(f"{path}/")]
    assert sorted(found.arrays) == named
    for name in named:
        array = xzarr3.open_array(store, name)
        each = found.arrays[name]
        keys = [array.chunk_key(coords) for coords in array.stored_units()]
        assert (each.stored, each.nbytes_stored) == (len(keys), sum(sizes(store)[key] for key in keys))
        assert (each.units, each.nbytes, each.shape) == (array.nchunks, array.nbytes, array.shape)
    assert found.other is not None
    assert found.other.number == 0
    if not path:
        assert found.nbytes_stored == sum(sizes(store).values())
    if path == "a":
        assert found.nbytes_stored == xzarr3.open_array(store, "a").nbytes_stored()


def test_units_are_shards_and_the_ratio_is_that_of_units_that_are_stored() -> None:
    half = xzarr3.stats(hierarchy(3)).arrays["deep/half"]
    assert (half.stored, half.units) == (2, 4)
    assert half.nbytes_stored
    assert half.ratio == 16 / half.nbytes_stored
    array = xzarr3.create_array(MemoryStore(), shape=(16,), chunks=2, shards=8, dtype="i1")
    array[0] = 1
    found = xzarr3.stats(array.store).arrays[""]
    assert (found.unit, found.units, found.stored) == ("shard", 2, 1)
    texts = xzarr3.stats(xzarr3.create_array(MemoryStore(), data=["a", "bc"], dtype="string").store)
    assert (texts.nbytes, texts.arrays[""].ratio) == (None, None)
    assert "?" in str(texts)


def test_keys_that_belong_to_nothing_are_other_keys() -> None:
    store = hierarchy(3)
    store.set("a/c/9/9", b"12345")
    store.set("notes.txt", b"abc")
    store.set("bad/zarr.json", b"{")
    store.set("bad/c/0", b"12")
    found = xzarr3.stats(store)
    assert found.other is not None
    assert (found.other.number, found.other.nbytes, found.unreadable) == (3, 10, ("bad",))
    assert "/bad cannot be read" in str(found)
    assert found.nbytes_stored == sum(sizes(store).values())


class _Sizeless(WrapperStore):
    def list(self, prefix: str = "") -> Any:
        return map(str, self.inner.list(prefix))


def test_stores_that_cannot_list_or_tell_no_sizes() -> None:
    """Where nothing can be listed, units are asked for one by one, unless there are many."""
    inner = MemoryStore()
    array = xzarr3.create_array(inner, shape=(8,), chunks=2, dtype="i1", compressors=None)
    array[:4] = 1
    found = xzarr3.stats(Unlisted(inner))
    assert (found.arrays[""].stored, found.arrays[""].nbytes_stored) == (2, 4)
    assert (found.documents, found.nbytes_stored) == (None, None)
    xzarr3.create_array(inner, shape=(5000,), chunks=1, dtype="i1", overwrite=True)
    assert xzarr3.stats(Unlisted(inner)).arrays[""].stored is None
    found = xzarr3.stats(_Sizeless(hierarchy(3)))
    assert (found.arrays["a"].stored, found.arrays["a"].nbytes_stored, found.nbytes_stored) == (8, None, None)


def test_one_listing_and_no_request_for_each_key() -> None:
    store = MemoryStore()
    root = xzarr3.create_group(store)
    for at in range(20):
        root.create_array(f"a{at}", data=np.ones(50), chunks=1)
    xzarr3.consolidate_metadata(store)
    with xzarr3.trace() as traced:
        found = xzarr3.stats(store)
    assert found.stored == 1000
    assert traced.total["requests"] <= 4


def test_json_text_and_html() -> None:
    found: Stats = xzarr3.stats(hierarchy(3))
    document = json.loads(json.dumps(found.to_json()))
    assert (document["units"], document["stored"], document["arrays"]["a"]["shape"]) == (15, 13, [10, 10])
    assert document["arrays"]["a"]["ratio"] == found.arrays["a"].ratio
    lines = str(found).splitlines()
    assert lines[1].startswith("sum ")
    assert lines[1].endswith("13 of 15 units")
    assert lines[3].split() == ["array", "size", "stored", "ratio", "stored", "units"]
    assert "deep/half" in found._repr_html_()
    refused(xzarr3.NodeNotFoundError, lambda: xzarr3.stats(hierarchy(3), "no"))
