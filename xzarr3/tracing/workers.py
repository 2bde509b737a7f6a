"""Traces in workers of dask.distributed: a plugin that counts there, and its reports to the client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

from distributed import Client, Worker, WorkerPlugin, default_client

from xzarr3.tracing import counters
from xzarr3.tracing.counters import Collector, Snapshot

_TOPIC = "xzarr3-trace"
_EVERY = 0.5  # Seconds between two reports of a worker.

Hear = Callable[[Snapshot], None]

_hearing: dict[str, dict[str, Hear]] = {}
"""The functions that receive the counts of workers, by client and trace."""
_lock = threading.Lock()


class Counting(WorkerPlugin):
    """Worker plugin that counts for a trace and reports to the scheduler at intervals.

    Parameters
    ----------
    trace : str
    """

    idempotent = False

    def __init__(self, trace: str) -> None:
        self.trace = trace
        self.name = trace

    def setup(self, worker: Worker) -> None:
        """Begin to count, unless this process already counts for the trace."""
        self._worker = worker
        self._told = 0
        self._collector = Collector(self.trace)
        self._mine = counters.begin(self._collector)
        if self._mine:
            self._telling = asyncio.ensure_future(self._tell_again())

    async def _tell_again(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            self._tell()

    def _tell(self) -> None:
        if self._collector.serial != self._told:
            snapshot = self._collector.snapshot()
            self._told = snapshot.serial
            with contextlib.suppress(OSError):  # The counts are kept and reported at the end.
                self._worker.log_event(_TOPIC, tuple(snapshot))

    def teardown(self, worker: Worker) -> None:
        """Stop counting, and report the counts since the last report."""
        if self._mine:
            self._telling.cancel()
            counters.end(self._collector)
            self._tell()


class Listening:
    """Makes the workers of a client count until :meth:`end`.

    Parameters
    ----------
    client : Client
    trace : str
    hear : callable
        Called with the counts of a process, from any thread.
    """

    def __init__(self, client: Client, trace: str, hear: Hear) -> None:
        self._client = client
        self._trace = trace
        self._hear = hear
        with _lock:
            traces = _hearing.setdefault(client.id, {})
            traces[trace] = hear
            if len(traces) == 1:
                client.subscribe_topic(_TOPIC, _listener(traces))
        try:
            client.register_plugin(Counting(trace), name=trace)
        except BaseException:
            self._forget()
            raise

    def end(self) -> None:
        """Collect the counts not reported yet, and stop counting in the workers."""
        try:
            if self._client.status == "running":
                for found in self._client.run(_snapshot, self._trace, on_error="ignore").values():
                    if found is not None:
                        self._hear(Snapshot(*found))
                self._client.unregister_worker_plugin(self._trace)
        except (OSError, TimeoutError, ValueError) as error:  # The cluster is closing at the same time.
            warnings.warn(f"some workers did not report their counts: {type(error).__name__}", stacklevel=4)
        finally:
            self._forget()

    def _forget(self) -> None:
        with _lock:
            traces = _hearing.get(self._client.id, {})
            traces.pop(self._trace, None)
            if not traces:
                _hearing.pop(self._client.id, None)
                if self._client.status == "running":
                    self._client.unsubscribe_topic(_TOPIC)


def _listener(traces: dict[str, Hear]) -> Callable[[Any], None]:
    def listen(event: Any) -> None:
        _, message = event
        snapshot = Snapshot(*message)
        hear = traces.get(snapshot.trace)
        if hear is not None:
            hear(snapshot)

    return listen


def _snapshot(trace: str) -> tuple[Any, ...] | None:
    collector = counters.current(trace)
    return None if collector is None else tuple(collector.snapshot())


def listening(trace: str, hear: Hear) -> Listening | None:
    """Make the workers of the default client count; None without a running, synchronous client."""
    try:
        client = default_client()
    except ValueError:
        return None
    if client.status != "running" or client.asynchronous:
        return None
    return Listening(client, trace, hear)
