"""The registry of codecs: finds the class of a codec by the name that a metadata document has.

It holds the places of the classes and loads a class when it is first used. It also finds codecs of other
installed packages. Names and objects that users pass are parsed in :mod:`xzarr3.codecs.parsing`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from xzarr3._types import JSON
from xzarr3.codecs.base import ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.dtypes import Optional, ZDType
from xzarr3.errors import MetadataError, UnknownExtensionError, did_you_mean, foreign, located
from xzarr3.extensions import forget, json_key, parse_extension, remembered

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# A class is loaded on first use, because its module imports the library that does its work.
_CORE = {
    "bitround": "xzarr3.codecs.bitround:BitRoundCodec",
    "blosc": "xzarr3.codecs.blosc:BloscCodec",
    "bytes": "xzarr3.codecs.bytes:BytesCodec",
    "cast_value": "xzarr3.codecs.cast_value:CastValueCodec",
    "conditional": "xzarr3.codecs.conditional:ConditionalCodec",
    "crc32c": "xzarr3.codecs.crc32c:Crc32cCodec",
    "endian": "xzarr3.codecs.bytes:BytesCodec",
    "gzip": "xzarr3.codecs.gzip:GzipCodec",
    "n5_default": "xzarr3.codecs.n5_default:N5DefaultCodec",
    "optional": "xzarr3.codecs.optional:OptionalCodec",
    "packbits": "xzarr3.codecs.packbits:PackBitsCodec",
    "reshape": "xzarr3.codecs.reshape:ReshapeCodec",
    "scale_offset": "xzarr3.codecs.scale_offset:ScaleOffsetCodec",
    "sharding_indexed": "xzarr3.codecs.sharding:ShardingCodec",
    "transpose": "xzarr3.codecs.transpose:TransposeCodec",
    "vlen-bytes": "xzarr3.codecs.vlen:VLenBytesCodec",
    "vlen-utf8": "xzarr3.codecs.vlen:VLenUTF8Codec",
    "zfp": "xzarr3.codecs.zfp:ZfpCodec",
    "zstd": "xzarr3.codecs.zstd:ZstdCodec",
}
NUMCODECS = {
    "numcodecs.adler32": "xzarr3.codecs.numcodecs.checksums:Adler32Codec",
    "numcodecs.astype": "xzarr3.codecs.numcodecs.filters:AsTypeCodec",
    "numcodecs.bitround": "xzarr3.codecs.numcodecs.filters:NumcodecsBitRoundCodec",
    "numcodecs.bz2": "xzarr3.codecs.numcodecs.compressors:Bz2Codec",
    "numcodecs.crc32": "xzarr3.codecs.numcodecs.checksums:Crc32Codec",
    "numcodecs.crc32c": "xzarr3.codecs.numcodecs.checksums:LeadingCrc32cCodec",
    "numcodecs.delta": "xzarr3.codecs.numcodecs.filters:DeltaCodec",
    "numcodecs.fixedscaleoffset": "xzarr3.codecs.numcodecs.filters:FixedScaleOffsetCodec",
    "numcodecs.fletcher32": "xzarr3.codecs.numcodecs.checksums:Fletcher32Codec",
    "numcodecs.jenkins_lookup3": "xzarr3.codecs.numcodecs.checksums:JenkinsLookup3Codec",
    "numcodecs.json2": "xzarr3.codecs.numcodecs.objects:Json2Codec",
    "numcodecs.lz4": "xzarr3.codecs.numcodecs.compressors:Lz4Codec",
    "numcodecs.lzma": "xzarr3.codecs.numcodecs.compressors:LzmaCodec",
    "numcodecs.packbits": "xzarr3.codecs.numcodecs.filters:NumcodecsPackBitsCodec",
    "numcodecs.pcodec": "xzarr3.codecs.numcodecs.pcodec:PCodecCodec",
    "numcodecs.quantize": "xzarr3.codecs.numcodecs.filters:QuantizeCodec",
    "numcodecs.shuffle": "xzarr3.codecs.numcodecs.compressors:ShuffleCodec",
    "numcodecs.zfpy": "xzarr3.codecs.zfp:ZfpyCodec",
    "numcodecs.zlib": "xzarr3.codecs.numcodecs.compressors:ZlibCodec",
}
"""The codecs of numcodecs under the names that zarr-python gives them in version 3 of the format."""
ALIASES = ("numcodecs.blosc", "numcodecs.crc32c", "numcodecs.gzip", "numcodecs.zstd")
"""Other names of codecs of version 3, under which zarr-python stores the same bytes."""
CLASSES = {place.partition(":")[2]: place for place in (*_CORE.values(), *NUMCODECS.values())}
"""The place of each codec class, by the name of the class."""
_GROUP = "xzarr3.codecs"
_registered: dict[str, type[Codec]] = {}


def register_codec(cls: type[Codec]) -> type[Codec]:
    """Register a codec under its name; it replaces an earlier one. Returns the class.

    Examples
    --------
    >>> from xzarr3.codecs import ZstdCodec, register_codec
    >>> register_codec(ZstdCodec).name
    'zstd'
    """
    _registered[cls.name] = cls
    forget()
    return cls


def codec_names() -> list[str]:
    """The names of all codecs of this package and of other installed packages.

    Examples
    --------
    >>> from xzarr3.codecs import codec_names
    >>> "zstd" in codec_names()
    True
    """
    installed = (point.name for point in _entry_points())
    return sorted({*_CORE, *NUMCODECS, *ALIASES, *_registered, *installed})


def loaded(place: str) -> type[Codec]:
    """The class at ``"module:name"``."""
    module, _, name = place.partition(":")
    return cast("type[Codec]", getattr(import_module(module), name))


def codec_class(name: str) -> type[Codec]:
    """The class of the codec ``name``.

    Raises
    ------
    UnknownExtensionError
        If there is no such codec.
    MetadataError
        If the codec is in another package and cannot be used.
    """
    if name not in _registered:
        place = _CORE.get(name) or NUMCODECS.get(name)
        if place:
            return loaded(place)
        _registered[name] = _installed(name)
    return _registered[name]


def _entry_points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # imported late: it takes milliseconds

    return entry_points(group=_GROUP)


def _installed(name: str) -> type[Codec]:
    """The class of a codec of another package, which is imported only when a document or a user names it."""
    points = [point for point in _entry_points() if point.name == name]
    if not points:
        raise unknown(name, "name", codec_names())
    try:
        cls = points[0].load()
    except Exception as error:
        raise MetadataError(f"codec '{name}' cannot be imported from {points[0].value}: {error}") from error
    is_codec = isinstance(cls, type) and issubclass(cls, Codec) and not inspect.isabstract(cls)
    if not is_codec or cls.name != name:
        raise MetadataError(
            f"{points[0].value} is not the codec '{name}'", found=cls,
            accepted=f"a subclass of a codec with all of its methods and with the name '{name}'",
        )  # fmt: skip
    return cast("type[Codec]", cls)


def unknown(name: str, field: str, known: list[str]) -> UnknownExtensionError:
    """The error for a codec that is not known."""
    return UnknownExtensionError(
        "unknown codec", field=field, found=name, accepted=known,
        advice=did_you_mean(name, known) or "install the package that has it, or register a class for it "
        "with xzarr3.codecs.register_codec()",
    )  # fmt: skip


def codec_from_json(data: JSON) -> Codec | None:
    """The codec that a metadata document describes; None for an unknown codec that may be ignored.

    Raises
    ------
    MetadataError
        If the codec is unknown or malformed, or its configuration is not valid.

    Examples
    --------
    >>> from xzarr3.codecs import codec_from_json
    >>> codec_from_json({"name": "gzip", "configuration": {"level": 5}})
    GzipCodec(level=5)
    """
    found = parse_extension(data, "a codec")
    if found.name in ALIASES and found.name not in _registered:
        # Imported by its place, because the module of these names needs this registry.
        aliased: Any = loaded("xzarr3.codecs.numcodecs:aliased")
        return cast("Codec", aliased(found.name.removeprefix("numcodecs."), found.configuration))
    try:
        cls = codec_class(found.name)
    except UnknownExtensionError:
        of_others: Any = loaded("xzarr3.codecs.foreign:codec_of")
        codec = of_others(found.name, found.configuration)
        if codec is None and not found.optional:
            raise
        return cast("Codec | None", codec)
    return configured(cls, found.configuration)


def configured(cls: type[Codec], configuration: Mapping[str, Any]) -> Codec:
    """Make a codec from its configuration. The class may be of another package and raise any error.

    Raises
    ------
    MetadataError
        If the class does not accept the configuration.
    """
    what = f"codec '{cls.name}': not a valid configuration"
    with foreign(what, field="configuration", found=configuration):
        return cls.from_configuration(configuration)


def codecs_from_json(data: JSON, field: str = "codecs") -> tuple[Codec, ...]:
    """The codecs of a list in a metadata document, in the same order."""
    if not isinstance(data, list) or not data:
        raise MetadataError("not a list of codecs", field=field, found=data, accepted="an array, not empty")
    # Cached, because the arrays of a dataset mostly have the same codecs.
    return remembered(json_key(data), lambda: _in_places(_each_codec(data, field)))


def _in_places(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """The codecs of a list; where none gets arrays, the first one of numcodecs' registry does."""
    found = list(codecs)
    if not any(isinstance(codec, ArrayBytesCodec) for codec in found):
        for at, codec in enumerate(found):
            if isinstance(codec, BytesBytesCodec):
                found[at] = codec.of_arrays()
                break
    return tuple(found)


