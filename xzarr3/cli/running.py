"""Runs a command: exit statuses, errors as one line and a hint, ``--debug``, Ctrl-C and closed pipes."""

from __future__ import annotations

import inspect
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from xzarr3 import errors
from xzarr3.cli.arguments import Function, json_option
from xzarr3.cli.output import Output, echo_json, is_colored
from xzarr3.errors import FULL_TRACEBACK, Xzarr3Error, printable

FAILURE = 1
"""After an error, and of ``check`` and ``diff`` if they have found something."""
USAGE = UNCHECKED = 2
"""The command line has no meaning; ``check`` or ``diff`` could not look."""
INTERRUPTED = 128 + 2
"""After Ctrl-C."""

_DEBUG = "xzarr3.debug"
_HINTS: tuple[tuple[type[Xzarr3Error], str], ...] = (
    (errors.IncompleteWriteError, "xzarr3 recover STORE finishes or removes it"),
    (errors.NodeNotFoundError, "STORE is a path or URL, PATH a node in it; xzarr3 tree STORE shows them"),
    (errors.NodeExistsError, "--overwrite replaces what is there; --resume goes on with an interrupted copy"),
    (errors.NodeTypeError, "xzarr3 tree STORE shows which nodes are arrays"),
    (errors.SelectionError, "a selection is given as between the brackets in Python, in quotes: '0, 10:20'"),
    (errors.ChunkError, "xzarr3 check STORE PATH --decode all names every damaged chunk"),
    (errors.UnknownExtensionError, "xzarr3.show_versions() shows which packages with codecs are installed"),
    (errors.MetadataError, "xzarr3 check STORE tells what is wrong with its documents"),
    (errors.StoreOptionError, "options of a store are given as --option NAME=VALUE"),
    (errors.StorePermissionError, "remote stores take credentials as --option NAME=VALUE, or anon=true"),
)
"""Hints by the class of an error; the first one that fits is given."""

EXPECTED = (Xzarr3Error, OSError, ValueError, TypeError, ImportError, MemoryError)
"""Errors of what a user gave. Others are defects, and keep their traceback."""


def hint_for(error: BaseException) -> str:
    """What to try after an error."""
    if isinstance(error, errors.MetadataError) and error.path is None:  # It is about an argument.
        return "--help shows what the options accept"
    return next(
        (hint for kind, hint in _HINTS if isinstance(error, kind)), "--debug shows where it was raised"
    )


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
    click.echo(line, err=True, color=is_colored())


def run_reporting(command: Callable[[], object]) -> int:
    """Run a command and return the exit status; an error is printed as one line on standard error.

    ``command`` returns the exit status if that is not 0. click ends the process if nobody reads its output.
    """
    try:
        with warnings_as_lines():
            status = command()
    except click.UsageError as error:
        report(error, _usage_hint(error))
        return USAGE
    except (Xzarr3Error, click.ClickException) as error:
        report(error)
        return FAILURE
    return status if isinstance(status, int) else 0


def _usage_hint(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "xzarr3"
    if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
        return f"put -- before a selection that begins with '-': {command} -- STORE PATH '-1, 0'"
    return f"{command} --help shows its arguments and examples"


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as one line each, without the line of code that caused them."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        _tell("warning:", " ".join(str(message).split()), "yellow")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


class Command(click.Command):
    """A command that reports its errors, with ``--json`` and ``--debug``, and with examples in its help.

    Parameters
    ----------
    help : str
        What it does; then ``Examples:``, and command lines.
    failure : int
        The exit status after an error.
    """

    def __init__(self, *args: Any, failure: int, **options: Any) -> None:
        text = inspect.cleandoc(options["help"])  # Python 3.13 and later strip docstrings themselves.
        options["help"], _, examples = text.partition("\n\nExamples:\n")
        super().__init__(*args, **{**options, "epilog": f"\b\nExamples:\n{examples}"})
        self.examples = tuple(map(str.strip, examples.splitlines()))
        self.failure = failure
        self.params.append(debug_option())

    def invoke(self, ctx: click.Context) -> None:
        """Run the command and print its output; its exit status is that of the process."""
        as_json = ctx.params.pop("as_json")
        try:
            found: Output = super().invoke(ctx)
            if as_json:
                echo_json(found.document(), indent=found.indent)
            elif text := found.text():
                click.echo(text)
        except BrokenPipeError:  # click ends the process.
            raise
        except EXPECTED as error:
            if ctx.meta.get(_DEBUG):
                traceback.print_exception(error)
            report(error, hint_for(error))
            ctx.exit(self.failure)
        except KeyboardInterrupt:
            _tell("xzarr3:", "interrupted", "red")
            ctx.exit(INTERRUPTED)
        ctx.exit(found.status)


def command(
    *parameters: Callable[[Function], Function], failure: int = FAILURE
) -> Callable[[Callable[..., Output]], Command]:
    """Make a command of a function that returns its output, with these arguments and options."""

    def decorate(function: Callable[..., Output]) -> Command:
        for each in (json_option, *reversed(parameters)):
            function = each(function)
        return click.command(cls=Command, failure=failure)(function)

    return decorate


def debug_option() -> click.Option:
    """``--debug``, which every command takes."""
    text = "Print the traceback of an error."
    return click.Option(["--debug"], is_flag=True, expose_value=False, callback=_debug, help=text)


def _debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_DEBUG] = True
        os.environ[FULL_TRACEBACK] = "1"
        ctx.call_on_close(lambda: os.environ.pop(FULL_TRACEBACK, None))
