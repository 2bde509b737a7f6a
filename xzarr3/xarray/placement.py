"""New groups and arrays of a write, put at an empty place or in place of old ones.

Their documents are stored last, so that readers find the old nodes until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

from xzarr3.arrays import Array
from xzarr3.commit.lease import Lease
from xzarr3.commit.replace import transaction
from xzarr3.commit.transaction import NewNode, held_in
from xzarr3.dask.done import WrittenArray, fingerprint
from xzarr3.dask.plan import BlockWrite
from xzarr3.dask.sources import reads_below
from xzarr3.errors import ArgumentError
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
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
        self._format, self._consolidated = format, consolidated
        places = {relative: f"{node_prefix(path)}{relative}".rstrip("/") for relative in (*groups, *arrays)}
        made: dict[str, NodeMetadata] = {name: each.metadata for name, each in arrays.items()}
        for name, group in groups.items():
            made[name] = GroupMetadata(attributes=group.attributes, zarr_format=format.zarr_format)
        # Depth first, which is the order that zarr-python 3.1 needs.
        in_order = ("", *depth_first(name for name in made if name))
        self._nodes = {places[name]: made[name] for name in in_order}
        written = {places[name]: each for name, each in arrays.items()}
        self.plan = _fingerprint(format, path, written) if resume else None
        """Fingerprint of this write, if it can be resumed."""
        new = NewNode.of(format, path, self._nodes, consolidate=consolidated, is_alone=bool(groups))
        self.transaction = transaction(
            store, new, overwrite=overwrite, how="mode 'w'", plan=self.plan, lease=lease
        )
        self.jobs = [BlockWrite(each.data, self._target(at, each), ...) for at, each in written.items()]

    def _target(self, path: str, planned: PlannedArray) -> Array:
        return Array(
            self.transaction.store,
            path,
            planned.metadata,
            format=self._format,
            write_empty_chunks=planned.write_empty_chunks,
        )

    def group(self, store: Store) -> Group:
        """The group that was written."""
        meta = cast("GroupMetadata", self._nodes[self.path])
        held = held_in(self._format, self.path, self._nodes) if self._consolidated else None
        return Group(store, self.path, replace(meta, consolidated=held), format=self._format)


def _fingerprint(format: Format, path: str, arrays: Mapping[str, PlannedArray]) -> str:
    written = [
        WrittenArray(place, each.metadata, each.write_empty_chunks, each.data)
        for place, each in sorted(arrays.items())
    ]
    return fingerprint(format, path, written)


def _check_not_erased(store: Store, path: str, arrays: Iterable[PlannedArray]) -> None:
    """Raise if values are computed from others below a path, which are erased first."""
    lazy = [array.data for array in arrays if is_lazy(array.data)]
    if any(reads_below(lazy, store, path)):
        raise ArgumentError(
            f"the variables are computed from values in '/{path}' of {store}, which would be erased "
            "before they are read; load them first, or write to another group"
        )
