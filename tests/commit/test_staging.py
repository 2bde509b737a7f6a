"""How what was written takes its place, while others write to the same place or were killed there."""

import errno
import itertools
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from _conformance import contents, refused, run_threads
from _damage import os_error
from _killed import (
    KilledError,
    MortalStore,
    UnreadableStore,
    end_at_change,
    killed_everywhere,
    killed_in_fork,
    left,
    opened,
)
from _processes import processes, run_processes
from _slow import slow
from _unprivileged import run_unprivileged

import xzarr3
from xzarr3 import LocalStore, MemoryStore, NodeExistsError, Store, StoreError, to_zarr
from xzarr3.commit import directory, keys
from xzarr3.commit.lease import Lease, lease_key
from xzarr3.nodes.documents import store_documents as store_documents_of_nodes

pytestmark = pytest.mark.usefixtures("one_task_at_a_time")
DAY = 86400
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def filled(value: float, *names: str) -> xr.Dataset:
    return xr.Dataset({name: ("x", np.full(4, float(value))) for name in names or ("t",)})


BESIDE = {
    ".DS_Store": b"a", "._x": b"b", "Thumbs.db": b"c", "README.md": b"d", "figures/deep/plot.png": b"i",
    "other/c/0": b"j", "c/0": b"k",
}  # fmt: skip


def at_block(n: int, act: Callable[[], object]) -> xr.Dataset:
    """A dataset of fives in four blocks; something happens when the n-th is made, or each of them (0)."""
    made: list[int] = []

    def make(block: Any) -> Any:
        made.append(1)
        if n in (0, len(made)):
            act()
        return block + 5

    source = da.zeros(4, chunks=1).map_blocks(make, dtype="f8", meta=np.zeros(0))
    return xr.Dataset({"t": ("x", source)})


def values(store: Any, group: str | None = None, name: str = "t") -> list[float]:
    with opened(store, group) as found:
        return found[name].values.tolist()  # type: ignore[no-any-return]


def check(store: Any, value: float, group: str | None = None) -> None:
    """A dataset is there as a whole, and nothing is left of what was written besides."""
    assert values(store, group) == [value] * 4
    assert not left(store)


