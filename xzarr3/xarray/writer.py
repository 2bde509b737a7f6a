"""Writing xarray's datasets: :func:`to_zarr`.

Everything is worked out and checked before the first byte is written. Then data come first, in a place of
their own where there is something to replace, and documents after them, that of the group last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

import dask
import dask.threaded
import numpy as np
from dask._task_spec import Alias, Task, TaskRef
from dask.base import get_scheduler
from dask.delayed import Delayed, delayed
from xarray import DataArray, Dataset, Variable, conventions
from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE

from xzarr3.array import Array
from xzarr3.concurrency import spread
from xzarr3.conventions import encode_fill_value, fill_value_is_mask
from xzarr3.creation import array_metadata
from xzarr3.dask import store as store_blocks
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import (
    DataTypeValidationError,
    InvalidKeyError,
    MetadataError,
    listed,
    shorten,
)
from xzarr3.formats import Format, ZarrFormat, documents, parse_format
from xzarr3.formats.base import Held, node_prefix
from xzarr3.grids import Edges, Steps
from xzarr3.group import Group
from xzarr3.lookup import find_format, format_for_new
from xzarr3.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.node_documents import store_documents
from xzarr3.nodes import check_new_path, normal_path
from xzarr3.replacement import Replacement
from xzarr3.staging import format_aside
from xzarr3.stores import Store, StoreLike, in_flight, open_store
from xzarr3.xarray.encoding import (
    array_settings,
    encode_attributes,
    encode_values,
    make_from_kept,
    stored_dtype,
)

_MODES = ("w", "w-")
_RESERVED = ("__zarr", ".xzarr3-")
_UNNAMED = "__values__"  # xarray's name in stores for a variable whose name is None.


@overload
def to_zarr(
    dataset: Dataset | DataArray,
    store: StoreLike,
    *,
    group: str | None = ...,
    mode: Literal["w", "w-"] | None = ...,
    encoding: Mapping[Any, Mapping[str, Any]] | None = ...,
    consolidated: bool | None = ...,
    compute: Literal[True] = ...,
    write_empty_chunks: bool | None = ...,
    zarr_format: ZarrFormat | None = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> Group: ...


@overload
def to_zarr(
    dataset: Dataset | DataArray,
    store: StoreLike,
    *,
    group: str | None = ...,
    mode: Literal["w", "w-"] | None = ...,
    encoding: Mapping[Any, Mapping[str, Any]] | None = ...,
    consolidated: bool | None = ...,
    compute: Literal[False],
    write_empty_chunks: bool | None = ...,
    zarr_format: ZarrFormat | None = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> Delayed: ...


def to_zarr(
    dataset: Dataset | DataArray,
    store: StoreLike,
    *,
    group: str | None = None,
    mode: Literal["w", "w-"] | None = "w-",
    encoding: Mapping[Any, Mapping[str, Any]] | None = None,
    consolidated: bool | None = None,
    compute: bool = True,
    write_empty_chunks: bool | None = None,
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Group | Delayed:
    """Write a dataset or a data array to a Zarr store.

    What is written reads back the same with ``engine="xzarr3"`` and with xarray's own ``engine="zarr"``.
    Nothing is written before everything is known to fit. With ``mode="w"`` the old dataset stays in
    place until all new data are stored, so that it may even be what ``dataset`` reads from. If something
    fails, it is put back.

    Parameters
    ----------
    dataset : xarray.Dataset or xarray.DataArray
    store : path, file URL or Store
    group : str, optional
        Path of the group to write to; the root by default. Groups above are made if they are not there.
    mode : {"w-", "w"}
        ``w-`` writes only where there is nothing yet; ``w`` replaces a group with all that is below it.
    encoding : mapping of str to mapping, optional
        How to store variables, by name, in place of what their own ``encoding`` says: ``chunks``,
        ``shards``, ``compressors``, ``filters``, ``serializer``, ``fill_value``, ``chunk_key_encoding``,
        ``write_empty_chunks``, ``order``; and for the values ``dtype``, ``scale_factor``, ``add_offset``,
        ``_FillValue``, ``missing_value``, ``units``, ``calendar``. ``chunks`` may have for a dimension
        the lengths of its chunks, if the format can say that.
    consolidated : bool, optional
        Whether the root shall hold the documents of all nodes; it does by default, if the format knows
        of that. Copies that are there already are kept true in any case.
    compute : bool
        Write now; otherwise return a Delayed that writes everything, documents too, when computed.
    write_empty_chunks : bool, optional
        Store chunks that hold only the fill value as well; they are left out by default.
    zarr_format : {3, 2, "3-draft"}, optional
        By default that of what is there, and 3 where there is nothing. In 2 the fill value of an array
        is its ``_FillValue``, as xarray has it.
    storage_options : mapping, optional
        What the store takes besides; see :func:`xzarr3.open_store`.

    Returns
    -------
    Group or dask.delayed.Delayed
        The group that was written.

    Raises
    ------
    NodeExistsError
        If something is there and ``mode`` is ``w-``, or what is there is not all Zarr.
    ValueError, TypeError
        If the dataset, or what is asked for it, cannot be stored; :class:`MetadataError` is one of these
        and names the variable and the attribute or setting.
    StoreError
        If the store cannot be written. The old dataset is then still there, or none.

    Notes
    -----
    Dask arrays need not be chunked as they are stored: blocks are put together or cut so that no two tasks
    write to the same shard or chunk.

    In a directory, new data lie in ``.xzarr3-staged-<id>/new`` at its top until they are whole. Then old
    directories are renamed to ``.xzarr3-staged-<id>/old``, the new ones to their places, and ``old`` is
    removed last. Between the renames readers find no group: for a group below the root that is two renames,
    for the root one for each variable. (The draft of version 3 keeps a group in three places and has groups
    without documents, so that a reader may find it without its attributes for a moment, and in stores that
    cannot rename without some of its arrays.) A process that is killed leaves the old dataset, the new one
    or, within the renames, none and both of them in that directory; the write can be repeated with
    ``mode="w"`` in every case. The directory goes with a later call of this function for the same store once
    it has not changed for a day; if it holds what was replaced, only with one that replaces the same group.

    Other stores cannot rename. There the old values are first copied to keys that begin in the same way,
    then erased, then the new values are copied to their places. What a killed process leaves of that is
    recognized and removed as it is in a directory.

    Others may write to the same place at the same time. In a directory, what has appeared there since the
    call is put back, and the write fails, if it is no part of a Zarr hierarchy, or whatever it is if ``mode``
    is ``w-``; only of two processes that rename the same document within microseconds, the last one wins.
    Other stores that can erase hold a reservation of the place, a key ``.xzarr3-staged-<hash>/owner``, during
    a first write and while something is replaced; other calls for this group then raise NodeExistsError.
    Groups above and below it have places of their own. Between processes a reservation is as sure as the
    conditional puts of the store are; zips have none, but one writer. That of a killed process is ignored on
    the same host, and elsewhere after a day, or once its key is removed by hand. A write fails if it stored
    nothing for a day and another one has removed what it had stored before.

    Examples
    --------
    >>> import xarray as xr, xzarr3
    >>> ds = xr.Dataset({"t": ("time", np.array([280.5, np.nan]))}, coords={"time": [0, 1]})
    >>> store = xzarr3.MemoryStore()
    >>> to_zarr(ds, store, encoding={"t": {"dtype": "int16", "scale_factor": 0.1, "_FillValue": -999}})
    <xzarr3.Group / of <MemoryStore, 5 keys>>
    >>> xzarr3.open_array(store, "t")[:].tolist()
    [2805, -999]
    """
    if mode is None:
        mode = "w-"
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r} is not supported by to_zarr; accepted: {listed(_MODES)}")
    if zarr_format is not None:
        parse_format(zarr_format)
    path = normal_path(group or "")
    opened = open_store(store, storage_options, mode="a")
    with ExitStack() as ours:
        if opened is not store:  # A zip is complete once it is closed, and as it was before after an error.
            ours.enter_context(opened)
        write, blocks = _planned_write(
            dataset, opened, path, mode, encoding or {}, consolidated, write_empty_chunks, zarr_format
        )
        if not compute:
            ours.pop_all()
            begun = delayed(write.begin, pure=False)()
            if blocks is not None:
                blocks = _after(begun, blocks)
            later: Delayed = delayed(partial(_finished, write, None if opened is store else opened))(
                begun, blocks
            )
            return later
        write.begin()
        if blocks is not None:
            try:
                blocks.compute(**_workers(opened, dataset))
            except BaseException as error:
                write.discard(error)
                raise
        write.finish()
    return write.group()


def _after(begun: Delayed, blocks: Delayed) -> Delayed:
    """What writes blocks, once the write has begun."""
    tasks = dict(blocks.dask)
    for name in tasks[blocks.key].dependencies:
        key = name
        while isinstance(tasks[key], Alias):  # Of a task that was fused with others.
            (key,) = tasks[key].dependencies
        tasks[key] = Task(key, _second, TaskRef(begun.key), tasks[key])
    return Delayed(blocks.key, {**tasks, **begun.dask})


def _second(first: object, second: object) -> object:
    return second


def _finished(write: _Write, opened: Store | None, begun: object, blocks: object) -> None:
    """Finish a write that has begun and whose blocks were written, and close a store opened for it."""
    with opened or nullcontext():
        write.finish()


def _workers(store: Store, dataset: Dataset | DataArray) -> dict[str, int]:
    """How many of dask's threads write at a time, where the user leaves it open and they have to wait."""
    set_up = dask.config.get("num_workers", None) or dask.config.get("pool", None)
    if store.concurrency <= 1 or set_up or get_scheduler() not in (None, dask.threaded.get):
        return {}
    variables = _as_dataset(dataset).variables.values()
    blocks = [math.prod(map(max, var.chunks)) * var.dtype.itemsize for var in variables if var.chunks]
    return {"num_workers": in_flight.at_once(store.concurrency, 4 * max(blocks, default=0))}


