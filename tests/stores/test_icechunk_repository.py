"""Repositories of Icechunk: reads of branches, tags and snapshots, and writes that are one commit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
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
from _slow import slow
from _things import refused
from distributed import KilledWorker

import xzarr3
from xzarr3 import ArgumentError, ConflictError, NodeExistsError, StoreCapabilityError, StoreError

icechunk = pytest.importorskip("icechunk")

VALUES = np.arange(40, dtype="float64").reshape(5, 8)
CHUNKS = {"t": {"chunks": (2, 4)}}


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))


def dataset(first: int = 0) -> xr.Dataset:
    time = np.arange(first, first + 5)
    return xr.Dataset({"t": (("time", "x"), VALUES + first)}, {"time": time, "x": np.arange(8)}, {"a": 1})


def stored(repo: Any, branch: str = "main") -> xr.Dataset:
    """What xzarr3 reads from a branch, which is what zarr-python and xarray's own engine read."""
    found = xr.open_dataset(repo, engine="xzarr3", branch=branch).load()
    session = repo.readonly_session(branch)
    xr.testing.assert_identical(xr.open_zarr(session.store, consolidated=False, chunks=None).load(), found)
    return found


def messages(repo: Any, branch: str = "main") -> list[str]:
    """The messages of the commits to a branch, the newest first, without that of the repository itself."""
    return [each.message for each in repo.ancestry(branch=branch)][:-1]


# Reading


@pytest.mark.parametrize("opened", [xzarr3.open_dataset, xr.open_dataset])
def test_icechunk_repository_is_read_at_a_branch_a_tag_and_a_snapshot(repo: Any, opened: Any) -> None:
    options = {} if opened is xzarr3.open_dataset else {"engine": "xzarr3", "chunks": {}}
    first = xzarr3.to_zarr(dataset(), repo, message="first").store.snapshot
    repo.create_tag("v1", first)
    repo.create_branch("other", first)
    xzarr3.to_zarr(dataset(5), repo, append_dim="time", message="second")
    both = xr.concat([dataset(), dataset(5)], "time")
    for versions, expected in (
        ({}, both), ({"branch": "main"}, both), ({"tag": "v1"}, dataset()),
        ({"snapshot": first}, dataset()), ({"branch": "other"}, dataset()),
    ):  # fmt: skip
        xr.testing.assert_identical(opened(repo, **options, **versions).load(), expected)
    names = {opened(repo, **options, **each).t.data.name for each in ({}, {"tag": "v1"})}
    assert len(names) == 2  # Dask's: results of one snapshot are not those of another.
    assert messages(repo) == ["second", "first"]


def test_icechunk_repository_opens_in_every_function(repo: Any) -> None:
    tree = xr.DataTree.from_dict({"/": dataset(), "/below": dataset().isel(time=0).drop_vars("time") + 7})
    first = xzarr3.to_zarr(tree, repo)
    version = {"snapshot": first.store.snapshot}
    xzarr3.to_zarr(dataset(1), repo, mode="w", branch="main")
    assert xzarr3.open(repo, "below/t", storage_options=version)[7] == VALUES[0, 7] + 7
    assert xzarr3.open_array(repo, "t")[0, 0] == 1
    assert xzarr3.open_group(repo, storage_options=version).attrs == {"a": 1}
    xr.testing.assert_identical(xr.open_datatree(repo, engine="xzarr3", **version).load(), tree)
    xr.testing.assert_identical(xzarr3.open_datatree(repo, **version).load(), tree)
    assert (first["t"][1, 1], first.store.snapshot) == (VALUES[1, 1], version["snapshot"])


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"branch": "mian"}, "no branch 'mian'; did you mean 'main'"),
        ({"branch": "v1"}, "no branch 'v1'; it is a tag"),
        ({"tag": "main"}, "no tag 'main'; pass branch="),
        ({"tag": "v2"}, "no tag 'v2'; accepted: 'v1'"),
        ({"snapshot": "1CECHNKREP0F1RSTCMTX"}, r"no snapshot '1CECH\w+'; list snapshots with"),
        ({"snapshot": "short"}, "no snapshot 'short'"),
        ({"tag": "v1", "branch": "main"}, "'branch', 'tag' given for an Icechunk repository; accepted: one"),
        ({"storage_options": {"anon": True}}, "'anon' given for an Icechunk repository; accepted: one of"),
    ],
)
def test_icechunk_repository_version_that_it_lacks(repo: Any, versions: Any, said: str) -> None:
    repo.create_tag("v1", xzarr3.to_zarr(dataset(), repo).store.snapshot)
    for opened in (xzarr3.open_dataset, lambda *a, **b: xr.open_dataset(*a, engine="xzarr3", **b)):
        refused(StoreError, said, partial(opened, repo, **versions))


