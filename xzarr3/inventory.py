"""``stats``: how much of each array is stored, counted with one listing of the store.

The listing is a stream: memory grows with the number of arrays, not with that of the keys. No value is read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xzarr3.api import open as open_node
from xzarr3.arrays import Array
from xzarr3.display import html
from xzarr3.display.shown import Description, Shown
from xzarr3.display.text import table
from xzarr3.display.units import counted, ratio, share, size
from xzarr3.errors import MetadataError, printable, short_traceback
from xzarr3.formats import Format
from xzarr3.groups import Group
from xzarr3.io.stored_units import FEW, count_stored
from xzarr3.stores import Store
from xzarr3.stores.open import StoreLike, open_store

_MOST_ROWS = 300  # Arrays in HTML.


@dataclass(frozen=True)
class Keys:
    """A number of keys and the size of their values.

    Parameters
    ----------
    number : int
    nbytes : int or None
        Bytes of all values; None if the store does not tell sizes.
    """

    number: int
    nbytes: int | None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return dict(vars(self))


@dataclass(frozen=True)
class ArrayStats:
    """How much of one array is stored.

    Parameters
    ----------
    path : str
        Path in the hierarchy, empty for the root.
    shape : tuple of int
    data_type : str
    nbytes : int or None
        Decoded size in bytes; None for elements of variable size.
    unit : {"chunk", "shard"}
        What is stored as one value.
    units : int
        Number of such units in the grid.
    stored : int or None
        How many of them exist; None if the store cannot tell. Units without data are often left out.
    nbytes_stored : int or None
        Bytes of all that exist; None if the store does not tell sizes.
    """

    path: str
    shape: tuple[int, ...]
    data_type: str
    nbytes: int | None
    unit: str
    units: int
    stored: int | None
    nbytes_stored: int | None

    @property
    def ratio(self) -> float | None:
        """Decoded size by stored size, of the units that exist as far as their number tells; None if unknown.

        Edge units count like others.
        """
        if not self.nbytes or not self.nbytes_stored or not self.stored:
            return None
        return self.nbytes * min(self.stored / self.units, 1) / self.nbytes_stored

    def to_json(self) -> dict[str, Any]:
        """The fields and the ratio as JSON has them."""
        return {**vars(self), "shape": list(self.shape), "ratio": self.ratio}


@dataclass(frozen=True)
class Stats(Shown):
    """How much of a store is used for what; made by :func:`xzarr3.stats`.

    Parameters
    ----------
    store : str
        The store, as messages name it.
    path : str
        Path of the node.
    arrays : mapping of str to ArrayStats
        The arrays by path.
    documents : Keys or None
        The metadata documents; None if the store cannot list.
    other : Keys or None
        Keys that belong to no document and to no unit of an array's grid; None if the store cannot list.
    unreadable : tuple of str
        Paths of nodes whose documents cannot be read. Their chunks are among the other keys.
    """

    store: str
    path: str
    arrays: Mapping[str, ArrayStats]
    documents: Keys | None
    other: Keys | None
    unreadable: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int | None:
        """Decoded size of all arrays in bytes; None if elements of one are of variable size."""
        return _sum(each.nbytes for each in self.arrays.values())

    @property
    def nbytes_stored(self) -> int | None:
        """Bytes of all units, documents and other keys; None if the store does not tell sizes."""
        others = (None if each is None else each.nbytes for each in (self.documents, self.other))
        return _sum((*(each.nbytes_stored for each in self.arrays.values()), *others))

    @property
    def stored(self) -> int | None:
        """Number of units of all arrays that exist; None if the store cannot tell."""
        return _sum(each.stored for each in self.arrays.values())

    @property
    def units(self) -> int:
        """Number of units in the grids of all arrays."""
        return sum(each.units for each in self.arrays.values())

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "store": self.store,
            "path": self.path,
            "nbytes": self.nbytes,
            "nbytes_stored": self.nbytes_stored,
            "units": self.units,
            "stored": self.stored,
            "arrays": [each.to_json() for each in self.arrays.values()],
            "documents": None if self.documents is None else self.documents.to_json(),
            "other": None if self.other is None else self.other.to_json(),
            "unreadable": list(self.unreadable),
        }

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The printed table: a heading, the arrays, other keys, and the sum."""
        yield "array", "size", "stored", "ratio", "stored units"
        for each in self.arrays.values():
            there = "?" if each.stored is None else f"{each.stored:,}"
            part = "" if each.stored is None else f" ({share(each.stored, each.units)})" if each.units else ""
            times = "" if each.ratio is None else ratio(each.ratio, 1)
            units = f"{there} of {counted(each.units, each.unit)}{part}"
            yield f"/{each.path}", _size(each.nbytes), _size(each.nbytes_stored), times, units
        for name, keys in (("documents", self.documents), ("other keys", self.other)):
            if keys is not None and keys.number:
                yield name, "", _size(keys.nbytes), "", counted(keys.number, "key")
        there = "?" if self.stored is None else f"{self.stored:,}"
        yield "sum", _size(self.nbytes), _size(self.nbytes_stored), "", f"{there} of {self.units:,} units"

    def __str__(self) -> str:
        lines = [printable(f"stats of '/{self.path}' in {self.store}"), table([*self.rows()])]
        lines += [printable(f"/{path} cannot be read; its chunks are other keys") for path in self.unreadable]
        return "\n".join(lines)

    def _describe(self) -> Description:
        return Description(str(self), self._html)

    def _html(self) -> str:
        rows = [*self.rows()]
        left = len(self.arrays) - _MOST_ROWS
        if left > 0:
            rows = [*rows[: 1 + _MOST_ROWS], *rows[1 + len(self.arrays) :]]
        parts = [html.tall(html.table(rows))]
        if left > 0:
            parts.append(html.note(f"and {left:,} more arrays; arrays has all of them"))
        if self.unreadable:
            parts.append(html.note(f"{counted(len(self.unreadable), 'node')} cannot be read"))
        title = html.title("xzarr3.Stats", f"/{self.path}")
        return html.box(title, *parts, html.facts([("Store", self.store)]))


