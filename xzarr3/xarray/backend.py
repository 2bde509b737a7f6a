"""Reading with ``engine="xzarr3"``: the entry point, the data store and the lazy arrays."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray import Coordinates, Dataset, DataTree, Variable, conventions
from xarray.backends.common import AbstractDataStore, BackendArray, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint
from xarray.core import indexing

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.conventions import decode_fill_value, fill_value_is_mask
from xzarr3.dtypes import JSONObjects, ZDType
from xzarr3.errors import (
    MetadataError,
    NodeNotFoundError,
    NodeTypeError,
    SelectionError,
    UnknownExtensionError,
)
from xzarr3.formats import ZarrFormat
from xzarr3.grids import ChunkLengths, Edges, Steps
from xzarr3.group import Group
from xzarr3.hierarchy import open_group
from xzarr3.metadata import ArrayMetadata
from xzarr3.stores import LocalStore, Store, StoreLike, open_store
from xzarr3.xarray.encoding import kept_codecs

# Attributes that say that values are encoded, besides units of time and _FillValue.
_CODING = frozenset(("missing_value", "scale_factor", "add_offset", "_Unsigned", "_Encoding", "dtype"))
_TIME_LIKE = re.compile("since|day|hour|minute|second")
_Integers = npt.NDArray[np.int64]
_MAX_GAP = 4
_MOST_LENGTHS = 10**5  # Of chunks along a dimension, to be listed one by one.
_DOCUMENTS = ("zarr.json", ".zgroup", ".zmetadata")


class LazyArray(BackendArray):
    """An array of a store, read when xarray indexes it.

    Basic, orthogonal and pointwise selections read only the chunks they touch.

    Parameters
    ----------
    array : Array
    """

    __slots__ = ("array", "dtype", "shape")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def __dask_tokenize__(self) -> object:
        return "xzarr3.LazyArray", self.array.__dask_tokenize__()

    def __getitem__(self, key: indexing.ExplicitIndexer) -> AnyArray:
        if isinstance(key, indexing.VectorizedIndexer):
            return read_points(self.array, key.tuple)
        if isinstance(key, indexing.OuterIndexer):
            return read_outer(self.array, key.tuple)
        return self.array.get(key.tuple)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> AnyArray:
        return await asyncio.to_thread(self.__getitem__, key)


class Xzarr3DataStore(AbstractDataStore):
    """The arrays directly below a group, as xarray's variables.

    Parameters
    ----------
    group : Group
    drop_variables : iterable of str
        Names of arrays to leave out; their documents are not looked at.
    use_zarr_fill_value_as_mask : bool, optional
        Take the fill value of an array for its ``_FillValue``; by default where xarray stores it so.
    """

    __slots__ = ("_dropped", "_mask", "group")

    def __init__(
        self,
        group: Group,
        *,
        drop_variables: Iterable[str] = (),
        use_zarr_fill_value_as_mask: bool | None = None,
    ) -> None:
        self.group = group
        self._dropped = frozenset(drop_variables)
        masked = use_zarr_fill_value_as_mask
        self._mask = fill_value_is_mask(group.format) if masked is None else masked

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Names and arrays that become variables."""
        for name in self.group:
            if name not in self._dropped:
                try:
                    node = self.group[name]
                except UnknownExtensionError as error:
                    hint = f"drop_variables=[{name!r}] to open the other variables"
                    error.accepted = hint if error.accepted is None else f"{error.accepted}; or {hint}"
                    raise
                if isinstance(node, Array):
                    yield name, node

    def get_variables(self) -> dict[str, Variable]:
        return {name: self.variable(array) for name, array in self.arrays()}

    def variable(self, array: Array) -> Variable:
        """An array as a variable, its values and attributes as they are stored."""
        meta = array.metadata
        shape, dims = meta.shape, meta.dimension_names or ()
        if len(dims) != len(shape):
            raise MissingDimensionNamesError(
                "xarray needs the names of the dimensions",
                path=array.path,
                field="dimension_names",
                found=meta.dimension_names,
                accepted=f"{len(shape)} names, or drop_variables=[{array.basename!r}]",
            )
        attributes = dict(meta.attributes)
        units = _lengths(meta)
        sharded = array._shard is not None
        encoding: dict[str, Any] = {
            "chunks": array.chunks if sharded else units,
            "preferred_chunks": dict(zip(dims, units, strict=True)),
            **kept_codecs(array),
            "shards": units if sharded else None,
        }
        if meta.zarr_format == 2:
            _hide(attributes)
        else:
            encoding["serializer"] = array.serializer.to_json()
        if array.dtype.kind == "T":
            encoding["dtype"] = array.dtype
        if not self._mask:
            if meta.zarr_format != 2:
                encoding["fill_value"] = meta.fill_value
            if "_FillValue" in attributes:
                attributes["_FillValue"] = _fill_value(attributes["_FillValue"], array)
        elif not meta.fill_is_null and _can_be_masked(meta.data_type):
            attributes["_FillValue"] = meta.fill_value
        everything = indexing.BasicIndexer((slice(None),) * len(shape))
        data = indexing.LazilyIndexedArray(LazyArray(array), everything)
        return Variable(dims, data, attributes, encoding, fastpath=True)

    def get_attrs(self) -> dict[str, Any]:
        attributes = dict(self.group.metadata.attributes)
        _hide(attributes)
        return attributes


