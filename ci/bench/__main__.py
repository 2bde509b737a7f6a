"""Measures xzarr3 beside its peers: ``bash ci/bench.sh``, or ``python ci/bench --help``; NOTES.md tells how.

rows.toml says what is measured, and PEERS with which libraries. Each works in a process of its own, which
measures its own times: this program again, with ``--serve``. ``--draw`` draws the pictures of RESULTS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import functools
import importlib
import importlib.metadata
import itertools
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

import dask.array as da
import numpy as np
import xarray as xr
from dask.callbacks import Callback

CI = Path(__file__).resolve().parent.parent
RESULTS = CI / "bench" / "RESULTS.md"
Json: TypeAlias = dict[str, Any]
Run: TypeAlias = Callable[[], Any]
library: Callable[[str], Any] = importlib.import_module

TABLE = tomllib.loads((CI / "bench" / "rows.toml").read_text("utf-8"))
OURS = "xzarr3"
SEED = 20_240_229
RESOLUTION = np.float32(1 / 32)  # Of temperatures in K; a power of two, as bit-rounded climate data have it.


def temperature(n_times: int) -> Any:
    """Daily air temperatures by time, latitude and longitude: a climate, a season, waves, some noise."""
    rng = np.random.default_rng(SEED)
    latitude = np.deg2rad(np.linspace(-89.3, 89.3, 128))[:, np.newaxis]
    longitude = np.deg2rad(np.arange(128) * 360 / 128)[np.newaxis, :]
    days, zonal = np.arange(n_times), np.ones_like(longitude)
    patterns = [(301 - 45 * np.sin(latitude) ** 2) * zonal, -12 * np.sin(latitude) * zonal]
    amplitudes = [np.ones(n_times), np.cos(2 * np.pi * days / 365.25)]
    for _ in range(24):
        zonal_wave, meridional_wave = rng.integers(1, 9, size=2)
        phases = rng.uniform(0, 2 * np.pi, size=3)
        wave = np.cos(zonal_wave * longitude + phases[0]) * np.sin(meridional_wave * latitude + phases[1])
        patterns.append(np.cos(latitude) ** 2 * wave)
        period, strength = rng.uniform(5, 60), rng.uniform(0.5, 3)
        amplitudes.append(strength * np.cos(2 * np.pi * days / period + phases[2]))
    in_time, in_space = np.stack(amplitudes, axis=1).astype("f4"), np.stack(patterns).astype("f4")
    flat = in_time @ in_space.reshape(len(patterns), -1)
    flat += 0.05 * rng.standard_normal(flat.shape, dtype="f4")
    return (np.round(flat / RESOLUTION) * RESOLUTION).reshape(n_times, 128, 128)


def dataset(fields: Mapping[str, Any], chunks: tuple[int, ...], **encoding: object) -> xr.Dataset:
    """Fields of one shape (time, lat, lon) as a dataset with coordinates and CF attributes."""
    n_times, n_lat, n_lon = next(iter(fields.values())).shape
    data = xr.Dataset(attrs={"Conventions": "CF-1.11", "title": "Synthetic air temperature"})
    for name, values in fields.items():
        attributes = {"standard_name": "air_temperature", "long_name": f"Air temperature at level {name}"}
        attributes |= {"units": "K", "cell_methods": "time: mean"}
        data[name] = (("time", "lat", "lon"), values, attributes)
        data[name].encoding = {"chunks": tuple(map(min, chunks, values.shape)), **encoding}
    return data.assign_coords(
        time=("time", np.arange(n_times), {"units": "days since 2001-01-01", "calendar": "standard"}),
        lat=("lat", np.linspace(-89.3, 89.3, n_lat), {"units": "degrees_north"}),
        lon=("lon", np.arange(n_lon) * 360 / n_lon, {"units": "degrees_east"}),
    )


def variables(number: int, chunks: tuple[int, ...] = (1, 16, 16), n_times: int = 12) -> xr.Dataset:
    """Many small variables."""
    values = temperature(n_times)[:, :16, :16]
    return dataset({f"t{at:03}": values for at in range(number)}, chunks)


# The libraries: how each is set up, opens an array that can be indexed as one of numpy, and takes a URL.


class Tensor:
    """An array of tensorstore."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, selection: Any) -> Any:
        return self.array[selection].read().result()

    def __setitem__(self, selection: Any, values: Any) -> None:
        self.array[selection].write(values).result()

    @property
    def vindex(self) -> Tensor:
        """What takes single points."""
        return Tensor(self.array.vindex)


@dataclass(frozen=True)
class Peer:
    """A library."""

    distribution: str
    setup: Callable[[int | None], object]  # Takes a number of threads, or None.
    open: Callable[[Any, str], Any]
    engine: str = ""
    remote: Callable[[str], Any] | None = None


def zarr_python(distribution: str, pipeline: str, remote: Callable[[str], Any] | None) -> Peer:
    """zarr-python with one of its codec pipelines."""

    def setup(threads: int | None) -> None:
        module, _, name = pipeline.rpartition(".")
        getattr(library(module), name)
        library("zarr").config.set({"codec_pipeline.path": pipeline, "threading.max_workers": threads})

    def opened(place: Any, mode: str) -> Any:
        return library("zarr").open_array(place, mode=mode)

    return Peer(distribution, setup, opened, "zarr", remote)


def zarr_remote(url: str) -> Any:
    """A store of zarr-python behind a URL."""
    client = library("obstore.store").HTTPStore.from_url(url, client_options={"allow_http": True})
    return library("zarr.storage").ObjectStore(client, read_only=True)


CONTEXT: Json = {}


def tensor_setup(threads: int | None) -> None:
    """Limit the threads of tensorstore, and switch off its fsync, which nobody else here does."""
    pools = ("data_copy_concurrency", "file_io_concurrency") if threads else ()
    CONTEXT.update(file_io_sync=False, **{pool: {"limit": threads} for pool in pools})