def _sum(numbers: Any) -> int | None:
    """The sum; None if one of the numbers is unknown."""
    found = list(numbers)
    return None if None in found else sum(found)


def _size(nbytes: int | None) -> str:
    return "?" if nbytes is None else size(nbytes)


@short_traceback
def stats(store: StoreLike, path: str = "", *, storage_options: Mapping[str, Any] | None = None) -> Stats:
    """Tell how much of an array, or of a group with all that is below it, is stored, by array.

    The keys are listed once, and no values are read. If the store cannot list, arrays of at most 4096 units
    are asked for one by one.

    Parameters
    ----------
    store : path, URL or Store
    path : str
        Path of the array or group; by default the root.
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.

    Returns
    -------
    Stats
        Printing it shows a table of the arrays.

    Raises
    ------
    NodeNotFoundError
        If there is no array or group at the path.
    StoreError
        If the store cannot be read or listed.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> layout = {"shape": (4, 100), "chunks": (1, 100), "compressors": None}
    >>> array = xzarr3.create_array(store, "sst", dtype="i1", **layout)
    >>> array[:3] = 1
    >>> found = xzarr3.stats(store)
    >>> sst = found.arrays["sst"]
    >>> sst.nbytes, sst.nbytes_stored, sst.stored, sst.units, sst.ratio
    (400, 300, 3, 4, 1.0)
    """
    opened = open_store(store, storage_options, mode="r")
    with contextlib.nullcontext() if opened is store else opened:
        node = open_node(opened, path)
        arrays, unreadable = _arrays(node)
        if not opened.listable:
            found = {path: _asked(array) for path, array in arrays.items()}
            return Stats(str(opened), node.path, found, None, None, unreadable)
        counts = _listed(opened, node, arrays)
        found = {path: counts.owners[path].stats() for path in arrays}
        return Stats(str(opened), node.path, found, counts.documents.keys(), counts.other.keys(), unreadable)


