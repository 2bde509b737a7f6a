"""``reshape``: gives the chunk another shape and keeps the order of its elements.

Specification: zarr-extensions, "reshape codec". Names: ``reshape``.
Example: ``{"name": "reshape", "configuration": {"shape": [[0, 1], [2], 3]}}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from xzarr3._types import JSON, AnyArray
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec, Configuration
from xzarr3.errors import MetadataError

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
    shape: tuple[int | tuple[int, ...], ...]

    def __post_init__(self) -> None:
        shape = tuple(tuple(item) if isinstance(item, Sequence) else item for item in self.shape)
        object.__setattr__(self, "shape", shape)
        given = [list(item) if isinstance(item, tuple) else item for item in shape]
        dims = [dim for item in shape if isinstance(item, tuple) for dim in item]
        lengths = [item for item in shape if not isinstance(item, tuple)]
        if (
            not all(type(number) is int for number in dims + lengths)
            or not all(length == -1 or length > 0 for length in lengths)
            or lengths.count(-1) > 1
            or not all(a < b for a, b in zip([-1, *dims], dims, strict=False))
        ):
            raise Configuration(self.name, {}).error("shape", given, _ACCEPTED)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        shape = fields.take("shape", _ACCEPTED)
        if not isinstance(shape, list) or any(isinstance(item, (str, dict)) for item in shape):
            raise fields.error("shape", shape, _ACCEPTED)
        fields.finish()
        return cls(tuple(shape))  # type: ignore[arg-type]

    def configuration(self) -> dict[str, JSON]:
        return {"shape": [list(item) if isinstance(item, tuple) else item for item in self.shape]}

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an encoded chunk, for chunks of ``shape``.

        Raises
        ------
        MetadataError
            If the number of elements would differ, or a dimension does not consist of the ones it lists.
        """
        dims = [dim for item in self.shape if isinstance(item, tuple) for dim in item]
        if dims and dims[-1] >= len(shape):
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
        return Configuration(self.name, {}).error(
            "shape", self.configuration()["shape"], f"a shape for chunks of shape {list(shape)}", reason
        )

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        return replace(spec, shape=self.shape_of(spec.shape))

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array.reshape(self.shape_of(spec.shape))

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return array.reshape(spec.shape)
