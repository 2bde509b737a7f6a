"""Selections of joined arrays against numpy: of every kind, along an old and along a new dimension."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from _strategies import selections
from _things import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import from_zarr

LENGTHS = st.sampled_from([0, 1, 2, 3, 5])
FORMATS: list[dict[str, Any]] = [
    {"chunks": 2, "compressors": None}, {"chunks": 3}, {"chunks": 2, "shards": 4},
    {"zarr_format": 2, "chunks": 4, "order": "F"},
]  # fmt: skip


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[np.ndarray[Any, Any]], int]:
    """Arrays that differ in one dimension, and that dimension."""
    shape = draw(st.lists(LENGTHS, min_size=1, max_size=3))
    axis, lengths = draw(st.integers(0, len(shape) - 1)), draw(st.lists(LENGTHS, min_size=1, max_size=5))
    shape[axis] = sum(lengths)
    whole = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    return np.split(whole, np.cumsum(lengths)[:-1], axis), axis


def stored(values: np.ndarray[Any, Any], **options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), data=values, **options)


@st.composite
def indices(draw: st.DrawFn, size: int, number: int) -> np.ndarray[Any, Any]:
    found = draw(st.lists(st.integers(-size, size - 1), min_size=number, max_size=number)) if size else []
    return np.array(found, np.intp)


def check_every_selection(data: st.DataObject, array: Any, model: np.ndarray[Any, Any]) -> None:
    assert array.shape == model.shape
    chosen = data.draw(selections(model.shape))
    np.testing.assert_array_equal(array[chosen], model[chosen])
    out = np.empty_like(model[chosen])
    if isinstance(out, np.ndarray) and out.ndim:
        assert array.get(chosen, out=out) is out
        np.testing.assert_array_equal(out, model[chosen])
    along = [data.draw(indices(size, data.draw(st.integers(0, 6)))) for size in model.shape]
    np.testing.assert_array_equal(array.oindex[tuple(along)], model[np.ix_(*along)])
    if model.size:
        number = data.draw(st.integers(0, 6))
        points = tuple(data.draw(indices(size, number)) for size in model.shape)
        np.testing.assert_array_equal(array.vindex[points], model[points])
        some: list[Any] = [slice(None)] * model.ndim
        for axis in data.draw(st.sets(st.integers(0, model.ndim - 1), min_size=1)):
            some[axis] = points[axis].reshape(2, -1) if number % 2 == 0 else points[axis]
        np.testing.assert_array_equal(array[tuple(some)], model[tuple(some)])
    mask = data.draw(st.lists(st.booleans(), min_size=model.size, max_size=model.size))
    mask = np.array(mask, bool).reshape(model.shape)
    np.testing.assert_array_equal(array.get_mask_selection(mask), model[mask])


def many(data: st.DataObject, arrays: list[np.ndarray[Any, Any]]) -> list[xzarr3.Array]:
    layouts = FORMATS if arrays[0].ndim else [{}]
    return [stored(values, **data.draw(st.sampled_from(layouts))) for values in arrays]


@settings(max_examples=80)
@given(st.data(), parts())
def test_concat_selects_as_numpy(data: st.DataObject, given_: Any) -> None:
    arrays, axis = given_
    check_every_selection(data, xzarr3.concat(many(data, arrays), axis), np.concatenate(arrays, axis))


@settings(max_examples=80)
@given(st.data(), st.lists(LENGTHS, min_size=0, max_size=2), st.integers(1, 4))
def test_stack_selects_as_numpy(data: st.DataObject, shape: list[int], number: int) -> None:
    arrays = [*np.arange(number * int(np.prod(shape)), dtype="i4").reshape(number, *shape)]
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    check_every_selection(data, xzarr3.stack(many(data, arrays), axis=axis), np.stack(arrays, axis))


@settings(max_examples=40)
@given(st.data(), parts())
def test_blocks_and_tasks_cover_a_joined_array(data: st.DataObject, given_: Any) -> None:
    arrays, axis = given_
    array, model = xzarr3.concat(many(data, arrays), axis), np.concatenate(arrays, axis)
    found = np.full_like(model, -1)
    for task in array.chunk_tasks():
        found[task.selection] = task()
    np.testing.assert_array_equal(found, model)
    assert tuple(map(sum, array.write_chunk_sizes)) == model.shape
    ends, blocks = np.cumsum([each.shape[axis] for each in arrays]), np.cumsum(array.write_chunk_sizes[axis])
    assert {*ends.tolist()} - {0} <= {*blocks.tolist()}, "each array ends where a block ends"


def test_joined_arrays_can_be_joined_again() -> None:
    arrays = [stored(np.arange(6).reshape(2, 3) + 10 * at) for at in range(4)]
    whole = xzarr3.concat([xzarr3.concat(arrays[:2], 1), xzarr3.concat(arrays[2:], 1)], 0)
    model = np.block([[each.get() for each in row] for row in (arrays[:2], arrays[2:])])
    np.testing.assert_array_equal(whole[...], model)
    np.testing.assert_array_equal(whole[::-1, 1:5:2], model[::-1, 1:5:2])
    assert whole.explain((0, 4)).chunks == 1


def test_fields_of_structured_elements_are_selected() -> None:
    values = [np.array([(at, at / 2)] * 2, [("a", "i4"), ("b", "f8")]) for at in range(3)]
    array, model = xzarr3.concat([stored(each) for each in values], 0), np.concatenate(values)
    np.testing.assert_array_equal(array["b", 1:5], model["b"][1:5])
    np.testing.assert_array_equal(array.get_basic_selection(slice(3), fields="a"), model["a"][:3])
    for index in (6, -7, (0, 0), "c"):
        with pytest.raises((xzarr3.SelectionError, IndexError)):
            array[index]


@pytest.mark.parametrize("join", [partial(xzarr3.concat, dim=0), partial(xzarr3.concat, dim=1), xzarr3.stack])
@pytest.mark.parametrize("shape", [(3, 4), (5, 2), (0, 0)])
def test_an_array_that_its_handle_makes_shorter_is_not_read_past_its_end(shape: Any, join: Any) -> None:
    arrays = [xzarr3.array(np.full((5, 4), at), chunks=2) for at in range(3)]
    whole = join(arrays)
    expected = whole[...].tolist()
    arrays[1].append(np.ones((2, 4)))
    assert whole[...].tolist() == expected
    arrays[1].resize(shape)
    for read in (
        lambda: whole[...],
        lambda: whole.explain(...),
        lambda: xzarr3.copy(whole, xzarr3.MemoryStore()),
        from_zarr(whole).compute,
    ):
        refused(xzarr3.StoreError, rf"shape {re.escape(str(shape))} now.*again", read)
