"""When compiled code is loaded, what is said of it, and what happens where a part of it is missing."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import xzarr3
from xzarr3.io import compiled

needs_numba = pytest.mark.skipif(not compiled.is_possible(), reason="numba is not installed, or turned off")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As in a new process, where loading only adds to a list."""
    found: list[int] = []
    module = ModuleType("loaded")

    def load() -> None:
        found.append(1)
        compiled._state.module = module

    monkeypatch.setattr(compiled, "_state", compiled._State())
    monkeypatch.setattr(compiled, "_load", load)
    monkeypatch.setattr(compiled, "is_possible", lambda: True)
    return found


@pytest.mark.parametrize(("is_compiled", "seconds"), [(True, 0.7), (False, 10.0)])
def test_it_is_loaded_once_reads_have_taken_as_long_as_loading_takes(
    loads: list[int], monkeypatch: pytest.MonkeyPatch, is_compiled: bool, seconds: float
) -> None:
    monkeypatch.setattr(compiled, "_is_compiled", lambda: is_compiled)
    assert compiled.loaded(seconds / 2) is None
    compiled.spend(seconds * 0.75)
    assert compiled.loaded(seconds / 8) is None
    assert not loads
    assert compiled.loaded(seconds / 2) is not None
    assert compiled.loaded(0) is not None
    assert loads == [1]


def test_another_thread_that_loads_it_is_not_waited_for(loads: list[int]) -> None:
    with compiled._lock:
        assert compiled.loaded(1000) is None
    assert compiled.loaded(1000) is not None


def test_where_it_cannot_be_used_nothing_is_loaded(loads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "is_possible", lambda: False)
    monkeypatch.delenv("XZARR3_COMPILED", raising=False)
    assert compiled.loaded(1000) is None
    assert "numba" in compiled.warm_up()
    assert not loads


def test_small_reads_import_no_numba() -> None:
    code = (
        "import sys, tempfile, numpy, xzarr3\n"
        "a = xzarr3.create_array(tempfile.mkdtemp() + '/a', data=numpy.arange(400), chunks=4)\n"
        "a[:]\n"
        "print({'numba', 'llvmlite'} & set(sys.modules))"
    )
    assert _run(code) == "set()"


@needs_numba
def test_it_is_turned_off_by_the_environment() -> None:
    code = "import sys, xzarr3\nprint(xzarr3.warm_up(), 'numba' in sys.modules)"
    assert _run(code, XZARR3_COMPILED="0") == "off: XZARR3_COMPILED=0 False"
    assert _run(code) == "in use True"


def _run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**{name: text for name, text in os.environ.items() if name != "XZARR3_COMPILED"}, **environment},
    )
    return done.stdout.strip()


def test_versions_are_shown() -> None:
    shown = io.StringIO()
    xzarr3.show_versions(shown)
    rows = dict(line.split(": ", 1) for line in shown.getvalue().splitlines())
    assert rows["xzarr3"] == xzarr3.__version__
    assert rows["numpy"] == np.__version__
    assert rows["compiled code"] == compiled.report()


@needs_numba
@pytest.mark.parametrize("name", ["zstd", "blosc", "gzip", "crc32c"])
@pytest.mark.parametrize("fault", ["no object", "no function", "other bytes"])
def test_a_library_that_does_not_fit_is_named_and_python_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    from xzarr3.io.compiled import layout, libraries, read_batch

    changes: dict[str, Any] = {
        "no object": {"pattern": "nothing*"},
        "no function": {"functions": {**libraries.LIBRARIES[name].functions, "missing": libraries.I32()}},
        "other bytes": {"check": lambda call: False},
    }
    library = dataclasses.replace(libraries.LIBRARIES[name], **changes[fault])
    monkeypatch.setattr(libraries, "LIBRARIES", {**libraries.LIBRARIES, name: library})
    monkeypatch.setattr(libraries.llvmlite.binding, "add_symbol", lambda name, address: None)
    reasons = libraries.bind.__wrapped__()
    assert {each for each, reason in reasons.items() if reason} == {name}
    monkeypatch.setattr(layout, "bind", lambda: reasons)
    monkeypatch.setattr(read_batch, "bind", lambda: reasons)
    monkeypatch.setattr(layout.reading, "_made", {})
    assert f"without {name}: " in compiled.report()
    values = np.arange(600, dtype="int32")
    array = xzarr3.create_array(tmp_path / "a", data=values, chunks=7, compressors=[name])
    assert read_batch.CompiledRead.of(array.engine, array.plan(...), values, 1) is None
    assert np.array_equal(array[:], values)
