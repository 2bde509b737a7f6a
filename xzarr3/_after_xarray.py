"""Adds the accessor ``.xzarr3`` when xarray is imported after xzarr3, which imports no xarray itself."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ACCESSOR = "xzarr3.xarray.accessor"


class _Loader:
    """Loads xarray as its own loader does, and registers the accessors then."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if hasattr(module, "register_datatree_accessor"):
            import_module(_ACCESSOR)


class _Finder:
    """Finds xarray where the other finders do."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "xarray":
            return None
        others = (each for each in sys.meta_path if each is not cls)
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


def add_accessor() -> None:
    """Add the accessor now if xarray is imported, else once it is."""
    if hasattr(sys.modules.get("xarray"), "register_datatree_accessor"):
        import_module(_ACCESSOR)
    else:
        sys.meta_path.insert(0, _Finder)
