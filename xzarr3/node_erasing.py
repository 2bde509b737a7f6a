"""Erasing nodes: which keys belong to one, and in which order they go."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from xzarr3.concurrency import spread
from xzarr3.errors import MetadataError, NodeExistsError, listed
from xzarr3.formats import Format
from xzarr3.formats.v2 import V2
from xzarr3.formats.v3 import V3
from xzarr3.lookup import Look, _draft, _held, exists
from xzarr3.metadata import ArrayMetadata
from xzarr3.node_documents import drop_from_consolidated
from xzarr3.stores import Store


def orphans_of(store: Store, format: Format, path: str, meta: ArrayMetadata) -> set[str]:
    """The keys that a new array would take for its chunks, as those of an earlier one were left there."""
    prefix = format.chunk_prefix(path)
    if not store.listable or not any(store.list_dir(prefix)):
        return set()
    return {key for key in store.list_prefix(prefix) if _owns(meta, key[len(prefix) :])}


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
