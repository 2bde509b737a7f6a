"""``struct``: elements with named fields, each with its own data type, stored one after another.

numpy's structured dtypes become such types. Fields are packed, whatever their offsets in numpy are. The older
name ``structured``, with fields as pairs, is also read. So are older fill values, the base64 of all bytes;
the bytes are little endian in version 3 and in the byte order of the fields in version 2. Fields that hold
arrays and fields of several byte orders, which numpy and version 2 can express, are refused.

Specification: zarr-extensions, "Struct", "Structured"; Zarr v2, "Data type encoding".
Example: ``{"name": "struct", "configuration": {"fields": [{"name": "x", "data_type": "float32"}]}}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.dtypes.base import Endianness, ZDType, item_of, unmasked
from xzarr3.dtypes.core import MAX_ITEM_SIZE, is_integer
from xzarr3.dtypes.fixed_length import is_text
from xzarr3.dtypes.numbers import native_order, swapped
from xzarr3.dtypes.registry import registry
from xzarr3.dtypes.specs import ZarrFormat, is_zero, spelling_of, to_base64
from xzarr3.errors import (
    DataTypeValidationError,
    MetadataError,
    UnknownExtensionError,
    listed,
    located,
    shorten,
)

_VARIABLE = "elements of a field have no fixed size"
_SEVERAL_ORDERS, _ONE_ORDER = "fields of several byte orders", "fields of one byte order"
_FIELDS = "an array of objects with 'name' and 'data_type'"


@dataclass(frozen=True)
class Struct(ZDType[np.dtype[Any], np.void]):
    """``struct``: elements with named fields.

    Parameters
    ----------
    fields : tuple of pairs of str and ZDType
        Name and data type of each field, in the order in which they are stored.

    Examples
    --------
    >>> from xzarr3.dtypes import Float32, Int8, Struct
    >>> point = Struct((("x", Float32()), ("flag", Int8())))
    >>> point.to_native_dtype()
    dtype([('x', '<f4'), ('flag', 'i1')])
    >>> point.to_json_scalar((0.5, 1), zarr_format=3)
    {'x': 0.5, 'flag': 1}
    """

    fields: tuple[tuple[str, ZDType], ...]
    dtype_cls = np.dtypes.VoidDType
    _zarr_v3_name: ClassVar[str] = "struct"
    _zarr_v3_aliases: ClassVar[tuple[str, ...]] = ("structured",)

    def __post_init__(self) -> None:
        fields = tuple((name, data_type) for name, data_type in self.fields)
        object.__setattr__(self, "fields", fields)
        names: set[str] = set()
        for name, data_type in fields:
            if not isinstance(name, str) or not name or not is_text(name) or name in names:
                raise _refused("not a name of a field", name, "text that is not empty, each once", name)
            names.add(name)
            if data_type.is_variable:
                raise _refused(_VARIABLE, data_type.name, "data types of fixed size", name)
        if not fields:
            raise _refused("it has no fields", [], "at least one field")
        orders = _byte_orders(fields)
        if len(orders) > 1:
            raise _refused(_SEVERAL_ORDERS, orders, _ONE_ORDER)
        try:
            dtype = self.to_native_dtype()
        except (TypeError, ValueError) as error:
            raise _refused(
                f"numpy has no dtype with these fields: {error}", sorted(names), "other fields"
            ) from error
        if dtype.itemsize > MAX_ITEM_SIZE:
            raise _refused("an element is too large", dtype.itemsize, f"at most {MAX_ITEM_SIZE} bytes")

    def to_native_dtype(self) -> np.dtype[Any]:
        return np.dtype([(name, data_type.to_native_dtype()) for name, data_type in self.fields])

    @classmethod
    def _check_native_dtype(cls, dtype: np.dtype[Any]) -> bool:
        return dtype.names is not None or dtype.subdtype is not None

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        if dtype.subdtype is not None:
            raise _refused(
                "each element is an array", dtype, "a dtype without a shape, and a dimension of the array"
            )
        if dtype.names is None or dtype.fields is None:
            raise _refused("not a structured dtype", dtype, "a dtype with named fields")
        fields = []
        for name in dtype.names:
            inner, _, *title = dtype.fields[name]
            if title:
                raise _refused("a field has a title", title[0], "fields that have a name only", name)
            with located(field=f"fields.{name}"):
                fields.append((name, registry.match_dtype(inner)))
        return cls(tuple(fields))

    @property
    def byte_order(self) -> Endianness | None:
        orders = (data_type.byte_order for _, data_type in self.fields)
        return next((order for order in orders if order is not None), None)

    def in_byte_order(self, order: Endianness) -> Self:
        return type(self)(tuple((name, data_type.in_byte_order(order)) for name, data_type in self.fields))

    @property
    def numpy_swaps(self) -> bool:  # type: ignore[override]
        """Whether numpy's casts convert the byte order of all fields."""
        return all(data_type.numpy_swaps for _, data_type in self.fields)

    # JSON of the data type

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        is_plain = isinstance(data, Mapping) and data.get("object_codec_id") is None
        name = data.get("name") if is_plain else None
        if not isinstance(name, (list, tuple)):
            raise _refused("not a structured dtype", data, "a list of pairs of name and dtype")
        fields = []
        for at, field in enumerate(name):
            if isinstance(field, (list, tuple)) and len(field) == 3 and isinstance(field[2], (list, tuple)):
                raise _refused(
                    "a field that holds arrays", field, "name and dtype", str(at), UnknownExtensionError
                )
            if not isinstance(field, (list, tuple)) or len(field) != 2 or not isinstance(field[0], str):
                raise _refused("not a field", field, "name and dtype", str(at))
            spec = {"name": field[1], "object_codec_id": None}
            fields.append((field[0], _field_type(spec, 2, field[0])))
        orders = _byte_orders(fields)
        if len(orders) > 1:
            raise _refused(_SEVERAL_ORDERS, orders, _ONE_ORDER, None, UnknownExtensionError)
        return cls(tuple(fields))

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        given = cls._configuration_v3(data)
        items = given.get("fields")
        if given.keys() != {"fields"} or not isinstance(items, (list, tuple)):
            raise _refused("not a configuration of 'struct'", data, f"'fields', {_FIELDS}")
        fields: list[tuple[Any, ZDType]] = []
        for at, item in enumerate(items):
            if isinstance(item, Mapping) and item.keys() == {"name", "data_type"}:
                name, inner = item["name"], item["data_type"]
            elif isinstance(item, (list, tuple)) and len(item) == 2:
                name, inner = item
            else:
                raise _refused("not a field", item, _FIELDS, str(at))
            fields.append((name, _field_type(inner, 3, name)))
        return cls(tuple(fields))

    def _to_json_v2(self) -> Any:
        pairs = [[name, data_type.to_json(2)["name"]] for name, data_type in self.fields]
        return {"name": pairs, "object_codec_id": None}

    def _to_json_v3(self) -> Any:
        fields = []
        for name, data_type in self.fields:
            with located(field=f"fields.{name}"):
                fields.append({"name": name, "data_type": data_type.to_json(3)})
        return {"name": self._zarr_v3_name, "configuration": {"fields": fields}}

    # Scalars

    def _of(self, scalars: Mapping[str, Any]) -> np.void:
        """Join scalars of the fields to a scalar, bit for bit."""
        machine = self.in_native_order()
        element = np.zeros(1, machine._dtype)
        for name, _ in self.fields:
            element[name] = scalars[name]
        return self._of_bytes((element if self == machine else swapped(element)).tobytes())

    @staticmethod
    def _cells(scalar: np.void) -> dict[str, Any]:
        """The scalars of the fields. All but structs are in the byte order of this machine."""
        cells = {name: np.asarray(scalar)[name] for name in scalar.dtype.names or ()}
        return {name: (each if each.dtype.names else native_order(each))[()] for name, each in cells.items()}

    def _of_bytes(self, raw: bytes) -> np.void:
        return self.decoded(np.frombuffer(bytearray(raw), self._dtype))[0].copy()  # type: ignore[no-any-return]

    def default_scalar(self) -> np.void:
        return self._of_bytes(bytes(self.item_size))

    @property
    def _accepted(self) -> str:
        return f"values of the fields {listed(name for name, _ in self.fields)}, as a tuple or by name"

    def cast_scalar(self, data: object) -> np.void:
        data = item_of(data)
        names = [name for name, _ in self.fields]
        if isinstance(data, np.void) and data.dtype.names == tuple(names):
            given: Mapping[str, Any] = self._cells(data)
        elif isinstance(data, Mapping) and data.keys() == set(names):
            given = data
        elif isinstance(data, (tuple, list)) and len(data) == len(names):
            given = dict(zip(names, data, strict=True))
        elif isinstance(data, (bytes, bytearray)) and len(data) == self.item_size:
            return self._of_bytes(bytes(data))
        elif is_integer(data) and data == 0:
            return self.default_scalar()
        else:
            raise DataTypeValidationError(
                "value cannot be held by data type 'struct'", found=shorten(data), accepted=self._accepted
            )
        scalars = {}
        for name, data_type in self.fields:
            with located(field=name):
                scalars[name] = data_type.cast_scalar(given[name])
        return self._of(scalars)

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> np.void:
        spelling = spelling_of(zarr_format)
        if spelling.old_fills and is_zero(data):
            return self.default_scalar()
        if isinstance(data, str):
            return self._from_text(data, self if spelling.packed_fills else self.in_byte_order("little"))
        names = [name for name, _ in self.fields]
        if not isinstance(data, dict) or data.keys() != set(names):
            raise DataTypeValidationError(
                "fill value not permitted for data type 'struct'",
                found=shorten(data),
                accepted=f"an object with a value for each of {listed(names)}",
            )
        scalars = {}
        for name, data_type in self.fields:
            with located(field=name):
                scalars[name] = data_type.from_json_scalar(data[name], zarr_format=zarr_format)
        return self._of(scalars)

    def _from_text(self, data: str, stored: Self) -> np.void:
        """Decode base64 of the bytes of a scalar of data type ``stored``."""
        scalar = stored._of_bytes(self._unpacked(data, self.item_size))
        return self.cast_scalar(scalar) if stored != self else scalar

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        spelling = spelling_of(zarr_format)
        scalar = self.cast_scalar(data)
        if spelling.packed_fills:
            return to_base64(scalar.tobytes())
        cells = self._cells(scalar)
        return {
            name: data_type.to_json_scalar(cells[name], zarr_format=zarr_format)
            for name, data_type in self.fields
        }

    # Arrays

    @property
    def has_unused_bits(self) -> bool:  # type: ignore[override]
        """Whether a field has unused bits."""
        return any(data_type.has_unused_bits for _, data_type in self.fields)

    def decoded(self, array: AnyArray) -> AnyArray:
        result = array
        for name, data_type in self.fields:
            if data_type.has_unused_bits:
                stored = result[name]
                with located(field=name):
                    found = data_type.decoded(stored)
                if found is not stored:
                    result = array.copy() if result is array else result
                    result[name] = found
        return result

    def cast_array(self, values: Any) -> AnyArray:
        dtype = self._dtype
        given = unmasked(values, self) if hasattr(values, "dtype") else self._of_objects(values)
        if given.dtype == dtype:
            return self.decoded(given)
        if given.dtype.kind == "O":
            scalars = [self.cast_scalar(item).tobytes() for item in given.flat]
            return np.frombuffer(bytearray(b"".join(scalars)), dtype).reshape(given.shape)
        if given.dtype.names != dtype.names or any(given.dtype[name].shape for name, _ in self.fields):
            raise self._cannot_hold(given, accepted=self._accepted)
        result = np.empty(given.shape, dtype)
        for name, data_type in self.fields:
            with located(field=name):
                result[name][...] = data_type.cast_array(given[name])
        return result

    def _of_objects(self, values: Any) -> AnyArray:
        """Nested lists, or other objects, as an array. A tuple or a mapping is one element."""
        if isinstance(values, (tuple, Mapping, bytes, bytearray)):
            return np.asarray(self.cast_scalar(values))
        if not isinstance(values, list):
            return unmasked(values, self)
        parts = [self._of_objects(value) for value in values]
        if not parts:
            return np.empty(0, self._dtype)
        if any(part.shape != parts[0].shape for part in parts):
            raise DataTypeValidationError(
                "lists of different lengths", found=shorten(values), accepted="a regular array of tuples"
            )
        # Joined as bytes, because numpy's functions would return the byte order of this machine.
        raw = b"".join(self.cast_array(part).tobytes() for part in parts)
        return np.frombuffer(bytearray(raw), self._dtype).reshape(len(parts), *parts[0].shape)


Structured = Struct


def _field_type(data: Any, zarr_format: ZarrFormat, name: object) -> ZDType:
    with located(field=f"fields.{name}"):
        return registry.match_json(data, zarr_format=zarr_format)


def _byte_orders(fields: Iterable[tuple[str, ZDType]]) -> list[str]:
    return sorted({data_type.byte_order for _, data_type in fields if data_type.byte_order is not None})


def _refused(
    reason: str,
    found: object,
    accepted: str,
    field: object = None,
    kind: type[MetadataError] = DataTypeValidationError,
) -> MetadataError:
    """The error about a data type that is not valid; ``kind`` differs for one that is but not read here."""
    place = None if field is None else f"fields.{field}"
    return kind(f"data type 'struct': {reason}", field=place, found=found, accepted=accepted)
