"""Translates ``Variable.encoding`` to arguments of :func:`xzarr3.create_array`: the settings of an array.

A setting that the user asked for must not be ignored: it is used or refused. A setting that was kept from the
file that was read is left out where it does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from xarray import Variable

from xzarr3.conventions.fill_value_attribute import follows_version_2
from xzarr3.errors import ArgumentError, listed, one_of
from xzarr3.formats import Format
from xzarr3.names import hints
from xzarr3.nodes.array_settings import is_auto
from xzarr3.nodes.auto_chunks import auto_chunks

_T = TypeVar("_T")
_STORAGE_KEYS = (
    "chunks", "shards", "compressors", "filters", "serializer", "fill_value", "chunk_key_encoding",
    "write_empty_chunks", "order",
)  # fmt: skip
VALUE_KEYS = (
    "dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "units", "calendar",
)  # fmt: skip
ENCODING_KEYS = (*_STORAGE_KEYS, *VALUE_KEYS)
_IGNORED_KEYS = frozenset(("source", "original_shape", "preferred_chunks"))
_OPEN_KEYS = frozenset(_STORAGE_KEYS) - {"compressors", "filters"}  # None leaves these open.
_UNFIT = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


def array_settings(variable: Variable, name: str, format: Format, *, explicit: bool) -> dict[str, Any]:
    """Arguments for :func:`xzarr3.create_array` from the encoding of a variable.

    Parameters
    ----------
    variable : xarray.Variable
        With encoded values; the settings are in its ``encoding``.
    name : str
        Its name, for messages.
    format : Format
        The format to store it in.
    explicit : bool
        Whether the encoding was passed to ``to_zarr``. If not, the variable kept it from the file that it was
        read from, and what is unknown is left out.

    Returns
    -------
    dict
        Some of ``chunks``, ``shards``, ``compressors``, ``filters``, ``serializer``, ``fill_value``,
        ``chunk_key_encoding``, ``order`` and ``write_empty_chunks``.

    Raises
    ------
    ValueError
        If an explicit encoding has unknown keys.
    """
    encoding = {key: value for key, value in variable.encoding.items() if key not in _IGNORED_KEYS}
    if encoding.get("_FillValue", ...) is None:
        del encoding["_FillValue"]
    is_given_twice = explicit and "compressors" in encoding  # Then 'compressor' is refused as unknown.
    if follows_version_2(format) and "compressor" in encoding and not is_given_twice:
        encoding.setdefault("compressors", encoding.pop("compressor"))
    known = [key for key in _STORAGE_KEYS if not (follows_version_2(format) and key == "fill_value")]
    if explicit:
        unknown = [key for key in encoding if key not in known]
        if unknown:
            raise _unexpected({key: encoding[key] for key in unknown}, known, variable, name, format)
    elif _has_lists(encoding.get("chunks")):
        # Chunks of several lengths are an extension that not all readers support, so only if asked for.
        del encoding["chunks"]
    return {
        key: encoding[key]
        for key in known
        if key in encoding and not (key in _OPEN_KEYS and (encoding[key] is None or is_auto(encoding[key])))
    }


def _unexpected(
    unknown: Mapping[str, Any], known: Sequence[str], variable: Variable, name: str, format: Format
) -> ArgumentError:
    """The error for keys of an explicit encoding that are not used."""
    hint = hints(unknown)
    if "fill_value" in unknown:
        hint += "; in format 2 the fill value is the '_FillValue'"
    unused = [key for key in unknown if key in VALUE_KEYS]
    if unused:
        hint += f"; {listed(unused)} cannot be applied to values of dtype {variable.dtype}"
    return ArgumentError(
        f"unexpected encoding parameters for variable {name!r}: {[*unknown]!r}{hint}; "
        f"{one_of(next(iter(unknown)), (*known, *VALUE_KEYS))}"
    )


def _has_lists(chunks: Any) -> bool:
    """Whether chunks are given as lists of lengths along some dimension."""
    return isinstance(chunks, (list, tuple)) and any(isinstance(along, (list, tuple)) for along in chunks)


def made_with_settings(
    make: Callable[..., _T],
    settings: Mapping[str, Any],
    variable: Variable,
    format: Format,
    *,
    explicit: bool,
    growing: Collection[Hashable] = (),
) -> _T:
    """Call ``make`` with the settings of a variable, and with what they leave open.

    If not all of the settings that it kept fit, each is used that fits with those before it.

    Parameters
    ----------
    make : callable
        Takes settings as keywords and raises an error if they do not fit.
    settings : mapping
        From :func:`array_settings`.
    variable : xarray.Variable
        With encoded values.
    format : Format
        The format to store it in.
    explicit : bool
        Whether all settings must fit.
    growing : collection of str
        Dimensions along which appends are expected; default chunks leave room along them.

    Raises
    ------
    ValueError, TypeError
        If ``make`` fails with explicit settings, or even without settings.
    """

    def made(chosen: Mapping[str, Any]) -> _T:
        return make(**{**_left_open(variable, chosen, format, growing), **chosen})

    if explicit:
        return made(settings)
    with suppress(*_UNFIT):
        return made(settings)
    held: dict[str, Any] = {}
    found = made(held)
    for key, value in settings.items():
        with suppress(*_UNFIT):
            found = made({**held, key: value})
            held[key] = value
    return found


def _left_open(
    variable: Variable, settings: Mapping[str, Any], format: Format, growing: Collection[Hashable]
) -> dict[str, Any]:
    """The chunks and the fill value, where the settings of a variable have none."""
    found: dict[str, Any] = {}
    if "fill_value" not in settings and variable.dtype.kind == "f" and not follows_version_2(format):
        found["fill_value"] = np.nan
    if "chunks" not in settings and "shards" not in settings:
        blocks: tuple[int, ...] | None = None
        if variable.chunks is not None:
            blocks = tuple(max(1, *sizes) for sizes in variable.chunks)
        if any(dim in growing for dim in variable.dims):
            blocks = _with_room(variable, blocks, growing)
        if blocks is not None:
            found["chunks"] = blocks
    return found


_ROOM = 2**20  # Bytes of a chunk that is lengthened along growing dimensions, and its most elements there.
_LONGEST_ROOM = 4096


def _with_room(
    variable: Variable, chunks: tuple[int, ...] | None, growing: Collection[Hashable]
) -> tuple[int, ...]:
    """Chunks that are lengthened along growing dimensions which they cover as a single chunk."""
    itemsize = variable.dtype.itemsize
    lengths = list(auto_chunks(variable.shape, itemsize) if chunks is None else chunks)
    for axis, dim in enumerate(variable.dims):
        if dim in growing and lengths[axis] >= variable.shape[axis]:
            others = math.prod(lengths) // lengths[axis] * itemsize
            lengths[axis] = max(lengths[axis], min(_LONGEST_ROOM, _ROOM // max(others, 1)))
    return tuple(lengths)
