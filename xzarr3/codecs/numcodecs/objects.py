"""``json2``: text as JSON, which version 2 of the format uses for arrays of objects.

A chunk is a JSON array of the elements, then numpy's name for the dtype, then the shape. The elements are
nested as deep as the chunk has dimensions. numcodecs stores any JSON values; this package only text.

Specification: the documentation of numcodecs, "JSON".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import MAX_VARIABLE, ArrayBytesCodec, ChunkSpec, NumcodecsCodec
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, UnknownExtensionError


@dataclass(frozen=True)
class Json2Codec(NumcodecsCodec, ArrayBytesCodec):
    """Text as JSON.

    Parameters
    ----------
    encoding : {"utf-8", "ascii", "latin-1", "utf-16", "utf-32"}
        Encoding of the text. The other parameters of ``numcodecs.JSON`` are ignored: all JSON is read.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.empty(2, dtype="string", serializer=xzarr3.codecs.Json2Codec()).serializer
    Json2Codec(encoding='utf-8')
    """

    name = "numcodecs.json2"
    encoding: Literal["utf-8", "ascii", "latin-1", "utf-16", "utf-32"] = "utf-8"

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        ignored = (
            "skipkeys", "ensure_ascii", "check_circular", "allow_nan", "indent", "separators", "sort_keys",
            "strict",
        )  # fmt: skip
        return super().from_configuration({k: v for k, v in configuration.items() if k not in ignored})

    def check(self, spec: ChunkSpec) -> None:
        self.require_data_type(spec, ("string",))

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return MAX_VARIABLE

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        items = np.atleast_1d(array.astype(object)).tolist()
        try:
            data = json.dumps([*items, "|O", list(array.shape)], separators=(",", ":")).encode(self.encoding)
        except UnicodeEncodeError as error:
            raise ChunkEncodeError(f"an element is not text: {error}", codec=self.name) from error
        if len(data) > MAX_VARIABLE:
            raise ChunkEncodeError(
                f"the chunk takes {len(data)} bytes; at most {MAX_VARIABLE} are possible", codec=self.name
            )
        return data

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        try:
            items = json.loads(str(data, self.encoding), strict=False)
        except (ValueError, RecursionError) as error:
            raise ChunkDecodeError(f"not valid JSON: {error}", codec=self.name) from error
        shape = list(spec.shape)
        if not isinstance(items, list) or len(items) < 2 or items[-1] != shape:
            raise ChunkDecodeError(f"found no array of text of shape {spec.shape}", codec=self.name)
        level = items[:-2]
        for length in shape[1:]:
            if not all(isinstance(item, list) and len(item) == length for item in level):
                raise ChunkDecodeError(f"the elements are not of shape {spec.shape}", codec=self.name)
            level = [inner for outer in level for inner in outer]
        wrong = [item for item in level if not isinstance(item, str)]
        if wrong:
            reason = f"an element is no text, and other objects are not read: {wrong[0]!r:.60}"
            raise ChunkDecodeError(reason, codec=self.name) from UnknownExtensionError(reason)
        try:
            return np.array(level, object).astype(spec.dtype).reshape(spec.shape)
        except (TypeError, ValueError) as error:  # half of a surrogate pair, or another number of elements
            raise ChunkDecodeError(f"the elements are not valid: {error}", codec=self.name) from error
