"""The lease: lets one writer at a time replace a node, change the length of an array, or resume a write.

A lease is a small value under a key of its own. A writer creates it only if the key is absent. The holder
renews it only if no other process has changed it, and removes only its own. The lease names its holder and
counts renewals.

A writer that finds another lease must know whether its holder still lives. If both run on one host, since the
same boot and in the same process namespace, the operating system tells. Otherwise the writer watches the
lease: a living holder changes it every quarter of :data:`PATIENCE` seconds. A lease that stays unchanged for
:data:`PATIENCE` seconds, on the clock of the watching process, may be taken. Clocks of two hosts are never
compared.

This module knows nothing of what the holder writes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from xzarr3._types import Buffer
from xzarr3.commit import machines
from xzarr3.commit.staged import BEGUN, is_top
from xzarr3.errors import (
    ConflictError,
    IncompleteWriteError,
    NodeExistsError,
    OutcomeUnknownError,
    StoreCapabilityError,
    StoreError,
    contended,
    printable,
)
from xzarr3.formats.base import node_prefix
from xzarr3.parallel import parallel_map, pause
from xzarr3.stores.base import Store, versioned
from xzarr3.stores.local.files import staging_folders
from xzarr3.stores.local.names import STAGED
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import ABSENT, ANY
from xzarr3.stores.wrappers import WrapperStore

PATIENCE = 45.0
"""Seconds after which an unrenewed lease may be taken, if nothing else tells that its holder has ended."""
NAME = ".xzarr3-lease"
"""Last part of the key of a lease that is stored at the place of its node."""

SHARED = "-"
"""Follows :data:`NAME` in keys of leases that many hold at a time, before a name of the writer's own."""

SWAPPING = "swapping"
"""State of a place that holds no whole node, as new values are being put in place of the old one."""
TAKING = "taking"
"""State of a place whose values are being taken over to a new node, so that none may change."""

Purpose: TypeAlias = Literal["replace", "resize", "write"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5  # Seconds
_ATTEMPTS = 100
_LARGEST = 2**16  # Bytes of a lease.
_MOST_SEEN = 4096
_ERASED_AT_ONCE = 1000

# Tests replace these: the clocks of this process, and waiting.
_awake: Callable[[], float] = time.monotonic


def _clock() -> float:
    """Seconds that count on while the machine sleeps: a lease runs out meanwhile.

    Who watches the lease of another one asks :data:`_awake`: both may have slept.
    """
    number = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))  # The latter on macOS.
    return time.monotonic() if number is None else time.clock_gettime(number)


_wait: Callable[[float], object] = time.sleep

_live: set[str] = set()  # Owners in this process.
_seen: dict[tuple[object, str], tuple[tuple[object, ...], float]] = {}
"""What leases of other holders said, by store and key, and since when; kept between calls."""


class LeaseLostError(ConflictError):
    """Another writer has taken the lease, or the node it protects was replaced."""


class Whereabouts(NamedTuple):
    """A host, boot and process namespace; processes with equal ones can see each other."""

    host: str
    boot: str
    processes: str


@functools.cache
def boot() -> tuple[str, str]:
    """This host, and an identifier of the current boot."""
    return socket.gethostname(), machines.machine()


def here() -> Whereabouts:
    """The whereabouts of this process."""
    return Whereabouts(*boot(), machines.name_space())


