"""Requests to web servers that obstore cannot make: with headers for one server, and for lists of folders.

On a redirect to another server, obstore's client sends every header along except ``Authorization`` and
``Cookie``. This cannot be changed. If there are other private headers, this module makes the requests with
the standard library, with one connection for each request. obstore lists no folders over HTTP, and takes no
answer without a length, as lists of folders often are.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import quote, urlsplit

from xzarr3.errors import StoreCapabilityError, listed
from xzarr3.stores.object.errors import AnswerError, Failure, describe_status, scrub
from xzarr3.stores.object.listing import Names, names_on
from xzarr3.stores.object.options import ANYWHERE, Recipe

_OF_URLS = "%/:[]@!$&'()*+,;=~"
_SPAN = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and removes private headers on the way to another server."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is None:
            return None
        new.method = req.get_method()
        if urlsplit(newurl).scheme not in ("https", urlsplit(req.full_url).scheme):
            raise AnswerError(Failure("the server redirects to an unencrypted address"))
        if _origin(newurl) != _origin(req.full_url):
            new.headers = {name: value for name, value in new.headers.items() if name.lower() in ANYWHERE}
        return new


class Web:
    """Replaces obstore's function ``get``.

    Parameters
    ----------
    recipe : Recipe
    timeout : float
        Seconds without a byte after which a request fails.
    """

    def __init__(self, recipe: Recipe, timeout: float) -> None:
        options = recipe.arguments["client_options"]
        unknown = options.keys() - {"default_headers", "allow_http", "allow_invalid_certificates"}
        if unknown:
            raise StoreCapabilityError(
                f"{recipe.address}: client_options {listed(sorted(unknown))} have no effect beside headers "
                "for one server, and on lists of folders; set SSL_CERT_FILE and https_proxy in the "
                "environment"
            )
        context = ssl.create_default_context()
        if options.get("allow_invalid_certificates"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Redirects)
        self._url = quote(recipe.arguments["url"], safe=_OF_URLS)
        self._headers = {**options.get("default_headers", {}), "Accept-Encoding": "identity"}
        self._timeout = timeout

    def get(self, store: None, path: str, *, options: Mapping[str, Any] | None = None) -> _Result:
        """Request a value or part of it, like ``obstore.get``."""
        asked = dict(options or {})
        request = urllib.request.Request(
            f"{self._url}/{quote(path)}", headers=self._headers, method="HEAD" if "head" in asked else "GET"
        )
        span = asked.get("range")
        if isinstance(span, tuple):
            request.add_header("Range", f"bytes={span[0]}-{span[1] - 1}")
        elif span is not None:
            request.add_header("Range", f"bytes={span.get('offset', '')}-{span.get('suffix', '')}")
        if "if_match" in asked:
            request.add_header("If-Match", asked["if_match"])
        answer = self._answer(request)
        if "head" in asked:
            answer.close()
        try:
            return _Result(answer, span)
        except AnswerError:
            answer.close()
            raise

    def folder(self, path: str, seconds: float) -> Names:
        """The names of the files and of the folders in a folder, from the server's page about it.

        Parameters
        ----------
        path : str
            Empty or ending with ``/``.
        seconds : float
            How long reading the page may take.
        """
        url = f"{self._url}/{quote(path)}"
        with self._answer(urllib.request.Request(url, headers=self._headers)) as answer:
            found = answer.geturl().partition("?")[0]
            asked, given = urlsplit(url), urlsplit(found)
            if (given.hostname, given.path) != (asked.hostname, asked.path):
                raise AnswerError(Failure("the server redirects to another place", sort="unlisted"))
            try:
                return names_on(answer, found, seconds)
            except (OSError, http.client.HTTPException) as error:
                raise _failure(error) from None

    def _answer(self, request: urllib.request.Request) -> Any:
        try:
            return self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            body = ""
            with error, contextlib.suppress(OSError, http.client.HTTPException):  # It may be cut off.
                body = error.read(4096).decode("latin-1")
            raise AnswerError(describe_status(error.code, body)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _failure(error) from None


def _failure(error: Exception) -> AnswerError:
    """Translate an error of the standard library."""
    cause = getattr(error, "reason", error)
    unreachable = isinstance(cause, ConnectionRefusedError)
    passing = not isinstance(cause, ssl.SSLCertVerificationError)
    text = scrub(f"{type(cause).__name__}: {cause}")
    return AnswerError(Failure(text, passing=passing, unreachable=unreachable))


class _Result:
    """An answer with those attributes of obstore's results that are used here."""

    def __init__(self, answer: Any, span: Any) -> None:
        self._answer = answer
        headers: Message = answer.headers
        length, modified = headers.get("Content-Length"), headers.get("Last-Modified")
        if length is None or not length.isdigit() or modified is None:
            lacking = "Last-Modified" if modified is None else "Content-Length"
            raise AnswerError(Failure(f"the answer has no {lacking}", answer.status))
        first, stop, size = 0, int(length), int(length)
        if span is not None:
            found = _SPAN.fullmatch(headers.get("Content-Range", ""))
            if found is not None:
                first, stop, size = int(found[1]), int(found[2]) + 1, int(found[3])
            if isinstance(span, dict):
                span = span.get("offset", size - span.get("suffix", 0)), size
            if found is None or (max(span[0], 0), min(span[1], size)) != (first, stop):
                text = f"the answer is not the range that was asked for (status {answer.status})"
                raise AnswerError(Failure(text, 200, sort="whole"))
        self.range = first, stop
        self.attributes = {"Content-Type": headers.get("Content-Type")}
        when: datetime = parsedate_to_datetime(modified)
        self.meta = {"size": size, "e_tag": headers.get("ETag"), "version": None, "last_modified": when}

    def bytes(self) -> bytes:
        """The body."""
        try:
            with self._answer as answer:
                body: bytes = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise _failure(error) from None
        return body
