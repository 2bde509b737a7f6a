"""Opens and creates arrays and groups: the functions that users call first.

Each function opens the store, checks the path and the mode, finds the node and binds it to an ``Array`` or
``Group``. This module knows nothing of documents, chunks and codecs: :mod:`xzarr3.nodes` finds and creates
nodes, :mod:`xzarr3.new_array` creates arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy.typing as npt

from xzarr3.arrays import Array
from xzarr3.dtypes import ZDType
from xzarr3.errors import (
    ArgumentError,
    IncompleteWriteError,
    MetadataError,
    NodeNotFoundError,
    NodeTypeError,
    StorePermissionError,
    Xzarr3Error,
    one_of,
    short_traceback,
    some,
)
from xzarr3.formats import FORMATS, Format, ZarrFormat, parse_format
from xzarr3.groups import Group, bind, make_group
from xzarr3.joined.document import is_document
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.model.storage_transformers import StorageTransformer
from xzarr3.new_array import make_array
from xzarr3.nodes.find import DocumentView, find_consolidated, find_node, format_for_new
from xzarr3.nodes.node import check_new_path, locate_node, path_or_name
from xzarr3.options import Missing, check_missing
from xzarr3.quantities import check_switches
from xzarr3.stores import Store, StoreLike

if TYPE_CHECKING:
    from xzarr3.io.chunk_cache import ChunkCache, ChunkCacheLike

Mode = Literal["r", "r+", "a", "w", "w-"]


def _check_mode(mode: str, accepted: tuple[str, ...]) -> None:
    if mode not in accepted:
        creates = "; create_array() and create_group() create" if mode in ("w", "w-", "x") else ""
        raise ArgumentError(f"mode={mode!r}; {one_of(mode, accepted)}{creates}")


def _load(store: Store, path: str, zarr_format: ZarrFormat | None, **options: Any) -> Array | Group | None:
    """The node at a path; None if there is none, even after an unfinished swap there was completed.

    For a node that may be written, the swap of a killed writer is completed first: otherwise completing it
    later would replace what this caller writes.
    """
    if options["read_only"]:
        from xzarr3.commit.under_way import read_whole

        read = partial(_there, store, path, zarr_format, **options)
        node = read_whole(store, path, read, lambda node: getattr(node, "_documents", None))
        if node is not None:
            return node
    from xzarr3.commit.recover import settle

    settled = settle(store, path)
    if settled or not options["read_only"]:
        node = _there(store, path, zarr_format, **options)
    if node is None and not options["read_only"] and settle(store, path):
        node = _there(store, path, zarr_format, **options)
    return node


def _there(
    store: Store,
    path: str,
    zarr_format: ZarrFormat | None,
    *,
    read_only: bool,
    use_consolidated: bool | None,
    missing: Missing | None,
    by_name: bool = False,
) -> Array | Group | None:
    """The node at a path, or None if there is none.

    To read only, a group comes from the consolidated metadata of the root, if these hold it, or from its own.
    The nodes below come with it. With ``by_name`` only the node itself is read, not what is below it.
    """
    missing = check_missing(missing)
    check_switches({"use_consolidated"}, use_consolidated=use_consolidated)
    if zarr_format is not None:
        parse_format(zarr_format)
    alone = together = False
    if not (by_name or use_consolidated is False) and read_only:
        alone = True
        if path:
            group, together = _in_consolidated(store, path, zarr_format, missing)
            if group is not None:
                return group
    options: dict[str, Any] = {"alone": alone and not together, "together": together}
    consolidated = use_consolidated is not False
    found = find_node(store, path, zarr_format, use_consolidated=consolidated, **options)
    if found is None:
        return None
    format, meta = found
    if use_consolidated and not isinstance(meta, ArrayMetadata) and meta.consolidated is None:
        raise MetadataError(
            "the group holds no consolidated metadata",
            path=path,
            field="consolidated_metadata",
            advice="call consolidate_metadata() first, or open_group() without use_consolidated=True",
        )
    return bind(store, format, path, meta, read_only=read_only, consolidated=consolidated, missing=missing)


def _in_consolidated(
    store: Store, path: str, zarr_format: ZarrFormat | None, missing: Missing
) -> tuple[Group | None, bool]:
    """The group at a path, if the consolidated metadata of the root hold it.

    Also whether the documents of the node are to be read together: the root is of a format that has several.
    """
    together = False
    try:
        format, root = find_consolidated(store, zarr_format)
        together = not format.keys("").one_document and zarr_format is None
    except (MetadataError, StorePermissionError):  # an unreadable root does not hide the node
        root = None
    if root is None:
        return None, together
    bound = bind(store, format, "", root, read_only=True, missing=missing)
    node = bound.get(path) if isinstance(bound, Group) else None
    return node if isinstance(node, Group) else None, together


def place_for_new(
    store: Store, path: str, zarr_format: ZarrFormat | None
) -> tuple[Format, str, DocumentView]:
    """The format and the checked path of a new node, and the documents around it."""
    look = DocumentView.around(store, path, listed=True)
    format = format_for_new(look, path, zarr_format)
    return format, check_new_path(path, format), look


def _found(
    store: Store, path: str, what: str, zarr_format: ZarrFormat | None, **options: Any
) -> Array | Group:
    """The node at a path; raises if it is absent."""
    node = _load(store, path, zarr_format, **options)
    if node is None:
        error = _not_found(store, path, what, zarr_format)
        node = _load(store, path, zarr_format, **options)  # it may have appeared before its lease was read
        if node is None:
            raise error
    return node


def _not_found(store: Store, path: str, what: str, zarr_format: ZarrFormat | None) -> NodeNotFoundError:
    from xzarr3.commit.lease import check_complete
    from xzarr3.nodes.absent import what_is_there

    hint = check_complete(store, path, f"{what} at '/{path}'")
    place = f"no {what} at '/{path}' in {store}"
    if zarr_format is not None and not hint and find_node(store, path) is not None:
        return NodeNotFoundError(
            f"{place}: there is one of another format than {zarr_format}; leave zarr_format out"
        )
    seen = what_is_there(store, path)
    if not seen:
        formats = FORMATS.values() if zarr_format is None else (parse_format(zarr_format),)
        keys = [repr(key) for format in formats for key in format.keys(path).defining]
        seen = f"found no {' or '.join(keys)}"
    return NodeNotFoundError(f"{place}: {seen}{hint}")


def _no_array(group: Group) -> NodeTypeError:
    """The error for a group where an array is wanted."""
    there = ""
    with suppress(Xzarr3Error):  # Not all stores can list.
        there = f"; the group has: {some(list(group))}"
    return NodeTypeError(
        f"'{group.name}' of {group.store} is a group, not an array; open it with xzarr3.open_group(), or "
        f"pass the path of an array in it{there}"
    )


def _no_group(array: Array) -> NodeTypeError:
    """The error for an array where a group is wanted."""
    from xzarr3.nodes.absent import group_above

    text = f"'{array.name}' of {array.store} is an array, not a group; open it with xzarr3.open_array()"
    above = group_above(array.store, array.path)
    if above is not None:
        text += f", or take {above[1]!r} of the group {above[0]}, as with xarray"
    return NodeTypeError(text)


def find_group(
    store: Store, path: str, *, zarr_format: ZarrFormat | None = None, use_consolidated: bool | None = None
) -> Group | None:
    """The group at a path, to be changed; None if there is none.

    Unlike :func:`open_group`, this looks for nothing else there. So a first write costs no further requests.

    Raises
    ------
    NodeTypeError
        If there is an array at ``path``.
    """
    options: dict[str, Any] = {
        "read_only": False, "use_consolidated": use_consolidated, "missing": "fill",
    }  # fmt: skip
    node = _load(store, path, zarr_format, **options)
    if node is None:
        from xzarr3.commit.lease import check_complete

        try:
            check_complete(store, path, f"group at '/{path}'")
        except IncompleteWriteError:
            return None
        node = _load(store, path, zarr_format, **options)  # it may have appeared before its lease was read
    if isinstance(node, Array):
        raise _no_group(node)
    return node


def _opened(
    store: StoreLike,
    path: str,
    what: str,
    mode: Literal["r", "r+", "a"],
    zarr_format: ZarrFormat | None,
    storage_options: Mapping[str, Any] | None,
    chunk_cache: ChunkCacheLike = None,
    **options: Any,
) -> Array | Group:
    _check_mode(mode, ("r", "r+", "a"))
    cache = cache_of(chunk_cache)
    opened, normal = locate_node(store, path, storage_options, mode=mode)
    node = _found(opened, normal, what, zarr_format, read_only=mode == "r", **options)
    return cast("Array | Group", with_cache(node, cache))


def cache_of(given: ChunkCacheLike) -> ChunkCache | None:
    """The cache that is given, or one of the size that is given.

    Raises
    ------
    ArgumentError
        If it is no size.
    """
    if given is None:
        return None
    from xzarr3.io.chunk_cache import ChunkCache

    return given if isinstance(given, ChunkCache) else ChunkCache(given)


def with_cache(node: Any, cache: ChunkCache | None) -> Any:
    """The node, whose arrays keep decoded chunks in a cache, if there is one.

    Raises
    ------
    StoreCapabilityError
        If the store does not tell whether a value has changed.
    """
    if cache is None:
        return node
    if isinstance(node, (Array, Group)):
        from xzarr3.io.chunk_cache import check_tells

        check_tells(node.store, node.format.keys(node.path).documents)
        node.chunk_cache = cache
    else:  # joined
        parts = node.values() if isinstance(node, Mapping) else (source.array for source in node.sources)
        for part in parts:
            with_cache(part, cache)
    return node


@short_traceback
def open(
    store: StoreLike,
    path: str = "",
    *,
    mode: Literal["r", "r+", "a"] = "r",
    zarr_format: ZarrFormat | None = None,
    use_consolidated: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
    chunk_cache: ChunkCacheLike = None,
) -> Array | Group:
    """Open an array or a group.

    Parameters
    ----------
    store : path, URL or Store
        Where the hierarchy is; see :func:`xzarr3.open_store` for what is accepted. A path or URL that ends
        with ``.json`` is that of a document of :meth:`xzarr3.JoinedGroup.to_json`; it gives a
        :class:`JoinedArray` or a :class:`JoinedGroup`.
    path : str
        Path of the node in it; the root by default.
    mode : {"r", "r+", "a"}
        ``r`` opens read only; ``r+`` and ``a`` open to read and write.
    zarr_format : {3, 2, "3-draft"}, optional
        Accept only this format. By default any format is accepted; version 3 is tried before version 2.
    use_consolidated : bool, optional
        Whether groups find their nodes in consolidated metadata, of the root or their own. By default they do
        where there are any; True raises where there are none. A group opened for writing always reads the
        store.
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.
    missing : {"fill", "warn", "error"}, optional
        By default the option of this name of :class:`xzarr3.set_options`, which is ``"fill"``.
        What a read does about stored units (shards, or unsharded chunks) that are absent from the store.
        ``"fill"`` reads the fill value, which is what an absent chunk stands for. ``"warn"`` does so with a
        :class:`MissingChunksWarning`. ``"error"`` raises :class:`MissingChunksError`. An inner chunk that the
        index of its shard marks as empty is not missing. Writers leave out chunks that hold only the fill
        value. So use ``"error"`` for arrays written with ``write_empty_chunks=True``, or for data without
        such chunks.
    chunk_cache : str, int or ChunkCache, optional
        Keep decoded chunks for later reads, up to this many bytes, such as ``"2 GiB"``; the arrays of a group
        share them. By default none are kept. See :class:`ChunkCache`.

    Raises
    ------
    NodeNotFoundError
        If there is no store or no node.
    StoreCapabilityError
        If decoded chunks are to be kept, and the store does not tell whether a value has changed.
    MetadataError
        If the document of the node is not valid.
    StoreError
        If the store cannot be read.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "ocean/sst", shape=4, dtype="int16")
    >>> xzarr3.open(store, "ocean"), xzarr3.open(store, "ocean/sst").shape
    (<xzarr3.Group /ocean of <MemoryStore, 3 keys>>, (4,))
    >>> xzarr3.open(store, "ocean/sst", missing="error")[:2]  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    MissingChunksError: array '/ocean/sst' of <MemoryStore, 3 keys>: 1 of the 1 chunk to be read is absent
    """
    if is_document(store):
        above = import_module("xzarr3.xarray.joining")  # What is joined, xarray decodes.
        joined = above.below(above.open_joined(store, storage_options, missing), path)
        return with_cache(joined, cache_of(chunk_cache))  # type: ignore[no-any-return]
    options: dict[str, Any] = {
        "use_consolidated": use_consolidated, "missing": missing, "chunk_cache": chunk_cache,
    }  # fmt: skip
    return _opened(store, path, "array or group", mode, zarr_format, storage_options, **options)


@short_traceback
def open_array(
    store: StoreLike,
    path: str = "",
    *,
    mode: Literal["r", "r+", "a"] = "r",
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
    chunk_cache: ChunkCacheLike = None,
) -> Array:
    """Open an array; see :func:`open`.

    Raises
    ------
    NodeTypeError
        If there is a group at ``path``.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "ocean/t", data=[280, 281])
    >>> xzarr3.open_array(store, "ocean/t")[1:].tolist()
    [281]
    """
    options: dict[str, Any] = {
        "use_consolidated": None, "missing": missing, "by_name": True, "chunk_cache": chunk_cache,
    }  # fmt: skip
    node = _opened(store, path, "array", mode, zarr_format, storage_options, **options)
    if not isinstance(node, Array):
        raise _no_array(node)
    return node


@short_traceback
def open_group(
    store: StoreLike,
    path: str = "",
    *,
    mode: Mode = "r",
    attributes: Mapping[str, Any] | None = None,
    zarr_format: ZarrFormat | None = None,
    use_consolidated: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
    chunk_cache: ChunkCacheLike = None,
) -> Group:
    """Open a group, or create one; see :func:`open`.

    Parameters
    ----------
    mode : {"r", "r+", "a", "w", "w-"}
        ``r`` and ``r+`` open an existing group. ``a`` creates it if it is absent. ``w`` replaces it. ``w-``
        creates it and fails if a node is there.
    attributes : mapping, optional
        Attributes of a new group.

    Raises
    ------
    NodeTypeError
        If there is an array at ``path``.
    NodeExistsError
        If there is a node already and ``mode`` is ``w-``.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "ocean/t", data=[280, 281])
    >>> list(xzarr3.open_group(store, "ocean"))
    ['t']
    """
    _check_mode(mode, ("r", "r+", "a", "w", "w-"))
    missing, cache = check_missing(missing), cache_of(chunk_cache)
    kind: Literal["r", "r+", "a"] = "a" if mode == "w" or mode == "w-" else mode
    opened, normal = locate_node(store, path, storage_options, mode=kind)
    options: dict[str, Any] = {
        "read_only": mode == "r", "use_consolidated": use_consolidated, "missing": missing,
    }  # fmt: skip
    node: Array | Group | None = None
    if mode == "a":
        node = _load(opened, normal, zarr_format, **options)
    elif mode in ("r", "r+"):
        node = _found(opened, normal, "group", zarr_format, **options)
    if node is None:
        format, _, look = place_for_new(opened, normal, zarr_format)
        node = make_group(opened, format, normal, attributes=attributes, overwrite=mode == "w", look=look)
        node.missing = missing
    if isinstance(node, Array):
        raise _no_group(node)
    with_cache(node, cache)
    return node


@short_traceback
def create_group(
    store: StoreLike,
    path: str = "",
    *,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Create a group, and the groups above it that are missing.

    Parameters
    ----------
    store : path, URL or Store
    path : str
        Path of the group in its hierarchy; the root by default.
    attributes : mapping, optional
    overwrite : bool
        Replace the existing node and all nodes below it; see :func:`create_array` for what stays.
    zarr_format, storage_options
        As for :func:`create_array`.

    Raises
    ------
    NodeExistsError
        If there is a node already and ``overwrite`` is not set.
    InvalidKeyError
        If a name in ``path`` is not permitted.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.create_group(xzarr3.MemoryStore(), "ocean", attributes={"title": "SST"}).attrs
    {'title': 'SST'}
    """
    opened, normal = locate_node(store, path, storage_options, mode="a")
    format, normal, look = place_for_new(opened, normal, zarr_format)
    return make_group(opened, format, normal, attributes=attributes, overwrite=overwrite, look=look)


