"""Where the values of a write lie until they take their place, and what there is at that place."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xzarr3._types import Buffer, ByteRange
from xzarr3.commit.lease import Lease, is_lease, place_key
from xzarr3.commit.leftovers import ABANDONED
from xzarr3.errors import NodeExistsError, StoreError, listed
from xzarr3.formats import Format
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.nodes.erase import (
    documents_among,
    foreign_among,
    formats_in,
    keys_at,
    leaving_stages,
)
from xzarr3.parallel import spread
from xzarr3.stores import Store
from xzarr3.stores.local.folders import STAGED

NEW, OLD = "new", "old"
SWAP = "swap"  # The list of what is to be done, beside the new values.
BEGUN = "begun"  # Is there from the beginning of a write to its end.


@dataclass(frozen=True)
class Places:
    """Where in a store a node is with all that is below it, whatever of that there is yet.

    Parameters
    ----------
    path : str
        Path of the node.
    formats : tuple of Format
        The formats in which nodes can be there, the one that is written first.
    folders : tuple of str
        Keys that begin with one of these and a ``/`` belong to it; all keys if one is empty.
    documents : tuple of str
        Keys of documents of the node that lie elsewhere.
    """

    path: str
    formats: tuple[Format, ...]
    folders: tuple[str, ...]
    documents: tuple[str, ...]

    @classmethod
    def of(cls, store: Store, format: Format, path: str) -> Places:
        """Those of the node at ``path``, which is to be written in ``format``."""
        prefixes = format.prefixes(path)
        formats = [format]
        for other in formats_in(store):
            # Below the root, another format may be found in these places but has none of its own.
            if other not in formats and (not path or other.prefixes(path) == prefixes):
                formats.append(other)
        folders = {prefix.rstrip("/") for each in formats for prefix in each.prefixes(path)}
        if "" in folders:
            return cls(path, tuple(formats), ("",), ())
        below = tuple(f"{folder}/" for folder in folders)
        keys = {key for each in formats for key in each.document_keys(path) if not key.startswith(below)}
        return cls(path, tuple(formats), tuple(sorted(folders)), tuple(sorted(keys)))

    def keys(self, store: Store) -> set[str]:
        """The keys that are there, without leases and values of writes that are under way or were killed."""
        return self.own(keys_at(store, self.formats, self.path))

    @staticmethod
    def own(keys: Iterable[str]) -> set[str]:
        """Those of some keys that are no leases and no values of writes that go on or were killed."""
        return {key for key in keys if not key.startswith(STAGED) and not is_lease(key)}

    def stages(self, keys: Iterable[str]) -> list[list[str]]:
        """Keys in the order in which they are to be removed, all of a list together."""
        return leaving_stages(self.formats, self.path, keys)


def is_occupied(store: Store, places: Places) -> bool:
    """Whether there is anything but leases and values of writes that are under way or were killed.

    A store that cannot list is only asked for the documents of a node.
    """
    documents = places.documents
    if not store.listable:
        documents = tuple(key for each in places.formats for key in each.document_keys(places.path))
    if any(spread(store.exists, documents, store.concurrency)):
        return True
    if not store.listable:
        return False
    folders = [f"{folder}/" if folder else "" for folder in places.folders]
    for keys, prefixes in spread(store.list_dir, folders, store.concurrency):
        if any(not found.startswith(STAGED) and not is_lease(found) for found in keys | prefixes):
            return True
    return False


def foreign_keys(
    store: Store,
    places: Places,
    arrays: Mapping[str, ArrayMetadata],
    moved_from: Store | None = None,
    keys: set[str] | None = None,
) -> set[str]:
    """The keys that are there and no part of a Zarr hierarchy: they stay where that is replaced.

    Parameters
    ----------
    store : Store
    places : Places
    arrays : mapping of str to ArrayMetadata
        The arrays that will be there, by path. What has the name of one of their chunks is replaced with
        them: they would take it for their own, and killed writes leave chunks without documents.
    moved_from : Store, optional
        Where the keys of ``store`` have been moved from.
    keys : set of str, optional
        The keys that are there, if they were listed already.

    Raises
    ------
    NodeExistsError
        If some may be chunks of an array whose documents cannot be read, or cannot lie beside the new ones.
    """
    if keys is None:
        keys = places.keys(store)
    home = store if moved_from is None else moved_from
    return foreign_among(
        store,
        places.formats,
        places.path,
        keys,
        documents_among(places.formats, keys),
        format=places.formats[0],
        arrays=arrays,
        undone="nothing was written",
        home=home,
    )


def taken_up(format: Format, keys: Iterable[str], is_there: Callable[[str], bool]) -> set[str]:
    """Those of some keys that a new node takes for its own, such as a lone document of attributes."""
    places = {key: format.place(key) for key in keys}
    return {
        key
        for key, place in places.items()
        if place is not None and any(map(is_there, (key, *format.defining_keys(place.path))))
    }


def staged_prefixes(store: Store) -> list[str]:
    """What the keys begin with that writes have moved aside, or noted."""
    if not store.listable:
        return []
    return sorted(prefix for prefix in store.list_dir("")[1] if prefix.startswith(STAGED))


def staging_folders(store: Store) -> list[str]:
    try:
        with os.scandir(str(store.folder)) as entries:
            return [
                entry.path
                for entry in entries
                if entry.name.startswith(STAGED) and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot list {store}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Room:
    """Where a write has begun; picklable.

    Parameters
    ----------
    id : str
        Tells it from what is made in its place once it was removed. Who begins where it is goes on in it.
    lease : Lease, optional
        What reserves it.
    owner : str
        As whose it was reserved; the lease may have been taken again since.
    """

    id: str = ""
    lease: Lease | None = None
    owner: str = ""

    @property
    def is_held(self) -> bool:
        """Whether nobody in this process has taken the lease again."""
        return self.lease is None or self.lease.owner == self.owner


class Staging(ABC):
    """The values of one write, from the first chunk until they are what is found at their place.

    ``store`` takes them, under the keys that they will have.
    """

    store: Store
    _lease: Lease | None = None
    room = Room()
    """Where the write has begun that is ended or discarded."""
    is_alone = True
    """Whether it brings the documents above up to date; otherwise whoever does more than this does."""

    @abstractmethod
    def begin(self) -> None:
        """Make room for values, before the first one is stored, or go on where that was done; see ``room``.

        Raises
        ------
        NodeExistsError
            If something has come into the way since the write was planned.
        """

    def enter(self, room: Room) -> None:
        """End, or discard, what has begun there, maybe in another process."""
        self.room = room
        if room.lease is not None:
            self._lease = room.lease

    def check(self) -> None:  # noqa: B027 - others see it when they swap
        """Refuse, before the documents are stored, what has come into the way since."""

    @abstractmethod
    def swap(self, nodes: Mapping[str, NodeMetadata], consolidate: bool) -> None:
        """Put what was written in the place of what is there, and bring the documents above up to date.

        Once it has begun this only goes forward.

        Parameters
        ----------
        nodes : mapping of str to metadata
            What was written, by path relative to the uppermost node, which has the empty path.
        consolidate : bool
            Make the consolidated metadata of the root anew.

        Raises
        ------
        NodeExistsError
            If there is what may not be replaced.
        StoreError
            If some of what was written is not there any more, or it cannot be put in its place.
        """

    @abstractmethod
    def clean(self) -> None:
        """Remove what was replaced, once the new values are whole, and what killed writes left."""

    def close(self) -> None:  # noqa: B027 - most need not know
        """Take no more values: the write has failed, but some of its tasks may not have ended."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written, unless it or what it replaces is the only copy of something."""


