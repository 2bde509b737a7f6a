"""Where a node lies in a store, and where its new values wait until they are put in place.

Defines the keys of a node (``NodeKeys``), the interface of a staged write (``Staging``) and a store that
puts values under a staging prefix (``StagedKeys``). How a swap is done is left to
:mod:`xzarr3.commit.swap` and :mod:`xzarr3.commit.replace_directory`.
"""

from __future__ import annotations

import os
import sys
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
from xzarr3.nodes.erase import formats_in, keys_at, leaving_stages
from xzarr3.nodes.foreign_keys import documents_among, foreign_among
from xzarr3.parallel import parallel_map
from xzarr3.stores import Scratch, Store, Traits
from xzarr3.stores.local.names import STAGED
from xzarr3.stores.values import joined

NEW, OLD = "new", "old"
SWAP = "swap"  # the list of steps of a swap, beside the new values
BEGUN = "begun"  # exists from the beginning of a write to its end


@dataclass(frozen=True)
class NodeKeys:
    """The keys of a node and of all nodes below it, whether they exist or not.

    Parameters
    ----------
    path : str
        Path of the node.
    formats : tuple of Format
        Formats in which nodes may exist there; the format to write comes first.
    folders : tuple of str
        Every key under one of these and a ``/`` belongs to the node. An empty string stands for all keys.
    documents : tuple of str
        Keys of documents of the node outside of ``folders``.
    """

    path: str
    formats: tuple[Format, ...]
    folders: tuple[str, ...]
    documents: tuple[str, ...]

    @classmethod
    def of(cls, store: Store, format: Format, path: str) -> NodeKeys:
        """The places of the node at ``path``, which will be written in ``format``."""
        prefixes = format.prefixes(path)
        formats = [format]
        for other in formats_in(store):
            # Below the root, a format counts only if it uses the same prefixes.
            if other not in formats and (not path or other.prefixes(path) == prefixes):
                formats.append(other)
        folders = {prefix.rstrip("/") for each in formats for prefix in each.prefixes(path)}
        if "" in folders:
            return cls(path, tuple(formats), ("",), ())
        below = tuple(f"{folder}/" for folder in folders)
        keys = {key for each in formats for key in each.document_keys(path) if not key.startswith(below)}
        return cls(path, tuple(formats), tuple(sorted(folders)), tuple(sorted(keys)))

    def keys(self, store: Store) -> set[str]:
        """The existing keys, without leases and staged values."""
        return self.own(keys_at(store, self.formats, self.path))

    @staticmethod
    def own(keys: Iterable[str]) -> set[str]:
        """``keys`` without leases and staged values."""
        return {key for key in keys if not key.startswith(STAGED) and not is_lease(key)}

    def stages(self, keys: Iterable[str]) -> list[list[str]]:
        """Keys in the order of removal; all keys of one list are removed together."""
        return leaving_stages(self.formats, self.path, keys)


def is_occupied(store: Store, places: NodeKeys) -> bool:
    """Whether a place holds anything but leases and staged values.

    In a store that cannot list, only the documents of a node are checked.
    """
    documents = places.documents
    if not store.listable:
        documents = tuple(key for each in places.formats for key in each.document_keys(places.path))
    if any(parallel_map(store.exists, documents, store.concurrency)):
        return True
    if not store.listable:
        return False
    folders = [f"{folder}/" if folder else "" for folder in places.folders]
    for keys, prefixes in parallel_map(store.list_dir, folders, store.concurrency):
        if any(not found.startswith(STAGED) and not is_lease(found) for found in keys | prefixes):
            return True
    return False


def foreign_keys(
    store: Store,
    places: NodeKeys,
    arrays: Mapping[str, ArrayMetadata],
    moved_from: Store | None = None,
    keys: set[str] | None = None,
) -> set[str]:
    """Existing keys that are no part of a Zarr hierarchy; they stay when the hierarchy is replaced.

    Parameters
    ----------
    store : Store
    places : Places
    arrays : mapping of str to ArrayMetadata
        The new arrays, by path. A file with the name of one of their chunks is replaced with them: the new
        array would read it as its own. Killed writes leave chunks without documents.
    moved_from : Store, optional
        The store from which the keys of ``store`` were moved.
    keys : set of str, optional
        The existing keys, if they were listed already.

    Raises
    ------
    NodeExistsError
        If a key may be a chunk of an array whose documents cannot be read, or cannot stay beside the new
        ones.
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
    """Those of ``keys`` that a new node would read as its own, such as a lone document of attributes."""
    places = {key: format.place(key) for key in keys}
    return {
        key
        for key, place in places.items()
        if place is not None and any(map(is_there, (key, *format.defining_keys(place.path))))
    }


def staged_prefixes(store: Store) -> list[str]:
    """Key prefixes under which writes have stored staged values or notes."""
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


class Staging(ABC):
    """The values of one write, from its first chunk until they are in place.

    ``store`` takes the values, under their final keys.
    """

    store: Store
    _lease: Lease | None = None
    is_alone = True
    """Whether this write brings the documents above up to date; otherwise its caller does."""

    @abstractmethod
    def begin(self) -> None:
        """Prepare the place before the first value is stored, or resume.

        Raises
        ------
        NodeExistsError
            If another writer has written to the place since the write was planned.
        """

    def check(self) -> None:  # noqa: B027 - others check in swap()
        """Raise, before documents are stored, if another writer has written to the place since."""

    @abstractmethod
    def swap(self, nodes: Mapping[str, NodeMetadata], consolidate: bool) -> None:
        """Put the new node in its place, and bring the documents above up to date.

        A swap that has begun only goes forward.

        Parameters
        ----------
        nodes : mapping of str to metadata
            Metadata of the written nodes, by path relative to the uppermost node, which has the empty path.
        consolidate : bool
            Rewrite the consolidated metadata of the root.

        Raises
        ------
        NodeExistsError
            If the place holds something that may not be replaced.
        StoreError
            If staged values are gone, or cannot be put in place.
        """

    @abstractmethod
    def clean(self) -> None:
        """Remove the old values once the new ones are in place, and leftovers of killed writes."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the written values, except during a swap, when they or the old ones are the only copy."""


