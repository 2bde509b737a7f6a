"""Stores that the tests of the xarray engine read."""

from __future__ import annotations

import pytest
from _engines import Stores


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("corpus"))
