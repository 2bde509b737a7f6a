"""``n5_default``: N5 blocks in default mode, which are a header with the shape of the block, then elements.

Specification: zarr-extensions, "N5 Default codec". Names: ``n5_default``.
Example: ``{"name": "n5_default", "configuration": {"codecs": [{"name": "transpose", "configuration":
{"order": [1, 0]}}, {"name": "bytes", "configuration": {"endian": "big"}}, {"name": "gzip", "configuration":
{"level": 5}}]}}``.

Blocks are written with the shape of their chunk. Blocks of other writers may be smaller or larger than the
chunk; the Java library writes smaller blocks at the end of an array. If a block is smaller, the rest of the
chunk is the fill value. If it is larger, the rest of the block is ignored. N5 software finds the blocks only
if the chunk key encoding is ``v2`` with ``/``.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.dtypes import ZDType
from xzarr3.errors import ChunkDecodeError, MetadataError, located
from xzarr3.fields import parsed

_DATA_TYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64",
)  # fmt: skip
_CODECS = "'transpose', which reverses all dimensions, then 'bytes', big endian, then at most one of bytes"
_MODES = {0: "default", 1: "varlength", 2: "object"}
# Largest size of a block in bytes, unless its chunk is larger. A header alone must not fill the memory.
_MAX_BLOCK = 2**26


@dataclass(frozen=True)
class N5DefaultCodec(ArrayBytesCodec):
    """Stores chunks as N5 blocks.

    Parameters
    ----------
    codecs : tuple of Codec
        ``transpose``, which reverses all dimensions, then ``bytes``, big endian, then at most one codec from
        bytes to bytes. By default ``transpose`` and ``bytes``.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([[1, 2], [3, 4]], serializer=xzarr3.codecs.N5DefaultCodec())[...]
    array([[1, 2],
           [3, 4]])
    """

    name = "n5_default"
    codecs: tuple[Codec, ...] = parsed(codecs_from_json, _CODECS, required=True, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "codecs", tuple(self.codecs))
        if self.codecs and not (
            2 <= len(self.codecs) <= 3
            and isinstance(self.codecs[0], TransposeCodec)
            and isinstance(self.codecs[1], BytesCodec)
            and self.codecs[1].endian in ("big", None)
            and all(isinstance(codec, BytesBytesCodec) for codec in self.codecs[2:])
            and self.codecs[0].order == tuple(range(len(self.codecs[0].order)))[::-1]
        ):
            raise self.wrong("codecs", [codec.to_json() for codec in self.codecs], _CODECS)

    def evolve(self, spec: ChunkSpec) -> Self:
        reverse = TransposeCodec(tuple(range(len(spec.shape)))[::-1])
        codecs = self.codecs or (reverse, BytesCodec("big"))
        with located(field="configuration"):
            return replace(self, codecs=CodecChain(codecs, spec).codecs)

    def check(self, spec: ChunkSpec) -> None:
        self.require_data_type(spec, _DATA_TYPES)
        if any(length >= 2**32 for length in spec.shape):
            raise MetadataError(
                f"codec '{self.name}': N5 cannot hold blocks of this shape",
                found=list(spec.shape),
                accepted="lengths below 2^32",
            )
        _chain(self.codecs, spec.data_type, spec.shape)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return 4 + 4 * len(spec.shape) + _chain(self.codecs, spec.data_type, spec.shape).max_encoded_size

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        header = struct.pack(f">HH{len(spec.shape)}I", 0, len(spec.shape), *spec.shape)
        return b"".join([header, _chain(self.codecs, spec.data_type, spec.shape).encode(array)])

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        shape = self._block_shape(data, spec)
        block = _chain(self.codecs, spec.data_type, shape).decode(memoryview(data)[4 + 4 * len(shape) :])
        if shape == spec.shape:
            return block
        chunk = spec.data_type.filled(spec.shape, spec.fill_value)
        both = tuple(slice(min(lengths)) for lengths in zip(shape, spec.shape, strict=True))
        chunk[both] = block[both]
        return chunk

    def _block_shape(self, data: Buffer, spec: ChunkSpec) -> tuple[int, ...]:
        """The shape of a block, from its header."""
        ndim, size = len(spec.shape), 4 + 4 * len(spec.shape)
        header = bytes(memoryview(data)[:size]).ljust(size, b"\0")
        mode, found, *shape = struct.unpack(f">HH{ndim}I", header)
        fits = 0 < math.prod(shape) * spec.dtype.itemsize <= max(spec.nbytes, _MAX_BLOCK)
        if len(data) < size or mode != 0 or found != ndim or not fits:
            raise ChunkDecodeError(
                f"found {len(data)} bytes, a header of N5 with mode {mode} "
                f"({_MODES.get(mode, 'unknown')}), {found} dimensions, shape {tuple(shape)}; expected mode "
                f"0, {ndim} dimensions and a shape of about {spec.shape}",
                codec=self.name,
            )
        return tuple(shape)


@lru_cache(maxsize=128)
def _chain(codecs: tuple[Codec, ...], data_type: ZDType, shape: tuple[int, ...]) -> CodecChain:
    """The codecs bound to blocks of this shape. None of them uses the fill value."""
    return CodecChain(codecs, ChunkSpec(shape, data_type, data_type.default_scalar()))
