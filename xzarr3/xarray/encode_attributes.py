"""Translates attributes of xarray to JSON, and refuses those that JSON cannot represent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xzarr3._types import JSON
from xzarr3.conventions import nonfinite_attributes
from xzarr3.errors import MetadataError
from xzarr3.formats import documents


def encode_attributes(attributes: Mapping[Any, Any], *, path: str) -> dict[str, JSON]:
    """Attributes as JSON; NaN and infinities become text, with a warning.

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
    try:
        return documents.plain_attributes(nonfinite_attributes.finite_attributes(attributes, path), path)
    except MetadataError as error:
        name = (error.field or "").removeprefix("attributes").lstrip(".").partition(".")[0].partition("[")[0]
        error.advice = f"convert it, or remove it with .attrs.pop({name!r})"
        raise
