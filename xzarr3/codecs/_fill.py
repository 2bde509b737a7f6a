"""Encodes the fill value with an array to array codec.

The encoded array has a fill value, too. A shard after the codec needs it for missing inner chunks.

Specification: Zarr v3 core, "Chunk encoding".
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from xzarr3._types import Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec
from xzarr3.errors import ChunkEncodeError, MetadataError, shorten


def encoded_fill_value(codec: ArrayArrayCodec, spec: ChunkSpec) -> Scalar:
    """The encoded fill value, for a codec that encodes each element independently.

    Raises
    ------
    MetadataError
        If the codec cannot encode the fill value.
    """
    fill = spec.data_type.filled((), spec.fill_value)
    try:
        encoded = codec.encode(fill, replace(spec, shape=()))
    except ChunkEncodeError as error:
        raise MetadataError(
            f"codec '{codec.name}' cannot encode the fill value: {error.reason}",
            found=shorten(spec.fill_value),
            advice="choose another fill value",
        ) from error
    return cast("Scalar", np.asarray(encoded)[()])
