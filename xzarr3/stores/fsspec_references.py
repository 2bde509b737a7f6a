"""Values that are parts of other files, as kerchunk describes them and fsspec's ``reference`` has them.

A reference names a file, or a range of one, or holds the bytes themselves. It is looked up here, and what it
names is read here: fsspec takes references it cannot read for absent ones, and says nothing if the file has
become shorter than the reference needs it to be.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from xzarr3._types import Buffer
from xzarr3.stores.base import cut
from xzarr3.stores.fsspec_files import Files, FileSystem, WrongBytesError, files_of, is_absence

Reference: TypeAlias = bytes | tuple[str] | tuple[str, int, int]

_COLUMNS = ("path", "offset", "size", "raw")


class ReferenceFiles(Files):
    """The values of a ``reference`` file system."""

    def __init__(self, fs: FileSystem, concurrency: int | None = None) -> None:
        super().__init__(fs, 2)
        self._targets = {name: _target(target, concurrency) for name, target in fs.fss.items()}
        self.concurrency = max(target.concurrency for target in self._targets.values())
        self._lock = threading.Lock()
        self._folders: dict[str, set[tuple[str, bool]]] | None = None

    def path(self, root: str, key: str) -> str:
        return f"{root.strip('/')}/{key}".lstrip("/")

    def _reference(self, path: str) -> Reference | None:
        references = self.fs.references
        if isinstance(references, dict):
            found = references.get(path)
        else:
            with self._lock:
                found = _lazy_reference(references, path)
        return None if found is None else _checked(found, self.fs.target)

    def _files(self, url: str) -> Files:
        protocol = url.partition("://")[0] if "://" in url else None
        files = self._targets.get(protocol)
        if files is None:
            raise WrongBytesError(
                f"it refers to a file of protocol '{protocol}'; accepted: a remote_protocol, or fs, for it"
            )
        return files

    def whole(self, path: str) -> Buffer | None:
        return self.part(path, 0, None)

    def size(self, path: str) -> int | None:
        reference = self._reference(path)
        if reference is None or isinstance(reference, bytes):
            return None if reference is None else len(reference)
        if len(reference) == 3:
            return reference[2]
        size = self._files(reference[0]).size(reference[0])
        if size is None:
            raise _gone(reference[0])
        return size

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        reference = self._reference(path)
        if reference is None or isinstance(reference, bytes):
            return None if reference is None else cut(reference, (start, length))
        url = reference[0]
        files = self._files(url)
        if len(reference) == 1:
            found = files.part(url, start, length)
            if found is None:
                raise _gone(url)
            return found
        _, offset, size = reference
        first = min(start if start >= 0 else max(size + start, 0), size)
        wanted = size - first if length is None else min(length, size - first)
        if wanted == 0:
            return b""
        found = files.exact(url, offset + first, wanted)
        if found is None:
            raise _gone(url)
        if len(found) != wanted:
            raise WrongBytesError(
                f"it refers to {wanted} bytes from {offset + first} on of '{url}', found {len(found)}"
            )
        return found

    # Listing

    def _keys(self) -> Iterator[str]:
        """What the references call their values, as far as these are keys."""
        return (key for key in self._names() if {"", ".", ".."}.isdisjoint(key.split("/")))

    def _names(self) -> Iterator[str]:
        references = self.fs.references
        if isinstance(references, dict):
            yield from list(references)
            return
        with self._lock:
            names = {".zmetadata", *references.zmetadata}
            fields = {name.rpartition("/")[0] for name in names if name.rpartition("/")[2] == ".zarray"}
        yield from names
        for field in fields:
            for key in references._keys_in_field(field):
                if self._reference(key) is not None:
                    yield str(key)

    def entries(self, path: str) -> set[tuple[str, bool]]:
        if self._folders is None:
            folders: dict[str, set[tuple[str, bool]]] = {}
            for key in self._keys():
                above, _, name = key.rpartition("/")
                folders.setdefault(above, set()).add((name, False))
                while above:
                    upper, _, name = above.rpartition("/")
                    folders.setdefault(upper, set()).add((name, True))
                    above = upper
            self._folders = folders
        return self._folders.get(path.strip("/"), set())

    def below(self, path: str) -> Iterator[str]:
        beginning = f"{path.strip('/')}/".lstrip("/")
        for key in self._keys():
            if key.startswith(beginning):
                yield key[len(beginning) :]


def _target(fs: FileSystem, concurrency: int | None) -> Files:
    """What the files of a protocol are read through."""
    return files_of(fs.sync_fs if type(fs).__name__ == "AsyncFileSystemWrapper" else fs, concurrency)


def _gone(url: str) -> WrongBytesError:
    return WrongBytesError(f"it refers to '{url}', which is not there")


def _is_null(value: object) -> bool:
    """Whether a cell of a table of references is empty."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _checked(found: Any, target: str | None) -> Reference:
    """A reference as it was read from a document or a table."""
    if hasattr(found, "to_bytes") and not isinstance(found, int):
        found = found.to_bytes()
    if isinstance(found, str):
        found = found.encode()
    if isinstance(found, bytes):
        if not found.startswith(b"base64:"):
            return found
        try:
            return base64.b64decode(found[7:], validate=True)
        except binascii.Error as error:
            raise WrongBytesError(f"its reference is no base64: {error}") from error
    if isinstance(found, Mapping):
        return json.dumps(found).encode()
    if isinstance(found, (list, tuple)) and len(found) in (1, 3):
        url = target if _is_null(found[0]) else found[0]
        if isinstance(url, str):
            if len(found) == 1:
                return (url,)
            try:
                offset, size = int(found[1]), int(found[2])
            except (TypeError, ValueError, OverflowError):
                offset = size = -1
            if offset >= 0 and size >= 0 and (offset, size) == (found[1], found[2]):
                return url, offset, size
    raise WrongBytesError(
        "its reference is malformed; accepted: text, [url] or [url, offset, size], of integers of at least 0"
    )


def _lazy_reference(references: Any, path: str) -> Any:
    """A reference from tables in Parquet files, which lie beside the documents of the arrays."""
    metadata = references.zmetadata
    if path == ".zmetadata":  # Theirs does not say in which format it is.
        return {"zarr_consolidated_format": 1, "metadata": metadata}
    if path in references._items:
        return references._items[path]
    if path in metadata:
        return metadata[path]
    field, _, chunk = path.rpartition("/")
    document = metadata.get(f"{field}/.zarray")
    if not isinstance(document, Mapping):
        return None
    counts = references._get_chunk_sizes(field)
    numbers = chunk.split(".")
    if len(numbers) != len(counts) or not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    place = 0
    for number, count in zip(map(int, numbers), counts, strict=True):
        if number >= count:
            return None
        place = place * count + number
    record, row = divmod(place, references.record_size)
    changed = references._items.get((field, record), {})
    if row in changed:
        return changed[row]
    try:
        table = references.open_refs(field, record)
    except FileNotFoundError as error:
        if not is_absence(error):
            raise
        return None  # None of its chunks was there when the tables were written.
    if table is None:
        raise WrongBytesError(f"the table of its reference, number {record} of '{field}', cannot be read")
    url, offset, size, raw = (table[name][row] if name in table else None for name in _COLUMNS)
    if not _is_null(raw):
        return raw
    if _is_null(url):
        return None
    return [url, offset, size] if offset or size else [url]
