"""Stores whose writer is killed before a change, and what is found in a store afterwards."""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from _conformance import contents
from _processes import processes

from xzarr3 import LocalStore, MemoryStore, Store
from xzarr3._types import Buffer
from xzarr3.commit import lease


class KilledError(BaseException):
    """The process ends here."""


class MortalStore(MemoryStore):
    """Changes nothing any more after a number of changes."""

    left: float = float("inf")
    error: BaseException | type[BaseException] = KilledError

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        self._count()
        super().put(key, pieces)

    def erase(self, *keys: str) -> None:
        self._count()
        super().erase(*keys)

    def killed_at(self, number: float, act: Callable[[], object], *, gone: bool = False) -> bool:
        """Whether ``act`` ended before the change of this number; with ``gone`` its process ended, too."""
        self.left = number
        caught = None
        try:
            act()
        except KilledError as error:
            caught = error  # Nothing that it refers to ends before its process is forgotten.
        finally:
            self.left = float("inf")
        if gone:
            forget_process()
        return caught is not None


def holding(kind: Any, values: Mapping[str, Any]) -> Any:
    """A store of a kind that holds these values in a dictionary of its own."""
    store = kind()
    for key, value in values.items():
        store._values[key] = bytes(value)
        store._numbers[key] = 0
    return store


def killed_everywhere(
    first: Store, act: Callable[[Any], object], step: int = 1, kind: Any = MortalStore
) -> Iterator[tuple[Any, bool]]:
    """Copies of a store in which ``act`` was killed at each change in turn; the last one has all of it."""
    for number in itertools.count(0, step):
        store = holding(kind, contents(first))
        killed = store.killed_at(number, lambda store=store: act(store))
        yield store, killed
        if not killed:
            return


def forget_process() -> None:
    """What this process has reserved is that of one that is gone."""
    lease._live.clear()
    lease._kept.clear()


def end_at_change(n: int, end: Callable[[], object], set_name: Callable[..., None] = setattr) -> None:
    """End what goes on at the n-th change of a directory from now on."""
    count = itertools.count()

    def mortal(real: Any) -> Any:
        def act(*args: Any, **options: Any) -> Any:
            changes = real.__name__ != "open" or args[1] & (os.O_WRONLY | os.O_CREAT)
            if changes and next(count) >= n:
                end()
            return real(*args, **options)

        return act

    for change in ("rename", "replace", "link", "symlink", "unlink", "rmdir", "mkdir", "open"):
        set_name(os, change, mortal(getattr(os, change)))


def killed_in_fork(n: int, act: Callable[[], object]) -> bool:
    """Whether a process that does this was killed at its n-th change of a directory."""

    def mortal() -> None:
        end_at_change(n, lambda: os._exit(9))
        act()

    with processes(mortal) as (process,):
        status = os.waitstatus_to_exitcode(process.wait(300))
    assert status in (0, 9)
    return status == 9


class UnreadableStore(MemoryStore):
    """Lists chunks that it does not give."""

    hides: Callable[[str], bool] = staticmethod(lambda key: False)

    def get(self, key: str, byte_range: Any = None) -> Any:
        return None if self.hides(key) else super().get(key, byte_range)

    def open(self, key: str, first: Any = None, version: object | None = None) -> Any:
        return None if self.hides(key) else super().open(key, first, version)


def opened(store: Any, group: str | None = None, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine="xzarr3", group=group, **options)


def left(store: Any) -> list[str]:
    """What writes have left beside the values."""
    if isinstance(store, LocalStore):
        found = (str(path) for path in Path(store.root).rglob("*") if path.is_file())
        return [name for name in found if ".xzarr3-staged" in name]
    return [key for key in store.list() if ".xzarr3" in key]
