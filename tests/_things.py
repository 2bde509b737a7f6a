"""What tests are given and named by: objects of no kind, modules that no import finds, cases, memory."""

import importlib.util
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class Thing:
    """An object of no known kind, which nothing accepts."""

    def __repr__(self) -> str:
        return "Thing()"


def without_addresses(value: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def module_at(path: Path) -> ModuleType:
    """A file of Python that no import finds, as a module."""
    spec = importlib.util.spec_from_file_location(f"at_{path.parent.name}_{path.stem.strip('_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def case(name: object) -> Iterator[None]:
    """One of many small cases of a test: an error within it names it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {name}")
        raise


@contextmanager
def measured() -> Iterator[list[int]]:
    """The most bytes of memory that a ``with`` statement holds; once it has ended, they are in the list."""
    peak: list[int] = []
    tracemalloc.start()
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def refused(kind: Any, words: str | None, *calls: Callable[[], object]) -> list[Any]:
    """What the calls raise: each an error of this kind, in whose text the words (a pattern) are."""
    found = []
    for at, call in enumerate(calls):
        with case(at), pytest.raises(kind, match=words) as caught:
            call()
        found.append(caught.value)
    return found


def refuses(
    call: Callable[[Any], object], values: Iterable[Any], kind: Any, words: str | None = None
) -> list[Any]:
    """What the call raises, given each value: an error of this kind, with these words (a pattern)."""
    found = []
    for value in values:
        with case((value,)), pytest.raises(kind, match=words) as caught:
            call(value)
        found.append(caught.value)
    return found
