"""Stores of each format to plant defects in, and ways to plant them."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

import xzarr3
from xzarr3 import MemoryStore, Store

FORMATS: tuple[Any, ...] = (3, 2, "3-draft")
TIME = {"units": "days since 2001-01-01", "calendar": "standard"}


def healthy(zarr_format: Any, store: Store | None = None) -> Store:
    """A store with two coordinates, an array on them, and a group below; consolidated where that exists."""
    store = MemoryStore() if store is None else store
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    time = np.arange(1, 9, dtype="int32")
    plain: dict[str, Any] = {"compressors": None, "attributes": TIME}
    root.create_array("time", data=time, chunks=4, dimension_names=("time",), **plain)
    grid: dict[str, Any] = {"chunks": (4, 3), "dimension_names": ("time", "lat")}
    data = np.arange(1, 49, dtype="int16").reshape(8, 6)
    root.create_array("t2m", data=data, compressors=None, attributes={"units": "K"}, **grid)
    root.create_array("packed", data=data.astype("float32"), **grid)
    root.create_group("deep").create_array("x", data=[1, 2, 3], chunks=2)
    if zarr_format != "3-draft":
        xzarr3.consolidate_metadata(store)
    return store


class Planter:
    """Plants defects in a store of a format."""

    def __init__(self, store: Any, zarr_format: Any) -> None:
        self.store, self.zarr_format = store, zarr_format
        self.format: Any = xzarr3.open_group(store, use_consolidated=False).format

    def put(self, key: str, value: bytes = b"1") -> str:
        """Store a value; as with others, its key is returned."""
        self.store.set(key, value)
        return key

    def cut(self, key: str, size: int) -> str:
        """Keep the first bytes of a value."""
        return self.put(key, bytes(self.store.get(key))[:size])

    def erase(self, *keys: str) -> str:
        self.store.erase_values(keys)
        return keys[0]

    def chunk(self, path: str, *coords: int) -> str:
        array = xzarr3.open_array(self.store, path)
        return self.format.keys(path).chunks + array.metadata.chunk_key_encoding.key(coords)

    def document(self, path: str) -> str:
        return str(self.format.keys(path).array)

    def attributes(self, path: str) -> str:
        """The key of the document that has the attributes of an array."""
        return str(self.format.keys(path).attributes(array=True))

    def edit(self, key: str, change: Callable[[dict[str, Any]], object], *, copy: bool = True) -> str:
        """Change a document; with ``copy``, its consolidated copy follows."""
        document = json.loads(bytes(self.store.get(key) or b"{}"))
        change(document)
        self.put(key, json.dumps(document).encode())
        if copy:
            self.copy()
        return key

    def copy(self) -> None:
        """Bring the consolidated metadata up to date."""
        if self.zarr_format != "3-draft":
            xzarr3.consolidate_metadata(self.store)

    def set_attributes(self, path: str, **attributes: Any) -> str:
        """Set attributes of an array, whatever they are."""

        def change(document: dict[str, Any]) -> None:
            place = document if self.zarr_format == 2 else document.setdefault("attributes", {})
            place.update(attributes)

        return self.edit(self.attributes(path), change)

    def shards(self) -> str:
        """Add an array of one shard of 4 inner chunks without a compressor; returns the key of the shard."""
        array = xzarr3.create_array(
            self.store, "shards", data=np.arange(1, 17, dtype="int16").reshape(4, 4), chunks=(2, 2),
            shards=(4, 4), compressors=None,
        )  # fmt: skip
        self.copy()
        return str(array.chunk_key((0, 0)))

    def edit_index(self, change: Callable[[Any], object]) -> str:
        """Change the index of a shard, with the checksum that it then has."""
        key = self.shards()
        array = xzarr3.open_array(self.store, "shards")
        shard = array.metadata.chain.shard
        assert shard is not None
        value = bytes(self.store.get(key))
        index = np.array(shard.read_index(value))
        change(index.reshape(-1, 2))
        return self.put(key, value[: -shard.index_size] + bytes(shard.index_chain.encode(index)))
