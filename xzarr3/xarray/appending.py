"""Writing to datasets that are there: other values, more along a dimension, and new variables.

Values are stored first: those that are appended behind their arrays, where no reader looks, and new
variables without documents. Documents follow, on condition that nobody else has changed the length of an
array since; see :mod:`xzarr3.commit.length`. Consolidated copies come last, once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, cast

from xarray import Dataset

from xzarr3._types import Buffer
from xzarr3.array import Array
from xzarr3.commit.lease import PATIENCE, LeaseLostError
from xzarr3.commit.length import GuardedStore, Length
from xzarr3.commit.replace import Replacement
from xzarr3.concurrency import spread
from xzarr3.dask.sources import BEHIND
from xzarr3.errors import (
    ConflictError,
    MetadataError,
    NodeExistsError,
    OutcomeUnknownError,
    ReadOnlyError,
    StoreError,
)
from xzarr3.formats import Format, ZarrFormat, documents
from xzarr3.formats.base import Held, node_prefix
from xzarr3.group import Group
from xzarr3.hierarchy import open_group
from xzarr3.lookup import Look, find_consolidated, read_held, read_metadata
from xzarr3.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.node_documents import (
    change_document,
    copies_to_follow,
    gone,
    refresh_consolidated,
    store_documents,
)
from xzarr3.stores import Store
from xzarr3.stores.base import UNCHANGED, Scratch, Unchanged, Updater
from xzarr3.stores.base import Change as Changing
from xzarr3.xarray.changing import Change, ChangedGroup, plan_group_changes
from xzarr3.xarray.planning import PlannedArray, to_be_consolidated
from xzarr3.xarray.selfreads import Job

_STRAGGLING = 0.25  # Seconds that other processes get to store what they were just storing.


def plan_changes(
    dataset: Dataset,
    store: Store,
    path: str,
    mode: str,
    encoding: Mapping[Any, Mapping[str, Any]],
    *,
    consolidated: bool | None,
    append_dim: Hashable | None,
    region: Any,
    write_empty_chunks: bool | None,
    zarr_format: ZarrFormat | None,
    widen_units: bool,
) -> Changes | None:
    """What writes a dataset to a group that is there; None if there is nothing and one may be made.

    See :func:`xzarr3.to_zarr` for the arguments. Nothing is written by this.
    """
    if store.read_only:
        raise ReadOnlyError(f"cannot write to {store}, which is read-only")
    changed = plan_group_changes(
        dataset,
        store,
        path,
        mode,
        encoding,
        consolidated=consolidated,
        append_dim=append_dim,
        region=region,
        write_empty_chunks=write_empty_chunks,
        zarr_format=zarr_format,
        widen_units=widen_units,
    )
    if changed is None:
        return None
    format = changed.group.format
    wanted = mode != "r+" and to_be_consolidated(consolidated, store, format, path)
    return Changes(store, format, [changed], bool(wanted), write_empty_chunks=write_empty_chunks)


class _Growing(Array):
    """An array as it will be, of which the document does not tell yet."""

    def _check_shape(self, found: ArrayMetadata) -> None:
        """That it is longer than its document says is known."""

    def __reduce__(self) -> tuple[object, ...]:
        held = self.format.hold(self.metadata, self.path)
        return _restored, (self.store, self.path, self.format, held, self.write_empty_chunks)


def _restored(store: Store, path: str, format: Format, held: Held, write_empty_chunks: bool) -> _Growing:
    meta = cast("ArrayMetadata", format.parse_again(held, path))
    return _Growing(store, path, meta, format=format, write_empty_chunks=write_empty_chunks)


class _BehindStore(GuardedStore):
    """What stores values behind an array, which is no place that others read from.

    It takes none once the write has failed: some of its tasks may not have ended then.
    """

    _length: _SharedLength

    @property
    def identity(self) -> object:
        return BEHIND, super().identity

    def set(self, key: str, value: Buffer) -> None:
        with self._length.writing():
            super().set(key, value)

    def compare_and_set(self, key: str, version: object, value: Buffer | None) -> bool:
        with self._length.writing():
            return super().compare_and_set(key, version, value)

    @contextmanager
    def updater(self, scratch: Scratch | None = None, limit: int = sys.maxsize) -> Iterator[Updater]:
        with super().updater(scratch, limit) as update:

            def update_admitted(key: str, change: Changing) -> None:
                with self._length.writing():
                    update(key, change)

            yield update_admitted

    def erase_values(self, keys: Iterable[str]) -> None:
        with self._length.writing():
            super().erase_values(keys)


class _SharedLength(Length):
    """A right to change a length that other processes can go on with, which write what its owner planned."""

    def __init__(self, store: Store, prefix: str, key: str, deadline: float = 0.0) -> None:
        super().__init__(store, prefix, key, deadline)
        self.store = _BehindStore(store, self)
        self._gate = threading.Condition()
        self._closed = False
        self._writing = 0
        self._is_copy = False
        self.shared = False
        """Whether there may be copies of it, in other processes mostly."""

    def __getstate__(self) -> dict[str, Any]:
        self.shared = True
        return {**self.__dict__, "_gate": None, "_writing": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _gate=threading.Condition(), _is_copy=True, shared=True)

    def __enter__(self) -> Length:
        with self._gate:  # What is computed later may be computed again.
            self._closed = False
        return super().__enter__()

    def begin(self, conflict_deadline: float) -> None:
        """Take the lease."""
        self._deadline = time.monotonic() + conflict_deadline
        self.__enter__()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While a value is stored behind the array.

        A copy cannot know that the write has failed, other than from the document.

        Raises
        ------
        StoreError
            If the write has failed.
        """
        with self._gate:
            if self._closed:
                raise StoreError(
                    f"cannot write behind key '{self._key}' of {self._store}: the write has failed and was "
                    "given up"
                )
            self._writing += 1
        try:
            if self._is_copy and self.document:
                self.verify()
            yield
        finally:
            with self._gate:
                self._writing -= 1
                self._gate.notify_all()

    def close(self) -> None:
        """Take no more values, and wait for those that are just being stored in this process."""
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: not self._writing, PATIENCE)


