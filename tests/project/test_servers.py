"""The servers of the tests themselves. What they are as stores, the tests of ``ObjectStore`` show."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _fault_server import KINDS, LOGIN_PAGE, FaultServer
from _servers import SEEN, MissingServerError, Process, Server, WebServer, serving
from _watch import PRIVATE
from obstore.store import GCSStore, S3Store

HERE = Path(__file__).parents[1]
BODY = bytes(range(250)) * 40
CLIENT: Any = {"allow_http": True}


def s3(server: FaultServer) -> S3Store:
    """The scripted server as S3."""
    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    return S3Store("b", endpoint=server.url, client_options=CLIENT, **keys)


def request(server: FaultServer, method: str, path: str = "/b/k", body: bytes = b"", **headers: str) -> Any:
    """Status, headers and body of an answer; underscores in the names of headers are hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Server(server.port, None).request(method, path, body, named)


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for what is certain to come."""
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root has rights to give up")
def test_nginx_is_not_run_as_root(http_server: WebServer) -> None:
    assert http_server.process is not None
    watch = http_server.process.process.pid
    (child,) = Path(f"/proc/{watch}/task/{watch}/children").read_text().split()
    status = Path(f"/proc/{child}/status").read_text()
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    assert "Groups:\t \n" in status
    secret = http_server.root.parent / "secret"
    secret.write_bytes(b"")
    secret.chmod(0o600)
    (http_server.root / "secret").symlink_to(secret)
    assert http_server.request("GET", "/secret")[0] == 403


# The scripted server.


def test_ordinary_answers(fault_server: FaultServer) -> None:
    """Of a web server, with conditions and ranges."""
    fault_server.put("/b/k", BODY)
    status, headers, body = request(fault_server, "GET")
    assert (status, body, headers["content-length"]) == (200, BODY, str(len(BODY)))
    assert headers["last-modified"].endswith("GMT")
    etag = headers["etag"]
    assert request(fault_server, "HEAD")[1]["content-length"] == str(len(BODY))
    for asked, part, place in [
        ("bytes=0-0", BODY[:1], "bytes 0-0/10000"),
        ("bytes=9990-", BODY[9990:], "bytes 9990-9999/10000"),
        ("bytes=-3", BODY[-3:], "bytes 9997-9999/10000"),
        ("bytes=9999-20000", BODY[9999:], "bytes 9999-9999/10000"),
    ]:
        status, headers, body = request(fault_server, "GET", Range=asked, If_Match=etag)
        assert (status, body, headers["content-range"]) == (206, part, place)
    for method, conditions, status in [
        ("GET", {"If_None_Match": etag}, 304),
        ("GET", {"If_Match": '"other"'}, 412),
        ("GET", {"Range": "bytes=10000-"}, 416),
        ("GET", {"Range": "bytes=0-1,3-4"}, 200),
        ("PUT", {"If_Match": '"other"'}, 412),
        ("PUT", {"If_None_Match": "*"}, 412),
        ("PUT", {"x_goog_if_generation_match": "0"}, 412),
        ("PUT", {"If_Match": etag}, 200),
        ("DELETE", {"If_Match": etag}, 412),
        ("DELETE", {}, 204),
        ("GET", {}, 404),
        ("PUT", {"If_None_Match": "*"}, 200),
        ("PROPFIND", {}, 405),
    ]:
        value = b"new" if method == "PUT" else b""
        assert request(fault_server, method, body=value, **conditions)[0] == status, (method, conditions)
    assert fault_server.get("/b/k") == b"new"


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


def test_large_values_are_put_in_parts(fault_server: FaultServer) -> None:
    value = os.urandom(11 * 2**20)
    google = GCSStore("b", base_url=fault_server.url, bearer_token="token", client_options=CLIENT)
    for store in (s3(fault_server), google):
        fault_server.reset()
        store.put("k", value)
        assert fault_server.get("/b/k") == value
        assert fault_server.summary() == {"POST": 2, "PUT": 3}


def test_requests_are_logged_and_counted(fault_server: FaultServer) -> None:
    """With what they ask for, and how many there were at once; what the tests ask is not."""
    fault_server.put("/b/k", BODY)
    s3(fault_server).get_range("k", start=5, length=6)
    (entry,) = fault_server.log()
    logged = {"method": "GET", "path": "/b/k", "range": "bytes=5-10", "status": 206, "signed": True}
    assert entry.items() >= logged.items()
    fault_server.clear_log()
    assert fault_server.log() == []
    fault_server.fault("hang")
    asking = [socket.create_connection(("127.0.0.1", fault_server.port)) for _ in range(9)]
    for connection in asking:
        connection.sendall(b"GET /b/k HTTP/1.1\r\n\r\n")
    wait_until(lambda: fault_server.counts() == {"requests": 9, "under_way": 9, "most_at_once": 9})
    for connection in asking:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        connection.close()
    wait_until(lambda: fault_server.counts() == {"requests": 9, "under_way": 0, "most_at_once": 9})
    assert {(entry["fault"], entry["status"]) for entry in fault_server.log()} == {("hang", None)}


def test_mistakes_of_tests_are_named(fault_server: FaultServer) -> None:
    with pytest.raises(ValueError, match="no fault of kind 'rest'"):
        fault_server.fault("rest")
    with pytest.raises(ValueError, match="latenci"):
        fault_server.configure(latenci=1)


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
    faults = [entry["fault"] for entry in fault_server.log("GET")]
    assert faults == [None] * 4 + ["status"] * 2 + [None] * 2
    fault_server.clear_faults()
    fault_server.fault("status", share=0.5)
    assert {200, 503} == set(statuses("GET", "/b/k", 40))
    fault_server.clear_faults()
    fault_server.fault("status", status=403, signed=False)
    assert statuses("GET", "/b/k", 1) == [403]
    assert request(fault_server, "GET", Authorization="any")[0] == 200
    assert fault_server.log()[-1]["sent"] == 1
    fault_server.reset()
    assert statuses("GET", "/b/k", 2) == [404, 404]


# Faults: each is what it says, on the wire.

LENGTH, CHUNKED = b"Content-Length", b"Transfer-Encoding: chunked"
BROKEN: dict[str, tuple[dict[str, Any], bytes, str, bytes, bytes]] = {
    "reset": ({}, b"", "reset", b"", b"HTTP"),
    "lost-answer": ({}, b"", "reset", b"", b"HTTP"),
    "reset-body": ({"keep": 0.25}, BODY[:2500], "reset", b"Content-Length: 10000", CHUNKED),
    "short": ({}, BODY[:5000], "closed", b"Content-Length: 10000", CHUNKED),
    "chunked": ({}, b"1388\r\n" + BODY[:5000] + b"\r\n", "closed", CHUNKED, LENGTH),
    "no-length": ({}, BODY, "closed", b"Connection: close", LENGTH),
}
"""Parameters; the body that comes, how the connection ends, what the head has and what it has not."""


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_answer(fault_server: FaultServer, kind: str) -> None:
    parameters, expected, how, there, not_there = BROKEN[kind]
    fault_server.put("/b/k", BODY)
    fault_server.fault(kind, times=1, **parameters)
    received, ended = b"", "closed"
    with socket.create_connection(("127.0.0.1", fault_server.port), 120) as connection:
        connection.sendall(b"GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            while part := connection.recv(2**16):
                received += part
        except ConnectionResetError:
            ended = "reset"
    head, _, body = received.partition(b"\r\n\r\n")
    assert (body, ended) == (expected, how)
    assert there in head
    assert not_there not in head
    assert request(fault_server, "GET")[2] == BODY, "the server goes on"
    assert [entry["fault"] for entry in fault_server.log()] == [kind, None]


BUSY = {"Retry-After": "3"}
PART = {"Range": "bytes=10-19"}
ETAG = f'"{"0" * 32}"'
WRONG: list[tuple[str, dict[str, Any], str, dict[str, str], int, bytes, dict[str, str | None]]] = [
    ("status", {"status": 500, "body": "busy"}, "PUT", {}, 500, b"busy", {}),
    ("status", {"status": 429, "headers": BUSY}, "GET", {}, 429, b"", {"retry-after": "3"}),
    ("slow", {"seconds": 0.02, "pieces": 4}, "GET", {}, 200, BODY, {"content-length": "10000"}),
    ("ignore-range", {}, "GET", PART, 200, BODY, {"content-range": None}),
    ("wrong-range", {"shift": 3}, "GET", PART, 206, BODY[13:23], {"content-range": "bytes 13-22/10000"}),
    ("narrow-range", {}, "GET", PART, 206, BODY[10:15], {"content-range": "bytes 10-14/10000"}),
    ("html", {}, "GET", PART, 200, LOGIN_PAGE, {"content-type": "text/html; charset=utf-8"}),
    ("redirect", {"status": 301}, "GET", {}, 301, b"", {"location": "/-/login"}),
    ("headers", {"headers": {"etag": 'W/"1"'}}, "GET", {}, 200, BODY, {"etag": 'W/"1"'}),
    ("headers", {"headers": {"Last-Modified": None}}, "GET", {}, 200, BODY, {"last-modified": None}),
    *[("no-etag", {}, "GET", {}, 200, BODY, {name: None}) for name in ("etag", "x-goog-generation")],
    ("no-etag", {}, "HEAD", {}, 200, b"", {"etag": None}),
    ("no-etag", {}, "PUT", {}, 200, b"", {"etag": None}),
    ("ignore-conditions", {}, "PUT", {"If-Match": ETAG}, 200, b"", {}),
    ("ignore-conditions", {}, "PUT", {"If-None-Match": "*"}, 200, b"", {}),
    ("no-conditions", {}, "PUT", {"If-Match": ETAG}, 501, None, {}),
    ("no-conditions", {}, "PUT", {}, 200, b"", {}),
    ("overwrite", {"value": b"theirs"}, "GET", {}, 200, b"theirs", {}),
]
"""Kind and parameters; method and headers of a request; status, body and some headers of the answer."""


@pytest.mark.parametrize("case", range(len(WRONG)), ids=[f"{at}-{case[0]}" for at, case in enumerate(WRONG)])
def test_wrong_answer(fault_server: FaultServer, case: int) -> None:
    kind, parameters, method, headers, status, body, answered = WRONG[case]
    fault_server.put("/b/k", BODY)
    fault_server.fault(kind, "/b/*", times=1, **parameters)
    found, named, got = request(fault_server, method, body=b"new" if method == "PUT" else b"", **headers)
    assert (found, got) == (status, got if body is None else body)
    assert {name: named.get(name) for name in answered} == answered
    if method == "PUT":
        assert fault_server.get("/b/k") == (b"new" if status == 200 else BODY)


def test_what_is_carried_out_before_an_answer_is_lost(fault_server: FaultServer) -> None:
    fault_server.fault("lost-answer")
    with pytest.raises(ConnectionResetError):
        request(fault_server, "PUT", body=b"new")
    assert fault_server.get("/b/k") == b"new"
    assert request(fault_server, "GET", "/-/login", x_control="1")[2] == LOGIN_PAGE


def test_every_fault_is_tested() -> None:
    assert {*BROKEN, *(case[0] for case in WRONG), "hang"} == KINDS.keys()


# Beginning and end.


def gone(port: int) -> bool:
    """Whether nobody listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return True
    except (ConnectionResetError, TimeoutError):
        pass  # It is just being closed.
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
    (tmp_path / "test_session.py").write_text(SESSION.replace("SECONDS", "600" if killed else "0"))
    ready = tmp_path / "ports.json"
    options = ["-q", "--noconftest", "-p", "_servers", "--rootdir", str(tmp_path), "test_session.py"]
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)  # nginx, which has no rights, has its directory there.
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(HERE), "PYTEST_ADDOPTS": "", "TMPDIR": place},
            stdout=subprocess.PIPE,
            text=True,
        ) as session:
            try:
                wait_until(lambda: ready.exists() or session.poll() is not None)
                if killed:
                    session.kill()
                output, _ = session.communicate(timeout=120)
            finally:
                session.kill()
        ports = json.loads(ready.read_text())
        assert {"gcs", "fault"} <= ports.keys()
        wait_until(lambda: all(map(gone, ports.values())))
        wait_until(lambda: not list(Path(place).glob(f"{PRIVATE}*")))
    if not killed:
        lines = [line for line in output.splitlines() if line.startswith("servers: ")]
        assert len(lines) == 5
        assert sum(line.endswith(" ran") for line in lines) == len(ports)


