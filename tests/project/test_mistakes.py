"""Mistakes that users make: what the error says, how near the user's line is, and rules for all messages."""

from __future__ import annotations

import ast
import pickle
import re
import shutil
import socket
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from _mistakes import MISTAKES, create, encoded
from _servers import answered_by

import xzarr3
from xzarr3.errors import FULL_TRACEBACK
from xzarr3.extensions import forget

MOST_FRAMES = 4
"""How many frames may follow the user's own line."""
LONGEST = 400
"""Most characters of a message before a list of names."""
LIST = re.compile(r"(accepted|has|have|knows): ")
NOT_SAID = re.compile(r"\n|no such directory|iterable|unhashable|len\(\)|callable|understood|multiply|\*\*\*")
"""What Python would say instead, and what must stay secret."""


def strings() -> Iterator[str]:
    """The strings of the package that are no docstrings, with braces for what f-strings insert."""
    for path in Path(xzarr3.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                node.value = ast.Constant(None)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.keyword) and node.arg == "accepted":
                yield f"accepted: {ast.unparse(node.value).lstrip('f').strip(chr(39))}"


VERBS = "call|choose|correct|create|give|install|leave|make|open|pass|pip|raise|read|repeat|use|wait|write"


def test_words_that_no_message_has() -> None:
    not_said = rf"accepted: ({VERBS})\b(?!=)|\b(somebody|someone|whoever)\b"
    assert [text for text in strings() if re.search(not_said, text)] == []


class Answers(BaseHTTPRequestHandler):
    """A web server of which one directory is denied, and nothing else is there."""

    def do_GET(self) -> None:
        self.send_response(403 if "/denied/" in self.path else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815 - http.server asks for this name

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the output of the tests clean."""


class Things:
    """Stores and files in one folder, which mistakes only read."""

    def __init__(self, folder: Path, web: str) -> None:
        self.folder, self.web = folder, web
        self.store = self.path("store.zarr")
        self.dataset = xr.Dataset(
            {name: (("time", "lat", "lon"), np.ones((12, 6, 8), "f4")) for name in ("t2m", "pr")},
            {
                "time": pd.date_range("2000-01-01", periods=12, freq="MS"), "lat": np.linspace(-75, 75, 6),
                "lon": np.arange(8) * 45.0,
            },
        )  # fmt: skip
        later = pd.date_range("2001-01-01", periods=2, freq="MS")
        self.more = self.dataset.isel(time=slice(2)).assign_coords(time=later)
        self.values = self.dataset.drop_vars(["lat", "lon"])
        xzarr3.to_zarr(self.dataset, self.store)
        self.group = xzarr3.open_group(self.store)
        self.array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(10, 20), chunks=(5, 5), dtype="f4")
        for name in ("outer/inner", "empty", "ice/snapshots", "ice/transactions", "ice/manifests"):
            (folder / name).mkdir(parents=True)
        shutil.copytree(self.store, folder / "outer/inner/data.zarr")
        (folder / "link").symlink_to("nowhere")
        hdf5 = b"\x89HDF\r\n\x1a\n" + bytes(100)
        for name, data in {
            "file.nc": hdf5,
            "file3.nc": b"CDF\x02" + bytes(40),
            "notes.txt": b"hello",
        }.items():
            (folder / name).write_bytes(data)
        for name, top in (("zipped.zarr", folder / "store.zarr"), ("above.zip", folder)):
            with zipfile.ZipFile(folder / name, "w") as packed:
                for path in sorted(Path(self.store).rglob("zarr.json")):
                    packed.write(path, path.relative_to(top))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.closed = f"http://127.0.0.1:{free.getsockname()[1]}"

    def path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Things]:
    with answered_by(Answers) as url:
        yield Things(tmp_path_factory.mktemp("mistakes"), url)


def made(run: Callable[[], Any]) -> BaseException:
    """The error of a mistake; its traceback begins in this function."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - its class is what is tested
        return error
    pytest.fail("no error was raised")


def check_manners(error: BaseException) -> None:
    """What holds for every message and traceback."""
    text = str(error)
    assert not NOT_SAID.search(text)
    assert len(LIST.split(text)[0]) <= LONGEST
    frames = len(traceback.extract_tb(error.__traceback__)) - 2  # Without `made` and the own line.
    assert frames <= MOST_FRAMES
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), text)