def _planned_write(
    dataset: Dataset | DataArray,
    opened: Store,
    path: str,
    mode: str,
    encoding: Mapping[Any, Mapping[str, Any]],
    consolidated: bool | None,
    write_empty_chunks: bool | None,
    zarr_format: ZarrFormat | None,
) -> tuple[_Write, Delayed | None]:
    """A write with everything that is not in dask arrays, and what writes these."""
    if "\\" in path:
        raise InvalidKeyError(f"invalid name {path!r} of a group; accepted: one with no '\\' in it")
    for part in path.split("/"):
        _check_reserved(part)
    format = _format(opened, path, zarr_format)
    if consolidated and format.consolidated_key("") is None:
        raise format.refuse("", "consolidated_metadata", "consolidated=True", "consolidated=None or False")
    check_new_path(path, format)
    planned, attributes = _plan(_as_dataset(dataset), format, path, encoding, write_empty_chunks)
    lazy = [var for var in planned if hasattr(var.data, "__dask_graph__")]
    eager = [replace(var, data=None) if var in lazy else var for var in planned]
    if consolidated is None:
        consolidated = not path or opened.listable  # The documents of other groups have to be found.
    write = _Write(opened, format, path, mode, eager, attributes, consolidated)
    targets = [write.array(var) for var in lazy]
    sources = [
        _aligned(var.data, target.metadata.chunk_grid.axes) for var, target in zip(lazy, targets, strict=True)
    ]
    blocks = store_blocks(sources, targets, compute=False) if lazy else None
    return write, blocks


