"""Commands that write: ``copy``, ``rechunk``, ``consolidate`` and ``recover``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

import xzarr3
from xzarr3.cli import arguments, output
from xzarr3.cli.look import echo_members, node_to_json
from xzarr3.cli.running import command
from xzarr3.errors import MetadataError, NodeExistsError, Xzarr3Error, printable

_HINTS = [
    (NodeExistsError, "--overwrite replaces what is there, --resume goes on with an interrupted copy"),
    (
        MetadataError,
        "--help lists what can be chosen: chunks, shards (--no-shards: none), filters, compressors",
    ),
]


def _copy_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What ``copy`` and ``rechunk`` take."""
    return arguments.together(
        arguments.store_argument(),
        arguments.store_argument("target"),
        click.option("--source-path", metavar="PATH", default="", help="Node to copy (default: the root)."),
        click.option("--path", metavar="PATH", default="", help="Where to copy it to (default: the root)."),
        _layout_options,
        _codec_options,
        click.option("--overwrite", is_flag=True, help="Replace a node that is there."),
        click.option("--resume", is_flag=True, help="Go on with the same copy, which was interrupted."),
        click.option("--no-progress", is_flag=True, help="Show no progress (default: on a terminal)."),
        click.option("-q", "--quiet", is_flag=True, help="Show no progress and no description of the copy."),
        arguments.json_option,
        arguments.store_option("--source-option", "the store to copy from"),
        arguments.store_option("--target-option", "the store to copy to"),
    )(function)


def _layout_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The format, the chunks and the shards of a copy."""
    return arguments.together(
        click.option(
            "--format", "zarr_format", type=click.Choice(list(arguments.FORMATS)),
            help="Format of the copy (default: that of the source).",
        ),
        click.option(
            "--chunks", type=arguments.lengths_of, metavar="LENGTHS",
            help="Chunks of the copy: time=100,lat=90 for all arrays that have these dimensions (-1 is the "
            "whole dimension), but coordinates and bounds are not cut; 100,90,90; auto; or a size such as "
            "4MiB.",
        ),
        click.option(
            "--shards", type=arguments.lengths_of, metavar="LENGTHS", help="Shards of the copy, as --chunks."
        ),
        click.option("--no-shards", is_flag=True, help="Store the chunks of shards one by one."),
        click.option(
            "--advice", is_flag=True,
            help="Give each array the chunks, shards and compressor that xzarr3 advise puts first; with "
            "--resume, an interrupted copy keeps those it began with.",
        ),
        arguments.access_option,
    )(function)  # fmt: skip


def _codec_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The codecs of a copy."""
    return arguments.together(
        click.option(
            "--compressor", metavar="CODEC", type=arguments.codec_of, multiple=True,
            help="Encode all chunks with this compressor, a name or JSON; may be repeated.",
        ),
        click.option("--no-compressor", is_flag=True, help="Store all chunks without compression."),
        click.option(
            "--filter", "filters", metavar="CODEC", type=arguments.codec_of, multiple=True,
            help="Encode all chunks with this filter, a name or JSON, instead of theirs; may be repeated.",
        ),
        click.option("--no-filters", is_flag=True, help="Encode all chunks without filters."),
        click.option(
            "--serializer", metavar="CODEC", type=arguments.codec_of,
            help="Encode all chunks with this serializer, a name or JSON; 'auto' for the usual one.",
        ),
    )(function)  # fmt: skip


@command(
    examples=[
        "xzarr3 copy ocean.zarr backup.zarr",
        "xzarr3 copy ocean.zarr old.zarr --format 2 --compressor zstd",
        "xzarr3 copy ocean.zarr sst.zarr --source-path sst",
        "xzarr3 copy ocean.zarr again.zarr --chunks time=4,lat=6 --resume",
        "xzarr3 copy ocean.zarr advised.zarr --advice --access series=0.9 --access map=0.1",
    ],
    hints=_HINTS,
)
@_copy_options
def copy(**given: Any) -> None:
    """Copy an array or a group, in the same format or another one.

    A group is copied with all that is below it. Chunks are moved untouched where both stores encode them
    alike. What the format of the copy cannot say is an error before anything is written.
    """
    _copy(**given)


@command(
    examples=[
        "xzarr3 rechunk ocean.zarr by_time.zarr --chunks time=-1,lat=3 --no-shards",
        "xzarr3 rechunk ocean.zarr sharded.zarr --chunks auto --shards auto",
        "xzarr3 rechunk ocean.zarr series.zarr --advice --access series",
    ],
    hints=_HINTS,
)
@_copy_options
def rechunk(**given: Any) -> None:
    """Copy an array or a group with other chunks.

    They are given with --chunks or chosen with --advice. Shards stay, and chunks must divide them, unless
    --shards or --no-shards is given. It needs the memory of a few chunks of both stores. An interrupted one
    goes on with --resume. It is xzarr3 copy, and takes the same options.
    """
    if given["chunks"] is None and not given["advice"]:
        raise click.UsageError("give --chunks or --advice: the chunks of the copy")
    _copy(**given)


