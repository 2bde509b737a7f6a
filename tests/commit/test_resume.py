"""Writes that were cut off and are taken up again: the same bytes in the end, and little of it twice."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _clusters import cluster
from _conformance import contents, refused, without_marks
from _killed import MortalStore, forget_process, killed_in_fork, left, opened
from _processes import processes

import xzarr3
import xzarr3.commit.replace
from xzarr3 import LocalStore, MemoryStore, NodeExistsError, Store, StoreCapabilityError, to_zarr
from xzarr3.commit import lease
from xzarr3.commit.places import Place
from xzarr3.commit.replace import may_be_lost
from xzarr3.dask.plan import done_tiles
from xzarr3.dask.tiles import Regions, plan_axes
from xzarr3.formats.v3 import V3
from xzarr3.grid import Steps
from xzarr3.stores import CacheStore, WrapperStore

pytestmark = pytest.mark.usefixtures("one_task_at_a_time")
SHAPE = (12, 10)
ENCODING: dict[str, Any] = {
    "plain": {"chunks": (3, 2)},
    "packed": {"chunks": (2, 5), "shards": (4, 5), "dtype": "int16", "_FillValue": -1, "scale_factor": 0.5},
    "rare": {"chunks": (3, 5), "fill_value": -1.0},
}
BLOCKS = 20 + 12 + 12
TILES = 20 + 6 + 8


def _made(block: Any, log: str, pause: float) -> Any:
    """A block of a source, of which it is known how often it was computed."""
    with open(log, "ab", buffering=0) as file:
        file.write(b"x")
    time.sleep(pause)
    return block + 1


def dataset(log: Path, pause: float = 0) -> xr.Dataset:
    values = np.arange(120.0).reshape(SHAPE)
    rare = np.where(values < 60, -2.0, values)  # A half of it is the fill value, once it is made.

    def lazy(of: Any, chunks: Any) -> Any:
        source = da.from_array(of, chunks=chunks)
        return source.map_blocks(_made, str(log), pause, dtype="f8", meta=np.empty((0, 0)))

    return xr.Dataset(
        {
            "plain": (("x", "y"), lazy(values, (3, 2)), {"units": "K"}),
            "packed": (("x", "y"), lazy(values, (3, 4))),  # Does not go with the shards.
            "rare": (("x", "y"), lazy(rare, (3, 4))),
            "eager": ("y", np.arange(10)),
        },
        coords={"x": np.arange(12) * 2.5},
        attrs={"title": "all"},
    )


def write(store: Any, log: Path, *, pause: float = 0, resume: bool = True, **options: Any) -> None:
    to_zarr(dataset(log, pause), store, encoding=ENCODING, resume=resume, **options)


def made(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def old(store: Any, group: str | None = None, **options: Any) -> None:
    data = xr.Dataset({"plain": ("z", np.arange(5.0)), "gone": ("z", np.ones(5))})
    to_zarr(data, store, group=group, **options)


def check(store: Store, wanted: dict[str, bytes]) -> None:
    assert without_marks(contents(store)) == without_marks(wanted)
    assert not left(store)


@pytest.fixture(params=["w-", "w"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[None, "deep/below"], ids=["root", "group"])
def group(request: pytest.FixtureRequest) -> Any:
    return request.param


def uninterrupted(store: Store, log: Path, mode: str, group: str | None) -> dict[str, bytes]:
    if mode == "w":
        old(store, group)
    write(store, log.with_name("other"), mode=mode, group=group, resume=False)
    return contents(store)


def _in_threads(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with ThreadPoolExecutor(2) as pool, dask.config.set(scheduler="threads", pool=pool):
            work()

    return run


def _unless_done(work: Callable[[], None], done: Path) -> None:
    """Do some work, if it was not done when its process was killed."""
    if not done.exists():
        try:
            work()
        except NodeExistsError as error:  # It was done, but not yet said.
            done.write_text(str(error))
        else:
            done.touch()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    mode, group = ("w-", "w")[seed % 2], (None, "deep/below")[seed // 2 % 2]
    log, done, target = tmp_path / "log", tmp_path / "done", LocalStore(tmp_path / "target")
    wanted = uninterrupted(LocalStore(tmp_path / "wanted"), log, mode, group)
    if mode == "w":
        old(target, group)
    dice, kills = random.Random(seed), 0
    work = _in_threads(
        lambda: _unless_done(lambda: write(target, log, pause=0.02, mode=mode, group=group), done)
    )
    while True:
        most = made(log) + (dice.randint(1, 8) if kills < 8 else 10**9)
        with processes(work) as (process,):
            while not process.ended() and made(log) < most:
                time.sleep(0.001)
            if process.ended():
                assert process.wait(120) == 0
                break
        kills += 1
    assert kills >= 2
    check(target, wanted)
    # What both threads are at may be made twice, and what was not yet entered when it was killed.
    assert made(log) <= BLOCKS + 12 * kills


@pytest.mark.slow
def test_killed_at_changes_of_the_file_system(tmp_path: Path, mode: Any) -> None:
    def fresh(name: str) -> LocalStore:
        store = LocalStore(tmp_path / name)
        to_zarr(xr.Dataset({"other": ("z", np.arange(3.0))}), store, group="b")
        if mode == "w":
            old(store, "a")
        return store

    def small(store: LocalStore, log: Path, mode: Any = mode, *, resume: bool = True) -> None:
        data = failing(log, 100).assign_coords(x=np.arange(20))
        to_zarr(data, store, mode=mode, group="a", resume=resume)

    reference = fresh("wanted")
    small(reference, tmp_path / "other", resume=False)
    for number in itertools.count(0, 2):
        target, log = fresh(f"target-{number}"), tmp_path / f"log-{number}"
        killed = killed_in_fork(number, partial(small, target, log))
        if killed:
            try:
                small(target, log)
            except NodeExistsError:  # All was done but to tell others that the place is free again.
                assert mode == "w-"
                assert all(name.endswith((".xzarr3-lease", ".__lock")) for name in left(target))
                small(target, log, "w")
        check(target, contents(reference))
        if not killed:
            break
        assert made(log) <= 20, "at most everything twice"
    assert number > 20


def write_elsewhere(kind: str, url: str, options: str, log: str, mode: Any) -> None:
    """What the program does: a forked process could not use obstore."""
    store = xzarr3.open_store(url, json.loads(options), mode="a")

    def work() -> None:
        _unless_done(lambda: write(store, Path(log), pause=0.02, mode=mode), Path(f"{log}-done"))

    if kind == "service":
        _in_threads(work)()
    else:
        with cluster() as client, client.as_current():
            work()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), [("cluster", "w"), ("service", "w-"), ("service", "w")])
def test_a_program_is_killed(tmp_path: Path, kind: str, mode: Any, request: pytest.FixtureRequest) -> None:
    """All of its processes at once, as a machine that is taken away."""
    url, options, log = str(tmp_path / "target"), None, tmp_path / "log"
    if kind == "service":
        server = request.getfixturevalue("s3_server")
        url, options = f"s3://{server.bucket()}/target", server.storage_options
    target = xzarr3.open_store(url, options, mode="a")
    wanted = uninterrupted(MemoryStore(), log, mode, None)
    if mode == "w":
        old(target)
    program = "import sys, test_resume; test_resume.write_elsewhere(*sys.argv[1:])"
    command = [sys.executable, "-c", program, kind, url, json.dumps(options), str(log), mode]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    for kills, most in enumerate((7, 15, 10**9)):
        child = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            end = time.monotonic() + 180
            while child.poll() is None and made(log) < most and time.monotonic() < end:
                time.sleep(0.005)
            assert child.poll() == (0 if kills == 2 else None)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    check(target, wanted)
    assert BLOCKS <= made(log) <= BLOCKS + 16 * kills


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is entered is stored, and a killed process renews no lease."""
    monkeypatch.setattr(lease, "_keep", lambda _: None)


