"""Icechunk: sessions, which the user commits, and repositories, in which each write is one commit."""

import itertools
import json
import multiprocessing
import os
import pickle
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from _clusters import Workers, cluster
from _conformance import contents
from _slow import slow
from _things import refused
from distributed import KilledWorker

import xzarr3
from xzarr3 import ArgumentError, ConflictError, InvalidKeyError, NodeExistsError, ReadOnlyError, open_store
from xzarr3.errors import StoreCapabilityError, StoreError
from xzarr3.stores import WrapperStore, cut, foreign

icechunk = pytest.importorskip("icechunk")

ZARR_KEY = re.compile(r"(.+/)?(zarr\.json|c(/[0-9]+)*)")
VALUES = np.arange(40, dtype="float64").reshape(5, 8)
CHUNKS = {"t": {"chunks": (2, 4)}}


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))


@pytest.fixture
def remote(s3_server: Any) -> Any:
    storage = icechunk.s3_storage(
        bucket=s3_server.bucket(), prefix="repository", region="us-east-1", endpoint_url=s3_server.url,
        allow_http=True, force_path_style=True, access_key_id="test-key", secret_access_key="test-secret",
    )  # fmt: skip
    return icechunk.Repository.create(storage)


@pytest.fixture(params=["repo", "remote"])
def either(request: pytest.FixtureRequest) -> Any:
    """A repository in a directory, and one in S3."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def session(repo: Any) -> Iterator[Any]:
    """A session. Whatever a test does with it, it then holds documents and chunks only."""
    made = repo.writable_session("main")
    yield made
    assert [key for key in open_store(made.store).list() if not ZARR_KEY.fullmatch(key)] == []


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster() as started:
        yield started


def dataset(first: int = 0) -> xr.Dataset:
    time = np.arange(first, first + 5)
    return xr.Dataset({"t": (("time", "x"), VALUES + first)}, {"time": time, "x": np.arange(8)}, {"a": 1})


def both(first: int = 5) -> xr.Dataset:
    return xr.concat([dataset(), dataset(first)], "time")


def mapped(ds: xr.Dataset, block: Callable[[np.ndarray], np.ndarray]) -> xr.Dataset:
    lazy = ds.t.data.map_blocks(block, dtype=float, meta=np.empty((0, 0)))
    return ds.assign(t=(ds.t.dims, lazy))


def boom(block: np.ndarray) -> np.ndarray:
    if block.size and block.flat[-1] % 40 == VALUES[-1, -1]:
        raise RuntimeError("boom")
    return block


def failing(first: int = 0) -> xr.Dataset:
    return mapped(dataset(first).chunk(time=1), boom)


def read(store: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine="xzarr3", **options).load()


def stored(repo: Any, branch: str = "main") -> xr.Dataset:
    """What xzarr3 reads from a branch, which is what zarr-python and xarray's own engine read."""
    found = read(repo, branch=branch)
    xr.testing.assert_identical(by_zarr_python(repo.readonly_session(branch).store), found)
    return found


def by_zarr_python(store: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine="zarr", consolidated=False).load()


def messages(repo: Any, branch: str = "main") -> list[str]:
    """The messages of the commits to a branch, the newest first, without that of the repository itself."""
    return [each.message for each in repo.ancestry(branch=branch)][:-1]


@pytest.mark.parametrize(
    "opened", [xzarr3.open_dataset, partial(xr.open_dataset, engine="xzarr3", chunks={})]
)
def test_repository_is_read_at_a_branch_a_tag_and_a_snapshot(repo: Any, opened: Any) -> None:
    first = xzarr3.to_zarr(dataset(), repo, message="first").store.snapshot
    repo.create_tag("v1", first)
    repo.create_branch("other", first)
    xzarr3.to_zarr(dataset(5), repo, append_dim="time", message="second")
    for versions, expected in (
        ({}, both()), ({"branch": "main"}, both()), ({"tag": "v1"}, dataset()),
        ({"snapshot": first}, dataset()), ({"branch": "other"}, dataset()),
    ):  # fmt: skip
        xr.testing.assert_identical(opened(repo, **versions).load(), expected)
    names = {opened(repo, **each).t.data.name for each in ({}, {"tag": "v1"})}
    assert len(names) == 2  # Dask's: results of one snapshot are not those of another.
    assert messages(repo) == ["second", "first"]
    tree = xr.DataTree.from_dict({"/": dataset(1), "/below": dataset().isel(time=0).drop_vars("time") + 7})
    version = {"snapshot": xzarr3.to_zarr(tree, repo, mode="w").store.snapshot}
    old = xzarr3.open(repo, "t", storage_options=version)
    xzarr3.to_zarr(dataset(3), repo, mode="w", branch="main")
    assert (xzarr3.open_array(repo, "t")[0, 0], old[0, 0], old.store.snapshot) == (3, 1, version["snapshot"])
    assert xzarr3.open_group(repo, storage_options=version).attrs == {"a": 1}
    for opened_tree in (xzarr3.open_datatree, partial(xr.open_datatree, engine="xzarr3")):
        xr.testing.assert_identical(opened_tree(repo, **version).load(), tree)


LACKING: list[tuple[dict[str, Any], str]] = [
    ({"branch": "v1"}, "no branch 'v1'; accepted: branches 'main', to read also tags 'v1'"),
    ({"tag": "main"}, "no tag 'main'; accepted: branches 'main', to read also tags 'v1'"),
    ({"snapshot": "1CECHNKREP0F1RSTCMTX"}, r"no snapshot '1CECH\w+'.* snapshots, as repository.ancestry"),
    ({"snapshot": "short"}, "no snapshot 'short'"),
    ({"tag": "v1", "branch": "main"}, "'branch', 'tag' given for an Icechunk repository; accepted: one"),
    ({"storage_options": {"anon": True}}, "'anon' given for an Icechunk repository; accepted: one of"),
]


