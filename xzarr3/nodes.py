"""Nodes of a hierarchy in a store: their paths, their documents, and how they are erased.

Specification: Zarr v3 core, "Stored representation", "Node names", "Storage".
"""

from __future__ import annotations

import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from xzarr3._types import Buffer, ByteRange
from xzarr3.attributes import Attributes
from xzarr3.claims import Claim, claim_in, seals_in
from xzarr3.concurrency import spread
from xzarr3.errors import (
    InvalidKeyError,
    MetadataError,
    NodeExistsError,
    NodeTypeError,
    ReadOnlyError,
    StoreCapabilityError,
    StoreError,
    listed,
)
from xzarr3.formats import DraftFormat, Format, ZarrFormat, documents, parse_format
from xzarr3.formats.base import MAX_NAMES, Document, Fetch, Held, node_prefix
from xzarr3.formats.v2 import V2
from xzarr3.formats.v3 import DOCUMENT, V3
from xzarr3.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.stores import Store
from xzarr3.stores.base import UNCHANGED, Unchanged, check_key, cut


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


class Look(Store):
    """What a store holds, looked at once: what was read is not read again, and many keys are read together.

    Parameters
    ----------
    store : Store
    """

    def __init__(self, store: Store) -> None:
        super().__init__(read_only=store.read_only)
        self.concurrency = store.concurrency
        self._store = store
        self._found: dict[str, tuple[Buffer | None, object]] = {}
        self._listed: dict[str, tuple[set[str], set[str]]] = {}

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def identity(self) -> object:
        return self._store.identity

    @property
    def listable(self) -> bool:
        return self._store.listable

    def fetch(self, keys: Iterable[str]) -> None:
        """Read those of the keys that were not read yet."""
        wanted = [key for key in dict.fromkeys(keys) if key not in self._found]
        found = spread(self._store.get_versioned, wanted, self.concurrency)
        self._found.update(zip(wanted, found, strict=True))

    def found(self, key: str) -> tuple[Buffer | None, object]:
        """The value of a key, and its version."""
        self.fetch([key])
        return self._found[key]

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        value = self.found(check_key(key))[0]
        return value if value is None or byte_range is None else cut(value, byte_range)

    def get_values(self, keys: Iterable[str]) -> list[Buffer | None]:
        wanted = list(keys)
        self.fetch(wanted)
        return [self._found[key][0] for key in wanted]

    def list_dir(self, prefix: str) -> tuple[set[str], set[str]]:
        if prefix not in self._listed:
            self._listed[prefix] = self._store.list_dir(prefix)
        return self._listed[prefix]

    def list_prefix(self, prefix: str) -> Iterator[str]:
        return self._store.list_prefix(prefix)

    @classmethod
    def around(cls, store: Store, path: str) -> Look:
        """A look at all documents that tell what there is at a path, and above it."""
        look = cls(store)
        places = [*ancestors(path), path]
        keys = [key for place in places for key in (node_prefix(place) + DOCUMENT, *V2.defining_keys(place))]
        look.fetch([*keys, *V2.documents(GroupMetadata(zarr_format=2), path)])
        return look


def read_document(store: Store, key: str, path: str = "") -> Document | None:
    """The JSON object under a key, or None if there is none."""
    return read_documents(store, [key], path)[0]


def read_documents(store: Store, keys: Sequence[str], path: str = "") -> list[Document | None]:
    """The JSON objects under several keys, read together; None for those that are not there."""
    values = store.get_values(keys) if len(keys) > 1 else [store.get(key) for key in keys]
    return [
        None if value is None else documents.decode(value, path, key.rpartition("/")[2])
        for key, value in zip(keys, values, strict=True)
    ]


def fetcher(store: Store, path: str) -> Fetch:
    """What gives a format the documents of a node; none of them is read twice."""
    known: dict[str, Document | None] = {}

    def fetch(keys: Sequence[str]) -> list[Document | None]:
        wanted = [key for key in keys if key not in known]
        known.update(zip(wanted, read_documents(store, wanted, path), strict=True))
        return [known[key] for key in keys]

    return fetch


def read_held(store: Store, format: Format, path: str, *, consolidated: bool = True) -> Held | None:
    """The documents of a node, or None if it has none."""
    return format.fetch(path, fetcher(store, path), consolidated=consolidated)


