"""Reading and writing on a cluster: two worker processes of one thread each, on this machine."""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import contents, refused
from _engines import theirs
from _xarray_datasets import CORPUS, TEXTS
from distributed import Client

import xzarr3
from xzarr3 import ChunkDecodeError, LocalStore, MemoryStore, ReadOnlyError, from_zarr, store, to_zarr
from xzarr3.xarray import open_dataset

Values = np.ndarray[Any, np.dtype[np.float64]]


def _values(*shape: int) -> Values:
    return np.random.default_rng(sum(shape)).random(shape) + 1


def test_reading_and_computing(client: Client, local_store: LocalStore) -> None:
    values = _values(60, 80)
    array = xzarr3.create_array(local_store, "a/x", data=values, chunks=(5, 10), shards=(20, 40))
    expected = (values[::2] - values.mean(axis=0)).std()
    for lazy in (
        from_zarr(array), from_zarr(array, chunks="units"), from_zarr(local_store, "a/x", chunks=17)
    ):  # fmt: skip
        np.testing.assert_array_equal(lazy.compute(), values)
        np.testing.assert_allclose((lazy[::2] - lazy.mean(axis=0)).std().compute(), expected)
    np.testing.assert_array_equal(lazy[::-7].persist()[2:4].compute(), values[::-7][2:4])
    workers, tasks = set(client.run(os.getpid).values()), list(array.chunk_tasks())
    sent = [client.submit(lambda task: (os.getpid(), task()), task, pure=False) for task in tasks]
    for task, result in zip(tasks, sent, strict=True):
        process, block = result.result(timeout=120)
        assert process in workers - {os.getpid()}
        np.testing.assert_array_equal(block, values[task.selection])


def test_datasets_are_computed(client: Client, tmp_path: Path) -> None:
    for make in (CORPUS["packed"], CORPUS["calendars"], TEXTS["texts"]):
        to_zarr(make(), tmp_path / make.__name__)
        found = open_dataset(tmp_path / make.__name__, chunks={}).compute()
        xr.testing.assert_identical(found, theirs(tmp_path / make.__name__))


def test_memory_stores_can_be_read_but_not_written_elsewhere(client: Client) -> None:
    memory, values, ones = MemoryStore(), _values(20, 20), da.ones((20, 20), chunks=10)
    array = xzarr3.create_array(memory, data=values, chunks=10)
    np.testing.assert_array_equal(from_zarr(array).compute(), values)
    before = contents(memory)
    refused(ReadOnlyError, lambda: store(ones, array))
    refused(ReadOnlyError, lambda: client.submit(array.resize, (5, 5), pure=False).result(timeout=120))
    assert contents(memory) == before
    store(ones, array, scheduler="threads")
    assert (array[...] == 1).all()
    # The workers may still hold the copy of before.
    np.testing.assert_array_equal(from_zarr(array).compute(), np.ones((20, 20)))
    np.testing.assert_array_equal(client.submit(array.get, pure=False).result(timeout=120), np.ones((20, 20)))
    memory.set("c/1/0", b"broken")
    with pytest.raises(ChunkDecodeError, match="c/1/0") as caught:
        from_zarr(array, chunks="units").sum().compute()
    assert (caught.value.key, caught.value.chunk) == ("c/1/0", (1, 0))


def test_worker_killed_from_outside(client: Client, tmp_path: Path) -> None:
    values = _values(90, 60)
    options: Any = {"chunks": (5, 6), "shards": (10, 30), "write_empty_chunks": True}
    target = xzarr3.create_array(tmp_path / "store", data=np.zeros((90, 60)), **options)
    source = da.from_array(values, chunks=(10, 30))
    source = source.map_blocks(lambda block: (time.sleep(0.05), block)[1], dtype="f8", meta=np.empty((0, 0)))
    future = client.compute(store(source, target, compute=False))
    while not (target[...] != 0).any():
        time.sleep(0.01)
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    future.result(timeout=120)
    np.testing.assert_array_equal(target[...], values)
    assert set(contents(target.store)) == {"zarr.json", *(task.key for task in target.chunk_tasks())}


def _marks(top: Path) -> dict[str, bytes]:
    """Documents and what says that somebody writes; a task elsewhere may just have stored a chunk."""
    found: dict[str, bytes] = {}
    for file in top.rglob("*"):
        if file.name.endswith(("zarr.json", "begun", "xzarr3-lease")):
            with suppress(FileNotFoundError):  # It has just been removed.
                found[str(file.relative_to(top))] = file.read_bytes()
    return found


def _fail_until(marker: Path, block: Values) -> Values:
    """Fails until there is a file, which the first failure makes if its name says so."""
    if 5 not in block or marker.exists():
        return block
    if marker.name == "once":
        marker.touch()
    raise ZeroDivisionError("not yet")


WRITES: dict[str, Any] = {"append": {"append_dim": "x"}, "w": {"mode": "w"}, "new": {"group": "below"}}


def _zeros(path: Path) -> None:
    xzarr3.to_zarr(xr.Dataset({"a": ("x", np.zeros(4))}), path, encoding={"a": {"chunks": (2,)}})


def _failing(marker: Path, chunk: int) -> xr.Dataset:
    """Eight values, which fail to be computed until the marker is there."""
    made = da.arange(8.0, chunks=chunk).map_blocks(partial(_fail_until, marker), dtype=float)
    return xr.Dataset({"a": ("x", made)})


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("how", WRITES)
def test_failed_writes_leave_nothing(client: Client, tmp_path: Path, how: str, chunk: int) -> None:
    path, marker, once, options = tmp_path / "store", tmp_path / "marker", tmp_path / "once", WRITES[how]
    _zeros(path)
    before = _marks(path)
    refused(ZeroDivisionError, lambda: xzarr3.to_zarr(_failing(marker, chunk), path, **options))
    assert _marks(path) == before
    xzarr3.to_zarr(_failing(once, chunk), path, chunkmanager_store_kwargs={"retries": 2}, **options)
    assert once.exists()
    found = xr.open_dataset(path, engine="xzarr3", group=options.get("group"))["a"].values.tolist()
    assert found == [0.0] * (4 if how == "append" else 0) + list(range(8))
    assert not [name for name in _marks(path) if name.startswith(".xzarr3")]
