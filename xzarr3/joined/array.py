"""One array made of several, in any stores: a read goes to those that it touches, and nothing is copied.

The arrays may differ in format, codecs, chunks and fill value, and in their data type if one of them can hold
the values of all. Values that need more than that, such as another scale, are converted by a function of
their source.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.display.report import Page
from xzarr3.display.shown import Description
from xzarr3.display.units import counted, size
from xzarr3.dtypes import ZDType, parse_dtype
from xzarr3.errors import ArgumentError, StoreError
from xzarr3.formats import V3
from xzarr3.grid import Edges, Grid, RectilinearGrid, RegularGrid, Steps
from xzarr3.grid.along import Run, merged_runs
from xzarr3.io.fetch import Price
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import Fields
from xzarr3.joined.document import Joined
from xzarr3.joined.split import Joint, Piece, Selected
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.names import absent_name
from xzarr3.parallel import parallel_map
from xzarr3.readable import ReadableArray
from xzarr3.stores import Store

if TYPE_CHECKING:
    from xzarr3.joined.report import JoinedExplanation

Convert: TypeAlias = Callable[[AnyArray], AnyArray]

_SHOWN = 20  # Most sources that a description lists.


@dataclass(frozen=True)
class Source:
    """One of the arrays of a joined array.

    Parameters
    ----------
    array : Array or JoinedArray
    convert : callable, optional
        Turns its values into those of the joined array. It is pickled.
    dtype : dtype, optional
        The dtype of the converted values, if there is a function that converts them.
    """

    array: ReadableArray
    convert: Convert | None = None
    dtype: np.dtype[Any] | None = None

    @property
    def values(self) -> np.dtype[Any]:
        """The dtype of the values that the joined array gets."""
        return self.array.dtype if self.dtype is None else self.dtype


class JoinedArray(Joined, ReadableArray):
    """Several arrays as one, which is read as an :class:`Array` is.

    :func:`xzarr3.concat` and :func:`xzarr3.stack` make it. It holds no data, reads only what a selection
    touches, and cannot be written. :func:`xzarr3.from_zarr` makes it a dask array with blocks that end where
    its arrays do, and :func:`xzarr3.copy` stores it. Its ``chunks`` and codecs are those of the first array,
    which a copy has; ``read_chunk_sizes`` has the lengths of all chunks. It is pickled with the places and
    documents of its arrays, about a kilobyte each.

    Parameters
    ----------
    sources : sequence of Source
    joint : Joint
        The dimension along which they lie, and where each begins.
    metadata : ArrayMetadata
        Shape, data type, names of the dimensions and attributes of the whole; chunks and codecs of the first
        array.
    grids : tuple of Grid, optional
        How the whole is divided into stored units, and into chunks.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> years = [xzarr3.array(np.full((2, 3), year, dtype)) for year, dtype in ((1, "int8"), (2, "int16"))]
    >>> both = xzarr3.concat(years, 0)
    >>> both, both[1:3, 0]
    (<xzarr3.JoinedArray of 2 arrays along dimension 0 shape=(4, 3) dtype=int16>, array([1, 2], dtype=int16))
    """

    metadata: ArrayMetadata

    def __init__(
        self,
        sources: Sequence[Source],
        joint: Joint,
        metadata: ArrayMetadata,
        grids: tuple[Grid, Grid] | None = None,
    ) -> None:
        self.sources, self.joint, self.metadata = tuple(sources), joint, metadata
        self._grids = grids or (metadata.chunk_grid, metadata.chunk_grid)

    def __reduce__(self) -> tuple[object, ...]:
        return JoinedArray, (self.sources, self.joint, self.metadata, self._grids)

    def __getattr__(self, name: str) -> NoReturn:
        hint = "" if name.startswith("_") else absent_name("Array", name)
        raise AttributeError(f"'JoinedArray' object has no attribute {name!r}{hint}", name=name, obj=self)

    # What it is

    @property
    def path(self) -> str:  # type: ignore[override]
        """The path of the first array in its store."""
        return self.sources[0].array.path

    @property
    def place(self) -> str:
        """The first place and how many there are, for errors and descriptions."""
        return f"{counted(len(self.sources), 'array')} from {self.sources[0].array.place} on"

    @property
    def unit_grid(self) -> Grid:
        """How it is divided into stored units: along the joined dimension those of each array."""
        return self._grids[0]

    @property
    def chunk_grid(self) -> Grid:
        """How it is divided into chunks: inner chunks where arrays are sharded."""
        return self._grids[1]

    @property
    def store(self) -> Store:  # type: ignore[override]
        """The store of the first array."""
        return self.sources[0].array.store

    @property
    def waiting(self) -> int:
        """Number of threads that may wait for stores at a time; 0 if all answer at once."""
        return max((source.array.waiting for source in self.sources), default=0)

    def within(self, start: int, stop: int) -> JoinedArray:
        """The same array with only the sources that some elements along the joined dimension need."""
        first, last = self.joint.touched(start, max(stop, start + 1))
        first = min(first, len(self.sources) - 1)
        last = max(last, first + 1)
        joint = replace(self.joint, bounds=tuple(self.joint.bounds[first : last + 1]))
        return JoinedArray(self.sources[first:last], joint, self.metadata)

    def __repr__(self) -> str:
        return (
            f"<xzarr3.JoinedArray of {counted(len(self.sources), 'array')} along {self._dimension} "
            f"shape={self.shape} dtype={self.dtype}>"
        )

    @property
    def _dimension(self) -> str:
        name = (self.dimension_names or (None,) * self.ndim)[self.joint.axis]
        return f"dimension {self.joint.axis}" if name is None else repr(name)

    def _describe(self) -> Description:
        from xzarr3.display.picture import picture

        facts = [
            ("shape", f"{self.shape}"),
            ("data type", self.zdtype.name),
            ("dimensions", f"{self.dimension_names}"),
            ("joined along", self._dimension),
            ("size", size(self.nbytes)),
        ]
        bounds = itertools.pairwise(self.joint.bounds)
        each = [
            (f"{start:,} to {stop:,}", source.array.place)
            for source, (start, stop) in itertools.islice(zip(self.sources, bounds, strict=True), _SHOWN)
        ]
        left = len(self.sources) - len(each)
        return Page(
            "xzarr3.JoinedArray",
            facts=facts,
            heading=(self.name, counted(len(self.sources), "array")),
            details={f"Arrays ({len(self.sources):,})": each},
            notes=[f"  and {left:,} more"] if left else [],
            picture=partial(picture, replace(self.metadata, chunk_grid=self.unit_grid)),
            attributes=self.metadata.attributes,
        ).description()

    def __dask_tokenize__(self) -> object:
        sources = [(each.array.__dask_tokenize__(), repr(each.convert)) for each in self.sources]
        joint = self.joint.axis, tuple(self.joint.bounds), self.joint.is_new
        return "xzarr3.JoinedArray", joint, repr(self.dtype), sources

    # Reading

    def _read_into(self, result: AnyArray, plan: ReadPlan, threads: int | None, *, is_own: bool) -> None:
        """Read what a plan selects into ``result``; ``is_own`` makes no difference."""
        pieces = [*self.pieces(plan.selection)]
        at_once = min(threads or self.waiting, self.waiting, len(pieces))
        if at_once > 1:  # Of the threads that may wait, each piece has its share.
            threads = max(1, (threads or self.waiting) // at_once)
        parallel_map(partial(self._read, result, threads), pieces, at_once)

    def _read(self, result: AnyArray, threads: int | None, piece: Piece) -> None:
        """Read what one source has of a selection into its place."""
        source = self.sources[piece.at]
        array, is_view = source.array, all(isinstance(each, (int, slice)) for each in piece.place)
        is_plain = source.convert is None and array.dtype == result.dtype
        if is_view and piece.repeated is None and is_plain and not array.is_optional:
            array.read_selected(piece.selection, out=result[(*piece.place, ...)], threads=threads)
            return
        values = array.read_selected(piece.selection, threads=threads)
        if source.convert is not None:
            values = source.convert(values)
        if array.is_optional:
            values = array.zdtype.cast_array(values)
        if piece.repeated is not None:
            values = np.expand_dims(values, piece.repeated)
        result[piece.place or ...] = values

    def pieces(self, selection: Selected) -> Iterator[Piece]:
        """What each array reads of a selection; raises if one was made shorter since it was joined."""
        for piece in self.joint.split(selection):
            self._check_length(piece.at)
            yield piece

    def _check_length(self, at: int) -> None:
        """Raise if an array was made shorter by its handle, which the user has, too."""
        array, (start, stop) = self.sources[at].array, self.joint.bounds[at : at + 2]
        own = () if self.joint.is_new else (stop - start,)
        shape = (*self.shape[: self.joint.axis], *own, *self.shape[self.joint.axis + 1 :])
        if any(now < then for now, then in zip(array.shape, shape, strict=True)):
            raise StoreError(
                f"array {array.place} has shape {array.shape} now and had {shape} when it was joined; join "
                "the arrays again"
            )

    def plan_selected(self, selection: Selected) -> ReadPlan:
        """The plan of a read of a selection, by the stored units of the whole."""
        meta = self.metadata
        price = Price.of(self.store, meta.chain)
        return ReadPlan(selection, meta.shape, self.unit_grid, meta.chain_of, price)

    def explain_selected(
        self, selection: Selected, fields: Fields | None = None, threads: int | None = None
    ) -> JoinedExplanation:
        """Tell what a read of a selection that has been worked out fetches; see :meth:`explain`."""
        from xzarr3.joined.report import explain

        return explain(self, selection, fields, threads)


def joined(
    sources: Sequence[Source],
    axis: int,
    *,
    dimension_names: Sequence[str | None] | None,
    is_new: bool = False,
    attributes: Mapping[str, Any] = MappingProxyType({}),
) -> JoinedArray:
    """Arrays joined along a dimension, after a check that they fit.

    Parameters
    ----------
    sources : sequence of Source
        At least one.
    axis : int
        The dimension, as the joined array numbers it.
    dimension_names : sequence of str or None, optional
        Names of the dimensions of the joined array.
    is_new : bool
        Whether the arrays lack the dimension, so that each is one element of it.
    attributes : mapping

    Raises
    ------
    ArgumentError
        If lengths along another dimension differ, or no data type holds the values of all exactly.
    """
    first = sources[0].array
    end = axis if is_new else axis + 1
    before, after = first.shape[:axis], first.shape[end:]
    for array in [each.array for each in sources]:
        if (array.shape[:axis], array.shape[end:]) != (before, after):
            raise ArgumentError(
                f"{array.place} has shape {array.shape}, {first.place} has {first.shape}; "
                f"arrays that are joined along dimension {axis} have the same other lengths"
            )
    lengths = [1 if is_new else each.array.shape[axis] for each in sources]
    joint = Joint(axis, tuple(itertools.accumulate(lengths, initial=0)), is_new)
    metadata = _metadata(
        first,
        joint,
        _common_type(sources),
        shape=(*before, joint.bounds[-1], *after),
        dimension_names=None if dimension_names is None else tuple(dimension_names),
        attributes=attributes,
    )
    units = _grid([each.array.unit_grid for each in sources], joint, lengths)
    chunks = _grid([each.array.chunk_grid for each in sources], joint, lengths)
    return JoinedArray(sources, joint, metadata, (units, chunks))


def _metadata(first: ReadableArray, joint: Joint, data_type: ZDType, **own: Any) -> ArrayMetadata:
    """The metadata of the whole: chunks and codecs as in the first array, where they fit its data type."""
    from xzarr3.nodes.array_settings import array_metadata

    meta, is_same = first.metadata, data_type == first.metadata.data_type
    chunks = meta.chunk_grid.largest
    if is_same and not joint.is_new:
        adopted = meta if meta.zarr_format == V3.zarr_format else V3.adopt(meta)
        own = {**own, "storage_transformers": (), "origin": None}
        return replace(adopted, chunk_grid=RegularGrid(chunks), **own)
    if joint.is_new:
        chunks = (*chunks[: joint.axis], 1, *chunks[joint.axis :])
    fill_value = meta.fill_value if is_same else None
    return array_metadata(dtype=data_type, chunks=chunks, fill_value=fill_value, **own)


def _grid(grids: Sequence[Grid], joint: Joint, lengths: Sequence[int]) -> Grid:
    """How the whole is divided: along the axis as each array is, along the others as the first one."""
    axis, axes = joint.axis, [*grids[0].axes]
    if joint.is_new:
        axes.insert(axis, Steps(1))
    else:
        along = [_runs(grid.axes[axis], length) for grid, length in zip(grids, lengths, strict=True)]
        merged = merged_runs(itertools.chain.from_iterable(along))
        is_regular = len(merged) <= 1 or (
            len(merged) == 2 and merged[1][1] == 1 and merged[1][0] < merged[0][0]
        )
        axes[axis] = Steps(merged[0][0] if merged else 1) if is_regular else Edges(merged)
    if all(isinstance(each, Steps) for each in axes):
        return RegularGrid(tuple(each.longest for each in axes))
    return RectilinearGrid.of(axes)


def _runs(axis: Steps | Edges, length: int) -> Iterator[Run]:
    """The lengths of the chunks of a dimension, within it."""
    start = 0
    while start < length:
        _, stop, _, each = axis.run_at(start, length)
        whole, rest = divmod(stop - start, each)
        yield from ((value, count) for value, count in ((each, whole), (rest, 1)) if value and count)
        start = stop


def _common_type(sources: Sequence[Source]) -> ZDType:
    """The data type that holds the values of all sources exactly."""
    optional = [each for each in sources if each.array.is_optional]
    for each in sources if optional else ():
        if each.convert is not None or each.array.zdtype != optional[0].array.zdtype:
            raise ArgumentError(
                f"{optional[0].array.place} is of data type 'optional', {each.array.place} has other values; "
                "only arrays of the same data type are joined with it, and none is converted; store one anew"
            )
    distinct: dict[np.dtype[Any], Source] = {}
    for each in sources:
        distinct.setdefault(each.values, each)
    first = sources[0]
    if len(distinct) == 1:
        return first.array.zdtype if first.dtype is None else parse_dtype(first.dtype)
    kinds = {dtype.kind for dtype in distinct}
    if kinds == {"T", "U"}:
        return parse_dtype(next(dtype for dtype in distinct if dtype.kind == "T"))
    if kinds <= {*"iufc"} or kinds in ({"U"}, {"S"}):
        common = np.result_type(*distinct)
        if all(_holds(common, dtype) for dtype in distinct):
            return parse_dtype(common)
    (one, source), (other, another), *_ = distinct.items()
    raise ArgumentError(
        f"{source.array.place} has dtype {one}, {another.array.place} has {other}; no dtype holds the "
        "values of both exactly; store one of them anew in the dtype of the other, as xzarr3.copy() does"
    )


def _holds(common: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether a dtype has all values of another one."""
    if dtype.kind in "iu" and common.kind in "fc":
        bits = 8 * dtype.itemsize - (dtype.kind == "i")
        return int(np.finfo(common).nmant) + 1 >= bits
    return np.can_cast(dtype, common, "safe")
