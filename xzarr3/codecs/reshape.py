"""``reshape``: gives the chunk another shape and keeps the order of its elements.

Specification: zarr-extensions, "reshape codec". Names: ``reshape``.
Example: ``{"name": "reshape", "configuration": {"shape": [[0, 1], [2], 3]}}``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Annotated

from xzarr3._types import AnyArray
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec
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
    takes_optional = True
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
        edges, n = [*accumulate(shape, mul, initial=1)], len(shape)
        lengths = [x if isinstance(x, int) else math.prod(shape[i] for i in x if i < n) for x in self.shape]
        others = -math.prod(lengths)
        if -1 in lengths and others and edges[-1] % others == 0:
            lengths[lengths.index(-1)] = edges[-1] // others
        starts = [*accumulate(lengths, mul, initial=1)]
        lists = [(at, x[0], x[-1]) for at, x in enumerate(self.shape) if isinstance(x, tuple) and x]
        if self._dims[-1:] >= [n]:
            reason = f"the chunk has {n} dimensions"
        elif -1 in lengths or starts[-1] != edges[-1]:
            reason = f"the chunk has {edges[-1]} elements, which no such shape has"
        elif moved := [at for at, i, j in lists if starts[at : at + 2] != [edges[i], edges[j + 1]]]:
            reason = f"dimension {moved[0]} has another length than the dimensions it is made of"
        else:
            return tuple(lengths)
        found, accepted = self.configuration()["shape"], f"a shape for chunks of shape {list(shape)}"
        raise self.wrong("shape", found, accepted, reason)

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        return replace(spec, shape=self.shape_of(spec.shape))

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array.reshape(self.shape_of(spec.shape))

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array.reshape(spec.shape)
