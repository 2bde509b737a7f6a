"""How many threads a read or a write takes.

A part of the work on each chunk holds Python's lock, which one thread has at a time. More threads than the
rest of the work keeps busy wait for each other, so that a read gets slower with each of them. The costs are
measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xzarr3.codecs.pipeline import COPY_RATE
from xzarr3.io.plan import ReadPlan
from xzarr3.parallel import available_threads
from xzarr3.stores import in_flight

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

_SMALL = 2**18  # Bytes; for less work, starting another thread costs more than it saves.
# Microseconds that a chunk holds Python's lock in the Python executor.
_READ_LOCKED = 12.5
_WRITE_LOCKED = 40.0
_ENCODE = 4  # Encoding takes about so many times as long as decoding.
_OPEN = 4.0  # Microseconds to open and close a file, or to find an inner chunk.
_CREATE = 30.0  # Microseconds to create and rename a file.
_STORE_RATE = 1000  # Bytes that are written in a microsecond.
_WORTH = 150.0  # Microseconds of compiled work that are worth another thread.


def to_read(
    engine: Engine, plan: ReadPlan, threads: int | None, *, is_compiled: bool = False
) -> tuple[int, int]:
    """Number of threads for a read, and approximate number of pieces to cut its shards into.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    threads : int, optional
        The most that the user permits; None for as many as there are cores.
    is_compiled : bool
        Whether compiled code reads, which does not hold Python's lock.
    """
    number, pieces, chain = plan.number, 1, engine.meta.chain
    if engine.waiting:
        # Shards are not cut: one thread requests all wanted ranges of a shard together.
        return min(threads or in_flight.at_once(engine.waiting, plan.work() // max(number, 1)), number), 1
    busy = threads or available_threads()
    if busy > 1 and is_compiled:
        busy = min(busy, 1 + int(plan.chunks * (_OPEN + chain.decode_time) / _WORTH))
    elif busy > 1:
        # The size of all units bounds the work and mostly decides; plan.work() takes longer.
        if number * chain.spec.nbytes < _SMALL:
            busy = 1
        else:
            busy = min(busy, _beside_the_lock(engine, chain.decode_time, _READ_LOCKED))
        if busy > 1 and plan.work() < _SMALL:
            busy = 1
    if chain.shard is not None and busy > 1 and number < 2 * busy:
        pieces = 2 * busy
    return min(busy, max(number, pieces)), pieces


def to_write(engine: Engine, plan: ReadPlan, nbytes: int, threads: int | None) -> tuple[int, int]:
    """Number of threads of the Python executor for a write of ``nbytes``, and the most for compiled code."""
    chain = engine.meta.chain
    if threads is None:
        threads = available_threads()
        if engine.waiting:
            threads = in_flight.at_once(engine.waiting, 2 * chain.spec.nbytes)
    most = min(threads, plan.number)
    if engine.waiting:
        return most, most
    # A few values may touch many units, each of which is read and written as a whole.
    work = plan.number * chain.spec.nbytes if chain.shard is None else plan.work()
    if max(work, nbytes) < _SMALL:
        return 1, most
    return min(most, _beside_the_lock(engine, _ENCODE * chain.decode_time, _WRITE_LOCKED)), most


def to_write_compiled(engine: Engine, number: int, most: int) -> int:
    """Number of threads of compiled code that write ``number`` units."""
    work = number * (_CREATE + engine.meta.chain.spec.nbytes / _STORE_RATE)
    return min(most, 1 + int(work / _WORTH))


def _beside_the_lock(engine: Engine, coding: float, locked: float) -> int:
    """How many threads code chunks, for so many microseconds each, while one holds Python's lock."""
    free = coding + engine.store.request_bytes / COPY_RATE
    return max(1, int(free / locked))
