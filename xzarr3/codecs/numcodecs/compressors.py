"""The compressors of numcodecs, and its byte shuffle, which is applied before a compressor.

Specification: zarr-extensions, a document for each name; the documentation of numcodecs. Names:
``numcodecs.blosc``, ``numcodecs.bz2``, ``numcodecs.gzip``, ``numcodecs.lz4``, ``numcodecs.lzma``,
``numcodecs.shuffle``, ``numcodecs.zlib``, ``numcodecs.zstd``.
Example: ``{"name": "numcodecs.zlib", "configuration": {"level": 1}}``.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from isal import isal_zlib
from isal.igzip_lib import IsalError
from numcodecs import lz4
from numcodecs.shuffle import Shuffle

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, ChunkSpec, Configuration, parameter
from xzarr3.codecs.blosc import CNAMES, BloscCodec
from xzarr3.codecs.gzip import GzipCodec
from xzarr3.codecs.numcodecs.base import NumcodecsCodec
from xzarr3.codecs.zstd import ZstdCodec
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError

_MAX_INT = 2**31 - 1
_SHUFFLES: tuple[str | None, ...] = ("noshuffle", "shuffle", "bitshuffle", None)
"""The shuffles of blosc in the order of their numbers; None is number -1."""
_PIECE = 2**16  # bytes passed to a decompressor at once
_MEMORY = 2**29  # bytes; the largest preset decodes in 65 MiB
_CHECKS = (-1, 0, 1, 4, 10)
_FILTER_FIELDS = {
    "id": (0, 2**62),
    "preset": (0, 9 | lzma.PRESET_EXTREME),
    "dict_size": (0, _MEMORY),
    "lc": (0, 4),
    "lp": (0, 4),
    "pb": (0, 4),
    "mode": (1, 2),
    "nice_len": (2, 273),
    "mf": (0, 255),
    "depth": (0, 2**31),
    "dist": (1, 256),
    "start_offset": (0, 2**32 - 1),
}
"""The fields of an LZMA filter, with the least and the largest value of each."""


@dataclass(frozen=True)
class NumcodecsGzipCodec(GzipCodec):
    """``gzip`` under zarr-python's name for the codec of numcodecs.

    Parameters
    ----------
    level : int
        -1 for the default of zlib, or 0 (store) to 9 (smallest).
    """

    name = "numcodecs.gzip"
    level: int = parameter(Configuration.integer, -1, 9, default=1)


class NumcodecsZstdCodec(ZstdCodec):
    """``zstd`` under zarr-python's name for the codec of numcodecs."""

    name = "numcodecs.zstd"


@dataclass(frozen=True)
class NumcodecsBloscCodec(BloscCodec):
    """``blosc`` under zarr-python's name for the codec of numcodecs; documents have shuffles as numbers.

    Parameters
    ----------
    typesize : int, optional
        Read from a configuration but never written to one; by default the size of an element.
    """

    name = "numcodecs.blosc"
    typesize: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.typesize is not None:
            Configuration(self.name, {"typesize": self.typesize}).integer("typesize", 1, _MAX_INT)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        given: dict[str, Any] = {
            "cname": fields.choice("cname", CNAMES, default="lz4"),
            "clevel": fields.integer("clevel", 0, 9, default=5),
            "shuffle": _SHUFFLES[fields.integer("shuffle", -1, 2, default=1)],
            "typesize": fields.take("typesize", "an integer of at least 1", None),
            "blocksize": fields.integer("blocksize", 0, _MAX_INT, default=0),
        }
        fields.finish()
        return cls(**given)

    def configuration(self) -> dict[str, JSON]:
        number = -1 if self.shuffle is None else _SHUFFLES.index(self.shuffle)
        return {"cname": self.cname, "clevel": self.clevel, "shuffle": number, "blocksize": self.blocksize}


@dataclass(frozen=True)
class ZlibCodec(NumcodecsCodec, BytesBytesCodec):
    """Compression with zlib (RFC 1950).

    Parameters
    ----------
    level : int
        -1 for the default of zlib, or 0 (store) to 9 (smallest).
    """

    name = "numcodecs.zlib"
    level: int = parameter(Configuration.integer, -1, 9, default=1)

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        return size + size // 8 + 64

    def encode(self, data: Buffer) -> Buffer:
        return zlib.compress(data, self.level)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        stream = isal_zlib.decompressobj()
        value, failure = b"", ""
        try:
            value = stream.decompress(data, limit + 1)
        except IsalError as error:  # type: ignore[misc]
            failure = str(error)  # the error itself cannot be pickled, so it is not chained
        if failure:
            raise ChunkDecodeError(f"not valid zlib data: {failure}", codec=self.name)
        if len(value) > limit:
            raise self.too_large(limit)
        if not stream.eof:
            raise ChunkDecodeError(f"zlib data end early, after {len(data)} bytes", codec=self.name)
        if stream.unused_data:
            raise ChunkDecodeError(
                f"{len(stream.unused_data)} bytes remain after the zlib data", codec=self.name
            )
        return value


