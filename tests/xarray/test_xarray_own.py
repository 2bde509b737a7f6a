"""xarray's own tests of its Zarr backend, as they come with the installed xarray, with this engine.

``Dataset.to_zarr``, ``open_zarr`` and ``open_dataset(engine="zarr")`` are xzarr3's while they run. What fails
by decision is in ``BY_DECISION`` with its reason; a test of this list that passes fails, so it only shrinks.
"""

from __future__ import annotations

from typing import Any

import pytest
import xarray as xr
import zarr

import xzarr3

theirs = pytest.importorskip(
    "xarray.tests.test_backends", reason="this xarray was installed without its tests"
)

default_zarr_format = theirs.default_zarr_format

BY_DECISION: dict[str, str] = {}


def _format(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the format that the tests chose by the configuration of zarr-python."""
    options.setdefault("zarr_format", zarr.config.get("default_zarr_format"))
    return options


def _to_zarr(dataset: Any, store: Any = None, *args: Any, **options: Any) -> Any:
    has_array = (
        options.get("mode") in ("a", "r+") or options.get("append_dim") or options.get("region") is not None
    )
    return xzarr3.to_zarr(dataset, store, *args, **(options if has_array else _format(options)))


def _open_dataset(place: Any, *, open: Any = xr.open_dataset, **options: Any) -> Any:
    if options.get("engine") == "zarr":
        options["engine"] = "xzarr3"
        options.pop("mode", None)
    return open(place, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestZarrOfXarray(theirs.TestZarrDirectoryStore):  # type: ignore[misc, name-defined]
    """The tests, on a directory."""

    @pytest.fixture(autouse=True)
    def _ours(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(xr.Dataset, "to_zarr", _to_zarr)
        monkeypatch.setattr(xr.DataArray, "to_zarr", _to_zarr)
        for module in (xr, theirs):
            monkeypatch.setattr(module, "open_dataset", _open_dataset)
            monkeypatch.setattr(module, "open_zarr", xzarr3.open_zarr, raising=False)
        for mark in request.node.iter_markers("skip_if_param"):
            given = {name: value for name, value in mark.kwargs.items() if name in request.node.callspec.params}
            if mark.kwargs["condition"] and given == {
                name: request.node.callspec.params[name] for name in given
            }:
                pytest.skip(mark.kwargs["reason"])
        if request.node.originalname in BY_DECISION:
            reason = BY_DECISION[request.node.originalname]
            request.applymarker(pytest.mark.xfail(reason=reason, strict=False))
