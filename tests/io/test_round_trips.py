"""Arrays of any data type, in any format that has it, are read and copied as written, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from _slow import slow_but
from _strategies import arrays_of, attempt, data_types, scalars, shapes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import MemoryStore, MetadataError
from xzarr3.dtypes import ZDType

FORMATS = (3, 2, "3-draft")
LAYOUTS: list[dict[str, Any]] = [
    {"chunks": (2, 3)}, {"chunks": (1, 2), "shards": (2, 4)}, {"chunks": ([1, 3], [2, 1, 2])}
]  # fmt: skip


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
    array, error = attempt(
        lambda: xzarr3.create_array(store, "a", shape=shape, dtype=data_type, **options), MetadataError
    )
    if error is not None:
        assert list(store.list()) == []
        assert zarr_format != 3
        return
    array[...] = values
    again = xzarr3.open_array(store, "a")
    assert same(data_type, again.get(), values)
    if shape and math.prod(shape):
        part = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in shape)
        assert same(data_type, again.get(part), values[part])
        first = (0,) * len(shape)
        array[first] = array.metadata.fill_value
        changed = values.copy()
        changed[first] = machine.filled((), array.metadata.fill_value)[()]
        values = changed
    # Where another format has the data type, so has a copy.
    other = 3 if zarr_format != 3 else data.draw(st.sampled_from([2, "3-draft"]))
    target = MemoryStore()
    copied, error = attempt(lambda: xzarr3.copy(again, target, zarr_format=other), MetadataError)
    if error is not None:
        assert list(target.list()) == []
        assert zarr_format == 3
        return
    for found in (again, copied):
        assert same(data_type, found.get(), values)
        # The copy of a scalar, which is always stored, may lack a fill value.
        if options["fill_value"] is not None and (shape or found is again):
            assert machine.bits(found.metadata.fill_value) == machine.bits(options["fill_value"])


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_type_through_dask(data: st.DataObject) -> None:
    data_type = data.draw(data_types())
    machine = data_type.in_native_order()
    values = data.draw(arrays_of(machine, (4, 5)))
    store = MemoryStore()
    layout = data.draw(st.sampled_from(LAYOUTS))
    xzarr3.create_array(store, "a", data=values, dtype=data_type, **layout)
    lazy = xzarr3.from_zarr(store, "a", chunks="units")
    assert lazy.dtype == machine.to_native_dtype()
    assert same(data_type, lazy.compute(scheduler="sync"), values)
    target = xzarr3.create_array(store, "b", shape=(4, 5), dtype=data_type, **layout)
    for blocks in (lazy, lazy.rechunk((3, 4))):
        target[...] = target.fill_value
        xzarr3.store(blocks, target, scheduler=data.draw(st.sampled_from(["sync", "threads"])))
        assert same(data_type, target.get(), values)
