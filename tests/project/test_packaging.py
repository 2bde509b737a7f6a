"""What the package promises as a whole: import cost, names, dependencies and metadata."""

import ast
import importlib.metadata
import importlib.util
import itertools
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hatch_build
import pytest
from _processes import printed_by
from _skips import fail_if_unknown
from _things import refused
from packaging.requirements import Requirement
from packaging.tags import Tag, sys_tags

import xzarr3
from xzarr3.names import facts

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
IMPORT_BUDGET = 300_000  # Calls and returns, beyond numpy's; there are 213,000.
LIBRARIES = {"msgspec", "numpy", "typing_extensions", "xzarr3"}


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
alone = sum(name.startswith("xzarr3") for name in sys.modules)
xzarr3.open_array
sys.setprofile(None)
print(alone, next(calls), *sys.modules.keys() - before)
"""
LATER = (
    "advice", "checks", "commit", "copying", "dask", "differences", "formats.draft.arrays",
    "formats.v2.parse", "io.explain", "io.native", "nodes.resize", "stores.local", "xarray",
)  # fmt: skip
HEAVY = {
    "google_crc32c", "hashlib", "importlib.metadata", "json", "logging", "lzma", "numcodecs", "secrets",
    "shutil", "socket", "urllib.parse", "zstandard",
}  # fmt: skip


def test_import_is_quick_and_loads_few_modules_and_no_large_library() -> None:
    alone, calls, *loaded = printed_by(IMPORT)[0].split()
    assert int(alone) <= 10  # Arrays, stores and formats are imported on first use.
    assert int(calls) < IMPORT_BUDGET
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names <= LIBRARIES
    assert {*loaded} & ({f"xzarr3.{name}" for name in LATER} | HEAVY) == set()
    assert sum(name.startswith("xzarr3") for name in loaded) <= 100


FIRST_READ = """
import sys, xzarr3
before = set(sys.modules)
assert xzarr3.open_array(sys.argv[1])[:].sum() == 8128
print(*sys.modules.keys() - before)
"""


def test_the_first_read_loads_only_what_the_codecs_of_the_array_need(tmp_path: Path) -> None:
    xzarr3.create_array(tmp_path / "a", data=list(range(128)), chunks=4)
    loaded = printed_by(FIRST_READ, str(tmp_path / "a"))[0].split()
    assert "xzarr3.io.native" in loaded
    of_pathlib = {"urllib.parse"} if sys.version_info < (3, 13) else set()
    assert {*loaded} & HEAVY - of_pathlib == {"zstandard"}


def test_modules_need_only_declared_dependencies() -> None:
    """pandas, botocore and psutil come with declared ones: xarray, boto3 and distributed."""
    extras = {"dtypes/ml_dtypes.py": ("ml-dtypes",), "stores/object/client.py": ("object", "aws")}
    extras |= dict.fromkeys(("advice/plot.py", "advice/report.py"), ("demo",))
    # For what is of that library.
    bridges = {"stores/foreign.py": "zarr", "codecs/foreign.py": "zarr", "stores/icechunk.py": "icechunk"}
    undeclared = {}
    for source in (ROOT / "xzarr3").rglob("*.py"):
        where = source.relative_to(ROOT / "xzarr3").as_posix()
        optional = (PROJECT["optional-dependencies"][extra] for extra in extras.get(where, ()))
        names = itertools.chain(PROJECT["dependencies"], *optional)
        declared = {re.split(r"[\[<>=]", name)[0].replace("-", "_") for name in names}
        assert "zarr" not in declared
        if "if TYPE_CHECKING:\n    from typing_extensions" in source.read_text(encoding="utf-8"):
            declared.add("typing_extensions")
        declared |= {"botocore", "pandas", "psutil", "xzarr3"} | sys.stdlib_module_names
        undeclared[where] = imported(source) - declared - {bridges.get(where)}
    assert {where: names for where, names in undeclared.items() if names} == {}


def grouped(group: str) -> Iterator[str]:
    """What a dependency group lists, with the groups that it includes."""
    for line in PYPROJECT["dependency-groups"][group]:
        if isinstance(line, str):
            yield line
        else:
            yield from grouped(line["include-group"])


def test_the_packages_of_the_tests_are_installed() -> None:
    """Without one of them other tests would be skipped, and what they test would fail unseen."""
    absent = set()
    extras = (PROJECT["optional-dependencies"][name] for name in ("codecs", "demo", "ml-dtypes", "object"))
    for requirement in map(Requirement, itertools.chain(PROJECT["dependencies"], *extras, grouped("test"))):
        try:
            if requirement.marker is None or requirement.marker.evaluate():
                importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            absent.add(requirement.name)
    assert absent == set(), "bash ci/test.sh installs them"


def test_reasons_to_skip_a_test() -> None:
    reports = []
    for reason in ("could not import 'zarr': No module named 'zarr'", "no time"):
        told = ("test_a.py", 3, f"Skipped: {reason}")
        reports.append(SimpleNamespace(nodeid="t.py::t", skipped=True, outcome="skipped", longrepr=told))
        fail_if_unknown(reports[-1])
    assert [report.outcome for report in reports] == ["skipped", "failed"]
    assert reports[1].longrepr.startswith("test_a.py:3: Skipped: no time\nNo skip without a known reason")


def test_metadata_are_those_of_the_source() -> None:
    version = xzarr3.__version__
    assert importlib.metadata.version("xzarr3") == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\nversion: {version}\n" in (ROOT / ".github" / "CITATION.cff").read_text("utf-8")
    (engine,) = importlib.metadata.entry_points(group="xarray.backends", name="xzarr3")
    assert engine.load().__name__ == "Xzarr3BackendEntrypoint"
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="xzarr3")
    assert script.value == "xzarr3.cli:main"


def test_floors_are_those_that_are_tested() -> None:
    """``ci/floors.sh`` installs the oldest version that each requirement permits."""
    assert len(PROJECT["dependencies"]) <= 13
    assert not PROJECT["optional-dependencies"].keys() & PYPROJECT["dependency-groups"].keys()
    lines = (ROOT / "ci" / "floors.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if line[:1] != "#")
    for requirement in PROJECT["dependencies"]:
        name, floor = re.split(r"(?:\[.*\])?>=", requirement)
        assert re.fullmatch(rf"{re.escape(floor)}(\.0)*", tested[name]), requirement


def test_tables_do_not_contradict_each_other() -> None:
    found = facts()
    assert not found["instead"].keys() & found["needless"].keys()
    absent = found["absent"]["module"].keys()
    assert not found["earlier"].keys() & absent
    assert not set(dir(xzarr3)) & (found["earlier"].keys() | absent)


def test_dir_has_the_public_names_only() -> None:
    for module in ("", ".stores", ".codecs", ".dtypes", ".checks", ".differences", ".advice"):
        found = importlib.import_module(f"xzarr3{module}")
        assert dir(found) == sorted(found.__all__)


@pytest.mark.parametrize("owner", ["module", "Array", "Group"])
def test_absent_names_say_what_to_use(owner: str) -> None:
    things = {"module": xzarr3, "Array": xzarr3.zeros(1), "Group": xzarr3.group()}
    for name, text in facts()["absent"][owner].items():
        assert not hasattr(things[owner], name)
        refused(AttributeError, re.escape(text.replace("`", "")), partial(getattr, things[owner], name))
    (error,) = refused(AttributeError, "no attribute 'frobnicate'", lambda: things[owner].frobnicate)
    assert "use" not in str(error)
    refused(AttributeError, "use LocalStore", lambda: xzarr3.DirectoryStore)


IMPORTS = """
import importlib, pkgutil, sys
import xzarr3
assert not {"dask", "xarray", "zarr"} & sys.modules.keys()
for name in ("array", "zeros", "group", "save", "load", "tree", "config"):
    getattr(xzarr3, name)
