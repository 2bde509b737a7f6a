"""The meaning of a failed request to an object store, and a message without secrets.

Some cases have an error type of their own in obstore: a missing object, refused access, a failed condition.
All others share one type, and its text names the HTTP status and the service's error code. These texts also
contain URLs with their queries (signatures, tokens) and the server's answer. The messages made here name the
status and the code, or contain neither URLs nor secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

_STATUS = re.compile(r" status code: (\d{3})[^:\n]*: ?")
_RETRIES = re.compile(r", after (\d+) retries")
_CODE = re.compile(
    r"<Code>([\w.]{1,80})</Code>|\"(?:code|reason)\": ?\"([\w.]{1,80})\"|\bcode: ([\w.]{1,80})"
)
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>,)]*", re.IGNORECASE)
_PARAMETER = re.compile(
    r"\b(sig|signature|x-amz-[\w-]+|x-goog-[\w-]+|awsaccesskeyid|authorization|token|password|secret|"
    r"(?:account|access)[_-]?key)(=|: ?)(?:(?:bearer|basic|sharedkey) )?[^\s&'\"<>]+",
    re.IGNORECASE,
)
_HIDDEN = "***"
_SHORTEST = 4  # Length of the shortest secret that is hidden; hiding shorter ones would garble every text.
_LONGEST = 300

_OF_TYPE = {
    "FileNotFoundError": 404,
    "PermissionDeniedError": 403,
    "UnauthenticatedError": 401,
    "NotModifiedError": 304,
    "PreconditionError": 412,
    "AlreadyExistsError": 412,
}
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529})
_TOO_BUSY = frozenset({"SlowDown", "ServiceUnavailable", "ServerBusy"})
_PASSING_CODES = _TOO_BUSY | {
    "RequestTimeout",
    "InternalError",
    "OperationAborted",
    "ConditionalRequestConflict",
}
_NOTHING_DONE = frozenset({501, 503})
_NO_PLACE = frozenset(
    {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled", "AccountNotFound"}
)
_NO_KEY = frozenset({"NoSuchKey", "BlobNotFound", "NoSuchVersion"})
_EXISTS = frozenset({"BlobAlreadyExists"})
_BAD_CREDENTIALS = frozenset(
    {
        *("AuthenticationFailed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken"),
        *("RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired"),
    }
)
# Where obstore looks for credentials if none are given: the machine, which rarely has any, or a service.
_OF_MACHINE = ("169.254.", "metadata.google")
_OF_CREDENTIALS = (*_OF_MACHINE, "token request", "//sts.", "AssumeRole")
# Signs in obstore's texts of a missing or unusable answer, and their meaning.
_CONNECTIONS = (
    ("TooManyRedirects", "the server redirects again and again"),
    ("dns error", "the name of the host is not known"),
    ("ConnectionRefused", "the connection is refused"),
    ("certificate", "the certificate is not accepted"),
    ("kind: Connect,", "no connection"),
    ("kind: Timeout", "no answer in time"),
    ("IncompleteBody", "the body is shorter than promised"),
    ("UnexpectedEof", "the body is shorter than promised"),
    ("", "the connection broke"),
)
_FINAL = frozenset(("TooManyRedirects", "certificate"))
_ANSWERS = (
    # The answer of S3 for a bucket in another region.
    ("redirect without LOCATION", "status 301, it is somewhere else", 301, ""),
    ("NotPartial", "the answer is not the range that was asked for (status 200)", 200, "whole"),
    ("RangeNotSupported", "the answer is not the range that was asked for (status 200)", 200, "whole"),
    ("Wanted range starting at", "the value ends before", 416, ""),
    ("bytes 0--1/0", "the value ends before", 416, ""),
)


@dataclass(frozen=True)
class Failure:
    """A request that did not succeed.

    Parameters
    ----------
    text : str
        What happened, without secrets.
    status : int, optional
        HTTP status of the answer, if there was one.
    code : str
        The service's error code, or empty.
    passing : bool
        Whether the same request may succeed later.
    ambiguous : bool
        Whether the request may have been carried out nevertheless.
    unreachable : bool
        Whether no connection was made, which rarely changes soon.
    sort : str
        ``"whole"`` for an answer that ignores the range, ``"unsupported"`` for an unsupported request,
        ``"credentials"`` if none are available, ``"other"`` for an answer that is not about the key,
        ``"unlisted"`` for an answer that is no list of a folder.
    attempts : int
        Number of attempts, as far as known.
    insisted : bool
        Whether obstore has used up its retries without telling their number.
    """

    text: str
    status: int | None = None
    code: str = ""
    passing: bool = False
    ambiguous: bool = False
    unreachable: bool = False
    sort: str = ""
    attempts: int = field(default=1, compare=False)
    insisted: bool = field(default=False, compare=False)

    @property
    def refused(self) -> bool:
        """Whether a condition did not hold."""
        return self.status == 412 or (self.status == 409 and self.code in _EXISTS)

    @property
    def busy(self) -> bool:
        """Whether another change of the same key is in progress, so that the condition was not checked."""
        return self.status == 409 and self.code not in _EXISTS

    @property
    def beyond(self) -> bool:
        """Whether the range begins beyond the end of the value."""
        return self.status == 416

    @property
    def no_place(self) -> bool:
        """Whether the bucket or container is missing."""
        return self.status == 404 and self.code in _NO_PLACE

    @property
    def names_key(self) -> bool:
        """Whether the service says that the key is missing."""
        return self.code in _NO_KEY

    @property
    def bad_credentials(self) -> bool:
        """Whether the credentials themselves are wrong, rather than their permissions."""
        return self.code in _BAD_CREDENTIALS


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
    >>> failure.status, failure.code, failure.passing, failure.text
    (503, 'SlowDown', True, 'status 503, SlowDown')
    """
    name = type(error).__name__
    head, _, debug = str(error).partition("\n\nDebug source")
    found, again = _STATUS.search(head), _RETRIES.search(head)
    attempts = 1 + int(again[1]) if again else 1
    status = int(found[1]) if found else _OF_TYPE.get(name)
    if name not in _OF_TYPE and any(sign in head for sign in _OF_CREDENTIALS):
        return _credentials(head, status)
    if name == "UnauthenticatedError" and found is None:
        return Failure("the provider of credentials fails", sort="credentials")
    if status is not None:
        if status == 404 and "container does not exist" in debug:  # An answer to HEAD has no body.
            return Failure("status 404, the container does not exist", 404, "ContainerNotFound")
        failure = describe_status(status, head[found.end() :] if found else "")
        other = status in (401, 403, 404) and name not in _OF_TYPE
        return replace(failure, attempts=attempts, sort="other" if other else "")
    for sign, text, meaning, sort in _ANSWERS:
        if sign in head or sign in debug:
            return Failure(text, meaning, sort=sort)
    if "builder error" not in head and "HTTP error" in head:
        sign, text = next(pair for pair in _CONNECTIONS if pair[0] in debug)
        unreachable = "kind: Connect," in debug
        passing = sign not in _FINAL
        return Failure(
            text, passing=passing, ambiguous=not unreachable, unreachable=unreachable, attempts=attempts
        )
    code = _code(head)
    sort = "unsupported" if name == "NotSupportedError" or isinstance(error, NotImplementedError) else ""
    return Failure(scrub(f"{name}: {head}", secrets), code=code, passing=code in _PASSING_CODES, sort=sort)


