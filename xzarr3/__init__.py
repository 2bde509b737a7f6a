"""xzarr3: a standalone reader and writer of the Zarr format.

Chunks become dask tasks (:func:`from_zarr`, :func:`store`) and stores open in xarray with
``engine="xzarr3"``. Importing this package imports neither dask nor xarray.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from xzarr3._after_xarray import add_accessor
from xzarr3.errors import (
    AlignmentError,
    ArgumentError,
    ArgumentTypeError,
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
    UnknownNameError,
    Xzarr3Error,
)
from xzarr3.options import config, set_options

if TYPE_CHECKING:
    from xzarr3.advice import advise
    from xzarr3.api import create_array, create_group, open, open_array, open_group
    from xzarr3.arrays import Array
    from xzarr3.batching import Batches, batches
    from xzarr3.checks import check
    from xzarr3.commit.recover import recover
    from xzarr3.convenience import (
        consolidate_metadata,
        load,
        open_consolidated,
        save,
        save_array,
        save_group,
        tree,
    )
    from xzarr3.copying.run import copy
    from xzarr3.creation import (
        array,
        empty,
        empty_like,
        from_array,
        full,
        full_like,
        group,
        ones,
        ones_like,
        zeros,
        zeros_like,
    )
    from xzarr3.dask import from_zarr, store
    from xzarr3.differences import diff
    from xzarr3.formats import ZarrFormat
    from xzarr3.groups import Group
    from xzarr3.io.chunk_cache import ChunkCache
    from xzarr3.joined.array import JoinedArray
    from xzarr3.joined.group import JoinedGroup
    from xzarr3.model.chunk_keys import ChunkKeyEncoding, register_chunk_key_encoding
    from xzarr3.model.storage_transformers import StorageTransformer, register_storage_transformer
    from xzarr3.readable import ChunkTask
    from xzarr3.statistics import stats
    from xzarr3.stores import (
        CacheStore,
        FsspecStore,
        LocalStore,
        MemoryStore,
        ObjectStore,
        ReadOnlyStore,
        Store,
        WrapperStore,
        ZipStore,
        open_store,
    )
    from xzarr3.tracing.report import trace
    from xzarr3.versions import show_versions
    from xzarr3.xarray import open_dataset, open_datatree, open_zarr, to_zarr
    from xzarr3.xarray.joining import concat, stack
    from xzarr3.xarray.mfdataset import open_mfdataset
    from xzarr3.xarray.rolling import drop

__version__ = "0.1.0"

__all__ = [
    "AlignmentError", "ArgumentError", "ArgumentTypeError", "Array", "Batches", "CacheStore", "ChangedError",
    "ChunkCache", "ChunkDecodeError", "ChunkEncodeError", "ChunkError", "ChunkKeyEncoding", "ChunkTask",
    "ConflictError", "DataTypeValidationError", "FallbackWarning", "FsspecStore", "Group",
    "IncompleteWriteError", "InvalidKeyError", "InvalidRangeError", "JoinedArray", "JoinedGroup",
    "LargeWriteWarning", "LocalStore", "MemoryStore", "MetadataError", "MissingChunksError",
    "MissingChunksWarning", "NodeExistsError", "NodeNotFoundError", "NodeTypeError", "ObjectStore",
    "OutcomeUnknownError", "ReadOnlyError", "ReadOnlyStore", "SelectionError", "StorageTransformer",
    "Store", "StoreCapabilityError", "StoreError", "StoreOptionError", "StorePermissionError",
    "UnknownExtensionError", "UnknownNameError", "WrapperStore", "Xzarr3Error", "ZarrFormat",
    "ZipStore", "advise", "array", "batches", "check", "concat", "config", "consolidate_metadata", "copy",
    "create_array", "create_group", "diff", "drop", "empty", "empty_like", "from_array", "from_zarr", "full",
    "full_like", "group", "load", "ones", "ones_like", "open", "open_array", "open_consolidated",
    "open_dataset", "open_datatree", "open_group", "open_mfdataset", "open_store", "open_zarr",
    "recover", "register_chunk_key_encoding", "register_storage_transformer", "save", "save_array",
    "save_group", "set_options", "show_versions", "stack", "stats", "store", "to_zarr", "trace", "tree",
    "zeros", "zeros_like",
]  # fmt: skip

# All but errors and options is imported on first use: arrays and stores, and what needs dask or xarray.
_FROM = {
    "xzarr3.commit.recover": ("recover",),
    "xzarr3.convenience": (
        *("consolidate_metadata", "load", "open_consolidated", "save", "save_array", "save_group", "tree"),
    ),
    "xzarr3.advice.advice": ("advise",),
    "xzarr3.api": ("create_array", "create_group", "open", "open_array", "open_group"),
    "xzarr3.arrays": ("Array",),
    "xzarr3.batching": ("Batches", "batches"),
    "xzarr3.checks": ("check",),
    "xzarr3.creation": (
        *("array", "empty", "empty_like", "from_array", "full", "full_like", "group"),
        *("ones", "ones_like", "zeros", "zeros_like"),
    ),
    "xzarr3.copying.run": ("copy",),
    "xzarr3.dask": ("from_zarr", "store"),
    "xzarr3.differences": ("diff",),
    "xzarr3.formats": ("ZarrFormat",),
    "xzarr3.groups": ("Group",),
    "xzarr3.model.chunk_keys": ("ChunkKeyEncoding", "register_chunk_key_encoding"),
    "xzarr3.model.storage_transformers": ("StorageTransformer", "register_storage_transformer"),
    "xzarr3.readable": ("ChunkTask",),
    "xzarr3.statistics": ("stats",),
    "xzarr3.stores": (
        *("CacheStore", "FsspecStore", "LocalStore", "MemoryStore", "ObjectStore", "ReadOnlyStore"),
        *("Store", "WrapperStore", "ZipStore", "open_store"),
    ),
    "xzarr3.io.chunk_cache": ("ChunkCache",),
    "xzarr3.joined.array": ("JoinedArray",),
    "xzarr3.joined.group": ("JoinedGroup",),
    "xzarr3.tracing.report": ("trace",),
    "xzarr3.versions": ("show_versions",),
    "xzarr3.xarray": ("open_dataset", "open_datatree", "open_zarr", "to_zarr"),
    "xzarr3.xarray.joining": ("concat", "stack"),
    "xzarr3.xarray.mfdataset": ("open_mfdataset",),
    "xzarr3.xarray.rolling": ("drop",),
}
_LAZY = {name: module for module, names in _FROM.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        found = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return found
    hint = ""
    if not name.startswith("_"):
        if PathFinder.find_spec(f"{__name__}.{name}", __path__) is not None:
            return import_module(f"{__name__}.{name}")  # as `xzarr3.codecs` after `import xzarr3`
        from xzarr3.errors import did_you_mean
        from xzarr3.names import absent_name

        near = did_you_mean(name, __all__)
        hint = absent_name("module", name) or (near and f"; {near}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)


add_accessor()
