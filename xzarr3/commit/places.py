"""Where a node lies in a store: which keys are part of it, and which names beside them stay.

A name directly below a node that is replaced leaves with the old node if it holds a part of a Zarr hierarchy:
a document of the node, another node, or nothing but chunks. Any other name stays in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from xzarr3.commit.lease import Lease, is_lease, place_key
from xzarr3.errors import ConflictError, MetadataError, NodeExistsError, listed
from xzarr3.formats import Format
from xzarr3.formats.base import is_array
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.nodes.erase import formats_in, leaving_stages, owns
from xzarr3.nodes.find import read_held
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.local.names import STAGED, is_lock


@dataclass(frozen=True)
class Place:
    """The place of a node with all nodes below it, whether they exist or not.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node.
    formats : tuple of Format
        Formats in which nodes may exist there; the format to write comes first.
    nodes : mapping of str to metadata
        The new nodes, by path.
    """

    store: Store
    path: str
    formats: tuple[Format, ...]
    nodes: Mapping[str, NodeMetadata] = field(default_factory=dict)

    @classmethod
    def of(
        cls, store: Store, format: Format, path: str, nodes: Mapping[str, NodeMetadata] | None = None
    ) -> Place:
        """The place of the node at ``path``, which will be written in ``format``."""
        prefixes = format.keys(path).prefixes
        # below the root, another format counts only if it uses the same prefixes
        others = [
            each
            for each in formats_in(store)
            if each != format and (not path or each.keys(path).prefixes == prefixes)
        ]
        return cls(store, path, (format, *others), nodes or {})

    @cached_property
    def prefixes(self) -> tuple[str, ...]:
        """Every key below one of these belongs to the node; that of its documents comes first."""
        format = self.formats[0]
        found = dict.fromkeys((format.keys(self.path).listing, *format.keys(self.path).prefixes))
        return ("",) if not self.path else tuple(found)

    @cached_property
    def documents(self) -> frozenset[str]:
        """The keys of all documents that the node may have."""
        keys = {key for each in self.formats for key in each.keys(self.path).documents}
        if not self.path:
            keys.update(key for each in self.formats for key in each.hierarchy_documents())
        return frozenset(keys)

    @property
    def defining(self) -> list[str]:
        """The keys of the documents without which there is no node."""
        return sorted({key for each in self.formats for key in each.keys(self.path).defining})

    @cached_property
    def old_array(self) -> ArrayMetadata | None:
        """The array that is at the place now; None for a group, for nothing, and if it cannot be read."""
        for each in self.formats:
            try:
                held = read_held(self.store, each, self.path, consolidated=False)
                if held is not None and is_array(held):
                    found = each.parse(held, self.path)
                    return found if isinstance(found, ArrayMetadata) else None
            except MetadataError:
                continue
        return None

    def lease(self, plan: str | None = None, top: str = "", state: str = "") -> Lease:
        """The lease of the place; see :class:`Lease` for the rest."""
        prefix = self.formats[0].keys(self.path).chunks if self.path else ""
        key, path = place_key(self.store, self.path, prefix), self.path
        return Lease(self.store, key, "replace", plan=plan, top=top, state=state, path=path)

    def is_occupied(self) -> bool:
        """Whether the place holds anything but leases and staged values.

        In a store that cannot list, only the documents of a node are checked.
        """
        store = self.store
        outside = [key for key in self.documents if not key.startswith(self.prefixes)]
        documents = outside if store.listable else sorted(self.documents)
        if any(parallel_map(store.exists, documents, store.concurrency)):
            return True
        if not store.listable:
            return False
        for keys, prefixes in parallel_map(store.list_dir, self.prefixes, store.concurrency):
            if any(map(is_own, keys | prefixes)):
                return True
        return False

    def leaves(self, name: str, exists: Callable[[str], bool], below: Callable[[str], Iterable[str]]) -> bool:
        """Whether a name directly below one of ``prefixes`` leaves when the node is replaced.

        Parameters
        ----------
        name : str
            A key, or a prefix of keys without its ``/``.
        exists : callable
            Whether there is a value under a key.
        below : callable
            The keys that are, or begin with, a name.
        """
        if not name.startswith(self.prefixes[0]):  # the chunks of the draft lie apart from its documents
            return True
        within = (prefix for each in self.formats for prefix in each.keys(self.path).prefixes)
        if name in self.documents or any(f"{prefix}/".startswith(f"{name}/") for prefix in within):
            return True
        if any(exists(key) for each in self.formats for key in each.keys(name).defining):
            return True
        if self.path and self.old_array is not None:
            return True
        chunks = []
        for key in below(name):
            if any((at := each.place(key)) is not None and at.kind != "other" for each in self.formats):
                return True
            chunks.append(self.is_taken(key))
        return bool(chunks) and all(chunks)  # a directory that is empty, or cannot be read, stays

    @cached_property
    def _owners(self) -> dict[str, list[ArrayMetadata]]:
        """The arrays that are there or will be, by the prefix of their chunks."""
        keys = self.formats[0].keys
        arrays = {path: meta for path, meta in self.nodes.items() if isinstance(meta, ArrayMetadata)}
        owners = {keys(path).chunks: [meta] for path, meta in arrays.items()}
        if self.old_array is not None:
            owners.setdefault(keys(self.path).chunks, []).append(self.old_array)
        return owners

    @cached_property
    def _coming(self) -> frozenset[str]:
        """The keys of all documents that the new nodes may have."""
        return frozenset(key for path in self.nodes for key in self.formats[0].keys(path).documents)

    def is_taken(self, key: str) -> bool:
        """Whether the new nodes would read a key as their own: a chunk or a document of them.

        So are the chunks of the array that is there.
        """
        names = key.split("/")
        tops = ["".join(f"{name}/" for name in names[:at]) for at in range(len(names))]
        return key in self._coming or any(
            owns(meta, key[len(top) :]) for top in tops for meta in self._owners.get(top, ())
        )

    def in_order(self, keys: Iterable[str]) -> list[list[str]]:
        """Keys in the order in which they leave, in lists to remove together: the documents go first."""
        return leaving_stages(self.formats, self.path, keys)

    def in_the_way(self, names: Iterable[str]) -> NodeExistsError:
        """The error for names that are no part of a hierarchy where the new node needs them."""
        found = sorted(names)
        return NodeExistsError(
            f"'/{self.path}' in {self.store} holds what is no part of a Zarr hierarchy where the new node "
            f"would be, {listed(found[:5])}; nothing was replaced; move it away, or write to another path"
        )

    def taken(self) -> NodeExistsError:
        """The error for a place to which another writer has written since."""
        return NodeExistsError(
            f"'/{self.path}' in {self.store} is not empty: another writer has written there since this write "
            "was planned; write to another path, or call it again to replace what is stored there"
        )

    def changed(self) -> ConflictError:
        """The error for a node that another writer has changed during a call that needs it as it was."""
        return ConflictError(
            f"another writer has changed '/{self.path}' in {self.store} during this call, which has changed "
            "nothing; repeat the call"
        )


def is_own(key: str) -> bool:
    """Whether a key can be part of a node: it is no lease, no lock, and no staged value."""
    return not key.startswith(STAGED) and not is_lease(key) and not is_lock(key)
