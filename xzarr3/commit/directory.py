"""Replaces a node in a directory: new values are written to a staging directory and swapped in by renaming.

The staging directory is laid out like the store. What is renamed are units: the directory of the node, or, if
something in it stays, the names in it. The lease of the place says from the moment it is taken that a swap is
under way, and the list of units beside the new values says what is left to do. Documents of the node leave
first and come last, so no reader sees the node with arrays of another version.

The names alone tell how far a swap got, so another process can finish it by doing the same again: a unit that
is still staged has not come yet, and whatever is at its place leaves. A swap for which the old node must not
have changed looks at it where it lies aside, and puts it back if it has.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import cast

import msgspec

from xzarr3.commit.lease import SWAPPING, TAKING, LeaseLostError, take_apart
from xzarr3.commit.places import is_own
from xzarr3.commit.staged import NEW, OLD, SWAP, Swap
from xzarr3.commit.transaction import Transaction, finish_above
from xzarr3.errors import StoreError, printable
from xzarr3.formats import FORMATS, Format
from xzarr3.formats.base import node_prefix
from xzarr3.nodes.consolidated import drop_from_consolidated
from xzarr3.nodes.documents import date_nodes, store_documents
from xzarr3.nodes.find import load_below
from xzarr3.nodes.seen import date_now, newest, note_date
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local import system
from xzarr3.stores.local.files import discard, erase_tree, failed, make, remove
from xzarr3.stores.local.names import STAGED


class Directory(Transaction):
    """Stages values in a directory and swaps by renaming: old units aside, new units to their places."""

    target: LocalStore
    _made: os.stat_result | None = None

    def _prepared(self) -> StagedFolder:
        self._folder = os.path.join(self.target.root, self.top[:-1])
        self._new = os.path.join(self._folder, NEW)
        if self.overwrite:
            self._units(self.new.nodes)  # raises before anything is computed
        return StagedFolder(self._new, repr(self.target), **self.target._options())

    def begin(self) -> None:
        if self.plan is not None:
            goes_on = self._take(self.place.lease(self.plan, self.top))
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
        self._stage_documents()
        with self.noting():
            self._reserve()
        self.check_groups()
        for key in itertools.chain(*self.new.documents.values()):  # Others may have swapped since.
            note_date(store, key, store.get(key))
        if not self.overwrite and self.place.is_occupied():
            raise self.place.taken()
        try:
            leaving, coming = self._units()
            away, come = self._ordered("", leaving), self._ordered(f"{self.top}{NEW}/", coming)[::-1]
        except OSError as error:
            raise failed(f"cannot replace '/{path}' in {store}", error) from error
        if not self._is_kept():  # looked at only now: it may have been removed while it was listed
            raise self.gone()
        for unit in (*away, *come) if path else ():
            store.check_inside(os.path.dirname(os.path.join(store.root, unit)), path)
        swap = Swap(path, self.new.format.zarr_format, [away], come, {}, self.overwrite)
        with self.noting():
            store.set(f"{self.top}{SWAP}", swap.text())
            if self.lease is not None and self.lease.said.state != SWAPPING:
                self.lease.say(path, SWAPPING, self.top)
        self.is_swapping = True
        for each in self.place.formats:  # first, so that no consolidated copy outlives its document
            drop_from_consolidated(store, each, path)
        if (newest(store) or 0) > self.new.placed_at:  # The old nodes, or copies of them, are later.
            self._stage_documents()
        unchanged = None if self.unchanged is None else self._is_unchanged
        if not swap_units(store, self.top, swap, unchanged=unchanged):
            store.erase(f"{self.top}{SWAP}")
            self.is_swapping = False
            if self.unchanged is None:
                raise self.place.taken()
            finish_above(store, self.new.format, path)
            raise self.place.changed()
        self._follow()
        self.is_swapping = False

    def _is_unchanged(self, aside: str) -> bool:
        """Whether the old nodes have not changed; else they get a new date, and go back.

        So who found no values there, or stored some, while they lay aside, is told.
        """
        if self.unchanged is None or self.unchanged(aside):
            return True
        format, path, old = self.new.format, self.place.path, LocalStore(aside, **self.target._options())
        below = (node_prefix(path) + each for each in load_below(old, format, path))
        date_nodes(old, format, [path, *below], date_now(self.target))
        return False

    def _stage_documents(self) -> None:
        self.new = self.new.dated(self.target, self.stay)
        store_documents(self.store, self.new.format, self.new.documents, last=self.place.path)

    def _is_kept(self) -> bool:
        """Whether the staging directory is still the one that was made."""
        try:
            return self._made is not None and os.path.samestat(self._made, os.stat(self._new))
        except OSError:
            return False

    def _reserve(self) -> None:
        """Reserve the place for the swap; one that a dead writer began there is finished first."""
        path, held = self.place.path, self.lease
        lease = held or self.place.lease(top=self.top, state=SWAPPING)
        until = time.monotonic() + self.target.traits.conflict_deadline
        take: Callable[[], object] = partial(self._take, lease, until)
        give = lease.release
        if held is not None:
            take, give = partial(held.say, path, TAKING, self.top), partial(held.say, path, "", self.top)
        take_apart(self.target, lease.key, path, until, take, give)

    def _units(self, paths: Iterable[str] = ()) -> tuple[set[str], set[str]]:
        """The units that may leave and those that may come; raises if something is in the way.

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
        return away | outside, come | outside

    def _ordered(self, prefix: str, units: Iterable[str]) -> list[str]:
        """The units that are there below a prefix, in the order in which they leave.

        Documents are first, and what holds documents before chunks.
        """
        units = {each for each in units if _is_there(self.target, f"{prefix}{each}")}
        own = self.place.documents
        first = [unit for stage in self.place.in_order(units & own) for unit in stage]
        return [*first, *sorted(units - own, reverse=True)]  # in the draft, "meta" before "data"

    def _below(self, name: str) -> list[str]:
        """The keys of a name in the directory."""
        return [*self.target.list_prefix(f"{name}/")] or [name]

    @staticmethod
    def finish(store: Store, format: Format, top: str, swap: Swap) -> bool:
        local = cast("LocalStore", store)
        if not _has_begun(local, top, swap):
            return False
        done = swap_units(local, top, swap, again=True)
        if not done:
            with _moving(local, top, swap) as kept:
                _keep(local, f"{top}{NEW}", swap.path, kept)
        return done

    @staticmethod
    def remove(store: Store, top: str) -> None:
        _remove(os.path.join(cast("LocalStore", store).root, top[:-1]))

    def _remove_staged(self) -> None:
        self.remove(self.target, self.top)

    def _remove_written(self) -> None:
        if self._made is not None:  # otherwise it is another writer's, or was never made
            remove_at_once(self.target, self._folder)


