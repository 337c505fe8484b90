"""What all commands do alike with what they have to say: `--format`, `--json`, `--quiet`, and who may read along.

A report goes to standard output, for people or as JSON. What is going on, and which files were written, goes to
standard error, and so do errors, which `frx_graph.cli.main` prints, whatever was asked for.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Annotated

import typer

from frx_graph.errors import OptionError
from frx_graph.reports import progress

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


class TextOrJson(enum.StrEnum):
    """How most commands print what they found."""

    TEXT = "text"
    JSON = "json"


def _silence(context: typer.Context, wanted: bool) -> bool:
    if wanted:
        token = _QUIET.set(True)
        context.call_on_close(lambda: _QUIET.reset(token))
    return wanted


FormatOption = Annotated[TextOrJson, typer.Option("--format", help="Output format.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
OnlyJsonOption = Annotated[bool, typer.Option("--json", help="The report as JSON.")]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_silence, help="No report for people and no progress: the exit code tells, and JSON."
    ),
]


def is_json(format: enum.StrEnum | None, as_document: bool) -> bool:
    """Whether JSON is wanted. Raises `OptionError` where another format is wanted, too."""
    if as_document and format is not None and format.value not in (TextOrJson.TEXT, TextOrJson.JSON):
        raise OptionError(f"--json and --format {format.value} are both given", "leave one of them out")
    return as_document or (format is not None and format.value == TextOrJson.JSON)


def is_quiet() -> bool:
    """Whether the command that runs was given `--quiet`."""
    return _QUIET.get()


def print_document(document: object) -> None:
    """JSON on standard output."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_report(text: str, *, color: bool) -> None:
    """What people read, on standard output; nothing if it is quiet."""
    if not is_quiet():
        typer.echo(text, nl=not text.endswith("\n"), color=color)


def notice(text: str) -> None:
    """A line on standard error that is no error; nothing if it is quiet."""
    if not is_quiet():
        typer.echo(text, err=True)


def stages() -> AbstractContextManager[Callable[[str], None]]:
    """The spinner of `frx_graph.reports.progress`; silent if it is quiet."""
    return progress.stages(shown=not is_quiet())
