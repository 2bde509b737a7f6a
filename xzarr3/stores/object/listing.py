"""Reads the HTML page with which a web server lists a folder: that of Python, nginx, Apache or lighttpd.

Only names of direct children come out of a page. None of its links is followed, and no redirect. obstore
lists no folders over HTTP, and takes no answer without a length, as such pages often are.
"""

from __future__ import annotations

import contextlib
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, unquote, urljoin

from xzarr3.errors import InvalidKeyError
from xzarr3.stores.keys import check_key
from xzarr3.stores.object.errors import AnswerError, Failure, describe_status, scrub

Names = tuple[set[str], set[str]]
"""The names of files, and those of folders."""

_TITLE = re.compile(r"<(?:title|h1)>\s*(?:index of|directory listing for) /", re.IGNORECASE)
_LINK = re.compile(r"<a\s[^<>]*?href=[\"']([^\"'<>]*)", re.IGNORECASE)
_CHILD = re.compile(r"(?:\./)?([^/?#:]+|(?<=\./)[^/?#]+)(/?)")  # Without './' a colon would end a scheme.
_BELOW = re.compile(r"[^/?#]+/?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LARGEST = 2**22  # Bytes of a page.


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
    place = quote(url, safe="%/:[]@!$&'()*+,;=~") + "/" + quote(path)
    request = urllib.request.Request(place, headers={**headers, "Accept-Encoding": "identity"})
    page, end = bytearray(), time.monotonic() + seconds
    try:
        with urllib.request.build_opener(_Direct).open(request, timeout=timeout) as answer:
            while data := answer.read1(2**16):
                page += data
                if len(page) > _LARGEST or time.monotonic() > end:
                    raise _unlisted(f"the page has more than {_LARGEST} bytes, or took over {seconds:g} s")
            return names_on(page.decode(answer.headers.get_content_charset("utf-8")), place)
    except urllib.error.HTTPError as error:
        with error:
            failure = describe_status(error.code, "")
        is_unlisted = 300 <= error.code < 400 or error.code in (403, 404)
        raise AnswerError(replace(failure, kind="unlisted") if is_unlisted else failure) from None
    except (LookupError, UnicodeError) as error:
        raise _unlisted("the page is no text") from error
    except (OSError, HTTPException) as error:
        text = scrub(f"{type(error).__name__}: {error}")
        raise AnswerError(Failure(text, passing="refused" not in text)) from None


def names_on(page: str, url: str) -> Names:
    """The names on the page of the folder at a URL that ends with ``/``; the errors are those of `folder`."""
    names: Names = set(), set()
    is_list = _TITLE.search(page) is not None
    for link in map(unescape, _LINK.findall(page)):
        child = _CHILD.fullmatch(link)
        # Other links lead up, sort the list, or are text.
        with contextlib.suppress(InvalidKeyError, ValueError):
            if child is not None:
                name = check_key(unquote(child[1], errors="strict"))
                if "/" not in name and not _CONTROL.search(name):
                    names[bool(child[2])].add(name)
            elif (target := urljoin(url, link)).startswith(url) and _BELOW.fullmatch(target, len(url)):
                is_list = False  # A child by an absolute link: this server lists in another way.
    if not is_list:
        raise _unlisted("the page is no list of a folder with relative links, titled 'Index of /'")
    if "</html>" not in page.lower():
        raise AnswerError(Failure("the page with the list has no end", passing=True))
    return names


def _unlisted(text: str) -> AnswerError:
    return AnswerError(Failure(text, kind="unlisted"))
