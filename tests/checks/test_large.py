"""Large stores: a check takes little memory, and few requests."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _conformance import contents
from _fault_server import FaultServer
from _recording import heard
from _things import measured

import xzarr3
from xzarr3 import LocalStore, MemoryStore, Store
from xzarr3.stores import Key

NUMBER = 20_000
KEYS = {
    "whole": "a/c/{}/0", "holes": "a/c/{}/0", "outside": "a/c/{}/7", "foreign": "a/notes-{}.txt",
    "temporary": "a/c/{}.partial", "orphans": "lost-{}/c/0",
}  # fmt: skip


class Synthetic(Store):
    """Holds the documents of an array, and lists as many keys as it is asked for, of a kind in ``KEYS``."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(read_only=True)
        self.kind, self.number = kind, number
        held = MemoryStore()
        root = xzarr3.create_group(held)
        length = 2 * number if kind == "holes" else number
        root.create_array("a", shape=(length, 4), chunks=(1, 4), dtype="int16", compressors=None)
        self.documents = {key: bytes(held.get(key) or b"") for key in held.list()}
        self.value = np.ones(4, "int16").tobytes()

    def get(self, key: str, byte_range: Any = None) -> Any:
        if key in self.documents:
            return self.documents[key]
        return self.value if key.startswith("a/c/") else None

    def list_dir(self, prefix: str) -> tuple[set[str], set[str]]:
        return ({"zarr.json"}, {"a/"}) if not prefix else ({"a/zarr.json"}, {"a/c/"})

    def list(self, prefix: str = "") -> Iterator[str]:
        yield from (Key(key, len(value)) for key, value in self.documents.items())
        for at in range(0, 2 * self.number, 2) if self.kind == "holes" else range(self.number):
            yield Key(KEYS[self.kind].format(at), 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("whole", []), ("holes", ["chunks-missing"]), ("outside", ["chunk-outside", "chunks-missing"]),
        ("foreign", ["chunks-missing", "key-foreign"]), ("temporary", ["chunks-missing", "key-temporary"]),
        ("orphans", ["chunks-missing", "chunks-orphan"]),
    ],
)  # fmt: skip
def test_keys_take_400_bytes_each_at_most(kind: str, codes: list[str]) -> None:
    """Of each code, as many are counted as there are keys."""
    with measured() as peak:
        report = xzarr3.check(Synthetic(kind, NUMBER))
    counts: Counter[str] = Counter()
    for finding in report.findings:
        counts[finding.code] += finding.count
    assert counts == dict.fromkeys(codes, NUMBER)
    assert report.arrays["a"].read == (8 if kind in ("whole", "holes") else 0)
    assert (len(report.findings) <= 110, len(str(report).splitlines()) <= 40) == (True, True)
    assert peak[0] < 400 * NUMBER


@pytest.mark.parametrize(("shards", "threads"), [(None, 8), ((32, 512, 256), 16)])
def test_memory_of_a_check_is_bounded_by_the_option(shards: Any, threads: int, tmp_path: Path) -> None:
    layout = {"shape": (64, 512, 256), "chunks": (1, 512, 256), "shards": shards, "dtype": "f8"}
    array = xzarr3.create_array(tmp_path / "a", **layout, compressors=None, fill_value=-1)
    for row in range(0, 64, 32):
        array[row : row + 32] = 1
    with xzarr3.set_options(memory_limit="8 MiB"), measured() as peak:
        assert xzarr3.check(array.store, decode="all", threads=threads).findings == ()
    assert peak[0] < 10 * 2**20


def served(server: FaultServer, number: int) -> tuple[str, dict[str, bytes]]:
    """The place on a server of a group with an array of so many chunks, and its keys and values."""
    held = MemoryStore()
    xzarr3.create_group(held).create_array("a", data=np.arange(1, number + 1), chunks=1)
    xzarr3.consolidate_metadata(held)
    place, values = "bucket/a.zarr", contents(held)
    server.put_all({f"/{place}/{key}": value for key, value in values.items()})
    return place, values


@pytest.mark.parametrize("number", [5, 2500])
def test_requests_to_s3(fault_server: FaultServer, number: int) -> None:
    """One list of a thousand keys each, the documents once, and the sampled chunks."""
    place, values = served(fault_server, number)
    fault_server.clear_log()
    report = xzarr3.check(f"s3://{place}", storage_options=fault_server.storage_options)
    assert report.findings == ()
    size = sum(len(value) for key, value in values.items() if "/c/" in key)
    assert (report.arrays["a"].stored, report.arrays["a"].nbytes_stored) == (number, size)
    assert len(fault_server.log()) <= 25 + number // 1000


def test_sample_of_a_large_shard_moves_its_index_and_few_inner_chunks(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path)
    data = np.random.default_rng(0).integers(0, 255, 2**22, dtype="uint8")
    xzarr3.create_array(inner, data=data, chunks=2**12, shards=2**22, compressors=None)
    for decode, least, most in (("sample", 8 * 2**12, 9 * 2**12), ("all", 2**22, 2**22)):
        with heard() as requests:
            assert xzarr3.check(inner, decode=decode).findings == ()
        moved = sum(request.size for request in requests if request.key == "c/0")
        assert least <= moved <= most + 1024 * 16 + 4  # the index


def test_dataset_on_a_web_server_is_checked_by_its_consolidated_metadata(fault_server: FaultServer) -> None:
    place, _ = served(fault_server, 40)
    url = f"{fault_server.url}/{place}"
    report = xzarr3.check(url)
    assert [finding.code for finding in report.findings] == ["keys-unlisted"]
    assert (report.arrays["a"].read, report.arrays["a"].stored) == (8, None)
    fault_server.put(f"/{place}/a/c/7", b"\xff damaged")
    found = xzarr3.check(url, decode="all").findings
    codes = [(finding.code, finding.key) for finding in found]
    assert codes == [("chunk-damaged", "a/c/7"), ("keys-unlisted", "")]
