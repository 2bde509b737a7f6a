"""Commands that look at a store: ``info``, ``tree``, ``stats``, ``read`` and ``explain``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import click
import numpy as np

import xzarr3
from xzarr3._types import AnyArray
from xzarr3.cli import arguments, decoding, output
from xzarr3.cli.arguments import NODE
from xzarr3.cli.output import Output
from xzarr3.cli.running import command
from xzarr3.describe import describe_tree, node_detail
from xzarr3.display.text import brief, rows
from xzarr3.display.units import size
from xzarr3.errors import MetadataError, NodeTypeError, SelectionError, listed, printable
from xzarr3.readable import ReadableArray

_MOST_PRINTED = 2**20
"""Elements of a selection that are read to be printed."""
_MOST_BYTES = 2**26
"""Bytes of them."""
_LONGEST = 300  # Characters of an attribute that are printed.

Node = xzarr3.Array | xzarr3.Group | xzarr3.JoinedArray | xzarr3.JoinedGroup


def nodes_to_json(nodes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is told of nodes as JSON, with their paths below the given one."""
    return [{"path": path, **_node_to_json(node)} for path, node in nodes.items()]


def _node_to_json(node: Node | MetadataError) -> dict[str, Any]:
    if isinstance(node, MetadataError):
        return {"node_type": "unreadable", "error": str(node)}
    if not isinstance(node, ReadableArray):
        return {"node_type": "group", "zarr_format": node.format.zarr_format}
    return {
        "node_type": "array",
        "zarr_format": node.format.zarr_format,
        "shape": node.shape,
        "data_type": node.zdtype.name,
        "dimension_names": node.dimension_names,
        "chunks": node.chunks,
        "shards": node.shards,
        "nbytes": None if node.zdtype.is_variable else node.nbytes,
    }


def _members(node: Node, depth: int | None = 0) -> dict[str, Any]:
    """The nodes below a node, by path."""
    if isinstance(node, ReadableArray):
        return {}
    return dict(node.load(max_depth=depth) if isinstance(node, xzarr3.Group) else node)


def _info_to_json(node: Node) -> dict[str, Any]:
    own: dict[str, Any] = {"path": node.path, "store": str(node.store), "attributes": dict(node.attrs)}
    if not isinstance(node, ReadableArray):
        return {**_node_to_json(node), **own, "members": nodes_to_json(_members(node))}
    codecs = [{"name": each.name, "configuration": each.configuration()} for each in node.metadata.codecs]
    own |= {"fill_value": output.values_to_json(node.fill_value), "codecs": codecs}
    return {**_node_to_json(node), **own}


@command(*NODE)
def info(store: str, path: str, option: dict[str, Any]) -> Output:
    """Describe an array, or a group with its members.

    Examples:
      xzarr3 info ocean.zarr
      xzarr3 info ocean.zarr sst
      xzarr3 info ocean.zarr sst --json
    """
    node = xzarr3.open(store, path, storage_options=option)
    return Output(lambda: _info_to_json(node), lambda: "\n\n".join(_info(node)))


def _info(node: Node) -> Iterator[str]:
    yield str(node.info)
    if node.attrs:
        told = [(printable(f"  {name} "), brief(each, _LONGEST)) for name, each in node.attrs.items()]
        width = min(max(len(name) for name, _ in told), 32) + 1
        yield f"attributes\n{rows(told, width)}"
    if isinstance(node, xzarr3.Group):  # What is joined has its arrays in its description.
        yield str(describe_tree(node, _members(node)))


@command(
    *NODE, click.option("--depth", metavar="N", type=click.IntRange(min=1), help="At most so many levels.")
)
def tree(store: str, path: str, depth: int | None, option: dict[str, Any]) -> Output:
    """Show all nodes below a group.

    Arrays have their dimensions and data types beside them. Consolidated metadata are used where there are
    any: the number of requests is then the same for any number of nodes.

    Examples:
      xzarr3 tree ocean.zarr
      xzarr3 tree --depth 1 ocean.zarr
      xzarr3 tree ocean.zarr deep --json
    """
    node = xzarr3.open(store, path, storage_options=option)
    nodes = _members(node, None if depth is None else depth - 1)
    text = printable(f"{node.name} {node_detail(node)}")
    if not isinstance(node, ReadableArray):
        text = str(describe_tree(node, nodes))
    return Output(lambda: {"path": node.path, "nodes": nodes_to_json({"": node, **nodes})}, lambda: text)


