"""Arrays in other processes and on clusters of this machine: pickles, what is shared, writes, kills."""

import base64
import copy
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import dask.array as da
import fsspec
import numpy as np
import pytest
import xarray as xr
from _conformance import contents, refused, run_threads
from _engines import theirs
from _graphs import numbers
from _processes import Process
from _recording import heard
from _strategies import attempt
from _unprivileged import run_child
from _xarray_datasets import CORPUS, TEXTS
from distributed import Client
from fsspec.implementations.dirfs import DirFileSystem

import xzarr3
from xzarr3 import Array, CacheStore, ChunkDecodeError, LocalStore, MemoryStore, ReadOnlyError, StoreError
from xzarr3.dask import from_zarr, store
from xzarr3.io import native
from xzarr3.nodes import pickling
from xzarr3.parallel import available_threads
from xzarr3.stores import update
from xzarr3.stores.interned import interned
from xzarr3.stores.local.names import LOCK
from xzarr3.xarray import open_dataset, to_zarr

Values = np.ndarray[Any, np.dtype[np.float64]]
OPTIONS: dict[str, Any] = {
    "shape": (1000, 721, 1440), "chunks": (10, 100, 100), "shards": (100, 400, 400), "dtype": "float32",
    "dimension_names": ("time", "lat", "lon"), "attributes": {"units": "K", "valid_range": [200.0, 330.5]},
}  # fmt: skip


def _zipped(path: Path) -> xzarr3.ZipStore:
    with xzarr3.ZipStore(path / "x.zip", mode="w") as zipped:
        xzarr3.create_array(zipped, "a/x", **OPTIONS)
    return xzarr3.ZipStore(path / "x.zip")


ANYBODY = {"anon": True, "region": "eu-west-1"}
STORES: dict[str, Callable[[Path], xzarr3.Store]] = {
    "local": lambda path: LocalStore(path / "x"),
    "object": lambda path: xzarr3.ObjectStore("s3://nowhere/x", storage_options=ANYBODY),
    "fsspec": lambda path: xzarr3.FsspecStore(f"file://{path}/x"),
    "fsspec system": lambda path: xzarr3.FsspecStore(fsspec.filesystem("file"), f"{path}/x"),
    "memory": lambda path: MemoryStore(),
    "cache": lambda path: CacheStore(LocalStore(path / "x")),
    "wrapped": lambda path: xzarr3.WrapperStore(CacheStore(LocalStore(path / "x"))),
    "read-only": lambda path: xzarr3.ReadOnlyStore(LocalStore(path / "x")),
    "zip": _zipped,
}


def _in(made: xzarr3.Store) -> Array:
    """An array in a store, of which nobody is asked whether it is there."""
    return Array(made, "a/x", xzarr3.create_array(MemoryStore(), "a/x", **OPTIONS).metadata)


@pytest.mark.parametrize("kind", STORES)
def test_recipes_are_small_equal_and_share_what_does_not_change(kind: str, tmp_path: Path) -> None:
    array = _in(STORES[kind](tmp_path))
    recipe = pickle.dumps(array)
    assert len(recipe) < 2000
    first, second = pickle.loads(recipe), pickle.loads(recipe)
    assert pickle.dumps(first) == pickle.dumps(copy.deepcopy(first)) == recipe
    assert first.metadata.stores_as(array.metadata)
    for name in ("shape", "attrs", "name", "missing", "read_only"):
        assert getattr(first, name) == getattr(array, name), name
    same = _in(array.store)
    same._opened_at = array._opened_at
    assert pickle.dumps(same) == recipe
    other = pickle.loads(pickle.dumps(Array(array.store, "a/y", array.metadata)))
    assert first.store is second.store is other.store
    assert first.engine is second.engine is not other.engine
    assert first.metadata is second.metadata
    assert first is not second


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_groups_are_pickled_to_recipes_as_well(zarr_format: Any, tmp_path: Path) -> None:
    root = xzarr3.create_group(tmp_path, zarr_format=zarr_format, attributes={"u": 1})
    for name in ("a", "g/b", "g/c"):
        root.create_array(name, data=np.arange(3), attributes={"units": "K", "long_name": name})
    groups: list[Any] = [root, root["g"], root.loaded()]
    if zarr_format != "3-draft":
        root.consolidate()
        groups += [xzarr3.open_group(tmp_path), xzarr3.open_group(tmp_path)["g"]]
    for group in groups:
        recipe = pickle.dumps(group)
        first, second = pickle.loads(recipe), pickle.loads(recipe)
        assert pickle.dumps(first) == recipe
        assert first.store is second.store
        assert first.metadata.attributes == group.metadata.attributes
        assert first.tree() == second.tree() == group.tree()
        assert (first.read_only, first.consolidated) == (group.read_only, group.consolidated)
        assert first._documents is None or first._documents is second._documents


