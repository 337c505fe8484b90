"""`frx doctor`: what this installation can and cannot do."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from frx_graph.cli.printing.output import (
    FormatOption,
    JsonOption,
    QuietOption,
    TextOrJson,
    is_json,
    is_quiet,
    print_checks,
    print_document,
)
from frx_graph.doctor.installation import check_installation
from frx_graph.reports.doctor_document import build_doctor_document
from frx_graph.reports.render.document import to_json
from frx_graph.support.check import Status, find_worst

_EXIT_CODES = {Status.OK: 0, Status.WARNING: 1, Status.ERROR: 2}


def doctor(
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure bandwidth and peak arithmetic again first; needs an idle machine."),
    ] = False,
    _quiet: QuietOption = False,
) -> None:
    """Check versions, device, compilers, caches and contracts. Exit code 0: no problems; 1: warnings; 2: errors."""
    if measure:
        from frx_graph.doctor.torch_build import list_usable_devices
        from frx_graph.measure.machine.device_profile_cache import measure_again

        for device in list_usable_devices():
            measure_again(device)
    checks = check_installation()
    if is_json(format, as_document):
        print_document(to_json(build_doctor_document(checks)))
    elif not is_quiet():
        print_checks(checks, Console(highlight=False, markup=False))
    raise typer.Exit(_EXIT_CODES[find_worst(checks)])