class StagedFolder(LocalStore):
    """The staging directory as a store; error messages call it by the store that the values will be in."""

    def __init__(self, root: str, shown: str, /, **options: bool) -> None:
        super().__init__(root, **options)
        self._shown = shown
        # What `_enter` asks for is all that tells it from its base: so native code may write here, too.
        self.traits = msgspec.structs.replace(self.traits, plain_files=system.POSIX)

    def __repr__(self) -> str:
        return self._shown

    def __reduce__(self) -> tuple[object, ...]:
        return partial(StagedFolder, **self._options()), (self.root, self._shown)

    def _enter(self, key: str, path: str, *, make: bool) -> int | None:
        # the directory is made once: if it is gone, so are earlier values
        if make and not os.path.isdir(self.root):
            raise StoreError(
                f"cannot write to {self}: values that this write stored before are gone, because it has "
                "failed, or another writer removed them after a day; repeat the write"
            )
        return super()._enter(key, path, make=make)

    def adopt(self, key: str, path: str) -> bool:
        """Give a file of another folder a second name, that of a key here; false if that is not possible."""
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return False
            name = self._path(key)
            self._enter(key, name, make=True)
            os.link(path, name)
            if self.fsync:
                system.sync_folder(os.path.dirname(name))
        except OSError:  # The system has no links, or the file has as many as it can have.
            return False
        return True


