"""Creates arrays: turns the options of ``create_array`` into metadata and writes the new node.

Values go in after the documents, unless they replace a node: that stays until all of them are stored. Dask
arrays are handed to :mod:`xzarr3.dask.write`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.arrays import Array
from xzarr3.conventions.nonfinite_attributes import finite_attributes
from xzarr3.dtypes import ZDType, parse_dtype
from xzarr3.dtypes.base import holds_masks, stacked
from xzarr3.errors import (
    ArgumentTypeError,
    MetadataError,
    NodeTypeError,
    Xzarr3Error,
    listed,
    located,
    shorten,
)
from xzarr3.formats import Format, ZarrFormat, documents
from xzarr3.formats.base import fits, node_prefix
from xzarr3.grid import as_lengths
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.names import hint
from xzarr3.nodes.array_settings import array_metadata, is_auto
from xzarr3.nodes.consolidated import refresh_consolidated
from xzarr3.nodes.erase import orphans_of
from xzarr3.nodes.find import DocumentView
from xzarr3.nodes.freshness import check_read, note_place
from xzarr3.nodes.node import ancestors, check_new_path
from xzarr3.quantities import check_switches
from xzarr3.stores import Store

_OF_THE_GROUP = frozenset(("zarr_format", "storage_options"))
"""Options of ``create_array`` that a group decides for the arrays in it."""


def _values(data: npt.ArrayLike, dtype: ZDType | npt.DTypeLike | None, format: Format, path: str) -> AnyArray:
    """The values for a new array; numpy alone would not recognise strings, bytes and structs in lists."""
    try:
        if holds_masks(data):
            data = stacked(data)
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


def _check_known(options: Mapping[str, Any]) -> None:
    """Raise if an option for a new array does not exist; the error says which to use."""
    code = array_metadata.__code__
    known = {*code.co_varnames[: code.co_kwonlyargcount], "data", "write_empty_chunks", "overwrite"}
    known -= {"format", "literal"}
    unknown = [name for name in options if name not in known]
    if unknown:
        given = [name for name in unknown if name in _OF_THE_GROUP]
        found = [f"leave {name!r} out, because a new array takes that of the group" for name in given]
        found += (hint(name, sorted(known), options) for name in unknown if name not in given)
        text = "; ".join(dict.fromkeys(found))
        raise ArgumentTypeError(f"create_array() of a group has no argument {listed(unknown)}; {text}")


def _take_blocks(data: Any, shape: object, options: dict[str, Any], path: str) -> None:
    """Take the lengths of the blocks of a dask array as chunks, if neither these nor a shape are given."""
    from xzarr3.dask.write import block_lengths

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
    check_switches(overwrite=overwrite)
    array, values = _planned(store, format, path, **options)
    _create(array, values, overwrite=overwrite, look=look)
    return array


def _create(array: Array, values: Any, *, overwrite: bool = False, look: DocumentView | None = None) -> None:
    store, format, path = array.store, array.format, array.path
    if overwrite or (values is not None and _is_lazy(values)):
        _put(store, format, path, {path: array.metadata}, [(array, values)], overwrite=overwrite)
        return
    _make_node(store, format, path, array.metadata, look, partial(_fill, array, values))


def _fill(array: Array, values: Any) -> None:
    """Write the values of an array that was just made; after an error, the array goes.

    So nobody reads fill values in place of what could not be stored.
    """
    note_place(array)
    try:
        if values is not None:
            _write(values, array)
    except BaseException as error:
        store, format, path = array.store, array.format, array.path
        try:
            check_read(array)  # Another writer may have replaced it.
            store.erase(*format.documents(array.metadata, path))
            store.erase(*orphans_of(store, format, path, array.metadata))
            refresh_consolidated(store, format, [path])  # Of a change of its attributes meanwhile.
        except Xzarr3Error as another:
            error.add_note(
                f"the new array '{array.name}' may still be in {store}, with fill values for what was not "
                f"stored: {another}; pass overwrite=True to write it again"
            )
        raise


def _write(values: Any, target: Array) -> None:
    if isinstance(values, Array):
        from xzarr3.copying.values import copy_values

        copy_values(values, target)
    elif _is_lazy(values):
        from xzarr3.dask.write import write_blocks

        write_blocks(values, target)
    else:
        target[...] = values


def _make_node(
    store: Store,
    format: Format,
    path: str,
    metadata: NodeMetadata,
    look: DocumentView | None,
    fill: Callable[[], object] = lambda: None,
) -> None:
    """Create a node where there is none, once an unfinished swap there is completed."""
    from xzarr3.commit.create import make_node
    from xzarr3.commit.recover import settle

    make_node(store, format, path, metadata, look=None if settle(store, path) else look, fill=fill)


def make_nodes(
    store: Store,
    format: Format,
    path: str,
    data: Mapping[str, Any],
    *,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    look: DocumentView | None = None,
) -> GroupMetadata:
    """Create a group with arrays of these values, by path relative to the group, whose path is checked.

    All values are checked before anything is stored. Returns the metadata of the group.
    """
    check_switches(overwrite=overwrite)
    own = documents.plain_attributes({} if attributes is None else attributes, path)
    group = GroupMetadata(attributes=own, zarr_format=format.zarr_format)
    nodes: dict[str, NodeMetadata] = {path: group}
    planned = []
    for name, values in data.items():
        full = node_prefix(path) + check_new_path(name, format)
        above = [each for each in ancestors(full) if each.startswith(node_prefix(path)) and each != path]
        if any(isinstance(nodes.get(each), ArrayMetadata) for each in above) or full in nodes:
            raise NodeTypeError(
                f"cannot save an array as {name!r}, as another one is saved at or above that path; choose "
                "another name"
            )
        if not format.implicit_groups:
            nodes.update((each, group) for each in above)
        planned.append(_planned(store, format, full, data=values))
        nodes[full] = planned[-1][0].metadata
    if overwrite:
        _put(store, format, path, nodes, planned, overwrite=True)
        return group
    _make_node(store, format, path, group, look)
    for array, values in planned:
        _create(array, values)
    return group


def _planned(
    store: Store,
    format: Format,
    path: str,
    *,
    shape: int | Sequence[int] | None = None,
    dtype: ZDType | npt.DTypeLike | None = None,
    data: Any = None,
    write_empty_chunks: bool = False,
    **options: Any,
) -> tuple[Array, Any]:
    """A new array that is not stored yet, and its values, if any: converted, or a dask array or an array."""
    _check_known(options)
    check_switches(write_empty_chunks=write_empty_chunks)
    data, names, described = _unwrapped(data, path)
    if "dask_array" in sys.modules:
        from xzarr3.dask.write import with_graph

        data = with_graph(data)
    fits_names = shape is None or (names is not None and len(as_lengths(shape)) == len(names))
    if fits_names and options.get("dimension_names") is None:
        options["dimension_names"] = names
    if options.get("attributes") is None:
        options["attributes"] = described
    lazy = _is_lazy(data)
    if lazy:
        _take_blocks(data, shape, options, path)
    # The values of an array in a store need not fit into memory, unless they are needed for more than a copy.
    is_plain = isinstance(data, Array) and data.missing == "fill" and not write_empty_chunks
    is_plain = is_plain and store.traits.visible != "at commit"
    is_copied = is_plain and (shape is None or as_lengths(shape) == data.shape)
    values: Any = data if lazy or is_copied or data is None else _values(data, dtype, format, path)
    if values is not None:
        shape = values.shape if shape is None else shape
        dtype = values.dtype if dtype is None else dtype
    if shape is None or dtype is None:
        raise MetadataError(
            "an array needs a shape and a data type", path=path, field="shape" if shape is None else "dtype",
            accepted="'shape' and 'dtype', or 'data'",
        )  # fmt: skip
    with located(path=path):
        meta = array_metadata(shape=shape, dtype=dtype, format=format, literal=True, **options)
    array = Array(store, path, meta, format=format, write_empty_chunks=write_empty_chunks)
    if not (values is None or lazy or is_copied):  # what cannot be stored raises here, before anything is
        values = array.fitted(values, array.shape)
    return array, values


def _is_lazy(data: Any) -> bool:
    """Whether data is a dask array."""
    return isinstance(data, getattr(sys.modules.get("dask.array"), "Array", ()))


def _put(
    store: Store,
    format: Format,
    path: str,
    nodes: Mapping[str, NodeMetadata],
    arrays: Sequence[tuple[Array, Any]],
    *,
    overwrite: bool,
) -> None:
    """Create a node at ``path`` and those below it, by path, and write the values of the arrays among them.

    A node that is replaced stays in place until all values are stored, because they may be computed from it.
    After an error it is still there.
    """
    from xzarr3.commit.replace import transaction, write
    from xzarr3.commit.transaction import NewNode

    lazy = [values for _, values in arrays if _is_lazy(values)]
    if lazy:
        from xzarr3.dask.write import check_writable

        check_writable(store, path, lazy, overwrite=overwrite)
    new = transaction(store, NewNode.of(format, path, nodes), overwrite=overwrite, how="overwrite=True")
    with write(new):
        for array, values in arrays:
            options: Any = {"format": format, "write_empty_chunks": array.write_empty_chunks}
            if values is not None:
                _write(values, Array(new.store, array.path, array.metadata, **options))
    for array, _ in arrays:
        note_place(array)


def zero_of(dtype: ZDType | npt.DTypeLike) -> object:
    """Zero of a data type, as numpy has it: of datetimes the start of 1970; None for what has no zero."""
    native = parse_dtype(dtype).value_dtype
    return None if native.kind == "O" else np.zeros((), native)[()]


ZERO = object()
"""The zero of a data type, whatever it is."""


def filled(shape: Any, fill_value: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an array that has one value everywhere; :data:`ZERO` stands for its zero.

    Raises
    ------
    ArgumentTypeError
        If the options have a fill value, too.
    """
    if "fill_value" in options:
        raise ArgumentTypeError(
            f"fill_value={shorten(options['fill_value'])} for an array of zeros or ones; leave it out, or "
            "use full() or full_like()"
        )
    if fill_value is ZERO:
        fill_value = zero_of(options.get("dtype", "float64"))
    return dict(shape=shape, fill_value=fill_value, **{"dtype": "float64", **options})


def like(
    a: Any, fill_value: object, options: Mapping[str, Any], zarr_format: ZarrFormat | None = None
) -> dict[str, Any]:
    """The options of an array like another one that has one value; :data:`ZERO` stands for its zero."""
    found = {**settings_like(a, zarr_format=zarr_format or options.get("zarr_format")), **options}
    return filled(found.pop("shape"), fill_value, found)


def fill_like(a: Any) -> object:
    """The fill value of an array; None for other arrays than those of a store."""
    return a.fill_value if isinstance(a, Array) else None


KEEP = "keep"


def is_keep(value: object) -> bool:
    """Whether a setting is that of the array that is copied."""
    return isinstance(value, str) and value == KEEP


def settings_like(a: Any, *, zarr_format: ZarrFormat | None = None, **_: Any) -> dict[str, Any]:
    """The settings of an array that one like it takes; its codecs only in the same format."""
    if isinstance(a, Array):
        found: dict[str, Any] = {"shape": a.shape, "dtype": a.zdtype, "chunks": a.chunks, "shards": a.shards}
        if fits(a.format, zarr_format):
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