def test_icechunk_repository_misuse_is_refused(repo: Any, tmp_path: Path) -> None:
    repo.create_tag("v1", xzarr3.to_zarr(dataset(), repo).store.snapshot)
    tip, ds = repo.lookup_branch("main"), dataset()
    session = repo.writable_session("main")
    for kind, said, call in (
        (StoreError, "no branch 'v1'; it is a tag", lambda: xzarr3.to_zarr(ds, repo, branch="v1")),
        (StoreError, "no branch 'new'; accepted: 'main'", lambda: xzarr3.to_zarr(ds, repo, branch="new")),
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
        (xzarr3.ReadOnlyError, "is read-only; write to", lambda: xzarr3.create_group(repo, "g")),
    ):  # fmt: skip
        refused(kind, said, call)
    assert repo.lookup_branch("main") == tip
    assert not session.has_uncommitted_changes


def test_icechunk_repository_reads_are_explained_and_traced(repo: Any) -> None:
    xzarr3.to_zarr(dataset().chunk(time=2), repo, encoding=CHUNKS)
    ds = xr.open_dataset(repo, engine="xzarr3", chunks={})
    part = ds.t[:2, :5]
    explained = part.xzarr3.explain()
    with xzarr3.trace() as trace:
        np.testing.assert_array_equal(part, VALUES[:2, :5])
    assert explained.requests == 2
    assert trace.arrays["/t"]["requests"] == explained.requests  # Documents are counted by themselves.
    with xzarr3.trace() as trace:
        xzarr3.to_zarr(dataset(5).chunk(time=2), repo, append_dim="time")
    assert trace.arrays["/t"]["put"] >= 6


# Writing


def grown(repo: Any, **options: Any) -> xr.Dataset:
    xzarr3.to_zarr(dataset(5).chunk(time=3, x=5), repo, append_dim="time", **options)
    return xr.concat([dataset(), dataset(5)], "time")


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


def as_one_commit(repo: Any, change: Callable[..., xr.Dataset]) -> None:
    """Each change is one commit; one whose values fail is none."""
    xzarr3.to_zarr(dataset().chunk(time=3), repo, encoding=CHUNKS, message="first")
    xr.testing.assert_identical(stored(repo), dataset())
    expected = change(repo, message="second")
    xr.testing.assert_identical(stored(repo).drop_attrs(), expected.drop_attrs())
    assert messages(repo) == ["second", "first"]


CHANGES = [grown, changed_region, replaced, added]


@pytest.mark.parametrize("change", CHANGES)
def test_icechunk_repository_write_is_one_commit(repo: Any, change: Any) -> None:
    as_one_commit(repo, change)


def boom(block: np.ndarray) -> np.ndarray:
    if block.size and block.flat[-1] == VALUES[-1, -1]:
        raise RuntimeError("boom")
    return block


def failing() -> xr.Dataset:
    """A dataset whose last block cannot be computed."""
    ds = dataset().chunk(time=1)
    return ds.assign(t=(ds.t.dims, ds.t.data.map_blocks(boom, dtype=float, meta=np.empty((0, 0)))))


