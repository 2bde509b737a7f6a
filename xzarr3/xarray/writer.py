"""Writing xarray's datasets: :func:`to_zarr`.

Everything is worked out and checked before the first byte is written. Then data come first, in a place of
their own where there is something to replace, and documents after them, that of the group last.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import numpy as np
from dask.delayed import Delayed, delayed
from xarray import DataArray, Dataset, Variable, conventions
from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE

from xzarr3._types import Buffer, ByteRange
from xzarr3.array import Array
from xzarr3.creation import array_metadata
from xzarr3.dask import store as store_blocks
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import (
    DataTypeValidationError,
    MetadataError,
    NodeExistsError,
    NodeTypeError,
    ReadOnlyError,
    StoreError,
    listed,
)
from xzarr3.formats import v3
from xzarr3.group import Group
from xzarr3.hierarchy import open_group
from xzarr3.metadata import ArrayMetadata, GroupMetadata
from xzarr3.nodes import (
    ancestors,
    check_new_path,
    document_key,
    drop_from_consolidated,
    erase_node,
    node_prefix,
    read_document,
)
from xzarr3.stores import LocalStore, Store, StoreLike, open_store
from xzarr3.stores.local import STAGED
from xzarr3.xarray.encoding import (
    array_settings,
    encode_attributes,
    encode_fill_value,
    encode_values,
    stored_dtype,
)

_MODES = ("w", "w-")
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
    zarr_format: int | None = ...,
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
    zarr_format: int | None = ...,
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
    zarr_format: int | None = 3,
    storage_options: Mapping[str, Any] | None = None,
) -> Group | Delayed:
    """Write a dataset or a data array to a Zarr version 3 store.

    What is written reads back the same with ``engine="xzarr3"`` and with xarray's own ``engine="zarr"``.
    Nothing is written before everything is known to fit. With ``mode="w"`` the old dataset stays in
    place until all new data are stored, so that it may even be what ``dataset`` reads from.

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
        ``write_empty_chunks``; and for the values ``dtype``, ``scale_factor``, ``add_offset``,
        ``_FillValue``, ``missing_value``, ``units``, ``calendar``.
    consolidated : bool, optional
        Whether the document of the root shall hold those of all nodes; it does by default. Copies that
        are there already are kept true in any case.
    compute : bool
        Write now; otherwise return a Delayed that writes everything, documents too, when computed.
    write_empty_chunks : bool, optional
        Store chunks that hold only the fill value as well; they are left out by default.
    zarr_format : {3}
    storage_options : mapping, optional
        For remote stores, of which there are none yet; anything but an empty mapping is refused.

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
    if zarr_format not in (None, 3):
        raise MetadataError(
            "not a format that can be written", field="zarr_format", found=zarr_format, accepted="3"
        )
    if storage_options:
        raise TypeError(
            f"storage_options {dict(storage_options)!r} have no meaning for {store!r}; "
            "accepted: none, for a local path or a Store"
        )
    opened, path = open_store(store), check_new_path(group or "")
    planned, attributes = _plan(_as_dataset(dataset), path, encoding or {}, write_empty_chunks)
    lazy = [var for var in planned if hasattr(var.data, "__dask_graph__")]
    eager = [replace(var, data=None) if var in lazy else var for var in planned]
    write = _Write(opened, path, mode, eager, attributes, consolidated is not False)
    targets = [write.array(var) for var in lazy]
    sources = [_aligned(var.data, target.write_chunks) for var, target in zip(lazy, targets, strict=True)]
    blocks = store_blocks(sources, targets, compute=False) if lazy else None
    if not compute:
        later: Delayed = delayed(write.finish)(blocks)
        return later
    try:
        if blocks is not None:
            blocks.compute()
        write.finish()
    except BaseException as error:
        write.discard(error)
        raise
    return write.group()


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
    """A variable with encoded values, None once they are on their way, and the array it will be."""

    name: str
    data: Any
    metadata: ArrayMetadata
    document: dict[str, Any]
    stored: bytes
    write_empty_chunks: bool


def _plan(
    dataset: Dataset,
    path: str,
    encoding: Mapping[Any, Mapping[str, Any]],
    write_empty_chunks: bool | None,
) -> tuple[list[_Planned], dict[str, Any]]:
    """Everything that will be written but the chunks."""
    for name in dataset.variables:
        _check_name(name)
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
            planned.append(_plan_variable(variable, stored_name, path, name in encoding, write_empty_chunks))
        except (ValueError, TypeError, NotImplementedError) as error:
            error.add_note(f"raised for variable {name!r} of dtype {variable.dtype}")
            raise
    return planned, encode_attributes(attributes, path=path)


def _check_name(name: Any) -> None:
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"invalid name {name!r} of a variable; accepted: a string or None")
    if name == "" or "/" in name or "\0" in name or name.strip(".") == "" or name == v3.DOCUMENT:
        raise ValueError(
            f"invalid name {name!r} of a variable; accepted: a string that is not empty, has no '/', is not "
            f"only periods and is not {v3.DOCUMENT!r}"
        )


