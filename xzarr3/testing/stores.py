"""What every store must do, as a suite of checks that a test of a store of one's own can call.

Specification: Zarr v3 core, "Abstract store interface". The checks ask for its operations, and for what
xzarr3 needs beyond them: values are replaced whole, no change is lost, an open value is one version.
"""

from __future__ import annotations

import itertools
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias

from xzarr3.errors import (
    ChangedError,
    InvalidKeyError,
    InvalidRangeError,
    ReadOnlyError,
    StoreError,
    Xzarr3Error,
)
from xzarr3.stores.base import Store, update, versioned
from xzarr3.stores.values import UNCHANGED, OversizedError, Scratch

Make: TypeAlias = Callable[[], Store]

_VALUE = b"0123456789"
_VALUES: tuple[Any, ...] = (
    b"", b"\0", _VALUE, bytearray(_VALUE), memoryview(_VALUE)[2:7], memoryview(_VALUE)[::-3],
    memoryview(bytes(48)).cast("d"), memoryview(bytes(range(12))).cast("h", (2, 3)), bytes(range(256)) * 9000,
)  # fmt: skip
_ODD_KEYS = (
    "b\xe5d/\xf8", "\u6c23\u6e29/\u5e73\u5747", "with space/ leading and trailing ", "e\u0301", "\xe9",
    ".hidden/.file", "...", "..a/b..", "%2e%2e%2f", "~", "-rf", "*?[a]{b}", "x" * 255,
    "/".join(["deep"] * 60),
)  # fmt: skip
_INVALID_KEYS: tuple[Any, ...] = ("", "a/", "a//b", "a\0b", None, 7, b"a", ("a",))
_INVALID_PREFIXES: tuple[Any, ...] = ("a", "a//", "a\0/", None, b"a/")
_BAD_PARTS: tuple[list[tuple[Any, Any, bytes]], ...] = (
    [("b", 0, b"XX"), ("a", 0, b"xxx"), ("a", 2, b"yy")],
    [("a", 0, b"xx"), ("a", 1, b""), ("a", 1, b"y")],
    [("a", 11, b"beyond the end")],
    [("new", 1, b"beyond the end")],
    [("a", -1, b"x")],
    [("b", 0, b"XX"), ("a", 0.0, b"x")],
    [("a", None, b"x")],
)


class StoreCheckError(AssertionError):
    """A store does not do what every store must do; the text says what, in words.

    Examples
    --------
    >>> import xzarr3
    >>> issubclass(xzarr3.testing.StoreCheckError, AssertionError)
    True
    """


def check_store(make: Make, *, leave_out: Iterable[str] = ()) -> list[str]:
    """Check that a store does what every store must do.

    Parameters
    ----------
    make : callable
        Makes an empty store; called once for each check.
    leave_out : iterable of str
        Names of checks that are not run, as in :data:`CHECKS`.

    Returns
    -------
    list of str
        The names of the checks that were run.

    Raises
    ------
    StoreCheckError
        If a check fails. All checks are run, and the text names those that failed, what they ask for and what
        was found.

    Examples
    --------
    >>> from xzarr3 import MemoryStore
    >>> from xzarr3.testing import check_store
    >>> len(check_store(MemoryStore)) == len(CHECKS)
    True
    """
    left_out = set(leave_out)
    unknown = left_out - CHECKS.keys()
    if unknown:
        raise ValueError(f"unknown checks {sorted(unknown)}; accepted: {sorted(CHECKS)}")
    wanted = [name for name in CHECKS if name not in left_out]
    failed = []
    for name in wanted:
        store = make()
        try:
            CHECKS[name](store)
        except Exception as error:  # noqa: BLE001 - whatever a store of a user raises is a finding
            found = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            failed.append((f"{name}: {CHECKS[name].__doc__}\n    found: {found}", error))
        finally:
            store.close()
    if failed:
        texts = "\n".join(text for text, _ in failed)
        raise StoreCheckError(f"{len(failed)} of {len(wanted)} checks failed\n{texts}") from failed[0][1]
    return wanted


def _expect(is_so: bool, text: str) -> None:
    if not is_so:
        raise StoreCheckError(text)


def _same(found: object, expected: object, what: str) -> None:
    _expect(found == expected, f"{what} gives {found!r:.300}, expected {expected!r:.300}")


