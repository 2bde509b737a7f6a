"""``numcodecs.fletcher32``: the data and behind them the checksum of HDF5.

Specification: zarr-extensions, "numcodecs.fletcher32"; the documentation of numcodecs, "Fletcher32".
Names: ``numcodecs.fletcher32``. Example: ``{"name": "numcodecs.fletcher32", "configuration": {}}``.
"""

from __future__ import annotations

from dataclasses import dataclass

from numcodecs.fletcher32 import Fletcher32

from xzarr3._types import Buffer
from xzarr3.codecs.numcodecs._checksums import SIZE, ChecksumCodec

_fletcher32 = Fletcher32()


@dataclass(frozen=True)
class Fletcher32Codec(ChecksumCodec):
    """The checksum of HDF5's filter of the same name, behind the data."""

    name = "numcodecs.fletcher32"

    def checksum(self, data: Buffer) -> int:
        # numcodecs does not give the checksum alone, and fails for no data.
        return int.from_bytes(_fletcher32.encode(data)[-SIZE:], "little") if len(data) else 0
