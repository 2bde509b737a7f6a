"""Erases nodes: finds which keys belong to a node and erases them in a safe order.

Keys that belong to no node stay. Does not read the values of chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from xzarr3.commit.lease import is_lease
from xzarr3.errors import MetadataError, NodeExistsError, listed
from xzarr3.formats import Format
from xzarr3.formats.v2 import V2
from xzarr3.formats.v3 import V3
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.nodes.documents import drop_from_consolidated
from xzarr3.nodes.find import DocumentView, _draft, _held, exists
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store


def orphans_of(store: Store, format: Format, path: str, meta: ArrayMetadata) -> set[str]:
    """Existing keys that a new array would read as its chunks, left by an earlier array."""
    prefix = format.chunk_prefix(path)
    if not store.listable or not any(store.list_dir(prefix)):
        return set()
    return {key for key in store.list_prefix(prefix) if _owns(meta, key[len(prefix) :])}


def erase_node(
    store: Store,
    path: str,
    format: Format | None = None,
    *,
    new: tuple[Format, NodeMetadata] | None = None,
) -> None:
    """Erase an array, or a group with all nodes below it, if it exists.

    Only documents and chunks of arrays are erased. Other keys stay.

    Parameters
    ----------
    store : Store
    path : str
    format : Format, optional
        Format of the node; by default the one in which it is found.
    new : (Format, ArrayMetadata or GroupMetadata), optional
        The node that is created there next. Keys that it would read as its own are erased, too.

    Raises
    ------
    NodeExistsError
        If a key may be a chunk of a node whose documents cannot be read, or cannot stay beside the new node.
        Nothing is erased then.
    """
    look = DocumentView.around(store, path)
    formats = formats_in(look, path, format)
    found = keys_at(look, formats, path)
    if not found:
        return
    kept = documents_among(formats, found)
    look.fetch(kept)
    arrays: dict[str, ArrayMetadata] = {}
    taken: set[str] = set()
    if new is not None:
        taken.update(new[0].document_keys(path))
        if isinstance(new[1], ArrayMetadata):
            arrays[path] = new[1]
    foreign = foreign_among(
        look,
        formats,
        path,
        {key for key in found if not is_lease(key)},  # leases go with their node
        kept,
        format=new[0] if new is not None else formats[0],
        arrays=arrays,
        undone="nothing was erased",
    )
    # documents go first: after a crash, the remaining keys are no node
    erase_stages(store, leaving_stages(formats, path, found.difference(foreign - taken)))
    for format in formats:
        drop_from_consolidated(store, format, path)
        for prefix in format.prefixes(path):
            store.sweep(prefix)


def erase_stages(store: Store, stages: Iterable[Sequence[str]]) -> None:
    """Erase keys list by list; all keys of one list are erased together."""
    if store.concurrency <= 1:  # such a store erases in the given order
        stages = [[key for keys in stages for key in keys]]
    for keys in stages:
        store.erase_values(keys)


def leaving_stages(formats: Sequence[Format], path: str, keys: Iterable[str]) -> list[list[str]]:
    """Keys of a node and of all nodes below it, in order of removal, in lists to remove together.

    Documents of the hierarchy go first, if the node is the root. Consolidated metadata of the node follow,
    then its defining documents, then other documents from the top down. Chunks go last.
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
    """The formats in which a node, and the nodes below it, may be stored.

    Below the root, keys of the draft belong to no node of the other formats, and the reverse.

    Parameters
    ----------
    store : Store
    path : str
    format : Format, optional
        Format of the node; by default the one in which it is found.
    """
    try:
        draft = _draft(store)
    except MetadataError:  # an invalid document is no entry point
        draft = None
    if draft is None:
        return V3, V2
    if not path:
        return V3, V2, draft
    if format is None:
        format = next((each for each in (V3, V2) if exists(store, each, path)), draft)
    return (draft,) if format == draft else (V3, V2)


def keys_at(store: Store, formats: Sequence[Format], path: str) -> set[str]:
    """All keys under the prefixes of a node, and its documents elsewhere; foreign keys included."""
    prefixes = tuple({prefix for format in formats for prefix in format.prefixes(path)})
    keys = {key for format in formats for key in format.document_keys(path)}
    elsewhere = [key for key in keys if not key.startswith(prefixes)]
    there = parallel_map(store.exists, elsewhere, store.concurrency)
    found = set(itertools.compress(elsewhere, there))
    for prefix in prefixes:
        found.update(store.list_prefix(prefix))
    return found


def documents_among(formats: Sequence[Format], keys: Collection[str]) -> list[str]:
    """Those of ``keys`` that are documents. An auxiliary document counts only beside a node."""

    def is_document(key: str) -> bool:
        for format in formats:
            place = format.place(key)
            if place is not None and (
                place.kind != "other" or any(each in keys for each in format.defining_keys(place.path))
            ):
                return True
        return False

    return [key for key in keys if is_document(key)]


