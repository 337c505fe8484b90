"""A run as rows: what is not known is null, and nothing comes through that a table could not hold."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from frx_graph.errors import EvidenceError
from frx_graph.fleet.rows import MOST_ROWS, build_run_rows
from frx_graph.reports.runs.run_document import RunResult

HOSTILE = "\x1b[31m\u202e=cmd|'[red]\n" + "x" * 3000


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "derived" / "summary.json").read_text())
    return found


def rows(document: dict[str, Any]) -> Any:
    return build_run_rows(RunResult.model_validate_json(json.dumps(document)), "place", anew=False)


def test_a_run_with_a_trace(traced: Path) -> None:
    found = rows(summary(traced))
    assert (found.run.run_id, found.run.steps, found.run.seconds) == ("run-2", 10, pytest.approx(1.0))
    assert (found.run.bottleneck, found.run.traced, found.run.rows_left_out) == ("input_bound", True, 0)
    labels = {row.label: row for row in found.labels}
    assert labels["input_bound"].share == pytest.approx(0.6)
    # How idle a device is says nothing of what that costs.
    assert (labels["underutilized_gpu"].answer, labels["underutilized_gpu"].share) == ("present", None)
    by_rule = {row.rule: row for row in found.findings}
    assert set(by_rule) == {"FRX004", "FRX006", "FRX007"}
    conversion = by_rule["FRX004"]
    assert (conversion.file, conversion.line) == ("site-packages/torchvision/models/resnet.py", 128)
    work = next(work for work in summary(traced)["trace"]["layout"] if work["rule"] == "FRX004")
    assert conversion.share == pytest.approx(work["total_ms"] / summary(traced)["trace"]["window"]["span_ms"])
    assert conversion.bytes_per_step == work["bytes"] / 2
    assert (by_rule["FRX006"].share, by_rule["FRX006"].bytes_per_step, by_rule["FRX006"].site) == (
        None,
        None,
        "batch image",
    )


def test_unknown_values_are_null(traced: Path) -> None:
    document = summary(traced)
    document["trace"]["window"].update(steps=[], span_ms=0.0)
    document["trace"]["layout"][0].update(bytes=None, site=None)
    for process in document["run"]["run_summary"]["processes"]:
        process["step_ms"] = None
    found = rows(document)
    assert found.run.seconds is None
    first = found.findings[0]
    assert (first.share, first.bytes_per_step, first.file, first.line) == (None, None, None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_summary_has_numbers(traced: Path, value: float) -> None:
    document = summary(traced)
    document["run"]["run_summary"]["processes"][0]["step_ms"] = value
    with pytest.raises(ValidationError, match="finite number"):
        rows(document)


@pytest.mark.parametrize("value", ["-1", "1e300"])
def test_numbers_that_no_run_has_are_unknown(traced: Path, value: str) -> None:
    text = json.dumps(summary(traced)).replace('"total_ms": ', f'"total_ms": {value}, "x": ')
    document = json.loads(text)
    for work in document["trace"]["layout"]:
        del work["x"]
    for part in ("transfers", "kernels", "operators"):
        document["trace"][part] = []
    document["trace"]["host"].update(waits=[], calls=[])
    document["trace"]["families"] = []
    document["run"]["run_summary"]["processes"][0]["step_ms"] = float(value)
    found = rows(document)
    assert found.run.seconds is None
    assert [row.share for row in found.findings] == [None] * len(found.findings)


def test_a_number_of_steps_that_no_run_has_is_refused(recorded: Path) -> None:
    with pytest.raises(EvidenceError, match="counts"):
        rows({**summary(recorded), "step_count": 1 << 60})


def test_names_are_on_one_line_and_short(traced: Path) -> None:
    document = summary(traced)
    document["run_id"] = HOSTILE
    document["trace"]["layout"][0].update(operator=HOSTILE, title=HOSTILE, rule=HOSTILE, fingerprint=HOSTILE)
    document["trace"]["layout"][0]["site"].update(file=HOSTILE, function=HOSTILE, module_path=HOSTILE, line=1 << 70)
    found = rows(document)
    for row in (found.run, *found.labels, *found.findings, *found.advice):
        for field in fields(row):
            value = getattr(row, field.name)
            assert not isinstance(value, str) or (value.isprintable() and len(value) <= 200)
    assert found.findings[0].line is None


def test_findings_without_end_are_counted_and_left_out(traced: Path) -> None:
    document = summary(traced)
    document["trace"]["layout"] *= MOST_ROWS
    found = rows(document)
    assert len(found.findings) == MOST_ROWS
    known = len(document["trace"]["layout"]) + len(document[document["auto_scope"]]["layout_findings"])
    assert found.run.rows_left_out == known - MOST_ROWS


def test_labels_without_end_are_counted_and_left_out(recorded: Path) -> None:
    document = summary(recorded)
    scope = document[document["auto_scope"]]
    known = scope["labels"]
    scope["labels"] = [{**known[0], "label": f"label {number}"} for number in range(MOST_ROWS + 7)]
    found = rows(document)
    assert len(found.labels) == MOST_ROWS
    assert found.run.rows_left_out == 7


def test_a_digest_is_of_what_was_analysed(recorded: Path) -> None:
    document = summary(recorded)
    same = rows({**document, "warnings": ["told"]})
    assert rows(document).run.digest == same.run.digest
    other = json.loads(json.dumps(document))
    other["sources"][0]["sha256"] = "0" * 64
    assert rows(other).run.digest != same.run.digest
    alone = rows({**document, "sources": []})
    assert rows({**document, "sources": [], "event_count": 3}).run.digest != alone.run.digest
