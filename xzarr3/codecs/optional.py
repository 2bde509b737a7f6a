"""``optional``: stores which elements hold a value, and then only these values.

A chunk is the number of bytes of the encoded mask and that of the encoded values, 8 bytes each, little
endian, then both. The mask has the shape of the chunk; the values have one dimension. Where no element holds
a value there are no bytes of values.

Specification: zarr-extensions, pull request 33, "Optional codec". Names: ``optional``.
Example: ``{"name": "optional", "configuration": {"mask_codecs": [{"name": "packbits"}], "data_codecs":
[{"name": "bytes", "configuration": {"endian": "little"}}]}}``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.parsing import parse_codecs
from xzarr3.codecs.pipeline import CodecChain, chain_of
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.dtypes import Bool
from xzarr3.dtypes.optional import Optional
from xzarr3.errors import ChunkDecodeError, located
from xzarr3.fields import parsed

_LENGTHS = 16  # bytes of the two numbers that a chunk begins with
_LISTS = ("mask_codecs", "data_codecs")


@dataclass(frozen=True)
class OptionalCodec(ArrayBytesCodec):
    """Stores which elements hold a value, and then only these values.

    Parameters
    ----------
    mask_codecs, data_codecs : sequence of codecs
        Encode the mask, which has truth values, and the values. Each in any form that ``parse_codec``
        accepts.

    Examples
    --------
    >>> import numpy as np, xzarr3
    >>> codec = OptionalCodec(["packbits"], ["bytes", "zstd"])
    >>> given = np.ma.masked_equal([3, 0, 5], 0)
    >>> dtype = xzarr3.dtypes.Optional(xzarr3.dtypes.Int64())
    >>> array = xzarr3.array(given, dtype=dtype, serializer=codec, compressors=None)
    >>> array.serializer.data_codecs
    (BytesCodec(endian='little'), ZstdCodec(level=0, checksum=False))
    """

    name = "optional"
    takes_optional: ClassVar[bool] = True
    mask_codecs: tuple[Codec, ...] = parsed(codecs_from_json, "a list of codecs")
    data_codecs: tuple[Codec, ...] = parsed(codecs_from_json, "a list of codecs")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _LISTS:
            object.__setattr__(self, name, parse_codecs(getattr(self, name), Codec))

    def evolve(self, spec: ChunkSpec) -> Self:
        self.check(spec)
        mask, data = self._chains(spec)
        return replace(self, mask_codecs=mask.codecs, data_codecs=data.codecs)

    def check(self, spec: ChunkSpec) -> None:
        self.require_data_type(spec, ("optional",))

    def _chains(self, spec: ChunkSpec) -> tuple[CodecChain, CodecChain]:
        """The codecs of the mask, and of the values if no element is without one."""
        return self._mask_chain(spec), self._data_chain(spec.data_type, math.prod(spec.shape))

    def _mask_chain(self, spec: ChunkSpec) -> CodecChain:
        with located(field="configuration.mask_codecs"):
            return chain_of(self.mask_codecs, spec.shape, Bool())

    def _data_chain(self, data_type: Any, number: int) -> CodecChain:
        inner = cast("Optional", data_type).inner.in_native_order()
        with located(field="configuration.data_codecs"):
            return chain_of(self.data_codecs, (number,), inner)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        mask, data = self._chains(spec)
        return _LENGTHS + mask.max_encoded_size + data.max_encoded_size

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        valid, values = cast("Optional", spec.data_type).split(array)
        mask = self._mask_chain(spec).encode(np.ascontiguousarray(valid).reshape(spec.shape))
        data: Buffer = b""
        if len(values):
            data = self._data_chain(spec.data_type, len(values)).encode(values)
        lengths = [len(part).to_bytes(8, "little") for part in (mask, data)]
        return b"".join([*lengths, mask, data])

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        data_type, view = cast("Optional", spec.data_type), memoryview(data)
        sizes = [int.from_bytes(view[at : at + 8], "little") for at in (0, 8)]
        if len(view) < _LENGTHS or _LENGTHS + sum(sizes) != len(view):
            raise ChunkDecodeError(
                f"found {len(view)} bytes, expected {_LENGTHS} + {sizes[0]} of mask + {sizes[1]} of values",
                codec=self.name,
            )
        end = _LENGTHS + sizes[0]
        valid = self._mask_chain(spec).decode(view[_LENGTHS:end])
        number = int(np.count_nonzero(valid))
        if number:
            return data_type.joined(valid, self._data_chain(data_type, number).decode(view[end:]))
        if sizes[1]:
            raise ChunkDecodeError(
                f"found {sizes[1]} bytes of values, but no element has one", codec=self.name
            )
        return data_type.filled(spec.shape, data_type.default_scalar())
