"""Checks keys and sizes: one listing of the store tells what is missing, and what is there for nothing.

The listing is a stream. An array keeps 16 bytes for each of its stored units: its place in the grid and its
size. No value is read.
"""

from __future__ import annotations

import itertools
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xzarr3.arrays import Array
from xzarr3.checks.documents import Scope
from xzarr3.checks.report import Findings
from xzarr3.checks.shard_indexes import Problem, spread
from xzarr3.commit.lease import is_lease
from xzarr3.copying.tiles import Coords
from xzarr3.errors import shorten
from xzarr3.formats import Format
from xzarr3.formats.v2 import V2
from xzarr3.formats.v3 import V3
from xzarr3.stores.local.names import STAGED
from xzarr3.walk import Entry, Walk

_LARGEST_GRID = 2**63
_MOST_PREFIXES = _MOST_LEASES = 10_000
_MOST_ASKED = 10**6  # Units that are asked for one by one where nothing is listed.
_MOST_LOOKED_AT = 1000  # Missing units of a coordinate; most grids are regular, so that one is enough.
_ELSEWHERE = "\0"  # No prefix; stands for those that are too many to keep.
_UNKNOWN = -1  # Size of a value that the listing does not tell.
_LIKE_CHUNK = re.compile(r"(?:^|/)(?:c(?:[./]?\d+(?:[./]\d+)*)|\d+(?:[./]\d+)*)$")
_TEMPORARY = re.compile(
    r"^\.xzarr3-partial-"  # xzarr3 before its first release
    r"|\.partial$"  # zarr-python, rclone
    r"|\.__lock$"  # xzarr3, tensorstore
    r"|^\.nfs[0-9a-f]{8,}$"  # NFS
    r"|^\.(?:[\d.]+|zarr\.json|\.z\w+)\.[A-Za-z0-9]{6}$"  # rsync
    r"|\.(?:tmp|temp|part|crdownload|swp)$|~$"
)


@dataclass
class Units:
    """The stored units of an array that a listing found within the grid."""

    handle: Array
    counts: tuple[int, ...]
    """Number of units along each dimension."""
    is_listed: bool
    """Whether the keys of a listing tell which units are stored: not with storage transformers."""
    places: array[int] = field(default_factory=lambda: array("q"))
    """Positions of the stored units in the grid, in C order; empty where the grid is too large for that."""
    sizes: array[int] = field(default_factory=lambda: array("q"))
    bad: set[int] = field(default_factory=set)
    """Positions of units that need not be read, because their size is wrong."""
    others: int = 0
    """Number of stored units that have no position here."""

    @property
    def total(self) -> int:
        """Number of units in the grid."""
        return math.prod(self.counts)

    @property
    def stored(self) -> int:
        """Number of stored units."""
        return len(self.places) + self.others

    def coords(self, place: int) -> tuple[int, ...]:
        """The coordinates of a position."""
        coords = []
        for count in reversed(self.counts):
            place, at = divmod(place, count)
            coords.append(at)
        return tuple(reversed(coords))

    def place(self, coords: tuple[int, ...]) -> int:
        """The position of coordinates."""
        place = 0
        for at, count in zip(coords, self.counts, strict=True):
            place = place * count + at
        return place

    def sort(self) -> None:
        """Order the units by position; a key that was listed twice counts once."""
        places, first = np.unique(np.frombuffer(self.places, np.int64), return_index=True)
        self.sizes = array("q", np.frombuffer(self.sizes, np.int64)[first].tobytes())
        self.places = array("q", places.tobytes())

    def chosen(self, number: int | None) -> Sequence[int]:
        """Which units to read, all or so many, spread evenly, as :meth:`unit` takes them."""
        if not self.is_listed:
            return spread(self.total, _MOST_ASKED if number is None else number)
        found: Any = np.flatnonzero(~np.isin(np.frombuffer(self.places, np.int64), [*self.bad]))
        return found.take(spread(len(found), number))  # type: ignore[no-any-return]  # An array of integers.

    def unit(self, at: int) -> tuple[Coords, int]:
        """The coordinates and the size in bytes of a chosen unit; negative if it is not known."""
        return (self.coords(self.places[at]), self.sizes[at]) if self.is_listed else (self.coords(at), -1)

    def missing(self) -> Iterator[int]:
        """The positions without a stored unit, in order."""
        expected = 0
        for place in self.places:
            yield from range(expected, place)
            expected = place + 1
        yield from range(expected, self.total)


