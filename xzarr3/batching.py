"""Samples of arrays in batches: :func:`batches` plans which chunks an epoch needs, and when.

A plan knows the whole epoch before it begins. So a chunk stays in memory as long as a later sample needs it,
and the one that is needed last makes room. A shuffle is made of blocks of samples whose chunks fit in memory
together. Nothing here reads: :class:`xzarr3.ChunkCache` keeps chunks, arrays read what is not kept.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from xzarr3._types import AnyArray
from xzarr3.api import cache_of, with_cache
from xzarr3.arrays import Array
from xzarr3.display.units import counted
from xzarr3.errors import ArgumentError, ArgumentTypeError, SelectionError, short_traceback
from xzarr3.io.chunk_cache import ChunkCache, Name, name_of, room
from xzarr3.io.plan import ReadPlan
from xzarr3.io.selection import BasicSelection, DimSelection, basic_selection
from xzarr3.joined.array import JoinedArray
from xzarr3.quantities import integer
from xzarr3.readable import ReadableArray

Numbers: TypeAlias = npt.NDArray[np.intp]
Selected: TypeAlias = tuple[DimSelection, ...]
Sample: TypeAlias = "BasicSelection | Mapping[str, BasicSelection]"
Label: TypeAlias = "str | int"


@short_traceback
def batches(
    arrays: ReadableArray | Mapping[str, ReadableArray] | Sequence[ReadableArray],
    samples: Iterable[Sample],
    batch_size: int,
    *,
    shuffle: int | None = None,
    out: Any = None,
    chunk_cache: str | int | ChunkCache = "1 GiB",
) -> Batches:
    """Read samples of arrays in batches, so that chunks are decoded as few times as a cache permits.

    The whole epoch is planned before it begins, and each chunk is kept until its last use, or makes room for
    one that is needed sooner. Batches come in the order of the samples, or shuffled.

    Shuffled batches come from blocks: the samples are divided by where they begin into blocks whose chunks
    fit into the cache together, the samples of each block are permuted, and so are rows of blocks. So the
    samples of a batch are neighbours, as near as the cache is small; with a cache that holds everything the
    order is any permutation, all equally likely. It depends on the seed and on :meth:`Batches.set_epoch`
    only, for the same samples and the same size of the cache.

    Parameters
    ----------
    arrays : Array, JoinedArray, mapping or sequence of these
        What is read; each batch has the same form.
    samples : iterable of selections
        For each sample its integers and slices, which apply to all arrays; or a mapping of names of arrays
        to these. All samples have the same shape.
    batch_size : int
        Samples in a batch; the last one may have fewer.
    shuffle : int, optional
        A seed. By default the order is that of the samples.
    out : ndarray, mapping or sequence of these, optional
        Memory for batches, in the form of ``arrays``: of the shape of a batch, with the dtype of the array.
        Each batch then overwrites the one before.
    chunk_cache : str, int or ChunkCache
        Most bytes of decoded chunks in memory, in each process.

    Returns
    -------
    Batches
        Iterating over it, again and again, gives the batches. It has a length and items, so that torch's
        ``DataLoader`` takes it with ``batch_size=None``.

    Raises
    ------
    SelectionError
        If a sample is no selection of integers and slices, has no elements, or has another shape than the
        first one.
    StoreCapabilityError
        If a store does not tell whether a value has changed, so that chunks cannot be kept.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> array = xzarr3.array(np.arange(12), chunks=4)
    >>> windows = [slice(start, start + 3) for start in range(10)]
    >>> for batch in xzarr3.batches(array, windows, 4):
    ...     print(batch.shape, batch[0])
    (4, 3) [0 1 2]
    (4, 3) [4 5 6]
    (2, 3) [ 8  9 10]
    """
    size = integer("batch_size", batch_size)
    if shuffle is not None:
        shuffle = integer("shuffle", shuffle, "None, or a seed, an integer of at least 0", 0)
    named = _named(arrays)
    cache = cast("ChunkCache", cache_of(chunk_cache))
    own = {label: with_cache(_own(array), cache) for label, array in named.items()}
    return Batches(own, _parsed(named, samples), size, shuffle, cache, type(arrays), out)


class Batches:
    """The batches of :func:`batches`: iterable any number of times, with a length, and with items by number.

    Pickled, it takes its samples and its arrays along, but no chunks.

    Parameters
    ----------
    arrays : dict of Array or JoinedArray
    samples : dict of list of selections
    batch_size : int
    shuffle : int or None
    cache : ChunkCache
    form : type
        That of what the user gave: of a mapping, of a sequence, or of an array.
    out : optional
        The memory that the user gave.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> made = xzarr3.batches(xzarr3.array(np.arange(6)), range(6), 3, shuffle=1)
    >>> made, len(made), sorted(np.concatenate([*made]).tolist())
    (<xzarr3.Batches 2 of 3 samples, shuffled with seed 1>, 2, [0, 1, 2, 3, 4, 5])
    >>> made.set_epoch(1)  # another permutation
    """

    def __init__(
        self,
        arrays: dict[Label, Any],
        samples: dict[Label, list[Selected]],
        batch_size: int,
        shuffle: int | None,
        cache: ChunkCache,
        form: type,
        out: Any = None,
    ) -> None:
        self._arrays, self._samples, self._cache, self._form = arrays, samples, cache, form
        self.batch_size, self.shuffle, self.epoch = batch_size, shuffle, 0
        self._out = None if out is None else self._checked(out)

    def __repr__(self) -> str:
        order = "in order" if self.shuffle is None else f"shuffled with seed {self.shuffle}"
        return f"<xzarr3.Batches {len(self):,} of {counted(self.batch_size, 'sample')}, {order}>"

    def __len__(self) -> int:
        return -(-self._number // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        return map(self._read, range(len(self)))

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(f"no batch {number} of {len(self)}")
        return self._read(self._of_worker(number))

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of a shuffle: that of another epoch is another one, the first is 0.

        As with torch's ``DistributedSampler``, iterating again without this gives the same order.
        """
        self.epoch = integer("epoch", epoch, "an integer of at least 0", 0)
        self.__dict__.pop("_schedule", None)

    @cached_property
    def _number(self) -> int:
        return len(next(iter(self._samples.values())))

    @cached_property
    def _uses(self) -> dict[Label, _Uses]:
        return {label: _Uses.of(array, self._samples[label]) for label, array in self._arrays.items()}

    @cached_property
    def _schedule(self) -> _Schedule:
        uses, order = [*self._uses.values()], np.arange(self._number)
        if self.shuffle is not None:
            order = _shuffled(uses, self._blocks, np.random.default_rng([self.shuffle, self.epoch]))
        return _Schedule(uses, order, self.batch_size)

    @cached_property
    def _blocks(self) -> Numbers:
        return _blocks([*self._uses.values()], self._cache.size)

    def _of_worker(self, number: int) -> int:
        """The batch of a number. Torch deals numbers out to workers in turn; each gets neighbours instead."""
        data = sys.modules.get("torch.utils.data")
        worker = None if data is None else data.get_worker_info()
        if worker is None:
            return number
        if self._out is not None:
            raise ArgumentError("out= and workers: each worker needs memory of its own; leave out= out")
        if self.shuffle is None:
            return number
        turn, place = number % worker.num_workers, number // worker.num_workers
        before = sum(len(range(each, len(self), worker.num_workers)) for each in range(turn))
        return int(before + place)

    def _read(self, number: int) -> Any:
        """One batch."""
        schedule = self._schedule
        chosen = schedule.order[number * self.batch_size : (number + 1) * self.batch_size].tolist()
        found: dict[Label, AnyArray] = {}
        for label, array in self._arrays.items():
            self._cache.later = schedule.later(number)
            shape = len(chosen), *_shape(self._samples[label][0])
            whole = np.empty(shape, array.dtype) if self._out is None else self._out[label][: len(chosen)]
            self._fill(label, [(at, whole[row, ...]) for row, at in enumerate(chosen)])
            found[label] = whole
        if issubclass(self._form, ReadableArray):
            return found[0]
        return found if issubclass(self._form, Mapping) else tuple(found.values())

    def _fill(self, label: Label, rows: Iterable[tuple[int, AnyArray]]) -> None:
        """Read samples of one array, as many at a time as have chunks that fit into the cache together."""
        array, uses, samples = self._arrays[label], self._uses[label], self._samples[label]
        together = list[tuple[ReadPlan, AnyArray]]()
        touched = set[int]()
        for at, row in rows:
            plan = None
            if isinstance(array, Array):
                plan = self._cache.plan(array.engine, array.plan_selected(samples[at]))
            if plan is None:
                array.read_selected(samples[at], out=row)
                continue
            new = touched.union(uses.of_sample(at))
            if together and len(new) * uses.each > self._cache.size:
                array.read_kept(together)
                together, new = [], {*uses.of_sample(at)}
            together.append((plan, row))
            touched = new
        if together:
            array.read_kept(together)

    def _checked(self, out: Any) -> dict[Label, AnyArray]:
        """The memory that a user gives, by array."""
        given = _labelled(out, is_one=issubclass(self._form, ReadableArray))
        for label, array in self._arrays.items():
            shape, found = (self.batch_size, *_shape(self._samples[label][0])), given.get(label)
            if not isinstance(found, np.ndarray) or (found.shape, found.dtype) != (shape, array.dtype):
                what = (
                    f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else f"{found!r}"
                )
                raise ArgumentError(
                    f"out={what} for array {label!r}; accepted: {array.dtype} of shape {shape}"
                )
        return given


