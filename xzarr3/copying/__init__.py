"""Copies arrays and groups: within a format or to another one, in the same chunks or in others."""

from xzarr3.copying.nodes import copy
from xzarr3.copying.values import copy_values

__all__ = ["copy", "copy_values"]
