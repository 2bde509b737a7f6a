"""The command ``xzarr3``: ``advise``, ``check``, ``copy``, ``demo``, ``explain``, ``info`` and ``recover``.

Parses arguments, calls the public interface and prints results and errors. It has no other logic.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xzarr3
from xzarr3.errors import SelectionError, Xzarr3Error, printable, shorten

FAILURE = 1
UNCHECKED = 2
INTERRUPTED = 128 + 2


_DEMO = Path(__file__).resolve().parents[1] / "notebooks" / "demo.py"


def _demo(arguments: argparse.Namespace) -> None:
    if not _DEMO.is_file():
        raise Xzarr3Error(
            f"the demonstration is part of a checkout, not of the installed package: no file {_DEMO}; "
            "run bash ci/demo.sh in a checkout"
        )
    options = [("--data", arguments.data), ("--keep", arguments.keep)]
    given = [text for name, value in options if value is not None for text in (name, value)]
    sys.exit(subprocess.run([sys.executable, str(_DEMO), *given], check=False).returncode)


def _info(arguments: argparse.Namespace) -> None:
    if arguments.system:
        xzarr3.show_versions()
        return
    node = xzarr3.open(arguments.store, arguments.path, storage_options=dict(arguments.option))
    print(node.info if isinstance(node, xzarr3.Array) else node.tree())


def _check(arguments: argparse.Namespace) -> None:
    try:
        report = xzarr3.check(
            arguments.store,
            arguments.path,
            decode=arguments.decode,
            repair=arguments.repair,
            dry_run=arguments.dry_run,
            threads=arguments.threads,
            progress=sys.stderr.isatty(),
            storage_options=dict(arguments.option),
        )
    except Xzarr3Error as error:
        print("xzarr3: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(UNCHECKED)
    print(json.dumps(report.to_json(), indent=2) if arguments.json else report, flush=True)
    if not report.ok:
        sys.exit(FAILURE)


def _recover(arguments: argparse.Namespace) -> None:
    paths = xzarr3.recover(arguments.store, storage_options=dict(arguments.option))
    print("\n".join(f"put in its place: {printable(path)}" for path in paths) or "nothing was left to finish")


def _explain(arguments: argparse.Namespace) -> None:
    array = xzarr3.open_array(arguments.store, arguments.node, storage_options=dict(arguments.option))
    found = getattr(array, arguments.way or "explain")
    explain = found if arguments.way is None else found.explain
    explanation = explain(parse_selection(arguments.selection), threads=arguments.threads)
    if arguments.json:
        print(json.dumps(explanation.to_json(), indent=2).replace("\x7f", "\\u007f"))
    else:
        print(explanation)


def _advise(arguments: argparse.Namespace) -> None:
    node = xzarr3.open(arguments.store, arguments.node, storage_options=dict(arguments.option))
    if isinstance(node, xzarr3.Group):
        arrays = [each for _, each in node.members(max_depth=None) if isinstance(each, xzarr3.Array)]
        if not arrays:
            raise Xzarr3Error(f"{node!r} has no array to advise on; name another group with --node")
        node = max(arrays, key=lambda array: array.nbytes)
    found = xzarr3.advise(node, access=dict(arguments.access) or None, target=arguments.target)
    print(json.dumps(found.to_json(), indent=2) if arguments.json else found)


def _access(text: str) -> tuple[str, float]:
    """A pattern of access and how often it happens, for argparse: ``map=0.6``."""
    name, equals, weight = text.partition("=")
    try:
        return name, float(weight) if equals else 1.0
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a pattern: {text!r}; accepted: NAME or NAME=NUMBER") from error


def _thread_count(text: str) -> int:
    """A number of threads, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number of threads: {text!r}; accepted: 1 or more")
    return int(text)


def _option(text: str) -> tuple[str, Any]:
    """An option of a store, for argparse: ``name=value``, where the value is a literal or a plain word."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"not an option: {text!r}; accepted: NAME=VALUE")
    for parse in (json.loads, ast.literal_eval):
        try:
            return name, parse(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return name, value


def _codec(text: str) -> Any:
    """A codec, for argparse: its name, or JSON with a configuration."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not a codec: {text!r}; accepted: a name, or JSON") from error


def _takes_options(command: argparse.ArgumentParser, name: str, of: str) -> None:
    command.add_argument(
        name,
        metavar="NAME=VALUE",
        type=_option,
        action="append",
        default=[],
        help=f"an option of {of}, such as anon=true or endpoint_url=http://127.0.0.1:9000; may be repeated",
    )


def parse_selection(text: str) -> Any:
    """Parse a selection, written as between the brackets in Python. No code is evaluated.

    Raises
    ------
    SelectionError
        If it has anything but integers, slices, Ellipses, lists of integers, and names of fields.

    Examples
    --------
    >>> parse_selection("0, 1:5, ..., ::-2, [3, -1]")
    (0, slice(1, 5, None), Ellipsis, slice(None, None, -2), [3, -1])
    """
    try:
        found = ast.parse(f"_[{text}]", mode="eval").body
        if isinstance(found, ast.Subscript) and isinstance(found.value, ast.Name):
            return _parsed(found.slice)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _no_selection(text) from error
    raise _no_selection(text)