def _arrays(node: Array | Group) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The arrays by path, and the paths of nodes that cannot be read."""
    if isinstance(node, Array):
        return {node.path: node}, ()
    above = f"{node.path}/" if node.path else ""
    found = {f"{above}{path}": each for path, each in node.load(max_depth=None)}
    arrays = {path: each for path, each in found.items() if isinstance(each, Array)}
    return arrays, tuple(path for path, each in found.items() if isinstance(each, MetadataError))


@dataclass
class _Sum:
    """Counts keys and their bytes."""

    number: int = 0
    nbytes: int = 0
    is_known: bool = True

    def add(self, nbytes: int | None) -> None:
        self.number += 1
        self.nbytes += nbytes or 0
        self.is_known = self.is_known and nbytes is not None

    def keys(self) -> Keys:
        return Keys(self.number, self.nbytes if self.is_known else None)


class _Units(_Sum):
    """Counts the stored units of an array."""

    def __init__(self, array: Array) -> None:
        super().__init__()
        self.array = array
        self.counts = array.metadata.chunk_grid.counts(array.shape)
        self._coords = array.metadata.chunk_key_encoding.coords
        self._transformers = array.metadata.storage_transformers

    def has(self, relative: str) -> bool:
        """Whether a key below the array is that of a unit, or belongs to a storage transformer."""
        coords = self._coords(relative, len(self.counts))
        if coords is None:
            return any(each.owns(relative) for each in self._transformers)
        return all(at < count for at, count in zip(coords, self.counts, strict=True))

    def stats(self) -> ArrayStats:
        keys = self.keys()
        stored = None if self._transformers else keys.number
        return _array_stats(self.array, math.prod(self.counts), stored, keys.nbytes)


def _array_stats(array: Array, units: int, stored: int | None, nbytes: int | None) -> ArrayStats:
    return ArrayStats(
        path=array.path,
        shape=array.shape,
        data_type=array.zdtype.name,
        nbytes=None if array.zdtype.is_variable else array.nbytes,
        unit="chunk" if array.shards is None else "shard",
        units=units,
        stored=stored,
        nbytes_stored=nbytes,
    )


@dataclass
class _Counts:
    """What a listing has found so far."""

    format: Format
    owners: dict[str, _Units]
    """The counts of each array, by path."""
    documents: _Sum
    other: _Sum

    def __post_init__(self) -> None:
        self._prefixes = {self.format.chunk_prefix(path): units for path, units in self.owners.items()}

    def add(self, key: str, nbytes: int | None) -> None:
        """Count a key for its array, for the documents, or for the others."""
        end = 0
        while end <= len(key):
            units = self._prefixes.get(key[:end])
            if units is not None and units.has(key[end:]):
                units.add(nbytes)
                return
            slash = key.find("/", end)
            end = slash + 1 if slash >= 0 else len(key) + 1
        is_document = self.format.place(key) is not None or key in self.format.hierarchy_documents()
        (self.documents if is_document else self.other).add(nbytes)


def _listed(store: Store, node: Array | Group, arrays: Mapping[str, Array]) -> _Counts:
    """Count the keys of a node."""
    owners = {path: _Units(array) for path, array in arrays.items()}
    counts = _Counts(node.format, owners, _Sum(), _Sum())
    prefixes = node.format.prefixes(node.path) if node.path else ("",)
    for prefix in prefixes:
        for key in store.list(prefix):
            counts.add(key, getattr(key, "size", None))
    for key in node.format.document_keys(node.path):  # The draft keeps them beside the node.
        if not key.startswith(prefixes):
            nbytes = store.getsize(key)
            if nbytes is not None:
                counts.documents.add(nbytes)
    return counts


def _asked(array: Array) -> ArrayStats:
    """The units of an array in a store that cannot list; unknown if there are many."""
    units = math.prod(array.metadata.chunk_grid.counts(array.shape))
    if units > FEW:
        return _array_stats(array, units, None, None)
    found = count_stored(array)
    return _array_stats(array, units, found.number, found.nbytes)
