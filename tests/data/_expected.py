"""What an array of a kept store holds, as JSON: written by the scripts here, read by the tests.

The values of a data type of fixed size are its bytes in C order, in base64, beside the dtype they had;
those of strings, bytes and JSON objects are a list. Nothing here needs more than numpy.
"""

import json
from base64 import b64decode, b64encode
from pathlib import Path

import numpy as np

NUMBERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
FILLS = {
    "nan": ("<f8", np.nan), "inf": ("<f8", np.inf), "minus_inf": ("<f4", -np.inf),
    "minus_zero": ("<f8", -0.0), "tenth": ("<f8", 0.1), "tenth_f4": ("<f4", 0.1), "f2": ("<f2", 0.1),
    "complex": ("<c16", complex(np.nan, -np.inf)), "u8": ("<u8", 2**64 - 1), "i8": ("<i8", -(2**63)),
    "true": ("|b1", True), "bytes": ("|S3", b"\xff\x00a"), "text": ("<U3", "日本"),
    "void": ("|V2", np.void(b"\xff\x00")), "nat": ("<M8[ns]", np.datetime64("NaT", "ns")),
}  # fmt: skip


def any_bits(random, dtype, shape=(5,)):
    """Values of a dtype of any bits at all."""
    dtype = np.dtype(dtype)
    return np.frombuffer(random.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def objects(items):
    """An array of Python objects."""
    items = list(items)
    values = np.empty(len(items), dtype=object)
    values[:] = items
    return values


def of_values(values, kind=None):
    """The record of an array: shape, dtype and values; ``kind`` may say what objects are, as "json"."""
    values = np.asarray(values)
    record = {"shape": list(values.shape)}
    if values.dtype.kind in "OT":
        items = list(values.ravel())
        kind = kind or ("bytes" if isinstance(items[0], bytes) else "str")
        values = [b64encode(item).decode() for item in items] if kind == "bytes" else items
        return {**record, "dtype": kind, "values": values}
    dtype = values.dtype
    written = dtype.name if dtype.isbuiltin == 2 else dtype.str if dtype.names is None else dtype.descr
    return {**record, "dtype": written, "values": b64encode(values.tobytes()).decode()}


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
    return objects(map(b64decode, items) if record["dtype"] == "bytes" else items).reshape(shape)


class Expected:
    """The records of one store, saved beside it as ``<name>.json``."""

    def __init__(self, store):
        self.store, self.groups, self.arrays = Path(store), {}, {}

    def array(self, path, values, *, names=None, fill=None, attributes=None):
        record = of_values(values)
        if fill is not None:
            record["fill"] = of_values(fill)["values"] if np.asarray(fill).dtype.kind != "O" else fill
        if names is not None:
            record["names"] = list(names)
        if attributes:
            record["attributes"] = attributes
        self.arrays[path] = record

    def group(self, path, attributes=None):
        self.groups[path] = {"attributes": dict(attributes or {})}

    def save(self):
        sections = []
        for name, nodes in (("groups", self.groups), ("arrays", self.arrays), ("refused", {})):
            lines = [f"    {json.dumps(path)}: {json.dumps(nodes[path])}" for path in sorted(nodes)]
            body = ",\n".join(lines)
            sections.append(f'  "{name}": {{' + (f"\n{body}\n  }}" if lines else "}"))
        text = "{\n" + ",\n".join(sections) + "\n}\n"
        self.store.with_name(self.store.name + ".json").write_text(text)
