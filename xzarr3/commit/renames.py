"""Swaps units of a directory by renaming: the old ones aside, the staged ones to their places.

The names alone tell how far a swap got, so another process can finish it by doing the same again: a unit that
is still staged has not come yet, and whatever is at its place leaves. Takes no leases.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
import warnings
from collections.abc import Iterator

from xzarr3.commit.transaction import NEW, OLD, SWAP, Swap
from xzarr3.errors import printable
from xzarr3.formats import FORMATS
from xzarr3.stores import LocalStore
from xzarr3.stores.local.files import erase_tree, failed, make
from xzarr3.stores.local.names import STAGED


def swap_units(store: LocalStore, top: str, swap: Swap, *, again: bool = False) -> bool:
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
        left = [unit for unit in swap.come if _is_there(store, f"{top}{NEW}/{unit}")]
        if again and any(_is_there(store, each) and _is_aside(store, top, each) for each in left):
            return False
        away = [unit for stage in swap.away for unit in stage]
        for unit in away if left else ():  # if nothing is left to come, others may have changed the new node
            if unit in left or unit not in swap.come:
                _check_staged(store, top, unit if unit in left else left[-1])
                if _is_there(store, unit) and not _is_aside(store, top, unit):
                    _rename(store, unit, f"{top}{OLD}/{unit}")
        for unit in left:
            _check_staged(store, top, unit)
            if _is_there(store, unit) and not swap.overwrite:
                for each in reversed(swap.come) if not again else ():
                    if _is_there(store, each) and not _is_there(store, f"{top}{NEW}/{each}"):
                        _rename(store, each, f"{top}{NEW}/{each}")
                return False
            if _is_there(store, unit):
                keep(store, unit, swap.path)
            _rename(store, f"{top}{NEW}/{unit}", unit)
        if store.fsync:
            for above in dict.fromkeys(unit.rpartition("/")[0] for unit in swap.come):
                store.sync(os.path.join(store.root, above))
    return True


def finish(store: LocalStore, top: str, swap: Swap) -> bool:
    """Finish a swap that another process began; returns whether the new node is in its place.

    If not, the old node had not left, or another writer has written to the place since.
    """
    if not _has_begun(store, top, swap):
        return False
    done = swap_units(store, top, swap, again=True)
    if not done:
        with _moving(store):
            keep(store, f"{top}{NEW}", swap.path)
    return done


def _has_begun(store: LocalStore, top: str, swap: Swap) -> bool:
    """Whether the old node has left; if not, documents that were renamed aside are renamed back."""
    away = [each for stage in swap.away for each in stage]
    own = {key for format in FORMATS.values() for key in format.keys(swap.path).documents}
    # as long as one of these is in place, the old node can be found and changed
    first = [each for each in away if each in own] or away[:1]
    with _moving(store):
        if not all(_is_there(store, f"{top}{NEW}/{unit}") for unit in swap.come):
            return True
        aside = [unit for unit in first if _is_aside(store, top, unit)]
        if first and all(unit in aside or not _is_there(store, unit) for unit in first):
            return bool(aside)
        for unit in aside:
            if not _is_there(store, unit):
                _rename(store, f"{top}{OLD}/{unit}", unit)
    return False


def keep(store: LocalStore, name: str, path: str) -> None:
    """Move what another writer has written, or what cannot take its place, to where it is never removed."""
    kept = f"{STAGED}{uuid.uuid4().hex}/{OLD}"
    _rename(store, name, f"{kept}/{name}" if not name.startswith(STAGED) else kept)
    warnings.warn(
        f"'{name}' is kept in '{kept}' of {store}: while '/{printable(path)}' was put in its place, another "
        "writer has written there since",
        stacklevel=2,
    )


@contextlib.contextmanager
def _moving(store: LocalStore) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failed(f"cannot rename the files of {store}", error) from error


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


def _is_aside(store: LocalStore, top: str, unit: str) -> bool:
    return _is_there(store, f"{top}{OLD}/{unit}")


def _check_staged(store: LocalStore, top: str, unit: str) -> None:
    """Raise if a unit is no longer staged, as another process has put it in place."""
    if not _is_there(store, f"{top}{NEW}/{unit}"):
        raise FileNotFoundError(errno.ENOENT, "another process has taken over", unit)


def _rename(store: LocalStore, name: str, renamed: str) -> None:
    source, target = _place(store, name), _place(store, renamed)
    above = os.path.dirname(target)
    if not os.path.isdir(above):
        make(os.path.realpath(above), fsync=store.fsync)
    os.rename(source, target)


# Removing


def remove_staged(store: LocalStore, top: str) -> None:
    """Remove all that a write has staged, the list of what is left to do first."""
    store.erase(f"{top}{SWAP}")
    remove(os.path.join(store.root, top[:-1]))


def remove_at_once(store: LocalStore, folder: str) -> None:
    """Rename a directory, then remove it, so that its writer never finds a part of it."""
    removed = os.path.join(store.root, f"{STAGED}{uuid.uuid4().hex}")
    try:
        os.rename(folder, removed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(f"cannot remove '{folder}'", error) from error
    remove(removed)


def remove(folder: str) -> None:
    """Remove a directory and everything in it."""
    try:
        erase_tree(folder)
    except OSError as error:
        if os.path.lexists(folder):
            raise failed(f"cannot remove '{folder}'", error) from error