def _names(root: str, prefix: str) -> set[str]:
    """The names in a directory that can be part of a node, as keys."""
    folder = os.path.join(root, prefix)
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise failed(f"cannot list '{folder}'", error) from error
    return {f"{prefix}{name}" for name in names if is_own(f"{prefix}{name}")}


# Renaming


def swap_units(
    store: LocalStore,
    top: str,
    swap: Swap,
    *,
    again: bool = False,
    unchanged: Callable[[str], bool] | None = None,
) -> bool:
    """Rename the old units aside and the staged units to their places; finished steps are not repeated.

    Parameters
    ----------
    store : LocalStore
    top : str
        Key prefix of the staged values.
    swap : Swap
        What has appeared at a place since is kept aside; without ``overwrite``, all new units go back.
    again : bool
        Another process began this swap. What has appeared since at a place that it had cleared stays.
    unchanged : callable, optional
        As :class:`Transaction` has it. If the old units have changed, they go back.

    Returns
    -------
    bool
        Whether all units are in their places.

    Raises
    ------
    StoreError
        If a unit cannot be renamed. All units still exist, and the swap can be done again.
    """
    with _moving(store, top, swap) as kept:
        left = [unit for unit in swap.come if _is_there(store, f"{top}{NEW}/{unit}")]
        if not (left or again):
            raise LeaseLostError(
                f"cannot put '/{swap.path}' in its place in {store}: another process has taken over, because "
                "this write seemed to have been abandoned; write it again"
            )
        came = (_is_there(store, each) and _is_aside(store, top, each) for each in left)
        if again and any(came) and _has_document(store, swap.path):
            return False
        away = [unit for stage in swap.away for unit in stage]
        for unit in away if left else ():  # if nothing is left to come, others may have changed the new node
            if unit in left or unit not in swap.come:
                _check_staged(store, top, unit if unit in left else left[-1])
                if _is_there(store, unit) and not _is_aside(store, top, unit):
                    _rename(store, unit, f"{top}{OLD}/{unit}")
        if unchanged is not None:
            is_same = False
            try:
                is_same = unchanged(os.path.join(store.root, f"{top}{OLD}"))
            finally:
                for unit in reversed(away) if not is_same else ():
                    _clear(store, unit, swap.path, kept)
                    _rename(store, f"{top}{OLD}/{unit}", unit)
            if not is_same:
                return False
        for unit in left:
            _check_staged(store, top, unit)
            if not swap.overwrite and _is_there(store, unit):
                for each in reversed(swap.come) if not again else ():
                    if _is_there(store, each) and not _is_there(store, f"{top}{NEW}/{each}"):
                        _rename(store, each, f"{top}{NEW}/{each}")
                return False
            _clear(store, unit, swap.path, kept)
            _rename(store, f"{top}{NEW}/{unit}", unit)
        if store.fsync:
            for above in dict.fromkeys(unit.rpartition("/")[0] for unit in swap.come):
                store.sync(os.path.join(store.root, above))
    return True


def _has_begun(store: LocalStore, top: str, swap: Swap) -> bool:
    """Whether the old node has left; if not, documents that were renamed aside are renamed back."""
    away = [each for stage in swap.away for each in stage]
    own = {key for format in FORMATS.values() for key in format.keys(swap.path).documents}
    # as long as one of these is in place, the old node can be found and changed
    first = [each for each in away if each in own] or away[:1]
    with _moving(store, top, swap):
        if not all(_is_there(store, f"{top}{NEW}/{unit}") for unit in swap.come):
            return True
        aside = [unit for unit in first if _is_aside(store, top, unit)]
        if first and all(unit in aside or not _is_there(store, unit) for unit in first):
            return bool(aside)
        for unit in aside:
            if not _is_there(store, unit):
                _rename(store, f"{top}{OLD}/{unit}", unit)
    return False