def test_repository_misuse_is_refused(repo: Any, tmp_path: Path) -> None:
    repo.create_tag("v1", xzarr3.to_zarr(dataset(), repo).store.snapshot)
    tip, ds = repo.lookup_branch("main"), dataset()
    session, opened = repo.writable_session("main"), (xzarr3.open_dataset, read)
    for kind, said, call in (
        *((StoreError, said, partial(each, repo, **given)) for given, said in LACKING for each in opened),
        (StoreError, "no branch 'v1'; .*also tags 'v1'", lambda: xzarr3.to_zarr(ds, repo, branch="v1")),
        (StoreError, "no branch 'new'; accepted", lambda: xzarr3.to_zarr(ds, repo, branch="new")),
        (ArgumentError, "'branch' given with a dict", lambda: xzarr3.to_zarr(ds, {}, branch="main")),
        (ArgumentError, "'message' given with a Session", lambda: xzarr3.to_zarr(ds, session, message="m")),
        (ArgumentError, "'tag' given with a dict", lambda: xzarr3.open_dataset({}, tag="v1")),
        (ArgumentError, "'tag' given with a PosixPath",
         lambda: xr.open_dataset(tmp_path, engine="xzarr3", tag="v1")),
        (xzarr3.StoreOptionError, "tags and snapshots cannot be written",
         lambda: xzarr3.to_zarr(ds, repo, storage_options={"tag": "v1"})),
        (ArgumentError, "compute=False does not go with", lambda: xzarr3.to_zarr(ds, repo, compute=False)),
        (NodeExistsError, "is not empty", lambda: xzarr3.to_zarr(ds, repo)),
        (NodeExistsError, "is not empty", lambda: xzarr3.to_zarr(ds, repo, resume=True)),
        (ArgumentError, "simply repeated",
         lambda: xzarr3.to_zarr(ds, repo, resume=True, append_dim="time")),
        (ReadOnlyError, "is read-only; write to", lambda: xzarr3.create_group(repo, "g")),
    ):  # fmt: skip
        refused(kind, said, call)
    assert repo.lookup_branch("main") == tip
    assert not session.has_uncommitted_changes


def test_repository_reads_are_explained_and_traced(repo: Any) -> None:
    xzarr3.to_zarr(dataset().chunk(time=2), repo, encoding=CHUNKS)
    part = xr.open_dataset(repo, engine="xzarr3", chunks={}).t[:2, :5]
    explained = part.xzarr3.explain()
    with xzarr3.trace() as trace:
        np.testing.assert_array_equal(part, VALUES[:2, :5])
    # Documents are counted by themselves.
    assert explained.requests == trace.arrays["/t"]["requests"] == 2
    with xzarr3.trace() as trace:
        xzarr3.to_zarr(dataset(5).chunk(time=2), repo, append_dim="time")
    assert trace.arrays["/t"]["put"] >= 6


def grown(repo: Any, **options: Any) -> xr.Dataset:
    xzarr3.to_zarr(dataset(5).chunk(time=3, x=5), repo, append_dim="time", **options)
    return both()


def changed_region(repo: Any, **options: Any) -> xr.Dataset:
    part = xr.open_dataset(repo, engine="xzarr3", chunks={}).isel(time=slice(1, 4), x=slice(3, 8)) + 100
    xzarr3.to_zarr(part, repo, region="auto", **options)
    expected = dataset()
    expected.t[1:4, 3:] += 100
    return expected


def replaced(repo: Any, **options: Any) -> xr.Dataset:
    old = xr.open_dataset(repo, engine="xzarr3", chunks={})
    xzarr3.to_zarr((old + 1).chunk(time=5), repo, mode="w", **options)
    return dataset() + 1


def added(repo: Any, **options: Any) -> xr.Dataset:
    old = xr.open_dataset(repo, engine="xzarr3", chunks={})
    xzarr3.to_zarr(xr.Dataset({"u": old.t.T * 2, "t": old.t + 1}), repo, mode="a", **options)
    return dataset().assign(u=dataset().t.T * 2, t=dataset().t + 1)


def commits_nothing_after_an_error(repo: Any) -> None:
    xzarr3.to_zarr(dataset(), repo)
    tip = repo.lookup_branch("main")
    for ds, options in (
        *((failing(), {"mode": mode}) for mode in "wa"),
        (failing(), {"append_dim": "time", "check_labels": False}),
        (failing().drop_vars("x"), {"region": {"time": slice(5)}}),
    ):
        refused(RuntimeError, "boom", partial(xzarr3.to_zarr, ds, repo, **options))  # type: ignore[arg-type]
    assert repo.lookup_branch("main") == tip
    xr.testing.assert_identical(stored(repo), dataset())


