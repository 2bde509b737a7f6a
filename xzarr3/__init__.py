"""xzarr3: a standalone reader and writer of the Zarr format.

Chunks become dask tasks (:func:`from_zarr`, :func:`store`) and stores open in xarray with
``engine="xzarr3"``. Importing this package imports neither dask nor xarray.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from xzarr3.api import (
    consolidate_metadata,
    create_array,
    create_group,
    open,
    open_array,
    open_group,
)
from xzarr3.array import Array, ChunkTask
from xzarr3.copying import copy
from xzarr3.errors import (
    AlignmentError,
    ChangedError,
    ChunkDecodeError,
    ChunkEncodeError,
    ChunkError,
    ConflictError,
    DataTypeValidationError,
    FallbackWarning,
    IncompleteWriteError,
    InvalidKeyError,
    InvalidRangeError,
    LargeWriteWarning,
    MetadataError,
    MissingChunksError,
    MissingChunksWarning,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    OutcomeUnknownError,
    ReadOnlyError,
    SelectionError,
    StoreCapabilityError,
    StoreError,
    StoreOptionError,
    StorePermissionError,
    UnknownExtensionError,
    Xzarr3Error,
)
from xzarr3.formats import ZarrFormat
from xzarr3.group import Group
from xzarr3.io.compiled import warm_up
from xzarr3.model.storage_transformers import StorageTransformer, register_storage_transformer
from xzarr3.options import set_options
from xzarr3.stores import LocalStore, MemoryStore, Store, open_store

if TYPE_CHECKING:
    from xzarr3.advice import advise
    from xzarr3.commit.replace import recover
    from xzarr3.dask import from_zarr, store
    from xzarr3.stores import (
        CacheStore,
        FsspecStore,
        LoggingStore,
        ObjectStore,
        ReadOnlyStore,
        WrapperStore,
        ZipStore,
    )
    from xzarr3.tracing.trace import trace
    from xzarr3.versions import show_versions
    from xzarr3.xarray import open_dataset, to_zarr

__version__ = "0.1.0"

__all__ = [
    "AlignmentError",
    "Array",
    "CacheStore",
    "ChangedError",
    "ChunkDecodeError",
    "ChunkEncodeError",
    "ChunkError",
    "ChunkTask",
    "ConflictError",
    "DataTypeValidationError",
    "FallbackWarning",
    "FsspecStore",
    "Group",
    "IncompleteWriteError",
    "InvalidKeyError",
    "InvalidRangeError",
    "LargeWriteWarning",
    "LocalStore",
    "LoggingStore",
    "MemoryStore",
    "MetadataError",
    "MissingChunksError",
    "MissingChunksWarning",
    "NodeExistsError",
    "NodeNotFoundError",
    "NodeTypeError",
    "ObjectStore",
    "OutcomeUnknownError",
    "ReadOnlyError",
    "ReadOnlyStore",
    "SelectionError",
    "StorageTransformer",
    "Store",
    "StoreCapabilityError",
    "StoreError",
    "StoreOptionError",
    "StorePermissionError",
    "UnknownExtensionError",
    "WrapperStore",
    "Xzarr3Error",
    "ZarrFormat",
    "ZipStore",
    "advise",
    "consolidate_metadata",
    "copy",
    "create_array",
    "create_group",
    "from_zarr",
    "open",
    "open_array",
    "open_dataset",
    "open_group",
    "open_store",
    "recover",
    "register_storage_transformer",
    "set_options",
    "show_versions",
    "store",
    "to_zarr",
    "trace",
    "warm_up",
]

# These names need dask, xarray or other packages, which are imported on first use.
_LAZY = {
    **dict.fromkeys(
        (
            *("CacheStore", "FsspecStore", "LoggingStore", "ObjectStore", "ReadOnlyStore", "WrapperStore"),
            "ZipStore",
        ),
        "xzarr3.stores",
    ),
    "from_zarr": "xzarr3.dask",
    "advise": "xzarr3.advice.advice",
    "recover": "xzarr3.commit.replace",
    "open_dataset": "xzarr3.xarray",
    "store": "xzarr3.dask",
    "to_zarr": "xzarr3.xarray",
    "trace": "xzarr3.tracing.trace",
    "show_versions": "xzarr3.versions",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "XZARR3_TRACE" in os.environ:  # A process with a trace has started this one: add to its counts.
    import_module("xzarr3.tracing.counters").inherit()
