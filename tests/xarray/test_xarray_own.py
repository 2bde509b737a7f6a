"""xarray's own tests of its Zarr backend, as they come with the installed xarray, with this engine.

``Dataset.to_zarr``, ``open_zarr`` and ``open_dataset(engine="zarr")`` are xzarr3's while they run. What fails
by decision is in ``BY_DECISION`` with its reason; a test of this list that passes fails, so it only shrinks.
"""

import asyncio
import functools
import itertools
from typing import Any

import pytest
import xarray as xr
import zarr

import xzarr3

WITHOUT = "this xarray was installed without its tests"
theirs = pytest.importorskip("xarray.tests.test_backends", reason=WITHOUT)
of_trees = pytest.importorskip("xarray.tests.test_backends_datatree", reason=WITHOUT)

from xarray.tests.conftest import (  # noqa: E402 - fixtures, which pytest finds here
    create_test_datatree,  # noqa: F401
    simple_datatree,  # noqa: F401
    time_unit,  # noqa: F401
    use_dask,  # noqa: F401
)
from xarray.tests.test_backends import tmp_store  # noqa: E402, F401
from xarray.tests.test_backends_datatree import unaligned_datatree_zarr_factory  # noqa: E402, F401

default_zarr_format = theirs.default_zarr_format

WORDING = "our own error says it in other words"
LAZY = "the array behind the lazy one is an Array, not one of xarray's wrappers"
LOSES = "refused, because it would be read as something else"
DOCUMENTS = "codecs of an encoding are documents, not objects of a library"
NO_WARNING = "a store without consolidated metadata is read without a warning"
BLOCKS = "blocks that share a stored unit are stored together, without an error"

PARTIAL = [
    "test_zarr_region_chunk_partial", "test_zarr_append_chunk_partial", "test_zarr_safe_chunk_append_dim",
    "test_zarr_region_chunk_partial_offset", "test_zarr_safe_chunk_region",
]  # fmt: skip

BY_DECISION: dict[str, str] = {
    **dict.fromkeys(PARTIAL, BLOCKS),
    "test_append_with_append_dim_no_overwrite": "an append replaces no coordinates that the old values have",
    "test_array_type_after_indexing": LAZY, "test_attributes": WORDING,
    "test_chunk_encoding": "chunks that came with the variable are left out where they cannot be",
    "test_chunk_encoding_with_dask": BLOCKS, "test_compressor_encoding[3]": DOCUMENTS, "test_dropna": LAZY,
    "test_encoding_kwarg": WORDING, "test_invalid_dataarray_names_raise": WORDING,
    "test_non_existent_store": WORDING, "test_read_non_consolidated_warning": NO_WARNING,
    "test_roundtrip_object_dtype": LOSES, "test_roundtrip_string_encoded_characters": LOSES,
    "test_roundtrip_string_with_fill_value_nchar[3]": WORDING, "test_roundtrip_stringdtype_nulls": LOSES,
    "test_shard_encoding[3]": WORDING,
    "test_shard_encoding_with_dask": BLOCKS,
    "test_to_zarr_append_compute_false_roundtrip": "compute=False is refused where old values would be lost",
    "test_to_zarr_compute_false": "scalars of the fill value are stored",
    "test_to_zarr_not_consolidated": NO_WARNING, "test_zarr_encoding[zarr_format=3]": DOCUMENTS,
    "test_zarr_fill_value_setting[2-int]": "a mark of missing values is kept apart from the fill value",
    "test_zarr_fill_value_setting[2-float]": "a mark of missing values is kept apart from the fill value",
}  # fmt: skip
"""Names of tests, some with their parameters, and why they fail."""


def _format(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the format that the tests chose by the configuration of zarr-python."""
    options.setdefault("zarr_format", zarr.config.get("default_zarr_format"))
    return options


def _to_zarr(dataset: Any, store: Any = None, *args: Any, **options: Any) -> Any:
    has_array = (
        options.get("mode") in ("a", "r+") or options.get("append_dim") or options.get("region") is not None
    )
    return xzarr3.to_zarr(dataset, store, *args, **(options if has_array else _format(options)))


def _opener(open: Any) -> Any:
    """One of xarray's functions, with this engine for the zarr engine."""

    @functools.wraps(open)
    def opened(place: Any, **options: Any) -> Any:
        if options.get("engine") == "zarr":
            options["engine"] = "xzarr3"
            options.pop("mode", None)
        return open(place, **options)

    return opened


OPENERS = ("open_dataset", "open_dataarray", "open_datatree", "open_groups")


class Ours:
    """Puts this engine in the place of the zarr engine."""

    @pytest.fixture(autouse=True)
    def _ours(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind in (xr.Dataset, xr.DataArray, xr.DataTree):
            monkeypatch.setattr(kind, "to_zarr", _to_zarr)
        for module, name in itertools.product((xr, theirs, of_trees), OPENERS):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, _opener(getattr(module, name)))
        for module in (xr, theirs):
            monkeypatch.setattr(module, "open_zarr", xzarr3.open_zarr, raising=False)
        for mark in request.node.iter_markers("skip_if_param"):
            given, params = mark.kwargs, request.node.callspec.params
            if given.get("condition", True) and all(
                params[name] == given[name] for name in params.keys() & given.keys()
            ):
                pytest.skip(given["reason"])
        for name in (request.node.originalname, request.node.name):
            if name in BY_DECISION:
                request.applymarker(pytest.mark.xfail(reason=BY_DECISION[name], strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestZarrOfXarray(Ours, theirs.TestZarrDirectoryStore):  # type: ignore[misc, name-defined]
    """The tests, on a directory."""

    def test_load_async(self) -> None:
        asyncio.run(super().test_load_async())


@pytest.mark.filterwarnings("ignore")
class TestRegionsOfXarray(Ours, theirs.TestZarrRegionAuto):  # type: ignore[misc, name-defined]
    """Regions that are found by labels."""


@pytest.mark.filterwarnings("ignore")
class TestArraysOfXarray(Ours, theirs.TestDataArrayToZarr):  # type: ignore[misc, name-defined]
    """Single data arrays."""


@pytest.mark.filterwarnings("ignore")
class TestTreesOfXarray(Ours, of_trees.TestZarrDatatreeIO):  # type: ignore[misc, name-defined]
    """Trees."""

    test_to_zarr_zip_store = None  # It is expected to fail.
