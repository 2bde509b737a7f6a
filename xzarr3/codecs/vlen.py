"""``vlen-utf8`` and ``vlen-bytes``: text, as UTF-8, and byte strings of any length, each after its length.

A chunk is the number of its elements, then the elements in C order. Each element is the number of its bytes,
then the bytes. All these numbers are four bytes, little endian. The data type may also be one of fixed
length, as in what zarr-python 3.0 stored in version 2 of the format.

Specification: zarr-extensions, "Vlen-utf8 codec", "Vlen-bytes codec".
Names: ``vlen-utf8``, ``vlen-bytes``. Example: ``{"name": "vlen-utf8"}``.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numcodecs.vlen import VLenBytes, VLenUTF8

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import MAX_VARIABLE, ArrayBytesCodec, ChunkSpec
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError

_LENGTH = 4  # bytes of a length, and of the number of elements
_MAX_NUMBER = 2**32 - 2  # one less than fits, because decoding adds one element; see below

# numcodecs does not report data after the last element. So decoding appends one element of random content,
# which no writer can foresee. If the last decoded element is this one, no data were left over.
_LAST = os.urandom(16).hex().encode()
_LAST_ITEM = len(_LAST).to_bytes(_LENGTH, "little") + _LAST


@dataclass(frozen=True)
class _VLenCodec(ArrayBytesCodec):
    """Stores elements, each after its length."""

    _data_type: ClassVar[str]
    _fixed_type: ClassVar[str]
    _coder: ClassVar[Any]
    _last: ClassVar[str | bytes]
    _unit: ClassVar[int]  # bytes that a character, or a byte, takes in arrays of fixed length

    def check(self, spec: ChunkSpec) -> None:
        self.require_data_type(spec, (self._data_type, self._fixed_type))
        if math.prod(spec.shape) > _MAX_NUMBER:
            raise MetadataError(
                f"codec '{self.name}': a chunk has too many elements",
                found=list(spec.shape),
                accepted=f"chunks of at most {_MAX_NUMBER} elements",
            )

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        if spec.data_type.is_variable:
            return MAX_VARIABLE
        # A character in UTF-8 takes at most 4 bytes, as many as in numpy's UTF-32.
        return min(_LENGTH * (1 + math.prod(spec.shape)) + spec.nbytes, MAX_VARIABLE)

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        values = np.ascontiguousarray(array).reshape(-1).astype(object, copy=False)
        if not values.flags.writeable:  # numcodecs requires a writable buffer
            values = values.copy()
        try:
            size = self._size(values.tolist())
            # numcodecs does not check that lengths fit into 31 bits.
            if size > MAX_VARIABLE:
                raise ChunkEncodeError(
                    f"the chunk takes {size} bytes; at most {MAX_VARIABLE} are possible", codec=self.name
                )
            return self._coder.encode(values)  # type: ignore[no-any-return]
        except (TypeError, AttributeError, UnicodeEncodeError) as error:
            raise ChunkEncodeError(
                f"an element is not of data type '{self._data_type}': {error}", codec=self.name
            ) from error

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        number = math.prod(spec.shape)
        found = int.from_bytes(data[:_LENGTH], "little")
        if found != number or len(data) < _LENGTH * (1 + number):
            raise ChunkDecodeError(
                f"found {len(data)} bytes for {found} elements, expected {number} elements for shape "
                f"{spec.shape}",
                codec=self.name,
            )
        head = (number + 1).to_bytes(_LENGTH, "little")
        try:
            items = self._coder.decode(b"".join([head, memoryview(data)[_LENGTH:], _LAST_ITEM]))
        except ValueError as error:  # includes UnicodeDecodeError
            raise ChunkDecodeError(f"not valid data: {error}", codec=self.name) from error
        if items[-1] != self._last:
            raise ChunkDecodeError(f"bytes remain after the last of the {number} elements", codec=self.name)
        items = items[:-1]
        if not spec.data_type.is_variable:
            longest = max(map(len, items), default=0)
            # numpy would truncate longer elements.
            if longest > spec.dtype.itemsize // self._unit:
                raise ChunkDecodeError(
                    f"found an element of length {longest}, expected '{spec.dtype}'", codec=self.name
                )
        return items.reshape(spec.shape).astype(spec.dtype, copy=False)  # type: ignore[no-any-return]

    @staticmethod
    def _size(items: list[Any]) -> int:
        """Size of the encoded chunk in bytes; may be too small if the true one is within MAX_VARIABLE."""
        return _LENGTH * (1 + len(items)) + sum(map(len, items))


class VLenBytesCodec(_VLenCodec):
    """Stores byte strings of any length.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(2, dtype="bytes").serializer
    VLenBytesCodec()
    """

    name = "vlen-bytes"
    _data_type = "bytes"
    _fixed_type = "null_terminated_bytes"
    _unit = 1
    _coder = VLenBytes()
    _last = _LAST


class VLenUTF8Codec(_VLenCodec):
    """Stores strings of any length as UTF-8.

    Examples
    --------
    >>> import numpy as np
    >>> from xzarr3.codecs import ChunkSpec
    >>> from xzarr3.dtypes import parse_dtype
    >>> spec = ChunkSpec((2,), parse_dtype("string"), "")
    >>> bytes(VLenUTF8Codec().encode(np.array(["a", "bc"], spec.dtype), spec)).hex(" ", -4)
    '02000000 01000000 61020000 006263'
    """

    name = "vlen-utf8"
    _data_type = "string"
    _fixed_type = "fixed_length_utf32"
    _unit = 4
    _coder = VLenUTF8()
    _last = _LAST.decode()

    @staticmethod
    def _size(items: list[Any]) -> int:
        size = _VLenCodec._size(items)
        if 4 * size <= MAX_VARIABLE:  # small enough, as a character takes at most four bytes
            return size
        return _LENGTH * (1 + len(items)) + sum(len(item.encode()) for item in items)
