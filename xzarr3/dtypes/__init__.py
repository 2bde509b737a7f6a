"""Data types: they convert between numpy dtypes, Zarr data types and the JSON of metadata documents.

Nothing here depends on codecs, stores or arrays. To add a data type, subclass :class:`ZDType` and register
the class under its name: ``data_type_registry.register("my_type", MyType)``.
"""

from __future__ import annotations

from xzarr3._types import JSON
from xzarr3.dtypes.base import ZDType
from xzarr3.dtypes.core import (
    CORE_TYPES,
    Bool,
    Complex64,
    Complex128,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from xzarr3.dtypes.fixed_length import FixedLengthUTF32, NullTerminatedBytes, RawBytes
from xzarr3.dtypes.ml_dtypes import (
    SMALL_TYPES,
    BFloat16,
    Float4E2M1FN,
    Float6E2M3FN,
    Float6E3M2FN,
    Float8E3M4,
    Float8E4M3,
    Float8E4M3B11FNUZ,
    Float8E4M3FN,
    Float8E4M3FNUZ,
    Float8E5M2,
    Float8E5M2FNUZ,
    Float8E8M0FNU,
    Int2,
    Int4,
    UInt2,
    UInt4,
)
from xzarr3.dtypes.opaque import RawBits
from xzarr3.dtypes.optional import Optional
from xzarr3.dtypes.registry import DataTypeRegistry, data_type_registry, parse_dtype, registry
from xzarr3.dtypes.specs import (
    DTypeConfig_V2,
    DTypeJSON,
    ZarrFormat,
    check_dtype_spec_no_object_codec_v2,
    check_dtype_spec_v2,
)
from xzarr3.dtypes.structs import Struct, Structured
from xzarr3.dtypes.times import DateTime64, TimeDelta64
from xzarr3.dtypes.variable_length import VariableLengthBytes, VariableLengthUTF8
from xzarr3.errors import DataTypeValidationError

_CLASSES: tuple[type[ZDType], ...] = (
    *CORE_TYPES, RawBits, RawBytes, FixedLengthUTF32, NullTerminatedBytes, DateTime64, TimeDelta64,
    VariableLengthUTF8, VariableLengthBytes, Struct, Optional, *SMALL_TYPES,
)  # fmt: skip
for _cls in _CLASSES:
    registry.register(_cls)

__all__ = [
    "JSON", "BFloat16", "Bool", "Complex64", "Complex128", "DTypeConfig_V2", "DTypeJSON", "DataTypeRegistry",
    "DataTypeValidationError", "DateTime64", "FixedLengthUTF32", "Float4E2M1FN", "Float6E2M3FN",
    "Float6E3M2FN", "Float8E3M4", "Float8E4M3", "Float8E4M3B11FNUZ", "Float8E4M3FN", "Float8E4M3FNUZ",
    "Float8E5M2", "Float8E5M2FNUZ", "Float8E8M0FNU", "Float16", "Float32", "Float64", "Int2", "Int4", "Int8",
    "Int16", "Int32", "Int64", "NullTerminatedBytes", "Optional", "RawBits", "RawBytes", "Struct",
    "Structured", "TimeDelta64", "UInt2", "UInt4", "UInt8", "UInt16", "UInt32", "UInt64",
    "VariableLengthBytes", "VariableLengthUTF8", "ZDType", "ZarrFormat",
    "check_dtype_spec_no_object_codec_v2", "check_dtype_spec_v2", "data_type_registry", "parse_dtype",
    "registry",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
