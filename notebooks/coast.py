"""Coast lines and borders for maps in degrees, from Natural Earth at 1:110 million.

The data are in the public domain (naturalearthdata.com). The package `pyogrio` ships them, as a file of its
tests; where that file is absent, `draw` draws nothing, and `credit` says why.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUNTRIES = "tests/fixtures/naturalearth_lowres/naturalearth_lowres.shp"
POLYGON, MULTIPOLYGON = 3, 6  # What well-known binary calls them.


def countries() -> Path | None:
    """The file of the polygons of countries, or None."""
    package = find_spec("pyogrio")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / COUNTRIES
    return path if path.is_file() else None


def rings(shape: bytes) -> list[np.ndarray]:
    """The rings of a polygon or of several, each of shape (n, 2): longitudes and latitudes.

    >>> point = np.array([[0, 0], [2, 0], [1, 2], [0, 0]], "<f8")
    >>> [ring.shape for ring in rings(b"\\1" + np.array([3, 1, 4], "<u4").tobytes() + point.tobytes())]
    [(4, 2)]
    """

    def number(at: int) -> int:
        return int(np.frombuffer(shape, "<u4", 1, at)[0])

    found, at = [], 0
    polygons = 1
    if number(1) == MULTIPOLYGON:
        polygons, at = number(5), 9
    for _ in range(polygons):
        if shape[at] != 1 or number(at + 1) != POLYGON:
            raise ValueError(
                f"a shape of kind {number(at + 1)} where polygons in little endian were expected"
            )
        count, at = number(at + 5), at + 9
        for _ in range(count):
            size = number(at)
            found.append(np.frombuffer(shape, "<f8", 2 * size, at + 4).reshape(size, 2))
            at += 4 + 16 * size
    return found


@cache
def lines() -> tuple[np.ndarray, np.ndarray]:
    """The pieces of coasts and those of borders, each of shape (n, 2, 2): piece, end, longitude and latitude.

    An edge that two countries share is a border; one that only one country has is a coast.
    """
    path = countries()
    if path is None:
        return np.empty((0, 2, 2)), np.empty((0, 2, 2))
    from pyogrio.raw import read

    shapes = read(path, columns=[])[2]
    edges = [np.stack([ring[:-1], ring[1:]], axis=1) for shape in shapes for ring in rings(bytes(shape))]
    # An edge has its western end first, so that both countries give the same one.
    every = np.concatenate(edges).round(6)
    turned = (every[:, 0, 0] > every[:, 1, 0]) | (
        (every[:, 0, 0] == every[:, 1, 0]) & (every[:, 0, 1] > every[:, 1, 1])
    )
    every[turned] = every[turned, ::-1]
    unique, counts = np.unique(every.reshape(-1, 4), axis=0, return_counts=True)
    seam = (np.abs(unique[:, 0]) > 179.99) & (np.abs(unique[:, 2]) > 179.99)  # Where polygons are cut.
    pole = (unique[:, 1] < -89.9) | (unique[:, 3] < -89.9)
    single = (counts == 1) & ~seam & ~pole
    return unique[single].reshape(-1, 2, 2), unique[counts > 1].reshape(-1, 2, 2)


def draw(axis: Axes, *, color: str = "0.15", linewidth: float = 0.8, borders: bool = False) -> bool:
    """Draw coasts, and borders if asked, on a map in degrees; whether the data are there.

    The limits of the axis stay as they are. Longitudes may be counted from -180 or from 0.

    Parameters
    ----------
    axis : matplotlib.axes.Axes
        A map that is already drawn: x are degrees east, y are degrees north.
    color : str
        Colour of the lines.
    linewidth : float
        Width of coasts, in points; borders have half of it.
    borders : bool
        Whether to draw the borders of countries.
    """
    from matplotlib.collections import LineCollection

    coasts, shared = lines()
    limits = axis.get_xlim(), axis.get_ylim()
    for pieces, width in ((coasts, linewidth), (shared if borders else shared[:0], linewidth / 2)):
        for turn in (-360, 0, 360):
            west, east = sorted(limits[0])
            moved = pieces + np.array([turn, 0])
            inside = (moved[:, :, 0].max(1, initial=-np.inf) >= west) & (
                moved[:, :, 0].min(1, initial=np.inf) <= east
            )
            if inside.any():
                drawn = LineCollection(list(moved[inside]), colors=color, linewidths=width, capstyle="round")
                axis.add_collection(drawn, autolim=False)
    axis.set_xlim(limits[0])
    axis.set_ylim(limits[1])
    return len(coasts) > 0


def draw_polar(axis: Axes, *, south: bool = False, color: str = "0.15", linewidth: float = 0.8) -> bool:
    """Draw coasts around a pole, on a polar axis of longitude in radians and degrees from the pole.

    Returns whether the data are there. The limits of the axis stay as they are.
    """
    from matplotlib.collections import LineCollection

    coasts = lines()[0]
    distance = 90 + coasts[:, :, 1] if south else 90 - coasts[:, :, 1]
    farthest = axis.get_ylim()[1]
    near = (distance < farthest).all(axis=1)
    around = np.stack([np.deg2rad(coasts[:, :, 0]), distance], axis=2)[near]
    axis.add_collection(LineCollection(list(around), colors=color, linewidths=linewidth), autolim=False)
    axis.set_ylim(0, farthest)
    return len(coasts) > 0


def credit() -> str:
    """Where the coast comes from, or why there is none."""
    if countries() is not None:
        return "Coast: Natural Earth"
    if find_spec("pyogrio") is None:
        return "No coast: pyogrio, which ships Natural Earth, is not installed"
    return "No coast: this pyogrio was installed without Natural Earth"
