"""Codecs as numcodecs configures them, which is how version 2 of the format names its codecs.

A configuration there is an object with the ``id`` of a codec beside its parameters. What is taken are the
ids in this module; none is looked up in numcodecs, whose registry loads what other packages put there.

Specification: Zarr v2, "Arrays", ``compressor`` and ``filters``; the documentation of numcodecs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from xzarr3._types import JSON
from xzarr3.codecs.base import ChunkSpec, Codec
from xzarr3.codecs.registry import NUMCODECS, codec_class, configured, loaded
from xzarr3.errors import MetadataError, UnknownExtensionError, listed

# Bytes are the same, so the codecs of version 3 stand for those of numcodecs.
_SAME = ("blosc", "crc32c", "gzip", "vlen-bytes", "vlen-utf8", "zstd")
# Version 3 has no names for these.
_VERSION_2 = {
    "base64": "xzarr3.codecs.numcodecs.objects:Base64Codec",
    "categorize": "xzarr3.codecs.numcodecs.objects:CategorizeCodec",
}
_REFUSED = {
    "pickle": "to read pickled objects is to run code that the chunks bring along",
    "msgpack": "chunks of msgpack are not read here",
    "msgpack2": "chunks of msgpack are not read here",
}


def numcodecs_ids() -> list[str]:
    """The ids of numcodecs that are known here."""
    return sorted({*(name.removeprefix("numcodecs.") for name in NUMCODECS), *_SAME, *_VERSION_2})


def from_numcodecs(config: Mapping[str, Any], endian: str | None = None) -> Codec:
    """The codec that a configuration of numcodecs describes.

    Parameters
    ----------
    config : mapping
        As ``filters`` and ``compressor`` of version 2 have it, and as ``get_config()`` of a codec gives it.
    endian : {"little", "big"}, optional
        The byte order in which the elements are that the codec would get from numcodecs. If a filter looks
        at them in another one, as numcodecs lets it, they are seen with their bytes swapped.

    Raises
    ------
    UnknownExtensionError
        If there is no such codec here.
    MetadataError
        If it is malformed or a parameter is not valid.

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
    fields: dict[str, Any] = {str(key): value for key, value in config.items() if key != "id"}
    if name in _VERSION_2:
        return _with_byte_order(configured(loaded(_VERSION_2[name]), _given(fields)), endian)
    if name not in _SAME and f"numcodecs.{name}" not in NUMCODECS:
        reason = f"unknown codec: {_REFUSED[name]}" if name in _REFUSED else "unknown codec"
        raise UnknownExtensionError(reason, field="id", found=name, accepted=listed(numcodecs_ids()))
    if name in ("vlen-utf8", "vlen-bytes"):
        return configured(codec_class(name), fields)
    fields = _given(fields)
    if name == "shuffle":
        fields.setdefault("elementsize", 4)  # In version 3 it is by default the size of an element.
    codec = configured(codec_class(f"numcodecs.{name}"), fields)
    if name == "crc32c":
        return codec if codec.configuration()["location"] == "start" else codec_class("crc32c")()
    if name in ("blosc", "gzip", "zstd"):
        return _in_version_3(name, codec)
    return _with_byte_order(codec, endian)


def _given(fields: dict[str, Any]) -> dict[str, JSON]:
    """Parameters without those that are null, which leave a parameter to numcodecs, as its absence does."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in fields.items()
        if value is not None
    }


def _in_version_3(name: str, codec: Any) -> Codec:
    """The codec of version 3 that does what the one of numcodecs does."""
    if name == "gzip":
        return codec if codec.level < 0 else codec_class(name).from_configuration(codec.configuration())
    return _copied(codec, name, ("level", "checksum") if name == "zstd" else _BLOSC)


_BLOSC = ("cname", "clevel", "shuffle", "typesize", "blocksize")


def _copied(codec: Codec, name: str, fields: tuple[str, ...]) -> Codec:
    """The codec ``name`` with these parameters of another one."""
    cls: Any = codec_class(name)
    return cast("Codec", cls(**{field: getattr(codec, field) for field in fields}))


def _with_byte_order(codec: Codec, endian: str | None) -> Codec:
    """A filter of version 2, whose byte order is that of stored elements, as one of version 3.

    There ``dtype`` is little endian unless the filter is to look at swapped bytes.
    """
    from xzarr3.codecs.numcodecs.filters import TypedFilter, byte_order, in_byte_order

    if not isinstance(codec, TypedFilter) or codec.dtype is None:
        return codec
    own = byte_order(codec.dtype)
    swapped = None not in (own, endian) and own != endian
    return replace(
        codec,
        dtype=codec.dtype if own is None else in_byte_order(codec.dtype, "big" if swapped else "little"),
        astype=codec.astype or codec.dtype,
    )


def stored_endian(codec: Codec) -> str | None:
    """The byte order in which numcodecs stores what a codec encodes; None if the codec does not decide it.

    Examples
    --------
    >>> stored_endian(from_numcodecs({"id": "delta", "dtype": "<i4", "astype": ">i2"}))
    'big'
    """
    from xzarr3.codecs.numcodecs.filters import TypedFilter, byte_order

    return byte_order(codec.astype) if isinstance(codec, TypedFilter) else None


def to_numcodecs(codec: Codec, spec: ChunkSpec, endian: str | None = None) -> dict[str, JSON]:
    """The configuration of numcodecs for a codec: :func:`from_numcodecs` gives one that does the same.

    Parameters
    ----------
    codec : Codec
    spec : ChunkSpec
        What it encodes.
    endian : {"little", "big"}, optional
        The byte order of the elements that numcodecs would give it.

    Raises
    ------
    MetadataError
        If numcodecs has no such codec.
    """
    codec = codec.evolve(spec)
    name = codec.name.removeprefix("numcodecs.")
    if codec.name not in NUMCODECS and codec.name not in _SAME and name not in _VERSION_2:
        raise MetadataError(
            "Zarr format 2 has no such codec", field="id", found=codec.name, accepted=listed(numcodecs_ids())
        )
    config: dict[str, JSON] = {"id": name, **codec.configuration()}
    if codec.name == "blosc":
        config = {"id": name, **_copied(codec, "numcodecs.blosc", _BLOSC).configuration()}
    if name == "zstd" and not config["checksum"]:
        del config["checksum"]  # Earlier versions of numcodecs do not know it, nor places of checksums.
    if "location" in config and config["location"] == getattr(type(codec), "location", None):
        del config["location"]
    return config | _dtypes_in_byte_order(codec, endian)


def _dtypes_in_byte_order(codec: Codec, endian: str | None) -> dict[str, JSON]:
    """The dtypes of a filter as version 2 means them; see :func:`_with_byte_order`."""
    from xzarr3.codecs.numcodecs.filters import TypedFilter, byte_order, in_byte_order

    if not isinstance(codec, TypedFilter) or codec.dtype is None:
        return {}
    other = {"little": "big", "big": "little"}
    looked_at = endian or "little"
    if byte_order(codec.dtype) == "big":
        looked_at = other[looked_at]
    astype = codec.astype or codec.dtype
    stored = byte_order(codec.astype) or endian
    return {
        codec.decoded_field: in_byte_order(codec.dtype, looked_at),
        codec.encoded_field: in_byte_order(astype, stored or "little"),
    }
