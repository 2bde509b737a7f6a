"""Metadata documents as bytes: reads JSON leniently and writes it, for all formats.

Values from users are checked strictly: :func:`plain_attributes` and :func:`check` refuse NaN and infinities,
which JSON lacks. If an older writer left these literals in a document, rewriting the document keeps them.
Knows nothing of the fields of documents.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from xzarr3._types import Buffer
from xzarr3.dtypes.fixed_length import is_text
from xzarr3.errors import MetadataError
from xzarr3.options import max_document_bytes

_KEPT = 2**12  # Bytes of a document; what is in longer ones is not kept.
_MAX_DEPTH = 200  # Levels of objects and arrays in values from users.
_MARK = 40  # Bits
_TIME = 56  # Bits
_BLANK = b" \t\r\n"
_BITS = bytes.maketrans(b" \t", b"01")
_MARKED = re.compile(rb"\n(?:[ \t]{%d}|[ \t]{%d})(?![ \t])" % (_MARK, _TIME))
_DATED = re.compile(rb"\n([ \t]{%d})\Z" % _TIME)
MAX_NESTING = 256
"""Most levels of objects and arrays in a document. Larger than the limit for values from users, because
consolidated metadata add levels."""


class Stored(dict[str, Any]):
    """The JSON object in a stored document, and when its node was put in its place; 0 if nothing tells."""

    __slots__ = ("placed_at",)
    placed_at: float


def placed_at(held: Mapping[str, Any]) -> float | None:
    """When a node was put in its place, by its documents; None if they are copies, which do not tell."""
    if isinstance(held, Stored):
        return held.placed_at
    dates = [each.placed_at for each in held.values() if type(each) is Stored]
    return max(dates) if dates else None


def decode(data: Buffer, path: str = "", name: str | None = None) -> Stored:
    """The JSON object in a stored document.

    Accepts the literals ``NaN`` and ``Infinity``, which JSON lacks and older writers used.

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
    whole = bytes(data)
    text = whole.rstrip(_BLANK)
    found = Stored((_decoded if len(text) <= _KEPT else _decoded.__wrapped__)(text, path, name))
    found.placed_at = replaced_at(whole) or 0
    return found


@lru_cache(maxsize=256)
def _decoded(text: bytes, path: str, name: str | None) -> dict[str, Any]:
    """The JSON object in a document; equal documents of many stores have one, which does not change."""
    try:
        document = msgspec.json.decode(text)
    except RecursionError as error:
        raise _nested(path, name) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        import json

        try:
            document = json.loads(text)
        except RecursionError as deep:
            raise _nested(path, name) from deep
        except ValueError:
            raise MetadataError(
                f"not a JSON document: {error}", path=path, field=name, found=text[:60]
            ) from error
    if not isinstance(document, dict):
        raise MetadataError(
            "not a metadata document", path=path, field=name, found=document, accepted="a JSON object"
        )
    if text.count(b"{") + text.count(b"[") > MAX_NESTING and _is_deep(document):
        raise _nested(path, name)
    return document


def _is_deep(document: dict[str, Any]) -> bool:
    """Whether a document has more than :data:`MAX_NESTING` levels. Works without recursion."""
    level: list[Any] = [document]
    for _ in range(MAX_NESTING):
        below = [
            item
            for each in level
            for item in (each.values() if type(each) is dict else each)
            if type(item) is dict or type(item) is list
        ]
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
    """The error for a document that is too large."""
    return MetadataError(
        "the document is too large", path=path, field=name, found=f"{size} bytes or more",
        accepted=f"at most {max_document_bytes()} bytes",
        advice="raise the limit with xzarr3.set_options(max_document_bytes=...)",
    )  # fmt: skip


