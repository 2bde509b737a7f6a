"""How commands print: a result as text or as JSON that any program reads."""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click
import numpy as np

from xzarr3.display.report import element


def is_terminal() -> bool:
    """Whether errors and progress are shown on a terminal; a closed stream is None."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_colored() -> bool:
    """Whether errors may be colored."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output(NamedTuple):
    """What a command prints; only one of document and text is made."""

    document: Callable[[], object]
    """As JSON."""
    text: Callable[[], str]
    """Nothing is printed where it is empty."""
    status: int = 0
    """The exit status."""
    indent: int | None = 2
    """Of the JSON; None for one line."""


def found(report: Any, status: int = 0) -> Output:
    """The output of a command that prints what a function found."""
    return Output(report.to_json, lambda: str(report), status)


def echo_json(document: object, *, indent: int | None = 2) -> None:
    """Print a document as JSON that any program reads: without NaN and control characters."""
    text = json.dumps(_finite(document), indent=indent, allow_nan=False)
    click.echo(text.replace("\x7f", "\\u007f"))


def _finite(value: Any) -> Any:
    """``value`` with lists and texts in place of what JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return [_finite(value.real), _finite(value.imag)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def values_to_json(values: Any) -> Any:
    """Elements of an array as nested lists, for :func:`echo_json`.

    Examples
    --------
    >>> values_to_json(np.array(["2020-01-01", "NaT"], "M8[D]"))
    ['2020-01-01', 'NaT']
    """
    found = np.asarray(values)
    if found.dtype.kind in "biuf":
        return found.tolist()
    return np.fromiter(map(element, found.ravel()), object, found.size).reshape(found.shape).tolist()
