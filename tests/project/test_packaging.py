"""What the package promises as a whole: import cost, dependencies, and what the README shows."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import pytest

import xzarr3

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "xzarr3").rglob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORT_BUDGET = 0.15  # seconds of the processor, beyond numpy


def python(code: str, env: dict[str, str] | None = None) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    return run.stdout


def imported(source: Path) -> set[str]:
    """Top-level names of the modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.split(".")[0])
    return names


def test_import_loads_no_large_library() -> None:
    loaded = python(
        "import sys, xzarr3; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    ).split()
    assert {"dask", "distributed", "matplotlib", "pandas", "xarray", "zarr"} & set(loaded) == set()


@pytest.mark.slow
def test_import_is_quick(tmp_path: Path) -> None:
    """With compiled modules, which an installed package has; what else the machine does takes no part."""
    code = (
        "import numpy, time; begin = time.process_time(); import xzarr3; print(time.process_time() - begin)"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    python(code, env)  # Compiles them.
    runs = (float(python(code, env)) for _ in range(30))
    # One that is quick enough will do: what shares the caches of the processor makes others slower.
    assert any(seconds < IMPORT_BUDGET for seconds in runs)


def test_every_public_name_is_there() -> None:
    assert xzarr3.__all__
    missing = [name for name in xzarr3.__all__ if not hasattr(xzarr3, name)]
    assert missing == []
    assert set(xzarr3.__all__) <= set(dir(xzarr3))


def test_every_public_object_has_a_docstring() -> None:
    undocumented = [
        name
        for name in xzarr3.__all__
        if not name.startswith("__")
        and typing.get_origin(getattr(xzarr3, name)) is None  # An alias of a type has no text of its own.
        and not getattr(xzarr3, name).__doc__
    ]
    assert undocumented == []


@pytest.mark.parametrize("source", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_module_needs_only_declared_dependencies(source: Path) -> None:
    modules = {
        "google-crc32c": "google_crc32c",
        "iris-sample-data": "iris_sample_data",
        "zlib-ng": "zlib_ng",
    }
    # pandas and botocore, say, come with a declared one, which documents it as its own interface.
    declared = {"botocore", "pandas", "xzarr3"}
    if "if TYPE_CHECKING:\n    from typing_extensions" in source.read_text(encoding="utf-8"):
        declared.add("typing_extensions")
    names = PROJECT["dependencies"]
    extras = {
        "xzarr3.dtypes.ml_dtypes": ("ml-dtypes",),
        "xzarr3.stores.object.client": ("object", "aws"),
    }
    for extra in extras.get(_module(source), ()):
        names = names + PROJECT["optional-dependencies"][extra]
    for requirement in names:
        name = re.split(r"[\[<>=]", requirement)[0]
        declared.add(modules.get(name, name))
    assert imported(source) - declared - sys.stdlib_module_names == set()


def _module(source: Path) -> str:
    return ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.slow
def test_layers_hold_and_the_readme_shows_them() -> None:
    spec = importlib.util.spec_from_file_location("layers", ROOT / "ci" / "layers.py")
    assert spec is not None
    assert spec.loader is not None
    layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layers)
    assert layers.broken() == []
    assert layers.readme_with(README, layers.table()) == README, "run: python ci/layers.py --write"


@pytest.mark.slow
def test_zarr_is_no_runtime_dependency() -> None:
    assert [source for source in SOURCES if "zarr" in imported(source)] == []
    assert not any(requirement.startswith("zarr") for requirement in PROJECT["dependencies"])


def test_installed_metadata_is_that_of_the_source() -> None:
    assert importlib.metadata.version("xzarr3") == xzarr3.__version__
    (engine,) = importlib.metadata.entry_points(group="xarray.backends", name="xzarr3")
    assert engine.load().__name__ == "Xzarr3BackendEntrypoint"
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="xzarr3")
    assert script.value == "xzarr3.cli:main"


def test_changelog_knows_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {xzarr3.__version__}" in changelog


def test_readme_gives_a_reason_for_each_dependency() -> None:
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]}
    rows = set(re.findall(r"^\| `([\w-]+)(?:\[\w+\])?` \|", README, re.MULTILINE))
    assert names <= rows


def test_readme_commands_and_links_exist() -> None:
    scripts = set(re.findall(r"bash (ci/[\w/.]+)", README))
    assert {"ci/demo.sh", "ci/test.sh"} <= scripts
    links = set(re.findall(r"\]\((?!https?:|#)([^)#]+)\)", README))
    assert [name for name in scripts | links if not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_readme_examples_run(tmp_path: Path) -> None:
    """They run in order, in one process that has only what an ordinary installation has."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
