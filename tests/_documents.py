"""Documents of each format, as its text or the tools of its time have them, and the error of one refused."""

import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from _strategies import attempt

from xzarr3 import MetadataError, Store


def changed(document: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy of a document with other fields; ``...`` leaves a field out."""
    return {field: value for field, value in {**document, **changes}.items() if value is not ...}


def text(document: Any) -> str:
    """A document as text that compares equal where the document does, NaN and all."""
    return json.dumps(document, sort_keys=True)


def document(store: Store, key: str = "zarr.json") -> Any:
    """The document under a key."""
    value = store.get(key)
    assert value is not None, key
    return json.loads(bytes(value))


def edit(store: Store, key: str, **changes: Any) -> None:
    """Give fields of a document that is stored other values."""
    store.set(key, json.dumps({**document(store, key), **changes}).encode())


def refused(
    call: Callable[..., Any], *args: Any, field: str | None = None, kind: type[MetadataError] = MetadataError,
    path: str = "a/b",
) -> MetadataError:  # fmt: skip
    """The error of a call, after a check that it names path, field and what would be accepted."""
    found, error = attempt(lambda: call(*args), MetadataError)
    assert error is not None, f"not refused: {found!r}"
    assert isinstance(error, kind)
    assert error.path == path
    assert error.field if field is None else error.field == field
    for part in (f"'/{path}'", f"field '{error.field}'", f"accepted: {error.accepted}"):
        assert part in str(error)
    assert error.accepted
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), type(again)) == (str(error), type(error))
    return error


# Version 2


def zarray(**changes: Any) -> dict[str, Any]:
    """The ``.zarray`` of a 4 by 6 array of int16 in 2 by 3 chunks."""
    document = {
        "zarr_format": 2, "shape": [4, 6], "chunks": [2, 3], "dtype": "<i2", "compressor": None,
        "fill_value": 0, "order": "C", "filters": None,
    }  # fmt: skip
    return changed(document, **changes)


def zmetadata(metadata: Any, version: Any = 1) -> dict[str, Any]:
    """The documents of a group with consolidated metadata."""
    whole = changed({}, zarr_consolidated_format=version, metadata=metadata)
    return {".zgroup": {"zarr_format": 2}, ".zattrs": {}, ".zmetadata": whole}


# The draft of May 2022

URI = "https://purl.org/zarr/spec/core/3.0"
EARLY_URI = "https://purl.org/zarr/spec/protocol/core/3.0"
CODEC = "https://purl.org/zarr/spec/codecs/{}/1.0"
TIMES = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"
SHARDING = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"

ENTRY_POINT = {
    "zarr_format": URI, "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"},
    "extensions": [],
}  # fmt: skip
EARLY_ENTRY_POINT = {
    "zarr_format": EARLY_URI, "metadata_encoding": EARLY_URI, "metadata_key_suffix": ".json",
    "extensions": [],
}  # fmt: skip
OPTIONAL = {
    "extension": "http://example.org/zarr/extension/foo", "must_understand": False,
    "configuration": {"foo": "bar"},
}  # fmt: skip
SHARDS = {"extension": SHARDING, "type": "indexed", "configuration": {"chunks_per_shard": [2, 3]}}


def draft_codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"type": CODEC.format(name), "configuration": configuration}


def draft_grid(chunk_shape: Any, **changes: Any) -> dict[str, Any]:
    return changed({"type": "regular", "chunk_shape": chunk_shape, "separator": "/"}, **changes)


def draft_array(**changes: Any) -> dict[str, Any]:
    """The document of a 4 by 6 array of int16 in 2 by 3 chunks."""
    document: dict[str, Any] = {
        "shape": [4, 6], "data_type": "int16", "chunk_grid": draft_grid([2, 3]), "chunk_memory_layout": "C",
        "codecs": [], "fill_value": 0, "extensions": [], "attributes": {},
    }  # fmt: skip
    return changed(document, **changes)
