"""Stores: where keys and values live."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from xzarr3.errors import StoreError
from xzarr3.stores.base import Store, ValueReader, check_key, check_prefix, cut
from xzarr3.stores.local import LocalStore
from xzarr3.stores.memory import MemoryStore

__all__ = [
    "LocalStore",
    "MemoryStore",
    "Store",
    "StoreLike",
    "ValueReader",
    "check_key",
    "check_prefix",
    "cut",
    "open_store",
]

StoreLike = str | os.PathLike[str] | Store


def open_store(store: StoreLike) -> Store:
    """The store that a path, a ``file://`` URL or a ready store stands for.

    Raises
    ------
    StoreError
        If it is a URL of another kind.
    TypeError
        If it is none of these.

    Examples
    --------
    >>> open_store("/data/era5.zarr")
    <LocalStore '/data/era5.zarr'>
    """
    if isinstance(store, Store):
        return store
    if not isinstance(store, (str, os.PathLike)):
        raise TypeError(f"not a store: {type(store).__name__}; accepted: a path, a file:// URL or a Store")
    location = os.fspath(store)
    if not location:
        raise StoreError("no store at the empty path; accepted: a path, '.' for the current directory")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)(::|://)", location)
    if scheme is None:
        return LocalStore(location)
    if scheme[0].lower() != "file://":
        raise StoreError(f"no store for URLs of '{scheme[1]}': {location!r}; accepted: a local path, file://")
    url = urlsplit(location)
    if url.netloc not in ("", "localhost") or not url.path.startswith("/") or url.query or url.fragment:
        raise StoreError(
            f"not a URL of a directory: {location!r}; accepted: 'file:///' and an absolute path, '#' and '?' "
            "in it spelled as '%23' and '%3F'"
        )
    return LocalStore(unquote(url.path))
