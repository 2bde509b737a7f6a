"""Says what is where no node was found, and how to open it.

This runs once, after a failure: a few small reads, and one listing, or up to four if folders hold nothing but
folders. What cannot be read is not told, so that the error about the missing node is always the one that is
raised.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from xzarr3.commit.stage import staging_folders
from xzarr3.errors import StoreError, Xzarr3Error, one_of, printable, some
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.formats.v2 import V2
from xzarr3.formats.v3 import V3
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata
from xzarr3.nodes.find import DocumentView, children, find_consolidated, find_node, read_documents
from xzarr3.nodes.node import ancestors
from xzarr3.parallel import parallel_map
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local.names import STAGED
from xzarr3.stores.local.near import missing_part

_FIRST_BYTES = 4096
_MOST_FOLDERS, _FEW_FOLDERS = 10, 3  # Folders that are searched for stores; few if a request takes long.
_MOST_LISTED = 3  # Folders that are listed to find stores two levels below.
_LEVELS_LOCAL, _LEVELS = 12, 2  # Folders above that are searched for a store; a request may take long.

_HDF5 = "a netCDF-4 or HDF5 file; open it with xr.open_dataset(path)"
_NETCDF3 = "a netCDF-3 file; open it with xr.open_dataset(path)"
_TIFF = "a TIFF file; open it with rioxarray.open_rasterio()"
_CONVERT = ", convert it with xzarr3.to_zarr(), or refer to it with VirtualiZarr"
_ZIP = "a zip whose name does not end with '.zip'; rename it, or pass xzarr3.ZipStore(path)"
_SIGNATURES = (
    (b"\x89HDF\r\n\x1a\n", _HDF5 + _CONVERT),
    *((b"CDF" + version, _NETCDF3 + _CONVERT) for version in (b"\x01", b"\x02", b"\x05")),
    (b"GRIB", "a GRIB file; open it with xr.open_dataset(..., engine='cfgrib')" + _CONVERT),
    *((mark, _TIFF + _CONVERT) for mark in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    (b"PK\x03\x04", _ZIP),
    (b"PK\x05\x06", _ZIP),
    (b"\x1f\x8b", "a gzip file; unpack it first"),
    (b"PAR1", "a Parquet file; open it with pandas"),
)
_KERCHUNK = "a file of kerchunk references"
_ICECHUNK = (
    "an Icechunk repository; pass the store of one of its sessions, as from "
    "icechunk.Repository.open(storage).readonly_session('main').store"
)
_OLDEST = (
    "a store of Zarr version 1, which xzarr3 does not read; convert it with zarr.storage.migrate_1to2() of "
    "zarr-python 2"
)
_N5 = "an N5 container, which xzarr3 does not read; convert it to Zarr"
_OTHER_ENDINGS = (".nc", ".nc4", ".h5", ".hdf5", ".grb", ".grib", ".grib2", ".tif", ".tiff")


def what_is_there(store: Store, path: str) -> str:
    """What is at the place of a missing node, and how to open it; empty if nothing is known.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node that was not found.
    """
    try:
        near = nearest_group(store, path) if path else ""
        return near or _at_root(store)
    except (Xzarr3Error, OSError, ValueError):  # The error about the node is told, not this one.
        return ""


def nearest_group(store: Store, path: str) -> str:
    """The nearest group above a missing node and its members; empty if there is none."""
    look = DocumentView.around(store, path)
    for above in [*ancestors(path)][::-1]:
        found = find_node(look, above)
        if found is not None:
            format, meta = found
            if isinstance(meta, ArrayMetadata):
                return among(path, above, (), is_array=True)
            members = _members(look, format, meta, above)
            return among(path, above, members) if members else f"the nearest group above is '/{above}'"
    return ""


def _members(look: DocumentView, format: Format, group: GroupMetadata, path: str) -> list[str]:
    """The names in a group: from its consolidated metadata, from a listing, or from those of the root."""
    known: Iterable[str] = ()
    if group.consolidated is not None:
        known = group.consolidated
    elif look.listable:
        return children(look, format, path)
    else:
        root = find_consolidated(look)[1]
        prefix = node_prefix(path)
        if root is not None and root.consolidated is not None:
            known = [each.removeprefix(prefix) for each in root.consolidated if each.startswith(prefix)]
    return [name for name in known if "/" not in name]


def among(path: str, above: str, members: Iterable[str], *, is_array: bool = False) -> str:
    """The node at ``above``, and which of its members was probably meant by ``path``.

    Examples
    --------
    >>> among("ocean/sts", "ocean", ["sst", "ice"])
    "did you mean 'sst'? the group '/ocean' has: 'sst', 'ice'"
    >>> among("sst/x", "sst", (), is_array=True)
    "'/sst' is an array, which has no nodes below it"
    """
    if is_array:
        return f"'/{above}' is an array, which has no nodes below it"
    wanted = path.removeprefix(node_prefix(above)).partition("/")[0]
    return one_of(wanted, members, f"the group '/{above}' has" if above else "the group has")


def group_above(store: Store, path: str) -> tuple[str, str] | None:
    """The group above an array, as a user would write it, and the name of the array; None if there is none.

    Parameters
    ----------
    store : Store
    path : str
        Path of the array.
    """
    if path:
        above, _, name = path.rpartition("/")
        return f"'/{above}' of {store}", name
    try:
        up = _above(store)
        if up is None or not _is_node(up[0], ""):
            return None
        return (repr(up[0].folder) if up[0].folder is not None else f"{up[0]}"), up[1]
    except (Xzarr3Error, OSError, ValueError):  # The error about the array is told, not this one.
        return None


def _above(store: Store) -> tuple[Store, str] | None:
    """A store of the directory above that of a local store, and the name of this one there."""
    parent, name = os.path.split(store.folder or "")
    return (LocalStore(parent, read_only=True), name) if name else None


def _at_root(store: Store) -> str:
    """What is at the place of a store that has no root node."""
    above = _above(store)
    if above is not None:
        parent, name = above
        first = None
        with suppress(StoreError):  # Below, a local file that cannot be read is told apart from no file.
            first = parent.get(name, (0, _FIRST_BYTES))
        if first is not None:
            return _file(parent, name, bytes(first))
    if store.folder is not None and not os.path.isdir(store.folder):
        if os.path.lexists(store.folder):
            return (
                "it is neither a directory nor a file that can be read; correct the path, or its permissions"
            )
        return missing_part(store.folder)
    if not store.listable:
        return ""
    keys, found = store.list_dir("")
    prefixes = [prefix for prefix in found if not prefix.startswith(STAGED)]
    if not keys and not prefixes:
        return _staged(store, found)
    return (
        _other_format(store, keys, prefixes)
        or _inside(store)
        or _below(store, sorted(prefixes))
        or _contents(keys, prefixes)
    )


def _staged(store: Store, prefixes: Iterable[str]) -> str:
    """What is in a store without keys: nothing, or what writes keep in it until they are complete."""
    if any(prefixes) or (store.folder is not None and staging_folders(store)):
        return f"it has only values of writes that are not complete, in '{STAGED}*'"
    return "nothing is stored there" if store.folder is None else "the directory is empty"


def _contents(keys: Iterable[str], prefixes: Iterable[str]) -> str:
    names = [*sorted(name.rstrip("/") for name in prefixes), *sorted(keys)]
    return f"no store is there or in the folders below; it has: {some(names)}"


def _file(parent: Store, name: str, first: bytes) -> str:
    """What a file is that was given for a store."""
    for mark, meaning in _SIGNATURES:
        if first.startswith(mark):
            return f"it is {meaning}"
    if first[257:262] == b"ustar":
        return "it is a tar file; unpack it, or open the URL 'tar://::' followed by its path"
    inside = _inside(parent, name)
    if inside:
        return inside
    if first.lstrip()[:1] == b"{" and (b'"refs"' in first or b".zgroup" in first or b".zarray" in first):
        if parent.folder is None:
            return f"it is {_KERCHUNK}; open 'reference::' followed by its URL"
        return f"it is {_KERCHUNK}; open 'reference::{printable(os.path.join(parent.folder, name))}'"
    return "it is a file, not the directory of a store; correct the path"


def _inside(store: Store, name: str = "") -> str:
    """The node that a file or folder of this store belongs to; empty if it belongs to none."""
    names = [name] if name else []
    levels = _LEVELS_LOCAL if store.folder is not None else _LEVELS
    while len(names) < levels and (above := _above(store)) is not None:
        store, name = above
        names.insert(0, name)
    if not names:
        return ""
    path = "/".join(names)
    look = DocumentView.around(store, path)
    nodes = [above for above in ancestors(path) if _is_node(look, above)]
    if not nodes:
        return ""
    node = top = nodes[-1]
    while top.rpartition("/")[0] in nodes and top:
        top = top.rpartition("/")[0]
    place = _place(store, top)
    if node == top:
        return f"it is a part of the store {place}; open that"
    return f"it is a part of the store {place}; open that, with the path '{node[len(node_prefix(top)) :]}'"


def _is_node(store: Store, path: str) -> bool:
    return any(store.get(key) is not None for key in (*V3.defining_keys(path), *V2.defining_keys(path)))


def _place(store: Store, path: str) -> str:
    """A folder of a store, as a user would write it."""
    if store.folder is not None:
        return repr(os.path.join(store.folder, *path.split("/")))
    return f"'{path}' of {store}"


def _other_format(store: Store, keys: Iterable[str], prefixes: Iterable[str]) -> str:
    """What a folder is by the names in it, if it is of another format."""
    files, folders = set(keys), set(prefixes)
    if {"snapshots/", "transactions/"} <= folders or {"snapshots/", "refs/"} <= folders:
        return f"it is {_ICECHUNK}"
    if {"meta", "attrs"} <= files:
        return f"it is {_OLDEST}"
    if "attributes.json" in files:
        return f"it is {_N5}"
    if ".zmetadata" in files:
        (document,) = read_documents(store, [".zmetadata"])
        if document is not None and "record_size" in document:
            return (
                f"it is a folder of kerchunk references; open 'reference::' followed by {_place(store, '')}"
            )
    other = min((name for name in files if name.endswith(_OTHER_ENDINGS)), default=None)
    if other is not None:
        return (
            f"it is a folder of other files, such as {other!r}; open them with xr.open_mfdataset(), or "
            "refer to them with VirtualiZarr"
        )
    return ""


def _below(store: Store, prefixes: Sequence[str]) -> str:
    """The stores one or two levels below."""
    found = _nodes_in(store, prefixes)
    if not found:
        below = parallel_map(store.list_dir, prefixes[:_MOST_LISTED], store.concurrency)
        found = _nodes_in(store, [prefix for _, each in below for prefix in sorted(each)])
    if not found:
        return ""
    places = [os.path.join(store.folder, *path.split("/")) if store.folder else path for path in found]
    how = "open" if store.folder is not None else "pass as path (as group to xarray)"
    if len(places) == 1:
        return f"the store is in a folder below; {how} {places[0]!r}"
    return f"stores are in folders below; {how} one of {some(places)}"


def _nodes_in(store: Store, prefixes: Iterable[str]) -> list[str]:
    most = _MOST_FOLDERS if store.concurrency == 1 else _FEW_FOLDERS
    paths = [prefix.rstrip("/") for prefix in islice(prefixes, most)]
    keys = {path: (*V3.defining_keys(path), *V2.defining_keys(path)) for path in paths}
    asked = [key for each in keys.values() for key in each]
    there = dict(zip(asked, parallel_map(store.exists, asked, store.concurrency), strict=True))
    return [path for path in paths if any(there[key] for key in keys[path])]
