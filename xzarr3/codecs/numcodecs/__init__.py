"""Codecs as numcodecs configures them. Version 2 of the format names codecs in this way.

A configuration of numcodecs is an object with the ``id`` of a codec and its parameters. Only the ids of
:func:`numcodecs_ids` are accepted. No id is looked up in numcodecs, because its registry loads code of other
packages.

Specification: Zarr v2, "Arrays", ``compressor`` and ``filters``; the documentation of numcodecs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from xzarr3._types import JSON
from xzarr3.codecs.base import ChunkSpec, Codec
from xzarr3.codecs.registry import NUMCODECS, codec_class, configured, loaded
from xzarr3.errors import MetadataError, UnknownExtensionError

# numcodecs writes the same bytes as these codecs of version 3, so these are used in its place.
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
    """The ids of numcodecs that this package supports."""
    return sorted({*(name.removeprefix("numcodecs.") for name in NUMCODECS), *_SAME, *_VERSION_2})


def from_numcodecs(config: Mapping[str, Any], endian: str | None = None) -> Codec:
    """The codec that a configuration of numcodecs describes.

    Parameters
    ----------
    config : mapping
        As in ``filters`` and ``compressor`` of version 2, or as ``get_config()`` of a codec returns it.
    endian : {"little", "big"}, optional
        The byte order of the elements that numcodecs would pass to the codec. numcodecs allows a filter with
        another byte order; such a filter sees the elements with their bytes swapped.

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
    fields: dict[str, Any] = {str(key): value for key, value in config.items() if key != "id"}
    if name in _VERSION_2:
        return _with_byte_order(configured(loaded(_VERSION_2[name]), _given(fields)), endian)
    if name not in _SAME and f"numcodecs.{name}" not in NUMCODECS:
        if name in _REFUSED:
            raise UnknownExtensionError(
                f"unknown codec: {_REFUSED[name]}", field="id", found=name, accepted=numcodecs_ids()
            )
        from xzarr3.codecs._installed import unknown  # imported only when needed

        raise unknown(name, "id", numcodecs_ids())
    if name in ("vlen-utf8", "vlen-bytes"):
        return configured(codec_class(name), fields)
    fields = _given(fields)
    if name == "shuffle":
        fields.setdefault("elementsize", 4)  # in version 3 the default is the size of an element
    codec = configured(codec_class(f"numcodecs.{name}"), fields)
    if name == "crc32c":
        return codec if codec.configuration()["location"] == "start" else codec_class("crc32c")()
    if name in ("blosc", "gzip", "zstd"):
        return _in_version_3(name, codec)
    return _with_byte_order(codec, endian)


def _given(fields: dict[str, Any]) -> dict[str, JSON]:
    """Parameters without null ones: null and absence both select the default of numcodecs."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in fields.items()
        if value is not None
    }


def _in_version_3(name: str, codec: Any) -> Codec:
    """The codec of version 3 that is equivalent to a codec of numcodecs."""
    if name == "gzip":
        return codec if codec.level < 0 else codec_class(name).from_configuration(codec.configuration())
    return _copied(codec, name, ("level", "checksum") if name == "zstd" else _BLOSC)


_BLOSC = ("cname", "clevel", "shuffle", "typesize", "blocksize")


def _copied(codec: Codec, name: str, fields: tuple[str, ...]) -> Codec:
    """The codec ``name`` with the parameters ``fields`` of another codec."""
    cls: Any = codec_class(name)
    return cast("Codec", cls(**{field: getattr(codec, field) for field in fields}))


def _with_byte_order(codec: Codec, endian: str | None) -> Codec:
    """Convert the dtypes of a filter from version 2 to version 3.

    In version 2 the byte order of ``dtype`` is that of stored elements. In version 3 ``dtype`` is little
    endian unless the filter has to see swapped bytes.
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
    """The byte order in which numcodecs stores the encoded elements; None if the codec does not decide it.

    Examples
    --------
    >>> stored_endian(from_numcodecs({"id": "delta", "dtype": "<i4", "astype": ">i2"}))
    'big'
    """
    from xzarr3.codecs.numcodecs.filters import TypedFilter, byte_order

    return byte_order(codec.astype) if isinstance(codec, TypedFilter) else None


def to_numcodecs(codec: Codec, spec: ChunkSpec, endian: str | None = None) -> dict[str, JSON]:
    """The configuration of numcodecs for a codec; :func:`from_numcodecs` turns it into an equivalent codec.

    Parameters
    ----------
    codec : Codec
    spec : ChunkSpec
        The chunks that the codec encodes.
    endian : {"little", "big"}, optional
        The byte order of the elements that numcodecs would pass to the codec.

    Raises
    ------
    MetadataError
        If numcodecs has no such codec.
    """
    codec = codec.evolve(spec)
    name = codec.name.removeprefix("numcodecs.")
    if codec.name not in NUMCODECS and codec.name not in _SAME and name not in _VERSION_2:
        raise MetadataError(
            "Zarr format 2 has no such codec", field="id", found=codec.name, accepted=numcodecs_ids()
        )
    config: dict[str, JSON] = {"id": name, **codec.configuration()}
    if codec.name == "blosc":
        config = {"id": name, **_copied(codec, "numcodecs.blosc", _BLOSC).configuration()}
    if name == "zstd" and not config["checksum"]:
        del config["checksum"]  # earlier versions of numcodecs know neither this field nor "location"
    if "location" in config and config["location"] == getattr(type(codec), "location", None):
        del config["location"]
    return config | _dtypes_in_byte_order(codec, endian)


def _dtypes_in_byte_order(codec: Codec, endian: str | None) -> dict[str, JSON]:
    """The dtypes of a filter, converted to version 2; the inverse of :func:`_with_byte_order`."""
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
