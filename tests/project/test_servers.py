"""The servers of the tests themselves, by obstore and by plain requests, without any store of ours."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from _fault_server import KINDS, LOGIN_PAGE, FaultServer
from _servers import SEEN, MissingServerError, Process, Seen, WebServer, serving
from _watch import PRIVATE
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

HERE = Path(__file__).parents[1]
BODY = bytes(range(250)) * 40
RETRIES = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {
        "init_backoff": timedelta(milliseconds=5),
        "max_backoff": timedelta(milliseconds=20),
        "base": 2,
    },
}
CLIENT = {"allow_http": True, "timeout": timedelta(seconds=5)}


def s3(server: FaultServer, **options: Any) -> S3Store:
    """The scripted server as S3."""
    return S3Store(
        "b",
        endpoint=server.url,
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        **{"client_options": CLIENT, "retry_config": RETRIES, **options},
    )


def request(
    server: FaultServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer; underscores in the names of headers are hyphens."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body, headers=named)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def raw(server: FaultServer, text: bytes = b"GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[bytes, str]:
    """All that the server sends, and how the connection ends: ``closed``, ``reset`` or ``open``."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(text)
        connection.settimeout(0.3)
        try:
            while part := connection.recv(2**16):
                received += part
        except ConnectionResetError:
            return received, "reset"
        except TimeoutError:
            return received, "open"
    return received, "closed"


# Every kind of object storage.


@pytest.fixture(params=["s3", "azure", "gcs", "faults"])
def bucket(request: pytest.FixtureRequest) -> tuple[Any, Callable[[], list[str]]]:
    """An obstore store on an empty bucket, and what gives the keys there without it."""
    if request.param == "faults":
        faults: FaultServer = request.getfixturevalue("fault_server")
        return s3(faults), lambda: [path.removeprefix("/b/") for path in faults.keys("/b/")]
    server = request.getfixturevalue(f"{request.param}_server")
    name = server.bucket()
    cls: Any = {"s3": S3Store, "azure": AzureStore, "gcs": GCSStore}[request.param]
    return cls(name, **server.obstore_options), lambda: server.keys(name)


NAMES = ["a b", "a%20b", "a+b", "group/zarr.json", "group/c/0/1", "x#y?z&", "é/ü", "dot."]


def test_values_are_put_read_listed_and_deleted(bucket: tuple[Any, Callable[[], list[str]]]) -> None:
    """Also those with names that have to be quoted in an address."""
    store, keys = bucket
    assert keys() == []
    for index, name in enumerate(NAMES):
        store.put(name, BODY + bytes([index]))
    for index, name in enumerate(NAMES):
        answer = store.get(name)
        assert bytes(answer.bytes()) == BODY + bytes([index])
        head = store.head(name)
        assert head["size"] == len(BODY) + 1
        assert head["e_tag"] == answer.meta["e_tag"]
    found = [meta["path"] for page in store.list() for meta in page]
    assert sorted(found) == sorted(NAMES)
    level = store.list_with_delimiter("group")
    assert list(level["common_prefixes"]) == ["group/c"]
    assert [meta["path"] for meta in level["objects"]] == ["group/zarr.json"]
    obstore.delete(store, NAMES[:3])
    store.delete(NAMES[3])
    assert len(keys()) == len(NAMES) - 4
    for name in ("never", NAMES[0]):
        with pytest.raises(FileNotFoundError):
            store.get(name)


def test_ranges(bucket: tuple[Any, Callable[[], list[str]]]) -> None:
    """Of values and beyond their end."""
    store, _ = bucket
    store.put("k", BODY)
    assert bytes(store.get_range("k", start=10, length=20)) == BODY[10:30]
    assert bytes(store.get_range("k", start=len(BODY) - 5, length=20)) == BODY[-5:]
    parts = store.get_ranges("k", starts=[3, 2000], lengths=[4, 5])
    assert [bytes(part) for part in parts] == [BODY[3:7], BODY[2000:2005]]
    assert bytes(store.get("k", options={"range": {"offset": 9000}}).bytes()) == BODY[9000:]
    with pytest.raises(GenericError):
        store.get_range("k", start=len(BODY), length=1)
    if isinstance(store, AzureStore):
        with pytest.raises(NotSupportedError, match="suffix"):
            store.get("k", options={"range": {"suffix": 7}})
    else:
        assert bytes(store.get("k", options={"range": {"suffix": 7}}).bytes()) == BODY[-7:]


