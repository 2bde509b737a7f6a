"""What all codecs of numcodecs have in common: their names and how documents write them."""

from __future__ import annotations

from xzarr3._types import JSON
from xzarr3.codecs.base import ParameterCodec
from xzarr3.errors import UnknownExtensionError


class NumcodecsCodec(ParameterCodec):
    """A codec of numcodecs, whose parameters have the names that numcodecs gives them."""

    only_in_version_2 = False
    """Whether documents of no other version of the format can name the codec."""

    def to_json(self) -> JSON:
        if self.only_in_version_2:
            raise UnknownExtensionError(
                f"only Zarr format 2 has the codec '{self.name.removeprefix('numcodecs.')}'",
                field="codecs", found=self.name, accepted="format 2, or another codec",
            )  # fmt: skip
        # zarr-python wants a configuration even if it is empty.
        return {"name": self.name, "configuration": self.configuration()}
