"""Carrying files that are no part of a hierarchy from one directory to another one, in the same store.

A file gets a second name, and the first one goes with its directory, so that it has one at any time. Where
a file system knows no second names, the file is copied.
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

from xzarr3.stores.folders import OTHER_KIND, Folders
from xzarr3.stores.local import TEMPORARY

_NO_SECOND_NAME = frozenset(
    {errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
)
_READ = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
)
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True)
class Kept:
    """What is no part of a hierarchy and stays where that is replaced.

    Parameters
    ----------
    names : frozenset of str
        Files, and links to directories that hold nothing else, relative to the root of the store.
    alone : frozenset of str
        Names in the root that hold nothing else, so that they need not be moved.
    """

    names: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()

    @classmethod
    def among(cls, root: str, foreign: set[str], keys: set[str]) -> Kept:
        """Out of the ``keys`` below a directory, of which ``foreign`` are no part of the hierarchy."""
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
    """The first link on the way to a directory."""
    if not folder:
        return None
    if folder not in known:
        above = _link_above(root, folder.rpartition("/")[0], known)
        known[folder] = folder if above is None and os.path.islink(os.path.join(root, folder)) else above
    return known[folder]


def carry(root: str, source: str, target: str, names: Iterable[str], *, replace: bool, fsync: bool) -> None:
    """Give what has a name in one directory the same name in another one, too; what has gone is left out.

    Parameters
    ----------
    root : str
        Directory of the store. No link below it is followed.
    source, target : str
        Directories, relative to the root.
    names : iterable of str
        Relative to these directories.
    replace : bool
        Whether another file that has the name already gives way, or stays.
    fsync : bool
        Wait until the disk has it.

    Raises
    ------
    OSError
        If that is not possible.
    """
    with Folders(root) as folders:
        for name in names:
            above, _, last = name.rpartition("/")
            try:
                start = os.dup(folders.open(_join(source, above)))
            except OSError as error:
                if error.errno == errno.ENOENT or error.errno in OTHER_KIND:
                    continue
                raise
            try:
                to = _join(target, above)
                _give(start, folders.make(to), last, replace=replace, fsync=fsync)
            finally:
                os.close(start)
            if fsync:
                folders.sync(to)


def _join(folder: str, below: str) -> str:
    return f"{folder}/{below}" if folder and below else folder or below


def _give(start: int, end: int, name: str, *, replace: bool, fsync: bool) -> None:
    try:
        info = os.stat(name, dir_fd=start, follow_symlinks=False)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(info, os.stat(name, dir_fd=end, follow_symlinks=False)) or not replace:
                return
            os.unlink(name, dir_fd=end)
        try:
            os.link(name, name, src_dir_fd=start, dst_dir_fd=end, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME or not _copy(start, end, name, info, fsync=fsync):
                raise
    except FileNotFoundError:  # Somebody has removed it.
        return


def _copy(start: int, end: int, name: str, info: os.stat_result, *, fsync: bool) -> bool:
    """Copy a file or a link; what is neither is not copied."""
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=start), name, dir_fd=end)
        return True
    if not stat.S_ISREG(info.st_mode):
        return False
    fresh = f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        with (
            open(os.open(name, _READ, dir_fd=start), "rb") as old,
            open(os.open(fresh, _MAKE, 0o600, dir_fd=end), "wb") as new,
        ):
            shutil.copyfileobj(old, new)
            new.flush()
            os.fchmod(new.fileno(), stat.S_IMODE(info.st_mode))
            os.utime(new.fileno(), ns=(info.st_atime_ns, info.st_mtime_ns))
            if fsync:
                os.fsync(new.fileno())
        os.rename(fresh, name, src_dir_fd=end, dst_dir_fd=end)
    except BaseException:
        with contextlib.suppress(OSError):  # The error that is under way says more.
            os.unlink(fresh, dir_fd=end)
        raise
    return True


__all__ = ["Kept", "carry"]
