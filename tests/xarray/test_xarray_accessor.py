"""``ds.xzarr3``: when it is there, whatever is imported first, and what it is called after."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import xzarr3
import xzarr3.xarray

_DATASET = "ds = xarray.Dataset({'t': ('x', [1.0, 2.0])})"
_STORE = "store = xzarr3.MemoryStore(); xzarr3.create_array(store, 't', data=[1.0], dimension_names=['x'])"


def run(code: str) -> str:
    """What a fresh Python prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        f"import xarray, xzarr3; {_DATASET}",
        f"import xzarr3, xarray; {_DATASET}",
        f"import xzarr3, importlib.util; importlib.util.find_spec('xarray'); import xarray; {_DATASET}",
        f"import xzarr3, xarray, xzarr3.xarray; {_DATASET}",
        f"import xzarr3; {_STORE}; import xarray; ds = xarray.open_dataset(store, engine='xzarr3')",
        f"import xzarr3; {_STORE}; ds = xzarr3.open_dataset(store)",
        f"import xzarr3, xarray; {_DATASET}; xzarr3.to_zarr(ds, xzarr3.MemoryStore())",
    ],
    ids=["first", "later", "sought and later", "xzarr3.xarray", "the engine", "open_dataset", "to_zarr"],
)
def test_the_accessor_is_there(code: str) -> None:
    assert run(f"{code}\nprint(ds.xzarr3, ds.t.xzarr3)").count("explain(), to_zarr()") == 2


@pytest.mark.slow
def test_xarray_imported_later_has_its_own_loader() -> None:
    code = "import xzarr3, xarray; print(xarray.__loader__ is xarray.__spec__.loader, xarray.__loader__)"
    assert "True <_frozen_importlib_external.SourceFileLoader" in run(code)


def test_importing_xzarr3_imports_neither_xarray_nor_what_draws() -> None:
    shown = "[name for name in sys.modules if name.startswith('xzarr3.display.')]"
    found = run(f"import sys, xzarr3; print('xarray' in sys.modules, 'html' in sys.modules, {shown})")
    assert found == "False False ['xzarr3.display.shown']"


def test_the_accessor_of_each_kind() -> None:
    ds = xr.Dataset({"t": ("x", np.arange(3.0))})
    for lazy in (ds, ds.t, xr.DataTree(ds)):
        written = lazy.xzarr3.to_zarr(xzarr3.MemoryStore())
        assert isinstance(written, xzarr3.Group)
        assert lazy.xzarr3.explain().requests == 0
