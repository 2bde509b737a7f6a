"""Commands that look at a store: ``info``, ``ls``, ``tree``, ``explain``, ``read`` and ``stats``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

import xzarr3
from xzarr3.cli import arguments, decoding, output
from xzarr3.cli.running import HintedError, command, path_before_selection
from xzarr3.describe import node_detail, tree_lines
from xzarr3.display.text import cut, rows
from xzarr3.display.units import size
from xzarr3.errors import MetadataError, listed, printable, shorten

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


def _attribute_rows(attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in attributes.items():
        text = value if isinstance(value, str) else shorten(value, _LONGEST)
        yield f"  {printable(name)} ", cut(text, _LONGEST)


@command(
    examples=["xzarr3 info ocean.zarr", "xzarr3 info ocean.zarr sst", "xzarr3 info ocean.zarr sst --json"]
)
@arguments.store_argument()
@arguments.path_argument
@arguments.json_option
@arguments.store_option()
def info(store: str, path: str, as_json: bool, option: dict[str, Any]) -> None:
    """Describe an array, or a group and its members, with attributes."""
    node = xzarr3.open(store, path, storage_options=option)
    if as_json:
        output.echo_json(_info_to_json(node))
        return
    output.echo(str(node.info))
    if node.attrs:
        width = min(max(len(name) for name in node.attrs), 30) + 4
        output.echo("\nattributes\n" + rows(_attribute_rows(node.attrs), width))
    if isinstance(node, xzarr3.Group):
        members = dict(node.load())
        if members:
            output.echo("\nmembers")
            echo_members(members)


# ls


def _shown_name(path: str, node: Node | MetadataError) -> str:
    return printable(path) + ("/" if isinstance(node, xzarr3.Group) else "")


def _lengths(lengths: Any) -> str:
    return cut(str(lengths), 40)


def _member_row(path: str, node: Node | MetadataError) -> Sequence[str]:
    name = _shown_name(path, node)
    if isinstance(node, MetadataError):
        return (name, "cannot be read", "", "", "", "")
    if isinstance(node, xzarr3.Group):
        return (name, "", "", "", "", "")
    nbytes = "varies" if node.zdtype.is_variable else size(node.nbytes)
    shards = "" if node.shards is None else _lengths(node.shards)
    return (name, _lengths(node.shape), node.zdtype.name, _lengths(node.chunks), shards, nbytes)


def echo_members(members: Mapping[str, Node | MetadataError]) -> None:
    heading = ["name", "shape", "data type", "chunks", "shards", "size"]
    table = [_member_row(*each) for each in members.items()]
    if not any(row[4] for row in table):
        heading, table = [*heading[:4], heading[5]], [(*row[:4], row[5]) for row in table]
    output.echo_table(heading, table, left=len(heading) - 1)


def _list_keys(node: Node, long: bool, as_json: bool) -> None:
    """Print the keys in the store below a node, as they are listed."""
    prefixes = node.format.prefixes(node.path) if node.path else ("",)
    keys = (key for prefix in prefixes for key in node.store.list(prefix))
    sizes = ((key, getattr(key, "size", None)) for key in keys)
    if as_json:
        output.echo_json([{"key": key, "size": nbytes} for key, nbytes in sizes])
        return
    for key, nbytes in sizes:
        told = "?" if nbytes is None else f"{nbytes}"
        click.echo(f"{told:>12}  {printable(key)}" if long else printable(key))


@command(
    examples=[
        "xzarr3 ls ocean.zarr",
        "xzarr3 ls -l ocean.zarr          # shapes, data types, chunks, sizes",
        "xzarr3 ls -r ocean.zarr deep     # all that is below a group",
        "xzarr3 ls --keys ocean.zarr sst  # keys in the store",
    ]
)
@arguments.store_argument()
@arguments.path_argument
@click.option("-l", "--long", is_flag=True, help="With shape, data type, chunks, shards and size.")
@click.option("-r", "--recursive", is_flag=True, help="All nodes below, by their paths.")
@click.option("--keys", is_flag=True, help="The keys in the store, instead of nodes.")
@arguments.json_option
@arguments.store_option()
def ls(
    store: str, path: str, long: bool, recursive: bool, keys: bool, as_json: bool, option: dict[str, Any]
) -> None:
    """List the members of a group, one a line; groups end in "/"."""
    node = xzarr3.open(store, path, storage_options=option)
    if keys:
        _list_keys(node, long, as_json)
        return
    if isinstance(node, xzarr3.Group):
        members = dict(node.load(max_depth=None if recursive else 0))
    else:
        members = {node.basename or "/": node}
    if as_json:
        output.echo_json([node_to_json(*each) for each in members.items()])
    elif long:
        echo_members(members)
    else:
        for name, each in members.items():
            click.echo(_shown_name(name, each))


# tree


def _nested(nodes: Mapping[str, Node | MetadataError], root: xzarr3.Group) -> dict[str, Any]:
    """The hierarchy as JSON: each group has its members by name."""
    top: dict[str, Any] = {**node_to_json(root.path, root), "members": {}}
    found = {"": top}
    for path, node in nodes.items():
        above, _, name = path.rpartition("/")
        found[path] = node_to_json(path, node)
        if isinstance(node, xzarr3.Group):
            found[path]["members"] = {}
        found[above]["members"][name] = found[path]
    return top


@command(
    examples=[
        "xzarr3 tree ocean.zarr",
        "xzarr3 tree --depth 1 ocean.zarr",
        "xzarr3 tree ocean.zarr deep --json",
    ]
)
@arguments.store_argument()
@arguments.path_argument
@click.option("--depth", metavar="N", type=click.IntRange(min=1), help="At most so many levels.")
@arguments.json_option
@arguments.store_option()
def tree(store: str, path: str, depth: int | None, as_json: bool, option: dict[str, Any]) -> None:
    """Show all nodes below a group.

    Arrays have their dimensions and data types beside them. Consolidated metadata are used where there are
    any: the number of requests is then the same for any number of nodes.
    """
    node = xzarr3.open(store, path, storage_options=option)
    nodes = {}
    if isinstance(node, xzarr3.Group):
        nodes = dict(node.load(max_depth=None if depth is None else depth - 1))
    if as_json:
        told = _nested(nodes, node) if isinstance(node, xzarr3.Group) else node_to_json(node.path, node)
        output.echo_json(told)
        return
    head = ("", printable(node.name), "" if isinstance(node, xzarr3.Group) else printable(node_detail(node)))
    lines = [head, *tree_lines(nodes)]
    if output.is_colored():
        from rich.text import Text

        text = Text()
        for guide, name, detail in lines:
            style = "bold blue" if name.endswith("/") else "bold red" if detail.startswith("cannot") else ""
            text.append(guide, "dim").append(name, style)
            text.append(f" {detail}\n" if detail else "\n", "dim")
        text.rstrip()
        output.echo_styled(text)
    else:
        click.echo("\n".join(f"{guide}{name} {detail}".rstrip() for guide, name, detail in lines))


# Selections


def open_array(store: str, path: str, option: Mapping[str, Any]) -> xzarr3.Array:
    """The array at a path.

    Raises
    ------
    HintedError
        If there is none, and the path is a selection whose path was forgotten.
    """
    with path_before_selection(path, store):
        return xzarr3.open_array(store, path, storage_options=option)


@command(
    examples=[
        "xzarr3 explain ocean.zarr sst '0, 1:5'",
        "xzarr3 explain ocean.zarr sst '[0, 7], ::2' --orthogonal",
        "xzarr3 explain ocean.zarr sst --json",
    ]
)
@arguments.store_argument()
@arguments.path_argument
@arguments.selection_argument
@arguments.way_options
@arguments.threads_option
@arguments.json_option
@arguments.store_option()
def explain(
    store: str, path: str, selection: str, ways: Sequence[str], threads: int | None, as_json: bool,
    option: dict[str, Any],
) -> None:  # fmt: skip
    """Tell what reading a selection of an array fetches.

    SELECTION is what stands between the brackets in Python, by default everything. Shown are keys, byte
    ranges, requests, and bytes moved against bytes used. Indexes of shards are read for that, and no data.
    A selection that begins with '-' has to be given after '--'.
    """
    chosen = arguments.parse_selection(selection)
    array = open_array(store, path, option)
    explanation = arguments.indexer(array, ways).explain(chosen, threads=threads)
    if as_json:
        output.echo_json(explanation.to_json())
    else:
        output.echo(str(explanation))


@command(
    examples=[
        "xzarr3 read ocean.zarr sst '0, :3, :3'",
        "xzarr3 read ocean.zarr time --json",
        "xzarr3 read ocean.zarr time --raw",
        "xzarr3 read ocean.zarr sst '::2' --output sst.npy",
        "xzarr3 read ocean.zarr sst -- '-1, 0, :'",
    ]
)
@arguments.store_argument()
@arguments.path_argument
@arguments.selection_argument
@click.option("--raw", is_flag=True, help="Values as they are stored: packed, fill values, numbers of days.")
@click.option("--full", is_flag=True, help="Print all values; otherwise the middle of many is left out.")
@click.option(
    "--output", "file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the values as they are stored to a file of numpy (.npy), of any size.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the file of --output.")
@arguments.way_options
@arguments.threads_option
@arguments.json_option
@arguments.store_option()
def read(
    store: str, path: str, selection: str, raw: bool, full: bool, file: Path | None, overwrite: bool,
    ways: Sequence[str], threads: int | None, as_json: bool, option: dict[str, Any],
) -> None:  # fmt: skip
    """Print the values of a selection of an array.

    SELECTION is what stands between the brackets in Python, by default everything. Attributes of the CF
    conventions are applied as xarray does: packed numbers are unpacked, missing ones are nan, and times are
    dates. A selection that begins with '-' has to be given after '--'.
    """
    if file is not None and as_json:
        raise click.UsageError("give --output or --json, not both")
    chosen = arguments.parse_selection(selection)
    array = open_array(store, path, option)
    indexer = arguments.indexer(array, ways)
    shape = indexer.plan(chosen).shape
    coding = [] if raw else decoding.attributes_of(array)
    if file is not None:
        if coding:
            raise HintedError(
                f"values are written to a file as they are stored, and those of '{printable(array.name)}' "
                f"are decoded by {listed(coding)}",
                "--raw writes them as they are stored",
            )
        _save(indexer, array, chosen, shape, file, overwrite, threads)
        return
    number = math.prod(shape)
    if number > _MOST_PRINTED or number * array.dtype.itemsize > _MOST_BYTES:
        raise HintedError(
            f"the selection has {number:,} elements of {array.dtype.itemsize} bytes; at most "
            f"{_MOST_PRINTED:,} elements and {size(_MOST_BYTES)} are printed",
            "choose fewer, such as '0, :10, :10', or write them to a file with --output FILE",
        )
    values = np.asarray(indexer.get(chosen, threads=threads))
    if coding:
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


def _save(
    indexer: Any, array: xzarr3.Array, selection: Any, shape: tuple[int, ...], file: Path, overwrite: bool,
    threads: int | None,
) -> None:  # fmt: skip
    """Write a selection to a file of numpy through a temporary one beside it."""
    fields = array.split(selection)[0]
    element = np.empty(1, array.dtype) if fields is None else np.empty(1, array.dtype)[fields]
    dtype, shape = element.dtype, (*shape, *element.shape[1:])
    if dtype.hasobject or dtype.kind == "T":
        raise HintedError(
            f"values of data type '{array.zdtype.name}' have no form in a file of numpy", "use --json instead"
        )
    if file.exists() and not overwrite:
        raise HintedError(f"the file {file} exists", "--overwrite replaces it")
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        values: Any = np.lib.format.open_memmap(beside, mode="w+", dtype=dtype, shape=shape)
        if values.size:
            indexer.get(selection, out=values, threads=threads)
        values.flush()
        del values
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    click.echo(f"{size(file.stat().st_size)} written to {printable(str(file))}: {dtype} of shape {shape}")


@command(
    examples=["xzarr3 stats ocean.zarr", "xzarr3 stats ocean.zarr sst", "xzarr3 stats ocean.zarr --json"]
)
@arguments.store_argument()
@arguments.path_argument
@arguments.json_option
@arguments.store_option()
def stats(store: str, path: str, as_json: bool, option: dict[str, Any]) -> None:
    """Tell how much is stored, by array.

    Shown are bytes, the ratio of compression, and how many chunks are stored. The keys are listed once; no
    data are read.
    """
    found = xzarr3.stats(store, path, storage_options=option)
    if as_json:
        output.echo_json(found.to_json())
    else:
        output.echo(str(found))
