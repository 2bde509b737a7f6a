"""The parts of a page that scripts write, each between two lines that name its script."""

from __future__ import annotations


def with_part(page: str, script: str, made: str) -> str:
    """Return the page with ``made`` where the script wrote before.

    Raises
    ------
    SystemExit
        If the page lacks one of the two lines.
    """
    begin, end = f"<!-- Made by ci/{script}.py -->\n", f"<!-- End of what ci/{script}.py makes -->\n"
    before, began, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not began or not ended:
        raise SystemExit(f"the page lacks the line {(end if began else begin)!r}")
    return f"{before}{begin}\n{made}\n{end}{after}"
