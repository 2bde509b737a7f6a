"""``conditional``: applies each codec of a list of bytes to bytes codecs only where it helps.

A chunk begins with a header that has a bit for each codec. The first codec has the lowest bit of the first
byte. Then come the data, encoded by the codecs whose bits are set. The writer chooses these codecs. This
package applies a codec only if it makes the chunk smaller. It always applies a codec whose encoded size
does not depend on the data, such as ``shuffle`` and the checksums.

Specification: zarr-extensions, "conditional" (pull request 27, where it was called ``optional`` at first).
Names: ``conditional``.
Example: ``{"name": "conditional", "configuration": {"codecs": [{"name": "zstd", "configuration": {"level":
3, "checksum": false}}], "header_bits": 8}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, cast

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, ChunkSpec, Configuration
from xzarr3.codecs.parsing import parse_codecs
from xzarr3.codecs.pipeline import MAX_CODECS, foreign_error, most_encoded
from xzarr3.codecs.registry import codecs_from_json
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, UnknownExtensionError, Xzarr3Error

_MAX_BITS = 2**16


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
    codecs: tuple[BytesBytesCodec, ...]
    header_bits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "codecs", parse_codecs(self.codecs, BytesBytesCodec))
        fields = Configuration(self.name, {"codecs": [codec.name for codec in self.codecs]})
        if not self.codecs:
            raise fields.error("codecs", [], "at least one codec")
        if len(self.codecs) > MAX_CODECS:
            raise fields.error("codecs", len(self.codecs), f"at most {MAX_CODECS} codecs")
        bits = self.header_bits
        if bits is not None and not (
            type(bits) is int and len(self.codecs) <= bits <= _MAX_BITS and bits % 8 == 0
        ):
            raise fields.error(
                "header_bits",
                bits,
                f"a multiple of 8 from {len(self.codecs)}, one for each codec, to {_MAX_BITS}",
            )

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        given = fields.take("codecs", "a list of codecs")
        bits = cast("int | None", fields.take("header_bits", "a multiple of 8", None))
        fields.finish()
        codecs = codecs_from_json(given, "configuration.codecs")
        if len(codecs) != len(cast("list[JSON]", given)):
            raise UnknownExtensionError(
                f"codec '{cls.name}': each codec has a bit of its own, so none can be ignored",
                field="configuration.codecs",
                found=[codec.name for codec in codecs],
                accepted="codecs that this installation knows",
            )
        return cls(cast("tuple[BytesBytesCodec, ...]", codecs), bits)

    def configuration(self) -> dict[str, JSON]:
        given: dict[str, JSON] = {"codecs": [codec.to_json() for codec in self.codecs]}
        if self.header_bits is not None:
            given["header_bits"] = self.header_bits
        return given

    def evolve(self, spec: ChunkSpec) -> Self:
        return replace(self, codecs=tuple(codec.evolve(spec) for codec in self.codecs))

    @cached_property
    def _header(self) -> int:
        """Size of the header in bytes."""
        return -(-len(self.codecs) // 8) if self.header_bits is None else self.header_bits // 8

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        most = most_encoded(size)
        for codec in self.codecs:
            size = min(max(size, codec.max_encoded_size(size)), most)
        return self._header + size

    def encode(self, data: Buffer) -> Buffer:
        applied = 0
        for bit, codec in enumerate(self.codecs):
            try:
                encoded = codec.encode(data)
                if len(encoded) < len(data) or codec.encoded_size(len(data)) is not None:
                    data = encoded
                    applied |= 1 << bit
            except (Xzarr3Error, MemoryError):
                raise
            except Exception as error:
                raise foreign_error(ChunkEncodeError, codec, error) from error
        return b"".join([applied.to_bytes(self._header, "little"), data])

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return self._decode(data, limit, most_encoded(limit))

    def _decode(self, data: Buffer, limit: int, largest: int) -> Buffer:
        """Decode to at most ``limit`` bytes, with at most ``largest`` bytes between two codecs."""
        if len(data) < self._header:
            raise ChunkDecodeError(
                f"found {len(data)} bytes, the header takes {self._header}", codec=self.name
            )
        view = memoryview(data)
        applied = int.from_bytes(view[: self._header], "little")
        if applied >> len(self.codecs):
            raise ChunkDecodeError(
                f"the header names a codec past the last of the {len(self.codecs)} codecs", codec=self.name
            )
        stages: list[tuple[BytesBytesCodec, int]] = []
        size = limit
        for bit, codec in enumerate(self.codecs):
            if applied >> bit & 1:
                stages.append((codec, size))
                size = min(codec.max_encoded_size(size), largest)
        value: Buffer = view[self._header :]
        if not stages and len(value) > limit:
            raise self.too_large(limit, len(value))
        for codec, most in reversed(stages):
            try:
                if isinstance(codec, ConditionalCodec):  # nested conditional codecs share one bound
                    value = codec._decode(value, most, largest)
                else:
                    value = codec.decode(value, most)
            except (Xzarr3Error, MemoryError):
                raise
            except Exception as error:
                raise foreign_error(ChunkDecodeError, codec, error) from error
        return value
