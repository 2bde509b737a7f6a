"""``numcodecs.pcodec``: lossless compression of numbers, with the optional package pcodec.

Specification: zarr-extensions, "numcodecs.pcodec"; the documentation of numcodecs, "PCodec".
Example: ``{"name": "numcodecs.pcodec", "configuration": {"level": 8}}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec, NumcodecsCodec
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError
from xzarr3.fields import Meta

_DATA_TYPES = (
    "uint16", "uint32", "uint64", "int16", "int32", "int64", "float16", "float32", "float64",
)  # fmt: skip


@dataclass(frozen=True)
class PCodecCodec(NumcodecsCodec, ArrayBytesCodec):
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

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1.5, 2.5], serializer=xzarr3.codecs.PCodecCodec(level=4)).serializer.level
    4
    """

    name = "numcodecs.pcodec"
    level: Annotated[int, Meta(ge=0, le=12)] = 8
    mode_spec: Literal["auto", "classic"] = "auto"
    delta_spec: Literal["auto", "no_op", "none", "try_consecutive", "try_lookback"] = "auto"
    paging_spec: Literal["equal_pages_up_to"] = "equal_pages_up_to"
    delta_encoding_order: Annotated[int, Meta(ge=0, le=7)] | None = None
    equal_pages_up_to: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 262144

    @cached_property
    def _coder(self) -> Any:
        options = {**self.configuration()}
        return self.optional_module("pcodec", "numcodecs.pcodec").PCodec(**options)

    def check(self, spec: ChunkSpec) -> None:
        self.require_data_type(spec, _DATA_TYPES)
        _ = self._coder

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        # The format documents no bound. Incompressible data grow by the headers; this bound is generous.
        return 2 * spec.nbytes + 2**16

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        values = np.ascontiguousarray(array, dtype=spec.dtype).reshape(spec.shape)
        try:
            return self._coder.encode(values)  # type: ignore[no-any-return]
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise ChunkEncodeError(f"compression failed: {error}", codec=self.name) from error

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        array = np.empty(spec.shape, spec.dtype)
        standalone = self.optional_module("pcodec", "pcodec.standalone")
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
