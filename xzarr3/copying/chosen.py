"""Settings that are chosen when a copy begins, and kept when it is resumed.

A choice that measures, such as that of :func:`xzarr3.advise`, may be another one the next time. So it is
noted beside the values of a copy that can be resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from xzarr3.commit.leftovers import is_top, said_in
from xzarr3.commit.places import Place
from xzarr3.errors import ArgumentTypeError
from xzarr3.formats import Format
from xzarr3.stores import Store

Encoding: TypeAlias = Mapping[str, Mapping[str, Any]]

_NAME = "settings"
_LARGEST = 2**24  # Bytes of a note.


def chosen_before(store: Store, format: Format, path: str) -> Encoding | None:
    """The settings that an interrupted copy to a place has noted; None if there is no such copy."""
    left = Place.of(store, format, path).lease().there()
    if not is_top(left.top):
        return None
    said = said_in(store.get(f"{left.top}{_NAME}", (0, _LARGEST))).get("encoding")
    return said if isinstance(said, dict) else None


def chosen_now(choose: Callable[[], Encoding], *, resume: bool) -> Encoding:
    """What ``choose`` returns; that of a copy that can be resumed is as its note will say it.

    Raises
    ------
    ArgumentTypeError
        If it cannot be noted.
    """
    found = choose()
    if not resume:
        return found
    try:
        again: Encoding = json.loads(json.dumps(found, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            "encoding() returned settings that cannot be noted for a resumed copy; give codecs as their "
            f"names or JSON, and lengths as integers: {error}"
        ) from error
    return again


def note_chosen(store: Store, top: str, encoding: Encoding) -> None:
    """Note the settings of a copy that can be resumed, under the prefix of what it stores."""
    store.set(f"{top}{_NAME}", json.dumps({"encoding": encoding}).encode())
