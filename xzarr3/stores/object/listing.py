"""Reads the HTML page with which a web server lists a folder: that of Python, nginx, Apache or lighttpd.

Only names of direct children come out of a page. None of its links is followed.
"""

from __future__ import annotations

import codecs
import re
import time
from html.parser import HTMLParser
from http.client import HTTPResponse
from typing import Final
from urllib.parse import unquote, urljoin

from xzarr3.errors import InvalidKeyError
from xzarr3.stores.keys import check_key
from xzarr3.stores.object.errors import AnswerError, Failure

Names = tuple[set[str], set[str]]
"""The names of files, and those of folders."""

_TITLE = re.compile(r"\s*(index of|directory listing for) /", re.IGNORECASE)
_CHILD = re.compile(r"(\./[^/?#]+|[^/?#:]+)(/?)")  # Without './' a colon would end a scheme.
_BELOW = re.compile(r"[^/?#]+/?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PIECE: Final = 2**14  # Bytes read at a time.
_LONGEST: Final = 2**16  # Characters of an unfinished tag; parsing takes the square of it.
_LARGEST: Final = 2**22  # Bytes of a page.
_MOST: Final = 20_000  # Links on a page.


class _Page(HTMLParser):
    """The names on a page that lists the folder at ``url``."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._heading: str | None = None
        self.names: Names = set(), set()
        self.number = 0
        self.is_list = self.is_whole = self.is_strange = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("title", "h1"):
            self._heading = ""
        elif tag == "a":
            self._note(dict(attrs).get("href") or "")

    def handle_data(self, data: str) -> None:
        if self._heading is not None:
            self._heading += data

    def handle_endtag(self, tag: str) -> None:
        self.is_list |= _TITLE.match(self._heading or "") is not None
        self.is_whole |= tag == "html"
        self._heading = None

    def _note(self, link: str) -> None:
        """Keep the name in a link if it leads to a child; other links lead up, sort the list, or are text."""
        self.number += 1
        try:
            child = _CHILD.fullmatch(link)
            if child is not None:
                name = check_key(unquote(child[1].removeprefix("./"), errors="strict"))
                if "/" not in name and not _CONTROL.search(name):
                    self.names[bool(child[2])].add(name)
                return
            target = urljoin(self._url, link)
            if target.startswith(self._url) and _BELOW.fullmatch(target, len(self._url)):
                self.is_strange = True  # A child by an absolute link: this server lists in another way.
        except (InvalidKeyError, ValueError):
            return


def names_on(answer: HTTPResponse, url: str, seconds: float) -> Names:
    """The names on the page of a folder.

    Parameters
    ----------
    answer : HTTPResponse
    url : str
        The URL of the folder, ending with ``/``.
    seconds : float
        How long reading the page may take.

    Raises
    ------
    AnswerError
        If the page is no list of the folder, not whole, or larger than any such list.
    """
    page, size, end = _Page(url), 0, time.monotonic() + seconds
    try:
        decoder = codecs.getincrementaldecoder(answer.headers.get_content_charset("utf-8"))()
        while data := answer.read1(_PIECE):
            page.feed(decoder.decode(data))
            size += len(data)
            if size > _LARGEST or page.number > _MOST or len(page.rawdata) > _LONGEST:
                raise _unlisted("the page is larger than a list of a folder may be")
            if time.monotonic() > end:
                raise _unlisted(f"the page did not end within {seconds:g} s")
    except (ValueError, LookupError, AssertionError) as error:  # Not text, or no HTML to Python's parser.
        raise _unlisted("the page cannot be parsed") from error
    if not page.is_list or page.is_strange:
        raise _unlisted("the page is no list of a folder with relative links, titled 'Index of /'")
    if not page.is_whole:
        raise AnswerError(Failure("the page with the list has no end", passing=True))
    return page.names


def _unlisted(text: str) -> AnswerError:
    return AnswerError(Failure(text, sort="unlisted"))
