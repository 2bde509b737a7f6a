"""The settings that a copy does not keep: chunks, shards, codecs and fill value, for all arrays or for one.

Turns what a user asks for into the metadata of the copy of an array. Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any

from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.conventions.fill_value_attribute import decode_fill_value, follows_version_2
from xzarr3.errors import ArgumentTypeError, MetadataError
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.grid import Grid
from xzarr3.groups import Group
from xzarr3.joined.group import JoinedGroup
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.new_array import KEEP, is_keep
from xzarr3.nodes.array_settings import (
    cast_fill_value,
    chosen_compressors,
    chosen_filters,
    chosen_grids,
    chosen_serializer,
)
from xzarr3.nodes.node import ancestors
from xzarr3.readable import ReadableArray


@dataclass(frozen=True)
class Settings:
    """The settings of the copy of an array; each may be ``"keep"``."""

    chunks: Any = KEEP
    shards: Any = KEEP
    compressors: Any = KEEP
    filters: Any = KEEP
    serializer: Any = KEEP
    fill_value: Any = KEEP

    @property
    def keeps_codecs(self) -> bool:
        """Whether chunks keep all of their codecs."""
        return all(map(is_keep, (self.compressors, self.filters, self.serializer)))

    def updated(self, own: Mapping[str, Any]) -> Settings:
        """These settings, with those of one array in their place.

        Chunks without shards are stored one by one, as :func:`xzarr3.to_zarr` stores them.
        """
        settings = replace(self, **own)
        bare = "chunks" in own and "shards" not in own and not is_keep(own["chunks"])
        return replace(settings, shards=None) if bare and is_keep(self.shards) else settings

    def without_cuts(self, array: ReadableArray) -> Settings:
        """These settings without the lengths by name of a dimension that would cut chunks of an array."""
        present = dict(zip(array.dimension_names or (), array.chunks, strict=False))
        chunks, shards = self.chunks, self.shards
        if isinstance(chunks, Mapping):
            chunks = {
                name: length for name, length in chunks.items() if _is_no_cut(length, present.get(name))
            }
        return replace(self, chunks=chunks, shards=KEEP if isinstance(shards, Mapping) else shards)

    def metadata(self, array: ReadableArray, format: Format) -> ArrayMetadata:
        """The metadata of an array with these settings, still in the terms of its own format.

        Raises
        ------
        MetadataError
            If the settings do not fit the array.
        """
        meta = array.metadata
        if not is_keep(self.fill_value):
            fill = cast_fill_value(meta.data_type, self.fill_value)
            meta = replace(meta, fill_value=fill, fill_is_null=False)
        grid, units = self._grids(array)
        if self.keeps_codecs and (grid, units) == _present(array):
            return meta
        codecs = self._codecs(array, format)
        if units is not None:
            codecs = (_sharding(array, grid, codecs),)
            grid = units
        grid.check(meta.shape)
        for shape in grid.sample_shapes():
            codecs = CodecChain(codecs, ChunkSpec(shape, meta.data_type, meta.fill_value)).codecs
        return replace(meta, codecs=codecs, chunk_grid=grid)

    def _grids(self, array: ReadableArray) -> tuple[Grid, Grid | None]:
        """The grid of the chunks, and that of the shards or None."""
        chunks = _along(self.chunks, array, array.chunks)
        shards = _along(self.shards, array, array.shards)
        if is_keep(chunks) and is_keep(shards):
            return _present(array)
        if is_keep(chunks) and (shards is None or shards is False):
            return _present(array)[0], None
        if is_keep(shards):
            shards = array.shards
        itemsize = array.metadata.data_type.item_size
        given = _at_least_one(array.chunks) if is_keep(chunks) else chunks
        if isinstance(shards, Mapping):  # Along the other dimensions a shard is one chunk.
            grid, _ = chosen_grids(given, None, array.shape, itemsize)
            shards = _along(shards, array, grid.chunk_lengths(array.shape))
        return chosen_grids(given, shards, array.shape, itemsize)

    def _codecs(self, array: ReadableArray, format: Format) -> tuple[Codec, ...]:
        """The codecs of the chunks, new and kept."""
        filters: tuple[ArrayArrayCodec, ...] = array.filters
        packing: tuple[BytesBytesCodec, ...] = ()
        compressors: tuple[Codec, ...] = array.compressors
        if not is_keep(self.filters):
            filters, packing = chosen_filters(self.filters, format)
        serializer = self._serializer(array, filters)
        if not is_keep(self.compressors):
            compressors = chosen_compressors(self.compressors, serializer, array.zdtype, format)
        return (*filters, serializer, *packing, *compressors)

    def _serializer(self, array: ReadableArray, filters: tuple[ArrayArrayCodec, ...]) -> ArrayBytesCodec:
        data_type = array.metadata.data_type
        if not is_keep(self.serializer):
            return chosen_serializer(self.serializer, data_type, array.format)
        kept = array.serializer
        if is_keep(self.filters) or not isinstance(kept, BytesCodec):
            return kept
        # The output of the old filters may have had another type, such as single bytes, or integers instead
        # of text.
        usual = chosen_serializer("auto", data_type, array.format)
        return kept if kept.endian is not None and isinstance(usual, BytesCodec) else usual


def _is_no_cut(length: Any, present: Any) -> bool:
    """Whether chunks of a length are at least as long as the present ones along a dimension."""
    lengths = isinstance(length, Integral) and isinstance(present, int)
    return lengths and (length == -1 or length >= present)


def _present(array: ReadableArray) -> tuple[Grid, Grid | None]:
    """The grid of the chunks, and that of the shards or None, as they are."""
    shard, units = array.metadata.chain.shard, array.metadata.chunk_grid
    return (units, None) if shard is None else (shard.grid, units)


def _sharding(array: ReadableArray, grid: Grid, codecs: tuple[Codec, ...]) -> Codec:
    """The codec of shards: as it was, with other chunks in it, or a new one."""
    from xzarr3.codecs.sharding import ShardingCodec

    if array.shards is None:
        return ShardingCodec(grid.largest, codecs)
    kept = next(codec for codec in array.metadata.codecs if isinstance(codec, ArrayBytesCodec))
    return replace(kept, chunk_shape=grid.largest, codecs=codecs)  # type: ignore[type-var]


def _at_least_one(lengths: Sequence[Any]) -> list[Any]:
    """Lengths of chunks; version 2 allows 0 where a dimension has no elements."""
    return [1 if length == 0 else length for length in lengths]


def _along(setting: Any, array: ReadableArray, lengths: Sequence[Any] | None) -> Any:
    """A setting for one array: of lengths by dimension name, those of its own dimensions.

    Without the present lengths, which the other dimensions have, the setting stays as it is.
    """
    if not isinstance(setting, Mapping):
        return setting
    names = array.dimension_names or (None,) * array.ndim
    if not any(name in setting for name in names if name is not None):
        return KEEP
    if lengths is None:
        return setting
    pairs = zip(names, _at_least_one(lengths), strict=True)
    return [length if name is None else setting.get(name, length) for name, length in pairs]


_NAMES = tuple(field.name for field in fields(Settings))
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Attributes by which values are packed, which are keys of an encoding for :func:`xzarr3.to_zarr`."""


