"""Names that users know from elsewhere, and what has their meaning here.

Arguments of zarr-python 2 and of netCDF are answered with the argument to use. Names of zarr-python 3.4 that
are absent here are listed with the reason; the documentation shows them as a table. The names are in
``names.toml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

_MOST_NAMES = 10
_LONGEST_NAME = 100
_MOST_COMPARED = 1000

_LAYOUT = (
    "dtype", "chunks", "shards", "filters", "serializer", "compressors", "fill_value", "chunk_key_encoding",
)  # fmt: skip
_OF_NEW_ARRAYS = ("shape", "data", *_LAYOUT)
_LEVELS = frozenset(("complevel", "compression_opts", "clevel", "compression_level"))
_MODES = "overwrite=True for mode='w'; without it an existing node is an error, as with mode='w-'"


@cache
def facts() -> dict[str, Any]:
    """The tables of ``names.toml``, beside this module. They are read when a name is unknown."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files("xzarr3").joinpath("names.toml").read_text("utf-8"))


def listed(names: Iterable[object]) -> str:
    """Names enumerated for a message: ``'a', 'b', 'c'``."""
    return ", ".join(repr(name) for name in names)


def one_of(found: object, names: Iterable[object], label: str = "accepted") -> str:
    """The end of a message about an unknown name: the nearest known name, then at most ten of them.

    Examples
    --------
    >>> one_of("flaot32", ["int8", "float32"])
    "did you mean 'float32'? accepted: 'int8', 'float32'"
    """
    known = list(names)
    return " ".join(filter(None, (did_you_mean(found, known), f"{label}: {some(known, found)}")))


def some(names: Sequence[Any], found: object = None) -> str:
    """Names enumerated for a message: ten at most, those near to ``found`` first."""
    left = len(names) - _MOST_NAMES
    if left <= 0:
        return listed(names) or "none"
    near = dict.fromkeys((*nearest(found, names, _MOST_NAMES), *names))
    return f"{listed([*near][:_MOST_NAMES])} and {left} more"


def did_you_mean(found: object, names: Sequence[Any]) -> str:
    """The question that proposes the name nearest to ``found``, or an empty string."""
    near = [] if isinstance(found, str) and found in names else nearest(found, names)
    return f"did you mean {near[0]!r}?" if near else ""


def nearest(found: object, names: Sequence[Any], most: int = 1) -> list[str]:
    """The names that ``found`` was probably meant for, the nearest first."""
    if isinstance(found, Mapping):
        found = found.get("name")
    if not isinstance(found, str) or not 0 < len(found) <= _LONGEST_NAME or len(names) > _MOST_COMPARED:
        return []
    from difflib import get_close_matches  # Takes long to import.

    lower = {name.lower(): name for name in names if isinstance(name, str)}
    wanted = found.lower()
    ends = [name for name in lower if name.endswith(f".{wanted}")]  # 'zlib' stands for 'numcodecs.zlib'.
    near = dict.fromkeys((*ends, *get_close_matches(wanted, lower, most)))
    return [lower[name] for name in near][:most]


def hint(name: object, known: Iterable[object], given: Mapping[str, object] | None = None) -> str:
    """What to use instead of an unknown argument or key.

    Parameters
    ----------
    name : str
    known : iterable of str
        The names that are accepted.
    given : mapping, optional
        All that is given, by name: names with one meaning get one hint, which has the level that is given.

    Examples
    --------
    >>> hint("chunksizes", ["chunks", "shards"])
    "for 'chunksizes' use chunks=..."
    >>> hint("shrads", ["chunks", "shards"])
    "did you mean 'shards'? accepted: 'chunks', 'shards'"
    """
    instead, needless = facts()["instead"], facts()["needless"]
    if isinstance(name, str) and name in instead:
        return _instead(name, given or {name: None})
    if isinstance(name, str) and name in needless:
        return f"leave {name!r} out, because {needless[name]}"
    return one_of(name, known)


def _instead(name: str, given: Mapping[str, object]) -> str:
    instead = facts()["instead"]
    text = instead[name]
    levels = [value for each, value in given.items() if each in _LEVELS and type(value) is int]
    if levels:
        text = text.replace("'level': 5", f"'level': {levels[0]}")
    return f"for {listed(each for each in given if instead.get(each) == instead[name])} use {text}"


def hints(given: Mapping[str, object]) -> str:
    """What to use instead of those names that are known from elsewhere, for the middle of a message.

    Examples
    --------
    >>> hints({"zlib": True, "complevel": 9, "units": "K"})
    "; for 'zlib', 'complevel' use compressors={'name': 'gzip', 'configuration': {'level': 9}}"
    """
    known = {**facts()["instead"], **facts()["needless"]}
    found = [hint(name, (), given) for name in given if name in known]
    return "".join(f"; {text}" for text in dict.fromkeys(found))


def argument_hint(name: str, known: Sequence[str], given: Mapping[str, object] | None = None) -> str:
    """What to use instead of an argument that a function does not have.

    Parameters
    ----------
    name : str
    known : sequence of str
        The arguments that the function has.
    given : mapping, optional
        The unknown arguments, with their values.

    Examples
    --------
    >>> argument_hint("chunksize", ["store", "mode", "encoding"])
    "for 'chunksize' use encoding={'name': {'chunks': ...}}"
    """
    if name == "mode" and "overwrite" in known:
        return f"use {_MODES}"
    options = [each for each in known if each.endswith("_options")]
    if name == "storage_options" and options:
        return f"for {name!r} use {' and '.join(f'{each}=...' for each in options)}"
    instead = facts()["instead"]
    if name in facts()["needless"]:
        return hint(name, known, given)
    near = nearest(name, (*known, *_OF_NEW_ARRAYS))
    meant = instead[name].partition("=")[0] if name in instead else "".join(near)
    if meant not in known and "encoding" in known and meant in _LAYOUT:
        return f"for {name!r} use encoding={{'name': {{{meant!r}: ...}}}}"
    if meant not in known and "encoding" not in known and "mode" in known and meant in _OF_NEW_ARRAYS:
        return "create_array() creates an array with these settings"
    return hint(name, known, given)


def absent_name(owner: str, name: str) -> str:
    """The end of a message about a name that does not exist: what to use, or nothing.

    Examples
    --------
    >>> absent_name("Array", "compressor")
    '; use compressors; in version 2 it has one element at most'
    """
    found = facts()
    known = found["absent"][owner] | (found["earlier"] if owner == "module" else {})
    return f"; use {known[name].replace('`', '')}" if name in known else ""
