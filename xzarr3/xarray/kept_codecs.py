"""The codecs of an array that was read, kept in the encoding of its variable to write it again alike.

:func:`kept_codecs` makes the encoding. xarray's own engine can use it, and :func:`make_from_kept` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np

from xzarr3.arrays import Array
from xzarr3.dtypes.specs import OBJECT_CODECS
from xzarr3.formats import Format
from xzarr3.formats.v2 import ARRAY
from xzarr3.xarray.encode import usual_fill_value

_T = TypeVar("_T")
_UNFIT = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


def kept_codecs(array: Array) -> dict[str, Any]:
    """The codecs of an opened array, in the form in which variables keep them in their ``encoding``.

    Parameters
    ----------
    array : Array

    Returns
    -------
    dict
        ``compressors`` and ``filters``, tuples of JSON objects. In version 2 these are the configurations
        in the document, without the codec of strings and objects, which follows from the data type.
    """
    meta = array.metadata
    if not array.format.configures_as_numcodecs:
        return {
            "compressors": tuple([codec.to_json() for codec in array.compressors]),
            "filters": tuple([codec.to_json() for codec in array.filters]),
        }
    words = array.format.hold(meta, array.path)[ARRAY]
    compressor, filters = words["compressor"], words.get("filters") or ()
    return {
        "compressors": () if compressor is None else (KeptCodec(compressor),),
        "filters": tuple([KeptCodec(config) for config in filters if config["id"] not in OBJECT_CODECS]),
    }


class KeptCodec(dict[str, Any]):
    """The configuration of a version 2 codec in the encoding of a variable.

    xarray's own engine accepts it, too. In format 2 that needs objects that can encode, so this class can. In
    format 3 that asks for a ``name``, which version 2 codecs lack, so this class raises a TypeError.

    Parameters
    ----------
    configuration : mapping
        The configuration in a document of version 2.
    """

    codec_id = ""  # zarr-python looks for this attribute in the class.

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        super().__init__(deepcopy(dict(configuration)))
        self.codec_id = str(configuration["id"])

    def __reduce__(self) -> Any:
        return KeptCodec, (dict(self),)

    def __missing__(self, key: str) -> Any:
        if key != "name":
            raise KeyError(key)
        raise TypeError(
            f"the encoding holds {dict(self)}, a codec of Zarr format 2, which xarray's own engine cannot "
            "write in format 3; use zarr_format=2, call .drop_encoding() first, or use xzarr3.to_zarr()"
        )

    def _codec(self) -> Any:
        import numcodecs

        return numcodecs.get_codec(dict(self))

    def encode(self, buf: Any) -> Any:
        """Encode a buffer with the numcodecs codec."""
        return self._codec().encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a buffer with the numcodecs codec."""
        return self._codec().decode(buf, out)

    def get_config(self) -> dict[str, Any]:
        """The complete configuration from numcodecs, including defaults that the document leaves out."""
        return dict(self._codec().get_config())

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> KeptCodec:
        """The codec with a configuration; numcodecs calls this."""
        return cls(config)


def make_from_kept(
    make: Callable[..., _T], settings: Mapping[str, Any], dtype: np.dtype[Any], format: Format
) -> _T:
    """Call ``make`` with the settings that a variable kept: all, else each that fits with those before it.

    Parameters
    ----------
    make : callable
        Takes settings as keywords and raises an error if they do not fit.
    settings : mapping
    dtype : numpy.dtype
        Data type of the encoded values.
    format : Format
        The format to store them in.

    Raises
    ------
    ValueError, TypeError
        If ``make`` fails even without settings.
    """
    held = usual_fill_value(dtype, format)
    with suppress(*_UNFIT):
        return make(**{**held, **settings})
    made = make(**held)
    for key, value in settings.items():
        with suppress(*_UNFIT):
            made = make(**{**held, key: value})
            held[key] = value
    return made
