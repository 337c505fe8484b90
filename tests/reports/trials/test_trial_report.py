from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import jsonschema
import pytest
import torch

from frx_graph.ledger.trial_summary import summarize_trial
from frx_graph.records import Candidate
from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.trial_document import TrialDocument, build_trial_document, report_nothing_tried
from frx_graph.reports.trials.trial_report import render_trial
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.protocol import make_protocol
from frx_graph.trials.samples import Block, Cause, Disturbance, MeasuredQuad
from frx_graph.trials.schedule import Arm, make_schedule
from frx_graph.trials.trial_run import EagerComparison, Gate, GateResult, TrialRun
from frx_graph.trials.verdict import Outcome, Verdict, decide_finally

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_trial_v1.schema.json").read_text(encoding="utf-8")
POLICY = TrialPolicy(process_pairs=2, quads_per_pair=4, process_bias=0)
HOSTILE = "\x1b[31mred\x1b[0m\nsecond"


def run(*, void: bool = False, failed: str = "") -> TrialRun:
    rule = make_protocol(POLICY)
    disturbance = Disturbance(Cause.LOADED, "others had 40 %") if void else None
    quads = []
    for number, quad in enumerate(make_schedule(rule)):
        times = {Arm.BASELINE: 0.012 + 1e-5 * number, Arm.CANDIDATE: 0.010}
        first, second, third, fourth = (Block(arm, (times[arm],) * 2, disturbance) for arm in quad.arms)
        quads.append(MeasuredQuad(quad, (first, second, third, fourth)))
    gates = [GateResult(Gate.PROCESS, True, "ran to its end"), GateResult(Gate.DISTRIBUTED, None, "one process")]
    environment = read_trial_environment(torch.device("cpu"))
    if failed:
        gates.append(GateResult(Gate.NUMERICS, False, failed))
        verdict = Verdict(Outcome.REJECT, f"numerics: {failed}", None, early=True)
        return TrialRun(tuple(gates), verdict, (), environment, ("b" * 16,))
    return TrialRun(tuple(gates), decide_finally(quads, rule), tuple(quads), environment, ("b" * 16,))


def document(found: TrialRun, target: str = "model.py:build", decision: str = "recorded") -> TrialDocument:
    made = (Candidate("propagate_layout", "a" * 16, ("convolution", "relu"), ("0,2,3,1",) * 2, 1e-3),)
    return build_trial_document(
        found, target=target, train=True, inner="inductor", candidates=made, policy=POLICY, decision=decision
    )


@pytest.mark.parametrize("found", [run(), run(void=True), run(failed="output 0 is wrong")])
def test_document_matches_the_schema(found: TrialRun) -> None:
    published = json.loads(PUBLISHED)
    jsonschema.Draft202012Validator.check_schema(published)
    text = json.dumps(to_json(document(found)), allow_nan=False)
    jsonschema.Draft202012Validator(published).validate(json.loads(text))
    assert TrialDocument.model_validate_json(text) == document(found)


def test_the_document_has_what_was_measured() -> None:
    found = to_json(document(run()))
    assert found["schema"] == "frx_trial_v1"
    assert found["verdict"] == "promote"
    assert found["stats"]["ratio_median"] == pytest.approx(1.2, rel=0.01)
    assert len(found["samples"]) == 8
    assert [arm["name"] for arm in found["arms"]] == ["baseline", "candidate"]
    assert found["arms"][0]["candidates"] == []
    assert found["arms"][1]["candidates"][0]["rewrite"] == "propagate_layout"


def test_the_ledger_reads_it() -> None:
    found = summarize_trial(1, json.dumps(to_json(document(run()))))
    assert found.verdict == "promote"
    assert found.ratio == pytest.approx(1.2, rel=0.01)
    setup = run().environment.setup
    assert (found.device, found.threads, found.torch) == (
        setup.processor,
        torch.get_num_threads(),
        setup.operators.torch,
    )
    assert summarize_trial(1, json.dumps(to_json(document(run(failed="wrong"))))).failed == ("numerics",)


def test_figures_that_no_trial_has_are_unknown() -> None:
    stats = '{"ratio_median": 1' + "0" * 400 + ', "ci_low": true, "ci_high": 1.1, "quads": -5}'
    found = summarize_trial(1, f'{{"stats": {stats}}}')
    assert (found.ratio, found.low, found.high, found.quads) == (None, None, 1.1, None)


