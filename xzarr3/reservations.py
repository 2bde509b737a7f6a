"""Reservations: that one write is at work at a place, where values lie there before all of them do.

A reservation is a key beside those of staged values, one for each place. It is made on condition that there
is none, so that of several writers one gets it; where a store cannot set conditions, it is as good as can be.
It says who made it and when. One that was left by a killed process stands in nobody's way once that is known:
at once on the same host, and after a day elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
from typing import Any

from xzarr3._types import Buffer
from xzarr3.errors import ConflictError, NodeExistsError, StoreCapabilityError
from xzarr3.stores import Store
from xzarr3.stores.local import STAGED

ABANDONED = 24 * 3600.0
"""Seconds without a sign of life after which what a write has left is nobody's any more."""
_ATTEMPTS = 10

_own: set[str] = set()  # Of the writes of this process that have not ended.


def now() -> bytes:
    """A value that tells when it was stored."""
    return json.dumps({"time": time.time()}).encode()


def age(value: Buffer) -> float:
    """Seconds since a value of :func:`now` was stored; infinite if it is none."""
    stored = _parsed(value).get("time")
    return time.time() - stored if isinstance(stored, (int, float)) else float("inf")


def _parsed(value: Buffer) -> dict[str, Any]:
    try:
        found = json.loads(bytes(value))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class Reservation:
    """Of one place in a store, for one write.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node that is written.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path
        self._owner = uuid.uuid4().hex
        self._made = False  # In this process, just now.
        place = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self.key = f"{STAGED}{place}/owner"

    def _value(self) -> bytes:
        said = {"owner": self._owner, "host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
        return json.dumps(said).encode()

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
            if self._put(version):
                self._made = True
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
        _own.discard(self._owner)
        if self._made or self.holds():
            self._store.erase(self.key)
        self._made = False


def _is_live(said: dict[str, Any]) -> bool:
    """Whether the writer that has made a reservation may still be at work."""
    stored, pid = said.get("time"), said.get("pid")
    if not isinstance(stored, (int, float)) or time.time() - stored > ABANDONED:
        return False
    if said.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return True
    if pid == os.getpid():
        return said.get("owner") in _own
    return _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # It is not ours.
        return True
    return True