@dataclass(frozen=True)
class Bz2Codec(NumcodecsCodec, BytesBytesCodec):
    """Compression with bzip2.

    Parameters
    ----------
    level : int
        1 to 9 (smallest).
    """

    name = "numcodecs.bz2"
    level: int = parameter(Configuration.integer, 1, 9, default=1)

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        return size + size // 8 + 1024

    def encode(self, data: Buffer) -> Buffer:
        return bz2.compress(data, self.level)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        return _decompress(self, bz2.BZ2Decompressor, data, limit)


@dataclass(frozen=True)
class LzmaCodec(NumcodecsCodec, BytesBytesCodec):
    """Compression with LZMA; the parameters are those of Python's ``lzma`` module.

    Parameters
    ----------
    format : int
        1 (xz), 2 (the older container) or 3 (no container, which needs ``filters``).
    check : int
        The checksum of xz: -1 (the default of the format), 0 (none), 1, 4 or 10.
    preset : int, optional
        0 (fastest) to 9 (smallest), 2^31 more for slower and somewhat smaller.
    filters : tuple of mappings, optional
        The chain of filters, used instead of a preset.
    """

    name = "numcodecs.lzma"
    format: int = parameter(Configuration.integer, 0, 3, default=1)
    check: int = parameter(Configuration.integer, -1, 16, default=-1)
    preset: int | None = parameter(
        Configuration.take, "an integer from 0 to 9, or null", default=None, null=True
    )
    filters: tuple[tuple[tuple[str, int], ...], ...] | None = parameter(
        Configuration.take, "a list of filters, or null", default=None, null=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = Configuration(self.name, {})
        if self.check not in _CHECKS:
            raise fields.error("check", self.check, ", ".join(map(str, _CHECKS)))
        if self.preset is not None and (type(self.preset) is not int or not _is_preset(self.preset)):
            raise fields.error("preset", self.preset, "an integer from 0 to 9, or null")
        if self.filters is not None:
            object.__setattr__(self, "filters", self._parsed(self.filters, fields))
        if self.format == lzma.FORMAT_RAW and not self.filters:
            raise fields.error("filters", self.filters, "a list of filters for format 3")

    @staticmethod
    def _parsed(filters: Any, fields: Configuration) -> tuple[tuple[tuple[str, int], ...], ...]:
        accepted = "up to four objects with the fields of a filter of Python's lzma module"
        parsed = []
        if not isinstance(filters, (list, tuple)) or not 1 <= len(filters) <= 4:
            raise fields.error("filters", filters, accepted)
        for item in filters:
            try:
                options = dict(item)
                valid = "id" in options and all(
                    type(value) is int and _FILTER_FIELDS[key][0] <= value <= _FILTER_FIELDS[key][1]
                    for key, value in options.items()
                )
            except (TypeError, ValueError, KeyError) as error:
                raise fields.error("filters", filters, accepted) from error
            if not valid:
                raise fields.error("filters", filters, accepted)
            parsed.append(tuple(options.items()))
        return tuple(parsed)

    def configuration(self) -> dict[str, JSON]:
        given = super().configuration()
        return given if self.filters is None else given | {"filters": cast("JSON", self._chain)}

    @property
    def _chain(self) -> list[dict[str, Any]] | None:
        return None if self.filters is None else [dict(item) for item in self.filters]

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        return size + size // 8 + 1024

    def encode(self, data: Buffer) -> Buffer:
        try:
            return lzma.compress(data, self.format, self.check, self.preset, self._chain)
        except (lzma.LZMAError, ValueError, TypeError, MemoryError) as error:
            raise ChunkEncodeError(f"compression failed: {error}", codec=self.name) from error

    def decode(self, data: Buffer, limit: int) -> Buffer:
        # Without a container, the start of another stream cannot be recognized.
        several = self.format != lzma.FORMAT_RAW
        return _decompress(self, self._decompressor, data, limit, several=several)

    def _decompressor(self) -> lzma.LZMADecompressor:
        try:
            if self.format == lzma.FORMAT_RAW:
                return lzma.LZMADecompressor(self.format, filters=self._chain)
            return lzma.LZMADecompressor(self.format, memlimit=_MEMORY)
        except (lzma.LZMAError, ValueError, TypeError, MemoryError) as error:
            raise ChunkDecodeError(f"not valid data: {error}", codec=self.name) from error


def _is_preset(preset: int) -> bool:
    return 0 <= preset & ~lzma.PRESET_EXTREME <= 9 and preset >= 0


@dataclass(frozen=True)
class Lz4Codec(NumcodecsCodec, BytesBytesCodec):
    """Compression with LZ4: the decoded size in four bytes, little endian, then one block.

    Parameters
    ----------
    acceleration : int
        1 (smallest) or more (faster).
    """

    name = "numcodecs.lz4"
    acceleration: int = parameter(Configuration.integer, -_MAX_INT, _MAX_INT, default=1)

    def encoded_size(self, size: int) -> None:
        return None

    def max_encoded_size(self, size: int) -> int:
        return size + size // 255 + 20

    def encode(self, data: Buffer) -> Buffer:
        if len(data) > 0x7E000000:
            raise ChunkEncodeError(
                f"the chunk has {len(data)} bytes; LZ4 holds less than 2 GiB", codec=self.name
            )
        return lz4.compress(data, self.acceleration)  # type: ignore[no-any-return]

    def decode(self, data: Buffer, limit: int) -> Buffer:
        size = int.from_bytes(data[:4], "little")
        if size > limit:
            raise self.too_large(limit, size)
        if len(data) < 5 or size > 255 * len(data):  # a byte of LZ4 data decodes to at most 255 bytes
            raise ChunkDecodeError(
                f"found {len(data)} bytes, too few for {size} decoded ones", codec=self.name
            )
        if size == 0 and data[4:] == b"\0":  # numcodecs encodes empty data to this but cannot decode it
            return b""
        try:
            return lz4.decompress(data)  # type: ignore[no-any-return]
        except (RuntimeError, ValueError) as error:
            raise ChunkDecodeError(f"not valid lz4 data: {error}", codec=self.name) from error


@dataclass(frozen=True)
class ShuffleCodec(NumcodecsCodec, BytesBytesCodec):
    """Stores the first bytes of all elements, then the second bytes, and so on. This improves compression.

    Parameters
    ----------
    elementsize : int, optional
        Size of an element in bytes; by default that of the array's data type.
    """

    name = "numcodecs.shuffle"
    elementsize: int | None = parameter(Configuration.integer, 0, _MAX_INT, default=None, null=True)

    def evolve(self, spec: ChunkSpec) -> Self:
        return self if self.elementsize is not None else replace(self, elementsize=spec.element_size)

    def encoded_size(self, size: int) -> int:
        return size

    def max_encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Buffer) -> Buffer:
        return self._regrouped(data, ChunkEncodeError, encode=True)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        if len(data) > limit:
            raise self.too_large(limit, len(data))
        return self._regrouped(data, ChunkDecodeError, encode=False)

    def _regrouped(
        self, data: Buffer, failure: type[ChunkEncodeError | ChunkDecodeError], *, encode: bool
    ) -> Buffer:
        size = self.elementsize or 1
        if size == 1:
            return data
        if len(data) % size:
            raise failure(f"{len(data)} bytes are not whole elements of {size} bytes", codec=self.name)
        coder = Shuffle(size)
        return memoryview(coder.encode(data) if encode else coder.decode(data))


