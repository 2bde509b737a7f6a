"""Directories below a root, reached so that no link can lead out of the root.

A path is walked from the root, one name at a time, without following links. The directory that was checked is
the one that is open, so another process cannot redirect a write by replacing a directory with a link. This
does not hold where the system cannot open directories (see :mod:`xzarr3.stores.local.platform`). Paths are
``/``-separated and relative to the root, which itself may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Self

from xzarr3.stores.local import platform
from xzarr3.stores.local.platform import Folder, close_folder, open_folder

TEMPORARY = ".xzarr3-partial-"
"""Prefix of the names of temporary files, to which values are written before they are renamed."""
ABANDONED = 3600.0
"""Seconds without a change after which a temporary file counts as that of a killed writer."""
STAGED = ".xzarr3-staged-"
"""Prefix of the names of stage directories at the root, whose values are not committed yet."""
OTHER_KIND = frozenset({errno.ENOTDIR, errno.ELOOP})
"""The errors for a name that belongs to a link or file instead of a directory."""
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_KEPT = 6  # Open directories per writer; a process has few descriptors.
NO_MORE = frozenset({errno.EMFILE, errno.ENFILE})
"""The errors when no descriptor is free."""
_ATTEMPTS = 100


def is_taken(key: str) -> bool:
    """Whether a key contains a name that is reserved for temporary files."""
    return TEMPORARY in key and any(name.startswith(TEMPORARY) for name in key.split("/"))


class LeadsOutError(OSError):
    """A link leads to a directory outside the root."""

    def __init__(self, folder: str) -> None:
        super().__init__(errno.ELOOP, "a link leads out of the store", folder)


class Folders:
    """Directories below ``root``, for one operation; some stay open until it ends."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._open: dict[str, Folder] = {}
        self._made_above: set[str] = set()
        self._synced: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forget()

    def open(self, folder: str) -> Folder:
        """``folder``, open until the next call.

        Raises
        ------
        OSError
            If it does not exist, or a part of its path is a link or a file.
        """
        return self._reached(folder, make=False)

    def _reached(self, folder: str, *, make: bool) -> Folder:
        found = self._open.get(folder)
        if found is not None:
            return found
        try:
            return self._opened(folder, make)
        except OSError as error:
            if error.errno not in NO_MORE or not self._open:
                raise
        self.forget()
        return self._opened(folder, make)

    def _opened(self, folder: str, make: bool) -> Folder:
        if not folder:
            return self._keep("", self._opened_root(make))
        parent, _, last = folder.rpartition("/")
        kept = self._open.get(parent)
        names = folder.split("/") if kept is None else [last]
        start = here = self._reached("", make=make) if kept is None else kept
        made = False
        try:
            for at, name in enumerate(names):
                try:
                    below = open_folder(name, here)
                except FileNotFoundError:
                    if not make:
                        raise
                    self._synced.discard(parent if kept is not None else "/".join(names[:at]))
                    with contextlib.suppress(FileExistsError):
                        platform.make_at(here, name)
                    below = open_folder(name, here)
                    made = True
                above, here = here, below
                if above != start:
                    if made and at == len(names) - 1:  # More directories are likely to be made beside it.
                        self._keep(parent, above)
                    else:
                        close_folder(above)
        except BaseException:
            if here != start:
                close_folder(here)
            raise
        return self._keep(folder, here)

    def _opened_root(self, make: bool) -> Folder:
        try:
            return open_folder(self._root, follow_symlinks=True)
        except FileNotFoundError:
            if not make:
                raise
        self._made_above.update(map(os.path.dirname, _make_root(self._root)))
        return open_folder(self._root, follow_symlinks=True)

    def _keep(self, folder: str, opened: Folder) -> Folder:
        if len(self._open) >= _KEPT:
            oldest = next(kept for kept in self._open if kept)  # The root is needed most often.
            close_folder(self._open.pop(oldest))
        self._open[folder] = opened
        return opened

    def find(self, folder: str) -> Folder | None:
        """``folder``, open until the next call; links in the path are followed within the root.

        Returns None if it does not exist.

        Raises
        ------
        OSError
            If it cannot be opened, or a link in its path leads out of the root.
        """
        try:
            return self.open(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in OTHER_KIND:
                raise
        real = self.resolve(folder)
        return None if real is None else self.open(real)

    def make(self, folder: str) -> Folder:
        """``folder``, created if needed, and open until the next call.

        Raises
        ------
        OSError
            If it cannot be created, or a part of its path is a link or a file.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._reached(folder, make=True)
            except FileNotFoundError:  # Another process is removing empty directories.
                self.forget()
        return self._reached(folder, make=True)

    def make_real(self, folder: str) -> Folder:
        """Like :meth:`make`, but links in the path are followed within the root."""
        try:
            return self.make(folder)
        except OSError as error:
            if error.errno not in OTHER_KIND:
                raise
            return self.make(self.real(folder))

    def handle(self, folder: str, is_wanted: Callable[[], bool]) -> int | None:
        """A handle of ``folder``, which the caller closes; None if it does not exist.

        Parameters
        ----------
        folder : str
        is_wanted : callable
            Whether to create the directory; called if it does not exist.

        Raises
        ------
        OSError
            If it cannot be opened or created, or a link in its path leads out of the root.
        """
        opened = self.find(folder)
        if opened is None:
            if not is_wanted():
                return None
            opened = self.make_real(folder)
        same = platform.same_folder(opened)
        return same if isinstance(same, int) else None

    def forget(self) -> None:
        """Close all directories, so that they are opened again when needed."""
        for opened in self._open.values():
            with contextlib.suppress(OSError):  # Nothing was written through it, so nothing is lost.
                close_folder(opened)
        self._open.clear()

    def real(self, folder: str) -> str:
        """The path of ``folder`` with links resolved; the directory need not exist.

        Raises
        ------
        LeadsOutError
            If a link leads out of the root.
        OSError
            If the path cannot be resolved.
        """
        try:
            self.open(folder)
        except OSError as error:
            if error.errno in OTHER_KIND:
                return self.without_links(folder)
            if error.errno != errno.ENOENT:
                raise
        return folder

    def resolve(self, folder: str) -> str | None:
        """The path of ``folder`` with links resolved as by :meth:`real`, or None if it does not exist."""
        for _ in range(_ATTEMPTS):
            real = self.real(folder)
            try:
                self.open(real)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return None
                if error.errno not in OTHER_KIND:
                    raise
                if self.without_links(folder) == real:
                    return None  # A file is in the place of a directory.
            else:
                return real
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), folder)

    def without_links(self, folder: str) -> str:
        """The path of ``folder`` with links resolved, as it is at this moment.

        Raises
        ------
        LeadsOutError
            If it is not below the root.
        """
        inside = os.path.join(os.path.realpath(self._root), "")
        real = os.path.join(os.path.realpath(os.path.join(self._root, folder)), "")
        if not real.startswith(inside):
            raise LeadsOutError(folder)
        return real[len(inside) : -1].replace(os.sep, "/")

    def scan(self, folder: str) -> Generator[os.DirEntry[str]]:
        """The entries of ``folder``. Each one is valid until the next one is requested."""
        return platform.scan_at(self.open(folder))

    def unlink(self, folder: str, name: str) -> None:
        """Remove a file or a link if it exists; a directory stays."""
        opened = self.open(folder)
        try:
            platform.unlink_at(opened, name)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # Some systems report PermissionError for a directory.
            if not stat.S_ISDIR(platform.stat_at(opened, name).st_mode):
                raise

    def rmdir(self, folder: str) -> None:
        """Remove a directory.

        Raises
        ------
        OSError
            If it is not empty, or cannot be removed for another reason.
        """
        above, _, name = folder.rpartition("/")
        platform.rmdir_at(self.open(above), name)
        kept = self._open.pop(folder, None)
        if kept is not None:
            close_folder(kept)

    def lstat(self, path: str) -> os.stat_result:
        """The status of a name, without following a link.

        Raises
        ------
        OSError
            If it does not exist, or a link in its path leads out of the root.
        """
        above, _, name = path.rpartition("/")
        return platform.stat_at(self._inside(above), name)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory within the root.

        Raises
        ------
        OSError
            If that is not possible, or a link in one of the paths leads out of the root.
        """
        above, _, name = source.rpartition("/")
        to, _, renamed = target.rpartition("/")
        start = platform.same_folder(self._inside(above))
        try:
            platform.rename_at(start, name, self._inside(to), renamed)
        finally:
            close_folder(start)

    def _inside(self, folder: str) -> Folder:
        """An open directory; links in its path are followed within the root."""
        found = self.find(folder)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        return found

    def sync(self, folder: str) -> None:
        """Wait until the names in ``folder`` and in the directories above it are on the disk.

        Raises
        ------
        OSError
            If that fails; :class:`FileNotFoundError` if the directory is gone.
        """
        start = here = self.open("")
        reached = ""
        try:
            for name in filter(None, folder.split("/")):
                if reached not in self._synced:  # Another writer may have just made the next one.
                    platform.sync_folder(here)
                    self._synced.add(reached)
                above, here = here, open_folder(name, here)
                if above != start:
                    close_folder(above)
                reached = f"{reached}/{name}" if reached else name
            platform.sync_folder(here)
        finally:
            if here != start:
                close_folder(here)
        for place in tuple(self._made_above):
            platform.sync_folder(place)
            self._made_above.discard(place)

    def links_to_folder(self, folder: str, name: str) -> bool | None:
        """Whether a name is a link to a directory; None if it is a directory itself.

        Raises
        ------
        OSError
            If the status cannot be read.
        """
        opened = self.open(folder)
        try:
            mode = platform.stat_at(opened, name).st_mode
            if stat.S_ISDIR(mode):
                return None
            return stat.S_ISLNK(mode) and stat.S_ISDIR(
                platform.stat_at(opened, name, follow_symlinks=True).st_mode
            )
        except OSError as error:
            if error.errno in _MISSING or error.errno == errno.ELOOP:
                return False
            raise


def _make_root(folder: str) -> list[str]:
    """Create a directory and its missing parents; returns those that were missing."""
    missing = []
    made = []
    while True:
        try:
            os.mkdir(folder)
            made.append(folder)
            break
        except FileExistsError:
            break
        except FileNotFoundError:
            missing.append(folder)
            folder = os.path.dirname(folder)
    for below in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(below)
        made.append(below)
    return made
