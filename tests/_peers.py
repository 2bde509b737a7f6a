"""Other Zarr libraries behind one interface: each makes, reads and changes the array it is asked for.

``python tests/_peers.py tests/data NAME`` writes stores that are kept; see the README beside them.
"""

import json
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

AnyArray: TypeAlias = npt.NDArray[Any]
Codec: TypeAlias = dict[str, Any]

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def codec(name: str, **configuration: Any) -> Codec:
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


LITTLE = codec("bytes", endian="little")
BIG = codec("bytes", endian="big")
ZSTD = codec("zstd", level=0, checksum=False)
CRC32C = codec("crc32c")


def blosc(cname: str, shuffle: str, itemsize: int) -> Codec:
    return codec("blosc", cname=cname, clevel=5, shuffle=shuffle, typesize=itemsize, blocksize=0)


def sharding(
    chunks: tuple[int, ...],
    *codecs: Codec,
    index: tuple[Codec, ...] = (LITTLE, CRC32C),
    location: str = "end",
) -> Codec:
    return codec(
        "sharding_indexed", chunk_shape=list(chunks), codecs=list(codecs), index_codecs=list(index),
        index_location=location,
    )  # fmt: skip


@dataclass(frozen=True)
class Fill:
    """A fill value: its form in a document, and the bits it stands for, most significant first."""

    json: Any
    bits: str

    def scalar(self, dtype: str) -> Any:
        """The fill value as a numpy scalar; a complex one has the bits of its two parts in turn."""
        native = np.dtype(dtype)
        parts = 2 if native.kind == "c" else 1
        raw = np.frombuffer(bytes.fromhex(self.bits), f">u{native.itemsize // parts}")
        return raw.astype(raw.dtype.newbyteorder("=")).view(native)[0]


