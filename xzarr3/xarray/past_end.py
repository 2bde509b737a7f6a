"""Stores values past the end of arrays, where no reader looks until the documents have the new shapes.

Tasks in other processes store such values, too, while the write that holds the lease goes on.
"""

from __future__ import annotations

from typing import Any, cast

from xzarr3.arrays import Array
from xzarr3.commit.length import GuardedStore
from xzarr3.errors import ChangedError
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes import freshness, seen


class Growing(Array):
    """An array with its new shape, which its document does not have yet."""

    grown_from: tuple[int, ...] = ()
    """The shape in the document."""

    def _check_shape(self, found: ArrayMetadata) -> None:
        """Refuse if the stored shape has changed: a writer that replaces an array ignores append leases."""
        if found.shape != self.grown_from:
            raise ChangedError(
                f"array '{self.name}' of {self.store} got shape {found.shape} while its shape "
                f"{self.grown_from} was appended to: it was replaced, or another writer has changed its "
                "length; open it again"
            )

    def _check_to_write(self) -> None:
        """Check the document. With the lease held and a store with latency, a recent check is reused."""
        before = seen.last(self.store, self.path)
        is_held = cast("GuardedStore", self.store).is_exclusive
        if not (is_held and self.store.concurrency > 1 and before is not None and before.tells):
            before = freshness.look(self, to_write=True)
        self._check_shape(freshness.same(self, before.metadata))

    def _check_current(self, version: object | None = None) -> None:
        self._check_to_write()

    def __getstate__(self) -> tuple[object, ...]:
        return self.grown_from, super().__getstate__()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.grown_from, rest = state
        super().__setstate__(rest)
