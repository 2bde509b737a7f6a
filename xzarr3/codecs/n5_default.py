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
from typing import Literal, Self

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs._casting import INTEGERS
from xzarr3.codecs.base import ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.pipeline import CodecChain, chain_of
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.errors import ChunkDecodeError, located
from xzarr3.fields import parsed

_CODECS = "'transpose', which reverses all dimensions, then 'bytes', big endian, then at most one of bytes"
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
        ndim = len(getattr(self.codecs[0], "order", ())) if self.codecs else 0
        fits = self.codecs[:2] in ((), _first_codecs(ndim, "big"), _first_codecs(ndim, None))
        fits &= len(self.codecs) <= 3 and all(isinstance(codec, BytesBytesCodec) for codec in self.codecs[2:])
        if not fits:
            raise self.wrong("codecs", [codec.to_json() for codec in self.codecs], _CODECS)

    def evolve(self, spec: ChunkSpec) -> Self:
        with located(field="configuration"):
            chain = CodecChain(self.codecs or _first_codecs(len(spec.shape), "big"), spec)
        return replace(self, codecs=chain.codecs)

    def check(self, spec: ChunkSpec) -> None:
        self.require_data_type(spec, (*INTEGERS, "float32", "float64"))
        chain_of(self.codecs, spec.shape, spec.data_type)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return 4 + 4 * len(spec.shape) + chain_of(self.codecs, spec.shape, spec.data_type).max_encoded_size

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        header = struct.pack(f">HH{len(spec.shape)}I", 0, len(spec.shape), *spec.shape)
        return b"".join([header, chain_of(self.codecs, spec.shape, spec.data_type).encode(array)])

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        ndim, size = len(spec.shape), 4 + 4 * len(spec.shape)
        header = bytes(memoryview(data)[:size]).ljust(size, b"\0")
        mode, found, *lengths = struct.unpack(f">HH{ndim}I", header)
        shape = tuple(lengths)
        fits = 0 < math.prod(shape) * spec.dtype.itemsize <= max(spec.nbytes, _MAX_BLOCK)
        if len(data) < size or mode != 0 or found != ndim or not fits:
            raise ChunkDecodeError(
                f"found {len(data)} bytes, a header of N5 with mode {mode}, {found} dimensions, shape "
                f"{shape}; expected mode 0 ('default'), {ndim} dimensions and about {spec.shape}",
                codec=self.name,
            )
        block = chain_of(self.codecs, shape, spec.data_type).decode(memoryview(data)[size:])
        if shape == spec.shape:
            return block
        chunk = spec.data_type.filled(spec.shape, spec.fill_value)
        both = tuple(slice(min(lengths)) for lengths in zip(shape, spec.shape, strict=True))
        chunk[both] = block[both]
        return chunk


def _first_codecs(ndim: int, endian: Literal["big"] | None) -> tuple[Codec, ...]:
    """The codecs that N5 always has."""
    return TransposeCodec(tuple(reversed(range(ndim)))), BytesCodec(endian)
