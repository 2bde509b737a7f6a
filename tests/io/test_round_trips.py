"""Arrays of any data type, in any format that has it, are read as they were written, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from _slow import slow_but
from _strategies import arrays_of, data_types, scalars, shapes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import MemoryStore, MetadataError
from xzarr3.dtypes import ZDType

FORMATS = (3, 2, "3-draft")


def same(data_type: ZDType, one: Any, other: Any) -> bool:
    """Whether two arrays hold the same elements, bit for bit."""
    left, right = np.asarray(one), np.asarray(other)
    if left.shape != right.shape:
        return False
    bits = data_type.in_native_order().bits
    return all(bits(left[at]) == bits(right[at]) for at in np.ndindex(left.shape))


@pytest.mark.parametrize("zarr_format", slow_but(FORMATS, 3, "3-draft"))
@given(st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_type_in_every_format(zarr_format: Any, data: st.DataObject) -> None:
    data_type = data.draw(data_types())
    machine = data_type.in_native_order()
    shape = data.draw(shapes(max_dims=3))
    values = data.draw(arrays_of(machine, shape))
    options = {
        "chunks": tuple(data.draw(st.sampled_from([1, 2, 4])) for _ in shape),
        "fill_value": data.draw(st.one_of(st.none(), scalars(machine))),
        "compressors": data.draw(st.sampled_from([None, "gzip"])),
        "order": data.draw(st.sampled_from("CF")),
        "write_empty_chunks": data.draw(st.booleans()),
        "zarr_format": zarr_format,
    }
    store = MemoryStore()
    try:
        array = xzarr3.create_array(store, "a", shape=shape, dtype=data_type, **options)
    except MetadataError:
        assert list(store.list()) == []
        assert zarr_format != 3
        return
    array[...] = values
    again = xzarr3.open_array(store, "a")
    assert same(data_type, again.get(), values)
    if options["fill_value"] is not None:
        assert machine.bits(again.metadata.fill_value) == machine.bits(options["fill_value"])
    if shape and math.prod(shape):
        part = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in shape)
        assert same(data_type, again.get(part), values[part])
        first = (0,) * len(shape)
        array[first] = array.metadata.fill_value
        changed = values.copy()
        changed[first] = machine.filled((), array.metadata.fill_value)[()]
        assert same(data_type, again.get(), changed)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_type_through_copies(data: st.DataObject) -> None:
    """Where a format has a data type, so has a copy, with the same values and the same fill value."""
    data_type = data.draw(data_types())
    machine = data_type.in_native_order()
    values = data.draw(arrays_of(machine, (3, 5)))
    store = MemoryStore()
    fill = data.draw(scalars(machine))
    array = xzarr3.create_array(
        store, shape=(3, 5), dtype=data_type, chunks=(2, 2), fill_value=fill, compressors="gzip"
    )
    array[1:] = values[1:]
    expected = array.get()
    for zarr_format in (2, "3-draft"):
        target = MemoryStore()
        try:
            copied = xzarr3.copy(store, target, zarr_format=zarr_format)
        except MetadataError:
            assert list(target.list()) == []
            continue
        assert same(data_type, copied.get(), expected)
        back = xzarr3.copy(target, MemoryStore(), zarr_format=3)
        assert same(data_type, back.get(), expected)
        assert machine.bits(back.metadata.fill_value) == machine.bits(array.metadata.fill_value)


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_type_through_dask(data: st.DataObject) -> None:
    data_type = data.draw(data_types())
    machine = data_type.in_native_order()
    values = data.draw(arrays_of(machine, (4, 5)))
    store = MemoryStore()
    xzarr3.create_array(store, "a", data=values, dtype=data_type, chunks=(2, 3))
    lazy = xzarr3.from_zarr(store, "a", chunks="units")
    assert lazy.dtype == machine.to_native_dtype()
    assert same(data_type, lazy.compute(scheduler="sync"), values)
    target = xzarr3.create_array(store, "b", shape=(4, 5), dtype=data_type, chunks=(2, 3))
    xzarr3.store(lazy, target, scheduler="sync")
    assert same(data_type, target.get(), values)
