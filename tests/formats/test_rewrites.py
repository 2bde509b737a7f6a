"""A rewritten document loses nothing: tests over every document that other writers left in ``tests/data``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _documents import text
from _strategies import attempt
from _things import case

from xzarr3 import MetadataError
from xzarr3.formats import V2, V3, documents
from xzarr3.model.metadata import ArrayMetadata

DATA = Path(__file__).parents[1] / "data"
V2_NAMES = (".zarray", ".zgroup", ".zattrs", ".nczarray")


def held_documents() -> dict[str, tuple[Any, Any]]:
    """The format and the documents of every node, by its path, those of consolidated copies included."""
    found: dict[str, tuple[Any, Any]] = {}
    for path in sorted(DATA.rglob("zarr.json")):
        name, document = str(path.parent.relative_to(DATA)), documents.decode(path.read_bytes())
        below = (document.get("consolidated_metadata") or {}).get("metadata", {})
        found |= {name: (V3, document)} | {f"{name}//{each}": (V3, held) for each, held in below.items()}
    for folder in sorted({path.parent for name in (".zarray", ".zgroup") for path in DATA.rglob(name)}):
        paths = [folder / name for name in V2_NAMES if (folder / name).exists()]
        found[str(folder.relative_to(DATA))] = (
            V2,
            {path.name: documents.decode(path.read_bytes()) for path in paths},
        )
    return found


def metadata_of(name: str) -> Any:
    format, held = HELD[name]
    return attempt(lambda: format.parse(held, name), MetadataError)[0]


HELD = held_documents()
READ = [name for name in HELD if metadata_of(name) is not None]
WRITERS = sorted({name.partition("/")[0] for name in READ})


def without(held: Any, *fields: str) -> Any:
    """Documents without some of their fields, and without those that a rewrite adds with nothing in them."""
    if "zarr_format" in held:
        return {name: value for name, value in held.items() if name not in fields}
    return {
        name: without({"zarr_format": 2, **document}, *fields) if name != ".zattrs" else document
        for name, document in held.items()
        if name in (".zarray", ".zgroup") or (name == ".zattrs" and document and "attributes" not in fields)
    }


def test_there_are_documents_of_every_writer() -> None:
    assert len(HELD) - 25 < len(READ) > 500
    assert {name.partition("/")[0].rpartition("-")[0] for name in HELD} >= {"gdal", "netcdf-c", "tensorstore"}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_rewrite_loses_nothing(writer: str) -> None:
    for name in READ:
        if name.startswith(f"{writer}/"):
            with case(name):
                check_rewrite(name)


def check_rewrite(name: str) -> None:
    """Written again a node is as it was, and with a change in one field it differs in that field alone."""
    (format, held), meta = HELD[name], metadata_of(name)

    def check(changed: Any, *fields: str) -> Any:
        # What is in the documents, whatever they are kept in.
        found, fields = json.loads(text(format.hold(changed))), ("consolidated_metadata", *fields)
        assert text(without(found, *fields)) == text(without(json.loads(text(held)), *fields))
        return format.parse(found, name)

    check(meta)
    added = replace(meta, attributes={**meta.attributes, "added": [1]})
    assert check(added, "attributes").attributes["added"] == [1]
    if isinstance(meta, ArrayMetadata):
        assert format.parse(format.hold(replace(meta, origin=None)), name).stores_as(meta)
        if meta.shape and meta.chunk_grid.is_regular:
            shape = (meta.shape[0] + 1, *meta.shape[1:])
            assert check(replace(meta, shape=shape), "shape").shape == shape
