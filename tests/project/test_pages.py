"""README.md and the pages of the site say what is: their code runs, names exist, no link is dead."""

import contextlib
import importlib
import inspect
import itertools
import pkgutil
import re
import tomllib
import warnings
from collections import Counter
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import xzarr3
from xzarr3.codecs import registry

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "notebooks"
FORGE = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / ".github").glob("*.md"))]
"""Pages that are read on the forge. Sphinx checks the links of the others."""

_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^)\s]+)\)")


def pages() -> dict[str, str]:
    """The texts of README and of the pages of the site, by their paths without the suffix."""
    made = {SITE / "_made", SITE / "api" / "generated"}
    names = {each: each.stem for each in FORGE}
    for each in sorted(SITE.rglob("*.md")):
        if not made & set(each.parents):
            names[each] = each.relative_to(SITE).with_suffix("").as_posix()
    return {name: each.read_text("utf-8") for each, name in names.items()}


def fences(text: str) -> list[tuple[str, str]]:
    """The fenced blocks: language and text of each."""
    return [(match[2].strip(), match[3]) for match in _FENCE.finditer(text)]


def slug(heading: str) -> str:
    """The anchor that a heading has, as GitHub makes it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a page; a heading that is there again has a number."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", text), re.MULTILINE):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def links(text: str) -> list[str]:
    """The addresses of all links and pictures outside fences and code."""
    bare = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "code", _FENCE.sub("", text))
    return _LINK.findall(bare) + re.findall(r'(?:src|href)="([^"]+)"', bare)


def dead(page: Path) -> list[str]:
    """The links of a page that lead to no file or no heading."""
    wrong = []
    for link in links(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            wrong.append(f"{link}: no file {name}")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
            wrong.append(f"{link}: no heading for #{anchor} in {target.name}")
    return wrong


PAGES = pages()
TOOL = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
IMPORTLINTER, PYTEST = TOOL["importlinter"], TOOL["pytest"]["ini_options"]


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a language, in order."""
    return [text for each, text in fences(PAGES[page]) if each == language]


WITH_CODE = [page for page in PAGES if blocks(page, "python")]
PRINTED = {"api/opening": ["(31, 28, 31, 30", "[59.9  0. ]"], "howto/append_daily": ["would be there twice"]}
"""What blocks without a block of text below them print."""