def encode(document: Mapping[str, Any], path: str = "", *, compact: bool = False) -> bytes:
    """The bytes of a document, indented, or without any space if ``compact``.

    NaN and infinities become the literals that older writers used. They can only come from such documents:
    values from users were checked before.

    Raises
    ------
    MetadataError
        If JSON cannot hold a value in it.

    Examples
    --------
    >>> encode(decode(b'{"missing_value": NaN}'))
    b'{\\n  "missing_value": NaN\\n}'
    >>> encode({"a": 1j})
    Traceback (most recent call last):
    xzarr3.errors.MetadataError: node '/', field 'a': cannot be written as JSON; found 1j; accepted: ...
    """
    import json

    try:
        if compact:
            return json.dumps(document, separators=(",", ":"), default=_plain).encode()
        text = json.dumps(document, default=_plain).encode()
        try:
            return msgspec.json.format(text, indent=2)  # Ten times as fast as the indentation of json.
        except msgspec.DecodeError:  # The text has literals that JSON lacks.
            return json.dumps(document, indent=2, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(path, *(_not_json(document, finite=False) or ("", ...))) from error


def are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two documents, or parts of them, are the same JSON. In Python, 1, 1.0 and True are equal.

    Examples
    --------
    >>> are_equal({"a": 1}, {"a": True}), are_equal({"a": 0}, {"a": 0})
    (False, True)
    """
    return one == other and encode(one, compact=True) == encode(other, compact=True)


def marked(value: bytes) -> bytes:
    """A document followed by random blanks, which make it differ from equal documents.

    A reader can thus notice that an equal document has replaced another one, even if a service computes the
    e-tag from the value alone. JSON ignores the blanks.

    Examples
    --------
    >>> value = marked(b"{}")
    >>> value != marked(b"{}"), decode(value), mark_of(value) == value[2:]
    (True, {}, True)
    """
    return value + _blanks(int.from_bytes(os.urandom(_MARK // 8)), _MARK)


def remarked(stored: Buffer) -> bytes:
    """A stored document with another mark, so that it has another version even if e-tags tell only values."""
    at, value = replaced_at(stored), marked(bytes(stored).rstrip())
    return value if at is None else dated(value, at)


def dated(value: bytes, at: float) -> bytes:
    """The document of a node that was replaced at a time, followed by blanks that tell it.

    Examples
    --------
    >>> replaced_at(dated(b"{}", 1.5)), replaced_at(b"{}")
    (1.5, None)
    """
    return value + _blanks(int(at * 1e6), _TIME)


def redated(stored: Buffer, at: float) -> bytes:
    """A stored document with the date of a node that is put in its place now."""
    return bytes(stored).rstrip() + mark_of(stored, newest=at)


def replaced_at(stored: Buffer | None) -> float | None:
    """When a node was replaced, by its document; None if it never was."""
    last = None if stored is None else _DATED.search(stored, len(stored) - _TIME - 1)
    times = [each[1:] for each in _marks(stored) if len(each) == 1 + _TIME] if last is None else [last[1]]
    return int(times[-1].translate(_BITS), 2) / 1e6 if times else None


def mark_of(stored: Buffer | None, *, newest: float | None = None) -> bytes:
    """The blanks that were put after a document, to keep when it is changed; empty without any.

    With ``newest`` they tell this time, if they tell none or an earlier one.
    """
    at = None if newest is None else max(newest, replaced_at(stored) or 0)
    kept = [each for each in _marks(stored) if at is None or len(each) != 1 + _TIME]
    return b"".join(kept) if at is None else dated(b"".join(kept), at)


def _blanks(bits: int, length: int) -> bytes:
    return b"\n" + f"{bits:0{length}b}".replace("0", " ").replace("1", "\t").encode()


def _marks(stored: Buffer | None) -> list[bytes]:
    tail = b"" if stored is None else bytes(memoryview(stored)[-4 * _TIME :])
    return _MARKED.findall(tail[len(tail.rstrip(_BLANK)) :])


def check(document: Mapping[str, Any], path: str | None = None) -> None:
    """Refuse a document made of values from a user if JSON cannot hold it.

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
    """A copy of ``attributes`` in the form that writing and reading them would give.

    Parameters
    ----------
    attributes : mapping
    path : str, optional
        Path of the node, for messages.
    stored : mapping, optional
        The attributes as they were read. Values that are identical objects are not converted.

    Raises
    ------
    MetadataError
        If JSON cannot hold them, for instance because a key is not a string.

    Examples
    --------
    >>> plain_attributes({"valid_range": (0, np.int16(7))})
    {'valid_range': [0, 7]}
    """
    import json

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
    except (TypeError, ValueError) as error:  # For instance integers of thousands of digits.
        raise _unwritable(path, "attributes", given) from error
    return {key: attributes[key] if key in kept else plain[key] for key in attributes}


def _unwritable(path: str | None, field: str, found: object) -> MetadataError:
    return MetadataError(
        "cannot be written as JSON", path=path, field=field.strip(".") or None, found=found,
        accepted="objects with string keys, arrays, strings, finite numbers, booleans and null",
    )  # fmt: skip


def _plain(value: object) -> object:
    """Numpy scalars and arrays, and any mapping, as Python types that JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _not_json(value: Any, depth: int = 0, *, finite: bool = True) -> tuple[str, object] | None:
    """The place and the value of something in ``value`` that JSON cannot hold; None if there is nothing.

    NaN and infinities count only with ``finite``.
    """
    if depth > _MAX_DEPTH:
        return "", value
    if isinstance(value, (np.generic, np.ndarray)):
        if value.dtype.kind in "mM":  # Numpy makes integers of some of them.
            return "", value
        value = value.tolist()
    if isinstance(value, str):
        return None if value.isascii() or is_text(value) else ("", value)
    if isinstance(value, float):
        return None if not finite or math.isfinite(value) else ("", value)
    if value is None or isinstance(value, int):
        return None
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, (list, tuple)):
        form, items = "[{}]", enumerate(value)
    elif isinstance(value, Mapping):
        form, items = ".{}", value.items()
        for key in value:
            if not isinstance(key, str):
                return "", key
    else:
        return "", value
    for place, item in items:
        inner = _not_json(item, depth + 1, finite=finite)
        if inner is not None:
            return form.format(place) + inner[0], inner[1]
    return None
