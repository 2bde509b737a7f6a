"""How many requests a user pays for in an object store, and what a killed writer leaves there."""

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from _conformance import refused
from _fault_server import FaultServer
from _killed import KilledError, opened

import xzarr3
from xzarr3 import cli, to_zarr
from xzarr3.commit import lease
from xzarr3.nodes import seen
from xzarr3.stores import update
from xzarr3.stores.object import client

pytest.importorskip("obstore")


class Counted:
    """A place in a bucket, and the requests that were made since it was looked at last."""

    def __init__(self, server: FaultServer) -> None:
        self._server = server
        self.options = server.storage_options
        self.url = f"s3://bucket/{uuid.uuid4().hex}.zarr"
        # That a service keeps to conditions is asked once for each connection.
        store = xzarr3.open_store(f"s3://bucket/{uuid.uuid4().hex}", self.options, mode="a")
        xzarr3.create_array(store, shape=1, dtype="f8")
        update(store, "zarr.json", lambda stored: [bytes(stored or b""), b"\n"])
        self.taken()

    def taken(self) -> int:
        """The number of requests since the last time, after which nothing is left over."""
        number = len(self._server.log())
        self._server.clear_log()
        assert not [key for key in self.stored() if ".xzarr3" in key]
        return number

    def remove(self, name: str) -> None:
        del xzarr3.open_group(self.url, mode="r+", storage_options=self.options)[name]

    def stored(self) -> dict[str, bytes]:
        found = self._server.keys(f"/{self.url.removeprefix('s3://')}/")
        return {key: self._server.get(key) or b"" for key in found}

    def found(self, **options: Any) -> xr.Dataset:
        return opened(self.url, storage_options=self.options, **options).load()


@pytest.fixture
def place(fault_server: FaultServer) -> Iterator[Counted]:
    with dask.config.set(scheduler="threads"):
        yield Counted(fault_server)


def variables(value: float, lazily: bool, *names: str) -> xr.Dataset:
    found = xr.Dataset({f"v{n}": ("x", np.arange(4.0) + value + n) for n in range(10)})
    for name in names:
        found[name] = (name, np.arange(4.0) + value)
    return found.chunk(x=2) if lazily else found


def chunked(data: xr.Dataset) -> dict[Any, Any]:
    return {name: {"chunks": (2,)} for name in data.variables}


