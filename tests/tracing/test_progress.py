"""Progress of long work: bars and calls, on every scheduler, with errors and interruptions."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
from _unprivileged import run_child
from dask.delayed import Delayed, delayed

import xzarr3
from xzarr3 import LocalStore, MemoryStore
from xzarr3.cli import main
from xzarr3.progress import Progress, _Followed, check_asked, shown

ONE, OTHER = "write-zarr-one-0a", "write-zarr-other-1b"
SIZES = {ONE: 800, OTHER: 2000}


def _work(at: int) -> None:
    """Takes a moment."""
    time.sleep(0.02)


def _fail(at: int) -> None:
    time.sleep(0.02)
    if at == 5:
        raise ZeroDivisionError("the fifth")


def _interrupt(at: int) -> None:
    if at == 5:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


def _end(*done: object) -> str:
    return "written"


def _writes(work: Any = _work) -> Delayed:
    """Ten tasks that write one array, ten of another one, and as many that write nothing."""
    before = [delayed(_work)(at, dask_key_name=("read-zarr-x-2c", at)) for at in range(3)]
    keys = [(name, at) for name in SIZES for at in range(10)]
    end: Delayed = delayed(_end)(
        before, [delayed(work)(at, dask_key_name=(name, at)) for name, at in keys], dask_key_name="end"
    )
    return end


class Calls:
    """What a function was called with."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        assert type(done) is int
        self.said.append((done, total))

    def check(self) -> None:
        """It begins with nothing and ends with everything, and grows."""
        assert self.said[0] == (0, 2800)
        assert self.said[-1] == (2800, 2800)
        assert len(self.said) == len(set(self.said))
        assert sorted(self.said) == self.said
        assert {done % 40 for done, _ in self.said} == {0}, "each task counts by its bytes"


@pytest.fixture
def _each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xzarr3.progress._INTERVAL", 0)


@pytest.mark.usefixtures("_each_call")
@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes", None])
@pytest.mark.parametrize("said", ["argument", pytest.param("settings", marks=pytest.mark.slow)])
def test_local_schedulers(scheduler: str | None, said: str) -> None:
    calls = Calls()
    options: Any = {} if scheduler is None else {"scheduler": scheduler, "num_workers": 2}
    settings, options = (options, {}) if said == "settings" else ({}, options)
    with dask.config.set(settings):
        assert shown(_writes(), SIZES, "writing", calls, **options) == "written"
    calls.check()
    assert len(calls.said) == 21


def test_calls_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress(lambda done, _: said.append(done), 10_000, "x") as progress:
        for _ in range(10_000):
            now += 0.001
            progress.advance(1)
    assert (said[0], said[-1]) == (0, 10_000)
    assert 80 < len(said) < 110, "ten a second"


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_bar(capsys: pytest.CaptureFixture[str], scheduler: str) -> None:
    before = threading.active_count()
    shown(_writes(), SIZES, "writing 2 variables to <a store>", scheduler=scheduler, num_workers=1)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.split("\r")
    assert lines[-1].startswith("writing 2 variables to <a store>: 100%|")
    assert "2.73 kiB of 2.73 kiB [" in lines[-1]
    assert "B/s]" in lines[-1]
    assert lines[-1].endswith("\n"), "closed"
    assert any("<" in line and "%" in line for line in lines), "says how long it will take"
    assert threading.active_count() <= before + 1, "dask keeps its own thread, we start none"
    assert "TMonitor" not in {type(thread).__name__ for thread in threading.enumerate()}


def test_nothing_is_shown_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(_writes(), SIZES, "writing", False, scheduler="sync") == "written"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_errors(capsys: pytest.CaptureFixture[str], scheduler: str) -> None:
    with pytest.raises(ZeroDivisionError, match="the fifth"):
        shown(_writes(_fail), SIZES, "writing", scheduler=scheduler, num_workers=1)
    last = capsys.readouterr().err.split("\r")[-1]
    assert "failed: ZeroDivisionError" in last
    assert "100%" not in last
    assert last.endswith("\n")
    calls = Calls()
    with pytest.raises(ZeroDivisionError):
        shown(_writes(_fail), SIZES, "writing", calls, scheduler=scheduler)
    assert calls.said[-1][0] < 2800