@dataclass
class Listing:
    """What one listing of the store found.

    Parameters
    ----------
    scope : Scope
    findings : Findings
    """

    scope: Scope
    findings: Findings
    units: dict[str, Units] = field(default_factory=dict)
    """The stored units of each array, by path."""
    leases: list[str] = field(default_factory=list)
    """Keys of leases."""

    def __post_init__(self) -> None:
        scope = self.scope
        arrays = [
            Array(scope.store, path, meta, format=scope.format, read_only=True)
            for path, meta in scope.arrays.items()
        ]
        self.walk = Walk(scope.store, scope.format, scope.path, arrays, scope.unreadable)
        self.units = {
            path: Units(
                each, self.walk.counts[path], scope.is_listed and not each.metadata.storage_transformers
            )
            for path, each in self.walk.arrays.items()
        }
        self._paths = scope.nodes()
        self._foreign: tuple[Format, ...] = tuple(each for each in (V3, V2) if each != scope.format)
        self._orphans: dict[str, tuple[str, int]] = {}
        self._lost: set[str] = set()

    def run(self) -> None:
        """List the keys, and note what is wrong with them."""
        for entry in self.walk.entries():
            self._see(entry)
        for prefix in self.walk.prefixes:
            for name in self.scope.store.leftovers(prefix):
                self._temporary(name)
        self._report_orphans()
        for path, units in self.units.items():
            units.sort()
            self._report_missing(path, units)

    def _see(self, entry: Entry) -> None:
        key = entry.key
        if is_lease(key):
            if len(self.leases) < _MOST_LEASES:
                self.leases.append(key)
        elif key.startswith(STAGED):
            return
        elif entry.kind == "document":
            place = entry.place
            if place is not None and place.path not in self._paths:
                self._lose(key, place.path, is_node=place.kind != "other")
        elif entry.owner in self.units and (entry.coords is not None or entry.kind == "unit"):
            self._owned(self.units[entry.owner], entry)
        elif not self._is_foreign(key) and entry.owner not in self.walk.unreadable:
            self._stray(key)

    # Documents

    def _is_foreign(self, key: str) -> bool:
        """Whether a key is that of a document of another format, which is noted."""
        for format in self._foreign:
            place = format.place(key)
            if place is not None:
                if place.kind != "other":
                    self._other_format(key, place.path, format)
                return True
        return False

    def _lose(self, key: str, path: str, *, is_node: bool) -> None:
        if not is_node:
            self.findings.add("document-orphan", path, key, f"belongs to no node: '/{path}' does not exist")
            return
        self._lost.add(path)
        above = path.rpartition("/")[0]
        while above and above not in self._paths:
            above = above.rpartition("/")[0]
        if above in self.scope.arrays:
            why = f"'/{above}' above it is an array"
        else:
            missing = path[len(above) :].strip("/").partition("/")[0]
            why = f"'/{above}/{missing}'".replace("//", "/") + " above it has no document"
        self.findings.add("node-lost", path, key, f"no listing finds this node: {why}")

    def _other_format(self, key: str, path: str, format: Format) -> None:
        own = self.scope.format.zarr_format
        if path in self._paths:
            meaning = f"the node has documents of format {own} as well, which are read"
            self.findings.add("document-double", path, key, meaning)
        else:
            self._lost.add(path)
            self.findings.add(
                "node-other-format", path, key,
                f"is in format {format.zarr_format}; the groups above it are in format {own}, so that they "
                "do not list it",
            )  # fmt: skip

    # Chunks

    def _owned(self, units: Units, entry: Entry) -> None:
        """Take a unit of an array, or note that it is outside of the grid."""
        path, key, coords = units.handle.path, entry.key, entry.coords
        if coords is None:  # What a storage transformer keeps.
            return
        if entry.kind != "unit":
            meaning = f"chunk {coords} is outside of the grid of {units.counts} chunks"
            self.findings.add("chunk-outside", path, key, meaning)
        elif units.total >= _LARGEST_GRID:
            units.others += 1
        else:
            place = units.place(coords)
            units.places.append(place)
            units.sizes.append(_UNKNOWN if entry.nbytes is None else entry.nbytes)
            problem = None if entry.nbytes is None else size_problem(units.handle, coords, entry.nbytes)
            if problem is not None:
                units.bad.add(place)
                self.findings.add(problem.code, path, key, problem.meaning)

    # Everything else

    def _node_of(self, key: str) -> str:
        """The path of the lowest node above a key."""
        path = self._below_root(key.rpartition("/")[0])
        while path and path not in self._paths:
            path = path.rpartition("/")[0]
        return path

    def _below_root(self, key: str) -> str:
        """A key without the prefix that keys of all nodes have."""
        prefix = next((each for each in self.scope.format.keys("").prefixes if key.startswith(each)), "")
        return key[len(prefix) :]

    def _stray(self, key: str) -> None:
        if _TEMPORARY.search(key[key.rfind("/") + 1 :]):
            self._temporary(key)
            return
        match = _LIKE_CHUNK.search(key)
        node = self._node_of(key)
        if match is None:
            self.findings.add("key-foreign", node, key, "belongs to no node")
        elif node in self.scope.arrays:
            encoding = self.scope.arrays[node].chunk_key_encoding
            example = encoding.key((0,) * len(self.scope.arrays[node].shape))
            meaning = f"is like the key of a chunk; chunks have keys such as '{example}'"
            self.findings.add("chunk-misnamed", node, key, meaning)
        else:
            prefix = key[: match.start()]
            if prefix not in self._orphans and len(self._orphans) >= _MOST_PREFIXES:
                prefix = _ELSEWHERE
            first, number = self._orphans.get(prefix, (key, 0))
            self._orphans[prefix] = min(first, key), number + 1

    def _temporary(self, key: str) -> None:
        self.findings.add("key-temporary", self._node_of(key), key, "is the temporary file of a writer")

    def _report_orphans(self) -> None:
        """Note chunks without documents. Chunks of nodes that are noted as lost are not noted again."""
        for prefix, (first, number) in self._orphans.items():
            if self._below_root(prefix).rstrip("/") not in self._lost:
                where = "elsewhere" if prefix == _ELSEWHERE else f"below '{prefix}'"
                meaning = f"{number} keys {where} are like those of chunks, but no array is there"
                self.findings.add("chunks-orphan", self._node_of(first), first, meaning, count=number)

    def _report_missing(self, path: str, units: Units) -> None:
        missing, handle = units.total - units.stored, units.handle
        # A scalar whose value is the fill value need not be stored, and writers leave it out.
        if missing <= 0 or not handle.shape or not units.is_listed:
            return
        first = next(units.missing()) if not units.others else 0
        key = handle.engine.key(units.coords(first))
        if is_coordinate(handle):
            self._report_coordinate(path, units)
            return
        shards = "shards" if handle.shards else "chunks"
        meaning = f"{missing} of {units.total} {shards} are not stored"
        self.findings.add("chunks-missing", path, key if units.stored else "", meaning, count=missing)

    def _report_coordinate(self, path: str, units: Units) -> None:
        """Report the parts of a coordinate that are not stored.

        A part of one element is not reported: its value may be the fill value.
        """
        handle = units.handle
        for place in itertools.islice(units.missing(), _MOST_LOOKED_AT):
            (region,) = handle.metadata.chunk_grid.region((place,), handle.shape)
            if region.stop - region.start > 1:
                self.findings.add(
                    "coordinate-fill", path, handle.engine.key((place,)),
                    f"is not stored, so that elements {region.start} to {region.stop - 1} read as the fill "
                    f"value {shorten(np.asarray(handle.fill_value).item(), 40)}",
                )  # fmt: skip
                return


def is_coordinate(handle: Array) -> bool:
    """Whether an array is a coordinate: of one dimension that has its name."""
    return len(handle.shape) == 1 and handle.dimension_names == (handle.basename,)


def size_problem(handle: Array, coords: Coords, size: int) -> Problem | None:
    """What is wrong, if a stored unit cannot have this size in bytes."""
    meta = handle.metadata
    grid = meta.chunk_grid
    chain = meta.chain if grid.is_regular else meta.chain_of(grid.chunk_shape_at(coords))
    exact = chain.encoded_size
    if size == 0 and exact != 0:
        return Problem("chunk-empty", "the stored value has no bytes; its writer was probably cut off")
    if exact is not None and size != exact:
        return Problem("chunk-size", f"has {size} bytes; a chunk of this array has {exact}")
    if chain.shard is not None and size < chain.shard.index_size:
        return Problem(
            "shard-small", f"has {size} bytes; the index of a shard alone has {chain.shard.index_size}"
        )
    if size > chain.largest_stored:
        return Problem(
            "chunk-size", f"has {size} bytes; a chunk of this array has at most {chain.largest_stored}"
        )
    return None