def _decompress(
    codec: BytesBytesCodec, make: Callable[[], Any], data: Buffer, limit: int, *, several: bool = True
) -> bytes:
    """Decode consecutive streams, each with a new decompressor of the bz2 or lzma module.

    The data are passed in pieces, because a decompressor copies all input after the end of its stream. With
    many short streams, copying all of the remaining data each time would be slow.
    """
    view = memoryview(data)
    values: list[bytes] = []
    at, left = 0, limit
    while True:
        stream = make()
        while not stream.eof:
            piece = view[at : at + _PIECE] if stream.needs_input else view[:0]
            if stream.needs_input and not piece:
                raise ChunkDecodeError(f"data end early, after {len(view)} bytes", codec=codec.name)
            at += len(piece)
            try:
                value = stream.decompress(piece, left + 1)
            except (OSError, EOFError, ValueError, lzma.LZMAError, MemoryError) as error:
                raise ChunkDecodeError(f"not valid data: {error}", codec=codec.name) from error
            left -= len(value)
            if left < 0:
                raise codec.too_large(limit)
            values.append(value)
        at -= len(stream.unused_data)
        if at == len(view):
            return b"".join(values)
        if not several:
            raise ChunkDecodeError(f"{len(view) - at} bytes remain after the data", codec=codec.name)
