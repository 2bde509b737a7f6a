"""An append is taken back as a whole where it fails: its values and its shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents

import xzarr3
from xzarr3 import MemoryStore, to_zarr


class Interrupting(MemoryStore):
    """Interrupts the process once a document is stored."""

    key = ""

    def put(self, key: str, pieces: Any) -> None:
        super().put(key, pieces)
        if key == self.key:
            self.key = ""
            raise KeyboardInterrupt


APPENDS: dict[str, Callable[[Any], Any]] = {
    "append": lambda store: xzarr3.open_array(store, "v", mode="r+").append(np.full(3, 7.0)),
    "to_zarr": lambda store: to_zarr(xr.Dataset({"v": ("x", np.full(3, 7.0))}), store, append_dim="x"),
    "dask": lambda store: to_zarr(
        xr.Dataset({"v": ("x", np.full(3, 7.0))}).chunk(x=1), store, append_dim="x"
    ),
}


@pytest.mark.parametrize("how", APPENDS)
def test_an_append_that_is_interrupted_once_its_shape_is_stored_leaves_nothing(how: str) -> None:
    store = Interrupting()
    to_zarr(xr.Dataset({"v": ("x", np.arange(3.0))}), store, encoding={"v": {"chunks": (2,)}})
    before = contents(store).keys()
    store.key = "v/zarr.json"
    with pytest.raises(KeyboardInterrupt):
        APPENDS[how](store)
    assert not store.key
    assert contents(store).keys() == before
    assert xzarr3.open_array(store, "v")[...].tolist() == [0.0, 1.0, 2.0]
    APPENDS[how](store)
    assert xzarr3.open_array(store, "v")[...].tolist() == [0.0, 1.0, 2.0, 7.0, 7.0, 7.0]
