"""Writes that can be taken up again: what a plan is, and what a killed one leaves.

All that such a write leaves lies below a name made of the fingerprint of its plan, so that the next call with
the same plan finds it; see :mod:`xzarr3.dask.journal` and :mod:`xzarr3.commit.replace`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xzarr3._types import Buffer
from xzarr3.commit.lease import Lease, lease_key
from xzarr3.commit.leftovers import now
from xzarr3.commit.length import clear_left, left_with
from xzarr3.errors import StoreCapabilityError, StoreError
from xzarr3.stores import Store
from xzarr3.stores.local import STAGED

_ABOUT, _BEGUN = "about", "begun"
_NAME = re.compile(f"{re.escape(STAGED)}[0-9a-f]{{32}}", re.ASCII)
_LARGEST = 2**24  # Bytes of the list of moves.


@dataclass(frozen=True)
class Plan:
    """What is written, as far as it tells one write from another.

    Parameters
    ----------
    fingerprint : str
        Of everything that decides which bytes are stored where.
    documents : mapping of str to bytes
        The documents of the node by key; where these are, the write had come to its end.
    """

    fingerprint: str
    documents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def top(self) -> str:
        """What all keys begin with that the write leaves beside the values."""
        return f"{STAGED}{self.fingerprint}/"

    @property
    def journal(self) -> str:
        """What the keys of its journal begin with."""
        return f"{self.top}journal/"


def check_resumable(store: Store) -> None:
    """Refuse a store in which a write cannot be taken up again.

    Raises
    ------
    StoreCapabilityError
    """
    if store.publishes_at_close:
        lacks = "keeps nothing of a write that was cut off"
    elif not store.readable or not store.listable:
        lacks = "cannot be read and listed"
    elif not store.erasable:
        lacks = "cannot erase"
    else:
        return
    raise StoreCapabilityError(
        f"resume=True needs a journal beside the values, but {store} {lacks}; accepted: a directory, or "
        "another store that can be read, listed, written and erased; or resume=False"
    )


def _parsed(value: Buffer | None) -> dict[str, Any]:
    try:
        said = {} if value is None else json.loads(bytes(value))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


class Continuation:
    """A write to arrays that are there, which goes on where it was cut off if these are still the same.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node that is written, for messages.
    plan : Plan
    keys : iterable of str
        Keys of the documents that stay as they are.
    grown : iterable of str
        Keys of the leases of arrays, which the write has from its beginning to its end.
    places : JSON
        Where values are written, as far as the plan does not tell.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        plan: Plan,
        keys: Iterable[str],
        grown: Iterable[str] = (),
        places: Any = None,
    ) -> None:
        self._store = store
        self._path = path
        self._plan = plan
        self._keys = sorted(keys)
        self._grown = sorted(grown)
        self._places = places
        self._stamp = ""
        self.lease = Lease(
            store,
            lease_key(plan.top),
            "write",
            plan=plan.fingerprint,
            beside=(f"{plan.top}{_BEGUN}", now),
        )
        """What keeps others from doing the same."""

    def noted(self) -> dict[str, Any]:
        """What an earlier write of this plan has noted; empty if there was none."""
        return _parsed(self._store.get(f"{self._plan.top}{_ABOUT}", (0, _LARGEST)))

    def begin(self) -> None:
        """Keep others from doing the same, and forget what was noted of arrays that others have changed.

        Raises
        ------
        NodeExistsError
            If the same write is still going on.
        """
        store, plan = self._store, self._plan
        self.lease.reserve(self._path)
        try:
            noted = self.noted() if store.exists(f"{plan.top}{_BEGUN}") else {}
            self._stamp = self._stamped()
            same = noted.get("stamp") == self._stamp and noted.get("places") == self._places
            for key in self._grown:
                same = left_with(store, key, plan.fingerprint) and same
            if not same:
                store.erase_prefix(plan.journal)
            if not self._grown:
                self.note()
            store.set(f"{plan.top}{_BEGUN}", now())
        except BaseException:
            self.lease.leave()
            raise

    def note(self, *, ending: bool = False) -> None:
        """Note what can be told of this write now.

        Parameters
        ----------
        ending : bool
            All values are written, and documents are about to tell of them.
        """
        said = {
            "path": self._path,
            "stamp": self._stamp,
            "places": self._places,
            "ending": ending,
        }
        self._store.set(f"{self._plan.top}{_ABOUT}", json.dumps(said).encode())

    def ending(self) -> None:
        """Note that documents are about to tell of all values."""
        if self._grown:
            self.note(ending=True)

    def _stamped(self) -> str:
        """What changes when somebody changes one of the documents, or replaces an array."""
        store = self._store
        versions = [(store.version(key), store.get_versioned(key)[1]) for key in self._keys]
        return hashlib.blake2b(repr(versions).encode(), digest_size=16).hexdigest()

    def check(self) -> None:
        """See to it that it is still this write that may go on.

        Raises
        ------
        ConflictError
        """
        self.lease.verify(self._path)

    def clear(self) -> None:
        """Take away what a write of this plan has left, which had come to its end."""
        for key in self._grown:
            clear_left(self._store, key, self._plan.fingerprint)

    def end(self) -> None:
        """All is written."""
        self._store.erase_prefix(self._plan.journal)
        self._store.erase(f"{self._plan.top}{_ABOUT}")
        self._store.erase(f"{self._plan.top}{_BEGUN}")
        self.lease.release()

    def leave(self, error: BaseException) -> None:
        """It ends in an error, and can be taken up again."""
        try:
            self.lease.leave()
        except StoreError as another:
            error.add_note(f"others may have to wait for minutes, as this write seems to go on: {another}")
        error.add_note(
            f"what was written to '/{self._path}' in {self._store} is in place: the same call with "
            "resume=True writes what is left"
        )

    @property
    def about(self) -> str:
        """The key of what is noted."""
        return f"{self._plan.top}{_ABOUT}"


def forget_settings(store: Store, tops: Iterable[str], path: str) -> None:
    """Forget what was noted of writes to arrays that are about to be replaced.

    Parameters
    ----------
    store : Store
    tops : iterable of str
        What the keys begin with that writes have left.
    path : str
        Path of the node that is replaced with all that is below it.
    """
    keys = [f"{top}{_ABOUT}" for top in tops]
    if not keys:
        return
    values = store.get_partial_values([(key, (0, _LARGEST)) for key in keys])
    for key, value in zip(keys, values, strict=True):
        if _is_at(_parsed(value).get("path"), path):
            store.erase(key)


def _is_at(said: object, path: str) -> bool:
    """Whether a path is that of a node or of what is below it."""
    return isinstance(said, str) and f"{said}/".startswith(f"{path}/" if path else "")


def is_top(prefix: str) -> bool:
    """Whether keys that begin with this are those of one write, beside the values."""
    return prefix.endswith("/") and _NAME.fullmatch(prefix[:-1]) is not None
