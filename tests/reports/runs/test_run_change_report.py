"""The wording of `frx compare` for two runs, traces or advice files."""

from __future__ import annotations

from dataclasses import replace

from frx_graph.analyzers.run_change.change import compare_recordings
from frx_graph.analyzers.run_change.recording import COPY_TRAFFIC, Cost, KnownProblem, Recording, RecordKind
from frx_graph.analyzers.run_change.step_times import StepChange
from frx_graph.reports.runs.run_change_document import build_run_change_document
from frx_graph.reports.runs.run_change_report import render_run_change

RUN = Recording("a", RecordKind.RUN, step_ms=(10.0,) * 20)
STEPS = StepChange(60.9, 60.9, 60.9, 60.9, 20, 20, low=-0.01, high=0.01)


def write(before: Recording, after: Recording, steps: StepChange | None = None) -> str:
    change = compare_recordings(before, after)
    document = build_run_change_document(change if steps is None else replace(change, steps=steps))
    return " ".join(render_run_change(document.result, top=5, width=80, color=False).split())


def test_better_advice_names_what_is_new() -> None:
    resolved = KnownProblem("FRX001", "hidden copy", "a.py:3", 1.0, bytes_per_step=255e6)
    new = KnownProblem("FRX005", "padding", "a.py:9", 1.0, bytes_per_step=2.36e6)
    before = Recording("a", RecordKind.ADVICE, problems={"x": resolved}, costs={COPY_TRAFFIC: Cost(300e6, "byte")})
    after = replace(before, problems={"y": new}, costs={COPY_TRAFFIC: Cost(47e6, "byte")})
    text = write(before, after)
    assert "the second is better: its layout copies move 253 MB a step less; new: 1 finding (FRX005, 2.36 MB" in text
    assert "COST OF A STEP traffic of layout copies: 300 MB -> 47.0 MB" in text
    assert "the second is worse" not in text
    assert "neither is worse: its layout copies move as much as before" in write(before, before)
    one = replace(before, problems={"x": replace(resolved, bytes_per_step=None)}, costs={})
    assert "only their number counts" in write(one, replace(one, problems=one.problems | {"y": one.problems["x"]}))
    text = write(one, replace(one, problems={"y": new}))
    assert "neither is worse: what a step costs is not known" in text
    assert "only their number counts" not in text


def test_shares_have_milliseconds() -> None:
    before = replace(RUN, shares={"forward": 0.223, "memory": 0.1}, shares_ms={"forward": 35.8})
    after = replace(RUN, shares={"forward": 0.533, "memory": 0.2}, shares_ms={"forward": 72.7})
    text = write(before, after)
    assert "forward: 35.8 ms (22.3 %) -> 72.7 ms (53.3 %)" in text
    assert "memory: 10.0 % -> 20.0 %" in text


def test_too_little_telemetry_has_no_percentage() -> None:
    text = write(replace(RUN, labels={"insufficient_telemetry": 1.0}), RUN)
    assert "the first run recorded too little to name a bottleneck" in text
    assert "insufficient_telemetry" not in text


def test_undecided_steps_read_like_decided_ones() -> None:
    text = write(RUN, RUN, replace(STEPS, low=-0.275, high=-0.02))
    assert "undecided: between 27.5 % and 2.0 % shorter, and two runs of one program differ by about 4.0 %" in text
    assert "undecided: between 3.0 % shorter and 5.0 % longer" in write(RUN, RUN, replace(STEPS, low=-0.03, high=0.05))


def test_means_within_the_interval_are_not_mentioned() -> None:
    slower = replace(STEPS, after_ms=170.1, after_mean_ms=160.3, low=1.619, high=1.901)
    assert "but the means" not in write(RUN, RUN, slower)
    faster = replace(STEPS, before_ms=170.1, before_mean_ms=160.3, low=-0.655, high=-0.618)
    assert "but the means" not in write(RUN, RUN, faster)


def test_other_means_are_mentioned_in_both_directions() -> None:
    text = write(RUN, RUN, replace(STEPS, after_mean_ms=80.0))
    assert "but the means are 60.9 ms -> 80.0 ms, 31.4 % longer" in text
    assert "23.9 % shorter" in write(RUN, RUN, replace(STEPS, before_mean_ms=80.0))
