"""Storage transformers: the extension point between an array and the store.

Specification: Zarr v3 core, "Storage transformers". The specification defines the extension point and no
transformer. So the registry is empty until a user registers one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from xzarr3._types import JSON
from xzarr3.errors import UnknownExtensionError, foreign
from xzarr3.extensions import forget
from xzarr3.stores import Store

if TYPE_CHECKING:
    from xzarr3.model.metadata import ArrayMetadata

_known: dict[str, type[StorageTransformer]] = {}


class StorageTransformer(ABC):
    """A storage transformer with its configuration; immutable, hashable, compared by value.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @register_storage_transformer
    ... @dataclass(frozen=True)
    ... class Plain(StorageTransformer):
    ...     name = "example.plain"
    ...     @classmethod
    ...     def from_configuration(cls, configuration):
    ...         return cls()
    ...     def wrap(self, store, prefix, metadata):
    ...         return store
    >>> storage_transformer_names()
    ['example.plain']
    >>> _ = unregister_storage_transformer("example.plain")
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        """Make the transformer that a metadata document describes.

        Raises
        ------
        MetadataError
            If the configuration lacks a field, or has an unknown field or a wrong value.
        """

    def configuration(self) -> dict[str, JSON]:
        """The configuration in the form of a metadata document; empty if there is nothing to configure."""
        return {}

    def to_json(self) -> JSON:
        """The transformer in the form of a metadata document."""
        configuration = self.configuration()
        return {"name": self.name, "configuration": configuration} if configuration else {"name": self.name}

    @abstractmethod
    def wrap(self, store: Store, prefix: str, metadata: ArrayMetadata) -> Store:
        """The store that the array uses.

        Parameters
        ----------
        store : Store
            The store itself, or the store returned by the next transformer.
        prefix : str
            Start of the keys of the array's chunks. The array uses no other keys.
        metadata : ArrayMetadata
        """

    def owns(self, key: str) -> bool:
        """Whether this transformer may have stored a key that is no chunk key.

        Parameters
        ----------
        key : str
            The key without the array's prefix. Besides chunk keys, erasing an array erases only owned keys.
        """
        return False


def register_storage_transformer(cls: type[StorageTransformer]) -> type[StorageTransformer]:
    """Register a storage transformer under its name, replacing an earlier one; returns ``cls``.

    Examples
    --------
    >>> import xzarr3
    >>> class Plain(xzarr3.StorageTransformer):
    ...     name = "example.plain"
    ...
    ...     def wrap(self, store, prefix, metadata):
    ...         return store
    >>> xzarr3.register_storage_transformer(Plain) is unregister_storage_transformer("example.plain")
    True
    """
    _known[cls.name] = cls
    forget()
    return cls


def unregister_storage_transformer(name: str) -> type[StorageTransformer]:
    """Remove a storage transformer and return it."""
    forget()
    return _known.pop(name)


def storage_transformer_names() -> list[str]:
    """The names of all known storage transformers."""
    return sorted(_known)


def storage_transformer(name: str, configuration: Mapping[str, JSON]) -> StorageTransformer:
    """The storage transformer that a metadata document describes.

    Raises
    ------
    UnknownExtensionError
        If no storage transformer has this name.
    MetadataError
        If the configuration is not valid.
    """
    cls = _known.get(name)
    if cls is None:
        raise UnknownExtensionError(
            "unknown storage transformer", field="name", found=name,
            accepted=storage_transformer_names(),
        )  # fmt: skip
    with foreign(f"storage transformer '{name}'", field="configuration", found=dict(configuration)):
        return cls.from_configuration(configuration)


def transformed(
    store: Store, prefix: str, metadata: ArrayMetadata, transformers: tuple[StorageTransformer, ...]
) -> Store:
    """The store that an array uses through its transformers; the first one is next to the array."""
    for transformer in reversed(transformers):
        store = transformer.wrap(store, prefix, metadata)
    return store