@pytest.mark.parametrize("step", [29, pytest.param(11, marks=pytest.mark.slow)])
def test_cut_off_at_changes(tmp_path: Path, mode: Any, group: str | None, at_once: None, step: int) -> None:
    log, kept, reference = tmp_path / "log", MemoryStore(), MemoryStore()
    if mode == "w":
        old(kept, group)
    wanted = uninterrupted(reference, log, mode, group)
    repeated, number = 0, -step
    while True:
        number += step
        target = MortalStore(contents(kept))
        log.unlink(missing_ok=True)
        cut_off = target.killed_at(number, lambda target=target: write(target, log, mode=mode, group=group))
        before = made(log)
        if cut_off:
            forget_process()
            try:
                write(target, log, mode=mode, group=group)
            except NodeExistsError:
                assert mode == "w-"
                write(target, log, mode="w", group=group)
        check(target, wanted)
        repeated = max(repeated, made(log) - BLOCKS if before < BLOCKS else 0)
        if not cut_off:
            break
    assert repeated < BLOCKS / 2
    assert number > TILES


class BrokenError(Exception):
    pass


def blocks(log: Path, act: Callable[[], object], name: str | bool = "the-same") -> xr.Dataset:
    """A dataset of 10 blocks, which are entered in the log; something happens before each is made."""

    def make(block: Any) -> Any:
        act()
        return _made(block, str(log), 0)

    source = da.from_array(np.arange(20.0), chunks=2)
    return xr.Dataset({"t": ("x", source.map_blocks(make, dtype="f8", meta=np.empty(0), name=name))})


