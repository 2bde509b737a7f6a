"""Commands that judge a store: ``check``, ``advise`` and ``diff``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

import xzarr3
from xzarr3.cli import arguments, output
from xzarr3.cli.arguments import NODE
from xzarr3.cli.output import Output
from xzarr3.cli.running import FAILURE, UNCHECKED, command


@command(
    *NODE,
    click.option(
        "--decode", type=click.Choice(("sample", "all", "none")), default="sample",
        help="Which chunks are read and decoded: some of each array (default), all or none.",
    ),
    arguments.threads_option,
    failure=UNCHECKED,
)  # fmt: skip
def check(store: str, path: str, decode: Any, threads: int | None, option: dict[str, Any]) -> Output:
    """Look for damage and for what misleads readers.

    Looks, in a node and all that is below it, at documents and their consolidated copies, keys and
    sizes of values, indexes of shards, chunks, coordinates, and writes that have not ended. It changes
    nothing, and names the command that mends what it finds.

    Exit status: 0 without errors, 1 with errors, 2 if the store cannot be checked.

    Examples:
      xzarr3 check ocean.zarr
      xzarr3 check ocean.zarr sst --decode all --json
    """
    shown = output.is_terminal()
    found = xzarr3.check(store, path, decode=decode, threads=threads, progress=shown, storage_options=option)
    return output.found(found, 0 if found.ok else FAILURE)


@command(
    *NODE,
    arguments.access_option,
    click.option(
        "--target", type=click.Choice(("s3", "disk")), help="Where data are kept (default: where they are)."
    ),
)
def advise(
    store: str, path: str, access: Mapping[str, float], target: str | None, option: dict[str, Any]
) -> Output:
    """Compare layouts for the ways in which an array is read.

    Layouts are chunks and shards; filters and compressors stay. Of a group, the largest array counts that is
    no coordinate of its only dimension. A sample of the data is read and compressed.

    \b
    Patterns of --access:
      map     one time, everywhere
      series  one point, all times
      region  a quarter along each horizontal dimension, 30 times if
              there is time
      scan    everything
      sample  8 times of 64 by 64 points, to train a model
      append  one more time is written

    Examples:
      xzarr3 advise ocean.zarr sst --access map=0.6 --access series=0.4
      xzarr3 advise ocean.zarr --target disk --json
    """
    node = xzarr3.open(store, path, storage_options=option)
    return output.found(xzarr3.advise(node, access=dict(access) or None, target=target))


@command(
    arguments.store_argument("a"),
    arguments.store_argument("b"),
    arguments.path_argument,
    arguments.selection_argument,
    click.option("--b-path", metavar="PATH", help="Path in B, if it is another one."),
    click.option("--no-encoding", is_flag=True, help="Leave out formats, chunks, shards and codecs."),
    click.option("--no-attributes", is_flag=True, help="Leave out attributes."),
    click.option("--no-values", is_flag=True, help="Compare documents only."),
    click.option(
        "--first", metavar="N", type=click.IntRange(min=1), default=5,
        help="How many differences of each array are shown (default: 5).",
    ),
    arguments.threads_option,
    arguments.store_option(of="both stores"),
    arguments.store_option("--a-option", "A"),
    arguments.store_option("--b-option", "B"),
    failure=UNCHECKED,
)  # fmt: skip
def diff(
    a: str, b: str, path: str, selection: str, *, no_encoding: bool, no_attributes: bool, no_values: bool,
    option: dict[str, Any], a_option: dict[str, Any], b_option: dict[str, Any], **given: Any,
) -> Output:  # fmt: skip
    """Compare two stores: documents, then values.

    The stores may have any formats, chunks and codecs. Values are compared exactly, as they are stored; NaN
    equals NaN, and -0.0 equals 0.0. Memory is bounded.

    Exit status: 0 if nothing differs, 1 if something does, 2 if a store or a part of one cannot be read.

    Examples:
      xzarr3 diff ocean.zarr copy.zarr
      xzarr3 diff ocean.zarr v2.zarr --no-encoding
      xzarr3 diff ocean.zarr copy.zarr sst '0, :4' --first 10 --json
    """
    found = xzarr3.diff(
        a, b, path, selection=arguments.parse_selection(selection), encoding=not no_encoding,
        attributes=not no_attributes, values=not no_values, progress=output.is_terminal(),
        a_options=option | a_option, b_options=option | b_option, **given,
    )  # fmt: skip
    return output.found(found, UNCHECKED if found.problems else 0 if found.ok else FAILURE)
