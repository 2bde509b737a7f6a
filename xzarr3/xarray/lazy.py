"""Stored arrays as xarray's lazy arrays, which are read when they are indexed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from xarray.backends.common import BackendArray
from xarray.core import indexing

from xzarr3._types import AnyArray
from xzarr3.errors import Xzarr3Error, short_traceback
from xzarr3.io.pointwise import Arrange, Selected, separated_points
from xzarr3.io.selection import basic_selection, orthogonal_selection
from xzarr3.parallel import parallel_map, waiters
from xzarr3.readable import ReadableArray
from xzarr3.xarray.absent import Marked
from xzarr3.xarray.unpack import Unpacking

_MOST_BYTES = 2**26  # Most bytes that are read ahead when a dataset or tree is opened.
_SMALL = 2**22  # Most bytes of an array of which decoding needs only the first and the last element.


class LazyArray(BackendArray):
    """A stored array that is read when xarray indexes it.

    Basic, orthogonal and pointwise selections read only the chunks that they touch, or parts of these where
    possible; :meth:`xzarr3.Array.explain` shows what is read.

    Parameters
    ----------
    array : Array or JoinedArray
    unpack : Unpacking or Marked, optional
        Turns the values that were read into those of the variable.
    """

    __slots__ = ("array", "dtype", "shape", "unpack", "values")

    def __init__(self, array: ReadableArray, unpack: Unpacking | Marked | None = None) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype: np.dtype[Any] = array.dtype if unpack is None else unpack.dtype
        self.unpack = unpack
        self.values: AnyArray | None = None
        """All values, if they were read ahead; they are given up when they are first used as a whole."""

    def __reduce__(self) -> tuple[object, ...]:
        return LazyArray, (self.array, self.unpack)

    def __dask_tokenize__(self) -> object:
        from dask.base import normalize_token

        return "xzarr3.LazyArray", self.array.__dask_tokenize__(), normalize_token(self.unpack)

    def within(self, start: int, stop: int) -> LazyArray:
        """The same values of a joined array with only the sources that a part needs."""
        joined: Any = self.array
        return LazyArray(joined.within(start, stop), self.unpack)

    @short_traceback
    def __getitem__(self, key: indexing.ExplicitIndexer) -> AnyArray:
        found, arrange = self._ahead(key), None
        if found is None:
            selection, arrange = self.selected(key)
            found = self.array.read_selected(selection)
        if self.unpack is not None:
            found = self.unpack(found)
        return found if arrange is None else arrange(found)

    def _ahead(self, key: indexing.ExplicitIndexer) -> AnyArray | None:
        """The values for an index that were read ahead, if they were."""
        values = self.values
        if values is None or not isinstance(key, indexing.BasicIndexer):
            return None
        # A single element is asked for several times while a dataset is opened, to decode it.
        if values.size > 1 and all(each == slice(None) for each in key.tuple):
            self.values = None
        found: AnyArray = values[(*key.tuple, ...)]
        return found.copy()

    def selected(self, key: indexing.ExplicitIndexer) -> tuple[Selected, Arrange | None]:
        """What is read for an index, and the function that arranges the values, if they need that."""
        if isinstance(key, indexing.VectorizedIndexer):
            return separated_points(key.tuple, self.shape)
        if isinstance(key, indexing.OuterIndexer):
            return orthogonal_selection(key.tuple, self.shape), None
        return basic_selection(key.tuple, self.shape), None

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> AnyArray:
        if not self.array.waiting:
            return await asyncio.to_thread(self.__getitem__, key)
        # Not asyncio's own pool: it has too few threads to load all variables at a time.
        read = partial(contextvars.copy_context().run, self.__getitem__, key)
        return await asyncio.get_running_loop().run_in_executor(waiters.get(), read)


@contextmanager
def read_ahead(coordinates: Iterable[LazyArray], times: Iterable[LazyArray]) -> Iterator[None]:
    """Context manager in which xarray decodes a dataset whose coordinates are read concurrently beforehand.

    xarray reads index coordinates, and the first and last element of times, one after the other. From a store
    with latency this would take longer than all the rest.

    Parameters
    ----------
    coordinates : iterable of LazyArray
        Index coordinates. Their values stay until they are used as a whole, for an index.
    times : iterable of LazyArray
        Other arrays of times; those in one stored unit are read, and given up when the context ends.
    """
    others = [lazy for lazy in times if lazy.array.nshards == 1 and lazy.array.nbytes <= _SMALL]
    left, ahead = _MOST_BYTES, list[LazyArray]()
    for lazy in (*coordinates, *others):
        if lazy.array.nbytes <= left:
            left -= lazy.array.nbytes
            ahead.append(lazy)
    parallel_map(_read_all, ahead, max((lazy.array.waiting for lazy in ahead), default=1))
    yield
    for lazy in others:
        lazy.values = None


def _read_all(lazy: LazyArray) -> None:
    with suppress(Xzarr3Error):  # Raised again where xarray needs the values.
        if lazy.values is None:
            lazy.values = lazy.array.read_selected(basic_selection((), lazy.shape))
