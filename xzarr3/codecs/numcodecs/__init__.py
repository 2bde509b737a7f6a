"""Codecs as numcodecs configures them. Version 2 of the format names codecs in this way.

A configuration of numcodecs is an object with the ``id`` of a codec and its parameters. Only the ids of
:func:`numcodecs_ids` are accepted. No id is looked up in numcodecs, because its registry loads code of other
packages.

Specification: Zarr v2, "Arrays", ``compressor`` and ``filters``; the documentation of numcodecs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from xzarr3 import fields
from xzarr3._types import JSON
from xzarr3.codecs.base import ChunkSpec, Codec
from xzarr3.codecs.registry import ALIASES, NUMCODECS, codec_class, configured, unknown
from xzarr3.dtypes.specs import UNREAD_OBJECT_CODECS
from xzarr3.errors import MetadataError, UnknownExtensionError
from xzarr3.fields import Meta

_VLEN = ("vlen-bytes", "vlen-utf8")
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


class _Blosc(msgspec.Struct, frozen=True):
    cname: str = "lz4"
    clevel: int = 5
    shuffle: Annotated[int, Meta(ge=-1, le=2)] = 1
    blocksize: int = 0
    typesize: int | None = None


class _Crc32c(msgspec.Struct, frozen=True):
    location: Literal["start", "end"] = "end"


def numcodecs_ids() -> list[str]:
    """The ids of numcodecs that this package supports."""
    return sorted({*(name.removeprefix("numcodecs.") for name in (*NUMCODECS, *ALIASES)), *_VLEN})


def aliased(name: str, configuration: Mapping[str, JSON]) -> Codec:
    """The codec of version 3 that stores the same bytes as the codec ``numcodecs.<name>``."""
    cls: Any = codec_class(name)
    what = f"codec 'numcodecs.{name}'"
    if name == "zstd":
        return configured(cls, configuration)
    if name == "gzip":
        level = configuration.get("level", 1)
        level = 6 if level == -1 and type(level) is int else level  # 6 is the default of zlib
        return configured(cls, {**configuration, "level": level})
    if name == "crc32c":
        at_start = fields.read(_Crc32c, configuration, what).get("location") == "start"
        return codec_class("numcodecs.crc32c")() if at_start else cls()
    given = _Blosc(**fields.read(_Blosc, configuration, what))
    shuffle = None if given.shuffle < 0 else _SHUFFLES[given.shuffle]
    return cls(given.cname, given.clevel, shuffle, given.typesize, given.blocksize)  # type: ignore[no-any-return]


def from_numcodecs(config: Mapping[str, Any], endian: str | None = None) -> Codec:
    """The codec that a configuration of numcodecs describes.

    Parameters
    ----------
    config : mapping
        As in ``filters`` and ``compressor`` of version 2, or as ``get_config()`` of a codec returns it.
    endian : {"little", "big"}, optional
        The byte order of the elements of the array. Filters must have the same one.

    Raises
    ------
    UnknownExtensionError
        If this package has no such codec.
    MetadataError
        If the configuration is malformed or a parameter is not valid.

    Examples
    --------
    >>> from_numcodecs({"id": "zlib", "level": 3})
    ZlibCodec(level=3)
    >>> from_numcodecs({"id": "zstd", "level": 1})
    ZstdCodec(level=1, checksum=False)
    """
    if not isinstance(config, Mapping) or not isinstance(config.get("id"), str):
        raise MetadataError("not a codec", found=config, accepted="an object with 'id' and parameters")
    name = config["id"]
    # Null and absence both select the default of numcodecs.
    given: dict[str, Any] = {
        str(key): list(value) if isinstance(value, tuple) else value
        for key, value in config.items()
        if key != "id" and value is not None
    }
    if name in _VLEN:
        return configured(codec_class(name), given)
    if f"numcodecs.{name}" in ALIASES:
        return aliased(name, given)
    if f"numcodecs.{name}" not in NUMCODECS:
        if name in UNREAD_OBJECT_CODECS:
            why = f"codec '{name}' is not read: {UNREAD_OBJECT_CODECS[name]}"
            raise UnknownExtensionError(why, field="id", found=name, accepted=numcodecs_ids())
        from xzarr3.codecs import foreign

        codec = foreign.numcodec(name, given)
        if codec is None:
            raise unknown(name, "id", numcodecs_ids())
        return codec
    if name == "shuffle":
        given.setdefault("elementsize", 4)  # in version 3 the default is the size of an element
    cls = codec_class(f"numcodecs.{name}")
    for field in getattr(cls, "dtype_fields", ()):
        endian = _to_little(given, field, endian)
    return configured(cls, given)


def _to_little(given: dict[str, Any], field: str, endian: str | None) -> str | None:
    """Take the byte order out of the dtype in a field of a filter, and return it or the one before it."""
    from xzarr3.codecs.numcodecs.filters import byte_order, in_byte_order

    try:
        own = byte_order(given.get(field))
    except (TypeError, ValueError):
        return endian  # not a dtype; the codec says so
    if own is None:
        return endian
    if endian not in (None, own):
        raise UnknownExtensionError(
            "an array and its filters have one byte order here", field=field, found=given[field],
            accepted=f"'{in_byte_order(given[field], endian)}'",
        )  # fmt: skip
    given[field] = in_byte_order(given[field], "little")
    return own


def to_numcodecs(codec: Codec, spec: ChunkSpec, endian: str | None = None) -> dict[str, JSON]:
    """The configuration of numcodecs for a codec; :func:`from_numcodecs` turns it into an equivalent codec.

    Parameters
    ----------
    codec : Codec
    spec : ChunkSpec
        The chunks that the codec encodes.
    endian : {"little", "big"}, optional
        The byte order of the elements of the array.

    Raises
    ------
    MetadataError
        If numcodecs has no such codec.
    """
    from xzarr3.codecs.foreign import OfNumcodecs
    from xzarr3.codecs.numcodecs.filters import with_byte_order

    codec = codec.evolve(spec)
    name = codec.name.removeprefix("numcodecs.")
    if isinstance(codec, OfNumcodecs):
        return {"id": name, **codec.configuration()}
    if codec.name not in NUMCODECS and f"numcodecs.{codec.name}" not in ALIASES and name not in _VLEN:
        raise MetadataError(
            "Zarr format 2 has no such codec", field="id", found=codec.name, accepted=numcodecs_ids()
        )
    config: dict[str, Any] = {"id": name, **codec.configuration()}
    if name == "blosc":
        config["shuffle"] = _SHUFFLES.index(config["shuffle"])
        del config["typesize"]
    if name == "zstd" and not config["checksum"]:
        del config["checksum"]  # earlier versions of numcodecs know neither this field nor "location"
    if name in ("adler32", "crc32") and config["location"] == "start":
        del config["location"]  # the default of numcodecs
    return config | with_byte_order(codec, endian or "little")
