"""Reading with ``engine="xzarr3"``: the entry point."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import xarray as xr
from xarray import Coordinates, Dataset, DataTree
from xarray.backends.common import AbstractDataStore, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint
from xarray.core.utils import is_remote_uri

from xzarr3.api import open_group
from xzarr3.errors import MetadataError, NodeNotFoundError
from xzarr3.formats import ZarrFormat
from xzarr3.group import Group
from xzarr3.io.missing import Missing
from xzarr3.stores import Store, StoreLike, open_store
from xzarr3.xarray.decode import decoded_datasets
from xzarr3.xarray.lazy import LazyArray
from xzarr3.xarray.variables import MissingDimensionNamesError, Xzarr3DataStore, for_xarray

__all__ = [
    "LazyArray",
    "MissingDimensionNamesError",
    "Xzarr3BackendEntrypoint",
    "Xzarr3DataStore",
    "open_dataset",
]

_DOCUMENTS = ("zarr.json", ".zgroup", ".zmetadata")


def open_dataset(store: StoreLike, *, chunks: Any = "grouped", **options: Any) -> Dataset:
    """Open a dataset lazily: :func:`xarray.open_dataset` with ``engine="xzarr3"``.

    Parameters
    ----------
    store : path, URL or Store
    chunks : "grouped" or whatever :func:`xarray.open_dataset` takes
        How variables are divided into dask arrays. ``"grouped"`` makes blocks of whole units of storage,
        shards or chunks, of several where these are small; without dask it is None, with which there are no
        dask arrays and values are read when they are used. ``{}`` makes one block of each unit of storage.
    **options
        Whatever :func:`xarray.open_dataset` and this engine take, such as ``group``, ``drop_variables``,
        ``keep_variables``, ``consolidated``, ``storage_options`` and ``missing``.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> _ = xzarr3.create_array(store, "t", data=np.arange(3.0), dimension_names=["time"])
    >>> open_dataset(store)["t"].mean().compute().item()
    1.0
    """
    if isinstance(chunks, str) and chunks == "grouped":
        dask = find_spec("dask") is not None
        chunks = {} if dask else None
        options.setdefault("group_chunks", dask)
    # Of a path xarray knows the time of modification only; a store says more to the names of dask's tasks.
    opened = open_store(store, options.pop("storage_options", None))
    engine: Any = Xzarr3BackendEntrypoint
    place: Any = opened if opened.tells_changes else _Place(opened)  # Neither is of xarray's types.
    dataset: Dataset = xr.open_dataset(place, engine=engine, chunks=chunks, **options)
    if opened.folder is not None and opened is not store:
        dataset.encoding.setdefault("source", opened.folder)
    return dataset


class _Place:
    """A store that cannot tell changes, as xarray names tasks after it: by where it is.

    Parameters
    ----------
    store : Store
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def __dask_tokenize__(self) -> object:
        return "xzarr3.Place", self.store.identity


