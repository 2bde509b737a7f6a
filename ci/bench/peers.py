"""The libraries that are compared, each behind the same few methods."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from bare import BareArray, Selection
from layouts import Float32Array, Layout
from numcodecs import blosc

Reader: TypeAlias = Callable[[Selection], npt.NDArray[np.generic]]
Writer: TypeAlias = Callable[[Float32Array], None]
Updater: TypeAlias = Callable[[Selection, Float32Array], None]
Builder: TypeAlias = Callable[[], da.Array]
Place: TypeAlias = Any
"""A path, or what a library takes for a URL."""


class Library(ABC):
    """A library under the bench; constructing it imports the library (ImportError when it is absent).

    Parameters
    ----------
    threads : int, optional
        Number of threads it works with, by default the number that it chooses itself.
    """

    label: str
    distribution: str
    engine: str | None = None
    """Name of its xarray engine."""
    whole_chunks_only: bool = False
    """Whether it can do no more than read whole chunks."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Variables that a process of its own is started with; in one process with others it is not measured."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    @property
    def version(self) -> str:
        """Version of the installed distribution."""
        return importlib.metadata.version(self.distribution)

    def configured(self) -> AbstractContextManager[object]:
        """Return the context in which the library is to open, read and write."""
        return nullcontext()

    def remote(self, url: str) -> Place:
        """Return what the library takes for a store behind an HTTP URL."""
        raise NotImplementedError(f"{self.label} is not measured over HTTP")

    @abstractmethod
    def reader(self, path: Place) -> Reader:
        """Open the array at `path` and return what reads a selection of it."""

    def point_reader(self, path: Path) -> Reader:
        """Open the array at `path` and return what reads single values, by an index array a dimension."""
        raise NotImplementedError(f"{self.label} reads no single values")

    @abstractmethod
    def writer(self, path: Path, shape: tuple[int, ...], layout: Layout) -> Writer:
        """Create a float32 array at `path` and return what writes all of it."""

    def updater(self, path: Path) -> Updater:
        """Open the array at `path` and return what writes into a region of it."""
        raise NotImplementedError(f"{self.label} writes no regions")

    def counted_readers(self, path: Path) -> list[Reader]:
        """Return the readers whose function calls are counted; the largest count is reported."""
        return [self.reader(path)]

    def builders(self, path: Path) -> dict[str, Builder]:
        """Return, by case, what builds a lazy dask array of the array at `path`."""
        return {}

    def save(self, data: xr.Dataset, path: Path) -> None:
        """Write a consolidated v3 store of `data`, with the library's default compression."""
        raise NotImplementedError(f"{self.label} writes no xarray datasets")

    def save_tree(self, data: xr.DataTree, path: Path) -> None:
        """Write a consolidated v3 store of `data`, with the library's default compression."""
        raise NotImplementedError(f"{self.label} writes no trees")

    def open_dataset(self, path: Path) -> xr.Dataset:
        """Open a dataset with dask as the library recommends, if that is not `chunks={}`."""
        return xr.open_dataset(path, engine=self.engine, chunks={})


UNITS = "one block a chunk"
OPENED = "one block a chunk, array already open"
AUTO = 'chunks="auto"'


