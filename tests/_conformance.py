"""What every store must do: the abstract store interface of Zarr v3, and what xzarr3 asks beyond it.

A test module runs it over a store by deriving a class from :class:`StoreConformance`.
"""

from __future__ import annotations

import itertools
import pickle
import random
import sys
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from _things import Thing
from _unprivileged import run_child, run_unprivileged

from xzarr3 import InvalidKeyError, InvalidRangeError, ReadOnlyError, Store, StoreError, Xzarr3Error
from xzarr3.stores.base import OversizedError, Scratch

VALUE = b"0123456789"

INVALID_KEYS: list[Any] = [
    "",
    "/",
    "a/",
    "/a",
    "//a",
    "a//b",
    ".",
    "..",
    "./a",
    "../a",
    "a/.",
    "a/..",
    "a/./b",
    "a/../b",
    "a/../../outside/planted",
    "../canary.txt",
    "../outside/planted",
    "../../../../../../../../../../tmp/xzarr3-planted",
    "/tmp/xzarr3-planted",
    "a\0b",
    "\0",
    "a/\0",
    None,
    7,
    b"a",
    ("a",),
    Path("a"),
]

INVALID_PREFIXES: list[Any] = [
    "a",
    "/",
    "//",
    "/a/",
    "a//",
    "../",
    "a/../",
    "a/../../outside/",
    "./",
    "a/./",
    "a\0/",
    None,
    b"a/",
]

ODD_KEYS = [
    "b\N{LATIN SMALL LETTER A WITH RING ABOVE}d/\N{LATIN SMALL LETTER O WITH STROKE}",
    "\u6c23\u6e29/\u5e73\u5747",
    "\N{SNOWFLAKE}\N{SUN WITH FACE}",
    "e\u0301",  # The same letter, composed and not: two keys.
    "\u00e9",
    "with space/ leading and trailing ",
    "line\nbreak",
    "tab\tand\rreturn",
    ".hidden/.file",
    "...",
    "....",
    "..a/b..",
    "a.b/.c",
    "%2e%2e%2f",
    "a%00b",
    "~",
    "~root/x",
    "-rf",
    "$HOME/`id`",
    "*?[a]{b}",
    "C:",
    "back\\slash\\..\\x",
    "quote\"'",
    "\u202eright to left",
    "\ufeffmark",
    "x" * 255,
    "/".join(["deep"] * 60),
]


def read_back(store: Store, key: str) -> list[bytes | None]:
    """The value of ``key``, by every way there is to read it."""
    reader = store.reader().open(key)
    opened = None
    if reader is not None:
        with reader:
            opened = bytes(reader.read(0))
            assert reader.size in (None, len(opened))
    loaded = store.reader().get(key)
    (part,) = store.get_partial_values([(key, (0, None))])
    got = store.get(key)
    assert store.exists(key) is (got is not None)
    return [None if value is None else bytes(value) for value in (got, loaded, part)] + [opened]


def contents(store: Store) -> dict[str, bytes]:
    """All keys and values."""
    found = {key: store.get(key) for key in store.list()}
    return {key: b"missing!" if value is None else bytes(value) for key, value in found.items()}


def run_threads(*jobs: Callable[[], object]) -> None:
    """Run jobs at the same time; the first error of one is raised."""
    barrier = threading.Barrier(len(jobs))

    def start(job: Callable[[], object]) -> None:
        barrier.wait()
        job()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(jobs)) as pool:
            for future in [pool.submit(start, job) for job in jobs]:
                future.result(timeout=120)
    finally:
        sys.setswitchinterval(before)


