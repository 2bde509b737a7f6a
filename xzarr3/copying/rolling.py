"""Changes where the elements of a group begin along a dimension: the first leave, or others come before them.

The new elements, and those that stay, replace the group as one change.

Units that stay whole are not decoded. In a directory their files get a second name in the new node, so that
nothing is copied; elsewhere their bytes are copied. Where the new beginning cuts a unit, or shifts the
borders of a regular grid, the elements are decoded and encoded again, a new unit at a time.

The place, and the lengths of the arrays, are leased before the first unit is taken over. Once the old node
has left, when no writer reaches it, its documents, and the units that it stores, are compared with those that
were taken over; it is put back if they differ. So nodes, attributes and values which another writer has made
or set meanwhile are not lost where no answer of the store is waited for; elsewhere, of units only those that
came or went are noticed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar, cast

from xzarr3._types import JSON, AnyArray
from xzarr3.api import open_group
from xzarr3.arrays import Array
from xzarr3.commit.append import Append
from xzarr3.commit.directory import StagedFolder
from xzarr3.commit.lease import holder_at
from xzarr3.commit.places import Place, is_own
from xzarr3.commit.recover import finish_swap
from xzarr3.commit.replace import transaction, write
from xzarr3.copying.documents import translated
from xzarr3.copying.plan import Plan, Source, nodes_below
from xzarr3.copying.settings import Settings
from xzarr3.copying.tiles import Coords
from xzarr3.copying.values import ArrayCopy, Means, do_all, element_bytes, most_threads, move_unit
from xzarr3.errors import ArgumentError, ConflictError, MetadataError
from xzarr3.formats import Format
from xzarr3.grid import RectilinearGrid, Steps
from xzarr3.groups import Group
from xzarr3.io.selection import basic_selection
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata
from xzarr3.nodes.erase import keys_at
from xzarr3.nodes.freshness import answers_at_once, note_values
from xzarr3.nodes.resize import inner_shape, resized
from xzarr3.parallel import parallel_map
from xzarr3.progress import Asked, Progress
from xzarr3.stores import Store, versioned

Value = TypeVar("Value")
_PLAN = "shift"  # What the lease says; calls of any arguments take over the lease of one that was killed.


@dataclass(frozen=True)
class Shift:
    """How a group changes along a dimension.

    Parameters
    ----------
    number : int
        How many of the first elements leave; a negative number of elements comes before the first.
    attributes : mapping, optional
        New attributes of the group.
    arrays : mapping of str to metadata
        Arrays of which no value is taken over, since they are made or all their values are new, by name.
    consolidated : bool
        Whether the root gets the documents of all nodes, if it does not have them.
    write : callable
        Stores new values; called with the new arrays by path below the group, once what stays is in them.
    """

    number: int
    attributes: Mapping[str, JSON] | None = None
    arrays: Mapping[str, ArrayMetadata] = field(default_factory=dict)
    consolidated: bool = False
    write: Callable[[Mapping[str, Array]], object] = lambda arrays: None


def shift(
    store: Store,
    path: str,
    dim: str,
    asked: Callable[[Group, Mapping[str, Source]], Shift],
    *,
    below: bool = True,
    progress: Asked = False,
    threads: int | None = None,
) -> Group:
    """Change where the elements of a group begin along a dimension, in all arrays that have it.

    Call :func:`~xzarr3.commit.recover.finish_interrupted` first.

    Parameters
    ----------
    store : Store
    path : str
        Path of the group.
    dim : str
    asked : callable
        Returns what changes; called when no other writer can append any more, with the group and all nodes
        by path below it.
    below : bool
        Whether arrays of groups below the group change, too.
    progress, threads
        As :func:`xzarr3.copy` has them.

    Raises
    ------
    ArgumentError
        If nothing would remain, or an array has the dimension twice.
    ConflictError
        If the arrays have different lengths, or another writer changes the group meanwhile.
    """
    opened = partial(open_group, store, path, mode="r+", use_consolidated=None)
    group = opened()
    arrays = _with_dimension(group, nodes_below(group), dim, below)
    lengths = Append(store, group.format)
    for array in arrays.values():
        lengths.reserve(array)
    lengths.begin(store.traits.conflict_deadline)
    try:
        place = Place.of(store, group.format, path)
        lease = place.lease().key
        if holder_at(store, lease).plan == _PLAN:  # A call was killed before anything was in its place.
            finish_swap(store, lease, path)
        documents = _documents(group, store.folder)  # Before the nodes are opened that are taken over.
        group = opened()
        nodes = nodes_below(group)
        found = _with_dimension(group, nodes, dim, below)
        if found.keys() != arrays.keys():
            raise place.changed()
        how = asked(group, nodes)
        if how.number:
            _check_remaining(group, found, dim, how.number)
            axes = {name: _axis(each, dim) for name, each in found.items()}
            leases = [length.lease.key for length in lengths.lengths.values()]
            return _Shifting(group, nodes, documents, axes, how, leases).run(progress, threads)
    finally:
        lengths.release()
    return group


def _with_dimension(group: Group, nodes: Mapping[str, Source], dim: str, below: bool) -> dict[str, Array]:
    """The arrays that have the dimension, by path below the group; all have the same length along it."""
    arrays = {
        name: node
        for name, node in nodes.items()
        if isinstance(node, Array) and dim in (node.dimension_names or ()) and (below or "/" not in name)
    }
    for array in arrays.values():
        if (array.dimension_names or ()).count(dim) > 1:
            raise ArgumentError(f"array '{array.name}' has the dimension {dim!r} twice; choose another one")
    lengths = {name: array.shape[_axis(array, dim)] for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ConflictError(
            f"arrays of '/{group.path}' in {group.store} have different lengths along {dim!r}, {lengths}: an "
            "append is under way or was interrupted, or they are not of one dataset; nothing was changed"
        )
    return arrays


def _axis(array: Array, dim: str) -> int:
    return (array.dimension_names or ()).index(dim)


def _check_remaining(group: Group, arrays: Mapping[str, Array], dim: str, number: int) -> None:
    size = max(array.shape[_axis(array, dim)] for array in arrays.values())
    if number >= size:
        raise ArgumentError(
            f"cannot drop {number} of the {size} elements along {dim!r} of '/{group.path}' in {group.store}; "
            "accepted: fewer than there are; to_zarr(mode='w') replaces a dataset of which nothing remains"
        )


@dataclass(frozen=True)
class _Shifting:
    """The change of a group with all nodes below it.

    Parameters
    ----------
    group : Group
    nodes : mapping of str to Array or Group
        The group and all nodes, by path below it.
    documents : mapping
        Their documents, as :func:`_documents` has them, from before they were opened.
    axes : mapping of str to int
        The axes of the arrays along which they change.
    how : Shift
    leases : collection of str
        Keys of the leases of the lengths.
    """

    group: Group
    nodes: Mapping[str, Source]
    documents: Mapping[str, object]
    axes: Mapping[str, int]
    how: Shift
    leases: Collection[str]

    def run(self, progress: Asked, threads: int | None) -> Group:
        """Make the new node and put it in its place."""
        group, store = self.group, self.group.store
        plan = self._plan()
        new = plan.new(consolidate=self.how.consolidated if plan.path else plan.consolidated)
        # A directory is leased before the swap only for a plan. Elsewhere recover() removes what none names.
        taken_by = None if store.folder is None else _PLAN
        taken = transaction(store, new, overwrite=True, how="", plan=taken_by)
        taken.kept_leases = self.leases
        others = self.nodes.keys() - self.axes.keys() - self.how.arrays.keys()
        taken.stay = {plan.path_of(below) for below in others if isinstance(self.nodes[below], Array)}
        arrays = plan.arrays_in(taken.store)
        parts = [
            _Part(cast("Array", self.nodes[below]), each, axis=self.axes.get(below), number=self.how.number)
            for below, each in arrays.items()
            if below not in self.how.arrays
        ]
        means = Means(threads or most_threads(group, store, plan.arrays.values()))
        with write(taken):
            taken.plan = None  # After an error nothing is kept: values may change before the next call.
            taken.keep_writers_away()
            if _documents(group, store.folder) != self.documents:
                raise taken.place.changed()
            units = self._units(store.folder)

            def is_unchanged(left: str | Mapping[str, object]) -> bool:
                if isinstance(left, str):
                    return _documents(group, left) == self.documents and self._units(left) == units
                return _of_nodes(group.format, left) == self.documents and self._units(None) == units

            taken.unchanged = is_unchanged
            size, text = sum(part.target.nbytes for part in parts), f"taking over what stays in {store}"
            with Progress(progress, size, text) as shown:
                do_all((move for part in parts for move in part.moves(means)), means.threads, shown.advance)
            self.how.write(arrays)
            if not is_unchanged(store.folder or _documents(group, None)):
                raise taken.place.changed()
        for array in plan.arrays_in(store).values():
            note_values(array)
        return cast("Group", plan.opened())

    def _units(self, folder: str | None) -> list[object]:
        """The units that are stored: files in a folder; else with versions where no answer is waited for."""
        arrays = [node for node in self.nodes.values() if isinstance(node, Array)]
        if folder is None:
            return [state for array in arrays for state in _units(array)]
        prefixes = [self.group.format.keys(array.path).chunks for array in arrays]
        return [(key, _file(path)) for each in prefixes for key, path in sorted(_files(folder, each))]

    def _plan(self) -> Plan:
        """The nodes as they will be."""
        group, how, metadata = self.group, self.how, dict[str, ArrayMetadata | GroupMetadata]()
        for below, node in self.nodes.items():
            meta = translated(node, group.format, Settings() if isinstance(node, Array) else None)
            if below in self.axes and isinstance(meta, ArrayMetadata):
                meta = _shifted_metadata(meta, self.axes[below], how.number)
            metadata[below] = meta
        if how.attributes is not None:
            metadata[""] = replace(metadata[""], attributes=dict(how.attributes))
        consolidated = bool(group.consolidated) or (how.consolidated and not group.path)
        nodes = {**metadata, **how.arrays}
        return Plan(self.nodes, group.store, group.path, group.format, nodes, consolidated)


def _shifted_metadata(meta: ArrayMetadata, axis: int, number: int) -> ArrayMetadata:
    """The metadata without the first elements along an axis, or with others before them.

    Chunks of any length begin where the elements do, unless the codecs cannot encode such chunks.
    """
    shape = tuple(size - number if at == axis else size for at, size in enumerate(meta.shape))
    along, inner = meta.chunk_grid.axes[axis], inner_shape(meta.codecs, len(shape))
    unit = 1 if inner is None else inner[axis]
    if isinstance(along, Steps) or number % unit:
        return resized(meta, shape)
    new = along.after(number) if number > 0 else along.before(-number, unit)
    axes = [new if each is along else each for each in meta.chunk_grid.axes]
    shifted = replace(meta, shape=shape, chunk_grid=RectilinearGrid.of(axes))
    try:
        shifted.check_codecs()
    except MetadataError:
        return resized(meta, shape)
    return shifted


@dataclass(frozen=True)
class _Part(ArrayCopy):
    """The values of one array that stay.

    Parameters
    ----------
    source, target : Array
        The array, and what becomes of it.
    axis : int or None
        The axis along which the array changes; None for an array that stays as it is.
    number : int
        As :class:`Shift` has it.
    """

    source: Array
    axis: int | None = None
    number: int = 0

    def moves(self, means: Means) -> Iterator[Callable[[], int]]:
        for coords, old in self._taken():
            yield partial(self._take, coords, old, means)

    def _taken(self) -> Iterator[tuple[Coords, Coords | None]]:
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

    def _take(self, coords: Coords, old: Coords | None, means: Means) -> int:
        """Take over a unit of the target, or encode it anew if it equals no unit of the source."""
        region = self.units.region(coords)
        if old is not None:
            step = partial(self._adopt, old, coords)
        else:
            region = self._moved(region, 0)
            step = partial(self._encode, region)
        elements = math.prod(part.stop - part.start for part in region)
        return means.do(step, 2 * elements * element_bytes(self.target), self.size(region))

    def _moved(self, region: tuple[slice, ...], by: int) -> tuple[slice, ...]:
        """A region without what comes before the first element, whose values are new, at other indices."""
        found = [*region]
        if self.axis is not None:
            along = region[self.axis]
            found[self.axis] = slice(max(along.start, -self.number) + by, along.stop + by)
        return tuple(found)

    def _encode(self, region: tuple[slice, ...]) -> None:
        target = self.target
        plan = target.engine.plan(basic_selection(region, target.shape))
        values = target.fitted(self.source.get(self._moved(region, self.number), threads=1), plan.shape)
        target.engine.write(plan, plan.source(values), 1, keep_empty=_keeps_empty(target, values))

    def _adopt(self, old: Coords, new: Coords) -> None:
        """Give a stored unit another key in the new node."""
        engine, into, key = self.source.engine, self.target.store, self.target.engine.key(new)
        file = f"{engine.store.folder}/{engine.key(old)}"
        if engine.store.folder is None or not isinstance(into, StagedFolder) or not into.adopt(key, file):
            move_unit(self.source, old, self.target, new)


def _keeps_empty(target: Array, values: AnyArray) -> bool:
    """Whether chunks of only the fill value are stored, so that a unit stays stored whatever is in it."""
    meta = target.metadata
    return target._keeps_empty or target.shards is None or meta.data_type.holds_only(values, meta.fill_value)


def _units(array: Array) -> Iterator[tuple[Coords, object]]:
    """The stored units of an array, each with its version if no answer of the store is waited for."""
    units, store = sorted(array.stored_units()), array.engine.store
    keys = [array.engine.key(coords) for coords in units]
    if answers_at_once(store):
        return ((coords, versioned(store, key)[1]) for coords, key in zip(units, keys, strict=True))
    return zip(units, store.versions(keys), strict=True)


def _documents(group: Group, folder: str | None) -> dict[str, object]:
    """The documents of a group and of all nodes below it, by key; of files in a folder, their states."""
    store, format, keys = group.store, group.format, group.format.keys(group.path)
    if folder is None:
        found = _of_nodes(format, dict.fromkeys(filter(is_own, keys_at(store, (format,), group.path))))
        values = parallel_map(lambda key: versioned(store, key)[0], found, store.concurrency)
        return dict(zip(found, values, strict=True))
    files = {key: os.path.join(folder, key) for key in keys.documents}
    for prefix in keys.prefixes:
        files.update(_files(folder, prefix))
    return {key: _file(path) for key, path in _of_nodes(format, files).items()}


def _of_nodes(format: Format, found: Mapping[str, Value]) -> dict[str, Value]:
    """Of what is found by key, the documents of nodes."""
    places = {key: place for key in found if (place := format.place(key)) is not None}
    nodes = {place.path for place in places.values() if place.kind != "other"}
    return {key: found[key] for key, place in places.items() if place.path in nodes}


def _files(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    """The files below a prefix in a directory that can be part of a node: keys, and paths."""
    for above, below, names in os.walk(os.path.join(folder, prefix)):
        below[:] = filter(is_own, below)
        for name in filter(is_own, names):
            path = os.path.join(above, name)
            yield path[len(folder) :].lstrip("/"), path


def _file(path: str) -> object:
    """What changes when a file is replaced or written to, and not when it gets another name."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size
