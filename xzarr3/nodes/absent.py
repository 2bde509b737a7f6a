"""Says what is where no node was found: the members near a path, a file, or the names in a folder.

This runs once, after a failure: a few small reads and one listing. What cannot be read is not told, so that
the error about the missing node is always the one that is raised.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from xzarr3.errors import Xzarr3Error, one_of, some
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata
from xzarr3.nodes.find import DocumentView, children, find_consolidated, find_format, find_node
from xzarr3.nodes.node import ancestors
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local.files import staging_folders
from xzarr3.stores.local.names import STAGED
from xzarr3.stores.local.near import missing_part

_OPENS = "; open it with xr.open_dataset(path), convert it with xzarr3.to_zarr()"
_ZIP = "a zip whose name does not end with '.zip'; rename it, or pass xzarr3.ZipStore(path)"
_SIGNATURES = (
    (b"\x89HDF\r\n\x1a\n", f"a netCDF-4 or HDF5 file{_OPENS}, or refer to it with VirtualiZarr"),
    (b"CDF", f"a netCDF-3 file{_OPENS}"),
    (b"GRIB", f"a GRIB file{_OPENS}"),
    (b"PK\x03\x04", _ZIP),
    (b"PK\x05\x06", _ZIP),
)
_ICECHUNK = (
    "an Icechunk repository; pass the store of one of its sessions, as from "
    "icechunk.Repository.open(storage).readonly_session('main').store"
)


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
    parent, name = os.path.split(store.folder or "")
    try:
        is_group = bool(name) and find_format(LocalStore(parent, read_only=True), "") is not None
    except (Xzarr3Error, OSError, ValueError):  # The error about the array is told, not this one.
        return None
    return (repr(parent), name) if is_group else None


def _at_root(store: Store) -> str:
    """What is at the place of a store that has no root node."""
    folder = store.folder
    if folder is not None and os.path.isfile(folder):
        with open(folder, "rb") as file:
            first = file.read(8)
        found = (meaning for mark, meaning in _SIGNATURES if first.startswith(mark))
        return f"it is {next(found, 'a file, not the directory of a store; correct the path')}"
    if folder is not None and not os.path.isdir(folder):
        if os.path.lexists(folder):
            return "it is neither a directory nor a file that can be read; correct the path"
        return missing_part(folder)
    if not store.listable:
        return ""
    keys, found_below = store.list_dir("")
    names = [*sorted(each.rstrip("/") for each in found_below if not each.startswith(STAGED)), *sorted(keys)]
    if {"snapshots", "transactions"} <= {*names} or {"snapshots", "refs"} <= {*names}:
        return f"it is {_ICECHUNK}"
    if names:
        return f"no store is there; it has: {some(names)}; open the one that is a store"
    if any(found_below) or (folder is not None and staging_folders(folder)):
        return f"it has only values of writes that are not complete, in '{STAGED}*'"
    return "nothing is stored there" if folder is None else "the directory is empty"
