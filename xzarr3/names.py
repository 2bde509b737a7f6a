"""Names that users know from elsewhere, and what has their meaning here.

Arguments of zarr-python 2 and of netCDF are answered with the argument to use. Names of zarr-python 3.4 that
are absent here are listed with the reason; the reference shows them as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MOST_NAMES = 10
_LONGEST_NAME = 100
_MOST_COMPARED = 1000

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("compressor", "compression"), "compressors=..., a codec of xzarr3.codecs or its name"),
    **dict.fromkeys(
        ("zlib", "gzip", "complevel", "compression_opts", "clevel", "compression_level"),
        "compressors={'name': 'gzip', 'configuration': {'level': 5}}",
    ),
    "blosc_shuffle": "compressors=xzarr3.codecs.BloscCodec(shuffle=...)",
    "shuffle": "compressors=xzarr3.codecs.BloscCodec(), which shuffles by itself",
    "fletcher32": "compressors=[..., 'crc32c'], which adds a checksum",
    **dict.fromkeys(("chunksize", "chunksizes", "chunk_shape", "chunk_size"), "chunks=..."),
    "contiguous": "chunks=-1, one chunk for all",
    **dict.fromkeys(("shard_shape", "shard_size", "shardsize", "shardsizes"), "shards=..."),
    **dict.fromkeys(("codec", "codecs"), "filters=..., serializer=... and compressors=..."),
    "object_codec": "dtype='string' for text, dtype='bytes' for bytes, or serializer=...",
    "endian": "serializer=xzarr3.codecs.BytesCodec('big') or ('little')",
    "least_significant_digit": "filters='bitround' with the bits to keep",
    "significant_digits": "filters='bitround' with the bits to keep",
    **dict.fromkeys(("fill", "missing_data"), "fill_value=..."),
    **dict.fromkeys(("dims", "dim_names", "dimensions"), "dimension_names=..."),
    **dict.fromkeys(("attrs", "metadata"), "attributes=..."),
    "dimension_separator": "chunk_key_encoding={'separator': '/'} or {'separator': '.'}",
    **dict.fromkeys(("zarr_version", "version", "format"), "zarr_format=..."),
    "config": "order=... and write_empty_chunks=...",
    "component": "path=...",
    "url": "the first argument",
    "decode": "mask_and_scale=... and decode_times=...",
}
"""Arguments and keys of encodings that do not exist here, and what to use."""

NEEDLESS: dict[str, str] = {
    **dict.fromkeys(("synchronizer", "lock"), "writers of one chunk take turns by themselves"),
    **dict.fromkeys(("cache_metadata", "cache_attrs"), "what is kept in memory is checked before it is used"),
    "chunk_store": "documents and chunks are in one store",
    "meta_array": "values are numpy arrays",
    "overwrite_encoded_chunks": "chunks=... takes any blocks",
    "prototype": "values are numpy arrays",
    "storage_class": "the store is the first argument",
    "write_data": "without data=... nothing is written",
}
"""Arguments of zarr-python and xarray that have no meaning here, with the reason."""

_LAYOUT = (
    "dtype", "chunks", "shards", "filters", "serializer", "compressors", "fill_value", "chunk_key_encoding",
)  # fmt: skip
_OF_NEW_ARRAYS = ("shape", "data", *_LAYOUT)
_LEVELS = frozenset(("complevel", "compression_opts", "clevel", "compression_level"))
_MODES = "overwrite=True for mode='w'; without it an existing node is an error, as with mode='w-'"


def listed(names: Iterable[object]) -> str:
    """Names enumerated for a message: ``'a', 'b', 'c'``."""
    return ", ".join(repr(name) for name in names)


def one_of(found: object, names: Iterable[object], label: str = "accepted") -> str:
    """The end of a message about an unknown name: the nearest known name, then at most ten of them.

    Examples
    --------
    >>> one_of("flaot32", ["int8", "float32"])
    "did you mean 'float32'? accepted: 'int8', 'float32'"
    """
    known = list(names)
    return " ".join(filter(None, (did_you_mean(found, known), f"{label}: {some(known, found)}")))


def some(names: Sequence[Any], found: object = None) -> str:
    """Names enumerated for a message: ten at most, those near to ``found`` first."""
    left = len(names) - _MOST_NAMES
    if left <= 0:
        return listed(names) or "none"
    near = dict.fromkeys((*nearest(found, names, _MOST_NAMES), *names))
    return f"{listed([*near][:_MOST_NAMES])} and {left} more"


def did_you_mean(found: object, names: Sequence[Any]) -> str:
    """The question that proposes the name nearest to ``found``, or an empty string."""
    near = [] if found in names else nearest(found, names)
    return f"did you mean {near[0]!r}?" if near else ""


def nearest(found: object, names: Sequence[Any], most: int = 1) -> list[str]:
    """The names that ``found`` was probably meant for, the nearest first."""
    if isinstance(found, Mapping):
        found = found.get("name")
    if not isinstance(found, str) or not 0 < len(found) <= _LONGEST_NAME or len(names) > _MOST_COMPARED:
        return []
    from difflib import get_close_matches  # Takes long to import.

    lower = {name.lower(): name for name in names if isinstance(name, str)}
    wanted = found.lower()
    ends = [name for name in lower if name.endswith(f".{wanted}")]  # 'zlib' stands for 'numcodecs.zlib'.
    near = dict.fromkeys((*ends, *get_close_matches(wanted, lower, most)))
    return [lower[name] for name in near][:most]


def hint(name: object, known: Iterable[object], given: Mapping[str, object] | None = None) -> str:
    """What to use instead of an unknown argument or key.

    Parameters
    ----------
    name : str
    known : iterable of str
        The names that are accepted.
    given : mapping, optional
        All that is given, by name: names with one meaning get one hint, which has the level that is given.

    Examples
    --------
    >>> hint("chunksizes", ["chunks", "shards"])
    "for 'chunksizes' use chunks=..."
    >>> hint("shrads", ["chunks", "shards"])
    "did you mean 'shards'? accepted: 'chunks', 'shards'"
    """
    if isinstance(name, str) and name in INSTEAD:
        return _instead(name, given or {name: None})
    if isinstance(name, str) and name in NEEDLESS:
        return f"leave {name!r} out, because {NEEDLESS[name]}"
    return one_of(name, known)


def _instead(name: str, given: Mapping[str, object]) -> str:
    text = INSTEAD[name]
    levels = [value for each, value in given.items() if each in _LEVELS and type(value) is int]
    if levels:
        text = text.replace("'level': 5", f"'level': {levels[0]}")
    return f"for {listed(each for each in given if INSTEAD.get(each) == INSTEAD[name])} use {text}"


def hints(given: Mapping[str, object]) -> str:
    """What to use instead of those names that are known from elsewhere, for the middle of a message.

    Examples
    --------
    >>> hints({"zlib": True, "complevel": 9, "units": "K"})
    "; for 'zlib', 'complevel' use compressors={'name': 'gzip', 'configuration': {'level': 9}}"
    """
    found = [hint(name, (), given) for name in given if name in INSTEAD or name in NEEDLESS]
    return "".join(f"; {text}" for text in dict.fromkeys(found))


def argument_hint(name: str, known: Sequence[str], given: Mapping[str, object] | None = None) -> str:
    """What to use instead of an argument that a function does not have.

    Parameters
    ----------
    name : str
    known : sequence of str
        The arguments that the function has.
    given : mapping, optional
        The unknown arguments, with their values.

    Examples
    --------
    >>> argument_hint("chunksize", ["store", "mode", "encoding"])
    "for 'chunksize' use encoding={'name': {'chunks': ...}}"
    """
    if name == "mode" and "overwrite" in known:
        return f"use {_MODES}"
    options = [each for each in known if each.endswith("_options")]
    if name == "storage_options" and options:
        return f"for {name!r} use {' and '.join(f'{each}=...' for each in options)}"
    if name in NEEDLESS:
        return hint(name, known, given)
    near = nearest(name, (*known, *_OF_NEW_ARRAYS))
    meant = INSTEAD[name].partition("=")[0] if name in INSTEAD else "".join(near)
    if meant not in known and "encoding" in known and meant in _LAYOUT:
        return f"for {name!r} use encoding={{'name': {{{meant!r}: ...}}}}"
    if meant not in known and "encoding" not in known and "mode" in known and meant in _OF_NEW_ARRAYS:
        return "create_array() creates an array with these settings"
    return hint(name, known, given)


ABSENT: dict[str, dict[str, str]] = {
    "module": {
        "AsyncArray": "`Array`; calls wait for their result and use threads, so no event loop is needed",
        "AsyncGroup": "`Group`, for the same reason",
        "copy_all": "`copy`; zarr-python 3.4 does not implement it",
        "copy_store": "`copy`; zarr-python 3.4 does not implement it",
        "create": "`create_array`, `zeros`, `full` and others: `create` has arguments of both formats",
        "create_hierarchy": "`create_group` and `create_array`, whose arguments are checked together",
        "open_like": "`empty_like(a, store=..., path=...)`, which says that it creates",
        "print_debug_info": "`show_versions`, as in xarray",
    },
    "Array": {
        "async_array": "the array itself; calls wait for their result and use threads",
        "compressor": "`compressors`; in version 2 it has one element at most",
        "config": "`write_empty_chunks` and `missing`, attributes that can be set",
        "from_dict": "`open_array`; a document belongs to a store",
        "open": "`open_array`",
        "with_config": "`write_empty_chunks` and `missing`, attributes that can be set",
    },
    "Group": {
        "create": "`create_array`",
        "create_hierarchy": "`create_group` and `create_array`",
        "from_store": "`xzarr3.create_group` and `xzarr3.open_group`",
        "info_complete": "`info`, which counts the members",
        "open": "`xzarr3.open_group`",
        "synchronizer": "nothing: writers of one chunk take turns by themselves",
        "update_attributes_async": "`update_attributes`",
    },
}
"""Names of zarr-python 3.4 that do not exist here, and what to use, in Markdown."""

EARLIER: dict[str, str] = {
    **dict.fromkeys(("DirectoryStore", "NestedDirectoryStore", "N5Store", "TempStore"), "`LocalStore`"),
    **dict.fromkeys(("KVStore", "DictStore"), "`MemoryStore`"),
    **dict.fromkeys(("FSStore", "N5FSStore", "RemoteStore"), "`ObjectStore`, or `FsspecStore`"),
    **dict.fromkeys(
        ("ABSStore", "S3Store", "GCSStore"), "`ObjectStore`, or a URL such as `s3://bucket/path`"
    ),
    "LRUStoreCache": "`CacheStore`",
    "ConsolidatedMetadataStore": "`open_consolidated`",
    **dict.fromkeys(
        ("ThreadSynchronizer", "ProcessSynchronizer"), "nothing: writers take turns by themselves"
    ),
    **dict.fromkeys(("Blosc", "GZip", "Zlib", "Zstd", "LZ4", "Delta"), "the classes of `xzarr3.codecs`"),
    "open_mfdataset": "`xarray.open_mfdataset(paths, engine='xzarr3')`",
    "open_dataarray": "`open_dataset`, and the variable of it",
    "storage": "the stores of `xzarr3`, such as `LocalStore`",
    "dtype": "`xzarr3.dtypes`",
}
"""Names of modules that users know from before, or from xarray, and what to use, in Markdown."""


def absent_name(owner: str, name: str) -> str:
    """The end of a message about a name that does not exist: what to use, or nothing.

    Examples
    --------
    >>> absent_name("Array", "compressor")
    '; use compressors; in version 2 it has one element at most'
    """
    known = {**EARLIER, **ABSENT[owner]} if owner == "module" else ABSENT[owner]
    return f"; use {known[name].replace('`', '')}" if name in known else ""


class Absent:
    """An attribute of zarr-python that does not exist here: reading it is an AttributeError that says more.

    Parameters
    ----------
    owner : str
        Name of the class.
    name : str
        Name of the attribute.
    """

    def __init__(self, owner: str, name: str) -> None:
        self._text = f"{owner!r} has no attribute {name!r}{absent_name(owner, name)}"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        raise AttributeError(self._text)


def explain_absent(cls: type) -> None:
    """Make attributes of zarr-python that a class does not have say what to use."""
    for name in ABSENT[cls.__name__]:
        setattr(cls, name, Absent(cls.__name__, name))
