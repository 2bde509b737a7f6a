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

from xzarr3.stores.local import system
from xzarr3.stores.local.files import make
from xzarr3.stores.local.names import LOCK

_NO_SECOND_NAME = frozenset(
    {errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


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
    for name in names:
        above, _, last = name.rpartition("/")
        start, end = _join(source, above), _join(target, above)
        if not _is_straight(root, start):
            continue
        if not _is_straight(root, end):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), end)
        place = os.path.join(root, end)
        make(place, fsync=fsync)
        _give(os.path.join(root, start, last), os.path.join(place, last), replace=replace, fsync=fsync)
        if fsync:
            system.sync_folder(place)


def _join(folder: str, below: str) -> str:
    return f"{folder}/{below}" if folder and below else folder or below


def _is_straight(root: str, folder: str) -> bool:
    """Whether no symbolic link is on the way from the root to a directory."""
    real = os.path.realpath(root)
    return os.path.realpath(os.path.join(real, folder)) == os.path.normpath(os.path.join(real, folder))


def _give(old: str, new: str, *, replace: bool, fsync: bool) -> None:
    try:
        info = os.lstat(old)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(info, os.lstat(new)) or not replace:
                return
            os.unlink(new)
        try:
            _link(old, new)
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME or not _copy(old, new, info, fsync=fsync):
                raise
    except (FileNotFoundError, NotADirectoryError):  # another process removed the file
        return


def _link(old: str, new: str) -> None:
    if os.link not in os.supports_follow_symlinks:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), new)
    os.link(old, new, follow_symlinks=False)


def _copy(old: str, new: str, info: os.stat_result, *, fsync: bool) -> bool:
    """Copy a regular file or a symbolic link; returns False for anything else."""
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(old), new, os.path.isdir(old))
        return True
    if not stat.S_ISREG(info.st_mode):
        return False
    fresh = os.path.join(os.path.dirname(new), f"{uuid.uuid4().hex}{LOCK}")
    try:
        with open(os.open(old, system.OPEN | _NO_FOLLOW), "rb") as source, open(fresh, "xb") as target:
            os.chmod(fresh, stat.S_IMODE(info.st_mode) & 0o700)
            shutil.copyfileobj(source, target)
            target.flush()
            if fsync:
                system.sync(target.fileno())
        os.chmod(fresh, stat.S_IMODE(info.st_mode))
        os.utime(fresh, ns=(info.st_atime_ns, info.st_mtime_ns))
        os.replace(fresh, new)
    except BaseException:
        with contextlib.suppress(OSError):  # keep the first error, which says more
            os.unlink(fresh)
        raise
    return True


__all__ = ["ForeignFiles", "carry"]
