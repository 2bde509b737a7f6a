"""Dask's own progress bars around the tasks that write."""

from __future__ import annotations

from typing import Any

from dask.base import get_scheduler
from dask.delayed import Delayed
from dask.diagnostics.progress import ProgressBar


def compute(delayed: Delayed, progress: bool, **kwargs: Any) -> Any:
    """Compute tasks; with ``progress``, show dask's own bar, or that of the cluster.

    Parameters
    ----------
    delayed : Delayed
    progress : bool
    **kwargs
        Options of ``delayed.compute``.

    Returns
    -------
    object
        What ``delayed.compute`` returns.
    """
    if not progress:
        return delayed.compute(**kwargs)
    run: Any = get_scheduler(scheduler=kwargs.get("scheduler"), collections=[delayed])
    client: Any = getattr(run, "__self__", None)
    if not hasattr(client, "run_on_scheduler"):
        with ProgressBar():
            return delayed.compute(**kwargs)
    from distributed import progress as bar
    from distributed.worker import thread_state  # type: ignore[attr-defined]

    kwargs.pop("scheduler", None)
    if getattr(thread_state, "key", None):  # Within a task: waiting here would block its worker.
        return delayed.compute(scheduler=client, **kwargs)
    future = client.compute(delayed, **kwargs)
    try:
        with client.as_current():
            bar(future)
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
    finally:
        future.release()
