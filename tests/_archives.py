"""What the tests of archives that roll share: four years of months, their stores, and another writer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _killed import opened
from _waiting import WaitingStore

import xzarr3
from xzarr3.copying import rolling

TIMES = xr.date_range("2019-01-01", periods=48, freq="MS")


def months() -> xr.Dataset:
    t2m = np.random.default_rng(0).random((48, 5))
    t2m[10:14] = t2m[20:30] = np.nan
    return xr.Dataset(
        {"t2m": (("time", "lat"), t2m), "area": ("lat", np.arange(5.0)), "days": ((), 30)},
        {"time": TIMES, "lat": np.arange(5.0) * 2},
        {"title": "all"},
    )


def first(number: int) -> xr.Dataset:
    return months().isel(time=slice(number))


def archive(way: str, store: Any, number: int, chunk: Any = 12, **options: Any) -> None:
    """Store all months, of which so many can be dropped; or what follows so many, which can be put before."""
    begin = 0 if way == "drop" else number
    units = {"units": f"days since {TIMES[begin]:%Y-%m-%d}", "dtype": "int32"}
    encoding = {"t2m": {"chunks": (chunk, 2)}, "time": units}
    xzarr3.to_zarr(months().isel(time=slice(begin, None)), store, encoding=encoding, **options)


def roll(way: str, store: Any, number: int, block: int | None = None, group: str = "") -> xzarr3.Group:
    """Drop so many months, or put them before the others: from memory, or in blocks of dask."""
    if way == "drop":
        return xzarr3.drop(store, path=group, time=slice(None, TIMES[number - 1]))
    given = first(number) if block is None else first(number).chunk(time=block, lat=3)
    return xzarr3.to_zarr(given, store, group=group, prepend_dim="time")


def read(store: Any, **options: Any) -> xr.Dataset:
    return opened(store, chunks=None, **options).load()


def store_of(kind: str, folder: Path) -> Any:
    if kind == "directory":
        return xzarr3.LocalStore(folder / "archive.zarr")
    if kind == "fsspec":
        return xzarr3.FsspecStore(f"memory://{folder.name}")
    return WaitingStore() if kind == "waiting" else xzarr3.MemoryStore({} if kind == "dictionary" else None)


def values(store: Any) -> dict[str, Any]:
    """What a store holds; of documents, which no two writes store with the same white space, the meaning."""
    found = contents(store)
    return {key: json.loads(value) if key.endswith(".json") else bytes(value) for key, value in found.items()}


def disturb(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another writer act when all values have been taken over, and nothing has been replaced."""
    do_all = rolling.do_all

    def disturbed(*given: Any) -> None:
        do_all(*given)
        act()

    monkeypatch.setattr(rolling, "do_all", disturbed)
