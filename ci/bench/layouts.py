"""What is read and written: the field, and the eight ways its array is laid out on disk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xarray as xr

Float32Array: TypeAlias = npt.NDArray[np.float32]
Json: TypeAlias = dict[str, object]

SEED = 20_240_229
N_LAT = N_LON = 128
STEPS_PER_MIB = 2**20 // (N_LAT * N_LON * 4)
RESOLUTION = np.float32(1 / 32)
"""Step of the stored temperatures in K, a power of two as bit-rounded climate data have it."""

ZSTD: Json = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
GZIP: Json = {"name": "gzip", "configuration": {"level": 5}}
BLOSC: Json = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0},
}


@dataclass(frozen=True)
class Layout:
    """An array's chunk shape, shard shape and compressor, by the name the tables use."""

    name: str
    chunks: tuple[int, ...]
    compressor: Json | None = None
    shards: tuple[int, ...] | None = None

    def fitted(self, shape: tuple[int, ...]) -> Layout:
        """Return the layout with chunks and shards no longer than the array."""
        chunks = tuple(map(min, self.chunks, shape))
        shards = None if self.shards is None else tuple(map(min, self.shards, shape))
        return Layout(self.name, chunks, self.compressor, shards)

    @property
    def small(self) -> bool:
        """Whether the unit of decoding is 64 KiB, so that what is done once a chunk weighs more."""
        return "64 KiB" in self.name

    def n_chunks(self, shape: tuple[int, ...]) -> int:
        """Return the number of units of decoding in an array of `shape`."""
        return math.prod(-(-n // c) for n, c in zip(shape, self.chunks, strict=True))

    def n_files(self, shape: tuple[int, ...]) -> int:
        """Return the number of files that hold the values of an array of `shape`."""
        return math.prod(-(-n // c) for n, c in zip(shape, self.shards or self.chunks, strict=True))

    def v3_codecs(self) -> list[Json]:
        """Return the `codecs` member of the array's Zarr v3 document."""
        little: Json = {"name": "bytes", "configuration": {"endian": "little"}}
        codecs = [little] if self.compressor is None else [little, self.compressor]
        if self.shards is None:
            return codecs
        configuration: Json = {
            "chunk_shape": list(self.chunks),
            "codecs": codecs,
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end",
        }
        return [{"name": "sharding_indexed", "configuration": configuration}]


KIB_64 = (16, 32, 32)
MIB_1 = (64, 64, 64)
MIB_4 = (256, 64, 64)
MIB_16 = (512, 64, 128)

LAYOUTS = (
    Layout("uncompressed, 64 KiB", KIB_64),
    Layout("uncompressed, 4 MiB", MIB_4),
    Layout("zstd, 64 KiB", KIB_64, ZSTD),
    Layout("zstd, 4 MiB", MIB_4, ZSTD),
    Layout("blosc-lz4, 64 KiB", KIB_64, BLOSC),
    Layout("blosc-lz4, 4 MiB", MIB_4, BLOSC),
    Layout("gzip, 1 MiB", MIB_1, GZIP),
    Layout("zstd, 64 KiB in 16 MiB shards", KIB_64, ZSTD, MIB_16),
)


def temperature(n_times: int, seed: int = SEED) -> Float32Array:
    """Return daily air temperatures in K, of shape (`n_times`, 128, 128): time, latitude, longitude.

    A climate by latitude, a season, travelling waves of random length and period, and a little noise, rounded
    to `RESOLUTION`; compressors make it two to four times smaller, as they do with such fields.
    """
    rng = np.random.default_rng(seed)
    latitude = np.deg2rad(np.linspace(-89.3, 89.3, N_LAT))[:, np.newaxis]
    longitude = np.deg2rad(np.arange(N_LON) * 360 / N_LON)[np.newaxis, :]
    days = np.arange(n_times)
    zonal = np.ones_like(longitude)
    patterns = [(301 - 45 * np.sin(latitude) ** 2) * zonal, -12 * np.sin(latitude) * zonal]
    amplitudes = [np.ones(n_times), np.cos(2 * np.pi * days / 365.25)]
    for _ in range(24):
        zonal_wave, meridional_wave = rng.integers(1, 9, size=2)
        phases = rng.uniform(0, 2 * np.pi, size=3)
        wave = np.cos(zonal_wave * longitude + phases[0]) * np.sin(meridional_wave * latitude + phases[1])
        patterns.append(np.cos(latitude) ** 2 * wave)
        period, strength = rng.uniform(5, 60), rng.uniform(0.5, 3)
        amplitudes.append(strength * np.cos(2 * np.pi * days / period + phases[2]))
    flat = np.stack(amplitudes, axis=1).astype("f4") @ np.stack(patterns).reshape(len(patterns), -1).astype(
        "f4"
    )
    flat += 0.05 * rng.standard_normal(flat.shape, dtype="f4")
    rounded: Float32Array = np.round(flat / RESOLUTION) * RESOLUTION
    return rounded.reshape(n_times, N_LAT, N_LON)


def dataset(fields: dict[str, Float32Array], chunks: tuple[int, ...]) -> xr.Dataset:
    """Return `fields` of one shape (time, lat, lon) as a dataset with coordinates and CF attributes.

    The encoding asks for `chunks` (cut at the shape), which every engine's writer follows.
    """
    n_times, n_lat, n_lon = next(iter(fields.values())).shape
    variables = {
        name: (
            ("time", "lat", "lon"),
            values,
            {
                "standard_name": "air_temperature",
                "long_name": f"Air temperature at level {name}",
                "units": "K",
                "cell_methods": "time: mean",
            },
            {"chunks": tuple(map(min, chunks, values.shape))},
        )
        for name, values in fields.items()
    }
    coords = {
        "time": ("time", np.arange(n_times), {"units": "days since 2001-01-01", "calendar": "standard"}),
        "lat": ("lat", np.linspace(-89.3, 89.3, n_lat), {"units": "degrees_north"}),
        "lon": ("lon", np.arange(n_lon) * 360 / n_lon, {"units": "degrees_east"}),
    }
    return xr.Dataset(variables, coords, {"Conventions": "CF-1.11", "title": "Synthetic air temperature"})
