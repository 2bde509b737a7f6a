"""The registry of data types: finds the data type for a numpy dtype, a document or what a user passes.

It knows the classes only through the methods of :class:`~xzarr3.dtypes.ZDType`. It also holds
:func:`parse_dtype`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from xzarr3._types import JSON
from xzarr3.dtypes.base import ZDType
from xzarr3.dtypes.specs import (
    MAX_DEPTH,
    OBJECT_CODECS,
    UNREAD_OBJECT_CODECS,
    DTypeJSON,
    ZarrFormat,
    native_v2,
    spelling_of,
    split_v3,
    too_deep,
)
from xzarr3.errors import (
    FOREIGN_ERRORS,
    DataTypeValidationError,
    MetadataError,
    UnknownExtensionError,
    did_you_mean,
    listed,
    some,
)
from xzarr3.extensions import forget, json_key, remembered


class DataTypeRegistry:
    """The known data types, by name.

    A numpy dtype or a JSON value is offered to every registered class, and exactly one must accept it. In
    version 3, a document with a registered name is offered only to the class of that name.

    Attributes
    ----------
    contents : dict of str to type
        The classes by name.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.dtypes.data_type_registry.contents["int16"]
    <class 'xzarr3.dtypes.core.Int16'>
    """

    def __init__(self) -> None:
        self.contents: dict[str, type[ZDType]] = {}

    @overload
    def register(self, key: type[ZDType]) -> type[ZDType]: ...

    @overload
    def register(self, key: str, cls: type[ZDType]) -> type[ZDType]: ...

    def register(self, key: str | type[ZDType], cls: type[ZDType] | None = None) -> type[ZDType]:
        """Register a data type; it replaces an earlier one of the same name.

        Parameters
        ----------
        key : str or type
            The name, or the class alone. A class has a name and may have aliases.
        cls : type, optional
            The class, if ``key`` is a name.

        Returns
        -------
        type
            The class.
        """
        if isinstance(key, str):
            if cls is None:
                raise TypeError("register takes a class, or a name and a class")
            names: tuple[str, ...] = (key,)
        else:
            cls, names = key, (key._zarr_v3_name, *key._zarr_v3_aliases)
        for name in names:
            earlier = self.contents.get(name)
            if earlier is not None and earlier is not cls:
                self._forget(earlier)
            self.contents[name] = cls
        forget()
        return cls

    def unregister(self, key: str) -> None:
        """Remove a data type and all its names."""
        self._forget(self.contents[key])
        forget()

    def _forget(self, cls: type[ZDType]) -> None:
        for name in [name for name, each in self.contents.items() if each is cls]:
            del self.contents[name]

    @property
    def names(self) -> list[str]:
        """The names of all known data types."""
        return list(self.contents)

    def match_dtype(self, dtype: np.dtype[Any]) -> ZDType:
        """The data type for a numpy dtype.

        Raises
        ------
        DataTypeValidationError
            If no data type, or more than one, represents ``dtype``.
        """
        if dtype.kind in "mM" and np.datetime_data(dtype)[1] == 0:
            raise DataTypeValidationError(
                "a time unit of scale 0", found=str(dtype), accepted="a scale factor from 1 to 2^31 - 1"
            )
        # numpy crashes the process when it compares dtypes of times with a scale factor of 0. Such a dtype
        # may be in a field, so structured dtypes are not used as cache keys.
        if dtype.names is not None:
            return self._match_dtype(dtype)
        return remembered((self, dtype), lambda: self._match_dtype(dtype))

    def _match_dtype(self, dtype: np.dtype[Any]) -> ZDType:
        if dtype.kind == "O":
            raise DataTypeValidationError(
                "numpy's dtype 'object' does not say what the objects are",
                found=dtype,
                accepted="'string' for text, 'bytes' for bytes",
            )
        found, refusals = self._offer(lambda cls: cls.from_native_dtype(dtype))
        if not found:
            for cls, error in refusals.items():
                if _claims(cls, dtype):
                    raise error
        return self._only(found, dtype, lambda _: DataTypeValidationError("no Zarr data type for this dtype"))

    def match_json(self, data: DTypeJSON, *, zarr_format: ZarrFormat) -> ZDType:
        """The data type that a metadata document names.

        Parameters
        ----------
        data : JSON
            In version 3 a name or an object with ``name`` and ``configuration``; in version 2 an object with
            ``name`` and ``object_codec_id``.
        zarr_format : {3, 2, "3-draft"}

        Raises
        ------
        UnknownExtensionError
            If no data type has this name.
        DataTypeValidationError
            If the rest of ``data`` is not valid for that data type, or more than one data type accepts it.
        """
        spelling = spelling_of(zarr_format)
        if too_deep(data, zarr_format):
            raise UnknownExtensionError(
                "data types nested too deeply", accepted=f"fewer than {MAX_DEPTH} structs within each other"
            )
        key = (self, zarr_format, json_key(data))
        if spelling.numpy_names:
            return remembered(key, lambda: self._match_v2(data))
        return remembered(key, lambda: self._match_v3(data, zarr_format))

    def _match_v3(self, data: DTypeJSON, zarr_format: ZarrFormat) -> ZDType:
        spec = split_v3(data)
        if spec is None and zarr_format == "3-draft":
            found, _ = self._offer(lambda each: each.from_json(data, zarr_format=zarr_format))
            return self._only(found, data, self._unknown)
        if spec is None:
            raise self._unknown(data)
        name, configuration = spec
        plain: DTypeJSON = {"name": name, "configuration": dict(configuration)} if configuration else name
        cls = self.contents.get(name)
        if cls is not None:
            return cls.from_json(plain, zarr_format=zarr_format)
        found, refusals = self._offer(
            lambda each: each.from_json(plain, zarr_format=zarr_format), by_name=True
        )
        for error in refusals.values():
            if not found and isinstance(error, UnknownExtensionError):
                raise error
        return self._only(found, data, self._unknown)

    def _match_v2(self, data: DTypeJSON) -> ZDType:
        if isinstance(data, (str, list, tuple)):
            data = {"name": data, "object_codec_id": None}
        if not isinstance(data, Mapping) or data.keys() != {"name", "object_codec_id"}:
            raise self._unknown(data)
        name = data["name"]
        named = self.contents.get(name) if isinstance(name, str) else None
        if named is not None and named._by_name_only:
            return named.from_json(data, zarr_format=2)
        found, refusals = self._offer(lambda each: each.from_json(data, zarr_format=2))
        if not found:
            self._explain_v2(data, refusals)
        return self._only(found, name, self._unknown)

    def _explain_v2(self, data: Mapping[str, object], refusals: Mapping[type[ZDType], MetadataError]) -> None:
        """Raise the most helpful error if one explains why no data type accepts ``data``."""
        name, codec = data["name"], data["object_codec_id"]
        if isinstance(name, str) and name.lstrip("<>|=") in ("O", "O8"):
            reason = "no filter says what the objects are"
            if codec is not None:
                reason = f"codec {codec!r} of objects: {UNREAD_OBJECT_CODECS.get(str(codec), 'not known')}"
            raise UnknownExtensionError(
                reason,
                found=name if codec is None else codec,
                accepted=f"one of the codecs {listed(OBJECT_CODECS)}",
            )
        for cls, error in refusals.items():
            if isinstance(error, UnknownExtensionError):
                raise error
            native = native_v2(data)
            if native is not None and _claims(cls, native):
                raise error
        struct = self.contents.get("struct")
        if not isinstance(name, str) and struct is not None and struct in refusals:
            raise refusals[struct]

    def _offer(
        self, offer: Callable[[type[ZDType]], ZDType], *, by_name: bool = False
    ) -> tuple[list[ZDType], dict[type[ZDType], MetadataError]]:
        """Call ``offer`` with each class; return the data types made, and the errors of the other classes.

        ``by_name`` includes the classes that only their names select.
        """
        found, refusals = [], {}
        for cls in dict.fromkeys(self.contents.values()):
            if cls._by_name_only and not by_name:
                continue
            try:
                found.append(offer(cls))
            except MetadataError as error:
                refusals[cls] = error
            except FOREIGN_ERRORS as error:
                refusals[cls] = DataTypeValidationError(f"not '{cls._zarr_v3_name}': {error}")
        return found, refusals

    def _unknown(self, data: object) -> UnknownExtensionError:
        return UnknownExtensionError("unknown data type", found=data, accepted=self._names)

    @property
    def _names(self) -> list[str]:
        return sorted(self.contents, key=lambda name: not self.contents[name]._listed)

    def _only(self, found: list[ZDType], what: object, none: Callable[[object], MetadataError]) -> ZDType:
        if len(found) == 1:
            return found[0]
        if not found:
            error = none(what)
            error.found, error.accepted = what, some(self._names, what)
            raise error
        raise DataTypeValidationError(
            f"several data types match: {listed(t.name for t in found)}",
            found=what,
            advice="name the data type in full",
        )

    def parse(self, spec: object, zarr_format: ZarrFormat) -> ZDType:
        """See :func:`parse_dtype`."""
        if isinstance(spec, str):
            key = (self, "text", zarr_format, spec)
            return remembered(key, lambda: self._parse_text(spec, zarr_format))
        if isinstance(spec, Mapping):
            numpy_names = spelling_of(zarr_format).numpy_names
            if numpy_names and "object_codec_id" in spec:
                return self.match_json(spec, zarr_format=zarr_format)
            if "names" not in spec:
                return self.match_json(spec, zarr_format=3 if numpy_names else zarr_format)
        if spec is str or spec is np.str_:
            return self.match_json("string", zarr_format=3)
        if spec is bytes or spec is np.bytes_:
            return self.match_json("bytes", zarr_format=3)
        return self.match_dtype(self._native(_tupled(spec)))

    def _parse_text(self, spec: str, zarr_format: ZarrFormat) -> ZDType:
        if spec == "str":
            return self.match_json("string", zarr_format=3)
        forms: list[tuple[DTypeJSON, ZarrFormat]] = [(spec, zarr_format)]
        if spelling_of(zarr_format).numpy_names:
            forms = [({"name": spec, "object_codec_id": None}, zarr_format), (spec, 3)]
        for form, each_format in forms:
            try:
                return self.match_json(form, zarr_format=each_format)
            except UnknownExtensionError as error:
                unknown = error
        try:
            native = np.dtype(spec)
        except FOREIGN_ERRORS as error:
            raise unknown from error
        return self.match_dtype(native)

    def _native(self, spec: Any) -> np.dtype[Any]:
        try:
            if spec is None:
                raise TypeError("None is not a data type")
            if isinstance(spec, type) and issubclass(spec, np.dtype):
                spec = spec()  # type: ignore[call-overload]
            dtype: np.dtype[Any] = np.dtype(spec)
            return dtype
        except (*FOREIGN_ERRORS, SyntaxError) as error:
            raise DataTypeValidationError(
                "not a data type",
                found=spec,
                accepted=f"a numpy dtype, {some(self._names, spec)}",
                advice=did_you_mean(spec, self._names),
            ) from error


def _claims(cls: type[ZDType], dtype: np.dtype[Any]) -> bool:
    """Whether a class represents dtypes like ``dtype``."""
    try:
        return cls._check_native_dtype(dtype)
    except FOREIGN_ERRORS:
        return False


def _tupled(spec: object, room: int = 32) -> object:
    """Fields given as lists, converted to the tuples that numpy requires."""
    if not isinstance(spec, list) or not room:
        return spec
    return [
        (field[0], _tupled(field[1], room - 1), *field[2:])
        if isinstance(field, (list, tuple)) and len(field) > 1
        else field
        for field in spec
    ]


registry = DataTypeRegistry()
"""The data types by name; see :class:`DataTypeRegistry`."""
data_type_registry = registry
"""Another name for :data:`registry`."""


def parse_dtype(spec: ZDType | npt.DTypeLike | JSON, *, zarr_format: ZarrFormat = 3) -> ZDType:
    """The data type that a user specifies.

    Parameters
    ----------
    spec : ZDType, numpy dtype, str, dict or list
        A data type, anything that ``numpy.dtype`` accepts, or the name or JSON of a Zarr data type. ``str``
        and ``"str"`` mean text of any length; ``bytes`` and ``"bytes"`` mean byte strings of any length.
    zarr_format : {3, 2, "3-draft"}
        The format of ``spec`` if it is JSON. For version 2, JSON of version 3 is also accepted.

    Raises
    ------
    DataTypeValidationError, UnknownExtensionError
        If no data type, or more than one, matches.

    Examples
    --------
    >>> parse_dtype("float32").name
    'float32'
    >>> parse_dtype(">i2").to_json(2)
    {'name': '>i2', 'object_codec_id': None}
    >>> parse_dtype(bool)
    Bool()
    >>> parse_dtype("r24"), parse_dtype("V3")
    (RawBits(width=24), RawBytes(length=3))
    >>> parse_dtype("<M8[10s]").to_json(3)
    {'name': 'numpy.datetime64', 'configuration': {'unit': 's', 'scale_factor': 10}}
    >>> parse_dtype(str)
    VariableLengthUTF8()
    """
    spelling_of(zarr_format)
    return spec if isinstance(spec, ZDType) else registry.parse(spec, zarr_format)
