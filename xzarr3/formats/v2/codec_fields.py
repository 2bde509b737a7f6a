"""The fields of ``.zarray`` that say how elements are stored: to the data type and the codecs, and back.

These are ``dtype``, ``order``, ``filters`` and ``compressor``. Object codecs have the form of zarr-python.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from xzarr3.codecs.base import ArrayArrayCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.bytes import BytesCodec
from xzarr3.codecs.numcodecs import from_numcodecs, to_numcodecs
from xzarr3.codecs.registry import NUMCODECS
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.dtypes import ZDType
from xzarr3.dtypes.registry import registry
from xzarr3.dtypes.specs import OBJECT_CODECS, UNREAD_OBJECT_CODECS
from xzarr3.errors import FOREIGN_ERRORS, MetadataError, UnknownExtensionError
from xzarr3.extensions import remembered
from xzarr3.formats.base import refusal
from xzarr3.model.metadata import ArrayMetadata

CODEC = "an object with an 'id'"
_OBJECTS = "|O"


class _Stage(NamedTuple):
    """A codec in a document: its field, its name in numcodecs and its configuration."""

    field: str
    id: str
    config: Mapping[str, Any]


def _stages(document: Mapping[str, Any]) -> Iterator[_Stage]:
    """The filters, followed by the compressor."""
    configs = [(f"filters[{at}]", config) for at, config in enumerate(document.get("filters") or ())]
    compressor = document["compressor"]
    if compressor is not None:
        configs.append(("compressor", compressor))
    for field, config in configs:
        if not isinstance(config, dict) or not isinstance(config.get("id"), str):
            accepted = CODEC if field != "compressor" else f"{CODEC}, null"
            raise MetadataError("not a codec", field=field, found=config, accepted=accepted)
        yield _Stage(field, config["id"], config)


def stored_data_type(document: Mapping[str, Any]) -> ZDType:
    """The data type, in the byte order of the stored elements."""
    name = document["dtype"]
    field, codec = "dtype", None
    for stage in _stages(document) if name == _OBJECTS else ():
        if stage.id in OBJECT_CODECS or stage.id in UNREAD_OBJECT_CODECS:
            field, codec = f"{stage.field}.id", stage.id
            break
    try:
        return registry.match_json({"name": name, "object_codec_id": codec}, zarr_format=2)
    except MetadataError as error:
        error.field = field
        raise


def _codecs(
    stages: Sequence[_Stage], order: str, ndim: int, endian: str | None
) -> tuple[tuple[Codec, ...], list[str]]:
    """The codecs, and for each codec the field of the document that it comes from."""
    codecs: list[Codec] = []
    fields: list[str] = []
    # json2: a chunk holds its shape and nests its lists like the elements, for either order in memory. So it
    # gets no transpose. zarr-python 2 writes it the same way, but reads it as elements in order F and so gets
    # other elements than it wrote.
    # bitround: what numcodecs writes differs. Versions after 0.12 turn order F into order C, unless all bits
    # are kept. A chunk does not tell its order, so the order of the document counts, as in zarr-python.
    if order == "F" and ndim > 1 and all(stage.id != "json2" for stage in stages):
        codecs.append(TransposeCodec(tuple(reversed(range(ndim)))))
        fields.append("order")
    in_bytes = False
    for stage in stages:
        try:
            codec = _codec(stage.config, endian)
        except MetadataError as error:
            error.field = f"{stage.field}.{(error.field or '').removeprefix('configuration.')}".strip(".")
            raise
        if in_bytes and not isinstance(codec, BytesBytesCodec):
            raise UnknownExtensionError(
                f"codec '{stage.id}' encodes arrays, but the codecs before it return bytes",
                field=stage.field, found=dict(stage.config),
                accepted="filters on arrays before filters on bytes",
            )  # fmt: skip
        if not in_bytes and isinstance(codec, BytesBytesCodec):
            codec = codec.of_arrays(endian)
        if not in_bytes and isinstance(codec, BytesBytesCodec):
            codecs.append(BytesCodec(cast("Any", endian)))
            fields.append("dtype")
        in_bytes = in_bytes or not isinstance(codec, ArrayArrayCodec)
        codecs.append(codec)
        fields.append(stage.field)
    if not in_bytes:
        codecs.append(BytesCodec(cast("Any", endian)))
        fields.append("dtype")
    return tuple(codecs), fields


def _codec(config: Mapping[str, Any], endian: str | None) -> Codec:
    """The codec with this configuration, for elements in this byte order."""
    codec = from_numcodecs(config, endian)
    if codec.name == "numcodecs.shuffle" and codec.configuration().get("elementsize") == 0:
        return type(codec)()  # In netCDF-C, 0 means the element size of the array.
    return codec


def read_codec_fields(
    document: Mapping[str, Any], ndim: int
) -> tuple[ZDType, ZDType, tuple[Codec, ...], list[str]]:
    """The data type as stored, the data type of arrays in memory, the codecs, and the field of each codec."""
    stored = stored_data_type(document)
    order = document["order"]
    endian = stored.byte_order or _order_of_filters(document)
    said = repr([document.get(field, ...) for field in ("compressor", "filters")])
    codecs, fields = remembered(
        (said, order, ndim, endian), lambda: _codecs(list(_stages(document)), order, ndim, endian)
    )
    return stored, stored.in_native_order(), codecs, fields


def _order_of_filters(document: Mapping[str, Any]) -> str | None:
    """The byte order that the first filter with one gives to elements whose data type has none."""
    for stage in _stages(document):
        for field in ("dtype", "astype", "decode_dtype", "encode_dtype"):
            order = {"<": "little", ">": "big"}.get(str(stage.config.get(field, ""))[:1])
            if order is not None:
                return order
    return None


def codec_fields_of(meta: ArrayMetadata) -> tuple[dict[str, Any], ZDType]:
    """The fields for data type and codecs, and the data type in the byte order of these fields."""
    endian = _stored_order(meta)
    stored = meta.data_type
    if stored.byte_order is not None:
        stored = stored.in_byte_order("big" if endian == "big" else "little")
    try:
        name = stored.to_json(2)["name"]
    except FOREIGN_ERRORS as error:
        raise cannot_say("data_type", stored.name, "data types of numpy") from error
    fields = copy.deepcopy(_fields_of_codecs(meta.codecs, meta.chain.spec.shape, meta.data_type, endian))
    return {"dtype": name, **fields}, stored


def _stored_order(meta: ArrayMetadata) -> str:
    """The byte order of the elements before the filters: that of the codec ``bytes``, if it has one."""
    for codec in meta.codecs:
        endian = getattr(codec, "endian", None)  # of ``bytes``, or of a codec of another package
        if endian is not None:
            return str(endian)
    return "little"


@lru_cache(maxsize=512)
def _fields_of_codecs(
    codecs: tuple[Codec, ...], chunk_shape: tuple[int, ...], data_type: ZDType, endian: str
) -> dict[str, Any]:
    """The fields for the codecs of chunks whose elements have this byte order."""
    order = "C"
    filters: list[Any] = []
    encoded: list[Any] = []
    spec = ChunkSpec(chunk_shape, data_type, data_type.default_scalar())
    for at, codec in enumerate(codecs):
        field = f"codecs[{at}]"
        if isinstance(codec, TransposeCodec):
            axes = tuple(range(len(chunk_shape)))
            if codec.order != axes:
                if codec.order != axes[::-1] or at > 0:
                    accepted = "the reverse order of all dimensions, before all other codecs"
                    raise cannot_say(field, codec.to_json(), accepted)
                if any(other.name == "numcodecs.json2" for other in codecs):
                    raise cannot_say(field, codec.to_json(), "order 'C' with the codec 'json2'")
                order = "F"
        elif not isinstance(codec, BytesCodec):  # whose byte order is that of the elements
            try:
                config = to_numcodecs(codec, spec, endian)
            except MetadataError as error:
                twin = f"numcodecs.{codec.name}"
                accepted = f"'{twin}'" if twin in NUMCODECS else "codecs that numcodecs has"
                if codec.name == "sharding_indexed":
                    accepted = "no shards"
                raise cannot_say(field, codec.name, accepted) from error
            (filters if isinstance(codec, ArrayArrayCodec) else encoded).append(config)
        if isinstance(codec, ArrayArrayCodec):
            spec = codec.resolve(spec)
    compressor = encoded.pop() if encoded and encoded[-1]["id"] not in OBJECT_CODECS else None
    return {"compressor": compressor, "order": order, "filters": [*filters, *encoded] or None}


def cannot_say(field: str, found: object, accepted: str) -> MetadataError:
    """The error for metadata that version 2 cannot express. The caller adds the path of the node."""
    return refusal(2, field, found, accepted)
