"""Which process of which machine this is, and whether another one still runs; leases are told apart by it."""

from __future__ import annotations

import functools
import os
import sys
import uuid

_PROC = "/proc"


@functools.cache
def machine() -> str:
    """Identifies this boot of this machine, or only the machine where the system has no boot id.

    Empty if the machine cannot be identified.
    """
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode("ascii")
    except (OSError, ValueError):
        if sys.platform == "linux":  # Hidden; containers on different hosts may have equal MAC addresses.
            return ""
        node = uuid.getnode()
        return "" if node >> 40 & 3 else f"{node:012x}"  # These bits mark a random or local number.


def name_space() -> str:
    """The namespace of this process's pid; empty if the system has only one."""
    try:
        return os.readlink(f"{_PROC}/self/ns/pid")
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """Start time of a process, in a unit of the system; empty if not available."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode("ascii")
    except (OSError, IndexError, ValueError):
        if os.path.isdir(f"{_PROC}/self"):
            return ""
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except (psutil.Error, OSError, ValueError, OverflowError):
        return ""


def is_running(pid: int) -> bool:
    """Whether a process with this pid exists, whichever user owns it."""
    if os.name == "nt":  # On Windows a signal would end the process.
        import psutil

        return bool(psutil.pid_exists(pid))
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # It belongs to another user.
        return True
    return True
