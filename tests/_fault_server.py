"""A small HTTP server that keeps values by key and misbehaves as it is told.

It is a process of its own. ``FaultServer.start()`` starts it and is what a test talks to:

>>> with FaultServer.start() as server:  # doctest: +SKIP
...     server.put("/bucket/a", b"value")
...     server.fault("status", "/bucket/*", times=2, status=503)

One space of keys answers as a plain web server, as S3 (path style, ListObjectsV2, bulk deletion, multipart
uploads) and as the XML interface of Google's storage (generations). The first segment of a path is the
bucket; there is no need to make it. Values are in memory. Every answer can be late (``latency``), and
faults are rules for the requests whose path matches a pattern, see `FaultServer.fault`.

The server ends itself when the process that started it is gone, and after a time limit.
"""

from __future__ import annotations

import argparse
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
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    "reset-body": "the connection is reset after the share `keep` (0.5) of the body, or at once without one",
    "short": "the connection is closed in good order after the share `keep` (0.5) of the promised body",
    "chunked": "chunked transfer that ends after the share `keep` (0.5) of the body, without its last chunk",
    "no-length": "neither Content-Length nor chunks: the body ends where the connection does",
    "slow": "the body comes in `pieces` (10) over `seconds` (1.0)",
    "delay": "the answer comes `seconds` (0.1) later",
    "ignore-range": "200 with the whole body, whatever range was asked",
    "wrong-range": "206 with a range that begins `shift` (1) bytes later than asked, and says so",
    "narrow-range": "206 with the first half of the range, and says so",
    "html": "200 with a page that asks for a password",
    "redirect": "`status` (302) to `location` (a page that asks for a password)",
    "headers": "the ordinary answer with `headers` replaced, without those that are None",
    "no-etag": "the ordinary answer without ETag and generation",
    "lost-answer": "the request is carried out, then the connection is reset",
    "ignore-conditions": "If-Match, If-None-Match and generations have no effect",
    "no-conditions": "501 for a request that puts or deletes under a condition",
    "overwrite": "somebody else was faster: `value` is put first, then the ordinary answer comes",
}
BOUND_BYTES = 2**31  # Of all values together.
BOUND_BODY = 2**29
BOUND_LOG = 100_000
BOUND_REQUESTS = 20_000_000


@dataclass(slots=True)
class _Stored:
    body: bytes
    etag: str
    generation: int
    modified: float
    stamp: str


@dataclass(slots=True)
class _Rule:
    kind: str
    pattern: re.Pattern[str]
    methods: frozenset[str] | None
    times: float
    after: int
    share: float
    parameters: dict[str, Any]
    number: int
    hits: int = 0


