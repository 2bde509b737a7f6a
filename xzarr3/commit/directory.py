"""Replaces a node in a directory: new values are written to a staging directory and swapped in by renaming.

The staging directory is laid out like the store. What is renamed are units: the directory of the node, or, if
something in it stays, the names in it. The lease of the place says from the moment it is taken that a swap is
under way, and the list of units beside the new values says what is left to do. Documents of the node leave
first and come last, so no reader sees the node with arrays of another version.

"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Sequence
from functools import partial

from xzarr3._types import Buffer
from xzarr3.commit.lease import SWAPPING
from xzarr3.commit.places import Place, is_own
from xzarr3.commit.recover import take
from xzarr3.commit.renames import remove_at_once, remove_staged, swap_units
from xzarr3.commit.transaction import NEW, SWAP, NewNode, Swap, Transaction
from xzarr3.errors import StoreError
from xzarr3.nodes.consolidated import drop_from_consolidated
from xzarr3.nodes.documents import store_documents
from xzarr3.stores import LocalStore
from xzarr3.stores.local.files import discard, failed, make
from xzarr3.stores.local.system import sync_folder


class Directory(Transaction):
    """Stages values in a directory and swaps by renaming: old units aside, new units to their places."""

    target: LocalStore

    def __init__(
        self,
        place: Place,
        new: NewNode,
        *,
        overwrite: bool,
        plan: str | None = None,
        left: str | None = None,
    ) -> None:
        super().__init__(place, new, overwrite=overwrite, plan=plan, left=left)
        self._made: os.stat_result | None = None
        self._folder = os.path.join(self.target.root, self.top[:-1])
        self._new = os.path.join(self._folder, NEW)
        self.store = StagedFolder(self._new, repr(self.target), **self.target._options())
        if overwrite:
            self._units(new.nodes)  # raises before anything is computed

    def begin(self) -> None:
        if self.plan is not None:
            lease = self.place.lease(self.plan, self.top)
            goes_on, _ = take(lease, self.target, self.place.path)
            self.lease = lease
            if self.resumes and not goes_on:
                raise self.gone()
            for name in self.store.leftovers(""):
                discard(os.path.join(self._new, name))
        try:
            make(self.target.check_inside(self._new, f"{self.top}{NEW}"), fsync=self.target.fsync)
            self._made = os.stat(self._new)
        except OSError as error:
            raise failed(f"cannot write to {self.target}", error) from error

    def publish(self) -> None:
        store, path = self.target, self.place.path
        self.check_groups()
        store_documents(self.store, self.new.format, self.new.documents, last=path)
        with self.noting():
            self._reserve()
        if not self.overwrite and self.place.is_occupied():
            raise self.place.taken()
        try:
            away, come = self._units()
        except OSError as error:
            raise failed(f"cannot replace '/{path}' in {store}", error) from error
        if not self._is_kept():  # looked at only now: it may have been removed while it was listed
            raise self.gone()
        for unit in (*away, *come) if path else ():
            store.check_inside(os.path.dirname(os.path.join(store.root, unit)), path)
        swap = Swap(path, self.new.format.zarr_format, [away], come, {}, self.overwrite)
        with self.noting():
            store.set(f"{self.top}{SWAP}", swap.text())
            if self.plan is not None and self.lease is not None:  # that of others says so from the start
                self.lease.say(path, SWAPPING, self.top)
        self.is_swapping = True
        for each in self.place.formats:  # first, so that no consolidated copy outlives its document
            drop_from_consolidated(store, each, path)
        if not swap_units(store, self.top, swap):
            store.erase(f"{self.top}{SWAP}")
            self.is_swapping = False
            raise self.place.taken()
        self.new.follow(store)
        self.is_swapping = False

    def _is_kept(self) -> bool:
        """Whether the staging directory is still the one that was made."""
        try:
            return self._made is not None and os.path.samestat(self._made, os.stat(self._new))
        except OSError:
            return False

    def _reserve(self) -> None:
        """Reserve the place for the swap; one that a dead writer began there is finished first."""
        if self.lease is not None:
            self.lease.verify(self.place.path)
            return
        store, place = self.target, self.place
        lease = place.lease(top=self.top, state=SWAPPING)
        take(lease, store, place.path, time.monotonic() + store.traits.conflict_deadline)
        self.lease = lease

    def _units(self, paths: Iterable[str] = ()) -> tuple[list[str], list[str]]:
        """The units that leave and those that come, each in order; raises if something is in the way.

        Parameters
        ----------
        paths : iterable of str
            Paths of the nodes that come, if they are not staged yet.
        """
        place, store = self.place, self.target
        away: set[str] = set()
        come: set[str] = set()
        for prefix in place.prefixes:
            there = _names(store.root, prefix)
            leaving = {name for name in there if place.leaves(name, store.exists, self._below)}
            if place.path and leaving == there:  # the directory as a whole
                away.add(prefix[:-1])
                come.add(prefix[:-1])
                continue
            coming = _names(self._new, prefix)
            coming.update(
                prefix + path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix)
            )
            if coming & there - leaving:
                raise place.in_the_way(coming & there - leaving)
            away |= leaving
            come |= coming
        outside = {key for key in place.documents if not key.startswith(place.prefixes)}
        return (
            self._ordered(each for each in away | outside if os.path.lexists(os.path.join(store.root, each))),
            self._ordered(each for each in come | outside if os.path.lexists(os.path.join(self._new, each)))[
                ::-1
            ],
        )

    def _ordered(self, units: Iterable[str]) -> list[str]:
        """Units in the order in which they leave: documents first, and what holds documents before chunks."""
        units, own = set(units), self.place.documents
        first = [unit for stage in self.place.in_order(units & own) for unit in stage]
        return [*first, *sorted(units - own, reverse=True)]  # in the draft, "meta" before "data"

    def _below(self, name: str) -> list[str]:
        """The keys of a name in the directory."""
        return [*self.target.list_prefix(f"{name}/")] or [name]

    def _remove_staged(self) -> None:
        remove_staged(self.target, self.top)

    def _remove_written(self) -> None:
        if self._made is not None:  # otherwise it is another writer's, or was never made
            remove_at_once(self.target, self._folder)


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
        # the directory is made once: if it is gone, so are earlier values
        if not os.path.isdir(self.root):
            raise StoreError(
                f"cannot write to {self}: values that this write stored before are gone, because it has "
                "failed, or another writer removed them after a day; repeat the write"
            )
        super().put(key, pieces)

    def adopt(self, key: str, path: str) -> bool:
        """Give a file of another folder a second name, that of a key here; false if that is not possible."""
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode) or not os.path.isdir(self.root):
                return False
            name = self._path(key)
            self._enter(key, name, make=True)
            os.link(path, name)
            if self.fsync:
                sync_folder(os.path.dirname(name))
        except OSError:  # The system has no links, or the file has as many as it can have.
            return False
        return True


def _names(root: str, prefix: str) -> set[str]:
    """The names in a directory that can be part of a node, as keys."""
    folder = os.path.join(root, prefix)
    if not os.path.isdir(folder):
        return set()
    return {f"{prefix}{name}" for name in os.listdir(folder) if is_own(f"{prefix}{name}")}
