"""The findings over many runs as JSON: the document `frx_fleet_v1`.

What is not known of a run is left out of a sum, and counted beside it: a sum of which nothing is known is null.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.reports.render.document import Part


class ProblemPart(Part):
    """What could not be read."""

    place: str
    reason: str


class BundlesPart(Part):
    """What was found, and what became of it."""

    read: int = Field(description="bundles, those that are there twice included")
    analysed_anew: int = Field(description="since they had no summary, or one of other files or of another version")
    twice: int = Field(description="the same run once more, under another name or as its zip; it counts once")
    problems: int = Field(description="bundles, archives and folders that could not be read")
    problems_listed: tuple[ProblemPart, ...] = Field(description="the first by name")
    rows_left_out: int = Field(description="findings, labels and cards of runs that have more than are read of one")


class RunsPart(Part):
    """The runs, each counted once."""

    runs: int
    with_trace: int = Field(description="of a profiler, without which kernels and conversions are not seen")
    with_bottleneck: int = Field(description="for which `frx analyze` names one")
    with_layout_findings: int
    steps: int
    seconds: float | None = Field(description="of timed steps, summed over runs and their processes; null: none timed")
    runs_not_timed: int = Field(description="which have no part in `seconds`")


class CostPart(Part):
    """What something costs in all runs that have it, and so the most that mending it could save: a prediction, until a
    trial has measured it."""

    seconds: float | None = Field(
        description="share of the steps times their time, summed; null: of no run is it known"
    )
    share: float | None = Field(description="0..1: `seconds` of the time of these runs; null: as there")
    runs_unknown: int = Field(description="runs that have it, of which it is not known what it costs")


class BottleneckPart(Part):
    """What is named as holding runs back; `label` is null where nothing is."""

    label: str | None
    runs: int
    seconds: float | None = Field(description="of the timed steps of these runs")


class LabelPart(Part):
    """A label, over all runs."""

    label: str
    symptom: bool = Field(description="what another label causes")
    runs: int = Field(description="in which it is present")
    undecidable: int = Field(description="runs that do not tell")
    absent: int
    cost: CostPart


class RulePart(Part):
    """A layout rule, over all runs."""

    rule: str
    name: str | None = Field(description="null: a rule that this version does not have")
    runs: int
    sites: int
    findings: int
    bytes_per_step: float | None = Field(description="read and written, summed over findings; null: of none known")
    findings_without_bytes: int
    cost: CostPart


class SitePart(Part):
    """One place of the program, or one tensor, at which a rule found something."""

    rule: str
    site: str = Field(description="what makes it the same one in other runs: a finding's fingerprint, or its tensor")
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
    """A card of advice, over all runs that it is given to."""

    card: str
    title: str
    effort: str
    risk: str
    runs: int
    saving: CostPart = Field(description="the most that can be saved: a bound, no forecast")


class FleetDocument(Part):
    """Which rules, call sites and bottlenecks many runs have, and what these cost in total."""

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
