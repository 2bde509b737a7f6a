"""What the tests of native reads and of native writes share."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from xzarr3.io import native

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def sharding(chunk_shape: list[int], *codecs: Any, index_codecs: Any = (LITTLE,), at: str = "end") -> Any:
    """The codec of a shard. Without a checksum, any index is believed."""
    configuration = {
        "chunk_shape": chunk_shape,
        "codecs": [LITTLE, *codecs],
        "index_codecs": [*index_codecs],
        "index_location": at,
    }
    return {"name": "sharding_indexed", "configuration": configuration}


INDEX_CODECS = [[LITTLE], [LITTLE, {"name": "crc32c"}]]
INDEXES = pytest.mark.parametrize(
    ("index_codecs", "at"), [*itertools.product(INDEX_CODECS, ["start", "end"])]
)


class Seen:
    """What native code did: the rows that it was given, and those that it left."""

    rows = 0
    left = 0


@contextlib.contextmanager
def watching() -> Iterator[Seen]:
    """Count the rows of all calls."""
    native.report()  # Each codec has proved itself then: these are no rows of a test.
    found, do, write_again = Seen(), native.Call.do, native.Call.write_again

    def count(call: native.Call) -> None:
        found.rows += len(call.status)
        found.left += int(np.count_nonzero(np.isin(call.status, (native.LEFT, 3))))

    def done(self: native.Call, name: str, job: list[int]) -> None:
        do(self, name, job)
        count(self)

    def written(self: native.Call, packed: Any) -> int:
        result = write_again(self, packed)
        count(self)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native.Call, "do", done)
        patch.setattr(native.Call, "write_again", written)
        yield found


@contextlib.contextmanager
def python_executor() -> Iterator[None]:
    """The Python executor does all work."""
    before, native.switch.is_on = native.switch.is_on, False
    try:
        yield
    finally:
        native.switch.is_on = before


@st.composite
def grids(
    draw: st.DrawFn, dtypes: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any], np.random.Generator]:
    """The shape of an array and of its chunks, a data type, and a source of values."""
    ndim = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, (40, 12, 8, 5)[ndim - 1])) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, n + 2)) for n in shape)
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    return shape, chunks, dtype, np.random.default_rng(draw(st.integers(0, 100)))


class Interrupting:
    """The library, whose calls do one run of rows in no time; the third call is interrupted at its end."""

    def __init__(self, library: Any, most: int = 3) -> None:
        self._library, self._left = library, most

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name not in ("xzarr3_read", "xzarr3_write"):
            return function

        def called(job: Any) -> None:
            function(job)
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt

        return called


def interrupt(monkeypatch: Any, most: int = 3) -> None:
    """Interrupt a call of native code."""
    found = native.loaded()
    assert found is not None
    changed = found._replace(library=Interrupting(found.library, most))
    monkeypatch.setattr(native, "_SLICE", 0)
    monkeypatch.setattr(native, "_loaded", lambda: changed)
