"""A web server of files on loopback that takes its time, as servers far away do.

Run as a program: `python slow_link.py DIRECTORY SECONDS`; it prints its port and ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote

LIFETIME_S = 1800.0
"""Seconds after which it ends, whatever happens."""

_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One connection; each answer is sent a while after its request came."""

    def __init__(self, root: Path, delay: float, kept: dict[str, bytes | None]) -> None:
        self._root = root
        self._delay = delay
        self._kept = kept
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head, self._received = self._received[:end], self._received[end + 4 :]
            asyncio.get_running_loop().call_later(self._delay, self._answer, head)

    def _answer(self, head: bytes) -> None:
        method, path, _ = head.split(b"\r\n", 1)[0].split(b" ")
        value = self._value(unquote(path.decode())) if method in (b"GET", b"HEAD") else None
        if value is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        status, more, body = b"200 OK", b"", value
        found = _RANGE.search(head)
        if found:
            first, last = found.groups()
            start = int(first) if first else max(len(value) - int(last), 0)
            stop = min(int(last) + 1, len(value)) if first and last else len(value)
            status, body = b"206 Partial Content", value[start:stop]
            more = b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, len(value))
        self._transport.write(
            b'HTTP/1.1 %b\r\nETag: "%d"\r\nLast-Modified: Fri, 02 Jan 2026 00:00:00 GMT\r\n%b'
            b"Content-Length: %d\r\n\r\n" % (status, len(value), more, len(body))
        )
        if method == b"GET":
            self._transport.write(body)

    def _value(self, path: str) -> bytes | None:
        """A file's content; all of them are kept, so that the disk takes no part in what is measured."""
        if path not in self._kept:
            file = self._root / path.lstrip("/")
            inside = ".." not in path.split("/") and file.is_file()
            self._kept[path] = file.read_bytes() if inside else None
        return self._kept[path]


async def serve(root: Path, delay: float) -> None:
    """Serve the files below `root` until standard input ends."""
    loop = asyncio.get_running_loop()
    kept: dict[str, bytes | None] = {}
    server = await loop.create_server(lambda: Connection(root, delay, kept), "127.0.0.1", backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(sys.stdin.read), LIFETIME_S)


@contextlib.contextmanager
def served(root: Path, delay: float) -> Iterator[str]:
    """Serve the files below `root` with `delay` seconds of latency; yields the URL."""
    command = [sys.executable, __file__, str(root), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(cast('IO[str]', process.stdout).readline())}"
        finally:
            process.communicate("")


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2])))
