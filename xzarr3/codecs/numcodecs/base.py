"""The base class of all codecs of numcodecs; it writes them to metadata documents."""

from __future__ import annotations

from xzarr3._types import JSON
from xzarr3.codecs.base import Codec


class NumcodecsCodec(Codec):
    """A codec of numcodecs; its parameters have the same names as in numcodecs."""

    _null_is_absence = True

    def to_json(self) -> JSON:
        # zarr-python requires a configuration even if it is empty.
        return {"name": self.name, "configuration": self.configuration()}
