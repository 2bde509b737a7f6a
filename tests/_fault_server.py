"""A small HTTP server that keeps values by key and misbehaves as it is told.

It is a process of its own. ``FaultServer.start()`` starts it and is what a test talks to:

>>> with FaultServer.start() as server:
...     server.put("/bucket/a", b"value")
...     rule = server.fault("status", "/bucket/*", times=2, status=503)

One space of keys answers as a plain web server, as S3 (path style, ListObjectsV2, bulk deletion, multipart
uploads) and as the XML interface of Google's storage (generations). The first segment of a path is the
bucket; nobody has to make it. Values are in memory. Faults are rules for the requests whose path matches a
pattern, see `FaultServer.fault`. The server ends when the process that started it is gone, and after a
time limit.
"""

from __future__ import annotations

import asyncio
import base64
import fnmatch
import hashlib
import http.client
import itertools
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape, unescape

CONTROL = "/-/control"
LOGIN = "/-/login"
LOGIN_PAGE = b"<!DOCTYPE html><html><title>Log in</title><body><form>Password</form></body></html>\n"

KINDS = {
    "status": "the answer is `status` (503) with `headers` and `body`, and nothing is done",
    "hang": "the request is taken and never answered",
    "reset": "the connection is reset instead of an answer",
    "reset-body": "the connection is reset after half of the body, or at once without one",
    "short": "the connection is closed in good order after half of the promised body",
    "chunked": "chunked transfer that ends after half of the body, without its last chunk",
    "no-length": "neither Content-Length nor chunks: the body ends where the connection does",
    "slow": "the body comes in `pieces` (10) over `seconds` (1.0)",
    "ignore-range": "200 with the whole body, whatever range was asked",
    "wrong-range": "206 with a range that begins `shift` (1) bytes later than asked, and says so",
    "narrow-range": "206 with the first half of the range, and says so",
    "html": "200 with a page that asks for a password",
    "redirect": "`status` (302) to `location` (a page that asks for a password)",
    "headers": "the ordinary answer with `headers` replaced, without those that are None, as in any answer",
    "lost-answer": "the request is carried out, then the connection is reset",
    "ignore-conditions": "If-Match, If-None-Match and generations have no effect on puts and deletions",
    "no-conditions": "501 for a request that puts or deletes under a condition",
    "overwrite": "somebody else was faster: `value` is put first, then the ordinary answer comes",
}
SETTINGS = {
    "latency": 0.0,  # Seconds that every answer takes.
    "delete_missing": 204,  # The status when there is nothing to delete; Google has 404.
    "match_missing": 412,  # That of a put with If-Match when there is no value; S3 has 404.
    "max_keys": 1000,  # On a page of a listing.
}
CONDITIONS = ("if-match", "if-none-match", "x-goog-if-generation-match")


@dataclass(slots=True)
class _Stored:
    body: bytes
    etag: str
    generation: int
    modified: float


@dataclass(slots=True)
class _Rule:
    kind: str
    pattern: str
    methods: list[str] | None
    times: float | None
    after: int
    share: float
    signed: bool | None
    parameters: dict[str, Any]
    number: int
    seen: int = 0

    @property
    def hits(self) -> int:
        return max(self.seen - self.after, 0)

    def fits(self, request: _Request, chance: random.Random) -> bool:
        """Whether it is for this request, some that pass before included."""
        return (
            (self.times is None or self.hits < self.times)
            and (self.methods is None or request.method in self.methods)
            and self.signed in (None, "authorization" in request.headers)
            and fnmatch.fnmatchcase(request.path, self.pattern)
            and (self.share >= 1 or chance.random() < self.share)
        )


