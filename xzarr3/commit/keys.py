"""Makes or replaces a node in a store of keys, which cannot rename.

Where nothing is lost by it, values are stored in place, and the last document makes the node visible.
Otherwise they wait under a prefix of their own, so that a failed computation leaves the old node. Then the
old documents leave, the old chunks follow, the new chunks are copied within the store, and the new documents
come last. A writer that is killed within this leaves no node there, and all that is needed to finish it under
the prefix; the next writer of the place finishes it, or :func:`xzarr3.recover`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from xzarr3._types import Buffer
from xzarr3.commit.lease import (
    SWAPPING,
    TAKING,
    Lease,
    check_above,
    holder_at,
    keeps_leases,
    lease_key,
    while_held,
)
from xzarr3.commit.places import Place, is_own
from xzarr3.commit.staged import BEGUN, NEW, SWAP, Swap, now
from xzarr3.commit.transaction import Transaction, finish_above
from xzarr3.commit.writers import keeps_apart, shared_beside, wait_for_writers
from xzarr3.errors import IncompleteWriteError, StoreCapabilityError, StoreError, listed
from xzarr3.formats import Format
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes import seen
from xzarr3.nodes.consolidated import drop_from_consolidated, write_consolidated
from xzarr3.nodes.documents import store_documents
from xzarr3.nodes.erase import erase_stages, formats_in, keys_at, owns
from xzarr3.nodes.find import metadata_of
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.base import MOST_COPIED, update, versioned


class Keys(Transaction):
    """Stores values in place where nothing is lost by it; otherwise under a prefix, to be copied at the end.

    One writer at a time does so at a place. Of several writers that find it empty, one gets it.
    """

    _is_ours = False
    """Whether what was stored is of this write alone."""

    def _prepared(self) -> Store:
        place = self.place
        there = keys_at(self.target, place.formats, place.path) if self.overwrite else set()
        lease = place.lease()
        if self._given is None and lease.key in there and holder_at(self.target, lease.key).state == SWAPPING:
            self._take(lease)
            self._release()
            there = keys_at(self.target, place.formats, place.path)
        leaving = _leaving(place, there)
        if leaving and not self.target.erasable:
            raise StoreCapabilityError(
                f"{self.target} cannot erase, so '/{place.path}' cannot be replaced; write to another path"
            )
        self.is_staged = bool(leaving) and not self._goes_on
        store = StagedKeys(self.target, f"{self.top}{NEW}/") if self.is_staged else self.target
        if self.target.concurrency > 1:
            seen.in_the_making(store, self.new.arrays)
        return store

    def begin(self) -> None:
        goes_on, place = False, self.place
        self.lease = self._given
        if self._given is None and keeps_leases(self.target):
            is_noted = self.is_staged or self.plan is not None
            lease = place.lease(self.plan, self.top if is_noted else "")
            goes_on = self._take(lease)
            if self.resumes and not goes_on:
                raise self.gone()
            if not self.is_staged:
                # Who replaces a node above, or writes within this place, from now on finds the lease.
                check_above(self.target, place.path)
                every = keys_at(self.target, place.formats, place.path) if self.overwrite else set()
                if wait_for_writers(Keys, self.target, place.path, every, [lease.key]):
                    every = keys_at(self.target, place.formats, place.path)
                is_there = bool(_leaving(place, every)) if self.overwrite else place.is_occupied()
                if is_there and not goes_on:
                    raise place.taken()  # another writer has finished since
        self._is_ours = True
        if self.is_staged or self.plan is not None:
            key = None if self.lease is None else self.lease.key
            with self.noting():
                self.target.set(f"{self.top}{BEGUN}", now(staged=self.is_staged, lease=key))

    def publish(self) -> None:
        self.check_groups()
        held = while_held(self.target, self.lease, self.place.path)
        if self.is_staged:
            self._swap(held)
        else:
            self._check()
            self.new = self.new.dated(self.target)
            store_documents(held, self.new.format, self.new.documents, last=self.new.path)
        self._follow()
        self.is_swapping = False

    def _check(self) -> None:
        """Raise if another writer has written to the place since."""
        store, place = self.target, self.place
        asks = [partial(self._is_of_another, key) for key in self.new.format.keys(place.path).defining]
        if self.lease is not None:
            asks.append(partial(_verified, self.lease, place.path))
        if any(parallel_map(lambda ask: ask(), asks, store.concurrency)):
            self._is_ours = False
            error = place.taken()
            error.add_note("chunks that were written are not removed, as they may be of either writer")
            raise error

    def _is_of_another(self, key: str) -> bool:
        """Whether another writer has stored a document; a resumed write may find its own."""
        if self.plan is None:
            return self.target.exists(key)
        stored = self.target.get(key)
        own = self.new.documents[self.new.path].get(key, b"")
        return stored is not None and bytes(stored).rstrip() != own.rstrip()  # Their dates differ.

    def _swap(self, held: Store) -> None:
        store, place = self.target, self.place
        if not store.exists(f"{self.top}{BEGUN}"):
            raise self.gone()
        come = sorted(self.store.written())  # type: ignore[attr-defined]
        every = keys_at(store, place.formats, place.path)
        there = set(filter(is_own, every))
        if there.isdisjoint(place.defining) and any(
            parallel_map(store.exists, place.defining, store.concurrency)
        ):
            raise StoreError(
                f"cannot replace '/{place.path}' in {store}: its document exists, but is not listed; use a "
                "store that lists all of its keys"
            )
        leaving = _leaving(place, there)
        away = [*place.in_order(leaving), *self._lost_leases(leaving)]
        self.new = self.new.dated(store, self.stay)
        documents = {
            path: {key: value.decode("utf-8", "surrogatepass") for key, value in own.items()}
            for path, own in self.new.documents.items()
        }
        swap = Swap(place.path, self.new.format.zarr_format, away, come, documents)
        with self.noting():
            store.set(f"{self.top}{SWAP}", swap.text())
            now = self._say(SWAPPING) or every
        if self._documents(now) != self._documents(every):
            raise place.changed()
        self.is_swapping = True
        if not put_in_place(held, self.new.format, self.top, swap, unchanged=self.unchanged):
            store.erase(f"{self.top}{SWAP}")
            self.is_swapping = False
            finish_above(store, self.new.format, place.path)
            raise place.changed()
        self.new = replace(self.new, documents=swap.encoded())

    def keep_writers_away(self) -> None:
        if keeps_apart(self.target):
            self._say(TAKING)

    def _say(self, state: str) -> set[str]:
        """Say what happens to the place, and wait for who writes values there; returns its keys then.

        Of two writers of nodes within each other, each says so before it looks for the other.
        """
        store, place, lease = self.target, self.place, self.lease
        if lease is None:
            return set()
        lease.say(place.path, state, self.top)
        try:
            check_above(store, place.path)
            every = keys_at(store, place.formats, place.path)
            own = (lease.key, *self.kept_leases)
            beside = shared_beside(store, self.new.format, place.path)
            if wait_for_writers(Keys, store, place.path, [*every, *beside], own):
                every = keys_at(store, place.formats, place.path)
        except (StoreError, IncompleteWriteError):
            lease.say(place.path, "", "")
            raise
        return every

    def _documents(self, keys: set[str]) -> set[str]:
        return {key for key in keys if any(each.place(key) is not None for each in self.place.formats)}

    def _lost_leases(self, leaving: set[str]) -> list[list[str]]:
        """The leases of nodes that leave: their holders shall not change the new nodes; as in a directory.

        Also those that nobody held a moment ago: who takes one now may still read the old document.
        """
        format, own = self.new.format, {self.place.lease().key, *self.kept_leases}
        found = (each.place(key) for each in self.place.formats for key in leaving)
        lost = {lease_key(format.keys(each.path).chunks) for each in found if each is not None} - own
        return [sorted(lost)] if lost else []

    @staticmethod
    def finish(store: Store, format: Format, top: str, swap: Swap) -> bool:
        def defining(each: Format) -> set[str]:
            hierarchy = () if swap.path else each.hierarchy_documents()
            return {*each.keys(swap.path).defining, *hierarchy}

        every = set().union(*map(defining, formats_in(store, swap.path, format)))
        first = next(filter(None, (every.intersection(keys) for keys in swap.away)), set())
        own, copied = swap.documents.get(swap.path, {}), format.keys(swap.path).consolidated
        for keys in (first, defining(format).intersection(own)):
            # the old node is whole, or the new one, and may have been changed since
            if keys and all(parallel_map(store.exists, keys, store.concurrency)):
                if copied in own and not store.exists(str(copied)):
                    write_consolidated(store, format, swap.path)
                return False
        put_in_place(store, format, top, swap)
        return True

    @staticmethod
    def remove(store: Store, top: str) -> None:
        store.erase(f"{top}{SWAP}")
        keys = set(store.list_prefix(top)) - {f"{top}{BEGUN}", f"{top}{SWAP}"}
        store.erase_values([*sorted(keys), f"{top}{BEGUN}"])  # the note of the write last

    def _remove_staged(self) -> None:
        if self.is_staged or self.plan is not None:
            self.remove(self.target, self.top)

    def _remove_written(self) -> None:
        if self.is_staged and self._is_ours:
            self.remove(self.target, self.top)
        elif self._is_ours and (self.lease is None or self.lease.holds()):
            _erase_written(self.place)

    def _release(self) -> None:
        if self._given is None:
            super()._release()
        elif self._given.said.state:  # the caller holds it for longer
            self._given.say(self.place.path, "", "")


class Session(Transaction):
    """Writes into a store that holds changes back until they are committed: documents first, then values."""

    is_staged = False
    _replaces = False

    def _prepared(self) -> Store:
        if self.overwrite:
            self.new = self.new.dated(self.target)
            self.new.note_dates(self.target)  # the documents come first: the handle that writes goes on
        return self.target

    def begin(self) -> None:
        place = self.place
        if self.overwrite and not self.resumes:
            leaving = _leaving(place)
            self._replaces = bool(leaving)
            for format in place.formats:
                drop_from_consolidated(self.target, format, place.path)
            erase_stages(self.target, place.in_order(leaving))
        new = self.new
        store_documents(self.target, new.format, new.documents, last=place.path, replaces=self._replaces)

    def publish(self) -> None:
        self.new.follow(self.target)

    def _remove_staged(self) -> None:
        """Nothing lies beside the place."""

    def _remove_written(self) -> None:
        _erase_written(self.place)

    def give_up(self, error: BaseException) -> None:
        if self.plan is not None:
            error.add_note(
                f"what was committed of '/{self.place.path}' in {self.target} is kept: the same call with "
                "resume=True writes what is left; a call without it begins anew"
            )
            return
        super().give_up(error)
        if self._replaces:
            error.add_note(
                f"the old node '/{self.place.path}' is erased in {self.target}; discard the changes of the "
                "transaction, or write again, before you commit it"
            )


def _erase_written(place: Place) -> None:
    """Erase what was written in place, where nothing was before."""
    keys = [
        key
        for key in _listed(place)
        if place.is_taken(key) or any(each.place(key) is not None for each in place.formats)
    ]
    erase_stages(place.store, place.in_order(keys))


def _verified(lease: Lease, path: str) -> bool:
    """False, for a list of checks; raises if the lease of the place was lost."""
    lease.verify(path)
    return False


def _listed(place: Place) -> set[str]:
    """The existing keys of a place, without leases and staged values."""
    return {key for key in keys_at(place.store, place.formats, place.path) if is_own(key)}


def _leaving(place: Place, there: set[str] | None = None) -> set[str]:
    """The existing keys that leave when the node is replaced."""
    there = _listed(place) if there is None else set(filter(is_own, there))
    names: dict[str, list[str]] = {}
    for key in there:
        start = len(next((each for each in place.prefixes if key.startswith(each)), key))
        end = key.find("/", start)
        names.setdefault(key if end < 0 else key[:end], []).append(key)
    stay = {name for name in names if not place.leaves(name, there.__contains__, names.__getitem__)}
    return {key for name, keys in names.items() for key in keys if name not in stay or place.is_taken(key)}


# Copying


def put_in_place(
    store: Store,
    format: Format,
    top: str,
    swap: Swap,
    *,
    unchanged: Callable[[Mapping[str, Buffer | None]], bool] | None = None,
) -> bool:
    """Erase the old node, copy the new values to their places, and store the documents last.

    Returns
    -------
    bool
        Whether the new node is in its place. If ``unchanged`` tells, once the old documents have left and
        nobody writes there any more, that the old node has changed, they are put back.
    """
    formats = formats_in(store, swap.path, format)
    for each in formats:  # first, so that no copy outlives its document
        drop_from_consolidated(store, each, swap.path)
    if unchanged is not None:
        left = dict[str, Buffer | None]()
        for stage in swap.away:
            documents = [key for key in stage if any(each.place(key) is not None for each in formats)]
            values = parallel_map(partial(_taken, store), documents, store.concurrency)
            left.update(zip(documents, values, strict=True))
        if not unchanged(left):
            for key, value in reversed(left.items()):
                if value is not None:
                    store.set(key, value)
            return False
    erase_stages(store, swap.away)
    store.erase_values(_late(store, format, swap))
    swap.date_after(seen.date_now(store))  # Only now can nobody open the old node any more.
    _copy(store, format, f"{top}{NEW}/", swap)
    store_documents(store, format, swap.encoded(), last=swap.path, replaces=True)
    return True


def _taken(store: Store, key: str) -> Buffer | None:
    """Erase a document; returns what it was then, or just before if the store cannot erase on condition."""
    found: list[Buffer | None] = []

    def take(stored: Buffer | None) -> None:
        found[:] = [None if stored is None else bytes(stored)]

    if store.traits.erases_conditionally:
        update(store, key, take)
    else:
        take(versioned(store, key)[0])
        store.erase(key)
    return found[0]


def _late(store: Store, format: Format, swap: Swap) -> set[str]:
    """Keys that others stored in the old arrays once these were listed; the new ones would read them."""
    found = ((path, metadata_of(format, path, own)) for path, own in swap.encoded().items())
    arrays = [(format.keys(path).chunks, meta) for path, meta in found if isinstance(meta, ArrayMetadata)]
    there = itertools.chain(*map(store.list_prefix, format.keys(swap.path).prefixes))
    late = set(there).difference(swap.come)
    return {
        key
        for key in late
        if any(key.startswith(prefix) and owns(meta, key.removeprefix(prefix)) for prefix, meta in arrays)
    }


def _copy(store: Store, format: Format, staged: str, swap: Swap) -> None:
    """Copy the staged values to their final keys, and check that all have arrived.

    The old values have left, so a final key that exists holds a new value.
    """
    missing = swap.come
    for copy in (store.copy, partial(Store.copy, store)):  # by the service, then through this process
        if not missing:
            return
        with _without(staged):
            number = min(store.concurrency, MOST_COPIED)
            parallel_map(lambda key, copy=copy: copy(staged + key, key), missing, number)  # type: ignore[misc]
        there = itertools.chain(*map(store.list_prefix, format.keys(swap.path).prefixes))
        asked = sorted(set(missing).difference(there))
        found = parallel_map(store.exists, asked, store.concurrency)  # listings may lag behind writes
        missing = [key for key, is_there in zip(asked, found, strict=True) if not is_there]
    if missing:
        raise StoreError(
            f"cannot replace '/{swap.path}' in {store}: {len(missing)} values were not copied, "
            f"{listed(missing[:5])}"
        )


@contextlib.contextmanager
def _without(prefix: str) -> Iterator[None]:
    """Remove a staging prefix from the messages of errors, so that keys have their final names."""
    try:
        yield
    except StoreError as error:
        error.args = tuple(each.replace(prefix, "") if isinstance(each, str) else each for each in error.args)
        raise


class StagedKeys(Store):
    """Stores values under a prefix; messages use the final keys.

    Parameters
    ----------
    store : Store
    prefix : str
    """

    reports = False

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__(
            read_only=store.read_only,
            operations=tuple(filter(store._can, store.traits.operations)),
            concurrency=store.concurrency,
            request_bytes=store.traits.request_bytes,
            over_read=store.traits.over_read,
        )
        self._store = store
        self._prefix = prefix
        self._guard = threading.Lock()
        self._written: set[str] = set()
        self._alone = True  # no copy of this object exists that may have written values

    def __getstate__(self) -> dict[str, object]:
        self._alone = False
        return {**self.__dict__, "_guard": None, "_written": set()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return repr(self._store)

    def written(self) -> set[str]:
        """The keys of all values that were stored and not erased, also by other processes.

        Raises
        ------
        StoreError
            If values that this process stored are gone, or not listed while other processes may have stored
            some as well.
        """
        there = set(self.list_prefix(""))
        with self._guard:
            lost = sorted(self._written - there)
        is_late = lost and self._alone and all(parallel_map(self.exists, lost, self.concurrency))
        if lost and not is_late:  # a listing may lag behind writes, and then those of others lack as well
            raise StoreError(
                f"cannot write to {self}: values that this write stored before are gone, because {len(lost)} "
                f"are not listed, {listed(lost[:3])}, and those of other processes may not be listed either; "
                "repeat the write"
            )
        return there.union(lost)

    def get(self, key: str, *how: Any, **more: Any) -> Buffer | None:
        with _without(self._prefix):
            return self._store.get(self._prefix + key, *how, **more)

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:  # type: ignore[override]
        with _without(self._prefix):
            self._store.put(self._prefix + key, pieces)
        with self._guard:
            self._written.add(key)

    def erase(self, *keys: str) -> None:
        with self._guard:
            self._written.difference_update(keys)
        with _without(self._prefix):
            self._store.erase_values([self._prefix + key for key in keys])

    def list(self, prefix: str = "") -> Iterator[str]:
        for key in self._store.list_prefix(self._prefix + prefix):
            yield key[len(self._prefix) :]
