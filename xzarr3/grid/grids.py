"""Chunk grids: divide an array into stored units.

Specification: Zarr v3 core, "Chunk grids"; "Regular grids". Extension ``chunk-grids/rectilinear`` of
zarr-extensions, whose chunks along a dimension may each have another length.

A grid is a product over the dimensions. It holds one :class:`~xzarr3.grid.along.Steps` or
:class:`~xzarr3.grid.along.Edges` for each dimension and never a list of chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import msgspec

from xzarr3._types import JSON
from xzarr3.errors import MetadataError, UnknownExtensionError
from xzarr3.fields import Meta, read
from xzarr3.grid.along import FIELD, Edges, Steps, axis_from

ChunkLengths: TypeAlias = tuple[int, ...] | tuple[tuple[int, ...], ...]
"""The shape of all chunks; or the lengths of the chunks along each dimension if they differ."""
_CHUNKS = "for each dimension an integer, or a list of integers and pairs [length, count]"


class _Regular(msgspec.Struct, frozen=True):
    """The configuration of a regular grid."""

    chunk_shape: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=2**63 - 1)], ...], Meta(description="integers of at least 1")
    ]


class _Rectilinear(msgspec.Struct, frozen=True):
    """The configuration of a rectilinear grid; each dimension is read by :func:`axis_from`."""

    kind: Literal["inline"]
    chunk_shapes: Annotated[list[Any], Meta(description=_CHUNKS)]


class Grid(ABC):
    """A chunk grid. Immutable, compared by value. ``shape`` is always that of the array."""

    name: ClassVar[str]
    _field: ClassVar[str]

    @property
    @abstractmethod
    def axes(self) -> tuple[Steps | Edges, ...]:
        """The division of each dimension."""

    @abstractmethod
    def configuration(self) -> dict[str, JSON]:
        """The configuration in the form of a metadata document."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse a grid that does not fit an array of this shape.

        Raises
        ------
        MetadataError
            If the number of dimensions differs, a chunk has no length or a dimension is not covered.
        """
        field, found = f"{FIELD}.configuration.{self._field}", self.configuration()[self._field]
        if len(self.axes) != len(shape):
            raise MetadataError(
                f"the array has {len(shape)} dimensions", field=field, found=found,
                accepted=f"the chunks of {len(shape)} dimensions",
            )  # fmt: skip
        for at, (axis, size) in enumerate(zip(self.axes, shape, strict=True)):
            if isinstance(axis, Steps):
                if axis.length < 1 and (size > 0 or axis.length < 0):
                    raise MetadataError(
                        "a chunk of length 0 does not fit a dimension of another length", field=field,
                        found=found, accepted="integers of at least 1",
                    )  # fmt: skip
            elif axis.total < size:
                raise MetadataError(
                    f"the chunk lengths add up to {axis.total}, less than the dimension's {size}",
                    field=f"{field}[{at}]",
                    found=axis.to_json(),
                    accepted=f"lengths whose sum is at least {size}",
                )

    def resized(self, shape: tuple[int, ...], inner: tuple[int, ...] | None = None) -> Self:
        """The grid of the array after its shape has changed.

        All chunks that are in both grids keep their coordinates and their shape.

        Parameters
        ----------
        shape : tuple of int
        inner : tuple of int, optional
            Shape of the inner chunks, also of the added chunks.
        """
        return self

    @cached_property
    def is_regular(self) -> bool:
        """Whether all chunks have the same shape for every shape of the array."""
        return all(isinstance(axis, Steps) for axis in self.axes)

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """The largest length of a chunk along each dimension: the shape of each chunk of a regular grid."""
        return tuple(axis.longest for axis in self.axes)

    def agrees(self, other: Grid) -> bool:
        """Whether chunks with the same coordinates have the same elements, as far as both have chunks.

        A grid and its :meth:`resized` grid agree.
        """
        return (
            self.name == other.name
            and len(self.axes) == len(other.axes)
            and all(mine.agrees(its) for mine, its in zip(self.axes, other.axes, strict=True))
        )

    def sample_shapes(self) -> Iterator[tuple[int, ...]]:
        """Shapes of chunks that have each length along each dimension at least once, the largest first.

        Codecs that can encode these shapes can encode every other shape in the grid.
        """
        yield self.largest
        for at, axis in enumerate(self.axes):
            for length in axis.distinct[1:]:
                yield (*self.largest[:at], length, *self.largest[at + 1 :])

    def counts(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Number of chunks along each dimension of an array of this shape."""
        return tuple(axis.count(size) for size, axis in zip(shape, self.axes, strict=True))

    def chunk_shape_at(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a stored chunk, including what lies beyond the array."""
        return tuple(axis.length_at(i) for i, axis in zip(coords, self.axes, strict=True))

    def region(self, coords: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
        """The region of an array of this shape that a chunk covers."""
        result = []
        for i, axis, size in zip(coords, self.axes, shape, strict=True):
            start = axis.start(i)
            result.append(slice(start, min(start + axis.length_at(i), size)))
        return tuple(result)

    def chunk_lengths(self, shape: tuple[int, ...]) -> ChunkLengths:
        """The shape of all chunks if the grid is regular; otherwise their lengths along each dimension."""
        if self.is_regular:
            return self.largest
        return tuple(axis.lengths(size) for size, axis in zip(shape, self.axes, strict=True))


@dataclass(frozen=True)
class RegularGrid(Grid):
    """All chunks have the same shape; chunks at the upper edges may reach beyond the array.

    Parameters
    ----------
    chunk_shape : tuple of int
        Length of a chunk along each dimension, in elements.

    Examples
    --------
    >>> grid = RegularGrid((2, 3))
    >>> grid.counts((5, 3))
    (3, 1)
    >>> grid.region((2, 0), (5, 3))
    (slice(4, 5, None), slice(0, 3, None))
    """

    chunk_shape: tuple[int, ...]

    name = "regular"
    _field = "chunk_shape"

    @cached_property
    def axes(self) -> tuple[Steps | Edges, ...]:
        return tuple(map(Steps, self.chunk_shape))

    def configuration(self) -> dict[str, JSON]:
        return {"chunk_shape": list(self.chunk_shape)}


AxisChunks: TypeAlias = int | Sequence[int | Sequence[int]]
"""Chunks along a dimension: one length for all, or a list of lengths and of pairs (length, count)."""


@dataclass(frozen=True)
class RectilinearGrid(Grid):
    """The chunks along a dimension may each have another length.

    Chunks may reach beyond the array, or lie wholly beyond it; the latter are not stored. A dimension that
    grows beyond its last chunk gets more chunks; see :meth:`Edges.covering`.

    Parameters
    ----------
    chunk_shapes : tuple
        For each dimension an integer, the length of all its chunks; or the lengths of its chunks, where
        (length, count) stands for several equal chunks.

    Raises
    ------
    MetadataError
        If ``chunk_shapes`` has another form.

    Examples
    --------
    >>> grid = RectilinearGrid((4, (1, 2, (3, 2))))
    >>> grid.counts((6, 9)), grid.chunk_shape_at((1, 2))
    ((2, 4), (4, 3))
    >>> grid.region((1, 2), (6, 9))
    (slice(4, 6, None), slice(3, 6, None))
    >>> grid.configuration()
    {'kind': 'inline', 'chunk_shapes': [4, [1, 2, [3, 2]]]}
    """

    chunk_shapes: tuple[AxisChunks, ...]

    name = "rectilinear"
    _field = "chunk_shapes"

    def __post_init__(self) -> None:
        field = f"{FIELD}.configuration.chunk_shapes"
        if not isinstance(self.chunk_shapes, (list, tuple)):
            raise MetadataError(
                "not the chunks of dimensions", field=field, found=self.chunk_shapes, accepted=_CHUNKS
            )
        # Stored in one form, so that equal grids compare equal.
        shapes = tuple(axis.length if isinstance(axis, Steps) else axis.runs for axis in self.axes)
        object.__setattr__(self, "chunk_shapes", shapes)

    @classmethod
    def of(cls, axes: Iterable[Steps | Edges]) -> Self:
        """The grid whose dimensions are divided so."""
        return cls(tuple(axis.length if isinstance(axis, Steps) else axis.runs for axis in axes))

    @cached_property
    def axes(self) -> tuple[Steps | Edges, ...]:
        field = f"{FIELD}.configuration.chunk_shapes"
        return tuple(axis_from(value, f"{field}[{at}]") for at, value in enumerate(self.chunk_shapes))

    def configuration(self) -> dict[str, JSON]:
        return {"kind": "inline", "chunk_shapes": [axis.to_json() for axis in self.axes]}

    def resized(self, shape: tuple[int, ...], inner: tuple[int, ...] | None = None) -> Self:
        units = inner or (1,) * len(shape)
        axes = zip(self.axes, shape, units, strict=True)
        return self.of(axis.covering(*wanted) for axis, *wanted in axes)


GRIDS = (RegularGrid.name, RectilinearGrid.name)
"""The names of the known chunk grids in documents."""


def parse_grid(name: str, configuration: Mapping[str, Any], shape: tuple[int, ...]) -> Grid:
    """The grid that a metadata document describes, for an array of this shape.

    Raises
    ------
    MetadataError
        If the configuration is not valid or does not fit the shape.
    UnknownExtensionError
        If the grid, or a field of its configuration, is not known.

    Examples
    --------
    >>> parse_grid("regular", {"chunk_shape": [2]}, (5,))
    RegularGrid(chunk_shape=(2,))
    >>> parse_grid("rectilinear", {"kind": "inline", "chunk_shapes": [[[2, 3], 1]]}, (8,))
    Traceback (most recent call last):
    xzarr3.errors.MetadataError: field 'chunk_grid.configuration.chunk_shapes[0]': the chunk ...
    """
    if name not in GRIDS:
        raise UnknownExtensionError("unknown chunk grid", field=f"{FIELD}.name", found=name, accepted=GRIDS)
    within = f"{FIELD}.configuration"
    grid: Grid
    if name == "regular":
        grid = RegularGrid(**read(_Regular, configuration, "", within=within))
    else:
        grid = RectilinearGrid(tuple(read(_Rectilinear, configuration, "", within=within)["chunk_shapes"]))
    grid.check(shape)
    return grid