@dataclass(frozen=True)
class _Uses:
    """Which chunks of one array the samples use."""

    names: list[Name]
    """The chunks that are used."""
    begins: Numbers
    """Where the chunks of each sample begin in ``chunks``, and where the last ones end."""
    chunks: Numbers
    """For each use of a chunk, its position in ``names``."""
    homes: Numbers
    """For each sample the coordinates of its first chunk."""
    each: int
    """Bytes that a chunk takes in a cache."""

    @classmethod
    def of(cls, array: Any, samples: Sequence[Selected]) -> _Uses:
        places: dict[Name, int] = {}
        found, begins = list[int](), [0]
        axes = array.chunk_grid.axes
        homes = np.zeros((len(samples), max(array.ndim, 1)), np.intp)
        for at, sample in enumerate(samples):
            homes[at, : array.ndim] = [axis.index(one.start) for axis, one in zip(axes, sample, strict=True)]
            found += [places.setdefault(name, len(places)) for name in _names(array, sample)]
            begins.append(len(found))
        each = room(array.chunk_grid, array.shape, array.dtype)
        return cls([*places], np.array(begins), np.array(found, np.intp), homes, each)

    def of_sample(self, at: int) -> list[int]:
        """The chunks of a sample."""
        return cast("list[int]", self.chunks[self.begins[at] : self.begins[at + 1]].tolist())

    @cached_property
    def samples(self) -> Numbers:
        """For each use of a chunk, the sample."""
        return np.repeat(np.arange(len(self.homes)), np.diff(self.begins))


