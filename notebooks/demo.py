"""The demonstration: from a climate model's netCDF files to a warming table and map, through Zarr.

``bash ci/demo.sh`` runs this file. The steps of ``run`` are functions of their own, so that a notebook or
a test can take them one by one: ``load``, ``convert``, ``open_field``, ``period_means``, ``gather``,
``warming``, ``area_mean``, ``check``, ``table`` and ``draw_map``.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
import pandas as pd
import xarray as xr

import coast
import xzarr3
from xzarr3.cli import run_reporting
from xzarr3.errors import NodeExistsError, Xzarr3Error

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

MIB = 2**20
DIMS = ("time", "latitude", "longitude")
SAMPLE_FILES = ("A1B_north_america.nc", "E1_north_america.nc")


@dataclass(frozen=True)
class Source:
    """One file of the input: the scenario's name, the whole dataset and the field to study.

    Parameters
    ----------
    name : str
        Name of the scenario, which is also the name of its group in the store.
    path : Path
        Where it was read from.
    dataset : xarray.Dataset
        Everything of the file that can be stored.
    variable : str
        Name of the field: the first variable over time, latitude and longitude.
    left_out : tuple of str
        Names of the variables that hold text and were not loaded.
    """

    name: str
    path: Path
    dataset: xr.Dataset
    variable: str
    left_out: tuple[str, ...] = ()

    @property
    def field(self) -> xr.DataArray:
        """The field, with the dimensions time, latitude and longitude in this order."""
        return canonical(self.dataset, self.variable)


# ---- input


def require(*modules: str) -> None:
    """Raise an error that names the extra to install, if one of ``modules`` is not there."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise Xzarr3Error(
            f"the demo needs {', '.join(missing)}; the extra 'demo' has it: pip install 'xzarr3[demo]'"
        )


def sample_files() -> list[Path]:
    """Paths of the two files of sample data: 240 years of North American air temperature each."""
    require("iris_sample_data")
    import iris_sample_data

    return [Path(iris_sample_data.path, name) for name in SAMPLE_FILES]


def load(path: Path) -> Source:
    """Read a netCDF file into memory and find its field over time, latitude and longitude.

    Parameters
    ----------
    path : Path
        A netCDF file, of any version.

    Returns
    -------
    Source

    Raises
    ------
    Xzarr3Error
        The file cannot be read, none of its variables is such a field, or the field covers less than
        two years.
    """
    require("netCDF4", "cftime")
    try:
        with xr.open_dataset(path, engine="netcdf4", decode_cf=False) as raw:
            left_out = tuple(
                str(name) for name, variable in raw.variables.items() if variable.dtype.kind in "OSU"
            )
        with xr.open_dataset(
            path, engine="netcdf4", drop_variables=left_out, decode_timedelta=False
        ) as dataset:
            dataset.load()
    except (OSError, ValueError) as error:
        raise Xzarr3Error(f"{path} cannot be read as netCDF: {error}") from error
    variable = find_field(dataset, path)
    whole_years(canonical(dataset, variable).time)
    scenario = dataset[variable].attrs.get("Model scenario")
    name = scenario if isinstance(scenario, str) and scenario.isalnum() else path.stem
    return Source(name, path, dataset, variable, left_out)


def _kind(dataset: xr.Dataset, dim: object) -> str | None:
    """Which of ``DIMS`` a dimension is, by its coordinate."""
    if dim not in dataset.indexes:
        return None
    if isinstance(dataset.indexes[dim], pd.DatetimeIndex | xr.CFTimeIndex):
        return "time"
    attrs = dataset[dim].attrs
    for kind, abbreviation, unit in (
        ("latitude", "lat", "degrees_north"),
        ("longitude", "lon", "degrees_east"),
    ):
        standard_name = attrs.get("standard_name")
        if standard_name == kind or (standard_name is None and attrs.get("units") == unit):
            return kind
        if standard_name is None and str(dim).lower() in (kind, abbreviation):
            return kind
    return None


