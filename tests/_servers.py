"""Servers on loopback that the tests of stores talk to, as fixtures, and which of them there were.

============== ===================================== ==================================================
fixture        server                                what a test gets
============== ===================================== ==================================================
s3_server      moto's server (PyPI: moto, flask-cors) `S3Server`
azure_server   Azurite (npm: azurite)                `AzureServer`
http_server    nginx (Debian: nginx-light)           `WebServer`
gcs_server     ``_fault_server.py``, see `GcsServer` `GcsServer`
fault_server   ``_fault_server.py``                  `FaultServer`, without values, rules and requests
============== ===================================== ==================================================

Each is started for the first test that asks and ends with the session: it is a process of its own, on a
free port, in a private directory, and ends as well when the tests are killed, or after `LIMIT` seconds.
A test whose server cannot be had is skipped with the reason; ``ci/servers.sh`` installs what is missing.
The last lines of a run say which servers ran.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _fault_server import FaultServer
from _watch import PRIVATE

LIMIT = 7200.0
INSTALLED = Path(__file__).parents[1] / ".servers"  # Where ci/servers.sh puts what it installs.
NOBODY = 65534

ACCOUNT = "devstoreaccount1"
# The account that every Azurite has; it is in Microsoft's documentation and protects nothing.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class MissingServerError(Exception):
    """A server cannot be had here, and why."""


@dataclass
class Seen:
    """What became of one server in this run."""

    title: str
    version: str = ""
    missing: str = ""
    tests: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        name = f"{self.title} {self.version}".strip()
        if self.missing:
            return f"{name}: did not run: {self.missing}"
        return f"{name}: ran for {len(self.tests)} test{'' if len(self.tests) == 1 else 's'}"


T = TypeVar("T")
SEEN: dict[str, Seen] = {}  # By name of the fixture, of the servers that were asked for.
TITLES = {
    "s3_server": "S3 by moto",
    "azure_server": "Azure by Azurite",
    "http_server": "HTTP by nginx",
    "gcs_server": "GCS by the scripted server",
    "fault_server": "faults by the scripted server",
}


class Process:
    """A server's process and its log.

    Parameters
    ----------
    command : list of str
        What to run.
    directory : Path
        Private to it; the working directory, and where temporary files go.
    user : int, optional
        Whose rights it gets, if these are root's.
    """

    def __init__(
        self,
        command: list[str],
        directory: Path,
        *,
        user: int | None = None,
        environment: dict[str, str] | None = None,
        limit: float = LIMIT,
    ) -> None:
        self.directory = directory
        self.log_path = directory / "log.txt"
        drop = "-" if user is None or os.geteuid() != 0 else str(user)
        watch = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_watch.py")), str(limit), drop]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*watch, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, "TMPDIR": str(directory), **(environment or {})},
            )

    def log(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = 120.0) -> re.Match[str]:
        """The first place in its log that fits a pattern; MissingServerError if it ends or takes too long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self.process.poll()
            found = re.search(pattern, self.log())
            if found is not None:
                return found
            if ended is not None:
                raise MissingServerError(f"it ended with status {ended}: {self.log()[-300:].strip()}")
            time.sleep(0.02)
        raise MissingServerError(f"it did not start within {seconds:.0f} s: {self.log()[-300:].strip()}")

    def wait_for_port(self, port: int, seconds: float = 120.0) -> None:
        """Wait until it takes connections."""
        end = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise MissingServerError(f"it did not start: {self.log()[-300:].strip()}") from error
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """End it, and wait for its end."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # It may be at its end already.
            self.process.stdin.write(b".")
            self.process.stdin.close()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()  # The command goes with it.
            self.process.wait()


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@dataclass
class Server:
    """What all have in common: their address and process."""

    port: int
    process: Process | None

    @property
    def url(self) -> str:
        """Address without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def fresh(self, _numbers: Iterator[int] = itertools.count(1)) -> str:  # noqa: B008 - shared on purpose
        """A name that was not used before."""
        return f"test-{os.getpid()}-{next(_numbers)}"

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of an answer, without any store between."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body=body or None, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()


