"""Traces in workers of dask.distributed: a plugin counts there, and the client asks for the counts."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from distributed import Client, Status, Worker, WorkerPlugin, default_client

from xzarr3.tracing import counters
from xzarr3.tracing.counters import Collector, Counts

_PATIENCE = 5.0  # Seconds to wait for the scheduler.


class Counting(WorkerPlugin):
    """Worker plugin that counts for a trace, unless this process already counts for it.

    Parameters
    ----------
    trace : str
    logs : bool
        Whether each request is logged in the worker.
    """

    def __init__(self, trace: str, logs: bool) -> None:
        self.name, self.logs = trace, logs

    def setup(self, worker: Worker) -> None:
        """Begin to count."""
        self._collector = None
        if counters.current(self.name) is None:
            self._collector = Collector(self.name, logs=self.logs)
            counters.begin(self._collector)

    async def teardown(self, worker: Worker) -> None:
        """Stop counting. A worker that retires leaves its counts at the scheduler."""
        if self._collector is not None:
            counters.end(self._collector)
            if worker.status is Status.closing:
                with suppress(OSError):  # The scheduler is gone.
                    telling = worker.scheduler.log_event(topic=self.name, msg=self._collector.told())
                    await asyncio.wait_for(telling, _PATIENCE)


def workers(trace: str, *, logs: bool) -> Callable[..., dict[str, Counts]] | None:
    """Make the workers of the default client count, also those that join later.

    Returns a function that asks for their counts, or None without a running, synchronous client.
    """
    try:
        client = default_client()
    except ValueError:
        return None
    if client.status != "running" or client.asynchronous:
        return None
    client.register_plugin(Counting(trace, logs), name=trace)
    return partial(_counts, client, trace)


def _counts(client: Client, trace: str, *, last: bool) -> dict[str, Counts]:
    """The counts of each process, also of workers that retired; none once the cluster is closed.

    Parameters
    ----------
    client : Client
    trace : str
    last : bool
        Whether the workers are to stop counting.
    """
    if client.status != "running" or client.asynchronous:
        return {}
    try:
        running = client.run(_current, trace, on_error="ignore").values()
        retired = [found for _, found in client.get_events(trace)]
        if last:
            client.unregister_worker_plugin(trace)
    except (OSError, TimeoutError, ValueError) as error:  # The cluster is closing at the same time.
        warnings.warn(f"some workers did not report their counts: {type(error).__name__}", stacklevel=5)
        return {}
    return dict([*filter(None, running), *retired])


def _current(trace: str) -> tuple[str, Counts] | None:
    collector = counters.current(trace)
    return None if collector is None else collector.told()