def read_metadata(
    store: Store, format: Format, path: str, *, consolidated: bool = True, again: bool = False
) -> NodeMetadata | None:
    """What the documents of a node say, or None if there is no such node.

    With ``again`` without the warnings that were given before.
    """
    held = read_held(store, format, path, consolidated=consolidated)
    if held is not None:
        return format.parse_again(held, path) if again else format.parse(held, path)
    if _is_implied(store, format, path):
        return GroupMetadata(zarr_format=format.zarr_format)
    return None


def _is_implied(store: Store, format: Format, path: str) -> bool:
    """Whether there is a group because something is below it."""
    return format.implicit_groups and store.listable and any(store.list_dir(format.listing_prefix(path)))


def exists(store: Store, format: Format, path: str) -> bool:
    """Whether there is a node."""
    if any(spread(store.exists, format.defining_keys(path), store.concurrency)):
        return True
    return _is_implied(store, format, path)


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
    return _draft_of(_entry_or_document(store, ""))


def _draft_of(entry: Document | None) -> DraftFormat | None:
    if entry is None or not _is_entry_point(entry, ""):
        return None
    return DraftFormat.from_entry_point(entry)


def _entry_or_document(store: Store, path: str) -> Document | None:
    return read_document(store, node_prefix(path) + DOCUMENT, path)


def _is_entry_point(document: Document, path: str) -> bool:
    return not path and DraftFormat.is_entry_point(document)


def find_node(
    store: Store,
    path: str,
    zarr_format: ZarrFormat | None = None,
    *,
    use_consolidated: bool = True,
    alone: bool = False,
    together: bool = False,
) -> tuple[Format, NodeMetadata] | None:
    """The node at a path and its format, or None if there is none of the format that is asked for.

    Parameters
    ----------
    store : Store
    path : str
    zarr_format : {3, 2, "3-draft"}, optional
    use_consolidated : bool
        Look at consolidated metadata.
    alone : bool
        Believe consolidated metadata about the group itself, too, so that one document is enough.
    together : bool
        Ask for the documents of all formats at once, rather than for as few as possible.

    Raises
    ------
    MetadataError
        If its documents are not valid.
    """
    get = fetcher(store, path)
    document = None
    if together:
        with suppress(MetadataError):  # It is raised where the document is needed.
            get((node_prefix(path) + DOCUMENT, *V2.reading_keys(path, consolidated=use_consolidated)))
    if zarr_format in (None, 3):
        (document,) = get((node_prefix(path) + DOCUMENT,))
        if document is not None and not _is_entry_point(document, path):
            return V3, V3.parse(document if use_consolidated else V3.without_consolidated(document), path)
    if document is not None and zarr_format is None:
        with suppress(MetadataError):  # It is raised where the document is needed.
            draft = _draft_of(document)
            get([*V2.reading_keys(path), *(() if draft is None else draft.reading_keys(path))])
    if zarr_format in (None, 2):
        held = V2.fetch_consolidated(path, get) if alone and use_consolidated else None
        if held is None:
            held = V2.fetch(path, get, consolidated=use_consolidated)
        if held is not None:
            return V2, V2.parse(held, path)
    if zarr_format in (None, "3-draft"):
        format = _draft_of(get((DOCUMENT,))[0])
        held = None if format is None else format.fetch(path, get)
        if format is not None and held is not None:
            return format, format.parse(held, path)
        if format is not None and _is_implied(store, format, path):
            return format, GroupMetadata(zarr_format=format.zarr_format)
    return None


def find_consolidated(
    store: Store, zarr_format: ZarrFormat | None = None
) -> tuple[Format, GroupMetadata | None]:
    """The root, if it is a group with consolidated metadata; and the format that was found or is left."""
    get = fetcher(store, "")
    if zarr_format in (None, 3):
        (document,) = get((DOCUMENT,))
        if document is not None or zarr_format == 3:
            is_node = document is not None and not _is_entry_point(document, "")
            return V3, _consolidated(V3.parse(document, "")) if is_node and document is not None else None
    held = V2.fetch_consolidated("", get) if zarr_format in (None, 2) else None
    return V2, None if held is None else _consolidated(V2.parse(held, ""))


def _consolidated(meta: NodeMetadata) -> GroupMetadata | None:
    return meta if isinstance(meta, GroupMetadata) and meta.consolidated is not None else None