class S3Server(Server):
    """moto's server. It does not check signatures."""

    key = "test-key"
    secret = "test-secret"
    region = "us-east-1"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What makes ``s3://bucket/...`` this server, in the words of fsspec."""
        return {
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": self.url,
            "client_kwargs": {"region_name": self.region},
            "allow_http": True,
        }

    @property
    def obstore_options(self) -> dict[str, Any]:
        """The same for ``obstore.store.S3Store(bucket, ...)``."""
        return {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "endpoint": self.url,
            "region": self.region,
            "client_options": {"allow_http": True},
        }

    def bucket(self) -> str:
        """The name of a new bucket."""
        _used("s3_server")
        name = self.fresh()
        status, _, body = self.request("PUT", f"/{name}")
        assert status == 200, body
        return name

    def keys(self, bucket: str) -> list[str]:
        """The keys in a bucket, in order."""
        _, _, body = self.request("GET", f"/{bucket}?list-type=2")
        return sorted(re.findall(r"<Key>(.*?)</Key>", body.decode()))


class AzureServer(Server):
    """Azurite, with its one account."""

    account = ACCOUNT
    key = ACCOUNT_KEY

    @property
    def storage_options(self) -> dict[str, Any]:
        """What makes ``az://container/...`` this server, in the words of fsspec."""
        return {
            "account_name": self.account,
            "account_key": self.key,
            "endpoint_url": f"{self.url}/{self.account}",
            "allow_http": True,
        }

    @property
    def obstore_options(self) -> dict[str, Any]:
        """The same for ``obstore.store.AzureStore(container, ...)``."""
        return {
            "account_name": self.account,
            "account_key": self.key,
            "endpoint": f"{self.url}/{self.account}",
            "client_options": {"allow_http": True},
        }

    def container(self) -> str:
        """The name of a new container."""
        _used("azure_server")
        name = self.fresh()
        status, _, body = self.signed("PUT", f"/{name}", {"restype": "container"})
        assert status == 201, body
        return name

    bucket = container

    def keys(self, container: str) -> list[str]:
        """The keys in a container, in order."""
        _, _, body = self.signed("GET", f"/{container}", {"comp": "list", "restype": "container"})
        return sorted(re.findall(r"<Name>(.*?)</Name>", body.decode()))

    def signed(self, method: str, path: str, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """The answer to a request without a body, signed with the shared key of the account."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        resource = f"/{self.account}/{self.account}{path}"
        signed = "\n".join(
            [
                method,
                *[""] * 11,  # Content-Encoding to Range.
                *(f"{name}:{value}" for name, value in sorted(headers.items())),
                resource,
                *(f"{name}:{value}" for name, value in sorted(query.items())),
            ]
        )
        digest = hmac.new(base64.b64decode(self.key), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        return self.request(method, f"/{self.account}{path}?{asked}", headers=headers)


@dataclass
class WebServer(Server):
    """nginx, which serves what is in `root`, without listings.

    Below ``/auth/`` it asks for `user` and `password` (401 without), ``/forbidden/`` is 403,
    ``/login/`` answers any path by a page that asks for a password, with status 200, ``/moved/``
    redirects there, ``/compressed/`` compresses what it sends (no length, weak e-tags), and below
    ``/dav/`` values can be put and deleted. All but ``/login/`` and ``/moved/`` serve the same files.
    """

    root: Path
    requests_path: Path
    user: str = "reader"
    password: str = "of-the-tests"

    def directory(self) -> tuple[str, Path]:
        """The name of a new directory below `root`, and its path; it is at ``f"{url}/{name}"``."""
        _used("http_server")
        name = self.fresh()
        path = self.root / name
        path.mkdir()
        path.chmod(0o777)
        return name, path

    def log(self) -> list[dict[str, Any]]:
        """The requests so far: ``method``, ``path``, ``range`` (or None), ``status``, ``sent`` (bytes)."""
        # A request is logged after its answer, but before the next one is taken.
        self.request("GET", "/login/log")
        found = []
        for line in self.requests_path.read_text().splitlines():
            entry = json.loads(line)
            entry["range"] = entry["range"] or None
            if entry["path"] != "/login/log":
                found.append(entry)
        return found


@dataclass
class GcsServer(Server):
    """The XML interface of Google's storage as far as obstore uses it, by ``_fault_server.py``.

    There is no emulator that serves: gcp-storage-emulator of PyPI answers obstore's HEAD and PUT with 501
    and its GET with 404, because it has the JSON interface alone. What is not tested thus: Google's
    own checks of signatures and tokens (every token is good, and reads go without), its limits of
    rates, and whatever its service does otherwise than its documentation says.
    """

    faults: FaultServer

    @property
    def storage_options(self) -> dict[str, Any]:
        """What makes ``gs://bucket/...`` this server."""
        return {"endpoint_url": self.url, "bearer_token": "test-token", "allow_http": True}

    @property
    def obstore_options(self) -> dict[str, Any]:
        """The same for ``obstore.store.GCSStore(bucket, ...)``.

        With ``skip_signature`` alone obstore reads, but asks for a token to write.
        """
        return {
            "base_url": self.url,
            "bearer_token": "test-token",
            "client_options": {"allow_http": True},
        }

    def bucket(self) -> str:
        """The name of a new bucket."""
        _used("gcs_server")
        return self.fresh()

    def keys(self, bucket: str) -> list[str]:
        """The keys in a bucket, in order."""
        return [path.removeprefix(f"/{bucket}/") for path in self.faults.keys(f"/{bucket}/")]


# Starting.


@contextmanager
def start_s3() -> Iterator[S3Server]:
    """moto's server."""
    try:
        version = importlib.metadata.version("moto")
        importlib.metadata.version("flask-cors")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingServerError(f"{error.name} is not installed") from error
    with _directory() as directory:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        process = Process(command, directory, environment={"MOTO_PORT": "0", "PYTHONUNBUFFERED": "1"})
        try:
            port = int(process.wait_for(r"Running on http://127\.0\.0\.1:(\d+)")[1])
            _version("s3_server", version)
            yield S3Server(port, process)
        finally:
            process.stop()


@contextmanager
def start_azure() -> Iterator[AzureServer]:
    """Azurite."""
    node = shutil.which("node") or shutil.which("node", path="/usr/local/bin:/usr/bin")
    if node is None:
        raise MissingServerError("there is no node, which azurite of npm needs")
    installed = INSTALLED / "node_modules" / ".bin" / "azurite-blob"
    script = str(installed) if installed.exists() else shutil.which("azurite-blob")
    if script is None:
        raise MissingServerError(f"azurite of npm is not installed, in PATH or in {INSTALLED.name}")
    with _directory() as directory:
        command = [node, script, "--blobHost", "127.0.0.1", "--blobPort", "0", "--location", str(directory)]
        command += ["--silent", "--loose", "--skipApiVersionCheck", "--disableTelemetry"]
        process = Process(command, directory)
        try:
            port = int(process.wait_for(r"successfully listens on http://127\.0\.0\.1:(\d+)")[1])
            manifest = Path(script).resolve()
            while manifest.name != "azurite" and manifest != manifest.parent:
                manifest = manifest.parent
            described = manifest / "package.json"
            _version(
                "azure_server", json.loads(described.read_text())["version"] if described.exists() else ""
            )
            yield AzureServer(port, process)
        finally:
            process.stop()


NGINX = """
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 512; }}
http {{
    log_format asked escape=json
        '{{"method": "$request_method", "path": "$uri", "range": "$http_range", '
        '"status": $status, "sent": $body_bytes_sent}}';
    access_log {directory}/requests.log asked;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    types {{}}
    default_type application/octet-stream;
    gzip off;
    sendfile on;
    keepalive_requests 100000;
    client_max_body_size 256m;
    server {{
        listen 127.0.0.1:{port};
        root {directory}/www;
        location / {{ }}
        location /auth/ {{
            alias {directory}/www/;
            auth_basic "tests";
            auth_basic_user_file {directory}/users;
        }}
        location /forbidden/ {{ return 403; }}
        location /login/ {{
            default_type text/html;
            return 200 '<!DOCTYPE html><html><body><form>Password</form></body></html>';
        }}
        location /moved/ {{ return 302 /login/; }}
        location /compressed/ {{
            alias {directory}/www/;
            gzip on;
            gzip_types *;
            gzip_min_length 1;
        }}
        location /dav/ {{
            alias {directory}/www/;
            dav_methods PUT DELETE;
            create_full_put_path on;
        }}
    }}
}}
"""


@contextmanager
def start_http() -> Iterator[WebServer]:
    """nginx, as a user without rights."""
    local = INSTALLED / "nginx" / "usr" / "sbin" / "nginx"
    system = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")
    if system is None and not local.exists():
        raise MissingServerError(f"nginx is not installed, in PATH, in /usr/sbin or in {INSTALLED.name}")
    with _directory() as directory:
        environment = {}
        if system is None:
            # Without rights one may be unable to reach the checkout.
            shutil.copytree(INSTALLED / "nginx", directory / "nginx", symlinks=True)
            system = str(directory / "nginx" / "usr" / "sbin" / "nginx")
            places = sorted({str(path.parent) for path in (directory / "nginx").rglob("lib*.so.*")})
            environment["LD_LIBRARY_PATH"] = ":".join(places)
        said = subprocess.run(
            [system, "-v"], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
        ).stderr
        found = re.search(r"nginx/(\S+)", said)
        if found is None:
            raise MissingServerError(f"{system} does not run: {said[-300:].strip()}")
        root = directory / "www"
        root.mkdir()
        root.chmod(0o777)
        server = WebServer(0, None, root, directory / "requests.log")
        (directory / "users").write_text(f"{server.user}:{{PLAIN}}{server.password}\n")
        process = _start_nginx(system, directory, server, environment)
        try:
            _version("http_server", found[1])
            yield server
        finally:
            process.stop()


def _start_nginx(binary: str, directory: Path, server: WebServer, environment: dict[str, str]) -> Process:
    """Nobody can tell nginx to choose a port, so another one is tried if somebody else was faster."""
    if os.geteuid() == 0:
        for path in (directory, *directory.iterdir()):
            os.chown(path, NOBODY, NOBODY)
    for last in (False, False, True):
        server.port = free_port()
        configuration = directory / "nginx.conf"
        configuration.write_text(NGINX.format(directory=directory, port=server.port))
        configuration.chmod(0o644)
        command = [binary, "-p", str(directory), "-e", str(directory / "error.log"), "-c", str(configuration)]
        server.process = process = Process(command, directory, user=NOBODY, environment=environment)
        try:
            process.wait_for_port(server.port)
        except MissingServerError as error:
            process.stop()
            text = (directory / "error.log").read_text() if (directory / "error.log").exists() else str(error)
            if last or "Address already in use" not in text:
                raise MissingServerError(f"it did not start: {text[-300:].strip()}") from error
        else:
            return process
    raise MissingServerError("it found no free port")


@contextmanager
def start_gcs() -> Iterator[GcsServer]:
    """The scripted server as Google's storage."""
    with FaultServer.start(limit=LIMIT) as faults:
        faults.configure(delete_missing=404)
        yield GcsServer(faults.port, None, faults)


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=PRIVATE))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# Fixtures.