def _no_selection(text: str) -> SelectionError:
    return SelectionError(
        f"not a selection: {shorten(text)}; accepted: integers, slices such as '1:5' and '::2', one '...', "
        "lists of integers, and quoted names of fields, separated by commas"
    )


def _parsed(node: ast.expr) -> Any:
    """The value of a part of a selection. Raises ValueError for anything else."""
    if isinstance(node, ast.Tuple):
        return tuple(map(_parsed, node.elts))
    if isinstance(node, ast.List):
        return [*map(_parsed, node.elts)]
    if isinstance(node, ast.Slice):
        return slice(
            *(None if part is None else _integer(part) for part in (node.lower, node.upper, node.step))
        )
    if isinstance(node, ast.Constant) and (node.value is ... or isinstance(node.value, str)):
        return node.value
    return _integer(node)


def _integer(node: ast.expr) -> int:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, sign = node.operand, -1
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sign * node.value
    raise ValueError(f"not an integer: {ast.dump(node)}")


def _copy(arguments: argparse.Namespace) -> None:
    node = xzarr3.copy(
        arguments.source,
        arguments.target,
        source_path=arguments.source_path,
        path=arguments.path,
        zarr_format=_FORMATS[arguments.format] if arguments.format else None,
        compressors=arguments.compressor or "keep",
        filters=None if arguments.no_filters else arguments.filter or "keep",
        serializer=arguments.serializer or "keep",
        shards=None if arguments.no_shards else "keep",
        overwrite=arguments.overwrite,
        progress=not (arguments.quiet or arguments.no_progress) and sys.stderr.isatty(),
        source_options=dict(arguments.source_option),
        target_options=dict(arguments.target_option),
    )
    if not arguments.quiet:
        print(node.info if isinstance(node, xzarr3.Array) else node.tree())


_FORMATS: dict[str, xzarr3.ZarrFormat] = {"2": 2, "3": 3, "3-draft": "3-draft"}


