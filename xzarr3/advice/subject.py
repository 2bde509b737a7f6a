"""What an advice is about: shape, data type, dimensions, a sample, and how long a time step is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.advice import time_steps
from xzarr3.advice.compression import SAMPLE_BYTES
from xzarr3.advice.patterns import Roles, roles
from xzarr3.arrays import Array
from xzarr3.checks.conventions import NAMING
from xzarr3.errors import ArgumentTypeError
from xzarr3.groups import Group

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
            raise ArgumentTypeError("nothing to advise on; give an array or a dataset, or shape= and dtype=")
        return Subject(tuple(shape), np.dtype(dtype), tuple(dims or ()))
    variables: tuple[str, ...] = ()
    if isinstance(data, Group):
        nodes = data.members(max_depth=None)
        data = _largest(of_data({path: node for path, node in nodes if isinstance(node, Array)}))
        variables = (data.basename,)
    elif hasattr(data, "data_vars"):
        data_arrays = of_data({**data.variables})
        chosen = _largest({name: each for name, each in data_arrays.items() if name in data.data_vars})
        variables = tuple(name for name, each in data.data_vars.items() if each.dims == chosen.dims)
        data = data[next(name for name, each in data_arrays.items() if each is chosen)]
    elif isinstance(data, Array):
        variables = (data.basename,)
    elif hasattr(data, "name") and hasattr(data, "dims"):
        variables = (data.name,) if data.name else ()
    if not (hasattr(data, "shape") and hasattr(data, "dtype")):
        raise ArgumentTypeError(
            f"cannot advise on {type(data).__name__}; accepted: an array, a dataset, or shape= and dtype="
        )
    array = data if isinstance(data, Array) else None
    names = dims or getattr(data, "dims", None) or (array.dimension_names if array is not None else None)
    found = Subject(
        tuple(data.shape), np.dtype(data.dtype), tuple(names or ()), _sample(data), array, variables
    )
    axis = found.roles.time
    if axis is None:
        return found
    named = found.names[axis] if axis < len(found.names) else None
    return replace(found, step_days=time_steps.step_days(data, named, axis))


def of_data(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables or arrays with elements and dimensions, without those that describe others.

    Those are coordinates of their only dimension, and what a CF attribute of another names, such as bounds.
    """
    described = set()
    for each in variables.values():
        attributes = {**getattr(each, "encoding", {}), **each.attrs}
        described |= {word for name in NAMING for word in str(attributes.get(name, "")).split()}
    return {
        path: each
        for path, each in variables.items()
        if each.size and each.ndim and (name := str(path).rpartition("/")[2]) not in described
        if list(getattr(each, "dims", None) or getattr(each, "dimension_names", None) or ()) != [name]
    }


def _largest(found: Mapping[str, Any]) -> Any:
    if not found:
        raise ArgumentTypeError(
            "no array to advise on: none has elements and a dimension, without describing another one; give "
            "an array, or shape= and dtype="
        )
    return max(found.values(), key=lambda each: each.nbytes)


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
