"""The commands of `frx` with their arguments and options, for completion and documentation. Imports all commands."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from frx_graph.cli.commands import COMMANDS, app, load_command


@dataclass(frozen=True, slots=True)
class DescribedCommand:
    """A command. The words of `path` name it (none for `frx` itself); those of `below` may follow."""

    path: tuple[str, ...]
    command: TyperCommand | TyperGroup
    below: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """The text of `--help`, on one line."""
        return " ".join((self.command.help or "").split())

    @property
    def arguments(self) -> list[TyperArgument]:
        """The positional arguments."""
        return [each for each in self.command.params if isinstance(each, TyperArgument)]

    @property
    def options(self) -> list[TyperOption]:
        """The options that are not hidden."""
        return [each for each in self.command.params if isinstance(each, TyperOption) and not each.hidden]


def describe_commands() -> Iterator[DescribedCommand]:
    """Yield `frx`, then each command followed by its subcommands."""
    whole = typer.main.get_command(app)
    assert isinstance(whole, TyperGroup)
    yield DescribedCommand((), whole, tuple(COMMANDS))
    for name in COMMANDS:
        command = load_command(name)
        below = command.commands if isinstance(command, TyperGroup) else {}
        yield DescribedCommand((name,), command, tuple(below))
        for deeper, each in below.items():
            assert isinstance(each, TyperCommand)
            yield DescribedCommand((name, deeper), each)


def list_choices(parameter: TyperArgument | TyperOption) -> tuple[str, ...]:
    """Return the values that a parameter takes, if they are few."""
    kind = parameter.type_descriptor.annotation
    return tuple(kind) if isinstance(kind, type) and issubclass(kind, enum.StrEnum) else ()


def format_default(option: TyperOption) -> str | None:
    """Return the default of an option; None if it has none, is a switch, or names it in its help."""
    value = option.default
    if value is None or value == "" or isinstance(value, bool):
        return None
    return str(value)
