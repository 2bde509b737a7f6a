"""New groups and arrays of a write, put at an empty place or in place of old ones.

Their documents are stored last, so that readers find the old nodes until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from xzarr3.arrays import Array
from xzarr3.commit.lease import Lease
from xzarr3.commit.replace import transaction
from xzarr3.commit.transaction import NewNode
from xzarr3.dask.done import WrittenArray, fingerprint
from xzarr3.dask.plan import BlockWrite
from xzarr3.dask.sources import reads_below
from xzarr3.errors import ArgumentError
from xzarr3.formats import Format, documents
from xzarr3.formats.base import Held, node_prefix
from xzarr3.groups import Group
from xzarr3.model.metadata import GroupMetadata, NodeMetadata
from xzarr3.nodes.find import depth_first
from xzarr3.stores import Store
from xzarr3.xarray.exact import is_lazy
from xzarr3.xarray.plan import PlannedArray, PlannedGroup


class Placement:
    """New nodes that are put at an empty place, or replace what is there: a tree of groups, or one array.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of the uppermost node.
    groups : mapping of str to PlannedGroup
        The groups by path relative to the uppermost node, whose path is empty; none if that is an array.
    arrays : mapping of str to PlannedArray
        The arrays by relative path.
    consolidated : bool
        Whether the root shall contain the documents of all nodes.
    overwrite : bool
        Replace what is there; otherwise the place must be empty.
    resume : bool
        Keep what was written if the write is interrupted, and resume an interrupted write.
    lease : Lease, optional
        The lease of the place, if the caller holds it.

    Raises
    ------
    ValueError
        If values would be read after they were erased.
    """

    def __init__(
        self,
        store: Store,
        format: Format,
        path: str,
        groups: Mapping[str, PlannedGroup],
        arrays: Mapping[str, PlannedArray],
        *,
        consolidated: bool = False,
        overwrite: bool,
        resume: bool = False,
        lease: Lease | None = None,
    ) -> None:
        if overwrite and store.traits.visible == "at commit":
            _check_not_erased(store, path, arrays.values())
        self.path = path
        self.consolidated = consolidated
        self._format = format
        self._groups = {
            relative: GroupMetadata(attributes=group.attributes, zarr_format=format.zarr_format)
            for relative, group in groups.items()
        }
        self._arrays = {relative: array.metadata for relative, array in arrays.items()}
        places = {relative: f"{node_prefix(path)}{relative}" if relative else path for relative in arrays}
        self._stored = {place: arrays[relative].stored for relative, place in places.items()}
        self._stored.update(self._group_documents())
        self.plan: str | None = None
        """Fingerprint of this write, if it can be resumed."""
        if resume:
            written = [
                WrittenArray(places[name], each.metadata, each.write_empty_chunks, each.data)
                for name, each in sorted(arrays.items())
            ]
            self.plan = fingerprint(format, path, written)
        nodes = {f"{node_prefix(path)}{each}".rstrip("/"): meta for each, meta in self.nodes().items()}
        alone = bool(groups)
        self.transaction = transaction(
            store,
            NewNode(format, path, nodes, self._stored, consolidate=consolidated, is_alone=alone),
            overwrite=overwrite,
            how="mode 'w'",
            plan=self.plan,
            lease=lease,
        )
        self.jobs = [
            BlockWrite(each.data, self._target(places[relative], each), ...)
            for relative, each in arrays.items()
        ]

    def _target(self, path: str, planned: PlannedArray) -> Array:
        return Array(
            self.transaction.store,
            path,
            planned.metadata,
            format=self._format,
            write_empty_chunks=planned.write_empty_chunks,
        )

    def _group_documents(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        """The documents of the groups by key, for each path."""
        for relative, meta in self._groups.items():
            path = f"{node_prefix(self.path)}{relative}".rstrip("/")
            held = self.held() if self.consolidated and not path else None
            found = self._format.documents(meta, path, held)
            if not path:  # Stored last: without these documents there is no hierarchy.
                found = {**found, **self._format.hierarchy_documents()}
            yield path, {key: documents.encode(document, path) for key, document in found.items()}

    def nodes(self) -> dict[str, NodeMetadata]:
        """The nodes by relative path, depth first, which is the order that zarr-python 3.1 needs."""
        nodes: dict[str, NodeMetadata] = {**self._arrays, **self._groups}
        return {"": nodes.pop(""), **{relative: nodes[relative] for relative in depth_first(nodes)}}

    def held(self) -> dict[str, Held]:
        """The documents of all nodes below the group for its consolidated copy, by relative path."""
        prefix = node_prefix(self.path)
        nodes = self.nodes().items()
        return {name: self._format.hold(meta, prefix + name) for name, meta in nodes if name}

    def group(self, store: Store) -> Group:
        """The group that was written."""
        meta = replace(self._groups[""], consolidated=self.held() if self.consolidated else None)
        return Group(store, self.path, meta, format=self._format)


def _check_not_erased(store: Store, path: str, arrays: Iterable[PlannedArray]) -> None:
    """Raise if values are computed from others below a path, which are erased first."""
    lazy = [array.data for array in arrays if is_lazy(array.data)]
    if any(reads_below(lazy, store, path)):
        raise ArgumentError(
            f"the variables are computed from values in '/{path}' of {store}, which would be erased "
            "before they are read; load them first, or write to another group"
        )
