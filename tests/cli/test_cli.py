"""The command line as a whole: help, examples, options, statuses, errors, colours, pipes and completion."""

import json
import os
import re
import shlex
import sys
import traceback
import warnings
from io import StringIO
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from _things import case, refused
from click.shell_completion import ShellComplete

import xzarr3
from xzarr3 import cli
from xzarr3.cli import arguments
from xzarr3.cli.running import Command

COMMANDS = cli.commands.commands

# Help


def test_bare_command_shows_help_with_every_command_on_a_line(call: Any) -> None:
    expected = "info tree stats read explain check diff advise copy consolidate recover"
    assert sorted(COMMANDS) == sorted(expected.split())
    assert call("--version") == (0, f"xzarr3 {xzarr3.__version__}\n", "")
    status, out, err = call()
    assert (status, err, call("--help")[1]) == (0, "", out)
    for name in COMMANDS:
        (line,) = re.findall(rf"^  {name}  .*$", out, re.MULTILINE)
        assert len(line) <= 80
        assert not line.endswith("...")
    assert max(map(len, out.splitlines())) <= 80


def test_arguments_have_the_same_order_everywhere() -> None:
    orders = {name: [each.name for each in command.params if isinstance(each, click.Argument)]
              for name, command in COMMANDS.items()}  # fmt: skip
    assert orders.pop("diff") == ["a", "b", "path", "selection"]
    assert orders.pop("copy") == ["store", "target"]
    for order in orders.values():
        assert order == ["store", "path", "selection"][: len(order)]


EXAMPLES = [(each, line) for each in COMMANDS.values() for line in getattr(each, "examples", ())]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(name: str, call: Any) -> None:
    status, out, _ = call(name, "--help")
    assert status == 0
    command = COMMANDS[name]
    assert isinstance(command, Command)
    assert {"--json", "--debug"} <= {option for each in command.params for option in each.opts}
    assert command.examples
    assert all(f"    {line}\n" in out for line in command.examples)
    assert max(len(line) for line in out.splitlines()) <= 90


def test_docstrings_are_indented_before_python_3_13(capsys: pytest.CaptureFixture[str]) -> None:
    help = "Look.\n\n    More.\n\n    Examples:\n      xzarr3 look a\n      xzarr3 look b\n    "
    command = Command("look", help=help, failure=1)
    assert command.examples == ("xzarr3 look a", "xzarr3 look b")
    assert command.main(["--help"], standalone_mode=False) == 0
    assert capsys.readouterr().out.endswith("\n  Examples:\n    xzarr3 look a\n    xzarr3 look b\n")