def format_for_new(store: Store, path: str, zarr_format: ZarrFormat | None) -> Format:
    """The format in which a node is made: the one that is asked for, or else that of what is there already.

    Raises
    ------
    MetadataError
        If the groups above are stored in another format, which would hide them.
    """
    if not isinstance(store, Look):
        store = Look.around(store, path)
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


def _check_listable(store: Store, path: str) -> None:
    if not store.listable:
        raise StoreCapabilityError(
            f"{store} cannot list, so what is in the group '/{path}' cannot be found; accepted: "
            "consolidated metadata in the group, which xzarr3.consolidate_metadata() makes where its files "
            "can be written; or the path of a node, as in open_array(store, path) and group[name]"
        )


def children(store: Store, format: Format, path: str) -> list[str]:
    """The names of the nodes directly below a group, found by listing the store.

    Raises
    ------
    StoreCapabilityError
        If the store cannot list.
    """
    _check_listable(store, path)
    sure, possible = format.child_names(*store.list_dir(format.listing_prefix(path)), path)
    prefix = node_prefix(path)
    names = sorted(sure | possible)
    asked = {name: format.defining_keys(prefix + name) for name in names if name not in sure}
    keys = [key for each in asked.values() for key in each]
    there = {
        key
        for key, is_there in zip(keys, spread(store.exists, keys, store.concurrency), strict=True)
        if is_there
    }
    return [name for name in names if name in sure or not there.isdisjoint(asked[name])]


def load_below(
    store: Store,
    format: Format,
    path: str,
    *,
    max_depth: int | None = None,
    leave_out: Collection[str] = (),
) -> dict[str, Held | MetadataError]:
    """The documents of the nodes below a group by relative path, or why they cannot be read.

    Level by level the store is listed, and then all documents there are read together.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of the group.
    max_depth : int, optional
        How many levels below the first to go down; None for all.
    leave_out : collection of str
        Names directly below the group that are not looked at.

    Raises
    ------
    StoreCapabilityError
        If the store cannot list.
    """
    _check_listable(store, path)
    found: dict[str, Held | MetadataError] = {}
    level, depth, skipped = [path], 0, len(node_prefix(path))
    while level and (max_depth is None or depth <= max_depth):
        if level[0].count("/") >= MAX_NAMES:
            raise MetadataError(
                "groups within groups", path=level[0], accepted=f"paths of at most {MAX_NAMES} names"
            )
        listings = spread(
            store.list_dir, [format.listing_prefix(above) for above in level], store.concurrency
        )
        wanted: dict[str, tuple[str, ...]] = {}
        for above, (keys, prefixes) in zip(level, listings, strict=True):
            sure, possible = format.child_names(keys, prefixes, above)
            for name in sorted(sure | possible):
                if depth or name not in leave_out:
                    child = node_prefix(above) + name
                    wanted[child] = format.reading_keys(child, consolidated=False, listed=keys)
        asked = [key for keys in wanted.values() for key in keys]
        values = dict(zip(asked, store.get_values(asked), strict=True))
        level = []
        for child, own in wanted.items():
            held = _held(format, child, {key: values[key] for key in own})
            if held is None and format.implicit_groups:
                held = format.hold(GroupMetadata(zarr_format=format.zarr_format))
            if held is not None:
                found[child[skipped:]] = held
                if not isinstance(held, MetadataError) and not format.is_array(held):
                    level.append(child)
        depth += 1
    return found


def _held(format: Format, path: str, values: Mapping[str, Buffer | None]) -> Held | MetadataError | None:
    try:
        return format.held(
            path,
            {
                key: documents.decode(value, path, key.rpartition("/")[2])
                for key, value in values.items()
                if value is not None
            },
        )
    except MetadataError as error:
        return error


def held_below(store: Store, format: Format, path: str) -> dict[str, Held]:
    """The documents of all nodes below a group, by relative path, found by listing the store.

    Raises
    ------
    MetadataError
        If one of them is not a JSON object.
    """
    found = load_below(store, format, path)
    for held in found.values():
        if isinstance(held, MetadataError):
            raise held
    return {below: found[below] for below in depth_first(found)}


