"""Steps are timed from batch to batch, whatever order, clock or process their events have."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frx_graph.analyzers.run.analysis import ScopeAnalysis, analyze_record
from frx_graph.analyzers.run.hand_over import TENSOR_NS
from frx_graph.analyzers.run.steps import Activity, Scope, Selector, measure_within
from frx_graph.evidence.run.events import (
    LoaderMark,
    LoaderWait,
    PhaseSpan,
    RecordedTensor,
    RunWarning,
    ShapeSnapshot,
    StepEnd,
    StepStart,
)

MS = 1_000_000


MORE_SAMPLES = ["rec_feed_the_device", "rec_prepare_samples_beforehand", "rec_read_larger_files"]
"""Cards for a loader that takes long for each batch."""


def test_the_wait_before_a_step_is_in_it(run: Any) -> None:
    for _ in range(4):
        run.step(100, wait=30, h2d=5, forward=40, sync=10)
    steps = run.analyse().run.figures.steps
    assert [step.wall_ns for step in steps] == [100 * MS] * 4
    assert steps[2].times == {
        Activity.LOADER: 30 * MS,
        Activity.H2D: 5 * MS,
        Activity.FORWARD: 40 * MS,
        Activity.SYNC: 10 * MS,
    }
    assert (steps[2].unexplained_ns, steps[2].between_ns) == (15 * MS, 0)


def test_time_between_steps_is_not_a_loader_wait(run: Any) -> None:
    run.step(100, wait=10)
    run.now += 50
    run.step(100, wait=10)
    step = run.analyse().run.figures.steps[1]
    assert (step.wall_ns, step.between_ns, step.unexplained_ns) == (150 * MS, 50 * MS, 140 * MS)
    figures = run.analyse().run.figures
    assert figures.between == pytest.approx(50 / 250)
    assert figures.step_ms == 125


def test_overlapping_activities_count_once(run: Any) -> None:
    for _ in range(2):
        run.step(100, wait=20)
        run.add(LoaderWait, run.now - 90, duration_ns=10 * MS)
        run.add(PhaseSpan, run.now, phase="forward", duration_ns=50 * MS)
        run.add(PhaseSpan, run.now, phase="forward", duration_ns=40 * MS)
    step = run.analyse().run.figures.steps[1]
    assert (step.times[Activity.LOADER], step.times[Activity.FORWARD]) == (20 * MS, 50 * MS)
    assert step.unexplained_ns == 30 * MS


def test_steps_of_processes_do_not_mix(run: Any) -> None:
    for process in (1, 2):
        run.process, run.now, run.number = process, 50.0 * process, 0
        for _ in range(5):
            run.step(100, wait=10)
    record = run.analyse()
    assert {step.wall_ns for step in record.run.figures.steps} == {100 * MS}
    assert record.run.figures.steps_per_s == pytest.approx(10)


def test_failed_steps_are_listed_but_not_timed(run: Any) -> None:
    run.step(100, wait=10)
    run.step(1000, wait=900, failed=True)
    run.step(100, wait=10)
    figures = run.analyse().run.figures
    assert len(figures.steps) == 3
    assert figures.step_ms == 100
    assert figures.means[Activity.LOADER] == pytest.approx(0.1)


def test_a_run_of_steps_that_failed_has_no_figures(run: Any) -> None:
    run.step(100, failed=True)
    figures = run.analyse().run.figures
    assert (figures.step_ms, figures.steps_per_s, figures.unexplained, dict(figures.means)) == (None, None, None, {})


def test_a_step_that_was_killed_did_not_end(run: Any) -> None:
    run.step(100)
    run.step(100)
    del run.events[-1]
    record = run.analyse()
    assert (record.unfinished, len(record.run.figures.steps)) == (1, 1)


def test_step_numbers_may_restart_every_epoch(run: Any) -> None:
    for number in (0, 1, 2, 0, 1):
        run.number = number
        run.step(100)
    del run.events[-1]
    assert run.analyse().unfinished == 1


@pytest.mark.parametrize("offset", [-1, 0])
def test_a_step_within_another_one_is_part_of_it(run: Any, offset: float) -> None:
    for _ in range(4):
        run.add(StepStart, run.now + 10, step=0, depth=1)
        run.add(StepEnd, run.now + 100 + offset, step=0, depth=1, duration_ns=round((90 + offset) * MS))
        run.step(100, wait=5)
    record = run.analyse()
    assert [step.wall_ns for step in record.run.figures.steps] == [100 * MS] * 4
    assert record.unfinished == 0


def test_nested_steps_alone_do_not_count(run: Any) -> None:
    run.add(StepEnd, 100, step=0, depth=1, duration_ns=90 * MS)
    assert run.analyse().run.figures.steps == ()


@pytest.mark.parametrize("known", ["start", "neither"])
def test_durations_may_be_missing(run: Any, known: str) -> None:
    for _ in range(3):
        run.step(100, wait=10)
    run.events = [
        replace(event, duration_ns=None) if isinstance(event, StepEnd) else event
        for event in run.events
        if known == "start" or "StepStart" not in type(event).__name__
    ]
    figures = run.analyse().run.figures
    assert [step.wall_ns // MS for step in figures.timed] == ([100] * 3 if known == "start" else [100] * 2)


def test_huge_numbers(run: Any) -> None:
    run.number = 2**62
    for _ in range(3):
        run.step(100)
    run.add(StepEnd, run.now + 100, step=5, duration_ns=2**62)
    run.add(LoaderWait, run.now + 100, duration_ns=2**63 - 1)
    figures = run.analyse().run.figures
    assert figures.steps[-1].wall_ns == 100 * MS
    assert figures.means[Activity.LOADER] == pytest.approx(1)
    assert figures.unexplained == 0


@given(st.randoms(use_true_random=False), st.integers(0, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_order_and_repetition_change_nothing(run: Any, chance: random.Random, copies: int) -> None:
    run.events.clear()
    run.now, run.number = 0.0, 0
    for _ in range(20):
        run.step(100, wait=30, forward=20)
    before = run.analyse()
    run.events += chance.choices(run.events, k=10 * copies)
    chance.shuffle(run.events)
    after = run.analyse()
    assert after.run.figures.steps == before.run.figures.steps
    assert after.clock_changes == 0


def test_a_clock_that_goes_back(run: Any) -> None:
    for _ in range(10):
        run.step(100, wait=30)
    run.now -= 650
    for _ in range(10):
        run.step(100, wait=30)
    record = run.analyse()
    assert record.clock_changes == 1
    assert {step.wall_ns for step in record.run.figures.steps} == {100 * MS}
    assert record.run.figures.means[Activity.LOADER] == pytest.approx(0.3)


@given(st.lists(st.integers(-20, 20), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_clocks_that_do_anything(run: Any, jumps: list[int]) -> None:
    run.events.clear()
    run.now, run.number = 10_000.0, 0
    for jump in jumps:
        run.step(10, wait=3, sync=2)
        run.now = max(0.0, run.now + jump)
    figures = run.analyse().run.figures
    assert len(figures.steps) == len(jumps)
    assert all(0 <= share <= 1 for share in figures.means.values())
    assert all(0 <= step.unexplained_ns <= step.wall_ns for step in figures.steps)


@pytest.mark.parametrize(("steps", "skipped"), [(1, 0), (4, 0), (5, 1), (24, 4), (25, 5), (1005, 5), (1006, 6)])
def test_the_steady_state(run: Any, steps: int, skipped: int) -> None:
    for _ in range(steps):
        run.step(1)
    record = run.analyse()
    assert len(record.run.figures.steps) == steps
    assert [step.number for step in record.steady_state.figures.steps] == list(range(skipped, steps))
    assert record.automatic.scope is Scope.STEADY_STATE


def test_the_steady_state_is_chosen_in_each_process(run: Any) -> None:
    for process in (1, 2):
        run.process, run.now, run.number = process, 0.0, 0
        for _ in range(10):
            run.step(100)
    chosen = Selector(skip_first_n=3, last_k=5).select(run.analyse().run.figures.steps)
    assert [(step.process, step.number) for step in chosen] == [(one, at) for one in (1, 2) for at in range(5, 10)]


def test_scopes_that_differ(run: Any) -> None:
    for number in range(20):
        run.step(*((1000,) if number < 4 else (100,)), wait=900 if number < 4 else 1, forward=98)
    record = run.analyse()
    assert record.run.diagnosis.user_facing is not None
    assert record.run.diagnosis.user_facing.label == "input_bound"
    assert record.steady_state.diagnosis.user_facing is None


def test_time_within_windows() -> None:
    windows = [(0, 10), (10, 20), (20, 20), (20, 50)]
    assert measure_within(windows, [(5, 12), (15, 25), (40, 90)]) == [5, 7, 0, 15]
    assert measure_within([], [(1, 2)]) == []
    assert analyze_record([], [], None).run.figures.steps == ()


def test_nothing_is_timed_across_events_that_are_missing(run: Any) -> None:
    for _ in range(4):
        run.step(100, wait=30)
    # Steps 4 to 8 were dropped, and so was the wait of the ninth.
    run.add(RunWarning, run.now + 30, message="full", dropped=20)
    run.now, run.number = run.now + 600, 9
    for _ in range(4):
        run.step(100, wait=30)
    figures = run.analyse().run.figures
    assert [step.number for step in figures.steps if not step.whole] == [9]
    assert (figures.step_ms, figures.means[Activity.LOADER]) == (100, 0.3)


@pytest.mark.parametrize(
    ("since", "until", "lost"),
    [
        (100, None, [1]),  # at the very end of a step that was written: what is missing comes behind it
        (101, None, [1]),
        (200, None, [2]),
        (101, 200, [1]),
        (101, 201, [1, 2]),
        (101, 401, [1, 2, 3, 4]),
        (99, 100, [0]),
    ],
)
def test_which_steps_events_that_are_missing_may_belong_to(
    run: Any, since: float, until: float | None, lost: list[int]
) -> None:
    for _ in range(5):
        run.step(100, wait=30)
    until_ns = None if until is None else run.at(until)
    run.add(RunWarning, since, message="full", dropped=1, until_ns=until_ns)
    assert [step.number for step in run.analyse().run.figures.steps if not step.whole] == lost


def test_events_that_another_process_misses_do_not_matter(run: Any) -> None:
    for _ in range(3):
        run.step(100)
    run.process = 8
    run.add(RunWarning, 150, message="full", dropped=1)
    assert len(run.analyse().run.figures.timed) == 2 + 1


def test_a_warning_of_nothing_missing_voids_nothing(run: Any) -> None:
    for _ in range(3):
        run.step(100)
    run.add(RunWarning, 150, message="the model could not be read")
    assert all(step.whole for step in run.analyse().run.figures.steps)


def test_a_step_whose_end_is_missing_is_not_called_unfinished(run: Any) -> None:
    run.step(100)
    run.add(StepStart, run.now, step=1)
    run.add(RunWarning, 150, message="full", dropped=3)
    run.now, run.number = 200, 2
    run.step(100)
    run.add(StepStart, run.now, step=3)
    assert run.analyse().unfinished == 1


def test_the_start_of_a_loader_is_a_wait_for_input(run: Any) -> None:
    """A loader that takes longer to begin than to give batches, in each epoch."""
    for _ in range(3):
        for number in range(5):
            if number == 0:
                run.add(LoaderMark, run.now + 300, begins=True, duration_ns=300 * MS)
                run.now += 300
            run.step(20, wait=0)
    found = run.analyse().run
    assert found.figures.means[Activity.LOADER] == pytest.approx(0.75)
    assert found.figures.restarts == pytest.approx(1.0)
    assert found.diagnosis.user_facing.label == "input_bound"
    assert [one.card.id for one in found.diagnosis.recommendations] == ["rec_keep_the_workers"]


def test_waits_for_batches_are_no_restarts(run: Any) -> None:
    for _ in range(5):
        run.step(100, wait=60)
    found = run.analyse().run
    assert found.figures.restarts == 0
    assert [one.card.id for one in found.diagnosis.recommendations] == MORE_SAMPLES


def diagnose_batches(run: Any, tensors: int, *, step: float, wait: float, workers: int) -> ScopeAnalysis:
    """Ten steps whose batches have so many small tensors, of which the first 64 are listed."""
    listed = tuple(RecordedTensor(f"targets.{index}", (4,)) for index in range(min(tensors, 64)))
    run.add(ShapeSnapshot, run.now, tensors=listed, layout=1, tensor_count=tensors)
    for _ in range(10):
        run.add(LoaderWait, run.now + wait, duration_ns=round(wait * MS), workers=workers)
        run.step(step, wait=wait, batch_layout=1)
    return run.analyse().run


def test_handing_over_many_tensors_is_no_lack_of_workers(run: Any) -> None:
    """What pull request 1399 of roboflow/rf-detr found: of 114 tensors a batch, 112 have 0.005 % of the bytes."""
    found = diagnose_batches(run, 114, step=60, wait=20, workers=8)
    assert found.figures.handing_over == pytest.approx(114 * TENSOR_NS / (20 * MS))
    assert [one.card.id for one in found.diagnosis.recommendations] == ["rec_pack_the_batch"]


def test_a_second_loader_without_workers_leaves_it_open_who_made_the_batch(run: Any) -> None:
    run.add(LoaderWait, run.now, duration_ns=MS, workers=0)
    found = diagnose_batches(run, 114, step=60, wait=20, workers=8)
    assert found.figures.handing_over is None


@pytest.mark.parametrize(("tensors", "wait", "workers"), [(2, 20, 8), (114, 500, 8), (114, 20, 0)])
def test_few_tensors_or_a_long_wait_or_no_workers(run: Any, tensors: int, wait: float, workers: int) -> None:
    found = diagnose_batches(run, tensors, step=3 * wait, wait=wait, workers=workers)
    assert (found.figures.handing_over is None) == (workers == 0)
    assert [one.card.id for one in found.diagnosis.recommendations] == MORE_SAMPLES
