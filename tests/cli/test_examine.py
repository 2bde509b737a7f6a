"""The commands ``check``, ``diff`` and ``advise``; what they find is tested beside the library."""

import json
from pathlib import Path
from typing import Any

import pytest

import xzarr3
from xzarr3.advice import PATTERNS


@pytest.mark.parametrize(
    ("options", "status"),
    [("", 1), ("--no-encoding", 1), ("--no-attributes", 1), ("--no-values", 1), ("sst 0", 1), ("sst 1:", 1),
     ("--no-attributes --no-values", 0), ("lat", 0), ("sst 1: --no-attributes", 0), ("time --b-path lat", 1)],
)  # fmt: skip
def test_status_of_diff(options: str, status: int, folder: Path, call: Any) -> None:
    array = xzarr3.open_array("copy.zarr", "sst", mode="r+")
    array[0, 0, 0] = 5
    array.update_attributes({"units": "degC"})
    line = ["diff", "ocean.zarr", "copy.zarr", *options.split()]
    found, out, err = call(*line)
    assert (found, err) == (status, "")
    assert ("no difference" in out) is (status == 0)
    told = json.loads(call(*line, "--json")[1])
    assert told["ok"] is (status == 0)


def test_diff_names_the_first_differences(folder: Path, call: Any) -> None:
    array = xzarr3.open_array("copy.zarr", "time", mode="r+")
    array[2:] = -1
    _, out, _ = call("diff", "ocean.zarr", "copy.zarr", "--first", "2")
    lines = ["/time", "  values  6 of 8 differ; largest difference 8", "  [2]     2 | -1", "  [3]     3 | -1"]
    assert out.splitlines()[-4:] == lines
    assert "[4]" not in out


def test_diff_that_cannot_read_exits_with_2(folder: Path, call: Any) -> None:
    Path("copy.zarr/sst/c/0/0/0").write_bytes(b"damaged")
    status, out, err = call("diff", "ocean.zarr", "copy.zarr")
    assert (status, err) == (2, "")
    assert "  cannot be read  in b: " in out
    assert "c/0/0/0" in out


def test_status_of_check(folder: Path, call: Any) -> None:
    assert call("check", "ocean.zarr") == (0, f"{xzarr3.check('ocean.zarr')}\n", "")
    xzarr3.LocalStore("ocean.zarr").set("sst/c/7/7/7", b"1")
    status, out, _ = call("check", "ocean.zarr")
    assert (status, "chunk-outside" in out) == (0, True), "a warning only"
    Path("ocean.zarr/sst/c/0/0/0").write_bytes(b"")
    status, out, _ = call("check", "ocean.zarr", "sst", "--decode", "none")
    assert (status, "chunk-empty" in out) == (1, True)
    status, out, _ = call("check", "ocean.zarr", "--json", "--decode=all", "--threads", 2)
    found = json.loads(out)
    assert (status, found["ok"], found["decode"]) == (1, False, "all")
    assert "chunk-empty" in {each["code"] for each in found["findings"]}
    assert call("check", "ocean.zarr", "deep")[0] == 0


def test_advise(folder: Path, call: Any) -> None:
    given = ("advise", "ocean.zarr", "sst", "--access", "map=3", "--access", "series", "--target", "disk")
    status, out, _ = call(*given)
    assert status == 0
    assert "present" in out
    assert "series" in out
    status, out, _ = call("advise", "ocean.zarr", "--json")
    assert json.loads(out)["target"]["name"] == "disk"
    xzarr3.create_group("empty.zarr")
    shown = " ".join(call("advise", "--help")[1].split())
    assert [name for name, meaning in PATTERNS.items() if f"{name} {meaning}" not in shown] == []
    assert "no array to advise on" in call("advise", "empty.zarr")[2]
