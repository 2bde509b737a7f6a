"""The stores, files and server that the mistakes of ``_mistakes.py`` are made with."""

from __future__ import annotations

import json
import shutil
import socket
import zipfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import xzarr3

HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(100)


class Answers(BaseHTTPRequestHandler):
    """A web server with one netCDF file and one directory that is denied."""

    def do_GET(self) -> None:
        status = 403 if "/denied/" in self.path else 206 if self.path == "/data/file.nc" else 404
        body = HDF5[:100] if status == 206 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if body:
            self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - http.server asks for this name

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the output of the tests clean."""


class Things:
    """Stores and files in one folder, which mistakes only read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dataset = self._dataset()
        self.more = self.dataset.isel(time=slice(2)).assign_coords(
            time=pd.date_range("2001-01-01", periods=2, freq="MS")
        )
        self.values = self.dataset.drop_vars(["lat", "lon"])
        self.store = str(folder / "store.zarr")
        xzarr3.to_zarr(self.dataset, self.store)
        self._folders()
        self._files()
        self.group = xzarr3.open_group(self.store)
        self.array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(10, 20), chunks=(5, 5), dtype="f4")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.closed = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.web = ""

    def _dataset(self) -> xr.Dataset:
        shape = (12, 6, 8)
        return xr.Dataset(
            {name: (("time", "lat", "lon"), np.ones(shape, "f4")) for name in ("t2m", "pr")},
            coords={
                "time": pd.date_range("2000-01-01", periods=12, freq="MS"),
                "lat": np.linspace(-75, 75, 6),
                "lon": np.arange(8) * 45.0,
            },
        )

    def _folders(self) -> None:
        for name in ("outer/inner", "empty", "v1", "n5", "ice", "many", "refs.parq"):
            (self.folder / name).mkdir(parents=True)
        shutil.copytree(self.store, self.folder / "outer/inner/data.zarr")
        self.write("v1/meta", b'{"zarr_format": 1}')
        self.write("v1/attrs", b"{}")
        self.write("n5/attributes.json", b'{"n5": "2.0.0"}')
        self.write("many/a.nc", HDF5)
        self.write("refs.parq/.zmetadata", b'{"metadata": {}, "record_size": 10}')
        (self.folder / "link").symlink_to("nowhere")
        for name in ("snapshots", "transactions", "manifests"):
            (self.folder / "ice" / name).mkdir()

    def _files(self) -> None:
        self.write("file.nc", HDF5)
        self.write("file3.nc", b"CDF\x02" + bytes(40))
        self.write("file.grib", b"GRIB" + bytes(40))
        self.write("file.tif", b"II*\0" + bytes(40))
        self.write("notes.txt", b"hello")
        self.write("refs.json", json.dumps({"version": 1, "refs": {".zgroup": "{}"}}).encode())
        for name, top in (("whole", self.folder / "store.zarr"), ("above", self.folder)):
            with zipfile.ZipFile(self.folder / f"{name}.zip", "w") as packed:
                for path in sorted(Path(self.store).rglob("zarr.json")):
                    packed.write(path, path.relative_to(top))
        (self.folder / "whole.zip").rename(self.folder / "zipped.zarr")

    def write(self, name: str, data: bytes) -> None:
        (self.folder / name).write_bytes(data)

    def path(self, name: str) -> str:
        return str(self.folder / name)
