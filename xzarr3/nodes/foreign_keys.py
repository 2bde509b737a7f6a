"""Tells documents, chunks and foreign keys apart; foreign keys stay when a node is replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from xzarr3.errors import MetadataError, NodeExistsError, listed
from xzarr3.formats import Format
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.find import _held
from xzarr3.stores import Store


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
            f"read, {listed(sorted(doubtful)[:5])}; {undone}; remove them, or write to another path"
        )
    in_the_way = sorted(key for key in foreign if _is_in_the_way(key, owners))
    if in_the_way:
        raise NodeExistsError(
            f"{place} holds {len(in_the_way)} keys that belong to no Zarr hierarchy and cannot coexist with "
            "the new arrays, because one key would begin with another one and a '/', "
            f"{listed(in_the_way[:5])}; {undone}; remove them, or write to another path"
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
