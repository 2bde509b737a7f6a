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
from typing import Any

import numpy as np
import pytest

import xzarr3
from xzarr3 import cli


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with an array ``ocean/sst``; it is ``s.zarr`` in the working directory."""
    monkeypatch.chdir(tmp_path)
    data = np.arange(1, 121, dtype="int16").reshape(10, 12)
    ocean = xzarr3.create_group("s.zarr").create_group("ocean")
    ocean.create_array("sst", data=data, chunks=(5, 4), compressors=None)
    return tmp_path / "s.zarr"


Call = Callable[..., tuple[object, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command in this process; gives its status and what it prints."""

    def run(*arguments: object) -> tuple[object, str, str]:
        try:
            status: object = cli.main([str(each) for each in arguments])
        except SystemExit as ended:
            status = ended.code
        return (status, *capsys.readouterr())

    return run


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"xzarr3 {xzarr3.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "parts"), [((), ("ocean", "sst")), (("ocean/sst",), ("int16", "(10, 12)", "(5, 4)"))]
)
def test_info(store: Path, call: Call, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    status, out, err = call("info", store, *arguments)
    assert (status, err) == (0, "")
    assert all(part in out for part in parts)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("missing.zarr",), "missing.zarr"),
        (("s.zarr", "no/such"), "no/such"),
        (("file",), "file"),
        (("s.zarr", "broken"), "broken"),
        (("s.zarr", "--option", "no_such=1"), "no_such"),
    ],
)
def test_error_is_one_line_on_stderr(store: Path, call: Call, arguments: tuple[str, ...], named: str) -> None:
    Path("file").write_text("no directory")
    (store / "broken").mkdir()
    (store / "broken" / "zarr.json").write_text("{not\njson")
    status, out, err = call("info", *arguments)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("xzarr3: ")
    assert named in err


@pytest.mark.parametrize("where", ["directory", "memory"])
def test_recover_of_what_is_not_there_says_so(where: str, tmp_path: Path, call: Call) -> None:
    place = str(tmp_path / "no.zarr") if where == "directory" else f"memory://{tmp_path.name}/no.zarr"
    with pytest.raises(xzarr3.NodeNotFoundError, match=r"nothing is stored in .*no\.zarr"):
        xzarr3.recover(place)
    status, out, err = call("recover", place)
    assert (status, out) == (1, "")
    assert err.startswith("xzarr3: nothing is stored in ")
    xzarr3.create_group(place)
    assert call("recover", place) == (0, "nothing was left to finish\n", "")


def test_the_demo_of_an_installed_package_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_DEMO", tmp_path / "demo.py")
    status, _, err = call("demo")
    assert status == 1
    assert "bash ci/demo.sh in a checkout" in err
    program = "import sys; open('given', 'w').write(' '.join(sys.argv[1:])); sys.exit(3)"
    (tmp_path / "demo.py").write_text(program)
    assert call("demo", "--keep", "here")[0] == 3
    assert Path("given").read_text() == "--keep here"


USAGE = ("--orthogonal", "--blocks"), ("--threads", "0"), ("--threads", "x")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("", ()), ("", ("no-such-command",)), ("info", ()), ("info", ("--no-such-option",))]
    + [("explain", (*options, "s.zarr", "0")) for options in USAGE]
    + [("info", ("s3://b/x", "--option", text)) for text in ("anon", "=x", "")],
)
def test_usage_error_exits_with_2(command: str, arguments: tuple[str, ...], call: Call) -> None:
    status, out, err = call(*filter(None, [command]), *arguments)
    assert (status, out) == (2, "")
    assert f"usage: xzarr3 {command}" in err
    assert ("NAME=VALUE" in err) or "s3://b/x" not in arguments


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
def test_what_is_no_selection_is_one_line(store: Path, text: str, call: Call) -> None:
    status, out, err = call("explain", "--node", "ocean/sst", store, "--", text)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("xzarr3: not a selection: ")
    assert "slices such as '1:5'" in err
    assert len(err) < 400


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
    store: Path, options: tuple[str, ...], text: str, expected: Callable[[xzarr3.Array], Any], call: Call
) -> None:
    found = expected(xzarr3.open_array(store, "ocean/sst"))
    given = ("explain", *options, "--node", "ocean/sst", store)
    assert call(*given, "--", text) == (0, f"{found}\n", "")
    document = json.loads(call(*given, "--json", "--", text)[1])
    assert document == found.to_json()
    assert document["array"] == "/ocean/sst"