MADE = np.arange(20.0) + 1


def failing(log: Path, after: int) -> xr.Dataset:
    """Ten blocks, of which no more can be computed once there are ``after`` in the log."""

    def fail() -> None:
        if made(log) >= after:
            raise BrokenError

    return blocks(log, fail, f"the-same-{log.name}")


def cut_off(store: Any, log: Path, after: int = 4, **options: Any) -> pytest.ExceptionInfo[BrokenError]:
    with pytest.raises(BrokenError) as caught:
        to_zarr(failing(log, after), store, resume=True, **options)
    return caught


def go_on(store: Any, log: Path, blocks: int = 10, **options: Any) -> None:
    """Write what is left; so many blocks are computed in all."""
    to_zarr(failing(log, 100), store, resume=True, **options)
    assert made(log) == blocks
    np.testing.assert_array_equal(opened(store, options.get("group"))["t"], MADE)


@pytest.fixture(params=["memory", "local", "fsspec", "obstore", "wrapped"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    if request.param == "fsspec":
        return xzarr3.open_store(f"memory://{tmp_path.name}-{time.time_ns()}/store", mode="a")
    if request.param == "obstore":
        return xzarr3.open_store(pytest.importorskip("obstore.store").MemoryStore(), mode="a")
    return MemoryStore() if request.param == "memory" else WrapperStore(MemoryStore())


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_errors_keep_what_was_written(
    anywhere: Store, zarr_format: Any, mode: Any, group: str | None, tmp_path: Path
) -> None:
    log, reference, options = tmp_path / "log", MemoryStore(), {"zarr_format": zarr_format}
    for store in (anywhere, reference):
        if mode == "w":
            old(store, group, **options)
    options |= {"mode": mode, "group": group}
    before = contents(anywhere)
    to_zarr(failing(tmp_path / "other", 100), reference, **options)
    for n in (4, 7):
        (note,) = cut_off(anywhere, log, n, **options).value.__notes__
        assert "the same call with resume=True writes what is left" in note
        if mode == "w":
            assert contents(anywhere).items() >= before.items(), "it is still to be seen"
    go_on(anywhere, log, **options)
    check(anywhere, contents(reference))


def test_trees_are_taken_up(store: Store, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    def write(target: Store, after: int, folder: Path = tmp_path) -> None:
        below = {f"/{name}": failing(folder / name, after).rename(t=f"t_{name}") for name in "ab"}
        tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"n": 1}), **below})
        to_zarr(tree, target, resume=target is store)

    reference = MemoryStore()
    write(reference, 100, tmp_path / "other")
    refused(BrokenError, *(lambda n=n: write(store, n) for n in (4, 7)))
    write(store, 100)
    assert [made(tmp_path / name) for name in "ab"] == [10, 10]
    check(store, contents(reference))


