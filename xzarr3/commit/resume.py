"""Writes that can be taken up again where they were cut off: what they leave, and what the next one finds.

Such a write is known by the fingerprint of its plan, which its lease says, and with it the prefix ``top`` of
what lies beside the values: the journal, see :mod:`xzarr3.dask.journal`, and values that are staged. When it
is cut off its lease stays. Who takes that lease next goes on in the same ``top`` if its plan is the same, and
otherwise removes what is there.

What makes a node, or replaces it, has the lease of the place. What sets values of arrays that are there has
none: many of these go on beside each other in one array. So their leases, and what they note, lie below a
name that is made of the fingerprint. One call asks for one key then, however many others there are, and as a
lease is made on condition that there is none, two calls of one plan cannot both get it.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.commit.lease import SWAPS, Lease, lease_key
from xzarr3.commit.leftovers import said_in
from xzarr3.commit.stage import BEGUN, Places
from xzarr3.errors import ConflictError, StoreCapabilityError, StoreError, printable
from xzarr3.stores import Store
from xzarr3.stores.local.folders import STAGED

_ABOUT = "about"
_LARGEST = 2**24  # Bytes of what is noted.
_TOP = re.compile(f"{re.escape(STAGED)}[0-9a-f]{{32}}/", re.ASCII)


def is_top(prefix: str) -> bool:
    """Whether keys that begin with this are those of one write, beside the values."""
    return _TOP.fullmatch(prefix) is not None


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


class Resumption:
    """A write that can be taken up again, of a node that is made or replaced.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node that is written, for messages.
    plan : str
        Fingerprint of everything that decides which bytes are stored where.
    documents : mapping of str to bytes
        The documents of the node by key; where these are, the write had come to its end.
    """

    _is_kept = "is kept: the same call with resume=True writes what is left; a call without it begins anew"

    def __init__(
        self, store: Store, path: str, plan: str, documents: Mapping[str, bytes] | None = None
    ) -> None:
        self._store = store
        self._path = path
        self.plan = plan
        self.documents = {} if documents is None else documents
        self.top = f"{STAGED}{uuid.uuid4().hex}/"
        """What all keys begin with that the write leaves beside its place."""
        self.is_staged: bool | None = None
        """Whether values were staged by the one that was cut off; None if none has stored any."""
        self.lease: Lease | None = None
        """What keeps others away, once it was taken."""
        self.has_begun = False

    @property
    def journal(self) -> str:
        """What the keys of its journal begin with."""
        return f"{self.top}journal/"

    def find(self, key: str) -> None:
        """Look for what a write of this plan has left, which had the lease with this key.

        What it was putting in its place is nothing to go on with: that is finished first.
        """
        found = Lease(self._store, key, "replace").there()
        if found.plan == self.plan and found.state not in SWAPS and is_top(found.top):
            self.top = found.top
            begun = self._store.get(f"{self.top}{BEGUN}")
            self.is_staged = None if begun is None else said_in(begun).get("staged") is True

    def goes_on_in_place(self, places: Places) -> bool:
        """Whether what is there was left by a write of this plan, which was cut off before it was whole."""
        keys = sorted({key for each in places.formats for key in each.defining_keys(places.path)})
        return self.is_staged is False and not any(
            value is not None and bytes(value) != self.documents.get(key)
            for key, value in zip(keys, self._store.get_values(keys), strict=True)
        )

    def taken(self, lease: Lease) -> bool:
        """Whether the writer from whom the lease was taken has left what this one had found before."""
        self.lease, left = lease, lease.displaced
        if left is not None and left.plan not in (None, self.plan):
            warn_of_another(self._path, self._store)
        same = left is not None and (left.plan, left.top) == (self.plan, self.top)
        return same and self._store.exists(f"{self.top}{BEGUN}")

    def leave(self, error: BaseException) -> None:
        """The write ends in an error, and can be taken up again."""
        lease, self.lease = self.lease, None
        if lease is None:
            return
        try:
            lease.leave()
        except StoreError as another:
            error.add_note(f"others may have to wait for minutes, as this write seems to go on: {another}")
        if self.has_begun:
            error.add_note(f"what was written to '/{self._path}' in {self._store} {self._is_kept}")


def settled(
    lease: Lease,
    resumed: Resumption | None,
    remove: Callable[[str], object],
    *,
    staged: bool | None = None,
) -> bool:
    """See what the writer has left from whom a lease was taken; returns whether this one goes on with it.

    Parameters
    ----------
    lease : Lease
        That of the place, just taken.
    resumed : Resumption, optional
    remove : callable
        Removes what has a prefix, if this write does not go on.
    staged : bool, optional
        Whether this write stages its values, if not all do.
    """
    if resumed is not None and resumed.taken(lease) and staged in (None, resumed.is_staged):
        return True
    if lease.displaced is not None and is_top(lease.displaced.top):
        remove(lease.displaced.top)
    return False


def warn_of_another(path: str, store: Store) -> None:
    """Warn of a write of another plan that was cut off at the same place."""
    warnings.warn(
        f"a write to '/{printable(path)}' in {store} was cut off that is not the same as this one, so "
        "nothing of it is taken up: its data or encoding are others, or dask has given its arrays other "
        "names, as it does for what it cannot name by its content; what it left is removed",
        stacklevel=2,
    )


class Settings(Resumption):
    """A write that can be taken up again, which sets values of arrays that are there, or appends to them.

    It goes on where it was cut off if nobody has changed the documents of these arrays since. What is
    appended is known by what it is, not by where it goes; so that is noted.

    Parameters
    ----------
    store, path, plan
        As :class:`Resumption` has them.
    keys : iterable of str
        Keys of the documents that stay as they are.
    places : JSON
        Where values are written, as far as the plan does not tell.
    """

    _is_kept = "is in place: the same call with resume=True writes what is left"

    def __init__(self, store: Store, path: str, plan: str, keys: Iterable[str], places: Any) -> None:
        super().__init__(store, path, plan)
        self.top = f"{STAGED}{plan}/"
        self._keys = sorted(keys)
        self._places = places
        self._said: dict[str, Any] = {}
        self.is_done = False
        """Whether the documents tell already of all that is appended."""

    @property
    def _about(self) -> str:
        """The key of what is noted."""
        return f"{self.top}{_ABOUT}"

    def _noted(self) -> dict[str, Any]:
        """What an earlier write of this plan has noted; empty if there was none."""
        return said_in(self._store.get(self._about, (0, _LARGEST)))

    def was_appended(self, grown: Mapping[str, tuple[Any, tuple[slice, ...], Any]]) -> bool:
        """Whether a write of this plan has appended all values, and was cut off after that.

        Parameters
        ----------
        grown : mapping of str to (Array, tuple of slice, array or None)
            For each path an array that is to grow, by what region, and the values if these are in memory.

        Raises
        ------
        ConflictError
            If it cannot be known.
        """
        noted = self._noted() if grown else {}
        places = noted.get("places")
        if noted.get("ending") is not True or not isinstance(places, dict) or places.keys() != grown.keys():
            return False
        same = []
        for path, (array, region, values) in grown.items():
            there = _region(places[path])
            if [at.stop - at.start for at in there] != [at.stop - at.start for at in region]:
                return False
            if any(at.stop > size for at, size in zip(there, array.shape, strict=True)):
                return False  # It has not grown.
            if values is not None:
                same.append(_are_same(array[there], np.asarray(values)))
        if not same:
            raise ConflictError(
                "a write of the same values was cut off when it was about to end, and the arrays have grown "
                "since, by as much as it appends or more: it cannot be told whether these are its values; "
                f"accepted: looking at them, and removing key '{self._about}' to append once more"
            )
        self.is_done = all(same)
        return self.is_done

    def reserve(self) -> None:
        """Keep others from doing the same.

        Raises
        ------
        NodeExistsError
            If the same write is still going on.
        """
        lease = Lease(self._store, lease_key(self.top), "write", plan=self.plan)
        lease.reserve(self._path)
        self.lease = lease
        self.has_begun = True
        self._said = self._noted()
        # Leases that are taken from now on do not tell any more who had them before.
        if self._said and self._places and not self.is_done:
            self._store.set(self._about, json.dumps({**self._said, "stamp": None}).encode())

    def begin(self, grown: Iterable[Lease]) -> None:
        """Forget what is in the journal if others have changed the arrays since.

        Parameters
        ----------
        grown : iterable of Lease
            Those of the arrays that grow, which a write has from its beginning to its end.
        """
        said = {"path": self._path, "stamp": self._stamped(), "places": self._places}
        same = said == {key: self._said.get(key) for key in said}
        for lease in grown:
            left = lease.displaced
            if left is not None and left.plan not in (None, self.plan):
                warn_of_another(self._path, self._store)
            same = same and left is not None and left.plan == self.plan
        if not same:
            self._store.erase_prefix(self.journal)
        self._said = said
        self._store.set(self._about, json.dumps(said).encode())

    def _stamped(self) -> str:
        """What changes when somebody changes one of the documents, or replaces an array."""
        store = self._store
        versions = [(store.version(key), store.get_versioned(key)[1]) for key in self._keys]
        return hashlib.blake2b(repr(versions).encode(), digest_size=16).hexdigest()

    def end(self) -> None:
        """All is written."""
        self._store.erase_prefix(self.journal)
        self._store.erase(self._about)
        if self.lease is not None:
            self.lease.release()

    def check(self) -> None:
        """See to it that it is still this write that may go on, and note that it is about to end.

        Raises
        ------
        ConflictError
        """
        if self.lease is not None:
            self.lease.verify(self._path)
        if self._places:
            self._store.set(self._about, json.dumps({**self._said, "ending": True}).encode())


def _region(edges: Any) -> tuple[slice, ...]:
    """The region that a list of edges is of; an empty one if it is none."""
    try:
        found = tuple(slice(operator.index(start), operator.index(stop)) for start, stop in edges)
    except (TypeError, ValueError):
        return ()
    return found if all(part.start >= 0 for part in found) else ()


def _are_same(one: AnyArray, other: AnyArray) -> bool:
    if one.dtype == other.dtype and one.dtype.kind not in "OT":
        return one.tobytes() == other.tobytes()
    return bool(np.array_equal(one, other))


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
    values: list[Buffer | None] = []
    if keys:
        values = store.get_partial_values([(key, (0, _LARGEST)) for key in keys])
    for key, value in zip(keys, values, strict=True):
        if is_at(said_in(value).get("path"), path):
            store.erase(key)


def is_at(said: object, path: str) -> bool:
    """Whether a path is that of a node or of what is below it."""
    return isinstance(said, str) and f"{said}/".startswith(f"{path}/" if path else "")
