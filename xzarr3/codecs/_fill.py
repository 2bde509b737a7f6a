"""The fill value on its way through the codecs from arrays to arrays.

Specification: Zarr v3 core, "Chunk encoding": what a codec encodes has a fill value, too. It is what the
elements of an inner chunk are that a shard behind the codec leaves out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from xzarr3._types import Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec
from xzarr3.errors import ChunkEncodeError, MetadataError, shorten


def encoded_fill_value(codec: ArrayArrayCodec, spec: ChunkSpec) -> Scalar:
    """What a codec that encodes each element for itself makes of the fill value.

    Raises
    ------
    MetadataError
        If it cannot encode the fill value.
    """
    fill = spec.data_type.filled((), spec.fill_value)
    try:
        encoded = codec.encode(fill, replace(spec, shape=()))
    except ChunkEncodeError as error:
        raise MetadataError(
            f"codec '{codec.name}' cannot encode the fill value: {error.reason}",
            found=shorten(spec.fill_value),
            accepted="a fill value that the codec can encode",
        ) from error
    return cast("Scalar", np.asarray(encoded)[()])