class Xzarr3(Library):
    """xzarr3 from this checkout."""

    label = "xzarr3"
    distribution = "xzarr3"
    engine = "xzarr3"

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(threads)
        self._module = importlib.import_module("xzarr3")

    def remote(self, url: str) -> Place:
        return self._module.open_store(url)

    def reader(self, path: Place) -> Reader:
        array = self._module.open_array(path)
        if self.threads is not None:
            return lambda selection: array.get(selection, threads=self.threads)
        return lambda selection: array[selection]

    def point_reader(self, path: Path) -> Reader:
        array = self._module.open_array(path)
        return lambda selection: array.vindex[selection]

    def updater(self, path: Path) -> Updater:
        array = self._module.open_array(path, mode="r+")
        return lambda region, values: array.__setitem__(region, values)

    def writer(self, path: Path, shape: tuple[int, ...], layout: Layout) -> Writer:
        array = self._module.create_array(
            path,
            shape=shape,
            dtype="float32",
            chunks=layout.chunks,
            shards=layout.shards,
            compressors=[] if layout.compressor is None else [layout.compressor],
            fill_value=0.0,
        )
        return lambda data: array.set(..., data, threads=self.threads)

    def counted_readers(self, path: Path) -> list[Reader]:
        array = self._module.open_array(path)
        return [self.reader(path), lambda selection: array.get(selection, threads=1)]

    def builders(self, path: Path) -> dict[str, Builder]:
        array = self._module.open_array(path)
        return {
            UNITS: lambda: self._module.from_zarr(path, chunks="units"),
            OPENED: lambda: self._module.from_zarr(array, chunks="units"),
            AUTO: lambda: self._module.from_zarr(path, chunks="grouped"),
        }

    def save(self, data: xr.Dataset, path: Path) -> None:
        self._module.to_zarr(data, path, mode="w", consolidated=True)

    def save_tree(self, data: xr.DataTree, path: Path) -> None:
        self._module.to_zarr(data, path, mode="w", consolidated=True)

    def open_dataset(self, path: Path) -> xr.Dataset:
        opened: xr.Dataset = self._module.open_dataset(path)
        return opened


class InterpretedXzarr3(Xzarr3):
    """xzarr3 as it is where it was installed without native code."""

    label = "xzarr3 in Python"
    environment = MappingProxyType({"XZARR3_NATIVE": "0"})