def _can_be_masked(data_type: ZDType) -> bool:
    """Whether xarray can tell missing elements; it cannot among records, raw bytes and JSON."""
    return not isinstance(data_type, JSONObjects) and data_type.to_native_dtype().kind != "V"


def _hide(attributes: dict[str, Any]) -> None:
    """Remove what netCDF-C keeps in attributes for itself."""
    for key in [key for key in attributes if key.lower().startswith("_nc")]:
        del attributes[key]


def _lengths(meta: ArrayMetadata) -> tuple[int | tuple[int, ...], ...]:
    """The length of the units of storage along each dimension, or all their lengths where they differ."""
    if meta.chunk_grid.is_regular:
        return meta.chunk_grid.largest
    return tuple(
        _axis_lengths(axis, size) for axis, size in zip(meta.chunk_grid.axes, meta.shape, strict=True)
    )


def _axis_lengths(axis: Steps | Edges, size: int) -> int | tuple[int, ...]:
    if isinstance(axis, Steps) or size == 0 or axis.count(size) > _MOST_LENGTHS:
        return max(axis.longest, 1)
    lengths = axis.lengths(size)
    regular = len({*lengths[:-1]}) <= 1 and lengths[-1] <= lengths[0]
    return lengths[0] if regular else lengths


class MissingDimensionNamesError(MetadataError, KeyError):
    """An array without names of dimensions, which cannot be a variable of xarray."""

    __str__ = MetadataError.__str__


def _fill_value(value: Any, array: Array) -> Any:
    try:
        return decode_fill_value(value, array.dtype)
    except ValueError as error:
        raise MetadataError(
            str(error),
            path=array.path,
            field="attributes._FillValue",
            found=value,
            accepted="a number, or the base64 of a little-endian double",
        ) from error


def open_dataset(store: StoreLike, **options: Any) -> Dataset:
    """Open a dataset lazily: :func:`xarray.open_dataset` with ``engine="xzarr3"``.

    Parameters
    ----------
    store : path, file URL or Store
    **options
        Whatever :func:`xarray.open_dataset` and this engine take, such as ``group``, ``chunks``,
        ``drop_variables`` and ``consolidated``.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "t", data=np.arange(3.0), dimension_names=["time"])
    >>> open_dataset(store, chunks={})["t"].mean().compute().item()
    1.0
    """
    # Of a path xarray knows the time of modification only; a store says more to the names of dask's tasks.
    opened = open_store(store)
    dataset: Dataset = xr.open_dataset(opened, engine=Xzarr3BackendEntrypoint, **options)  # type: ignore[arg-type]
    if isinstance(opened, LocalStore) and not isinstance(store, Store):
        dataset.encoding.setdefault("source", opened.root)
    return dataset


def _decoded_dataset(
    store: Xzarr3DataStore, *, decode_coords: bool | Literal["coordinates", "all"], **options: Any
) -> Dataset:
    """Decode what a store holds, without indexes, which xarray makes itself."""
    stored, stored_attributes = store.load()  # type: ignore[no-untyped-call]
    variables, attributes, coord_names = _decoded(
        dict(stored), dict(stored_attributes), decode_coords, options
    )
    coords = {name: var for name, var in variables.items() if name in coord_names or var.dims == (name,)}
    data_vars = {name: var for name, var in variables.items() if name not in coords}
    dataset = Dataset(data_vars, Coordinates(coords, indexes={}), attributes)
    dataset.set_close(_close_nothing)
    return dataset


def _close_nothing() -> None:
    """What closes a dataset: xarray wants there to be something, but no store holds anything open."""