def _each_codec(data: list[JSON], field: str) -> Iterator[Codec]:
    for at, item in enumerate(data):
        with located(field=f"{field}[{at}]"):
            codec = codec_from_json(item)
        if codec is not None:
            yield codec


def default_serializer(data_type: ZDType) -> ArrayBytesCodec:
    """The default codec from arrays to bytes for a data type.

    Raises
    ------
    MetadataError
        If the elements have no fixed size and there is no default codec for them.

    Examples
    --------
    >>> from xzarr3.dtypes import parse_dtype
    >>> default_serializer(parse_dtype("int16"))
    BytesCodec(endian='little')
    >>> default_serializer(parse_dtype("string"))
    VLenUTF8Codec()
    """
    if isinstance(data_type, Optional):
        made: Any = codec_class("optional")
        return made((codec_class("packbits")(),), (default_serializer(data_type.inner),))  # type: ignore[no-any-return]
    name = _SERIALIZERS.get(data_type.name) if data_type.is_variable else "bytes"
    if name is None:
        raise MetadataError(
            f"no default codec is known for data type '{data_type.name}'",
            field="serializer",
            advice="pass serializer=, a codec from arrays to bytes",
        )
    return cast("ArrayBytesCodec", codec_class(name)())


_SERIALIZERS = {"string": "vlen-utf8", "bytes": "vlen-bytes"}
"""The default codecs for data types whose elements have no fixed size."""