def describe_status(status: int, body: str) -> Failure:
    """The meaning of a status and of the code in the body; the rest of the body may contain secrets."""
    code = _code(body)
    return Failure(
        f"status {status}, {code}" if code else f"status {status}",
        status,
        code,
        passing=status in _PASSING or code in _PASSING_CODES,
        ambiguous=status >= 500 and status not in _NOTHING_DONE and code not in _TOO_BUSY,
    )


def _code(text: str) -> str:
    named = _CODE.search(text)
    return next(filter(None, named.groups())) if named else ""


def _credentials(head: str, status: int | None) -> Failure:
    """A failure to get credentials. Without given ones, obstore asks the machine, usually in vain."""
    passing = status is not None and (status >= 500 or status == 429)
    text = "no credentials are given, and this machine has none (boto3 is needed for a profile of AWS)"
    if not any(sign in head for sign in _OF_MACHINE):
        answer = "no answer" if status is None else f"status {status}"
        text = f"the service that gives credentials does not: {answer}"
        passing |= status is None
    return Failure(text, passing=passing, sort="credentials")


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` on one line, without secrets and without URLs, which may contain secrets.

    Examples
    --------
    >>> scrub("GET https://user:pw@host/a?sig=x failed, key=abcdef", ["abcdef"])
    'GET <URL> failed, key=***'
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, _HIDDEN)
    text = _URL.sub("<URL>", text)
    text = _PARAMETER.sub(lambda found: f"{found[1]}{found[2]}{_HIDDEN}", text)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
