"""What a write stores beside the place of its node: new values, a note of its begin, the list of its swap.

All of it lies under one prefix of the store, which the lease of the place names.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from xzarr3._types import Buffer
from xzarr3.errors import StoreError
from xzarr3.formats import ZarrFormat
from xzarr3.formats.documents import redated, replaced_at
from xzarr3.stores.local.names import STAGED, is_lock

NEW, OLD = "new", "old"
SWAP = "swap"  # what is left to do in a swap, beside the new values
BEGUN = "begun"  # exists from the beginning of a write to its end, in a store of keys
ABANDONED = 24 * 3600.0
"""Seconds without a change after which leftovers of a write may be removed."""
_END_OF_TIME = 2.0**53  # Seconds
_TOP = re.compile(f"{re.escape(STAGED)}[0-9a-f]{{32}}/", re.ASCII)


def is_top(prefix: str) -> bool:
    """Whether a prefix is that of all that a write has staged."""
    return _TOP.fullmatch(prefix) is not None


def now(**said: object) -> bytes:
    """A JSON value with the current time and further fields."""
    return json.dumps({"time": time.time(), **said}).encode()


def said_in(value: Buffer | None) -> dict[str, Any]:
    """The fields of a value made by :func:`now`; empty if it is no such value."""
    try:
        said = {} if value is None else json.loads(bytes(value))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def age(stored: object) -> float:
    """Seconds since a stored time; infinite if it is no number, or more than a day in the future."""
    if not isinstance(stored, (int, float)) or not abs(stored) < _END_OF_TIME:
        return math.inf
    found = time.time() - stored
    return found if found >= -ABANDONED else math.inf  # clocks differ by less than a day


@dataclass(frozen=True)
class Swap:
    """The stored list of what is to be done in a swap, so that it can be finished after a kill.

    Parameters
    ----------
    path : str
        Path of the node.
    zarr_format : {3, 2, "3-draft"}
    away : list of lists of str
        What leaves; all of one list leaves before the next list.
    come : list of str
        What comes, relative to the prefix of the new values. In a directory these are names that are renamed,
        elsewhere keys of chunks.
    documents : mapping
        For each node path, its documents by key; none where they are among what comes.
    overwrite : bool
        Also replace what has appeared since. Without it, if something has appeared, nothing is replaced.
    """

    path: str
    zarr_format: ZarrFormat
    away: list[list[str]]
    come: list[str]
    documents: dict[str, dict[str, str]]
    overwrite: bool = True

    def text(self) -> bytes:
        """The stored form."""
        return json.dumps(asdict(self), separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def parse(cls, value: Buffer, key: str) -> Swap:
        """The list stored by :meth:`text`.

        Raises
        ------
        StoreError
            If the value is no such list.
        """
        try:
            found = msgspec.convert(json.loads(bytes(value)), cls)
            if all(map(_is_unit, itertools.chain(*found.away, found.come))):
                return found
        except (ValueError, RecursionError):
            pass
        top = key.removesuffix(SWAP)
        raise StoreError(
            f"key '{key}' does not list what is left to do, so the swap cannot be completed; look at the "
            f"keys that begin with '{top}', copy good values to their final keys, and remove the rest and "
            "the lease"
        )

    def date_after(self, at: float) -> None:
        """Give the nodes that come a later date than ``at``, which copies of the old node may tell."""
        documents = [
            (own, key, own[key].encode("utf-8", "surrogatepass"))
            for own in self.documents.values()
            for key in own
        ]
        date = max((replaced_at(value) or 0 for _, _, value in documents), default=0)
        if date > at:
            return
        for own, key, value in documents:
            if replaced_at(value) == date:  # Nodes that stay what they are keep their own.
                own[key] = redated(value, at + 1e-5).decode("utf-8", "surrogatepass")

    def encoded(self) -> dict[str, dict[str, bytes]]:
        """The documents as they are stored."""
        return {
            path: {key: text.encode("utf-8", "surrogatepass") for key, text in own.items()}
            for path, own in self.documents.items()
        }


def _is_unit(name: str) -> bool:
    """Whether a string can name something below the root that a write may move."""
    is_inside = not {"", ".", ".."} & set(name.split("/")) and "\0" not in name
    return is_inside and not name.startswith(STAGED) and not is_lock(name)
