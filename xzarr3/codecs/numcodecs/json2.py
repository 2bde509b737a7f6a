"""``json2``: arrays of whatever JSON can hold, as version 2 of the format keeps objects.

A chunk is a JSON array: the elements, nested as deep as the chunk has dimensions, then numpy's name for the
dtype, then the shape. It is the codec of objects of that name in numcodecs. Version 3 has no such codec, so
its name there begins with ``numcodecs.``.

Specification: the documentation of numcodecs, "JSON". Names: ``numcodecs.json2``.
Example: ``{"name": "numcodecs.json2", "configuration": {"encoding": "utf-8"}}``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import MAX_VARIABLE, ArrayBytesCodec, ChunkSpec, Configuration
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, listed

_ENCODINGS = ("utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1", "utf-16", "utf-32")
_SEPARATORS = (re.compile(r"\s{0,8},\s{0,8}"), re.compile(r"\s{0,8}:\s{0,8}"))


@dataclass(frozen=True)
class Json2Codec(ArrayBytesCodec):
    """Elements as JSON; the parameters are those of ``numcodecs.JSON`` and of Python's ``json`` module.

    Parameters
    ----------
    encoding : str
        Encoding of the text.
    skipkeys, ensure_ascii, check_circular, allow_nan, sort_keys : bool
    indent : int, optional
    separators : tuple of str
        Between elements, and between keys and values.
    strict : bool
        Whether control characters in strings are refused.
    """

    name = "numcodecs.json2"
    encoding: str = "utf-8"
    skipkeys: bool = False
    ensure_ascii: bool = True
    check_circular: bool = True
    allow_nan: bool = True
    indent: int | None = None
    separators: tuple[str, str] = (",", ":")
    sort_keys: bool = True
    strict: bool = True

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        indent = fields.take("indent", "an integer from 0 to 64, or null", None)
        if indent is not None and (type(indent) is not int or not 0 <= indent <= 64):
            raise fields.error("indent", indent, "an integer from 0 to 64, or null")
        separators = fields.take("separators", "two strings", None)
        if separators is None:
            separators = [",", ":"] if indent is None else [", ", ": "]
        if (
            not isinstance(separators, list)
            or len(separators) != 2
            or not all(isinstance(s, str) for s in separators)
            or not all(p.fullmatch(s) for p, s in zip(_SEPARATORS, separators, strict=True))  # type: ignore[arg-type]
        ):
            raise fields.error("separators", separators, "a comma and a colon, each with spaces around it")
        given = fields.take("encoding", listed(_ENCODINGS), "utf-8")
        if not isinstance(given, str) or given.lower() not in _ENCODINGS:
            raise fields.error("encoding", given, listed(_ENCODINGS))
        codec = cls(
            encoding=given,
            skipkeys=fields.boolean("skipkeys", default=False),
            ensure_ascii=fields.boolean("ensure_ascii", default=True),
            check_circular=fields.boolean("check_circular", default=True),
            allow_nan=fields.boolean("allow_nan", default=True),
            indent=indent,
            separators=tuple(separators),  # type: ignore[arg-type]
            sort_keys=fields.boolean("sort_keys", default=True),
            strict=fields.boolean("strict", default=True),
        )
        fields.finish()
        return codec

    def configuration(self) -> dict[str, JSON]:
        return {
            "encoding": self.encoding,
            "skipkeys": self.skipkeys,
            "ensure_ascii": self.ensure_ascii,
            "check_circular": self.check_circular,
            "allow_nan": self.allow_nan,
            "indent": self.indent,
            "separators": list(self.separators),
            "sort_keys": self.sort_keys,
            "strict": self.strict,
        }

    def check(self, spec: ChunkSpec) -> None:
        if spec.data_type.name not in ("json2", "string"):
            raise MetadataError(
                f"codec '{self.name}' cannot hold data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data type 'json2' or 'string'",
            )

    def encoded_size(self, spec: ChunkSpec) -> None:
        return None

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return MAX_VARIABLE

    @cached_property
    def _encoder(self) -> json.JSONEncoder:
        return json.JSONEncoder(
            skipkeys=self.skipkeys,
            ensure_ascii=self.ensure_ascii,
            check_circular=self.check_circular,
            allow_nan=self.allow_nan,
            indent=self.indent,
            separators=self.separators,
            sort_keys=self.sort_keys,
        )

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        objects = array.astype(object, copy=False)
        try:
            text = self._encoder.encode([*np.atleast_1d(objects).tolist(), "|O", list(array.shape)])
            data = text.encode(self.encoding)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChunkEncodeError(f"an element is not JSON: {error}", codec=self.name) from error
        if len(data) > MAX_VARIABLE:
            raise ChunkEncodeError(f"{len(data)} bytes, at most {MAX_VARIABLE} possible", codec=self.name)
        return data

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        try:
            items = json.loads(str(data, self.encoding), strict=self.strict)
        except (ValueError, RecursionError) as error:
            raise ChunkDecodeError(f"not valid JSON: {error}", codec=self.name) from error
        if not isinstance(items, list) or len(items) < 2 or not isinstance(items[-2], str):
            raise ChunkDecodeError("not an array of elements, dtype and shape", codec=self.name)
        shape = items[-1]
        if not isinstance(shape, list) or shape != list(spec.shape):
            raise ChunkDecodeError(f"found elements of shape {shape}, expected {spec.shape}", codec=self.name)
        level = items[:-2]
        lengths = list(spec.shape) or [1]
        for deeper in range(len(lengths)):
            if deeper:
                if not all(isinstance(item, list) for item in level):
                    raise self._uneven(spec)
                level = [inner for outer in level for inner in outer]
            if len(level) != math.prod(lengths[: deeper + 1]):
                raise self._uneven(spec)
        if spec.dtype.kind != "O" and not all(isinstance(item, str) for item in level):
            raise ChunkDecodeError("an element is not a string", codec=self.name)
        array = np.fromiter(level, dtype=object, count=len(level)).reshape(spec.shape)
        try:
            return array.astype(spec.dtype, copy=False)
        except (TypeError, ValueError) as error:  # Strings with surrogates alone.
            raise ChunkDecodeError(f"an element is not valid: {error}", codec=self.name) from error

    def _uneven(self, spec: ChunkSpec) -> ChunkDecodeError:
        return ChunkDecodeError(f"the elements are not of shape {spec.shape}", codec=self.name)
