"""What `frx analyze` and `frx explain` do with the bundle of a run, a folder or a zip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frx_graph.analyzers.run.steps import Scope
from frx_graph.analyzers.timeline.labels import INSUFFICIENT
from frx_graph.reports.runs.run_parts import RunResult

_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
RunScope = Annotated[
    Scope | None, typer.Option("--scope", help="Of a run: all steps, those in a steady state, or what there is of it.")
]


def is_bundle(path: Path) -> bool:
    """True of a folder, and of a zip by what it begins with; whether a run is in it is seen when it is opened."""
    if path.is_dir():
        return True
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) in _ZIP_MAGICS
    except OSError:
        return False


def run_code(result: RunResult, scope: Scope) -> int:
    """The exit code of a scope: 0 where nothing was found, 1 where something was, 2 where the record does not tell."""
    found = result.scope(scope)
    if found.diagnosis.user_facing_bottleneck == INSUFFICIENT:
        return 2
    return int(found.diagnosis.user_facing_bottleneck is not None or bool(found.layout_findings))
