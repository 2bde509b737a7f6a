"""The documents of a copy: those of the source in the terms of the format that the copy has."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import cast

from xzarr3.codecs.base import Codec
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.conventions.fill_value_attribute import with_same_mask, without_literals
from xzarr3.conventions.nonfinite_attributes import as_text, finite_attributes, is_finite
from xzarr3.copying.settings import Settings
from xzarr3.copying.values import encoded_alike
from xzarr3.errors import MetadataError, did_you_mean, levels_to_caller, listed, printable
from xzarr3.formats import Format
from xzarr3.formats.base import fits
from xzarr3.groups import Group
from xzarr3.joined.group import JoinedGroup
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, Origin
from xzarr3.new_array import KEEP, is_keep
from xzarr3.readable import ReadableArray


def translated(
    node: ReadableArray | Group | JoinedGroup, format: Format, settings: Settings | None
) -> ArrayMetadata | GroupMetadata:
    """The metadata of a node in another format; an array has settings.

    Raises
    ------
    MetadataError
        If the format cannot express them; the error names the node in the source.
    """
    same = fits(node.format, format.zarr_format)
    try:
        if not isinstance(node, ReadableArray) or settings is None:
            if node.metadata.ignored and not same:
                _warn_of_ignored(node)
            return replace(
                cast("GroupMetadata", node.metadata),
                attributes=finite_attributes(node.metadata.attributes, node.path),
                consolidated=None,
                origin=_as_json(node.metadata) if same else None,
                zarr_format=format.zarr_format,
            )
        meta = settings.metadata(node, format)
        if same:
            meta = without_literals(replace(meta, origin=_as_json(meta)), format, node.path)
            return meta if encoded_alike(meta, node.metadata) else _as_parsed(meta, format, node.path)
        if meta.ignored:
            _warn_of_ignored(node)
        meta = with_same_mask(format.adopt(meta), meta)
        return _as_parsed(without_literals(meta, format, node.path), format, node.path)
    except MetadataError as error:
        error.at(path=node.path)
        if isinstance(node, ReadableArray) and settings is not None:
            _advise(error, node, settings)
        raise


def _as_json(meta: ArrayMetadata | GroupMetadata) -> Origin | None:
    """The documents that metadata were read from, with text for the NaN and infinities that JSON lacks."""
    origin = meta.origin
    if origin is None or is_finite(origin.documents):
        return origin
    return origin._replace(documents=as_text(origin.documents))


def _as_parsed(meta: ArrayMetadata, format: Format, path: str) -> ArrayMetadata:
    """The metadata that a reader will parse from the document; the chunks are encoded by these."""
    parsed = format.parse(format.hold(meta, path), path)
    return cast("ArrayMetadata", parsed)


def _advise(error: MetadataError, node: ReadableArray, settings: Settings) -> None:
    """Say in an error how the array can be copied."""
    asked = (settings.chunks, settings.shards, settings.compressors, settings.filters, settings.serializer)
    if isinstance(error.found, str) and error.found in [each for each in asked if isinstance(each, str)]:
        error.advice = did_you_mean(error.found, (KEEP, "auto")) or error.advice
    ways = []
    if node.shards is not None and is_keep(settings.shards):
        ways.append("shards=None to store the chunks of shards one by one")
    if is_keep(settings.filters) and _is_about(error, node.filters):
        ways.append("filters=None to leave the filters out")
    if isinstance(settings.chunks, (list, tuple)) and len(settings.chunks) != node.ndim:
        ways.append("chunks by the names of dimensions, as in chunks={'time': 100}")
    if ways:
        error.advice = f"pass {', or '.join(ways)}"


def _is_about(error: MetadataError, codecs: tuple[Codec, ...]) -> bool:
    """Whether an error may be about one of these codecs."""
    named = [codec.name for codec in codecs if not isinstance(codec, TransposeCodec)]
    return any(name in str(error.found) or name in str(error) for name in named)


def _warn_of_ignored(node: ReadableArray | Group | JoinedGroup) -> None:
    warnings.warn(
        f"'{printable(node.name)}' of {node.store} has fields that have no meaning in another format; "
        f"its copy lacks them: {listed(node.metadata.ignored)}",
        stacklevel=levels_to_caller(),
    )
