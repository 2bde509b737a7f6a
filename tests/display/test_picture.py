"""The chunks that a drawing shows as touched are those that hold the selected elements."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3.display import picture as pictures
from xzarr3.display.picture import picture


def touched_chunks(array: xzarr3.Array, elements: Any) -> set[tuple[int, ...]]:
    """The first elements of the chunks that hold elements, given by their numbers in C order."""
    meta, shard = array.metadata, array.metadata.chain.shard
    lengths = (None,) * array.ndim if shard is None else shard.grid.largest
    found = set()
    for at in np.stack(np.unravel_index(np.unique(elements), array.shape), axis=-1).tolist():
        first = []
        for index, axis, inner in zip(at, meta.chunk_grid.axes, lengths, strict=True):
            begin = axis.start(axis.index(index))
            first.append(begin if inner is None else begin + (index - begin) // inner * inner)
        found.add(tuple(first[-3:]))
    return found


def drawn_chunks(array: xzarr3.Array, plan: Any) -> set[tuple[int, ...]]:
    """The first elements of the chunks within the boxes of a drawing."""
    first = max(array.ndim - 3, 0)
    boxes: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "drawing", lambda axes, found: boxes.extend(found) or "")
        picture(array.metadata, [plan])
    elements = set()
    for box in boxes:
        elements |= set(itertools.product(*(range(begin, end) for begin, end in box)))
    shape = array.shape[first:]
    numbers = [np.ravel_multi_index((*(0,) * first, *at), array.shape) for at in elements]
    assert all(0 <= index < size for at in elements for index, size in zip(at, shape, strict=True))
    return touched_chunks(array, np.array(numbers, int)) if numbers else set()


@st.composite
def arrays(draw: st.DrawFn) -> xzarr3.Array:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    inner = tuple(draw(st.integers(1, 4)) for _ in shape)
    options: dict[str, Any] = {"chunks": inner}
    kind = draw(st.sampled_from(["chunks", "shards", "lengths"]))
    if kind == "shards":
        options["shards"] = tuple(length * draw(st.integers(1, 3)) for length in inner)
    if kind == "lengths":
        options["chunks"] = [[1] * (size - size // 2) + [size // 2] * (size > 1) for size in shape]
    return xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, dtype="int8", **options)


@pytest.mark.slow
@settings(max_examples=150)
@given(arrays(), st.data())
def test_touched_chunks(array: xzarr3.Array, data: st.DataObject) -> None:
    numbers = np.arange(array.size).reshape(array.shape)
    slices = []
    for size in array.shape:
        low, high = sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))
        part = slice(low, high, data.draw(st.sampled_from([1, 1, 2, 3])))
        slices.append(data.draw(st.sampled_from([part, part, size - 1, slice(None, None, -1)])))
    basic = tuple(slices)
    assert drawn_chunks(array, array.plan(basic)) == touched_chunks(array, numbers[basic])
    number = data.draw(st.integers(1, 4))
    drawn = [st.lists(st.integers(0, size - 1), min_size=number, max_size=number) for size in array.shape]
    lists = tuple(np.array(data.draw(each)) for each in drawn)
    outer = array.oindex.plan(lists)
    assert drawn_chunks(array, outer) == touched_chunks(array, numbers[np.ix_(*lists)])
    if number > 1 and array.ndim > 1:  # Points are not drawn.
        assert drawn_chunks(array, array.vindex.plan(lists)) == set()


def paths(source: str, kind: str) -> int:
    """How many pieces the shapes of a kind have."""
    return sum(path.count("M") for path in re.findall(f'class="xz-{kind}"[^>]* d="([^"]*)"', source))


def test_what_is_drawn() -> None:
    def drawn(plan: Any = None, **options: Any) -> str:
        array = xzarr3.create_array(xzarr3.MemoryStore(), dtype="int8", **options)
        return picture(array.metadata, [] if plan is None else [array.plan(plan)])

    assert drawn(shape=()) == drawn(shape=(3, 0, 4), chunks=1) == ""
    line = drawn(shape=10, chunks=3)
    assert (paths(line, "face"), paths(line, "edge"), paths(line, "fine")) == (1, 1 + 3, 0)
    plane = drawn(shape=(8, 12), chunks=(2, 3), shards=(4, 6))
    assert (paths(plane, "face"), paths(plane, "edge"), paths(plane, "fine")) == (1, 1 + 2, 4)
    block = drawn(shape=(8, 8, 12), chunks=(4, 2, 3), shards=(8, 4, 6))
    assert (paths(block, "face"), paths(block, "edge"), paths(block, "read")) == (3, 3 + 2 + 1 + 1, 0)
    touched = drawn((slice(1), slice(None), [0, 11]), shape=(8, 8, 12), chunks=(4, 2, 3))
    assert paths(touched, "read") == 2 + 2 + 1
    assert "the last 3 of 5 dimensions" in drawn(shape=(2, 3, 4, 5, 6), chunks=1)


@pytest.mark.parametrize("chunks", [1, 1000])
def test_drawings_of_large_arrays_are_small(chunks: int) -> None:
    shape = (10**6,) * 3
    options: dict[str, Any] = {"chunks": chunks, "shards": (10 * chunks,) * 3, "dtype": "int8"}
    array = xzarr3.create_array(xzarr3.MemoryStore(), shape=shape, **options)
    points = np.random.default_rng(0).integers(0, 10**6, (3, 5000))
    for plan in (array.vindex.plan(tuple(points)), array.plan((slice(None, None, 3000), *points[1:, :9]))):
        assert len(picture(array.metadata, [plan])) < 150_000
    assert len(picture(array.metadata)) < 10_000
    every = array.oindex.plan((points[0], slice(None), slice(5)))
    assert len(picture(array.metadata, [every])) < 20_000