def _plain(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _raises(kind: type[Exception], call: Callable[..., object], what: str, *given: object) -> None:
    try:
        call(*given)
    except kind:
        return
    except Exception as error:
        raise StoreCheckError(f"{what} raises {type(error).__name__}: {error}") from error
    raise StoreCheckError(f"{what} is not refused")


def _contents(store: Store) -> dict[str, bytes | None]:
    return {str(key): _plain(store.get(key)) for key in store.list()}


def _fill(store: Store, *keys: str) -> None:
    for key in keys:
        store.set(key, _VALUE)


def _opened(store: Store, key: str) -> Any:
    value = store.open(key)
    if value is None:
        raise StoreCheckError(f"open({key!r}) gives None, but the key has a value")
    return value


def _check_value(store: Store, key: str, expected: bytes | None) -> None:
    """Compare a value by every way there is to read it."""
    _same(_plain(store.get(key)), expected, f"get({key!r})")
    _same(_plain(store.get_partial_values([(key, (0, None))])[0]), expected, f"get_partial_values of {key!r}")
    _same(_plain(versioned(store, key)[0]), expected, f"the versioned value of {key!r}")
    _same(store.exists(key), expected is not None, f"exists({key!r})")
    _same(store.getsize(key), None if expected is None else len(expected), f"getsize({key!r})")


def _run(*jobs: Callable[[], object]) -> None:
    """Run jobs at the same time; the first error of one is raised."""
    barrier = threading.Barrier(len(jobs))

    def start(job: Callable[[], object]) -> None:
        barrier.wait(60)
        job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(start, job) for job in jobs]:
            future.result(timeout=300)


def capabilities(store: Store) -> None:
    """A store is a Store, shows its name, and says that it can read, write, erase and list."""
    _expect(isinstance(store, Store), f"{type(store).__name__} is no xzarr3.Store")
    _expect(type(store).__name__ in repr(store), f"repr gives {store!r}, without the name of the class")
    found = (store.readable, store.writeable, store.erasable, store.listable)
    _same(found, (True,) * 4, "readable, writeable, erasable, listable")


def absent(store: Store) -> None:
    """A key without a value has none by any way; beginnings of keys are no keys."""
    store.set("a/b/c", _VALUE)
    for key in ("a/x", "a", "a/b", "a/b/c/d"):
        _check_value(store, key, None)
        _same(store.get(key, (-1, None)), None, f"a part of absent {key!r}")


def values(store: Store) -> None:
    """What is stored comes back: any buffer, whole, and replaced by a shorter or longer one."""
    for value in _VALUES:
        store.set("a/b", value)
        _check_value(store, "a/b", value.tobytes() if isinstance(value, memoryview) else bytes(value))
    given = bytearray(_VALUE)
    store.set("a/b", given)
    given[:] = b"##########"
    _check_value(store, "a/b", _VALUE)
    held = [store.get("a/b"), store.get("a/b", (2, 3))]
    store.set("a/b", b"##########")
    store.erase("a/b")
    _same([_plain(each) for each in held], [_VALUE, b"234"], "what was read before a change, after it,")
    for value in (None, 5, "text", [1, 2]):
        _raises(StoreError, lambda value: store.set("a/b", value), f"set of {value!r}", value)
    _same(_contents(store), {}, "a list after refused values")


def keys(store: Store) -> None:
    """Keys are independent of each other; case and odd characters matter, or are refused with our error."""
    expected: dict[str, bytes] = {}
    for key in (*_ODD_KEYS, "foo", *(f"{a}/{b}" for a, b in itertools.product("abc", range(20)))):
        with suppress(Xzarr3Error):
            store.set(key, key.encode())
            expected[key] = key.encode()
    _expect(len(expected) > len(_ODD_KEYS), "ordinary keys are refused")
    _same(_contents(store), expected, "all keys with their values")
    with suppress(Xzarr3Error):
        store.set("a", b"above")
        expected["a"] = b"above"
    _same(_contents(store), expected, "all keys after a value above others")


