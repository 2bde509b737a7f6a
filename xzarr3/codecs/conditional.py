"""``conditional``: applies each codec of a list of bytes to bytes codecs only where it helps.

A chunk begins with a header that has a bit for each codec. The first codec has the lowest bit of the first
byte. Then come the data, encoded by the codecs whose bits are set. The writer chooses these codecs. This
package applies a codec only if it makes the chunk smaller. It always applies a codec whose encoded size
does not depend on the data, such as ``shuffle`` and the checksums.

Specification: zarr-extensions, "conditional codec". Names: ``conditional``.
Example: ``{"name": "conditional", "configuration": {"codecs": [{"name": "zstd", "configuration": {"level":
3, "checksum": false}}], "header_bits": 8}}``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self, cast

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, ChunkSpec
from xzarr3.codecs.parsing import parse_codecs
from xzarr3.codecs.pipeline import MAX_CODECS, Calling, most_encoded
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, UnknownExtensionError
from xzarr3.fields import Meta, parsed


def _all_codecs(data: JSON, field: str) -> tuple[BytesBytesCodec, ...]:
    codecs = codecs_from_json(data, field)
    if len(codecs) != len(cast("list[JSON]", data)):
        reason = "codec 'conditional': each codec has a bit of its own, so none can be ignored"
        raise UnknownExtensionError(reason, field=field, accepted="codecs that this installation knows")
    return cast("tuple[BytesBytesCodec, ...]", codecs)


@dataclass(frozen=True)
class ConditionalCodec(BytesBytesCodec):
    """Applies codecs only to chunks that they make smaller.

    Parameters
    ----------
    codecs : sequence of codecs from bytes to bytes
        Each in any form that ``parse_codec`` accepts.
    header_bits : int, optional
        Size of the header in bits, a multiple of 8. More bits than codecs leave room for codecs to be added.
        By default as few as possible.

    Examples
    --------
    >>> codec = ConditionalCodec(["gzip"])
    >>> len(codec.encode(bytes(1000))) < 100
    True
    >>> bytes(codec.encode(b"zarr"))
    b'\\x00zarr'
    """

    name = "conditional"
    codecs: tuple[BytesBytesCodec, ...] = parsed(_all_codecs, "a list of codecs")
    header_bits: Annotated[int, Meta(ge=8, le=2**16, multiple_of=8)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "codecs", parse_codecs(self.codecs, BytesBytesCodec))
        number = len(self.codecs)
        if not 1 <= number <= MAX_CODECS or any(isinstance(codec, ConditionalCodec) for codec in self.codecs):
            raise self.wrong("codecs", number, f"1 to {MAX_CODECS} codecs, none of them 'conditional'")
        if self.header_bits is not None and self.header_bits < number:
            raise self.wrong("header_bits", self.header_bits, f"a multiple of 8, at least {number}")

    def evolve(self, spec: ChunkSpec) -> Self:
        return replace(self, codecs=tuple(codec.evolve(spec) for codec in self.codecs))

    @property
    def _header(self) -> int:
        """Size of the header in bytes."""
        return -(-(self.header_bits or len(self.codecs)) // 8)

    def max_encoded_size(self, size: int) -> int:
        most = most_encoded(size)
        for codec in self.codecs:
            size = min(max(size, codec.max_encoded_size(size)), most)
        return self._header + size

    def encode(self, data: Buffer) -> Buffer:
        applied = 0
        for bit, codec in enumerate(self.codecs):
            with Calling(ChunkEncodeError, codec):
                encoded = codec.encode(data)
            if len(encoded) < len(data) or codec.encoded_size(len(data)) is not None:
                data = encoded
                applied |= 1 << bit
        return b"".join([applied.to_bytes(self._header, "little"), data])

    def decode(self, data: Buffer, limit: int) -> Buffer:
        view, header, number = memoryview(data), self._header, len(self.codecs)
        applied = int.from_bytes(view[:header], "little")
        if len(data) < header or applied >> number:
            why = f"found {len(data)} bytes whose header of {header} bytes does not fit {number} codecs"
            raise ChunkDecodeError(why, codec=self.name)
        stages: list[tuple[BytesBytesCodec, int]] = []
        size = limit
        for bit, codec in enumerate(self.codecs):
            if applied >> bit & 1:
                stages.append((codec, size))
                size = min(codec.max_encoded_size(size), most_encoded(limit))
        value: Buffer = view[header:]
        for codec, most in reversed(stages):
            with Calling(ChunkDecodeError, codec):
                value = codec.decode(value, most)
        if len(value) > limit:
            raise self.too_large(limit, len(value))
        return value
