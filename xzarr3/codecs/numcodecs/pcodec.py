"""``numcodecs.pcodec``: lossless compression of numbers with pcodec, a package of its own.

Specification: zarr-extensions, "numcodecs.pcodec"; the documentation of numcodecs, "PCodec".
Names: ``numcodecs.pcodec``. Example: ``{"name": "numcodecs.pcodec", "configuration": {"level": 8}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs._library import LibraryCodec
from xzarr3.codecs.base import ChunkSpec, Configuration
from xzarr3.errors import ChunkDecodeError


@dataclass(frozen=True)
class PCodecCodec(LibraryCodec):
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