def invalid_keys(store: Store) -> None:
    """What is no key or prefix is refused, alone and among valid ones, and nothing is changed then."""
    _fill(store, "a/b", "c")
    for key in _INVALID_KEYS:
        calls: dict[str, Callable[[Any], object]] = {
            "get": store.get,
            "get_partial_values": lambda key: store.get_partial_values([("c", (0, 1)), (key, (0, 1))]),
            "open": store.open,
            "exists": store.exists,
            "set": lambda key: store.set(key, b"x"),
            "put": lambda key: store.put(key, [b"x"]),
            "set_partial_values": lambda key: store.set_partial_values([("c", 0, b"x"), (key, 0, b"x")]),
            "erase": store.erase,
            "erase_values": lambda key: store.erase_values(["a/b", key, "c"]),
            "copy from": lambda key: store.copy(key, "d"),
            "copy to": lambda key: store.copy("c", key),
            "update": lambda key: update(store, key, lambda stored: [b"x"]),
        }
        for name, call in calls.items():
            _raises(InvalidKeyError, call, f"{name} of key {key!r}", key)
    for prefix in _INVALID_PREFIXES:
        _raises(InvalidKeyError, lambda prefix: [*store.list(prefix)], f"list of {prefix!r}", prefix)
        _raises(InvalidKeyError, store.list_dir, f"list_dir of {prefix!r}", prefix)
        _raises(InvalidKeyError, store.erase_prefix, f"erase_prefix of {prefix!r}", prefix)
    _raises(InvalidKeyError, lambda: store.erase_prefix(""), "erase_prefix of the empty prefix")
    _same(_contents(store), {"a/b": _VALUE, "c": _VALUE}, "all keys after refused calls")


def ranges(store: Store) -> None:
    """Parts are cut as the specification says: from either end, shorter beyond it, no negative length."""
    for size in (10, 0, 1):
        value = _VALUE[:size]
        store.set("a/b", value)
        cases = [*itertools.product(range(-size - 3, size + 4), (None, *range(size + 4)))]
        for start, length in random.Random(size).sample(cases, min(60, len(cases))):
            first = start if start >= 0 else max(size + start, 0)
            expected = value[first:] if length is None else value[first : first + length]
            what = f"the range {start, length} of {size} bytes"
            _same(_plain(store.get("a/b", (start, length))), expected, what)
            with _opened(store, "a/b") as reader:
                _same(bytes(reader.read(start, length)), expected, f"{what} of the open value")
    for start in (0, 3, 100, -2):
        _raises(InvalidRangeError, store.get, "a negative length", "a/b", (start, -1))
    store.set("b", b"abcdef")
    wanted = [("b", (1, 2)), ("no", (0, 1)), ("a/b", (0, 1)), ("b", (-1, None)), ("b", (2**70, 5))]
    found = [_plain(each) for each in store.get_partial_values(iter(wanted))]
    _same(found, [b"bc", None, b"0", b"f", b""], "get_partial_values")


def partial_writes(store: Store) -> None:
    """set_partial_values overwrites and extends; bad parts are refused before anything is stored."""
    store.set("a", _VALUE)
    store.set("b", b"xyz")
    store.set_partial_values([("a", 7, b"GHI"), ("b", 0, b"X"), ("a", 0, b"AB"), ("a", 2, b"C")])
    store.set_partial_values([("a", 10, b"more"), ("new", 0, b"start"), ("b", 1, bytearray(b"Y"))])
    expected = {"a": b"ABC3456GHImore", "b": b"XYz", "new": b"start"}
    _same(_contents(store), expected, "all keys after parts were stored")
    store.erase("new")
    store.set("a", _VALUE)
    store.set("b", b"bb")
    for parts in _BAD_PARTS:
        _raises(InvalidRangeError, store.set_partial_values, f"parts {parts}", iter(parts))
        _same(_contents(store), {"a": _VALUE, "b": b"bb"}, f"all keys after refused parts {parts}")


