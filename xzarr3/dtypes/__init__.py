"""Data types: numpy dtypes <-> Zarr data types <-> the JSON of metadata documents."""

from __future__ import annotations

from xzarr3.dtypes.base import ZDType
from xzarr3.dtypes.core import (
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
    RawBits,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from xzarr3.dtypes.registry import DataTypeRegistry, parse_dtype, registry

__all__ = [
    "Bool",
    "Complex64",
    "Complex128",
    "DataTypeRegistry",
    "Float16",
    "Float32",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "RawBits",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "ZDType",
    "parse_dtype",
    "registry",
]
