"""The table of what libraries read is compared with what the installed libraries do read."""

import json
import shutil
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _defects import healthy
from _peers import DATA, KEPT_STORES, find_gdal, tops

import xzarr3
from xzarr3.checks.readers import DOCUMENTED, READERS, ROWS


@cache
def reports(store: Path) -> dict[str, Any]:
    """What a check says of all arrays of a kept store, by path."""
    found: dict[str, Any] = {}
    for top in tops(store):
        found |= xzarr3.check(xzarr3.LocalStore(store, read_only=True), top, decode="none").arrays
    return found


def alone(store: Path, path: str, tmp_path: Path) -> Path:
    """A group with nothing but a copy of an array, ``array``."""
    shutil.copytree(store / path, tmp_path / "g" / "array")
    is_third = (tmp_path / "g" / "array" / "zarr.json").exists()
    document = {"zarr_format": 3, "node_type": "group"} if is_third else {"zarr_format": 2}
    (tmp_path / "g" / ("zarr.json" if is_third else ".zgroup")).write_text(json.dumps(document))
    return tmp_path / "g"


def by_zarr_python(store: Path, path: str, tmp_path: Path) -> Any:
    return import_module("zarr").open_array(store, path=path or None, mode="r")[...]


def by_xarray(store: Path, path: str, tmp_path: Path) -> Any:
    xarray = import_module("xarray")
    group = alone(store, path, tmp_path)
    return xarray.open_dataset(group, engine="zarr", consolidated=False, decode_cf=False)["array"].values


def by_tensorstore(store: Path, path: str, tmp_path: Path) -> Any:
    driver = "zarr3" if (store / path / "zarr.json").exists() else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{store / path}/"}}
    return import_module("tensorstore").open(spec, open=True).result().read().result()


def by_gdal(store: Path, path: str, tmp_path: Path) -> Any:
    gdal: Any = find_gdal()
    return gdal.read(alone(store, path, tmp_path), "/array")


Read = Callable[[Path, str, Path], Any]
# A byte has bits that values of these types do not use.
NARROW = ("int2", "int4", "float4_e2m1fn")
INSTALLED: dict[str, Read] = {
    "zarr-python": by_zarr_python, "xarray": by_xarray, "tensorstore": by_tensorstore, "GDAL": by_gdal,
}  # fmt: skip
OF_BYTES = "a fill value of bytes that is a list of numbers"
OF_SIGNED = "fixedscaleoffset that stores signed integers"
OF_ZARR_PYTHON = {
    "netcdf-c-*/characters": "the dtype '>S1'",
    "netcdf-c-*/packed": "the elementsize 0 of shuffle, as netCDF-C writes it",
    "*/subarray": "fields that are arrays", "tensorstore-*/v2/record": "fields that are arrays",
    "*/variable/bytes_default": "the fill value 0 of bytes",
    "zarr-python-3.0.10/layouts3/fill/bytes": OF_BYTES,
    "zarr-python-3.0.10/types3/S4": OF_BYTES, "zarr-python-3.0.10/types3/bytes*": OF_BYTES,
    "zarr-python-3.0.10/types2/S4": "text of fixed length with a codec of objects",
    "zarr-python-3.0.10/types2/*/U4": "text of fixed length with a codec of objects",
    "zarr-python-3.0.10/types2/*/M8_*": "a fill value that is a date",
}  # fmt: skip
REFUSED: dict[str, dict[str, str]] = {
    "zarr-python": OF_ZARR_PYTHON,
    "xarray": OF_ZARR_PYTHON,
    "tensorstore": {"*/codecs/compressor/zstd*": "the field 'checksum' of zstd in version 2"},
    "GDAL": {
        "netcdf-c-*/packed": "the elementsize 0 of shuffle, as netCDF-C writes it",
        **{
            f"{place}/{name}": "complex fill values in version 2"
            for place in ("*/types/*", "*/types2/*", "tensorstore-*/v2/*") for name in ("c8", "c16")
        },
        "*/layouts/fill/complex": "complex fill values in version 2",
        "*/layouts2/fill/complex": "complex fill values in version 2",
        "*/layouts*/fill/u8": "fill values of uint64 beyond those of int64",
        "*/layouts*/empty": "dimensions of length 0",
        "*/layouts3/transposed": "an order of transpose that is not its own inverse",
        "*/codecs/compressor/lzma_*": "lzma other than xz without filters",
        "*/codecs/filter/delta_big": "delta of big-endian numbers",
        "*/codecs/filter/delta_i2": "delta that stores another dtype",
        "*/codecs/filter/uncompressed": "delta that stores another dtype",
        "*/codecs/filter/fixedscaleoffset": OF_SIGNED, "*/codecs2/fixedscaleoffset": OF_SIGNED,
        "*/codecs/filter/fixedscaleoffset_f_order": OF_SIGNED,
    },
}  # fmt: skip
"""What a library refuses although it knows all names: arrays of ``tests/data``, and why."""


