"""The codecs of numcodecs whose libraries have to be installed for them: ``pcodec`` and ``zfpy``.

Specification: zarr-extensions, "numcodecs.pcodec", "numcodecs.zfpy"; the documentation of numcodecs. Names:
``numcodecs.pcodec``, ``numcodecs.zfpy``.
Example: ``{"name": "numcodecs.pcodec", "configuration": {"level": 8}}``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec, Configuration
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, UnknownExtensionError, listed


class _OptionalCodec(ArrayBytesCodec):
    _library: ClassVar[str]
    _dtypes: ClassVar[tuple[str, ...]]

    def to_json(self) -> JSON:
        return {"name": self.name, "configuration": self.configuration()}

    @cached_property
    @abstractmethod
    def _coder(self) -> Any:
        """The codec of numcodecs."""

    def _loaded(self, module: str) -> Any:
        try:
            return import_module(module)
        except ImportError as error:
            raise UnknownExtensionError(
                f"codec '{self.name}' needs the package '{self._library}'",
                found=self.name,
                accepted=f"this codec once '{self._library}' is installed: pip install 'xzarr3[codecs]'",
            ) from error

    def check(self, spec: ChunkSpec) -> None:
        if spec.data_type.is_variable or spec.dtype.name not in self._dtypes:
            raise MetadataError(
                f"codec '{self.name}' cannot encode data type '{spec.data_type.name}'",
                found=self.name,
                accepted=f"data types {listed(self._dtypes)}",
            )
        _ = self._coder

    def encoded_size(self, spec: ChunkSpec) -> None:
        return None

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        values = np.ascontiguousarray(array, dtype=spec.dtype).reshape(spec.shape)
        try:
            return self._coder.encode(values)  # type: ignore[no-any-return]
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise ChunkEncodeError(f"cannot compress so: {error}", codec=self.name) from error


@dataclass(frozen=True)
class PCodecCodec(_OptionalCodec):
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
        The most numbers in a page.
    """

    name = "numcodecs.pcodec"
    _library = "pcodec"
    _dtypes = (
        "uint16", "uint32", "uint64", "int16", "int32", "int64", "float16", "float32", "float64",
    )  # fmt: skip
    level: int = 8
    mode_spec: str = "auto"
    delta_spec: str = "auto"
    paging_spec: str = "equal_pages_up_to"
    delta_encoding_order: int | None = None
    equal_pages_up_to: int = 262144

    def __post_init__(self) -> None:
        self._checked(self.configuration())

    @classmethod
    def _checked(cls, configuration: Mapping[str, JSON]) -> dict[str, Any]:
        fields = Configuration(cls.name, configuration)
        order = fields.take("delta_encoding_order", "an integer from 0 to 7, or null", None)
        if order is not None and (type(order) is not int or not 0 <= order <= 7):
            raise fields.error("delta_encoding_order", order, "an integer from 0 to 7, or null")
        deltas = ("auto", "no_op", "none", "try_consecutive", "try_lookback")
        given = {
            "level": fields.integer("level", 0, 12, default=8),
            "mode_spec": fields.choice("mode_spec", ("auto", "classic"), default="auto"),
            "delta_spec": fields.choice("delta_spec", deltas, default="auto"),
            "paging_spec": fields.choice("paging_spec", ("equal_pages_up_to",), default="equal_pages_up_to"),
            "delta_encoding_order": order,
            "equal_pages_up_to": fields.integer("equal_pages_up_to", 1, 2**31 - 1, default=262144),
        }
        fields.finish()
        return given

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        return cls(**cls._checked(configuration))

    def configuration(self) -> dict[str, JSON]:
        given: dict[str, JSON] = {
            "level": self.level,
            "mode_spec": self.mode_spec,
            "delta_spec": self.delta_spec,
            "paging_spec": self.paging_spec,
            "equal_pages_up_to": self.equal_pages_up_to,
        }
        if self.delta_encoding_order is not None:
            given["delta_encoding_order"] = self.delta_encoding_order
        return given

    @cached_property
    def _coder(self) -> Any:
        options = {**self.configuration()}
        return self._loaded("numcodecs.pcodec").PCodec(**options)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        # The format has no bound that one could look up; what does not compress grows by its headers.
        return 2 * spec.nbytes + 2**16

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        array = np.empty(spec.shape, spec.dtype)
        standalone = self._loaded("pcodec.standalone")
        try:
            # Into an array of the size wanted, so that it does not matter what size the data claim.
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


