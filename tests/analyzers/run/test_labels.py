"""Each label: where it fires, and the nearest run for which it must not; what is not recorded decides nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frx_graph.analyzers.run.analysis import analyze_record
from frx_graph.analyzers.run.loader_workers import count_loader_workers
from frx_graph.analyzers.timeline.labels import Answer, RunLabel
from frx_graph.evidence.run.events import LoaderWait, PhaseSpan, RecordedTensor
from frx_graph.evidence.run.host_samples import HostSample
from frx_graph.passes import confidence
from frx_graph.rules.recommendation_card import index_cards_by_label

PRESENT, ABSENT, UNDECIDABLE = Answer.PRESENT, Answer.ABSENT, Answer.UNDECIDABLE


def tensor(*shape: int) -> RecordedTensor:
    return RecordedTensor("x", shape)


@pytest.mark.parametrize(
    ("label", "part", "at"), [("input_bound", "wait", 20), ("copy_bound", "h2d", 15), ("sync_bound", "sync", 10)]
)
def test_stalls_flip_at_their_line(run: Any, label: str, part: str, at: float) -> None:
    for _ in range(10):
        run.step(100, **{part: at})
    found = run.labels()[label]
    assert (found.answer, found.score) == (PRESENT, pytest.approx(at / 100))
    assert run.analyse().run.diagnosis.user_facing.label == label
    run.events.clear()
    for _ in range(10):
        run.step(100, **{part: at - 0.000001})
    found = run.labels()[label]
    assert found.answer is ABSENT
    assert f"below {at}%" in found.evidence


@pytest.mark.parametrize(("busy", "answer"), [(34.999, PRESENT), (35.0, ABSENT), (0.0, PRESENT), (None, UNDECIDABLE)])
def test_idle_devices(run: Any, busy: float | None, answer: Answer) -> None:
    run.step()
    run.sample(busy)
    found = run.labels()["underutilized_gpu"]
    assert found.answer is answer
    assert found.symptom is (answer is PRESENT)


@pytest.mark.parametrize(
    ("used", "total", "answer"),
    [
        (900, 1000, PRESENT),
        (899, 1000, ABSENT),
        (None, 1000, UNDECIDABLE),
        (900, None, UNDECIDABLE),
        (1, 0, UNDECIDABLE),
    ],
)
def test_full_memory(run: Any, used: int | None, total: int | None, answer: Answer) -> None:
    run.step()
    run.sample(50, used, total)
    assert run.labels()["memory_pressure"].answer is answer


def test_memory_is_judged_by_the_fullest_moment_of_the_fullest_device(run: Any) -> None:
    run.step()
    run.sample(50, 100, 1000, device=0)
    run.sample(50, 950, 1000, device=1)
    run.step()
    run.sample(50, 100, 1000, device=1)
    assert run.labels()["memory_pressure"].answer is PRESENT


@pytest.mark.parametrize(("changed", "answer"), [(3, PRESENT), (2, ABSENT), (0, ABSENT)])
def test_shapes_that_change_in_a_part_of_ten_steps(run: Any, changed: int, answer: Answer) -> None:
    sizes = [8 + min(step, changed) for step in range(11)]
    for layout, size in enumerate(sizes):
        run.batch(layout, tensor(size, 3))
        run.step(batch_layout=layout)
    assert run.labels()["shape_instability"].answer is answer


def test_one_change_is_what_a_last_batch_makes(run: Any) -> None:
    for layout, size in enumerate((8, 8, 5)):
        run.batch(layout, tensor(size, 3))
        run.step(batch_layout=layout)
    found = run.labels()["shape_instability"]
    assert found.answer is ABSENT
    assert "1 of 2 steps" in found.evidence


def test_batches_of_other_step_kinds_are_not_a_change(run: Any) -> None:
    run.batch(0, tensor(8, 3))
    run.batch(1, tensor(64, 3))
    for number in range(10):
        run.step(batch_layout=number % 2, kind=("train", "eval")[number % 2])
    assert run.labels()["shape_instability"].answer is ABSENT


@pytest.mark.parametrize(
    ("workers", "processors", "said", "more"),
    [
        (None, 2, "of the step time", True),
        (0, 2, "of the step time, with no worker processes on 2 cores", True),
        (1, 2, "of the step time, with 1 worker process on 2 cores", True),
        (2, 2, "of the step time, with 2 worker processes on 2 cores", False),
        (4, None, "of the step time, with 4 worker processes", True),
    ],
)
def test_more_workers_are_advised_if_cores_are_left(
    run: Any, workers: int | None, processors: int | None, said: str, more: bool
) -> None:
    for _ in range(5):
        run.step(100, wait=60, forward=30)
    events = [replace(event, workers=workers) if isinstance(event, LoaderWait) else event for event in run.events]
    found = analyze_record(events, [], None, processors=processors).run.diagnosis
    assert found.evidence[0].endswith(said)
    cards = [one.card.id for one in found.recommendations]
    assert ("rec_feed_the_device" in cards) is more
    assert "rec_prepare_samples_beforehand" in cards


def on_cpu(run: Any, workers: int, busy_pct: float | None, samples: Any = ()) -> Any:
    events = [replace(event, workers=workers) if isinstance(event, LoaderWait) else event for event in run.events]
    host = [HostSample(at_ns=run.at(at), processes=1, busy_pct=busy_pct) for at in (100, 200)]
    return analyze_record(events, samples, None, host, processors=2).run.diagnosis


@pytest.mark.parametrize(
    ("busy_pct", "first", "said"),
    [
        (139, "rec_feed_the_device", False),
        (140, "rec_prepare_samples_beforehand", True),
        (None, "rec_feed_the_device", False),
    ],
)
def test_workers_are_not_advised_on_busy_processors(run: Any, busy_pct: Any, first: str, said: bool) -> None:
    for _ in range(5):
        run.step(100, wait=60, forward=30)
    found = on_cpu(run, 0, busy_pct)
    assert found.recommendations[0].card.id == first
    last = found.recommendations[-1]
    assert (last.card.id, last.priority) == ("rec_read_larger_files", "low")
    assert any("loader workers would share them with the model" in line for line in found.evidence) is said


def test_busy_processors_do_not_matter_beside_a_device(run: Any) -> None:
    for _ in range(5):
        run.step(100, wait=60, forward=30)
    run.sample(10)
    found = on_cpu(run, 0, 200, run.samples)
    assert "rec_feed_the_device" in [one.card.id for one in found.recommendations]
    assert not any("processors busy" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("workers", "evidence"),
    [
        (0, ()),
        (1, ("the program keeps 100% of the processors busy: 1 loader worker competes with the model for them",)),
        (2, ("the program keeps 100% of the processors busy: 2 loader workers compete with the model for them",)),
    ],
)
def test_workers_that_compete_with_the_model(run: Any, workers: int, evidence: tuple[str, ...]) -> None:
    for _ in range(5):
        run.step(100, wait=5, forward=90)
    found = on_cpu(run, workers, 200)
    assert (found.user_facing, found.evidence) == (None, evidence)


@pytest.mark.parametrize(
    ("forward", "busy", "said"),
    [
        (90, None, ": the model's own work takes the time (forward 90.0%)"),
        (49, None, ""),
        (90, 81, ": devices are busy 81% of the time"),
    ],
    ids=["host", "less than half", "device"],
)
def test_the_models_own_work_is_named_if_nothing_else_is_found(run: Any, forward: int, busy: Any, said: str) -> None:
    for _ in range(5):
        run.step(100, wait=5, forward=forward)
        if forward < 90:
            run.add(PhaseSpan, run.now - 1, step=run.number - 1, duration_ns=40_000_000, phase="evaluation")
        if busy is not None:
            run.sample(busy)
    found = run.analyse().run.diagnosis
    assert found.user_facing is None
    assert found.reason == f"no recorded activity holds the run back{said}"


def test_what_was_recorded_is_why_it_is_enough(run: Any) -> None:
    run.step(100, forward=90)
    assert run.labels()["insufficient_telemetry"].evidence == "enough was recorded: steps were timed"


def test_workers_of_all_processes_count_and_of_the_loader_that_is_waited_for(run: Any) -> None:
    for process in (1, 2):
        for workers, wait in ((3, 10), (0, 1)):
            run.events.append(LoaderWait(at_ns=run.at(process), process=process, duration_ns=wait, workers=workers))
    assert count_loader_workers(run.events) == 6
    assert count_loader_workers([]) is None


def test_steps_that_are_not_divided_call_for_marks_of_their_parts(run: Any) -> None:
    for _ in range(5):
        run.step(100, wait=5)
    found = run.analyse().run.diagnosis
    assert found.user_facing.label == "insufficient_telemetry"
    assert next(one.card.id for one in found.recommendations) == "rec_divide_the_step"
    assert sum("no recorded activity" in line for line in (*found.evidence, found.reason)) == 1


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_shapes_of_few_steps_decide_nothing(run: Any, steps: int) -> None:
    for number in range(steps):
        run.batch(number, tensor(number + 1))
        run.step(batch_layout=number)
    label = run.labels()["shape_instability"]
    assert label.answer is UNDECIDABLE
    few = "the shapes of fewer than 3 batches were recorded"
    assert label.evidence == (few if steps else "no step was recorded")


def test_nothing_is_recorded_is_not_nothing_is_there(run: Any) -> None:
    for _ in range(5):
        run.step()
    labels = run.labels()
    for name in ("input_bound", "copy_bound", "sync_bound", "shape_instability", "memory_pressure", "launch_bound"):
        assert labels[name].answer is UNDECIDABLE, name
        assert (labels[name].score, labels[name].confidence) == (0, 0)
    found = run.analyse().run.diagnosis
    assert found.user_facing.label == "insufficient_telemetry"
    assert found.evidence == ("100.0% of the step time is in no recorded activity, all within the marked steps",)
    assert found.reason == "too little was recorded to name a bottleneck"


@pytest.mark.parametrize(
    ("forward", "busy", "answer"),
    [(80, None, PRESENT), (81, None, ABSENT), (10, 81, ABSENT), (80, 50, ABSENT)],
    ids=["a fifth", "less", "busy devices", "another label"],
)
def test_steps_that_the_record_does_not_explain(run: Any, forward: float, busy: float | None, answer: Answer) -> None:
    for _ in range(5):
        run.step(100, forward=forward)
        if busy is not None:
            run.sample(busy)
    assert run.labels()["insufficient_telemetry"].answer is answer


@pytest.mark.parametrize(("busy", "expected"), [(80, ABSENT), (79, PRESENT), (None, UNDECIDABLE)])
def test_a_device_that_waits_for_the_host_by_samples(run: Any, busy: float | None, expected: Answer) -> None:
    for _ in range(5):
        run.step(100, forward=90, wait=1)
        run.sample(busy)
    found = run.labels()["host_bound"]
    assert found.answer is expected
    assert (found.confidence == confidence.ASSUMED) is (expected is PRESENT)


def test_no_steps_and_no_samples_are_too_little(run: Any) -> None:
    record = run.analyse()
    assert record.run.diagnosis.user_facing.label == "insufficient_telemetry"
    assert record.run.diagnosis.primary.label == "insufficient_telemetry"
    assert record.run.figures.step_ms is None
    run.sample(None, 1, 2)
    assert run.labels()["insufficient_telemetry"].answer is PRESENT
    run.sample(80)
    assert run.labels()["insufficient_telemetry"].answer is ABSENT


@pytest.mark.parametrize(("between", "told"), [(19, False), (20, True)])
def test_unrecorded_time_between_steps_is_reported(run: Any, between: float, told: bool) -> None:
    for _ in range(10):
        run.now += between
        run.step(100 - between)
    found = run.analyse().steady_state.diagnosis
    assert found.user_facing.label == "insufficient_telemetry"
    assert ("20.0% of the time passes between steps" in found.reason) is told
    assert found.evidence[0].endswith(f": {100 - between:.1f}% within the marked steps, {between:.1f}% between them")
    assert run.labels()["input_bound"].answer is UNDECIDABLE


def test_waiting_while_devices_have_work_costs_nothing(run: Any) -> None:
    for _ in range(5):
        run.step(100, wait=60, sync=30)
    run.sample(95.1)
    labels = run.labels()
    for name in ("input_bound", "sync_bound"):
        assert labels[name].answer is ABSENT
        assert "they have work meanwhile" in labels[name].evidence
    run.samples.clear()
    run.sample(95.0)
    assert run.labels()["input_bound"].answer is PRESENT


def test_a_thread_that_waits_while_another_computes_holds_nothing_up(run: Any) -> None:
    for _ in range(5):
        run.step(100, wait=0, forward=90)
        run.events[-4] = type(run.events[-4])(
            at_ns=run.at(run.now - 20), process=7, duration_ns=run.at(run.now - 20) - run.at(run.now - 80)
        )
    assert run.labels()["input_bound"].answer is ABSENT


@pytest.mark.parametrize(
    ("kernels", "median", "small", "busy", "answer"),
    [
        (30, 9.99, 0.5, 34.9, PRESENT),
        (29, 9.99, 0.5, 34.9, UNDECIDABLE),
        (30, 10.0, 0.5, 34.9, ABSENT),
        (30, 9.99, 0.499, 34.9, ABSENT),
        (30, 9.99, 0.5, 35.0, ABSENT),
        (30, 9.99, 0.5, None, UNDECIDABLE),
        (None, 9.99, 0.5, 34.9, UNDECIDABLE),
        (30, None, 0.5, 34.9, UNDECIDABLE),
        (30, 9.99, None, 34.9, UNDECIDABLE),
    ],
)
def test_small_kernels(run: Any, kernels: Any, median: Any, small: Any, busy: Any, answer: Answer) -> None:
    for _ in range(5):
        run.step()
    run.sample(busy)
    run.profiled(kernels, median, small)
    assert run.labels()["launch_bound"].answer is answer


def test_small_kernels_are_surer_with_stable_shapes_and_none_with_other_causes(run: Any) -> None:
    run.sample(1)
    run.profiled(800, 4.2, 0.9)
    for _ in range(5):
        run.step(100, wait=5)
    run.sample(1)
    assert run.labels()["launch_bound"].confidence == confidence.ASSUMED
    run.batch(1, tensor(4))
    for _ in range(5):
        run.step(100, wait=5, batch_layout=1)
    found = run.analyse().run.diagnosis
    assert found.user_facing.label == "launch_bound"
    assert found.primary.label == "underutilized_gpu"
    assert run.labels()["launch_bound"].confidence == confidence.MODELLED
    for _ in range(10):
        run.step(100, wait=80)
    found = run.labels()["launch_bound"]
    assert found.answer is ABSENT
    assert "the run is input_bound" in found.evidence


def test_symptom_is_shown_as_its_cause(run: Any) -> None:
    for _ in range(10):
        run.step(100, wait=60)
        run.sample(10)
    found = run.analyse().run.diagnosis
    assert (found.primary.label, found.primary.symptom) == ("underutilized_gpu", True)
    assert (found.user_facing.label, found.user_facing.symptom) == ("input_bound", False)
    assert found.confidence == confidence.MEASURED
    assert found.recommendations[0].card.id == "rec_feed_the_device"
    assert {one.label for one in found.why_not} == set(run.labels()) - {"input_bound"}


def test_an_idle_device_without_a_recorded_wait_has_less_confidence(run: Any) -> None:
    for _ in range(10):
        run.step(100, wait=1)
        run.sample(10)
    found = run.analyse().run.diagnosis
    assert found.primary.label == found.user_facing.label == "host_bound"
    assert found.confidence == confidence.ASSUMED
    assert "no recorded wait explains it" in found.evidence[0]


def test_causes_that_are_close_make_each_other_less_sure(run: Any) -> None:
    for _ in range(10):
        run.step(100, wait=25, sync=21)
    found = run.analyse().run.diagnosis
    assert (found.user_facing.label, found.confidence) == ("input_bound", confidence.MODELLED)
    assert "sync_bound costs about as much" in found.reason


def test_few_steps_are_less_sure(run: Any) -> None:
    run.step(100, wait=60)
    run.step(100, wait=60)
    found = run.analyse().run.diagnosis
    assert (found.user_facing.label, found.confidence) == ("input_bound", confidence.ASSUMED)
    run.step(100, wait=60)
    assert run.analyse().run.diagnosis.confidence == confidence.MEASURED


def test_the_process_that_waits_most_counts(run: Any) -> None:
    for process in (1, 2, 3, 4):
        run.process, run.now, run.number = process, 0.0, 0
        for _ in range(10):
            run.step(100, wait=40 if process == 3 else 0)
    found: RunLabel = run.labels()["input_bound"]
    assert found.answer is PRESENT
    assert "40.0%" in found.evidence
    assert "process 3" in found.evidence
    assert run.analyse().run.figures.means["loader_wait"] == pytest.approx(0.1)


def test_each_label_has_a_card() -> None:
    sketch_labels = {"input_bound", "copy_bound", "sync_bound", "memory_pressure", "shape_instability"}
    assert sketch_labels | {"underutilized_gpu", "launch_bound", "insufficient_telemetry"} <= set(
        index_cards_by_label()
    )
