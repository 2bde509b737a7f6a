"""Variables in chunks: what reads from a store as dask arrays.

xarray calls ``Variable.chunk`` of every variable that is opened with ``chunks``, which makes a graph by
``dask.array.from_array``. The variables here make a dask array of themselves instead, with the same chunks
and the same values, but without a graph until one is asked for: see :class:`xzarr3.dask.lazy.Reads`.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from xarray import Variable
from xarray.core import indexing
from xarray.namedarray.daskmanager import DaskManager
from xarray.namedarray.parallelcompat import guess_chunkmanager

from xzarr3._types import AnyArray
from xzarr3.xarray.lazy import LazyArray

if TYPE_CHECKING:
    from xzarr3.dask.lazy import Reads
    from xzarr3.dask.views import Part

_TOKEN = re.compile("-[0-9a-f]{32}$")
# Where variables keep their data.
_DATA: Any = next((vars(kind)["_data"] for kind in Variable.__mro__ if "_data" in vars(kind)), None)
_FROM_ARRAY = frozenset(("name", "lock", "inline_array"))  # What xarray always tells ``from_array``.


class Stored(Variable):
    """A variable of values in a store, which makes dask arrays of them itself.

    In chunks, it makes its dask array when something asks for that, and first selects what integers and
    slices ask for. As soon as it holds anything else than what it reads, it is a variable like any other.

    Its dask arrays have names that differ where the stored values may; of a dataset that is opened by a URL
    xarray names them after the URL alone, of one in a directory after the time that was changed, so that dask
    could take what it computed before the data were changed for what is asked for now.
    """

    __slots__ = ()

    @classmethod
    def of(cls, variable: Variable) -> Variable:
        """The variable, if its values are in a store."""
        lazy = found_in(variable._data)
        if lazy is None or not variable.ndim or type(variable) is not Variable or _DATA is None:
            return variable
        if not lazy.native and lazy.array.store.folder is not None:
            return variable
        data: Any = variable._data
        return cls(variable._dims, data, variable._attrs, variable._encoding, fastpath=True)

    # Another thread may load it meanwhile, which makes a plain variable of it. So nothing here relies on its
    # class, and what it holds is looked at once.

    @property
    def _data(self) -> Any:
        held = _held(self)
        return held.array if _is_reads(held) else held

    @_data.setter
    def _data(self, data: Any) -> None:
        _DATA.__set__(self, data)
        if not (_is_reads(data) or found_in(data) is not None):
            self.__class__ = Variable  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        shape: tuple[int, ...] = _held(self).shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the values."""
        held = _held(self)
        dtype: np.dtype[Any] = held.array.dtype if _is_reads(held) and held.is_changed else held.dtype
        return dtype

    def to_base_variable(self) -> Variable:
        """Itself, which is no index; coordinates are made of such."""
        return self.copy(deep=False)

    def __reduce__(self) -> tuple[object, ...]:
        held = _held(self)
        data, kind = (held.array, Variable) if _is_reads(held) else (held, Stored)
        return kind, (self._dims, data, self._attrs, self._encoding, True)

    def __dask_tokenize__(self) -> object:
        plain: Any = Variable(self._dims, self.data, self._attrs, fastpath=True)
        return plain.__dask_tokenize__()

    def _copy(self, *args: Any, **options: Any) -> Variable:  # type: ignore[override]
        found = _reads(self)
        if found is None or args or options.get("deep", True) or options.get("data") is not None:
            return Variable._copy(self, *args, **options)
        return _with(self, self._dims, found)

    def _replace(self, *args: Any, **options: Any) -> Variable:  # type: ignore[override]
        found = _reads(self)
        if found is not None and len(args) < 2 and "data" not in options:
            options["data"] = found
        replaced = Variable._replace(self, *args, **options)
        if _is_reads(_held(replaced)):
            replaced.__class__ = Stored
        return replaced

    def __getitem__(self, key: Any) -> Variable:  # type: ignore[override]
        found = _reads(self)
        if found is None:
            return Variable.__getitem__(self, key)
        dims, indexer, new_order = self._broadcast_indexes(key)  # type: ignore[no-untyped-call]
        if new_order or type(indexer) not in (indexing.BasicIndexer, indexing.OuterIndexer):
            return Variable.__getitem__(self, key)
        simple = [each if _is_simple(each) else slice(None) for each in indexer.tuple]
        data: Any = found.selected(simple)
        if type(indexer) is indexing.OuterIndexer:
            left = [each for each in indexer.tuple if not isinstance(each, (int, np.integer))]
            arrays = tuple(slice(None) if _is_simple(each) else each for each in left)
            adapter = indexing.as_indexable(data.array)  # type: ignore[no-untyped-call]
            data = indexing.apply_indexer(adapter, indexing.OuterIndexer(arrays))
        return _with(self, dims, data)

    def chunk(self, *args: Any, **options: Any) -> Variable:  # type: ignore[override]
        """What xarray makes of it, with names that differ where the stored values may."""
        held = _held(self)
        lazy = found_in(held)  # None of what is in chunks already.
        if lazy is None:
            return Variable.chunk(self, *args, **options)
        native = _in_chunks(self, held, lazy, *args, **options)
        if native is not None:
            return native
        given = options.get("from_array_kwargs")
        if given and isinstance(given.get("name"), str):
            from dask.base import tokenize

            options["from_array_kwargs"] = {**given, "name": f"{given['name']}-{tokenize(lazy)}"}
        return Variable.chunk(self, *args, **options)


