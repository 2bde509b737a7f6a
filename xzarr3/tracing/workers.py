"""Traces in workers of dask.distributed: a plugin counts there, and the client asks for the counts."""

from __future__ import annotations

import warnings

from distributed import Client, Status, Worker, WorkerPlugin, default_client

from xzarr3.tracing import counters
from xzarr3.tracing.counters import Collector, Counts


class Counting(WorkerPlugin):
    """Worker plugin that counts for a trace, unless this process already counts for it.

    Parameters
    ----------
    trace : str
    logs : bool
        Whether each request is logged in the worker.
    """

    idempotent = False

    def __init__(self, trace: str, logs: bool) -> None:
        self.name, self.logs = trace, logs

    def setup(self, worker: Worker) -> None:
        """Begin to count."""
        self._collector = None
        if counters.current(self.name) is None:
            self._collector = Collector(self.name, logs=self.logs)
            counters.begin(self._collector)

    def teardown(self, worker: Worker) -> None:
        """Stop counting. A worker that retires leaves its counts at the scheduler."""
        if self._collector is not None:
            counters.end(self._collector)
            if worker.status is Status.closing:
                worker.log_event(self.name, _told(self._collector))


class Workers:
    """The workers of a client, which count for a trace; also those that join later.

    Parameters
    ----------
    client : Client
    trace : str
    logs : bool
    """

    def __init__(self, client: Client, trace: str, logs: bool) -> None:
        self._client, self._trace = client, trace
        client.register_plugin(Counting(trace, logs), name=trace)

    def counts(self, *, last: bool = False) -> dict[str, Counts]:
        """The counts of each process, also of workers that retired; none once the cluster is closed.

        Parameters
        ----------
        last : bool
            Whether the workers are to stop counting.
        """
        if self._client.status != "running" or self._client.asynchronous:
            return {}
        try:
            running = self._client.run(_current, self._trace, on_error="ignore").values()
            retired = [found for _, found in self._client.get_events(self._trace)]
            if last:
                self._client.unregister_worker_plugin(self._trace)
        except (OSError, TimeoutError, ValueError) as error:  # The cluster is closing at the same time.
            warnings.warn(f"some workers did not report their counts: {type(error).__name__}", stacklevel=5)
            return {}
        return dict([*filter(None, running), *retired])


def _current(trace: str) -> tuple[str, Counts] | None:
    collector = counters.current(trace)
    return None if collector is None else _told(collector)


def _told(collector: Collector) -> tuple[str, Counts]:
    return collector.source, collector.counts()


def workers(trace: str, *, logs: bool) -> Workers | None:
    """Make the workers of the default client count; None without a running, synchronous client."""
    try:
        client = default_client()
    except ValueError:
        return None
    if client.status != "running" or client.asynchronous:
        return None
    return Workers(client, trace, logs)
