"""Reading with ``engine="xzarr3"``: the entry point, the data store and the lazy arrays."""

from __future__ import annotations

import asyncio
import contextvars
import math
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from xarray import Coordinates, Dataset, DataTree, Variable, conventions
from xarray.backends.common import AbstractDataStore, BackendArray, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint
from xarray.core import indexing
from xarray.core.utils import is_remote_uri

from xzarr3._types import AnyArray
from xzarr3.array import Array
from xzarr3.concurrency import waiters
from xzarr3.conventions import decode_fill_value, fill_value_is_mask
from xzarr3.dtypes import JSONObjects, ZDType
from xzarr3.errors import (
    MetadataError,
    NodeNotFoundError,
    StoreCapabilityError,
    UnknownExtensionError,
)
from xzarr3.formats import ZarrFormat
from xzarr3.grids import Edges, Steps
from xzarr3.group import Group
from xzarr3.hierarchy import open_group
from xzarr3.indexing import (
    DimChoice,
    Points,
    as_progression,
    basic_selection,
    orthogonal_selection,
    vectorized_selection,
)
from xzarr3.metadata import ArrayMetadata
from xzarr3.missing import Missing
from xzarr3.stores import LocalStore, Store, StoreLike, open_store
from xzarr3.xarray.encoding import kept_codecs
from xzarr3.xarray.missing import Places
from xzarr3.xarray.prefetch import Ahead

# Attributes that say that values are encoded, besides units of time and _FillValue.
_CODING = frozenset(("missing_value", "scale_factor", "add_offset", "_Unsigned", "_Encoding", "dtype"))
_TIME_LIKE = re.compile("since|day|hour|minute|second")
_MOST_LENGTHS = 10**5  # Of chunks along a dimension, to be listed one by one.
_DOCUMENTS = ("zarr.json", ".zgroup", ".zmetadata")


class LazyArray(BackendArray):
    """An array of a store, read when xarray indexes it.

    Basic, orthogonal and pointwise selections read only the chunks they touch, or parts of these where that
    is possible; :meth:`xzarr3.Array.explain` tells what.

    Parameters
    ----------
    array : Array
    places : Places, optional
        Puts into words where chunks are absent.
    """

    __slots__ = ("ahead", "array", "dtype", "places", "shape")

    def __init__(self, array: Array, places: Places | None = None) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.places = places
        self.ahead: Ahead | None = None
        """Holds values that were read before they are asked for."""

    def __reduce__(self) -> tuple[object, ...]:
        return LazyArray, (self.array, self.places)

    def __dask_tokenize__(self) -> object:
        return "xzarr3.LazyArray", self.array.__dask_tokenize__()

    def __getitem__(self, key: indexing.ExplicitIndexer) -> AnyArray:
        if isinstance(key, indexing.VectorizedIndexer):
            return _read_points(self, key.tuple)
        if isinstance(key, indexing.OuterIndexer):
            return self._read(orthogonal_selection(key.tuple, self.shape))
        return self._read(basic_selection(key.tuple, self.shape))

    def _read(self, selection: tuple[DimChoice, ...] | Points) -> AnyArray:
        found = None if self.ahead is None else self.ahead.take(self, selection)
        return self.read_selected(selection) if found is None else found

    def read_selected(self, selection: tuple[DimChoice, ...] | Points) -> AnyArray:
        """Read a selection that is worked out already, from the store."""
        return self.array.read_selected(selection, describe=self.places)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> AnyArray:
        if self.array.store.concurrency <= 1:
            return await asyncio.to_thread(self.__getitem__, key)
        # As many variables at a time as there are, which the few threads that asyncio has would not do.
        read = partial(contextvars.copy_context().run, self.__getitem__, key)
        return await asyncio.get_running_loop().run_in_executor(waiters.get(), read)


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

    __slots__ = ("_dropped", "group", "mask")

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
        self.mask = fill_value_is_mask(group.format) if masked is None else masked

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Names and arrays that become variables; their documents are read together."""
        with _for_xarray():
            nodes = list(self.group.load(leave_out=self._dropped))
        for name, node in nodes:
            if isinstance(node, MetadataError):
                if isinstance(node, UnknownExtensionError):
                    hint = f"drop_variables=[{name!r}] to open the other variables"
                    node.accepted = hint if node.accepted is None else f"{node.accepted}; or {hint}"
                raise node
            if isinstance(node, Array):
                yield name, node

    def get_variables(self) -> dict[str, Variable]:
        return {name: self.variable(array) for name, array in self.arrays()}

    def variable(self, array: Array) -> Variable:
        """An array as a variable, its values and attributes as they are stored."""
        return _variable(array, self.mask)

    def get_attrs(self) -> dict[str, Any]:
        attributes = dict(self.group.metadata.attributes)
        _hide(attributes)
        return attributes


def _variable(array: Array, mask: bool) -> Variable:
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
    if not mask:
        if meta.zarr_format != 2:
            encoding["fill_value"] = meta.fill_value
        if "_FillValue" in attributes:
            attributes["_FillValue"] = _fill_value(attributes["_FillValue"], array)
    elif not meta.fill_is_null and _can_be_masked(meta.data_type):
        attributes["_FillValue"] = meta.fill_value
    everything = indexing.BasicIndexer((slice(None),) * len(shape))
    data = indexing.LazilyIndexedArray(LazyArray(array), everything)
    return Variable(dims, data, attributes, encoding, fastpath=True)


@contextmanager
def _for_xarray() -> Iterator[None]:
    """Say what to do in xarray where a store cannot tell what there is."""
    try:
        yield
    except StoreCapabilityError as error:
        raise StoreCapabilityError(
            f"{error}; in xarray: a store written with consolidated=True, or variables made of arrays that "
            "xzarr3.open_array() opens by their paths"
        ) from error


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
    store : path, URL or Store
    **options
        Whatever :func:`xarray.open_dataset` and this engine take, such as ``group``, ``chunks``,
        ``drop_variables``, ``consolidated``, ``storage_options`` and ``missing``.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "t", data=np.arange(3.0), dimension_names=["time"])
    >>> open_dataset(store, chunks={})["t"].mean().compute().item()
    1.0
    """
    # Of a path xarray knows the time of modification only; a store says more to the names of dask's tasks.
    opened = open_store(store, options.pop("storage_options", None))
    dataset: Dataset = xr.open_dataset(opened, engine=Xzarr3BackendEntrypoint, **options)  # type: ignore[arg-type]
    if isinstance(opened, LocalStore) and not isinstance(store, Store):
        dataset.encoding.setdefault("source", opened.root)
    return dataset


