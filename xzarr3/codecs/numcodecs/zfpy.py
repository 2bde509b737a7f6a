"""``numcodecs.zfpy``: compression of numbers with zfp, lossy or not, behind its header; a package of its own.

Specification: zarr-extensions, "numcodecs.zfpy"; the documentation of numcodecs, "ZFPY".
Names: ``numcodecs.zfpy``.
Example: ``{"name": "numcodecs.zfpy", "configuration": {"mode": 4, "tolerance": 0.01}}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs._library import LibraryCodec
from xzarr3.codecs._zfp import (
    check_bits,
    check_lossy,
    check_tolerance,
    decompress,
    max_encoded_size,
    rate_bits,
)
from xzarr3.codecs.base import ChunkSpec, Configuration
from xzarr3.errors import MetadataError

_ACCURACY, _RATE, _PRECISION = 4, 2, 3


@dataclass(frozen=True)
class ZfpyCodec(LibraryCodec):
    """Compression of numbers with zfp, lossy or not; the parameters are those of ``numcodecs.ZFPY``.

    Parameters
    ----------
    mode : {4, 2, 3}
        Fixed accuracy (lossless if the tolerance is negative), fixed rate or fixed precision.
    tolerance : float
        The largest error that is accepted. What zfp cannot keep so is refused; with 0 it
        keeps what it can, which is less beside much larger numbers.
    rate : float
        Bits for a number.
    precision : int
        Bits of a number that are kept.
    """

    name = "numcodecs.zfpy"
    _library = "zfpy"
    _dtypes = ("int32", "int64", "float32", "float64")
    mode: int = _ACCURACY
    tolerance: int | float = -1
    rate: int | float = -1
    precision: int = -1

    def __post_init__(self) -> None:
        self._checked(self.configuration())

    @classmethod
    def _checked(cls, configuration: Mapping[str, JSON]) -> dict[str, Any]:
        fields = Configuration(cls.name, {"tolerance": -1, "rate": -1, **configuration})
        mode = fields.integer("mode", _RATE, _ACCURACY, default=_ACCURACY)
        rate = fields.number("rate")
        if not (rate <= 64 if mode != _RATE else 0 < rate <= 64):
            raise fields.error("rate", rate, "a number above 0, at most 64")
        given = {
            "mode": mode,
            "tolerance": fields.number("tolerance"),
            "rate": rate,
            "precision": fields.integer("precision", -1, 64, default=-1),
        }
        if fields.take("compression_kwargs", "null", None) not in (None, _kwargs(given)):
            raise fields.error("compression_kwargs", configuration["compression_kwargs"], "null")
        fields.finish()
        return given

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        return cls(**cls._checked(configuration))

    def configuration(self) -> dict[str, JSON]:
        return {
            "mode": self.mode,
            "tolerance": self.tolerance,
            "rate": self.rate,
            "precision": self.precision,
        }

    @cached_property
    def _coder(self) -> Any:
        self._loaded("zfpy")
        options = {**self.configuration()}
        return self._loaded("numcodecs.zfpy").ZFPY(**options)

    def check(self, spec: ChunkSpec) -> None:
        super().check(spec)
        if not 1 <= len(spec.shape) <= 4:
            raise MetadataError(
                f"codec '{self.name}' cannot encode {len(spec.shape)} dimensions",
                found=list(spec.shape),
                accepted="1 to 4 dimensions",
            )

        if self.mode == _RATE:
            check_bits(self.name, "rate", self.rate, rate_bits(self.rate, len(spec.shape)), spec.dtype)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        rate = math.ceil(self.rate * 4 ** len(spec.shape)) if self.mode == _RATE else 0
        return max_encoded_size(spec.shape, spec.dtype.itemsize, rate)

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        tolerance = self.tolerance if self.mode == _ACCURACY else None
        if tolerance is None or tolerance >= 0:
            check_lossy(array, self.name)
        data = super().encode(array, spec)
        if tolerance is not None and tolerance >= 0:
            check_tolerance(array, tolerance, self.name, lambda: self.decode(data, spec))
        return data

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        most = self.max_encoded_size(spec)
        return decompress(self._loaded("zfpy"), bytes(data), spec.shape, spec.dtype, most, self.name)


def _kwargs(given: Mapping[str, Any]) -> dict[str, Any]:
    """What numcodecs keeps of the parameters for its library."""
    field = {_ACCURACY: "tolerance", _RATE: "rate", _PRECISION: "precision"}[given["mode"]]
    return {field: given[field]}
