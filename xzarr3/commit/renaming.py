"""Replacing in a directory: new directories are written beside the old ones, and renamed to their places."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from xzarr3._types import Buffer
from xzarr3.carrying import Kept, carry
from xzarr3.commit.lease import NAME, Lease
from xzarr3.commit.leftovers import ABANDONED
from xzarr3.commit.resume import Resumption, settled
from xzarr3.commit.stage import (
    BEGUN,
    NEW,
    OLD,
    Places,
    Room,
    Staging,
    foreign_keys,
    gone,
    is_occupied,
    kept_at,
    lease_at,
    occupied,
    staging_folders,
    taken_up,
)
from xzarr3.errors import NodeExistsError, StoreError, listed
from xzarr3.metadata import ArrayMetadata
from xzarr3.resuming import forget_moves, forget_moves_at, note_end, note_moves, undo_moves
from xzarr3.stores import LocalStore, Store, platform
from xzarr3.stores.base import Change, Scratch
from xzarr3.stores.folders import Folders
from xzarr3.stores.local import STAGED, TEMPORARY, FileWriter, is_busy

_CARRIED = "carried"  # Beside what has begun: that files were brought back which are no part of a hierarchy.
_ATTEMPTS = 10
_ENDED = "ended"  # What BEGUN is called once somebody puts the values in their place, or removes them.


def recover_moves(store: LocalStore, places: Places, resumed: Resumption) -> None:
    """Undo what a write of this plan was just renaming when it was killed, or end it.

    Raises
    ------
    NodeExistsError
        If that write is still going on.
    """
    top = os.path.join(store.root, resumed.top.rstrip("/"))
    if os.path.lexists(os.path.join(top, "moves")):
        lease = lease_at(store, places, resumed.plan, resumed.top)
        lease.reserve(places.path)
        try:
            aside = undo_moves(top, store.root)
            if aside is not None:
                remove(aside)
                remove(top)
                lease.release()
        finally:
            lease.leave()


class StagedFolder(LocalStore):
    """The directory that takes values, called in messages what it will be."""

    def __init__(self, root: str, shown: str, /, **options: bool) -> None:
        super().__init__(root, **options)
        self._shown = shown
        self._closed = False

    def __repr__(self) -> str:
        return self._shown

    def __reduce__(self) -> tuple[object, ...]:
        return partial(StagedFolder, **self._options()), (self.root, self._shown)

    def _file_writer(self, scratch: Scratch | None, limit: int) -> FileWriter:
        if not os.path.isdir(self.root):  # It is made once; what was in it would be missed.
            raise gone(self)
        return _StagedWriter(self, scratch, limit)

    def close(self) -> None:
        """Take no more values."""
        self._closed = True

    def reopen(self) -> None:
        """Take values again: what is computed later may be computed again."""
        self._closed = False


class _StagedWriter(FileWriter):
    """Puts values into a directory as long as the write goes on."""

    _store: StagedFolder

    def _check_open(self, key: str) -> None:
        # Dask's threads finish what they are at when another one has failed.
        if self._store._closed:
            raise StoreError(
                f"cannot write key '{key}' of {self._store}: the write has failed and was given up"
            )

    def set(self, key: str, pieces: Sequence[Buffer]) -> None:
        self._check_open(key)
        super().set(key, pieces)

    def update(self, key: str, change: Change) -> None:
        self._check_open(key)
        super().update(key, change)

    def close(self) -> None:
        super().close()
        if self._store._closed:
            remove(os.path.dirname(self._store.root))


class Directories(Staging):
    """Directories that are renamed: the old ones aside, then the new ones to their places.

    Nothing is renamed over something that is there. Files that are no part of a Zarr hierarchy get a second
    name among the new values before anything is renamed. What was moved aside is looked at before it is
    removed: if such files have come meanwhile, all is put back and done again with them, and anything at all
    is put back where there must be nothing.
    """

    def __init__(
        self,
        store: LocalStore,
        places: Places,
        arrays: Mapping[str, ArrayMetadata],
        *,
        overwrite: bool,
        resumed: Resumption | None = None,
        kept: Kept | None = None,
    ) -> None:
        self._target = store
        self._places = places
        self._arrays = arrays
        self._kept = Kept() if kept is None else kept
        self._overwrite = overwrite
        self._resumed = resumed
        self._lease: Lease | None = None
        # What is replaced has a place of its own each time.
        self._aside = self._top = os.path.join(store.root, f"{STAGED}{uuid.uuid4().hex}")
        if resumed is not None:
            self._top = os.path.join(store.root, resumed.top.rstrip("/"))
            self._lease = lease_at(store, places, resumed.plan, resumed.top)
        self._old = os.path.join(self._aside, OLD)
        self._new = os.path.join(self._top, NEW)
        self._begun = os.path.join(self._top, BEGUN)
        self._ended = os.path.join(self._top, _ENDED)
        self._is_ending = False
        self._staged = self.store = StagedFolder(self._new, repr(store), **store._options())
        self._moves: list[tuple[str, str]] = []

    def _units(self, folder: str) -> list[str]:
        """What can be renamed as a whole in a directory that is laid out as the store, in the order to go.

        The documents of the group leave first and come last, so that no reader sees it with arrays that
        are not its own.
        """
        if "" in self._places.folders:
            if not os.path.lexists(folder):
                return []
            names = [
                name
                for name in os.listdir(folder)
                if not name.startswith((TEMPORARY, STAGED)) and name != NAME
            ]
            return sorted(names, key=self._places.rank)
        documents = sorted(self._places.documents, key=self._places.rank)
        # Documents of what is below come before its chunks.
        folders = sorted(self._places.folders, key=lambda name: (not self._has_documents(name), name))
        return [unit for unit in (*documents, *folders) if os.path.lexists(os.path.join(folder, unit))]

    def _has_documents(self, folder: str) -> bool:
        formats, path = self._places.formats, self._places.path
        return any(each.listing_prefix(path) == f"{folder}/" for each in formats)

    def begin(self) -> None:
        self._check_undone()
        if self._resumed is not None and self._lease is not None:
            self._lease.reserve(self._places.path)
            settled(self._lease, self._resumed, self._remove_left)
            _remove_partial(self._new)
            # Who reserves the place just now is refused anyway.
            _remove_partial(os.path.join(self._target.root, os.path.dirname(self._lease.key)))
        self._staged.reopen()
        try:
            with Folders(self._target.root) as folders:  # Somebody may have put a link there.
                folders.make(f"{os.path.basename(self._top)}/{NEW}")
                top = folders.open(os.path.basename(self._top))
                self.room = Room(_room_in(top))
        except OSError as error:
            raise StoreError(f"cannot write to {self._target}: {error.strerror or error}") from error
        self._is_ending = False

    def _end(self) -> bool:
        """Let nobody else put the values in their place, or remove them; whether nobody else has done that.

        It may be a task that is run once more, as its worker was lost, or what cleans up after an earlier
        attempt.
        """
        if self._is_ending or self._resumed is not None:
            return os.path.lexists(self._begun if self._resumed is not None else self._ended)
        try:
            with open(self._begun, "rb") as file:
                if file.read().decode("ascii", "replace") != self.room.id:
                    return False
            platform.rename(self._begun, self._ended)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: {error.strerror or error}"
            ) from error
        self._is_ending = True
        return True

    def check(self) -> None:
        if not self._overwrite and is_occupied(self._target, self._places):
            raise occupied(self._target, self._places)

    def _check_undone(self) -> None:
        if os.path.lexists(self._old):
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: an earlier attempt was not "
                f"undone, its data are in {self.whereabouts()}; accepted: a new call"
            )

    def _stays(self, unit: str) -> bool:
        """Whether something in the root is left where it is, as it is no part of a hierarchy."""
        if unit not in self._kept.alone:
            return False
        formats = self._places.formats
        for below, _, names in os.walk(os.path.join(self._target.root, unit)):
            relative = platform.relative(below, self._target.root)
            if any(each.place(f"{relative}/{name}") is not None for name in names for each in formats):
                return False  # Somebody has made a node there since.
        return True

    def _carry_over(self, units: Sequence[str]) -> None:
        """Give the files that stay a place among the new values, if they are in what will be renamed."""
        folders = tuple(f"{unit}/" for unit in units)
        names = [name for name in self._kept.names if name.startswith(folders) or name in units]
        taken = taken_up(self._places.formats[0], names, self._is_new)
        top = os.path.basename(self._top)
        carry(
            self._target.root,
            "",
            f"{top}/{NEW}",
            sorted(set(names) - taken),
            replace=True,
            fsync=self._target.fsync,
        )

    def _is_new(self, key: str) -> bool:
        return os.path.lexists(os.path.join(self._new, key))

    def _left_behind(self, old: str) -> frozenset[str]:
        """The files that are no part of a hierarchy in what was moved aside, and in the store no more.

        Raises
        ------
        NodeExistsError
            If there is what may not be replaced.
        """
        if not os.path.lexists(old):
            return frozenset()
        aside = LocalStore(old, read_only=True)
        keys = self._places.keys(aside)
        if not self._overwrite:
            if keys:
                raise occupied(self._target, self._places)
            return frozenset()
        foreign = foreign_keys(aside, self._places, self._arrays, self._target, keys)
        missing = {name for name in Kept.among(old, foreign, keys).names if not self._is_in_root(name)}
        missing -= taken_up(self._places.formats[0], missing, self._is_in_root)
        return frozenset(name for name in missing if not self._led_to_folder(old, name))

    def _is_in_root(self, key: str) -> bool:
        return os.path.lexists(os.path.join(self._target.root, key))

    def _led_to_folder(self, old: str, name: str) -> bool:
        """Whether something was a link to a directory where it was, which may be a node."""
        try:
            target = os.readlink(os.path.join(old, name))
        except OSError:  # It is no link.
            return False
        return os.path.isdir(os.path.join(self._target.root, os.path.dirname(name), target))

    def swap(self, nodes: Iterable[str], consolidate: bool) -> None:
        left: frozenset[str] = frozenset()
        self._check_undone()
        if not self._end():
            raise gone(self._target)
        for _ in range(_ATTEMPTS):
            self._check_undone()
            if self._lease is not None:
                self._lease.verify(self._places.path)
            self.check()
            self._rename_all()
            left = self._left_behind(self._old)
            if not left:
                return
            self.put_back()
            self._kept = kept_at(self._target, self._places, self._arrays)
        raise NodeExistsError(
            f"cannot replace '/{self._places.path}' in {self._target}: again and again somebody puts files "
            f"there, {listed(sorted(left)[:5])}; accepted: a new call"
        )

    def _rename_all(self) -> None:
        """Rename what is there, and then what is new; what fails halfway is for :meth:`put_back`."""
        root, old, new = self._target.root, self._old, self._new
        with contextlib.suppress(OSError):  # It is looked at below.
            os.utime(self._top)
        try:
            news = self._units(new)
            units = [unit for unit in self._units(root) if unit in news or not self._stays(unit)]
            self._carry_over(units)
            aside = [(os.path.join(root, unit), os.path.join(old, unit)) for unit in units]
            ahead = [(os.path.join(new, unit), os.path.join(root, unit)) for unit in self._units(new)[::-1]]
            if not self._end():  # Now, as what was found in it may not have been all.
                raise gone(self._target)
            for place, _ in aside:
                self._check_inside(place)
            for _, place in ahead:
                self._check_inside(place)
            for folder in dict.fromkeys(os.path.dirname(target) for _, target in aside + ahead):
                os.makedirs(folder, exist_ok=True)
            if self._resumed is not None:
                note_moves(self._top, self._places.path, self._aside, aside + ahead, root)
            with Folders(root) as folders:
                for move in aside:
                    self._moves.append(move)
                    _rename(folders, root, *move)
                for move in ahead:
                    self._moves.append(move)
                    if os.path.lexists(move[1]):
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), move[1])
                    _rename(folders, root, *move)
            if self._target.fsync:
                with Folders(root) as folders:
                    for place in dict.fromkeys(os.path.dirname(target) for _, target in ahead):
                        relative = platform.relative(place, root)
                        folders.sync("" if relative == "." else relative)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"cannot replace '/{self._places.path}' in {self._target}: {error.strerror or error}"
            ) from error

    def _check_inside(self, place: str) -> None:
        if self._places.path:
            self._target.check_inside(os.path.dirname(place), self._places.path)

    def close(self) -> None:
        self._staged.close()

    def put_back(self) -> None:
        failed = True  # The last move may be one that failed, and only that one.
        while self._moves:
            source, target = self._moves[-1]
            if os.path.lexists(target) and not (failed and os.path.lexists(source)):
                _move_back(target, source)
            self._moves.pop()
            failed = False
        for unit in (*self._places.documents, *self._places.folders):
            folder = os.path.dirname(os.path.join(self._old, unit))
            with contextlib.suppress(OSError):  # It is not there or not empty; that is for discard to see.
                while folder != self._aside:
                    if os.path.isdir(folder):
                        os.rmdir(folder)
                    folder = os.path.dirname(folder)
            self._target.prune(os.path.dirname(os.path.join(self._target.root, unit)))
        if self._resumed is not None:
            with _removing(self._top):
                forget_moves(self._top)
            with contextlib.suppress(OSError):  # It was not made, or is not empty.
                os.rmdir(self._aside)

    def clean(self) -> None:
        self._moves.clear()
        others = [each for each in staging_folders(self._target) if each not in (self._top, self._aside)]
        abandoned = [folder for folder in others if is_abandoned(folder)]
        for folder in others:
            with _removing(folder):
                forget_moves_at(folder, self._places.path)
            self._bring_back(folder)  # While what was replaced is still there to tell chunks from files.
        if self._resumed is not None:
            with _removing(self._top):
                note_end(self._top, self._aside)
            remove(self._aside)
        remove(self._top)
        if self._lease is not None:
            self._lease.release()
        for folder in abandoned:
            if self._mayremove(folder):
                remove_at_once(self._target, folder)

    def _bring_back(self, folder: str) -> None:
        """Bring files back, once, that are no part of a hierarchy from where a killed write has left them."""
        old = os.path.join(folder, OLD)
        if _is_carried(folder) or not _holds_files(old) or not _only_old_at(folder, self._places):
            return
        with contextlib.suppress(NodeExistsError):  # Then it stays as it is.
            left = sorted(self._left_behind(old))
            source = platform.relative(old, self._target.root)
            with _removing(folder):
                carry(self._target.root, source, "", left, replace=False, fsync=self._target.fsync)
                _note_carried(self._target.root, folder)

    def _mayremove(self, folder: str) -> bool:
        """Whether an abandoned directory holds no replaced values but such as were replaced again now."""
        if not _only_old_at(folder, self._places):
            return False
        try:
            return _is_carried(folder) or not self._left_behind(os.path.join(folder, OLD))
        except NodeExistsError:
            return False

    def discard(self) -> None:
        if os.path.lexists(self._old):
            raise StoreError(f"'{self._old}' may hold what was replaced")
        if self._end():
            remove_at_once(self._target, self._top)  # What is begun again there is not removed with it.
            return
        for folder in (self._new, self._top):
            with contextlib.suppress(OSError):  # It holds something of another attempt.
                os.rmdir(folder)

    def _remove_left(self, top: str) -> None:
        """Remove what another write had staged, unless what it has replaced is there."""
        folder = os.path.join(self._target.root, top.rstrip("/"))
        if not os.path.lexists(os.path.join(folder, OLD)):
            remove_at_once(self._target, folder)

    def whereabouts(self) -> str:
        return f"'{self._old}' and '{self._new}'"


def _room_in(folder: platform.Folder) -> str:
    """What tells a staged directory from others of its name, which is noted there by the first who asks."""
    room = uuid.uuid4().hex
    try:
        file = platform.open_at(folder, BEGUN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | platform.NO_FOLLOW)
    except FileExistsError:
        file = platform.open_at(folder, BEGUN, os.O_RDONLY | platform.NO_FOLLOW)
        try:
            return os.read(file, 2 * len(room)).decode("ascii", "replace")
        finally:
            os.close(file)
    try:
        os.write(file, room.encode())
    finally:
        os.close(file)
    return room


def _holds_files(folder: str) -> bool:
    """Whether there is a file below a directory, or a link."""
    return any(
        names or any(os.path.islink(os.path.join(below, each)) for each in inner)
        for below, inner, names in os.walk(folder)
    )


def _is_carried(folder: str) -> bool:
    return os.path.lexists(os.path.join(folder, _CARRIED))


def _note_carried(root: str, folder: str) -> None:
    """Note that all files were brought back: what is left are values, of which nothing may tell later."""
    with Folders(root) as folders:
        top = folders.open(os.path.basename(folder))
        os.close(platform.open_at(top, _CARRIED, os.O_WRONLY | os.O_CREAT | platform.NO_FOLLOW))


def _rename(folders: Folders, root: str, source: str, target: str) -> None:
    """Rename within a store; no link on the way leads out of it."""
    folders.rename(platform.relative(source, root), platform.relative(target, root))


def _move_back(target: str, source: str) -> None:
    if os.path.lexists(source):
        raise StoreError(f"'{target}' cannot be moved back, because there is '{source}'")
    platform.rename(target, source)


@contextlib.contextmanager
def _removing(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot remove what is in '{folder}': {error.strerror or error}") from error


def _remove_partial(folder: str) -> None:
    """Remove what killed writers have left beside values, whether that is recent or not."""
    for below, _, names in os.walk(folder):
        for name in names:
            if name.startswith(TEMPORARY):
                with contextlib.suppress(OSError):  # It is no value, and may just have become one.
                    os.unlink(os.path.join(below, name))


def remove(folder: str) -> None:
    failure: OSError | None = None
    for _ in range(_ATTEMPTS):
        try:
            _remove_tree(folder)
        except OSError as error:
            if not os.path.lexists(folder):
                return
            failure = error
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                break  # Otherwise somebody else put something there, or took it away, just now.
        else:
            return
    raise StoreError(f"cannot remove '{folder}': {failure}") from failure


def _remove_tree(folder: str) -> None:
    """Remove a directory, but for files that a network file system removes itself, once nobody reads them."""
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
    """Remove a directory under another name: its writer, if there is one, must not find a part of it."""
    removed = os.path.join(str(store.folder), f"{STAGED}{uuid.uuid4().hex}")
    try:
        platform.rename(folder, removed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot remove '{folder}': {error}") from error
    remove(removed)


def sweep_directory(store: Store) -> None:
    """Remove what was left by killed writes that had replaced nothing."""
    for folder in staging_folders(store):
        if not os.path.lexists(os.path.join(folder, OLD)) and is_abandoned(folder):
            remove_at_once(store, folder)


def is_abandoned(folder: str) -> bool:
    """Whether nothing has changed anywhere below a directory for a long time."""
    limit = time.time() - ABANDONED
    for below, _, _ in os.walk(folder):
        try:
            info = os.lstat(below)
        except FileNotFoundError:
            return False  # Somebody is at work here.
        if not stat.S_ISDIR(info.st_mode) or info.st_mtime > limit:
            return False
    return True


def _only_old_at(folder: str, places: Places) -> bool:
    """Whether a staging directory holds no replaced values but such as lay in these places."""
    old = os.path.join(folder, OLD)
    allowed = tuple(os.path.join(old, each, "") if each else os.path.join(old, "") for each in places.folders)
    files = {os.path.join(old, key) for key in places.documents}
    for below, inner, names in os.walk(old):
        links = [name for name in inner if os.path.islink(os.path.join(below, name))]
        for found in (os.path.join(below, name) for name in (*names, *links)):
            if found not in files and not os.path.join(found, "").startswith(allowed):
                return False
    return True
