"""Creates arrays in a group, with the functions of zarr-python and h5py: ``require_array``, ``zeros``, ..."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from xzarr3.arrays import Array
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import NodeTypeError, short_traceback
from xzarr3.grid import as_lengths
from xzarr3.group_members import GroupMembers
from xzarr3.new_array import fill_like, settings_like, zero_of


class GroupArrays(GroupMembers):
    """The part of :class:`xzarr3.Group` that creates arrays."""

    @abstractmethod
    def create_array(self, name: str, **options: Any) -> Array:
        """Create an array below this group; takes the options of :func:`xzarr3.create_array`."""

    @short_traceback
    def create_dataset(
        self, name: str, shape: Any = None, dtype: Any = None, data: Any = None, **options: Any
    ) -> Array:
        """Create an array below this group: :meth:`create_array` with the arguments of h5py and zarr 2.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().create_dataset("sst", (4, 6), "float32", chunks=2)
        <xzarr3.Array /sst shape=(4, 6) dtype=float32 chunks=(2, 2)>
        """
        return self.create_array(name, shape=shape, dtype=dtype, data=data, **options)

    @short_traceback
    def require_array(
        self, name: str, *, shape: Any, dtype: Any = None, exact: bool = False, **options: Any
    ) -> Array:
        """The array ``name`` below this group; created if it is absent.

        Parameters
        ----------
        name : str
        shape : tuple of int
            An existing array must have this shape.
        dtype : dtype, str or ZDType, optional
            By default ``float64``. Elements of an existing array must be of a type that this type can hold.
        exact : bool
            An existing array must have exactly this type.
        **options
            Further options of :func:`xzarr3.create_array` for a new array. An existing one stays as it is.

        Raises
        ------
        NodeTypeError
            If there is a group of this name, or an array of another shape or type. It is a TypeError.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> made = root.require_array("sst", shape=(4, 6), dtype="float32")
        >>> root.require_array("sst", shape=(4, 6), dtype="float64").dtype
        dtype('float32')
        """
        found = self.get(name)
        dtype = "float64" if dtype is None else dtype
        if found is None:
            return self.create_array(name, shape=shape, dtype=dtype, **options)
        if not isinstance(found, Array):
            raise NodeTypeError(f"'{found.name}' of {self.store} is a group, not an array")
        if found.shape != as_lengths(shape):
            raise NodeTypeError(
                f"array '{found.name}' of {self.store} has shape {found.shape}, not {as_lengths(shape)}"
            )
        wanted = parse_dtype(dtype, zarr_format=self.zarr_format).to_native_dtype()
        if found.dtype != wanted and (exact or not np.can_cast(found.dtype, wanted)):
            raise NodeTypeError(
                f"array '{found.name}' of {self.store} has data type {found.dtype}, not {wanted}"
            )
        return found

    def zeros(self, name: str, *, shape: Any, **options: Any) -> Array:
        """Create an array of zeros below this group; see :func:`xzarr3.zeros`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().zeros("ice", shape=2, dtype="int8")[:]
        array([0, 0], dtype=int8)
        """
        return self._filled(name, shape, zero_of(options.get("dtype", "float64")), options)

    def ones(self, name: str, *, shape: Any, **options: Any) -> Array:
        """Create an array of ones below this group; see :func:`xzarr3.ones`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().ones("ice", shape=2, dtype="int8")[:]
        array([1, 1], dtype=int8)
        """
        return self._filled(name, shape, 1, options)

    def full(self, name: str, *, shape: Any, fill_value: object, **options: Any) -> Array:
        """Create an array of one value below this group; see :func:`xzarr3.full`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().full("ice", shape=2, fill_value=7)[:]
        array([7., 7.])
        """
        return self._filled(name, shape, fill_value, options)

    def empty(self, name: str, *, shape: Any, **options: Any) -> Array:
        """Create an array without chunks below this group; see :func:`xzarr3.empty`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().empty("ice", shape=2, fill_value=-1)[:]
        array([-1., -1.])
        """
        return self._filled(name, shape, options.pop("fill_value", None), options)

    def zeros_like(self, name: str, *, data: Any, **options: Any) -> Array:
        """Create an array of zeros like another one below this group; see :func:`xzarr3.zeros_like`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().zeros_like("ice", data=[1.5, 2.5])[:]
        array([0., 0.])
        """
        return self._like(name, data, ..., options)

    def ones_like(self, name: str, *, data: Any, **options: Any) -> Array:
        """Create an array of ones like another one below this group; see :func:`xzarr3.ones_like`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().ones_like("ice", data=[1.5, 2.5])[:]
        array([1., 1.])
        """
        return self._like(name, data, 1, options)

    def full_like(self, name: str, *, data: Any, fill_value: object = ..., **options: Any) -> Array:
        """Create an array of one value like another one below this group; see :func:`xzarr3.full_like`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().full_like("ice", data=[1.5, 2.5], fill_value=7)[:]
        array([7., 7.])
        """
        return self._like(name, data, fill_like(data) if fill_value is ... else fill_value, options)

    def empty_like(self, name: str, *, data: Any, **options: Any) -> Array:
        """Create an array without chunks like another one below this group; see :func:`xzarr3.empty_like`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().empty_like("ice", data=xzarr3.full(2, 9.0))[:]
        array([9., 9.])
        """
        return self._like(name, data, options.pop("fill_value", fill_like(data)), options)

    def _filled(self, name: str, shape: Any, fill_value: object, options: dict[str, Any]) -> Array:
        return self.create_array(name, shape=shape, fill_value=fill_value, **{"dtype": "float64", **options})

    def _like(self, name: str, data: Any, fill_value: object, options: dict[str, Any]) -> Array:
        found = {**settings_like(data, zarr_format=self.zarr_format), **options}
        found.pop("zarr_format", None)
        fill_value = zero_of(found["dtype"]) if fill_value is ... else fill_value
        return self.create_array(name, fill_value=fill_value, **found)
