"""Stores around other stores: what they do not do themselves they hand on.

Specification: Zarr v3 core, "Abstract store interface". All its operations are handed on, and those that
xzarr3 adds to be fast and to lose no changes, so that a wrapped store does all that the bare one does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ClassVar, Concatenate, NoReturn, ParamSpec, TypeVar, cast

from xzarr3.errors import ReadOnlyError
from xzarr3.stores.base import Change, Scratch, Store, Updater
from xzarr3.stores.opening import StoreLike, open_store
from xzarr3.stores.sharing import reduced

_Wrapper = TypeVar("_Wrapper", bound="WrapperStore")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_READ = ("get", "get_partial_values")
_WRITE = ("set", "set_partial_values")
_ERASE = ("erase", "erase_values")
_LIST = ("list", "list_prefix", "list_dir")
_READ_VALUES = (
    *("get_values", "open_value", "open_part"),
    *("loader", "scratch_loader", "range_loader", "into_loader"),
)
_CHANGE = (*_READ, *_WRITE, *_ERASE, "get_versioned")

_MADE_FROM: dict[str, tuple[str, ...]] = {
    "get": ("get_partial_values",),
    "get_partial_values": ("get",),
    "get_values": _READ,
    "exists": _READ,
    "open_value": _READ,
    "open_part": (*_READ, "open_value"),
    "loader": _READ,
    "scratch_loader": (*_READ, "loader"),
    "range_loader": (*_READ, "open_value"),
    "into_loader": (*_READ, "open_value"),
    "stamp": _READ,
    "version": _READ,
    "tag": _READ,
    "get_versioned": _READ,
    "compare_and_set": _CHANGE,
    "updater": (*_CHANGE, "compare_and_set"),
    "update": (*_CHANGE, "compare_and_set", "updater"),
    "set": ("set_partial_values",),
    "set_partial_values": (*_READ, "set", "get_versioned", "compare_and_set", "updater", "update"),
    "set_values": _WRITE,
    "copy_values": (*_READ, *_WRITE),
    "writer": _WRITE,
    "erase": ("erase_values",),
    "erase_values": ("erase",),
    "erase_prefix": (*_ERASE, *_LIST),
    "sweep": (),
    "list": ("list_prefix", "list_dir"),
    "list_prefix": ("list", "list_dir"),
    "list_dir": ("list", "list_prefix"),
}
"""The operations, and what each of them is made from as soon as a derived class overrides that."""

_WRITING = {
    *("set", "set_partial_values", "set_values", "copy_values", "writer", "compare_and_set"),
    *("erase", "erase_values", "erase_prefix", "sweep"),
}
_ABILITIES = {
    **dict.fromkeys(_READ, "readable"),
    **dict.fromkeys(_WRITE, "writeable"),
    **dict.fromkeys(_ERASE, "erasable"),
    **dict.fromkeys(_LIST, "listable"),
}


def handed_on(
    function: Callable[Concatenate[_Wrapper, _Arguments], _Result],
) -> Callable[Concatenate[_Wrapper, _Arguments], _Result]:
    """Mark an operation that is handed on to the wrapped store.

    Of a derived class that overrides what :class:`Store` makes it from, but not the operation itself, it is
    made from that.
    """
    name = function.__name__
    default = getattr(Store, name)

    @functools.wraps(function)
    def operation(self: _Wrapper, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if name in self._made:
            made: _Result = default(self, *args, **kwargs)
            return made
        return function(self, *args, **kwargs)

    operation._is_handed_on = True  # type: ignore[attr-defined]
    return cast("Callable[Concatenate[_Wrapper, _Arguments], _Result]", operation)


class _OfInner:
    """An attribute of the wrapped store, unless a class or an instance has its own."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, store: WrapperStore | None, owner: type) -> Any:
        return getattr(Store if store is None else store.inner, self._name)


