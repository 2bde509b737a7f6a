"""Reads values of an object store whole or in parts, each part of one version of the value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

from xzarr3._types import Buffer
from xzarr3.errors import ChangedError
from xzarr3.parallel import parallel_map
from xzarr3.stores.base import Store, negative_length
from xzarr3.stores.object.client import Answer
from xzarr3.stores.object.errors import Failure
from xzarr3.stores.readers import Reader, ValueReader, Writer, steady

if TYPE_CHECKING:
    from xzarr3.stores.object.store import ObjectStore

_SETTLED = timedelta(seconds=5)


class ObjectsReader(Reader):
    """Reads objects of an :class:`ObjectStore`."""

    _store: ObjectStore

    def get(self, key: str) -> Buffer | None:
        store = self._store
        answer = store._whole(key, store._path(key), self._limit)
        if self._scratch is None:
            store._note_tag(key, answer)
        return None if answer is None else answer.body

    def get_ranges(
        self, key: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        path = self._store._path(key)
        return steady(lambda: self._store._parts(key, path, starts, lengths))

    def get_into(self, key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
        return steady(lambda: Reader.get_into(self, key, start, out))

    def open(
        self, key: str, part: tuple[int, int] | None = None, version: object | None = None
    ) -> ValueReader | None:
        store = self._store
        path = store._path(key)
        if is_version(version):
            tag, generation, size = version
            return ObjectReader(store, key, path, Answer(memoryview(b""), 0, size, tag, generation, None))
        if part is not None:
            return store._open(key, path, *part)
        answer = store._head(key, path)
        return None if answer is None else ObjectReader(store, key, path, answer)


class ObjectsWriter(Writer):
    """Changes objects up to a limit of size."""

    _store: ObjectStore

    def _versioned(self, key: str) -> tuple[Buffer | None, object]:
        return self._store._versioned(key, self._limit)


def is_version(version: object) -> TypeGuard[tuple[str | None, str | None, int]]:
    """Whether an object is a version as :attr:`Answer.version` gives it."""
    return isinstance(version, tuple) and len(version) == 3


def changed(store: Store, key: str) -> ChangedError:
    return ChangedError(f"key '{key}' of {store} was replaced or removed while it was read")


class ObjectReader(ValueReader):
    """Parts of one version of an object.

    Parameters
    ----------
    store : ObjectStore
    key, path : str
    answer : Answer
        What is known of the value, perhaps with a part of it.
    """

    def __init__(self, store: ObjectStore, key: str, path: str, answer: Answer) -> None:
        self._store = store
        self._key = key
        self._path = path
        self._known = answer
        self.size: int = answer.size

    @property
    def mark(self) -> tuple[object, ...]:
        """Equal for readers of the same version, as far as answers tell."""
        return self._known.mark

    @property
    def version(self) -> object | None:
        known = self._known
        if not known.is_named:
            return None
        # A web server may give the same tag to two values stored within one second.
        modified = known.modified
        if self._store._is_web and modified is not None and datetime.now(UTC) - modified < _SETTLED:
            return None
        return known.version

    def read(self, start: int, length: int | None = None) -> Buffer:
        if length is not None and length < 0:
            raise negative_length(length)
        if start < 0:
            start = max(self.size + start, 0)
        rest = max(self.size - start, 0)
        length = rest if length is None else min(length, rest)
        if length == 0:
            return b""
        part, inside = self._known.body, start - self._known.first
        if 0 <= inside <= len(part) - length:
            return part[inside : inside + length]
        return self._fetched(start, length)

    def _fetched(self, start: int, length: int) -> Buffer:
        options: dict[str, Any] = {"range": (start, start + length)}
        tag = self._known.tag
        if tag is not None and tag.startswith('"'):
            options["if_match"] = tag
        found = self._store._ask(self._key, self._path, options)
        if isinstance(found, Failure) and found.sort == "whole":
            raise self._store._error("read", self._key, found)
        if not isinstance(found, Answer) or not self._is_of(found):
            raise changed(self._store, self._key)
        return found.body

    def _is_of(self, answer: Answer) -> bool:
        """Whether an answer is of this version. Only some answers contain a time of modification."""
        *known, modified = self._known.mark
        *found, then = answer.mark
        return found == known and (modified == then or None in (modified, then))

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        wanted = list(zip(starts, lengths, strict=True))
        return parallel_map(lambda part: self.read(*part), wanted, self._store.concurrency)
