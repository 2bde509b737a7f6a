"""Stores of every writer that are healthy give no warning and no error; damaged ones do."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _peers import DATA, KEPT_STORES, LIBRARIES, PEERS, SAMPLE_VALUES, SAMPLES, tops
from _slow import slow

import xzarr3

TOPS = [(store, top) for store in KEPT_STORES for top in tops(store)]
NAMES = [f"{store.relative_to(DATA).as_posix()}:{top}" for store, top in TOPS]
# What is truly wrong with them, or not read here: GDAL writes null for fill values, which version 3 forbids.
FINDINGS = {
    "gdal-3.12.2/v3_complex64:": "document-invalid", "gdal-3.12.2/v3_int16:": "document-invalid",
    "tensorstore-0.1.86/v2:record": "extension-unknown",  # a field that holds arrays
    "zarr-python-2.18.7/codecs:": "extension-unknown",
    "zarr-python-2.18.7/layouts:": "extension-unknown",  # fields of several byte orders
    "zarr-python-2.18.7/refused:": "extension-unknown", "zarr-python-2.18.7/types:": "extension-unknown",
    "zarr-python-2.18.7/variable:": "extension-unknown",  # objects by JSON that are no text
}  # fmt: skip


def test_all_writers_are_here() -> None:
    writers = {store.parent.name.rpartition("-")[0] for store in KEPT_STORES}
    assert len(writers) >= 6, writers
    assert len(TOPS) > 70


@pytest.mark.parametrize(("store", "top"), TOPS, ids=NAMES)
def test_kept_store_is_healthy(store: Path, top: str) -> None:
    report = xzarr3.check(xzarr3.LocalStore(store, read_only=True), top, decode="all")
    bad = {finding.code for finding in report.findings if finding.severity != "note"}
    expected = FINDINGS.get(f"{store.relative_to(DATA).as_posix()}:{top}")
    assert bad == ({expected} if expected else set()), report
    notes = {finding.code for finding in report.findings} - bad
    assert notes <= {"chunks-missing", "document-literals"}, report
    for path, array in report.arrays.items():
        handle = xzarr3.open_array(store, path)
        assert (array.shape, array.read) == (handle.shape, array.stored)
        assert array.nbytes_stored is not None


@pytest.mark.parametrize(
    ("store", "top"),
    [case if case[0].parent.name == "zarr-python-3.4.2" else slow(*case) for case in TOPS],
    ids=NAMES,
)
def test_truncated_chunks_of_a_kept_store_are_found(store: Path, top: str, tmp_path: Path) -> None:
    shutil.copytree(store / top, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        if path.is_file() and path.suffix != ".json" and not path.name.startswith((".", "zarr.json")):
            path.write_bytes(path.read_bytes()[:-1])
    report = xzarr3.check(tmp_path / "copy", decode="all")
    found = {finding.path for finding in report.findings if finding.severity == "error"}
    assert {path for path, array in report.arrays.items() if array.stored} <= found, report


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("kind", SAMPLES)
def test_store_of_an_installed_peer_is_healthy(peer: str, kind: str, tmp_path: Path) -> None:
    library = LIBRARIES[peer]()
    library.save(tmp_path / "a", SAMPLES[kind], SAMPLE_VALUES)
    report = xzarr3.check(tmp_path / "a", decode="all")
    assert {finding.code for finding in report.findings} <= {"chunks-missing"}, report


@pytest.mark.parametrize("engine", ["xzarr3", "zarr"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [True, False])
def test_dataset_of_xarray_is_healthy(
    engine: str, zarr_format: Any, consolidated: bool, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).random((4, 5, 6))
    dataset = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values, {"units": "K"}),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
        },
        {
            "time": xr.date_range("2001-01-01", periods=4), "lat": np.linspace(-60, 60, 5),
            "lon": np.arange(0.0, 360.0, 60.0), "height": ((), 2.0), "name": ("lat", [*"abcde"]),
            "step": ("time", np.arange(4).astype("m8[h]").astype("m8[ns]")),
        },
    )  # fmt: skip
    dataset.t2m.attrs["grid_mapping"] = "crs"
    write: Any = xzarr3.to_zarr if engine == "xzarr3" else xr.Dataset.to_zarr
    write(dataset, tmp_path / "s", zarr_format=zarr_format, consolidated=consolidated)
    report = xzarr3.check(tmp_path / "s", decode="all")
    assert {finding.severity for finding in report.findings} <= {"note"}, report
