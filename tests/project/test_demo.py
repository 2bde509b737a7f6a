"""The demonstration: its steps on small made-up fields, and the whole on the sample data."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pytest
import xarray as xr
import zarr

import demo
from xzarr3.errors import NodeExistsError, Xzarr3Error

TREND = 0.02  # K per year
SCRIPT = str(demo.__file__)


def trend(years: range = range(1900, 1960), **names: str) -> xr.Dataset:
    """A field that warms by ``TREND`` a year at the equator and twice as fast at 60 degrees north."""
    times = [cftime.Datetime360Day(year, 7, 1) for year in years]
    factor = xr.DataArray([1.0, 2.0], dims="latitude")
    since = xr.DataArray(np.arange(len(years)) * TREND, dims="time")
    field = (280 + since * factor).expand_dims(longitude=3).transpose("time", "latitude", "longitude")
    dataset = xr.Dataset(
        {"tas": field.assign_attrs(units="K", standard_name="air_temperature")},
        coords={
            "time": times,
            "latitude": ("latitude", [0.0, 60.0], {"units": "degrees_north"}),
            "longitude": ("longitude", [10.0, 20.0, 30.0], {"units": "degrees_east"}),
        },
    )
    return dataset.rename(names)


@pytest.fixture
def trend_file(tmp_path: Path) -> Path:
    path = tmp_path / "trend.nc"
    trend().to_netcdf(path, engine="netcdf4")
    return path


def test_load_finds_the_field(trend_file: Path) -> None:
    source = demo.load(trend_file)
    assert (source.name, source.variable, source.left_out) == ("trend", "tas", ())
    np.testing.assert_array_equal(source.field.values, trend().tas.values)


def test_field_is_found_under_other_names_and_orders(tmp_path: Path) -> None:
    path = tmp_path / "other.nc"
    other = trend(latitude="y", longitude="lon", time="t").transpose("lon", "t", "y")
    other["station"] = ("lon", ["a", "b", "c"])
    other["first"] = ("t", np.zeros(60))
    other[["first", "station", "tas"]].to_netcdf(path, engine="netcdf4")
    source = demo.load(path)
    assert source.variable == "tas"
    assert source.left_out == ("station",)
    assert source.field.dims == demo.DIMS
    np.testing.assert_array_equal(source.field.values, trend().tas.values)


def rotated() -> xr.Dataset:
    dataset = trend()
    dataset.latitude.attrs = {"standard_name": "grid_latitude", "units": "degrees"}
    return dataset


NOT_NETCDF = r"x\.nc cannot be read as netCDF"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: trend().isel(time=0, drop=True), r"x\.nc has no variable.*tas\(latitude, longitude"),
        (rotated, "no variable over time, latitude and longitude"),
        (lambda: trend(range(1900, 1901)), "1 whole years"),
        (None, NOT_NETCDF),
        (b"", NOT_NETCDF),
        (b"not netCDF", NOT_NETCDF),
    ],
    ids=["flat", "rotated", "short", "none", "empty", "other"],
)
def test_what_is_no_such_field_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "x.nc"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        content().to_netcdf(path, engine="netcdf4")
    with pytest.raises(Xzarr3Error, match=message):
        demo.load(path)


def test_missing_dependency_names_the_extra() -> None:
    with pytest.raises(Xzarr3Error, match=r"needs no_such_module; .* pip install 'xzarr3\[demo\]'"):
        demo.require("sys", "no_such_module")


@pytest.mark.parametrize("shape", [(240, 37, 49), (3, 2, 2), (1, 4000, 4000), (1000, 721, 1440), (7, 0, 5)])
def test_shards_are_whole_numbers_of_chunks(shape: tuple[int, ...]) -> None:
    chunks, shards = demo.chunking(shape, 4)
    assert shards[0] % chunks[0] == 0
    assert chunks[1:] == shards[1:] == shape[1:]
    assert chunks[0] == 1 or np.prod(chunks) * 4 <= demo.MIB


@pytest.mark.parametrize("count", [2, 3, 19, 20, 25, 59, 60, 61, 240])
def test_periods_cover_every_year_once(count: int) -> None:
    years = list(range(1900, 1900 + count))
    found = demo.periods(years)
    assert len(found) >= 2
    assert [year for first, last in found for year in range(first, last + 1)] == years


def test_years_that_are_not_whole_are_left_out() -> None:
    months = xr.date_range("2006-04-16", "2010-09-16", freq="MS")
    assert demo.whole_years(xr.DataArray(months, dims="time")) == [2007, 2008, 2009]


def test_warming_of_a_linear_trend_is_known() -> None:
    maps = demo.warming(demo.period_means(trend().tas))
    assert list(maps.period.values) == ["1900-1929", "1930-1959"]
    np.testing.assert_allclose(maps.isel(period=0), 0)
    np.testing.assert_allclose(maps.isel(period=1, longitude=0), [30 * TREND, 60 * TREND])
    # The weights are cos(0) = 1 and cos(60) = 1/2.
    np.testing.assert_allclose(demo.area_mean(maps), [0, 30 * TREND * (1 + 2 / 2) / 1.5])


def test_missing_values_do_not_count() -> None:
    field = trend().tas.where(trend().longitude > 10)
    maps = demo.warming(demo.period_means(field))
    assert np.isnan(maps.sel(longitude=10)).all()
    np.testing.assert_allclose(demo.area_mean(maps)[1], 30 * TREND * 2 / 1.5)


def test_table_has_a_row_per_period_and_a_column_per_scenario() -> None:
    mean = demo.area_mean(demo.warming(demo.period_means(trend().tas)))
    assert demo.table({"low": mean, "high": 2 * mean}).split("\n") == [
        "years           low    high",
        "1900-1929     +0.00   +0.00",
        "1930-1959     +0.80   +1.60",
    ]


def test_store_holds_the_source_and_is_not_replaced(trend_file: Path, tmp_path: Path) -> None:
    source = demo.load(trend_file)
    demo.convert(source, tmp_path / "s.zarr")
    stored = demo.open_field(tmp_path / "s.zarr", source)
    assert stored.chunks is not None
    maps = demo.warming(demo.period_means(stored)).compute()
    assert demo.check(source, stored, maps) < 1e-10
    array = zarr.open_array(tmp_path / "s.zarr", path="trend/tas", mode="r")
    assert (array.chunks, array.shards) == ((3, 2, 3), (15, 2, 3))
    np.testing.assert_array_equal(array[:], trend().tas.values)
    with pytest.raises(NodeExistsError, match="trend"):
        demo.convert(source, tmp_path / "s.zarr")


def test_check_notices_a_wrong_value_and_a_wrong_result(trend_file: Path) -> None:
    source = demo.load(trend_file)
    maps = demo.warming(demo.period_means(source.field))
    assert demo.check(source, source.field, maps) < 1e-10
    wrong = source.field.copy(deep=True)
    wrong[0, 0, 0] += 1e-4
    with pytest.raises(Xzarr3Error, match="stored values"):
        demo.check(source, wrong, maps)
    with pytest.raises(Xzarr3Error, match="warming"):
        demo.check(source, source.field, maps + 1e-6)


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_map_is_drawn(tmp_path: Path, sign: int) -> None:
    maps = sign * demo.warming(demo.period_means(trend().tas))
    figure = demo.draw_map({"low": maps, "high": 2 * maps}, tmp_path / "m.png", title="Change", units="K")
    low, high, bar = figure.axes
    assert (low.get_title(), high.get_title(), bar.get_ylabel()) == ("low", "high", "K")
    colours = [axis.collections[0] for axis in (low, high)]
    assert colours[0].norm.vmin == colours[1].norm.vmin
    assert colours[0].norm.vmax == colours[1].norm.vmax >= 2 * 60 * TREND
    width, height = png_size(tmp_path / "m.png")
    assert width > height > 200


def run_demo(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it; temporary files are in ``scratch``."""
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    (cwd / "scratch").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(cwd / "scratch")}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_whole_demo_on_the_sample_data(tmp_path: Path) -> None:
    done = run_demo("--keep", "kept", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^(\d{4}-\d{4})((?: +[+-]\d+\.\d\d){2})$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == [f"{year}-{year + 29}" for year in range(1860, 2100, 30)]
    png_size(tmp_path / "kept" / "warming.png")

    for path, column in zip(demo.sample_files(), (0, 1), strict=True):
        with xr.open_dataset(path, engine="netcdf4") as source:
            array = zarr.open_array(
                tmp_path / "kept" / "climate.zarr", path=f"{path.name.split('_')[0]}/air_temperature"
            )
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


@pytest.mark.slow
@pytest.mark.skipif(
    os.name != "posix", reason="process groups are interrupted as by a terminal only on POSIX"
)
def test_interrupt_ends_the_demo_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-u", SCRIPT]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("Computing"):
                break
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=120)
    assert "Timings" not in rest
    assert (process.returncode, errors) == (130, "xzarr3: interrupted\n")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("xzarr3")] == []
    end = time.monotonic() + 120
    while group_is_alive(process.pid):
        assert time.monotonic() < end, "its workers go on"
        time.sleep(0.1)


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_the_cluster_takes_no_port_that_another_one_may_have() -> None:
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        with suppress(OSError):  # Or it is taken already.
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")
        client = stack.enter_context(demo.small_cluster())
        assert client.submit(pow, 2, 5).result(timeout=120) == 32


def test_progress_bar_overwrites_itself_only_on_a_terminal() -> None:
    from distributed import Client, LocalCluster

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    maps = [mean.chunk() for mean in demo.period_means(trend().tas)]
    file, terminal = io.StringIO(), Terminal()
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        results = demo.gather(client, maps, file)
        demo.gather(client, maps, terminal)
    xr.testing.assert_identical(
        xr.concat(results, "period"), xr.concat(demo.period_means(trend().tas), "period")
    )
    assert re.fullmatch(r"\[#{40}\] 2/2 maps, \d+\.\d s\n", file.getvalue())
    assert re.fullmatch(r"\r\[#{20} {20}\] 1/2 maps, .* s\r\[#{40}\] 2/2 maps, .* s\n", terminal.getvalue())
