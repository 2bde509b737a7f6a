"""Run a piece of a test in a forked child: bounded in time, and without the rights of root.

Code that is handed hostile paths, or that must be refused access, runs here and nowhere else. The child
gets a directory of its own: ``store`` is where it works, and everything beside it is a canary that the
child could damage, and that is compared with what it was before.
"""

import functools
import gc
import inspect
import os
import pickle
import select
import shutil
import signal
import stat
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

NOBODY = 65534
PATIENCE = 120.0  # Seconds after which a child hangs, however busy the machine is.

Snapshot = dict[str, tuple[object, ...]]


@dataclass
class Outcome:
    """How a child ended: what it returned or raised, and which files beside its store it changed."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def checked(self) -> Any:
        """What the child returned; its failures are failures of the test."""
        if self.error is not None:
            raise AssertionError(f"in the child: {self.trace}") from self.error
        assert self.changed == []
        return self.value


def run_child(
    work: Callable[[], Any], *, timeout: float = PATIENCE, drop: bool = False,
    notes: dict[str, Any] | None = None,
) -> Outcome:  # fmt: skip
    """What ``work`` returns or raises in a forked child, which is killed after ``timeout`` seconds.

    With ``drop`` the child becomes uid 65534 first, unless this process is not root anyhow. What it
    puts into ``notes`` is handed back too.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Other threads of the tests are idle now.
        child = os.fork()
    if child == 0:
        os.close(reading)
        _be_child(work, writing, drop, {} if notes is None else notes)
    os.close(writing)
    try:
        data, ended = _read_all(reading, time.monotonic() + timeout)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # It is not waited for yet, so the number is still its own.
        _, status = os.waitpid(child, 0)
    assert ended, f"the child did not end within {timeout} s"
    assert data, f"the child died without a result, wait status {status}"
    return Outcome(**pickle.loads(data))


def run_unprivileged(
    work: Callable[[Path], Any], *, prepare: Callable[[Path], Any] | None = None, timeout: float = PATIENCE
) -> Outcome:
    """What ``work`` does as a user without rights, in a directory of its own with a canary in it.

    It gets the directory, which is also the working directory: the store belongs to ``store`` in it;
    ``outside`` and ``canary.txt`` are beside it and writable. ``prepare`` runs in the same way, before the
    state of the canary is recorded.
    """
    before: Snapshot = {}
    with own_directory() as base:

        def both() -> Any:
            os.chdir(base)
            if prepare is not None:
                prepare(base)
            before.update(snapshot(base))
            return work(base)

        outcome = run_child(both, timeout=timeout, drop=True, notes=before)
        after = snapshot(base)
        names = outcome.notes.keys() | after.keys()
        outcome.changed = sorted(name for name in names if outcome.notes.get(name) != after.get(name))
        return outcome


def unprivileged(prepare: Callable[[Path], Any] | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Make a test of what runs in a child without rights; its first argument is the directory there."""

    def decorate(work: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(work)
        def test(**given: Any) -> None:
            run_unprivileged(lambda base: work(base, **given), prepare=prepare).checked()

        asked = list(inspect.signature(work).parameters.values())[1:]
        test.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
        return test

    return decorate


@contextmanager
def own_directory() -> Iterator[Path]:
    """A directory with an empty ``store`` and a canary beside it, all of it owned by uid 65534."""
    base = Path(tempfile.mkdtemp(prefix="xzarr3-test-"))
    try:
        (base / "store").mkdir()
        (base / "outside" / "deep").mkdir(parents=True)
        (base / "canary.txt").write_text("alive")
        (base / "outside" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
        (base / "outside" / "deep" / "data.bin").write_bytes(bytes(range(256)))
        if os.geteuid() == 0:
            for place in (base, *base.rglob("*")):
                os.chown(place, NOBODY, NOBODY)
        yield base
    finally:
        for folder, folders, _ in os.walk(base):  # From the top down, not following links.
            for name in folders:
                path = os.path.join(folder, name)
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(base)


def snapshot(base: Path) -> Snapshot:
    """What is in ``base``, but not within the store: names, types, contents and times."""
    found: Snapshot = {}
    for folder, folders, files in os.walk(base):
        if Path(folder) == base and "store" in folders:
            folders.remove("store")
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            content = Path(path).read_bytes() if stat.S_ISREG(info.st_mode) else b""
            found[os.path.relpath(path, base)] = (info.st_ino, info.st_mode, info.st_mtime_ns, content)
    info = os.lstat(base)
    found["."] = (info.st_ino, info.st_mode, info.st_mtime_ns)
    return found


def _be_child(work: Callable[[], Any], writing: int, drop: bool, notes: dict[str, Any]) -> NoReturn:
    gc.freeze()  # What is left of earlier tests is not this child's to finalize: it could swallow a signal.
    outcome: dict[str, Any] = {}
    try:
        if drop and os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        outcome["value"] = work()
    except BaseException as error:  # noqa: BLE001 - the parent judges it, an interrupt as well
        outcome = {"error": error, "trace": "".join(traceback.format_exception(error))}
    outcome["notes"] = notes
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
    except Exception as error:  # noqa: BLE001 - whatever keeps it from travelling
        trace = f"{outcome.get('trace')}\nand it cannot be pickled: {error!r}"
        data = pickle.dumps({"error": RuntimeError(trace), "trace": trace, "notes": notes})
    view = memoryview(data)
    while view:
        view = view[os.write(writing, view) :]
    os._exit(0)


def _read_all(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """All that is written to a pipe, and whether its other end was closed before the deadline."""
    parts = []
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return b"", False
        part = os.read(descriptor, 2**16)
        if not part:
            return b"".join(parts), True
        parts.append(part)