def is_read(read: Read, store: Path, path: str, tmp_path: Path) -> bool:
    """Whether a library returns the values that xzarr3 does."""
    expected = np.asarray(xzarr3.open_array(store, path)[...])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = np.asarray(read(store, path, tmp_path))
        except Exception:  # noqa: BLE001 - whatever it raises, it does not read the array
            return False
        finally:
            shutil.rmtree(tmp_path / "g", ignore_errors=True)
    if read is by_gdal and found.size == expected.size:  # bands of two dimensions
        found = found.reshape(expected.shape)
    if found.shape != expected.shape:
        return False
    if {found.dtype.kind, expected.dtype.kind} & set("OTU"):
        return [*map(str, found.ravel().tolist())] == [*map(str, expected.ravel().tolist())]
    if expected.dtype.kind in "mM" and found.dtype.kind != expected.dtype.kind:
        return False
    if expected.dtype.name in NARROW:
        return np.array_equal(found.astype("f4"), expected.astype("f4"))
    if expected.dtype.kind in "fc":
        return np.array_equal(found, expected, equal_nan=True)
    return found.astype(expected.dtype).tobytes() == expected.tobytes()


SINCE_3_13 = ("sharding_indexed", "crc32c", "bitround", "fixedscaleoffset")


def refused(name: str, store: Path, path: str) -> str | None:
    """Why a library refuses an array whose names it knows."""
    place = f"{store.relative_to(DATA).as_posix()}/{path}"
    return next((why for pattern, why in REFUSED[name].items() if fnmatch(place, pattern)), None)


@pytest.mark.slow
@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.parametrize("store", KEPT_STORES, ids=str)
def test_table_agrees_with_the_library(name: str, store: Path, tmp_path: Path) -> None:
    """Of every array that is kept: what is said to be read is read but for what is listed, no more."""
    if name == "GDAL" and isinstance(find_gdal(), str):
        pytest.skip(str(find_gdal()))
    wrong = {
        path: report.not_readable_by.get(name, "is said to be read")
        for path, report in reports(store).items()
        if not is_beyond(name, store, path, report)
        and is_read(INSTALLED[name], store, path, tmp_path)
        != (name in report.readable_by and refused(name, store, path) is None)
    }
    assert wrong == {}


def is_beyond(name: str, store: Path, path: str, report: Any) -> bool:
    """Whether the binding of GDAL cannot show it: a raster has dimensions, and shards came with 3.13."""
    if report.zarr_format == "3-draft" or path.startswith("json"):  # Not read here.
        return True
    if name != "GDAL" or getattr(find_gdal(), "version", (0,)) >= (3, 13):
        return False
    names = [store / path / name for name in ("zarr.json", ".zarray")]
    text = next(name.read_text() for name in names if name.exists())
    return not report.shape or any(f'"{codec}"' in text for codec in SINCE_3_13)


def test_rows_say_how_they_are_known() -> None:
    root = Path(__file__).parents[2]
    for row in ROWS:
        assert row.checked == DOCUMENTED or (root / row.checked).is_file()
        assert bool(row.since) == (row.checked != DOCUMENTED)
        assert (row.reader in INSTALLED) == (row.checked != DOCUMENTED)


@pytest.mark.parametrize("store", KEPT_STORES[::9], ids=str)
def test_each_reader_has_a_version_or_a_reason(store: Path) -> None:
    for report in reports(store).values():
        assert sorted((*report.readable_by, *report.not_readable_by)) == sorted(READERS)
        assert all(report.not_readable_by.values())
        if report.zarr_format == 2:
            assert report.readable_by.get("zarr-python", "2.18.7") == "2.18.7"


def test_usual_arrays_are_read_by_all_and_others_are_said() -> None:
    for zarr_format, readers in {3: {*READERS}, 2: {*READERS}, "3-draft": set[str]()}.items():
        assert {*xzarr3.check(healthy(zarr_format)).arrays["t2m"].readable_by} == readers
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, "a", shape=8, chunks=4, dtype="bfloat16")
    report = xzarr3.check(store).arrays["a"]
    assert report.not_readable_by["zarr-python"] == "data type 'bfloat16'"
    assert report.readable_by["tensorstore"] == "0.1.71"


@pytest.mark.parametrize("name", ["zarr-python", "xarray", "tensorstore"])
def test_raw_bits_are_not_read_by_others(name: str, tmp_path: Path) -> None:
    """None of them reads the ``r16`` of the specification, whose fill value is a list of bytes."""
    array = xzarr3.create_array(tmp_path / "s", "a", shape=4, dtype="r16", dimension_names=["x"])
    array[...] = np.arange(4, dtype="<u2").view("V2")
    assert not is_read(INSTALLED[name], tmp_path / "s", "a", tmp_path)
    assert "'r16'" in xzarr3.check(tmp_path / "s").arrays["a"].not_readable_by[name]