_ACCURACY, _RATE, _PRECISION = 4, 2, 3
_ZFP_HEADER = 32  # Bytes, and some more.
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError)


@dataclass(frozen=True)
class ZfpyCodec(_OptionalCodec):
    """Compression of numbers with zfp, lossy or not; the parameters are those of ``numcodecs.ZFPY``.

    Parameters
    ----------
    mode : {4, 2, 3}
        Fixed accuracy (lossless if the tolerance is negative), fixed rate or fixed precision.
    tolerance : float
        The largest error that is accepted.
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

    @staticmethod
    def _blocks(spec: ChunkSpec) -> int:
        """How many blocks of four elements along each dimension there are."""
        return math.prod(-(-length // 4) for length in spec.shape)

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        values: int = 4 ** len(spec.shape)
        bits = values * (8 * spec.dtype.itemsize + 1) + 64
        if self.mode == _RATE:
            bits = max(bits, math.ceil(self.rate * values) + 64)
        return _ZFP_HEADER + -(-bits * self._blocks(spec) // 8)

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        # zfp reads beyond the end of data that are too short, so as much is put behind them as it could
        # ask for. Nothing tells whether it did but the result, if it differs with what was put there.
        zfpy = self._loaded("zfpy")
        value = bytes(data)
        if len(value) > (most := self.max_encoded_size(spec)):
            raise ChunkDecodeError(f"found {len(value)} bytes, at most {most} possible", codec=self.name)
        results = []
        for filler in (b"\x00", b"\xff"):
            padded = value + filler * (most + 64)
            try:
                header = zfpy.header(padded)
            except _FAILURES as error:
                raise ChunkDecodeError(f"not zfp data: {error}", codec=self.name) from error
            self._check_header(header, spec)
            try:
                results.append(zfpy.decompress_numpy(padded))
            except _FAILURES as error:
                raise ChunkDecodeError(f"not valid zfp data: {error}", codec=self.name) from error
        if results[0].tobytes() != results[1].tobytes():
            raise ChunkDecodeError(f"zfp data end early, after {len(value)} bytes", codec=self.name)
        return results[0].reshape(spec.shape)  # type: ignore[no-any-return]

    def _check_header(self, header: Mapping[str, Any], spec: ChunkSpec) -> None:
        """Refuse data of another shape, type or mode: these decide about how much zfp reads and returns."""
        shape = tuple(header[axis] for axis in ("nw", "nz", "ny", "nx") if header[axis])
        dtype = np.dtype(header["type"])
        if shape != spec.shape or dtype != spec.dtype:
            raise ChunkDecodeError(
                f"found zfp data of shape {shape} and dtype '{dtype}', expected {spec.shape} and "
                f"'{spec.dtype}'",
                codec=self.name,
            )
        most = self.max_encoded_size(spec) - _ZFP_HEADER
        bits = header["config"]["expert"]["minbits"] * self._blocks(spec)
        if header["mode"] not in ("rate", "precision", "tolerance", "reversible") or bits > 8 * most:
            raise ChunkDecodeError(f"found zfp data of mode '{header['mode']}'", codec=self.name)


def _kwargs(given: Mapping[str, Any]) -> dict[str, Any]:
    """What numcodecs keeps of the parameters for its library."""
    field = {_ACCURACY: "tolerance", _RATE: "rate", _PRECISION: "precision"}[given["mode"]]
    return {field: given[field]}
