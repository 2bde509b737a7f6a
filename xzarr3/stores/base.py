"""The abstract store interface: keys, values and the operations on them.

Specification: Zarr v3 core, "Abstract store interface", both the final version and the draft of May 2022.
The operations have the names of the specification and come in its three sets: readable, writeable, listable.

Beyond the specification, :meth:`Store.compare_and_set` and :meth:`Store.update` change a value without losing
concurrent changes by other writers.

Keys are relative, separated by ``/``, and never climb out of the store. Prefixes end with ``/``, except the
empty prefix, which means every key. The draft permits few characters in keys; this module permits every other
Unicode name as well. This module knows nothing of arrays, chunks or metadata documents.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, NoReturn, TypeAlias, TypeVar

from xzarr3._types import Buffer, ByteRange
from xzarr3.display.shown import Description, Shown
from xzarr3.errors import InvalidKeyError, ReadOnlyError, StoreCapabilityError, StoreError
from xzarr3.parallel import parallel_map
from xzarr3.stores.keys import check_key, check_prefix
from xzarr3.stores.locks import key_lock
from xzarr3.stores.parts import Parts, flat, merge, sorted_parts
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

KeySet: TypeAlias = set[str]  # Inside the classes, `set` is the method.
Listed = TypeVar("Listed")

ABSENT = "absent"
"""The version that this package's stores give a key without a value."""
_MOST_COPIED = 16  # Values held in memory at a time.

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
    "list_sizes": ("list", "list_dir", "getsize", *_READ, "reader"),
    "leftovers": ("sweep",),
}
"""Every operation, and the operations that its default implementation calls."""
_FACTS = frozenset(("stamp", "version", "tag"))
"""Operations that cost no request. A class overrides the public method itself."""


def _hook(operation: str) -> str:
    """The name of the method that a class overrides to implement an operation itself."""
    return operation if operation in _FACTS else f"_{operation}"