def depth_first(paths: Iterable[str]) -> Iterator[str]:
    """Those of relative paths to which nodes lead, each followed by what is below it.

    Examples
    --------
    >>> list(depth_first(["b", "a", "b/d", "b/c", "lost/e"]))
    ['b', 'b/d', 'b/c', 'a']
    """
    below: dict[str, list[str]] = {}
    for path in paths:
        below.setdefault(path.rpartition("/")[0], []).append(path)
    waiting = below.get("", [])[::-1]
    while waiting:
        path = waiting.pop()
        yield path
        waiting.extend(below.get(path, [])[::-1])


# Writing


def change_document(
    store: Store,
    format: Format,
    path: str,
    key: str,
    change: Callable[[NodeMetadata], NodeMetadata],
    *,
    claim: Claim | None = None,
    last: bool = True,
) -> NodeMetadata:
    """Change one document of a node so that no change of others gets lost.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
    key : str
        Key of the document.
    change : callable
        Takes what the documents say and gives what they shall say; called again if somebody else was faster.
    claim : Claim, optional
        The document is changed only if it has this claim.
    last : bool
        The claim is not needed any more.

    Returns
    -------
    ArrayMetadata or GroupMetadata
        What is stored now. Consolidated copies are not brought up to date by this.

    Raises
    ------
    ConflictError
        If others kept changing the document.
    OutcomeUnknownError
        If it cannot be known whether the document of a claim was changed.
    StoreError
        If the node has gone.
    """
    others = (
        []
        if format.one_document
        else [other for other in format.reading_keys(path, consolidated=False) if other != key]
    )
    beside = dict(zip(others, read_documents(store, others, path), strict=True))
    changed: list[NodeMetadata] = []

    def changed_document(stored: Buffer | None) -> list[Buffer] | Unchanged:
        if claim is not None:
            if claim.changed(stored):
                return UNCHANGED
            claim.check(stored)
        found = {other: document for other, document in beside.items() if document is not None}
        if stored is not None:
            found[key] = documents.decode(stored, path, key.rpartition("/")[2])
        held = format.held(path, found)
        if stored is None and key in format.defining_keys(path):
            held = None
        if held is not None:
            meta = change(format.parse_again(held, path))
        elif _is_implied(store, format, path):
            meta = change(GroupMetadata(zarr_format=format.zarr_format))
        else:
            raise gone(store, path)
        changed[:] = [meta]
        consolidated = meta.consolidated if isinstance(meta, GroupMetadata) else None
        document = format.documents(meta, path, consolidated).get(key)
        if document is None:
            raise gone(store, path)
        value = documents.encode(document, path)
        if stored is not None:
            value += b"".join(seals_in(stored)) if claim is None else claim.sealed(stored)
            value += b"" if claim is not None and last else claim_in(stored)
        return UNCHANGED if value == stored else [value]

    try:
        store.update(key, changed_document)
    except StoreError as error:
        if claim is None or not claim.was_made(error):
            raise
    if claim is not None and last:
        claim.settled()
    return changed[0]


Kind = TypeVar("Kind", ArrayMetadata, GroupMetadata)


def with_attributes(meta: Kind, change: Callable[[dict[str, Any]], Mapping[str, Any]], path: str) -> Kind:
    """Metadata of which the attributes are changed, to what can be stored."""
    changed = change(dict(meta.attributes))
    return replace(meta, attributes=documents.plain_attributes(changed, path, stored=meta.attributes))


def gone(store: Store, path: str) -> StoreError:
    """The error for a node that is not what it was."""
    return StoreError(
        f"'/{path}' of {store} was removed or replaced since it was opened; accepted: opening it again"
    )


def write_documents(
    store: Store,
    format: Format,
    nodes: Mapping[str, NodeMetadata],
    *,
    last: str | None = None,
) -> None:
    """Store the documents of several nodes, as many together as can be.

    Parameters
    ----------
    store : Store
    format : Format
    nodes : mapping of str to metadata
        The nodes by path.
    last : str, optional
        Path of the node that is not to be found before all others are stored. If it is the root, the
        documents without which there is no hierarchy follow.
    """
    encoded = {
        path: {
            key: documents.encode(document, path) for key, document in format.documents(meta, path).items()
        }
        for path, meta in nodes.items()
    }
    if last == "":
        encoded[last].update(
            (key, documents.encode(each)) for key, each in format.hierarchy_documents().items()
        )
    store_documents(store, format, encoded, last=last)


