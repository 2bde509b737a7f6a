"""Chunk grids: divide an array into stored units.

Specification: Zarr v3 core, "Chunk grids"; "Regular grids". Extension ``chunk-grids/rectilinear`` of
zarr-extensions, whose chunks along a dimension may each have another length.

A grid is a product over the dimensions. It holds one :class:`Steps` or :class:`Edges` for each dimension and
never a list of chunks. Neither is expanded, because a short document can describe very many chunks. Knows
nothing of keys, codecs and stores.
"""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, SupportsIndex, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import JSON
from xzarr3.errors import MetadataError, UnknownExtensionError
from xzarr3.extensions import unknown_fields

_LARGEST = np.iinfo(np.intp).max  # The largest index that numpy can have.
_MOST_CHUNKS = 10**8  # Along one dimension, for a list of their lengths.
_FIELD = "chunk_grid"

Run: TypeAlias = tuple[int, int]
"""A length in elements, and the number of consecutive chunks of this length."""

Elements: TypeAlias = npt.NDArray[np.intp]

ChunkLengths: TypeAlias = tuple[int, ...] | tuple[tuple[int, ...], ...]
"""The shape of all chunks; or the lengths of the chunks along each dimension if they differ."""


def as_lengths(value: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    """One or several integers of any integer type, as a tuple of int.

    Raises
    ------
    TypeError
        If a value is not an integer.
    """
    given: Iterable[SupportsIndex] = value if isinstance(value, Iterable) else (value,)
    return tuple(int(operator.index(length)) for length in given)


@dataclass(frozen=True)
class Steps:
    """One dimension divided into chunks of the same length.

    Parameters
    ----------
    length : int
        Length of a chunk, in elements.

    Examples
    --------
    >>> steps = Steps(4)
    >>> steps.count(10), steps.index(9), steps.start(2), steps.lengths(10)
    (3, 2, 8, (4, 4, 2))
    """

    length: int

    @property
    def distinct(self) -> tuple[int, ...]:
        """The lengths that occur, the largest first."""
        return (self.length,)

    @property
    def longest(self) -> int:
        """The largest length that occurs."""
        return self.length

    def count(self, size: int) -> int:
        """Number of chunks that share elements with a dimension of this size."""
        return -(-size // self.length) if size else 0

    def index(self, element: int) -> int:
        """Index of the chunk that holds an element."""
        return element // self.length

    def locate(self, elements: Elements) -> tuple[Elements, Elements]:
        """For each element, the index of the chunk that holds it, and the position within the chunk."""
        return np.divmod(elements, min(self.length, _LARGEST))

    def start(self, index: int) -> int:
        """The first element of a chunk."""
        return index * self.length

    def length_at(self, index: int) -> int:
        """Length of a stored chunk, including what lies beyond the array."""
        return self.length

    def run_at(self, element: int, size: int) -> tuple[int, int, int, int]:
        """The run of equal chunks around an element.

        Returns
        -------
        tuple of int
            The first element of the run, one past its last element within the dimension, the index of its
            first chunk, and the length of its chunks.
        """
        return 0, size, 0, self.length

    def lengths(self, size: int) -> tuple[int, ...]:
        """Lengths of the chunks within a dimension of this size; a single 0 if the dimension is empty.

        Raises
        ------
        MetadataError
            If there are more than 10^8 chunks.
        """
        count = _listed_count(self.count(size))
        return (self.length,) * (count - 1) + (size - (count - 1) * self.length,) if count else (0,)

    def covering(self, size: int, unit: int = 1) -> Self:
        """The chunks of the dimension after it grew to ``size``: the same, as steps have no end."""
        return self

    def paired(self) -> Steps:
        """The dimension in chunks that each join two chunks."""
        return Steps(2 * self.length)

    def agrees(self, other: Steps | Edges) -> bool:
        """Whether chunks with the same index have the same elements, as far as both have chunks."""
        return self == other

    def to_json(self) -> JSON:
        """The dimension in the form of the document of a rectilinear grid."""
        return self.length


@dataclass(frozen=True)
class Edges:
    """One dimension divided into chunks of any lengths.

    Parameters
    ----------
    runs : tuple of (int, int)
        The lengths in order, each with the number of consecutive chunks of this length. Chunks may reach
        beyond the array, or lie wholly beyond it.

    Examples
    --------
    >>> edges = Edges(((2, 3), (5, 1)))
    >>> edges.count(10), edges.index(9), edges.start(2), edges.lengths(10)
    (4, 3, 4, (2, 2, 2, 4))
    """

    runs: tuple[Run, ...]

    @cached_property
    def _starts(self) -> list[int]:
        """The first element of each run, and one past the last element."""
        return list(itertools.accumulate((value * count for value, count in self.runs), initial=0))

    @cached_property
    def _firsts(self) -> list[int]:
        """The index of the first chunk of each run, and the number of all chunks."""
        return list(itertools.accumulate((count for _, count in self.runs), initial=0))

    @property
    def total(self) -> int:
        """The sum of all lengths: the largest size that a dimension can have."""
        return self._starts[-1]

    @cached_property
    def distinct(self) -> tuple[int, ...]:
        """The lengths that occur, the largest first."""
        return tuple(sorted({value for value, _ in self.runs}, reverse=True))

    @cached_property
    def longest(self) -> int:
        """The largest length that occurs; 0 if there are no chunks."""
        return max((value for value, _ in self.runs), default=0)

    def count(self, size: int) -> int:
        """Number of chunks that share elements with a dimension of this size."""
        return self.index(size - 1) + 1 if size else 0

    def index(self, element: int) -> int:
        """Index of the chunk that holds an element."""
        run = bisect_right(self._starts, element) - 1
        return self._firsts[run] + (element - self._starts[run]) // self.runs[run][0]

    def locate(self, elements: Elements) -> tuple[Elements, Elements]:
        """For each element, the index of the chunk that holds it, and the position within the chunk."""
        starts, firsts, lengths = (
            np.array([min(number, _LARGEST) for number in numbers], np.intp)
            for numbers in (self._starts, self._firsts, [value for value, _ in self.runs])
        )
        runs = np.searchsorted(starts, elements, side="right") - 1
        chunks, within = np.divmod(elements - starts[runs], lengths[runs])
        return firsts[runs] + chunks, within

    def start(self, index: int) -> int:
        """The first element of a chunk."""
        run = bisect_right(self._firsts, index) - 1
        if run == len(self.runs):
            return self.total
        return self._starts[run] + (index - self._firsts[run]) * self.runs[run][0]

    def length_at(self, index: int) -> int:
        """Length of a stored chunk, including what lies beyond the array."""
        return self.runs[bisect_right(self._firsts, index) - 1][0]

    def run_at(self, element: int, size: int) -> tuple[int, int, int, int]:
        """The run of equal chunks around an element; see :meth:`Steps.run_at`."""
        run = bisect_right(self._starts, element) - 1
        return self._starts[run], min(self._starts[run + 1], size), self._firsts[run], self.runs[run][0]

    def runs_within(self, size: int) -> list[tuple[int, int, int]]:
        """The runs of equal chunks that begin within a dimension of this size.

        Returns
        -------
        list of tuple of int
            For each run its first element, the index of its first chunk and the length of its chunks. The
            length is at most ``size``.

        Examples
        --------
        >>> Edges(((2, 3), (50, 1), (5, 4))).runs_within(10)
        [(0, 0, 2), (6, 3, 10)]
        """
        return [
            (start, first, min(value, size))
            for start, first, (value, _) in zip(self._starts, self._firsts, self.runs, strict=False)
            if start < size
        ]

    def lengths(self, size: int) -> tuple[int, ...]:
        """Lengths of the chunks within the dimension; see :meth:`Steps.lengths`."""
        count = _listed_count(self.count(size))
        if not count:
            return (0,)
        lengths: list[int] = []
        for value, number in self.runs:
            lengths.extend([value] * min(number, count - len(lengths)))
        lengths[-1] = size - self.start(count - 1)
        return tuple(lengths)

    def covering(self, size: int, unit: int = 1) -> Edges:
        """The chunks of the dimension after it grew to ``size``.

        Adds chunks of the longest length, and one chunk for the rest. So no new chunk is longer than the
        present ones, and appending a piece as long as a chunk adds a chunk.

        Parameters
        ----------
        size : int
        unit : int
            Length of the inner chunks of each chunk. The added chunks are multiples of it.

        Examples
        --------
        >>> months = Edges(((31, 1), (28, 1)))
        >>> months.covering(90).runs, months.covering(59 + 31 + 30).runs
        (((31, 1), (28, 1), (31, 1)), ((31, 1), (28, 1), (31, 1), (30, 1)))
        """
        missing = size - self.total
        if missing <= 0:
            return self
        longest = self.longest or -(-missing // unit) * unit
        full, rest = divmod(missing, longest)
        added = [(longest, full), (-(-rest // unit) * unit, 1)]
        return Edges(_merged([*self.runs, *((value, count) for value, count in added if value and count)]))

    def paired(self) -> Edges:
        """The dimension in chunks that each join two neighbours.

        Examples
        --------
        >>> Edges(((2, 4), (3, 3))).paired().runs
        ((4, 2), (6, 1), (3, 1))
        """
        runs: list[Run] = []
        left = 0
        for value, count in self.runs:
            if left:
                runs.append((left + value, 1))
            pairs, rest = divmod(count - (left > 0), 2)
            left = value if rest else 0
            runs.append((2 * value, pairs))
        return Edges(_merged((value, count) for value, count in (*runs, (left, 1)) if value and count))

    def agrees(self, other: Steps | Edges) -> bool:
        """Whether chunks with the same index have the same elements, as far as both have chunks.

        Examples
        --------
        >>> Edges(((2, 1), (3, 1))).agrees(Edges(((2, 1), (3, 2), (4, 1))))
        True
        """
        if not isinstance(other, Edges):
            return False
        short, long = sorted((self.runs, other.runs), key=lambda runs: (len(runs), runs[-1:]))
        at = len(short) - 1
        if at < 0:
            return True
        # The last run of the shorter one may be a part of a longer run of the other.
        ends = len(short) == len(long) or short[at][1] <= long[at][1]
        return short[:at] == long[:at] and short[at][0] == long[at][0] and ends

    def to_json(self) -> JSON:
        """The dimension in the form of the document of a rectilinear grid; equal lengths become one pair."""
        return [value if count == 1 else [value, count] for value, count in self.runs]


def _listed_count(count: int) -> int:
    if count > _MOST_CHUNKS:
        raise MetadataError(
            "too many chunks of several lengths along a dimension", field=_FIELD, found=count,
            accepted=f"at most {_MOST_CHUNKS}",
        )  # fmt: skip
    return count


def _merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same lengths, with equal neighbours merged into one run."""
    merged: list[Run] = []
    for value, count in runs:
        if merged and merged[-1][0] == value:
            merged[-1] = (value, merged[-1][1] + count)
        else:
            merged.append((value, count))
    return tuple(merged)


class Grid(ABC):
    """A chunk grid. Immutable, compared by value. ``shape`` is always that of the array."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def axes(self) -> tuple[Steps | Edges, ...]:
        """The division of each dimension."""

    @classmethod
    @abstractmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        """The grid that a metadata document describes.

        Raises
        ------
        MetadataError
            If the configuration is not valid; the error names the field from ``chunk_grid`` on.
        """

    @abstractmethod
    def configuration(self) -> dict[str, JSON]:
        """The configuration in the form of a metadata document."""

    @abstractmethod
    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse a grid that does not fit an array of this shape.

        Raises
        ------
        MetadataError
            If the number of dimensions differs, a chunk has no length or a dimension is not covered.
        """

    @abstractmethod
    def resized(self, shape: tuple[int, ...], inner: tuple[int, ...] | None = None) -> Self:
        """The grid of the array after its shape has changed.

        All chunks that are in both grids keep their coordinates and their shape.

        Parameters
        ----------
        shape : tuple of int
        inner : tuple of int, optional
            Shape of the inner chunks, also of the added chunks.
        """

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

    @cached_property
    def axes(self) -> tuple[Steps | Edges, ...]:
        return tuple(map(Steps, self.chunk_shape))

    @property
    def is_regular(self) -> bool:
        return True

    @property
    def largest(self) -> tuple[int, ...]:
        return self.chunk_shape

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        unknown_fields(configuration, ("chunk_shape",), "chunk_shape", within=f"{_FIELD}.configuration")
        lengths = configuration.get("chunk_shape")
        if not isinstance(lengths, list) or not all(type(n) is int and 0 <= n < 2**63 for n in lengths):
            raise MetadataError(
                "not a chunk shape", field=f"{_FIELD}.configuration.chunk_shape", found=lengths,
                accepted="integers of at least 1",
            )  # fmt: skip
        return cls(tuple(lengths))

    def configuration(self) -> dict[str, JSON]:
        return {"chunk_shape": list(self.chunk_shape)}

    def check(self, shape: tuple[int, ...]) -> None:
        field = f"{_FIELD}.configuration.chunk_shape"
        if len(self.chunk_shape) != len(shape):
            raise MetadataError(
                f"the array has {len(shape)} dimensions",
                field=field,
                found=list(self.chunk_shape),
                accepted=f"{len(shape)} integers",
            )
        for length, size in zip(self.chunk_shape, shape, strict=True):
            if length < 1 and (size > 0 or length < 0):
                raise MetadataError(
                    "a chunk of length 0 does not fit a dimension of another length",
                    field=field,
                    found=list(self.chunk_shape),
                    accepted="integers of at least 1",
                )

    def resized(self, shape: tuple[int, ...], inner: tuple[int, ...] | None = None) -> Self:
        return self


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

    def __post_init__(self) -> None:
        field = f"{_FIELD}.configuration.chunk_shapes"
        if not isinstance(self.chunk_shapes, (list, tuple)):
            raise MetadataError(
                "not the chunks of dimensions", field=field, found=self.chunk_shapes, accepted=_CHUNKS
            )
        # Stored in one form, so that equal grids compare equal.
        shapes = tuple(axis.length if isinstance(axis, Steps) else axis.runs for axis in self.axes)
        object.__setattr__(self, "chunk_shapes", shapes)

    @cached_property
    def axes(self) -> tuple[Steps | Edges, ...]:
        field = f"{_FIELD}.configuration.chunk_shapes"
        return tuple(_axis(value, f"{field}[{at}]") for at, value in enumerate(self.chunk_shapes))

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self:
        known = ("chunk_shapes", "kind")
        unknown_fields(configuration, known, ", ".join(known), within=f"{_FIELD}.configuration")
        kind = configuration.get("kind")
        if kind != "inline":
            raise MetadataError(
                "missing field" if kind is None else "unknown kind of chunk shapes",
                field=f"{_FIELD}.configuration.kind",
                found=... if kind is None else kind,
                accepted="'inline'",
            )
        if "chunk_shapes" not in configuration:
            raise MetadataError(
                "missing field", field=f"{_FIELD}.configuration.chunk_shapes", accepted=_CHUNKS
            )
        return cls(configuration["chunk_shapes"])

    def configuration(self) -> dict[str, JSON]:
        return {"kind": "inline", "chunk_shapes": [axis.to_json() for axis in self.axes]}

    def check(self, shape: tuple[int, ...]) -> None:
        field = f"{_FIELD}.configuration.chunk_shapes"
        if len(self.axes) != len(shape):
            raise MetadataError(
                f"the array has {len(shape)} dimensions",
                field=field,
                found=self.configuration()["chunk_shapes"],
                accepted=f"the chunks of {len(shape)} dimensions",
            )
        for at, (axis, size) in enumerate(zip(self.axes, shape, strict=True)):
            if isinstance(axis, Edges) and axis.total < size:
                raise MetadataError(
                    f"the chunk lengths add up to {axis.total}, less than the dimension's {size}",
                    field=f"{field}[{at}]",
                    found=axis.to_json(),
                    accepted=f"lengths whose sum is at least {size}",
                )

    def resized(self, shape: tuple[int, ...], inner: tuple[int, ...] | None = None) -> Self:
        units = inner or (1,) * len(shape)
        axes = [axis.covering(*wanted) for axis, *wanted in zip(self.axes, shape, units, strict=True)]
        return type(self)(tuple(axis.length if isinstance(axis, Steps) else axis.runs for axis in axes))


_CHUNKS = "for each dimension an integer, or a list of integers and pairs [length, count]"


def _axis(value: object, field: str) -> Steps | Edges:
    if isinstance(value, (list, tuple)):
        return Edges(_merged(_run(item, f"{field}[{at}]") for at, item in enumerate(value)))
    return Steps(_length(value, field, "an integer of at least 1, or a list"))


def _run(value: object, field: str) -> Run:
    if not isinstance(value, (list, tuple)):
        return _length(value, field, "an integer of at least 1, or a pair [length, count]"), 1
    if len(value) != 2:
        raise MetadataError(
            "not a run of chunks", field=field, found=list(value), accepted="a pair [length, count]"
        )
    accepted = "an integer of at least 1"
    return _length(value[0], f"{field}[0]", accepted), _length(value[1], f"{field}[1]", accepted)


def _length(value: object, field: str, accepted: str) -> int:
    if type(value) is not int or not 1 <= value < 2**63:
        raise MetadataError("not the chunks of a dimension", field=field, found=value, accepted=accepted)
    return value


GRIDS: dict[str, type[Grid]] = {grid.name: grid for grid in (RegularGrid, RectilinearGrid)}
"""The known chunk grids, by their names in documents."""


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
        raise UnknownExtensionError("unknown chunk grid", field=f"{_FIELD}.name", found=name, accepted=GRIDS)
    grid = GRIDS[name].from_configuration(configuration)
    grid.check(shape)
    return grid


def _sample(shape: Sequence[int]) -> tuple[int, ...]:
    """Lengths of chunks that an array of this shape can have, for an error message."""
    return tuple(max(1, min(length, 100)) for length in shape)


def grid_for(chunks: Any, shape: tuple[int, ...], field: str = "chunks") -> Grid:
    """The grid for the ``chunks`` that a user gives.

    Parameters
    ----------
    chunks : int, or sequence of int or sequence of int
        One length for the chunks along all dimensions; or for each dimension the length of its chunks,
        -1 for the whole dimension, or a list of the lengths of its chunks, as in dask.
    shape : tuple of int
    field : str
        Name of ``chunks`` in errors.

    Returns
    -------
    RegularGrid or RectilinearGrid
        Regular if every list has equal lengths, of which the last may be shorter. Otherwise rectilinear; a
        dimension given as a list then grows as :meth:`Edges.covering` describes.

    Raises
    ------
    MetadataError
        If the chunks do not fit the shape.

    Examples
    --------
    >>> grid_for(4, (10, 10)), grid_for(((4, 4, 2), (5, 5)), (10, 10))
    (RegularGrid(chunk_shape=(4, 4)), RegularGrid(chunk_shape=(4, 5)))
    >>> grid_for([-1, [3, 7]], (10, 10))
    RectilinearGrid(chunk_shapes=(10, ((3, 1), (7, 1))))
    """
    given = [chunks] * len(shape) if _is_integer(chunks) else _items(chunks)
    if given is None or len(given) != len(shape):
        raise MetadataError(
            f"the array has {len(shape)} dimensions", field=field, found=chunks,
            accepted=f"{len(shape)} integers or lists of integers, such as {_sample(shape)}",
        )  # fmt: skip
    found = [
        _wanted_axis(value, size, field if value is chunks else f"{field}[{at}]")
        for at, (value, size) in enumerate(zip(given, shape, strict=True))
    ]
    steps = [axis if isinstance(axis, int) else _step(axis) for axis in found]
    if None not in steps:
        return RegularGrid(tuple(cast("list[int]", steps)))
    return RectilinearGrid(tuple(found))


def _step(runs: tuple[Run, ...]) -> int | None:
    """The length of all chunks, where the last chunk may be shorter; None if they differ otherwise."""
    regular = len(runs) == 1 or (len(runs) == 2 and runs[1][1] == 1 and runs[1][0] < runs[0][0])
    return runs[0][0] if regular else None


def _wanted_axis(value: Any, size: int, field: str) -> int | tuple[Run, ...]:
    """The chunks that a user gives along one dimension: one length for all, or the runs of lengths."""
    if _is_integer(value):
        if int(value) != -1 and not 1 <= int(value) < 2**63:
            raise MetadataError(
                "not a chunk length", field=field, found=value, accepted="integers of at least 1"
            )
        return max(size, 1) if int(value) == -1 else int(value)
    items = _items(value)
    if items is None:
        raise MetadataError(
            "not the chunks of a dimension", field=field, found=value,
            accepted="an integer of at least 1, or a list of integers",
        )  # fmt: skip
    if not size and all(_is_integer(item) and item == 0 for item in items):
        return 1  # Dask gives chunks of length 0 to a dimension without elements.
    plain = [_plain(item) for item in items]
    runs = _merged(_run(item, f"{field}[{at}]") for at, item in enumerate(plain))
    total = sum(length * count for length, count in runs)
    if total < size:
        raise MetadataError(
            f"the chunk lengths add up to {total}, less than the dimension's {size}",
            field=field,
            found=value,
            accepted=f"lengths whose sum is at least {size}",
        )
    return runs


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _items(value: Any) -> list[Any] | None:
    """The elements of a sequence; None for other values, and for text, which is no sequence of lengths."""
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim else None
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else None


def _plain(value: Any) -> Any:
    """A length, or a pair of a length and a count, as Python integers."""
    items = _items(value)
    if items is not None:
        return [int(item) if _is_integer(item) else item for item in items]
    return int(value) if _is_integer(value) else value
