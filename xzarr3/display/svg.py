"""Drawings of arrays as SVG: up to three dimensions, chunks inside shards, the chunks that a read touches.

The colors are also in the attributes of the shapes, for pages that drop the style, such as those of GitHub.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xzarr3.display.html import escape

Box: TypeAlias = "tuple[tuple[int, int], ...]"
"""For each drawn dimension the first element and the one after the last."""
_Point: TypeAlias = "tuple[float, float]"

_LONGEST, _SHORTEST = 150.0, 26.0  # Pixels
_DEPTH = 0.55  # Shown length of the side that goes to the back, as a share of its length from the front.
_SLANT = math.radians(38)
_CHARACTER = 6.4  # Pixels, about.


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One dimension of a drawing.

    Parameters
    ----------
    size : int
        Number of elements; not 0.
    label : str
    edges : tuple of int
        Where stored units begin, the first one left out: shards, or chunks without shards.
    fine : tuple of int
        Where chunks begin within shards.
    """

    size: int
    label: str
    edges: tuple[int, ...] = ()
    fine: tuple[int, ...] = ()


def drawing(axes: Sequence[Axis], touched: Sequence[Box] = ()) -> str:
    """An array of one to three dimensions as SVG.

    Parameters
    ----------
    axes : sequence of Axis
        The last one is drawn from left to right, the one before from top to bottom, and the first of three
        to the back.
    touched : sequence of Box
        Regions to draw in another color; of three dimensions each side shows them as seen from it.
    """
    lengths = _lengths([axis.size for axis in axes])
    if len(axes) == 1:
        axes, lengths = (Axis(size=1, label=""), *axes), [_SHORTEST, *lengths]
        touched = [((0, 1), *box) for box in touched]
    depth = lengths[0] * _DEPTH if len(axes) == 3 else 0.0
    back = (depth * math.cos(_SLANT), -depth * math.sin(_SLANT))
    tall, wide = lengths[-2:]
    low, left = 4 - back[1], 4.0
    right, down = (wide, 0.0), (0.0, tall)
    faces = [_Face(axes, (-2, -1), (left, low), down, right)]
    if len(axes) == 3:
        faces += [
            _Face(axes, (0, 2), (left, low), back, right),
            _Face(axes, (0, 1), (left + wide, low), back, down),
        ]
    body = "".join(face.drawn(touched) for face in faces)
    labels, width = _labels(axes, (left, low), tall, wide, back)
    height = low + tall + 22
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">{body}{labels}</svg>'
    )


def _lengths(sizes: Sequence[int]) -> list[float]:
    """Pixels for each dimension: the longest as long as possible, shorter ones not too short to be seen."""
    longest = max(sizes)
    return [max(_SHORTEST, _LONGEST * (size / longest) ** 0.45) for size in sizes]


def _labels(
    axes: Sequence[Axis], corner: _Point, tall: float, wide: float, back: _Point
) -> tuple[str, float]:
    """The labels of the sides, and the width of the drawing including these labels."""
    left, low = corner
    found = [(axes[-1].label, left + wide / 2, low + tall + 15, "middle")]
    if axes[-2].label:
        found.append((axes[-2].label, left + wide + back[0] + 7, low + back[1] + tall / 2 + 4, "start"))
    if len(axes) == 3:  # Beside the lower right edge, which goes to the back.
        found.append((axes[0].label, left + wide + back[0] / 2 + 9, low + tall + back[1] / 2 + 9, "start"))
    width = left + wide + back[0] + 4
    texts = []
    for label, across, down, anchor in found:
        length = _CHARACTER * len(label)
        if anchor == "middle":
            across = max(across, length / 2 + 1)
            width = max(width, across + length / 2)
        else:
            width = max(width, across + length)
        texts.append(f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}">{escape(label)}</text>')
    return "".join(texts), width + 2


class _Face:
    """One side of the drawing, spanned by two dimensions.

    Parameters
    ----------
    axes : sequence of Axis
    which : tuple of int
        The two dimensions.
    corner : tuple of float
        Where both begin.
    first, second : tuple of float
        How far each of them goes.
    """

    def __init__(
        self, axes: Sequence[Axis], which: tuple[int, int], corner: _Point, first: _Point, second: _Point
    ) -> None:
        self._axes = axes[which[0]], axes[which[1]]
        self._which = which
        self._corner = corner
        self._sides = first, second

    def _at(self, first: float, second: float) -> str:
        """The point at these shares of the two sides, from the corner; text for SVG."""
        (left, top), (one, other) = self._corner, self._sides
        across, down = first * one[0] + second * other[0], first * one[1] + second * other[1]
        return f"{left + across:.1f} {top + down:.1f}"

    def _area(self, first: tuple[float, float], second: tuple[float, float]) -> str:
        corners = ((0, 0), (0, 1), (1, 1), (1, 0))
        return "M" + "L".join(self._at(first[at], second[to]) for at, to in corners) + "Z"

    def _lines(self, edges: Iterable[Iterable[int]]) -> str:
        ahead, down = edges
        one, other = (axis.size for axis in self._axes)
        across = (f"M{self._at(at / one, 0)}L{self._at(at / one, 1)}" for at in ahead)
        along = (f"M{self._at(0, at / other)}L{self._at(1, at / other)}" for at in down)
        return "".join((*across, *along))

    def drawn(self, touched: Sequence[Box]) -> str:
        """The side as SVG."""
        whole = self._area((0, 1), (0, 1))
        seen = {(box[self._which[0]], box[self._which[1]]): None for box in touched}
        one, other = (axis.size for axis in self._axes)
        areas = "".join(self._area((a / one, b / one), (c / other, d / other)) for (a, b), (c, d) in seen)
        fine = self._lines(axis.fine for axis in self._axes)
        edges = self._lines(axis.edges for axis in self._axes)
        thin = 'fill="none" stroke="#a9cbe8" stroke-width=".7"'
        shapes = [
            ('xz-face" fill="#dcebf8', whole),
            ('xz-read" fill="#f0a03c', areas),
            (f'xz-fine" {thin[:-1]}', fine),
            ('xz-edge" fill="none" stroke="#3a78b0', edges + whole),
        ]
        return "".join(f'<path class="{kind}" d="{path}"/>' for kind, path in shapes if path)
