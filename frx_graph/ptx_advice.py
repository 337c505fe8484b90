"""Advice on kernels of which only the PTX is at hand, and what the assembler makes of it where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ptx.module import PtxModule
from frx_graph.evidence.ptx.parsing import read_ptx
from frx_graph.evidence.ptx.ptxas import Assembled, assemble
from frx_graph.passes.kernels.ptx_analysis import PtxAnalysis, analyse_ptx


def analyze_ptx(path: Path) -> tuple[PtxModule, PtxAnalysis, str | None]:
    """What the file at `path` says of its kernels, and why the assembler could not be asked, None if it could. Raises
    `EvidenceError` for a file that is no PTX."""
    module = read_ptx(path)
    assembled: Mapping[str, Assembled] = {}
    reason = None
    try:
        assembled = assemble(path, module.target)
    except EvidenceError as error:
        reason = str(error)
    return module, analyse_ptx(module, assembled), reason
