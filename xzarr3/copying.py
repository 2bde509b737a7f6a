"""Copies arrays and groups, within a format or to another one.

All documents are translated and checked before the first byte is written. Chunks that both formats encode
alike are copied as bytes; others are decoded and encoded again. How the copy is put in its place is the
business of :mod:`xzarr3.commit.replace`.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from xzarr3._types import Buffer, Scalar
from xzarr3.api import open as open_node
from xzarr3.arrays import Array
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.parsing import parse_codecs
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.commit.replace import Replacement
from xzarr3.errors import MetadataError, NodeExistsError, levels_to_caller, listed, printable, short_traceback
from xzarr3.formats import Format, ZarrFormat, parse_format
from xzarr3.formats.base import node_prefix
from xzarr3.formats.fill_value_attribute import (
    fill_value_is_mask,
    from_fill_value_attribute,
    to_fill_value_attribute,
    without_literals,
)
from xzarr3.formats.nonfinite_attributes import Telling, as_text, finite_attributes, is_finite
from xzarr3.grid import RegularGrid
from xzarr3.groups import Group, bind
from xzarr3.io.selection import basic_selection
from xzarr3.io.stored_units import FEW
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata
from xzarr3.nodes.array_settings import chosen_filters, chosen_serializer
from xzarr3.nodes.consolidated import check_consolidates
from xzarr3.nodes.documents import write_documents
from xzarr3.nodes.find import DocumentView, find_format, format_for_new
from xzarr3.nodes.freshness import note_values
from xzarr3.nodes.node import check_new_path, locate_node, normal_path
from xzarr3.parallel import available_threads, run_on_threads, waiters
from xzarr3.progress import Asked, Progress, check_asked
from xzarr3.stores import Store, StoreLike, in_flight
from xzarr3.stores.open import was_made
from xzarr3.tracing.counters import for_array

_KEEP = "keep"


@short_traceback
def copy(
    source: StoreLike | Array | Group,
    target: StoreLike,
    *,
    source_path: str = "",
    path: str = "",
    zarr_format: ZarrFormat | None = None,
    compressors: Any = _KEEP,
    filters: Any = _KEEP,
    serializer: Any = _KEEP,
    shards: Any = _KEEP,
    overwrite: bool = False,
    consolidated: bool | None = None,
    progress: Asked = False,
    threads: int | None = None,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> Array | Group:
    """Copy an array, or a group with all nodes below it, in the same format or another one.

    Nothing is lost. The copy has the same values, fill values, attributes and dimension names, and xarray
    masks the same elements in it. One exception: JSON lacks NaN and infinities, so in attributes they are
    stored as the text "NaN", "Infinity" and "-Infinity". Where such an attribute marks missing values, the
    fill value, ``_FillValue`` or nothing marks the same elements instead. One warning names these attributes
    and what became of them.

    Chunks are copied as bytes where both formats encode them alike. An existing node stays in its place until
    the whole copy is stored, as with :func:`xzarr3.to_zarr`.

    Parameters
    ----------
    source : path, URL, Store, Array or Group
    target : path, URL or Store
    source_path, path : str
        Path of the node in the source, and of the copy in the target; the root by default.
    zarr_format : {3, 2, "3-draft"}, optional
        Format of the copy; by default the format of the groups above it, or else that of the source.
    compressors : codecs, optional
        Encode all chunks again with these; by default the compressors stay. None for no compressors.
    filters : codecs, optional
        Encode all chunks again with these instead of their filters (:attr:`Array.filters`). None for no
        filters: use it for a format or a reader that does not know the filters of the array.
    serializer : codec, optional
        Encode all chunks again with this serializer. None or "auto" for the one that
        :func:`xzarr3.create_array` chooses.
    shards : None, optional
        None stores each inner chunk as a chunk of its own, for formats that have no shards.
    overwrite : bool
        Replace the existing node and all nodes below it. Files that are no part of a Zarr hierarchy stay, as
        :func:`xzarr3.create_group` says.
    consolidated : bool, optional
        Whether the copy of a group gets consolidated metadata; by default if the source has them.
    progress : bool or callable
        Show a progress bar, or call ``progress(done, total)`` from time to time with numbers of decoded
        bytes. An error that it raises ends the copy.
    threads : int, optional
        Number of threads. By default all cores in the main thread and one in any other thread. More, up to
        the number of requests that the stores answer at a time, if one of the stores has to be waited for.
    source_options, target_options : mapping, optional
        Further options of the two stores; see :func:`xzarr3.open_store`.

    Returns
    -------
    Array or Group
        The copy.

    Raises
    ------
    NodeNotFoundError
        If there is nothing to copy.
    NodeExistsError
        If there is a node already and ``overwrite`` is not set, or source and target overlap.
    MetadataError
        If the format cannot express the source. Nothing is written then.
    StoreError, ChunkDecodeError
        If a chunk cannot be read or written. The old node is still there then, and nothing of the copy is.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> old, new = xzarr3.MemoryStore(), xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(old, "sst", data=np.arange(4.0), zarr_format=2, dimension_names=["time"])
    >>> xzarr3.copy(old, new, zarr_format=3)["sst"].dimension_names
    ('time',)
    """
    check_asked(progress)
    if isinstance(source, (Array, Group)):
        node = source
    else:
        node = open_node(source, source_path, storage_options=source_options)
    store, path = locate_node(target, path, target_options, mode="a")
    with store if was_made(store, target) else nullcontext():
        return _copied(
            node,
            store,
            path,
            zarr_format=zarr_format,
            recoding=_Recoding(compressors, filters, serializer, shards),
            overwrite=overwrite,
            consolidated=consolidated,
            progress=progress,
            threads=threads,
        )


def _copied(
    node: Array | Group,
    store: Store,
    path: str,
    *,
    zarr_format: ZarrFormat | None,
    recoding: _Recoding,
    overwrite: bool,
    consolidated: bool | None,
    progress: Asked,
    threads: int | None,
) -> Array | Group:
    wanted = None if zarr_format is None else parse_format(zarr_format)
    normal = normal_path(path)
    look = DocumentView.around(store, normal)
    format = format_for_new(look, normal, zarr_format)
    if wanted is None and not normal and find_format(look, "") is None:
        format = parse_format(node.zarr_format)
    check_new_path(normal, format)
    _check_apart(node, store, normal)
    held = isinstance(node, Group) and node.consolidated and not store.transactional
    if consolidated is not None:
        held = consolidated
    if held:
        check_consolidates(store)
    nodes = _nodes_below(node)
    with Telling():
        metadata = {below: _translated(each, format, recoding) for below, each in nodes.items()}
    names = sorted({below.partition("/")[0] for below in nodes if below}) if isinstance(node, Group) else None
    arrays = {
        node_prefix(normal) + below if below else normal: each
        for below, each in metadata.items()
        if isinstance(each, ArrayMetadata)
    }
    place = Replacement(store, format, normal, names, arrays, overwrite=overwrite, how="overwrite=True")
    jobs = [
        _NodeCopy(
            node_prefix(normal) + below if below else normal, each, metadata[below], place.store, format
        )
        for below, each in nodes.items()
    ]
    for job in jobs:
        check_new_path(job.path, format)
    if threads is None:
        threads = _most_threads(node, store, arrays.values())

    def write() -> None:
        written = {job.path: job.metadata for job in jobs}
        write_documents(place.store, format, written, last=normal, replaces=place.replaces)

    place.begin()
    place.documents_first(write)
    with place.discarding():
        text = f"copying {node.name} to {store}"
        with Progress(progress, sum(job.nbytes for job in jobs), text) as shown:
            moves = itertools.chain.from_iterable(job.moves() for job in jobs)
            _do_all(moves, threads, shown.advance)
        place.documents_last(write)
    place.put(metadata)
    result = bind(store, format, normal, metadata[""], read_only=False)
    if held and isinstance(result, Group) and format.consolidated_key(normal) is not None:
        return result.consolidate()
    return result


def _nodes_below(node: Array | Group) -> dict[str, Array | Group]:
    """A node and all nodes below it, by relative path.

    Raises
    ------
    MetadataError
        If a node cannot be reached because a group above it has no document.
    """
    nodes: dict[str, Array | Group] = {"": node}
    if not isinstance(node, Group):
        return nodes
    if not node.store.listable:
        nodes.update(node.members(max_depth=None))
        return nodes
    # Consolidated metadata may be out of date, so the store is read.
    plain = Group(
        node.store,
        node.path,
        node.metadata,
        format=node.format,
        read_only=node.read_only,
        use_consolidated=False,
    )
    nodes.update(plain.members(max_depth=None))
    known = {node.path, *(node_prefix(node.path) + below for below in nodes)}
    for prefix in node.format.prefixes(node.path):
        for key in node.store.list_prefix(prefix):
            place = node.format.place(key)
            if place is not None and place.kind != "other" and place.path not in known:
                raise MetadataError(
                    f"'{node.name}' cannot be reached: a group above it has no document",
                    path=place.path, advice="create the groups above it with create_group()",
                )  # fmt: skip
    return nodes


def _check_apart(node: Array | Group, store: Store, path: str) -> None:
    """Raise if source and target overlap."""
    one, other = _location(node.store, node.path), _location(store, path)
    if one[0] == other[0] and (one[1].startswith(other[1]) or other[1].startswith(one[1])):
        raise NodeExistsError(
            f"'{node.name}' of {node.store} cannot be copied to '/{path}' of {store}: one of the two "
            "contains the other; choose another path, or another store"
        )


def _location(store: Store, path: str) -> tuple[object, str]:
    """The store's identity and the prefix of everything that belongs to the node."""
    if store.folder is not None:
        return "LocalStore", os.path.join(os.path.realpath(os.path.join(store.folder, path)), "")
    return store.identity, node_prefix(path)


