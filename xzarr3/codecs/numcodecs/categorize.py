"""``categorize``: text out of a list of labels as small integers, as version 2 of the format keeps it.

An element is stored as the place of its label in the list, counted from 1; 0 stands for empty text. It is the
codec of that name in numcodecs, which also stores text without a label as 0, so that it is lost; here such
text is refused. Version 3 has no such codec.

Specification: the documentation of numcodecs, "Categorize". Names: ``categorize``, in version 2.
Example: ``{"id": "categorize", "labels": ["land", "sea"], "dtype": "<U4", "astype": "|u1"}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray
from xzarr3.codecs.base import MAX_VARIABLE, ChunkSpec, Configuration
from xzarr3.codecs.numcodecs import only_in_version_2
from xzarr3.codecs.numcodecs._filters import TypedFilter
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError

_LABELS = "an array of strings"
_OBJECTS = "|O"


@dataclass(frozen=True)
class CategorizeCodec(TypedFilter):
    """Text as the place of its label.

    Parameters
    ----------
    dtype : str
        numpy's name for the dtype of the text: ``|O`` for text of any length, or one such as ``<U4``.
    astype : str
        The same for the integers.
    labels : tuple of str
        If one of them is there twice, the last one counts.

    Examples
    --------
    >>> import numpy as np
    >>> from xzarr3.codecs import ChunkSpec
    >>> from xzarr3.dtypes import parse_dtype
    >>> spec = ChunkSpec((3,), parse_dtype("<U4"), "")
    >>> CategorizeCodec("<U4", "|u1", ("land", "sea")).encode(np.array(["sea", "", "land"]), spec)
    array([2, 0, 1], dtype=uint8)
    """

    name = "numcodecs.categorize"
    _kinds: ClassVar[str] = "UO"
    dtype: str | None = None
    astype: str | None = "|u1"
    labels: tuple[str, ...] = ()

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        labels = fields.take("labels", _LABELS)
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise fields.error("labels", labels, _LABELS)
        codec = cls(
            dtype=fields.take("dtype", "a dtype of text, as in '<U4', or '|O'"),  # type: ignore[arg-type]
            astype=fields.take("astype", "a dtype of integers, as in '|u1'", "|u1"),  # type: ignore[arg-type]
            labels=tuple(labels),  # type: ignore[arg-type]
        )
        fields.finish()
        return codec

    def _parsed(self, field: str, value: JSON) -> np.dtype[Any]:
        kinds, example = (self._kinds, "<U4") if field == self.decoded_field else ("iu", "|u1")
        return self._parsed_as(field, value, kinds, example)

    def configuration(self) -> dict[str, JSON]:
        return {"labels": list(self.labels), **super().configuration()}

    def to_json(self) -> JSON:
        raise only_in_version_2(self)

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {label: code for code, label in enumerate(self.labels, start=1)} | {"": 0}

    @cached_property
    def _coder(self) -> Any:
        raise NotImplementedError("encodes and decodes itself")

    def _output(self, spec: ChunkSpec) -> np.dtype[Any]:
        wanted = _OBJECTS if spec.data_type.name == "string" else spec.dtype.newbyteorder("<").str
        if self._swapped or self.dtype is None or np.dtype(self.dtype) != np.dtype(wanted):
            raise Configuration(self.name, {}).error(
                "dtype", self.dtype, f"'{wanted}' in the byte order of the array",
                f"not the dtype of data type '{spec.data_type.name}'",
            )  # fmt: skip
        return self._encoded_dtype

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        if spec.data_type.name not in ("string", "fixed_length_utf32"):
            raise MetadataError(
                f"codec '{self.name}' cannot encode data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data type 'string' or 'fixed_length_utf32'",
            )
        data_type = parse_dtype(self._output(spec))
        return replace(spec, data_type=data_type, fill_value=data_type.default_scalar())

    def _encoded(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        items = np.ascontiguousarray(array).reshape(-1).tolist()
        codes = self._codes
        try:
            places = [codes[item] for item in items]
            return np.array(places, self._encoded_dtype)
        except KeyError as error:
            raise ChunkEncodeError(
                f"{error.args[0]!r} is none of the {len(self.labels)} labels", codec=self.name
            ) from error
        except OverflowError as error:
            raise ChunkEncodeError(
                f"'{self.astype}' cannot hold the place of a label: {error}", codec=self.name
            ) from error

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        codes, places, number = np.unique(array, return_inverse=True, return_counts=True)
        if codes.size and not 0 <= codes[0] <= codes[-1] <= len(self.labels):
            raise ChunkDecodeError(
                f"found integers from {codes[0]} to {codes[-1]}, at most {len(self.labels)} expected",
                codec=self.name,
            )
        words = [self.labels[code - 1] if code else "" for code in codes.tolist()]
        lengths = [len(word) for word in words]
        if spec.data_type.is_variable:
            # A label may be long, and a chunk name it as often as it likes.
            total = sum(n * length for n, length in zip(number.tolist(), lengths, strict=True))
            if total > MAX_VARIABLE:
                raise ChunkDecodeError(
                    f"decodes to {total} characters, at most {MAX_VARIABLE} possible", codec=self.name
                )
        elif max(lengths, default=0) > spec.dtype.itemsize // 4:
            raise ChunkDecodeError(
                f"a label of {max(lengths)} characters where '{spec.dtype}' is expected", codec=self.name
            )
        try:
            return np.array(words, spec.dtype)[places].reshape(spec.shape)
        except UnicodeEncodeError as error:  # Half a surrogate pair
            raise ChunkDecodeError(f"a label is no text: {error}", codec=self.name) from error
