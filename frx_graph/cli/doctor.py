"""`frx doctor`: what this installation can and cannot do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frx_graph.cli.output import FormatOption, JsonOption, QuietOption, TextOrJson, is_json, is_quiet, print_document
from frx_graph.evidence.device_calibration import measure_again
from frx_graph.installation_checks import Check, Status, check_installation, usable_devices, worst

_EXIT_CODES = {Status.OK: 0, Status.WARNING: 1, Status.ERROR: 2}
_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.ERROR: "bold red"}


def doctor(
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure bandwidth and peak arithmetic again first; needs an idle machine."),
    ] = False,
    _quiet: QuietOption = False,
) -> None:
    """Check versions, device, compilers, caches and contracts. Exit code 0: all well; 1: warnings; 2: errors."""
    if measure:
        for device in usable_devices():
            measure_again(device)
    checks = check_installation()
    if is_json(format, as_document):
        document = {"status": worst(checks), "checks": [asdict(check) for check in checks]}
        print_document(document)
    elif not is_quiet():
        print_checks(checks, Console(highlight=False, markup=False))
    raise typer.Exit(_EXIT_CODES[worst(checks)])


def print_checks(checks: tuple[Check, ...], console: Console) -> None:
    """One line a check; the hint below it where something is to be done."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        value = Text(check.value)
        if check.hint:
            value.append(f"\n{check.hint}", style="dim")
        table.add_row(Text(check.status.value, style=_STYLES[check.status]), Text(check.name), value)
    console.print(table)
