"""A delayed write that is computed again while what it left before is still being cleaned up.

The tasks of a write run here one by one, each as a copy, as on a cluster: so every order of them is certain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import dask.array as da
import msgspec
import numpy as np
import pytest
import xarray as xr

import xzarr3
from xzarr3 import ConflictError, FsspecStore, LocalStore, NodeExistsError, Store, StoreError
from xzarr3.commit import replace_directory
from xzarr3.commit.renames import remove_at_once

NEW = [float(value) for value in range(1, 5)]
STORES: dict[str, Callable[[Path], Store]] = {
    "local": LocalStore,
    "fsspec": lambda path: FsspecStore(f"file://{path}"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "w": {"mode": "w", "compute": "later"},
    "new": {"group": "below", "compute": "later"},
    "w where nothing is": {"group": "below", "mode": "w", "compute": "later"},
    "append": {"append_dim": "x", "compute": False},
    "added": {"mode": "a", "compute": False},
}


REFUSED = (StoreError, ConflictError, NodeExistsError)


class Killed(BaseException):
    """What ends a worker."""


class Write:
    """A delayed write over old values, of four chunks."""

    def __init__(self, store: Store, options: dict[str, Any]) -> None:
        store.traits = msgspec.structs.replace(store.traits, conflict_deadline=0.5)
        self._kept: list[Any] = []
        self.store, self.group = store, options.get("group")
        self.name = "b" if options.get("mode") == "a" else "a"
        old = xr.Dataset({"a": ("x", np.full(4, -1.0))})
        xzarr3.to_zarr(old, store, encoding={"a": {"chunks": (1,)}})
        made = da.from_array(np.array(NEW), chunks=1)
        self.later = xzarr3.to_zarr(xr.Dataset({self.name: ("x", made)}), store, **options)
        self.before = self.values()
        self.after = [*(self.before or []), *NEW] if "append_dim" in options else NEW
        found = self.later.__dask_optimize__(self.later.__dask_graph__(), [self.later.key])
        self._tasks = dict(found) if isinstance(found, dict) else found.to_dict()
        (self.begin,) = (key for key in self._tasks if str(key).startswith("begin-zarr"))
        (blocks,) = (key for key in self._tasks[self.later.key].dependencies if key.startswith("store-zarr"))
        self.chunks = sorted(key for key in self._tasks[blocks].dependencies if isinstance(key, tuple))
        assert len(self.chunks) == 4

    def values(self) -> list[float] | None:
        """What a reader finds; None if nothing is there."""
        try:
            with xr.open_dataset(self.store, engine="xzarr3", group=self.group) as found:
                return found[self.name].values.tolist() if self.name in found else None
        except FileNotFoundError:
            return None

    def run(self, key: Any, results: dict[Any, Any], *, again: bool = False) -> None:
        """Run a task, and what it needs, unless that is done."""
        if key in results and not again:
            return
        task = self._tasks[key]
        for needed in task.dependencies:
            self.run(needed, results)
        copy = cloudpickle.loads(cloudpickle.dumps(task))
        result = copy({each: results[each] for each in task.dependencies})
        results[key] = cloudpickle.loads(cloudpickle.dumps(result))
        self._kept += [copy, result, results[key]]  # Other processes have theirs as long as they live.

    def begun(self, written: int = 0) -> dict[Any, Any]:
        """The results of an attempt that has begun, and written so many chunks."""
        results: dict[Any, Any] = {}
        self.run(self.begin, results)
        for key in self.chunks[:written]:
            self.run(key, results)
        return results

    def cleanup(self, results: dict[Any, Any]) -> Callable[[], None]:
        """What cleans up after an attempt, late, on another worker."""
        begun, write = cloudpickle.loads(
            cloudpickle.dumps([results[self.begin], self._tasks[self.begin.replace("begin", "plan")]()])
        )
        self._kept += [begun, write]
        return lambda: begun.abandon(ZeroDivisionError(), write)

    def end(self, results: dict[Any, Any]) -> bool:
        """End an attempt; whether it got there. Nothing but all old or all new values is right."""
        try:
            self.run(self.later.key, results)
        except REFUSED:
            assert self.values() == self.before
            return False
        assert self.values() == self.after
        return True

    def erase_after(self, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all of something happen right before the first value is erased."""
        acts = [act]

        def erase(real: Any, *args: Any) -> None:
            if acts:
                acts.pop()()
            real(*args)

        for kind in (FsspecStore, LocalStore):
            real = kind.erase_values
            monkeypatch.setattr(kind, "erase_values", lambda *args, real=real: erase(real, *args))