def _plan_variable(
    variable: Variable, name: str, path: str, explicit: bool, write_empty_chunks: bool | None
) -> _Planned:
    node = node_prefix(path) + name
    for dim in variable.dims:
        if dim is not None and not isinstance(dim, str):
            raise TypeError(f"invalid name {dim!r} of a dimension of variable {name!r}; accepted: a string")
    encoded = encode_values(variable, name)
    settings = array_settings(encoded, name, explicit=explicit)
    keep_empty = settings.pop("write_empty_chunks", write_empty_chunks)
    if write_empty_chunks is not None and keep_empty != write_empty_chunks:
        raise ValueError(
            f"write_empty_chunks={write_empty_chunks} contradicts "
            f"encoding['write_empty_chunks']={keep_empty} of variable {name!r}"
        )
    try:
        data_type = parse_dtype(stored_dtype(encoded.dtype))
    except MetadataError as error:
        raise DataTypeValidationError(
            f"values of dtype {encoded.dtype} cannot be stored",
            path=node,
            field="data_type",
            found=error.found,
            accepted=error.accepted,
        ) from error
    try:
        metadata = array_metadata(
            shape=encoded.shape,
            dtype=data_type,
            dimension_names=[*encoded.dims] if encoded.dims else None,  # type: ignore[list-item]
            attributes=_attributes(encoded, node),
            **settings,
        )
    except MetadataError as error:
        error.at(path=node)
        raise
    document = v3.document(metadata)
    data = encoded.data
    return _Planned(
        name=name,
        data=data if hasattr(data, "__dask_graph__") else np.asarray(data),
        metadata=metadata,
        document=document,
        stored=v3.encode(document, node),
        write_empty_chunks=bool(keep_empty),
    )


def _attributes(variable: Variable, node: str) -> dict[str, Any]:
    attributes = dict(variable.attrs)
    fill_value = attributes.pop("_FillValue", None)
    missing = attributes.get("missing_value")
    if _is_nan(fill_value) and _is_nan(missing):
        del attributes["missing_value"]  # JSON has no NaN, and it says what _FillValue says.
    encoded: dict[str, Any] = encode_attributes(attributes, path=node)
    if fill_value is not None:
        try:
            encoded["_FillValue"] = encode_fill_value(fill_value, variable.dtype)
        except ValueError as error:
            raise MetadataError(
                str(error), path=node, field="attributes._FillValue", found=fill_value
            ) from error
    return encoded


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _aligned(data: Any, units: tuple[int, ...]) -> Any:
    """A dask array whose blocks meet only where units of storage do, with as little moved as possible."""
    chunks = tuple(
        tuple(_aligned_lengths(lengths, unit)) for lengths, unit in zip(data.chunks, units, strict=True)
    )
    return data if chunks == data.chunks else data.rechunk(chunks)


def _aligned_lengths(lengths: Iterable[int], unit: int) -> Iterator[int]:
    start, end = 0, 0
    for length in lengths:
        end += length
        edge = end // unit * unit
        if edge > start:
            yield edge - start
            start = edge
    if end > start or end == 0:
        yield end - start


# Writing