def before_documents(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once, when the next write has stored its chunks."""
    real = store_documents_of_nodes

    def store_documents(*args: Any, **options: Any) -> None:
        for module in (directory, keys):
            monkeypatch.setattr(module, "store_documents", real)
        act()
        real(*args, **options)

    for module in (directory, keys):
        monkeypatch.setattr(module, "store_documents", store_documents)


def grow_old(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    for top in path.glob(".xzarr3-staged-*"):
        for folder, _, _ in os.walk(top):
            os.utime(folder, (then, then))


def lose_directory(root: Path) -> None:
    grow_old(root, 1.1)
    to_zarr(filled(1), root, group="b", mode="w")


def replace_directory(root: Path) -> None:
    (top,) = root.glob(".xzarr3-staged-*")
    top.rename(root.parent / "elsewhere")
    (top / "new").mkdir(parents=True)


def lose_keys(store: MemoryStore) -> None:
    store.erase_values(left(store))


@pytest.mark.parametrize(
    ("n", "lose"),
    [(2, lose_directory), (3, lose_directory), (4, lose_directory), (3, replace_directory), (3, lose_keys)],
    ids=["2 directory", "3 directory", "4 directory", "replaced", "keys"],
)
def test_a_write_that_lost_what_it_staged_fails(tmp_path: Path, n: int, lose: Callable[[Any], None]) -> None:
    store: Any = MemoryStore() if lose is lose_keys else tmp_path / "store"
    to_zarr(filled(0), store, group="a")
    to_zarr(filled(0), store, group="b")
    with pytest.raises(StoreError, match="stored before are gone"):
        to_zarr(at_block(n, lambda: lose(store)), store, group="a", mode="w")
    assert values(store, "a") == [0, 0, 0, 0]
    assert values(store, "b") == ([1] * 4 if lose is lose_directory else [0] * 4)
    if lose is lose_keys:
        assert not left(store)
    elif lose is lose_directory:
        assert not list(store.glob(".xzarr3-staged-*"))


def test_a_long_write_tells_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store, hours, real = MemoryStore(), [0.0], time.time
    for group in (None, "b"):
        to_zarr(filled(0), store, group=group)
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours[0])

    def later() -> None:
        hours[0] += 20

    def other() -> None:
        to_zarr(filled(3), store, group="b", mode="w")
        later()

    for act in (later, other):
        to_zarr(at_block(0, act), store, mode="w", group="c")
    assert values(store, "c") == [5, 5, 5, 5]
    assert values(store, "b") == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("kind", "told"), [("keys", "another writer has written there since"), ("directory", "not empty")]
)
def test_what_another_has_finished_since_the_plan_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, told: str
) -> None:
    store: Store = MemoryStore() if kind == "keys" else LocalStore(tmp_path)
    there: dict[str, bytes] = {}
    begin = keys.Keys.begin

    def other() -> None:
        monkeypatch.undo()
        to_zarr(filled(7, "t", "u"), store)
        there.update(contents(store))

    if kind == "keys":
        monkeypatch.setattr(keys.Keys, "begin", lambda self: (other(), begin(self)))
    else:
        before_documents(monkeypatch, other)
    refused(NodeExistsError, lambda: to_zarr(filled(5).chunk(), store), match=told)
    assert contents(store) == there
    assert values(store, name="u") == [7, 7, 7, 7]


def test_who_lost_the_place_gives_up() -> None:
    store = MemoryStore()

    def take() -> None:
        lose_keys(store)
        to_zarr(filled(7, "u"), store)

    with pytest.raises(xzarr3.ConflictError, match="another writer replaced it"):
        to_zarr(at_block(1, take), store)
    assert values(store, name="u") == [7, 7, 7, 7]
    assert not left(store)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_one_of_two_writers_gets_an_empty_place(n: int, fails: bool) -> None:
    store = MemoryStore()

    def other() -> None:
        refused(NodeExistsError, *(partial(to_zarr, filled(7), store, mode=mode) for mode in ("w-", "w")))
        if fails:
            raise RuntimeError

    with pytest.raises(RuntimeError) if fails else nullcontext():
        to_zarr(at_block(n, other), store)
    if fails:
        assert not [*store.list()]
        to_zarr(filled(5), store)
    check(store, 5)


def test_what_somebody_makes_without_a_reservation_stays() -> None:
    """As other programs do; create_array() is refused where the group above is being made."""
    store, other = MemoryStore(), MemoryStore()
    xzarr3.create_array(other, "u", data=np.arange(3))

    def create() -> None:
        with pytest.raises(xzarr3.IncompleteWriteError, match=r"no group '/'.*is running"):
            xzarr3.create_array(store, "u", data=np.arange(3))
        store.set_values(contents(other).items())

    with pytest.raises(NodeExistsError, match="another writer has written there") as info:
        to_zarr(at_block(2, create), store)
    assert "not removed" in info.value.__notes__[0]
    assert xzarr3.open_array(store, "u")[:].tolist() == [0, 1, 2]
    assert not left(store)


def when_renamed(monkeypatch: pytest.MonkeyPatch, end: str, act: Callable[[], object]) -> None:
    """Do something once, when something in a directory has got a name with this end."""
    real = directory._rename
    calls: list[Any] = []

    def rename(store: LocalStore, source: str, renamed: str) -> None:
        real(store, source, renamed)
        if renamed.endswith(end) and not calls:
            calls.append(renamed)
            act()

    monkeypatch.setattr(directory, "_rename", rename)


def test_what_came_between_renames_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rename is that of the group's document, which is there by then."""
    document = tmp_path / "zarr.json"
    when_renamed(monkeypatch, "t", lambda: document.write_bytes(b'{"somebody": "else"}'))
    with pytest.raises(NodeExistsError, match="another writer has written there since"):
        to_zarr(filled(1), tmp_path)
    assert document.read_bytes() == b'{"somebody": "else"}'
    assert os.listdir(tmp_path) == ["zarr.json"]


def test_what_came_between_the_renames_is_kept_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def come() -> None:
        (tmp_path / "zarr.json").write_bytes(b'{"somebody": "else"}')
        (tmp_path / "u").mkdir()
        (tmp_path / "u" / "NOTES.txt").write_text("mine")

    to_zarr(filled(0), tmp_path)
    when_renamed(monkeypatch, "/old/t", come)
    with pytest.warns(UserWarning, match="is kept in .* another writer has written there since"):
        to_zarr(filled(1, "t", "u"), tmp_path, mode="w")
    assert values(tmp_path, name="u") == [1, 1, 1, 1]
    shown = sorted(name for name in os.listdir(tmp_path) if not name.startswith("."))
    assert shown == ["t", "u", "zarr.json"]
    (kept,) = tmp_path.glob(".xzarr3-staged-*/old/u/NOTES.txt")
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("group", [None, "g"])
def test_a_file_that_comes_while_data_are_written_stays_beside_the_nodes(
    store: Store, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    to_zarr(filled(0), store, group=group)
    beside, inside = ("/".join(filter(None, (group, name))) for name in ("NOTES.txt", "t/c/NOTES.txt"))
    before_documents(monkeypatch, lambda: [store.set(key, b"mine") for key in (beside, inside)])
    to_zarr(filled(1), store, group=group, mode="w")
    assert store.get(beside) == b"mine"
    assert isinstance(store, MemoryStore) or store.get(inside) is None
    check(store, 1, group)


@pytest.mark.parametrize("again", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_processes_that_write_to_an_empty_directory(tmp_path: Path, again: int) -> None:
    path = tmp_path / "x.zarr"
    path.mkdir()

    def write(value: int) -> None:
        try:
            to_zarr(filled(value, *"abcd"), path)
        except xzarr3.Xzarr3Error as error:
            (tmp_path / f"refused-{value}").write_text(type(error).__name__)

    run_processes(partial(write, 0), partial(write, 1))
    (lost,) = (int(refused.name[-1]) for refused in tmp_path.glob("refused-*"))
    assert [values(path, name=name) for name in "abcd"] == [[1.0 - lost] * 4] * 4


def test_copies_that_do_not_arrive_are_made_in_another_way() -> None:
    class Forgetful(MemoryStore):
        def copy(self, source: str, target: str) -> None: ...

    store = Forgetful()
    for value in (0, 1):
        to_zarr(filled(value), store, mode="w")
    check(store, 1)


def failed_within_swap() -> tuple[UnreadableStore, pytest.ExceptionInfo[StoreError]]:
    """A dataset of zeros that ones could not replace, as a staged chunk cannot be read, and the error."""
    store = UnreadableStore()
    to_zarr(filled(0, "t", "u"), store)
    store.set("t/notes.txt", b"mine")

    def hides(key: str) -> bool:
        if "/new/t/c/" in key:
            store.set("late.txt", b"mine, too")
            return True
        return False

    store.hides = hides
    with pytest.raises(StoreError, match="it has no value") as caught:
        to_zarr(filled(1, "t", "u"), store, mode="w")
    return store, caught


def test_a_swap_in_which_a_value_cannot_be_read_is_ended_later() -> None:
    """Nothing is believed to have been copied that was not; and all is there to copy it once more."""
    store, caught = failed_within_swap()
    assert "xzarr3.recover(store)" in caught.value.__notes__[0]
    assert "/new/" not in str(caught.value)
    asks = (lambda: values(store), lambda: xzarr3.open_array(store, "u"), lambda: xzarr3.open(store))
    refused(xzarr3.IncompleteWriteError, *asks, match=r"recover\(store\)")
    refused(StoreError, lambda: xzarr3.recover(store), match="it has no value")
    store.hides = lambda key: False
    assert xzarr3.recover(store) == ["/"]
    assert values(store) == values(store, name="u") == [1, 1, 1, 1]
    assert (store.get("t/notes.txt"), store.get("late.txt")) == (None, b"mine, too")
    assert not left(store)
    assert xzarr3.recover(store) == []


def test_a_damaged_list_of_what_is_left_to_do_is_refused() -> None:
    store, _ = failed_within_swap()
    (swap,) = (key for key in store.list() if key.endswith("/swap"))
    said = json.loads(bytes(store.get(swap) or b""))
    others = [{"path": 1}, {**said, "come": [1]}, {**said, "come": ["../a"]}, {**said, "away": None}]
    for value in (b"", b"{}", b"[1]", b"\xff", *(json.dumps(each).encode() for each in others)):
        store.set(swap, value)
        refused(StoreError, lambda: xzarr3.recover(store), match="does not list what is left to do")


def as_it_is(store: Store, group: str | None = None) -> Any:
    """The variables of a group with their values, or the error of who opens it."""
    try:
        found = opened(store, group).load()
    except xzarr3.IncompleteWriteError as error:
        told = (f"process {os.getpid()}", "has failed", "recover(store)")
        return "incomplete" if all(part in str(error) for part in told) else str(error)
    except (xzarr3.NodeNotFoundError, KeyError):
        return "nothing"
    return {str(name): array.values.tolist() for name, array in found.items()}


OLD = {"t": [1.0] * 4, "u": [1.0] * 4}
NEW = {"t": [2.0] * 4, "v": [2.0] * 4}


def _was_said(store: Store) -> bool:
    """Whether a lease says that new values are being put in their place."""
    leases = [key for key in store.list() if key.endswith(".xzarr3-lease")]
    return any(b'"swapping"' in bytes(store.get(key) or b"") for key in leases)


MAKES: list[Callable[..., object]] = [
    xzarr3.create_group,
    partial(xzarr3.open_group, mode="a"),
    lambda store, group: xzarr3.create_array(store, f"{group}/q", shape=3, dtype="f8"),
    lambda store, group: to_zarr(filled(2), store, group=f"{group}/below"),
]


@pytest.mark.parametrize(
    ("there", "zarr_format", "consolidated", "group"),
    [
        (False, 3, None, ""), (True, 3, True, ""), slow(True, 3, False, ""), (True, 2, True, ""),
        slow(True, 2, False, ""), slow(True, "3-draft", None, ""), slow(True, "3-draft", None, "deep/below"),
        *(slow(True, number, each, "deep/below") for number in (3, 2) for each in (True, False)),
    ],
)  # fmt: skip
def test_a_write_killed_at_any_change_leaves_the_old_the_new_or_a_swap_that_can_be_ended(
    there: bool, zarr_format: Any, consolidated: bool | None, group: str
) -> None:
    """No key of others is touched, and while the swap is to be ended nothing is made that it would hide."""
    options: Any = {"zarr_format": zarr_format, "group": group or None, "consolidated": consolidated}
    first = MemoryStore(dict(BESIDE) if zarr_format == 3 else {})
    foreign = contents(first)
    if there:
        to_zarr(filled(1, "t", "u"), first, mode="w", **options)
    old: Any = OLD if there else "nothing"
    seen: list[str] = []
    for store, _ in killed_everywhere(
        first, lambda store: to_zarr(filled(2, "t", "v"), store, mode="w", **options)
    ):
        found = as_it_is(store, group)
        if zarr_format == "3-draft" and found not in (old, NEW):
            found = "incomplete"  # The draft has groups without documents.
        assert found in (old, NEW, "incomplete"), (len(seen), found)
        seen.append("old" if found == old else "new" if found == NEW else "incomplete")
        if found == "incomplete" and zarr_format == 3:
            refused(
                xzarr3.IncompleteWriteError, *(partial(make, store, group) for make in MAKES), match="recover"
            )
        again = MortalStore(contents(store))
        for m in itertools.count():  # Who recovers is killed anywhere, too.
            if not again.killed_at(m, lambda again=again: xzarr3.recover(again)):  # type: ignore[misc]
                break
        is_old = found == old and (not _was_said(store) or all(map(store.exists, first.list())))
        assert as_it_is(again, group) == (old if is_old else NEW), len(seen)
        if consolidated and not is_old:
            assert opened(again, group).identical(opened(again, group, consolidated=False))
        assert not any("-staged-" in key for key in left(again)), len(seen)
        if found == NEW and zarr_format != "3-draft":
            # Once the last document is there others see the node, and what they change is not changed back.
            theirs = MortalStore(contents(store))
            to_zarr(filled(7, "t", "v"), theirs, append_dim="x", group=group or None)
            xzarr3.open_group(theirs, group, mode="r+").attrs["note"] = "mine"
            xzarr3.recover(theirs)
            assert as_it_is(theirs, group) == dict.fromkeys("tv", [2.0] * 4 + [7.0] * 4)
            assert xzarr3.open_group(theirs, group).attrs["note"] == "mine"
        to_zarr(filled(3), store, mode="w", **options)
        assert as_it_is(store, group) == {"t": [3.0] * 4}
        assert not left(store)
        assert contents(store).items() >= foreign.items() <= contents(again).items()
        assert xzarr3.open_group(store, group).zarr_format == zarr_format
    states = [state for state, _ in itertools.groupby(seen)]
    assert states == (["old", "incomplete", "new"] if there else ["old", "new"])
    assert seen.count("new") > 1 or not there, "it was killed once the last document was there"


@pytest.mark.parametrize("kind", ["keys", "directory"])
def test_who_comes_within_a_swap_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    store: Store = (
        MemoryStore() if kind == "keys" else LocalStore(tmp_path).with_traits(conflict_deadline=0.1)
    )
    copy, looks = keys._copy, 0

    def look() -> None:
        nonlocal looks
        looks += 1
        refused(
            xzarr3.IncompleteWriteError,
            *(partial(xzarr3.open, store), partial(xzarr3.open_array, store, "t")),
            *(partial(make, store, group) for make, group in ((MAKES[0], ""), (MAKES[2], "new"))),
            match=f"process {os.getpid()} of host .* is running.* wait until it has ended",
        )
        again = (lambda: xzarr3.recover(store), lambda: to_zarr(filled(7), store, mode="w"))
        refused(NodeExistsError, *again, match="another writer is writing")

    to_zarr(filled(1), store)
    if kind == "keys":
        monkeypatch.setattr(keys, "_copy", lambda *given: (look(), copy(*given)))
    else:
        when_renamed(monkeypatch, "/old/t", look)
    to_zarr(filled(2), store, mode="w")
    assert looks == 1
    check(store, 2)


def test_what_a_living_writer_has_stored_is_not_removed() -> None:
    store = MemoryStore()
    for group in (None, "other"):
        to_zarr(filled(1), store, group=group)

    def others() -> None:
        assert xzarr3.recover(store) == []
        to_zarr(filled(3), store, group="other", mode="w")
        assert values(store) == [1, 1, 1, 1]

    to_zarr(at_block(3, others), store, mode="w", encoding={"t": {"chunks": (1,)}})
    check(store, 5)


def test_a_lease_that_cannot_be_read_hides_no_absence() -> None:
    class Dotted(MemoryStore):
        """Refuses names that begin with a dot, as some web servers do."""

        def get(self, key: str, byte_range: Any = None) -> Any:
            if "/." in f"/{key}" and key.endswith("lease"):
                raise xzarr3.StorePermissionError(f"cannot read key '{key}'")
            return super().get(key, byte_range)

    store = Dotted()
    group = xzarr3.create_group(store)
    asks = (partial(xzarr3.open, store, "a"), partial(group.__getitem__, "a"))
    told = "writer is just replacing it cannot be read: cannot read key"
    refused(xzarr3.NodeNotFoundError, *asks, match=told)


def test_chunks_without_documents_are_only_taken_by_their_own_array() -> None:
    store = MemoryStore({"t/c/0": b"\0" * 32, "t/c/1": b"\0" * 32})
    refused(NodeExistsError, lambda: to_zarr(filled(1), store))
    to_zarr(filled(1, "u"), store, mode="w")
    assert sorted(store.list()) == ["t/c/0", "t/c/1", "u/c/0", "u/zarr.json", "zarr.json"]
    store.set("t/c/x", b"mine")
    to_zarr(filled(1), store, mode="w")
    assert sorted(store.list()) == ["t/c/0", "t/c/x", "t/zarr.json", "zarr.json"]


def test_what_killed_writes_left_is_removed_a_day_later() -> None:
    store = MemoryStore()
    days = {"fresh": 0.9, "gone": 1.1, "half": None}
    for name, age in days.items():
        store.set(f".xzarr3-staged-{name}/new/a/c/0", b"x")
        if age is not None:
            begun = json.dumps({"time": time.time() - age * DAY}).encode()
            store.set(f".xzarr3-staged-{name}/begun", begun)
    for mode in ("w-", "w"):
        to_zarr(filled(1), store, group="h", mode=mode)  # type: ignore[call-overload]
    assert {key.split("/")[0] for key in left(store)} == {".xzarr3-staged-fresh"}


def test_a_copy_reserves_its_place() -> None:
    source, target = MemoryStore(), MemoryStore()
    to_zarr(filled(1), source)
    other = Lease(target, lease_key(""), "replace")
    other.reserve("")
    copies = (partial(xzarr3.copy, source, target, overwrite=overwrite) for overwrite in (False, True))
    refused(NodeExistsError, *copies, match="another writer is writing")
    other.release()
    xzarr3.copy(source, target, overwrite=True)
    assert values(target) == [1, 1, 1, 1]


WITHIN = ("t/.DS_Store", "t/c/.nfs0001", "t/c/00", "t/plot.png", "u/notes.txt", "u/c/notes", "u/.zattrs")
T_ALONE = {"t/zarr.json", "t/c/0"}
OVERWRITING: dict[str, tuple[Callable[[Any], object], set[str], str]] = {
    "to_zarr": (lambda store: to_zarr(filled(1), store, mode="w"), T_ALONE, "tu"),
    "to_zarr dask": (lambda store: to_zarr(filled(1).chunk(), store, mode="w"), T_ALONE, "tu"),
    "create_array": (
        lambda store: xzarr3.create_array(store, "t", data=np.ones(4), overwrite=True),
        T_ALONE | {"u/zarr.json", "u/c/0"},
        "t",
    ),
    "create_group": (lambda store: xzarr3.create_group(store, overwrite=True), set(), "tu"),
    "open_group": (lambda store: xzarr3.open_group(store, mode="w"), set(), "tu"),
    "copy": (
        lambda store: xzarr3.copy(to_zarr(filled(1), MemoryStore()), store, overwrite=True), T_ALONE, "tu"
    ),
    "del": (lambda store: xzarr3.open_group(store, mode="r+").__delitem__("u"), T_ALONE, "u"),
}  # fmt: skip


@pytest.mark.parametrize("how", OVERWRITING)
@pytest.mark.parametrize("kind", ["local", "local fsync", "memory", "fsspec"])
def test_foreign_files_block_nothing_and_stay_beside_nodes(kind: str, how: str, tmp_path: Path) -> None:
    store: Store = MemoryStore()
    if kind == "fsspec":
        store = xzarr3.open_store(f"memory://{tmp_path.name}-{time.time_ns()}/store", mode="a")
    elif kind != "memory":
        store = LocalStore(tmp_path, fsync=kind == "local fsync")
    act, stay, replaced = OVERWRITING[how]
    to_zarr(filled(0, "t", "u"), store)
    for key in (*BESIDE, *WITHIN):
        store.set(key, BESIDE.get(key, b"lost"))
    act(store)
    assert contents(store).items() >= BESIDE.items()
    within = {key for key in WITHIN if key[0] not in replaced}
    assert set(store.list()) == {*BESIDE, *within, "zarr.json", *stay}


@pytest.mark.parametrize("group", [None, "g"])
def test_what_holds_no_node_is_not_replaced(store: Store, group: str | None) -> None:
    to_zarr(filled(0), store, group=group)
    key = "/".join(filter(None, (group, "u/NOTES.txt")))
    store.set(key, b"mine")
    name = "u"
    if isinstance(store, LocalStore):  # A directory is put in its place as a whole.
        with pytest.raises(NodeExistsError, match="no part of a Zarr hierarchy where the new node would be"):
            to_zarr(filled(1, "t", "u"), store, group=group, mode="w")
        assert values(store, group) == [0, 0, 0, 0]
        name = "v"
    to_zarr(filled(1, "t", name), store, group=group, mode="w")
    assert store.get(key) == b"mine"
    check(store, 1, group)


def interrupted(n: int, act: Callable[[], object]) -> bool:
    """Whether this was ended by an exception at its n-th change of a directory."""

    def end() -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        end_at_change(n, end, patch.setattr)
        act()
        return False
    return True


REPLACED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # The options of what is there, and what is other for what replaces it.
    "root": ({}, {}), "consolidated, version 2": ({"zarr_format": 2, "consolidated": True}, {}),
    "another format": ({"zarr_format": 2}, {"zarr_format": 3}), "draft": ({"zarr_format": "3-draft"}, {}),
    "group": ({"group": "deep/below", "consolidated": True}, {}), "resumed": ({}, {"resume": True}),
    "copy": ({}, {}), "nothing there": ({}, {"mode": "w-"}),
}  # fmt: skip


def prepare(how: str, root: Path) -> None:
    if how == "nothing there":
        root.mkdir()
    else:
        to_zarr(filled(1, "t", "u"), root, **REPLACED[how][0])


def replace(how: str, root: Path) -> None:
    if how == "copy":
        xzarr3.copy(to_zarr(filled(2, "t", "v"), MemoryStore()), root, overwrite=True)
    else:
        options, others = REPLACED[how]
        to_zarr(filled(2, "t", "v"), root, **{"mode": "w", **options, **others})


def found(how: str, root: Path) -> Any:
    there = as_it_is(LocalStore(root), REPLACED[how][0].get("group"))
    return OLD if (how, there) == ("nothing there", "nothing") else there


@pytest.mark.slow
@forks
@pytest.mark.parametrize(
    ("how", "then", "ended"),
    [
        *((how, "open", killed_in_fork) for how in REPLACED if how != "draft"),
        *(("group", then, killed_in_fork) for then in ("list", "list consolidated")),
        ("draft", "write", killed_in_fork),  # It has groups without documents, which others may see.
        *itertools.product(("root", "resumed", "nothing there"), ("recover", "write"), [killed_in_fork]),
        *((how, "write", interrupted) for how in ("root", "group")),
    ],
)
def test_a_write_to_a_directory_killed_at_any_change_leaves_the_old_or_the_new(
    tmp_path: Path, how: str, then: str, ended: Callable[[int, Callable[[], object]], bool]
) -> None:
    """Whoever opens it next finds one of them, and every foreign file; nothing is left in the end."""
    below = "deep/below/" if how == "group" else ""
    foreign = {below + name: value for name, value in BESIDE.items() if how != "nothing there"}
    seen = []
    for n in itertools.count():
        root = tmp_path / str(n)
        prepare(how, root)
        for name, value in foreign.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(value)
        killed = ended(n, partial(replace, how, root))
        options: dict[str, Any]
        lost = {value for name, value in foreign.items() if not (root / name).exists()}
        assert not lost, "what is no part of a hierarchy is never moved"
        if then.startswith("list"):
            options = {"consolidated": "consolidated" in then or False}
            assert "/deep/below" in xr.open_datatree(root, engine="xzarr3", **options).groups
        if then == "open":
            there = found(how, root)
            assert there in (OLD, NEW), (n, there)
            seen.append("old" if there == OLD else "new")
        if then == "write":
            options = {"group": below.strip("/") or None, "resume": how == "resumed"}
            to_zarr(filled(2, "t", "v"), root, mode="w", **options)
            assert found(how, root) == NEW
            assert {name: (root / name).read_bytes() for name in foreign} == foreign, n
        xzarr3.recover(root)
        assert found(how, root) in (OLD, NEW)
        assert {name: (root / name).read_bytes() for name in foreign} == foreign, n
        grow_old(root, 1.1)
        xzarr3.recover(root)
        assert not list(root.glob(".xzarr3-staged*"))
        if not killed:
            break
    assert n > 15
    if then == "open":
        assert [state for state, _ in itertools.groupby(seen)] == ["old", "new"]


@pytest.mark.slow
@forks
@pytest.mark.parametrize("how", ["root", "group"])
def test_who_finishes_a_swap_may_be_killed_anywhere(tmp_path: Path, how: str) -> None:
    root = tmp_path / "killed"
    notes = ("" if how == "root" else "deep/below/") + "notes.txt"
    for n in itertools.count():
        prepare(how, root)
        (root / notes).write_text("mine")
        assert killed_in_fork(n, partial(replace, how, root))
        if list(root.glob(".xzarr3-staged-*/old/**/zarr.json")):
            break
        shutil.rmtree(root)
    for n in itertools.count():
        again = tmp_path / str(n)
        shutil.copytree(root, again)
        killed = killed_in_fork(n, partial(found, how, again))
        assert found(how, again) == NEW
        xzarr3.recover(again)
        assert found(how, again) == NEW
        assert (again / notes).read_text() == "mine"
        assert not list(again.glob(".xzarr3-staged*"))
        if not killed:
            break
    assert n > 10


def half_swapped(root: Path, group: str, *, at_once: bool = False, **options: Any) -> None:
    """Begin to replace a group by twos in a process that dies before it renames the new one.

    With ``at_once`` it dies before the first rename.
    """

    def replace() -> None:
        real = directory._rename

        def mortal(store: LocalStore, name: str, then: str) -> None:
            if at_once or then == group:
                os._exit(9)
            real(store, name, then)

        directory._rename = mortal
        to_zarr(filled(2), root, group=group, mode="w", **options)

    with processes(replace) as (process,):
        assert os.waitstatus_to_exitcode(process.wait(120)) == 9


def without_group(root: Path, group: str) -> None:
    """A group with ones, which somebody was replacing by twos when he was killed: neither is there."""
    to_zarr(filled(1), root, group=group)
    half_swapped(root, group)
    assert not (root / group).exists()


CHANGED: dict[str, Callable[[Path], object]] = {
    "appended": lambda root: to_zarr(filled(5), root, group="g", append_dim="x"),
    "region": lambda root: to_zarr(filled(5), root, group="g", region={"x": slice(0, 4)}),
    "values": lambda root: xzarr3.open_array(root, "g/t", mode="r+").set(..., 5),
    "attributes": lambda root: xzarr3.open_group(root, "g", mode="r+").attrs.update(said=5),
    "added": lambda root: to_zarr(filled(5, "more"), root, group="g", mode="a"),
    "made below": lambda root: xzarr3.create_array(root, "g/more", shape=3, dtype="f8"),
    "deleted": lambda root: xzarr3.open_group(root, mode="r+").__delitem__("g"),
    "made anew": lambda root: xzarr3.create_group(root, "g", overwrite=True),
}


@forks
@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("how", CHANGED)
def test_what_is_done_before_the_old_node_has_left_stays(how: str, zarr_format: Any, tmp_path: Path) -> None:
    expected, found = tmp_path / "expected", tmp_path / "found"
    options: Any = {"zarr_format": zarr_format, "consolidated": True}
    for root in (expected, found):
        to_zarr(filled(1), root, group="g", **options)
    half_swapped(found, "g", at_once=True, **options)
    for root in (expected, found):
        CHANGED[how](root)
    said = as_it_is(LocalStore(expected))
    assert as_it_is(LocalStore(found)) == said
    refused(xzarr3.NodeNotFoundError, lambda: xzarr3.open_group(found, "typo"))
    assert xzarr3.recover(found) == []
    to_zarr(filled(7), found, group="other", mode="w")
    del xzarr3.open_group(found, mode="r+")["other"]
    assert as_it_is(LocalStore(found)) == said


@forks
def test_several_that_open_at_once_what_was_half_swapped_find_it(tmp_path: Path) -> None:
    without_group(tmp_path, "g")
    seen: list[list[float]] = []

    def find() -> None:
        with suppress(xzarr3.IncompleteWriteError):  # Another one is just finishing it.
            seen.append(values(tmp_path, "g"))

    run_threads(*[find] * 8)
    assert seen
    assert all(each == [2, 2, 2, 2] for each in seen)
    assert values(tmp_path, "g") == [2, 2, 2, 2]
    assert not list(tmp_path.glob(".xzarr3*"))


@forks
def test_what_others_wrote_where_something_was_half_swapped_stays(tmp_path: Path) -> None:
    root, theirs = tmp_path / "a", tmp_path / "b"
    without_group(root, "g")
    to_zarr(filled(9), theirs, group="g")
    shutil.copytree(theirs / "g", root / "g")
    with pytest.warns(UserWarning, match="another writer has written there since") as warned:
        xzarr3.recover(root)
    assert values(root, "g") == [9, 9, 9, 9]
    [kept] = root.glob(".xzarr3-staged-*")
    assert kept.name in str(warned[0].message)
    assert values(kept / "old", "g") == [2, 2, 2, 2]
    to_zarr(filled(3), root, group="g", mode="w")
    assert values(root, "g") == [3, 3, 3, 3]


@forks
def test_a_damaged_list_of_a_swap_blocks_no_other_group(tmp_path: Path) -> None:
    for group in ("a", "b"):
        without_group(tmp_path, group)
    for swap_list in tmp_path.glob(".xzarr3-staged-*/swap"):
        if json.loads(swap_list.read_text())["path"] == "a":
            swap_list.write_bytes(b"")
    to_zarr(filled(3), tmp_path, group="other", mode="w")
    acts = (lambda: to_zarr(filled(3), tmp_path, group="a", mode="w"), lambda: xzarr3.recover(tmp_path))
    refused(StoreError, *acts, match=r"swap' does not list .* copy good values t")
    assert (tmp_path / "b" / "zarr.json").exists(), "what is not damaged was finished"
    assert values(tmp_path, "b") == [2, 2, 2, 2]


@pytest.mark.parametrize("after", ["/old/zarr.json", "/old/t", "/old/u"])
def test_what_another_finished_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    to_zarr(filled(1, "t", "u"), tmp_path)

    def finish() -> None:
        (top,) = tmp_path.glob(".xzarr3-staged-*/new")
        for unit in ("zarr.json", "t", "u"):
            if (tmp_path / unit).exists():
                (tmp_path / unit).rename(top.parent / "old" / unit)
            (top / unit).rename(tmp_path / unit)

    when_renamed(monkeypatch, after, finish)
    with pytest.raises(StoreError, match="another process has taken over"):
        to_zarr(filled(2, "t", "u"), tmp_path, mode="w")
    assert values(tmp_path) == values(tmp_path, name="u") == [2, 2, 2, 2]


@pytest.mark.parametrize("call", ["lstat", "listdir"])
def test_what_cannot_be_looked_at_is_not_absent(call: str, tmp_path: Path, monkeypatch: Any) -> None:
    real = getattr(os, call)
    for n in itertools.count():
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        to_zarr(filled(1, "t", "u"), tmp_path / "store")
        asked = itertools.count()

        def look(path: Any, *args: Any, n: int = n, asked: Any = asked, **options: Any) -> Any:
            if ".xzarr3-staged" in str(path) and next(asked) == n:
                raise os_error(errno.EIO)
            return real(path, *args, **options)

        failed = False
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # What could not be removed is told.
            patch.setattr(os, call, look)
            try:
                to_zarr(filled(2, "t", "u"), tmp_path / "store", mode="w")
            except StoreError:
                failed = True
        found = {name: values(tmp_path / "store", name=name) for name in ("t", "u")}
        assert found in [dict.fromkeys("tu", [each] * 4) for each in ((1, 2) if failed else (2,))], n
        if next(asked) <= n:
            break


@forks
def test_what_cannot_be_removed_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(folder: str) -> None:
        raise StoreError(f"cannot remove '{folder}': busy")

    to_zarr(filled(1), tmp_path, group="g")
    without_group(tmp_path, "h")
    with monkeypatch.context() as patch:
        patch.setattr(directory, "_remove", busy)
        with pytest.warns(UserWarning, match="could not be removed.*busy") as told:
            to_zarr(filled(2), tmp_path, group="g", mode="w")
        assert told[0].filename == __file__
        with pytest.warns(UserWarning, match="could not be removed.*busy"):
            assert values(tmp_path, "h") == [2, 2, 2, 2]
        assert not list(tmp_path.glob(".xzarr3-staged-*/.xzarr3-lease"))
        to_zarr(filled(3, "more"), tmp_path, group="g", mode="a")
        assert xzarr3.recover(tmp_path) == []
    assert values(tmp_path, "g") == [2, 2, 2, 2]
    assert sorted(xzarr3.open_group(tmp_path, "g")) == ["more", "t"]
    refused(KeyError, lambda: xzarr3.open_group(tmp_path, "g")["zzz"])


@pytest.mark.slow
@forks
def test_who_may_not_write_is_told_who_finishes_a_swap(tmp_path: Path) -> None:
    def prepare(base: Path) -> None:
        root = base / "store"
        to_zarr(filled(1, "t", "u"), root)
        for n in itertools.count():
            assert killed_in_fork(n, lambda: to_zarr(filled(2, "t", "u"), root, mode="w"))
            if list(root.glob(".xzarr3-staged-*/old/zarr.json")):
                break
        for folder in (root, *root.rglob("*")):
            folder.chmod(0o555 if folder.is_dir() else 0o444)

    refused = run_unprivileged(lambda base: xzarr3.open_group(base / "store") and None, prepare=prepare)
    assert isinstance(refused.error, xzarr3.IncompleteWriteError)
    assert refused.changed == []
    assert "has ended" in str(refused.error)
    assert "call xzarr3.recover(store)" in str(refused.error)


def test_a_busy_file_does_not_end_an_erase_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system refuses to remove what it keeps for a reader, and removes it later itself."""
    real = os.unlink

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        if os.path.basename(path).startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real(path, dir_fd=dir_fd)

    store = xzarr3.LocalStore(tmp_path)
    to_zarr(filled(0, "t", "u"), store)
    for key in ("t/c/.nfs1", "t/.nfs2"):
        store.set(key, b"busy")
    monkeypatch.setattr(os, "unlink", unlink)
    to_zarr(filled(1, "t", "u"), store, mode="w")
    assert values(store) == [1, 1, 1, 1]
    (old,) = tmp_path.glob(".xzarr3-staged-*")
    assert {path.name for path in old.rglob("*") if path.is_file()} == {".nfs1", ".nfs2"}
    for key in ("t/c/.nfs1", "t/.nfs2"):
        store.set(key, b"busy")
    store.erase_prefix("t/")
    assert {key for key in store.list() if key.startswith("t/")} == {"t/c/.nfs1", "t/.nfs2"}
