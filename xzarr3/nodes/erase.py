"""Erasing nodes: which keys belong to one, and in which order they go."""

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
from xzarr3.nodes.find import Look, _draft, _held, exists
from xzarr3.parallel import spread
from xzarr3.stores import Store


def orphans_of(store: Store, format: Format, path: str, meta: ArrayMetadata) -> set[str]:
    """The keys that a new array would take for its chunks, as those of an earlier one were left there."""
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
    """Erase an array, or a group with all that is below it, if it is there.

    Only keys that belong to the hierarchy are erased: documents, and chunks of its arrays. Others stay.

    Parameters
    ----------
    store : Store
    path : str
    format : Format, optional
        Format of the node; by default the one in which it is found.
    new : (Format, ArrayMetadata or GroupMetadata), optional
        What is made there next. Keys that it would take for its own are erased, too.

    Raises
    ------
    NodeExistsError
        If there are keys that may be chunks of a node whose documents cannot be read, or that cannot lie
        beside what is new. Nothing is erased then.
    """
    look = Look.around(store, path)
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
        {key for key in found if not is_lease(key)},  # What a lease is about goes.
        kept,
        format=new[0] if new is not None else formats[0],
        arrays=arrays,
        undone="nothing was erased",
    )
    # What is left after a crash is no node any more.
    erase_stages(store, leaving_stages(formats, path, found.difference(foreign - taken)))
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
    """Those of the keys at a node that belong to no node, and that stay where the node is replaced.

    Parameters
    ----------
    store : Store
    formats : sequence of Format
        Those in which nodes can be there.
    path : str
    keys : set of str
        What is there.
    documents : collection of str
        The documents among them.
    format : Format
        How the new arrays are stored.
    arrays : mapping of str to ArrayMetadata
        The arrays that will be there, by path. What has the name of one of their chunks is none of the
        foreign keys, as they would take it for their own.
    undone : str
        What was not done yet, for messages.
    home : Store, optional
        The store that messages name.

    Raises
    ------
    NodeExistsError
        If some may be chunks of a node whose documents cannot be read, or cannot lie beside the new arrays.
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
    """Those of some keys that have the names of chunks of arrays, which are there by their paths."""
    owners = _owners(format, arrays)
    return {key for key in keys if _is_chunk(key, owners)}


def _owners(format: Format, arrays: Mapping[str, ArrayMetadata]) -> dict[str, list[ArrayMetadata]]:
    return {format.chunk_prefix(path): [meta] for path, meta in arrays.items()}


def _is_in_the_way(key: str, owners: Mapping[str, list[ArrayMetadata]]) -> bool:
    """Whether a key and one of new arrays cannot both be files, as one would be a directory of the other."""
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
    """Those of the keys ``others`` that are chunks of the arrays with these documents, and those that may be.

    The latter lie below nodes whose documents cannot be read, so that these do not tell.
    """
    if not others:
        return set(), set()
    asked: dict[tuple[Format, str], tuple[str, ...]] = {}
    entry_points = {key for format in formats for key in format.hierarchy_documents()}
    for key in documents:
        if key in entry_points:  # That of the draft is no node, though version 3 has the same key.
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