class _Request:
    """One request, with the names of its headers in lower case."""

    __slots__ = ("body", "headers", "method", "path", "query", "target")

    def __init__(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = lines[0].split(" ", 2)
        path, _, query = self.target.partition("?")
        self.path = unquote(path) if "%" in path else path
        self.query = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
        self.headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self.body = b""


class _Answer:
    __slots__ = ("body", "headers", "status", "whole")

    def __init__(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, whole: int | None = None
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers or {}
        self.whole = len(body) if whole is None else whole  # What Content-Length says.


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _error(status: int, code: str, message: str = "") -> _Answer:
    answer = _xml(f"<Error><Code>{code}</Code><Message>{message}</Message></Error>")
    answer.status = status
    return answer


def _xml(text: str) -> _Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>{text}'
    return _Answer(200, text.encode(), {"Content-Type": "application/xml"})


class _State:
    """What the server keeps: values, rules, the log and its counters."""

    def __init__(self, latency: float, seed: int) -> None:
        self.values: dict[str, _Stored] = {}
        self.size = 0
        self.total = 0
        self.generation = int(time.time() * 1e6)
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.numbers = itertools.count(1)
        self.seed = seed
        self.latency = latency
        self.reset()

    def reset(self) -> None:
        """Forget values, rules, settings and the log."""
        self.values.clear()
        self.uploads.clear()
        self.size = 0
        self.rules: list[_Rule] = []
        self.random = random.Random(self.seed)
        self.settings: dict[str, Any] = {
            "latency": self.latency,
            "delete_missing": 204,
            "match_missing": 412,
            "max_keys": 1000,
            "log": True,
        }
        self.clear_log()

    def clear_log(self) -> None:
        self.log: deque[dict[str, Any]] = deque(maxlen=BOUND_LOG)
        self.count = 0
        self.under_way = 0
        self.most = 0

    def rule_for(self, request: _Request) -> _Rule | None:
        for rule in self.rules:
            if rule.hits - rule.after >= rule.times:
                continue
            if rule.methods is not None and request.method not in rule.methods:
                continue
            if not rule.pattern.fullmatch(request.path):
                continue
            if rule.share < 1 and self.random.random() >= rule.share:
                continue
            rule.hits += 1
            if rule.hits > rule.after:
                return rule
        return None

    def store(self, path: str, body: bytes) -> _Stored:
        before = self.values.get(path)
        self.size += len(body) - (0 if before is None else len(before.body))
        self.generation += 1
        now = time.time()
        stored = _Stored(body, _etag(body), self.generation, now, formatdate(now, usegmt=True))
        self.values[path] = stored
        return stored

    def erase(self, path: str) -> bool:
        stored = self.values.pop(path, None)
        if stored is None:
            return False
        self.size -= len(stored.body)
        return True

    # The ordinary answers.

    def answer(self, request: _Request, conditions: bool = True) -> _Answer:
        method = request.method
        if request.path == LOGIN:
            return _Answer(200, LOGIN_PAGE, {"Content-Type": "text/html; charset=utf-8"})
        if method in ("GET", "HEAD"):
            if "list-type" in request.query:
                return self.listing(request)
            return self.get(request)
        if method == "PUT":
            if "uploadId" in request.query:
                return self.put_part(request)
            return self.put(request, request.body, conditions)
        if method == "DELETE":
            if "uploadId" in request.query:
                self.uploads.pop(request.query["uploadId"], None)
                return _Answer(204)
            refused = self.refused(request, conditions)
            if refused is not None:
                return refused
            return _Answer(204 if self.erase(request.path) else self.settings["delete_missing"])
        if method == "POST" and "delete" in request.query:
            return self.delete_many(request)
        if method == "POST" and "uploads" in request.query:
            name = f"upload-{next(self.numbers)}"
            self.uploads[name] = {}
            return _xml(
                f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            )
        if method == "POST" and "uploadId" in request.query:
            return self.complete(request, conditions)
        return _error(405, "MethodNotAllowed")

    def described(self, stored: _Stored) -> dict[str, str]:
        return {
            "ETag": stored.etag,
            "Last-Modified": stored.stamp,
            "x-goog-generation": str(stored.generation),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }

    def get(self, request: _Request) -> _Answer:
        stored = self.values.get(request.path)
        generation = request.query.get("generation")
        if stored is None or generation not in (None, str(stored.generation)):
            return _error(404, "NoSuchKey", "There is no such key.")
        asked = request.headers
        if "if-match" in asked and not _matches(asked["if-match"], stored.etag):
            return _error(412, "PreconditionFailed")
        headers = self.described(stored)
        if "if-none-match" in asked and _matches(asked["if-none-match"], stored.etag):
            return _Answer(304, b"", headers)
        body = stored.body
        if "range" not in asked:
            return _Answer(200, body, headers)
        span = _span(asked["range"], len(body))
        if span is None:
            return _Answer(200, body, headers)
        start, stop = span
        if start >= stop:
            return _Answer(416, b"", {"Content-Range": f"bytes */{len(body)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        return _Answer(206, body[start:stop], headers)

    def refused(self, request: _Request, conditions: bool) -> _Answer | None:
        if not conditions:
            return None
        asked = request.headers
        stored = self.values.get(request.path)
        if "if-match" in asked:
            if stored is None:
                return _error(self.settings["match_missing"], "NoSuchKey")
            if not _matches(asked["if-match"], stored.etag):
                return _error(412, "PreconditionFailed")
        if "if-none-match" in asked and stored is not None and _matches(asked["if-none-match"], stored.etag):
            return _error(412, "PreconditionFailed")
        if "x-goog-if-generation-match" in asked:
            generation = 0 if stored is None else stored.generation
            if asked["x-goog-if-generation-match"] != str(generation):
                return _error(412, "PreconditionFailed")
        return None

    def put(self, request: _Request, body: bytes, conditions: bool) -> _Answer:
        refused = self.refused(request, conditions)
        if refused is not None:
            return refused
        asked = request.headers
        source = asked.get("x-amz-copy-source") or asked.get("x-goog-copy-source")
        if source is not None:
            copied = self.values.get(f"/{unquote(source).lstrip('/')}")
            if copied is None:
                return _error(404, "NoSuchKey", "There is no such key.")
            body = copied.body
        if self.size + len(body) > BOUND_BYTES:
            return _error(507, "InsufficientStorage")
        return _Answer(200, b"", self.described(self.store(request.path, body)))

    def put_part(self, request: _Request) -> _Answer:
        parts = self.uploads.get(request.query["uploadId"])
        if parts is None:
            return _error(404, "NoSuchUpload")
        if self.size + sum(map(len, parts.values())) + len(request.body) > BOUND_BYTES:
            return _error(507, "InsufficientStorage")
        parts[int(request.query["partNumber"])] = request.body
        return _Answer(200, b"", {"ETag": _etag(request.body)})

    def complete(self, request: _Request, conditions: bool) -> _Answer:
        parts = self.uploads.get(request.query["uploadId"])
        if parts is None:
            return _error(404, "NoSuchUpload")
        answer = self.put(request, b"".join(parts[number] for number in sorted(parts)), conditions)
        if answer.status != 200:
            return answer
        del self.uploads[request.query["uploadId"]]
        key = escape(request.path.split("/", 2)[-1])
        etag = escape(answer.headers["ETag"])
        text = _xml(
            "<CompleteMultipartUploadResult><Location></Location><Bucket></Bucket>"
            f"<Key>{key}</Key><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        )
        text.headers["x-goog-generation"] = answer.headers["x-goog-generation"]
        return text

    def delete_many(self, request: _Request) -> _Answer:
        bucket = request.path.strip("/")
        keys = [
            unescape(key, {"&quot;": '"', "&apos;": "'"})
            for key in re.findall(r"<Key>(.*?)</Key>", request.body.decode(), re.DOTALL)
        ]
        for key in keys:
            self.erase(f"/{bucket}/{key}")
        done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _xml(f"<DeleteResult>{done}</DeleteResult>")

    def listing(self, request: _Request) -> _Answer:
        query = request.query
        bucket = request.path.strip("/")
        begin = f"/{bucket}/"
        prefix = query.get("prefix", "")
        delimiter = query.get("delimiter", "")
        beyond = max(query.get("start-after", ""), _token(query.get("continuation-token", "")))
        most = min(int(query.get("max-keys") or self.settings["max_keys"]), self.settings["max_keys"])
        found: list[str] = []
        last = ""
        seen: set[str] = set()
        more = False
        for path in sorted(path for path in self.values if path.startswith(begin + prefix)):
            key = path[len(begin) :]
            group = ""
            if delimiter:
                head, mark, _ = key[len(prefix) :].partition(delimiter)
                group = prefix + head + mark if mark else ""
            if group in seen or (group or key) <= beyond:
                continue
            if len(found) == most:
                more = True
                break
            last = group or key
            if group:
                seen.add(group)
                found.append(f"<CommonPrefixes><Prefix>{escape(group)}</Prefix></CommonPrefixes>")
                continue
            stored = self.values[path]
            modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
            found.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
                f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.body)}</Size></Contents>"
            )
        following = ""
        if more:
            token = base64.urlsafe_b64encode(last.encode()).decode()
            following = f"<NextContinuationToken>{token}</NextContinuationToken>"
        return _xml(
            f"<ListBucketResult><Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(found)}</KeyCount><IsTruncated>{'true' if more else 'false'}</IsTruncated>"
            f"{following}{''.join(found)}</ListBucketResult>"
        )

    # What a test asks of the server itself.

    def control(self, asked: dict[str, Any]) -> object:
        doing = asked["do"]
        if doing == "fault":
            rule = asked["rule"]
            if rule["kind"] not in KINDS:
                raise ValueError(f"no fault of kind {rule['kind']!r}; there are {', '.join(KINDS)}")
            number = next(self.numbers)
            self.rules.append(
                _Rule(
                    kind=rule["kind"],
                    pattern=re.compile(fnmatch.translate(rule["pattern"])),
                    methods=None if rule["methods"] is None else frozenset(rule["methods"]),
                    times=float("inf") if rule["times"] is None else rule["times"],
                    after=rule["after"],
                    share=rule["share"],
                    parameters=rule["parameters"],
                    number=number,
                )
            )
            return number
        if doing == "hits":
            return {str(rule.number): max(rule.hits - rule.after, 0) for rule in self.rules}
        if doing == "clear-faults":
            self.rules.clear()
            return None
        if doing == "configure":
            unknown = asked["settings"].keys() - self.settings.keys()
            if unknown:
                raise ValueError(f"no such settings: {sorted(unknown)}")
            self.settings.update(asked["settings"])
            return None
        if doing == "log":
            return list(self.log)
        if doing == "counts":
            return {"requests": self.count, "most_at_once": self.most, "under_way": self.under_way}
        if doing == "clear-log":
            self.clear_log()
            return None
        if doing == "keys":
            return sorted(path for path in self.values if path.startswith(asked["prefix"]))
        if doing == "reset":
            self.reset()
            return None
        raise ValueError(f"nothing to do of the name {doing!r}")


class _Connection(asyncio.Protocol):
    """Requests of one connection, one after the other."""

    numbers = itertools.count(1)

    def __init__(self, state: _State, loop: asyncio.AbstractEventLoop) -> None:
        self.state = state
        self.loop = loop
        self.buffer = bytearray()
        self.request: _Request | None = None
        self.wanted = 0
        self.busy = False
        self.counted: deque[dict[str, Any]] | None = None  # The log that the request under way is part of.
        self.number = next(self.numbers)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:
        self.settled()

    def settled(self) -> None:
        """The request under way is over, one way or the other."""
        if self.counted is self.state.log and self.counted is not None:
            self.state.under_way -= 1
        self.counted = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.busy:
            self.next_request()

    def next_request(self) -> None:
        if self.request is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self.buffer) > 2**17:
                    self.transport.abort()
                return
            try:
                request = _Request(bytes(self.buffer[:end]))
                self.wanted = int(request.headers.get("content-length", "0"))
            except ValueError:
                self.transport.abort()
                return
            del self.buffer[: end + 4]
            if self.wanted > BOUND_BODY or "transfer-encoding" in request.headers:
                self.transport.write(
                    b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                self.transport.close()
                return
            if request.headers.get("expect") == "100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.request = request
        if len(self.buffer) < self.wanted:
            return
        request = self.request
        if self.wanted:
            request.body = bytes(self.buffer[: self.wanted])
            del self.buffer[: self.wanted]
        self.request = None
        self.busy = True
        self.take(request)

    def take(self, request: _Request) -> None:
        state = self.state
        if "x-control" in request.headers:
            self.finish(request, self.controlled(request), None, None)
            return
        state.count += 1
        state.total += 1
        if state.total > BOUND_REQUESTS:
            self.transport.abort()
            return
        state.under_way += 1
        self.counted = state.log
        if state.under_way > state.most:
            state.most = state.under_way
        rule = state.rule_for(request) if state.rules else None
        entry: dict[str, Any] | None = None
        if state.settings["log"]:
            headers = request.headers
            entry = {
                "method": request.method,
                "path": request.path,
                "query": request.query,
                "range": headers.get("range"),
                "if_match": headers.get("if-match"),
                "if_none_match": headers.get("if-none-match"),
                "if_generation": headers.get("x-goog-if-generation-match"),
                "signed": "authorization" in headers,
                "size": len(request.body),
                "time": time.monotonic(),
                "connection": self.number,
                "fault": None if rule is None else rule.kind,
                "status": None,
            }
            state.log.append(entry)
        wait = state.settings["latency"]
        if rule is not None and rule.kind == "delay":
            wait += rule.parameters.get("seconds", 0.1)
        if wait > 0:
            self.loop.call_later(wait, self.carry_out, request, rule, entry)
        else:
            self.carry_out(request, rule, entry)

    def controlled(self, request: _Request) -> _Answer:
        if request.path != CONTROL:
            return self.state.answer(request)
        try:
            found = self.state.control(json.loads(request.body))
        except (ValueError, KeyError, TypeError, re.error) as error:
            return _Answer(400, f"{type(error).__name__}: {error}".encode())
        return _Answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def carry_out(self, request: _Request, rule: _Rule | None, entry: dict[str, Any] | None) -> None:
        if self.transport.is_closing():
            return
        if rule is None or rule.kind == "delay":
            self.finish(request, self.state.answer(request), None, entry)
            return
        kind, parameters = rule.kind, rule.parameters
        conditional = request.method != "GET" and any(
            name in request.headers for name in ("if-match", "if-none-match", "x-goog-if-generation-match")
        )
        if kind == "hang":
            return
        if kind == "reset":
            self.cut()
            return
        if kind == "status":
            answer = _Answer(
                parameters.get("status", 503),
                parameters.get("body", "").encode(),
                dict(parameters.get("headers", {})),
            )
        elif kind == "html":
            answer = _Answer(200, LOGIN_PAGE, {"Content-Type": "text/html; charset=utf-8"})
        elif kind == "redirect":
            answer = _Answer(
                parameters.get("status", 302), b"", {"Location": parameters.get("location", LOGIN)}
            )
        elif kind == "no-conditions" and conditional:
            answer = _error(501, "NotImplemented", "A header you provided implies something not implemented.")
        else:
            if kind == "overwrite":
                self.state.store(request.path, base64.b64decode(parameters["value"]))
            if kind == "ignore-range":
                request.headers.pop("range", None)
            if kind == "wrong-range":
                _shift(request, self.state, parameters.get("shift", 1))
            answer = self.state.answer(request, conditions=kind != "ignore-conditions")
            if kind == "lost-answer":
                if entry is not None:
                    entry["status"] = answer.status
                self.cut()
                return
            if kind == "narrow-range" and answer.status == 206:
                _narrow(answer)
            if kind == "no-etag":
                answer.headers.pop("ETag", None)
                answer.headers.pop("x-goog-generation", None)
            if "headers" in parameters:
                for name, value in parameters["headers"].items():
                    for known in [known for known in answer.headers if known.lower() == name.lower()]:
                        del answer.headers[known]
                    if value is not None:
                        answer.headers[name] = value
        self.finish(request, answer, rule, entry)

    def cut(self) -> None:
        """End the connection by a reset."""
        if not self.transport.is_closing():
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()

    def finish(
        self, request: _Request, answer: _Answer, rule: _Rule | None, entry: dict[str, Any] | None
    ) -> None:
        if entry is not None:
            entry["status"] = answer.status
        kind = None if rule is None else rule.kind
        parameters: dict[str, Any] = {} if rule is None else rule.parameters
        body = b"" if request.method == "HEAD" else answer.body
        lines = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, 'Unknown')}"]
        lines.extend(f"{name}: {value}" for name, value in answer.headers.items())
        if kind == "chunked":
            lines.append("Transfer-Encoding: chunked")
        elif kind != "no-length" and answer.status not in (204, 304):
            lines.append(f"Content-Length: {answer.whole}")
        if kind == "no-length":
            lines.append("Connection: close")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        write = self.transport.write
        keep = int(len(body) * parameters.get("keep", 0.5))
        if kind == "reset-body" and not body:
            self.cut()
        elif kind == "reset-body":
            write(head + body[:keep])
            self.loop.call_later(0.02, self.cut)  # What was written is on its way by then.
        elif kind == "short":
            write(head + body[:keep])
            self.transport.close()
        elif kind == "chunked":
            write(head + (b"%x\r\n" % keep + body[:keep] + b"\r\n" if keep else b""))
            self.transport.close()
        elif kind == "no-length":
            write(head + body)
            self.transport.close()
        elif kind == "slow":
            write(head)
            pieces = max(min(parameters.get("pieces", 10), len(body)), 1)
            self.trickle(body, pieces, parameters.get("seconds", 1.0) / pieces)
        else:
            if len(body) > 2**16:
                write(head)
                write(body)
            else:
                write(head + body)
            self.over()

    def trickle(self, body: bytes, pieces: int, wait: float) -> None:
        if self.transport.is_closing():
            return
        if pieces == 0:
            self.over()
            return
        size = len(body) // pieces
        self.transport.write(body[:size])
        self.loop.call_later(wait, self.trickle, body[size:], pieces - 1, wait)

    def over(self) -> None:
        self.settled()
        self.busy = False
        if self.buffer:
            self.next_request()


