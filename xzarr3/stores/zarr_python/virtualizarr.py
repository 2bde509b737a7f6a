"""A store around a ``ManifestStore`` of VirtualiZarr: chunks that are parts of other files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from xzarr3.errors import StoreCapabilityError, StoreError
from xzarr3.stores.base import KeySet, Store
from xzarr3.stores.zarr_python.interface import layers
from xzarr3.stores.zarr_python.store import ZarrPythonStore, all_of

_NUMBER = "(?:0|[1-9][0-9]*)"
_DOCUMENT = "zarr.json"


class ManifestStore(ZarrPythonStore):
    """Values are the documents and chunks of a ``ManifestStore`` of VirtualiZarr, which is read only.

    If a node does not exist, VirtualiZarr's class returns the document of a node above it. So this store
    first looks for the node in the lists of the groups above. Asked for bytes beyond the end of a chunk, that
    class returns what follows in the file. So this store reads whole values.
    """

    def __init__(self, store: object, *, read_only: bool = False) -> None:
        super().__init__(store, read_only=read_only)
        self._documents: dict[str, dict[str, Any]] = {"": {"node_type": "group"}}
        self._names_below: dict[str, frozenset[str]] = {}

    def _name(self) -> str:
        return "of VirtualiZarr"

    def _gives_parts(self, key: str) -> bool:
        return False

    def _exists(self, key: str) -> bool:
        return self._holds(key) and (key.endswith(_DOCUMENT) or self._whole(key) is not None)

    def _holds(self, key: str) -> bool:
        """Whether a key is that of a document, or may be that of a chunk."""
        above, _, name = key.rpartition("/")
        if name == _DOCUMENT:
            return self._kind(above) is not None
        path = self._node_above(key)
        if self._kind(path) != "array":
            return False
        is_default, separator, number = self._encoding(path)
        names = [_NUMBER] * number
        pattern = re.escape(separator).join(["c", *names] if is_default else names or ["0"])
        return re.fullmatch(pattern, key[len(path) :].lstrip("/")) is not None

    def _node_above(self, key: str) -> str:
        """The path of the nearest node at or above a key."""
        path = key.rstrip("/")
        while self._kind(path) is None:
            path = path.rpartition("/")[0]
        return path

    def _kind(self, path: str) -> str | None:
        """``"array"`` or ``"group"``; None if there is no node."""
        if path not in self._documents:
            above, _, name = path.rpartition("/")
            is_node = self._kind(above) == "group" and name in self._members(above)
            self._documents[path] = self._document(f"{path}/{_DOCUMENT}") if is_node else {}
        return self._documents[path].get("node_type")

    def _encoding(self, path: str) -> tuple[bool, str, int]:
        """The form of an array's chunk keys: a leading ``c`` or not, the separator, the count of numbers."""
        document = self._documents[path]
        encoding = document["chunk_key_encoding"]
        is_default = encoding["name"] == "default"
        separator = encoding.get("configuration", {}).get("separator", "/" if is_default else ".")
        return is_default, separator, len(document["shape"])

    def _document(self, key: str) -> dict[str, Any]:
        value = self._whole(key)
        try:
            found = json.loads(bytes(value or b""))
            return {
                name: found[name] for name in ("node_type", "shape", "chunk_key_encoding") if name in found
            }
        except (ValueError, TypeError) as error:
            raise StoreError(f"key '{key}' of {self} is no document of a node") from error

    def _members(self, path: str) -> frozenset[str]:
        """The names below a group."""
        if path not in self._names_below:
            names = self._ask("list", path, lambda: all_of(self.foreign.list_dir(path)))
            self._names_below[path] = frozenset(names) - {_DOCUMENT}
        return self._names_below[path]

    def _list(self, prefix: str) -> list[str]:
        found: list[str] = []
        waiting = [self._node_above(prefix)]
        while waiting:
            path = waiting.pop()
            below = f"{path}/" if path else ""
            found.append(below + _DOCUMENT)
            if self._kind(path) == "group":
                waiting += [below + name for name in self._members(path)]
            else:
                found += [below + name for name in self._chunks(path)]
        return found

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        path = self._node_above(prefix)
        if self._kind(path) == "array":
            return Store._list_dir(self, prefix)
        if path != prefix.rstrip("/"):
            return set(), set()
        return {prefix + _DOCUMENT}, {f"{prefix}{name}/" for name in self._members(path)}

    def _chunks(self, path: str) -> Iterator[str]:
        """The keys of the chunks of an array that are in its manifest, relative to the array."""
        is_default, separator, number = self._encoding(path)
        try:
            node = next(layer._group for layer in layers(self.foreign) if hasattr(layer, "_group"))
            for name in path.split("/"):
                node = node.arrays[name] if name in node.arrays else node.groups[name]
            places = [*node.manifest.dict()]
        except (AttributeError, KeyError, StopIteration) as error:
            raise StoreCapabilityError(f"cannot list the chunks of '/{path}' of {self}") from error
        for place in places:
            names = place.split(".") if number else []
            yield separator.join(["c", *names] if is_default else names or ["0"])
