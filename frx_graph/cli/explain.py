"""`frx explain`: from a file of evidence to a brief for whoever mends the kernel, people or a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.explanation_files import Explanations
from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, file_kind
from frx_graph.evidence.quoted_source import quote_source
from frx_graph.kernel_advice import analyze_ncu
from frx_graph.progress import stages
from frx_graph.ptx_advice import analyze_ptx
from frx_graph.reports.explain_document import ExplainDocument
from frx_graph.reports.explanation import explain_ncu, explain_ptx, with_source
from frx_graph.reports.kernel_document import ncu_document
from frx_graph.reports.ptx_document import ptx_document


def explain(
    report: Annotated[Path, typer.Argument(help="report.csv of `ncu --csv`, report.ncu-rep, or kernel.ptx.")],
    source: Annotated[Path | None, typer.Option(help="The kernel's CUDA source, to be quoted in the prompt.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the files; the current one if it is left out.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files of these names that others wrote.")] = False,
) -> None:
    """Write frx_summary.txt, frx_llm_prompt.txt and frx_evidence.json: what holds kernels back, and how to mend it."""
    if report.is_dir():
        raise EvidenceError(
            f"{report}: a directory, and folders of runs are not read yet", "give an Nsight Compute export, or PTX"
        )
    files = Explanations(out, force)
    files.check()
    with stages() as progress:
        progress(f"reading {report}")
        document = _explanation(report)
        if source is not None:
            names = [kernel.kernel_name for kernel in document.top_kernels]
            document = with_source(document, quote_source(source, names))
    files.write(document)


def _explanation(report: Path) -> ExplainDocument:
    kind = file_kind(report)
    match kind:
        case FileKind.NCU_CSV | FileKind.NCU_REPORT:
            return explain_ncu(ncu_document(*analyze_ncu(report, kind=kind)).result)
        case FileKind.PTX:
            return explain_ptx(ptx_document(*analyze_ptx(report)).result)
        case _:
            raise EvidenceError(
                f"{report}: {kind.value} evidence tells of a program, and not of its kernels' insides",
                f"frx analyze {report} reports it",
            )
