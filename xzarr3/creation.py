"""Creates arrays and groups with the functions of zarr-python: ``zeros``, ``full_like``, ``from_array``, ...

Each calls :func:`xzarr3.create_array` or :func:`xzarr3.open_group`, which have the options in full. Without a
store they create in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xzarr3.api import Mode, create_array, open_group
from xzarr3.arrays import Array
from xzarr3.errors import ArgumentTypeError, short_traceback
from xzarr3.formats import ZarrFormat
from xzarr3.groups import Group
from xzarr3.new_array import KEEP, ZERO, fill_like, filled, is_keep, like, settings_like
from xzarr3.stores import MemoryStore, StoreLike

_KEPT = ("chunks", "shards", "filters", "serializer", "compressors")


@short_traceback
def group(
    store: StoreLike | None = None,
    path: str = "",
    *,
    overwrite: bool = False,
    attributes: Mapping[str, Any] | None = None,
    zarr_format: ZarrFormat | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Open a group to read and write; create it if it is absent.

    Parameters
    ----------
    store : path, URL or Store, optional
        By default a new :class:`MemoryStore`.
    path : str
        Path of the group in its hierarchy; the root by default.
    overwrite : bool
        Replace an existing node and all nodes below it with an empty group.
    attributes : mapping, optional
        Attributes of a new group.
    zarr_format : {3, 2, "3-draft"}, optional
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.

    Raises
    ------
    NodeTypeError
        If there is an array at ``path`` and ``overwrite`` is not set.

    Examples
    --------
    >>> import xzarr3
    >>> root = xzarr3.group(attributes={"title": "SST"})
    >>> xzarr3.group(root.store).attrs
    {'title': 'SST'}
    """
    options: dict[str, Any] = {"zarr_format": zarr_format, "storage_options": storage_options}
    mode: Mode = "w" if overwrite else "a"
    return open_group(
        MemoryStore() if store is None else store, path, mode=mode, attributes=attributes, **options
    )


def array(data: Any, *, store: StoreLike | None = None, path: str = "", **options: Any) -> Array:
    """Create an array that holds ``data``.

    Parameters
    ----------
    data : array_like, dask array, xarray.DataArray or Array
        An :class:`Array` is copied as by :func:`from_array`, with its settings.
    store : path, URL or Store, optional
        By default a new :class:`MemoryStore`.
    path : str
        Path of the array in its hierarchy; the root by default.
    **options
        Further options of :func:`xzarr3.create_array`.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([[1, 2], [3, 4]], chunks=1)[:, 1]
    array([2, 4])
    """
    if isinstance(data, Array):
        return from_array(store, data=data, path=path, **options)
    return _created(store, path, data=data, **options)


def zeros(
    shape: int | Sequence[int], *, store: StoreLike | None = None, path: str = "", **options: Any
) -> Array:
    """Create an array of zeros; no chunk is stored.

    Parameters
    ----------
    shape : tuple of int
    store : path, URL or Store, optional
        By default a new :class:`MemoryStore`.
    path : str
        Path of the array in its hierarchy; the root by default.
    **options
        Further options of :func:`xzarr3.create_array`. The data type is ``float64`` by default.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.zeros((2, 3), dtype="int16")[0]
    array([0, 0, 0], dtype=int16)
    """
    return _created(store, path, **filled(shape, ZERO, options))


def ones(
    shape: int | Sequence[int], *, store: StoreLike | None = None, path: str = "", **options: Any
) -> Array:
    """Create an array of ones; no chunk is stored. Parameters as for :func:`zeros`.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.ones(3)[:]
    array([1., 1., 1.])
    """
    return _created(store, path, **filled(shape, 1, options))


def full(
    shape: int | Sequence[int],
    fill_value: object,
    *,
    store: StoreLike | None = None,
    path: str = "",
    **options: Any,
) -> Array:
    """Create an array that has one value everywhere; no chunk is stored. Parameters as for :func:`zeros`.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.full(3, 7, dtype="int16")[:]
    array([7, 7, 7], dtype=int16)
    """
    return _created(store, path, **filled(shape, fill_value, options))


def empty(
    shape: int | Sequence[int], *, store: StoreLike | None = None, path: str = "", **options: Any
) -> Array:
    """Create an array without chunks, which reads as its fill value. Parameters as for :func:`zeros`.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(2, fill_value=-1)[:]
    array([-1., -1.])
    """
    return _created(store, path, **filled(shape, options.pop("fill_value", None), options))


