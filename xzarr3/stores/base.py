"""The abstract store interface: keys and values, and what can be done with them.

Specification: Zarr v3 core, "Abstract store interface", in the final text and in the draft of May 2022. The
operations have the names of the text and come in its three sets, readable, writeable and listable. A store
implements those that it has; the others are made from them.

Beyond the text, a store can change a value without losing the changes that others make at the same time:
:meth:`Store.compare_and_set`, and :meth:`Store.update` on top of it.

Keys are ``/``-separated, relative and never climb; prefixes end with ``/``, except the empty prefix, which
means every key. The draft permits few characters in keys; here every other Unicode name is a key as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from operator import index
from types import TracebackType
from typing import Final, Literal, NoReturn, Self, TypeAlias

from xzarr3._types import Buffer, ByteRange
from xzarr3.concurrency import pause, spread
from xzarr3.errors import (
    ConflictError,
    InvalidKeyError,
    InvalidRangeError,
    OutcomeUnknownError,
    ReadOnlyError,
    StoreCapabilityError,
    StoreError,
    shorten,
)
from xzarr3.stores.locks import key_lock

Loader: TypeAlias = Callable[[str], Buffer | None]
RangeLoader: TypeAlias = Callable[[str, Sequence[int], Sequence[int]], tuple[int | None, list[Buffer]] | None]
IntoLoader: TypeAlias = Callable[[str, int, memoryview], tuple[int | None, int] | None]
Writer: TypeAlias = Callable[[str, Sequence[Buffer]], None]


class Unchanged(Enum):
    """That a value is to stay as it is."""

    UNCHANGED = 0


UNCHANGED: Final = Unchanged.UNCHANGED
Change: TypeAlias = Callable[[Buffer | None], Sequence[Buffer] | Literal[Unchanged.UNCHANGED] | None]
Updater: TypeAlias = Callable[[str, Change], None]
KeySet: TypeAlias = set[str]  # Within the classes, `set` is the method.
Parts: TypeAlias = list[tuple[int, memoryview]]

ABSENT = "absent"
"""The version of a key that has no value, in the stores of this package."""
_FIRST_PAUSE = 0.002  # Seconds
_LONGEST_PAUSE = 1.0
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


def check_erasable_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is valid and not empty.

    Raises
    ------
    InvalidKeyError
        Otherwise.
    """
    if not check_prefix(prefix):
        raise InvalidKeyError("the empty prefix names the whole store; accepted: erasing its keys by name")
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


def is_same(operation: object, other: object) -> bool:
    """Whether two operations of stores are one, where a trace may count the calls of the first."""
    return operation is other or getattr(operation, "_counted", None) is other


def joined(pieces: Sequence[Buffer]) -> Buffer:
    """The pieces of a value as one, which a store may keep: their memory will be used for something else."""
    owned = len(pieces) == 1 and isinstance(pieces[0], bytes)
    return pieces[0] if owned else b"".join(pieces)


def negative_length(length: int) -> InvalidRangeError:
    """The error for a range of bytes with a length below 0."""
    return InvalidRangeError(f"invalid length of a range {length}; accepted: None, 0 or more bytes")


def cut(value: Buffer, byte_range: ByteRange) -> Buffer:
    """The part of ``value`` that ``byte_range`` names; a part beyond its end is shorter or empty.

    Raises
    ------
    InvalidRangeError
        If the length is negative.
    """
    start, length = byte_range
    if length is not None and length < 0:
        raise negative_length(length)
    if start < 0:
        start = max(len(value) + start, 0)
    view = memoryview(value)
    return view[start:] if length is None else view[start : start + length]


class OversizedError(Exception):
    """A value that is larger than whoever asks for it can make use of.

    Parameters
    ----------
    size, limit : int
        Its size and the largest one that was expected, in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"found {size} bytes, at most {limit} bytes expected")
        self.size = size


class Scratch:
    """Memory that values are read into one after the other; it grows as they need it."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(0))


