"""Variables in chunks: what reads from a store as dask arrays.

xarray calls ``Variable.chunk`` of every variable that is opened with ``chunks``, which makes a graph by
``dask.array.from_array``. The variables here make a dask array of themselves instead, with the same chunks
and the same values, but without a graph until one is asked for: see :mod:`xzarr3.dask.array`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.core import indexing
from xarray.namedarray.daskmanager import DaskManager
from xarray.namedarray.parallelcompat import guess_chunkmanager

from xzarr3._types import AnyArray
from xzarr3.xarray.lazy import LazyArray

if TYPE_CHECKING:
    from xzarr3.dask.slicing import Part

_TOKEN = re.compile("-[0-9a-f]{32}$")
_FROM_ARRAY = frozenset(("name", "lock", "inline_array"))  # What xarray always tells ``from_array``.


class Variable(xr.Variable):
    """A variable of values in a store, which makes dask arrays of them itself.

    What is made of it and holds anything else is a variable of xarray's.

    Its dask arrays have names that differ where the stored values may; of a dataset that is opened by a URL
    xarray names them after the URL alone, of one in a directory after the time that was changed, so that dask
    could take what it computed before the data were changed for what is asked for now.
    """

    __slots__ = ()

    @classmethod
    def of(cls, variable: xr.Variable) -> xr.Variable:
        """The variable, if its values are in a store."""
        lazy = found_in(variable._data)
        if lazy is None or not variable.ndim or type(variable) is not xr.Variable:
            return variable
        data: Any = variable._data
        made: xr.Variable = cls(variable._dims, data, variable._attrs, variable._encoding, fastpath=True)
        return made

    def __new__(cls, dims: Any, data: Any, *args: Any, **options: Any) -> Any:
        if found_in(data) is None:
            return xr.Variable(dims, data, *args, **options)
        return super().__new__(cls)

    def __reduce__(self) -> tuple[object, ...]:
        held = self._data
        kind = xr.Variable if found_in(held) is None else Variable
        return kind, (self._dims, held, self._attrs, self._encoding, True)

    def __dask_tokenize__(self) -> object:
        plain: Any = xr.Variable(self._dims, self.data, self._attrs, fastpath=True)
        return plain.__dask_tokenize__()

    def to_base_variable(self) -> xr.Variable:
        """Itself, which is no index; coordinates are made of such."""
        return self.copy(deep=False)

    def chunk(self, *args: Any, **options: Any) -> xr.Variable:  # type: ignore[override]
        """What xarray makes of it, with names that differ where the stored values may."""
        held = self._data  # Another thread may load it meanwhile.
        lazy = found_in(held)
        if lazy is None:
            return super().chunk(*args, **options)
        native = _in_chunks(self, held, lazy, *args, **options)
        if native is not None:
            return native
        given = options.get("from_array_kwargs")
        if given and isinstance(given.get("name"), str):
            from dask.base import tokenize

            options["from_array_kwargs"] = {**given, "name": f"{given['name']}-{tokenize(lazy)}"}
        return super().chunk(*args, **options)


def _in_chunks(
    variable: xr.Variable,
    held: Any,
    lazy: LazyArray,
    chunks: Any = None,
    name: str | None = None,
    lock: Any = None,
    inline_array: bool | None = None,
    chunked_array_type: Any = None,
    from_array_kwargs: Any = None,
    **others: Any,
) -> xr.Variable | None:
    """A variable with a dask array, None where only xarray can do what is asked for."""
    if not isinstance(chunks, dict) or others:
        return None
    given = dict(from_array_kwargs or {})
    name, lock = given.get("name") or name, given.get("lock") or lock
    if lock or not (name is None or isinstance(name, str)) or not given.keys() <= _FROM_ARRAY:
        return None
    if not _is_dask(chunked_array_type):
        return None
    from xzarr3.dask.array import read_in_chunks

    blocks = _blocks(chunks, variable._dims, held.shape, held.dtype)
    identity = held if name is None else (name, lazy)
    prefix = "array" if name is None else _TOKEN.sub("", name)
    data: Any = read_in_chunks(*_reading(held), held.dtype, blocks, prefix, identity)
    return xr.Variable(variable._dims, data, variable._attrs, variable._encoding, fastpath=True)


def found_in(data: Any) -> LazyArray | None:
    """The lazy array that xarray has wrapped."""
    while data is not None and not isinstance(data, LazyArray):
        data = getattr(data, "array", None) if isinstance(data, indexing.ExplicitlyIndexed) else None
    return data


def _is_dask(chunked_array_type: Any) -> bool:
    """Whether chunks are to be those of dask, as it mostly is."""
    if type(guess_chunkmanager(chunked_array_type)) is not DaskManager:
        return False
    import dask

    return not dask.config.get("array_plugins", ())


def _blocks(
    chunks: dict[Any, Any], dims: Iterable[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[tuple[int, ...], ...]:
    """The lengths of the blocks along each dimension, as xarray and dask work them out."""
    wanted: tuple[Any, ...] = tuple(map(chunks.get, dims))
    if all(isinstance(along, tuple) and sum(along) == n for along, n in zip(wanted, shape, strict=True)):
        return wanted
    from dask.array.core import normalize_chunks

    if "auto" in wanted and 0 in shape:
        wanted = shape
    blocks: tuple[tuple[int, ...], ...] = normalize_chunks(wanted, shape, dtype=dtype)
    return blocks


def _reading(data: Any) -> tuple[Any, Any]:
    """What a task calls to read, and from what."""
    while type(data) in (indexing.MemoryCachedArray, indexing.CopyOnWriteArray):
        data = data.array
    if type(data) is indexing.LazilyIndexedArray and all(
        isinstance(key, slice) and key == slice(None) for key in data.key.tuple
    ):
        return _read, data.array
    return _read_decoded, data


def _read(lazy: LazyArray, parts: tuple[Part, ...]) -> AnyArray:
    return lazy.read_region(parts)


def _read_decoded(data: Any, parts: tuple[Part, ...]) -> AnyArray:
    """Read what xarray decodes when it is indexed."""
    values: AnyArray = np.asarray(
        indexing.ImplicitToExplicitIndexingAdapter(data, indexing.OuterIndexer)[parts]
    )
    return values
