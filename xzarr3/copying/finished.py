"""A copy that can be resumed: what identifies it, and what of it is stored.

Stores put a unit in place as a whole or not at all, so a unit that exists is complete. The keys of the
target and the plan tell what is left. Units that are left out, because they hold only the fill value, are
noted under the prefix of the write.

A copy is identified by the place of the source, by the documents of source and target, and by the versions of
the source's documents. See
:mod:`xzarr3.commit.resume` for where an interrupted write leaves its values.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from xzarr3.arrays import Array
from xzarr3.commit.lease import SWAPS, Holder, Lease
from xzarr3.commit.leftovers import said_in
from xzarr3.commit.resume import Resumption, is_top, may_be_lost
from xzarr3.copying.tiles import Coords, Tiles
from xzarr3.errors import NodeExistsError
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store, versioned

if TYPE_CHECKING:
    from xzarr3.groups import Group

_VERSION = 2
_LARGEST = 2**24  # Bytes of a note.


def fingerprint(nodes: Mapping[str, Array | Group], documents: Mapping[str, Mapping[str, bytes]]) -> str:
    """The fingerprint of a copy: changes with the place or the documents of the source, or with the copy's.

    Two sources can have equal documents and other values, so the documents alone do not tell them apart.

    Parameters
    ----------
    nodes : mapping of str to Array or Group
        The source.
    documents : mapping
        For each path of the copy, its documents by key, as they will be stored.
    """
    source = next(iter(nodes.values())).store
    keys = sorted({key for node in nodes.values() for key in node.format.document_keys(node.path)})
    values = parallel_map(partial(versioned, source), keys, source.concurrency)
    digest = hashlib.blake2b(repr((_VERSION, "copy", source.identity)).encode(), digest_size=16)
    for key, (value, version) in zip(keys, values, strict=True):
        content = None if value is None else hashlib.blake2b(value, digest_size=16).hexdigest()
        digest.update(repr((key, content, source.versions([key])[0], version)).encode())
    for path, own in sorted(documents.items()):
        digest.update(repr((path, sorted(own.items()))).encode())
    return digest.hexdigest()


class CopyResumption(Resumption):
    """A copy that can be resumed; in the place of another unfinished write it raises."""

    has_swapped = False
    """Whether the interrupted copy had stored all values, and was being put in its place."""
    _found = Holder()

    def find(self, key: str) -> None:
        """Look for an interrupted copy that held the lease with this key.

        Raises
        ------
        NodeExistsError
            If the place holds an unfinished write that this copy would not continue.
        """
        self._found = found = Lease(self._store, key, "replace").there()
        self.has_swapped |= found.plan == self.plan and found.state in SWAPS
        if found.plan not in (None, self.plan) and is_top(found.top) and found.state not in SWAPS:
            raise NodeExistsError(
                f"'/{self._path}' in {self._store} holds an unfinished write that this call does not "
                "continue: the source is another one or has changed since, or the settings differ; repeat "
                "the call as it was, or leave out resume=True to drop what is there and copy everything"
            )
        if found.plan == self.plan and may_be_lost(self._store, [found.host, found.boot]):
            warnings.warn(
                f"the system was restarted after an interrupted copy to {self._store}, so values may not "
                "have reached the disk; all are copied again; use a LocalStore with fsync=True to keep them",
                stacklevel=2,
            )
            return  # Its values lie under another prefix, and are removed.
        super().find(key)

    def clear(self, key: str) -> None:
        """Remove what a copy has left that was killed after its last document was stored.

        Parameters
        ----------
        key : str
            The key of the lease of the place.
        """
        # It says what it removes, so that another call can go on if this one is killed.
        lease = Lease(self._store, key, "replace", plan=self.plan, top=self._found.top)
        if self._found.plan == self.plan and lease.there().plan == self.plan:
            lease.reserve(self._path)
            try:
                if is_top(self._found.top):
                    self._store.erase_prefix(self._found.top)
            finally:
                lease.release()


class Finished:
    """What an interrupted copy has stored.

    Parameters
    ----------
    store : Store
        Takes the notes.
    top : str
        Prefix of all that the copy stores beside its place.
    """

    def __init__(self, store: Store, top: str) -> None:
        self._store = store
        self.top = top

    def _notes(self, target: Array, tiles: Tiles) -> str:
        """Prefix of the notes on the tiles of an array."""
        place = f"{target.path} {tiles.per_tile}"
        return f"{self.top}left-out/{hashlib.blake2b(place.encode(), digest_size=8).hexdigest()}/"

    def note(self, target: Array, tiles: Tiles, coords: Coords, left_out: Sequence[Coords]) -> None:
        """Note the units of a tile that are not stored because they hold only the fill value."""
        units = [[*map(int, each)] for each in left_out]
        key = f"{self._notes(target, tiles)}{'.'.join(map(str, coords))}"
        self._store.set(key, json.dumps({"units": units}).encode())

    def _ended(self, target: Array) -> str:
        """The key that notes the end of the copy of an array."""
        return f"{self.top}ended-{hashlib.blake2b(target.path.encode(), digest_size=8).hexdigest()}"

    def has_ended(self, target: Array) -> bool:
        """Whether all values of an array are stored."""
        return self._store.exists(self._ended(target))

    def note_end(self, target: Array) -> None:
        """Note that all values of an array are stored."""
        self._store.set(self._ended(target), b"{}")

    def left(self, target: Array, wanted: Iterator[Coords], tiles: Tiles) -> Iterator[Coords]:
        """Those of the wanted tiles that are not stored as a whole."""
        prefix = self._notes(target, tiles)
        folder = target.engine.key_prefix.rpartition("/")[0]
        there = set(target.store.list_prefix(f"{folder}/" if folder else ""))
        noted = set(self._store.list_prefix(prefix))
        for coords in wanted:
            absent = [unit for unit in tiles.units(coords) if target.engine.key(unit) not in there]
            key = f"{prefix}{'.'.join(map(str, coords))}"
            if absent and not (key in noted and self._left_out(key) == set(absent)):
                yield coords

    def _left_out(self, key: str) -> set[Coords]:
        """The units that a note names."""
        units = said_in(self._store.get(key, (0, _LARGEST))).get("units")
        try:
            return {tuple(unit) for unit in units or ()}
        except TypeError:
            return set()
