"""The end of a write: after it has failed, none of its tasks in this process stores anything.

Dask raises the error of the first failed task while other tasks still run. A gate waits for the tasks of this
process. It does not wait for workers in other processes.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dask.array.optimization import optimize
from dask.base import dont_optimize
from dask.context import globalmethod
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from xzarr3.errors import StoreError
from xzarr3.parallel import to_the_end

_GLANCE = 0.005  # Seconds between checks whether the last task has ended.

_closed: set[str] = set()  # The gates of writes that have failed.
_inside: dict[
    object, tuple[str, int]
] = {}  # Gates and threads; changed by atomic operations, without a lock.


@dataclass(frozen=True)
class Gate:
    """The gate that the tasks of one write pass before they store anything.

    In one process, equal gates are open or closed together.

    Parameters
    ----------
    name : str, optional
        Identifies the write; a random name by default.

    Examples
    --------
    >>> gate = Gate()
    >>> with gate.passing():
    ...     stored = True
    >>> gate.close()
    >>> with gate.passing():
    ...     stored = True
    Traceback (most recent call last):
        ...
    xzarr3.errors.StoreError: the write has failed, so it stores nothing more
    """

    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Context manager to store values in.

        Raises
        ------
        StoreError
            If the gate is closed.
        """
        passage = object()
        _inside[passage] = self.name, threading.get_ident()
        try:
            if self.name in _closed:
                raise StoreError("the write has failed, so it stores nothing more")
            yield
        finally:
            del _inside[passage]

    def open(self) -> None:
        """Let tasks pass, as the write begins or is computed again."""
        _closed.discard(self.name)

    def close(self) -> None:
        """Let no further task pass, and wait for the tasks that have passed and not ended."""
        try:
            to_the_end(self._close)
        finally:
            to_the_end(self._close)  # Again: Ctrl-C may have interrupted the first call.

    def _close(self) -> None:
        _closed.add(self.name)
        # Not for this thread: it stores nothing now, even if an interrupt kept it from leaving `_inside`.
        own = threading.get_ident()
        while self.name in {name for name, thread in [*_inside.values()] if thread != own}:
            time.sleep(_GLANCE)


def gates_of(layers: Mapping[str, Any]) -> list[Gate]:
    """The gates of all writing layers of a graph."""
    return [layer.gate for layer in layers.values() if isinstance(getattr(layer, "gate", None), Gate)]


class Writing(Delayed):
    """A Delayed that is optimized as dask arrays are, so that making a block and writing it are fused.

    After an error or an interrupt of :meth:`compute`, no task of this process stores anything more.
    """

    __slots__ = ()

    def __init__(self, key: str, graph: HighLevelGraph) -> None:
        super().__init__(key, graph, layer=key)  # type: ignore[no-untyped-call]

    __dask_optimize__ = globalmethod(optimize, key="array_optimize", falsey=dont_optimize)

    def __dask_graph__(self) -> Any:
        """The graph. Dask asks for it just before it runs it, so gates that a failure has closed reopen."""
        for gate in gates_of(self.dask.layers):
            gate.open()
        return self.dask

    def compute(self, **kwargs: Any) -> Any:
        """Write the values."""
        try:
            return super().compute(**kwargs)  # type: ignore[no-untyped-call]
        except BaseException:
            for gate in gates_of(self.dask.layers):
                gate.close()
            raise