class ValueReader(ABC):
    """One stored value, opened to read parts of it.

    All parts come from the same version of the value, as far as the store can promise that.
    """

    size: int | None = None
    """Size of the whole value in bytes, if it is known without a request."""

    @property
    def version(self) -> object | None:
        """What surely is another one as soon as the value is; None if the store cannot tell."""
        return None

    @abstractmethod
    def read(self, start: int, length: int | None = None) -> Buffer:
        """``length`` bytes from ``start`` on, or to the end; a negative ``start`` counts from the end.

        The result is shorter where the value ends before.
        """

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Several parts, as :meth:`read` has them."""
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]

    def iter_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[Buffer]:
        """The same parts one after the other; each may be read when it is asked for."""
        return iter(self.read_ranges(starts, lengths))

    def read_into(self, start: int, out: memoryview) -> int:
        """Read from ``start`` on into ``out``; returns the number of bytes, fewer where the value ends."""
        part = self.read(start, len(out))
        out[: len(part)] = part
        return len(part)

    def close(self) -> None:  # noqa: B027 - most readers hold nothing
        """Release what the reader holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _RangeReader(ValueReader):
    """Reads each part with a request of its own."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    def read(self, start: int, length: int | None = None) -> Buffer:
        value = self._store.get(self._key, (start, length))
        if value is None:
            raise StoreError(f"key '{self._key}' of {self._store} vanished while it was read")
        return value


class Store:
    """Keys and values.

    A store of one's own derives from this class and implements at least one operation of each set that it
    supports: ``get`` or ``get_partial_values`` to be readable, ``set`` or ``set_partial_values`` to be
    writeable, with ``erase`` or ``erase_values`` if it can erase, and ``list``, ``list_prefix`` or
    ``list_dir`` to be listable. All other operations are made from these; where that cannot be, they raise
    :class:`~xzarr3.StoreCapabilityError`.

    Tasks of other processes get a store by pickling it. One whose values are in the memory of a process
    should refuse to be written there, as :class:`~xzarr3.MemoryStore` does.

    Parameters
    ----------
    read_only : bool
        Refuse every write. A store of one's own calls ``self._check_writable()`` before it writes.

    Examples
    --------
    >>> from xzarr3.stores import cut
    >>> class Dictionary(Store):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.values = {"a/b": b"value", "a/c/d": b"", "e/f/g": b""}
    ...     def get(self, key, byte_range=None):
    ...         value = self.values.get(key)
    ...         return value if value is None or byte_range is None else cut(value, byte_range)
    ...     def list(self):
    ...         return iter(self.values)
    >>> store = Dictionary()
    >>> store.readable, store.listable, store.writeable
    (True, True, False)
    >>> sorted(store.list_prefix("a/"))
    ['a/b', 'a/c/d']
    >>> store.list_dir("a/")
    ({'a/b'}, {'a/c/'})
    >>> [bytes(part) for part in store.get_partial_values([("a/b", (-2, None)), ("a/b", (0, 1))])]
    [b'ue', b'v']
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

    erases_conditionally: bool = True
    """Whether :meth:`compare_and_set` can erase."""

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What it can do. A store that hands its operations on to another one also hands these on.

    @property
    def readable(self) -> bool:
        """Whether values can be read."""
        return self._has("get") or self._has("get_partial_values")

    @property
    def writeable(self) -> bool:
        """Whether values can be stored; the text leaves open whether they can then be erased, too."""
        return not self.read_only and (self._has("set") or self._has("set_partial_values"))

    @property
    def erasable(self) -> bool:
        """Whether keys can be erased."""
        return not self.read_only and (self._has("erase") or self._has("erase_values"))

    @property
    def listable(self) -> bool:
        """Whether keys can be listed."""
        return self._has("list") or self._has("list_prefix") or self._has("list_dir")

    @property
    def tells_changes(self) -> bool:
        """Whether :meth:`stamp` tells of a change, and stays the same without one."""
        return self._has("stamp")

    def _has(self, operation: str) -> bool:
        """Whether this store implements an operation itself."""
        return getattr(type(self), operation) is not getattr(Store, operation)

    def _lacks(self, operation: str, accepted: str) -> NoReturn:
        raise StoreCapabilityError(f"{self} cannot {operation}; accepted: a store with {accepted}")

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self} is read-only")

    def _cannot_write(self) -> NoReturn:
        self._check_writable()
        raise ReadOnlyError(f"{self} cannot be written; accepted: a store with 'set' or 'set_partial_values'")

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
        check_key(key)
        if not self._has("get_partial_values"):
            self._lacks("get", "'get' or 'get_partial_values'")
        (value,) = self.get_partial_values([(key, byte_range or (0, None))])
        return value

    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> list[Buffer | None]:
        """The parts of values that ``key_ranges`` names, in that order; None for keys without a value.

        A key may occur several times. The ranges are those of :meth:`get`.
        """
        if not self._has("get"):
            self._lacks("get_partial_values", "'get' or 'get_partial_values'")
        return spread(lambda wanted: self.get(*wanted), key_ranges, self.concurrency)

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
        return self.get(key, (0, 1)) is not None

    def open_value(self, key: str) -> ValueReader | None:
        """Open the value of ``key`` to read parts of it, or None if there is none."""
        return _RangeReader(self, key) if self.exists(key) else None

    def open_part(
        self, key: str, start: int, length: int, version: object | None = None
    ) -> ValueReader | None:
        """Open a value of which a certain part is read first, or None if there is none.

        A store that has to ask whether there is a value gets that part with the answer.

        Parameters
        ----------
        key : str
        start, length : int
            The part, in bytes; a negative start counts from the end.
        version : object, optional
            What :attr:`ValueReader.version` was when the value was open before. A store may then return a
            reader without asking, which raises :class:`~xzarr3.errors.ChangedError` as soon as it finds that
            the value is not of that version any more.
        """
        return self.open_value(key)

    def loader(self) -> Loader:
        """A function that reads whole values, for use by one thread; its keys are not checked."""
        return self.get

    def scratch_loader(self, scratch: Scratch, limit: int) -> Loader:
        """A function that reads whole values into memory it uses again, for use by one thread.

        Its keys are not checked.

        Parameters
        ----------
        scratch : Scratch
            Memory in which the values may be returned, so that each is good until the next call.
        limit : int
            Size in bytes beyond which a value is not read, if the store can tell its size before; then the
            function raises :class:`OversizedError`.
        """
        return self.loader()

    def _bounded_loader(self, limit: int) -> Loader:
        """A function that reads one value; its keys are not checked.

        It raises :class:`OversizedError` instead of holding one that is larger than the limit, if the size
        is known before.
        """
        return self.scratch_loader(Scratch(), limit)

    def range_loader(self) -> RangeLoader:
        """A function that reads parts of values, for use by one thread.

        It takes a key, the starts and the lengths in bytes, and returns the size of the value, None if that
        is not known, and the parts, which are shorter where the value ends; or None if there is no value.
        Its keys are not checked.
        """

        def load(
            key: str, starts: Sequence[int], lengths: Sequence[int]
        ) -> tuple[int | None, list[Buffer]] | None:
            reader = self.open_part(key, starts[0], lengths[0]) if starts else self.open_value(key)
            if reader is None:
                return None
            with reader:
                return reader.size, reader.read_ranges(starts, lengths)

        return load

    def into_loader(self) -> IntoLoader:
        """A function that reads a part of a value into memory at hand, for use by one thread.

        It takes a key, the start and the memory, and returns the size of the value, None if that is not
        known, and the number of bytes, fewer where the value ends; or None if there is no value. Where the
        size is not known and the value goes on, the number is one more than there is memory for. Its keys are
        not checked.
        """

        def load(key: str, start: int, out: memoryview) -> tuple[int | None, int] | None:
            reader = self.open_part(key, start, len(out))
            if reader is None:
                return None
            with reader:
                if reader.size is not None:
                    return reader.size, reader.read_into(start, out)
                data = reader.read(start, len(out) + 1)
                out[: len(data)] = data[: len(out)]
                return None, len(data)

        return load

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
        value = self.get(key)
        return value, ABSENT if value is None else hashlib.blake2b(value, digest_size=20).digest()

    def compare_and_set(self, key: str, version: object, value: Buffer | None) -> bool:
        """Store a value if there is that version of it now; returns whether there was.

        Without an implementation of its own a store compares within this process only.

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
        with key_lock(self.identity, check_key(key)):
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
        with self.updater() as update:
            update(check_key(key), change)

    def updater(
        self, scratch: Scratch | None = None, limit: int = sys.maxsize
    ) -> AbstractContextManager[Updater]:
        """A function that changes values as :meth:`update` does, for one thread within a ``with`` statement.

        Its keys are not checked.

        Parameters
        ----------
        scratch : Scratch, optional
            Memory into which values may be read.
        limit : int
            Size in bytes beyond which a value is not read, if the store can tell its size before; then the
            function raises :class:`OversizedError`.
        """
        return contextlib.nullcontext(self._update)

    def _update(self, key: str, change: Change) -> None:
        self._check_writable()
        end = time.monotonic() + self.conflict_deadline
        longest = _FIRST_PAUSE
        attempts = 0
        in_doubt: Buffer | None = None  # What may have been stored without an answer.
        # Threads of this process take turns; others are noticed.
        with key_lock(self.identity, key):
            while True:
                stored, version = self.get_versioned(key)
                if in_doubt is not None and stored is not None and memoryview(stored) == in_doubt:
                    return
                pieces = change(stored)
                if pieces is UNCHANGED or (pieces is None and stored is None):
                    return
                attempts += 1
                value = None if pieces is None else joined(pieces)
                try:
                    if self.compare_and_set(key, version, value):
                        return
                except OutcomeUnknownError:
                    in_doubt = value
                if time.monotonic() >= end or not pause(random.uniform(0, longest)):
                    raise ConflictError(
                        f"cannot change key '{key}' of {self}: others changed it {attempts} times within "
                        f"{self.conflict_deadline:g} s; accepted: fewer writers of it, or a longer "
                        "conflict_deadline"
                    )
                longest = min(2 * longest, _LONGEST_PAUSE)

    # A writeable store

    def set_values(self, items: Iterable[tuple[str, Buffer]]) -> None:
        """Store several values, many requests at a time where that helps, in any order.

        Of those that were not stored yet when one of them fails, some may stay as they were.
        """
        self._check_writable()
        wanted = [(check_key(key), value) for key, value in items]
        spread(lambda item: self.set(*item), wanted, self.concurrency)

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

        def copy(pair: tuple[str, str]) -> None:
            value = self.get(pair[0])
            if value is None:
                raise StoreError(f"cannot copy key '{pair[0]}' of {self}: it has no value")
            self.set(pair[1], value)

        spread(copy, pairs, min(self.concurrency, _MOST_COPIED))

    def writer(self) -> AbstractContextManager[Writer]:
        """A function that stores values, for use by one thread within a ``with`` statement.

        It takes a key and the pieces of a value, which follow one another.
        """

        def write(key: str, pieces: Sequence[Buffer]) -> None:
            self.set(key, joined(pieces))

        return contextlib.nullcontext(write)

    def set(self, key: str, value: Buffer) -> None:
        """Store ``value`` under ``key``, whole or not at all.

        A store that has ``set_partial_values`` only must erase a longer value first, so that a failure in
        between leaves none.

        Raises
        ------
        StoreError
            If that fails; the old value is then still there.
        """
        if not self._has("set_partial_values"):
            self._cannot_write()
        self._check_writable()
        content = flat(value, check_key(key))
        if not self.readable or (self.get(key, (content.nbytes, 1)) or b""):
            if not self.erasable:
                self._lacks("replace a value by a shorter one", "'set', 'erase' or 'erase_values'")
            self.erase(key)
        self.set_partial_values([(key, 0, content)])

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
        if not self._has("set"):
            self._cannot_write()
        self._check_writable()
        parts = sorted_parts(key_start_values)
        if parts and not self.readable:
            self._lacks("set_partial_values", "'set_partial_values', or 'set' and 'get'")
        for key, pieces in parts.items():
            merge(key, self.get(key), pieces)
        for key, pieces in parts.items():
            self.update(key, lambda stored, key=key, pieces=pieces: [merge(key, stored, pieces)])  # type: ignore[misc]

    def erase(self, key: str) -> None:
        """Remove ``key`` and its value, if it is there."""
        if not self._has("erase_values"):
            self._cannot_erase("erase")
        self.erase_values([check_key(key)])

    def erase_values(self, keys: Iterable[str]) -> None:
        """Remove several keys, or none of them if one is not valid."""
        if not self._has("erase"):
            self._cannot_erase("erase_values")
        spread(self.erase, [check_key(key) for key in keys], self.concurrency)

    def erase_prefix(self, prefix: str) -> None:
        """Remove every key that begins with ``prefix``, which must not be empty."""
        check_erasable_prefix(prefix)
        if not (self._has("erase") or self._has("erase_values")):
            self._cannot_erase("erase_prefix")
        self._check_writable()
        if not self.listable:
            self._lacks("erase_prefix", "'erase_prefix', 'list', 'list_prefix' or 'list_dir'")
        self.erase_values(list(self.list_prefix(prefix)))

    def sweep(self, prefix: str = "") -> None:
        """Remove what killed writers left below ``prefix``, which no key names; most stores keep nothing."""
        check_prefix(prefix)

    def _cannot_erase(self, operation: str) -> NoReturn:
        self._check_writable()
        if not self.writeable:
            self._cannot_write()
        self._lacks(operation, "'erase' or 'erase_values'")

    # A listable store

    def list(self) -> Iterator[str]:
        """Every key."""
        if not (self._has("list_prefix") or self._has("list_dir")):
            self._lacks("list", "'list', 'list_prefix' or 'list_dir'")
        return self.list_prefix("")

    def list_prefix(self, prefix: str) -> Iterator[str]:
        """Every key that begins with ``prefix``."""
        check_prefix(prefix)
        if self._has("list_dir"):
            return self._walk_down(prefix)
        if not self._has("list"):
            self._lacks("list_prefix", "'list', 'list_prefix' or 'list_dir'")
        return (key for key in self.list() if key.startswith(prefix))

    def list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        """The keys and the prefixes directly below ``prefix``."""
        check_prefix(prefix)
        if not (self._has("list_prefix") or self._has("list")):
            self._lacks("list_dir", "'list', 'list_prefix' or 'list_dir'")
        keys: KeySet = set()
        prefixes: KeySet = set()
        for key in self.list_prefix(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            (prefixes if slash else keys).add(prefix + name + slash)
        return keys, prefixes

    def _walk_down(self, prefix: str) -> Iterator[str]:
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