@dataclass(frozen=True)
class Holder:
    """The content of a lease.

    Parameters
    ----------
    owner : str
        Unique name of the holder.
    host, boot, processes : str
        Where the holder's process runs; see :class:`Whereabouts`.
    pid : int
        Process number of the holder.
    started : str
        Start time of the process, as its system counts. Tells it from a later process with the same number.
    purpose : str
        Purpose of the lease.
    plan : str or None
        Fingerprint of the write, if the write can be resumed.
    counter : int
        Number of renewals.
    left : bool
        The write was cut off and no process is resuming it.
    since : str
        When the lease was taken, on the clock of the holder's host. For people to read; never compared.
    state : str
        ``SWAPPING`` while this writer leaves no whole node at the place; otherwise empty.
    top : str
        Key prefix of the staged values.
    path : str
        Path of the node.
    """

    owner: str = ""
    host: str = ""
    boot: str = ""
    processes: str = ""
    pid: int = 0
    started: str = ""
    purpose: str = ""
    plan: str | None = None
    counter: int = 0
    left: bool = False
    since: str = ""
    state: str = ""
    top: str = ""
    path: str = ""

    @classmethod
    def parse(cls, value: Buffer | None) -> Holder:
        """The lease stored in a value; a ``Holder`` without an owner if the value is no lease."""
        try:
            return cls() if value is None else msgspec.convert(json.loads(bytes(value[:_LARGEST])), cls)
        except (ValueError, RecursionError):  # also if a field has another type
            return cls()

    def text(self) -> bytes:
        """The value to store."""
        return json.dumps(asdict(self)).encode()

    @property
    def place(self) -> Whereabouts:
        """Where the holder's process runs."""
        return Whereabouts(self.host, self.boot, self.processes)

    @property
    def is_dead(self) -> bool | None:
        """Whether the holder's process has ended; None if this process cannot tell."""
        if self.left:
            return True
        # Two hosts may share a name, so the boot is compared as well.
        if self.pid <= 0 or not self.boot or self.place != here():
            return None
        started = machines.process_start(self.pid)
        if self.pid == os.getpid() and self.started == started:
            return self.owner not in _live
        if not machines.is_running(self.pid):
            return True
        # The system may hide the start time of another user's process, or fail to tell it with too many open
        # files.
        return None if not (started and self.started) else self.started != started


def lease_key(prefix: str) -> str:
    """The key of the lease of a node whose chunk keys begin with ``prefix``.

    Examples
    --------
    >>> lease_key("ocean/sst/"), lease_key("")
    ('ocean/sst/.xzarr3-lease', '.xzarr3-lease')
    """
    return prefix + NAME


def place_key(store: Store, path: str, prefix: str) -> str:
    """The key of the lease of the place of a node.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node.
    prefix : str
        Prefix of the chunk keys of the node. The lease is stored under it, except in a directory: there the
        place itself is renamed, so the lease has a key outside of it.
    """
    if store.folder is None:
        return lease_key(prefix)
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return lease_key(f"{STAGED}{digest}/")


def keys_above(store: Store, path: str) -> list[str]:
    """The keys of the leases of a place and of all places above it."""
    names = path.split("/") if path else []
    paths = ["/".join(names[:at]) for at in range(len(names) + 1)]
    beside = [lease_key(f"{each}/" if each else "") for each in paths]  # Beside chunks.
    return [*(place_key(store, each, "") for each in paths), *beside] if store.folder is not None else beside


def keeps_leases(store: Store) -> bool:
    """Whether leases are kept in a store.

    Not in a store that cannot erase, as a lease could not be released. Not in a zip either: the lease would
    stay as dead space, and a zip has only one writer. Nor in a transaction, which other writers cannot see.
    """
    return store.erasable and store.readable and store.traits.visible == "at once"


def is_lease(key: str) -> bool:
    """Whether a key is that of a lease; a lease is no part of its node."""
    name = key.rpartition("/")[2]
    return name == NAME or name.startswith(NAME + SHARED)


def holder_at(store: Store, key: str) -> Holder:
    """The content of the lease that is stored under a key, of any holder."""
    return Holder.parse(versioned(store, key)[0])  # a versioned read bypasses caches


