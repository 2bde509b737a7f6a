"""The command line, in this process and as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import xzarr3
from xzarr3 import cli


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "s.zarr"
    root = xzarr3.create_group(path)
    group = root.create_group("ocean")
    group.create_array("sst", data=np.zeros((4, 6), "float32"), chunks=(2, 3), dimension_names=("y", "x"))
    return path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"xzarr3 {xzarr3.__version__}\n"


def test_info_lists_a_group(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(store)]) == 0
    out = capsys.readouterr().out
    assert "ocean" in out
    assert "sst" in out


def test_info_describes_an_array(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(store), "ocean/sst"]) == 0
    out = capsys.readouterr().out
    for part in ("float32", "(4, 6)", "(2, 3)"):
        assert part in out


@pytest.mark.parametrize(
    "arguments", [("missing.zarr",), ("s.zarr", "no/such"), ("file",), ("s.zarr", "broken")]
)
def test_error_is_one_line_on_stderr(
    store: Path,
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(store.parent)
    Path("file").write_text("no directory")
    (store / "broken").mkdir()
    (store / "broken" / "zarr.json").write_text("{not\njson")
    assert cli.main(["info", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("xzarr3: ")
    assert captured.err.count("\n") == 1
    assert all(part.strip("/") in captured.err for part in arguments[-1:])


@pytest.mark.parametrize("arguments", [(), ("no-such-command",), ("info",), ("demo", "--no-such-option")])
def test_usage_error_exits_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert "usage: xzarr3" in capsys.readouterr().err


def test_interrupt_is_reported_in_one_line(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(xzarr3, "open", interrupted)
    assert cli.main(["info", str(store)]) == 130
    assert capsys.readouterr().err == "xzarr3: interrupted\n"


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xzarr3", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_module_is_the_command(store: Path) -> None:
    done = run("info", store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sst" in done.stdout
    assert run("info", store / "missing").returncode == 1
    assert run("info").returncode == 2


def test_info_imports_neither_xarray_nor_dask(store: Path) -> None:
    code = (
        "import sys; from xzarr3.cli import main; main(['info', sys.argv[1]]);"
        "print('slow:', {'xarray', 'dask', 'distributed', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store)], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("slow: set()\n")


@pytest.mark.skipif(os.name != "posix", reason="a closed pipe is reported differently elsewhere")
def test_reader_that_leaves_early_is_no_traceback(store: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "xzarr3", "info", str(store)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
