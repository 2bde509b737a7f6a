"""The compiled module of obstore, good for use in this process.

Its runtime has threads, which a forked child does not inherit: whoever uses the module there waits for ever,
and may upset the parent, with which it shares what the system knows them by. A child of a process that had it
loaded therefore loads a second image of it, from a copy of its file, because the system gives the same image
for the same file.

This module is imported with the package, so that it hears of every fork.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from types import ModuleType
from typing import Any

from xzarr3.errors import StoreError

_PACKAGE = "obstore"
_COMPILED = "obstore._obstore"

_lock = threading.Lock()
_image: Any = None
# Whether a process above this one may have used the module. If others imported it before this one, nobody
# knows; a second image does no harm.
_inherited = _COMPILED in sys.modules
_kept: list[object] = []  # What must not be taken apart in a child, because its threads are missing.


def _renew() -> None:
    global _lock, _image, _inherited
    _lock = threading.Lock()
    if _COMPILED in sys.modules or _image is not None:
        _kept.append(_image)
        _image = None
        _inherited = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def keep(value: object) -> None:
    """Have something live as long as this process: a client made before the fork, say."""
    _kept.append(value)


def require() -> None:
    """See to it that obstore is installed, without loading it.

    Raises
    ------
    StoreError
        If it is not.
    """
    if sys.modules.get(_PACKAGE) is None and importlib.util.find_spec(_PACKAGE) is None:
        raise StoreError(
            "object storage and HTTP need the package obstore, which is not installed; accepted: "
            "pip install 'xzarr3[object]'"
        )


def image() -> Any:
    """The module, loaded if it has to be.

    Raises
    ------
    StoreError
        If it is not installed, or cannot be loaded once more.
    """
    global _image
    if _image is not None:
        return _image
    with _lock:
        if _image is None:
            require()
            try:
                _image = _second() if _inherited else importlib.import_module(_COMPILED)
            except (ImportError, OSError) as error:
                raise StoreError(
                    f"obstore cannot be loaded{' a second time' if _inherited else ''}: {error}; "
                    "accepted: an installation that works; spawned instead of forked processes"
                ) from error
        return _image


def original() -> Any:
    """The module that others import, for stores that were made by them."""
    return importlib.import_module(_COMPILED)


def _second() -> ModuleType:
    """Another image of the module; what others have imported stays what it is."""
    import shutil

    path = _file()
    known = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == _PACKAGE}
    copied, temporary = _copied(path)
    try:
        loader = importlib.machinery.ExtensionFileLoader(_COMPILED, copied)
        spec = importlib.util.spec_from_file_location(_COMPILED, copied, loader=loader)
        if spec is None:
            raise ImportError(f"no module in {path}")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
            if name not in known:
                del sys.modules[name]
        sys.modules.update(known)
        if temporary:
            shutil.rmtree(os.path.dirname(copied), ignore_errors=True)
    return module


def _file() -> str:
    loaded = sys.modules.get(_COMPILED)
    path = getattr(loaded, "__file__", None)
    if path is None:
        spec = importlib.util.find_spec(_COMPILED)
        path = None if spec is None else spec.origin
    if path is None:
        raise ImportError("the file of the compiled module is not known")
    return str(path)


def _copied(path: str) -> tuple[str, bool]:
    """The path of a copy that no process has loaded, and whether it is to be removed.

    In memory its descriptor stays open: a name that occurs twice would be taken for the image it named first.
    """
    import shutil
    import tempfile

    if sys.platform == "linux":
        try:
            descriptor = os.memfd_create("obstore")
        except OSError:  # A system that has none; a file will do.
            pass
        else:
            with open(path, "rb") as source, open(descriptor, "wb", closefd=False) as copy:
                shutil.copyfileobj(source, copy, 2**20)
            return f"/proc/self/fd/{descriptor}", False
    folder = tempfile.mkdtemp(prefix="xzarr3-")
    copied = os.path.join(folder, os.path.basename(path))
    shutil.copyfile(path, copied)
    return copied, True