def sessions_of_the_user(repo: Any) -> None:
    session = repo.writable_session("main")
    array = xzarr3.create_array(session, "a", shape=(10, 9), chunks=(3, 4), dtype="int64")
    xzarr3.store(da.arange(90, chunks=30).reshape(10, 9).rechunk((4, 4)), array)
    xzarr3.create_array(session, "b", data=da.ones((5, 5), chunks=2), shards=(4, 4), chunks=(2, 2))
    assert session.has_uncommitted_changes
    session.commit("both")
    after = zarr.open_group(repo.readonly_session("main").store, mode="r")
    np.testing.assert_array_equal(after["a"][...], np.arange(90).reshape(10, 9))
    np.testing.assert_array_equal(after["b"][...], 1)
    twice = repo.writable_session("main")
    half, other = (xzarr3.open_array(twice, name, mode="r+") for name in ("a", "b"))
    parts = [da.zeros((5, 9), chunks=5), da.zeros((5, 9), chunks=5)]
    regions = [(slice(5), slice(None)), (slice(5, 10), slice(None))]
    same = partial(xzarr3.store, parts, [half, half], regions=regions)
    refused(StoreCapabilityError, r"parts of the same chunks of '/a'.*several calls", same)
    another = xzarr3.open_array(repo.writable_session("main"), "b", mode="r+")
    mixed = partial(xzarr3.store, [da.ones((5, 5))] * 2, [other, another])
    refused(StoreCapabilityError, "several sessions of Icechunk", mixed)
    assert not twice.has_uncommitted_changes


CHANGES = [grown, changed_region, replaced, added]
JOBS = [*CHANGES, commits_nothing_after_an_error, sessions_of_the_user]


@pytest.mark.parametrize(("where", "job"), [
    *(("threads", job) for job in JOBS[:-1]),
    ("processes", commits_nothing_after_an_error),
    *(slow("processes", job) for job in (*CHANGES, sessions_of_the_user)),
    *(slow(where, job) for where in ("cluster", "S3") for job in JOBS),
])  # fmt: skip
def test_repository_write_is_one_commit_or_none(where: str, job: Any, request: Any) -> None:
    repo = request.getfixturevalue("remote" if where == "S3" else "repo")
    scheduler: Any = nullcontext()
    if where == "processes":
        pool = request.getfixturevalue("processes")
        scheduler = dask.config.set(scheduler="processes", pool=pool)
    elif where != "threads":
        scheduler = request.getfixturevalue("client").as_current()
    with scheduler:
        if job not in CHANGES:
            job(repo)
            return
        xzarr3.to_zarr(dataset().chunk(time=3), repo, encoding=CHUNKS, message="first")
        xr.testing.assert_identical(stored(repo), dataset())
        expected = job(repo, message="second")
        xr.testing.assert_identical(stored(repo).drop_attrs(), expected.drop_attrs())
        assert messages(repo) == ["second", "first"]


def test_repository_messages_of_what_changes_something(repo: Any) -> None:
    first = xzarr3.to_zarr(dataset(), repo)
    again = xzarr3.to_zarr(dataset().isel(time=slice(0)), repo, append_dim="time")
    assert again.store.snapshot == first.store.snapshot
    xr.testing.assert_identical(stored(repo), dataset())
    xzarr3.to_zarr(dataset(5), repo, append_dim="time")
    xzarr3.to_zarr(dataset().t, repo, group="below")
    xzarr3.to_zarr(dataset()[["x"]], repo, group="coordinates")
    assert messages(repo)[::-1] == [
        "xzarr3.to_zarr, mode 'w-': 't' in '/'",
        "xzarr3.to_zarr, append along 'time': 't' in '/'",
        "xzarr3.to_zarr, mode 'w-': 't' in '/below'",
        "xzarr3.to_zarr, mode 'w-': coordinates in '/coordinates'",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [2, 0], ids=["repeated", "given up"])
def test_repository_worker_killed_while_it_writes(repo: Any, tmp_path: Path, allowed: int) -> None:
    """The branch has all if dask writes the blocks again, and nothing if it gives up."""
    xzarr3.to_zarr(dataset(), repo)
    tip, killed = repo.lookup_branch("main"), tmp_path / "killed"

    def dying(block: np.ndarray) -> np.ndarray:
        with suppress(FileExistsError):
            killed.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": allowed}),
        cluster(0) as client,
        client.as_current(),
    ):
        workers = Workers(client, tmp_path / "workers")
        try:
            workers.fill_up()
            with nullcontext() if allowed else pytest.raises(KilledWorker):
                xzarr3.to_zarr(mapped(dataset(5).chunk(time=1), dying), repo, append_dim="time")
        finally:
            workers.end()
    assert killed.exists()
    assert (repo.lookup_branch("main") == tip) == (not allowed)
    xr.testing.assert_identical(stored(repo), both() if allowed else dataset())


@pytest.mark.slow
def test_repository_trace_counts_what_workers_write(repo: Any, client: Any) -> None:
    with client.as_current(), xzarr3.trace() as trace:
        xzarr3.to_zarr(dataset().chunk(time=3), repo, encoding=CHUNKS)
        np.testing.assert_array_equal(xr.open_dataset(repo, engine="xzarr3", chunks={}).t, VALUES)
    assert trace.processes > 1
    # Two of the six units lie at the end of the array, and are looked for before they are stored.
    assert (trace.arrays["/t"]["put"], trace.arrays["/t"]["get"]) == (6, 8)


def meanwhile(ds: xr.Dataset, call: Callable[[], object]) -> xr.Dataset:
    """The dataset; while its first block is computed, ``call`` is called."""
    once = [call]

    def block(values: np.ndarray) -> np.ndarray:
        with suppress(IndexError):
            once.pop()()
        return values

    return mapped(ds.chunk(), block)


def append_elsewhere(processes: Any, repo: Any, first: int) -> Any:
    return processes.submit(_append, pickle.dumps((repo, first)))


def _append(at: bytes) -> None:
    repo, first = pickle.loads(at)
    xzarr3.to_zarr(dataset(first), repo, append_dim="time", message="theirs")


