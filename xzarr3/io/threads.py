"""How many threads a read or a write takes.

A further thread pays if there are :data:`_SMALL` bytes to decode for it, and if reading and decoding a chunk
takes longer than what holds Python's lock for it. Over a store with latency, threads wait for answers, and as
many take part as the store and the memory permit.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from xzarr3.codecs.pipeline import COPY_RATE
from xzarr3.io.plan import ReadPlan
from xzarr3.parallel import available_threads
from xzarr3.stores import in_flight

if TYPE_CHECKING:
    from xzarr3.io.executor import Engine

_SMALL = 2**18  # Bytes; for less work, starting another thread costs more than it saves.
_LOCKED = 12.5  # Microseconds that each chunk holds Python's lock.


def _number(engine: Engine, plan: ReadPlan, threads: int | None, *, writes: bool) -> int:
    """Number of threads; ``threads`` is the most that the user permits, None for all cores."""
    chain, number = engine.meta.chain, plan.number
    if number <= 1:
        return number
    if engine.waiting:
        each = 2 * chain.spec.nbytes if writes else plan.work() // number
        return min(threads or in_flight.at_once(engine.waiting, each), number)
    free = chain.decode_time + engine.store.traits.request_bytes / COPY_RATE
    pays = min(int(free / _LOCKED), plan.work(in_parts=not writes) // _SMALL)
    return max(1, min(threads or available_threads(), number, pays))


to_read = partial(_number, writes=False)
to_write = partial(_number, writes=True)
