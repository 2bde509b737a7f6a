"""The filters of numcodecs: codecs from arrays to arrays that change the stored numbers.

The dtypes in a configuration are numpy dtypes. A filter of numcodecs views the bytes of a chunk as elements
of its ``dtype``, whatever the data type of the array is. An array and its filters have one byte order, which
the codec ``bytes`` decides; so the dtypes here are in the byte order of this machine.

Specification: zarr-extensions, a document for each name; the documentation of numcodecs. Names:
``numcodecs.astype``, ``numcodecs.bitround``, ``numcodecs.delta``, ``numcodecs.fixedscaleoffset``,
``numcodecs.packbits``, ``numcodecs.quantize``.
Example: ``{"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i2"}}``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, cast

import numpy as np
from numcodecs import get_codec
from numcodecs.packbits import PackBits

from xzarr3._types import JSON, AnyArray
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec, NumcodecsCodec
from xzarr3.codecs.bitround import MANTISSA, BitRoundCodec
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, listed
from xzarr3.fields import REQUIRED, Meta, Number

_DTYPE = re.compile(r"[<>|=]?[A-Za-z][A-Za-z0-9_]{0,15}(\[[0-9a-zA-Zμ]{1,16}\])?")
_ONE_UNIT = "biufmM"
"""Kinds of dtypes whose elements are single numbers; such dtypes of one size can be viewed as each other."""
_MAX_ITEM_SIZE = 2**14  # bytes of an element; a short dtype name could ask for a very large element
_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError)
"""Exceptions of numpy and numcodecs for values that they cannot convert."""


class Filter(NumcodecsCodec, ArrayArrayCodec):
    """A filter of numcodecs that keeps the shape, and whose configuration has dtypes."""

    dtype_fields: ClassVar[tuple[str, str]] = ("dtype", "astype")
    """The fields with the dtypes of decoded and of encoded elements."""
    _kinds: ClassVar[str]

    @cached_property
    def _coder(self) -> Any:
        """The filter of numcodecs, with dtypes in the byte order of this machine."""
        dtypes = {field: dtype.str for field, dtype in zip(self.dtype_fields, self._dtypes, strict=True)}
        return get_codec({"id": self.name.removeprefix("numcodecs."), **self.configuration(), **dtypes})

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        if spec.data_type.is_variable:
            raise self.refuses_data_type(spec, "data types of fixed size")
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
            encoded: AnyArray = self._coder.encode(values.view(self._dtypes[0])) if values.size else values
            return encoded.reshape(-1).view(self._output(spec))
        except _FAILURES as error:
            raise ChunkEncodeError(f"values cannot be encoded: {error}", codec=self.name) from error

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        values = np.ascontiguousarray(array, dtype=self._output(spec)).reshape(-1)
        try:
            decoded: AnyArray = self._coder.decode(values) if values.size else values
            return decoded.view(spec.dtype).reshape(spec.shape)
        except _FAILURES as error:
            raise ChunkDecodeError(f"values cannot be decoded: {error}", codec=self.name) from error

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in self.dtype_fields:
            if getattr(self, field) is not None:
                self._parsed(field)
        own = getattr(self, self.dtype_fields[0])
        if byte_order(own) == "big":
            raise self.wrong(
                self.dtype_fields[0], own, f"'{in_byte_order(own, 'little')}'",
                "an array and its filters have one byte order, which the codec 'bytes' decides",
            )  # fmt: skip

    def _parsed(self, field: str) -> np.dtype[Any]:
        value = getattr(self, field)
        accepted = f"a dtype of numpy of one of the kinds {listed(self._kinds)}, as in '<f8'"
        try:
            if not _DTYPE.fullmatch(value):
                raise TypeError("not the name of a dtype")
            dtype: np.dtype[Any] = np.dtype(value)
        except (TypeError, ValueError) as error:
            raise self.wrong(field, value, accepted) from error
        if dtype.kind not in self._kinds:
            raise self.wrong(field, value, accepted, "the codec cannot use this dtype")
        if dtype.itemsize > _MAX_ITEM_SIZE:
            accepted = f"elements of at most {_MAX_ITEM_SIZE} bytes"
            raise self.wrong(field, value, accepted, "an element is too large")
        return dtype

    def evolve(self, spec: ChunkSpec) -> Self:
        own = self.dtype_fields[0]
        return (
            self if getattr(self, own) is not None else cast("Any", replace)(self, **{own: spec.dtype.name})
        )

    @cached_property
    def _dtypes(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """The dtypes of decoded and encoded elements, in the byte order of this machine."""
        own, encoded = self.dtype_fields
        decoded = self._parsed(own).newbyteorder("=")
        given = getattr(self, encoded)
        return decoded, decoded if given is None else np.dtype(given).newbyteorder("=")

    def _output(self, spec: ChunkSpec) -> np.dtype[Any]:
        """The dtype of encoded arrays; raises MetadataError if the codec cannot encode such chunks."""
        field = self.dtype_fields[0]
        if getattr(self, field) is None:
            return self.evolve(spec)._output(spec)
        dtype, own = spec.dtype, self._dtypes[0]
        if dtype != own and not (
            dtype.itemsize == own.itemsize and dtype.kind in _ONE_UNIT and own.kind in _ONE_UNIT
        ):
            raise self.wrong(
                field, getattr(self, field), f"'{spec.dtype.str}', or numbers of the same size",
                f"elements of data type '{spec.data_type.name}' have another size than this dtype",
            )  # fmt: skip
        return self._dtypes[1]


@dataclass(frozen=True)
class _Retyped(Filter):
    """A filter with these fields.

    Parameters
    ----------
    dtype : str, optional
        numpy's name for the dtype of decoded elements; by default the dtype of the array.
    astype : str, optional
        numpy's name for the dtype of encoded elements; by default ``dtype``.
    """

    dtype: str | None = None
    astype: str | None = None


@dataclass(frozen=True)
class DeltaCodec(_Retyped):
    """Stores the first element, then the difference of each element from the one before it in C order.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1000, 1001, 1003], filters=xzarr3.codecs.DeltaCodec(dtype="<i8"))[...]
    array([1000, 1001, 1003])
    """

    name = "numcodecs.delta"
    _kinds = "iufc"


@dataclass(frozen=True)
class FixedScaleOffsetCodec(_Retyped):
    """``(x - offset) * scale``, rounded to whole numbers.

    As in numcodecs, numpy decides the result for NaN and for numbers that the encoded dtype cannot hold. The
    codecs ``scale_offset`` and ``cast_value`` refuse such numbers.

    Parameters
    ----------
    offset, scale : int or float

    Examples
    --------
    >>> import xzarr3
    >>> packs = xzarr3.codecs.FixedScaleOffsetCodec(offset=270, scale=10, dtype="<f8", astype="<i2")
    >>> xzarr3.array([271.53, 273.0], filters=packs)[...]
    array([271.5, 273. ])
    """

    name = "numcodecs.fixedscaleoffset"
    _kinds = "iuf"
    offset: Annotated[Number, REQUIRED] = 0
    scale: Annotated[Number, REQUIRED] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == 0:
            raise self.wrong("scale", self.scale, "a finite number other than 0")


@dataclass(frozen=True)
class AsTypeCodec(Filter):
    """Casts to another dtype; numpy decides the result for values that the dtype cannot hold.

    Parameters
    ----------
    decode_dtype : str, optional
        numpy's name for the dtype of decoded elements; by default the dtype of the array.
    encode_dtype : str
        numpy's name for the dtype of encoded elements.

    Examples
    --------
    >>> import xzarr3
    >>> narrow = xzarr3.codecs.AsTypeCodec(encode_dtype="<f4", decode_dtype="<f8")
    >>> xzarr3.array([0.5, 0.1], filters=narrow)[...]
    array([0.5, 0.1])
    """

    name = "numcodecs.astype"
    dtype_fields = ("decode_dtype", "encode_dtype")
    _kinds = "biufcmMSU"
    decode_dtype: str | None = None
    encode_dtype: Annotated[str, REQUIRED] = "<f4"


@dataclass(frozen=True)
class QuantizeCodec(_Retyped):
    """Rounds numbers to some decimal digits, so that they compress better.

    Parameters
    ----------
    digits : int
        How many digits after the decimal point are kept.

    Examples
    --------
    >>> import xzarr3
    >>> rounds = xzarr3.codecs.QuantizeCodec(digits=1, dtype="<f8")
    >>> xzarr3.array([1.2345, 6.789], filters=rounds)[...]
    array([1.25  , 6.8125])
    """

    name = "numcodecs.quantize"
    _kinds = "f"
    digits: Annotated[int, Meta(ge=-300, le=300), REQUIRED] = 0


@dataclass(frozen=True)
class NumcodecsBitRoundCodec(NumcodecsCodec, BitRoundCodec):
    """Rounds floating point numbers to some bits, so that they compress better.

    Parameters
    ----------
    keepbits : int
        How many bits of the mantissa are kept.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1.2345, 6.789], filters=xzarr3.codecs.NumcodecsBitRoundCodec(keepbits=3))[...]
    array([1.25, 7.  ])
    """

    name = "numcodecs.bitround"
    keepbits: Annotated[int, Meta(ge=0, le=52)]

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        self.require_data_type(spec, ("float16", "float32", "float64"))
        most = MANTISSA[spec.data_type.name]
        if self.keepbits > most:
            raise self.wrong(
                "keepbits", self.keepbits, f"at most {most} for data type '{spec.data_type.name}'"
            )
        return super().resolve(spec)


@dataclass(frozen=True)
class NumcodecsPackBitsCodec(NumcodecsCodec, ArrayArrayCodec):
    """Packs eight truth values into a byte. A byte before them holds the number of unused bits.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([True, False], filters=xzarr3.codecs.NumcodecsPackBitsCodec())[...]
    array([ True, False])
    """

    name = "numcodecs.packbits"

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        self.require_data_type(spec, ("bool",))
        data_type = parse_dtype("uint8")
        size = 1 + -(-math.prod(spec.shape) // 8)
        return replace(spec, shape=(size,), data_type=data_type, fill_value=data_type.default_scalar())

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return cast("AnyArray", PackBits().encode(np.ascontiguousarray(array, dtype=bool)))

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        number = math.prod(spec.shape)
        if array[0] != -number % 8:
            raise ChunkDecodeError(
                f"{array[0]} bits left over, expected {-number % 8} for shape {spec.shape}", codec=self.name
            )
        return cast("AnyArray", PackBits().decode(np.ascontiguousarray(array))).reshape(spec.shape)


def byte_order(dtype: object) -> str | None:
    """The byte order in the name of a numpy dtype; None if the name has none.

    Examples
    --------
    >>> byte_order(">i4"), byte_order("int32"), byte_order("|u1")
    ('big', None, None)
    """
    if not isinstance(dtype, str) or dtype[:1] not in ("<", ">") or not _DTYPE.fullmatch(dtype):
        return None
    if np.dtype(dtype).byteorder == "|":
        return None
    return "little" if dtype[0] == "<" else "big"


def in_byte_order(dtype: str, endian: str | None) -> str:
    """The name of the same dtype with byte order ``endian``; None means that of this machine."""
    orders = {"little": "<", "big": ">", None: "="}
    return np.dtype(dtype).newbyteorder(cast("Any", orders[endian])).str


def with_byte_order(codec: Any, endian: str | None) -> dict[str, JSON]:
    """The dtypes in the configuration of a filter, in a byte order; empty for other codecs."""
    if not isinstance(codec, Filter):
        return {}
    named = [(field, getattr(codec, field)) for field in codec.dtype_fields]
    return {field: in_byte_order(name, endian) for field, name in named if name is not None}
