"""``zfp``: compresses numbers with zfp, lossy or lossless, and stores no zfp header.

It needs the optional package zfpy. Integers of fewer than 32 bits are shifted up to 32 bits; float16 becomes
float32. zfp has signed integers only, and the specification does not say how to convert uint32 and uint64.
Here, as in zarrs, they keep their values, and values that do not fit are refused. zfpy decodes all modes. It
encodes mode ``expert`` only with parameters that are the same as one of the other four modes.

Specification: zarr-extensions, "ZFP codec". Names: ``zfp``.
Example: ``{"name": "zfp", "configuration": {"mode": "fixed_accuracy", "tolerance": 0.05}}``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs._library import LibraryCodec
from xzarr3.codecs._zfp import (
    check_bits,
    check_lossy,
    check_tolerance,
    decompress,
    max_encoded_size,
    rate_bits,
)
from xzarr3.codecs.base import ChunkSpec, Configuration, ParameterCodec, parameter
from xzarr3.errors import ChunkEncodeError, MetadataError

_MODES = {
    "reversible": (),
    "fixed_accuracy": ("tolerance",),
    "fixed_rate": ("rate",),
    "fixed_precision": ("precision",),
    "expert": ("minbits", "maxbits", "maxprec", "minexp"),
}
"""The modes, and the parameters that each mode requires; it accepts no others."""
_MIN_EXP, _MAX_BITS, _MAX_PREC = -1074, 16658, 64  # zfp's constants for limits that do not limit anything
_LOSSLESS = _MIN_EXP - 1
_MOST_BITS = 2**15  # most bits of a block that a header can hold
_MOST = 2**31 - 1
_LENGTHS = {1: 2**48, 2: 2**24, 3: 2**16, 4: 2**12}  # longest that a header can hold, by number of dimensions
_TYPES = ("int32", "int64", "float32", "float64")
_AS = {
    "int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "int32": "int32",
    "uint32": "int32", "int64": "int64", "uint64": "int64",
    "float16": "float32", "float32": "float32", "float64": "float64",
}  # fmt: skip
"""The data types, and the dtype that zfp gets for each."""


@dataclass(frozen=True)
class ZfpCodec(ParameterCodec, LibraryCodec):
    """Compression of numbers with zfp.

    Parameters
    ----------
    mode : {"reversible", "fixed_accuracy", "fixed_rate", "fixed_precision", "expert"}
        Decides which other parameters are required. "reversible" is lossless and takes none. The others take
        ``tolerance``, ``rate``, ``precision``, or the last four, in this order.
    tolerance : float, optional
        The largest accepted error, for floating point numbers only. Values that zfp cannot keep within it
        are refused. With 0, zfp keeps as much as it can, which is less near much larger numbers.
    rate : float, optional
        Stored bits for each number.
    precision : int, optional
        Kept bits of each number.
    minbits, maxbits, maxprec, minexp : int, optional
        The least and the most bits of a block, the most bits of a number, and the exponent of its last bit.
    """

    name = "zfp"
    _library = "zfpy"
    _dtypes = tuple(_AS)
    mode: str = parameter(Configuration.choice, tuple(_MODES), default="reversible", required=True)
    tolerance: int | float | None = parameter(Configuration.number, default=None)
    rate: int | float | None = parameter(Configuration.number, default=None)
    precision: int | None = parameter(Configuration.integer, 0, _MOST, default=None)
    minbits: int | None = parameter(Configuration.integer, 0, _MOST_BITS, default=None)
    maxbits: int | None = parameter(Configuration.integer, 1, _MOST, default=None)
    maxprec: int | None = parameter(Configuration.integer, 1, _MOST, default=None)
    minexp: int | None = parameter(Configuration.integer, -_MOST, _MOST, default=None)

    def __post_init__(self) -> None:
        fields = Configuration(self.name, self.configuration())
        needed = _MODES[fields.choice("mode", tuple(_MODES))]
        for name, each in self._parameters():
            if name in needed:
                each.value(fields, name)
        fields.finish()
        if self.tolerance is not None and self.tolerance < 0:
            raise fields.error("tolerance", self.tolerance, "a number of at least 0")
        if self.rate is not None and not 0 < self.rate <= 64:
            raise fields.error("rate", self.rate, "a number above 0, at most 64")
        if self.minbits is not None and self.maxbits is not None and self.maxbits < self.minbits:
            raise fields.error("maxbits", self.maxbits, f"an integer from {self.minbits} to {_MOST}")

    @cached_property
    def _coder(self) -> Any:
        return self._loaded("zfpy")

    def check(self, spec: ChunkSpec) -> None:
        super().check(spec)
        ndim = len(spec.shape)
        if ndim > 4:
            raise MetadataError(
                f"codec '{self.name}' cannot encode {ndim} dimensions",
                found=list(spec.shape),
                accepted="at most 4 dimensions",
            )
        most = _LENGTHS[ndim or 1]
        if max(spec.shape, default=1) > most:
            raise MetadataError(
                f"codec '{self.name}': zfpy cannot decode so large a chunk",
                found=list(spec.shape),
                accepted=f"lengths of at most {most} along each of {ndim} dimensions",
            )
        if self.mode == "fixed_accuracy" and spec.dtype.kind != "f":
            raise Configuration(self.name, {}).error(
                "mode",
                self.mode,
                "another mode",
                f"not possible for integers such as data type '{spec.data_type.name}'",
            )

        shape, dtype = self._field(spec)
        bits, lossless = self._limits(shape, dtype)[1], self._limits(shape, dtype)[3] == _LOSSLESS
        field, found = ("maxbits", self.maxbits) if self.mode == "expert" else ("rate", self.rate)
        check_bits(self.name, field, found, bits - 8 * lossless, dtype)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        shape, dtype = self._field(spec)
        return max_encoded_size(shape, dtype.itemsize, self._limits(shape, dtype)[0])

    @staticmethod
    def _field(spec: ChunkSpec) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array that zfp gets."""
        return spec.shape or (1,), np.dtype(_AS[spec.dtype.name])

    def _limits(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, int, int, int]:
        """The four parameters of mode ``expert`` that are equivalent to this mode."""
        if self.mode == "expert":
            return (
                max(self.minbits or 0, 1),
                min(self.maxbits or 0, _MOST_BITS),
                min(self.maxprec or 0, _MAX_PREC),
                min(max(self.minexp or 0, _LOSSLESS), -_LOSSLESS),
            )
        if self.mode == "fixed_accuracy":
            exponent = math.frexp(self.tolerance)[1] - 1 if self.tolerance else _MIN_EXP
            return 1, _MAX_BITS, _MAX_PREC, max(exponent, _MIN_EXP)
        if self.mode == "fixed_rate":
            bits = rate_bits(self.rate or 0, len(shape))
            return bits, bits, _MAX_PREC, _MIN_EXP
        if self.mode == "fixed_precision":
            return 1, _MAX_BITS, min(self.precision or _MAX_PREC, _MAX_PREC), _MIN_EXP
        return 1, _MAX_BITS, _MAX_PREC, _LOSSLESS

    def _arguments(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
        """The arguments that make zfpy compress in this mode."""
        minbits, maxbits, maxprec, minexp = self._limits(shape, dtype)
        if minbits == maxbits and (maxprec, minexp) == (_MAX_PREC, _MIN_EXP):
            return {"rate": minbits / 4 ** len(shape)}
        if minbits == 1 and maxbits >= _MAX_BITS:
            if minexp == _LOSSLESS and maxprec == _MAX_PREC:
                return {}
            if minexp == _MIN_EXP:
                return {"precision": maxprec}
            if maxprec == _MAX_PREC and dtype.kind == "f" and minexp != _LOSSLESS:
                return {"tolerance": math.ldexp(1, minexp)}
        raise ChunkEncodeError(
            f"zfpy cannot compress in mode 'expert' with {self.configuration()}; use parameters that equal "
            "those of mode 'reversible', 'fixed_accuracy', 'fixed_rate' or 'fixed_precision'",
            codec=self.name,
        )

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        shape, dtype = self._field(spec)
        values = self._promoted(np.ascontiguousarray(array, dtype=spec.dtype), dtype).reshape(shape)
        arguments = self._arguments(shape, dtype)
        if arguments:
            check_lossy(values, self.name)
        try:
            data: bytes = self._coder.compress_numpy(values, write_header=False, **arguments)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise ChunkEncodeError(f"compression failed: {error}", codec=self.name) from error
        if self.mode == "fixed_accuracy":
            check_tolerance(
                values.astype(spec.dtype).astype(dtype), self.tolerance or 0.0, self.name,
                lambda: self.decode(data, spec).reshape(shape).astype(dtype),
            )  # fmt: skip
        return data

    def _promoted(self, values: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
        own, bits = values.dtype, 8 * values.dtype.itemsize
        if own.kind != "u" and own.itemsize == dtype.itemsize:
            return values
        if own.kind == "f":
            return values.astype(dtype)
        if own.itemsize == dtype.itemsize:
            if values.max(initial=0) > np.iinfo(dtype).max:
                raise ChunkEncodeError(
                    f"{values.max()} is more than '{dtype}' can hold, the type in which zfp stores '{own}'",
                    codec=self.name,
                )
            return values.astype(dtype)
        offset = 1 << (bits - 1) if own.kind == "u" else 0
        return (values.astype(dtype) - dtype.type(offset)) << (31 - bits)  # type: ignore[no-any-return]

    @staticmethod
    def _demoted(values: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
        bits = 8 * dtype.itemsize
        if values.dtype == dtype:
            return values
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                return values.astype(dtype)
        if dtype.itemsize < values.dtype.itemsize:
            values = (values >> (31 - bits)) + values.dtype.type(1 << (bits - 1) if dtype.kind == "u" else 0)
        limits = np.iinfo(dtype)
        return values.clip(limits.min, min(limits.max, np.iinfo(values.dtype).max)).astype(dtype)

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        shape, dtype = self._field(spec)
        most = self.max_encoded_size(spec)
        # zfpy decodes only data with a header.
        header = self._header(shape, dtype)
        values = decompress(self._coder, bytes(data), shape, dtype, most, self.name, header)
        return self._demoted(values, spec.dtype).reshape(spec.shape)

    def _header(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """The header of zfp with type, shape and mode; the mode is in its long form."""
        minbits, maxbits, maxprec, minexp = self._limits(shape, dtype)
        mode = minexp + 16495
        for value, bits in ((maxprec - 1, 7), (maxbits - 1, 15), (minbits - 1, 15), (0xFFF, 12)):
            mode = mode << bits | value
        meta = 0
        for length in shape:
            meta = meta << (48 // len(shape)) | (length - 1)
        meta = (meta << 2 | (len(shape) - 1)) << 2 | _TYPES.index(dtype.name)
        return (mode << 52 | meta) << 32 | int.from_bytes(b"zfp\x05", "little")