class WrapperStore(Store):
    """A store that hands every operation on to another one, to be derived from.

    A derived class overrides what it does in another way. Operations that :class:`Store` makes from those are
    then made from them; ``loader`` and ``open_value`` from ``get``, for one. The overridden ones call
    ``super()``, or the wrapped store, which is :attr:`inner`.

    Some promises end there unless a derived class renews them. One that overrides how values are read has an
    ``identity`` of its own, and neither ``stamp`` nor ``version`` tell whether a value has changed. One that
    overrides ``get`` or ``set``, but not ``get_versioned`` and ``compare_and_set``, compares within this
    process only.

    Parameters
    ----------
    store : Store, path or URL
    read_only : bool, optional
        Refuse every write; as the wrapped store does, unless given.

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> class Counting(WrapperStore):
    ...     number = 0
    ...     def get(self, key, byte_range=None):
    ...         self.number += 1
    ...         return super().get(key, byte_range)
    >>> store = Counting(MemoryStore({"a": b"1", "b": b"2"}))
    >>> store.get_values(["a", "b", "c"]), store.exists("a"), store.loader()("b")
    ([b'1', b'2', None], True, b'2')
    >>> store.number
    5
    >>> store
    <Counting <MemoryStore, 2 keys>>
    """

    _overridden: ClassVar[frozenset[str]] = frozenset()
    _made: ClassVar[frozenset[str]] = frozenset()

    request_bytes: int = _OfInner()  # type: ignore[assignment]
    over_read: float = _OfInner()  # type: ignore[assignment]
    concurrency: int = _OfInner()  # type: ignore[assignment]
    conflict_deadline: float = _OfInner()  # type: ignore[assignment]
    erases_conditionally: bool = _OfInner()  # type: ignore[assignment]

    def __init__(self, store: StoreLike, *, read_only: bool | None = None) -> None:
        self.inner = open_store(store)
        super().__init__(read_only=self.inner.read_only if read_only is None else read_only)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        overridden = {name for name in _MADE_FROM if not hasattr(getattr(cls, name), "_is_handed_on")}
        cls._overridden = frozenset(overridden)
        cls._made = frozenset(
            name
            for name, others in _MADE_FROM.items()
            if name not in overridden and not overridden.isdisjoint(others)
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.inner}>"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    @property
    def identity(self) -> object:
        """That of the wrapped store, unless a derived class reads values in another way."""
        return (self._kind, self.inner.identity) if self._reads_otherwise else self.inner.identity

    def _told_apart(self) -> object:
        # How a derived class reads values, it may know only.
        return self._identity if self._reads_otherwise else self.inner._told_apart()

    def __dask_tokenize__(self) -> object:
        token = self.inner.__dask_tokenize__()
        return (self._kind, token, self.stamp([""])) if self._reads_otherwise else token

    @property
    def _kind(self) -> str:
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def _reads_otherwise(self) -> bool:
        return not self._overridden.isdisjoint((*_READ, *_READ_VALUES))

    def _has(self, operation: str) -> bool:
        if operation in self._overridden:
            return True
        if operation in self._made:
            return False
        ability = _ABILITIES.get(operation)
        return self.inner._has(operation) if ability is None else bool(getattr(self.inner, ability))

    def _check_writable(self) -> None:
        if self.read_only and self.inner.read_only:
            self.inner._check_writable()  # It may know why.
        super()._check_writable()

    def close(self) -> None:
        """Close the wrapped store."""
        self.inner.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inner.__exit__(kind, error, trace)  # It may forget what was written if there is an error.

    @handed_on
    def update(self, key: str, change: Change) -> None:
        self._check_writable()
        if self.conflict_deadline != self.inner.conflict_deadline:
            super().update(key, change)
        else:
            self.inner.update(key, change)

    @handed_on
    def updater(
        self, scratch: Scratch | None = None, limit: int = sys.maxsize
    ) -> AbstractContextManager[Updater]:
        self._check_writable()
        if self.conflict_deadline != self.inner.conflict_deadline:
            return super().updater(scratch, limit)
        return self.inner.updater(scratch, limit)


def _delegated(name: str) -> Callable[..., Any]:
    """The operation of that name of the wrapped store."""
    is_write = name in _WRITING

    @functools.wraps(getattr(Store, name))
    def operation(self: WrapperStore, *args: Any, **kwargs: Any) -> Any:
        if is_write:
            self._check_writable()
        return getattr(self.inner, name)(*args, **kwargs)

    return handed_on(operation)


for _name in _MADE_FROM.keys() - vars(WrapperStore).keys():
    setattr(WrapperStore, _name, _delegated(_name))


class ReadOnlyStore(WrapperStore):
    """A store through which another one cannot be written, nor closed: a zip may have a writer elsewhere.

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
        """Never, whatever becomes of :attr:`read_only`."""
        return False

    @property
    def erasable(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_writable(self) -> NoReturn:
        raise ReadOnlyError(f"{self} is read-only")
