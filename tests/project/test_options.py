"""Options of the process: one mechanism under two names, and what each option changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import refused
from _things import case
from dask.utils import parse_bytes

import xzarr3
from xzarr3 import config, set_options
from xzarr3.parallel import available_threads, run_on_threads, waiters
from xzarr3.quantities import byte_count
from xzarr3.stores import in_flight

DEFAULTS = {"max_document_bytes": 2**26, "memory_limit": None, "missing": "fill", "threads": None}


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    assert dict(config) == DEFAULTS
    yield
    config.reset()


def test_both_names_set_the_same() -> None:
    with config.set({"threads": 2}, missing="warn"):
        assert (config["threads"], config.get("missing")) == (2, "warn")
        with set_options(threads=None, memory_limit="1 MiB"):
            assert config["threads"] is None
            assert config["memory_limit"] == 2**20
        assert config["threads"] == 2
    assert dict(config) == DEFAULTS
    config.set(threads=3)
    assert config["threads"] == 3
    assert "threads=3" in repr(config)


@pytest.mark.parametrize(
    ("name", "value", "error", "match"),
    [
        ("threads", 0, ValueError, "threads=0; accepted: an integer of at least 1"),
        ("memory_limit", "lots", ValueError, "memory_limit='lots'; accepted: a positive"),
        ("missing", "erorr", ValueError, "did you mean 'error'"),
        ("max_document_bytes", 0, ValueError, "max_document_bytes=0; accepted"),
        ("thread", 1, KeyError, "did you mean 'threads'"),
        ("threading.max_workers", 1, KeyError, "here that is 'threads'"),
        ("async.concurrency", 1, KeyError, "concurrency=... of a store"),
    ],
)
def test_what_is_no_option_is_refused(name: str, value: Any, error: Any, match: str) -> None:
    refused(error, lambda: config.set({"threads": 2, name: value}), match=match)
    assert dict(config) == DEFAULTS


SIZES = ["1", "10 B", "2 kB", "2 KB", "2k", "1.5 MiB", "3MB", "4 G", "1e6", "1e3 kB", ".5 GiB", "2 TiB"]


def test_sizes_are_those_of_dask() -> None:
    assert [*map(byte_count, SIZES)] == [*map(parse_bytes, SIZES)]
    for size in ("", "MB", "-1 MB", "1 XB", "1 2", "0", 0, -5, 1.5, True, None, [], "9" * 99, "inf"):
        with case(size), pytest.raises(ValueError, match=r"size=.*; accepted: a positive"):
            byte_count(size)


def test_threads_are_the_most_of_work_that_is_not_told() -> None:
    with config.set(threads=1):
        assert available_threads() == 1
        assert in_flight.at_once(64, 1) == 1
    with config.set(threads=10**6):
        assert available_threads() < 10**6
        assert in_flight.at_once(64, 1) == 64


def test_no_more_threads_help_than_there_are() -> None:
    asked: list[int] = []
    assert len(run_on_threads(lambda: asked.append(1), 10**5, waiters)) <= waiters.number + 1
    assert len(asked) <= waiters.number + 1
    assert xzarr3.copy(xzarr3.array([1, 2], chunks=1), {}, threads=2**70)[...].tolist() == [1, 2]


def test_missing_is_that_of_what_is_opened_without(tmp_path: Path) -> None:
    store = xzarr3.LocalStore(tmp_path / "s")
    made = xzarr3.create_array(store, "t", shape=4, chunks=2, dtype="f4", dimension_names=["x"])
    made[:2] = 1
    with config.set(missing="error"):
        opened = xzarr3.open_array(store, "t")
        refused(
            xzarr3.MissingChunksError, lambda: opened[...], lambda: xzarr3.open(store, "t")[...],
            lambda: xzarr3.open_group(store)["t"][...], lambda: xzarr3.from_zarr(store, "t").compute(),
            lambda: xzarr3.open_dataset(store).load(), lambda: xr.open_dataset(store, engine="xzarr3").load(),
        )  # fmt: skip
        np.testing.assert_array_equal(xzarr3.open_array(store, "t", missing="fill")[...], [1, 1, 0, 0])
    with pytest.raises(xzarr3.MissingChunksError):  # It was opened so.
        opened[...]
    np.testing.assert_array_equal(xzarr3.open_array(store, "t")[...], [1, 1, 0, 0])
