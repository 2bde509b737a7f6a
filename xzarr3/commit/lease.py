"""The lease: one writer at a time replaces a node, changes the length of an array, or goes on with a write.

A lease is a small value under a key of its own. It is made on condition that there is none, renewed on
condition that nobody else has changed it, and taken away by its owner only. It says who that is, and counts.

Whoever finds the lease of another one has to know whether that writer still lives. On the same host, since
the same start of its system and among the same processes, the system tells. Elsewhere the lease is watched: a
writer that lives changes it every quarter of :data:`PATIENCE` seconds, so that one which stayed as it was
for :data:`PATIENCE` seconds, on the clock of the one who watches, is nobody's any more. No clocks of two
hosts are compared to know that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import queue
import random
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from xzarr3._types import Buffer
from xzarr3.errors import (
    ConflictError,
    IncompleteWriteError,
    NodeExistsError,
    OutcomeUnknownError,
    StoreCapabilityError,
    StoreError,
    printable,
)
from xzarr3.parallel import spread
from xzarr3.stores.base import ABSENT, Store
from xzarr3.stores.local import platform
from xzarr3.stores.local.folders import STAGED
from xzarr3.stores.locks import key_lock

PATIENCE = 45.0
"""Seconds after which a lease that was not renewed is nobody's any more, if nothing else tells."""
NAME = ".xzarr3-lease"
"""The last name of the key of a lease that lies where the node is which it is about."""

SWAPPING, CLOSING, ERASING, IN_PLACE = "swapping", "closing", "erasing", "in place"
"""States of a place whose documents are away: new values are copied to it; all but the last documents are
there; what is replaced is being erased; or new values are computed and stored there."""
SWAPS = (SWAPPING, CLOSING)