def find_field(dataset: xr.Dataset, path: Path) -> str:
    """Name of the first variable whose three dimensions are time, latitude and longitude.

    Parameters
    ----------
    dataset : xarray.Dataset
        Decoded dataset with its coordinates.
    path : Path
        Where it comes from, for the message.

    Raises
    ------
    Xzarr3Error
        There is none; the message lists what there is.
    """
    for name, variable in dataset.data_vars.items():
        if variable.dtype.kind in "iuf" and {_kind(dataset, dim) for dim in variable.dims} == set(DIMS):
            return str(name)
    found = ", ".join(f"{name}({', '.join(map(str, v.dims))})" for name, v in dataset.data_vars.items())
    raise Xzarr3Error(
        f"{path} has no variable over time, latitude and longitude to study; found {found or 'no variable'}; "
        "accepted: a numeric variable of these three dimensions in any order, each with a coordinate"
    )


def canonical(dataset: xr.Dataset, variable: str) -> xr.DataArray:
    """A field of ``dataset`` with its dimensions renamed and ordered as time, latitude, longitude."""
    array = dataset[variable]
    names = {dim: kind for dim in array.dims if (kind := _kind(dataset, dim)) is not None and kind != dim}
    return array.rename(names).transpose(*DIMS)


# ---- the store


