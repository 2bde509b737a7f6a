"""What an array of a kept store holds, as JSON: written by the scripts here, read by the tests.

The values of a data type of fixed size are its bytes in C order, in base64, beside the dtype they had;
those of strings, bytes and JSON objects are a list. Nothing here needs more than numpy.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path

import numpy as np


def of_values(values, kind=None):
    """The record of an array: shape, dtype and values; ``kind`` is "bytes" or "json" for such objects."""
    values = np.asarray(values)
    record = {"shape": list(values.shape)}
    if values.dtype.kind in "OT":
        items = list(values.ravel())
        record["dtype"] = kind or "str"
        record["values"] = [b64encode(item).decode() for item in items] if kind == "bytes" else items
        return record
    if values.dtype.isbuiltin == 2:
        record["dtype"] = values.dtype.name
    else:
        record["dtype"] = values.dtype.str if values.dtype.names is None else values.dtype.descr
    record["values"] = b64encode(values.tobytes()).decode()
    return record


def as_dtype(written):
    """The dtype of a record: of JSON, a list stands for each tuple of a numpy description."""
    if isinstance(written, str):
        if written[0] not in "<>|":
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, written))
        return np.dtype(written)
    return np.dtype([(name, as_dtype(of), *map(tuple, shape)) for name, of, *shape in written])


def to_values(record):
    """The array a record stands for; objects come as an array of Python objects."""
    shape = tuple(record["shape"])
    if record["dtype"] not in ("str", "bytes", "json"):
        dtype = as_dtype(record["dtype"])
        return np.frombuffer(b64decode(record["values"]), dtype).reshape(shape)
    items = record["values"]
    values = np.empty(len(items), dtype=object)
    for at, item in enumerate(items):
        values[at] = b64decode(item) if record["dtype"] == "bytes" else item
    return values.reshape(shape)


class Expected:
    """The records of one store, saved beside it as ``<name>.json``."""

    def __init__(self, store):
        self.store = Path(store)
        self.arrays = {}
        self.groups = {}
        self.refused = {}

    def array(self, path, values, *, kind=None, names=None, fill=None, attributes=None):
        """Keep what an array holds."""
        record = of_values(values, kind)
        if fill is not None:
            record["fill"] = of_values(fill)["values"] if np.asarray(fill).dtype.kind != "O" else fill
        if names is not None:
            record["names"] = list(names)
        if attributes:
            record["attributes"] = attributes
        self.arrays[path] = record

    def group(self, path, attributes=None):
        """Keep what a group has."""
        self.groups[path] = {"attributes": dict(attributes or {})}

    def refuse(self, path, why):
        """Keep that an array must not be read."""
        self.refused[path] = why

    def save(self):
        """Write the file: one line for each node."""
        sections = []
        for name in ("groups", "arrays", "refused"):
            nodes = getattr(self, name)
            lines = [f"    {json.dumps(path)}: {json.dumps(nodes[path])}" for path in sorted(nodes)]
            body = ",\n".join(lines)
            sections.append(f'  "{name}": {{' + (f"\n{body}\n  }}" if lines else "}"))
        text = "{\n" + ",\n".join(sections) + "\n}\n"
        self.store.with_name(self.store.name + ".json").write_text(text)