def commits_nothing_after_an_error(repo: Any) -> None:
    xzarr3.to_zarr(dataset(), repo)
    tip = repo.lookup_branch("main")
    for options in (
        {"mode": "w"}, {"mode": "a"}, {"append_dim": "time", "check_labels": False},
        {"region": {"time": slice(5)}},
    ):  # fmt: skip
        ds = failing().drop_vars("x") if "region" in options else failing()
        refused(RuntimeError, "boom", partial(xzarr3.to_zarr, ds, repo, **options))
    assert repo.lookup_branch("main") == tip
    xr.testing.assert_identical(stored(repo), dataset())


def test_icechunk_repository_commits_nothing_after_an_error(repo: Any) -> None:
    commits_nothing_after_an_error(repo)


def test_icechunk_repository_messages(repo: Any) -> None:
    xzarr3.to_zarr(dataset(), repo)
    xzarr3.to_zarr(dataset(5), repo, append_dim="time")
    xzarr3.to_zarr(dataset().t, repo, group="below")
    xzarr3.to_zarr(dataset()[["x"]], repo, group="coordinates")
    assert messages(repo)[::-1] == [
        "xzarr3.to_zarr, mode 'w-': 't' in '/'",
        "xzarr3.to_zarr, append along 'time': 't' in '/'",
        "xzarr3.to_zarr, mode 'w-': 't' in '/below'",
        "xzarr3.to_zarr, mode 'w-': coordinates in '/coordinates'",
    ]


def test_icechunk_repository_write_that_changes_nothing_is_no_commit(repo: Any) -> None:
    first = xzarr3.to_zarr(dataset(), repo)
    nothing = dataset().isel(time=slice(0))
    again = xzarr3.to_zarr(nothing, repo, append_dim="time")
    assert again.store.snapshot == first.store.snapshot
    xr.testing.assert_identical(stored(repo), dataset())


# Resuming


