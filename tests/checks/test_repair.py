"""A repair mends what it says and changes nothing else; a dry run changes nothing; links are left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _conformance import contents
from _defects import FORMATS, Planter, healthy
from _unprivileged import run_unprivileged
from test_defects import CASES, DEFECTS

import xzarr3
from xzarr3 import LocalStore, ReadOnlyError, Store, ZipStore
from xzarr3.checks.report import CODES
from xzarr3.stores import FsspecStore, WrapperStore

HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(("name", "zarr_format"), CASES, ids=[f"{name}-{each}" for name, each in CASES])
def test_a_repair_touches_only_what_is_repairable(name: str, zarr_format: Any) -> None:
    code, _, _, plant = DEFECTS[name]
    store = healthy(zarr_format)
    key = plant(Planter(store, zarr_format))
    before = contents(store)
    planned = xzarr3.check(store, repair=True, dry_run=True, decode="none")
    assert contents(store) == before
    report = xzarr3.check(store, repair=True, decode="none")
    changed = {each for each in before.keys() | contents(store).keys() if before.get(each) != store.get(each)}
    if not CODES[code].repairable or code == "key-temporary":  # in memory nobody knows the age of a file
        assert (changed, report.repairs) == (set(), ())
        return
    assert changed == {key}
    assert [step.outcome for step in planned.repairs] == ["planned"]
    assert [step.outcome for step in report.repairs] == ["done"]
    assert [(finding.code, finding.repaired) for finding in report.findings] == [(code, True)]
    assert report.ok
    assert "repaired" in str(report)
    assert xzarr3.check(store).findings == ()


def test_an_invalid_copy_is_written_again() -> None:
    store = healthy(3)
    Planter(store, 3).edit(
        "zarr.json", lambda document: document["consolidated_metadata"].pop("kind"), copy=False
    )
    before = contents(store)
    report = xzarr3.check(store)
    assert [(finding.code, finding.key) for finding in report.findings] == [
        ("consolidated-invalid", "zarr.json")
    ]
    assert xzarr3.check(store, repair=True).ok
    assert xzarr3.check(store).findings == ()
    after = contents(store)
    assert {key for key in before if before[key] != after[key]} == {"zarr.json"}


def test_repair_removes_leftovers_and_old_temporary_files(tmp_path: Path) -> None:
    healthy(3, LocalStore(tmp_path))
    names = {
        "t2m/c/0/.xzarr3-partial-1": 7200, "t2m/c/0/.xzarr3-partial-2": 10,
        f"t2m/c/0/0.{HEX}.partial": 7200, f"t2m/c/0/1.{HEX}.partial": 10,
    }  # fmt: skip
    for name, age in names.items():
        (tmp_path / name).write_bytes(b"1")
        now = (tmp_path / name).stat().st_mtime
        os.utime(tmp_path / name, (now - age, now - age))
    lock = "t2m/c/0/1.__lock"
    (tmp_path / lock).write_bytes(b"half a value")  # Whatever its age: no process holds it.
    report = xzarr3.check(tmp_path, repair=True)
    found = {finding.key: finding.repaired for finding in report.findings}
    assert found.pop(lock)
    assert not (tmp_path / lock).exists()
    assert found == {name: age > 3600 for name, age in names.items()}
    assert {name: (tmp_path / name).exists() for name in names} == {n: age < 3600 for n, age in names.items()}


def test_files_that_a_user_may_have_named_so_stay(tmp_path: Path) -> None:
    healthy(3, LocalStore(tmp_path))
    for name in ("notes.tmp", "t2m/draft.partial", "t2m/.zarr.json.aB3dE6"):
        (tmp_path / name).write_bytes(b"1")
        os.utime(tmp_path / name, (0, 0))
    report = xzarr3.check(tmp_path, repair=True)
    assert {finding.code for finding in report.findings} == {"key-temporary"}
    assert (report.repairs, len(report.findings)) == ((), 3)
    assert (tmp_path / "notes.tmp").exists()


def test_chunks_outside_stay_while_documents_disagree(tmp_path: Path) -> None:
    """The shape in a damaged document may be wrong: what is outside by it may be data."""
    store = healthy(3, LocalStore(tmp_path))
    Planter(store, 3).edit("t2m/zarr.json", lambda document: document.update(shape=[4, 6]), copy=False)
    before = contents(store)
    report = xzarr3.check(store, repair=True)
    outcomes = {step.what: step.outcome for step in report.repairs}
    assert "the shape may be wrong" in outcomes["erase chunks outside of the grid of '/t2m'"]
    assert {key for key in before if before[key] != store.get(key)} == {"zarr.json"}


def test_chunks_outside_stay_while_another_writer_changes_the_length(tmp_path: Path) -> None:
    from xzarr3.commit.lease import Lease, lease_key

    store = healthy(3, LocalStore(tmp_path))
    store.set("t2m/c/9/9", b"rows that are being appended")
    lease = Lease(store, lease_key("t2m/"), "resize")
    assert lease.take()
    report = xzarr3.check(store, repair=True)
    (step,) = report.repairs
    assert step.outcome.startswith("not done, cannot change key 't2m/zarr.json'")
    assert store.exists("t2m/c/9/9")
    lease.release()
    assert [each.outcome for each in xzarr3.check(store, repair=True).repairs] == ["done"]
    assert not store.exists("t2m/c/9/9")


def test_a_grown_array_keeps_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The array grows between the check and the repair: what was outside is inside now."""
    from xzarr3.checks import repair

    store = healthy(3, LocalStore(tmp_path))
    store.set("t2m/c/2/0", store.get("t2m/c/0/0"))
    store.set("t2m/c/5/0", b"1")
    real = repair.carry_out

    def grow(*arguments: Any) -> Any:
        array = xzarr3.open_array(store, "t2m", mode="r+")
        Planter(store, 3).edit("t2m/zarr.json", lambda document: document.update(shape=[12, 6]))
        assert array.shape == (8, 6)
        return real(*arguments)

    monkeypatch.setattr(repair, "carry_out", grow)
    xzarr3.check(store, repair=True)
    assert store.exists("t2m/c/2/0")
    assert not store.exists("t2m/c/5/0")


