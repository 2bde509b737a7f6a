"""Both engines beside each other, what stores hold, and stores that note their changes and fail at them."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from _xarray_datasets import in_format, written_alike
from xarray.conventions import SerializationWarning

import xzarr3
from xzarr3.xarray.backend import Xzarr3BackendEntrypoint

FORMATS: list[Any] = [3, 2, "3-draft"]
DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata", "array.json", "group.json")
QUIET = (
    "ignore::zarr.errors.ZarrUserWarning", "ignore::RuntimeWarning", "ignore::FutureWarning",
    "ignore::cftime.CFWarning", "ignore:Variable.s. referenced in cell_measures",
    "ignore:The specified chunks", "ignore:Failed to open Zarr store with consolidated",
    "ignore:The data type", "ignore::xarray.conventions.SerializationWarning",
)  # fmt: skip
"""Warnings of xarray and of zarr-python that say nothing about this package."""


def ours(store: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine=Xzarr3BackendEntrypoint, **options)


def theirs(store: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine="zarr", **options)


def write(dataset: xr.Dataset, path: Any, writer: str, **options: Any) -> None:
    """Write by "zarr", by "xzarr3", or by "xzarr3-dask" with its numbers in dask arrays."""
    with warnings.catch_warnings():  # xarray loads text to write it, and says so.
        warnings.simplefilter("ignore", SerializationWarning)
        if writer == "zarr":
            dataset.to_zarr(path, **options)
        else:
            numbers = [name for name, each in dataset.data_vars.items() if each.dtype.kind in "biufc"]
            lazy = {name: dataset[name].chunk() for name in numbers if writer == "xzarr3-dask"}
            xzarr3.to_zarr(dataset.assign(lazy), path, **options)


class Stores:
    """Stores of the corpus, each written when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, zarr_format: Any = 3, writer: str = "zarr") -> str:
        if not written_alike(name, zarr_format):
            pytest.skip("zarr-python writes structs in another form")
        path = self._folder / f"{name}-{zarr_format}-{writer}.zarr"
        if not path.exists():
            options = {"zarr_format": zarr_format, "consolidated": True}
            write(in_format(name, zarr_format), path, writer, **options)
        return str(path)


def check_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Identical in values, attributes, data types and in what kind of variable each one is."""
    assert set(found.coords) == set(expected.coords)
    assert set(found.xindexes) == set(expected.xindexes)
    for name, variable in expected.variables.items():
        assert found[name].dtype == variable.dtype, name
        assert isinstance(found[name].variable, type(variable)), name
        assert (found[name].chunks is None) == (variable.chunks is None), name
        if not found[name].encoding.get("shards"):  # What is opened in whole shards can be saved again.
            assert found[name].chunks == variable.chunks, name
        if variable.chunks is not None:
            metas = (each.variable.data._meta for each in (found[name], expected[name]))
            assert len({(type(meta), meta.dtype, meta.shape) for meta in metas}) == 1, name
    found, expected = found.load(), expected.load()  # xarray cannot compare records in dask arrays.
    xr.testing.assert_identical(found, expected)
    for name, variable in expected.variables.items():
        assert found.variables[name].dtype == variable.dtype, name
        assert type(found.variables[name].copy()) is type(variable), name


def document(path: Path, name: str = "", last: str = "zarr.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / name / last).read_text())
    return found


def contents(store: Any) -> dict[str, bytes]:
    """The values of a store, or the files of a directory."""
    if isinstance(store, Path):
        files = (path for path in store.rglob("*") if path.is_file())
        return {path.relative_to(store).as_posix(): path.read_bytes() for path in files}
    return {key: bytes(store.get(key) or b"") for key in store.list()}


def refused(store: Any, dataset: xr.Dataset, match: str, **options: Any) -> None:
    """Writing a dataset, from memory or from dask, is an error that says this, and changes nothing."""
    before = contents(store)
    for each in (dataset, dataset.chunk(dict.fromkeys(dataset.sizes, 2))):
        with pytest.raises(ValueError, match=match):
            xzarr3.to_zarr(each, store, **options)
        assert contents(store) == before


class NotingStore(xzarr3.MemoryStore):
    """Notes the keys that are set and erased, and can be told to fail at the n-th change."""

    def __init__(self, values: Any = None) -> None:
        super().__init__(values)
        self.changes: list[str] = []
        self.fail_at: int | None = None
        self.once = False
        """Whether it fails at one change only, and not at all that follow."""

    def _count(self, key: str) -> None:
        if self.fail_at is not None and len(self.changes) >= self.fail_at:
            self.fail_at = None if self.once else self.fail_at
            raise self.error(f"disk is full at '{key}'")
        self.changes.append(key)

    def error(self, text: str) -> BaseException:
        return xzarr3.StoreError(text)

    def put(self, key: str, pieces: Any) -> None:
        self._count(key)
        super().put(key, pieces)

    def erase(self, *keys: str) -> None:
        for key in keys:
            self._count(key)
            super().erase(key)
