"""The meaning of a failed request to an object store, and a message without secrets.

Most cases have an error type of their own in obstore: a missing object, refused access, a failed condition.
The others share one type, and its text names the HTTP status and the service's error code. These texts also
contain URLs with their queries (signatures, tokens) and the server's answer. The messages made here name the
status and the code, or contain neither URLs nor secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from xzarr3.errors import StoreCapabilityError, StoreError, StorePermissionError

_STATUS = re.compile(r" status code: (\d{3})")
_RETRIES = re.compile(r", after (\d+) retries")
_CODE = re.compile(r"<Code>([\w.]{1,80})</Code>|\bcode: ([\w.]{1,80})")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>,)]*", re.IGNORECASE)
_PARAMETER = re.compile(
    r"\b([\w-]*(?:sig|signature|credential|token|password|secret|authorization|key))(=|: ?)"
    r"(?:(?:bearer|basic|sharedkey) )?[^\s&'\"<>]+",
    re.IGNORECASE,
)
_SHORTEST = 4  # Length of the shortest secret that is hidden; hiding shorter ones would garble every text.
_OF_TYPE = {"FileNotFoundError": 404, "NotFoundError": 404, "PermissionDeniedError": 403} | {
    "UnauthenticatedError": 401,
    "PreconditionError": 412,
    "AlreadyExistsError": 412,
}
_KIND_OF_STATUS = (
    dict.fromkeys((401, 403), "denied")
    | dict.fromkeys((405, 501), "unsupported")
    | dict.fromkeys((301, 307), "moved")
    | {409: "busy", 412: "refused", 416: "beyond"}
)
_KIND_OF_CODE = (
    {"BlobAlreadyExists": "refused", "AuthorizationHeaderMalformed": "moved"}
    | dict.fromkeys(("NoSuchKey", "BlobNotFound", "NoSuchVersion"), "key")
    | dict.fromkeys(("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"), "place")
    | dict.fromkeys(("AuthenticationFailed", "ExpiredToken", "InvalidAccessKeyId"), "credentials")
    | dict.fromkeys(("InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch"), "credentials")
)
_TOO_BUSY = frozenset({"SlowDown", "ServiceUnavailable", "ServerBusy"})
_PASSING_CODES = _TOO_BUSY | {"RequestTimeout", "InternalError", "OperationAborted"}
_PASSING = frozenset({408, 425, 429, *range(500, 530)} - {501, 505, 507})
# Where obstore asks for credentials if none are given: the machine it runs on, or a service.
_OF_CREDENTIALS = ("169.254.", "metadata.google", "token request", "//sts.", "AssumeRole")
_NOT_THE_RANGE = "the answer is not the range that was asked for (status 200)"
# Signs in obstore's texts of a missing or unusable answer, what they mean, and of which kind that is.
_SIGNS = (
    ("redirect without LOCATION", "status 301, it is somewhere else", "moved"),
    ("NotPartial", _NOT_THE_RANGE, "whole"),
    ("RangeNotSupported", _NOT_THE_RANGE, "whole"),
    ("Wanted range starting at", "the value ends before", "beyond"),
    ("bytes 0--1/0", "the value ends before", "beyond"),
    ("TooManyRedirects", "the server redirects again and again", "final"),
    ("certificate", "the certificate is not accepted", "final"),
    ("dns error", "the name of the host is not known", "unreachable"),
    ("ConnectionRefused", "the connection is refused", "unreachable"),
    ("kind: Connect,", "no connection", "unreachable"),
    ("kind: Timeout", "no answer in time", "broken"),
    ("HTTP error", "the connection broke", "broken"),
)
_NO_ACCESS = "pass credentials, anon=True for public data, or absent_status=(404, 403) if absent keys get it"
_UNSUPPORTED = "use a service that can do this; disable_bulk_delete=True if it erases one key at a time only"
_UNLISTED = "let the server list its folders, or use consolidated metadata, or keys by name"
ADVICE: Final[dict[str, tuple[type[StoreError], str]]] = {
    "denied": (StorePermissionError, _NO_ACCESS),
    "credentials": (StorePermissionError, _NO_ACCESS),
    "place": (StoreError, "create the bucket or container, or correct the URL"),
    "moved": (StoreError, "pass the region of the bucket, region='...', in storage_options"),
    "unreachable": (StoreError, "correct the address, or start the server"),
    "whole": (StoreError, "use a server that sends parts of values"),
    "unlisted": (StoreCapabilityError, _UNLISTED),
    "unsupported": (StoreCapabilityError, _UNSUPPORTED),
}
"""By the kind of a failure: the error to raise, and what to do."""


@dataclass(frozen=True)
class Failure:
    """A request that did not succeed.

    Parameters
    ----------
    text : str
        What happened, without secrets.
    status : int, optional
        HTTP status of the answer, if there was one.
    kind : str
        ``"key"`` if the service says that the key is missing, ``"place"`` if it is the bucket, ``"denied"``,
        ``"credentials"`` if they are wrong or none are available, ``"refused"`` if a condition did not hold,
        ``"busy"`` if another change of the same key is in progress, ``"beyond"`` for a range behind the end,
        ``"whole"`` for an answer that ignores the range, ``"unsupported"``, ``"moved"``, ``"unreachable"`` if
        no connection was made, ``"broken"`` if it ended early, ``"other"`` for an answer that is not about
        the key, ``"unlisted"`` for an answer that is no list of a folder.
    passing : bool
        Whether the same request may succeed later.
    ambiguous : bool
        Whether the request may have been carried out nevertheless.
    attempts : int
        Number of attempts, as far as known.
    """

    text: str
    status: int | None = None
    kind: str = ""
    passing: bool = False
    ambiguous: bool = False
    attempts: int = field(default=1, compare=False)


class AnswerError(Exception):
    """An answer does not fit the request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def describe(error: BaseException, secrets: Sequence[str] = ()) -> Failure:
    """Analyse an error of obstore.

    Parameters
    ----------
    error : Exception
    secrets : sequence of str
        Texts that must not appear in the message.

    Examples
    --------
    >>> text = "Generic S3 error: Error performing GET http://h/b/k?sig=abc in 9ms - Server returned non-2xx "
    >>> text += "status code: 503 Service Unavailable: <Error><Code>SlowDown</Code></Error>"
    >>> failure = describe(OSError(text))
    >>> failure.status, failure.passing, failure.text
    (503, True, 'status 503, SlowDown')
    """
    name = type(error).__name__
    head, _, debug = str(error).partition("\n\nDebug source")
    found, again = _STATUS.search(head), _RETRIES.search(head)
    attempts = 1 + int(again[1]) if again else 1
    status = int(found[1]) if found else _OF_TYPE.get(name)  # A type may stand for several statuses.
    is_asked_elsewhere = name not in _OF_TYPE and any(sign in head for sign in _OF_CREDENTIALS)
    if is_asked_elsewhere or (name == "UnauthenticatedError" and found is None):
        return Failure("no credentials are given, or what gives them fails", kind="credentials")
    if status is not None:
        if status == 404 and "container does not exist" in debug:  # An answer to HEAD has no body.
            return Failure("status 404, the container does not exist", 404, "place")
        failure = describe_status(status, head[found.end() :] if found else "")
        is_other = status == 404 and name not in _OF_TYPE and not failure.kind
        return replace(failure, attempts=attempts, kind="other" if is_other else failure.kind)
    for sign, text, kind in () if "builder error" in head else _SIGNS:
        if sign in head or sign in debug:
            passing = kind in ("unreachable", "broken")
            return Failure(text, None, kind, passing, kind == "broken", attempts)
    kind = "unsupported" if name == "NotSupportedError" or isinstance(error, NotImplementedError) else ""
    code = _CODE.search(head)
    passing = code is not None and (code[1] or code[2]) in _PASSING_CODES
    return Failure(scrub(f"{name}: {head}", secrets), None, kind, passing)


def describe_status(status: int, body: str) -> Failure:
    """The meaning of a status and of the code in the body; the rest of the body may contain secrets."""
    found = _CODE.search(body)
    code = (found[1] or found[2]) if found else ""
    kind = _KIND_OF_CODE.get(code if status != 412 else "") or _KIND_OF_STATUS.get(status, "")
    return Failure(
        f"status {status}, {code}" if code else f"status {status}",
        status,
        kind,
        passing=kind == "busy" or status in _PASSING or code in _PASSING_CODES,
        ambiguous=status >= 500 and status not in (501, 503) and code not in _TOO_BUSY,
    )


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` on one line, without secrets and without URLs, which may contain secrets.

    Examples
    --------
    >>> scrub("GET https://user:pw@host/a?sig=x failed, key=abcdef", ["abcdef"])
    'GET <URL> failed, key=***'
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, "***")
    text = _PARAMETER.sub(r"\1\2***", _URL.sub("<URL>", text))
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:297]}..."