def test_repository_one_of_two_appends_is_refused(either: Any, processes: Any) -> None:
    xzarr3.to_zarr(dataset(), either, message="first")
    ours = meanwhile(dataset(6), lambda: append_elsewhere(processes, either, 5).result(300))
    said = "(?s)branch 'main'.*/t: zarr metadata double update.*/time: .*repeat the call"
    refused(ConflictError, said, lambda: xzarr3.to_zarr(ours, either, append_dim="time", message="ours"))
    assert messages(either) == ["theirs", "first"]
    xr.testing.assert_identical(stored(either), both())
    xzarr3.to_zarr(dataset(10), either, append_dim="time", message="ours")
    assert messages(either) == ["ours", "theirs", "first"]


def test_repository_on_s3_two_processes_append_at_once(remote: Any, processes: Any) -> None:
    """Whoever commits first; the commit of one is whole, and the other is told while or after it commits."""
    xzarr3.to_zarr(dataset(), remote, message="first")
    appending = {first: append_elsewhere(processes, remote, first) for first in (5, 6)}
    errors = {first: future.exception(300) for first, future in appending.items()}
    (done,) = [first for first, error in errors.items() if error is None]
    assert isinstance(errors[11 - done], (ConflictError, ArgumentError))
    assert messages(remote) == ["theirs", "first"]
    xr.testing.assert_identical(stored(remote), both(done))


@pytest.mark.parametrize("first", [1, 0], ids=["of the same chunks", "of other chunks"])
def test_repository_changes_of_chunks_conflict_or_are_both_kept(repo: Any, first: int) -> None:
    def write(part: xr.Dataset, at: int, message: str) -> None:
        xzarr3.to_zarr(part, repo, region={"time": slice(at, at + 2)}, message=message)

    xzarr3.to_zarr(dataset(), repo, encoding=CHUNKS)
    expected, old = dataset(), dataset().drop_vars(("x", "time"))
    theirs, mine = old.isel(time=slice(2, 4)) * 0 + 7, old.isel(time=slice(first, first + 2)) + 1
    ours = meanwhile(mine, lambda: write(theirs, 2, "theirs"))
    if first:
        said = r"/t: chunk double update of chunks .*\(1, 0\)"
        refused(ConflictError, said, lambda: write(ours, first, "ours"))
    else:
        write(ours, first, "ours")
        expected.t[:2] += 1
    expected.t[2:4] = 7
    np.testing.assert_array_equal(stored(repo).t, expected.t)
    assert messages(repo)[:-1] == (["theirs"] if first else ["ours", "theirs"])


class Blocks:
    """Makes ``dataset()`` in blocks of one row, and fails at the block number ``last``, if it comes."""

    def __init__(self, last: int = 1000) -> None:
        self.last, self.made = last, 0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        if block.size:
            self.made += 1
            if self.made > self.last:
                self.fail()
        return block

    def fail(self) -> None:
        raise RuntimeError("boom")

    def dataset(self, first: int = 0, rows: int = 40) -> xr.Dataset:
        values = da.from_array(np.arange(8.0 * rows).reshape(rows, 8) + first, chunks=(1, 8))
        name = f"blocks-{first}-{rows}"  # The same in other processes.
        values = values.map_blocks(self, dtype=float, name=name, meta=np.empty((0, 0)))
        ds = xr.Dataset({"t": (("time", "x"), values)}, {"time": np.arange(rows)}, {"a": 1})
        return ds.assign(u=ds.t.T * 2)