def test_interrupted_by_the_user(store: Store, tmp_path: Path) -> None:
    log, interrupts = tmp_path / "log", [KeyboardInterrupt()]

    def interrupt() -> None:
        if made(log) == 4 and interrupts:
            raise interrupts.pop()

    def write(target: Any) -> None:
        to_zarr(blocks(log, interrupt), target, resume=True)

    (error,) = refused(KeyboardInterrupt, lambda: write(store))
    again = "the same call with resume=True writes what is left"
    assert again in error.__notes__[0]
    killed = resumed_after(6, lambda target: to_zarr(blocks(tmp_path / "other", dict), target, resume=True))
    for cut_off, end in ((store, "has failed"), (killed, "")):
        opens = (partial(open_it, cut_off) for open_it in (xzarr3.open_group, xzarr3.open_dataset))
        for error in refused(xzarr3.NodeNotFoundError, *opens, match=r"a write with resume=True is not"):
            assert f"{end}; {again}" in str(error)
            if isinstance(cut_off, LocalStore):
                assert ": it has only values of writes that are not complete, in" in str(error)
    write(store)
    assert made(log) == 10
    np.testing.assert_array_equal(opened(store)["t"], MADE)


def resumed_after(number: int, write: Callable[[MortalStore], object]) -> MortalStore:
    """What somebody had begun to write when he was killed at the n-th change."""
    target = MortalStore()
    assert target.killed_at(number, lambda: write(target), gone=True)
    return target


@pytest.mark.parametrize("how", ["chunk", "xzarr3", "zarr", "netcdf", "packed"])
def test_sources_that_are_known_by_their_content(tmp_path: Path, how: str, at_once: None) -> None:
    """What is made anew has the same names, so that the plan is the same."""
    values = xr.Dataset({"t": (("x", "y"), np.arange(600.0).reshape(20, 30))}, coords={"x": np.arange(20)})
    packed = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1} if how == "packed" else {}
    encoding: Any = {"t": {"chunks": (4, 10), **packed}}
    engine = {"netcdf": "scipy", "packed": "xzarr3"}.get(how, how)
    if engine == "xzarr3":
        to_zarr(values, tmp_path / "source", encoding=encoding)
    elif how != "chunk":
        pytest.importorskip(engine)
        kind: Any = {"engine": engine} if how == "netcdf" else {"encoding": encoding, "zarr_format": 2}
        {"zarr": values.to_zarr, "netcdf": values.to_netcdf}[how](tmp_path / "source", **kind)

    def source() -> xr.Dataset:
        if how == "chunk":
            found = values.chunk(x=4, y=10)
        else:
            found = xr.open_dataset(tmp_path / "source", engine=engine, chunks={"x": 4, "y": 10})
        found = found.drop_encoding().copy() if how != "packed" else found
        return ((found["t"] - found["t"].mean("x")) * 2 + 1).to_dataset(name="t")

    def write(target: Any) -> None:
        to_zarr(source(), target, resume=True, encoding={"t": {"chunks": (2, 10)}})

    target = resumed_after(20, write)
    assert len([key for key in target.list() if "/c/" in key]) >= 4
    write(target)  # Another plan would be warned of, which is an error in tests, and find the place taken.
    np.testing.assert_array_equal(opened(target)["t"], source()["t"])


def test_without_resume_nothing_is_kept(anywhere: Store, tmp_path: Path) -> None:
    refused(BrokenError, lambda: to_zarr(failing(tmp_path / "log", 4), anywhere))
    assert contents(anywhere) == {}


OTHER_PLANS: dict[str, Callable[[Path], tuple[xr.Dataset, Any]]] = {
    "name": lambda log: (failing(log.with_name("another-name"), 100), {}),
    "blocks": lambda log: (failing(log, 100).chunk(x=2) * 2, {}),
    "encoding": lambda log: (failing(log, 100), {"t": {"compressors": None}}),
    "no resume": lambda log: (failing(log, 100), {}),
}


@pytest.mark.parametrize("other", OTHER_PLANS)
def test_another_plan_removes_what_is_left(anywhere: Store, tmp_path: Path, mode: Any, other: str) -> None:
    if mode == "w":
        old(anywhere)
    log = tmp_path / "log"
    cut_off(anywhere, log, mode=mode)
    assert left(anywhere)
    data, encoding = OTHER_PLANS[other](log)
    resume, told = other != "no resume", "a different write .* was interrupted, so none of it is resumed"
    with pytest.warns(UserWarning, match=told) if resume else nullcontext():
        to_zarr(data, anywhere, mode="w", resume=resume, encoding=encoding)
    assert made(log.with_name("another-name")) == 10 or made(log) == 4 + 10
    assert not left(anywhere)
    np.testing.assert_array_equal(opened(anywhere)["t"], MADE * (2 if other == "blocks" else 1))