def tensor_open(place: Any, mode: str) -> Tensor:
    """Open an array with tensorstore."""
    kvstore = place if isinstance(place, dict) else {"driver": "file", "path": str(place)}
    spec = {"driver": "zarr3", "kvstore": kvstore, "context": CONTEXT}
    return Tensor(library("tensorstore").open(spec, open=True, read=True, write=mode != "r").result())


def xzarr3_setup(threads: int | None, is_native: bool = True) -> None:
    """Limit the threads of xzarr3, and perhaps leave out its native code."""
    if not is_native:
        os.environ["XZARR3_NATIVE"] = "0"
    library("xzarr3").config.set(threads=threads)


PIPELINE = "zarr.core.codec_pipeline.{}CodecPipeline"
XZARR3 = Peer(
    "xzarr3",
    xzarr3_setup,
    lambda place, mode: library("xzarr3").open_array(place, mode=mode),
    "xzarr3",
    lambda url: library("xzarr3").open_store(url),
)
TENSORSTORE = Peer(
    "tensorstore", tensor_setup, tensor_open, "", lambda url: {"driver": "http", "base_url": f"{url}/"}
)
PEERS = {
    OURS: XZARR3,
    "xzarr3 in Python": replace(XZARR3, setup=functools.partial(xzarr3_setup, is_native=False)),
    "zarr-python": zarr_python("zarr", PIPELINE.format("Batched"), zarr_remote),
    "zarr-python fused": zarr_python("zarr", PIPELINE.format("Fused"), zarr_remote),
    "zarrs": zarr_python("zarrs", "zarrs.ZarrsCodecPipeline", None),
    "tensorstore": TENSORSTORE,
}

# What a process measures. A row yields what is timed, and is sent its result, which is noted itself if it is
# a float. What it does in between, such as to compare results, is not timed. One that yields nothing leaves
# a library out.

Steps: TypeAlias = Generator[Run, Any, None]


@dataclass
class Work:
    """The process of a library, and where it works."""

    label: str
    root: Path
    written: Path
    url: str
    spare: int
    cores: Sequence[int] = ()
    row: str = ""

    def __post_init__(self) -> None:
        self.root, self.written, self.peer = Path(self.root), Path(self.written), PEERS[self.label]

    @functools.cached_property
    def source(self) -> Any:
        """The field, in pages of a file that all processes share, each of which was touched."""
        data = np.asarray(np.load(self.root / "source.npy", mmap_mode="r"))
        data.max()
        return data

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """What has this name, which the process that needs it first makes."""
        path = self.root / re.sub(r"\W+", "-", name)
        if not path.exists():
            part = path.with_name(f"{path.name}.part")
            make(part)
            part.rename(path)
        return path

    def array(self, case: str) -> Path:
        """The field in a layout."""
        layout, source = TABLE["layouts"][case], self.source
        return self.made(case, lambda path: make_array(path, source.shape, source, **layout))

    def data(self, name: str) -> Path:
        """A dataset or a tree, written by zarr-python."""
        return self.made(f"data {name}", lambda path: save(DATA[name](self), path))

    @contextlib.contextmanager
    def new(self, case: str = "") -> Iterator[Path]:
        """A place to write to, deleted afterwards; with a layout, an array without values."""
        path = self.written / uuid.uuid4().hex
        try:
            if case:
                path.mkdir()
                shutil.copy(self.array(case) / "zarr.json", path)
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def make_array(
    path: Path, shape: Any, values: Any, chunks: Any, compressor: str = "", shards: Any = ()
) -> None:
    """Make an array with zarr-python, with chunks and shards no longer than it."""
    options: Json = {"dtype": "float32", "fill_value": 0, "filters": None, "zarr_format": 3, "shape": shape}
    options |= {"chunks": tuple(map(min, chunks, shape)), "shards": tuple(map(min, shards, shape)) or None}
    array = library("zarr").create_array(path, compressors=TABLE["compressors"].get(compressor), **options)
    if values is not None:
        array[...] = values


def save(data: Any, path: Path, engine: str = "zarr") -> None:
    """Write a dataset or tree in version 3, consolidated, with the library's default compression."""
    if engine == "xzarr3":
        library("xzarr3").to_zarr(data, path, mode="w", consolidated=True)
    else:
        data.to_zarr(path, mode="w", zarr_format=3, consolidated=True)


def reread(work: Work, path: Path) -> Any:
    """What another library reads of what was written."""
    return PEERS["zarr-python" if work.label == "tensorstore" else "tensorstore"].open(path, "r")[...]


def again(run: Run, check: Callable[[Any], object] = lambda found: None) -> Steps:
    """A row that does the same in each round; the first result is checked."""
    check((yield run))
    while True:
        yield run


def require(found: Any, expected: Any, tolerance: float = 0) -> None:
    """Raise RuntimeError unless arrays, or the variables of datasets and trees, are those expected."""
    if isinstance(expected, xr.DataTree):
        for node in expected.leaves:
            require(found[node.path].to_dataset(), node.to_dataset())
    elif isinstance(expected, xr.Dataset):
        for name, variable in expected.data_vars.items():
            require(found[name], variable, tolerance)
    elif np.shape(found) != np.shape(expected) or not np.allclose(
        found, expected, tolerance, 0, equal_nan=True
    ):
        raise RuntimeError("the values differ from those of the source")


PLACES: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "full read": lambda rng, shape, chunks: [...],
    "one chunk": lambda rng, shape, chunks: [
        tuple(slice(i * c, i * c + c) for i, c in zip(at, chunks, strict=True))
        for at in rng.integers(0, np.array(shape) // chunks, (16, 3)).tolist()
    ],
    "one point through time": lambda rng, shape, chunks: [
        (slice(None), *at) for at in rng.integers(0, 128, (4, 2)).tolist()
    ],
    "1000 random points": lambda rng, shape, chunks: [tuple(rng.integers(0, shape, (1000, 3)).T.copy())],
}


