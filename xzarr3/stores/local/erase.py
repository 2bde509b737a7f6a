"""Erases keys of a :class:`~xzarr3.LocalStore`, leftovers of killed writers, and empty directories.

A link below an erased prefix is itself erased, and nothing behind it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from xzarr3.stores.local.folders import ABANDONED, OTHER_KIND, STAGED, TEMPORARY, Folders
from xzarr3.stores.local.locks import LOCK_NAME, FileLock

if TYPE_CHECKING:
    from xzarr3.stores.local.store import LocalStore


class Eraser(Folders):
    """The directories of a store, for erasing in them.

    Parameters
    ----------
    store : LocalStore
    """

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store.root)
        self._store = store

    def erase_values(self, keys: Sequence[str]) -> None:
        """Remove the files of keys, and the directories that become empty."""
        places: dict[str, str | None] = {}
        for key in keys:
            above = key.rpartition("/")[0]
            if above not in places:
                places[above] = self._store._resolve(self, above, key, "erase")
        for key in keys:
            above, _, name = key.rpartition("/")
            place = places[above]
            if place is not None:
                self._unlink(place, name, key)
        self._store._touch()
        emptied = {place for place in places.values() if place}
        for place in sorted(emptied, key=len, reverse=True):
            self.prune(place)
        if self._store.fsync and keys:
            self.sync_gone({place for place in places.values() if place is not None}, keys[0])

    def erase_prefix(self, prefix: str) -> None:
        """Remove a directory and its contents, except files being written; or a link to a directory."""
        above, _, name = prefix[:-1].rpartition("/")
        place = self._store._resolve(self, above, prefix, "erase")
        if place is None:
            return
        try:
            is_link = self.links_to_folder(place, name)
        except OSError as error:
            self._store._fail("erase", prefix, error)
        emptied = [place]
        if is_link:
            self._unlink(place, name, prefix)
        elif is_link is None:
            emptied += self._erase_tree(f"{place}/{name}" if place else name)
        self._store._touch()
        self.prune(place)
        if self._store.fsync:
            self.sync_gone(emptied, prefix)

    def sweep(self, prefix: str) -> None:
        """Remove leftovers of killed writers below ``prefix``, and directories that contain nothing else."""
        place = self._store._resolve(self, prefix[:-1], prefix, "sweep")
        if place is None:
            return
        _, _, leftovers = self._survey(place, "sweep")
        for folder, name in leftovers:
            self._discard(folder, name)
        for folder in sorted({folder for folder, _ in leftovers}, key=len, reverse=True):
            self.prune(folder)

    def temporary_files(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """Temporary files below ``prefix``, and whether :meth:`sweep` removes them; no locks."""
        place = self._store._resolve(self, prefix[:-1], prefix, "list")
        waiting = [] if place is None else [place]
        while waiting:
            folder = waiting.pop()
            below = f"{folder}/" if folder else ""
            try:
                for entry in self.scan(folder):
                    if entry.name.startswith(TEMPORARY):
                        if entry.name != LOCK_NAME:
                            yield below + entry.name, _is_abandoned(entry)
                    elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith(STAGED):
                        waiting.append(below + entry.name)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self._store._fail("list", folder, error)

    def sync_gone(self, places: Iterable[str], key: str) -> None:
        """Wait until removals are on the disk; for a removed directory, in the one above that remains."""
        left: set[str] = set()
        try:
            for place in places:
                while place not in left:
                    try:
                        self.open(place)
                        left.add(place)
                    except OSError as error:
                        if not place or (error.errno != errno.ENOENT and error.errno not in OTHER_KIND):
                            raise
                        place = place.rpartition("/")[0]
            for place in left:
                self.sync(place)
        except FileNotFoundError:  # The root is gone.
            return
        except OSError as error:
            self._store._fail("erase", key, error)

    def prune(self, place: str) -> None:
        """Remove a directory and its parents while they are empty, up to the root, which stays."""
        while place and self._remove(place):
            place = place.rpartition("/")[0]

    def _survey(self, top: str, doing: str) -> tuple[list[str], list[tuple[str, str]], list[tuple[str, str]]]:
        """A directory and all below it, the names of keys in them, and the names of leftovers.

        Parents come before their children. Links are not followed.
        """
        found = [top]
        keys: list[tuple[str, str]] = []
        leftovers: list[tuple[str, str]] = []
        for folder in found:  # The list grows during the loop.
            try:
                for entry in self.scan(folder):
                    is_temporary = entry.name.startswith(TEMPORARY)
                    if entry.is_dir(follow_symlinks=False):
                        if not is_temporary and not entry.name.startswith(STAGED):
                            found.append(f"{folder}/{entry.name}" if folder else entry.name)
                    elif not is_temporary:
                        keys.append((folder, entry.name))
                    elif entry.name == LOCK_NAME or _is_abandoned(entry):
                        leftovers.append((folder, entry.name))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self._store._fail(doing, folder, error)
        return found, keys, leftovers

    def _erase_tree(self, top: str) -> Sequence[str]:
        found, keys, leftovers = self._survey(top, "erase")
        for folder, name in keys:
            self._unlink(folder, name, f"{folder}/{name}")
        for folder, name in leftovers:
            self._discard(folder, name)
        for folder in reversed(found):
            with contextlib.suppress(OSError):  # Not empty, in use, or not ours: it stays.
                self.rmdir(folder)
        return found

    def _unlink(self, place: str, name: str, key: str) -> None:
        try:
            self.unlink(place, name)
        except FileNotFoundError:  # The directory is gone, and the key with it.
            return
        except OSError as error:
            if not is_busy(name, error):
                self._store._fail("erase", key, error)

    def _discard(self, folder: str, name: str) -> None:
        """Remove a leftover. A failure is ignored, as it does not concern any key."""
        with contextlib.suppress(OSError):
            if name == LOCK_NAME:
                FileLock().discard(self.open(folder))
            else:
                self.unlink(folder, name)

    def _remove(self, folder: str) -> bool:
        """Remove a directory that is empty or contains only an unused lock file."""
        try:
            try:
                self.rmdir(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                FileLock().discard(self.open(folder))
                self.rmdir(folder)
        except OSError:  # Not empty, in use, or not ours: it stays.
            return False
        return True


def is_busy(name: str, error: OSError) -> bool:
    """Whether a file cannot be removed now but will be removed by its network file system.

    NFS keeps an erased file that another process still reads, under a name like ``.nfs0001``.
    """
    return error.errno == errno.EBUSY and name.startswith(".nfs")


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED
    except FileNotFoundError:  # Its writer has just renamed it.
        return False
