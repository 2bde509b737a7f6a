"""Processes that append, replace and set the values of one dataset at once; tasks that run twice and late."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import dask.array as da
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from _things import refused

import xzarr3
from xzarr3 import FsspecStore, LocalStore, Store, to_zarr
from xzarr3.errors import OutcomeUnknownError, Xzarr3Error

Kind: TypeAlias = Literal["append", "replace", "region"]
KINDS: list[Kind] = ["append", "replace", "region", "append", "region", "replace", "append", "region"]
ROWS: dict[Kind, int] = {"append": 3, "replace": 8, "region": 4}
ENCODING: dict[str, Any] = {"v": {"chunks": (4, 3)}, "w": {"chunks": (4,)}}


@dataclass(frozen=True)
class Write:
    """A write of rows that are all equal to a number of their own, and when it began and ended."""

    kind: Kind
    number: int
    begin: float
    end: float
    error: type[Exception] | None = None


def rows(number: int, length: int) -> xr.Dataset:
    v, w = np.full((length, 6), number, "i4"), np.full(length, number, "i4")
    return xr.Dataset({"v": (("t", "x"), v), "w": ("t", w)})


def work(kind: Kind, at: int, url: str, options: dict[str, Any] | None) -> list[Write]:
    written = []
    for n in range(6):
        number, error, begin = 1000 * at + n, None, time.monotonic()
        data = rows(number, ROWS[kind])
        if n % 2:
            data = data.chunk(t=4)
        try:
            if kind == "append":
                to_zarr(data, url, append_dim="t", storage_options=options, safe_chunks=False)
            elif kind == "replace":
                to_zarr(data, url, mode="w", storage_options=options, encoding=ENCODING)
            else:
                to_zarr(data, url, region={"t": slice(0, 4)}, storage_options=options)
        except Xzarr3Error as raised:
            error = type(raised)
        written.append(Write(kind, number, begin, time.monotonic(), error))
    return written


def check(v: npt.NDArray[Any], w: npt.NDArray[Any], writes: list[Write]) -> None:
    """See that what is there is what some order of the writes leaves, and that no write is lost."""
    by = {write.number: write for write in writes}
    assert (v == v[:, :1]).all()
    (number,) = {*v[4:8, 0].tolist(), *w[4:8].tolist()}
    base = by[number]
    assert base.kind == "replace"
    later = [write for write in writes if write.begin > base.end and write.error is None]
    assert not [write for write in later if write.kind == "replace"], "a dataset is lost"

    assert v[8:, 0].tolist() == w[8:].tolist()
    batches = w[8:].reshape(-1, 3)
    assert (batches == batches[:, :1]).all()
    appended = batches[:, 0].tolist()
    assert len(set(appended)) == len(appended)
    for write in map(by.__getitem__, appended):
        assert write.kind == "append"
        assert write.error in (None, OutcomeUnknownError)
        assert write.end > base.begin
    assert {write.number for write in later if write.kind == "append"} <= {*appended}, "rows are lost"

    for head in (v[:4, 0], w[:4]):
        (number,) = {*head.tolist()}
        over = [write for write in later if write.kind == "region"]
        if number == base.number:
            assert not over, "a region is lost"
        assert by[number].kind == "region" or number == base.number
        assert not [write for write in over if write.begin > by[number].end], "a region is lost"


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with multiprocessing.get_context("spawn").Pool(len(KINDS)) as pool:
        yield pool


@pytest.mark.parametrize("kind", ["directory", pytest.param("object store", marks=pytest.mark.slow)])
def test_processes_at_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest, pool: Any) -> None:
    url = str(tmp_path / "x.zarr")
    options: dict[str, Any] | None = None
    if kind == "object store":
        pytest.importorskip("obstore")
        url, options = "s3://b/x.zarr", request.getfixturevalue("fault_server").storage_options
    to_zarr(rows(-1, 8), url, mode="w", storage_options=options, encoding=ENCODING)
    given = [(kind, at, url, options) for at, kind in enumerate(KINDS)]
    done = pool.starmap_async(work, given, chunksize=1).get(timeout=400)
    writes = [write for each in done for write in each]
    writes.append(Write("replace", -1, 0.0, 0.0))
    found = xzarr3.open_group(url, storage_options=options, use_consolidated=False)
    check(np.asarray(found["v"]), np.asarray(found["w"]), writes)
    kept = xzarr3.open_store(url, options).list()
    assert not [key for key in kept if "xzarr3" in key]
    for each in set(KINDS):
        assert [write for write in writes if write.kind == each and write.error is None]


@pytest.mark.parametrize(("numbers", "lost"), [
    ([1] * 8 + [2] * 3, None), ([3] * 4 + [1] * 4 + [2] * 3, None), ([1] * 8, "rows are lost"),
    ([0] * 8 + [2] * 3, "a dataset is lost"), ([4] * 4 + [1] * 4 + [2] * 3, "a region is lost"),
])  # fmt: skip
def test_what_is_lost_is_found(numbers: list[int], lost: str | None) -> None:
    writes = [
        Write("replace", 0, 0, 1), Write("replace", 1, 2, 3), Write("append", 2, 4, 5),
        Write("region", 3, 2, 4), Write("region", 4, 0, 1),
    ]  # fmt: skip
    w = np.array(numbers)
    if lost is None:
        check(w[:, None], w, writes)
    else:
        writes.append(Write("region", 5, 6, 7) if lost == "a region is lost" else writes[0])
        refused(AssertionError, lost, lambda: check(w[:, None], w, writes))


COMPUTED = [float(value) for value in range(1, 5)]
PLACES: dict[str, Callable[[Path], Store]] = {
    "local": LocalStore,
    "fsspec": lambda path: FsspecStore(f"file://{path}"),
}
WRITES: dict[str, dict[str, Any]] = {
    "new": {"group": "below"},
    "w where nothing is": {"group": "below", "mode": "w"},
    "added": {"mode": "a"},
    "region": {"region": {"x": slice(0, 4)}},
}


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("place", PLACES)
def test_tasks_run_twice_in_any_order(tmp_path: Path, place: str, kind: str, order: tuple[int, ...]) -> None:
    """They run one by one, each as a copy, as on a cluster: so every order of them is certain."""
    store, options = PLACES[place](tmp_path / "store"), WRITES[kind]
    name = "b" if kind == "added" else "a"
    old = xr.Dataset({"a": ("x", np.full(4, -1.0))})
    xzarr3.to_zarr(old, store, encoding={"a": {"chunks": (1,)}})
    made = da.from_array(np.array(COMPUTED), chunks=1)
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
        assert read[name].values.tolist() == COMPUTED