def lease_at(store: Store, places: NodeKeys, plan: str | None = None, top: str = "") -> Lease:
    """The lease of a place; a resumable write gives its ``plan``."""
    path = places.path
    key = place_key(store, path, places.formats[0].chunk_prefix(path) if path else "")
    return Lease(store, key, "replace", plan=plan, top=top)


def occupied(store: Store, places: NodeKeys) -> NodeExistsError:
    return NodeExistsError(
        f"'/{places.path}' in {store} is not empty: another writer has written there since this write was "
        "planned; write to another path, or call it again to replace what is stored there"
    )


def verified(lease: Lease, path: str) -> bool:
    """False, for a list of checks; raises if the lease of the place was lost."""
    lease.verify(path)
    return False


def without(error: StoreError, *prefixes: str) -> StoreError:
    """The error, with staging prefixes removed from its message, so that keys have their final names."""
    for prefix in prefixes:
        error.args = tuple(
            argument.replace(prefix, "") if isinstance(argument, str) else argument for argument in error.args
        )
    return error


def gone(store: Store, how: str = "because another writer has removed them") -> StoreError:
    """The error for staged values that are gone."""
    return StoreError(
        f"cannot write to {store}: values that this write stored before are gone, {how}; another write "
        f"removes them if nothing was stored for {ABANDONED / 3600:g} hours; repeat the write"
    )


class StagedKeys(Store):
    """Stores values under a prefix and keeps documents in memory; messages use the final keys.

    Parameters
    ----------
    store : Store
    prefix : str
    format : Format, optional
        The format whose documents stay in memory.
    """

    reports = False

    def __init__(self, store: Store, prefix: str, format: Format | None = None) -> None:
        super().__init__()
        able = {
            "get": store.readable,
            "put": store.writeable,
            "erase": store.erasable,
            "list": store.listable,
        }
        self.traits = Traits(
            read_only=store.read_only,
            operations=tuple(name for name, is_able in able.items() if is_able),
            concurrency=store.concurrency,
            request_bytes=store.traits.request_bytes,
            over_read=store.traits.over_read,
        )
        self._store = store
        self._prefix = prefix
        self._format = format
        self._guard = threading.Lock()
        self._written: set[str] = set()
        self._alone = True  # no copy of this object exists that may have written values
        self.documents: dict[str, bytes] = {}
        """The stored documents. They are small and are stored last."""

    def __getstate__(self) -> dict[str, object]:
        self._alone = False
        return {**self.__dict__, "_guard": None, "_written": set()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._guard = threading.Lock()

    def written(self) -> set[str]:
        """The keys of all values stored and not erased, also by other processes.

        Raises
        ------
        StoreError
            If values stored by this process are not listed.
        """
        with self._guard:
            found = set(self._written)
        there = set(self.list_prefix(""))
        lost = sorted(found - there)
        if lost and self._alone and all(parallel_map(self.exists, lost, self.concurrency)):
            return found | there  # listings may lag behind writes
        if lost:
            raise gone(
                self,
                f"because {len(lost)} are not listed, {listed(lost[:3])}, and those of other processes may "
                "not be listed either",
            )
        return there

    def forget(self) -> None:
        """Forget all keys and documents: the values were put in place or removed."""
        with self._guard:
            self._written.clear()
            self.documents.clear()

    def __repr__(self) -> str:
        return repr(self._store)

    def _renamed(self, error: StoreError) -> StoreError:
        return without(error, self._prefix)

    def get(
        self,
        key: str,
        byte_range: ByteRange | None = None,
        *,
        into: Scratch | None = None,
        limit: int = sys.maxsize,
    ) -> Buffer | None:
        try:
            return self._store.get(self._prefix + key, byte_range, into=into, limit=limit)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:  # type: ignore[override]
        format = self._format
        if format is not None and (format.place(key) is not None or key in format.hierarchy_documents()):
            self.documents[key] = joined(pieces)
            return
        try:
            self._store.put(self._prefix + key, pieces)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__
        with self._guard:
            self._written.add(key)

    def erase(self, *keys: str) -> None:
        with self._guard:
            self._written.difference_update(keys)
        try:
            self._store.erase_values([self._prefix + key for key in keys])
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def list(self, prefix: str = "") -> Iterator[str]:
        for key in self._store.list_prefix(self._prefix + prefix):
            yield key[len(self._prefix) :]
