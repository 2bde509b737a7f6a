"""``numcodecs.gzip``: ``gzip`` under the name that zarr-python gives the codec of numcodecs.

Specification: zarr-extensions, "numcodecs.gzip"; the documentation of numcodecs, "GZip".
Names: ``numcodecs.gzip``. Example: ``{"name": "numcodecs.gzip", "configuration": {"level": 1}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from xzarr3._types import JSON
from xzarr3.codecs.base import Configuration
from xzarr3.codecs.gzip import GzipCodec


class NumcodecsGzipCodec(GzipCodec):
    """``gzip`` under the name that zarr-python gives the codec of numcodecs.

    Parameters
    ----------
    level : int
        -1 for the default of zlib, or 0 (store) to 9 (smallest).
    """

    name = "numcodecs.gzip"

    def __init__(self, level: int = 1) -> None:
        object.__setattr__(self, "level", Configuration(self.name, {"level": level}).integer("level", -1, 9))

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(fields.integer("level", -1, 9, default=1))
        fields.finish()
        return codec
