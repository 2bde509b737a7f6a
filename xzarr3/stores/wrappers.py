"""Stores around other stores: a wrapper forwards every operation that it does not implement itself.

Specification: Zarr v3 core, "Abstract store interface". Wrappers forward all its operations, and also the
operations that xzarr3 adds for speed and for conditional writes. A wrapped store thus loses no capability.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ReadOnlyError
from xzarr3.stores.base import KeySet, Parts, Store
from xzarr3.stores.open import StoreLike, open_store
from xzarr3.stores.readers import Reader, Scratch, Writer
from xzarr3.stores.sharing import reduced

_ABILITIES = {
    **dict.fromkeys(("get", "get_partial_values"), "readable"),
    **dict.fromkeys(("set", "set_partial_values"), "writeable"),
    **dict.fromkeys(("erase", "erase_values"), "erasable"),
    **dict.fromkeys(("list", "list_dir"), "listable"),
    "stamp": "tells_changes",
}


class _OfInner:
    """An attribute of the wrapped store, unless a class or an instance has its own."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, store: WrapperStore | None, owner: type) -> Any:
        return getattr(Store if store is None else store.inner, self._name)


class WrapperStore(Store, hands_on=True):
    """Base class of stores that forward every operation to another store.

    A derived class implements the hooks that it wants to change: ``_get``, ``_set`` and the others that
    :class:`Store` names. Operations made from a changed hook then call that hook; ``reader()``, for example,
    calls ``_get``. A hook calls ``super()`` or the wrapped store, :attr:`inner`.

    A change voids some guarantees unless the derived class restores them. A class that changes how values are
    read has an ``identity`` of its own, and its ``stamp`` and ``version`` do not detect changes. A class that
    has ``_get`` or ``_set``, but not ``_get_versioned`` and ``_compare_and_set``, compares versions within
    this process only.

    Parameters
    ----------
    store : Store, path or URL
    read_only : bool, optional
        Refuse every write. By default as in the wrapped store.

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> class Counting(WrapperStore):
    ...     number = 0
    ...     def _get(self, key, byte_range):
    ...         self.number += 1
    ...         return super()._get(key, byte_range)
    >>> store = Counting(MemoryStore({"a": b"1", "b": b"2"}))
    >>> store.get("a"), store.exists("a"), store.reader().get("b")
    (b'1', True, b'2')
    >>> store.number
    3
    >>> store
    <Counting <MemoryStore, 2 keys>>
    """

    _tells = False

    request_bytes: int = _OfInner()  # type: ignore[assignment]
    over_read: float = _OfInner()  # type: ignore[assignment]
    concurrency: int = _OfInner()  # type: ignore[assignment]
    conflict_deadline: float = _OfInner()  # type: ignore[assignment]
    erases_conditionally: bool = _OfInner()  # type: ignore[assignment]
    publishes_at_close: bool = _OfInner()  # type: ignore[assignment]
    transactional: bool = _OfInner()  # type: ignore[assignment]
    browsable: bool = _OfInner()  # type: ignore[assignment]
    survives_crashes: bool = _OfInner()  # type: ignore[assignment]

    def __init__(self, store: StoreLike, *, read_only: bool | None = None) -> None:
        self.inner = open_store(store)
        super().__init__(read_only=self.inner.read_only if read_only is None else read_only)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.inner}>"

    def _facts(self) -> list[tuple[str, str]]:
        return [("Around", repr(self.inner)), *super()._facts()]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    @property
    def above(self) -> tuple[Store, str] | None:
        return self.inner.above

    @property
    def identity(self) -> object:
        """The identity of the wrapped store, unless a derived class changes how values are read."""
        return (self._kind, self.inner.identity) if self._reads_otherwise else self.inner.identity

    def _told_apart(self) -> object:
        # How a derived class reads values is unknown here, so only copies of one store count as equal.
        return self._identity if self._reads_otherwise else self.inner._told_apart()

    def __dask_tokenize__(self) -> object:
        token = self.inner.__dask_tokenize__()
        return (self._kind, token, self.stamp([""])) if self._reads_otherwise else token

    @property
    def _kind(self) -> str:
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def _reads_otherwise(self) -> bool:
        return not self._does_itself.isdisjoint(("get", "get_partial_values", "reader"))

    @property
    def writes_conditionally(self) -> bool:  # type: ignore[override]
        """Whether the wrapped store compares versions, and does so across processes."""
        return "compare_and_set" not in self._makes_again and self.inner.writes_conditionally

    def _has(self, *operations: str) -> bool:
        handed_on = (name for name in operations if name not in self._makes_again)
        return super()._has(*operations) or any(map(self._inner_has, handed_on))

    def _inner_has(self, operation: str) -> bool:
        ability = _ABILITIES.get(operation)
        return self.inner._has(operation) if ability is None else bool(getattr(self.inner, ability))

    def _check_writable(self) -> None:
        if self.read_only and self.inner.read_only:
            self.inner._check_writable()  # The wrapped store may give the reason.
        super()._check_writable()

    def _check_listable(self, operation: str) -> None:
        if not self._has("list", "list_dir"):
            self.inner._check_listable(operation)

    def close(self) -> None:
        """Close the wrapped store."""
        self.inner.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inner.__exit__(kind, error, trace)  # It may discard pending writes after an error.

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        return self.inner.get(key, byte_range)

    def _get_partial_values(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer | None]:
        return self.inner.get_partial_values(wanted)

    def _exists(self, key: str) -> bool:
        return self.inner.exists(key)

    def _getsize(self, key: str) -> int | None:
        return self.inner.getsize(key)

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return self.inner.reader(scratch, limit)

    def stamp(self, keys: Sequence[str]) -> object:
        return self.inner.stamp(keys)

    def version(self, key: str) -> object | None:
        return self.inner.version(key)

    def tag(self, key: str) -> str | None:
        return self.inner.tag(key)

    def _get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        return self.inner.get_versioned(key)

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        return self.inner.compare_and_set(key, version, value)

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        if self.conflict_deadline != self.inner.conflict_deadline:
            return super()._writer(scratch, limit)
        return self.inner.writer(scratch, limit)

    def _set(self, key: str, value: bytes) -> None:
        self.inner.set(key, value)

    def _set_partial_values(self, parts: dict[str, Parts]) -> None:
        self.inner.set_partial_values(
            (key, start, piece) for key, pieces in parts.items() for start, piece in pieces
        )

    def _copy_values(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.inner.copy_values(pairs)

    def _erase(self, key: str) -> None:
        self.inner.erase(key)

    def _erase_values(self, keys: Sequence[str]) -> None:
        self.inner.erase_values(keys)

    def _erase_prefix(self, prefix: str) -> None:
        self.inner.erase_prefix(prefix)

    def _sweep(self, prefix: str) -> None:
        self.inner.sweep(prefix)

    def _list(self, prefix: str) -> Iterable[str]:
        return self.inner.list_prefix(prefix)

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        return self.inner.list_dir(prefix)

    def _list_sizes(self, prefix: str) -> Iterable[tuple[str, int | None]]:
        return self.inner.list_sizes(prefix)

    def _leftovers(self, prefix: str) -> Iterable[tuple[str, bool]]:
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
    xzarr3.errors.ReadOnlyError: <ReadOnlyStore <MemoryStore, 1 keys>> is read-only
    """

    def __init__(self, store: StoreLike) -> None:
        super().__init__(store, read_only=True)

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, ReadOnlyStore)

    @property
    def writeable(self) -> bool:
        """Always False, whatever :attr:`read_only` is set to."""
        return False

    erasable = writeable

    def close(self) -> None:
        """Do nothing."""

    __exit__ = Store.__exit__

    def _check_writable(self) -> NoReturn:
        raise ReadOnlyError(f"{self} is read-only")
