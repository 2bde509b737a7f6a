"""Whatever is stored, a check ends with a report."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _conformance import contents
from _defects import FORMATS, Planter, healthy

import xzarr3
from xzarr3 import LocalStore, MemoryStore

DATA = Path(__file__).parents[1] / "data"
KEPT = ("zarr-python-3.4.2/layouts3", "zarr-python-2.18.7/layouts", "tensorstore-0.1.86/v3",
        "netcdf-c-4.10.1/nczarr")  # fmt: skip


def flip(chance: random.Random, store: MemoryStore, key: str) -> None:
    value = bytearray(store.get(key) or b"x")
    for _ in range(chance.randint(1, 4)):
        value[chance.randrange(len(value))] = chance.randrange(256)
    store.set(key, bytes(value))


def cut(chance: random.Random, store: MemoryStore, key: str) -> None:
    value = bytes(store.get(key) or b"")
    store.set(key, value[: chance.randint(0, len(value))])


def grow(chance: random.Random, store: MemoryStore, key: str) -> None:
    store.set(key, bytes(store.get(key) or b"") + chance.randbytes(chance.randint(1, 50)))


def move(chance: random.Random, store: MemoryStore, key: str) -> None:
    other = chance.choice(sorted(contents(store)))
    value = store.get(key)
    store.set(other, value if value is not None else b"")
    store.erase(key)


def number(chance: random.Random, store: MemoryStore, key: str) -> None:
    """Change a number in a document, to a very large one for instance."""
    text = bytes(store.get(key) or b"")
    at = [place for place, octet in enumerate(text) if 48 <= octet <= 57]
    if at:
        place = chance.choice(at)
        new = chance.choice([b"0", b"-1", b"9" * 25, b"1e9", b"9007199254740993", b'"x"', b"null", b"[]"])
        store.set(key, text[:place] + new + text[place + 1 :])


def damaged(values: dict[str, bytes], seed: int) -> MemoryStore:
    chance = random.Random(seed)
    store = MemoryStore(dict(values))
    for _ in range(chance.randint(1, 5)):
        keys = sorted(contents(store))
        documents = [key for key in keys if "json" in key or "/.z" in f"/{key}"]
        key = chance.choice(documents if chance.random() < 0.5 and documents else keys)
        chance.choice((flip, cut, grow, move, number))(chance, store, key)
    return store


def assert_report(store: Any) -> None:
    before = contents(store)
    try:
        report = xzarr3.check(store, decode="all")
    except xzarr3.NodeNotFoundError:
        return
    assert json.loads(json.dumps(report.to_json()))["ok"] == report.ok
    assert len(str(report).splitlines()) <= 40
    assert contents(store) == before


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_damaged_store(zarr_format: Any) -> None:
    store = healthy(zarr_format)
    if zarr_format == 3:
        Planter(store, 3).shards()
    values = contents(store)
    for seed in range(120):
        assert_report(damaged(values, seed))


def test_damaged_store_of_another_writer() -> None:
    for name in KEPT:
        values = contents(LocalStore(DATA / name, read_only=True))
        for seed in range(8):
            assert_report(damaged(values, seed))


def test_chunks_that_no_memory_holds_are_not_decoded() -> None:
    array = xzarr3.create_array(MemoryStore(), shape=2**33, chunks=2**33, dtype="i1", dimension_names=["x"])
    array.store.set("c/0", b"\x28\xb5\x2f\xfd")
    report = xzarr3.check(array.store, decode="all")
    assert [finding.code for finding in report.findings] == ["chunks-large"]
    assert report.arrays[""].read == 0


@pytest.mark.parametrize("chunks", [1, 2**40])
def test_coordinate_of_any_length_is_looked_at_in_bounded_time(chunks: int) -> None:
    store = MemoryStore()
    xzarr3.create_array(store, "x", shape=2**55, chunks=chunks, dtype="f8", dimension_names=("x",))
    codes = [finding.code for finding in xzarr3.check(store, "x", decode="all").findings]
    assert set(codes) <= {"coordinate-fill", "chunks-large"}


def test_xarray_is_not_imported(tmp_path: Path) -> None:
    options = {"attributes": {"scale_factor": 0.5}, "dimension_names": ("x",)}
    xzarr3.create_array(tmp_path / "packed", data=[1, 2], **options)
    program = (
        "import sys, xzarr3; assert 'xzarr3.checks' not in sys.modules; "
        "assert xzarr3.check(sys.argv[1]).ok; assert 'xarray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "packed")], check=True, timeout=120)
