"""Finds codecs of other packages by their entry points in the group ``xzarr3.codecs``.

The name of an entry point is the name of the codec; its value is the class. A package is imported only when
a document or a user names its codec.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points

from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from xzarr3.errors import MetadataError, UnknownExtensionError, listed

GROUP = "xzarr3.codecs"
_KINDS = (ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec)


_ELSEWHERE = {
    "gribberish": "gribberish",
    "gribscan": "gribscan",
    **dict.fromkeys(("avif", "brunsli", "imagecodecs_", "jpeg", "lerc", "webp"), "imagecodecs"),
    **dict.fromkeys(("FITS", "fill_hdf_strings", "grib", "record_member"), "kerchunk"),
    "n5_wrapper": "zarr",
    "tiff": "tifffile",
}
"""The packages that have codecs for other software, by the beginning of the codec's name."""


def unknown(name: str, field: str, known: Collection[str]) -> UnknownExtensionError:
    """The error for a codec that xzarr3 does not know; it names the package that has it, if that is known."""
    own = name.removeprefix("numcodecs.")
    package = next((_ELSEWHERE[start] for start in _ELSEWHERE if own.startswith(start)), None)
    if package is None:
        return UnknownExtensionError("unknown codec", field=field, found=name, accepted=known)
    return UnknownExtensionError(
        f"unknown codec, which the package '{package}' has for other software",
        field=field,
        found=name,
        accepted=known,
        advice="register a class for it with xzarr3.codecs.register_codec(), or read with that software",
    )


def installed_names() -> set[str]:
    """The names of the codecs of installed packages."""
    return {point.name for point in entry_points(group=GROUP)}


def installed_codec(name: str) -> type[Codec] | None:
    """The class of a codec of another package, or None if no package has it.

    Raises
    ------
    MetadataError
        If the class cannot be imported, is not a codec of this name, or several packages have one.
    """
    points = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not points:
        return None
    sources = " and ".join(_source(point) for point in points.values())
    if len(points) > 1:
        raise MetadataError(
            f"several packages have a codec '{name}': {sources}",
            found=name,
            advice="uninstall all but one of them",
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
