"""README.md and the pages of the reference say what is: their code runs, no part or link is out of date."""

from __future__ import annotations

import re
import tomllib
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import docstrings
import layers
import pages
import pytest
import xarray as xr

import xzarr3
from xzarr3.codecs import registry

ROOT = pages.ROOT
PAGES = pages.pages()
BY_HAND = {page.stem: pages.by_hand(page.read_text("utf-8")) for page in PAGES}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a language that are written by hand, in order."""
    return [text for each, text in pages.blocks(BY_HAND[page]) if each == language]


WITH_CODE = [page for page in BY_HAND if blocks(page, "python")]
PRINTED = {
    "arrays": ["[20. 20. nan nan]"],
    "opening": ["(31, 28, 31, 30", "[59.9  0. ]"],
}
"""What blocks without a block of text below them print."""


def run(page: str, block: str, names: dict[str, Any]) -> None:
    exec(compile(block, f"{page}.md", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE)
def test_blocks_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page run one after the other, and a block of text below one is all that it prints.

    Its lines may be broken elsewhere.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))  # A block registers a codec.
    names: dict[str, Any] = {}
    others, outputs = "", 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for (language, block), (below, output) in pairwise([*pages.blocks(BY_HAND[page]), ("", "")]):
            if language == "python":
                run(page, block, names)
                printed = " ".join(capsys.readouterr().out.replace(str(tmp_path), "/data").split())
                if below == "text":
                    assert printed == " ".join(output.split())
                    outputs += 1
                else:
                    others += printed
    assert outputs == len(blocks(page, "text"))
    for output in PRINTED.get(page, []):
        assert " ".join(output.split()) in others


def test_every_page_with_examples_runs_them() -> None:
    assert {"README", "arrays", "codecs", "dask", "opening", "stores", "tools", "xarray"} <= set(WITH_CODE)
    assert sum(len(blocks(page, "python")) for page in WITH_CODE) >= 30


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first block of the page of stores names: the dataset ``ds``."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    run("stores", blocks("stores", "python")[0], found)
    return found


def run_at(place: str, names: dict[str, Any], replaced: dict[str, str]) -> None:
    """Run the block of a place, with other words for where that is."""
    (block,) = blocks("stores", f"python {place}")
    for old, new in replaced.items():
        assert old in block
        block = block.replace(old, new)
    run("stores", block, names)


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


def test_layers_hold() -> None:
    assert layers.broken() == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    assert pages.dead(page) == []


def test_parts_are_those_that_the_code_gives() -> None:
    zarr = pytest.importorskip("zarr")
    pytest.importorskip("ml_dtypes")
    import reference

    makers = dict(reference.MAKERS)
    if not zarr.__version__.startswith("3.4."):
        del makers["zarr-python"]  # Its table has the names of this version.
    assert reference.stale(makers) == [], "run: python ci/reference.py --write"
    assert reference.missing() == []
    assert "| `bool`, " in reference.support_table.table()


def test_every_public_name_and_its_members_have_an_entry() -> None:
    pytest.importorskip("zarr")
    import reference

    entries = reference.entries()
    assert {f"xzarr3.{name}" for name in xzarr3.__all__ if name[0] != "_"} <= entries.keys()
    for name in ("Array.append", "Array.oindex", "Group.members", "Store.put", "config.set"):
        assert f"xzarr3.{name}" in entries
    described = [entry.name for entry in entries.values() if entry.owner is None and not entry.is_constant]
    assert [name for name in described if not entries[name].text and ".dtypes." not in name] == []


def test_names_of_zarr_python_have_a_place_in_the_table() -> None:
    pytest.importorskip("zarr")
    import names_table

    page = (pages.REFERENCE / "zarr_python.md").read_text("utf-8")
    assert names_table.problems() == []
    for owner in names_table.OWNERS:
        assert names_table.same(owner)
        listed = re.findall(rf"^\| {owner} \| (.*?) \|", page, re.MULTILINE)
        assert set(names_table.theirs(owner)) <= set(re.findall(r"`(\w+)`", " ".join(listed)))


def test_each_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert names <= set(re.findall(r"^\| `([\w-]+)(?:\[\w+\])?` \|", BY_HAND["inside"], re.MULTILINE))


def test_readme_is_short_and_names_its_commands() -> None:
    text = BY_HAND["README"]
    assert text.count("\n") <= 250
    scripts = {
        name for page in BY_HAND.values() for name in re.findall(r"(?:bash|python) (ci/[\w/.]+)", page)
    }
    assert {"ci/demo.sh", "ci/test.sh"} <= scripts
    assert [name for name in scripts if not (ROOT / name).exists()] == []


BROKEN = {
    "[there](stores.md)": "no file stores.md",
    "[top](#top)": "no heading for #top",
    "![drawn](drawn.svg)": "no file drawn.svg",
    "[here](#a-page) `[code](nowhere.md)` [web](https://example.org)": None,
    "```text\n[not a link](nowhere.md)\n```": None,
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_dead_link_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}\n")
    expected = BROKEN[text]
    assert len(pages.dead(page)) == (expected is not None)
    assert expected is None or expected in pages.dead(page)[0]


DOCSTRING = """
Give ``n`` times :func:`open_array`.

Parameters
----------
n, m : int
    How often.

Raises
------
ValueError
    If <never>.

Examples
--------
>>> 1 + 1
2
"""
MARKDOWN = """
Give `n` times [`open_array`](there).

**Parameters**

- `n`, `m` (int): How often.

**Raises**

- ValueError: If &lt;never>.

**Examples**

```pycon
>>> 1 + 1
2
```
"""


def test_docstrings_become_markdown() -> None:
    assert docstrings.markdown(DOCSTRING.strip(), lambda _: "there") == MARKDOWN.strip()

    def call(a: int, *, b: str = "x", **unknown: Any) -> float: ...

    assert docstrings.signature("call", call, typed=False) == 'call(a, *, b="x", **unknown) -> float'
