"""``reshape``: gives the chunk another shape and keeps the order of its elements.

Specification: zarr-extensions, "reshape codec". Names: ``reshape``.
Example: ``{"name": "reshape", "configuration": {"shape": [[0, 1], [2], 3]}}``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from xzarr3._types import AnyArray
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec
from xzarr3.errors import MetadataError
from xzarr3.fields import Meta

_ACCEPTED = (
    "an array of lengths of at least 1, of arrays of dimensions in increasing order, and of -1, once at most"
)


@dataclass(frozen=True)
class ReshapeCodec(ArrayArrayCodec):
    """Gives the chunk another shape.

    Parameters
    ----------
    shape : sequence of int, or of sequences of int
        One item for each dimension of the encoded chunk. An integer is its length. A sequence lists the
        dimensions of the chunk that it merges; its length is the product of theirs. -1, at most once, is the
        length that remains.

    Examples
    --------
    >>> ReshapeCodec([[0, 1], [2], 3]).shape_of((100, 50, 64, 3))
    (5000, 64, 3)
    """

    name = "reshape"
    shape: Annotated[tuple[Annotated[int, Meta(ge=-1)] | tuple[int, ...], ...], Meta(description=_ACCEPTED)]

    def __post_init__(self) -> None:
        super().__post_init__()
        dims, lengths = self._dims, [item for item in self.shape if not isinstance(item, tuple)]
        if 0 in lengths or lengths.count(-1) > 1 or sorted({*dims}) != dims or min(dims, default=0) < 0:
            raise self.wrong("shape", self.configuration()["shape"], _ACCEPTED)

    @property
    def _dims(self) -> list[int]:
        return [dim for item in self.shape if isinstance(item, tuple) for dim in item]

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an encoded chunk, for chunks of ``shape``.

        Raises
        ------
        MetadataError
            If the number of elements would differ, or a dimension does not consist of the ones it lists.
        """
        if self._dims and self._dims[-1] >= len(shape):
            raise self._misfit(shape, f"the chunk has {len(shape)} dimensions")
        lengths = [
            math.prod(shape[dim] for dim in item) if isinstance(item, tuple) else item for item in self.shape
        ]
        size = math.prod(shape)
        if -1 in lengths:
            others = -math.prod(lengths)
            lengths[lengths.index(-1)] = size // others if others and size % others == 0 else -1
        if -1 in lengths or math.prod(lengths) != size:
            raise self._misfit(shape, f"the chunk has {size} elements, which no such shape has")
        for at, item in enumerate(self.shape):
            if isinstance(item, tuple) and item:
                before, after = math.prod(shape[: item[0]]), math.prod(shape[item[-1] + 1 :])
                if math.prod(lengths[:at]) != before or math.prod(lengths[at + 1 :]) != after:
                    raise self._misfit(
                        shape, f"dimension {at} has another length than the dimensions it is made of"
                    )
        return tuple(lengths)

    def _misfit(self, shape: tuple[int, ...], reason: str) -> MetadataError:
        found = self.configuration()["shape"]
        return self.wrong("shape", found, f"a shape for chunks of shape {list(shape)}", reason)

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        return replace(spec, shape=self.shape_of(spec.shape))

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array.reshape(self.shape_of(spec.shape))

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array.reshape(spec.shape)
