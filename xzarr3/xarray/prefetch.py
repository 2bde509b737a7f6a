"""Values that xarray is known to want next, of many arrays at once.

To decode times xarray looks at their first and last elements, and to make indexes it reads coordinates, one
variable after the other. Over a store whose answers have to be waited for, these are fetched together: the
elements before anything is decoded, and all index coordinates as soon as the first one of them is asked for.
Small variables that are loaded one after the other are read ahead, as systems do it with files.
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
from xzarr3.parallel import spread

if TYPE_CHECKING:
    from xzarr3.xarray.lazy import LazyArray

_MOST_BYTES = 2**26  # Of all index coordinates of a dataset, or of a tree of them.
_SMALL = 2**22  # Bytes of an array in one chunk that is read whole, for its first and last elements.
_VALID = 5.0  # Seconds after which what was fetched may have changed.
_WANTED = 60.0  # Seconds after which nobody is making indexes any more.
_IN_TURN = 3  # Variables that are loaded in their order, before others are taken to be wanted, too.
_SOON = 2.0  # Seconds within which the next one is asked for.
_SMALL_ONE = 2**20  # Bytes of a variable that is read ahead,
_SMALL_ONES = 2**24  # and of all that are at a time.

_Box: TypeAlias = tuple[DimSelection, ...]


@dataclass(frozen=True)
class _Block:
    """Values of a region of an array, or why they could not be read."""

    box: _Box
    values: AnyArray | StoreError

    def part(self, selection: _Box) -> AnyArray | None:
        """What is selected, or None if not all of it is here.

        Raises
        ------
        StoreError
            If it could not be read.
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
    """Values of lazy arrays that were fetched before they are asked for.

    What there is of an array is given up when that is taken whole, after everything was decoded, and all of
    it after five seconds. What is still to be fetched is given up after a minute: xarray may have been told
    not to make indexes.

    Parameters
    ----------
    concurrency : int
        How many arrays are read at a time.
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
        """Fetch the first and the last element of each of these."""
        wanted: list[tuple[LazyArray, _Box]] = []
        left = _MOST_BYTES
        for lazy in arrays:
            shape = lazy.shape
            if lazy.ahead is self or 0 in shape:
                continue
            lazy.ahead = self
            self._looked_at.append(lazy)
            if lazy.array.nchunks == 1 and lazy.array.nbytes <= min(_SMALL, left):
                left -= lazy.array.nbytes
                wanted.append((lazy, _whole(lazy)))
                continue
            first, last = [(0, 1) for _ in shape], [(n - 1, n) for n in shape]
            wanted += [(lazy, _box(first)), (lazy, _box(last))]
        self._fetch(wanted)

    def expect(self, arrays: Iterable[LazyArray]) -> None:
        """Fetch all of these as soon as one of them is asked for, but for those that are too large for that.

        What was fetched of others is given up.
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
        """What is selected of an array, or None if that is not here.

        Raises
        ------
        StoreError
            If it could not be read.
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
            # In one step, so that no other thread fetches the same.
            waiting, self._waiting = self._waiting, []
            self._fetch((each, _whole(each)) for each in waiting)
            self._valid_until = time.monotonic() + _VALID
        blocks = self._kept.get(id(lazy), [])
        if whole and not self._looked_at:  # While decoding, a single element is its first and its last one.
            self._forget(lazy)
        for block in blocks:
            found = block.part(plain)
            if found is not None:
                return found
        return None

    def _fetch(self, wanted: Iterable[tuple[LazyArray, _Box]]) -> None:
        new = [(lazy, box) for lazy, box in wanted if not self._has(lazy, box)]
        for (lazy, _), block in zip(new, spread(_read, new, self._concurrency), strict=True):
            if block is not None:
                self._kept.setdefault(id(lazy), []).append(block)

    def _has(self, lazy: LazyArray, box: _Box) -> bool:
        return any(block.box == box for block in self._kept.get(id(lazy), ()))


class InTurn:
    """The variables of a dataset in their order, of which those that come next may be read ahead.

    ``Dataset.load`` loads one variable after the other, and each one is waited for. After three that were
    read whole, in their order and by one thread, twice as many as there were until then are read together. So
    no more is ever read in vain than twice what was asked for, nor more than 16 MiB.

    Parameters
    ----------
    concurrency : int
        How many arrays are read at a time.
    arrays : sequence of LazyArray
    """

    def __init__(self, concurrency: int, arrays: Sequence[LazyArray]) -> None:
        self._concurrency = concurrency
        self._arrays = tuple(arrays)
        self._places = {id(lazy): at for at, lazy in enumerate(self._arrays)}
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[float, AnyArray]] = {}
        self._count = 0
        self._expected: tuple[int, int] = -1, -1  # The next one, and the thread that is to ask for it.
        self._until = 0.0
        for lazy in self._arrays:
            lazy.in_turn = self

    def take(self, lazy: LazyArray, selection: tuple[DimChoice, ...] | Points) -> AnyArray | None:
        """All of an array, if it was read already or others are read with it now; else None."""
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
        blocks = spread(_read, boxes, min(self._concurrency, len(boxes)))
        found, *others = [None if block is None else block.values for block in blocks]
        with self._lock:
            valid_until = time.monotonic() + _VALID
            for number, each in enumerate(others, at + 1):
                if isinstance(each, np.ndarray):  # Of errors only those of what is asked for are told.
                    self._kept[number] = valid_until, each
        return found if isinstance(found, np.ndarray) else None

    def _next(self, at: int, number: int) -> list[LazyArray]:
        """Those that come next, as far as they are small."""
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
    except Xzarr3Error:  # Of what is stored: who asks for just that part may not meet it.
        return None