@pytest.mark.parametrize(("command", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_every_example_runs(command: Command, line: str, folder: Path, call: Any) -> None:
    program, *given = shlex.split(line, comments=True)
    assert (program, given[0]) == ("xzarr3", command.name)
    status, out, err = call(*given)
    assert status == (1 if line == "xzarr3 diff ocean.zarr v2.zarr" else 0), err
    assert err == ""
    assert out
    if "--json" in given:
        json.loads(out)


# Errors

ERRORS = [
    ("info missing.zarr", 1, "missing.zarr", "xzarr3 tree STORE"),
    ("info ocean.zarr no/such", 1, "no/such", "xzarr3 tree STORE"), ("info file", 1, "file", ""),
    ("info ocean.zarr broken", 1, "broken", "xzarr3 check STORE"),
    ("info ocean.zarr --option no_such=1", 1, "no_such", "NAME=VALUE"),
    ("read ocean.zarr time x", 1, "not a selection", "in quotes"),
    ("explain ocean.zarr sst 0,9", 1, "axis 1: index 9", "in quotes"),
    ("read ocean.zarr deep", 1, "group", "xzarr3 tree STORE"),
    ("read large.zarr", 1, "most 1,048,576", "in quotes"),
    ("copy v2.zarr copy.zarr", 1, "copy.zarr", "--overwrite"),
    ("advise v2.zarr sst --access mop", 1, "did you mean 'map'?", "in quotes"),
    ("check missing.zarr", 2, "missing.zarr", "xzarr3 tree STORE"),
    ("diff ocean.zarr missing.zarr", 2, "missing.zarr", "xzarr3 tree STORE"),
    ("diff ocean.zarr copy.zarr deep 0", 2, "group", ""),
    ("tree ocean.zarr nope", 1, "nope", "xzarr3 tree STORE"),
    ("stats ocean.zarr nope", 1, "nope", "xzarr3 tree STORE"), ("consolidate ocean.zarr sst", 1, "array", ""),
    ("recover missing.zarr", 1, "missing.zarr", "xzarr3 tree STORE"),
    ("copy ocean.zarr r.zarr --chunks a=1,a=2", 2, "not lengths", "copy --help"),
    ("copy ocean.zarr r.zarr --filter {", 2, "not a codec", "copy --help"),
    ("copy a b --chunks 1 --advice", 2, "not both", "copy --help"),
    ("copy a b --access map", 2, "--advice", "copy --help"),
    ("copy v2.zarr r.zarr --chunks x=3", 1, "no copied array", "--help shows"),
    ("no-such-command", 2, "no-such-command", "xzarr3 --help"), ("tre", 2, "tre", "xzarr3 --help"),
    ("info", 2, "STORE", "xzarr3 info --help"),
    ("info --no-such-option", 2, "--no-such-option", "xzarr3 info --help"),
    ("explain ocean.zarr sst --threads 0", 2, "--threads", ""),
    ("info s3://b/x --option anon", 2, "NAME=VALUE", "info --help"),
    ("read ocean.zarr time -1", 2, "-1", "put -- before"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected", "named", "hint"), ERRORS, ids=[line for line, *_ in ERRORS])
def test_error_has_a_hint(line: str, expected: int, named: str, hint: str, folder: Path, call: Any) -> None:
    Path("file").write_text("no directory")
    xzarr3.create_array("large.zarr", shape=(2000, 2000), dtype="i1")
    Path("ocean.zarr/broken").mkdir()
    Path("ocean.zarr/broken/zarr.json").write_text("{not\njson")
    status, out, err = call(*line.split())
    assert (status, out) == (expected, "")
    message, told = err.splitlines()
    assert re.match(f"xzarr3: .*{re.escape(named)}", message)
    assert re.match(f"hint: .*{re.escape(hint)}", told)


def test_debug_prints_the_traceback(folder: Path, call: Any) -> None:
    lines = {"--debug info no": 1, "info no --debug": 1, "check --debug no": 2, "diff a b --debug": 2}
    for line, expected in lines.items():
        status, _, err = call(*line.split())
        assert status == expected
        assert err.startswith("Traceback")
        assert err.count('File "') > 3
        assert err.splitlines()[-2].startswith("xzarr3: ")
    assert "XZARR3_FULL_TRACEBACK" not in os.environ
    assert "Traceback" not in call("info", "no.zarr")[2]


@pytest.mark.parametrize(
    "error", [OSError("disk\nfull"), ValueError("bad"), MemoryError(), KeyboardInterrupt(), AttributeError()]
)
def test_errors_of_others_are_one_line(error: Any, folder: Path, call: Any, monkeypatch: Any) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(xzarr3, "open", failing)
    if isinstance(error, AttributeError):  # A defect keeps its traceback.
        refused(AttributeError, None, lambda: call("info", "ocean.zarr"))
    elif isinstance(error, KeyboardInterrupt):
        assert call("info", "ocean.zarr") == (130, "", "xzarr3: interrupted\n")
    else:
        status, _, err = call("info", "ocean.zarr")
        assert status == 1
        assert re.fullmatch(rf"xzarr3: {type(error).__name__}: .*\nhint: .*--debug.*\n", err)


def test_warnings_are_one_line(folder: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = xzarr3.open

    def warning(*given: Any, **options: Any) -> Any:
        warnings.warn("two\nlines", UserWarning, stacklevel=2)
        return opened(*given, **options)

    monkeypatch.setattr(xzarr3, "open", warning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call("tree", "ocean.zarr", "lat") == (0, "/lat (lat: 6) float64\n", "warning: two lines\n")


# Terminals, pipes and processes


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "variable", "colored"),
    [(Terminal, "OTHER", True), (Terminal, "NO_COLOR", False), (StringIO, "OTHER", False)],
)
def test_colours_are_for_terminals(
    stream: type[StringIO], variable: str, colored: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(sys, "stderr", said := stream())
    assert cli.main(["info", "no.zarr"]) == 1
    assert ("\x1b[" in said.getvalue()) is colored


def test_completion() -> None:
    complete = ShellComplete(cli.commands, {}, "xzarr3", "_XZARR3_COMPLETE")
    assert {each.value for each in complete.get_completions([], "re")} == {"read", "recover"}
    assert {each.value for each in complete.get_completions(["check"], "--dec")} == {"--decode"}


def test_closed_streams_are_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):  # As a shell leaves them after >&- and 2>&-.
        monkeypatch.setattr(sys, name, None)
    for line in ("tree ocean.zarr", "diff ocean.zarr copy.zarr", "read ocean.zarr time --json"):
        assert cli.main(line.split()) == 0
    assert cli.main(["tree", "missing.zarr"]) == 1


@pytest.mark.slow
def test_process(folder: Path, run: Any) -> None:
    done = run("-m", "xzarr3", "tree", "ocean.zarr", env={"_XZARR3_COMPLETE": ""})
    assert (done.returncode, done.stderr) == (0, "")
    assert "salt" in done.stdout
    assert run("-m", "xzarr3", "info", "missing").returncode == 1
    assert run("-m", "xzarr3", "info").returncode == 2
    asked = {"_XZARR3_COMPLETE": "bash_complete", "COMP_WORDS": "xzarr3 st", "COMP_CWORD": "1"}
    assert run("-m", "xzarr3", env=asked).stdout == "plain,stats\n"


@pytest.mark.slow
def test_no_command_that_looks_imports_xarray_or_dask(folder: Path, run: Any) -> None:
    code = (
        "import sys; from xzarr3.cli import main; [main([each, 'ocean.zarr']) for each in sys.argv[1:]];"
        "print('slow:', {'xarray', 'dask', 'distributed', 'pandas', 'zarr'} & set(sys.modules))"
    )
    assert run("-c", code).stdout.endswith("slow: set()\n")
    assert run("-c", code, "info", "tree", "stats", "explain").stdout.endswith("slow: set()\n")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a closed pipe is reported differently elsewhere")
def test_reader_that_leaves_early_is_no_traceback(folder: Path, run: Any) -> None:
    for given in (["info"], ["tree"], ["stats", "--json"]):
        read, write = os.pipe()
        os.close(read)
        done = run("-m", "xzarr3", *given, "ocean.zarr", stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == (1, "")


# Arguments

SELECTIONS: dict[str, object] = {
    "0": 0, "-1": -1, "...": ..., ":": slice(None), "1:5": slice(1, 5), "::2": slice(None, None, 2),
    "::-1, 3": (slice(None, None, -1), 3), "0, ..., 1": (0, ..., 1), "[1, 2]": [1, 2], "[]": [],
    "[[0], [-1]], [3]": ([[0], [-1]], [3]), "-3:-1:1,": (slice(-3, -1, 1),), " 2 ,\t3 ": (2, 3),
    "0x10": 16, "1_0": 10, "(1, 2)": (1, 2), "()": (), "'x', 0": ("x", 0), "['x', 'y']": ["x", "y"],
}  # fmt: skip
LENGTHS: dict[str, object] = {
    "auto": "auto", "100": 100, "10,9, 9": (10, 9, 9), "t=100,lat=-1": {"t": 100, "lat": -1}, "-1": -1,
    "a=b=3": {"a=b": 3}, "none": None,
}  # fmt: skip
OPTIONS: dict[str, object] = {
    "true": True, "8": 8, "(404, 403)": (404, 403), "[404,403]": [404, 403], '"123"': "123", "a=b": "a=b",
    "http://127.0.0.1:9000": "http://127.0.0.1:9000", "": "",
}  # fmt: skip


def test_selections_lengths_and_options_are_parsed() -> None:
    assert {text: arguments.parse_selection(text) for text in SELECTIONS} == SELECTIONS
    assert {text: arguments.lengths_of(text) for text in LENGTHS} == LENGTHS
    assert {text: arguments.store_option_of(f"name={text}")[1] for text in OPTIONS} == OPTIONS


@pytest.mark.parametrize("text", [
    "", "x", "1.5", "True", "None", "1 +", "1 + 1", "a.b", "f()", "__import__('os').system('true')",
    "0] or _[1", "0][1", "0]; _[1", "[x for x in y]", "{1}", "{1: 2}", "~1", "--1", "1:2:3:4", "'a':",
    "b'x'", "1j", "[1.5]", "[None]", "*a", "x:=1", "(yield)", "f'{1}'", "\0", "\ud800", "9" * 5000, "(" * 300,
    "-" * 100_000 + "1", "[" * 100_000, "0 # comment", "1 if 1 else 2", "await 1", "lambda: 0",
], ids=lambda text: text[:20])  # fmt: skip
def test_what_is_no_selection_is_one_line(text: str, call: Any) -> None:
    status, out, err = call("explain", "no.zarr", "sst", "--", text)
    assert (status, out, err.count("\n")) == (1, "", 2)
    assert err.startswith("xzarr3: not a selection: ")
    assert "slices such as '1:5'" in err
    assert len(err) < 450


def test_what_is_no_length() -> None:
    for text in ("", "0", "-2", "1,", "time=", "=3", "time=1,3", "1.5", "9" * 30, "x", "a=1,a=2"):
        with case(text), pytest.raises(click.BadParameter, match="not lengths"):
            arguments.lengths_of(text)


def test_options_reach_the_stores(folder: Path, call: Any) -> None:
    assert call("info", "ocean.zarr", "--option", "locks=false")[0] == 0
    assert call("copy", "ocean.zarr", "c.zarr", "--quiet", "--target-option", "fsync=true") == (0, "", "")
    for line in ("copy --target-option", "copy --source-option", "diff --a-option", "diff --b-option",
                 "diff --option"):  # fmt: skip
        assert "no_such" in call(*line.split(), "no_such=1", "ocean.zarr", "copy.zarr")[2]


# Names and values of others

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x7f\x9b1m\u202ecod\u2028e"


def test_nothing_a_store_says_reaches_a_terminal_as_a_command(call: Any, caplog: Any, tmp_path: Path) -> None:
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
    with caplog.at_level("DEBUG"), xzarr3.trace(log=True) as traced:
        xzarr3.open_array(store, HOSTILE)[2:]
        with pytest.raises(xzarr3.ChunkDecodeError) as caught:
            xzarr3.open_array(store, HOSTILE)[...]
    caught.value.add_note(HOSTILE)
    texts += [*traceback.format_exception_only(caught.value), *(r.getMessage() for r in caplog.records)]
    assert any("c/1" in text for text in texts), "requests were logged"
    texts.append(str(traced))
    text = group.create_array("text", data=np.array([HOSTILE]), dtype="string")
    assert text[0] == HOSTILE
    other = xzarr3.LocalStore(tmp_path / f"{HOSTILE}2")
    xzarr3.create_group(other)
    at = store.root
    commands: list[tuple[Any, ...]] = [
        *(("info", at, path) for path in ("", HOSTILE, f"no {HOSTILE}")), ("explain", at, HOSTILE, "0"),
        ("tree", at), ("tree", at, f"no {HOSTILE}"), ("stats", at), ("check", at),
        ("diff", at, other.root), ("diff", other.root, at),
        ("read", at, "text"), ("read", at, HOSTILE, "2:"), ("read", at, "text", "0"),
        ("read", at, "text", HOSTILE),
        ("copy", at, other.root), ("copy", at, f"{at}3", "--source-path", HOSTILE), ("consolidate", at),
        ("info", at, "--option", HOSTILE), ("info", at, "--option", f"{HOSTILE}=1"), (HOSTILE,),
        ("recover", at), ("copy", at, f"{at}4", "--chunks", HOSTILE), ("info", at, "--" + HOSTILE),
    ]  # fmt: skip
    commands += [(*each, "--json") for each in commands if each[0] in cli.commands.commands]
    for command in commands:
        _, out, err = call(*command)
        texts += [out, err]
    for text in texts:
        assert not set(text) & set("\x07\x1b\x7f\x9b\u202e\u2028"), repr(text)
    assert any("\\x1b" in text for text in texts)