def test_interruption() -> None:
    def interrupted() -> tuple[str, str, list[str]]:
        sys.stderr = said = io.StringIO()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        before = {thread.name for thread in threading.enumerate()}
        try:
            shown(_writes(_interrupt), SIZES, "writing", scheduler="sync")
        except KeyboardInterrupt as error:
            ended = type(error).__name__
        after = [thread.name for thread in threading.enumerate() if thread.name not in before]
        return ended, said.getvalue(), after

    ended, said, threads = run_child(interrupted).checked()
    assert ended == "KeyboardInterrupt"
    assert said.endswith("interrupted]\n")
    assert threads == []


@pytest.mark.usefixtures("_each_call")
def test_function_that_raises_ends_the_work() -> None:
    def enough(done: int, total: int) -> None:
        if done:
            raise InterruptedError("enough")

    ran: list[int] = []
    with pytest.raises(InterruptedError, match="enough"):
        shown(_writes(ran.append), SIZES, "writing", enough, scheduler="sync")
    assert len(ran) < 20


def test_what_else_runs_does_not_count() -> None:
    """Callbacks of dask hear of all computations of the process."""
    calls = Calls()

    def work(at: int) -> None:
        delayed(_work)(at, dask_key_name=("write-zarr-other-9", at)).compute(scheduler="sync")

    shown(_writes(work), SIZES, "writing", calls, scheduler="sync")
    calls.check()


@pytest.mark.parametrize("progress", [None, "yes", 1, 0])
def test_what_is_no_progress_is_refused(progress: Any) -> None:
    with pytest.raises(TypeError, match="accepted: True, False, or a function"):
        check_asked(progress)
    with pytest.raises(TypeError, match="progress="):
        shown(_writes(), SIZES, "writing", progress)
    with pytest.raises(TypeError, match="progress="):
        xzarr3.copy(MemoryStore(), MemoryStore(), progress=progress)


def test_shares_of_tasks_are_not_cut_to_less_than_they_are() -> None:
    calls = Calls()
    with Progress(calls, 800, "writing") as progress:
        progress.advance(800 * (1 - 9 / 10))  # 79.99999999999999
        progress._show(now=True)
    assert calls.said == [(0, 800), (80, 800), (800, 800)]


def test_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(True, 0, "nothing"):
        pass
    assert capsys.readouterr().err.endswith("\n")


# On a cluster


@pytest.fixture
def client(workers: Any) -> Any:
    """The cluster, which is not the current client: tests pass it."""
    return workers


@pytest.mark.slow
def test_cluster(client: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    calls, begun, heard = Calls(), tmp_path / "begun", tmp_path / "heard"
    begun.mkdir()

    def work(at: int) -> None:
        """The tenth task waits until somebody has heard of those before."""
        number = len(os.listdir(begun))
        (begun / f"{number}").touch()
        end = time.monotonic() + 120
        while number == 10 and not heard.exists() and time.monotonic() < end:
            time.sleep(0.01)

    def hear(done: int, total: int) -> None:
        calls(done, total)
        if 0 < done < total:
            heard.touch()

    assert shown(_writes(work), SIZES, "writing", hear, scheduler=client) == "written"
    calls.check()
    assert len(calls.said) > 2
    _is_forgotten(client)  # The tasks have the same names each time, and would not be run again.
    with client.as_current():
        shown(_writes(), SIZES, "writing")
    assert "100%" in capsys.readouterr().err.split("\r")[-1]
    _is_forgotten(client)
    with pytest.raises(ZeroDivisionError, match="the fifth"):
        shown(_writes(_fail), SIZES, "writing", scheduler=client)
    assert "failed: ZeroDivisionError" in capsys.readouterr().err.split("\r")[-1]
    _is_forgotten(client)


def _is_forgotten(client: Any) -> None:
    """No result is kept."""
    end = time.monotonic() + 120
    while client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.tasks]):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert client.futures == {}