def test_conditional_puts(bucket: tuple[Any, Callable[[], list[str]]]) -> None:
    """A value is replaced only if it is of the version that is named, and made only if there is none."""
    store, _ = bucket

    def version(found: Any) -> Any:
        return {name: found[name] for name in ("e_tag", "version") if found[name] is not None}

    first = version(store.put("k", b"first", mode="create"))
    with pytest.raises(AlreadyExistsError):
        store.put("k", b"other", mode="create")
    second = version(store.put("k", b"second", mode=first))
    assert second != first
    with pytest.raises(PreconditionError):
        store.put("k", b"third", mode=first)
    answer = store.get("k")
    assert bytes(answer.bytes()) == b"second"
    assert version(answer.meta) == version(store.head("k")) == second
    store.delete("k")
    with pytest.raises(PreconditionError):
        store.put("k", b"third", mode=second)
    with pytest.raises(FileNotFoundError):
        store.get("k")


def test_of_many_writers_one_is_first(bucket: tuple[Any, Callable[[], list[str]]]) -> None:
    """Among puts on the condition of the same version."""
    store, _ = bucket
    put = store.put("k", b"first")
    version = {name: value for name, value in put.items() if value is not None}

    def write(number: int) -> bool:
        try:
            store.put("k", f"from {number}".encode(), mode=version)
        except PreconditionError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = [number for number, done in enumerate(threads.map(write, range(8))) if done]
    assert len(won) == 1
    assert bytes(store.get("k").bytes()) == f"from {won[0]}".encode()


def test_azurite_checks_the_key(azure_server: Any) -> None:
    """Unlike moto, for which every signature is good."""
    options = azure_server.obstore_options
    other = base64.b64encode(b"another key").decode()
    store = AzureStore(azure_server.bucket(), **{**options, "account_key": other})
    with pytest.raises(PermissionDeniedError):
        store.get("k")


# nginx.


def test_files_by_http(http_server: WebServer) -> None:
    """They are served, whole and in parts, and requests are seen."""
    name, path = http_server.directory()
    (path / "k").write_bytes(BODY)
    store = HTTPStore.from_url(f"{http_server.url}/{name}", client_options=CLIENT)
    answer = store.get("k")
    assert bytes(answer.bytes()) == BODY
    assert answer.meta["e_tag"]
    assert bytes(store.get_range("k", start=1, length=2)) == BODY[1:3]
    assert bytes(store.get("k", options={"range": {"suffix": 2}}).bytes()) == BODY[-2:]
    with pytest.raises(FileNotFoundError):
        store.get("never")
    seen = [entry for entry in http_server.log() if entry["path"].startswith(f"/{name}/")]
    assert [entry["range"] for entry in seen] == [None, "bytes=1-2", "bytes=-2", None]
    assert [entry["status"] for entry in seen] == [200, 206, 206, 404]
    with pytest.raises(GenericError, match="405"):
        list(store.list())


def test_places_of_the_web_server(http_server: WebServer) -> None:
    """Those that refuse, those that answer with something else, and the one that takes values."""
    name, path = http_server.directory()
    (path / "k").write_bytes(BODY)

    def store(place: str, **headers: str) -> HTTPStore:
        options = {**CLIENT, "default_headers": headers}
        return HTTPStore.from_url(f"{http_server.url}/{place}/{name}", client_options=options)

    with pytest.raises(UnauthenticatedError):
        store("auth").get("k")
    both = base64.b64encode(f"{http_server.user}:{http_server.password}".encode()).decode()
    assert bytes(store("auth", Authorization=f"Basic {both}").get("k").bytes()) == BODY
    with pytest.raises(PermissionDeniedError):
        store("forbidden").get("k")
    for place in ("login", "moved"):
        answer = store(place).get("k")
        assert b"Password" in bytes(answer.bytes())
        assert answer.attributes["Content-Type"] == "text/html"
    _, headers, body = http_server.request(
        "GET", f"/compressed/{name}/k", headers={"Accept-Encoding": "gzip"}
    )
    assert headers["content-encoding"] == "gzip"
    assert headers["etag"].startswith("W/")
    assert "content-length" not in headers
    assert body != BODY
    store("dav").put("new/k", b"value")
    assert (path / "new" / "k").read_bytes() == b"value"
    store("dav").delete("new/k")
    assert not (path / "new" / "k").exists()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root has rights to give up")
