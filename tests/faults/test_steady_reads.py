"""Values that are read while somebody replaces them.

Where a store tells changes without a request: all old, all new, or an error. Elsewhere new values are not
decoded by old documents.
"""

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xarray as xr
from _fault_server import FaultServer
from _things import refused

import xzarr3
from xzarr3 import ChangedError, IncompleteWriteError, LocalStore, MemoryStore, from_zarr, to_zarr
from xzarr3.commit import directory
from xzarr3.nodes.seen import RECENT

CHUNKS = 4
State = Mapping[str, bytes]


def dataset(value: float) -> xr.Dataset:
    """Values that are stored, encoded, by equal documents."""
    values = np.repeat(np.arange(float(CHUNKS)) + value, 2)
    found = xr.Dataset({"a": ("x", values), "b": ("x", values)})
    for variable in found.variables.values():
        variable.encoding = {"chunks": (2,), "scale_factor": 0.5, "dtype": "int32", "_FillValue": -1}
    return found


class Recording(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.states: list[State] = []

    def _noted(self, change: Callable[..., Any], *given: Any) -> Any:
        done = change(*given)
        self.states.append(dict(self._values))
        return done

    def put(self, key: str, pieces: Any) -> None:
        self._noted(super().put, key, pieces)

    def erase(self, *keys: str) -> None:
        for key in keys:
            self._noted(super().erase, key)


class Stage:
    """Turns to what comes next once so many chunks were read."""

    def __init__(self) -> None:
        self.turn: Callable[[], object] = lambda: None
        self.left = -1
        self._guard = threading.Lock()

    def turns_after(self, chunks: int, turn: Callable[[], object]) -> None:
        self.left, self.turn = chunks, turn

    def told(self, get: Callable[..., Any]) -> Callable[..., Any]:
        """What reads, and tells which value it has read."""

        def read(key: str, *given: Any, **named: Any) -> Any:
            found = get(key, *given, **named)
            if key.rpartition("/")[2][:1].isdigit():
                with self._guard:
                    self.left -= 1
                    if self.left == 0:
                        self.turn()
            return found

        return read


class Staged(MemoryStore):
    def __init__(self, **traits: Any) -> None:
        super().__init__()
        self.stage, self.traits = Stage(), msgspec.structs.replace(self.traits, **traits)

    def get(self, key: str, byte_range: Any = None) -> Any:
        return self.stage.told(super().get)(key, byte_range)

    def open(self, key: str, first: Any = None, version: object | None = None) -> Any:
        return self.stage.told(super().open)(key, first, version)

    def versions(self, keys: Sequence[str]) -> Sequence[object | None]:
        return [self._values.get(key) if self.traits.tells_changes else None for key in keys]

    def show(self, state: State) -> None:
        self._values = dict(state)


def staged(kind: str, server: FaultServer) -> Any:
    """A store of a kind that holds what its method ``show`` is told."""
    if kind != "s3":
        # Some cannot tell at once whether a value has changed.
        traits = {"tells_changes": kind == "tells", "concurrency": 3 if kind == "far" else 1}
        return Staged(**traits)
    place = f"bucket/{uuid.uuid4().hex}"
    store: Any = xzarr3.open_store(f"s3://{place}", server.storage_options)

    def show(state: State) -> None:
        there = {key.removeprefix(f"/{place}/") for key in server.keys(f"/{place}/")}
        for key in there - state.keys():
            server.delete(f"/{place}/{key}")
        server.put_all({f"/{place}/{key}": value for key, value in state.items()})

    store.show = show
    return store


READS: dict[str, Callable[[Any], Any]] = {
    "array": lambda store: xzarr3.open_array(store, "a"),
    "dask": lambda store: from_zarr(store, "a", chunks=-1),
    "xarray": lambda store: xr.open_dataset(store, engine="xzarr3"),
    "xarray, not consolidated": lambda store: xr.open_dataset(store, engine="xzarr3", consolidated=False),
    "xarray with dask": lambda store: xr.open_dataset(store, engine="xzarr3", chunks={"x": -1}),
}


def values(found: Any) -> list[list[float]]:
    if isinstance(found, xr.Dataset):
        return [np.asarray(found[name].values).tolist() for name in ("a", "b")]
    with np.errstate(all="ignore"):
        return [np.asarray(found).tolist()]


def kinds_of(found: list[list[float]], wholes: Mapping[str, list[float]]) -> list[str]:
    return [
        next((name for name, whole in wholes.items() if whole == each), f"mixed: {each}") for each in found
    ]


def _told(state: State) -> Any:
    """What a state says, but for the time and the counter of a lease."""
    held = state.get(".xzarr3-lease", b"")
    states = [word for word in (b'"swapping"', b'"closing"', b'"erasing"', b'"in place"') if word in held]
    return {key: value for key, value in state.items() if key != ".xzarr3-lease"}, states


def states_of_a_swap(zarr_format: Any) -> list[State]:
    """What there is before, and after each step of a swap."""
    store = Recording()
    to_zarr(dataset(10), store, zarr_format=zarr_format)
    del store.states[:-1]
    to_zarr(dataset(20), store, zarr_format=zarr_format, mode="w")
    # Of what is put aside no reader knows, and neither does it see how a lease is renewed.
    seen = [{key: each for key, each in state.items() if "-staged-" not in key} for state in store.states]
    return [state for at, state in enumerate(seen) if at == 0 or _told(state) != _told(seen[at - 1])]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_what_is_read_during_a_swap(zarr_format: Any, read: str) -> None:
    states = states_of_a_swap(zarr_format)
    old, new = (values(READS[read](MemoryStore(dict(state))))[0] for state in (states[0], states[-1]))
    assert old != new
    seen = set()
    for first in (0, len(states) // 2):
        for last, after in itertools.product(range(first, len(states)), (1, CHUNKS + 1)):
            store = Staged()
            store.show(states[0])
            handle = READS[read](store)
            store.show(states[first])
            store.stage.turns_after(after, lambda last=last: store.show(states[last]))  # noqa: B023
            try:
                found = kinds_of(values(handle), {"old": old, "new": new})
            except (ChangedError, IncompleteWriteError):
                found = ["error"]
            seen.update(found)
            assert not any("mixed" in each for each in found), (first, last, after, found)
    assert {"old", "error"} <= seen


@pytest.mark.parametrize("read", [name for name in READS if "xarray" in name])
@pytest.mark.parametrize("kind", ["tells", "does not tell", "far", "s3"])
@pytest.mark.parametrize("changed", ["scale_factor", "_FillValue", "dtype"])
def test_new_values_are_not_decoded_by_old_documents(
    changed: str, kind: str, read: str, fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"scale_factor": 0.25, "_FillValue": -2, "dtype": "int16"}
    replacing = dataset(20)
    for variable in replacing.variables.values():
        variable.encoding[changed] = other[changed]
    old, new = dict[str, bytes](), dict[str, bytes]()
    to_zarr(dataset(10), old)
    to_zarr(replacing, new)
    store = staged(kind, fault_server)
    store.show(old)
    handle = READS[read](store)
    store.show(new)
    late = time.monotonic() + 1.1 * RECENT
    monkeypatch.setattr(time, "monotonic", lambda: late)
    for _ in range(2):
        refused(ChangedError, "open it again", lambda: values(handle))


@pytest.mark.usefixtures("python_executor")  # Its reads can be stopped in between.
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("zarr_format", [3, 2])
def test_what_is_read_in_a_directory_between_two_renames(
    zarr_format: Any, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody replaces it, and is stopped after each step."""
    seen: set[str] = set()
    steps, goes_on = 0, True
    while goes_on:
        steps += 1
        place = tmp_path / f"{steps}.zarr"
        to_zarr(dataset(10), place, zarr_format=zarr_format)
        old = values(READS[read](place))[0]
        with monkeypatch.context() as patch:
            found, goes_on = between_renames(place, READS[read], zarr_format, steps, patch)
        wholes = {"old": old, "new": values(READS[read](place))[0]}
        assert wholes["old"] != wholes["new"]
        kinds = kinds_of(found, wholes) or ["error"]
        assert not any("mixed" in each for each in kinds), (steps, kinds)
        seen.update(kinds)
    assert "error" in seen


def between_renames(
    place: Path, read: Callable[[Any], Any], zarr_format: Any, steps: int, patch: pytest.MonkeyPatch
) -> tuple[list[list[float]], bool]:
    """What is read, of which the first chunk is there before so many renames; and whether more follow."""
    rename, make = directory._rename, {name: getattr(LocalStore, name) for name in ("get", "open")}
    go_on, stopped, left = threading.Event(), threading.Event(), [steps]
    stage = Stage()

    def stepped(*given: Any) -> None:
        rename(*given)
        left[0] -= 1
        if left[0] == 0:
            stopped.set()
            assert go_on.wait(120)

    def replaced() -> None:
        try:
            to_zarr(dataset(20), place, mode="w", zarr_format=zarr_format)
        finally:
            stopped.set()

    writer = threading.Thread(target=replaced, daemon=True)

    def turn() -> None:
        writer.start()
        assert stopped.wait(120)

    patch.setattr(directory, "_rename", stepped)
    handle = read(place)
    stage.turns_after(1, turn)
    for name, method in make.items():
        told = lambda self, *a, method=method, **b: stage.told(partial(method, self))(*a, **b)  # noqa: E731
        patch.setattr(LocalStore, name, told)
    try:
        found = values(handle)
    except (ChangedError, IncompleteWriteError):
        found = []
    go_on.set()
    writer.join(120)
    assert not writer.is_alive()
    return found, left[0] < 0
