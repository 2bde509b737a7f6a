"""The values of a delayed write, computed again: tasks that run twice, late and elsewhere.

The tasks run here one by one, each as a copy, as on a cluster: so every order of them is certain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import xzarr3
from xzarr3 import FsspecStore, LocalStore, Store

NEW = [float(value) for value in range(1, 5)]
STORES: dict[str, Callable[[Path], Store]] = {
    "local": LocalStore,
    "fsspec": lambda path: FsspecStore(f"file://{path}"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "new": {"group": "below"},
    "w where nothing is": {"group": "below", "mode": "w"},
    "added": {"mode": "a"},
    "region": {"region": {"x": slice(0, 4)}},
}


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("place", STORES)
def test_tasks_run_twice_in_any_order(tmp_path: Path, place: str, kind: str, order: tuple[int, ...]) -> None:
    store, options = STORES[place](tmp_path / "store"), OPTIONS[kind]
    name = "b" if kind == "added" else "a"
    old = xr.Dataset({"a": ("x", np.full(4, -1.0))})
    xzarr3.to_zarr(old, store, encoding={"a": {"chunks": (1,)}})
    made = da.from_array(np.array(NEW), chunks=1)
    later = xzarr3.to_zarr(xr.Dataset({name: ("x", made)}), store, compute=False, **options)
    found = later.__dask_optimize__(later.__dask_graph__(), [later.key])
    tasks: dict[Any, Any] = dict(found) if isinstance(found, dict) else found.to_dict()
    results: dict[Any, Any] = {}

    def run(key: Any) -> None:
        for needed in tasks[key].dependencies:
            if needed not in results:
                run(needed)
        copy = cloudpickle.loads(cloudpickle.dumps(tasks[key]))
        results[key] = copy({each: results[each] for each in copy.dependencies})

    writing = sorted((key for key in tasks if "write-zarr" in str(key)), key=str)
    assert len(writing) >= 4
    for part in (writing[: 2 + order[0]], writing[order[1] :], [later.key], writing[order[2] : 3]):
        for key in part:
            run(key)
    with xr.open_dataset(store, engine="xzarr3", group=options.get("group")) as read:  # type: ignore[arg-type]
        assert read[name].values.tolist() == NEW
