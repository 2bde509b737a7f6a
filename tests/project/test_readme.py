"""README.md says what is: its code runs as it stands, and its tables are those made from the code."""

from __future__ import annotations

import importlib.util
import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import xzarr3
from xzarr3.codecs import registry

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "README.md", "exec"), names)


@pytest.mark.slow
def test_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))  # A block registers a codec.
    assert len(blocks("python")) >= 5
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks("python"):
            run(block, names)
    printed = capsys.readouterr().out
    for output in ("[20. 20. nan nan]", "(31, 28, 31, 30", "[59.9  0. ]", *blocks("text")):
        assert output in printed
    assert names["monthly"].sizes["month"] == 12


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first block names: the dataset ``ds``."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    run(blocks("python")[0], found)
    return found


def run_at(place: str, names: dict[str, Any], replaced: dict[str, str]) -> None:
    """Run the block of a place, with other words for where that is."""
    (block,) = blocks(f"python {place}")
    for old, new in replaced.items():
        assert old in block
        block = block.replace(old, new)
    run(block, names)


def test_block_of_s3(names: dict[str, Any], s3_server: Any) -> None:
    options = '{"key": "...", "secret": "...", "region": "eu-central-1"}'
    url = f"s3://{s3_server.bucket()}/"
    run_at("s3", names, {"s3://climate/": url, options: repr(s3_server.storage_options)})
    xr.testing.assert_equal(names["daily"].compute(), names["ds"])


def test_block_of_icechunk(names: dict[str, Any]) -> None:
    pytest.importorskip("icechunk")
    run_at("icechunk", names, {})
    xr.testing.assert_equal(names["daily"].compute(), names["ds"])


def test_block_of_azure(names: dict[str, Any], azure_server: Any) -> None:
    url, options = f"az://{azure_server.bucket()}/", azure_server.storage_options
    words = '{"account_name": "...", "account_key": "..."}'
    run_at("azure", names, {"az://climate/": url, words: repr(options)})
    xr.testing.assert_equal(xzarr3.open_dataset(f"{url}daily.zarr", storage_options=options), names["ds"])


def test_block_of_google(names: dict[str, Any], gcs_server: Any) -> None:
    url, options = f"gs://{gcs_server.bucket()}/", gcs_server.storage_options
    xzarr3.to_zarr(names["ds"], f"{url}daily.zarr", storage_options=options)
    run_at("gcs", names, {"gs://climate/": url, '{"token": "anon"}': repr(options)})
    xr.testing.assert_equal(names["daily"].compute(), names["ds"])


def test_block_of_http(names: dict[str, Any], http_server: Any) -> None:
    name, folder = http_server.directory()
    xzarr3.to_zarr(names["ds"], folder / "daily.zarr")
    run_at("http", names, {"https://data.example.org": f"{http_server.url}/{name}"})
    xr.testing.assert_equal(names["daily"].compute(), names["ds"])


def made_by(name: str, *, compared: bool = True) -> Any:
    """A script of ``ci``, after the check that its table is the README's, if that is ``compared``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    if compared:
        assert script.readme_with(README, script.table()) == README, f"run: python ci/{name}.py --write"
    return script


@pytest.mark.slow
def test_layers_hold_and_are_shown() -> None:
    assert made_by("layers").broken() == []


def test_table_of_what_is_supported_is_the_one_that_trying_gives() -> None:
    pytest.importorskip("ml_dtypes")
    made_by("support_table")
    assert "| `bool`, " in README
    assert "| read, write | no | no |" in README


def test_names_of_zarr_python_have_a_place_in_the_table() -> None:
    zarr = pytest.importorskip("zarr")
    script = made_by("names_table", compared=zarr.__version__.startswith("3.4."))
    assert script.problems() == []
    for owner in script.OWNERS:
        assert script.same(owner)
        listed = re.findall(rf"^\| {owner} \| (.*?) \|", README, re.MULTILINE)
        assert set(script.theirs(owner)) <= set(re.findall(r"`(\w+)`", " ".join(listed)))


def test_each_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert names <= set(re.findall(r"^\| `([\w-]+)(?:\[\w+\])?` \|", README, re.MULTILINE))


def test_commands_and_links_exist() -> None:
    scripts = set(re.findall(r"bash (ci/[\w/.]+)", README))
    assert {"ci/demo.sh", "ci/test.sh"} <= scripts
    links = set(re.findall(r"\]\((?!https?:|#)([^)#]+)\)", README))
    assert [name for name in scripts | links if not (ROOT / name).exists()] == []