def _decoded(
    variables: dict[Any, Variable],
    attributes: dict[Any, Any],
    decode_coords: bool | Literal["coordinates", "all"],
    options: Mapping[str, Any],
) -> tuple[Mapping[Any, Variable], Mapping[Any, Any], set[Any]]:
    """Do what ``xarray.conventions.decode_cf_variables`` does, but decode only what needs it.

    A variable whose values are what is stored, as most are, would come back with two entries of its
    encoding changed, after a dozen copies of it were made.
    """
    mask = options["mask_and_scale"]
    if (
        decode_coords not in (True, False, "coordinates")
        or mask not in (True, False)
        or options["use_cftime"] is not None
        or any(isinstance(option, Mapping) for option in options.values())
        or any(var.dtype.kind == "S" for var in variables.values())
    ):
        return conventions.decode_cf_variables(variables, attributes, decode_coords=decode_coords, **options)
    coded = {name: var for name, var in variables.items() if not _is_plain(var, mask)}
    for var in list(coded.values()):
        bounds = var.attrs.get("bounds")  # Bounds are in the units of what they bound.
        if isinstance(bounds, str) and bounds in variables:
            coded[bounds] = variables[bounds]
    decoded, _, _ = conventions.decode_cf_variables(coded, {}, decode_coords=False, **options)
    coord_names: set[Any] = set()
    for name, var in variables.items():
        attrs = var.attrs
        if name in decoded:
            variables[name] = decoded[name]
            attrs = decoded[name].attrs
        else:
            if mask and "_FillValue" in attrs:
                var.encoding["_FillValue"] = attrs.pop("_FillValue")
            var.encoding.setdefault("dtype", var.dtype)
        if decode_coords and isinstance(attrs.get("coordinates"), str):
            text = attrs.pop("coordinates")
            variables[name].encoding["coordinates"] = text
            coord_names.update(other for other in text.split() if other in variables)
    if decode_coords and isinstance(attributes.get("coordinates"), str):
        coord_names.update(attributes.pop("coordinates").split())
    return variables, attributes, coord_names


def _is_plain(var: Variable, mask: bool) -> bool:
    """Whether the CF conventions leave the values of a variable as they are stored."""
    attrs = var.attrs
    if var.dtype.kind not in "biufc" or not _CODING.isdisjoint(attrs):
        return False
    units = attrs.get("units")
    if units is not None and (not isinstance(units, str) or _TIME_LIKE.search(units)):
        return False
    if mask and "_FillValue" in attrs:
        fill_value = attrs["_FillValue"]
        if var.dtype.kind != "f" or not isinstance(fill_value, (float, np.floating)):
            return False
        return math.isnan(fill_value)
    return True


