"""Progress of a check, a copy or a diff: a bar of tqdm, or calls of a function.

What dask computes has dask's own bars; see :func:`xzarr3.dask.write.compute_shown`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

from xzarr3.errors import ArgumentTypeError, printable

Asked: TypeAlias = bool | Callable[[int, int], object]
"""Value of ``progress=``: whether to show a bar, or a function of what is done and the total.

The function is called at the start, at intervals, and at the end.
"""

_INTERVAL = 0.1  # Seconds between two calls of a function.


def check_asked(progress: object) -> None:
    """Refuse an invalid value of ``progress=``.

    Raises
    ------
    TypeError
        If it is neither a truth value nor a function.
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise ArgumentTypeError(
            f"progress={progress!r}; accepted: True, False, or a function of what is done and the total"
        )


class Progress:
    """Shows the progress of the work in a ``with`` statement.

    The end of the ``with`` statement counts as all done. After an error the bar stays where it was.

    Parameters
    ----------
    asked : bool or callable
        Show a bar, nothing, or call ``asked(done, total)``. An exception from the function ends the work.
    total : int
        Total amount of work.
    text : str
        Description of the work, shown before the bar.
    unit : str
        What is counted, ``"B"`` for bytes.

    Examples
    --------
    >>> with Progress(lambda done, total: print(done, "of", total), 20, "copying") as progress:
    ...     progress.advance(20)
    0 of 20
    20 of 20
    """

    def __init__(self, asked: Asked, total: int, text: str, unit: str = "B") -> None:
        check_asked(asked)
        self._call = asked if callable(asked) else lambda done, total: None
        self._total, self._done, self._told, self._when = total, 0, -1, 0.0
        self._bar: Any = None
        if asked is True:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc=printable(text), unit=unit, unit_scale=True, unit_divisor=1024)

    def __enter__(self) -> Self:
        self._tell(now=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._done = self._total
                self._tell(now=True)
        finally:
            if self._bar is not None:
                self._bar.close()

    def advance(self, number: int) -> None:
        """Add to the work done. Call it from one thread at a time."""
        self._done = min(self._done + number, self._total)
        self._tell()

    def _tell(self, *, now: bool = False) -> None:
        if self._bar is not None:
            self._bar.update(self._done - self._bar.n)
        elif self._done != self._told and (now or time.monotonic() - self._when >= _INTERVAL):
            self._told, self._when = self._done, time.monotonic()
            self._call(self._done, self._total)