def reading(work: Work, case: str) -> Steps:
    """Read at places, which are others in each round and the same for all libraries, one after the other."""
    array, shape = work.peer.open(work.array(case), "r"), work.source.shape
    view = array.vindex if "points" in work.row else array
    chunks = tuple(map(min, TABLE["layouts"][case]["chunks"], shape))

    def run() -> Any:
        for place in places:
            result = view[place]  # One result at a time is held, as by users that go through chunks.
        return result

    for number in itertools.count():
        places = PLACES[work.row](np.random.default_rng([SEED, number]), shape, chunks)
        yield run
        for place in places if number == 0 else ():
            require(view[place], work.source[place])


def full_write(work: Work, case: str) -> Steps:
    """Write the whole array into a new one, which is made and deleted without being timed."""
    for number in itertools.count():
        with work.new(case) as path:
            yield functools.partial(work.peer.open(path, "r+").__setitem__, ..., work.source)
            if number == 0:
                require(reread(work, path), work.source)


def small_regions(work: Work, case: str) -> Steps:
    """Write small regions of an array that is full, one after the other; half are in several chunks."""
    size, expected = (4, 8, 8), work.source.copy()

    def write(array: Any) -> None:
        for region in regions:
            array[region] = work.source[region] + 1

    with work.new() as path:
        shutil.copytree(work.array(case), path)
        array = work.peer.open(path, "r+")
        for number in itertools.count():
            most = np.array(expected.shape) - size
            places = np.random.default_rng([SEED, number]).integers(0, most + 1, (100, 3)).tolist()
            regions = [tuple(slice(a, a + n) for a, n in zip(place, size, strict=True)) for place in places]
            yield functools.partial(write, array)
            write(expected)
            if number == 0:
                require(reread(work, path), expected)


def peak_memory(work: Work, case: str) -> Steps:
    """The memory of a full read above what was held before, its result included."""
    array = work.peer.open(work.array(case), "r")
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # The peak is now what is resident.
    before = resident("VmRSS")
    return again(lambda: (array[...], resident("VmHWM") - before)[1])


def resident(what: str) -> float:
    """A size of this process, in MiB."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text("ascii").splitlines())
    return int(lines[what].split()[0]) / 1024


def beside_python(work: Work, case: str) -> Steps:
    """The share of the speed of reads that is left while a thread of Python counts on another core."""
    array, stopped = work.peer.open(work.array(case), "r"), threading.Event()

    def count() -> None:
        os.sched_setaffinity(0, [work.spare])  # Of this thread.
        while not stopped.is_set():
            pass

    def read() -> None:
        for _ in range(4):
            array[...]

    def run() -> float:
        alone, _ = timed(read)
        stopped.clear()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(count)
            beside, _ = timed(read)
            stopped.set()
        return 100 * alone / beside

    return again(run, lambda found: require(array[...], work.source))


def importing(work: Work, case: str) -> Steps:
    """The processor time of an import of compiled modules beyond that of numpy, in a process of its own."""
    code = "import numpy, time; t = time.process_time(); import {}; print(1000 * (time.process_time() - t))"
    command = [sys.executable, "-c", code.format(work.peer.distribution)]
    keeping = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return again(lambda: float(subprocess.check_output(command, env=keeping)))


# xarray.


def packed(work: Work, chunks: tuple[int, ...]) -> xr.Dataset:
    """The field, packed into int16 as climate data are."""
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    return dataset({"t": work.source}, chunks, **packing)


def large(work: Work) -> xr.Dataset:
    """Sixteen times the field, in a file that all processes share."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, np.concatenate([work.source] * 16))

    return dataset({"t": np.load(work.made("large", make), mmap_mode="r").view(np.ndarray)}, (256, 64, 64))


def as_it_is(data: Any) -> Any:
    """Compute nothing."""
    return data


def mean(data: Any) -> Any:
    """The mean of a variable, by dask's threads."""
    return data[["t"]].mean().compute(scheduler="threads")


DATA: dict[str, Callable[[Work], Any]] = {
    "500 variables": lambda work: variables(500),
    "50 variables": lambda work: variables(50, (12, 16, 16)),
    "one variable": lambda work: variables(1),
    "fields": lambda work: dataset(
        dict(zip("abcd", np.array_split(work.source, 4), strict=True)), (64, 64, 64)
    ),
    "packed, 64 KiB": lambda work: packed(work, (32, 32, 32)),
    "packed, 4 MiB": lambda work: packed(work, (512, 64, 64)),
    "64 KiB": lambda work: dataset({"t": work.source}, (16, 32, 32)),
    "4 KiB": lambda work: dataset({"t": np.resize(work.source, (4096, 32, 32))}, (1, 32, 32)),
    "large": large,
    "tree": lambda work: xr.DataTree.from_dict({f"model{at // 8}/run{at}": variables(3) for at in range(80)}),
    "far": lambda work: variables(50, (12, 16, 16), 48).assign_coords(
        {f"c{at}": (f"c{at}", np.arange(48) + at) for at in range(3)}
    ),
}
OWN, OVER = "mean of 4096 chunks of 4 KiB, the library's own open_dataset", "a tiny dataset over an older one"
COMPUTED: dict[str, tuple[str, Json, Callable[[Any], Any]]] = {
    "500 variables, chunks=None": ("500 variables", {}, as_it_is),
    "500 variables, chunks={}": ("500 variables", {"chunks": {}}, as_it_is),
    "500 variables, unconsolidated": ("500 variables", {"consolidated": False}, as_it_is),
    "open": ("tree", {}, as_it_is),
    "load, chunks=None": ("fields", {}, xr.Dataset.load),
    "mean over time, chunks={}": ("fields", {"chunks": {}}, lambda data: data.mean("time").compute()),
    "load packed int16, 64 KiB": ("packed, 64 KiB", {}, xr.Dataset.load),
    "load packed int16, 4 MiB": ("packed, 4 MiB", {}, xr.Dataset.load),
    "series of one point, 64 KiB chunks": ("64 KiB", {}, lambda data: data.isel(lat=42, lon=42).load()),
    "mean of 4096 chunks of 4 KiB, chunks={}": ("4 KiB", {"chunks": {}}, mean),
    OWN: ("4 KiB", {"chunks": {}}, mean),
}
"""By case, what is opened, options of that, and what is then computed."""
WRITTEN = {
    "50 small variables": "50 variables",
    "1024 MiB, chunks of 4 MiB": "large",
    "packed int16, 4 MiB": "packed, 4 MiB",
    OVER: "one variable",
    "write": "tree",
}


