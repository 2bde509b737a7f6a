"""Codecs of other packages, which tell of them by entry points of the group ``xzarr3.codecs``.

The name of an entry point is that of the codec, its value the class. Nothing is imported for a name that no
installed package has put there, and nothing at all until a document or a user names such a codec.
"""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points

from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.errors import MetadataError, listed

GROUP = "xzarr3.codecs"
_KINDS = (ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec)


def installed_names() -> set[str]:
    """The names that installed packages give to codecs."""
    return {point.name for point in entry_points(group=GROUP)}


def installed_codec(name: str) -> type[Codec] | None:
    """The class of a codec of another package, or None if no package has it.

    Raises
    ------
    MetadataError
        If it cannot be imported, is no codec of this name, or two packages have one.
    """
    points = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not points:
        return None
    sources = " and ".join(_source(point) for point in points.values())
    if len(points) > 1:
        raise MetadataError(
            f"codec '{name}' is in several packages: {sources}", found=name, accepted="one of them installed"
        )
    (point,) = points.values()
    try:
        cls = point.load()
    except Exception as error:
        raise MetadataError(
            f"codec '{name}' cannot be imported from {sources}: {type(error).__name__}: {error}", found=name
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, _KINDS)) or inspect.isabstract(cls):
        raise MetadataError(
            f"codec '{name}': {sources} is no codec",
            found=cls,
            accepted=f"a subclass of {listed(kind.__name__ for kind in _KINDS)} with all of its methods",
        )
    if getattr(cls, "name", None) != name:
        raise MetadataError(
            f"codec '{name}': {sources} has another name",
            found=getattr(cls, "name", None),
            accepted=f"'{name}', the name of its entry point",
        )
    return cls


def _source(point: EntryPoint) -> str:
    package = f"package '{point.dist.name} {point.dist.version}'" if point.dist else "a package"
    return f"{package} ({point.value})"