def parser() -> argparse.ArgumentParser:
    """The parser of the command line.

    >>> parser().parse_args(["info", "a.zarr"]).path
    ''
    """
    top = argparse.ArgumentParser(prog="xzarr3", description="Read, write and convert Zarr stores.")
    top.add_argument("--version", action="version", version=f"xzarr3 {xzarr3.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    info = commands.add_parser(
        "info", help="describe an array, or list a group", description="Describe an array, or list a group."
    )
    of = info.add_mutually_exclusive_group(required=True)
    of.add_argument("store", metavar="STORE", nargs="?", help="path or URL of the store")
    of.add_argument(
        "--system", action="store_true", help="print versions, and whether compiled code is used here"
    )
    info.add_argument(
        "path", metavar="PATH", nargs="?", default="", help="path of the node (default: the root)"
    )
    _takes_options(info, "--option", "the store")
    info.set_defaults(command=_info)

    demo = commands.add_parser(
        "demo", help="run the demonstration of a checkout; bash ci/demo.sh also installs what it needs"
    )
    demo.add_argument("--data", metavar="FILE", help="another netCDF file than the sample data")
    demo.add_argument("--keep", metavar="DIR", help="where the store is kept")
    demo.set_defaults(command=_demo)
    explain = commands.add_parser(
        "explain",
        help="tell what reading a selection of an array fetches",
        description="Tell what reading a selection of an array fetches: keys, byte ranges, requests, bytes "
        "moved against bytes used. Indexes of shards are read for that, and no data.",
        epilog="A selection that begins with '-' has to be given after '--'.",
    )
    explain.add_argument("store", metavar="STORE", help="path or URL of the store")
    explain.add_argument(
        "selection",
        metavar="SELECTION",
        help="what stands between the brackets in Python, such as '0, 1:5, ::2, [3, 7]'; '...' is everything",
    )
    explain.add_argument("--node", metavar="PATH", default="", help="path of the array (default: the root)")
    ways = explain.add_mutually_exclusive_group()
    for option, way, text in (
        ("--orthogonal", "oindex", "each list stands for itself, as array.oindex has it"),
        ("--vectorized", "vindex", "lists select points together, which come first, as array.vindex has it"),
        ("--blocks", "blocks", "coordinates of chunks, or shards, as array.blocks has them"),
    ):
        ways.add_argument(option, dest="way", action="store_const", const=way, help=text)
    explain.add_argument(
        "--threads",
        metavar="N",
        type=_thread_count,
        help="threads that read (default: all cores)",
    )
    explain.add_argument("--json", action="store_true", help="print all of it as JSON")
    _takes_options(explain, "--option", "the store")
    explain.set_defaults(command=_explain)

    check = commands.add_parser(
        "check",
        help="look for damage: in documents, keys, sizes, shards, chunks, coordinates, attributes, writes",
        description="Look for damage and for what misleads readers, in an array or a group with all that is "
        "below it: documents and their consolidated copies, names, keys and sizes of values, indexes of "
        "shards, chunks, coordinates, CF attributes, and writes that have not ended.",
        epilog="Exit status: 0 without errors, 1 with errors, 2 if the store cannot be checked.",
    )
    check.add_argument("store", metavar="STORE", help="path or URL of the store")
    check.add_argument(
        "path", metavar="PATH", nargs="?", default="", help="path of the node (default: the root)"
    )
    check.add_argument(
        "--decode",
        choices=("sample", "all", "none"),
        default="sample",
        help="which chunks are read and decoded: some of each array (default), all or none",
    )
    check.add_argument(
        "--repair",
        action="store_true",
        help="repair what is safe: writes of dead writers, temporary files, chunks outside of the grid, "
        "consolidated metadata; never chunks of the grid",
    )
    check.add_argument("--dry-run", action="store_true", help="only tell what a repair would do")
    check.add_argument(
        "--threads", metavar="N", type=_thread_count, help="threads that decode (default: all cores)"
    )
    check.add_argument("--json", action="store_true", help="print all of it as JSON")
    _takes_options(check, "--option", "the store")
    check.set_defaults(command=_check)

    copy = commands.add_parser(
        "copy",
        help="copy an array or a group, in the same format or another one",
        description="Copy an array, or a group with all that is below it, in the same format or another one. "
        "Chunks are moved untouched where both formats describe them in the same way; what the format of the "
        "copy cannot say is an error before anything is written.",
    )
    copy.add_argument("source", metavar="SOURCE", help="path or URL of the store to copy from")
    copy.add_argument("target", metavar="TARGET", help="path or URL of the store to copy to")
    copy.add_argument("--source-path", metavar="PATH", default="", help="node to copy (default: the root)")
    copy.add_argument("--path", metavar="PATH", default="", help="where to copy it to (default: the root)")
    copy.add_argument(
        "--format", choices=list(_FORMATS), help="format of the copy (default: that of the source)"
    )
    copy.add_argument("--compressor", metavar="NAME", help="encode all chunks anew with this compressor")
    filters = copy.add_mutually_exclusive_group()
    filters.add_argument(
        "--filter",
        metavar="CODEC",
        type=_codec,
        action="append",
        help="encode all chunks anew with this filter, a name or JSON, instead of theirs; may be repeated",
    )
    filters.add_argument("--no-filters", action="store_true", help="encode all chunks anew without filters")
    copy.add_argument(
        "--serializer",
        metavar="CODEC",
        type=_codec,
        help="encode all chunks anew with this serializer, a name or JSON; 'auto' for the usual one",
    )
    copy.add_argument("--no-shards", action="store_true", help="store the chunks of shards one by one")
    copy.add_argument("--overwrite", action="store_true", help="replace a node that is there")
    copy.add_argument(
        "--no-progress", action="store_true", help="show no progress (default: show it on a terminal)"
    )
    copy.add_argument("--quiet", action="store_true", help="show no progress and no description of the copy")
    _takes_options(copy, "--source-option", "the store to copy from")
    _takes_options(copy, "--target-option", "the store to copy to")
    copy.set_defaults(command=_copy)

    advise = commands.add_parser(
        "advise",
        help="compare layouts for the ways in which data are read",
        description="Compare chunks, shards and compressors of an array, or of the largest array of a "
        "group, for the ways in which it is read. A sample of the data is read and compressed.",
    )
    advise.add_argument("store", metavar="STORE", help="path or URL of the store")
    advise.add_argument(
        "--node", metavar="PATH", default="", help="path of the array or group (default: the root)"
    )
    advise.add_argument(
        "--access",
        metavar="NAME=WEIGHT",
        type=_access,
        action="append",
        default=[],
        help="a pattern, map, series, region, scan, sample or append, and how often it happens; may be "
        "repeated (default: maps and series equally often)",
    )
    advise.add_argument(
        "--target", default="s3", choices=("s3", "disk"), help="where the data are kept (default: s3)"
    )
    advise.add_argument("--json", action="store_true", help="print all of it as JSON")
    _takes_options(advise, "--option", "the store")
    advise.set_defaults(command=_advise)

    recover = commands.add_parser(
        "recover",
        help="finish what a killed writer was putting in place",
        description="Finish what writers were just putting in its place in an object store when they were "
        "killed, and remove what others left there.",
    )
    recover.add_argument("store", metavar="STORE", help="path or URL of the store")
    _takes_options(recover, "--option", "the store")
    recover.set_defaults(command=_recover)
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
        0 for success; 1 after an error, which is printed as one line on standard error; 130 after Ctrl-C.
        ``check`` exits the process with 1 if it finds errors, and with 2 if the store cannot be checked.
        A command line that cannot be parsed exits the process with status 2.
    """
    arguments = parser().parse_args(argv)
    return run_reporting(lambda: arguments.command(arguments))


def run_reporting(command: Callable[[], None]) -> int:
    """Run a command and return the exit status; an error is printed as one line on standard error."""
    try:
        command()
        sys.stdout.flush()
    except Xzarr3Error as error:
        print("xzarr3: " + " ".join(str(error).split()), file=sys.stderr)
        return FAILURE
    except BrokenPipeError:
        # The reader of the output has gone. Without this, the interpreter would print an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except KeyboardInterrupt:
        print("xzarr3: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0
