from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from frx_graph.errors import EvidenceError
from frx_graph.records import Severity
from frx_graph.reports.advice.advice_file import render_json
from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.trial_document import MatrixEntry, TrialDocument, TrialMatrixDocument

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
TESTS = Path(__file__).parents[1]
ADVICE = runpy.run_path(str(TESTS / "reports" / "conftest.py"))
TRIALS = runpy.run_path(str(TESTS / "reports" / "trials" / "test_trial_report.py"))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> None:
    """Of the tests' own; to make one takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        mlflow.set_experiment(experiment_id=mlflow.create_experiment("frx", artifact_location=(folder / "a").as_uri()))
        yield
        mlflow.set_tracking_uri(before)


@pytest.fixture
def logged(store):
    """What stands in a run."""

    def found(run: str):
        data = mlflow.get_run(run).data
        text = lambda file: mlflow.artifacts.load_text(f"runs:/{run}/{file}")  # noqa: E731
        return data.params, data.metrics, data.tags, lambda file: json.loads(text(file))

    yield found
    while mlflow.active_run() is not None:
        mlflow.end_run()


def test_advice(logged):
    from frx_graph.tracking.mlflow import ADVICE_FILE, log_advice

    advice = ADVICE["sample_advice"]()
    parameters, figures, tags, document = logged(log_advice(advice))
    assert parameters["frx.target"] == advice.target
    assert figures["frx.copies_per_step"] == advice.totals.copies_per_step
    assert figures["frx.findings"] == len(advice.findings)
    assert sum(figures[f"frx.findings.{severity.value}"] for severity in Severity) == len(advice.findings)
    assert tags["frx.kind"] == "advice"
    assert document(ADVICE_FILE) == json.loads(render_json(advice))


def test_what_is_unknown_is_not_logged_and_hostile_names_are_printable(logged):
    from frx_graph.tracking.mlflow import log_advice

    advice = ADVICE["hostile_advice"]()
    parameters, figures, _, _ = logged(log_advice(advice))
    assert "frx.bandwidth_overhead_pct" not in figures
    assert all(value.isprintable() for value in parameters.values())


@pytest.mark.parametrize("failed", ["", "output 0 is wrong"])
def test_a_trial(logged, failed):
    from frx_graph.tracking.mlflow import TRIAL_FILE, log_trial

    trial: TrialDocument = TRIALS["document"](TRIALS["run"](failed=failed))
    parameters, figures, tags, document = logged(log_trial(trial))
    assert tags["frx.verdict"] == trial.verdict
    assert parameters["frx.rewrites"] == "propagate_layout"
    assert ("frx.ratio_median" in figures) is not bool(failed)
    assert figures["frx.gate.process"] == 1.0
    assert "frx.gate.distributed" not in figures
    assert document(TRIAL_FILE) == to_json(trial)


def test_into_the_active_run(logged):
    from frx_graph.tracking.mlflow import log_advice

    with mlflow.start_run() as run:
        assert log_advice(ADVICE["sample_advice"]()) == run.info.run_id
        assert mlflow.active_run() is not None


def test_twice_into_one_run_as_before_and_after_a_change(logged):
    from frx_graph.tracking.mlflow import log_advice, log_trial

    advice = ADVICE["sample_advice"]()
    with mlflow.start_run() as run:
        log_advice(advice)
        log_advice(replace(advice, target="other.py:build"))
        log_trial(TRIALS["document"](TRIALS["run"]()))
    parameters, figures, tags, _ = logged(run.info.run_id)
    assert parameters["frx.target"] == advice.target
    assert tags["frx.target"] == TRIALS["document"](TRIALS["run"]()).target
    assert {"frx.copies_per_step", "frx.ratio_median"} <= figures.keys()


def test_several_trials_have_a_run_each(logged, tmp_path):
    from frx_graph.tracking.mlflow import log_file

    trial = TRIALS["document"](TRIALS["run"]())
    entry = {"target": "a", "shape": {}, "dtype": None, "candidate": None}
    entries = (MatrixEntry(**entry, trial=trial, error=None), MatrixEntry(**entry, trial=None, error="void"))
    file = tmp_path / "trials.json"
    file.write_text(json.dumps(to_json(TrialMatrixDocument(trials=(*entries, entries[0])))))
    runs = log_file(file)
    assert len(set(runs)) == 2
    assert {logged(run)[2]["frx.kind"] for run in runs} == {"trial"}


def test_files(logged, tmp_path):
    from frx_graph.tracking.mlflow import log_file

    advice, trial, other = tmp_path / "advice.json", tmp_path / "trial.json", tmp_path / "other.json"
    advice.write_text(render_json(ADVICE["sample_advice"]()))
    trial.write_text(json.dumps(to_json(TRIALS["document"](TRIALS["run"]()))))
    other.write_text("{}")
    assert [logged(run)[2]["frx.kind"] for run in log_file(advice)] == ["advice"]
    assert [logged(run)[2]["frx.kind"] for run in log_file(trial)] == ["trial"]
    with pytest.raises(EvidenceError, match="is neither advice nor a trial"):
        log_file(other)
    with pytest.raises(EvidenceError, match="cannot be read"):
        log_file(tmp_path / "missing")


@pytest.mark.integration
def test_the_command(tmp_path):
    file = tmp_path / "no.json"
    file.write_text("[]")
    done = subprocess.run(
        [sys.executable, "-m", "frx_graph.tracking.mlflow", str(file)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("frx: ")
    assert "neither advice nor a trial" in done.stderr