def computing(work: Work, case: str) -> Steps:
    """Open a dataset or a tree, and compute."""
    name, options, compute = COMPUTED[case]
    path, opened = work.data(name), xr.open_datatree if name == "tree" else xr.open_dataset
    run = functools.partial(cast("Run", opened), path, engine=work.peer.engine, **{"chunks": None, **options})
    if case == OWN and work.peer.engine == "xzarr3":
        run = functools.partial(library("xzarr3").open_dataset, path)
    # What is packed is rounded, and dask adds up block by block.
    return again(lambda: compute(run()), lambda found: require(found, compute(DATA[name](work)), 5e-5))


def writing(work: Work, case: str) -> Steps:
    """Write a dataset of numpy arrays, or a tree."""
    data, engine = DATA[WRITTEN[case]](work), work.peer.engine
    opened: Callable[..., Any] = xr.open_datatree if case == "write" else xr.open_dataset
    for number in itertools.count():
        with work.new() as path:
            if case == OVER:
                save(data, path, engine)
            yield functools.partial(save, data, path, engine)
            if number == 0:
                require(opened(path, engine="zarr", chunks=None), data, 5e-5 if "packed" in case else 0)


def many_arrays(work: Work, case: str) -> Steps:
    """Open the arrays of a group by its consolidated metadata."""
    opened, path = library(work.peer.engine).open_group, work.data("500 variables")
    options: Json = {"mode": "r", "use_consolidated": True}
    return again(lambda: list(opened(path, **options).arrays()), lambda found: require(len(found), 503))


# dask.

UNITS, AUTO, NO_OP = "one block a chunk", 'chunks="auto"', "the same graph of no-op tasks"
RECHUNK = "rechunk, then store"


def lazy(work: Work, path: Path, case: str) -> Any:
    """An array of dask, with a block for each chunk or with blocks of many."""
    if work.peer.engine == "xzarr3":
        return library("xzarr3").from_zarr(path, chunks="units" if case == UNITS else "grouped")
    return da.from_zarr(path) if case == UNITS else da.from_zarr(path, chunks="auto")


def million(work: Work, case: str) -> Steps:
    """Build a lazy array of an array of a million chunks, none of which is stored, or slice it."""
    path = work.made("million", lambda path: make_array(path, (1000, 1000, 1000), None, (10, 10, 10)))
    if case in (UNITS, AUTO):
        return again(lambda: lazy(work, path, case), lambda found: require(found.shape, (1000, 1000, 1000)))
    array = lazy(work, path, UNITS)
    return again(lambda: array[5, 100:900, 200:210], lambda found: require(found.numblocks, (80, 1)))


def averaging(work: Work, case: str) -> Steps:
    """Average many small chunks with the threaded scheduler; building the graph is part of it."""
    values, block = np.resize(work.source, (2048, 2048)), np.zeros((32, 32), "f4")
    path = work.made("small chunks", lambda path: make_array(path, values.shape, values, block.shape))
    grid = da.core.normalize_chunks(block.shape, values.shape)

    def run() -> Any:
        if case == NO_OP:
            array = da.map_blocks(lambda block_info=None: block, chunks=grid, dtype="f4", meta=block[:0, :0])
        else:
            array = lazy(work, path, case)
        return array.mean(dtype="f8").compute(scheduler="threads").astype("f4")

    expected = 0 if case == NO_OP else values.mean(dtype="f8")
    if case != NO_OP or work.label == OURS:
        yield from again(run, lambda found: require(found, expected, 1e-6))


def write_graph(work: Work, case: str) -> Steps:
    """Build the graph of a write of a million units whose blocks are these units."""
    xzarr3 = library("xzarr3")
    source = da.zeros((10_000, 10_000), chunks=(10, 10), dtype="f4")
    while True:
        target = xzarr3.create_array(xzarr3.MemoryStore(), shape=source.shape, chunks=(10, 10), dtype="f4")
        yield functools.partial(xzarr3.store, source, target, compute=False)


def misaligned(work: Work, case: str) -> Steps:
    """Write blocks into shards that they do not line up with, or tell how much of them dask holds."""
    is_alive = "alive" in work.row
    n = max(512, 12 * work.source.shape[0])
    source = da.map_blocks(block_values, chunks=da.core.normalize_chunks((300, 300), (n, n)), dtype="f4")
    source = source.rechunk((512, 512)) if case == RECHUNK else source
    held = [0]

    def finished(key: object, value: object, dsk: object, state: Mapping[str, Any], worker: object) -> None:
        held.append(sum(each.nbytes for each in state["cache"].values() if isinstance(each, np.ndarray)))

    def run() -> float | None:
        with Callback(posttask=finished) if is_alive else contextlib.nullcontext():
            library("xzarr3").store(source, target, scheduler="threads")
        return 25 * max(held) / n**2 if is_alive else None

    for number in itertools.count():
        with work.new() as path:
            make_array(path, (n, n), None, (128, 128), "zstd", (512, 512))
            target = library("xzarr3").open_array(path, mode="r+")
            yield run
            if number == 0:
                require(target[...], np.arange(n, dtype="f4")[:, None] + np.arange(n, dtype="f4") / 4)


