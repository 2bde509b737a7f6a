"""The records of a zip file: its members, its directory and its end.

Specification: PKWARE APPNOTE 6.3.10, sections 4.3 (records), 4.4 (fields), 4.5.3 (ZIP64), 4.6.9 (names in
Unicode), appendix D (names in code page 437). Members are stored as they are (method 0) or deflated (8).
Members are those of :mod:`zipfile`, which also writes the directory. Its reader is of no use here: it
believes the sizes, and one bad member makes all others unreadable.

Nothing that a zip says about itself is believed: places and sizes must lie within it, members may not
overlap, and their number is that of the directory. What is wrong with the whole makes it unreadable; what is
wrong with one member makes that member unreadable; a name that no key can have is left out and remembered.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from isal import isal_zlib

from xzarr3._types import Buffer
from xzarr3.errors import InvalidKeyError, StoreError, shorten
from xzarr3.stores.base import check_key

crc32: Callable[..., int] = isal_zlib.crc32

LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")

TAIL = 2**16 + _END.size + _LOCATOR.size + _END64.size
"""How many bytes at the end of a zip are sure to hold its end, whatever comment there is."""
LARGEST_DIRECTORY = 2**29
"""Size in bytes beyond which a directory is not read."""
PIECE = 2**20
"""How many bytes of a deflated member are read at once."""
STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED, _DESCRIPTOR, _UNICODE, _STRONG, _MASKED = 1, 8, 0x800, 0x40, 0x2000
_METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}
_MOST_DEFLATED = 1032  # Deflate makes nothing smaller than by this factor.
_LONGEST_NAME = 0xFFFF
_UNIX, _MODE = 3, 0o100644 << 16
_ODD = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|\0").search


class Member(zipfile.ZipInfo):
    """One member: what the directory says of it, and what is known of its place."""

    __slots__ = ("is_respelled", "limit", "name_size", "problem", "start")

    def __init__(self, name: str, name_size: int) -> None:
        super().__init__(name)
        self.filename = name
        self.header_offset = 0
        self.name_size = name_size
        """Size of the name in the file, in bytes."""
        self.is_respelled = False
        """Whether the name in the file is not the name in UTF-8."""
        self.start = -1
        """Where the data begin; below 0 until the local header has been read."""
        self.limit = 0
        """Where the data end at the latest."""
        self.problem: str | None = None
        """Why it cannot be read."""

    @property
    def least_start(self) -> int:
        """Where the data begin at the earliest, and mostly do."""
        return self.header_offset + LOCAL.size + self.name_size

    @property
    def is_plain(self) -> bool:
        """Whether the value is stored as it is."""
        return self.compress_type == STORED and self.problem is None


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
    size: int
    """Size of the whole."""


class Directory(NamedTuple):
    """What the directory of a zip says."""

    end: End
    members: dict[str, Member]
    others: list[Member]
    """What is no key: folders, and names that no key can have."""
    unusable: dict[str, str]
    """Names that no key can have, and why."""
    digest: bytes
    """Of the directory, checksums of all values included."""


def find_end(tail: bytes, size: int | None, where: str) -> End:
    """The end of a zip.

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
    found: list[End] = []
    reason = "there is no end of a directory (cut off, or something else)"
    for match in reversed(list(re.finditer(b"PK\5\6", tail))):
        at = match.start()
        if len(tail) - at >= _END.size and _END.unpack_from(tail, at)[7] == len(tail) - at - _END.size:
            try:
                found.append(_end_at(tail, at, size))
            except ValueError as error:
                reason = str(error)
    if len(found) > 1:
        raise StoreError(f"{where} has {len(found)} ends, one within the comment of another; accepted: one")
    if not found:
        raise StoreError(f"{where} is no zip that can be read: {reason}; accepted: a whole zip file")
    return found[0]


def _end_at(tail: bytes, at: int, size: int | None) -> End:
    _, disk, first_disk, here, count, length, offset, _ = _END.unpack_from(tail, at)
    comment = tail[at + _END.size :]
    until = at  # In the tail: where the directory ends.
    if at >= _LOCATOR.size and tail.startswith(b"PK\6\7", at - _LOCATOR.size):
        _, wide_disk, _, disks = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        until = at - _LOCATOR.size - _END64.size
        if until < 0 or not tail.startswith(b"PK\6\6", until):
            raise ValueError("its ZIP64 end is not where it must be")
        small = (disk, first_disk, here, count, length, offset)
        wide = _END64.unpack_from(tail, until)[4:]
        full = (_FULL16,) * 4 + (_FULL32,) * 2
        if any(one not in (most, other) for one, other, most in zip(small, wide, full, strict=True)):
            raise ValueError("its two ends contradict one another")
        disk, first_disk, here, count, length, offset = wide
        disk = disk or wide_disk or disks > 1
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
    if length > LARGEST_DIRECTORY:
        raise ValueError(f"its directory has {length} bytes, {LARGEST_DIRECTORY} at most are read")
    return End(count, directory, length, shift, comment, size)


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
    end = find_end(last, size, where)
    first = end.directory - (end.size - len(last))
    if first >= 0:
        directory = last[first : first + end.directory_size]
    else:
        directory = bytes(read(end.directory, end.directory_size))
    members: dict[str, Member] = {}
    others: list[Member] = []
    unusable: dict[str, str] = {}
    everything: list[Member] = []
    for member, reason in _entries(directory, end, where):
        everything.append(member)
        name = member.filename
        if reason is not None:
            unusable[name] = reason
        if reason is not None or name.endswith("/"):
            others.append(member)
        else:
            members[name] = member  # Of several members of one name the last one counts.
    _check_places(everything, end)
    return Directory(end, members, others, unusable, digest_of(directory))


