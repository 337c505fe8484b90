"""Shared output options of all commands, and the functions that print reports, documents and notices.

Reports go to standard output, as text or JSON. Progress and the names of written files go to standard error, as do
errors, which `frx_graph.cli.main` always prints.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel

from frx_graph.errors import OptionError
from frx_graph.reports import progress
from frx_graph.reports.advice.terminal import detect_terminal
from frx_graph.reports.render.document import to_json
from frx_graph.support.atomic_file import write_atomically
from frx_graph.support.check import Check, Status
from frx_graph.support.plain_text import clean_line

if TYPE_CHECKING:
    from rich.console import Console

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


class TextOrJson(enum.StrEnum):
    """Output formats of most commands."""

    TEXT = "text"
    JSON = "json"


def _set_quiet(context: typer.Context, wanted: bool) -> bool:
    if wanted:
        token = _QUIET.set(True)
        context.call_on_close(lambda: _QUIET.reset(token))
    return wanted


FormatOption = Annotated[TextOrJson, typer.Option("--format", help="Output format.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
OnlyJsonOption = Annotated[bool, typer.Option("--json", help="The report as JSON.")]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_set_quiet, help="Print nothing but JSON and errors; the exit code tells the result."
    ),
]


def is_json(format: enum.StrEnum | None, as_document: bool) -> bool:
    """Return True if JSON was requested. Raises `OptionError` if another format was requested, too."""
    if as_document and format is not None and format.value not in (TextOrJson.TEXT, TextOrJson.JSON):
        raise OptionError(f"--json and --format {format.value} are both given", "leave one of them out")
    return as_document or (format is not None and format.value == TextOrJson.JSON)


def is_quiet() -> bool:
    """Return True if the running command was given `--quiet`."""
    return _QUIET.get()


def print_document(document: object) -> None:
    """Print a document as JSON on standard output."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_report(text: str, *, color: bool) -> None:
    """Print a text report on standard output, unless `--quiet` was given."""
    if not is_quiet():
        typer.echo(text, nl=not text.endswith("\n"), color=color)


def print_text(render: Callable[..., str]) -> None:
    """Print the text that `render(width=..., color=...)` returns on standard output, unless `--quiet` was given."""
    terminal = detect_terminal(sys.stdout, os.environ)
    print_report(render(width=terminal.width, color=terminal.color), color=terminal.color)


def print_result(
    document: BaseModel, render: Callable[..., str], *, as_document: bool, output: Path | None = None
) -> None:
    """Print a document as JSON, or as the text that `render(width=..., color=...)` returns, or write it to a file.

    Raises `OptionError` if the file cannot be written.
    """
    if output is not None:
        width = detect_terminal(sys.stdout, os.environ).width
        text = json.dumps(to_json(document), indent=2, allow_nan=False) + "\n" if as_document else None
        write_output(output, text or render(width=width, color=False))
    elif as_document:
        print_document(to_json(document))
    else:
        print_text(render)


def check_folder(output: Path | None) -> None:
    """Raise `OptionError` if the folder of a file to write does not exist."""
    if output is not None and not output.absolute().parent.is_dir():
        raise OptionError(f"no such folder: {output.absolute().parent}", "create it first")


def write_output(output: Path, text: str) -> None:
    """Write a file atomically, and print a notice. Raises `OptionError` if it cannot be written."""
    try:
        write_atomically(output, text)
    except OSError as error:
        raise OptionError(f"cannot write {output}: {error.strerror}", "choose another --output") from error
    print_notice(f"frx: wrote {clean_line(str(output), _LONGEST)}")


def print_notice(text: str) -> None:
    """Print a notice on standard error, unless `--quiet` was given."""
    if not is_quiet():
        typer.echo(text, err=True)


def show_stages() -> AbstractContextManager[Callable[[str], None]]:
    """Return the progress of `frx_graph.reports.progress`: a spinner, or now and then a line. Silent with `--quiet`."""
    return progress.show_stages(shown=not is_quiet(), plain_seconds=_PLAIN_SECONDS)


_PLAIN_SECONDS = 30.0
"""Seconds between two lines of progress if standard error is not a terminal."""


_LONGEST = 1000
"""Characters of a check's result: paths, and error messages of other programs."""
_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.ERROR: "bold red"}


def print_checks(checks: tuple[Check, ...], console: Console) -> None:
    """Print one line per check, with its hint, if any, on the next line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        value = Text(clean_line(check.value, _LONGEST))
        if check.hint:
            value.append(f"\n{clean_line(check.hint, _LONGEST)}", style="dim")
        mark = "--" if check.absent else check.status.value
        table.add_row(Text(mark, style=_STYLES[check.status]), Text(check.name), value)
    console.print(table)
