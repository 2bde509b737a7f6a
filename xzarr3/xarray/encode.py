"""Translates ``Variable.encoding`` to arguments of :func:`xzarr3.create_array`: the settings of an array.

A setting that the user asked for must not be ignored: it is used or refused. A setting that was kept from the
file that was read is left out where it does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from typing import Any

import numpy as np
from xarray import Variable
from xarray.coding import strings

from xzarr3.codecs.base import ArrayArrayCodec, BytesBytesCodec, Codec
from xzarr3.codecs.parsing import parse_codecs
from xzarr3.dtypes import VariableLengthUTF8, ZDType
from xzarr3.errors import ArgumentError, ArgumentTypeError, MetadataError, listed, one_of
from xzarr3.formats import Format
from xzarr3.names import hints
from xzarr3.nodes.auto_chunks import auto_chunks

_STORAGE_KEYS = (
    "chunks", "shards", "compressors", "filters", "serializer", "fill_value", "chunk_key_encoding",
    "write_empty_chunks", "order",
)  # fmt: skip
_VALUE_KEYS = (
    "dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "units", "calendar",
)  # fmt: skip
ENCODING_KEYS = (*_STORAGE_KEYS, *_VALUE_KEYS)
_IGNORED_KEYS = frozenset(("source", "original_shape", "preferred_chunks"))


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | ZDType:
    """The data type to pass to :func:`xzarr3.create_array` for encoded values of ``dtype``."""
    if dtype.kind == "T" or strings.check_vlen_dtype(dtype) is str:  # type: ignore[no-untyped-call]
        return VariableLengthUTF8()
    return dtype


def array_settings(
    variable: Variable, name: str, format: Format, *, explicit: bool, growing: Collection[Hashable] = ()
) -> dict[str, Any]:
    """Arguments for :func:`xzarr3.create_array` from the encoding of a variable.

    Parameters
    ----------
    variable : xarray.Variable
        With encoded values; the settings are in its ``encoding``.
    name : str
        Its name, for messages.
    format : Format
        The format to store it in.
    explicit : bool
        Whether the encoding was passed to ``to_zarr``. If so, settings that do not fit are refused. If not,
        the variable kept them from the file that it was read from, and those that do not fit are left out.
    growing : collection of str
        Dimensions along which appends are expected; default chunks leave room along them.

    Returns
    -------
    dict
        Some of ``chunks``, ``shards``, ``compressors``, ``filters``, ``serializer``, ``fill_value``,
        ``chunk_key_encoding``, ``order`` and ``write_empty_chunks``.

    Raises
    ------
    ValueError
        If an explicit encoding has unknown keys, or values that do not fit.
    TypeError
        If chunks or shards are not integers.
    """
    encoding = {key: value for key, value in variable.encoding.items() if key not in _IGNORED_KEYS}
    if encoding.get("_FillValue", ...) is None:
        del encoding["_FillValue"]
    if format.configures_as_numcodecs and "compressor" in encoding:
        if explicit and "compressors" in encoding:
            raise ArgumentError(
                f"encoding of variable {name!r} has 'compressor' and 'compressors'; give one of them"
            )
        encoding.setdefault("compressors", encoding.pop("compressor"))
    known = [key for key in _STORAGE_KEYS if not (format.fill_value_is_mask and key == "fill_value")]
    unknown = [key for key in encoding if key not in known]
    if unknown and explicit:
        hint = hints({key: encoding[key] for key in unknown})
        if "fill_value" in unknown:
            hint += "; in format 2 the fill value is the '_FillValue'"
        unused = [key for key in unknown if key in _VALUE_KEYS]
        if unused:
            hint += f"; {listed(unused)} cannot be applied to values of dtype {variable.dtype}"
        raise ArgumentError(
            f"unexpected encoding parameters for variable {name!r}: {unknown!r}{hint}; "
            f"{one_of(unknown[0], (*known, *_VALUE_KEYS))}"
        )
    settings = {key: encoding[key] for key in known if key in encoding}
    settings.update(_grid(variable, settings, name, explicit, growing))
    if format.configures_as_numcodecs or not explicit:
        settings.update(_pipeline(settings, format))
    if settings.get("fill_value") is None:
        settings.pop("fill_value", None)
        settings.update(usual_fill_value(variable.dtype, format))
    for key in ("write_empty_chunks", "order"):
        if settings.get(key, ...) is None:
            del settings[key]
    return settings


def usual_fill_value(dtype: np.dtype[Any], format: Format) -> dict[str, Any]:
    """The default fill value of a data type, if it is not the one of :func:`xzarr3.create_array`: NaN."""
    return {"fill_value": np.nan} if dtype.kind == "f" and not format.fill_value_is_mask else {}


def _pipeline(settings: Mapping[str, Any], format: Format) -> dict[str, Any]:
    """Filters and compressors, sorted by kind of codec.

    In version 2, filters may also contain bytes-to-bytes codecs, which are moved to the compressors, and the
    codec that turns strings into bytes, which is left out.
    """
    filters, compressors = settings.get("filters", "auto"), settings.get("compressors", "auto")
    if is_auto(filters):
        return {}
    try:
        codecs = parse_codecs(filters, Codec)
        if all(isinstance(codec, ArrayArrayCodec) for codec in codecs):
            return {}
        others = parse_codecs(
            format.default_compressor if is_auto(compressors) else compressors, BytesBytesCodec
        )
    except MetadataError:
        return {}  # Creating the array raises the error, or leaves them out.
    in_bytes = [codec for codec in codecs if isinstance(codec, BytesBytesCodec)]
    return {
        "filters": [codec for codec in codecs if isinstance(codec, ArrayArrayCodec)],
        "compressors": [*in_bytes, *others],
    }


def is_auto(value: object) -> bool:
    """Whether a setting is ``"auto"``."""
    return isinstance(value, str) and value == "auto"


def _grid(
    variable: Variable,
    settings: Mapping[str, Any],
    name: str,
    explicit: bool,
    growing: Collection[Hashable],
) -> dict[str, Any]:
    """The shapes of chunks and shards: from the settings, else from the dask array, else automatic."""
    given: dict[str, tuple[Any, ...] | None] = {}
    for key in ("chunks", "shards"):
        try:
            given[key] = _lengths(settings.get(key), key, variable.ndim, name)
        except TypeError:
            if explicit:
                raise
            given[key] = None
    for key, lengths in given.items():
        if lengths is None or len(lengths) == variable.ndim:
            continue
        if explicit:
            raise ArgumentError(
                f"encoding[{key!r}] of variable {name!r} has {len(lengths)} lengths, "
                f"the variable {variable.ndim} dimensions {variable.dims}: {lengths}; give one for each"
            )
        given[key] = None
    chunks, shards = given["chunks"], given["shards"]
    if not explicit:
        # Chunks of several lengths are an extension that not all readers support, so only if asked for.
        if chunks is not None and not all(isinstance(lengths, int) for lengths in chunks):
            chunks = None
        if shards is not None and not (chunks and _divides(chunks, shards)):
            shards = None
    if chunks is None and variable.chunks is not None:
        blocks = tuple(max(1, *sizes) for sizes in variable.chunks)
        if shards is None or _divides(blocks, shards):
            chunks = blocks
    if given["chunks"] is None and shards is None and any(dim in growing for dim in variable.dims):
        chunks = _with_room(variable, chunks, growing)
    return {"chunks": "auto" if chunks is None else chunks, "shards": shards}


_ROOM = 2**20  # Bytes of a chunk that is lengthened along growing dimensions, and its most elements there.
_LONGEST_ROOM = 4096


def _with_room(
    variable: Variable, chunks: tuple[int, ...] | None, growing: Collection[Hashable]
) -> tuple[int, ...]:
    """Chunks that are lengthened along growing dimensions which they cover as a single chunk."""
    itemsize = variable.dtype.itemsize
    lengths = list(auto_chunks(variable.shape, itemsize) if chunks is None else chunks)
    for axis, dim in enumerate(variable.dims):
        if dim in growing and lengths[axis] >= variable.shape[axis]:
            others = math.prod(lengths) // lengths[axis] * itemsize
            lengths[axis] = max(lengths[axis], min(_LONGEST_ROOM, _ROOM // max(others, 1)))
    return tuple(lengths)


def _divides(chunks: tuple[Any, ...], shards: tuple[Any, ...]) -> bool:
    return all(
        isinstance(chunk, int) and isinstance(shard, int) and chunk > 0 and shard % chunk == 0
        for chunk, shard in zip(chunks, shards, strict=True)
    )


def _lengths(value: Any, key: str, ndim: int, name: str) -> tuple[Any, ...] | None:
    """The length of chunks or shards along each dimension; for chunks, it may be a tuple of lengths."""
    if value is None or is_auto(value):
        return None
    if isinstance(value, (int, np.integer)):
        value = (value,) * ndim
    integers = (int, np.integer)
    if isinstance(value, (list, tuple)) and all(isinstance(item, integers) for item in value):
        return tuple(int(item) for item in value)
    nested = (list, tuple) if key == "chunks" else ()
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(item, integers)
        or (isinstance(item, nested) and all(isinstance(length, integers) for length in item))
        for item in value
    ):
        raise ArgumentTypeError(
            f"encoding[{key!r}] of variable {name!r} must be an integer, a tuple of integers"
            + (" and of tuples of them" if nested else "")
            + f", 'auto' or None; found {value!r}"
        )
    return tuple(
        int(item) if isinstance(item, integers) else tuple(int(length) for length in item) for item in value
    )
