"""Values that are parts of other files, as kerchunk describes them and fsspec's ``reference`` knows them.

fsspec reads documents, templates and tables of references. What a reference names is read here, because
fsspec says nothing if a file has become shorter than the reference needs it to be, and takes some references
that it cannot make sense of for absent ones.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from operator import index
from typing import Any, NamedTuple

from xzarr3._types import Buffer
from xzarr3.stores.base import cut
from xzarr3.stores.fsspec_files import (
    FIXED,
    LOCAL,
    NEAR,
    Files,
    FileSystem,
    Look,
    WrongBytesError,
    checked,
    clipped,
    first_names,
    innermost,
    led_to_absence,
)


class _Place(NamedTuple):
    """What a reference names: a file, or so many bytes of one."""

    files: Files
    url: str
    offset: int = 0
    size: int | None = None


class ReferenceFiles(Files):
    """The values of a ``reference`` file system.

    Parameters
    ----------
    fs : ReferenceFileSystem
    targets : mapping
        Its file systems by protocol.
    """

    def __init__(self, fs: FileSystem, targets: Mapping[str | None, Files]) -> None:
        super().__init__(fs, 2)
        self._targets = targets
        self.concurrency = max(files.concurrency for files in targets.values())
        self._refuses_local = _is_from_elsewhere(fs) and not _names_local(fs)

    def path(self, root: str, key: str) -> str:
        return f"{root.strip('/')}/{key}".lstrip("/")

    def _reference(self, path: str) -> bytes | _Place | None:
        """What a value is: bytes, or what is named."""
        references = self.fs.references
        if not isinstance(references, dict) and path == ".zmetadata":  # Theirs does not name its format.
            return json.dumps({"zarr_consolidated_format": 1, "metadata": references.zmetadata}).encode()
        if not isinstance(references, dict) and not _is_in_tables(references, path):
            return None
        try:
            found = references[path]
        except KeyError as error:
            if led_to_absence(error):  # Also a table that is not there: none of its chunks was.
                return None
            raise
        if hasattr(found, "to_bytes") and not isinstance(found, int):
            found = found.to_bytes()
        if isinstance(found, Mapping):
            found = json.dumps(found)
        if isinstance(found, str):
            found = found.encode()
        if isinstance(found, bytes):
            is_coded = found.startswith(b"base64:")
            return base64.b64decode(found[7:], validate=True) if is_coded else found
        if isinstance(found, (list, tuple)) and len(found) in (1, 3):
            if not isinstance(references, dict) and _is_null(found[0]):
                return None  # An empty row.
            return self._place(self.fs.target if found[0] is None else found[0], *found[1:])
        raise _malformed()

    def _place(self, url: Any, offset: Any = 0, size: Any = None) -> _Place:
        if not isinstance(url, str):
            raise _malformed()
        if size is not None:
            try:
                offset, size = index(offset), index(size)
            except TypeError:
                raise _malformed() from None
            if offset < 0 or size < 0:
                raise _malformed()
        protocol = url.partition("://")[0] if "://" in url else None
        files = self._targets.get(protocol)
        if files is None:
            raise WrongBytesError(
                f"it refers to a file of protocol '{protocol}'; accepted: a remote_protocol, or fs, for it"
            )
        if self._refuses_local and innermost(files.fs) & LOCAL:
            raise WrongBytesError(
                f"it refers to the local file '{url}', which references from elsewhere may not; "
                "accepted: remote_protocol='file'"
            )
        return _Place(files, url, offset, size)

    def known_size(self, path: str) -> int | None:
        found = self._reference(path)
        return len(found) if isinstance(found, bytes) else None if found is None else found.size

    def look(self, path: str) -> Look | None:
        found = self._reference(path)
        if not isinstance(found, _Place):
            return None if found is None else Look(len(found), FIXED)
        look = found.files.look(found.url)
        if look is None:
            raise _gone(found)
        if found.size is None:
            return look
        mark = None if look.mark is None else (found.url, found.offset, look.size, *look.mark)
        return look._replace(size=found.size, mark=mark)

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        found = self._reference(path)
        if not isinstance(found, _Place):
            return None if found is None else cut(found, (start, length))
        first, wanted = start, length
        if found.size is not None:
            first, count = clipped(start, length, found.size)
            first, wanted = found.offset + first, count
            if not count:
                return b""
        value = found.files.part(found.url, first, wanted)
        if value is None:
            raise _gone(found)
        return value if found.size is None or wanted is None else checked(value, first, wanted)

    def _bytes(self, path: str, start: int = 0, end: int | None = None) -> Buffer | None:
        return self.part(path, start, None if end is None else end - start)

    # Listing

    @cached_property
    def _keys(self) -> list[str]:
        """What the references call their values, as far as these are keys."""
        references = self.fs.references
        names = references if isinstance(references, dict) else {*self._in_tables()}
        return [key for key in names if {"", ".", ".."}.isdisjoint(key.split("/"))]

    def _in_tables(self) -> Iterator[str]:
        references = self.fs.references
        documents = references.zmetadata
        yield ".zmetadata"
        yield from documents
        for name in documents:
            field, _, last = name.rpartition("/")
            if last == ".zarray":
                for key in references._keys_in_field(field):
                    if self._reference(key) is not None:
                        yield str(key)

    def below(self, path: str) -> Iterator[str]:
        beginning = f"{path.strip('/')}/".lstrip("/")
        return (key[len(beginning) :] for key in self._keys if key.startswith(beginning))

    def entries(self, path: str) -> set[tuple[str, bool]]:
        return first_names(self.below(path))


def _is_from_elsewhere(fs: FileSystem) -> bool:
    """Whether references were read from where others may have put them."""
    options = {**dict(zip(("fo",), fs.storage_args, strict=False)), **fs.storage_options}
    place = options.get("fo")
    if not isinstance(place, str):
        return False
    protocol, mark, _ = place.rpartition("::")[2].partition("://")
    return (options.get("target_protocol") or (protocol if mark else "file")) not in NEAR


def _names_local(fs: FileSystem) -> bool:
    """Whether who made it said that references may be to local files."""
    options = fs.storage_options
    given = options.get("fs")
    if isinstance(given, Mapping):
        return not LOCAL.isdisjoint(given)
    return options.get("remote_protocol") in LOCAL or (given is not None and bool(innermost(given) & LOCAL))


def _is_in_tables(references: Any, path: str) -> bool:
    """Whether fsspec takes a key for a document or a chunk; it fails for others, or finds another chunk."""
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


def _is_null(value: object) -> bool:
    """Whether a cell of a table of references is empty."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _malformed() -> WrongBytesError:
    return WrongBytesError(
        "its reference is malformed; accepted: text, [url] or [url, offset, size], of integers of at least 0"
    )


def _gone(place: _Place) -> WrongBytesError:
    return WrongBytesError(f"it refers to '{place.url}', which is not there")
