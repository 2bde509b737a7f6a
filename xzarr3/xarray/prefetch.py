"""Prefetches values that xarray will read next, from many arrays concurrently.

To decode times, xarray reads their first and last elements. To make indexes, it reads coordinates. It does
both one variable after the other. From a store with latency these reads are made together: the first and last
elements before anything is decoded, and all index coordinates when the first one is read. Small variables
that are loaded one after the other are read ahead, as operating systems do for files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.errors import StoreError, Xzarr3Error
from xzarr3.io.selection import DimChoice, DimSelection, Points
from xzarr3.parallel import parallel_map

if TYPE_CHECKING:
    from xzarr3.xarray.lazy import LazyArray

_MOST_BYTES = 2**26  # Most bytes prefetched for all index coordinates of a dataset or tree.
_SMALL = 2**22  # Most bytes of a single-chunk array that is read whole for its first and last elements.
_VALID = 5.0  # Seconds for which prefetched values are used; later they may have changed.
_WANTED = 60.0  # Seconds after which xarray is assumed not to make indexes any more.
_IN_TURN = 3  # Variables that must be loaded in order before further ones are read ahead.
_SOON = 2.0  # Most seconds between two such loads.
_SMALL_ONE = 2**20  # Most bytes of one variable that is read ahead,
_SMALL_ONES = 2**24  # and of all variables read ahead at a time.

_Box: TypeAlias = tuple[DimSelection, ...]


@dataclass(frozen=True)
class _Block:
    """Values of a region of an array, or the error of reading them."""

    box: _Box
    values: AnyArray | StoreError

    def part(self, selection: _Box) -> AnyArray | None:
        """The values of a selection; None if the block does not contain all of them.

        Raises
        ------
        StoreError
            If the block could not be read.
        """
        for chosen, here in zip(selection, self.box, strict=True):
            if chosen.start < here.start or chosen.stop > here.stop or chosen.reverse or not chosen.count:
                return None
        if isinstance(self.values, StoreError):
            raise self.values
        if self.box == selection:
            return self.values
        index = tuple(
            at if chosen.drop else slice(at, chosen.stop - here.start, chosen.step)
            for chosen, here in zip(selection, self.box, strict=True)
            for at in [chosen.start - here.start]
        )
        return self.values[(*index, ...)].copy()


class Ahead:
    """Prefetched values of lazy arrays.

    After decoding, the values of an array are dropped when it is read whole, and all values are dropped after
    five seconds. Arrays that are still to be fetched are dropped after a minute, because xarray may have been
    told not to make indexes.

    Parameters
    ----------
    concurrency : int
        Number of arrays that are read at a time.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._waiting: list[LazyArray] = []
        self._left = _MOST_BYTES
        self._wanted_until = time.monotonic() + _WANTED
        self._valid_until = time.monotonic() + _VALID
        self._looked_at: list[LazyArray] = []
        self._kept: dict[int, list[_Block]] = {}

    def look_at_ends(self, arrays: Iterable[LazyArray]) -> None:
        """Fetch the first and the last element of each array; small single-chunk arrays are read whole."""
        wanted: list[tuple[LazyArray, _Box]] = []
        left = _MOST_BYTES
        for lazy in arrays:
            shape = lazy.shape
            if lazy.ahead is self or 0 in shape:
                continue
            lazy.ahead = self
            self._looked_at.append(lazy)
            if lazy.array.nshards == 1 and lazy.array.nbytes <= min(_SMALL, left):
                left -= lazy.array.nbytes
                wanted.append((lazy, _whole(lazy)))
                continue
            first, last = [(0, 1) for _ in shape], [(n - 1, n) for n in shape]
            wanted += [(lazy, _box(first)), (lazy, _box(last))]
        self._fetch(wanted)

    def expect(self, arrays: Iterable[LazyArray]) -> None:
        """Prepare to fetch all these arrays as soon as one of them is read; too large ones are left out.

        Values that were fetched of other arrays are dropped.
        """
        self._wanted_until = time.monotonic() + _WANTED
        self._valid_until = time.monotonic() + _VALID
        for lazy in arrays:
            if lazy.array.nbytes <= self._left and 0 not in lazy.shape:
                self._left -= lazy.array.nbytes
                lazy.ahead = self
                self._waiting.append(lazy)
        looked_at, self._looked_at = self._looked_at, []
        expected = {id(lazy) for lazy in self._waiting}
        for lazy in looked_at:
            if id(lazy) not in expected:
                self._forget(lazy)
            elif not self._has(lazy, _whole(lazy)):
                self._kept.pop(id(lazy), None)

    def _forget(self, lazy: LazyArray) -> None:
        lazy.ahead = None
        self._kept.pop(id(lazy), None)

    def take(self, lazy: LazyArray, selection: tuple[DimChoice, ...] | Points) -> AnyArray | None:
        """The values of a selection, if they were or are now prefetched; else None.

        Raises
        ------
        StoreError
            If the values could not be read.
        """
        now = time.monotonic()
        if now > self._valid_until:
            self._kept.clear()
        if now > self._wanted_until:
            self._waiting = []
            if not self._kept:
                lazy.ahead = None
        if isinstance(selection, Points):
            return None
        plain = tuple(chosen for chosen in selection if isinstance(chosen, DimSelection))
        if len(plain) < len(selection):
            return None
        whole = plain == _whole(lazy)
        if whole and any(each is lazy for each in self._waiting):
            # One statement, so that no other thread fetches the same arrays.
            waiting, self._waiting = self._waiting, []
            self._fetch((each, _whole(each)) for each in waiting)
            self._valid_until = time.monotonic() + _VALID
        blocks = self._kept.get(id(lazy), [])
        if whole and not self._looked_at:  # Not while decoding: an array of one element is then read twice.
            self._forget(lazy)
        for block in blocks:
            found = block.part(plain)
            if found is not None:
                return found
        return None

    def _fetch(self, wanted: Iterable[tuple[LazyArray, _Box]]) -> None:
        new = [(lazy, box) for lazy, box in wanted if not self._has(lazy, box)]
        for (lazy, _), block in zip(new, parallel_map(_read, new, self._concurrency), strict=True):
            if block is not None:
                self._kept.setdefault(id(lazy), []).append(block)

    def _has(self, lazy: LazyArray, box: _Box) -> bool:
        return any(block.box == box for block in self._kept.get(id(lazy), ()))


