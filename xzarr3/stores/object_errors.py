"""What a failed request to an object store means, and what may be said of it.

obstore's errors are texts, which hold URLs with their queries (signatures, tokens) and what the server said.
Here they are taken apart: the HTTP status, the service's own code, whether the request may succeed later and
whether it may have been carried out. What is said of them names no URL and none of the secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_STATUS = re.compile(
    r" in [\d.]+\w*s(?:, after [\w\s,:.]{1,150})? - Server returned non-2xx status code: (\d{3})[^:\n]*: ?"
)
_REPEATED = re.compile(r"\bretries: ([1-9]\d*)")
_CODE = re.compile(r"<Code>([\w.]{1,80})</Code>|\"(?:code|reason)\": ?\"([\w.]{1,80})\"")
_MESSAGE = re.compile(r"<Message>([^<\n\r]{1,300})")
_LACKING = re.compile(r"([\w-]+) Header missing from response")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CREDENTIALS = re.compile(r"169\.254\.\d+\.\d+|metadata\.google|token request|//sts\.|AssumeRole")
_PROVIDER = re.compile(r"External \w+ credential provider: ([\w.]+)")
_OF_MACHINE = re.compile(r"169\.254\.\d+\.\d+|metadata\.google")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>,)]*", re.IGNORECASE)
_PARAMETER = re.compile(
    r"\b(sig|signature|x-amz-[\w-]+|x-goog-[\w-]+|awsaccesskeyid|authorization|token|password|secret|"
    r"(?:account|access)[_-]?key)(=|: ?)(?:(?:bearer|basic|sharedkey) )?[^\s&'\"<>]+",
    re.IGNORECASE,
)
_NO_CONTAINER = "The specified container does not exist."
_HIDDEN = "***"
_SHORTEST = 4  # Characters of a secret; shorter ones would hide half of every text.
_LONGEST = 300

_OF_CLASS = {
    "FileNotFoundError": 404,
    "PermissionDeniedError": 403,
    "UnauthenticatedError": 401,
    "NotModifiedError": 304,
    "PreconditionError": 412,
    "AlreadyExistsError": 412,
}
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529})
_PASSING_CODES = frozenset(
    {
        *(
            "RequestTimeout",
            "SlowDown",
            "InternalError",
            "ServiceUnavailable",
            "OperationAborted",
            "ServerBusy",
        ),
        "ConditionalRequestConflict",
    }
)
_NOTHING_DONE = frozenset({501, 503})
_TOO_BUSY = frozenset({"SlowDown", "ServiceUnavailable", "ServerBusy"})
_NO_PLACE = frozenset(
    {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled", "AccountNotFound"}
)
_NO_KEY = frozenset({"NoSuchKey", "BlobNotFound", "NoSuchVersion"})
_EXISTS = frozenset({"BlobAlreadyExists"})
_BAD_CREDENTIALS = frozenset(
    {
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)


class ServiceError(Exception):
    """What obstore reported, without what must not be seen: the cause of the errors that users get."""


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
        How the service names it, or empty.
    passing : bool
        Whether the same request may succeed later.
    ambiguous : bool
        Whether the request may have been carried out nevertheless.
    repeated : int
        How often obstore has made it once more, so that a refusal may be due to the first time.
    unreachable : bool
        Whether there was no connection at all, which rarely changes soon.
    sort : str
        ``"whole"`` for an answer that ignores the range, ``"unsupported"`` for what cannot be asked for,
        ``"credentials"`` if they cannot be had, ``"other"`` for an answer that is not about the key.
    attempts : int
        How often it was made.
    """

    text: str
    status: int | None = None
    code: str = ""
    passing: bool = False
    ambiguous: bool = False
    repeated: int = 0
    unreachable: bool = False
    sort: str = ""
    attempts: int = field(default=1, compare=False)

    @property
    def refused(self) -> bool:
        """Whether a condition did not hold."""
        return self.status == 412 or (self.status == 409 and self.code in _EXISTS)

    @property
    def busy(self) -> bool:
        """Whether another change of the same key is under way, so that a condition was not looked at."""
        return self.status == 409 and self.code not in _EXISTS

    @property
    def beyond(self) -> bool:
        """Whether the range begins where the value has ended."""
        return self.status == 416

    @property
    def no_place(self) -> bool:
        """Whether it is the bucket or container that is not there."""
        return self.status == 404 and self.code in _NO_PLACE

    @property
    def names_key(self) -> bool:
        """Whether the service says that it is the key that is not there."""
        return self.code in _NO_KEY

    @property
    def bad_credentials(self) -> bool:
        """Whether it is the credentials that are wrong, and not what they permit."""
        return self.code in _BAD_CREDENTIALS

    def cause(self) -> ServiceError:
        """The error to chain."""
        return ServiceError(self.text)