def broken_off(repo: Any, last: int = 25, **options: Any) -> Any:
    write = partial(xzarr3.to_zarr, Blocks(last).dataset(), repo, resume=True, **options)
    return refused(RuntimeError, "boom", write)[0]


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes of any size are saved in sixteen parts, one task at a time."""
    monkeypatch.setattr("xzarr3.dask.plan._SMALLEST_PART", 1)
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("group", ["", "below/deep"])
@pytest.mark.parametrize("mode", ["w-", "w"])
def test_resume_writes_what_is_left_as_one_commit(either: Any, mode: Any, group: str) -> None:
    options: Any = {"mode": mode, "group": group}
    if mode == "w":
        xzarr3.to_zarr(dataset(), either, group=group, message="old")
    before = messages(either)
    for last in (0, 25, 12):
        error = broken_off(either, last, **options)
        assert "the same call with resume=True writes what is left" in error.__notes__[0]
        assert messages(either) == before
        assert {*either.list_branches()} == {"main", f"unfinished/main/{group}".rstrip("/")}
    blocks = Blocks()
    ds = blocks.dataset().assign_attrs(a=2)
    written = xzarr3.to_zarr(ds, either, message="new", resume=True, **options)
    assert blocks.made < 20
    assert (messages(either), {*either.list_branches()}) == (["new", *before], {"main"})
    assert written.store.snapshot == either.lookup_branch("main")
    xr.testing.assert_identical(read(either, group=group), Blocks().dataset().assign_attrs(a=2).load())


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("other", ["values", "chunks", "commit"])
def test_resume_of_another_write_begins_anew(repo: Any, other: str) -> None:
    broken_off(repo, group="here")
    if other == "commit":
        xzarr3.to_zarr(dataset(), repo, group="elsewhere")
    blocks = Blocks()
    encoding: Any = {"t": {"chunks": (1, 4)}} if other == "chunks" else {}
    ds = blocks.dataset(first=int(other == "values"))
    with pytest.warns(UserWarning, match=r"branch 'unfinished/main/here'.*all is written"):
        xzarr3.to_zarr(ds, repo, group="here", resume=True, encoding=encoding, message="new")
    assert blocks.made >= 40
    assert (messages(repo)[0], {*repo.list_branches()}) == ("new", {"main"})
    np.testing.assert_array_equal(xr.open_dataset(repo, engine="xzarr3", group="here").t, ds.t)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("step", ["create_branch", "reset_branch", "delete_branch"])
def test_resume_after_an_end_at_each_step(repo: Any, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = xzarr3.to_zarr(dataset(), repo).store.snapshot
    blocks, options = Blocks(), {"mode": "w", "resume": True, "message": "new"}

    def gone(*given: Any, **options: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(icechunk.Repository, step, gone)
        refused(SystemExit, None, lambda: xzarr3.to_zarr(Blocks().dataset(), repo, **options))  # type: ignore[arg-type]
    assert (repo.lookup_branch("main") == old) == (step != "delete_branch")
    with nullcontext() if step != "delete_branch" else pytest.warns(UserWarning, match="does not continue"):
        if step == "delete_branch":  # All was done, so that this is another write.
            xzarr3.to_zarr(dataset(), repo, mode="w", message="between")
        xzarr3.to_zarr(blocks.dataset(), repo, **options)  # type: ignore[arg-type]
    assert (blocks.made == 0) == (step == "reset_branch")
    xr.testing.assert_identical(xr.open_dataset(repo, engine="xzarr3").load(), Blocks().dataset().load())
    assert {*repo.list_branches()} == {"main"}


@pytest.mark.usefixtures("in_parts")
def test_resume_is_refused_a_branch_that_moved(repo: Any) -> None:
    ours = meanwhile(dataset(), lambda: xzarr3.to_zarr(dataset(), repo, group="elsewhere", message="theirs"))
    said = r"branch 'main'.*came first.*repeat the call"
    refused(ConflictError, said, lambda: xzarr3.to_zarr(ours, repo, resume=True))
    assert messages(repo) == ["theirs"]


@pytest.mark.usefixtures("in_parts")
def test_resume_tells_branches_and_paths_apart(repo: Any) -> None:
    places: Any = [("main", "a/b"), ("main/a", "b"), ("main.a", "b"), ("main", "a.b")]
    for branch in ("main/a", "main.a"):
        repo.create_branch(branch, repo.lookup_branch("main"))
    for branch, group in places:
        broken_off(repo, branch=branch, group=group)
    for branch, group in places[1:3]:  # Those that have a branch of their own, which no commit has moved.
        blocks = Blocks()
        xzarr3.to_zarr(blocks.dataset(), repo, branch=branch, group=group, resume=True)
        assert blocks.made < 20
    left = {f"unfinished/main/{group}" for group in ("a/b", "a.b")}
    assert {*repo.list_branches()} == {"main", "main/a", "main.a", *left}


def test_resume_needs_version_2(tmp_path: Path) -> None:
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)), spec_version=1)
    xzarr3.to_zarr(dataset(), repo)
    again = partial(xzarr3.to_zarr, dataset(), repo, mode="w", resume=True)
    refused(StoreCapabilityError, r"version 2.*upgrade_icechunk_repository", again)
    assert {*repo.list_branches()} == {"main"}


def _resumed_in_process(at: bytes) -> None:
    from xzarr3.dask import plan

    plan._SMALLEST_PART = 1
    repo, last, path = pickle.loads(at)
    blocks = Dying(last)
    with dask.config.set(scheduler="sync"):
        xzarr3.to_zarr(blocks.dataset(), repo, resume=True, message="new")
    path.write_text(f"{blocks.made}")


class Dying(Blocks):
    """Blocks whose process is killed in place of the error."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_resume_after_kills(repo: Any, tmp_path: Path) -> None:
    """In new processes, as dask's names of arrays depend on what a process has imported."""
    context = multiprocessing.get_context("spawn")
    for last in (14, 11, 9, 1000):
        at = pickle.dumps((repo, last, tmp_path / "made"))
        process = context.Process(target=_resumed_in_process, args=(at,))
        process.start()
        process.join(300)
        assert process.exitcode == (-signal.SIGKILL if last < 1000 else 0)
        assert messages(repo) == ([] if last < 1000 else ["new"])
    assert int((tmp_path / "made").read_text()) < 20
    xr.testing.assert_identical(xr.open_dataset(repo, engine="xzarr3").load(), Blocks().dataset().load())


@pytest.mark.slow
@pytest.mark.usefixtures("in_parts")
def test_resume_on_a_cluster(either: Any, client: Any, tmp_path: Path) -> None:
    flag = tmp_path / "fail"
    flag.touch()

    def block(values: np.ndarray) -> np.ndarray:
        if values.size and values.flat[0] >= 200 and flag.exists():
            raise RuntimeError("boom")
        return values

    expected = np.arange(320.0).reshape(40, 8)
    values = da.from_array(expected, chunks=(1, 8))
    values = values.map_blocks(block, dtype=float, name="blocks", meta=np.empty((0, 0)))
    ds = xr.Dataset({"t": (("time", "x"), values)}).chunk(time=3)
    write = partial(xzarr3.to_zarr, ds, either, resume=True, encoding=CHUNKS, message="new")
    with client.as_current(), dask.config.set(scheduler=None):
        refused(RuntimeError, "boom", write)
        assert messages(either) == []
        flag.unlink()
        write()
    assert messages(either) == ["new"]
    np.testing.assert_array_equal(xr.open_dataset(either, engine="xzarr3").t, expected)


