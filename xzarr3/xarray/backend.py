"""The backend entry point of ``engine="xzarr3"``: opens groups as datasets and trees."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, ClassVar, cast

import xarray as xr
from xarray import Coordinates, Dataset, DataTree, Variable, conventions
from xarray.backends.common import AbstractDataStore, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint
from xarray.core.utils import is_remote_uri

from xzarr3.api import cache_of, open_group, with_cache
from xzarr3.errors import (
    ArgumentError,
    ArgumentTypeError,
    MetadataError,
    NodeNotFoundError,
    NodeTypeError,
    UnknownNameError,
    Xzarr3Error,
    did_you_mean,
    levels_to_caller,
    listed,
    one_of,
    short_traceback,
    some,
    unknown_arguments,
)
from xzarr3.formats.base import is_array
from xzarr3.groups import Group
from xzarr3.joined.document import is_document
from xzarr3.joined.group import JoinedGroup
from xzarr3.nodes.node import locate_node
from xzarr3.quantities import check_blocks
from xzarr3.stores import Store, StoreLike
from xzarr3.stores.open import was_made, with_version
from xzarr3.xarray import chunked, unreadable
from xzarr3.xarray.absent import hold_nullable
from xzarr3.xarray.dates import announce_resolution, date_coders, keep_missing
from xzarr3.xarray.joining import open_joined
from xzarr3.xarray.lazy import LazyArray, read_ahead
from xzarr3.xarray.unpack import unpack_when_read
from xzarr3.xarray.variables import (
    UNNAMED,
    OpenOptions,
    Xzarr3DataStore,
    are_times,
    bounds_of,
    for_xarray,
    lazy_array,
    left_out,
)

_VERSIONS = ("branch", "tag", "snapshot")
_DOCUMENTS = ("zarr.json", ".zgroup", ".zmetadata")


@short_traceback
def open_dataset(
    store: StoreLike | JoinedGroup, group: str | None = None, *, chunks: Any = "grouped", **options: Any
) -> Dataset:
    """Open a dataset lazily: :func:`xarray.open_dataset` with ``engine="xzarr3"``.

    ``open_zarr`` is another name of this function.

    Parameters
    ----------
    store : path, URL, Store or JoinedGroup
        Also the path of a document of :meth:`xzarr3.JoinedGroup.to_json`.
    group : str, optional
        Path of the group in its hierarchy; the root by default.
    chunks : "grouped" or any ``chunks`` of :func:`xarray.open_dataset`
        The chunks of the dask arrays. ``"grouped"`` makes blocks of whole stored units, shards or unsharded
        chunks, and groups small ones. If dask is not installed, ``"grouped"`` means None: no dask arrays, and
        values are read when they are used. ``{}`` makes one block of each stored unit. ``"auto"`` is dask's:
        blocks of about its option ``array.chunk-size``, of whole stored units where that is possible.
    **options
        Further options of :func:`xarray.open_dataset` and of this engine, such as ``drop_variables``,
        ``keep_variables``, ``consolidated``, ``storage_options``, ``missing`` and ``chunk_cache``; and
        ``branch``, ``tag`` or ``snapshot`` of an ``icechunk.Repository``.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "ocean/t", data=np.arange(3.0), dimension_names=["time"])
    >>> xzarr3.open_dataset(store, "ocean")["t"].mean().compute().item()
    1.0
    """
    dataset: Dataset = _opened(xr.open_dataset, store, group, chunks, options)
    return dataset


open_zarr = open_dataset


@short_traceback
def open_datatree(
    store: StoreLike, group: str | None = None, *, chunks: Any = "grouped", **options: Any
) -> DataTree:
    """Open a group and all groups below it lazily: :func:`xarray.open_datatree` with ``engine="xzarr3"``.

    Parameters
    ----------
    store, group, chunks, **options
        See :func:`open_dataset`.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "ocean/t", data=np.arange(3.0), dimension_names=["time"])
    >>> xzarr3.open_datatree(store)["ocean/t"].mean().compute().item()
    1.0
    """
    tree: DataTree = _opened(xr.open_datatree, store, group, chunks, options)
    return tree


def _opened(
    function: Callable[..., Any],
    store: StoreLike | JoinedGroup,
    group: str | None,
    chunks: Any,
    options: dict[str, Any],
) -> Any:
    """What one of xarray's functions opens with this engine."""
    if "engine" in options:
        raise unknown_arguments(function.__name__, {"engine": options["engine"]}, ())
    check_blocks(chunks)
    if not isinstance(chunks, int | Mapping | None) and not (isinstance(chunks, str) and chunks in _BLOCKS):
        raise ArgumentTypeError(
            f"chunks={chunks!r}; accepted: {listed(_BLOCKS)}, None, an integer, a mapping"
        )
    if chunks == "grouped":
        dask = find_spec("dask") is not None
        chunks, options = {} if dask else None, {"group_chunks": dask, **options}
    if isinstance(store, JoinedGroup) or is_document(store):
        return function(store, group=group, engine=Xzarr3BackendEntrypoint, chunks=chunks, **options)
    version = {name: options.pop(name, None) for name in _VERSIONS}
    place_options = with_version(store, options.pop("storage_options", None), **version)
    opened, path = locate_node(store, group or "", place_options)
    # xarray names dask's tasks after a path's modification time; the token of a store shows more changes.
    place: Any = opened if opened.traits.tells_changes else _UnwatchedStore(opened)
    if path:
        options["group"] = path
    found = function(place, engine=Xzarr3BackendEntrypoint, chunks=chunks, **options)
    if opened.folder is not None and was_made(opened, store):
        found.encoding.setdefault("source", opened.folder)
    return found