def chunking(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the chunks and shards for a field whose first dimension is time.

    A chunk spans the whole map, at most about 1 MiB and a twentieth of the record; a shard is up to five
    chunks.

    >>> chunking((240, 37, 49), 4)
    ((12, 37, 49), (60, 37, 49))
    """
    steps, *rest = shape
    per_step = itemsize * int(np.prod(rest))
    chunk = max(1, min(MIB // max(1, per_step), steps // 20))
    return (chunk, *rest), (chunk * min(5, -(-steps // chunk)), *rest)


def convert(source: Source, store: Path) -> None:
    """Write ``source`` as the group ``source.name`` of the Zarr v3 store at ``store``, sharded.

    Raises
    ------
    NodeExistsError
        The group is there already.
    """
    variable = source.dataset[source.variable]
    time_axis = [_kind(source.dataset, dim) for dim in variable.dims].index("time")
    order = [time_axis, *(axis for axis in range(3) if axis != time_axis)]
    chunks, shards = chunking(tuple(variable.shape[axis] for axis in order), variable.dtype.itemsize)
    back = np.argsort(order)
    encoding = {
        source.variable: {
            "chunks": tuple(chunks[axis] for axis in back),
            "shards": tuple(shards[axis] for axis in back),
        }
    }
    xzarr3.to_zarr(source.dataset, store, group=source.name, mode="w-", encoding=encoding)


def open_field(store: Path, source: Source) -> xr.DataArray:
    """Open the stored twin of ``source.field``, lazily, each shard a block of a dask array."""
    dataset = xr.open_dataset(store, engine="xzarr3", group=source.name, chunks={}, decode_timedelta=False)
    return canonical(dataset, source.variable)


def stored_size(store: Path) -> tuple[int, int]:
    """Bytes and number of files below ``store``."""
    sizes = [path.stat().st_size for path in store.rglob("*") if path.is_file()]
    return sum(sizes), len(sizes)


# ---- the computation


def whole_years(times: xr.DataArray) -> list[int]:
    """Years in which ``times`` is complete, that is has as many steps as in any other year.

    Raises
    ------
    Xzarr3Error
        There are fewer than two.
    """
    years, counts = np.unique(times.dt.year.values, return_counts=True)
    whole = [int(year) for year in years[counts == counts.max(initial=0)]]
    if len(whole) < 2:
        raise Xzarr3Error(
            f"the time axis has {len(whole)} whole years, between {times.values[0]} and {times.values[-1]}; "
            "accepted: at least two, to compare one with the other"
        )
    return whole


def periods(years: Sequence[int]) -> list[tuple[int, int]]:
    """Split years into periods of equal length, 30 years for long records, each as (first, last).

    What is left over at the end joins the last period.

    >>> periods(range(1860, 2100))[:2], periods(range(1860, 2100))[-1]
    ([(1860, 1889), (1890, 1919)], (2070, 2099))
    >>> periods(range(1980, 2005))
    [(1980, 1989), (1990, 2004)]
    """
    length = next(n for n in (30, 10, 1) if len(years) >= 2 * n)
    starts = list(range(0, len(years) - length + 1, length))
    ends = [start - 1 for start in starts[1:]] + [len(years) - 1]
    return [(years[first], years[last]) for first, last in zip(starts, ends, strict=True)]


def label(period: tuple[int, int]) -> str:
    """A period as it is printed: ``1860-1889``."""
    first, last = period
    return str(first) if first == last else f"{first}-{last}"


def in_period(times: xr.DataArray, period: tuple[int, int], years: Sequence[int]) -> np.ndarray:
    """Positions on the time axis, shape (n,), of the steps that belong to whole years of a period."""
    year = times.dt.year.values
    first, last = period
    return np.flatnonzero((year >= first) & (year <= last) & np.isin(year, years))


def period_means(array: xr.DataArray) -> list[xr.DataArray]:
    """Mean over each period of a field (time, latitude, longitude), in double precision.

    Lazy if ``array`` is; the period's name is the coordinate ``period`` of each mean.
    """
    years = whole_years(array.time)
    return [
        array.isel(time=in_period(array.time, period, years))
        .astype("float64")
        .mean("time")
        .assign_coords(period=label(period))
        for period in periods(years)
    ]


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore interrupts, in processes that are started meanwhile for good.

    A terminal interrupts every process of the group, but worker processes must be closed by the process
    that made them, else each of them reports a traceback of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def small_cluster() -> Iterator[Client]:
    """A dask cluster of two processes on this machine, without dashboard, closed with the ``with`` block."""
    from distributed import Client, LocalCluster

    with tempfile.TemporaryDirectory(prefix="xzarr3-demo-", ignore_cleanup_errors=True) as scratch:
        with _interrupts_ignored():
            cluster = LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                host="127.0.0.1",
                # Without an address it would take port 8787, and complain if another cluster has that.
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                local_directory=scratch,
                silence_logs=logging.CRITICAL,
            )
            client = Client(cluster)
        try:
            yield client
        finally:
            with _interrupts_ignored():
                client.close()
                cluster.close()


def gather(client: Client, maps: Sequence[xr.DataArray], out: TextIO) -> list[xr.DataArray]:
    """Compute dask-backed ``maps`` together on the client's cluster, with a progress bar on ``out``."""
    from distributed import as_completed

    begin = time.perf_counter()
    futures = client.compute(list(maps))
    # Bars that are not the last one overwrite each other, which only a terminal can show.
    live = out.isatty()
    for done, _ in enumerate(as_completed(futures), 1):
        if live or done == len(futures):
            bar = "#" * (40 * done // len(futures))
            text = f"[{bar:<40}] {done}/{len(futures)} maps, {time.perf_counter() - begin:.1f} s"
            print(f"\r{text}" if live else text, end="" if live else "\n", file=out, flush=True)
    if live:
        print(file=out)
    results: list[xr.DataArray] = client.gather(futures)
    return results


def warming(means: Sequence[xr.DataArray]) -> xr.DataArray:
    """Difference of each period's mean from the first one's: (period, latitude, longitude)."""
    stacked = xr.concat(means, dim="period", coords="minimal", compat="override", join="exact")
    return stacked - stacked.isel(period=0, drop=True)


def area_mean(maps: xr.DataArray) -> xr.DataArray:
    """Mean over latitude and longitude, weighted by the area of the cells: cos(latitude)."""
    return maps.weighted(np.cos(np.deg2rad(maps.latitude))).mean(("latitude", "longitude"))


def check(source: Source, stored: xr.DataArray, maps: xr.DataArray) -> float:
    """Compare the store and the result with the source, using numpy alone.

    Parameters
    ----------
    source : Source
        What was converted.
    stored : xarray.DataArray
        The field opened from the store.
    maps : xarray.DataArray
        The computed warming, shape (period, latitude, longitude).

    Returns
    -------
    float
        The largest difference between the two results, in the field's units.

    Raises
    ------
    Xzarr3Error
        A stored value is not exactly the source's, or the results differ by more than rounding.
    """
    values = source.field.values
    if not np.array_equal(stored.values, values, equal_nan=True):
        raise Xzarr3Error(
            f"{source.name}: the stored values of '{source.variable}' are not those of {source.path}"
        )
    years = whole_years(source.field.time)
    means = []
    for period in periods(years):
        steps = values[in_period(source.field.time, period, years)].astype("float64")
        valid = ~np.isnan(steps)
        count = valid.sum(axis=0)
        total = np.where(valid, steps, 0).sum(axis=0)
        means.append(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))
    expected = np.array(means) - means[0]
    scale = float(np.nanmax(np.abs(values)))
    if not np.allclose(maps.values, expected, rtol=0, atol=1e-12 * scale, equal_nan=True):
        raise Xzarr3Error(
            f"{source.name}: the warming computed from the store is not the one of {source.path}"
        )
    return float(np.nanmax(np.abs(maps.values - expected)))


# ---- what is shown


def table(means: Mapping[str, xr.DataArray]) -> str:
    """The area means as text: one row per period, one column per scenario.

    Parameters
    ----------
    means : mapping of str to xarray.DataArray
        Area mean of the warming, shape (period,), of each scenario.
    """
    width = max(8, *(len(name) + 2 for name in means))
    names = [str(name) for name in next(iter(means.values())).period.values]
    rows = ["years      " + "".join(f"{name:>{width}}" for name in means)]
    for row, name in enumerate(names):
        rows.append(f"{name:<11}" + "".join(f"{float(mean[row]):>+{width}.2f}" for mean in means.values()))
    return "\n".join(rows)


def _degrees(value: float, positive: str, negative: str) -> str:
    value = (value + 180) % 360 - 180
    return f"{abs(value):g}°{positive if value > 0 else negative if value < 0 else ''}"


def draw_map(maps: Mapping[str, xr.DataArray], path: Path, *, title: str, units: str) -> Figure:
    """Draw the last period's warming of each scenario, save it as PNG and return the figure.

    Parameters
    ----------
    maps : mapping of str to xarray.DataArray
        Warming of each scenario, shape (period, latitude, longitude).
    path : Path
        File to write.
    title : str
        Heading of the figure.
    units : str
        Units of the warming.
    """
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    last = {name: each.isel(period=-1) for name, each in maps.items()}
    low = min(float(each.min()) for each in last.values())
    high = max(float(each.max()) for each in last.values())
    diverging = low < 0 and -low > 0.1 * high
    if diverging:
        low, high = -max(-low, high), max(-low, high)
    locator = MaxNLocator(nbins=22, steps=[1, 2, 2.5, 5, 10])
    levels = np.asarray(locator.tick_values(low if diverging else 0, high))
    first = next(iter(last.values()))
    lat, lon = first.latitude.values, first.longitude.values
    aspect = 1 / np.cos(np.deg2rad(np.clip(lat.mean(), -70, 70)))
    shape = aspect * np.ptp(lat) / max(np.ptp(lon), 1)
    fits = 0.3 < shape < 1.5
    height = 5.4 * min(max(shape, 0.3), 1.5)
    figure = Figure(figsize=(5.4 * len(last) + 0.8, height + 0.9), dpi=120, layout="constrained")
    axes = figure.subplots(1, len(last), squeeze=False, sharey=True)[0]
    for axis, (name, each) in zip(axes, last.items(), strict=True):
        image = axis.pcolormesh(
            lon,
            lat,
            each.values,
            cmap="RdBu_r" if diverging else "YlOrRd",
            norm=BoundaryNorm(levels, 256, extend="min" if low < levels[0] else "neither"),
        )
        axis.set_xlim(lon.min(), lon.max())
        axis.set_ylim(lat.min(), lat.max())
        coast.draw(axis, borders=True)
        axis.set_title(name, fontsize=11)
        axis.set_aspect(aspect if fits else "auto")
        axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 3, 5, 10]))
        axis.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 3, 5, 10]))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _degrees(value, "E", "W")))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _degrees(value, "N", "S")))
        axis.tick_params(labelsize=9)
    # Every other level, zero among them.
    ticks = levels[np.rint(levels / (levels[1] - levels[0])) % 2 == 0]
    figure.colorbar(image, ax=axes, ticks=ticks, pad=0.02).set_label(units)
    figure.suptitle(title, fontsize=13)
    figure.supxlabel(coast.credit(), x=0.01, ha="left", fontsize=8, color="0.3")
    figure.savefig(path)
    return figure


