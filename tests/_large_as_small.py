"""Small arrays are read and written in the ways that are made for large ones, or by Python alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

import xzarr3
from xzarr3.codecs import BloscCodec, ZstdCodec
from xzarr3.io import executor as io_executor
from xzarr3.io import fetch, native
from xzarr3.model import metadata


@contextmanager
def large_as_small(*, windows: bool = True) -> Iterator[None]:
    """Threads, ranges, windows, and shards read in parts, for arrays that are too small to be worth it."""
    metadata._chain.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io_executor, "_SMALL", 1)
        patch.setattr(io_executor, "_LOCKED", 1e-9)
        if windows:
            patch.setattr(fetch, "WINDOW", 64)
            patch.setattr(fetch, "WHOLE_SHARD", 16)
        for store in (xzarr3.MemoryStore, xzarr3.LocalStore):
            patch.setattr(store, "traits", replace(store.traits, request_bytes=8))
        patch.setattr(ZstdCodec, "direct_from", 1)
        patch.setattr(BloscCodec, "direct_from", 1)
        yield
    metadata._chain.cache_clear()


@contextmanager
def python_executor() -> Iterator[None]:
    """The Python executor does all work."""
    before, native.switch.is_on = native.switch.is_on, False
    try:
        yield
    finally:
        native.switch.is_on = before
