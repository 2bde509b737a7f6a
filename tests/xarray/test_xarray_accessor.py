"""``ds.xzarr3``: when it is there, whatever is imported first, and what it is called after."""

from __future__ import annotations

import subprocess
import sys

import pytest

_DATASET = "ds = xarray.Dataset({'t': ('x', [1.0, 2.0])})"
_STORE = "store = xzarr3.MemoryStore(); xzarr3.create_array(store, 't', data=[1.0], dimension_names=['x'])"


# Each of several pieces of code is run in a fork of its own, as if in a fresh Python: only what xarray needs
# is imported already.
_FORKS = """
import os, sys
import numpy, pandas
assert not {"xarray", "xzarr3"} & set(sys.modules)
for code in sys.argv[1:]:
    child = os.fork()
    if not child:
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
"""


def run(*codes: str) -> list[str]:
    """The lines that fresh Pythons print."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, *codes], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_accessor_is_there() -> None:
    ways = [
        f"import xarray, xzarr3; {_DATASET}",
        f"import xzarr3, xarray; {_DATASET}",
        f"import xzarr3, importlib.util; importlib.util.find_spec('xarray'); import xarray; {_DATASET}",
        f"import xzarr3; {_STORE}; import xarray; ds = xarray.open_dataset(store, engine='xzarr3')",
        f"import xzarr3; {_STORE}; ds = xzarr3.open_dataset(store)",
    ]
    each = "(ds.xzarr3, ds.t.xzarr3, xarray.DataTree(ds).xzarr3)"
    shown = f"import xarray; print(*(str(each).count('explain(), to_zarr()') for each in {each}))"
    assert run(*(f"{code}\n{shown}" for code in ways)) == ["1 1 1"] * len(ways)


@pytest.mark.slow
def test_xarray_imported_later_has_its_own_loader() -> None:
    code = "import xzarr3, xarray; print(xarray.__loader__ is xarray.__spec__.loader, xarray.__loader__)"
    assert "True <_frozen_importlib_external.SourceFileLoader" in run(code)[0]


def test_importing_xzarr3_imports_neither_xarray_nor_what_draws() -> None:
    shown = "[name for name in sys.modules if name.startswith('xzarr3.display.')]"
    code = f"import sys, xzarr3; print('xarray' in sys.modules, 'html' in sys.modules, {shown})"
    found = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).strip()
    assert found == "False False []"
