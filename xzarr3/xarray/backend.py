"""The backend entry point of ``engine="xzarr3"``: opens groups as datasets and trees."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import xarray as xr
from xarray import Coordinates, Dataset, DataTree, Variable, conventions
from xarray.backends.common import AbstractDataStore, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint
from xarray.core.utils import is_remote_uri

from xzarr3.api import open_group
from xzarr3.errors import (
    ArgumentError,
    InvalidKeyError,
    MetadataError,
    NodeNotFoundError,
    StoreError,
    UnknownNameError,
    Xzarr3Error,
    did_you_mean,
    levels_to_caller,
    one_of,
    short_traceback,
    some,
    unknown_arguments,
)
from xzarr3.formats import ZarrFormat
from xzarr3.groups import Group
from xzarr3.nodes.node import locate_node
from xzarr3.options import Missing
from xzarr3.stores import Store, StoreLike
from xzarr3.stores.open import was_made
from xzarr3.xarray import chunked
from xzarr3.xarray.lazy import LazyArray, read_ahead
from xzarr3.xarray.unpack import unpack_when_read
from xzarr3.xarray.variables import (
    MissingDimensionNamesError,
    Xzarr3DataStore,
    bounds_of,
    for_xarray,
    has_times,
    lazy_array,
    left_out,
    names_of,
)

__all__ = [
    "LazyArray",
    "MissingDimensionNamesError",
    "Xzarr3BackendEntrypoint",
    "Xzarr3DataStore",
    "open_dataset",
    "open_datatree",
    "open_zarr",
]

_DOCUMENTS = ("zarr.json", ".zgroup", ".zmetadata")


@short_traceback
def open_dataset(store: StoreLike, *, chunks: Any = "grouped", **options: Any) -> Dataset:
    """Open a dataset lazily: :func:`xarray.open_dataset` with ``engine="xzarr3"``.

    Parameters
    ----------
    store : path, URL or Store
    chunks : "grouped" or any ``chunks`` of :func:`xarray.open_dataset`
        The chunks of the dask arrays. ``"grouped"`` makes blocks of whole stored units, shards or unsharded
        chunks, and groups small ones. If dask is not installed, ``"grouped"`` means None: no dask arrays, and
        values are read when they are used. ``{}`` makes one block of each stored unit. ``"auto"`` is dask's:
        blocks of about its option ``array.chunk-size``, of whole stored units where that is possible.
    **options
        Further options of :func:`xarray.open_dataset` and of this engine, such as ``group``,
        ``drop_variables``, ``keep_variables``, ``consolidated``, ``storage_options`` and ``missing``.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "t", data=np.arange(3.0), dimension_names=["time"])
    >>> open_dataset(store)["t"].mean().compute().item()
    1.0
    """
    _check_known(xr.open_dataset, options)
    opened, place, options = _prepared(store, chunks, options)
    dataset: Dataset = xr.open_dataset(place, engine=_engine(), **options)
    if opened.folder is not None and was_made(opened, store):
        dataset.encoding.setdefault("source", opened.folder)
    return dataset


def open_zarr(
    store: StoreLike, group: str | None = None, *, chunks: Any = "grouped", **options: Any
) -> Dataset:
    """Open a dataset lazily: :func:`open_dataset` with the arguments of :func:`xarray.open_zarr`.

    Parameters
    ----------
    store : path, URL or Store
    group : str, optional
        Path of the group in its hierarchy; the root by default.
    chunks : "grouped" or any ``chunks`` of :func:`xarray.open_dataset`
        See :func:`open_dataset`. There, as here, ``"auto"`` is dask's; in :func:`xarray.open_zarr` it is
        ``{}``.
    **options
        Further options of :func:`open_dataset`.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "ocean/t", data=np.arange(3.0), dimension_names=["time"])
    >>> xzarr3.open_zarr(store, "ocean")["t"].mean().compute().item()
    1.0
    """
    return open_dataset(store, group=group, chunks=chunks, **options)


def open_datatree(store: StoreLike, *, chunks: Any = "grouped", **options: Any) -> DataTree:
    """Open a group and all groups below it lazily: :func:`xarray.open_datatree` with ``engine="xzarr3"``.

    Parameters
    ----------
    store : path, URL or Store
    chunks : "grouped" or any ``chunks`` of :func:`xarray.open_datatree`
        See :func:`open_dataset`.
    **options
        Further options of :func:`xarray.open_datatree` and of this engine, such as ``group``,
        ``drop_variables``, ``consolidated``, ``storage_options`` and ``missing``.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "ocean/t", data=np.arange(3.0), dimension_names=["time"])
    >>> xzarr3.open_datatree(store)["ocean/t"].mean().compute().item()
    1.0
    """
    _check_known(xr.open_datatree, options)
    _, place, options = _prepared(store, chunks, options)
    tree: DataTree = xr.open_datatree(place, engine=_engine(), **options)
    return tree


def _check_known(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise if neither xarray's function nor the engine has one of these arguments."""
    known = _known(function)
    unknown = {name: value for name, value in options.items() if name not in known}
    if unknown:
        raise unknown_arguments(function.__name__, unknown, known)


