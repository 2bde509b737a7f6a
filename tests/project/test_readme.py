"""The code in README.md runs as it stands, one block after the other."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import xzarr3
from xzarr3.codecs import registry

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.slow
def test_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))  # A block registers a codec.
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "[20. 20. nan nan]" in printed
    assert "(31, 28, 31, 30" in printed
    assert "[59.9  0. ]" in printed
    for output in re.findall(r"```text\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        assert output in printed
    assert names["monthly"].sizes["month"] == 12


def _block(place: str) -> str:
    (block,) = re.findall(rf"```python {place}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first block names: the dataset ``ds``."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    first = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    exec(compile(first, "README.md", "exec"), found)
    return found


def _run(place: str, names: dict[str, Any], replaced: dict[str, str]) -> None:
    """Run the block of a place, with other words for where that is."""
    block = _block(place)
    for old, new in replaced.items():
        assert old in block
        block = block.replace(old, new)
    exec(compile(block, "README.md", "exec"), names)


@pytest.mark.slow
def test_block_of_s3(names: dict[str, Any], s3_server: Any) -> None:
    options = '{"key": "...", "secret": "...", "region": "eu-central-1"}'
    url = f"s3://{s3_server.bucket()}/"
    _run("s3", names, {"s3://climate/": url, options: repr(s3_server.storage_options)})
    xr.testing.assert_equal(names["daily"].compute(), names["ds"])


@pytest.mark.slow
def test_block_of_azure(names: dict[str, Any], azure_server: Any) -> None:
    url, options = f"az://{azure_server.container()}/", azure_server.storage_options
    words = '{"account_name": "...", "account_key": "..."}'
    _run("azure", names, {"az://climate/": url, words: repr(options)})
    xr.testing.assert_equal(xzarr3.open_dataset(f"{url}daily.zarr", storage_options=options), names["ds"])


@pytest.mark.slow
def test_block_of_google(names: dict[str, Any], gcs_server: Any) -> None:
    url, options = f"gs://{gcs_server.bucket()}/", gcs_server.storage_options
    xzarr3.to_zarr(names["ds"], f"{url}daily.zarr", storage_options=options)
    _run("gcs", names, {"gs://climate/": url, '{"token": "anon"}': repr(options)})
    xr.testing.assert_equal(names["daily"].compute(), names["ds"])


def test_block_of_http(names: dict[str, Any], http_server: Any) -> None:
    name, folder = http_server.directory()
    xzarr3.to_zarr(names["ds"], folder / "daily.zarr")
    _run("http", names, {"https://data.example.org": f"{http_server.url}/{name}"})
    xr.testing.assert_equal(names["daily"].compute(), names["ds"])
