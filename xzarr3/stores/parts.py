"""Parts of values to store: the bytes of each, their order, and a value with parts overwritten."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import TypeAlias

from xzarr3._types import Buffer
from xzarr3.errors import InvalidRangeError, StoreError, shorten
from xzarr3.stores.keys import check_key

Parts: TypeAlias = list[tuple[int, memoryview]]


def flat(value: Buffer, key: str) -> memoryview:
    """The bytes of ``value`` in C order, to be stored under ``key``.

    Raises
    ------
    StoreError
        If ``value`` is neither bytes nor another buffer.
    """
    try:
        view = memoryview(value)
    except TypeError as error:
        raise StoreError(
            f"cannot store {shorten(value)} under key '{key}'; accepted: bytes, bytearray or memoryview"
        ) from error
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    return memoryview(view.tobytes())


def sorted_parts(key_start_values: Iterable[tuple[str, int, Buffer]]) -> dict[str, Parts]:
    """The parts of each key in order of their start, for :meth:`Store.set_partial_values`.

    Raises
    ------
    InvalidKeyError
        If a key is not valid.
    InvalidRangeError
        If two parts of one key overlap, or a part begins before byte 0.
    """
    parts: dict[str, Parts] = {}
    for key, start, value in key_start_values:
        first = _first_byte(key, start)
        parts.setdefault(check_key(key), []).append((first, flat(value, key)))
    for key, pieces in parts.items():
        pieces.sort(key=lambda piece: (piece[0], piece[1].nbytes))
        end = 0
        for start, piece in pieces:
            if piece.nbytes:
                if start < end:
                    raise InvalidRangeError(
                        f"parts to store under key '{key}' overlap at byte {start}; give parts that do not "
                        "overlap"
                    )
                end = start + piece.nbytes
    return parts


def _first_byte(key: object, start: object) -> int:
    try:
        first = index(start)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidRangeError(
            f"key {key!r}: a part cannot begin at {start!r}; accepted: an integer"
        ) from error
    if first < 0:
        raise InvalidRangeError(f"key {key!r}: a part cannot begin at {first}; accepted: 0 or more")
    return first


def merge(key: str, value: Buffer | None, pieces: Parts) -> bytearray:
    """A copy of ``value`` with some parts overwritten.

    Raises
    ------
    InvalidRangeError
        If a part begins beyond the end.
    """
    merged = bytearray(b"" if value is None else value)
    for start, piece in pieces:
        if start > len(merged):
            raise InvalidRangeError(
                f"cannot store a part from byte {start} on under key '{key}', whose value has {len(merged)} "
                f"bytes; accepted: 0 to {len(merged)}"
            )
        merged[start : start + piece.nbytes] = piece
    return merged
