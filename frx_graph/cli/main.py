"""The `frx` command. Exit code 0: nothing found; 1: findings; 2: an error, said in one line; 141: nobody reads on."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from frx_graph.cli.advise import advise
from frx_graph.cli.analyze import analyze
from frx_graph.cli.doctor import doctor
from frx_graph.cli.ledger import ledger
from frx_graph.cli.probe import probe
from frx_graph.cli.rules import rules
from frx_graph.cli.trial import trial
from frx_graph.errors import FrxError, first_line
from frx_graph.version import __version__

EXIT_CLEAN, EXIT_FINDINGS, EXIT_ERROR = 0, 1, 2
EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended: 128 + 13."""

app = typer.Typer(
    name="frx",
    help="Finds where a PyTorch model fights its own memory layout.",
    add_completion=False,
    rich_markup_mode=None,
)
for command in (advise, analyze, trial, rules, probe, doctor):
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
        raise typer.Exit(EXIT_ERROR)


def run(arguments: Sequence[str] | None = None) -> int:
    """The exit code of `frx` with these arguments; every error becomes one line on standard error."""
    try:
        code = app(args=list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
    except FrxError as error:
        return _fail(str(error))
    except TyperException as error:
        return _fail(f"{error.format_message()} (frx --help lists commands and options)")
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted")
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        # Typer and rich turn it into an exit. The reader of our output has gone, `frx rules | head`: no message, and
        # none from Python's shutdown either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except BaseException as error:  # noqa: BLE001 - the boundary: a defect of ours is reported as one, in one line
        if os.environ.get("FRX_DEBUG"):
            traceback.print_exc()
        return _fail(f"internal error: {first_line(error)} (set FRX_DEBUG=1 for the traceback)")
    return code if isinstance(code, int) else EXIT_CLEAN


def _fail(message: str) -> int:
    typer.echo(f"frx: {' '.join(message.split())}", err=True)
    return EXIT_ERROR


def main() -> None:
    """Entry point of the `frx` script."""
    sys.exit(run())
