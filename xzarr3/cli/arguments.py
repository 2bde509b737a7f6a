"""What several commands take: STORE, PATH and SELECTION, options of stores, patterns of access, ``--json``.

All commands have the same order of arguments: ``STORE [PATH] [SELECTION]``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

import xzarr3
from xzarr3.errors import SelectionError, shorten

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
        raise ValueError("more than a selection")
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise SelectionError(
            f"not a selection: {shorten(text)}; accepted: integers, slices such as '1:5' and '::2', one "
            "'...', lists of integers, and quoted names of fields, separated by commas"
        ) from error


def _parsed(node: ast.expr | None) -> Any:
    """The value of a part of a selection. Raises ValueError for anything else."""
    match node:
        case ast.Tuple(elts=parts):
            return tuple(map(_parsed, parts))
        case ast.List(elts=parts):
            return [*map(_parsed, parts)]
        case ast.Slice(lower=start, upper=stop, step=step):
            return slice(*(None if part is None else int(_parsed(part)) for part in (start, stop, step)))
        case ast.Constant(value=value) if value is ... or type(value) in (int, str):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) is int:
            return -value
    raise ValueError(f"not in a selection: {node}")


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
    """A codec: its name, or JSON with a configuration; None for none.

    Examples
    --------
    >>> codec_of("zstd"), codec_of("none"), codec_of('{"name": "gzip", "configuration": {"level": 1}}')
    ('zstd', None, {'name': 'gzip', 'configuration': {'level': 1}})
    """
    if text == "none":
        return None
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
    >>> [lengths_of(text) for text in ("auto", "4MiB", "100", "100,90", "time=100,lat=-1", "none")]
    ['auto', '4MiB', 100, (100, 90), {'time': 100, 'lat': -1}, None]
    """
    if text == "none":
        return None
    if text in ("auto", "keep") or re.fullmatch(r"\d+(\.\d+)? ?[kMGT]i?B", text):
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


def store_argument(name: str = "store") -> Callable[[Function], Function]:
    """The path or URL of a store."""
    return click.argument(name, metavar=name.upper(), type=click.Path(readable=False, path_type=str))


path_argument = click.argument("path", metavar="[PATH]", default="")
"""The path of a node; by default the root."""

selection_argument = click.argument("selection", metavar="[SELECTION]", default="...")
"""What stands between the brackets in Python; by default everything."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")

threads_option = click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(min=1),
    help="Most threads that read (default: all cores, or more for remote stores).",
)

access_option = click.option(
    "--access",
    type=pattern_of,
    metavar="NAME=WEIGHT",
    multiple=True,
    callback=lambda ctx, param, value: dict(value),
    help="A pattern, map, series, region, scan, sample or append, and how often it happens; may be "
    "repeated (default: maps, series and scans equally often).",
)

NODE = (store_argument(), path_argument, store_option())
"""What names a node."""