LINKS: dict[str, Callable[[Path], object]] = {
    "directory out of the store": lambda base: (base / "store/t2m/c/9").symlink_to(base / "outside"),
    "directory of another array": lambda base: (base / "store/t2m/c/9").symlink_to(base / "store/packed/c/0"),
    "file": lambda base: (
        (base / "store/t2m/c/9").mkdir() or (base / "store/t2m/c/9/0").symlink_to(base / "store/packed/c/0/0")
    ),
}


@pytest.mark.parametrize("name", LINKS)
def test_links_are_never_followed(name: str) -> None:
    def work(base: Path) -> tuple[list[str], bool]:
        healthy(3, LocalStore(base / "store"))
        LINKS[name](base)
        before = {path: path.read_bytes() for path in (base / "store").rglob("*") if path.is_file()}
        store: Store = LocalStore(base / "store")
        try:
            report = xzarr3.check(store, "t2m", repair=True, decode="none")
            outcomes = [step.outcome for step in report.repairs]
        except xzarr3.StoreError as error:
            outcomes = [str(error)]
        after = {path: path.read_bytes() for path in (base / "store").rglob("*") if path.is_file()}
        return outcomes, before == after

    def prepare(base: Path) -> None:
        (base / "outside" / "0").write_bytes(b"canary")

    assert xzarr3.check(healthy(3), repair=True).ok  # what it imports is imported before rights are dropped
    outcomes, is_same = run_unprivileged(work, prepare=prepare).checked()
    assert is_same
    assert outcomes
    assert all("link" in outcome for outcome in outcomes), outcomes


def test_read_only_store_is_refused_before_anything_is_looked_at(tmp_path: Path) -> None:
    healthy(3, LocalStore(tmp_path))
    with pytest.raises(ReadOnlyError):
        xzarr3.check(LocalStore(tmp_path, read_only=True), repair=True)
    assert xzarr3.check(LocalStore(tmp_path, read_only=True), repair=True, dry_run=True).ok


def test_store_that_cannot_tell_links_is_left_alone() -> None:
    store = FsspecStore("memory://check-links/s.zarr")
    healthy(3, store)
    store.set("t2m/c/9/9", b"1")
    report = xzarr3.check(store, repair=True)
    assert "cannot tell" in report.repairs[0].outcome
    assert store.exists("t2m/c/9/9")


@pytest.mark.parametrize("wrap", [lambda store: store, WrapperStore], ids=["bare", "wrapped"])
def test_zip_is_repaired(wrap: Callable[[Store], Store], tmp_path: Path) -> None:
    with ZipStore(tmp_path / "s.zip", mode="w") as store:
        healthy(3, store)
        store.set("t2m/c/9/9", b"1")
    with ZipStore(tmp_path / "s.zip", mode="r+") as store:
        report = xzarr3.check(wrap(store), repair=True)
        assert [step.outcome for step in report.repairs] == ["done"]
    assert xzarr3.check(tmp_path / "s.zip").findings == ()


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_many_keys_are_repaired(zarr_format: Any) -> None:
    store = healthy(zarr_format)
    plant = Planter(store, zarr_format)
    before = contents(store)
    for at in range(2500):
        store.set(plant.chunk("t2m", 100 + at, 0), b"1")
    report = xzarr3.check(store, repair=True)
    assert [(step.count, len(step.keys)) for step in report.repairs] == [(2500, 5)]
    assert sum(finding.count for finding in report.findings) == 2500
    assert len(report.findings) == 101
    assert contents(store) == before
