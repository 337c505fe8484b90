"""The commands of `frx`. Importing them imports torch, which takes seconds."""

from __future__ import annotations

import typer

from frx_graph.cli.advise import advise
from frx_graph.cli.analyze import analyze
from frx_graph.cli.bench import bench
from frx_graph.cli.collect import collect
from frx_graph.cli.compare import compare
from frx_graph.cli.doctor import doctor
from frx_graph.cli.explain import explain
from frx_graph.cli.ledger import ledger
from frx_graph.cli.ncu_command import ncu_command
from frx_graph.cli.probe import probe
from frx_graph.cli.profile import profile
from frx_graph.cli.reconcile import reconcile
from frx_graph.cli.rules import rules
from frx_graph.cli.smoke_test import smoke_test
from frx_graph.cli.trial import trial
from frx_graph.cli.tune import tune
from frx_graph.version import __version__

app = typer.Typer(
    name="frx",
    help="Finds where a PyTorch model fights its own memory layout.",
    add_completion=False,
    rich_markup_mode=None,
)
for command in (
    advise,
    analyze,
    profile,
    collect,
    explain,
    reconcile,
    compare,
    bench,
    trial,
    tune,
    rules,
    probe,
    doctor,
    ncu_command,
    smoke_test,
):
    app.command()(command)
app.add_typer(ledger, name="ledger")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"frx-graph {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _frx(
    context: typer.Context,
    _wanted: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Finds where a PyTorch model fights its own memory layout."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)
