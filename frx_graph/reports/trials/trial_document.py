"""Trials as JSON: the documents `frx_trial_v1` and `frx_trial_matrix_v1`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from frx_graph.measure.machine.busy_programs import MachineLoad
from frx_graph.passes.inner_choice import resolve_inner
from frx_graph.records import Candidate
from frx_graph.reports.render.document import Part, read_from
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.support.allocator import Allocation
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.samples import Disturbance
from frx_graph.trials.trial_run import EagerComparison, TrialRun

VerdictName = Literal["promote", "reject", "equivalent", "inconclusive"]
NOTHING_TRIED = "measured times favour no rewrite; nothing was tried"


class ArmPart(Part):
    """One of the two programs."""

    name: Literal["baseline", "candidate"]
    inner: str = Field(description="the compiler of both")
    candidates: tuple[Candidate, ...] = Field(description="applied rewrites; none: the program without frx")


def _describe_disturbance(found: Disturbance | str | None) -> str | None:
    return f"{found.cause}: {found.detail}".removesuffix(": ") if isinstance(found, Disturbance) else found


class BlockPart(Part):
    """Steps that one arm ran in a row."""

    arm: Literal["baseline", "candidate"]
    seconds: tuple[float, ...]
    disturbance: Annotated[str | None, BeforeValidator(_describe_disturbance)] = Field(
        description="reason why it is void; null: valid"
    )
    ignored: Annotated[str | None, BeforeValidator(_describe_disturbance)] = Field(
        default=None, description="a disturbance by others that was ignored (--ignore-load); null: none"
    )
    distance: float | None = Field(
        default=None,
        description="time of the shortest loop of all threads over that of one thread's share: how far a virtual "
        "machine's processors are from each other; null: not measured",
    )


class QuadPart(Part):
    """Four blocks, two for each arm, in one pair of processes."""

    pair: int = read_from("quad.pair")
    number: int = read_from("quad.number")
    log_ratio: float = Field(description="of the arms' times, baseline over candidate")
    void: bool
    blocks: tuple[BlockPart, ...]


class GatePart(Part):
    """One gate, in the order of checks."""

    name: str
    passed: bool | None = Field(description="null: not applicable")
    detail: str
    summary: str = Field(default="", description="the detail in few words; empty: it is short enough")


class StatsPart(Part):
    """Ratios of times, baseline over candidate: 1.1 is 10 % faster."""

    ratio_median: float
    ci_low: float
    ci_high: Annotated[float | None, BeforeValidator(drop_non_finite)] = Field(description="null: no bound yet")
    quads: int
    processes: int
    pair_medians: tuple[float, ...]
    void: int


class CheckPart(Part):
    """The result of a trial for another allocation of host memory than the one it was measured under."""

    allocation: Allocation
    shows: bool | None = Field(description="whether the gain shows there, too; null: unknown")
    ratio_median: float | None = Field(description="of the pairs' medians; null: nothing was measured")
    pair_medians: tuple[float, ...]
    samples: tuple[QuadPart, ...] = read_from("quads")
    verdict: VerdictName | None = read_from("verdict.outcome", "for this allocation; null: unknown", default=None)
    reason: str | None = read_from("verdict.reason", "of that verdict; null: unknown", default=None)


class PlacePart(Part):
    """Node of a cluster that ran a trial, and the attempt. The environment describes its hardware."""

    attempt: str = Field(description="no other attempt has this id")
    node: str = Field(description="the cluster's id of the node")
    address: str
    lost: tuple[str, ...] = Field(description="earlier attempts without a result, which are not counted")


class TrialDocument(Part):
    """One trial."""

    schema_: Literal["frx_trial_v1"] = Field(default="frx_trial_v1", alias="schema")
    target: str
    train: bool
    signatures: tuple[str, ...] = Field(description="of the program's graphs, in the order in which they are compiled")
    arms: tuple[ArmPart, ...]
    in_process: bool = Field(
        default=False,
        description="true: both arms ran in the user's process, with a higher minimum (in_process_extra)",
    )
    ignore_load: bool = Field(default=False, description="true: quads beside other programs count (--ignore-load)")
    load: MachineLoad | None = Field(
        default=None,
        description="what other programs did when quads were void for their load; null: no quad was",
    )
    samples: tuple[QuadPart, ...] = read_from("quads")
    check: CheckPart | None = Field(
        default=None,
        description="the gain under another allocation of host memory than the environment's; null: not measured, as "
        "there is one only",
    )
    gates: tuple[GatePart, ...]
    stats: StatsPart | None = read_from("verdict.statistics", "null: nothing was measured undisturbed")
    verdict: VerdictName = read_from("verdict.outcome")
    reason: str = Field(description="of the verdict, and of that for the other allocation, if any")
    departure: str = Field(
        default="",
        description="how the baseline differs from eager; empty: it does not, as far as is known",
    )
    decision: str = Field(description="the recorded decision, and its ledger")
    allocation: Allocation | None = read_from(
        "own_allocation",
        "the allocation of host memory that the decision in the ledger is for; outside of a ledger, that of the user's "
        "own processes; null: unknown",
        default=None,
    )
    policy: TrialPolicy
    environment: TrialEnvironment | None
    place: PlacePart | None = Field(default=None, description="null: the local machine")


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
    """Return the document of a trial that ran."""
    return TrialDocument.from_record(
        run,
        target=target,
        train=train,
        arms=(
            ArmPart(name="baseline", inner=inner, candidates=()),
            ArmPart(name="candidate", inner=resolve_inner(candidates, inner), candidates=candidates),
        ),
        decision=decision,
        policy=policy,
        place=place,
    )


def report_nothing_tried(
    *, target: str, train: bool, inner: str, policy: TrialPolicy, compared: EagerComparison
) -> TrialDocument:
    """Return the document of a trial without a candidate, with its only arm, `compared` with eager."""
    unknown = f"not compared with eager, {compared.unknown}" if compared.unknown else ""
    return TrialDocument(
        target=target,
        train=train,
        signatures=(),
        arms=(ArmPart(name="baseline", inner=inner, candidates=()),),
        samples=(),
        gates=(),
        stats=None,
        verdict="inconclusive",
        reason="; ".join(filter(None, (compared.departure or unknown, NOTHING_TRIED))),
        departure=compared.departure,
        decision="there is nothing to record",
        policy=policy,
        environment=None,
    )


class MatrixEntry(Part):
    """One trial of a matrix."""

    target: str
    shape: dict[str, int] = Field(description="sizes passed to the target; none: its defaults")
    dtype: str | None = Field(description="type that model and inputs were cast to; null: the target's own")
    candidate: str | None = Field(description="the one tried alone; null: all that measured times favour")
    trial: TrialDocument | None = Field(description="null: no result, and nothing of it counts")
    error: str | None = Field(description="reason for the missing result; null: there is a result")


class TrialMatrixDocument(Part):
    """All trials of one request, in its order."""

    schema_: Literal["frx_trial_matrix_v1"] = Field(default="frx_trial_matrix_v1", alias="schema")
    trials: tuple[MatrixEntry, ...]
