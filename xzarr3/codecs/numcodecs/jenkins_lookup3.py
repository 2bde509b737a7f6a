"""``numcodecs.jenkins_lookup3``: the data and behind them their checksum by lookup3.

Specification: zarr-extensions, "numcodecs.jenkins_lookup3"; the documentation of numcodecs, "JenkinsLookup3".
Names: ``numcodecs.jenkins_lookup3``.
Example: ``{"name": "numcodecs.jenkins_lookup3", "configuration": {"initval": 0}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast

from numcodecs.jenkins import jenkins_lookup3

from xzarr3._types import JSON, Buffer
from xzarr3.codecs.base import Configuration
from xzarr3.codecs.numcodecs._checksums import ChecksumCodec


@dataclass(frozen=True)
class JenkinsLookup3Codec(ChecksumCodec):
    """The checksum of HDF5's metadata, lookup3 by Bob Jenkins, behind the data.

    Parameters
    ----------
    initval : int
        The value it begins with.
    """

    name = "numcodecs.jenkins_lookup3"
    initval: int = 0

    def __post_init__(self) -> None:
        Configuration(self.name, {"initval": self.initval}).integer("initval", 0, 2**32 - 1)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        codec = cls(fields.integer("initval", 0, 2**32 - 1, default=0))
        prefix = fields.take("prefix", "null", None)
        if prefix is not None:
            raise fields.error("prefix", prefix, "null", "JSON cannot hold the bytes that this has to be")
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {"initval": self.initval}

    def checksum(self, data: Buffer) -> int:
        return cast("int", jenkins_lookup3(data, self.initval))
