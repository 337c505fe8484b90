"""Trials as JSON: the documents `frx_trial_v1` and `frx_trial_matrix_v1`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from frx_graph.passes.inner_choice import resolve_inner
from frx_graph.records import Candidate
from frx_graph.reports.render.document import Part, read_from
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.samples import Block, MeasuredQuad
from frx_graph.trials.trial_run import TrialRun

NOTHING_TRIED = "measured times speak for no rewrite; nothing was tried"


class ArmPart(Part):
    """One of the two programs."""

    name: Literal["baseline", "candidate"]
    inner: str = Field(description="the compiler of both")
    candidates: tuple[Candidate, ...] = Field(description="rewrites that it has; none: as without us")


class BlockPart(Part):
    """Steps that one arm ran in a row."""

    arm: Literal["baseline", "candidate"]
    seconds: tuple[float, ...]
    disturbance: str | None = Field(description="what made it void; null: nothing")


class QuadPart(Part):
    """Four blocks, two of each arm, in one pair of processes."""

    pair: int = read_from("quad.pair")
    number: int = read_from("quad.number")
    log_ratio: float = Field(description="of the arms' times, baseline over candidate")
    void: bool
    blocks: tuple[BlockPart, ...]


class GatePart(Part):
    """One gate, in the order in which they were passed."""

    name: str
    passed: bool | None = Field(description="null: there was nothing to judge by it")
    detail: str


class StatsPart(Part):
    """Ratios of times, baseline over candidate: 1.1 is 10 % faster."""

    ratio_median: float
    ci_low: float
    ci_high: Annotated[float | None, BeforeValidator(drop_non_finite)] = Field(description="null: no bound yet")
    quads: int
    processes: int
    pair_medians: tuple[float, ...]
    void: int


class PlacePart(Part):
    """Where in a cluster a trial ran, and by which attempt; what it ran on is the environment."""

    attempt: str = Field(description="no other attempt has this id")
    node: str = Field(description="the cluster's id of the node")
    address: str
    lost: tuple[str, ...] = Field(description="attempts before it that came to no result; nothing of them counts")


class TrialDocument(Part):
    """One trial."""

    schema_: Literal["frx_trial_v1"] = Field(default="frx_trial_v1", alias="schema")
    target: str
    train: bool
    signatures: tuple[str, ...] = Field(description="of the program's graphs, in the order in which they are compiled")
    arms: tuple[ArmPart, ...]
    in_process: bool = Field(
        default=False,
        description="both arms in the user's process, under a minimum that is higher by the policy's in_process_extra",
    )
    samples: tuple[QuadPart, ...]
    gates: tuple[GatePart, ...]
    stats: StatsPart | None = Field(description="null: nothing was measured undisturbed")
    verdict: Literal["promote", "reject", "equivalent", "inconclusive"]
    reason: str
    decision: str = Field(description="what was recorded about it, and where")
    policy: TrialPolicy
    environment: TrialEnvironment | None
    place: PlacePart | None = Field(default=None, description="null: the machine that it was asked for on")


def build_trial_document(
    run: TrialRun,
    *,
    target: str,
    train: bool,
    inner: str,
    candidates: tuple[Candidate, ...],
    policy: TrialPolicy,
    decision: str,
    place: PlacePart | None = None,
) -> TrialDocument:
    """The document of a trial that was run."""
    return TrialDocument(
        target=target,
        train=train,
        signatures=run.signatures,
        arms=(
            ArmPart(name="baseline", inner=inner, candidates=()),
            ArmPart(name="candidate", inner=resolve_inner(candidates, inner), candidates=candidates),
        ),
        in_process=run.in_process,
        samples=tuple(map(_build_quad, run.quads)),
        gates=tuple(map(GatePart.from_record, run.gates)),
        stats=None if run.verdict.statistics is None else StatsPart.from_record(run.verdict.statistics),
        verdict=run.verdict.outcome.value,
        reason=run.verdict.reason,
        decision=decision,
        policy=policy,
        environment=run.environment,
        place=place,
    )


def report_nothing_tried(*, target: str, train: bool, inner: str, policy: TrialPolicy) -> TrialDocument:
    """The document where there was no candidate: it has the one arm that there is."""
    return TrialDocument(
        target=target,
        train=train,
        signatures=(),
        arms=(ArmPart(name="baseline", inner=inner, candidates=()),),
        samples=(),
        gates=(),
        stats=None,
        verdict="inconclusive",
        reason=NOTHING_TRIED,
        decision="there is nothing to record",
        policy=policy,
        environment=None,
    )


def _build_quad(measured: MeasuredQuad) -> QuadPart:
    return QuadPart.from_record(measured, blocks=tuple(map(_build_block, measured.blocks)))


def _build_block(block: Block) -> BlockPart:
    found = block.disturbance
    cause = None if found is None else f"{found.cause}: {found.detail}".removesuffix(": ")
    return BlockPart.from_record(block, disturbance=cause)


class MatrixEntry(Part):
    """One trial of a matrix."""

    target: str
    shape: dict[str, int] = Field(description="sizes that the target was called with; none: as it is")
    dtype: str | None = Field(description="that model and inputs were cast to; null: as the target makes them")
    candidate: str | None = Field(description="that was tried alone; null: all that measured times speak for, together")
    trial: TrialDocument | None = Field(description="null: it came to nothing, and nothing of it counts")
    error: str | None = Field(description="why it came to nothing; null: it did not")


class TrialMatrixDocument(Part):
    """All trials that were asked for at once, in the order in which they were."""

    schema_: Literal["frx_trial_matrix_v1"] = Field(default="frx_trial_matrix_v1", alias="schema")
    trials: tuple[MatrixEntry, ...]


def build_matrix_document(entries: tuple[MatrixEntry, ...]) -> TrialMatrixDocument:
    """The document of these trials."""
    return TrialMatrixDocument(trials=entries)
