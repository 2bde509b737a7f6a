"""``vlen-bytes``: bytes of any number, each element behind its length.

Specification: zarr-extensions, "Vlen-bytes codec".
Names: ``vlen-bytes``. Example: ``{"name": "vlen-bytes"}``.
"""

from __future__ import annotations

from numcodecs.vlen import VLenBytes

from xzarr3.codecs._vlen import LAST, VLenCodec


class VLenBytesCodec(VLenCodec):
    """Bytes of any number."""

    name = "vlen-bytes"
    _data_type = "bytes"
    _fixed_type = "null_terminated_bytes"
    _unit = 1
    _coder = VLenBytes()
    _last = LAST