def digest_of(directory: Buffer) -> bytes:
    """What tells one directory from others."""
    return hashlib.blake2b(directory, digest_size=16).digest()


def _entries(directory: bytes, end: End, where: str) -> Iterator[tuple[Member, str | None]]:
    """The members of a directory, and why their names are no keys.

    Raises
    ------
    StoreError
        If there are more or fewer than the end says, or one is not whole.
    """
    unpack, fixed = _CENTRAL.unpack_from, _CENTRAL.size
    at = 0
    for number in range(end.number + 1):
        if number == end.number or len(directory) - at < fixed:
            break
        fields = unpack(directory, at)
        middle = at + fixed + fields[12]
        last = middle + fields[13]
        following = last + fields[14]
        if fields[0] != b"PK\1\2" or following > len(directory):
            break
        extra = directory[middle:last]
        name, is_respelled, reason = _name(directory[at + fixed : middle], fields, extra)
        member = Member(name, fields[12])
        member.is_respelled = is_respelled
        _fill(member, fields, extra, end.shift)
        member.comment = directory[last:following]
        yield member, reason
        at = following
    if number != end.number or at != len(directory):
        raise StoreError(
            f"{where} is no zip that can be read: its directory is not one of {end.number} members, from "
            f"number {number} on; accepted: a whole zip file"
        )


def _fill(member: Member, fields: tuple[Any, ...], extra: bytes, shift: int) -> None:
    _, member.create_version, member.create_system, member.extract_version, _, *fields_ = fields
    member.flag_bits, member.compress_type, time, date, member.CRC, stored, size, *_ = fields_
    disk, member.internal_attr, member.external_attr, offset = fields_[-4:]
    member.date_time = (
        *((date >> 9) + 1980, date >> 5 & 15, date & 31),
        *(time >> 11, time >> 5 & 63, (time & 31) * 2),
    )
    member.extra = extra
    if _FULL32 in (size, stored, offset):
        wide = _extra_field(extra, 1)
        numbers = iter(struct.unpack_from(f"<{len(wide) // 8}Q", wide))
        if wide:  # Otherwise full by chance.
            size, stored, offset = (
                next(numbers, None) if field == _FULL32 else field for field in (size, stored, offset)
            )
            disk = 0 if disk == _FULL16 else disk
        if None in (size, stored, offset):
            member.problem = "its ZIP64 field is too short"
    member.file_size, member.compress_size = size or 0, stored or 0
    member.header_offset = (offset or 0) + shift
    if disk or member.flag_bits & ~_UNICODE or member.compress_type or stored != size:  # Few are like that.
        member.problem = member.problem or _problem(member, disk)


def _problem(member: Member, disk: int) -> str | None:
    method, stored, size = member.compress_type, member.compress_size, member.file_size
    if member.flag_bits & (_ENCRYPTED | _STRONG | _MASKED):
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


def _extra_field(extra: bytes, wanted: int) -> bytes:
    """The first extra field of a kind; empty if there is none."""
    at = 0
    while len(extra) - at >= 4:
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == wanted:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return b""


def _name(raw: bytes, fields: tuple[Any, ...], extra: bytes) -> tuple[str, bool, str | None]:
    """The name of a member, whether the file spells it otherwise, and why no key can have it, or None.

    It is UTF-8 if that is said of it, or if it can be and comes from Unix, where Info-ZIP says nothing.
    """
    if not extra and raw.isascii() and not _ODD(name := raw.decode()):
        return name, False, None  # Nearly all are like that.
    is_unicode, spelled = bool(fields[5] & _UNICODE), raw
    known = _extra_field(extra, 0x7075)
    if len(known) > 5 and known[0] == 1 and int.from_bytes(known[1:5], "little") == zlib.crc32(raw):
        is_unicode, spelled = True, known[5:]
    try:
        name = spelled.decode("utf-8" if is_unicode or fields[2] == _UNIX else "cp437")
    except UnicodeDecodeError:
        if is_unicode:
            name = spelled.decode("ascii", "backslashreplace")
            return name, True, "the name is not the UTF-8 it says it is"
        name = spelled.decode("cp437")
    is_respelled = name.encode() != raw
    try:
        if not name.endswith("/") or name == "/":
            check_key(name)
    except InvalidKeyError as error:
        return name, is_respelled, str(error)
    return name, is_respelled, None


