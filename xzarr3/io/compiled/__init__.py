"""The executor's loops as compiled code: many chunks a call, without Python's lock.

numba compiles the loops on first use and keeps the machine code on the disk; the extra ``fast`` installs it.
Compiled code handles the common cases of chunks in files. It reports each stored unit that it does not
handle, and the Python executor reads or writes that unit. So all results and errors are those of the Python
executor.

Importing this package imports no numba. :func:`loaded` does so once the reads of this process have taken as
long as loading takes. The environment variable ``XZARR3_COMPILED=0`` turns compiled code off.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import threading
from functools import cache
from pathlib import Path
from types import ModuleType

from xzarr3.stores.local import platform
from xzarr3.stores.locks import fork_safe

_LOADING = 0.7
"""About how many seconds loading takes if the machine code is on the disk."""
_COMPILING = 10.0
"""About how many seconds compiling takes."""
FEW = 8
"""Chunks. The Python executor reads fewer of them before compiled code would have begun."""
CHUNK = 3e-5
"""About how many seconds the Python executor takes for a small chunk."""

_lock = fork_safe(threading.Lock())


class _State:
    module: ModuleType | None = None
    failure: str = ""
    """Why compiled code cannot be used."""
    spent: float = 0.0
    """Seconds that reads and writes took in the Python executor, of those that compiled code can do."""


_state = _State()


@cache
def is_possible() -> bool:
    """Whether compiled code may be used here: numba is installed, and nobody has turned compiled code off."""
    if os.environ.get("XZARR3_COMPILED") == "0" or not platform.LINUX or sys.byteorder != "little":
        return False
    return importlib.util.find_spec("numba") is not None


def loaded(seconds: float) -> ModuleType | None:
    """The module that runs compiled code, if it is loaded or loading it pays.

    Parameters
    ----------
    seconds : float
        About how long the Python executor would take for the read or write in question.
    """
    if _state.module is not None or _state.failure or not is_possible():
        return _state.module
    if _state.spent + seconds < (_LOADING if _is_compiled() else _COMPILING):
        return None
    if not _lock.acquire(blocking=False):  # Another thread loads it.
        return None
    try:
        _load()
    finally:
        _lock.release()
    return _state.module


def spend(seconds: float) -> None:
    """Count time in the Python executor that compiled code could have saved."""
    _state.spent += seconds


def warm_up() -> str:
    """Load compiled code now, and compile it if needed, instead of during a later read or write.

    Takes about 1 second, and 10 seconds for the first time on a machine.

    Returns
    -------
    str
        What is used: see :func:`report`.

    Examples
    --------
    >>> import xzarr3
    >>> text = xzarr3.warm_up()
    """
    if is_possible():
        with _lock:
            _load()
    return report()


def report() -> str:
    """Whether compiled code is used in this process, and if not, why."""
    if os.environ.get("XZARR3_COMPILED") == "0":
        return "off: XZARR3_COMPILED=0"
    if not is_possible():
        return "off: it needs Linux, a little endian machine, and numba: pip install 'xzarr3[fast]'"
    if _state.failure:
        return f"cannot be used: {_state.failure}"
    if _state.module is None:
        return "not loaded yet; xzarr3.warm_up() loads it"
    missing = {name: reason for name, reason in _state.module.missing().items() if reason}
    return "in use" + "".join(f"; without {name}: {reason}" for name, reason in missing.items())


def _load() -> None:
    if _state.module is not None or _state.failure:
        return
    _erase_old_code()
    try:
        module = importlib.import_module("xzarr3.io.compiled.loops")
        module.compile_all()
    except Exception as error:  # noqa: BLE001 - numba does not fit this system; Python does the work
        _state.failure = f"{type(error).__name__}: {error}"
    else:
        _state.module = module


_FOLDER = Path(__file__).parent


def _is_compiled() -> bool:
    """Whether machine code is on the disk beside this module, where numba puts it if it may."""
    names = "read.read_units", "write.write_units"
    return all(any(_FOLDER.glob(f"__pycache__/{name}-*.nbi")) for name in names)


def _erase_old_code() -> None:
    """Erase machine code older than its sources: numba compares it with one of the files only."""
    newest = max(path.stat().st_mtime for path in _FOLDER.glob("*.py"))
    for path in _FOLDER.glob("__pycache__/*.nb[ci]"):
        with contextlib.suppress(OSError):  # Another process has erased it, or only its owner may.
            if path.stat().st_mtime < newest:
                path.unlink()