def open_values(store: Store) -> None:
    """An open value gives parts in any order, also into given memory, and is one version or says that not."""
    value = random.Random(5).randbytes(300_000)
    store.set("a", value)
    starts, lengths = [7, 299_990, 0, 300_001], [5, 20, 300_000, 1]
    expected = [value[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    with _opened(store, "a") as reader:
        _expect(reader.size in (None, len(value)), f"size is {reader.size}, expected {len(value)} or None")
        _same([bytes(part) for part in reader.read_ranges(starts, lengths)], expected, "read_ranges")
        out = bytearray(b"." * 12)
        _same(reader.read_into(299_995, memoryview(out)[1:-1]), 5, "the length of what read_into reads")
        _same(bytes(out), b"." + value[-5:] + b"." * 6, "read_into")
    reader.close()
    store.set("a", b"old " * 1000)
    with _opened(store, "a") as reader, suppress(ChangedError):
        head = bytes(reader.read(0, 400))
        store.set("a", b"new!" * 2000)
        whole = head + bytes(reader.read(400, 3600))
        _same(whole, b"old " * 1000, "an open value that was replaced (it may raise ChangedError)")
    _expect(store.open("no", (0, None)) is None, "open of an absent key gives a value")
    with store.open("a", (0, None)) or _opened(store, "a") as reader:
        _same(bytes(reader.read(0)), b"new!" * 2000, "open with the whole value as first part")


def memory(store: Store) -> None:
    """Values are read into given memory one after the other, and too large ones may be refused."""
    sizes = (10, 0, 300_000, 3, 70_000, 1)
    for size in sizes:
        store.set(f"k{size}", bytes([size % 251]) * size)
    scratch = Scratch()
    for size in (*sizes, *reversed(sizes)):
        found = _plain(store.get(f"k{size}", into=scratch, limit=10**6))
        _same(found, bytes([size % 251]) * size, f"a value of {size} bytes read into memory")
    _same(store.get("no", into=scratch), None, "an absent key read into memory")
    with suppress(OversizedError):
        _same(
            _plain(store.get("k70000", limit=100)), bytes([70_000 % 251]) * 70_000, "a value above the limit"
        )


def conditions(store: Store) -> None:
    """A value is replaced or erased only if it has the expected version; the absence of one is a version."""
    _, none = versioned(store, "a")
    _same(store.put("a", [b"1", b"2"], if_version=none), True, "put on an absent key")
    _same(store.put("a", [b"3"], if_version=none), False, "put on an absent key that has a value by now")
    value, version = versioned(store, "a")
    _same(_plain(value), b"12", "the versioned value")
    store.set("a", b"other")
    _same(store.put("a", [b"4"], if_version=version), False, "put with an old version")
    _same(_plain(store.get("a")), b"other", "the value after a refused put")
    if store.traits.erases_conditionally:
        _same(store.put("a", None, if_version=version), False, "erasing with an old version")
        _same(store.put("a", None, if_version=versioned(store, "a")[1]), True, "erasing with its version")
        _same(store.get("a"), None, "an erased value")


def updates(store: Store) -> None:
    """Changes by threads are not lost; a change may leave the value as it is, or erase it."""
    update(store, "n", lambda stored: [b"0"])
    update(store, "n", lambda stored: UNCHANGED)

    def count() -> None:
        for _ in range(10):
            update(store, "n", lambda stored: [str(int(bytes(stored or b"0")) + 1).encode()])

    _run(*[count] * 4)
    _same(_plain(store.get("n")), b"40", "a counter after 40 changes by 4 threads")
    if store.traits.erases_conditionally:
        update(store, "n", lambda stored: None)
        _same(store.exists("n"), False, "exists of a value that a change erased")


def erasing(store: Store) -> None:
    """Keys are erased by name, together and by prefix; absent ones are no error, and others stay."""
    _fill(store, "a/b", "a/c/d", "a.b/c", "ab/c", "b/a/x", "e")
    store.erase("a/b")
    store.erase("never/was")
    store.erase_values(iter(["e", "no"]))
    _same(sorted(store.list()), ["a.b/c", "a/c/d", "ab/c", "b/a/x"], "a list after erasing keys")
    for prefix in ("a/", "a/", "no/such/"):
        store.erase_prefix(prefix)
    _same(sorted(store.list()), ["a.b/c", "ab/c", "b/a/x"], "a list after erasing a prefix")
    store.erase_prefix("b/a/")
    _same(store.list_dir(""), (set(), {"a.b/", "ab/"}), "list_dir after the last key below a prefix is gone")
    _fill(store, "a/b")
    store.copy("a/b", "c/d")
    _check_value(store, "c/d", _VALUE)
    _raises(StoreError, lambda: store.copy("no", "x"), "copy of an absent key")


def lists(store: Store) -> None:
    """Keys are listed by prefix and level, with sizes or without, also while keys come and go."""
    sizes = {"a/b": 0, "a/c/d": 10, "abc": 5000, "ab/c": 1, "e/f/g": 1}
    for key, size in sizes.items():
        store.set(key, b"x" * size)
    for prefix in ("", "a/", "e/f/", "no/", "a/b/"):
        found = list(store.list_prefix(prefix))
        _same(sorted(found), sorted(key for key in sizes if key.startswith(prefix)), f"list of {prefix!r}")
        for each in found:
            _expect(
                getattr(each, "size", None) in (None, sizes[each]), f"{each!r} has the size {sizes[each]}"
            )
    _same(store.list_dir(""), ({"abc"}, {"a/", "ab/", "e/"}), "list_dir of the root")
    _same(store.list_dir("a/"), ({"a/b"}, {"a/c/"}), "list_dir of 'a/'")
    _same(store.list_dir("no/"), (set(), set()), "list_dir of an absent prefix")
    _same(list(store.leftovers()), [], "leftovers where no writer was killed")
    _fill(store, *(given := {f"{at % 7}/{at}" for at in range(60)}))
    seen = []
    for key in store.list():
        seen.append(str(key))
        store.erase(key)
        _fill(store, f"later/{len(seen)}")
        _expect(len(seen) < 300, "a list never ends while keys are added")
    _expect(len(set(seen)) == len(seen), "a list names a key twice")
    _expect(given <= set(seen), "a list leaves out keys while others come and go")


def read_only(store: Store) -> None:
    """A read-only store of the same values refuses every write and can be read."""
    _fill(store, "a/b")
    guarded = store.with_traits(read_only=True)
    _same(
        (guarded.readable, guarded.writeable, guarded.erasable),
        (True, False, False),
        "what it says it can do",
    )
    calls: Sequence[Callable[[], object]] = (
        lambda: guarded.set("a/b", b"x"),
        lambda: guarded.put("new", [b"x"]),
        lambda: guarded.set_partial_values([("a/b", 0, b"x")]),
        lambda: guarded.erase("a/b"),
        lambda: guarded.erase_values(["a/b"]),
        lambda: guarded.erase_prefix("a/"),
        lambda: guarded.copy("a/b", "c"),
        lambda: update(guarded, "a/b", lambda stored: [b"x"]),
    )
    for call in calls:
        _raises(ReadOnlyError, call, "a write to a read-only store")
    _same(_contents(store), {"a/b": _VALUE}, "all keys after refused writes")
    _check_value(guarded, "a/b", _VALUE)


def pickling(store: Store) -> None:
    """A pickled store reads the same in this process, and has the same identity."""
    _fill(store, "a/b")
    twin = pickle.loads(pickle.dumps(store))
    _same(type(twin), type(store), "the class of the unpickled store")
    _same(twin.identity, store.identity, "the identity of the unpickled store")
    _same(_plain(twin.get("a/b")), _VALUE, "a value of the unpickled store")


def threads(store: Store) -> None:
    """Readers see whole values; writers and erasers below one prefix do not disturb each other."""
    versions = [bytes([at]) * (4_000 + 900 * at) for at in range(5)]
    store.set("a/b", versions[0])

    def write() -> None:
        for value in versions * 8:
            store.set("a/b", value)

    def read() -> None:
        for _ in range(40):
            value = _plain(store.get("a/b"))
            _expect(value in versions, f"a reader sees {len(value or b'')} bytes that nobody stored")

    def come_and_go(name: str) -> None:
        for _ in range(20):
            store.set(f"c/d/{name}", _VALUE)
            _same(_plain(store.get(f"c/d/{name}")), _VALUE, "a value just stored")
            store.erase(f"c/d/{name}")

    def make_deep(name: str) -> None:
        for step in range(10):
            store.set(f"new/{step}/deep/{name}", _VALUE)

    _run(write, read, read, *(lambda name=name: come_and_go(name) for name in "xyz"))
    _run(*(lambda name=name: make_deep(name) for name in "pqr"))
    expected = ["a/b", *sorted(f"new/{step}/deep/{name}" for step in range(10) for name in "pqr")]
    _same(sorted(store.list()), expected, "a list after threads have written")


def versions(store: Store) -> None:
    """What the store says of versions stays while nothing changes, and changes with each value."""
    _fill(store, "a/b")
    seen = [store.versions(["a/b", "no"])]
    _same(len(seen[0]), 2, "the number of versions of two keys")
    _same(pickle.loads(pickle.dumps(seen[0])), seen[0], "a pickled version")
    if not store.traits.tells_changes:
        return
    _same(store.versions(["a/b", "no"]), seen[0], "versions while nothing changes")
    for at in range(50):  # Of the same size, and faster than the clock of a file system may tick.
        store.set("a/b", f"{at:010}".encode())
        seen.append(store.versions(["a/b", "no"]))
        _expect(seen[-1] != seen[-2], "the version stays although the value changes")
    store.erase("a/b")
    _expect(store.versions(["a/b", "no"]) != seen[-1], "the version stays although the key is erased")


CHECKS: dict[str, Callable[[Store], None]] = {
    check.__name__: check
    for check in (
        *(capabilities, absent, values, keys, invalid_keys, ranges, partial_writes, open_values, memory),
        *(conditions, updates, erasing, lists, read_only, pickling, threads, versions),
    )
}
"""The checks by name; each takes an empty store and raises, and its docstring says what it asks for."""
