"""Each label: where it fires, and the nearest run for which it must not."""

from __future__ import annotations

from typing import Any

import pytest

from frx_graph.analyze.trace import TraceEvidence
from frx_graph.analyzers.timeline.labels import UNPRICED, Answer, RunLabel
from frx_graph.rules.recommendation_card import index_cards_by_label

SHAPED = {"Input Dims": [[8, 3]], "Input type": ["float"]}


def label(evidence: TraceEvidence, name: str) -> RunLabel:
    return next(one for one in evidence.run.labels if one.label == name)


def answer(evidence: TraceEvidence, name: str) -> Answer:
    return label(evidence, name).answer


def busy_step(run: Any, end: float = 1000) -> None:
    run.step(1, 0, end)
    run.op("aten::mm", 0, 10)


@pytest.mark.parametrize(("wait", "expected"), [(250, Answer.PRESENT), (190, Answer.ABSENT)])
def test_waiting_for_input(run: Any, wait: int, expected: Answer) -> None:
    busy_step(run)
    run.load(10, 10 + wait)
    run.kernel(10 + wait, 15 + wait, 1000)
    found = run.analyse()
    assert answer(found, "input_bound") is expected
    assert f"{wait / 10:.1f}% of the steps" in label(found, "input_bound").evidence
    if expected is Answer.PRESENT:
        assert found.run.primary is not None
        assert found.run.primary.label == "input_bound"
        assert label(found, "input_bound").score == pytest.approx(wait / 1000)


def test_a_wait_for_input_that_the_device_does_not_notice_is_none(run: Any) -> None:
    busy_step(run)
    run.kernel(5, 6, 990)
    run.load(10, 600)
    found = run.analyse()
    assert answer(found, "input_bound") is Answer.ABSENT
    assert "they have work meanwhile" in label(found, "input_bound").evidence


def test_idle_device_without_a_data_loader_leaves_input_bound_undecided(run: Any) -> None:
    busy_step(run)
    run.kernel(5, 6, 500)
    assert answer(run.analyse(), "input_bound") is Answer.UNDECIDABLE
    run.kernel(500, 501, 990)
    assert answer(run.analyse(), "input_bound") is Answer.ABSENT


@pytest.mark.parametrize(
    ("copied", "hidden", "expected"), [(160, False, True), (140, False, False), (160, True, False)]
)
def test_copies_from_the_host(run: Any, copied: int, hidden: bool, expected: bool) -> None:
    busy_step(run)
    run.device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0, 20, 20 + copied, stream=8, bytes=1000)
    run.kernel(10, 20 if hidden else 20 + copied, 1000)
    assert (answer(run.analyse(), "copy_bound") is Answer.PRESENT) is expected


@pytest.mark.parametrize(("idle", "expected"), [(100, True), (40, False)])
def test_waiting_for_a_device_counts_if_the_device_is_idle_afterwards(run: Any, idle: int, expected: bool) -> None:
    busy_step(run)
    run.kernel(5, 10, 500)
    run.op("aten::item", 100, 520)
    run.call("cudaStreamSynchronize", 110, 505, correlation=99)
    run.kernel(490 + idle, 500 + idle, 1000)
    found = run.analyse()
    assert (answer(found, "sync_bound") is Answer.PRESENT) is expected
    (wait,) = found.run.timeline.host.waits
    assert (wait.call, wait.asker, wait.count, wait.total_ns) == ("cudaStreamSynchronize", "aten::item", 1, 395_000)


def test_short_wait_is_ignored(run: Any) -> None:
    busy_step(run)
    run.kernel(5, 10, 500)
    run.call("cudaDeviceSynchronize", 410, 505, correlation=99)
    run.kernel(700, 710, 1000)
    assert answer(run.analyse(), "sync_bound") is Answer.ABSENT


@pytest.mark.parametrize(("name", "waits"), [("DtoH (Device -> Pageable)", 1), ("DtoH (Device -> Pinned)", 0)])
def test_a_copy_to_pageable_memory_waits_whatever_its_name(run: Any, name: str, waits: int) -> None:
    busy_step(run)
    run.kernel(5, 10, 500)
    run.call("cudaMemcpyAsync", 110, 505, correlation=77)
    copy = {"device": 0, "stream": 7, "correlation": 77, "bytes": 4}
    run.event("gpu_memcpy", f"Memcpy {name}", 500, 502, {"pid": 0, "tid": 7}, **copy)
    run.kernel(590, 600, 1000)
    found = run.analyse()
    assert len(found.run.timeline.host.waits) == waits
    assert (answer(found, "sync_bound") is Answer.PRESENT) is bool(waits)


