"""Commands that look at a store: ``info``, ``tree``, ``stats``, ``read`` and ``explain``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click
import numpy as np

import xzarr3
from xzarr3.cli import arguments, decoding, output
from xzarr3.cli.arguments import NODE
from xzarr3.cli.running import command
from xzarr3.describe import describe_tree, node_detail
from xzarr3.display.text import cut, rows
from xzarr3.display.units import size
from xzarr3.errors import MetadataError, SelectionError, printable, shorten

_MOST_PRINTED = 2**20
"""Elements of a selection that are read to be printed."""
_MOST_BYTES = 2**26
"""Bytes of them."""
_LONGEST = 300  # Characters of an attribute that are printed.

Node = xzarr3.Array | xzarr3.Group


def node_to_json(path: str, node: Node | MetadataError) -> dict[str, Any]:
    """What is told of a node as JSON."""
    if isinstance(node, MetadataError):
        return {"path": path, "node_type": "unreadable", "error": str(node)}
    if isinstance(node, xzarr3.Group):
        return {"path": path, "node_type": "group", "zarr_format": node.zarr_format}
    names = node.dimension_names
    return {
        "path": path,
        "node_type": "array",
        "zarr_format": node.zarr_format,
        "shape": list(node.shape),
        "data_type": node.zdtype.name,
        "dimension_names": None if names is None else list(names),
        "chunks": node.chunks,
        "shards": node.shards,
        "nbytes": None if node.zdtype.is_variable else node.nbytes,
    }


def _info_to_json(node: Node) -> dict[str, Any]:
    told = {**node_to_json(node.path, node), "store": str(node.store), "attributes": dict(node.attrs)}
    if isinstance(node, xzarr3.Group):
        return {**told, "members": [node_to_json(*each) for each in node.load()]}
    codecs = [{"name": each.name, "configuration": each.configuration()} for each in node.metadata.codecs]
    return {**told, "fill_value": output.values_to_json(node.fill_value), "codecs": codecs}


@command(
    *NODE,
    examples=["xzarr3 info ocean.zarr", "xzarr3 info ocean.zarr sst", "xzarr3 info ocean.zarr sst --json"],
)
def info(store: str, path: str, as_json: bool, option: dict[str, Any]) -> None:
    """Describe an array, or a group with its members."""
    node = xzarr3.open(store, path, storage_options=option)
    if as_json:
        output.echo_json(_info_to_json(node))
        return
    parts = [str(node.info)]
    if node.attrs:
        told = {
            f"  {name} ": each if isinstance(each, str) else shorten(each)
            for name, each in node.attrs.items()
        }
        width = min(max(map(len, told)), 32) + 1
        parts.append(
            "attributes\n"
            + rows([(printable(name), cut(text, _LONGEST)) for name, text in told.items()], width)
        )
    if isinstance(node, xzarr3.Group):
        parts.append(str(describe_tree(node, dict(node.load()))))
    click.echo("\n\n".join(parts))


def _nested(nodes: Mapping[str, Node | MetadataError], root: xzarr3.Group) -> dict[str, Any]:
    """The hierarchy as JSON: each group has its members by name."""
    found: dict[str, dict[str, Any]] = {}
    for path, node in {"": root, **nodes}.items():
        found[path] = node_to_json(path or root.path, node)
        if isinstance(node, xzarr3.Group):
            found[path]["members"] = {}
        if path:
            above, _, name = path.rpartition("/")
            found[above]["members"][name] = found[path]
    return found[""]


@command(
    *NODE,
    click.option("--depth", metavar="N", type=click.IntRange(min=1), help="At most so many levels."),
    examples=[
        "xzarr3 tree ocean.zarr",
        "xzarr3 tree --depth 1 ocean.zarr",
        "xzarr3 tree ocean.zarr deep --json",
    ],
)
def tree(store: str, path: str, depth: int | None, as_json: bool, option: dict[str, Any]) -> None:
    """Show all nodes below a group.

    Arrays have their dimensions and data types beside them. Consolidated metadata are used where there are
    any: the number of requests is then the same for any number of nodes.
    """
    node = xzarr3.open(store, path, storage_options=option)
    if not isinstance(node, xzarr3.Group):
        told = f"{node.name} {node_detail(node)}"
        output.echo_json(node_to_json(node.path, node)) if as_json else click.echo(printable(told))
        return
    nodes = dict(node.load(max_depth=None if depth is None else depth - 1))
    if as_json:
        output.echo_json(_nested(nodes, node))
    else:
        click.echo(str(describe_tree(node, nodes)))


@command(
    *NODE,
    examples=["xzarr3 stats ocean.zarr", "xzarr3 stats ocean.zarr sst", "xzarr3 stats ocean.zarr --json"],
)
def stats(store: str, path: str, as_json: bool, option: dict[str, Any]) -> None:
    """Tell how much is stored, by array.

    Shown are bytes, the ratio of compression, and how many chunks are stored. The keys are listed once; no
    data are read.
    """
    output.echo_found(xzarr3.stats(store, path, storage_options=option), as_json)


@command(
    *NODE,
    arguments.selection_argument,
    arguments.threads_option,
    examples=["xzarr3 explain ocean.zarr sst '0, 1:5'", "xzarr3 explain ocean.zarr sst --json"],
)
def explain(
    store: str, path: str, selection: str, threads: int | None, as_json: bool, option: dict[str, Any]
) -> None:
    """Tell what reading a selection of an array fetches.

    SELECTION is what stands between the brackets in Python, by default everything. Shown are keys, byte
    ranges, requests, and bytes moved against bytes used. Indexes of shards are read for that, and no data.
    A selection that begins with '-' has to be given after '--'.
    """
    chosen = arguments.parse_selection(selection)
    array = xzarr3.open_array(store, path, storage_options=option)
    output.echo_found(array.explain(chosen, threads=threads), as_json)


@command(
    *NODE,
    arguments.selection_argument,
    click.option(
        "--raw", is_flag=True, help="Values as they are stored: packed, fill values, numbers of days."
    ),
    click.option("--full", is_flag=True, help="Print all values; otherwise the middle of many is left out."),
    arguments.threads_option,
    examples=[
        "xzarr3 read ocean.zarr sst '0, :3, :3'",
        "xzarr3 read ocean.zarr time --json",
        "xzarr3 read ocean.zarr time --raw",
        "xzarr3 read ocean.zarr sst -- '-1, 0, :'",
    ],
)
def read(
    store: str, path: str, selection: str, raw: bool, full: bool, threads: int | None, as_json: bool,
    option: dict[str, Any],
) -> None:  # fmt: skip
    """Print the values of a selection of an array.

    SELECTION is what stands between the brackets in Python, by default everything. Attributes of the CF
    conventions are applied as xarray does: packed numbers are unpacked, missing ones are nan, and times are
    dates. A selection that begins with '-' has to be given after '--'.
    """
    chosen = arguments.parse_selection(selection)
    array = xzarr3.open_array(store, path, storage_options=option)
    number = math.prod(array.plan(chosen).shape)
    if number > _MOST_PRINTED or number * array.dtype.itemsize > _MOST_BYTES:
        raise SelectionError(
            f"{number:,} elements of {array.dtype.itemsize} bytes are chosen; at most {_MOST_PRINTED:,} "
            f"elements and {size(_MOST_BYTES)} are printed; choose fewer, as in '0, :10, :10'"
        )
    values = np.asarray(array.get(chosen, threads=threads))
    if not raw:
        values = decoding.decoded(array, values)
    if as_json:
        output.echo_json(output.values_to_json(values), indent=None)
    else:
        _echo_values(values, full)


def _echo_values(values: Any, full: bool) -> None:
    text = values.dtype.kind in "OTSUV" and values.dtype.names is None
    options: dict[str, Any] = {"formatter": {"all": _quoted}} if text else {}
    with np.printoptions(threshold=_MOST_PRINTED if full else 1000, linewidth=80):
        if values.ndim == 0:
            click.echo(printable(str(values[()])))
        else:
            click.echo(np.array2string(values, separator=" ", **options))


def _quoted(value: Any) -> str:
    return printable(repr(value.item() if isinstance(value, np.generic) else value))
