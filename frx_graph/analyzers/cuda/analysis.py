"""Run all detectors on CUDA source, and sort their findings by severity."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.analyzers.cuda import DEVICE_DETECTORS, SOURCE_DETECTORS
from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.analyzers.cuda.launch_advice import LaunchAdvice, advise_on_launches
from frx_graph.analyzers.cuda.not_examined import NotExamined, list_not_examined
from frx_graph.evidence.cuda.source import Access, CudaSource
from frx_graph.rules.cuda_card import CudaCard, Severity, load_cuda_cards
from frx_graph.rules.gpu_profile import GpuProfile

_ORDER = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2}


@dataclass(frozen=True, slots=True)
class CudaFinding:
    """A card and the place that it applies to; `access` is None if the finding is not about a single access. Where a
    header has the place, `line` is the kernel's, and `seen` names the header."""

    card: CudaCard
    kernel: str
    line: int
    seen: str
    access: Access | None


@dataclass(frozen=True, slots=True)
class CudaAnalysis:
    """Findings and launches of one file, and what the findings do not cover; `gpu` is the named GPU."""

    findings: tuple[CudaFinding, ...]
    launches: tuple[LaunchAdvice, ...]
    gpu: GpuProfile | None
    not_examined: tuple[NotExamined, ...]


def detect_cuda_defects(source: CudaSource, gpu: GpuProfile | None = None) -> CudaAnalysis:
    """Analyse the source alone, for `gpu` or for any GPU. Nothing is measured."""
    cards = load_cuda_cards()
    seen = {rule: detect(source) for rule, detect in SOURCE_DETECTORS.items()}
    seen |= {rule: detect(source, gpu) for rule, detect in DEVICE_DETECTORS.items()}
    found = [
        CudaFinding(cards[rule], one.kernel, *_place(source, one), one.access)
        for rule, occurrences in seen.items()
        for one in occurrences
    ]
    found.sort(key=lambda one: (_ORDER[one.card.severity], one.line, one.card.id))
    return CudaAnalysis(tuple(found), advise_on_launches(source, gpu), gpu, list_not_examined(source))


def _place(source: CudaSource, found: Occurrence) -> tuple[int, str]:
    """Return the line in the file, and what is seen there."""
    if source.find_header(found.line) is None:
        return found.line, found.seen
    line = next(kernel.line for kernel in source.kernels if kernel.name == found.kernel)
    return line, f"{found.seen} ({source.describe_line(found.line)})"
