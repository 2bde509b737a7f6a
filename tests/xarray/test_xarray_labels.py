"""What an append does not change is compared with what is stored, and labels are those of one dataset."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _engines import QUIET, NotingStore, contents, refused
from _slow import slow

import xzarr3
from xzarr3 import MemoryStore, to_zarr
from xzarr3.xarray import open_dataset

pytestmark = [pytest.mark.filterwarnings(each) for each in QUIET]


def steps(start: int, n: int = 2, area: float = 1.0, *, lazily: bool = False) -> xr.Dataset:
    """Daily steps of a field, and the areas of its cells."""
    made = xr.Dataset(
        {"v": (("time", "x"), np.full((n, 3), start)), "area": ("x", np.full(3, area))},
        coords={"time": pd.date_range("2000-01-01", periods=start + n)[start:], "x": [0.0, 1.0, 2.0]},
    )
    return made.chunk(time=1, x=2) if lazily else made


@pytest.mark.parametrize("lazily", [False, True])
def test_to_zarr_append_refuses_other_values_of_what_does_not_grow(lazily: bool) -> None:
    store = NotingStore()
    to_zarr(steps(0).assign(ref=7), store, encoding={"area": {"chunks": (2,)}})
    before, more = contents(store), steps(2, lazily=lazily).assign(ref=7)
    other = more.assign(area=more["area"] * xr.DataArray([1.0, 1.0, 9.0], dims="x"))
    with pytest.raises(ValueError, match=r"'area' at \[2\] is 9\.0 here and 1\.0 in the store") as caught:
        to_zarr(other, store, append_dim="time")
    assert ".drop_vars(['area'])" in str(caught.value)
    assert contents(store) == before
    store.changes.clear()
    to_zarr(more, store, append_dim="time")
    np.testing.assert_array_equal(open_dataset(store)["v"][:, 0], [0, 0, 2, 2])
    assert not [key for key in store.changes if key.split("/")[0] in ("area", "x", "ref")]


@pytest.mark.parametrize("lazily", [False, True])
def test_to_zarr_append_stores_what_does_not_grow_only_with_mode_a(lazily: bool) -> None:
    store = to_zarr(steps(0)).store
    for start, mode, area in ((2, "a-", 1), (4, "a", 9)):
        to_zarr(steps(start, area=9, lazily=lazily), store, append_dim="time", mode=mode)
        assert open_dataset(store)["area"].values.tolist() == [area] * 3


THIRDS = np.array([1 / 3, math.nan, 2 / 3, 1.0])
DATES = np.array(["2000-01-01", "NaT", "2000-01-03", "2000-01-04"], "M8[ns]")
RECORDS = np.array([(1, math.nan), (2, 1.0), (3, 1.0), (4, 1.0)], "i4,f8")
BITROUND = {"name": "bitround", "configuration": {"keepbits": 4}}
KEPT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "packed": (THIRDS, 0.7, {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -9}),
    "single": (THIRDS, 0.667, {"dtype": "f4"}),
    "rounded by a codec": (THIRDS, 0.8, {"filters": [BITROUND]}),
    "times": (DATES, np.datetime64("2000-01-02", "ns"), {"units": "days since 1990-01-01"}),
    "text": (np.array(["a", "b", "c", "d"]), "C", {}),
    "truth": (np.array([True, False, True, True]), False, {}),
    "records": (RECORDS, (3, 2.0), {}),
}
"""Values, what the third one is in another dataset, and how they are encoded."""


@pytest.mark.parametrize(
    ("kind", "zarr_format"),
    [(kind, 3) for kind in KEPT] + [(kind, 2) for kind in ("packed", "times", "text", "truth")],
)
def test_to_zarr_append_compares_values_as_they_are_stored(kind: str, zarr_format: Any) -> None:
    values, third, encoding = KEPT[kind]
    others, store = values.copy(), MemoryStore()
    others[2] = third
    first = xr.Dataset({"n": ("time", [0]), "kept": ("x", values)})
    to_zarr(first, store, encoding={"kept": {"chunks": (3,), **encoding}}, zarr_format=zarr_format)
    message = r"'kept' at \[2\] is .* here and .* in the store"
    refused(store, first.assign(kept=("x", others)), message, append_dim="time")
    for dataset in (first, first.chunk(x=2)):
        to_zarr(dataset, store, append_dim="time")
    assert xzarr3.open_array(store, "n").shape == (3,)


def test_to_zarr_append_never_widens_what_does_not_grow() -> None:
    day = np.datetime64("2000-01-05", "ns")
    first, later = (xr.Dataset({"n": ("t", [0]), "ref": day + np.timedelta64(n, "h")}) for n in (0, 6))
    store = to_zarr(first, encoding={"ref": {"units": "days since 2000-01-01", "dtype": "i8"}}).store
    message = r"times of variable 'ref'.*give the values that are stored"
    refused(store, later, message, append_dim="t", widen_units=True)


NOLEAP = [cftime.DatetimeNoLeap(2000, 2, day) for day in range(1, 29)]
HOURS = np.array([1, 2], "m8[h]").astype("m8[ns]")
TWO_DAYS = np.array(["2000-01-02", "2000-01-03"], "M8[ns]")
LABELS: dict[str, tuple[Any, Any, str, str]] = {
    "the same again": ([1, 2], [1, 2], "label 1 .* there twice", "is 2;"),
    "one of them": ([1.5, 2.5], [3.5, 1.5], r"label 1\.5 .*element 1 .* there twice", r"is 2\.5;"),
    "twice in the dataset": ([1, 2], [3, 4, 4], "label 4 .*element 2 .* there twice", "is 2;"),
    "back": ([1, 3], [2], "label 2 .* would follow 3, though the labels increase", "is 3;"),
    "back within the dataset": ([1, 3], [5, 4], "label 4 .* would follow 5", "is 3;"),
    "forth where they decrease": ([3, 1], [2], "would follow 1, though the labels decrease", "is 1;"),
    "turning after one": ([1], [0, 2], "label 2 .* would follow 0, though the labels decrease", "is 1;"),
    "times": (
        TWO_DAYS, np.array(["2000-01-01"], "M8[s]"), "label 2000-01-01 of .* would follow 2000-01-03",
        "is 2000-01-03;",
    ),
    "other calendars": (NOLEAP[3:5], NOLEAP[4:6], "label 2000-02-05 .* there twice", "is 2000-02-05"),
    "lengths of time": (HOURS, HOURS[1:], "label 0 days 02:00:00 .* there twice", "is 0 days 02:00:00;"),
    "text": (["a", "b"], ["c", "b"], "label 'b' .* there twice", "is 'b';"),
}  # fmt: skip


@pytest.mark.parametrize("zarr_format", [3, slow(2)])
@pytest.mark.parametrize("case", LABELS)
def test_to_zarr_append_refuses_labels_that_repeat_or_go_back(case: str, zarr_format: Any) -> None:
    there, new, reason, last = LABELS[case]

    def labelled(labels: Any) -> xr.Dataset:
        return xr.Dataset({"v": ("t", np.arange(len(labels)))}, coords={"t": labels})

    store = to_zarr(labelled(there), zarr_format=zarr_format).store
    refused(store, labelled(new), f"{reason}.* the last label in '/t' .*{last}", append_dim="t")
    to_zarr(labelled(new), store, append_dim="t", check_labels=False)
    expected = xr.concat([labelled(there), labelled(new)], "t")["t"]
    np.testing.assert_array_equal(open_dataset(store)["t"], expected)


@pytest.mark.parametrize(("there", "new"), [
    ([1, 2], [3]), ([3, 2], [1, 0]), ([1], [0]), ([], [2, 1, 2]), ([1, 3, 2], [0, 9]),
    ([1, 0, 1], [2, 0]), ([1.0, math.nan], [0.5]),
])  # fmt: skip
def test_to_zarr_append_accepts_labels_of_no_order_that_is_lost(there: list[Any], new: list[Any]) -> None:
    first, second = (xr.Dataset(coords={"x": np.array(labels, "f8")}) for labels in (there, new))
    store = to_zarr(first).store
    to_zarr(second, store, append_dim="x")
    np.testing.assert_array_equal(xzarr3.open_array(store, "x"), [*there, *new])


def test_to_zarr_append_checks_labels_in_widened_units() -> None:
    encoding = {"time": {"units": "days since 2000-01-01", "dtype": "i8"}}
    store = to_zarr(steps(0, 3), encoding=encoding).store
    back = steps(2, 1).assign_coords(time=[np.datetime64("2000-01-02T06:00", "ns")])
    with pytest.raises(ValueError, match=r"label 2000-01-02T06:00 of .* would follow 2000-01-03"):
        to_zarr(back, store, append_dim="time", widen_units=True)
    to_zarr(back, store, append_dim="time", widen_units=True, check_labels=False)
    assert open_dataset(store)["time"].values[3] == back["time"].values[0]


def test_to_zarr_region_refuses_labels_of_other_places(tmp_path: Path) -> None:
    to_zarr(steps(0, 4), tmp_path)
    part = steps(10)[["v"]].drop_vars("x")
    region = {"time": slice(1, 3)}
    message = r"'time' at \[1\] is 2000-01-11 here and 2000-01-02 in the store.*region="
    refused(tmp_path, part, message, region=region)
    to_zarr(part.assign_coords(time=steps(1)["time"]), tmp_path, region=region)
    assert open_dataset(tmp_path)["v"][:, 0].values.tolist() == [0, 10, 10, 0]
    to_zarr(part + 1, tmp_path, region=region, check_labels=False)
    found = open_dataset(tmp_path)
    assert found["v"][:, 0].values.tolist() == [0, 11, 11, 0]
    np.testing.assert_array_equal(found["time"], steps(0, 4)["time"])


@pytest.mark.parametrize(("dtype", "stored"), [("f8", "f8"), ("i8", "i8"), ("M8[ns]", "i8")])
def test_to_zarr_region_writes_labels_that_are_unwritten(dtype: str, stored: str) -> None:
    labels = np.arange(10, 16).astype("i8").view("M8[ns]" if dtype[0] == "M" else "i8").astype(dtype)
    group = to_zarr(xr.Dataset({"v": ("x", np.zeros(6))}))
    attributes = {"units": "nanoseconds since 1970-01-01"} if dtype[0] == "M" else {}
    options: dict[str, Any] = {"dimension_names": ["x"], "attributes": attributes}
    xzarr3.open_group(group.store, mode="r+").create_array(
        "x", shape=6, dtype=stored, fill_value=math.nan if stored == "f8" else 0, **options
    )
    xzarr3.consolidate_metadata(group.store)
    for start in (0, 2, 4):
        part = xr.Dataset({"v": ("x", np.ones(2))}, coords={"x": labels[start : start + 2]})
        to_zarr(part, group.store, region={"x": slice(start, start + 2)})
    np.testing.assert_array_equal(open_dataset(group.store)["x"].values, labels)
    with pytest.raises(ValueError, match=r"'x' at \[2\]"):
        to_zarr(part, group.store, region={"x": slice(2, 4)})


@pytest.mark.parametrize("how", [{"append_dim": "x"}, {"region": {"x": slice(0, 2)}}])
@pytest.mark.parametrize(("there", "new"), [
    ({"units": "K"}, {"units": "degC"}), ({"units": "1", "calendar": "a"}, {"calendar": "b"}),
    ({}, {"scale_factor": 0.1}), ({}, {"_FillValue": -1.0}),
])  # fmt: skip
def test_to_zarr_refuses_other_units(there: dict[str, Any], new: dict[str, Any], how: Any) -> None:
    store = to_zarr(xr.Dataset({"v": ("x", [1.0, 2.0], {**there, "long_name": "a"})})).store
    (key, value) = next(iter(new.items()))
    message = f"'v' has the (attribute )?{key} {value!r} here and"
    refused(store, xr.Dataset({"v": ("x", [3.0, 4.0], new)}), message, **how)
    same = {"units": there["units"]} if "units" in there else {}
    to_zarr(xr.Dataset({"v": ("x", [3.0, 4.0], {**same, "long_name": "b", "history": "c"})}), store, **how)
    assert open_dataset(store)["v"].values[-2:].tolist() == [3, 4]
