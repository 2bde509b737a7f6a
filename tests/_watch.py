"""Run a command until it is not wanted any more: ``python _watch.py LIMIT USER COMMAND ...``.

The command is stopped as soon as there is a byte to read on the standard input of this process, or when
this process is told to terminate; when the input ends or the parent is another one than at the start,
because whoever started it is gone then, by whatever signal; and after LIMIT seconds. If this process
itself is killed, Linux kills the command. As USER, a number, the command has no rights beyond those of
that user; ``-`` stands for the present one. If nobody else is left to do it, the working directory is
removed, provided that its name says that it was made for the command.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

GRACE = 5.0
PRIVATE = "xzarr3-server-"


def main() -> int:
    """Run the command, and return its status."""
    limit, user, *command = sys.argv[1:]
    end = time.monotonic() + float(limit)
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    number = None if user == "-" else int(user)
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, user=number, group=number,
        extra_groups=None if number is None else [],
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )  # fmt: skip
    abandoned = False
    try:
        while child.poll() is None and time.monotonic() < end and not abandoned:
            ready, _, _ = select.select([0], [], [], 0.1)
            if ready and os.read(0, 1):
                break
            abandoned = bool(ready) or os.getppid() != parent
    finally:
        stop(child)
        here = os.getcwd()
        if abandoned and os.path.basename(here).startswith(PRIVATE):
            shutil.rmtree(here, ignore_errors=True)
    return child.returncode


def die_with_parent() -> None:
    """Have this process killed as soon as its parent is gone."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def stop(child: subprocess.Popen[bytes]) -> None:
    """End the child and all in its process group, which is its own."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


if __name__ == "__main__":
    sys.exit(main())
