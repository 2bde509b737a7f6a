"""The abstract store interface: keys and values, and what can be done with them.

Specification: Zarr v3 core, "Abstract store interface", in the final text and in the draft of May 2022. The
operations have the names of the text and come in its three sets, readable, writeable and listable.

Beyond the text, a store can change a value without losing the changes that others make at the same time:
:meth:`Store.compare_and_set`, and :meth:`Store.update` on top of it.

Keys are ``/``-separated, relative and never climb; prefixes end with ``/``, except the empty prefix, which
means every key. The draft permits few characters in keys; here every other Unicode name is a key as well.
"""

from __future__ import annotations

import hashlib
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import index
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import (
    InvalidKeyError,
    InvalidRangeError,
    ReadOnlyError,
    StoreCapabilityError,
    StoreError,
    shorten,
)
from xzarr3.parallel import spread
from xzarr3.stores.locks import key_lock
from xzarr3.stores.readers import (
    UNCHANGED,
    BytesReader,
    Change,
    Closing,
    OversizedError,
    Reader,
    Scratch,
    ToldReader,
    ToldWriter,
    Unchanged,
    ValueReader,
    Writer,
    cut,
    joined,
    negative_length,
)
from xzarr3.tracing.events import UNHEARD, Listener, Request, everywhere, told

__all__ = [
    "ABSENT",
    "UNCHANGED",
    "BytesReader",
    "Change",
    "KeySet",
    "OversizedError",
    "Parts",
    "Reader",
    "Scratch",
    "Store",
    "Unchanged",
    "ValueReader",
    "Writer",
    "check_key",
    "check_prefix",
    "cut",
    "flat",
    "joined",
    "merge",
    "negative_length",
    "sorted_parts",
]

KeySet: TypeAlias = set[str]  # Within the classes, `set` is the method.
Parts: TypeAlias = list[tuple[int, memoryview]]

ABSENT = "absent"
"""The version of a key that has no value, in the stores of this package."""
_MOST_COPIED = 16  # Values that are held at a time.

_ACCEPTED_KEY = "names separated by single '/', relative, none of them empty, '.' or '..'"


