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
from xzarr3.stores.fsspec_files import (
    FIXED,
    LOCAL,
    Files,
    FileSystem,
    Look,
    WrongBytesError,
    files_of,
    is_absence,
    layers,
    protocols,
)

Reference: TypeAlias = bytes | tuple[str] | tuple[str, int, int]

_COLUMNS = ("path", "offset", "size", "raw")


class ReferenceFiles(Files):
    """The values of a ``reference`` file system."""

    def __init__(self, fs: FileSystem, concurrency: int | None = None) -> None:
        super().__init__(fs, 2)
        targets = {id(target): target for target in fs.fss.values()}
        files = {name: _target(target, concurrency) for name, target in targets.items()}
        self._targets = {name: files[id(target)] for name, target in fs.fss.items()}
        self.concurrency = max(target.concurrency for target in self._targets.values())
        self._refuses_local = _is_from_elsewhere(fs) and not _names_local(fs)
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
        if self._refuses_local and _is_local(files.fs):
            raise WrongBytesError(
                f"it refers to the local file '{url}', which references from elsewhere may not; "
                "accepted: remote_protocol='file'"
            )
        return files

    def whole(self, path: str) -> Buffer | None:
        return self.part(path, 0, None)

    def size(self, path: str) -> int | None:
        reference = self._reference(path)
        if reference is not None and len(reference) == 3 and not isinstance(reference, bytes):
            self._files(reference[0])
            return reference[2]
        look = self.look(path)
        return None if look is None else look.size

    def look(self, path: str) -> Look | None:
        reference = self._reference(path)
        if reference is None or isinstance(reference, bytes):
            return None if reference is None else Look(len(reference), FIXED)
        look = self._files(reference[0]).look(reference[0])
        if look is None:
            raise _gone(reference[0])
        if len(reference) == 1:
            return look
        return look._replace(size=reference[2], mark=look.mark and (*reference, look.size, *look.mark))

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

    def exact(self, path: str, start: int, length: int) -> Buffer | None:
        return self.part(path, start, length)

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


def _is_from_elsewhere(fs: FileSystem) -> bool:
    """Whether references were read from where others may have put them."""
    options = {**dict(zip(("fo",), fs.storage_args, strict=False)), **fs.storage_options}
    place = options.get("fo")
    if not isinstance(place, str):
        return False
    protocol, mark, _ = place.rpartition("::")[2].partition("://")
    return (options.get("target_protocol") or (protocol if mark else "file")) not in {*LOCAL, "memory"}


def _names_local(fs: FileSystem) -> bool:
    """Whether who made it said that references may be to local files."""
    options = fs.storage_options
    given = options.get("fs")
    if isinstance(given, Mapping):
        return not LOCAL.isdisjoint(given)
    return options.get("remote_protocol") in LOCAL or (given is not None and _is_local(given))


def _is_local(fs: FileSystem) -> bool:
    return not LOCAL.isdisjoint(protocols([*layers(fs)][-1]))


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
