"""Parses the codecs that a user passes: objects, names, JSON, or codecs of numcodecs and zarr-python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.codecs.numcodecs import from_numcodecs
from xzarr3.codecs.registry import ALIASES, codec_class, codec_from_json, codec_names
from xzarr3.errors import MetadataError, UnknownExtensionError


def parse_codec(codec: Any) -> Codec:
    """Parse a codec, its name, its JSON, or a codec of numcodecs or zarr-python.

    Raises
    ------
    MetadataError
        If ``codec`` is none of these, unknown or not valid.

    Examples
    --------
    >>> parse_codec("zstd")
    ZstdCodec(level=0, checksum=False)
    >>> parse_codec({"name": "gzip", "configuration": {"level": 1}})
    GzipCodec(level=1)
    >>> parse_codec({"id": "bz2", "level": 9})
    Bz2Codec(level=9)
    """
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        try:
            if codec in ALIASES:
                return from_numcodecs({"id": codec.removeprefix("numcodecs.")})
            return codec_class(codec)()
        except TypeError as error:
            raise MetadataError(
                f"codec '{codec}' has parameters without defaults",
                found=codec,
                accepted="the codec itself, or its JSON",
            ) from error
    if isinstance(codec, Mapping):
        codec = dict(codec)
    elif callable(getattr(codec, "to_dict", None)):
        codec = _from_zarr_python(codec)
    elif callable(getattr(codec, "get_config", None)):
        codec = codec.get_config()
    else:
        raise MetadataError("not a codec", found=codec, accepted="a codec, its name or its JSON")
    if "id" in codec:
        return from_numcodecs(_plain(codec))
    parsed = codec_from_json(_plain(codec))
    if parsed is None:
        raise UnknownExtensionError("unknown codec", found=codec, accepted=codec_names())
    return parsed


def parse_codecs(codecs: Any, kind: Any) -> tuple[Codec, ...]:
    """Parse one codec or a sequence; each must be of ``kind``. None means no codec."""
    if codecs is None:
        return ()
    single = isinstance(codecs, (str, Mapping, Codec)) or not isinstance(codecs, Iterable)
    try:
        given = (codecs,) if single else tuple(codecs)
    except TypeError as error:  # for example an array of no dimensions, which still has __iter__
        raise MetadataError(
            "not codecs", found=codecs, accepted="a codec, its name or its JSON, or several"
        ) from error
    parsed = tuple(parse_codec(codec) for codec in given)
    for codec in parsed:
        if not isinstance(codec, kind):
            raise MetadataError(
                f"codec '{codec.name}' cannot be used here", found=codec.name, accepted=_KINDS[kind]
            )
    return parsed


_KINDS: dict[Any, str] = {
    ArrayArrayCodec: "codecs from arrays to arrays ('filters')",
    ArrayBytesCodec: "a codec from arrays to bytes ('serializer')",
    BytesBytesCodec: "codecs from bytes to bytes ('compressors')",
    (ArrayArrayCodec, BytesBytesCodec): "codecs from arrays to arrays, or from bytes to bytes",
}


def _plain(value: Any) -> Any:
    """``value`` with enumerations, numpy numbers, tuples and mappings turned into JSON types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return getattr(value, "value", value)


def _from_zarr_python(codec: Any) -> Mapping[str, Any]:
    """The JSON of a zarr-python codec, without parameters that it chooses later from the array."""
    data: Mapping[str, Any] = codec.to_dict()
    chosen = getattr(codec, "_tunable_attrs", None)
    if not chosen:
        return data
    fields = {name: value for name, value in data["configuration"].items() if name not in chosen}
    return {**data, "configuration": fields}
