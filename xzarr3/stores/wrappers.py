"""Stores around other stores: a wrapper hands on every operation that it does not implement itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import msgspec

from xzarr3._types import Buffer, Found, Part
from xzarr3.stores.base import Facts, Names, Store
from xzarr3.stores.interned import reduced
from xzarr3.stores.open import StoreLike, open_store
from xzarr3.stores.values import ANY, NO_LIMIT, Into, Value


class WrapperStore(Store):
    """Base class of stores that hand on every operation to another store.

    A derived class implements the methods of the contract that it wants to change, and calls ``super()`` or
    the wrapped store, :attr:`inner`. Values are read by :meth:`get` and by :meth:`open`: a class that changes
    how they are read implements both. Such a class also needs an ``identity`` of its own.

    Parameters
    ----------
    store : Store, path or URL

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> class Counting(WrapperStore):
    ...     number = 0
    ...     def get(self, key, byte_range=None, **how):
    ...         self.number += 1
    ...         return super().get(key, byte_range, **how)
    >>> store = Counting(MemoryStore({"a": b"1", "b": b"2"}))
    >>> store.get("a"), store.get("b"), store.number
    (b'1', b'2', 2)
    >>> store
    <Counting <MemoryStore, 2 keys>>
    """

    reports = False

    def __init__(self, store: StoreLike) -> None:
        self.inner = open_store(store)
        super().__init__()
        of_inner = self.inner.traits
        self.traits = msgspec.structs.replace(
            of_inner,
            operations=tuple(filter(self.inner._can, of_inner.operations)),
            folder=None,
            plain_files=False,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.inner}>"

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, WrapperStore)

    def __dask_tokenize__(self) -> object:
        return type(self).__qualname__, self.identity, self.inner.__dask_tokenize__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.inner.__exit__(kind, error, trace)  # It may discard pending writes.

    def _facts(self) -> Facts:
        return [("Around", repr(self.inner)), *super()._facts()]

    @property
    def identity(self) -> object:
        return self.inner.identity

    @property
    def told_apart(self) -> object:
        return self.inner.told_apart

    def _current(self) -> Self:
        inner = self.inner._current()
        if inner is self.inner:
            return self
        made = self.with_traits(tells_changes=inner.traits.tells_changes)
        made.inner = inner
        return made

    def check_writable(self) -> None:
        if self.read_only and self.inner.read_only:
            self.inner.check_writable()  # The wrapped store may give the reason.
        super().check_writable()

    def get(self, key: str, byte_range: Part = None, *, into: Into = None, limit: int = NO_LIMIT) -> Found:
        return self.inner.get(key, byte_range, into=into, limit=limit)

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        return self.inner.put(key, pieces, if_version=if_version)

    def erase(self, *keys: str) -> None:
        self.inner.erase(*keys)

    def list(self, prefix: str = "") -> Iterable[str]:
        return self.inner.list(prefix)

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        return self.inner.open(key, first, version)

    def erase_prefix(self, prefix: str) -> None:
        self.inner.erase_prefix(prefix)

    def list_dir(self, prefix: str) -> tuple[Names, Names]:
        return self.inner.list_dir(prefix)

    def copy(self, source: str, target: str) -> None:
        self.inner.copy(source, target)

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return self.inner.versions(keys)

    def exclusive(self, key: str) -> AbstractContextManager[object]:
        return self.inner.exclusive(key)

    def close(self) -> None:
        self.inner.close()

    def leftovers(self, prefix: str = "") -> Iterator[str]:
        return self.inner.leftovers(prefix)


class ReadOnlyStore(WrapperStore):
    """A store that neither writes to nor closes the store it wraps: a zip may have a writer elsewhere.

    Parameters
    ----------
    store : Store, path or URL

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> store = ReadOnlyStore(MemoryStore({"a": b"1"}))
    >>> store.get("a")
    b'1'
    >>> store.set("a", b"2")
    Traceback (most recent call last):
    xzarr3.errors.ReadOnlyError: <ReadOnlyStore <MemoryStore, 1 keys>> is read-only; ...
    """

    def __init__(self, store: StoreLike) -> None:
        super().__init__(store)
        self.traits = msgspec.structs.replace(self.traits, read_only=True)

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, ReadOnlyStore)

    def close(self) -> None:
        """Do nothing."""

    __exit__ = Store.__exit__
