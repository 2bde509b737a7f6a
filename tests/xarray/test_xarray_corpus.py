"""The engine ``"xzarr3"`` beside ``"zarr"`` over a corpus of datasets, as written by either of the two."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from _engines import QUIET, Stores, check_same, ours, theirs, write
from _slow import covering, slow
from _things import without_addresses
from _xarray_datasets import CORPUS, DATASETS, NEW, in_format

from xzarr3.xarray.backend import Xzarr3BackendEntrypoint

zarr = pytest.importorskip("zarr")

pytestmark = [pytest.mark.filterwarnings(each) for each in QUIET]

WRITERS = ("zarr", "xzarr3")
QUICK = ("cmip_noleap", "texts", "forecast", "sharded")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("corpus"))


def check_same_encodings(found: xr.Dataset, expected: xr.Dataset, zarr_format: int, writer: str) -> None:
    assert found.encoding == expected.encoding
    for name in expected.variables:
        here, there = found[name].encoding, expected[name].encoding
        assert here.keys() == there.keys(), name
        assert "fill_value" in here if zarr_format == 3 else "serializer" not in here
        units = there["shards"] or there["chunks"]
        assert here["preferred_chunks"] == dict(zip(expected[name].dims, units, strict=True))
        for key in there.keys() - {"preferred_chunks", "compressors", "filters", "serializer"}:
            np.testing.assert_equal(here[key], there[key], err_msg=f"{name}: {key}")
            assert type(here[key]) is type(there[key]), (name, key)
        for key in ("compressors", "filters"):
            if zarr_format == 3:
                assert list(here[key]) == [codec.to_dict() for codec in there[key]]
            elif writer == "zarr":  # Those that follow from the data type are left out.
                assert list(here[key]) == [each for each in there[key] if each.codec_id != "vlen-utf8"]
        if zarr_format == 3:
            serializer = {"configuration": {}, **here["serializer"]}
            assert serializer == {"configuration": {}, **there["serializer"].to_dict()}


@pytest.mark.parametrize(
    ("name", "zarr_format", "writer"),
    covering(DATASETS, [3, 2], WRITERS, quick=[(name, 3, "zarr") for name in QUICK]),
)
def test_the_same_dataset(stores: Stores, name: str, zarr_format: int, writer: str) -> None:
    path = stores(name, zarr_format, writer)
    check_same_encodings(ours(path), theirs(path), zarr_format, writer)
    for options in ({}, {"chunks": {}}, {"consolidated": True}, {"consolidated": False, "chunks": {}}):
        found, expected = ours(path, **options), theirs(path, **options)
        again = pickle.loads(pickle.dumps(found))
        for key, variable in found.variables.items():
            assert again[key].encoding.keys() == variable.encoding.keys()
        if options.get("consolidated", True):  # Directories list their files in any order.
            assert list(found.variables) == list(expected.variables)
        check_same(found, expected)
        xr.testing.assert_identical(again.load(), expected)


DATED = (*QUICK, "packed", "calendars", "curvilinear")
OPTIONS: list[dict[str, Any]] = [
    {"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True), "drop_variables": ["issued", "stamp"]},
    {"decode_coords": "all", "chunks": {}, "mask_and_scale": False},
    {"drop_variables": ["time", "x", "lat", "step", "station_name"]},
    {"consolidated": False, "create_default_indexes": False, "decode_timedelta": True},
    {"chunks": {"time": 4, "x": 2}, "cache": False}, {"decode_times": False},
    {"decode_timedelta": xr.coders.CFTimedeltaCoder(time_unit="s")}, {"decode_cf": False, "chunks": {}},
    {"mask_and_scale": {"tas": False}}, {"zarr_format": 3, "cache_members": False}, {"decode_coords": False},
    {"concat_characters": False}, {"chunks": 2, "inline_array": True},
]  # fmt: skip


def outcome(open_dataset: Any, path: str, **options: Any) -> Any:
    """The dataset, or why there is none."""
    try:
        return open_dataset(path, **options)
    except (ValueError, OverflowError, NotImplementedError) as error:
        return error


@pytest.mark.filterwarnings("ignore:drop_variables. no variable")
@pytest.mark.parametrize("options", [OPTIONS[0], *map(slow, OPTIONS[1:])], ids=without_addresses)
def test_the_same_dataset_with_options(stores: Stores, options: dict[str, Any]) -> None:
    for name in DATED if "decode_times" in options else (*NEW, *CORPUS):
        found, expected = outcome(ours, stores(name), **options), outcome(theirs, stores(name), **options)
        if isinstance(expected, Exception):  # For instance of dates that do not fit, in the same words.
            assert (type(found), str(found)) == (type(expected), str(expected))
        else:
            check_same(found, expected)


@pytest.mark.parametrize("options", [{}, {"mask_and_scale": False}, slow({"chunks": {}})], ids=repr)
@pytest.mark.parametrize("mask", [True, slow(False)])
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_fill_values_as_masks(stores: Stores, zarr_format: int, mask: bool, options: dict[str, Any]) -> None:
    """As xarray's data store has it; its engine does not hand the option on."""
    for name in (*QUICK, "flags", "kinds", "shapes"):
        path = stores(name, zarr_format)
        masked: dict[str, Any] = {"use_zarr_fill_value_as_mask": mask}
        store: Any = xr.backends.ZarrStore.open_group(path, mode="r", **masked)
        expected = outcome(xr.open_dataset, store, engine="store", **options)
        found = outcome(ours, path, **masked, **options)
        if not isinstance(expected, Exception):
            check_same(found, expected)
        else:  # Dates of which the first is missing are read here alone.
            assert isinstance(found, Exception) or "unable to decode time units" in str(expected)


