"""The demonstration notices a wrong value; stored notebooks have outputs, which running them gives again."""

import base64
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cftime
import nbformat
import numpy as np
import pytest
import xarray as xr
import zarr
from _conformance import refused
from _things import module_at
from nbformat import NotebookNode

import demo
from xzarr3.errors import Xzarr3Error

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
PICTURE_LIMIT = 300_000  # bytes
TEXT_LIMIT = 1_500_000  # bytes
each = pytest.mark.parametrize("name", NOTEBOOKS)


def load(name: str) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(NOTEBOOKS[name], as_version=4)
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def texts(notebook: NotebookNode) -> dict[int, str]:
    """What each cell shows as plain text, by its number, without cells whose output varies and pictures."""
    return {
        number: "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
            if output.get("name") != "stderr" and "image/png" not in output.get("data", {})
        )
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "varies" not in cell.metadata.get("tags", [])
    }


@each
def test_stored_notebook_was_run_from_top_to_bottom(name: str) -> None:
    notebook = load(name)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not [output for output in outputs(notebook) if output.output_type == "error"]


@each
def test_stored_notebook_is_fit_to_publish(name: str) -> None:
    text = NOTEBOOKS[name].read_text("utf-8")
    assert len(text) < TEXT_LIMIT
    for place in ("/home/", "/root/", "/tmp/", "/Users/", "/var/folders/", "site-packages", "tcp://"):
        assert place not in text
    data = [output.get("data", {}) for output in outputs(load(name))]
    pictures = [base64.b64decode(each["image/png"]) for each in data if "image/png" in each]
    assert pictures
    assert max(map(len, pictures)) < PICTURE_LIMIT


@pytest.mark.slow
@each
def test_notebook_runs_and_gives_the_stored_texts(name: str) -> None:
    if name == "formats" and sys.version_info < (3, 12):
        pytest.skip("formats: icechunk and virtualizarr need Python 3.12")
    notebook, runner = load(name), module_at(ROOT / "ci" / "notebooks.py")
    stored = texts(notebook)
    runner.execute(notebook)
    assert texts(notebook) == stored
    assert not re.search("Traceback|Error|Warning", runner.said(notebook)), runner.said(notebook)


TREND = 0.02  # K per year
SCRIPT = str(demo.__file__)


def trend() -> xr.Dataset:
    """A field that warms by ``TREND`` a year at the equator and twice as fast at 60 degrees north."""
    times = [cftime.Datetime360Day(year, 7, 1) for year in range(1900, 1960)]
    factor = xr.DataArray([1.0, 2.0], dims="latitude")
    since = xr.DataArray(np.arange(60) * TREND, dims="time")
    field = (280 + since * factor).expand_dims(longitude=3).transpose("time", "latitude", "longitude")
    return xr.Dataset(
        {"tas": field.assign_attrs(units="K", standard_name="air_temperature")},
        {
            "time": times, "latitude": ("latitude", [0.0, 60.0], {"units": "degrees_north"}),
            "longitude": ("longitude", [10.0, 20.0, 30.0], {"units": "degrees_east"}),
        },
    )  # fmt: skip


@pytest.fixture
def trend_file(tmp_path: Path) -> Path:
    path = tmp_path / "trend.nc"
    trend().to_netcdf(path, engine="netcdf4")
    return path


def test_check_notices_a_wrong_value_and_a_wrong_result(trend_file: Path) -> None:
    source = demo.load(trend_file)
    maps = demo.warming(demo.period_means(source.field))
    assert demo.check(source, source.field, maps) < 1e-10
    wrong = source.field.copy(deep=True)
    wrong[0, 0, 0] += 1e-4
    refused(Xzarr3Error, lambda: demo.check(source, wrong, maps), match="stored values")
    refused(Xzarr3Error, lambda: demo.check(source, source.field, maps + 1e-6), match="warming")


def run_demo(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it; temporary files are in ``scratch``."""
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    (cwd / "scratch").mkdir(exist_ok=True)
    options: dict[str, Any] = {"env": {**os.environ, "TMPDIR": str(cwd / "scratch")}, "text": True}
    return subprocess.run(command, cwd=cwd, capture_output=True, timeout=120, check=False, **options)


@pytest.mark.slow
def test_whole_demo_on_the_sample_data(tmp_path: Path) -> None:
    done = run_demo("--keep", "kept", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^(\d{4}-\d{4})((?: +[+-]\d+\.\d\d){2})$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == [f"{year}-{year + 29}" for year in range(1860, 2100, 30)]
    assert (tmp_path / "kept" / "warming.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    for path, column in zip(demo.sample_files(), (0, 1), strict=True):
        with xr.open_dataset(path, engine="netcdf4") as source:
            name = f"{path.name.split('_')[0]}/air_temperature"
            array = zarr.open_array(tmp_path / "kept" / "climate.zarr", path=name)
            np.testing.assert_array_equal(array[:], source.air_temperature.values)
            values = source.air_temperature.values.astype("float64")
            weights = np.cos(np.deg2rad(source.latitude.values))
        change = values.reshape(8, 30, 37, 49).mean(axis=1) - values[:30].mean(axis=0)
        expected = np.average(change.mean(axis=2), axis=1, weights=weights)
        printed = [float(row[1].split()[column]) for row in rows]
        np.testing.assert_allclose(printed, expected, atol=0.00501)

    again = run_demo("--keep", "kept", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    assert re.fullmatch(r"xzarr3: .*climate\.zarr exists; .*\n", again.stderr)


@pytest.mark.slow
def test_demo_on_another_file_leaves_only_the_map(trend_file: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = run_demo("--data", trend_file, cwd=work)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^1930-1959 +\+0\.80$", done.stdout, re.MULTILINE)
    assert sorted(path.name for path in work.iterdir()) == ["scratch", "xzarr3-demo.png"]
    assert not list((work / "scratch").glob("xzarr3*"))
