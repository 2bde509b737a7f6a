"""Creates arrays: turns the options of ``create_array`` into metadata and writes the new node.

Values go in after the documents. Values that cannot be stored raise before an existing node is replaced. Dask
arrays are handed to :mod:`xzarr3.dask.creating`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.commit.recover import settle
from xzarr3.dtypes import ZDType, parse_dtype
from xzarr3.errors import ArgumentTypeError, MetadataError, listed
from xzarr3.formats import Format, ZarrFormat
from xzarr3.formats.nonfinite_attributes import Telling, finite_attributes
from xzarr3.grid import as_lengths
from xzarr3.names import hint
from xzarr3.nodes.array_settings import array_metadata, is_auto
from xzarr3.nodes.create import make_node
from xzarr3.nodes.find import DocumentView
from xzarr3.stores import Store

_OF_THE_GROUP = frozenset(("zarr_format", "storage_options"))
"""Options of ``create_array`` that a group decides for the arrays in it."""


def _values(data: npt.ArrayLike, dtype: ZDType | npt.DTypeLike | None, format: Format, path: str) -> AnyArray:
    """The values for a new array; numpy alone would not recognise strings, bytes and structs in lists."""
    try:
        if dtype is None or np.ma.is_masked(data):
            return np.asanyarray(data)
        return parse_dtype(dtype, zarr_format=format.zarr_format).in_native_order().cast_array(data)
    except MetadataError as error:
        error.at(path=path, field="data" if error.field is None else None)
        raise
    except (TypeError, ValueError, ArithmeticError) as error:  # lists of unequal lengths, for example
        raise MetadataError(f"not an array: {error}", path=path, field="data", found=data) from error


def _unwrapped(data: Any, path: str) -> tuple[Any, tuple[Any, ...] | None, Mapping[str, Any] | None]:
    """Values, dimension names and attributes of an xarray object; the last two are None for other data."""
    xarray = sys.modules.get("xarray")  # None if not imported: then the data is no xarray object
    if xarray is not None and isinstance(data, (xarray.DataArray, xarray.Variable)):
        return data.data, data.dims, finite_attributes(data.attrs, path)
    return data, None, None


def _given(asked: Any, found: Any) -> Any:
    return found if asked is None else asked


def _check_known(options: Mapping[str, Any]) -> None:
    """Raise if an option for a new array does not exist; the error says which to use."""
    code = array_metadata.__code__
    known = {*code.co_varnames[: code.co_kwonlyargcount], "data", "write_empty_chunks", "overwrite"}
    unknown = [name for name in options if name not in known or name == "format"]
    if unknown:
        given = [name for name in unknown if name in _OF_THE_GROUP]
        found = [f"leave {name!r} out, because a new array takes that of the group" for name in given]
        found += (hint(name, sorted(known - {"format"}), options) for name in unknown if name not in given)
        text = "; ".join(dict.fromkeys(found))
        raise ArgumentTypeError(f"create_array() of a group has no argument {listed(unknown)}; {text}")


def _take_blocks(data: Any, shape: object, options: dict[str, Any], path: str) -> None:
    """Take the lengths of the blocks of a dask array as chunks, if neither these nor a shape are given."""
    from xzarr3.dask.creating import block_lengths

    lengths = block_lengths(data, path)
    chunks = options.get("chunks")
    is_left_open = chunks is None or chunks is True or is_auto(chunks)
    if is_left_open and options.get("shards") is None and shape is None:
        options["chunks"] = lengths


def make_array(
    store: Store,
    format: Format,
    path: str,
    *,
    shape: int | Sequence[int] | None = None,
    dtype: ZDType | npt.DTypeLike | None = None,
    data: Any = None,
    write_empty_chunks: bool = False,
    overwrite: bool = False,
    look: DocumentView | None = None,
    **options: Any,
) -> Array:
    """Create an array, and the groups above it; the caller has checked the path.

    Raises
    ------
    TypeError
        If one of ``options`` is no parameter of :func:`xzarr3.create_array`.
    """
    _check_known(options)
    with Telling():
        data, names, described = _unwrapped(data, path)
    if shape is None or (names is not None and len(as_lengths(shape)) == len(names)):
        options["dimension_names"] = _given(options.get("dimension_names"), names)
    options["attributes"] = _given(options.get("attributes"), described)
    lazy = isinstance(data, getattr(sys.modules.get("dask.array"), "Array", ()))
    if lazy:
        _take_blocks(data, shape, options, path)
    values: Any = data if lazy or data is None else _values(data, dtype, format, path)
    if values is not None:
        shape = values.shape if shape is None else shape
        dtype = values.dtype if dtype is None else dtype
    if shape is None or dtype is None:
        raise MetadataError(
            "an array needs a shape and a data type", path=path, field="shape" if shape is None else "dtype",
            accepted="'shape' and 'dtype', or 'data'",
        )  # fmt: skip
    try:
        meta = array_metadata(shape=shape, dtype=dtype, format=format, **options)
    except MetadataError as error:
        error.at(path=path)
        raise
    if lazy:
        from xzarr3.dask.creating import make_array_of_blocks

        return make_array_of_blocks(
            store, format, path, meta, values, write_empty_chunks=write_empty_chunks, overwrite=overwrite
        )
    array = Array(store, path, meta, format=format, write_empty_chunks=write_empty_chunks)
    if values is not None:  # values that cannot be stored raise here, before an existing node is replaced
        values = array.fitted(values, array.shape)
    if settle(store, path):
        look = None
    make_node(store, format, path, meta, overwrite=overwrite, look=look)
    if values is not None:
        array[...] = values
    return array


def zero_of(dtype: ZDType | npt.DTypeLike) -> object:
    """Zero of a data type, as numpy has it: of datetimes the start of 1970; None for what has no zero."""
    native = parse_dtype(dtype).to_native_dtype()
    return None if native.kind == "O" else np.zeros((), native)[()]


def fill_like(a: Any) -> object:
    """The fill value of an array; None for other arrays than those of a store."""
    return a.fill_value if isinstance(a, Array) else None


def settings_like(a: Any, *, zarr_format: ZarrFormat | None = None, **_: Any) -> dict[str, Any]:
    """The settings of an array that one like it takes; its codecs only in the same format."""
    if isinstance(a, Array):
        found: dict[str, Any] = {"shape": a.shape, "dtype": a.zdtype, "chunks": a.chunks, "shards": a.shards}
        if a.format.answers_to(zarr_format):
            codecs = {"filters": a.filters, "serializer": a.serializer, "compressors": a.compressors}
            found.update(codecs, zarr_format=a.zarr_format)
        return found
    if not hasattr(a, "shape") or not hasattr(a, "dtype"):
        a = np.asarray(a)
    chunks = getattr(a, "chunks", None)
    if isinstance(chunks, Mapping) or chunks is None or len(chunks) != len(a.shape):
        return {"shape": a.shape, "dtype": a.dtype}
    lengths = [along if isinstance(along, int) else max(1, *along) for along in chunks]
    return {"shape": a.shape, "dtype": a.dtype, "chunks": lengths}
