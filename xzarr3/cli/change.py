"""Commands that write: ``copy``, ``consolidate`` and ``recover``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

import xzarr3
from xzarr3.cli import arguments, output
from xzarr3.cli.arguments import NODE
from xzarr3.cli.look import nodes_to_json
from xzarr3.cli.output import Output
from xzarr3.cli.running import command
from xzarr3.errors import Xzarr3Error, printable
from xzarr3.new_array import KEEP
from xzarr3.walk import nodes_of


@command(
    arguments.store_argument(),
    arguments.store_argument("target"),
    click.option("--source-path", metavar="PATH", default="", help="Node to copy (default: the root)."),
    click.option("--path", metavar="PATH", default="", help="Where to copy it to (default: the root)."),
    click.option(
        "--format", "zarr_format", type=click.Choice(list(arguments.FORMATS)),
        help="Format of the copy (default: that of the source).",
    ),
    click.option(
        "--chunks", type=arguments.lengths_of, metavar="LENGTHS", default=KEEP,
        help="Chunks of the copy: time=100,lat=90 for all arrays that have these dimensions (-1 is the "
        "whole dimension), but coordinates and bounds are not cut; 100,90,90; auto; or a size such as 4MiB.",
    ),
    click.option(
        "--shards", type=arguments.lengths_of, metavar="LENGTHS", default=KEEP,
        help="Shards of the copy, as --chunks; none stores the chunks of shards one by one.",
    ),
    click.option(
        "--advice", is_flag=True,
        help="Give each array the chunks and shards that xzarr3 advise puts first.",
    ),
    arguments.access_option,
    click.option(
        "--compressor", "compressors", metavar="CODEC", type=arguments.codec_of, multiple=True,
        help="Encode all chunks with this compressor, a name, JSON or none; may be repeated.",
    ),
    click.option(
        "--filter", "filters", metavar="CODEC", type=arguments.codec_of, multiple=True,
        help="Encode all chunks with this filter, a name, JSON or none, instead of theirs; may be repeated.",
    ),
    click.option(
        "--serializer", metavar="CODEC", type=arguments.codec_of, default=KEEP,
        help="Encode all chunks with this serializer, a name or JSON; auto for the usual one.",
    ),
    click.option("--overwrite", is_flag=True, help="Replace a node that is there."),
    click.option("--resume", is_flag=True, help="Go on with the same copy, which was interrupted."),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress and no description of the copy."),
    arguments.store_option("--source-option", "the store to copy from"),
    arguments.store_option("--target-option", "the store to copy to"),
)  # fmt: skip
def copy(
    store: str, target: str, source_path: str, path: str, *, zarr_format: str | None, advice: bool,
    access: Mapping[str, float], compressors: tuple[Any, ...], filters: tuple[Any, ...], quiet: bool,
    source_option: dict[str, Any], target_option: dict[str, Any], **given: Any,
) -> Output:  # fmt: skip
    """Copy a node, also in another format or with other chunks.

    A group is copied with all that is below it. Chunks are moved untouched where both stores encode them
    alike; --chunks, --shards or --advice cut them anew, in bounded memory. What the format of the copy cannot
    say is an error before anything is written.

    Examples:
      xzarr3 copy ocean.zarr backup.zarr
      xzarr3 copy ocean.zarr old.zarr --format 2 --compressor zstd
      xzarr3 copy ocean.zarr sst.zarr --source-path sst
      xzarr3 copy ocean.zarr again.zarr --chunks time=4,lat=6 --resume
      xzarr3 copy ocean.zarr by_time.zarr --chunks time=-1,lat=3 --shards none
      xzarr3 copy ocean.zarr advised.zarr --advice --access series=0.9 --access map=0.1
    """
    if access and not advice:
        raise click.UsageError("--access is for --advice; give both")
    if advice and given["chunks"] != KEEP:
        raise click.UsageError("give --chunks or --advice, not both")
    for name, codecs in (("compressors", compressors), ("filters", filters)):
        if codecs:
            given[name] = [each for each in codecs if each is not None] or None
    if advice:
        source = xzarr3.open(store, source_path, storage_options=source_option)
        given["encoding"] = _advised(source, access, xzarr3.open_store(target, target_option))
    node = xzarr3.copy(
        store, target, source_path=source_path, path=path,
        zarr_format=arguments.FORMATS[zarr_format] if zarr_format else None,
        progress=not quiet and output.is_terminal(), source_options=source_option,
        target_options=target_option, **given,
    )  # fmt: skip
    return Output(
        lambda: {"target": target, "path": path, "nodes": nodes_to_json(nodes_of(node))},
        lambda: "" if quiet else str(node.tree() if isinstance(node, xzarr3.Group) else node.info),
    )


def _advised(
    node: xzarr3.Array | xzarr3.Group, access: Mapping[str, float], target: xzarr3.Store
) -> dict[str, dict[str, Any]]:
    """The layout that is advised for each array of data, by its path below the copied node.

    Arrays that describe others stay as they are, and so do those without time where all access needs time.
    """
    from xzarr3.advice.patterns import NEED_TIME, roles
    from xzarr3.advice.subject import of_data

    arrays = of_data({path: each for path, each in nodes_of(node).items() if isinstance(each, xzarr3.Array)})
    if not arrays:
        raise Xzarr3Error(f"{node!r} has no array to advise on; leave --advice out")
    advised = {}
    for path, array in arrays.items():
        has_time = roles(array.shape, array.dimension_names).time is not None
        fitting = {each: weight for each, weight in access.items() if has_time or each not in NEED_TIME}
        if fitting or not access:
            advised[path] = xzarr3.advise(array, access=fitting or None, target=target).options()
    return advised


@command(*NODE)
def consolidate(store: str, path: str, option: dict[str, Any]) -> Output:
    """Write consolidated metadata: opening all takes one request.

    The documents of all nodes below a group are written into that of the group.

    Examples:
      xzarr3 consolidate ocean.zarr
      xzarr3 consolidate ocean.zarr deep --json
    """
    group = xzarr3.consolidate_metadata(store, path, storage_options=option)
    number = group.nmembers(max_depth=None)
    text = f"consolidated metadata of {number:,} nodes written to {printable(group.name)}"
    return Output(lambda: {"path": group.path, "nodes": number}, lambda: text)


@command(arguments.store_argument(), arguments.store_option())
def recover(store: str, option: dict[str, Any]) -> Output:
    """Finish what a killed writer was putting in place.

    Finishes what writers were just putting in its place when they were killed, and removes what others left
    there.

    Examples:
      xzarr3 recover ocean.zarr
    """
    paths = xzarr3.recover(store, storage_options=option)
    lines = [f"put in its place: {printable(path)}" for path in paths] or ["nothing was left to finish"]
    return Output(lambda: {"recovered": [*paths]}, lambda: "\n".join(lines))
