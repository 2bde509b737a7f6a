"""Every defect is planted in every format that can have it, and is the only finding."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from _defects import FORMATS, Planter, healthy
from _slow import slow

import xzarr3
from xzarr3.checks.report import CODES

EMPTY = 2**64 - 1


def flip(store: Any, key: str, at: int) -> str:
    """Change one byte of a value."""
    value = bytearray(bytes(store.get(key)))
    value[at] ^= 0xFF
    store.set(key, bytes(value))
    return key


def cut(store: Any, key: str, size: int) -> str:
    """Keep the first bytes of a value."""
    store.set(key, bytes(store.get(key))[:size])
    return key


def put(store: Any, key: str, value: bytes = b"1") -> str:
    """Store a value."""
    store.set(key, value)
    return key


def erase(store: Any, *keys: str) -> str:
    """Erase keys; returns the first."""
    store.erase_values(keys)
    return keys[0]


def gone(plant: Planter, path: str) -> str:
    """Erase the documents of an array and its copies; returns the key of its first chunk."""
    first = plant.chunk(path, 0)
    erase(plant.store, *plant.format.keys(path).documents)
    plant.copy()
    return first


def stale(plant: Planter) -> str:
    """Erase an array beside its copy."""
    erase(plant.store, *plant.format.keys("packed").documents)
    erase(plant.store, *(plant_key for plant_key in list(plant.store.list()) if "packed/" in plant_key))
    return str(plant.format.keys("").consolidated)


def differing(plant: Planter) -> str:
    """Change attributes beside their copy."""

    def change(document: dict[str, Any]) -> None:
        (document if plant.zarr_format == 2 else document["attributes"]).update(units="m")

    plant.edit(plant.attributes("t2m"), change, copy=False)
    return str(plant.format.keys("").consolidated)


def lacks(plant: Planter) -> str:
    """Add an array beside the copies."""
    key = str(plant.format.keys("").consolidated)
    before = plant.store.get(key)
    xzarr3.create_array(plant.store, "added", data=[1])
    plant.store.set(key, before)
    return key


def lat(plant: Planter, values: Any, fill_value: Any = None, **attributes: Any) -> str:
    """Add a coordinate of floats."""
    xzarr3.create_array(
        plant.store, "lat", data=np.asarray(values, "float64"), dimension_names=("lat",),
        attributes=attributes, fill_value=fill_value,
    )  # fmt: skip
    plant.copy()
    return ""


def other_format(plant: Planter) -> str:
    """An array of another format in the hierarchy."""
    if plant.zarr_format == 2:
        return put(plant.store, "strange/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    return put(plant.store, "strange/.zgroup", b'{"zarr_format": 2}')


def double(plant: Planter) -> str:
    """Documents of two formats for one node."""
    return put(plant.store, "t2m/.zarray", b'{"zarr_format": 2}')


def wrong_type(document: dict[str, Any]) -> None:
    document["shape"] = "many"


def unknown_codec(plant: Planter) -> str:
    """A compressor that nobody has."""

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
    document = json.loads(bytes(plant.store.get(key) or b"{}"))
    (document if plant.zarr_format == 2 else document["attributes"])["valid"] = float("nan")
    put(plant.store, key, json.dumps(document).encode())
    if plant.zarr_format == 3:  # the copy would have it, too
        plant.edit("zarr.json", lambda document: document.pop("consolidated_metadata"), copy=False)
    else:
        plant.copy()
    return key


def dims(plant: Planter, names: list[Any]) -> str:
    """Dimension names of an array."""
    if plant.zarr_format != 2:
        key = plant.document("t2m")
        return plant.edit(key, lambda document: document.update(dimension_names=names))
    return plant.set_attributes("t2m", _ARRAY_DIMENSIONS=names)


def lost(plant: Planter) -> str:
    """A node below a group without a document."""
    key = plant.document("nowhere/x")
    return put(plant.store, key, bytes(plant.store.get(plant.document("deep/x"))))


def orphan_attributes(plant: Planter) -> str:
    return put(plant.store, "nowhere/.zattrs", b"{}")


def renamed(plant: Planter) -> str:
    """A chunk under a key of another form."""
    prefix = plant.format.keys("t2m").chunks
    return put(plant.store, prefix + {3: "0.1", 2: "0/1", "3-draft": "0.1"}[plant.zarr_format])


def shared(index: Any) -> None:
    index[1] = index[0]


def overlapping(index: Any) -> None:
    index[1, 0] -= 4


def beyond(index: Any) -> None:
    index[3, 0] = 10**6


def into_index(index: Any) -> None:
    index[3, 0] += 8


def gap(index: Any) -> None:
    index[1] = EMPTY


def damaged_packed(plant: Planter) -> str:
    key = plant.chunk("packed", 1, 1)
    return put(plant.store, key, b"\xffnot compressed at all")


ALL, V3_ONLY, WITH_COPIES = FORMATS, (3,), (3, 2)
Plant = Callable[[Planter], str]

# name: (code, formats, node, how to plant it; returns the key of the finding)
DEFECTS: dict[str, tuple[str, tuple[Any, ...], str, Plant]] = {
    "document is no JSON": (
        "document-invalid", ALL, "t2m", lambda p: put(p.store, p.document("t2m"), b"{not json"),
    ),
    "document is cut off": ("document-invalid", ALL, "t2m", lambda p: cut(p.store, p.document("t2m"), 20)),
    "field is of another type": (
        "document-invalid", ALL, "t2m", lambda p: p.edit(p.document("t2m"), wrong_type, copy=False),
    ),
    "codec is unknown": ("extension-unknown", ALL, "packed", unknown_codec),
    "attribute is NaN": ("document-literals", ALL, "deep/x", literal),
    "two formats": ("document-double", V3_ONLY, "t2m", double),
    "attributes of nothing": ("document-orphan", (2,), "nowhere", orphan_attributes),
    "group is lost": ("node-lost", WITH_COPIES, "nowhere/x", lost),
    "node of another format": ("node-other-format", ALL, "strange", other_format),
    "copy names what is gone": ("consolidated-stale", WITH_COPIES, "", stale),
    "copy lacks a node": ("consolidated-lacks", WITH_COPIES, "", lacks),
    "copy differs": (
        "consolidated-differs", WITH_COPIES, "",
        differing,
    ),
    "too few dimension names": ("dimension-names-invalid", (2,), "t2m", lambda p: dims(p, ["time"])),
    "no names in dimension names": ("dimension-names-invalid", (2,), "t2m", lambda p: dims(p, [1, 2])),
    "missing chunk": ("chunks-missing", ALL, "t2m", lambda p: erase(p.store, p.chunk("t2m", 1, 0))),
    "all chunks are missing": (
        "chunks-missing", ALL, "deep/x",
        lambda p: erase(p.store, p.chunk("deep/x", 0), p.chunk("deep/x", 1))[:0],
    ),
    "empty chunk": ("chunk-empty", ALL, "t2m", lambda p: cut(p.store, p.chunk("t2m", 0, 1), 0)),
    "empty compressed chunk": (
        "chunk-empty", ALL, "packed", lambda p: cut(p.store, p.chunk("packed", 0, 1), 0),
    ),
    "short chunk": ("chunk-size", ALL, "t2m", lambda p: cut(p.store, p.chunk("t2m", 0, 1), 5)),
    "huge compressed chunk": (
        "chunk-size", ALL, "packed", lambda p: put(p.store, p.chunk("packed", 0, 1), bytes(2**23)),
    ),
    "chunk outside": ("chunk-outside", ALL, "t2m", lambda p: put(p.store, p.chunk("t2m", 2, 0))),
    "misnamed chunk": ("chunk-misnamed", ALL, "t2m", renamed),
    "chunks of a lost array": ("chunks-orphan", ALL, "deep", lambda p: gone(p, "deep/x")),
    "temporary file": (
        "key-temporary", ALL, "t2m",
        lambda p: put(p.store, p.chunk("t2m", 0, 0) + ".0123456789abcdef.partial")
        if p.zarr_format != "3-draft" else put(p.store, "data/t2m/c0/0.0123.partial"),
    ),
    "foreign file": ("key-foreign", ALL, "", lambda p: put(p.store, "README.md")),
    "short shard": ("shard-small", V3_ONLY, "shards", lambda p: cut(p.store, p.shards(), 20)),
    "damaged index": ("shard-index", V3_ONLY, "shards", lambda p: flip(p.store, p.shards(), -30)),
    "damaged checksum": ("shard-index", V3_ONLY, "shards", lambda p: flip(p.store, p.shards(), -1)),
    "beyond the shard": ("shard-bounds", V3_ONLY, "shards", lambda p: p.edit_index(beyond)),
    "within the index": ("shard-bounds", V3_ONLY, "shards", lambda p: p.edit_index(into_index)),
    "overlap": ("shard-overlap", V3_ONLY, "shards", lambda p: p.edit_index(overlapping)),
    "shared": ("shard-overlap", V3_ONLY, "shards", lambda p: p.edit_index(shared)),
    "gap": ("shard-gaps", V3_ONLY, "shards", lambda p: p.edit_index(gap)),
    "inner chunk of another size": (
        "chunk-size", V3_ONLY, "shards", lambda p: p.edit_index(lambda index: index.__setitem__((3, 1), 7)),
    ),
    "empty inner chunk": (
        "chunk-empty", V3_ONLY, "shards", lambda p: p.edit_index(lambda index: index.__setitem__((3, 1), 0)),
    ),
    "damaged chunk": ("chunk-damaged", ALL, "packed", damaged_packed),
    "coordinate with NaN": ("coordinate-nan", ALL, "lat", lambda p: lat(p, [1, np.nan, 3, 4, 5, 6])),
    "coordinate that is not stored": (
        "coordinate-fill", ALL, "time", lambda p: erase(p.store, p.chunk("time", 1)),
    ),
    "fill value in a coordinate": (
        "coordinate-fill", (2,), "lat", lambda p: lat(p, [-3, -2, -1, 0, 1, 2], fill_value=0.0),
    ),
    "fill value attribute in a coordinate": (
        "coordinate-fill", (3,), "lat",
        lambda p: lat(p, [1, 2, 3, -99, 5, 6], _FillValue=xzarr3_fill(-99.0)),
    ),
}  # fmt: skip


def xzarr3_fill(value: float) -> Any:
    """A fill value as xarray writes it in attributes."""
    from xzarr3.conventions.fill_value_attribute import encode_fill_value

    return encode_fill_value(value, np.dtype("float64"))


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