class Blocks:
    """Makes ``dataset()`` in blocks of one row, and fails at the block number ``last``, if it comes."""

    def __init__(self, last: int = 1000) -> None:
        self.last, self.made = last, 0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        if block.size:
            self.made += 1
            if self.made > self.last:
                raise RuntimeError("boom")
        return block

    def dataset(self, first: int = 0, rows: int = 40) -> xr.Dataset:
        values = da.from_array(np.arange(8.0 * rows).reshape(rows, 8) + first, chunks=(1, 8))
        name = f"blocks-{first}-{rows}"  # The same in other processes.
        values = values.map_blocks(self, dtype=float, name=name, meta=np.empty((0, 0)))
        ds = xr.Dataset({"t": (("time", "x"), values)}, {"time": np.arange(rows)}, {"a": 1})
        return ds.assign(u=ds.t.T * 2)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes of any size are saved in sixteen parts, one task at a time."""
    monkeypatch.setattr("xzarr3.dask.plan._SMALLEST_PART", 1)
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("group", ["", "below/deep"])
@pytest.mark.parametrize("mode", ["w-", "w"])
def test_icechunk_repository_resume_writes_what_is_left_as_one_commit(
    either: Any, mode: Any, group: str
) -> None:
    options: Any = {"mode": mode, "group": group, "resume": True}
    if mode == "w":
        xzarr3.to_zarr(dataset(), either, group=group, message="old")
    before = messages(either)
    for last in (0, 25, 12):
        blocks = Blocks(last)
        with pytest.raises(RuntimeError, match="boom") as caught:
            xzarr3.to_zarr(blocks.dataset(), either, **options)
        assert "the same call with resume=True writes what is left" in caught.value.__notes__[0]
        assert messages(either) == before
        assert {*either.list_branches()} == {"main", f"unfinished/main/{group}".rstrip("/")}
    blocks = Blocks()
    written = xzarr3.to_zarr(blocks.dataset().assign_attrs(a=2), either, message="new", **options)
    assert blocks.made < 20
    assert (messages(either), {*either.list_branches()}) == (["new", *before], {"main"})
    assert written.store.snapshot == either.lookup_branch("main")
    found = xr.open_dataset(either, engine="xzarr3", group=group)
    xr.testing.assert_identical(found.load(), Blocks().dataset().assign_attrs(a=2).load())


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("other", ["values", "chunks", "commit"])
def test_icechunk_repository_resume_of_another_write_begins_anew(repo: Any, other: str) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        xzarr3.to_zarr(Blocks(25).dataset(), repo, group="here", resume=True)
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
def test_icechunk_repository_resume_after_an_end_at_each_step(
    repo: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is in the branch before the last step but one, and all is after it."""
    old = xzarr3.to_zarr(dataset(), repo).store.snapshot

    def gone(*given: Any, **options: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(icechunk.Repository, step, gone)
        with pytest.raises(SystemExit):
            xzarr3.to_zarr(Blocks().dataset(), repo, mode="w", resume=True, message="new")
    assert (repo.lookup_branch("main") == old) == (step != "delete_branch")
    blocks = Blocks()
    with nullcontext() if step != "delete_branch" else pytest.warns(UserWarning, match="does not continue"):
        if step == "delete_branch":  # All was done, so that this is another write.
            xzarr3.to_zarr(dataset(), repo, mode="w", message="between")
        xzarr3.to_zarr(blocks.dataset(), repo, mode="w", resume=True, message="new")
    assert (blocks.made == 0) == (step == "reset_branch")
    xr.testing.assert_identical(xr.open_dataset(repo, engine="xzarr3").load(), Blocks().dataset().load())
    assert {*repo.list_branches()} == {"main"}


@pytest.mark.usefixtures("in_parts")
def test_icechunk_repository_resume_is_refused_a_branch_that_moved(repo: Any) -> None:
    def other() -> None:
        xzarr3.to_zarr(dataset(), repo, group="elsewhere", message="theirs")

    ours = meanwhile(dataset(), other)
    with pytest.raises(ConflictError, match=r"branch 'main'.*came first.*repeat the call"):
        xzarr3.to_zarr(ours, repo, resume=True)
    assert messages(repo) == ["theirs"]


@pytest.mark.usefixtures("in_parts")
def test_icechunk_repository_resume_tells_branches_and_paths_apart(repo: Any) -> None:
    places: Any = [("main", "a/b"), ("main/a", "b"), ("main.a", "b"), ("main", "a.b")]
    for branch in ("main/a", "main.a"):
        repo.create_branch(branch, repo.lookup_branch("main"))
    for branch, group in places:
        with pytest.raises(RuntimeError, match="boom"):
            xzarr3.to_zarr(Blocks(25).dataset(), repo, branch=branch, group=group, resume=True)
    for branch, group in places[1:3]:  # Those that have a branch of their own, which no commit has moved.
        blocks = Blocks()
        xzarr3.to_zarr(blocks.dataset(), repo, branch=branch, group=group, resume=True)
        assert blocks.made < 20
    assert {*repo.list_branches()} == {
        "main",
        "main/a",
        "main.a",
        "unfinished/main/a/b",
        "unfinished/main/a.b",
    }


def test_icechunk_repository_resume_needs_version_2(tmp_path: Path) -> None:
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    repo = icechunk.Repository.create(storage, spec_version=1)
    xzarr3.to_zarr(dataset(), repo)
    with pytest.raises(StoreCapabilityError, match=r"version 2.*upgrade_icechunk_repository"):
        xzarr3.to_zarr(dataset(), repo, mode="w", resume=True)
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

    def __call__(self, block: np.ndarray) -> np.ndarray:
        try:
            return super().__call__(block)
        except RuntimeError:
            os.kill(os.getpid(), signal.SIGKILL)
            raise


@pytest.mark.slow
def test_icechunk_repository_resume_after_kills(repo: Any, tmp_path: Path) -> None:
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
def test_icechunk_repository_resume_on_a_cluster(either: Any, client: Any, tmp_path: Path) -> None:
    """Each part begins with forks of what the parts before have written."""
    flag = tmp_path / "fail"
    flag.touch()

    def block(values: np.ndarray) -> np.ndarray:
        if values.size and values.flat[0] >= 200 and flag.exists():
            raise RuntimeError("boom")
        return values

    values = da.from_array(np.arange(320.0).reshape(40, 8), chunks=(1, 8))
    values = values.map_blocks(block, dtype=float, name="blocks", meta=np.empty((0, 0)))
    ds = xr.Dataset({"t": (("time", "x"), values)}).chunk(time=3)
    with client.as_current(), dask.config.set(scheduler=None):
        refused(RuntimeError, "boom", lambda: xzarr3.to_zarr(ds, either, resume=True, encoding=CHUNKS))
        assert messages(either) == []
        flag.unlink()
        xzarr3.to_zarr(ds, either, resume=True, encoding=CHUNKS, message="new")
    assert messages(either) == ["new"]
    np.testing.assert_array_equal(xr.open_dataset(either, engine="xzarr3").t, np.arange(320.0).reshape(40, 8))


# Other processes


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster() as started:
        yield started


def sessions_of_the_user(repo: Any) -> None:
    """Arrays of a session that the user commits."""
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
    with pytest.raises(StoreCapabilityError, match=r"parts of the same chunks of '/a'.*several calls"):
        xzarr3.store(parts, [half, half], regions=regions)
    another = xzarr3.open_array(repo.writable_session("main"), "b", mode="r+")
    with pytest.raises(StoreCapabilityError, match="several sessions of Icechunk"):
        xzarr3.store([da.ones((5, 5))] * 2, [other, another])
    assert not twice.has_uncommitted_changes


JOBS = [*(slow(each) for each in CHANGES), commits_nothing_after_an_error, slow(sessions_of_the_user)]


@pytest.mark.parametrize("job", JOBS)
def test_icechunk_repository_written_by_processes(repo: Any, job: Any, processes: Any) -> None:
    with dask.config.set(scheduler="processes", pool=processes):
        job(repo) if job not in CHANGES else as_one_commit(repo, job)


@pytest.mark.slow
@pytest.mark.parametrize("job", [*CHANGES, commits_nothing_after_an_error, sessions_of_the_user])
def test_icechunk_repository_written_by_a_cluster(repo: Any, client: Any, job: Any) -> None:
    with client.as_current():
        job(repo) if job not in CHANGES else as_one_commit(repo, job)


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [2, 0], ids=["repeated", "given up"])
def test_icechunk_repository_worker_killed_while_it_writes(repo: Any, tmp_path: Path, allowed: int) -> None:
    """The branch has all if dask writes the blocks again, and nothing if it gives up."""
    xzarr3.to_zarr(dataset(), repo)
    tip, ds = repo.lookup_branch("main"), dataset(5).chunk(time=1)
    killed = tmp_path / "killed"

    def dying(block: np.ndarray) -> np.ndarray:
        with suppress(FileExistsError):
            killed.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    ds = ds.assign(t=(ds.t.dims, ds.t.data.map_blocks(dying, dtype=float, meta=np.empty((0, 0)))))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": allowed}),
        cluster(0) as client,
        client.as_current(),
    ):
        workers = Workers(client, tmp_path / "workers")
        try:
            workers.fill_up()
            with nullcontext() if allowed else pytest.raises(KilledWorker):
                xzarr3.to_zarr(ds, repo, append_dim="time")
        finally:
            workers.end()
    assert killed.exists()
    assert (repo.lookup_branch("main") == tip) == (not allowed)
    expected = xr.concat([dataset(), dataset(5)], "time") if allowed else dataset()
    xr.testing.assert_identical(stored(repo), expected)


