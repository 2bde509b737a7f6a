"""The JSON document of what was joined: the stores by their places, and how they lie.

It holds no data, no documents and no options of stores, so no credentials. Stores below the folder of the
document are named by relative paths: the folder can be moved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeGuard

import msgspec
from msgspec.structs import replace

from xzarr3 import fields
from xzarr3.display.shown import Description, Shown
from xzarr3.errors import ArgumentError, MetadataError, StoreError, located
from xzarr3.fields import Meta
from xzarr3.formats import V3, Format
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata
from xzarr3.stores import Store, open_store

DEEPEST = 8
"""Most documents, or lists of stores in one, that are nested."""
_LARGEST = 2**26  # Bytes of a document.
_NAME = "xzarr3_joined"
_NOT_ONE = "not a document of joined stores"
_OTHERS = {
    "zarr_format": "it is the document of a node: open the folder that it is in",
    "refs": "it has references of kerchunk: open 'reference://' with storage_options={'fo': its path}",
}
"""Fields of other documents, and how these are opened."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a node is: the path or URL of its store, and its path there."""

    store: str
    path: str = ""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is joined, and how; a document has the same fields.

    Parameters
    ----------
    join : {"concat", "stack"}
    dim : str, int or None
    axis, drop_variables, check_labels
        As :func:`xzarr3.concat` and :func:`xzarr3.stack` have them.
    sources : tuple
        What is given. Once it is joined, each is a Place, a Recipe, or None if its store has no path or URL.
    """

    join: Literal["concat", "stack"]
    dim: str | int | None = None
    axis: int = 0
    drop_variables: list[str] = []
    check_labels: bool = True
    sources: Annotated[tuple[Any, ...], Meta(min_length=1, description="a list of stores")]


def with_places(recipe: Recipe, nodes: Sequence[Any]) -> Recipe:
    """The recipe with the places of its sources; ``nodes`` are the sources, opened."""
    return replace(recipe, sources=tuple(map(_place, recipe.sources, nodes)))


def _place(given: Any, node: Any) -> Place | Recipe | None:
    recipe: Recipe | None = vars(node).get("recipe")
    if recipe is not None:
        return recipe
    if isinstance(given, Place):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Place(os.fspath(given), node.path)
    return None if node.store.folder is None else Place(node.store.folder, node.path)


def is_document(place: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a path or URL names a document, by its ending."""
    if not isinstance(place, (str, os.PathLike)) or not str(place).endswith(".json"):
        return False
    return "::" not in str(place) and not os.path.isdir(place)


class Joined(Shown):
    """What joined arrays and joined groups have in common."""

    format: Format = V3
    metadata: ArrayMetadata | GroupMetadata
    recipe: Recipe | None = None
    """What was joined, for :meth:`to_json`."""
    _is_joined = True
    """No function takes it for the store of its first part."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes of the first part, without those that no longer hold for converted values."""
        return MappingProxyType(dict(self.metadata.attributes))

    @property
    def info(self) -> Description:
        """A description: one line for each property, and for each array or each of the first sources."""
        return self._describe()

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Save what was joined as a JSON document; :func:`xzarr3.open` joins it again.

        The document names the stores, those below its own folder by relative paths. Options of stores, such
        as credentials, are not in it.

        Parameters
        ----------
        path : path or URL
            Ends with ``.json``.

        Raises
        ------
        ArgumentError
            If a store has no path or URL, or this is a variable of a joined group.
        """
        if self.recipe is None:
            raise ArgumentError("only what xzarr3.concat() and xzarr3.stack() returned can be saved")
        if not is_document(path):
            raise ArgumentError(f"path={os.fspath(path)!r}; a document of joined stores ends with '.json'")
        store, key, above = _located(path)
        text = msgspec.json.encode({_NAME: 1, **msgspec.to_builtins(_relative(self.recipe, above))})
        store.set(key, msgspec.json.format(text, indent=1))


def _located(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> tuple[Store, str, str]:
    """The store and the key of a document, and the path or URL of its folder."""
    text = os.fspath(path)
    if "://" not in text:
        text = os.path.abspath(text)
    above, _, key = text.rpartition("/")
    return open_store(above or "/", storage_options), key, above


def _relative(source: Any, above: str) -> Any:
    """A source, or a whole recipe, as a document in a folder names it."""
    if isinstance(source, Recipe):
        if None in source.sources:
            raise ArgumentError(
                f"source {source.sources.index(None)} has no path or URL; join stores by their paths or URLs "
                "to save what was joined"
            )
        return replace(source, sources=tuple([_relative(each, above) for each in source.sources]))
    store = source.store if "://" in source.store else os.path.abspath(source.store)
    return replace(source, store=store.removeprefix(f"{above}/"))


def read(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Recipe:
    """Read a document.

    Raises
    ------
    StoreError
        If it cannot be read.
    MetadataError
        If it is not valid. A document that came by a URL names no places on this machine.
    """
    store, key, above = _located(path, storage_options)
    data = store.get(key, limit=_LARGEST)
    if data is None:
        raise StoreError(f"no document {key!r} in {store}")
    with located(path=key):
        try:
            found = msgspec.json.decode(bytes(data))
        except (msgspec.DecodeError, RecursionError) as error:
            raise MetadataError("not JSON", found=str(error)) from error
        version = found.pop(_NAME, ...) if isinstance(found, dict) else found
        if version != 1:
            others = [_OTHERS[name] for name in _OTHERS if isinstance(found, dict) and name in found]
            raise MetadataError(_NOT_ONE, field=_NAME, found=version, accepted="1", advice="".join(others))
        return _parsed_recipe(found, above, 1)


def _parsed_recipe(found: Mapping[str, Any], above: str, depth: int) -> Recipe:
    recipe = Recipe(**fields.read(Recipe, found, _NOT_ONE, within="", null=True))
    parsed = []
    for at, source in enumerate(recipe.sources):
        with located(field=f"sources[{at}]"):
            parsed.append(_parsed_source(source, above, depth))
    return replace(recipe, sources=tuple(parsed))


def _parsed_source(found: Any, above: str, depth: int) -> Place | Recipe:
    if not isinstance(found, dict) or depth > DEEPEST:
        accepted = f"an object with 'store' and 'path', or a nested one, at most {DEEPEST} deep"
        raise MetadataError(_NOT_ONE, found=found, accepted=accepted)
    if "join" in found:
        return _parsed_recipe(found, above, depth + 1)
    place = Place(**fields.read(Place, found, _NOT_ONE, within=""))
    return replace(place, store=_resolved(place.store, above))


def _resolved(store: str, above: str) -> str:
    """The path or URL of a store that a document in a folder names."""
    if "://" in store:
        if "://" not in above or store.partition(":")[0] == above.partition(":")[0]:
            return store
    elif not os.path.isabs(store):
        if ".." not in store.split("/"):
            return f"{above}/{store}"
        if "://" not in above:
            return os.path.normpath(os.path.join(above, store))
    elif "://" not in above:
        return store
    raise MetadataError(
        "a document that came by a URL names only stores below it, or URLs of the same kind", field="store",
        found=store,
    )  # fmt: skip