def test_samples_are_shown_by_pair() -> None:
    found = document(run())
    assert "pair 1:" not in render_trial(found, width=80, color=False)
    text = render_trial(found, width=80, color=False, samples=True)
    pairs = {quad.pair for quad in found.samples}
    assert [f"pair {pair + 1}: " in text for pair in pairs] == [True] * len(pairs)
    assert max(map(len, text.splitlines())) <= 80


def test_the_text_has_the_steps_of_both_arms() -> None:
    found = run()
    text = render_trial(document(found), width=80, color=False)
    assert "median step: baseline 12 ms, candidate 10 ms" in text
    assert "median step" not in render_trial(document(run(void=True)), width=80, color=False)


def test_heading_is_omitted_without_gates() -> None:
    found = TrialRun((), Verdict(Outcome.INCONCLUSIVE, "the time budget ended", None, early=True), (), None, ())
    assert "Gates" not in render_trial(document(found), width=80, color=False)
    assert "Gates" in render_trial(document(run()), width=80, color=False)


def test_that_nothing_was_tried_is_a_document_too() -> None:
    found = report_nothing_tried(
        target="model.py:build", train=True, inner="eager", policy=POLICY, compared=EagerComparison()
    )
    written = json.loads(json.dumps(to_json(found), allow_nan=False))
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(written)
    assert [arm["name"] for arm in written["arms"]] == ["baseline"]
    assert (written["verdict"], written["samples"], written["gates"]) == ("inconclusive", [], [])


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("found", [run(), run(void=True), run(failed="word " * 60)])
def test_it_is_readable_at_this_width_and_without_colour(found: TrialRun, width: int) -> None:
    text = render_trial(document(found), width=width, color=False)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.startswith(found.verdict.outcome)
    for gate in found.gates:
        assert gate.name.value in text


def test_ignored_load_is_shown() -> None:
    found = run()
    loaded = Disturbance(Cause.LOADED, "others had 40 %")
    quads = tuple(
        MeasuredQuad(quad.quad, tuple(replace(block, ignored=loaded) for block in quad.blocks))  # type: ignore[arg-type]
        for quad in found.quads[:3]
    )
    found = replace(found, quads=(*quads, *found.quads[3:]), ignore_load=True)
    text = render_trial(document(found), width=80, color=False)
    assert "8 rounds in 2 process pairs, 0 disturbed, 3 that count all the same (--ignore-load)" in " ".join(
        text.split()
    )
    written = to_json(document(found))
    assert written["ignore_load"] is True
    assert written["samples"][0]["blocks"][0]["ignored"] == "loaded: others had 40 %"
    assert written["samples"][3]["blocks"][0]["ignored"] is None


def gate_lines(text: str) -> list[str]:
    lines = text.splitlines()
    rest = lines[lines.index("Gates") + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


def test_each_gate_is_one_line_and_the_document_has_all_of_it() -> None:
    found = run()
    kernels = GateResult(Gate.KERNELS, True, "; ".join(f"loop {n} from 0 to 1" for n in range(40)), "40 changed: loops")
    long = GateResult(Gate.THROUGHPUT, None, "word " * 60)
    found = replace(found, gates=(found.gates[0], kernels, long))
    lines = gate_lines(render_trial(document(found), width=80, color=False))
    assert len(lines) == 4
    assert lines[1] == "    kernels      passed  40 changed: loops"
    assert lines[2].endswith("…")
    assert lines[3] == "    --json has each gate in full"
    written = to_json(document(found))["gates"]
    assert (written[1]["detail"], written[1]["summary"]) == (kernels.detail, "40 changed: loops")
    assert written[2]["detail"] == long.detail


def test_gates_that_are_shown_in_full_refer_to_nothing() -> None:
    assert len(gate_lines(render_trial(document(run()), width=80, color=False))) == len(run().gates)


def test_hostile_names_are_shown_as_text() -> None:
    text = render_trial(document(run(failed=HOSTILE), target=HOSTILE, decision=HOSTILE), width=80, color=False)
    assert "\x1b" not in text
    assert "second" in text
