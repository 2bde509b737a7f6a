"""Values that fsspec's ``http`` reads, asked for here, because its own requests look at the body alone.

Specification: RFC 9110, "Range Requests" and "Validator Fields". An HTML page, a body of another length than
was promised and another range than was asked for are errors. Each answer says of which version it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, NamedTuple

from xzarr3._types import Buffer
from xzarr3.concurrency import spread
from xzarr3.errors import shorten
from xzarr3.stores.fsspec_files import SETTLED, Files, FileSystem, Look, WrongBytesError, inner, protocols
from xzarr3.stores.in_flight import reserved

_HTTP = frozenset(("http", "https"))
_PAGES = ("text/html", "application/xhtml")
_NAMES_OF_PAGES = (".html", ".htm", ".xhtml")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)\s*", re.ASCII)
_BEYOND = re.compile(r"bytes \*/(\d+)\s*", re.ASCII)
_FAR = 2**63
_ABSENT = (404, 410)
_PARTIAL = 206
_NOT_SATISFIABLE = 416


class _Answer(NamedTuple):
    look: Look
    body: bytes


def is_web(fs: FileSystem) -> bool:
    """Whether it is a file system of fsspec for HTTP that reads in no way of its own."""
    if _HTTP.isdisjoint(protocols(fs)) or not hasattr(fs, "set_session"):
        return False
    from fsspec.implementations.http import HTTPFileSystem

    return isinstance(fs, HTTPFileSystem) and type(fs)._cat_file is HTTPFileSystem._cat_file


class WebFiles(Files):
    """Values of a web server. Ranges that it ignores are errors."""

    def _get(self, path: str, start: int, length: int | None, *, body: bool = True) -> _Answer | None:
        """A part of a value, shorter where the value ends, or without ``body`` only what is said of it."""
        from fsspec.asyn import sync

        loop = self.fs.loop
        asked = _range(start, length)
        with self._slots:
            response = sync(loop, self._ask_for, path, asked)
            try:
                promised = _promised(response, path, start, length, body=body)
                if promised is None:
                    return None
                look, size = promised
                if size == 0 or (not body and size != 1):
                    return _Answer(look, b"")
                with reserved(self.usual if size is None else size):
                    found: bytes = sync(loop, response.read)
            finally:
                loop.call_soon_threadsafe(response.release)
        if size is not None and len(found) != size:
            raise WrongBytesError(f"{size} bytes were promised, found {len(found)}")
        if size is None:
            self.note(len(found))
            look = look._replace(size=len(found))
        return _Answer(look, found)

    async def _ask_for(self, path: str, asked: str | None) -> Any:
        session = await self.fs.set_session()
        options = {**self.fs.kwargs, "raise_for_status": False}
        headers = {**(options.pop("headers", None) or {}), "Accept-Encoding": "identity"}
        if asked is not None:
            headers["Range"] = asked
        return await session.get(self.fs.encode_url(path), headers=headers, **options)

    def whole(self, path: str) -> Buffer | None:
        found = self._get(path, 0, None)
        return None if found is None else found.body

    def size(self, path: str) -> int | None:
        found = self.look(path)
        return None if found is None else found.size

    def look(self, path: str) -> Look | None:
        # Not by HEAD, which not every server answers, nor every signed URL.
        found = self._get(path, 0, 1, body=False)
        if found is not None and found.look.size is None:
            found = self._get(path, 0, None)
        return None if found is None else found.look

    def first(self, path: str, start: int, length: int) -> tuple[Look, Buffer] | None:
        return self._part(path, start, length)

    def part(self, path: str, start: int, length: int | None) -> Buffer | None:
        found = self._part(path, start, length)
        return None if found is None else found[1]

    def _part(self, path: str, start: int, length: int | None) -> tuple[Look, Buffer] | None:
        if length == 0 or start >= _FAR:
            look = self.look(path)
            return None if look is None else (look, b"")
        found = self._get(path, max(start, 1 - _FAR), None if start < 0 else length)
        if found is None:
            return None
        return found.look, found.body if length is None else memoryview(found.body)[:length]

    def exact(self, path: str, start: int, length: int) -> Buffer | None:
        return self.part(path, start, length)

    def parts(
        self, path: str, ranges: Sequence[tuple[int, int | None]], look: Look, *, check: bool = True
    ) -> list[Buffer] | None:
        found = spread(lambda wanted: self._part(path, *wanted), ranges, self.concurrency)
        parts = [part for one in found if one is not None and one[0].is_same(look) for part in one[1:]]
        return parts if len(parts) == len(ranges) else None


def _range(start: int, length: int | None) -> str | None:
    if start < 0:
        return f"bytes={start}"
    if length is None:
        return f"bytes={start}-" if start else None
    return f"bytes={start}-{min(start + length, _FAR) - 1}"


def _promised(
    response: Any, path: str, start: int, length: int | None, *, body: bool
) -> tuple[Look, int | None] | None:
    """What an answer says of a value, and how many bytes of it it brings, None if it does not say that.

    Parameters
    ----------
    response : ClientResponse
    path : str
    start, length : int
        What was asked for.
    body : bool
        Whether its bytes are wanted; all of them may be there otherwise.

    Raises
    ------
    WrongBytesError
        If it is not what was asked for.
    """
    headers: Mapping[str, str] = response.headers
    status = response.status
    if status in _ABSENT:
        return None
    ranged = _range(start, length) is not None
    if status == _NOT_SATISFIABLE and ranged:
        beyond = _BEYOND.fullmatch(headers.get("Content-Range", ""))
        if beyond is not None and (start >= int(beyond[1]) or int(beyond[1]) == 0):
            return _look(headers, int(beyond[1])), 0
    if status >= 400:
        response.raise_for_status()
    check_page(response, path)
    encoded = headers.get("Content-Encoding", "identity").lower() != "identity"
    count = None if encoded else response.content_length
    if status == 200 and not (ranged and body):
        _check_length(response)
        return _look(headers, count), count
    if status == 200 and count == 0 and not encoded:
        return _look(headers, 0), 0
    if status != _PARTIAL or not ranged:
        wanted = f"{_PARTIAL}, of servers that support ranges" if ranged else "200"
        raise WrongBytesError(f"the status is {status}; accepted: {wanted}")
    found = _RANGE.fullmatch(headers.get("Content-Range", ""))
    if found is None or encoded:
        raise WrongBytesError(
            f"the answer is no range of the value: Content-Range {shorten(headers.get('Content-Range'))}, "
            f"Content-Encoding {shorten(headers.get('Content-Encoding'))}"
        )
    first, stop, size = int(found[1]), int(found[2]) + 1, int(found[3])
    begin = max(size + start, 0) if start < 0 else start
    end = size if length is None or start < 0 else min(start + length, size)
    if (first, stop) != (begin, end) or count not in (None, stop - first):
        raise WrongBytesError(f"asked for bytes {begin} to {end} of {size}, found {first} to {stop}")
    return _look(headers, size), stop - first


def check_page(response: Any, path: str) -> None:
    """See to it that an answer is no HTML page."""
    kind = response.headers.get("Content-Type", "").lower()
    if kind.startswith(_PAGES) and not path.partition("?")[0].endswith(_NAMES_OF_PAGES):
        raise WrongBytesError("the answer is an HTML page, as of a server that asks to log in")


def _check_length(response: Any) -> None:
    """See to it that it will be noticed if the body ends too early."""
    chunked = "chunked" in response.headers.get("Transfer-Encoding", "").lower()
    if response.content_length is None and not chunked:
        raise WrongBytesError("the answer does not say how long it is")


def _look(headers: Mapping[str, str], size: int | None) -> Look:
    """What the headers of an answer say of the version of a value."""
    tag, modified = headers.get("ETag"), headers.get("Last-Modified")
    if modified is not None:
        # Many a server makes the tag of the time in seconds, too.
        written, now = _seconds(modified), _seconds(headers.get("Date")) or time.time()
        if written is None or now - written < SETTLED:
            return Look(size, None)
    if tag is not None and tag.startswith('"'):
        return Look(size, (tag,), exact=True)
    return Look(size, None if modified is None else (tag, modified))


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def guarded(fs: FileSystem) -> FileSystem:
    """A cache of fsspec that takes no HTML page for a file, where it gets its files from a web server."""
    below = inner(fs)
    if below is None or below is not object.__getattribute__(fs, "__dict__").get("fs"):
        return fs
    own: FileSystem
    if is_web(below):
        arguments = [argument for argument in below.storage_args if argument is not below]
        kind: Any = type(below)
        own = _careful(kind)(*arguments, **{**below.storage_options, "skip_instance_cache": True})
        own.kwargs = {**below.kwargs, "raise_for_status": _check}
    else:
        own = guarded(below)
    if own is below:
        return fs
    twin = object.__new__(type(fs))
    attributes = object.__getattribute__(twin, "__dict__")
    attributes.update(object.__getattribute__(fs, "__dict__"))
    attributes["fs"] = own
    return twin


@cache
def _careful(kind: Any) -> Any:
    """A kind of file systems that leaves no file behind if it could not get all of it."""

    class Careful(kind):  # type: ignore[misc]
        async def _get_file(self, rpath: str, lpath: Any, **options: Any) -> None:
            try:
                await super()._get_file(rpath, lpath, **options)
            except BaseException:
                if isinstance(lpath, (str, os.PathLike)):
                    with contextlib.suppress(OSError):  # The error of the download is the one to report.
                        os.unlink(lpath)
                raise

    return Careful


async def _check(response: Any) -> None:
    """What a session of aiohttp calls with each answer."""
    if response.status < 400:
        check_page(response, response.url.path)
        if response.status == 200:
            _check_length(response)
        asked = response.request_info.headers.get("Range")
        if asked is not None and response.request_info.method == "GET" and response.status == _PARTIAL:
            begin, _, last = asked.removeprefix("bytes=").partition("-")
            found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if found is None or (begin and int(begin) != int(found[1])):
                raise WrongBytesError(f"asked for {asked}, found {response.headers.get('Content-Range')}")
            if begin and last and int(found[2]) != min(int(last), int(found[3]) - 1):
                raise WrongBytesError(f"asked for {asked}, found {response.headers.get('Content-Range')}")