@pytest.mark.parametrize("top", ["", "kept/", "t/", ".xzarr3-staged-x/", f".xzarr3-staged-{'0' * 32}/../../"])
def test_a_lease_that_names_what_no_write_has_staged_removes_nothing(tmp_path: Path, top: str) -> None:
    store, log = MemoryStore(), tmp_path / "log"
    cut_off(store, log)
    to_zarr(xr.Dataset({"t": ("x", np.arange(3.0))}), store, group="kept")
    store.set(".xzarr3-staged-x/about", b"kept")
    said = json.loads(bytes(store.get(".xzarr3-lease") or b""))
    assert said["top"]
    store.set(".xzarr3-lease", json.dumps({**said, "top": top}).encode())
    refused(NodeExistsError, lambda: to_zarr(failing(log, 100), store, resume=True), match="not empty")
    assert opened(store, "kept").sizes["x"] == 3
    assert store.get(".xzarr3-staged-x/about") == b"kept"


def test_attributes_and_values_in_memory_may_change(tmp_path: Path) -> None:
    store, log = LocalStore(tmp_path / "store"), tmp_path / "log"

    def write(after: int, n: int) -> None:
        data = failing(log, after).assign_coords(x=np.arange(20) * n)
        data["t"].attrs["n"] = data.attrs["n"] = n
        to_zarr(data, store, resume=True)

    refused(BrokenError, lambda: write(4, 0))
    write(100, 3)
    assert made(log) == 10
    found = opened(store)
    assert found.attrs["n"] == found["t"].attrs["n"] == 3
    np.testing.assert_array_equal(found["x"], np.arange(20) * 3)


PACKED: dict[str, Any] = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
DAYS: dict[str, Any] = {"units": "days since 2000-01-01", "dtype": "i8"}


@pytest.mark.parametrize(
    ("encoding", "others"),
    [
        *((PACKED, other) for other in ({"scale_factor": 0.25}, {"_FillValue": -2}, {"add_offset": 1.0})),
        *((DAYS, {"units": other}) for other in ("hours since 2000-01-01", "days since 1999-01-01")),
    ],
    ids=range(5),
)
def test_what_is_only_in_attributes_makes_another_plan(encoding: Any, others: Any) -> None:
    """Units and scales, of which the layout of an array does not tell."""
    values: Any = np.arange(0, 8 * 86400, 86400).astype("M8[s]") if encoding is DAYS else np.arange(8.0)
    data = xr.Dataset({"t": ("x", values)}).chunk(x=2)
    target = resumed_after(8, lambda target: to_zarr(data, target, resume=True, encoding={"t": encoding}))
    with pytest.warns(UserWarning, match="a different write"):
        to_zarr(data, target, resume=True, mode="w", encoding={"t": {**encoding, **others}})
    np.testing.assert_array_equal(opened(target)["t"], values)


def test_what_a_write_was_to_replace_is_not_taken_for_its_own(anywhere: Store, tmp_path: Path) -> None:
    """Its document may be the same; its values are those of another write."""
    log = tmp_path / "log"
    to_zarr(xr.Dataset({"t": ("x", np.full(20, -1.0))}), anywhere, encoding={"t": {"chunks": (2,)}})
    cut_off(anywhere, log, 4, mode="w")
    refused(NodeExistsError, lambda: to_zarr(failing(log, 100), anywhere, resume=True), match="not empty")
    assert opened(anywhere)["t"].values.tolist() == [-1.0] * 20
    go_on(anywhere, log, mode="w")


