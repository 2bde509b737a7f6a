"""The command ``xzarr3``: parses arguments, calls the public interface, prints results and errors.

Each family of commands has a module: :mod:`~xzarr3.cli.look`, :mod:`~xzarr3.cli.examine` and
:mod:`~xzarr3.cli.change`. They have no other logic than that, and import neither dask nor xarray.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

import xzarr3
from xzarr3.cli import change, examine, look
from xzarr3.cli.running import debug_option, run_reporting

__all__ = ["commands", "main", "run_reporting"]


@click.group(
    invoke_without_command=True,
    epilog="Arguments come in the order STORE [PATH] [SELECTION]; copy and diff take two stores. Exit "
    "status: 0 after success, 1 after an error (and if check or diff have found something), 2 if the command "
    "line has no meaning (or if check or diff could not look), 130 after Ctrl-C.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(xzarr3.__version__, prog_name="xzarr3", message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Read, check, compare and convert Zarr stores."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


commands.params.append(debug_option())
for _each in (look.info, look.tree, look.stats, look.read, look.explain, examine.check, examine.diff,
              examine.advise, change.copy, change.consolidate, change.recover):  # fmt: skip
    commands.add_command(_each)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, by default those of the process.

    Returns
    -------
    int
        0 for success; 1 after an error, which is printed as one line and a hint on standard error, and of
        ``check`` and ``diff`` if they found something; 2 for a command line without a meaning, and of
        ``check`` and ``diff`` if they could not look; 130 after Ctrl-C.
    """
    return run_reporting(lambda: commands.main(argv, prog_name="xzarr3", standalone_mode=False))
