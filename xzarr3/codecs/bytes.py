"""``bytes``: stores the elements in C order, little or big endian.

Specification: Zarr v3, "Bytes codec". Names: ``bytes``; ``endian`` in documents of early version 3 writers.
Example: ``{"name": "bytes", "configuration": {"endian": "little"}}``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec
from xzarr3.errors import ChunkDecodeError, MetadataError
from xzarr3.fields import read


@dataclass(frozen=True)
class BytesCodec(ArrayBytesCodec):
    """Stores the elements in C order.

    Parameters
    ----------
    endian : {"little", "big"}, optional
        Byte order of the elements. May be None only for types without a byte order, such as those of one
        byte.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2], serializer=xzarr3.codecs.BytesCodec("big")).serializer
    BytesCodec(endian='big')
    """

    name = "bytes"
    endian: Literal["little", "big"] | None = "little"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        return cls(**{"endian": None, **read(cls, configuration, "codec 'bytes'")})

    def evolve(self, spec: ChunkSpec) -> Self:
        return self if spec.data_type.has_byte_order else replace(self, endian=None)

    def check(self, spec: ChunkSpec) -> None:
        if spec.data_type.is_variable:
            raise MetadataError(
                f"codec 'bytes': the elements of data type '{spec.data_type.name}' have no fixed size",
                found=self.name,
                accepted="a codec made for them: 'vlen-utf8' for strings, 'vlen-bytes' for bytes",
            )
        if self.endian is None and spec.data_type.has_byte_order:
            raise MetadataError(
                f"codec 'bytes': data type '{spec.data_type.name}' needs a byte order",
                field="configuration.endian",
                accepted="'little', 'big'",
            )

    def stored_dtype(self, spec: ChunkSpec) -> np.dtype[np.generic] | None:
        """The dtype of stored elements, with their byte order; None if numpy cannot convert that order."""
        if self.endian is None or self.endian == sys.byteorder:
            return spec.dtype
        if not spec.data_type.numpy_swaps:
            return None
        return spec.dtype.newbyteorder("S")  # swaps all fields of a struct, and nested fields

    def encoded_size(self, spec: ChunkSpec) -> int:
        return spec.nbytes

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return spec.nbytes

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        dtype = self.stored_dtype(spec)
        stored = np.ascontiguousarray(array, dtype=spec.dtype if dtype is None else dtype)
        if dtype is None:
            stored = spec.data_type.swapped(stored)
        return memoryview(stored.reshape(-1).view(np.uint8)) if stored.nbytes else b""

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        if len(data) != spec.nbytes:
            raise ChunkDecodeError(
                f"found {len(data)} bytes, expected {spec.nbytes} for shape {spec.shape} of "
                f"'{spec.data_type.name}'",
                codec=self.name,
            )
        if spec.nbytes == 0:
            return np.empty(spec.shape, spec.dtype)
        dtype = self.stored_dtype(spec)
        if dtype is None:
            return spec.data_type.swapped(np.frombuffer(data, spec.dtype)).reshape(spec.shape)
        return np.frombuffer(data, dtype).reshape(spec.shape)
