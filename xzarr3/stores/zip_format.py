"""The records of a zip file: its members, its directory and its end.

Specification: PKWARE APPNOTE 6.3.10, sections 4.3 (records), 4.4 (fields), 4.5.3 (ZIP64), 4.6.9 (names in
Unicode), appendix D (names that are in none). Members are stored as they are (method 0) or deflated (8).

Nothing that a zip says about itself is believed: places and sizes must lie within it, members may not
overlap, and their number is that of the directory. What is wrong with the whole makes it unreadable; what is
wrong with one member makes that member unreadable; a name that no key can have is left out and remembered.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from isal import isal_zlib

from xzarr3._types import Buffer
from xzarr3.errors import InvalidKeyError, StoreError, shorten
from xzarr3.stores.base import check_key

crc32: Callable[..., int] = isal_zlib.crc32

LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCAL_WIDE = struct.Struct("<2H2Q")

_LOCAL_MARK, _CENTRAL_MARK, _END_MARK = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_LOCATOR_MARK, _END64_MARK = b"PK\6\7", b"PK\6\6"

TAIL = 2**16 + _END.size + _LOCATOR.size + _END64.size
"""How many bytes at the end of a zip are sure to hold its end, whatever comment there is."""
PIECE = 2**24
"""How many bytes of a directory are read at once."""
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_DATE = 0x21  # The first of January 1980, always: equal values make equal bytes.
_MODE = 0o100644 << 16
_UNIX = 3 << 8
_ENCRYPTED, _DESCRIPTOR, _UNICODE = 1, 8, 0x800
_STRONG, _MASKED = 0x40, 0x2000
STORED, DEFLATED = 0, 8
_METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}
_MOST_DEFLATED = 1032  # Deflate makes nothing smaller than by this factor.
_LONGEST_NAME = 0xFFFF
_SUSPICIOUS = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|\0").search


class Member:
    """One member: where it lies, and what is known of it."""

    __slots__ = (
        *("crc", "header", "limit", "method", "name_size"),
        *("problem", "size", "source", "start", "stored"),
    )

    def __init__(
        self, header: int, name_size: int, method: int, crc: int, stored: int, size: int, source: int = 0
    ) -> None:
        self.header = header
        """Where its local header is."""
        self.name_size = name_size
        self.method = method
        self.crc = crc
        self.stored = stored
        """Size in the file, in bytes."""
        self.size = size
        """Size of the value, in bytes."""
        self.source = source
        """Which file it lies in: 0 for the zip, 1 for what is being written."""
        self.start = -1
        """Where the data begin; below 0 until its header has been read."""
        self.limit = header
        """Where the data end at the latest."""
        self.problem: str | None = None
        """Why it cannot be read."""

    @property
    def least_start(self) -> int:
        """Where the data begin at the earliest, and mostly do."""
        return self.header + LOCAL.size + self.name_size


class End(NamedTuple):
    """The end of a zip: where its directory is."""

    number: int
    """How many members there are."""
    directory: int
    """Where the directory begins."""
    directory_size: int
    shift: int
    """How many bytes were put in front of the zip."""
    comment: bytes


class Directory(NamedTuple):
    """What the directory of a zip says."""

    end: End
    size: int
    members: dict[str, Member]
    unusable: dict[str, str]
    """Names that no key can have, and why."""
    digest: bytes
    """Of the directory, checksums of all values included."""


def find_end(tail: bytes, size: int | None, where: str) -> tuple[End, int]:
    """The end of a zip and the size of the whole.

    Parameters
    ----------
    tail : bytes
        The last ``TAIL`` bytes, or all of them.
    size : int or None
        Size of the whole, if it is known.
    where : str
        The name of the zip, for messages.

    Raises
    ------
    StoreError
        If there is no end, or more than one.
    """
    found: list[tuple[End, int]] = []
    reasons = []
    at = tail.rfind(_END_MARK)
    while at >= 0:
        if len(tail) - at >= _END.size and _END.unpack_from(tail, at)[7] == len(tail) - at - _END.size:
            try:
                found.append(_end_at(tail, at, size))
            except ValueError as error:
                reasons.append(str(error))
        at = tail.rfind(_END_MARK, 0, at + len(_END_MARK) - 1)
    if len(found) == 1:
        return found[0]
    if found:
        raise StoreError(f"{where} has {len(found)} ends, one within the comment of another; accepted: one")
    reason = reasons[0] if reasons else "there is no end of a directory (cut off, or something else)"
    raise StoreError(f"{where} is no zip that can be read: {reason}; accepted: a whole zip file")


def _end_at(tail: bytes, at: int, size: int | None) -> tuple[End, int]:
    _, disk, first_disk, here, count, length, offset, _ = _END.unpack_from(tail, at)
    comment = tail[at + _END.size :]
    until = at  # In the tail: where the directory ends.
    if at >= _LOCATOR.size and tail.startswith(_LOCATOR_MARK, at - _LOCATOR.size):
        _, wide_disk, _, disks = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        until = at - _LOCATOR.size - _END64.size
        if until < 0 or not tail.startswith(_END64_MARK, until):
            raise ValueError("its ZIP64 end is not where it must be")
        small = (disk, first_disk, here, count, length, offset)
        wide = _END64.unpack_from(tail, until)[4:]
        full = (_FULL16,) * 4 + (_FULL32,) * 2
        if any(one not in (most, other) for one, other, most in zip(small, wide, full, strict=True)):
            raise ValueError("its two ends contradict one another")
        disk, first_disk, here, count, length, offset = wide
        if wide_disk or disks > 1:
            raise ValueError("it is split into several files")
    if disk or first_disk or here != count:
        raise ValueError("it is split into several files")
    if size is None:  # Then nothing can have been put in front of it.
        size = len(tail) if len(tail) < TAIL else offset + length + len(tail) - until
    directory = size - len(tail) + until - length
    shift = directory - offset
    if directory < 0 or shift < 0:
        raise ValueError(f"its directory of {length} bytes from {offset} on does not lie within {size} bytes")
    if count * _CENTRAL.size > length:
        raise ValueError(f"{count} members cannot be listed in {length} bytes")
    return End(count, directory, length, shift, comment), size


def read_directory(
    read: Callable[[int, int], Buffer], tail: Buffer, size: int | None, where: str
) -> Directory:
    """What a zip holds.

    Parameters
    ----------
    read : callable
        Reads bytes from a start on; only the directory is read.
    tail : bytes
        The last ``TAIL`` bytes, or all of them.
    size : int or None
        Size of the whole, if it is known.
    where : str
        The name of the zip, for messages.

    Raises
    ------
    StoreError
        If it is not a zip, or one that contradicts itself.
    """
    last = bytes(tail)
    end, size = find_end(last, size, where)
    digest = hashlib.blake2b(digest_size=16)
    members: dict[str, Member] = {}
    unusable: dict[str, str] = {}
    everything: list[tuple[Member, str]] = []

    def pieces() -> Iterator[Buffer]:
        for piece in _pieces(read, last, end, size):
            digest.update(piece)
            yield piece

    for name, member, reason, _ in entries(pieces(), end, where):
        everything.append((member, name))
        if reason is not None:
            unusable[name] = reason
        elif not name.endswith("/"):
            members[name] = member  # Of several members of one name the last one counts.
    _check_places(everything, end)
    return Directory(end, size, members, unusable, digest.digest())


def _pieces(read: Callable[[int, int], Buffer], tail: bytes, end: End, size: int) -> Iterator[Buffer]:
    """The directory, in pieces: a zip may say that it is larger than memory."""
    at, stop = end.directory, end.directory + end.directory_size
    first = size - len(tail)
    if at >= first:
        yield tail[at - first : stop - first]
        return
    while at < stop:
        piece = read(at, min(PIECE, stop - at))
        if not len(piece):
            return
        at += len(piece)
        yield piece


def entries(
    pieces: Iterable[Buffer], end: End, where: str
) -> Iterator[tuple[str, Member, str | None, bytes]]:
    """The entries of a directory: name, member, why the name is unusable or None, and the bytes.

    Raises
    ------
    StoreError
        If there are more or fewer than the end says, or one is not whole.
    """
    unpack, fixed = _CENTRAL.unpack_from, _CENTRAL.size
    count, buffer = 0, b""
    for piece in pieces:
        buffer = buffer + piece if buffer else bytes(piece)
        at = 0
        while len(buffer) - at >= fixed:
            fields = unpack(buffer, at)
            if fields[0] != _CENTRAL_MARK:
                raise _torn(where, count, end)
            next_ = at + fixed + fields[10] + fields[11] + fields[12]
            if next_ > len(buffer):
                break
            count += 1
            if count > end.number:
                raise _torn(where, count, end)
            yield *_entry(buffer, at, fields, end), buffer[at:next_]
            at = next_
        buffer = buffer[at:]
    if buffer or count != end.number:
        raise _torn(where, count, end)


def _torn(where: str, count: int, end: End) -> StoreError:
    return StoreError(
        f"{where} is no zip that can be read: its directory is not one of {end.number} members, from number "
        f"{count} on; accepted: a whole zip file"
    )


def _entry(buffer: bytes, at: int, fields: tuple[Any, ...], end: End) -> tuple[str, Member, str | None]:
    _, made, _, flags, method, _, _, crc, stored, size, name_size, extra_size, _, disk, _, _, offset = fields
    middle = at + _CENTRAL.size + name_size
    raw_name = buffer[middle - name_size : middle]
    if not (extra_size or disk or method or flags & ~_UNICODE or stored != size) and raw_name.isascii():
        name = raw_name.decode()  # Nearly all are like that.
        if _SUSPICIOUS(name) is None and size != _FULL32 and offset != _FULL32:
            return name, Member(offset + end.shift, name_size, 0, crc, size, size), None
    problem = None
    extra = _extra_fields(buffer[middle : middle + extra_size]) if extra_size else {}
    if _FULL32 in (stored, size, offset):
        try:
            (size, stored, offset), disk = _widened(extra.get(1, b""), (size, stored, offset), disk)
        except ValueError as error:
            problem = str(error)
    member = Member(offset + end.shift, name_size, method, crc, stored, size)
    member.problem = problem or _problem(flags, method, stored, size, disk)
    name, reason = _name(raw_name, flags, made >> 8, extra)
    return name, member, reason


def _problem(flags: int, method: int, stored: int, size: int, disk: int) -> str | None:
    if flags & (_ENCRYPTED | _STRONG | _MASKED):
        return "it is encrypted; accepted: members that are not"
    if method not in (STORED, DEFLATED):
        name = f"{method} ({_METHODS[method]})" if method in _METHODS else f"{method}"
        return f"it is compressed by method {name}; accepted: 0 (stored), 8 (deflate)"
    if disk not in (0, _FULL16):
        return "it lies in another file; accepted: a zip of one file"
    if method == STORED and stored != size:
        return f"it is stored as it is, but in {stored} bytes and not in {size}"
    if method == DEFLATED and size > stored * _MOST_DEFLATED:
        return f"{stored} bytes of deflate cannot be {size} bytes of data"
    return None


def _extra_fields(extra: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while len(extra) - at >= 4:
        kind, length = struct.unpack_from("<2H", extra, at)
        found.setdefault(kind, extra[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def _widened(extra: bytes, fields: tuple[int, ...], disk: int) -> tuple[tuple[int, ...], int]:
    """Fields with those that are full replaced by what the ZIP64 field says of them."""
    if not extra:  # Full by chance.
        return fields, disk
    numbers = iter(struct.unpack_from(f"<{len(extra) // 8}Q", extra))
    wide = []
    for field in fields:
        if field == _FULL32:
            value = next(numbers, None)
            if value is None:
                raise ValueError("its ZIP64 field is too short")
            wide.append(value)
        else:
            wide.append(field)
    return tuple(wide), 0 if disk == _FULL16 else disk


def _name(raw: bytes, flags: int, host: int, extra: dict[int, bytes]) -> tuple[str, str | None]:
    """The name of a member, and why no key can have it, or None.

    It is UTF-8 if that is said of it, or if it can be and comes from Unix, where Info-ZIP says nothing.
    """
    known = extra.get(0x7075, b"")
    if len(known) > 5 and known[0] == 1 and int.from_bytes(known[1:5], "little") == zlib.crc32(raw):
        raw, flags = known[5:], flags | _UNICODE
    try:
        name = raw.decode("utf-8" if flags & _UNICODE or host << 8 == _UNIX else "cp437")
    except UnicodeDecodeError:
        if flags & _UNICODE:
            return raw.decode("ascii", "backslashreplace"), "the name is not the UTF-8 it says it is"
        name = raw.decode("cp437")
    try:
        if not name.endswith("/") or name == "/":
            check_key(name)
    except InvalidKeyError as error:
        return name, str(error)
    return name, None


def _check_places(everything: list[tuple[Member, str]], end: End) -> None:
    """See to it that no member lies outside of the zip or on another one."""
    everything.sort(key=lambda pair: pair[0].header)
    reach, holder = 0, None
    last: Member | None = None
    head_size = LOCAL.size
    for member, name in everything:
        header = member.header
        if last is not None:
            last.limit = header
        last = member
        least = header + head_size + member.name_size + member.stored
        if least > end.directory:
            member.problem = member.problem or "it does not lie within the zip"
            continue
        if header < reach and holder is not None:
            other, other_name = holder
            member.problem = member.problem or f"it overlaps member {shorten(other_name)}"
            other.problem = other.problem or f"member {shorten(name)} overlaps it"
        if least > reach:
            reach, holder = least, (member, name)
    if last is not None:
        last.limit = end.directory


def data_start(head: Buffer, member: Member, name: bytes | None, where: str) -> int:
    """Where the data of a member begin, as its local header says.

    Parameters
    ----------
    head : bytes
        The header and at least the name behind it.
    member : Member
    name : bytes or None
        Its name in UTF-8; None if it may be spelled in another way.
    where : str
        The name of the member and of the zip, for messages.

    Raises
    ------
    StoreError
        If the header is not that of the member.
    """
    if len(head) < LOCAL.size + member.name_size:
        raise StoreError(f"{where} is cut off within its header")
    mark, _, flags, method, _, _, _, stored, size, name_size, extra_size = LOCAL.unpack_from(head)
    start = member.header + LOCAL.size + name_size + extra_size
    sizes = (stored, size) if not flags & _DESCRIPTOR and _FULL32 not in (stored, size) else None
    if (
        mark != _LOCAL_MARK
        or method != member.method
        or name_size != member.name_size
        or (sizes is not None and sizes != (member.stored, member.size))
        or (name is not None and name != bytes(head[LOCAL.size : LOCAL.size + name_size]))
    ):
        raise StoreError(f"{where}: its header and the directory contradict one another")
    if start + member.stored > member.limit:
        raise StoreError(f"{where}: its data reach into what follows")
    return int(start)


def inflate(data: Buffer, size: int, where: str) -> bytes:
    """The ``size`` bytes of a deflated member, and never more.

    Raises
    ------
    StoreError
        If there are more, fewer, or none that can be inflated.
    """
    stream = zlib.decompressobj(-15)
    try:
        value = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise StoreError(f"{where} cannot be inflated: {error}") from error
    if len(value) != size or not stream.eof:
        found = f"more than {size}" if len(value) > size else f"{len(value)}"
        raise StoreError(f"{where} inflates to {found} bytes; accepted: the {size} that the directory says")
    return value


def encoded_name(key: str) -> bytes:
    """The name of a member for a key.

    Raises
    ------
    InvalidKeyError
        If a zip cannot have it.
    """
    try:
        name = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: text that UTF-8 can spell") from error
    if len(name) > _LONGEST_NAME:
        raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: at most {_LONGEST_NAME} bytes of UTF-8")
    return name


def _flags(name: bytes) -> int:
    return 0 if name.isascii() else _UNICODE


def local_header(name: bytes, crc: int, size: int) -> bytes:
    """The header in front of a value that is stored as it is."""
    wide = size >= _FULL32
    short = _FULL32 if wide else size
    version = 45 if wide else 20
    extra = _LOCAL_WIDE.pack(1, 16, size, size) if wide else b""
    head = LOCAL.pack(
        *(_LOCAL_MARK, version, _flags(name), STORED, 0, _DATE, crc, short, short, len(name), len(extra))
    )
    return head + name + extra


def central_entry(name: bytes, member: Member) -> bytes:
    """What the directory says of a value that is stored as it is."""
    wide = []
    size, offset = member.size, member.header
    if size >= _FULL32:
        wide += [size, size]
    if offset >= _FULL32:
        wide.append(offset)
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    version = 45 if wide else 20
    short = min(size, _FULL32)
    return (
        _CENTRAL.pack(
            *(_CENTRAL_MARK, _UNIX | version, version, _flags(name), STORED, 0, _DATE),
            *(member.crc, short, short, len(name), len(extra), 0, 0, 0, _MODE, min(offset, _FULL32)),
        )
        + name
        + extra
    )


def end_records(count: int, directory: int, size: int, comment: bytes) -> bytes:
    """What follows the directory."""
    wide = b""
    if count >= _FULL16 or directory >= _FULL32 or size >= _FULL32:
        wide = _END64.pack(
            *(_END64_MARK, _END64.size - 12, _UNIX | 45, 45, 0, 0, count, count, size, directory)
        ) + _LOCATOR.pack(_LOCATOR_MARK, 0, directory + size, 1)
    few = min(count, _FULL16)
    return (
        wide
        + _END.pack(*(_END_MARK, 0, 0, few, few, min(size, _FULL32), min(directory, _FULL32), len(comment)))
        + comment
    )
