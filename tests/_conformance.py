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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from _things import Thing
from _unprivileged import run_child, run_unprivileged

from xzarr3 import InvalidKeyError, InvalidRangeError, ReadOnlyError, Store, StoreError, Xzarr3Error
from xzarr3.stores.base import ABSENT, OversizedError, Scratch, ValueReader, Writer

VALUE = b"0123456789"

INVALID_KEYS: list[Any] = [
    *("", "/", "a/", "/a", "//a", "a//b", ".", "..", "./a", "../a", "a/.", "a/..", "a/./b", "a/../b"),
    *("a/../../outside/planted", "../canary.txt", "../outside/planted", "/tmp/xzarr3-planted"),
    *("../../../../../../../../../../tmp/xzarr3-planted", "a\0b", "\0", "a/\0"),
    *(None, 7, b"a", ("a",), Path("a")),
]

INVALID_PREFIXES: list[Any] = [
    *("a", "/", "//", "/a/", "a//", "../", "a/../", "a/../../outside/", "./", "a/./", "a\0/"),
    *(None, b"a/"),
]

ODD_KEYS = [
    "b\N{LATIN SMALL LETTER A WITH RING ABOVE}d/\N{LATIN SMALL LETTER O WITH STROKE}",
    "\u6c23\u6e29/\u5e73\u5747",
    "\N{SNOWFLAKE}\N{SUN WITH FACE}",
    *("e\u0301", "\u00e9"),  # The same letter, composed and not: two keys.
    "with space/ leading and trailing ",
    *(
        "line\nbreak",
        "tab\tand\rreturn",
        "back\\slash\\..\\x",
        "quote\"'",
        "\u202eright to left",
        "\ufeffmark",
    ),
    *(".hidden/.file", "...", "....", "..a/b..", "a.b/.c", "%2e%2e%2f", "a%00b", "~", "~root/x", "-rf"),
    *("$HOME/`id`", "*?[a]{b}", "C:"),
    *("x" * 255, "/".join(["deep"] * 60)),
]


def plain(values: Iterable[Any]) -> list[bytes | None]:
    """The values as bytes, None where there are none."""
    return [None if value is None else bytes(value) for value in values]


@contextmanager
def opened(store: Store, key: str) -> Iterator[ValueReader]:
    """The value of ``key``, open to read parts of it."""
    reader = store.reader().open(key)
    assert reader is not None
    with reader:
        yield reader


def read_back(store: Store, key: str) -> list[bytes | None]:
    """The value of ``key``, by every way there is to read it."""
    there = store.exists(key)
    value = None
    if there:
        with opened(store, key) as reader:
            value = bytes(reader.read(0))
            assert reader.size in (None, len(value))
    else:
        assert store.reader().open(key) is None
    ways = (store.get(key), store.reader().get(key), *store.get_partial_values([(key, (0, None))]))
    return [*plain(ways), value]


def contents(store: Store) -> dict[str, bytes]:
    """All keys and values."""
    found = {key: store.get(key) for key in store.list()}
    return {key: b"missing!" if value is None else bytes(value) for key, value in found.items()}


def fill(store: Store, *keys: str) -> None:
    """Have a value under each key."""
    for key in keys:
        store.set(key, VALUE)


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


def run_numbered(work: Callable[[int], object], count: int) -> None:
    """Run work in threads at the same time, each with its number."""
    run_threads(*(lambda at=at: work(at) for at in range(count)))


@contextmanager
def leaving(jobs: set[Any], job: object) -> Iterator[None]:
    """Leave the jobs that are under way at the end, whatever that is."""
    try:
        yield
    finally:
        jobs.discard(job)


VALUES = {
    "empty": b"",
    "nul": b"\0",
    "bytes": VALUE,
    "bytearray": bytearray(VALUE),
    "view": memoryview(VALUE)[2:7],
    "floats": memoryview(np.arange(5, dtype="float64")),
    "matrix": memoryview(np.arange(6, dtype="int16").reshape(2, 3)),
    "transposed": memoryview(np.arange(6, dtype="int16").reshape(2, 3).T),
    "foreign order": memoryview(np.arange(5, dtype=">f4")),
    "no elements": memoryview(np.zeros((0, 3))),
    "steps": memoryview(VALUE)[::-3],
    "large": bytes(range(256)) * 9000,
}

