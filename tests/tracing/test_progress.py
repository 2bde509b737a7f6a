"""Progress of long work: a bar or calls for copies, dask's own bars for writes."""

import asyncio
import io
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
from _slow import slow
from _things import refused

import xzarr3
from xzarr3 import LocalStore, MemoryStore
from xzarr3.cli import main
from xzarr3.dask.write import compute_shown
from xzarr3.progress import Progress, check_asked


class Calls(list[tuple[int, int]]):
    def __call__(self, done: int, total: int) -> None:
        assert type(done) is int
        self.append((done, total))


def test_calls_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: next(clock) * 0.03)
    calls = Calls()
    with Progress(calls, 1000, "copying") as progress:
        for _ in range(1000):
            progress.advance(1)
    assert (calls[0], calls[-1]) == ((0, 1000), (1000, 1000))
    assert len(calls) < 400


def test_bar_stays_where_the_work_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with Progress(True, 100, "copying \x1b", "chunks") as progress:
            progress.advance(25)
            raise ZeroDivisionError

    refused(ZeroDivisionError, None, work)
    assert "copying \\x1b:  25%" in capsys.readouterr().err.split("\r")[-1]


def test_function_that_raises_ends_the_work() -> None:
    with pytest.raises(ZeroDivisionError), Progress(lambda done, total: 1 // done, 1, "copying"):
        pass


@pytest.mark.parametrize("progress", [None, "yes", 1, 0])
def test_what_is_no_progress_is_refused(progress: Any) -> None:
    target = xzarr3.zeros(2)
    data = xarray.Dataset({"x": ("t", da.ones(2))})
    refused(
        TypeError, "progress=", lambda: check_asked(progress),
        lambda: xzarr3.store(da.ones(2), target, progress=progress),
        lambda: xzarr3.to_zarr(data, MemoryStore(), progress=progress),
    )  # fmt: skip


def test_copies(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xzarr3.progress._INTERVAL", 0)
    store = MemoryStore()
    group = xzarr3.create_group(store)
    group.create_array("a", data=np.arange(10.0), chunks=4)
    group.create_array("b", data=np.arange(6, dtype="i2"), chunks=2)
    for options in ({}, {"compressors": None}, {"threads": 3}, {"zarr_format": 2}):
        calls = Calls()
        xzarr3.copy(store, MemoryStore(), progress=calls, **options)
        said = [done for done, _ in calls]
        assert (said[0], said[-1], sorted(np.diff(said))) == (0, 92, [4, 4, 4, 16, 32, 32])
    xzarr3.copy(store, MemoryStore(), progress=True)
    assert "copying / to <MemoryStore" in (err := capsys.readouterr().err)
    assert "100%" in err.split("\r")[-1]
    store.set("a/c/1", b"broken")
    copy = {"compressors": None, "progress": True}
    refused(xzarr3.ChunkDecodeError, None, lambda: xzarr3.copy(store, MemoryStore(), **copy))
    assert "100%" not in capsys.readouterr().err.split("\r")[-1]


def test_copies_of_what_is_absent() -> None:
    store, calls = MemoryStore(), Calls()
    array = xzarr3.create_array(store, "a", shape=10**6, chunks=100, dtype="f8")
    array[:250] = 1
    xzarr3.copy(store, MemoryStore(), progress=calls)
    assert (calls[0], calls[-1]) == ((0, 8 * 10**6), (8 * 10**6, 8 * 10**6))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "options", "expected"), [
    (_Terminal, [], True), (_Terminal, ["--quiet"], False), (io.StringIO, [], False),
])  # fmt: skip
def test_command_shows_it_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Any, options: list[str], expected: bool
) -> None:
    xzarr3.create_array(LocalStore(tmp_path / "a.zarr"), data=np.arange(10))
    said = stream()
    monkeypatch.setattr(sys, "stderr", said)
    assert main(["copy", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr"), *options]) == 0
    assert ("100%" in said.getvalue()) is expected


def _sources(*shape: int) -> Any:
    return da.from_array(np.random.default_rng(sum(shape)).random(shape), chunks=(30, 40))


@pytest.mark.parametrize("scheduler", ["sync", "threads", slow("processes"), None])
def test_store_shows_the_bar_of_dask(scheduler: str | None, local_store: LocalStore, capsys: Any) -> None:
    source = _sources(100, 100)
    target = xzarr3.create_array(local_store, shape=(100, 100), chunks=(25, 25), dtype="f8")
    options = {} if scheduler is None else {"scheduler": scheduler}
    xzarr3.store(source, target, progress=True, **options)
    assert "100% Completed" in capsys.readouterr().out
    np.testing.assert_array_equal(target[:], source.compute())
    xzarr3.store(source, target, **options)
    assert capsys.readouterr() == ("", "")


def test_to_zarr_shows_the_bar_of_dask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = xarray.Dataset({"a": (("x", "y"), _sources(100, 100)), "b": ("x", np.arange(100))})
    xzarr3.to_zarr(dataset, tmp_path / "a.zarr", progress=True)
    assert "100% Completed" in capsys.readouterr().out
    xarray.testing.assert_identical(xzarr3.open_dataset(tmp_path / "a.zarr").load(), dataset.load())


def _failing(block: Any) -> Any:
    raise ZeroDivisionError("a block")


@pytest.mark.slow
def test_a_cluster_shows_its_own_bar(workers: Any, local_store: LocalStore, capsys: Any) -> None:
    source = _sources(200, 200)
    target = xzarr3.create_array(local_store, shape=(200, 200), chunks=(35, 35), dtype="f8")
    xzarr3.store(source, target, progress=True, scheduler=workers)
    out = capsys.readouterr().out
    assert "100%" in out or "Completed" in out
    np.testing.assert_array_equal(target[:], source.compute(scheduler="sync"))
    failing, options = source.map_blocks(_failing, dtype="f8"), {"progress": True, "scheduler": workers}
    refused(ZeroDivisionError, "a block", lambda: xzarr3.store(failing, target, **options))
    workers.sync(asyncio.sleep, 0)  # futures are released in the client's own thread
    assert workers.futures == {}
    summed = workers.submit(lambda: float(compute_shown(dask.delayed(sum)([1, 9]), True)), pure=False)
    assert summed.result(timeout=60) == 10, "within a task no bar waits"
