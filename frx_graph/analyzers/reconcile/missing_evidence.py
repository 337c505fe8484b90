"""Name the evidence that would make a diagnosis surer, and the command that collects it.

A counter decides. If it is known, the missing evidence is a layer that explains it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from frx_graph.analyzers.kernels.speed_of_light import compute_warp_stalls
from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile.confidence import Confidence, Judgement, judge
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel
from frx_graph.analyzers.reconcile.signal import DiagnosisRule, Grade, Layer, Signal
from frx_graph.measure.nvcc import NOT_FOR_SHELLS

YOUR_PROGRAM = "./your_app"
FALLBACK = f"ncu --set full --csv --page raw {YOUR_PROGRAM} > full.csv"
RECORD = "run = torch.profiler.profile(); run.start(); step(); run.stop(); run.export_chrome_trace('trace.json')"
_FUNCTION = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_NO_WORD = re.compile(r"\W+", re.ASCII)
_LONGEST_FILE = 60
"""Characters of a kernel's name in the name of a file."""
_UNCLEAR = re.compile(r"[^\w ,:]", re.ASCII)
_LONGEST = 200
"""Characters of a name in a pattern."""
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class MissingEvidence:
    """Evidence that one layer would add to one diagnosis of one kernel.

    `confidence` is None if the diagnosis does not hold yet; `confirmed` is the confidence with that evidence. `command`
    is for a shell, or Python for a trace; None if there is nothing to run. `fallback` collects more than necessary.
    """

    rule: DiagnosisRule
    kernel: MatchedKernel
    layer: Layer
    confidence: Confidence | None
    confirmed: Confidence
    what: str
    metrics: tuple[str, ...]
    command: str | None
    fallback: str | None


def find_missing_evidence(
    rule: DiagnosisRule, kernel: MatchedKernel, signals: Sequence[Signal], judgement: Judgement, layers: Layers
) -> Iterator[MissingEvidence]:
    """Yield the deciding counters, if they were not measured and would make it surer; else each layer that would. A
    diagnosis that is confirmed, or refuted for good, needs nothing."""

    def find_surer(wanted: Iterable[Layer]) -> dict[Layer, Confidence]:
        """Return the confidence for each layer that would raise it by agreeing."""
        found = {}
        for layer in wanted:
            grade = Grade.MEASURED if layer is Layer.NCU else Grade.CERTAIN
            then = judge((*signals, Signal(layer, rule.name, True, grade, "")))
            confidence = None if then is None else then.confidence
            if confidence is not None and confidence > (judgement.confidence or 0):
                found[layer] = confidence
        return found

    known = {Layer.SOURCE: kernel.source, Layer.PTX: kernel.ptx, Layer.PROFILER: kernel.runs}
    surer = find_surer(() if _is_measured(rule, kernel) else (Layer.NCU,)) or find_surer(
        layer for layer, found in known.items() if not found and layer in rule.told_by
    )
    for layer, confirmed in surer.items():
        what, command = {
            Layer.SOURCE: ("its CUDA source, which says why", None),
            Layer.PTX: ("what the compiler and the assembler make of it", _build_nvcc_command(kernel, layers)),
            Layer.NCU: (rule.decides.use, build_ncu_command(rule, kernel.function)),
            Layer.PROFILER: ("which kernels run, and how they are launched", RECORD),
        }[layer]
        metrics, fallback = (rule.decides.counters, FALLBACK) if layer is Layer.NCU else ((), None)
        confidence = judgement.confidence
        yield MissingEvidence(rule, kernel, layer, confidence, confirmed, what, metrics, command, fallback)


def build_ncu_command(rule: DiagnosisRule, function: str) -> str:
    """Return the command that measures only this, for kernels with this function, into a file of their own."""
    words = ["ncu", "--metrics", ",".join(rule.decides.counters), "--kernel-name", escape_kernel_name(function)]
    words += ["--csv", "--page", "raw", YOUR_PROGRAM]
    return f"{shlex.join(words)} > missing_{rule.decides.name}_{_NO_WORD.sub('_', function)[:_LONGEST_FILE]}.csv"


def escape_kernel_name(function: str) -> str:
    """Return the name for `--kernel-name`. Characters that a pattern or a terminal could misread become `.`."""
    if _FUNCTION.fullmatch(function):
        return function
    shown = _UNCLEAR.sub(".", function[:_LONGEST])
    return f"regex:^{shown}{'' if len(function) > _LONGEST else '$'}"


def _is_measured(rule: DiagnosisRule, kernel: MatchedKernel) -> bool:
    return bool(kernel.ncu) and all(
        all(name in one.summary.values for name in rule.decides.metrics)
        and (not rule.decides.stalls or compute_warp_stalls(one.summary.values) is not None)
        for one in kernel.ncu
    )


def _build_nvcc_command(kernel: MatchedKernel, layers: Layers) -> str:
    source = "kernel.cu" if layers.source is None else layers.source.source.source
    if NOT_FOR_SHELLS.search(source):
        source = "kernel.cu"
    known = (_CAPABILITY.fullmatch(one.summary.compute_capability) for one in kernel.ncu)
    target = next(([f"-arch=sm_{one[1]}{one[2]}"] for one in known if one), [])
    # A name with a leading dash would be an option.
    path = f"./{source}" if source.startswith("-") else source
    return shlex.join(["nvcc", "-ptx", *target, "-o", f"./{PurePath(source).stem}.ptx", path])
