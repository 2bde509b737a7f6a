"""Reads a zip: its end record, its directory and its members.

Specification: PKWARE APPNOTE 6.3.10, sections 4.3 (records), 4.4 (fields), 4.5.3 (ZIP64), 4.6.9 (names in
Unicode), appendix D (names in code page 437). Members are stored uncompressed (method 0) or deflated (8).

:mod:`zipfile` parses the directory entries, after this module has located the directory and checked that it
has as many entries as the end record says. Nothing else in a zip is trusted: members must lie within the zip
and must not overlap, and their sizes must be possible. Otherwise the whole zip is refused.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import sys
import zipfile
import zlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple
from zipfile import ZipInfo

from isal import isal_zlib

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import InvalidKeyError, StoreError, printable, shorten
from xzarr3.stores.base import ValueReader, check_key, negative_length
from xzarr3.stores.local.store import LocalStore

crc32: Callable[..., int] = isal_zlib.crc32

_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = 46  # Bytes of a directory entry, without its fields of variable length.
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")

TAIL = 2**16 + _END.size + _LOCATOR.size + _END64.size
"""Bytes at the end of a zip that always contain its end record, whatever the comment."""
LARGEST_DIRECTORY = 2**29
"""Largest size in bytes of a directory that is read."""
PIECE = 2**20
"""Bytes of a deflated member that are read at once."""
STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
UNIX = 3
"""The system code of members made on Unix."""
_UNICODE = 0x800
_ENCRYPTED, _DESCRIPTOR = 0x2041, 8
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}
_MOST_DEFLATED = 1032  # The best compression factor of deflate.
_SLACK = 60  # Bytes of a local header's extra fields that are read along with it.
_WHOLE = "copy the zip again, whole"
_CUT_OFF = f"it is truncated; {_WHOLE}"
_ODD = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|\0").search


# The directory


class End(NamedTuple):
    """The end record of a zip, which locates its directory."""

    number: int
    """Number of members."""
    start: int
    """Offset of the directory."""
    length: int
    shift: int
    """Number of bytes that were prepended to the zip."""
    records: bytes
    """The bytes that follow the directory."""
    comment: bytes


class Directory(NamedTuple):
    """The contents of a zip's directory."""

    start: int
    members: dict[str, ZipInfo]
    others: list[ZipInfo]
    """Members that are no keys: folders, and members with unusable names."""
    unusable: dict[str, str]
    """Names that cannot be keys, and the reasons."""
    offsets: list[int]
    """Offsets of the members, and of the directory."""
    comment: bytes
    digest: bytes
    """Hash of the directory, which contains the checksums of all values."""


def open_path(path: str) -> ValueReader | None:
    """Open a file; None if it does not exist. The requests are not reported."""
    folder, name = os.path.split(os.path.realpath(path))
    reader = LocalStore(folder)._reader(None, sys.maxsize).open(name)
    if reader is None and os.path.isdir(path):
        raise StoreError(f"'{printable(path)}' is not a file; accepted: a zip file")
    return reader


def read_directory(file: ValueReader, where: str) -> Directory:
    """Read the directory of a zip.

    Parameters
    ----------
    file : ValueReader
        The zip. Its end record and its directory are read.
    where : str
        The name of the zip, for error messages.

    Raises
    ------
    StoreError
        If the file is not a zip, or contradicts itself.
    """
    tail = bytes(file.read(-TAIL, TAIL))
    end = _find_end(tail, file.size, where)
    first = len(tail) - len(end.records) - end.length
    data = tail[first:][: end.length] if first >= 0 else bytes(file.read(end.start, end.length))
    infos = _entries(data, end.number, where)
    members: dict[str, ZipInfo] = {}
    others: list[ZipInfo] = []
    unusable: dict[str, str] = {}
    for info in infos:
        info.header_offset += end.shift
        name = info.filename = info.orig_filename
        if info.extra or _ODD(name) or not name.isascii():
            name = info.filename = _name(info)
            try:
                if not name.endswith("/") or name == "/":
                    check_key(name)
            except InvalidKeyError as error:
                unusable[name] = str(error)
            if name in unusable or name.endswith("/"):
                others.append(info)
                continue
        members[name] = info  # Of several members with one name the last one counts.
    place = attrgetter("header_offset")
    infos.sort(key=place)
    _check_places(infos, end.start, where)
    offsets = [*map(place, infos), end.start]
    return Directory(
        end.start, members, others, unusable, offsets, end.comment, digest_of(data + end.records)
    )


