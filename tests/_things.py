"""What tests are given and named by: objects of no kind, and names of cases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class Thing:
    """An object of no known kind, which nothing accepts."""

    def __repr__(self) -> str:
        return "Thing()"


def without_addresses(value: object) -> str:
    """The text of a value without the places of objects in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@contextmanager
def case(name: object) -> Iterator[None]:
    """One of many small cases of a test: an error within it names it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {name}")
        raise
