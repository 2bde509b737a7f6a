"""Nodes of a hierarchy in a store: their paths, their documents, and how they are erased.

Specification: Zarr v3 core, "Stored representation", "Node names", "Storage".
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
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
from xzarr3.formats import DraftFormat, Format, ZarrFormat, documents, parse_format
from xzarr3.formats.base import MAX_NAMES, Document, Fetch, Held, node_prefix
from xzarr3.formats.v2 import V2
from xzarr3.formats.v3 import DOCUMENT, V3
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
    format : Format
        How the hierarchy is stored.
    read_only : bool
        Refuse every write.
    """

    metadata: NodeMetadata

    def __init__(self, store: Store, path: str, format: Format, *, read_only: bool) -> None:
        self.store = store
        self.path = path
        self.format = format
        self.read_only = read_only or store.read_only or not format.writable

    @property
    def zarr_format(self) -> ZarrFormat:
        """The format in which the node is stored: 3, 2 or "3-draft"."""
        return self.format.zarr_format

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
        return Attributes(self._attributes, self._change_attributes)

    def _attributes(self) -> Mapping[str, Any]:
        return self.metadata.attributes

    @abstractmethod
    def _change_attributes(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Apply ``change`` to the attributes that are stored now, and store the result."""

    def _check_writable(self) -> None:
        if self.read_only:
            self.store._check_writable()  # It may know better why.
            if not self.format.writable:
                raise ReadOnlyError(
                    f"'{self.name}' of {self.store} is stored as tools did before version 3 was final, which "
                    "is only read; accepted: xzarr3.copy() to another format"
                )
            raise ReadOnlyError(f"'{self.name}' of {self.store} is open for reading only")


def normal_path(path: str) -> str:
    """The path of a node without slashes around it; the root is the empty path.

    Raises
    ------
    InvalidKeyError
        If a name in it is empty or climbs, or there are too many of them.

    Examples
    --------
    >>> normal_path("/ocean/sst"), normal_path("/")
    ('ocean/sst', '')
    """
    if not isinstance(path, str):
        raise InvalidKeyError(f"a path must be a string, found {type(path).__name__}")
    stripped = path.strip("/")
    if stripped.count("/") >= MAX_NAMES:
        raise InvalidKeyError(f"a path of {stripped.count('/') + 1} names; accepted: at most {MAX_NAMES}")
    return check_key(stripped) if stripped else ""


def check_new_path(path: str, format: Format = V3) -> str:
    """The normal path of a node that is to be made.

    Raises
    ------
    InvalidKeyError
        If the format does not permit one of the names in it.
    """
    normal = normal_path(path)
    for name in normal.split("/") if normal else ():
        format.check_name(name, path)
    return normal


def ancestors(path: str) -> Iterator[str]:
    """The paths of the groups above a node, from the root on."""
    names = path.split("/") if path else []
    for depth in range(len(names)):
        yield "/".join(names[:depth])


# Reading


def read_document(store: Store, key: str, path: str = "") -> Document | None:
    """The JSON object under a key, or None if there is none."""
    data = store.get(key)
    return None if data is None else documents.decode(data, path, key.rpartition("/")[2])


def fetcher(store: Store, path: str) -> Fetch:
    """What gives a format the documents of a node."""

    def fetch(keys: Sequence[str]) -> list[Document | None]:
        return [read_document(store, key, path) for key in keys]

    return fetch


def read_held(store: Store, format: Format, path: str) -> Held | None:
    """The documents of a node, or None if it has none."""
    return format.fetch(path, fetcher(store, path))


def read_metadata(store: Store, format: Format, path: str) -> NodeMetadata | None:
    """What the documents of a node say, or None if there is no such node."""
    held = read_held(store, format, path)
    if held is not None:
        return format.parse(held, path)
    if format.implicit_groups and any(store.list_dir(format.listing_prefix(path))):
        return GroupMetadata(zarr_format=format.zarr_format)
    return None


def exists(store: Store, format: Format, path: str) -> bool:
    """Whether there is a node."""
    if any(store.exists(key) for key in format.defining_keys(path)):
        return True
    return format.implicit_groups and any(store.list_dir(format.listing_prefix(path)))


def find_format(store: Store, path: str, zarr_format: ZarrFormat | None = None) -> Format | None:
    """The format of the node at a path, or None if there is no node of the format that is asked for.

    Where a node is stored in two formats, version 3 comes before version 2.
    """
    if zarr_format in (None, 3):
        document = _entry_or_document(store, path)
        if document is not None and not _is_entry_point(document, path):
            return V3
    if zarr_format in (None, 2) and exists(store, V2, path):
        return V2
    draft = _draft(store) if zarr_format in (None, "3-draft") else None
    return draft if draft is not None and exists(store, draft, path) else None


def _draft(store: Store) -> DraftFormat | None:
    """The draft, as the entry point of a hierarchy has it; None if there is no entry point."""
    entry = _entry_or_document(store, "")
    if entry is None or not _is_entry_point(entry, ""):
        return None
    return DraftFormat.from_entry_point(entry)


def _entry_or_document(store: Store, path: str) -> Document | None:
    return read_document(store, node_prefix(path) + DOCUMENT, path)


def _is_entry_point(document: Document, path: str) -> bool:
    return not path and DraftFormat.is_entry_point(document)


def find_node(
    store: Store, path: str, zarr_format: ZarrFormat | None = None, *, use_consolidated: bool = True
) -> tuple[Format, NodeMetadata] | None:
    """The node at a path and its format, or None if there is none of the format that is asked for.

    Raises
    ------
    MetadataError
        If its documents are not valid.
    """
    if zarr_format in (None, 3):
        document = _entry_or_document(store, path)
        if document is not None and not _is_entry_point(document, path):
            return V3, V3.parse(document if use_consolidated else V3.without_consolidated(document), path)
    format: Format | None = V2 if zarr_format in (None, 2) else None
    held = None if format is None else read_held(store, format, path)
    if format is None or held is None:
        format = _draft(store) if zarr_format in (None, "3-draft") else None
        meta = None if format is None else read_metadata(store, format, path)
        return None if format is None or meta is None else (format, meta)
    return format, format.parse(held if use_consolidated else format.without_consolidated(held), path)


def format_for_new(store: Store, path: str, zarr_format: ZarrFormat | None) -> Format:
    """The format in which a node is made: the one that is asked for, or else that of what is there already.

    Raises
    ------
    MetadataError
        If the groups above are stored in another format, which would hide them.
    """
    found = None
    for above in [*ancestors(path)][::-1]:
        found = find_format(store, above)
        if found is not None:
            break
    if found is None and path:
        found = _draft(store)
    if zarr_format is None:
        try:
            return found or find_format(store, path) or _draft(store) or V3
        except MetadataError:  # Whatever is there is in nobody's way, or is replaced.
            return V3
    wanted = parse_format(zarr_format)
    if found is not None and found.zarr_format != wanted.zarr_format:
        raise MetadataError(
            f"the groups above are stored in format {found.zarr_format} and no other can be below",
            path=path,
            field="zarr_format",
            found=zarr_format,
            accepted=f"{found.zarr_format!r}, or another place",
        )
    return found or wanted


def children(store: Store, format: Format, path: str) -> list[str]:
    """The names of the nodes directly below a group, found by listing the store."""
    sure, possible = format.child_names(*store.list_dir(format.listing_prefix(path)), path)
    prefix = node_prefix(path)
    return [name for name in sorted(sure | possible) if name in sure or exists(store, format, prefix + name)]


def held_below(store: Store, format: Format, path: str) -> dict[str, Held]:
    """The documents of all nodes below a group, by relative path, found by listing the store."""
    found: dict[str, Held] = {}
    for name in children(store, format, path):
        child = node_prefix(path) + name
        held = read_held(store, format, child)
        if held is not None:
            found[name] = held
            if format.is_array(held):
                continue
        for below, inner in held_below(store, format, child).items():
            found[f"{name}/{below}"] = inner
    return found


# Writing


def write_node(
    store: Store,
    format: Format,
    path: str,
    meta: NodeMetadata,
    consolidated: Mapping[str, Held] | None = None,
) -> None:
    """Store the documents of a node, and bring consolidated copies of it up to date."""
    values = {
        key: documents.encode(document, path)
        for key, document in format.documents(meta, path, consolidated).items()
    }
    with document_lock:
        for key, value in values.items():
            store.set(key, value)
        _update_consolidated(store, format, path, meta, values)


def _update_consolidated(
    store: Store, format: Format, path: str, meta: NodeMetadata | None, written: Collection[str] = ()
) -> None:
    for above in (*ancestors(path), path):
        key = format.consolidated_key(above)
        holder = None if key is None or key in written else read_document(store, key, above)
        if key is None or holder is None:
            continue
        relative = path[len(node_prefix(above)) :]
        changed = format.update_consolidated(holder, relative, meta)
        if changed is not None:
            store.set(key, documents.encode(changed, above))


def drop_from_consolidated(store: Store, format: Format, path: str) -> None:
    """Remove a node, and what was below it, from the consolidated copies above."""
    with document_lock:
        _update_consolidated(store, format, path, None)


def orphans_of(store: Store, format: Format, path: str, meta: ArrayMetadata) -> set[str]:
    """The keys that a new array would take for its chunks, as those of an earlier one were left there."""
    prefix = format.chunk_prefix(path)
    if not store.listable or not any(store.list_dir(prefix)):
        return set()
    return {key for key in store.list_prefix(prefix) if _owns(meta, key[len(prefix) :])}


def make_groups_above(store: Store, format: Format, path: str) -> None:
    """Make the groups above a node that are not there yet, if the format wants them.

    Raises
    ------
    NodeTypeError
        If there is an array above.
    """
    missing = []
    for above in reversed(list(ancestors(path))):
        held = read_held(store, format, above)
        if held is None:
            missing.append(above)
        elif format.is_array(held):
            raise NodeTypeError(f"cannot make '/{path}' in {store}: '/{above}' is an array, not a group")
    for key, document in format.hierarchy_documents().items():
        if not store.exists(key):
            store.set(key, documents.encode(document))
    if not format.implicit_groups:
        for above in reversed(missing):
            write_node(store, format, above, GroupMetadata(zarr_format=format.zarr_format))


def make_room(
    store: Store,
    path: str,
    *,
    overwrite: bool,
    for_group_of: Format | None = None,
    orphans: Collection[str] = (),
) -> None:
    """See to it that there is no node at ``path``, so that one can be made there.

    Parameters
    ----------
    store : Store
    path : str
    overwrite : bool
        Erase what is there.
    for_group_of : Format, optional
        A group of this format that is only implied by what is below it makes room for one with a document.
    orphans : collection of str
        Keys that a new array would take for its chunks.

    Raises
    ------
    NodeExistsError
        If there is one and ``overwrite`` is not set, or what is there is not all Zarr.
    """
    if overwrite:
        erase_node(store, path, orphans=orphans)
        return
    format = find_format(store, path)
    implied = format is not None and not any(store.exists(key) for key in format.defining_keys(path))
    if format is not None and not (implied and format == for_group_of):
        raise NodeExistsError(
            f"there is a node at '/{path}' in {store} already; accepted: overwrite=True to replace it"
        )
    if orphans:
        raise NodeExistsError(
            f"there are {len(orphans)} keys at '/{path}' in {store} that the new array would take for its "
            f"chunks, such as {min(orphans)!r}; accepted: overwrite=True to erase them, or another path"
        )


def erase_node(
    store: Store, path: str, format: Format | None = None, *, orphans: Collection[str] = ()
) -> None:
    """Erase an array, or a group with all that is below it, if it is there.

    Only keys that belong to the hierarchy are erased: documents, and chunks of its arrays.

    Parameters
    ----------
    store : Store
    path : str
    format : Format, optional
        Format of the node; by default the one in which it is found.
    orphans : collection of str
        Keys that may be erased besides.

    Raises
    ------
    NodeExistsError
        If there are keys below ``path`` that do not belong to it. Nothing is erased then.
    """
    formats = formats_in(store, path, format)
    found = keys_at(store, formats, path)
    if not found:
        return
    kept = documents_among(formats, found)
    chunks = chunks_among(store, formats, kept, found.difference(kept)) | found.intersection(orphans)
    foreign = sorted(found.difference(kept, chunks))
    if foreign:
        raise NodeExistsError(
            f"'/{path}' in {store} holds {len(foreign)} keys that are no part of a Zarr hierarchy, "
            f"{listed(foreign[:5])}; nothing was erased; accepted: another place, or removing them by hand"
        )
    # Documents from the top down first: what is left after a crash is no node any more.
    store.erase_values([*sorted(kept, key=lambda key: (key.count("/"), key)), *sorted(chunks)])
    for format in formats:
        drop_from_consolidated(store, format, path)
        for prefix in format.prefixes(path):
            store.sweep(prefix)


def formats_in(store: Store, path: str = "", format: Format | None = None) -> tuple[Format, ...]:
    """The formats in which a node of a store may be, and what is below it.

    Below the root, what has the keys of the draft is none of the nodes of the other formats, and the reverse.

    Parameters
    ----------
    store : Store
    path : str
    format : Format, optional
        Format of the node; by default the one in which it is found.
    """
    try:
        draft = _draft(store)
    except MetadataError:  # Whatever it is, it is no entry point.
        draft = None
    if draft is None:
        return V3, V2
    if not path:
        return V3, V2, draft
    if format is None:
        format = next((each for each in (V3, V2) if exists(store, each, path)), draft)
    return (draft,) if format == draft else (V3, V2)


def keys_at(store: Store, formats: Sequence[Format], path: str) -> set[str]:
    """The keys of a node and of everything below it, and what else is among them."""
    found = {key for format in formats for key in format.document_keys(path) if store.exists(key)}
    for prefix in {prefix for format in formats for prefix in format.prefixes(path)}:
        found.update(store.list_prefix(prefix))
    return found


def documents_among(formats: Sequence[Format], keys: Collection[str]) -> list[str]:
    """Those of some keys that are keys of documents; what comes with a node only counts beside one."""

    def is_document(key: str) -> bool:
        for format in formats:
            place = format.place(key)
            if place is not None and (
                place.kind != "other" or any(each in keys for each in format.defining_keys(place.path))
            ):
                return True
        return False

    return [key for key in keys if is_document(key)]


def chunks_among(
    store: Store, formats: Sequence[Format], documents: Iterable[str], others: Collection[str]
) -> set[str]:
    """Those of the keys ``others`` that are chunks of the arrays with these documents."""
    if not others:
        return set()
    arrays: dict[str, list[ArrayMetadata]] = {}
    for key in documents:
        for format in formats:
            place = format.place(key)
            if place is None or place.kind not in ("array", "node"):
                continue
            try:
                meta = read_metadata(store, format, place.path)
            except MetadataError:  # Not readable, so it cannot tell which chunks are its own.
                continue
            if isinstance(meta, ArrayMetadata):
                arrays.setdefault(format.chunk_prefix(place.path), []).append(meta)
    return {key for key in others if _is_chunk(key, arrays)}


def _is_chunk(key: str, arrays: Mapping[str, list[ArrayMetadata]]) -> bool:
    """Whether ``key`` is that of a chunk of one of ``arrays``, which are there by their prefixes."""
    end = 0
    while end <= len(key):
        metas = arrays.get(key[:end])
        if metas is not None:
            return any(_owns(meta, key[end:]) for meta in metas)
        slash = key.find("/", end)
        end = slash + 1 if slash >= 0 else len(key) + 1
    return False


def _owns(meta: ArrayMetadata, key: str) -> bool:
    """Whether a key below an array's prefix is one of its chunks."""
    return meta.chunk_key_encoding.coords(key, len(meta.shape)) is not None or any(
        transformer.owns(key) for transformer in meta.storage_transformers
    )
