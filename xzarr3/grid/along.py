"""How one dimension is divided into chunks: :class:`Steps` of one length, or :class:`Edges` of any lengths.

Neither is expanded to a list of chunks, because a short document can describe very many of them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from typing import Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from xzarr3._types import JSON
from xzarr3.errors import MetadataError

_LARGEST = np.iinfo(np.intp).max  # The largest index that numpy can have.
_MOST_CHUNKS = 10**8  # Along one dimension, for a list of their lengths.
FIELD = "chunk_grid"

Run: TypeAlias = tuple[int, int]
"""A length in elements, and the number of consecutive chunks of this length."""

Elements: TypeAlias = npt.NDArray[np.intp]


class Steps(msgspec.Struct, frozen=True):
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


class Edges(msgspec.Struct, frozen=True, dict=True):
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
        return Edges(
            merged_runs([*self.runs, *((value, count) for value, count in added if value and count)])
        )

    def after(self, number: int) -> Edges:
        """The chunks without the first ``number`` elements.

        Examples
        --------
        >>> Edges(((31, 1), (28, 1), (31, 2))).after(41).runs
        ((18, 1), (31, 2))
        """
        first = self.index(number)
        runs = [(self.start(first + 1) - number, 1)]
        for (value, _), begin, end in zip(self.runs, self._firsts, self._firsts[1:], strict=False):
            runs.append((value, end - max(begin, first + 1)))
        return Edges(merged_runs((value, count) for value, count in runs if count > 0))

    def before(self, number: int, unit: int = 1) -> Edges:
        """The chunks with others for ``number`` elements before them.

        These are about as long as the longest chunk, and multiples of ``unit`` if ``number`` is one.

        Examples
        --------
        >>> Edges(((365, 3),)).before(731).runs, Edges(((4, 3),)).before(12, 2).runs
        (((366, 1), (365, 4)), ((4, 6),))
        """
        count = max(1, round(number / (self.longest or number)))
        length, more = divmod(number // unit, count)
        runs = [((length + 1) * unit, more), (length * unit, count - more), *self.runs]
        return Edges(merged_runs((value, times) for value, times in runs if times))

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
        return Edges(merged_runs((value, count) for value, count in (*runs, (left, 1)) if value and count))

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
            "too many chunks of several lengths along a dimension", field=FIELD, found=count,
            accepted=f"at most {_MOST_CHUNKS}",
        )  # fmt: skip
    return count


def merged_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same lengths, with equal neighbours merged into one run."""
    merged: list[Run] = []
    for value, count in runs:
        if merged and merged[-1][0] == value:
            merged[-1] = (value, merged[-1][1] + count)
        else:
            merged.append((value, count))
    return tuple(merged)


def axis_from(value: object, field: str) -> Steps | Edges:
    if isinstance(value, (list, tuple)):
        return Edges(merged_runs(run_from(item, f"{field}[{at}]") for at, item in enumerate(value)))
    return Steps(_length(value, field, "an integer of at least 1, or a list"))


def run_from(value: object, field: str) -> Run:
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
