"""The walk over a hierarchy: its nodes, and one listing of the store in which each key is told apart.

:func:`~xzarr3.stats`, :func:`~xzarr3.check`, :func:`~xzarr3.diff` and :func:`~xzarr3.copy` see a store by it.
The listing is a stream: memory grows with the number of nodes, not with that of the keys. No value is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

from xzarr3.arrays import Array
from xzarr3.errors import MetadataError
from xzarr3.formats import Format
from xzarr3.formats.base import DocumentKey
from xzarr3.groups import Group
from xzarr3.stores import Store
from xzarr3.stores.open import StoreLike, open_store, was_made


class Entry(NamedTuple):
    """A key of a listing."""

    key: str
    nbytes: int | None
    """Size of its value in bytes; None if the store does not tell."""
    kind: Literal["document", "unit", "other"]
    """A unit is a chunk or shard in the grid of an array, or what a storage transformer of it keeps."""
    owner: str | None = None
    """Path of the node below whose prefix the key lies; None for documents, and where there is none."""
    coords: tuple[int, ...] | None = None
    """Place in the grid; of another key, a place outside of the grid."""
    place: DocumentKey | None = None
    """Of a document, which node it belongs to."""


class Walk:
    """The nodes and the keys of a hierarchy.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        The top.
    arrays : iterable of Array
        The arrays at the top and below it.
    unreadable : iterable of str
        Paths of nodes whose documents cannot be read. What lies below them is their own, unless it is that of
        one of the arrays.
    """

    def __init__(
        self, store: Store, format: Format, path: str, arrays: Iterable[Array], unreadable: Iterable[str] = ()
    ) -> None:
        self.store, self.format, self.path = store, format, path
        self.arrays = {array.path: array for array in arrays}
        self.counts = {
            each: array.metadata.chunk_grid.counts(array.shape) for each, array in self.arrays.items()
        }
        """The number of units along each dimension, by path of the array."""
        self.unreadable = frozenset(unreadable)
        self.prefixes = format.keys(path).prefixes if path else ("",)
        """The prefixes that are listed."""
        self._owners = {format.keys(each).chunks: each for each in (*self.unreadable, *self.arrays)}
        self._entries = format.hierarchy_documents()

    @classmethod
    def of(cls, node: Array | Group) -> Walk:
        """The walk from a node down, as readers find the nodes.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.create_group(xzarr3.MemoryStore())
        >>> array = root.create_array("a", data=[1, 2, 3], chunks=2)
        >>> sorted((each.kind, each.owner, each.coords) for each in Walk.of(root).entries() if each.owner)
        [('unit', 'a', (0,)), ('unit', 'a', (1,))]
        """
        nodes = nodes_of(node)
        arrays = (each for each in nodes.values() if isinstance(each, Array))
        above = f"{node.path}/" if node.path else ""
        lost = (f"{above}{path}" for path, each in nodes.items() if isinstance(each, MetadataError))
        return cls(node.store, node.format, node.path, arrays, lost)

    def entries(self) -> Iterator[Entry]:
        """Every key at the top and below it, told apart, in the order of the store."""
        for prefix in self.prefixes:
            for key in self.store.list(prefix):
                yield self._entry(key, getattr(key, "size", None))

    def _entry(self, key: str, nbytes: int | None) -> Entry:
        if not key[key.rfind("/") + 1 :].isdigit():  # Most keys of chunks are, and no document is.
            place = self.format.place(key)
            if place is not None or key in self._entries:
                return Entry(key, nbytes, "document", place=place)
        end, found = 0, Entry(key, nbytes, "other")
        while end <= len(key):
            owner = self._owners.get(key[:end])
            if owner is not None:
                found = self._owned(key, nbytes, owner, key[end:])
                if owner in self.arrays:  # Also one below a group that cannot be read.
                    break
            slash = key.find("/", end)
            end = slash + 1 if slash >= 0 else len(key) + 1
        return found

    def _owned(self, key: str, nbytes: int | None, owner: str, relative: str) -> Entry:
        array = self.arrays.get(owner)
        if array is None:
            return Entry(key, nbytes, "other", owner)
        coords = array.metadata.chunk_key_encoding.coords(relative, array.ndim)
        if coords is None:
            is_unit = any(each.owns(relative) for each in array.metadata.storage_transformers)
        else:
            is_unit = all(at < count for at, count in zip(coords, self.counts[owner], strict=True))
        return Entry(key, nbytes, "unit" if is_unit else "other", owner, coords)


def nodes_of(node: Array | Group) -> dict[str, Array | Group | MetadataError]:
    """A node and all nodes below it, by relative path, depth first; an error for what cannot be read."""
    below = node.load(max_depth=None) if isinstance(node, Group) else ()
    return {"": node, **dict(below)}


@contextmanager
def looked_at(store: StoreLike, storage_options: Mapping[str, Any] | None = None) -> Iterator[Store]:
    """A store that a tool reads, in a ``with`` statement, which closes it if it was opened for that."""
    opened = open_store(store, storage_options, mode="r")
    with opened if was_made(opened, store) else nullcontext():
        yield opened