class StoreConformance:
    """The tests. Subclasses say how to make the store, and what it promises."""

    nests = True
    """Whether there may be a value under ``a`` and another under ``a/b``."""

    holds_versions = True
    """Whether an opened value stays the version it was."""

    stamps = True
    """Whether stamps are equal while nothing changes."""

    replaces = True
    """Whether a value is replaced in one step, so that nobody sees it half or missing."""

    travels = "same"
    """What another process gets by pickling: the ``same`` store, a read-only ``copy`` or a ``closed`` one."""

    odd_keys = ODD_KEYS
    """Keys that it takes."""

    bounds_keys = False
    """Whether it refuses keys of many hundreds of names."""

    forks = True
    """Whether a forked child can use a store; else what needs another process runs in this one."""

    ranges: int | None = None
    """How many ranges of bytes are tried, where there are many; all if not given."""

    def some(self, cases: Iterable[Any]) -> list[Any]:
        """The cases of a test that are tried."""
        found = list(cases)
        return found if self.ranges is None else random.Random(1).sample(found, min(self.ranges, len(found)))

    @abstractmethod
    def make(self, base: Path) -> Store:
        """An empty store; if it needs a place, in the directory ``store`` below ``base``."""

    @abstractmethod
    def read_only(self, store: Store) -> Store:
        """A store that holds the same and refuses writes."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make(tmp_path)

    def test_it_can_do_everything(self, store: Store) -> None:
        assert (store.readable, store.writeable, store.erasable, store.listable) == (True,) * 4

    # Values

    def test_absent_key_has_no_value(self, store: Store) -> None:
        assert read_back(store, "a/b") == [None] * 4
        store.set("a/b/c", VALUE)
        assert read_back(store, "a/x") == [None] * 4
        assert read_back(store, "a") == [None] * 4, "a prefix is no key"
        assert read_back(store, "a/b") == [None] * 4
        assert read_back(store, "a/b/c/d") == [None] * 4, "nor is a key a prefix"
        assert store.get("a/b", (0, 4)) is None
        assert store.get("a/b/c/d", (-1, None)) is None

    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"\0",
            VALUE,
            bytearray(VALUE),
            memoryview(VALUE)[2:7],
            memoryview(np.arange(5, dtype="float64")),
            memoryview(np.arange(6, dtype="int16").reshape(2, 3)),
            memoryview(np.arange(6, dtype="int16").reshape(2, 3).T),
            memoryview(np.arange(5, dtype=">f4")),
            memoryview(np.zeros((0, 3))),
            memoryview(VALUE)[::-3],
            bytes(range(256)) * 9000,
        ],
        ids=[
            *(
                "empty",
                "nul",
                "bytes",
                "bytearray",
                "view",
                "floats",
                "matrix",
                "transposed",
                "foreign order",
            ),
            *("no elements", "steps", "large"),
        ],
    )
    def test_value_comes_back(self, store: Store, value: bytes | bytearray | memoryview) -> None:
        store.set("a/b", value)
        expected = value.tobytes() if isinstance(value, memoryview) else bytes(value)
        assert read_back(store, "a/b") == [expected] * 4

    def test_value_is_replaced_whole(self, store: Store) -> None:
        for value in (b"x" * 100, b"short", b"", b"y" * 5000):
            store.set("key", value)
            assert read_back(store, "key") == [value] * 4
        assert list(store.list()) == ["key"]

    def test_stored_value_is_no_alias_of_what_was_given(self, store: Store) -> None:
        given = bytearray(VALUE)
        store.set("key", given)
        given[:] = b"##########"
        assert read_back(store, "key") == [VALUE] * 4

    @pytest.mark.parametrize("value", [None, 5, "text", [1, 2], {}, 1.5, Thing()], ids=repr)
    def test_what_is_no_value_is_refused(self, store: Store, value: Any) -> None:
        store.set("key", VALUE)
        for write in (
            lambda: store.set("key", value),
            lambda: store.set("new/key", value),
            lambda: store.set_partial_values([("key", 0, b"x"), ("key", 1, value)]),
        ):
            with pytest.raises(StoreError, match="key"):
                write()
        assert contents(store) == {"key": VALUE}

    def test_what_was_read_does_not_change(self, store: Store) -> None:
        store.set("key", VALUE)
        held = [store.get("key"), store.get("key", (2, 3)), *store.get_partial_values([("key", (0, None))])]
        store.set("key", b"##########")
        store.set_partial_values([("key", 0, b"+++")])
        store.erase("key")
        assert [bytes(value or b"") for value in held] == [VALUE, b"234", VALUE]

    def test_keys_are_independent(self, store: Store) -> None:
        keys = [f"{a}/{b}" for a, b in itertools.product("abc", range(20))]
        random.Random(3).shuffle(keys)
        for key in keys:
            store.set(key, key.encode())
        for key in keys:
            assert read_back(store, key) == [key.encode()] * 4
        assert sorted(store.list()) == sorted(keys)

    def test_case_matters(self, store: Store) -> None:
        store.set("foo", b"a")
        store.set("FOO", b"b")
        assert contents(store) == {"foo": b"a", "FOO": b"b"}

    def test_value_beside_prefix_of_the_same_name(self, store: Store) -> None:
        store.set("a/b", VALUE)
        if self.nests:
            store.set("a", b"above")
            assert contents(store) == {"a": b"above", "a/b": VALUE}
        else:
            with pytest.raises(Xzarr3Error):
                store.set("a", b"above")
            with pytest.raises(Xzarr3Error):
                store.set("a/b/c", b"below")
            assert contents(store) == {"a/b": VALUE}
        store.erase("a")
        assert read_back(store, "a/b") == [VALUE] * 4

    # Parts of values

    @pytest.mark.parametrize("value", [VALUE, b"", b"1"], ids=["ten", "empty", "one"])
    def test_byte_ranges(self, store: Store, value: bytes) -> None:
        store.set("a/b", value)
        size = len(value)
        cases = itertools.product(range(-size - 3, size + 4), [None, *range(size + 4), 10**6])
        for start, length in self.some(cases):
            first = start if start >= 0 else max(size + start, 0)
            expected = value[first:] if length is None else value[first : first + length]
            where = f"range {start, length} of {size} bytes"
            got = store.get("a/b", (start, length))
            assert got is not None, where
            assert bytes(got) == expected, where
            (part,) = store.get_partial_values([("a/b", (start, length))])
            assert part is not None, where
            assert bytes(part) == expected, where
            reader = store.reader().open("a/b")
            assert reader is not None
            with reader:
                assert bytes(reader.read(start, length)) == expected, where

    def test_ranges_far_beyond_the_end(self, store: Store) -> None:
        store.set("a/b", VALUE)
        for byte_range in ((2**70, 5), (2**70, None), (10, 2**70), (-(2**70), 0)):
            got = store.get("a/b", byte_range)
            assert got is not None
            assert bytes(got) == b""
        got = store.get("a/b", (-(2**70), 2**70))
        assert got is not None
        assert bytes(got) == VALUE

    @pytest.mark.parametrize("start", [0, 3, 100, -2])
    def test_negative_lengths_are_refused(self, store: Store, start: int) -> None:
        store.set("a/b", VALUE)
        reader = store.reader().open("a/b")
        assert reader is not None
        with reader:
            for read in (
                lambda: store.get("a/b", (start, -1)),
                lambda: store.get_partial_values([("a/b", (0, 1)), ("a/b", (start, -5))]),
                lambda: reader.read(start, -1),
            ):
                with pytest.raises(InvalidRangeError, match="-"):
                    read()

    def test_partial_values_come_in_order(self, store: Store) -> None:
        store.set("a", VALUE)
        store.set("b/c", b"abcdef")
        wanted = [("b/c", (1, 2)), ("a", (-3, None)), ("no", (0, 1)), ("a", (0, 1)), ("b/c", (1, 2))]
        found = store.get_partial_values(wanted)
        assert [None if part is None else bytes(part) for part in found] == [
            b"bc",
            b"789",
            None,
            b"0",
            b"bc",
        ]
        assert store.get_partial_values([]) == []
        assert [bytes(part or b"") for part in store.get_partial_values(iter([("a", (2, 3))]))] == [b"234"]

    def test_parts_are_overwritten(self, store: Store) -> None:
        store.set("a", VALUE)
        store.set("b", b"xyz")
        store.set_partial_values([("a", 7, b"GHI"), ("b", 0, b"X"), ("a", 0, b"AB"), ("a", 2, b"C")])
        assert contents(store) == {"a": b"ABC3456GHI", "b": b"Xyz"}
        store.set_partial_values([("a", 10, b"more"), ("new", 0, b"start"), ("b", 1, bytearray(b"Y"))])
        assert contents(store) == {"a": b"ABC3456GHImore", "b": b"XYz", "new": b"start"}
        store.set_partial_values([("a", 0, b"0123"), ("a", 4, b"4567"), ("a", 14, b"|"), ("a", 15, b"|")])
        assert read_back(store, "a") == [b"01234567HImore||"] * 4
        store.set_partial_values([])
        assert sorted(store.list()) == ["a", "b", "new"]

    def test_parts_of_no_bytes_overlap_nothing(self, store: Store) -> None:
        store.set("a", VALUE)
        store.set_partial_values(
            [("a", 3, b""), ("a", 3, b"DEF"), ("a", 4, b""), ("a", 3, b""), ("a", 10, b"")]
        )
        assert contents(store) == {"a": b"012DEF6789"}
        store.set_partial_values([("new", 0, b"")])
        assert contents(store) == {"a": b"012DEF6789", "new": b""}

    def test_parts_are_bytes_whatever_holds_them(self, store: Store) -> None:
        """The length of a view may be that of its first dimension."""
        store.set("a", bytes(24))
        whole = np.arange(1, 4, dtype="<u8")
        store.set_partial_values(
            [("a", 16, memoryview(whole[2:])), ("a", np.int64(0), memoryview(whole[:2].reshape(1, 2)))]
        )
        assert read_back(store, "a") == [whole.tobytes()] * 4
        with pytest.raises(InvalidRangeError, match="overlap"):
            store.set_partial_values([("a", 0, memoryview(whole)), ("a", 8, b"x")])
        assert read_back(store, "a") == [whole.tobytes()] * 4

    def test_parts_may_be_generated(self, store: Store) -> None:
        store.set("a", b"." * 100)
        store.set_partial_values(("a", at, bytes([65 + at // 10])) for at in range(90, -1, -10))
        assert store.get("a") == b"".join(bytes([65 + at]) + b"." * 9 for at in range(10))

    def test_parts_that_threads_store_are_not_lost(self, store: Store) -> None:
        store.set("a", bytes(80))

        def work(at: int) -> None:
            for place in range(at, 80, 8):
                store.set_partial_values([("a", place, b"x")])

        run_threads(*(lambda at=at: work(at) for at in range(8)))  # type: ignore[misc]
        assert read_back(store, "a") == [b"x" * 80] * 4

    @pytest.mark.parametrize("key", INVALID_KEYS, ids=repr)
    def test_parts_with_one_invalid_key_are_refused_and_nothing_is_stored(
        self, store: Store, key: Any
    ) -> None:
        store.set("a", VALUE)
        with pytest.raises(InvalidKeyError):
            store.set_partial_values([("a", 0, b"xx"), (key, 0, b"x"), ("b", 0, b"x")])
        assert contents(store) == {"a": VALUE}

    @pytest.mark.parametrize(
        "parts",
        [
            [("a", 11, b"")],
            [("a", 2**70, b"x")],
            [("a", 0, b"xx"), ("a", 1, b""), ("a", 1, b"y")],
            [("b", 0, b"XX"), ("a", 0.0, b"x")],
            [("b", 0, b"XX"), ("a", None, b"x")],
            [("b", 0, b"XX"), ("a", "0", b"x")],
            [("a", 0, b"xxx"), ("a", 2, b"yy")],
            [("a", 2, b"yy"), ("a", 0, b"xxx")],
            [("a", 0, b"xx"), ("a", 0, b"xx")],
            [("a", 0, b"xxxxxxxx"), ("a", 3, b"y"), ("a", 9, b"z")],
            [("a", 11, b"beyond the end")],
            [("new", 1, b"beyond the end")],
            [("a", -1, b"x")],
            [("b", 0, b"XX"), ("a", 1, b"yy"), ("a", 2, b"yy")],
            [("a", 1, b"yy"), ("a", 2, b"yy"), ("b", 0, b"XX")],
        ],
    )
    def test_bad_parts_are_refused_and_nothing_is_stored(
        self, store: Store, parts: list[tuple[str, int, bytes]]
    ) -> None:
        store.set("a", VALUE)
        store.set("b", b"bb")
        with pytest.raises(InvalidRangeError, match=r"key '(a|new)'"):
            store.set_partial_values(parts)
        with pytest.raises(ValueError, match=r"accepted|overlap"):
            store.set_partial_values(iter(parts))
        assert contents(store) == {"a": VALUE, "b": b"bb"}

    def test_open_value_reads_parts_in_any_order(self, store: Store) -> None:
        value = random.Random(5).randbytes(300_000)
        store.set("a", value)
        reader = store.reader().open("a")
        assert reader is not None
        with reader:
            for start, length in [(299_990, 10), (0, 5), (-7, None), (100_000, 150_000), (0, None)]:
                first = start % len(value)
                assert bytes(reader.read(start, length)) == value[first:][:length]

    def test_open_value_reads_into_given_memory(self, store: Store) -> None:
        store.set("a", VALUE)
        reader = store.reader().open("a")
        assert reader is not None
        with reader:
            for start, length in itertools.product(range(13), range(14)):
                out = bytearray(b"." * (length + 2))
                count = reader.read_into(start, memoryview(out)[1:-1])
                expected = VALUE[start : start + length]
                assert count == len(expected)
                assert out == b"." + expected + b"." * (length - count) + b"."

    def test_open_value_is_one_version(self, store: Store) -> None:
        if not self.holds_versions:
            pytest.skip("this store does not promise it")
        store.set("a", b"old " * 1000)
        reader = store.reader().open("a")
        assert reader is not None
        with reader:
            head = bytes(reader.read(0, 400))
            store.set("a", b"new!" * 2000)
            tail = bytes(reader.read(400))
            assert head + tail == b"old " * 1000
            store.erase("a")
            assert bytes(reader.read(-4)) == b"old "
            assert reader.size == 4000
        assert store.get("a") is None

    def test_closing_twice_is_harmless(self, store: Store, tmp_path: Path) -> None:
        store.set("a", VALUE)
        reader = store.reader().open("a")
        assert reader is not None
        reader.close()
        bystander = tmp_path / "bystander"
        bystander.write_bytes(b"b")
        with bystander.open("rb") as other:  # It may get the number of the descriptor that was closed.
            reader.close()
            assert other.read() == b"b"

    def test_loader_reads_values_of_changing_size(self, store: Store) -> None:
        values = {f"k{size}": bytes([size % 251]) * size for size in (10, 0, 300_000, 3, 70_000, 1)}
        for key, value in values.items():
            store.set(key, value)
        load, again = store.reader().get, store.reader(Scratch(), 10**6).get
        kept = [load(key) for key in values]  # Each has memory of its own.
        assert [bytes(value or b"") for value in kept] == list(values.values())
        for key in values:
            assert bytes(again(key) or b"") == values[key]
        assert [bytes(value or b"") for value in kept] == list(values.values())
        for key in [*values, *reversed(values)]:
            loaded = load(key)
            assert loaded is not None
            assert bytes(loaded) == values[key]
            assert load(f"not-{key}") is None
        store.set("k3", b"changed")
        loaded = load("k3")
        assert loaded is not None
        assert bytes(loaded) == b"changed"

    def test_scratch_loader_reads_what_is_within_its_limit(self, store: Store) -> None:
        store.set("a", VALUE)
        store.set("b", b"x" * 5000)
        load = store.reader(Scratch(), 100).get
        assert bytes(load("a") or b"") == VALUE
        assert load("not") is None
        try:
            loaded = load("b")
        except OversizedError as error:
            assert str(error) == "found 5000 bytes, at most 100 bytes expected"  # noqa: PT017
        else:  # The store cannot tell before it has read.
            assert bytes(loaded or b"") == b"x" * 5000
        assert bytes(load("a") or b"") == VALUE

    def test_range_loader_reads_parts(self, store: Store) -> None:
        value = random.Random(7).randbytes(400_000)
        store.set("a", value)
        store.set("e", b"")
        load = store.reader().get_ranges
        for starts, lengths in (
            ([0], [400_000]),
            ([5, 390_000, 5], [3, 10_000, 3]),
            ([399_999, 400_000, 500_000, 2**80], [10, 10, 10, 10]),
            ([0, 10], [0, 0]),
            ([], []),
        ):
            found = load("a", starts, lengths)
            assert found is not None
            size, parts = found
            assert size in (None, 400_000)
            expected = [value[start : start + length] for start, length in zip(starts, lengths, strict=True)]
            assert [bytes(part) for part in parts] == expected
        assert load("not", [0], [1]) is None
        empty = load("e", [0, 3], [4, 4])
        assert empty is not None
        assert [bytes(part) for part in empty[1]] == [b"", b""]

    def test_into_loader_reads_into_given_memory(self, store: Store) -> None:
        store.set("a", VALUE)
        load = store.reader().get_into
        for start, length in itertools.product(range(13), range(14)):
            out = bytearray(b"." * (length + 2))
            found = load("a", start, memoryview(out)[1:-1])
            expected = VALUE[start : start + length]
            assert found is not None
            assert found[0] in (None, len(VALUE))
            goes_on = found[0] is None and start + length < len(VALUE)
            assert found[1] == len(expected) + goes_on
            assert out == b"." + expected + b"." * (length - len(expected)) + b"."
        assert load("not", 0, memoryview(bytearray(3))) is None

    def test_open_value_reads_several_parts(self, store: Store) -> None:
        value = random.Random(6).randbytes(100_000)
        store.set("a", value)
        reader = store.reader().open("a")
        assert reader is not None
        with reader:
            starts, lengths = [7, 99_990, 0, 100_001, 2**70], [5, 20, 100_000, 1, 1]
            expected = [value[start : start + length] for start, length in zip(starts, lengths, strict=True)]
            assert [bytes(part) for part in reader.read_ranges(starts, lengths)] == expected
            assert reader.read_ranges([], []) == []

    def test_versions_of_readers_differ_when_values_do(self, store: Store) -> None:
        found: list[object] = []
        for value in (b"old", b"new", b"old", b"older"):
            store.set("a", value)
            for _ in range(2):
                reader = store.reader().open("a")
                assert reader is not None
                with reader:
                    if reader.version is not None:
                        found.append((value, reader.version))
        for one, other in itertools.combinations(found, 2):
            assert one[1] != other[1] or one[0] == other[0]  # type: ignore[index]

    def test_writer_stores_pieces(self, store: Store) -> None:
        if not store.writeable:
            pytest.skip("this store cannot be written")
        pieces = {
            "a/b": [b"one", memoryview(b"-two-"), bytearray(b"three")],
            "a/c": [b""],
            "d": [b"x" * 100_000, b"", b"y"],
            "a/many": [bytes([at % 256]) for at in range(2000)],
            "none": [],
        }
        with store.writer() as writer:
            for key, value in pieces.items():
                writer.set(key, value)
            writer.set("a/b", [b"again"])
            again = bytearray(b"mine")
            writer.set("kept", [again])
            again[:] = b"gone"
            if store.erasable:
                store.erase("a/c")
                writer.set("a/c", [b"back"])
        expected = {key: b"".join(value) for key, value in pieces.items()}
        expected |= {"a/b": b"again", "kept": b"mine"} | ({"a/c": b"back"} if store.erasable else {})
        assert contents(store) == expected

    def test_loaders_of_several_threads_do_not_mix(self, store: Store) -> None:
        for at in range(8):
            store.set(f"c/{at}", bytes([at]) * 50_000)

        def check(at: int) -> None:
            load = store.reader(Scratch(), 10**6).get
            for _ in range(60):
                value = load(f"c/{at}")
                time.sleep(0)
                assert value is not None
                assert bytes(value) == bytes([at]) * 50_000

        run_threads(*(lambda at=at: check(at) for at in range(8)))  # type: ignore[misc]

    # Erasing

    def test_erase(self, store: Store) -> None:
        for key in ("a/b", "a/c", "ab/c", "d"):
            store.set(key, key.encode())
        store.erase("a/b")
        store.erase("a/b")
        store.erase("never/was")
        store.erase("d/e")
        store.erase("a")
        assert contents(store) == {"a/c": b"a/c", "ab/c": b"ab/c", "d": b"d"}
        assert read_back(store, "a/b") == [None] * 4
        store.erase("a/c")
        assert store.list_dir("") == ({"d"}, {"ab/"})
        assert store.list_dir("a/") == (set(), set())
        store.set("a/b", b"again")
        assert read_back(store, "a/b") == [b"again"] * 4

    def test_erase_values(self, store: Store) -> None:
        for key in ("a/b", "a/c", "b", "c/d/e"):
            store.set(key, VALUE)
        store.erase_values(iter(["a/b", "no", "c/d/e", "a/b"]))
        assert sorted(store.list()) == ["a/c", "b"]
        store.erase_values([])
        assert sorted(store.list()) == ["a/c", "b"]
        assert store.list_dir("") == ({"b"}, {"a/"})

    def test_erase_prefix(self, store: Store) -> None:
        for key in ("a/b", "a/c/d", "a.b/c", "ab/c", "b/a/x", "e"):
            store.set(key, VALUE)
        store.erase_prefix("a/")
        assert sorted(store.list()) == ["a.b/c", "ab/c", "b/a/x", "e"]
        store.erase_prefix("a/")
        store.erase_prefix("no/such/")
        assert len(list(store.list())) == 4
        store.erase_prefix("b/a/")
        assert store.list_dir("") == ({"e"}, {"a.b/", "ab/"})

    def test_sweeping_leaves_what_is_stored(self, store: Store) -> None:
        store.set("a/b", VALUE)
        for prefix in ("", "a/", "no/", "a/b/"):
            store.sweep(prefix)
        assert contents(store) == {"a/b": VALUE}

    def test_empty_prefix_never_erases_everything(self, store: Store) -> None:
        store.set("a/b", VALUE)
        with pytest.raises(InvalidKeyError):
            store.erase_prefix("")
        assert contents(store) == {"a/b": VALUE}

    # Listing

    def test_lists_of_the_specification(self, store: Store) -> None:
        for key in ("a/b", "a/c/d", "e/f/g"):
            store.set(key, VALUE)
        assert sorted(store.list()) == ["a/b", "a/c/d", "e/f/g"]
        assert sorted(store.list_prefix("a/")) == ["a/b", "a/c/d"]
        assert sorted(store.list_prefix("")) == ["a/b", "a/c/d", "e/f/g"]
        assert sorted(store.list_prefix("e/f/")) == ["e/f/g"]
        assert list(store.list_prefix("b/")) == []
        assert store.list_dir("a/") == ({"a/b"}, {"a/c/"})
        assert store.list_dir("e/") == (set(), {"e/f/"})
        assert store.list_dir("b/") == (set(), set())

    def test_list_dir_of_the_specification(self, store: Store) -> None:
        for key in ("a/b", "a/c", "a/d/e", "a/f/g"):
            store.set(key, VALUE)
        assert store.list_dir("a/") == ({"a/b", "a/c"}, {"a/d/", "a/f/"})
        assert store.list_dir("b/") == (set(), set())
        assert store.list_dir("") == (set(), {"a/"})
        assert store.list_dir("a/d/") == ({"a/d/e"}, set())
        assert store.list_dir("a/b/") == (set(), set()), "a key is no prefix"

    def test_lists_of_an_empty_store(self, store: Store) -> None:
        assert list(store.list()) == []
        assert list(store.list_prefix("a/")) == []
        assert store.list_dir("") == (set(), set())
        store.set("a/b/c", VALUE)
        store.erase("a/b/c")
        assert list(store.list()) == []
        assert store.list_dir("") == (set(), set()), "a prefix without keys is none"

    def test_prefixes_are_not_beginnings_of_names(self, store: Store) -> None:
        for key in ("ab/c", "abc", "a/b"):
            store.set(key, VALUE)
        assert list(store.list_prefix("a/")) == ["a/b"]
        assert store.list_dir("a/") == ({"a/b"}, set())

    def test_listing_while_keys_come_and_go(self, store: Store) -> None:
        for at in range(60):
            store.set(f"{at % 7}/{at}", VALUE)
        seen = []
        for key in store.list():
            seen.append(key)
            store.erase(key)
            store.set(f"later/{len(seen)}", VALUE)
            assert len(seen) < 200, "listing chases its own tail"
        assert len(set(seen)) == len(seen)
        assert {f"{at % 7}/{at}" for at in range(60)} <= set(seen)

    # Keys

    def test_odd_keys_are_just_keys(self, store: Store) -> None:
        for key in self.odd_keys:
            store.set(key, key.encode())
        for key in self.odd_keys:
            assert read_back(store, key) == [key.encode()] * 4, ascii(key)
        assert sorted(store.list()) == sorted(self.odd_keys)
        assert store.list_dir("with space/") == ({"with space/ leading and trailing "}, set())
        store.erase_values(self.odd_keys)
        assert list(store.list()) == []

    def test_keys_of_many_names(self, store: Store) -> None:
        """More than there may be calls within calls."""
        if self.bounds_keys:
            pytest.skip("this store refuses so long keys")
        keys = ["/".join(["d"] * 1300), "/".join(["d"] * 1299) + "/e", "d/f"]
        for key in keys:
            store.set(key, VALUE)
        assert sorted(store.list()) == sorted(keys)
        assert read_back(store, keys[0]) == [VALUE] * 4
        store.erase_values(keys[:1])
        assert sorted(store.list_prefix("d/d/d/")) == keys[1:2]
        store.erase_prefix("d/d/")
        assert contents(store) == {"d/f": VALUE}
        assert store.list_dir("d/") == ({"d/f"}, set())

    @pytest.mark.parametrize("key", ["\ud800", "a/\udc80b", "x" * 5000, "d/" * 3000 + "x"], ids=ascii)
    def test_key_that_a_store_may_refuse(self, store: Store, key: str) -> None:
        """Lone surrogates and endless names: stored like any other, or refused with our error."""
        store.set("other", VALUE)
        try:
            store.set(key, b"odd")
        except Xzarr3Error:
            expected = {"other": VALUE}
        else:
            expected = {"other": VALUE, key: b"odd"}
        assert contents(store) == expected
        for ask in (store.get, store.exists, store.getsize):
            try:
                answer = ask(key)
            except Xzarr3Error:
                continue
            assert bool(answer) is (key in expected)
            if hasattr(answer, "close"):
                answer.close()

    def test_every_method_refuses_invalid_keys(self) -> None:
        def refused(call: Callable[[], object]) -> bool:
            try:
                call()
            except InvalidKeyError:
                return True
            return False

        def work(base: Path) -> list[str]:
            store = self.make(base)
            store.set("a/b", VALUE)
            wrong = []
            for key in INVALID_KEYS:
                calls: dict[str, Callable[[], object]] = {
                    "get": lambda key=key: store.get(key),
                    "get range": lambda key=key: store.get(key, (0, 1)),
                    "exists": lambda key=key: store.exists(key),
                    "getsize": lambda key=key: store.getsize(key),
                    "get_partial_values": lambda key=key: store.get_partial_values([(key, (0, 1))]),
                    "set": lambda key=key: store.set(key, b"planted"),
                    "set_partial_values": lambda key=key: store.set_partial_values([(key, 0, b"planted")]),
                    "erase": lambda key=key: store.erase(key),
                    "erase_values": lambda key=key: store.erase_values([key]),
                }
                wrong += [f"{name}({key!r})" for name, call in calls.items() if not refused(call)]
            for prefix in INVALID_PREFIXES:
                calls = {
                    "list_prefix": lambda prefix=prefix: list(store.list_prefix(prefix)),
                    "list_dir": lambda prefix=prefix: store.list_dir(prefix),
                    "erase_prefix": lambda prefix=prefix: store.erase_prefix(prefix),
                    "sweep": lambda prefix=prefix: store.sweep(prefix),
                }
                wrong += [f"{name}({prefix!r})" for name, call in calls.items() if not refused(call)]
            assert contents(store) == {"a/b": VALUE}
            return wrong

        assert self.apart(work) == []

    def test_erasing_many_with_one_invalid_key_erases_nothing(self) -> None:
        def work(base: Path) -> dict[str, bytes]:
            store = self.make(base)
            store.set("a/b", VALUE)
            store.set("c", VALUE)
            with pytest.raises(InvalidKeyError):
                store.erase_values(["a/b", "../canary.txt", "c"])
            return contents(store)

        assert self.apart(work) == {"a/b": VALUE, "c": VALUE}

    def apart(self, work: Callable[[Path], Any]) -> Any:
        """What ``work`` returns in a child without the rights of root, and a directory of its own."""
        if self.forks:
            return run_unprivileged(work).checked()
        with tempfile.TemporaryDirectory() as directory:
            return work(Path(directory))

    # Read-only stores

    def test_read_only(self, store: Store) -> None:
        store.set("a/b", VALUE)
        guarded = self.read_only(store)
        assert guarded.read_only
        assert (guarded.readable, guarded.writeable, guarded.erasable, guarded.listable) == (
            *(True, False, False),
            True,
        )
        for write in (
            lambda: guarded.set("a/b", b"x"),
            lambda: guarded.set("new", b"x"),
            lambda: guarded.set_partial_values([("a/b", 0, b"x")]),
            lambda: guarded.set_partial_values([("a/b", 11, b"x")]),
            lambda: guarded.erase("a/b"),
            lambda: guarded.erase("absent"),
            lambda: guarded.erase_values(["a/b"]),
            lambda: guarded.erase_prefix("a/"),
        ):
            with pytest.raises(ReadOnlyError):
                write()
        assert read_back(guarded, "a/b") == [VALUE] * 4
        assert contents(guarded) == contents(store) == {"a/b": VALUE}
        assert store.read_only is False

    # Travelling

    def test_pickling_within_the_process(self, store: Store) -> None:
        store.set("a/b", VALUE)
        twin = pickle.loads(pickle.dumps(store))
        assert type(twin) is type(store)
        twin.set("c", b"by the twin")
        assert contents(store) == contents(twin) == {"a/b": VALUE, "c": b"by the twin"}
        assert (twin.__dask_tokenize__() == store.__dask_tokenize__()) is self.stamps
        assert twin.read_only is False
        guarded = pickle.loads(pickle.dumps(self.read_only(store)))
        assert guarded.read_only

    def test_pickling_to_another_process(self, store: Store) -> None:
        store.set("a/b", VALUE)
        data = pickle.dumps(store)

        def work() -> tuple[object, ...]:
            twin = pickle.loads(data)
            if self.travels == "closed":
                with pytest.raises(ReadOnlyError):
                    twin.set("a/b", b"written there")
                with pytest.raises(StoreError):
                    twin.get("a/b")
                return {"a/b": VALUE}, False, store.__dask_tokenize__()
            before = contents(twin)
            try:
                twin.set("a/b", b"written there")
            except ReadOnlyError:
                written = False
            else:
                written = True
            return before, written, twin.__dask_tokenize__()

        before, written, token = run_child(work).checked() if self.forks else work()
        assert before == {"a/b": VALUE}
        assert (token == store.__dask_tokenize__()) is self.stamps
        assert written is (self.travels == "same"), "what is written there must arrive or be refused"
        assert contents(store) == {"a/b": b"written there" if written else VALUE}

    # At the same time

    def test_readers_see_whole_values(self, store: Store) -> None:
        """Also the sizes differ, so that a mixture of old and new shows."""
        if not self.replaces:
            pytest.skip("this store erases a value before it stores a shorter one")
        versions = [bytes([at]) * (40_000 + 9_000 * at) for at in range(5)]
        store.set("a/b", versions[0])
        end = time.monotonic() + 0.7
        seen: set[bytes] = set()

        def write() -> None:
            for value in itertools.cycle(versions):
                if time.monotonic() > end:
                    return
                store.set("a/b", value)

        def read(ask: Callable[[], Any]) -> None:
            while time.monotonic() < end:
                value = bytes(ask())
                assert value in versions, f"a mixture of {set(value)}, {len(value)} bytes"
                seen.add(value)

        def opened() -> bytes:
            reader = store.reader().open("a/b")
            assert reader is not None
            with reader:
                head = bytes(reader.read(0, 20_000))
                return head + bytes(reader.read(20_000))

        load = store.reader().get
        ways: list[Callable[[], Any]] = [lambda: store.get("a/b"), lambda: load("a/b")]
        if self.holds_versions:
            ways.append(opened)
        run_threads(write, write, *(lambda ask=ask: read(ask) for ask in ways))  # type: ignore[misc]
        assert len(seen) > 1, "the test saw no write"
        assert list(store.list()) == ["a/b"]

    def test_writers_and_erasers_do_not_disturb_each_other(self, store: Store) -> None:
        """Erasing the last key below a prefix must not pull the prefix away from who writes below it."""
        end = time.monotonic() + 0.7

        def work(name: str) -> None:
            while time.monotonic() < end:
                store.set(f"a/b/{name}", VALUE)
                assert bytes(store.get(f"a/b/{name}") or b"") == VALUE
                store.erase(f"a/b/{name}")

        def look() -> None:
            while time.monotonic() < end:
                for key in store.list():
                    assert key.startswith("a/b/")
                store.list_dir("a/")

        run_threads(*(lambda name=name: work(name) for name in "xyz"), look)  # type: ignore[misc]
        assert list(store.list()) == []

    def test_many_threads_fill_one_new_prefix(self, store: Store) -> None:
        def work(at: int) -> None:
            for step in range(20):
                store.set(f"new/{step}/deep/{at}", f"{at} {step}".encode())

        run_threads(*(lambda at=at: work(at) for at in range(6)))  # type: ignore[misc]
        assert contents(store) == {
            f"new/{step}/deep/{at}": f"{at} {step}".encode() for at in range(6) for step in range(20)
        }

    # What names the contents

    def test_stamp_stays_while_nothing_changes(self, store: Store) -> None:
        store.set("a/b", VALUE)
        store.set("c", VALUE)
        keys = ["a/b", "c", "absent"]
        stamp = store.stamp(keys)
        assert pickle.loads(pickle.dumps(stamp)) == stamp
        store.get("a/b")
        assert (store.stamp(keys) == stamp) is self.stamps

    @pytest.mark.parametrize(
        "change",
        [
            lambda store: store.set("a/b", b"of another size"),
            lambda store: store.set("a/b", b"9876543210"),
            lambda store: store.erase("a/b"),
            lambda store: store.set("absent", b""),
            lambda store: store.set_partial_values([("a/b", 3, b"x")]),
        ],
        ids=["size", "content", "erase", "new", "part"],
    )
    def test_stamp_changes_with_the_contents(self, store: Store, change: Callable[[Store], None]) -> None:
        store.set("a/b", VALUE)
        keys = ["a/b", "absent"]
        stamp = store.stamp(keys)
        change(store)
        assert store.stamp(keys) != stamp

    def test_stamps_of_quick_changes_differ(self, store: Store) -> None:
        """Values of the same size, faster than the clock of a file system may tick."""
        last: object = None
        for at in range(300):
            store.set("a/b", f"{at:05}".encode())
            stamp = store.stamp(["a/b"])
            assert stamp != last
            last = stamp

    def test_stamp_of_no_keys(self, store: Store) -> None:
        assert isinstance(pickle.dumps(store.stamp([])), bytes)

    def test_tokens_tell_stores_apart(self, store: Store, tmp_path: Path) -> None:
        other = self.make(tmp_path / "elsewhere")
        assert other.__dask_tokenize__() != store.__dask_tokenize__()
        assert (store.__dask_tokenize__() == store.__dask_tokenize__()) is self.stamps

    def test_it_has_a_name(self, store: Store) -> None:
        assert type(store).__name__ in repr(store)
        assert isinstance(store, Store)


class ReadingConformance:
    """The tests of a store that can be read and listed, but not written."""

    VALUES: ClassVar = {"a/b": VALUE, "a/c/d": b"", "e/f/g": b"abcdef", "\N{SNOWFLAKE}/e\u0301": b"x"}

    @abstractmethod
    def make(self, base: Path) -> Store:
        """A store that holds ``VALUES``; if it needs a place, in the directory ``store`` below ``base``."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make(tmp_path)

    def test_it_can_be_read_and_listed(self, store: Store) -> None:
        assert (store.readable, store.writeable, store.erasable, store.listable) == (
            *(True, False, False),
            True,
        )

    def test_values(self, store: Store) -> None:
        for key, value in self.VALUES.items():
            assert read_back(store, key) == [value] * 4
        for key in ("a", "a/c", "no", "a/b/c", "A/B"):
            assert read_back(store, key) == [None] * 4
        assert contents(store) == self.VALUES

    def test_parts(self, store: Store) -> None:
        wanted = [("e/f/g", (1, 2)), ("a/b", (-3, None)), ("no", (0, 1)), ("a/b", (8, 9)), ("e/f/g", (1, 0))]
        for ranges in (wanted, iter(wanted)):
            found = store.get_partial_values(ranges)
            expected = [b"bc", b"789", None, b"89", b""]
            assert [None if part is None else bytes(part) for part in found] == expected
        for start, length in itertools.product(range(-12, 13), [None, *range(13)]):
            first = start if start >= 0 else max(10 + start, 0)
            got = store.get("a/b", (start, length))
            assert got is not None
            assert bytes(got) == (VALUE[first:] if length is None else VALUE[first : first + length])
        with pytest.raises(InvalidRangeError):
            store.get("a/b", (0, -1))

    def test_lists(self, store: Store) -> None:
        assert sorted(store.list()) == sorted(store.list_prefix("")) == sorted(self.VALUES)
        assert sorted(store.list_prefix("a/")) == ["a/b", "a/c/d"]
        assert list(store.list_prefix("b/")) == []
        assert store.list_dir("") == (set(), {"a/", "e/", "\N{SNOWFLAKE}/"})
        assert store.list_dir("a/") == ({"a/b"}, {"a/c/"})
        assert store.list_dir("b/") == store.list_dir("a/b/") == (set(), set())

    def test_writes_are_refused(self, store: Store) -> None:
        for write in (
            lambda: store.set("a/b", b"x"),
            lambda: store.set_partial_values([("a/b", 0, b"x")]),
            lambda: store.erase("a/b"),
            lambda: store.erase_values(["a/b"]),
            lambda: store.erase_prefix("a/"),
        ):
            with pytest.raises(ReadOnlyError, match=r"read-only|cannot be written"):
                write()
        assert contents(store) == self.VALUES

    def test_invalid_keys_are_refused(self) -> None:
        def work(base: Path) -> list[str]:
            store = self.make(base)
            wrong = []
            for key in INVALID_KEYS:
                for ask in (store.get, store.exists, store.getsize):
                    with pytest.raises(InvalidKeyError):
                        wrong.append(f"{ask.__name__}({key!r}) is {ask(key)}")
                with pytest.raises(InvalidKeyError):
                    wrong.append(f"parts of {key!r}: {store.get_partial_values([(key, (0, 1))])}")
            for prefix in INVALID_PREFIXES:
                for enumerate_ in (store.list_prefix, store.list_dir):
                    with pytest.raises(InvalidKeyError):
                        wrong.append(f"{enumerate_.__name__}({prefix!r}) is {list(enumerate_(prefix))}")
            return wrong

        assert run_unprivileged(work).checked() == []
