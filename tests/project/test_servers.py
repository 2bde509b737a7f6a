"""The servers of the tests end, however the tests end."""

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

import pytest
from _fault_server import FaultServer
from _servers import Process
from _watch import PRIVATE

HERE = Path(__file__).parents[1]


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for what is certain to come."""
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


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
