"""Metadata documents as bytes: JSON that every format shares, read leniently and written strictly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from xzarr3._types import Buffer
from xzarr3.errors import MetadataError

_MAX_DEPTH = 200


def decode(data: Buffer, path: str = "", name: str | None = None) -> dict[str, Any]:
    """The JSON object that a stored document holds.

    The literals ``NaN`` and ``Infinity``, which JSON lacks and older writers used, are read.

    Parameters
    ----------
    data : bytes
    path : str
        Path of the node, for messages.
    name : str, optional
        Name of the document, for messages.

    Raises
    ------
    MetadataError
        If it is not a JSON object.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        try:
            document = json.loads(bytes(data))
        except (ValueError, RecursionError):
            raise MetadataError(
                f"not a JSON document: {error}", path=path, field=name, found=bytes(data[:60])
            ) from error
    if not isinstance(document, dict):
        raise MetadataError(
            "not a metadata document", path=path, field=name, found=document, accepted="a JSON object"
        )
    return document


def encode(document: Mapping[str, Any], path: str = "") -> bytes:
    """A document as it is stored.

    Raises
    ------
    MetadataError
        If it holds what JSON cannot.

    Examples
    --------
    >>> encode({"a": float("nan")})
    Traceback (most recent call last):
    xzarr3.errors.MetadataError: node '/', field 'a': cannot be written as JSON; found nan; accepted: ...
    """
    try:
        return json.dumps(document, indent=2, allow_nan=False, default=_without_numpy).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(path, *(_not_json(document) or ("", ...))) from error


def plain_attributes(attributes: Mapping[str, Any], path: str | None = None) -> dict[str, Any]:
    """A copy of ``attributes`` as they are once they have been written and read again.

    Raises
    ------
    MetadataError
        If they hold what JSON cannot, such as keys that are no strings.

    Examples
    --------
    >>> plain_attributes({"valid_range": (0, np.int16(7))})
    {'valid_range': [0, 7]}
    """
    whole = {"attributes": dict(attributes)}
    bad = _not_json(whole)
    if bad is not None:
        raise _unwritable(path, *bad)
    plain: dict[str, Any] = json.loads(json.dumps(whole, default=_without_numpy))["attributes"]
    return plain


def _unwritable(path: str | None, field: str, found: object) -> MetadataError:
    return MetadataError(
        "cannot be written as JSON", path=path, field=field.strip(".") or None, found=found,
        accepted="objects with string keys, arrays, strings, finite numbers, booleans and null",
    )  # fmt: skip


def _without_numpy(value: object) -> object:
    """Scalars and arrays of numpy as those of Python, which JSON has."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _not_json(value: Any, depth: int = 0) -> tuple[str, object] | None:
    """Where in ``value`` there is something that JSON cannot hold, and what it is."""
    if depth > _MAX_DEPTH:
        return "", value
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                return "", key
        items = [(f".{key}", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"[{at}]", item) for at, item in enumerate(value)]
    elif (
        value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    ):
        return None
    else:
        return "", value
    for place, item in items:
        inner = _not_json(item, depth + 1)
        if inner is not None:
            return place + inner[0], inner[1]
    return None