def foreign_among(
    store: Store,
    formats: Sequence[Format],
    path: str,
    keys: set[str],
    documents: Collection[str],
    *,
    format: Format,
    arrays: Mapping[str, ArrayMetadata],
    undone: str,
    home: Store | None = None,
) -> set[str]:
    """Those of the keys at a node that belong to no node; they stay when the node is replaced.

    Parameters
    ----------
    store : Store
    formats : sequence of Format
        Formats in which nodes may exist there.
    path : str
    keys : set of str
        The existing keys.
    documents : collection of str
        The documents among the keys.
    format : Format
        Format of the new arrays.
    arrays : mapping of str to ArrayMetadata
        The new arrays, by path. A key with the name of one of their chunks is not foreign: the new array
        would read it as its own.
    undone : str
        What has not been done, for messages.
    home : Store, optional
        The store that messages name.

    Raises
    ------
    NodeExistsError
        If a key may be a chunk of a node whose documents cannot be read, or cannot stay beside the new
        arrays.
    """
    others = keys.difference(documents)
    chunks, doubtful = chunks_among(store, formats, documents, others)
    foreign = others - chunks
    owners = _owners(format, arrays)
    foreign = {key for key in foreign if not _is_chunk(key, owners)}
    place = f"'/{path}' in {store if home is None else home}"
    doubtful &= foreign
    if doubtful:
        raise NodeExistsError(
            f"{place} holds {len(doubtful)} keys that may be chunks of arrays whose documents cannot be "
            f"read, {listed(sorted(doubtful)[:5])}; {undone}; accepted: another place, or removing them by "
            "hand"
        )
    in_the_way = sorted(key for key in foreign if _is_in_the_way(key, owners))
    if in_the_way:
        raise NodeExistsError(
            f"{place} holds {len(in_the_way)} keys that are no part of a Zarr hierarchy and cannot lie "
            f"beside the new arrays, because one key would begin with another one and a '/', "
            f"{listed(in_the_way[:5])}; {undone}; accepted: another place, or removing them by hand"
        )
    return foreign


def chunks_of(format: Format, arrays: Mapping[str, ArrayMetadata], keys: Iterable[str]) -> set[str]:
    """Those of ``keys`` that have the names of chunks of ``arrays``, which are given by path."""
    owners = _owners(format, arrays)
    return {key for key in keys if _is_chunk(key, owners)}


def _owners(format: Format, arrays: Mapping[str, ArrayMetadata]) -> dict[str, list[ArrayMetadata]]:
    return {format.chunk_prefix(path): [meta] for path, meta in arrays.items()}


def _is_in_the_way(key: str, owners: Mapping[str, list[ArrayMetadata]]) -> bool:
    """Whether a key conflicts with a key of a new array: one would be a directory of the other."""
    if any(prefix.startswith(f"{key}/") for prefix in owners):
        return True
    above = key.rpartition("/")[0]
    while above:
        if _is_chunk(above, owners):
            return True
        above = above.rpartition("/")[0]
    return False


def chunks_among(
    store: Store, formats: Sequence[Format], documents: Iterable[str], others: Collection[str]
) -> tuple[set[str], set[str]]:
    """Those of ``others`` that are chunks of the arrays with these documents, and those that may be chunks.

    The latter lie below nodes whose documents cannot be read.
    """
    if not others:
        return set(), set()
    asked: dict[tuple[Format, str], tuple[str, ...]] = {}
    entry_points = {key for format in formats for key in format.hierarchy_documents()}
    for key in documents:
        if key in entry_points:  # the draft's entry point has the key of a version 3 document, but is no node
            continue
        for format in formats:
            place = format.place(key)
            if place is not None and place.kind in ("array", "node"):
                asked[format, place.path] = format.reading_keys(place.path, consolidated=False)
    keys = list(dict.fromkeys(key for each in asked.values() for key in each))
    values = dict(zip(keys, store.get_values(keys), strict=True))
    arrays: dict[str, list[ArrayMetadata]] = {}
    unreadable: set[str] = set()
    for (format, path), own in asked.items():
        held = _held(format, path, {key: values[key] for key in own})
        prefix = format.chunk_prefix(path)
        if held is None or isinstance(held, MetadataError):
            unreadable.add(prefix)
            continue
        try:
            meta = format.parse(held, path)
        except MetadataError:
            unreadable.add(prefix)
            continue
        if isinstance(meta, ArrayMetadata):
            arrays.setdefault(prefix, []).append(meta)
    chunks = {key for key in others if _is_chunk(key, arrays)}
    below = tuple(unreadable)
    return chunks, {key for key in others if key not in chunks and key.startswith(below)}


def _is_chunk(key: str, arrays: Mapping[str, list[ArrayMetadata]]) -> bool:
    """Whether ``key`` is a chunk of one of ``arrays``, which are given by prefix."""
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
