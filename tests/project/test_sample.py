"""The reader of PP files that notebooks use, on files made here and on the sample data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sample


def record(data: bytes) -> bytes:
    length = len(data).to_bytes(4, "big")
    return length + data + length


def field(
    values: np.ndarray, *, month: int = 1, packing: int = 0, behind: bytes = b"", step: float = 2
) -> bytes:
    """One map of a PP file: the mean of a month of 2011."""
    whole, real = np.zeros(45, ">i4"), np.zeros(19, ">f4")
    whole[:6] = 2011, month, 1, 0, 0, 0
    whole[6:12] = 2011, month + 1, 1, 0, 0, 0
    whole[17], whole[18] = values.shape
    whole[20] = packing
    real[13:18] = 10 - step, step, -3, 3, -1e30
    return record(whole.tobytes() + real.tobytes()) + record(values.astype(">f4").tobytes() + behind)


def vector(kind: int, *values: float) -> bytes:
    return (1000 * len(values) + kind).to_bytes(4, "big") + np.array(values, ">f4").tobytes()


def test_maps_times_and_missing_values(tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(2, 3)
    values[1, 2] = -1e30
    path = tmp_path / "a.pp"
    path.write_bytes(field(values) + field(values + 1, month=2))
    found = sample.read_pp(path, "t", units="K")
    assert (found.dims, found.shape, found.dtype) == (("time", "latitude", "longitude"), (2, 2, 3), "float32")
    np.testing.assert_array_equal(found[0], [[0, 1, 2], [3, 4, np.nan]])
    assert found.time.values.tolist() == [
        np.datetime64(time, "ns").astype(int) for time in ("2011-01-16T12:00", "2011-02-15T00:00")
    ]
    assert found.latitude.values.tolist() == [10, 12]
    assert found.longitude.values.tolist() == [0, 3, 6]
    assert (found.name, found.attrs) == ("t", {"units": "K"})


def test_latitudes_that_are_not_equally_spaced_are_behind_the_map(tmp_path: Path) -> None:
    behind = vector(1, 0, 3, 6) + vector(2, -10, 20)
    path = tmp_path / "a.pp"
    path.write_bytes(field(np.zeros((2, 3)), behind=behind, step=0))
    assert sample.read_pp(path, "t").latitude.values.tolist() == [-10, 20]
    path.write_bytes(field(np.zeros((2, 3)), step=0))
    with pytest.raises(ValueError, match="no vector of kind 2"):
        sample.read_pp(path, "t")


def test_packed_fields_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pp"
    path.write_bytes(field(np.zeros((2, 3)), packing=1))
    with pytest.raises(ValueError, match="method 1"):
        sample.read_pp(path, "t")


def test_sample_data() -> None:
    ice, forecast = sample.sea_ice(), sample.forecast()
    assert dict(ice.sizes) == {"time": 120, "latitude": 215, "longitude": 360}
    assert dict(forecast.sizes) == {"member": 13, "time": 6, "latitude": 145, "longitude": 192}
    for each in (ice, forecast):
        assert all(each.indexes[name].is_monotonic_increasing for name in ("time", "latitude", "longitude"))
    assert 180 < float(forecast.min()) < float(forecast.max()) < 340
