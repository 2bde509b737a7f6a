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
import numpy.typing as npt

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError
from xzarr3.fields import Meta

_NAME = re.compile(r"(bool)|(complex)?(u?int|b?float)?([0-9]+)(_e[0-9]m[0-9].*)?")
_AT_ONCE = 2**15  # components packed per step; a multiple of eight, so that each step ends with a whole byte
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last_bit is not None and self.last_bit < (self.first_bit or 0):
            raise self.wrong("last_bit", self.last_bit, f"at least 'first_bit', {self.first_bit or 0}")

    def configuration(self) -> dict[str, JSON]:
        return {name: value for name, value in super().configuration().items() if value != "none"}

    def _layout(self, spec: ChunkSpec) -> tuple[int, int, int]:
        """Parts of an element, bits of a part, and one past the last stored bit of a part."""
        match = _NAME.fullmatch(spec.data_type.name)
        if match is None or not any(match.group(1, 2, 3)):
            raise self.refuses_data_type(spec, "truth values, integers, real and complex numbers")
        width, parts = (1, 1) if match[1] else (int(match[4]) // (2 if match[2] else 1), 2 if match[2] else 1)
        for field in ("first_bit", "last_bit"):
            if (getattr(self, field) or 0) >= width:
                raise self.wrong(
                    field, getattr(self, field),
                    f"at most {width - 1} for data type '{spec.data_type.name}'",
                )  # fmt: skip
        return parts, width, width if self.last_bit is None else self.last_bit + 1

    def check(self, spec: ChunkSpec) -> None:
        self._layout(spec)

    def _bits(self, spec: ChunkSpec) -> int:
        parts, _, end = self._layout(spec)
        return math.prod(spec.shape) * parts * (end - (self.first_bit or 0))

    def encoded_size(self, spec: ChunkSpec) -> int | None:
        return None if self._may_lack_padding(spec) else self.max_encoded_size(spec)

    def _may_lack_padding(self, spec: ChunkSpec) -> bool:
        """Whether data may lack the padding byte: zarrs omits it if elements are stored as whole bytes."""
        _, width, end = self._layout(spec)
        return self.padding_encoding != "none" and end - (self.first_bit or 0) == width and width % 8 == 0

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return -(-self._bits(spec) // 8) + (self.padding_encoding != "none")

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        parts, width, end = self._layout(spec)
        first, size = self.first_bit or 0, spec.dtype.itemsize // parts
        values = np.ascontiguousarray(array, dtype=spec.dtype).reshape(-1).view(f"u{size}")
        packed = []
        for start in range(0, len(values), _AT_ONCE):
            octets = values[start : start + _AT_ONCE].astype(f"<u{size}").view(np.uint8).reshape(-1, size)
            bits = np.unpackbits(octets, axis=1, bitorder="little")
            kept = bits[:, first:end]
            if not np.array_equal(self._extended(kept, spec)[:, first:width], bits[:, first:width]):
                raise ChunkEncodeError(
                    f"bit {end} of an element, or a later one, would be lost: decoding fills it in "
                    "differently",
                    codec=self.name,
                )
            packed.append(np.packbits(kept, bitorder="little").tobytes())
        if self.padding_encoding != "none":
            padding = bytes([-self._bits(spec) % 8])
            packed.insert(0 if self.padding_encoding == "first_byte" else len(packed), padding)
        return b"".join(packed)

    def _extended(self, kept: npt.NDArray[np.uint8], spec: ChunkSpec) -> npt.NDArray[np.uint8]:
        """All bits of elements from the stored ones; the bits above those repeat the sign of an integer."""
        parts, width, end = self._layout(spec)
        bits = np.zeros((len(kept), 8 * spec.dtype.itemsize // parts), np.uint8)
        bits[:, self.first_bit or 0 : end] = kept
        if spec.data_type.name.startswith("int"):
            bits[:, end:width] = kept[:, -1:]
        return bits

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        parts, _, end = self._layout(spec)
        number, size = end - (self.first_bit or 0), spec.dtype.itemsize // parts
        packed = self._checked(np.frombuffer(data, np.uint8), spec)
        values = np.empty(math.prod(spec.shape) * parts, f"u{size}")
        for start in range(0, len(values), _AT_ONCE):
            part = values[start : start + _AT_ONCE]
            octets = packed[start * number // 8 :][: -(-len(part) * number // 8)]
            bits = np.unpackbits(octets, bitorder="little")
            every = self._extended(bits[: len(part) * number].reshape(-1, number), spec)
            part[...] = np.packbits(every, axis=1, bitorder="little").view(f"<u{size}").reshape(-1)
        return values.view(spec.dtype).reshape(spec.shape)

    def _checked(self, packed: npt.NDArray[np.uint8], spec: ChunkSpec) -> npt.NDArray[np.uint8]:
        """Check the sizes and remove the padding byte."""
        size, left = -(-self._bits(spec) // 8), -self._bits(spec) % 8
        if len(packed) == size and (self._may_lack_padding(spec) or self.padding_encoding == "none"):
            return packed
        at = 0 if self.padding_encoding == "first_byte" else -1
        if len(packed) != self.max_encoded_size(spec) or packed[at] != left:
            raise ChunkDecodeError(
                f"found {len(packed)} bytes, expected {self.max_encoded_size(spec)} with {left} bits left "
                f"over for shape {spec.shape} of '{spec.data_type.name}'",
                codec=self.name,
            )
        return packed[1:] if at == 0 else packed[:-1]
