"""Progress bars: HTML that is updated in notebooks, a line of text elsewhere.

tqdm measures the speed and draws the line. A notebook needs no widgets for the bar, and keeps its last state
when it is stored.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from tqdm import tqdm

from xzarr3.display import html
from xzarr3.display.units import share, size

_FORMAT = "{l_bar}{bar}| {done} of {whole} [{elapsed}<{remaining}, {speed}{postfix}]"


class Bar(tqdm):  # type: ignore[misc]
    """A bar of bytes or other units, without a thread of its own.

    Parameters
    ----------
    total : int
        Amount of work.
    text : str
        Description of the work.
    unit : str, optional
        What is counted, if it is not bytes.
    """

    monitor_interval = 0

    def __init__(self, total: int, text: str, unit: str | None = None, **options: Any) -> None:
        self._unit = unit
        super().__init__(total=total, desc=text, bar_format=_FORMAT, **options)

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the line is made of."""
        found: dict[str, Any] = super().format_dict
        rate = found["rate"]
        if rate is None and found["elapsed"]:
            rate = (found["n"] - found["initial"]) / found["elapsed"]
        speed = f"{self._amount(rate or 0)}/s"
        done, whole = self._amount(found["n"]), self._amount(found["total"] or 0)
        return {**found, "done": done, "whole": whole, "speed": speed}

    def _amount(self, number: float) -> str:
        return size(number) if self._unit is None else f"{number:,.0f} {self._unit}"


class NotebookBar(Bar):
    """A bar in the output of a notebook's cell."""

    def __init__(self, total: int, text: str, unit: str | None = None) -> None:
        self._ipython: Any = import_module("IPython.display")
        self._output: Any = None
        super().__init__(total, text, unit, gui=True)
        self._output = self._ipython.display(self._html(), display_id=True)

    def _html(self) -> Any:
        facts = self.format_dict
        left = tqdm.format_interval((facts["total"] - facts["n"]) / facts["rate"]) if facts["rate"] else "?"
        times = f"{tqdm.format_interval(facts['elapsed'])}, {left} left, {facts['speed']}"
        percent = share(facts["n"], facts["total"]) if facts["total"] else "100 %"
        detail = [percent, f"{facts['done']} of {facts['whole']}", times, facts["postfix"]]
        found = html.progress(str(facts["prefix"]), facts["n"], facts["total"], filter(None, detail))
        return self._ipython.HTML(found)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show the present state."""
        if self._output is not None:
            self._output.update(self._html())

    def clear(self, nolock: bool = False) -> None:
        """Do nothing, so that the bar stays in the output of its cell."""

    def close(self) -> None:
        """Show the last state."""
        if not self.disable:
            super().close()
            self.display()


def bar(total: int, text: str, unit: str | None = None) -> Bar:
    """A bar for where this process prints."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    kind = Bar if getattr(shell, "kernel", None) is None else NotebookBar
    return kind(total, text, unit)