def block_values(block_info: Any = None) -> Any:
    """The values of a block: its rows and columns."""
    rows, columns = (np.arange(*place, dtype="f4") for place in block_info[None]["array-location"])
    return rows[:, None] + columns / 4


def streaming(work: Work, case: str) -> Steps:
    """The memory of the larger of two workers that copy an array."""
    xzarr3, client_of = library("xzarr3"), library("distributed").Client
    n = work.source.shape[0] * 64
    quiet: Json = {"dashboard_address": "127.0.0.1:0", "memory_limit": 0, "silence_logs": 50}
    with work.new() as path, client_of(n_workers=2, threads_per_worker=1, **quiet) as client:
        source = xzarr3.create_array(path / "source", shape=(n, 8192), chunks=(512, 512), dtype="f4")
        target = xzarr3.create_array(path / "copy", shape=source.shape, shards=1024, chunks=256, dtype="f4")
        for start in range(0, n, 512):
            source[start : start + 512] = np.arange(start, start + 512)[:, None] + np.arange(8192) / 4
        xzarr3.store(xzarr3.from_zarr(source) + np.float32(1), target)
        require(target[-512:], source[-512:] + 1)
        peaks = client.run(resident, "VmHWM").values()
        yield lambda: max(peaks)


# A server that answers late.


kept = functools.cache(Path.read_bytes)  # So that the disk takes no part in what is measured.