# Documents


@dataclass(frozen=True)
class _Recoding:
    """The codecs and shards that the copy does not keep, if any."""

    compressors: Any
    filters: Any
    serializer: Any
    shards: Any

    def __post_init__(self) -> None:
        if self.shards is not None and not _is_keep(self.shards):
            raise MetadataError(
                "not a way to copy shards",
                field="shards",
                found=self.shards,
                accepted="None, or leave it out",
            )

    def __call__(self, array: Array, format: Format) -> ArrayMetadata:
        """The metadata of an array with the codecs and the chunk grid of its copy."""
        meta = array.metadata
        keeps_codecs = all(map(_is_keep, (self.compressors, self.filters, self.serializer)))
        if keeps_codecs and (self.shards is not None or array.shards is None):
            return meta
        codecs = self._codecs(array, format)
        grid = meta.chunk_grid
        if array.shards is not None and self.shards is not None:
            sharding = next(codec for codec in meta.codecs if isinstance(codec, ArrayBytesCodec))
            codecs = (replace(sharding, codecs=codecs),)  # type: ignore[type-var]
        elif array.shards is not None:
            grid = RegularGrid(cast("tuple[int, ...]", array.chunks))
        for shape in grid.sample_shapes():
            codecs = CodecChain(codecs, ChunkSpec(shape, meta.data_type, meta.fill_value)).codecs
        # Ignored codecs belonged to the old chunks.
        ignored = {field: value for field, value in meta.ignored.items() if field != "codecs"}
        return replace(meta, codecs=codecs, chunk_grid=grid, ignored=ignored)

    def _codecs(self, array: Array, format: Format) -> tuple[Codec, ...]:
        """The codecs of the chunks, new and kept."""
        filters: tuple[ArrayArrayCodec, ...] = array.filters
        packing: tuple[BytesBytesCodec, ...] = ()
        compressors: tuple[Codec, ...] = array.compressors
        if not _is_keep(self.filters):
            filters, packing = chosen_filters(self.filters, format)
        serializer = self._serializer(array, filters)
        if not _is_keep(self.compressors):
            compressors = parse_codecs(self.compressors, BytesBytesCodec)
        return (*filters, serializer, *packing, *compressors)

    def _serializer(self, array: Array, filters: tuple[ArrayArrayCodec, ...]) -> ArrayBytesCodec:
        data_type = array.metadata.data_type
        if not _is_keep(self.serializer):
            return chosen_serializer(self.serializer, data_type, filters, array.format)
        kept = array.serializer
        if _is_keep(self.filters) or not isinstance(kept, BytesCodec):
            return kept
        # The output of the old filters may have had another type, such as single bytes, or integers instead
        # of text.
        usual = chosen_serializer("auto", data_type, filters, array.format)
        return kept if kept.endian is not None and isinstance(usual, BytesCodec) else usual


