"""What a read of a joined array fetches, in all and of each source."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from xzarr3.display.picture import picture
from xzarr3.display.report import Page, Table
from xzarr3.display.units import counted, size
from xzarr3.io.explain import NUMBERS, Explanation
from xzarr3.io.selection import Fields
from xzarr3.joined.split import Piece, Selected
from xzarr3.parallel import parallel_map

if TYPE_CHECKING:
    from xzarr3.joined.array import JoinedArray

_SHOWN = 20  # Most sources, and most stored units, that are printed.


@dataclass(frozen=True, repr=False)
class JoinedExplanation(Explanation):
    """What a read of a joined array fetches: the sums, and an :class:`Explanation` of each source.

    Parameters
    ----------
    sources : tuple of (str, Explanation)
        The place of each touched source, and what is read of it.

    Examples
    --------
    >>> import xzarr3
    >>> both = xzarr3.concat([xzarr3.array([1, 2], chunks=1), xzarr3.array([3], chunks=1)], 0)
    >>> found = both.explain(slice(1, 3))
    >>> found.requests, [explanation.requests for _, explanation in found.sources]
    (2, [1, 1])
    """

    sources: tuple[tuple[str, Explanation], ...]

    _left_out = ("first", "_fetches", "_picture", "sources")

    def _page(self) -> Page:
        page = super()._page()
        rows = [("source", "chunks", "requests", "moved", "used")]
        rows += [
            (where, f"{one.chunks:,}", f"{one.requests:,}", size(one.bytes_moved), size(one.bytes_used))
            for where, one in self.sources[:_SHOWN]
        ]
        left = len(self.sources) - _SHOWN
        notes = [f"and {counted(left, 'more source')}"] if left > 0 else []
        return replace(page, tables=[Table(rows)], details={}, notes=notes)

    __repr__ = Explanation.__repr__


def explain(
    array: JoinedArray, selection: Selected, fields: Fields | None = None, threads: int | None = None
) -> JoinedExplanation:
    """Tell what a read of a joined array fetches; see :func:`xzarr3.io.explain.explain`."""

    def of_source(piece: Piece) -> tuple[str, Explanation]:
        source = array.sources[piece.at].array
        return source.place, source.explain_selected(piece.selection, fields, threads)

    plan = array.plan_selected(selection)
    found = parallel_map(of_source, array.pieces(selection), max(array.waiting, 1))
    each = [one for _, one in found]
    first = itertools.islice(itertools.chain.from_iterable(one.first for one in each), _SHOWN)
    return JoinedExplanation(
        array.name,
        plan.shape,
        first=tuple(first),
        sources=tuple(found),
        _fetches=lambda: itertools.chain.from_iterable(each),
        _picture=partial(picture, replace(array.metadata, chunk_grid=array.unit_grid), [plan]),
        **{name: sum(getattr(one, name) for one in each) for name in ("units", *NUMBERS)},
    )
