from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.runs.tune.step_stream import FEWEST_SETTLING, EndedStep, StepStream, compute_block_length, select_block
from frx_graph.trials.schedule import Arm


def event(kind: str, at: int, payload: dict[str, object] | None = None, pid: int = 7) -> bytes:
    line = {
        "event_type": kind,
        "timestamp_ns": at,
        "pid": pid,
        "step_id": 0,
        "duration_ns": 1,
        "payload": payload or {},
    }
    return json.dumps(line).encode() + b"\n"


def test_a_file_that_is_not_there_yet_has_no_steps(tmp_path):
    assert StepStream(tmp_path / "trace.jsonl").read() == []


@given(st.data())
def test_steps_are_the_same_however_the_file_grows(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("stream") / "trace.jsonl"
    whole = b"".join(event("step_end", at) for at in range(1, 20))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    path.write_bytes(b"")
    stream, found = StepStream(path), []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        with path.open("ab") as file:
            file.write(whole[begin:end])
        found += stream.read()
    assert [step.end_ns for step in found] == list(range(1, 20))


def test_steps_of_other_processes_and_non_event_lines_are_skipped(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(
        event("step_end", 1)
        + b"no json\n[1]\n\xff\xfe\n"
        + event("step_end", 2, pid=8)
        + event("step_end", 3, {"loss": "NaN", "metrics": {"output_mean": 0.5}})
    )
    first, second = StepStream(path).read()
    assert (first.end_ns, second.end_ns) == (1, 3)
    assert second.loss != second.loss
    assert dict(second.metrics) == {"output_mean": 0.5}


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_arbitrary_file_contents_are_accepted(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("stream") / "trace.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert isinstance(StepStream(path).read(), list)


def test_a_step_has_the_samples_of_the_layout_that_it_refers_to(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(
        event("shape_snapshot", 1, {"of": "batch", "layout": 0, "batch_size": 32, "shapes": {}})
        + event("step_end", 2, {"batch_layout": 0})
        + event("shape_snapshot", 3, {"of": "batch", "layout": 1, "batch_size": 5, "shapes": {}})
        + event("step_end", 4, {"batch_layout": 1})
        + event("step_end", 5, {"batch_layout": 0})
    )
    stream = StepStream(path)
    assert [step.samples for step in stream.read()] == [32, 5, 32]
    assert stream.layouts == {0, 1}


def test_samples_and_workers_come_from_the_loader_without_layouts(tmp_path):
    path = tmp_path / "trace.jsonl"
    loader = {"stage": "next", "batch_size": 16, "num_workers": 4}
    path.write_bytes(event("dataloader_span", 1, loader) + event("step_end", 2))
    stream = StepStream(path)
    assert [step.samples for step in stream.read()] == [16]
    assert stream.workers == 4


MS = 1_000_000


def steps(*at_ms: float, samples: int | None = None) -> list[EndedStep]:
    return [EndedStep(int(at * MS), samples) for at in at_ms]


def block_of(ended: list[EndedStep], begin_ms: float, end_ms: float, count: int = 3, workers: int | None = None):
    return select_block(
        Arm.BASELINE, ended, (int(begin_ms * MS), int(end_ms * MS)), compute_block_length(count, workers)
    )


def test_a_step_lasts_from_the_end_of_the_one_before_so_what_it_waits_for_is_in_it():
    found = block_of(steps(0, 10, 20, 30, 45, 60), 0, 100)
    assert found.step_seconds == pytest.approx((0.010, 0.015, 0.015))
    assert found.seconds == pytest.approx(0.040 / 3)


def test_steps_during_a_pause_or_while_settling_do_not_count():
    # The first of these ends right behind the stop: it has lasted for as long as the program stood.
    ended = steps(5, 1001, 1002, 1003, 1013, 1023, 1033)
    found = block_of(ended, 1000, 2000)
    assert found.step_seconds == pytest.approx((0.010, 0.010, 0.010))


def test_steps_behind_the_stop_and_too_few_of_them_make_no_block():
    enough = compute_block_length(3, None).ends
    ended = steps(*range(enough))
    assert block_of(ended, 0, enough) is not None
    assert block_of(ended, 0, enough - 2) is None
    assert block_of(ended, 1, enough) is None


def test_whole_rounds_of_workers_are_counted_and_two_rounds_settle():
    assert compute_block_length(10, None).count == 10
    assert compute_block_length(10, 0).settle == FEWEST_SETTLING
    assert compute_block_length(10, 4) == compute_block_length(12, 4)
    assert compute_block_length(10, 4).settle == 8


@given(
    workers=st.integers(1, 8),
    round_ms=st.integers(20, 200),
    work_ms=st.integers(1, 2),
    phase=st.integers(0, 7),
    count=st.integers(2, 20),
)
def test_batches_that_come_in_bursts_have_their_mean_time_wherever_a_block_begins(
    workers, round_ms, work_ms, phase, count
):
    # All workers deliver at once, and the steps on what they have delivered follow one another.
    ends = [turn * round_ms + worker * work_ms for turn in range(60) for worker in range(workers)]
    found = block_of(steps(*ends[phase:]), ends[phase], ends[-1], count, workers)
    assert found.seconds == pytest.approx(round_ms / workers / 1e3)


def test_samples_count_only_if_every_step_reports_them():
    told = block_of(steps(0, 1, 2, 12, 22, 32, samples=4), 0, 100)
    assert told.samples == 12
    assert told.seconds_per_sample == pytest.approx(0.0025)
    assert told.block(by_sample=True).seconds == pytest.approx((0.0025,))
    untold = block_of([*steps(0, 1, 2, samples=4), *steps(12, 22, 32)], 0, 100)
    assert untold.seconds_per_sample is None
    with pytest.raises(ValueError, match="is unknown"):
        untold.block(by_sample=True)


def test_a_clock_that_is_set_back_makes_no_time_of_nothing():
    found = block_of(steps(0, 10, 20, 20, 20, 20), 0, 100)
    assert all(seconds > 0 for seconds in found.step_seconds)
