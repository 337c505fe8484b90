"""The commands of `frx`. Each is imported when it runs. Most import torch, which takes seconds; `--help`, `--version`
and the other commands do not wait for that."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from frx_graph.cli.interrupt import exit_on_interrupt
from frx_graph.errors import OptionError
from frx_graph.support.optional_torch import INSTALL_TORCH, is_torch_installed
from frx_graph.version import __version__

if TYPE_CHECKING:
    from typer._click import HelpFormatter


@dataclass(frozen=True, slots=True)
class Home:
    """The function that defines a command (`module:function` in `frx_graph.cli`) and a one-line summary."""

    at: str
    summary: str


COMMANDS: Mapping[str, Home] = {
    "init": Home("init:init", "First steps: check this machine, find scripts, patch one."),
    "collect": Home("collect:collect", "Run a program, and record it in a bundle."),
    "tune": Home("tune:tune", "Try settings of a program and recommend the fastest."),
    "advise": Home("advise:advise", "Rank layout fixes for a model."),
    "fix": Home("fix:fix", "Write the fixes of findings into the source, proved."),
    "analyze": Home("analyze:analyze", "Report on a run, trace, ncu export, PTX or CUDA file."),
    "profile": Home("profile:profile", "Measure a program's kernels with Nsight Compute."),
    "explain": Home("explain:explain", "Brief a developer or language model on a run or report."),
    "reconcile": Home("reconcile:reconcile", "Diagnose from source, PTX, counters and trace together."),
    "compare": Home("compare:compare", "Compare two runs, traces, advice files or CUDA sources."),
    "bench": Home("bench:bench", "Time two CUDA programs against each other."),
    "fleet": Home("fleet:fleet", "Find what many runs have in common, and its total cost."),
    "trial": Home("trial:trial", "Test if frx's changes keep a model correct and make it faster."),
    "ledger": Home("ledger:ledger", "Show the decisions about layouts, and their reasons."),
    "serve": Home("serve:serve", "Serve the analyses over HTTP, with a web page."),
    "rules": Home("rules:rules", "List the rules, or show one rule's card."),
    "probe": Home("probe:probe", "Measure which operators copy which operands."),
    "doctor": Home("doctor:doctor", "Check versions, devices, compilers and caches."),
    "smoke-test": Home("smoke_test:smoke_test", "Check that the whole pipeline works here."),
    "ncu-command": Home("ncu_command:ncu_command", "Print the ncu command of a preset."),
    "completion": Home("completion:completion", "Print or install completion for a shell."),
}
"""The commands, in the order of `frx --help`."""


_NEED_TORCH = frozenset(["advise", "fix", "trial", "probe"])


class CommandGroup(TyperGroup):
    """A group that imports a command only when it is used, not to list it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("MutableMapping[str, Any]", _LazyCommands())

    def format_commands(self, _context: object, formatter: HelpFormatter) -> None:
        """Write the list in `frx --help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, home.summary) for name, home in COMMANDS.items()])


class _LazyCommands(Mapping[str, TyperCommand | TyperGroup]):
    """Commands by name."""

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        if name not in COMMANDS:
            raise KeyError(name)
        return load_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def load_command(name: str) -> TyperCommand | TyperGroup:
    """The command, imported."""
    if name in _NEED_TORCH and not is_torch_installed():
        raise OptionError(f"frx {name} needs PyTorch, which is not installed", INSTALL_TORCH)
    module, _, attribute = COMMANDS[name].at.partition(":")
    with exit_on_interrupt():
        found = getattr(importlib.import_module(f"frx_graph.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        command, found = found, typer.Typer(rich_markup_mode=None, add_completion=False)
        found.command(name)(command)
    return cast("TyperCommand | TyperGroup", get_command(found))


app = typer.Typer(
    name="frx",
    cls=CommandGroup,
    add_completion=False,  # `frx completion` does it without starting Python at every Tab
    context_settings={"help_option_names": ["--help", "-h"]},  # commands inherit it
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"frx-graph {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _frx(
    context: typer.Context,
    _wanted: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Finds where a PyTorch model fights its own memory layout."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)
