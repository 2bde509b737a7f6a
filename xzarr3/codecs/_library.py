"""The base class of codecs whose libraries are optional packages."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import ArrayBytesCodec, ChunkSpec
from xzarr3.errors import ChunkEncodeError, MetadataError, UnknownExtensionError, listed


class LibraryCodec(ArrayBytesCodec):
    """A codec whose library is imported when the codec is checked or used, not with this package."""

    _library: ClassVar[str]
    _dtypes: ClassVar[tuple[str, ...]]

    def to_json(self) -> JSON:
        return {"name": self.name, "configuration": self.configuration()}

    @cached_property
    @abstractmethod
    def _coder(self) -> Any:
        """The object of the library that encodes."""

    def _loaded(self, module: str) -> Any:
        try:
            return import_module(module)
        except ImportError as error:
            raise UnknownExtensionError(
                f"codec '{self.name}' needs the package '{self._library}'",
                found=self.name,
                advice="install it with pip install 'xzarr3[codecs]'",
            ) from error

    def check(self, spec: ChunkSpec) -> None:
        if spec.data_type.is_variable or spec.dtype.name not in self._dtypes:
            raise MetadataError(
                f"codec '{self.name}' cannot encode data type '{spec.data_type.name}'",
                found=self.name,
                accepted=f"data types {listed(self._dtypes)}",
            )
        _ = self._coder

    def encoded_size(self, spec: ChunkSpec) -> None:
        return None

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        values = np.ascontiguousarray(array, dtype=spec.dtype).reshape(spec.shape)
        try:
            return self._coder.encode(values)  # type: ignore[no-any-return]
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise ChunkEncodeError(f"compression failed: {error}", codec=self.name) from error