class Store(Shown, Closing):
    """Keys and values.

    The public methods are the operations of the specification, :meth:`compare_and_set` and :meth:`update`.
    Each one checks its keys, refuses to write to a read-only store, reports the request to listeners, and
    then calls the hook that a class implements. Four hooks are enough for a new store, and a store may leave
    out those that it cannot do:

    ``_get(key, byte_range)``
        The value of a key, or the part of it given by a start and a length; None if the key has no value.
    ``_set(key, value)``
        Store ``bytes``, whole or not at all.
    ``_erase(key)``
        Remove a key if it exists.
    ``_list(prefix)``
        The keys that begin with a prefix. It may return other keys too, which are filtered out.

    Every other operation has a default made from these four. A class may override these hooks too:
    ``_get_partial_values``, ``_exists``, ``_getsize``, ``_set_partial_values``, ``_erase_values``,
    ``_erase_prefix``, ``_list_dir``, ``_list_sizes``, ``_get_versioned``, ``_compare_and_set``,
    ``_copy_values``, ``_sweep``, ``_leftovers``, and ``_reader`` and ``_writer``, which return the object
    with which a thread reads or writes many values.
    Where a derived class overrides a hook, the operations made from that hook return to their defaults, so
    that they call the override. An operation that cannot be made raises
    :class:`~xzarr3.StoreCapabilityError`. A class may also override a public method. The override must then
    check keys with :func:`~xzarr3.stores.check_key` and call ``self._check_writable()`` itself. So must the
    readers and writers that a class has of its own check their keys.

    Attributes tell what else a store can do: :attr:`concurrency` (requests in flight at once),
    :attr:`writes_conditionally` and :attr:`erases_conditionally`, :attr:`folder` (values are local files),
    :attr:`renames_trees`, :attr:`tells_changes`, :attr:`survives_crashes`, :attr:`publishes_at_close`,
    :attr:`transactional`.

    :attr:`identity` names the location, not the object: two stores of one location have equal identities.

    Tasks in other processes receive a store by pickling. A store whose values are in the memory of one
    process should refuse writes in other processes, as :class:`~xzarr3.MemoryStore` does.

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
    """About how many bytes the store reads in the time that one more request takes: latency times bandwidth.

    Byte ranges of a value whose gap is smaller are coalesced. With 0 a gap is never read.
    """

    over_read: float = 2.0
    """The most bytes that may be read, gaps included, as a multiple of the wanted bytes.

    The limit applies only above 1 MiB. ``math.inf`` leaves the choice to :attr:`request_bytes`, which suits
    stores where bytes cost only time. Elements of one chunk that would need more requests than
    :attr:`concurrency` are read together, even beyond the limit. With 1 no unwanted byte is ever read,
    however many requests that takes; this suits users who pay per byte.
    """

    concurrency: int = 1
    """How many requests are worth having in flight at once; 1 where a request has no latency."""

    conflict_deadline: float = 60.0
    """Seconds after which a change is given up because other writers keep changing the same value."""

    writes_conditionally: bool = False
    """Whether :meth:`compare_and_set` and :meth:`update` also keep the changes of other processes."""

    erases_conditionally: bool = True
    """Whether :meth:`compare_and_set` can erase."""

    renames_trees: bool = False
    """Whether all keys below a prefix can be renamed in one step, as the files of :attr:`folder` can."""

    publishes_at_close: bool = False
    """Whether other readers see writes only once the store is closed."""

    transactional: bool = False
    """Whether other readers see writes only once the user commits them, outside of this package.

    Such a store holds documents and chunks only, so writers keep no lease and stage nothing. It takes a chunk
    only within the shape of an array whose document it has, so writers store documents first, and erase
    chunks before an array shrinks. Everything is written by one process.
    """

    browsable: bool = False
    """Whether :meth:`list_dir` may work although the store cannot list, as with pages of a web server.

    What they show is enough to find the nodes in a group, and nothing is erased or counted by it.
    """

    survives_crashes: bool = False
    """Whether each stored value is known to survive a crash of the operating system.

    Otherwise a write that is resumed after a restart of its machine stores its values again.
    """

    _tells: ClassVar[bool] = True
    """Whether this store reports its requests. A wrapper leaves reporting to the store that it wraps."""
    _does_itself: ClassVar[frozenset[str]] = frozenset()
    """The operations that the class or one of its bases implements itself."""
    _makes_again: ClassVar[frozenset[str]] = frozenset()
    """Operations reset to their defaults because a derived class overrides what they are made from."""

    def __init_subclass__(cls, *, hands_on: bool = False, **kwargs: Any) -> None:
        """Find the operations a class implements, and reset to their defaults those made from them.

        Parameters
        ----------
        hands_on : bool
            Whether the class implements nothing itself and forwards every operation to another store.
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
        """Whether an operation returns to its default because a class changes what it is made from.

        Two operations may be made from each other, as ``get`` and ``get_partial_values`` are. Then a base
        must implement the changed one, for the other to be reset.
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

    def _describe(self) -> Description:
        from xzarr3.display import html

        title = html.title("xzarr3 store", repr(self))
        return Description(repr(self), lambda: html.box(title, html.facts(self._facts())))

    def _facts(self) -> list[tuple[str, str]]:
        """What notebooks show of the store: labels and texts. Makes no requests."""
        found = {
            "read": self.readable,
            "write": self.writeable,
            "erase": self.erasable,
            "list": self.listable,
        }
        facts = [("Operations", ", ".join(name for name, is_able in found.items() if is_able) or "none")]
        if self.read_only:
            facts.append(("Read-only", "yes"))
        if self.concurrency > 1:
            facts.append(("Requests at a time", f"{self.concurrency}"))
        return facts

    @property
    def identity(self) -> object:
        """Names the location of the store; equal in every process where possible."""
        return type(self).__name__, self._identity

    def _told_apart(self) -> object:
        """Distinguishes values that only this store reads in this way from those at the same location."""
        return None

    def __dask_tokenize__(self) -> object:
        """The identity and a stamp that changes with any value, or every time if the store cannot tell."""
        return self.identity, self.stamp([""])

    def close(self) -> None:
        """Write what is still pending. A zip is complete only after this. Reading remains possible."""

    # Capabilities

    @property
    def readable(self) -> bool:
        """Whether values can be read."""
        return self._has(*_READ)

    @property
    def writeable(self) -> bool:
        """Whether values can be stored. The specification leaves open whether they can also be erased."""
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
        """The local directory whose files hold the values; a key is the path of its file."""
        return None

    @property
    def above(self) -> tuple[Store, str] | None:
        """A read-only store of the folder above this one, and the name of this one there; None if unknown."""
        return None

    @property
    def files(self) -> str | None:
        """The start of the path of the file of each key, if the files may be read without this store."""
        return None

    @property
    def replaces_files(self) -> bool:
        """Whether :attr:`files` may be replaced without this store, by new files that are renamed."""
        return False

    @property
    def tells_changes(self) -> bool:
        """Whether :meth:`stamp` changes if and only if a value changes."""
        return self._has("stamp")

    def _has(self, *operations: str) -> bool:
        """Whether this store implements at least one of some operations itself."""
        return not self._does_itself.isdisjoint(operations)

    def _lacks(self, operation: str, accepted: str) -> NoReturn:
        raise StoreCapabilityError(f"{self} cannot {operation}; use a store with {accepted}")

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self} is read-only")

    def _cannot_write(self) -> NoReturn:
        self._check_writable()
        raise ReadOnlyError(f"{self} cannot be written; use a store with 'set' or 'set_partial_values'")

    def _check_listable(self, operation: str) -> None:
        """Raise before the first key is requested, if this store cannot list."""
        if not self._has(*_LIST):
            self._lacks(operation, "'list', 'list_prefix' or 'list_dir'")

    # Listeners

    def _listening(self, operation: str) -> tuple[Listener, ...]:
        """The listeners to an operation; none where the operations that it is made from are reported."""
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
        """The parts of values that ``key_ranges`` names, in that order; None for a key without a value.

        A key may occur several times. The byte ranges are those of :meth:`get`.
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
        return parallel_map(lambda each: self.get(*each), wanted, self.concurrency)

    def get_values(self, keys: Iterable[str]) -> list[Buffer | None]:
        """Several values, read concurrently where that helps; None for a key without a value.

        Examples
        --------
        >>> from xzarr3 import MemoryStore
        >>> MemoryStore({"a": b"1"}).get_values(["a", "b"])
        [b'1', None]
        """
        return parallel_map(self.get, keys, self.concurrency)

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
        """The object with which a thread reads values; see :class:`~xzarr3.stores.readers.Reader`.

        Parameters
        ----------
        scratch : Scratch, optional
            Memory for whole values. Each value read into it is valid until the next one is read.
        limit : int
            Whole values of more bytes are not read, if the store knows the size beforehand.
        """
        listeners = self._listening("reader")
        reader = self._reader(scratch, limit)
        return ToldReader(self, reader, listeners) if listeners else reader

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return Reader(self, scratch, limit)

    def stamp(self, keys: Sequence[str]) -> object:
        """A picklable value that changes when any of these values changes.

        Dask derives task names from it. A store that cannot detect changes never gives the same stamp twice.
        """
        return uuid.uuid4().hex

    def version(self, key: str) -> object | None:
        """Something that changes whenever the value of ``key`` does; None if that would cost a request."""
        return None

    def tag(self, key: str) -> str | None:
        """The service's name for the version of ``key`` that was last read; None if not known."""
        return None

    # Changes that keep concurrent changes

    def get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        """The value of a key, or None, and the version of that value.

        The absence of a value is a version too. See :meth:`compare_and_set`.
        """
        with self._telling("get_versioned", check_key(key)) as request:
            value, version = self._get_versioned(key)
            request.value(value)
            return value, version

    def _get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        import hashlib

        value = self.get(key)
        return value, ABSENT if value is None else hashlib.blake2b(value, digest_size=20).digest()

    def compare_and_set(self, key: str, version: object, value: Buffer | None) -> bool:
        """Store a value if the key still has a given version; returns whether it had.

        Without :attr:`writes_conditionally` only writers of this process are taken into account.

        Parameters
        ----------
        key : str
        version : object
            The version that :meth:`get_versioned` returned.
        value : bytes or None
            The new value; None erases the key.

        Raises
        ------
        StoreCapabilityError
            If the store cannot compare versions, or cannot erase on condition.
        OutcomeUnknownError
            If no answer came, and the present value does not show whether this value was stored.

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
        """A context that excludes other writers that compare and set the key, as far as the store can."""
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
        """Replace a value by a function of it, without losing concurrent changes.

        The change may be applied twice if a service's answer is lost while another writer stores a value. A
        change that must not be applied twice, such as counting, needs a mark in the value, or
        :meth:`compare_and_set`.

        Parameters
        ----------
        key : str
        change : callable
            Takes the value, or None without one. Returns the pieces of the new value, None to erase the key,
            or ``UNCHANGED``. It is called again if another writer changed the value first. Its argument is
            valid only during the call.

        Raises
        ------
        ConflictError
            If other writers kept changing the value for :attr:`conflict_deadline` seconds.

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
        """The object with which a thread stores and changes values, to be used in a ``with`` statement.

        See :class:`~xzarr3.stores.readers.Writer`.

        Parameters
        ----------
        scratch : Scratch, optional
            Memory for values that are read to be changed.
        limit : int
            Values of more bytes are not changed, if the store knows the size beforehand.
        """
        self._check_writable()
        listeners = self._listening("writer")
        writer = self._writer(scratch, limit)
        return ToldWriter(self, writer, listeners) if listeners else writer

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        return Writer(self, scratch, limit)

    def set(self, key: str, value: Buffer) -> None:
        """Store ``value`` under ``key``, whole or not at all.

        A store that implements only ``set_partial_values`` erases a longer value first, so that a failure in
        between leaves no value.

        Raises
        ------
        StoreError
            If storing fails; the old value then remains.
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
        """Store several values in any order, concurrently where that helps.

        If one of them fails, some of the others may not be stored.
        """
        self._check_writable()
        wanted = [(check_key(key), value) for key, value in items]
        parallel_map(lambda item: self.set(*item), wanted, self.concurrency)

    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        """Overwrite parts of values; each triple names a key, the first byte and the new bytes.

        A key may occur several times, as long as its parts do not overlap; an empty part overlaps nothing. A
        part may begin at the end of the value or of another part, which makes the value longer. A key without
        a value counts as 0 bytes. All parts are checked before the first one is stored. Each value is then
        replaced whole, one after the other, by :meth:`update`.

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
        """Store copies of values under other keys.

        Parameters
        ----------
        pairs : iterable of (str, str)
            The source keys and the target keys. No key may be both.

        Raises
        ------
        StoreError
            If a source has no value, or cannot be read or stored; some values may be copied by then.
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

        parallel_map(copy, pairs, min(self.concurrency, _MOST_COPIED))

    def erase(self, key: str) -> None:
        """Remove ``key`` and its value if it exists."""
        self._check_writable()
        with self._telling("erase", check_key(key)):
            self._erase(key)

    def _erase(self, key: str) -> None:
        if not self._has("erase_values"):
            self._cannot_erase("erase")
        self.erase_values([key])

    def erase_values(self, keys: Iterable[str]) -> None:
        """Remove several keys. If one of them is invalid, none is removed."""
        self._check_writable()
        wanted = [check_key(key) for key in keys]
        with self._telling("erase_values", wanted[0] if wanted else "", number=len(wanted)):
            self._erase_values(wanted)

    def _erase_values(self, keys: Sequence[str]) -> None:
        if not self._has("erase"):
            self._cannot_erase("erase_values")
        parallel_map(self.erase, keys, self.concurrency)

    def erase_prefix(self, prefix: str) -> None:
        """Remove every key that begins with ``prefix``, which must not be empty."""
        if not check_prefix(prefix):
            raise InvalidKeyError("the empty prefix names the whole store; erase its keys by name")
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
        """Remove leftovers of killed writers below ``prefix``, which no key names; most stores have none."""
        check_prefix(prefix)
        if self._has("sweep"):
            self._check_writable()
            with self._telling("sweep", prefix):
                self._sweep(prefix)

    def _sweep(self, prefix: str) -> None:
        """Remove leftovers of killed writers."""

    def leftovers(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Names of temporary files of writers below ``prefix``, which are no keys; most stores have none.

        Yields
        ------
        (str, bool)
            The name, in the form of a key, and whether :meth:`sweep` removes it, because its writer has been
            silent for long.
        """
        return self._told_list("leftovers", prefix, iter(self._leftovers(check_prefix(prefix))))

    def _leftovers(self, prefix: str) -> Iterable[tuple[str, bool]]:
        return ()

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

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Every key that begins with ``prefix``, and the size of its value in bytes; None if not known.

        The sizes come with the listing: no key takes a request of its own.

        Examples
        --------
        >>> from xzarr3 import MemoryStore
        >>> sorted(MemoryStore({"a/b": b"value", "a/c": b"", "d": b"1"}).list_sizes("a/"))
        [('a/b', 5), ('a/c', 0)]
        """
        check_prefix(prefix)
        self._check_listable("list_sizes")
        found = (entry for entry in self._list_sizes(prefix) if entry[0].startswith(prefix))
        return self._told_list("list_sizes", prefix, found)

    def _list_sizes(self, prefix: str) -> Iterable[tuple[str, int | None]]:
        return ((key, None) for key in self.list_prefix(prefix))

    def _keys_below(self, prefix: str, operation: str) -> Iterator[str]:
        check_prefix(prefix)
        self._check_listable(operation)
        keys: Iterator[str] = iter(self._list(prefix))
        if prefix:
            keys = (key for key in keys if key.startswith(prefix))
        return self._told_list("list", prefix, keys)

    def _told_list(self, operation: str, prefix: str, found: Iterator[Listed]) -> Iterator[Listed]:
        """What a list finds; listeners learn how many entries were asked for."""
        listeners = self._listening(operation)
        return told(Request(self, listeners, "list", prefix, number=0), found) if listeners else found

    def _list(self, prefix: str) -> Iterable[str]:
        """The keys below ``prefix``, found by listing prefix by prefix."""
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
    """Every key, for a class that overrides ``list_prefix`` only."""
    return store.list_prefix("")


def _list_prefix_by_list(store: Store, prefix: str) -> Iterator[str]:
    """The keys below a prefix, for a class that overrides ``list`` only."""
    check_prefix(prefix)
    return (key for key in store.list() if key.startswith(prefix))


def _whole(value: Buffer, key: str) -> bytes:
    """``value`` as bytes that a store may keep."""
    return value if type(value) is bytes else bytes(flat(value, key))


def _check_range(key: str, byte_range: ByteRange | None) -> None:
    if byte_range is not None and byte_range[1] is not None and byte_range[1] < 0:
        raise negative_length(byte_range[1])