@pytest.fixture(params=[(store, kind) for store in STORES for kind in OPTIONS], ids="-".join)  # type: ignore[arg-type]
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    store, kind = request.param
    return Write(STORES[store](tmp_path / "store"), OPTIONS[kind])


def test_tasks_one_by_one(write: Write) -> None:
    assert write.end(write.begun())


def test_begun_again_as_a_worker_was_lost(write: Write) -> None:
    results = write.begun(2)
    write.run(write.begin, results, again=True)
    assert write.end(results)


@pytest.mark.parametrize("written", [2, 4])
def test_cleaned_up_while_the_second_attempt_writes(write: Write, written: int) -> None:
    cleanup = write.cleanup(write.begun())
    second = write.begun(written)
    cleanup()
    write.end(second)


@pytest.mark.parametrize("write", [("local", kind) for kind in OPTIONS], indirect=True, ids="-".join)
def test_begun_again_as_soon_as_the_first_attempt_is_removed(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the late cleanup still does after its removal takes nothing from the second attempt."""
    second: dict[Any, Any] = {}

    def removed(*args: Any) -> None:
        remove_at_once(*args)
        second.update(write.begun())

    cleanup = write.cleanup(write.begun())
    monkeypatch.setattr(replace_directory, "remove_at_once", removed)
    cleanup()
    monkeypatch.undo()
    assert write.end(second or write.begun())


def test_cleaned_up_before_the_second_attempt_begins_again(write: Write) -> None:
    """As the worker was lost that began it."""
    cleanup = write.cleanup(write.begun())
    second = write.begun(2)
    cleanup()
    with suppress(*REFUSED):
        write.run(write.begin, second, again=True)
        for key in write.chunks:
            write.run(key, second)
        write.end(second)


def test_a_task_of_the_first_attempt_counts_for_the_second_one(write: Write) -> None:
    """A worker that is still at a task when it is asked for it again does not run it again."""
    first = write.begun()
    write.run(write.chunks[1], first)
    write.cleanup(first)()
    second = write.begun()
    second[write.chunks[1]] = first[write.chunks[1]]
    assert not write.end(second)


def test_the_second_attempt_goes_on_while_the_first_one_is_being_cleaned_up(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleanup = write.cleanup(write.begun())
    second = write.begun(4)
    write.erase_after(lambda: write.end(second), monkeypatch)
    cleanup()
    monkeypatch.undo()
    assert write.values() in (write.before, write.after)


def test_the_second_attempt_begins_while_the_first_one_is_being_cleaned_up(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(write.store, LocalStore) and len(write.after) > 4:
        pytest.skip("it waits for the thread that cleans up, which is this one here")

    def second() -> None:
        with suppress(*REFUSED):
            write.end(write.begun(4))

    cleanup = write.cleanup(write.begun(4))
    write.erase_after(second, monkeypatch)
    cleanup()
    monkeypatch.undo()
    assert write.values() in (write.before, write.after)


def test_ended_again_as_a_worker_was_lost_that_had_ended_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write.begun(4)

    def kill(*args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        for kind in ("replace_directory.Directories", "staged.Beside", "replace.InPlace"):
            patch.setattr(f"xzarr3.commit.{kind}.clean", kill)
        with suppress(Killed):
            write.run(write.later.key, results)
    if write.later.key not in results:
        with suppress(*REFUSED):
            write.run(write.later.key, results)
        assert write.values() in (write.before, write.after)
