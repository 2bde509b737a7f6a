"""The command line, in this process and as a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
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


@pytest.mark.parametrize("where", ["directory", "memory"])
def test_recover_of_what_is_not_there_says_so(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "no.zarr") if where == "directory" else f"memory://{tmp_path.name}/no.zarr"
    with pytest.raises(
        xzarr3.NodeNotFoundError, match=r"nothing is stored in .*no\.zarr.*; correct the path"
    ):
        xzarr3.recover(place)
    assert cli.main(["recover", place]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("xzarr3: nothing is stored in ")
    xzarr3.create_group(place)
    assert cli.main(["recover", place]) == 0
    assert capsys.readouterr().out == "nothing was left to finish\n"


def test_the_demo_of_an_installed_package_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_DEMO", tmp_path / "demo.py")
    assert cli.main(["demo"]) == 1
    assert "run bash ci/demo.sh in a checkout" in capsys.readouterr().err
    (tmp_path / "demo.py").write_text("import sys\nprint(*sys.argv[1:])\nsys.exit(3)\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", "--keep", str(tmp_path)])
    assert ended.value.code == 3


@pytest.mark.parametrize("arguments", [(), ("no-such-command",), ("info",), ("info", "--no-such-option")])
def test_usage_error_exits_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert "usage: xzarr3" in capsys.readouterr().err


@pytest.fixture
def grid(tmp_path: Path) -> tuple[Path, xzarr3.Array]:
    """An array to select from, and the path of its store."""
    path = tmp_path / "grid.zarr"
    data = np.arange(1, 121, dtype="int16").reshape(10, 12)
    xzarr3.create_group(path).create_array("a/b", data=data, chunks=(5, 4), compressors=None)
    return path, xzarr3.open_array(path, "a/b")


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("0", 0), ("-1", -1), ("...", ...), (":", slice(None)), ("1:5", slice(1, 5)),
        ("::2", slice(None, None, 2)),
        ("::-1, 3", (slice(None, None, -1), 3)), ("0, ..., 1", (0, ..., 1)), ("[1, 2]", [1, 2]), ("[]", []),
        ("[[0], [-1]], [3]", ([[0], [-1]], [3])), ("-3:-1:1,", (slice(-3, -1, 1),)), (" 2 ,\t3 ", (2, 3)),
        ("0x10", 16), ("1_0", 10), ("(1, 2)", (1, 2)), ("()", ()), ("'x', 0", ("x", 0)),
        ("['x', 'y']", ["x", "y"]),
    ],
)  # fmt: skip
def test_selections_are_parsed(text: str, selection: object) -> None:
    assert cli.parse_selection(text) == selection


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "1.5", "True", "None", "1 +", "1 + 1", "a.b", "f()", "__import__('os').system('true')",
        "0] or _[1", "0][1", "0]; _[1", "[x for x in y]", "{1}", "{1: 2}", "~1", "--1", "1:2:3:4", "'a':",
        "lambda: 0",
        "b'x'", "1j", "[1.5]", "[None]", "*a", "x:=1", "(yield)", "f'{1}'", "\0", "\ud800", "9" * 5000,
        "(" * 300,
        "-" * 100_000 + "1", "[" * 100_000, "0 # comment", "1 if 1 else 2", "await 1",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_no_selection_is_one_line(
    grid: tuple[Path, xzarr3.Array], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", "--node", "a/b", str(grid[0]), "--", text]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("xzarr3: not a selection: ")
    assert captured.err.endswith("lists of integers, and quoted names of fields, separated by commas\n")
    assert len(captured.err) < 400


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ((), "0, 1:5", lambda a: a.explain((0, slice(1, 5)))),
        ((), "...", lambda a: a.explain()),
        ((), "[0, 9], [1, 2]", lambda a: a.explain(([0, 9], [1, 2]))),
        (("--orthogonal",), "[0, 9], [1, 2]", lambda a: a.oindex.explain(([0, 9], [1, 2]))),
        (("--vectorized",), "[0, 9], ::2", lambda a: a.vindex.explain(([0, 9], slice(None, None, 2)))),
        (("--blocks",), "1, :2", lambda a: a.blocks.explain((1, slice(0, 2)))),
        (("--threads", "1"), "-1:, 3", lambda a: a.explain((slice(-1, None), 3), threads=1)),
    ],
)
def test_explain(
    grid: tuple[Path, xzarr3.Array],
    options: tuple[str, ...],
    text: str,
    expected: Callable[[xzarr3.Array], object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, array = grid
    found = expected(array)
    assert cli.main(["explain", *options, "--node", "a/b", str(path), "--", text]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert cli.main(["explain", *options, "--json", "--node", "a/b", str(path), "--", text]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == found.to_json()  # type: ignore[attr-defined]
    assert document["array"] == "/a/b"


def test_options_may_stand_anywhere(
    grid: tuple[Path, xzarr3.Array], capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ((str(grid[0]), "--node", "a/b", "..."), (str(grid[0] / "a" / "b"), "...")):
        assert cli.main(["explain", *arguments]) == 0
        assert "read of shape (10, 12) from array '/" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0, 12",), "axis 1: index 12 is out of bounds for length 12"),
        (("0, 0, 0",), "too many indices: 3 for an array of 2 dimensions"),
        (("'x'",), "not a basic selection: str"),
        (("--blocks", "::-1"), "axis 0: blocks can be selected with a step of 1 only"),
        (("--node", "a", "0"), "'/a' .* is a group, not an array"),
        (("--node", "no/such", "0"), "no/such"),
    ],
)
def test_explain_that_fails_is_one_line(
    grid: tuple[Path, xzarr3.Array],
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = () if "--node" in arguments else ("--node", "a/b")
    done = cli.main(["explain", *node, str(grid[0]), *arguments])
    captured = capsys.readouterr()
    assert (done, captured.out, captured.err.count("\n")) == (1, "", 1)
    assert re.search(message, captured.err)


@pytest.mark.parametrize("arguments", [("--orthogonal", "--blocks"), ("--threads", "0"), ("--threads", "x")])
def test_options_of_explain_that_exclude_each_other(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["explain", *arguments, "s.zarr", "0"])
    assert exit_.value.code == 2
    assert "usage: xzarr3 explain" in capsys.readouterr().err


def test_interrupt_is_reported_in_one_line(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(xzarr3, "open", interrupted)
    assert cli.main(["info", str(store)]) == 130
    assert capsys.readouterr().err == "xzarr3: interrupted\n"


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xzarr3", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_module_is_the_command(store: Path) -> None:
    done = run("info", store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sst" in done.stdout
    assert run("info", store / "missing").returncode == 1
    assert run("info").returncode == 2


@pytest.mark.slow
def test_info_imports_neither_xarray_nor_dask(store: Path) -> None:
    code = (
        "import sys; from xzarr3.cli import main; main(['info', sys.argv[1]]);"
        "print('slow:', {'xarray', 'dask', 'distributed', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store)], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("slow: set()\n")


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("anon=true", ("anon", True)),
        ("concurrency=8", ("concurrency", 8)),
        ("absent_status=(404, 403)", ("absent_status", (404, 403))),
        ("absent_status=[404,403]", ("absent_status", [404, 403])),
        ("endpoint_url=http://127.0.0.1:9000", ("endpoint_url", "http://127.0.0.1:9000")),
        ('key="123"', ("key", "123")),
        ("secret=a=b", ("secret", "a=b")),
        ("token=", ("token", "")),
    ],
)
def test_options_of_stores(text: str, found: tuple[str, object]) -> None:
    assert cli.parser().parse_args(["info", "s3://b/x", "--option", text]).option == [found]


@pytest.mark.parametrize("text", ["anon", "=x", ""])
def test_options_need_a_name_and_a_value(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["info", "s3://b/x", "--option", text])
    assert "NAME=VALUE" in capsys.readouterr().err


def test_options_reach_the_stores(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(store), "--option", "follow_links=false"]) == 0
    target = ["copy", str(store), str(tmp_path / "copy.zarr"), "--quiet", "--target-option"]
    assert cli.main([*target, "fsync=true"]) == 0
    assert cli.main(["info", str(store), "--option", "no_such=1"]) == 1
    assert "no_such" in capsys.readouterr().err


HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x7f\x9b1m\u202ecod\u2028e"


def test_nothing_a_store_says_reaches_the_terminal_as_a_command(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Names, attributes and keys come from others: what controls a terminal is shown as an escape."""
    store = xzarr3.LocalStore(tmp_path / HOSTILE.replace("/", ""))
    group = xzarr3.create_group(store, attributes={HOSTILE: HOSTILE})
    array = group.create_array(HOSTILE, data=np.arange(4.0), chunks=2, dimension_names=[HOSTILE])
    group.create_array("broken", shape=2, dtype="i1")
    Path(store.root, "broken", "zarr.json").write_text(
        json.dumps({"zarr_format": 3, "node_type": "array", "data_type": {"name": HOSTILE}})
    )
    Path(store.root, HOSTILE, "c", "0").write_bytes(b"short")
    texts = [repr(group), repr(array), repr(store), array.info, group.tree(), repr(group.attrs)]
    texts += [str(array.explain(...)), str(xzarr3.ReadOnlyError(f"cannot {HOSTILE}"))]
    logged = xzarr3.LoggingStore(store)
    with caplog.at_level("DEBUG"), xzarr3.trace() as traced:
        xzarr3.open_array(logged, HOSTILE)[2:]
        with pytest.raises(xzarr3.ChunkDecodeError) as caught:
            xzarr3.open_array(store, HOSTILE)[...]
    caught.value.add_note(HOSTILE)
    texts += [*traceback.format_exception_only(caught.value), *(r.getMessage() for r in caplog.records)]
    texts += [repr(logged), str(logged.summary()), str(traced)]
    for command in (["info"], ["info", "PATH", HOSTILE], ["info", "PATH", f"no {HOSTILE}"], ["explain"]):
        arguments = [store.root if each == "PATH" else each for each in command]
        if len(command) == 1:
            arguments.append(store.root)
        if command == ["explain"]:
            arguments += ["0", "--node", HOSTILE]
        cli.main(arguments)
        captured = capsys.readouterr()
        texts += [captured.out, captured.err]
        if command == ["explain"]:
            cli.main([*arguments, "--json"])
            texts.append(capsys.readouterr().out)
    for text in texts:
        assert not set(text) & set("\x07\x1b\x7f\x9b\u202e\u2028"), repr(text)
    assert any("\\x1b" in text for text in texts)
