"""`frx doctor`: what this installation can and cannot do."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frx_graph.evidence.device_calibration import measure_again
from frx_graph.installation_checks import Check, Status, check_installation, usable_devices, worst


class DoctorFormat(enum.StrEnum):
    """How the checks are printed."""

    TEXT = "text"
    JSON = "json"


_EXIT_CODES = {Status.OK: 0, Status.WARNING: 1, Status.ERROR: 2}
_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.ERROR: "bold red"}


def doctor(
    format: Annotated[DoctorFormat, typer.Option("--format", help="Output format.")] = DoctorFormat.TEXT,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure bandwidth and peak arithmetic again first; needs an idle machine."),
    ] = False,
) -> None:
    """Check versions, device, compilers, caches and contracts. Exit code 0: all well; 1: warnings; 2: errors."""
    if measure:
        for device in usable_devices():
            measure_again(device)
    checks = check_installation()
    if format is DoctorFormat.JSON:
        document = {"status": worst(checks), "checks": [asdict(check) for check in checks]}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
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
