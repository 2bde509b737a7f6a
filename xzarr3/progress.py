"""Progress of long work: shows a bar, or calls a function.

Work with dask is measured by the tasks that have ended. Local schedulers call back for each task; the
scheduler of a cluster is asked at intervals. This starts no thread and keeps no result. Knows nothing of
arrays and stores.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from xzarr3.errors import ArgumentTypeError, printable

if TYPE_CHECKING:
    from dask.delayed import Delayed

Asked: TypeAlias = bool | Callable[[int, int], object]
"""Value of ``progress=``: whether to show a bar, or a function of the bytes done and the total bytes.

The function is called at the start, at intervals, and at the end.
"""

_INTERVAL = 0.1  # Seconds between two calls of a function.
_SHORTEST, _LONGEST = 0.05, 1.0  # Seconds between two requests to the scheduler of a cluster.


def check_asked(progress: object) -> None:
    """Refuse an invalid value of ``progress=``.

    Raises
    ------
    TypeError
        If it is neither a truth value nor a function.
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise ArgumentTypeError(
            f"progress={progress!r}; accepted: True, False, or a function of the bytes done and their total"
        )


class Progress:
    """Shows the progress of the work in a ``with`` statement.

    The end of the ``with`` statement counts as all done. After an error the bar names the error and stays
    where it was.

    Parameters
    ----------
    asked : bool or callable
        Show a bar, nothing, or call ``asked(done, total)``. An exception from the function ends the work.
    total : int
        Total amount of work, in bytes if no unit is given.
    text : str
        Description of the work, shown before the bar.
    unit : str, optional
        What is counted, such as ``"chunks"``.

    Examples
    --------
    >>> with Progress(lambda done, total: print(done, "of", total), 20, "writing") as progress:
    ...     progress.advance(20)
    0 of 20
    20 of 20
    """

    def __init__(self, asked: Asked, total: int, text: str, unit: str | None = None) -> None:
        check_asked(asked)
        self._asked = asked
        self._total = total
        self._text = printable(text)
        self._unit = unit
        self._done = 0.0
        self._told = -1
        self._when = 0.0
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._asked is True:
            from xzarr3.display.bars import bar

            self._bar = bar(self._total, self._text, self._unit)
        self._show(now=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._done = self._total
                self._show(now=True)
            elif self._bar is not None:
                what = "interrupted" if issubclass(kind, KeyboardInterrupt) else f"failed: {kind.__name__}"
                self._bar.set_postfix_str(what, refresh=False)
        finally:
            if self._bar is not None:
                self._bar.close()

    def advance(self, number: float) -> None:
        """Add to the work done. Call it from one thread at a time."""
        self._done = min(self._done + number, self._total)
        self._show()

    def _show(self, *, now: bool = False) -> None:
        done = round(self._done)  # A sum of shares, which may be a little less than a whole number.
        if done == self._told:
            return
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif callable(self._asked):
            time_ = time.monotonic()
            if not now and time_ - self._when < _INTERVAL:
                return
            self._when = time_
            self._asked(done, self._total)
        self._told = done

    def compute(self, delayed: Delayed, sizes: Mapping[str, int], **kwargs: Any) -> Any:
        """Compute tasks that write, and count the bytes of the tasks that have ended.

        Parameters
        ----------
        delayed : Delayed
        sizes : mapping of str to int
            For each name, the total bytes that the tasks whose keys begin with it write.
        **kwargs
            Options of ``delayed.compute``.

        Returns
        -------
        object
            What ``delayed.compute`` returns.
        """
        from dask.base import get_scheduler

        run: Any = get_scheduler(scheduler=kwargs.pop("scheduler", None), collections=[delayed])
        client = getattr(run, "__self__", None)
        if hasattr(client, "run_on_scheduler"):
            follower = _Followed(self, sizes, client)
            return delayed.compute(scheduler=follower.get, **kwargs)
        with _Told(self, sizes).callback():
            return delayed.compute(scheduler=run, **kwargs)


def shown(
    delayed: Delayed,
    sizes: Mapping[str, int],
    text: str,
    progress: Asked = True,
    **kwargs: Any,
) -> Any:
    """Compute tasks that write, and show the progress.

    Parameters
    ----------
    delayed : Delayed
        Depends on tasks that write, on any scheduler.
    sizes : mapping of str to int
        Decoded size in bytes of each array, by the name of its writing tasks: the first part of their keys,
        such as ``write-zarr-air-...``.
    text : str
        Description of the work, such as ``writing 12 variables to <LocalStore 'x.zarr'>``.
    progress : bool or callable
        Show a bar, nothing, or call ``progress(done, total)`` with numbers of bytes.
    **kwargs
        Options of ``delayed.compute``.

    Returns
    -------
    object
        What ``delayed.compute`` returns.

    Examples
    --------
    >>> from dask import delayed
    >>> done = shown(
    ...     delayed(len)("abc", dask_key_name=("write-zarr-sst", 0)),
    ...     {"write-zarr-sst": 24},
    ...     "writing /sst",
    ...     lambda done, total: print(done, "of", total, "bytes"),
    ...     scheduler="sync",
    ... )
    0 of 24 bytes
    24 of 24 bytes
    """
    check_asked(progress)
    if progress is False:
        return delayed.compute(**kwargs)
    with Progress(progress, sum(sizes.values()), text) as shown_there:
        return shown_there.compute(delayed, sizes, **kwargs)


def _name(key: Any) -> Any:
    """The first part of a key, which all tasks of one array share."""
    return key[0] if isinstance(key, tuple) and key else key


class _Told:
    """Counts the tasks for which a local scheduler calls back."""

    def __init__(self, progress: Progress, sizes: Mapping[str, int]) -> None:
        self._progress = progress
        self._sizes = sizes
        self._shares: dict[Any, float] = {}

    def callback(self) -> Any:
        from dask.callbacks import Callback

        return Callback(start=self._start, posttask=self._ended)

    def _start(self, graph: Iterable[Any]) -> None:
        numbers = Counter(name for name in map(_name, graph) if name in self._sizes)
        if numbers:  # Other work may run in this process at the same time.
            self._shares = {name: self._sizes[name] / number for name, number in numbers.items()}

    def _ended(self, key: Any, *_: object) -> None:
        share = self._shares.get(_name(key))
        if share is not None:
            self._progress.advance(share)


class _Followed:
    """Asks the scheduler of a cluster how many tasks have ended, until all have."""

    def __init__(self, progress: Progress, sizes: Mapping[str, int], client: Any) -> None:
        self._progress = progress
        self._sizes = sizes
        self._client = client
        self._ended: dict[str, float] = {}  # The largest share of ended tasks seen so far, by name.
        self._counted = 0.0

    def get(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        """Compute a graph, with the interface of a scheduler of dask."""
        from distributed import wait
        from distributed.worker import thread_state  # type: ignore[attr-defined]

        client = self._client
        if getattr(thread_state, "key", None):  # Within a task: waiting here would block its worker.
            return client.get(graph, keys, **kwargs)
        packed = client.get(graph, keys, sync=False, **kwargs)
        futures = list(_futures(packed))
        may_ask, pause = True, _SHORTEST
        try:
            while not all(future.done() for future in futures):
                try:
                    with client.as_current():
                        wait(futures, timeout=pause)
                except TimeoutError:
                    pause = min(1.2 * pause, _LONGEST)
                    may_ask = may_ask and self._ask()
            return client.gather(packed)
        except KeyboardInterrupt:
            client.cancel(futures)
            raise
        finally:
            for future in futures:
                future.release()

    def _ask(self) -> bool:
        """Ask how many tasks have ended; returns whether to ask again later."""
        try:
            ended = self._client.run_on_scheduler(_counting(sorted(self._sizes)))
        except (ValueError, OSError, TypeError, AttributeError):
            return False  # The scheduler refuses to run functions. The bar then shows only the end.
        for name in self._sizes:
            before = self._ended.get(name)
            # Tasks that the scheduler has forgotten have ended. Tasks of a lost worker run again, so that
            # their share falls; the largest share counts.
            share = ended.get(name, 0.0 if before is None else 1.0)
            if name in ended or before is not None:
                self._ended[name] = max(share, before or 0.0)
        counted = sum(self._sizes[name] * share for name, share in self._ended.items())
        self._progress.advance(counted - self._counted)
        self._counted = counted
        return True


def _counting(names: list[str]) -> Callable[..., dict[str, float]]:
    """A function to run on a scheduler. It is pickled by value, so the scheduler needs no xzarr3."""
    unfinished = ("waiting", "queued", "no-worker", "processing", "erred")

    def count(dask_scheduler: Any) -> dict[str, float]:
        found = {}
        for name in names:
            group = dask_scheduler.task_groups.get(name)
            if group is not None:
                states = group.states  # Ended tasks whose results are not needed any more are "released".
                left = sum(states.get(state, 0) for state in unfinished)
                found[name] = 1 - left / max(1, sum(states.values()))
        return found

    return count


def _futures(packed: Any) -> Iterable[Any]:
    if isinstance(packed, (list, tuple)):
        for each in packed:
            yield from _futures(each)
    elif hasattr(packed, "release"):
        yield packed