def test_nginx_has_no_rights(http_server: WebServer) -> None:
    """It is not run as root."""
    assert http_server.process is not None
    watch = http_server.process.process.pid
    children = Path(f"/proc/{watch}/task/{watch}/children").read_text().split()
    assert len(children) == 1
    status = Path(f"/proc/{children[0]}/status").read_text()
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    assert "Groups:\t \n" in status
    secret = http_server.root.parent / "secret"
    secret.write_bytes(b"")
    secret.chmod(0o600)
    (http_server.root / "secret").symlink_to(secret)
    assert http_server.request("GET", "/secret")[0] == 403


# The scripted server, without faults.


def test_ordinary_answers(fault_server: FaultServer) -> None:
    """Of a web server, with conditions and ranges."""
    fault_server.put("/b/k", BODY)
    status, headers, body = request(fault_server, "GET", "/b/k")
    assert (status, body) == (200, BODY)
    assert headers["content-length"] == str(len(BODY))
    assert headers["last-modified"].endswith("GMT")
    etag = headers["etag"]
    assert request(fault_server, "HEAD", "/b/k")[1]["content-length"] == str(len(BODY))
    assert request(fault_server, "GET", "/b/k", If_None_Match=etag)[0] == 304
    assert request(fault_server, "GET", "/b/k", If_Match='"other"')[0] == 412
    for asked, part, place in [
        ("bytes=0-0", BODY[:1], "bytes 0-0/10000"),
        ("bytes=9990-", BODY[9990:], "bytes 9990-9999/10000"),
        ("bytes=-3", BODY[-3:], "bytes 9997-9999/10000"),
        ("bytes=9999-20000", BODY[9999:], "bytes 9999-9999/10000"),
    ]:
        status, headers, body = request(fault_server, "GET", "/b/k", Range=asked, If_Match=etag)
        assert (status, body, headers["content-range"]) == (206, part, place)
    assert request(fault_server, "GET", "/b/k", Range="bytes=10000-")[0] == 416
    assert request(fault_server, "GET", "/b/k", Range="bytes=0-1,3-4")[0] == 200
    for headers, status in [
        ({"If_Match": '"other"'}, 412),
        ({"If_None_Match": "*"}, 412),
        ({"x_goog_if_generation_match": "0"}, 412),
        ({"If_Match": etag}, 200),
    ]:
        assert request(fault_server, "PUT", "/b/k", b"new", **headers)[0] == status
    assert request(fault_server, "DELETE", "/b/k", If_Match=etag)[0] == 412
    assert request(fault_server, "DELETE", "/b/k")[0] == 204
    assert request(fault_server, "GET", "/b/k")[0] == 404
    assert request(fault_server, "PUT", "/b/k", b"new", If_None_Match="*")[0] == 200
    assert fault_server.get("/b/k") == b"new"
    assert request(fault_server, "PROPFIND", "/b")[0] == 405


def test_listings_come_in_pages(fault_server: FaultServer) -> None:
    """Each page begins where the one before ended; groups count as well."""
    names = [f"l/{number:02}" for number in range(23)] + [f"m/{number:02}/x" for number in range(12)]
    fault_server.put_all({f"/b/{name}": b"" for name in names})
    fault_server.configure(max_keys=5)
    store = s3(fault_server)
    assert [meta["path"] for page in store.list() for meta in page] == names
    assert fault_server.counts()["requests"] == 7
    assert [meta["path"] for page in store.list("l", offset="l/19") for meta in page] == names[20:23]
    fault_server.clear_log()
    level = store.list_with_delimiter("m")
    assert list(level["common_prefixes"]) == [f"m/{number:02}" for number in range(12)]
    assert [entry["query"]["delimiter"] for entry in fault_server.log()] == ["/"] * 3