def lease_at(store: Store, places: Places, plan: str | None = None, top: str = "") -> Lease:
    """The lease of a place, for a write of a plan that can be taken up again, or of none."""
    path = places.path
    key = place_key(store, path, places.formats[0].chunk_prefix(path) if path else "")
    return Lease(store, key, "replace", plan=plan, top=top)


def occupied(store: Store, places: Places) -> NodeExistsError:
    return NodeExistsError(
        f"'/{places.path}' in {store} is not empty: somebody else has written there since this write was "
        "planned; accepted: another place, or replacing what is there with a new call"
    )


def verified(lease: Lease, path: str) -> bool:
    """Whether anybody is in the way; who has lost the place hears of it by an error."""
    lease.verify(path)
    return False


def without(error: StoreError, *prefixes: str) -> StoreError:
    """An error in whose message keys are called what they will be."""
    for prefix in prefixes:
        error.args = tuple(
            argument.replace(prefix, "") if isinstance(argument, str) else argument for argument in error.args
        )
    return error


def gone(store: Store, how: str = "as somebody has removed them") -> StoreError:
    """The error for values that are not there any more."""
    return StoreError(
        f"cannot write to {store}: values that this write stored before are gone, {how}; another write does "
        f"that if nothing was stored for {ABANDONED / 3600:g} hours, and an earlier attempt at this one when "
        "it is cleaned up late; accepted: the same again, or a new call"
    )


