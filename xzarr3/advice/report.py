"""What ``advise`` found: layouts with what accesses cost, as text, HTML and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xzarr3.advice.imagined import Target
from xzarr3.display.report import Page, Report, Table
from xzarr3.display.units import counted, ratio
from xzarr3.grid import ChunkLengths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 6  # Layouts in the printed table.
_AS_GOOD = 1.1  # Times the best score: nothing that is worth writing all data again.


@dataclass(frozen=True)
class Prediction:
    """What one access costs.

    Parameters
    ----------
    access : str
    weight : float
        Share of all accesses.
    requests : int
        Requests of the read; for an append, the units that are written and those that are read before.
    bytes_moved, bytes_used : int
    decoded : int
        Bytes of elements that are decoded or encoded.
    seconds : float
        An estimate from the costs of the target.

    Examples
    --------
    >>> import xzarr3
    >>> found = xzarr3.advise(shape=(365, 90, 180), dtype="f4", access={"map": 1})
    >>> cost = found.best.predictions[0]
    >>> cost.access, cost.requests, cost.bytes_used
    ('map', 1, 64800)
    """

    access: str
    weight: float
    requests: int
    bytes_moved: int
    bytes_used: int
    decoded: int
    seconds: float


@dataclass(frozen=True)
class Candidate:
    """One layout and what the accesses cost with it.

    Parameters
    ----------
    name : str
    chunks : tuple
        Lengths along each dimension; of a present layout with unequal chunks, all lengths.
    shards : tuple or None
    files : int
        Number of stored units.
    stored : int
        Bytes of all units.
    predictions : tuple of Prediction
    score : float
        How many times longer accesses take than with the layouts that suit each of them best, on average. A
        score of 1 means that no other layout is faster for anything.

    Examples
    --------
    >>> import xzarr3
    >>> found = xzarr3.advise(shape=(365, 90, 180), dtype="f4", access={"map": 1})
    >>> found.best.name, found.best.files
    ('for maps', 92)
    """

    name: str
    chunks: ChunkLengths
    shards: ChunkLengths | None
    files: int
    stored: int
    predictions: tuple[Prediction, ...]
    score: float = math.inf


@dataclass(frozen=True, repr=False)
class Advice(Report):
    """Layouts of an array, the best first; made by :func:`xzarr3.advise`.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    target : Target
    candidates : tuple of Candidate
        The layouts by score, without the present one.
    present : Candidate or None
        The layout that the array has now.
    ratio : float or None
        Bytes of the elements for each stored byte, in a sample of the data; None without data.
    encodings : mapping of str to mapping
        The variables that the advice is for, and what stores each of them as it is, but for its layout: its
        packing and codecs.
    reads : mapping of str to str
        What each access reads or writes.

    Examples
    --------
    >>> import xzarr3
    >>> found = xzarr3.advise(shape=(365, 90, 180), dtype="f4", access={"map": 1})
    >>> found.best.chunks, found.variables
    ((4, 90, 180), ())
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    target: Target
    candidates: tuple[Candidate, ...]
    present: Candidate | None
    ratio: float | None
    encodings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> list[Candidate]:
        """The present layout if there is one, then the best ones."""
        return [*filter(None, [self.present]), *self.candidates[:_SHOWN]]

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that the advice is for."""
        return tuple(self.encodings)

    @property
    def best(self) -> Candidate:
        """The layout with the lowest score, or the present one if that is within 10 % of it."""
        first, present = self.candidates[0], self.present
        return first if present is None or present.score > _AS_GOOD * first.score else present

    def options(self) -> dict[str, Any]:
        """``chunks`` and ``shards`` of the best layout, for :func:`xzarr3.create_array`."""
        return {"chunks": self.best.chunks, "shards": self.best.shards}

    def encoding(self) -> dict[str, dict[str, Any]]:
        """For each variable its whole encoding in the best layout, for :func:`xzarr3.to_zarr`.

        An ``encoding`` that is passed to ``to_zarr`` replaces the variable's own one. So this one also has
        its data type, ``scale_factor``, ``add_offset``, ``_FillValue``, filters and compressors.
        :func:`xzarr3.copy` takes it, too.
        """
        return {name: {**own, **self.options()} for name, own in self.encodings.items()}

    def plot(self) -> Figure:
        """Draw requests, bytes moved for each byte used and times of the present and the best layouts.

        Returns
        -------
        matplotlib.figure.Figure
            A row of bars for each layout, a colour for each access, logarithmic axes. Notebooks show it;
            ``savefig`` stores it.

        Raises
        ------
        ImportError
            If matplotlib is not installed.

        Examples
        --------
        >>> import xzarr3
        >>> figure = xzarr3.advise(shape=(365, 90, 180), dtype="f4").plot()
        >>> [panel.get_title() for panel in figure.axes][:2]
        ['requests', 'bytes moved for each byte used']
        """
        from xzarr3.advice.plot import drawn

        return drawn(self, self.shown)

    def _page(self) -> Page:
        smaller = "assumed" if self.ratio is None else f"{ratio(self.ratio, 1)} times smaller, in a sample"
        where = f" of {', '.join(self.variables)}" if any(self.variables) else ""
        rows = [*self._rows()]
        return Page(
            "xzarr3.advise",
            f"layouts{where} for {_lengths(self.shape)} {self.dtype} on {self.target.name}; a score of 2 "
            "takes twice as long as the layouts that suit each access best",
            [*self.reads.items(), ("compression", smaller)],
            [Table(rows, len(rows[0]))],
            ["the present layout is as good as the best one"] if self.best is self.present else [],
        )

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """The table: its titles, the present layout if there is one, then the best ones."""
        accesses = (each.access for each in self.candidates[0].predictions)
        yield "layout", "chunks", "shards", "files", "score", *accesses
        for one in self.shown:
            costs = (
                f"{duration(each.seconds)}, {counted(each.requests, 'request')}" for each in one.predictions
            )
            layout = one.name, _lengths(one.chunks), _lengths(one.shards or "-")
            yield *layout, f"{one.files:,}", ratio(one.score, 1), *costs


def duration(seconds: float) -> str:
    """A time for people to read.

    Examples
    --------
    >>> duration(0.0123), duration(0.0996), duration(75), duration(4000)
    ('12 ms', '100 ms', '75 s', '4,000 s')
    """
    number, unit = (seconds * 1000, "ms") if seconds < 0.1 else (seconds, "s")
    return f"{number:.2g} {unit}" if number < 99 else f"{number:,.0f} {unit}"


def _lengths(lengths: Sequence[Any]) -> str:
    return " x ".join(map(str, lengths))
