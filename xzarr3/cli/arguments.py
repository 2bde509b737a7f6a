"""What several commands take: STORE, PATH and SELECTION, options of stores, patterns of access, ``--json``.

All commands have the same order of arguments: ``STORE [PATH] [SELECTION]``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

import xzarr3
from xzarr3.errors import SelectionError, Xzarr3Error, printable, shorten

Function = TypeVar("Function", bound=Callable[..., Any])

FORMATS: dict[str, xzarr3.ZarrFormat] = {"2": 2, "3": 3, "3-draft": "3-draft"}


# Selections


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


def is_selection(text: str) -> bool:
    """Whether a text is a selection, and not likely a path."""
    try:
        parse_selection(text)
    except SelectionError:
        return False
    return True


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


# Types of parameters


def store_option_of(text: str) -> tuple[str, Any]:
    """An option of a store: ``name=value``, where the value is a literal or a plain word.

    Examples
    --------
    >>> store_option_of("anon=true"), store_option_of("key=abc")
    (('anon', True), ('key', 'abc'))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"not an option: {text!r}; accepted: NAME=VALUE")
    for parse in (json.loads, ast.literal_eval):
        try:
            return name, parse(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return name, value


def pattern_of(text: str) -> tuple[str, float]:
    """A pattern of access and how often it happens.

    Examples
    --------
    >>> pattern_of("map=0.6"), pattern_of("series")
    (('map', 0.6), ('series', 1.0))
    """
    name, equals, weight = text.partition("=")
    try:
        return name, float(weight) if equals else 1.0
    except ValueError as error:
        raise click.BadParameter(f"not a pattern: {text!r}; accepted: NAME or NAME=NUMBER") from error


def codec_of(text: str) -> Any:
    """A codec: its name, or JSON with a configuration.

    Examples
    --------
    >>> codec_of("zstd"), codec_of('{"name": "gzip", "configuration": {"level": 1}}')
    ('zstd', {'name': 'gzip', 'configuration': {'level': 1}})
    """
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not a codec: {text!r}; accepted: a name, or JSON") from error


def lengths_of(text: str) -> Any:
    """Lengths of chunks.

    Examples
    --------
    >>> [lengths_of(text) for text in ("auto", "4MiB", "100", "100,90", "time=100,lat=-1")]
    ['auto', '4MiB', 100, (100, 90), {'time': 100, 'lat': -1}]
    """
    if text == "auto" or re.fullmatch(r"\d+(\.\d+)? ?[kMGT]i?B", text):
        return text
    named = [part.strip().rpartition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in named]
    if all(re.fullmatch(r"-1|[1-9]\d{0,18}", length.strip()) for _, _, length in named):
        lengths = tuple(int(length) for _, _, length in named)
        if not any(equals for _, equals, _ in named):
            return lengths if len(lengths) > 1 else lengths[0]
        if all(names) and len(set(names)) == len(names):
            return dict(zip(names, lengths, strict=True))
    raise click.BadParameter(
        f"not lengths: {text!r}; accepted: 'auto', a size such as '4MiB', an integer, integers such as "
        "'100,90,90', or dimensions such as 'time=100,lat=90'; -1 is the whole dimension"
    )


# Decorators


def together(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """One decorator from several; the first one is the outermost."""

    def decorate(function: Function) -> Function:
        for each in reversed(decorators):
            function = each(function)
        return function

    return decorate


def _complete_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Paths of nodes that a shell proposes, without names that a terminal would execute."""
    above, _, begun = incomplete.rpartition("/")
    store = ctx.params.get("store") or ctx.params.get("a") or ""
    if "://" in store:
        return []  # A shell waits for the answer.
    try:
        group = xzarr3.open_group(store, above, storage_options=dict(ctx.params.get("option") or ()))
        names = [name for name in group if name.startswith(begun) and name == printable(name)]
    except (Xzarr3Error, OSError):
        return []  # A shell has no place for an error.
    return [f"{above}/{name}".lstrip("/") for name in names]


def store_option(name: str = "--option", of: str = "the store") -> Callable[[Function], Function]:
    """An option that takes options of a store; may be repeated."""
    return click.option(
        name,
        type=store_option_of,
        metavar="NAME=VALUE",
        multiple=True,
        callback=lambda ctx, param, value: dict(value),
        help=f"An option of {of}, such as anon=true or endpoint_url=http://127.0.0.1:9000; may be repeated.",
    )


path_argument = click.argument("path", metavar="[PATH]", default="", shell_complete=_complete_path)
"""The path of a node; by default the root."""

selection_argument = click.argument("selection", metavar="[SELECTION]", default="...")
"""What stands between the brackets in Python; by default everything."""


def store_argument(name: str = "store") -> Callable[[Function], Function]:
    """The path or URL of a store."""
    return click.argument(name, metavar=name.upper(), type=click.Path(path_type=str))


def json_option(function: Function) -> Function:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")(function)


def threads_option(function: Function) -> Function:
    """``--threads``."""
    return click.option(
        "--threads",
        metavar="N",
        type=click.IntRange(min=1),
        help="Most threads that read (default: all cores, or more for remote stores).",
    )(function)


def way_options(function: Function) -> Function:
    """The options that say how a selection is meant: ``--orthogonal``, ``--vectorized`` and ``--blocks``."""
    ways = (
        ("--orthogonal", "oindex", "Each list stands for itself, as array.oindex has it."),
        ("--vectorized", "vindex", "Lists select points together, which come first, as array.vindex has it."),
        ("--blocks", "blocks", "Coordinates of chunks, or shards, as array.blocks has them."),
    )
    return together(
        *(click.option(name, "ways", flag_value=way, multiple=True, help=text) for name, way, text in ways)
    )(function)


def indexer(array: xzarr3.Array, ways: Iterable[str]) -> Any:
    """The array, or its ``oindex``, ``vindex`` or ``blocks``.

    Raises
    ------
    click.UsageError
        If several ways are asked for.
    """
    chosen = [*dict.fromkeys(ways)]
    if len(chosen) > 1:
        raise click.UsageError("give only one of --orthogonal, --vectorized and --blocks")
    return getattr(array, chosen[0]) if chosen else array


def access_option(function: Function) -> Function:
    """``--access``."""
    return click.option(
        "--access",
        type=pattern_of,
        metavar="NAME=WEIGHT",
        multiple=True,
        callback=lambda ctx, param, value: dict(value),
        help="A pattern, map, series, region, scan, sample or append, and how often it happens; may be "
        "repeated (default: maps, series and scans equally often).",
    )(function)