async def answer(root: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a connection, each after 20 ms, with files or ranges of them."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.02)
            method, path, _ = head.split(b"\r\n", 1)[0].split(b" ")
            file = root / unquote(path.decode()).lstrip("/")
            if ".." in file.parts or not file.is_file():
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            value, status = kept(file), b"200 OK\r\n"
            size = len(value)
            if found := re.search(rb"\r\nrange: *bytes=(\d*)-(\d*)", head, re.IGNORECASE):
                first, last = found.groups()
                start = int(first) if first else max(size - int(last), 0)
                value = value[start : int(last) + 1 if first and last else None]
                place = start, start + len(value) - 1, size
                status = b"206 Partial Content\r\nContent-Range: bytes %d-%d/%d\r\n" % place
            tag = b'ETag: "%d"\r\nLast-Modified: Fri, 02 Jan 2026 00:00:00 GMT\r\n' % size
            writer.write(b"HTTP/1.1 %b%bContent-Length: %d\r\n\r\n" % (status, tag, len(value)))
            writer.write(value if method == b"GET" else b"")


async def serve_files(root: Path) -> None:
    """Serve files until standard input ends."""
    server = await asyncio.start_server(functools.partial(answer, root), "127.0.0.1", backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


def from_afar(work: Work, case: str) -> Steps:
    """Open datasets and read arrays from a server that answers each request after 20 ms."""
    remote, engine, layout = work.peer.remote, work.peer.engine, case.removeprefix("full read, ")
    compute: Callable[[Any], Any] = xr.Dataset.load if "load" in case else as_it_is
    opened = functools.partial(xr.open_dataset, engine=engine, chunks=None)
    if remote and layout in TABLE["layouts"]:
        url = f"{work.url}/{work.array(layout).name}"
        run: Run = lambda: work.peer.open(remote(url), "r")[...]  # noqa: E731
        yield from again(run, lambda found: require(found, work.source))
    elif remote and engine:
        url = f"{work.url}/{work.data('far').name}"
        expected = DATA["far"](work)
        yield from again(lambda: compute(opened(remote(url))), lambda found: require(found, expected))


@dataclass(frozen=True)
class Row:
    """A row of rows.toml: what does it, who takes part, and its cases with their bars.

    A sample has `calls` operations, by whose number a time is divided. For a `fresh` row each library has
    a new process.
    """

    name: str
    does: str
    libraries: list[str]
    cases: Mapping[str, list[str]]
    section: str = ""
    unit: str = "ms"
    panel: str = ""
    calls: int = 1
    fresh: bool = False


ROWS = [Row(**row | {"libraries": TABLE["libraries"][row["libraries"]]}) for row in TABLE["rows"]]

# Measuring.

LIMIT_S, LEAST_ROUNDS = 4.0, 3


def piped(*arguments: str) -> Any:
    """Start this program again; it takes orders from its standard input, and ends with that."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def timed(run: Run) -> tuple[float, Any]:
    """How long something takes, and what it returns, which is not freed meanwhile."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def serve(spec: Json) -> None:
    """Be the process of a library: take orders from standard input, and answer each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What a library prints goes elsewhere.
    warnings.simplefilter("ignore")
    # glibc gives freed memory back by a threshold that follows the largest block freed so far.
    np.ones(31 * 2**20, np.uint8)
    work = Work(**spec)
    for line in sys.stdin:
        order, *words = json.loads(line)
        answered: Any = None
        try:
            if order == "set up":
                if work.cores:
                    os.sched_setaffinity(0, work.cores)
                    os.environ["RAYON_NUM_THREADS"] = str(len(work.cores))  # The threads of Rust.
                work.peer.setup(len(work.cores) or None)
                answered = [importlib.metadata.version(work.peer.distribution)]
            elif order == "start":
                work.row, does, case = words
                steps: Steps = globals()[does](work, case)
                run = next(steps, None)
                answered = run is not None
            elif order == "time" and run is not None:
                before = time.process_time()
                seconds, result = timed(run)
                spent = time.process_time() - before
                answered = seconds, spent, result if isinstance(result, float) else None
                run = steps.send(result)
            else:
                steps.close()
        except StopIteration:
            run = None
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the others go on
            answered = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        print(json.dumps(answered), file=answers, flush=True)


@dataclass
class Figure:
    """What a library reached in a case: its samples, their processor times in ms, or why there are none."""

    samples: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float | None:
        """The median of the samples, None without any."""
        return statistics.median(self.samples) if self.samples else None


def ask(process: Any, *order: object) -> Any:
    """Give an order to the process of a library. Raises RuntimeError with what it raised."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(order), file=process.stdin, flush=True)
    found = json.loads(process.stdout.readline() or '{"error": "the process ended"}')
    if isinstance(found, dict):
        raise RuntimeError(found["error"])
    return found


@dataclass
class Bench:
    """A run: its section, its places, and what it has measured, by row, case and library."""

    section: str
    rows: Sequence[Row]
    places: Json
    labels: Sequence[str]
    repeat: int
    only: str
    figures: dict[tuple[str, str, str], Figure] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def figure(self, row: str, case: str, label: str = OURS) -> Figure:
        """What was measured; a figure without samples if it was not."""
        return self.figures.get((row, case, label), Figure())

    def measure(self, cores: Sequence[int] = (), prefix: str = "") -> None:
        """Measure what is wanted of the section, on these cores."""
        with self.processes(self.labels, cores) as together:
            for row, case in [(each, case) for each in self.rows for case in each.cases]:
                name = f"{row.name}: {case}".casefold()
                if not any(text in name for text in self.only.casefold().split("|")):
                    continue
                peers = {label: each for label, each in together.items() if label in row.libraries}
                fresh = self.processes(list(peers), cores) if row.fresh else contextlib.nullcontext(peers)
                with fresh as processes:
                    found = self.alternate(processes, row, case)
                texts = [f"{label} {each.note or rounded(each.median)}" for label, each in found.items()]
                print(f"{prefix}{row.name}: {case} ({row.unit}): {', '.join(texts)}", flush=True)
                for label, each in found.items():
                    self.figures[prefix + row.name, case, label] = each

    @contextlib.contextmanager
    def processes(self, labels: Sequence[str], cores: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Processes of these libraries, without those that are absent."""
        found = {}
        with contextlib.ExitStack() as stack:
            for label in labels:
                spec = {**self.places, "label": label, "cores": cores}
                process = stack.enter_context(piped("--serve", json.dumps(spec)))
                try:
                    (self.versions[label],) = ask(process, "set up")
                    found[label] = process
                except RuntimeError as error:
                    self.absent[label] = str(error)
            yield found

    def alternate(self, processes: Mapping[str, Any], row: Row, case: str) -> dict[str, Figure]:
        """Time a case, in rounds that go through all processes, each round from another one."""
        figures: dict[str, Figure] = {}

        def asked(label: str, *order: object) -> Any:
            try:
                return ask(processes[label], *order)
            except RuntimeError as error:
                figures[label] = Figure(note=str(error))
                return None

        # What all read is made by the first process that needs it: that of zarr-python.
        ordered = sorted(processes, key=lambda label: label != "zarr-python")
        active = [label for label in ordered if asked(label, "start", row.name, row.does, case)]
        for number in range(1 if row.fresh else self.repeat):
            first = number % max(len(active), 1)
            for label in [*active[first:], *active[:first]]:
                figure = figures.setdefault(label, Figure())
                spent = sum(figure.samples) * row.calls / 1000 if row.unit == "ms" else 0
                if figure.note or (spent > LIMIT_S and number >= LEAST_ROUNDS):
                    continue
                if answered := asked(label, "time"):
                    seconds, processor, value = answered
                    figure.samples.append(1000 * seconds / row.calls if value is None else value)
                    figure.processor.append(1000 * processor / row.calls)
        for label in active:
            asked(label, "stop")
        return {label: figures[label] for label in processes if label in figures}


# The page.


def rounded(value: float | None) -> str:
    """Three figures, and no exponent; a dash for nothing."""
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(lines: Sequence[Sequence[str]], rule: str = "---:") -> str:
    """A table."""
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|---" + f"|{rule}" * (len(lines[0]) - 1) + "|", *body])


def judged(bench: Bench, row: Row, case: str, bar: str) -> list[str]:
    """What is asked of a case, by which bar, what was measured, and whether that meets it."""
    sign, text, is_ratio, other = re.findall(r"([<>]=)? ?([\d.]+)(x?) ?(.*)", bar)[0]
    number, asked, unit = bench.figure(row.name, case).median, float(text), row.unit
    words = f"at {'least' if sign == '>=' else 'most'} {text} {unit}"
    if is_ratio and sign:
        base = bench.figure(row.name, other).median
        number, unit = number / base if number and base else None, "times"
        words = f"at most {text} times as long as: {other}"
    elif is_ratio:
        peers = [other] if other else row.libraries[1:]
        fastest = min(peers, key=lambda label: bench.figure(row.name, case, label).median or math.inf)
        theirs = bench.figure(row.name, case, fastest).median
        number, unit = theirs / number if number and theirs else None, "times"
        words = f"at least {text} times as fast as {other or 'the fastest peer'}"
        unit += "" if other else f" ({fastest})"
    if number is None:
        return [f"{row.name}: {case}", words, "-", "not measured"]
    met = number <= asked if sign == "<=" else number >= asked
    to_worse = math.ceil if sign == "<=" else math.floor  # What misses a bar is not shown as the bar.
    shown = to_worse(100 * number) / 100
    return [f"{row.name}: {case}", words, f"{shown:.2f} {unit}", "met" if met else "missed"]


def by_row(bench: Bench) -> Iterator[str]:
    """A table for each row, and one of the processor time of what works with arrays in files."""
    rows = {row.name: row for row in bench.rows}
    for name, cases in itertools.groupby(dict.fromkeys(key[:2] for key in bench.figures), lambda key: key[0]):
        lines = [[f"{name} ({rows[name].unit})", *bench.labels]]
        processor = [[f"{name}, processor time (ms)", *bench.labels]]
        for _, case in cases:
            figures = [bench.figure(name, case, label) for label in bench.labels]
            texts = ["failed" if each.note else rounded(each.median) for each in figures]
            base = figures[0].median
            ratios = [f" ({each.median / base:.2f}x)" if base and each.median else "" for each in figures]
            lines.append([case, texts[0], *map(str.__add__, texts[1:], ratios[1:])])
            spent = [statistics.median(each.processor) if each.processor else None for each in figures]
            processor.append([case, *map(rounded, spent)])
        yield markdown(lines)
        if rows[name].panel == "files":
            yield markdown(processor)


def by_cores(bench: Bench, mib: int) -> str:
    """The table of throughputs: a line for each case and library, a column for each number of cores."""
    counts = list(dict.fromkeys(row.partition(" ")[0] for row, _, _ in bench.figures))
    lines = [["GiB/s by cores", "library", *counts]]
    for row in bench.rows:
        for case, label in itertools.product(row.cases, bench.labels):
            medians = [bench.figure(f"{count} {row.name}", case, label).median for count in counts]
            cells = [rounded(each and mib / 1.024 / each) for each in medians]
            lines.append([f"{row.name}: {case}", label, *cells])
    return markdown(lines)


def section_text(bench: Bench, mib: int, conditions: Mapping[str, str]) -> str:
    """The section of a run, in Markdown."""
    figures = bench.figures.items()
    bars = [
        judged(bench, row, case, bar)
        for row in bench.rows
        for case, asked in row.cases.items()
        for bar in asked
        if (row.name, case, OURS) in bench.figures
    ]
    failed = [f"- {label}, {name}: {case}: {each.note}" for (name, case, label), each in figures if each.note]
    command = f"bash ci/bench.sh --only {bench.section}" if bench.section else "bash ci/bench.sh"
    parts = [
        TABLE["sections"][bench.section]["heading"],
        f"Written by `{command}`; every figure was measured in that run, as [NOTES.md](NOTES.md) tells.",
        markdown([("", ""), *conditions.items()], "---"),
        markdown([["what", "bar", "measured", "verdict"], *bars], "---") if bars else "",
        *([by_cores(bench, mib)] if bench.section == "cores" else by_row(bench)),
        "\n".join(["Failed:\n", *failed]) if failed else "",
    ]
    return "\n\n".join(filter(None, parts))


def put(page: str, name: str, text: str) -> str:
    """The page with a new section: what is between its two marks, or all before the first mark."""
    begin, end = f"<!-- Made by ci/bench: {name} -->\n", f"<!-- End of what ci/bench makes: {name} -->\n"
    if not name:
        _, mark, rest = page.partition("<!-- Made by ")
        return f"{text}\n\n{mark}{rest}" if mark else f"{text}\n"
    before, _, rest = page.partition(begin)
    return f"{before.rstrip()}\n\n{begin}\n{text}\n\n{end}{rest.partition(end)[2]}".lstrip()


# The pictures.

STYLES: dict[str, Json] = {
    OURS: {"color": "#c0392b", "marker": "o", "linewidth": 2.2, "zorder": 3},
    "xzarr3 in Python": {"color": "#c0392b", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "zarr-python": {"color": "#8a8a8a", "marker": "D"},
    "zarr-python fused": {"color": "#8a8a8a", "marker": "D", "markerfacecolor": "white"},
    "zarrs": {"color": "#2c7fb8", "marker": "s"},
    "tensorstore": {"color": "#4d9a5b", "marker": "^"},
}
BEYOND = 20.0  # Where the axis of the speeds ends; what takes longer is written there as a number.
LEGEND: Json = {"loc": "outside upper center", "frameon": False, "fontsize": 9.5}
Tables: TypeAlias = dict[str, list[list[str]]]


def tables(page: str) -> Tables:
    """The tables of the page by what is in their corner, each a list of lines of cells, the head first."""
    found = {}
    for block in re.findall(r"^\|.*?(?=\n\n|\Z)", page, re.MULTILINE | re.DOTALL):
        head, _, *lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        found[head[0]] = [head, *lines]
    return found


def chosen(found: Tables, panel: str) -> dict[str, dict[str, float]]:
    """By operation and case, how many times as long as xzarr3 others take; of arrays, with zstd."""
    rows = {}
    for row in [row for row in ROWS if row.panel == panel]:
        head, *lines = found.get(f"{row.name} (ms)", [[]])
        for case, ours, *theirs in [line for line in lines if line[0] in row.cases]:
            shown = (
                case if panel != "files" else case.removeprefix("zstd, ").replace("16 MiB shards", "shards")
            )
            if panel != "files" or case != shown:
                cells = [(peer, cell.split()[0]) for peer, cell in zip(head[2:], theirs, strict=True)]
                times = {peer: float(cell) / float(ours) for peer, cell in cells if cell[0].isdigit()}
                rows[f"{row.name}: {shown}"] = times
    return rows


def draw_speeds(found: Tables) -> Any:
    """The times of others over those of xzarr3: a line for each row, with a mark for each library."""
    figure = library("matplotlib.figure").Figure(figsize=(8.6, 9), layout="constrained", facecolor="white")
    known: Json = {}
    for axes, panel in zip(figure.subplots(2, 1), TABLE["panels"], strict=True):
        rows = chosen(found, panel)
        for at, ratios in enumerate(rows.values()):
            axes.axhline(at, color="#eeeeee", linewidth=0.8, zorder=0)
            for peer in [peer for peer in STYLES if peer in ratios]:
                style = {"linestyle": "", "markersize": 5.5, "label": peer, **STYLES[peer]}
                known[peer] = axes.plot(min(ratios[peer], BEYOND), at, **style)[0]
            if (longest := max(ratios.values())) > BEYOND:
                axes.text(BEYOND * 1.12, at, f"{longest:.0f}", fontsize=7.5, va="center")
        known[OURS] = axes.axvline(1, color=STYLES[OURS]["color"], linewidth=2)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.tick_params(axis="y", labelsize=8.5, length=0)
        axes.set(ylim=(len(rows) - 0.4, -0.6), xscale="log", xlim=(0.6, BEYOND * 1.7))
        axes.set_xticks(ticks := (0.7, 1, 2, 5, 10, 20), [f"{tick}x" for tick in ticks], fontsize=8)
        axes.minorticks_off()
        axes.set_title(TABLE["panels"][panel], fontsize=10)
        axes.spines[["top", "right", "left"]].set_visible(False)
    labels = [label for label in STYLES if label in known]
    figure.legend([known[label] for label in labels], labels, ncols=len(labels), **LEGEND)
    figure.supxlabel(
        "time over that of xzarr3: right of the red line xzarr3 is faster, left of it slower", fontsize=9
    )
    return figure


def draw_cores(found: Tables) -> Any:
    """The throughput by cores: a panel for each read and write of small chunks, a line a library."""
    (_, _, *counts), *lines = found["GiB/s by cores"]
    cases = list(dict.fromkeys(line[0] for line in lines if "64 KiB" in line[0]))
    n_rows = -(-len(cases) // 4)
    figure = library("matplotlib.figure").Figure(figsize=(10, 0.6 + 2.5 * n_rows), layout="constrained")
    grid = figure.subplots(n_rows, 4, squeeze=False)
    for axes, case in itertools.zip_longest(grid.flat, cases, fillvalue=""):
        for _, label, *cells in [line for line in lines if line[0] == case]:
            numbers = [math.nan if cell == "-" else float(cell) for cell in cells]
            axes.plot(list(map(int, counts)), numbers, label=label, markersize=4.5, **STYLES[label])
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(map(int, counts)), counts)
        axes.minorticks_off()
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
        axes.set_title(case.replace(": ", "\n", 1).replace(", 64 KiB", ""), fontsize=9.5)
        axes.tick_params(labelsize=8.5)
        axes.grid(color="#e6e6e6", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("GiB/s", fontsize=9)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(labels), **LEGEND)
    figure.supxlabel("cores, and as many threads; chunks of 64 KiB", fontsize=9)
    return figure


def draw(folder: Path) -> None:
    """Draw the pictures of the page."""
    found = tables(RESULTS.read_text("utf-8"))
    with library("matplotlib").rc_context({"svg.hashsalt": "xzarr3", "svg.fonttype": "none"}):
        draw_speeds(found).savefig(folder / "speed.svg", metadata={"Date": None})
        draw_cores(found).savefig(folder / "scaling.svg", metadata={"Date": None})


# The command.


def main() -> int:
    """Run the bench; return 1 if a figure of xzarr3 could not be measured."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure xzarr3 beside its peers.")
    add = parser.add_argument
    add(
        "--only",
        default="",
        metavar="TEXT",
        help="cases with TEXT, or with one of A|B, or a section: cores, lock",
    )
    add("--mib", type=int, metavar="N", help="size of the field (64; 512 of cores, 16 of lock)")
    add("--repeat", type=int, default=7, metavar="N", help="most timed rounds of a case (7)")
    add("--libraries", default="", metavar="A,B", help="libraries compared (all that are installed)")
    add("--out", type=Path, metavar="FILE", help="page to write (RESULTS.md, after a run of a whole section)")
    add("--draw", type=Path, nargs="?", const=CI, metavar="DIR", help="only draw the pictures of the page")
    add("--serve", type=json.loads, help=argparse.SUPPRESS)
    add("--files", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.files:
        asyncio.run(serve_files(options.files))
    elif options.draw:
        draw(options.draw)
    else:
        return run(options)
    return 0


def run(options: argparse.Namespace) -> int:
    """Measure, print and write the page; return 1 if a figure of xzarr3 could not be measured."""
    name = options.only if options.only in TABLE["sections"] else ""
    mib, memory = options.mib or TABLE["sections"][name]["mib"], Path("/dev/shm")
    cores = sorted(os.sched_getaffinity(0))
    rows = [row for row in ROWS if row.section == name]
    labels = dict.fromkeys(label for row in rows for label in row.libraries)
    labels = [label for label in labels if not options.libraries or label in options.libraries.split(",")]
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > max(4 * 2**30, 8 * mib * 2**20)
    start, load = time.monotonic(), os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        folders = {"root": memory if roomy and name else None, "written": memory if roomy else None}
        made = functools.partial(tempfile.TemporaryDirectory, prefix="xzarr3-bench-")
        places: Json = {key: stack.enter_context(made(dir=folder)) for key, folder in folders.items()}
        np.save(f"{places['root']}/source.npy", temperature(mib * 16))
        server = stack.enter_context(piped("--files", places["root"]))
        places |= {"url": f"http://127.0.0.1:{server.stdout.readline().strip()}", "spare": cores[-1]}
        bench = Bench(name, rows, places, labels, options.repeat, "" if name else options.only)
        counts = [2**power for power in range(len(cores).bit_length())] if name == "cores" else [bool(name)]
        for count in counts:
            bench.measure(cores[:count], f"{count} " if name == "cores" else "")
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    conditions = {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "field": f"{mib} MiB of float32, seed {SEED}; at most {options.repeat} timed rounds of a case",
        "places": "what is read is below {}, what is written below {}".format(
            *(Path(places[key]).parent for key in ("root", "written"))
        ),
        "duration": f"{time.monotonic() - start:.0f} s",
        "load average before and after": f"{load:.1f} and {os.getloadavg()[0]:.1f}",
        "processor": model[1] if model else platform.processor(),
        "versions": ", ".join(map(" ".join, library("xzarr3.versions").versions().items())),
        "libraries": ", ".join(map(" ".join, bench.versions.items())),
        "absent": "; ".join(map(": ".join, bench.absent.items())) or "none",
    }
    text = section_text(bench, mib, conditions)
    print(text)
    is_whole = not options.mib and not options.libraries and options.only == name
    if out := options.out or (RESULTS if is_whole else None):
        out.write_text(put(out.read_text("utf-8") if out.exists() else "", name, text), "utf-8")
        print(f"written: {out}")
    ours = [figure for (_, _, label), figure in bench.figures.items() if label == OURS]
    return int(not ours or any(figure.note for figure in ours))


if __name__ == "__main__":
    sys.exit(main())