@pytest.mark.parametrize(
    ("call", "kind", "first", "second"), MISTAKES, ids=[f"{first} {second}" for *_, first, second in MISTAKES]
)
def test_mistake(things: Things, call: Any, kind: type[Exception], first: str, second: str) -> None:
    error = made(lambda: call(things))
    assert isinstance(error, kind), repr(error)
    assert isinstance(error, xzarr3.Xzarr3Error | AttributeError)
    assert first in str(error)
    assert second in str(error)
    check_manners(error)


@pytest.mark.parametrize(
    ("modules", "extra", "use"),
    [
        (["obstore", "obstore.store"], "object", lambda: xzarr3.open("https://example.org/x.zarr")),
        (["obstore", "obstore.store"], "object", lambda: xzarr3.open_group("s3://b/x.zarr", mode="a")),
        (["numcodecs.pcodec"], "codecs", lambda: create(serializer="numcodecs.pcodec")),
        (["zfpy"], "codecs", lambda: create(serializer="numcodecs.zfpy")),
        (["zfpy"], "codecs", lambda: create(serializer=xzarr3.codecs.ZfpCodec())),
        (["ml_dtypes"], "ml-dtypes", lambda: create(dtype={"name": "float8_e3m4"})),
    ],
)
def test_missing_extra(monkeypatch: Any, modules: list[str], extra: str, use: Any) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    forget()  # An earlier test may have used the data type.
    error = made(use)
    assert isinstance(error, xzarr3.Xzarr3Error)
    assert f"pip install 'xzarr3[{extra}]'" in str(error)
    check_manners(error)


def test_causes_stay_and_all_frames_can_be_had(things: Things, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        encoded(things, {"time": {"units": "days after 2000"}})

    short = made(run)
    assert isinstance(short.__cause__, ValueError)
    assert short.__notes__ == [f"raised for variable 'time' of dtype {things.dataset.time.dtype}"]
    monkeypatch.setenv(FULL_TRACEBACK, "1")
    full = made(run)
    assert str(full) == str(short)
    names = [frame.filename for frame in traceback.extract_tb(full.__traceback__)]
    assert len(names) > len(traceback.extract_tb(short.__traceback__)) + MOST_FRAMES
    assert names[-1].endswith("plan.py")


def test_a_defect_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("xzarr3.commit.create.make_node", broken)
    error = made(lambda: xzarr3.create_group(xzarr3.MemoryStore()))
    assert traceback.extract_tb(error.__traceback__)[-1].name == "broken"


def test_errors_of_an_iteration_are_short(tmp_path: Path) -> None:
    group = xzarr3.create_group(tmp_path)
    group.create_array("a", shape=1, dtype="i1")
    (tmp_path / "a" / "zarr.json").write_bytes(b"{")
    for run in (lambda: list(group.arrays()), lambda: list(group.members()), lambda: group["a"]):
        error = made(run)
        assert "node '/a'" in str(error)
        check_manners(error)


def test_a_key_that_is_not_there_is_told_without_quotes() -> None:
    error = xzarr3.UnknownNameError("no variable 'a'")
    assert str(error) == "no variable 'a'"
    assert isinstance(error, KeyError)


def test_a_warning_names_the_line_of_the_user(things: Things, tmp_path: Path) -> None:
    shutil.copytree(things.store, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "t2m" / "c")
    array = xzarr3.open_array(tmp_path / "copy", "t2m", missing="warn")
    with pytest.warns(xzarr3.MissingChunksWarning) as caught:
        array.oindex[0]
    assert caught[0].filename == __file__
