"""The contract of a store: eleven methods over keys and values.

Specification: Zarr v3 core, "Abstract store interface", both the final version and the draft of May 2022. The
operations of the specification that are not among the eleven are made from them, once, at the end of
:class:`Store`.

Keys are relative, separated by ``/``, and never climb out of the store. Prefixes end with ``/``, except the
empty prefix, which means every key. This module knows nothing of arrays, chunks or metadata documents.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from operator import index
from typing import Any, ClassVar, Literal, ParamSpec, Self, TypeAlias, TypeVar, cast

import msgspec

from xzarr3._types import Buffer, ByteRange, Found, Part
from xzarr3.display.shown import Description, Shown
from xzarr3.errors import OutcomeUnknownError, ReadOnlyError, StoreCapabilityError, StoreError, contended
from xzarr3.parallel import parallel_map, pause
from xzarr3.stores.guards import GUARDS
from xzarr3.stores.keys import check_key
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import (
    ABSENT,
    ANY,
    NO_LIMIT,
    BytesValue,
    Closing,
    Into,
    Unchanged,
    Value,
    check_range,
    check_size,
    digest,
    joined,
    merge,
)

# Inside the class, `list` and `set` are its methods.
Names: TypeAlias = set[str]
Buffers: TypeAlias = list[Buffer | None]
Facts: TypeAlias = list[tuple[str, str]]
Change: TypeAlias = Callable[[Buffer | None], Sequence[Buffer] | Unchanged | None]
MOST_COPIED = 16
"""Values to copy at a time, as they may all be in memory."""
P = ParamSpec("P")
R = TypeVar("R")
_FIRST_PAUSE = 0.002  # Seconds
_MADE = {
    *("get_partial_values", "get_values", "set", "set_values", "set_partial_values", "erase_values"),
    *("list_prefix", "exists", "getsize"),
}
_LONGEST_PAUSE = 1.0


class Key(str):
    """A listed key with the size of its value in bytes, which came with the list; None if it did not.

    Examples
    --------
    >>> import xzarr3
    >>> key = xzarr3.stores.Key("c/0", 512)
    >>> key, key.size
    ('c/0', 512)
    """

    __slots__ = ("size",)

    size: int | None

    def __new__(cls, key: str, size: int | None = None) -> Key:
        made = super().__new__(cls, key)
        made.size = size
        return made


class Traits(msgspec.Struct, frozen=True):
    """What a store can do and promises, beyond the methods that its class has.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.MemoryStore().traits.concurrency, xzarr3.stores.Traits(read_only=True).read_only
    (1, True)
    """

    read_only: bool = False
    """Whether writes are refused."""
    operations: tuple[str, ...] = ("get", "put", "erase", "list")
    """Those of the four operations that the place permits; the class must have the methods as well."""
    browsable: bool = False
    """Whether ``list_dir`` may work although the store cannot list, as with pages of a web server.

    What they show is enough to find the nodes in a group, and nothing is erased or counted by it.
    """
    concurrency: int = 1
    """How many requests are worth having in flight at once; 1 where a request has no latency."""
    request_bytes: int = 2**20
    """About how many bytes the store reads in the time that one more request takes: latency times bandwidth.

    Byte ranges of a value whose gap is smaller are coalesced. With 0 a gap is never read.
    """
    over_read: float = 2.0
    """The most bytes that may be read, gaps included, as a multiple of the wanted bytes.

    The limit applies only above 1 MiB. ``math.inf`` leaves the choice to ``request_bytes``: right for stores
    where bytes only cost time. With 1 no unwanted byte is ever read, however many requests that takes, but
    those between scattered elements of one uncompressed chunk; this suits users who pay per byte.
    """
    conditional: Literal["threads", "processes", "service"] = "threads"
    """Whose changes are kept when a value is changed by what it was.

    Those of the threads of this process; those of other processes too, which :meth:`Store.exclusive` keeps
    out; or all, because the service compares versions.
    """
    erases_conditionally: bool = True
    """Whether a value can be erased only if it has an expected version."""
    conflict_deadline: float = 60.0
    """Seconds after which a change is given up because other writers keep changing the same value."""
    visible: Literal["at once", "at close", "at commit"] = "at once"
    """When other readers see a write: at once, once the store is closed, or once the user commits.

    A store that is committed takes documents before chunks, is written by one process, and has no leases.
    """
    durable: bool = False
    """Whether each stored value is known to survive a crash of the operating system.

    Otherwise a write that is resumed after a restart of its machine stores its values again.
    """
    folder: str | None = None
    """The local directory whose files hold the values; a key is the path of its file.

    All keys below a prefix are then renamed in one step, with their directory.
    """
    plain_files: bool = False
    """Whether the files in ``folder`` may be read and replaced without this store, by the same rules."""
    tells_changes: bool = False
    """Whether :meth:`Store.versions` tells every change of a value."""


class Store(Shown, Closing):
    """Keys and values.

    A class that implements :meth:`get`, :meth:`put`, :meth:`erase` and :meth:`list` is a store, and it may
    leave out those that it cannot do. The other methods of the contract have defaults that are made from
    these, and each may be implemented better: :meth:`open`, :meth:`erase_prefix`, :meth:`list_dir`,
    :meth:`copy`, :meth:`versions`, :meth:`exclusive` and :meth:`close`.

    Each of these methods is called with keys that were checked, and a write only if the store can be written.
    Each request is reported to traces. The class does neither: it is done around its methods.

    A class sets :attr:`traits`, which say what the store promises. Stores do not change after they are made;
    :meth:`with_traits` makes another one. :attr:`identity` names the location, not the object: two stores of
    one location have equal identities. Tasks in other processes receive a store by pickling. A store whose
    values are in the memory of one process should refuse writes in other processes, as
    :class:`~xzarr3.MemoryStore` does.

    :func:`xzarr3.testing.check_store` tests a store of one's own.

    Parameters
    ----------
    read_only : bool
        Refuse every write.
    **traits
        Those of :class:`Traits` that are others than in :attr:`traits` of the class.

    Examples
    --------
    >>> from xzarr3.stores import cut
    >>> class Dictionary(Store):
    ...     def __init__(self, **options):
    ...         super().__init__(**options)
    ...         self.values = {"a/b": b"value", "a/c/d": b"", "e/f/g": b""}
    ...     def get(self, key, byte_range=None):
    ...         value = self.values.get(key)
    ...         return value if value is None or byte_range is None else cut(value, byte_range)
    ...     def put(self, key, pieces):
    ...         self.values[key] = b"".join(pieces)
    ...     def erase(self, *keys):
    ...         for key in keys:
    ...             self.values.pop(key, None)
    ...     def list(self, prefix=""):
    ...         return list(self.values)
    >>> store = Dictionary()
    >>> sorted(store.list("a/"))
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
    xzarr3.errors.ReadOnlyError: ... is read-only; ...
    """

    traits: Traits = Traits()
    """What the store promises."""
    reports: bool = True
    """Whether requests are reported around the methods.

    A store that sends requests may report those itself, and a wrapper leaves reporting to the store that it
    wraps. A cache sets it to False on the store that holds what it keeps.
    """
    _own: ClassVar[frozenset[str]] = frozenset()
    """The methods of the contract that the class or one of its bases implements."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check keys and report requests around the methods that the class implements."""
        super().__init_subclass__(**kwargs)
        made = _MADE & vars(cls).keys()
        if made:
            raise TypeError(
                f"{cls.__name__} has {sorted(made)}, which xzarr3.Store makes of other methods; implement "
                "'get', 'put', 'erase', 'list' or 'open'"
            )
        found = {name: vars(cls)[name] for name in GUARDS if name in vars(cls)}
        for name, method in found.items():
            setattr(cls, name, GUARDS[name](method))
        cls._own = cls._own.union(found)

    _not_pickled: ClassVar[frozenset[str]] = frozenset({"_original"})
    """The attributes that its pickled form leaves out."""
    _original: Store | None = None
    """The store with other traits that this one was made of, which its pickled form names."""

    def __init__(self, *, read_only: bool = False, **traits: Any) -> None:
        if read_only:
            traits["read_only"] = True
        if traits:
            self.traits = msgspec.structs.replace(self.traits, **traits)
        self._name = uuid.uuid4().hex

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._not_pickled}

    def with_traits(self, **changes: Any) -> Self:
        """A store of the same values with other :class:`Traits`.

        Examples
        --------
        >>> from xzarr3 import MemoryStore
        >>> store = MemoryStore()
        >>> store.with_traits(read_only=True).writeable, store.writeable
        (False, True)
        """
        made = object.__new__(type(self))  # Not `copy.copy`, which would give a store that is shared.
        vars(made).update(vars(self), _original=self)
        made.traits = msgspec.structs.replace(self.traits, **changes)
        return made

    def _with(self, traits: Traits) -> Self:
        """This store if it has these traits, else another one that has them."""
        return self if self.traits == traits else self.with_traits(**msgspec.structs.asdict(traits))

    def _current(self) -> Self:
        """This store for who writes by what is stored: values as they are now, not as a cache has them."""
        return self

    # The contract: what a store of one's own implements

    def get(self, key: str, byte_range: Part = None, *, into: Into = None, limit: int = NO_LIMIT) -> Found:
        """The value of ``key``, or None if there is none.

        Parameters
        ----------
        key : str
        byte_range : (int, int or None), optional
            Start and length in bytes; a length of None reads to the end, a negative start counts from it.
            A part beyond the end of the value is shorter or empty.
        into : Scratch, optional
            Memory for the value, which is then valid until the next one is read into it. A store may ignore
            this argument, and a class may leave it out.
        limit : int
            A whole value of more bytes is not read, if the store knows the size beforehand. A class may leave
            it out.

        Raises
        ------
        StoreError
            If the value is there, or may be, but cannot be read.
        InvalidRangeError
            If the length is negative.
        OversizedError
            If the value has more bytes than `limit`.
        """
        raise StoreCapabilityError(f"{self} cannot be read; use a store with 'get'")

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        """Store the consecutive pieces of a value under ``key``, whole or not at all.

        Parameters
        ----------
        key : str
        pieces : sequence of bytes-like, or None
            None erases the key; given only together with a version.
        if_version : object
            Store only if the value has this version, as :func:`versioned` returned it. A class needs this
            argument only if :attr:`Traits.conditional` is ``"service"``.

        Returns
        -------
        bool
            Whether the value was stored; False if it had another version. A class that does not compare
            versions may return None.

        Raises
        ------
        StoreError
            If storing fails; the old value then remains.
        OutcomeUnknownError
            If no answer came, and the present value does not show whether this value was stored.
        """
        self.check_writable()
        raise ReadOnlyError(f"{self} cannot be written; use a store with 'put'")

    def erase(self, *keys: str) -> None:
        """Remove keys and their values, as far as they exist. If one of them is invalid, none is removed."""
        self.check_writable()
        raise StoreCapabilityError(f"{self} cannot erase; use a store with 'erase'")

    def list(self, prefix: str = "") -> Iterable[str]:
        """The keys that begin with ``prefix``; a :class:`Key` says the size of its value.

        A class may return other keys too, which are filtered out.
        """
        raise StoreCapabilityError(f"{self} cannot be listed; use a store with 'list'")

    # The contract: what has a default

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        """Open a value to read parts of it; None if the key has none.

        Parameters
        ----------
        key : str
        first : (int, int or None), optional
            Start and length of the part that is read first; ``(0, None)`` is the whole value, for which a
            cache then asks anew. A store that needs a request to find the value fetches this part with it.
        version : object, optional
            :attr:`Value.version` from an earlier opening. With it a store may return a value without a
            request, which raises :class:`~xzarr3.errors.ChangedError` once it finds another version.
        """
        value = self.get(key)  # Whole, as parts that are asked for one by one may be of several versions.
        return None if value is None else BytesValue(value)

    def erase_prefix(self, prefix: str) -> None:
        """Remove every key that begins with ``prefix``, which must not be empty."""
        self.erase(*self.list(prefix))

    def list_dir(self, prefix: str) -> tuple[Names, Names]:
        """The keys and the prefixes directly below ``prefix``."""
        keys: Names = set()
        prefixes: Names = set()
        for key in self.list(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            (prefixes if slash else keys).add(prefix + name + slash)
        return keys, prefixes

    def copy(self, source: str, target: str) -> None:
        """Store the value of one key under another.

        Raises
        ------
        StoreError
            If the source has no value, or cannot be read or stored.
        """
        value = self.get(source)
        if value is None:
            raise StoreError(f"cannot copy key '{source}' of {self}: it has no value")
        self.put(target, [value])

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        """For each key something that changes whenever its value does; None if that would cost a request.

        The empty key stands for all values. Dask derives the names of tasks from versions, so they can be
        pickled. If :attr:`Traits.tells_changes`, no change goes unnoticed, and None means no value.
        """
        return [None] * len(keys)

    def exclusive(self, key: str) -> AbstractContextManager[object]:
        """A context in which no other process changes the value of a key, as far as the store can do that.

        The thread that holds it may call :meth:`put` or :meth:`erase` for the key, once; a store may take
        that for the end of the context. It may also enter the context once more.
        """
        return nullcontext()

    def close(self) -> None:
        """Write what is still pending. A zip is complete only after this. Reading remains possible."""

    @property
    def identity(self) -> object:
        """Names the location of the store; equal in every process where possible."""
        return type(self).__name__, self._name

    # What the store can do

    @property
    def readable(self) -> bool:
        """Whether values can be read."""
        return self._can("get")

    @property
    def writeable(self) -> bool:
        """Whether values can be stored. The specification leaves open whether they can also be erased."""
        return self._can("put") and not self.read_only

    @property
    def erasable(self) -> bool:
        """Whether keys can be erased."""
        return self._can("erase") and not self.read_only

    @property
    def listable(self) -> bool:
        """Whether keys can be listed."""
        return self._can("list")

    def _can(self, operation: str) -> bool:
        return operation in self._own and operation in self.traits.operations

    @property
    def read_only(self) -> bool:
        """Whether every write is refused."""
        return self.traits.read_only

    @property
    def concurrency(self) -> int:
        """How many requests are worth having in flight at once."""
        return self.traits.concurrency

    @property
    def folder(self) -> str | None:
        """The local directory whose files hold the values; a key is the path of its file."""
        return self.traits.folder

    def check_writable(self) -> None:
        """Raise :class:`~xzarr3.ReadOnlyError` if values cannot be stored here; a class may know why."""
        if self.read_only:
            raise ReadOnlyError(f"{self} is read-only; open it to be written, or write to another store")

    def leftovers(self, prefix: str = "") -> Iterator[str]:
        """Names, in the form of keys, of files that killed writers left below ``prefix``; they are no keys.

        Most stores have none. :meth:`erase_prefix` removes them.
        """
        return iter(())

    @property
    def told_apart(self) -> object:
        """Differs between stores of one location that may give different values, as caches do."""
        return None

    def __dask_tokenize__(self) -> object:
        """The identity and a version of all values, or something new every time if the store has none."""
        (version,) = self.versions([""])
        return self.identity, uuid.uuid4().hex if version is None else version

    def _describe(self) -> Description:
        from xzarr3.display import html

        title = html.title("xzarr3 store", repr(self))
        return Description(repr(self), lambda: html.box(title, html.facts(self._facts())))

    def _facts(self) -> Facts:
        """What notebooks show of the store: labels and texts. Makes no requests."""
        are_able = self.readable, self.writeable, self.erasable, self.listable
        facts = [("Operations", ", ".join(compress(("read", "write", "erase", "list"), are_able)) or "none")]
        if self.read_only:
            facts.append(("Read-only", "yes"))
        if self.concurrency > 1:
            facts.append(("Requests at a time", f"{self.concurrency}"))
        return facts

    # The rest of the specification's operations, made from the contract. No class overrides them.

    def get_partial_values(self, key_ranges: Iterable[tuple[str, ByteRange]]) -> Buffers:
        """The parts of values that ``key_ranges`` names, in that order; None for a key without a value.

        A key may occur several times. The byte ranges are those of :meth:`get`.
        """
        return parallel_map(lambda each: self.get(*each), key_ranges, self.concurrency)

    def get_values(self, keys: Iterable[str]) -> Buffers:
        """Several values, read concurrently where that helps; None for a key without a value."""
        return parallel_map(self.get, keys, self.concurrency)

    def set(self, key: str, value: Buffer) -> None:
        """Store ``value`` under ``key``, whole or not at all."""
        self.put(key, [value])

    def set_values(self, items: Iterable[tuple[str, Buffer]]) -> None:
        """Store several values in any order, concurrently where that helps.

        If one of them fails, some of the others may not be stored.
        """
        parallel_map(lambda item: self.set(*item), items, self.concurrency)

    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Buffer]]) -> None:
        """Overwrite parts of values; each triple names a key, the first byte and the new bytes.

        A part may begin at the end of the value or of another part, which makes the value longer. A key
        without a value counts as 0 bytes. All parts are checked before the first one is stored. Each value is
        then read, merged and replaced whole, one after the other, by :func:`update`.

        Raises
        ------
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
        self.check_writable()
        parts: dict[str, Any] = {}
        for key, start, value in key_start_values:
            check_range((start, None))
            parts.setdefault(check_key(key), []).append((index(start), memoryview(value).tobytes()))
        for key, own in parts.items():
            merge(key, self.get(key), own)
        for key, own in parts.items():
            update(self, key, lambda stored, key=key, own=own: [merge(key, stored, own)])  # type: ignore[misc]

    def erase_values(self, keys: Iterable[str]) -> None:
        """Remove several keys. If one of them is invalid, none is removed."""
        self.erase(*keys)

    def list_prefix(self, prefix: str) -> Iterator[str]:
        """Every key that begins with ``prefix``."""
        return iter(self.list(prefix))

    def exists(self, key: str) -> bool:
        """Whether ``key`` has a value."""
        if "open" not in self._own:
            return self.get(key, (0, 1)) is not None
        value = self.open(key)
        if value is not None:
            value.close()
        return value is not None

    def getsize(self, key: str) -> int | None:
        """Size of the value of ``key`` in bytes, or None if there is none."""
        value = self.open(key)
        if value is None:
            return None
        with value:
            return len(value.read(0)) if value.size is None else value.size


for _name in ("open", "erase_prefix", "list_dir", "copy", "exclusive"):
    setattr(Store, _name, GUARDS[_name](getattr(Store, _name)))


def versioned(store: Store, key: str, *, limit: int = NO_LIMIT) -> tuple[Buffer | None, object]:
    """The value of a key, or None, and its version for :meth:`Store.put`; no value is a version, too.

    It is asked of the place itself, not of a cache.

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> store = MemoryStore()
    >>> value, version = versioned(store, "a")
    >>> store.put("a", [b"mine"], if_version=version), store.put("a", [b"yours"], if_version=version)
    (True, False)
    >>> store.get("a")
    b'mine'
    """
    value = store.open(key, (0, None))
    if value is None:
        return None, ABSENT
    with value:
        check_size(value.size or 0, limit)
        data = value.read(0)
        is_served = store.traits.conditional == "service"
        return data, value.version if is_served else digest(data)


def update(store: Store, key: str, change: Change, *, into: Into = None, limit: int = NO_LIMIT) -> None:
    """Replace a value by a function of it, without losing concurrent changes.

    The change may be applied twice if a service's answer is lost while another writer stores a value. A
    change that must not be applied twice, such as counting, needs a mark in the value, or a version.

    Parameters
    ----------
    store : Store
    key : str
    change : callable
        Takes the value, or None without one. Returns the pieces of the new value, None to erase the key, or
        ``UNCHANGED``. It is called again if another writer changed the value first. Its argument is valid
        only during the call.
    into, limit
        As for :meth:`Store.get`.

    Raises
    ------
    ConflictError
        If other writers kept changing the value for :attr:`Traits.conflict_deadline` seconds.

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> store = MemoryStore({"a": b"1"})
    >>> update(store, "a", lambda stored: [stored, b"2"])
    >>> store.get("a")
    b'12'
    """
    store.check_writable()
    # Threads of this process take turns.
    with key_lock(store.identity, check_key(key)):
        if store.traits.conditional == "service":
            _compare_until_done(store, key, change, limit)
            return
        with store.exclusive(key):
            stored = store.get(key, into=into, limit=limit)
            pieces = change(stored)
            if pieces is None:
                if stored is not None:
                    store.erase(key)
            elif not isinstance(pieces, Unchanged):
                store.put(key, pieces)


def _compare_until_done(store: Store, key: str, change: Change, limit: int) -> None:
    """Change a value whose versions the service compares, again and again until no other writer was first."""
    deadline = store.traits.conflict_deadline
    end, longest, attempts = time.monotonic() + deadline, _FIRST_PAUSE, 0
    in_doubt: bytes | None = None  # Value of an attempt whose answer was lost.
    while True:
        stored, version = versioned(store, key, limit=limit)
        if in_doubt is not None and stored is not None and memoryview(stored) == in_doubt:
            return
        pieces = change(stored)
        if isinstance(pieces, Unchanged) or (pieces is None and stored is None):
            return
        attempts += 1
        try:
            if store.put(key, pieces, if_version=version):
                return
        except OutcomeUnknownError:
            in_doubt = None if pieces is None else joined(pieces)
        if time.monotonic() >= end or not pause(random.uniform(0, longest)):
            raise contended(key, store, f"other writers changed it {attempts} times within {deadline:g} s")
        longest = min(2 * longest, _LONGEST_PAUSE)


def called_as(wider: Callable[P, R]) -> Callable[[Callable[..., object]], Callable[P, R]]:
    """Decorate a method of a store: it is called as another one, whose further arguments its guard takes."""
    return lambda method: cast("Callable[P, R]", method)
