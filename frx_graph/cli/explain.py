"""`frx explain`: turn evidence into a brief for a developer or a language model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.analyze.layers import read_layers
from frx_graph.analyze.run import analyze_bundle
from frx_graph.analyzers.layers import Layers, SourceLayer
from frx_graph.analyzers.reconcile.reconciliation import reconcile
from frx_graph.analyzers.run.steps import Scope
from frx_graph.cli.options.evidence_options import RunScope, is_bundle
from frx_graph.cli.printing.explanation_files import ExplanationFiles
from frx_graph.cli.printing.output import QuietOption, show_stages
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.quoted_source import quote_source
from frx_graph.reports.kernels.explain_document import ExplainDocument, add_source, explain_ncu, explain_ptx
from frx_graph.reports.kernels.kernel_document import build_ncu_document
from frx_graph.reports.kernels.ptx_document import build_ptx_document
from frx_graph.reports.runs.run_explanation import explain_run


def explain(
    report: Annotated[
        Path, typer.Argument(help="A run's folder or zip, report.csv of `ncu --csv`, report.ncu-rep, or kernel.ptx.")
    ],
    source: Annotated[
        Path | None, typer.Option(help="The kernel's CUDA source, to analyse and quote in the prompt.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write the files to; default: the current one.")] = Path(),
    scope: RunScope = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of these names that frx did not write.")
    ] = False,
    _quiet: QuietOption = False,
) -> None:
    """Print what slows kernels or a run down, and how to fix it. Write that to frx_summary.txt, with
    frx_llm_prompt.txt for a language model, and frx_evidence.json, in the current folder or --out."""
    files = ExplanationFiles(out, force)
    files.check()
    if is_bundle(report):
        if source is not None:
            raise OptionError("--source is for kernels, and needs a report on them", "leave it out")
        with show_stages() as progress:
            progress(f"reading {report}")
            result = analyze_bundle(report).document.result
        files.write(explain_run(result, scope or Scope.AUTO), shown=True)
        return
    if scope is not None:
        raise OptionError("--scope chooses steps of a run's folder or zip", "leave it out")
    with show_stages() as progress:
        progress(f"reading {report}")
        layers = _read_report_layers(report)
        document = _build_explanation(layers)
        if source is not None:
            progress(f"reading {source}")
            document = _add_source(document, layers, source)
    files.write(document, shown=True)


def _read_report_layers(report: Path) -> Layers:
    """Read the report. Raises `EvidenceError` if it is not a report on kernels."""
    kind = detect_file_kind(report)
    if kind not in (FileKind.NCU_CSV, FileKind.NCU_REPORT, FileKind.PTX):
        what = "is source, which needs a report" if kind is FileKind.CUDA else "does not describe kernels"
        hint = f"frx explain report.csv --source {report}, or " if kind is FileKind.CUDA else ""
        raise EvidenceError(f"{report}: {what}", f"{hint}frx analyze {report}")
    return read_layers([report])


def _build_explanation(layers: Layers) -> ExplainDocument:
    if layers.ncu is not None:
        return explain_ncu(build_ncu_document(layers.ncu.export, layers.ncu.analysis).result)
    assert layers.ptx is not None
    return explain_ptx(
        build_ptx_document(layers.ptx.module, layers.ptx.analysis, layers.ptx.not_assembled_because).result
    )


def _add_source(document: ExplainDocument, layers: Layers, path: Path) -> ExplainDocument:
    """Add the source at `path`, with its findings if it is CUDA; a Triton kernel is only quoted."""
    quoted = quote_source(path, [kernel.kernel_name for kernel in document.top_kernels])
    try:
        source = SourceLayer(*analyze_cuda(path))
    except EvidenceError:
        return add_source(document, quoted, None, reconcile(layers))
    return add_source(document, quoted, source.analysis.findings, reconcile(replace(layers, source=source)))
