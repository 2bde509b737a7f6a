"""Makes or replaces a node in a store of keys, which cannot rename.

Where nothing is lost by it, values are stored in place, and the last document makes the node visible.
Otherwise they wait under a prefix of their own, so that a failed computation leaves the old node. Then the
old documents leave, the old chunks follow, the new chunks are copied within the store, and the new documents
come last. A writer that is killed within this leaves no node there, and all that is needed to finish it under
the prefix; the next writer of the place finishes it, or :func:`xzarr3.recover`.
"""

from __future__ import annotations

from functools import partial

from xzarr3.commit.copies import StagedKeys, put_in_place, remove_keys
from xzarr3.commit.lease import SWAPPING, Lease, holder_at, keeps_leases
from xzarr3.commit.leftovers import now
from xzarr3.commit.places import Place, is_own
from xzarr3.commit.recover import finish_swap, take
from xzarr3.commit.transaction import BEGUN, NEW, SWAP, NewNode, Swap, Transaction
from xzarr3.errors import StoreCapabilityError, StoreError
from xzarr3.nodes import seen
from xzarr3.nodes.consolidated import drop_from_consolidated
from xzarr3.nodes.documents import store_documents
from xzarr3.nodes.erase import erase_stages, keys_at
from xzarr3.parallel import parallel_map


class Keys(Transaction):
    """Stores values in place where nothing is lost by it; otherwise under a prefix, to be copied at the end.

    One writer at a time does so at a place. Of several writers that find it empty, one gets it.

    Parameters
    ----------
    place, new, overwrite, plan, left
        As :class:`Transaction` has them.
    lease : Lease, optional
        The lease of the place, if the caller holds it.
    goes_on : bool
        Whether the place holds values of a cut-off write of this plan; otherwise they are staged.
    """

    def __init__(
        self,
        place: Place,
        new: NewNode,
        *,
        overwrite: bool,
        plan: str | None = None,
        lease: Lease | None = None,
        left: str | None = None,
        goes_on: bool = False,
    ) -> None:
        super().__init__(place, new, overwrite=overwrite, plan=plan, left=left)
        self._given = lease
        self._is_ours = False  # what was stored is of this write alone
        there = keys_at(self.target, place.formats, place.path) if overwrite else set()
        key = place.lease().key
        if lease is None and key in there and holder_at(self.target, key).state == SWAPPING:
            finish_swap(self.target, key, place.path)
            there = keys_at(self.target, place.formats, place.path)
        leaving = _leaving(place, there)
        if leaving and not self.target.erasable:
            raise StoreCapabilityError(
                f"{self.target} cannot erase, so '/{place.path}' cannot be replaced; write to another path"
            )
        self.is_staged = bool(leaving) and not goes_on
        if self.is_staged:
            self.store = StagedKeys(self.target, f"{self.top}{NEW}/")
        if self.target.concurrency > 1:
            seen.in_the_making(self.store, new.arrays)

    def begin(self) -> None:
        goes_on, place = False, self.place
        self.lease = self._given
        if self._given is None and keeps_leases(self.target):
            lease = place.lease(self.plan, self.top)
            goes_on, _ = take(lease, self.target, place.path)
            self.lease = lease
            if self.resumes and not goes_on:
                raise self.gone()
            is_there = bool(_leaving(place)) if self.overwrite else place.is_occupied()
            if is_there and not (goes_on or self.is_staged):
                raise place.taken()  # another writer has finished since
        self._is_ours = True
        if self.is_staged or self.plan is not None:
            key = None if self.lease is None else self.lease.key
            with self.noting():
                self.target.set(f"{self.top}{BEGUN}", now(staged=self.is_staged, lease=key))

    def publish(self) -> None:
        self.check_groups()
        if self.is_staged:
            self._swap()
        else:
            self._check()
            store_documents(self.target, self.new.format, self.new.documents, last=self.new.path)
        self.new.follow(self.target)
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
        return stored is not None and bytes(stored) != self.new.documents[self.new.path].get(key)

    def _swap(self) -> None:
        store, place = self.target, self.place
        if not store.exists(f"{self.top}{BEGUN}"):
            raise self.gone()
        come = sorted(self.store.written())  # type: ignore[attr-defined]
        there = _listed(place)
        if there.isdisjoint(place.defining) and any(
            parallel_map(store.exists, place.defining, store.concurrency)
        ):
            raise StoreError(
                f"cannot replace '/{place.path}' in {store}: its document exists, but is not listed; use a "
                "store that lists all of its keys"
            )
        away = place.in_order(_leaving(place, there))
        documents = {
            path: {key: value.decode("utf-8", "surrogatepass") for key, value in own.items()}
            for path, own in self.new.documents.items()
        }
        swap = Swap(place.path, self.new.format.zarr_format, away, come, documents)
        with self.noting():
            store.set(f"{self.top}{SWAP}", swap.text())
            if self.lease is not None:
                self.lease.say(place.path, SWAPPING, self.top)
        self.is_swapping = True
        put_in_place(store, self.new.format, self.top, swap)

    def _remove_staged(self) -> None:
        if self.is_staged or self.plan is not None:
            remove_keys(self.target, self.top)

    def _remove_written(self) -> None:
        if self.is_staged and self._is_ours:
            remove_keys(self.target, self.top)
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

    def begin(self) -> None:
        place = self.place
        if self.overwrite:
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
