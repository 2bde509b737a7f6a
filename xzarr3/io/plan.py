"""The plan of a read or write: the stored units that a selection touches, and where their elements go.

A read carries out a :class:`ReadPlan`, :meth:`xzarr3.Array.explain` prints it, and a write divides its values
by it. Selections other than of single elements are a product over the dimensions. For these the plan holds
one list of parts for each dimension, and no list of chunks. Where the chunks of a grid differ, units are
grouped by shape, because codecs are bound to a shape. A plan makes no requests and knows no store.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.grid import Grid, Steps
from xzarr3.io.fetch import Price
from xzarr3.io.projection import (
    ONE,
    AxisProjection,
    ChunkProjection,
    Mesh,
    PointGroups,
    Pointwise,
    Slices,
    axis_parts,
    projections,
    touched,
)
from xzarr3.io.selection import DimChoice, DimIndices, Points

_MANY = 64  # Elements along a dimension; fewer are divided in the time of counting their chunks.

Batch: TypeAlias = tuple[CodecChain, Iterable[ChunkProjection]]
"""Units of one shape, and the codecs bound to it."""


class ReadPlan(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The plan of a read or write of one selection.

    Parameters
    ----------
    selection : tuple of DimSelection or DimIndices, or Points
        See :mod:`xzarr3.io.selection`.
    array_shape : tuple of int
    grid : Grid
        Divides the array into stored units: shards, or chunks that are in no shard.
    chain_of : callable
        Returns the codecs bound to units of a shape.
    price : Price
        The cost of requests and bytes at the store.

    Examples
    --------
    >>> import xzarr3
    >>> array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(10, 10), chunks=(4, 4), dtype="int8")
    >>> plan = array.plan((slice(1, 7), -1))
    >>> plan.shape, plan.number, list(plan.coords())
    ((6,), 2, [(0, 2), (1, 2)])
    """

    selection: tuple[DimChoice, ...] | Points
    array_shape: tuple[int, ...]
    grid: Grid
    chain_of: Callable[[tuple[int, ...]], CodecChain]
    price: Price

    @cached_property
    def addressing(self) -> Slices:
        """The way in which ``inner`` describes the wanted elements of a unit."""
        if isinstance(self.selection, Points):
            return Pointwise(self.selection.axes, len(self.array_shape))
        return Mesh() if DimIndices in map(type, self.selection) else Slices()

    # The result

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        if not isinstance(self.selection, Points):
            return tuple([chosen.count for chosen in self.selection if not chosen.drop])
        others = [chosen.count for chosen in self.selection.others]
        at = self.selection.position
        return (*others[:at], *self.selection.shape, *others[at:])

    @cached_property
    def buffer_shape(self) -> tuple[int, ...]:
        """Shape of the buffer for the units: no dimension is dropped, and points are one dimension."""
        if isinstance(self.selection, Points):
            return (len(self.selection.indices[0]), *(chosen.count for chosen in self.selection.others))
        return tuple([chosen.count for chosen in self.selection])

    def aligned(self, result: AnyArray) -> AnyArray:
        """A view of a result, or of values to write: points first, no dimension dropped, all steps forward.

        Its elements may be in another order than in the buffer: see :attr:`order`.
        """
        if isinstance(self.selection, Points):
            at, ndim = self.selection.position, len(self.selection.shape)
            view = np.moveaxis(result, range(at, at + ndim), range(ndim))
            directions = _directions(self.selection.others)
            return view[(*(slice(None),) * ndim, *directions)] if ndim or self.selection.others else view
        if not [chosen for chosen in self.selection if chosen.drop or chosen.reverse]:
            return result
        dropped = [np.newaxis if chosen.drop else slice(None) for chosen in self.selection]
        aligned: AnyArray = result[(*dropped, ...)]
        if True in [chosen.reverse for chosen in self.selection]:
            aligned = aligned[(*_directions(self.selection),)]
        return aligned

    @cached_property
    def order(self) -> tuple[Any, ...] | None:
        """Index that puts an aligned result into buffer order; None if it already is."""
        if isinstance(self.selection, Points):
            order = self.groups.order
            return None if order is None else (order,)
        if not [chosen for chosen in self.selection if chosen.order is not None]:
            return None
        each = [np.arange(one.count) if one.order is None else one.order for one in self.selection]
        return np.ix_(*each)

    def buffer_for(self, out: AnyArray) -> AnyArray:
        """The buffer to read units into: a view of ``out`` if it is in buffer order, or new memory."""
        if self.order is None:
            view = self.aligned(out)
            if view.shape == self.buffer_shape:
                return view
            if view.flags.c_contiguous:
                return view.reshape(self.buffer_shape)
        return np.empty(self.buffer_shape, out.dtype)

    def hand_over(self, buffer: AnyArray, out: AnyArray) -> None:
        """Copy the buffer into the result, unless it is a view of the result."""
        if buffer is out or np.may_share_memory(buffer, out):
            return
        view = self.aligned(out)
        if not isinstance(self.selection, Points):
            view[self.order] = buffer
            return
        if self.order is not None:
            ordered = np.empty_like(buffer)
            ordered[self.order] = buffer
            buffer = ordered
        view[...] = buffer.reshape(view.shape)

    def source(self, values: AnyArray) -> AnyArray:
        """Values to write, of the shape of the result, put into buffer order."""
        view = self.aligned(values)
        if isinstance(self.selection, Points):
            view = view.reshape(self.buffer_shape)
        return view if self.order is None else view[self.order]

    # The units

    @cached_property
    def parts(self) -> list[list[AxisProjection]]:
        """For each dimension that has no points, the parts of the selection in each unit."""
        axes = [*zip(self.grid.axes, self.array_shape, strict=True)]
        chosen = self.selection
        if isinstance(chosen, Points):
            axes = [each for at, each in enumerate(axes) if at not in chosen.axes]
            chosen = chosen.others
        return [axis_parts(each, *axis) for each, axis in zip(chosen, axes, strict=True)]

    @cached_property
    def groups(self) -> PointGroups:
        """The points grouped by unit."""
        shard = self.chain_of(self.grid.largest).shard
        finer = None if shard is None else shard.grid.chunk_shape
        points, addressing = cast("Points", self.selection), cast("Pointwise", self.addressing)
        return addressing.grouped(points.indices, self.grid.axes, finer)

    @cached_property
    def _point_units(self) -> list[tuple[tuple[int, ...], ChunkProjection]]:
        """For points, the units with their shapes."""
        return [*cast("Pointwise", self.addressing).units(self.groups, self.grid.axes, self.parts)]

    @cached_property
    def number(self) -> int:
        """Number of touched units."""
        if isinstance(self.selection, Points):
            return len(self.groups.begins) * math.prod(map(len, self.parts))
        if max(self.buffer_shape, default=0) > _MANY:
            counts = [*map(touched, self.selection, self.grid.axes)]
            if None not in counts:
                return math.prod(cast("list[int]", counts))
        return math.prod(map(len, self.parts))

    @cached_property
    def chunks(self) -> int:
        """About how many chunks the selection touches; inner chunks, where there are shards."""
        shard = self.chain_of(self.grid.largest).shard
        if shard is None:
            return self.number
        if isinstance(self.selection, Points):
            return max(self.number, len(self.selection.indices[0]))
        each = zip(self.selection, shard.grid.chunk_shape, strict=True)
        return math.prod(touched(chosen, Steps(length)) or chosen.count for chosen, length in each)

    def coords(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of the touched units, in C order."""
        if isinstance(self.selection, Points):
            return iter(sorted(unit.coords for _, unit in self._point_units))
        return itertools.product(*([part.coord for part in along] for along in self.parts))

    def batches(self) -> Iterator[Batch]:
        """The touched units in batches of one shape; a regular grid makes one batch."""
        if isinstance(self.selection, Points):
            for shape, units in itertools.groupby(self._point_units, key=lambda unit: unit[0]):
                yield self.chain_of(shape), (unit for _, unit in units)
            return
        for shape, parts in self.shapes():
            yield self.chain_of(shape), projections(parts) if parts else iter((ONE,))

    def shapes(self) -> Iterator[tuple[tuple[int, ...], list[list[AxisProjection]]]]:
        """For each shape of a unit, the parts along each dimension; their product is the units."""
        if self.grid.is_regular:
            yield self.grid.largest, self.parts
            return
        by_length: list[dict[int, list[AxisProjection]]] = [{} for _ in self.parts]
        for axis, parts, found in zip(self.grid.axes, self.parts, by_length, strict=True):
            for part in parts:
                found.setdefault(axis.length_at(part.coord), []).append(part)
        for shape in itertools.product(*by_length):
            yield shape, [along[length] for along, length in zip(by_length, shape, strict=True)]

    def work(self, *, in_parts: bool = True) -> int:
        """About how many bytes are decoded; only wanted ones of chunks that can be read ``in_parts``."""
        chain = self.chain_of(self.grid.largest)
        if chain.shard is not None:
            chain = chain.shard.inner
        wanted = math.prod(self.buffer_shape) * chain.spec.dtype.itemsize
        return wanted if chain.is_plain and in_parts else self.chunks * chain.spec.nbytes


def _directions(selection: Sequence[DimChoice]) -> list[slice]:
    return [slice(None, None, -1 if chosen.reverse else 1) for chosen in selection]