def test_only_so_much_is_kept(tmp_path: Path) -> None:
    array = _in(LocalStore(tmp_path))
    for number in range(600):
        pickle.loads(pickle.dumps(Array(array.store, f"a/{number}", array.metadata)))
    for number in range(100):
        pickle.loads(pickle.dumps(Array(LocalStore(tmp_path / str(number)), "a/x", array.metadata)))
    in_memory = pickle.loads(pickle.dumps(xzarr3.create_array(MemoryStore(), data=np.arange(4))))
    assert in_memory[...].tolist() == [0, 1, 2, 3]
    held = weakref.ref(in_memory.store)
    del in_memory
    gc.collect()
    assert held() is None
    assert len(interned._kept) <= 32
    assert len(interned._live) < 100
    assert len(pickling._known) < 700


def test_a_handle_that_changes_changes_no_other(tmp_path: Path) -> None:
    array = xzarr3.create_array(tmp_path, data=np.arange(6), chunks=2, attributes={"u": 1})
    recipe = pickle.dumps(array)
    first, second, third = (pickle.loads(recipe) for _ in range(3))
    first.append([6, 7])
    first.attrs["u"] = 2
    assert (second.shape, dict(second.attrs), third.shape) == ((6,), {"u": 1}, (6,))
    assert (first.shape, first[...].tolist()) == ((8,), list(range(8)))
    assert second[...].tolist() == pickle.loads(recipe)[...].tolist() == list(range(6))
    assert pickle.loads(pickle.dumps(first)).shape == (8,)
    second.missing, second.read_only, second.write_empty_chunks = "error", True, True
    copy.copy(third).missing = "warn"
    assert (third.missing, third.read_only, third.write_empty_chunks) == ("fill", False, False)
    fourth = pickle.loads(pickle.dumps(second))
    assert (fourth.missing, fourth.read_only, fourth.write_empty_chunks) == ("error", True, True)
    first.resize((2,))
    refused(StoreError, lambda: second[...], match="open it again")


class Derived(LocalStore):
    mine = 0


class Turned(MemoryStore):
    """Keeps everything with all bits turned round."""

    mask = 255

    def get(self, key: str, byte_range: Any = None) -> Any:
        value = super().get(key, byte_range)
        return None if value is None else bytes(octet ^ self.mask for octet in bytes(value))

    def put(self, key: str, pieces: Any) -> None:
        super().put(key, [bytes(octet ^ self.mask for octet in b"".join(pieces))])


