"""``packbits``: stores only the significant bits of each element, packed without gaps.

Specification: zarr-extensions, "packbits codec". Names: ``packbits``. ``numcodecs.packbits`` is another
codec: a filter that begins with the most significant bit of a byte.
Example: ``{"name": "packbits", "configuration": {"padding_encoding": "first_byte"}}``.

The least significant bit comes first, in elements and in bytes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError
from xzarr3.fields import Meta

_NAME = re.compile(r"bool|(?:(complex)|u?int|b?float)([0-9]+)(?:_e[0-9]m[0-9].*)?")
_Bit = Annotated[int, Meta(ge=0, le=63)]


@dataclass(frozen=True)
class PackBitsCodec(ArrayBytesCodec):
    """Packs elements of a few bits.

    Parameters
    ----------
    padding_encoding : {"none", "first_byte", "last_byte"}
        Position of an extra byte that holds the number of unused bits in the last byte of elements.
    first_bit, last_bit : int, optional
        The first and last stored bit of an element, or of each part of a complex one; by default all bits.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([True, False], serializer=xzarr3.codecs.PackBitsCodec())[...]
    array([ True, False])
    """

    name = "packbits"
    _null_is_absence = True
    padding_encoding: Literal["first_byte", "last_byte", "none"] = "none"
    first_bit: _Bit | None = None
    last_bit: _Bit | None = None

    def configuration(self) -> dict[str, JSON]:
        return {name: value for name, value in super().configuration().items() if value != "none"}

    def _layout(self, spec: ChunkSpec) -> tuple[int, int, int, int]:
        """Parts of an element; bits of a part, its first stored bit, and one past the last."""
        match = _NAME.fullmatch(spec.data_type.name)
        if match is None:
            raise self.refuses_data_type(spec, "truth values, integers, real and complex numbers")
        parts = 2 if match[1] else 1
        width, first = int(match[2] or 1) // parts, self.first_bit or 0
        last = width - 1 if self.last_bit is None else self.last_bit
        for field, bit, most in (("last_bit", last, width - 1), ("first_bit", first, last)):
            if bit > most:
                raise self.wrong(field, bit, f"at most {most} for data type '{spec.data_type.name}'")
        return parts, width, first, last + 1

    def check(self, spec: ChunkSpec) -> None:
        self._layout(spec)

    def _bits(self, spec: ChunkSpec) -> int:
        parts, _, first, end = self._layout(spec)
        return math.prod(spec.shape) * parts * (end - first)

    def _may_lack_padding(self, spec: ChunkSpec) -> bool:
        """Whether data may lack the padding byte: zarrs omits it if elements are stored as whole bytes."""
        _, width, first, end = self._layout(spec)
        return self.padding_encoding != "none" and end - first == width and width % 8 == 0

    def encoded_size(self, spec: ChunkSpec) -> int | None:
        return None if self._may_lack_padding(spec) else self.max_encoded_size(spec)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return -(-self._bits(spec) // 8) + (self.padding_encoding != "none")

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        parts, width, first, end = self._layout(spec)
        size = spec.dtype.itemsize // parts
        values = np.ascontiguousarray(array, dtype=spec.dtype).reshape(-1).view(f"u{size}")
        kept = values >> first & 2 ** (end - first) - 1
        if ((self._extended(kept, spec) ^ values) >> first & 2 ** (width - first) - 1).any():
            why = f"bit {end} of an element, or a later one, would be lost: decoding fills it in differently"
            raise ChunkEncodeError(why, codec=self.name)
        octets = kept.astype(f"<u{size}").view(np.uint8).reshape(-1, size)
        bits = np.unpackbits(octets, axis=1, count=end - first, bitorder="little")
        packed = np.packbits(bits, bitorder="little").tobytes()
        padding = bytes([-self._bits(spec) % 8])
        padded = {"first_byte": padding + packed, "last_byte": packed + padding}
        return padded.get(self.padding_encoding, packed)

    def _extended(self, kept: AnyArray, spec: ChunkSpec) -> AnyArray:
        """Elements from their stored bits; the bits above those repeat the sign of an integer."""
        _, width, first, end = self._layout(spec)
        sign = kept >> (end - first - 1) & 1 if spec.data_type.name.startswith("int") else kept & 0
        return kept << first | sign * (2**width - 2**end)  # type: ignore[no-any-return]

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        parts, _, first, end = self._layout(spec)
        number, size = end - first, spec.dtype.itemsize // parts
        packed = self._unpadded(np.frombuffer(data, np.uint8), spec)
        elements = math.prod(spec.shape) * parts
        bits = np.unpackbits(packed, count=elements * number, bitorder="little").reshape(elements, number)
        kept = np.zeros((elements, size), np.uint8)
        kept[:, : -(-number // 8)] = np.packbits(bits, axis=1, bitorder="little")
        values = self._extended(kept.reshape(-1).view(f"<u{size}").astype(f"u{size}"), spec)
        return values.view(spec.dtype).reshape(spec.shape)

    def _unpadded(self, packed: AnyArray, spec: ChunkSpec) -> AnyArray:
        """The bytes of elements alone, of the expected number."""
        size, left, most = -(-self._bits(spec) // 8), -self._bits(spec) % 8, self.max_encoded_size(spec)
        if len(packed) == size and (self._may_lack_padding(spec) or self.padding_encoding == "none"):
            return packed
        at = 0 if self.padding_encoding == "first_byte" else -1
        if len(packed) != most or packed[at] != left:
            why = f"found {len(packed)} bytes, expected {most} with {left} bits left over for {spec.shape}"
            raise ChunkDecodeError(why, codec=self.name)
        return packed[1:] if at == 0 else packed[:-1]