def _format(store: Store, path: str, zarr_format: ZarrFormat | None) -> Format:
    """The format in which to write at ``path``."""
    if path:
        return format_for_new(store, path, zarr_format)
    if zarr_format is not None:
        return parse_format(zarr_format)
    try:
        found = find_format(store, "") or format_aside(store)
    except MetadataError:  # Whatever is there is in nobody's way, or is replaced.
        found = None
    return found if found is not None and found.writable else parse_format(3)


def _as_dataset(data: Dataset | DataArray) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, DataArray):
        raise TypeError(f"not a dataset: {type(data).__name__}; accepted: xarray.Dataset, xarray.DataArray")
    if data.name is not None and data.name not in data.coords and data.name not in data.dims:
        return data.to_dataset()
    # The names by which xarray.open_dataarray finds an array without a usable name.
    dataset = data.to_dataset(name=DATAARRAY_VARIABLE)
    if data.name is not None:
        dataset.attrs[DATAARRAY_NAME] = data.name
    return dataset


# Before the first byte


@dataclass(frozen=True, eq=False)
class _Planned:
    """A variable with encoded values, None once they are on their way, and the array it will be.

    ``stored`` are its documents by key.
    """

    name: str
    data: Any
    metadata: ArrayMetadata
    stored: dict[str, bytes]
    write_empty_chunks: bool


def _plan(
    dataset: Dataset,
    format: Format,
    path: str,
    encoding: Mapping[Any, Mapping[str, Any]],
    write_empty_chunks: bool | None,
) -> tuple[list[_Planned], dict[str, Any]]:
    """Everything that will be written but the chunks."""
    for name in dataset.variables:
        _check_name(name, format)
    for name in encoding:
        if name not in dataset.variables:
            raise KeyError(
                f"encoding for {name!r}, which is no variable; accepted: {listed(dataset.variables)}"
            )
    variables, attributes = conventions.encode_dataset_coordinates(dataset)
    for name, given in encoding.items():
        variables[name].encoding = dict(given)
    planned = []
    for name, variable in variables.items():
        stored_name = _UNNAMED if name is None else name
        try:
            planned.append(
                _plan_variable(variable, stored_name, format, path, name in encoding, write_empty_chunks)
            )
        except (ValueError, TypeError, NotImplementedError) as error:
            error.add_note(
                f"raised for variable {name!r} of dtype {variable.dtype}; without it: .drop_vars([{name!r}])"
            )
            raise
    return planned, encode_attributes(attributes, path=path)


