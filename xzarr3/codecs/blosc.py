"""``blosc``: the Blosc 1 container with its inner compressors and shuffles.

numcodecs encodes and decodes it. It is built without Snappy, so chunks with Snappy are refused by name.

Specification: Zarr v3, "Blosc codec". Names: ``blosc``.
Example: ``{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle",
"typesize": 4, "blocksize": 0}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, get_args

from numcodecs import blosc

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, ChunkSpec
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, UnknownExtensionError, listed
from xzarr3.fields import REQUIRED, Meta

CName = Literal["lz4", "lz4hc", "blosclz", "snappy", "zlib", "zstd"]
Shuffle = Literal["noshuffle", "shuffle", "bitshuffle"]
# The top three bits of the third byte of the header give the format; lz4hc writes the format of lz4.
_FORMATS = {0: "blosclz", 1: "lz4", 2: "snappy", 3: "zlib", 4: "zstd"}
_HEADER = 16
_MAX_SIZE = 2**31 - 1

# One thread per call, because chunks are decoded in parallel. Blosc's own threads, and its check whether it
# may use them, cost more time than decoding a small chunk.
blosc.use_threads = False


@dataclass(frozen=True)
class BloscCodec(BytesBytesCodec):
    """Compression with Blosc.

    Parameters
    ----------
    cname : {"lz4", "lz4hc", "blosclz", "snappy", "zlib", "zstd"}
        The inner compressor. A document may name Snappy, but numcodecs is built without it.
    clevel : int
        0 (store) to 9 (smallest).
    shuffle : {"noshuffle", "shuffle", "bitshuffle"}, optional
        How bytes or bits are shuffled before compression; by default ``bitshuffle`` for data types of one
        byte, else ``shuffle``.
    typesize : int, optional
        Size of an element in bytes; by default that of the array's data type.
    blocksize : int
        Size of Blosc's blocks in bytes; 0 lets Blosc choose.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.array([1, 2, 3], compressors=xzarr3.codecs.BloscCodec(cname="lz4", clevel=3)).compressors
    (BloscCodec(cname='lz4', clevel=3, shuffle='shuffle', typesize=8, blocksize=0),)
    """

    name = "blosc"
    decode_rate = 6000
    direct_from = 2**19
    direct_many = False
    cname: Annotated[CName, REQUIRED] = "zstd"
    clevel: Annotated[int, Meta(ge=0, le=9), REQUIRED] = 5
    # The specification requires these two fields. Decoding does not need them, so documents may omit them.
    shuffle: Shuffle | None = None
    typesize: Annotated[int, Meta(ge=1, le=_MAX_SIZE)] | None = None
    blocksize: Annotated[int, Meta(ge=0, le=_MAX_SIZE)] = 0

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        size = configuration.get("typesize")
        # Without a shuffle the size of elements does not matter, so some writers store 0.
        if configuration.get("shuffle") == "noshuffle" and type(size) is int and size == 0:
            configuration = {name: value for name, value in configuration.items() if name != "typesize"}
        return super().from_configuration(configuration)

    def evolve(self, spec: ChunkSpec) -> Self:
        size = spec.element_size
        shuffle = self.shuffle or ("bitshuffle" if size == 1 else "shuffle")
        return replace(self, shuffle=shuffle, typesize=self.typesize or size)

    def max_encoded_size(self, size: int) -> int:
        return size + _HEADER

    @property
    def shuffle_number(self) -> int:
        """The shuffle as Blosc's functions and headers number it."""
        return get_args(Shuffle).index(self.shuffle or "noshuffle")

    def encode(self, data: Buffer) -> Buffer:
        size = len(data)
        if size > _MAX_SIZE - _HEADER:
            raise ChunkEncodeError(
                f"the chunk has {size} bytes; blosc holds less than 2 GiB", codec=self.name
            )
        fields = self.cname.encode(), self.clevel, self.shuffle_number, self.blocksize, self.typesize or 1
        try:
            return blosc.compress(data, *fields)  # type: ignore[no-any-return]
        except ValueError as error:
            raise ChunkEncodeError(str(error), codec=self.name) from error

    # Blosc reads beyond the end of data that are shorter than their header says. So both methods below first
    # compare the stored size in the header with the size of the data.

    def decode(self, data: Buffer, limit: int) -> Buffer:
        size, stored = int.from_bytes(data[4:8], "little"), int.from_bytes(data[12:16], "little")
        if stored != len(data) or stored < _HEADER:
            raise ChunkDecodeError(
                f"found {len(data)} bytes, the header says {stored}; the data are truncated or not blosc",
                codec=self.name,
            )
        if size > limit:
            raise self.too_large(limit, size)
        if size == 0:
            return b""
        try:
            return blosc.decompress(data)  # type: ignore[no-any-return]
        except RuntimeError as error:
            inside, known = _FORMATS.get(data[2] >> 5), blosc.list_compressors()
            reason = (
                f"not valid blosc data: {error}"
                if inside in known
                else f"compressed with {inside or 'something unknown'}, blosc here has {listed(known)}"
            )
            if inside == self.cname == "snappy":  # sound, but not read here
                raise ChunkDecodeError(reason, codec=self.name) from UnknownExtensionError(reason)
            raise ChunkDecodeError(reason, codec=self.name) from error

    def decode_into(self, data: Buffer, out: memoryview) -> bool:
        size, stored = int.from_bytes(data[4:8], "little"), int.from_bytes(data[12:16], "little")
        if size != len(out) or stored != len(data) or stored < _HEADER:
            return False
        try:
            blosc.decompress(data, out)
        except RuntimeError:  # the caller then calls decode, which reports the error
            return False
        return True
