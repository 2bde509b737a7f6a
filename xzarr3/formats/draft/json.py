"""JSON objects in documents of the draft of May 2022: checks their names and the types of their values.

Specification: Zarr v3 core, editor's draft of 25 May 2022, "Metadata", "Extensions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from xzarr3 import fields
from xzarr3._types import JSON
from xzarr3.errors import MetadataError, UnknownExtensionError, did_you_mean, listed
from xzarr3.fields import Meta

_Read = TypeVar("_Read")
Refuse: TypeAlias = Callable[[str, object, str], MetadataError]
"""Makes an error from a field, the value found and the accepted values."""


URI = Annotated[str, Meta(description="a URI")]


class ArrayDocument(msgspec.Struct, frozen=True):
    """The document of an array."""

    shape: list[int]
    data_type: Annotated[Any, Meta(description="a data type")]
    chunk_grid: Annotated[Any, Meta(description="an object with 'type', 'chunk_shape' and 'separator'")]
    fill_value: Annotated[Any, Meta(description="a value of the data type")]
    extensions: Annotated[list[Any], Meta(description="an array of extensions")]
    attributes: dict[str, Any]
    chunk_memory_layout: Any = None
    codecs: Annotated[list[Any], Meta(description="an array of codecs")] = msgspec.field(default_factory=list)
    storage_transformers: Annotated[list[Any], Meta(description="an array of storage transformers")] = (
        msgspec.field(default_factory=list)
    )
    dimension_names: Annotated[list[str | None], Meta(description="a string or null for each dimension")] = (
        None  # type: ignore[assignment]  # for a document without the field; null is no value
    )


class GroupDocument(msgspec.Struct, frozen=True):
    """The document of a group."""

    attributes: dict[str, Any]


class _Extension(msgspec.Struct, frozen=True):
    extension: URI
    must_understand: bool
    configuration: Any = None


def read(
    cls: type[_Read], value: object, within: str = "", *, lenient: bool = False
) -> tuple[_Read, dict[str, JSON]]:
    """A JSON object as an instance of a struct, and its members that the struct lacks.

    Parameters
    ----------
    cls : type
        A struct.
    value : object
        The value to read.
    within : str
        Place of the value in its document.
    lenient : bool
        Accept unknown names.

    Raises
    ------
    MetadataError
        If the value is no object, lacks a name or has a wrong value.
    UnknownExtensionError
        If it has an unknown name, unless ``lenient``.
    """
    known = fields.fields_of(cls)
    if not isinstance(value, Mapping):
        accepted = f"an object with {listed(each.name for each in known if each.required)}"
        raise MetadataError("not a valid value", field=within or None, found=value, accepted=accepted)
    names = [each.name for each in known]
    unknown = {name: item for name, item in value.items() if name not in names}
    found = fields.document(cls, value, within)
    for name, item in () if lenient else unknown.items():
        raise UnknownExtensionError(
            "unknown field", field=f"{within}.{name}".strip("."), found=item, accepted=listed(names),
            advice=did_you_mean(name, names),
        )  # fmt: skip
    return found, unknown


def invalid(field: str, found: object, accepted: str, reason: str = "not a valid value") -> MetadataError:
    return MetadataError(reason, field=field, found=found, accepted=accepted)


def check_extensions(values: list[Any], *, lenient: bool = False) -> None:
    """Refuse extensions that must be understood. This package knows no extension.

    Raises
    ------
    MetadataError
        If an item is no extension.
    UnknownExtensionError
        If an extension must be understood.
    """
    for at, item in enumerate(values):
        found, _ = read(_Extension, item, f"extensions[{at}]", lenient=lenient)
        if found.must_understand:
            raise UnknownExtensionError(
                "unknown extension", field=f"extensions[{at}]", found=found.extension,
                accepted="extensions that need not be understood",
            )  # fmt: skip
