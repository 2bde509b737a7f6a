"""``ds.xzarr3``: when it is there, whatever is imported first, and what it is called after."""

import pytest
from _processes import printed_by

DATASET = "ds = xarray.Dataset({'t': ('x', [1.0, 2.0])})"
STORE = "store = xzarr3.MemoryStore(); xzarr3.create_array(store, 't', data=[1.0], dimension_names=['x'])"


@pytest.mark.slow
@pytest.mark.parametrize("way", [
    f"import xarray, xzarr3; {DATASET}", f"import xzarr3, xarray; {DATASET}",
    f"import xzarr3, importlib.util; importlib.util.find_spec('xarray'); import xarray; {DATASET}",
    f"import xzarr3; {STORE}; import xarray; ds = xarray.open_dataset(store, engine='xzarr3')",
    f"import xzarr3; {STORE}; ds = xzarr3.open_dataset(store)",
])  # fmt: skip
def test_the_accessor_is_there(way: str) -> None:
    each = "(ds.xzarr3, ds.t.xzarr3, xarray.DataTree(ds).xzarr3)"
    shown = f"import xarray; print(*(str(each).count('explain(), to_zarr()') for each in {each}))"
    assert printed_by(f"{way}\n{shown}") == ["1 1 1"]


@pytest.mark.slow
def test_xarray_imported_later_has_its_own_loader() -> None:
    code = "import xzarr3, xarray; print(xarray.__loader__ is xarray.__spec__.loader, xarray.__loader__)"
    assert "True <_frozen_importlib_external.SourceFileLoader" in printed_by(code)[0]


def test_importing_xzarr3_imports_neither_xarray_nor_what_draws() -> None:
    shown = "[name for name in sys.modules if name.startswith('xzarr3.display.')]"
    code = f"import sys, xzarr3; print('xarray' in sys.modules, 'html' in sys.modules, {shown})"
    assert printed_by(code) == ["False False []"]
