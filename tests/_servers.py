"""Servers on loopback that the tests of stores talk to, as fixtures.

``s3_server`` is moto's (PyPI: moto, flask-cors), ``azure_server`` Azurite (npm: azurite), ``http_server``
nginx (Debian: nginx-light); ``gcs_server`` and ``fault_server`` are ``_fault_server.py``.

Each is started for the first test that asks and ends with the session: it is a process of its own, on a
free port, in a private directory, and ends as well when the tests are killed, or after `LIMIT` seconds.
A test whose server cannot be had is skipped with the reason, which the summary of a run repeats;
``ci/servers.sh`` installs what is missing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from _fault_server import FaultServer
from _watch import PRIVATE

LIMIT = 7200.0
INSTALLED = Path(__file__).parents[1] / ".servers"  # Where ci/servers.sh puts what it installs.
NOBODY = 65534

# The account that every Azurite has; it is in Microsoft's documentation and protects nothing.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

T = TypeVar("T")


class MissingServerError(Exception):
    """A server cannot be had here, and why."""


class Process:
    """A server's process in a directory private to it, with the rights of a user if these are root's."""

    def __init__(self, command: list[str], directory: Path, *, user: Any = None, **environment: str) -> None:
        self.log_path = directory / "log.txt"
        drop = "-" if user is None or os.geteuid() != 0 else str(user)
        watch = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_watch.py")), str(LIMIT), drop]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*watch, *command], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                cwd=directory, env={**os.environ, "TMPDIR": str(directory), **environment},
            )  # fmt: skip

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def port_in_log(self, before: str) -> int:
        """The port that it names in its log behind these words, as soon as it does."""
        return int(self.wait_for(lambda: re.search(rf"{before} http://127\.0\.0\.1:(\d+)", self.log()))[1])

    def wait_for(self, ready: Callable[[], T | None]) -> T:
        """What ``ready`` finds at last; MissingServerError if the process ends or takes too long."""
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            if found := ready():
                return found
            time.sleep(0.02)
        said = f"its status is {self.process.poll()}: {self.log()[-300:].strip()}"
        raise MissingServerError(f"it did not start within 120 s, {said}")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # It may be at its end already.
            self.process.stdin.write(b".")
            self.process.stdin.close()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()  # The command goes with it.
            self.process.wait()


_NUMBERS = itertools.count(1)


def fresh() -> str:
    """A name that was not used before."""
    return f"test-{os.getpid()}-{next(_NUMBERS)}"


@dataclass
class Server:
    """What all have in common: their address and process; most have `bucket`, the name of a new one."""

    port: int
    process: Process | None
    secrets: ClassVar[dict[str, str]] = {}
    obstore_secrets: ClassVar[dict[str, str]] = {}
    above = ""
    """What the paths of all buckets begin with."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {**self.secrets, "endpoint_url": f"{self.url}{self.above}", "allow_http": True}

    @property
    def obstore_options(self) -> dict[str, Any]:
        place = {"endpoint": f"{self.url}{self.above}", "client_options": {"allow_http": True}}
        return {**self.obstore_secrets, **place}

    def request(self, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Status and body of an answer, without any store between."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()


class S3Server(Server):
    """moto's server, which checks no signatures."""

    secrets: ClassVar = {"key": "test-key", "secret": "test-secret", "region": "us-east-1"}
    obstore_secrets: ClassVar = {
        "access_key_id": "test-key", "secret_access_key": "test-secret", "region": "us-east-1",
    }  # fmt: skip

    def bucket(self) -> str:
        name = fresh()
        status, body = self.request("PUT", f"/{name}")
        assert status == 200, body
        return name


class AzureServer(Server):
    """Azurite, with its one account."""

    secrets: ClassVar = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
    obstore_secrets: ClassVar = secrets
    above = f"/{ACCOUNT}"

    def bucket(self) -> str:
        """A new container, made by a request signed with the shared key of the account."""
        name = fresh()
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        described = [f"{header}:{value}" for header, value in sorted(headers.items())]
        # Eleven lines are for headers that are not sent, from Content-Encoding to Range.
        place = f"/{ACCOUNT}/{ACCOUNT}/{name}"
        signed = "\n".join(["PUT", *[""] * 11, *described, place, "restype:container"])
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        status, body = self.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers)
        assert status == 201, body
        return name


@dataclass
class WebServer(Server):
    """nginx, which serves what is in `root`, without listings.

    Below ``/auth/`` it asks for `user` and `password` (401 without), ``/forbidden/`` is 403,
    ``/login/`` answers any path by a page that asks for a password, with status 200, and ``/moved/``
    redirects there; the others serve the same files.
    """

    root: Path
    user: str = "reader"
    password: str = "of-the-tests"

    def directory(self) -> tuple[str, Path]:
        """The name of a new directory below `root`, and its path; it is at ``f"{url}/{name}"``."""
        path = self.root / fresh()
        path.mkdir()
        path.chmod(0o777)
        return path.name, path


class GcsServer(Server):
    """The XML interface of Google's storage as far as obstore uses it, by ``_fault_server.py``.

    There is no emulator of it: gcp-storage-emulator of PyPI has the JSON interface alone. What is not tested
    thus: Google's own checks of signatures and tokens, its limits of rates, and whatever its service does
    otherwise than its documentation says.
    """

    secrets: ClassVar = {"bearer_token": "test-token"}

    def bucket(self) -> str:
        return fresh()


@contextmanager
def start_s3() -> Iterator[S3Server]:
    if missing := [name for name in ("moto", "flask_cors") if find_spec(name) is None]:
        raise MissingServerError(f"{missing[0]} is not installed")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environment = {"MOTO_PORT": "0", "PYTHONUNBUFFERED": "1"}
    with _directory() as directory, Process(command, Path(directory), **environment) as process:
        yield S3Server(process.port_in_log("Running on"), process)


