"""Cleaning up after a failed write, whichever scheduler runs its graph.

``dask.compute(delayed)`` and ``client.compute(delayed)`` do not know what a write has begun. If a task fails,
the last task of the graph, which would end the write, never runs. So each task that the write depends on is
wrapped: if it fails, it cleans up and then raises the error again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dask._task_spec import GraphNode, Task, TaskRef
from dask.array.optimization import optimize
from dask.base import dont_optimize
from dask.context import globalmethod
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.utils import ensure_dict

from xzarr3.dask.ending import Gate, gates_of
from xzarr3.errors import StoreError


class Cleanup(Protocol):
    """Removes what a failed write has stored. It is pickled with each task, and may be called repeatedly."""

    def __call__(self, error: BaseException) -> None:
        """Clean up after ``error``; what could not be removed is added to it as a note."""

    def held(self, begun: Sequence[Any]) -> Callable[[BaseException], None] | None:
        """A cleanup that holds the results of other tasks that it needs; the scheduler may drop those.

        ``begun`` are the results of the tasks that begin writes, as the failed task got them. Returns None
        if the results that are needed are gone.
        """


def cleanups_of(graph: HighLevelGraph, name: str) -> list[Cleanup]:
    """The cleanups of a layer and of all layers that it depends on, directly or not."""
    found: list[Cleanup] = []
    left, seen = [name], {name}
    while left:
        name = left.pop()
        found += getattr(graph.layers[name], "cleanups", ())
        new = graph.dependencies[name] - seen
        seen |= new
        left += new
    return found


def clean_up(
    cleanups: Iterable[Callable[[BaseException], None]], error: BaseException, gates: Iterable[Gate] = ()
) -> None:
    """Close the gates, then clean up. Errors of a cleanup become notes of ``error``, which users see."""
    for gate in gates:
        gate.close()
    for cleanup in cleanups:
        try:
            cleanup(error)
        except Exception as another:  # noqa: BLE001 - told in a note
            error.add_note(f"not all could be removed that was written: {another}")


class Guard:
    """Cleans up when a task fails and is not retried.

    All tasks of one computation in one process share a guard.
    """

    def __init__(self, cleanups: Sequence[Cleanup], gates: Sequence[Gate]) -> None:
        self.cleanups, self._gates = list(cleanups), list(gates)
        self._first: BaseException | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Guard, (self.cleanups, self._gates)

    def failed(self, error: BaseException, begun: Sequence[Any] = ()) -> BaseException:
        """Clean up after an error; returns the error that the task raises.

        Local schedulers retry no task, so the cleanup runs at once. Tasks that still run then may fail
        because their values were removed. For such a StoreError the first error is returned.
        """
        key = _running()
        if key is not None:
            _failed_on_a_worker(key, self.cleanups, begun, error)
            return error
        with self._lock:  # A second task that fails raises its error only after the cleanup.
            if self._first is None:
                self._first = error
                clean_up(self.cleanups, error, self._gates)
            return self._first if isinstance(error, StoreError) else error


class Guarded:
    """The function of a task, with guards that clean up if it fails.

    Its first arguments are the results of the tasks that begin the write. So no guarded task runs, and none
    can fail, before it is known what to clean up.
    """

    def __init__(self, function: Callable[..., Any], guards: Sequence[Guard], begun: int) -> None:
        self._function, self._guards, self._begun = function, list(guards), begun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._function(*args[self._begun :], **kwargs)
        except BaseException as error:
            told = error
            for guard in self._guards:
                told = guard.failed(told, args[: self._begun])
            if told is error:
                raise
            raise told from None


def _running() -> Any:
    """The key of the task that a distributed worker runs in this thread; None outside a worker."""
    worker: Any = sys.modules.get("distributed.worker")
    return None if worker is None else getattr(worker.thread_state, "key", None)


def _failed_on_a_worker(
    key: Any, cleanups: Sequence[Cleanup], begun: Sequence[Any], error: BaseException
) -> None:
    """Clean up once the scheduler knows of the error, unless the scheduler will retry the task.

    An earlier cleanup would make tasks on other workers fail first, and the user would learn that values are
    gone but not why. The cleanup runs once in the whole cluster. Otherwise a task that failed because of the
    cleanup could start another one, while the same write is already computed again.
    """
    from distributed import get_client

    try:
        client: Any = get_client()
        if client.run_on_scheduler(_asking(key))[1]:
            return
        with client.as_current():
            held = [each for cleanup in cleanups if (each := cleanup.held(begun)) is not None]
    except (ValueError, OSError, TypeError, AttributeError) as another:  # The scheduler refuses functions.
        error.add_note(f"not all could be removed that was written: {another}")
        return

    if len(held) < len(cleanups):
        return
    names = {getattr(cleanup, "begin", None) for cleanup in cleanups}
    attempt = " ".join(each.attempt for each in begun if each.key in names)

    def end() -> None:
        is_first = True
        with contextlib.suppress(ValueError, OSError, TypeError, AttributeError):  # The scheduler is gone.
            while client.run_on_scheduler(_asking(key))[0] == "processing":
                time.sleep(_PAUSE)
            is_first = not attempt or client.run_on_scheduler(_claiming(attempt))
        if is_first:
            clean_up(held, error)

    threading.Thread(target=end, name="xzarr3-cleanup", daemon=True).start()


def _asking(key: Any) -> Callable[..., tuple[str, int]]:
    """A function that asks the scheduler for the state and the retries of a task.

    It is a closure, so it is pickled by value, and the scheduler need not have this package.
    """

    def ask(dask_scheduler: Any) -> tuple[str, int]:
        task = dask_scheduler.tasks.get(key)
        return ("forgotten", 0) if task is None else (task.state, task.retries)

    return ask


def _claiming(attempt: str) -> Callable[..., bool]:
    """A function that tells, on the scheduler, whether this is the first claim to clean up an attempt."""

    def claim(dask_scheduler: Any) -> bool:
        claimed = dask_scheduler.__dict__.setdefault("_xzarr3_given_up", set())
        is_first = attempt not in claimed
        claimed.add(attempt)
        return is_first

    return claim


def fetched(keys: Sequence[str]) -> list[Any] | None:
    """The results of tasks of a cluster; None without a client, or if the results are gone."""
    module: Any = sys.modules.get("distributed")
    client = None if module is None else module.Client.current(allow_global=False)
    if client is None:
        return None
    # Not through a Future: for a key that this client did not submit it may wait for ever.
    found = client.sync(client.scheduler.gather, keys=list(keys), callback_timeout=_PATIENCE)
    return [found["data"][key] for key in keys] if found["status"] == "OK" else None


_PATIENCE = 60.0  # Seconds to wait for results from another worker.
_PAUSE = 0.02  # Seconds between two questions to the scheduler.


def optimize_guarded(graph: Any, keys: Any, **kwargs: Any) -> Any:
    """Optimize a graph as dask does for arrays, then guard each task that a write depends on."""
    outputs = [*flatten([keys] if isinstance(keys, str) else keys)]
    guards = {
        key: Guard(cleanups_of(graph, key), gates_of(graph.layers))
        for key in outputs
        if isinstance(graph, HighLevelGraph) and key in graph.layers
    }
    return _guarded(ensure_dict(optimize(graph, keys, **kwargs)), guards)


def _guarded(tasks: Mapping[Any, Any], guards: Mapping[Any, Guard]) -> dict[Any, Any]:
    """The tasks, with those wrapped in their guards that an output in ``guards`` depends on."""
    found = dict(tasks)
    wanted: dict[Any, list[Guard]] = {}
    begins: dict[Any, list[str]] = {}
    for output, guard in guards.items():
        names: list[Any] = [getattr(each, "begin", None) for each in guard.cleanups]
        first = [name for name in names if name in tasks]
        left, seen = [output], {output}
        while left and guard.cleanups:
            key = left.pop()
            wanted.setdefault(key, []).append(guard)
            begins.setdefault(key, []).extend(first)
            task = tasks.get(key)
            new = (task.dependencies if isinstance(task, GraphNode) else set()) - seen
            seen |= new
            left += new
    for key, guarding in wanted.items():
        task = found.get(key)
        if type(task) is Task and not task.is_coro:  # Not subclasses: dask recognizes those by their type.
            after = [] if key in begins[key] else [TaskRef(name) for name in begins[key]]
            function = Guarded(task.func, guarding, len(after))
            found[key] = Task(
                task.key, function, *after, *task.args, _data_producer=task.data_producer, **task.kwargs
            )
    return found


class Writing(Delayed):
    """A Delayed that is optimized as dask arrays are, so that making a block and writing it are fused.

    A failed write is cleaned up with any scheduler.
    """

    __slots__ = ()

    def __init__(self, key: str, graph: HighLevelGraph) -> None:
        super().__init__(key, graph, layer=key)  # type: ignore[no-untyped-call]

    _as_arrays = globalmethod(optimize, key="array_optimize", falsey=dont_optimize)
    _guarding = globalmethod(optimize_guarded, key="array_optimize", falsey=dont_optimize)

    @property
    def __dask_optimize__(self) -> Any:
        # Without cleanups, dask's own function: a write and an array computed together then share blocks.
        return self._guarding if self._cleanups() else self._as_arrays

    def _cleanups(self) -> list[Cleanup]:
        return cleanups_of(self.dask, self.key)

    def __dask_graph__(self) -> Any:
        """The graph. Dask asks for it just before it runs it, so gates that a failure has closed reopen."""
        for gate in gates_of(self.dask.layers):
            gate.open()
        return self.dask

    def compute(self, **kwargs: Any) -> Any:
        """Write; after an error or an interrupt, what the write has begun is cleaned up.

        No task of this process stores anything after the error is raised.
        """
        try:
            return super().compute(**kwargs)  # type: ignore[no-untyped-call]
        except BaseException as error:
            clean_up(self._cleanups(), error, gates_of(self.dask.layers))
            raise