# ---- the whole


@dataclass
class Timings:
    """Wall time of each step, in seconds, in the order in which they were taken."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Measure the body of a ``with`` statement as ``step``."""
        begin = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - begin

    def __str__(self) -> str:
        rows = {**self.seconds, "total": sum(self.seconds.values())}
        width = max(map(len, rows))
        return "\n".join(f"  {step:<{width}}  {seconds:6.2f} s" for step, seconds in rows.items())


def run(*, data: Path | None = None, keep: Path | None = None, out: TextIO = sys.stdout) -> None:
    """Run the demonstration and report on it as it goes.

    Parameters
    ----------
    data : Path, optional
        A netCDF file to use instead of the sample data, with a variable over time, latitude and
        longitude.
    keep : Path, optional
        Directory that keeps the store, ``climate.zarr``, and the map, ``warming.png``. Without it,
        the store is temporary and the map is ``xzarr3-demo.png`` in the working directory.
    out : file object, optional
        Where to print.

    Raises
    ------
    NodeExistsError
        The store to keep exists already.
    Xzarr3Error
        An optional dependency is missing, the data cannot be used, or a result is not right.
    """
    require("cftime", "matplotlib", "netCDF4")
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="xzarr3-demo-", ignore_cleanup_errors=True) as directory:
            _run(data, Path(directory, "climate.zarr"), Path("xzarr3-demo.png"), out)
        print("Store:  was temporary; --keep DIR keeps it", file=out)
    else:
        store = keep / "climate.zarr"
        if store.exists():
            raise NodeExistsError(
                f"{store} exists; accepted: --keep with another directory, or remove it first"
            )
        keep.mkdir(parents=True, exist_ok=True)
        _run(data, store, keep / "warming.png", out)
        print(f"Store:  {store.resolve()}", file=out)