@pytest.mark.slow
def test_a_server_ends_at_its_limit(tmp_path: Path) -> None:
    process = Process(["sleep", "60"], tmp_path, limit=0.3)
    assert process.process.wait(120) != 0
    with FaultServer.start(limit=0.2) as server:
        assert server.process is not None
        assert server.process.wait(120) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal for the death of a parent")
def test_a_stubborn_server_is_killed(tmp_path: Path) -> None:
    """One that does not listen to a request to terminate, when the watch on it is killed."""
    program = "import os, signal, time; signal.signal(15, signal.SIG_IGN)"
    program += "; print(os.getpid(), flush=True); time.sleep(600)"
    process = Process([sys.executable, "-c", program], tmp_path)
    number = int(process.wait_for(r"\d+")[0])
    process.process.kill()
    process.stop()
    wait_until(lambda: not Path(f"/proc/{number}").exists())


def test_tests_without_a_server_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the reason, which the last lines of the run repeat."""
    monkeypatch.setitem(SEEN, "s3_server", "")

    def start() -> Any:
        process = Process([sys.executable, "-c", "raise SystemExit('no such\\nthing')"], tmp_path)
        try:
            process.wait_for("Running")
        finally:
            process.stop()

    reason = "ended with status 1: no such thing"
    with pytest.raises(pytest.skip.Exception, match=reason), serving("s3_server", start):
        pass
    assert SEEN["s3_server"] == f"did not run: it {reason}"
    with pytest.raises(MissingServerError, match="within 0 s"):
        Process(["sleep", "60"], tmp_path).wait_for("Running", 0.1)
