"""The end of a write that fails: no task of it stores anything after that.

Dask raises the error of the first task that fails while others are still at work. Those of this process are
waited for here; those of workers in other processes are not.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakValueDictionary

from xzarr3.errors import StoreError
from xzarr3.parallel import to_the_end

_GLANCE = 0.1  # Seconds; a signal that comes just before a thread waits does not wake it.


class Gate:
    """What the tasks of one write pass before they store something.

    Copies in a process are one and the same.

    Parameters
    ----------
    name : str, optional
        Tells writes apart.

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
    xzarr3.errors.StoreError: the write has failed, so that nothing more is stored
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = uuid.uuid4().hex if name is None else name
        self._inside: dict[
            int, tuple[int, threading.Lock]
        ] = {}  # Single steps change it, so it needs no lock.
        self._closed = False
        _gates[self._name] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self._name,)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Store something within this.

        Raises
        ------
        StoreError
            If it is closed.
        """
        busy = threading.Lock()
        busy.acquire()
        self._inside[id(busy)] = threading.get_ident(), busy
        try:
            if self._closed:
                raise StoreError("the write has failed, so that nothing more is stored")
            yield
        finally:
            del self._inside[id(busy)]
            busy.release()

    def open(self) -> None:
        """Let tasks pass: the write begins, or begins again."""
        self._closed = False

    def close(self) -> None:
        """Let no task pass any more, and wait for those that are storing something."""
        try:
            to_the_end(self._close)
        finally:
            to_the_end(self._close)  # Again, as Ctrl-C may have come between two steps of the first one.

    def _close(self) -> None:
        self._closed = True
        for number, (thread, busy) in list(self._inside.items()):
            # This thread stores nothing any more, even if it was interrupted before it could say so.
            while thread != threading.get_ident() and number in self._inside:
                busy.acquire(timeout=_GLANCE)  # Whoever is interrupted after this finds that it has left.


def gates_of(layers: Mapping[str, object]) -> list[Gate]:
    """The gates of all writes in a graph."""
    found = (getattr(layer, "gate", None) for layer in layers.values())
    return [gate for gate in found if isinstance(gate, Gate)]


_gates: WeakValueDictionary[str, Gate] = WeakValueDictionary()


def _restored(name: str) -> Gate:
    found = _gates.get(name)
    return Gate(name) if found is None else found
