"""``base64``: bytes as text of 64 characters, as version 2 of the format keeps them.

It is the codec of that name in numcodecs. Version 3 has no such codec.

Specification: RFC 4648, section 4; the documentation of numcodecs, "Base64". Names: ``base64``, in version 2.
Example: ``{"id": "base64"}``.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration
from xzarr3.codecs.numcodecs import only_in_version_2
from xzarr3.errors import ChunkDecodeError


@dataclass(frozen=True)
class Base64Codec(BytesBytesCodec):
    """Four characters for every three bytes.

    Examples
    --------
    >>> bytes(Base64Codec().encode(b"zarr"))
    b'emFycg=='
    """

    name = "numcodecs.base64"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        Configuration(cls.name, configuration).finish()
        return cls()

    def to_json(self) -> JSON:
        raise only_in_version_2(self)

    def encoded_size(self, size: int) -> int:
        return 4 * -(-size // 3)

    def max_encoded_size(self, size: int) -> int:
        return self.encoded_size(size)

    def encode(self, data: Buffer) -> Buffer:
        return binascii.b2a_base64(data, newline=False)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        if len(data) > self.encoded_size(limit):
            raise self.too_large(limit)
        try:
            value = binascii.a2b_base64(data, strict_mode=True)
        except binascii.Error as error:
            raise ChunkDecodeError(f"not valid base64: {error}", codec=self.name) from error
        if len(value) > limit:
            raise self.too_large(limit, len(value))
        return value
