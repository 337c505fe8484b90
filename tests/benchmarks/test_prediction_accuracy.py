"""The results file of predictions: a run that was cut off at any byte goes on where it was."""

from __future__ import annotations

from dataclasses import replace

import prediction_accuracy
import pytest
import yaml
from prediction_accuracy import Case, How, Proposal, Row, read_rows, write_calibration
from prediction_fit import fit, make_point

from frx_graph.errors import TrialError
from frx_graph.passes.inner_choice import EVERY_GRAPH
from frx_graph.passes.inner_choice import NAME as INNER_CHOICE
from frx_graph.records import Candidate
from frx_graph.rules.predicted_gain import Calibration
from frx_graph.trials.arm_messages import MadeGraph

CASES = [Case("resnet18", False, 1, "inductor"), Case("unet_plain", False, 1, "inductor")]
LAYOUT = Candidate("propagate_layout", "g", ("conv",), predicted_seconds=1e-3, run_seconds=1e-2)


@pytest.fixture
def measured(monkeypatch):
    """The names of what was measured, instead of trials."""
    names: list[str] = []

    def measure(case, proposal, how):
        names.append(f"{case.network} {proposal.name}")
        return case.row(how).model_copy(update={"name": proposal.name, "ratio": 1.1, "outcome": "promote"})

    def propose(case, policy):
        for name in ("propagate_layout", "eager"):
            yield Proposal(name, (MadeGraph("s", (LAYOUT,)),))

    monkeypatch.setattr(prediction_accuracy, "measure", measure)
    monkeypatch.setattr(prediction_accuracy, "propose", propose)
    return names


def run(path, machine="this machine", **how):
    prediction_accuracy.run(CASES, path, How(prediction_accuracy.POLICY, machine, **how))


def test_every_candidate_is_measured_once(tmp_path, measured):
    path = tmp_path / "folder" / "rows.jsonl"
    run(path)
    assert measured == [
        "resnet18 propagate_layout", "resnet18 eager", "unet_plain propagate_layout", "unet_plain eager"
    ]  # fmt: skip
    rows = read_rows(path)
    assert [row.name for row in rows] == ["propagate_layout", "eager", None] * 2
    run(path)
    assert len(measured) == 4
    assert read_rows(path) == rows


def test_a_run_goes_on_wherever_it_was_cut_off(tmp_path, measured):
    path = tmp_path / "rows.jsonl"
    run(path)
    whole = path.read_bytes()
    rows = read_rows(path)
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        run(path)
        assert set(map(str, read_rows(path))) == set(map(str, rows))


def test_other_machines_are_measured_again(tmp_path, measured):
    path = tmp_path / "rows.jsonl"
    run(path)
    run(path, "another machine")
    assert len(measured) == 8
    run(path, ignore_load=True)
    assert len(measured) == 12


def test_what_a_busy_machine_left_open_is_measured_again(tmp_path, measured, monkeypatch):
    def measure(case, proposal, how):
        return case.row(how).model_copy(update={"name": proposal.name, "outcome": "inconclusive"})

    path = tmp_path / "rows.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(prediction_accuracy, "measure", measure)
        run(path)
    assert read_rows(path) == []
    run(path)
    assert len(measured) == 4


def test_a_network_that_does_not_run_is_asked_again(tmp_path, measured, monkeypatch):
    def propose(case, policy):
        raise TrialError("the program does not run")

    path = tmp_path / "rows.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(prediction_accuracy, "propose", propose)
        run(path)
    assert read_rows(path) == []
    run(path)
    assert len(measured) == 4


def test_rewrites_for_another_compiler_belong_to_it():
    chosen = Candidate(INNER_CHOICE, EVERY_GRAPH, (), ("eager",), 1e-3, 1e-2)
    graphs = (MadeGraph("s", (LAYOUT, chosen)), MadeGraph("t", (LAYOUT,)))
    assert Proposal("eager", graphs).rewrites == ("eager",)
    assert Proposal("propagate_layout", graphs[1:]).rewrites == ("propagate_layout",)
    assert len(Proposal("eager", graphs).candidates) == 2


def test_a_row_without_a_gain_is_no_point():
    row = Row(network="a", train=False, batch=1, inner="eager", machine="m", rewrites=("eager",))
    assert row.point is None
    known = row.model_copy(update={"predicted_seconds": 0.1, "run_seconds": 1.0, "ratio": 1.2})
    assert known.point == make_point("a", 0.1, 1.0, 1.2)


def test_the_calibration_is_written_as_the_package_reads_it(tmp_path):
    path = tmp_path / "calibration.yaml"
    fitted = fit([])
    write_calibration(fitted, path)
    assert Calibration.model_validate(yaml.safe_load(path.read_text())) == fitted
    assert "Provisional" in path.read_text()


def test_a_candidate_without_a_prediction_is_not_measured():
    how = How(prediction_accuracy.POLICY, "this machine")
    unpriced = Proposal("propagate_layout", (MadeGraph("s", (replace(LAYOUT, predicted_seconds=None),)),))
    disturbed = Proposal("propagate_layout", (MadeGraph("s", (replace(LAYOUT, run_seconds=None),)),))
    rows = [prediction_accuracy.measure(CASES[0], one, how) for one in (unpriced, disturbed)]
    assert [row.point for row in rows] == [None, None]
    # What was disturbed is asked for again.
    assert [row.known for row in rows] == [True, False]