def part_of(dataset: xr.Dataset) -> xr.Dataset:
    """What is left when every second element is taken, and of the first dimension all but the first one."""
    indexes = dict.fromkeys(dataset.sizes, slice(None, None, 2))
    return dataset.isel({**indexes, **dict.fromkeys([*indexes][:1], slice(1, None))})


@pytest.mark.parametrize(
    ("name", "zarr_format", "chunks", "engine"),
    covering(DATASETS, [3, 2], [{}, None], [ours, theirs], quick=[(name, 3, {}, ours) for name in QUICK]),
)
def test_opened_datasets_can_be_saved_again(
    stores: Stores, tmp_path: Path, name: str, zarr_format: Any, chunks: dict[str, int] | None, engine: Any
) -> None:
    path, options = stores(name, zarr_format), {"zarr_format": zarr_format}
    dataset, expected = engine(path, chunks=chunks), theirs(path).load()
    for writer in WRITERS if engine is ours else ("xzarr3",):
        write(dataset, tmp_path / writer, writer, **options)
        found = theirs(tmp_path / writer)
        for variable in dataset.variables if engine is ours else ():
            for key in ("chunks", "shards", "fill_value"):
                kept, there = (each[variable].encoding.get(key) for each in (found, dataset))
                if key != "fill_value" or found[variable].dtype.kind in "iufc":
                    np.testing.assert_equal(kept, there, err_msg=f"{variable}: {key}")
        xr.testing.assert_identical(found.load(), expected)
        if writer == "xzarr3" or chunks is None:  # xarray refuses blocks that do not end where chunks do.
            write(part_of(dataset), tmp_path / f"{writer}-part", writer, **options)
            for reader in (ours, theirs):
                xr.testing.assert_identical(reader(tmp_path / f"{writer}-part").load(), part_of(expected))


GROWING = {
    "cmip_noleap": "time", "texts": "station", "sharded": "time", "blocks": "y", "forecast": "run",
    "named": "länge",
}  # fmt: skip
"""A dimension of each of some datasets."""


