"""How many threads a read or a write takes.

A further thread pays if there are :data:`_SMALL` bytes to decode for it, and if reading and decoding a chunk
takes longer than what holds Python's lock for it. Over a store with latency, threads wait for answers, and as
many take part as the store and the memory permit.
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
_LOCKED = 12.5  # Microseconds that each chunk holds Python's lock.


def to_read(engine: Engine, plan: ReadPlan, threads: int | None) -> int:
    """Number of threads for a read; ``threads`` is the most that the user permits, None for all cores."""
    if engine.waiting:
        each = plan.work() // max(plan.number, 1)
        return min(threads or in_flight.at_once(engine.waiting, each), plan.number)
    return _useful(engine, plan, threads, in_parts=True)


def to_write(engine: Engine, plan: ReadPlan, threads: int | None) -> int:
    """Number of threads for a write."""
    if engine.waiting:
        each = 2 * engine.meta.chain.spec.nbytes
        return min(threads or in_flight.at_once(engine.waiting, each), plan.number)
    return _useful(engine, plan, threads, in_parts=False)


def _useful(engine: Engine, plan: ReadPlan, threads: int | None, *, in_parts: bool) -> int:
    most = min(threads or available_threads(), plan.number)
    if most > 1:
        free = engine.meta.chain.decode_time + engine.store.traits.request_bytes / COPY_RATE
        most = min(most, int(free / _LOCKED), plan.work(in_parts=in_parts) // _SMALL)
    return max(most, 1)
