"""Object stores do what every store must do, over real servers on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from _conformance import ODD_KEYS, StoreConformance

from xzarr3 import Store, StoreError
from xzarr3.stores.object.store import ObjectStore

NAMED = [key for key in ODD_KEYS if not any(letter in key for letter in "\n\t\r")]


class ObjectConformance(StoreConformance):
    """Over a bucket of its own for each store."""

    holds_versions = False
    stamps = False
    odd_keys = NAMED
    bounds_keys = True
    forks = False

    @pytest.fixture(autouse=True)
    def _server(self, request: pytest.FixtureRequest) -> None:
        self.server = request.getfixturevalue(self.fixture)

    def place(self, name: str) -> tuple[str, dict[str, Any]]:
        """The URL of a bucket and the options."""
        return f"{self.scheme}://{self.server.bucket()}/{name}", self.server.storage_options

    def make(self, base: Path) -> Store:
        url, options = self.place("store")
        return ObjectStore(url, storage_options=options)

    def read_only(self, store: Store) -> Store:
        assert isinstance(store, ObjectStore)
        guarded = ObjectStore.__new__(ObjectStore)
        guarded.__setstate__({**store.__getstate__(), "read_only": True})
        return guarded


class TestS3(ObjectConformance):
    fixture = "s3_server"
    ranges = 100
    scheme = "s3"


class TestAzure(ObjectConformance):
    fixture = "azure_server"
    ranges = 100
    scheme = "az"
    odd_keys: ClassVar = [
        key for key in NAMED if "\\" not in key and not key.endswith(".") and "./" not in key
    ]


class TestGoogle(ObjectConformance):
    fixture = "gcs_server"
    scheme = "gs"


class TestScripted(ObjectConformance):
    """The scripted server as S3, with short pages."""

    fixture = "fault_server"

    def place(self, name: str) -> tuple[str, dict[str, Any]]:
        self.server.configure(max_keys=7)
        self.count = getattr(self, "count", 0) + 1
        options = {"key": "test-key", "secret": "test-secret", "endpoint_url": self.server.url}
        return f"s3://bucket-{self.count}/{name}", options


@pytest.mark.parametrize("server", ["s3_server", "azure_server", "gcs_server"])
def test_values_are_copied_by_the_service(server: str, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(server)
    scheme = {"s3_server": "s3", "azure_server": "az", "gcs_server": "gs"}[server]
    bucket = place.container() if server == "azure_server" else place.bucket()
    store = ObjectStore(f"{scheme}://{bucket}/x", storage_options=place.storage_options)
    values = {f"a/{at}": bytes([at]) * (at * 1000) for at in range(20)}
    store.set_values(values.items())
    store.copy_values((key, f"b/{key}") for key in values)
    with pytest.raises(StoreError, match="none"):
        store.copy_values([("none", "b/none")])
    assert {key: bytes(store.get(key) or b"") for key in store.list()} == values | {
        f"b/{key}": value for key, value in values.items()
    }
