"""Read PTX, assemble it and analyse it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from frx_graph.analyzers.kernels.ptx_analysis import PtxAnalysis, analyze_ptx_module, resolve_target_gpu
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.ptx.module import PtxModule
from frx_graph.evidence.ptx.parsing import EXPECTED, MOST_CHARACTERS, find_fatbin_modules, is_fatbin, read_ptx
from frx_graph.evidence.ptx.ptxas import Assembled, assemble, find_oldest_target
from frx_graph.evidence.text_lines import read_whole_text
from frx_graph.rules.gpu_profile import GpuProfile


def analyze_ptx(path: Path, gpu: GpuProfile | None = None) -> tuple[PtxModule, PtxAnalysis, str | None]:
    """Analyse the PTX at `path` for `gpu`, or for the architecture that its target names. The third result says why the
    assembler did not run; it is None if it ran. Raises `EvidenceError` if the file is not PTX or has no kernel, and
    `OptionError` if `gpu` cannot run it."""
    module = read_ptx(path)
    if not module.kernels:
        functions = f"{len(module.functions)} functions" if module.functions else "nothing"
        raise EvidenceError(f"{path}: {functions}, and no .entry: no kernel is in it", "was a template instantiated?")
    device = resolve_target_gpu(module.target, gpu)
    if gpu is not None and device is None:
        raise OptionError(f"{path} is for {module.target}, which {gpu.name} cannot run", "name a later GPU")
    asked = module.target if device is None else device.target
    assembled: Mapping[str, Assembled] = {}
    reason = instead = None
    try:
        try:
            assembled = _assemble_parts(path, asked)
        except EvidenceError:
            instead = find_oldest_target(asked)
            if instead is None:
                raise
            assembled = _assemble_parts(path, instead)
    except EvidenceError as error:
        reason = str(error)
    return module, analyze_ptx_module(module, assembled, device, None if reason else instead), reason


def _assemble_parts(path: Path, target: str) -> Mapping[str, Assembled]:
    """Assemble the file at `path`, or each part of cuobjdump's output."""
    text = read_whole_text(path, EXPECTED, longest=MOST_CHARACTERS)
    if not is_fatbin(text):
        return assemble(path, target)
    found: dict[str, Assembled] = {}
    with tempfile.TemporaryDirectory(prefix="frx-ptx-") as folder:
        part = Path(folder) / path.name
        for begin, end in find_fatbin_modules(text):
            part.write_text(text[begin:end], encoding="utf-8")
            found.update(assemble(part, target))
    return found
