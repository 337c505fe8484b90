"""What `frx analyze` and `frx explain` do with the bundle of a run, a folder or a zip."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.analyzers.kernels.analysis import KernelAnalysis
from frx_graph.analyzers.run.scopes import Scope
from frx_graph.analyzers.timeline.labels import INSUFFICIENT
from frx_graph.errors import OptionError
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


BuildFlags = Annotated[str, typer.Option(help="Flags of nvcc, as in a shell: '-O3 -lcublas'.")]


def flag_words(flags: str) -> tuple[str, ...]:
    """As words. Raises `OptionError` for quotation marks that are not closed."""
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise OptionError(f"--build-flags {flags!r}: {error}", "quote them as in a shell") from None


GpuModel = Annotated[
    str | None,
    typer.Option("--gpu-model", help="Judge kernels by this GPU, H100 or sm_90, in place of the file's."),
]


def kernels_code(analysis: KernelAnalysis) -> int:
    """0: nothing holds the kernels back that the metrics tell; 1: something does; 2: they tell nothing."""
    if analysis.primary is not None:
        return 1
    return 0 if analysis.tells else 2
