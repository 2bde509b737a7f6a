"""Commands about xzarr3 itself: ``demo``, ``versions`` and ``completion``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from xzarr3.cli import arguments, output
from xzarr3.cli.running import command
from xzarr3.errors import Xzarr3Error
from xzarr3.versions import versions as found_versions

_PACKAGE = Path(__file__).resolve().parents[1]
DEMOS = (_PACKAGE.parent / "notebooks" / "demo.py", _PACKAGE / "_demo" / "demo.py")
"""Where the demonstration is: in a checkout, and in an installed package."""


@command(status="that of the demonstration.")
@click.option("--data", metavar="FILE", help="Another netCDF file than the sample data.")
@click.option("--keep", metavar="DIR", help="Where the store is kept.")
def demo(data: str | None, keep: str | None) -> int:
    """Run the demonstration.

    It needs the extra "demo": pip install "xzarr3[demo]". In a checkout, bash ci/demo.sh installs that.
    """
    script = next((path for path in DEMOS if path.is_file()), None)
    if script is None:
        raise Xzarr3Error(f"the demonstration is not installed: no file {DEMOS[1]}; install xzarr3 again")
    options = [("--data", data), ("--keep", keep)]
    given = [text for name, value in options if value is not None for text in (name, value)]
    return subprocess.run([sys.executable, str(script), *given], check=False).returncode


@command(examples=["xzarr3 versions", "xzarr3 versions --json"])
@arguments.json_option
def versions(as_json: bool) -> None:
    """Print versions of packages, and whether native code is used."""
    rows = found_versions()
    if as_json:
        output.echo_json(rows)
    else:
        click.echo("\n".join(f"{name}: {text}" for name, text in rows.items()))


@command(examples=["xzarr3 completion bash", "xzarr3 completion zsh"])
@click.argument("shell", metavar="SHELL", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for completion in a shell.

    It completes commands, options and paths of nodes.

    \b
    bash:  eval "$(xzarr3 completion bash)"     in ~/.bashrc
    zsh:   eval "$(xzarr3 completion zsh)"      in ~/.zshrc
    fish:  xzarr3 completion fish | source      in ~/.config/fish/config.fish
    """
    script = get_completion_class(shell)
    if script is None:
        raise Xzarr3Error(f"no completion for {shell}; accepted: bash, zsh, fish")
    click.echo(script(ctx.find_root().command, {}, "xzarr3", "_XZARR3_COMPLETE").source())
