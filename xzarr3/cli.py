"""The command ``xzarr3``: ``demo`` and ``info``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import xzarr3
from xzarr3.errors import Xzarr3Error

FAILURE = 1
INTERRUPTED = 128 + 2


def _demo(arguments: argparse.Namespace) -> None:
    # Imported here because it takes a second to import xarray, which no other command needs.
    from xzarr3 import demo

    demo.run(data=arguments.data, keep=arguments.keep)


def _info(arguments: argparse.Namespace) -> None:
    node = xzarr3.open(arguments.store, arguments.path)
    print(node.info if isinstance(node, xzarr3.Array) else node.tree())


def parser() -> argparse.ArgumentParser:
    """The parser of the command line.

    >>> parser().parse_args(["info", "a.zarr"]).path
    ''
    """
    top = argparse.ArgumentParser(prog="xzarr3", description="Read and write Zarr v3 stores.")
    top.add_argument("--version", action="version", version=f"xzarr3 {xzarr3.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="convert climate data to Zarr, compute their warming with dask and draw a map",
        description="Convert climate model output from netCDF to a sharded Zarr v3 store, open it with "
        "xarray, compute the warming since the first decades on dask, print a table and save a map.",
    )
    demo.add_argument(
        "--keep",
        metavar="DIR",
        type=Path,
        help="keep the store and the map in DIR (default: a temporary store)",
    )
    demo.add_argument(
        "--data",
        metavar="FILE",
        type=Path,
        help="netCDF file with a variable over time, latitude and longitude "
        "(default: 240 years of North American air temperature in two emission scenarios)",
    )
    demo.set_defaults(command=_demo)

    info = commands.add_parser(
        "info", help="describe an array, or list a group", description="Describe an array, or list a group."
    )
    info.add_argument("store", metavar="STORE", help="path of the store")
    info.add_argument(
        "path", metavar="PATH", nargs="?", default="", help="path of the node (default: the root)"
    )
    info.set_defaults(command=_info)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, by default those of the process.

    Returns
    -------
    int
        0, or 1 after an error, which is printed as one line on standard error. A command line that
        cannot be parsed exits the process with status 2.
    """
    arguments = parser().parse_args(argv)
    try:
        arguments.command(arguments)
        sys.stdout.flush()
    except Xzarr3Error as error:
        print("xzarr3: " + " ".join(str(error).split()), file=sys.stderr)
        return FAILURE
    except BrokenPipeError:
        # The reader of our output has left; without this, the interpreter would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except KeyboardInterrupt:
        print("xzarr3: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0
