"""Changes between two runs, traces or advice files as JSON: the document `frx_run_change_v1`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.run_change.change import RunChange
from frx_graph.analyzers.run_change.recording import RecordKind
from frx_graph.analyzers.run_change.step_times import StepVerdict
from frx_graph.reports.render.document import FinitePart, Text, read_from


class StepChangePart(FinitePart):
    """Median step times. The interval covers 95 % for these two processes; null: too few steps. The means, which
    set the throughput, are null in documents of earlier versions."""

    before_ms: float
    after_ms: float
    before_mean_ms: float | None = None
    after_mean_ms: float | None = None
    before_steps: int
    after_steps: int
    change: float = Field(description="after over before, less 1: -0.1 is 10 % shorter")
    change_low: float | None = read_from("low")
    change_high: float | None = read_from("high")
    verdict: StepVerdict = Field(description="beyond the 4 % by which two processes of one program differ")


class LabelChangePart(FinitePart):
    """A bottleneck, with its share of the time, 0..1; null: not present on that side."""

    label: str
    before: float | None
    after: float | None


class ShareChangePart(FinitePart):
    """A share of the step's time, or of a device's memory, 0..1."""

    name: str
    before: float
    after: float
    before_ms: float | None = Field(None, description="milliseconds of a step; null: not a time, or not known")
    after_ms: float | None = None


class CostChangePart(FinitePart):
    """A total of a step on both sides; null: not known."""

    name: str
    unit: str = Field(description="byte, s, % or empty")
    before: float | None
    after: float | None


class CostDifferencePart(FinitePart):
    """Increase of a step's cost from the first side to the second; negative: a decrease; 0: within the noise."""

    amount: float
    unit: str = Field(description="ms or byte")
    subject: str


class KernelUsePart(FinitePart):
    """Launches and milliseconds of a step."""

    count: float
    ms: float


class KernelChangePart(FinitePart):
    """A kernel that appeared, went or changed. Kernels that Inductor numbers are one without their number."""

    name: Text
    before: KernelUsePart | None
    after: KernelUsePart | None
    ms: float = Field(description="milliseconds that a step gained by it; negative: lost")


class ProblemPart(FinitePart):
    """A layout finding."""

    rule: str
    title: str
    place: Text
    per_step: float | None
    bytes_per_step: float | None = Field(None, description="traffic that it wastes; null: not known")
    ms_per_step: float | None = Field(None, description="time that it takes; null: not measured")


class RunChangeResult(FinitePart):
    """Changes from one record to the other."""

    schema_: Literal["frx_run_change_v1"] = Field(default="frx_run_change_v1", alias="schema")
    kind: RecordKind = read_from("before.kind")
    before: Text = read_from("before.name")
    after: Text = read_from("after.name")
    worse: bool = Field(description="slower, or not faster and with a new label or a higher cost")
    regressions: tuple[str, ...] = Field((), description="why it is worse; empty in documents of earlier versions")
    better: bool = Field(False, description="faster or, of advice, cheaper; and worse in nothing")
    improvements: tuple[str, ...] = Field((), description="why it is better; empty in documents of earlier versions")
    comparable: bool = Field(description="false: the two have nothing in common")
    steps: StepChangePart | None = Field(description="null: a side has no steps")
    labels_resolved: tuple[LabelChangePart, ...]
    labels_new: tuple[LabelChangePart, ...]
    labels_kept: tuple[LabelChangePart, ...]
    labels_undecided: tuple[str, ...] = read_from("undecided", "present on one side, and not decidable on the other")
    before_recorded_too_little: bool = Field(False, description="true: too little was recorded to name a bottleneck")
    after_recorded_too_little: bool = False
    shares: tuple[ShareChangePart, ...] = Field(description="shares that differ by 2 points or more")
    kernels: tuple[KernelChangePart, ...] = Field(description="the largest change first")
    kernels_per_step: bool = read_from("per_step", "false: no steps are marked, so the whole record counts")
    findings_resolved: tuple[ProblemPart, ...] = read_from("problems_resolved")
    findings_new: tuple[ProblemPart, ...] = read_from("problems_new")
    findings_kept: int = read_from("problems_kept")
    costs: tuple[CostChangePart, ...] = Field((), description="totals of a step; empty in earlier versions")
    finding_cost: CostDifferencePart | None = Field(
        None, description="null: not known, so the number of findings counts"
    )
    other_machine: tuple[Text, ...] = Field(description="what else differs")


class RunChangeDocument(FinitePart):
    """Wrapper shared by all analyses."""

    mode: Literal["run_change"] = "run_change"
    result: RunChangeResult


def build_run_change_document(change: RunChange) -> RunChangeDocument:
    """Return the document of a comparison."""
    return RunChangeDocument(result=RunChangeResult.from_record(change))
