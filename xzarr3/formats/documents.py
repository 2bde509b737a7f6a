"""Metadata documents as bytes: JSON that every format shares, read leniently.

What users give is checked strictly: :func:`plain_attributes` and :func:`check` refuse NaN and infinities,
which JSON lacks. Where older writers left these literals in a document, they stay when it is written again.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from xzarr3._types import Buffer
from xzarr3.errors import MetadataError
from xzarr3.options import max_document_bytes

_MAX_DEPTH = 200  # Of what a user gives.
_MARK = 40  # Bits.
_MARKED = re.compile(rb"\n[ \t]{%d}(?![ \t])" % _MARK)
MAX_NESTING = 256
"""How many levels of objects and arrays a document may have: what is given, within consolidated metadata."""


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
        If it is not a JSON object, too large or nested too deeply.
    """
    if len(memoryview(data)) > max_document_bytes():
        raise oversized(len(memoryview(data)), path, name)
    try:
        document = msgspec.json.decode(data)
    except RecursionError as error:
        raise _nested(path, name) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            document = json.loads(bytes(data))
        except RecursionError as deep:
            raise _nested(path, name) from deep
        except ValueError:
            raise MetadataError(
                f"not a JSON document: {error}", path=path, field=name, found=bytes(data[:60])
            ) from error
    if not isinstance(document, dict):
        raise MetadataError(
            "not a metadata document", path=path, field=name, found=document, accepted="a JSON object"
        )
    text = bytes(data)
    if text.count(b"{") + text.count(b"[") > MAX_NESTING and _is_deep(document):
        raise _nested(path, name)
    return document


def _is_deep(document: dict[str, Any]) -> bool:
    """Whether there are more levels than there may be; found without recursion, level by level."""
    level: list[Any] = [document]
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for each in level:
            items = each.values() if type(each) is dict else each
            below += [item for item in items if type(item) is dict or type(item) is list]
        if not below:
            return False
        level = below
    return True


def _nested(path: str, name: str | None) -> MetadataError:
    return MetadataError(
        "the document is nested too deeply", path=path, field=name,
        accepted=f"at most {MAX_NESTING} levels of objects and arrays",
    )  # fmt: skip


def oversized(size: int, path: str = "", name: str | None = None) -> MetadataError:
    """The error for a document that is larger than documents may be."""
    return MetadataError(
        "the document is too large", path=path, field=name, found=f"{size} bytes or more",
        accepted=f"at most {max_document_bytes()} bytes; xzarr3.set_options(max_document_bytes=...) for more",
    )  # fmt: skip


def encode(document: Mapping[str, Any], path: str = "", *, compact: bool = False) -> bytes:
    """A document as it is stored, or without a space if it is to be ``compact``.

    NaN and infinities become the literals of older writers, which is where they come from: what users
    give was checked before.

    Raises
    ------
    MetadataError
        If it holds what JSON cannot.

    Examples
    --------
    >>> encode(decode(b'{"missing_value": NaN}'))
    b'{\\n  "missing_value": NaN\\n}'
    >>> encode({"a": 1j})
    Traceback (most recent call last):
    xzarr3.errors.MetadataError: node '/', field 'a': cannot be written as JSON; found 1j; accepted: ...
    """
    try:
        if compact:
            return json.dumps(document, separators=(",", ":"), default=_plain).encode()
        text = json.dumps(document, default=_plain).encode()
        try:
            return msgspec.json.format(text, indent=2)  # In a tenth of the time that json takes to indent it.
        except msgspec.DecodeError:  # It has literals that JSON does not have.
            return json.dumps(document, indent=2, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(path, *(_not_json(document, finite=False) or ("", ...))) from error


def marked(value: bytes) -> bytes:
    """A document with blanks behind it that no other one has.

    Of two equal documents, one of which replaced the other, readers can tell so, also where a service makes
    the e-tag of nothing but the value. JSON ignores them.

    Examples
    --------
    >>> value = marked(b"{}")
    >>> value != marked(b"{}"), decode(value), mark_of(value) == value[2:]
    (True, {}, True)
    """
    bits = int.from_bytes(os.urandom(_MARK // 8))
    return value + b"\n" + f"{bits:0{_MARK}b}".replace("0", " ").replace("1", "\t").encode()


def mark_of(stored: Buffer | None) -> bytes:
    """What :func:`marked` has put behind a document, which stays when that is changed; none of others."""
    tail = b"" if stored is None else bytes(memoryview(stored)[-4 * _MARK :])
    found = _MARKED.search(tail[len(tail.rstrip(b" \t\r\n")) :])
    return b"" if found is None else found[0]


def check(document: Mapping[str, Any], path: str | None = None) -> None:
    """Refuse a document of what a user gave, if JSON cannot hold it.

    Raises
    ------
    MetadataError

    Examples
    --------
    >>> check({"fill_value": [float("nan")]})
    Traceback (most recent call last):
    xzarr3.errors.MetadataError: field 'fill_value[0]': cannot be written as JSON; found nan; accepted: ...
    """
    bad = _not_json(document)
    if bad is not None:
        raise _unwritable(path, *bad)


def plain_attributes(
    attributes: Mapping[str, Any], path: str | None = None, *, stored: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A copy of ``attributes`` as they are once they have been written and read again.

    Parameters
    ----------
    attributes : mapping
    path : str, optional
        Path of the node, for messages.
    stored : mapping, optional
        The attributes as they were read. Those that are the very same objects are left as they are.

    Raises
    ------
    MetadataError
        If they hold what JSON cannot, such as keys that are no strings.

    Examples
    --------
    >>> plain_attributes({"valid_range": (0, np.int16(7))})
    {'valid_range': [0, 7]}
    """
    try:
        attributes = dict(attributes)
    except (TypeError, ValueError) as error:
        raise _unwritable(path, "attributes", attributes) from error
    before = {} if stored is None else stored
    kept = {key for key, value in attributes.items() if key in before and value is before[key]}
    given = {key: value for key, value in attributes.items() if key not in kept}
    check({"attributes": given}, path)
    try:
        plain: dict[str, Any] = json.loads(json.dumps(given, default=_plain))
    except (TypeError, ValueError) as error:  # Integers of thousands of digits, say.
        raise _unwritable(path, "attributes", given) from error
    return {key: attributes[key] if key in kept else plain[key] for key in attributes}


def _unwritable(path: str | None, field: str, found: object) -> MetadataError:
    return MetadataError(
        "cannot be written as JSON", path=path, field=field.strip(".") or None, found=found,
        accepted="objects with string keys, arrays, strings, finite numbers, booleans and null",
    )  # fmt: skip


def _plain(value: object) -> object:
    """Scalars and arrays of numpy, and any mappings, as those of Python that JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _not_json(value: Any, depth: int = 0, *, finite: bool = True) -> tuple[str, object] | None:
    """Where in ``value`` there is something that JSON cannot hold, and what it is.

    Without ``finite``, NaN and infinities are passed over.
    """
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
    elif isinstance(value, float):
        return None if not finite or math.isfinite(value) else ("", value)
    elif value is None or isinstance(value, (str, int)):
        return None
    else:
        return "", value
    for place, item in items:
        inner = _not_json(item, depth + 1, finite=finite)
        if inner is not None:
            return place + inner[0], inner[1]
    return None
