"""``numcodecs.astype``: numbers as another dtype.

Specification: zarr-extensions, "numcodecs.astype"; the documentation of numcodecs, "AsType".
Names: ``numcodecs.astype``.
Example: ``{"name": "numcodecs.astype", "configuration": {"encode_dtype": "<f4", "decode_dtype": "<f8"}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from numcodecs.astype import AsType

from xzarr3._types import JSON
from xzarr3.codecs.base import Configuration
from xzarr3.codecs.numcodecs._filters import TypedFilter


@dataclass(frozen=True)
class AsTypeCodec(TypedFilter):
    """Another dtype; values that it cannot hold become whatever numpy makes of them.

    Parameters
    ----------
    dtype : str, optional
        ``decode_dtype`` in the configuration.
    astype : str
        ``encode_dtype`` in the configuration.
    """

    name = "numcodecs.astype"
    decoded_field = "decode_dtype"
    encoded_field = "encode_dtype"
    _kinds = "biufcmMSU"

    def __post_init__(self) -> None:
        super().__post_init__()
        Configuration(self.name, {"encode_dtype": self.astype} if self.astype else {}).take(
            "encode_dtype", "a dtype of numpy, as in '<f4'"
        )

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(**cls._types(fields))
        fields.finish()
        return codec

    @cached_property
    def _coder(self) -> Any:
        return AsType(self._encoded_dtype, self._decoded)