def _decoded_datasets(
    stores: Mapping[str, Xzarr3DataStore],
    *,
    decode_coords: bool | Literal["coordinates", "all"] = True,
    mask_and_scale: bool | Mapping[str, bool] = True,
    decode_times: Any = True,
    concat_characters: bool | Mapping[str, bool] = True,
    use_cftime: bool | Mapping[str, bool] | None = None,
    decode_timedelta: Any = None,
) -> dict[str, Dataset]:
    """Decode what stores hold, without indexes, which xarray makes itself."""
    options = {
        "mask_and_scale": mask_and_scale,
        "decode_times": decode_times,
        "concat_characters": concat_characters,
        "use_cftime": use_cftime,
        "decode_timedelta": decode_timedelta,
    }
    loaded = {path: store.load() for path, store in stores.items()}  # type: ignore[no-untyped-call]
    arrays = {
        path: {name: _lazy_array(var) for name, var in stored.items()} for path, (stored, _) in loaded.items()
    }
    for path, store in stores.items():
        if store.group.missing != "fill":
            _set_places(arrays[path], store.mask, options)
    concurrency = max((store.group.store.concurrency for store in stores.values()), default=1)
    ahead = Ahead(concurrency) if concurrency > 1 else None
    if ahead is not None:
        ahead.look_at_ends(
            arrays[path][name]
            for path, (stored, _) in loaded.items()
            for name in _times(stored, decode_times)
        )
    datasets = {
        path: _decoded_dataset(dict(stored), dict(attributes), decode_coords, options)
        for path, (stored, attributes) in loaded.items()
    }
    if ahead is not None:
        ahead.expect(
            arrays[path][name]
            for path, dataset in datasets.items()
            for name, var in dataset.variables.items()
            if var.dims == (name,)
        )
    return datasets


class _Stored(Variable):
    """A variable whose tasks dask names after what is stored.

    Of a dataset that is opened by a URL xarray names them after the URL alone, so that dask could take what
    it computed before the data were changed for what is asked for now.
    """

    __slots__ = ()

    @classmethod
    def of(cls, variable: Variable) -> Variable:
        """The variable, if its values are in a store that xarray cannot tell the time of."""
        lazy = _found_in(variable._data)
        if lazy is None or isinstance(lazy.array.store, LocalStore) or type(variable) is not Variable:
            return variable
        data: Any = variable._data
        return cls(variable._dims, data, variable._attrs, variable._encoding, fastpath=True)

    def to_base_variable(self) -> Variable:
        """Itself, which is no index; coordinates are made of such."""
        return self.copy(deep=False)

    def chunk(self, *args: Any, **options: Any) -> Variable:  # type: ignore[override]
        """What xarray makes of it, with names that differ where the stored values may."""
        lazy, given = _found_in(self._data), options.get("from_array_kwargs")
        if lazy is not None and given and isinstance(given.get("name"), str):
            from dask.base import tokenize

            options["from_array_kwargs"] = {**given, "name": f"{given['name']}-{tokenize(lazy)}"}
        chunked = super().chunk(*args, **options)
        return Variable(chunked._dims, chunked._data, chunked._attrs, chunked._encoding, fastpath=True)


