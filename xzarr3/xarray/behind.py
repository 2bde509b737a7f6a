"""Values that are stored behind arrays, where no reader looks until their documents tell of it.

Other processes may store them, too, as long as the write goes on that has taken the lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from xzarr3 import looks
from xzarr3.array import Array
from xzarr3.commit.lease import PATIENCE
from xzarr3.commit.length import GuardedStore, Length
from xzarr3.dask.sources import BEHIND
from xzarr3.errors import ChangedError, StoreError
from xzarr3.formats import Format
from xzarr3.formats.base import Held
from xzarr3.metadata import ArrayMetadata
from xzarr3.stores import Store
from xzarr3.stores.base import Change, Scratch, Writer


class Growing(Array):
    """An array as it will be, of which the document does not tell yet."""

    grown_from: tuple[int, ...] = ()
    """Its shape as the document tells it."""

    def _check_shape(self, found: ArrayMetadata) -> None:
        """Whoever replaces the array does not look for the lease of who appends to it."""
        if found.shape != self.grown_from:
            raise ChangedError(
                f"array '{self.name}' of {self.store} got shape {found.shape} while its shape "
                f"{self.grown_from} was appended to: it was replaced, or somebody else has changed its "
                "length; accepted: opening it again"
            )

    def _check_to_write(self) -> None:
        """With the lease held, one look is good for several tasks where answers have to be waited for."""
        keys = (self._key,)
        seen = looks.last(self.store, keys)
        is_held = cast("BehindStore", self.store)._length.is_exclusive
        if not (is_held and self.store.concurrency > 1 and seen is not None and seen.is_recent):
            seen = looks.look(self.store, keys, self._parsed, to_write=True)
        self._check_shape(self._same(seen.metadata))

    def _check_current(self, version: object | None = None) -> None:
        self._check_to_write()

    def __reduce__(self) -> tuple[object, ...]:
        held = self.format.hold(self.metadata, self.path)
        options = self.write_empty_chunks, self.grown_from
        return _restored, (self.store, self.path, self.format, held, *options)


def _restored(
    store: Store,
    path: str,
    format: Format,
    held: Held,
    write_empty_chunks: bool,
    grown_from: tuple[int, ...],
) -> Growing:
    meta = cast("ArrayMetadata", format.parse_again(held, path))
    array = Growing(store, path, meta, format=format, write_empty_chunks=write_empty_chunks)
    array.grown_from = grown_from
    return array


class BehindStore(GuardedStore):
    """What stores values behind an array, which is no place that others read from.

    It takes none once the write has failed: some of its tasks may not have ended then.
    """

    _length: SharedLength

    @property
    def identity(self) -> object:
        return BEHIND, super().identity

    def _set(self, key: str, value: bytes) -> None:
        with self._length.writing():
            super()._set(key, value)

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        with self._length.writing():
            return super()._compare_and_set(key, version, value)

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        return _BehindWriter(self, super()._writer(scratch, limit))

    def _erase_values(self, keys: Sequence[str]) -> None:
        with self._length.writing():
            super()._erase_values(keys)


class _BehindWriter(Writer):
    """Changes values as long as the write goes on."""

    _store: BehindStore

    def __init__(self, store: BehindStore, inner: Writer) -> None:
        super().__init__(store)
        self._inner = inner

    def update(self, key: str, change: Change) -> None:
        with self._store._length.writing():
            self._inner.update(key, change)

    def close(self) -> None:
        self._inner.close()


class SharedLength(Length):
    """A right to change a length that other processes can go on with, which write what its owner planned."""

    def __init__(self, store: Store, prefix: str, key: str, deadline: float = 0.0) -> None:
        super().__init__(store, prefix, key, deadline)
        self.store = BehindStore(store, self)
        self._gate = threading.Condition()
        self._closed = False
        self._writing = 0
        self._is_copy = False
        self.shared = False
        """Whether there may be copies of it, in other processes mostly."""

    def __getstate__(self) -> dict[str, Any]:
        self.shared = True
        return {**self.__dict__, "_gate": None, "_writing": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _gate=threading.Condition(), _is_copy=True, shared=True)

    def __enter__(self) -> Length:
        with self._gate:  # What is computed later may be computed again.
            self._closed = False
        return super().__enter__()

    def begin(self, conflict_deadline: float) -> None:
        """Take the lease."""
        self._deadline = time.monotonic() + conflict_deadline
        self.__enter__()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While a value is stored behind the array.

        A copy cannot know that the write has failed, other than from the document.

        Raises
        ------
        StoreError
            If the write has failed.
        """
        with self._gate:
            if self._closed:
                raise StoreError(
                    f"cannot write behind key '{self._key}' of {self._store}: the write has failed and was "
                    "given up"
                )
            self._writing += 1
        try:
            if self._is_copy and self.document:
                self.verify()
            yield
        finally:
            with self._gate:
                self._writing -= 1
                self._gate.notify_all()

    def close(self) -> None:
        """Take no more values, and wait for those that are just being stored in this process."""
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: not self._writing, PATIENCE)