assert xzarr3.array([1, 2])[1] == 2
assert not {"dask", "xarray", "zarr"} & sys.modules.keys(), sorted(sys.modules)
kinds = {name: type(getattr(xzarr3, name)) for name in xzarr3.__all__}
for module in pkgutil.walk_packages(xzarr3.__path__, "xzarr3."):
    if "._" not in module.name:
        importlib.import_module(module.name)
assert kinds == {name: type(getattr(xzarr3, name)) for name in xzarr3.__all__}
"""


@pytest.mark.slow
def test_no_module_shadows_a_public_name() -> None:
    """Importing a module of the package sets an attribute of the package."""
    printed_by(IMPORTS)


@pytest.mark.parametrize("room", ["codecs.GzipCodec", "dtypes.Int8", "stores.Store"])
def test_rooms_are_names_of_the_module(room: str) -> None:
    printed_by(f"import xzarr3; xzarr3.{room}")


COMPILER = """
import pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(b"library")
sys.exit(any(each.endswith(sys.argv[1]) for each in sys.argv[2:]))
"""


@pytest.fixture(params=["nothing", "_native.c", "try.c", "absent"])
def compiler(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The only compiler fails at this; or it is absent."""
    script = tmp_path / "compiler.py"
    script.write_text(COMPILER)
    monkeypatch.setenv("CC", shlex.join((sys.executable, str(script), request.param)))
    if request.param == "absent":
        monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("XZARR3_TARGET", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # Nor is there ziglang.
    return str(request.param)


def hook(target: str = "wheel") -> Any:
    """What the build hook is to its methods."""
    return SimpleNamespace(target_name=target, app=SimpleNamespace(display_warning=pytest.fail))


def test_a_build_needs_ziglang_without_a_compiler(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    custom = PYPROJECT["tool"]["hatch"]["build"]["hooks"]["custom"]
    assert ROOT / custom["path"] == Path(hatch_build.__file__)
    needs = hatch_build.NativeBuildHook.dependencies
    works = compiler in ("nothing", "_native.c")
    assert (needs(hook()), needs(hook("sdist"))) == ([] if works else [hatch_build.ZIG], [])
    monkeypatch.setenv("XZARR3_TARGET", "any")
    assert needs(hook()) == []
    monkeypatch.setenv("XZARR3_TARGET", "aarch64-macos.11.0")
    assert needs(hook()) == ["ziglang"]


def test_the_build_hook_asks_for_ziglang_on_platforms_that_it_is_made_for() -> None:
    marker = Requirement(hatch_build.ZIG).marker
    assert marker is not None
    systems = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64")]
    for system, machine in (*systems, ("linux", "s390x"), ("win32", "AMD64"), ("freebsd14", "x86_64")):
        known = marker.evaluate({"sys_platform": system, "platform_machine": machine})
        assert known == ((system, machine) in systems)


def test_a_build_ends_without_a_library(compiler: str, tmp_path: Path, monkeypatch: Any) -> None:
    """It then makes the wheel without native code, leaves nothing behind, and says so."""
    library, works = tmp_path / "made" / "_native.so", compiler == "nothing"
    (tmp_path / "file").touch()  # As a directory that only others may write; root may write all of them.
    assert not hatch_build.compile_to(tmp_path / "file" / "_native.so")
    assert hatch_build.compile_to(library) == works
    assert [*tmp_path.glob("made/*")] == [library] * works
    made, said = hook(), list[str]()
    made.app.display_warning = said.append
    data: dict[str, Any] = {"force_include": {}}
    hatch_build.NativeBuildHook.initialize(made, "standard", data)
    assert ([*data["force_include"].values()] == ["xzarr3/io/_native.so.1"]) == works
    assert data.get("pure_python", True) != works
    assert ["without native code" in each for each in said] == [True] * (not works)
    monkeypatch.setenv("XZARR3_TARGET", "x86_64-linux-musl")
    with pytest.raises(RuntimeError, match=r"cannot compile .* for x86_64-linux-musl"):
        hatch_build.NativeBuildHook.initialize(made, "standard", data)


@pytest.mark.parametrize("target", ["", "aarch64-linux-musl"])
def test_zig_makes_code_for_every_processor(target: str, tmp_path: Path, monkeypatch: Any) -> None:
    """By default it makes code for the one at hand, on which a copy of the library need not run."""
    commands: list[list[str]] = []
    monkeypatch.setattr(hatch_build, "system_compiler", list)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "ziglang")
    monkeypatch.setattr(hatch_build, "_run", lambda command, folder: commands.append(command))
    assert not hatch_build.compile_to(tmp_path / "_native.so", target=target)
    ((*_, machine, _),) = [command[: command.index("-std=c11") + 1] for command in commands]
    assert machine == (target or "-mcpu=baseline")


def test_the_platforms_of_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    for target, platform in hatch_build.TAGS.items():
        machine, system = target.split("-", 1)
        kind = {"linux-gnu": "manylinux", "linux-musl": "musllinux", "macos": "macosx"}
        name, numbers = re.fullmatch(r"([a-z-]+)\.?(.*)", system).groups()  # type: ignore[union-attr]
        processor = "arm64" if target.startswith("aarch64-macos") else machine
        wanted = f"{kind[name]}_{numbers.replace('.', '_') or '1_1'}_{processor}"
        assert hatch_build.platform_tag(target) == platform == wanted
    assert Tag("py3", "none", hatch_build.platform_tag()) in sys_tags()
    monkeypatch.setenv("XZARR3_TARGET", "riscv64-linux-gnu")
    with pytest.raises(ValueError, match=r"'riscv64-linux-gnu'; accepted: .*aarch64-macos\.11\.0, any"):
        hatch_build.NativeBuildHook.initialize(hook(), "standard", {})


WITHOUT = """
import sys, numpy, xzarr3
array = xzarr3.create_array(sys.argv[1], shape=(40, 40), chunks=(8, 8), dtype="int32", compressors=["zstd"])
array[...] = numpy.arange(1600).reshape(40, 40)
assert int(xzarr3.open_array(sys.argv[1])[3:, ::2].sum()) == numpy.arange(1600).reshape(40, 40)[3:, ::2].sum()
xzarr3.show_versions()
"""


def test_an_installation_without_native_code(tmp_path: Path) -> None:
    library = str(tmp_path / "_native.so")
    told = printed_by(WITHOUT, str(tmp_path / "a.zarr"), XZARR3_NATIVE=library)
    (line,) = (each for each in told if each.startswith("native rows: "))
    assert line.startswith(f"native rows: off: this installation has no native code ({library}: ")