Stored.__name__ = Variable.__name__  # It is shown to users, to whom the difference does not matter.


def _held(variable: Variable) -> Any:
    """What a variable holds: something of xarray's that reads, or what a dask array is to read."""
    return _DATA.__get__(variable)


def _with(variable: Variable, dims: tuple[Any, ...], data: Any) -> Variable:
    """A variable with other data, which are those that it reads or a dask array."""
    kind = Stored if _is_reads(data) else Variable
    return kind(dims, data, copy.copy(variable._attrs), copy.copy(variable._encoding), fastpath=True)


def _reads(variable: Variable) -> Reads | None:
    """What the dask array of a variable is to read, if nothing was assigned to elements of that."""
    held = _held(variable)
    return held if _is_reads(held) and not held.is_changed else None


def _in_chunks(
    variable: Variable,
    held: Any,
    lazy: LazyArray,
    chunks: Any = None,
    name: str | None = None,
    lock: Any = None,
    inline_array: bool | None = None,
    chunked_array_type: Any = None,
    from_array_kwargs: Any = None,
    **others: Any,
) -> Variable | None:
    """A variable with a dask array to be, None where only xarray can do what is asked for."""
    if not lazy.native or not isinstance(chunks, dict) or others:
        return None
    given = dict(from_array_kwargs or {})
    name, lock = given.get("name") or name, given.get("lock") or lock
    if lock or not (name is None or isinstance(name, str)) or not given.keys() <= _FROM_ARRAY:
        return None
    if not _is_dask(chunked_array_type):
        return None
    from xzarr3.dask.lazy import reads

    blocks = _blocks(chunks, variable._dims, held.shape, held.dtype)
    identity = held if name is None else (name, lazy)
    prefix = "array" if name is None else _TOKEN.sub("", name)
    data: Any = reads(*_reading(held), held.dtype, blocks, prefix, identity)
    return Stored(variable._dims, data, variable._attrs, variable._encoding, fastpath=True)


def _is_reads(data: Any) -> bool:
    lazy = sys.modules.get("xzarr3.dask.lazy")
    return lazy is not None and type(data) is lazy.Reads


def _is_simple(index: Any) -> bool:
    return isinstance(index, (int, np.integer, slice))


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
