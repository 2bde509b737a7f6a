"""``numcodecs.packbits``: truth values, eight in a byte.

Specification: zarr-extensions, "numcodecs.packbits"; the documentation of numcodecs, "PackBits".
Names: ``numcodecs.packbits``. Example: ``{"name": "numcodecs.packbits", "configuration": {}}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
from numcodecs.packbits import PackBits

from xzarr3._types import JSON, AnyArray
from xzarr3.codecs.base import ChunkSpec, Configuration
from xzarr3.codecs.numcodecs._filters import Filter
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import ChunkDecodeError, MetadataError


@dataclass(frozen=True)
class NumcodecsPackBitsCodec(Filter):
    """Truth values, eight in a byte; in front of them a byte that tells how many bits are left over."""

    name = "numcodecs.packbits"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        Configuration(cls.name, configuration).finish()
        return cls()

    def _output(self, spec: ChunkSpec) -> np.dtype[Any]:
        if spec.dtype.kind != "b":
            raise MetadataError(
                f"codec '{self.name}' cannot pack data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data type 'bool'",
            )
        return np.dtype(np.uint8)

    @cached_property
    def _coder(self) -> Any:
        return PackBits()

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        data_type = parse_dtype(self._output(spec))
        size = 1 + -(-math.prod(spec.shape) // 8)
        return replace(spec, shape=(size,), data_type=data_type, fill_value=data_type.default_scalar())

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return cast("AnyArray", self._coder.encode(np.ascontiguousarray(array, dtype=bool)))

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        number = math.prod(spec.shape)
        if array[0] != -number % 8:
            raise ChunkDecodeError(
                f"{array[0]} bits left over, expected {-number % 8} for shape {spec.shape}", codec=self.name
            )
        return cast("AnyArray", self._coder.decode(np.ascontiguousarray(array))).reshape(spec.shape)
