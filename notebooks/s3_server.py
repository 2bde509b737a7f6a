"""An S3 service on this machine for the notebooks: it counts requests, waits and fails as it is told.

It is the server of the package's tests, `tests/_fault_server.py`, which needs nothing but Python. It keeps
values in memory, listens on the loopback address alone, and ends with the process that started it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

SERVER = Path(__file__).resolve().parent.parent / "tests" / "_fault_server.py"


def start() -> Any:
    """A new server, to be ended by its method ``stop``.

    Raises
    ------
    FileNotFoundError
        The notebooks are not beside the tests.
    """
    if not SERVER.is_file():
        raise FileNotFoundError(f"{SERVER}: the notebook needs a checkout of xzarr3, with its tests")
    spec = importlib.util.spec_from_file_location("_fault_server", SERVER)
    if spec is None or spec.loader is None:
        raise ImportError(f"{SERVER} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Where its dataclasses look for it.
    spec.loader.exec_module(module)
    return module.FaultServer.start(limit=600)
