"""Files of web servers to which references point, read by :class:`ObjectStore`.

fsspec's own HTTP requests look only at the body of an answer. An HTML page or a wrong range would pass as
data.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from xzarr3._types import Buffer
from xzarr3.errors import StoreOptionError, listed
from xzarr3.stores.base import Store
from xzarr3.stores.fsspec.files import FileInfo, Files, FileSystem


def is_web(fs: FileSystem) -> bool:
    """Whether a file system is fsspec's own for HTTP, and no derived class with its own way of reading."""
    kind = type(fs)
    return kind.__name__ == "HTTPFileSystem" and kind.__module__ == "fsspec.implementations.http"


def web_store(fs: FileSystem, url: str, **settings: Any) -> Store:
    """The store below a URL, with the headers of an HTTP file system.

    Raises
    ------
    StoreOptionError
        If the file system has other options, which may mean something else to an :class:`ObjectStore`.
    """
    from xzarr3.stores.object.store import ObjectStore

    given = {**fs.client_kwargs, **fs.kwargs}
    unknown = sorted(given.keys() - {"headers", "trust_env"})
    if fs.get_client.__module__ != type(fs).__module__:
        unknown.append("get_client")
    if unknown:
        raise StoreOptionError(
            f"options {listed(unknown)} of fsspec's file system for HTTP have no meaning here; accepted: "
            "headers; or use an https:// URL, with other settings in the storage_options of ObjectStore"
        )
    headers = {**(fs.client_kwargs.get("headers") or {}), **(fs.kwargs.get("headers") or {})}
    options = {"headers": {str(name): str(value) for name, value in headers.items()}} if headers else {}
    return ObjectStore.from_url(url, storage_options=options, **settings)


class WebFiles(Files):
    """Files of web servers, by URL.

    URLs with a query, such as signed ones, are read by fsspec's own requests, whose lengths are checked.
    """

    def __init__(self, fs: FileSystem, concurrency: int | None = None) -> None:
        super().__init__(fs, concurrency)
        self._stores: dict[str, Store] = {}

    def _at(self, url: str) -> tuple[Store, str]:
        """The store of a server, and the key of a file in it."""
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.netloc}"
        if place not in self._stores:
            self._stores[place] = web_store(self.fs, place, concurrency=self.concurrency)
        return self._stores[place], unquote(parts.path).lstrip("/")

    def look(self, path: str) -> FileInfo | None:
        if "?" in path:
            return super().look(path)
        store, key = self._at(path)
        reader = store.reader().open(key, (0, 1))  # Not by HEAD, which not every server supports.
        if reader is None:
            return None
        size = len(reader.read(0)) if reader.size is None else reader.size
        return FileInfo(size, None if reader.version is None else (reader.version,))

    def _bytes(self, path: str, start: int = 0, end: int | None = None) -> Buffer | None:
        if "?" in path:
            return super()._bytes(path, start, end)
        store, key = self._at(path)
        return store.get(key, (start, None if end is None else end - start))
