"""Reading and writing on a cluster: two worker processes of one thread each, on this machine."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _unprivileged import run_child
from distributed import Client, LocalCluster, wait

import xzarr3
from xzarr3 import ChunkDecodeError, LocalStore, MemoryStore, ReadOnlyError, from_zarr, store

pytestmark = pytest.mark.slow

Values = np.ndarray[Any, np.dtype[np.float64]]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    options = {
        "distributed.scheduler.allowed-failures": 3,
        "distributed.worker.daemon": True,
        "distributed.comm.timeouts.connect": "20s",
    }
    with (
        dask.config.set(options),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address=":0",
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        # Tasks of this module are pickled by name.
        client.run(lambda paths: sys.path.extend(set(paths) - set(sys.path)), list(sys.path))
        yield client


def _values(*shape: int) -> Values:
    return np.random.default_rng(sum(shape)).random(shape) + 1


def test_reading_and_computing(client: Client, local_store: LocalStore) -> None:
    values = _values(60, 80)
    array = xzarr3.create_array(local_store, "a/x", data=values, chunks=(5, 10), shards=(20, 40))
    for lazy in (
        from_zarr(array),
        from_zarr(array, chunks="units"),
        from_zarr(local_store, "a/x", chunks=17),
    ):
        np.testing.assert_array_equal(lazy.compute(), values)
        np.testing.assert_allclose(
            (lazy[::2] - lazy.mean(axis=0)).std().compute(), (values[::2] - values.mean(axis=0)).std()
        )
    where = client.run(os.getpid)
    tasks = [
        client.submit(lambda task: (os.getpid(), task()), task, pure=False) for task in array.chunk_tasks()
    ]
    results = client.gather(tasks)
    assert {process for process, _ in results} <= set(where.values())
    assert os.getpid() not in {process for process, _ in results}
    for task, (_, block) in zip(array.chunk_tasks(), results, strict=True):
        np.testing.assert_array_equal(block, values[task.selection])


def test_graph_arrives_as_one_layer(client: Client, local_store: LocalStore) -> None:
    """The chunks of a large array do not travel one by one."""
    array = xzarr3.create_array(local_store, shape=(1000, 1000), chunks=1, dtype="f4", fill_value=2)
    whole = from_zarr(array, chunks="units")
    assert len(cloudpickle.dumps(whole.dask)) < 100_000
    assert whole[10:20, 10:20].sum().compute() == 200


@pytest.mark.parametrize("layout", [{}, {"shards": (20, 40)}], ids=["chunks", "shards"])
def test_storing(client: Client, layout: dict[str, Any], local_store: LocalStore) -> None:
    values = _values(60, 80)
    target = xzarr3.create_array(local_store, shape=(60, 80), chunks=(10, 20), dtype="f8", **layout)
    source = da.from_array(values, chunks=(20, 40))
    store((source + 1) * 2, target)
    np.testing.assert_array_equal(target[...], (values + 1) * 2)
    delayed = store(source.rechunk((15, 80)).rechunk((20, 40)), target, compute=False)
    client.compute(delayed).result(timeout=120)
    np.testing.assert_array_equal(target[...], values)
    store(from_zarr(target, chunks=(20, 80)) + 1, target)
    np.testing.assert_array_equal(xzarr3.open_array(local_store)[...], values + 1)


def test_memory_stores_can_be_read_but_not_written_elsewhere(client: Client) -> None:
    memory = MemoryStore()
    array = xzarr3.create_array(memory, data=_values(20, 20), chunks=10)
    np.testing.assert_array_equal(from_zarr(array).compute(), _values(20, 20))
    before = contents(memory)
    with pytest.raises(ReadOnlyError):
        store(da.ones((20, 20), chunks=10), array)
    with pytest.raises(ReadOnlyError):
        client.submit(array.resize, (5, 5), pure=False).result(timeout=120)
    assert contents(memory) == before
    store(da.ones((20, 20), chunks=10), array, scheduler="threads")
    assert (array[...] == 1).all()
    # The workers may still hold the copy of before.
    np.testing.assert_array_equal(from_zarr(array).compute(), np.ones((20, 20)))
    np.testing.assert_array_equal(client.submit(array.get, pure=False).result(timeout=120), np.ones((20, 20)))


def test_results_that_are_kept_are_not_taken_for_new_ones(client: Client, local_store: LocalStore) -> None:
    array = xzarr3.create_array(local_store, data=_values(20, 20), chunks=10)
    kept = client.persist(from_zarr(array))
    wait(kept)
    again = from_zarr(array)
    assert again.name == kept.name, "unchanged, it need not be read again"
    array[5, 5] = -1
    changed = from_zarr(array)
    assert changed.compute()[5, 5] == -1
    assert kept.compute()[5, 5] == _values(20, 20)[5, 5]


def test_errors_come_home(client: Client, local_store: LocalStore) -> None:
    array = xzarr3.create_array(local_store, data=_values(20, 20), chunks=10)
    local_store.set("c/1/0", b"broken")
    with pytest.raises(ChunkDecodeError, match="c/1/0") as caught:
        from_zarr(array, chunks="units").sum().compute()
    assert caught.value.key == "c/1/0"
    assert caught.value.chunk == (1, 0)


def _die_in_the_next_write(block: Values, marker: str) -> Values:
    """Once in all workers: the process is killed with half of a value written."""
    time.sleep(0.02)
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return block
    write = os.write

    def half(descriptor: int, data: memoryview) -> int:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith(os.path.dirname(marker)):
            return write(descriptor, data)
        write(descriptor, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    os.write = half
    return block


def test_worker_killed_while_it_writes(client: Client, tmp_path: Path) -> None:
    """Another one repeats the task; nothing of the half value is seen."""
    values = _values(80, 50)
    target = xzarr3.create_array(tmp_path / "store", data=np.zeros((80, 50)), chunks=(10, 10), fill_value=-1)
    source = da.from_array(values, chunks=(10, 10))
    marker = str(tmp_path / "dead")
    before = set(client.run(os.getpid).values())
    store(source.map_blocks(_die_in_the_next_write, marker, dtype="f8", meta=np.empty((0, 0))), target)
    assert os.path.exists(marker)
    np.testing.assert_array_equal(xzarr3.open_array(tmp_path / "store")[...], values)
    keys = {task.key for task in target.chunk_tasks()}
    assert set(contents(target.store)) == {"zarr.json", *keys}
    files = sum(len(names) for _, _, names in os.walk(tmp_path / "store"))
    assert files == len(keys) + 2, "one half value is left over, and is no key"
    client.wait_for_workers(2, timeout=120)
    assert set(client.run(os.getpid).values()) != before


def test_worker_killed_from_outside(client: Client, tmp_path: Path) -> None:
    client.wait_for_workers(2, timeout=120)
    values = _values(90, 60)
    target = xzarr3.create_array(
        tmp_path / "store", data=np.zeros((90, 60)), chunks=(5, 6), shards=(10, 30), write_empty_chunks=True
    )
    source = da.from_array(values, chunks=(10, 30)).map_blocks(_slow, dtype="f8", meta=np.empty((0, 0)))
    future = client.compute(store(source, target, compute=False))
    while not (target[...] != 0).any():
        time.sleep(0.01)
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    future.result(timeout=120)
    np.testing.assert_array_equal(target[...], values)
    assert set(contents(target.store)) == {"zarr.json", *(task.key for task in target.chunk_tasks())}


def _slow(block: Values) -> Values:
    time.sleep(0.05)
    return block


def test_arrays_travel_without_touching_the_store(local_store: LocalStore) -> None:
    """Unpickling is no reason for a request: thousands of tasks arrive at a worker."""
    array = xzarr3.create_array(
        local_store, "a/x", data=_values(20, 20), chunks=5, shards=10, attributes={"u": "K"}
    )
    group = xzarr3.open_group(local_store)
    data = pickle.dumps([array, group, list(array.chunk_tasks()), from_zarr(array)])

    def work() -> tuple[object, ...]:
        def refuse(*args: object, **kwargs: object) -> None:
            raise AssertionError(f"the store was touched: {args}")

        names = ["open", "stat", "lstat", "scandir", "listdir", "readlink", "mkdir", "access"]
        real = {name: getattr(os, name) for name in names}
        for name in names:
            setattr(os, name, refuse)
        try:
            twin, root, tasks, lazy = pickle.loads(data)
            seen = (
                twin.shape,
                twin.shards,
                dict(twin.attrs),
                twin.read_only,
                root.name,
                len(tasks),
                lazy.name,
            )
        finally:
            for name in names:
                setattr(os, name, real[name])
        np.testing.assert_array_equal(twin[...], _values(20, 20))
        np.testing.assert_array_equal(tasks[3](), _values(20, 20)[10:, 10:])
        return seen

    assert run_child(work).checked() == (
        (20, 20), (10, 10), {"u": "K"}, False, "/", 4, from_zarr(array).name,
    )  # fmt: skip
    assert len(pickle.dumps(array)) < 3000


# What is computed later


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
    if 5 in block and not marker.exists():
        if marker.name == "once":
            marker.touch()
        raise ZeroDivisionError("not yet")
    return block


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"append_dim": "x", "compute": False},
        {"mode": "w", "compute": "later"},
        {"group": "below", "compute": "later"},
    ],
    ids=["append", "w", "new"],
)
def test_nothing_is_left_of_a_delayed_write_that_fails(
    client: Client, tmp_path: Path, options: dict[str, Any], chunk: int
) -> None:
    path, marker = tmp_path / "store", tmp_path / "marker"
    first = xr.Dataset({"a": ("x", np.zeros(4))})
    xzarr3.to_zarr(first, path, encoding={"a": {"chunks": (2,)}})
    before = _marks(path)
    made = da.arange(8.0, chunks=chunk).map_blocks(partial(_fail_until, marker), dtype=float)
    later = xzarr3.to_zarr(xr.Dataset({"a": ("x", made)}), path, **options)
    future = client.compute(later)
    assert isinstance(future.exception(timeout=120), ZeroDivisionError)
    end = time.monotonic() + 120
    while _marks(path) != before:  # Although the future is still held.
        assert time.monotonic() < end, _marks(path)
        time.sleep(0.01)
    del future
    end = time.monotonic() + 120
    while client.run_on_scheduler(lambda dask_scheduler: later.key in dask_scheduler.tasks):  # And its error.
        assert time.monotonic() < end
        time.sleep(0.01)
    marker.touch()
    client.compute(later).result(timeout=120)
    found = xr.open_dataset(path, engine="xzarr3", group=options.get("group"))
    assert found["a"].values[-8:].tolist() == list(range(8))
    assert not [name for name in _marks(path) if name.startswith(".xzarr3")]


@pytest.mark.parametrize(
    "options", [{"append_dim": "x", "compute": False}, {"mode": "w", "compute": "later"}]
)
def test_a_delayed_write_is_not_given_up_while_its_tasks_are_tried_again(
    client: Client, tmp_path: Path, options: dict[str, Any]
) -> None:
    path, marker = tmp_path / "store", tmp_path / "once"
    xzarr3.to_zarr(xr.Dataset({"a": ("x", np.zeros(4))}), path, encoding={"a": {"chunks": (2,)}})
    made = da.arange(8.0, chunks=1).map_blocks(partial(_fail_until, marker), dtype=float)
    later = xzarr3.to_zarr(xr.Dataset({"a": ("x", made)}), path, **options)
    client.compute(later, retries=2).result(timeout=120)
    assert marker.exists()
    found = xr.open_dataset(path, engine="xzarr3")["a"].values.tolist()
    assert found == [0.0] * (4 if "append_dim" in options else 0) + list(range(8))
