"""Making arrays: from what a user asks for to metadata, and to a new array in a store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xzarr3.array import Array
from xzarr3.chunk_keys import ChunkKeyEncoding
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.chain import CodecChain
from xzarr3.codecs.registry import parse_codec, parse_codecs
from xzarr3.dtypes import ZDType, parse_dtype
from xzarr3.errors import MetadataError
from xzarr3.formats import v3
from xzarr3.grids import RegularGrid, as_lengths
from xzarr3.metadata import ArrayMetadata, check_shape
from xzarr3.nodes import document_lock, make_groups_above, make_room, write_document
from xzarr3.stores import Store

_AUTO_CHUNK = 4 * 2**20  # Bytes of a chunk where the user leaves its shape to us.


def auto_chunks(shape: tuple[int, ...], itemsize: int, limit: int = _AUTO_CHUNK) -> tuple[int, ...]:
    """A chunk shape of at most ``limit`` bytes: the longest dimension is halved until it fits.

    Examples
    --------
    >>> auto_chunks((8760, 721, 1440), 4)
    (69, 91, 90)
    """
    chunks = [max(1, length) for length in shape]
    while math.prod(chunks) * itemsize > limit and max(chunks) > 1:
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def _lengths(value: Any, shape: tuple[int, ...], field: str) -> tuple[int, ...]:
    """Chunk lengths as a user gives them: one for all dimensions, or one for each; -1 means all of it."""
    given = [value] * len(shape) if isinstance(value, (int, np.integer)) else list(value)
    if len(given) != len(shape) or not all(isinstance(n, (int, np.integer)) for n in given):
        raise MetadataError(
            f"the array has {len(shape)} dimensions",
            field=field,
            found=value,
            accepted=f"{len(shape)} integers",
        )
    lengths = tuple(max(size, 1) if n == -1 else int(n) for n, size in zip(given, shape, strict=True))
    if any(n < 1 for n in lengths):
        raise MetadataError("not a chunk shape", field=field, found=value, accepted="integers of at least 1")
    return lengths


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
) -> ArrayMetadata:
    """The metadata of a new array; see :func:`xzarr3.create_array` for the parameters.

    Raises
    ------
    MetadataError
        If they do not fit together.
    """
    try:
        sizes = as_lengths(shape)
    except TypeError as error:
        raise MetadataError(
            "not a shape", field="shape", found=shape, accepted="integers of at least 0"
        ) from error
    check_shape(sizes)
    data_type = parse_dtype(dtype)
    fill = data_type.default_scalar() if fill_value is None else data_type.cast_scalar(fill_value)
    automatic = isinstance(chunks, str) and chunks == "auto"
    lengths = auto_chunks(sizes, data_type.item_size) if automatic else _lengths(chunks, sizes, "chunks")
    codecs: tuple[Codec, ...] = (
        *parse_codecs(() if _is_auto(filters) else filters, ArrayArrayCodec),
        _serializer(serializer),
        *parse_codecs("zstd" if _is_auto(compressors) else compressors, BytesBytesCodec),
    )
    units = lengths
    if shards is not None:
        from xzarr3.codecs.sharding import ShardingCodec

        units = _lengths(shards, sizes, "shards")
        if automatic:
            lengths = _divided(lengths, units)
        codecs = (ShardingCodec(lengths, codecs),)
    grid = RegularGrid(units)
    grid.check(sizes)
    names = None if dimension_names is None else tuple(dimension_names)
    if names is not None and (
        len(names) != len(sizes) or not all(n is None or isinstance(n, str) for n in names)
    ):
        raise MetadataError(
            f"the array has {len(sizes)} dimensions", field="dimension_names", found=list(names),
            accepted=f"{len(sizes)} strings or None",
        )  # fmt: skip
    return ArrayMetadata(
        shape=sizes,
        data_type=data_type,
        chunk_grid=grid,
        chunk_key_encoding=_chunk_key_encoding(chunk_key_encoding),
        fill_value=fill,
        # The chain has filled in what the codecs left open, such as blosc's size of an element.
        codecs=CodecChain(codecs, ChunkSpec(units, data_type, fill)).codecs,
        attributes=v3.plain_attributes(attributes or {}),
        dimension_names=names,
    )


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _serializer(value: Any) -> ArrayBytesCodec:
    codec = parse_codec("bytes" if _is_auto(value) or value is None else value)
    if not isinstance(codec, ArrayBytesCodec):
        raise MetadataError(
            f"codec '{codec.name}' cannot be used here", field="serializer", found=codec.name,
            accepted="a codec from arrays to bytes",
        )  # fmt: skip
    return codec


def _divided(lengths: tuple[int, ...], units: tuple[int, ...]) -> tuple[int, ...]:
    """The largest lengths, none above ``lengths``, that divide ``units`` evenly."""
    return tuple(
        next(n for n in range(min(length, unit), 0, -1) if unit % n == 0)
        for length, unit in zip(lengths, units, strict=True)
    )


def _chunk_key_encoding(value: ChunkKeyEncoding | Mapping[str, Any] | str | None) -> ChunkKeyEncoding:
    if value is None:
        return ChunkKeyEncoding()
    if isinstance(value, ChunkKeyEncoding):
        return value
    if isinstance(value, str):
        return ChunkKeyEncoding(value)
    options = {**value, **value.get("configuration", {})}
    return ChunkKeyEncoding(str(options.get("name", "default")), str(options.get("separator", "")))


def make_array(
    store: Store,
    path: str,
    *,
    shape: int | Sequence[int] | None = None,
    dtype: ZDType | npt.DTypeLike | None = None,
    data: npt.ArrayLike | None = None,
    write_empty_chunks: bool = False,
    overwrite: bool = False,
    zarr_format: int = 3,
    **options: Any,
) -> Array:
    """Make an array at a path that was checked, and the groups above it."""
    if zarr_format != 3:
        raise MetadataError(
            "not a format that can be written",
            path=path,
            field="zarr_format",
            found=zarr_format,
            accepted="3",
        )
    values = None if data is None else np.asanyarray(data)
    if values is not None:
        shape = values.shape if shape is None else shape
        dtype = values.dtype if dtype is None else dtype
    if shape is None or dtype is None:
        raise MetadataError(
            "an array needs a shape and a data type", path=path, field="shape" if shape is None else "dtype",
            accepted="'shape' and 'dtype', or 'data'",
        )  # fmt: skip
    try:
        meta = array_metadata(shape=shape, dtype=dtype, **options)
    except MetadataError as error:
        error.at(path=path)
        raise
    array = Array(store, path, meta, write_empty_chunks=write_empty_chunks)
    if values is not None:  # What cannot be stored is found before anything that is there is replaced.
        values = array.fitted(values, array.shape)
    with document_lock:
        make_room(store, path, overwrite=overwrite)
        make_groups_above(store, path)
        write_document(store, path, meta)
    if values is not None:
        array[...] = values
    return array
