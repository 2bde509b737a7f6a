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

import numpy as np
import numpy.typing as npt

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec, Configuration, ParameterCodec, parameter
from xzarr3.dtypes import ZDType
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError

_PADDINGS = ("first_byte", "last_byte", "none")
_NAME = re.compile(r"(complex)?_?(u?int|b?float)?([0-9]+)(_e[0-9]m[0-9].*)?")
_AT_ONCE = 2**15  # components packed per step; a multiple of eight, so that each step ends with a whole byte


@dataclass(frozen=True)
class _Component:
    """The components of an element: itself, or the two parts of a complex number."""

    width: int  # bits
    number: int  # components of an element
    signed: bool


def _component(data_type: ZDType) -> _Component | None:
    """The components of the elements of a data type; None if they cannot be packed."""
    name = data_type.name
    if name == "bool":
        return _Component(1, 1, False)
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    width, parts = int(match[3]), 1
    if match[1]:
        parts = 2
        width //= 1 if match[2] else 2  # complex64 has two parts of 32 bits; other names give bits of a part
    elif not match[2]:
        return None
    return _Component(width, parts, match[2] == "int")


@dataclass(frozen=True)
class PackBitsCodec(ParameterCodec, ArrayBytesCodec):
    """Packs elements of a few bits.

    Parameters
    ----------
    padding_encoding : {"none", "first_byte", "last_byte"}
        Position of an extra byte that holds the number of unused bits in the last byte of elements.
    first_bit, last_bit : int, optional
        The first and last stored bit of an element, or of each part of a complex one; by default all bits.
    """

    name = "packbits"
    padding_encoding: str = parameter(Configuration.choice, _PADDINGS, default="none")
    first_bit: int | None = parameter(Configuration.integer, 0, 63, default=None, null=True)
    last_bit: int | None = parameter(Configuration.integer, 0, 63, default=None, null=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last_bit is not None and self.last_bit < (self.first_bit or 0):
            raise Configuration(self.name, {}).error(
                "last_bit", self.last_bit, f"at least 'first_bit', {self.first_bit or 0}"
            )

    def configuration(self) -> dict[str, JSON]:
        given = super().configuration()
        return {name: value for name, value in given.items() if value != "none"}

    def check(self, spec: ChunkSpec) -> None:
        component = _component(spec.data_type)
        if component is None:
            raise MetadataError(
                f"codec '{self.name}' cannot pack data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data types of truth values, integers, real and complex numbers",
            )
        for field, value in (("first_bit", self.first_bit), ("last_bit", self.last_bit)):
            if value is not None and value >= component.width:
                raise Configuration(self.name, {}).error(
                    field, value, f"at most {component.width - 1} for data type '{spec.data_type.name}'"
                )

    def _layout(self, spec: ChunkSpec) -> tuple[_Component, int, int]:
        """The components of an element, their first stored bit, and their number of stored bits."""
        component = _component(spec.data_type)
        if component is None:
            raise TypeError(f"data type '{spec.data_type.name}' cannot be packed")
        first = self.first_bit or 0
        return component, first, (component.width if self.last_bit is None else self.last_bit + 1) - first

    def _bits(self, spec: ChunkSpec) -> int:
        component, _, bits = self._layout(spec)
        return math.prod(spec.shape) * component.number * bits

    def encoded_size(self, spec: ChunkSpec) -> int | None:
        return None if self._may_lack_padding(spec) else self.max_encoded_size(spec)

    def _may_lack_padding(self, spec: ChunkSpec) -> bool:
        """Whether data may lack the padding byte: zarrs omits it if elements are stored as whole bytes."""
        component, _, bits = self._layout(spec)
        return self.padding_encoding != "none" and bits == component.width and bits % 8 == 0

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return -(-self._bits(spec) // 8) + (self.padding_encoding != "none")

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        component, first, bits = self._layout(spec)
        values = np.ascontiguousarray(array, dtype=spec.dtype).reshape(-1)
        numbers = values.view(f"u{spec.dtype.itemsize // component.number}")
        parts = [
            self._packed(numbers[start : start + _AT_ONCE], component, first, bits).tobytes()
            for start in range(0, len(numbers), _AT_ONCE)
        ]
        if self.padding_encoding != "none":
            padding = bytes([-self._bits(spec) % 8])
            parts.insert(0 if self.padding_encoding == "first_byte" else len(parts), padding)
        return b"".join(parts)

    def _packed(
        self, numbers: npt.NDArray[np.unsignedinteger], component: _Component, first: int, bits: int
    ) -> npt.NDArray[np.uint8]:
        size = numbers.dtype.itemsize
        shifted = numbers >> numbers.dtype.type(first)
        kept = _placed(shifted, component, first, bits)
        unused = numbers.dtype.type(8 * size - component.width)
        lost = ((kept ^ numbers) << unused) >> unused >> numbers.dtype.type(first)
        if lost.any():
            raise ChunkEncodeError(
                f"bit {first + bits} of an element, or a later one, would be lost: decoding fills it in "
                "differently",
                codec=self.name,
            )
        if bits == 1:
            return np.packbits(shifted & numbers.dtype.type(1), bitorder="little")
        octets = shifted.astype(numbers.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, size)
        every = np.unpackbits(octets, axis=1, count=bits, bitorder="little")
        return np.packbits(every, bitorder="little")

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        component, first, bits = self._layout(spec)
        packed = self._checked(np.frombuffer(data, np.uint8), spec)
        size = spec.dtype.itemsize // component.number
        numbers = np.empty(math.prod(spec.shape) * component.number, f"u{size}")
        for start in range(0, len(numbers), _AT_ONCE):
            part = numbers[start : start + _AT_ONCE]
            every = np.unpackbits(packed[start * bits // 8 :][: -(-len(part) * bits // 8)], bitorder="little")
            every = every[: len(part) * bits]
            if bits > 1:
                octets = np.zeros((len(part), size), np.uint8)
                rows = np.packbits(every.reshape(-1, bits), axis=1, bitorder="little")
                octets[:, : rows.shape[1]] = rows
                every = octets.reshape(-1).view(numbers.dtype.newbyteorder("<"))
            part[...] = _placed(every.astype(numbers.dtype), component, first, bits)
        return numbers.view(spec.dtype).reshape(spec.shape)

    def _checked(self, packed: npt.NDArray[np.uint8], spec: ChunkSpec) -> npt.NDArray[np.uint8]:
        """Check the sizes and remove the padding byte."""
        size, left = -(-self._bits(spec) // 8), -self._bits(spec) % 8
        if len(packed) == size and self._may_lack_padding(spec):
            return packed
        if len(packed) != self.max_encoded_size(spec):
            raise ChunkDecodeError(
                f"found {len(packed)} bytes, expected {self.max_encoded_size(spec)} for shape {spec.shape} "
                f"of '{spec.data_type.name}'",
                codec=self.name,
            )
        if self.padding_encoding == "none":
            return packed
        at = 0 if self.padding_encoding == "first_byte" else -1
        if packed[at] != left:
            raise ChunkDecodeError(
                f"{packed[at]} bits left over, expected {left} for shape {spec.shape} of "
                f"'{spec.data_type.name}'",
                codec=self.name,
            )
        return packed[1:] if at == 0 else packed[:-1]


def _placed(
    numbers: npt.NDArray[np.unsignedinteger], component: _Component, first: int, bits: int
) -> npt.NDArray[np.unsignedinteger]:
    """The decoded components, from numbers whose lowest ``bits`` bits are the stored ones."""
    kind, whole = numbers.dtype.type, 8 * numbers.dtype.itemsize
    upper = numbers << kind(whole - bits)
    if component.signed:
        signed = upper.view(f"i{numbers.dtype.itemsize}")
        extended = (signed >> signed.dtype.type(whole - bits)).view(numbers.dtype)
    else:
        extended = upper >> kind(whole - bits)
    unused = kind(whole - component.width)
    result: npt.NDArray[np.unsignedinteger] = (extended << kind(first)) << unused >> unused
    return result
