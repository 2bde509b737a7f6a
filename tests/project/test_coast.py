"""The coast lines on maps of the notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import coast


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(coast, "countries", lambda: None)
    coast.lines.cache_clear()
    yield
    coast.lines.cache_clear()


def polygon(*points: tuple[float, float]) -> bytes:
    numbers = np.array([3, 1, len(points)], "<u4").tobytes()
    return b"\1" + numbers + np.array(points, "<f8").tobytes()


def test_rings_of_one_polygon_and_of_two() -> None:
    first, second = polygon((0, 0), (1, 0), (0, 1), (0, 0)), polygon((5, 5), (6, 5), (5, 5))
    both = b"\1" + np.array([6, 2], "<u4").tobytes() + first + second
    assert [ring.tolist() for ring in coast.rings(both)] == [
        [[0, 0], [1, 0], [0, 1], [0, 0]],
        [[5, 5], [6, 5], [5, 5]],
    ]
    with pytest.raises(ValueError, match="kind 1"):
        coast.rings(b"\1" + np.array([1, 0], "<u4").tobytes() + bytes(16))


def test_the_49th_parallel_is_a_border_and_land_s_end_a_coast() -> None:
    coasts, borders = coast.lines()
    assert ((borders[:, :, 1] == 49) & (borders[:, :, 0] < -95)).all(1).any()
    west = coasts[(coasts[:, :, 1] > 49.5).all(1) & (coasts[:, :, 1] < 51).all(1)]
    assert (np.abs(west[:, :, 0] + 5.2) < 0.8).any()
    # Where polygons are cut, at 180 degrees and at the pole, is no coast.
    assert not (np.abs(coasts[:, :, 0]) == 180).all(1).any()
    assert coasts[:, :, 1].min() > -89


@pytest.mark.parametrize("west", [-135, 225])
def test_draw_keeps_the_limits_and_finds_the_turn_of_the_globe(west: float) -> None:
    axis = Figure().subplots()
    axis.set_xlim(west, west + 90)
    axis.set_ylim(15, 60)
    assert coast.draw(axis, borders=True)
    assert axis.get_xlim() == (west, west + 90)
    assert len(axis.collections) == 2
    for drawn in axis.collections:
        points = np.concatenate([path.vertices for path in drawn.get_paths()])
        assert points[:, 0].min() < west + 20
        assert points[:, 0].max() > west + 60


@pytest.mark.parametrize("south", [False, True])
def test_draw_polar_keeps_what_is_near_the_pole(south: bool) -> None:
    axis = Figure().subplots(subplot_kw={"projection": "polar"})
    axis.set_ylim(0, 30)
    assert coast.draw_polar(axis, south=south)
    points = np.concatenate([path.vertices for path in axis.collections[0].get_paths()])
    assert axis.get_ylim() == (0, 30)
    assert points[:, 1].max() < 30
    # Land reaches within 10 degrees of both poles: Greenland, and Antarctica.
    assert points[:, 1].min() < 10


def test_without_data_nothing_is_drawn_and_credit_says_so(without_data: None) -> None:
    axis = Figure().subplots()
    assert not coast.draw(axis, borders=True)
    assert not axis.collections
    assert coast.credit() == "No coast: this pyogrio was installed without Natural Earth"


def test_data_are_found_where_pyogrio_is() -> None:
    path = coast.countries()
    assert isinstance(path, Path)
    assert path.is_file()
    assert coast.credit() == "Coast: Natural Earth"
