"""Reads JSON objects into classes: configurations into dataclasses, documents into structs of msgspec.

The annotations of a class say what each field accepts. Codecs of users are dataclasses; to import a struct
takes a tenth of the time. msgspec checks the values; the errors name the field, what was found and
what is accepted, and are made here. Knows no codec, grid or document.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from xzarr3._types import JSON
from xzarr3.errors import MetadataError, listed
from xzarr3.extensions import unknown_fields

_Read = TypeVar("_Read")


class _Required(NamedTuple):
    """In an annotation: a document must have the field, although the constructor has a default for it."""


REQUIRED = _Required()
_NULL = ", or null"
Number = Annotated[int | float, Meta(description="a finite number")]
"""A number that is neither NaN nor infinite; an integer stays one."""


def parsed(read: Callable[[Any, str], Any], accepted: str, *, required: bool = False, **options: Any) -> Any:
    """A field of a dataclass whose JSON ``read`` turns into a value; it takes the JSON and the field's place.

    With ``required`` a document must have the field, although the constructor has a default for it.
    """
    metadata = {"read": read, "accepted": accepted, "required": required}
    return dataclasses.field(metadata=metadata, **options)


class Field(NamedTuple):
    """A field of a class: its name, its type, and how a document may give it."""

    name: str
    type: Any
    required: bool
    accepted: str
    read: Callable[[JSON, str], Any] | None

    def value(self, given: Any, what: str, place: str) -> Any:
        """The value of the field, checked.

        Raises
        ------
        MetadataError
            If it is not valid.
        """
        if self.read is not None:
            return self.read(given, place)
        try:
            value = msgspec.convert(given, self.type)
        except msgspec.ValidationError as error:
            raise _wrong(given, self.type, what, place) from error
        takes_any = Any in (self.type, *get_args(self.type)[:1])
        # Neither NaN and infinity nor an integer that no double holds is less.
        if type(value) in (float, int) and not takes_any and not abs(value) <= sys.float_info.max:
            raise wrong(what, place, given, self.accepted)
        return value


def _fields_of(cls: Any) -> tuple[Field, ...]:
    if issubclass(cls, msgspec.Struct):
        infos = msgspec.structs.fields(cls)
        return tuple(Field(one.name, one.type, one.required, described(one.type), None) for one in infos)
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # an annotation names what only its function knows; such fields are not checked
        hints = {}
    found = []
    for each in dataclasses.fields(cls):
        if not each.init:
            continue
        hint = hints.get(each.name, Any)
        missing = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        required = missing or each.metadata.get("required", False)
        required |= any(isinstance(item, _Required) for item in getattr(hint, "__metadata__", ()))
        accepted = each.metadata.get("accepted") or described(hint)
        found.append(Field(each.name, hint, required, accepted, each.metadata.get("read")))
    return tuple(found)


fields_of: Callable[[Any], tuple[Field, ...]] = lru_cache(maxsize=256)(_fields_of)
"""The fields of a class that its constructor takes."""


def read(
    cls: type[Any], given: Mapping[str, JSON], what: str, *, within: str = "configuration", null: bool = False
) -> dict[str, Any]:
    """The arguments for a class from a JSON object.

    Parameters
    ----------
    cls : type
        A dataclass or a struct.
    given : mapping of str to JSON
    what : str
        What the object configures, for messages.
    within : str
        The field that holds the object, for messages.
    null : bool
        Whether null stands for a field that is left out.

    Raises
    ------
    MetadataError
        If a field is missing or has a wrong value.
    UnknownExtensionError
        If a field is not known and must be understood.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Gzip:
    ...     level: Annotated[int, Meta(ge=0, le=9)] = 5
    >>> read(Gzip, {"level": 1}, "codec 'gzip'")
    {'level': 1}
    >>> read(Gzip, {"level": 10}, "codec 'gzip'")
    Traceback (most recent call last):
    xzarr3.errors.MetadataError: field 'configuration.level': codec 'gzip': not a valid value; found 10; ...
    """
    found = {}
    fields = fields_of(cls)
    for field in fields:
        place = f"{within}.{field.name}".lstrip(".")
        if field.name in given:
            if given[field.name] is None and not null and field.accepted.endswith(_NULL):
                raise wrong(what, place, None, field.accepted.removesuffix(_NULL))
            found[field.name] = field.value(given[field.name], what, place)
        elif field.required:
            raise MetadataError(_about(what, "missing field"), field=place, accepted=field.accepted)
    known = [field.name for field in fields]
    reason = _about(what, "no such field")
    unknown_fields(given, known, listed(known) or "no such field", within=within, reason=reason)
    return found


def check(instance: Any, what: str) -> None:
    """Check the arguments of the constructor of a dataclass; lists become tuples where these are declared.

    Raises
    ------
    MetadataError
    """
    for field in fields_of(type(instance)):
        if field.read is None and field.type is not Any:
            given = getattr(instance, field.name)
            value = field.value(given, what, f"configuration.{field.name}")
            if value is not given:
                object.__setattr__(instance, field.name, value)


def wrong(
    what: str, place: str, found: object, accepted: object, reason: str = "not a valid value"
) -> MetadataError:
    """The error for a field with a wrong value."""
    found = list(found) if isinstance(found, tuple) else found  # shown as JSON has it
    return MetadataError(_about(what, reason), field=place, found=found, accepted=accepted)  # type: ignore[arg-type]


def _about(what: str, reason: str) -> str:
    return f"{what}: {reason}" if what else reason


def _wrong(given: Any, hint: Any, what: str, place: str) -> MetadataError:
    """The error for the value of a field, or for the first wrong item of the list that it is."""
    item = _item_of(hint)
    if not what and isinstance(given, (list, tuple)) and item is not None:
        for at, each in enumerate(given):
            try:
                msgspec.convert(each, item)
            except msgspec.ValidationError:
                return _wrong(each, item, what, f"{place}[{at}]")
    return wrong(what, place, given, described(hint))


def _item_of(hint: Any) -> Any:
    """The type of the items of a type of lists; None for other types, and for lists described as a whole."""
    if get_origin(hint) is Annotated:
        if any(isinstance(meta, Meta) and meta.description for meta in get_args(hint)[1:]):
            return None
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        hint = next((each for each in get_args(hint) if _item_of(each) is not None), None)
        return None if hint is None else _item_of(hint)
    if get_origin(hint) is list or (get_origin(hint) is tuple and get_args(hint)[1:] == (...,)):
        return get_args(hint)[0]
    return None


_WORDS: dict[Any, str] = {
    bool: "true or false", int: "an integer", float: "a number", str: "a string", type(None): "null",
    Any: "any value",
}  # fmt: skip


def described(hint: Any) -> str:
    """What a type accepts, in words.

    Examples
    --------
    >>> described(Annotated[int, Meta(ge=1)] | None), described(tuple[int, ...]), described(Literal["a", "b"])
    ('an integer of at least 1, or null', 'an array of integers', "'a', 'b'")
    """
    if get_origin(hint) is Annotated:
        for meta in get_args(hint)[1:]:
            if isinstance(meta, Meta):
                if meta.description is not None:
                    return meta.description
                if meta.le is not None:
                    return f"an integer from {meta.ge} to {meta.le}"
                if meta.ge is not None:
                    return f"an integer of at least {meta.ge}"
        hint = get_args(hint)[0]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(str(each).lower() if isinstance(each, bool) else repr(each) for each in arguments)
    if origin in (Union, types.UnionType):
        words = [described(each) for each in arguments]
        return f"{' or '.join(words[:-1])}, or {words[-1]}"
    if _item_of(hint) is not None:
        word = described(_item_of(hint))
        first, _, rest = word.partition(", ")
        kind, _, more = first.removeprefix("an ").removeprefix("a ").partition(" ")
        return f"an array of {kind}s{f' {more}' if more else ''}{f', {rest}' if rest else ''}"
    if origin is dict or hint is dict:
        return "an object"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def document(cls: type[_Read], given: Mapping[str, Any], within: str = "") -> _Read:
    """A JSON object as an instance of a struct; fields that it lacks are left to the caller.

    Raises
    ------
    MetadataError
        If a field is missing or has a wrong value.
    """
    try:
        return msgspec.convert(given, cls)
    except msgspec.ValidationError as error:
        read(cls, given, "", within=within, null=True)  # Its error names the field.
        raise MetadataError("not valid", field=within or None, found=given) from error


__all__ = ["REQUIRED", "Meta", "Number", "check", "described", "document", "parsed", "read", "wrong"]
