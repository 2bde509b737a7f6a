"""``stats``: how much of each array is stored, counted with one listing of the store.

The listing is a stream: memory grows with the number of arrays, not with that of the keys. No value is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xzarr3.api import open as open_node
from xzarr3.arrays import Array
from xzarr3.display.report import Page, Report, Table
from xzarr3.display.units import counted, ratio, share, size
from xzarr3.errors import short_traceback
from xzarr3.io.stored_units import FEW, count_stored
from xzarr3.stores.open import StoreLike
from xzarr3.walk import Walk, looked_at


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

    def __add__(self, nbytes: int | None) -> Keys:
        """These keys and one more."""
        return Keys(self.number + 1, _sum((self.nbytes, nbytes)))


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

    Examples
    --------
    >>> import xzarr3
    >>> sizes = xzarr3.stats(xzarr3.array([1, 2, 3], compressors=None).store).arrays[""]
    >>> sizes.unit, sizes.stored, sizes.nbytes_stored
    ('chunk', 1, 24)
    """

    path: str
    shape: tuple[int, ...]
    data_type: str
    nbytes: int | None
    unit: str
    units: int
    stored: int | None
    nbytes_stored: int | None

    _also = ("ratio",)

    @property
    def ratio(self) -> float | None:
        """Decoded size by stored size, of the units that exist as far as their number tells; None if unknown.

        Edge units count like others.
        """
        if not self.nbytes or not self.nbytes_stored or not self.stored:
            return None
        return self.nbytes * min(self.stored / self.units, 1) / self.nbytes_stored


@dataclass(frozen=True, repr=False)
class Stats(Report):
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

    Examples
    --------
    >>> import xzarr3
    >>> found = xzarr3.stats(xzarr3.array([1, 2, 3], compressors=None).store)
    >>> found.nbytes, found.stored, found.units
    (24, 1, 1)
    """

    store: str
    path: str
    arrays: Mapping[str, ArrayStats]
    documents: Keys | None
    other: Keys | None
    unreadable: tuple[str, ...] = ()

    _also = ("nbytes", "nbytes_stored", "units", "stored")

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

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """The table of the arrays."""
        yield "array", "size", "stored", "ratio", "stored units"
        for each in self.arrays.values():
            part = f" ({share(each.stored, each.units)})" if each.stored is not None and each.units else ""
            times = "" if each.ratio is None else ratio(each.ratio, 1)
            units = f"{_number(each.stored)} of {counted(each.units, each.unit)}{part}"
            yield f"/{each.path}", _size(each.nbytes), _size(each.nbytes_stored), times, units

    def _facts(self) -> Iterator[tuple[str, str]]:
        sizes = f"{_size(self.nbytes)}, stored in {_size(self.nbytes_stored)}"
        yield "sum", f"{sizes}: {_number(self.stored)} of {self.units:,} units"
        for name, keys in (("documents", self.documents), ("other keys", self.other)):
            if keys is not None and keys.number:
                yield name, f"{_size(keys.nbytes)} in {counted(keys.number, 'key')}"

    def _page(self) -> Page:
        return Page(
            "xzarr3.stats",
            f"stats of '/{self.path}' in {self.store}",
            self._facts(),
            [Table([*self._rows()])],
            notes=[f"/{path} cannot be read; its chunks are other keys" for path in self.unreadable],
        )


def _sum(numbers: Any) -> int | None:
    """The sum; None if one of the numbers is unknown."""
    found = list(numbers)
    return None if None in found else sum(found)


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


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
    with looked_at(store, storage_options) as opened:
        node = open_node(opened, path)
        walk = Walk.of(node)
        unreadable = tuple(sorted(walk.unreadable))
        if not opened.listable:
            asked = {path: _asked(array) for path, array in walk.arrays.items()}
            return Stats(str(opened), node.path, asked, None, None, unreadable)
        units, documents, other = _listed(walk)
        found = {
            path: _array_stats(
                array, None if array.metadata.storage_transformers else units[path].number, units[path].nbytes
            )
            for path, array in walk.arrays.items()
        }
        return Stats(str(opened), node.path, found, documents, other, unreadable)


def _listed(walk: Walk) -> tuple[dict[str, Keys], Keys, Keys]:
    """The stored units of each array, the documents and the other keys."""
    units = dict.fromkeys(walk.arrays, Keys(0, 0))
    documents = other = Keys(0, 0)
    for entry in walk.entries():
        if entry.kind == "unit":
            units[entry.owner or ""] += entry.nbytes
        elif entry.kind == "document":
            documents += entry.nbytes
        else:
            other += entry.nbytes
    for key in walk.format.keys(walk.path).documents:  # The draft keeps them beside the node.
        nbytes = None if key.startswith(walk.prefixes) else walk.store.getsize(key)
        if nbytes is not None:
            documents += nbytes
    return units, documents, other


def _array_stats(array: Array, stored: int | None, nbytes: int | None) -> ArrayStats:
    return ArrayStats(
        path=array.path,
        shape=array.shape,
        data_type=array.zdtype.name,
        nbytes=None if array.zdtype.is_variable else array.nbytes,
        unit="chunk" if array.shards is None else "shard",
        units=array.nshards,
        stored=stored,
        nbytes_stored=nbytes,
    )


def _asked(array: Array) -> ArrayStats:
    """The units of an array in a store that cannot list; unknown if there are many."""
    if array.nshards > FEW:
        return _array_stats(array, None, None)
    found = count_stored(array)
    return _array_stats(array, found.number, found.nbytes)