def _used(name: str) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and name in SEEN:
        SEEN[name].tests.add(test)


def _version(name: str, version: str) -> None:
    SEEN.setdefault(name, Seen(TITLES[name])).version = version


@contextmanager
def serving(name: str, start: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    """The server that ``start`` gives; the test is skipped if there is none."""
    seen = SEEN.setdefault(name, Seen(TITLES[name]))
    _no_proxy()
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start())
        except MissingServerError as error:
            seen.missing = " ".join(str(error).split())
            pytest.skip(f"{seen.title}: {seen.missing}")
        yield server


def _no_proxy() -> None:
    """Nothing between the tests and loopback."""
    for name in ("NO_PROXY", "no_proxy"):
        known = [part for part in os.environ.get(name, "").split(",") if part]
        os.environ[name] = ",".join(dict.fromkeys([*known, "127.0.0.1", "localhost"]))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """S3 by moto's server."""
    with serving("s3_server", start_s3) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    """Azure's blob storage by Azurite."""
    with serving("azure_server", start_azure) as server:
        yield server


@pytest.fixture(scope="session")
def http_server() -> Iterator[WebServer]:
    """A web server, nginx."""
    with serving("http_server", start_http) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """Google's storage, by the scripted server."""
    with serving("gcs_server", start_gcs) as server:
        yield server