@dataclass(frozen=True, kw_only=True)
class Request:
    """An array that every library can be asked for, in the terms of the specification."""

    shape: tuple[int, ...] = (9, 13)
    dtype: str = "float32"
    chunks: tuple[int, ...] = (4, 5)
    codecs: tuple[Codec, ...] = (LITTLE, ZSTD)
    fill: Fill | None = None
    keys: Mapping[str, Any] = field(default_factory=lambda: codec("default", separator="/"))
    names: tuple[str | None, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def native(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @property
    def fill_json(self) -> Any:
        if self.fill is not None:
            return self.fill.json
        return {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(self.native.kind, 0)

    @property
    def fill_scalar(self) -> Any:
        return self.native.type(0) if self.fill is None else self.fill.scalar(self.dtype)

    @property
    def fill_has_payload(self) -> bool:
        """Whether the fill value is, or has, a NaN that is not the one called ``"NaN"``."""
        return "0x" in json.dumps(self.fill_json)

    @property
    def filters(self) -> list[Codec]:
        return [c for c in self.codecs if c["name"] == "transpose"]

    @property
    def serializer(self) -> Codec:
        return next(c for c in self.codecs if c["name"] in ("bytes", "sharding_indexed"))

    @property
    def compressors(self) -> list[Codec]:
        return [c for c in self.codecs if c not in self.filters and c != self.serializer]

    @property
    def options(self) -> dict[str, Any]:
        """What xzarr3 and zarr-python are told in the same way."""
        return {
            "shape": self.shape, "dtype": self.dtype, "chunks": self.chunks, "serializer": self.serializer,
            "fill_value": self.fill_scalar, "dimension_names": self.names,
            "attributes": dict(self.attributes),
        }  # fmt: skip

    def uses(self, word: str) -> bool:
        """Whether a codec of this name, or with this setting, is used, in a shard or outside."""
        return f'"{word}"' in json.dumps(self.codecs)


@dataclass(frozen=True)
class Description:
    """What a library says about an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    names: tuple[str | None, ...] | None
    attributes: dict[str, Any]


class Library(ABC):
    """A library that reads and writes Zarr; constructing it imports it."""

    distribution: str

    @property
    def version(self) -> str:
        return version(self.distribution)

    def cannot_write(self, request: Request) -> str | None:
        """Why the library cannot make an array that the specification permits, if so."""
        return None

    def cannot_read(self, request: Request) -> str | None:
        """Why the library cannot read an array that the specification permits, if so."""
        return None

    @abstractmethod
    def create(self, path: Path, request: Request) -> None:
        """Make the array."""

    @abstractmethod
    def open(self, path: Path, mode: str = "r") -> AbstractContextManager[Any]:
        """The array as the library has it, which takes and gives numpy's arrays at basic selections."""

    @abstractmethod
    def describe(self, path: Path) -> Description:
        """What the library says about the array."""

    def read(self, path: Path, selection: Any = ...) -> AnyArray:
        with self.open(path) as array:
            return np.asarray(array[selection])

    def write(self, path: Path, selection: Any, values: npt.ArrayLike) -> None:
        with self.open(path, "r+") as array:
            array[selection] = values

    def resize(self, path: Path, shape: tuple[int, ...]) -> None:
        with self.open(path, "r+") as array:
            array.resize(shape)

    def append(self, path: Path, values: AnyArray) -> None:
        with self.open(path, "r+") as array:
            array.append(values)

    def save(self, path: Path, request: Request, values: npt.ArrayLike) -> None:
        self.create(path, request)
        self.write(path, ..., values)


class Xzarr3(Library):
    distribution = "xzarr3"

    def __init__(self) -> None:
        import xzarr3

        self._module = xzarr3

    def create(self, path: Path, request: Request) -> None:
        options = {**request.options, "filters": request.filters, "compressors": request.compressors}
        self._module.create_array(path, **options, chunk_key_encoding=request.keys)

    def open(self, path: Path, mode: str = "r") -> AbstractContextManager[Any]:
        return nullcontext(self._module.open_array(path, mode=mode))

    def describe(self, path: Path) -> Description:
        array = self._module.open_array(path)
        names = array.dimension_names
        return Description(array.shape, array.dtype, array.write_chunks, names, dict(array.attrs))


class ZarrPython(Library):
    """zarr-python with its default codec pipeline."""

    distribution = "zarr"
    settings: Mapping[str, Any] = {"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}

    def __init__(self) -> None:
        import zarr

        self.module = zarr

    def cannot_write(self, request: Request) -> str | None:
        if request.fill_has_payload:
            return "zarr-python writes every NaN as 'NaN', without its sign and payload"
        if not request.shape and request.uses("sharding_indexed") and self.module.__version__ < "3.2":
            return "zarr-python writes shards of no dimensions since 3.2"
        return None

    def cannot_read(self, request: Request) -> str | None:
        if request.fill_has_payload and request.dtype == "float16":
            return "zarr-python loses the payload of a NaN of float16 as fill value"
        return None

    @contextmanager
    def open(self, path: Path, mode: str = "r") -> Iterator[Any]:
        with self.module.config.set(dict(self.settings)):
            array = self.module.open_array(path, mode=mode, zarr_format=3)
            used = type(array.async_array.codec_pipeline).__name__
            assert used == self.settings["codec_pipeline.path"].rpartition(".")[2]
            yield array

    def create(self, path: Path, request: Request) -> None:
        with self.module.config.set(dict(self.settings)):
            self.module.create_array(
                path, **request.options, filters=request.filters or None, zarr_format=3,
                compressors=request.compressors or None,
                chunk_key_encoding={"name": request.keys["name"], **request.keys["configuration"]},
            )  # fmt: skip

    def describe(self, path: Path) -> Description:
        with self.open(path) as array:
            names = array.metadata.dimension_names
            chunks = array.shards or array.chunks
            return Description(array.shape, array.dtype, chunks, names, array.attrs.asdict())


class Zarrs(ZarrPython):
    """zarr-python with the pipeline of zarrs, which must not fall back on that of zarr-python."""

    distribution = "zarrs"
    settings: Mapping[str, Any] = {
        "codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True,
    }  # fmt: skip

    def cannot_read(self, request: Request) -> str | None:
        if request.native.kind == "c" and request.uses("big"):
            return "zarrs swaps the parts of big-endian complex numbers in chunks it reads in part"
        if request.fill_has_payload:
            return "zarrs gets the fill value from zarr-python, without sign and payload of a NaN"
        return None

    def __init__(self) -> None:
        super().__init__()
        import zarrs  # noqa: F401  (makes its pipeline known)


class Tensorstore(Library):
    """tensorstore's driver for version 3."""

    distribution = "tensorstore"

    def cannot_write(self, request: Request) -> str | None:
        if request.compressors and request.serializer["name"] == "sharding_indexed":
            return "tensorstore takes no codec behind sharding_indexed"
        return None

    cannot_read = cannot_write

    def __init__(self) -> None:
        import tensorstore

        self._module = tensorstore
        self._context = tensorstore.Context({"file_io_sync": False})

    def _open(self, path: Path, **options: Any) -> Any:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        return self._module.open({**spec, **options}, context=self._context).result()

    def open(self, path: Path, mode: str = "r") -> AbstractContextManager[Any]:
        return nullcontext(self._open(path))

    def create(self, path: Path, request: Request) -> None:
        metadata = {
            "shape": list(request.shape), "data_type": request.dtype,
            "chunk_grid": codec("regular", chunk_shape=list(request.chunks)),
            "chunk_key_encoding": dict(request.keys), "codecs": list(request.codecs),
            "fill_value": request.fill_json, "attributes": dict(request.attributes),
        }  # fmt: skip
        if request.names is not None:
            metadata["dimension_names"] = list(request.names)
        self._open(path, metadata=metadata, create=True)

    def resize(self, path: Path, shape: tuple[int, ...]) -> None:
        self._open(path).resize(exclusive_max=list(shape)).result()

    def append(self, path: Path, values: AnyArray) -> None:
        old = self._open(path).shape
        self.resize(path, (old[0] + len(values), *old[1:]))
        self.write(path, slice(old[0], None), values)

    def describe(self, path: Path) -> Description:
        array = self._open(path)
        document = array.spec().to_json()["metadata"]
        names = document.get("dimension_names")
        chunks = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
        names, dtype = None if names is None else tuple(names), np.dtype(array.dtype.numpy_dtype)
        return Description(array.shape, dtype, chunks, names, document.get("attributes", {}))


LIBRARIES: dict[str, type[Library]] = {
    "xzarr3": Xzarr3, "zarr-python": ZarrPython, "zarrs": Zarrs, "tensorstore": Tensorstore,
}  # fmt: skip
PEERS = tuple(name for name in LIBRARIES if name != "xzarr3")


class Gdal(ABC):
    """GDAL through one of its Python bindings, reading only what its version can."""

    binding: str
    version: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"GDAL {'.'.join(map(str, self.version))} in {self.binding}"

    def cannot_read(self, request: Request) -> str | None:
        """Why this GDAL cannot read such an array, if so."""
        for name in ("sharding_indexed", "crc32c"):
            if request.uses(name) and self.version < (3, 13):
                return f"{self.label} has no codec '{name}', which came with 3.13; `bash ci/gdal.sh` gets it"
        for one in request.codecs:
            if one["name"] == "zstd" and one["configuration"]["level"] < 0:
                return "GDAL refuses negative levels of zstd"
        inner = request.serializer.get("configuration", {}).get("codecs", [])
        if any(one.get("configuration", {}).get("index_location") == "start" for one in inner):
            return "GDAL looks for the index of a shard within a shard at the end only"
        for one in (*request.codecs, *inner):
            order = one.get("configuration", {}).get("order", [])
            if [order[at] for at in order] != list(range(len(order))):
                return "GDAL takes the order of transpose for its inverse"
        if request.dtype == "uint64" and request.fill_json >= 2**63:
            return "GDAL reads fill values of uint64 as int64"
        if request.dtype == "float16" and request.fill_has_payload:
            return "GDAL refuses hexadecimal fill values of float16"
        return None

    @abstractmethod
    def read(self, path: Path, name: str = "/") -> AnyArray:
        """All of an array, given its path in the hierarchy."""


class GdalBindings(Gdal):
    """GDAL's own bindings and its multidimensional model."""

    binding = "osgeo"

    def __init__(self) -> None:
        from osgeo import gdal, gdal_array  # noqa: F401  (gdal_array: without it, arrays are not numpy's)

        gdal.UseExceptions()
        self._module = gdal
        self.version = tuple(map(int, gdal.__version__.split("-")[0].split(".")[:3]))

    def root(self, path: Path, **options: str) -> Any:
        """The root group of a hierarchy; GDAL puts a single array into a group."""
        given = [f"{key}={value}" for key, value in options.items()]
        dataset = self._module.OpenEx(str(path), self._module.OF_MULTIDIM_RASTER, open_options=given)
        return dataset.GetRootGroup()

    def array(self, path: Path, name: str = "/", **options: str) -> Any:
        root = self.root(path, **options)
        if name == "/":
            (name,) = (f"/{only}" for only in root.GetMDArrayNames())
        return root.OpenMDArrayFromFullname(name)

    def read(self, path: Path, name: str = "/") -> AnyArray:
        return np.asarray(self.array(path, name).ReadAsArray())

    def save(self, path: Path, values: AnyArray, chunks: tuple[int, ...], **options: str) -> None:
        from osgeo import gdal_array

        code = gdal_array.NumericTypeCodeToGDALTypeCode(values.dtype)
        driver = self._module.GetDriverByName("Zarr")
        dataset = driver.CreateMultiDimensional(str(path), [], ["FORMAT=ZARR_V3"])
        root = dataset.GetRootGroup()
        dimensions = [root.CreateDimension(f"d{i}", "", "", n) for i, n in enumerate(values.shape)]
        given = [f"{key}={value}" for key, value in options.items()]
        given.append(f"BLOCKSIZE={','.join(map(str, chunks))}")
        array = root.CreateMDArray("data", dimensions, self._module.ExtendedDataType.Create(code), given)
        array.SetNoDataValueRaw(bytes(values.itemsize))
        array.WriteArray(values)
        del array, dimensions, root
        dataset.Close()


class GdalRasterio(Gdal):
    """The GDAL that rasterio brings, and its model of rasters: bands of two dimensions."""

    binding = "rasterio"

    def __init__(self) -> None:
        import rasterio
        import rasterio.errors

        self._module = rasterio
        self.version = tuple(map(int, rasterio.__gdal_version__.split(".")[:3]))
        if self.version < (3, 11):
            raise ImportError(f"{self.label} reads drafts of version 3 only, final version 3 came with 3.11")

    def cannot_read(self, request: Request) -> str | None:
        if not request.shape:
            return f"{self.label}: a raster has at least one dimension"
        return super().cannot_read(request)

    def read(self, path: Path, name: str = "/") -> AnyArray:
        where = f'ZARR:"{path}"' + ("" if name == "/" else f":{name}")
        with warnings.catch_warnings():
            # What it opens need not be a map.
            warnings.simplefilter("ignore", self._module.errors.NotGeoreferencedWarning)
            with self._module.open(where) as dataset:
                bands: AnyArray = dataset.read()
        return bands


def find_gdal() -> Gdal | str:
    """The first GDAL found that reads the final version 3, or why there is none."""
    kinds: tuple[Callable[[], Gdal], ...] = (GdalBindings, GdalRasterio)
    reasons = []
    for kind in kinds:
        try:
            return kind()
        except ImportError as error:
            reasons.append(str(error))
    return f"no GDAL here ({'; '.join(reasons)}); `bash ci/gdal.sh` gets one"


DATA = Path(__file__).parent / "data"
KEPT_STORES = sorted(path for path in DATA.glob("*/*") if path.is_dir() and path.name != "__pycache__")
"""The stores of other writers that are kept."""


def tops(store: Path) -> list[str]:
    """The paths in a kept store that hold all of it: its root, or each array where that is no group."""
    if any((store / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
        return [""]
    arrays = (path for name in ("zarr.json", ".zarray") for path in store.rglob(name))
    return sorted(path.parent.relative_to(store).as_posix() for path in arrays)


SAMPLE_VALUES = np.arange(7 * 11, dtype="int32").reshape(7, 11) - 20
SAMPLE_VALUES[0:4, 5:10] = -1
_SAMPLE_FIELDS: dict[str, Any] = {
    "shape": SAMPLE_VALUES.shape, "dtype": SAMPLE_VALUES.dtype.name, "fill": Fill(-1, "ffffffff"),
    "names": ("lat", "lon"), "attributes": {"units": "K", "valid_range": [-20, 56], "note": "ø"},
}  # fmt: skip
SAMPLES = {
    "unsharded": Request(chunks=(4, 5), codecs=(LITTLE, blosc("lz4", "shuffle", 4)), **_SAMPLE_FIELDS),
    "sharded": Request(chunks=(4, 10), codecs=(sharding((2, 5), LITTLE, ZSTD),), **_SAMPLE_FIELDS),
}


def write_samples(directory: Path, name: str) -> None:
    """Write the sample arrays with one of the libraries."""
    library = LIBRARIES[name]()
    for kind, request in SAMPLES.items():
        library.save(directory / f"{name}-{library.version}" / kind, request, SAMPLE_VALUES)


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]), sys.argv[2])