def test_multipart_uploads(fault_server: FaultServer) -> None:
    """Larger values are put in parts."""
    value = os.urandom(11 * 2**20)
    for store in (
        s3(fault_server),
        GCSStore("b", base_url=fault_server.url, bearer_token="token", client_options=CLIENT),
    ):
        fault_server.reset()
        store.put("k", value)
        assert fault_server.get("/b/k") == value
        assert fault_server.summary() == {"POST": 2, "PUT": 3}


def test_requests_are_logged_and_counted(fault_server: FaultServer) -> None:
    """With what they ask for, and how many there were at once; what the tests ask is not."""
    fault_server.put("/b/k", BODY)
    fault_server.configure(latency=0.1)
    store = s3(fault_server)
    begin = time.monotonic()
    with ThreadPoolExecutor(24) as threads:
        list(threads.map(lambda _: store.get_range("k", start=5, length=6), range(24)))
    assert time.monotonic() - begin >= 0.1
    counts = fault_server.counts()
    assert counts == {"requests": 24, "under_way": 0, "most_at_once": counts["most_at_once"]}
    assert counts["most_at_once"] > 12
    log = fault_server.log()
    assert {entry["path"] for entry in log} == {"/b/k"}
    assert {entry["range"] for entry in log} == {"bytes=5-10"}
    assert {(entry["method"], entry["status"], entry["fault"], entry["signed"]) for entry in log} == {
        ("GET", 206, None, True)
    }
    assert begin <= log[0]["time"] <= log[-1]["time"] <= time.monotonic()
    fault_server.clear_log()
    assert fault_server.log() == []
    fault_server.configure(latency=0, log=False)
    store.get("k")
    assert fault_server.log() == []
    assert fault_server.counts()["requests"] == 1


def test_mistakes_of_tests_are_named(fault_server: FaultServer) -> None:
    """Rather than to have a rule without effect."""
    with pytest.raises(ValueError, match="no fault of kind 'rest'"):
        fault_server.fault("rest")
    with pytest.raises(ValueError, match="latenci"):
        fault_server.configure(latenci=1)


# Faults: each is what it says, on the wire.


def test_a_rule_chooses_its_requests(fault_server: FaultServer) -> None:
    """By path and method, after some and for some, or at random."""
    fault_server.put_all({"/b/k": b"1", "/b/c/0/0": b"2"})
    number = fault_server.fault("status", "/b/c/*", status=500, times=2, after=1, methods=["get"])

    def statuses(method: str, path: str, count: int) -> list[int]:
        return [request(fault_server, method, path)[0] for _ in range(count)]

    assert statuses("GET", "/b/k", 3) == [200] * 3
    assert statuses("HEAD", "/b/c/0/0", 3) == [200] * 3
    assert statuses("GET", "/b/c/0/0", 5) == [200, 500, 500, 200, 200]
    assert fault_server.hits(number) == 2
    assert [entry["fault"] for entry in fault_server.log("GET")][-5:] == [
        None,
        "status",
        "status",
        None,
        None,
    ]
    fault_server.clear_faults()
    fault_server.fault("status", share=0.5)
    assert {200, 503} == set(statuses("GET", "/b/k", 40))
    fault_server.reset()
    assert statuses("GET", "/b/k", 2) == [404, 404]


def by_status(server: FaultServer) -> None:
    for status, headers in [(500, {}), (429, {"Retry-After": "3"}), (401, {"WWW-Authenticate": "Basic"})]:
        server.clear_faults()
        server.fault("status", status=status, headers=headers, body="busy")
        found, named, body = request(server, "PUT", "/b/k", b"new")
        assert (found, body) == (status, b"busy")
        assert {name.lower(): value for name, value in headers.items()}.items() <= named.items()
    assert server.get("/b/k") == BODY


