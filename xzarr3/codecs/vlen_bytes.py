"""``vlen-bytes``: stores byte strings of any length, each element after its length.

Specification: zarr-extensions, "Vlen-bytes codec".
Names: ``vlen-bytes``. Example: ``{"name": "vlen-bytes"}``.
"""

from __future__ import annotations

from numcodecs.vlen import VLenBytes

from xzarr3.codecs._vlen import LAST, VLenCodec


class VLenBytesCodec(VLenCodec):
    """Stores byte strings of any length.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(2, dtype="bytes").serializer
    VLenBytesCodec()
    """

    name = "vlen-bytes"
    _data_type = "bytes"
    _fixed_type = "null_terminated_bytes"
    _unit = 1
    _coder = VLenBytes()
    _last = LAST
