"""``numcodecs.delta``: differences between neighbours.

Specification: zarr-extensions, "numcodecs.delta"; the documentation of numcodecs, "Delta".
Names: ``numcodecs.delta``.
Example: ``{"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i2"}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from numcodecs.delta import Delta

from xzarr3._types import JSON
from xzarr3.codecs.base import Configuration
from xzarr3.codecs.numcodecs._filters import TypedFilter


@dataclass(frozen=True)
class DeltaCodec(TypedFilter):
    """Differences between neighbours, in the order in which elements are stored; the first one as it is."""

    name = "numcodecs.delta"
    _kinds = "iufc"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(**cls._types(fields))
        fields.finish()
        return codec

    @cached_property
    def _coder(self) -> Any:
        return Delta(self._decoded, self._encoded_dtype)
