"""``numcodecs.blosc``: ``blosc`` under the name that zarr-python gives the codec of numcodecs.

Specification: zarr-extensions, "numcodecs.blosc"; the documentation of numcodecs, "Blosc".
Names: ``numcodecs.blosc``.
Example: ``{"name": "numcodecs.blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": 1,
"blocksize": 0}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from xzarr3._types import JSON
from xzarr3.codecs.base import Configuration
from xzarr3.codecs.blosc import BloscCodec

_MAX_INT = 2**31 - 1
_SHUFFLES: tuple[str | None, ...] = ("noshuffle", "shuffle", "bitshuffle", None)
"""The shuffles of blosc in the order of their numbers, the last one also being number -1."""


@dataclass(frozen=True)
class NumcodecsBloscCodec(BloscCodec):
    """``blosc`` under the name that zarr-python gives the codec of numcodecs; shuffles are numbers there.

    Parameters
    ----------
    typesize : int, optional
        Not part of the configuration; by default the size of an element.
    """

    name = "numcodecs.blosc"
    typesize: int | None = field(default=None, compare=False)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        given = {
            "cname": fields.take("cname", "a name", "lz4"),
            "clevel": fields.integer("clevel", 0, 9, default=5),
            "shuffle": _SHUFFLES[fields.integer("shuffle", -1, 2, default=1)],
            "typesize": fields.take("typesize", "an integer of at least 1", None),
            "blocksize": fields.integer("blocksize", 0, _MAX_INT, default=0),
        }
        fields.finish()
        return cls(**given)  # type: ignore[arg-type]

    def configuration(self) -> dict[str, JSON]:
        number = -1 if self.shuffle is None else _SHUFFLES.index(self.shuffle)
        return {"cname": self.cname, "clevel": self.clevel, "shuffle": number, "blocksize": self.blocksize}
