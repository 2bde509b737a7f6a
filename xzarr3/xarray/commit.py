"""Carries out the plan of a write: sets and appends values, and adds groups and variables; all or nothing.

Values are stored first. Appended values go past the end of their arrays, where no reader looks, and new
groups and variables have no documents yet. The documents follow. The document of an array that grows changes
only if no other writer has changed its length since; see :mod:`xzarr3.commit.append`. Consolidated copies are
updated last, once. Values of dask arrays are written by :mod:`xzarr3.xarray.execute`, between
:meth:`Commit.begin` and :meth:`Commit.finish`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from xzarr3.api import open_group
from xzarr3.arrays import Array
from xzarr3.commit.append import Append, at_first
from xzarr3.commit.lease import LeaseLostError
from xzarr3.commit.replace import write
from xzarr3.dask.plan import BlockWrite
from xzarr3.dask.sources import ReadLocations
from xzarr3.errors import (
    ArgumentError,
    ConflictError,
    MetadataError,
    NodeExistsError,
    OutcomeUnknownError,
    listed,
    some,
)
from xzarr3.formats import Format, documents
from xzarr3.formats.base import node_prefix
from xzarr3.groups import Group
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes import seen
from xzarr3.nodes.consolidated import copies_to_follow, nodes_now, refresh_consolidated
from xzarr3.nodes.documents import Before, change_document
from xzarr3.nodes.find import children, depth_first, find_node, read_held
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.xarray.compare import Change, ChangedGroup, Plan
from xzarr3.xarray.exact import is_lazy
from xzarr3.xarray.labels import Compared, check_appended, is_index
from xzarr3.xarray.past_end import Growing
from xzarr3.xarray.placement import Placement
from xzarr3.xarray.plan import PlannedArray

_decisive = attrgetter("shape", "attributes", "dimension_names", "fill_is_null")
"""The metadata that a plan depends on; how values are stored is compared by each array itself."""


class Commit:
    """Carries out a plan: :meth:`begin`, then dask writes ``jobs``, then :meth:`finish` or :meth:`discard`.

    Parameters
    ----------
    plan : Plan
    staged : container of str
        Paths of arrays whose old values must stay until all new ones are stored.
    """

    def __init__(self, plan: Plan, staged: Container[str] = ()) -> None:
        self.store, self.format, self.path = plan.store, plan.format, plan.path
        self._group = plan.changed
        self._consolidated = plan.consolidated
        self._keep_empty = bool(plan.asked.write_empty_chunks)
        self.jobs: list[BlockWrite] = []
        """The jobs that dask writes."""
        self._eager: list[BlockWrite] = []
        self._append = Append(self.store, self.format)
        self._writing = ExitStack()
        """The transactions of the new nodes: closed when they are published, or left with an error."""
        self.settings: list[tuple[Change, Array]] = []
        """Changes of existing arrays, each with the array that it is written through."""
        self._placed: list[Placement] = []
        self.resumes = plan.asked.resume
        """Whether values that an interrupted write of this plan has stored are kept."""
        if plan.new:
            self._create(plan)
        for change in self._changes:
            self._plan(replace(change, rewritten=True) if change.array.path in staged else change)
        for variable in () if self._group is None else self._group.added:
            self._add(node_prefix(self.path) + variable.name, variable)
        if plan.asked.check_labels and plan.asked.append_dim is not None:
            self._check_labels(str(plan.asked.append_dim))

    @property
    def _changes(self) -> list[Change]:
        return [] if self._group is None else self._group.changes

    def _create(self, plan: Plan) -> None:
        """Plan new groups."""
        arrays = {
            node_prefix(relative) + variable.name: variable
            for relative, group in plan.new.items()
            for variable in group.variables
        }
        created = Placement(
            self.store,
            self.format,
            self.path,
            plan.new,
            arrays,
            consolidated=self._consolidated,
            overwrite=plan.asked.mode == "w",
            resume=plan.asked.resume,
        )
        self._place(created)

    def _add(self, path: str, variable: PlannedArray, *, replaced: bool = False) -> None:
        """Plan an array that is staged, and put in place as a whole."""
        new = partial(
            Placement,
            self.store,
            self.format,
            path,
            {},
            {"": variable},
            lease=self._append.lengths[path].lease if path in self._append.lengths else None,
        )
        try:
            self._place(new(overwrite=replaced))
        except NodeExistsError:
            if read_held(self.store, self.format, path, consolidated=False) is not None:
                raise
            # No document: a killed write left these keys, and they are not a node.
            self.store.erase_values(
                [key for key in self.format.keys(path).documents if self.store.exists(key)]
            )
            self._place(new(overwrite=True))

    def _place(self, placement: Placement) -> None:
        self._placed.append(placement)
        self._write(*placement.jobs)
        placement.jobs = []

    def _write(self, *jobs: BlockWrite) -> None:
        for job in jobs:
            if is_lazy(job.source):
                self.jobs.append(job)
            elif job.source.size:
                self._eager.append(job)

    def _plan(self, change: Change) -> None:
        array = change.array
        if change.compared:
            target: Array = Compared(self.store, array.path, array.metadata, format=self.format)
            self._write(BlockWrite(change.data, target, change.region))
            return
        if change.rewritten:
            self._append.reserve(array)
            written = PlannedArray(array.basename, change.data, change.metadata, self._keep_empty)
            self._add(array.path, written, replaced=True)
            return
        store = self._append.reserve(array).store if change.grows else self.store
        past_end = change.grows and not self._append.shapes_come_first
        target = (Growing if past_end else Array)(
            store if past_end else self.store,
            array.path,
            change.metadata,
            format=self.format,
            write_empty_chunks=self._keep_empty,
        )
        if isinstance(target, Growing):
            target.grown_from = array.shape
        self._write(BlockWrite(change.data, target, change.region, in_place=not change.grows))
        self.settings.append((replace(change, data=None) if is_lazy(change.data) else change, target))

    def _check_labels(self, dim: str) -> None:
        """Refuse labels along the dimension ``dim`` that repeat or precede those of the store."""

        def check(change: Change) -> None:
            array, labels = change.array, np.asarray(change.data)
            size = array.shape[0]
            if not change.rewritten:
                labels = np.concatenate([array.get(), labels])
            check_appended(Array(array.store, array.path, change.metadata, format=self.format), labels, size)

        parallel_map(
            check,
            [
                change
                for change in self._changes
                if change.array.basename == dim
                and is_index(change.array)
                and change.metadata.shape != change.array.shape
            ],
            self.store.concurrency,
        )

    @property
    def only_creates(self) -> bool:
        """Whether the write changes no existing group: it creates groups, or replaces one as a whole."""
        return self._group is None

    def take_jobs(self) -> list[BlockWrite]:
        """Take the values of dask arrays out of the write; returns the jobs that write them after it.

        Raises
        ------
        ValueError
            If stored values would be gone before the new ones are there, or the labels would be there before
            their values.
        """
        jobs, self.jobs = self.jobs, []
        if jobs and self._append.lengths:
            grown = listed(sorted(self._append.lengths))
            raise ArgumentError(
                f"compute=False writes documents now and values later, so {grown} in {self.store} would have "
                "fill values where values are due; pass compute=True, which also "
                "computes on the cluster of a client, or write the blocks into a region of what is there"
            )
        if jobs and self.only_creates:
            _check_nothing_lost(self.store, self.path)
        return [
            job if job.target.store is self.store else replace(job, target=_in(self.store, job.target))
            for job in jobs
        ]

    def begin(self) -> None:
        """Take leases and make stages, before any value is stored. After an error here: :meth:`discard`."""
        self._take()
        self._writing.enter_context(write(*(each.transaction for each in self._placed)))
        if self._append.shapes_come_first:
            self._grow(None)

    def _take(self) -> None:
        """Take the leases of arrays that grow or are rewritten, and check that no length has changed."""
        append = self._append
        append.begin(self.store.traits.conflict_deadline)
        for change in self._changes:
            if change.array.path in append.lengths:
                self._check_unchanged(change)
        for change, target in self.settings:
            if change.grows:
                length = append.lengths[change.array.path]
                target.write_empty_chunks = target.write_empty_chunks or length.keeps_empty
                seen.remember(target.store, target.path, change.array.metadata, length.read_at)
                append.grow(change.array, change.array.metadata, change.metadata)

    def _check_unchanged(self, change: Change) -> None:
        array = change.array
        found = at_first(array, self._append.lengths[array.path])
        if _decisive(found) != _decisive(array.metadata):
            raise ConflictError(
                f"array '{array.name}' of {self.store} has shape {found.shape} now, and had {array.shape} "
                "when this write was planned, or other attributes: another writer appended to it; nothing "
                "was appended; repeat the call"
            )

    def finish(self) -> None:
        """Write the values that are not in dask arrays, and then all documents; or :meth:`discard`."""
        # Mostly small coordinates, each with the latency of the store.
        parallel_map(lambda job: job.target.set(job.region, job.source), self._eager, self.store.concurrency)
        self._append.verify()
        self._writing.close()
        before = None if self._group is None else Before.of_root(self.store, self.format)
        if not self._append.shapes_come_first:
            self._grow(before)
        self._append.release()
        self._follow(before)

    def _grow(self, before: Before | None) -> None:
        """Store the new shapes of the arrays that grow, all together."""
        try:
            stored = self._append.publish()
        except OutcomeUnknownError:
            raise
        except LeaseLostError as error:
            raise ConflictError(f"{error}; nothing was appended; repeat the call") from error
        if before is not None:
            before.nodes.update(stored)

    def _follow(self, before: Before | None) -> None:
        """Update attributes and consolidated copies after all values and shapes are stored.

        ``before`` is the document of the root from before the shapes changed.
        """
        if self._group is None:
            return
        path, format, has_copies = self.path, self.format, self._has_copies(before)
        changed = [each.array.path for each in self._changes if each.metadata != each.array.metadata]
        changed += [node_prefix(path) + variable.name for variable in self._group.added]
        keys = format.keys(path)
        key = keys.attributes(array=False)
        # One write of the document, so that readers of the copies see all changes or none.
        own = changed if keys.one_document and key == keys.consolidated else []
        attributes = self._group.attributes
        if attributes == self._group.group.metadata.attributes:
            attributes = None
        done: list[str] = []
        with copies_to_follow(path):
            if own or attributes is not None:
                since = before if before is not None and before.key == key else None
                change = partial(_with_copies, self.store, format, path, own, attributes, since)
                change_document(self.store, format, path, key, change, before=since)
                done, changed = [path] if keys.one_document else [], [path, *changed]
            if self._consolidated and not has_copies:
                options: Any = {"zarr_format": format.zarr_format, "use_consolidated": False}
                open_group(self.store, mode="r+", **options).consolidate()
            elif changed:
                refresh_consolidated(self.store, format, changed, besides=done, before=before)

    def _has_copies(self, root: Before | None) -> bool:
        """Whether the document of the root holds copies of all nodes."""
        if root is None or root.value is None:
            return False
        try:
            document = documents.decode(root.value, "", root.key)
        except MetadataError:
            return False
        any_group = GroupMetadata(zarr_format=self.format.zarr_format)
        return self.format.update_consolidated(document, "any", any_group) is not None

    def discard(self, error: BaseException) -> None:
        """Remove what was written before ``error`` and is not finished; what can be resumed stays."""
        self._writing.__exit__(type(error), error, error.__traceback__)
        self._append.discard(error)

    def group(self, store: Store | None = None) -> Group:
        """The group that was written, in another store if one is given that shows it."""
        store = self.store if store is None else store
        if self._group is None:
            return self._placed[0].group(store)
        meta = self._group.group.metadata
        attributes = meta.attributes if self._group.attributes is None else self._group.attributes
        now = replace(meta, attributes=attributes, consolidated=None)
        return Group(store, self.path, now, format=self.format, use_consolidated=False)


def commits(plans: Sequence[Plan]) -> list[Commit]:
    """The commits of the plans of one call."""
    read = _read_by_itself([plan.changed for plan in plans if plan.changed is not None])
    return [Commit(plan, read) for plan in plans]


def _read_by_itself(groups: Sequence[ChangedGroup]) -> set[str]:
    """Paths of arrays that get all new values while values of the same call are computed from the old ones.

    They are staged, so that the old values stay until all new ones are stored.
    """
    changes = [change for group in groups for change in group.changes if is_lazy(change.data)]
    whole = [
        each for each in changes
        if not (each.compared or each.rewritten or each.grows) and each.data.shape == each.array.shape
    ]  # fmt: skip
    if not whole:
        return set()
    added = [each.data for group in groups for each in group.added if is_lazy(each.data)]
    places, read = ReadLocations(), set()
    for data in (*added, *(change.data for change in changes)):
        read |= places.read_in(data.dask.layers)
    return {change.array.path for change in whole if places.of(change.array) in read}


def _in(store: Store, array: Array) -> Array:
    """The array in a store, where it is once the write is finished."""
    return Array(
        store,
        array.path,
        array.metadata,
        format=array.format,
        write_empty_chunks=array.write_empty_chunks,
    )


def _check_nothing_lost(store: Store, path: str) -> None:
    """Raise if a new dataset without values would replace a node."""
    found = find_node(store, path)
    if found is None:
        return
    format, meta = found
    there = "an array"
    if not isinstance(meta, ArrayMetadata):
        names = children(store, format, path)
        if not names and not meta.attributes:
            return
        there = f"a group with {some(names)}" if names else "a group with attributes"
    raise ArgumentError(
        f"'/{path}' in {store} is {there}, which would be gone before the new values are there, as "
        "compute=False stores these later; pass compute=True, which keeps the old data until then, write to "
        "a new place, or write the blocks into a region of what is there"
    )


def _with_copies(
    store: Store,
    format: Format,
    path: str,
    names: Sequence[str],
    attributes: dict[str, Any] | None,
    before: Before | None,
    found: NodeMetadata,
) -> NodeMetadata:
    """A group with new attributes, and with its consolidated copies of ``names`` updated, if it has any."""
    changed = found if attributes is None else replace(found, attributes=attributes)
    if not isinstance(changed, GroupMetadata) or changed.consolidated is None:
        return changed
    held = dict(changed.consolidated)
    for name, meta in zip(names, nodes_now(store, format, names, before), strict=True):
        if meta is not None:
            held[name[len(node_prefix(path)) :]] = format.hold(meta, name)
    ordered = dict.fromkeys([*depth_first(held), *held])  # Copies of nodes without a group above stay, too.
    return replace(changed, consolidated={relative: held[relative] for relative in ordered})
