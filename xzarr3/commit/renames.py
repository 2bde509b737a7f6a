"""Swaps nodes in a directory by renaming: the old node aside, then the staged node to its place.

Both are renamed as units: directories or files that have one name. The names alone tell how far a swap got,
so another writer can finish it by doing the same again. A unit that is still staged has not come yet;
whatever is at its place leaves.

This module also removes staging directories. It takes no leases: :mod:`xzarr3.commit.swap` does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from xzarr3.commit.carry_files import ForeignFiles, carry
from xzarr3.commit.lease import Holder, lease_key
from xzarr3.commit.leftovers import ABANDONED
from xzarr3.commit.stage import NEW, OLD, NodeKeys, foreign_keys, staging_folders, taken_up
from xzarr3.errors import NodeExistsError, StoreError, printable
from xzarr3.formats import Format
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local.files import discard, is_busy, lock_of, make
from xzarr3.stores.local.names import LOCK, STAGED, is_lock

_ATTEMPTS = 10


def is_unit(name: str) -> bool:
    """Whether a string can name a unit, that is, something below the root that a write may rename."""
    names = name.split("/")
    return (
        not {"", ".", ".."} & set(names)
        and "\0" not in name
        and not name.startswith(STAGED)
        and not is_lock(name)
    )


def swap_units(
    store: LocalStore,
    top: str,
    away: Sequence[str],
    come: Sequence[str],
    *,
    overwrite: bool,
    again: bool = False,
) -> bool:
    """Rename the old units aside and the staged units to their places; finished steps are not repeated.

    Parameters
    ----------
    store : LocalStore
    top : str
        Key prefix of the staged values.
    away, come : sequence of str
        The units that leave and the units that come, in order.
    overwrite : bool
        Rename anything in the way aside. Without it, if something has appeared in the way, all units go back.
    again : bool
        Another writer began this swap. What has appeared since at a place that it had cleared stays.

    Returns
    -------
    bool
        Whether all units are in their places.

    Raises
    ------
    StoreError
        If a unit cannot be renamed. All units still exist, and the swap can be done again.
    """
    with _moving(store):
        left = [unit for unit in come if _is_there(store, f"{top}{NEW}/{unit}")]
        if again and any(_is_there(store, each) and _is_aside(store, top, each) for each in left):
            return False
        if left:  # if nothing is left to come, others may have changed the new node
            for unit in away:
                if unit in left or unit not in come:
                    _check_staged(store, top, unit if unit in left else left[-1])
                    _put_aside(store, top, unit)
        for unit in left:
            _check_staged(store, top, unit)
            if overwrite:
                _put_aside(store, top, unit)  # moves away what has appeared since
            elif _is_there(store, unit):
                if not again:
                    _take_back(store, top, come)
                return False
            _rename(store, f"{top}{NEW}/{unit}", unit)
        if store.fsync:
            for above in dict.fromkeys(unit.rpartition("/")[0] for unit in come):
                store.sync(os.path.join(store.root, above))
    return True


def has_begun(store: LocalStore, top: str, first: Sequence[str], come: Sequence[str]) -> bool:
    """Whether the old node has left; if not, documents that were renamed aside are renamed back.

    Parameters
    ----------
    store : LocalStore
    top : str
        Key prefix of the staged values, and of what was renamed aside.
    first : sequence of str
        The units that leave first. The old node is in place as long as one of them is.
    come : sequence of str
        The units that come.

    Raises
    ------
    StoreError
        If a unit cannot be renamed back.
    """
    with _moving(store):
        if not all(_is_there(store, f"{top}{NEW}/{unit}") for unit in come):
            return True
        aside = [unit for unit in first if _is_aside(store, top, unit)]
        if first and all(unit in aside or not _is_there(store, unit) for unit in first):
            return bool(aside)
        for unit in aside:
            if not _is_there(store, unit):
                _rename(store, f"{top}{OLD}/{unit}", unit)
    return False


@contextlib.contextmanager
def _moving(store: LocalStore) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot rename the files of {store}: {error.strerror or error}") from error


def _place(store: LocalStore, name: str) -> str:
    """The path of a name, whose directory is not outside of the store."""
    path = os.path.join(store.root, name)
    store.check_inside(os.path.dirname(path), name)
    return path


def _is_there(store: LocalStore, name: str) -> bool:
    try:
        os.lstat(_place(store, name))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_staged(store: LocalStore, top: str, unit: str) -> None:
    """Raise if a unit is no longer staged, as another process has put it in place."""
    if not _is_there(store, f"{top}{NEW}/{unit}"):
        raise FileNotFoundError(errno.ENOENT, "another process has taken over", unit)


def _is_aside(store: LocalStore, top: str, unit: str) -> bool:
    return _is_there(store, f"{top}{OLD}/{unit}")


def keep(store: LocalStore, top: str, part: str) -> str:
    """Move a part of the staging directory to a new name that is never removed; returns the name."""
    kept = f"{STAGED}{uuid.uuid4().hex}/{OLD}"
    with _moving(store):
        _rename(store, f"{top}{part}", kept)
    return kept


def _rename(store: LocalStore, name: str, renamed: str) -> None:
    source, target = _place(store, name), _place(store, renamed)
    above = os.path.dirname(target)
    if not os.path.isdir(above):
        make(os.path.realpath(above), fsync=store.fsync)
    os.rename(source, target)


def _put_aside(store: LocalStore, top: str, unit: str) -> None:
    if not _is_there(store, unit):
        return
    for n in range(_ATTEMPTS):
        aside = f"{top}{OLD}{n or ''}/{unit}"
        if not _is_there(store, aside):
            _rename(store, unit, aside)
            return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), unit)


def _take_back(store: LocalStore, top: str, come: Sequence[str]) -> None:
    """Rename units that have come back to the staging directory; another writer has written there."""
    for unit in reversed(come):
        if _is_there(store, unit) and not _is_there(store, f"{top}{NEW}/{unit}"):
            _rename(store, unit, f"{top}{NEW}/{unit}")


def bring_back(
    store: LocalStore,
    top: str,
    format: Format,
    path: str,
    arrays: Mapping[str, ArrayMetadata],
    *,
    overwrite: bool,
    known: Set[str],
) -> None:
    """Bring back files that are no part of a hierarchy and appeared in what was renamed aside.

    Parameters
    ----------
    store : LocalStore
    top : str
        Key prefix of what was staged, and of what was renamed aside.
    format : Format
    path : str
        Path of the node.
    arrays : mapping of str to ArrayMetadata
        The arrays that are now in place, by path.
    overwrite : bool
        Whether an old node was replaced. Without it, all that appeared is foreign.
    known : set of str
        Keys known not to need bringing back.
    """
    for n in range(_ATTEMPTS):
        source = f"{top}{OLD}{n or ''}"
        aside = LocalStore(os.path.join(store.root, source), read_only=True)
        if not os.path.isdir(aside.root):
            return
        places = NodeKeys.of(store if path else aside, format, path)  # includes the old format
        keys = places.keys(aside)
        if keys <= known:
            continue
        try:
            foreign = foreign_keys(aside, places, arrays, store, keys) if overwrite else keys
        except NodeExistsError as error:  # appeared during the swap: it can only be kept
            kept = keep(store, top, source.removeprefix(top))
            warnings.warn(
                f"what was replaced at '/{printable(path)}' in {store} is kept in '{kept}', because other "
                f"writers have just written there: {error}",
                stacklevel=2,
            )
            continue
        missing = {
            name for name in ForeignFiles.among(aside.root, foreign, keys).names if not _in(store, name)
        }
        missing -= taken_up(format, missing, lambda key: _in(store, key))
        back = sorted(name for name in missing if not _led_to_folder(store, aside, name))
        with _moving(store):
            carry(store.root, source, "", back, replace=False, fsync=store.fsync)


def _in(store: LocalStore, key: str) -> bool:
    return os.path.lexists(os.path.join(store.root, key))


def _led_to_folder(store: LocalStore, aside: LocalStore, name: str) -> bool:
    """Whether a name was, before the move, a symbolic link to a directory; that may be a node."""
    try:
        target = os.readlink(os.path.join(aside.root, name))
    except OSError:  # not a symbolic link
        return False
    return os.path.isdir(os.path.join(store.root, os.path.dirname(name), target))


# Removing


def remove(folder: str) -> None:
    """Remove a directory and everything in it.

    Raises
    ------
    StoreError
        If it cannot be removed.
    """
    failure: OSError | None = None
    for _ in range(_ATTEMPTS):
        try:
            _remove_tree(folder)
        except OSError as error:
            if not os.path.lexists(folder):
                return
            failure = error
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                break  # otherwise another process just added or removed an entry
        else:
            return
    raise StoreError(f"cannot remove '{folder}': {failure}") from failure


def _remove_tree(folder: str) -> None:
    """Remove a directory, except open files that a network file system removes itself later."""
    busy: list[str] = []

    def failed(act: object, path: str, problem: Any) -> None:
        error = problem[1] if isinstance(problem, tuple) else problem
        if is_busy(os.path.basename(path), error):
            busy.append(path)
        elif error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not any(
            each.startswith(os.path.join(path, "")) for each in busy
        ):
            raise error

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=failed)
    else:
        shutil.rmtree(folder, onerror=failed)


def remove_at_once(store: Store, folder: str) -> None:
    """Rename a directory, then remove it, so that its writer never finds a part of it."""
    removed = os.path.join(str(store.folder), f"{STAGED}{uuid.uuid4().hex}")
    try:
        os.rename(folder, removed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot remove '{folder}': {error}") from error
    remove(removed)


def sweep_directory(store: Store) -> None:
    """Remove staging directories of killed writes that had not begun their swap."""
    folders = staging_folders(store)
    leases = [lease_key(f"{os.path.basename(folder)}/") for folder in folders]
    holders = [Holder.parse(value) for value in store.get_values(leases)]
    needed = {holder.top for holder in holders if holder.state or holder.is_dead is not True}
    for folder, holder in zip(folders, holders, strict=True):
        with contextlib.suppress(OSError):  # not empty
            discard(
                lock_of(os.path.join(folder, lease_key("")))
            )  # of a writer killed as it released its lease
            os.rmdir(folder)
            continue
        is_needed = holder.state or f"{os.path.basename(folder)}/" in needed
        if not is_needed and not os.path.lexists(os.path.join(folder, OLD)) and _is_abandoned(folder):
            remove_at_once(store, folder)


def _is_abandoned(folder: str) -> bool:
    """Whether no directory below this one has changed for :data:`ABANDONED` seconds."""
    limit = time.time() - ABANDONED
    for below, _, _ in os.walk(folder):
        try:
            info = os.lstat(below)
        except FileNotFoundError:
            return False  # another process is at work here
        if not stat.S_ISDIR(info.st_mode) or info.st_mtime > limit:
            return False
    return True


def remove_partial(folder: str) -> None:
    """Remove lock files that killed writers left beside values."""
    for below, _, names in os.walk(folder):
        for name in names:
            if name.endswith(LOCK):
                with contextlib.suppress(OSError):  # it may just have been renamed to a value
                    os.unlink(os.path.join(below, name))
