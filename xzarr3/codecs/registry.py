"""Which codecs there are, and how a metadata document or a user names one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeAlias, cast

import msgspec

from xzarr3._types import JSON
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.errors import MetadataError, UnknownExtensionError, listed

CodecLike: TypeAlias = "Codec | str | Mapping[str, JSON]"

# Loaded when first used, because each one imports the library that does its work.
_CORE = {
    "blosc": "xzarr3.codecs.blosc:BloscCodec",
    "bytes": "xzarr3.codecs.bytes:BytesCodec",
    "endian": "xzarr3.codecs.bytes:BytesCodec",
    "crc32c": "xzarr3.codecs.crc32c:Crc32cCodec",
    "gzip": "xzarr3.codecs.gzip:GzipCodec",
    "sharding_indexed": "xzarr3.codecs.sharding:ShardingCodec",
    "transpose": "xzarr3.codecs.transpose:TransposeCodec",
    "zstd": "xzarr3.codecs.zstd:ZstdCodec",
}
_loaded: dict[str, type[Codec]] = {}
_parsed: dict[bytes, tuple[Codec, ...]] = {}
_MAX_PARSED = 512


def register_codec(cls: type[Codec]) -> type[Codec]:
    """Add a codec under its name, in place of an earlier one; returns it."""
    _loaded[cls.name] = cls
    _parsed.clear()
    return cls


def codec_names() -> list[str]:
    """The names of all known codecs."""
    return sorted({*_CORE, *_loaded})


def codec_class(name: str) -> type[Codec]:
    """The class of the codec ``name``.

    Raises
    ------
    UnknownExtensionError
        If there is none.
    """
    if name not in _loaded:
        if name not in _CORE:
            raise UnknownExtensionError(
                "unknown codec", field="name", found=name, accepted=listed(codec_names())
            )
        module, _, attribute = _CORE[name].partition(":")
        _loaded[name] = cast("type[Codec]", getattr(import_module(module), attribute))
    return _loaded[name]


def codec_from_json(data: JSON) -> Codec | None:
    """The codec that a metadata document describes; None for an unknown one that may be ignored.

    Raises
    ------
    MetadataError
        If it is unknown, malformed or its configuration is not valid.
    """
    if isinstance(data, str):
        data = {"name": data}
    accepted = "a name, or an object with 'name' and, if needed, 'configuration'"
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise MetadataError("not a codec", found=data, accepted=accepted)
    optional = data.get("must_understand", True) is False
    if not isinstance(data.get("must_understand", True), bool):
        raise MetadataError(
            "not a valid value",
            field="must_understand",
            found=data["must_understand"],
            accepted="true, false",
        )
    for field in data.keys() - {"name", "configuration", "must_understand"}:
        raise UnknownExtensionError("unknown field", field=field, found=data[field], accepted=accepted)
    configuration = data.get("configuration", {})
    if not isinstance(configuration, dict):
        raise MetadataError(
            "not a configuration", field="configuration", found=configuration, accepted="an object"
        )
    try:
        cls = codec_class(cast("str", data["name"]))
    except UnknownExtensionError:
        if optional:
            return None
        raise
    return cls.from_configuration(configuration)


def codecs_from_json(data: JSON, field: str = "codecs") -> tuple[Codec, ...]:
    """The codecs of a list in a metadata document, in its order."""
    if not isinstance(data, list) or not data:
        raise MetadataError("not a list of codecs", field=field, found=data, accepted="an array, not empty")
    # The arrays of a dataset mostly have the same codecs.
    text = msgspec.json.encode(data)
    codecs = _parsed.get(text)
    if codecs is None:
        codecs = tuple(_each_codec(data, field))
        if len(_parsed) < _MAX_PARSED:
            _parsed[text] = codecs
    return codecs


def _each_codec(data: list[JSON], field: str) -> Iterator[Codec]:
    for at, item in enumerate(data):
        try:
            codec = codec_from_json(item)
        except MetadataError as error:
            error.at(field=f"{field}[{at}]")
            raise
        if codec is not None:
            yield codec


def parse_codec(codec: Any) -> Codec:
    """The codec that a user passes: a codec, its name, its JSON, or a codec of numcodecs or zarr-python.

    Raises
    ------
    MetadataError
        If nothing matches.

    Examples
    --------
    >>> parse_codec("zstd")
    ZstdCodec(level=0, checksum=False)
    >>> parse_codec({"name": "gzip", "configuration": {"level": 1}})
    GzipCodec(level=1)
    """
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        try:
            return codec_class(codec)()
        except TypeError as error:
            raise MetadataError(
                f"codec '{codec}' needs a configuration", found=codec, accepted="the codec itself"
            ) from error
    if isinstance(codec, Mapping):
        codec = dict(codec)
    elif callable(getattr(codec, "to_dict", None)):
        codec = _from_zarr_python(codec)
    elif callable(getattr(codec, "get_config", None)):
        codec = codec.get_config()
    else:
        raise MetadataError(f"not a codec: {type(codec).__name__}", accepted="a codec, its name or its JSON")
    if "id" in codec:
        codec = _from_numcodecs(codec)
    parsed = codec_from_json(_plain(codec))
    if parsed is None:
        raise UnknownExtensionError("unknown codec", found=codec, accepted=listed(codec_names()))
    return parsed


def parse_codecs(codecs: Any, kind: Any) -> tuple[Codec, ...]:
    """One codec or a sequence of them, each of which must be of ``kind``; None means no codec."""
    if codecs is None:
        return ()
    single = isinstance(codecs, (str, Mapping, Codec)) or not isinstance(codecs, Iterable)
    parsed = tuple(parse_codec(codec) for codec in ((codecs,) if single else codecs))
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
}


def _plain(value: Any) -> Any:
    """``value`` with enumerations, tuples and mappings turned into what JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "value", value)


def _from_zarr_python(codec: Any) -> Mapping[str, Any]:
    """The JSON of a codec of zarr-python, without what it will choose itself once it knows the array."""
    data: Mapping[str, Any] = codec.to_dict()
    chosen = getattr(codec, "_tunable_attrs", None)
    if not chosen:
        return data
    fields = {name: value for name, value in data["configuration"].items() if name not in chosen}
    return {**data, "configuration": fields}


def _from_numcodecs(config: Mapping[str, Any]) -> dict[str, Any]:
    """The version 3 form of a numcodecs configuration."""
    fields = {key: value for key, value in config.items() if key != "id"}
    name = str(config["id"])
    if name == "blosc":
        # numcodecs counts the shuffles; its -1, to choose by the size of an element, is our None.
        shuffle = fields.get("shuffle")
        names: dict[object, str] = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
        fields["shuffle"] = names.get(shuffle, shuffle)
        if shuffle == -1:
            del fields["shuffle"]
    return {"name": name, "configuration": {k: v for k, v in fields.items() if v is not None}}
