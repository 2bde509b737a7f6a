"""The plot of an advice: requests, and bytes moved for each byte used, by layout and access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xzarr3.display.units import ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from xzarr3.advice.report import Advice, Candidate, Prediction

_PANELS: tuple[tuple[str, Callable[[Prediction], float]], ...] = (
    ("requests", lambda one: one.requests),
    ("bytes moved for each byte used", lambda one: one.bytes_moved / max(one.bytes_used, 1)),
    ("seconds (estimated)", lambda one: one.seconds),
)


def drawn(advice: Advice, shown: Sequence[Candidate]) -> Figure:
    """A figure with a panel for each measure; see :meth:`xzarr3.advice.Advice.plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plot() needs the package matplotlib, which cannot be imported; install it with "
            "pip install matplotlib, or print the advice"
        ) from error
    names = [each.access for each in shown[0].predictions]
    height = 1.4 + 0.16 * len(shown) * (len(names) + 1)
    figure = Figure(figsize=(12, height), layout="constrained")
    panels: Any = figure.subplots(1, len(_PANELS), sharey=True)
    for panel, (title, measure) in zip(panels, _PANELS, strict=True):
        _draw(panel, [[measure(one) for one in each.predictions] for each in shown])
        panel.set_title(title, fontsize=10)
    panels[0].set_yticks(range(len(shown)), [_label(each) for each in shown])
    panels[0].invert_yaxis()
    # Axes leave names that begin with an underscore out of their own legend.
    bars, labels = list(panels[0].containers), list(map(_plain, names))
    figure.legend(bars, labels, loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle(_plain(str(advice).partition(";")[0]))
    return figure


def _draw(panel: Any, rows: Sequence[Sequence[float]]) -> None:
    """Bars by layout, one colour for each access, on a logarithmic axis unless all are 0."""
    thick = 0.8 / len(rows[0])
    for at, lengths in enumerate(zip(*rows, strict=True)):
        places = [row + (at + 0.5) * thick - 0.4 for row in range(len(rows))]
        bars = panel.barh(places, lengths, height=thick * 0.92)
        panel.bar_label(bars, [ratio(each, 1) for each in lengths], padding=2, fontsize=6)
    panel.set(xmargin=0.12, axisbelow=True, xscale="log" if any(map(any, rows)) else "linear")
    panel.grid(axis="x", alpha=0.3)


def _plain(text: str) -> str:
    """A text in which a name with dollar signs is no formula."""
    return text.replace("$", r"\$")


def _label(one: Candidate) -> str:
    """A layout in two lines."""
    shards = "" if one.shards is None else f" in shards {'x'.join(map(str, one.shards))}"
    return f"{one.name}, score {one.score:.3g}\n{'x'.join(map(str, one.chunks))}{shards}"