@pytest.mark.parametrize(("until", "expected"), [(300, True), (480, False)])
def test_communication_beside_which_nothing_is_computed(run: Any, until: int, expected: bool) -> None:
    busy_step(run)
    run.kernel(5, 10, until)
    run.kernel(20, 250, 500, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", stream=20)
    run.kernel(490, 500, 1000)
    found = run.analyse()
    assert (answer(found, "communication_bound") is Answer.PRESENT) is expected
    (device,) = found.run.timeline.devices
    assert device.communication_ns == 250_000
    assert device.exposed_communication_ns == (500 - until) * 1000


@pytest.mark.parametrize(
    ("length", "ahead", "expected"),
    [(4, 0, Answer.PRESENT), (12, 0, Answer.ABSENT), (4, 15, Answer.ABSENT)],
    ids=["small and late", "not small", "launched ahead"],
)
def test_kernels_that_are_launched_too_late(run: Any, length: int, ahead: int, expected: Answer) -> None:
    busy_step(run)
    for index in range(50):
        start = 20 * (index + 1)
        run.kernel(start - 2 - ahead, start, start + length)
    found = run.analyse()
    assert answer(found, "launch_bound") is expected
    launches = found.run.timeline.launches
    assert launches is not None
    assert (launches.kernels, launches.per_step, launches.median_ns) == (50, 50.0, 1000 * length)
    assert (launches.starved, launches.judged) == (0 if ahead else 49, 49)


def test_few_kernels_or_unknown_launches_leave_launch_bound_undecided(run: Any) -> None:
    busy_step(run)
    for index in range(29):
        run.kernel(20 * index, 20 * index + 2, 20 * index + 4)
    assert answer(run.analyse(), "launch_bound") is Answer.UNDECIDABLE
    run.events = [event for event in run.events if event["cat"] != "cuda_runtime"]
    for index in range(29, 50):
        run.kernel(None, 20 * index + 2, 20 * index + 4)
    found = run.analyse()
    assert answer(found, "launch_bound") is Answer.UNDECIDABLE
    assert "no launch is in the trace" in label(found, "launch_bound").evidence
    assert answer(found, "sync_bound") is Answer.UNDECIDABLE


@pytest.mark.parametrize(("converting", "expected"), [(30, True), (10, False)])
def test_layout_changes(run: Any, converting: int, expected: bool) -> None:
    busy_step(run)
    run.op("aten::cudnn_convolution", 20, 40)
    run.kernel(25, 50, 50 + converting, "void cudnn::ops::nchwToNhwcKernel<float, float>(int)")
    run.kernel(30, 50 + converting, 1000, "volta_scudnn_128x64_relu_medium_nn_v1")
    found = run.analyse()
    assert (answer(found, "layout_churn") is Answer.PRESENT) is expected
    (work,) = found.run.timeline.layout.work
    assert (work.operator, work.finding.rule, work.total_ns) == ("aten::cudnn_convolution", "FRX004", converting * 1000)


@pytest.mark.parametrize(("busy", "expected"), [(340, True), (360, False)])
def test_a_device_with_little_to_do_is_a_symptom(run: Any, busy: int, expected: bool) -> None:
    busy_step(run)
    run.kernel(5, 10, 10 + busy)
    found = label(run.analyse(), "underutilized_gpu")
    assert (found.answer is Answer.PRESENT) is expected
    assert found.symptom is expected


def test_a_cause_comes_before_its_symptom(run: Any) -> None:
    busy_step(run)
    run.load(10, 800)
    run.kernel(800, 810, 1000)
    found = run.analyse().run
    assert (found.primary, found.symptom) == (found.labels[0], found.labels[1])
    assert [one.label for one in found.present] == ["input_bound", "underutilized_gpu"]


def test_no_label_is_absent_without_device_activity(run: Any) -> None:
    busy_step(run)
    found = run.analyse()
    assert found.run.primary is None
    assert {one.label for one in found.run.labels if one.answer is Answer.ABSENT} == set()
    cards = [(one.card.id, one.priority) for one in found.run.recommendations]
    assert cards == [("rec_record_the_waits", "high"), ("rec_record_a_device_if_used", "low")]
    assert "gpu_busy_pct" not in found.run.timeline.collect_values()
    assert label(found, "insufficient_telemetry").evidence.startswith("devices were not recorded")


def test_calls_of_a_runtime_show_that_there_is_a_device(run: Any) -> None:
    busy_step(run)
    run.call("cudaLaunchKernel", 10, 20)
    found = run.analyse()
    assert "rec_record_device_activity" in [one.card.id for one in found.run.recommendations if one.priority == "high"]
    assert label(found, "insufficient_telemetry").evidence.startswith("no device did anything")


def test_operators_of_the_host_by_their_own_time(run: Any) -> None:
    run.step(1, 0, 1000)
    run.op("aten::linear", 0, 500)
    run.op("aten::addmm", 100, 500)
    run.op("aten::addmm", 600, 700)
    run.op("aten::mm", 2000, 3000)
    found = run.analyse().run.timeline.host.operators
    assert [(one.name, one.calls, one.self_ns) for one in found] == [
        ("aten::addmm", 2, 500_000),
        ("aten::linear", 1, 100_000),
    ]
    run.kernel(610, 620, 640)
    assert run.analyse().run.timeline.host.operators == ()


def test_collectives_of_a_host_need_operators_beside_them(run: Any) -> None:
    run.step(1, 0, 1000)
    run.event("user_annotation", "gloo:all_reduce", 100, 900, {"pid": 1, "tid": 9})
    run.op("aten::mm", 0, 5)
    assert answer(run.analyse(), "communication_bound") is Answer.UNDECIDABLE
    run.op("aten::mm", 10, 300)
    found = label(run.analyse(), "communication_bound")
    assert (found.answer, found.score) == (Answer.PRESENT, pytest.approx(0.6))


def test_every_label_has_a_card_whose_metrics_are_measured(run: Any) -> None:
    busy_step(run)
    run.step(1, 1000, 2000)
    run.step(2, 2000, 3000)
    for begin in (0, 1000, 2000):
        run.op("aten::relu", begin + 20, begin + 30, **SHAPED)
    run.allocated(1 << 30)
    run.load(1, 2)
    run.kernel(5, 10, 500)
    run.kernel(500, 510, 900)
    run.kernel(901, 905, 908)
    found = run.analyse().run
    known = set(found.timeline.collect_values())
    for one in found.labels:
        for card in index_cards_by_label()[one.label]:
            for step in card.validation:
                assert step.metric == f"torch.profiler: {step.value}"
                assert step.value in known


@pytest.mark.parametrize(("gigabytes", "expected"), [(15, Answer.PRESENT), (14, Answer.ABSENT)])
def test_memory_that_is_nearly_all_taken(run: Any, gigabytes: int, expected: Answer) -> None:
    busy_step(run)
    run.kernel(5, 6, 900)
    for held in (1, gigabytes, 2):
        run.allocated(held << 30)
    found = run.analyse()
    assert answer(found, "memory_pressure") is expected
    assert f"{100 * gigabytes / 16:.1f}%" in label(found, "memory_pressure").evidence


def test_memory_comes_behind_what_is_known_to_cost_time(run: Any) -> None:
    busy_step(run)
    run.load(10, 260)
    run.kernel(260, 265, 1000)
    run.allocated(16 << 30)
    assert [one.label for one in run.analyse().run.present] == ["input_bound", "memory_pressure"]


@pytest.mark.parametrize("missing", ["events", "size", "totals"])
def test_missing_memory_data_leaves_memory_pressure_undecided(run: Any, missing: str) -> None:
    busy_step(run)
    run.kernel(5, 6, 900)
    if missing != "events":
        run.allocated(16 << 30)
    if missing == "size":
        run.metadata = {}
    if missing == "totals":
        run.events[-1]["args"].pop("Total Allocated")
    assert answer(run.analyse(), "memory_pressure") is Answer.UNDECIDABLE


def test_memory_of_the_host_is_none_of_a_device(run: Any) -> None:
    busy_step(run)
    run.kernel(5, 6, 900)
    run.allocated(16 << 30, kind=0)
    assert answer(run.analyse(), "memory_pressure") is Answer.UNDECIDABLE


def steps_on(run: Any, *batches: int | None) -> RunLabel:
    """A step of each batch, None: shapes were not recorded."""
    for number, batch in enumerate(batches):
        begin = 1000 * number
        run.step(number, begin, begin + 990)
        shapes = {} if batch is None else {"Input Dims": [[batch, 8]], "Input type": ["float"]}
        run.op("aten::relu", begin + 10, begin + 20, **shapes)
        run.op("aten::relu", begin + 30, begin + 40, **shapes)
        run.kernel(begin + 12, begin + 15, begin + 900)
    return label(run.analyse(), "shape_instability")


def test_shapes_that_change_from_step_to_step(run: Any) -> None:
    found = steps_on(run, 32, 16, 16, 8, 8)
    assert (found.answer, found.score) == (Answer.PRESENT, pytest.approx(0.5 * UNPRICED))
    assert found.evidence == "2 of 4 steps compute on other shapes than the step before"


@pytest.mark.parametrize("batches", [(32, 32, 32), (32, 32, 31), (32,) * 8 + (16, 8)])
def test_last_batch_is_not_an_instability(run: Any, batches: tuple[int, ...]) -> None:
    assert steps_on(run, *batches).answer is Answer.ABSENT


@pytest.mark.parametrize("batches", [(32, 16), (32, None, 16), (None, None, None)])
def test_shapes_that_were_not_recorded_are_not_the_same(run: Any, batches: tuple[int | None, ...]) -> None:
    assert steps_on(run, *batches).answer is Answer.UNDECIDABLE


def test_images_of_any_size_may_be_loaded(run: Any) -> None:
    for begin, size in ((0, 3), (1000, 4), (2000, 5)):
        run.load(begin + 50, begin + 90)
        run.op("aten::resize", begin + 60, begin + 80, **{"Input Dims": [[size]], "Input type": ["float"]})
    assert steps_on(run, 32, 32, 32).answer is Answer.ABSENT


@pytest.mark.parametrize(("busy", "expected"), [(790, Answer.PRESENT), (810, Answer.ABSENT)])
def test_a_device_that_waits_for_the_host(run: Any, busy: int, expected: Answer) -> None:
    busy_step(run)
    run.kernel(5, 10, 10 + busy)
    found = run.analyse()
    assert answer(found, "host_bound") is expected
    if expected is Answer.PRESENT:
        assert found.run.primary is not None
        assert found.run.primary.label == "host_bound"
        assert label(found, "host_bound").score == pytest.approx(0.21)


def test_what_the_host_does_while_a_device_is_idle(run: Any) -> None:
    run.step(1, 0, 1000)
    run.op("aten::mm", 0, 100)
    run.op("aten::item", 500, 600)
    run.call("cudaStreamSynchronize", 520, 590)
    run.call("cudaMalloc", 600, 640)
    run.call("cudaDeviceSynchronize", 640, 660)
    run.kernel(30, 100, 500)
    found = run.analyse()
    assert {work: time / 1000 for work, time in found.run.timeline.host_idle.items()} == {
        "python": 340,
        "dispatching": 99,
        "reading": 100,
        "allocating": 40,
        "waiting": 20,
        "launching": 1,
    }
    told = label(found, "host_bound").evidence
    assert "the host is outside of operators, in Python or in what was not recorded (57%)" in told
    assert "launch" not in told


def test_waits_for_input_count_as_waiting_for_the_host_where_they_are_no_bottleneck(run: Any) -> None:
    busy_step(run)
    run.load(10, 160)
    run.kernel(160, 165, 900)
    found = run.analyse()
    assert answer(found, "input_bound") is Answer.ABSENT
    assert label(found, "host_bound").score == pytest.approx(0.265)
    run.load(160, 220)
    found = run.analyse()
    assert answer(found, "input_bound") is Answer.PRESENT
    assert answer(found, "host_bound") is Answer.ABSENT


def test_idle_time_after_waits_is_told_once(run: Any) -> None:
    busy_step(run)
    run.kernel(5, 10, 400)
    run.call("cudaStreamSynchronize", 250, 410)
    run.kernel(690, 700, 1000)
    found = run.analyse()
    assert [one.label for one in found.run.present] == ["sync_bound"]
    assert "sync_bound" in label(found, "host_bound").evidence


def test_small_kernels_launched_too_late_are_told_once(run: Any) -> None:
    busy_step(run)
    for index in range(50):
        start = 20 * (index + 1)
        run.kernel(start - 2, start, start + 4)
    assert [one.label for one in run.analyse().run.present] == ["launch_bound", "underutilized_gpu"]


def test_a_label_without_a_price_ranks_behind_those_with_one(run: Any) -> None:
    for number, batch in enumerate((32, 16, 32, 16)):
        begin = 1000 * number
        run.step(number, begin, begin + 1000)
        run.op(
            "aten::cudnn_convolution", begin + 1, begin + 20, **{"Input Dims": [[batch, 8]], "Input type": ["float"]}
        )
        run.kernel(begin + 2, begin + 5, begin + 30, "void cudnn::ops::nchwToNhwcKernel<float, float>(int)")
        run.kernel(begin + 3, begin + 30, begin + 995)
    found = run.analyse().run
    assert [one.label for one in found.present] == ["layout_churn", "shape_instability"]
    assert found.present[0].score < 0.03
    ranked = [one.card.id for one in found.recommendations]
    assert ranked[0] == "rec_keep_one_layout"
    assert ranked.index("rec_keep_shapes") > ranked.index("rec_let_a_trial_choose_the_layout")
