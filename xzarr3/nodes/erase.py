"""Erases nodes: finds which keys belong to a node and erases them in a safe order.

Does not read the values of chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from xzarr3.errors import MetadataError
from xzarr3.formats import Format
from xzarr3.formats.v2 import V2
from xzarr3.formats.v3 import V3
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.consolidated import drop_from_consolidated, refresh_consolidated
from xzarr3.nodes.find import _draft, exists
from xzarr3.nodes.node import ancestors
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store


def orphans_of(store: Store, format: Format, path: str, meta: ArrayMetadata) -> set[str]:
    """Existing keys that a new array would read as its chunks, left by an earlier array."""
    prefix = format.keys(path).chunks
    if not store.listable or not any(store.list_dir(prefix)):
        return set()
    return {key for key in store.list_prefix(prefix) if owns(meta, key[len(prefix) :])}


def owns(meta: ArrayMetadata, key: str) -> bool:
    """Whether a key below an array's prefix is one of its chunks."""
    return meta.chunk_key_encoding.coords(key, len(meta.shape)) is not None or any(
        transformer.owns(key) for transformer in meta.storage_transformers
    )


def erase_node(
    store: Store,
    path: str,
    format: Format,
    *,
    lease: str = "",
    check: Callable[[set[str]], bool] = lambda keys: False,
) -> None:
    """Erase an array, or a group with all nodes below it.

    All keys below it are erased, also those that are no part of a Zarr hierarchy, but for the key of the
    caller's ``lease``. In a store of keys, ``check`` gets them first. It raises if the node must stay, and
    tells whether there may be other keys by then.
    """
    formats = formats_in(store, path, format)
    for each in formats:  # first, so that no consolidated copy outlives its document
        drop_from_consolidated(store, each, path)
    # documents go first: after a crash, the remaining keys are no node
    if store.folder is None:
        found = keys_at(store, formats, path)
        if check(found):
            found = keys_at(store, formats, path)
        stages, late = leaving_stages(formats, path, found - {lease}), set[str]()
        erase_stages(store, stages[:-1])
        # Who has stored a node below the group, and found its document there afterwards, did so before this.
        acts: list[Callable[[], None]] = [
            partial(erase_stages, store, stages[-1:]),
            lambda: late.update(keys_at(store, formats, path)),
        ]
        parallel_map(lambda act: act(), acts, store.concurrency)
        erase_stages(store, leaving_stages(formats, path, late - found))
    else:
        documents = {key for each in formats for key in each.keys(path).documents}
        erase_stages(store, leaving_stages(formats, path, documents))
        for prefix in dict.fromkeys(prefix for each in formats for prefix in each.keys(path).prefixes):
            store.erase_prefix(prefix)
    for each in formats:  # other writers may have copied the node again before it was gone
        refresh_consolidated(store, each, [path], holders=ancestors(path))


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
    tops = {format.keys(path).consolidated for format in formats}
    defining = {key for format in formats for key in format.keys(path).defining}
    for key in keys:
        kinds = [place.kind for place in (format.place(key) for format in formats) if place is not None]
        at = 4 if not kinds else 2 if key in defining else 1 if key in tops else 3
        at = 0 if key in hierarchy else at
        stages[at].append(((key.count("/"), "other" in kinds, key), key))
    return [[key for _, key in sorted(stage)] for stage in stages if stage]


def formats_in(store: Store, path: str = "", format: Format | None = None) -> tuple[Format, ...]:
    """The formats in which a node, and the nodes below it, may be stored.

    Below the root, keys of the draft belong to no node of the other formats, and the reverse. Without
    ``format``, the node is of the format in which it is found.
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
    prefixes = tuple({prefix for format in formats for prefix in format.keys(path).prefixes})
    keys = {key for format in formats for key in format.keys(path).documents}
    elsewhere = [key for key in keys if not key.startswith(prefixes)]
    there = parallel_map(store.exists, elsewhere, store.concurrency)
    found = set(itertools.compress(elsewhere, there))
    for prefix in prefixes:
        found.update(store.list_prefix(prefix))
    return found
