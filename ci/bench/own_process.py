"""A library in a process of its own, with the cores and threads it is given, behind the methods of a library.

Run as a program it is that process: `python own_process.py LABEL THREADS` reads orders from its input, a list
in JSON each, and answers each with a line of JSON. It measures the times itself, so that the way of an order
to it is not part of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from bare import Selection, cpu_count
from layouts import Float32Array, Layout
from peers import Library, Place, Reader, Writer, find_libraries
from read_rows import read_in_turn
from run import EVERYTHING
from timing import LIBRARY_ERRORS, Run, SelfTimed, seconds_of, steady_allocator

COUNTING_S = 0.3
"""Seconds in which the speed of a counting thread is measured while no other thread runs."""
PATIENCE_S = 10.0
"""Seconds that a process has to end by itself."""


@contextlib.contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Keep this thread, and what it starts, on `cores`; do nothing where the platform cannot."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def usable_cores() -> list[int]:
    """Return the numbers of the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(cpu_count()))


@dataclass(frozen=True)
class Answer(SelfTimed):
    """What a library in a process of its own says of a read or write.

    Attributes
    ----------
    counting : float or None
        Speed of a thread that counted beside it, in percent of its speed alone; None without one.
    values : callable or None
        Reads the same again and returns the values.
    """

    counting: float | None = None
    values: Callable[[], Float32Array] | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.values is None:
            raise TypeError("a write has no values")
        return np.asarray(self.values(), dtype)


class OwnProcess(Library):
    """A library in a process of its own, which lives until `close`.

    It reads and writes whole arrays; what is written is mapped from a file.

    Parameters
    ----------
    library : Library
        The library, of which this process has the label and the version.
    threads : int
        Number of threads the library works with.
    cores : sequence of int
        Numbers of the cores the process may use, where the platform can limit them.
    """

    def __init__(self, library: Library, threads: int, cores: Sequence[int]) -> None:
        super().__init__(threads)
        self.label = library.label
        self.distribution = library.distribution
        self.engine = library.engine
        # The threads of Rust are counted when the first of them starts.
        environment = os.environ | library.environment | {"RAYON_NUM_THREADS": str(threads)}
        command = [sys.executable, str(Path(__file__).resolve()), self.label, str(threads)]
        with pinned(cores):
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self._orders = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def reader(self, path: Place) -> Reader:
        self._ask("open", str(path))

        def read(selection: Selection) -> Any:
            if selection != EVERYTHING:
                raise ValueError("in a process of its own, a library reads whole arrays only")
            return self.read(path)

        return read

    def read(self, path: Place, times: int = 1, counting_on: int | None = None) -> Answer:
        """Read the array at `path` several `times`.

        Parameters
        ----------
        path : Path
            An array that was opened with `reader`.
        times : int
            Number of reads, one after the other.
        counting_on : int, optional
            Number of a core on which a thread of Python is to count meanwhile.
        """
        seconds, counting = self._ask("read", str(path), times, counting_on)
        return Answer(seconds, counting, functools.partial(self._values, path))

    def _values(self, path: Place) -> Float32Array:
        with tempfile.TemporaryDirectory(prefix="values-", dir=Path(path).parent) as directory:
            file = Path(directory) / "values.npy"
            self._ask("save", str(path), str(file))
            values: Float32Array = np.load(file)
        return values

    def writer(self, path: Path, shape: tuple[int, ...], layout: Layout) -> Writer:
        self._ask("create", str(path), shape, asdict(layout))

        def write(data: Float32Array) -> Any:
            if not isinstance(data, np.memmap):
                raise TypeError("in a process of its own, a library writes what is mapped from a file")
            return Answer(self._ask("write", str(path), str(data.filename)))

        return write

    def _ask(self, *order: object) -> Any:
        try:
            print(json.dumps(order), file=self._orders, flush=True)
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"the process of {self.label} ended with {self._process.wait()}")
        found = json.loads(answer)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found["value"]


@contextlib.contextmanager
def own_processes(
    libraries: Sequence[Library], threads: int, cores: Sequence[int]
) -> Iterator[list[OwnProcess]]:
    """Give each of `libraries` a process of its own, and end the processes afterwards."""
    with contextlib.ExitStack() as stack:
        processes = [OwnProcess(library, threads, cores) for library in libraries]
        for process in processes:
            stack.callback(process.close)
        yield processes


class _Counter:
    """A thread of pure Python that counts, and so wants Python's lock all the time."""

    def __init__(self, core: int) -> None:
        self._count = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._work, args=(core,), daemon=True)

    def _work(self, core: int) -> None:
        with pinned([core]):
            while not self._stopped:
                self._count += 1

    def __enter__(self) -> _Counter:
        self._thread.start()
        while not self._count:
            time.sleep(0.001)
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = True
        self._thread.join()

    def speed(self, run: Run) -> tuple[float, float]:
        """Return how many seconds `run` took and how many counts were made in each of them."""
        before = after = self._count

        def counted() -> object:
            nonlocal after
            result = run()
            after = self._count
            return result

        seconds = seconds_of(counted)
        return seconds, (after - before) / seconds


class _Server:
    """The orders that the process takes, each a method of its name."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._readers: dict[str, Reader] = {}
        self._writers: dict[str, Writer] = {}

    def open(self, path: str) -> None:
        """Open an array for reading."""
        if path not in self._readers:
            self._readers[path] = self._library.reader(Path(path))

    def read(self, path: str, times: int, counting_on: int | None) -> tuple[float, float | None]:
        """Return the seconds that `times` reads took, and the share of its speed a counting thread kept."""
        run = functools.partial(read_in_turn, self._readers[path], [EVERYTHING] * times)
        if counting_on is None:
            return seconds_of(run), None
        with _Counter(counting_on) as counter:
            _, alone = counter.speed(lambda: time.sleep(COUNTING_S))
            seconds, beside = counter.speed(run)
        return seconds, 100 * beside / alone

    def save(self, path: str, file: str) -> None:
        """Read an array and write its values to a file."""
        np.save(file, np.asarray(self._readers[path](EVERYTHING)))

    def create(self, path: str, shape: list[int], layout: dict[str, Any]) -> None:
        """Create an array to write to."""
        made = Layout(**layout).fitted(tuple(shape))
        self._writers[path] = self._library.writer(Path(path), tuple(shape), made)

    def write(self, path: str, file: str) -> float:
        """Return the seconds that writing the values of a file took."""
        return seconds_of(functools.partial(self._writers.pop(path), _mapped(file)))


@functools.cache
def _mapped(file: str) -> Float32Array:
    """Return the values of a file, each page of which was touched: a first touch takes time."""
    data: Float32Array = np.asarray(np.load(file, mmap_mode="r"))
    data.max()
    return data


def _serve(label: str, threads: int) -> None:
    # What a library prints goes elsewhere than the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    steady_allocator()
    (library,), _ = find_libraries([label], threads)
    with library.configured():
        server = _Server(library)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            try:
                found: dict[str, object] = {"value": getattr(server, name)(*arguments)}
            except LIBRARY_ERRORS as error:
                found = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
