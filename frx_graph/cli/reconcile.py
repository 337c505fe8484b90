"""`frx reconcile`: diagnose one program from its source, PTX, Nsight Compute export and trace together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.analyze.layers import read_layers
from frx_graph.analyzers.reconcile.reconciliation import reconcile as reconciled
from frx_graph.cli.options.evidence_options import GpuModel, note_unused_gpu
from frx_graph.cli.printing.output import QuietOption, print_result, show_stages
from frx_graph.reports.advice.terminal import DEFAULT_TOP
from frx_graph.reports.kernels.reconcile_document import build_reconcile_document
from frx_graph.reports.kernels.reconcile_report import render_reconciliation
from frx_graph.rules.gpu_profile import require_cuda_gpu


def reconcile(
    files: Annotated[
        list[Path], typer.Argument(help="kernel.cu, kernel.ptx, report.csv or .ncu-rep, trace.json: one of each kind.")
    ],
    top: Annotated[int, typer.Option(min=1, help="Explain this many diagnoses.")] = DEFAULT_TOP,
    gpu_model: GpuModel = None,
    as_document: Annotated[bool, typer.Option("--json", help="As JSON: frx_reconcile_v1.")] = False,
    _quiet: QuietOption = False,
) -> None:
    """Diagnose a program's kernels from source, PTX, counters and a trace together. Print each diagnosis with its
    confidence and the measurements that would confirm it. Exit code 0: nothing; 1: diagnoses; 2: an error."""
    gpu = require_cuda_gpu(gpu_model)
    with show_stages() as progress:
        progress(f"reading {', '.join(map(str, files))}")
        layers = read_layers(files, gpu)
    if layers.source is None and layers.ptx is None and layers.ncu is None:
        note_unused_gpu(gpu_model)
    document = build_reconcile_document(layers, reconciled(layers))
    print_result(document, partial(render_reconciliation, document.result, top=top), as_document=as_document)
    raise typer.Exit(1 if document.result.diagnoses else 0)