def by_hang(server: FaultServer) -> None:
    server.fault("hang")
    assert raw(server) == (b"", "open")


def by_reset(server: FaultServer) -> None:
    server.fault("reset")
    assert raw(server) == (b"", "reset")


def by_reset_body(server: FaultServer) -> None:
    server.fault("reset-body", keep=0.25)
    received, end = raw(server)
    head, _, body = received.partition(b"\r\n\r\n")
    assert (body, end) == (BODY[:2500], "reset")
    assert b"Content-Length: 10000" in head


def by_short(server: FaultServer) -> None:
    server.fault("short")
    received, end = raw(server)
    assert (received.partition(b"\r\n\r\n")[2], end) == (BODY[:5000], "closed")
    with pytest.raises(http.client.IncompleteRead):
        request(server, "GET", "/b/k")


def by_chunked(server: FaultServer) -> None:
    server.fault("chunked")
    received, end = raw(server)
    head, _, body = received.partition(b"\r\n\r\n")
    assert (body, end) == (b"1388\r\n" + BODY[:5000] + b"\r\n", "closed")
    assert b"Transfer-Encoding: chunked" in head
    assert b"Content-Length" not in head


def by_no_length(server: FaultServer) -> None:
    server.fault("no-length")
    received, end = raw(server)
    head, _, body = received.partition(b"\r\n\r\n")
    assert (body, end) == (BODY, "closed")
    assert b"Content-Length" not in head


def by_slow(server: FaultServer) -> None:
    server.fault("slow", seconds=0.2, pieces=4)
    begin = time.monotonic()
    assert request(server, "GET", "/b/k")[2] == BODY
    assert time.monotonic() - begin >= 0.14


def by_delay(server: FaultServer) -> None:
    server.fault("delay", seconds=0.15)
    begin = time.monotonic()
    assert request(server, "GET", "/b/k")[2] == BODY
    assert time.monotonic() - begin >= 0.15


def by_ignore_range(server: FaultServer) -> None:
    server.fault("ignore-range")
    status, headers, body = request(server, "GET", "/b/k", Range="bytes=1-2")
    assert (status, body) == (200, BODY)
    assert "content-range" not in headers


def by_wrong_range(server: FaultServer) -> None:
    server.fault("wrong-range", shift=3)
    status, headers, body = request(server, "GET", "/b/k", Range="bytes=10-19")
    assert (status, body, headers["content-range"]) == (206, BODY[13:23], "bytes 13-22/10000")


def by_narrow_range(server: FaultServer) -> None:
    server.fault("narrow-range")
    status, headers, body = request(server, "GET", "/b/k", Range="bytes=10-19")
    assert (status, body, headers["content-range"]) == (206, BODY[10:15], "bytes 10-14/10000")
    assert headers["content-length"] == "5"


def by_html(server: FaultServer) -> None:
    server.fault("html")
    status, headers, body = request(server, "GET", "/b/k", Range="bytes=10-19")
    assert (status, body) == (200, LOGIN_PAGE)
    assert headers["content-type"].startswith("text/html")


def by_redirect(server: FaultServer) -> None:
    server.fault("redirect", "/b/*", status=301)
    status, headers, _ = request(server, "GET", "/b/k")
    assert status == 301
    assert request(server, "GET", headers["location"])[2] == LOGIN_PAGE


def by_headers(server: FaultServer) -> None:
    server.fault("headers", headers={"etag": 'W/"weak"', "Last-Modified": None})
    status, headers, body = request(server, "GET", "/b/k")
    assert (status, body, headers["etag"]) == (200, BODY, 'W/"weak"')
    assert "last-modified" not in headers


def by_no_etag(server: FaultServer) -> None:
    server.fault("no-etag")
    for method in ("PUT", "GET", "HEAD"):
        status, headers, _ = request(server, method, "/b/k", b"new" if method == "PUT" else None)
        assert status == 200
        assert not {"etag", "x-goog-generation"} & headers.keys()


def by_lost_answer(server: FaultServer) -> None:
    server.fault("lost-answer")
    assert raw(server, b"PUT /b/k HTTP/1.1\r\nContent-Length: 3\r\n\r\nnew") == (b"", "reset")
    assert server.get("/b/k") == b"new"


