"""Drops the first elements along a dimension of a group: what remains replaces the group as one change.

Units that stay whole are not decoded. In a directory their files get a second name in the new node, so that
nothing is copied; elsewhere their bytes are copied. Where the cut goes through a unit, or shifts the borders
of a regular grid, the elements are decoded and encoded again, a new unit at a time.

The place, and the lengths of the arrays, are leased before the first unit is taken over. Before the old node
leaves, the units that it stores are compared with those that were taken over. So values which another writer
has set meanwhile are not lost where the store tells versions without requests; elsewhere only units that came
or went are noticed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from xzarr3.arrays import Array
from xzarr3.commit.append import Append
from xzarr3.commit.directory import StagedFolder
from xzarr3.commit.lease import SWAPPING, holder_at
from xzarr3.commit.places import Place
from xzarr3.commit.recover import finish_swap
from xzarr3.commit.replace import transaction, write
from xzarr3.commit.transaction import NewNode, Transaction
from xzarr3.copying.documents import translated
from xzarr3.copying.plan import Plan, Source, nodes_below
from xzarr3.copying.resume import fingerprint
from xzarr3.copying.settings import Settings
from xzarr3.copying.tiles import Coords, Tiles
from xzarr3.copying.values import Means, do_all, element_bytes, most_threads
from xzarr3.errors import ArgumentError, ConflictError, StoreCapabilityError
from xzarr3.formats.documents import shifted
from xzarr3.grid import RectilinearGrid, Steps
from xzarr3.groups import Group
from xzarr3.io.selection import basic_selection
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata
from xzarr3.nodes.freshness import note_values
from xzarr3.nodes.resize import resized
from xzarr3.parallel import pause
from xzarr3.progress import Asked, Progress
from xzarr3.stores import Store

_PLAN = "drop"  # What the lease says; calls of any arguments take over the lease of one that was killed.


def drop_first(
    opened: Callable[[], Group],
    dim: str,
    counted: Callable[[Group, bool], int],
    *,
    is_finished: bool,
    progress: Asked,
    threads: int | None,
) -> Group:
    """Drop the first elements along a dimension, of all arrays that have it.

    Parameters
    ----------
    opened : callable
        Opens the group.
    dim : str
    counted : callable
        Returns how many elements are dropped; called when no other writer can append any more, with whether
        an earlier call was cut off that had put what remains in its place.
    is_finished : bool
        Whether a write to the place that was cut off has been finished just now.
    progress, threads
        As :func:`xzarr3.copy` has them.

    Raises
    ------
    ArgumentError
        If nothing would remain, or an array has the dimension twice.
    ConflictError
        If the arrays have different lengths, or another writer changes the group meanwhile.
    StoreCapabilityError
        If the store cannot hold a node back until it is complete.
    """
    group = opened()
    store, place = group.store, Place.of(group.store, group.format, group.path)
    if store.traits.visible != "at once":
        raise StoreCapabilityError(
            f"{store} commits by itself, so no part of '/{group.path}' can be dropped in it; write what "
            "remains, with to_zarr(ds.isel(...), mode='w')"
        )
    if holder_at(store, place.lease(_PLAN).key).state == SWAPPING:
        _clean(place)
        is_finished = True
    arrays = _with_dimension(group, nodes_below(group), dim)
    lengths = Append(store, group.format)
    for array in arrays.values():
        lengths.reserve(array)
    lengths.begin(store.traits.conflict_deadline)
    try:
        group = opened()
        nodes = nodes_below(group)
        found, number = _with_dimension(group, nodes, dim), counted(group, is_finished)
        if found.keys() != arrays.keys():
            raise _changed(group)
        if number:
            return _drop(group, nodes, found, dim, number, progress, threads)
    finally:
        lengths.release()
    if holder_at(store, place.lease(_PLAN).key).plan == _PLAN:  # A call was killed before that.
        _clean(place)
    return group


def _clean(place: Place) -> None:
    """Remove what a call that was killed has left beside the place."""
    finish_swap(place.store, place.lease().key, place.path)


def _with_dimension(group: Group, nodes: dict[str, Source], dim: str) -> dict[str, Array]:
    """The arrays that have the dimension, by path below the group; all have the same length along it."""
    arrays = {
        below: node
        for below, node in nodes.items()
        if isinstance(node, Array) and dim in (node.dimension_names or ())
    }
    for array in arrays.values():
        if (array.dimension_names or ()).count(dim) > 1:
            raise ArgumentError(f"array '{array.name}' has the dimension {dim!r} twice; drop along another")
    lengths = {below: array.shape[_axis(array, dim)] for below, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ConflictError(
            f"arrays of '/{group.path}' in {group.store} have different lengths along {dim!r}, {lengths}: an "
            "append is under way or was interrupted, or they are not of one dataset; nothing was dropped"
        )
    return arrays


def _axis(array: Array, dim: str) -> int:
    return (array.dimension_names or ()).index(dim)


def _drop(
    group: Group,
    nodes: dict[str, Source],
    arrays: dict[str, Array],
    dim: str,
    number: int,
    progress: Asked,
    threads: int | None,
) -> Group:
    store, size = group.store, max(array.shape[_axis(array, dim)] for array in arrays.values())
    if number >= size:
        raise ArgumentError(
            f"cannot drop {number} of the {size} elements along {dim!r} of '/{group.path}' in {store}; "
            "accepted: fewer than there are; to_zarr(mode='w') replaces a dataset of which nothing remains"
        )
    metadata: dict[str, ArrayMetadata | GroupMetadata] = {}
    for below, node in nodes.items():
        meta = translated(node, group.format, Settings() if isinstance(node, Array) else None)
        if below in arrays and isinstance(meta, ArrayMetadata):
            meta = _shortened(meta, _axis(arrays[below], dim), number)
        metadata[below] = meta
    plan = Plan(nodes, store, group.path, group.format, metadata, group.consolidated)
    state = partial(fingerprint, cast("dict[str, Array | Group]", nodes), {})
    asked = state()
    metas = {plan.path_of(below): meta for below, meta in metadata.items()}
    new = NewNode.of(plan.format, plan.path, metas, consolidate=plan.consolidated and not plan.path)
    taken = transaction(store, new, overwrite=True, how="", plan=_PLAN)
    parts = [
        _Part(
            node,
            Array(taken.store, plan.path_of(below), meta, format=plan.format),
            _axis(node, dim) if below in arrays else None,
            number,
        )
        for below, node in nodes.items()
        if isinstance(node, Array) and isinstance(meta := metadata[below], ArrayMetadata)
    ]
    means = Means(threads or most_threads(group, store, plan.arrays.values()))
    with write(taken), _begun_anew(taken):
        before = [_states(part.source) for part in parts]
        with Progress(progress, sum(part.target.nbytes for part in parts), f"dropping from {store}") as shown:
            do_all((move for part in parts for move in part.moves(means)), means.threads, shown.advance)
        if state() != asked or before != [_states(part.source) for part in parts]:
            raise _changed(group)
        taken.new = _shifted(new, [plan.path_of(below) for below in arrays])
    for part in parts:
        note_values(Array(store, part.target.path, part.target.metadata, format=plan.format))
    return cast("Group", plan.opened())


def _shifted(new: NewNode, paths: Collection[str]) -> NewNode:
    """The new node, whose documents tell readers that opened these arrays before that indices are others."""
    now = time.time()
    encoded = {
        path: {key: shifted(value, now) if path in paths else value for key, value in own.items()}
        for path, own in new.documents.items()
    }
    return replace(new, documents=encoded)


def _changed(group: Group) -> ConflictError:
    return ConflictError(
        f"another writer has changed '/{group.path}' in {group.store} while a part of it was dropped; "
        "nothing was dropped; repeat the call"
    )


@contextmanager
def _begun_anew(taken: Transaction) -> Iterator[None]:
    """Keep nothing of a call that was cut off, nor of this one if it fails: values may change meanwhile."""
    try:
        for key in [*taken.store.list()] if taken.resumes else ():
            taken.store.erase(key)
        yield
    except BaseException:
        taken.plan = None
        raise


def _shortened(meta: ArrayMetadata, axis: int, number: int) -> ArrayMetadata:
    """The metadata without the first elements along an axis; a chunk of any length is cut where they end."""
    shape = tuple(size - number if at == axis else size for at, size in enumerate(meta.shape))
    along = meta.chunk_grid.axes[axis]
    if isinstance(along, Steps):
        return resized(meta, shape)
    axes = [each.after(number) if each is along else each for each in meta.chunk_grid.axes]
    chunks = tuple(each.length if isinstance(each, Steps) else each.runs for each in axes)
    return replace(meta, shape=shape, chunk_grid=RectilinearGrid(chunks))


@dataclass(frozen=True)
class _Part:
    """The values of one array that remain.

    Parameters
    ----------
    source, target : Array
        The array, and what becomes of it.
    axis : int or None
        The axis that is cut; None for an array that stays whole.
    number : int
        The number of elements that are dropped.
    """

    source: Array
    target: Array
    axis: int | None
    number: int

    def moves(self, means: Means) -> Iterator[Callable[[], int]]:
        """Callables that take over all values; each returns the decoded size in bytes of what it has done."""
        alone = Tiles(self.target.metadata.chunk_grid, self.target.shape, (1,) * self.target.ndim)
        for coords, old in self._units():
            yield lambda coords=coords, old=old: self._move(alone.region(coords), coords, old, means)  # type: ignore[misc]

    def _units(self) -> Iterator[tuple[Coords, Coords | None]]:
        """The units of the target that hold values, with the equal unit of the source, if there is one."""
        done: set[Coords] = set()
        for coords in self.source.stored_units():
            if self.axis is None:
                yield coords, coords
                continue
            for at, is_whole in self._along(coords[self.axis]):
                new = (*coords[: self.axis], at, *coords[self.axis + 1 :])
                if is_whole:
                    yield new, coords
                elif new not in done:
                    done.add(new)
                    yield new, None

    def _along(self, index: int) -> Iterator[tuple[int, bool]]:
        """The units of the target along the axis with elements of a unit, and whether they are the same."""
        axis = cast("int", self.axis)
        old, new = self.source.unit_grid.axes[axis], self.target.metadata.chunk_grid.axes[axis]
        start, length = old.start(index) - self.number, old.length_at(index)
        stop = min(start + length, self.target.shape[axis])
        if stop <= 0:
            return
        first = new.index(max(start, 0))
        is_whole = new.start(first) == start and new.length_at(first) == length
        for at in range(first, new.index(stop - 1) + 1):
            yield at, is_whole

    def _move(self, region: tuple[slice, ...], coords: Coords, old: Coords | None, means: Means) -> int:
        """Take over a unit of the target, or encode it anew if it equals no unit of the source."""
        source, target = self.source, self.target
        elements = math.prod(part.stop - part.start for part in region)
        with means.memory.reserved(2 * elements * element_bytes(target)):
            if not pause(0):  # Another thread has failed while this one waited.
                return 0
            if old is None:
                shift = [self.number if axis == self.axis else 0 for axis in range(source.ndim)]
                there = tuple(
                    slice(part.start + by, part.stop + by) for part, by in zip(region, shift, strict=True)
                )
                values = source.get(there, threads=1)
                target._write(basic_selection(region, target.shape), values, threads=1)
            else:
                _take_over(
                    source.engine.store, source.engine.key(old), target.store, target.engine.key(coords)
                )
        return int(elements * target.dtype.itemsize)


def _take_over(store: Store, key: str, into: Store, new: str) -> None:
    """Give a stored unit another key in the new node."""
    if (
        store.folder is not None
        and isinstance(into, StagedFolder)
        and into.adopt(new, f"{store.folder}/{key}")
    ):
        return
    value = store.get(key)
    if value is not None:
        into.set(new, value)


def _states(array: Array) -> list[tuple[Coords, object]]:
    """The stored units of an array, each with its version if the store tells it without a request."""
    store, units = array.engine.store, sorted(array.stored_units())
    keys = [array.engine.key(coords) for coords in units]
    if store.folder is None:
        return [*zip(units, store.versions(keys), strict=True)]
    return [(at, _file(os.path.join(store.folder, key))) for at, key in zip(units, keys, strict=True)]


def _file(path: str) -> object:
    """What changes when a file is replaced or written to, and not when it gets another name."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size