class Xzarr3BackendEntrypoint(BackendEntrypoint):
    """The engine ``"xzarr3"``: what :func:`xarray.open_dataset` and its relatives call.

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
        keep_variables: str | Iterable[str] | None = None,
        group_chunks: bool = False,
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
        keep_variables : str or iterable of str, optional
            The only variables to open, besides the index coordinates of their dimensions; others are not even
            looked at, as if they were all in ``drop_variables``. Names that there are none of are ignored.
        group_chunks : bool
            With ``chunks={}``, make blocks of several units of storage where these are small, because a task
            costs more than to read a small chunk.

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
            store = Xzarr3DataStore(
                _open(filename_or_obj, group, mode, consolidated, storage_options, zarr_format, missing),
                drop_variables=drop_variables or (),
                keep_variables=keep_variables,
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
            return decoded_datasets({"": store}, **decoders)[""]
        return StoreBackendEntrypoint().open_dataset(store, drop_variables=drop_variables, **decoders)

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
        keep_variables: str | Iterable[str] | None = None,
        group_chunks: bool = False,
        **decoders: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, a dataset for each.

        The keys are paths, absolute if ``group`` is not given and relative to it if it is, as xarray's zarr
        engine has them.
        """
        root = _open(filename_or_obj, group, mode, consolidated, storage_options, zarr_format, missing)
        with for_xarray():
            root = root.loaded()
        stores = {
            path: Xzarr3DataStore(
                node,
                drop_variables=drop_variables or (),
                keep_variables=keep_variables,
                group_chunks=group_chunks,
                use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
            )
            for path, node in _groups("/" if not group else "", root)
        }
        return decoded_datasets(stores, **decoders)

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open a group and all groups below it as a tree; takes what ``open_groups_as_dict`` takes."""
        return opened_tree(self.open_groups_as_dict(filename_or_obj, **options))


def _groups(path: str, group: Group) -> Iterator[tuple[str, Group]]:
    yield path or ".", group
    for name, below in group.groups():
        yield from _groups(f"{path}{'' if path in ('', '/') else '/'}{name}", below)


def _open(
    store: StoreLike | _Place,
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
    place = store.store if isinstance(store, _Place) else store
    opened, path = open_store(place, storage_options), (path or "").strip("/")
    try:
        return open_group(
            opened, path, use_consolidated=consolidated, zarr_format=zarr_format, missing=missing
        )
    except MetadataError as error:
        if path and error.field == "consolidated_metadata" and error.found is ...:
            raise NodeNotFoundError(f"no group '/{path}' in consolidated metadata of {opened}") from error
        raise


# Trees, put together without the copies that ``DataTree.from_dict`` makes

_MAKES_INDEXES = "_maybe_create_default_indexes"
"""What xarray calls for each node of a tree that a backend has opened."""


def tree_of(datasets: Mapping[str, Dataset], name: str | None = None) -> DataTree:
    """A tree of datasets, of which those above each are among them.

    Parameters
    ----------
    datasets : mapping of str to Dataset
        By path; that of the root is ``/`` or ``.``.
    name : str, optional

    Raises
    ------
    ValueError
        If a dataset does not go with what it inherits.

    Examples
    --------
    >>> tree_of({"/": Dataset(), "/a": Dataset(), "/a/b": Dataset()}).groups
    ('/', '/a', '/a/b')
    """
    nodes: dict[str, DataTree] = {}
    below: dict[str, dict[str, DataTree]] = {}
    for path, dataset in datasets.items():
        place = path.strip("/") if path != "." else ""
        above, _, own = place.rpartition("/")
        nodes[place] = DataTree(dataset, name=own or name)
        if place:
            below.setdefault(above, {})[own] = nodes[place]
    for place in sorted(below, key=lambda each: (each.count("/"), bool(each))):  # From the top down.
        nodes[place].children = below[place]
    return nodes[""]


def opened_tree(datasets: Mapping[str, Dataset]) -> DataTree:
    """A tree for xarray to make indexes of, which does that without copies; else as :func:`tree_of`."""
    tree = tree_of(datasets)
    tree.__class__ = _Opened
    return tree


class _Opened(DataTree):  # type: ignore[no-untyped-call]
    """The root of a tree without indexes, of which xarray makes one that has them.

    If xarray was told not to, it looks at ``encoding`` and hands this tree on, which is then a plain one.
    """

    __slots__ = ()

    @property
    def encoding(self) -> dict[Any, Any]:
        """Encodings of the dataset, as any tree has them."""
        self.__class__ = DataTree  # type: ignore[assignment]
        return self.encoding

    @encoding.setter
    def encoding(self, value: Mapping[Any, Any]) -> None:
        self.__class__ = DataTree  # type: ignore[assignment]
        self.encoding = dict(value)

    def map_over_datasets(self, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What ``func`` makes of each dataset, as a tree; this one, with indexes, if ``func`` makes these."""
        if args or options or getattr(func, "__name__", None) != _MAKES_INDEXES:
            return super().map_over_datasets(func, *args, **options)
        self.__class__ = DataTree  # type: ignore[assignment]
        indexed = [
            (path, node)
            for path, node in self.subtree_with_keys
            if any(var.dims == (name,) for name, var in node.variables.items())
        ]
        for path, node in indexed:  # From the top down.
            try:
                made = _with_indexes(node.to_dataset(inherit=False))
            except Exception as error:
                error.add_note(f"Raised whilst mapping function over node(s) with path {path!r}")
                raise
            node.dataset = made
        return self


def _with_indexes(dataset: Dataset) -> Dataset:
    """A dataset that has no indexes with those of its own coordinates.

    Nothing is to be aligned nor merged for that, as ``assign_coords`` would try.
    """
    own = {name: var for name, var in dataset.coords.variables.items() if var.dims == (name,)}
    coords = Coordinates(own)
    return dataset._replace(
        variables={**dataset._variables, **coords.variables},
        coord_names=dataset._coord_names | set(own),
        indexes=dict(coords.xindexes),
    )