BAD_PARTS: dict[str, list[tuple[Any, Any, bytes]]] = {
    "beyond the end, empty": [("a", 11, b"")],
    "far beyond": [("a", 2**70, b"x")],
    "around an empty one": [("a", 0, b"xx"), ("a", 1, b""), ("a", 1, b"y")],
    "float": [("b", 0, b"XX"), ("a", 0.0, b"x")],
    "none": [("b", 0, b"XX"), ("a", None, b"x")],
    "text": [("b", 0, b"XX"), ("a", "0", b"x")],
    "overlap": [("a", 0, b"xxx"), ("a", 2, b"yy")],
    "overlap in front": [("a", 2, b"yy"), ("a", 0, b"xxx")],
    "twice": [("a", 0, b"xx"), ("a", 0, b"xx")],
    "within": [("a", 0, b"xxxxxxxx"), ("a", 3, b"y"), ("a", 9, b"z")],
    "beyond the end": [("a", 11, b"beyond the end")],
    "of a new one": [("new", 1, b"beyond the end")],
    "negative": [("a", -1, b"x")],
    "last": [("b", 0, b"XX"), ("a", 1, b"yy"), ("a", 2, b"yy")],
    "first": [("a", 1, b"yy"), ("a", 2, b"yy"), ("b", 0, b"XX")],
}


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

    def apart(self, work: Callable[[Path], Any]) -> Any:
        """What ``work`` returns in a child without the rights of root, and a directory of its own."""
        if self.forks:
            return run_unprivileged(work).checked()
        with tempfile.TemporaryDirectory() as directory:
            return work(Path(directory))

    @abstractmethod
    def make(self, base: Path) -> Store:
        """An empty store; if it needs a place, in the directory ``store`` below ``base``."""

    @abstractmethod
    def read_only(self, store: Store) -> Store:
        """A store that holds the same and refuses writes."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make(tmp_path)

    def test_it_has_a_name_and_can_do_everything(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert type(store).__name__ in repr(store)
        assert (store.readable, store.writeable, store.erasable, store.listable) == (True,) * 4

    # Values

    def test_absent_key_has_no_value(self, store: Store) -> None:
        assert read_back(store, "a/b") == [None] * 4
        store.set("a/b/c", VALUE)
        for key in ("a/x", "a", "a/b", "a/b/c/d"):
            assert read_back(store, key) == [None] * 4, "a prefix is no key, nor is a key a prefix"
        assert store.get("a/b", (0, 4)) is None
        assert store.get("a/b/c/d", (-1, None)) is None

    @pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
    def test_value_comes_back(self, store: Store, value: Any) -> None:
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
        fill(store, "key")
        for write in (
            lambda: store.set("key", value),
            lambda: store.set("new/key", value),
            lambda: store.set_partial_values([("key", 0, b"x"), ("key", 1, value)]),
        ):
            with pytest.raises(StoreError, match="key"):
                write()
        assert contents(store) == {"key": VALUE}

    def test_what_was_read_does_not_change(self, store: Store) -> None:
        fill(store, "key")
        held = [store.get("key"), store.get("key", (2, 3)), *store.get_partial_values([("key", (0, None))])]
        store.set("key", b"##########")
        store.set_partial_values([("key", 0, b"+++")])
        store.erase("key")
        assert plain(held) == [VALUE, b"234", VALUE]

    def test_keys_are_independent(self, store: Store) -> None:
        """Case matters, too."""
        keys = ["foo", "FOO", *(f"{a}/{b}" for a, b in itertools.product("abc", range(20)))]
        random.Random(3).shuffle(keys)
        for key in keys:
            store.set(key, key.encode())
        for key in keys:
            assert read_back(store, key) == [key.encode()] * 4
        assert contents(store) == {key: key.encode() for key in keys}

    def test_value_beside_prefix_of_the_same_name(self, store: Store) -> None:
        fill(store, "a/b")
        if self.nests:
            store.set("a", b"above")
            assert contents(store) == {"a": b"above", "a/b": VALUE}
        else:
            for key in ("a", "a/b/c"):
                with pytest.raises(Xzarr3Error):
                    store.set(key, b"above or below")
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
            with opened(store, "a/b") as reader:
                ways = [store.get("a/b", (start, length)), reader.read(start, length)]
            ways += store.get_partial_values([("a/b", (start, length))])
            assert plain(ways) == [expected] * 3, f"range {start, length} of {size} bytes"

    def test_ranges_far_beyond_the_end(self, store: Store) -> None:
        fill(store, "a/b")
        for byte_range in ((2**70, 5), (2**70, None), (10, 2**70), (-(2**70), 0)):
            assert plain([store.get("a/b", byte_range)]) == [b""]
        assert plain([store.get("a/b", (-(2**70), 2**70))]) == [VALUE]

    def test_negative_lengths_are_refused(self, store: Store) -> None:
        fill(store, "a/b")
        with opened(store, "a/b") as reader:
            for start in (0, 3, 100, -2):
                for read in (
                    lambda start=start: store.get("a/b", (start, -1)),
                    lambda start=start: store.get_partial_values([("a/b", (0, 1)), ("a/b", (start, -5))]),
                    lambda start=start: reader.read(start, -1),
                ):
                    with pytest.raises(InvalidRangeError, match="-"):
                        read()

    def test_partial_values_come_in_order(self, store: Store) -> None:
        fill(store, "a")
        store.set("b/c", b"abcdef")
        wanted = [("b/c", (1, 2)), ("a", (-3, None)), ("no", (0, 1)), ("a", (0, 1)), ("b/c", (1, 2))]
        for ranges in (wanted, iter(wanted)):
            assert plain(store.get_partial_values(ranges)) == [b"bc", b"789", None, b"0", b"bc"]
        assert store.get_partial_values([]) == []

    def test_parts_are_overwritten(self, store: Store) -> None:
        fill(store, "a")
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
        fill(store, "a")
        given = [(3, b""), (3, b"DEF"), (4, b""), (3, b""), (10, b"")]
        store.set_partial_values(("a", start, part) for start, part in given)
        assert contents(store) == {"a": b"012DEF6789"}
        store.set_partial_values([("new", 0, b"")])
        assert contents(store) == {"a": b"012DEF6789", "new": b""}

    def test_parts_are_bytes_whatever_holds_them(self, store: Store) -> None:
        """The length of a view may be that of its first dimension."""
        store.set("a", bytes(24))
        whole = np.arange(1, 4, dtype="<u8")
        first, last = memoryview(whole[:2].reshape(1, 2)), memoryview(whole[2:])
        store.set_partial_values([("a", 16, last), ("a", np.int64(0), first)])
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

        run_numbered(work, 8)
        assert read_back(store, "a") == [b"x" * 80] * 4

    def test_bad_parts_are_refused_and_nothing_is_stored(self, store: Store) -> None:
        store.set("a", VALUE)
        store.set("b", b"bb")
        for case, parts in BAD_PARTS.items():
            with pytest.raises(InvalidRangeError, match=r"key '(a|new)'"):
                store.set_partial_values(parts)
            with pytest.raises(ValueError, match=r"accepted|overlap"):
                store.set_partial_values(iter(parts))
            assert contents(store) == {"a": VALUE, "b": b"bb"}, case

    def test_open_value_reads_parts_in_any_order(self, store: Store) -> None:
        value = random.Random(5).randbytes(300_000)
        store.set("a", value)
        with opened(store, "a") as reader:
            for start, length in [(299_990, 10), (0, 5), (-7, None), (100_000, 150_000), (0, None)]:
                assert bytes(reader.read(start, length)) == value[start % len(value) :][:length]
            starts, lengths = [7, 299_990, 0, 300_001, 2**70], [5, 20, 300_000, 1, 1]
            expected = [value[start : start + length] for start, length in zip(starts, lengths, strict=True)]
            assert plain(reader.read_ranges(starts, lengths)) == expected
            assert reader.read_ranges([], []) == []

    def test_values_are_read_into_given_memory(self, store: Store) -> None:
        """Of an open value, and of one that is opened for it and may say that it goes on."""
        fill(store, "a")
        load = store.reader().get_into
        with opened(store, "a") as reader:
            for start, length in itertools.product(range(13), range(14)):
                expected = VALUE[start : start + length]
                filled = b"." + expected + b"." * (length - len(expected)) + b"."
                out = bytearray(b"." * (length + 2))
                assert reader.read_into(start, memoryview(out)[1:-1]) == len(expected)
                assert out == filled
                out = bytearray(b"." * (length + 2))
                found = load("a", start, memoryview(out)[1:-1])
                assert found is not None
                assert found[0] in (None, len(VALUE))
                goes_on = found[0] is None and start + length < len(VALUE)
                assert found[1] == len(expected) + goes_on
                assert out == filled
        assert load("not", 0, memoryview(bytearray(3))) is None

    def test_open_value_is_one_version(self, store: Store) -> None:
        if not self.holds_versions:
            pytest.skip("this store does not promise it")
        store.set("a", b"old " * 1000)
        with opened(store, "a") as reader:
            head = bytes(reader.read(0, 400))
            store.set("a", b"new!" * 2000)
            assert head + bytes(reader.read(400)) == b"old " * 1000
            store.erase("a")
            assert bytes(reader.read(-4)) == b"old "
            assert reader.size == 4000
        assert store.get("a") is None

    def test_closing_twice_is_harmless(self, store: Store, tmp_path: Path) -> None:
        fill(store, "a")
        with opened(store, "a") as reader:
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
        assert plain(kept) == list(values.values())
        for key in values:
            assert plain([again(key)]) == [values[key]]
        assert plain(kept) == list(values.values())
        for key in [*values, *reversed(values)]:
            assert plain([load(key), load(f"not-{key}")]) == [values[key], None]
        store.set("k3", b"changed")
        assert plain([load("k3")]) == [b"changed"]

    def test_scratch_loader_reads_what_is_within_its_limit(self, store: Store) -> None:
        fill(store, "a")
        store.set("b", b"x" * 5000)
        load = store.reader(Scratch(), 100).get
        assert plain([load("a")]) == [VALUE]
        assert load("not") is None
        try:
            loaded = load("b")
        except OversizedError as error:
            assert str(error) == "found 5000 bytes, at most 100 bytes expected"  # noqa: PT017
        else:  # The store cannot tell before it has read.
            assert plain([loaded]) == [b"x" * 5000]
        assert plain([load("a")]) == [VALUE]

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
            assert found[0] in (None, 400_000)
            expected = [value[start : start + length] for start, length in zip(starts, lengths, strict=True)]
            assert plain(found[1]) == expected
        assert load("not", [0], [1]) is None
        empty = load("e", [0, 3], [4, 4])
        assert empty is not None
        assert plain(empty[1]) == [b"", b""]

    def test_versions_of_readers_differ_when_values_do(self, store: Store) -> None:
        found: list[tuple[bytes, object]] = []
        for value in (b"old", b"new", b"old", b"older"):
            store.set("a", value)
            for _ in range(2):
                with opened(store, "a") as reader:
                    if reader.version is not None:
                        found.append((value, reader.version))
        for one, other in itertools.combinations(found, 2):
            assert one[1] != other[1] or one[0] == other[0]

    def test_writer_stores_pieces(self, store: Store) -> None:
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
            store.erase("a/c")
            writer.set("a/c", [b"back"])
        expected = {key: b"".join(value) for key, value in pieces.items()}
        assert contents(store) == expected | {"a/b": b"again", "kept": b"mine", "a/c": b"back"}

    def test_loaders_of_several_threads_do_not_mix(self, store: Store) -> None:
        for at in range(8):
            store.set(f"c/{at}", bytes([at]) * 50_000)

        def check(at: int) -> None:
            load = store.reader(Scratch(), 10**6).get
            for _ in range(60):
                value = load(f"c/{at}")
                time.sleep(0)
                assert plain([value]) == [bytes([at]) * 50_000]

        run_numbered(check, 8)

    # Erasing

    def test_erase(self, store: Store) -> None:
        for key in ("a/b", "a/c", "ab/c", "d"):
            store.set(key, key.encode())
        for key in ("a/b", "a/b", "never/was", "d/e", "a"):
            store.erase(key)
        assert contents(store) == {"a/c": b"a/c", "ab/c": b"ab/c", "d": b"d"}
        assert read_back(store, "a/b") == [None] * 4
        store.erase("a/c")
        assert store.list_dir("") == ({"d"}, {"ab/"})
        assert store.list_dir("a/") == (set(), set())
        store.set("a/b", b"again")
        assert read_back(store, "a/b") == [b"again"] * 4

    def test_erase_values(self, store: Store) -> None:
        fill(store, "a/b", "a/c", "b", "c/d/e")
        for keys in (iter(["a/b", "no", "c/d/e", "a/b"]), []):
            store.erase_values(keys)
            assert sorted(store.list()) == ["a/c", "b"]
        assert store.list_dir("") == ({"b"}, {"a/"})

    def test_erase_prefix(self, store: Store) -> None:
        fill(store, "a/b", "a/c/d", "a.b/c", "ab/c", "b/a/x", "e")
        for prefix in ("a/", "a/", "no/such/"):
            store.erase_prefix(prefix)
            assert sorted(store.list()) == ["a.b/c", "ab/c", "b/a/x", "e"]
        store.erase_prefix("b/a/")
        assert store.list_dir("") == ({"e"}, {"a.b/", "ab/"})
        with pytest.raises(InvalidKeyError):
            store.erase_prefix("")
        assert len(list(store.list())) == 3, "an empty prefix never erases everything"

    def test_sweeping_leaves_what_is_stored(self, store: Store) -> None:
        fill(store, "a/b")
        for prefix in ("", "a/", "no/", "a/b/"):
            store.sweep(prefix)
        assert contents(store) == {"a/b": VALUE}

    # Listing

    def test_lists(self, store: Store) -> None:
        """The first two are those of the specification; beginnings of names are no prefixes."""
        none: tuple[set[str], set[str]] = (set(), set())
        listings: tuple[tuple[str, dict[str, str], dict[str, tuple[set[str], set[str]]]], ...] = (
            (
                "a/b a/c/d e/f/g",
                {"": "a/b a/c/d e/f/g", "a/": "a/b a/c/d", "e/f/": "e/f/g", "b/": ""},
                {"a/": ({"a/b"}, {"a/c/"}), "e/": (set(), {"e/f/"}), "b/": none},
            ),
            (
                "a/b a/c a/d/e a/f/g",
                {"a/d/": "a/d/e", "a/b/": ""},
                {"a/": ({"a/b", "a/c"}, {"a/d/", "a/f/"}), "": (set(), {"a/"}), "a/d/": ({"a/d/e"}, set())}
                | {"a/b/": none, "b/": none},
            ),
            ("ab/c abc a/b", {"a/": "a/b"}, {"a/": ({"a/b"}, set())}),
            ("", {"": "", "a/": ""}, {"": none, "a/": none}),
        )
        for keys, below, levels in listings:
            fill(store, *keys.split())
            assert sorted(store.list()) == sorted(keys.split())
            for prefix, expected in below.items():
                assert sorted(store.list_prefix(prefix)) == expected.split()
            for prefix, level in levels.items():
                assert store.list_dir(prefix) == level
            store.erase_values(keys.split())

    def test_lists_tell_sizes_or_that_they_are_not_known(self, store: Store) -> None:
        values = {"a/b": b"", "a/c/d": VALUE, "ab": b"x" * 5000, "e/f/g": b"1"}
        for key, value in values.items():
            store.set(key, value)
        for prefix in ("", "a/", "e/f/", "no/"):
            found = list(store.list_sizes(prefix))
            assert sorted(key for key, _ in found) == [key for key in values if key.startswith(prefix)]
            assert all(size in (None, len(values[key])) for key, size in found)
        assert not [name for name, _ in store.leftovers()]

    def test_listing_while_keys_come_and_go(self, store: Store) -> None:
        given = {f"{at % 7}/{at}" for at in range(60)}
        fill(store, *given)
        seen = []
        for key in store.list():
            seen.append(key)
            store.erase(key)
            fill(store, f"later/{len(seen)}")
            assert len(seen) < 200, "listing chases its own tail"
        assert len(set(seen)) == len(seen)
        assert given <= set(seen)

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
        fill(store, *keys)
        assert sorted(store.list()) == sorted(keys)
        assert read_back(store, keys[0]) == [VALUE] * 4
        store.erase_values(keys[:1])
        assert sorted(store.list_prefix("d/d/d/")) == keys[1:2]
        store.erase_prefix("d/d/")
        assert contents(store) == {"d/f": VALUE}
        assert store.list_dir("d/") == ({"d/f"}, set())

    @pytest.mark.parametrize("key", ["\ud800", "a/\udc80b", "x" * 5000, "d/" * 3000 + "x"], ids=range(4))
    def test_key_that_a_store_may_refuse(self, store: Store, key: str) -> None:
        """Lone surrogates and endless names: stored like any other, or refused with our error."""
        fill(store, "other")
        expected = {"other": VALUE}
        try:
            store.set(key, b"odd")
            expected[key] = b"odd"
        except Xzarr3Error:
            pass
        assert contents(store) == expected
        for ask in (store.get, store.exists, store.getsize):
            try:
                assert bool(ask(key)) is (key in expected)
            except Xzarr3Error:
                continue

    def test_every_method_refuses_invalid_keys(self) -> None:
        """Alone and among valid ones, which are neither stored nor erased then."""

        def work(base: Path) -> list[str]:
            store = self.make(base)
            fill(store, "a/b", "c")
            planted = b"planted"
            calls: dict[str, Callable[[Any], object]] = {
                **reads(store),
                "get_partial_values": lambda key: store.get_partial_values([("c", (0, 1)), (key, (0, 1))]),
                "set": lambda key: store.set(key, planted),
                "set_partial_values": lambda key: store.set_partial_values([(key, 0, planted)]),
                "set some": lambda key: store.set_partial_values(
                    [("c", 0, planted), (key, 0, planted), ("d", 0, planted)]
                ),
                "erase": store.erase,
                "erase_values": lambda key: store.erase_values([key]),
                "erase some": lambda key: store.erase_values(["a/b", key, "c"]),
                "compare_and_set": lambda key: store.compare_and_set(key, ABSENT, planted),
                "copy from": lambda key: store.copy_values([(key, "d")]),
                "copy to": lambda key: store.copy_values([("c", key)]),
                "update": lambda key: store.update(key, lambda stored: [planted]),
                "writer set": lambda key: writing(store, lambda writer: writer.set(key, [planted])),
                "writer update": lambda key: writing(
                    store, lambda writer: writer.update(key, lambda stored: [planted])
                ),
            }
            by_prefix: dict[str, Callable[[Any], object]] = {
                "list_prefix": lambda prefix: list(store.list_prefix(prefix)),
                "list_dir": store.list_dir,
                "erase_prefix": store.erase_prefix,
                "sweep": store.sweep,
            }
            wrong = not_refused(calls, INVALID_KEYS) + not_refused(by_prefix, INVALID_PREFIXES)
            assert contents(store) == {"a/b": VALUE, "c": VALUE}
            return wrong

        assert self.apart(work) == []

    # Read-only stores

    def test_read_only(self, store: Store) -> None:
        fill(store, "a/b")
        guarded = self.read_only(store)
        assert guarded.read_only
        assert (guarded.readable, guarded.writeable, guarded.erasable) == (True, False, False)
        assert guarded.listable
        for write in (
            *writes(guarded),
            lambda: guarded.set("new", b"x"),
            lambda: guarded.set_partial_values([("a/b", 11, b"x")]),
            lambda: guarded.erase("absent"),
        ):
            with pytest.raises(ReadOnlyError):
                write()
        assert read_back(guarded, "a/b") == [VALUE] * 4
        assert contents(guarded) == contents(store) == {"a/b": VALUE}
        assert store.read_only is False

    # Travelling

    def test_pickling_within_the_process(self, store: Store) -> None:
        fill(store, "a/b")
        twin = pickle.loads(pickle.dumps(store))
        assert type(twin) is type(store)
        twin.set("c", b"by the twin")
        assert contents(store) == contents(twin) == {"a/b": VALUE, "c": b"by the twin"}
        assert (twin.__dask_tokenize__() == store.__dask_tokenize__()) is self.stamps
        assert twin.read_only is False
        guarded = pickle.loads(pickle.dumps(self.read_only(store)))
        assert guarded.read_only

    def test_pickling_to_another_process(self, store: Store) -> None:
        fill(store, "a/b")
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
                return before, False, twin.__dask_tokenize__()
            return before, True, twin.__dask_tokenize__()

        before, written, token = run_child(work).checked() if self.forks else work()
        assert before == {"a/b": VALUE}
        assert (token == store.__dask_tokenize__()) is self.stamps
        assert written is (self.travels == "same"), "what is written there must arrive or be refused"
        assert contents(store) == {"a/b": b"written there" if written else VALUE}

    # At the same time

    @property
    def rounds(self) -> int:
        """How often what happens at the same time happens."""
        return 500 if self.forks else 40

    def test_readers_see_whole_values(self, store: Store) -> None:
        """Also the sizes differ, so that a mixture of old and new shows."""
        if not self.replaces:
            pytest.skip("this store erases a value before it stores a shorter one")
        versions = [bytes([at]) * (40_000 + 9_000 * at) for at in range(5)]
        store.set("a/b", versions[0])

        def read_opened() -> bytes:
            with opened(store, "a/b") as reader:
                head = bytes(reader.read(0, 20_000))
                return head + bytes(reader.read(20_000))

        load = store.reader().get
        ways: list[Callable[[], Any]] = [lambda: store.get("a/b"), lambda: load("a/b")]
        ways += [read_opened] if self.holds_versions else []
        reading, writing = set(range(len(ways))), {"one", "other"}

        def write(name: str) -> None:
            with leaving(writing, name):
                for value in itertools.cycle(versions):
                    if not reading:
                        return
                    store.set("a/b", value)

        def read(at: int) -> None:
            seen: set[bytes] = set()
            turns = itertools.count()
            with leaving(reading, at):
                while next(turns) < self.rounds or (len(seen) == 1 and writing):
                    value = bytes(ways[at]())
                    assert value in versions, f"a mixture of {set(value)}, {len(value)} bytes"
                    seen.add(value)

        readers = (lambda at=at: read(at) for at in range(len(ways)))
        run_threads(lambda: write("one"), lambda: write("other"), *readers)
        assert list(store.list()) == ["a/b"]

    def test_writers_and_erasers_do_not_disturb_each_other(self, store: Store) -> None:
        """Erasing the last key below a prefix must not pull the prefix away from who writes below it."""
        writing = set("xyz")

        def work(name: str) -> None:
            with leaving(writing, name):
                for _ in range(self.rounds // 4):
                    store.set(f"a/b/{name}", VALUE)
                    assert plain([store.get(f"a/b/{name}")]) == [VALUE]
                    store.erase(f"a/b/{name}")

        def look() -> None:
            while writing:
                assert all(key.startswith("a/b/") for key in store.list())
                store.list_dir("a/")

        run_threads(*(lambda name=name: work(name) for name in "xyz"), look)
        assert list(store.list()) == []

    def test_many_threads_fill_one_new_prefix(self, store: Store) -> None:
        def work(at: int) -> None:
            for step in range(20):
                store.set(f"new/{step}/deep/{at}", f"{at} {step}".encode())

        run_numbered(work, 6)
        pairs = itertools.product(range(6), range(20))
        assert contents(store) == {f"new/{step}/deep/{at}": f"{at} {step}".encode() for at, step in pairs}

    # What names the contents

    def test_stamp_stays_while_nothing_changes(self, store: Store) -> None:
        fill(store, "a/b", "c")
        keys = ["a/b", "c", "absent"]
        stamp = store.stamp(keys)
        for each in (stamp, store.stamp([])):
            assert pickle.loads(pickle.dumps(each)) == each
        store.get("a/b")
        assert (store.stamp(keys) == stamp) is self.stamps

    def test_stamp_changes_with_the_contents(self, store: Store) -> None:
        """A size, a content, a part of one, an absent key, and no key any more."""
        fill(store, "a/b")
        keys = ["a/b", "absent"]
        stamps = [store.stamp(keys)]
        for change in (
            lambda: store.set("a/b", b"of another size"),
            lambda: store.set("a/b", b"of anotheR size"),
            lambda: store.set_partial_values([("a/b", 3, b"x")]),
            lambda: store.set("absent", b""),
            lambda: store.erase("a/b"),
        ):
            change()
            stamps.append(store.stamp(keys))
            assert stamps[-1] != stamps[-2]

    def test_stamps_of_quick_changes_differ(self, store: Store) -> None:
        """Values of the same size, faster than the clock of a file system may tick."""
        last: object = None
        for at in range(300):
            store.set("a/b", f"{at:05}".encode())
            stamp = store.stamp(["a/b"])
            assert stamp != last
            last = stamp

    def test_tokens_tell_stores_apart(self, store: Store, tmp_path: Path) -> None:
        other = self.make(tmp_path / "elsewhere")
        assert other.__dask_tokenize__() != store.__dask_tokenize__()
        assert (store.__dask_tokenize__() == store.__dask_tokenize__()) is self.stamps


def not_refused(calls: dict[str, Callable[[Any], object]], words: list[Any]) -> list[str]:
    """Which calls take an invalid key or prefix."""
    wrong = []
    for word, (name, call) in itertools.product(words, calls.items()):
        try:
            call(word)
        except InvalidKeyError:
            continue
        wrong.append(f"{name}({word!r})")
    return wrong


def reads(store: Store) -> dict[str, Callable[[Any], object]]:
    """Every way to read a key."""
    return {
        "get": store.get,
        "get range": lambda key: store.get(key, (0, 1)),
        "exists": store.exists,
        "getsize": store.getsize,
        "parts": lambda key: store.get_partial_values([(key, (0, 1))]),
        "get_versioned": store.get_versioned,
        "reader": lambda key: store.reader().get(key),
        "scratch": lambda key: store.reader(Scratch(), 10**6).get(key),
        "get_ranges": lambda key: store.reader().get_ranges(key, [0], [1]),
        "get_ranges of two": lambda key: store.reader().get_ranges(key, [0, 2], [1, 1]),
        "get_into": lambda key: store.reader().get_into(key, 0, memoryview(bytearray(1))),
        "open": lambda key: store.reader().open(key),
        "open part": lambda key: store.reader().open(key, (0, 1)),
    }


def writing(store: Store, work: Callable[[Writer], object]) -> None:
    """What a writer of a store does."""
    with store.writer() as writer:
        work(writer)


def writes(store: Store) -> list[Callable[[], object]]:
    """Every way to change a store."""
    return [
        lambda: store.set("a/b", b"x"),
        lambda: store.set_partial_values([("a/b", 0, b"x")]),
        lambda: store.erase("a/b"),
        lambda: store.erase_values(["a/b"]),
        lambda: store.erase_prefix("a/"),
    ]


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
        assert (store.readable, store.listable) == (True, True)
        assert (store.writeable, store.erasable) == (False, False)

    def test_values(self, store: Store) -> None:
        for key, value in self.VALUES.items():
            assert read_back(store, key) == [value] * 4
        for key in ("a", "a/c", "no", "a/b/c", "A/B"):
            assert read_back(store, key) == [None] * 4
        assert contents(store) == self.VALUES

    def test_parts(self, store: Store) -> None:
        wanted = [("e/f/g", (1, 2)), ("a/b", (-3, None)), ("no", (0, 1)), ("a/b", (8, 9)), ("e/f/g", (1, 0))]
        for ranges in (wanted, iter(wanted)):
            assert plain(store.get_partial_values(ranges)) == [b"bc", b"789", None, b"89", b""]
        for start, length in itertools.product(range(-12, 13), [None, *range(13)]):
            first = start if start >= 0 else max(10 + start, 0)
            expected = VALUE[first:] if length is None else VALUE[first : first + length]
            assert plain([store.get("a/b", (start, length))]) == [expected]
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
        for write in writes(store):
            with pytest.raises(ReadOnlyError, match=r"read-only|cannot be written"):
                write()
        assert contents(store) == self.VALUES

    def test_invalid_keys_are_refused(self) -> None:
        def work(base: Path) -> list[str]:
            store = self.make(base)
            by_prefix: dict[str, Callable[[Any], object]] = {
                "list_prefix": lambda prefix: list(store.list_prefix(prefix)),
                "list_dir": store.list_dir,
            }
            return not_refused(reads(store), INVALID_KEYS) + not_refused(by_prefix, INVALID_PREFIXES)

        assert run_unprivileged(work).checked() == []