def test_advise(store: Path, call: Call) -> None:
    status, out, _ = call("advise", str(store), "--access", "map=3", "--access", "series", "--target", "disk")
    assert status == 0
    assert "present" in out
    assert "series" in out
    status, out, _ = call("advise", str(store), "--json")
    assert json.loads(out)["target"] == "s3"
    status, _, err = call("advise", str(store), "--access", "mop")
    assert (status, err.count("\n")) == (1, 1)
    assert "did you mean 'map'?" in err


def test_options_may_stand_anywhere(store: Path, call: Call) -> None:
    for arguments in ((store, "--node", "ocean/sst", "..."), (store / "ocean" / "sst", "...")):
        status, out, _ = call("explain", *arguments)
        assert status == 0
        assert "read of shape (10, 12) from array '/" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0, 12",), "axis 1: index 12 .* length 12"),
        (("0, 0, 0",), "3 .* 2 dimensions"),
        (("'x'",), "not a basic selection: str"),
        (("--blocks", "::-1"), "axis 0: .* step"),
        (("--node", "ocean", "0"), "'/ocean' .* group"),
        (("--node", "no/such", "0"), "no/such"),
    ],
)
def test_explain_that_fails_is_one_line(
    store: Path, arguments: tuple[str, ...], message: str, call: Call
) -> None:
    node = () if "--node" in arguments else ("--node", "ocean/sst")
    status, out, err = call("explain", *node, store, *arguments)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert re.search(message, err)


def test_interrupt_is_reported_in_one_line(store: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(xzarr3, "open", interrupted)
    assert call("info", store) == (130, "", "xzarr3: interrupted\n")


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The end of a process of Python and what it prints."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120} | options
    return subprocess.run([sys.executable, *map(str, command)], check=False, **streams)


@pytest.mark.slow
def test_module_is_the_command(store: Path) -> None:
    done = run("-m", "xzarr3", "info", store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sst" in done.stdout
    assert run("-m", "xzarr3", "info", store / "missing").returncode == 1
    assert run("-m", "xzarr3", "info").returncode == 2


@pytest.mark.slow
def test_info_imports_neither_xarray_nor_dask(store: Path) -> None:
    code = (
        "import sys; from xzarr3.cli import main; main(['info', sys.argv[1]]);"
        "print('slow:', {'xarray', 'dask', 'distributed', 'pandas'} & set(sys.modules))"
    )
    assert run("-c", code, store).stdout.endswith("slow: set()\n")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a closed pipe is reported differently elsewhere")
def test_reader_that_leaves_early_is_no_traceback(store: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = run("-m", "xzarr3", "info", store, stdout=write)
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


def test_options_reach_the_stores(store: Path, tmp_path: Path, call: Call) -> None:
    assert call("info", store, "--option", "follow_links=false")[0] == 0
    target = tmp_path / "copy.zarr"
    assert call("copy", store, target, "--quiet", "--target-option", "fsync=true") == (0, "", "")
    assert xzarr3.open_array(target, "ocean/sst")[9, 11] == 120
    assert "no_such" in call("copy", store, tmp_path / "no.zarr", "--target-option", "no_such=1")[2]
    assert "no_such" in call("copy", store, tmp_path / "no.zarr", "--source-option", "no_such=1")[2]


HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x7f\x9b1m\u202ecod\u2028e"


def test_nothing_a_store_says_reaches_the_terminal_as_a_command(
    call: Call, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Names, attributes and keys come from others: what controls a terminal is shown as an escape."""
    store = xzarr3.LocalStore(tmp_path / HOSTILE)
    group = xzarr3.create_group(store, attributes={HOSTILE: HOSTILE})
    array = group.create_array(HOSTILE, data=np.arange(4.0), chunks=2, dimension_names=[HOSTILE])
    group.create_array("broken", shape=2, dtype="i1")
    document = {"zarr_format": 3, "node_type": "array", "data_type": {"name": HOSTILE}}
    Path(store.root, "broken", "zarr.json").write_text(json.dumps(document))
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
    explain = ("explain", store.root, "0", "--node", HOSTILE)
    info = ("info", store.root)
    for command in (info, (*info, HOSTILE), (*info, f"no {HOSTILE}"), explain, (*explain, "--json")):
        _, out, err = call(*command)
        texts += [out, err]
    for text in texts:
        assert not set(text) & set("\x07\x1b\x7f\x9b\u202e\u2028"), repr(text)
    assert any("\\x1b" in text for text in texts)