def test_session_node_that_is_named_as_chunks_are(session: Any) -> None:
    root = xzarr3.create_group(session.store)
    root.create_group("g").create_array("c", data=np.arange(3))
    root.create_array("c", data=np.array(5))
    store = open_store(session.store)
    for key in ("g/c", "g/c/1", "g/c/1/2"):
        store.erase(key)
        assert (store.get(key), store.get(key, (0, 2)), store.exists(key)) == (None, None, False)
    assert store.list_dir("g/") == ({"g/zarr.json"}, {"g/c/"})
    assert store.list_dir("c/") == ({"c/zarr.json", "c/c"}, set())
    assert [path for path, _ in xzarr3.open_group(store).members(max_depth=None)] == ["c", "g", "g/c"]
    np.testing.assert_array_equal(xzarr3.open_array(store, "g/c")[:], np.arange(3))


@pytest.mark.parametrize("source", ["g/b/x", "g"])
@pytest.mark.parametrize("kind", ["writable", "rearrange"])
def test_session_move(repo: Any, session: Any, source: str, kind: str) -> None:
    root = xzarr3.create_group(session.store)
    root.create_array("g/b/x", data=VALUES, chunks=(2, 4), shards=(4, 8))
    root.create_array("g/y", data=np.array(5))
    root["g"].attrs["title"] = "t"
    root.create_group("new")
    session.commit("first")
    moving = getattr(repo, f"{kind}_session")("main")
    group = xzarr3.open_group(moving.store, mode="r+")
    refused(NodeExistsError, "within the other", lambda: group.move(source, f"{source}/below"))
    there = "g/y" if source == "g/b/x" else "new"
    said = r"key 'g/y/c' is there|key 'new/zarr.json' is there"
    refused(NodeExistsError, said, lambda: group.move(source, there))
    assert not moving.has_uncommitted_changes
    group.move(source, "new/where")
    assert (source in group, "new/where" in group) == (False, True)
    moving.commit("moved")
    after = xzarr3.open_group(repo.readonly_session("main").store)
    assert source not in after
    moved = "new/where" if source == "g/b/x" else "new/where/b/x"
    np.testing.assert_array_equal(after[moved][...], VALUES)
    rest = after["g" if source == "g/b/x" else "new/where"]
    assert (rest["y"][()], dict(rest.attrs)) == (5, {"title": "t"})
    assert zarr.open_group(repo.readonly_session("main").store, mode="r")[moved][1, 2] == VALUES[1, 2]


def test_session_move_that_fails_says_what_to_do(repo: Any, session: Any) -> None:
    xzarr3.create_group(session.store).create_array("a", data=VALUES, chunks=(2, 4))
    session.commit("first")
    rearranged = xzarr3.open_group(repo.rearrange_session("main").store, mode="r+")
    said = r"(?s)rearrange the hierarchy, other write operations"
    refused(StoreError, said, lambda: rearranged.move("a", "new/where"))
    moving = repo.writable_session("main")
    store = open_store(moving.store)
    put = type(store).put

    def failing(self: Any, key: str, pieces: Any) -> None:
        if key.startswith("b/c/1"):
            raise StoreError("no more")
        put(self, key, pieces)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(store), "put", failing)
        (error,) = refused(StoreError, "no more", lambda: xzarr3.open_group(store, mode="r+").move("a", "b"))
    assert "moved in part" in error.__notes__[0]
    moving.discard_changes()
    np.testing.assert_array_equal(xzarr3.open_array(moving.store, "a")[...], VALUES)


def test_session_is_one_store_also_below_others(repo: Any, session: Any) -> None:
    logged = zarr.storage.LoggingStore(session.store, log_level="ERROR")
    xzarr3.to_zarr(dataset().chunk({"time": 2}), logged)
    assert open_store(logged).traits.visible == "at commit"
    xzarr3.to_zarr(dataset(5), WrapperStore(session.store), append_dim="time")
    xr.testing.assert_identical(by_zarr_python(session.store), both())
    assert xzarr3.open_group(xzarr3.ReadOnlyStore(session.store)).attrs == {"a": 1}
    store, other = open_store(session.store), open_store(repo.writable_session("main").store)
    assert open_store(session) is store
    assert (other.identity == store.identity, contents(other)) == (False, {})


def test_session_keys_it_lacks_are_absent_and_refused(session: Any) -> None:
    store = open_store(session.store)
    xzarr3.create_array(store, "a", data=np.arange(4), chunks=2)
    odd = ".zgroup a/.zarray README.md a/.xzarr3-lease a/c/01 a/c/4294967296 a/0.0 a/c.0"
    for key in odd.split():
        assert (store.get(key), store.get(key, (0, 1)), store.exists(key)) == (None, None, False)
        assert store.open(key) is None
        store.erase(key)
        refused(InvalidKeyError, "documents and chunks of Zarr version 3", partial(store.set, key, b"x"))
    chunks = ["a/c/0", "a/c/1"]
    for prefix, keys, children in (
        ("", [*chunks, "a/zarr.json", "zarr.json"], ({"zarr.json"}, {"a/"})),
        ("a/", [*chunks, "a/zarr.json"], ({"a/zarr.json"}, {"a/c/"})),
        ("a/c/", chunks, ({*chunks}, set())), ("none/below/", [], (set(), set())),
    ):  # fmt: skip
        assert (sorted(store.list_prefix(prefix)), store.list_dir(prefix)) == (keys, children)
    create = partial(xzarr3.create_array, session.store, "b", data=np.arange(3), chunk_key_encoding="v2")
    refused(InvalidKeyError, "encoding 'default'", create)


