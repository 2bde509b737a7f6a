"""``zfp``, without zfp's header, and ``numcodecs.zfpy``, with it: compress numbers, lossy or lossless.

They need the optional package zfpy. In ``zfp``, integers of fewer than 32 bits are shifted up to 32 bits, and
float16 becomes float32. zfp has signed integers only, and the specification does not say how to convert
uint32 and uint64. Here, as in zarrs, they keep their values, and values that do not fit are refused. Mode
``expert`` is only read.

Specification: zarr-extensions, "ZFP codec", "numcodecs.zfpy". Names: ``zfp``, ``numcodecs.zfpy``.
Example: ``{"name": "zfp", "configuration": {"mode": "fixed_accuracy", "tolerance": 0.05}}``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec
from xzarr3.codecs.numcodecs.base import NumcodecsCodec
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError
from xzarr3.fields import REQUIRED, Meta, Number

_MODES: dict[str, tuple[str, ...]] = {
    "reversible": (),
    "fixed_accuracy": ("tolerance",),
    "fixed_rate": ("rate",),
    "fixed_precision": ("precision",),
    "expert": ("minbits", "maxbits", "maxprec", "minexp"),
}
"""The modes, and the parameters that each mode requires; it accepts no others."""
_MIN_EXP, _MAX_BITS, _MAX_PREC = -1074, 16658, 64  # zfp's constants for limits that do not limit anything
_LOSSLESS = _MIN_EXP - 1
_MOST_BITS, _MOST = 2**15, 2**31 - 1  # most bits of a block that a header can hold
_LENGTHS = {1: 2**48, 2: 2**24, 3: 2**16, 4: 2**12}  # longest that a header can hold, by number of dimensions
_TYPES = ("int32", "int64", "float32", "float64")
_AS: dict[str, tuple[str, int, int]] = {
    "int8": ("int32", 0, 23), "uint8": ("int32", 2**7, 23), "int16": ("int32", 0, 15),
    "uint16": ("int32", 2**15, 15), "uint32": ("int32", 0, 0), "uint64": ("int64", 0, 0),
    "float16": ("float32", 0, 0), **{name: (name, 0, 0) for name in _TYPES},
}  # fmt: skip
"""The data types: the dtype that zfp gets, what is subtracted from integers, and how far they are shifted."""
_LEAST_BITS = {"float32": 1 + 8, "float64": 1 + 11}  # with fewer for a block, zfp writes beyond its memory
_LARGEST = {"int32": 2**30, "int64": 2**62}
_SURE = {"float32": 2.0**-20, "float64": 2.0**-48}  # bound of errors, relative to the largest number
_HEADER_BITS, _HEADER = 32 + 52 + 64, 32  # magic number, type and shape, mode in its long form; in bytes
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, OverflowError)


class _Zfp(ArrayBytesCodec):
    """What both codecs have in common."""

    _data_types: ClassVar[tuple[str, ...]]
    _dimensions: ClassVar[tuple[int, int]]
    _has_header: ClassVar[bool]

    @property
    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """The arguments that make zfpy compress in this mode; none is lossless."""

    @property
    def _zfpy(self) -> Any:
        return self.optional_module("zfpy", "zfpy")

    def _limits(self, ndim: int) -> tuple[int, int, int, int]:
        """The four parameters of zfp for this mode: minbits, maxbits, maxprec, minexp."""
        given = self._arguments
        if "rate" in given:
            bits = math.floor(given["rate"] * 4**ndim + 0.5)
            return bits, bits, _MAX_PREC, _MIN_EXP
        if "tolerance" in given:
            exponent = math.frexp(given["tolerance"])[1] - 1 if given["tolerance"] else _MIN_EXP
            return 1, _MAX_BITS, _MAX_PREC, max(exponent, _MIN_EXP)
        precision = min(given.get("precision") or _MAX_PREC, _MAX_PREC)
        return 1, _MAX_BITS, precision, _MIN_EXP if given else _LOSSLESS

    @staticmethod
    def _field(spec: ChunkSpec) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array that zfp gets."""
        return spec.shape or (1,), np.dtype(_AS[spec.dtype.name][0])

    def check(self, spec: ChunkSpec) -> None:
        self.require_data_type(spec, self._data_types)
        _ = self._zfpy
        least, most = self._dimensions
        ndim = len(spec.shape)
        if not least <= ndim <= most or max(spec.shape, default=1) > _LENGTHS[ndim or 1]:
            raise MetadataError(
                f"codec '{self.name}' cannot encode chunks of this shape", found=list(spec.shape),
                accepted=f"{least} to {most} dimensions, with lengths of at most {_LENGTHS}",
            )  # fmt: skip
        if self._arguments.get("tolerance") is not None and spec.dtype.kind != "f" and not self._has_header:
            raise self.wrong("mode", "fixed_accuracy", "another mode", "not possible for integers")
        shape, dtype = self._field(spec)
        _, bits, _, minexp = self._limits(len(shape))
        if bits - 8 * (minexp == _LOSSLESS) < _LEAST_BITS.get(dtype.name, 1):
            accepted = f"at least {_LEAST_BITS.get(dtype.name, 1)} bits for a block of '{dtype}'"
            field = "rate" if self._arguments else "maxbits"
            raise self.wrong(field, getattr(self, field), accepted, f"{bits} bits are too few for a block")

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        shape, dtype = self._field(spec)
        bits: int = max(4 ** len(shape) * (8 * dtype.itemsize + 1), self._limits(len(shape))[0]) + 64
        return _HEADER + -(-bits * _blocks(shape) // 8)

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        shape, dtype = self._field(spec)
        values = np.ascontiguousarray(array, dtype=spec.dtype).reshape(shape)
        if values.dtype.kind == "u" and values.max(initial=0) > np.iinfo(dtype).max:
            raise ChunkEncodeError(
                f"{values.max()} is more than '{dtype}' can hold, the type in which zfp stores it",
                codec=self.name,
            )
        _, offset, shift = _AS[spec.dtype.name]
        values = values.astype(dtype)
        if shift:
            values = (values - dtype.type(offset)) << shift
        arguments = self._arguments
        self._refuse_lost(values if arguments else values[:0])
        try:
            data: bytes = self._zfpy.compress_numpy(values, write_header=self._has_header, **arguments)
        except _FAILURES as error:
            raise ChunkEncodeError(f"compression failed: {error}", codec=self.name) from error
        tolerance, largest = arguments.get("tolerance"), float(np.abs(values).max(initial=0))
        # With 0, zfp keeps as much as it can, which may not be all.
        if tolerance and dtype.kind == "f" and largest * _SURE[dtype.name] > tolerance:
            decoded = self.decode(data, spec).reshape(shape).astype("f8")
            error_found = np.abs(decoded - values.astype(spec.dtype).astype("f8")).max(initial=0)
            if error_found > tolerance:
                raise ChunkEncodeError(
                    f"zfp does not keep the tolerance of {tolerance} beside numbers as large as "
                    f"{largest:g}: found an error of {error_found:g}; choose a larger tolerance, lossless "
                    "compression, or a fill value as small as the data: it fills parts past the edges",
                    codec=self.name,
                )
        return data

    def _refuse_lost(self, values: AnyArray) -> None:
        """Refuse values that every lossy mode would decode wrongly: NaN, infinity and very large integers."""
        if values.dtype.kind == "f":
            lost, what = not np.isfinite(values).all(), "NaN and infinity"
            advice = (
                "replace them with finite numbers, and choose a finite fill value: it fills the parts of "
                "chunks past the edges"
            )
        else:
            most = _LARGEST[values.dtype.name]
            found = values.min(initial=0), values.max(initial=0)
            lost, what = found[0] < -most or found[1] > most, f"integers of '{values.dtype}' beyond {most}"
            advice = f"found {found[0]} to {found[1]}"
        if lost:
            raise ChunkEncodeError(f"zfp keeps {what} only if it is lossless; {advice}", codec=self.name)

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        shape, dtype = self._field(spec)
        most = self.max_encoded_size(spec)
        if len(data) > most:
            raise ChunkDecodeError(f"found {len(data)} bytes; at most {most} are possible", codec=self.name)
        # zfp reads beyond the end of data that are too short. So the data are padded with as many bytes as
        # zfp could read. It does not report whether it read the padding, so the data are decoded twice with
        # different padding: results that differ mean that the data are too short.
        results = []
        for filler in (b"\x00", b"\xff"):
            padded = bytes(data) + filler * (most + 64)
            if not self._has_header:  # a header is not a whole number of bytes, so the bits are shifted
                whole = int.from_bytes(padded, "little") << _HEADER_BITS | self._header(shape, dtype)
                padded = whole.to_bytes(len(padded) + -(-_HEADER_BITS // 8), "little")
            try:
                self._check_header(self._zfpy.header(padded), shape, dtype, most)
                results.append(self._zfpy.decompress_numpy(padded))
            except _FAILURES as error:
                raise ChunkDecodeError(f"not valid zfp data: {error}", codec=self.name) from error
        if results[0].tobytes() != results[1].tobytes():
            raise ChunkDecodeError(f"zfp data end early, after {len(data)} bytes", codec=self.name)
        values, (_, offset, shift) = results[0].reshape(spec.shape), _AS[spec.dtype.name]
        if shift:
            values = (values >> shift) + dtype.type(offset)
        if dtype != spec.dtype and dtype.kind == "i":
            limits = np.iinfo(spec.dtype)  # type: ignore[type-var]
            values = values.clip(limits.min, min(limits.max, np.iinfo(dtype).max))
        with np.errstate(over="ignore"):
            return values.astype(spec.dtype)  # type: ignore[no-any-return]

    @staticmethod
    def _check_header(
        header: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any], most: int
    ) -> None:
        """Refuse data of another shape, type or mode, because these decide how much zfp reads and returns."""
        found = tuple(header[axis] for axis in ("nw", "nz", "ny", "nx") if header[axis])
        kind = np.dtype(header["type"])
        if found != shape or kind != dtype:
            raise ValueError(f"of shape {found} and dtype '{kind}', expected {shape} and '{dtype}'")
        bits = header["config"]["expert"]["minbits"] * _blocks(shape)
        known = ("expert", "rate", "precision", "tolerance", "reversible")
        if header["mode"] not in known or bits > 8 * (most - _HEADER):
            raise ValueError(f"of mode '{header['mode']}'")

    def _header(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """The header of zfp with type, shape and mode; the mode is in its long form."""
        minbits, maxbits, maxprec, minexp = self._limits(len(shape))
        mode = minexp + 16495
        for value, bits in ((maxprec - 1, 7), (maxbits - 1, 15), (minbits - 1, 15), (0xFFF, 12)):
            mode = mode << bits | value
        meta = 0
        for length in shape:
            meta = meta << (48 // len(shape)) | (length - 1)
        meta = (meta << 2 | (len(shape) - 1)) << 2 | _TYPES.index(dtype.name)
        return (mode << 52 | meta) << 32 | int.from_bytes(b"zfp\x05", "little")


def _blocks(shape: tuple[int, ...]) -> int:
    """Number of blocks; a block has four elements along each dimension."""
    return math.prod(-(-length // 4) for length in shape)


@dataclass(frozen=True)
class ZfpCodec(_Zfp):
    """Compression of numbers with zfp.

    Parameters
    ----------
    mode : {"reversible", "fixed_accuracy", "fixed_rate", "fixed_precision", "expert"}
        Decides which other parameters are required. "reversible" is lossless and takes none. The others take
        ``tolerance``, ``rate``, ``precision``, or the last four, in this order. "expert" is only read.
    tolerance : float, optional
        The largest accepted error, for floating point numbers only. Values that zfp cannot keep within it
        are refused. With 0, zfp keeps as much as it can, which is less near much larger numbers.
    rate : float, optional
        Stored bits for each number.
    precision : int, optional
        Kept bits of each number.
    minbits, maxbits, maxprec, minexp : int, optional
        The least and the most bits of a block, the most bits of a number, and the exponent of its last bit.

    Examples
    --------
    >>> import xzarr3
    >>> lossless = xzarr3.codecs.ZfpCodec(mode="reversible")
    >>> xzarr3.array([1.5, 2.5], serializer=lossless).serializer.mode
    'reversible'
    """

    name = "zfp"
    _data_types, _dimensions, _has_header = tuple(_AS), (0, 4), False
    mode: Annotated[
        Literal["reversible", "fixed_accuracy", "fixed_rate", "fixed_precision", "expert"], REQUIRED
    ] = "reversible"
    tolerance: Number | None = None
    rate: Number | None = None
    precision: Annotated[int, Meta(ge=0, le=_MOST)] | None = None
    minbits: Annotated[int, Meta(ge=0, le=_MOST_BITS)] | None = None
    maxbits: Annotated[int, Meta(ge=1, le=_MOST)] | None = None
    maxprec: Annotated[int, Meta(ge=1, le=_MOST)] | None = None
    minexp: Annotated[int, Meta(ge=-_MOST, le=_MOST)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = _MODES[self.mode]
        for name in (each for fields in _MODES.values() for each in fields):
            if (getattr(self, name) is None) is (name in needed):
                raise self.wrong(
                    name, getattr(self, name), f"{name!r} in mode {self.mode!r}" if name in needed else
                    f"no such field in mode {self.mode!r}",
                )  # fmt: skip
        if self.tolerance is not None and self.tolerance < 0:
            raise self.wrong("tolerance", self.tolerance, "a number of at least 0")
        if self.rate is not None and not 0 < self.rate <= 64:
            raise self.wrong("rate", self.rate, "a number above 0, at most 64")
        if self.minbits is not None and self.maxbits is not None and self.maxbits < self.minbits:
            raise self.wrong("maxbits", self.maxbits, f"an integer from {self.minbits} to {_MOST}")

    @property
    def _arguments(self) -> dict[str, Any]:
        return {} if self.mode == "expert" else {name: getattr(self, name) for name in _MODES[self.mode]}

    def _limits(self, ndim: int) -> tuple[int, int, int, int]:
        if self.mode != "expert":
            return super()._limits(ndim)
        return (
            max(self.minbits or 0, 1),
            min(self.maxbits or 0, _MOST_BITS),
            min(self.maxprec or 0, _MAX_PREC),
            min(max(self.minexp or 0, _LOSSLESS), -_LOSSLESS),
        )

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        if self.mode == "expert":
            raise ChunkEncodeError("mode 'expert' is only read; choose another mode", codec=self.name)
        return super().encode(array, spec)


@dataclass(frozen=True)
class ZfpyCodec(NumcodecsCodec, _Zfp):
    """Compression of numbers with zfp, lossy or not; the parameters are those of ``numcodecs.ZFPY``.

    Parameters
    ----------
    mode : {4, 2, 3}
        Fixed accuracy (lossless if the tolerance is negative), fixed rate or fixed precision.
    tolerance : float
        The largest accepted error. Values that zfp cannot keep within it are refused. With 0,
        zfp keeps as much as it can, which is less near much larger numbers.
    rate : float
        Stored bits for each number.
    precision : int
        Kept bits of each number.
    compression_kwargs : None
        What older versions of numcodecs write: the parameter of the mode once more.

    Examples
    --------
    >>> import xzarr3
    >>> near = xzarr3.codecs.ZfpyCodec(mode=4, tolerance=0.01)
    >>> xzarr3.array([1.5, 2.5], serializer=near).serializer.tolerance
    0.01
    """

    name = "numcodecs.zfpy"
    _data_types, _dimensions, _has_header = _TYPES, (1, 4), True
    mode: Literal[4, 2, 3] = 4
    tolerance: Number = -1
    rate: Number = -1
    precision: Annotated[int, Meta(ge=-1, le=64)] = -1
    compression_kwargs: dict[str, Number] | None = None  # numcodecs repeats the parameter here

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compression_kwargs not in (None, {self._field_of_mode: getattr(self, self._field_of_mode)}):
            raise self.wrong("compression_kwargs", self.compression_kwargs, "null")
        object.__setattr__(self, "compression_kwargs", None)
        if not (self.rate <= 64 if self.mode != 2 else 0 < self.rate <= 64):
            raise self.wrong("rate", self.rate, "a number above 0, at most 64")

    @property
    def _field_of_mode(self) -> str:
        return {4: "tolerance", 2: "rate", 3: "precision"}[self.mode]

    @property
    def _arguments(self) -> dict[str, Any]:
        lossless = self.mode == 4 and self.tolerance < 0
        return {} if lossless else {self._field_of_mode: getattr(self, self._field_of_mode)}
