"""Chunk grids: how an array is divided into the units that are stored.

Specification: Zarr v3 core, "Chunk grids"; "Regular grids".
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

from xzarr3._types import JSON
from xzarr3.errors import MetadataError


def as_lengths(value: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    """One integer, or several, of any type, as a tuple of int.

    Raises
    ------
    TypeError
        If there is something else among them.
    """
    given: Iterable[SupportsIndex] = value if isinstance(value, Iterable) else (value,)
    return tuple(int(operator.index(length)) for length in given)


@dataclass(frozen=True)
class RegularGrid:
    """All chunks have the same shape; those at the upper edges reach beyond the array.

    Parameters
    ----------
    chunk_shape : tuple of int
        Length of a chunk along each dimension, in elements.

    Examples
    --------
    >>> grid = RegularGrid((2, 3))
    >>> grid.counts((5, 3))
    (3, 1)
    >>> grid.region((2, 0), (5, 3))
    (slice(4, 5, None), slice(0, 3, None))
    """

    chunk_shape: tuple[int, ...]

    name = "regular"

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse a grid that does not fit an array of this shape.

        Raises
        ------
        MetadataError
            If the number of dimensions differs or a chunk has no length.
        """
        field = "chunk_grid.configuration.chunk_shape"
        if len(self.chunk_shape) != len(shape):
            raise MetadataError(
                f"the array has {len(shape)} dimensions",
                field=field,
                found=list(self.chunk_shape),
                accepted=f"{len(shape)} integers",
            )
        for length, size in zip(self.chunk_shape, shape, strict=True):
            if length < 1 and (size > 0 or length < 0):
                raise MetadataError(
                    "a chunk has no length along a dimension",
                    field=field,
                    found=list(self.chunk_shape),
                    accepted="integers of at least 1",
                )

    def counts(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Number of chunks along each dimension of an array of this shape."""
        return tuple(
            -(-size // length) if size else 0 for size, length in zip(shape, self.chunk_shape, strict=True)
        )

    def region(self, coords: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
        """The part of an array of this shape that a chunk covers."""
        return tuple(
            slice(i * length, min((i + 1) * length, size))
            for i, length, size in zip(coords, self.chunk_shape, shape, strict=True)
        )

    def number(self, shape: tuple[int, ...]) -> int:
        """Number of chunks of an array of this shape."""
        return math.prod(self.counts(shape))

    def configuration(self) -> dict[str, JSON]:
        """The configuration as a metadata document has it."""
        return {"chunk_shape": list(self.chunk_shape)}