@contextmanager
def start_azure() -> Iterator[AzureServer]:
    node = shutil.which("node") or shutil.which("node", path="/usr/local/bin:/usr/bin")
    if node is None:
        raise MissingServerError("there is no node, which azurite of npm needs")
    installed = INSTALLED / "node_modules" / ".bin" / "azurite-blob"
    script = str(installed) if installed.exists() else shutil.which("azurite-blob")
    if script is None:
        raise MissingServerError(f"azurite of npm is not installed, in PATH or in {INSTALLED.name}")
    command = [node, script, "--blobHost", "127.0.0.1", "--blobPort", "0", "--location", "."]
    command += ["--silent", "--loose", "--skipApiVersionCheck", "--disableTelemetry"]
    with _directory() as directory, Process(command, Path(directory)) as process:
        yield AzureServer(process.port_in_log("successfully listens on"), process)


NGINX = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
    types {{}} default_type application/octet-stream; gzip off; sendfile on;
    keepalive_requests 100000; client_max_body_size 256m;
    server {{
        listen 127.0.0.1:{port};
        root {directory}/www;
        location / {{ }}
        location /auth/ {{
            alias {directory}/www/; auth_basic "tests"; auth_basic_user_file {directory}/users;
        }}
        location /forbidden/ {{ return 403; }}
        location /login/ {{
            default_type text/html;
            return 200 '<!DOCTYPE html><html><body><form>Password</form></body></html>';
        }}
        location /moved/ {{ return 302 /login/; }}
    }}
}}
"""


@contextmanager
def start_http() -> Iterator[WebServer]:
    """nginx, as a user without rights."""
    local = INSTALLED / "nginx" / "usr" / "sbin" / "nginx"
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")
    if binary is None and not local.exists():
        raise MissingServerError(f"nginx is not installed, in PATH, in /usr/sbin or in {INSTALLED.name}")
    with _directory() as private:
        directory, environment = Path(private), dict[str, str]()
        if binary is None:
            # Without rights one may be unable to reach the checkout.
            shutil.copytree(INSTALLED / "nginx", directory / "nginx", symlinks=True)
            binary = str(directory / "nginx" / "usr" / "sbin" / "nginx")
            places = sorted({str(path.parent) for path in (directory / "nginx").rglob("lib*.so.*")})
            environment["LD_LIBRARY_PATH"] = ":".join(places)
        asked: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
        said = subprocess.run([binary, "-v"], env={**os.environ, **environment}, **asked).stderr
        if "nginx/" not in said:
            raise MissingServerError(f"{binary} does not run: {said[-300:].strip()}")
        server = WebServer(0, None, directory / "www")
        server.root.mkdir()
        server.root.chmod(0o777)
        (directory / "users").write_text(f"{server.user}:{{PLAIN}}{server.password}\n")
        with _start_nginx(binary, directory, server, environment) as server.process:
            yield server


def _start_nginx(binary: str, directory: Path, server: WebServer, environment: dict[str, str]) -> Process:
    """Nobody can tell nginx to choose a port, so another one is tried if somebody else was faster."""
    if os.geteuid() == 0:
        for path in (directory, *directory.iterdir()):
            os.chown(path, NOBODY, NOBODY)
    log, configuration = directory / "error.log", directory / "nginx.conf"
    command = [binary, "-p", str(directory), "-e", str(log), "-c", str(configuration)]
    for last in (False, False, True):
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            server.port = bound.getsockname()[1]
        configuration.write_text(NGINX.format(directory=directory, port=server.port))
        configuration.chmod(0o644)
        process = Process(command, directory, user=NOBODY, **environment)
        try:
            process.wait_for(lambda: _takes_connections(server.port))
        except MissingServerError as error:
            process.stop()
            text = log.read_text() if log.exists() else str(error)
            if last or "Address already in use" not in text:
                raise MissingServerError(f"it did not start: {text[-300:].strip()}") from error
        else:
            break
    return process


def _takes_connections(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def start_gcs() -> Iterator[GcsServer]:
    with FaultServer.start(limit=LIMIT) as faults:
        faults.configure(delete_missing=404)
        yield GcsServer(faults.port, None)


@contextmanager
def answered_by(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a web server on loopback that answers in a way of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _directory() -> AbstractContextManager[str]:
    return tempfile.TemporaryDirectory(prefix=PRIVATE, ignore_cleanup_errors=True)


@contextmanager
def serving(title: str, start: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    """The server that ``start`` gives; the test is skipped if there is none."""
    for variable in ("NO_PROXY", "no_proxy"):  # Nothing between the tests and loopback.
        known = os.environ.get(variable, "").split(",")
        os.environ[variable] = ",".join(dict.fromkeys([*filter(None, known), "127.0.0.1", "localhost"]))
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start())
        except MissingServerError as error:
            pytest.skip(f"{title} did not run: {' '.join(str(error).split())}")
        yield server


def _fixture(title: str, start: Callable[[], AbstractContextManager[Any]]) -> Any:
    @pytest.fixture(scope="session")
    def server() -> Iterator[Any]:
        with serving(title, start) as started:
            yield started

    return server


s3_server = _fixture("S3 by moto", start_s3)
azure_server = _fixture("Azure by Azurite", start_azure)
http_server = _fixture("HTTP by nginx", start_http)
gcs_server = _fixture("GCS by the scripted server", start_gcs)
fault_process = _fixture("The scripted server", partial(FaultServer.start, limit=LIMIT))


@pytest.fixture
def fault_server(fault_process: FaultServer) -> FaultServer:
    """The scripted server, as if it was just started."""
    fault_process.reset()
    return fault_process