def settings_of(
    nodes: Mapping[str, ReadableArray | Group | JoinedGroup],
    everywhere: Settings,
    encoding: Mapping[str, Mapping[str, Any]] | None,
) -> dict[str, Settings]:
    """The settings of each array, by its path relative to the copied node.

    Parameters
    ----------
    nodes : mapping of str to array or group
        All nodes, by relative path.
    everywhere : Settings
    encoding : mapping of str to mapping, optional
        Settings of single arrays, by relative path or by a name that only one of the arrays has.

    Raises
    ------
    MetadataError
        If a path, a dimension or a setting is not known.
    """
    arrays = {path: node for path, node in nodes.items() if isinstance(node, ReadableArray)}
    _check_dimensions(everywhere, arrays.values(), "")
    coordinates = _coordinates(arrays)
    found = {
        path: everywhere.without_cuts(array) if path in coordinates else everywhere
        for path, array in arrays.items()
    }
    if encoding is None:
        return found
    if not isinstance(encoding, Mapping):
        raise ArgumentTypeError(
            f"encoding={encoding!r}: not settings by array; give a mapping such as "
            "{'sst': {'chunks': 100}}"
        )
    keys: dict[str, object] = {}
    for name, own in encoding.items():
        path, field = _path_of(name, arrays, nodes), f"encoding[{name!r}]"
        if not isinstance(own, Mapping):
            raise MetadataError(
                "not the settings of an array", field=field, found=own,
                accepted="a mapping such as {'chunks': 100}",
            )  # fmt: skip
        if path in keys:
            raise MetadataError(
                "two keys for one array", field="encoding", found=[keys[path], name],
                accepted="one key for each array",
            )  # fmt: skip
        keys[path] = name
        own = {key: value for key, value in own.items() if not _is_kept(arrays[path], key, value)}
        unknown = next((key for key in own if key not in _NAMES), None)
        if unknown is not None:
            raise MetadataError("not a setting of an array", field=field, found=unknown, accepted=_NAMES)
        _check_dimensions(Settings(**own), [arrays[path]], f"{field}.")
        found[path] = everywhere.updated(own)
    return found


