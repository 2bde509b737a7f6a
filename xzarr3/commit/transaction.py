"""A write that makes or replaces one node with all nodes below it, as one change to its place in the store.

A reader finds the old node, the new one, or an error that says that a write is under way. There are three
ways: a directory is replaced by renaming (:mod:`xzarr3.commit.directory`); in a store of keys, values are
copied, or stored in place where nothing is lost by it (:mod:`xzarr3.commit.keys`); a store that commits by
itself takes them as they come. All three take values and documents under their final keys.

A writer takes the lease of the place after what its previous holder left is finished, resumed or removed:
:func:`take`. This module knows nothing of codecs or of how values are computed.
"""

from __future__ import annotations

import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from xzarr3._types import Buffer
from xzarr3.commit.create import groups_missing, make_groups_above
from xzarr3.commit.lease import SWAPPING, Holder, Lease, LeaseLostError, place_key, while_held
from xzarr3.commit.places import Place
from xzarr3.commit.staged import SWAP, Swap, is_top
from xzarr3.errors import ConflictError, StoreError, StorePermissionError, printable
from xzarr3.formats import Format, documents, parse_format
from xzarr3.formats.base import Held, fits, node_prefix
from xzarr3.formats.documents import dated
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes.consolidated import holds_copies, refresh_consolidated, write_consolidated
from xzarr3.nodes.erase import formats_in
from xzarr3.nodes.find import DocumentView, find_format, held_below
from xzarr3.nodes.node import ancestors
from xzarr3.nodes.seen import date_now, note_date, note_documents, replaced_at
from xzarr3.stores import Store
from xzarr3.stores.local.files import failed
from xzarr3.stores.local.names import STAGED


@dataclass(frozen=True)
class NewNode:
    """A node with all nodes below it, as it will be.

    Parameters
    ----------
    format : Format
    path : str
        Path of the uppermost node.
    nodes : mapping of str to metadata
        The metadata of all nodes by path.
    documents : mapping of str to mapping
        The documents of each node by key, as they are stored.
    consolidate : bool
        Rewrite the consolidated metadata of the root afterwards.
    is_alone : bool
        Bring the documents above up to date. Without it, the caller does so once, after several writes.
    placed_at : float
        The date in the documents.
    """

    format: Format
    path: str
    nodes: Mapping[str, NodeMetadata]
    documents: Mapping[str, Mapping[str, bytes]]
    consolidate: bool = False
    is_alone: bool = True
    placed_at: float = 0

    @classmethod
    def of(
        cls,
        format: Format,
        path: str,
        nodes: Mapping[str, NodeMetadata],
        *,
        consolidate: bool = False,
        is_alone: bool = True,
    ) -> NewNode:
        """The node with the documents that follow from its metadata."""
        encoded = {}
        for each, meta in nodes.items():
            found = format.documents(
                meta, each, held_in(format, path, nodes) if consolidate and not each else None
            )
            if not each:  # stored last: without these documents there is no hierarchy
                found = {**found, **format.hierarchy_documents()}
            encoded[each] = {key: documents.encode(document, each) for key, document in found.items()}
        return cls(format, path, nodes, encoded, consolidate, is_alone)

    @property
    def arrays(self) -> dict[str, ArrayMetadata]:
        """The arrays by path."""
        return {path: meta for path, meta in self.nodes.items() if isinstance(meta, ArrayMetadata)}

    def dated(self, store: Store, stay: Container[str] = ()) -> NewNode:
        """The same, whose documents tell handles opened before that other nodes were in these places.

        Parameters
        ----------
        store : Store
        stay : container of str
            Paths of arrays of which all elements stay what they are: handles on them go on.
        """
        now, encoded = date_now(store), {}
        for path, own in self.documents.items():
            at = dict.fromkeys(own, now)
            if path in stay:
                at = {key: replaced_at(store, key) or 0 for key in own}
            encoded[path] = {key: dated(value, at[key]) if at[key] else value for key, value in own.items()}
        return replace(self, documents=encoded, placed_at=now)

    def note_dates(self, store: Store) -> None:
        """Note when the nodes were replaced, for the handles of this process."""
        for own in self.documents.values():
            for key, value in own.items():
                note_date(store, key, value)

    def follow(self, store: Store) -> None:
        """Bring the documents above up to date, now that the node is in its place."""
        note_documents(store, self.nodes)
        self.note_dates(store)
        if self.is_alone:
            finish_above(store, self.format, self.path, self.nodes, self.consolidate)