def test_session_byte_ranges(session: Any) -> None:
    store = open_store(session.store)
    xzarr3.create_array(store, "a", data=np.arange(3))
    for key in ("a/zarr.json", "a/c/0"):
        value = store.get(key)
        size = len(value)
        starts, lengths = (-2000, -3, -1, 0, 1, 5, size - 1, size, size + 3), (None, 0, 1, 7, size, 2**50)
        for part in itertools.product(starts, lengths):
            assert store.get(key, part) == cut(value, part), (key, part)


@pytest.mark.parametrize("change", [
    lambda array: array.__setitem__((slice(1, 3), slice(2, 7)), -1),
    lambda array: array.append(np.full((4, 8), 7.0)),
    lambda array: array.append(np.full((5, 3), 7.0), axis=1),
    lambda array: (array.resize((1, 1)), array.resize((5, 8))),
    lambda array: (array.resize((2, 12)), array.resize((7, 3))),
    lambda array: (array.resize((0, 8)), array.append(np.ones((3, 8)))),
], ids=["set", "append", "append along x", "shrink and grow", "both", "to nothing"])  # fmt: skip
@pytest.mark.parametrize("options", [{"chunks": (2, 3)}, {"chunks": (1, 4), "shards": (2, 8)}], ids=repr)
def test_session_arrays_change_as_elsewhere(session: Any, change: Any, options: Any) -> None:
    made = []
    for store in (session.store, {}):
        array = xzarr3.create_array(store, "a", data=VALUES, fill_value=0, **options)
        change(array)
        made.append(xzarr3.open_array(store, "a"))
    np.testing.assert_array_equal(made[0][...], made[1][...])
    np.testing.assert_array_equal(zarr.open_array(session.store, path="a")[...], made[1][...])


def test_session_chunks_beyond_the_end_do_not_come_back(session: Any) -> None:
    xzarr3.create_array(session.store, "a", data=VALUES, chunks=(2, 8), fill_value=0)
    key, store = "a/zarr.json", open_store(session.store)
    document = json.loads(bytes(store.get(key)))
    store.set(key, json.dumps({**document, "shape": [1, 8]}).encode())
    array = xzarr3.open_array(store, "a", mode="r+")
    assert array.shape == (1, 8)
    array.resize((5, 8))
    np.testing.assert_array_equal(array[2:], 0)


def test_session_datasets_are_written_later_copied_and_widened(session: Any) -> None:
    store, threads = session.store, {"scheduler": "threads"}
    later = {"encoding": CHUNKS, "compute": False, "chunkmanager_store_kwargs": threads}
    xzarr3.to_zarr(dataset().chunk(time=2), store, **later).compute()
    xzarr3.copy(store, store, source_path="t", path="copied/t")
    parts = [
        xr.Dataset({"v": ("when", [1.0])}, {"when": np.array([time], "datetime64[ns]")})
        for time in ("2000-01-01", "2000-01-02T12:30")
    ]
    xzarr3.to_zarr(parts[0], store, group="times", encoding={"when": {"units": "days since 2000-01-01"}})
    xzarr3.to_zarr(parts[1], store, group="times", append_dim="when", widen_units=True)
    session.commit("all")
    for engine in ("xzarr3", "zarr"):
        with xr.open_datatree(store, engine=engine, consolidated=False) as found:
            xr.testing.assert_identical(found.to_dataset().load(), dataset())
            np.testing.assert_array_equal(found["copied/t"], VALUES)
            xr.testing.assert_identical(
                found["times"].to_dataset(inherit=False).load(), xr.concat(parts, "when")
            )


@pytest.mark.parametrize("zarr_format", [2, "3-draft"])
@pytest.mark.parametrize("holds", [False, True])
def test_session_other_formats_are_refused(repo: Any, session: Any, zarr_format: Any, holds: bool) -> None:
    if holds:
        xzarr3.to_zarr(dataset(), session)
        session.commit("first")
    changed, source = repo.writable_session("main"), xzarr3.create_group({}, zarr_format=zarr_format)
    options = {"zarr_format": zarr_format, "overwrite": True}
    refused(
        StoreCapabilityError, r"Icechunk holds format 3 only; pass zarr_f",
        *(partial(xzarr3.to_zarr, dataset(), place, mode="w", zarr_format=zarr_format)
          for place in (changed, repo)),
        partial(xzarr3.create_group, changed, **options), partial(xzarr3.copy, source, changed, **options),
        partial(xzarr3.create_array, changed, shape=3, dtype="i1", **options),
        *([] if holds else [partial(xzarr3.copy, source, changed)]),
    )  # fmt: skip
    assert not changed.has_uncommitted_changes


def test_session_what_would_be_erased_before_it_is_read_is_refused(session: Any) -> None:
    store, said = session.store, "would be erased before they are read; load them first"
    xzarr3.to_zarr(dataset(), store)
    ours = xr.open_dataset(store, engine="xzarr3", chunks={}) + 1
    theirs = xr.open_dataset(store, engine="zarr", chunks={}, consolidated=False) + 1
    refused(
        ValueError, said,
        lambda: xzarr3.to_zarr(ours, store, mode="w"),
        lambda: xzarr3.to_zarr(theirs, store, mode="w"),
        lambda: xzarr3.create_array(store, "t", data=xzarr3.from_zarr(store, "t") + 1, overwrite=True),
    )  # fmt: skip
    xr.testing.assert_identical(by_zarr_python(store), dataset())
    xzarr3.to_zarr(xr.open_dataset(store, engine="xzarr3") + 1, store, mode="w")
    array = xzarr3.open_array(store, "t", mode="r+")
    turned = xzarr3.from_zarr(array)[::-1]
    refused(ValueError, "the same call overwrites", lambda: xzarr3.store(turned, array))
    np.testing.assert_array_equal(array[...], VALUES + 1)


