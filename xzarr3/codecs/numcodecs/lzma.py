"""``numcodecs.lzma``: LZMA in the containers of xz, or in none.

Specification: zarr-extensions, "numcodecs.lzma"; the documentation of numcodecs, "LZMA".
Names: ``numcodecs.lzma``.
Example: ``{"name": "numcodecs.lzma", "configuration": {"format": 1, "check": -1, "preset": 1}}``.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import BytesBytesCodec, Configuration
from xzarr3.codecs.numcodecs._streams import decompress
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError

_MEMORY = 2**29  # Bytes; the largest preset decodes in 65 MiB.
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
"""The fields of a filter of LZMA and the least and most that each can be."""


@dataclass(frozen=True)
class LzmaCodec(BytesBytesCodec):
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
        The chain of filters, in place of a preset.
    """

    name = "numcodecs.lzma"
    format: int = 1
    check: int = -1
    preset: int | None = None
    filters: tuple[tuple[tuple[str, int], ...], ...] | None = None

    def __post_init__(self) -> None:
        fields = Configuration(self.name, {"format": self.format, "check": self.check})
        fields.integer("format", 0, 3)
        if fields.integer("check", -1, 16) not in _CHECKS:
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

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        format_ = fields.integer("format", 0, 3, default=1)
        check = fields.integer("check", -1, 16, default=-1)
        preset = fields.take("preset", "an integer from 0 to 9, or null", None)
        filters = fields.take("filters", "a list of filters, or null", None)
        fields.finish()
        return cls(format_, check, preset, filters)  # type: ignore[arg-type]

    def configuration(self) -> dict[str, JSON]:
        given: dict[str, JSON] = {"format": self.format, "check": self.check}
        if self.preset is not None:
            given["preset"] = self.preset
        if self.filters is not None:
            given["filters"] = [dict(item) for item in self.filters]
        return given

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
            raise ChunkEncodeError(f"cannot compress so: {error}", codec=self.name) from error

    def decode(self, data: Buffer, limit: int) -> Buffer:
        # Without a container there is nothing to tell another stream by.
        several = self.format != lzma.FORMAT_RAW
        return decompress(self, self._decompressor, data, limit, several=several)

    def _decompressor(self) -> lzma.LZMADecompressor:
        try:
            if self.format == lzma.FORMAT_RAW:
                return lzma.LZMADecompressor(self.format, filters=self._chain)
            return lzma.LZMADecompressor(self.format, memlimit=_MEMORY)
        except (lzma.LZMAError, ValueError, TypeError, MemoryError) as error:
            raise ChunkDecodeError(f"cannot decompress so: {error}", codec=self.name) from error


def _is_preset(preset: int) -> bool:
    return 0 <= preset & ~lzma.PRESET_EXTREME <= 9 and preset >= 0