def test_stores_of_the_user_stay_what_they_are(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    derived = Derived(tmp_path / "derived")
    derived.mine = 5
    twin = pickle.loads(pickle.dumps(derived))
    assert (type(twin), twin.mine) == (Derived, 5)
    assert twin is not pickle.loads(pickle.dumps(derived))
    turned = Turned()
    turned.mask = 15
    array = xzarr3.create_array(turned, data=np.arange(5))
    assert pool.submit(array.get).result(120).tolist() == list(range(5))
    refused(ReadOnlyError, lambda: pool.submit(_write, array).result(120), match="copy in another process")

    class Notebook(xzarr3.WrapperStore):
        def get(self, key: str, byte_range: Any = None) -> Any:
            return super().get(key, byte_range)

    array = xzarr3.create_array(Notebook(LocalStore(tmp_path / "notebook")), data=np.arange(5))
    assert cloudpickle.loads(cloudpickle.dumps(array))[...].tolist() == list(range(5))
    plain = _in(LocalStore(tmp_path))
    assert cloudpickle.dumps(plain) == cloudpickle.dumps(pickle.loads(pickle.dumps(plain)))


def test_threads_that_unpickle_at_once_share_and_forked_children_wait_for_none(tmp_path: Path) -> None:
    recipe = pickle.dumps(xzarr3.create_array(tmp_path, data=np.arange(5)))
    found: list[Array] = []
    run_threads(*[lambda: found.extend(pickle.loads(recipe) for _ in range(50))] * 8)
    assert len({(id(array.store), id(array.engine), id(array.metadata)) for array in found}) == 1
    assert len(found) == 400
    with pickling._lock, interned._lock:
        assert run_child(lambda: pickle.loads(recipe)[...].tolist()).checked() == list(range(5))


def test_the_document_is_parsed_and_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = xzarr3.create_array(tmp_path, data=np.arange(5), attributes={"n": 7131})
    recipe, parsed = pickle.dumps(array), []
    parse = type(array.format).parse
    monkeypatch.setattr(type(array.format), "parse", lambda *args: (parsed.append(args), parse(*args))[1])
    with heard() as requests:
        for _ in range(20):
            assert pickle.loads(recipe)[...].tolist() == list(range(5))
    assert len(parsed) == 2  # Once as the recipe has it, and once as it is stored.
    assert [each.key for each in requests].count("zarr.json") < 3


_SILENT = """
import base64, os, pickle, sys, threading
import fsspec.core, fsspec.implementations.local
import xzarr3, xzarr3.arrays, xzarr3.stores.cache, xzarr3.stores.zip
import xzarr3.stores.object.store, xzarr3.stores.fsspec, xzarr3.dask
recipes = [base64.b64decode(line) for line in sys.stdin]
before, seen = set(sys.modules), []
def hear(event, args):
    if event.split(".")[0] in ("open", "os", "socket", "_thread", "import", "subprocess", "fcntl", "glob"):
        seen.append((event, args))
stat = os.stat
os.stat = lambda *args, **kwargs: (seen.append(("stat", args)), stat(*args, **kwargs))[1]
sys.addaudithook(hear)
for recipe in recipes:
    array, again = pickle.loads(recipe), pickle.loads(recipe)
    same = isinstance(array, list)
    if not same:
        array.name, array.read_only, array.store
    noted = list(seen)
    same = same or len(pickle.dumps(array)) == len(recipe)  # For which a directory may be looked at.
    print([noted, sorted(set(sys.modules) - before), threading.active_count(), same])
    seen = []
"""


def test_unpickling_touches_nothing(tmp_path: Path) -> None:
    """Not a file, not a socket, not a thread, not a package: it happens on the event loop of a worker."""
    stored = xzarr3.create_array(tmp_path / "stored", "a/x", data=numbers(20, 20), chunks=5, shards=10)
    group = xzarr3.open_group(tmp_path / "stored")
    things: dict[str, Any] = {"group and tasks": [group, *stored.chunk_tasks(), from_zarr(stored)]}
    for kind, make in STORES.items():
        (tmp_path / kind).mkdir()
        things[kind] = _in(make(tmp_path / kind))
    recipes = b"\n".join(base64.b64encode(pickle.dumps(thing)) for thing in things.values())
    program = [sys.executable, "-c", _SILENT]
    done = subprocess.run(program, input=recipes, capture_output=True, timeout=120, check=False)
    told = dict(zip(things, done.stdout.decode().splitlines(), strict=False))
    assert told == dict.fromkeys(things, "[[], [], 1, True]"), done.stderr.decode()


def test_what_is_not_known_or_has_vanished_is_an_error_when_it_is_used(tmp_path: Path) -> None:
    place = tmp_path / "store"
    array = xzarr3.create_array(place, data=np.arange(5), chunks=5)
    unknown = pickle.loads(pickle.dumps(array).replace(b'"name":"zstd"', b'"name":"zest"'))
    assert unknown.name == "/"
    refused(xzarr3.MetadataError, lambda: unknown[...], match="zest")
    twin, new = pickle.loads(pickle.dumps((array, LocalStore(tmp_path / "new"))))
    new.set("a", b"1")  # That was not there before, so it is made.
    shutil.rmtree(place)
    refused(StoreError, lambda: twin[...], match="vanished")
    for write in (
        partial(twin.set, 0, 1), partial(twin.set, ..., 1), partial(twin.append, [1]),
        partial(twin.store.set, "x", b""), partial(update, twin.store, "x", lambda _: [b""]),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=r"does not exist for process|is gone"):
            write()
    for use in (partial(array.set, ..., 2), partial(array.set, 0, 2), partial(array.get, 0)):
        with pytest.raises(xzarr3.ChangedError, match="vanished"):
            use()
    assert not place.exists()


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def _ours() -> set[str]:
    return {each.name.rpartition("_")[0] for each in threading.enumerate() if each.name.startswith("xzarr3")}


def _threads(array: Array) -> tuple[int, set[str], float]:
    total = float(array[...].sum() + np.asarray(array).sum())
    array[...] = 1
    return available_threads(), _ours() & {"xzarr3", "xzarr3-io"}, total


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_tasks_in_pools_have_one_thread(method: str, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    array = xzarr3.create_array(tmp_path, data=np.ones(2**21), chunks=2**16)
    assert available_threads() == len(os.sched_getaffinity(0))
    if method == "spawn":
        found = pool.submit(_threads, array).result(120)
    else:
        with multiprocessing.get_context("fork").Pool(1) as forked:
            found = forked.apply_async(_threads, (array,)).get(60)
    assert found == (1, set(), 2.0**22)


IN_MEMORY = fsspec.filesystem("memory")
UNSEEN: dict[str, Callable[[Path], xzarr3.Store]] = {
    "memory": lambda path: MemoryStore(),
    "cached": lambda path: CacheStore(MemoryStore()),
    "wrapped": lambda path: xzarr3.WrapperStore(MemoryStore()),
    "fsspec": lambda path: xzarr3.FsspecStore(f"memory://workers-{os.getpid()}-{path.name}"),
    "chain of fsspec": lambda path: xzarr3.FsspecStore(f"dir::memory://w{path.name}"),
    "directory of fsspec": lambda path: xzarr3.FsspecStore(DirFileSystem(f"/w{path.name}", IN_MEMORY)),
    "zip": lambda path: xzarr3.ZipStore(path / "x.zip", mode="w"),
}


def _write(array: Array) -> None:
    array[:2] = 7


def _unlock(array: Array) -> None:
    array.store, array.read_only = array.store.with_traits(read_only=False), False
    array[:2] = 7


_inherited: list[Array] = []


def _write_inherited(_: object) -> None:
    _inherited[0][:2] = 7


@pytest.mark.parametrize("kind", UNSEEN)
def test_a_write_nobody_would_see_is_refused(kind: str, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    array = xzarr3.create_array(UNSEEN[kind](tmp_path), data=np.arange(6), chunks=2)
    for work in (_write, _unlock):
        with pytest.raises((ReadOnlyError, StoreError), match=r"process|read-only"):
            pool.submit(work, array).result(120)
    _inherited[:] = [array]
    with multiprocessing.get_context("fork").Pool(1) as forked:
        _inherited.clear()
        for work, given in ((_write_inherited, 0), (_write, array)):
            with pytest.raises((ReadOnlyError, StoreError), match=r"process|read-only"):
                forked.apply_async(work, (given,)).get(60)
    assert array[...].tolist() == list(range(6))
    _write(array)
    assert array[...].tolist() == [7, 7, 2, 3, 4, 5]
    assert pickle.loads(pickle.dumps(array)).store.identity == array.store.identity


def _once(marker: str) -> bool:
    return not attempt(lambda: os.close(os.open(marker, os.O_CREAT | os.O_EXCL)), FileExistsError)[1]


def _halfway(end: Callable[[], None], folder: str, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Call ``end`` when half of a value, the one that is wanted, is written to a file below ``folder``."""
    native.switch.is_on = False  # It writes without these functions.
    write, writev = os.write, os.writev

    def half(descriptor: int, data: Any) -> int:
        parts = data if isinstance(data, list) else [data]
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not path.startswith(folder) or not path.endswith(LOCK) or not is_wanted():
            return writev(descriptor, parts)
        whole = b"".join(parts)
        number = write(descriptor, whole[: len(whole) // 2])
        os.write, os.writev = write, writev
        end()
        return number

    os.write = os.writev = half


def _is_second(marker: str) -> bool:
    """Whether one was asked before, in whichever process, and this is the second time."""
    return not _once(f"{marker}-first") and _once(marker)


@pytest.mark.parametrize(("blocks", "layout"), [
    ((10, 11), {"chunks": (10, 11)}), ((11, 9), {"chunks": (10, 8), "compressors": None}),
    ((20, 33), {"chunks": (5, 11), "shards": (10, 33)}), ((7, 13), {"chunks": (5, 11), "shards": (20, 33)}),
    ((9, 33), {"chunks": ((7, 13, 20), (3, 30))}), ((9, 33), {"chunks": (8, 8), "zarr_format": 2}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("region", [np.s_[:, :], np.s_[3:35, 2:30]], ids=["whole", "region"])
def test_workers_killed_in_the_middle_of_writes(
    client: Client, tmp_path: Path, blocks: Any, layout: dict[str, Any], region: Any
) -> None:
    """Nothing of half a value is seen, and nothing is lost of what was there and was not written."""
    expected = numbers(40, 33)
    target = xzarr3.create_array(tmp_path / "store", data=expected, dtype="f8", **layout)
    units, marker = set(contents(target.store)), str(tmp_path / "dead")
    # Whichever worker writes the second value is killed halfway.
    kill = partial(signal.raise_signal, signal.SIGKILL)
    client.run(_halfway, kill, str(tmp_path / "store"), partial(_is_second, marker))
    source = expected[region] + 5
    store(da.from_array(source, chunks=blocks), target, regions=region)
    assert os.path.exists(marker)
    expected[region] = source
    found = xzarr3.open_array(tmp_path / "store", mode="r+")
    np.testing.assert_array_equal(found[...], expected)
    assert set(contents(found.store)) == units
    assert not _leftovers(tmp_path / "store"), "the task was done again, and its writer removed what was left"


def _leftovers(place: Path) -> list[Path]:
    return [path for path in place.rglob(f"*{LOCK}") if path.is_file()]


def test_tasks_of_a_cluster_have_one_thread(client: Client, tmp_path: Path) -> None:
    data = np.ones((512, 2048))
    array = xzarr3.create_array(tmp_path / "a", data=data, chunks=(64, 256), shards=(256, 2048))
    target = xzarr3.create_array(tmp_path / "b", shape=data.shape, chunks=(64, 256), dtype="f8")
    assert da.from_array(array, chunks=(512, 1024)).sum().compute() == data.size
    assert client.submit(lambda array: array[...].sum(), array, pure=False).result(120) == data.size
    store(from_zarr(array) + 1, target)
    assert not set().union(*client.run(_ours).values())
    assert (target[...] == 2).all()


@pytest.mark.usefixtures("python_executor")  # Its writes can be stopped halfway.
def test_a_task_that_was_given_up_and_still_runs_writes_the_same(tmp_path: Path) -> None:
    source = numbers(30, 20)
    array = xzarr3.create_array(tmp_path / "store", data=np.zeros((30, 20)), chunks=(10, 20), shards=(30, 20))
    recipe = pickle.dumps(array)

    def suspended() -> None:
        def stop() -> None:
            Process.say()
            os.kill(os.getpid(), signal.SIGSTOP)

        _halfway(stop, str(tmp_path / "store"))
        pickle.loads(recipe)[...] = source

    zombie = Process(suspended)
    try:
        zombie.start()
        assert zombie.hear()
        assert not array[...].any()
        # It holds the lock of the chunk; nobody else may take its place.
        hasty = array.store.with_traits(conflict_deadline=0.2)
        refused(xzarr3.ConflictError, lambda: hasty.set("c/0/0", b"other"), match=r"c/0/0\.__lock")
        assert not array[...].any()
        while Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.005)
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.wait(120) == 0
    finally:
        zombie.close()
    np.testing.assert_array_equal(array[...], source)
    assert run_child(lambda: pickle.loads(recipe).set(..., source)).error is None
    np.testing.assert_array_equal(array[...], source)
    assert not _leftovers(tmp_path / "store")


def test_reading_and_computing(client: Client, local_store: LocalStore) -> None:
    values = numbers(60, 80)
    array = xzarr3.create_array(local_store, "a/x", data=values, chunks=(5, 10), shards=(20, 40))
    expected = (values[::2] - values.mean(axis=0)).std()
    for lazy in (
        from_zarr(array), from_zarr(array, chunks="units"), from_zarr(local_store, "a/x", chunks=17)
    ):  # fmt: skip
        np.testing.assert_array_equal(lazy.compute(), values)
        np.testing.assert_allclose((lazy[::2] - lazy.mean(axis=0)).std().compute(), expected)
    np.testing.assert_array_equal(lazy[::-7].persist()[2:4].compute(), values[::-7][2:4])
    workers, tasks = set(client.run(os.getpid).values()), list(array.chunk_tasks())
    sent = [client.submit(lambda task: (os.getpid(), task()), task, pure=False) for task in tasks]
    for task, result in zip(tasks, sent, strict=True):
        process, block = result.result(timeout=120)
        assert process in workers - {os.getpid()}
        np.testing.assert_array_equal(block, values[task.selection])


def test_datasets_are_computed(client: Client, tmp_path: Path) -> None:
    for make in (CORPUS["packed"], CORPUS["calendars"], TEXTS["texts"]):
        to_zarr(make(), tmp_path / make.__name__)
        found = open_dataset(tmp_path / make.__name__, chunks={}).compute()
        xr.testing.assert_identical(found, theirs(tmp_path / make.__name__))


def test_memory_stores_can_be_read_but_not_written_elsewhere(client: Client) -> None:
    memory, values, ones = MemoryStore(), numbers(20, 20), da.ones((20, 20), chunks=10)
    array = xzarr3.create_array(memory, data=values, chunks=10)
    np.testing.assert_array_equal(from_zarr(array).compute(), values)
    before = contents(memory)
    refused(ReadOnlyError, lambda: store(ones, array))
    refused(ReadOnlyError, lambda: client.submit(array.resize, (5, 5), pure=False).result(timeout=120))
    assert contents(memory) == before
    store(ones, array, scheduler="threads")
    assert (array[...] == 1).all()
    # The workers may still hold the copy of before.
    np.testing.assert_array_equal(from_zarr(array).compute(), np.ones((20, 20)))
    np.testing.assert_array_equal(client.submit(array.get, pure=False).result(timeout=120), np.ones((20, 20)))
    memory.set("c/1/0", b"broken")
    with pytest.raises(ChunkDecodeError, match="c/1/0") as caught:
        from_zarr(array, chunks="units").sum().compute()
    assert (caught.value.key, caught.value.chunk) == ("c/1/0", (1, 0))


def test_worker_killed_from_outside(client: Client, tmp_path: Path) -> None:
    values = numbers(90, 60)
    options: Any = {"chunks": (5, 6), "shards": (10, 30), "write_empty_chunks": True}
    target = xzarr3.create_array(tmp_path / "store", data=np.zeros((90, 60)), **options)
    source = da.from_array(values, chunks=(10, 30))
    source = source.map_blocks(lambda block: (time.sleep(0.05), block)[1], dtype="f8", meta=np.empty((0, 0)))
    future = client.compute(store(source, target, compute=False))
    while not (target[...] != 0).any():
        time.sleep(0.01)
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    future.result(timeout=120)
    np.testing.assert_array_equal(target[...], values)
    assert set(contents(target.store)) == {"zarr.json", *(task.key for task in target.chunk_tasks())}


def _marks(top: Path) -> dict[str, bytes]:
    """Documents and what says that somebody writes; a task elsewhere may just have stored a chunk."""
    found: dict[str, bytes] = {}
    for file in top.rglob("*"):
        if file.name.endswith(("zarr.json", "begun", "xzarr3-lease")):
            with suppress(FileNotFoundError):  # It has just been removed.
                found[str(file.relative_to(top))] = file.read_bytes()
    return found


def _fail_until(marker: Path, block: Values) -> Values:
    """Fails until there is a file, which the first failure makes if its name says so."""
    if 5 not in block or marker.exists():
        return block
    if marker.name == "once":
        marker.touch()
    raise ZeroDivisionError("not yet")


WRITES: dict[str, Any] = {"append": {"append_dim": "x"}, "w": {"mode": "w"}, "new": {"group": "below"}}


def _zeros(path: Path) -> None:
    xzarr3.to_zarr(xr.Dataset({"a": ("x", np.zeros(4))}), path, encoding={"a": {"chunks": (2,)}})


def _failing(marker: Path, chunk: int) -> xr.Dataset:
    """Eight values, which fail to be computed until the marker is there."""
    made = da.arange(8.0, chunks=chunk).map_blocks(partial(_fail_until, marker), dtype=float)
    return xr.Dataset({"a": ("x", made)})


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("how", WRITES)
def test_failed_writes_leave_nothing(client: Client, tmp_path: Path, how: str, chunk: int) -> None:
    path, marker, once, options = tmp_path / "store", tmp_path / "marker", tmp_path / "once", WRITES[how]
    _zeros(path)
    before = _marks(path)
    refused(ZeroDivisionError, lambda: xzarr3.to_zarr(_failing(marker, chunk), path, **options))
    assert _marks(path) == before
    xzarr3.to_zarr(_failing(once, chunk), path, chunkmanager_store_kwargs={"retries": 2}, **options)
    assert once.exists()
    found = xr.open_dataset(path, engine="xzarr3", group=options.get("group"))["a"].values.tolist()
    assert found == [0.0] * (4 if how == "append" else 0) + list(range(8))
    assert not [name for name in _marks(path) if name.startswith(".xzarr3")]
