"""Stores that are healthy have no findings, each defect is the only one; whatever is stored, a check ends."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _defects import FORMATS, Planter, healthy
from _peers import DATA, KEPT_STORES, LIBRARIES, PEERS, SAMPLE_VALUES, SAMPLES, tops
from _processes import printed_by
from _slow import slow

import xzarr3
from xzarr3 import LocalStore, MemoryStore
from xzarr3.checks.report import CODES
from xzarr3.conventions.fill_value_attribute import encode_fill_value

TOPS = [(store, top) for store in KEPT_STORES for top in tops(store)]
NAMES = [f"{store.relative_to(DATA).as_posix()}:{top}" for store, top in TOPS]
# What is truly wrong with them, or not read here: GDAL writes null for fill values, which version 3 forbids.
FINDINGS = {
    "gdal-3.12.2/v3_complex64:": "document-invalid", "gdal-3.12.2/v3_int16:": "document-invalid",
    "tensorstore-0.1.86/v2:record": "extension-unknown",  # a field that holds arrays
    "zarr-python-2.18.7/codecs:": "extension-unknown",
    "zarr-python-2.18.7/layouts:": "extension-unknown",  # fields of several byte orders
    "zarr-python-2.18.7/refused:": "extension-unknown", "zarr-python-2.18.7/types:": "extension-unknown",
    "zarr-python-2.18.7/variable:": "extension-unknown",  # objects by JSON that are no text
}  # fmt: skip


@pytest.mark.parametrize(("store", "top"), TOPS, ids=NAMES)
def test_kept_store_is_healthy(store: Path, top: str) -> None:
    report = xzarr3.check(xzarr3.LocalStore(store, read_only=True), top, decode="all")
    bad = {finding.code for finding in report.findings if finding.severity != "note"}
    expected = FINDINGS.get(f"{store.relative_to(DATA).as_posix()}:{top}")
    assert bad == ({expected} if expected else set()), report
    notes = {finding.code for finding in report.findings} - bad
    assert notes <= {"chunks-missing", "document-literals"}, report
    for path, array in report.arrays.items():
        handle = xzarr3.open_array(store, path)
        assert (array.shape, array.read) == (handle.shape, array.stored)
        assert array.nbytes_stored is not None


@pytest.mark.parametrize(
    ("store", "top"),
    [case if case[0].parent.name == "zarr-python-3.4.2" else slow(*case) for case in TOPS],
    ids=NAMES,
)
def test_truncated_chunks_of_a_kept_store_are_found(store: Path, top: str, tmp_path: Path) -> None:
    shutil.copytree(store / top, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        if path.is_file() and path.suffix != ".json" and not path.name.startswith((".", "zarr.json")):
            path.write_bytes(path.read_bytes()[:-1])
    report = xzarr3.check(tmp_path / "copy", decode="all")
    found = {finding.path for finding in report.findings if finding.severity == "error"}
    assert {path for path, array in report.arrays.items() if array.stored} <= found, report


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("kind", SAMPLES)
def test_store_of_an_installed_peer_is_healthy(peer: str, kind: str, tmp_path: Path) -> None:
    library = LIBRARIES[peer]()
    library.save(tmp_path / "a", SAMPLES[kind], SAMPLE_VALUES)
    report = xzarr3.check(tmp_path / "a", decode="all")
    assert {finding.code for finding in report.findings} <= {"chunks-missing"}, report


@pytest.mark.parametrize("engine", ["xzarr3", "zarr"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [True, False])
def test_dataset_of_xarray_is_healthy(
    engine: str, zarr_format: Any, consolidated: bool, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).random((4, 5, 6))
    dataset = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values, {"units": "K"}),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
        },
        {
            "time": xr.date_range("2001-01-01", periods=4), "lat": np.linspace(-60, 60, 5),
            "lon": np.arange(0.0, 360.0, 60.0), "height": ((), 2.0), "name": ("lat", [*"abcde"]),
            "step": ("time", np.arange(4).astype("m8[h]").astype("m8[ns]")),
        },
    )  # fmt: skip
    dataset.t2m.attrs["grid_mapping"] = "crs"
    write: Any = xzarr3.to_zarr if engine == "xzarr3" else xr.Dataset.to_zarr
    write(dataset, tmp_path / "s", zarr_format=zarr_format, consolidated=consolidated)
    report = xzarr3.check(tmp_path / "s", decode="all")
    assert {finding.severity for finding in report.findings} <= {"note"}, report


EMPTY = 2**64 - 1


def flip(plant: Planter, at: int) -> str:
    """Change one byte of a shard."""
    key = plant.shards()
    value = bytearray(bytes(plant.store.get(key)))
    value[at] ^= 0xFF
    return plant.put(key, bytes(value))


def gone(plant: Planter, path: str) -> str:
    """Erase the documents of an array and its copies; the key of its first chunk."""
    first = plant.chunk(path, 0)
    plant.erase(*plant.format.keys(path).documents)
    plant.copy()
    return first


def consolidated(plant: Planter) -> str:
    return str(plant.format.keys("").consolidated)


def stale(plant: Planter) -> str:
    """Erase an array beside its copy."""
    plant.erase(*plant.format.keys("packed").documents)
    plant.erase(*(key for key in list(plant.store.list()) if "packed/" in key))
    return consolidated(plant)


def within(plant: Planter, document: dict[str, Any]) -> dict[str, Any]:
    """Where a document has the attributes."""
    return document if plant.zarr_format == 2 else document["attributes"]


def differing(plant: Planter) -> str:
    """Change attributes beside their copy."""
    plant.edit(plant.attributes("t2m"), lambda d: within(plant, d).update(units="m"), copy=False)
    return consolidated(plant)


def lacks(plant: Planter) -> str:
    """Add an array beside the copies."""
    before = plant.store.get(consolidated(plant))
    xzarr3.create_array(plant.store, "added", data=[1])
    return plant.put(consolidated(plant), before)


def lat(plant: Planter, values: Any, fill_value: Any = None, **attributes: Any) -> str:
    """Add a coordinate of floats."""
    options = {"dimension_names": ("lat",), "attributes": attributes, "fill_value": fill_value}
    xzarr3.create_array(plant.store, "lat", data=np.asarray(values, "float64"), **options)
    plant.copy()
    return ""


def other_format(plant: Planter) -> str:
    if plant.zarr_format == 2:
        return plant.put("strange/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    return plant.put("strange/.zgroup", b'{"zarr_format": 2}')


def unknown_codec(plant: Planter) -> str:
    def change(document: dict[str, Any]) -> None:
        if plant.zarr_format == 3:
            document["codecs"][-1]["name"] = "no.such.codec"
        elif plant.zarr_format == 2:
            document["compressor"] = {"id": "no.such.codec"}
        else:
            document["compressor"] = {"codec": "https://example.org/no/such/codec", "configuration": {}}

    return plant.edit(plant.document("packed"), change)


def literal(plant: Planter) -> str:
    """NaN in attributes."""
    key = plant.attributes("deep/x")
    plant.edit(key, lambda d: within(plant, d).update(valid=float("nan")), copy=plant.zarr_format != 3)
    if plant.zarr_format == 3:  # the copy would have it, too
        plant.edit("zarr.json", lambda document: document.pop("consolidated_metadata"), copy=False)
    return key


def lost(plant: Planter) -> str:
    """A node below a group without a document."""
    return plant.put(plant.document("nowhere/x"), bytes(plant.store.get(plant.document("deep/x"))))


def renamed(plant: Planter) -> str:
    """A chunk under a key of another form."""
    name = {3: "0.1", 2: "0/1", "3-draft": "0.1"}[plant.zarr_format]
    return plant.put(plant.format.keys("t2m").chunks + name)


def temporary(plant: Planter) -> str:
    draft = plant.zarr_format == "3-draft"
    return plant.put("data/t2m/c0/0.0123.partial" if draft else f"{plant.chunk('t2m', 0, 0)}.0123ef.partial")


def indexed(entry: Any, value: Any) -> Callable[[Planter], str]:
    """Change an entry of the index of a shard: rows are inner chunks, columns offset and size."""
    return lambda p: p.edit_index(lambda index: index.__setitem__(entry, value(index)))


ALL, V3, WITH_COPIES = FORMATS, (3,), (3, 2)
Plant = Callable[[Planter], str]

# name: (code, formats, node, how to plant it; returns the key of the finding)
DEFECTS: dict[str, tuple[str, tuple[Any, ...], str, Plant]] = {
    "no JSON": ("document-invalid", ALL, "t2m", lambda p: p.put(p.document("t2m"), b"{not json")),
    "document is cut off": ("document-invalid", ALL, "t2m", lambda p: p.cut(p.document("t2m"), 20)),
    "document of the root is cut off": ("document-invalid", V3, "", lambda p: p.cut(p.document(""), 9)),
    "field is of another type": (
        "document-invalid", ALL, "t2m",
        lambda p: p.edit(p.document("t2m"), lambda document: document.update(shape="many"), copy=False),
    ),
    "codec is unknown": ("extension-unknown", ALL, "packed", unknown_codec),
    "attribute is NaN": ("document-literals", ALL, "deep/x", literal),
    "two formats": ("document-double", V3, "t2m", lambda p: p.put("t2m/.zarray", b'{"zarr_format": 2}')),
    "attributes of nothing": ("document-orphan", (2,), "nowhere", lambda p: p.put("nowhere/.zattrs", b"{}")),
    "group is lost": ("node-lost", WITH_COPIES, "nowhere/x", lost),
    "node of another format": ("node-other-format", ALL, "strange", other_format),
    "copy names what is gone": ("consolidated-stale", WITH_COPIES, "", stale),
    "copy lacks a node": ("consolidated-lacks", WITH_COPIES, "", lacks),
    "copy differs": ("consolidated-differs", WITH_COPIES, "", differing),
    "too few dimension names": (
        "dimension-names-invalid", (2,), "t2m", lambda p: p.set_attributes("t2m", _ARRAY_DIMENSIONS=["time"]),
    ),
    "no names in dimension names": (
        "dimension-names-invalid", (2,), "t2m", lambda p: p.set_attributes("t2m", _ARRAY_DIMENSIONS=[1, 2]),
    ),
    "missing chunk": ("chunks-missing", ALL, "t2m", lambda p: p.erase(p.chunk("t2m", 1, 0))),
    "all chunks are missing": (
        "chunks-missing", ALL, "deep/x", lambda p: p.erase(p.chunk("deep/x", 0), p.chunk("deep/x", 1))[:0],
    ),
    "empty chunk": ("chunk-empty", ALL, "t2m", lambda p: p.cut(p.chunk("t2m", 0, 1), 0)),
    "empty compressed chunk": ("chunk-empty", ALL, "packed", lambda p: p.cut(p.chunk("packed", 0, 1), 0)),
    "short chunk": ("chunk-size", ALL, "t2m", lambda p: p.cut(p.chunk("t2m", 0, 1), 5)),
    "huge chunk": ("chunk-size", ALL, "packed", lambda p: p.put(p.chunk("packed", 0, 1), bytes(2**23))),
    "chunk outside": ("chunk-outside", ALL, "t2m", lambda p: p.put(p.chunk("t2m", 2, 0))),
    "misnamed chunk": ("chunk-misnamed", ALL, "t2m", renamed),
    "chunks of a lost array": ("chunks-orphan", ALL, "deep", lambda p: gone(p, "deep/x")),
    "temporary file": ("key-temporary", ALL, "t2m", temporary),
    "foreign file": ("key-foreign", ALL, "", lambda p: p.put("README.md")),
    "short shard": ("shard-small", V3, "shards", lambda p: p.cut(p.shards(), 20)),
    "damaged index": ("shard-index", V3, "shards", lambda p: flip(p, -30)),
    "damaged checksum": ("shard-index", V3, "shards", lambda p: flip(p, -1)),
    "beyond the shard": ("shard-bounds", V3, "shards", indexed((3, 0), lambda index: 10**6)),
    "within the index": ("shard-bounds", V3, "shards", indexed((3, 0), lambda index: index[3, 0] + 8)),
    "overlap": ("shard-overlap", V3, "shards", indexed((1, 0), lambda index: index[1, 0] - 4)),
    "shared": ("shard-overlap", V3, "shards", indexed(1, lambda index: index[0])),
    "gap": ("shard-gaps", V3, "shards", indexed(1, lambda index: EMPTY)),
    "inner chunk of another size": ("chunk-size", V3, "shards", indexed((3, 1), lambda index: 7)),
    "empty inner chunk": ("chunk-empty", V3, "shards", indexed((3, 1), lambda index: 0)),
    "no zstd": ("chunk-damaged", ALL, "packed", lambda p: p.put(p.chunk("packed", 1, 1), b"\xff no")),
    "coordinate with NaN": ("coordinate-nan", ALL, "lat", lambda p: lat(p, [1, np.nan, 3, 4, 5, 6])),
    "coordinate not stored": ("coordinate-fill", ALL, "time", lambda p: p.erase(p.chunk("time", 1))),
    "fill in coordinate": ("coordinate-fill", (2,), "lat", lambda p: lat(p, [-2, -1, 0, 1], fill_value=0.0)),
    "fill value attribute in a coordinate": (
        "coordinate-fill", (3,), "lat",
        lambda p: lat(p, [1, 2, 3, -99, 5, 6], _FillValue=encode_fill_value(-99.0, np.dtype("f8"))),
    ),
}  # fmt: skip
CASES = [(name, each) for name, (_, formats, _, _) in DEFECTS.items() for each in formats]


@pytest.mark.parametrize(
    ("name", "zarr_format"),
    [case if case[1] == DEFECTS[case[0]][1][0] else slow(*case) for case in CASES],
    ids=[f"{name}-{each}" for name, each in CASES],
)
def test_a_defect_is_the_only_finding(name: str, zarr_format: Any) -> None:
    code, _, path, plant = DEFECTS[name]
    store = healthy(zarr_format)
    assert xzarr3.check(store, decode="all").findings == ()
    key = plant(Planter(store, zarr_format))
    report = xzarr3.check(store, decode="all")
    assert [(found.code, found.path, found.key) for found in report.findings] == [(code, path, key)], report
    (finding,) = report.findings
    assert (finding.severity, finding.remedy) == (CODES[code].severity, CODES[code].remedy)
    assert report.ok == (finding.severity != "error")
    assert finding.meaning
    assert code in str(report)
    assert json.loads(json.dumps(report.to_json()))["findings"][0]["code"] == code


def test_every_code_is_planted() -> None:
    elsewhere = {code for code in CODES if code.startswith("write-")}
    elsewhere |= {"keys-unlisted", "chunks-large", "chunk-unreadable", "consolidated-invalid"}
    assert {code for code, *_ in DEFECTS.values()} == CODES.keys() - elsewhere


KEPT = ("zarr-python-3.4.2/layouts3", "zarr-python-2.18.7/layouts", "tensorstore-0.1.86/v3",
        "netcdf-c-4.10.1/nczarr")  # fmt: skip


def flip_bits(chance: random.Random, store: MemoryStore, key: str) -> None:
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
        chance.choice((flip_bits, cut, grow, move, number))(chance, store, key)
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


@pytest.mark.parametrize("made", [*FORMATS, *KEPT])
def test_damaged_store(made: Any) -> None:
    is_ours = made in FORMATS
    store: Any = healthy(made) if is_ours else LocalStore(DATA / made, read_only=True)
    if made == 3:
        Planter(store, 3).shards()
    values = contents(store)
    for seed in range(120 if is_ours else 8):
        assert_report(damaged(values, seed))


def test_chunks_that_no_memory_holds_are_not_decoded() -> None:
    array = xzarr3.create_array(MemoryStore(), shape=2**33, chunks=2**33, dtype="i1", dimension_names=["x"])
    array.store.set("c/0", b"\x28\xb5\x2f\xfd")
    report = xzarr3.check(array.store, decode="all")
    assert ([finding.code for finding in report.findings], report.arrays[""].read) == (["chunks-large"], 0)


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
    printed_by(program, str(tmp_path / "packed"))
