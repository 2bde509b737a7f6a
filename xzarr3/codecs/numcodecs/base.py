"""The base class of all codecs of numcodecs; it writes them to metadata documents."""

from __future__ import annotations

from xzarr3._types import JSON
from xzarr3.codecs.base import ParameterCodec
from xzarr3.errors import UnknownExtensionError


class NumcodecsCodec(ParameterCodec):
    """A codec of numcodecs; its parameters have the same names as in numcodecs."""

    only_in_version_2 = False
    """Whether only documents of version 2 of the format can name the codec."""

    def to_json(self) -> JSON:
        if self.only_in_version_2:
            raise UnknownExtensionError(
                f"only Zarr format 2 has the codec '{self.name.removeprefix('numcodecs.')}'",
                field="codecs", found=self.name, accepted="zarr_format=2, or another codec",
            )  # fmt: skip
        # zarr-python requires a configuration even if it is empty.
        return {"name": self.name, "configuration": self.configuration()}