class _Beside(Replacement):
    """An array on its way to a group of which the documents, and copies, are brought up to date later."""

    def _finish_above(self, *args: object) -> None:
        """What is above is there."""


_Placed: TypeAlias = tuple[_Beside, str, PlannedArray | Change, Array]


@dataclass(eq=False)
class _Begun:
    """What was begun and is to be ended."""

    lengths: dict[str, _SharedLength] = field(default_factory=dict)
    is_ours: bool = False
    """Whether what is behind the arrays was written for this, and by nobody else."""
    put: set[str] = field(default_factory=set)
    """Paths of arrays that are in their places already, and stay there."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for length in self.lengths.values():  # The process that began may have no more to do with it.
            if length.is_exclusive:
                length.lease.go_on(self)


class Changes:
    """What is written to groups that are there, and how it becomes part of them.

    Parameters
    ----------
    store : Store
    format : Format
    groups : sequence of ChangedGroup
        The groups that change; the first one is that which :meth:`group` gives.
    consolidated : bool
        Make consolidated metadata of the root if there are none. Those that are there follow in any case.
    write_empty_chunks : bool, optional
        As :func:`xzarr3.to_zarr` has it.
    """

    def __init__(
        self,
        store: Store,
        format: Format,
        groups: Sequence[ChangedGroup],
        consolidated: bool,
        *,
        write_empty_chunks: bool | None = None,
    ) -> None:
        self.store = store
        self.format = format
        self._groups = list(groups)
        self._consolidated = consolidated
        self._keep_empty = bool(write_empty_chunks)
        self.jobs: list[Job] = []
        self._lengths: dict[str, _SharedLength] = {}
        self._changes: list[tuple[Change, Array]] = []
        self._placed: list[_Placed] = []
        self.keeps = False
        """Whether what was written stays when the write fails, so that it can be taken up again."""
        for group in groups:
            for change in group.changes:
                self._plan(change)
            for variable in group.added:
                path = node_prefix(group.group.path) + variable.name
                self._place(path, variable.metadata, variable, variable.write_empty_chunks)

    def _plan(self, change: Change) -> None:
        array = change.array
        if change.grows or change.rewritten:
            self._lengths[array.path] = _SharedLength(
                self.store, self.format.chunk_prefix(array.path), array._key
            )
        if change.rewritten:
            self._place(array.path, change.metadata, change, self._keep_empty)
            return
        kind = _Growing if change.grows else Array
        store = self._lengths[array.path].store if change.grows else self.store
        target = kind(
            store, array.path, change.metadata, format=self.format, write_empty_chunks=self._keep_empty
        )
        if change.is_lazy:
            self.jobs.append(Job(change.data, target, change.region, in_place=not change.grows))
            change = replace(change, data=None)
        self._changes.append((change, target))

    def _place(
        self, path: str, metadata: ArrayMetadata, what: PlannedArray | Change, keep_empty: bool
    ) -> None:
        """Plan an array that is written in a place of its own, and put where it belongs as a whole."""
        new = partial(
            _Beside,
            self.store,
            self.format,
            path,
            None,
            {path: metadata},
            how="mode 'w'",
            lease=self._lengths[path].lease if path in self._lengths else None,
        )
        try:
            place = new(overwrite=isinstance(what, Change))
        except NodeExistsError:
            if read_held(self.store, self.format, path, consolidated=False) is not None:
                raise
            # What a killed write has left is no node yet.
            self.store.erase_values(
                [key for key in self.format.document_keys(path) if self.store.exists(key)]
            )
            place = new(overwrite=True)
        target = Array(place.store, path, metadata, format=self.format, write_empty_chunks=keep_empty)
        if what.is_lazy:
            self.jobs.append(Job(what.data, target, ...))
            what = replace(what, data=None)
        self._placed.append((place, path, what, target))

    def keeps_leases_for(self, plan: str) -> None:
        """What was written, and the leases, stay for a write that can be taken up again."""
        self.keeps = True
        for length in self._lengths.values():
            length.lease.plan, length.lease.inherits = plan, True

    @property
    def only_sets(self) -> bool:
        """Whether this sets values of arrays that are there and keep their shapes, and nothing else."""
        return not self._lengths and not self._placed

    @property
    def adds_nodes(self) -> bool:
        """Whether there are variables that are new, or stored anew in a place of their own."""
        return bool(self._placed)

    @property
    def settings(self) -> list[tuple[Change, Array]]:
        """What is set in arrays that are there, and what it is written to."""
        return list(self._changes)

    def begin(self) -> _Begun:
        begun = _Begun()
        try:
            self._take(begun)
            spread(lambda each: each[0].begin(), self._placed, self.store.concurrency)
        except BaseException as error:
            self.discard(begun, error)
            raise
        return begun

    def _take(self, begun: _Begun) -> None:
        """Keep others from changing the lengths of arrays, and see that nobody has.

        The first one alone, so that of two who want the same ones only one gets any.
        """
        wanted = sorted(self._lengths)

        def take(path: str) -> None:
            mine = self._lengths[path]
            mine.begin(self.store.conflict_deadline)
            begun.lengths[path] = mine
            if mine.is_exclusive:
                mine.lease.ends_with(begun)

        for paths in (wanted[:1], wanted[1:]):
            spread(take, paths, self.store.concurrency)
        for group in self._groups:
            for change in group.changes:
                if change.array.path in begun.lengths:
                    self._check_unchanged(change, begun.lengths[change.array.path])
        for change, target in self._changes:
            if change.grows and begun.lengths[change.array.path].keeps_empty:
                target.write_empty_chunks = True
        begun.is_ours = True

    def _check_unchanged(self, change: Change, length: _SharedLength) -> None:
        array = change.array
        found = array._at_first(length)
        if found.shape != array.shape or found.attributes != array.metadata.attributes:
            raise ConflictError(
                f"array '{array.name}' of {self.store} has shape {found.shape} now, and had {array.shape} "
                "when this write was planned, or other attributes: somebody else has appended to it; nothing "
                "was appended; accepted: the same call again"
            )

    def finish(self, begun: _Begun) -> None:
        try:
            self._write_eager()
            replaced = [begun.lengths[path] for _, path, *_ in self._placed if path in begun.lengths]
            spread(_SharedLength.verify, replaced, self.store.concurrency)
            self._put_placed(begun)
        except BaseException as error:
            self.discard(begun, error)
            raise
        self._grow(begun)
        self._release(begun)
        self.finish_again()

    def _write_eager(self) -> None:
        """Write what is not in dask arrays."""
        eager: list[tuple[Array, Any, Any]] = [
            (target, change.region, change.data)
            for change, target in self._changes
            if change.data is not None
        ]
        eager += [(target, ..., what.data) for _, _, what, target in self._placed if what.data is not None]

        def write(job: tuple[Array, Any, Any]) -> None:
            target, region, data = job
            if data.size:
                target.set(region, data)

        spread(write, eager, self.store.concurrency)

    def _put_placed(self, begun: _Begun) -> None:
        """Put what was written in a place of its own where it belongs."""

        def store(placed: _Placed) -> None:
            place, path, what, _ = placed
            place.check_again()
            stored = {path: _documents(self.format, what.metadata, path)}
            store_documents(place.store, self.format, stored)

        spread(store, self._placed, self.store.concurrency)
        for place, path, what, _ in self._placed:
            place.put({"": what.metadata})
            begun.put.add(path)

    def _grow(self, begun: _Begun) -> None:
        """Let the documents of arrays that grow tell of it, all of them together."""
        growing = [(change, begun.lengths[change.array.path]) for change, _ in self._changes if change.grows]

        def grow(job: tuple[Change, _SharedLength]) -> BaseException | None:
            change, length = job
            array = change.array

            def changed(found: NodeMetadata) -> NodeMetadata:
                stored = array._same(found, array.shape)
                return array._resized(stored, change.metadata.shape)

            try:
                change_document(self.store, self.format, array.path, array._key, changed, length=length)
            except Exception as error:  # noqa: BLE001 - raised below
                return error
            return None

        try:
            outcomes = spread(grow, growing, self.store.concurrency)
        except BaseException as interruption:  # Which documents tell of it is not known.
            self._take_back([change for change, _ in growing], interruption, sure=False)
            self.discard(begun, interruption)
            raise
        failed = [error for error in outcomes if error is not None]
        if not failed:
            return
        error = failed[0]
        done = [change for (change, _), outcome in zip(growing, outcomes, strict=True) if outcome is None]
        self._take_back(done, error)
        self.discard(begun, error)
        if isinstance(error, LeaseLostError) and not isinstance(error, OutcomeUnknownError):
            raise ConflictError(f"{error}; nothing was appended; accepted: the same call again") from error
        raise error

    def _has_grown(self, change: Change) -> bool:
        look = Look(self.store)
        found = read_metadata(look, self.format, change.array.path, consolidated=False, again=True)
        return isinstance(found, ArrayMetadata) and found.shape == change.metadata.shape

    def _take_back(self, grown: Sequence[Change], error: BaseException, *, sure: bool = True) -> None:
        """Shorten arrays again that have grown before ``error``, or may have."""
        for change in grown:
            try:
                if sure or self._has_grown(change):
                    self._shrink(change)
            except (StoreError, MetadataError) as another:
                error.add_note(
                    f"'{change.array.name}' may be {change.metadata.shape} already, and could not be made "
                    f"{change.array.shape} again: {another}; accepted: .resize({change.array.shape}) of it"
                )

    def _shrink(self, change: Change) -> None:
        """Take back that an array has grown, if nobody else has changed it since."""
        array = change.array

        def changed(found: NodeMetadata) -> NodeMetadata:
            return array._resized(array._same(found, change.metadata.shape), array.shape)

        change_document(self.store, self.format, array.path, array._key, changed)

    def _release(self, begun: _Begun) -> None:
        """Let others change the lengths."""
        lengths = list(begun.lengths.values())
        spread(lambda each: each.__exit__(None, None, None), lengths, self.store.concurrency)
        begun.lengths.clear()

    def finish_again(self) -> None:
        """Do what is left when all values are written, and documents tell of them."""
        with copies_to_follow(self._groups[0].group.path):
            changed: list[str] = []
            for group in reversed(self._groups):  # From the bottom up, so that each holds what is below it.
                self._refresh(group, changed)
            if changed and not (self._consolidated and not self._is_consolidated()):
                refresh_consolidated(self.store, self.format, changed)
            self._consolidate()

    def _refresh(self, group: ChangedGroup, changed: list[str]) -> None:
        """Set the attributes of a group, and bring the copies that it holds up to date.

        ``changed`` are the nodes below that did, and gets those of this group.
        """
        path, format = group.group.path, self.format
        own = [each.array.path for each in group.changes if each.metadata != each.array.metadata]
        own += [node_prefix(path) + variable.name for variable in group.added]
        names = [name for name in [*own, *changed] if name.startswith(node_prefix(path))]
        attributes = group.attributes
        if attributes == group.group.metadata.attributes:
            attributes = None
        key = format.attributes_key(path, array=False)
        if key == format.consolidated_key(path) and format.one_document:
            # Readers of the copies shall see all that is new, or nothing of it.
            update = partial(_with_all, self.store, format, path, key, names, attributes)
            if names or attributes is not None:
                self.store.update(key, update)
        elif attributes is not None:
            change = partial(_with_attributes, attributes)
            change_document(self.store, format, path, key, change)
        if own or attributes is not None:
            changed += [path, *own]

    def _consolidate(self) -> None:
        if self._consolidated and not self._is_consolidated():
            options: Any = {"zarr_format": self.format.zarr_format, "use_consolidated": False}
            open_group(self.store, mode="r+", **options).consolidate()

    def _is_consolidated(self) -> bool:
        try:
            _, root = find_consolidated(self.store, self.format.zarr_format)
        except MetadataError:
            return False
        return isinstance(root, GroupMetadata) and root.consolidated is not None

    def discard(self, begun: _Begun, error: BaseException) -> None:
        held = dict(begun.lengths)
        begun.lengths.clear()
        for length in held.values():
            length.close()
        if self.keeps:  # The leases, too, which tell that nobody else has been there since.
            _end_all(_SharedLength.leave, held, error)
            return
        for place, path, *_ in self._placed:
            if path not in begun.put:
                place.discard(error, close=True)
        if begun.is_ours and not isinstance(error, OutcomeUnknownError):
            self._erase_behind(held, error)
        _end_all(lambda each: each.__exit__(type(error), error, None), held, error)

    def _erase_behind(self, held: Mapping[str, _SharedLength], error: BaseException) -> None:
        """Erase what was written behind arrays, when no task of this write can store more of it.

        Tasks in other processes look for the lease before they store a value. Those that had found it there
        get a moment to end.
        """
        for length in held.values():
            try:
                length.take_anew()
            except StoreError as another:
                error.add_note(f"tasks that have not ended may write behind the array: {another}")
        self._erase_behind_once(held, error)
        if any(length.shared for length in held.values()):
            time.sleep(_STRAGGLING)
            self._erase_behind_once(held, error)

    def _erase_behind_once(self, held: Mapping[str, _SharedLength], error: BaseException) -> None:
        for change, target in self._changes:
            owner = held.get(change.array.path)
            if owner is None:
                continue
            try:
                behind = target.metadata.chunk_grid
                change.array._over(owner, change.array.metadata)._erase_beyond(target.shape, behind)
            except LeaseLostError:
                continue  # What is behind the array is no matter of ours any more.
            except StoreError as another:
                error.add_note(f"what was written behind the array could not be erased: {another}")

    def group(self) -> Group:
        group = self._groups[0].group
        format = self.format
        options: Any = {"zarr_format": format.zarr_format}
        return open_group(self.store, group.path, mode="r+", use_consolidated=False, **options)


def _with_attributes(attributes: dict[str, Any], found: NodeMetadata) -> NodeMetadata:
    return replace(found, attributes=attributes)


def _with_all(
    store: Store,
    format: Format,
    path: str,
    key: str,
    names: Sequence[str],
    attributes: dict[str, Any] | None,
    stored: Buffer | None,
) -> list[Buffer] | Unchanged:
    """The document of a group with other attributes, and with the nodes below as they are now."""
    if stored is None:
        raise gone(store, path)
    document = documents.decode(stored, path, key.rpartition("/")[2])
    held = format.held(path, {key: document})
    if held is None:
        raise gone(store, path)
    meta = format.parse_again(held, path)
    if not isinstance(meta, GroupMetadata):
        raise gone(store, path)
    if attributes is not None:
        document = format.documents(replace(meta, attributes=attributes), path, meta.consolidated)[key]
    if meta.consolidated is not None:
        read = partial(read_metadata, Look(store), format, consolidated=False, again=True)
        for name, found in zip(names, spread(read, names, store.concurrency), strict=True):
            relative = name[len(node_prefix(path)) :]
            document = format.update_consolidated(document, relative, found) or document
    value = documents.encode(document, path)
    return UNCHANGED if value == stored else [value]


def _end_all(
    end: Callable[[_SharedLength], None], held: Mapping[str, _SharedLength], error: BaseException
) -> None:
    for length in held.values():
        try:
            end(length)
        except StoreError as another:
            error.add_note(
                f"others may have to wait, as key '{length.lease.key}' could not be removed yet: {another}"
            )


def _documents(format: Format, metadata: NodeMetadata, path: str) -> dict[str, bytes]:
    return {key: documents.encode(each, path) for key, each in format.documents(metadata, path).items()}