@pytest.mark.slow
def test_icechunk_repository_trace_counts_what_workers_write(repo: Any, client: Any) -> None:
    with client.as_current(), xzarr3.trace() as trace:
        xzarr3.to_zarr(dataset().chunk(time=3), repo, encoding=CHUNKS)
        np.testing.assert_array_equal(xr.open_dataset(repo, engine="xzarr3", chunks={}).t, VALUES)
    assert trace.processes > 1
    assert (trace.arrays["/t"]["put"], trace.arrays["/t"]["get"]) == (6, 6)


# Conflicts


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


def meanwhile(ds: xr.Dataset, call: Callable[[], object]) -> xr.Dataset:
    """The dataset; while its first block is computed, ``call`` is called."""
    once = [call]

    def block(values: np.ndarray) -> np.ndarray:
        with suppress(IndexError):
            once.pop()()
        return values

    ds = ds.chunk()
    return ds.assign(t=(ds.t.dims, ds.t.data.map_blocks(block, dtype=float, meta=np.empty((0, 0)))))


def append_elsewhere(processes: Any, repo: Any, first: int) -> Any:
    """Append to a repository in another process."""
    return processes.submit(_append, pickle.dumps((repo, first)))


def _append(at: bytes) -> None:
    repo, first = pickle.loads(at)
    xzarr3.to_zarr(dataset(first), repo, append_dim="time", message="theirs")


