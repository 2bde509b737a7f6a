"""Object stores do what every store must do, over real servers on loopback."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from _things import refused

from xzarr3 import StoreError
from xzarr3.stores.object.store import ObjectStore
from xzarr3.testing import check_store

SCHEMES = {"s3_server": "s3", "azure_server": "az", "gcs_server": "gs", "fault_server": "s3"}


def made(server: Any, name: str) -> ObjectStore:
    if name == "fault_server":
        server.configure(max_keys=7)  # Lists of several pages.
        bucket = f"bucket-{next(NUMBERS)}"
    else:
        bucket = server.bucket()
    return ObjectStore(f"{SCHEMES[name]}://{bucket}/x", storage_options=server.storage_options)


NUMBERS = itertools.count()


@pytest.mark.parametrize("name", SCHEMES)
def test_check_store(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    assert check_store(lambda: made(server, name))


@pytest.mark.parametrize("name", ["s3_server", "azure_server", "gcs_server"])
def test_copy_is_done_by_the_service(name: str, request: pytest.FixtureRequest) -> None:
    store = made(request.getfixturevalue(name), name)
    values = {f"a/{at}": bytes([at]) * (at * 1000) for at in range(20)}
    store.set_values(values.items())
    for key in values:
        store.copy(key, f"b/{key}")
    refused(StoreError, "none", lambda: store.copy("none", "b/none"))
    found = {key: bytes(store.get(key) or b"") for key in store.list()}
    assert found == values | {f"b/{key}": value for key, value in values.items()}
    store.set("a/1", b"changed")
    assert store.get("b/a/1") == values["a/1"]