def by_ignore_conditions(server: FaultServer) -> None:
    server.fault("ignore-conditions")
    assert request(server, "PUT", "/b/k", b"new", If_Match='"other"')[0] == 200
    assert request(server, "PUT", "/b/k", b"newer", If_None_Match="*")[0] == 200
    assert server.get("/b/k") == b"newer"


def by_no_conditions(server: FaultServer) -> None:
    server.fault("no-conditions")
    assert request(server, "PUT", "/b/other", b"new", If_None_Match="*")[0] == 501
    assert server.get("/b/other") is None
    assert request(server, "PUT", "/b/other", b"new")[0] == 200


def by_overwrite(server: FaultServer) -> None:
    etag = request(server, "GET", "/b/k")[1]["etag"]
    server.fault("overwrite", value=b"theirs", methods=["PUT"], times=1)
    assert request(server, "PUT", "/b/k", b"ours", If_Match=etag)[0] == 412
    assert server.get("/b/k") == b"theirs"


FAULTS = {
    name.removeprefix("by_").replace("_", "-"): check
    for name, check in globals().items()
    if name[:3] == "by_"
}


def test_every_fault_is_tested() -> None:
    """Below."""
    assert FAULTS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", FAULTS)
def test_fault(fault_server: FaultServer, kind: str) -> None:
    """It is what its name says, and the server goes on."""
    fault_server.put("/b/k", BODY)
    FAULTS[kind](fault_server)
    fault_server.clear_faults()
    fault_server.put("/b/k", BODY)
    assert request(fault_server, "GET", "/b/k")[2] == BODY
    assert kind in {entry["fault"] for entry in fault_server.log()}


# What obstore does with them, on which our stores rely.


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("status", {"status": 500}),
        ("status", {"status": 503}),
        ("status", {"status": 429}),
        ("hang", {}),
        ("reset", {}),
        ("reset-body", {}),
        ("short", {}),
    ],
)
def test_obstore_tries_a_read_again(fault_server: FaultServer, kind: str, parameters: dict[str, Any]) -> None:
    """Once is no harm; always is an error, after as many retries as it was told, or at once if none."""
    client = {**CLIENT, "timeout": timedelta(seconds=0.25)} if kind == "hang" else CLIENT
    store = s3(fault_server, client_options=client)
    fault_server.put("/b/k", BODY)
    fault_server.fault(kind, times=1, **parameters)
    assert bytes(store.get("k").bytes()) == BODY
    assert fault_server.counts()["requests"] == 2
    fault_server.fault(kind, **parameters)
    for retries in (2, 0):
        fault_server.clear_log()
        told = {**RETRIES, "max_retries": retries}
        store = s3(fault_server, client_options=client, retry_config=told)
        with pytest.raises(GenericError):
            store.get("k").bytes()
        assert fault_server.counts()["requests"] == retries + 1


def test_obstore_tries_no_conditional_put_again(fault_server: FaultServer) -> None:
    """Where it may have been carried out."""
    store = s3(fault_server)
    fault_server.fault("lost-answer", times=1)
    with pytest.raises(GenericError, match="kind: Interrupted"):
        store.put("k", b"new", mode="create")
    assert fault_server.get("/b/k") == b"new"
    assert fault_server.counts()["requests"] == 1
    fault_server.fault("status", times=1)
    with pytest.raises(AlreadyExistsError):
        store.put("k", b"newer", mode="create")
    assert fault_server.counts()["requests"] == 3


def test_obstore_takes_a_page_for_data(fault_server: FaultServer) -> None:
    """And an empty listing for one; nothing but the content type tells."""
    store = s3(fault_server)
    fault_server.put("/b/k", BODY)
    fault_server.fault("html")
    answer = store.get("k")
    assert bytes(answer.bytes()) == LOGIN_PAGE
    assert answer.attributes["Content-Type"].startswith("text/html")
    assert list(store.list()) == []
    with pytest.raises(GenericError, match="non-partial"):
        store.get_range("k", start=0, length=4)


