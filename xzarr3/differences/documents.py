"""Compares what the documents of two nodes say, in the same words for all formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from xzarr3.arrays import Array
from xzarr3.codecs.base import Codec
from xzarr3.codecs.sharding import ShardingCodec
from xzarr3.conventions.fill_value_attribute import follows_version_2, to_fill_value_attribute
from xzarr3.differences.report import FieldDifference, Kind
from xzarr3.differences.values import shown
from xzarr3.display.report import ABSENT
from xzarr3.groups import Group
from xzarr3.model.metadata import ArrayMetadata


def compare_documents(path: str, a: Array | Group, b: Array | Group) -> Iterator[FieldDifference]:
    """The fields of two nodes that differ, those that say what the elements mean first.

    All nodes of a hierarchy have its format, which is compared at the top only.
    """
    yield from _compared(path, {"node_type": ("meaning", _kind(a))}, {"node_type": ("meaning", _kind(b))})
    attributes = [dict(each.attrs) for each in (a, b)]
    if isinstance(a, Array) and isinstance(b, Array):
        metas = _alike(a, b)
        attributes = [dict(meta.attributes) for meta in metas]
        yield from _compared(path, _meaning(*metas), _meaning(*reversed(metas)))
        yield from _compared(path, _encoding(a), _encoding(b))
    if not path:
        yield from _compared(path, *({"zarr_format": ("encoding", each.zarr_format)} for each in (a, b)))
    if a.zarr_format == b.zarr_format:
        yield from _compared(path, _inherent(a), _inherent(b))
    yield from _attributes(path, "attributes", *attributes)


def _alike(a: Array, b: Array) -> tuple[ArrayMetadata, ArrayMetadata]:
    """The metadata of both; if only one format masks fill values, as a copy in the other one has them."""
    if follows_version_2(a.format) == follows_version_2(b.format):
        return a.metadata, b.metadata
    one, other = (
        to_fill_value_attribute(each.metadata, is_null=each.metadata.fill_is_null)
        if follows_version_2(each.format)
        else each.metadata
        for each in (a, b)
    )
    return replace(one, fill_is_null=False), replace(other, fill_is_null=False)


_Fields = Mapping[str, tuple[Kind, Any]]


def _kind(node: Array | Group) -> str:
    return "group" if isinstance(node, Group) else "array"


def _inherent(node: Array | Group) -> _Fields:
    """Fields that mean something in one format only."""
    found: dict[str, tuple[Kind, Any]] = {}
    if isinstance(node, Array):
        keys = node.metadata.chunk_key_encoding
        found["chunk_key_encoding"] = "encoding", {"name": keys.name, "configuration": keys.configuration()}
    return found | {name: ("meaning", value) for name, value in node.metadata.ignored.items()}


def _meaning(meta: ArrayMetadata, other: ArrayMetadata) -> _Fields:
    data_type, others = (each.data_type.in_native_order() for each in (meta, other))
    same_name = data_type.name == others.name
    names = meta.dimension_names
    return {
        "shape": ("meaning", list(meta.shape)),
        "data_type": ("meaning", repr(data_type) if same_name and data_type != others else data_type.name),
        "dimension_names": ("meaning", None if names is None or not any(names) else list(names)),
        "fill_value": ("meaning", None if meta.fill_is_null else shown(meta.fill_value)),
    }


def _encoding(array: Array) -> _Fields:
    meta = array.metadata
    said: dict[str, Any] = {
        "chunks": array.chunks,
        "shards": array.shards,
        "filters": [*map(_codec, array.filters)],
        "serializer": _codec(array.serializer),
        "compressors": [*map(_codec, array.compressors)],
        "storage_transformers": [repr(each) for each in meta.storage_transformers],
    }
    if array.shards is not None:
        said["shard_index"] = _index(meta.codecs)
    if meta.data_type != meta.data_type.in_native_order():
        said["byte_order"] = "swapped"
    return {name: ("encoding", value) for name, value in said.items()}


def _index(codecs: Sequence[Codec]) -> list[str]:
    """Where shards have their index, and how it is encoded; the same of shards within them."""
    found = [each for each in codecs if isinstance(each, ShardingCodec)]
    said = [f"{codec.index_location}: {', '.join(map(_codec, codec.index_codecs))}" for codec in found]
    return said + [line for codec in found for line in _index(codec.codecs)]


def _codec(codec: Any) -> str:
    configuration = codec.configuration()
    return codec.name if not configuration else f"{codec.name} {json.dumps(configuration, default=repr)}"


def _compared(path: str, a: _Fields, b: _Fields) -> Iterator[FieldDifference]:
    for name in dict.fromkeys((*a, *b)):
        (kind, one), (other_kind, other) = a.get(name, ("", ABSENT)), b.get(name, ("", ABSENT))
        if _said(one) != _said(other):
            found: Any = kind or other_kind
            yield FieldDifference(path, name, found, one, other)


def _attributes(path: str, name: str, a: Any, b: Any) -> Iterator[FieldDifference]:
    """The attributes that differ; of mappings, the items that do."""
    waiting = [(name, a, b)]
    while waiting:
        name, a, b = waiting.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            names = dict.fromkeys((*a, *b))
            below = [(f"{name}.{each}", a.get(each, ABSENT), b.get(each, ABSENT)) for each in names]
            waiting += reversed(below)
        elif _said(a) != _said(b):
            yield FieldDifference(path, name, "attribute", a, b)


def _said(value: Any) -> str:
    """Text that is equal for equal JSON: NaN equals NaN; 1, 1.0 and true differ. Empty for ABSENT."""
    return "" if value is ABSENT else json.dumps(value, sort_keys=True, default=repr)
