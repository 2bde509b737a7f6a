"""A write that makes or replaces one node with all nodes below it, as one change to its place in the store.

A reader finds the old node, the new one, or an error that says that a write is under way. There are three
ways: a directory is replaced by renaming (:mod:`xzarr3.commit.directory`); in a store of keys, values are
copied, or stored in place where nothing is lost by it (:mod:`xzarr3.commit.keys`); a store that commits by
itself takes them as they come. All three take values and documents under their final keys.

This module knows nothing of codecs or of how values are computed.
"""

from __future__ import annotations

import itertools
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import msgspec

from xzarr3._types import Buffer
from xzarr3.commit.create import groups_missing, make_groups_above
from xzarr3.commit.lease import Lease
from xzarr3.commit.places import Place
from xzarr3.errors import StoreError, StorePermissionError
from xzarr3.formats import Format, ZarrFormat, documents
from xzarr3.formats.base import Held, node_prefix
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes.consolidated import refresh_consolidated, write_consolidated
from xzarr3.nodes.find import DocumentView, held_below, read_metadata
from xzarr3.nodes.node import ancestors
from xzarr3.nodes.seen import note_documents
from xzarr3.stores import Store
from xzarr3.stores.local.files import failed
from xzarr3.stores.local.names import STAGED, is_lock

NEW, OLD = "new", "old"
SWAP = "swap"  # what is left to do in a swap, beside the new values
BEGUN = "begun"  # exists from the beginning of a write to its end, in a store of keys


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
    """

    format: Format
    path: str
    nodes: Mapping[str, NodeMetadata]
    documents: Mapping[str, Mapping[str, bytes]]
    consolidate: bool = False
    is_alone: bool = True

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

    def follow(self, store: Store) -> None:
        """Bring the documents above up to date, now that the node is in its place."""
        note_documents(store, self.nodes)
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
    """

    store: Store
    """Takes values and documents, under their final keys."""
    lease: Lease | None = None
    """Keeps other writers away, once taken."""
    is_staged = True
    """Whether values wait beside their place until all are stored."""
    is_swapping = False
    """Whether the old node may have left, so that the swap only goes forward."""

    def __init__(
        self,
        place: Place,
        new: NewNode,
        *,
        overwrite: bool,
        plan: str | None = None,
        left: str | None = None,
    ) -> None:
        self.place, self.new, self.overwrite, self.plan = place, new, overwrite, plan
        self.target = self.store = place.store
        self.resumes = left is not None
        """Whether values of a cut-off write of this plan count as written."""
        self.top = f"{STAGED}{uuid.uuid4().hex}/" if left is None else left
        """Prefix of all that the write stores beside its place."""

    @abstractmethod
    def begin(self) -> None:
        """Prepare the place before the first value is stored.

        Raises
        ------
        NodeExistsError
            If another writer has written to the place since the write was planned.
        """

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
        """Raise if there is an array above the node."""
        groups_missing(DocumentView(self.target), self.new.format, self.place.path)

    def gone(self, how: str = "because another writer has removed them") -> StoreError:
        """The error for staged values that are gone."""
        return StoreError(
            f"cannot write to {self.target}: values that this write stored before are gone, {how}; another "
            "write removes them if nothing was stored for a day; repeat the write"
        )


# What is left to do in a swap


@dataclass(frozen=True)
class Swap:
    """The stored list of what is to be done in a swap, so that it can be finished after a kill.

    Parameters
    ----------
    path : str
        Path of the node.
    zarr_format : {3, 2, "3-draft"}
    away : list of lists of str
        What leaves; all of one list leaves before the next list.
    come : list of str
        What comes, relative to the prefix of the new values. In a directory these are names that are renamed,
        elsewhere keys of chunks.
    documents : mapping
        For each node path, its documents by key; none where they are among what comes.
    overwrite : bool
        Also replace what has appeared since. Without it, if something has appeared, nothing is replaced.
    """

    path: str
    zarr_format: ZarrFormat
    away: list[list[str]]
    come: list[str]
    documents: dict[str, dict[str, str]]
    overwrite: bool = True

    def text(self) -> bytes:
        """The stored form."""
        return json.dumps(asdict(self), separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def parse(cls, value: Buffer, key: str) -> Swap:
        """The list stored by :meth:`text`.

        Raises
        ------
        StoreError
            If the value is no such list.
        """
        try:
            found = msgspec.convert(json.loads(bytes(value)), cls)
            if all(map(_is_unit, itertools.chain(*found.away, found.come))):
                return found
        except (ValueError, RecursionError):
            pass
        top = key.removesuffix(SWAP)
        raise StoreError(
            f"key '{key}' does not list what is left to do, so the swap cannot be completed; look at the "
            f"keys that begin with '{top}', copy good values to their final keys, and remove the rest and "
            "the lease"
        )

    def encoded(self) -> dict[str, dict[str, bytes]]:
        """The documents as they are stored."""
        return {
            path: {key: text.encode("utf-8", "surrogatepass") for key, text in own.items()}
            for path, own in self.documents.items()
        }


def _is_unit(name: str) -> bool:
    """Whether a string can name something below the root that a write may move."""
    is_inside = not {"", ".", ".."} & set(name.split("/")) and "\0" not in name
    return is_inside and not name.startswith(STAGED) and not is_lock(name)


# Documents above


def nodes_at(store: Store, format: Format, path: str) -> dict[str, NodeMetadata]:
    """The nodes that are at a path and below it now, by path."""
    meta = read_metadata(store, format, path, consolidated=False, again=True)
    prefix = node_prefix(path)
    below = {f"{prefix}{each}": held for each, held in held_below(store, format, path).items()}
    nodes = {each: format.parse(held, each) for each, held in below.items()}
    return nodes if meta is None else {path: meta, **nodes}


def finish_above(
    store: Store, format: Format, path: str, nodes: Mapping[str, NodeMetadata], consolidate: bool = False
) -> None:
    """Create missing groups above a node, and bring consolidated copies in groups above up to date.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
    nodes : mapping of str to metadata
        The node and those below it, by path.
    consolidate : bool
        Rewrite the consolidated metadata of the root.
    """
    if not path:
        return
    made = make_groups_above(store, format, path)
    metas = {**{each: GroupMetadata(zarr_format=format.zarr_format) for each in made}, **nodes}
    above = [each for each in ancestors(path) if each or not consolidate]
    refresh_consolidated(store, format, [*made, *nodes], metas, holders=above)
    if consolidate:
        write_consolidated(store, format, "", list(nodes))