@command(*NODE)
def stats(store: str, path: str, option: dict[str, Any]) -> Output:
    """Tell how much is stored, by array.

    Shown are bytes, the ratio of compression, and how many chunks are stored. The keys are listed once; no
    data are read.

    Examples:
      xzarr3 stats ocean.zarr
      xzarr3 stats ocean.zarr sst
      xzarr3 stats ocean.zarr --json
    """
    return output.found(xzarr3.stats(store, path, storage_options=option))


def _array(store: str, path: str, option: dict[str, Any]) -> ReadableArray:
    """The array at a path."""
    node: Any = xzarr3.open(store, path, storage_options=option)
    if not isinstance(node, ReadableArray):
        raise NodeTypeError(
            f"{node!r} is a group; give the path of one of the nodes in it, {listed([*node])}"
        )
    return node


@command(*NODE, arguments.selection_argument, arguments.threads_option)
def explain(store: str, path: str, selection: str, threads: int | None, option: dict[str, Any]) -> Output:
    """Tell what reading a selection of an array fetches.

    SELECTION is what stands between the brackets in Python, by default everything. Shown are keys, byte
    ranges, requests, and bytes moved against bytes used. Indexes of shards are read for that, and no data.
    A selection that begins with '-' has to be given after '--'.

    Examples:
      xzarr3 explain ocean.zarr sst '0, 1:5'
      xzarr3 explain ocean.zarr sst --json
    """
    chosen = arguments.parse_selection(selection)
    array = _array(store, path, option)
    return output.found(array.explain(chosen, threads=threads))


@command(
    *NODE,
    arguments.selection_argument,
    click.option(
        "--raw", is_flag=True, help="Values as they are stored: packed, fill values, numbers of days."
    ),
    click.option("--full", is_flag=True, help="Print all values; otherwise the middle of many is left out."),
    arguments.threads_option,
)
def read(
    store: str, path: str, selection: str, raw: bool, full: bool, threads: int | None,
    option: dict[str, Any],
) -> Output:  # fmt: skip
    """Print the values of a selection of an array.

    SELECTION is what stands between the brackets in Python, by default everything. Attributes of the CF
    conventions are applied as xarray does: packed numbers are unpacked, missing ones are nan, and times are
    dates. A selection that begins with '-' has to be given after '--'.

    Examples:
      xzarr3 read ocean.zarr sst '0, :3, :3'
      xzarr3 read ocean.zarr time --json
      xzarr3 read ocean.zarr time --raw
      xzarr3 read ocean.zarr sst -- '-1, 0, :'
    """
    chosen = arguments.parse_selection(selection)
    array = _array(store, path, option)
    number = math.prod(array.plan(chosen).shape)
    if number > _MOST_PRINTED or number * array.dtype.itemsize > _MOST_BYTES:
        raise SelectionError(
            f"{number:,} elements of {array.dtype.itemsize} bytes are chosen; at most {_MOST_PRINTED:,} "
            f"elements and {size(_MOST_BYTES)} are printed; choose fewer, as in '0, :10, :10'"
        )
    stored: AnyArray = array.get(chosen, threads=threads)
    if array.is_masked:
        absent, stored = np.ma.getmaskarray(stored), np.ma.getdata(stored).astype(object)
        stored[absent] = None
    values = stored if raw or array.is_optional else decoding.decoded(array, stored)
    return Output(lambda: output.values_to_json(values), lambda: _shown(values, full), indent=None)


def _shown(values: Any, full: bool) -> str:
    text = values.dtype.kind in "OTSUV" and values.dtype.names is None
    options: dict[str, Any] = {"formatter": {"all": _quoted}} if text else {}
    with np.printoptions(threshold=_MOST_PRINTED if full else 1000, linewidth=80):
        if values.ndim == 0:
            return printable(str(values[()]))
        return np.array2string(values, separator=" ", **options)


def _quoted(value: Any) -> str:
    return printable(repr(value.item() if isinstance(value, np.generic) else value))