@short_traceback
def create_array(
    store: StoreLike,
    path: str = "",
    *,
    name: str | None = None,
    shape: int | Sequence[int] | None = None,
    dtype: ZDType | npt.DTypeLike | None = None,
    data: Any = None,
    chunks: int | Sequence[int | Sequence[int]] | str | bool | None = "auto",
    shards: int | Sequence[int | Sequence[int]] | str | bool | None = None,
    filters: Any = "auto",
    serializer: Any = "auto",
    compressors: Any = "auto",
    fill_value: object = None,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    chunk_key_encoding: ChunkKeyEncoding | Mapping[str, Any] | str | None = None,
    storage_transformers: Sequence[StorageTransformer | Mapping[str, Any] | str] = (),
    order: Literal["C", "F"] = "C",
    write_empty_chunks: bool = False,
    overwrite: bool = False,
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Array:
    """Create an array, and the groups above it that are missing.

    Parameters
    ----------
    store : path, URL or Store
    path : str
        Path of the array in its hierarchy; the root by default.
    name : str, optional
        Another name for ``path``, which zarr-python uses; give one of them.
    shape : tuple of int
        Length of each dimension; that of ``data`` by default.
    dtype : dtype, str or ZDType
        Data type; that of ``data`` by default.
    data : array_like, dask array or xarray.DataArray, optional
        Values to write into the new array. A dask array is written block by block and is never whole in
        memory. A node that they replace stays in place until all of them are written; if that fails, the old
        node is still there, or none is and the error says so. If none of ``chunks``, ``shards`` and ``shape``
        is given, the longest block of a dask array along each dimension is the chunk length. A data array
        gives its dimension names to ``dimension_names`` and its attributes to ``attributes``, unless those
        are given. Its values are stored as they are. Its coordinates and its encoding are not stored:
        :func:`xzarr3.to_zarr` does that.
    chunks : tuple of int, or of sequences of int
        Shape of a chunk in elements; -1 stands for the whole dimension, and -1 alone or False for the whole
        array. ``"auto"``, None or True choose a shape of at most 4 MiB, or of at most 1 MiB in shards. Text
        such as ``"2 MB"`` sets another limit. A sequence of lengths for a dimension, as in
        ``chunks=((3, 2), 10)``, gives each chunk along it its own length, also if they are equal: the grid is
        then rectilinear. Formats 2 and "3-draft" have regular grids only. There, such lengths must be equal,
        and only the last may be shorter.
    shards : tuple of int, or of sequences of int, optional
        Shape of a shard in elements, a multiple of ``chunks``: each stored unit is then a shard of many inner
        chunks. Sequences of lengths are as those in ``chunks``, which then must be integers. ``"auto"`` or
        True choose a shape of at most 64 MiB, text such as ``"100 MB"`` sets another limit. If ``chunks`` are
        left open, they divide the shards evenly: into about 16 chunks, or more so that a chunk takes at most
        1 MiB.
    filters : codecs, optional
        Array-to-array codecs; none by default.
    serializer : codec
        Array-to-bytes codec. By default ``bytes``: little endian, or in version 2 in the byte order of
        ``dtype``. Strings and bytes of any length take ``vlen-utf8`` and ``vlen-bytes``.
    compressors : codecs, optional
        Bytes-to-bytes codecs; by default ``zstd``, and ``gzip`` in the draft. None for none.
    fill_value : scalar
        Value of elements that were never written. By default zero, or the closest value that the data type
        has.
    dimension_names : sequence of str or None, optional
        By default the dimensions of ``data``, if it is an xarray object.
    attributes : mapping, optional
        By default those of ``data``, if it is an xarray object. Attributes given here must not hold NaN or
        infinity.
    chunk_key_encoding : {"default", "v2"} or mapping, optional
        How chunk keys are spelled.
    storage_transformers : sequence, optional
        Storage transformers between the array and the store; the first one is next to the array.
    order : {"C", "F"}
        The order in which the elements of a chunk are stored.
    write_empty_chunks : bool
        Also store chunks that hold only the fill value. Those of scalars and of index coordinates, which have
        one dimension of their own name, are always stored.
    overwrite : bool
        Replace the existing node and all nodes below it, once the new one is stored: after an error the old
        one is there. Other files within an array, and within nodes below a group, go with them. What lies in
        the group itself and is no node, such as ``.DS_Store`` or a README, stays; where a new node needs its
        name, nothing is replaced.
    zarr_format : {3, 2, "3-draft"}, optional
        By default the format of the groups above, or 3 if there are none.
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.

    Returns
    -------
    Array

    Raises
    ------
    MetadataError
        If the parameters do not fit together; nothing is written then.
    NodeExistsError
        If there is a node already and ``overwrite`` is not set.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> array = xzarr3.create_array(
    ...     store, "t2m", shape=(365, 90, 180), dtype="float32", chunks=(73, 45, 45), shards=(365, 90, 90),
    ...     fill_value=float("nan"), dimension_names=("time", "lat", "lon"),
    ... )
    >>> array.chunks, array.shards, array.cdata_shape
    ((73, 45, 45), (365, 90, 90), (5, 2, 4))
    """
    opened, normal = locate_node(store, path_or_name(path, name), storage_options, mode="a")
    format, normal, look = place_for_new(opened, normal, zarr_format)
    return make_array(
        opened, format, normal, look=look, shape=shape, dtype=dtype, data=data, chunks=chunks, shards=shards,
        filters=filters, serializer=serializer, compressors=compressors, fill_value=fill_value,
        dimension_names=dimension_names, attributes=attributes, chunk_key_encoding=chunk_key_encoding,
        storage_transformers=storage_transformers, order=order, write_empty_chunks=write_empty_chunks,
        overwrite=overwrite,
    )  # fmt: skip