def _has_document(store: LocalStore, path: str) -> bool:
    """Whether another writer has put a node at a place that was cleared; chunks alone are none."""
    keys = {key for format in FORMATS.values() for key in format.keys(path).defining}
    return any(_is_there(store, key) for key in keys)


def _clear(store: LocalStore, unit: str, path: str, kept: list[str]) -> None:
    """Make room for a unit where there is nothing, or what a writer has begun that came too late."""
    with contextlib.suppress(FileNotFoundError):  # That writer has removed it.
        if _is_there(store, unit) and not _was_empty(os.path.join(store.root, unit)):
            _keep(store, unit, path, kept)


def _was_empty(folder: str) -> bool:
    """Remove a directory that holds nothing but directories; false if it holds something."""
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        return False
    with os.scandir(folder) as found:
        if not all(_was_empty(each.path) for each in found):
            return False
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError:  # Somebody has just written there.
        return False
    return True


def _keep(store: LocalStore, name: str, path: str, kept: list[str]) -> None:
    """Move what another writer has written, or what cannot take its place, to where it is never removed."""
    aside = f"{STAGED}{uuid.uuid4().hex}/{OLD}"
    _rename(store, name, f"{aside}/{name}" if not name.startswith(STAGED) else aside)
    kept.append(
        f"'{name}' is kept in '{aside}' of {store}: while '/{printable(path)}' was put in its place, another "
        "writer has written there since"
    )


@contextlib.contextmanager
def _moving(store: LocalStore, top: str, swap: Swap) -> Iterator[list[str]]:
    """Checks that no unit of a swap lies outside of the store.

    Yields a list of what to warn of at the end: a warning that is an error does not end a swap halfway.
    """
    kept: list[str] = []
    try:
        above = {unit.rpartition("/")[0] for unit in itertools.chain(*swap.away, swap.come)}
        for prefix in ("", f"{top}{NEW}/", f"{top}{OLD}/"):
            for each in above:
                store.check_inside(os.path.join(store.root, f"{prefix}{each}".rstrip("/")), each)
        yield kept
    except LeaseLostError:
        raise
    except OSError as error:
        raise failed(f"cannot rename the files of {store}", error) from error
    finally:
        for each in kept:
            warnings.warn(each, stacklevel=4)


def _is_there(store: LocalStore, name: str) -> bool:
    try:
        os.lstat(os.path.join(store.root, name))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_aside(store: LocalStore, top: str, unit: str) -> bool:
    return _is_there(store, f"{top}{OLD}/{unit}")


def _check_staged(store: LocalStore, top: str, unit: str) -> None:
    """Raise if a unit is no longer staged, as another process has put it in place."""
    if not _is_there(store, f"{top}{NEW}/{unit}"):
        raise FileNotFoundError(errno.ENOENT, "another process has taken over", unit)


def _rename(store: LocalStore, name: str, renamed: str) -> None:
    source, target = (os.path.join(store.root, each) for each in (name, renamed))
    above = os.path.dirname(target)
    if not os.path.isdir(above):
        make(os.path.realpath(above), fsync=store.fsync)
    with contextlib.ExitStack() as changing:
        for key in (name, renamed) if os.path.isfile(source) else ():
            if not key.startswith(STAGED):  # Who changes this document would store the old one once more.
                changing.enter_context(store.exclusive(key))
        os.rename(source, target)


# Removing


def remove_at_once(store: LocalStore, folder: str) -> None:
    """Rename a directory, then remove it, so that its writer never finds a part of it."""
    removed = os.path.join(store.root, f"{STAGED}{uuid.uuid4().hex}")
    try:
        os.rename(folder, removed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(f"cannot remove '{folder}'", error) from error
    _remove(removed)


def _remove(folder: str) -> None:
    """Remove a directory and everything in it, the list of what is left to do first."""
    try:
        remove(os.path.join(folder, SWAP))
        erase_tree(folder)
    except OSError as error:
        if os.path.lexists(folder):
            raise failed(f"cannot remove '{folder}'", error) from error