def held_in(format: Format, path: str, nodes: Mapping[str, NodeMetadata]) -> dict[str, Held]:
    """The documents of the nodes below a group for its consolidated copy, by relative path."""
    prefix = node_prefix(path)
    return {
        each.removeprefix(prefix): format.hold(meta, each) for each, meta in nodes.items() if each != path
    }


class Transaction(ABC):
    """One write: :meth:`begin`, then values go to ``store``, then :meth:`publish`; or :meth:`discard`.

    Use it with :func:`write`, which calls these.

    Parameters
    ----------
    place : Place
    new : NewNode
    overwrite : bool
        Replace what is there; without it, the place must be empty.
    plan : str, optional
        Fingerprint of a write that can be resumed: what was stored stays after an error, and
        the next write of this plan finds it.
    left : str, optional
        Prefix of what a cut-off write of this plan has stored beside the place.
    goes_on : bool
        Whether the place itself holds values of that write.
    lease : Lease, optional
        The lease of the place, if the caller holds it from before the write to after it.
    """

    store: Store
    """Takes values and documents, under their final keys."""
    lease: Lease | None = None
    """Keeps other writers away, once taken."""
    is_staged = True
    """Whether values wait beside their place until all are stored."""
    is_swapping = False
    """Whether the old node may have left, so that the swap only goes forward."""
    stay: Container[str] = ()
    """Paths of arrays of which all elements stay what they are, though their documents are replaced."""
    group_at: float | None = None
    """When the group was put in its place for which the node is planned; None for any group."""
    kept_leases: Collection[str] = ()
    """Keys of leases within the old node, or beside it, that are of this writer."""
    unchanged: Callable[[str | Mapping[str, Buffer | None]], bool] | None = None
    """Whether the old node is what it was when values were taken from it. It is asked once no other writer
    looks there: with the folder where it lies aside, or with its documents by key, which have left. If it has
    changed, it is put back."""

    def __init__(
        self,
        place: Place,
        new: NewNode,
        *,
        overwrite: bool,
        plan: str | None = None,
        left: str | None = None,
        goes_on: bool = False,
        lease: Lease | None = None,
    ) -> None:
        self.place, self.new, self.overwrite, self.plan = place, new, overwrite, plan
        self.target = place.store
        self._goes_on, self._given = goes_on, lease
        self.resumes = left is not None
        """Whether values of a cut-off write of this plan count as written."""
        self.top = f"{STAGED}{uuid.uuid4().hex}/" if left is None else left
        """Prefix of all that the write stores beside its place."""
        self.store = self._prepared()

    def _prepared(self) -> Store:
        """The store that values go to; raises if what is there cannot be replaced. Nothing is stored yet."""
        return self.target

    @abstractmethod
    def begin(self) -> None:
        """Prepare the place before the first value is stored.

        Raises
        ------
        NodeExistsError
            If another writer has written to the place since the write was planned.
        """

    def keep_writers_away(self) -> None:  # noqa: B027 - by default nothing is to be done
        """Let nobody write values in the old node from now on, where nothing else tells that they did."""

    @abstractmethod
    def publish(self) -> None:
        """Store the documents and put the node in its place. A swap that has begun only goes forward.

        Raises
        ------
        NodeExistsError
            If the place holds something that may not be replaced.
        StoreError
            If staged values are gone, or cannot be put in place.
        """

    def _follow(self) -> None:
        """Bring the documents above up to date, unless others may have replaced the node already."""
        if self.lease is not None:
            self.lease.make_sure(self.place.path)
        self.new.follow(while_held(self.target, self.lease, self.place.path))

    @staticmethod
    def finish(store: Store, format: Format, top: str, swap: Swap) -> bool:
        """Finish a swap that another process began; returns whether the new node is in its place.

        If not, the old node had not left, or another writer has written to the place since.
        """
        raise NotImplementedError

    @staticmethod
    def remove(store: Store, top: str) -> None:
        """Remove all that a write has stored below a prefix, the list of what is left to do first."""
        raise NotImplementedError

    def _take(self, lease: Lease, until: float | None = None) -> bool:
        """Take the lease of the place: :func:`take`; returns whether a cut-off write is resumed."""
        resumes, _ = take(type(self), lease, self.target, self.place.path, until)
        self.lease = lease
        return resumes

    def clean(self) -> None:
        """Remove the old values and the lease, now that the new node is in its place."""
        try:
            self._remove_staged()
        finally:  # leftovers do not block other writers
            self._release()

    def discard(self) -> None:
        """Remove the written values, and the lease."""
        try:
            self._remove_written()
        finally:
            self._release()

    @abstractmethod
    def _remove_staged(self) -> None:
        """Remove what the write has stored beside the place."""

    @abstractmethod
    def _remove_written(self) -> None:
        """Remove all that the write has stored, as the old node is still there."""

    def _release(self) -> None:
        if self.lease is not None:
            self.lease.release()

    def give_up(self, error: BaseException) -> None:
        """Remove what was written before ``error``, unless it can be resumed or finished; notes say which."""
        path, store = self.place.path, self.target
        try:
            if isinstance(error, LeaseLostError):
                # Who took the place may give up, and bring no copies up to date.
                refresh_consolidated(store, self.new.format, [*self.new.nodes])
            if self.is_swapping:
                error.add_note(
                    f"'/{path}' in {store} may be replaced only in part; xzarr3.recover(store), or the next "
                    "write to it, finishes that, or gives it up where nothing has left its place yet"
                )
            elif self.plan is not None and self.lease is not None:
                error.add_note(
                    f"what was written to '/{path}' in {store} is kept: the same call with resume=True "
                    "writes what is left; a call without it begins anew"
                )
            else:
                self.discard()
                return
            if self.lease is not None:
                self.lease.leave()
        except StoreError as another:
            error.add_note(f"not all that was written already could be removed: {another}")

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Errors about what the write notes for itself name the node: of these keys no user knows."""
        try:
            yield
        except StoreError as error:
            if STAGED not in str(error) or type(error) not in (StoreError, StorePermissionError):
                raise
            text = f"cannot write '/{self.place.path}' to {self.target}: its state cannot be noted"
            cause = error.__cause__
            raise (failed(text, cause) if isinstance(cause, OSError) else type(error)(text)) from error

    def check_groups(self) -> None:
        """Raise if there is an array above the node, or not the group any more for which it is planned."""
        format, above, look = self.new.format, self.place.path.rpartition("/")[0], DocumentView(self.target)
        missing = groups_missing(look, format, self.place.path)
        if self.group_at is None:
            return
        key = format.keys(above).defining[-1]
        is_gone = bool(missing) and not format.implicit_groups
        is_later = (documents.replaced_at(look.get(key)) or 0) > self.group_at
        # One with copies tells when any of the nodes was replaced.
        if is_gone or (is_later and not holds_copies(format, key, look.get(key))):
            raise ConflictError(
                f"cannot write '/{self.place.path}' to {self.target}: another writer has replaced or removed "
                f"'/{above}' since this write was planned; repeat the call"
            )

    def gone(self, how: str = "because another writer has removed them") -> StoreError:
        """The error for staged values that are gone."""
        return StoreError(
            f"cannot write to {self.target}: values that this write stored before are gone, {how}; another "
            "write removes them if nothing was stored for a day; repeat the write"
        )


# Documents above


def finish_above(
    store: Store,
    format: Format,
    path: str,
    nodes: Mapping[str, NodeMetadata] | None = None,
    consolidate: bool = False,
) -> None:
    """Create missing groups above a node, and bring consolidated copies in groups above up to date.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
    nodes : mapping of str to metadata, optional
        The node and those below it, by path, if they were stored just now; by default they are read.
    consolidate : bool
        Rewrite the consolidated metadata of the root.
    """
    if not path:
        return
    made = make_groups_above(store, format, path)
    metas = None
    if nodes is not None:
        paths = [*nodes]
        metas = {**{each: GroupMetadata(zarr_format=format.zarr_format) for each in made}, **nodes}
    else:
        paths = [path, *(node_prefix(path) + each for each in held_below(store, format, path))]
    above = [each for each in ancestors(path) if each or not consolidate]
    refresh_consolidated(store, format, [*made, *paths], metas, holders=above)
    if consolidate:
        write_consolidated(store, format, "", paths)


# What an ended writer has left


def take(
    way: type[Transaction], lease: Lease, store: Store, path: str, until: float | None = None
) -> tuple[bool, str | None]:
    """Take the lease of a place, after what its previous holder left is finished, resumed or removed.

    Parameters
    ----------
    way : type of Transaction
        How nodes are replaced in the store.
    lease : Lease
    store : Store
    path : str
        Path of the node, for messages.
    until : float, optional
        Until when to wait for a living holder, on the clock of :func:`time.monotonic`.

    Returns
    -------
    resumes : bool
        Whether the previous holder was cut off in a write of the same plan, whose values are there.
    path : str or None
        Path of the node whose swap was finished, if any was left.

    Raises
    ------
    NodeExistsError
        If a living writer holds the lease.
    """
    lease.reserve(path, until)
    left, wanted = lease.displaced, lease.wanted
    if left is None:
        return False, None
    try:
        if left.state == SWAPPING:
            done = _finish(way, store, lease, left)
            if wanted.top:  # otherwise it is released at once: until then, others find what was left
                lease.say(path, wanted.state, wanted.top)
            return False, done
        if left.top == wanted.top:
            return is_top(left.top), None
        if is_top(left.top):
            if wanted.plan is not None and left.plan not in (None, wanted.plan):
                _warn_of_another(path, store)
            _remove_left(way, store, left.top)
        return False, None
    except BaseException:  # the lease keeps its content for the next writer
        lease.leave()
        raise


def _finish(way: type[Transaction], store: Store, lease: Lease, said: Holder) -> str | None:
    """Finish the swap that a lease names; returns the path of the node if the new one is in its place."""
    swap = listed_swap(store, said)
    done = False
    if swap is not None:
        # expected only where the key follows from the path
        if store.folder is not None and lease.key != place_key(store, swap.path, ""):
            raise StoreError(
                f"key '{said.top}{SWAP}' lists what is to be done at '/{printable(swap.path)}', but the "
                f"lease '{lease.key}' names it; remove both keys"
            )
        held = while_held(store, lease, swap.path)
        done = way.finish(held, format_of(store, swap), said.top, swap)
        there = find_format(store, swap.path)
        if there is not None:
            finish_above(held, there, swap.path)
    _remove_left(way, store, said.top)
    return swap.path if swap is not None and done else None


def _remove_left(way: type[Transaction], store: Store, top: str) -> None:
    """Remove what another write has staged; a failure is only a warning, as leftovers block no writer."""
    try:
        way.remove(store, top)
    except StoreError as error:
        warnings.warn(
            f"some of what a killed process left in {store} could not be removed: {error}", stacklevel=2
        )


def listed_swap(store: Store, found: Holder) -> Swap | None:
    """What is left to do in the swap that a lease names."""
    if found.state != SWAPPING:
        return None
    if not is_top(found.top):
        raise StoreError(
            f"nothing of {store} is removed: {printable(found.top)!r} is not a prefix of values that a write "
            "staged; remove the lease if xzarr3 has not written it"
        )
    key = f"{found.top}{SWAP}"
    value = store.get(key)
    return None if value is None else Swap.parse(value, key)


def format_of(store: Store, swap: Swap) -> Format:
    """The format of the documents of a swap."""
    there = (each for each in formats_in(store) if fits(each, swap.zarr_format))
    return next(there, None) or parse_format(swap.zarr_format)


def _warn_of_another(path: str, store: Store) -> None:
    """Warn that a cut-off write of another plan is dropped at this place."""
    warnings.warn(
        f"a different write to '/{printable(path)}' in {store} was interrupted, so none of it is resumed: "
        "its data or encoding differ, or dask has given its arrays other names, as it does for sources "
        "that it cannot hash; what that write left is removed",
        stacklevel=2,
    )
