"""Writes that dask carries out later: what they have begun, and what becomes of it when a task fails."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from dask._task_spec import Task

from xzarr3.dask.cleanup import Cleanup, fetched
from xzarr3.dask.write_layer import Made
from xzarr3.errors import ConflictError


class Planned(Protocol):
    """What can be begun, and then finished or discarded."""

    def begin(self) -> Any:
        """Make room for values."""

    def room(self, begun: Any) -> str:
        """What tells where it has begun from what is made there once that was removed."""

    def finish(self, begun: Any) -> None:
        """End it, and clean up where that fails."""

    def discard(self, begun: Any, error: BaseException) -> None:
        """Remove what was written."""


class Begun:
    """A write that has begun. Where it travels the plan stays behind, of which there is a task."""

    def __init__(self, key: str, write: Planned) -> None:
        self.key = key
        self.attempt = uuid.uuid4().hex
        """What tells it from the same write when that is begun again."""
        self._write: Planned | None = write
        self._begun = write.begin()
        self.room = write.room(self._begun)
        self._is_over = False
        self._guard = threading.Lock()
        _here[key] = self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_write": None, "_guard": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _guard=threading.Lock())

    @property
    def is_original(self) -> bool:
        """Whether it was begun in this process, where the plan is."""
        return self._write is not None

    def finish(self, write: Planned, stored: object = None) -> None:
        """Finish the write, if all of its tasks have ``stored`` their values where it has begun.

        Raises
        ------
        ConflictError
            If what some of them stored was removed since.
        """
        if isinstance(stored, frozenset) and not stored <= {self.room}:
            raise self._given_up(write)
        with self._guard:
            self._is_over = True
        write.finish(self._begun)

    def _given_up(self, write: Planned) -> ConflictError:
        error = ConflictError(
            "values are gone that this write had stored before a worker was lost, or it was computed again: "
            "an earlier attempt at it was cleaned up since; nothing was put in its place; accepted: the same "
            "again, or a new call"
        )
        self.abandon(error, write)
        return error

    def abandon(self, error: BaseException, write: Planned | None = None) -> None:
        """Remove what was written before ``error``, once; who comes second waits until that is done."""
        with self._guard:
            write = self._write if write is None else write
            if not self._is_over and write is not None:
                self._is_over = True
                write.discard(self._begun, error)


_here: weakref.WeakValueDictionary[str, Begun] = weakref.WeakValueDictionary()
"""What was begun in this process, by the key of the task that did."""


class Abandoning:
    """Gives up what a task has begun.

    Parameters
    ----------
    plan, begin : str
        Keys of the tasks that give the plan of the write and begin it.
    """

    def __init__(self, plan: str, begin: str) -> None:
        self._plan, self.begin = plan, begin

    def __call__(self, error: BaseException) -> None:
        """Give it up, if it was begun in this process."""
        begun = _here.get(self.begin)
        if begun is not None:
            begun.abandon(error)

    def held(self, begun: Sequence[Any]) -> Cleanup | None:
        """What gives it up, wherever in a cluster it was begun; not the same that was begun again since."""
        mine = next((each for each in begun if each.key == self.begin), None)
        if mine is None or mine.is_original:
            return _Held(mine)
        found = fetched([self._plan])
        return None if found is None else _Held(mine, found[0])


class _Held:
    """Gives up what has begun; nothing, if it failed to begin and has cleaned up itself."""

    def __init__(self, begun: Begun | None, write: Planned | None = None) -> None:
        self._begun, self._write = begun, write

    def __call__(self, error: BaseException) -> None:
        if self._begun is not None:
            self._begun.abandon(error, self._write)

    def held(self, begun: Sequence[Any]) -> _Held:
        return self


class Last(Made):
    """The task that ends a write.

    Parameters
    ----------
    name : str
    task : Task
    cleanups : sequence of Cleanup
        What removes what was begun, if the write fails.
    """

    def __init__(self, name: str, task: Task, cleanups: Sequence[Cleanup] = ()) -> None:
        super().__init__(name)
        self._task = task
        self.cleanups = list(cleanups)

    def make(self) -> dict[Any, Task]:
        return {self.name: self._task}
