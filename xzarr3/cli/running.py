"""Runs a command: exit statuses, errors as one line and a hint, ``--debug``, Ctrl-C and closed pipes."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeAlias

import click

from xzarr3 import errors
from xzarr3.cli.arguments import is_selection
from xzarr3.cli.output import is_colored
from xzarr3.errors import FULL_TRACEBACK, Xzarr3Error, printable

FAILURE = 1
"""After an error, and of ``check`` and ``diff`` if they have found something."""
USAGE = UNCHECKED = 2
"""The command line has no meaning; ``check`` or ``diff`` could not look."""
INTERRUPTED = 128 + 2
"""After Ctrl-C."""

_DEBUG = "xzarr3.debug"

Hints: TypeAlias = Sequence[tuple[type[Xzarr3Error], str]]
"""Hints by the class of an error; the first one that fits is given."""

_HINTS: Hints = (
    (errors.IncompleteWriteError, "xzarr3 recover STORE finishes or removes it"),
    (errors.NodeNotFoundError, "check the spelling; xzarr3 tree STORE shows what a store holds"),
    (errors.NodeExistsError, "--overwrite replaces what is there"),
    (errors.NodeTypeError, "xzarr3 tree STORE shows which nodes are arrays"),
    (errors.SelectionError, "write it as between the brackets in Python, in quotes: '0, 10:20, ...'"),
    (errors.ChunkError, "xzarr3 check STORE PATH --decode all names every damaged chunk"),
    (errors.UnknownExtensionError, "xzarr3 versions shows which packages with codecs are installed"),
    (errors.MetadataError, "xzarr3 check STORE tells what is wrong with its documents"),
    (errors.StoreOptionError, "options of a store are given as --option NAME=VALUE"),
    (errors.StorePermissionError, "give credentials with --option NAME=VALUE, or anon=true for public data"),
)
_OTHERWISE = "--debug shows where it was raised"

EXPECTED = (Xzarr3Error, OSError, ValueError, TypeError, ImportError, MemoryError)
"""Errors of what a user gave. Others are defects, and keep their traceback."""


def hint_for(error: BaseException, hints: Hints = ()) -> str:
    """What to try after an error: its own hint, one of these, or the usual one."""
    if isinstance(error, HintedError):
        return error.hint
    return next((hint for kind, hint in (*hints, *_HINTS) if isinstance(error, kind)), _OTHERWISE)


class HintedError(Xzarr3Error):
    """An error of a command, with its hint.

    Parameters
    ----------
    message, hint : str
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@contextmanager
def path_before_selection(path: str, stores: str) -> Iterator[None]:
    """Give a hint if a missing node has a selection as its path, because the path was forgotten."""
    try:
        yield
    except errors.NodeNotFoundError as error:
        if not path or not is_selection(path):
            raise
        hint = f"the path comes before the selection; / is the root: {stores} / '{path}'"
        raise HintedError(str(error), hint) from error


def report(error: BaseException, hint: str = "") -> None:
    """Print an error as one line on standard error, and a line with a hint if there is one."""
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    message = " ".join(message.split()) or type(error).__name__
    if not isinstance(error, Xzarr3Error | click.ClickException):
        message = f"{type(error).__name__}: {message}"
    _tell("xzarr3:", message, "red")
    if hint:
        _tell("hint:", hint, "cyan")


def _tell(label: str, text: str, color: str) -> None:
    line = f"{click.style(label, fg=color, bold=True)} {printable(text)}"
    click.echo(line, err=True, color=is_colored(sys.stderr))


def run_reporting(
    command: Callable[[], object],
    *,
    hint: Callable[[BaseException], str] | None = None,
    debug: Callable[[], bool] = bool,
    failure: int = FAILURE,
) -> int:
    """Run a command and return the exit status; an error is printed as one line on standard error.

    Parameters
    ----------
    command : callable
        Returns the exit status if that is not 0.
    hint : callable, optional
        Returns a hint for an error, to be printed on a second line. With it, errors of other packages are one
        line, too.
    debug : callable
        Tells after an error whether its traceback is printed.
    failure : int
        The exit status after an error.
    """
    expected = (Xzarr3Error,) if hint is None else EXPECTED
    try:
        with warnings_as_lines():
            status = command()
        if sys.stdout is not None:  # A shell has closed it.
            sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        report(error, _usage_hint(error))
        return USAGE
    except BrokenPipeError:
        # The reader of the output has gone. Without this, the interpreter would print an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (*expected, click.ClickException) as error:
        if debug():
            traceback.print_exception(error)
        report(error, "" if hint is None else hint(error))
        return failure
    except KeyboardInterrupt:
        _tell("xzarr3:", "interrupted", "red")
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _usage_hint(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "xzarr3"
    if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
        return f"put -- before a selection that begins with '-': {command} -- STORE PATH '-1, 0'"
    return f"{command} --help shows its arguments and examples"


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as one line each, without the line of code that caused them."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        _tell("warning:", " ".join(str(message).split()), "yellow")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


# Commands


class Command(click.Command):
    """A command with examples, which its help shows, and with ``--debug``.

    Parameters
    ----------
    examples : sequence of str
        Command lines.
    status : str
        What the exit status means, if it can be 1 without an error.
    failure : int
        The exit status after an error.
    hints : sequence
        Hints that come before the usual ones.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        status: str = "",
        failure: int = FAILURE,
        hints: Hints = (),
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.examples = tuple(examples)
        self.status = status
        self.failure = failure
        self.hints = tuple(hints)
        self.params.append(debug_option())

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; its exit status is that of the process."""
        run = super().invoke
        ctx.exit(
            run_reporting(
                lambda: run(ctx),
                hint=lambda error: hint_for(error, self.hints),
                debug=lambda: bool(ctx.meta.get(_DEBUG)),
                failure=self.failure,
            )
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples))
        if self.status:
            formatter.write_paragraph()
            formatter.write_text(f"Exit status: {self.status}")


def command(**options: Any) -> Callable[[Callable[..., Any]], Command]:
    """Decorate the function of a command; takes the options of :class:`Command`."""
    return click.command(cls=Command, **options)


class Commands(click.Group):
    """The command ``xzarr3``, which lists its commands by family."""

    command_class = Command

    families: Mapping[str, Sequence[str]] = {}
    """The names of the commands, by the heading above them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of this name; the error for an unknown one proposes the nearest name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = errors.did_you_mean(args[0], self.list_commands(ctx))
            message = error.format_message().partition(" Did you mean")[0]  # As newer versions of click say.
            raise click.UsageError(f"{message} {near}".rstrip(), ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by family."""
        for heading, names in self.families.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(90)) for name in names])


def debug_option() -> click.Option:
    """``--debug``, which every command takes."""
    return click.Option(
        ["--debug"], is_flag=True, expose_value=False, callback=_debug,
        help="Print the traceback of an error.",
    )  # fmt: skip


def _debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_DEBUG] = True
        before = os.environ.get(FULL_TRACEBACK)
        os.environ[FULL_TRACEBACK] = "1"
        ctx.call_on_close(lambda: _restore(before))


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(FULL_TRACEBACK, None)
    else:
        os.environ[FULL_TRACEBACK] = before
