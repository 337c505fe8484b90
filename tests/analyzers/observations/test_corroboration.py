"""Findings become surer, or less sure, by what runs show; none goes away, and what matches nothing changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from frx_graph.analyzers.observations.corroboration import BELONGS_TO_NONE, corroborate_findings
from frx_graph.analyzers.observations.observation import (
    CONVERSIONS,
    Observation,
    ObservedCall,
    QuietCall,
    RunFile,
    RunSetting,
    Work,
)
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.measurement import Measurement, Provenance
from frx_graph.evidence.trace.events import Operand
from frx_graph.passes import confidence
from frx_graph.passes.confidence import ASSUMED, CONFIRMED, CONTRADICTED, INFERRED, MEASURED, MODELLED
from frx_graph.records import TIMED_OPERATORS, Basis, CopyKind, Evidence, OperandRole

INPUT = OperandRole.INPUT
GPU, CPU = RunSetting("cuda", compiled=False), RunSetting("cpu", compiled=False)
FACT = Measurement("time_per_step", 2e-5, "s", "nchwToNhwcKernel", Provenance("run.json", None, "correlation 7"))


def seen(call: ObservedCall, *, setting: RunSetting = GPU, count: int = 4, **fields: Any) -> RunFile:
    observation = Observation(
        kernels=("void nchwToNhwcKernel<float>(int)",),
        where="correlation 7",
        count=count,
        kinds=CONVERSIONS,
        roles=frozenset({INPUT}),
        measurements=(FACT,),
        **{"work": Work.CONVERSION, "calls": (call,), "steps": 2, "seconds": 4e-5, "bytes": 3000, **fields},
    )
    return RunFile("run.json", setting, (observation,), shows=frozenset({CopyKind.REORDER}))


def quiet(
    call: ObservedCall, *, setting: RunSetting = GPU, shows: frozenset[Any] = frozenset({CopyKind.REORDER})
) -> RunFile:
    return RunFile("run.json", setting, (), (QuietCall(call, Phase.FORWARD, 6),), shows)


def test_observation_becomes_evidence_with_numbers_and_place(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    (changed,), refusals = corroborate_findings([finding], program.graphs, [seen(program.call(first))], GPU)
    assert refusals == []
    assert changed.confidence == CONFIRMED
    fact, counted = changed.evidence
    assert fact.text == "conversion seen: nchwToNhwcKernel under aten::convolution, 2× a step, 20.0 us, 1.50 kB"
    assert (fact.source, fact.basis) == ("run.json, correlation 7", Basis.OBSERVED)
    assert fact.measurements == (FACT,)
    assert counted.text == "seen 2× a step, predicted 1×"
    assert replace(changed, confidence=finding.confidence, evidence=()) == finding


def test_only_copies_that_a_file_shows_are_counted_against_it(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT, OperandRole.OUTPUT)
    inside, outside = finding.copies
    finding = replace(finding, copies=(replace(inside, kind=CopyKind.OPERATOR), outside))
    file = replace(seen(program.call(first)), shows=frozenset({CopyKind.OPERATOR}))
    (changed,), _ = corroborate_findings([finding], program.graphs, [file], GPU)
    assert changed.evidence[-1].text == "seen 2× a step, predicted 1×"


def test_without_steps_all_counts_are_of_the_file(program: Any) -> None:
    first = program.convolutions[0]
    file = seen(program.call(first), steps=None, seconds=None, bytes=None)
    (changed,), _ = corroborate_findings([program.finding("FRX001", first, INPUT)], program.graphs, [file], GPU)
    (fact,) = changed.evidence
    assert fact.text == "conversion seen: nchwToNhwcKernel under aten::convolution, 4× in the file"


def test_observation_from_another_setting_is_marked_and_counts_less(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    (changed,), _ = corroborate_findings([finding], program.graphs, [seen(program.call(first))], CPU)
    assert changed.confidence == MEASURED
    assert changed.evidence[0].text.endswith(", in another setting than advised on (cuda, not compiled)")


def test_uncoalesced_access_is_what_a_layout_leads_to_and_not_itself(program: Any) -> None:
    first = program.convolutions[0]
    file = seen(program.call(first), work=Work.UNCOALESCED, detail="17.5 sectors for each global load of a warp")
    (changed,), _ = corroborate_findings([program.finding("FRX001", first, INPUT)], program.graphs, [file], GPU)
    assert changed.confidence == MEASURED
    assert "(17.5 sectors for each global load of a warp)" in changed.evidence[0].text


def test_kernel_without_a_call_raises_confidence_but_does_not_confirm(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    alone = seen(program.call(first), calls=())
    (changed,), _ = corroborate_findings([finding], program.graphs, [alone], GPU)
    assert changed.confidence == MEASURED
    assert changed.evidence
    (named,), _ = corroborate_findings(
        [finding], program.graphs, [seen(program.call(first), calls=(), ranges=(first.site.module_path,))], GPU
    )
    assert named.confidence == CONFIRMED


def test_unmatched_observation_is_reported_with_the_reason(program: Any) -> None:
    first, second, _ = program.convolutions
    finding = program.finding("FRX001", first, INPUT)
    (same,), (refusal,) = corroborate_findings([finding], program.graphs, [seen(program.call(second))], GPU)
    assert same is finding
    assert refusal.subject == "4× nchwToNhwcKernel under aten::convolution in run.json, correlation 7"
    assert refusal.reason == f"{BELONGS_TO_NONE}: no finding covers aten::convolution on operands of these shapes"


def test_run_of_the_same_call_without_the_copy_contradicts_the_finding(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    (changed,), refusals = corroborate_findings([finding], program.graphs, [quiet(program.call(first))], GPU)
    assert (changed.confidence, refusals) == (CONTRADICTED, [])
    (fact,) = changed.evidence
    assert fact.text == "not seen: aten::convolution ran 6× without it on these shapes and strides"
    assert fact.source == "run.json"


def test_without_strides_it_may_have_been_another_call(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    (changed,), _ = corroborate_findings([finding], program.graphs, [quiet(program.call(first, strides=False))], GPU)
    assert changed.confidence == MODELLED
    assert "their strides were not recorded" in changed.evidence[0].text


def test_run_that_could_not_show_the_copy_changes_nothing(program: Any) -> None:
    first, second, _ = program.convolutions
    finding = program.finding("FRX001", first, INPUT)
    strided = program.call(first)
    image, weight = strided.operands
    for file in (
        quiet(strided, shows=frozenset({CopyKind.EXPLICIT})),
        quiet(strided, setting=CPU),
        quiet(strided, setting=RunSetting("cuda", compiled=True)),
        quiet(program.call(second)),
        quiet(replace(strided, operands=(replace(image, strides=(1152, 1, 96, 8)), weight))),
        quiet(replace(strided, operator="aten::mm")),
        quiet(replace(strided, operands=None)),
    ):
        (same,), _ = corroborate_findings([finding], program.graphs, [file], GPU)
        assert same is finding


def test_seen_in_one_of_two_runs_is_seen(program: Any) -> None:
    first = program.convolutions[0]
    files = [quiet(program.call(first)), seen(program.call(first))]
    (changed,), _ = corroborate_findings([program.finding("FRX001", first, INPUT)], program.graphs, files, GPU)
    assert changed.confidence == CONFIRMED


def test_possible_match_does_not_contradict_a_finding(program: Any) -> None:
    _, second, third = program.convolutions
    findings = [program.finding("FRX001", op, INPUT) for op in (second, third)]
    loud = seen(program.call(second))
    file = replace(loud, quiet=(QuietCall(program.call(second), Phase.FORWARD, 1),))
    same, (refusal,) = corroborate_findings(findings, program.graphs, [file], GPU)
    assert same == findings
    assert "it may belong to any of" in refusal.reason


def test_measured_times_are_not_refuted_by_kernels_that_do_not_convert(program: Any) -> None:
    first = program.convolutions[0]
    guessed = program.finding("FRX004", first, confidence=ASSUMED)
    measured = program.finding("FRX004", first, evidence=(Evidence("timed in both layouts", TIMED_OPERATORS),))
    (lower, same), _ = corroborate_findings([guessed, measured], program.graphs, [quiet(program.call(first))], GPU)
    assert lower.confidence == CONTRADICTED
    assert same is measured


def test_many_kinds_of_work_are_summarized(program: Any) -> None:
    first = program.convolutions[0]
    file = seen(program.call(first))
    (observation,) = file.observations
    many = tuple(replace(observation, seconds=n * 1e-5, where=f"correlation {n}") for n in range(6))
    (changed,), _ = corroborate_findings(
        [program.finding("FRX001", first, INPUT)], program.graphs, [replace(file, observations=many)], GPU
    )
    assert len(changed.evidence) == 6
    assert changed.evidence[0].source == "run.json, correlation 5"
    assert changed.evidence[4].text == "and 2 more kinds of such work, 8× in all"
    assert len(changed.evidence[4].measurements) == 2


SHAPES = st.lists(st.integers(1, 64), min_size=1, max_size=5).map(tuple)
CALLS = st.builds(
    ObservedCall,
    st.sampled_from(["aten::convolution", "aten::mm", "aten::clone", "x::y", "\x1b[31m<b>"]),
    st.none() | st.lists(st.builds(Operand, SHAPES, st.just(DType.FLOAT32)), max_size=3).map(tuple),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(CALLS, min_size=1, max_size=3).map(tuple), max_size=4), st.booleans())
def test_evidence_that_matches_nothing_changes_nothing(program: Any, chains: Any, silent: bool) -> None:
    """No generated tensor has the sizes of the program's: 2 x 8 x 12 x 12 needs four of 64 numbers, and is left out."""
    findings = [program.finding("FRX001", op, INPUT) for op in program.convolutions]
    shapes = {value.shape for value in program.facts.values.values()}
    assume(not any(operand.shape in shapes for chain in chains for call in chain for operand in call.operands or ()))
    file = seen(ObservedCall("x"))
    (one,) = file.observations
    observations = tuple(replace(one, calls=chain) for chain in chains)
    calls = tuple(QuietCall(call, None, 1) for chain in chains for call in chain) if silent else ()
    changed, refusals = corroborate_findings(
        findings, program.graphs, [replace(file, observations=observations, quiet=calls)], GPU
    )
    assert changed == findings
    assert len(refusals) == len(observations)


@pytest.mark.parametrize("now", [0.0, 0.3, 0.42, ASSUMED, MODELLED, 0.8, INFERRED, MEASURED, CONFIRMED, 1.0])
def test_confidence_moves_the_right_way_and_stays_between_0_and_1(now: float) -> None:
    here, elsewhere = (confidence.raise_confidence(now, itself=itself) for itself in (True, False))
    certain, uncertain = (confidence.lower_confidence(now, same_strides=same) for same in (True, False))
    assert now <= elsewhere <= here <= 1.0
    assert 0.0 <= certain <= uncertain <= now
    assert here >= CONFIRMED
    assert elsewhere <= max(now, MEASURED)
    assert certain <= CONTRADICTED
    assert uncertain < now or now <= CONTRADICTED
