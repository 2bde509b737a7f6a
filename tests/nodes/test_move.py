"""Moving nodes: everything is at the new path, nothing at the old one, and a failure loses nothing."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _conformance import contents, refused

import xzarr3
from xzarr3 import InvalidKeyError, LocalStore, MemoryStore, NodeExistsError, NodeNotFoundError, StoreError


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["directory", "synced"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> xzarr3.Store:
    return LocalStore(tmp_path / "s.zarr", fsync=request.param)


def sample(store: xzarr3.Store, zarr_format: Any = 3) -> xzarr3.Group:
    root = xzarr3.create_group(store, zarr_format=zarr_format)
    options = {} if zarr_format != 3 else {"shards": (4, 4)}
    made = root.create_array("a/b/x", data=np.arange(64).reshape(8, 8), chunks=(2, 4), **options)
    made.attrs["units"] = "K"
    root.create_array("a/y", shape=3, dtype="int8")
    root["a"].attrs["title"] = "t"
    root.create_array("z", data=np.arange(3))
    return root


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_group_moves_with_all_that_is_below(place: xzarr3.Store, zarr_format: Any) -> None:
    root = sample(place, zarr_format)
    number = len(contents(place))
    root.move("a", "new/where")
    again = xzarr3.open_group(place)
    below = ["new", "new/where", "new/where/b", "new/where/b/x", "new/where/y", "z"]
    assert sorted(path for path, _ in again.members(None)) == below
    np.testing.assert_array_equal(again["new/where/b/x"][...], np.arange(64).reshape(8, 8))
    assert dict(again["new/where/b/x"].attrs) == {"units": "K"}
    assert dict(again["new/where"].attrs) == {"title": "t"}
    assert len(contents(place)) == number + {3: 1, 2: 2}[zarr_format]  # Those of `new`.
    assert not [key for key in contents(place) if re.match("a[/.]", key)]
    root.move("new/where/b/x", "x")
    np.testing.assert_array_equal(xzarr3.open_array(place, "x")[3], np.arange(24, 32))
    root.consolidate()
    root.move("new", "c/a")
    held, plain = (
        dict(xzarr3.open_group(place, use_consolidated=use).members(None)) for use in (True, False)
    )
    assert held.keys() == plain.keys() == {"c", "c/a", "c/a/where", "c/a/where/b", "c/a/where/y", "x", "z"}
    assert held["c/a/where/y"].shape == (3,)


WRONG: dict[str, tuple[str, str, type[Exception]]] = {
    "into itself": ("a", "a/c", NodeExistsError), "to itself": ("a", "a", NodeExistsError),
    "to a group above": ("a/b", "a", NodeExistsError), "onto another": ("a", "z", NodeExistsError),
    "onto keys of others": ("a", "q", NodeExistsError), "below an array": ("a", "z/a", xzarr3.NodeTypeError),
    "what is not there": ("q", "r", NodeNotFoundError), "to a reserved name": ("a", "__r", InvalidKeyError),
    "to a name of ours": ("a", "g/.xzarr3-staged-r", InvalidKeyError),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_move_stays(what: str, place: xzarr3.Store) -> None:
    source, dest, error = WRONG[what]
    root = sample(place)
    place.set("q/notes.txt", b"mine")
    before = contents(place)
    refused(error, lambda: root.move(source, dest), match=r"q/notes\.txt" if dest == "q" else None)
    refused(xzarr3.ReadOnlyError, lambda: xzarr3.open_group(place).move("a", "b"))
    assert contents(place) == before


KEYS: dict[str, Callable[[Path], xzarr3.Store]] = {
    "memory": lambda base: MemoryStore(),
    "wrapped directory": lambda base: xzarr3.WrapperStore(LocalStore(base / "s.zarr")),
    "fsspec": lambda base: xzarr3.open_store(f"memory://{base}"),
}


@pytest.mark.parametrize("kind", [*KEYS, "draft"])
def test_what_is_no_directory_is_to_be_copied(kind: str, tmp_path: Path) -> None:
    """Nodes of the draft have two."""
    store = LocalStore(tmp_path / "s.zarr") if kind == "draft" else KEYS[kind](tmp_path)
    root = sample(store, "3-draft" if kind == "draft" else 3)
    before = contents(store)
    with pytest.raises(xzarr3.StoreCapabilityError, match=r"copy it with xzarr3\.copy\(\), then delete it"):
        root.move("a", "n")
    assert contents(store) == before


def test_a_failure_leaves_the_node_at_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = sample(LocalStore(tmp_path))

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(StoreError, match=r"cannot rename 'a' .* to 'n': the disk is gone"):
            root.move("a", "n")
    np.testing.assert_array_equal(root["a/b/x"][...], np.arange(64).reshape(8, 8))