def _is_keep(value: object) -> bool:
    return isinstance(value, str) and value == _KEEP


def _translated(node: Array | Group, format: Format, recoding: _Recoding) -> ArrayMetadata | GroupMetadata:
    """The metadata of a node in another format.

    Raises
    ------
    MetadataError
        If the format cannot express them; the error names the node in the source.
    """
    # Documents in pre-final forms of version 3 are written in the final form.
    same = node.format.writable and node.format.answers_to(format.zarr_format)
    try:
        if isinstance(node, Group):
            if node.metadata.ignored and not same:
                _warn_of_ignored(node)
            return GroupMetadata(
                attributes=finite_attributes(node.metadata.attributes, node.path),
                ignored=as_text(node.metadata.ignored) if same else {},
                zarr_format=format.zarr_format,
            )
        meta = recoding(node, format)
        if same:
            if not is_finite(meta.ignored):
                meta = replace(meta, ignored=as_text(meta.ignored))
            return without_literals(meta, format, node.path)
        if meta.ignored:
            _warn_of_ignored(node)
        meta = replace(
            _in_native_order(meta, format),
            zarr_format=format.zarr_format,
            chunk_key_encoding=format.chunk_key_encoding,
            codecs=node.format.codecs_elsewhere(meta),
            ignored={},
            fill_is_null=meta.fill_is_null and format.fill_value_may_be_null,
        )
        if fill_value_is_mask(node.format) != fill_value_is_mask(format):
            if fill_value_is_mask(format):
                meta = from_fill_value_attribute(meta)
            else:
                meta = to_fill_value_attribute(meta, is_null=node.metadata.fill_is_null)
        meta = without_literals(meta, format, node.path)
        # Encode the chunks by the metadata that a reader will parse from the document.
        return format.parse(format.hold(meta, node.path), node.path)
    except MetadataError as error:
        error.at(path=node.path)
        if isinstance(node, Array) and node.shards is not None and recoding.shards is not None:
            error.advice = "pass shards=None to store the chunks of shards one by one"
        if isinstance(node, Array) and _is_keep(recoding.filters) and _is_about(error, node.filters):
            error.advice = (
                f"{error.advice}, or " if error.advice else "pass "
            ) + "filters=None to leave the filters out"
        raise


