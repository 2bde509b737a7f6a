"""Over latency, who writes values and who replaces a node wait for each other, or one of the two raises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import xarray as xr
from _archives import archive, disturb, months, read, roll
from _waiting import WaitingStore

import xzarr3
from xzarr3 import ConflictError, IncompleteWriteError, to_zarr
from xzarr3.commit import keys
from xzarr3.commit.lease import Holder

NEW = xr.Dataset({"t2m": (("time", "x"), months().t2m.values * 0 - 5)}, {"time": months().time})
PART = months().isel(time=slice(30, 40))[["t2m"]].drop_vars("lat") * 2

SWAPS: dict[str, Callable[[WaitingStore], object]] = {
    "drop": lambda store: roll("drop", store, 12),
    "prepend": lambda store: roll("prepend", store, 12),
    "w": lambda store: to_zarr(NEW, store, mode="w"),
}


def leases(store: WaitingStore) -> list[str]:
    return [key for key in store.list() if ".xzarr3" in key]


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("swap", SWAPS)
def test_who_replaces_a_node_waits_for_who_writes_in_it(
    swap: str, lazily: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WaitingStore()
    archive("prepend" if swap == "prepend" else "drop", store, 12)
    part = PART * 3 if swap == "prepend" else PART
    begun, waits, wait = threading.Lock(), threading.Event(), keys.wait_for_writers
    swapping = threading.Thread(target=SWAPS[swap], args=(store,))

    def waited(*given: Any) -> None:
        waits.set()
        wait(*given)

    def late(operation: str, key: str) -> None:
        if operation == "set" and key.startswith("t2m/c") and begun.acquire(blocking=False):
            swapping.start()
            assert waits.wait(60)
            swapping.join(0.5)  # It would end, if it did not wait.
            assert swapping.is_alive()

    monkeypatch.setattr(keys, "wait_for_writers", waited)
    expected = read(store)
    store.before = late
    to_zarr(part.chunk(time=5) if lazily else part, store, region={"time": "auto"})
    store.before = None
    swapping.join(60)
    assert not swapping.is_alive()
    expected.t2m.loc[{"time": part.time}] = part.t2m
    if swap == "drop":
        expected = expected.isel(time=slice(12, None))
    elif swap == "prepend":
        expected = xr.concat([months().isel(time=slice(12)), expected], "time", data_vars="minimal")
    xr.testing.assert_equal(read(store), NEW if swap == "w" else expected)
    assert leases(store) == []


@pytest.mark.parametrize(
    ("swap", "is_swapping"),
    [("drop", False), ("prepend", False), ("drop", True), ("prepend", True), ("w", True)],
)
def test_nobody_begins_to_write_in_a_node_that_is_being_replaced(
    swap: str, is_swapping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, raised, put_in_place = WaitingStore().with_traits(conflict_deadline=0.2), [], keys.put_in_place
    archive("prepend" if swap == "prepend" else "drop", store, 12)

    def write() -> None:
        try:
            to_zarr(PART, store, region={"time": "auto"})
        except IncompleteWriteError as error:
            raised.append(error)

    def put(*given: Any, **more: Any) -> Any:
        write()
        return put_in_place(*given, **more)

    if is_swapping:
        monkeypatch.setattr(keys, "put_in_place", put)
    else:
        disturb(monkeypatch, write)
    SWAPS[swap](store)
    assert len(raised) == 1
    expected = months().isel(time=slice(12, None)) if swap == "drop" else months()
    xr.testing.assert_equal(read(store), NEW if swap == "w" else expected)
    assert leases(store) == []


def test_a_writer_that_does_not_end_is_not_waited_for_for_ever() -> None:
    store, begun = WaitingStore().with_traits(conflict_deadline=0.1), threading.Lock()
    archive("drop", store, 12)

    def replace(operation: str, key: str) -> None:
        if operation == "set" and key.startswith("t2m/c") and begun.acquire(blocking=False):
            with pytest.raises(ConflictError, match="another writer kept writing values in '/'"):
                to_zarr(NEW, store, mode="w")

    expected = read(store)
    store.before = replace
    to_zarr(PART, store, region={"time": "auto"})
    store.before = None
    expected.t2m.loc[{"time": PART.time}] = PART.t2m
    xr.testing.assert_equal(read(store), expected)
    assert leases(store) == []


@pytest.mark.parametrize("text", [Holder("x", left=True, top='["t2m"]').text(), b"no lease"])
def test_what_a_killed_writer_left_is_no_obstacle(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xzarr3.commit.lease, "PATIENCE", 0.0)
    store = WaitingStore()
    archive("drop", store, 12)
    store.set(".xzarr3-lease-x", text)
    roll("drop", store, 12)
    xr.testing.assert_equal(read(store), months().isel(time=slice(12, None)))
    assert xzarr3.check(store).ok
