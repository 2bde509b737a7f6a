"""Values that are parts of other files, as described by kerchunk and fsspec's ``reference`` file system.

fsspec parses documents, templates and tables of references. This module reads the referenced bytes, because
fsspec does not report a file that is shorter than a reference requires, and treats some invalid references as
absent values.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from operator import index
from typing import Any, NamedTuple, SupportsIndex

from xzarr3._types import Buffer
from xzarr3.stores.base import cut
from xzarr3.stores.fsspec.files import (
    LOCAL,
    NEAR,
    FileInfo,
    Files,
    FileSystem,
    WrongBytesError,
    checked,
    clipped,
    first_names,
    innermost,
    led_to_absence,
)


class _Target(NamedTuple):
    """Target of a reference: a whole file, or ``size`` bytes of it."""

    files: Files
    url: str
    offset: int = 0
    size: int | None = None

    def gone(self) -> WrongBytesError:
        """The error for a target that does not exist."""
        return WrongBytesError(f"it refers to '{self.url}', which does not exist")


class ReferenceFiles(Files):
    """The values of a ``reference`` file system.

    Parameters
    ----------
    fs : ReferenceFileSystem
    targets : mapping
        The file systems of the targets, by protocol.
    """

    def __init__(self, fs: FileSystem, targets: Mapping[str | None, Files]) -> None:
        super().__init__(fs, 2)
        self.concurrency = max(files.concurrency for files in targets.values())
        if _is_from_elsewhere(fs) and not _names_local(fs):
            targets = {name: files for name, files in targets.items() if not innermost(files.fs) & LOCAL}
        self._targets = targets

    @property
    def _in_tables(self) -> bool:
        """Whether the references are stored in Parquet files."""
        return not isinstance(self.fs.references, dict)

    def path(self, root: str, key: str) -> str:
        return f"{root.strip('/')}/{key}".lstrip("/")

    def _reference(self, path: str) -> bytes | _Target | None:
        """The value of a key: bytes, a target, or None."""
        references = self.fs.references
        if self._in_tables and path == ".zmetadata":  # The document in the tables does not name its format.
            return json.dumps({"zarr_consolidated_format": 1, "metadata": references.zmetadata}).encode()
        if self._in_tables and not _is_in_tables(references, path):
            return None
        try:
            found = references[path]
        except KeyError as error:
            if led_to_absence(error):  # A missing table too: none of its chunks exists.
                return None
            raise
        if isinstance(found, Mapping):
            found = json.dumps(found)
        if isinstance(found, str):
            found = found.encode()
        if isinstance(found, bytes):
            is_coded = found.startswith(b"base64:")
            return base64.b64decode(found[7:], validate=True) if is_coded else found
        if not isinstance(found, (list, tuple)) or len(found) not in (1, 3):
            raise _malformed()
        if self._in_tables and not isinstance(found[0], str):
            return None  # An empty row.
        return self._place(self.fs.target if found[0] is None else found[0], *found[1:])

    def _place(self, url: Any, *numbers: Any) -> _Target:
        counted = all(isinstance(number, SupportsIndex) and index(number) >= 0 for number in numbers)
        if not isinstance(url, str) or not counted:
            raise _malformed()
        files = self._targets.get(url.partition("://")[0] if "://" in url else None)
        if files is None:
            raise WrongBytesError(
                f"it refers to '{url}' without a file system; pass remote_protocol or fs, also if the "
                "references lead to local files"
            )
        return _Target(files, url, *map(index, numbers))

    def known_size(self, path: str) -> int | None:
        found = self._reference(path)
        return len(found) if isinstance(found, bytes) else None if found is None else found.size

    def look(self, path: str) -> FileInfo | None:
        found = self._reference(path)
        if not isinstance(found, _Target):
            return None if found is None else FileInfo(len(found), None)
        look = found.files.look(found.url)
        if look is None:
            raise found.gone()
        return look if found.size is None else look._replace(size=found.size)

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        found = self._reference(path)
        if not isinstance(found, _Target):
            return None if found is None else cut(found, (start, length))
        if found.size is not None:
            start, length = clipped(start, length, found.size)
            start += found.offset
        value = found.files.part(found.url, start, length)
        if value is None:
            raise found.gone()
        return value if found.size is None or length is None else checked(value, start, length)

    def _bytes(self, path: str, start: int = 0, end: int | None = None) -> Buffer | None:
        return self.part(path, start, None if end is None else end - start)

    # Listing

    @cached_property
    def _keys(self) -> list[str]:
        """The names of the values that are valid keys."""
        names = self._in_all_tables() if self._in_tables else self.fs.references
        return [key for key in names if {"", ".", ".."}.isdisjoint(key.split("/"))]

    def _in_all_tables(self) -> Iterator[str]:
        references = self.fs.references
        yield from (".zmetadata", *references.zmetadata)
        for name in references.zmetadata:
            if name.endswith("/.zarray"):
                keys = references._keys_in_field(name.removesuffix("/.zarray"))
                yield from (key for key in keys if self._reference(key) is not None)

    def below(self, path: str) -> Iterator[str]:
        beginning = f"{path.strip('/')}/".lstrip("/")
        return (key[len(beginning) :] for key in self._keys if key.startswith(beginning))

    def entries(self, path: str) -> set[tuple[str, bool]]:
        return first_names(self.below(path))


def _is_from_elsewhere(fs: FileSystem) -> bool:
    """Whether references were read from a place that other people may write to."""
    options = {**dict(zip(("fo",), fs.storage_args, strict=False)), **fs.storage_options}
    place = options.get("fo")
    if not isinstance(place, str):
        return False
    protocol, mark, _ = place.rpartition("::")[2].partition("://")
    return (options.get("target_protocol") or (protocol if mark else "file")) not in NEAR


def _names_local(fs: FileSystem) -> bool:
    """Whether the user has permitted references to local files."""
    given = fs.storage_options.get("fs")
    if isinstance(given, Mapping):
        return not LOCAL.isdisjoint(given)
    names = frozenset() if given is None else innermost(given)
    return not LOCAL.isdisjoint({fs.storage_options.get("remote_protocol"), *names})


def _is_in_tables(references: Any, path: str) -> bool:
    """Whether fsspec can look up a key in tables; for others it fails, or returns another chunk."""
    if path in references._items or path in references.zmetadata:
        return True
    field, _, chunk = path.rpartition("/")
    if not isinstance(references.zmetadata.get(f"{field}/.zarray"), Mapping):
        return False
    counts, numbers = references._get_chunk_sizes(field), chunk.split(".")
    return len(numbers) == len(counts) and all(
        number.isascii() and number.isdigit() and int(number) < count
        for number, count in zip(numbers, counts, strict=True)
    )


def _malformed() -> WrongBytesError:
    return WrongBytesError(
        "its reference is malformed; accepted: text, [url] or [url, offset, size], of integers of at least 0"
    )
