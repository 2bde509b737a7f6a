"""Bars that compare a few things, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from xzarr3.display.html import escape

_WIDTH, _LABEL, _HEIGHT = 720.0, 190.0, 18.0  # Pixels
_SHADES = (1.0, 0.62, 0.38, 0.22, 0.8, 0.5)
_CHARACTER = 6.4  # Pixels, about.


def bars(rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str]) -> str:
    """A horizontal bar for each row, divided into parts; the length is the sum.

    Parameters
    ----------
    rows : sequence of (str, sequence of float)
        Label and lengths of the parts, none negative.
    parts : sequence of str
        Names of the parts, for the legend.

    Examples
    --------
    >>> found = bars([("maps", [1.0, 3.0]), ("series", [2.5, 1.0])], ["map", "series"])
    >>> found.count("<rect"), found.startswith("<svg")
    (6, True)
    """
    longest = max((sum(lengths) for _, lengths in rows), default=0.0) or 1.0
    scale = (_WIDTH - _LABEL - 60) / longest
    drawn = []
    for at, (label, lengths) in enumerate(rows):
        top, left = 24 + at * (_HEIGHT + 5), _LABEL
        drawn.append(_text(label, _LABEL - 8, top, "end"))
        for number, length in enumerate(lengths):
            drawn.append(_bar(left, top, length * scale, number))
            left += length * scale
        drawn.append(_text(f"{sum(lengths):.3g}", left + 6, top, "start"))
    height = 24 + len(rows) * (_HEIGHT + 5) + 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img">{_legend(parts)}{"".join(drawn)}</svg>'
    )


def _legend(parts: Sequence[str]) -> str:
    drawn, left = [], _LABEL
    for number, name in enumerate(parts):
        drawn += [_bar(left, 0, 12, number, 12), _text(name, left + 18, -3, "start")]
        left += 18 + 14 + _CHARACTER * min(len(name), int(_LABEL / _CHARACTER))
    return "".join(drawn)


def _bar(left: float, top: float, width: float, number: int, height: float = _HEIGHT) -> str:
    shade = _SHADES[number % len(_SHADES)]
    kind = "xz-bar" if number < 4 else "xz-read"
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.0f}" '
        f'fill="#3a78b0" fill-opacity="{shade}"/>'
    )


def _text(text: str, left: float, top: float, anchor: str) -> str:
    shown = escape(text, int(_LABEL / _CHARACTER) - 2)
    return f'<text x="{left:.1f}" y="{top + 13:.1f}" text-anchor="{anchor}">{shown}</text>'
