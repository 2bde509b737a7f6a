"""What is said of a place without a node: from few reads, and never an error of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import xarray as xr
from _kinds import Unlisted

import xzarr3
from xzarr3.errors import StoreError
from xzarr3.nodes.absent import what_is_there
from xzarr3.stores import ObjectStore

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


class Slow(xzarr3.MemoryStore):
    """A store that many requests at once are sent to."""

    concurrency = 8


class Broken(xzarr3.MemoryStore):
    """A store that finds nothing and cannot be listed."""

    def list(self, prefix: str = "") -> Any:
        raise StoreError("listing failed")

    list_dir = list


def message(store: Any, path: str = "") -> str:
    with pytest.raises(xzarr3.NodeNotFoundError) as caught:
        xzarr3.open(store, path)
    return str(caught.value)


def test_a_look_takes_few_requests_and_fails_silently() -> None:
    values = {f"f{n:03}/g{m}/h/x": b"1" for n in range(50) for m in range(50)}
    with xzarr3.trace() as t:
        assert "no store is there" in what_is_there(Slow(values), "")
    assert t.total["list"] <= 4
    assert t.total["requests"] <= 30
    assert "nothing" in what_is_there(Slow({}), "")
    with xzarr3.trace() as t:
        what_is_there(Slow({"zarr.json": GROUP}), "a/b")
    assert t.total["requests"] <= 24
    assert what_is_there(Broken({}), "") == ""
    assert "found no 'zarr.json'" in message(Broken({}))
    assert "found no 'a/zarr.json'" in message(Broken({"zarr.json": GROUP}), "a")


def test_a_missing_group_that_may_be_made_costs_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*args: object) -> str:
        pytest.fail("the place was looked at")

    monkeypatch.setattr("xzarr3.nodes.absent.what_is_there", look)
    dataset = xr.Dataset({"a": ("x", np.arange(3))})
    for options in ({"mode": "a"}, {"append_dim": "x"}):
        xzarr3.to_zarr(dataset, xzarr3.MemoryStore(), **options)
    xzarr3.open_group(xzarr3.MemoryStore(), mode="a")


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
def test_deep_paths_name_the_nearest_group(zarr_format: Any) -> None:
    store = xzarr3.MemoryStore()
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    root.create_array("ocean/surface/sst", shape=1, dtype="i1")
    for found in (message(store, "ocean/surface/sss"), message(store, "/ocean/surface/sss/")):
        assert "did you mean 'sst'? the group '/ocean/surface' has: 'sst'" in found
    assert "did you mean 'surface'? the group '/ocean' has: 'surface'" in message(store, "ocean/surfase/sst")
    assert "surface/sst' is an array, which has no nodes below it" in message(store, "ocean/surface/sst/x")
    for group in (root, root.loaded(), xzarr3.open_group(store, "ocean")):
        path = "surface/sss" if group.path else "ocean/surface/sss"
        with pytest.raises(KeyError, match="did you mean 'sst'\\? the group '/ocean/surface' has"):
            group[path]


@pytest.mark.parametrize("consolidated", [True, False])
def test_stores_without_listing_name_what_they_know(consolidated: bool) -> None:
    listed = xzarr3.MemoryStore()
    root = xzarr3.create_group(listed)
    root.create_array("ocean/sst", shape=1, dtype="i1")
    if consolidated:
        root.consolidate()
    found = message(Unlisted(listed), "ocean/sts")
    assert ("did you mean 'sst'? the group '/ocean' has: 'sst'" in found) == consolidated
    assert ("the nearest group above is '/ocean'" in found) != consolidated


def test_other_stores_and_repositories_are_recognized(tmp_path: Path) -> None:
    service = obstore.store.MemoryStore()
    service.put("data/a.zarr/zarr.json", GROUP)
    assert "no store is there; it has: 'data'" in message(ObjectStore(service))
    icechunk = pytest.importorskip("icechunk")
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    assert "an Icechunk repository" in message(tmp_path / "repo")
