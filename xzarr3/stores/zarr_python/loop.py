"""Runs coroutines of stores on one event loop, in a thread of its own, for callers that wait in their
threads.

Clients of asynchronous libraries belong to the loop in which they have connected. So a store runs on the loop
of zarr-python where that is loaded: a user may call the same store with zarr-python too. Otherwise this
module starts a loop. Any number of threads may wait for coroutines at the same time, which is how many
requests are in flight.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from xzarr3.errors import StoreError
from xzarr3.stores.locks import fork_safe

Result = TypeVar("Result")

_lock = fork_safe(threading.Lock())
_own: asyncio.AbstractEventLoop | None = None


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Wait for a coroutine that runs on the shared loop. An interrupted wait cancels the coroutine.

    Raises
    ------
    StoreError
        If this thread is the one that runs the loop: it would wait for itself.
    """
    loop = _shared()
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        coroutine.close()
        raise StoreError(
            "a store with an asynchronous interface was called from the event loop that serves it, which "
            "would wait for ever; call it in a thread, such as with asyncio.to_thread"
        )
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _shared() -> asyncio.AbstractEventLoop:
    of_zarr = getattr(sys.modules.get("zarr.core.sync"), "_get_loop", None)
    return _own_loop() if of_zarr is None else of_zarr()


def _own_loop() -> asyncio.AbstractEventLoop:
    global _own
    with _lock:
        if _own is None:
            _own = asyncio.new_event_loop()
            threading.Thread(target=_own.run_forever, name="xzarr3-loop", daemon=True).start()
        return _own


def _forget() -> None:
    """In a forked child, the thread of the loop does not exist."""
    global _own
    _own = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
