"""Carries files that are no part of a hierarchy from one directory to another in the same store.

Each file gets a second name (a hard link) in the new directory. Its first name goes when the old directory is
removed, so the file always has a name. On a file system without hard links the file is copied.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from xzarr3.stores.local import platform
from xzarr3.stores.local.folders import OTHER_KIND, TEMPORARY, Folders
from xzarr3.stores.local.platform import Folder

_NO_SECOND_NAME = frozenset(
    {errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
)
_READ = os.O_RDONLY | platform.NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | platform.NO_FOLLOW


@dataclass(frozen=True)
class ForeignFiles:
    """Files that are no part of a hierarchy and stay when the hierarchy is replaced.

    Parameters
    ----------
    names : frozenset of str
        Files, and links to directories that hold only such files; relative to the root of the store.
    alone : frozenset of str
        Names in the root that hold only such files, so they need not be moved.
    """

    names: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()

    @classmethod
    def among(cls, root: str, foreign: set[str], keys: set[str]) -> ForeignFiles:
        """The foreign files among the ``keys`` below a directory."""
        if not foreign:
            return cls()
        links: dict[str, str | None] = {}
        names = set()
        own = keys - foreign
        for key in foreign:
            link = _link_above(root, key.rpartition("/")[0], links)
            if link is None:
                names.add(key)
            elif link not in names and not any(each.startswith(f"{link}/") for each in own):
                names.add(link)
        used = {key.partition("/")[0] for key in own}
        return cls(frozenset(names), frozenset({name.partition("/")[0] for name in names} - used))


def _link_above(root: str, folder: str, known: dict[str, str | None]) -> str | None:
    """The uppermost symbolic link on the path to a directory, or None."""
    if not folder:
        return None
    if folder not in known:
        above = _link_above(root, folder.rpartition("/")[0], known)
        known[folder] = folder if above is None and os.path.islink(os.path.join(root, folder)) else above
    return known[folder]


def carry(root: str, source: str, target: str, names: Iterable[str], *, replace: bool, fsync: bool) -> None:
    """Give files of one directory the same names in another one; files that are gone are skipped.

    Parameters
    ----------
    root : str
        Directory of the store. Symbolic links below it are not followed.
    source, target : str
        Directories, relative to the root.
    names : iterable of str
        Relative to these directories.
    replace : bool
        Whether to replace another file that already has the name; otherwise it stays.
    fsync : bool
        Wait until the names are on disk.

    Raises
    ------
    OSError
        If a file can be neither linked nor copied.
    """
    with Folders(root) as folders:
        for name in names:
            above, _, last = name.rpartition("/")
            try:
                start = platform.same_folder(folders.open(_join(source, above)))
            except OSError as error:
                if error.errno == errno.ENOENT or error.errno in OTHER_KIND:
                    continue
                raise
            try:
                to = _join(target, above)
                _give(start, folders.make(to), last, replace=replace, fsync=fsync)
            finally:
                platform.close_folder(start)
            if fsync:
                folders.sync(to)


def _join(folder: str, below: str) -> str:
    return f"{folder}/{below}" if folder and below else folder or below


def _give(start: Folder, end: Folder, name: str, *, replace: bool, fsync: bool) -> None:
    try:
        info = platform.stat_at(start, name)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(info, platform.stat_at(end, name)) or not replace:
                return
            platform.unlink_at(end, name)
        try:
            platform.link_at(start, name, end)
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME or not _copy(start, end, name, info, fsync=fsync):
                raise
    except FileNotFoundError:  # another process removed the file
        return


def _copy(start: Folder, end: Folder, name: str, info: os.stat_result, *, fsync: bool) -> bool:
    """Copy a regular file or a symbolic link; returns False for anything else."""
    if stat.S_ISLNK(info.st_mode):
        platform.copy_link_at(start, name, end)
        return True
    if not stat.S_ISREG(info.st_mode):
        return False
    fresh = f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        with (
            open(platform.open_at(start, name, _READ), "rb") as old,
            open(platform.open_at(end, fresh, _MAKE, 0o600), "wb") as new,
        ):
            shutil.copyfileobj(old, new)
            new.flush()
            platform.copy_status(new.fileno(), end, fresh, info)
            if fsync:
                platform.sync(new.fileno())
        platform.replace_at(end, fresh, name)
    except BaseException:
        with contextlib.suppress(OSError):  # keep the first error, which says more
            platform.unlink_at(end, fresh)
        raise
    return True


__all__ = ["ForeignFiles", "carry"]
