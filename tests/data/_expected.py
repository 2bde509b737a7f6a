"""What an array of a kept store holds, as JSON: written beside the stores, read by the tests.

The values of a data type of fixed size are its bytes in C order, in base64, beside the dtype they had;
those of strings, bytes and JSON objects are a list. Nothing here needs more than numpy.
"""

from base64 import b64decode, b64encode

import numpy as np


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
