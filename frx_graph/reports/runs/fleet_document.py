"""Findings over many runs as JSON: the document `frx_fleet_v1`.

A sum leaves out runs with an unknown value, and their number is given beside it. A sum without any known value is null.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.reports.render.document import Part


class ProblemPart(Part):
    """A path that could not be read."""

    place: str
    reason: str


class BundlesPart(Part):
    """The bundles that were found, by outcome."""

    read: int = Field(description="bundles, duplicates included")
    analysed_anew: int = Field(description="without a summary, or with one of other files or of another version")
    twice: int = Field(description="duplicates of a run, under another name or as a zip; each run counts once")
    problems: int = Field(description="bundles, archives and folders that could not be read")
    problems_listed: tuple[ProblemPart, ...] = Field(description="the first by name")
    rows_left_out: int = Field(description="findings, labels and cards above the limit for one run")


class RunsPart(Part):
    """The runs, each counted once."""

    runs: int
    with_trace: int = Field(description="with a profiler's trace; without one, kernels and conversions are unknown")
    with_bottleneck: int = Field(description="runs for which `frx analyze` names a bottleneck")
    with_layout_findings: int
    steps: int
    seconds: float | None = Field(description="time of timed steps, over all runs and processes; null: none timed")
    runs_not_timed: int = Field(description="runs not included in `seconds`")


class CostPart(Part):
    """Cost over all affected runs: an upper bound on the saving of a fix, predicted until a trial measures it."""

    seconds: float | None = Field(description="share of the steps times their time, summed; null: unknown for all runs")
    share: float | None = Field(description="0..1: `seconds` over the time of these runs; null: as for `seconds`")
    runs_unknown: int = Field(description="affected runs with unknown cost")


class BottleneckPart(Part):
    """A bottleneck of runs; `label` is null for runs without one."""

    label: str | None
    runs: int
    seconds: float | None = Field(description="of the timed steps of these runs")


class LabelPart(Part):
    """A label, over all runs."""

    label: str
    symptom: bool = Field(description="true: another label causes it")
    runs: int = Field(description="runs in which it is present")
    undecidable: int = Field(description="runs that cannot show it")
    absent: int
    cost: CostPart


class RulePart(Part):
    """A layout rule, over all runs."""

    rule: str
    name: str | None = Field(description="null: unknown to this version")
    runs: int
    sites: int
    findings: int
    bytes_per_step: float | None = Field(description="read and written, summed over findings; null: unknown for all")
    findings_without_bytes: int
    cost: CostPart


class SitePart(Part):
    """A call site or tensor with a finding of a rule."""

    rule: str
    site: str = Field(description="identity across runs: a finding's fingerprint, or the tensor")
    title: str
    file: str | None
    line: int | None
    function: str | None
    module_path: str | None
    subject: str = Field(description="the operator, or the tensor")
    runs: int
    findings: int
    bytes_per_step: float | None
    findings_without_bytes: int
    cost: CostPart


class AdvicePart(Part):
    """An advice card, over all runs to which it applies."""

    card: str
    title: str
    effort: str
    risk: str
    runs: int
    saving: CostPart = Field(description="largest possible saving: a bound, not a forecast")


class FleetDocument(Part):
    """Rules, call sites and bottlenecks of many runs, with their total cost."""

    schema_: Literal["frx_fleet_v1"] = Field(default="frx_fleet_v1", alias="schema")
    source: str
    frx_version: str
    bundles: BundlesPart
    runs: RunsPart
    bottlenecks: tuple[BottleneckPart, ...] = Field(description="most frequent first")
    bottlenecks_not_listed: int
    labels: tuple[LabelPart, ...] = Field(description="most expensive first")
    labels_not_listed: int
    rules: tuple[RulePart, ...] = Field(description="most expensive first")
    rules_not_listed: int
    sites: tuple[SitePart, ...] = Field(description="most expensive first")
    sites_not_listed: int
    advice: tuple[AdvicePart, ...] = Field(description="most to save first")
    advice_not_listed: int
