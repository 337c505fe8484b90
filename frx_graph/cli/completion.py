"""`frx completion`: shell completion of commands, options and their values."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.completion_script import PROGRAMS, Shell
from frx_graph.cli.printing.output import QuietOption, print_notice
from frx_graph.errors import OptionError
from frx_graph.support.atomic_file import write_atomically


def completion(
    shell: Annotated[
        Shell | None, typer.Argument(help="The shell; default: the shell that SHELL names.", show_default=False)
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install the script in your shell's folder; print nothing.")
    ] = False,
    _quiet: QuietOption = False,
) -> None:
    """Print or install the completion script for bash, zsh or fish. The script holds the names of all options, so renew
    it after an update of frx."""
    name = Path(os.environ.get("SHELL", "")).name
    if shell is None and name not in set(Shell):
        raise OptionError(f"SHELL names no shell of {', '.join(Shell)}", "frx completion bash")
    wanted = shell or Shell(name)
    script = read_completion_script(wanted)
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


def read_completion_script(shell: Shell) -> str:
    """Return the packaged script, which a test holds equal to `write_completion_script`."""
    return resources.files("frx_graph.cli").joinpath("completions", f"frx.{shell}").read_text(encoding="utf-8")


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
