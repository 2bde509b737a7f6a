"""What an advice is about: shape, data type, dimensions, a sample, and how long a time step is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.advice import time_steps
from xzarr3.advice.compression import SAMPLE_BYTES
from xzarr3.advice.patterns import Roles, roles
from xzarr3.arrays import Array

_MONTH = 30  # Steps where nothing says how long a step is.


@dataclass(frozen=True)
class Subject:
    """What the advice is about."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    names: tuple[str | None, ...]
    sample: AnyArray | None = None
    array: Array | None = None
    variables: tuple[str, ...] = ()
    step_days: float | None = None
    """Days of a time step, if a coordinate tells."""

    @property
    def roles(self) -> Roles:
        """The roles of the dimensions."""
        return roles(self.shape, self.names)

    @property
    def steps_of_a_month(self) -> int:
        """Time steps in a month; as many as days if nothing tells how long a step is."""
        return _MONTH if self.step_days is None else max(1, round(time_steps.MONTH / self.step_days))

    @property
    def steps_of_a_day(self) -> int:
        """Time steps in a day, at least one."""
        return 1 if self.step_days is None else max(1, round(1 / self.step_days))


def subject_of(
    data: Any, shape: Sequence[int] | None, dtype: Any, dims: Sequence[str | None] | None
) -> Subject:
    """What :func:`xzarr3.advise` is asked about.

    Raises
    ------
    TypeError
        If there is neither data nor shape and dtype.
    """
    if data is None:
        if shape is None or dtype is None:
            raise TypeError("nothing to advise on; give an array or a dataset, or shape= and dtype=")
        return Subject(tuple(shape), np.dtype(dtype), tuple(dims or ()))
    variables: tuple[str, ...] = ()
    if hasattr(data, "data_vars"):
        sizes = {name: variable.nbytes for name, variable in data.data_vars.items() if variable.ndim}
        if not sizes:
            raise TypeError(
                "the dataset has no data variable with a dimension; give an array or shape= and dtype="
            )
        largest = data[max(sizes, key=sizes.__getitem__)]
        variables = tuple(name for name in sizes if data[name].dims == largest.dims)
        data = largest
    elif isinstance(data, Array):
        variables = (data.basename,)
    elif hasattr(data, "name") and hasattr(data, "dims"):
        variables = (data.name,) if data.name else ()
    if not (hasattr(data, "shape") and hasattr(data, "dtype")):
        raise TypeError(
            f"cannot advise on {type(data).__name__}; accepted: an array, a dataset, or shape= and dtype="
        )
    array = data if isinstance(data, Array) else None
    names = dims or getattr(data, "dims", None) or (array.dimension_names if array is not None else None)
    found = Subject(
        tuple(data.shape), np.dtype(data.dtype), tuple(names or ()), _sample(data), array, variables
    )
    axis = found.roles.time
    named = found.names[axis] if axis < len(found.names) else None
    return replace(found, step_days=time_steps.step_days(data, named, axis))


def _sample(data: Any) -> AnyArray | None:
    """At most 8 MiB from the middle of the data, as whole as the dimensions allow."""
    lengths = list(data.shape)
    itemsize = np.dtype(data.dtype).itemsize
    if not math.prod(lengths) or np.dtype(data.dtype).hasobject:
        return None
    for axis in range(len(lengths)):
        over = math.prod(lengths) * itemsize / SAMPLE_BYTES
        if over <= 1:
            break
        lengths[axis] = max(1, int(lengths[axis] / over))
    index = tuple(
        slice((size - length) // 2, (size - length) // 2 + length)
        for size, length in zip(data.shape, lengths, strict=True)
    )
    return np.ascontiguousarray(data[index])