class Lease:
    """The lease of one owner.

    Parameters
    ----------
    store : Store
    key : str
        Key of the lease.
    purpose : str
        Purpose of the lease.
    plan : str, optional
        Fingerprint of the write, if the write can be resumed.
    top : str
        Key prefix of the staged values.
    state : str
        State of the place from the moment the lease is taken.
    path : str
        Path of the node.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        purpose: Purpose,
        *,
        plan: str | None = None,
        top: str = "",
        state: str = "",
        path: str = "",
    ) -> None:
        self._store = store
        self.key = key
        self.wanted = Holder(uuid.uuid4().hex, purpose=purpose, plan=plan, top=top, state=state, path=path)
        """What this owner asks for."""
        self.displaced: Holder | None = None
        """The previous lease, if this one displaced it."""
        self.said = self.wanted
        """The content of the lease, as far as this owner knows."""
        self._pid = 0  # of the process that holds the lease; 0 if none does
        self._stored = self._proven = -2 * PATIENCE  # starts of the last requests that stored it, and saw it
        self._renewing = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_renewing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process, the lease is asked for, and never held."""
        self.__dict__.update(state, _renewing=threading.Lock(), _pid=0)

    @property
    def owner(self) -> str:
        """The name under which the lease is held, a new one each time it is taken."""
        return self.said.owner

    # Taking

    def take(self, until: float | None = None) -> bool:
        """Take the lease and start renewing it; returns whether it was taken.

        If this process cannot tell whether the current holder lives, it watches the lease for up to
        :data:`PATIENCE` seconds.

        Parameters
        ----------
        until : float, optional
            Until when to wait for a living holder, on the clock of :func:`time.monotonic`; by default not at
            all.

        Raises
        ------
        StoreCapabilityError
            If the lease is for changing a length and the store cannot tell two writers apart.
        """
        self._pid, self.displaced, before = 0, None, self.owner
        self.said = replace(
            self.wanted,
            owner=uuid.uuid4().hex,
            pid=os.getpid(),
            started=machines.process_start(os.getpid()),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            **here()._asdict(),
        )
        _live.add(self.owner)  # before other threads can see the lease
        _live.discard(before)
        try:
            taken = self._taken(until)
        except StoreCapabilityError:
            _live.discard(self.owner)
            raise
        except BaseException:
            _live.discard(self.owner)  # it has ended: the lease may have been created, and is then released
            self._pid = os.getpid()
            _keep(self)
            raise
        if taken:
            self._pid = os.getpid()
            _keep(self)
        else:
            _live.discard(self.owner)
        return taken

    def _taken(self, until: float | None) -> bool:
        version: object = ABSENT
        free, pause, lost = True, _FIRST_PAUSE, 0
        while True:
            asked = _clock()
            if free and self._put(version):
                break
            lost += free  # another writer was faster
            asked = _clock()
            stored, version = versioned(self._store, self.key)
            found = Holder.parse(stored)
            if found == self.said:  # stored, though no answer came
                break
            is_dead = stored is None or self._is_dead(found, version)
            free = is_dead is True
            if free:
                self.displaced = None if stored is None else found
                self._inherit(found)
            over = until is not None and time.monotonic() >= until
            if is_dead is False and (over or until is None):
                return False
            if free and lost > (1 if over else _ATTEMPTS):
                return False
            if not free or pause > _FIRST_PAUSE:
                _wait(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._stored = self._proven = asked
        _seen.pop((self._store.identity, self.key), None)
        return True

    def _inherit(self, found: Holder) -> None:
        """Keep the state of a swap that a dead holder began, until it is finished."""
        if found.state and self.wanted.purpose != "replace":
            raise IncompleteWriteError(_incomplete(found, self._store, self.key, "array or group"))
        kept = found if found.state == SWAPPING else self.wanted
        self.said = replace(self.said, state=kept.state, top=kept.top)

    def _put(self, version: object) -> bool:
        try:
            return self._replace(version, self.said.text())
        except OutcomeUnknownError:  # the caller reads the stored lease next
            return False

    def _replace(self, version: object, value: bytes | None) -> bool:
        """Store or remove the lease unless another process has changed it; returns whether that was done.

        A store without conditional writes only keeps the threads of this process apart. That is not enough
        for changing the length of an array, so there it is an error.
        """
        try:
            return self._store.put(self.key, None if value is None else [value], if_version=version)
        except StoreCapabilityError:
            if self.wanted.purpose == "resize" and value is not None:
                raise
            with key_lock(self._store.identity, self.key):
                done = versioned(self._store, self.key)[1] == version
                if done and value is None:
                    self._store.erase(self.key)
                elif done and value is not None:
                    self._store.set(self.key, value)
            # The store may have ignored the condition, stored the lease, and only then raised.
            return done or holder_at(self._store, self.key) == Holder.parse(value)

    def _is_dead(self, found: Holder, version: object) -> bool | None:
        """Whether the holder has ended; None if that is not known yet."""
        is_dead = found.is_dead
        if is_dead is not None:
            return is_dead
        now, place = _awake(), (self._store.identity, self.key)
        said = (found.owner, found.counter, None if found.owner else repr(version))
        before, since = _seen.get(place, (None, now))
        if before == said and now >= since:
            return True if now - since >= PATIENCE else None
        if before is None and len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[place] = said, now
        return False if before is not None and before[0] == found.owner else None

    def reserve(self, path: str, until: float | None = None) -> None:
        """Take the lease of a place for a write that creates or replaces its node.

        Parameters
        ----------
        path : str
            Path of the node, for messages.
        until : float, optional
            As in :meth:`take`.

        Raises
        ------
        NodeExistsError
            If a living writer holds the lease.
        """
        if not self.take(until):
            raise NodeExistsError(
                f"another writer is writing '/{path}' in {self._store}; wait until it has ended, or choose "
                f"another path; if it was killed, try again in {PATIENCE:g} s"
            )

    # Holding

    @property
    def may_be_contested(self) -> bool:
        """Whether the previous holder was silent but may only be slow."""
        return self.displaced is not None and self.displaced.is_dead is not True

    @property
    def is_sure(self) -> bool:
        """Whether this process stored the lease so recently that no other writer can have taken it since."""
        return self.is_held and 0 <= _clock() - self._stored < PATIENCE / 2

    def holds(self) -> bool:
        """Ask the store whether the lease is still held."""
        asked = _clock()
        if holder_at(self._store, self.key).owner != self.owner:
            return False
        self._proven = asked
        return True

    def verify(self, path: str) -> None:
        """Ask the store whether the place is still reserved for this write; raises if not.

        Parameters
        ----------
        path : str
            Path of the node, for the message.

        Raises
        ------
        LeaseLostError
            If another writer has taken the lease, or it was removed.
        """
        if not self.holds():
            raise LeaseLostError(
                f"cannot commit '/{path}' in {self._store}: another writer replaced it, because this write "
                f"seemed to have been abandoned, or removed key '{self.key}'; write it again"
            )

    def make_sure(self, path: str) -> None:
        """As :meth:`verify`, but only if this process has not stored the lease recently; it then does so."""
        if not self.is_sure:
            self.renew()
            if not self.is_sure:
                self.verify(path)

    def renew(self) -> None:
        """Renew the lease, so that other writers see that its holder lives.

        Does nothing if another process holds it.
        """
        with self._renewing:
            if self._pid == os.getpid():
                self._change(self.said)

    def _change(self, said: Holder) -> bool:
        """Store new content and count a renewal, if the lease is held; returns whether it was."""
        asked = _clock()
        stored, version = versioned(self._store, self.key)
        found = Holder.parse(stored)
        if found.owner != self.owner:
            return False
        said = replace(said, counter=found.counter + 1)
        try:
            done = self._replace(version, said.text())
        except OutcomeUnknownError:
            done = replace(holder_at(self._store, self.key), counter=said.counter) == said
        if done:
            self.said, self._stored, self._proven = said, asked, asked
        return done

    def say(self, path: str, state: str, top: str | None = None) -> None:
        """Store the state of the place in the lease, if the lease is still held.

        Parameters
        ----------
        path : str
            Path of the node, for the message.
        state : str
            ``SWAPPING``, or empty if the place is whole.
        top : str, optional
            Key prefix of the staged values; by default the one stored before.

        Raises
        ------
        LeaseLostError
            If the lease is no longer held.
        """
        with self._renewing:
            done = self._change(replace(self.said, state=state, top=self.said.top if top is None else top))
        if not done:
            self.verify(path)
            raise LeaseLostError(
                f"cannot change key '{self.key}' of {self._store}: other writers keep changing it"
            )

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lease, as far as it knows."""
        return self._pid == os.getpid()

    # Ending

    def leave(self) -> None:
        """Mark the write as cut off: other writers need not wait, and the write can be resumed."""
        _drop(self)
        _live.discard(self.owner)
        with self._renewing:
            if self._pid == os.getpid():
                self._pid = 0
                self._change(replace(self.said, left=True))

    def release(self) -> None:
        """Remove the lease, if it is held.

        Raises
        ------
        StoreError
            If it could not be removed; that is tried again until this process ends.
        """
        _drop(self)
        try:
            with self._renewing:
                if self._pid != os.getpid():  # a forked child holds no lease
                    return
                try:
                    self._erase()
                except StoreError:
                    _keep(self)
                    raise
                finally:
                    self._proven = -2 * PATIENCE  # other threads may take the lease from now on
                self._pid = 0
        finally:
            # after the removal, which could otherwise hit the lease of a thread that took it
            _live.discard(self.owner)

    @property
    def has_ended(self) -> bool:
        """Whether the lease was released but could not be removed."""
        return self.owner not in _live

    @property
    def _was_just_seen(self) -> bool:
        """Whether no other process can hold the lease yet, as long as no thread of this one takes it."""
        return self.is_sure and 0 <= _clock() - self._proven < PATIENCE / 8 and not self.has_ended

    def _erase(self) -> None:
        """Remove this lease, and no other holder's."""
        store, key = self._store, self.key
        if self._was_just_seen:
            with key_lock(store.identity, key):
                store.erase(key)
            return
        for _ in range(_ATTEMPTS):
            stored, version = versioned(store, key)
            if Holder.parse(stored).owner != self.owner or self._replace(version, None):
                return
        raise ConflictError(f"cannot remove key '{key}' of {store}: other writers kept changing it")


class HeldStore(WrapperStore):
    """A store of keys that changes values only while a lease is held.

    A process may stand still for longer than a lease lasts, as its machine sleeps. What it was about to do
    since would then be done to the node of a successor.
    """

    def __init__(self, store: Store, make_sure: Callable[[], object]) -> None:
        super().__init__(store)
        self._make_sure = make_sure  # raises if the lease was lost

    def __repr__(self) -> str:
        return repr(self.inner)

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        self._make_sure()
        return self.inner.put(key, pieces, if_version=if_version)

    def erase(self, *keys: str) -> None:
        def erase(at: int) -> None:
            self._make_sure()
            self.inner.erase(*keys[at : at + _ERASED_AT_ONCE])

        parallel_map(erase, range(0, len(keys), _ERASED_AT_ONCE), self.concurrency)

    def copy(self, source: str, target: str) -> None:
        self._make_sure()
        self.inner.copy(source, target)


def while_held(store: Store, lease: Lease | None, path: str) -> Store:
    """The store for changes of a place under its lease; in a directory, a unit can be renamed only once."""
    if lease is None or store.folder is not None:
        return store
    return HeldStore(store, partial(lease.make_sure, path))


def release_together(leases: Sequence[Lease]) -> None:
    """Release several leases of a store in one request: those that were just seen to be held.

    Raises
    ------
    StoreError
        If it is unknown whether they were removed; each must then be released on its own.
    """
    with ExitStack() as locked:
        for lease in sorted(leases, key=lambda lease: lease.key):
            locked.enter_context(lease._renewing)
            locked.enter_context(key_lock(lease._store.identity, lease.key))
        ended = [lease for lease in leases if lease.is_held and lease._was_just_seen]  # only now, as all wait
        for lease in ended:
            lease._proven = -2 * PATIENCE  # whatever the request does, other threads may take it from now on
        if ended:
            ended[0]._store.erase_values([lease.key for lease in ended])
        for lease in ended:
            lease._pid = 0
            _drop(lease)
            _live.discard(lease.owner)


def check_complete(store: Store, path: str, what: str, *, to_write: bool = False) -> str:
    """Raise if a node is absent only because a writer is replacing it, or a node above it.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node that was not found.
    what : str
        Description of the node, for the message.
    to_write : bool
        Whether it is to be created, so that a living writer who makes or erases it is one more reason.

    Returns
    -------
    str
        Text to add to the "not found" message: empty, or that leases cannot be read, or that a write of the
        node, or of one above it, can be resumed.

    Raises
    ------
    IncompleteWriteError
        If a lease names such a writer.
    """
    keys = keys_above(store, path)
    try:
        values = store.get_values(keys)
    except StoreError as error:  # some web servers refuse all names that begin with a dot
        return f"; whether a writer is just replacing it cannot be read: {error}"
    resumable = ""
    for key, value in zip(keys, values, strict=True):
        found = Holder.parse(value)
        if found.state or (to_write and _erases(found) and found.is_dead is not True):
            raise IncompleteWriteError(_incomplete(found, store, key, what))
        if found.plan is not None:
            goes_on = "the same call with resume=True writes what is left"
            advice = "wait until it has ended" if found.is_dead is False else goes_on
            resumable = f"; a write with resume=True is not complete, by {_writer(found)}; {advice}"
    return resumable


def _erases(said: Holder) -> bool:
    """Whether a holder erases or moves the node of its place, or makes a new one there: nothing is staged."""
    return said.purpose == "replace" and not said.top


def holders_in(store: Store) -> dict[str, Holder]:
    """The holders of the leases of places in a directory, by key."""
    keys = [lease_key(f"{os.path.basename(folder)}/") for folder in staging_folders(str(store.folder))]
    return dict(zip(keys, map(Holder.parse, store.get_values(keys)), strict=True))


def take_apart(
    store: Store, key: str, path: str, until: float, take: Callable[[], object], give: Callable[[], object]
) -> None:
    """Take the lease of a place in a directory while nobody renames or erases a node above or below it.

    Parameters
    ----------
    store : Store
    key : str
        Key of the lease.
    path : str
        Path of the place.
    until : float
        When to give up, on the clock of :func:`time.monotonic`.
    take, give : callable
        Take the lease, in which others read what happens; and give it away, so that they go on.

    Raises
    ------
    ConflictError
        If others do not end.
    """
    while True:
        take()
        others = (
            said for each, said in holders_in(store).items() if each != key and said.is_dead is not True
        )
        if not any(
            are_related(said.path, path) and (said.state == SWAPPING or _erases(said)) for said in others
        ):
            return
        give()
        if time.monotonic() >= until or not pause(random.uniform(0, _LONGEST_PAUSE)):
            raise contended(
                key, store, f"other writers kept replacing or erasing nodes above or below '/{path}'"
            )


def are_related(one: str, other: str) -> bool:
    """Whether two paths are equal or one is above the other."""
    return node_prefix(one).startswith(node_prefix(other)) or node_prefix(other).startswith(node_prefix(one))


def check_above(store: Store, path: str) -> None:
    """Raise if a writer makes, replaces or erases a node above a path in a store of keys: write nothing then.

    Who makes or erases one has nothing staged. What one who replaces has staged is there until it has come
    to its end, or is forgotten.
    """
    above = path.rpartition("/")[0]
    keys = keys_above(store, above) if path and store.folder is None else []
    for key, said in zip(keys, parallel_map(partial(holder_at, store), keys, store.concurrency), strict=True):
        if said.is_dead is True:
            continue
        if _erases(said):
            raise IncompleteWriteError(
                f"cannot write '/{path}' to {store}: a group above it is being made or erased by "
                f"{_writer(said)}, as key '{printable(key)}' says; wait until it has ended"
            )
        if said.state and is_top(said.top) and store.exists(f"{said.top}{BEGUN}"):
            raise IncompleteWriteError(_incomplete(said, store, key, f"group '/{above}' to write to"))


def _writer(found: Holder) -> str:
    """The writer that holds a lease, and whether it is still at work."""
    who = f"process {found.pid} of host {found.host!r}" if found.host else "another writer"
    is_dead = found.is_dead
    is_here = found.place == here() and found.pid == os.getpid()
    if is_here:
        who = f"this process, {who}"
    # A process that still runs, but whose write has ended, "has failed".
    ended = "has failed" if found.left or is_here else "has ended"
    end = ended if is_dead else "is running" if is_dead is False else "may be running"
    return f"{printable(who)}, which began at {printable(found.since)} and {end}"


def _incomplete(found: Holder, store: Store, key: str, what: str) -> str:
    if found.is_dead is False:
        advice = "wait until it has ended"
    else:
        advice = "call xzarr3.recover(store), or write with mode 'w', which completes what it began"
    return (
        f"no {what} in {store} yet: its values are being put in place by {_writer(found)}, as key "
        f"'{printable(key)}' says; {advice}"
    )


# Renewing: one thread for each lease, so that a slow store does not delay the leases of others.

_kept: dict[Lease, threading.Event] = {}
"""The leases that this process renews, with what ends it; a forked child has no such threads."""


def _keep(lease: Lease) -> None:
    _kept[lease] = ended = threading.Event()
    threading.Thread(target=_renew, args=(lease, ended), name="xzarr3-lease", daemon=True).start()


def _drop(lease: Lease) -> None:
    ended = _kept.pop(lease, None)
    if ended is not None:
        ended.set()


def _renew(lease: Lease, ended: threading.Event) -> None:
    while not ended.wait(PATIENCE / 4) and _kept.get(lease) is ended:
        # A writer that loses its lease because the store does not answer gets the error at its end.
        with suppress(StoreError):
            if lease.has_ended:
                lease.release()
            else:
                lease.renew()