def _check_name(name: Any, format: Format) -> None:
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"invalid name {name!r} of a variable; accepted: a string or None")
    if not name.strip(".") or {"/", "\\", "\0"} & set(name):
        raise ValueError(
            f"invalid name {name!r} of a variable; accepted: a string that is not empty, has no '/' and no "
            "'\\' and is not only periods; .rename() gives variables other names"
        )
    _check_reserved(name)
    # Names that begin with "__" are reserved, but xarray has such.
    try:
        format.check_name(name.lstrip("_") or "_", name)
    except InvalidKeyError as error:
        raise ValueError(
            f"invalid name {name!r} of a variable: {error}; .rename() gives variables other names"
        ) from error


def _check_reserved(name: str) -> None:
    for prefix in _RESERVED:
        if name.startswith(prefix):
            raise ValueError(
                f"invalid name {name!r} of a variable or group: names that begin with {prefix!r} are "
                "reserved and would not be found again; accepted: another name, for instance by .rename()"
            )


def _plan_variable(
    variable: Variable,
    name: str,
    format: Format,
    path: str,
    explicit: bool,
    write_empty_chunks: bool | None,
) -> _Planned:
    node = node_prefix(path) + name
    for dim in variable.dims:
        if dim is not None and not isinstance(dim, str):
            raise TypeError(f"invalid name {dim!r} of a dimension of variable {name!r}; accepted: a string")
    if any(np.isnan(length) for lengths in variable.chunks or () for length in lengths):
        raise ValueError(
            f"the blocks of variable {name!r} have unknown lengths, {shorten(variable.chunks)}; accepted: "
            f"known ones, which ds[{name!r}].data.compute_chunk_sizes() finds out in place"
        )
    encoded = encode_values(variable, name, explicit=explicit)
    settings = array_settings(encoded, name, format, explicit=explicit)
    keep_empty = settings.pop("write_empty_chunks", write_empty_chunks)
    if write_empty_chunks is not None and not explicit:
        keep_empty = write_empty_chunks
    elif write_empty_chunks is not None and keep_empty != write_empty_chunks:
        raise ValueError(
            f"write_empty_chunks={write_empty_chunks} contradicts "
            f"encoding['write_empty_chunks']={keep_empty} of variable {name!r}"
        )
    try:
        data_type = parse_dtype(stored_dtype(encoded.dtype, format), zarr_format=format.zarr_format)
    except MetadataError as error:
        raise DataTypeValidationError(
            f"values of dtype {encoded.dtype} cannot be stored",
            path=node,
            field="data_type",
            found=error.found,
            accepted=f"{error.accepted}; .drop_vars([{name!r}]) leaves the variable out",
        ) from error
    attributes, fill_value = _attributes(encoded, node, explicit, format)
    make = partial(
        array_metadata,
        shape=encoded.shape,
        dtype=data_type,
        dimension_names=_dimension_names(encoded, format),
        attributes=attributes,
        format=format,
    )
    if fill_value_is_mask(format):
        make = partial(_with_mask, make)
        if fill_value is not None:
            settings["fill_value"] = fill_value
    try:
        metadata = make(**settings) if explicit else make_from_kept(make, settings, encoded.dtype, format)
        stored = {
            key: documents.encode(document, node)
            for key, document in format.documents(metadata, node).items()
        }
    except MetadataError as error:
        error.at(path=node)
        raise
    data = encoded.data
    return _Planned(
        name=name,
        data=data if hasattr(data, "__dask_graph__") else np.asarray(data),
        metadata=metadata,
        stored=stored,
        write_empty_chunks=bool(keep_empty),
    )


def _dimension_names(variable: Variable, format: Format) -> list[str] | None:
    names = [str(dim) for dim in variable.dims]
    return names if names or format.zarr_format == 2 else None  # As xarray has it for no dimensions.


def _with_mask(make: Callable[..., ArrayMetadata], **settings: Any) -> ArrayMetadata:
    """The metadata of an array whose fill value, if it has one, marks missing values."""
    return replace(make(**settings), fill_is_null="fill_value" not in settings)


