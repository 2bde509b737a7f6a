"""What the tests of this folder look at and break: the files of a directory, and calls to the system."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from xzarr3.stores.local import system
from xzarr3.stores.local.names import LOCK


def files(root: str | Path) -> dict[str, bytes]:
    """All files below a directory, those that are no keys, too."""
    return {
        os.path.relpath(os.path.join(folder, name), root): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
    }


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def module_of(call: str) -> Any:
    """Where the package looks a call to the system up."""
    return system if call in ("pread", "preadv") else os


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException, *, after: int = 0,
    root: str | Path = "", locks: bool = True,
) -> Iterator[list[object]]:  # fmt: skip
    """Let ``os.name`` raise below ``root`` from its call number ``after`` on; yields the first arguments.

    Calls for lock files count only with ``locks``.
    """
    module = module_of(name)
    real = getattr(module, name)
    numbers = itertools.count()
    failed: list[object] = []

    def fail(what: object, *args: object, **kwargs: object) -> object:
        folder = kwargs.get("dir_fd", kwargs.get("src_dir_fd"))
        path = _path(what) if folder is None else f"{_path(folder)}/{what}"
        is_left_out = not path.startswith(str(root)) or (not locks and path.endswith(LOCK))
        if is_left_out or next(numbers) < after:
            return real(what, *args, **kwargs)
        failed.append(what)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        yield failed


def _path(what: Any) -> str:
    """The path of a path or of a descriptor."""
    return os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fsdecode(what)
