"""``zfp``, without zfp's header, and ``numcodecs.zfpy``, with it: compress numbers, lossy or lossless.

They need the optional package zfpy. In ``zfp``, integers of fewer than 32 bits are shifted up to 32 bits, and
float16 becomes float32. zfp has signed integers only, and the specification does not say how to convert
uint32 and uint64. Here, as in zarrs, they keep their values, and values that do not fit are refused. Mode
``expert`` is refused.

Specification: zarr-extensions, "ZFP codec", "numcodecs.zfpy". Names: ``zfp``, ``numcodecs.zfpy``.
Example: ``{"name": "zfp", "configuration": {"mode": "fixed_accuracy", "tolerance": 0.05}}``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec, NumcodecsCodec
from xzarr3.codecs.pipeline import Calling
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError
from xzarr3.fields import REQUIRED, Meta, Number

_PARAMETERS = {
    "reversible": None, "fixed_accuracy": "tolerance", "fixed_rate": "rate", "fixed_precision": "precision",
    4: "tolerance", 2: "rate", 3: "precision",
}  # fmt: skip
"""The modes of both codecs, and the parameter that each of them requires."""
_Mode = Literal["reversible", "fixed_accuracy", "fixed_rate", "fixed_precision"]
_LENGTHS = {1: 2**48, 2: 2**24, 3: 2**16, 4: 2**12}  # longest that a header can hold, by number of dimensions
_TYPES = ("int32", "int64", "float32", "float64")
_AS: dict[str, tuple[str, int, int]] = {
    "int8": ("int32", 0, 23), "uint8": ("int32", 2**7, 23), "int16": ("int32", 0, 15),
    "uint16": ("int32", 2**15, 15), "uint32": ("int32", 0, 0), "uint64": ("int64", 0, 0),
    "float16": ("float32", 0, 0), **{name: (name, 0, 0) for name in _TYPES},
}  # fmt: skip
"""The data types: the dtype that zfp gets, what is subtracted from integers, and how far they are shifted."""
_LEAST_BITS = {"float32": 1 + 8, "float64": 1 + 11}  # with fewer for a block, zfp writes beyond its memory
_LARGEST = {
    "int32": 2**30,
    "int64": 2**62,
    "float32": 2.0**128 - 2.0**104,
    "float64": 2.0**1023 * (2 - 2.0**-52),
}
"""Every lossy mode would decode larger numbers, infinity and NaN wrongly."""
_SURE = {"float32": 2.0**-20, "float64": 2.0**-48}  # bound of errors, relative to the largest number
_FILL = "choose a finite fill value as small as the data, which fills chunks past the edges, or lossless zfp"
_HEADER = 32  # bytes, at most


class _Zfp(ArrayBytesCodec):
    """What both codecs have in common."""

    _has_header: ClassVar[bool]
    mode: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, most in (("tolerance", math.inf), ("rate", 64), ("precision", math.inf)):
            value, is_used = getattr(self, field), _PARAMETERS[self.mode] == field
            if not self._has_header and (value is None) is is_used:
                accepted = f"{'a number' if is_used else 'no such field'} in mode '{self.mode}'"
                raise self.wrong(field, value, accepted)
            least = -math.inf if self._has_header and field != "rate" else 0
            if is_used and (not least <= value <= most or (field == "rate" and value == 0)):
                raise self.wrong(field, value, f"a number from {least} to {most}, for 'rate' above 0")

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments that make zfpy compress in this mode; none is lossless."""
        field = _PARAMETERS[self.mode]
        value = -1 if field is None else getattr(self, field)
        return {} if field is None or (field == "tolerance" and value < 0) else {field: value}

    def _block_bits(self, ndim: int) -> int:
        """Bits of a block if the rate is fixed, else 0."""
        return int(self._arguments.get("rate", 0) * 4**ndim + 0.5)

    def check(self, spec: ChunkSpec) -> None:
        self.require_data_type(spec, _TYPES if self._has_header else tuple(_AS))
        self.optional_module("zfpy", "zfpy")
        ndim, least = len(spec.shape), int(self._has_header)
        if not least <= ndim <= 4 or max(spec.shape, default=1) > _LENGTHS[ndim or 1]:
            raise MetadataError(
                f"codec '{self.name}' cannot encode chunks of this shape", found=list(spec.shape),
                accepted=f"{least} to 4 dimensions, with lengths of at most {_LENGTHS}",
            )  # fmt: skip
        if "tolerance" in self._arguments and spec.dtype.kind != "f" and not self._has_header:
            raise self.wrong("mode", "fixed_accuracy", "another mode", "not possible for integers")
        bits, dtype = self._block_bits(ndim or 1), _field(spec)[1]
        least = _LEAST_BITS.get(dtype.name, 1)
        if "rate" in self._arguments and bits < least:
            accepted, why = (
                f"at least {least} bits for a block of '{dtype}'",
                f"{bits} bits are too few for a block",
            )
            raise self.wrong("rate", self._arguments["rate"], accepted, why)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        shape, dtype = _field(spec)
        bits: int = max(4 ** len(shape) * (8 * dtype.itemsize + 1), self._block_bits(len(shape))) + 64
        return _HEADER + -(-bits * _blocks(shape) // 8)

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        (shape, dtype), (_, offset, shift) = _field(spec), _AS[spec.dtype.name]
        given = np.ascontiguousarray(array, dtype=spec.dtype).reshape(shape)
        arguments, zfpy = self._arguments, self.optional_module("zfpy", "zfpy")
        if spec.dtype.kind == "u" and given.max(initial=0) > np.iinfo(dtype).max:
            raise self._unfit(f"zfp stores '{dtype}', and {given.max()} is more than '{dtype}' can hold")
        values = given.astype(dtype)
        if shift:
            values = (values - dtype.type(offset)) << shift
        most = _LARGEST[dtype.name]
        if arguments and not ((values >= -most) & (values <= most)).all():
            raise self._unfit(f"only lossless zfp keeps NaN, infinity and numbers beyond {most:g}; {_FILL}")
        with Calling(ChunkEncodeError, self):
            data: bytes = zfpy.compress_numpy(values, write_header=self._has_header, **arguments)
        tolerance, largest = arguments.get("tolerance"), float(np.abs(values).max(initial=0))
        # With 0, zfp keeps as much as it can, which may not be all.
        if tolerance and dtype.kind == "f" and largest * _SURE[dtype.name] > tolerance:
            decoded = self.decode(data, spec).reshape(shape).astype("f8")
            error = np.abs(decoded - given.astype("f8")).max(initial=0)
            if error > tolerance:
                why = (
                    f"zfp breaks the tolerance of {tolerance} beside {largest:g}, with an error of {error:g}"
                )
                raise self._unfit(f"{why}; {_FILL}")
        return data

    def _unfit(self, reason: str) -> ChunkEncodeError:
        return ChunkEncodeError(reason, codec=self.name)

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        dtype, (_, offset, shift) = _field(spec)[1], _AS[spec.dtype.name]
        most = self.max_encoded_size(spec)
        if len(data) > most:
            raise ChunkDecodeError(f"found {len(data)} bytes; at most {most} are possible", codec=self.name)
        # zfp reads beyond the end of data that are too short. So the data are padded with as many bytes as
        # zfp could read. It does not report whether it read the padding, so the data are decoded twice with
        # different padding: results that differ mean that the data are too short.
        first, second = (self._decoded(bytes(data) + end * (most + 64), spec) for end in (b"\0", b"\xff"))
        if first.tobytes() != second.tobytes():
            raise ChunkDecodeError(f"zfp data end early, after {len(data)} bytes", codec=self.name)
        values = first.reshape(spec.shape)
        if dtype.kind == "i":
            info = np.iinfo(spec.dtype)  # type: ignore[type-var]
            values = ((values >> shift) + dtype.type(offset)).clip(
                info.min, min(info.max, np.iinfo(dtype).max)
            )
        with np.errstate(over="ignore"):
            return values.astype(spec.dtype)

    def _decoded(self, padded: bytes, spec: ChunkSpec) -> AnyArray:
        """What zfp decodes, if it has the shape, type and mode that decide how much zfp reads and returns."""
        (shape, dtype), zfpy = _field(spec), self.optional_module("zfpy", "zfpy")
        with Calling(ChunkDecodeError, self):
            if not self._has_header:
                return zfpy._decompress(padded, zfpy.dtype_to_ztype(dtype), shape, **self._arguments)  # type: ignore[no-any-return]
            header = zfpy.header(padded)
            found = tuple(header[axis] for axis in ("nw", "nz", "ny", "nx") if header[axis])
            most = 8 * (self.max_encoded_size(spec) - _HEADER) // _blocks(shape)
            is_known = header["mode"] != "null" and header["config"]["expert"]["minbits"] <= most
            if (found, np.dtype(header["type"]), is_known) != (shape, dtype, True):
                why = f"zfp data of shape {found}, type '{header['type']}', mode '{header['mode']}'"
                raise ChunkDecodeError(f"{why}; expected shape {shape} of '{dtype}'", codec=self.name)
            return zfpy.decompress_numpy(padded)  # type: ignore[no-any-return]


def _field(spec: ChunkSpec) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the array that zfp gets."""
    return spec.shape or (1,), np.dtype(_AS[spec.dtype.name][0])


def _blocks(shape: tuple[int, ...]) -> int:
    """Number of blocks; a block has four elements along each dimension."""
    return math.prod(-(-length // 4) for length in shape)


@dataclass(frozen=True)
class ZfpCodec(_Zfp):
    """Compression of numbers with zfp.

    Parameters
    ----------
    mode : {"reversible", "fixed_accuracy", "fixed_rate", "fixed_precision"}
        "reversible" is lossless and takes no other parameter. The others take ``tolerance``, ``rate`` or
        ``precision``, in this order. Mode "expert" is refused.
    tolerance : float, optional
        The largest accepted error, for floating point numbers only. Values that zfp cannot keep within it
        are refused. With 0, zfp keeps as much as it can, which is less near much larger numbers.
    rate : float, optional
        Stored bits for each number.
    precision : int, optional
        Kept bits of each number.

    Examples
    --------
    >>> import xzarr3
    >>> lossless = xzarr3.codecs.ZfpCodec(mode="reversible")
    >>> xzarr3.array([1.5, 2.5], serializer=lossless).serializer.mode
    'reversible'
    """

    name = "zfp"
    _has_header = False
    mode: Annotated[_Mode, REQUIRED] = "reversible"
    tolerance: Number | None = None
    rate: Number | None = None
    precision: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


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
    _has_header = True
    mode: Literal[4, 2, 3] = 4
    tolerance: Number = -1
    rate: Number = -1
    precision: Annotated[int, Meta(ge=-1, le=64)] = -1
    compression_kwargs: dict[str, Number] | None = None  # numcodecs repeats the parameter here

    def __post_init__(self) -> None:
        super().__post_init__()
        field = str(_PARAMETERS[self.mode])
        if self.compression_kwargs not in (None, {field: getattr(self, field)}):
            raise self.wrong("compression_kwargs", self.compression_kwargs, "null")
        object.__setattr__(self, "compression_kwargs", None)