class InTurn:
    """The variables of a dataset in order, with read-ahead.

    ``Dataset.load`` loads one variable after the other, each with the latency of the store. Once three
    variables were read whole, in order and by the same thread, the next variables are read together: twice as
    many as were read so far. So at most twice as many variables as were asked for, and at most 16 MiB, are
    read in vain.

    Parameters
    ----------
    concurrency : int
        Number of arrays that are read at a time.
    arrays : sequence of LazyArray
    """

    def __init__(self, concurrency: int, arrays: Sequence[LazyArray]) -> None:
        self._concurrency = concurrency
        self._arrays = tuple(arrays)
        self._places = {id(lazy): at for at, lazy in enumerate(self._arrays)}
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[float, AnyArray]] = {}
        self._count = 0
        self._expected: tuple[int, int] = -1, -1  # Index of the next variable, and the thread to read it.
        self._until = 0.0
        for lazy in self._arrays:
            lazy.in_turn = self

    def take(self, lazy: LazyArray, selection: tuple[DimChoice, ...] | Points) -> AnyArray | None:
        """All values of an array, if it was read ahead or is now read together with others; else None."""
        if isinstance(selection, Points) or selection != _whole(lazy):
            return None
        at, thread, now = self._places[id(lazy)], threading.get_ident(), time.monotonic()
        with self._lock:
            if (at, thread) != self._expected or now > self._until:
                self._kept.clear()
                self._count = 0
            self._count += 1
            self._expected, self._until = (at + 1, thread), now + _SOON
            valid_until, values = self._kept.pop(at, (0.0, None))
            if values is not None and now <= valid_until:
                return values
            wanted = self._next(at, 2 * self._count) if self._count >= _IN_TURN else []
        if not wanted:
            return None
        boxes = [(each, _whole(each)) for each in (lazy, *wanted)]
        blocks = parallel_map(_read, boxes, min(self._concurrency, len(boxes)))
        found, *others = [None if block is None else block.values for block in blocks]
        with self._lock:
            valid_until = time.monotonic() + _VALID
            for number, each in enumerate(others, at + 1):
                if isinstance(each, np.ndarray):  # Errors are dropped: the variable may never be asked for.
                    self._kept[number] = valid_until, each
        return found if isinstance(found, np.ndarray) else None

    def _next(self, at: int, number: int) -> list[LazyArray]:
        """Up to ``number`` next variables, until one is too large."""
        found: list[LazyArray] = []
        left = _SMALL_ONES
        for lazy in self._arrays[at + 1 : at + 1 + number]:
            left -= lazy.array.nbytes
            if lazy.array.nbytes > _SMALL_ONE or left < 0:
                break
            found.append(lazy)
        return found


def _box(edges: Iterable[tuple[int, int]]) -> _Box:
    return tuple(DimSelection(start, 1, stop - start) for start, stop in edges)


def _whole(lazy: LazyArray) -> _Box:
    return _box((0, size) for size in lazy.shape)


def _read(wanted: tuple[LazyArray, _Box]) -> _Block | None:
    lazy, box = wanted
    try:
        return _Block(box, lazy.read_selected(box))
    except StoreError as error:
        return _Block(box, error)
    except Xzarr3Error:  # Damaged data, perhaps outside the part that is asked for later.
        return None
