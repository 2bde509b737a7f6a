"""Copies that are killed and resumed: equal to one that was not, and nothing is copied twice."""

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _conformance import contents, without_marks
from _killed import MortalStore, forget_process, holding, killed_everywhere, left
from _processes import killed_at_call
from _slow import slow
from _things import refused

import xzarr3
from xzarr3 import LocalStore, MemoryStore, NodeExistsError, StoreCapabilityError
from xzarr3.copying.values import ArrayCopy, Tiling

RECHUNKED: dict[str, Any] = {"encoding": {"maps": {"chunks": (5, 2)}}, "threads": 1}


def source(store: Any) -> Any:
    """Maps, of which some chunks are absent and some hold only the fill value; a coordinate; a group."""
    root = xzarr3.create_group(store, attributes={"title": "all"})
    maps = root.create_array("maps", shape=(10, 4), chunks=(1, 4), dtype="f4", dimension_names=["time", "x"])
    maps[:4] = np.arange(16).reshape(4, 4) + 1
    maps.write_empty_chunks = True
    maps[5:7, :2] = 0
    root.create_array("time", data=np.arange(10), chunks=2, dimension_names=["time"])
    root.create_group("deep", attributes={"a": 1})
    return store


def units(store: Any) -> dict[str, bytes]:
    """What is stored besides documents, leases and notes."""
    found = contents(store).items()
    return {k: v for k, v in found if not k.endswith("zarr.json") and not k.startswith(".xzarr3")}


