"""User attributes as a mapping that writes its changes to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any


class Attributes(MutableMapping[str, Any]):
    """The user attributes of an array or a group.

    Each change rewrites the metadata document; :meth:`update` and :meth:`put` make several changes at
    the price of one.

    Parameters
    ----------
    read : callable
        Gives the attributes as they are.
    write : callable
        Stores a changed mapping, or raises and stores nothing.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, Any]], write: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._read = read
        self._write = write

    @property
    def _values(self) -> Mapping[str, Any]:
        return self._read()

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self._values))

    def __setitem__(self, key: str, value: Any) -> None:
        self.put({**self._values, key: value})

    def __delitem__(self, key: str) -> None:
        left = dict(self._values)
        del left[key]
        self.put(left)

    def update(self, *others: Any, **named: Any) -> None:
        """Set several attributes at once."""
        self.put({**self._values, **dict(*others, **named)})

    def put(self, values: Mapping[str, Any]) -> None:
        """Replace all attributes."""
        self._write(dict(values))

    def asdict(self) -> dict[str, Any]:
        """A copy as a dictionary."""
        return dict(self._values)
