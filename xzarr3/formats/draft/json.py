"""JSON objects in documents of the draft of May 2022: checks their names and the types of their values.

Specification: Zarr v3 core, editor's draft of 25 May 2022, "Metadata", "Extensions".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from xzarr3._types import JSON
from xzarr3.errors import MetadataError, UnknownExtensionError, did_you_mean, listed

Refuse: TypeAlias = Callable[[str, object, str], MetadataError]
"""Makes an error from a field, the value found and the accepted values."""


ARRAY_FIELDS = {
    "shape": "an array of integers",
    "data_type": "a data type",
    "chunk_grid": "an object with 'type', 'chunk_shape' and 'separator'",
    "fill_value": "a value of the data type",
    "extensions": "an array of extensions",
    "attributes": "an object",
}
"""The names that every document of an array must have, and their accepted values."""


def members(
    value: object,
    required: Mapping[str, str],
    optional: Collection[str] = (),
    field: str = "",
    *,
    lenient: bool = False,
) -> tuple[dict[str, Any], dict[str, JSON]]:
    """Check the names of a JSON object; returns its known members and its unknown members.

    Parameters
    ----------
    value : object
        The value to check.
    required : mapping of str to str
        The names that it must have, and their accepted values.
    optional : collection of str
        The names that it may have.
    field : str
        Place of the value in its document.
    lenient : bool
        Accept unknown names.

    Raises
    ------
    MetadataError
        If the value is no object or lacks a name.
    UnknownExtensionError
        If it has an unknown name, unless ``lenient``.
    """
    if not isinstance(value, Mapping):
        accepted = f"an object with {listed(required)}"
        raise MetadataError("not a valid value", field=field or None, found=value, accepted=accepted)
    for name, accepted in required.items():
        if name not in value:
            raise MetadataError("missing field", field=f"{field}.{name}".strip("."), accepted=accepted)
    unknown = {name: item for name, item in value.items() if name not in required and name not in optional}
    for name, item in unknown.items():
        if not lenient:
            raise UnknownExtensionError(
                "unknown field", field=f"{field}.{name}".strip("."), found=item,
                accepted=listed([*required, *optional]), advice=did_you_mean(name, [*required, *optional]),
            )  # fmt: skip
    return {name: item for name, item in value.items() if name not in unknown}, unknown


def invalid(field: str, found: object, accepted: str, reason: str = "not a valid value") -> MetadataError:
    return MetadataError(reason, field=field, found=found, accepted=accepted)


def items_of(value: object, field: str, accepted: str) -> list[Any]:
    if not isinstance(value, list):
        raise invalid(field, value, accepted)
    return value


def string_of(value: object, field: str, accepted: str) -> str:
    if not isinstance(value, str):
        raise invalid(field, value, accepted)
    return value


def check_extensions(value: object, *, lenient: bool = False) -> None:
    """Refuse extensions that must be understood. This package knows no extension.

    Raises
    ------
    MetadataError
        If ``value`` is no list of extensions.
    UnknownExtensionError
        If an extension must be understood.
    """
    needed = {"extension": "a URI", "must_understand": "true or false"}
    for at, item in enumerate(items_of(value, "extensions", "an array of extensions")):
        field = f"extensions[{at}]"
        found, _ = members(item, needed, ("configuration",), field, lenient=lenient)
        uri = string_of(found["extension"], f"{field}.extension", needed["extension"])
        if not isinstance(found["must_understand"], bool):
            raise invalid(f"{field}.must_understand", found["must_understand"], needed["must_understand"])
        if found["must_understand"]:
            raise UnknownExtensionError(
                "unknown extension", field=field, found=uri, accepted="extensions that need not be understood"
            )
