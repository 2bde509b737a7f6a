"""The filters of numcodecs: codecs from arrays to arrays that change the stored numbers.

The dtypes in a configuration are numpy dtypes. A filter of numcodecs views the bytes of a chunk as elements
of its ``dtype``, whatever the data type of the array is. If the byte order of ``dtype`` is big endian, the
filter sees the elements with their bytes swapped; little endian, or none, leaves them unchanged. The byte
order of ``astype`` means nothing in version 3 of the format, because the ``bytes`` codec decides the stored
byte order.

Specification: zarr-extensions, a document for each name; the documentation of numcodecs. Names:
``numcodecs.astype``, ``numcodecs.bitround``, ``numcodecs.delta``, ``numcodecs.fixedscaleoffset``,
``numcodecs.packbits``, ``numcodecs.quantize``.
Example: ``{"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i2"}}``.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np
from numcodecs.astype import AsType
from numcodecs.delta import Delta
from numcodecs.fixedscaleoffset import FixedScaleOffset
from numcodecs.packbits import PackBits
from numcodecs.quantize import Quantize

from xzarr3._types import JSON, AnyArray
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec, Configuration, parameter
from xzarr3.codecs.bitround import BitRoundCodec
from xzarr3.codecs.numcodecs.base import NumcodecsCodec
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, listed

_MANTISSA = {"float16": 10, "float32": 23, "float64": 52}
_DTYPE = re.compile(r"[<>|=]?[A-Za-z][A-Za-z0-9_]{0,15}(\[[0-9a-zA-Zμ]{1,16}\])?")
_ONE_UNIT = "biufmM"
"""Kinds of dtypes whose elements are single numbers; such dtypes of one size can be viewed as each other."""
_MAX_ITEM_SIZE = 2**14  # bytes of an element; a short dtype name could ask for a very large element
_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError)
"""Exceptions of numpy and numcodecs for values that they cannot convert."""


class Filter(NumcodecsCodec, ArrayArrayCodec):
    """A filter of numcodecs that keeps the shape."""

    @cached_property
    @abstractmethod
    def _coder(self) -> Any:
        """The filter of numcodecs, with dtypes in the byte order of this machine."""

    @abstractmethod
    def _output(self, spec: ChunkSpec) -> np.dtype[Any]:
        """The dtype of encoded arrays; raises MetadataError if the codec cannot encode such chunks."""

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        if spec.data_type.is_variable:
            raise MetadataError(
                f"codec '{self.name}' cannot encode data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data types of fixed size",
            )
        output = self._output(spec)
        data_type = spec.data_type if output == spec.dtype else parse_dtype(output)
        try:
            with np.errstate(all="ignore"):
                one = self._encoded(spec.data_type.filled((1,), spec.fill_value), spec)
            fill = data_type.cast_scalar(one[0])
        except (MetadataError, ChunkEncodeError):
            fill = data_type.default_scalar()
        return replace(spec, data_type=data_type, fill_value=fill)

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return self._encoded(array, spec).reshape(spec.shape)

    def _encoded(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        """The encoded array, with one dimension."""
        # numcodecs encodes elements in memory order.
        values = np.ascontiguousarray(array, dtype=spec.dtype).reshape(-1)
        try:
            encoded: AnyArray = self._coder.encode(self._looked_at(values)) if values.size else values
            return encoded.reshape(-1).view(self._output(spec))
        except _FAILURES as error:
            raise ChunkEncodeError(f"values cannot be encoded: {error}", codec=self.name) from error

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        values = np.ascontiguousarray(array, dtype=self._output(spec)).reshape(-1)
        try:
            decoded: AnyArray = self._coder.decode(values) if values.size else values
            return self._looked_at(decoded).view(spec.dtype).reshape(spec.shape)
        except _FAILURES as error:
            raise ChunkDecodeError(f"values cannot be decoded: {error}", codec=self.name) from error

    def _looked_at(self, values: AnyArray) -> AnyArray:
        """View decoded elements as the filter sees them, or convert them back."""
        return values


@dataclass(frozen=True)
class TypedFilter(Filter):
    """A filter whose configuration has the dtypes of decoded and encoded elements.

    Parameters
    ----------
    dtype : str, optional
        numpy's name for the dtype of decoded elements; by default the dtype of the array.
    astype : str, optional
        numpy's name for the dtype of encoded elements; by default ``dtype``.
    """

    decoded_field: ClassVar[str] = "dtype"
    encoded_field: ClassVar[str] = "astype"
    _kinds: ClassVar[str]
    dtype: str | None = None
    astype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, value in ((self.decoded_field, self.dtype), (self.encoded_field, self.astype)):
            if value is not None:
                self._parsed(field, value)

    def _parsed(self, field: str, value: JSON) -> np.dtype[Any]:
        return self._parsed_as(field, value, self._kinds, "<f8")

    def _parsed_as(self, field: str, value: JSON, kinds: str, example: str) -> np.dtype[Any]:
        accepted = f"a dtype of numpy of one of the kinds {listed(kinds)}, as in '{example}'"
        try:
            if not isinstance(value, str) or not _DTYPE.fullmatch(value):
                raise TypeError("not the name of a dtype")
            dtype = np.dtype(value)
        except (TypeError, ValueError) as error:
            raise Configuration(self.name, {}).error(field, value, accepted) from error
        if dtype.kind not in kinds:
            raise Configuration(self.name, {}).error(
                field, value, accepted, "the codec cannot use this dtype"
            )
        if dtype.itemsize > _MAX_ITEM_SIZE:
            raise Configuration(self.name, {}).error(
                field, value, f"elements of at most {_MAX_ITEM_SIZE} bytes", "an element is too large"
            )
        return dtype

    @classmethod
    def _read(cls, given: Configuration) -> dict[str, Any]:
        names = {"dtype": cls.decoded_field, "astype": cls.encoded_field}
        dtypes = {
            own: given.take(name, "a dtype of numpy")
            for own, name in names.items()
            if given.has(name, null=True)
        }
        return dtypes | super()._read(given)

    def configuration(self) -> dict[str, JSON]:
        dtypes: dict[str, JSON] = {self.decoded_field: self.dtype, self.encoded_field: self.astype}
        return super().configuration() | {name: value for name, value in dtypes.items() if value is not None}

    def evolve(self, spec: ChunkSpec) -> Self:
        return self if self.dtype is not None else replace(self, dtype=spec.dtype.name)

    @cached_property
    def _decoded(self) -> np.dtype[Any]:
        return self._parsed(self.decoded_field, self.dtype).newbyteorder("=")

    @cached_property
    def _encoded_dtype(self) -> np.dtype[Any]:
        return self._decoded if self.astype is None else np.dtype(self.astype).newbyteorder("=")

    @cached_property
    def _swapped(self) -> bool:
        return byte_order(self.dtype) == "big"

    def _output(self, spec: ChunkSpec) -> np.dtype[Any]:
        if self.dtype is None:
            return self.evolve(spec)._output(spec)
        dtype, own = spec.dtype, self._decoded
        if dtype != own and not (
            dtype.itemsize == own.itemsize and dtype.kind in _ONE_UNIT and own.kind in _ONE_UNIT
        ):
            raise Configuration(self.name, {}).error(
                self.decoded_field, self.dtype, f"'{spec.dtype.str}', or numbers of the same size",
                f"elements of data type '{spec.data_type.name}' have another size than this dtype",
            )  # fmt: skip
        return self._encoded_dtype

    def _looked_at(self, values: AnyArray) -> AnyArray:
        if values.dtype != self._decoded:
            values = values.view(self._decoded)
        return values.byteswap() if self._swapped else values


@dataclass(frozen=True)
class DeltaCodec(TypedFilter):
    """Stores the first element, then the difference of each element from the one before it in C order."""

    name = "numcodecs.delta"
    _kinds = "iufc"

    @cached_property
    def _coder(self) -> Any:
        return Delta(self._decoded, self._encoded_dtype)


@dataclass(frozen=True)
class FixedScaleOffsetCodec(TypedFilter):
    """``(x - offset) * scale``, rounded to whole numbers.

    As in numcodecs, numpy decides the result for NaN and for numbers that the encoded dtype cannot hold. The
    codecs ``scale_offset`` and ``cast_value`` refuse such numbers.

    Parameters
    ----------
    offset, scale : int or float
    """

    name = "numcodecs.fixedscaleoffset"
    _kinds = "iuf"
    offset: int | float = parameter(Configuration.number, default=0, required=True)
    scale: int | float = parameter(Configuration.number, default=1, required=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == 0:
            raise Configuration(self.name, {}).error("scale", self.scale, "a finite number other than 0")

    @cached_property
    def _coder(self) -> Any:
        return FixedScaleOffset(self.offset, self.scale, self._decoded, self._encoded_dtype)


@dataclass(frozen=True)
class AsTypeCodec(TypedFilter):
    """Casts to another dtype; numpy decides the result for values that the dtype cannot hold.

    Parameters
    ----------
    dtype : str, optional
        ``decode_dtype`` in the configuration.
    astype : str
        ``encode_dtype`` in the configuration.
    """

    name = "numcodecs.astype"
    decoded_field = "decode_dtype"
    encoded_field = "encode_dtype"
    _kinds = "biufcmMSU"

    def __post_init__(self) -> None:
        super().__post_init__()
        Configuration(self.name, {"encode_dtype": self.astype} if self.astype else {}).take(
            "encode_dtype", "a dtype of numpy, as in '<f4'"
        )

    @cached_property
    def _coder(self) -> Any:
        return AsType(self._encoded_dtype, self._decoded)


@dataclass(frozen=True)
class QuantizeCodec(TypedFilter):
    """Rounds numbers to some decimal digits, so that they compress better.

    Parameters
    ----------
    digits : int
        How many digits after the decimal point are kept.
    """

    name = "numcodecs.quantize"
    _kinds = "f"
    digits: int = parameter(Configuration.integer, -300, 300, default=0, required=True)

    @cached_property
    def _coder(self) -> Any:
        return Quantize(self.digits, self._decoded, self._encoded_dtype)


@dataclass(frozen=True)
class NumcodecsBitRoundCodec(NumcodecsCodec, BitRoundCodec):
    """Rounds floating point numbers to some bits, so that they compress better.

    Parameters
    ----------
    keepbits : int
        How many bits of the mantissa are kept.
    """

    name = "numcodecs.bitround"
    keepbits: int = parameter(Configuration.integer, 0, 52)

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        most = _MANTISSA.get(spec.data_type.name)
        if most is None:
            raise MetadataError(
                f"codec '{self.name}' cannot round data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data type 'float16', 'float32' or 'float64'",
            )
        if self.keepbits > most:
            raise Configuration(self.name, {}).error(
                "keepbits", self.keepbits, f"at most {most} for data type '{spec.data_type.name}'"
            )
        return super().resolve(spec)


@dataclass(frozen=True)
class NumcodecsPackBitsCodec(Filter):
    """Packs eight truth values into a byte. A byte before them holds the number of unused bits."""

    name = "numcodecs.packbits"

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


def byte_order(dtype: str | None) -> str | None:
    """The byte order in the name of a numpy dtype; None if the name has none.

    Examples
    --------
    >>> byte_order(">i4"), byte_order("int32"), byte_order("|u1")
    ('big', None, None)
    """
    if dtype is None or dtype[:1] not in ("<", ">") or np.dtype(dtype).byteorder == "|":
        return None
    return "little" if dtype[0] == "<" else "big"


def in_byte_order(dtype: str, endian: str | None) -> str:
    """The name of the same dtype with byte order ``endian``; None means that of this machine."""
    orders = {"little": "<", "big": ">", None: "="}
    return np.dtype(dtype).newbyteorder(cast("Any", orders[endian])).str