def zeros_like(a: Any, *, store: StoreLike | None = None, path: str = "", **options: Any) -> Array:
    """Create an array of zeros with the shape, data type and chunks of another one.

    Parameters
    ----------
    a : Array or array_like
        Of an :class:`Array`, shards, codecs and the format are taken as well, but no attributes and no
        dimension names.
    store : path, URL or Store, optional
        By default a new :class:`MemoryStore`.
    path : str
        Path of the array in its hierarchy; the root by default.
    **options
        Options of :func:`xzarr3.create_array` that replace those of ``a``.

    Examples
    --------
    >>> import xzarr3
    >>> made = xzarr3.zeros_like(xzarr3.ones((4, 6), chunks=2, dtype="int16"))
    >>> made.chunks, made[0, :3]
    ((2, 2), array([0, 0, 0], dtype=int16))
    """
    return _created(store, path, **like(a, ZERO, options))


def ones_like(a: Any, *, store: StoreLike | None = None, path: str = "", **options: Any) -> Array:
    """Create an array of ones like another one; see :func:`zeros_like`.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.ones_like([1.5, 2.5])[:]
    array([1., 1.])
    """
    return _created(store, path, **like(a, 1, options))


def full_like(
    a: Any, fill_value: object = ..., *, store: StoreLike | None = None, path: str = "", **options: Any
) -> Array:
    """Create an array of one value like another one, by default of its fill value; see :func:`zeros_like`.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.full_like([1.5, 2.5], 7)[:]
    array([7., 7.])
    """
    return _created(store, path, **like(a, fill_like(a) if fill_value is ... else fill_value, options))


def empty_like(a: Any, *, store: StoreLike | None = None, path: str = "", **options: Any) -> Array:
    """Create an array without chunks like another one, with its fill value; see :func:`zeros_like`.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty_like(xzarr3.full(2, 9.0))[:]
    array([9., 9.])
    """
    return _created(store, path, **like(a, options.pop("fill_value", fill_like(a)), options))


@short_traceback
def from_array(
    store: StoreLike | None,
    *,
    data: Any,
    path: str = "",
    name: str | None = None,
    write_data: bool = True,
    chunks: Any = KEEP,
    shards: Any = KEEP,
    filters: Any = KEEP,
    serializer: Any = KEEP,
    compressors: Any = KEEP,
    **options: Any,
) -> Array:
    """Create an array from another one or from other values, with the settings of the other array.

    Values of an :class:`Array` are copied shard by shard, so that it need not fit into memory; without
    decoding, where no setting changes. :func:`xzarr3.copy` copies groups as well.

    Parameters
    ----------
    store : path, URL or Store
        None for a new :class:`MemoryStore`.
    data : Array, array_like, dask array or xarray.DataArray
    path, name : str, optional
        Path of the array in its hierarchy, under one of its two names; the root by default.
    write_data : bool
        Whether to write the values; otherwise only the settings are taken.
    chunks, shards, filters, serializer, compressors
        As for :func:`xzarr3.create_array`. ``"keep"`` takes those of an :class:`Array`, and the chunks of
        other arrays that have some.
    **options
        Further options of :func:`xzarr3.create_array`. By default the fill value, the attributes, the
        dimension names and the format are those of ``data``, if it is an :class:`Array`.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> stored = xzarr3.array(np.arange(100), chunks=10, dimension_names=["time"])
    >>> again = xzarr3.from_array(None, data=stored, chunks=25)
    >>> again.chunks, again.dimension_names, int(again[99])
    ((25,), ('time',), 99)
    """
    if "shape" in options:
        raise ArgumentTypeError("from_array() takes the shape of its data; leave shape=... out")
    found = settings_like(data)
    if isinstance(data, Array):
        found |= {"fill_value": data.fill_value, "dimension_names": data.dimension_names}
        found["attributes"] = data.attrs.asdict()  # type: ignore[attr-defined]
    elif write_data:
        del found["shape"], found["dtype"]  # The values have them.
    asked = (chunks, shards, filters, serializer, compressors)
    found |= {key: value for key, value in zip(_KEPT, asked, strict=True) if not is_keep(value)}
    return _created(store, path, data=data if write_data else None, name=name, **{**found, **options})


def _created(store: StoreLike | None, path: str, **options: Any) -> Array:
    return create_array(MemoryStore() if store is None else store, path, **options)
