"""Data types of ml_dtypes, and a class of another package for one of them, as zarr-python documents it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Self, TypeGuard

import numpy as np
import pytest
from _strategies import native

import xzarr3
from xzarr3 import DataTypeValidationError, UnknownExtensionError
from xzarr3.dtypes import (
    JSON,
    DTypeConfig_V2,
    DTypeJSON,
    Int2,
    Struct,
    ZarrFormat,
    ZDType,
    check_dtype_spec_no_object_codec_v2,
    data_type_registry,
    parse_dtype,
    registry,
)

ml_dtypes = pytest.importorskip("ml_dtypes")


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts the classes of the common registry back after the test."""
    before = dict(registry.contents)
    yield
    registry.contents.clear()
    for name, cls in before.items():
        registry.register(name, cls)
    assert registry.contents == before


two_bits = type(np.dtype("int2"))


class OwnInt2(ZDType[two_bits, ml_dtypes.int2]):  # type: ignore[misc, valid-type]
    """Integers of two bits, written the way the user guide of zarr-python tells."""

    _zarr_v3_name: ClassVar[Literal["int2"]] = "int2"
    _zarr_v2_name: ClassVar[Literal["int2"]] = "int2"
    dtype_cls = two_bits

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        if not cls._check_native_dtype(dtype):
            raise DataTypeValidationError(f"{dtype} is not {cls.dtype_cls}")
        return cls()

    def to_native_dtype(self) -> Any:
        return self.dtype_cls()

    @classmethod
    def _check_json_v2(cls, data: DTypeJSON) -> TypeGuard[DTypeConfig_V2[Literal["int2"], None]]:
        return check_dtype_spec_no_object_codec_v2(data) and data["name"] == "int2"

    @classmethod
    def _check_json_v3(cls, data: DTypeJSON) -> TypeGuard[Literal["int2"]]:
        return data == cls._zarr_v3_name

    @classmethod
    def _from_json_v2(cls, data: DTypeJSON) -> Self:
        if not cls._check_json_v2(data):
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v2_name!r}")
        return cls()

    @classmethod
    def _from_json_v3(cls, data: DTypeJSON) -> Self:
        if not cls._check_json_v3(data):
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name!r}")
        return cls()

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        return {"name": "int2", "object_codec_id": None} if zarr_format == 2 else self._zarr_v3_name

    def cast_scalar(self, data: object) -> Any:
        if not isinstance(data, (int, ml_dtypes.int2)):
            raise TypeError(f"{data!r} is no integer of two bits")
        return ml_dtypes.int2(data)

    def default_scalar(self) -> Any:
        return ml_dtypes.int2(0)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> int:
        return int(data)  # type: ignore[call-overload]

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Any:
        return self.cast_scalar(data)


@pytest.mark.usefixtures("restored")
def test_a_class_made_for_zarr_python() -> None:
    data_type_registry.register(OwnInt2._zarr_v3_name, OwnInt2)
    dtype = np.dtype("int2")
    assert registry.contents["int2"] is OwnInt2
    assert Int2 not in registry.contents.values()
    spec = {"name": "int2", "object_codec_id": None}
    for found in (
        parse_dtype("int2"), parse_dtype("int2", zarr_format=2), parse_dtype(dtype),
        parse_dtype(ml_dtypes.int2), OwnInt2.from_json(spec, zarr_format=2),
    ):  # fmt: skip
        assert type(found) is OwnInt2
        assert found == OwnInt2()
    data_type = OwnInt2()
    assert (data_type.item_size, data_type.has_byte_order, data_type.is_variable) == (1, False, False)
    cast = data_type.cast_array([-1, -2, 0, 1])
    assert cast.dtype == dtype
    assert cast.astype(int).tolist() == [-1, -2, 0, 1]
    with pytest.raises(DataTypeValidationError, match="int2"):
        data_type.cast_array([2])
    assert data_type.holds_only(data_type.filled((3,), ml_dtypes.int2(-1)), ml_dtypes.int2(-1))
    assert Struct((("a", data_type),)).to_native_dtype() == np.dtype([("a", dtype)])


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("zarr_format", "key", "field"), [(2, ".zarray", "dtype"), (3, "zarr.json", "data_type")]
)
def test_arrays_of_a_class_made_for_zarr_python(zarr_format: ZarrFormat, key: str, field: str) -> None:
    data_type_registry.register(OwnInt2._zarr_v3_name, OwnInt2)
    store = xzarr3.MemoryStore()
    written = xzarr3.create_array(store, shape=(4,), dtype="int2", zarr_format=zarr_format, compressors=None)
    written[:] = [-1, -2, 0, 1]
    for array in (written, xzarr3.open_array(store)):
        assert type(array.zdtype) is OwnInt2
        assert array[:].dtype == np.dtype("int2")
        assert array[:].astype(int).tolist() == [-1, -2, 0, 1]
    assert json.loads(bytes(store.get(key) or b""))[field] == "int2"
    with pytest.raises(DataTypeValidationError):
        written[0] = 2


def test_an_old_ml_dtypes_lacks_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ml_dtypes, "int2")
    with pytest.raises(UnknownExtensionError, match=r"int2.*xzarr3\[ml-dtypes\]"):
        registry.contents["int2"]()
    assert parse_dtype(native("float16")).name == "float16"