def begun(name: str, path: Path, stop: int, zarr_format: Any, writer: str) -> xr.Dataset:
    """Write a dataset up to an index along a dimension of it; gives all of it, with the same encoding."""
    whole, dim = in_format(name, zarr_format), GROWING[name]
    if name == "texts":  # The longest texts of fixed lengths may come later.
        whole = whole.drop_vars(["fixed", "bytes", "bytes_of_any_length", "strings"])
    if name == "forecast":  # Of these, each part has its own units.
        whole = whole.drop_vars(["issued", "far", "delay"])
    write(whole.isel({dim: slice(0, stop)}), path, writer, zarr_format=zarr_format)
    return whole


QUICK_GROWING = [(name, 3, first) for name in ("cmip_noleap", "texts", "sharded") for first in WRITERS]


@pytest.mark.parametrize(
    ("name", "zarr_format", "first"), covering(GROWING, [3, 2], WRITERS, quick=QUICK_GROWING)
)
def test_either_appends_to_the_other(tmp_path: Path, name: str, zarr_format: Any, first: str) -> None:
    second, dim = WRITERS[first == "zarr"], GROWING[name]
    whole = begun(name, tmp_path / "a", 2, zarr_format, first)
    write(whole.isel({dim: slice(2, None)}).drop_encoding(), tmp_path / "a", second, append_dim=dim)
    more = {"more": (dim, np.ones(whole.sizes[dim], "i2"), {"units": "1"})}
    write(xr.Dataset(more), tmp_path / "a", second, mode="a")
    below = xr.Dataset({"v": ("x", np.arange(11))})
    write(below, tmp_path / "a", second, group="below/it", mode="a", zarr_format=zarr_format)
    write(whole, tmp_path / "b", "zarr", zarr_format=zarr_format)
    expected = theirs(tmp_path / "b").load().assign(more)
    for options in ({}, {"consolidated": False}):
        for read in (ours, theirs):
            found = read(tmp_path / "a", **options).load()
            xr.testing.assert_equal(found, expected)
            assert found["more"].attrs == {"units": "1"}
            found = read(tmp_path / "a", group="below/it", consolidated=False)
            xr.testing.assert_identical(found.load(), below)


@pytest.mark.parametrize("options", [
    {"combine": "by_coords"},
    slow({"combine": "by_coords", "chunks": {"time": 2}, "data_vars": "minimal"}),
    slow({"combine": "nested", "concat_dim": ["time", "lon"], "parallel": True, "join": "outer"}),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("writer", WRITERS)
def test_lists_of_stores(tmp_path: Path, writer: str, options: dict[str, Any]) -> None:
    whole = DATASETS["cmip_noleap"]()
    paths: Any = [[str(tmp_path / f"{t}-{x}.zarr") for x in range(2)] for t in range(3)]
    for t, row in enumerate(paths):
        for x, path in enumerate(row):
            part = whole.isel(time=slice(3 * t, 3 * t + 3), lon=slice(4 * x, 4 * x + 4))
            write(part.drop_encoding(), path, writer)
    if options["combine"] == "by_coords":
        paths = [path for row in paths for path in row]

    def prepared(dataset: xr.Dataset) -> xr.Dataset:
        return dataset.assign_attrs(source=Path(dataset.encoding["source"]).name)

    options = {"coords": "minimal", "compat": "override", "combine_attrs": "drop_conflicts", **options}
    with dask.config.set(scheduler="threads", num_workers=2):
        read = partial(xr.open_mfdataset, paths, preprocess=prepared, **options)
        found, expected = read(engine=Xzarr3BackendEntrypoint), read(engine="zarr")
        assert found.chunks == expected.chunks
        write(found, tmp_path / "saved", "xzarr3")
        xr.testing.assert_identical(found.load(), expected.load())
        xr.testing.assert_identical(ours(tmp_path / "saved").load(), expected)
    xr.testing.assert_equal(found["tas"].transpose("time", "lat", "lon"), whole["tas"])