def store_documents(
    store: Store, format: Format, encoded: Mapping[str, Mapping[str, bytes]], *, last: str | None = None
) -> None:
    """Store documents that are encoded already, as :func:`write_documents` does.

    Parameters
    ----------
    store : Store
    format : Format
    encoded : mapping
        For each path of a node its documents by key.
    last : str, optional
    """
    hierarchy = format.hierarchy_documents()
    stages: tuple[dict[str, Buffer], ...] = ({}, {}, {}, {}, {})
    for path, own in encoded.items():
        defining = format.defining_keys(path)
        for key, value in own.items():
            if key in hierarchy:
                at = 4
            elif key in defining:
                at = 2 if path == last else 1
            else:
                at = 3 if key == format.consolidated_key(path) else 0
            stages[at][key] = value
    for stage in stages:
        if stage:
            store.set_values(stage.items())


def create_documents(
    look: Look,
    store: Store,
    format: Format,
    path: str,
    meta: NodeMetadata,
    journal: Journal | None = None,
) -> bool:
    """Store the documents of a new node, unless somebody else has made one since ``look`` was taken.

    Returns
    -------
    bool
        Whether they were stored.
    """
    for key, document in format.documents(meta, path).items():
        value = documents.encode(document, path)
        if not _create(store, key, look.found(key)[1], value):
            return False
        if journal is not None:
            journal[key] = value
    return True


Journal: TypeAlias = dict[str, bytes]
"""What was stored last under the keys of documents, for whoever has to undo that."""


def _create(store: Store, key: str, version: object, value: bytes) -> bool:
    try:
        return store.compare_and_set(key, version, value)
    except StoreCapabilityError:  # It cannot tell others apart, so it does what it can.
        store.set(key, value)
        return True


def refresh_consolidated(
    store: Store,
    format: Format,
    paths: Sequence[str],
    *,
    removed: bool = False,
    journal: Journal | None = None,
) -> None:
    """Bring consolidated copies up to date: those of the nodes themselves and of the groups above.

    The nodes are read again, after the version of the document that holds their copies: so of several changes
    that are made at the same time the last one stays in the copy as it does in the node.

    Parameters
    ----------
    store : Store
    format : Format
    paths : sequence of str
        The nodes that changed, each above the next one.
    removed : bool
        They, and what was below them, are about to be removed, or have been.
    journal : dict, optional
        Gets what is stored.
    """
    path = paths[-1]
    own = format.consolidated_key(path)
    is_own = not removed and own is not None and own not in format.defining_keys(path)
    holders = [place for place in ancestors(path) if format.consolidated_key(place)] + [path] * is_own
    keys = [str(format.consolidated_key(place)) for place in holders]
    found, holds = read_documents(store, keys), format.zarr_format
    for holder, key, document in zip(holders, keys, found, strict=True):
        prefix = node_prefix(holder)
        below = [path for path in paths if path == holder or path.startswith(prefix)]
        if document is not None and any(
            format.update_consolidated(document, path[len(prefix) :], GroupMetadata(zarr_format=holds))
            for path in below
        ):
            store.update(key, partial(_refreshed, store, format, holder, key, below, removed, journal))


def _refreshed(
    store: Store,
    format: Format,
    holder: str,
    key: str,
    paths: Sequence[str],
    removed: bool,
    journal: Journal | None,
    stored: Buffer | None,
) -> list[Buffer] | Unchanged:
    if stored is None:
        return UNCHANGED
    before = document = documents.decode(stored, holder, key.rpartition("/")[2])
    metas: list[NodeMetadata | None] = [None] * len(paths)
    if not removed:
        # Not what a cache remembers.
        read = partial(read_metadata, Look(store), format, consolidated=False, again=True)
        metas = spread(read, paths, store.concurrency)
    for path, meta in zip(paths, metas, strict=True):
        relative = path[len(node_prefix(holder)) :]
        document = format.update_consolidated(document, relative, meta) or document
    if document == before:
        return UNCHANGED
    value = documents.encode(document, holder)
    if journal is not None:
        journal[key] = value
    return [value]


@contextmanager
def copies_to_follow(path: str) -> Iterator[None]:
    """Say in an error of a ``with`` statement that only consolidated copies of a node are not changed yet."""
    try:
        yield
    except StoreError as error:
        error.add_note(
            f"'/{path}' itself is changed; consolidated metadata that hold a copy of it may not be, until "
            "the next change of it or consolidate_metadata()"
        )
        raise


