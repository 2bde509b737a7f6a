"""Replacing without xarray: after a failure the old node is there, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _conformance import contents
from _killed import forget_process, killed_everywhere, left

import xzarr3
from xzarr3 import Array, LocalStore, MemoryStore, NodeNotFoundError, Store


class BrokenError(Exception):
    pass


WAYS: dict[str, Callable[[Any], object]] = {
    "array": lambda store: xzarr3.create_array(store, "g/a", data=np.ones(6), chunks=2, overwrite=True),
    "array without data": lambda store: xzarr3.create_array(
        store, "g/a", shape=6, chunks=2, dtype="f8", overwrite=True
    ),
    "group": lambda store: xzarr3.create_group(store, "g", overwrite=True),
    "open": lambda store: xzarr3.open_group(store, "g", mode="w"),
    "saved": lambda store: xzarr3.save_group(store, path="g", a=np.ones(3), overwrite=True),
    "set": lambda store: xzarr3.open_group(store, "g", mode="r+").__setitem__("a", np.ones(5)),
}


def filled(store: Any) -> Any:
    group = xzarr3.create_group(store, "g", attributes={"old": True})
    group.create_array("a", data=np.arange(1.0, 5), chunks=2)
    group.create_array("b", data=np.arange(1.0, 5), chunks=2)
    return store


@pytest.mark.parametrize("kind", [LocalStore, MemoryStore])
@pytest.mark.parametrize("how", WAYS)
def test_failures_leave_the_old(how: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Store = filled(LocalStore(tmp_path) if kind is LocalStore else MemoryStore())
    before = contents(store)

    def broken(*args: Any, **options: Any) -> None:
        raise BrokenError

    with monkeypatch.context() as patch:
        patch.setattr(Array, "__setitem__", broken)
        patch.setattr("xzarr3.commit.directory.store_documents", broken)
        patch.setattr("xzarr3.commit.keys.StagedKeys.written", broken)  # before anything has left
        with pytest.raises(BrokenError):
            WAYS[how](store)
    assert contents(store) == before
    assert not left(store)
    WAYS[how](store)
    assert contents(store) != before
    assert not left(store)


@pytest.mark.parametrize("how", WAYS)
def test_a_kill_anywhere_leaves_the_old_node_the_new_one_or_none(how: str) -> None:
    first = filled(MemoryStore())
    old, whole = contents(first), filled(MemoryStore())
    WAYS[how](whole)
    seen = []
    for store, killed in killed_everywhere(first, WAYS[how]):
        forget_process()
        try:
            node = xzarr3.open(store, "g/a" if how.startswith("array") else "g")
            seen.append("there" if isinstance(node, Array) and node.size else "group")
        except xzarr3.IncompleteWriteError:
            seen.append("incomplete")
        except NodeNotFoundError:
            seen.append("nothing")
        xzarr3.recover(store)
        found = contents(store)
        assert _plain(found) in (_plain(old), _plain(contents(whole)))
        if not killed:
            assert _plain(found) == _plain(contents(whole))
    assert "nothing" not in seen


def _plain(found: dict[str, bytes]) -> dict[str, bytes]:
    """Contents without leases, and without the spaces that tell new documents from equal old ones."""
    return {key: value.rstrip(b" \t") for key, value in found.items() if ".xzarr3" not in key}