def _is_about(error: MetadataError, codecs: tuple[Codec, ...]) -> bool:
    """Whether an error may be about one of these codecs."""
    named = [codec.name for codec in codecs if not isinstance(codec, TransposeCodec)]
    return any(name in str(error.found) or name in str(error) for name in named)


def _in_native_order(meta: ArrayMetadata, format: Format) -> ArrayMetadata:
    """The metadata in native byte order, unless the format's data types name a byte order."""
    data_type = meta.data_type.in_native_order()
    if format.byte_order_in_data_type or data_type == meta.data_type:
        return meta
    fill: Any = data_type.cast_array(np.asarray(meta.fill_value, meta.data_type.to_native_dtype()))[()]
    return replace(meta, data_type=data_type, fill_value=fill)


def _warn_of_ignored(node: Array | Group) -> None:
    warnings.warn(
        f"'{printable(node.name)}' of {node.store} has fields that have no meaning in another format; "
        f"its copy lacks them: {listed(node.metadata.ignored)}",
        stacklevel=levels_to_caller(),
    )


# Chunks


@dataclass(frozen=True)
class _NodeCopy:
    """One node to copy."""

    path: str
    node: Array | Group
    metadata: ArrayMetadata | GroupMetadata
    store: Store
    format: Format

    @property
    def nbytes(self) -> int:
        """Decoded size in bytes."""
        return self.node.nbytes if isinstance(self.node, Array) else 0

    def _array(self) -> Array:
        if not isinstance(self.metadata, ArrayMetadata):
            raise TypeError(f"'/{self.path}' is a group")
        return Array(self.store, self.path, self.metadata, format=self.format)

    def moves(self) -> Iterator[Callable[[], int]]:
        """One callable for each stored unit of the copy; each returns the decoded size in bytes."""
        source = self.node
        if not isinstance(source, Array):
            return
        target = self._array()
        absent = None
        left_open = target.metadata.fill_is_null and not source.metadata.fill_is_null
        if left_open or not _same_fill(source, target):
            absent = _Absent(source.metadata.fill_value, target.metadata)
        # In the bytes of a shard, absent inner chunks would get the other fill value.
        as_bytes = absent is None or target.shards is None
        if as_bytes and _encoded_alike(source.metadata, target.metadata):
            coordinates = _stored(source) if absent is None else _all(target.shard_grid_shape)
            yield from (_Move(source, target, coords, absent) for coords in coordinates)
        else:
            target.write_empty_chunks = absent is not None
            coordinates = _touched(source, target) if absent is None else _all(target.shard_grid_shape)
            yield from (_Recode(source, target, coords) for coords in coordinates)


def _encoded_alike(source: ArrayMetadata, target: ArrayMetadata) -> bool:
    """Whether the stored units of both have the same bytes."""
    return (
        source.data_type == target.data_type
        and source.chunk_grid == target.chunk_grid
        and repr(source.codecs) == repr(target.codecs)  # 1 and 1.0 are equal, but may encode differently
    )