def drop_from_consolidated(store: Store, format: Format, path: str, journal: Journal | None = None) -> None:
    """Remove a node, and what was below it, from the consolidated copies above."""
    refresh_consolidated(store, format, [path], removed=True, journal=journal)


def orphans_of(store: Store, format: Format, path: str, meta: ArrayMetadata) -> set[str]:
    """The keys that a new array would take for its chunks, as those of an earlier one were left there."""
    prefix = format.chunk_prefix(path)
    if not store.listable or not any(store.list_dir(prefix)):
        return set()
    return {key for key in store.list_prefix(prefix) if _owns(meta, key[len(prefix) :])}


def make_groups_above(
    store: Store, format: Format, path: str, look: Look | None = None, journal: Journal | None = None
) -> list[str]:
    """Make the groups above a node that are not there yet, if the format wants them.

    Consolidated copies are not brought up to date by this.

    Returns
    -------
    list of str
        Paths of the groups that were made, from the top down.

    Raises
    ------
    NodeTypeError
        If there is an array above.
    """
    look = Look(store) if look is None else look
    hierarchy = format.hierarchy_documents()
    look.fetch([*hierarchy, *(key for above in ancestors(path) for key in format.defining_keys(above))])
    missing = groups_missing(look, format, path)
    for key, document in hierarchy.items():
        if look.found(key)[0] is None:
            value = documents.encode(document)
            if _create(store, key, look.found(key)[1], value) and journal is not None:
                journal[key] = value
    if format.implicit_groups or not missing:
        return []
    meta = GroupMetadata(zarr_format=format.zarr_format)
    look.fetch(key for above in missing for key in format.documents(meta, above))

    def make(above: str) -> bool:
        if create_documents(look, store, format, above, meta, journal):
            return True
        held = read_held(store, format, above)  # Somebody else was faster.
        if held is not None and format.is_array(held):
            raise _array_above(store, path, above)
        return False

    made = spread(make, missing[::-1], store.concurrency)
    return [above for above, done in zip(missing[::-1], made, strict=True) if done]


def groups_missing(look: Look, format: Format, path: str) -> list[str]:
    """The groups above a node that are not there yet, from the bottom up.

    Raises
    ------
    NodeTypeError
        If there is an array above.
    """
    missing = []
    look.fetch(key for above in ancestors(path) for key in format.defining_keys(above))
    for above in reversed([*ancestors(path)]):
        held = format.held(above, _documents_of(look, format.defining_keys(above), above))
        if held is None:
            missing.append(above)
        elif format.is_array(held):
            raise _array_above(look, path, above)
    return missing


def _documents_of(look: Look, keys: Sequence[str], path: str) -> dict[str, Document]:
    found = zip(keys, read_documents(look, keys, path), strict=True)
    return {key: document for key, document in found if document is not None}


def _array_above(store: Store, path: str, above: str) -> NodeTypeError:
    return NodeTypeError(f"cannot make '/{path}' in {store}: '/{above}' is an array, not a group")


def make_node(
    store: Store,
    format: Format,
    path: str,
    meta: NodeMetadata,
    *,
    overwrite: bool,
    look: Look | None = None,
) -> None:
    """Make a node at a path that was checked, and the groups above it.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
    meta : ArrayMetadata or GroupMetadata
    overwrite : bool
        Erase what is there.
    look : Look, optional
        :meth:`Look.around` the path, if it was taken already.

    Raises
    ------
    NodeExistsError
        If there is one and ``overwrite`` is not set, or what is there is not all Zarr.
    NodeTypeError
        If there is an array above.
    """
    if store.read_only:
        store._check_writable()
    is_array = isinstance(meta, ArrayMetadata)
    if look is None:
        look = Look.around(store, path)
    look.fetch(format.documents(meta, path))
    # With the lock, what one thread erases is not what another has just made.
    with document_lock if overwrite else nullcontext():
        orphans = orphans_of(look, format, path, meta) if isinstance(meta, ArrayMetadata) else ()
        if overwrite:
            erase_node(store, path, orphans=orphans)
        else:
            _check_room(store, look, path, None if is_array else format, orphans)
        made = make_groups_above(store, format, path, None if overwrite else look)
        if overwrite:
            write_documents(store, format, {path: meta})
        elif not create_documents(look, store, format, path, meta):
            raise _there_is_one(store, path)
        refresh_consolidated(store, format, [*made, path])


