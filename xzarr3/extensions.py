"""Extension points in metadata documents: how a document names an extension and which fields are mandatory.

Specification: Zarr v3 core, "Extension definition". The modules of each extension kind interpret the
configuration: codecs, data types, chunk grids, chunk key encodings and storage transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from xzarr3._types import JSON
from xzarr3.errors import MetadataError, UnknownExtensionError, did_you_mean

_Made = TypeVar("_Made")

_made: dict[object, Any] = {}
_MOST_MADE = 1024
EXTENSION = "a name, or an object with 'name' and, if needed, 'configuration'"


class Extension(NamedTuple):
    """An extension as named in a document."""

    name: str
    configuration: dict[str, JSON]
    """The configuration in the document, its fields unchecked."""
    optional: bool
    """Whether a reader that does not know the extension may ignore it."""


def is_optional(value: object) -> bool:
    """Whether a field or an extension is marked with ``must_understand: false``."""
    return isinstance(value, Mapping) and value.get("must_understand") is False


def parse_extension(value: object, what: str = "an extension") -> Extension:
    """Parse an extension given by its name alone or as an object.

    Parameters
    ----------
    value : JSON
    what : str
        What it should be, for error messages.

    Raises
    ------
    MetadataError
        If it is not an extension. The error names the field below ``value``.
    UnknownExtensionError
        If it has a field that extensions do not have.

    Examples
    --------
    >>> parse_extension({"name": "gzip", "configuration": {"level": 5}})
    Extension(name='gzip', configuration={'level': 5}, optional=False)
    """
    if isinstance(value, str):
        return Extension(value, {}, optional=False)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MetadataError(f"not {what}", found=value, accepted=EXTENSION)
    needed = value.get("must_understand", True)
    if not isinstance(needed, bool):
        raise MetadataError(
            "not a valid value", field="must_understand", found=needed, accepted="true, false"
        )
    for field in value.keys() - {"name", "configuration", "must_understand"}:
        raise UnknownExtensionError("unknown field", field=field, found=value[field], accepted=EXTENSION)
    configuration = value.get("configuration", {})
    if not isinstance(configuration, dict):
        raise MetadataError(
            "not a configuration", field="configuration", found=configuration, accepted="an object"
        )
    return Extension(value["name"], configuration, not needed)


def unknown_fields(
    found: Mapping[str, JSON],
    known: Collection[str],
    accepted: str,
    *,
    within: str = "",
    reason: str = "unknown field",
) -> dict[str, JSON]:
    """The unknown fields of an object, all of which must be optional.

    Parameters
    ----------
    found : mapping of str to JSON
    known : collection of str
    accepted : str
        The accepted fields, for error messages.
    within : str
        The field that contains the object, for error messages.
    reason : str
        What is wrong with an unknown field, for error messages.

    Raises
    ------
    UnknownExtensionError
        If an unknown field must be understood.
    """
    unknown = {name: value for name, value in found.items() if name not in known}
    for name, value in unknown.items():
        if not is_optional(value):
            raise UnknownExtensionError(
                reason,
                field=f"{within}.{name}".strip("."),
                found=value,
                accepted=accepted,
                advice=did_you_mean(name, [*known]),
            )
    return unknown


# Objects that were made of documents


def json_key(data: object) -> object:
    """A key for :func:`remembered` of JSON, or of an object that a user passes as JSON."""
    try:
        encoded = msgspec.json.encode(data)
    except (TypeError, ValueError, ArithmeticError):  # for example half of a surrogate pair
        return repr(data)
    return encoded if b"null" not in encoded else repr(data)  # msgspec writes NaN as null, too


def remembered(key: object, make: Callable[[], _Made]) -> _Made:
    """The object that was made for ``key``, made now if there is none.

    The arrays of a dataset mostly have the same codecs, and differ in little more than attributes.
    """
    made: _Made | None = _made.get(key)
    if made is None:
        made = make()
        if len(_made) >= _MOST_MADE:
            _made.clear()
        _made[key] = made
    return made


def forget() -> None:
    """Forget all objects, because an extension was registered or removed."""
    _made.clear()
