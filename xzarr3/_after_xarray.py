"""Adds the accessor ``.xzarr3`` when xarray is imported after xzarr3, which imports no xarray itself."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ACCESSOR = "xzarr3.xarray.accessor"


class _Finder:
    """Finds xarray where the other finders do, and registers the accessors once it is loaded."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "xarray":
            return None
        others = (each for each in sys.meta_path if each is not cls)
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def load_both(module: ModuleType) -> None:
                load(module)
                if hasattr(module, "register_datatree_accessor"):
                    import_module(_ACCESSOR)

            loader.exec_module = load_both  # Of this loader alone: each search makes another one.
        return spec


def add_accessor() -> None:
    """Add the accessor now if xarray is imported, else once it is."""
    if hasattr(sys.modules.get("xarray"), "register_datatree_accessor"):
        import_module(_ACCESSOR)
    else:
        sys.meta_path.insert(0, _Finder)
