"""``numcodecs.zstd``: ``zstd`` under the name that zarr-python gives the codec of numcodecs.

Specification: zarr-extensions, "numcodecs.zstd"; the documentation of numcodecs, "Zstd".
Names: ``numcodecs.zstd``. Example: ``{"name": "numcodecs.zstd", "configuration": {"level": 1}}``.
"""

from __future__ import annotations

from xzarr3.codecs.zstd import ZstdCodec


class NumcodecsZstdCodec(ZstdCodec):
    """``zstd`` under the name that zarr-python gives the codec of numcodecs."""

    name = "numcodecs.zstd"
