"""A folder with stores, and the command line in this process."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xzarr3
from xzarr3 import cli

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores that the examples of the help texts name."""
    place = tmp_path_factory.mktemp("stores")
    root = xzarr3.create_group(place / "ocean.zarr", attributes={"title": "An ocean"})
    random = np.random.default_rng(0)
    units = {"units": "days since 2000-01-01"}
    root.create_array("time", data=np.arange(8), dimension_names=["time"], attributes=units)
    root.create_array("lat", data=np.linspace(-75, 75, 6), dimension_names=["lat"])
    sst = root.create_array(
        "sst", data=random.random((8, 6, 12)).astype("f4"), chunks=(2, 3, 12), attributes={"units": "K"},
        dimension_names=["time", "lat", "lon"],
    )  # fmt: skip
    assert sst.nchunks == 8
    root.create_array("deep/salt", shape=(8, 6), dtype="f4", chunks=(2, 2), dimension_names=["time", "lat"])
    xzarr3.copy(place / "ocean.zarr", place / "copy.zarr")
    xzarr3.copy(place / "ocean.zarr", place / "v2.zarr", zarr_format=2)
    return place


@pytest.fixture
def folder(stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with copies of these stores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    shutil.copytree(stores, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command in this process; gives its status and what it prints."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = cli.main([str(each) for each in arguments])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command as a process of its own."""

    def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120}
        environment = {**os.environ, **options.pop("env", {})}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, check=False, env=environment, **{**streams, **options})

    return process
