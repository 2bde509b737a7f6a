"""Stores of tests that open values in a way of their own."""

from __future__ import annotations

from typing import Any

from xzarr3.stores.base import Reader


class _Opening(Reader):
    _store: Any

    def open(self, key: str, part: tuple[int, int] | None = None, version: object | None = None) -> Any:
        return self._store.opened(key, part, version)


def opening(store: Any, scratch: Any, limit: int) -> Reader:
    """The ``_reader`` of a store whose ``opened`` opens values to read parts of them."""
    return _Opening(store, scratch, limit)