class StagedKeys(Store):
    """Keys below a prefix, called in messages what they will be; documents stay in memory.

    Parameters
    ----------
    store : Store
    prefix : str
    format : Format, optional
        The format of the documents that are kept.
    """

    _tells = False

    def __init__(self, store: Store, prefix: str, format: Format | None = None) -> None:
        super().__init__(read_only=store.read_only)
        self.concurrency = store.concurrency
        self.request_bytes = store.request_bytes
        self.over_read = store.over_read
        self._store = store
        self._prefix = prefix
        self._format = format
        self._guard = threading.Lock()
        self._written: set[str] = set()
        self._alone = True  # No copy of this one may have written something.
        self.documents: dict[str, bytes] = {}
        """The documents that were stored, which are small and the last of all."""

    def __getstate__(self) -> dict[str, object]:
        self._alone = False
        return {**self.__dict__, "_guard": None, "_written": set()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._guard = threading.Lock()

    def written(self) -> set[str]:
        """The keys of all values that were stored and not erased, in other processes, too.

        Raises
        ------
        StoreError
            If some that were stored here are not listed.
        """
        with self._guard:
            found = set(self._written)
        there = set(self.list_prefix(""))
        lost = sorted(found - there)
        if lost and self._alone and all(spread(self.exists, lost, self.concurrency)):
            return found | there  # A list may be behind.
        if lost:
            raise gone(
                self,
                f"as {len(lost)} are not listed, {listed(lost[:3])}, so that those of other processes may "
                "not be either",
            )
        return there

    def forget(self) -> None:
        """Begin anew: what was stored has gone to its place, or was removed."""
        with self._guard:
            self._written.clear()
            self.documents.clear()

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def writeable(self) -> bool:
        return self._store.writeable

    @property
    def erasable(self) -> bool:
        return self._store.erasable

    def _renamed(self, error: StoreError) -> StoreError:
        return without(error, self._prefix)

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        try:
            return self._store.get(self._prefix + key, byte_range)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def _set(self, key: str, value: bytes) -> None:
        format = self._format
        if format is not None and (format.place(key) is not None or key in format.hierarchy_documents()):
            self.documents[key] = bytes(value)
            return
        try:
            self._store.set(self._prefix + key, value)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__
        with self._guard:
            self._written.add(key)

    def _erase_values(self, keys: Sequence[str]) -> None:
        with self._guard:
            self._written.difference_update(keys)
        try:
            self._store.erase_values([self._prefix + key for key in keys])
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def _list(self, prefix: str) -> Iterator[str]:
        for key in self._store.list_prefix(self._prefix + prefix):
            yield key[len(self._prefix) :]
