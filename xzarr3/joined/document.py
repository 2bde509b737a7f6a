"""The JSON document of what was joined: the stores by their places, and how they lie.

It holds no data, no documents and no options of stores, so no credentials. Stores below the folder of the
document are named by relative paths: the folder can be moved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec

from xzarr3.errors import ArgumentError, MetadataError, StoreError, shorten
from xzarr3.stores import Store, open_store

DEEPEST = 8
"""Most documents, or lists of stores in one, that are nested."""
_LARGEST = 2**26  # Bytes of a document.
_OPTIONS = {"axis": int, "drop_variables": list, "check_labels": bool}
_NAME = "xzarr3_joined"
_NOT_ONE = "not a document of joined stores"


class Place(NamedTuple):
    """Where a node is: the path or URL of its store, and its path there."""

    store: str
    path: str


class Recipe(msgspec.Struct, frozen=True):
    """What was joined.

    Parameters
    ----------
    join : {"concat", "stack"}
    dim : str, int or None
    sources : tuple of Place, Recipe or None
        None for a node whose store has no path or URL.
    options : mapping
        ``axis``, ``drop_variables`` and ``check_labels``, as they were given.
    """

    join: str
    dim: str | int | None
    sources: tuple[Any, ...]
    options: Mapping[str, Any]


def recipe_of(
    join: str, dim: str | int | None, options: Mapping[str, Any], given: Sequence[Any], nodes: Sequence[Any]
) -> Recipe:
    """The recipe of what was joined; ``nodes`` are the ``given`` sources, opened."""
    sources = tuple(_place(*each) for each in zip(given, nodes, strict=True))
    return Recipe(join, dim, sources, {name: each for name, each in options.items() if name in _OPTIONS})


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


def save(
    recipe: Recipe, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> None:
    """Store a recipe as a document.

    Raises
    ------
    ArgumentError
        If the path does not end with ``.json``, or a source has no path or URL.
    """
    if not is_document(path):
        raise ArgumentError(f"path={os.fspath(path)!r}; a document of joined stores ends with '.json'")
    store, key, above = _located(path)
    text = msgspec.json.encode({_NAME: 1, **_to_json(recipe, above)})
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


def _to_json(recipe: Recipe, above: str) -> dict[str, Any]:
    sources = []
    for at, each in enumerate(recipe.sources):
        if each is None:
            raise ArgumentError(
                f"source {at} has no path or URL; join stores by their paths or URLs to save what was joined"
            )
        sources.append(_to_json(each, above) if isinstance(each, Recipe) else _place_to_json(each, above))
    return {"join": recipe.join, "dim": recipe.dim, **recipe.options, "sources": sources}


def _place_to_json(place: Place, above: str) -> dict[str, str]:
    store = place.store if "://" in place.store else os.path.abspath(place.store)
    if store.startswith(f"{above}/"):
        store = store[len(above) + 1 :]
    return {"store": store, **({"path": place.path} if place.path else {})}


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
    try:
        found = msgspec.json.decode(bytes(data))
    except (msgspec.DecodeError, RecursionError) as error:
        raise MetadataError("not JSON", path=key, found=str(error)) from error
    if not isinstance(found, dict) or found.get(_NAME) != 1:
        raise MetadataError(_NOT_ONE, path=key, field=_NAME, found=shorten(found), accepted="1")
    return _from_json({name: each for name, each in found.items() if name != _NAME}, above, key, "", 0)


def _from_json(found: Mapping[str, Any], above: str, key: str, field: str, depth: int) -> Recipe:
    def wrong(name: str, value: object, accepted: str) -> MetadataError:
        return MetadataError(_NOT_ONE, path=key, field=f"{field}{name}", found=value, accepted=accepted)

    join, dim, sources = (found.get(name) for name in ("join", "dim", "sources"))
    if join not in ("concat", "stack"):
        raise wrong("join", join, "'concat' or 'stack'")
    if isinstance(dim, bool) or not isinstance(dim, (str, int, type(None))):
        raise wrong("dim", dim, "a name or a number")
    if not isinstance(sources, list) or not sources or depth > DEEPEST:
        raise wrong("sources", shorten(sources), f"a list of stores, at most {DEEPEST} deep")
    options = {name: each for name, each in found.items() if name not in ("join", "dim", "sources")}
    for name, value in options.items():
        if not isinstance(value, _OPTIONS.get(name, ())):
            raise wrong(name, value, f"one of {', '.join(_OPTIONS)}, of its type")
    if not all(isinstance(each, str) for each in options.get("drop_variables", ())):
        raise wrong("drop_variables", options["drop_variables"], "a list of names")
    parsed: list[Place | Recipe] = []
    for at, each in enumerate(sources):
        where = f"{field}sources[{at}]"
        if isinstance(each, dict) and "join" in each:
            parsed.append(_from_json(each, above, key, f"{where}.", depth + 1))
            continue
        if not (
            isinstance(each, dict)
            and {"store"} <= each.keys() <= {"store", "path"}
            and all(isinstance(value, str) for value in each.values())
        ):
            raise wrong(f"sources[{at}]", shorten(each), "an object with 'store' and 'path', or a nested one")
        parsed.append(Place(_resolved(each["store"], above, key, where), each.get("path", "")))
    return Recipe(join, dim, tuple(parsed), options)


def _resolved(store: str, above: str, key: str, field: str) -> str:
    """The path or URL of a store that a document names."""
    if "://" in store:
        if "://" not in above or store.partition(":")[0] == above.partition(":")[0]:
            return store
    elif not os.path.isabs(store):
        parts = store.split("/")
        if ".." not in parts:
            return f"{above}/{store}"
        if "://" not in above:
            return os.path.normpath(os.path.join(above, store))
    elif "://" not in above:
        return store
    raise MetadataError(
        "a document that came by a URL names only stores below it, or URLs of the same kind", path=key,
        field=field, found=store,
    )  # fmt: skip
