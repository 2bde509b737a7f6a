"""Reads the HTML page with which a web server lists a folder: that of Python, nginx, Apache or lighttpd.

Only names of direct children come out of a page. None of its links is followed, and no redirect. obstore lists
no folders over HTTP, and takes no answer without a length, as such pages often are.
"""

from __future__ import annotations

import contextlib
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from html.parser import HTMLParser
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin

from xzarr3.errors import InvalidKeyError
from xzarr3.stores.keys import check_key
from xzarr3.stores.object.errors import AnswerError, Failure, describe_status, scrub

Names = tuple[set[str], set[str]]
"""The names of files, and those of folders."""

_OF_URLS = "%/:[]@!$&'()*+,;=~"
_TITLE = re.compile(r"\s*(index of|directory listing for) /", re.IGNORECASE)
_CHILD = re.compile(r"(\./[^/?#]+|[^/?#:]+)(/?)")  # Without './' a colon would end a scheme.
_BELOW = re.compile(r"[^/?#]+/?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LARGEST: Final = 2**22  # Bytes of a page.
_PIECE: Final = 2**14  # Bytes or letters at a time; parsing takes the square of an unfinished tag.


class _Direct(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would take all headers along."""

    def redirect_request(self, *_: Any) -> None:
        return None


def folder(url: str, path: str, headers: Mapping[str, Any], timeout: float, seconds: float) -> Names:
    """The names of the files and of the folders in a folder, from the server's page about it.

    Parameters
    ----------
    url : str
    path : str
        The folder below the URL; empty or ending with ``/``.
    headers : mapping
    timeout, seconds : float
        How long the server may send nothing, and how long reading the page may take.

    Raises
    ------
    AnswerError
        If the page is no list of the folder, not whole, or larger than any such list.
    """
    place = f"{quote(url, safe=_OF_URLS)}/{quote(path)}"
    request = urllib.request.Request(place, headers={**headers, "Accept-Encoding": "identity"})
    page, end = bytearray(), time.monotonic() + seconds
    try:
        with urllib.request.build_opener(_Direct).open(request, timeout=timeout) as answer:
            while data := answer.read1(_PIECE):
                page += data
                if len(page) > _LARGEST or time.monotonic() > end:
                    raise _unlisted(
                        f"the page has more than {_LARGEST} bytes, or did not end within {seconds:g} s"
                    )
            charset = answer.headers.get_content_charset("utf-8")
    except urllib.error.HTTPError as error:
        with error:
            raise AnswerError(describe_status(error.code, "")) from None
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        text = scrub(f"{type(cause).__name__}: {cause}")
        raise AnswerError(Failure(text, passing=not isinstance(cause, ConnectionRefusedError))) from None
    return names_on(bytes(page), place, charset)


def names_on(page: bytes, url: str, charset: str = "utf-8") -> Names:
    """The names on the page of the folder at a URL that ends with ``/``; the errors are those of `folder`."""
    parsed = _Page(url)
    try:
        text = page.decode(charset)
        for at in range(0, len(text), _PIECE):
            parsed.feed(text[at : at + _PIECE])
            if len(parsed.rawdata) > 4 * _PIECE:
                raise _unlisted("the page has an unfinished tag that is longer than names are")
    except (ValueError, LookupError, AssertionError) as error:  # Not text, or no HTML to Python's parser.
        raise _unlisted("the page cannot be parsed") from error
    if not parsed.is_list or parsed.is_strange:
        raise _unlisted("the page is no list of a folder with relative links, titled 'Index of /'")
    if not parsed.is_whole:
        raise AnswerError(Failure("the page with the list has no end", passing=True))
    return parsed.names


class _Page(HTMLParser):
    """The names on a page that lists the folder at ``url``."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._heading: str | None = None
        self.names: Names = set(), set()
        self.is_list = self.is_whole = self.is_strange = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("title", "h1"):
            self._heading = ""
        elif tag == "a":
            with contextlib.suppress(InvalidKeyError, ValueError):
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
        child = _CHILD.fullmatch(link)
        if child is None:
            target = urljoin(self._url, link)
            # A child by an absolute link: this server lists in another way.
            self.is_strange |= target.startswith(self._url) and bool(_BELOW.fullmatch(target, len(self._url)))
            return
        name = check_key(unquote(child[1].removeprefix("./"), errors="strict"))
        if "/" not in name and not _CONTROL.search(name):
            self.names[bool(child[2])].add(name)


def _unlisted(text: str) -> AnswerError:
    return AnswerError(Failure(text, sort="unlisted"))
