"""`frx completion`: what makes a shell complete commands, options and their values."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from frx_graph.atomic_file import write_atomically
from frx_graph.cli.commands import COMMANDS, load_command
from frx_graph.cli.commands import app as frx
from frx_graph.cli.completion_script import PROGRAMS, Completable, Shell, completion_script
from frx_graph.cli.output import QuietOption, notice
from frx_graph.errors import OptionError


def completion(
    shell: Annotated[
        Shell | None, typer.Argument(help="Whose; otherwise the one that SHELL names.", show_default=False)
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Write it to where the shell looks for it, and print nothing.")
    ] = False,
    _quiet: QuietOption = False,
) -> None:
    """Print the completion of frx for bash, zsh or fish, or install it. It is a script of its own that starts no
    Python, so it is to be written anew after an update of frx."""
    wanted = shell or _own_shell()
    script = completion_script(wanted, dict(completable()))
    if not install:
        typer.echo(script, nl=False)
        return
    for path in _places(wanted):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, script)
        except OSError as error:
            message = f"cannot write {path}: {error.strerror}"
            raise OptionError(message, f"frx completion {wanted} > a file that your shell reads") from error
        notice(f"frx: wrote {path}")
    if wanted is Shell.ZSH:
        notice("frx: ~/.zshrc needs, before compinit: fpath+=~/.zfunc")


def completable() -> Iterator[tuple[tuple[str, ...], Completable]]:
    """What may follow `frx` (the empty tuple), and each of its commands. Imports all of them."""
    root = typer.main.get_command(frx)
    yield (), _of(root, tuple(COMMANDS))
    for name in COMMANDS:
        command = load_command(name)
        below = command.commands if isinstance(command, TyperGroup) else {}
        yield (name,), _of(command, tuple(below))
        for deeper, each in below.items():
            yield (name, deeper), _of(each, ())


def _of(command: Any, below: tuple[str, ...]) -> Completable:
    """Of one of typer's commands."""
    assert isinstance(command, (TyperCommand, TyperGroup))
    shown = [each for each in command.params if isinstance(each, TyperOption) and not each.hidden]
    names = [name for each in shown for name in (*each.opts, *each.secondary_opts)]
    choices = {
        name: tuple(value.value for value in kind)
        for each in shown
        if isinstance(kind := each.type_descriptor.annotation, type) and issubclass(kind, enum.StrEnum)
        for name in each.opts
    }
    switches = frozenset(name for each in shown if each.is_flag for name in (*each.opts, *each.secondary_opts))
    return Completable(below, (*names, "--help"), switches | {"--help"}, choices)


def _own_shell() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in set(Shell):
        raise OptionError(f"SHELL names no shell of {', '.join(Shell)}", "frx completion bash")
    return Shell(name)


def _places(shell: Shell) -> list[Path]:
    """Where that shell looks for the completion of each program, in the user's own folders."""
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
