"""``numcodecs.quantize``: numbers rounded to some decimal digits.

Specification: zarr-extensions, "numcodecs.quantize"; the documentation of numcodecs, "Quantize".
Names: ``numcodecs.quantize``.
Example: ``{"name": "numcodecs.quantize", "configuration": {"digits": 1, "dtype": "<f8"}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from numcodecs.quantize import Quantize

from xzarr3._types import JSON
from xzarr3.codecs.base import Configuration
from xzarr3.codecs.numcodecs._filters import TypedFilter


@dataclass(frozen=True)
class QuantizeCodec(TypedFilter):
    """Numbers rounded to some decimal digits, so that they compress better.

    Parameters
    ----------
    digits : int
        How many digits behind the decimal point are kept.
    """

    name = "numcodecs.quantize"
    _kinds = "f"
    digits: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Configuration(self.name, {"digits": self.digits}).integer("digits", -300, 300)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(**cls._types(fields), digits=fields.integer("digits", -300, 300))
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {"digits": self.digits, **super().configuration()}

    @cached_property
    def _coder(self) -> Any:
        return Quantize(self.digits, self._decoded, self._encoded_dtype)
