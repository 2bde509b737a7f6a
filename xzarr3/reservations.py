"""Reservations: that one write is at work at a place, where values lie there before all of them do.

A reservation is a key beside those of staged values, one for each place. It is made on condition that there
is none, so that of several writers one gets it; where a store cannot set conditions, it is as good as can be.
It says who made it and when. One that was left by a killed process stands in nobody's way once that is known:
at once on the same host, and after a day elsewhere. A write that can be taken up again renews its reservation
while it is going on, so that minutes are enough, and leaves it behind when it is cut off: what lies at the
place is its own as long as nobody else has reserved that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import socket
import threading
import time
import uuid
from typing import Any

from xzarr3._types import Buffer
from xzarr3.errors import ConflictError, NodeExistsError, StoreCapabilityError, StoreError
from xzarr3.stores import Store
from xzarr3.stores.local import STAGED

ABANDONED = 24 * 3600.0
"""Seconds without a sign of life after which what a write has left is nobody's any more."""
SILENT = 300.0
"""Seconds without a sign of life after which a write that gives them again and again is not going on."""
_BEAT = 30.0  # Seconds
_BEATS = 20  # After so many, what lies beside the reservation is renewed as well.
_END_OF_TIME = 2.0**53  # Seconds
_ATTEMPTS = 10

_own: set[str] = set()  # Of the writes of this process that have not ended.


def now() -> bytes:
    """A value that tells when it was stored."""
    return json.dumps({"time": time.time()}).encode()


def age(value: Buffer) -> float:
    """Seconds since a value of :func:`now` was stored; infinite if it is none."""
    return _age(_parsed(value))


def _age(said: dict[str, Any]) -> float:
    """Seconds since something was said; infinite if it does not tell, or tells of a day that is to come."""
    stored = said.get("time")
    if not isinstance(stored, (int, float)) or not abs(stored) < _END_OF_TIME:
        return math.inf
    found = time.time() - stored
    return found if found >= -ABANDONED else math.inf  # Clocks differ, but not by that.


def _parsed(value: Buffer) -> dict[str, Any]:
    try:
        found = json.loads(bytes(value))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@functools.cache
def boot() -> list[str]:
    """This host, and what tells the times apart that its system was started."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return [socket.gethostname(), file.read().strip().decode("ascii")]
    except (OSError, ValueError):  # Other systems do not tell.
        return [socket.gethostname(), ""]


class Reservation:
    """Of one place in a store, for one write.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node that is written.
    plan : str, optional
        Fingerprint of what is written, if it can be taken up again. The reservation is renewed then.
    beside : str, optional
        A key that is renewed with it, now and then.
    key : str, optional
        Where the reservation is made; by default where all writes of the place do.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        plan: str | None = None,
        beside: str | None = None,
        key: str | None = None,
    ) -> None:
        self._store = store
        self._path = path
        self._plan = plan
        self._beside = beside
        self._stopped: threading.Event | None = None
        self._renewing = threading.Lock() if plan is not None else None
        self.left: str | None = None
        """The plan of the write that had the place before, if it can be taken up again."""
        self._owner = uuid.uuid4().hex
        self._made = False  # In this process, just now.
        place = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self.key = f"{STAGED}{place}/owner" if key is None else key

    def _value(self) -> bytes:
        said = {"owner": self._owner, "host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
        if self._plan is not None:
            said["plan"] = self._plan
        return json.dumps(said).encode()

    def plan_there(self) -> str | None:
        """The plan of the write that has reserved the place last, if it can be taken up again."""
        stored = self._store.get_versioned(self.key)[0]
        return None if stored is None else _plan(_parsed(stored))

    def make(self) -> None:
        """Reserve the place.

        Raises
        ------
        NodeExistsError
            If another writer has it.
        """
        for _ in range(_ATTEMPTS):
            stored, version = self._store.get_versioned(self.key)
            if stored is not None and not self._is_own(stored) and _is_live(_parsed(stored)):
                break
            if stored is not None and not self._is_own(stored):
                self.left = _plan(_parsed(stored))
            if self._put(version):
                self._made = True
                if self._plan is not None:
                    self._stopped = threading.Event()
                    beat = threading.Thread(target=self._beat, args=(self._stopped,), daemon=True)
                    beat.name = "xzarr3-reservation"
                    beat.start()
                return
        raise NodeExistsError(
            f"somebody else is writing '/{self._path}' in {self._store}; accepted: another place, or "
            f"waiting; after a writer that was killed on another host, removing key '{self.key}'"
        )

    def _put(self, version: object) -> bool:
        value = self._value()
        _own.add(self._owner)
        try:
            done = self._store.compare_and_set(self.key, version, value)
        except StoreCapabilityError:  # It cannot tell others apart, so it does what it can.
            self._store.set(self.key, value)
            done = True
        return done

    def _beat(self, stopped: threading.Event) -> None:
        beats = 0
        while not stopped.wait(_BEAT):
            beats += 1
            with contextlib.suppress(StoreError):  # Who has lost the place hears of it when all is written.
                if not self._renew(self._value(), stopped):
                    return
                if self._beside is not None and beats % _BEATS == 0 and self._store.exists(self._beside):
                    self._store.set(self._beside, now())

    def _renew(self, value: bytes, stopped: threading.Event | None = None) -> bool:
        """Replace the reservation, if the place is still reserved for this write; returns whether it was."""
        with self._renewing or contextlib.nullcontext():
            stored, version = self._store.get_versioned(self.key)
            if stored is None or not self._is_own(stored) or (stopped is not None and stopped.is_set()):
                return False
            try:
                return self._store.compare_and_set(self.key, version, value)
            except StoreCapabilityError:
                self._store.set(self.key, value)
                return True

    def leave(self) -> None:
        """Say that the write was cut off, and can be taken up again."""
        self._stop()
        _own.discard(self._owner)
        said = {"owner": self._owner, "plan": self._plan, "time": time.time(), "left": True}
        self._renew(json.dumps(said).encode())
        self._made = False

    def _stop(self) -> None:
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def _is_own(self, stored: Buffer) -> bool:
        return _parsed(stored).get("owner") == self._owner

    def holds(self) -> bool:
        """Whether the place is reserved for this write."""
        stored = self._store.get_versioned(self.key)[0]
        return stored is not None and self._is_own(stored)

    def lost(self) -> ConflictError:
        """The error if it is not any more."""
        return ConflictError(
            f"cannot put '/{self._path}' in {self._store} in its place: somebody else has taken it, as this "
            "write seemed to have been given up; accepted: a new call"
        )

    def release(self) -> None:
        """Leave the place to others, if it is reserved for this write."""
        self._stop()
        _own.discard(self._owner)
        with self._renewing or contextlib.nullcontext():
            if (self._made and self._plan is None) or self.holds():
                self._store.erase(self.key)
        self._made = False


def _is_live(said: dict[str, Any]) -> bool:
    """Whether the writer that has made a reservation may still be at work."""
    pid = said.get("pid")
    patience = ABANDONED if _plan(said) is None else SILENT
    if _age(said) > patience or said.get("left") is True:
        return False
    if said.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return True
    if pid == os.getpid():
        return said.get("owner") in _own
    return _runs(pid)


def _plan(said: dict[str, Any]) -> str | None:
    plan = said.get("plan")
    return plan if isinstance(plan, str) else None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # It is not ours.
        return True
    return True
