"""Forked processes that work at the same time: started together, waited for or killed, bounded in time."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def be_child(seconds: int = 300) -> None:
    """In a forked child: end it after so many seconds, and leave what earlier tests left to the parent.

    A lock that another thread held as it forked is never released in the child: it would wait for ever, and
    its parent for it; what is collected as garbage may ask for such a lock.
    """
    gc.freeze()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


class Process:
    """A forked child that runs ``work`` and ends; what it raises is printed and makes it fail."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._go, self._gate = os.pipe()[::-1]
        self._said, saying = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Other threads of the tests are idle now.
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            be_child()
            try:
                os.close(self._go)
                os.close(self._said)
                os.read(self._gate, 1)
                Process.say = lambda: os.write(saying, b"x")  # type: ignore[method-assign, assignment]
                work()
                status = 0
            except BaseException:  # noqa: BLE001 - the parent judges it
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(self._gate)
        os.close(saying)
        self._status: int | None = None

    @staticmethod
    def say() -> object:
        """In the child: let the parent know."""
        raise AssertionError("this is not a child")

    def start(self) -> None:
        os.write(self._go, b"x")

    def hear(self) -> bool:
        """Wait until the child says something, or has ended."""
        return bool(os.read(self._said, 1))

    def ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            _, self._status = os.waitpid(self.pid, 0)

    def wait(self, seconds: float) -> int:
        end = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"a process did not end within {seconds} s")
            time.sleep(0.002)
        assert self._status is not None
        return self._status

    def close(self) -> None:
        self.kill()
        os.close(self._go)
        os.close(self._said)


@contextmanager
def processes(*works: Callable[[], object]) -> Iterator[list[Process]]:
    """Processes that work at the same time; those that have not ended by the end of the block are killed."""
    started: list[Process] = []
    try:
        for work in works:
            started.append(Process(work))
        for process in started:
            process.start()
        yield started
    finally:
        for process in started:
            process.close()


def run_processes(*works: Callable[[], object], seconds: float = 120.0) -> None:
    """Run works in processes at the same time; the failure of one is a failure of the test."""
    end = time.monotonic() + seconds
    with processes(*works) as started:
        for process in started:
            status = process.wait(end - time.monotonic())
            assert status == 0, f"a process ended with wait status {status}; see what it printed"


@contextmanager
def orphan(begin: Callable[[], object], told: Path) -> Iterator[None]:
    """A forked child that lives on after its parent was killed; the parent had called ``begin`` before."""

    def work() -> None:
        begun = begin()
        child = os.fork()
        if child:
            told.write_text(str(child))
            Process.say()
        signal.alarm(60)
        signal.pause()
        os._exit(bool(begun))

    with processes(work) as (parent,):
        assert parent.hear()
        parent.kill()
        try:
            yield
        finally:
            os.kill(int(told.read_text()), signal.SIGKILL)


def run_small(work: Callable[..., object], *arguments: str | int, seconds: float = 500.0) -> None:
    """Run a function of a test module in a Python of its own, where little was imported.

    What forks hundreds of times does so here: a fork copies the tables of all memory that the tests hold,
    and both sides then copy each page that one of them changes.
    """
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; from {work.__module__} import {work.__name__} as work"
    )
    command = [sys.executable, "-c", f"{program}; work(*{arguments!r})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def printed_by(program: str, *arguments: str, **environment: str) -> list[str]:
    """The lines that a program of Python prints, which ends well and warns of nothing."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
    return done.stdout.splitlines()


def killed_at_call(call: int, act: Callable[[], object]) -> int:
    """Run ``act`` in a child that is killed at this call of a function; returns how many it made."""
    made = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += event == "call"
        if made == call:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        sys.setprofile(count)
        try:
            act()
        finally:
            sys.setprofile(None)
            os.write(told.fileno(), str(made).encode())

    with tempfile.TemporaryFile() as told, processes(work) as (process,):
        process.wait(300)
        told.seek(0)
        return int(told.read() or 0)