def test_names_that_change_are_told(store: Store, tmp_path: Path) -> None:
    nameless = partial(blocks, tmp_path / "log", name=False)
    refused(ZeroDivisionError, lambda: to_zarr(nameless(lambda: 1 // 0), store, resume=True))
    with pytest.warns(UserWarning, match="dask has given its arrays other names"):
        to_zarr(nameless(dict), store, resume=True)
    np.testing.assert_array_equal(opened(store)["t"], MADE)


def test_units_that_are_left_out_are_made_again(store: Store, tmp_path: Path) -> None:
    log, encoding = tmp_path / "log", {"t": {"fill_value": 0.0}}
    refused(BrokenError, lambda: to_zarr(failing(log, 4) * 0, store, resume=True, encoding=encoding))
    to_zarr(failing(log, 100) * 0, store, resume=True, encoding=encoding)
    assert made(log) == 4 + 10
    assert not [key for key in contents(store) if "/c/" in key]


def test_values_that_are_gone_are_written_again(tmp_path: Path) -> None:
    store, log = LocalStore(tmp_path / "store"), tmp_path / "log"
    cut_off(store, log, 8)
    next((tmp_path / "store").glob(".xzarr3-staged-*/new/t/c/*")).unlink()
    to_zarr(failing(log, 100), store, resume=True)
    assert made(log) > 10
    np.testing.assert_array_equal(opened(store)["t"], MADE)


def test_tiles_are_done_whose_units_are_all_there() -> None:
    target = xzarr3.create_array(MemoryStore(), shape=(6, 4), chunks=2, dtype="i4")
    target[:4] = 1
    target[:2, 2:] = 0
    regions = Regions(plan_axes([Steps(2)] * 2, (0, 0), ((2, 4), (2, 2)), 4), (0, 0))
    assert done_tiles(target, regions) == {(0, 0)}
    target[4:] = 1
    assert done_tiles(target, regions) == {(0, 0), (1, 0), (1, 1)}
    target.write_empty_chunks = True
    target[:2, 2:] = 0
    assert done_tiles(target, regions) == {(0, 0), (0, 1), (1, 0), (1, 1)}


class Wrapped(WrapperStore):
    """A wrapper of the user, which says nothing of crashes."""


@pytest.mark.parametrize("wrap", [lambda store: store, CacheStore, Wrapped])
def test_a_crash_makes_values_doubtful(wrap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, store = tmp_path / "log", wrap(LocalStore(tmp_path / "store"))
    cut_off(store, log, 4)
    host, boot = lease.boot()
    monkeypatch.setattr(xzarr3.commit.replace, "boot", lambda: (host, "another"))
    with pytest.warns(UserWarning, match="fsync=True to keep them"):
        go_on(store, log, 4 + 10, mode="w")
    monkeypatch.undo()
    for at, fsync, is_told in (
        ((host, boot), False, False), ((host, "b"), False, True), ((host, "b"), True, False),
        (("h", boot), False, False),
    ):  # fmt: skip
        holder = lease.Holder(host=at[0], boot=at[1])
        assert may_be_lost(LocalStore(tmp_path, fsync=fsync), holder) == is_told


def test_a_write_that_goes_on_is_not_taken_up(anywhere: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    errors: list[Any] = []

    def again() -> None:
        if not errors:
            call = partial(to_zarr, data, anywhere, resume=True)
            errors.extend(refused(NodeExistsError, call, match="another writer is writing '/'"))

    data = blocks(log, again)
    to_zarr(data, anywhere, resume=True)
    assert made(log) == 10
    assert not hasattr(errors[0], "__notes__")
    np.testing.assert_array_equal(opened(anywhere)["t"], MADE)


def test_who_has_lost_the_place_does_not_put_anything_there(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def take() -> None:
        if made(log) == 5:
            store.set(Place.of(store, V3, "").lease().key, b'{"owner": "another"}')

    with pytest.raises(xzarr3.ConflictError, match="another writer replaced it"):
        to_zarr(blocks(log, take), store, resume=True)
    assert "zarr.json" not in contents(store)


def test_what_cannot_be_resumed_is_refused_at_once(tmp_path: Path) -> None:
    class Unlisted(MemoryStore):
        listable = False

    class Lasting(MemoryStore):
        erasable = False

    data = failing(tmp_path / "log", 4)
    others: list[Any] = [{"compute": False}, {"append_dim": "x"}, {"region": {"x": slice(20)}}, {"mode": "a"}]
    calls = (partial(to_zarr, data, MemoryStore(), resume=True, **options) for options in others)
    refused(ValueError, *calls, match=r"resume=True goes with mode='w-' .* simply repeated")
    for store, match in (
        (tmp_path / "a.zip", r"resume=True keeps .* keeps nothing of a write"),
        (Unlisted(), "cannot be read and listed"),
        (Lasting(), "cannot erase"),
    ):
        refused(StoreCapabilityError, partial(to_zarr, data, store, resume=True), match=match)
    assert made(tmp_path / "log") == 0