def _known(function: Callable[..., Any]) -> list[str]:
    """The arguments of one of xarray's functions and of the engine."""
    known = {
        *inspect.signature(function).parameters,
        *(Xzarr3BackendEntrypoint.open_dataset_parameters or ()),
    }
    return sorted(known - {"filename_or_obj", "kwargs"})


def _prepared(store: StoreLike, chunks: Any, options: dict[str, Any]) -> tuple[Store, Any, dict[str, Any]]:
    """The opened store, the same as an argument of xarray's functions, and their options."""
    if isinstance(chunks, str) and chunks == "grouped":
        dask = find_spec("dask") is not None
        chunks = {} if dask else None
        options = {"group_chunks": dask, **options}
    opened, path = locate_node(store, options.get("group") or "", options.get("storage_options"))
    options = {key: value for key, value in options.items() if key not in ("storage_options", "group")}
    if path:
        options["group"] = path
    # xarray names dask's tasks after a path's modification time; the token of a store shows more changes.
    place = opened if opened.traits.tells_changes else _UnwatchedStore(opened)
    return opened, place, {**options, "chunks": chunks}


def _engine() -> Any:
    """The engine; xarray takes a class but does not say so in its types."""
    return Xzarr3BackendEntrypoint


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
        "keep_variables",
        "group_chunks",
    )

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
        missing: Missing | None = None,
        keep_variables: str | Iterable[str] | None = None,
        group_chunks: bool = False,
        **unknown: Any,
    ) -> Dataset:
        """Open a group as a dataset; the parameters are those of xarray's zarr engine.

        Parameters
        ----------
        filename_or_obj : path, URL or Store
            See :func:`xzarr3.open_store` for what is accepted.
        mask_and_scale, decode_times, concat_characters, decode_coords, use_cftime, decode_timedelta
            What to decode, as in :func:`xarray.open_dataset`.
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
        store : AbstractDataStore, optional
            Open this instead of ``filename_or_obj``.
        use_zarr_fill_value_as_mask : bool, optional
            Mask the fill value of each array. True by default in version 2, where xarray stores
            ``_FillValue`` as the fill value. In other versions, by default only the attribute ``_FillValue``
            is masked.
        cache_members : bool
            No effect; the members of a group are listed once.
        missing : {"fill", "warn", "error"}, optional
            How to read chunks that are absent from the store: as the fill value, with a warning, or as an
            error. A warning or error names the ranges of index coordinates of the absent chunks. See
            :func:`xzarr3.open` for which chunks count as missing.
        keep_variables : str or iterable of str, optional
            The only variables to open, besides the index coordinates of their dimensions. The documents of
            other variables are not read.
        group_chunks : bool
            With ``chunks={}``, group small stored units into larger blocks, because running a task costs more
            than reading a small chunk.

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
        if unknown:
            raise unknown_arguments("open_dataset", unknown, _known(xr.open_dataset))
        is_ours = store is None
        dropped, kept = _listed(drop_variables), _listed(keep_variables)
        if store is None:
            store = Xzarr3DataStore(
                _open(filename_or_obj, group, mode, consolidated, storage_options, zarr_format, missing),
                drop_variables=dropped or (),
                keep_variables=kept,
                group_chunks=group_chunks,
                use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
            )
        decoders: dict[str, Any] = {
            "mask_and_scale": mask_and_scale,
            "decode_times": decode_times,
            "concat_characters": concat_characters,
            "decode_coords": decode_coords,
            "use_cftime": use_cftime,
            "decode_timedelta": decode_timedelta,
        }
        if isinstance(store, Xzarr3DataStore):
            datasets = _decoded({"": store}, decoders)
            if is_ours:
                _check_names([store], datasets.values(), dropped or (), kept or ())
            return datasets[""]
        return StoreBackendEntrypoint().open_dataset(store, drop_variables=dropped, **decoders)

    @short_traceback
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
        missing: Missing | None = None,
        keep_variables: str | Iterable[str] | None = None,
        group_chunks: bool = False,
        **decoders: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, each as a dataset.

        The keys are paths, as in xarray's zarr engine: relative to ``group`` if that is given, else absolute.
        """
        _check_known(xr.open_datatree, decoders)
        dropped, kept = _listed(drop_variables), _listed(keep_variables)
        root = _open(filename_or_obj, group, mode, consolidated, storage_options, zarr_format, missing)
        with for_xarray():
            root = root.loaded()
        stores = {
            path: Xzarr3DataStore(
                node,
                drop_variables=dropped or (),
                keep_variables=kept,
                group_chunks=group_chunks,
                use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
            )
            for path, node in _groups("/" if not group else "", root, dropped or ())
        }
        datasets = _decoded(stores, decoders)
        _check_names([*stores.values()], datasets.values(), dropped or (), kept or ())
        return datasets

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open a group and all groups below it as a tree; options as for ``open_groups_as_dict``."""
        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _decoded(stores: Mapping[str, Xzarr3DataStore], decoders: Mapping[str, Any]) -> dict[str, Dataset]:
    """The datasets of stores, without indexes, which xarray makes itself."""
    stored = {path: (store.get_variables(), store.get_attrs()) for path, store in stores.items()}
    coordinates, times = list[LazyArray](), list[LazyArray]()
    for variables, _ in stored.values():
        bounds = set(map(bounds_of, variables.values()))
        for name, var in variables.items():
            if var.dims == (name,):
                coordinates.append(lazy_array(var))
            elif decoders.get("decode_times", True) and (name in bounds or has_times(var)):
                times.append(lazy_array(var))
    with read_ahead(coordinates, times):
        return {path: _dataset(*each, decoders) for path, each in stored.items()}


def _dataset(
    variables: dict[str, Variable], attributes: dict[str, Any], decoders: Mapping[str, Any]
) -> Dataset:
    decoded, attrs, names = conventions.decode_cf_variables(variables, attributes, **decoders)
    for var in decoded.values():
        unpack_when_read(var)
    ours = {name: chunked.Variable.of(var) for name, var in decoded.items()}
    coords = {name: var for name, var in ours.items() if name in names or var.dims == (name,)}
    data_vars = {name: var for name, var in ours.items() if name not in coords}
    dims = {dim for var in ours.values() for dim in var.dims}
    if all(ours[dim].dims == (dim,) for dim in dims if dim in ours):  # Nothing needs merging or conversion.
        return Dataset._construct_direct({**data_vars, **coords}, set(coords), attrs=dict(attrs) or None)
    return Dataset(data_vars, Coordinates(coords, indexes={}), attrs)


def _check_names(
    stores: Sequence[Xzarr3DataStore],
    datasets: Iterable[Dataset],
    dropped: Sequence[str],
    kept: Sequence[str],
) -> None:
    """Raise for variables to keep that are in none of the groups; warn of such variables to drop."""
    there = {name for dataset in datasets for name in dataset.variables}
    unkept = [name for name in kept if name not in there and name not in dropped]
    undropped = [name for name in dropped if not any(_has(store.group, name) for store in stores)]
    for argument, unknown in (("keep_variables", unkept), ("drop_variables", undropped)):
        if unknown:
            known: list[str] = []
            with suppress(Xzarr3Error):  # Not all stores can list.
                known = sorted({name for store in stores for name in store.group})
            text = f"{argument}: no variable {some(unknown)} in {stores[0].group!r}"
            if known:
                misspelt = next((name for name in unknown if did_you_mean(name, known)), unknown[0])
                text += f"; {one_of(misspelt, known, 'it has')}"
            if unknown is unkept:
                raise UnknownNameError(text)
            warnings.warn(text, UserWarning, stacklevel=levels_to_caller(("xzarr3", "xarray")))


def _listed(names: str | Iterable[str] | None) -> list[str] | None:
    return None if names is None else list(names_of(names))


def _has(group: Group, name: str) -> bool:
    try:
        return bool(name) and name in group
    except InvalidKeyError:
        return False
    except StoreError:  # What cannot be read is not said to be absent.
        return True


def _groups(path: str, group: Group, dropped: Collection[str]) -> Iterator[tuple[str, Group]]:
    yield path or ".", group
    for name, held in group._held():
        if isinstance(held, MetadataError):  # It may be a group, so that it is passed over only if asked for.
            if name not in dropped:
                raise left_out(held, name)
        elif not group.format.is_array(held):
            below = group._bound(name, held)
            if isinstance(below, Group):
                yield from _groups(f"{path}{'' if path in ('', '/') else '/'}{name}", below, dropped)


def _open(
    store: StoreLike | _UnwatchedStore,
    path: str | None,
    mode: str,
    consolidated: bool | None,
    storage_options: Mapping[str, Any] | None,
    zarr_format: ZarrFormat | None,
    missing: Missing | None,
) -> Group:
    """Open a group, from the consolidated metadata of the root if there are any."""
    if mode not in ("r", "r+"):
        raise ArgumentError(f"mode={mode!r} cannot open a dataset; accepted: 'r', 'r+'")
    place = store.store if isinstance(store, _UnwatchedStore) else store
    opened, path = locate_node(place, (path or "").strip("/"), storage_options)
    try:
        return open_group(
            opened, path, use_consolidated=consolidated, zarr_format=zarr_format, missing=missing
        )
    except MetadataError as error:
        if error.field == "consolidated_metadata" and error.found is ...:
            if path:
                raise NodeNotFoundError(f"no group '/{path}' in consolidated metadata of {opened}") from error
            error.advice = "call xzarr3.consolidate_metadata() first, or leave consolidated=True out"
        raise