def check_key(key: str) -> str:
    """Return ``key`` if it is valid, so that it cannot name anything outside of the store's root.

    Raises
    ------
    InvalidKeyError
        If it is empty, absolute, ends with ``/``, climbs or holds a NUL character.
    """
    if not isinstance(key, str):
        raise InvalidKeyError(f"a key must be a string, found {type(key).__name__}")
    names = key.split("/")
    if "" in names or "." in names or ".." in names or "\0" in key:
        raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: {_ACCEPTED_KEY}")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is empty or a valid key followed by ``/``.

    Raises
    ------
    InvalidKeyError
        Otherwise.
    """
    if not isinstance(prefix, str):
        raise InvalidKeyError(f"a prefix must be a string, found {type(prefix).__name__}")
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidKeyError(f"invalid prefix {shorten(prefix)}; accepted: '' or a key followed by '/'")
        check_key(prefix[:-1])
    return prefix


def flat(value: Buffer, key: str) -> memoryview:
    """The bytes of ``value``, which is to be stored under ``key``, in C order.

    Raises
    ------
    StoreError
        If it is not bytes or another buffer.
    """
    try:
        view = memoryview(value)
    except TypeError as error:
        raise StoreError(
            f"cannot store {shorten(value)} under key '{key}'; accepted: bytes, bytearray or memoryview"
        ) from error
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    return memoryview(view.tobytes())


_READ = ("get", "get_partial_values")
_WRITE = ("set", "set_partial_values")
_ERASE = ("erase", "erase_values")
_LIST = ("list", "list_dir")
_CHANGE = (*_READ, *_WRITE, *_ERASE, "get_versioned")
_MADE_FROM: Final[dict[str, tuple[str, ...]]] = {
    "get": ("get_partial_values",),
    "get_partial_values": ("get",),
    "exists": _READ,
    "getsize": (*_READ, "reader"),
    "reader": _READ,
    "stamp": _READ,
    "version": _READ,
    "tag": _READ,
    "get_versioned": _READ,
    "compare_and_set": _CHANGE,
    "writer": (*_CHANGE, "compare_and_set"),
    "set": ("set_partial_values",),
    "set_partial_values": (*_READ, "set", "get_versioned", "compare_and_set", "writer"),
    "copy_values": (*_READ, *_WRITE),
    "erase": ("erase_values",),
    "erase_values": ("erase",),
    "erase_prefix": (*_ERASE, *_LIST),
    "sweep": (),
    "list": ("list_dir",),
    "list_dir": ("list",),
}
"""What a store can do, and what each of that is made from if a class does not do it in its own way."""
_FACTS = frozenset(("stamp", "version", "tag"))
"""What is looked up without a request, in the method of that name."""


def _hook(operation: str) -> str:
    """The method in which a class does an operation in its own way."""
    return operation if operation in _FACTS else f"_{operation}"


class Store(Closing):
    """Keys and values.

    The public methods are the operations of the specification, with :meth:`compare_and_set` and
    :meth:`update`. They see to it that keys are valid and that nothing is written to a read-only store, tell
    whoever listens of the request, and then call what a class has. Four methods are enough for a store of
    one's own, and it may leave out those that it cannot do:

    ``_get(key, byte_range)``
        The value of a key, or the part of it that a pair of start and length names; None if there is none.
    ``_set(key, value)``
        Store ``bytes``, whole or not at all.
    ``_erase(key)``
        Remove a key, if it is there.
    ``_list(prefix)``
        The keys that begin with a prefix; others may be among them.

    All else is made from these, unless a class does it in its own way: ``_get_partial_values``, ``_exists``,
    ``_getsize``, ``_set_partial_values``, ``_erase_values``, ``_erase_prefix``, ``_list_dir``,
    ``_get_versioned``, ``_compare_and_set``, ``_copy_values``, ``_sweep``, and ``_reader`` and ``_writer``,
    which give a thread what it reads and writes many values with. What a derived class does in its own way,
    all that is made from it is made from again. Where an operation cannot be made, it raises
    :class:`~xzarr3.StoreCapabilityError`. A class may also override a public method. Then that is asked, and
    has to check keys by :func:`~xzarr3.stores.check_key` and ``self._check_writable()`` itself.

    What else a store can do it says: :attr:`concurrency` (requests under way at once),
    :attr:`writes_conditionally` and :attr:`erases_conditionally`, :attr:`folder` (values are local files),
    :attr:`renames_trees`, :attr:`tells_changes`, :attr:`survives_crashes`, :attr:`publishes_at_close`.

    :attr:`identity` names what the store stands for, not the object: two stores of one place have the same.

    Tasks of other processes get a store by pickling it. One whose values are in the memory of a process
    should refuse to be written there, as :class:`~xzarr3.MemoryStore` does.

    Parameters
    ----------
    read_only : bool
        Refuse every write.

    Examples
    --------
    >>> from xzarr3.stores import cut
    >>> class Dictionary(Store):
    ...     def __init__(self, **options):
    ...         super().__init__(**options)
    ...         self.values = {"a/b": b"value", "a/c/d": b"", "e/f/g": b""}
    ...     def _get(self, key, byte_range=None):
    ...         value = self.values.get(key)
    ...         return value if value is None or byte_range is None else cut(value, byte_range)
    ...     def _set(self, key, value):
    ...         self.values[key] = value
    ...     def _erase(self, key):
    ...         self.values.pop(key, None)
    ...     def _list(self, prefix):
    ...         return list(self.values)
    >>> store = Dictionary()
    >>> sorted(store.list_prefix("a/"))
    ['a/b', 'a/c/d']
    >>> store.list_dir("a/")
    ({'a/b'}, {'a/c/'})
    >>> [bytes(part) for part in store.get_partial_values([("a/b", (-2, None)), ("a/b", (0, 1))])]
    [b'ue', b'v']
    >>> store.set("../x", b"")
    Traceback (most recent call last):
    xzarr3.errors.InvalidKeyError: invalid key '../x'; accepted: ...
    >>> Dictionary(read_only=True).erase_prefix("a/")
    Traceback (most recent call last):
    xzarr3.errors.ReadOnlyError: ... is read-only
    """

    request_bytes: int = 2**20
    """About how many bytes can be read in the time that asking for one more range takes.

    That is latency times bandwidth. Parts of a value that are closer are read together; 0 never reads a gap.
    """

    over_read: float = 2.0
    """How many times the wanted bytes are moved at most, gaps included, where that is more than 1 MiB.

    ``math.inf`` leaves it to :attr:`request_bytes`, as where bytes cost nothing but time. Elements of one
    chunk that would take more requests than are under way at once are read together anyway. With 1 nothing is
    moved in vain, however many requests that takes, for those who pay by the byte.
    """

    concurrency: int = 1
    """How many requests are worth having under way at once: 1 where answers do not have to be waited for."""

    conflict_deadline: float = 60.0
    """Seconds after which a change is given up because others keep changing the same value."""

    writes_conditionally: bool = False
    """Whether :meth:`compare_and_set` and :meth:`update` lose no change of other processes either."""

    erases_conditionally: bool = True
    """Whether :meth:`compare_and_set` can erase."""

    renames_trees: bool = False
    """Whether all keys below a prefix can get other names in one step: those of :attr:`folder` can."""

    publishes_at_close: bool = False
    """Whether others see what is written when the store is closed, and not before."""

    _tells: ClassVar[bool] = True
    """Whether requests are told here; what hands them on leaves that to whoever makes them."""
    _does_itself: ClassVar[frozenset[str]] = frozenset()
    """The operations that a class, or one it derives from, does in its own way."""
    _makes_again: ClassVar[frozenset[str]] = frozenset()
    """Those that are made from others again, because a derived class does these in its own way."""

    def __init_subclass__(cls, *, hands_on: bool = False, **kwargs: Any) -> None:
        """Have what a class does in its own way asked, also where it is made something from.

        Parameters
        ----------
        hands_on : bool
            That the class does nothing in its own way, but asks another store.
        """
        super().__init_subclass__(**kwargs)
        here = vars(cls)
        own = {name for name in _MADE_FROM if name in here or f"_{name}" in here}
        replaced: dict[str, object] = {}
        if "list_prefix" in here:
            own.add("list")
            replaced = {} if "list" in here else {"list": _list_by_prefix}
        elif "list" in here:
            replaced = {"list_prefix": _list_prefix_by_list}
        changed = frozenset() if hands_on else frozenset(own)
        made = {name for name in _MADE_FROM.keys() - own if cls._is_remade(name, changed)}
        replaced |= {_hook(name): getattr(Store, _hook(name)) for name in made}
        for name, function in replaced.items():
            if getattr(cls, name) is not function:
                setattr(cls, name, function)
        bases = [base for base in cls.__bases__ if issubclass(base, Store)]
        cls._does_itself = changed.union(*(base._does_itself for base in bases)) - made
        cls._makes_again = frozenset(made.union(*(base._makes_again for base in bases)) - own)

    @classmethod
    def _is_remade(cls, name: str, changed: frozenset[str]) -> bool:
        """Whether an operation is to be made again from those that a class has changed.

        Of two that can be made from each other, the one that the bases have is what the other one comes from.
        """
        return any(
            name not in _MADE_FROM[part]
            or any(getattr(base, _hook(part)) is not getattr(Store, _hook(part)) for base in cls.__bases__)
            for part in changed.intersection(_MADE_FROM[name])
            if part in _MADE_FROM
        )

    def __init__(self, *, read_only: bool = False) -> None:
        self.read_only = read_only
        self._identity = uuid.uuid4().hex

    @property
    def identity(self) -> object:
        """What tells this store from others, the same in every process if that can be."""
        return type(self).__name__, self._identity

    def _told_apart(self) -> object:
        """What tells values that are read through this store from those that others find at its place."""
        return None

    def __dask_tokenize__(self) -> object:
        """The identity and something that changes when a value does: each time, if the store cannot tell."""
        return self.identity, self.stamp([""])

    def close(self) -> None:
        """Write what is still to be written; a zip is complete only then. Reading goes on."""

    # What it can do

    @property
    def readable(self) -> bool:
        """Whether values can be read."""
        return self._has(*_READ)

    @property
    def writeable(self) -> bool:
        """Whether values can be stored; the text leaves open whether they can then be erased, too."""
        return not self.read_only and self._has(*_WRITE)

    @property
    def erasable(self) -> bool:
        """Whether keys can be erased."""
        return not self.read_only and self._has(*_ERASE)

    @property
    def listable(self) -> bool:
        """Whether keys can be listed."""
        return self._has(*_LIST)

    @property
    def folder(self) -> str | None:
        """The local directory whose files are the values, each with its key as its path."""
        return None

    @property
    def survives_crashes(self) -> bool:
        """Whether what was stored is there after the system of whoever stored it has crashed."""
        return True

    @property
    def tells_changes(self) -> bool:
        """Whether :meth:`stamp` tells of a change, and stays the same without one."""
        return self._has("stamp")

    def _has(self, *operations: str) -> bool:
        """Whether this store does one of some operations in its own way."""
        return not self._does_itself.isdisjoint(operations)

    def _lacks(self, operation: str, accepted: str) -> NoReturn:
        raise StoreCapabilityError(f"{self} cannot {operation}; accepted: a store with {accepted}")

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self} is read-only")

    def _cannot_write(self) -> NoReturn:
        self._check_writable()
        raise ReadOnlyError(f"{self} cannot be written; accepted: a store with 'set' or 'set_partial_values'")

    def _check_listable(self, operation: str) -> None:
        """Refuse to list what cannot be listed, before the first key is asked for."""
        if not self._has(*_LIST):
            self._lacks(operation, "'list', 'list_prefix' or 'list_dir'")

    # Who hears of requests

    def _listening(self, operation: str) -> tuple[Listener, ...]:
        """Who hears of the requests of an operation, where it is not made from others that are heard of."""
        return everywhere.listeners if self._tells and operation in self._does_itself else ()

    def _telling(
        self, operation: str, key: str, start: int | None = None, length: int | None = None, number: int = 1
    ) -> Request:
        listeners = self._listening(operation)
        return Request(self, listeners, operation, key, start, length, number) if listeners else UNHEARD

    # A readable store

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        """The value of ``key``, or None if there is none.

        Parameters
        ----------
        key : str
        byte_range : (int, int or None), optional
            Start and length in bytes; a length of None reads to the end, a negative start counts from it.
            A part beyond the end of the value is shorter or empty.

        Raises
        ------
        StoreError
            If the value is there, or may be, but cannot be read.
        InvalidRangeError
            If the length is negative.
        """
        _check_range(check_key(key), byte_range)
        with self._telling("get", key, *(byte_range or (None, None))) as request:
            value = self._get(key, byte_range)
            request.value(value)
            return value

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        if not self._has("get_partial_values"):
            self._lacks("get", "'get' or 'get_partial_values'")
        (value,) = self.get_partial_values([(key, byte_range or (0, None))])
        return value

    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> list[Buffer | None]:
        """The parts of values that ``key_ranges`` names, in that order; None for keys without a value.

        A key may occur several times. The ranges are those of :meth:`get`.
        """
        wanted = list(key_ranges)
        for key, byte_range in wanted:
            _check_range(check_key(key), byte_range)
        first, (start, length) = wanted[0] if wanted else ("", (None, None))
        with self._telling("get_partial_values", first, start, length, len(wanted)) as request:
            values = self._get_partial_values(wanted)
            request.values(values)
            return values

    def _get_partial_values(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer | None]:
        if not self._has("get"):
            self._lacks("get_partial_values", "'get' or 'get_partial_values'")
        return spread(lambda each: self.get(*each), wanted, self.concurrency)

    def get_values(self, keys: Iterable[str]) -> list[Buffer | None]:
        """Several values, many requests at a time where that helps; None for keys without one.

        Examples
        --------
        >>> from xzarr3 import MemoryStore
        >>> MemoryStore({"a": b"1"}).get_values(["a", "b"])
        [b'1', None]
        """
        return spread(self.get, keys, self.concurrency)

    def exists(self, key: str) -> bool:
        """Whether ``key`` has a value."""
        with self._telling("exists", check_key(key)) as request:
            found = self._exists(key)
            request.outcome = "ok" if found else "absent"
            return found

    def _exists(self, key: str) -> bool:
        return self.get(key, (0, 1)) is not None

    def getsize(self, key: str) -> int | None:
        """Size of the value of ``key`` in bytes, or None if there is none."""
        with self._telling("getsize", check_key(key)) as request:
            size = self._getsize(key)
            request.outcome = "absent" if size is None else "ok"
            return size

    def _getsize(self, key: str) -> int | None:
        opened = self.reader().open(key)
        if opened is None:
            return None
        with opened:
            return len(opened.read(0)) if opened.size is None else opened.size

    def reader(self, scratch: Scratch | None = None, limit: int = sys.maxsize) -> Reader:
        """What a thread reads values with; see :class:`~xzarr3.stores.readers.Reader`. Keys are not checked.

        Parameters
        ----------
        scratch : Scratch, optional
            Memory in which whole values may be returned, so that each is good until the next one.
        limit : int
            Size in bytes beyond which a whole value is not read, if the store can tell its size before.
        """
        listeners = self._listening("reader")
        reader = self._reader(scratch, limit)
        return ToldReader(self, reader, listeners) if listeners else reader

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return Reader(self, scratch, limit)

    def stamp(self, keys: Sequence[str]) -> object:
        """A picklable value that changes when any of these values changes.

        Dask names its tasks after it. A store that cannot tell never gives the same stamp twice.
        """
        return uuid.uuid4().hex

    def version(self, key: str) -> object | None:
        """What changes whenever the value of ``key`` does, if that costs no request; otherwise None."""
        return None

    def tag(self, key: str) -> str | None:
        """What a service called the version of ``key`` that was read last; None if that is not known."""
        return None

    # Changes that lose no others

    def get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        """The value of a key, None if there is none, and what tells this version of it from others.

        That there is no value is a version, too. See :meth:`compare_and_set`.
        """
        with self._telling("get_versioned", check_key(key)) as request:
            value, version = self._get_versioned(key)
            request.value(value)
            return value, version

    def _get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        value = self.get(key)
        return value, ABSENT if value is None else hashlib.blake2b(value, digest_size=20).digest()

    def compare_and_set(self, key: str, version: object, value: Buffer | None) -> bool:
        """Store a value if there is that version of it now; returns whether there was.

        Without :attr:`writes_conditionally` a store compares within this process only.

        Parameters
        ----------
        key : str
        version : object
            What :meth:`get_versioned` gave.
        value : bytes or None
            The new value; None erases the key.

        Raises
        ------
        StoreCapabilityError
            If the store cannot do that.
        OutcomeUnknownError
            If no answer came, and what is stored now does not tell whether the value has been.

        Examples
        --------
        >>> from xzarr3 import MemoryStore
        >>> store = MemoryStore()
        >>> value, version = store.get_versioned("a")
        >>> store.compare_and_set("a", version, b"mine"), store.compare_and_set("a", version, b"yours")
        (True, False)
        >>> store.get("a")
        b'mine'
        """
        self._check_writable()
        content = None if value is None else _whole(value, check_key(key))
        with self._telling("compare_and_set", check_key(key)) as request:
            done = self._compare_and_set(key, version, content)
            if not done:
                request.outcome = "changed"
            elif content is None:
                request.outcome = "erased"
            else:
                request.size = len(content)
            return done

    def _locked(self, key: str) -> AbstractContextManager[object]:
        """Keeps those away who compare and set the value of a key, as far as the store can."""
        return key_lock(self.identity, key)

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        with self._locked(key):
            if self.get_versioned(key)[1] != version:
                return False
            if value is None:
                self.erase(key)
            else:
                self.set(key, value)
            return True

    def update(self, key: str, change: Change) -> None:
        """Replace a value by what is made of it, so that no change of others gets lost.

        Where an answer of a service gets lost and somebody else stores something at the same time, the change
        may be made twice; one that must not be, such as counting, needs a mark in the value, or
        :meth:`compare_and_set`.

        Parameters
        ----------
        key : str
        change : callable
            Takes the value, None if there is none, and gives the pieces of the new one, None to erase the
            key, or ``UNCHANGED``. It is called again if somebody else was faster. What it takes is good
            during the call only.

        Raises
        ------
        ConflictError
            If others kept changing the value for :attr:`conflict_deadline` seconds.

        Examples
        --------
        >>> from xzarr3 import MemoryStore
        >>> store = MemoryStore({"a": b"1"})
        >>> store.update("a", lambda stored: [stored, b"2"])
        >>> store.get("a")
        b'12'
        """
        with self.writer() as writer:
            writer.update(check_key(key), change)

    # A writeable store

    def writer(self, scratch: Scratch | None = None, limit: int = sys.maxsize) -> Writer:
        """What a thread stores and changes values with, in a ``with`` statement.

        See :class:`~xzarr3.stores.readers.Writer`. Keys are not checked.

        Parameters
        ----------
        scratch : Scratch, optional
            Memory into which values that are changed may be read.
        limit : int
            Size in bytes beyond which a value is not changed, if the store can tell its size before.
        """
        self._check_writable()
        listeners = self._listening("writer")
        writer = self._writer(scratch, limit)
        return ToldWriter(self, writer, listeners) if listeners else writer

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        return Writer(self, scratch, limit)

    def set(self, key: str, value: Buffer) -> None:
        """Store ``value`` under ``key``, whole or not at all.

        A store that has ``set_partial_values`` only must erase a longer value first, so that a failure in
        between leaves none.

        Raises
        ------
        StoreError
            If that fails; the old value is then still there.
        """
        self._check_writable()
        content = _whole(value, check_key(key))
        with self._telling("set", key) as request:
            self._set(key, content)
            request.size = len(content)

    def _set(self, key: str, value: bytes) -> None:
        if not self._has("set_partial_values"):
            self._cannot_write()
        if not self.readable or (self.get(key, (len(value), 1)) or b""):
            if not self.erasable:
                self._lacks("replace a value by a shorter one", "'set', 'erase' or 'erase_values'")
            self.erase(key)
        self.set_partial_values([(key, 0, value)])

    def set_values(self, items: Iterable[tuple[str, Buffer]]) -> None:
        """Store several values, many requests at a time where that helps, in any order.

        Of those that were not stored yet when one of them fails, some may stay as they were.
        """
        self._check_writable()
        wanted = [(check_key(key), value) for key, value in items]
        spread(lambda item: self.set(*item), wanted, self.concurrency)

    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        """Overwrite parts of values; each triple names a key, the first byte and the new bytes.

        A key may occur several times, as long as its parts do not overlap; a part of no bytes overlaps
        nothing. A part may begin where the value, or another part, ends, which makes the value longer; a
        key without a value has 0 bytes. All parts are looked at before the first one is stored. Each value
        is replaced whole, one after the other, by :meth:`update`.

        Raises
        ------
        InvalidKeyError
            If one of the keys is not valid.
        InvalidRangeError
            If two parts of one key overlap, or a part begins beyond the end of its value.

        Examples
        --------
        >>> from xzarr3 import MemoryStore
        >>> store = MemoryStore({"a": b"0123456789"})
        >>> store.set_partial_values([("a", 8, b"IJK"), ("a", 0, b"A")])
        >>> store.get("a")
        b'A1234567IJK'
        """
        self._check_writable()
        parts = sorted_parts(key_start_values)
        pieces = [piece for each in parts.values() for piece in each]
        first, start = next(((key, each[0][0]) for key, each in parts.items()), ("", None))
        with self._telling("set_partial_values", first, start, number=len(pieces)) as request:
            self._set_partial_values(parts)
            request.size = sum(piece.nbytes for _, piece in pieces)

    def _set_partial_values(self, parts: dict[str, Parts]) -> None:
        if not self._has("set"):
            self._cannot_write()
        if parts and not self.readable:
            self._lacks("set_partial_values", "'set_partial_values', or 'set' and 'get'")
        for key, pieces in parts.items():
            merge(key, self.get(key), pieces)
        for key, pieces in parts.items():
            self.update(key, lambda stored, key=key, pieces=pieces: [merge(key, stored, pieces)])  # type: ignore[misc]

    def copy_values(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Store values under other keys as well.

        Parameters
        ----------
        pairs : iterable of (str, str)
            The keys of values, and the keys to store them under. No key is both.

        Raises
        ------
        StoreError
            If one of them has no value, or cannot be read or stored; some may be copied then.
        """
        self._check_writable()
        wanted = [(check_key(source), check_key(target)) for source, target in pairs]
        with self._telling("copy_values", wanted[0][0] if wanted else "", number=len(wanted)):
            self._copy_values(wanted)

    def _copy_values(self, pairs: Sequence[tuple[str, str]]) -> None:
        def copy(pair: tuple[str, str]) -> None:
            value = self.get(pair[0])
            if value is None:
                raise StoreError(f"cannot copy key '{pair[0]}' of {self}: it has no value")
            self.set(pair[1], value)

        spread(copy, pairs, min(self.concurrency, _MOST_COPIED))

    def erase(self, key: str) -> None:
        """Remove ``key`` and its value, if it is there."""
        self._check_writable()
        with self._telling("erase", check_key(key)):
            self._erase(key)

    def _erase(self, key: str) -> None:
        if not self._has("erase_values"):
            self._cannot_erase("erase")
        self.erase_values([key])

    def erase_values(self, keys: Iterable[str]) -> None:
        """Remove several keys, or none of them if one is not valid."""
        self._check_writable()
        wanted = [check_key(key) for key in keys]
        with self._telling("erase_values", wanted[0] if wanted else "", number=len(wanted)):
            self._erase_values(wanted)

    def _erase_values(self, keys: Sequence[str]) -> None:
        if not self._has("erase"):
            self._cannot_erase("erase_values")
        spread(self.erase, keys, self.concurrency)

    def erase_prefix(self, prefix: str) -> None:
        """Remove every key that begins with ``prefix``, which must not be empty."""
        if not check_prefix(prefix):
            raise InvalidKeyError(
                "the empty prefix names the whole store; accepted: erasing its keys by name"
            )
        self._check_writable()
        with self._telling("erase_prefix", prefix):
            self._erase_prefix(prefix)

    def _erase_prefix(self, prefix: str) -> None:
        if not self._has(*_ERASE):
            self._cannot_erase("erase_prefix")
        if not self.listable:
            self._lacks("erase_prefix", "'erase_prefix', 'list', 'list_prefix' or 'list_dir'")
        self.erase_values(list(self.list_prefix(prefix)))

    def sweep(self, prefix: str = "") -> None:
        """Remove what killed writers left below ``prefix``, which no key names; most stores keep nothing."""
        check_prefix(prefix)
        if self._has("sweep"):
            self._check_writable()
            with self._telling("sweep", prefix):
                self._sweep(prefix)

    def _sweep(self, prefix: str) -> None:
        """Remove what killed writers left."""

    def _cannot_erase(self, operation: str) -> NoReturn:
        if not self.writeable:
            self._cannot_write()
        self._lacks(operation, "'erase' or 'erase_values'")

    # A listable store

    def list(self) -> Iterator[str]:
        """Every key."""
        return self._keys_below("", "list")

    def list_prefix(self, prefix: str) -> Iterator[str]:
        """Every key that begins with ``prefix``."""
        return self._keys_below(prefix, "list_prefix")

    def _keys_below(self, prefix: str, operation: str) -> Iterator[str]:
        check_prefix(prefix)
        self._check_listable(operation)
        listeners = self._listening("list")
        keys: Iterator[str] = iter(self._list(prefix))
        if prefix:
            keys = (key for key in keys if key.startswith(prefix))
        return told(Request(self, listeners, "list", prefix, number=0), keys) if listeners else keys

    def _list(self, prefix: str) -> Iterable[str]:
        """The keys below ``prefix``, found by listing one prefix after the other."""
        waiting = [prefix]
        while waiting:
            here = waiting.pop()
            keys, prefixes = self.list_dir(here)
            yield from keys
            for below in prefixes:
                if not (below.startswith(here) and below.endswith("/") and len(below) > len(here)):
                    raise StoreError(f"{self} lists {below!r} as a prefix below {here!r}")
            waiting.extend(prefixes)

    def list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        """The keys and the prefixes directly below ``prefix``."""
        check_prefix(prefix)
        self._check_listable("list_dir")
        with self._telling("list_dir", prefix) as request:
            keys, prefixes = self._list_dir(prefix)
            request.number = len(keys) + len(prefixes)
            return keys, prefixes

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        keys: KeySet = set()
        prefixes: KeySet = set()
        for key in self.list_prefix(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            (prefixes if slash else keys).add(prefix + name + slash)
        return keys, prefixes


def _list_by_prefix(store: Store) -> Iterator[str]:
    """Every key, where a class overrides how those below a prefix are listed."""
    return store.list_prefix("")


def _list_prefix_by_list(store: Store, prefix: str) -> Iterator[str]:
    """The keys below a prefix, where a class overrides how all are listed."""
    check_prefix(prefix)
    return (key for key in store.list() if key.startswith(prefix))


def _whole(value: Buffer, key: str) -> bytes:
    """A value that a store may keep."""
    return value if type(value) is bytes else bytes(flat(value, key))


def _check_range(key: str, byte_range: ByteRange | None) -> None:
    if byte_range is not None and byte_range[1] is not None and byte_range[1] < 0:
        raise negative_length(byte_range[1])


def sorted_parts(key_start_values: Iterable[tuple[str, int, Buffer]]) -> dict[str, Parts]:
    """The parts of each key in order, for :meth:`Store.set_partial_values`.

    Raises
    ------
    InvalidKeyError
        If a key is not valid.
    InvalidRangeError
        If two parts of one key overlap or a part begins before the value.
    """
    parts: dict[str, Parts] = {}
    for key, start, value in key_start_values:
        first = _first_byte(key, start)
        parts.setdefault(check_key(key), []).append((first, flat(value, key)))
    for key, pieces in parts.items():
        pieces.sort(key=lambda piece: (piece[0], piece[1].nbytes))
        end = 0
        for start, piece in pieces:
            if piece.nbytes:
                if start < end:
                    raise InvalidRangeError(
                        f"parts to store under key '{key}' overlap at byte {start}; accepted: none that do"
                    )
                end = start + piece.nbytes
    return parts


def _first_byte(key: object, start: object) -> int:
    try:
        first = index(start)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidRangeError(
            f"key {key!r}: a part cannot begin at {start!r}; accepted: an integer"
        ) from error
    if first < 0:
        raise InvalidRangeError(f"key {key!r}: a part cannot begin at {first}; accepted: 0 or more")
    return first


def merge(key: str, value: Buffer | None, pieces: Parts) -> bytearray:
    """``value`` with parts of it overwritten.

    Raises
    ------
    InvalidRangeError
        If a part begins beyond the end.
    """
    merged = bytearray(b"" if value is None else value)
    for start, piece in pieces:
        if start > len(merged):
            raise InvalidRangeError(
                f"cannot store a part from byte {start} on under key '{key}', whose value has {len(merged)} "
                f"bytes; accepted: 0 to {len(merged)}"
            )
        merged[start : start + piece.nbytes] = piece
    return merged
