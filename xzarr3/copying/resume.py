"""A copy that can be resumed: what identifies it, and what of it is stored.

Stores put a unit in place as a whole or not at all, so a unit that exists is done. Units that hold only the
fill value are not stored, so they are copied again.

A copy is identified by the place of the source, by the documents of source and target, and by the versions of
the source's documents. See
:mod:`xzarr3.commit.replace` for where an interrupted write leaves its values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from xzarr3.arrays import Array
from xzarr3.commit.lease import SWAPPING, Lease, holder_at
from xzarr3.commit.staged import is_top
from xzarr3.copying.tiles import Coords, Tiles
from xzarr3.errors import NodeExistsError
from xzarr3.io.stored_units import stored_units
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store, versioned

if TYPE_CHECKING:
    from xzarr3.groups import Group

_VERSION = 2


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
    keys = sorted({key for node in nodes.values() for key in node.format.keys(node.path).documents})
    values = parallel_map(partial(versioned, source), keys, source.concurrency)
    digest = hashlib.blake2b(repr((_VERSION, "copy", source.identity)).encode(), digest_size=16)
    for key, (value, version) in zip(keys, values, strict=True):
        content = None if value is None else hashlib.blake2b(value, digest_size=16).hexdigest()
        digest.update(repr((key, content, source.versions([key])[0], version)).encode())
    for path, own in sorted(documents.items()):
        digest.update(repr((path, sorted(own.items()))).encode())
    return digest.hexdigest()


class CopyResumption:
    """A copy that can be resumed, and what an interrupted one has left at its place.

    Parameters
    ----------
    store : Store
    path : str
    key : str
        The key of the lease of the place.
    plan : str
        The :func:`fingerprint` of the copy.

    Raises
    ------
    NodeExistsError
        If the place holds an unfinished write that this copy would not continue.
    """

    def __init__(self, store: Store, path: str, key: str, plan: str) -> None:
        self._store, self._path, self._key, self.plan = store, path, key, plan
        self._found = found = holder_at(store, key)
        self.has_swapped = found.plan == plan and found.state == SWAPPING
        """Whether the interrupted copy had stored all values, and was being put in its place."""
        if found.plan not in (None, plan) and is_top(found.top) and found.state != SWAPPING:
            raise NodeExistsError(
                f"'/{path}' in {store} holds an unfinished write that this call does not continue: the "
                "source is another one or has changed since, or the settings differ; repeat the call as it "
                "was, or leave out resume=True to drop what is there and copy everything"
            )

    def clear(self) -> None:
        """Remove what a copy has left that was killed after its last document was stored."""
        # It says what it removes, so that another call can go on if this one is killed.
        lease = Lease(self._store, self._key, "replace", plan=self.plan, top=self._found.top)
        if self._found.plan == self.plan and holder_at(self._store, self._key).plan == self.plan:
            lease.reserve(self._path)
            try:
                if is_top(self._found.top):
                    self._store.erase_prefix(self._found.top)
            finally:
                lease.release()


def left(target: Array, wanted: Iterator[Coords], tiles: Tiles) -> Iterator[Coords]:
    """Those of the wanted tiles whose units are not all stored."""
    there = set(stored_units(target))
    for coords in wanted:
        if not all(unit in there for unit in tiles.units(coords)):
            yield coords
