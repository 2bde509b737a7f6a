"""Numbers of bytes as text, in the units of dask."""

from __future__ import annotations

_UNITS = (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("kiB", 2**10))
_NEARLY = 0.9  # From 0.9 of a unit on, the unit is used.


def size(number: float) -> str:
    """A number of bytes as text.

    The texts are those of dask, so that the sizes in its reprs and in ours can be compared.

    Examples
    --------
    >>> size(999), size(4_000_000), size(2**40)
    ('0.98 kiB', '3.81 MiB', '1.00 TiB')
    """
    for unit, amount in _UNITS:
        if number >= _NEARLY * amount:
            return f"{number / amount:.2f} {unit}"
    return f"{number:.0f} B"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent; never 0 % or 100 % unless it is exactly that.

    Examples
    --------
    >>> share(1, 3), share(999_999, 1_000_000), share(0, 5)
    ('33 %', '99.9 %', '0 %')
    """
    if not part or part == whole:
        return "100 %" if part else "0 %"
    percent = min(max(100 * part / whole, 0.1), 99.9)
    return f"{percent:.0f} %" if 1 <= percent < 99 else f"{percent:.1f} %"


def ratio(one: float, other: float) -> str:
    """How many times larger one number is than another, as text.

    Examples
    --------
    >>> ratio(10, 3), ratio(123_456, 1)
    ('3.33', '123,456')
    """
    found = one / other
    return f"{found:.3g}" if found < 100 else f"{found:,.0f}"


def counted(number: int, thing: str) -> str:
    """A number of things.

    Examples
    --------
    >>> counted(1, "chunk"), counted(12_000, "chunk")
    ('1 chunk', '12,000 chunks')
    """
    ending = "" if number == 1 else "s"
    return f"{number:,} {thing}{ending}"