def _run(data: Path | None, store: Path, image: Path, out: TextIO) -> None:
    timings = Timings()
    with timings.of("read netCDF"):
        sources = [load(path) for path in ([data] if data is not None else sample_files())]
    print(f"xzarr3 {xzarr3.__version__} demo", file=out)
    for source in sources:
        sizes = ", ".join(f"{dim} {size}" for dim, size in source.dataset[source.variable].sizes.items())
        print(f"  {source.name}: {source.path.name}, {source.variable} ({sizes})", file=out)
        if source.left_out:
            print(f"  {source.name}: left out, as they hold text: {', '.join(source.left_out)}", file=out)

    with timings.of("convert to Zarr"):
        for source in sources:
            convert(source, store)
    size, count = stored_size(store)
    before = sum(source.dataset.nbytes for source in sources)
    print(
        f"Converted {before / MIB:.1f} MiB to a sharded Zarr v3 store of {size / MIB:.1f} MiB, {count} files",
        file=out,
    )

    with ExitStack() as stack:
        with timings.of("start cluster"):
            client = stack.enter_context(small_cluster())
        with timings.of("open with xarray"):
            stored = {source.name: open_field(store, source) for source in sources}
            lazy = {name: period_means(array) for name, array in stored.items()}
        blocks = sum(array.data.npartitions for array in stored.values())
        print(f"Computing {blocks} blocks on {len(client.nthreads())} processes", file=out)
        with timings.of("compute"):
            means = gather(client, [each for maps in lazy.values() for each in maps], out)
    maps = {}
    for name, parts in lazy.items():
        maps[name] = warming(means[: len(parts)])
        means = means[len(parts) :]

    with timings.of("check with numpy"):
        worst = max(check(source, stored[source.name], maps[source.name]) for source in sources)
    first = sources[0].field
    name = str(first.attrs.get("standard_name", first.name)).replace("_", " ")
    units = str(first.attrs.get("units", "1"))
    begin, *_, end = (str(period) for period in maps[sources[0].name].period.values)
    print(f"\nChange in {name} since {begin} in {units}, area mean\n", file=out)
    print(table({scenario: area_mean(each) for scenario, each in maps.items()}), file=out)
    print(
        "\nChecked: the stored values are those of the netCDF file; the largest difference from the change",
        file=out,
    )
    print(f"that numpy computes from that file is {worst:.1g} {units}\n", file=out)
    with timings.of("draw map"):
        draw_map(maps, image, title=f"Change in {name}, {end} against {begin}", units=units)
    print(f"Timings\n{timings}\n", file=out)
    print(f"Map:    {image.resolve()}", file=out)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="demo",
        description="Convert climate model output from netCDF to a sharded Zarr v3 store, open it with "
        "xarray, compute the warming since the first decades on dask, print a table and save a map.",
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=Path,
        help="keep the store and the map in DIR (default: a temporary store)",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        type=Path,
        help="netCDF file with a variable over time, latitude and longitude "
        "(default: 240 years of North American air temperature in two emission scenarios)",
    )
    return parser


if __name__ == "__main__":
    arguments = parser().parse_args()
    sys.exit(run_reporting(lambda: run(data=arguments.data, keep=arguments.keep)))
