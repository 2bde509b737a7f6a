"""Values that the caches of fsspec keep as local files: ``simplecache`` and ``filecache``.

What a failed download leaves behind such a cache takes for the whole file, and a source that does not answer
for one that has nothing. So it gets its files from a source that leaves whole files only, and says the truth.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

from xzarr3._types import Buffer
from xzarr3.errors import StoreError
from xzarr3.stores.fsspec_files import NOTHING, Files, FileSystem, Look, checked, clipped
from xzarr3.stores.local_folders import TEMPORARY
from xzarr3.stores.locks import key_lock

_IN_BLOCKS = frozenset(("blockcache", "cached"))


class CacheFiles(Files):
    """What a cache has of a source.

    Parameters
    ----------
    fs : CachingFileSystem
    source : Files

    Raises
    ------
    StoreError
        If it is one that takes what it could not fetch for fetched.
    """

    def __init__(self, fs: FileSystem, source: Files) -> None:
        super().__init__(fs, 1)
        if self.names & _IN_BLOCKS or fs.compression:
            raise StoreError(
                "fsspec's blockcache, and its caches with compression, take what they could not fetch for "
                "fetched; accepted: simplecache, filecache, or a CacheStore around the store"
            )
        self._source = source
        if "simplecache" in self.names:  # The other one notes what it has in one place.
            self.concurrency, self._slots = source.concurrency, contextlib.nullcontext()
        self.fs = object.__new__(type(fs))
        own = object.__getattribute__(self.fs, "__dict__")
        own.update(object.__getattribute__(fs, "__dict__"), fs=_Source(source))

    def path(self, root: str, key: str) -> str:
        return self._source.path(root, key)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        """The local file of a value, or None."""
        with self._slots, key_lock("fsspec cache", f"{self.fs.storage[-1]}:{path}"):  # Fetched once.
            held = self.fs._check_file(path)
            if held:
                file: Any = open(held[1] if isinstance(held, tuple) else held, "rb")  # noqa: SIM115
            else:
                file = self._found(self.fs.open, path, "rb")
        if file is NOTHING:
            yield None
        else:
            with file:
                yield file

    def look(self, path: str) -> Look | None:
        with self._opened(path) as file:
            if file is None:
                return None
            found = os.fstat(file.fileno())
            return Look(found.st_size, (found.st_ino, found.st_mtime_ns))

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        with self._opened(path) as file:
            if file is None:
                return None
            first, wanted = clipped(start, length, os.fstat(file.fileno()).st_size)
            file.seek(first)
            return checked(file.read(wanted), first, wanted)

    def _bytes(self, path: str, start: int = 0, end: int | None = None) -> Buffer | None:
        return self.part(path, start, None if end is None else end - start)

    def entries(self, path: str) -> set[tuple[str, bool]]:
        return self._source.entries(path)

    def below(self, path: str) -> Iterator[str]:
        return self._source.below(path)


class _Source:
    """What a cache fetches files from."""

    def __init__(self, files: Files) -> None:
        self.files, self.fs = files, files.fs

    def exists(self, path: str) -> bool:
        """Fetching it tells."""
        return True

    def ukey(self, path: str) -> Any:
        """What names the version of a file."""
        return self.fs.ukey(path)

    def get_file(self, path: str, name: str) -> None:
        """Have a file under a local name, all of it or nothing."""
        value = self.files.part(path, 0, None)
        if value is None:
            raise FileNotFoundError(path)
        temporary = f"{name}{TEMPORARY}{uuid.uuid4().hex}"
        try:
            with open(temporary, "wb") as file:
                file.write(value)
            os.replace(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):  # The error of the write is the one to report.
                os.unlink(temporary)
            raise
