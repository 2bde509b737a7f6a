"""Where the stores are made: in memory where there is room for them, and what file system a path is on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
MOUNTS = Path("/proc/mounts")
MEMORY_STATUS = Path("/proc/meminfo")
ROOM = 4 * 2**30
"""Bytes that have to be free for the bench to work in memory; it takes less than half of them."""

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


def kind_of(path: Path) -> str:
    """Return the type of the file system that `path` is on, "unknown" where the platform does not tell it."""
    if not MOUNTS.exists():
        return "unknown"
    resolved = path.resolve()
    kinds: dict[Path, str] = {}
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, point, kind = line.split(" ")[:3]
        # A later mount hides an earlier one of the same place; spaces are written in octal.
        kinds[Path(point.replace("\\040", " "))] = kind
    return next((kinds[place] for place in (resolved, *resolved.parents) if place in kinds), "unknown")


def in_memory(path: Path) -> bool:
    """Whether files at `path` are held in memory."""
    return kind_of(path) in MEMORY_FILE_SYSTEMS


def room_in_memory(least: int = ROOM) -> Path | None:
    """Return a directory in memory with room for `least` bytes, None where there is none."""
    if not (SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK) and in_memory(SHARED_MEMORY)):
        return None
    room = min(shutil.disk_usage(SHARED_MEMORY).free, _available_memory())
    return SHARED_MEMORY if room >= least else None


def _available_memory() -> int:
    """Return the bytes of memory that could be used without swapping."""
    for line in MEMORY_STATUS.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(value.split()[0])
    return 0
