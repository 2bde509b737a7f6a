"""Resumable writes: what a cut-off write leaves, and what the next write finds.

A resumable write is identified by the fingerprint of its plan. Its lease holds the fingerprint and the key
prefix ``top``. Under this prefix lie the journal (see :mod:`xzarr3.dask.journal`) and staged values. The
lease of a cut-off write stays. The next writer that takes this lease resumes in the same ``top`` if its plan
is the same; otherwise it removes everything under ``top``.

A write that creates or replaces a node holds the lease of the place. A write that sets values of existing
arrays does not: many such writes run side by side in one array. Their leases and notes lie below a name made
of the fingerprint. So one call asks for one key, however many others run. As a lease is created only if its
key is absent, two calls of one plan cannot both get it.
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
from xzarr3.commit.lease import SWAPS, Lease, boot, lease_key
from xzarr3.commit.leftovers import said_in
from xzarr3.commit.stage import BEGUN, NodeKeys
from xzarr3.errors import ConflictError, StoreCapabilityError, StoreError, printable
from xzarr3.stores import Store, versioned
from xzarr3.stores.local.names import STAGED

_ABOUT = "about"
_LARGEST = 2**24  # largest note read, in bytes
_TOP = re.compile(f"{re.escape(STAGED)}[0-9a-f]{{32}}/", re.ASCII)


def is_top(prefix: str) -> bool:
    """Whether a prefix is the ``top`` of a write."""
    return _TOP.fullmatch(prefix) is not None


def check_resumable(store: Store) -> None:
    """Raise if writes to a store cannot be resumed.

    Raises
    ------
    StoreCapabilityError
    """
    if store.traits.visible != "at once":
        lacks = "keeps nothing of a write that was cut off"
    elif not store.readable or not store.listable:
        lacks = "cannot be read and listed"
    elif not store.erasable:
        lacks = "cannot erase"
    else:
        return
    raise StoreCapabilityError(
        f"resume=True needs a journal in the store, but {store} {lacks}; write to a store that can be read, "
        "listed, written and erased, such as a directory, or pass resume=False"
    )


def may_be_lost(store: Store, said: object) -> bool:
    """Whether a system crash since may have lost values stored by a process on this host and boot.

    ``said`` is what :func:`xzarr3.commit.lease.boot` told that process, as a list.
    """
    here = boot()
    if store.traits.durable or not isinstance(said, list) or len(said) != 2:
        return False
    return bool(said[0] == here[0] and said[1] != here[1])


class Resumption:
    """A resumable write that creates or replaces a node.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node, for messages.
    plan : str
        Fingerprint of everything that decides which bytes are stored where.
    documents : mapping of str to bytes
        The documents of the node by key. A write whose documents are stored had come to its end.
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
        """Prefix of all keys that the write stores beside its place."""
        self.is_staged: bool | None = None
        """Whether the cut-off write staged its values; None if it had stored none."""
        self.lease: Lease | None = None
        """Keeps other writers away, once taken."""
        self.has_begun = False

    @property
    def journal(self) -> str:
        """Key prefix of the journal."""
        return f"{self.top}journal/"

    def find(self, key: str) -> None:
        """Look for a cut-off write of this plan that held the lease with this key.

        A write that was cut off during its swap is not resumed: its swap is finished first.
        """
        found = Lease(self._store, key, "replace").there()
        if found.plan == self.plan and found.state not in SWAPS and is_top(found.top):
            self.top = found.top
            begun = self._store.get(f"{self.top}{BEGUN}")
            self.is_staged = None if begun is None else said_in(begun).get("staged") is True

    def goes_on_in_place(self, places: NodeKeys) -> bool:
        """Whether the place holds values of a cut-off in-place write of this plan, not yet whole."""
        keys = sorted({key for each in places.formats for key in each.defining_keys(places.path)})
        return self.is_staged is False and not any(
            value is not None and bytes(value) != self.documents.get(key)
            for key, value in zip(keys, self._store.get_values(keys), strict=True)
        )

    def taken(self, lease: Lease) -> bool:
        """Note the taken lease; returns whether its previous holder left what :meth:`find` had found."""
        self.lease, left = lease, lease.displaced
        if left is not None and left.plan not in (None, self.plan):
            warn_of_another(self._path, self._store)
        same = left is not None and (left.plan, left.top) == (self.plan, self.top)
        return same and self._store.exists(f"{self.top}{BEGUN}")

    def leave(self, error: BaseException) -> None:
        """Leave the lease and the values for a later call to resume, after ``error``."""
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
    """Resume the write of the displaced holder, or remove its leftovers; returns whether it resumes.

    Parameters
    ----------
    lease : Lease
        The lease of the place, just taken.
    resumed : Resumption, optional
    remove : callable
        Removes all keys with a prefix; called if this write does not resume.
    staged : bool, optional
        Whether this write stages its values; None where all writes do.
    """
    if resumed is not None and resumed.taken(lease) and staged in (None, resumed.is_staged):
        return True
    if lease.displaced is not None and is_top(lease.displaced.top):
        remove(lease.displaced.top)
    return False