def _copy(
    store: str, target: str, *, source_path: str, path: str, zarr_format: str | None, overwrite: bool,
    resume: bool, quiet: bool, no_progress: bool, as_json: bool, source_option: dict[str, Any],
    target_option: dict[str, Any], **given: Any,
) -> None:  # fmt: skip
    layout = _layout(**given)
    if given["advice"]:
        place = xzarr3.open_store(target, target_option)
        layout["encoding"] = partial(_advised, store, source_path, given["access"], source_option, place)
    if resume:
        layout["resume"] = True
    node = xzarr3.copy(
        store,
        target,
        source_path=source_path,
        path=path,
        zarr_format=arguments.FORMATS[zarr_format] if zarr_format else None,
        overwrite=overwrite,
        progress=not (quiet or no_progress) and output.is_terminal(sys.stderr),
        source_options=source_option,
        target_options=target_option,
        **layout,
    )
    members = dict(node.load(max_depth=None)) if isinstance(node, xzarr3.Group) else {"": node}
    if as_json:
        nodes = [node_to_json(*each) for each in members.items()]
        output.echo_json({"target": target, "path": path, "nodes": nodes})
    elif not quiet and isinstance(node, xzarr3.Array):
        output.echo(str(node.info))
    elif not quiet:
        echo_members(members)


def _layout(
    *, chunks: Any, shards: Any, no_shards: bool, advice: bool, access: Mapping[str, float],
    compressor: tuple[Any, ...], no_compressor: bool, filters: tuple[Any, ...], no_filters: bool,
    serializer: Any,
) -> dict[str, Any]:  # fmt: skip
    """The options of :func:`xzarr3.copy` that say how the copy is stored; only those that are given."""
    _refuse_both(("--shards", shards), ("--no-shards", no_shards))
    _refuse_both(("--compressor", compressor), ("--no-compressor", no_compressor))
    _refuse_both(("--filter", filters), ("--no-filters", no_filters))
    _refuse_both(("--chunks", chunks), ("--advice", advice))
    if access and not advice:
        raise click.UsageError("--access is for --advice; give both")
    layout: dict[str, Any] = {}
    if chunks is not None:
        layout["chunks"] = chunks
    if shards is not None or no_shards:
        layout["shards"] = shards
    if compressor or no_compressor:
        layout["compressors"] = list(compressor) or None
    if filters or no_filters:
        layout["filters"] = list(filters) or None
    if serializer is not None:
        layout["serializer"] = serializer
    return layout


def _refuse_both(one: tuple[str, Any], other: tuple[str, Any]) -> None:
    if one[1] not in (None, False, ()) and other[1] not in (None, False, ()):
        raise click.UsageError(f"give {one[0]} or {other[0]}, not both")


def _advised(
    store: str, path: str, access: Mapping[str, float], options: Mapping[str, Any], target: xzarr3.Store
) -> dict[str, dict[str, Any]]:
    """The layout that is advised for each array of data, by its path below the copied node.

    Arrays that describe others stay as they are, and so do those without time where all access needs time.
    """
    from xzarr3.advice.patterns import NEED_TIME, roles
    from xzarr3.advice.subject import of_data

    node = xzarr3.open(store, path, storage_options=options)
    found = node.members(max_depth=None) if isinstance(node, xzarr3.Group) else [("", node)]
    arrays = of_data({name: each for name, each in found if isinstance(each, xzarr3.Array)})
    if not arrays:
        raise Xzarr3Error(f"{node!r} has no array to advise on; leave --advice out")
    advised = {}
    for name, array in arrays.items():
        has_time = roles(array.shape, array.dimension_names).time is not None
        fitting = {each: weight for each, weight in access.items() if has_time or each not in NEED_TIME}
        if fitting or not access:
            advised[name] = xzarr3.advise(array, access=fitting or None, target=target).options()
    return advised


@command(examples=["xzarr3 consolidate ocean.zarr", "xzarr3 consolidate ocean.zarr deep --json"])
@arguments.store_argument()
@arguments.path_argument
@arguments.json_option
@arguments.store_option()
def consolidate(store: str, path: str, as_json: bool, option: dict[str, Any]) -> None:
    """Write consolidated metadata: opening all takes one request.

    The documents of all nodes below a group are written into that of the group.
    """
    group = xzarr3.consolidate_metadata(store, path, storage_options=option)
    number = group.nmembers(max_depth=None)
    if as_json:
        output.echo_json({"path": group.path, "nodes": number})
    else:
        click.echo(f"consolidated metadata of {number:,} nodes written to {printable(group.name)}")


@command(examples=["xzarr3 recover ocean.zarr"])
@arguments.store_argument()
@arguments.json_option
@arguments.store_option()
def recover(store: str, as_json: bool, option: dict[str, Any]) -> None:
    """Finish what a killed writer was putting in place.

    Finishes what writers were just putting in its place when they were killed, and removes what others left
    there.
    """
    paths = xzarr3.recover(store, storage_options=option)
    if as_json:
        output.echo_json({"recovered": list(paths)})
        return
    lines = [f"put in its place: {printable(path)}" for path in paths]
    click.echo("\n".join(lines) or "nothing was left to finish")