class _Request:
    """One request, with the names of its headers in lower case."""

    def __init__(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, target, _ = first.split(" ", 2)
        path, _, query = target.partition("?")
        self.path = unquote(path)
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        parts = (line.partition(":") for line in lines)
        self.headers = {name.lower(): value.strip() for name, _, value in parts}
        self.body = b""
        self.changes_on_condition = self.method != "GET" and any(name in self.headers for name in CONDITIONS)


@dataclass(slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _xml(text: str, status: int = 200) -> _Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>{text}'
    return _Answer(status, text.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str) -> _Answer:
    return _xml(f"<Error><Code>{code}</Code><Message></Message></Error>", status)


def _matches(asked: str, etag: str) -> bool:
    return asked == "*" or etag in re.split(r"\s*,\s*", asked.strip())


def _span(asked: str, size: int) -> tuple[int, int] | None:
    """Begin and end of a range; empty if it cannot be satisfied; None if it is no single range."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        return max(size - int(found[2]), 0), size
    stop = min(int(found[2]) + 1, size) if found[2] else size
    return min(int(found[1]), size), stop


class _State:
    """What the server keeps: values, rules, the log and its counters. A test calls methods by their names."""

    def __init__(self) -> None:
        self.generation = int(time.time() * 1e6)
        self.numbers = itertools.count(1)
        self.reset()

    def reset(self) -> None:
        self.values: dict[str, _Stored] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.rules: list[_Rule] = []
        self.chance = random.Random(0)
        self.settings: dict[str, Any] = dict(SETTINGS)
        self.clear_log()

    def clear_log(self) -> None:
        self.log: deque[dict[str, Any]] = deque(maxlen=100_000)
        self.requests = self.under_way = self.most_at_once = 0

    def clear_faults(self) -> None:
        self.rules.clear()

    def fault(self, **rule: Any) -> int:
        self.rules.append(_Rule(**rule, number=next(self.numbers)))
        return self.rules[-1].number

    def hits(self) -> dict[str, int]:
        return {str(rule.number): rule.hits for rule in self.rules}

    def configure(self, **settings: Any) -> None:
        assert settings.keys() <= SETTINGS.keys()
        self.settings.update(settings)

    def entries(self) -> list[dict[str, Any]]:
        return list(self.log)

    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("requests", "most_at_once")}

    def keys(self, prefix: str) -> list[str]:
        return sorted(path for path in self.values if path.startswith(prefix))

    def rule_for(self, request: _Request) -> _Rule | None:
        for rule in self.rules:
            if rule.fits(request, self.chance):
                rule.seen += 1
                if rule.hits:
                    return rule
        return None

    def answer(self, request: _Request) -> _Answer:
        """The ordinary answer."""
        query = request.query
        if request.path == LOGIN:
            return _Answer(200, LOGIN_PAGE, {"Content-Type": "text/html; charset=utf-8"})
        match request.method:
            case "GET" | "HEAD":
                return self._listing(request) if "list-type" in query else self._get(request)
            case "PUT":
                return self._put_part(request) if "uploadId" in query else self._put(request, request.body)
            case "DELETE" if "uploadId" in query:
                self.uploads.pop(query["uploadId"], None)
                return _Answer(204)
            case "DELETE":
                refused, missing = self._refused(request), self.settings["delete_missing"]
                return refused or _Answer(204 if self.values.pop(request.path, None) else missing)
            case "POST" if "delete" in query:
                return self._delete_many(request)
            case "POST" if "uploads" in query:
                name = f"upload-{next(self.numbers)}"
                self.uploads[name] = {}
                tag = "InitiateMultipartUploadResult"
                return _xml(f"<{tag}><UploadId>{name}</UploadId></{tag}>")
            case "POST" if "uploadId" in query:
                return self._complete(request)
        return _error(405, "MethodNotAllowed")

    def faulty_answer(self, request: _Request, kind: str, told: dict[str, Any]) -> _Answer:
        """The answer of a server with a fault."""
        match kind:
            case "status":
                headers = dict(told.get("headers", {}))
                return _Answer(told.get("status", 503), told.get("body", "").encode(), headers)
            case "html":
                request.path = LOGIN
            case "redirect":
                return _Answer(told.get("status", 302), b"", {"Location": told.get("location", LOGIN)})
            case "no-conditions" if request.changes_on_condition:
                return _error(501, "NotImplemented")
            case "ignore-conditions" if request.changes_on_condition:
                request.headers = {k: v for k, v in request.headers.items() if k not in CONDITIONS}
            case "overwrite":
                self._store(request.path, base64.b64decode(told["value"]))
            case "ignore-range":
                request.headers.pop("range", None)
            case "wrong-range":
                self._shift(request, told.get("shift", 1))
        answer = self.answer(request)
        if kind == "narrow-range" and answer.status == 206:
            answer.body = answer.body[: max(len(answer.body) // 2, 1)]
            start, size = re.findall(r"\d+", answer.headers["Content-Range"])[::2]
            answer.headers["Content-Range"] = f"bytes {start}-{int(start) + len(answer.body) - 1}/{size}"
        if headers := told.get("headers"):
            changed = {name.lower() for name in headers}
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in changed}
            answer.headers = kept | {k: v for k, v in headers.items() if v is not None}
        return answer

    def _shift(self, request: _Request, by: int) -> None:
        stored = self.values.get(request.path)
        span = None if stored is None else _span(request.headers.get("range", ""), len(stored.body))
        if span is not None:
            request.headers["range"] = f"bytes={max(span[0] + by, 0)}-{max(span[1] + by - 1, 0)}"

    def _store(self, path: str, body: bytes) -> _Stored:
        self.generation += 1
        self.values[path] = stored = _Stored(body, _etag(body), self.generation, time.time())
        return stored

    def _described(self, stored: _Stored) -> dict[str, str]:
        return {
            "ETag": stored.etag, "Last-Modified": formatdate(stored.modified, usegmt=True),
            "x-goog-generation": str(stored.generation), "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }  # fmt: skip

    def _get(self, request: _Request) -> _Answer:
        stored = self.values.get(request.path)
        if stored is None or request.query.get("generation") not in (None, str(stored.generation)):
            return _error(404, "NoSuchKey")
        asked, body, headers = request.headers, stored.body, self._described(stored)
        if "if-match" in asked and not _matches(asked["if-match"], stored.etag):
            return _error(412, "PreconditionFailed")
        span = _span(asked["range"], len(body)) if "range" in asked else None
        if span is None:
            return _Answer(200, body, headers)
        start, stop = span
        if start >= stop:
            return _Answer(416, b"", {"Content-Range": f"bytes */{len(body)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        return _Answer(206, body[start:stop], headers)

    def _refused(self, request: _Request) -> _Answer | None:
        """The answer to a change whose condition does not hold; None if it does."""
        asked, stored = request.headers, self.values.get(request.path)
        etag, generation = (None, 0) if stored is None else (stored.etag, stored.generation)
        if "if-match" in asked and etag is None:
            return _error(self.settings["match_missing"], "NoSuchKey")
        holds = (
            "if-match" not in asked or _matches(asked["if-match"], str(etag)),
            "if-none-match" not in asked or etag is None or not _matches(asked["if-none-match"], etag),
            asked.get("x-goog-if-generation-match", str(generation)) == str(generation),
        )
        return None if all(holds) else _error(412, "PreconditionFailed")

    def _put(self, request: _Request, body: bytes) -> _Answer:
        if refused := self._refused(request):
            return refused
        source = request.headers.get("x-amz-copy-source") or request.headers.get("x-goog-copy-source")
        if source is not None:
            copied = self.values.get(f"/{unquote(source).lstrip('/')}")
            if copied is None:
                return _error(404, "NoSuchKey")
            body = copied.body
        return _Answer(200, b"", self._described(self._store(request.path, body)))

    def _put_part(self, request: _Request) -> _Answer:
        parts = self.uploads[request.query["uploadId"]]
        parts[int(request.query["partNumber"])] = request.body
        return _Answer(200, b"", {"ETag": _etag(request.body)})

    def _complete(self, request: _Request) -> _Answer:
        parts = self.uploads.get(request.query["uploadId"])
        if parts is None:
            return _error(404, "NoSuchUpload")
        answer = self._put(request, b"".join(parts[number] for number in sorted(parts)))
        if answer.status != 200:
            return answer
        del self.uploads[request.query["uploadId"]]
        key, etag = escape(request.path.split("/", 2)[-1]), escape(answer.headers["ETag"])
        done = f"<Location></Location><Bucket></Bucket><Key>{key}</Key><ETag>{etag}</ETag>"
        text = _xml(f"<CompleteMultipartUploadResult>{done}</CompleteMultipartUploadResult>")
        text.headers["x-goog-generation"] = answer.headers["x-goog-generation"]
        return text

    def _delete_many(self, request: _Request) -> _Answer:
        keys = re.findall(r"<Key>(.*?)</Key>", request.body.decode(), re.DOTALL)
        for key in keys:
            name = unescape(key, {"&quot;": '"', "&apos;": "'"})
            self.values.pop(f"/{request.path.strip('/')}/{name}", None)
        done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return _xml(f"<DeleteResult>{done}</DeleteResult>")

    def _listing(self, request: _Request) -> _Answer:
        query, bucket = request.query, request.path.strip("/")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token = base64.urlsafe_b64decode(query.get("continuation-token", "")).decode()
        beyond = max(query.get("start-after", ""), token)
        most = min(int(query.get("max-keys") or 1000), self.settings["max_keys"])
        found: dict[str, _Stored | None] = {}  # By key, or None by the group that several keys are.
        for path in self.keys(f"/{bucket}/{prefix}"):
            name = path[len(bucket) + 2 :]
            stored: _Stored | None = self.values[path]
            if delimiter and delimiter in name[len(prefix) :]:
                name = prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter
                stored = None
            if name > beyond:
                found[name] = stored
        names = list(found)[:most]
        following = ""
        if len(found) > most:
            token = base64.urlsafe_b64encode(names[-1].encode()).decode()
            following = f"<NextContinuationToken>{token}</NextContinuationToken>"
        entries = "".join(_listed(name, found[name]) for name in names)
        return _xml(
            f"<ListBucketResult><Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(names)}</KeyCount><IsTruncated>{str(bool(following)).lower()}</IsTruncated>"
            f"{following}{entries}</ListBucketResult>"
        )


def _listed(name: str, stored: _Stored | None) -> str:
    if stored is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.body)}</Size></Contents>"
    )


class _Connection:
    """Requests of one connection, one after the other."""

    numbers = itertools.count(1)

    def __init__(self, state: _State, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.state, self.reader, self.writer = state, reader, writer
        self.number = next(self.numbers)

    async def serve(self) -> None:
        """Answer until either side has had enough."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not self.writer.is_closing():
                request = _Request((await self.reader.readuntil(b"\r\n\r\n"))[:-4])
                request.body = await self.reader.readexactly(int(request.headers.get("content-length", "0")))
                if "x-control" in request.headers:
                    await self.send(request, self.controlled(request), "", {})
                else:
                    await self.take(request)
        self.writer.close()

    def controlled(self, request: _Request) -> _Answer:
        if request.path != CONTROL:
            return self.state.answer(request)
        do, asked = json.loads(request.body)
        return _Answer(200, json.dumps(getattr(self.state, do)(**asked)).encode())

    async def take(self, request: _Request) -> None:
        state, headers, log = self.state, request.headers, self.state.log
        state.requests += 1
        state.under_way += 1
        state.most_at_once = max(state.most_at_once, state.under_way)
        rule = state.rule_for(request)
        entry = {
            "method": request.method, "path": request.path, "query": request.query,
            "range": headers.get("range"), "if_match": headers.get("if-match"),
            "signed": "authorization" in headers, "connection": self.number, "size": len(request.body),
            "fault": None if rule is None else rule.kind,
            "status": None,  # As long as there is no answer.
            "sent": 0,  # Bytes in the body of the answer, which a notebook counts.
        }  # fmt: skip
        log.append(entry)
        try:
            if state.settings["latency"]:
                await asyncio.sleep(state.settings["latency"])
            await self.carry_out(request, rule, entry)
        finally:
            if log is state.log:
                state.under_way -= 1

    async def carry_out(self, request: _Request, rule: _Rule | None, entry: dict[str, Any]) -> None:
        kind, told = ("", {}) if rule is None else (rule.kind, rule.parameters)
        if kind == "hang":
            await self.reader.read()  # Until the client gives up.
            self.writer.close()
        elif kind == "reset":
            self.cut()
        else:
            answer = self.state.faulty_answer(request, kind, told)
            entry["status"], entry["sent"] = answer.status, len(answer.body)
            if kind == "lost-answer":
                self.cut()
            else:
                await self.send(request, answer, kind, told)

    def cut(self) -> None:
        """End the connection by a reset."""
        if not self.writer.is_closing():
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.writer.transport.abort()

    async def send(self, request: _Request, answer: _Answer, kind: str, told: dict[str, Any]) -> None:
        body = b"" if request.method == "HEAD" else answer.body
        lines = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        if kind == "chunked":
            lines.append("Transfer-Encoding: chunked")
        elif kind == "no-length":
            lines.append("Connection: close")
        elif answer.status != 204:
            lines.append(f"Content-Length: {len(answer.body)}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        kept = body[: len(body) // 2]
        match kind:
            case "reset-body":
                if body:
                    self.writer.write(head + kept)
                    await asyncio.sleep(0.02)  # What was written is on its way by then.
                self.cut()
            case "short" | "chunked" | "no-length":
                chunk = b"%x\r\n%b\r\n" % (len(kept), kept) if kept else b""
                self.writer.write(head + {"short": kept, "chunked": chunk, "no-length": body}[kind])
                self.writer.close()
            case "slow":
                self.writer.write(head)
                pieces = max(min(told.get("pieces", 10), len(body)), 1)
                for at in range(pieces):
                    self.writer.write(body[at * len(body) // pieces : (at + 1) * len(body) // pieces])
                    await asyncio.sleep(told.get("seconds", 1.0) / pieces)
                    if self.writer.is_closing():
                        return
            case _:
                self.writer.write(head + body)


def _told(do: str, text: str) -> Any:
    def method(self: FaultServer, **asked: Any) -> Any:
        return self._ask(do, **asked)

    method.__doc__ = text
    return method


class FaultServer:
    """The server as a test sees it: its address, and what to ask of it.

    Every method is a request of its own, so that it works in threads and in forked children; those
    requests are neither logged nor delayed, and no rule applies to them. Paths begin with the bucket,
    as in ``/bucket/group/zarr.json``.
    """

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port, self.process, self.url = port, process, f"http://127.0.0.1:{port}"

    @classmethod
    def start(cls, *, limit: float = 1800.0) -> FaultServer:
        """A new server on a free port, which ends with this process, or after ``limit`` seconds."""
        command = [sys.executable, "-I", __file__, str(limit)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout:
            return cls(int(process.stdout.readline()), process)

    def stop(self) -> None:
        self.process.kill()  # It keeps nothing.
        self.process.wait()

    def __enter__(self) -> FaultServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def storage_options(self) -> dict[str, Any]:
        """How it is reached as S3."""
        keys = {"key": "k", "secret": "s", "region": "us-east-1"}
        return {**keys, "endpoint_url": self.url, "allow_http": True}

    def fault(
        self, kind: str, pattern: str = "*", *, times: int | None = None, after: int = 0, share: float = 1.0,
        methods: list[str] | None = None, signed: bool | None = None, **parameters: Any,
    ) -> int:  # fmt: skip
        """Have requests go wrong as one of `KINDS`; the number of the rule. The first that fits applies.

        In the ``pattern`` of paths, ``*`` stands for slashes, too. ``times``, ``after`` and ``share`` are how
        often (always if not given), after how many requests that fit, and which part of them; ``signed``
        takes only those with a signature, or only those without one.
        """
        if kind not in KINDS:
            raise ValueError(f"no fault of kind {kind!r}; there are {', '.join(KINDS)}")
        if "value" in parameters:
            parameters["value"] = base64.b64encode(parameters["value"]).decode()
        rule = {"kind": kind, "pattern": pattern, "times": times, "after": after, "share": share}
        return int(self._ask("fault", **rule, methods=methods, signed=signed, parameters=parameters))

    def hits(self, number: int) -> int:
        return int(self._ask("hits")[str(number)])

    clear_faults = _told("clear_faults", "Forget all rules.")
    clear_log = _told("clear_log", "Forget the requests so far, and count from nothing.")
    reset = _told("reset", "Forget everything: values, rules, settings, requests.")
    configure = _told("configure", "Change settings, which are those of `SETTINGS`.")
    counts = _told("counts", "``requests`` so far, and ``most_at_once``.")

    def log(self, method: str | None = None) -> list[dict[str, Any]]:
        """The requests so far, oldest first: see `_Connection.take` for what is told of each."""
        return [entry for entry in self._ask("entries") if method in (None, entry["method"])]

    def keys(self, prefix: str = "/") -> list[str]:
        """Paths of the values, in order."""
        return self._ask("keys", prefix=prefix)

    def get(self, path: str) -> bytes | None:
        """The value at a path, or None."""
        ((status, body),) = self._send(("GET", path, None))
        return body if status == 200 else None

    def put(self, path: str, value: bytes) -> None:
        self.put_all({path: value})

    def put_all(self, values: Mapping[str, bytes]) -> None:
        answers = self._send(*(("PUT", path, value) for path, value in values.items()))
        assert all(status == 200 for status, _ in answers)

    def delete(self, path: str) -> None:
        self._send(("DELETE", path, None))

    def _ask(self, do: str, **asked: Any) -> Any:
        ((status, body),) = self._send(("POST", CONTROL, json.dumps([do, asked]).encode()))
        assert status == 200
        return json.loads(body)

    def _send(self, *requests: tuple[str, str, bytes | None]) -> list[tuple[int, bytes]]:
        found = []
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            for method, path, body in requests:
                connection.request(method, quote(path), body=body, headers={"X-Control": "1"})
                answer = connection.getresponse()
                found.append((answer.status, answer.read()))
        return found


async def _serve(limit: float) -> None:
    """Serve until the limit, or until the process that started this one is gone."""
    parent, state = os.getppid(), _State()
    server = await asyncio.start_server(
        lambda *streams: _Connection(state, *streams).serve(), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the parent reads this
    end = time.monotonic() + limit
    while time.monotonic() < end and os.getppid() == parent:
        await asyncio.sleep(min(0.5, limit))


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