Purpose: TypeAlias = Literal["replace", "resize", "write"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5  # Seconds
_ATTEMPTS = 100
_LARGEST = 2**16  # Bytes of a lease.
_MOST_SEEN = 4096

# What a test replaces: the clock of this process, and waiting.
_clock: Callable[[], float] = time.monotonic
_wait: Callable[[float], object] = time.sleep

_live: set[str] = set()  # Owners in this process.
_seen: dict[tuple[object, str], tuple[object, float]] = {}
"""Leases of others by store and key, as they were found, and since when. Each wait may be a short one."""


class LeaseLostError(ConflictError):
    """Somebody else has taken a lease, or what it is about was replaced."""


@dataclass(frozen=True)
class Whereabouts:
    """Where processes can see each other: a host, a start of its system, and a name space of processes."""

    host: str
    boot: str
    processes: str


@functools.cache
def boot() -> tuple[str, str]:
    """This host, and what tells the times apart that its system was started."""
    return socket.gethostname(), platform.machine()


def here() -> Whereabouts:
    """Where this process is."""
    return Whereabouts(*boot(), platform.name_space())


@dataclass(frozen=True)
class Holder:
    """What a lease says.

    Parameters
    ----------
    owner : str
        Whose it is; of two leases, never the same.
    host, boot, processes : str
        Where its process is, see :class:`Whereabouts`.
    pid : int
        The number of the process there.
    started : str
        When the process began, as its system counts, so that another one with its number is not taken for it.
    purpose : str
        What the lease is for.
    plan : str or None
        Fingerprint of what is written, if that can be taken up again.
    counter : int
        How often it was renewed.
    left : bool
        The write was cut off, and nobody goes on with it now.
    term : str
        What the times have in common that copies of one lease held it, one right after the other.
    since : str
        When it was taken, on the clock of its host: for people to read, never compared.
    state : str
        ``SWAPPING``, ``CLOSING``, ``ERASING`` or ``IN_PLACE`` while the place holds no whole node, because of
        this writer.
    top : str
        What the keys begin with under which its values lie until they take their place, or its journal does.
    renewed : float
        When it was renewed last, on the clock of its host: what nobody has taken up for a day goes.
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
    term: str = ""
    since: str = ""
    state: str = ""
    top: str = ""
    renewed: float = 0.0

    @classmethod
    def parse(cls, value: Buffer | None) -> Holder:
        """What a value says; one without an owner if it is no lease."""
        try:
            said = {} if value is None else json.loads(bytes(memoryview(value)[:_LARGEST]))
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(said, dict):
            return cls()
        kinds: dict[str, Any] = {
            name: type(default) if default is not None else str for name, default in asdict(cls()).items()
        }
        return cls(**{name: each for name, each in said.items() if type(each) is kinds.get(name)})

    def text(self) -> bytes:
        """The value of a lease that says this."""
        return json.dumps(asdict(self)).encode()

    @property
    def is_dead(self) -> bool | None:
        """Whether its process has ended; None if this process cannot tell."""
        if self.left:
            return True
        # Two hosts may have one name.
        if self.pid <= 0 or not self.boot or Whereabouts(self.host, self.boot, self.processes) != here():
            return None
        started = platform.process_start(self.pid)
        if self.pid == os.getpid() and self.started == started:
            return self.owner not in _live
        if not platform.is_running(self.pid):
            return True
        # Of the processes of others, and where too many files are open, the system may not tell.
        return None if not (started and self.started) else self.started != started


def _family(owner: str) -> str:
    """What the owners have in common that a lease and its copies are, each time that they take it."""
    return owner.partition(".")[0]


def lease_key(prefix: str) -> str:
    """The key of the lease of a node, by what the keys of its chunks begin with, or would.

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
        What the keys of its chunks begin with, or would. It lies there, but not in a directory, of which the
        place is renamed.
    """
    if not store.renames_trees:
        return lease_key(prefix)
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return lease_key(f"{STAGED}{digest}/")


def keys_above(store: Store, path: str) -> list[str]:
    """The keys that the leases of a place have, and of those above it."""
    names = path.split("/") if path else []
    paths = ["/".join(names[:at]) for at in range(len(names) + 1)]
    above = [f"{each}/" for each in paths[1:]]
    # Chunks lie there, or in the draft of version 3 below one more name.
    keys = [lease_key(prefix) for prefix in ("", *above, *(f"data/root/{each}" for each in above))]
    return [*(place_key(store, each, "") for each in paths), *keys] if store.renames_trees else keys


def keeps_leases(store: Store) -> bool:
    """Whether leases are kept in a store.

    One could not be taken back where nothing is erased, and would stay as dead space in a zip, of which there
    is one writer.
    """
    return store.erasable and store.readable and not store.publishes_at_close


def is_lease(key: str) -> bool:
    """Whether a key is that of the lease of a node, which is no part of the node."""
    return key.rpartition("/")[2] == NAME


class Lease:
    """The lease of one owner.

    Parameters
    ----------
    store : Store
    key : str
        Where it is kept.
    purpose : str
        What it is for.
    plan : str, optional
        Fingerprint of what is written, if that can be taken up again.
    top : str
        What the keys begin with under which values lie until they take their place.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        purpose: Purpose,
        *,
        plan: str | None = None,
        top: str = "",
    ) -> None:
        self._store = store
        self.key = key
        self._purpose = purpose
        self.plan = plan
        self.top = top
        """Where this owner has its values; that of a writer that was killed within a swap may be said."""
        self.displaced: Holder | None = None
        """Whose lease was there before, and was taken away for this one."""
        self.continues = False
        """Whether a copy had it before, which had not ended it."""
        self.said = Holder(owner=uuid.uuid4().hex)
        """What the lease says, as far as this owner knows."""
        self._pid = 0  # Of the process that holds it; 0 if none does.
        self._proven = -2 * PATIENCE  # When it was asked that showed last that the lease is held.
        self._shared = False  # There may be copies of it, in other processes.
        self._renewing = threading.Lock()
        self._owned_by: weakref.ref[object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        self._shared = True
        return {**self.__dict__, "_renewing": None, "_owned_by": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _renewing=threading.Lock(), _pid=os.getpid(), _proven=-2 * PATIENCE)

    @property
    def owner(self) -> str:
        """Whose lease it is.

        Each time it is taken that has another name, after what all copies of this have in common: a late end
        of one time does not end another one. A copy that did not take it itself goes by what they have in
        common.
        """
        return self.said.owner

    @property
    def term(self) -> str:
        """What tells the time that it is held from one after its end; a copy that takes it over goes on."""
        return self.said.term

    def there(self) -> Holder:
        """What the lease says that is there now, whoever has it."""
        return Holder.parse(self._store.get_versioned(self.key)[0])

    # Taking

    def take(self, until: float | None = None) -> bool:
        """Take the lease, and renew it from now on; returns whether it was taken.

        If nobody can tell whether the one who has it still lives, it is watched for up to :data:`PATIENCE`
        seconds.

        Parameters
        ----------
        until : float, optional
            How long to wait for a writer that lives, on the clock of :func:`time.monotonic`; by default not
            at all.

        Raises
        ------
        StoreCapabilityError
            If it is to change a length, and the store cannot tell two writers apart.
        """
        self._begin()
        try:
            taken = self._taken(until)
        except StoreCapabilityError:
            _live.discard(self.owner)
            raise
        except BaseException:
            _live.discard(self.owner)
            self._pid = os.getpid()
            _keep(self)  # It may have been made, or still be: then it is taken away.
            raise
        if not taken:
            _live.discard(self.owner)
        return taken

    def _begin(self) -> None:
        place = here()
        before = self.owner
        said = Holder(
            owner=f"{_family(before)}.{uuid.uuid4().hex}",
            host=place.host,
            boot=place.boot,
            processes=place.processes,
            pid=os.getpid(),
            started=platform.process_start(os.getpid()),
            purpose=self._purpose,
            plan=self.plan,
            term=uuid.uuid4().hex,
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            top=self.top,
            renewed=time.time(),
        )
        self._pid = 0
        self.continues = False
        self.displaced = None
        self._owned_by = None  # That was of an earlier time.
        _live.add(said.owner)  # Before it is there to be seen.
        self.said = said
        _live.discard(before)

    def _taken(self, until: float | None) -> bool:
        version: object = ABSENT
        free, pause, lost = True, _FIRST_PAUSE, 0
        term = self.said.term
        while True:
            asked = _clock()
            if free and self._put(version):
                self._held(asked)
                return True
            lost += free  # Others were faster, each time.
            asked = _clock()
            stored, version = self._store.get_versioned(self.key)
            found = Holder.parse(stored)
            if found == self.said:  # No answer came.
                self._held(asked)
                return True
            # As a copy of this has made it, in a process that was lost.
            is_own = self._follow(found, term)
            is_dead = True if is_own or stored is None else self._is_dead(found, version)
            free = is_dead is True
            if free:
                self.displaced = None if stored is None or is_own else found
                self._inherit(found)
            over = until is not None and time.monotonic() >= until
            if is_dead is False and (over or until is None):
                return False
            if free and lost > (1 if over else _ATTEMPTS):
                return False
            if not free or pause > _FIRST_PAUSE:
                _wait(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _follow(self, found: Holder, term: str) -> bool:
        """Go on with the term of a lease if a copy of this has it; otherwise, with one of one's own."""
        self.continues = bool(found.owner) and _family(found.owner) == _family(self.owner)
        self.said = replace(self.said, term=found.term if self.continues else term)
        return self.continues

    def _inherit(self, found: Holder) -> None:
        """Go on saying what a dead writer has said of a place that is not whole."""
        if found.state and self._purpose != "replace":
            raise IncompleteWriteError(_incomplete(found, self._store, self.key, "array or group"))
        top = found.top if found.state in SWAPS else self.top
        self.said = replace(self.said, state=found.state, top=top)

    def _put(self, version: object) -> bool:
        try:
            return self._replace(version, self.said.text())
        except OutcomeUnknownError:  # Whatever it was, what is there is looked at now.
            return False

    def _replace(self, version: object, value: bytes | None) -> bool:
        """Store the lease, or take it away, where nobody has changed it; returns whether nobody had.

        A store that cannot do so on condition keeps the threads of this process apart, and nobody else. That
        is not enough for those who change the length of an array, so they get an error.
        """
        try:
            return self._store.compare_and_set(self.key, version, value)
        except StoreCapabilityError:
            if self._purpose == "resize" and value is not None:
                raise
            done = Store._compare_and_set(self._store, self.key, version, value)
            # That it takes no heed of conditions may have shown when it had stored the lease.
            return done or self.there() == Holder.parse(value)

    def _is_dead(self, found: Holder, version: object) -> bool | None:
        """Whether the writer of a lease has ended; None if that is not known yet."""
        # Who appends by a plan has the lease of the plan as well, so nobody else carries it out.
        if self._purpose == "resize" and self.plan is not None and found.plan == self.plan:
            return True
        is_dead = found.is_dead
        if is_dead is not None:
            return is_dead
        now, place = _clock(), (self._store.identity, self.key)
        before = _seen.get(place)
        said = (found.owner, found.counter, None if found.owner else repr(version))
        if before is not None and before[0] == said and now >= before[1]:
            return True if now - before[1] >= PATIENCE else None
        if before is None and len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[place] = said, now
        changed = before is not None and isinstance(before[0], tuple) and before[0][0] == found.owner
        return False if changed else None

    def _held(self, asked: float) -> None:
        self._proven = asked
        self._pid = os.getpid()
        self._shared = False
        _seen.pop((self._store.identity, self.key), None)
        _keep(self)

    def reserve(self, path: str, until: float | None = None) -> None:
        """Take the lease of a place for a write that replaces what is there, or makes it.

        Parameters
        ----------
        path : str
            Path of the node, for messages.
        until : float, optional
            As in :meth:`take`.

        Raises
        ------
        NodeExistsError
            If another writer has it, and lives.
        """
        if not self.take(until):
            raise NodeExistsError(
                f"somebody else is writing '/{path}' in {self._store}; accepted: another place, or waiting "
                f"until that has ended; a writer that was killed is noticed within {PATIENCE:g} s"
            )

    # Holding

    @property
    def may_be_contested(self) -> bool:
        """Whether it was taken from somebody who was silent, but may only have been slow."""
        return self.displaced is not None and self.displaced.is_dead is not True

    @property
    def is_sure(self) -> bool:
        """Whether it was seen so lately to be held that nobody can have taken it since."""
        return 0 <= _clock() - self._proven < PATIENCE / 2

    def holds(self) -> bool:
        """Ask the store whether the lease is still held."""
        asked = _clock()
        if not self._is_own(self._store.get_versioned(self.key)[0]):  # Not what a cache remembers.
            return False
        self._proven = asked
        return True

    def _is_own(self, stored: Buffer | None) -> bool:
        found = "" if stored is None else Holder.parse(stored).owner
        return found == self.owner or found.startswith(f"{self.owner}.")

    def verify(self, path: str) -> None:
        """Ask the store whether a place is still reserved for this write.

        Parameters
        ----------
        path : str
            Path of the node, for the message.

        Raises
        ------
        LeaseLostError
            If it is not.
        """
        if not self.holds():
            raise LeaseLostError(
                f"cannot put '/{path}' in {self._store} in its place: somebody else has taken it, as this "
                f"write seemed to have been given up, or has removed key '{self.key}'; accepted: a new call"
            )

    def renew(self) -> None:
        """Tell others that the owner is alive; the lease of another one stays as it is."""
        with self._renewing:
            if self._pid == os.getpid():
                self._change(self.said)

    def _change(self, said: Holder) -> bool:
        """Say this in the lease, and count, if it is held; returns whether it was."""
        asked = _clock()
        stored, version = self._store.get_versioned(self.key)
        if not self._is_own(stored):
            return False
        # A copy of this counts, too.
        said = replace(said, counter=Holder.parse(stored).counter + 1, renewed=time.time())
        try:
            done = self._replace(version, said.text())
        except OutcomeUnknownError:
            done = replace(self.there(), counter=said.counter, renewed=said.renewed) == said
        if done:
            self.said, self._proven = said, asked
        return done

    def say(self, path: str, state: str, top: str | None = None) -> None:
        """Tell all who look what becomes of the place, on condition that the lease is still held.

        Parameters
        ----------
        path : str
            Path of the node, for the message.
        state : str
            ``SWAPPING``, ``CLOSING``, ``ERASING``, ``IN_PLACE``, or nothing if the place is whole.
        top : str, optional
            What the keys of its values begin with; by default what was said before.

        Raises
        ------
        LeaseLostError
            If it is not held any more.
        """
        with self._renewing:
            done = self._change(replace(self.said, state=state, top=self.said.top if top is None else top))
        if not done:
            self.verify(path)
            raise LeaseLostError(f"cannot change key '{self.key}' of {self._store}: others keep changing it")

    @property
    def is_held(self) -> bool:
        """Whether this process holds it, as far as it knows."""
        return self._pid == os.getpid()

    def take_anew(self) -> None:
        """Hold it by another name, so that a copy of this in another process does not.

        Raises
        ------
        StoreError
        """
        with self._renewing:
            if not self._pid:
                return
            before, said = self.owner, replace(self.said, owner=uuid.uuid4().hex)
            _live.add(said.owner)
            try:
                if self._change(said):
                    self._shared = False
            finally:
                _live.discard(before if self.owner == said.owner else said.owner)

    def go_on(self, holder: object) -> None:
        """Renew the lease from now on in this process, which has got a copy of it; see :meth:`ends_with`."""
        _live.add(self.owner)
        _keep(self)
        self.ends_with(holder)

    def ends_with(self, holder: object) -> None:
        """Give the lease up when nothing refers to an object any more."""
        self._owned_by = weakref.ref(holder)
        weakref.finalize(holder, _look_again, self._store.identity).atexit = False

    @property
    def is_given_up(self) -> bool:
        """Whether the object is gone that it was to end with."""
        return self._owned_by is not None and self._owned_by() is None

    # Ending

    def abandon(self) -> None:
        """Nobody here goes on with the write, of which nobody has said how it ended."""
        if self._shared:  # Another process may go on with it, which renews the lease.
            self._stop(pid=0)
        elif self.plan is not None:
            self.leave()
        else:
            self.release()

    def leave(self) -> None:
        """Say that the write was cut off, so that nobody waits for it, and it can be taken up again."""
        self._stop(left=True)

    def _stop(self, **said: Any) -> None:
        """Renew the lease no more, and say so in it; it stays."""
        self._end()
        with self._renewing:
            if self._pid == os.getpid():
                self._pid = 0
                self._change(replace(self.said, **said))

    def release(self) -> None:
        """Give the lease to others, if it is held.

        Raises
        ------
        StoreError
            If it could not be taken away; that is tried again until this process ends.
        """
        _drop(self)
        try:
            with self._renewing:
                if self._pid != os.getpid():  # A child that was forked has none.
                    return
                try:
                    self._erase()
                except StoreError:
                    _keep(self)
                    raise
                finally:
                    self._proven = -2 * PATIENCE  # Others in this process may take it from now on.
                self._pid = 0
        finally:
            _live.discard(self.owner)  # After it is gone, so that nobody's else is taken for it.

    def _end(self) -> None:
        _drop(self)
        _live.discard(self.owner)

    @property
    def has_ended(self) -> bool:
        """Whether it is only there because it could not be taken away."""
        return self.owner not in _live

    def _was_just_seen(self) -> bool:
        """Whether the lease cannot be anybody else's yet if no thread here takes it either."""
        is_fresh = 0 <= _clock() - self._proven < PATIENCE / 8
        return is_fresh and not self._shared and not self.has_ended

    def _erase(self) -> None:
        """Take the lease away, and no other one."""
        store, key = self._store, self.key
        if self._was_just_seen():
            with key_lock(store.identity, key):
                store.erase(key)
            return
        for _ in range(_ATTEMPTS):
            stored, version = store.get_versioned(key)
            if not self._is_own(stored) or self._replace(version, None):
                return
        raise ConflictError(f"cannot remove key '{key}' of {store}: others kept changing it")


def release_together(leases: Sequence[Lease]) -> None:
    """Give those of several leases in a store to others that were just seen to be held, all at once.

    Raises
    ------
    StoreError
        If nobody knows whether they were taken away, so that each has to be looked at.
    """
    with contextlib.ExitStack() as kept:
        ended = []
        for lease in sorted(leases, key=lambda lease: lease.key):
            kept.enter_context(lease._renewing)
            if lease._pid == os.getpid():
                kept.enter_context(key_lock(lease._store.identity, lease.key))
                ended.append(lease)
        ended = [lease for lease in ended if lease._was_just_seen()]  # Once nothing is waited for any more.
        for lease in ended:
            lease._proven = -2 * PATIENCE  # Whatever becomes of the request, others may take it from now on.
        if ended:
            ended[0]._store.erase_values([lease.key for lease in ended])
        for lease in ended:
            lease._pid = 0
    for lease in ended:
        lease._end()


def check_complete(store: Store, path: str, what: str) -> str:
    """See to it that a node is not absent because somebody is just replacing it, or one above it.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node that was not found.
    what : str
        The node, for the message.

    Returns
    -------
    str
        What the message about its absence is to add: nothing, or that leases cannot be read.

    Raises
    ------
    IncompleteWriteError
        If a lease says so.
    """
    keys = keys_above(store, path)
    try:
        values = store.get_values(keys)
    except StoreError as error:  # Some web servers refuse all names that begin with a dot.
        return f"; whether somebody is just replacing it cannot be read: {error}"
    for key, value in zip(keys, values, strict=True):
        found = Holder.parse(value)
        if found.state:
            raise IncompleteWriteError(_incomplete(found, store, key, what))
    return ""


def _incomplete(found: Holder, store: Store, key: str, what: str) -> str:
    who = f"process {found.pid} of host {found.host!r}" if found.host else "somebody"
    doing = "being put in place" if found.state in SWAPS else "being replaced in place"
    is_dead = found.is_dead
    is_here = Whereabouts(found.host, found.boot, found.processes) == here() and found.pid == os.getpid()
    if is_here:
        who = f"this process, {who}"
    # It may do something else by now.
    ended = "has failed" if found.left or is_here else "has ended"
    end = ended if is_dead else "is running" if is_dead is False else "may be running"
    if found.state not in SWAPS:
        accepted = "waiting until it has ended" if not is_dead else "writing all of it again with mode 'w'"
    elif is_dead is False:
        accepted = "waiting until it has ended"
    else:
        accepted = "xzarr3.recover(store), or another write with mode 'w', which finish what it began"
    return (
        f"no {what} in {store} yet: its values are {doing} by {printable(who)}, which began at "
        f"{printable(found.since)} and {end}, as key '{printable(key)}' says; accepted: {accepted}"
    )


# Renewing: a thread for each store, so that one which is slow keeps no other waiting.


class _Keeper:
    """The thread that renews the leases in one store, while there are any."""

    def __init__(self, identity: object) -> None:
        self.leases: set[Lease] = set()
        self.wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._identity = identity

    def start(self) -> None:
        threading.Thread(target=self._run, name="xzarr3-lease", daemon=True).start()

    def _run(self) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                self.wake.get(timeout=PATIENCE / 4)
            with _guard:
                leases = list(self.leases)
                if not leases:
                    if _keepers.get(self._identity) is self:
                        del _keepers[self._identity]
                    return
            spread(_tend, leases, max(1, leases[0]._store.concurrency))
            del leases


def _tend(lease: Lease) -> None:
    # Who loses a lease because the store does not answer hears of it when its write is to end.
    with contextlib.suppress(StoreError):
        if lease.has_ended:
            lease.release()
        elif lease.is_given_up:
            lease.abandon()
        else:
            lease.renew()


_guard = threading.Lock()
_keepers: dict[object, _Keeper] = {}


def _keep(lease: Lease) -> None:
    identity = lease._store.identity
    with _guard:
        keeper = _keepers.get(identity)
        is_new = keeper is None
        if keeper is None:
            keeper = _keepers[identity] = _Keeper(identity)
        keeper.leases.add(lease)
    if is_new:
        keeper.start()


def _drop(lease: Lease) -> None:
    with _guard:
        keeper = _keepers.get(lease._store.identity)
        if keeper is not None:
            keeper.leases.discard(lease)


def _look_again(identity: object) -> None:
    """Called wherever an object may be removed, so it must wait for nothing."""
    keeper = _keepers.get(identity)
    if keeper is not None:
        keeper.wake.put(None)


def _forked() -> None:
    """A forked child owns no leases, and must not wait for a thread of its parent."""
    global _guard
    _guard = threading.Lock()
    _keepers.clear()
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
