"""The codecs of numcodecs whose libraries are separate, optional packages: zfpy and pcodec.

Specification: zarr-extensions, "numcodecs.zfpy", "numcodecs.pcodec"; the documentation of numcodecs, "ZFPY",
"PCodec". Names: ``numcodecs.pcodec``, ``numcodecs.zfpy``.
Example: ``{"name": "numcodecs.zfpy", "configuration": {"mode": 4, "tolerance": 0.01}}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

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
from xzarr3.codecs.base import ChunkSpec, Configuration, parameter
from xzarr3.codecs.numcodecs.base import NumcodecsCodec
from xzarr3.errors import ChunkDecodeError, MetadataError

_ACCURACY, _RATE, _PRECISION = 4, 2, 3
_DELTAS = ("auto", "no_op", "none", "try_consecutive", "try_lookback")
_PAGING = "equal_pages_up_to"


@dataclass(frozen=True)
class ZfpyCodec(NumcodecsCodec, LibraryCodec):
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
    """

    name = "numcodecs.zfpy"
    _library = "zfpy"
    _dtypes = ("int32", "int64", "float32", "float64")
    mode: int = parameter(Configuration.integer, _RATE, _ACCURACY, default=_ACCURACY)
    tolerance: int | float = parameter(Configuration.number, default=-1)
    rate: int | float = parameter(Configuration.number, default=-1)
    precision: int = parameter(Configuration.integer, -1, 64, default=-1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.rate <= 64 if self.mode != _RATE else 0 < self.rate <= 64):
            raise Configuration(self.name, {}).error("rate", self.rate, "a number above 0, at most 64")

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        kept = configuration.get("compression_kwargs")
        codec = super().from_configuration(
            {name: value for name, value in configuration.items() if name != "compression_kwargs"}
        )
        if kept not in (None, codec._kwargs):
            raise Configuration(cls.name, {}).error("compression_kwargs", kept, "null")
        return codec

    @property
    def _kwargs(self) -> dict[str, Any]:
        """The parameters that numcodecs passes to zfpy; its configurations may repeat them."""
        field = {_ACCURACY: "tolerance", _RATE: "rate", _PRECISION: "precision"}[self.mode]
        return {field: getattr(self, field)}

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


@dataclass(frozen=True)
class PCodecCodec(NumcodecsCodec, LibraryCodec):
    """Lossless compression of numbers with pcodec; the parameters are those of ``numcodecs.PCodec``.

    Parameters
    ----------
    level : int
        0 to 12 (smallest).
    mode_spec : {"auto", "classic"}
    delta_spec : {"auto", "no_op", "none", "try_consecutive", "try_lookback"}
    paging_spec : {"equal_pages_up_to"}
    delta_encoding_order : int, optional
        0 to 7.
    equal_pages_up_to : int
        Largest number of elements in a page.
    """

    name = "numcodecs.pcodec"
    _library = "pcodec"
    _dtypes = (
        "uint16", "uint32", "uint64", "int16", "int32", "int64", "float16", "float32", "float64",
    )  # fmt: skip
    level: int = parameter(Configuration.integer, 0, 12, default=8)
    mode_spec: str = parameter(Configuration.choice, ("auto", "classic"), default="auto")
    delta_spec: str = parameter(Configuration.choice, _DELTAS, default="auto")
    paging_spec: str = parameter(Configuration.choice, (_PAGING,), default=_PAGING)
    delta_encoding_order: int | None = parameter(Configuration.integer, 0, 7, default=None, null=True)
    equal_pages_up_to: int = parameter(Configuration.integer, 1, 2**31 - 1, default=262144)

    @cached_property
    def _coder(self) -> Any:
        options = {**self.configuration()}
        return self._loaded("numcodecs.pcodec").PCodec(**options)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        # The format documents no bound. Incompressible data grow by the headers; this bound is generous.
        return 2 * spec.nbytes + 2**16

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        array = np.empty(spec.shape, spec.dtype)
        standalone = self._loaded("pcodec.standalone")
        try:
            # Decodes into an array of the expected size, so that the size that the data claim has no effect.
            progress = standalone.simple_decompress_into(bytes(data), array.reshape(-1))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ChunkDecodeError(f"not valid pcodec data: {error}", codec=self.name) from error
        if progress.n_processed != array.size or not progress.finished:
            raise ChunkDecodeError(
                f"found {progress.n_processed} numbers{' and more' * (not progress.finished)}, expected "
                f"{array.size} for shape {spec.shape}",
                codec=self.name,
            )
        return array
