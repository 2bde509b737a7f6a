"""``numcodecs.shuffle``: the bytes of elements regrouped.

Specification: zarr-extensions, "numcodecs.shuffle"; the documentation of numcodecs, "Shuffle".
Names: ``numcodecs.shuffle``.
Example: ``{"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from numcodecs.shuffle import Shuffle

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, ChunkSpec, Configuration
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError

_MAX_INT = 2**31 - 1


@dataclass(frozen=True)
class ShuffleCodec(BytesBytesCodec):
    """The first bytes of all elements, then all the second ones, and so on; it makes compressors do better.

    Parameters
    ----------
    elementsize : int, optional
        Size of an element in bytes; by default that of the array's data type.
    """

    name = "numcodecs.shuffle"
    elementsize: int | None = None

    def __post_init__(self) -> None:
        if self.elementsize is not None:
            Configuration(self.name, {"elementsize": self.elementsize}).integer("elementsize", 0, _MAX_INT)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(fields.take("elementsize", "an integer of at least 0", None))  # type: ignore[arg-type]
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {} if self.elementsize is None else {"elementsize": self.elementsize}

    def evolve(self, spec: ChunkSpec) -> Self:
        return self if self.elementsize is not None else replace(self, elementsize=spec.element_size)

    def encoded_size(self, size: int) -> int:
        return size

    def max_encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Buffer) -> Buffer:
        return self._regrouped(data, ChunkEncodeError, encode=True)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        if len(data) > limit:
            raise self.too_large(limit, len(data))
        return self._regrouped(data, ChunkDecodeError, encode=False)

    def _regrouped(
        self, data: Buffer, failure: type[ChunkEncodeError | ChunkDecodeError], *, encode: bool
    ) -> Buffer:
        size = self.elementsize or 1
        if size == 1:
            return data
        if len(data) % size:
            raise failure(f"{len(data)} bytes are no elements of {size} bytes", codec=self.name)
        coder = Shuffle(size)
        return memoryview(coder.encode(data) if encode else coder.decode(data))
