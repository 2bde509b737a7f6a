"""Batches of samples: how often chunks are decoded, in which order they come, and that torch takes them."""

import math
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from _strategies import same_bits
from _things import refuses
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import ChunkCache

ROWS = np.random.default_rng(0).normal(size=(256, 20))
WINDOWS = [slice(start, start + 4) for start in range(len(ROWS) - 3)]


def stored(data: Any = ROWS, chunks: Any = (32, 20), **options: Any) -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), data=data, chunks=chunks, **options)


def patches(side: int, number: int) -> list[tuple[slice, slice]]:
    starts = np.random.default_rng(1).integers(0, side - 63, (number, 2)).tolist()
    return [(slice(y, y + 64), slice(x, x + 64)) for y, x in starts]


def in_order(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Samples by their first elements, which tell them apart."""
    return samples[np.argsort(samples.reshape(len(samples), -1)[:, 0])]


def read(made: Any) -> tuple[np.ndarray[Any, Any], float]:
    """All samples, and how many chunks are decoded for them."""
    with xzarr3.trace() as trace:
        found = np.concatenate([*made])
    return found, trace.total["chunks_decoded"]


@pytest.mark.parametrize("shuffle", [None, 5])
def test_windows_of_four_rows_decode_each_chunk_about_once(shuffle: int | None) -> None:
    array = stored()
    made = xzarr3.batches(array, WINDOWS, 16, shuffle=shuffle, chunk_cache="20 KiB")
    rows, decoded = read(made)
    assert decoded <= 1.2 * array.nchunks
    expected = np.stack([ROWS[window] for window in WINDOWS])
    if shuffle is not None:
        assert not same_bits(rows, expected)
        rows, expected = in_order(rows), in_order(expected)
    assert same_bits(rows, expected)


@pytest.mark.parametrize(
    "layout", [{"chunks": (64, 64)}, {"chunks": (128, 128)}, {"chunks": (64, 64), "shards": (256, 256)}]
)
def test_shuffled_patches_decode_each_chunk_less_than_one_and_a_half_times(layout: dict[str, Any]) -> None:
    data = np.random.default_rng(2).random((1024, 1024), "float32")
    array, samples = stored(data, **layout), patches(1024, 1500)
    expected = np.stack([data[each] for each in samples])
    made = xzarr3.batches(array, samples, 32, shuffle=3, chunk_cache=data.nbytes // 4)
    for epoch in range(2):
        made.set_epoch(epoch)
        found, decoded = read(made)
        assert decoded <= 1.5 * array.nchunks
        assert made._cache.nbytes <= made._cache.size
        assert same_bits(np.sort(found[:, 0, 0]), np.sort(expected[:, 0, 0]))


def test_patches_in_order_decode_less_often_than_with_the_least_recently_used_first() -> None:
    data = np.arange(512.0 * 512).reshape(512, 512)
    array, samples, size = stored(data, (64, 64)), patches(512, 300), data.nbytes // 4
    found, decoded = read(xzarr3.batches(array, samples, 10, chunk_cache=size))
    assert same_bits(found, np.stack([data[each] for each in samples]))
    again = xzarr3.open_array(array.store, chunk_cache=size)
    with xzarr3.trace() as recent:
        for each in samples:
            again[each]
    assert decoded < recent.total["chunks_decoded"]


def test_what_is_kept_is_not_read_again_unless_it_has_changed() -> None:
    array = stored(np.arange(64), 4)
    made = xzarr3.batches(array, range(64), 16)
    assert read(made)[1] == 16
    assert read(made)[1] == 0
    array[:16] = -1
    assert (made[0] == -1).all()
    # Pickled batches take no chunks along.
    kept = xzarr3.batches(stored(), WINDOWS, 16, shuffle=4, chunk_cache=ChunkCache("1 MiB"))
    first = kept[0]
    text = pickle.dumps(kept)
    assert len(text) < ROWS.nbytes + 40_000  # The values of a store in memory.
    assert same_bits(pickle.loads(text)[0], first)


def test_a_shuffle_is_a_permutation_that_the_seed_and_the_epoch_tell() -> None:
    array = stored(np.arange(100), 10)

    def order(seed: int, epoch: int = 0) -> list[int]:
        made = xzarr3.batches(array, range(100), 8, shuffle=seed)
        made.set_epoch(epoch)
        return [int(value) for batch in made for value in batch]

    assert order(1) == order(1) != order(2)
    assert order(1, 3) == order(1, 3) != order(1)
    assert order(np.int64(1)) == order(np.uint8(1)) == order(1)  # type: ignore[arg-type]
    assert sorted(order(1)) == sorted(order(2)) == [*range(100)]
    made = xzarr3.batches(array, range(100), 8, shuffle=1)
    assert [b.tolist() for b in made] == [b.tolist() for b in made]


def test_with_a_cache_that_holds_everything_all_permutations_are_equally_likely() -> None:
    array = stored(np.arange(40), 4)
    places = np.zeros((40, 2))
    for seed in range(400):
        order = np.concatenate([*xzarr3.batches(array, range(40), 40, shuffle=seed)])
        places[order[:20], 0] += 1
        places[order[20:], 1] += 1
    assert places.min() > 150  # 200 of 400, with a deviation of 10.


def test_shuffled_blocks_come_in_any_order() -> None:
    for shape, row, expected in (((64,), 8, {0, 7}), ((16, 16), 64, {0, 1, 2, 3})):
        array = stored(np.arange(math.prod(shape)).reshape(shape), 4)
        size = 2 * (8 * 4 ** len(shape) + 512)  # Two chunks.
        firsts = set()
        for seed in range(60):
            made = xzarr3.batches(array, [*np.ndindex(shape)], 8, shuffle=seed, chunk_cache=size)
            firsts.add(int(made[0][0]) // row)
        assert firsts == expected  # A row of blocks, in either direction.


@given(trial=st.data())
@settings(max_examples=30)
def test_each_sample_comes_once_whatever_the_budget(trial: st.DataObject) -> None:
    shape = trial.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    data = np.arange(np.prod(shape)).reshape(shape)
    chunks = tuple(trial.draw(st.integers(1, 6)) for _ in shape)
    lengths = [trial.draw(st.integers(1, length)) for length in shape]
    starts = st.tuples(*(st.integers(0, n - k) for n, k in zip(shape, lengths, strict=True)))
    corners = trial.draw(st.lists(starts, min_size=1, max_size=20))
    samples = [tuple(map(slice, corner, np.add(corner, lengths).tolist())) for corner in corners]
    seed = trial.draw(st.one_of(st.none(), st.integers(0, 9)))
    size = trial.draw(st.sampled_from([1, 700, 3000, 2**20]))
    batch_size = trial.draw(st.integers(1, 7))
    made = xzarr3.batches(stored(data, chunks), samples, batch_size, shuffle=seed, chunk_cache=size)
    found, expected = np.concatenate([*made]), np.stack([data[each] for each in samples])
    if seed is not None:
        found, expected = in_order(found), in_order(expected)
    assert same_bits(found, expected)


def test_several_arrays_give_batches_in_their_form() -> None:
    images, labels = stored(), stored(np.arange(256), 100)
    rows = range(0, 250, 3)
    samples = [{"x": slice(row, row + 4), "y": row} for row in rows]
    found = [*xzarr3.batches({"x": images, "y": labels}, samples, 5)]
    assert all({*batch} == {"x", "y"} for batch in found)
    assert np.concatenate([batch["y"] for batch in found]).tolist() == [*rows]
    expected = np.stack([ROWS[row : row + 4] for row in rows])
    assert same_bits(np.concatenate([batch["x"] for batch in found]), expected)
    both = xzarr3.batches([labels, labels], range(10), 10)[0]
    assert isinstance(both, tuple)
    assert same_bits(both[0], both[1])


def test_out_is_filled_again_and_again() -> None:
    out = np.empty((100, 4, 20))
    made = xzarr3.batches(stored(), WINDOWS, 100, out=out)
    found = [(batch.base is out or batch is out, len(batch)) for batch in made]
    assert found == [(True, 100), (True, 100), (True, 53)]
    assert same_bits(out[:53], np.stack([ROWS[window] for window in WINDOWS[200:]]))
    memory = {"a": np.empty((2, 20))}
    batch = xzarr3.batches({"a": stored()}, [0, 1, 2], 2, out=memory)[0]
    assert batch["a"].base is memory["a"]


def test_joined_arrays_and_text_are_read_in_batches() -> None:
    both = xzarr3.concat([stored(), stored(-ROWS, (10, 20), shards=(50, 20))], 0)
    rows = np.concatenate([ROWS, -ROWS])
    samples = [slice(start, start + 4) for start in range(0, 500, 3)]
    found, decoded = read(xzarr3.batches(both, samples, 7, chunk_cache="20 KiB"))
    assert same_bits(found, np.stack([rows[each] for each in samples]))
    assert decoded <= 1.2 * 34
    text = stored(np.array([*"abcdef"], dtype=object), 2, dtype="string")
    assert [[*batch] for batch in xzarr3.batches(text, range(6), 4)] == [[*"abcd"], [*"ef"]]


def test_what_is_said_of_batches_and_of_what_is_no_array() -> None:
    made = xzarr3.batches(stored(), WINDOWS, 16)
    assert repr(made) == "<xzarr3.Batches 16 of 16 samples, in order>"
    assert repr(xzarr3.batches(stored(), WINDOWS, 16, shuffle=2)).endswith("samples, shuffled with seed 2>")
    refuses(made.__getitem__, [16], IndexError, "no batch 16 of 16")
    batches = partial(xzarr3.batches, samples=[0], batch_size=1)
    refuses(batches, [[ROWS]], TypeError, "arrays: 0 is ndarray; accepted: an Array or JoinedArray")
    refuses(batches, [[]], ValueError, "no arrays; give at least one")
    unwatched = xzarr3.create_array(xzarr3.MemoryStore({}), data=ROWS)
    refuses(batches, [unwatched], xzarr3.StoreCapabilityError, "does not tell whether a value has changed")


MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (([slice(4), slice(5)], 2), {}, r"sample 1 of array 0 has shape \(5, 20\), the first one \(4, 20\)"),
    (([slice(254, 258), slice(4)], 2), {}, r"sample 1 of array 0 has shape .*, the first one \(2, 20"),
    (([slice(300, 304)], 2), {}, "at least one element"),
    (([300], 2), {}, "sample 0 of array 0: axis 0: index 300 is out of bounds"),
    (([[1, 2]], 2), {}, "sample 0 of array 0: .*accepted: integers, slices"),
    (([], 2), {}, "no samples; give at least one"),
    (([0], 0), {}, "batch_size=0; accepted: an integer of at least 1"),
    (([0], True), {}, "batch_size=True; accepted: an integer of at least 1"),
    (([0], 2), {"shuffle": True}, "shuffle=True; accepted: None, or a seed"),
    (([0], 2), {"shuffle": -1}, "shuffle=-1; accepted"),
    (([0], 2), {"shuffle": np.True_}, "shuffle=np.True_; accepted"),
    (([0], 2), {"shuffle": np.int8(-1)}, "; accepted: None, or a seed"),
    (([0], 2), {"shuffle": 1.0}, "shuffle=1.0; accepted"),
    (([0], 2), {"chunk_cache": "much"}, "chunk_cache='much'; accepted: a positive"),
    (([0], 2), {"out": np.empty((2, 3))}, r"out=float64 of shape \(2, 3\) for array 0; accepted: float64"),
    (([0], 2), {"out": {}}, "out={} for array 0"),
    (([{"a": 0}], 2), {}, r"sample 0 has \['a'\], and lacks array 0"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "text"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_told(arguments: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, IndexError), match=text):
        xzarr3.batches(stored(), *arguments, **options)


def test_an_epoch_is_a_number() -> None:
    for epoch in ("x", -1, 1.5, None):
        with pytest.raises(ValueError, match=r"epoch=.*; accepted: an integer of at least 0"):
            xzarr3.batches(stored(), [0], 2).set_epoch(epoch)  # type: ignore[arg-type]


def run(program: str, tmp_path: Path, data: Any, chunks: int) -> None:
    """Run a program, which prints that all is the same, with an array in a directory."""
    xzarr3.create_array(tmp_path / "a.zarr", data=data, chunks=chunks)
    (tmp_path / "workers.py").write_text(program)
    command = [sys.executable, str(tmp_path / "workers.py"), str(tmp_path / "a.zarr")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


WORKERS = """
import multiprocessing, pickle, sys
import numpy as np, xzarr3

made = None

def begin(text):
    global made
    made = pickle.loads(text)

def batch(number):
    return made[number]

if __name__ == "__main__":
    made = xzarr3.batches(xzarr3.open_array(sys.argv[1]), range(40), 6, shuffle=2)
    expected = [each.tolist() for each in made]
    for how in ("fork", "spawn"):
        context = multiprocessing.get_context(how)
        with context.Pool(2, begin, (pickle.dumps(made),)) as pool:
            assert [each.tolist() for each in pool.map(batch, range(len(made)))] == expected, how
    print("same")
"""


def test_worker_processes_read_the_same_batches(tmp_path: Path) -> None:
    run(WORKERS, tmp_path, np.arange(40), 4)


TORCH = """
import sys
from functools import partial
import numpy as np, torch, xzarr3
from torch.utils.data import DataLoader
from xzarr3.stores.local import files

if __name__ == "__main__":
    array = xzarr3.open_array(sys.argv[1])
    windows = [slice(start, start + 3) for start in range(98)]
    for shuffle in (None, 5):
        made = xzarr3.batches(array, windows, 8, shuffle=shuffle)
        for how in (None, "fork", "spawn"):
            workers = {"num_workers": 0 if how is None else 3, "multiprocessing_context": how}
            loader = DataLoader(made, batch_size=None, **workers)
            found = [each for each in loader]
            assert all(isinstance(each, torch.Tensor) for each in found)
            firsts = torch.cat(found)[:, 0].tolist()
            assert sorted(firsts) == list(range(98)), (shuffle, how)
            if shuffle is None:
                assert firsts == list(range(98)), how
            if how is not None:
                assert [each.tolist() for each in loader] == [each.tolist() for each in found]
                made.set_epoch(1)
                other = [each.tolist() for each in loader]
                assert (other != [each.tolist() for each in found]) == bool(shuffle)
                made.set_epoch(0)
    out = xzarr3.batches(array, windows, 8, out=np.empty((8, 3), int))
    try:
        list(DataLoader(out, batch_size=None, num_workers=1))
    except xzarr3.ArgumentError as error:
        assert "leave out= out" in str(error)
    else:
        raise AssertionError("out= in a worker")
    print("same")
"""


@pytest.mark.slow
def test_torch_takes_batches_with_forked_and_spawned_workers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(TORCH, tmp_path, np.arange(100), 10)


def test_each_torch_worker_reads_neighbouring_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made = xzarr3.batches(stored(), WINDOWS, 16, shuffle=1)

    class Worker:
        num_workers = 3

    torch = SimpleNamespace(get_worker_info=Worker)  # All that is used of it.
    monkeypatch.setitem(sys.modules, "torch.utils.data", torch)
    dealt = [made._of_worker(number) for number in range(len(made))]
    assert dealt[::3] == [0, 1, 2, 3, 4, 5]
    assert sorted(dealt) == [*range(len(made))]