def run(page: str, block: str, names: dict[str, Any]) -> None:
    exec(compile(block, f"{page}.md", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE)
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The blocks of a page run one after the other, and a block of text below one is all that it prints.

    Its lines may be broken elsewhere.
    """
    if page == "howto/icechunk":
        pytest.importorskip("icechunk")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))  # A block registers a codec.
    names: dict[str, Any] = {}
    others, outputs = "", 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for (language, block), (below, output) in pairwise([*fences(PAGES[page]), ("", "")]):
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
    without = {"howto/index"}
    assert {page for page in PAGES if page.startswith("howto/")} - without <= {"README", *WITH_CODE}
    assert sum(len(blocks(page, "python")) for page in WITH_CODE) >= 30


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first block of the page names: the dataset ``ds``."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    run("howto/write_to_s3", blocks("howto/write_to_s3", "python")[0], found)
    return found


def run_at(place: str, names: dict[str, Any], replaced: dict[str, str]) -> None:
    """Run the block of a place, with other words for where that is."""
    (block,) = blocks("howto/write_to_s3", f"python {place}")
    for old, new in replaced.items():
        assert old in block
        block = block.replace(old, new)
    run("howto/write_to_s3", block, names)


SERVICES = {
    "s3": ('{"key": "...", "secret": "...", "region": "eu-central-1"}', "s3://", "s3_server"),
    "azure": ('{"account_name": "...", "account_key": "..."}', "az://", "azure_server"),
    "gcs": ('{"token": "anon"}', "gs://", "gcs_server"),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", [*SERVICES, "icechunk", "http"])
def test_block_of_a_place(place: str, names: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if place in SERVICES:
        words, scheme, name = SERVICES[place]
        server = request.getfixturevalue(name)
        url, options = f"{scheme}{server.bucket()}/", server.storage_options
        if place == "gcs":
            xzarr3.to_zarr(names["ds"], f"{url}daily.zarr", storage_options=options)
        run_at(place, names, {f"{scheme}climate/": url, words: repr(options)})
        found = xzarr3.open_dataset(f"{url}daily.zarr", storage_options=options)
        xr.testing.assert_equal(found, names["ds"])
    elif place == "icechunk":
        pytest.importorskip("icechunk")
        run_at(place, names, {})
    else:
        server = request.getfixturevalue("http_server")
        name, folder = server.directory()
        xzarr3.to_zarr(names["ds"], folder / "daily.zarr")
        run_at(place, names, {"https://data.example.org": f"{server.url}/{name}"})
    xr.testing.assert_equal(names.get("daily", names["ds"]).compute(), names["ds"])


def test_imports_hold_to_the_layers() -> None:
    cli = pytest.importorskip("importlinter.cli")
    with contextlib.chdir(ROOT):
        assert cli.lint_imports(no_cache=True) == cli.EXIT_STATUS_SUCCESS
    grimp = pytest.importorskip("grimp")  # Nor do modules import each other in a circle.
    graph = grimp.build_graph("xzarr3", exclude_type_checking_imports=True, cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    TopologicalSorter(imports).prepare()


def rooms(text: str) -> list[str]:
    """The rooms that a text names in code, in order, without repetition."""
    names = {each for layer in IMPORTLINTER["contracts"][0]["layers"] for each in layer.split(" : ")}
    found = re.findall(r"(\w+)(?:/|\.py)", text)
    return list(dict.fromkeys(each for each in found if each in names))


def test_layers_of_the_picture_are_those_of_the_contract() -> None:
    (picture,) = (text for page in ("README", "CONTRIBUTING") for text in blocks(page, "mermaid"))
    layers = [layer.split(" : ") for layer in IMPORTLINTER["contracts"][0]["layers"]]
    assert [rooms(line) for line in picture.splitlines() if rooms(line)] == layers
    tour = rooms("\n".join(re.findall(r"^\| .*", PAGES["CONTRIBUTING"], re.MULTILINE)))
    assert sorted(tour) == sorted(itertools.chain(*layers))


@pytest.mark.parametrize("page", FORGE, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead(page) == []


def listed() -> list[str]:
    """The names that the pages of the API list, with their modules."""
    found = []
    for page, text in PAGES.items():
        for language, block in fences(text) if page.startswith("api/") else ():
            if language == "{eval-rst}":
                module = re.search(r"currentmodule:: (\S+)", block)
                assert module is not None
                found += [f"{module[1]}.{name}" for name in re.findall(r"^   (\w+)$", block, re.MULTILINE)]
    return found


def test_every_public_name_is_on_one_page_of_the_api_and_has_an_example() -> None:
    """The doctests run them: pytest collects those of the package."""
    names = listed()
    assert len(names) == len(set(names))
    things = {name: pkgutil.resolve_name(name) for name in names}
    known = {id(thing) for thing in things.values()}
    modules = ("", ".stores", ".codecs", ".dtypes", ".checks", ".differences", ".advice", ".testing")
    for module in (importlib.import_module(f"xzarr3{each}") for each in modules):
        public = [name for name in module.__all__ if not name.startswith("_")]
        assert [name for name in public if id(getattr(module, name)) not in known] == []
    # Aliases of types have no text of their own.
    assert [name for name, each in things.items() if not (each.__doc__ or hasattr(each, "__args__"))] == []
    own = [name for name, each in things.items() if inspect.isroutine(each) or inspect.isclass(each)]
    own = [name for name in own if things[name].__module__.startswith("xzarr3")]
    assert len(own) > 200
    assert [name for name in own if ">>> " not in (things[name].__doc__ or "")] == []
    assert "--doctest-modules" in PYTEST["addopts"]
    assert "xzarr3" in PYTEST["testpaths"]


def test_names_of_zarr_python_have_a_place_in_the_table() -> None:
    zarr = pytest.importorskip("zarr")
    import names_table

    assert names_table.problems() == [] or not zarr.__version__.startswith("3.4.")
    for owner in names_table.OWNERS:
        assert names_table.same(owner)
        listed = re.findall(rf"^\| {owner} \| (.*?) \|", names_table.table(), re.MULTILINE)
        assert set(names_table.theirs(owner)) <= set(re.findall(r"`(\w+)`", " ".join(listed)))


def test_the_table_of_formats_is_made_by_trying() -> None:
    pytest.importorskip("ml_dtypes")
    import support_table

    assert "| `bool`, " in support_table.table()


def test_each_dependency_has_a_reason_and_each_command_a_script() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in project["dependencies"]}
    table = re.findall(r"^\| `([\w-]+)(?:\[\w+\])?` \|", PAGES["CONTRIBUTING"], re.MULTILINE)
    assert names <= set(table)
    assert PAGES["README"].count("\n") <= 200
    scripts = {name for text in PAGES.values() for name in re.findall(r"(?:bash|python) (ci/[\w/.]+)", text)}
    assert {"ci/demo.sh", "ci/test.sh", "ci/docs.sh"} <= scripts
    assert [name for name in scripts if not (ROOT / name).exists()] == []


BROKEN = {
    "[there](stores.md)": "no file stores.md", "[top](#top)": "no heading for #top",
    "![drawn](drawn.svg)": "no file drawn.svg",
    "[here](#a-page) `[code](nowhere.md)` [web](https://example.org)": None,
    "```text\n[not a link](nowhere.md)\n```": None,
}  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_a_dead_link_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}\n")
    expected = BROKEN[text]
    assert len(dead(page)) == (expected is not None)
    assert expected is None or expected in dead(page)[0]
