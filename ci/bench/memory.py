"""Peak memory of a full read, in a fresh process: `python memory.py LABEL PATH` prints it in MiB.

The figure is the highest resident set after the array is open and until its full read returned, less the
resident set just before the read: the result is part of it. Pages of files a library maps count as well.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from peers import find_libraries

STATUS = Path("/proc/self/status")


def can_measure() -> bool:
    """Whether the platform tells a process its peak resident set apart from that of its parent."""
    return STATUS.exists()


def measured(label: str, path: Path) -> float:
    """Return the peak memory in MiB of `label`'s full read of the array at `path`.

    Raises
    ------
    RuntimeError
        If the process that reads fails; the message holds the end of what it printed.
    """
    command = [sys.executable, str(Path(__file__).resolve()), label, str(path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"reading {path} with {label} failed: {finished.stderr.strip()[-300:]}")
    return float(finished.stdout)


def _resident_mib(field: str) -> float:
    for line in STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise RuntimeError(f"{STATUS} has no field {field}")


def _peak_of_read(label: str, path: Path) -> float:
    (library,), _ = find_libraries([label])
    read = library.reader(path)
    with library.configured():
        before = _resident_mib("VmRSS")
        result = read((slice(None),) * 3)
        peak = _resident_mib("VmHWM")
    del result
    return peak - before


if __name__ == "__main__":
    print(_peak_of_read(sys.argv[1], Path(sys.argv[2])))