def _found_in(data: Any) -> LazyArray | None:
    """The lazy array that xarray has wrapped."""
    while data is not None and not isinstance(data, LazyArray):
        data = getattr(data, "array", None) if isinstance(data, indexing.ExplicitlyIndexed) else None
    return data


def _decoded_dataset(
    stored: dict[Any, Variable],
    stored_attributes: dict[Any, Any],
    decode_coords: bool | Literal["coordinates", "all"],
    options: Mapping[str, Any],
) -> Dataset:
    variables, attributes, coord_names = _decoded(stored, stored_attributes, decode_coords, options)
    variables = {name: _Stored.of(var) for name, var in variables.items()}
    coords = {name: var for name, var in variables.items() if name in coord_names or var.dims == (name,)}
    data_vars = {name: var for name, var in variables.items() if name not in coords}
    dataset = Dataset(data_vars, Coordinates(coords, indexes={}), attributes)
    dataset.set_close(_close_nothing)
    return dataset


def _lazy_array(variable: Variable) -> LazyArray:
    """What a variable that was made here reads from."""
    lazy: LazyArray = variable._data.array  # type: ignore[union-attr]
    return lazy


def _set_places(arrays: Mapping[Hashable, LazyArray], mask: bool, options: Mapping[str, Any]) -> None:
    coords = {name: lazy.array for name, lazy in arrays.items() if lazy.array.dimension_names == (name,)}
    decode = partial(_decoded_variable, mask=mask, options=options)
    for lazy in arrays.values():
        lazy.places = Places(lazy.array.dimension_names or (), coords, decode)


def _decoded_variable(name: Hashable, array: Array, *, mask: bool, options: Mapping[str, Any]) -> Variable:
    """An array as a variable, decoded as those of its dataset are."""
    return _decoded({name: _variable(array, mask)}, {}, False, options)[0][name]


