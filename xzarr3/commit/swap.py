"""Replaces a node by a swap: new values are staged beside the old node, then put in its place.

The old node stays readable while the new one is computed. One short swap follows. It only goes forward: the
list of its steps is stored beside the new values, and the lease of the place says that the swap is under way.
The old documents leave, then the old chunks. The new chunks are copied within the store. The new documents
come last, those of children first. In a directory all of this is done by renaming:
:mod:`xzarr3.commit.replace_directory`. :mod:`xzarr3.commit.staged` stages the values.

If a writer is killed before the old documents have left, the old node stays and can be changed again; the
staged values are removed. If it is killed later, everything needed to finish the swap is stored. The next
writer finishes it, or :func:`xzarr3.recover`; in a directory also a reader that opens the node and does not
find it. Until then, other readers that open the node get an error.

This module moves keys and documents. :mod:`xzarr3.commit.recover` finishes the swaps of killed writers.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial

from xzarr3._types import Buffer
from xzarr3.commit.lease import CLOSING
from xzarr3.commit.renames import bring_back, has_begun, is_unit, keep, swap_units
from xzarr3.commit.stage import NEW, SWAP, without
from xzarr3.errors import StoreError, listed, printable
from xzarr3.formats import FORMATS, Format, ZarrFormat
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes import changes
from xzarr3.nodes.consolidated import drop_from_consolidated, refresh_consolidated, write_consolidated
from xzarr3.nodes.create import make_groups_above
from xzarr3.nodes.documents import store_documents
from xzarr3.nodes.erase import erase_stages, formats_in
from xzarr3.nodes.find import find_format, held_below, read_metadata
from xzarr3.nodes.node import ancestors
from xzarr3.parallel import parallel_map
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.base import MOST_COPIED


@dataclass(frozen=True)
class Swap:
    """The stored list of steps of one swap, so that another writer can finish it.

    Parameters
    ----------
    path : str
        Path of the node.
    zarr_format : {3, 2, "3-draft"}
    lease : str
        Key of the lease of the place.
    away : list of lists of str
        Keys that leave; all keys of one list leave before the next list.
    copies : list of str
        Keys that come, relative to the staging prefix.
    documents : mapping
        For each node path, its documents by key.
    consolidate : bool
        Rewrite the consolidated metadata of the root.
    is_alone : bool
        Bring the documents above up to date; otherwise the caller of the swap does.
    renames : bool
        Keys in ``away`` and ``copies`` are units that are renamed in a directory, documents included.
    overwrite : bool
        Also replace what has appeared since. Without it, if something has appeared, nothing is replaced.
    """

    path: str
    zarr_format: ZarrFormat
    lease: str
    away: list[list[str]]
    copies: list[str]
    documents: dict[str, dict[str, str]]
    consolidate: bool
    is_alone: bool = True
    renames: bool = False
    overwrite: bool = True

    def text(self) -> bytes:
        """The stored form."""
        return json.dumps(asdict(self), separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def parse(cls, value: Buffer, key: str) -> Swap:
        """The swap stored by :meth:`text`.

        Raises
        ------
        StoreError
            If the value is no such list.
        """
        try:
            said = json.loads(bytes(value))
            found = cls(**said)
            moved = [each for stage in found.away for each in stage] + found.copies
            keys = [each for own in found.documents.values() for each in own]
            is_text = all(isinstance(each, str) for each in (*moved, *keys, found.path, found.lease))
            if is_text and (not found.renames or all(map(is_unit, moved))):
                return found
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass
        top = key.removesuffix(SWAP)
        raise StoreError(
            f"key '{key}' does not list what is left to do, so the swap cannot be completed; look at the "
            f"keys that begin with '{top}', copy good values to their final keys, and remove the rest and "
            "the lease"
        )

    def _rename(
        self,
        store: LocalStore,
        top: str,
        format: Format,
        nodes: Mapping[str, NodeMetadata] | None,
        known: Set[str],
    ) -> bool:
        """Carry out the swap in a directory; finished steps are not repeated."""
        away = [each for stage in self.away for each in stage]
        again = nodes is None
        if again and not has_begun(store, top, self._first_away(), self.copies):
            self._follow_old(store)
            return False
        if not swap_units(store, top, away, self.copies, overwrite=self.overwrite, again=again):
            if again:
                kept = keep(store, top, NEW)
                warnings.warn(
                    f"what a killed process was committing at '/{printable(self.path)}' in {store} is kept "
                    f"in '{kept}', because another writer has written there since",
                    stacklevel=2,
                )
            return False
        self._finish_above(store, format, nodes)
        metas = _nodes_at(store, format, self.path) if nodes is None else full_paths(self.path, nodes)
        arrays = {path: meta for path, meta in metas.items() if isinstance(meta, ArrayMetadata)}
        bring_back(store, top, format, self.path, arrays, overwrite=self.overwrite, known=known)
        return True

    def _first_away(self) -> list[str]:
        """The units that leave first: as long as one is in place, the old node can be found and changed."""
        away = [each for stage in self.away for each in stage]
        own = {key for format in FORMATS.values() for key in format.document_keys(self.path)}
        return [each for each in away if each in own] or away[:1]

    def _follow_old(self, store: Store) -> None:
        """Restore the consolidated copies of the old node, which were removed first."""
        format = find_format(store, self.path)
        if format is not None:
            nodes = _nodes_at(store, format, self.path)
            finish_above(store, format, self.path, list(nodes), nodes, False)

    def carry_out(
        self,
        store: Store,
        top: str,
        format: Format,
        say: Callable[[str], None],
        nodes: Mapping[str, NodeMetadata] | None = None,
        known: Set[str] = frozenset(),
    ) -> bool:
        """Carry out the swap; steps that another writer had finished are repeated where that is safe.

        Parameters
        ----------
        store : Store
        top : str
            Key prefix of the staged values.
        format : Format
        say : callable
            Stores the state of the place in the lease, and raises if the lease was lost.
        nodes : mapping of str to metadata, optional
            Metadata of the new nodes, by relative path. Without it, another writer began the swap, and the
            metadata are read.
        known : set of str
            Keys of the old node that were examined before.

        Returns
        -------
        bool
            Whether the swap is complete. If not, nothing was replaced: another writer has written to the
            place, or the writer that began the swap was killed before anything left.
        """
        if nodes is None and not self.renames and self._is_untouched(store):
            self._follow_old(store)
            return False
        # first, so that no consolidated copy outlives its document
        for each in formats_in(store, self.path, format):
            drop_from_consolidated(store, each, self.path)
        if isinstance(store, LocalStore):
            return self._rename(store, top, format, nodes, known)
        erase_stages(store, self.away)
        self._copy(store, f"{top}{NEW}/")
        encoded = self._encoded()
        last = {self.path: encoded.get(self.path, {})}
        store_documents(store, format, {path: own for path, own in encoded.items() if path not in last})
        # a last document that exists from now on is a new one, and another writer may have changed it
        say(CLOSING)
        store_documents(store, format, last, last=self.path)
        self._finish_above(store, format, nodes)
        return True

    def _is_untouched(self, store: Store) -> bool:
        """Whether the old node is still whole, so that it may have been changed since."""
        first = next((stage for stage in self.away if stage), [])
        return bool(first) and all(parallel_map(store.exists, first, store.concurrency))

    def close(self, store: Store, format: Format, nodes: Mapping[str, NodeMetadata] | None = None) -> None:
        """Store the missing ones of the last documents, and bring the copies above up to date."""
        encoded = self._encoded()
        own = encoded.get(self.path, {})
        there = dict(zip(own, parallel_map(store.exists, own, store.concurrency), strict=True))
        copied = format.consolidated_key(self.path)
        # the listed consolidated metadata may be out of date
        if any(there.values()) and not there.get(str(copied), True):
            own = {key: value for key, value in own.items() if key != copied}
        missing = {key: value for key, value in own.items() if not there[key]}
        store_documents(store, format, {self.path: missing}, last=self.path)
        if len(own) < len(there):
            write_consolidated(store, format, self.path)
        self._finish_above(store, format, nodes)

    def _finish_above(self, store: Store, format: Format, nodes: Mapping[str, NodeMetadata] | None) -> None:
        changes.note_documents(store, list(self.documents))
        if self.is_alone:
            metas = None if nodes is None else full_paths(self.path, nodes)
            finish_above(store, format, self.path, list(self.documents), metas, self.consolidate)

    def _encoded(self) -> dict[str, dict[str, bytes]]:
        return {
            path: {key: text.encode("utf-8", "surrogatepass") for key, text in own.items()}
            for path, own in self.documents.items()
        }

    def _copy(self, store: Store, staged: str) -> None:
        """Copy the staged values to their final keys, and check that all have arrived.

        The old values have left, so a final key that exists holds a new value.
        """
        missing = set(self.copies)
        for copy in (store.copy, partial(Store.copy, store)):  # By the service, then through this process.
            try:
                parallel_map(
                    lambda key, copy=copy: copy(staged + key, key),  # type: ignore[misc]
                    sorted(missing),
                    min(store.concurrency, MOST_COPIED),
                )
            except StoreError as error:
                raise without(error, staged) from error.__cause__
            if missing:
                prefix = _common_prefix(missing)
                missing.difference_update(store.list_prefix(prefix))
            if not missing:
                return
        asked = sorted(missing)  # listings may lag behind writes
        found = parallel_map(store.exists, asked, store.concurrency)
        lost = [key for key, is_there in zip(asked, found, strict=True) if not is_there]
        if lost:
            raise StoreError(
                f"cannot replace '/{self.path}' in {store}: {len(lost)} values were not copied, "
                f"{listed(lost[:5])}"
            )


def full_paths(path: str, nodes: Mapping[str, NodeMetadata]) -> dict[str, NodeMetadata]:
    """Nodes by full path instead of by path relative to the uppermost node."""
    return {f"{node_prefix(path)}{below}".rstrip("/"): meta for below, meta in nodes.items()}


def _nodes_at(store: Store, format: Format, path: str) -> dict[str, NodeMetadata]:
    """The nodes at a path and below it, by path."""
    meta = read_metadata(store, format, path, consolidated=False, again=True)
    below = held_below(store, format, path)
    nodes = {each: format.parse_again(held, node_prefix(path) + each) for each, held in below.items()}
    return full_paths(path, nodes if meta is None else {"": meta, **nodes})


def _common_prefix(keys: Iterable[str]) -> str:
    """The longest common prefix of all keys that is empty or ends with '/'."""
    first, last = min(keys), max(keys)
    at = 0
    while at < min(len(first), len(last)) and first[at] == last[at]:
        at += 1
    return first[: first.rfind("/", 0, at) + 1]


def finish_above(
    store: Store,
    format: Format,
    path: str,
    paths: Sequence[str],
    metas: Mapping[str, NodeMetadata] | None,
    consolidates: bool,
) -> None:
    """Create missing groups above, and bring consolidated copies in groups above up to date.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of the written node.
    paths : sequence of str
        Paths of all written nodes.
    metas : mapping of str to metadata, optional
        Their metadata by path, if no other process can have changed them.
    consolidates : bool
        Rewrite the consolidated metadata of the root.
    """
    if not path:
        return
    made = make_groups_above(store, format, path)
    if metas is not None:
        metas = {**{each: GroupMetadata(zarr_format=format.zarr_format) for each in made}, **metas}
    above = [each for each in ancestors(path) if each or not consolidates]
    refresh_consolidated(store, format, [*made, *paths], metas, holders=above)
    if consolidates:
        write_consolidated(store, format, "", paths)
