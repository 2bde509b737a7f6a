"""Nodes of a hierarchy in a store: their paths, their documents, and how they are erased.

Specification: Zarr v3 core, "Stored representation", "Node names", "Storage".
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from xzarr3.attributes import Attributes
from xzarr3.errors import (
    InvalidKeyError,
    MetadataError,
    NodeExistsError,
    NodeTypeError,
    ReadOnlyError,
    listed,
)
from xzarr3.formats import v3
from xzarr3.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.stores import Store
from xzarr3.stores.base import check_key


class _DocumentLock:
    """Held while documents are read to be changed, so that no thread undoes the change of another."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


document_lock = _DocumentLock()


class Node(ABC):
    """What arrays and groups have in common.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node in its hierarchy, without a leading ``/``; empty for the root.
    read_only : bool
        Refuse every write.
    """

    metadata: NodeMetadata

    def __init__(self, store: Store, path: str, *, read_only: bool) -> None:
        self.store = store
        self.path = path
        self.read_only = read_only or store.read_only

    @property
    def name(self) -> str:
        """Path of the node in its hierarchy, with a leading ``/``."""
        return f"/{self.path}"

    @property
    def basename(self) -> str:
        """Last name of the path."""
        return self.path.rpartition("/")[2]

    @property
    def attrs(self) -> MutableMapping[str, Any]:
        """The user attributes; a change is written to the store at once."""
        return Attributes(lambda: self.metadata.attributes, self._change_attributes)

    @abstractmethod
    def _change_attributes(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Apply ``change`` to the attributes that are stored now, and store the result."""

    def _check_writable(self) -> None:
        if self.read_only:
            self.store._check_writable()  # It may know better why.
            raise ReadOnlyError(f"'{self.name}' of {self.store} is open for reading only")


def normal_path(path: str) -> str:
    """The path of a node without slashes around it; the root is the empty path.

    Raises
    ------
    InvalidKeyError
        If a name in it is empty or climbs.

    Examples
    --------
    >>> normal_path("/ocean/sst"), normal_path("/")
    ('ocean/sst', '')
    """
    if not isinstance(path, str):
        raise InvalidKeyError(f"a path must be a string, found {type(path).__name__}")
    stripped = path.strip("/")
    return check_key(stripped) if stripped else ""


def check_new_path(path: str) -> str:
    """The normal path of a node that is to be made.

    Raises
    ------
    InvalidKeyError
        If the specification does not permit one of the names in it.
    """
    normal = normal_path(path)
    for name in normal.split("/") if normal else ():
        if not name.strip(".") or name.startswith("__") or name == v3.DOCUMENT:
            raise InvalidKeyError(
                f"no name for a node: {name!r} in path {path!r}; accepted: names that are not only periods, "
                f"do not begin with '__' and are not '{v3.DOCUMENT}'"
            )
    return normal


def node_prefix(path: str) -> str:
    """What the keys of a node begin with."""
    return f"{path}/" if path else ""


def document_key(path: str) -> str:
    """Key of the metadata document of a node."""
    return node_prefix(path) + v3.DOCUMENT


def ancestors(path: str) -> Iterator[str]:
    """The paths of the groups above a node, from the root on."""
    names = path.split("/") if path else []
    for depth in range(len(names)):
        yield "/".join(names[:depth])


def read_document(store: Store, path: str) -> dict[str, Any] | None:
    """The metadata document of a node, or None if there is no such node."""
    data = store.get(document_key(path))
    return None if data is None else v3.decode(data, path)


def read_metadata(store: Store, path: str) -> NodeMetadata | None:
    """What the metadata document of a node says, or None if there is no such node."""
    document = read_document(store, path)
    return None if document is None else v3.parse(document, path)


def write_document(
    store: Store, path: str, meta: NodeMetadata, consolidated: Mapping[str, Any] | None = None
) -> None:
    """Store the metadata document of a node, and bring consolidated copies of it above up to date."""
    document = v3.document(meta, consolidated)
    plain = document if consolidated is None else v3.document(meta)
    with document_lock:
        store.set(document_key(path), v3.encode(document, path))
        for above in ancestors(path):
            holder = read_document(store, above)
            held = _held(holder)
            if holder is not None and held is not None:
                held[path[len(node_prefix(above)) :]] = plain
                store.set(document_key(above), v3.encode(holder, above))


def drop_from_consolidated(store: Store, path: str) -> None:
    """Remove a node, and what was below it, from the consolidated copies above."""
    with document_lock:
        for above in ancestors(path):
            holder = read_document(store, above)
            held = _held(holder)
            if holder is not None and held is not None:
                relative = path[len(node_prefix(above)) :]
                for name in [n for n in held if n == relative or n.startswith(f"{relative}/")]:
                    del held[name]
                store.set(document_key(above), v3.encode(holder, above))


def _held(holder: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The documents in a document's consolidated metadata; None if there are none, or none we understand."""
    consolidated = (holder or {}).get("consolidated_metadata")
    documents = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    return documents if isinstance(documents, dict) else None


def make_groups_above(store: Store, path: str) -> None:
    """Make the groups above a node that are not there yet.

    Raises
    ------
    NodeTypeError
        If there is an array above.
    """
    missing = []
    for above in reversed(list(ancestors(path))):
        found = read_document(store, above)
        if found is None:
            missing.append(above)
        elif found.get("node_type") == "array":
            raise NodeTypeError(f"cannot make '/{path}' in {store}: '/{above}' is an array, not a group")
    for above in reversed(missing):
        write_document(store, above, GroupMetadata())


def make_room(store: Store, path: str, *, overwrite: bool) -> None:
    """See to it that there is no node at ``path``, so that one can be made there.

    Raises
    ------
    NodeExistsError
        If there is one and ``overwrite`` is not set, or what is there is not all Zarr.
    """
    if overwrite:
        erase_node(store, path)
    elif store.exists(document_key(path)):
        raise NodeExistsError(
            f"there is a node at '/{path}' in {store} already; accepted: overwrite=True to replace it"
        )


def erase_node(store: Store, path: str) -> None:
    """Erase an array, or a group with all that is below it, if it is there.

    Only keys that belong to the hierarchy are erased: documents, and chunks of its arrays.

    Raises
    ------
    NodeExistsError
        If there are keys below ``path`` that do not belong to it. Nothing is erased then.
    """
    keys = list(store.list_prefix(node_prefix(path)))
    if not keys:
        return
    documents = [key for key in keys if key.rpartition("/")[2] == v3.DOCUMENT]
    chunks = chunks_among(store, documents, set(keys).difference(documents))
    foreign = sorted(set(keys).difference(documents, chunks))
    if foreign:
        raise NodeExistsError(
            f"'/{path}' in {store} holds {len(foreign)} keys that are no part of a Zarr hierarchy, "
            f"{listed(foreign[:5])}; nothing was erased; accepted: another place, or removing them by hand"
        )
    # Documents from the top down first: what is left after a crash is no node any more.
    store.erase_values([*sorted(documents, key=lambda key: (key.count("/"), key)), *chunks])
    drop_from_consolidated(store, path)


def chunks_among(store: Store, documents: list[str], others: set[str]) -> set[str]:
    """Those of the keys ``others`` that are chunks of the arrays with these documents."""
    arrays: dict[str, ArrayMetadata] = {}
    for key in documents:
        prefix = key[: -len(v3.DOCUMENT)]
        try:
            meta = read_metadata(store, prefix.rstrip("/"))
        except MetadataError:  # Not readable, so it cannot tell which chunks are its own.
            continue
        if isinstance(meta, ArrayMetadata):
            arrays[prefix] = meta
    return {key for key in others if _is_chunk(key, arrays)}


def _is_chunk(key: str, arrays: Mapping[str, ArrayMetadata]) -> bool:
    """Whether ``key`` is that of a chunk of one of ``arrays``, which are there by their prefixes."""
    end = 0
    while end <= len(key):
        meta = arrays.get(key[:end])
        if meta is not None:
            return meta.chunk_key_encoding.coords(key[end:], len(meta.shape)) is not None
        slash = key.find("/", end)
        end = slash + 1 if slash >= 0 else len(key) + 1
    return False


def children(store: Store, path: str) -> list[str]:
    """The names of the nodes directly below a group, found by listing the store."""
    prefix = node_prefix(path)
    prefixes = store.list_dir(prefix)[1]
    names = sorted(below[len(prefix) : -1] for below in prefixes)
    # The text reserves names that begin with "__", but xarray gives one to an array that has no name.
    known = (name for name in names if not name.startswith("__zarr"))
    return [name for name in known if store.exists(document_key(prefix + name))]


def documents_below(store: Store, path: str) -> dict[str, dict[str, Any]]:
    """The documents of all nodes below a group, by relative path, found by listing the store."""
    found: dict[str, dict[str, Any]] = {}
    for name in children(store, path):
        child = node_prefix(path) + name
        document = read_document(store, child)
        if document is None:
            continue
        document.pop("consolidated_metadata", None)
        found[name] = document
        if document.get("node_type") == "group":
            for below, inner in documents_below(store, child).items():
                found[f"{name}/{below}"] = inner
    return found