def digest_of(data: Buffer) -> bytes:
    """Identifies the directory of a zip and the records after it."""
    return hashlib.blake2b(data, digest_size=16).digest()


def _find_end(tail: bytes, size: int | None, where: str) -> End:
    """Find the end record in ``tail``, the last part of a zip, whose size may be known.

    Raises
    ------
    StoreError
        If there is no end record, or more than one.
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
        raise StoreError(f"{where} has {len(found)} ends, one within the comment of another; rewrite the zip")
    if not found:
        raise _no_zip(where, reason)
    return found[0]


def _no_zip(where: str, reason: str) -> StoreError:
    return StoreError(f"cannot read {where}: {reason}; {_WHOLE}")


def _end_at(tail: bytes, at: int, size: int | None) -> End:
    _, disk, first_disk, here, number, length, offset, _ = _END.unpack_from(tail, at)
    until = at  # End of the directory.
    if at >= _LOCATOR.size and tail.startswith(b"PK\6\7", at - _LOCATOR.size):
        _, wide_disk, _, disks = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        until = at - _LOCATOR.size - _END64.size
        if until < 0 or not tail.startswith(b"PK\6\6", until):
            raise ValueError("its ZIP64 end is not where it must be")
        small = (disk, first_disk, here, number, length, offset)
        wide = _END64.unpack_from(tail, until)[4:]
        full = (_FULL16,) * 4 + (_FULL32,) * 2
        if any(one not in (most, other) for one, other, most in zip(small, wide, full, strict=True)):
            raise ValueError("its two ends contradict one another")
        disk, first_disk, here, number, length, offset = wide
        disk = disk or wide_disk or disks > 1
    if disk or first_disk or here != number:
        raise ValueError("it is split into several files")
    if size is None:  # Then nothing can have been prepended.
        size = len(tail) if len(tail) < TAIL else offset + length + len(tail) - until
    start = size - len(tail) + until - length
    if not 0 <= offset <= start:
        raise ValueError(f"its directory of {length} bytes from {offset} on does not lie within {size} bytes")
    if number * _ENTRY > length:
        raise ValueError(f"{number} members cannot be listed in {length} bytes")
    if length > LARGEST_DIRECTORY:
        raise ValueError(f"its directory has {length} bytes, {LARGEST_DIRECTORY} at most are read")
    return End(number, start, length, start - offset, tail[until:], tail[at + _END.size :])


def _entries(directory: bytes, expected: int, where: str) -> list[ZipInfo]:
    """Parse the entries of a directory.

    They are counted first, because :mod:`zipfile` trusts their lengths and creates an object for each.
    """
    lengths = struct.Struct("<3H").unpack_from
    at = number = 0
    while at + _ENTRY <= len(directory):
        name, extra, comment = lengths(directory, at + 28)
        at += _ENTRY + name + extra + comment
        number += 1
    # zipfile would take bytes that look like a ZIP64 locator for one.
    if (number, at) != (expected, len(directory)) or directory[-_LOCATOR.size :].startswith(b"PK\6\7"):
        raise _no_zip(where, f"its directory is not one of {expected} members")
    count = min(number, _FULL16)
    end = _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), 0, 0)
    try:
        with zipfile.ZipFile(io.BytesIO(directory + end)) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError) as error:
        raise _no_zip(where, f"its directory is damaged, or too new: {error}") from error


def raw_name(info: ZipInfo) -> bytes:
    """The bytes of a member's name in the file."""
    name = info.orig_filename
    return name.encode("utf-8" if info.flag_bits & _UNICODE or name.isascii() else "cp437")


