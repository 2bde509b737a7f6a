"""Replaces a node in a directory: new values are written to a staging directory and swapped in by renaming.

All new values lie in one staging directory, laid out like the store. The swap is that of
:mod:`xzarr3.commit.swap`, but it renames units (:mod:`xzarr3.commit.renames`) instead of copying keys. Before
the first rename, the lease of the place says that the swap is under way, and the list of units says what is
left to do. Documents of the node leave first and come last, so no reader sees the node with arrays of another
version.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from xzarr3._types import Buffer
from xzarr3.commit.carry_files import ForeignFiles, carry
from xzarr3.commit.lease import NAME
from xzarr3.commit.recover import finish_swap, take
from xzarr3.commit.renames import remove_at_once, remove_partial
from xzarr3.commit.resume import Resumption
from xzarr3.commit.stage import (
    NEW,
    SWAP,
    NodeKeys,
    foreign_keys,
    gone,
    is_occupied,
    lease_at,
    occupied,
    taken_up,
)
from xzarr3.commit.staged import Staged
from xzarr3.commit.swap import Swap
from xzarr3.errors import StoreError
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.stores import LocalStore
from xzarr3.stores.local.files import make
from xzarr3.stores.local.names import LOCK, STAGED


class StagedFolder(LocalStore):
    """The staging directory as a store; error messages call it by the store that the values will be in."""

    def __init__(self, root: str, shown: str, /, **options: bool) -> None:
        super().__init__(root, **options)
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown

    def __reduce__(self) -> tuple[object, ...]:
        return partial(StagedFolder, **self._options()), (self.root, self._shown)

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:  # type: ignore[override]
        if not os.path.isdir(self.root):  # the directory is made once: if it is gone, so are earlier values
            raise gone(self)
        super().put(key, pieces)


class Directories(Staged):
    """Stages values in a directory and swaps by renaming: old units aside, new units to their places.

    Before anything is renamed, files that are no part of a Zarr hierarchy get a second name among the new
    values. Such files that appear meanwhile are brought back before what was renamed aside is removed.

    Parameters
    ----------
    store : LocalStore
    places : Places
    arrays : mapping of str to ArrayMetadata
        The arrays that are written, by path.
    overwrite : bool
        Replace an existing node.
    resumed : Resumption, optional
        Identifies the write, if it can be resumed.
    """

    _target: LocalStore

    def __init__(
        self,
        store: LocalStore,
        places: NodeKeys,
        arrays: Mapping[str, ArrayMetadata],
        *,
        overwrite: bool,
        resumed: Resumption | None = None,
    ) -> None:
        super().__init__(store, places, arrays, resumed)
        self._hidden = (self._top, self._key.removesuffix(NAME))
        self._overwrite = overwrite
        self._there: set[str] = set()
        self._kept = ForeignFiles()
        self._look()
        if resumed is not None:
            self._lease = lease_at(store, places, resumed.plan, self._top)
        self._folder = os.path.join(store.root, self._top[:-1])
        self._new = os.path.join(self._folder, NEW)
        self.store = StagedFolder(self._new, repr(store), **store._options())

    def _look(self) -> None:
        """List the existing keys and the files that stay; raises if a file may not be replaced."""
        if not self._overwrite:
            return
        there = self._places.keys(self._target)
        if there <= self._there:
            return
        foreign = foreign_keys(self._target, self._places, self._arrays, keys=there)
        self._there, self._kept = there, ForeignFiles.among(self._target.root, foreign, there)

    def _units(self, folder: str) -> list[str]:
        """The units of a directory that is laid out like the store, in the order in which they leave."""
        if "" in self._places.folders:
            if not os.path.lexists(folder):
                return []
            names = [
                name
                for name in os.listdir(folder)
                if not name.startswith(STAGED) and not name.endswith(LOCK) and name != NAME
            ]
            return list(chain.from_iterable(self._places.stages(names)))
        documents = chain.from_iterable(self._places.stages(self._places.documents))
        # Documents of nodes below go before their chunks.
        folders = sorted(self._places.folders, key=lambda name: (not self._has_documents(name), name))
        return [unit for unit in (*documents, *folders) if os.path.lexists(os.path.join(folder, unit))]

    def _has_documents(self, folder: str) -> bool:
        formats, path = self._places.formats, self._places.path
        return any(each.listing_prefix(path) == f"{folder}/" for each in formats)

    def begin(self) -> None:
        store, path = self._target, self._places.path
        if os.path.lexists(os.path.join(self._folder, SWAP)):  # an earlier attempt had begun its swap
            finish_swap(store, lease_at(store, self._places).key, path)
        if self._resumed is None:
            self._lease = None  # taken for the swap only
        elif self._lease is not None:
            take(self._lease, store, self._places, self._resumed)
            remove_partial(self._new)
        try:
            make(store.check_inside(self._new, f"{self._top}{NEW}"), fsync=store.fsync)
        except OSError as error:
            raise StoreError(f"cannot write to {store}: {error.strerror or error}") from error
        self._note_begin()

    def _failed(self, error: OSError) -> StoreError:
        place = f"'/{self._places.path}' in {self._target}"
        return StoreError(f"cannot replace {place}: {error.strerror or error}")

    def check(self) -> None:
        if not self._overwrite and is_occupied(self._target, self._places):
            raise occupied(self._target, self._places)

    def _stays(self, unit: str) -> bool:
        """Whether a unit in the root stays in place, as it is no part of a hierarchy."""
        if unit not in self._kept.alone:
            return False
        formats = self._places.formats
        for below, _, names in os.walk(os.path.join(self._target.root, unit)):
            relative = os.path.relpath(below, self._target.root).replace(os.sep, "/")
            if any(each.place(f"{relative}/{name}") is not None for name in names for each in formats):
                return False  # another writer has created a node there since
        return True

    def _carry_over(self, units: Sequence[str]) -> None:
        """Link the files that stay into the new values, where their directory will be renamed."""
        folders = tuple(f"{unit}/" for unit in units)
        names = {name for name in self._kept.names if name.startswith(folders) or name in units}
        names -= taken_up(self._places.formats[0], names, self._is_new)
        fsync = self._target.fsync
        carry(self._target.root, "", f"{self._top}{NEW}", sorted(names), replace=True, fsync=fsync)

    def _is_new(self, key: str) -> bool:
        return os.path.lexists(os.path.join(self._new, key))

    def swap(self, nodes: Mapping[str, NodeMetadata], consolidate: bool) -> None:
        store, format, path = self._target, self._places.formats[0], self._places.path
        self.check()
        self._reserve()
        self.check()
        self._look()
        try:
            news = self._units(self._new)
            away = [unit for unit in self._units(store.root) if unit in news or not self._stays(unit)]
            self._carry_over(away)
            come = self._units(self._new)[::-1]
        except OSError as error:
            raise self._failed(error) from error
        # checked only now: the staging directory may have been removed while it was listed
        self._check_kept()
        for unit in (*away, *come) if path else ():
            store.check_inside(os.path.dirname(os.path.join(store.root, unit)), path)
        paths: dict[str, dict[str, str]] = {f"{node_prefix(path)}{each}".rstrip("/"): {} for each in nodes}
        swap = Swap(
            path,
            format.zarr_format,
            self._key,
            [away],
            come,
            paths,
            consolidate,
            self.is_alone,
            renames=True,
            overwrite=self._overwrite,
        )
        if not self._carry_out(swap, nodes, self._there):
            store.erase(f"{self._top}{SWAP}")
            self._swapping = False
            raise occupied(store, self._places)

    def _reserve(self) -> None:
        """Reserve the place; a swap that a dead writer began there is finished first."""
        store, path = self._target, self._places.path
        if self._resumed is not None and self._lease is not None:
            self._lease.verify(path)
            return
        lease = lease_at(store, self._places, top=self._top)
        with self._hiding():
            take(lease, store, self._places, until=time.monotonic() + store.traits.conflict_deadline)
        self._lease = lease

    def _remove(self) -> None:
        remove_at_once(self._target, self._folder)