class _Schedule:
    """The order of the samples of an epoch, and when chunks are used."""

    def __init__(self, uses: Sequence[_Uses], order: Numbers, batch_size: int) -> None:
        self.order, self._number = order, -(-len(order) // batch_size)  # of batches
        batch_of = np.empty_like(order)
        batch_of[order] = np.arange(len(order)) // batch_size
        self._places: dict[Name, int] = {}
        pairs = []
        for each in uses:  # Several arrays may be the same one.
            mine = [self._places.setdefault(name, len(self._places)) for name in each.names]
            pairs.append(np.array(mine, np.intp)[each.chunks] * self._number + batch_of[each.samples])
        # Each use as one number: the place of the chunk times the number of batches, plus the batch.
        self._pairs = np.unique(np.concatenate(pairs))

    def later(self, batch: int) -> Any:
        """Tells of a chunk in which batch, from this one on, it is used next."""

        def next_use(name: Name) -> float:
            place, number = self._places.get(name), self._number
            at = 0 if place is None else int(np.searchsorted(self._pairs, place * number + batch))
            if place is None or at == len(self._pairs) or self._pairs[at] >= (place + 1) * number:
                return math.inf
            return int(self._pairs[at]) - place * number

        return next_use


def _blocks(uses: Sequence[_Uses], size: int) -> Numbers:
    """For each sample the coordinates of its block: of chunks that take at most ``size`` bytes together."""
    largest = max(uses, key=lambda each: each.each * len(each.names))
    homes = largest.homes - largest.homes.min(axis=0)
    extents = homes.max(axis=0) + 1

    def fits(block: Numbers) -> bool:
        coords = homes // block
        group = np.unique(
            np.ravel_multi_index(tuple(coords.T), tuple(coords.max(axis=0) + 1)), return_inverse=True
        )[1]
        total = np.zeros(group.max() + 1)
        for each in uses:
            pairs = np.unique(group[each.samples] * len(each.names) + each.chunks)
            total += each.each * np.bincount(pairs // len(each.names), minlength=len(total))
        return bool(total.max() <= size)

    block = np.ones_like(extents)
    while (block < extents).any() and fits(double := np.minimum(2 * block, extents)):
        block = double
    step = int(block.max())
    while step:
        for axis in np.argsort(block / extents).tolist():
            trial = block.copy()
            trial[axis] = min(extents[axis], block[axis] + step)
            if trial[axis] > block[axis] and fits(trial):
                block = trial
        step //= 2
    return homes // block


def _shuffled(uses: Sequence[_Uses], blocks: Numbers, random: np.random.Generator) -> Numbers:
    """A permutation of the samples: rows of blocks in any order and direction, and each block permuted.

    Blocks of a row follow one another, as neighbours share chunks.
    """
    extents = blocks.max(axis=0) + 1
    axis = int(np.argmax(extents))
    others = extents.copy()
    others[axis] = 1
    coords = blocks.copy()
    coords[:, axis] = 0
    rows = np.ravel_multi_index(tuple(coords.T), tuple(others))
    number = math.prod(others.tolist())
    ranks, directions = random.permutation(number), random.choice([-1, 1], number)
    return np.lexsort((random.random(len(blocks)), directions[rows] * blocks[:, axis], ranks[rows]))


def _names(array: Any, selected: Any) -> Iterator[Name]:
    """The chunks that a selection touches, of the arrays that are joined, if there are several."""
    if isinstance(array, JoinedArray):
        for piece in array.pieces(selected):
            yield from _names(array.sources[piece.at].array, piece.selection)
        return
    sides = [
        range(axis.index(one.start), axis.index(one.stop - 1) + 1)
        for axis, one in zip(array.chunk_grid.axes, selected, strict=True)
    ]
    for at in itertools.product(*sides):
        yield name_of(array.engine, at)


def _labelled(given: Any, *, is_one: bool) -> dict[Label, Any]:
    """What a user gives for each array: one thing, a mapping by name, or a sequence."""
    if is_one or not isinstance(given, Iterable):
        return {0: given}
    return dict(given) if isinstance(given, Mapping) else dict(enumerate(given))


def _named(arrays: Any) -> dict[Label, ReadableArray]:
    """The arrays by name, or by number."""
    named = _labelled(arrays, is_one=isinstance(arrays, ReadableArray))
    for label, array in named.items():
        if not isinstance(array, ReadableArray):
            raise ArgumentTypeError(
                f"arrays: {label!r} is {type(array).__name__}; accepted: an Array or JoinedArray, as "
                "xzarr3.open_array() returns it, or a mapping or sequence of these"
            )
        if array.is_optional:
            raise ArgumentError(
                f"array {label!r} is of data type 'optional', and a batch has no masks; accepted: arrays of "
                "other data types"
            )
    if not named:
        raise ArgumentError("no arrays; give at least one")
    return named


def _own(array: Any) -> Any:
    """Another handle on the same array, whose cache is not that of the user's handle."""
    if not isinstance(array, JoinedArray):
        return copy.copy(array)
    sources = [replace(source, array=_own(source.array)) for source in array.sources]
    return JoinedArray(sources, array.joint, array.metadata, array._grids)


def _parsed(arrays: Mapping[Label, ReadableArray], samples: Iterable[Sample]) -> dict[Label, list[Selected]]:
    """The samples of each array."""
    found: dict[Label, list[Selected]] = {label: [] for label in arrays}
    try:
        numbered = enumerate(samples)
    except TypeError as error:
        raise SelectionError(f"samples={samples!r}; accepted: a list of selections") from error
    for number, sample in numbered:
        for label, array in arrays.items():
            selection = sample.get(cast("str", label), ()) if isinstance(sample, Mapping) else sample
            if isinstance(sample, Mapping) and label not in sample:
                raise SelectionError(f"sample {number} has {[*sample]}, and lacks array {label!r}")
            try:
                chosen = basic_selection(selection, array.shape)
            except SelectionError as error:
                raise SelectionError(f"sample {number} of array {label!r}: {error}") from error
            first = found[label][0] if number else chosen
            if _shape(chosen) != _shape(first) or 0 in [one.count for one in chosen]:
                raise SelectionError(
                    f"sample {number} of array {label!r} has shape {_shape(chosen)}, the first one "
                    f"{_shape(first)}; samples have one shape and at least one element; the array has shape "
                    f"{array.shape}"
                )
            found[label].append(chosen)
    if not all(found.values()):
        raise ArgumentError("no samples; give at least one")
    return found


def _shape(selected: Selected) -> tuple[int, ...]:
    return tuple([one.count for one in selected if not one.drop])
