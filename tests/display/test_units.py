"""Sizes are those of dask; shares and numbers are never rounded to what they are not."""

from __future__ import annotations

import pytest
from dask.utils import format_bytes
from hypothesis import given
from hypothesis import strategies as st

from xzarr3.display.units import counted, share, size

EDGES = [int(0.9 * 2**n) + more for n in range(10, 60, 10) for more in (-1, 0, 1)]


@given(st.integers(0, 2**70) | st.sampled_from(EDGES))
def test_sizes_are_those_of_dask(number: int) -> None:
    assert size(number) == format_bytes(number)


@given(st.integers(1, 10**12), st.data())
def test_a_share_is_all_or_nothing_only_if_it_is(whole: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, whole))
    text = share(part, whole)
    assert (text == "0 %") == (part == 0)
    assert (text == "100 %") == (part == whole)
    assert abs(float(text.removesuffix(" %")) - 100 * part / whole) <= 0.51


@pytest.mark.parametrize(("number", "text"), [(0, "0 chunks"), (1, "1 chunk"), (12_345, "12,345 chunks")])
def test_numbers_of_things(number: int, text: str) -> None:
    assert counted(number, "chunk") == text