def _check_places(everything: list[Member], end: End) -> None:
    """See to it that no member lies outside of the zip or on another one."""
    everything.sort(key=lambda member: member.header_offset)
    for member, following in itertools.pairwise(everything):
        member.limit = following.header_offset
    if everything:
        everything[-1].limit = end.directory
    reach, holder = 0, None
    for member in everything:
        least = member.least_start + member.compress_size
        if least > end.directory:
            member.problem = member.problem or "it does not lie within the zip"
            continue
        if member.header_offset < reach and holder is not None:
            member.problem = member.problem or f"it overlaps member {shorten(holder.filename)}"
            holder.problem = holder.problem or f"member {shorten(member.filename)} overlaps it"
        if least > reach:
            reach, holder = least, member


def data_start(head: Buffer, member: Member, where: str) -> int:
    """Where the data of a member begin, as its local header says.

    Parameters
    ----------
    head : bytes
        The header and at least the name behind it.
    member : Member
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
    start = member.header_offset + LOCAL.size + name_size + extra_size
    says_sizes = not flags & _DESCRIPTOR and _FULL32 not in (stored, size)
    # Other letters may be spelled as the code page of another time has them.
    says_name = member.filename.isascii() and not member.is_respelled
    if (
        mark != b"PK\3\4"
        or method != member.compress_type
        or name_size != member.name_size
        or (says_sizes and (stored, size) != (member.compress_size, member.file_size))
        or (says_name and bytes(head[LOCAL.size :][:name_size]) != member.filename.encode())
    ):
        raise StoreError(f"{where}: its header and the directory contradict one another")
    if start + member.compress_size > member.limit:
        raise StoreError(f"{where}: its data reach into what follows")
    return int(start)


def inflate(pieces: Iterable[Buffer], start: int, stop: int, size: int, where: str) -> bytes:
    """The bytes from ``start`` to ``stop`` of a deflated member of ``size`` bytes, and hardly more memory.

    Raises
    ------
    StoreError
        If there are fewer, none that can be inflated, or more than ``size`` bytes, where all are asked for.
    """
    stream = zlib.decompressobj(-15)
    kept, at = [], 0
    most = stop + (stop == size)  # One more than there may be shows that there are more.
    try:
        for piece in pieces:
            rest: Buffer = piece
            while len(rest) and at < most and not stream.eof:
                found = stream.decompress(rest, min(PIECE, most - at) if start else most - at)
                kept.append(found[max(start - at, 0) :])
                at += len(found)
                rest = stream.unconsumed_tail
            if at >= most or stream.eof:
                break
    except zlib.error as error:
        raise StoreError(f"{where} cannot be inflated: {error}") from error
    if at < stop or at > size or (stop == size and not stream.eof):
        found_ = f"more than {size}" if at > size else f"{at}"
        raise StoreError(f"{where} inflates to {found_} bytes; accepted: the {size} that the directory says")
    return kept[0] if len(kept) == 1 else b"".join(kept)


# Writing


def new_member(key: str, size: int, crc: int) -> Member:
    """What a zip says of a value that is stored as it is.

    Raises
    ------
    InvalidKeyError
        If a zip cannot have a member of that name.
    """
    try:
        name = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: text that UTF-8 can spell") from error
    if len(name) > _LONGEST_NAME:
        raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: at most {_LONGEST_NAME} bytes of UTF-8")
    member = Member(key, len(name))
    member.file_size = member.compress_size = size
    member.CRC, member.create_system, member.external_attr = crc, _UNIX, _MODE
    return member


class _Shifted(io.BytesIO):
    """A file of which only what follows a place is held."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def tell(self) -> int:
        return self._first + super().tell()

    def seek(self, place: int, whence: int = 0) -> int:
        return self._first + super().seek(place - self._first, whence)


def directory_of(members: Iterable[Member], at: int, comment: bytes) -> bytes:
    """The directory that follows the members, and the end of the zip.

    Raises
    ------
    StoreError
        If what others have written of a member leaves no room for what must be added.
    """
    file = _Shifted(at)
    try:
        with zipfile.ZipFile(file, "w") as archive:
            archive.comment = comment
            archive.infolist().extend(members)
    except (struct.error, ValueError, zipfile.LargeZipFile) as error:
        raise StoreError(f"the directory of a zip cannot be written: {error}") from error
    return file.getvalue()