@pytest.mark.slow
@pytest.mark.usefixtures("_each_call")
def test_progress_of_a_dataset_never_runs_backwards_on_a_cluster(client: Any, tmp_path: Path) -> None:
    names, said = ("t2m", "u10", "sst"), []
    values = {name: ("x", da.zeros(200, chunks=1).map_blocks(_late, dtype=float)) for name in names}
    with client.as_current():
        xzarr3.to_zarr(
            xarray.Dataset(values),  # type: ignore[arg-type]
            tmp_path,
            encoding={name: {"chunks": (1,)} for name in names},
            progress=lambda done, _: said.append(done),
        )
    assert said == sorted(said)
    assert said[-1] == 3 * 200 * 8


def test_what_a_scheduler_has_forgotten_or_does_again_stays_counted() -> None:
    answers: list[dict[str, float]] = [{ONE: 0.5}, {ONE: 0.25, OTHER: 0.5}, {OTHER: 0.25}, {ONE: 0.0}]

    class Client:
        def run_on_scheduler(self, function: object) -> dict[str, float]:
            return answers.pop(0)

    said: list[int] = []
    with Progress(lambda done, _: said.append(done), sum(SIZES.values()), "writing") as progress:
        progress._when = -1e9
        followed = _Followed(progress, SIZES, Client())
        while answers:
            assert followed._ask()
            progress._when = -1e9
    assert said == [0, 400, 1400, 1800, 2800]


