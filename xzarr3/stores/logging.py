"""A store that logs the requests to another store: as log messages, as records and as a table of totals.

It logs keys and numbers, never values or the texts of errors.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any, NamedTuple

from xzarr3.display.shown import Description, Shown
from xzarr3.errors import shorten
from xzarr3.stores.locks import fork_safe
from xzarr3.stores.open import StoreLike
from xzarr3.stores.sharing import reduced
from xzarr3.stores.wrappers import WrapperStore
from xzarr3.tracing import events
from xzarr3.tracing.events import Listener

_counting = fork_safe(threading.Lock())


class Request(NamedTuple):
    """One finished request to a store."""

    operation: str
    """The method of the store, of its reader or writer, or of an open value."""
    key: str
    """The key or prefix; the first one if there are several."""
    start: int | None
    """First byte of the part, or of the first of several; a negative one counts from the end."""
    length: int | None
    """Requested bytes; None if the request reads to the end."""
    number: int
    """Number of values, parts or keys that were requested or listed."""
    size: int
    """Bytes read or written."""
    began: float
    """Start time in seconds since 1970."""
    seconds: float
    """Duration."""
    outcome: str
    """``ok``, ``absent``, ``changed`` or the name of the error."""


class Total(NamedTuple):
    """Totals over all requests of one operation."""

    operation: str
    requests: int
    size: int
    seconds: float
    absent: int
    failed: int


class Summary(Shown, tuple[Total, ...]):
    """The totals of all operations; prints as a table."""

    __slots__ = ()

    def _describe(self) -> Description:
        from xzarr3.display import html, text

        rows = self._rows()
        title = html.title("requests to a store")
        return Description(text.table(rows), lambda: html.box(title, html.table(rows)))

    def _rows(self) -> list[list[str]]:
        from xzarr3.display.units import size

        columns = zip(*(row[1:] for row in self), strict=True) if self else ((0,),) * 5
        everything = Total("total", *(sum(column) for column in columns))
        return [
            ["operation", "requests", "bytes", "seconds", "absent", "failed"],
            *(
                [
                    row.operation, f"{row.requests:,}", size(row.size), f"{row.seconds:.3f}",
                    f"{row.absent:,}", f"{row.failed:,}",
                ]
                for row in (*self, everything)
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return str(self._describe())

    __repr__ = __str__


class LoggingStore(WrapperStore):
    """Forwards every operation to another store and logs each request with its duration.

    While the logger is not enabled for the level and no records are kept, the overhead is next to nothing. A
    request in progress when logging is switched on may not be logged.

    Parameters
    ----------
    store : Store, path or URL
    logger : logging.Logger, optional
        By default the logger ``xzarr3.stores``.
    level : int
        The level of the messages.
    keep : int
        How many of the latest requests are kept as records. With 0 none are kept or counted.

    Attributes
    ----------
    records : tuple of Request
        The latest requests, oldest first.

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> store = LoggingStore(MemoryStore({"a": b"12345", "b": b"123"}))
    >>> _ = store.get("a", (1, 3)), store.get("none")
    >>> for request in store.records:
    ...     print(request.operation, request.key, request.start, request.length, request.outcome)
    get a 1 3 ok
    get none None None absent
    >>> store.summary()[0][:3]
    ('get', 2, 3)
    """

    def __init__(
        self,
        store: StoreLike,
        logger: logging.Logger | None = None,
        level: int = logging.DEBUG,
        *,
        keep: int = 10_000,
    ) -> None:
        super().__init__(store)
        self.logger = logging.getLogger("xzarr3.stores") if logger is None else logger
        self.level = level
        self.keep = keep
        self._begin()

    def _begin(self) -> None:
        self._records: deque[Request] = deque(maxlen=self.keep)
        self._totals: dict[str, list[Any]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, LoggingStore)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_records"], state["_totals"]  # Each process counts its own requests.
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _describe(self) -> Description:
        from xzarr3.display import html

        title, summary = html.title("xzarr3 store", repr(self)), self.summary()
        table = html.table(summary._rows())
        return Description(repr(self), lambda: html.box(title, html.facts(self._facts()), table))

    @property
    def records(self) -> tuple[Request, ...]:
        """The latest requests, oldest first."""
        with _counting:
            return tuple(self._records)

    def summary(self) -> Summary:
        """The totals of each operation so far, summed over all threads."""
        with _counting:
            return Summary(Total(name, *self._totals[name]) for name in sorted(self._totals))

    def clear(self) -> None:
        """Discard the records and totals so far."""
        with _counting:
            self._begin()

    def _listening(self, operation: str) -> tuple[Listener, ...]:
        if operation in self._makes_again or not (self.keep > 0 or self.logger.isEnabledFor(self.level)):
            return ()
        return (self._note,)

    def _note(self, asked: events.Request) -> None:
        outcome = "ok" if asked.outcome in ("erased", "kept") else asked.outcome
        if self.keep:
            request = Request(
                asked.operation, asked.key, asked.start, asked.length, asked.number, asked.size, asked.began,
                asked.seconds, outcome,
            )  # fmt: skip
            with _counting:
                self._records.append(request)
                total = self._totals.get(asked.operation)
                if total is None:
                    total = self._totals[asked.operation] = [0, 0, 0.0, 0, 0]
                total[0] += 1
                total[1] += asked.size
                total[2] += asked.seconds
                if outcome != "ok":
                    total[3 if outcome == "absent" else 4] += outcome != "changed"
        if self.logger.isEnabledFor(self.level):
            from xzarr3.display.units import size

            where = "" if asked.start is None else f" from {asked.start}"
            where += "" if asked.length is None else f", {size(asked.length)} asked for"
            where += "" if asked.number == 1 else f", {asked.number} in all"
            self.logger.log(
                self.level, "%s %s%s: %s in %.6f s, %s",
                asked.operation, shorten(asked.key, 1000), where, size(asked.size), asked.seconds, outcome,
            )  # fmt: skip
