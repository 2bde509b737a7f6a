"""What cleans up after a write that fails, whoever runs its graph.

``dask.compute(delayed)`` and ``client.compute(delayed)`` know nothing of what a write has begun, and a task
that fails never reaches the one that would end it. So every task that such a write depends on cleans up when
it fails, before it raises the error on.
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
    """Removes what a write has left; it is pickled with each task, and may be called several times."""

    def __call__(self, error: BaseException) -> None:
        """Clean up after an error, which gets a note of what could not be done."""

    def held(self, begun: Sequence[Any]) -> Callable[[BaseException], None] | None:
        """The same, with all that it needs of the results of other tasks, which the scheduler may drop.

        ``begun`` is what has begun, as the task got it. None if that is known to be over.
        """


def cleanups_of(graph: HighLevelGraph, name: str) -> list[Cleanup]:
    """What cleans up after the layers that a layer depends on, and after itself."""
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
    """Clean up after an error, which is what the user is to hear of, once no task passes the gates."""
    for gate in gates:
        gate.close()
    for cleanup in cleanups:
        try:
            cleanup(error)
        except Exception as another:  # noqa: BLE001 - told in a note
            error.add_note(f"not all could be removed that was written: {another}")


class Guard:
    """Cleans up when a task fails for good. Those of one computation in one process share it."""

    def __init__(self, cleanups: Sequence[Cleanup], gates: Sequence[Gate]) -> None:
        self.cleanups, self._gates = list(cleanups), list(gates)
        self._first: BaseException | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Guard, (self.cleanups, self._gates)

    def failed(self, error: BaseException, begun: Sequence[Any] = ()) -> BaseException:
        """Clean up after an error; returns the one that the user is to hear of.

        Local schedulers try nothing again, and what is left is gone when they raise. Tasks that run at that
        time find that it is, which is no news.
        """
        key = _running()
        if key is not None:
            _failed_on_a_worker(key, self.cleanups, begun, error)
            return error
        with self._lock:  # Whoever comes second raises nothing before all is clean.
            if self._first is None:
                self._first = error
                clean_up(self.cleanups, error, self._gates)
            return self._first if isinstance(error, StoreError) else error


class Guarded:
    """A function of a task that is guarded.

    It gets first what has begun: nothing may fail before it is known what is to be cleaned up.
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
    """The key of the task that a worker of a cluster runs in this thread; None if there is none."""
    worker: Any = sys.modules.get("distributed.worker")
    return None if worker is None else getattr(worker.thread_state, "key", None)


def _failed_on_a_worker(
    key: Any, cleanups: Sequence[Cleanup], begun: Sequence[Any], error: BaseException
) -> None:
    """Clean up once the scheduler knows of the error, unless it will run the task again.

    Not before: a task elsewhere would tell the user that values are gone, and not why. And once in all of the
    cluster: a task that fails as all was cleaned up may do so when the same is computed again already.
    """
    from distributed import get_client

    try:
        client: Any = get_client()
        if client.run_on_scheduler(_asking(key))[1]:
            return
        with client.as_current():
            held = [each for cleanup in cleanups if (each := cleanup.held(begun)) is not None]
    except (ValueError, OSError, TypeError, AttributeError) as another:  # It runs nothing of ours.
        error.add_note(f"not all could be removed that was written: {another}")
        return

    if len(held) < len(cleanups):
        return
    names = {getattr(cleanup, "begin", None) for cleanup in cleanups}
    attempt = " ".join(each.attempt for each in begun if each.key in names)

    def end() -> None:
        is_first = True
        with contextlib.suppress(ValueError, OSError, TypeError, AttributeError):  # It has gone.
            while client.run_on_scheduler(_asking(key))[0] == "processing":
                time.sleep(_PAUSE)
            is_first = not attempt or client.run_on_scheduler(_claiming(attempt))
        if is_first:
            clean_up(held, error)

    threading.Thread(target=end, name="xzarr3-cleanup", daemon=True).start()


