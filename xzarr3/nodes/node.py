"""What arrays and groups have in common: a path, a format, attributes; and the rules for paths.

Does not read or write documents.

Specification: Zarr v3 core, "Stored representation", "Node names", "Storage".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Self

import msgspec

from xzarr3.display.shown import Shown
from xzarr3.errors import ArgumentTypeError, InvalidKeyError, ReadOnlyError
from xzarr3.formats import Format, ZarrFormat
from xzarr3.formats.base import MAX_NAMES
from xzarr3.formats.v3 import V3
from xzarr3.model.metadata import NodeMetadata
from xzarr3.nodes.attributes import Attributes
from xzarr3.stores import Store, StoreLike
from xzarr3.stores.keys import OWN, check_key
from xzarr3.stores.locks import key_lock
from xzarr3.stores.open import locate


def document_lock(store: Store) -> AbstractContextManager[object]:
    """A lock to hold while documents of a store are changed, so no thread undoes the change of another.

    Threads that change another store are not blocked.
    """
    return key_lock(store.identity, "\0documents")


class StorePath(msgspec.Struct, frozen=True):
    """A store and a path in it.

    Parameters
    ----------
    store : Store
    path : str
        Path of a node in its hierarchy, without a leading ``/``; empty for the root.
    """

    store: Store
    path: str = ""

    def __str__(self) -> str:
        return f"{self.store}/{self.path}" if self.path else str(self.store)

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(self.store, normal_path(f"{self.path}/{name}"))


class Named:
    """What has a path."""

    path: str

    @property
    def name(self) -> str:
        """Path of the node in its hierarchy, with a leading ``/``."""
        return f"/{self.path}"

    @property
    def basename(self) -> str:
        """Last name of the path."""
        return self.path.rpartition("/")[2]


class Node(Named, Shown, ABC):
    """What arrays and groups have in common.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node in its hierarchy, without a leading ``/``; empty for the root.
    format : Format
        Format of the hierarchy.
    read_only : bool
        Refuse every write.
    """

    metadata: NodeMetadata

    def __init__(self, store: Store, path: str, format: Format, *, read_only: bool) -> None:
        self.store = store
        self.path = path
        self.format = format
        self.read_only = read_only or store.read_only

    @property
    def zarr_format(self) -> ZarrFormat:
        """The format in which the node is stored: 3, 2 or "3-draft"."""
        return self.format.zarr_format

    @property
    def attrs(self) -> MutableMapping[str, Any]:
        """The user attributes; a change is written to the store at once."""
        return Attributes(self._attributes, self._change_attributes)

    def _attributes(self) -> Mapping[str, Any]:
        return self.metadata.attributes

    def update_attributes(self, new_attributes: Mapping[str, Any]) -> Self:
        """Set several attributes at once; others stay. Returns the node.

        Raises
        ------
        MetadataError
            If a value is no JSON.
        ReadOnlyError
            If the node is read-only.

        Examples
        --------
        >>> import xzarr3
        >>> group = xzarr3.create_group(xzarr3.MemoryStore(), attributes={"title": "SST"})
        >>> group.update_attributes({"source": "buoys"}).attrs
        {'title': 'SST', 'source': 'buoys'}
        """
        self.attrs.update(new_attributes)
        return self

    @property
    def store_path(self) -> StorePath:
        """The store and the path in it, together.

        Examples
        --------
        >>> import xzarr3
        >>> group = xzarr3.create_group(xzarr3.MemoryStore(), "ocean")
        >>> group.store_path.store is group.store, group.store_path.path
        (True, 'ocean')
        """
        return StorePath(self.store, self.path)

    @abstractmethod
    def _change_attributes(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Apply ``change`` to the stored attributes, and store the result."""

    def _check_writable(self) -> None:
        if self.read_only:
            self.store.check_writable()  # the store may give a more exact reason
            raise ReadOnlyError(f"'{self.name}' of {self.store} is read-only; open it with mode='r+'")


def normal_path(path: str) -> str:
    """The path of a node without slashes around it; the root is the empty path.

    Raises
    ------
    InvalidKeyError
        If a name in it is empty, ``.`` or ``..``, or if there are too many names.

    Examples
    --------
    >>> normal_path("/ocean/sst"), normal_path("/")
    ('ocean/sst', '')
    """
    if not isinstance(path, str):
        raise InvalidKeyError(f"not a path of a node: {path!r}; accepted: a string such as 'ocean/sst'")
    stripped = path.strip("/")
    if stripped.count("/") >= MAX_NAMES:
        raise InvalidKeyError(f"a path of {stripped.count('/') + 1} names; accepted: at most {MAX_NAMES}")
    return check_key(stripped) if stripped else ""


def path_or_name(path: str, name: str | None) -> str:
    """The path of a new node, which zarr-python calls its name.

    Raises
    ------
    TypeError
        If both are given.
    """
    if name is None:
        return path
    if path:
        raise ArgumentTypeError(f"path={path!r} and name={name!r} are given; give one of them")
    return name


def locate_node(
    store: StoreLike,
    path: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    mode: Literal["r", "r+", "a"] = "r",
) -> tuple[Store, str]:
    """The store of a node, and the normal path of the node in it.

    Parameters
    ----------
    store : path, URL, Store, or object of another library
        What :func:`~xzarr3.open_store` accepts, or a ``StorePath``, a group or an array, from which the path
        begins.
    path : str
    storage_options : mapping, optional
    mode : {"r", "r+", "a"}

    Examples
    --------
    >>> from xzarr3 import MemoryStore, create_group
    >>> locate_node(create_group(MemoryStore(), "ocean"), "sst")[1]
    'ocean/sst'
    """
    opened, above = locate(store, storage_options, mode=mode)
    return opened, "/".join(filter(None, map(normal_path, (above, path))))


def check_new_path(path: str, format: Format = V3) -> str:
    """The normal path of a new node.

    Raises
    ------
    InvalidKeyError
        If the format does not permit a name in it, or writers use such names for what they keep for a while.
    """
    normal = normal_path(path)
    for name in normal.split("/") if normal else ():
        format.check_name(name, path)
        if name.startswith(OWN):
            raise InvalidKeyError(
                f"not a name for a node: {name!r} in path {path!r}; accepted: names that do not begin with "
                f"{OWN!r}, as those of what incomplete writes keep do"
            )
    return normal


def ancestors(path: str) -> Iterator[str]:
    """The paths of the groups above a node, from the root on."""
    names = path.split("/") if path else []
    for depth in range(len(names)):
        yield "/".join(names[:depth])
