"""Large stores: a check takes little memory, and few requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from _conformance import contents
from _fault_server import FaultServer
from _recording import heard
from _things import case

import xzarr3
from xzarr3 import LocalStore, MemoryStore, Store
from xzarr3.stores import Key

NUMBER = 250_000
LIMIT = 400 * NUMBER  # bytes


KEYS = {
    "whole": "a/c/{}/0", "holes": "a/c/{}/0", "outside": "a/c/{}/7", "foreign": "a/notes-{}.txt",
    "temporary": "a/c/{}.partial", "orphans": "lost-{}/c/0",
}  # fmt: skip


class Synthetic(Store):
    """Holds the documents of an array, and lists as many keys as it is asked for, of one of the ``KINDS``."""

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


def children(*kinds: str) -> None:
    """Check a store of each kind in a fork of its own, and print what it found and what memory it took."""
    for kind in kinds:
        child = os.fork()
        if not child:
            print(json.dumps(checked(kind)), flush=True)  # noqa: T201
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, kind


def memory(field: str) -> int:
    """Bytes of memory of this process: a field of its status."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024


def checked(kind: str) -> dict[str, Any]:
    before = memory("VmRSS")
    report = xzarr3.check(Synthetic(kind, NUMBER))
    counts: Counter[str] = Counter()
    for finding in report.findings:
        counts[finding.code] += finding.count
    return {
        "counts": counts, "read": report.arrays["a"].read, "findings": len(report.findings),
        "lines": len(str(report).splitlines()),
        "memory": memory("VmHWM") - before,  # Not ru_maxrss: it counts the process that was forked.
    }  # fmt: skip


KINDS: dict[str, tuple[str, ...]] = {
    "whole": (), "holes": ("chunks-missing",), "outside": ("chunks-missing", "chunk-outside"),
    "foreign": ("chunks-missing", "key-foreign"), "temporary": ("chunks-missing", "key-temporary"),
    "orphans": ("chunks-missing", "chunks-orphan"),
}  # fmt: skip
"""What a check of the keys of each kind counts, of each as many as there are keys."""


@pytest.mark.slow
def test_keys_take_400_bytes_each_at_most() -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    program = f"import sys; sys.path[:0] = {paths!r}; import test_large; test_large.children(*sys.argv[1:])"
    command = [sys.executable, "-c", program, *KINDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    for (kind, expected), line in zip(KINDS.items(), done.stdout.splitlines(), strict=True):
        with case(kind):
            found = json.loads(line)
            assert found["counts"] == dict.fromkeys(expected, NUMBER)
            assert found["read"] == (8 if kind in ("whole", "holes") else 0)
            assert found["findings"] <= 110
            assert found["lines"] <= 40
            assert found["memory"] < LIMIT


def test_memory_of_a_check_is_bounded_by_the_option(tmp_path: Path) -> None:
    layout = {"shape": (64, 512, 256), "chunks": (1, 512, 256), "shards": (32, 512, 256), "dtype": "f8"}
    array = xzarr3.create_array(tmp_path / "a", **layout, compressors=None, fill_value=-1)
    for row in range(0, 64, 32):
        array[row : row + 32] = 1
    tracemalloc.start()
    try:
        with xzarr3.set_options(memory_limit="8 MiB"):
            report = xzarr3.check(array.store, decode="all", threads=16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.findings == ()
    assert peak < 10 * 2**20


def test_chunks_that_a_check_reads_at_a_time_fit_into_the_option() -> None:
    class Watched(MemoryStore):
        under_way = most = 0

        def get(self, key: str, *arguments: Any) -> Any:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            sleep(0.002)
            self.under_way -= 1
            return super().get(key, *arguments)

    store = Watched()
    xzarr3.create_array(store, data=np.ones((40, 1000), "i1"), chunks=(1, 1000), compressors=None)
    with xzarr3.set_options(memory_limit=4000):
        assert xzarr3.check(store, decode="all", threads=8).arrays[""].read == 40
    assert store.most <= 2


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
