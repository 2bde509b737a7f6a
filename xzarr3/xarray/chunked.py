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
from xzarr3.stores import LocalStore
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
        if not lazy.native and isinstance(lazy.array.store, LocalStore):
            return variable
        data: Any = variable._data
        return cls(variable._dims, data, variable._attrs, variable._encoding, fastpath=True)

    # What it holds: something of xarray's that reads, or what a dask array is to read.

    @property
    def _held(self) -> Any:
        return _DATA.__get__(self)

    @property
    def _reads(self) -> Reads | None:
        """What its dask array is to read, if nothing was assigned to elements of that."""
        held = self._held
        return held if _is_reads(held) and not held.is_changed else None

    @property
    def _data(self) -> Any:
        held = self._held
        return held.array if _is_reads(held) else held

    @_data.setter
    def _data(self, data: Any) -> None:
        _DATA.__set__(self, data)
        if not (_is_reads(data) or found_in(data) is not None):
            self.__class__ = Variable  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        shape: tuple[int, ...] = self._held.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the values."""
        held = self._held if self._reads is None else self._reads
        dtype: np.dtype[Any] = held.dtype
        return dtype

    def to_base_variable(self) -> Variable:
        """Itself, which is no index; coordinates are made of such."""
        return self.copy(deep=False)

    def __reduce__(self) -> tuple[object, ...]:
        kind = Stored if self._reads is None else Variable
        return kind, (self._dims, self._data, self._attrs, self._encoding, True)

    def _copy(self, *args: Any, **options: Any) -> Variable:  # type: ignore[override]
        found = self._reads
        if found is None or args or options.get("deep", True) or options.get("data") is not None:
            return super()._copy(*args, **options)
        attrs, encoding = copy.copy(self._attrs), copy.copy(self._encoding)
        return super()._replace(data=found, attrs=attrs, encoding=encoding)

    def _replace(self, *args: Any, **options: Any) -> Variable:  # type: ignore[override]
        if self._reads is not None and len(args) < 2 and "data" not in options:
            options["data"] = self._reads
        return super()._replace(*args, **options)

    def __getitem__(self, key: Any) -> Variable:  # type: ignore[override]
        found = self._reads
        if found is None:
            return super().__getitem__(key)
        dims, indexer, new_order = self._broadcast_indexes(key)  # type: ignore[no-untyped-call]
        if new_order or type(indexer) not in (indexing.BasicIndexer, indexing.OuterIndexer):
            return super().__getitem__(key)
        simple = [each if _is_simple(each) else slice(None) for each in indexer.tuple]
        data: Any = found.selected(simple)
        if type(indexer) is indexing.OuterIndexer:
            left = [each for each in indexer.tuple if not isinstance(each, (int, np.integer))]
            arrays = tuple(slice(None) if _is_simple(each) else each for each in left)
            adapter = indexing.as_indexable(data.array)  # type: ignore[no-untyped-call]
            data = indexing.apply_indexer(adapter, indexing.OuterIndexer(arrays))
        return self._finalize_indexing_result(dims, data)

    # Chunks

    def chunk(self, *args: Any, **options: Any) -> Variable:  # type: ignore[override]
        """What xarray makes of it, with names that differ where the stored values may."""
        if _is_reads(self._held):
            return super().chunk(*args, **options)
        native = self._in_chunks(*args, **options)
        if native is not None:
            return native
        lazy, given = found_in(self._held), options.get("from_array_kwargs")
        if lazy is not None and given and isinstance(given.get("name"), str):
            from dask.base import tokenize

            options["from_array_kwargs"] = {**given, "name": f"{given['name']}-{tokenize(lazy)}"}
        return super().chunk(*args, **options)

    def _in_chunks(
        self,
        chunks: Any = None,
        name: str | None = None,
        lock: Any = None,
        inline_array: bool | None = None,
        chunked_array_type: Any = None,
        from_array_kwargs: Any = None,
        **others: Any,
    ) -> Variable | None:
        """A variable with a dask array to be, None where only xarray can do what is asked for."""
        lazy = found_in(self._held)
        if lazy is None or not lazy.native or not isinstance(chunks, dict) or others:
            return None
        given = dict(from_array_kwargs or {})
        name, lock = given.get("name") or name, given.get("lock") or lock
        if lock or not (name is None or isinstance(name, str)) or not given.keys() <= _FROM_ARRAY:
            return None
        if not _is_dask(chunked_array_type):
            return None
        from xzarr3.dask.lazy import reads

        blocks = _blocks(chunks, self._dims, self.shape, self.dtype)
        identity = self._held if name is None else (name, lazy)
        prefix = "array" if name is None else _TOKEN.sub("", name)
        data: Any = reads(*_reading(self._held), self.dtype, blocks, prefix, identity)
        return Stored(self._dims, data, self._attrs, self._encoding, fastpath=True)


Stored.__name__ = Variable.__name__  # It is shown to users, to whom the difference does not matter.


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