def _coordinates(arrays: Mapping[str, ReadableArray]) -> set[str]:
    """The paths of coordinates of their own dimension, and of bounds: a reader needs all of these."""
    # An array that is copied alone is what the settings are for.
    found = {path for path, array in arrays.items() if path and array.dimension_names == (array.basename,)}
    for path, array in arrays.items():
        for name in (array.metadata.attributes.get(each) for each in ("bounds", "climatology")):
            places = [f"{node_prefix(group)}{name}" for group in reversed([*ancestors(path)])]
            found.update([place for place in places if place in arrays][:1])
    return found


def _is_kept(array: ReadableArray, key: str, value: Any) -> bool:
    """Whether an encoding for :func:`xzarr3.to_zarr` says here how values are packed, and they are so."""
    if key == "dtype":
        return bool(array.dtype == value)
    mark = array.fill_value if key == "_FillValue" and follows_version_2(array.format) else None
    found = array.metadata.attributes.get(key, mark)
    if isinstance(found, str) and array.dtype.kind == "f":
        found = decode_fill_value(found, array.dtype)
    return key in PACKING and bool(found == value or (found != found and value != value))


def _path_of(
    name: object,
    arrays: Mapping[str, ReadableArray],
    nodes: Mapping[str, ReadableArray | Group | JoinedGroup],
) -> str:
    """The relative path of the array that a key of ``encoding`` names."""
    path = name.strip("/") if isinstance(name, str) else None
    if path in arrays:
        return str(path)
    named = [each for each, array in arrays.items() if path in (array.basename, array.path)]
    if len(named) == 1:
        return named[0]
    if named:
        reason = f"{len(named)} arrays have this name"
    else:
        reason = "a group has no such settings" if path in nodes else "no array of this path is copied"
    raise MetadataError(reason, field="encoding", found=name, accepted=named or sorted(arrays))


def _check_dimensions(settings: Settings, arrays: Iterable[ReadableArray], within: str) -> None:
    """Raise if chunks or shards name a dimension that no array has."""
    known = {name for array in arrays for name in array.dimension_names or () if name is not None}
    for field in ("chunks", "shards"):
        asked = getattr(settings, field)
        unknown = [name for name in asked if name not in known] if isinstance(asked, Mapping) else []
        if unknown:
            raise MetadataError(
                "the array has no such dimension" if within else "no copied array has this dimension",
                field=f"{within}{field}", found=unknown[0], accepted=sorted(known),
            )  # fmt: skip
