"""What is said of a bundle, and which of its files that comes from."""

from __future__ import annotations

import json
import shutil
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import WrittenRun, waiting_run

from frx_graph.analyze.run import analyze_bundle, analyze_files
from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.run.steps import Scope
from frx_graph.errors import EvidenceError
from frx_graph.evidence.run.bundle import open_bundle
from frx_graph.reports.render.document import to_json
from frx_graph.reports.runs.run_document import RunResult, format_summary
from frx_graph.runs.smoke_test import make_synthetic_trace

RESNET = Path(__file__).parents[1] / "data" / "traces" / "kineto_resnet50_two_steps.pt.trace.json.gz"
SUMMARY = Path("derived") / "summary.json"


def result(path: Path) -> RunResult:
    return analyze_bundle(path).document.result


def with_trace(folder: Path, source: Path = RESNET) -> Path:
    (folder / "profiler").mkdir(parents=True, exist_ok=True)
    shutil.copy(source, folder / "profiler" / source.name)
    return folder


def summarised(folder: Path) -> Path:
    (folder / "derived").mkdir(exist_ok=True)
    with open_bundle(folder) as bundle:
        (folder / SUMMARY).write_text(format_summary(analyze_files(bundle)))
    return folder


def changed(folder: Path, **values: Any) -> None:
    summary = json.loads((folder / SUMMARY).read_text())
    (folder / SUMMARY).write_text(json.dumps({**summary, **values}))


def test_a_run_that_waits(tmp_path: Path) -> None:
    found = result(waiting_run().write(tmp_path / "run-1"))
    assert (found.run_id, found.step_count, found.auto_scope, found.steps_from) == (
        "run-1",
        30,
        Scope.STEADY_STATE,
        "events",
    )
    assert [source.role for source in found.sources] == ["events", "samples"]
    scope = found.steady_state
    assert (scope.run_summary.steps, scope.run_summary.step_ms) == (25, pytest.approx(100))
    assert scope.run_summary.loader_wait_share == pytest.approx(0.6)
    assert scope.diagnosis.primary_bottleneck == "underutilized_gpu"
    assert scope.diagnosis.user_facing_bottleneck == "input_bound"
    assert scope.run_summary.h2d_share is None
    assert [finding.tensor for finding in found.run.layout_findings] == ["image", "image"]
    assert {finding.layout_after for finding in found.run.layout_findings} == {"plain", "channels_last"}


