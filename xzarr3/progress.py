"""Progress of long work: a bar of tqdm, or calls of a function.

What is written with dask counts by tasks that have ended, wherever they run: local schedulers tell of each
one, that of a cluster is asked now and then. No thread is started and no result is kept for that.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from xzarr3.errors import printable

if TYPE_CHECKING:
    from dask.delayed import Delayed

Asked: TypeAlias = bool | Callable[[int, int], object]
"""What ``progress=`` takes: whether to show a bar, or a function that is called with what is done and the
total, both in bytes, at the start, now and then, and once more when all is done."""

_INTERVAL = 0.1  # Seconds between two calls of a function.
_SHORTEST, _LONGEST = 0.05, 1.0  # Seconds between two questions to the scheduler of a cluster.


def check_asked(progress: object) -> None:
    """Refuse what is no way to show progress.

    Raises
    ------
    TypeError
        If it is neither a truth value nor a function.
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(
            f"progress={progress!r}: accepted: True, False, or a function of the bytes done and their total"
        )


class Progress:
    """Shows how far work is, within a ``with`` statement that does it.

    At its end all is done, and after an error the bar says so and stays where it was.

    Parameters
    ----------
    asked : bool or callable
        Show a bar, nothing, or call ``asked(done, total)``. An error that it raises ends the work.
    total : int
        Of all that is to be done, in bytes unless ``unit`` says otherwise.
    text : str
        What is done, which stands before the bar.
    unit : str
        What is counted.

    Examples
    --------
    >>> with Progress(lambda done, total: print(done, "of", total), 20, "writing") as progress:
    ...     progress.advance(20)
    0 of 20
    20 of 20
    """

    def __init__(self, asked: Asked, total: int, text: str, unit: str = "B") -> None:
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
            self._bar = _bar()(total=self._total, desc=self._text, unit=self._unit, unit_scale=True)
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
        """Count what was done besides; from any one thread at a time."""
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
        """Compute what writes, and count the bytes of the tasks that have ended.

        Parameters
        ----------
        delayed : Delayed
        sizes : mapping of str to int
            How many bytes the tasks whose keys begin with this name write together.
        **kwargs
            Options for the scheduler, as ``delayed.compute`` has them.

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
    """Compute what writes, while showing how far it is.

    Parameters
    ----------
    delayed : Delayed
        Depends on tasks that write, on any scheduler.
    sizes : mapping of str to int
        How many bytes each array takes, decoded, by the name of its writing tasks: the first part of their
        keys, such as ``write-zarr-air-...``.
    text : str
        What is done, such as ``writing 12 variables to <LocalStore 'x.zarr'>``.
    progress : bool or callable
        Show a bar, nothing, or call ``progress(done, total)`` with numbers of bytes.
    **kwargs
        Options for the scheduler, as ``delayed.compute`` has them.

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
    """What the keys of all tasks of one array have in common."""
    return key[0] if isinstance(key, tuple) and key else key


class _Told:
    """Counts tasks of which a local scheduler tells."""

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
        self._ended: dict[str, float] = {}  # The largest share of each name that was ever seen.
        self._counted = 0.0

    def get(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        """Compute a graph, as a scheduler does."""
        from distributed import wait
        from distributed.worker import thread_state  # type: ignore[attr-defined]

        client = self._client
        if getattr(thread_state, "key", None):  # Within a task, which would keep its worker from others.
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
        """Ask how many tasks have ended; returns whether it makes sense to ask again."""
        try:
            ended = self._client.run_on_scheduler(_counting(sorted(self._sizes)))
        except (ValueError, OSError, TypeError, AttributeError):
            return False  # One that runs nothing of ours. The bar shows the end, then.
        for name in self._sizes:
            before = self._ended.get(name)
            # What was there and is not any more has ended. What a lost worker had done is done again.
            share = ended.get(name, 0.0 if before is None else 1.0)
            if name in ended or before is not None:
                self._ended[name] = max(share, before or 0.0)
        counted = sum(self._sizes[name] * share for name, share in self._ended.items())
        self._progress.advance(counted - self._counted)
        self._counted = counted
        return True


def _counting(names: list[str]) -> Callable[..., dict[str, float]]:
    """A function for a scheduler, which need not have this package: one made here travels by value."""
    unfinished = ("waiting", "queued", "no-worker", "processing", "erred")

    def count(dask_scheduler: Any) -> dict[str, float]:
        found = {}
        for name in names:
            group = dask_scheduler.task_groups.get(name)
            if group is not None:
                states = group.states  # A task whose result nobody needs any more is "released" again.
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


def _bar() -> Any:
    """The class of bars: a widget in notebooks that have these, text elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of notebooks without widgets.
        from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        """A bar without a thread of its own."""

        monitor_interval = 0

    return Bar
