"""Variables of stored values that make their dask arrays themselves.

xarray calls ``Variable.chunk`` for every variable that is opened with ``chunks``. xarray's own method makes a
graph by ``dask.array.from_array``. The variables here make a dask array with the same chunks and values, but
without a graph until one is asked for: see :mod:`xzarr3.dask.array`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xarray as xr
from xarray.coding.times import decode_cf_datetime
from xarray.core import indexing
from xarray.namedarray.daskmanager import DaskManager
from xarray.namedarray.parallelcompat import guess_chunkmanager

from xzarr3._types import AnyArray
from xzarr3.errors import ArgumentError
from xzarr3.xarray.dates import decoded_dates
from xzarr3.xarray.lazy import LazyArray

if TYPE_CHECKING:
    from xzarr3.dask.slicing import Part

_TOKEN = re.compile("-[0-9a-f]{32}$")
_FROM_ARRAY = frozenset(("name", "lock", "inline_array"))  # The options that xarray always passes.


class Variable(xr.Variable):
    """A variable of stored values that makes its dask arrays itself.

    A variable that is derived from it and holds other data is a plain xarray variable.

    The names of its dask arrays change when the stored values may have changed. xarray's own names depend on
    the URL alone, or on the modification time of the directory. With those, dask could return results that it
    computed before the data changed.
    """

    __slots__ = ()

    @classmethod
    def of(cls, variable: xr.Variable) -> xr.Variable:
        """A variable of this class if the values are stored, else ``variable`` itself."""
        data: Any = variable._data
        if found_in(data) is None or not variable._dims or type(variable) is not xr.Variable:
            return variable
        made = super().__new__(cls)
        xr.Variable.__init__(made, variable._dims, data, variable._attrs, variable._encoding, fastpath=True)
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
        """A copy of the same class: it is not an index variable, so xarray can use it for coordinates."""
        return self.copy(deep=False)

    def chunk(self, *args: Any, **options: Any) -> xr.Variable:  # type: ignore[override]
        """Chunk the variable; the dask names change when the stored values may have changed."""
        held = self._data  # Read once: another thread may load the variable meanwhile.
        lazy = found_in(held)
        if lazy is None:
            return super().chunk(*args, **options)
        native = _in_chunks(self, held, lazy, *args, **options)
        return super().chunk(*args, **options) if native is None else native


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
    """The variable with a dask array; None if only xarray's own method supports these arguments."""
    if not isinstance(chunks, dict) or others:
        return None
    given = dict(from_array_kwargs or {})
    name, lock = given.get("name") or name, given.get("lock") or lock
    if lock or not (name is None or isinstance(name, str)) or not given.keys() <= _FROM_ARRAY:
        return None
    if type(guess_chunkmanager(chunked_array_type)) is not DaskManager:
        return None
    from dask.base import tokenize

    from xzarr3.dask.array import Source, zarr_array
    from xzarr3.dask.blocks import blocks_of, check_dask
    from xzarr3.dask.slicing import every

    check_dask()
    blocks = blocks_of(_blocks(chunks, variable._dims, held.shape, held.dtype))
    identity = held if name is None else (name, lazy)
    prefix = "array" if name is None else _TOKEN.sub("", name)
    view = tuple(map(every, blocks, held.shape))

    def named() -> str:
        return f"{prefix}-{tokenize(identity, repr(blocks))}"

    reads, source = _reading(held)
    if reads is read and held.dtype.kind in "mMO" and "units" in variable.encoding:
        reads = partial(read_times, dtype=held.dtype, calendar=variable.encoding.get("calendar"))
    data: Any = zarr_array(Source(reads, source, held.dtype, view, prefix, named))
    return xr.Variable(variable._dims, data, variable._attrs, variable._encoding, fastpath=True)


def found_in(data: Any) -> LazyArray | None:
    """The lazy array inside xarray's wrappers; None if there is none."""
    while data is not None and not isinstance(data, LazyArray):
        data = getattr(data, "array", None) if isinstance(data, indexing.ExplicitlyIndexed) else None
    return data


def _blocks(
    chunks: dict[Any, Any], dims: Iterable[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[tuple[int, ...], ...]:
    """The lengths of the blocks along each dimension, the same as xarray and dask would make."""
    wanted: tuple[Any, ...] = tuple(map(chunks.get, dims))
    if all(isinstance(along, tuple) and sum(along) == n for along, n in zip(wanted, shape, strict=True)):
        return wanted
    from dask.array.core import normalize_chunks

    if "auto" in wanted and 0 in shape:
        wanted = shape
    blocks: tuple[tuple[int, ...], ...] = normalize_chunks(wanted, shape, dtype=dtype)
    return blocks


def _reading(data: Any) -> tuple[Any, Any]:
    """The function that a task calls to read, and the object that it reads from."""
    from xzarr3.dask.array import read_block

    while type(data) in (indexing.MemoryCachedArray, indexing.CopyOnWriteArray):
        data = data.array
    if type(data) is indexing.LazilyIndexedArray and all(
        isinstance(key, slice) and key == slice(None) for key in data.key.tuple
    ):
        lazy: LazyArray = data.array
        return (read_block, lazy.array) if lazy.unpack is None else (read, lazy)
    return read, indexing.ImplicitToExplicitIndexingAdapter(data, indexing.OuterIndexer)


def read(data: Any, parts: tuple[Part, ...]) -> AnyArray:
    """Read a part of a lazy array, or of one that xarray decodes when it is indexed."""
    values: AnyArray = np.asarray(
        data[indexing.BasicIndexer(parts) if isinstance(data, LazyArray) else parts]
    )
    return values


def read_times(data: Any, parts: tuple[Part, ...], *, dtype: np.dtype[Any], calendar: str | None) -> AnyArray:
    """Read a part of times in the data type that xarray announces; the first and the last time tell it that.

    A part alone may be decoded to another type: to dates of cftime where nanoseconds do not reach, or to a
    finer resolution where there are fractions. dask would convert these to that of its first block, by force.

    Raises
    ------
    ArgumentError
        If the type that is announced does not hold the times of this part.
    """
    values = read(data, parts)
    kinds = values.dtype.kind, dtype.kind
    if values.dtype == dtype or not values.size:
        return values
    if kinds == ("M", "O"):
        decode = partial(
            decode_cf_datetime, units="microseconds since 1970-01-01", calendar=calendar, use_cftime=True
        )
        return decoded_dates(decode, dtype, values.astype("M8[us]").astype("i8"))
    if kinds in (("M", "M"), ("m", "m")):
        nearest, one = values.astype(dtype), np.array(1, f"m8[{np.datetime_data(dtype)[0]}]")
        nearest += one * np.nan_to_num(np.round((values - nearest) / one)).astype("i8")
        if not (np.abs(values - nearest) > np.timedelta64(1, "us")).any():
            return nearest
    unit = "us" if "O" in kinds else np.datetime_data(values.dtype)[0]
    keyword, coder = "decode_times", "CFDatetimeCoder"
    if dtype.kind == "m":
        keyword, coder = "decode_timedelta", "CFTimedeltaCoder"
    place = cast("LazyArray", found_in(data.array)).array.place
    raise ArgumentError(
        f"a block of {place} has times of type {values.dtype}, the first and the last of all are of type "
        f"{dtype}, which does not hold them; open the dataset with "
        f"{keyword}=xarray.coders.{coder}(time_unit={unit!r})"
    )
