"""Record a trial: its gates, its measured quads, its verdict. Read by reports, which need no torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.samples import MeasuredQuad
from frx_graph.trials.verdict import Verdict


class Gate(enum.StrEnum):
    """In the order in which they are passed."""

    PROCESS = "process"
    """The arm ran to its end: it neither crashed, hung, ran out of memory, nor flooded its output."""
    PLAN = "plan"
    """All rewrites that were to be made were made."""
    CAPTURE = "capture"
    """No graph break, graph or guard more."""
    NUMERICS = "numerics"
    STRIDES = "strides"
    KERNELS = "kernels"
    """Nothing left its fast implementation."""
    RECOMPILES = "recompiles"
    """And CUDA graphs that are skipped."""
    MEMORY = "memory"
    DISTRIBUTED = "distributed"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of a gate, with what was seen there, in a line. `passed` is None if it does not apply."""

    name: Gate
    passed: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The record of a trial. `quads` are all that were measured, void ones included."""

    gates: tuple[GateResult, ...]
    verdict: Verdict
    quads: tuple[MeasuredQuad, ...]
    environment: TrialEnvironment | None
    signatures: tuple[str, ...]
    in_process: bool = False
    """Both arms ran in the process that ran the trial."""