def test_icechunk_repository_one_of_two_appends_is_refused(either: Any, processes: Any) -> None:
    xzarr3.to_zarr(dataset(), either, message="first")
    ours = meanwhile(dataset(6), lambda: append_elsewhere(processes, either, 5).result(300))
    said = "branch 'main'.*/t: zarr metadata double update.*/time: .*repeat the call"
    with pytest.raises(ConflictError, match=f"(?s){said}"):
        xzarr3.to_zarr(ours, either, append_dim="time", message="ours")
    assert messages(either) == ["theirs", "first"]
    xr.testing.assert_identical(stored(either), xr.concat([dataset(), dataset(5)], "time"))
    xzarr3.to_zarr(dataset(10), either, append_dim="time", message="ours")
    assert messages(either) == ["ours", "theirs", "first"]


def region(repo: Any, first: int, value: float) -> None:
    part = dataset().drop_vars("x").isel(time=slice(first, first + 2)) * 0 + value
    xzarr3.to_zarr(part, repo, region={"time": slice(first, first + 2)}, message=f"{value}")


def test_icechunk_repository_conflict_names_the_chunks(repo: Any) -> None:
    xzarr3.to_zarr(dataset(), repo, encoding=CHUNKS)
    ours = meanwhile(dataset().drop_vars("x").isel(time=slice(1, 3)), lambda: region(repo, 2, 7.0))
    with pytest.raises(ConflictError, match=r"/t: chunk double update of chunks .*\(1, 0\)"):
        xzarr3.to_zarr(ours, repo, region={"time": slice(1, 3)})
    expected = dataset()
    expected.t[2:4] = 7
    np.testing.assert_array_equal(stored(repo).t, expected.t)


def test_icechunk_repository_changes_of_other_chunks_are_both_kept(repo: Any) -> None:
    xzarr3.to_zarr(dataset(), repo, encoding=CHUNKS)
    ours = meanwhile(dataset().drop_vars(("x", "time")).isel(time=slice(2)) + 1, lambda: region(repo, 2, 7.0))
    xzarr3.to_zarr(ours, repo, region={"time": slice(2)}, message="ours")
    expected = dataset()
    expected.t[:2] += 1
    expected.t[2:4] = 7
    np.testing.assert_array_equal(stored(repo).t, expected.t)
    assert messages(repo)[:2] == ["ours", "7.0"]


# S3


@pytest.mark.parametrize("job", [*CHANGES, commits_nothing_after_an_error, sessions_of_the_user])
def test_icechunk_repository_on_s3(remote: Any, client: Any, job: Any) -> None:
    with client.as_current():
        job(remote) if job not in CHANGES else as_one_commit(remote, job)


def test_icechunk_repository_on_s3_two_processes_append_at_once(remote: Any, processes: Any) -> None:
    """Whoever commits first; the commit of one is whole, and the other is told while or after it commits."""
    xzarr3.to_zarr(dataset(), remote, message="first")
    appending = {first: append_elsewhere(processes, remote, first) for first in (5, 6)}
    errors = {first: future.exception(300) for first, future in appending.items()}
    (done,) = [first for first, error in errors.items() if error is None]
    assert isinstance(errors[11 - done], (ConflictError, ArgumentError))
    assert messages(remote) == ["theirs", "first"]
    xr.testing.assert_identical(stored(remote), xr.concat([dataset(), dataset(done)], "time"))
