"""Translates attributes of xarray to JSON, and refuses those that JSON cannot represent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xzarr3._types import JSON
from xzarr3.errors import MetadataError
from xzarr3.formats import nonfinite_attributes

_JSON_ACCEPTED = (
    "text, numbers, booleans, None, lists, dictionaries with text keys, "
    "and numpy scalars and arrays of text, booleans or numbers"
)


def encode_attributes(attributes: Mapping[Any, Any], *, path: str) -> dict[str, JSON]:
    """Attributes as JSON.

    At any depth, numpy scalars and arrays become numbers and lists, and tuples become lists. NaN and
    infinities become the text "NaN", "Infinity" and "-Infinity", with a warning.

    Parameters
    ----------
    attributes : mapping
        Attributes of a variable or a dataset.
    path : str
        Path of their node, for messages.

    Raises
    ------
    MetadataError
        If JSON cannot represent a value: bytes, dates, complex numbers, other objects.

    Examples
    --------
    >>> import numpy as np
    >>> encode_attributes({"valid_range": np.array([0, 1], "i2"), "scale": np.float32(0.5)}, path="tas")
    {'valid_range': [0, 1], 'scale': 0.5}
    """
    encoded: dict[str, JSON] = {}
    for key, value in nonfinite_attributes.finite_attributes(attributes, path).items():
        try:
            encoded[_json_key(key)] = _json(value)
        except ValueError as error:
            raise MetadataError(
                f"attribute {key!r} cannot be stored: {error}",
                path=path,
                field=f"attributes.{key}",
                found=value,
                accepted=_JSON_ACCEPTED,
                advice=f"convert it, or remove it with .attrs.pop({key!r})",
            ) from error
    return encoded


def _json(value: Any) -> JSON:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _json_text(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (np.integer, np.bool_)) and value.dtype.kind in "iub":
        plain: int = value.item()
        return plain
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUTO":
        return _json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, Mapping):
        return {_json_key(key): _json(item) for key, item in value.items()}
    found = f"arrays of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ValueError(f"JSON has no {found}")


def _json_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"JSON has no keys of type {type(key).__name__}")
    return _json_text(key)


def _json_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it is not valid Unicode") from error
    return str(text)
