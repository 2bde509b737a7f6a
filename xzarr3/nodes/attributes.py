"""User attributes as a mapping that writes its changes to the store.

The mapping itself knows no store: it gets functions that read and change the stored attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import deepcopy
from typing import Any

from xzarr3.display.shown import Description, Shown
from xzarr3.errors import ArgumentTypeError, short_traceback, shorten


class Attributes(Shown, MutableMapping[str, Any]):
    """The user attributes of an array or a group.

    Each change rewrites the metadata document; :meth:`update` and :meth:`put` make several changes in one
    rewrite. A value that is read is a copy: changing a list or a dictionary has no effect until it is
    assigned.

    Values must be JSON. NaN and infinities raise a :class:`~xzarr3.MetadataError`: JSON lacks them, and a
    reader could not tell what was meant. If an older writer left some in the document, they can be read, and
    they stay while other attributes change. :func:`xzarr3.copy` and :func:`xzarr3.to_zarr` store text
    instead.

    Parameters
    ----------
    read : callable
        Returns the attributes as last read or written.
    change : callable
        Takes a function from attributes to changed attributes, applies it to the stored ones and stores the
        result. If it raises, nothing is stored.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        change: Callable[[Callable[[dict[str, Any]], Mapping[str, Any]]], None],
    ) -> None:
        self._read = read
        self._change = change

    def __getitem__(self, key: str) -> Any:
        return deepcopy(self._read()[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(dict(self._read()))

    def _describe(self) -> Description:
        from xzarr3.display.attributes import describe_attributes

        return describe_attributes(self._read())

    @short_traceback
    def __setitem__(self, key: str, value: Any) -> None:
        self._change(lambda stored: {**stored, key: value})

    @short_traceback
    def __delitem__(self, key: str) -> None:
        def without(stored: dict[str, Any]) -> dict[str, Any]:
            del stored[key]
            return stored

        self._change(without)

    @short_traceback
    def update(self, *others: Any, **named: Any) -> None:
        """Set several attributes at once."""
        try:
            values = dict(*others, **named)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"no attributes: {shorten(others)}; accepted: a mapping of names to values, or pairs of these"
            ) from error
        self._change(lambda stored: {**stored, **values})

    @short_traceback
    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of an attribute, which is set first if neither this handle nor the store has it."""
        if key not in self:
            self._change(lambda stored: stored if key in stored else {**stored, key: default})
        return self[key]

    @short_traceback
    def clear(self) -> None:
        """Remove all attributes."""
        self.put({})

    @short_traceback
    def put(self, values: Mapping[str, Any]) -> None:
        """Replace all attributes."""
        self._change(lambda _: values)

    def asdict(self) -> dict[str, Any]:
        """A copy as a dictionary."""
        return deepcopy(dict(self._read()))