def _chosen(function: Callable[..., Any], options: Mapping[str, Any]) -> OpenOptions:
    """The options of the engine that one of xarray's functions was called with; raises for unknown ones."""
    check_options(function, options, _NAMES)
    return OpenOptions(**options)


def check_options(
    function: Callable[..., Any], options: Mapping[str, Any], accepted: Container[str] | None = None
) -> None:
    """Refuse options that are not among the accepted ones, by default all of xarray's and of the engine."""
    functions = (function, xr.open_dataset) if accepted is None else (function,)
    known = {*_NAMES, *(name for each in functions for name in inspect.signature(each).parameters)}
    known -= {"filename_or_obj", "kwargs", "options", "engine"}
    unknown = {name: value for name, value in options.items() if name not in (accepted or known)}
    if unknown:
        raise unknown_arguments(function.__name__, unknown, sorted(known))


_BLOCKS = ("grouped", "auto")
_NAMES = tuple(each.name for each in fields(OpenOptions))


class _UnwatchedStore:
    """A store that cannot detect changes; its dask token is the identity of the store.

    Parameters
    ----------
    store : Store
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def __dask_tokenize__(self) -> object:
        return "xzarr3.Place", self.store.identity


class Xzarr3BackendEntrypoint(BackendEntrypoint):
    """The engine ``"xzarr3"``, which :func:`xarray.open_dataset` and related functions call.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "t", data=np.arange(3.0), dimension_names=["time"])
    >>> xr.open_dataset(store, engine=Xzarr3BackendEntrypoint)["t"].values
    array([0., 1., 2.])
    """

    description: ClassVar[str] = "Open Zarr stores with xzarr3"
    url: ClassVar[str] = "https://pypi.org/project/xzarr3/"
    supports_groups: ClassVar[bool] = True
    open_dataset_parameters: ClassVar[tuple[str, ...] | None] = ("filename_or_obj", "store", *_NAMES)

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether to open this if the user names no engine; False if zarr-python is installed."""
        if find_spec("zarr") is not None or not isinstance(filename_or_obj, (str, os.PathLike)):
            return False
        path = os.fspath(filename_or_obj).rstrip("/")
        if path.endswith((".zarr", ".zarr.zip")):
            return True
        return not is_remote_uri(path) and any(os.path.isfile(f"{path}/{name}") for name in _DOCUMENTS)

    @short_traceback
    def open_dataset(
        self, filename_or_obj: Any, *, store: AbstractDataStore | None = None, **options: Any
    ) -> Dataset:
        """Open a group as a dataset; the options are those of xarray's zarr engine.

        Index coordinates, and the first and last of other times, are read at opening, concurrently.

        Parameters
        ----------
        filename_or_obj : path, URL or Store
            See :func:`xzarr3.open_store` for what is accepted.
        mask_and_scale, decode_times, concat_characters, decode_coords, use_cftime, decode_timedelta
            What to decode, as in :func:`xarray.open_dataset`.
        store : AbstractDataStore, optional
            Open this instead of ``filename_or_obj``.
        drop_variables : str or iterable of str, optional
            Variables to leave out; their documents are not read. Names without a variable cause a warning.
        group : str, optional
            Path of the group; the root by default.
        mode : {"r", "r+"}
            Accepted for compatibility; data are only read in either mode.
        consolidated : bool, optional
            Whether to use consolidated metadata. By default they are used if they exist; True requires them.
        storage_options : mapping, optional
            Further options of the store, such as credentials or an address; see :func:`xzarr3.open_store`.
        zarr_format : {3, 2, "3-draft"}, optional
            Accept only this format.
        use_zarr_fill_value_as_mask : bool, optional
            Mask the fill value of each array. True by default in version 2, where xarray stores
            ``_FillValue`` as the fill value. In other versions, by default only the attribute ``_FillValue``
            is masked.
        cache_members : bool
            No effect; the members of a group are listed once.
        missing : {"fill", "warn", "error"}, optional
            How to read chunks that are absent from the store: as the fill value, with a warning, or as an
            error. A warning or error names their keys. See :func:`xzarr3.open` for which chunks count as
            missing.
        chunk_cache : str, int or ChunkCache, optional
            Keep decoded chunks for later reads, up to this many bytes, such as ``"2 GiB"``, which all
            variables share; see :class:`xzarr3.ChunkCache`. The argument ``cache`` of xarray means something
            else: that a variable which was loaded as a whole stays loaded.
        keep_variables : str or iterable of str, optional
            The only variables to open, besides the index coordinates of their dimensions. The documents of
            other variables are not read.
        group_chunks : bool
            With ``chunks={}``, group small stored units into larger blocks, because running a task costs more
            than reading a small chunk.
        on_unreadable : {"keep", "raise"}
            What to do about an array with an unknown codec or data type, or with a document that is not
            valid. By default it becomes a variable that raises the error when it is computed, with a warning;
            ``ds.xzarr3.unreadable`` tells of all of them.
        nullable : bool
            Read variables of one dimension and of data type ``optional`` at opening, and hold numbers and
            truth values as pandas' nullable types, such as ``Int64``, never in dask arrays. By default NaN
            marks elements without a value.
        branch, tag, snapshot : str, optional
            What to read of an ``icechunk.Repository``; by default the newest commit of branch ``main``.

        Raises
        ------
        NodeNotFoundError
            If there is no store or no group.
        MetadataError
            If a document is not valid. If it lacks the names of dimensions, the error is also a KeyError.
        UnknownNameError
            If there is no variable of a name in ``keep_variables``.
        StoreError
            If the store cannot be read.
        """
        chosen = _chosen(xr.open_dataset, options)
        if store is None:
            return _decoded({"": _open(filename_or_obj, chosen)}, chosen)[""]
        if not isinstance(store, AbstractDataStore):
            raise ArgumentTypeError(f"store={store!r}; accepted: a data store of xarray")
        xarrays = StoreBackendEntrypoint()
        return xarrays.open_dataset(store, drop_variables=chosen.drop_variables, **chosen.decoders)

    @short_traceback
    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, Dataset]:
        """Open a group and all groups below it, each as a dataset; options as for :meth:`open_dataset`.

        The keys are paths, as in xarray's zarr engine: relative to ``group`` if that is given, else absolute.
        """
        chosen = _chosen(xr.open_datatree, options)
        root = _open(filename_or_obj, chosen)
        if isinstance(root, JoinedGroup):
            return _decoded({"/": root}, chosen)
        with for_xarray():
            root = root.loaded()
        return _decoded(dict(_groups("" if chosen.group else "/", root, chosen)), chosen)

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open a group and all groups below it as a tree; options as for :meth:`open_dataset`."""
        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _decoded(groups: Mapping[str, Group | JoinedGroup], chosen: OpenOptions) -> dict[str, Dataset]:
    """The datasets of groups, without indexes, which xarray makes itself."""
    stores = {path: Xzarr3DataStore(group, chosen) for path, group in groups.items()}
    stored = {path: (store.get_variables(), store.get_attrs()) for path, store in stores.items()}
    coordinates, times = list[LazyArray](), list[LazyArray]()
    for variables, _ in stored.values():
        bounds = set(map(bounds_of, variables.values()))
        for name, var in variables.items():
            if var.dims == (name,):
                coordinates.append(lazy_array(var))
            elif chosen.decode_times and (name in bounds or are_times(var.attrs)):
                times.append(lazy_array(var))
    with read_ahead(coordinates, times):
        datasets = {path: _dataset(stores[path], *each) for path, each in stored.items()}
    _check_names([*groups.values()], datasets.values(), chosen)
    return datasets


def _dataset(store: Xzarr3DataStore, variables: dict[Any, Variable], attributes: dict[str, Any]) -> Dataset:
    others = unreadable.fitting({name: store.unreadable(name) for name in store.errors}, variables.values())
    # Without attributes the others are not decoded, but may be coordinates.
    bare = {name: Variable(var.dims, var._data, fastpath=True) for name, var in others.items()}
    decoders = store.asked.decoders
    if decoders["use_cftime"] is None:
        decoders["decode_times"] = date_coders(decoders["decode_times"], variables)
    decoded, attrs, names = conventions.decode_cf_variables({**variables, **bare}, attributes, **decoders)
    if store.asked.nullable:
        decoded = {**decoded, **hold_nullable(decoded)}
    for var in decoded.values():
        unpack_when_read(var)
        keep_missing(var)
        announce_resolution(var)
    ours = {
        name: others[name] if name in others else chunked.Variable.of(var) for name, var in decoded.items()
    }
    coords = {name: var for name, var in ours.items() if name in names or var.dims == (name,)}
    data_vars = {name: var for name, var in ours.items() if name not in coords}
    dims = {dim for var in ours.values() for dim in var.dims}
    if all(ours[dim].dims == (dim,) for dim in dims if dim in ours):  # Nothing needs merging or conversion.
        dataset = Dataset._construct_direct({**data_vars, **coords}, set(coords), attrs=dict(attrs) or None)
    else:
        dataset = Dataset(data_vars, Coordinates(coords, indexes={}), attrs)
    if store.errors:
        dataset.encoding[unreadable.LEFT_OUT] = {
            name: str(error) for name, error in store.errors.items() if name not in others
        }
        unreadable.warn(store.errors, others)
    return dataset


def _check_names(
    groups: Sequence[Group | JoinedGroup], datasets: Iterable[Dataset], chosen: OpenOptions
) -> None:
    """Raise for variables to keep that are in none of the groups; warn of such variables to drop."""
    kept, dropped = chosen.keep_variables or (), chosen.drop_variables
    there = {UNNAMED if name is None else name for dataset in datasets for name in dataset.variables}
    unkept = [name for name in kept if name not in there and name not in dropped]
    known: list[str] = []
    if unkept or dropped:
        with suppress(Xzarr3Error):  # Not all stores can list.
            known = sorted({name for group in groups for name in group})
    undropped = [name for name in dropped if known and name not in known]
    for argument, unknown in (("keep_variables", unkept), ("drop_variables", undropped)):
        if unknown:
            text = f"{argument}: no variable {some(unknown)} in {groups[0]!r}"
            if known:
                misspelt = next((name for name in unknown if did_you_mean(name, known)), unknown[0])
                text += f"; {one_of(misspelt, known, 'it has')}"
            if unknown is unkept:
                raise UnknownNameError(text)
            warnings.warn(text, UserWarning, stacklevel=levels_to_caller(("xzarr3", "xarray")))


def _groups(path: str, group: Group, chosen: OpenOptions) -> Iterator[tuple[str, Group]]:
    yield path or ".", group
    for name, held in group._held():
        if isinstance(held, MetadataError):  # It may be a group, so that it is passed over only if asked for.
            if name not in chosen.drop_variables:
                raise left_out(held, name)
        elif not is_array(held):
            below = group._bound(name, held)
            if isinstance(below, Group):
                yield from _groups(f"{path}{'' if path in ('', '/') else '/'}{name}", below, chosen)


def _open(filename_or_obj: StoreLike | _UnwatchedStore | JoinedGroup, chosen: OpenOptions) -> Any:
    """Open a group, from the consolidated metadata of the root if there are any; or what is joined."""
    if is_document(filename_or_obj):
        joined = open_joined(cast("str", filename_or_obj), chosen.storage_options, chosen.missing)
        if not isinstance(joined, JoinedGroup):
            raise NodeTypeError(f"{filename_or_obj} joins arrays, not groups; open it with xzarr3.open()")
        filename_or_obj = joined
    if isinstance(filename_or_obj, JoinedGroup):
        if chosen.group and chosen.group.strip("/"):
            raise NodeNotFoundError(f"no group {chosen.group!r} in {filename_or_obj!r}; it has arrays only")
        for name in ("use_zarr_fill_value_as_mask", "zarr_format", "consolidated"):
            if getattr(chosen, name) is not None:
                value = getattr(chosen, name)
                raise ArgumentError(f"{name}={value!r} comes too late for joined stores; leave it out")
        return with_cache(filename_or_obj, cache_of(chosen.chunk_cache))
    place = filename_or_obj.store if isinstance(filename_or_obj, _UnwatchedStore) else filename_or_obj
    version = {name: getattr(chosen, name) for name in _VERSIONS}
    place_options = with_version(place, chosen.storage_options, **version)
    opened, path = locate_node(place, chosen.group or "", place_options)
    try:
        return open_group(
            opened,
            path,
            use_consolidated=chosen.consolidated,
            zarr_format=chosen.zarr_format,
            missing=chosen.missing,
            chunk_cache=chosen.chunk_cache,
        )
    except MetadataError as error:
        if error.field == "consolidated_metadata" and error.found is ...:
            if path:
                raise NodeNotFoundError(f"no group '/{path}' in consolidated metadata of {opened}") from error
            error.advice = "call xzarr3.consolidate_metadata() first, or leave consolidated=True out"
        raise