class Xzarr3BackendEntrypoint(BackendEntrypoint):
    """The engine ``"xzarr3"``: what :func:`xarray.open_dataset` and its relatives call.

    Examples
    --------
    >>> import xarray as xr, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "t", data=np.arange(3.0), dimension_names=["time"])
    >>> xr.open_dataset(store, engine=Xzarr3BackendEntrypoint)["t"].values
    array([0., 1., 2.])
    """

    description: ClassVar[str] = "Open Zarr stores with xzarr3"
    url: ClassVar[str] = "https://pypi.org/project/xzarr3/"
    supports_groups: ClassVar[bool] = True
    open_dataset_parameters: ClassVar[tuple[str, ...] | None] = (
        "filename_or_obj",
        "mask_and_scale",
        "decode_times",
        "concat_characters",
        "decode_coords",
        "drop_variables",
        "use_cftime",
        "decode_timedelta",
        "group",
        "mode",
        "consolidated",
        "storage_options",
        "zarr_format",
        "store",
        "use_zarr_fill_value_as_mask",
        "cache_members",
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether to open this if the user names no engine: never where zarr-python could."""
        if find_spec("zarr") is not None or not isinstance(filename_or_obj, (str, os.PathLike)):
            return False
        path = os.fspath(filename_or_obj).rstrip("/")
        return path.endswith(".zarr") or any(os.path.isfile(os.path.join(path, name)) for name in _DOCUMENTS)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: bool | Mapping[str, bool] = True,
        decode_times: Any = True,
        concat_characters: bool | Mapping[str, bool] = True,
        decode_coords: bool | Literal["coordinates", "all"] = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: bool | Mapping[str, bool] | None = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        mode: str = "r",
        consolidated: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        zarr_format: ZarrFormat | None = None,
        store: AbstractDataStore | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        cache_members: bool = True,
    ) -> Dataset:
        """Open a group as a dataset; the parameters are those of xarray's zarr engine.

        Parameters
        ----------
        filename_or_obj : path, file URL or Store
        mask_and_scale, decode_times, concat_characters, decode_coords, use_cftime, decode_timedelta
            What to decode, as in :func:`xarray.open_dataset`.
        drop_variables : str or iterable of str, optional
            Variables to leave out; they are not even looked at.
        group : str, optional
            Path of the group; the root by default.
        mode : {"r", "r+"}
            Data are only read, whatever it is.
        consolidated : bool, optional
            Whether to use consolidated metadata: if there are any by default; True demands them.
        storage_options : mapping, optional
            For remote stores, of which there are none yet; anything but an empty mapping is refused.
        zarr_format : {3, 2, "3-draft"}, optional
            Accept only this format.
        store : AbstractDataStore, optional
            Open this instead of ``filename_or_obj``.
        use_zarr_fill_value_as_mask : bool, optional
            Mask the fill value of each array; by default in version 2, where xarray stores ``_FillValue`` so.
            In others only what the attribute ``_FillValue`` says is masked by default.
        cache_members : bool
            Without effect: the members of a group are listed once.

        Raises
        ------
        NodeNotFoundError
            If there is no store or no group.
        MetadataError
            If a document is not valid; a KeyError, too, if it lacks the names of dimensions.
        StoreError
            If the store cannot be read.
        """
        if store is None:
            node = _open(filename_or_obj, group, mode, consolidated, storage_options, zarr_format)
            store = Xzarr3DataStore(
                node,
                drop_variables=_names(drop_variables),
                use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
            )
        if isinstance(store, Xzarr3DataStore):
            return _decoded_dataset(
                store,
                decode_coords=decode_coords,
                mask_and_scale=mask_and_scale,
                decode_times=decode_times,
                concat_characters=concat_characters,
                use_cftime=use_cftime,
                decode_timedelta=decode_timedelta,
            )
        return StoreBackendEntrypoint().open_dataset(
            store,
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            drop_variables=drop_variables,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
        )

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        mode: str = "r",
        consolidated: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        zarr_format: ZarrFormat | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        **decoders: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, a dataset for each.

        The keys are paths, absolute if ``group`` is not given and relative to it if it is, as xarray's zarr
        engine has them.
        """
        root = _open(filename_or_obj, group, mode, consolidated, storage_options, zarr_format)
        return {
            path: self.open_dataset(
                filename_or_obj,
                store=Xzarr3DataStore(
                    node,
                    drop_variables=_names(drop_variables),
                    use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
                ),
                **decoders,
            )
            for path, node in _groups("/" if not group else "", root)
        }

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open a group and all groups below it as a tree; takes what ``open_groups_as_dict`` takes."""
        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _groups(path: str, group: Group) -> Iterator[tuple[str, Group]]:
    yield path or ".", group
    for name, below in group.groups():
        yield from _groups(f"{path}{'' if path in ('', '/') else '/'}{name}", below)


def _names(names: str | Iterable[str] | None) -> Iterable[str]:
    return (names,) if isinstance(names, str) else names or ()


def _open(
    store: StoreLike,
    path: str | None,
    mode: str,
    consolidated: bool | None,
    storage_options: Mapping[str, Any] | None,
    zarr_format: ZarrFormat | None,
) -> Group:
    """Open a group, found through the consolidated metadata of the root if there are any."""
    if mode not in ("r", "r+"):
        raise ValueError(f"mode {mode!r} cannot be used to open a dataset; accepted: 'r', 'r+'")
    if storage_options:
        raise TypeError(
            f"storage_options {dict(storage_options)!r} have no meaning for {store!r}; "
            "accepted: none, for a local path or a Store"
        )
    path = (path or "").strip("/")
    if path and consolidated is not False:
        root = _root(store, zarr_format, consolidated)
        if root is not None and root.consolidated and (consolidated or path in root):
            node = root[path]
            if not isinstance(node, Group):
                raise NodeTypeError(f"'{node.name}' of {node.store} is an array, not a group")
            return node
        consolidated = None
    return open_group(store, path, use_consolidated=consolidated, zarr_format=zarr_format)


def _root(store: StoreLike, zarr_format: ZarrFormat | None, consolidated: bool | None) -> Group | None:
    try:
        return open_group(store, use_consolidated=consolidated, zarr_format=zarr_format)
    except NodeNotFoundError:
        if consolidated:
            raise
        return None  # A group can be opened even where there is none above it.


class _Readable(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def metadata(self) -> ArrayMetadata: ...
    @property
    def chunks(self) -> ChunkLengths: ...
    @property
    def _shard(self) -> object | None: ...
    def get(self, selection: Any) -> AnyArray: ...


def _axes(array: _Readable) -> Sequence[Steps | Edges]:
    """How each dimension is divided into chunks; into inner chunks if the array is sharded."""
    if array._shard is None:
        return array.metadata.chunk_grid.axes
    return [Steps(length) for length in array.chunks if isinstance(length, int)]


def _numbers(axis: Steps | Edges, elements: _Integers) -> _Integers:
    """The indices of the chunks that hold some elements."""
    if isinstance(axis, Steps):
        return elements // axis.length
    # Chunks may reach so far beyond the dimension that their sum takes more than 64 bits.
    runs = axis.runs_within(int(elements.max(initial=-1)) + 1)
    starts, firsts, lengths = np.array(runs, dtype=np.int64).reshape(-1, 3).T
    run = np.searchsorted(starts, elements, side="right") - 1
    numbers: _Integers = firsts[run] + (elements - starts[run]) // lengths[run]
    return numbers


def read_outer(array: _Readable, key: Sequence[Any]) -> AnyArray:
    """Read an orthogonal selection: each index applies to its own dimension.

    Index arrays may repeat, run backwards, be unordered, negative or empty. What lies close together is
    read together; chunks between the selected elements are not read.

    Parameters
    ----------
    array : Array
    key : sequence of int, slice or one-dimensional integer ndarray
        One index for each dimension.

    Returns
    -------
    ndarray
        Without the dimensions that an integer selects.
    """
    shape = []
    parts: list[list[tuple[Any, Any, Any]]] = []
    for at, (index, size, axis) in enumerate(zip(key, array.shape, _axes(array), strict=True)):
        if isinstance(index, np.ndarray):
            shape.append(index.size)
            parts.append(list(_runs(_positive(index.ravel(), size, at), axis)))
        elif isinstance(index, slice):
            shape.append(len(range(*index.indices(size))))
            parts.append([(index, None, slice(None))])
        else:
            parts.append([(index, None, None)])
    result = np.empty(shape, dtype=array.dtype)
    for part in product(*parts):
        block = array.get(tuple(source for source, _, _ in part))
        kept = [(within, place) for _, within, place in part if place is not None]
        for at, (within, _) in enumerate(kept):
            if within is not None:
                block = block.take(within, axis=at)
        result[_open_mesh([place for _, place in kept], shape)] = block
    return result


def _positive(index: AnyArray, size: int, axis: int) -> _Integers:
    wrapped = np.where(index < 0, index + size, index)
    outside = (wrapped < 0) | (wrapped >= size)
    if outside.any():
        raise SelectionError(f"axis {axis}: index {index[outside][0]} is out of bounds for length {size}")
    return wrapped


def _runs(index: _Integers, axis: Steps | Edges) -> Iterator[tuple[slice, _Integers | None, Any]]:
    """Cover an index array with slices.

    Yields a slice of the array, where the elements lie within it (None: all, as they are) and where they
    go in the result.
    """
    if index.size == 0:
        return
    elements, position = np.unique(index, return_inverse=True)
    steps = np.diff(elements)
    if steps.size == 0 or (steps == steps[0]).all():
        source = slice(int(elements[0]), int(elements[-1]) + 1, int(steps[0]) if steps.size else 1)
        yield (
            source,
            None if elements.size == index.size and (index == elements).all() else position,
            slice(None),
        )
        return
    chunks = _numbers(axis, elements)
    cuts = np.flatnonzero((np.diff(chunks) > 0) & (steps > _MAX_GAP)) + 1
    for first, last in zip([0, *cuts], [*cuts, elements.size], strict=True):
        start, stop = int(elements[first]), int(elements[last - 1]) + 1
        if first == 0 and last == elements.size:
            yield slice(start, stop), index - start, slice(None)
        else:
            place = np.flatnonzero((position >= first) & (position < last))
            yield slice(start, stop), index[place] - start, place


def _open_mesh(places: list[Any], shape: Sequence[int]) -> tuple[Any, ...]:
    if sum(isinstance(place, np.ndarray) for place in places) < 2:
        return tuple(places)
    return np.ix_(
        *(
            place if isinstance(place, np.ndarray) else np.arange(size)
            for place, size in zip(places, shape, strict=True)
        )
    )


def read_points(array: _Readable, key: Sequence[Any]) -> AnyArray:
    """Read a pointwise selection, as numpy's advanced indexing has it, sliced dimensions last.

    Only chunks that hold a point are read, each once. Dimensions whose indices do not depend on those of
    other dimensions are read as whole rows, so that a few series out of a long record cost a few reads.

    Parameters
    ----------
    array : Array
    key : sequence of slice or integer ndarray
        One index for each dimension; the arrays have the same number of dimensions and broadcast.

    Returns
    -------
    ndarray
    """
    given = {axis: index for axis, index in enumerate(key) if isinstance(index, np.ndarray)}
    common = np.broadcast_shapes(*(index.shape for index in given.values()))
    sliced = [axis for axis in range(len(key)) if axis not in given]
    lengths = [len(range(*key[axis].indices(array.shape[axis]))) for axis in sliced]
    result_shape = (*common, *lengths)
    if 0 in result_shape:
        return np.empty(result_shape, dtype=array.dtype)

    arrays = {axis: _reduced(_positive(index, array.shape[axis], axis)) for axis, index in given.items()}
    users: list[list[int]] = [
        [axis for axis, index in arrays.items() if index.shape[at] > 1] for at in range(len(common))
    ]
    # Where each dimension of the array goes in the result, for those that are read as whole rows.
    target = {axis: len(common) + at for at, axis in enumerate(sliced)}
    rows: list[Any] = list(key)
    pointed = []
    for axis, index in arrays.items():
        varying = [at for at, length in enumerate(index.shape) if length > 1]
        if not varying:
            rows[axis] = int(index.flat[0])
        elif len(varying) == 1 and users[varying[0]] == [axis]:
            rows[axis] = index.ravel()
            target[axis] = varying[0]
        else:
            pointed.append(axis)
    whole = sorted(target)

    if pointed:
        points = np.broadcast_arrays(*(arrays[axis] for axis in pointed))
        over = [at for at, length in enumerate(points[0].shape) if length > 1]
        flat = np.stack([index.ravel() for index in points])
        block = _gather(array, rows, pointed, whole, flat)
        order = [*over, *(target[axis] for axis in whole)]
        block = block.reshape(*(common[at] for at in over), *block.shape[1:])
    else:
        block = read_outer(array, rows)
        order = [target[axis] for axis in whole]
    block = block.transpose(np.argsort(order))
    missing = tuple(at for at in range(len(result_shape)) if at not in order)
    return np.broadcast_to(np.expand_dims(block, missing), result_shape).copy()


def _reduced(index: _Integers) -> _Integers:
    """The same indices without the repetition along dimensions on which they do not depend."""
    for at in range(index.ndim):
        first = index.take([0], axis=at)
        if index.shape[at] > 1 and (index == first).all():
            index = first
    return index


def _gather(
    array: _Readable, rows: list[Any], pointed: list[int], whole: list[int], points: _Integers
) -> AnyArray:
    """Read points, given as one row of ``points`` for each of the ``pointed`` dimensions.

    Returns an array of shape (number of points, length of each ``whole`` dimension).
    """
    lengths = [
        rows[axis].size
        if isinstance(rows[axis], np.ndarray)
        else len(range(*rows[axis].indices(array.shape[axis])))
        for axis in whole
    ]
    result = np.empty((points.shape[1], *lengths), dtype=array.dtype)
    axes = [_axes(array)[at] for at in pointed]
    counts = [axis.count(array.shape[at]) for axis, at in zip(axes, pointed, strict=True)]
    coords = tuple(_numbers(axis, index) for axis, index in zip(axes, points, strict=True))
    number = np.ravel_multi_index(coords, counts)
    order = np.argsort(number, kind="stable")
    cuts = np.flatnonzero(np.diff(number[order])) + 1
    kept = [axis for axis in range(len(rows)) if axis in whole or axis in pointed]
    to_front = [kept.index(axis) for axis in pointed]
    for group in np.split(order, cuts):
        here = points[:, group]
        low, high = here.min(axis=1), here.max(axis=1) + 1
        for axis, start, stop in zip(pointed, low, high, strict=True):
            rows[axis] = slice(int(start), int(stop))
        block = read_outer(array, rows)
        block = np.moveaxis(block, to_front, range(len(pointed)))
        result[group] = block[tuple(here - low[:, None])]
    return result
