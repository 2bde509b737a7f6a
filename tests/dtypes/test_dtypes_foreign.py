"""Data types of ml_dtypes, and a class of another package for one of them, as zarr-python documents it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
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


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (ml_dtypes.bfloat16, "bfloat16"), (np.dtype(ml_dtypes.int4), "int4"), ("int4", "int4"),
        ("float8_e5m2", "float8_e5m2"),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
def test_whatever_users_pass(spec: Any, name: str, zarr_format: ZarrFormat) -> None:
    assert parse_dtype(spec, zarr_format=zarr_format).name == name


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
        if zarr_format == 2:
            return {"name": "int2", "object_codec_id": None}
        if zarr_format == 3:
            return self._zarr_v3_name
        raise ValueError(f"no format {zarr_format}")

    def _check_scalar(self, data: object) -> TypeGuard[int]:
        return isinstance(data, (int, ml_dtypes.int2))

    def cast_scalar(self, data: object) -> Any:
        if self._check_scalar(data):
            return ml_dtypes.int2(data)
        raise TypeError(f"{data!r} is no integer of two bits")

    def default_scalar(self) -> Any:
        return ml_dtypes.int2(0)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> int:
        value = int(data)  # type: ignore[call-overload]
        if value in (-2, -1, 0, 1):
            return value  # type: ignore[no-any-return]
        raise ValueError("not from -2 to 1")

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> Any:
        if self._check_scalar(data):
            return ml_dtypes.int2(data)
        raise TypeError(f"{data!r} is no integer")


@pytest.mark.usefixtures("restored")
def test_a_class_made_for_zarr_python() -> None:
    data_type_registry.register(OwnInt2._zarr_v3_name, OwnInt2)
    dtype = np.dtype("int2")
    assert registry.contents["int2"] is OwnInt2
    assert Int2 not in registry.contents.values()
    spec = {"name": "int2", "object_codec_id": None}
    for found in (
        parse_dtype("int2"), parse_dtype("int2", zarr_format=2), parse_dtype(dtype),
        parse_dtype(ml_dtypes.int2),
        registry.match_json("int2", zarr_format=3), registry.match_json(spec, zarr_format=2),
        OwnInt2.from_json("int2", zarr_format=3), OwnInt2.from_json(spec, zarr_format=2),
    ):  # fmt: skip
        assert type(found) is OwnInt2
        assert found == OwnInt2()
    data_type = OwnInt2()
    assert repr(data_type) == "OwnInt2()"
    assert data_type.to_native_dtype() == dtype
    assert (data_type.item_size, data_type.has_byte_order, data_type.is_variable) == (1, False, False)
    cast = data_type.cast_array([-1, -2, 0, 1])
    assert cast.dtype == dtype
    assert cast.astype(int).tolist() == [-1, -2, 0, 1]
    with pytest.raises(DataTypeValidationError, match="int2"):
        data_type.cast_array([2])
    assert data_type.holds_only(data_type.filled((3,), ml_dtypes.int2(-1)), ml_dtypes.int2(-1))
    assert Struct((("a", data_type),)).to_native_dtype() == np.dtype([("a", dtype)])
    # A numpy dtype of another kind is not taken for it.
    assert parse_dtype("int8").name == "int8"


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_of_a_class_made_for_zarr_python(tmp_path: Path, zarr_format: ZarrFormat) -> None:
    data_type_registry.register(OwnInt2._zarr_v3_name, OwnInt2)
    written = xzarr3.create_array(
        store=tmp_path / "a.zarr", shape=(4,), dtype="int2", zarr_format=zarr_format, compressors=None
    )
    assert type(written.zdtype) is OwnInt2
    written[:] = [-1, -2, 0, 1]
    read = xzarr3.open_array(tmp_path / "a.zarr", mode="r")
    assert type(read.zdtype) is OwnInt2
    assert read[:].dtype == np.dtype("int2")
    assert read[:].astype(int).tolist() == [-1, -2, 0, 1]
    name = ".zarray" if zarr_format == 2 else "zarr.json"
    document = json.loads((tmp_path / "a.zarr" / name).read_text())
    assert document["dtype" if zarr_format == 2 else "data_type"] == "int2"
    with pytest.raises(DataTypeValidationError):
        written[0] = 2


def test_an_old_ml_dtypes_lacks_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ml_dtypes, "int2")
    with pytest.raises(UnknownExtensionError, match=r"int2.*xzarr3\[ml-dtypes\]"):
        registry.contents["int2"]()
    assert parse_dtype(native("float16")).name == "float16"
