"""Record a trial: its gates, measured quads and verdict. Reports read the record without torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from frx_graph.measure.machine.busy_programs import MachineLoad
from frx_graph.support.allocator import Allocation
from frx_graph.trials.allocation_check import NAMES, AllocationCheck
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.samples import MeasuredQuad
from frx_graph.trials.verdict import Outcome, Verdict


class Gate(enum.StrEnum):
    """The gates, in order."""

    PROCESS = "process"
    """The arm ran to its end: it neither crashed, hung, ran out of memory, nor flooded its output."""
    PLAN = "plan"
    """All planned rewrites were applied."""
    CAPTURE = "capture"
    """There are no additional graph breaks, graphs or guards."""
    NUMERICS = "numerics"
    STRIDES = "strides"
    KERNELS = "kernels"
    """No operator runs a slower implementation."""
    RECOMPILES = "recompiles"
    """Recompilations, and CUDA graphs that are skipped."""
    MEMORY = "memory"
    DISTRIBUTED = "distributed"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of a gate, with its observation. `passed` is None if the gate does not apply."""

    name: Gate
    passed: bool | None
    detail: str
    summary: str = ""
    """The detail in few words, for a terminal; empty if it is short enough."""


@dataclass(frozen=True, slots=True)
class EnvironmentVerdict:
    """The verdict for one environment. `ratio` is the median of times, baseline over candidate; None: not measured."""

    environment: TrialEnvironment
    verdict: Verdict
    ratio: float | None


@dataclass(frozen=True, slots=True)
class EagerComparison:
    """A compiled program beside eager. `departure` says how it differs. `unknown` is the reason if that is not known.
    If both are empty, it does not differ."""

    departure: str = ""
    unknown: str = ""


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
    ignore_load: bool = False
    """Measurements beside other programs count."""
    check: AllocationCheck | None = None
    """The user's own allocation, or the one that a gain was not seen under; None: all was measured under one."""
    departure: str = ""
    """How the baseline differs from eager; empty: it does not, as far as is known."""
    load: MachineLoad | None = None
    """What other programs did after a quad that was void for their load, when they did most; None without such a
    quad."""

    def list_verdicts(self) -> tuple[EnvironmentVerdict, ...]:
        """Return the verdict for each allocation of host memory that the trial knows about, that of the user's own
        processes last; empty if no arm has reported its environment."""
        if self.environment is None:
            return ()
        ratio = None if self.verdict.statistics is None else self.verdict.statistics.ratio_median
        measured = EnvironmentVerdict(self.environment, self.verdict, ratio)
        # An early end may come before an arm has reported another allocation.
        if self.check is None or self.check.allocation is self.environment.setup.allocation:
            return (measured,)
        setup = replace(self.environment.setup, allocation=self.check.allocation)
        environment = replace(self.environment, setup=setup)
        other = EnvironmentVerdict(environment, self.check.derive_verdict(self.verdict), self.check.ratio_median)
        return (other, measured) if self.check.allocation is Allocation.POOLED else (measured, other)

    @property
    def reason(self) -> str:
        """The reason for the verdict, and a sentence about the other allocation if it was measured, too."""
        return f"{self.verdict.reason}{self.describe_check()}"

    def describe_check(self) -> str:
        """Return that sentence; empty if there is none."""
        promoted = self.verdict.outcome is Outcome.PROMOTE
        if self.check is None or not (promoted or self.check.quads or self.check.failure):
            return ""
        other = self.check.derive_verdict(self.verdict).reason
        own = "" if self.check.allocation is Allocation.POOLED else ", your own"
        return f". With {NAMES[self.check.allocation]}{own}: {other}"

    @property
    def own_allocation(self) -> Allocation | None:
        """The allocation of the user's own processes; None if no arm has reported its environment."""
        verdicts = self.list_verdicts()
        return verdicts[-1].environment.setup.allocation if verdicts else None

    @property
    def own_ratio(self) -> float | None:
        """Median ratio of times, baseline over candidate, in processes like the user's own; None without a quad."""
        verdicts = self.list_verdicts()
        return verdicts[-1].ratio if verdicts else None

    @property
    def own_verdict(self) -> Verdict:
        """The verdict for the user's own processes."""
        verdicts = self.list_verdicts()
        return verdicts[-1].verdict if verdicts else self.verdict