def never_too_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, what was seen is not asked for again, and no lease is renewed."""
    monkeypatch.setattr(lease, "_clock", lambda: 0.0)
    monkeypatch.setattr(seen, "RECENT", 1e9)


def test_requests_for_an_array(place: Counted) -> None:
    array = xzarr3.create_array(place.url, shape=20, chunks=1, dtype="f8", storage_options=place.options)
    assert place.taken() <= 4
    array[0:1] = 7.0
    assert place.taken() == 2
    array[:] = np.arange(1.0, 21.0)
    assert place.taken() <= 22
    array = xzarr3.open_array(place.url, storage_options=place.options)
    assert place.taken() == 1
    assert array[:].tolist() == np.arange(1.0, 21.0).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("lazily", [False, True])
def test_requests_for_ten_variables(place: Counted, monkeypatch: pytest.MonkeyPatch, lazily: bool) -> None:
    never_too_long_ago(monkeypatch)
    for value, most, mode in ((1.0, 48, "w-"), (2.0, 95, "w")):
        write(place, variables(value, lazily), encoding=chunked(variables(0, lazily)), mode=mode)
        assert place.taken() <= most, mode
        xr.testing.assert_equal(place.found(), variables(value, False))
        place.taken()


@pytest.mark.parametrize("lazily", [False, True])
def test_requests_for_an_append(place: Counted, monkeypatch: pytest.MonkeyPatch, lazily: bool) -> None:
    first, then = variables(1, lazily, "x"), variables(5, lazily, "x")
    write(place, first, encoding=chunked(first))
    place.taken()
    never_too_long_ago(monkeypatch)
    write(place, then, append_dim="x")
    # Planned: the root, a list, 11 documents. Then 11 leases, 11 documents under them, 22 chunks, the root as
    # it is before, 11 documents, one request that erases the leases, and the copies in the root. Besides, the
    # labels that are there: 2 chunks, a document.
    assert place.taken() <= 2 + 11 + 11 + 11 + 22 + 1 + 11 + 1 + 1 + 3
    xr.testing.assert_equal(place.found(), xr.concat([first, then], "x").load())


def write(place: Counted, data: xr.Dataset, **options: Any) -> None:
    to_zarr(data, place.url, storage_options=place.options, **options)


def fewer_rows(place: Counted) -> None:
    for name in variables(1, False, "x").variables:
        xzarr3.open_array(place.url, str(name), mode="r+", storage_options=place.options).resize(3)


def other_type(place: Counted) -> None:
    place.remove("v3")
    write(place, xr.Dataset({"v3": ("x", np.arange(4, dtype="float32"))}), mode="a")


CHANGES: dict[str, Callable[[Counted], None]] = {
    "more": lambda place: write(place, variables(9, False, "x"), append_dim="x"),
    "less": fewer_rows,
    "other units": lambda place: xzarr3.open_array(
        place.url, "v3", mode="r+", storage_options=place.options
    ).attrs.update(scale_factor=2.0),
    "other type": other_type,
    "one less": lambda place: place.remove("v9"),
    "one more": lambda place: write(place, xr.Dataset({"v10": ("x", np.zeros(4))}), mode="a"),
}


@pytest.mark.parametrize(("lazily", "zarr_format"), [(False, 3), (True, 3), (False, 2)])
@pytest.mark.parametrize("change", CHANGES)
def test_an_append_beside_stale_copies(place: Counted, change: str, lazily: bool, zarr_format: Any) -> None:
    first = variables(1, False, "x")
    write(place, first, zarr_format=zarr_format, encoding=chunked(first))
    store = xzarr3.open_store(place.url, place.options, mode="a")
    key = ".zmetadata" if zarr_format == 2 else "zarr.json"
    copies = bytes(store.get(key) or b"")
    CHANGES[change](place)
    assert bytes(store.get(key) or b"") != copies
    store.set(key, copies)
    old, then = place.found(consolidated=False), variables(50, lazily, "x")
    if change == "one more":
        refused(ValueError, lambda: write(place, then, append_dim="x"), match=r"'v10'.*shorter than")
        xr.testing.assert_identical(place.found(consolidated=False), old)
    else:
        then = then.drop_vars([name for name in then.variables if name not in old.variables])
        write(place, then, append_dim="x")
        xr.testing.assert_equal(place.found(consolidated=False), xr.concat([old, then.load()], "x"))
    place.taken()


def killed_at(monkeypatch: pytest.MonkeyPatch, n: int, act: Callable[[], object]) -> bool:
    """Whether the n-th changing request was the first of those that were not made any more."""
    real, guard, count = client.Client.once, threading.Lock(), itertools.count()

    def once(self: Any, call: Any, operation: str, *more: Any, **options: Any) -> Any:
        with guard:
            if operation in ("put", "delete") and next(count) >= n:
                raise KilledError
        return real(self, call, operation, *more, **options)

    with monkeypatch.context() as patch, suppress(KilledError):
        patch.setattr(client.Client, "once", once)
        act()
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("group", [None, "g"])
def test_a_write_killed_at_any_request_leaves_the_old_the_new_or_a_swap_that_can_be_ended(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    old, new = (
        xr.Dataset({"t": ("x", np.full(4, value)), "u": ("y", np.full(2, value))}) for value in (1.0, 2.0)
    )
    options: Any = {"encoding": {"t": {"chunks": (2,)}}, "group": group}

    def found(place: Counted) -> str:
        try:
            there = place.found(group=group)
        except xzarr3.IncompleteWriteError:
            return "incomplete"
        return "old" if there.identical(old) else "new" if there.identical(new) else "mixed"

    seen = []
    for n in itertools.count():
        place = Counted(fault_server)
        write(place, old, **options)
        killed = killed_at(monkeypatch, n, partial(write, place, new, mode="w", **options))
        seen.append(found(place))
        xzarr3.recover(place.url, storage_options=place.options)
        assert not any("-staged-" in key for key in place.stored())
        assert found(place) == ("old" if seen[-1] == "old" else "new")
        write(place, old, mode="w", **options)
        assert found(place) == "old"
        place.taken()
        if not killed:
            break
    assert [name for name, _ in itertools.groupby(seen)] == ["old", "incomplete", "new"]


def test_the_command_recover_ends_a_swap(
    place: Counted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["recover", place.url, *(f"--option={name}={each}" for name, each in place.options.items())]
    new = variables(2, False)
    write(place, variables(1, False))
    # Lease, mark, chunks, list, lease, and some of what is erased and copied.
    copies = 1 + 1 + 10 + 1 + 1 + 3
    for said in ("nothing was left to finish\n", "put in its place: /\n"):
        if said.startswith("put"):
            assert killed_at(monkeypatch, copies, lambda: write(place, new, mode="w"))
            with pytest.raises(xzarr3.IncompleteWriteError):
                xzarr3.open_group(place.url, storage_options=place.options)
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out == said
    xr.testing.assert_equal(place.found(), new)
    place.taken()
