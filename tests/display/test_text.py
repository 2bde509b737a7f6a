"""The texts by which arrays, groups and the rest show themselves, word by word."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from pictures import SST

import xzarr3
from xzarr3.display.shown import Description

INFO = """\
name        /surface/sst
format      3
shape       (300, 180, 360)
data type   float32
dimensions  ('time', 'lat', 'lon')
chunks      (10, 45, 90)
shards      (100, 90, 180)
fill value  nan
codecs      bytes(endian=little), zstd(level=0, checksum=False)
size        74.16 MiB in 12 shards of 6.18 MiB, chunks of 158.20 kiB
store       <MemoryStore, 3 keys>"""
TREE = """\
/
└── surface/
    └── sst (time: 300, lat: 180, lon: 360) float32"""
EXPLANATION = """\
read of shape (2, 3) from array '/surface/sst'
keys         1, of which 1 absent
chunks       0 decoded
requests     0
bytes moved  0 B
bytes used   24 B (0 moved for each)
  surface/sst/c/0/0/0: absent, the fill value"""


@pytest.fixture
def root() -> xzarr3.Group:
    root = xzarr3.create_group(xzarr3.MemoryStore(), attributes={"title": "Ocean"})
    root.create_array("surface/sst", **SST, attributes={"units": "degC"})
    return root


def test_array(root: xzarr3.Group) -> None:
    sst = root["surface/sst"]
    assert isinstance(sst, xzarr3.Array)
    assert repr(sst) == (
        "<xzarr3.Array /surface/sst shape=(300, 180, 360) dtype=float32 chunks=(10, 45, 90) "
        "shards=(100, 90, 180)>"
    )
    assert sst.info == INFO
    for name, meaning in (
        ("oindex", "each index selects along its own dimension"),
        ("vindex", "arrays select points together, or a mask does"),
        ("blocks", "selects chunks, or shards, by their coordinates"),
    ):
        assert repr(getattr(sst, name)) == f"<{name} of xzarr3.Array /surface/sst: {meaning}>"
    assert repr(sst.attrs) == "{'units': 'degC'}"
    assert str(sst.explain((slice(0, 2), 3, [5, 6, 7]))) == EXPLANATION


def test_group(root: xzarr3.Group) -> None:
    assert repr(root) == "<xzarr3.Group / of <MemoryStore, 3 keys>>"
    tree = root.tree()
    assert isinstance(tree, Description)
    assert repr(tree) == str(tree) == f"{tree}" == TREE
    again = pickle.loads(pickle.dumps(tree))
    assert type(again) is str
    assert again == TREE
    assert str(root._describe()) == "\n".join([repr(root), *TREE.splitlines()[1:]])


def test_what_is_stored_is_told_once_it_was_counted(root: xzarr3.Group) -> None:
    sst: Any = root["surface/sst"]
    sst[:100, :90] = 5
    assert "stored" not in sst.info
    seen: Any = xzarr3.open_array(sst.store, "surface/sst")
    with xzarr3.trace() as t:
        for show in (repr, lambda array: array.info, lambda array: array._repr_html_()):
            show(seen)
    assert t.total["requests"] == 0  # The store is not asked to show an array.
    lines = seen.info_complete().splitlines()
    assert lines[-1].startswith("stored      ")
    assert " in 2 of 12 shards (17 %), ratio " in lines[-1]
    assert seen.info.splitlines() == lines
    assert "2 of 12 shards" in seen._repr_html_()
    for change in (
        lambda: sst.resize((200, 180, 360)),
        lambda: sst.append(np.ones((1, 180, 360), "f4")),
        lambda: sst.set((0, 0, 0), 1),
    ):
        sst.info_complete()
        assert "stored" in sst.info
        change()
        assert "stored" not in sst.info


@pytest.mark.parametrize("damage", [("zstd", "from_the_future"), ("[2,2]", "[3,2]")])
def test_what_cannot_be_read_is_said_and_the_rest_is_shown(damage: tuple[str, str]) -> None:
    root = xzarr3.create_group(xzarr3.MemoryStore())
    root.create_array("a", shape=(4, 5), chunks=(2, 2), shards=(4, 6), dtype="int8")
    root.create_array("b", shape=3, dtype="int8")
    text = json.dumps(json.loads(bytes(root.store.get("a/zarr.json") or b"")), separators=(",", ":"))
    assert damage[0] in text
    root.store.set("a/zarr.json", text.replace(*damage).encode())
    group = xzarr3.open_group(root.store)
    for shown in (group.tree(), group._repr_html_(), str(group._describe())):
        assert "b" in shown
        assert "cannot be read: node" in shown
        assert damage[1].replace(",", ", ") in shown