class _Write:
    """One call of :func:`to_zarr`: where chunks go, and how they become a dataset.

    Chunks are staged, which means written to keys below one that is no node, if there is something to
    replace, or if moving them into place later takes no copying. Otherwise they are written in place.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        mode: str,
        variables: list[_Planned],
        attributes: dict[str, Any],
        consolidated: bool,
    ) -> None:
        if store.read_only:
            raise ReadOnlyError(f"cannot write to {store}, which is read-only")
        self.store = store
        self.path = path
        self._mode = mode
        self._variables = variables
        self._metadata = GroupMetadata(attributes=attributes)
        self._stored = v3.encode(v3.document(self._metadata), path)
        self._consolidated = consolidated
        self._check_place()
        staged = isinstance(store, LocalStore) or self._occupied()
        self._staging = f"{STAGED}{uuid.uuid4().hex}/" if staged else ""
        self._owned = not staged  # Whether all there is at the path was written by this,
        self._visible = False  # and whether it is a dataset.

    def _occupied(self) -> bool:
        keys, prefixes = self.store.list_dir(node_prefix(self.path))
        return bool(keys or prefixes)

    def _check_place(self) -> None:
        """Refuse what can be seen to be in the way, before any work is done."""
        for above in ancestors(self.path):
            document = read_document(self.store, above)
            if document is not None and document.get("node_type") == "array":
                raise NodeTypeError(
                    f"cannot write to '/{self.path}' in {self.store}: '/{above}' is an array, not a group"
                )
        if self._mode == "w-" and self._occupied():
            raise NodeExistsError(
                f"'/{self.path}' in {self.store} is not empty, so mode 'w-' does not write there; "
                "accepted: another place, or mode 'w' to replace what is there"
            )
        keys, _ = self.store.list_dir(node_prefix(self.path))
        foreign = sorted(keys - {document_key(self.path)})
        if foreign:
            document = read_document(self.store, self.path)
            if document is None or document.get("node_type") != "array":
                raise NodeExistsError(
                    f"'/{self.path}' in {self.store} holds {listed(foreign[:5])}, which are no part of a "
                    "Zarr version 3 hierarchy; nothing was written; accepted: another place, or removing "
                    "them by hand"
                )

    def _prefix(self, variable: _Planned) -> str:
        return f"{node_prefix(self.path)}{variable.name}/"

    def array(self, variable: _Planned) -> Array:
        """Where the chunks of a variable are written."""
        place = (self._staging + self._prefix(variable))[:-1]
        return Array(self.store, place, variable.metadata, write_empty_chunks=variable.write_empty_chunks)

    def finish(self, blocks: object = None) -> None:
        """Write all that is not in dask arrays, ``blocks`` having been written, and make a dataset of it."""
        for variable in self._variables:
            if variable.data is not None and variable.data.size:
                self.array(variable).set(..., variable.data)
        if self._staging:
            self._check_place()
            drop_from_consolidated(self.store, self.path)  # First, so that no copy outlives what it says.
            erase_node(_WithoutStaged(self.store, self._staging), self.path)
            self._owned = True
            _move(self.store, self._staging, [self._prefix(variable) for variable in self._variables])
        for variable in self._variables:
            self.store.set(self._prefix(variable) + v3.DOCUMENT, variable.stored)
        if self.path or not self._consolidated:
            stored = self._stored
        else:
            stored = v3.encode(v3.document(self._metadata, self._documents()))
        self.store.set(document_key(self.path), stored)
        self._visible = True
        if self.path:
            self._finish_above()

    def _documents(self) -> dict[str, Any]:
        return {variable.name: variable.document for variable in self._variables}

    def _finish_above(self) -> None:
        """Make the groups above that are missing, and bring the copies that others hold up to date."""
        below = {"": v3.document(self._metadata), **self._documents()}
        for above in reversed(list(ancestors(self.path))):
            document = read_document(self.store, above)
            if document is None:
                document = v3.document(GroupMetadata())
            held = document.get("consolidated_metadata")
            if isinstance(held, dict):
                relative = self.path[len(node_prefix(above)) :]
                held.setdefault("metadata", {}).update(
                    {f"{relative}/{name}".strip("/"): doc for name, doc in below.items()}
                )
            self.store.set(document_key(above), v3.encode(document, above))
        if self._consolidated:
            open_group(self.store, mode="r+", use_consolidated=False).consolidate()

    def discard(self, error: BaseException) -> None:
        """Remove the chunks of a write that failed with ``error``, unless they make a dataset already."""
        if self._visible:
            return
        try:
            for place in {self._staging, ""} if self._owned else {self._staging}:
                for variable in self._variables:
                    self.store.erase_prefix(place + self._prefix(variable))
        except StoreError as another:
            error.add_note(f"chunks that were written already could not be removed: {another}")

    def group(self) -> Group:
        """The group that was written."""
        held = self._documents() if self._consolidated else None
        return Group(self.store, self.path, GroupMetadata(self._metadata.attributes, held))


def _move(store: Store, staging: str, prefixes: Iterable[str]) -> None:
    """Take ``staging`` away from the front of all keys that begin with it and one of ``prefixes``."""
    if isinstance(store, LocalStore):
        _move_folders(store, staging, prefixes)
        return
    for prefix in prefixes:
        keys = list(store.list_prefix(staging + prefix))
        for key in keys:
            value = store.get(key)
            if value is not None:
                store.set(key[len(staging) :], value)
        store.erase_values(keys)


def _move_folders(store: LocalStore, staging: str, prefixes: Iterable[str]) -> None:
    top = os.path.join(store.root, staging)
    try:
        for prefix in prefixes:
            source, target = os.path.join(top, prefix[:-1]), os.path.join(store.root, prefix[:-1])
            if os.path.isdir(source):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(source, target)
        if os.path.isdir(top):
            shutil.rmtree(top)
    except OSError as error:
        raise StoreError(f"cannot move what was written to {store} into place: {error}") from error


class _WithoutStaged(Store):
    """A store as it is without the keys of a write that is under way."""

    def __init__(self, store: Store, staging: str) -> None:
        super().__init__(read_only=store.read_only)
        self._store = store
        self._staging = staging

    def __repr__(self) -> str:
        return repr(self._store)

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        return self._store.get(key, byte_range)

    def set(self, key: str, value: Buffer) -> None:
        self._store.set(key, value)

    def erase(self, key: str) -> None:
        self._store.erase(key)

    def erase_values(self, keys: Iterable[str]) -> None:
        self._store.erase_values(keys)

    def list_prefix(self, prefix: str) -> Iterator[str]:
        return (key for key in self._store.list_prefix(prefix) if not key.startswith(self._staging))
