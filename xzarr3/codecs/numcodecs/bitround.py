"""``numcodecs.bitround``: floating point numbers rounded to some bits.

Specification: zarr-extensions, "numcodecs.bitround"; the documentation of numcodecs, "BitRound".
Names: ``numcodecs.bitround``.
Example: ``{"name": "numcodecs.bitround", "configuration": {"keepbits": 10}}``.
"""

from __future__ import annotations

from dataclasses import dataclass

from xzarr3._types import JSON
from xzarr3.codecs.base import ChunkSpec, Configuration
from xzarr3.codecs.bitround import BitRoundCodec
from xzarr3.errors import MetadataError

_MANTISSA = {"float16": 10, "float32": 23, "float64": 52}


@dataclass(frozen=True)
class NumcodecsBitRoundCodec(BitRoundCodec):
    """Floating point numbers rounded to some bits, so that they compress better.

    Parameters
    ----------
    keepbits : int
        How many bits of the mantissa are kept.
    """

    name = "numcodecs.bitround"
    _bounds = (0, 52)

    def to_json(self) -> JSON:
        return {"name": self.name, "configuration": self.configuration()}

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        most = _MANTISSA.get(spec.data_type.name)
        if most is None:
            raise MetadataError(
                f"codec '{self.name}' cannot round data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data type 'float16', 'float32' or 'float64'",
            )
        if self.keepbits > most:
            raise Configuration(self.name, {}).error(
                "keepbits", self.keepbits, f"at most {most} for data type '{spec.data_type.name}'"
            )
        return super().resolve(spec)