def test_document_matches_the_published_schema(tmp_path: Path) -> None:
    published = resources.files("frx_graph.reports").joinpath("frx_run_v1.schema.json").read_text(encoding="utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(published))
    jsonschema.Draft202012Validator.check_schema(json.loads(published))
    run = waiting_run()
    run.step(100, status="error", loss="NaN")
    for folder in (
        run.write(tmp_path / "events"),
        with_trace(tmp_path / "trace"),
        with_trace(waiting_run().write(tmp_path / "both")),
        WrittenRun().write(tmp_path / "nothing"),
    ):
        if folder.name == "nothing":
            (folder / "raw" / "trace.jsonl").unlink()
            (folder / "host_metrics.csv").write_text("timestamp\n")
        document = analyze_bundle(folder).document
        text = json.dumps(to_json(document), allow_nan=False)
        validator.validate(json.loads(text))
        assert type(document).model_validate_json(text) == document


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """A trace of steps that wait for their input."""
    path = tmp_path / "waiting.json"
    path.write_text(json.dumps(make_synthetic_trace()))
    return path


@pytest.mark.parametrize("kind", ["waiting", "resnet"])
def test_a_bare_trace_gets_the_verdict_that_it_gets_alone(tmp_path: Path, waiting: Path, kind: str) -> None:
    path = waiting if kind == "waiting" else RESNET
    alone = analyze_run(path).run
    found = result(with_trace(tmp_path / "run", path))
    assert alone.primary is not None
    assert alone.primary.label == ("input_bound" if kind == "waiting" else "host_bound")
    for scope in (found.run, found.steady_state):
        assert scope.diagnosis.user_facing_bottleneck == alone.primary.label
        assert scope.run_summary.loader_wait_share == alone.timeline.loading_share
        assert scope.run_summary.gpu_busy_share == alone.timeline.busy_share
        assert scope.run_summary.steps == alone.timeline.windows.steps
    assert found.steps_from == "trace"
    assert found.trace is not None
    assert found.trace.source == f"profiler/{path.name}"
    assert found.trace.launches is not None
    assert [label.answer for label in alone.labels if label.label in ("copy_bound", "launch_bound")] == [
        label.answer for label in found.run.labels if label.label in ("copy_bound", "launch_bound")
    ]


def test_events_precede_the_trace_and_the_trace_adds_device_data(tmp_path: Path, waiting: Path) -> None:
    run = WrittenRun()
    for _ in range(20):
        run.step(100, wait=1)
    found = result(with_trace(run.write(tmp_path / "run"), waiting))
    assert [source.role for source in found.sources] == ["events", "trace"]
    assert found.steps_from == "events"
    scope = found.steady_state
    assert scope.run_summary.loader_wait_share == pytest.approx(0.01)
    labels = {label.label: label for label in scope.labels}
    assert labels["input_bound"].answer == "absent"
    assert "the profiled part of it says otherwise" in labels["input_bound"].evidence
    assert labels["layout_churn"].answer == "absent"
    assert scope.run_summary.gpu_busy_share is not None


def with_three_traces(folder: Path) -> Path:
    """Of which the first cannot be read."""
    (folder / "profiler").mkdir()
    (folder / "profiler" / "rank0.pt.trace.json").write_text('{"traceEvents": [')
    for rank in (1, 2):
        shutil.copy(RESNET, folder / "profiler" / f"rank{rank}.pt.trace.json.gz")
    return folder


def test_first_readable_trace_is_used(tmp_path: Path) -> None:
    folder = with_three_traces(waiting_run().write(tmp_path / "run"))
    found = result(folder)
    assert [source.path for source in found.sources if source.role == "trace"] == ["profiler/rank1.pt.trace.json.gz"]
    unread = {gap.subject: gap.reason for gap in found.unread}
    assert "only the first readable trace" not in unread["profiler/rank0.pt.trace.json"]
    assert "only the first readable trace" in unread["profiler/rank2.pt.trace.json.gz"]


def test_a_summary_of_these_files_is_taken(tmp_path: Path) -> None:
    folder = summarised(waiting_run().write(tmp_path / "run"))
    changed(folder, run_id="as it was")
    advice = analyze_bundle(folder)
    assert (advice.read_from, advice.document.result.run_id) == ("derived/summary.json", "as it was")


def test_a_summary_is_taken_also_where_a_trace_could_not_be_read(tmp_path: Path) -> None:
    folder = with_three_traces(waiting_run().write(tmp_path / "run"))
    changed(summarised(folder), run_id="as it was")
    assert analyze_bundle(folder).read_from == "derived/summary.json"
    shutil.copy(RESNET, folder / "profiler" / "rank3.pt.trace.json.gz")
    assert "made from other files" in analyze_bundle(folder).read_from


@pytest.mark.parametrize("what", ["events", "more", "version", "foreign", "damaged", "nan"])
def test_a_summary_of_others_is_not(tmp_path: Path, what: str) -> None:
    run = waiting_run()
    folder = summarised(run.write(tmp_path / "run"))
    changed(folder, run_id="as it was")
    match what:
        case "events":
            run.step(100, wait=60)
            run.write(folder)
        case "more":
            with_trace(folder)
        case "version":
            changed(folder, frx_version="99")
        case "foreign":
            (folder / SUMMARY).write_text('{"event_count": 5, "diagnosis": {}}')
        case "damaged":
            (folder / SUMMARY).write_bytes((folder / SUMMARY).read_bytes()[:-50])
        case "nan":
            changed(folder, event_count=float("nan"))
    advice = analyze_bundle(folder)
    assert advice.document.result.run_id == "run"
    assert advice.read_from.startswith("raw/trace.jsonl, ")
    assert "summary" in advice.read_from


def test_a_summary_alone_is_taken_if_it_is_one(tmp_path: Path) -> None:
    folder = summarised(waiting_run().write(tmp_path / "run"))
    shutil.rmtree(folder / "raw")
    (folder / "gpu_metrics.csv").unlink()
    assert analyze_bundle(folder).read_from == "derived/summary.json"
    changed(folder, frx_version="0.0.1")
    assert analyze_bundle(folder).read_from == "derived/summary.json, as frx-graph 0.0.1 wrote it"
    (folder / SUMMARY).write_text("[" * 100_000)
    with pytest.raises(EvidenceError, match=r"^derived/summary\.json: the summary was not written by this") as caught:
        analyze_bundle(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("root", ["", "run-1/"])
def test_zips_are_as_their_folders(tmp_path: Path, root: str) -> None:
    folder = summarised(with_trace(waiting_run().write(tmp_path / "run-1")))
    path = tmp_path / "run-1.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{root}{file.relative_to(folder)}")
    assert analyze_bundle(path) == analyze_bundle(folder)
    (folder / SUMMARY).unlink()
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{root}{file.relative_to(folder)}")
    assert analyze_bundle(path).document == analyze_bundle(folder).document


def test_one_file_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    folder = with_trace(waiting_run().write(tmp_path / "run"))
    (folder / "raw" / "trace.jsonl").write_text("no events\nat all\n")
    found = result(folder)
    assert found.steps_from == "trace"
    assert [gap.subject for gap in found.unread] == ["raw/trace.jsonl"]
    assert found.unread[0].reason.startswith("raw/trace.jsonl: line 1: ")
    shutil.rmtree(folder / "profiler")
    (folder / "gpu_metrics.csv").unlink()
    with pytest.raises(EvidenceError, match="line 1"):
        analyze_bundle(folder)


def test_gaps_in_the_record_are_reported(tmp_path: Path) -> None:
    run = waiting_run(5)
    run.event("warning_annotation", run.now, message="\x1b[31mfull\n", dropped=12)
    run.event("step_start", run.now)
    folder = run.write(tmp_path / "run")
    with (folder / "raw" / "trace.jsonl").open("a") as file:
        file.write('not json\n{"event_type": "other", "timestamp_ns": 5}\n{"event_ty')
    found = result(folder)
    said = " | ".join(f"{gap.subject}: {gap.reason}" for gap in found.missing)
    for part in ("1 line could not be read: line ", "torn", "12 were dropped", "1 have types that", "1 step began"):
        assert part in said
    assert found.warnings == ("[31mfull",)


@given(st.data())
def test_a_bundle_that_ends_anywhere(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = summarised(waiting_run(4).write(tmp_path_factory.mktemp("bundle") / "run"))
    for name in ("raw/trace.jsonl", "gpu_metrics.csv", "derived/summary.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        json.dumps(to_json(analyze_bundle(folder).document), allow_nan=False)
    except EvidenceError as error:
        assert "\n" not in str(error)


def test_steps_of_a_long_run_are_not_all_listed(tmp_path: Path) -> None:
    run = WrittenRun()
    for _ in range(1500):
        run.step(1, wait=0.1)
    found = result(run.write(tmp_path / "run"))
    assert (len(found.run.per_step), found.run.steps_not_listed, found.run.run_summary.steps) == (1000, 500, 1500)
    assert (found.steady_state.run_summary.steps, found.steady_state.steps_not_listed) == (1000, 0)
    assert found.run.per_step[-1].step == 1499


def test_samples_of_another_time_zone_are_taken_all(tmp_path: Path) -> None:
    run = waiting_run()
    run.samples = [line.replace("2023-11-14T22", "2023-11-14T20") for line in run.samples]
    assert "T20" in run.samples[1]
    assert result(run.write(tmp_path / "run")).run.run_summary.gpu_busy_share == pytest.approx(0.04)