@dataclass(frozen=True)
class _Absent:
    """Encoded fill values for units that are absent in the source, where absence would mean another value."""

    fill_value: Scalar
    metadata: ArrayMetadata
    _encoded: dict[tuple[int, ...], Buffer] = field(default_factory=dict)

    def unit(self, coords: tuple[int, ...]) -> Buffer:
        shape = self.metadata.chunk_grid.chunk_shape_at(coords)
        if shape not in self._encoded:
            chunk = self.metadata.data_type.filled(shape, self.fill_value)
            self._encoded[shape] = bytes(self.metadata.chain_of(shape).encode(chunk, keep_empty=True))
        return self._encoded[shape]


def _all(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All coordinates in a grid, one at a time."""
    if not counts:
        yield ()
        return
    for first in range(counts[0]):
        for rest in _all(counts[1:]):
            yield (first, *rest)


def _stored(array: Array) -> Iterator[tuple[int, ...]]:
    """The coordinates of stored units; of all units if there are few or the store cannot list."""
    few = array.nshards <= FEW or not array.engine.store.listable
    return _all(array.shard_grid_shape) if few else array.stored_units()


def _touched(source: Array, target: Array) -> Iterator[tuple[int, ...]]:
    """The coordinates of target units that overlap stored units of the source."""
    if source.metadata.chunk_grid == target.metadata.chunk_grid:
        yield from _stored(source)
        return
    done: set[tuple[int, ...]] = set()
    listable = source.engine.store.listable  # only units that exist are visited
    for coords in source.stored_units() if listable else _stored(source):
        region = source.metadata.chunk_grid.region(coords, source.shape)
        for found in target.plan(region).coords():
            if found not in done:
                done.add(found)
                yield found


def _same_fill(source: Array, target: Array) -> bool:
    data_type, fill = target.metadata.data_type, source.metadata.fill_value
    if data_type != source.metadata.data_type:
        try:
            fill = data_type.cast_scalar(fill)
        except MetadataError:  # the target holds no such value
            return False
    same: bool = data_type.bits(fill) == data_type.bits(target.metadata.fill_value)
    return same


def _size(array: Array, region: tuple[slice, ...]) -> int:
    size: int = math.prod(part.stop - part.start for part in region) * array.dtype.itemsize
    return size


@dataclass(frozen=True)
class _Move:
    """Copies the bytes of a stored unit, or stores the encoded fill value if the unit is absent."""

    source: Array
    target: Array
    coords: tuple[int, ...]
    absent: _Absent | None

    @for_array(lambda move: move.source.engine)
    def __call__(self) -> int:
        engine = self.source.engine
        value = engine.store.get(engine.key(self.coords))
        if value is None and self.absent is not None:
            value = self.absent.unit(self.coords)
        if value is not None:
            into = self.target.engine
            into.store.set(into.key(self.coords), value)
        return _size(self.target, self.target.metadata.chunk_grid.region(self.coords, self.target.shape))


@dataclass(frozen=True)
class _Recode:
    """Reads the elements of a target unit and encodes them again."""

    source: Array
    target: Array
    coords: tuple[int, ...]

    def __call__(self) -> int:
        region = self.target.metadata.chunk_grid.region(self.coords, self.target.shape)
        # The target has no documents yet: skip the check that the array still exists.
        selection = basic_selection(region, self.target.shape)
        self.target._write(selection, self.source.get(region, threads=1), threads=1)
        return _size(self.target, region)


def copy_values(source: Array, target: Array) -> None:
    """Write all values of an array to another one of its shape, which holds none yet.

    Stored units are copied as bytes where both arrays encode them alike.
    """
    job = _NodeCopy(target.path, source, target.metadata, target.store, target.format)
    try:
        _do_all(job.moves(), _most_threads(source, target.store, [target.metadata]), lambda _: None)
    finally:
        note_values(target)


def _most_threads(node: Array | Group, store: Store, arrays: Iterable[ArrayMetadata]) -> int:
    """How many threads copy to a store by default."""
    held_by_each = max((2 * each.chain.spec.nbytes for each in arrays), default=0)
    most = max(node.store.concurrency, store.concurrency)
    return max(available_threads(), in_flight.at_once(most, held_by_each))


def _do_all(moves: Iterator[Callable[[], int]], threads: int, advance: Callable[[int], object]) -> None:
    """Run all moves on several threads; calls ``advance`` in this thread with the bytes of each."""
    lock = threading.Lock()
    done: deque[int] = deque()
    caller = threading.current_thread()
    stopped = False

    def worker() -> None:
        while not stopped:
            with lock:
                move = next(moves, None)
            if move is None:
                return
            done.append(move())
            if threading.current_thread() is caller:
                report()

    def report() -> None:
        while done:
            advance(done.popleft())

    def stop() -> None:
        nonlocal stopped
        stopped = True

    run_on_threads(worker, threads, waiters, stop)
    report()