def _times(variables: Mapping[Hashable, Variable], decode_times: Any) -> Iterator[Hashable]:
    """The names of those variables whose first and last values are looked at to decode them."""
    for name, var in variables.items():
        decoded = decode_times.get(name, True) if isinstance(decode_times, Mapping) else decode_times
        units, bounds = var.attrs.get("units"), var.attrs.get("bounds")
        if decoded and isinstance(units, str) and "since" in units:
            yield name
            if isinstance(bounds, str) and bounds in variables:
                yield bounds


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
        "missing",
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether to open this if the user names no engine: never where zarr-python could."""
        if find_spec("zarr") is not None or not isinstance(filename_or_obj, (str, os.PathLike)):
            return False
        path = os.fspath(filename_or_obj).rstrip("/")
        if path.endswith((".zarr", ".zarr.zip")):
            return True
        return not is_remote_uri(path) and any(os.path.isfile(f"{path}/{name}") for name in _DOCUMENTS)

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
        missing: Missing = "fill",
    ) -> Dataset:
        """Open a group as a dataset; the parameters are those of xarray's zarr engine.

        Parameters
        ----------
        filename_or_obj : path, URL or Store
            See :func:`xzarr3.open_store` for what is accepted.
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
            What the store takes besides: credentials, an address; see :func:`xzarr3.open_store`.
        zarr_format : {3, 2, "3-draft"}, optional
            Accept only this format.
        store : AbstractDataStore, optional
            Open this instead of ``filename_or_obj``.
        use_zarr_fill_value_as_mask : bool, optional
            Mask the fill value of each array; by default in version 2, where xarray stores ``_FillValue`` so.
            In others only what the attribute ``_FillValue`` says is masked by default.
        cache_members : bool
            Without effect: the members of a group are listed once.
        missing : {"fill", "warn", "error"}
            What reading does about chunks that are absent from the store: read the fill value, warn, or
            fail. A warning or error names the ranges of the index coordinates that they cover. See
            :func:`xzarr3.open` for what is missing and what is not.

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
            node = _open(filename_or_obj, group, mode, consolidated, storage_options, zarr_format, missing)
            store = Xzarr3DataStore(
                node,
                drop_variables=_names(drop_variables),
                use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
            )
        if isinstance(store, Xzarr3DataStore):
            return _decoded_datasets(
                {"": store},
                decode_coords=decode_coords,
                mask_and_scale=mask_and_scale,
                decode_times=decode_times,
                concat_characters=concat_characters,
                use_cftime=use_cftime,
                decode_timedelta=decode_timedelta,
            )[""]
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
        cache_members: bool = True,
        missing: Missing = "fill",
        **decoders: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, a dataset for each.

        The keys are paths, absolute if ``group`` is not given and relative to it if it is, as xarray's zarr
        engine has them.
        """
        root = _open(filename_or_obj, group, mode, consolidated, storage_options, zarr_format, missing)
        with _for_xarray():
            root = root.loaded()
        stores = {
            path: Xzarr3DataStore(
                node,
                drop_variables=_names(drop_variables),
                use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
            )
            for path, node in _groups("/" if not group else "", root)
        }
        return _decoded_datasets(stores, **decoders)

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
    missing: Missing,
) -> Group:
    """Open a group, found through the consolidated metadata of the root if there are any."""
    if mode not in ("r", "r+"):
        raise ValueError(f"mode {mode!r} cannot be used to open a dataset; accepted: 'r', 'r+'")
    opened, path = open_store(store, storage_options), (path or "").strip("/")
    try:
        return open_group(
            opened, path, use_consolidated=consolidated, zarr_format=zarr_format, missing=missing
        )
    except MetadataError as error:
        if path and error.field == "consolidated_metadata" and error.found is ...:
            raise NodeNotFoundError(f"no group '/{path}' in consolidated metadata of {opened}") from error
        raise


def _read_points(array: LazyArray, key: Sequence[Any]) -> AnyArray:
    """Read what arrays of indices select together; their dimensions come first, then those of slices.

    xarray makes such arrays of slices, too. Indices that do not depend on those of the other dimensions are
    therefore taken apart again, so that a few series out of a long record are no millions of points.
    """
    given = {axis: index for axis, index in enumerate(key) if isinstance(index, np.ndarray)}
    common = np.broadcast_shapes(*(index.shape for index in given.values()))
    if 0 in common:
        return array.read_selected(vectorized_selection(tuple(key), array.shape))
    chosen: list[Any] = list(key)
    # Where each dimension of the array goes in the result.
    target = {axis: len(common) + at for at, axis in enumerate(a for a in range(len(key)) if a not in given)}
    arrays = {axis: _reduced(index, len(common)) for axis, index in given.items()}
    along = {axis: [at for at, n in enumerate(index.shape) if n > 1] for axis, index in arrays.items()}
    used = Counter(at for varying in along.values() for at in varying)
    alone = {axis: varying[0] for axis, varying in along.items() if varying and used[varying[0]] == 1}
    alone = {axis: at for axis, at in alone.items() if len(along[axis]) == 1}
    for axis, index in arrays.items():
        if not along[axis]:
            chosen[axis] = int(index.flat[0])
        elif axis in alone:
            chosen[axis] = index.ravel()
    if len(alone) == sum(map(bool, along.values())):
        target |= alone
        block = array.read_selected(orthogonal_selection(tuple(chosen), array.shape))
        order = [target[axis] for axis in sorted(target)]
    else:
        for axis, at in alone.items():
            part = _as_slice(chosen[axis], array.shape[axis])
            if part is not None:
                chosen[axis], target[axis] = part, at
        over = sorted({at for axis, varying in along.items() if axis not in target for at in varying})
        for axis, index in arrays.items():
            if axis not in target and along[axis]:
                chosen[axis] = index.reshape([index.shape[at] for at in over])
        block = array.read_selected(vectorized_selection(tuple(chosen), array.shape))
        order = [*over, *(target[axis] for axis in sorted(target))]
    shape = [*common, *(0,) * (len(key) - len(given))]
    for at, length in zip(order, block.shape, strict=True):
        shape[at] = length
    block = block.transpose(np.argsort(order))
    missing = tuple(at for at in range(len(shape)) if at not in order)
    if not missing:
        return block
    return np.broadcast_to(np.expand_dims(block, missing), shape).copy()


def _reduced(index: AnyArray, ndim: int) -> AnyArray:
    """The same indices without the repetition along dimensions on which they do not depend."""
    index = index.reshape((1,) * (ndim - index.ndim) + index.shape)
    for at in range(ndim):
        first = index.take([0], axis=at)
        if index.shape[at] > 1 and (index == first).all():
            index = first
    return index


def _as_slice(indices: AnyArray, size: int) -> slice | None:
    """The slice that selects these elements of a dimension, None if there is none."""
    if not ((indices >= -size) & (indices < size)).all():
        return None
    found = as_progression(np.where(indices < 0, indices + size, indices))
    if found is None:
        return None
    if not found.reverse:
        return slice(found.start, found.stop, found.step)
    return slice(found.stop - 1, found.start - 1 if found.start else None, -found.step)
