"""How commands print: a result as text or as JSON that any program reads."""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

import click
import numpy as np


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; a closed one is None."""
    return stream is not None and stream.isatty()


def is_colored(stream: Any) -> bool:
    """Whether a stream is a terminal that may be colored."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def echo_found(found: Any, as_json: bool) -> None:
    """Print what a function found: its text, or its ``to_json()``."""
    if as_json:
        echo_json(found.to_json())
    else:
        click.echo(str(found))


def echo_json(document: object, *, indent: int | None = 2) -> None:
    """Print a document as JSON that any program reads: without NaN and control characters."""
    text = json.dumps(_finite(document), indent=indent, allow_nan=False)
    click.echo(text.replace("\x7f", "\\u007f"))


def shows_progress() -> bool:
    """Whether a bar is shown: on a terminal."""
    return is_terminal(sys.stderr)


def _finite(value: Any) -> Any:
    """``value`` with texts in place of floats that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def values_to_json(values: Any) -> Any:
    """Elements of an array as JSON: nested lists, with texts for times, base64 for bytes, pairs for complex.

    Examples
    --------
    >>> values_to_json(np.array(["2020-01-01", "NaT"], "M8[D]"))
    ['2020-01-01', 'NaT']
    """
    found = np.asarray(values)
    if found.dtype.names is not None:
        fields = {name: values_to_json(found[name]) for name in found.dtype.names}
        return _records(fields, found.ndim)
    if found.dtype.kind in "mM":
        return found.astype(str).tolist()
    if found.dtype.kind == "c":
        return np.stack([found.real, found.imag], axis=-1).tolist()
    if found.dtype.kind == "V":  # Types of other packages, such as bfloat16, or raw bytes.
        try:
            return found.astype(np.float64).tolist()
        except (TypeError, ValueError):
            return _plain(found.tolist())
    return _plain(found.tolist())


def _records(fields: Mapping[str, Any], depth: int) -> Any:
    """Nested lists of mappings, from a mapping of nested lists."""
    if depth == 0:
        return dict(fields)
    return [
        _records(dict(zip(fields, each, strict=True)), depth - 1)
        for each in zip(*fields.values(), strict=True)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
