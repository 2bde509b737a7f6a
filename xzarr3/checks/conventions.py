"""Checks attributes by the CF conventions: whether xarray decodes them, and whether what they name exists.

xarray is imported when there is something to decode; without it that part is left out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from xzarr3.arrays import Array
from xzarr3.checks.documents import Scope, in_groups
from xzarr3.checks.keys import Listing, is_coordinate
from xzarr3.checks.report import Findings
from xzarr3.errors import Xzarr3Error, listed, shorten
from xzarr3.formats.base import node_prefix
from xzarr3.nodes.node import ancestors

NAMING = (
    *("coordinates", "bounds", "climatology", "grid_mapping", "ancillary_variables", "cell_measures"),
    *("formula_terms", "geometry", "nodes", "node_coordinates"),
)
"""CF attributes that name variables, which describe the one that has the attribute."""
_KEYWORDS = ("cell_measures", "formula_terms")
"""Attributes of pairs ``keyword: name``."""
_CODING = (
    "units",
    "calendar",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "dtype",
)
_DECODED = frozenset(_CODING) - {"calendar"}


def check_conventions(listing: Listing, findings: Findings, *, values: bool) -> None:
    """Check the attributes of all arrays; with ``values``, also decode the ends of coordinates."""
    scope = listing.scope
    for group, arrays in in_groups(scope):
        there = _names_at(scope, group)
        external = _external(scope, group)
        for name, meta in arrays.items():
            path = node_prefix(group) + name
            _check_references(scope, path, meta.attributes, there | external, findings, meta.attributes)
        attributes = scope.groups[group].attributes if group in scope.groups else {}
        _check_references(scope, group, {"coordinates": attributes.get("coordinates")}, there, findings, None)
    handles = [units.handle for units in listing.units.values()]
    coded = [handle for handle in handles if not _DECODED.isdisjoint(handle.metadata.attributes)]
    coded = [handle for handle in coded if handle.dimension_names is not None or not handle.shape]
    if not coded:
        return
    if find_spec("xarray") is None:
        findings.add("cf-unchecked", scope.path, "", "xarray is not installed to decode attributes")
        return
    for handle in coded:
        _check_decoding(scope, handle, findings, values=values)


# Names in attributes


def _names_at(scope: Scope, group: str) -> set[str]:
    """Names that attributes of a group's arrays may use: arrays of the group and of those above it."""
    names = set()
    for path in (*scope.arrays, *scope.unreadable):
        above, _, name = path.rpartition("/")
        if above == group or above in ancestors(group):
            names.add(name)
    return names


def _external(scope: Scope, group: str) -> set[str]:
    """Names of variables in other files, as the attribute ``external_variables`` lists them."""
    names: set[str] = set()
    for place in (*ancestors(group), group):
        meta = scope.groups.get(place)
        text = None if meta is None else meta.attributes.get("external_variables")
        names.update(text.split() if isinstance(text, str) else ())
    return names


def _check_references(
    scope: Scope, path: str, attributes: Mapping[str, Any], there: set[str], findings: Findings, own: object
) -> None:
    for attribute in NAMING:
        text = attributes.get(attribute)
        if not isinstance(text, str):
            continue
        lost = [
            name for name in dict.fromkeys(_named(attribute, text)) if name not in there and "/" not in name
        ]
        if lost:
            key = scope.format.attributes_key(path, array=own is not None)
            names = "names arrays that do" if len(lost) > 1 else "names an array that does"
            findings.add(
                "cf-reference", path, key, f"attribute '{attribute}' {names} not exist: {listed(lost)}"
            )


def _named(attribute: str, text: str) -> Iterator[str]:
    """The names of variables in an attribute."""
    if attribute in _KEYWORDS:
        yield from re.findall(r"\S+:\s+([^\s:]+)(?!\S*:)", text)
    else:  # the extended form of grid_mapping has names of mappings with a colon
        yield from (name.rstrip(":") for name in text.split())


# Decoding


def _check_decoding(scope: Scope, handle: Array, findings: Findings, *, values: bool) -> None:
    """Decode a value with xarray: of a coordinate the first and the last, else any."""
    if handle.dtype.kind not in "biufcSUT":
        return
    problem = _problem(handle, _samples(handle) if values else None)
    if problem is not None:
        said = {
            name: handle.metadata.attributes[name] for name in _CODING if name in handle.metadata.attributes
        }
        key = scope.format.attributes_key(handle.path, array=True)
        findings.add(
            "cf-undecodable", handle.path, key,
            f"xarray cannot decode it by its attributes {shorten(said, 200)}: {problem}",
        )  # fmt: skip


def _samples(handle: Array) -> np.ndarray[Any, Any] | None:
    """The first and the last value of a coordinate, None of other arrays or if they cannot be read."""
    if not is_coordinate(handle) or not handle.size:
        return None
    try:
        return np.concatenate([np.atleast_1d(handle[:1]), np.atleast_1d(handle[-1:])])
    except Xzarr3Error:  # noted by the check of chunks
        return None


def _problem(handle: Array, samples: np.ndarray[Any, Any] | None) -> str | None:
    """Why xarray cannot decode an array; None if it can."""
    from xarray import Variable, conventions

    from xzarr3.formats.fill_value_attribute import fill_value_is_mask
    from xzarr3.xarray.variables import as_variable

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what xarray decodes all the same is no finding
        try:
            variable = as_variable(handle, fill_value_is_mask(handle.format))
            if samples is None:
                samples = np.zeros((1,) * len(handle.shape), handle.dtype)
            small = Variable([f"dim_{at}" for at in range(samples.ndim)], samples, dict(variable.attrs))
            np.asarray(conventions.decode_cf_variable(handle.basename, small).values)
        except Exception as error:  # noqa: BLE001 - whatever xarray raises is the finding
            return str(error).partition("\n")[0] or type(error).__name__
    return None