def _attributes(variable: Variable, node: str, explicit: bool, format: Format) -> tuple[dict[str, Any], Any]:
    """The attributes of an array, and the value that marks missing ones if that is not among them."""
    attributes = dict(variable.attrs)
    fill_value = attributes.pop("_FillValue", None)
    missing = attributes.get("missing_value")
    if _is_nan(fill_value) and _is_nan(missing):
        del attributes["missing_value"]  # JSON has no NaN, and it says what _FillValue says.
    encoded: dict[str, Any] = encode_attributes(attributes, path=node)
    if fill_value is None or fill_value_is_mask(format):
        return encoded, fill_value
    try:
        if variable.dtype.kind in "SU" and format.zarr_format == 3:
            raise ValueError(f"xarray's own engine cannot read a _FillValue of dtype {variable.dtype}")
        encoded["_FillValue"] = encode_fill_value(fill_value, variable.dtype)
    except ValueError as error:
        if explicit:
            raise MetadataError(
                str(error), path=node, field="attributes._FillValue", found=fill_value
            ) from error
    return encoded, None


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _aligned(data: Any, axes: Sequence[Steps | Edges]) -> Any:
    """A dask array whose blocks meet only where units of storage do, with as little moved as possible."""
    chunks = tuple(
        tuple(_aligned_lengths(lengths, axis)) for lengths, axis in zip(data.chunks, axes, strict=True)
    )
    return data if chunks == data.chunks else data.rechunk(chunks)


def _aligned_lengths(lengths: Sequence[int], axis: Steps | Edges) -> Iterator[int]:
    """Lengths of blocks, near ``lengths``, that end where units of storage do."""
    start, end, size = 0, 0, sum(lengths)
    for length in lengths:
        end += length
        edge = end if end == size else axis.start(axis.index(end))
        if edge > start:
            yield edge - start
            start = edge
    if size == 0:
        yield 0


# Writing


class _Write:
    """One call of :func:`to_zarr`: where chunks go, and how they become a dataset."""

    def __init__(
        self,
        store: Store,
        format: Format,
        path: str,
        mode: str,
        variables: list[_Planned],
        attributes: dict[str, Any],
        consolidated: bool,
    ) -> None:
        self.store = store
        self.format = format
        self.path = path
        self._variables = variables
        self._metadata = GroupMetadata(attributes=attributes, zarr_format=format.zarr_format)
        self._consolidated = consolidated and format.consolidated_key("") is not None
        self._stored = self._group_documents()
        self._replacement = Replacement(
            store,
            format,
            path,
            [variable.name for variable in variables],
            {node_prefix(path) + variable.name: variable.metadata for variable in variables},
            overwrite=mode == "w",
            how="mode 'w'",
        )

    def _group_documents(self) -> dict[str, bytes]:
        """The documents of the group by key."""
        held = self._held() if self._consolidated and not self.path else None
        found = self.format.documents(self._metadata, self.path, held)
        if not self.path:  # Without these there is no hierarchy, so they come last.
            found = {**found, **self.format.hierarchy_documents()}
        return {key: documents.encode(document, self.path) for key, document in found.items()}

    def array(self, variable: _Planned) -> Array:
        """Where the chunks of a variable are written."""
        return Array(
            self._replacement.store,
            node_prefix(self.path) + variable.name,
            variable.metadata,
            format=self.format,
            write_empty_chunks=variable.write_empty_chunks,
        )

    def begin(self) -> None:
        """Make room for chunks, before the first one is written."""
        self._replacement.begin()

    def finish(self) -> None:
        """Write all that is not in dask arrays, which were written, and make a dataset of it."""
        with self._replacement.discarding():
            eager = [each for each in self._variables if each.data is not None and each.data.size]
            # Mostly small coordinates, each of which is waited for.
            spread(lambda each: self.array(each).set(..., each.data), eager, self.store.concurrency)
            self._replacement.check_again()
            stored = {node_prefix(self.path) + each.name: each.stored for each in self._variables}
            stored[self.path] = self._stored
            store_documents(self._replacement.store, self.format, stored, last=self.path)
        nodes: dict[str, NodeMetadata] = {each.name: each.metadata for each in self._variables}
        nodes[""] = self._metadata
        self._replacement.put(nodes, consolidate=self._consolidated)

    def _held(self) -> dict[str, Held]:
        """The documents of the variables as a group holds them, by name."""
        prefix = node_prefix(self.path)
        return {each.name: self.format.hold(each.metadata, prefix + each.name) for each in self._variables}

    def discard(self, error: BaseException) -> None:
        """Remove what was written before ``error``, for good."""
        self._replacement.discard(error, close=True)

    def group(self) -> Group:
        """The group that was written."""
        held = self._held() if self._consolidated else None
        return Group(self.store, self.path, replace(self._metadata, consolidated=held), format=self.format)
