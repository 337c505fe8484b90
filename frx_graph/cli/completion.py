"""`frx completion`: what makes a shell complete commands, options and their values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.command_tree import describe_commands
from frx_graph.cli.completion_script import PROGRAMS, Shell, write_completion_script
from frx_graph.cli.printing.output import QuietOption, print_notice
from frx_graph.errors import OptionError
from frx_graph.support.atomic_file import write_atomically


def completion(
    shell: Annotated[
        Shell | None, typer.Argument(help="The shell; default: the one that SHELL names.", show_default=False)
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Write it where the shell looks for it, and print nothing.")
    ] = False,
    _quiet: QuietOption = False,
) -> None:
    """Print the completion of frx for bash, zsh or fish, or install it. The script starts no Python, so print or
    install it again after an update of frx."""
    wanted = shell or _own_shell()
    script = write_completion_script(wanted, list(describe_commands()))
    if not install:
        typer.echo(script, nl=False)
        return
    for path in _list_completion_files(wanted):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, script)
        except OSError as error:
            message = f"cannot write {path}: {error.strerror}"
            raise OptionError(message, f"frx completion {wanted} > a file that your shell reads") from error
        print_notice(f"frx: wrote {path}")
    if wanted is Shell.ZSH:
        print_notice("frx: ~/.zshrc needs, before compinit: fpath+=~/.zfunc")


def _own_shell() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in set(Shell):
        raise OptionError(f"SHELL names no shell of {', '.join(Shell)}", "frx completion bash")
    return Shell(name)


def _list_completion_files(shell: Shell) -> list[Path]:
    """Return the user's own files in which the shell looks for the completion of each program."""
    home = Path.home()
    match shell:
        case Shell.BASH:
            data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
            return [data / "bash-completion" / "completions" / program for program in PROGRAMS]
        case Shell.ZSH:
            return [home / ".zfunc" / "_frx"]
        case Shell.FISH:
            config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
            return [config / "fish" / "completions" / f"{program}.fish" for program in PROGRAMS]
