"""Code that ``zfp`` and ``numcodecs.zfpy`` share: checks, size bounds, and safe decompression of streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.codecs.base import Configuration
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError

HEADER_BITS = 32 + 52 + 64  # magic number, type and shape, mode in its long form
_HEADER = 32  # bytes of a header, rounded up
_MODES = ("expert", "rate", "precision", "tolerance", "reversible")
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError)

LEAST_BITS = {"float32": 1 + 8, "float64": 1 + 11}
"""Least bits of a block of floating point numbers; with fewer, zfp writes beyond the end of its memory."""


def rate_bits(rate: float, ndim: int) -> int:
    """Bits of a block at a rate of ``rate`` bits for each number."""
    values: int = 4**ndim
    return math.floor(rate * values + 0.5)


def check_bits(codec: str, field: str, found: object, bits: int, dtype: np.dtype[Any]) -> None:
    """Refuse blocks of too few bits; see ``LEAST_BITS``.

    Raises
    ------
    MetadataError
    """
    least = LEAST_BITS.get(dtype.name, 1)
    if bits < least:
        accepted = f"at least {least} bits for a block of '{dtype}'"
        raise Configuration(codec, {}).error(field, found, accepted, f"{bits} bits are too few for a block")


_LARGEST = {"int32": 2**30, "int64": 2**62}
_SURE = {"float32": 2.0**-20, "float64": 2.0**-48}  # bound of errors, relative to the largest number


def check_lossy(values: AnyArray, codec: str) -> None:
    """Refuse values that every lossy mode would decode wrongly: NaN, infinity and very large integers.

    Raises
    ------
    ChunkEncodeError
    """
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ChunkEncodeError(
                "zfp keeps NaN and infinity in mode 'reversible' only; replace them with finite numbers, "
                "and choose a finite fill value: it fills the parts of chunks past the edges of the array "
                "and those not written",
                codec=codec,
            )
        return
    most = _LARGEST[values.dtype.name]
    if values.size and (values.max() > most or values.min() < -most):
        raise ChunkEncodeError(
            f"zfp keeps integers of '{values.dtype}' beyond {most} in mode 'reversible' only; found "
            f"{values.min()} to {values.max()}",
            codec=codec,
        )


def check_tolerance(values: AnyArray, tolerance: float, codec: str, decoded: Callable[[], AnyArray]) -> None:
    """Refuse values that zfp does not keep within a tolerance. Much larger values near them cause that.

    A tolerance of 0 is not checked: zfp then keeps as much as it can, which may not be all.

    Raises
    ------
    ChunkEncodeError
    """
    largest = float(np.abs(values).max(initial=0))
    if values.dtype.kind != "f" or not tolerance or largest * _SURE[values.dtype.name] <= tolerance:
        return
    error = np.abs(decoded().astype("f8") - values.astype("f8")).max(initial=0)
    if error > tolerance:
        raise ChunkEncodeError(
            f"zfp does not keep the tolerance of {tolerance} beside numbers as large as {largest:g}: found "
            f"an error of {error:g}; choose a larger tolerance, mode 'reversible', or a fill value as small "
            "as the data, because it fills the parts of chunks past the edges of the array",
            codec=codec,
        )


def blocks(shape: tuple[int, ...]) -> int:
    """Number of blocks; a block has four elements along each dimension."""
    return math.prod(-(-length // 4) for length in shape)


def max_encoded_size(shape: tuple[int, ...], itemsize: int, block_bits: int = 0) -> int:
    """Upper bound in bytes of the size of a stream whose blocks take at least ``block_bits`` bits."""
    values: int = 4 ** len(shape)
    bits = max(values * (8 * itemsize + 1), block_bits) + 64
    return _HEADER + -(-bits * blocks(shape) // 8)


def decompress(
    zfpy: Any,
    value: bytes,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    most: int,
    codec: str,
    header: int | None = None,
) -> AnyArray:
    """Decompress a stream safely, whatever bytes it holds.

    Parameters
    ----------
    zfpy : module
    value : bytes
        The stream; it may be corrupt.
    shape, dtype
        Expected shape and dtype.
    most : int
        Largest size of the stream in bytes.
    codec : str
        Name of the codec, for messages.
    header : int, optional
        The header in its long form, as little endian bits, if the stream does not begin with it.

    Raises
    ------
    ChunkDecodeError
        If the stream is not valid or ends early.
    """
    if len(value) > most:
        raise ChunkDecodeError(f"found {len(value)} bytes; at most {most} are possible", codec=codec)
    # zfp reads beyond the end of data that are too short. So the data are padded with as many bytes as zfp
    # could read. It does not report whether it read the padding, so the data are decoded twice with different
    # padding: results that differ mean that the data are too short.
    results = []
    for filler in (b"\x00", b"\xff"):
        padded = value + filler * (most + 64)
        if header is not None:  # the header is not a whole number of bytes, so the bits are shifted
            bits = int.from_bytes(padded, "little") << HEADER_BITS | header
            padded = bits.to_bytes(len(padded) + -(-HEADER_BITS // 8), "little")
        try:
            found = zfpy.header(padded)
        except _FAILURES as error:
            raise ChunkDecodeError(f"not valid zfp data: {error}", codec=codec) from error
        _check_header(found, shape, dtype, most, codec)
        try:
            results.append(zfpy.decompress_numpy(padded))
        except _FAILURES as error:
            raise ChunkDecodeError(f"not valid zfp data: {error}", codec=codec) from error
    if results[0].tobytes() != results[1].tobytes():
        raise ChunkDecodeError(f"zfp data end early, after {len(value)} bytes", codec=codec)
    return results[0].reshape(shape)  # type: ignore[no-any-return]


def _check_header(
    header: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any], most: int, codec: str
) -> None:
    """Refuse data of another shape, type or mode, because these decide how much zfp reads and returns."""
    found = tuple(header[axis] for axis in ("nw", "nz", "ny", "nx") if header[axis])
    kind = np.dtype(header["type"])
    if found != shape or kind != dtype:
        raise ChunkDecodeError(
            f"found zfp data of shape {found} and dtype '{kind}', expected {shape} and '{dtype}'", codec=codec
        )
    bits = header["config"]["expert"]["minbits"] * blocks(shape)
    if header["mode"] not in _MODES or bits > 8 * (most - _HEADER):
        raise ChunkDecodeError(f"found zfp data of mode '{header['mode']}'", codec=codec)
