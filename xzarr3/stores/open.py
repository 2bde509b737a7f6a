"""Finds the store for a path, a URL or an object of another library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args

from xzarr3 import errors
from xzarr3.errors import StoreError, listed, one_of, short_traceback, shorten
from xzarr3.stores.base import Store

StoreLike: TypeAlias = Any
"""A path, a URL, a :class:`Store`, a dict, or a store of another library; see :func:`open_store`."""

Mode: TypeAlias = Literal["r", "r+", "a"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(::|://)")
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\\w")
_ACCEPTED = (
    "a path, a URL, a Store, a dict of str to bytes, a store, group or array of zarr-python, a repository or "
    "a session of Icechunk, a store of obstore, a mapper or file system of fsspec"
)


@short_traceback
def open_store(
    store: StoreLike, storage_options: Mapping[str, Any] | None = None, *, mode: Mode = "r"
) -> Store:
    """The store for a path, a URL or a ready store. Only a zip is read at this point.

    Parameters
    ----------
    store : path, URL, Store, dict, or store of another library
        ``s3://``, ``gs://``, ``az://`` and ``http(s)://`` give an :class:`~xzarr3.stores.ObjectStore`. Other
        URLs and chains of them, such as ``tar://::ftp://``, are opened by fsspec. A path that ends with
        ``.zip`` and is no directory gives a :class:`~xzarr3.stores.ZipStore`, and so does a key in an object
        store, such as ``s3://bucket/a.zip``, which can only be read.

        A ``dict``, or another mutable mapping, of str to bytes holds the values itself. Also accepted are
        stores of obstore, mappers and file systems of fsspec, paths of universal_pathlib, and stores derived
        from zarr-python's ``Store``: its own, and the store of an Icechunk session. A repository of Icechunk
        is read as it is now, until it is opened again. Functions that open or create nodes take zarr-python's
        ``StorePath``, ``Group`` and ``Array`` too, as a store with a path.
    storage_options : mapping, optional
        Further arguments of the store: credentials, ``anon``, ``endpoint_url``, ``concurrency``, ... Of an
        Icechunk repository ``branch``, by default ``"main"``, ``tag`` or ``snapshot``.
    mode : {"r", "r+", "a"}
        For a zip: ``"r+"`` opens it for additions, and ``"a"`` creates it if it does not exist. It is
        complete once its store is closed. Other stores ignore `mode`; they can be written if they permit it.

    Raises
    ------
    StoreError
        If no store fits the URL.
    StoreOptionError
        If an option has no meaning for the store; also a TypeError.
    TypeError
        If `store` is none of the accepted types.

    Examples
    --------
    >>> open_store("/data/era5.zarr")
    <LocalStore '/data/era5.zarr'>
    >>> open_store("/data/era5.zarr", {"fsync": True, "read_only": True}).read_only
    True
    """
    opened, path = locate(store, storage_options, mode=mode)
    if path:
        raise errors.ArgumentTypeError(
            f"a {type(store).__name__} of '/{path}' in {opened} is no whole store; pass its store, or open "
            "the node with xzarr3.open"
        )
    return opened


def locate(
    store: StoreLike, storage_options: Mapping[str, Any] | None = None, *, mode: Mode = "r"
) -> tuple[Store, str]:
    """The store, and the path in it that a ``StorePath``, a group or an array names; else the empty path.

    The arguments and errors are those of :func:`open_store`.
    """
    if isinstance(store, Store) and storage_options is None:
        return store, ""
    if not isinstance(storage_options, (Mapping, NoneType)):
        raise errors.ArgumentTypeError(
            f"not storage_options: {shorten(storage_options)}; accepted: a dictionary, such as "
            "{'anon': True}"
        )
    if mode not in get_args(Mode):
        raise errors.ArgumentError(f"mode={mode!r}; {one_of(mode, get_args(Mode))}")
    options, package = dict(storage_options or {}), _package(type(store))
    handle: Any = getattr(store, "store_path", store) if package == "zarr" else store
    if package == "xzarr3" and getattr(store, "_is_joined", False):
        raise errors.ArgumentTypeError(
            f"not a store: {store!r}; pass one of the stores that are joined, or what xzarr3.copy() made of "
            "them; xzarr3.open_dataset() and xzarr3.from_zarr() read what is joined"
        )
    path = getattr(handle, "path", None)
    is_handle = package in ("zarr", "xzarr3") and not isinstance(store, Store) and hasattr(handle, "store")
    if is_handle and isinstance(path, str):
        return _open(handle.store, options, mode), path.strip("/")
    return _open(store, options, mode), ""


def was_made(opened: Store, store: StoreLike) -> bool:
    """Whether opening ``store`` made the store ``opened``, which is to be closed then."""
    return opened is not store and opened is not getattr(store, "store", None)


def _open(store: StoreLike, options: dict[str, Any], mode: Mode) -> Store:
    packages = {_package(cls) for cls in type(store).__mro__}
    if "obstore" in packages:
        from xzarr3.stores.object.store import ObjectStore

        return ObjectStore(store, storage_options=options)
    if "upath" in packages and store.protocol in ("", "file", "local"):
        return _open_location(store.path, options, mode)
    if "upath" in packages and _is_of_objects(store.protocol):
        return _open_location(str(store), {**store.storage_options, **options}, mode)
    if isinstance(store, (str, os.PathLike)) and "upath" not in packages:
        return _open_location(os.fspath(store), options, mode)
    if "icechunk" in packages and is_repository(store):
        from xzarr3.stores.icechunk import reading

        return reading(store, options)
    found = store if isinstance(store, Store) else _open_object(store, packages)
    if found is None:
        raise errors.ArgumentTypeError(f"not a store: {type(store).__name__}; accepted: {_ACCEPTED}")
    if options:
        raise errors.StoreOptionError(
            f"storage_options {listed(sorted(options))} have no meaning for a {type(store).__name__}, "
            "which has its own; leave them out"
        )
    return found


def _open_object(store: Any, packages: set[str]) -> Store | None:
    """The store for an object of another library, or for a mapping; None for any other object."""
    if packages & {"fsspec", "upath"}:
        from xzarr3.stores.fsspec import store_for

        return store_for(store.fs, store.path) if "upath" in packages else store_for(store)
    if isinstance(store, MutableMapping):
        from xzarr3.stores.memory import MemoryStore

        return MemoryStore(store)
    from xzarr3.stores.foreign import store_of

    return store_of(store)


def is_repository(store: object) -> bool:
    """Whether an object is an ``icechunk.Repository``."""
    return any(kind.__module__ == "icechunk.repository" for kind in type(store).__mro__)


def with_version(
    store: StoreLike, storage_options: Mapping[str, Any] | None, **versions: Any
) -> Mapping[str, Any] | None:
    """The options of a store, with what is not None of ``branch``, ``tag`` and ``snapshot`` of a repository.

    Raises
    ------
    ArgumentError
        If one is given for something else than a repository.
    """
    given = {name: value for name, value in versions.items() if value is not None}
    if given and not is_repository(store):
        raise errors.ArgumentError(
            f"{listed(given)} given with a {type(store).__name__}; only an icechunk.Repository has branches "
            "and commits; pass the repository, or leave them out"
        )
    return {**(storage_options or {}), **given} if given else storage_options


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _is_of_objects(scheme: str) -> bool:
    from xzarr3.stores.object.options import OBJECT_SCHEMES

    return scheme in OBJECT_SCHEMES


def _open_location(location: str, options: dict[str, Any], mode: Mode) -> Store:
    if not location:
        raise StoreError("no store at the empty path; accepted: a path, such as '.' for the current one")
    found = _SCHEME.match(location)
    scheme = "" if found is None else found[1].lower()
    if found is None:
        _check_slips(location)
    if found is None or (scheme == "file" and found[2] == "://"):
        return _open_path(location if found is None else _path(location), options, mode)
    if found[2] == "://" and _is_of_objects(scheme):
        return _open_objects(location, options, mode)
    from xzarr3.stores.fsspec import FsspecStore

    own = {name: options.pop(name) for name in ("read_only", "concurrency") if name in options}
    return FsspecStore(location, storage_options=options, **own)


def _open_path(path: str, options: dict[str, Any], mode: Mode) -> Store:
    if path.lower().endswith(".zip") and not os.path.isdir(path):
        from xzarr3.stores.zip import ZipStore

        return ZipStore(path, **_keywords({"mode": mode, **options}, path, "mode", "fsync"))
    from xzarr3.stores.local.store import LocalStore

    return LocalStore(path, **_keywords(options, path, "read_only", "fsync", "locks"))


def _open_objects(url: str, options: dict[str, Any], mode: Mode) -> Store:
    from xzarr3.stores.object.store import ObjectStore

    above, _, name = url.rstrip("/").rpartition("/")
    if not name.lower().endswith(".zip") or above.endswith(":/"):  # A bucket or host may have that name.
        return ObjectStore(url, storage_options=options)
    from xzarr3.stores.zip import ZipStore

    inner = ObjectStore(above, storage_options=options)
    if mode != "r":
        raise StoreError(
            f"{name!r} of {inner} is only read, as all zips there; write a local zip, and upload it"
        )
    return ZipStore(inner, name)


def _check_slips(location: str) -> None:
    """Refuse what was meant for a URL or for another system; a write would make a folder of this name."""
    from xzarr3.stores.local.near import meant_url

    url, is_of_windows = meant_url(location), os.name != "nt" and _WINDOWS.match(location)
    if (url is None and not is_of_windows) or os.path.exists(location):
        return
    if url is not None:
        raise StoreError(
            f"neither a URL nor a directory: {location!r}; did you mean {url!r}? Pass a URL as text, since "
            f"pathlib drops a slash; write './{location}' for a directory of this name"
        )
    raise StoreError(
        f"a path of Windows, on another system: {location!r}; pass the path that this system has for it, "
        f"such as '/mnt/{location[0].lower()}/...' in WSL"
    )


def _path(location: str) -> str:
    """The path in a ``file://`` URL."""
    from urllib.parse import unquote, urlsplit

    url = urlsplit(location)
    if url.netloc not in ("", "localhost") or not url.path.startswith("/") or url.query or url.fragment:
        raise StoreError(
            f"not a URL of a directory: {location!r}; accepted: 'file:///' and an absolute path; write '#' "
            "and '?' in it as '%23' and '%3F'"
        )
    return unquote(url.path)


def _keywords(options: dict[str, Any], path: str, *accepted: str) -> dict[str, Any]:
    """Options of a store on the local file system; options with no meaning there are refused."""
    unknown = sorted(set(options) - set(accepted))
    if unknown:
        raise errors.StoreOptionError(
            f"storage_options {listed(unknown)} have no meaning for {shorten(path)}; "
            f"{one_of(unknown[0], accepted)}"
        )
    return options