def test_session_what_a_transaction_lacks_says_so(session: Any) -> None:
    ds, source = dataset(), xzarr3.create_group({})
    refused(
        StoreCapabilityError, "IcechunkStore session of branch 'main'",
        lambda: xzarr3.to_zarr(ds, session.store, resume=True),
        lambda: xzarr3.to_zarr(ds, session.store, consolidated=True),
        lambda: xzarr3.copy(source, session.store, consolidated=True),
    )  # fmt: skip
    assert list(open_store(session.store).list()) == []
    xzarr3.to_zarr(ds, session.store)
    consolidate = partial(xzarr3.consolidate_metadata, session.store)
    refused(StoreCapabilityError, "no consolidated metadata", consolidate)


def test_session_failures_leave_no_new_node_and_say_what_is_gone(session: Any) -> None:
    store = session.store
    refused(RuntimeError, "boom", lambda: xzarr3.to_zarr(failing(), store, group="new"))
    assert [key for key in open_store(store).list() if "new" in key] == []
    xzarr3.to_zarr(dataset(), store)
    (error,) = refused(RuntimeError, "boom", lambda: xzarr3.to_zarr(failing(), store, mode="w"))
    assert "discard the changes of the transaction, or write again" in error.__notes__[-1]
    assert list(open_store(store).list()) == []
    xzarr3.to_zarr(dataset(), store, mode="w", encoding={"t": {"chunks": (2, 8)}})
    refused(RuntimeError, "boom", lambda: xzarr3.to_zarr(failing(40), store, append_dim="time"))
    xr.testing.assert_identical(by_zarr_python(store), dataset())
    array = zarr.open_array(store, path="t", mode="r+")
    array.resize((10, 8))  # Unlike xzarr3, it does not erase what is there already.
    assert np.isnan(array[5:]).all()


def test_session_that_is_read_only_or_was_committed(repo: Any, session: Any) -> None:
    array = xzarr3.create_array(session.store, "a", data=np.arange(4))
    session.commit("a")
    refused(
        ReadOnlyError, "read-only since its session was committed; write to a new",
        lambda: array.set(0, 7),
        lambda: xzarr3.create_array(session.store, "b", data=np.arange(4)),
        lambda: xzarr3.to_zarr(dataset(), session.store, mode="w"),
    )  # fmt: skip
    np.testing.assert_array_equal(array[:], np.arange(4))
    store, other = (open_store(repo.readonly_session("main").store) for _ in range(2))
    assert (store.writeable, store.traits.tells_changes) == (False, True)
    refused(ReadOnlyError, None, lambda: xzarr3.create_array(store, "b", shape=3, dtype="i4"))
    assert other.identity == store.identity
    assert other.__dask_tokenize__() == store.__dask_tokenize__()
    assert xzarr3.from_zarr(other, "a").name == xzarr3.from_zarr(store, "a").name


def test_session_pickles_are_snapshots(repo: Any, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of forks are not written: their chunks would be lost, as nothing merges them."""

    def elsewhere(thing: object) -> Any:
        data = pickle.dumps(thing)
        monkeypatch.setattr(foreign, "_live", type(foreign._live)())
        return pickle.loads(data)

    xzarr3.create_array(session.store, "a", data=np.arange(4))
    session.commit("a")
    array = xzarr3.open_array(repo.readonly_session("main").store, "a")
    twin = elsewhere(array)
    assert twin.store is not array.store
    assert twin.store.identity == array.store.identity
    np.testing.assert_array_equal(twin[:], np.arange(4))
    said = r"cannot be sent to other processes.*readonly_session"
    writable = xzarr3.open_array(repo.writable_session("main").store, "a")
    refused(StoreError, said, lambda: pickle.dumps(writable))
    array = xzarr3.open_array(repo.writable_session("main").fork().store, "a", mode="r+")
    array[0] = 7
    twin = elsewhere(array)
    assert twin[0] == 7
    refused(ReadOnlyError, "changes would be lost", lambda: twin.set(0, 8))


def test_session_scheduler_of_other_processes_is_refused(session: Any) -> None:
    """Where a store around it hides the session, which is forked otherwise; before anything is erased."""
    ds = dataset()
    logged = zarr.storage.LoggingStore(session.store, log_level="ERROR")
    xzarr3.to_zarr(ds, logged)
    array = xzarr3.open_array(logged, "t", mode="r+")
    with dask.config.set(scheduler="processes"):
        refused(
            StoreCapabilityError, "scheduler='threads'",
            lambda: xzarr3.to_zarr(ds.chunk(), logged, mode="w"),
            lambda: xzarr3.create_array(logged, "t", data=da.ones(3), overwrite=True),
            lambda: xzarr3.store(da.ones((5, 8)), array),
        )  # fmt: skip
    xr.testing.assert_identical(by_zarr_python(session.store), ds)
    with dask.config.set(scheduler="processes"):
        options = {"scheduler": "threads"}
        xzarr3.to_zarr(ds.chunk() + 1, session.store, mode="w", chunkmanager_store_kwargs=options)
    with dask.config.set(scheduler="single-threaded"):
        xzarr3.store(da.ones((5, 8)), xzarr3.open_array(session.store, "t", mode="r+"))
    np.testing.assert_array_equal(zarr.open_array(session.store, path="t")[...], 1)