def describe(error: BaseException, secrets: Sequence[str] = ()) -> Failure:
    """Take an error of obstore apart.

    Parameters
    ----------
    error : Exception
    secrets : sequence of str
        What must not be in the text.

    Examples
    --------
    >>> text = "Generic S3 error: Error performing GET http://h/b/k?sig=abc in 9ms - Server returned non-2xx "
    >>> text += "status code: 503 Service Unavailable: <Error><Code>SlowDown</Code></Error>"
    >>> failure = describe(OSError(text))
    >>> failure.status, failure.code, failure.passing, failure.text
    (503, 'SlowDown', True, 'status 503, SlowDown')
    """
    name = type(error).__name__
    whole = str(error)
    head, _, debug = whole.partition("\n\nDebug source")
    found = _STATUS.search(head)
    status = int(found[1]) if found else _OF_CLASS.get(name)
    provider = _PROVIDER.search(head) if name == "UnauthenticatedError" and found is None else None
    if provider is not None:
        return Failure(f"the credential provider fails with {provider[1]}", sort="credentials")
    if status == 404 and found is None and _NO_CONTAINER in debug:
        return Failure("status 404, the container does not exist", 404, "ContainerNotFound")
    again = _REPEATED.search(debug)
    repeated = int(again[1]) if again else 0
    if name == "GenericError" and _CREDENTIALS.search(head):
        return _credentials(head, status)
    if status is not None:
        body = head[found.end() :] if found else ""
        named = _CODE.search(body)
        code = (named[1] or named[2]) if named else ""
        said = _MESSAGE.search(body)
        parts = [f"status {status}", code, "" if said is None else scrub(said[1], secrets)]
        return Failure(
            ", ".join(part for part in parts if part),
            status,
            code,
            passing=status in _PASSING or code in _PASSING_CODES,
            ambiguous=status >= 500 and status not in _NOTHING_DONE and code not in _TOO_BUSY,
            repeated=repeated,
            sort="other" if status == 404 and name == "GenericError" else "",
        )
    if "redirect without LOCATION" in head:  # So S3 says that the bucket is in another region.
        return Failure("status 301, it is somewhere else", 301)
    kind = _KIND.search(debug)
    if kind is not None or "HTTP error" in head:
        return _connection(kind[1] if kind else "Unknown", debug, head, secrets, repeated)
    lacking = _LACKING.search(head)
    if lacking is not None:
        return Failure(f"the answer has no {lacking[1]}")
    if "NotPartial" in debug or "RangeNotSupported" in debug:
        return Failure("the answer is not the range that was asked for (status 200)", 200, sort="whole")
    if "Wanted range starting at" in head or "bytes 0--1/0" in head:
        return Failure("the value ends before", 416)
    if "DeleteFailed" in debug:
        named = re.search(r"code: ([\w.]{1,80})", head)
        code = named[1] if named else ""
        return Failure(
            f"a key was not erased{', ' + code if code else ''}", code=code, passing=code in _PASSING_CODES
        )
    sort = "unsupported" if name == "NotSupportedError" or isinstance(error, NotImplementedError) else ""
    return Failure(scrub(f"{name}: {head}", secrets), sort=sort)


def _credentials(head: str, status: int | None) -> Failure:
    """Credentials are asked of the machine if none are given; of most machines in vain."""
    busy = status is not None and (status >= 500 or status == 429)
    if _OF_MACHINE.search(head):
        return Failure(
            "no credentials are given, and this machine has none", passing=busy, sort="credentials"
        )
    answer = "no answer" if status is None else f"status {status}"
    return Failure(
        f"the service that gives credentials does not: {answer}",
        passing=busy or status is None,
        sort="credentials",
    )


def _connection(kind: str, debug: str, head: str, secrets: Sequence[str], repeated: int) -> Failure:
    if "TooManyRedirects" in debug:
        return Failure("the server redirects again and again")
    if kind == "Connect":
        text = "no connection"
        for sign, meaning in (
            ("dns error", "the name of the host is not known"),
            ("ConnectionRefused", "the connection is refused"),
            ("certificate", "the certificate is not accepted"),
        ):
            if sign in debug:
                text = meaning
        return Failure(text, passing="certificate" not in debug, repeated=repeated, unreachable=True)
    text = {
        "Timeout": "no answer in time",
        "Interrupted": "the connection broke",
    }.get(kind, "the answer could not be read")
    if "IncompleteBody" in debug or "UnexpectedEof" in debug:
        text = "the body is shorter than promised"
    if "builder error" in head or "BadScheme" in debug:
        return Failure(scrub(head, secrets))
    return Failure(text, passing=True, ambiguous=True, repeated=repeated)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without secrets and without URLs, which may hold some, on one line.

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
