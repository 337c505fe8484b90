"""Advice on kernels of which only the PTX is at hand, and what the assembler makes of it where there is one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from frx_graph.analyzers.kernels.ptx_analysis import PtxAnalysis, analyse_ptx
from frx_graph.analyzers.kernels.ptx_gpu import gpu_of_target
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.ptx.module import PtxModule
from frx_graph.evidence.ptx.parsing import EXPECTED, MOST_CHARACTERS, fatbin_modules, is_fatbin, read_ptx
from frx_graph.evidence.ptx.ptxas import Assembled, assemble
from frx_graph.evidence.text_lines import whole_text
from frx_graph.rules.gpu_profile import GpuProfile


def analyze_ptx(path: Path, gpu: GpuProfile | None = None) -> tuple[PtxModule, PtxAnalysis, str | None]:
    """What the file at `path` says of its kernels on `gpu`, or on the architecture that its target names, and why the
    assembler could not be asked, None if it could. Raises `EvidenceError` for a file that is no PTX, or
    without a kernel, and `OptionError` for a `gpu` that cannot run it."""
    module = read_ptx(path)
    if not module.kernels:
        functions = f"{len(module.functions)} functions" if module.functions else "nothing"
        raise EvidenceError(f"{path}: {functions}, and no .entry: no kernel is in it", "was a template instantiated?")
    device = gpu_of_target(module.target, gpu)
    if gpu is not None and device is None:
        raise OptionError(f"{path} is for {module.target}, which {gpu.name} cannot run", "name a later GPU")
    assembled: Mapping[str, Assembled] = {}
    reason = None
    try:
        assembled = _assembled(path, module.target if device is None else device.target)
    except EvidenceError as error:
        reason = str(error)
    return module, analyse_ptx(module, assembled, device), reason


def _assembled(path: Path, target: str) -> Mapping[str, Assembled]:
    """What the assembler says of the file at `path`, or of each part of what cuobjdump has printed."""
    text = whole_text(path, EXPECTED, longest=MOST_CHARACTERS)
    if not is_fatbin(text):
        return assemble(path, target)
    found: dict[str, Assembled] = {}
    with tempfile.TemporaryDirectory(prefix="frx-ptx-") as folder:
        part = Path(folder) / path.name
        for begin, end in fatbin_modules(text):
            part.write_text(text[begin:end], encoding="utf-8")
            found.update(assemble(part, target))
    return found
