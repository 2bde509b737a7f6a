"""``transpose``: reorders the dimensions of the chunk.

Specification: Zarr v3, "Transpose codec". Names: ``transpose``.
Example: ``{"name": "transpose", "configuration": {"order": [1, 0]}}``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from xzarr3._types import AnyArray
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec
from xzarr3.fields import Meta


@dataclass(frozen=True)
class TransposeCodec(ArrayArrayCodec):
    """Reorders the dimensions of the chunk.

    Parameters
    ----------
    order : tuple of int
        Dimension ``order[i]`` of the chunk is dimension ``i`` of the encoded chunk.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([[1, 2], [3, 4]], filters=xzarr3.codecs.TransposeCodec((1, 0))).filters
    (TransposeCodec(order=(1, 0)),)
    """

    name = "transpose"
    takes_optional = True
    order: tuple[Annotated[int, Meta(ge=0)], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.order) != list(range(len(self.order))):
            raise self.wrong("order", self.order, "each number from 0 to the number of dimensions - 1, once")

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        if len(self.order) != len(spec.shape):
            raise self.wrong(
                "order",
                self.order,
                f"{len(spec.shape)} integers",
                "the chunk has another number of dimensions",
            )
        return replace(spec, shape=tuple(spec.shape[axis] for axis in self.order))

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array.transpose(self.order)

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return array.transpose(inverse)
