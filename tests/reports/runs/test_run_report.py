"""What a run says, for people, and the brief that is made of it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from written_runs import WrittenRun, waiting_run

from frx_graph.analyze.run import analyze_bundle
from frx_graph.analyzers.run.steps import Scope
from frx_graph.reports.kernels.explain_prompt import render_prompt
from frx_graph.reports.kernels.explain_summary import render_summary
from frx_graph.reports.render.document import to_json
from frx_graph.reports.runs.run_document import RunResult
from frx_graph.reports.runs.run_explanation import explain_run
from frx_graph.reports.runs.run_report import render_run
from frx_graph.runs.collect.sampling import DEVICE_HEADER, HOST_HEADER
from frx_graph.runs.smoke_test import make_synthetic_trace

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_explain_v0.schema.json").read_text(encoding="utf-8")
GOLDEN = Path(__file__).parents[1] / "golden" / "run.txt"
HOSTILE = "\x1b[31m\u202e=cmd|'[red]<b>\n" + "x" * 3000


def result(folder: Path) -> RunResult:
    return analyze_bundle(folder).document.result


def text(folder: Path, scope: Scope = Scope.AUTO, top: int = 3) -> str:
    advice = analyze_bundle(folder)
    return render_run(advice.document.result, scope, advice.read_from, top=top, width=80, color=False)


def hostile(folder: Path) -> Path:
    """A run whose every word is a stranger's."""
    run = WrittenRun()
    run.batch(0, (8, 3, 32, 32), (3072, 1024, 32, 1), HOSTILE)
    run.batch(1, (8, 3, 32, 32), (3072, 1, 96, 3), HOSTILE)
    for number in range(10):
        run.event("phase_span", run.now + 5, 5, phase_name=HOSTILE)
        run.step(100, wait=50, step_kind=HOSTILE, status=HOSTILE if number == 9 else "ok", batch_layout=number % 2)
    run.event("warning_annotation", run.now, message=HOSTILE)
    run.event("memcpy_span", run.now, 5, copy_kind=HOSTILE)
    trace = json.loads(json.dumps(make_synthetic_trace()).replace('"gemm"', json.dumps(HOSTILE)))
    trace["deviceProperties"][0]["name"] = HOSTILE
    (folder / "profiler").mkdir(parents=True)
    (folder / "profiler" / "a.json").write_text(json.dumps(trace))
    (folder / "profiler" / "b\x1b[31m.json").write_text("{}")
    return run.write(folder)


def test_a_report_as_it_is(tmp_path: Path) -> None:
    found = text(waiting_run().write(tmp_path / "run-1"))
    if os.environ.get("FRX_GOLDEN") == "write":
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")
    assert max(map(len, found.splitlines())) <= 80


def test_unknown_figures_are_shown_as_unknown(tmp_path: Path) -> None:
    run = WrittenRun()
    run.step(100)
    found = text(run.write(tmp_path / "run"))
    for line in (
        "Primary bottleneck  : insufficient_telemetry",
        "GPU busy            : unknown",
        "GPU memory, most    : unknown",
        "waiting for input     unknown\n",
        "unknown: no profiler recorded kernels, or how idle the device was",
    ):
        assert line in found
    assert " 0.0 %" not in found
    assert "in no part of a step  100.0 %    100 ms" in found
    assert "Confidence" not in found
    assert 'with frx_graph.span("forward"):' in found


def test_a_run_without_steps_has_no_step_times(tmp_path: Path) -> None:
    (tmp_path / "host_metrics.csv").write_bytes(HOST_HEADER)
    found = text(tmp_path)
    assert "Step time           : none recorded\n" in found
    assert "from batch to batch" not in found
    assert "Throughput" not in found


def recorded(folder: Path, command: list[str]) -> RunResult:
    waiting_run().write(folder)
    (folder / "metadata.json").write_text(json.dumps({"command": command, "host": {"processors": 8}}))
    return result(folder)


