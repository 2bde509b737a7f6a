"""What the package promises as a whole: import cost, dependencies and metadata."""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from _skips import fail_if_unknown
from packaging.requirements import Requirement

import xzarr3
from xzarr3.cli import about

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORT_BUDGET = 300_000  # Calls and returns, beyond numpy's; there are 213,000.
LIBRARIES = {"google_crc32c", "msgspec", "numpy", "typing_extensions", "xzarr3"}


def imported(source: Path) -> set[str]:
    """Top-level names of the modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.split(".")[0])
    return names


IMPORT = """
import itertools, sys, numpy
before, calls = set(sys.modules), itertools.count()
sys.setprofile(lambda *event: next(calls))
import xzarr3
sys.setprofile(None)
print(next(calls), *{name.partition(".")[0] for name in sys.modules.keys() - before})
"""


def test_import_is_quick_and_loads_no_large_library() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    calls, *loaded = done.stdout.split()
    assert int(calls) < IMPORT_BUDGET
    assert set(loaded) - sys.stdlib_module_names <= LIBRARIES


def test_every_public_object_is_there_and_has_a_docstring() -> None:
    assert xzarr3.__all__
    public = {name: getattr(xzarr3, name) for name in xzarr3.__all__}
    assert public.keys() <= set(dir(xzarr3))
    # The version and aliases of types have no text of their own.
    described = [n for n, each in public.items() if n[0] != "_" and typing.get_origin(each) is None]
    assert [name for name in described if not public[name].__doc__] == []


def test_modules_need_only_declared_dependencies() -> None:
    """pandas and botocore come with a declared one, which documents them as its own interface."""
    extras = {"dtypes/ml_dtypes.py": ("ml-dtypes",), "stores/object/client.py": ("object", "aws")}
    extras |= dict.fromkeys(("advice/plot.py", "advice/report.py"), ("demo",))
    undeclared = {}
    for source in (ROOT / "xzarr3").rglob("*.py"):
        where = source.relative_to(ROOT / "xzarr3").as_posix()
        optional = (PROJECT["optional-dependencies"][extra] for extra in extras.get(where, ()))
        names = itertools.chain(PROJECT["dependencies"], *optional)
        declared = {re.split(r"[\[<>=]", name)[0].replace("-", "_") for name in names}
        assert "zarr" not in declared
        if "if TYPE_CHECKING:\n    from typing_extensions" in source.read_text(encoding="utf-8"):
            declared.add("typing_extensions")
        declared |= {"botocore", "pandas", "xzarr3"} | sys.stdlib_module_names
        undeclared[where] = imported(source) - declared
    assert {where: names for where, names in undeclared.items() if names} == {}


def required(extra: str) -> Iterator[Requirement]:
    """What an extra asks for on this Python."""
    for line in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == "xzarr3":
            for other in requirement.extras:
                yield from required(other)
        elif requirement.marker is None or requirement.marker.evaluate():
            yield requirement


def test_the_packages_of_the_tests_are_installed() -> None:
    """Without one of them other tests would be skipped, and what they test would fail unseen."""
    absent = set()
    for requirement in (*map(Requirement, PROJECT["dependencies"]), *required("test")):
        try:
            importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            absent.add(requirement.name)
    assert absent == set(), "python -m pip install --editable '.[test]' installs them"


def test_reasons_to_skip_a_test() -> None:
    reports = [
        SimpleNamespace(skipped=True, outcome="skipped", longrepr=("test_a.py", 3, f"Skipped: {reason}"))
        for reason in ("could not import 'zarr': No module named 'zarr'", "no time")
    ]
    for report in reports:
        fail_if_unknown(report)
    assert [report.outcome for report in reports] == ["skipped", "failed"]
    assert reports[1].longrepr.startswith("test_a.py:3: Skipped: no time\nNo skip without a known reason")


def test_installed_metadata_is_that_of_the_source() -> None:
    assert importlib.metadata.version("xzarr3") == xzarr3.__version__
    (engine,) = importlib.metadata.entry_points(group="xarray.backends", name="xzarr3")
    assert engine.load().__name__ == "Xzarr3BackendEntrypoint"
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="xzarr3")
    assert script.value == "xzarr3.cli:main"


def test_floors_are_those_that_are_tested() -> None:
    """``ci/floors.sh`` installs the oldest version that each requirement permits."""
    lines = (ROOT / "ci" / "floors.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if line[:1] != "#")
    for requirement in PROJECT["dependencies"]:
        name, floor = re.split(r"(?:\[.*\])?>=", requirement)
        assert re.fullmatch(rf"{re.escape(floor)}(\.0)*", tested[name]), requirement


def test_the_wheel_has_the_demonstration() -> None:
    """With all modules that it imports from its own folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    beside = {path.stem for path in (ROOT / "notebooks").glob("*.py")}
    assert (ROOT / "notebooks" / "demo.py", ROOT / included["notebooks/demo.py"]) == about.DEMOS
    for source, target in included.items():
        assert about.DEMOS[1].with_name(Path(source).name) == ROOT / target
        assert {f"notebooks/{name}.py" for name in imported(ROOT / source) & beside} <= included.keys()


def test_changelog_knows_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {xzarr3.__version__}" in changelog