def _asking(key: Any) -> Callable[..., tuple[str, int]]:
    """A function for a scheduler, which need not have this package: one made here travels by value."""

    def ask(dask_scheduler: Any) -> tuple[str, int]:
        task = dask_scheduler.tasks.get(key)
        return ("forgotten", 0) if task is None else (task.state, task.retries)

    return ask


def _claiming(attempt: str) -> Callable[..., bool]:
    """A function for a scheduler, as above, which tells whether nobody has asked it before."""

    def claim(dask_scheduler: Any) -> bool:
        claimed = dask_scheduler.__dict__.setdefault("_xzarr3_given_up", set())
        is_first = attempt not in claimed
        claimed.add(attempt)
        return is_first

    return claim


def fetched(keys: Sequence[str]) -> list[Any] | None:
    """The results of tasks, for another task of a cluster; None if there is none, or they are gone."""
    module: Any = sys.modules.get("distributed")
    client = None if module is None else module.Client.current(allow_global=False)
    if client is None:
        return None
    # A Future of a key that this client did not ask for may wait for ever.
    found = client.sync(client.scheduler.gather, keys=list(keys), callback_timeout=_PATIENCE)
    return [found["data"][key] for key in keys] if found["status"] == "OK" else None


_PATIENCE = 60.0  # Seconds for what has begun to come from another worker.
_PAUSE = 0.02  # Seconds


def optimize_guarded(graph: Any, keys: Any, **kwargs: Any) -> Any:
    """Optimize a graph as that of an array, and let each task clean up that a write depends on."""
    outputs = [*flatten([keys] if isinstance(keys, str) else keys)]
    guards = {
        key: Guard(cleanups_of(graph, key), gates_of(graph.layers))
        for key in outputs
        if isinstance(graph, HighLevelGraph) and key in graph.layers
    }
    return _guarded(ensure_dict(optimize(graph, keys, **kwargs)), guards)


def _guarded(tasks: Mapping[Any, Any], guards: Mapping[Any, Guard]) -> dict[Any, Any]:
    """Tasks of which those clean up that are needed for the outputs that ``guards`` are for."""
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
        if type(task) is Task and not task.is_coro:  # What is derived from it is known by its type.
            after = [] if key in begins[key] else [TaskRef(name) for name in begins[key]]
            function = Guarded(task.func, guarding, len(after))
            found[key] = Task(
                task.key, function, *after, *task.args, _data_producer=task.data_producer, **task.kwargs
            )
    return found


class Writing(Delayed):
    """A Delayed that is optimized as arrays are, so that blocks are fused with their writing.

    What was begun is cleaned up after an error, whoever computes it.
    """

    __slots__ = ()

    def __init__(self, key: str, graph: HighLevelGraph) -> None:
        super().__init__(key, graph, layer=key)  # type: ignore[no-untyped-call]

    _as_arrays = globalmethod(optimize, key="array_optimize", falsey=dont_optimize)
    _guarding = globalmethod(optimize_guarded, key="array_optimize", falsey=dont_optimize)

    @property
    def __dask_optimize__(self) -> Any:
        # Where nothing is to be cleaned up, together with arrays, so that blocks are made once for both.
        return self._guarding if self._cleanups() else self._as_arrays

    def _cleanups(self) -> list[Cleanup]:
        return cleanups_of(self.dask, self.key)

    def __dask_graph__(self) -> Any:
        """The graph, which is about to run: its tasks may store values, also after an earlier attempt."""
        for gate in gates_of(self.dask.layers):
            gate.open()
        return self.dask

    def compute(self, **kwargs: Any) -> Any:
        """Write; what was made for that is gone afterwards, even if it was interrupted.

        No task of this process stores anything after an error was raised.
        """
        try:
            return super().compute(**kwargs)  # type: ignore[no-untyped-call]
        except BaseException as error:
            clean_up(self._cleanups(), error, gates_of(self.dask.layers))
            raise