def test_the_command_of_the_run_is_named(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", ["python", "my train.py", "--data", "$(rm -rf /)"])
    again = "frx collect --explain -- python 'my train.py' --data '$(rm -rf /)'"
    assert f"\n        {again}\n" in text(tmp_path / "run")
    document = explain_run(found, Scope.AUTO)
    assert document.reprofile_command == again
    assert f"\n        {again}\n" in render_summary(document)
    brief, data = render_prompt(document).split("\nNAMES\n")
    assert again not in brief
    assert f"\nagain | {again}\n" in data


@pytest.mark.parametrize("command", [[], ["python", HOSTILE], ["x" * 2000], ["python", "a\nb"]])
def test_command_that_cannot_be_shown_is_replaced(tmp_path: Path, command: list[str]) -> None:
    found = recorded(tmp_path / "run", command)
    assert explain_run(found, Scope.AUTO).reprofile_command == "frx collect --explain -- python train.py"


@pytest.mark.parametrize(
    "metadata", ["", "[]", '{"command": 1}', '{"host": {"processors": -1}}', '{"command": ["\\ud800"]}']
)
def test_metadata_of_another_program_is_not_used(tmp_path: Path, metadata: str) -> None:
    folder = waiting_run().write(tmp_path / "run")
    (folder / "metadata.json").write_text(metadata)
    assert result(folder).command == ()


def test_a_bound_is_said_once(tmp_path: Path) -> None:
    folder = waiting_run().write(tmp_path / "run")
    assert text(folder).count("150 % faster") == 1
    assert render_summary(explain_run(result(folder), Scope.AUTO)).count("150 % faster") == 1


def test_a_run_without_devices_has_no_rows_about_them(tmp_path: Path) -> None:
    run = WrittenRun()
    for _ in range(20):
        run.step(100, wait=20, forward=70)
    folder = run.write(tmp_path / "run")
    (folder / "gpu_metrics.csv").write_bytes(DEVICE_HEADER)
    first, last = (datetime.fromtimestamp(1_700_000_000 + at, UTC).isoformat() for at in (0.5, 1.5))
    rows = f"{first}, 3, [N/A], 512.0\n{last}, 3, 150.0, 1024.0\n"
    (folder / "host_metrics.csv").write_bytes(HOST_HEADER + rows.encode())
    found = text(folder)
    assert "GPU" not in found
    assert "copies to the device" not in found
    assert "waiting for devices" not in found
    assert "FRAMEWORK ABSTRACTION TAX" not in found
    assert "Processors busy     : 1.5 on average" in found
    assert "Memory, most        : 1.07 GB" in found
    said = result(folder).run.run_summary
    assert (said.uses_device, said.host.samples, said.host.peak_processes) == (False, 2, 3)
    metrics = {metric.name for metric in explain_run(result(folder), Scope.RUN).key_metrics}
    assert metrics == {"loader_wait", "shape_changes"}


def test_a_model_that_takes_all_the_time_is_the_next_to_look_at(tmp_path: Path) -> None:
    run = WrittenRun()
    for _ in range(10):
        run.step(100, wait=2, forward=90)
    folder = run.write(tmp_path / "run")
    (folder / "gpu_metrics.csv").write_bytes(DEVICE_HEADER)
    trace = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]
    (folder / "profiler").mkdir()
    (folder / "profiler" / "a.json").write_text(json.dumps(trace))
    found = text(folder)
    said = " ".join(found.split())
    assert "none recorded Reason : no recorded activity holds the run back: the model's own work takes the time" in said
    assert "OPERATORS ON THE HOST" in found
    assert "1× aten::mm" in found
    assert found.endswith("        frx advise file.py:callable\n")


def test_scopes(tmp_path: Path) -> None:
    run = WrittenRun()
    for number in range(20):
        run.step(1000 if number < 4 else 100, wait=900 if number < 4 else 1, forward=90)
    folder = run.write(tmp_path / "run")
    whole, steady = text(folder, Scope.RUN), text(folder, Scope.STEADY_STATE)
    assert "Scope: run (20 steps)" in whole
    assert "Primary bottleneck  : input_bound" in whole
    assert "Scope: steady_state (16 steps of 20)" in steady
    assert "Primary bottleneck  : none recorded" in steady
    assert "input_bound appears only at the beginning: it is gone in the steady state" in " ".join(steady.split())
    assert result(folder).scope_comparison.primary_changed


def test_strangers_words_are_shown_on_one_line(tmp_path: Path) -> None:
    folder = hostile(tmp_path / "run")
    found = text(folder, top=9)
    assert all(character.isprintable() for line in found.split("\n") for character in line)
    assert "\u202e" not in found
    assert "FRX006 [HIGH] The strides of input" in found
    json.dumps(result(folder).model_dump(mode="json"), allow_nan=False)


@pytest.mark.parametrize("kind", ["waiting", "hostile", "empty"])
def test_a_brief_of_a_run(tmp_path: Path, kind: str) -> None:
    if kind == "waiting":
        folder = waiting_run().write(tmp_path / "run")
    elif kind == "hostile":
        folder = hostile(tmp_path / "run")
    else:
        folder = tmp_path
        (folder / "host_metrics.csv").write_text("timestamp\n")
    document = explain_run(result(folder), Scope.AUTO)
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(to_json(document))
    assert document.layers_available == ("run",)
    prompt, summary = render_prompt(document), render_summary(document)
    assert "frx collect --explain -- python train.py" in prompt
    assert max(map(len, summary.splitlines())) <= 80
    # Strangers' words stand in the blocks of data alone.
    brief = prompt[: prompt.index("\nNAMES\n")]
    assert "cmd|" not in brief
    assert "\x1b" not in prompt
    if kind == "empty":
        assert document.primary_diagnosis is None
        assert "unknown: too few metrics" in prompt
        return
    assert document.primary_diagnosis is not None
    assert document.primary_diagnosis.label == "input_bound"
    assert "Look at how batches are made" in prompt
    assert "does not wait for the model" not in prompt
    assert "ms on average from batch to batch" in prompt
    assert "(good: below 20)" in prompt
    assert "waiting for input 6" in prompt or "waiting for input 5" in prompt
    assert "Waiting for input: " in summary


def test_briefs_name_what_to_look_at_by_the_diagnosis(tmp_path: Path) -> None:
    folder = waiting_run().write(tmp_path / "run")
    found = result(folder)
    waiting = render_prompt(explain_run(found, Scope.RUN))
    labels = tuple(label.model_copy(update={"label": "sync_bound"}) for label in found.run.bottlenecks)
    diagnosis = found.run.diagnosis.model_copy(update={"user_facing_bottleneck": "sync_bound"})
    run = found.run.model_copy(update={"bottlenecks": labels, "diagnosis": diagnosis})
    syncing = render_prompt(explain_run(found.model_copy(update={"run": run}), Scope.RUN))
    assert "Look for code that reads a value from the device" in syncing
    assert "Look for code that reads a value from the device" not in waiting