def warn_of_another(path: str, store: Store) -> None:
    """Warn that a cut-off write of another plan is dropped at this place."""
    warnings.warn(
        f"a different write to '/{printable(path)}' in {store} was interrupted, so none of it is resumed: "
        "its data or encoding differ, or dask has given its arrays other names, as it does for sources "
        "that it cannot hash; what that write left is removed",
        stacklevel=2,
    )


class Settings(Resumption):
    """A resumable write that sets values of existing arrays, or appends to them.

    It resumes if no other process has changed the documents of these arrays since. An append is identified by
    what it appends, not by where its rows go; so where they go is noted.

    Parameters
    ----------
    store, path, plan
        As :class:`Resumption` has them.
    keys : iterable of str
        Keys of the documents that the write does not change.
    places : JSON
        Where values are written, as far as the plan does not determine it.
    """

    _is_kept = "is in place: the same call with resume=True writes what is left"

    def __init__(self, store: Store, path: str, plan: str, keys: Iterable[str], places: Any) -> None:
        super().__init__(store, path, plan)
        self.top = f"{STAGED}{plan}/"
        self._keys = sorted(keys)
        self._places = places
        self._said: dict[str, Any] = {}
        self.is_done = False
        """Whether the documents already include all appended rows."""

    @property
    def _about(self) -> str:
        """The key of the notes."""
        return f"{self.top}{_ABOUT}"

    def _noted(self) -> dict[str, Any]:
        """The notes of an earlier write of this plan; empty if there was none."""
        return said_in(self._store.get(self._about, (0, _LARGEST)))

    def was_appended(self, grown: Mapping[str, tuple[Any, tuple[slice, ...], Any]]) -> bool:
        """Whether an earlier write of this plan was cut off after it had appended all values.

        Parameters
        ----------
        grown : mapping of str to (Array, tuple of slice, array or None)
            For each path, the array to grow, the region to append, and the values if they are in memory.

        Raises
        ------
        ConflictError
            If it cannot be told.
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
                return False  # the array has not grown
            if values is not None:
                same.append(_are_same(array[there], np.asarray(values)))
        if not same:
            raise ConflictError(
                "a write of the same values was interrupted while it was being committed, and the arrays "
                "have grown since by at least as much as it appends, so these may be its values or not; "
                f"look at them, and remove key '{self._about}' to append once more"
            )
        self.is_done = all(same)
        return self.is_done

    def reserve(self) -> None:
        """Take the lease of this plan, so that no other process runs the same write.

        Raises
        ------
        NodeExistsError
            If the same write is still running.
        """
        lease = Lease(self._store, lease_key(self.top), "write", plan=self.plan)
        lease.reserve(self._path)
        self.lease = lease
        self.has_begun = True
        self._said = self._noted()
        # Leases taken from now on no longer name their previous holders, so the notes must not match again.
        if self._said and self._places and not self.is_done:
            self._store.set(self._about, json.dumps({**self._said, "stamp": None}).encode())

    def begin(self, grown: Iterable[Lease]) -> None:
        """Start the write; empties the journal if another process has changed the arrays since.

        Parameters
        ----------
        grown : iterable of Lease
            Leases of the arrays that grow; a write holds them from its beginning to its end.
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
        """A digest that changes when a document changes or an array is replaced."""
        store = self._store
        versions = [(store.versions([key])[0], versioned(store, key)[1]) for key in self._keys]
        return hashlib.blake2b(repr(versions).encode(), digest_size=16).hexdigest()

    def end(self) -> None:
        """Remove journal, notes and lease: the write is complete."""
        self._store.erase_prefix(self.journal)
        self._store.erase(self._about)
        if self.lease is not None:
            self.lease.release()

    def check(self) -> None:
        """Raise if the lease was lost; otherwise note that the write is about to end.

        Raises
        ------
        ConflictError
        """
        if self.lease is not None:
            self.lease.verify(self._path)
        if self._places:
            self._store.set(self._about, json.dumps({**self._said, "ending": True}).encode())


def _region(edges: Any) -> tuple[slice, ...]:
    """The region for a list of (start, stop) pairs; an empty tuple if the list is none."""
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
    """Erase the notes of writes to arrays that are about to be replaced.

    Parameters
    ----------
    store : Store
    tops : iterable of str
        Key prefixes of cut-off writes.
    path : str
        Path of the node that is replaced, with all nodes below it.
    """
    keys = [f"{top}{_ABOUT}" for top in tops]
    values: list[Buffer | None] = []
    if keys:
        values = store.get_partial_values([(key, (0, _LARGEST)) for key in keys])
    for key, value in zip(keys, values, strict=True):
        if is_at(said_in(value).get("path"), path):
            store.erase(key)


def is_at(said: object, path: str) -> bool:
    """Whether ``said`` is the path of a node or of a node below it."""
    return isinstance(said, str) and f"{said}/".startswith(f"{path}/" if path else "")
