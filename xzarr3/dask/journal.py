"""The journal of a long write: a list of its stored tiles, so that a killed write can be resumed.

A journal belongs to a plan. The fingerprint of a plan covers the path, the format, the layout of all arrays
and the names of the dask arrays that are written; dask derives these names from the data. The journal is
stored beside the values, under a prefix that the lease of the write names, see :mod:`xzarr3.commit.resume`.
It consists of a few keys. Each key is a page that one process writes. A tile is entered after its values are
stored, and pages are stored about once a second. Tiles that a killed process had not yet entered are written
again as a whole, with the same result. Only the process that holds the lease carries out a plan.

An entry names the region of a tile and those of its stored units that are left out because they contain only
the fill value. An entry counts only if the current plan has a tile with that region, if all its other units
are in the store, and if none of those left out is. So a damaged page, or values that another writer removed,
cause more work but never a missing chunk.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import threading
import time
import uuid
import warnings
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from xzarr3._types import AnyArray, Buffer
from xzarr3.arrays import Array
from xzarr3.commit.lease import boot
from xzarr3.commit.resume import may_be_lost
from xzarr3.dask.blocks import Regions
from xzarr3.dask.slicing import all_blocks
from xzarr3.dask.sources import stamps_of_others
from xzarr3.errors import StoreError
from xzarr3.formats import Format
from xzarr3.io.selection import basic_selection
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.stores import Store

_VERSION = 2
_FLUSHED = 1.0  # Seconds after which a page is stored again.
_FULL = 2**16  # Most numbers on a page.
_LARGEST = 2**20  # Most bytes of a stored page, which is compressed.
_LONGEST = 2**24  # Most bytes of a page after decompression.
_AT_ONCE = 64  # Pages that are read at a time.
_KEPT = 8  # Most journals kept in a process; each is of another call.

Tile: TypeAlias = tuple[int, ...]
Region: TypeAlias = tuple[slice, ...]
_Entries: TypeAlias = "dict[bytes, frozenset[Tile]]"
"""The stored units left out of each tile; the keys are the regions of tiles, packed by :func:`_flat`."""


class WrittenArray(NamedTuple):
    """An array that a plan writes: its metadata, its region as JSON, and the values."""

    path: str
    metadata: ArrayMetadata
    write_empty_chunks: bool
    region: Any
    values: Any


def fingerprint(doing: str, format: Format, path: str, arrays: Iterable[WrittenArray]) -> str:
    """The fingerprint of a plan: a digest of everything that decides which bytes are stored where.

    Attributes and values that are not in dask arrays do not count, because every call writes them again.

    Parameters
    ----------
    doing : str
    format : Format
    path : str
        Path of the node that is written.
    arrays : iterable of Written
        The shapes of the arrays count only through their regions.
    """
    said: list[Any] = [_VERSION, doing, format.zarr_format, path]
    for each in arrays:
        found = format.documents(replace(each.metadata, attributes={}), each.path)
        layout = {key: {**document, "shape": None} for key, document in found.items()}
        known: list[Any] = []
        if hasattr(each.values, "__dask_graph__"):
            known = [each.values.name, *stamps_of_others([list(each.values.dask.layers.values())])]
            known += [repr(all_blocks([*map(int, along)])) for along in each.values.chunks]
            known += each.values.shape
        said.append([each.path, layout, each.write_empty_chunks, each.region, known])
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Journal:
    """The tiles of a plan that are stored, as entered by all processes that write them.

    Parameters
    ----------
    store : Store
    prefix : str
        Prefix of the keys of its pages, ending with ``/``.
    plan : str
        The fingerprint of the plan.
    call : str, optional
        Identifies one call that carries out the plan; random by default.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> target = xzarr3.create_array(store, shape=4, chunks=2, dtype="i4")
    >>> journal = Journal(store, ".xzarr3-staged-x/journal/", "x")
    >>> journal.write(0, target, (slice(2, 4),), np.ones(2, "i4"))
    >>> journal.flush()
    >>> from xzarr3.dask.blocks import Regions
    >>> Journal(store, ".xzarr3-staged-x/journal/", "x").finished(0, target, Regions(((2, 2),), (0,)))
    {(1,)}
    """

    def __init__(self, store: Store, prefix: str, plan: str, call: str | None = None) -> None:
        self._store = store
        self._prefix = prefix
        self._plan = plan
        self._call = uuid.uuid4().hex if call is None else call
        self._process = uuid.uuid4().hex
        self._page: list[list[Any]] = []
        self._numbers = 0  # Count of numbers on the page.
        self._number = 0  # Index of the page.
        self._changed = False
        self._flushed = time.monotonic()
        self._guard = threading.Lock()
        self._flushing = threading.Lock()
        self._entries: dict[int, _Entries] | None = None
        _remember(self)

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self._store, self._prefix, self._plan, self._call)

    # While tiles are written

    def write(
        self,
        job: int,
        target: Array,
        region: Region,
        values: AnyArray,
        threads: int | None = None,
    ) -> None:
        """Write a tile and enter it.

        Parameters
        ----------
        job : int
            Index of the job in the plan.
        target : Array
        region : tuple of slice
            Region of the tile in the array.
        values : array
        threads : int, optional
            See :meth:`Array.set`.
        """
        left_out: list[Tile] = []
        selection = basic_selection(region, target.shape)
        target.write_selected(selection, values, threads=threads, left_out=left_out)
        self.done(job, region, left_out)

    def done(self, job: int, region: Region, left_out: Sequence[Tile] = ()) -> None:
        """Enter a tile whose values are stored, except for the stored units in ``left_out``.

        A tile whose entry would not fit a page is not entered; a resumed write writes it again.

        Raises
        ------
        StoreError
            If the page cannot be stored.
        """
        numbers = (2 + len(left_out)) * len(region) + 1
        if numbers > _FULL:
            return
        edges = [[operator.index(part.start), operator.index(part.stop)] for part in region]
        entry = [job, edges, [[*map(int, unit)] for unit in left_out]]
        with self._guard:
            self._page.append(entry)
            self._numbers += numbers
            self._changed = True
            due = self._numbers >= _FULL or time.monotonic() - self._flushed >= _FLUSHED
        if due and self._flushing.acquire(blocking=False):
            try:
                self._flush()
            finally:
                self._flushing.release()

    def flush(self) -> None:
        """Store the page with the entries of this process.

        Raises
        ------
        StoreError
            If the page cannot be stored.
        """
        with self._flushing:
            self._flush()

    def close(self, error: BaseException) -> None:
        """Store the page after the write has failed; an error of that becomes a note of ``error``."""
        try:
            self.flush()
        except StoreError as another:
            error.add_note(f"not all that was written is in the journal: {another}")

    def _flush(self) -> None:
        with self._guard:
            if not self._changed:
                return
            entries, number = list(self._page), self._number
            self._changed = False
            self._flushed = time.monotonic()
            if self._numbers >= _FULL:
                self._page, self._numbers, self._number = [], 0, self._number + 1
        said = {"version": _VERSION, "plan": self._plan, "boot": list(boot()), "tiles": entries}
        page = zlib.compress(json.dumps(said, separators=(",", ":")).encode(), 1)
        self._store.set(f"{self._prefix}{self._process}-{number}", page)

    # Before tiles are written

    def finished(self, job: int, target: Array, regions: Regions) -> set[Tile]:
        """The tiles of a job that are stored and need not be written again.

        Parameters
        ----------
        job : int
        target : Array
        regions : Regions
            The region of each tile.

        Raises
        ------
        StoreError
            If the journal cannot be read, or the keys of the array cannot be listed.
        """
        if self._entries is None:
            self._entries = self._read()
        entries = self._entries.get(job)
        if not entries:
            return set()
        engine = target.engine
        axes = target.metadata.chunk_grid.axes
        folder = engine.key_prefix.rpartition("/")[0]
        there = set(target.store.list_prefix(f"{folder}/" if folder else ""))
        found = set()
        for tile in itertools.product(*map(range, regions.numblocks)):
            region = regions[tile]
            left_out = entries.get(_flat(edge for part in region for edge in (part.start, part.stop)))
            if left_out is None:
                continue
            ranges = [
                range(axis.index(part.start), axis.index(part.stop - 1) + 1) if part.stop > part.start else ()
                for axis, part in zip(axes, region, strict=True)
            ]
            units = itertools.product(*ranges)
            if all((coords in left_out) != (engine.key(coords) in there) for coords in units):
                found.add(tile)
        return found

    def _read(self) -> dict[int, _Entries]:
        keys = sorted(key for key in self._store.list_prefix(self._prefix) if _is_page(key))
        found: dict[int, _Entries] = {}
        bad = crashed = 0
        for first in range(0, len(keys), _AT_ONCE):
            wanted = [(key, (0, _LARGEST + 1)) for key in keys[first : first + _AT_ONCE]]
            for value in self._store.get_partial_values(wanted):
                said = {} if value is None else _parsed(value)
                entries = _entries(said.get("tiles")) if said.get("plan") == self._plan else None
                if entries is None:
                    bad += 1
                elif may_be_lost(self._store, said.get("boot")):
                    crashed += 1
                else:
                    for job, edges, left_out in entries:
                        found.setdefault(job, {})[edges] = left_out
        pages = f"of {len(keys)} pages of the journal of a write in {self._store}"
        if bad:
            warnings.warn(
                f"{bad} {pages} are damaged; the tiles that they list are written again", stacklevel=2
            )
        if crashed:
            warnings.warn(
                f"the system was restarted after {crashed} {pages} were stored, so values stored before may "
                "not have reached the disk; the tiles that they list are written again; use a LocalStore "
                "with fsync=True to keep them",
                stacklevel=2,
            )
        return found


def _is_page(key: str) -> bool:
    process, dash, number = key.rpartition("/")[2].partition("-")
    return bool(dash) and len(process) == 32 and number.isdecimal()


def _parsed(value: Buffer) -> dict[str, Any]:
    """The JSON document of a page; an empty one if the page is not valid."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(bytes(value), _LONGEST) if len(value) <= _LARGEST else b""
        said = json.loads(text) if unpacking.eof else None
    except (zlib.error, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) and said.get("version") == _VERSION else {}


def _entries(tiles: Any) -> list[tuple[int, bytes, frozenset[Tile]]] | None:
    """The entries of a page; None if any is not valid."""
    found = []
    try:
        for job, edges, left_out in tiles:
            numbers = [job, *itertools.chain(*edges, *left_out)]
            if set(map(type, numbers)) != {int} or min(numbers) < 0:
                return None
            found.append((job, _flat(itertools.chain(*edges)), frozenset(map(tuple, left_out))))
    except (TypeError, ValueError, OverflowError):
        return None
    return found


def _flat(edges: Iterable[int]) -> bytes:
    """Edges packed as bytes, because there may be millions."""
    return array("q", edges).tobytes()


_journals: dict[str, Journal] = {}
_restoring = threading.RLock()


def _remember(journal: Journal) -> None:
    with _restoring:
        while len(_journals) >= _KEPT:
            del _journals[next(iter(_journals))]
        _journals[journal._call] = journal


def _restored(store: Store, prefix: str, plan: str, call: str) -> Journal:
    """The journal of a call, shared by all its tasks in this process."""
    with _restoring:
        found = _journals.get(call)
        return Journal(store, prefix, plan, call) if found is None else found
