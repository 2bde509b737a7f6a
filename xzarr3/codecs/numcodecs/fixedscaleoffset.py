"""``numcodecs.fixedscaleoffset``: numbers with an offset taken off, scaled and rounded.

Specification: zarr-extensions, "numcodecs.fixedscaleoffset"; the documentation of numcodecs,
"FixedScaleOffset". Names: ``numcodecs.fixedscaleoffset``.
Example: ``{"name": "numcodecs.fixedscaleoffset", "configuration": {"offset": 1000, "scale": 10, "dtype":
"<f8", "astype": "<u2"}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from numcodecs.fixedscaleoffset import FixedScaleOffset

from xzarr3._types import JSON
from xzarr3.codecs.base import Configuration
from xzarr3.codecs.numcodecs._filters import TypedFilter


@dataclass(frozen=True)
class FixedScaleOffsetCodec(TypedFilter):
    """``(x - offset) * scale``, rounded to whole numbers.

    NaN, and what the encoded dtype cannot hold, become whatever numpy makes of them, as in numcodecs; the
    codecs ``scale_offset`` and ``cast_value`` refuse them.

    Parameters
    ----------
    offset, scale : int or float
    """

    name = "numcodecs.fixedscaleoffset"
    _kinds = "iuf"
    offset: int | float = 0
    scale: int | float = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = Configuration(self.name, {"offset": self.offset, "scale": self.scale})
        fields.number("offset")
        if fields.number("scale") == 0:
            raise fields.error("scale", self.scale, "a finite number other than 0")

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(**cls._types(fields), offset=fields.number("offset"), scale=fields.number("scale"))
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {"offset": self.offset, "scale": self.scale, **super().configuration()}

    @cached_property
    def _coder(self) -> Any:
        return FixedScaleOffset(self.offset, self.scale, self._decoded, self._encoded_dtype)
