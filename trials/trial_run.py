"""How a trial went: its gates, its measured quads, its verdict. Read by reports, which need no torch."""

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
    """What was to be made of the program was made of it."""
    CAPTURE = "capture"
    """No graph break, graph or guard more."""
    NUMERICS = "numerics"
    STRIDES = "strides"
    """Of outputs and gradients; and who shares memory with whom."""
    KERNELS = "kernels"
    """Nothing left its fast implementation."""
    RECOMPILES = "recompiles"
    """And CUDA graphs that are skipped."""
    MEMORY = "memory"
    DISTRIBUTED = "distributed"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a gate was passed, and what was seen there, in a line. `passed` is None where it says nothing here."""

    name: Gate
    passed: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class TrialRun:
    """How a trial went. `quads` are all that were measured, void ones included."""

    gates: tuple[GateResult, ...]
    verdict: Verdict
    quads: tuple[MeasuredQuad, ...]
    environment: TrialEnvironment | None
    signatures: tuple[str, ...]
    """Of the program's Dynamo graphs."""
    in_process: bool = False
    """Both arms were in the process of whoever has run the trial."""