def _there_is_one(store: Store, path: str) -> NodeExistsError:
    return NodeExistsError(
        f"there is a node at '/{path}' in {store} already; accepted: overwrite=True to replace it"
    )


def _check_room(
    store: Store, look: Look, path: str, for_group_of: Format | None, orphans: Collection[str]
) -> None:
    """Refuse a path at which there is a node, or what a new array would take for its chunks.

    A group that is only implied by what is below it makes room for one of this format with a document.
    """
    format = find_format(look, path)
    implied = format is not None and not any(look.exists(key) for key in format.defining_keys(path))
    if format is not None and not (implied and format == for_group_of):
        raise _there_is_one(store, path)
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
    look = Look.around(store, path)
    formats = formats_in(look, path, format)
    found = keys_at(look, formats, path)
    if not found:
        return
    kept = documents_among(formats, found)
    look.fetch(kept)
    chunks = chunks_among(look, formats, kept, found.difference(kept)) | found.intersection(orphans)
    foreign = sorted(found.difference(kept, chunks))
    if foreign:
        raise NodeExistsError(
            f"'/{path}' in {store} holds {len(foreign)} keys that are no part of a Zarr hierarchy, "
            f"{listed(foreign[:5])}; nothing was erased; accepted: another place, or removing them by hand"
        )
    # What is left after a crash is no node any more.
    erase_stages(store, leaving_stages(formats, path, [*kept, *chunks]))
    for format in formats:
        drop_from_consolidated(store, format, path)
        for prefix in format.prefixes(path):
            store.sweep(prefix)


def erase_stages(store: Store, stages: Iterable[Sequence[str]]) -> None:
    """Erase keys, those of a list together and before the next ones."""
    if store.concurrency <= 1:  # It erases in the order in which they are named, if all may be erased.
        stages = [[key for keys in stages for key in keys]]
    for keys in stages:
        store.erase_values(keys)


def leaving_stages(formats: Sequence[Format], path: str, keys: Iterable[str]) -> list[list[str]]:
    """Keys of a node and of what is below it, in the order in which they are to be removed, many together.

    Consolidated metadata of the node, which tell all about it, go first, then what makes it one. Other
    documents follow, from the top down, and chunks come last.
    """
    stages: tuple[list[tuple[object, str]], ...] = ([], [], [], [], [])
    hierarchy = set() if path else {key for format in formats for key in format.hierarchy_documents()}
    tops = {format.consolidated_key(path) for format in formats}
    defining = {key for format in formats for key in format.defining_keys(path)}
    for key in keys:
        kinds = [place.kind for place in (format.place(key) for format in formats) if place is not None]
        at = 4 if not kinds else 2 if key in defining else 1 if key in tops else 3
        at = 0 if key in hierarchy else at
        stages[at].append(((key.count("/"), "other" in kinds, key), key))
    return [[key for _, key in sorted(stage)] for stage in stages if stage]


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
    prefixes = tuple({prefix for format in formats for prefix in format.prefixes(path)})
    keys = {key for format in formats for key in format.document_keys(path)}
    elsewhere = [key for key in keys if not key.startswith(prefixes)]
    there = spread(store.exists, elsewhere, store.concurrency)
    found = set(itertools.compress(elsewhere, there))
    for prefix in prefixes:
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
    asked: dict[tuple[Format, str], tuple[str, ...]] = {}
    for key in documents:
        for format in formats:
            place = format.place(key)
            if place is not None and place.kind in ("array", "node"):
                asked[format, place.path] = format.reading_keys(place.path, consolidated=False)
    keys = list(dict.fromkeys(key for each in asked.values() for key in each))
    values = dict(zip(keys, store.get_values(keys), strict=True))
    arrays: dict[str, list[ArrayMetadata]] = {}
    for (format, path), own in asked.items():
        held = _held(format, path, {key: values[key] for key in own})
        try:
            meta = None if held is None or isinstance(held, MetadataError) else format.parse(held, path)
        except MetadataError:  # Not readable, so it cannot tell which chunks are its own.
            continue
        if isinstance(meta, ArrayMetadata):
            arrays.setdefault(format.chunk_prefix(path), []).append(meta)
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
