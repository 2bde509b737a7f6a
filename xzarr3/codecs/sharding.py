"""``sharding_indexed``: a chunk as a shard of inner chunks, each encoded on its own, and an index.

Specification: Zarr v3, "Sharding codec". Names: ``sharding_indexed``.
Example: ``{"name": "sharding_indexed", "configuration": {"chunk_shape": [32, 32], "codecs": [{"name":
"bytes", "configuration": {"endian": "little"}}], "index_codecs": [{"name": "bytes", "configuration":
{"endian": "little"}}, {"name": "crc32c"}], "index_location": "end"}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec, Codec, Configuration
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.chain import Shard
from xzarr3.codecs.crc32c import Crc32cCodec
from xzarr3.codecs.registry import codecs_from_json


@dataclass(frozen=True)
class ShardingCodec(ArrayBytesCodec):
    """A chunk as a shard of inner chunks.

    Parameters
    ----------
    chunk_shape : tuple of int
        Shape of an inner chunk; it divides the shard evenly.
    codecs : tuple of Codec
        Codecs of an inner chunk.
    index_codecs : tuple of Codec
        Codecs of the index, all of fixed size.
    index_location : {"end", "start"}
        Where in the shard the index is.
    """

    name = "sharding_indexed"
    chunk_shape: tuple[int, ...]
    codecs: tuple[Codec, ...] = (BytesCodec(),)
    index_codecs: tuple[Codec, ...] = field(default=(BytesCodec(), Crc32cCodec()))
    index_location: str = "end"

    def __post_init__(self) -> None:
        for name in ("chunk_shape", "codecs", "index_codecs"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        Configuration(self.name, {"index_location": self.index_location}).choice(
            "index_location", ("end", "start")
        )

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        chunk_shape = fields.integers("chunk_shape", 1)
        codecs = codecs_from_json(fields.take("codecs", "a list of codecs"), "configuration.codecs")
        index_codecs = codecs_from_json(
            fields.take("index_codecs", "a list of codecs"), "configuration.index_codecs"
        )
        location = fields.choice("index_location", ("end", "start"), default="end")
        fields.finish()
        return cls(chunk_shape, codecs, index_codecs, location)

    def configuration(self) -> dict[str, JSON]:
        return {
            "chunk_shape": list(self.chunk_shape),
            "codecs": [codec.to_json() for codec in self.codecs],
            "index_codecs": [codec.to_json() for codec in self.index_codecs],
            "index_location": self.index_location,
        }

    def encoded_size(self, spec: ChunkSpec) -> None:
        return None

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return Shard(self, spec).max_encoded_size

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        return Shard(self, spec).encode(array)

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        return Shard(self, spec).decode(data)
