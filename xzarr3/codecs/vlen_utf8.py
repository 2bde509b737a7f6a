"""``vlen-utf8``: stores strings of any length as UTF-8, each element after its length.

Specification: zarr-extensions, "Vlen-utf8 codec". Names: ``vlen-utf8``. Example: ``{"name": "vlen-utf8"}``.
"""

from __future__ import annotations

from typing import Any

from numcodecs.vlen import VLenUTF8

from xzarr3.codecs._vlen import LAST, LENGTH, VLenCodec
from xzarr3.codecs.base import MAX_VARIABLE


class VLenUTF8Codec(VLenCodec):
    """Stores strings of any length as UTF-8.

    Examples
    --------
    >>> import numpy as np
    >>> from xzarr3.codecs import ChunkSpec
    >>> from xzarr3.dtypes import parse_dtype
    >>> spec = ChunkSpec((2,), parse_dtype("string"), "")
    >>> bytes(VLenUTF8Codec().encode(np.array(["a", "bc"], spec.dtype), spec)).hex(" ", -4)
    '02000000 01000000 61020000 006263'
    """

    name = "vlen-utf8"
    _data_type = "string"
    _fixed_type = "fixed_length_utf32"
    _unit = 4
    _coder = VLenUTF8()
    _last = LAST.decode()

    @staticmethod
    def _size(items: list[Any]) -> int:
        size = VLenCodec._size(items)
        if 4 * size <= MAX_VARIABLE:  # small enough, as a character takes at most four bytes
            return size
        return LENGTH * (1 + len(items)) + sum(len(item.encode()) for item in items)
