"""Carries out the plan of a write: sets and appends values, and adds groups and variables; all or nothing.

Values are stored first. Appended values go past the end of their arrays, where no reader looks, and new
groups and variables have no documents yet, or stand in a stage. The documents follow. The document of an
array that grows changes only if no other writer has changed its length since; see
:mod:`xzarr3.commit.append`. Consolidated copies are updated last, once. Values of dask arrays are written by
:mod:`xzarr3.xarray.execute`, between :meth:`Commit.begin` and :meth:`Commit.finish`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from xzarr3.api import open_group
from xzarr3.arrays import Array
from xzarr3.commit.append import Append, at_first
from xzarr3.commit.lease import LeaseLostError
from xzarr3.commit.length import GuardedStore
from xzarr3.commit.replace import transaction, write
from xzarr3.commit.transaction import NewNode, Transaction, held_in
from xzarr3.commit.writers import keeps_apart, writing
from xzarr3.dask.plan import BlockWrite, WrittenArray, fingerprint
from xzarr3.dask.sources import ReadLocations, reads_below
from xzarr3.errors import (
    ArgumentError,
    ChangedError,
    ConflictError,
    NodeExistsError,
    OutcomeUnknownError,
    listed,
    some,
)
from xzarr3.formats import documents
from xzarr3.formats.base import node_prefix
from xzarr3.groups import Group
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes import freshness, seen
from xzarr3.nodes.consolidated import copies_to_follow, holds_copies, nodes_now, refresh_consolidated
from xzarr3.nodes.documents import Before, change_document
from xzarr3.nodes.find import children, depth_first, find_node, read_held
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.xarray.coders import is_lazy
from xzarr3.xarray.compare import Plan
from xzarr3.xarray.labels import Compared
from xzarr3.xarray.recode import Change

if TYPE_CHECKING:
    from xzarr3.stores.icechunk import RepositoryCommit

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
        self.plan = plan
        self.jobs: list[BlockWrite] = []
        self._later: list[BlockWrite] = []
        """The jobs that dask writes."""
        self._eager: list[BlockWrite] = []
        self._append = Append(self.store, self.format)
        self._growing: list[tuple[Change, Array]] = []
        """Changes of arrays that grow in place, each with the array that it is written through."""
        self._in_place: list[str] = []
        """Paths of the arrays of which values are set where they are."""
        self._transactions: list[Transaction] = []
        """Those of new nodes, and of arrays that are replaced as a whole."""
        self._left: list[Transaction] = []
        """Those that replace no node, but what a killed write left."""
        self._writing = ExitStack()
        """The transactions that have begun: closed when they are published, or left with an error."""
        if plan.new:
            self._create()
            return
        for change in plan.changes:
            self._change(replace(change, rewritten=True) if change.array.path in staged else change)
        for variable in plan.added:
            self._add(variable)

    def stage(self, repository: RepositoryCommit) -> None:
        """Write on a branch of its own in a repository, and go on with what an interrupted write left."""
        (placing,) = self._transactions
        placing.resumes = repository.stage(self.path, str(placing.plan))

    def _create(self) -> None:
        """Plan new groups and their arrays."""
        below, arrays = node_prefix(self.path), self.plan.added
        nodes: dict[str, NodeMetadata] = {
            **self.plan.new,
            **{each.path.removeprefix(below): each.metadata for each in arrays},
        }
        # Depth first, which is the order that zarr-python 3.1 needs.
        ordered = {f"{below}{name}": nodes[name] for name in depth_first(name for name in nodes if name)}
        self._place(self.path, {self.path: nodes[""], **ordered}, arrays, self.plan.asked.mode == "w")

    def _add(self, array: WrittenArray, *, replaced: bool = False) -> None:
        """Plan an array that is staged, and put in place as a whole."""
        path, nodes = array.path, {array.path: array.metadata}
        try:
            self._place(path, nodes, [array], replaced)
        except NodeExistsError:
            if read_held(self.store, self.format, path, consolidated=False) is not None:
                raise
            self._place(path, nodes, [array], overwrite=True)
            self._left.append(self._transactions[-1])
        if self.plan.group is not None:
            self._transactions[-1].group_at = self.plan.group._placed_at

    def _place(
        self, path: str, nodes: Mapping[str, NodeMetadata], arrays: Sequence[WrittenArray], overwrite: bool
    ) -> None:
        """Plan new nodes, which are put at an empty place or replace what is there, and their values.

        Their documents are stored last, so that readers find the old nodes until then.
        """
        if overwrite and self.store.traits.visible == "at commit":
            _check_not_erased(self.store, path, arrays)
        is_group = isinstance(nodes[path], GroupMetadata)
        consolidate = is_group and self.plan.consolidated
        new = NewNode.of(self.format, path, nodes, consolidate=consolidate, is_alone=is_group)
        plan = None
        if self.plan.asked.resume:
            plan = fingerprint(self.format, path, sorted(arrays, key=attrgetter("path")))
        placing = transaction(
            self.store,
            new,
            overwrite=overwrite,
            how="mode 'w'",
            plan=plan,
            lease=self._append.lengths[path].lease if path in self._append.lengths else None,
        )
        self._transactions.append(placing)
        for each in arrays:
            self._write(each.values, self._array(placing.store, each), ...)

    def _array(self, store: Store, like: WrittenArray | Array) -> Array:
        """An array in another store, such as that where it is once the write is finished."""
        return Array(
            store, like.path, like.metadata, format=self.format, write_empty_chunks=like.write_empty_chunks
        )

    def _write(self, values: Any, target: Array, region: Any, *, in_place: bool = False) -> None:
        """Plan a write of values, by dask if they are lazy."""
        if is_lazy(values):
            self.jobs.append(BlockWrite(values, target, region, in_place))
        elif values.size:
            self._eager.append(BlockWrite(values, target, region))

    def _change(self, change: Change) -> None:
        """Plan the change of an array."""
        array, keep_empty = change.array, bool(self.plan.asked.write_empty_chunks)
        if change.compared:
            compared = Compared(self.store, array.path, array.metadata, format=self.format)
            self._write(change.data, compared, change.region)
            return
        if change.rewritten:
            self._append.reserve(array)
            self._add(WrittenArray(array.path, change.metadata, keep_empty, change.data), replaced=True)
            return
        store, kind = self.store, Array
        if change.grows:
            length = self._append.reserve(array)
            if not self._append.shapes_come_first:
                store, kind = length.store, Growing
        target = kind(store, array.path, change.metadata, format=self.format, write_empty_chunks=keep_empty)
        target._opened_at = array._opened_at  # The plan is for the array as it was then,
        target._had_document = target._is_decoded = True  # and the values are encoded as it was decoded.
        if change.grows:
            self._growing.append((change, target))
        if isinstance(target, Growing):
            target.grown_from = array.shape
        if not change.grows:
            self._in_place.append(array.path)
        self._write(change.data, target, change.region, in_place=not change.grows)

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
        if jobs and self.plan.group is None:
            _check_nothing_lost(self.store, self.path)
        self._later = [
            job
            if job.target.store is self.store
            else replace(job, target=self._array(self.store, job.target))
            for job in jobs
        ]
        return self._later

    def begin(self) -> None:
        """Take leases and make stages, before any value is stored. After an error here: :meth:`discard`."""
        self._take()
        if self._in_place and keeps_apart(self.store):
            key = self._writing.enter_context(writing(self.store, self.format, self.path, self._in_place))
            for placing in self._transactions:
                placing.kept_leases = [key]
        self._writing.enter_context(write(*self._transactions))
        for placing in self._left:  # The writer may have been at work still, and has ended since.
            if read_held(self.store, self.format, placing.place.path, consolidated=False) is not None:
                raise placing.place.taken()
        if self._append.shapes_come_first:
            self._grow(None)

    def _take(self) -> None:
        """Take the leases of arrays that grow or are rewritten, and check that no length has changed."""
        append = self._append
        append.begin(self.store.traits.conflict_deadline)
        for change in self.plan.changes:
            length = append.lengths.get(change.array.path)
            if length is not None:
                found = at_first(change.array, length)
                check_unchanged(change.array, found, length.placed_at)
        for change, target in self._growing:
            length = append.lengths[target.path]
            target.write_empty_chunks = target.write_empty_chunks or length.keeps_empty
            seen.remember(target.store, target.path, change.array.metadata, length.read_at)
            append.grow(change.array, change.array.metadata, change.metadata)

    def finish(self) -> None:
        """Write the values that are not in dask arrays, and then all documents; or :meth:`discard`."""
        # Mostly small coordinates, each with the latency of the store.
        parallel_map(lambda job: job.target.set(job.region, job.source), self._eager, self.store.concurrency)
        self._append.verify()
        self._writing.close()
        for job in self._later:  # they write to what has just taken its place
            freshness.note_place(job.target)
            job.target._is_decoded = True
        before = None if self.plan.group is None else Before.of_root(self.store, self.format)
        if not self._append.shapes_come_first:
            self._grow(before)
        try:
            self._follow(before)
        finally:
            self._append.release()

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
        plan, path, format, done = self.plan, self.path, self.format, list[str]()
        if plan.group is None:
            return
        has_copies, attributes = self._has_copies(before), plan.attributes
        changed = [each.array.path for each in plan.changes if each.metadata != each.array.metadata]
        changed += [each.path for each in plan.added]
        with copies_to_follow(path):
            old = plan.group.metadata.attributes
            if attributes is not None and not documents.are_equal(attributes, old):
                keys = format.keys(path)
                key = keys.attributes(array=False)
                # One write of the document, so that readers of the copies see all changes or none.
                own = changed if keys.one_document and key == keys.consolidated else []
                since = before if before is not None and before.key == key else None
                change = partial(self._with_copies, own, attributes, since)
                change_document(self.store, format, path, key, change, before=since)
                done, changed = [path] if keys.one_document else [], [path, *changed]
            if plan.consolidated and not has_copies:
                options: Any = {"zarr_format": format.zarr_format, "use_consolidated": False}
                open_group(self.store, mode="r+", **options).consolidate()
            elif changed:
                refresh_consolidated(self.store, format, changed, besides=done, before=before)

    def _with_copies(
        self, names: Sequence[str], attributes: dict[str, Any], before: Before | None, found: NodeMetadata
    ) -> NodeMetadata:
        """A group with new attributes, and with the copies of ``names`` updated that it holds."""
        if self._is_of_another(found):
            raise ChangedError(
                f"another writer has replaced '/{self.path}' in {self.store} during this write, which has "
                "not set its attributes; open it again to see which values it has"
            )
        changed = replace(found, attributes=attributes)
        if not isinstance(changed, GroupMetadata) or changed.consolidated is None:
            return changed
        held = dict(changed.consolidated)
        for name, meta in zip(names, nodes_now(self.store, self.format, names, before), strict=True):
            if meta is not None:
                held[name[len(node_prefix(self.path)) :]] = self.format.hold(meta, name)
        # Copies of nodes without a group above stay, too.
        ordered = dict.fromkeys([*depth_first(held), *held])
        return replace(changed, consolidated={relative: held[relative] for relative in ordered})

    def _is_of_another(self, found: NodeMetadata) -> bool:
        """Whether the group has been replaced since the plan was made.

        The document with copies tells when any of the nodes was replaced, so that only leases tell.
        """
        group = cast("Group", self.plan.group)
        known = [group._placed_at or 0, *(each.array._opened_at for each in self.plan.changes)]
        if (seen.placed_at(self.store, group._key, found) or 0) <= max(known):
            return False
        if self._append.lengths:
            return not self._append.holds()
        return cast("GroupMetadata", found).consolidated is None

    def _has_copies(self, root: Before | None) -> bool:
        """Whether the document of the root holds copies of all nodes."""
        return root is not None and holds_copies(self.format, root.key, root.value)

    def discard(self, error: BaseException) -> None:
        """Remove what was written before ``error`` and is not finished; what can be resumed stays."""
        self._writing.__exit__(type(error), error, error.__traceback__)
        self._append.discard(error)

    def group(self, store: Store | None = None) -> Group:
        """The group that was written, in another store if one is given that shows it."""
        store = self.store if store is None else store
        if self.plan.group is None:
            nodes = self._transactions[0].new.nodes
            held = held_in(self.format, self.path, nodes) if self.plan.consolidated else None
            created = replace(cast("GroupMetadata", nodes[self.path]), consolidated=held)
            return Group(store, self.path, created, format=self.format)
        meta = self.plan.group.metadata
        attributes = meta.attributes if self.plan.attributes is None else self.plan.attributes
        now = replace(meta, attributes=attributes, consolidated=None)
        return Group(store, self.path, now, format=self.format, use_consolidated=False)


def check_unchanged(array: Array, found: ArrayMetadata, replaced_at: float | None = None) -> None:
    """Raise if another writer has changed the shape or the attributes since a write was planned.

    ``replaced_at`` is when the array was last replaced, as its document says.
    """
    is_another = replaced_at is not None and replaced_at > array._opened_at
    if is_another or _decisive(found) != _decisive(array.metadata):
        raise ConflictError(
            f"array '{array.name}' of {array.store} has shape {found.shape} now, and had {array.shape} when "
            "this write was planned, or other attributes: another writer appended to it, or changed it; "
            "nothing was written; repeat the call"
        )


class Growing(Array):
    """An array with its new shape, which its document does not have yet.

    Tasks in other processes store values past its end, too, while the write that holds the lease goes on.
    """

    grown_from: tuple[int, ...] = ()
    """The shape in the document."""
    _owns_ends = True

    def _check_shape(self, found: ArrayMetadata) -> None:
        """Refuse if the stored shape has changed: a writer that replaces an array ignores append leases."""
        if found.shape != self.grown_from:
            raise ChangedError(
                f"array '{self.name}' of {self.store} got shape {found.shape} while its shape "
                f"{self.grown_from} was appended to: it was replaced, or another writer has changed its "
                "length; open it again"
            )

    def _check_to_write(self) -> bool:
        """Check the document, which is there. With the lease held and latency, a recent check is reused."""
        before = seen.last(self.store, self.path)
        is_held = cast("GuardedStore", self.store).is_exclusive
        if not (is_held and self.store.concurrency > 1 and before is not None and before.tells):
            before = freshness.look(self, to_write=True)
        self._check_shape(freshness.same(self, before.metadata))
        return False

    def _check_current(self, version: object | None = None) -> None:
        self._check_to_write()

    def __getstate__(self) -> tuple[object, ...]:
        return self.grown_from, super().__getstate__()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.grown_from, rest = state
        super().__setstate__(rest)


def commits(plans: Sequence[Plan]) -> list[Commit]:
    """The commits of the plans of one call."""
    read = _read_by_itself(plans)
    return [Commit(plan, read) for plan in plans]


def _read_by_itself(plans: Sequence[Plan]) -> set[str]:
    """Paths of arrays that get all new values while values of the same call are computed from the old ones.

    They are staged, so that the old values stay until all new ones are stored.
    """
    changes = [change for plan in plans for change in plan.changes if is_lazy(change.data)]
    whole = [
        each for each in changes
        if not (each.compared or each.rewritten or each.grows) and each.data.shape == each.array.shape
    ]  # fmt: skip
    if not whole:
        return set()
    added = [each.values for plan in plans for each in plan.added if is_lazy(each.values)]
    places, read = ReadLocations(), set()
    for data in (*added, *(change.data for change in changes)):
        read |= places.read_in(data.dask.layers)
    return {change.array.path for change in whole if places.of(change.array) in read}


def _check_not_erased(store: Store, path: str, arrays: Iterable[WrittenArray]) -> None:
    """Raise if values are computed from others below a path, which are erased first."""
    lazy = [array.values for array in arrays if is_lazy(array.values)]
    if any(reads_below(lazy, store, path)):
        raise ArgumentError(
            f"the variables are computed from values in '/{path}' of {store}, which would be erased "
            "before they are read; load them first, or write to another group"
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