def _matches(asked: str, etag: str) -> bool:
    return asked == "*" or etag in (part.strip() for part in asked.split(","))


def _span(asked: str, size: int) -> tuple[int, int] | None:
    """Begin and end of a range; empty if it cannot be satisfied; None if it is no single range."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        return max(size - int(found[2]), 0), size
    start = int(found[1])
    stop = min(int(found[2]) + 1, size) if found[2] else size
    return (start, stop) if start < size else (size, size)


def _token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError:
        return ""


def _shift(request: _Request, state: _State, by: int) -> None:
    stored = state.values.get(request.path)
    span = None if stored is None else _span(request.headers.get("range", ""), len(stored.body))
    if span is not None:
        request.headers["range"] = f"bytes={max(span[0] + by, 0)}-{max(span[1] + by - 1, 0)}"


def _narrow(answer: _Answer) -> None:
    answer.body = answer.body[: max(len(answer.body) // 2, 1)]
    answer.whole = len(answer.body)
    place, _, size = answer.headers["Content-Range"].partition("/")
    start = int(place.removeprefix("bytes ").partition("-")[0])
    answer.headers["Content-Range"] = f"bytes {start}-{start + len(answer.body) - 1}/{size}"


class FaultServer:
    """The server as a test sees it: its address, and what to ask of it.

    Every method is a request of its own, so that it works in threads and in forked children; those
    requests are neither logged nor delayed, and no rule applies to them. Paths begin with the bucket,
    as in ``/bucket/group/zarr.json``.

    Parameters
    ----------
    port : int
        Where the server listens on loopback.
    """

    def __init__(self, port: int, process: subprocess.Popen[bytes] | None = None) -> None:
        self.port = port
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    @classmethod
    def start(cls, *, latency: float = 0.0, limit: float = 1800.0, seed: int = 0) -> FaultServer:
        """A new server on a free port, which ends with this process, or after ``limit`` seconds."""
        command = [sys.executable, "-I", __file__, "--latency", str(latency), "--limit", str(limit)]
        process = subprocess.Popen(
            [*command, "--seed", str(seed)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        process.stdout.close()
        if not line.strip().isdigit():
            process.kill()
            raise RuntimeError(f"the server did not start, its status is {process.wait()}")
        return cls(int(line), process)

    def stop(self) -> None:
        """End the server, and wait for its end."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> FaultServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def storage_options(self) -> dict[str, Any]:
        """How it is reached as S3."""
        return {
            "key": "k", "secret": "s", "region": "us-east-1", "endpoint_url": self.url, "allow_http": True,
        }  # fmt: skip

    def fault(
        self,
        kind: str,
        pattern: str = "*",
        *,
        times: int | None = None,
        after: int = 0,
        share: float = 1.0,
        methods: Iterable[str] | None = None,
        **parameters: Any,
    ) -> int:
        """Have requests go wrong; the number of the rule.

        The first rule that fits a request is the one that applies.

        Parameters
        ----------
        kind : str
            One of `KINDS`, which says what each does and which parameters it takes.
        pattern : str
            Of paths, as the shell has them; ``*`` stands for slashes, too.
        times : int, optional
            How often; always if not given.
        after : int
            How many requests that fit pass before.
        share : float
            Which part of the requests is hit, at random.
        methods : iterable of str, optional
            ``["GET"]``, say; all if not given.
        """
        if "value" in parameters:
            parameters["value"] = base64.b64encode(parameters["value"]).decode()
        rule = {
            "kind": kind,
            "pattern": pattern,
            "times": times,
            "after": after,
            "share": share,
            "methods": None if methods is None else [method.upper() for method in methods],
            "parameters": parameters,
        }
        return int(self._ask(do="fault", rule=rule))

    def hits(self, number: int) -> int:
        """How often a rule was applied."""
        return int(self._ask(do="hits")[str(number)])

    def clear_faults(self) -> None:
        """Forget all rules."""
        self._ask(do="clear-faults")

    def configure(self, **settings: Any) -> None:
        """Set how the server works.

        ``latency`` : seconds that every answer takes.
        ``delete_missing`` : status when there is nothing to delete (204 as S3 has it; Google 404).
        ``match_missing`` : status of a put with If-Match when there is no value (412; S3 404).
        ``max_keys`` : greatest number of keys on a page of a listing.
        ``log`` : whether requests are logged (they are counted in any case).
        """
        self._ask(do="configure", settings=settings)

    def log(self, method: str | None = None) -> list[dict[str, Any]]:
        """The requests so far, oldest first.

        Each has ``method``, ``path``, ``query``, ``range``, ``if_match``, ``if_none_match``,
        ``if_generation``, ``signed``, ``size`` (of its body), ``time`` (`time.monotonic`), ``connection``
        (its number), ``fault`` (kind or None) and ``status`` (None if there was no answer).
        """
        return [entry for entry in self._ask(do="log") if method in (None, entry["method"])]

    def counts(self) -> dict[str, int]:
        """``requests`` so far, ``under_way`` now and ``most_at_once``."""
        found: dict[str, int] = self._ask(do="counts")
        return found

    def summary(self) -> Counter[str]:
        """How many requests of each method there were."""
        return Counter(entry["method"] for entry in self.log())

    def clear_log(self) -> None:
        """Forget the requests so far, and count from nothing."""
        self._ask(do="clear-log")

    def reset(self) -> None:
        """Forget everything: values, rules, settings, requests."""
        self._ask(do="reset")

    def keys(self, prefix: str = "/") -> list[str]:
        """Paths of the values, in order."""
        found: list[str] = self._ask(do="keys", prefix=prefix)
        return found

    def get(self, path: str) -> bytes | None:
        """The value at a path, or None."""
        status, body = self._send("GET", path)
        return body if status == 200 else None

    def put(self, path: str, value: bytes) -> None:
        """Have a value at a path."""
        self.put_all({path: value})

    def put_all(self, values: Mapping[str, bytes]) -> None:
        """Have many values."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            for path, value in values.items():
                connection.request("PUT", quote(path), body=value, headers={"X-Control": "1"})
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200, (path, answer.status)
        finally:
            connection.close()

    def delete(self, path: str) -> None:
        """Have no value at a path."""
        self._send("DELETE", path)

    def _ask(self, **asked: Any) -> Any:
        status, body = self._send("POST", CONTROL, json.dumps(asked).encode())
        if status != 200:
            raise ValueError(body.decode())
        return json.loads(body)

    def _send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, quote(path), body=body, headers={"X-Control": "1"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


async def _serve(latency: float, limit: float, seed: int, port: int) -> None:
    loop = asyncio.get_running_loop()
    parent = os.getppid()
    state = _State(latency, seed)
    make: Callable[[], _Connection] = lambda: _Connection(state, loop)  # noqa: E731
    server = await loop.create_server(make, "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - whoever starts it reads this
    end = time.monotonic() + limit
    while time.monotonic() < end and os.getppid() == parent:
        await asyncio.sleep(min(0.5, limit))


def main() -> None:
    """Serve until the limit, or until the process that started this one is gone."""
    parser = argparse.ArgumentParser(description="A server on loopback that misbehaves as it is told.")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each answer takes")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which the server ends")
    parser.add_argument("--seed", type=int, default=0, help="of the faults that happen at random")
    parser.add_argument("--port", type=int, default=0, help="a free one if not given")
    given = parser.parse_args()
    asyncio.run(_serve(given.latency, given.limit, given.seed, given.port))


if __name__ == "__main__":
    main()
