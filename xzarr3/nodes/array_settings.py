"""Turns the settings that a user gives for a new array into its metadata.

Fills in what the user leaves open and checks that everything fits together and that the format can express
it. Nothing is read from or written to a store here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy.typing as npt

from xzarr3._types import Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.parsing import parse_codec, parse_codecs
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.display.units import counted
from xzarr3.dtypes import ZDType, parse_dtype
from xzarr3.errors import DataTypeValidationError, MetadataError, did_you_mean, foreign, located
from xzarr3.formats import V3, Format, documents
from xzarr3.grid import Grid, RegularGrid, as_lengths, grid_for
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.chunk_keys import chunk_key_encoding as encoding_of
from xzarr3.model.metadata import ArrayMetadata, check_shape
from xzarr3.model.storage_transformers import StorageTransformer, storage_transformer
from xzarr3.nodes.auto_chunks import (
    AUTO_CHUNK,
    AUTO_INNER_CHUNK,
    AUTO_SHARD,
    auto_chunks,
    auto_shards,
    chunks_in_shards,
)
from xzarr3.quantities import byte_count


def array_metadata(
    *,
    shape: int | Sequence[int],
    dtype: ZDType | npt.DTypeLike,
    chunks: Any = "auto",
    shards: Any = None,
    filters: Any = "auto",
    serializer: Any = "auto",
    compressors: Any = "auto",
    fill_value: object = None,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    chunk_key_encoding: ChunkKeyEncoding | Mapping[str, Any] | str | None = None,
    storage_transformers: Sequence[StorageTransformer | Mapping[str, Any] | str] = (),
    order: str = "C",
    format: Format = V3,
    literal: bool = False,
) -> ArrayMetadata:
    """The metadata of a new array; see :func:`xzarr3.create_array` for the parameters.

    With ``literal``, lists of lengths make a rectilinear grid, if the format has one. Without it, only lists
    that no regular grid has: such lists are the blocks of a dask array.

    Raises
    ------
    MetadataError
        If the settings do not fit together.
    """
    try:
        sizes = as_lengths(shape)
    except TypeError as error:
        raise MetadataError(
            "not a shape", field="shape", found=shape, accepted="integers of at least 0"
        ) from error
    check_shape(sizes)
    asked = parse_dtype(dtype, zarr_format=format.zarr_format)
    data_type = asked.in_native_order()
    fill = data_type.default_scalar() if fill_value is None else cast_fill_value(data_type, fill_value)
    literal = literal and format.rectilinear_grids
    grid, units = chosen_grids(chunks, shards, sizes, data_type.item_size, literal=literal)
    filters, packing = chosen_filters(filters, format)
    serializer = chosen_serializer(serializer, asked, format)
    codecs: tuple[Codec, ...] = (
        *_order(order, len(sizes)),
        *filters,
        serializer,
        *packing,
        *chosen_compressors(compressors, serializer, asked, format),
    )
    if units is not None:
        from xzarr3.codecs.sharding import ShardingCodec

        codecs = (ShardingCodec(grid.largest, codecs),)
        grid = units
    grid.check(sizes)
    names = _dimension_names(dimension_names, len(sizes))
    for unit in grid.sample_shapes():
        # The chain fills in settings that codecs left open, such as the element size of blosc.
        codecs = CodecChain(codecs, ChunkSpec(unit, data_type, fill)).codecs
    meta = ArrayMetadata(
        shape=sizes,
        data_type=data_type,
        chunk_grid=grid,
        chunk_key_encoding=_chunk_key_encoding(chunk_key_encoding, format.chunk_key_encoding),
        fill_value=fill,
        codecs=codecs,
        attributes=documents.plain_attributes({} if attributes is None else attributes),
        dimension_names=names,
        storage_transformers=_storage_transformers(storage_transformers),
        zarr_format=format.zarr_format,
    )
    # Encode and parse once: this finds, before anything is written, what the format cannot express.
    for document in format.documents(meta, "").values():
        documents.check(document)
    return cast("ArrayMetadata", format.parse(format.hold(meta), ""))


def _dimension_names(given: Sequence[str | None] | None, ndim: int) -> tuple[str | None, ...] | None:
    """The names of the dimensions, if there are any; a name may be None."""
    accepted = "a list of strings or None, one for each dimension"
    try:
        names = None if given is None else tuple(given)
    except TypeError as error:
        raise MetadataError(
            "not names of dimensions", field="dimension_names", found=given, accepted=accepted
        ) from error
    if names is not None and (len(names) != ndim or not all(n is None or isinstance(n, str) for n in names)):
        raise MetadataError(
            f"the array has {counted(ndim, 'dimension')}",
            field="dimension_names",
            found=given,
            accepted=accepted,
        )
    return names


def cast_fill_value(data_type: ZDType, value: object) -> Scalar:
    """Convert a fill value given by a user; the data type may be a class of another package.

    Raises
    ------
    DataTypeValidationError
        If the data type cannot hold the value.
    """
    what = f"value cannot be held by data type '{data_type.name}'"
    with located(field="fill_value"), foreign(what, DataTypeValidationError, found=value):
        scalar: Scalar = data_type.cast_scalar(value)
        return scalar


def chosen_grids(
    chunks: Any, shards: Any, shape: tuple[int, ...], itemsize: int, *, literal: bool = False
) -> tuple[Grid, Grid | None]:
    """The grid of the chunks, and that of the shards or None; see :func:`array_metadata`.

    Raises
    ------
    MetadataError
        If the settings do not fit the shape, or each other.
    """
    limit = _limit(chunks, "chunks")

    def divided(most: int) -> Grid:
        if is_open(chunks):
            return RegularGrid(auto_chunks(shape, itemsize, most if limit is None else limit))
        return grid_for(-1 if chunks is False else chunks, shape, literal=literal)

    if shards is None or shards is False:
        return divided(AUTO_CHUNK), None
    if is_open(chunks) and not is_open(shards):
        units = grid_for(shards, shape, "shards", literal=literal)
        return RegularGrid(chunks_in_shards(units, itemsize, limit)), units
    grid = divided(AUTO_INNER_CHUNK)
    if not isinstance(grid, RegularGrid):
        raise MetadataError(
            "chunks of several shapes cannot lie in shards", field="chunks", found=chunks,
            accepted=f"{len(shape)} integers; the shards may have several shapes",
        )  # fmt: skip
    if is_open(shards):
        largest = _limit(shards, "shards") or AUTO_SHARD
        units = RegularGrid(auto_shards(shape, grid.chunk_shape, itemsize, largest))
    else:
        whole = _of_whole_chunks(shards, grid.chunk_shape, shape)
        units = grid_for(whole, shape, "shards", literal=literal)
    return grid, units


def _of_whole_chunks(shards: Any, chunks: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """``shards`` where -1, the whole dimension, is replaced by a multiple of the chunk length."""
    along = [shards] * len(shape) if isinstance(shards, int) else shards
    if not isinstance(along, (tuple, list)) or len(along) != len(shape):
        return shards
    whole = [max(1, -(-size // chunk)) * chunk for size, chunk in zip(shape, chunks, strict=True)]
    return [
        length if isinstance(each, int) and each == -1 else each
        for each, length in zip(along, whole, strict=True)
    ]


def _limit(setting: Any, field: str) -> int | None:
    """The most bytes of a chunk or a shard, if the setting is such a size.

    Raises
    ------
    MetadataError
        If it is text and neither a size nor "auto".
    """
    if not isinstance(setting, str) or setting == "auto":
        return None
    try:
        return byte_count(setting)
    except ValueError as error:
        raise MetadataError(
            "not a size", field=field, found=setting, accepted="'auto', a shape, or bytes as in '2 MB'"
        ) from error


def is_open(setting: Any) -> bool:
    """Whether ``chunks`` or ``shards`` leave the shape open: "auto", None, True, or bytes as text."""
    return setting is None or setting is True or isinstance(setting, str)


def _order(order: str, ndim: int) -> tuple[ArrayArrayCodec, ...]:
    """The codec that stores the elements of a chunk in an order other than C."""
    if not isinstance(order, str) or order not in ("C", "F"):
        raise MetadataError("not an order of elements", field="order", found=order, accepted="'C', 'F'")
    if order == "C" or ndim < 2:
        return ()
    from xzarr3.codecs.transpose import TransposeCodec

    return (TransposeCodec(tuple(range(ndim))[::-1]),)


def _storage_transformers(given: Iterable[Any] | None) -> tuple[StorageTransformer, ...]:
    if given is not None and not isinstance(given, Iterable):
        given = [given]
    return tuple(map(_storage_transformer, given or ()))


def _storage_transformer(value: StorageTransformer | Mapping[str, Any] | str) -> StorageTransformer:
    if isinstance(value, StorageTransformer):
        return value
    if isinstance(value, str):
        return storage_transformer(value, {})
    if not isinstance(value, Mapping):
        raise MetadataError(
            "not a storage transformer", field="storage_transformers", found=value,
            accepted="a StorageTransformer, its name or its JSON",
        )  # fmt: skip
    return storage_transformer(str(value.get("name")), value.get("configuration", {}))


def is_auto(value: Any) -> bool:
    """Whether a setting is "auto"."""
    return isinstance(value, str) and value == "auto"


def chosen_filters(
    filters: Any, format: Format
) -> tuple[tuple[ArrayArrayCodec, ...], tuple[BytesBytesCodec, ...]]:
    """The array-to-array filters and, only in version 2, the bytes-to-bytes filters."""
    if is_auto(filters):
        return (), ()
    with located(field="filters"):
        parsed = parse_codecs(filters, format.filter_kinds)
    first = next((at for at, codec in enumerate(parsed) if isinstance(codec, BytesBytesCodec)), len(parsed))
    late = [codec.name for codec in parsed[first:] if not isinstance(codec, BytesBytesCodec)]
    if late:
        raise MetadataError(
            f"codec '{late[0]}' on arrays comes after one on bytes", field="filters",
            found=[codec.name for codec in parsed], accepted="filters on arrays before filters on bytes",
        )  # fmt: skip
    return (
        cast("tuple[ArrayArrayCodec, ...]", parsed[:first]),
        cast("tuple[BytesBytesCodec, ...]", parsed[first:]),
    )


def chosen_compressors(
    value: Any, serializer: ArrayBytesCodec, data_type: ZDType, format: Format
) -> tuple[BytesBytesCodec, ...]:
    """The compressors that a user gives; for "auto" those that the format usually has."""
    if is_auto(value):
        # A compressed shard could only be read whole, and N5 could not read a compressed N5 block.
        is_whole = serializer.name in ("sharding_indexed", "n5_default")
        value = None if is_whole else format.usual_codecs(data_type)[1]
    with located(field="compressors"):
        return cast("tuple[BytesBytesCodec, ...]", parse_codecs(value, BytesBytesCodec))


def chosen_serializer(value: Any, data_type: ZDType, format: Format) -> ArrayBytesCodec:
    """The array-to-bytes codec: the given one, or the usual one for the data type."""
    if is_auto(value) or value is None:
        return format.usual_codecs(data_type)[0]
    with located(field="serializer"):
        codec = parse_codec(value)
    if isinstance(codec, BytesBytesCodec):
        codec = codec.of_arrays()
    if not isinstance(codec, ArrayBytesCodec):
        raise MetadataError(
            f"codec '{codec.name}' cannot be used here", field="serializer", found=codec.name,
            accepted="a codec from arrays to bytes",
        )  # fmt: skip
    return codec


def _chunk_key_encoding(
    value: ChunkKeyEncoding | Mapping[str, Any] | str | None, default: ChunkKeyEncoding
) -> ChunkKeyEncoding:
    if value is None:
        return default
    if isinstance(value, ChunkKeyEncoding):
        return value
    if isinstance(value, str):
        return encoding_of(value, {})
    if not isinstance(value, Mapping):
        raise MetadataError(
            "not a chunk key encoding", field="chunk_key_encoding", found=value,
            accepted="a ChunkKeyEncoding, its name or its JSON",
        )  # fmt: skip
    options = {**value, **value.get("configuration", {})}
    name = options.pop("name", None)
    options.pop("configuration", None)
    if name is not None:
        return encoding_of(str(name), options)
    unknown = options.keys() - {"separator"}
    if unknown:
        raise MetadataError(
            "unknown field", field=f"chunk_key_encoding.{min(unknown)}", found=value,
            accepted="'name', 'separator'", advice=did_you_mean(min(unknown), ("name", "separator")),
        )  # fmt: skip
    return replace(default, separator=str(options.get("separator", "")))