def test_cluster_whose_scheduler_runs_nothing(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise ValueError("pickling is not allowed")

    monkeypatch.setattr(client, "run_on_scheduler", refuse)
    calls = Calls()
    assert shown(_writes(), SIZES, "writing", calls, scheduler=client) == "written"
    assert calls.said == [(0, 2800), (2800, 2800)]


def test_within_a_task_of_a_cluster(client: Any) -> None:
    def within() -> Any:
        from distributed import worker_client

        with worker_client():
            return shown(_writes(), SIZES, "writing", lambda done, total: None)

    assert client.submit(within).result(timeout=120) == "written"


@pytest.mark.slow
def test_interruption_on_a_cluster(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(at: int, caller: int = os.getpid()) -> None:
        if at == 5:
            os.kill(caller, signal.SIGINT)
            time.sleep(1)  # The tasks that wait need not be run.

    with pytest.raises(KeyboardInterrupt):
        shown(_writes(interrupt), SIZES, "writing", scheduler=client)
    assert "interrupted" in capsys.readouterr().err.split("\r")[-1]
    _is_forgotten(client)


# Copies


@pytest.mark.usefixtures("_each_call")
def test_copies(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    group = xzarr3.create_group(store)
    group.create_array("a", data=np.arange(10.0), chunks=4)
    group.create_array("b", data=np.arange(6, dtype="i2"), chunks=2)
    for options in ({}, {"compressors": None}, {"threads": 3}, {"zarr_format": 2}):
        calls = Calls()
        xzarr3.copy(store, MemoryStore(), progress=calls, **options)
        said = [done for done, _ in calls.said]
        assert (said[0], said[-1]) == (0, 92)
        assert sorted(np.diff(said)) == [4, 4, 4, 16, 32, 32]
    xzarr3.copy(store, MemoryStore(), progress=True)
    assert "copying / to <MemoryStore" in (err := capsys.readouterr().err)
    assert "100%" in err.split("\r")[-1]


def test_copies_of_what_is_absent() -> None:
    store = MemoryStore()
    array = xzarr3.create_array(store, "a", shape=10**6, chunks=100, dtype="f8")
    array[:250] = 1
    said: list[int] = []
    xzarr3.copy(store, MemoryStore(), progress=lambda done, _: said.append(done))
    assert (said[0], said[-1]) == (0, 8 * 10**6)


def test_copies_that_fail(capsys: pytest.CaptureFixture[str]) -> None:
    store = xzarr3.create_array(MemoryStore(), "a", data=np.arange(10.0), chunks=1).store
    store.set("a/c/7", b"broken")
    with pytest.raises(xzarr3.ChunkDecodeError):
        xzarr3.copy(store, MemoryStore(), compressors=None, progress=True)
    assert "failed: ChunkDecodeError" in capsys.readouterr().err.split("\r")[-1]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "options", "expected"), [
    (_Terminal, [], True),
    (_Terminal, ["--quiet"], False),
    (io.StringIO, [], False),
])  # fmt: skip
def test_command_shows_it_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Any, options: list[str], expected: bool
) -> None:
    xzarr3.create_array(LocalStore(tmp_path / "a.zarr"), data=np.arange(10))
    said = stream()
    monkeypatch.setattr(sys, "stderr", said)
    assert main(["copy", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr"), *options]) == 0
    assert ("100%" in said.getvalue()) is expected


# Writes


def _sources(*shape: int) -> Any:
    return da.from_array(np.random.default_rng(sum(shape)).random(shape), chunks=(30, 40))


def test_store(local_store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks that fit and blocks that do not, into two arrays."""
    source = _sources(100, 100)
    fits = xzarr3.create_array(local_store, "fits", shape=(100, 100), chunks=(30, 40), dtype="f8")
    other = xzarr3.create_array(local_store, "other", shape=(100, 100), chunks=(25, 25), dtype="f8")
    for targets in ([fits], [other], [fits, other]):
        for scheduler in ("sync", "threads"):
            calls = Calls()
            xzarr3.store([source] * len(targets), targets, progress=calls, scheduler=scheduler)
            total = 80_000 * len(targets)
            assert (calls.said[0], calls.said[-1]) == ((0, total), (total, total))
    np.testing.assert_array_equal(fits[:], source.compute())
    np.testing.assert_array_equal(other[:], source.compute())
    assert capsys.readouterr().err == ""
    xzarr3.store(source, other, progress=True)
    assert f"writing /other to {local_store}: 100%" in capsys.readouterr().err.split("\r")[-1]
    with pytest.raises(TypeError, match="progress="):
        xzarr3.store(source, other, progress="yes")  # type: ignore[call-overload]


@pytest.mark.usefixtures("_each_call")
def test_store_tells_of_each_task(local_store: LocalStore) -> None:
    target = xzarr3.create_array(local_store, shape=(90, 80), chunks=(45, 20), dtype="f8")
    calls = Calls()
    xzarr3.store(_sources(90, 80), target, progress=calls, scheduler="sync")
    steps = np.diff([done for done, _ in calls.said])
    assert len(steps) > 2
    assert set(steps.tolist()) == {90 * 80 * 8 // len(steps)}


def test_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = xarray.Dataset({"a": (("x", "y"), _sources(100, 100)), "b": ("x", np.arange(100))})
    xzarr3.to_zarr(dataset, tmp_path / "a.zarr", progress=True)
    last = capsys.readouterr().err.split("\r")[-1]
    assert "writing " in last
    assert "100%" in last
    calls = Calls()
    xzarr3.to_zarr(dataset, tmp_path / "a.zarr", mode="w", progress=calls)
    assert calls.said[-1][0] == calls.said[-1][1] >= 80_000
    xarray.testing.assert_identical(xzarr3.open_dataset(tmp_path / "a.zarr").load(), dataset.load())


@pytest.mark.slow
def test_store_on_a_cluster(client: Any, local_store: LocalStore) -> None:
    source = _sources(200, 200)
    target = xzarr3.create_array(local_store, shape=(200, 200), chunks=(35, 35), dtype="f8")
    calls = Calls()
    xzarr3.store(source.map_blocks(_late, dtype="f8"), target, progress=calls, scheduler=client)
    assert (calls.said[0], calls.said[-1]) == ((0, 320_000), (320_000, 320_000))
    assert len(calls.said) > 3
    np.testing.assert_array_equal(target[:], source.compute(scheduler="sync"))
    _is_forgotten(client)


def _late(block: Any) -> Any:
    time.sleep(0.03)
    return block
