"""A store around a ``ManifestStore`` of VirtualiZarr: chunks that are parts of other files."""

from __future__ import annotations

import json
import re

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import StoreError
from xzarr3.stores.base import KeySet, cut
from xzarr3.stores.zarr_python.store import ZarrPythonStore, all_of

_CHUNK = re.compile(r"c|(?:c[/.])?[0-9]+(?:[/.][0-9]+)*", re.ASCII)
_DOCUMENT = "zarr.json"


class ManifestStore(ZarrPythonStore):
    """Values are the documents and chunks of a ``ManifestStore`` of VirtualiZarr, which is read only.

    That class answers for nodes that do not exist with the document of a node above, and reads beyond the
    beginning of a chunk. So this one looks for each node in the lists of the groups above it first, and takes
    a part that counts from the end from the whole chunk. The keys of chunks cannot be listed where they
    contain ``/``.
    """

    _of_one_version = True

    def __init__(self, store: object, *, read_only: bool = False) -> None:
        super().__init__(store, read_only=read_only)
        self._kinds: dict[str, str | None] = {"": "group"}
        self._listed: dict[str, frozenset[str]] = {}

    def _name(self) -> str:
        return f"of {sum(map(bool, self._kinds.values()))} known nodes"

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        if not self._is_there(key):
            return None
        if byte_range is not None and (byte_range[0] < 0 or key.endswith(_DOCUMENT)):
            value = self._whole(key)
            return None if value is None else cut(value, byte_range)
        return super()._get(key, byte_range)

    def _exists(self, key: str) -> bool:
        return self._is_there(key) and (key.endswith(_DOCUMENT) or self._get(key, (0, 1)) is not None)

    def _is_there(self, key: str) -> bool:
        """Whether a key is that of a document, or may be that of a chunk."""
        path, _, name = key.rpartition("/")
        if name == _DOCUMENT:
            return self._kind(path) is not None
        names = key.split("/")
        for at in range(len(names)):
            kind = self._kind("/".join(names[:at]))
            if kind == "array":
                return _CHUNK.fullmatch("/".join(names[at:])) is not None
            if kind is None:
                return False
        return False

    def _kind(self, path: str) -> str | None:
        """``"array"`` or ``"group"``; None if there is no node."""
        if path not in self._kinds:
            above, _, name = path.rpartition("/")
            is_node = self._kind(above) == "group" and name in self._members(above)
            self._kinds[path] = self._kind_in_document(f"{path}/{_DOCUMENT}") if is_node else None
        return self._kinds[path]

    def _kind_in_document(self, key: str) -> str:
        value = self._whole(key)
        try:
            return str(json.loads(bytes(value or b""))["node_type"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"key '{key}' of {self} is no document of a node") from error

    def _members(self, path: str) -> frozenset[str]:
        if path not in self._listed:
            names = self._ask("list", path, lambda: all_of(self.foreign.list_dir(path)))
            self._listed[path] = frozenset(names) - {_DOCUMENT}
        return self._listed[path]

    def _list(self, prefix: str) -> list[str]:
        found: list[str] = []
        waiting = [prefix]
        while waiting:
            keys, prefixes = self._list_dir(waiting.pop())
            found += keys
            waiting += prefixes
        return found

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        path = prefix.rstrip("/")
        kind = self._kind(path)
        if kind is None:
            return set(), set()
        names = self._members(path)
        if kind == "group":
            return {prefix + _DOCUMENT}, {f"{prefix}{name}/" for name in names}
        return {prefix + name for name in (*names, _DOCUMENT)}, set()