def _name(info: ZipInfo) -> str:
    """The name of a member, decoded.

    It is UTF-8 if it is marked so. It is also UTF-8 if it comes from Unix and is valid UTF-8, because
    Info-ZIP does not set the mark there.
    """
    raw, extra = raw_name(info), info.extra
    is_unicode = bool(info.flag_bits & _UNICODE) or info.create_system == UNIX
    at = extra.find(b"\1" + zlib.crc32(raw).to_bytes(4, "little")) - 4
    if at >= 0 and extra.startswith(b"up", at):
        length = int.from_bytes(extra[at + 2 : at + 4], "little")
        raw, is_unicode = extra[at + 9 : at + 4 + length], True
    try:
        return raw.decode("utf-8" if is_unicode else "cp437")
    except UnicodeDecodeError:
        return info.orig_filename


def _check_places(infos: list[ZipInfo], end: int, where: str) -> None:
    """Check that members lie within the zip, do not overlap and have possible sizes."""
    reach = 0
    for number, info in enumerate(infos):
        stored, size, start = info.compress_size, info.file_size, info.header_offset
        name = info.orig_filename
        name_size = len(name) if name.isascii() else len(raw_name(info))
        before, reach = reach, start + _LOCAL.size + name_size + stored
        if before <= start and reach <= end and stored == size and not info.volume:
            continue  # True for nearly all members.
        if start < before:
            found = f"overlaps member {shorten(infos[number - 1].filename)}"
        elif reach > end:
            found = "does not lie within the zip"
        elif info.volume not in (0, _FULL16):
            found = "lies in another file"
        elif info.compress_type == STORED and stored != size and not info.flag_bits & _ENCRYPTED:
            found = f"is stored as it is, but in {stored} bytes and not in {size}"
        elif info.compress_type == DEFLATED and size > stored * _MOST_DEFLATED:
            found = f"is said to have {size} bytes, which {stored} bytes of deflate cannot be"
        else:
            continue
        raise StoreError(f"{where}: member {shorten(info.filename)} {found}; {_WHOLE}")


# Members


