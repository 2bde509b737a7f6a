"""Indexes of shards are read once, and never believed when the shard is another one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _unprivileged import run_child

import xzarr3
from xzarr3.codecs.sharding import Shard
from xzarr3.io import shards
from xzarr3.stores.local import files

pytestmark = pytest.mark.usefixtures("python_executor")  # Native code reads the index each time.
Decoded = list[int]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    """The sizes of the indexes that are decoded, with an empty cache that takes shards of any age."""
    found: Decoded = []
    decode = Shard.decode_index

    def counting(self: Shard, data: Any) -> Any:
        found.append(len(data))
        return decode(self, data)

    monkeypatch.setattr(Shard, "decode_index", counting)
    monkeypatch.setattr(shards, "_indexes", shards._Indexes())
    monkeypatch.setattr(files, "_SETTLED", 0)
    return found


def sharded(path: Path, data: Any = None, **options: Any) -> xzarr3.Array:
    """A store of one shard of 16 inner chunks."""
    data = np.arange(64, dtype="int32").reshape(8, 8) if data is None else data
    return xzarr3.create_array(path, data=data, chunks=(2, 2), shards=(8, 8), overwrite=True, **options)


def test_a_shard_changed_just_now_is_looked_at_again(
    tmp_path: Path, decoded: Decoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_SETTLED", 3600 * 10**9)
    sharded(tmp_path / "a")
    array = xzarr3.open_array(tmp_path / "a")
    decoded.clear()
    assert [array[3, 5] for _ in range(3)] == [29] * 3
    assert len(decoded) == 3


@pytest.mark.parametrize("how", ["this library", "replaced", "in place", "in place, times put back"])
def test_a_changed_shard_is_seen(how: str, tmp_path: Path, decoded: Decoded) -> None:
    old = np.arange(64, dtype="int32").reshape(8, 8)
    array = xzarr3.open_array(sharded(tmp_path / "a", old).store)
    # The values compress to other sizes, so that an old index would lead to the wrong bytes.
    new = np.where(old % 2 == 0, 7, old * 1_000_003).astype("int32")
    sharded(tmp_path / "b", new)
    assert array[3, 5] == 29
    if how == "this library":
        xzarr3.open_array(tmp_path / "a", mode="r+")[...] = new
    else:
        place, content = tmp_path / "a" / "c" / "0" / "0", (tmp_path / "b" / "c" / "0" / "0").read_bytes()
        times = place.stat()
        if how == "replaced":
            (tmp_path / "other").write_bytes(content)
            os.utime(tmp_path / "other", ns=(times.st_atime_ns, times.st_mtime_ns))
            os.replace(tmp_path / "other", place)
        else:
            place.write_bytes(content)
            if how.endswith("back"):
                os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert array[3, 5] == new[3, 5]
    for at in np.ndindex(8, 8):
        assert array[at] == new[at]


def test_what_is_kept_is_bounded(tmp_path: Path, decoded: Decoded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MOST_KEPT", 4000)  # Bytes: three indexes and their overhead.
    data = np.arange(10 * 64, dtype="int32").reshape(80, 8)
    array = xzarr3.open_array(sharded(tmp_path / "a", data).store)
    for _ in range(2):
        for row in range(0, 80, 8):
            assert array[row, 0] == data[row, 0]
    assert shards._indexes._size <= 4000
    assert len(shards._indexes._kept) == 3
    decoded.clear()
    assert array[72, 0] == data[72, 0]
    assert not decoded
    assert array[0, 0] == data[0, 0]
    assert len(decoded) == 1


def test_an_index_that_is_wrong_is_not_kept(tmp_path: Path, decoded: Decoded) -> None:
    array = xzarr3.open_array(sharded(tmp_path / "a").store)
    place = tmp_path / "a" / "c" / "0" / "0"
    content = place.read_bytes()
    place.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(xzarr3.ChunkDecodeError, match="shard index"):
            array[3, 5]
    place.write_bytes(content)
    assert array[3, 5] == 29


def test_threads_share_what_is_kept(tmp_path: Path, decoded: Decoded) -> None:
    data = np.arange(40 * 64, dtype="int32").reshape(320, 8)
    array = xzarr3.open_array(sharded(tmp_path / "a", data).store)
    wrong: list[int] = []

    def look(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for row in rng.integers(0, 320, 200).tolist():
            if array[row, 3] != data[row, 3]:
                wrong.append(row)

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(shards._indexes._kept) == 40


def test_an_index_is_not_taken_for_that_of_another_layout(tmp_path: Path, decoded: Decoded) -> None:
    """A document may describe the same shard in another way; its index then has another shape."""
    data = np.arange(48, dtype="int32").reshape(4, 12)
    xzarr3.create_array(tmp_path / "a", data=data, chunks=(2, 2), shards=(4, 12), compressors=None)
    right = (tmp_path / "a" / "zarr.json").read_text()
    wrong = json.loads(right)
    wrong["shape"] = [12, 4]
    wrong["chunk_grid"]["configuration"]["chunk_shape"] = [12, 4]
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(wrong))
    assert xzarr3.open_array(tmp_path / "a")[:2, :2].shape == (2, 2)
    (tmp_path / "a" / "zarr.json").write_text(right)
    assert np.array_equal(xzarr3.open_array(tmp_path / "a")[2:4, 4:6], data[2:4, 4:6])


def test_a_forked_child_reads_while_its_parent_looks_into_the_cache(tmp_path: Path, decoded: Decoded) -> None:
    array = xzarr3.open_array(sharded(tmp_path / "a").store)
    with shards._indexes._lock:
        assert run_child(lambda: int(array[3, 5])).checked() == 29