class ZarrPython(Library):
    """zarr-python with one of its codec pipelines."""

    label = "zarr-python"
    distribution = "zarr"
    engine = "zarr"
    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(threads)
        module, name = self.pipeline.rsplit(".", 1)
        self._zarr = importlib.import_module("zarr")
        try:
            self._pipeline = getattr(importlib.import_module(module), name)
        except AttributeError as error:
            raise ImportError(f"{self.distribution} {self.version} has no {self.pipeline}") from error

    @contextmanager
    def configured(self) -> Iterator[None]:
        # None is numcodecs' default, which leaves blosc to choose; importing xzarr3 may have changed it.
        before, blosc.use_threads = blosc.use_threads, None
        try:
            pipeline = {"codec_pipeline.path": self.pipeline, "threading.max_workers": self.threads}
            with self._zarr.config.set(pipeline):
                yield
        finally:
            blosc.use_threads = before

    def remote(self, url: str) -> Place:
        if type(self) is Zarrs:
            return super().remote(url)  # It opens such stores by itself, with options of its own.
        client = importlib.import_module("obstore.store").HTTPStore.from_url(
            url, client_options={"allow_http": True}
        )
        return importlib.import_module("zarr.storage").ObjectStore(client, read_only=True)

    def _checked(self, array: object) -> None:
        found = type(getattr(getattr(array, "async_array", array), "codec_pipeline", None))
        if found is not self._pipeline:
            raise RuntimeError(
                f"{self.label}: array has the pipeline {found}, {self._pipeline} was asked for"
            )

    def _opened(self, path: Place, mode: str) -> Any:
        with self.configured():
            array = self._zarr.open_array(path, mode=mode)
        self._checked(array)
        return array

    def reader(self, path: Place) -> Reader:
        array = self._opened(path, "r")
        return lambda selection: array[selection]

    def point_reader(self, path: Path) -> Reader:
        array = self._opened(path, "r")
        return lambda selection: array.vindex[selection]

    def updater(self, path: Path) -> Updater:
        array = self._opened(path, "r+")
        return lambda region, values: array.__setitem__(region, values)

    def writer(self, path: Path, shape: tuple[int, ...], layout: Layout) -> Writer:
        with self.configured():
            array = self._zarr.create_array(
                path,
                shape=shape,
                dtype="float32",
                chunks=layout.chunks,
                shards=layout.shards,
                compressors=layout.compressor,
                filters=None,
                fill_value=0.0,
                zarr_format=3,
            )
        self._checked(array)
        return lambda data: array.__setitem__(..., data)

    def builders(self, path: Path) -> dict[str, Builder]:
        if type(self) is not ZarrPython:
            return {}
        array = self._zarr.open_array(path, mode="r")
        return {
            UNITS: lambda: da.from_zarr(path),
            OPENED: lambda: da.from_array(array, chunks=array.chunks),
            AUTO: lambda: da.from_zarr(path, chunks="auto"),
        }

    def save(self, data: xr.Dataset, path: Path) -> None:
        with warnings.catch_warnings():
            # Each write of consolidated metadata warns that version 3 does not specify them.
            warnings.simplefilter("ignore")
            data.to_zarr(path, mode="w", zarr_format=3, consolidated=True)

    def save_tree(self, data: xr.DataTree, path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data.to_zarr(path, mode="w", zarr_format=3, consolidated=True)


class FusedZarrPython(ZarrPython):
    """zarr-python with its synchronous pipeline (zarr 3.4 and later)."""

    label = "zarr-python fused"
    pipeline = "zarr.core.codec_pipeline.FusedCodecPipeline"


class Zarrs(ZarrPython):
    """zarr-python with the pipeline of zarrs, written in Rust."""

    label = "zarrs"
    distribution = "zarrs"
    pipeline = "zarrs.ZarrsCodecPipeline"


class Tensorstore(Library):
    """tensorstore, without a cache (its default) and without fsync (nobody else here does one)."""

    label = "tensorstore"
    distribution = "tensorstore"

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(threads)
        self._module = importlib.import_module("tensorstore")
        pools = () if threads is None else ("data_copy_concurrency", "file_io_concurrency")
        limits = {pool: {"limit": threads} for pool in pools}
        self._context = self._module.Context({"file_io_sync": False, **limits})

    def remote(self, url: str) -> Place:
        return {"driver": "http", "base_url": f"{url}/"}

    def _opened(self, path: Place, *, write: bool = False) -> Any:
        kvstore = path if isinstance(path, dict) else {"driver": "file", "path": str(path)}
        spec = {"driver": "zarr3", "kvstore": kvstore}
        return self._module.open(spec, open=True, read=True, write=write, context=self._context).result()

    def reader(self, path: Place) -> Reader:
        array = self._opened(path)
        return lambda selection: array[selection].read().result()

    def point_reader(self, path: Path) -> Reader:
        array = self._opened(path)
        return lambda selection: array.vindex[selection].read().result()

    def updater(self, path: Path) -> Updater:
        array = self._opened(path, write=True)
        return lambda region, values: array[region].write(values).result()

    def writer(self, path: Path, shape: tuple[int, ...], layout: Layout) -> Writer:
        written = layout.shards or layout.chunks
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(path)},
            "metadata": {
                "shape": list(shape),
                "data_type": "float32",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(written)}},
                "codecs": layout.v3_codecs(),
                "fill_value": 0.0,
            },
        }
        array = self._module.open(spec, create=True, context=self._context).result()
        return lambda data: array.write(data).result()


class BareLoop(Library):
    """No library: file read, decoder and placement, and nothing else."""

    label = "bare loop"
    whole_chunks_only = True

    def reader(self, path: Place) -> Reader:
        array = BareArray(path)
        return lambda selection: array[selection]

    def writer(self, path: Path, shape: tuple[int, ...], layout: Layout) -> Writer:
        raise NotImplementedError("the bare loop only reads")


LIBRARIES: tuple[type[Library], ...] = (Xzarr3, ZarrPython, FusedZarrPython, Zarrs, Tensorstore, BareLoop)
"""Those that are compared in one process."""


def find_libraries(labels: Iterable[str], threads: int | None = None) -> tuple[list[Library], dict[str, str]]:
    """Return the libraries that can be imported, and why each of the others cannot, by label."""
    kinds: tuple[type[Library], ...] = (*LIBRARIES, InterpretedXzarr3)
    known = {kind.label: kind for kind in kinds}
    found: list[Library] = []
    absent: dict[str, str] = {}
    for label in labels:
        try:
            found.append(known[label](threads))
        except ImportError as error:
            absent[label] = str(error)
    return found, absent
