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


def to_read(engine: Engine, plan: ReadPlan, threads: int | None) -> tuple[int, int]:
    """Number of threads for a read, and approximate number of pieces to cut its shards into.

    Parameters
    ----------
    engine : Engine
    plan : ReadPlan
    threads : int, optional
        The most that the user permits; None for as many as there are cores.
    """
    number, pieces, chain = plan.number, 1, engine.meta.chain
    if engine.waiting:
        # Shards are not cut: one thread requests all wanted ranges of a shard together.
        return min(threads or in_flight.at_once(engine.waiting, plan.work() // max(number, 1)), number), 1
    busy = threads or available_threads()
    if busy > 1:
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


def to_write(engine: Engine, plan: ReadPlan, nbytes: int, threads: int | None) -> int:
    """Number of threads for a write of ``nbytes``."""
    chain = engine.meta.chain
    if threads is None:
        threads = available_threads()
        if engine.waiting:
            threads = in_flight.at_once(engine.waiting, 2 * chain.spec.nbytes)
    most = min(threads, plan.number)
    if engine.waiting:
        return most
    # A few values may touch many units, each of which is read and written as a whole.
    work = plan.number * chain.spec.nbytes if chain.shard is None else plan.work()
    if max(work, nbytes) < _SMALL:
        return 1
    return min(most, _beside_the_lock(engine, _ENCODE * chain.decode_time, _WRITE_LOCKED))


def _beside_the_lock(engine: Engine, coding: float, locked: float) -> int:
    """How many threads code chunks, for so many microseconds each, while one holds Python's lock."""
    free = coding + engine.store.request_bytes / COPY_RATE
    return max(1, int(free / locked))
