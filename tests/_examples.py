"""Objects of every kind that shows itself, also with hostile and with very many names."""

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from pictures import SST

import xzarr3
import xzarr3.xarray

HOSTILE = "<script>alert('1')</script> & \"quoted\" \x1b[2J\u202e end"
"""A name of markup, quotes, a command for terminals and a mark that reverses the writing direction."""


def examples(folder: Path) -> dict[str, Any]:
    """Objects to show, by what they are."""
    store = xzarr3.LocalStore(folder / "ocean.zarr")
    root = xzarr3.create_group(store, attributes={"title": "Ocean model", "history": ["made", "changed"]})
    sst, daily, many = _sst(root), _small(root), _many()
    known = xzarr3.open_array(store, "surface/sst")
    known.info_complete()
    with xzarr3.trace() as trace:
        xzarr3.open_array(store, "surface/sst")[:10, 0, 0]
    lazy = xr.open_dataset(store, group="surface", engine="xzarr3")
    part = lazy.isel(time=slice(20, 60), lat=slice(0, 30))
    cached = xzarr3.CacheStore(store)
    cached.get("zarr.json")
    return {
        "array": sst, "array, counted": known, "array of one dimension": root["time"],
        "array of no dimension": root["level"], "array of five dimensions": root["ensemble"],
        "array of chunks that differ": daily, "array of text": root["station"],
        "hostile array": root["hostile"], "group": xzarr3.open_group(store), "group of 10,000 nodes": many,
        "tree": root.tree(), "attributes": root["hostile"].attrs, "store": store,
        "store around a store": cached,
        "explanation": sst.explain((slice(95, 230), slice(0, 100, 40), 7)),
        "explanation of points": sst.vindex.explain(([0, 30, 299], [9, 60, 179], [1, 80, 359])),
        "explanation of a column": daily.explain((slice(None), 3)),
        "explanation of a dataset": part.xzarr3.explain(),
        "advice": xzarr3.advise(sst, access={"map": 0.5, "series": 0.3, HOSTILE: (0.2, (0, 0))}),
        "report": xzarr3.check(store), "differences": xzarr3.diff(store, _changed(store)),
        "stats": xzarr3.stats(store), "trace": trace, "info": sst.info, "indexer": sst.oindex,
    }  # fmt: skip


def _changed(store: xzarr3.Store) -> xzarr3.Store:
    """A copy of the store in which a value and an attribute are others, and an array is missing."""
    changed = xzarr3.MemoryStore()
    root = xzarr3.copy(store, changed)
    assert isinstance(root, xzarr3.Group)
    root["station"] = ["Oslo", HOSTILE]
    root["hostile"].attrs[HOSTILE] = "another text"
    del root["level"]
    return changed


def _sst(root: xzarr3.Group) -> xzarr3.Array:
    attributes = {"units": "degC", "long_name": "sea surface temperature", "valid_range": [-2, 40]}
    sst = root.create_array("surface/sst", **SST, attributes=attributes)
    sst[:100] = np.random.default_rng(0).normal(15, 5, (100, 180, 360))
    for name, size in (("time", 300), ("lat", 180), ("lon", 360)):
        root.create_array(f"surface/{name}", data=np.arange(size), dimension_names=[name])
    return sst


def _small(root: xzarr3.Group) -> xzarr3.Array:
    months = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    layout = {"shape": (365, 180), "chunks": (months, 180), "dtype": "float32", "compressors": None}
    daily = root.create_array("daily", **layout)
    daily[:100] = 1
    root.create_array("time", data=np.arange(1000), chunks=60, dimension_names=["time"])
    root.create_array("level", data=np.array(7.5))
    root.create_array("ensemble", shape=(10, 2, 40, 50, 60), chunks=(1, 1, 10, 25, 60), dtype="int16")
    root.create_array("station", data=np.array(["Oslo", "Vardø"]), dtype="string")
    attributes = {HOSTILE: HOSTILE, "<b>": ["</div>", "\x00"], "long": "x" * 5000, "x" * 300: 1}
    attributes |= {f"attribute {at}": at for at in range(300)}
    names = ("<img src=x onerror=alert(1)>", HOSTILE)
    layout = {"shape": (20, 30), "chunks": 10, "dtype": "int8", "dimension_names": names}
    root.create_array("hostile", **layout, attributes=attributes)
    return daily


def _many() -> xzarr3.Group:
    """A group of 10,000 arrays in groups, one of which is read."""
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, "model/a", shape=(4, 5), dtype="int8")
    document, group = store.get("model/a/zarr.json"), store.get("model/zarr.json")
    for at in range(99):
        store.set(f"group {at:02}/zarr.json", group)
        for number in range(100):
            store.set(f"group {at:02}/array {number:02}/zarr.json", document)
    return xzarr3.open_group(store)