@pytest.fixture(scope="session")
def fault_process() -> Iterator[FaultServer]:
    """The scripted server, whatever tests before have left there."""
    with serving("fault_server", lambda: FaultServer.start(limit=LIMIT)) as server:
        yield server


@pytest.fixture
def fault_server(fault_process: FaultServer) -> FaultServer:
    """The scripted server, as if it was just started."""
    _used("fault_server")
    fault_process.reset()
    return fault_process


def pytest_runtest_call(item: pytest.Item) -> None:
    """Count a test that is about to run with a server."""
    for name in SEEN.keys() & set(getattr(item, "fixturenames", ())):
        SEEN[name].tests.add(item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where several processes share the tests, send which servers ran to the one that writes the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["servers"] = {
            name: (seen.version, seen.missing, sorted(seen.tests)) for name, seen in SEEN.items()
        }


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a process of the tests has sent."""
    for name, (version, missing, tests) in getattr(node, "workeroutput", {}).get("servers", {}).items():
        seen = SEEN.setdefault(name, Seen(TITLES[name]))
        seen.version = seen.version or version
        seen.missing = seen.missing or missing
        seen.tests.update(tests)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which of the servers that were asked for ran, and which did not and why."""
    for name in TITLES:
        if name in SEEN:
            terminalreporter.write_line(f"servers: {SEEN[name]}")