# Beginning and end.


def gone(port: int, within: float = 120.0) -> bool:
    """Whether nobody listens on a port any more, soon."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            return True
        except (ConnectionResetError, TimeoutError):
            pass  # It is just being closed.
        time.sleep(0.05)
    return False


SESSION = """
import json, pathlib, time

def test_uses(request):
    ports = {}
    for name in ("s3", "azure", "http", "gcs", "fault"):
        try:
            server = request.getfixturevalue(f"{name}_server")
            ports[name] = server.port
            for make in ("bucket", "directory"):
                getattr(server, make, str)()
        except BaseException as error:
            if type(error).__name__ != "Skipped":
                raise
    pathlib.Path("ports.tmp").write_text(json.dumps(ports))
    pathlib.Path("ports.tmp").rename("ports.json")
    time.sleep(SECONDS)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])
def test_servers_end_with_the_session(tmp_path: Path, killed: bool) -> None:
    """Also if it is killed and can stop nothing itself; the last lines say what there was."""
    (tmp_path / "test_session.py").write_text(SESSION.replace("SECONDS", "60" if killed else "0"))
    ready = tmp_path / "ports.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--noconftest",
        "-p",
        "_servers",
        "--rootdir",
        str(tmp_path),
    ]
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)  # nginx, which has no rights, has its directory there.
        session = subprocess.Popen(
            [*command, "test_session.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(HERE), "PYTEST_ADDOPTS": "", "TMPDIR": place},
            stdout=subprocess.PIPE,
            text=True,
        )
        with session:
            try:
                end = time.monotonic() + 120
                while not ready.exists() and session.poll() is None and time.monotonic() < end:
                    time.sleep(0.05)
                if killed:
                    session.kill()
                output, _ = session.communicate(timeout=120)
            finally:
                session.kill()
        ports = json.loads(ready.read_text())
        assert {"gcs", "fault"} <= ports.keys()
        assert [name for name, port in ports.items() if not gone(port)] == []
        end = time.monotonic() + 120
        while (left := list(Path(place).glob(f"{PRIVATE}*"))) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == []
    if not killed:
        lines = [line for line in output.splitlines() if line.startswith("servers: ")]
        assert len(lines) == 5
        assert sum(line.endswith("ran for 1 test") for line in lines) == len(ports)


@pytest.mark.slow
def test_a_server_ends_at_its_limit(tmp_path: Path) -> None:
    """Without anybody to stop it."""
    process = Process(["sleep", "60"], tmp_path, limit=0.3)
    assert process.process.wait(120) != 0
    with FaultServer.start(limit=0.2) as server:
        assert server.process is not None
        assert server.process.wait(120) == 0


@pytest.mark.slow
def test_a_stubborn_server_is_killed(tmp_path: Path) -> None:
    """One that does not listen to a request to terminate, when the watch on it is killed."""
    if sys.platform != "linux":
        pytest.skip("other systems have no signal for the death of a parent")
    program = "import os, signal, time; signal.signal(15, signal.SIG_IGN)"
    program += "; print(os.getpid(), flush=True); time.sleep(60)"
    process = Process([sys.executable, "-c", program], tmp_path)
    number = int(process.wait_for(r"\d+")[0])
    process.process.kill()
    process.stop()
    end = time.monotonic() + 120
    while Path(f"/proc/{number}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{number}").exists()


def test_tests_without_a_server_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the reason, which the last lines of the run repeat."""
    monkeypatch.setitem(SEEN, "s3_server", seen := Seen("S3 by moto"))

    def start() -> Any:
        process = Process([sys.executable, "-c", "raise SystemExit('no such\\nthing')"], tmp_path)
        try:
            process.wait_for("Running")
        finally:
            process.stop()

    with (
        pytest.raises(pytest.skip.Exception, match="ended with status 1: no such thing"),
        serving("s3_server", start),
    ):
        pass
    assert str(seen) == "S3 by moto: did not run: it ended with status 1: no such thing"
    with pytest.raises(MissingServerError, match="within 0 s"):
        Process(["sleep", "60"], tmp_path).wait_for("Running", 0.1)
