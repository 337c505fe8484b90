"""The commands of `frx` with their arguments and options, for completion and documentation. Imports all commands."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from frx_graph.cli.commands import COMMANDS, app, load_command


@dataclass(frozen=True, slots=True)
class DescribedOption:
    """An option with all its names. `negations` switch it off. `choices` are its values, if they are few. `default` is
    None if there is no default, or if `help` names it."""

    names: tuple[str, ...]
    negations: tuple[str, ...]
    switch: bool
    repeated: bool
    choices: tuple[str, ...]
    default: str | None
    help: str


@dataclass(frozen=True, slots=True)
class DescribedArgument:
    """A positional argument; `rest` collects everything that follows, such as a program and its arguments."""

    name: str
    required: bool
    rest: bool
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class DescribedCommand:
    """A command. `words` name it (none for `frx` itself); `below` are the words that may follow them."""

    path: tuple[str, ...]
    help: str
    below: tuple[str, ...]
    arguments: tuple[DescribedArgument, ...]
    options: tuple[DescribedOption, ...]


def describe_commands() -> Iterator[DescribedCommand]:
    """Yield `frx`, then each command followed by its subcommands. Hidden options are left out."""
    yield _describe_command((), typer.main.get_command(app), tuple(COMMANDS))
    for name in COMMANDS:
        command = load_command(name)
        below = command.commands if isinstance(command, TyperGroup) else {}
        yield _describe_command((name,), command, tuple(below))
        for deeper, each in below.items():
            yield _describe_command((name, deeper), each, ())


def _describe_command(path: tuple[str, ...], command: Any, below: tuple[str, ...]) -> DescribedCommand:
    """Describe one of typer's commands."""
    assert isinstance(command, (TyperCommand, TyperGroup))
    arguments = tuple(_describe_argument(each) for each in command.params if isinstance(each, TyperArgument))
    options = tuple(
        _describe_option(each) for each in command.params if isinstance(each, TyperOption) and not each.hidden
    )
    return DescribedCommand(path, " ".join((command.help or "").split()), below, arguments, options)


def _describe_argument(argument: TyperArgument) -> DescribedArgument:
    return DescribedArgument(
        name=argument.name or "",
        required=argument.required,
        rest=argument.nargs == -1,
        choices=_list_choices(argument),
        help=argument.help or "",
    )


def _describe_option(option: TyperOption) -> DescribedOption:
    return DescribedOption(
        names=tuple(option.opts),
        negations=tuple(option.secondary_opts),
        switch=bool(option.is_flag),
        repeated=bool(option.multiple),
        choices=_list_choices(option),
        default=_format_default(option.default),
        help=option.help or "",
    )


def _list_choices(parameter: TyperArgument | TyperOption) -> tuple[str, ...]:
    kind = parameter.type_descriptor.annotation
    few = isinstance(kind, type) and issubclass(kind, enum.StrEnum)
    return tuple(value.value for value in kind) if few else ()


def _format_default(value: object) -> str | None:
    if value is None or value == "" or isinstance(value, bool):
        return None
    return str(value.value if isinstance(value, enum.Enum) else value)