def resumed(before: Any, **options: Any) -> Callable[[Any], Any]:
    """What copies a source into a store, going on where it can."""
    return lambda store: xzarr3.copy(before, store, resume=True, **options)


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The keys of the units of each tile that is copied."""
    found: list[Any] = []
    for name, copies in (("_move", ArrayCopy._move), ("_recode", ArrayCopy._recode)):

        def noting(self: Any, coords: Any, how: Any, means: Any, call: Any = copies) -> int:
            size: int = call(self, coords, how, means)
            units = how.tiles.units(coords) if isinstance(how, Tiling) else [coords]
            if self.target.has_document:
                found.append(frozenset(map(self.target.engine.key, units)))
            return size

        monkeypatch.setattr(ArrayCopy, name, noting)
    return found


@pytest.mark.parametrize(
    ("options", "memory"),
    [
        slow({"threads": 1}, None),
        (RECHUNKED, None),
        slow({"encoding": {"maps": {"chunks": (10, 1)}}, "threads": 1}, 64),  # By way of a temporary array.
        slow({"shards": {"time": 4}, "threads": 1}, None),
    ],
)
def test_killed_at_every_change(options: Any, memory: Any, worked: list[Any], monkeypatch: Any) -> None:
    monkeypatch.setitem(xzarr3.options._values, "memory_limit", memory)
    before = source(MemoryStore())
    whole = MemoryStore()
    xzarr3.copy(before, whole, **options)
    copy = resumed(before, **options)
    for store, killed in killed_everywhere(MortalStore(), copy):
        if not killed:
            break
        forget_process()
        there, number = units(store), len(worked)
        assert copy(store).attrs == {"title": "all"}
        assert not [tile for tile in worked[number:] if tile <= there.keys()], "stored, and copied again"
        number = len(worked)
        assert (without_marks(contents(store)), left(store)) == (without_marks(contents(whole)), [])
        copy(store)
        assert len(worked) == number, "a finished copy was copied"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(("chunks", "memory"), [((5, 2), None), ((10, 1), 64)], ids=["direct", "between"])
def test_killed_at_random_points_in_a_directory(
    chunks: tuple[int, ...], memory: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(xzarr3.options._values, "memory_limit", memory)
    before = source(LocalStore(tmp_path / "source"))
    copy = resumed(before, encoding={"maps": {"chunks": chunks}}, threads=1)
    copy(tmp_path / "whole")
    whole = without_marks(contents(LocalStore(tmp_path / "whole")))
    calls = killed_at_call(-1, partial(copy, tmp_path / "counted"))
    chosen = random.Random(3)
    for number in range(5):
        target = tmp_path / str(number)
        for _ in range(chosen.randint(1, 3)):
            killed_at_call(chosen.randrange(calls), partial(copy, target))
            document = target / "zarr.json"
            if document.exists():  # Whoever finds it finds all.
                assert without_marks(contents(LocalStore(target))).items() >= whole.items()
        found = target.glob(".xzarr3-*/new/time/c/[0-9]*")
        staged = {path.name: path.stat().st_ino for path in found if path.name.isdecimal()}
        if [*target.glob(".xzarr3-*/swap")]:  # Past the point where it is resumed.
            staged = {}
        copy(target)
        assert without_marks(contents(LocalStore(target))) == whole
        placed = {path.name: path.stat().st_ino for path in target.glob("time/c/*")}
        assert staged.items() <= placed.items(), "stored, and copied again"


def _cut_off(target: Any, before: Any, **options: Any) -> None:
    """A copy whose process ends when some of it is stored."""
    assert target.killed_at(6, lambda: xzarr3.copy(before, target, resume=True, **options), gone=True)
    assert units(target)


@pytest.mark.parametrize(
    ("is_other", "change"),
    [
        (False, lambda store: xzarr3.open_array(store, "maps", mode="r+").attrs.update(units="K")),
        (False, lambda store: xzarr3.open_array(store, "time", mode="r+").resize(12)),
        (False, lambda store: xzarr3.create_group(store, "new")),
        # Arrays of one kind, such as one for each day, often differ in their values only.
        (True, lambda store: xzarr3.open_array(store, "time", mode="r+").set(..., -1)),
    ],
    ids=["attributes", "shape", "new node", "other values"],
)
def test_another_source_or_a_changed_one_is_refused(is_other: bool, change: Callable[[Any], Any]) -> None:
    before, target = source(MemoryStore()), MortalStore()
    _cut_off(target, before)
    changed = source(MemoryStore()) if is_other else before
    change(changed)
    there = contents(target)
    refused(NodeExistsError, "the source is another one or has changed", partial(resumed(changed), target))
    assert contents(target) == there
    if is_other:
        assert xzarr3.copy(before, target, resume=True)["time"][...].tolist() == list(range(10))


def test_other_settings_are_refused_and_a_new_copy_is_not() -> None:
    before, target = source(MemoryStore()), MortalStore()
    _cut_off(target, before)
    there = contents(target)
    refused(NodeExistsError, "unfinished write", lambda: xzarr3.copy(before, target, resume=True, chunks=2))
    assert contents(target) == there
    xzarr3.copy(before, target, chunks=2, overwrite=True)
    whole = MemoryStore()
    xzarr3.copy(before, whole, chunks=2)
    assert (units(target), left(target)) == (units(whole), [])


def test_a_foreign_node_is_refused(store: xzarr3.Store) -> None:
    xzarr3.create_array(store, "other", data=np.arange(3))
    there = contents(store)
    refused(NodeExistsError, "not empty", lambda: xzarr3.copy(source(MemoryStore()), store, resume=True))
    assert contents(store) == there


def test_a_finished_copy_stays(store: xzarr3.Store, worked: list[Any]) -> None:
    before = source(MemoryStore())
    xzarr3.open_group(before, mode="r+").consolidate()
    xzarr3.copy(before, store, resume=True)
    there, number = contents(store), len(worked)
    copied = xzarr3.copy(before, store, resume=True)
    assert copied.consolidated
    assert (contents(store), len(worked)) == (there, number)


@pytest.mark.parametrize("path", ["maps", "time"])
def test_a_node_that_looks_like_the_finished_copy_is_none(path: str, worked: list[Any]) -> None:
    before, target = source(MemoryStore()), MemoryStore()
    xzarr3.copy(before, target, resume=True)
    array = xzarr3.open_array(target, path, mode="r+")
    array[-1] = 77
    there, number = contents(target), len(worked)
    refused(NodeExistsError, f"'/{path}' .* other values than", partial(resumed(before), target))
    assert (contents(target), len(worked)) == (there, number)
    xzarr3.copy(before, target, resume=True, overwrite=True)
    assert xzarr3.diff(before, target).ok


def test_a_node_is_replaced_by_a_resumed_copy() -> None:
    before, target = source(MemoryStore()), MortalStore()
    xzarr3.create_group(target, attributes={"old": 1}).create_array("old", data=np.arange(3), chunks=1)
    copy, replaced = resumed(before, overwrite=True, **RECHUNKED), 0
    for store, killed in killed_everywhere(target, copy):
        forget_process()
        if killed:
            replaced += 1
            copy(store)
        assert (sorted(xzarr3.open_group(store).array_keys()), left(store)) == (["maps", "time"], [])
    assert replaced > 10


def test_stores_that_keep_nothing(tmp_path: Path) -> None:
    with xzarr3.ZipStore(tmp_path / "a.zip", mode="w") as target:
        refused(StoreCapabilityError, "resume=True", partial(resumed(source(MemoryStore())), target))


def test_a_copy_that_is_killed_twice_at_its_end_leaves_nothing() -> None:
    copy = resumed(source(MemoryStore()), **RECHUNKED)
    found = [contents(store) for store, _ in killed_everywhere(MortalStore(), copy)]
    ended = [there for there in found if "zarr.json" in there]
    assert len(ended) >= 3
    for there in ended[:-1]:
        forget_process()
        for store, killed in killed_everywhere(holding(MortalStore, there), copy):
            if killed:
                forget_process()
                copy(store)
            assert left(store) == []