class View:
    """The present contents of a zip, and access to its values.

    Parameters
    ----------
    where : str
        The name of the zip, for error messages.
    file : ValueReader
        The bytes of the zip. It is closed when the view is no longer referenced.
    is_near : bool
        Whether reading again costs less than copying what was read.
    directory : Directory or None
    lineage : object
        Distinguishes the members from those of other zips, and of other writers of this zip.
    """

    def __init__(
        self, where: str, file: ValueReader, is_near: bool, directory: Directory | None, lineage: object
    ) -> None:
        self.where = where
        self.file = file
        self.is_near = is_near
        self.members: dict[str, ZipInfo] = {} if directory is None else directory.members
        self.unusable: dict[str, str] = {} if directory is None else directory.unusable
        self.lineage = lineage
        self.changes = 0
        self._offsets = [] if directory is None else directory.offsets
        self._starts: dict[int, int] = {}  # Offset of a member's data, by offset of the member.
        self._sorted: list[str] | None = None

    def __del__(self) -> None:
        self.file.close()

    @property
    def token(self) -> object:
        """Changes with every change of the contents."""
        return self.lineage, self.changes

    def version(self, info: ZipInfo | None) -> object | None:
        """Distinguishes the value of a member from all other values of its key."""
        return None if info is None else (self.lineage, info.header_offset, info.CRC, info.file_size)

    # Changing and listing. The caller holds the lock of the store.

    def put(self, info: ZipInfo, start: int) -> None:
        """Add a value, whose data begin at ``start``."""
        self._starts[info.header_offset] = start
        if self._sorted is not None and info.filename not in self.members:
            insort(self._sorted, info.filename)
        self.members[info.filename] = info
        self.changes += 1

    def remove(self, keys: Iterable[str]) -> None:
        """Remove values."""
        for key in keys:
            if self.members.pop(key, None) is not None:
                self.changes += 1
                self._sorted = None

    def below(self, prefix: str) -> list[str]:
        """The keys that begin with a prefix."""
        keys = self._keys()
        # The end of the range: "0" is the character after "/".
        end = bisect_left(keys, f"{prefix[:-1]}0") if prefix else len(keys)
        return keys[bisect_left(keys, prefix) : end]

    def _keys(self) -> list[str]:
        """All keys, sorted."""
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(self.members)
        return keys

    def directly_below(self, prefix: str) -> tuple[set[str], set[str]]:
        """The keys and the prefixes directly below a prefix."""
        below = self.below(prefix)
        keys: set[str] = set()
        prefixes: set[str] = set()
        at = 0
        while at < len(below):
            name, slash, _ = below[at][len(prefix) :].partition("/")
            (prefixes if slash else keys).add(f"{prefix}{name}{slash}")
            at = bisect_left(below, f"{prefix}{name}0", at) if slash else at + 1
        return keys, prefixes

    # Reading

    def whole(self, info: ZipInfo) -> Buffer:
        """A whole value, verified by its checksum."""
        size = info.compress_size
        start, data = self._start(info, size)
        if len(data) != size:
            data = self.file.read(start, size)
        if len(data) != size:
            raise self._error(info, _CUT_OFF)
        if info.compress_type != STORED:
            data = self._inflate(info, [data], 0, info.file_size)
        if crc32(data) != info.CRC:
            raise self._damaged(info, crc32(data))
        return data

    def is_plain(self, info: ZipInfo) -> bool:
        """Whether a value is best read directly into its destination."""
        return self.is_near and info.compress_type == STORED

    def read_into(self, info: ZipInfo, start: int, out: memoryview) -> None:
        """Read a part of a plain value into ``out``."""
        if self.file.read_into(self._start(info)[0] + start, out) != len(out):
            raise self._error(info, _CUT_OFF)
        if len(out) == info.file_size and crc32(out) != info.CRC:
            raise self._damaged(info, crc32(out))

    def parts(self, info: ZipInfo, ranges: Iterable[ByteRange]) -> list[Buffer]:
        """Several parts of a value, shorter where the value ends."""
        size = info.file_size
        wanted = [_within(byte_range, size) for byte_range in ranges]
        if (0, size) in wanted:
            window, first = memoryview(self.whole(info)), 0
        elif info.compress_type == STORED:
            return self._stored_parts(info, wanted)
        else:
            some = [(start, start + length) for start, length in wanted if length]
            first, last = min(some, default=(0, 0))[0], max((stop for _, stop in some), default=0)
            window = memoryview(self._inflate(info, self._pieces(info), first, last))
        return [window[start - first :][:length] if length else b"" for start, length in wanted]

    def _stored_parts(self, info: ZipInfo, wanted: list[tuple[int, int]]) -> list[Buffer]:
        lengths = [length for _, length in wanted]
        place, found = self._starts.get(info.header_offset), None
        if place is None:
            offset, name = info.header_offset, raw_name(info)
            least = offset + _LOCAL.size + len(name)
            starts = [offset, *(least + start for start, _ in wanted)]
            head, *found = self.file.read_ranges(starts, [least - offset, *lengths])
            place = self._found(info, name, head)
            if place != least:  # Extra fields, which are rare.
                found = None
        if found is None:
            found = self.file.read_ranges([place + start for start, _ in wanted], lengths)
        if [len(part) for part in found] != lengths:
            raise self._error(info, _CUT_OFF)
        return found

    def _pieces(self, info: ZipInfo) -> Iterator[Buffer]:
        """The stored data of a member, read piece by piece."""
        start, size = self._start(info)[0], info.compress_size
        for at in range(0, size, PIECE):
            yield self.file.read(start + at, min(PIECE, size - at))

    def _start(self, info: ZipInfo, most: int = 0) -> tuple[int, Buffer]:
        """Offset of a member's data; and up to ``most`` bytes of it, if the header had to be read."""
        offset = info.header_offset
        start = self._starts.get(offset)
        if start is not None:
            return start, b""
        name = raw_name(info)
        block = self.file.read(offset, _LOCAL.size + len(name) + (most + _SLACK if most else 0))
        start = self._found(info, name, block)
        return start, memoryview(block)[start - offset :][:most]

    def _found(self, info: ZipInfo, name: bytes, head: Buffer) -> int:
        """Offset of a member's data according to its header, of which ``head`` holds all but extra fields.

        Raises
        ------
        StoreError
            If the member cannot be read, or its header does not match the directory.
        """
        method = info.compress_type
        if info.flag_bits & _ENCRYPTED:
            raise self._error(info, "it is encrypted; rewrite the zip without encryption")
        if method not in (STORED, DEFLATED):
            called = f"{method} ({_METHODS[method]})" if method in _METHODS else f"{method}"
            accepted = f"{STORED} (stored), {DEFLATED} (deflate)"
            raise self._error(info, f"it is compressed by method {called}; accepted: {accepted}")
        if len(head) < _LOCAL.size + len(name):
            raise self._error(info, _CUT_OFF)
        mark, _, flags, said, _, _, _, stored, size, name_size, extra_size = _LOCAL.unpack_from(head)
        says_sizes = not flags & _DESCRIPTOR and _FULL32 not in (stored, size)
        # A name that is not ASCII may be spelled in another code page in the header.
        says_name = name.isascii() and info.filename == info.orig_filename
        if (
            mark != b"PK\3\4"
            or said != method
            or name_size != len(name)
            or (says_sizes and (stored, size) != (info.compress_size, info.file_size))
            or (says_name and bytes(head[_LOCAL.size :][:name_size]) != name)
        ):
            raise self._error(info, f"its header contradicts the directory; {_WHOLE}")
        start = info.header_offset + _LOCAL.size + int(name_size) + int(extra_size)
        if start + info.compress_size > self._offsets[bisect_right(self._offsets, info.header_offset)]:
            raise self._error(info, f"its data overlap the next member; {_WHOLE}")
        self._starts[info.header_offset] = start
        return start

    def _inflate(self, info: ZipInfo, pieces: Iterable[Buffer], start: int, stop: int) -> bytes:
        """The bytes from ``start`` to ``stop`` of a deflated member, with little additional memory.

        Raises
        ------
        StoreError
            If the member is shorter or cannot be inflated, or, where it is read to its end, is longer.
        """
        stream, size = zlib.decompressobj(-15), info.file_size
        kept, at = [], 0
        most = stop + (stop == size)  # One more byte than expected shows a member that is too long.
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
            raise self._error(info, f"it cannot be inflated: {error}; {_WHOLE}") from error
        if at < stop or at > size or (stop == size and not stream.eof):
            length = f"more than {size}" if at > size else f"{at}"
            raise self._error(info, f"it inflates to {length} bytes, the directory says {size}; {_WHOLE}")
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def _damaged(self, info: ZipInfo, actual: int) -> StoreError:
        return self._error(
            info, f"CRC mismatch: the directory says {info.CRC:#010x}, the data have {actual:#010x}; {_WHOLE}"
        )

    def _error(self, info: ZipInfo, problem: str) -> StoreError:
        return StoreError(f"cannot read key '{info.filename}' of {self.where}: {problem}")


class MemberReader(ValueReader):
    """Parts of one member, as it was when it was opened."""

    def __init__(self, view: View, info: ZipInfo) -> None:
        self._view = view
        self._info = info
        self.size: int = info.file_size

    @property
    def version(self) -> object | None:
        return self._view.version(self._info)

    def read(self, start: int, length: int | None = None) -> Buffer:
        return self._view.parts(self._info, [(start, length)])[0]

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        return self._view.parts(self._info, zip(starts, lengths, strict=True))

    def read_into(self, start: int, out: memoryview) -> int:
        if start < 0 or not self._view.is_plain(self._info):
            return super().read_into(start, out)
        count = min(len(out), max(self.size - start, 0))
        self._view.read_into(self._info, start, out[:count])
        return count


def _within(byte_range: ByteRange, size: int) -> tuple[int, int]:
    """Start and length of a byte range, clipped to a value of ``size`` bytes."""
    start, length = byte_range
    if length is not None and length < 0:
        raise negative_length(length)
    first = min(start if start >= 0 else max(size + start, 0), size)
    return first, size - first if length is None else min(length, size - first)
